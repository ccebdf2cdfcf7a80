"""Wrap keys by the transit engine of HashiCorp Vault.

A text names the key as `vault:MOUNT/NAME`.

The address and the token come from the variables of the command `vault`. What Vault makes of a key by rotation opens
all that it wrapped before, down to the key's `min_decryption_version`.
"""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.storage.encryption.key_providers import UnwrapError
from pyspark_checkpointer.storage.encryption.key_services.https import Answer, RefusedError, Service, encode64, field
from pyspark_checkpointer.storage.encryption.key_services.refusals import (
    PURPOSE,
    no_credentials,
    no_key,
    unreachable,
    unusable_key,
)

_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)+", re.ASCII)
_LOGIN = "set VAULT_ADDR and VAULT_TOKEN, or log in with `vault login`"


@dataclass(frozen=True, slots=True)
class Vault:
    """A key of a transit engine, of a type with associated data, such as aes256-gcm96."""

    name: str

    provider = "vault"
    form = "MOUNT/NAME"

    @classmethod
    def named(cls, name: str) -> "Vault | None":
        """Return the provider of a key; None for a text that names none."""
        return cls(name) if _NAME.fullmatch(name) and not {".", ".."} & set(name.split("/")) else None

    @property
    def key(self) -> str:
        return self.name

    def wrap(self, data: bytes) -> bytes:
        try:
            found = self._ask("encrypt", {"plaintext": encode64(data)})
        except RefusedError as refused:
            raise self._refusal(refused) from None
        wrapped = str(field(found, "data", "ciphertext"))
        if not wrapped.startswith("vault:"):
            raise unreachable(self._service.name, "its answer lacks the key")
        return wrapped.encode()

    def unwrap(self, wrapped: bytes) -> bytes:
        try:
            found = self._ask("decrypt", {"ciphertext": wrapped.decode("ascii", "replace")})
        except RefusedError as refused:
            said = _said(refused)
            if "not found" in said or "too old" in said:
                raise self._refusal(refused) from None
            raise UnwrapError from None
        return self._service.decode64(field(found, "data", "plaintext"))

    @property
    def _service(self) -> Service:
        name = f"{self.provider}:{self.name}"
        return Service(name, "`update` on the engine's paths encrypt/ and decrypt/ of the key", _LOGIN)

    def _ask(self, verb: str, body: Mapping[str, str]) -> Answer:
        mount, _, key = self.name.rpartition("/")
        address = os.environ.get("VAULT_ADDR") or "https://127.0.0.1:8200"
        if not address.startswith(("https://", "http://")):
            raise no_credentials(self._service.name, _LOGIN)
        headers = {"X-Vault-Token": self._token(), "X-Vault-Request": "true"}
        if namespace := os.environ.get("VAULT_NAMESPACE"):
            headers["X-Vault-Namespace"] = namespace
        url = f"{address.rstrip('/')}/v1/{mount}/{verb}/{key}"
        return self._service.ask(url, headers, {**body, "associated_data": encode64(PURPOSE.encode())}, self._tls())

    def _token(self) -> str:
        token = os.environ.get("VAULT_TOKEN", "")
        if not token:
            try:
                token = Path("~/.vault-token").expanduser().read_text("utf-8")
            except (OSError, ValueError, RuntimeError):
                raise no_credentials(self._service.name, _LOGIN) from None
        return token.strip()

    def _tls(self) -> ssl.SSLContext:
        file, folder = os.environ.get("VAULT_CACERT") or None, os.environ.get("VAULT_CAPATH") or None
        try:
            return ssl.create_default_context(cafile=file, capath=folder)
        except OSError:
            raise no_credentials(self._service.name, "VAULT_CACERT or VAULT_CAPATH cannot be read") from None

    def _refusal(self, refused: RefusedError) -> CheckpointError:
        said = _said(refused)
        if "not found" in said:
            return no_key(self._service.name)
        if "too old" in said:
            return unusable_key(self._service.name, "too old", "lower its min_decryption_version, and rekey the root")
        return unusable_key(
            self._service.name, f"HTTP {refused.status}", "choose one of the type aes256-gcm96 that is not derived"
        )


def _said(refused: RefusedError) -> str:
    """Return what Vault says: it has no codes. It is compared, and never shown."""
    return str(refused.answer.get("errors", ""))


__all__ = ["Vault"]
