"""Stands for Vault with the transit engine at `transit/`, for tokens whose policy allows `update` and no `create`."""

import base64
import secrets
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.storage.encryption.key_services.case import ServiceCase
from tests.storage.encryption.key_services.server import Answer, Request, Server


class FakeVault:
    """Keys of the type aes256-gcm96 in versions, of which the last one encrypts."""

    def __init__(self) -> None:
        self.keys: dict[str, list[bytes]] = {name: [secrets.token_bytes(32)] for name in ("orders", "other")}
        self.token = f"hvs.{secrets.token_hex(12)}"
        self.least = 1
        """The key's `min_decryption_version`."""

    def __call__(self, request: Request) -> Answer:
        if not request.path.startswith("/v1/transit/"):
            return _refuse(404, f'no handler for route "{request.path[4:]}". route entry not found.')
        if request.headers.get("X-Vault-Token") != self.token or request.verb != "POST":
            return _refuse(403, "1 error occurred:\n\t* permission denied\n\n")
        _, _, _, verb, name = request.path.split("/")
        body = request.json
        bound = base64.b64decode(body.get("associated_data", ""), validate=True)
        if verb == "encrypt":
            if name not in self.keys:
                return _refuse(403, "1 error occurred:\n\t* permission denied\n\n")
            version, nonce = len(self.keys[name]), secrets.token_bytes(12)
            plain = base64.b64decode(body["plaintext"], validate=True)
            made = nonce + AESGCM(self.keys[name][-1]).encrypt(nonce, plain, bound)
            text = f"vault:v{version}:{base64.b64encode(made).decode()}"
            return Answer(200, {"data": {"ciphertext": text, "key_version": version}})
        return self._decrypt(name, body["ciphertext"], bound)

    def _decrypt(self, name: str, text: str, bound: bytes) -> Answer:
        if name not in self.keys:
            return _refuse(400, "encryption key not found")
        if not text.startswith("vault:v"):
            return _refuse(400, "invalid ciphertext: no prefix")
        version, colon, rest = text.removeprefix("vault:v").partition(":")
        try:
            number = int(version)
            made = base64.b64decode(rest, validate=True)
        except ValueError:
            return _refuse(400, "invalid ciphertext: could not decode base64")
        if not colon or not 0 < number <= len(self.keys[name]):
            return _refuse(400, "invalid ciphertext: version is too new")
        if number < self.least:
            return _refuse(400, "ciphertext or signature version is disallowed by policy (too old)")
        try:
            plain = AESGCM(self.keys[name][number - 1]).decrypt(made[:12], made[12:], bound)
        except (InvalidTag, ValueError):
            return _refuse(400, "cipher: message authentication failed")
        return Answer(200, {"data": {"plaintext": base64.b64encode(plain).decode()}})

    def rotate(self) -> None:
        self.keys["orders"].append(secrets.token_bytes(32))

    def environment(self, address: str, token: str) -> Mapping[str, str]:
        return {"VAULT_ADDR": address, "VAULT_TOKEN": token, "HOME": "/nonexistent", "no_proxy": "127.0.0.1"}

    def case(self, server: Server) -> ServiceCase:
        return ServiceCase(
            "vault:transit/orders",
            "vault:transit/other",
            self.environment(server.url, self.token),
            (self.token,),
            missing="vault:transit/nothing",
            stranger=self.environment(server.url, "hvs.stranger-0000"),
            nobody=self.environment(server.url, ""),
            down=self.environment("http://127.0.0.1:1", self.token),
            rotate=self.rotate,
        )


def _refuse(status: int, said: str) -> Answer:
    return Answer(status, {"errors": [said]})
