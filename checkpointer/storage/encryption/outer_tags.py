"""Authenticate encrypted bytes with a key that does not decrypt them.

An artifact or a pack begins with such a tag. It is the GMAC of the encrypted message behind it: AES-256-GCM of no
content, with the message as associated data. Whoever has the structure key of a root can check that an object is stored
as it was written, and cannot read it.
"""

import hmac
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext, Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests.digest import Bytes

KEY_BYTES = 32
TAG_BYTES = 16

PIECE_BYTES = 1 << 30
"""The most bytes that OpenSSL is given at once, which counts them in a signed number of 32 bits."""

# Each message has a key of its own, so the same nonce is never used twice with one key.
_NONCE = bytes(12)

R = TypeVar("R", covariant=True)


class OuterTag:
    """The tag of one message, computed piece by piece."""

    def __init__(self, input_key: bytes, salt: bytes, context: bytes) -> None:
        """Derive the key of the message, which has this salt and this context."""
        self._key = HKDFExpand(SHA512(), KEY_BYTES, salt + context).derive(input_key)

    def of(self, message: Bytes) -> bytes:
        """Return the tag of a message of less than 2 GiB."""
        return AESGCM(self._key).encrypt(_NONCE, b"", message)

    @cached_property
    def _gmac(self) -> AEADEncryptionContext:
        return Cipher(AES(self._key), GCM(_NONCE)).encryptor()

    def update(self, piece: Bytes) -> None:
        """Take the next bytes of the message."""
        view = memoryview(piece)
        for start in range(0, len(view), PIECE_BYTES):
            self._gmac.authenticate_additional_data(view[start : start + PIECE_BYTES])

    def value(self) -> bytes:
        """Return the tag of all bytes that were taken."""
        self._gmac.finalize()
        return self._gmac.tag

    def check(self, name: str, found: Bytes) -> None:
        """Raise `CorruptionError` for a message that was stored with another tag."""
        if not hmac.compare_digest(bytes(found), self.value()):
            raise CorruptionError(
                f"{name}: is not stored as it was written: its bytes were changed or cut, or belong to another object, "
                "root or key"
            )


class Finishing(Protocol[R]):
    """A sink that has a result at its end."""

    def update(self, piece: bytes, /) -> None: ...

    def finish(self) -> R: ...


class TagSink(Generic[R]):
    """A sink that checks the outer tag of a stored object, for another sink.

    That one is fed the message. `finish` must be called at the end: only there the message is known to be unchanged.
    """

    def __init__(self, name: str, salt_bytes: int, context: bytes, input_key: bytes, sink: Finishing[R]) -> None:
        """Begin with an object whose first `salt_bytes` are its salt."""
        self._name, self._salt_bytes, self._context, self._input_key = name, salt_bytes, context, input_key
        self._sink = sink
        self._start = b""
        self._tag: OuterTag | None = None

    def update(self, piece: bytes, /) -> None:
        """Take the next stored bytes."""
        if self._tag is None:
            self._start += piece
            if len(self._start) < TAG_BYTES + self._salt_bytes:
                return
            self._start, piece = self._start[:TAG_BYTES], self._start[TAG_BYTES:]
            self._tag = OuterTag(self._input_key, piece[: self._salt_bytes], self._context)
        self._tag.update(piece)
        self._sink.update(piece)

    def finish(self) -> R:
        """Compare the tag, and return the result of the other sink."""
        if self._tag is None:
            raise CorruptionError(f"{self._name}: its end is missing: the object was cut")
        self._tag.check(self._name, self._start)
        return self._sink.finish()


__all__ = ["KEY_BYTES", "TAG_BYTES", "Finishing", "OuterTag", "TagSink"]
