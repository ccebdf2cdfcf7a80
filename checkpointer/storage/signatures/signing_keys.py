"""Hold the keys of a client of a signed root.

A client trusts the owners of the root by their public keys. If it writes, it has a key to sign with.
"""

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError, SwapNotSentError
from pyspark_checkpointer.manifests.json_fields import HEXADECIMAL

_FORM = "trust:FILE, sign:FILE or trust:FILE,sign:FILE, perhaps with at-least:VERSION and root:ID"
_BEGIN_PUBLIC = b"-----BEGIN PUBLIC KEY-----"


@runtime_checkable
class SigningKey(Protocol):
    """A private key of ed25519, in a file or wherever else it is.

    Its function is called in the event loop.
    """

    @property
    def public_key(self) -> str:
        """Return the public key: 64 hexadecimal digits."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes."""


@dataclass(frozen=True)
class PrivateKeyFile:
    """A private key of ed25519 in a PEM file.

    `openssl genpkey -algorithm ed25519` makes one.

    A pickle has the path of the file alone.
    """

    path: str

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        data = _read(self.path)
        try:
            key = load_pem_private_key(data, None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise IllegalArgumentError(
                f"{self.path}: expected a private key of ed25519 in PEM: make one with `openssl genpkey -algorithm "
                "ed25519`"
            )
        return key

    @cached_property
    def public_key(self) -> str:
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def __reduce__(self) -> tuple[object, ...]:
        return PrivateKeyFile, (self.path,)


@dataclass(frozen=True)
class Signing:
    """Whom a client trusts, and what it signs with."""

    trust: tuple[str, ...]
    """The public keys of the owners: each 64 hexadecimal digits."""
    key: SigningKey | None = field(default=None, repr=False)
    """The key to sign with; None for a client that only reads."""
    at_least: int = 1
    """The lowest version of the list of signers that is accepted."""
    root: str | None = None
    """The id of the one root that is accepted, 32 hexadecimal digits; None for any root of the owners."""

    def __post_init__(self) -> None:
        """Refuse what can be no keys."""
        if not self.trust or any(not isinstance(key, str) or not _is_key(key) for key in self.trust):
            raise IllegalArgumentError("signing: trust: expected public keys, each of 64 hexadecimal digits")
        if self.key is not None and not isinstance(self.key, SigningKey):
            raise IllegalArgumentError(f"signing: key: expected a key to sign with, got {type(self.key).__name__}")
        if isinstance(self.at_least, bool) or not isinstance(self.at_least, int) or self.at_least < 1:
            raise IllegalArgumentError(f"signing: at_least={self.at_least!r:.40}: expected an integer of at least 1")
        if self.root is not None and (not isinstance(self.root, str) or not is_root_id(self.root)):
            raise IllegalArgumentError(
                f"signing: root={self.root!r:.60}: expected 32 hexadecimal digits, which `checkpointer signers` prints"
            )


def as_signing(given: "Signing | str") -> Signing:
    """Return the keys of a client, also from a text that names their files.

    Raises `IllegalArgumentError` for any other value. The error does not repeat it, as it may be a key.
    """
    if isinstance(given, Signing):
        return given
    if isinstance(given, str):
        return _parse(given)
    raise IllegalArgumentError(f"signing: expected a text or a Signing, got {type(given).__name__}")


def as_signing_key(given: "SigningKey | str | os.PathLike[str]") -> SigningKey:
    """Return a private key, also from the path of its file."""
    if isinstance(given, str | os.PathLike):
        return PrivateKeyFile(os.path.abspath(given))
    if isinstance(given, SigningKey):
        return given
    raise IllegalArgumentError(f"expected a key to sign with, or the path of its file, got {type(given).__name__}")


def _parse(text: str) -> Signing:
    """Return what a text such as `trust:owner.pub,sign:driver.pem` names.

    A client that trusts nobody else trusts its own key.
    """
    parts: dict[str, str] = {}
    for part in text.split(","):
        word, _, value = part.partition(":")
        if word not in ("trust", "sign", "at-least", "root") or not value or word in parts:
            raise IllegalArgumentError(f"signing: expected {_FORM}, got a text of {len(text)} characters")
        parts[word] = value
    key = PrivateKeyFile(os.path.abspath(parts["sign"])) if "sign" in parts else None
    if "trust" in parts:
        trust = read_public_keys(os.path.abspath(parts["trust"]))
    elif key is not None:
        trust = (key.public_key,)
    else:
        raise IllegalArgumentError(f"signing: expected {_FORM}: nobody is trusted")
    least = parts.get("at-least", "1")
    if not least.isascii() or not least.isdecimal():
        raise IllegalArgumentError(f"signing: at-least: expected a number, got {least!r:.40}")
    return Signing(trust, key, int(least), parts.get("root"))


def read_public_keys(path: str) -> tuple[str, ...]:
    """Return the public keys in a PEM file, of which it may hold several."""
    keys: list[str] = []
    # What stands before the first key may be a comment.
    for part in _read(path).split(_BEGIN_PUBLIC)[1:]:
        try:
            key = load_pem_public_key(_BEGIN_PUBLIC + part)
        except ValueError:
            key = None
        if not isinstance(key, Ed25519PublicKey):
            keys = []
            break
        keys.append(key.public_bytes_raw().hex())
    if not keys:
        raise IllegalArgumentError(
            f"{path}: expected public keys of ed25519 in PEM, as `openssl pkey -in KEY -pubout` writes them"
        )
    return tuple(dict.fromkeys(keys))


def sign(key: SigningKey, message: bytes) -> bytes:
    """Return the signature of a message, after it was verified with the public key.

    A service may have another key by now. An object with a wrong signature would take the place of a right one, and
    nobody could read it. Raises `InvalidStateError` for a wrong signature, `SwapNotSentError` where the key fails.
    """
    try:
        public_key, signature = key.public_key, key.sign(message)
    except CheckpointError:
        raise
    except BaseException as error:  # one that wants to end the program would only end the event loop
        raise SwapNotSentError(
            f"nothing was written: the key to sign with raised {type(error).__name__}: try again when it works"
        ) from error
    if not isinstance(public_key, str) or not _is_key(public_key):
        raise InvalidStateError(
            "nothing was written: the public key of the key to sign with is not 64 lower-case hexadecimal digits: give "
            "one that is"
        )
    if not isinstance(signature, bytes) or not is_signed_by(public_key, signature, message):
        raise InvalidStateError(
            f"nothing was written: the key to sign with made a signature that its public key {public_key[:16]}… does "
            "not verify: give the public key that belongs to it"
        )
    return signature


def is_signed_by(key: str, signature: bytes, message: bytes) -> bool:
    """Return whether this public key verifies the signature of a message."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _is_key(text: str) -> bool:
    return len(text) == 64 and not set(text) - HEXADECIMAL


def is_root_id(text: str) -> bool:
    """Return whether this can be the id of a root."""
    return len(text) == 32 and not set(text) - HEXADECIMAL


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise IllegalArgumentError(f"{path}: cannot be read: {error.strerror}: give a file with a key in PEM") from None


__all__ = [
    "PrivateKeyFile",
    "Signing",
    "SigningKey",
    "as_signing",
    "as_signing_key",
    "is_root_id",
    "is_signed_by",
    "read_public_keys",
    "sign",
]
