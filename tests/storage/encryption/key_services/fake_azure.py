"""Stands for Azure Key Vault and for a Managed HSM, and for the identity endpoint of an Azure machine."""

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from tests.storage.encryption.key_services.case import ServiceCase
from tests.storage.encryption.key_services.server import Answer, Request, Server

VAULT, HSM = "jobs.vault.azure.net", "jobs.managedhsm.azure.net"
OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)


@dataclass
class AzureKey:
    """A key in versions; the last one is the present one."""

    kind: str
    versions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rotate()

    def rotate(self) -> None:
        made = secrets.token_bytes(32) if self.kind == "oct-HSM" else rsa.generate_private_key(65537, 2048)
        self.versions[secrets.token_hex(16)] = made

    def wrap(self, version: str, data: bytes) -> bytes:
        key = self.versions[version]
        return aes_key_wrap(key, data) if self.kind == "oct-HSM" else bytes(key.public_key().encrypt(data, OAEP))

    def unwrap(self, version: str, data: bytes) -> bytes:
        key = self.versions[version]
        return aes_key_unwrap(key, data) if self.kind == "oct-HSM" else bytes(key.decrypt(data, OAEP))


class FakeAzure:
    """A vault with RSA keys, and an HSM with AES keys."""

    def __init__(self) -> None:
        self.keys = {
            (host, name): AzureKey(kind)
            for host, kind in ((VAULT, "RSA"), (HSM, "oct-HSM"))
            for name in ("orders", "other")
        }
        self.keys[VAULT, "curve"] = AzureKey("EC")
        self.tokens: dict[str, tuple[str, str]] = {}
        self.worker, self.stranger = (secrets.token_hex(16) for _ in range(2))

    def give_token(self, request: Request) -> Answer:
        """Answer a process of an Azure machine that asks for its identity."""
        asked = parse_qs(urlsplit(request.path).query)
        if request.headers.get("X-IDENTITY-HEADER") not in (self.worker, self.stranger):
            return Answer(401, {"statusCode": 401, "message": "unknown identity"})
        token = f"eyJ.{secrets.token_hex(16)}"
        self.tokens[token] = (request.headers["X-IDENTITY-HEADER"], asked["resource"][0])
        return Answer(200, {"access_token": token, "expires_on": "4102444800", "token_type": "Bearer"})

    def at(self, host: str) -> Any:
        """Return the service at a host."""
        return lambda request: self._answer(host, request)

    def _answer(self, host: str, request: Request) -> Answer:
        asked = urlsplit(request.path)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        identity, audience = self.tokens.get(token, ("", ""))
        if audience != f"https://{host.partition('.')[2]}":
            return _refuse(401, "Unauthorized")
        if identity != self.worker:
            return _refuse(403, "Forbidden")
        if parse_qs(asked.query).get("api-version") != ["7.4"]:
            return _refuse(400, "BadParameter")
        name, *rest = asked.path.removeprefix("/keys/").split("/")
        key = self.keys.get((host, name))
        if key is None:
            return _refuse(404, "KeyNotFound")
        if request.verb == "GET":
            found = {"kid": f"https://{host}/keys/{name}/{list(key.versions)[-1]}", "kty": key.kind}
            return Answer(200, {"key": found, "attributes": {"enabled": True}})
        return self._use(host, name, key, rest, request.json)

    def _use(self, host: str, name: str, key: AzureKey, rest: list[str], body: Mapping[str, str]) -> Answer:
        version, verb = rest
        if version not in key.versions:
            return _refuse(404, "KeyNotFound")
        if body["alg"] != ("A256KW" if key.kind == "oct-HSM" else "RSA-OAEP-256"):
            return _refuse(400, "BadParameter")
        data = base64.urlsafe_b64decode(body["value"] + "=" * (-len(body["value"]) % 4))
        try:
            made = key.wrap(version, data) if verb == "wrapkey" else key.unwrap(version, data)
        except (ValueError, InvalidUnwrap):
            return _refuse(400, "BadParameter")
        value = base64.urlsafe_b64encode(made).rstrip(b"=").decode()
        return Answer(200, {"kid": f"https://{host}/keys/{name}/{version}", "value": value})

    def case(self, server: Server, host: str) -> ServiceCase:
        def environment(identity: str) -> Mapping[str, str]:
            return {
                **server.environment,
                "AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential",
                "IDENTITY_ENDPOINT": f"{server.url}/azure/identity",
                "IDENTITY_HEADER": identity,
            }

        text = f"azure-key-vault:https://{host}/keys"
        return ServiceCase(
            f"{text}/orders",
            f"{text}/other",
            environment(self.worker),
            (self.worker, "eyJ."),
            missing=f"{text}/nothing",
            stranger=environment(self.stranger),
            nobody=environment("nobody"),
            down={**environment(self.worker), "https_proxy": "http://127.0.0.1:1"},
            rotate=self.keys[host, "orders"].rotate,
        )


def _refuse(status: int, code: str) -> Answer:
    return Answer(status, {"error": {"code": code, "message": "said by the service"}})
