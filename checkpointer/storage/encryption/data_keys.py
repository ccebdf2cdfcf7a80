"""Hold the keys of an encrypted root, and apply them to names and contents.

Clients of the root hold them. One random data key encrypts a root. All other keys are derived from it, one for each
purpose.
"""

import hmac
import secrets
from dataclasses import dataclass, field
from functools import partial

from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage.base import S
from pyspark_checkpointer.storage.encryption.chunked import (
    KEY_BYTES,
    MARK,
    SALT_BYTES,
    DecryptingSink,
    MessageKey,
    check_mark,
    decrypted_size,
    encrypted_size,
)
from pyspark_checkpointer.storage.encryption.stored_names import StoredNames, has_fixed_salt

_PURPOSE = b"spark-state-checkpointer/encryption@1 "


@dataclass(frozen=True, slots=True)
class DataKeys:
    """The opened keys of a root. They may travel to tasks, and are shown nowhere."""

    root_id: str
    data_key: bytes = field(repr=False)
    generation: int = 1
    hides_names: bool = False
    _content: bytes = field(init=False, repr=False, compare=False)
    _salts: bytes = field(init=False, repr=False, compare=False)
    _names: StoredNames = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Derive the key of each purpose."""
        object.__setattr__(self, "_content", self._derive(b"content", KEY_BYTES))
        object.__setattr__(self, "_salts", self._derive(b"salts", KEY_BYTES))
        digests = AESSIV(self._derive(b"names", 2 * KEY_BYTES))
        parts = AESSIV(self._derive(b"parts", 2 * KEY_BYTES)) if self.hides_names else None
        object.__setattr__(self, "_names", StoredNames(self.generation, digests, parts))

    def _derive(self, purpose: bytes, size: int) -> bytes:
        return HKDFExpand(SHA512(), size, _PURPOSE + purpose).derive(self.data_key)

    def __reduce__(self) -> tuple[object, ...]:
        return DataKeys, (self.root_id, self.data_key, self.generation, self.hides_names)

    @classmethod
    def generate(cls, *, hides_names: bool = False) -> "DataKeys":
        """Make the keys of a new root."""
        return cls(secrets.token_hex(16), secrets.token_bytes(KEY_BYTES), hides_names=hides_names)

    def next_generation(self, *, hides_names: bool) -> "DataKeys":
        """Make other keys of the same root."""
        return DataKeys(self.root_id, secrets.token_bytes(KEY_BYTES), self.generation + 1, hides_names)

    # ---- names -------------------------------------------------------------------------------------------------

    @property
    def names(self) -> StoredNames:
        """Return what knows the paths at which objects are stored."""
        return self._names

    def stored_path(self, path: str) -> str:
        """Return the path at which an object is stored."""
        return self._names.stored_path(path)

    def logical_path(self, stored: str) -> str | None:
        """Return the path of a stored object.

        Returns None for an object that is not part of the encrypted root.
        """
        return self._names.logical_path(stored)

    # ---- contents ----------------------------------------------------------------------------------------------

    def has_fixed_salt(self, path: str) -> bool:
        """Return whether the path alone tells the salt of an object.

        Then a part of the object can be decrypted alone.
        """
        return has_fixed_salt(path)

    def key_for(self, path: str, salt: bytes | None = None) -> MessageKey:
        """Return the key of the object at a path.

        By default it has the salt for the object that is to be written. The salt of an object whose path holds the
        digest of its content comes from the path: other content has another path, and the same content again gives the
        same bytes. All others have random salts.
        """
        if salt is None:
            salt = (
                hmac.digest(self._salts, path.encode(), "sha512")[:SALT_BYTES]
                if self.has_fixed_salt(path)
                else secrets.token_bytes(SALT_BYTES)
            )
        # Errors name what is stored: they go into logs, where a digest of a content would tell as much as in a listing.
        return MessageKey(partial(self.stored_path, path), self._content, salt, f"{self.root_id}\0{path}".encode())

    def key_of_header(self, path: str, header: bytes) -> MessageKey:
        """Return the key of an object that begins with a header.

        Raises `CorruptionError` for an object that was not encrypted with this key, as the object at this path.
        """
        key = self.key_for(path, header[:SALT_BYTES])
        key.check_header(header)
        return key

    def encrypt(self, path: str, data: Bytes) -> bytes:
        """Return an object as it is stored."""
        return mark_of(path, self.generation) + self.key_for(path).encrypt(data)

    def decrypt(self, path: str, stored: Bytes) -> bytes:
        """Return the content of a stored object, or raise `CorruptionError`."""
        view, mark = memoryview(stored), mark_of(path, self.generation)
        check_mark(path, view[: len(mark)], mark)
        message = view[len(mark) :]
        return self.key_for(path, bytes(message[:SALT_BYTES])).decrypt(message)

    def decrypting(self, path: str, sink: S) -> DecryptingSink[S]:
        """Return a sink that decrypts a stored object and hands its content on.

        It takes the object piece by piece.
        """
        name = self.stored_path(path)
        mark = mark_of(path, self.generation)
        return DecryptingSink(name, mark, lambda header: self.key_of_header(path, header), sink)


def mark_of(path: str, generation: int = 1) -> bytes:
    """Return the first bytes of an object.

    The name of an object that is written once says that it is encrypted, and with which generation of keys. An object
    that is replaced always has the same name, so its first bytes say it.
    """
    if object_paths.owner(path) is not None:
        return b""
    return MARK + (b"\n" if generation == 1 else b" %d\n" % generation)


def stored_size(path: str, size: int, generation: int = 1) -> int:
    """Return the size of an object once it is encrypted."""
    return len(mark_of(path, generation)) + encrypted_size(size)


def logical_size(path: str, size: int, generation: int = 1) -> int:
    """Return the size of a stored object's content.

    A size that no encrypted object has is returned unchanged. A reader of the object gets an error.
    """
    found = decrypted_size(size - len(mark_of(path, generation)))
    return size if found is None else found


__all__ = ["DataKeys", "logical_size", "mark_of", "stored_size"]
