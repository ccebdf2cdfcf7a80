"""Stands for Google Cloud KMS, and for the service that gives a service account its tokens."""

import base64
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import google_crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.storage.encryption.key_services.case import ServiceCase
from tests.storage.encryption.key_services.server import Answer, Request, Server

HOST = "cloudkms.googleapis.com"
RING = "projects/some-project/locations/europe-west3/keyRings/jobs/cryptoKeys"
WORKER, STRANGER = "worker@some-project.iam.gserviceaccount.com", "stranger@some-project.iam.gserviceaccount.com"


class FakeGoogle:
    """Symmetric keys in versions, of which the last one encrypts. It insists on the checksums, as they are optional."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = {f"{RING}/{name}": [secrets.token_bytes(32)] for name in ("orders", "other")}
        self.account = rsa.generate_private_key(65537, 2048)
        self.tokens: dict[str, str] = {}
        self.faulty: str | None = None
        """A field of the answers that is damaged on its way."""
        self.disabled = False

    def give_token(self, request: Request) -> Answer:
        """Answer a service account that signs what it wants."""
        [assertion] = parse_qs(request.data.decode())["assertion"]
        signed, _, signature = assertion.rpartition(".")
        self.account.public_key().verify(_plain(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        claims = json.loads(_plain(signed.partition(".")[2]))
        assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"
        token = f"ya29.{secrets.token_hex(16)}"
        self.tokens[token] = claims["iss"]
        return Answer(200, {"access_token": token, "expires_in": 3600, "token_type": "Bearer"})

    def __call__(self, request: Request) -> Answer:
        identity = self.tokens.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if identity is None or request.verb != "POST":
            return _refuse(401, "UNAUTHENTICATED")
        name, _, verb = request.path.removeprefix("/v1/").rpartition(":")
        if identity != WORKER:
            return _refuse(403, "PERMISSION_DENIED")
        if name not in self.keys:
            return _refuse(404, "NOT_FOUND")
        if self.disabled:
            return _refuse(400, "FAILED_PRECONDITION")
        body = request.json
        kind, made = ("plaintext", "ciphertext") if verb == "encrypt" else ("ciphertext", "plaintext")
        data = _checked(body, kind)
        bound = _checked(body, "additionalAuthenticatedData")
        if data is None or bound is None:
            return _refuse(400, "INVALID_ARGUMENT")
        found = self._encrypt(name, data, bound) if verb == "encrypt" else self._decrypt(name, data, bound)
        if found is None:
            return _refuse(400, "INVALID_ARGUMENT")
        answer: dict[str, Any] = {
            "name": f"{name}/cryptoKeyVersions/{len(self.keys[name])}",
            made: base64.b64encode(found).decode(),
            f"{made}Crc32c": str(google_crc32c.value(found)),
            "verifiedPlaintextCrc32c": True,
            "verifiedAdditionalAuthenticatedDataCrc32c": True,
        }
        if self.faulty:
            answer[self.faulty] = False if self.faulty.startswith("verified") else base64.b64encode(found[1:]).decode()
        return Answer(200, answer)

    def _encrypt(self, name: str, data: bytes, bound: bytes) -> bytes:
        nonce = secrets.token_bytes(12)
        return nonce + AESGCM(self.keys[name][-1]).encrypt(nonce, data, bound)

    def _decrypt(self, name: str, data: bytes, bound: bytes) -> bytes | None:
        for key in self.keys[name]:
            try:
                return AESGCM(key).decrypt(data[:12], data[12:], bound)
            except (InvalidTag, ValueError):
                continue
        return None

    def rotate(self) -> None:
        self.keys[f"{RING}/orders"].append(secrets.token_bytes(32))

    def case(self, server: Server) -> ServiceCase:
        key = self.account.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()

        def environment(identity: str) -> Mapping[str, str]:
            file = self.folder / f"{identity}.json"
            account = {
                "type": "service_account",
                "project_id": "some-project",
                "private_key": key,
                "client_email": identity,
                "token_uri": f"{server.url}/google/token",
            }
            file.write_text(json.dumps(account))
            return {**server.environment, "GOOGLE_APPLICATION_CREDENTIALS": str(file)}

        worker = environment(WORKER)
        return ServiceCase(
            f"google-kms:{RING}/orders",
            f"google-kms:{RING}/other",
            worker,
            (key.splitlines()[3], "ya29."),
            missing=f"google-kms:{RING}/nothing",
            stranger=environment(STRANGER),
            nobody={
                **server.environment,
                "GOOGLE_APPLICATION_CREDENTIALS": "",
                "CLOUDSDK_CONFIG": str(self.folder),
                "NO_GCE_CHECK": "true",
            },
            down={**worker, "https_proxy": "http://127.0.0.1:1"},
            rotate=self.rotate,
        )


def _checked(body: Mapping[str, str], kind: str) -> bytes | None:
    data = base64.b64decode(body[kind], validate=True)
    return data if body[f"{kind}Crc32c"] == str(google_crc32c.value(data)) else None


def _plain(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _refuse(status: int, code: str) -> Answer:
    return Answer(status, {"error": {"code": status, "status": code, "message": "said by the service"}})
