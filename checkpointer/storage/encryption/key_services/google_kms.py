"""Wrap keys by Google Cloud KMS.

A text names the key as `google-kms:projects/…/locations/…/keyRings/…/cryptoKeys/NAME`.

Checksums go with all bytes, as Google asks for it: what was changed on its way, by a fault of a machine, is noticed
while the data key can still be wrapped anew. What the service makes of a key by rotation opens all that it wrapped
before.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.storage.connection import require
from pyspark_checkpointer.storage.encryption.key_providers import UnwrapError
from pyspark_checkpointer.storage.encryption.key_services.https import Answer, RefusedError, Service, encode64, field
from pyspark_checkpointer.storage.encryption.key_services.refusals import (
    PURPOSE,
    no_credentials,
    unreachable,
    unusable_key,
)

_NAME = re.compile(r"projects/[a-z0-9.:-]+/locations/[a-z0-9-]+/keyRings/[\w-]{1,63}/cryptoKeys/[\w-]{1,63}", re.ASCII)
_URL = "https://cloudkms.googleapis.com/v1"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_LOGIN = (
    "set GOOGLE_APPLICATION_CREDENTIALS, log in with `gcloud auth application-default login`, or use a service account"
)
_ROLE = "the role Cloud KMS CryptoKey Encrypter/Decrypter on the key"

_CASTAGNOLI = 0x82F63B78


@dataclass(frozen=True, slots=True)
class GoogleKms:
    """A symmetric key of Google Cloud KMS.

    The service chooses the version that wraps, and knows it again.
    """

    name: str

    provider = "google-kms"
    form = "projects/P/locations/L/keyRings/R/cryptoKeys/NAME"

    @classmethod
    def named(cls, name: str) -> "GoogleKms | None":
        """Return the provider of a key; None for a text that names none."""
        if not _NAME.fullmatch(name):
            return None
        require("google.auth", cls.provider, cls.provider)
        return cls(name)

    @property
    def key(self) -> str:
        return self.name

    def wrap(self, data: bytes) -> bytes:
        try:
            found = self._ask("encrypt", "plaintext", data)
        except RefusedError as refused:
            raise self._refusal(refused) from None
        if not (
            found.get("verifiedPlaintextCrc32c") is True
            and found.get("verifiedAdditionalAuthenticatedDataCrc32c") is True
        ):
            raise unreachable(self._service.name, "it did not compare the checksums")
        return self._checked(found, "ciphertext")

    def unwrap(self, wrapped: bytes) -> bytes:
        try:
            found = self._ask("decrypt", "ciphertext", wrapped)
        except RefusedError as refused:
            if field(refused.answer, "error", "status") == "INVALID_ARGUMENT":
                raise UnwrapError from None
            raise self._refusal(refused) from None
        return self._checked(found, "plaintext")

    @property
    def _service(self) -> Service:
        return Service(f"{self.provider}:{self.name}", _ROLE, _LOGIN)

    def _ask(self, verb: str, kind: str, data: bytes) -> Answer:
        purpose, url = PURPOSE.encode(), f"{_URL}/{self.name}:{verb}"
        body = {
            kind: encode64(data),
            f"{kind}Crc32c": str(crc32c(data)),
            "additionalAuthenticatedData": encode64(purpose),
            "additionalAuthenticatedDataCrc32c": str(crc32c(purpose)),
        }
        return self._service.ask(url, self._headers(url), body)

    def _headers(self, url: str) -> Mapping[str, str]:
        # Imported here, because the package is optional.
        import google.auth
        import google.auth.transport.requests
        from google.auth.exceptions import GoogleAuthError, TransportError

        headers: dict[str, str] = {}
        credentials: Any
        try:
            credentials, _ = google.auth.default(scopes=[_SCOPE])
            credentials.before_request(google.auth.transport.requests.Request(), "POST", url, headers)
        except GoogleAuthError as error:
            kind = type(error).__name__
            if isinstance(error, TransportError) or error.retryable:
                raise unreachable(self._service.name, f"no token: {kind}") from None
            raise no_credentials(self._service.name, f"{kind}: {_LOGIN}") from None
        except (OSError, ValueError):  # A file of credentials that cannot be read, or holds something else.
            raise no_credentials(self._service.name, _LOGIN) from None
        return headers

    def _checked(self, answer: Answer, kind: str) -> bytes:
        """Return the bytes of an answer, their checksum compared."""
        data = self._service.decode64(answer.get(kind))
        if str(answer.get(f"{kind}Crc32c")) != str(crc32c(data)):
            raise unreachable(self._service.name, "its answer was changed on its way")
        return data

    def _refusal(self, refused: RefusedError) -> CheckpointError:
        code = "FAILED_PRECONDITION" if _is_disabled(refused) else f"HTTP {refused.status}"
        return unusable_key(self._service.name, code, "enable its version, or choose a symmetric key for encryption")


def _is_disabled(refused: RefusedError) -> bool:
    return bool(field(refused.answer, "error", "status") == "FAILED_PRECONDITION")


def crc32c(data: bytes) -> int:
    """Return the checksum of RFC 3720. For some dozen bytes its bits are fast enough."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


__all__ = ["GoogleKms", "crc32c"]
