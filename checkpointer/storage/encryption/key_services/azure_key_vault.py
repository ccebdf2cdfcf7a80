"""Wrap keys by Azure Key Vault.

A text names the key as `azure-key-vault:https://VAULT.vault.azure.net/keys/NAME`.

Key Vault has RSA keys, which wrap by RSA-OAEP-256; a Managed HSM has AES keys too, which wrap by AES-KW. An answer
does not tell with which version of the key something was wrapped, so the version stands before what was wrapped: after
a rotation it still opens.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError
from pyspark_checkpointer.storage.connection import require
from pyspark_checkpointer.storage.encryption.key_providers import UnwrapError
from pyspark_checkpointer.storage.encryption.key_services.https import Answer, RefusedError, Service, field
from pyspark_checkpointer.storage.encryption.key_services.refusals import (
    no_credentials,
    unreachable,
    unusable_key,
)

# Those of all of Azure's clouds, and no others: a token must not go to another host.
_HOST = r"[a-z0-9-]{3,24}\.(?:(?:vault|managedhsm)\.azure\.(?:net|cn)|(?:vault|managedhsm)\.usgovcloudapi\.net)"
_NAME = re.compile(rf"https://{_HOST}/keys/[A-Za-z0-9-]{{1,127}}")
_VERSION = re.compile(r"[0-9a-f]{32}")
_WRAPPED = re.compile(rb"([0-9a-f]{32}) (RSA-OAEP-256|A256KW)\n(.+)", re.DOTALL)

_ALGORITHMS = {"RSA": "RSA-OAEP-256", "RSA-HSM": "RSA-OAEP-256", "oct-HSM": "A256KW"}
_API = "api-version=7.4"
_LOGIN = (
    "set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, log in with `az login`, or use a managed identity"
)
_ROLE = "the role Key Vault Crypto Service Encryption User on the key"


@dataclass(frozen=True, slots=True)
class AzureKeyVault:
    """A key of Azure Key Vault, or of a Managed HSM, in whichever version."""

    name: str

    provider = "azure-key-vault"
    form = "https://VAULT.vault.azure.net/keys/NAME"

    @classmethod
    def named(cls, name: str) -> "AzureKeyVault | None":
        """Return the provider of a key; None for a text that names none."""
        if not _NAME.fullmatch(name):
            return None
        require("azure.identity", cls.provider, cls.provider)
        return cls(name)

    @property
    def key(self) -> str:
        return self.name

    def wrap(self, data: bytes) -> bytes:
        headers = self._headers()
        try:
            found = self._service.ask(f"{self.name}?{_API}", headers)
            version = str(field(found, "key", "kid")).rpartition("/")[2]
            algorithm = _ALGORITHMS.get(str(field(found, "key", "kty")))
            if algorithm is None:
                raise unusable_key(self._service.name, "its type", "choose an RSA key, or an AES key of a Managed HSM")
            if not _VERSION.fullmatch(version):
                raise unreachable(self._service.name, "its answer lacks the version of the key")
            wrapped = self._use(headers, version, "wrapkey", algorithm, data)
        except RefusedError as refused:
            raise self._refusal(refused) from None
        return f"{version} {algorithm}\n".encode() + wrapped

    def unwrap(self, wrapped: bytes) -> bytes:
        found = _WRAPPED.fullmatch(wrapped)
        if found is None:
            raise UnwrapError
        headers, version, algorithm = self._headers(), found[1].decode(), found[2].decode()
        try:
            return self._use(headers, version, "unwrapkey", algorithm, found[3])
        except IllegalArgumentError:  # There is no such version, or not even the key: then this raises the same again.
            self._service.ask(f"{self.name}?{_API}", headers)
            raise UnwrapError from None
        except RefusedError as refused:
            if refused.status == 400:
                raise UnwrapError from None
            raise self._refusal(refused) from None

    def _use(self, headers: Mapping[str, str], version: str, verb: str, algorithm: str, data: bytes) -> bytes:
        value = base64.urlsafe_b64encode(data).rstrip(b"=").decode()
        url = f"{self.name}/{version}/{verb}?{_API}"
        answer: Answer = self._service.ask(url, headers, {"alg": algorithm, "value": value})
        return self._service.decode64(answer.get("value"))

    @property
    def _service(self) -> Service:
        return Service(f"{self.provider}:{self.name}", _ROLE, _LOGIN)

    def _headers(self) -> Mapping[str, str]:
        # Imported here, because the package is optional.
        from azure.core.exceptions import AzureError, ServiceRequestError, ServiceResponseError
        from azure.identity import DefaultAzureCredential

        domain = str(urlsplit(self.name).hostname).partition(".")[2]
        try:
            with DefaultAzureCredential() as credential:
                token = credential.get_token(f"https://{domain}/.default").token
        except (ServiceRequestError, ServiceResponseError) as error:
            raise unreachable(self._service.name, f"no token: {type(error).__name__}") from None
        except (AzureError, ValueError) as error:
            raise no_credentials(self._service.name, f"{type(error).__name__}: {_LOGIN}") from None
        return {"Authorization": f"Bearer {token}"}

    def _refusal(self, refused: RefusedError) -> CheckpointError:
        return unusable_key(
            self._service.name, f"HTTP {refused.status}", "enable it, and allow it to wrap and unwrap keys"
        )


__all__ = ["AzureKeyVault"]
