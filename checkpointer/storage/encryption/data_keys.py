"""Hold the keys of an encrypted root, and apply them to names and contents.

Clients of the root hold them. One random data key encrypts a root. All other keys are derived from it, one for each
purpose:

    data key ──> key of artifacts and packs
       └──────> structure key ──> keys of all other objects, of names, and of the outer tags of artifacts and packs

Who cleans or verifies a root may have the structure key alone.
"""

import hashlib
import secrets
from dataclasses import dataclass, field
from functools import partial

from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.manifests.keys_json import ALL, STRUCTURE, Opens
from pyspark_checkpointer.storage.base import S
from pyspark_checkpointer.storage.encryption.chunked import (
    MARK,
    SALT_BYTES,
    DecryptingSink,
    MessageKey,
    check_mark,
    decrypted_size,
    encrypted_size,
    stored_range,
)
from pyspark_checkpointer.storage.encryption.outer_tags import KEY_BYTES, TAG_BYTES, Finishing, OuterTag, R, TagSink
from pyspark_checkpointer.storage.encryption.stored_names import StoredNames

_PURPOSE = b"spark-state-checkpointer/encryption@1 "


@dataclass(frozen=True, slots=True)
class DataKeys:
    """The opened keys of a root. They may travel to tasks, and are shown nowhere."""

    root_id: str
    key: bytes = field(repr=False)
    """The data key, or the structure key alone."""
    generation: int = 1
    hides_names: bool = False
    opens: Opens = ALL
    _state: bytes | None = field(init=False, repr=False, compare=False)
    """The key of artifacts and packs; None for those who have the structure key alone."""
    _metadata: bytes = field(init=False, repr=False, compare=False)
    _tags: bytes = field(init=False, repr=False, compare=False)
    _names: StoredNames = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Derive the key of each purpose."""
        has_all = self.opens == ALL
        object.__setattr__(self, "_state", _derive(self.key, b"state") if has_all else None)
        structure = self.structure_key
        for purpose in ("metadata", "tags"):
            object.__setattr__(self, f"_{purpose}", _derive(structure, purpose.encode()))
        digests = AESSIV(_derive(structure, b"names", 2 * KEY_BYTES))
        parts = AESSIV(_derive(structure, b"parts", 2 * KEY_BYTES)) if self.hides_names else None
        object.__setattr__(self, "_names", StoredNames(self.generation, digests, parts))

    def __reduce__(self) -> tuple[object, ...]:
        return DataKeys, (self.root_id, self.key, self.generation, self.hides_names, self.opens)

    @property
    def structure_key(self) -> bytes:
        """Return the key from which all keys are derived but that of artifacts and packs."""
        return _derive(self.key, b"structure") if self.opens == ALL else self.key

    def structure(self) -> "DataKeys":
        """Return the keys of a cleaner, who reads no artifact and no pack."""
        return DataKeys(self.root_id, self.structure_key, self.generation, self.hides_names, STRUCTURE)

    @property
    def wrapped_content(self) -> bytes:
        """Return the bytes that a provider of keys wraps for this root.

        The first ones tell the root, what the key opens, and whether names are hidden. So nobody who writes `_keys` can
        move a wrapped key, or say of it what is not true.
        """
        root = bytes.fromhex(self.root_id)
        said = [b"structure"] * (self.opens == STRUCTURE) + [b"hidden names"] * self.hides_names
        first = hashlib.sha256(_PURPOSE + b" and ".join(said) + b" of " + root).digest()[: len(root)] if said else root
        return first + self.key

    @classmethod
    def generate(cls, *, hides_names: bool = False) -> "DataKeys":
        """Make the keys of a new root."""
        return cls(secrets.token_hex(16), secrets.token_bytes(KEY_BYTES), hides_names=hides_names)

    def next_generation(self, *, above: int, hides_names: bool) -> "DataKeys":
        """Make other keys of the same root, of a generation above these and another one."""
        number = max(self.generation, above) + 1
        return DataKeys(self.root_id, secrets.token_bytes(KEY_BYTES), number, hides_names)

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

    def key_for(self, path: str, salt: bytes | None = None) -> MessageKey:
        """Return the key of the object at a path.

        By default it has the salt for the object that is to be written. The salt of an object whose path holds the
        digest of its content comes from the path: other content has another path, and the same content again gives the
        same bytes. All others have random salts.

        Raises as `check_opens`.
        """
        if salt is None:
            salt = self._names.fixed_salt(path) or secrets.token_bytes(SALT_BYTES)
        # Errors name what is stored: they go into logs, where a digest of a content would tell as much as in a listing.
        self.check_opens(path)
        key = self._state if object_paths.holds_state(path) else self._metadata
        assert key is not None
        return MessageKey(partial(self.stored_path, path), key, salt, self._context(path))

    def check_opens(self, path: str) -> None:
        """Raise `InvalidStateError` where a cleaner asks for an artifact or a pack."""
        if self._state is None and object_paths.holds_state(path):
            raise InvalidStateError(
                f"{self.stored_path(path)}: the given key is that of a cleaner, which opens no artifact: give a key as "
                "encryption that opens all of the root"
            )

    def _context(self, path: str) -> bytes:
        """Return what binds an object to its path and to its root."""
        return f"{self.root_id}\0{path}".encode()

    def key_of_header(self, path: str, header: bytes) -> MessageKey:
        """Return the key of an object that begins with a header.

        Raises `CorruptionError` for an object that was not encrypted with this key, as the object at this path.
        """
        key = self.key_for(path, header[:SALT_BYTES])
        key.check_header(header)
        return key

    def encrypt(self, path: str, data: Bytes) -> bytes:
        """Return an object as it is stored."""
        key = self.key_for(path)
        if object_paths.holds_state(path):
            return key.encrypt(data, OuterTag(self._tags, key.header[:SALT_BYTES], self._context(path)))
        return mark_of(path, self.generation) + key.encrypt(data)

    def decrypt(self, path: str, stored: Bytes) -> bytes:
        """Return the content of a stored object, or raise `CorruptionError`."""
        view, mark, holds_state = memoryview(stored), mark_of(path, self.generation), object_paths.holds_state(path)
        if not holds_state:
            check_mark(self.stored_path(path), view[: len(mark)], mark)
        message = view[_before_message(path, self.generation) :]
        salt = bytes(message[:SALT_BYTES])
        content = self.key_for(path, salt).decrypt(message)
        if holds_state:
            # A changed tag would be damage for a cleaner alone, so it is damage for all.
            tag = OuterTag(self._tags, salt, self._context(path))
            tag.update(message)
            tag.check(self.stored_path(path), view[:TAG_BYTES])
        return content

    def stored_range(self, path: str, offset: int, length: int) -> tuple[int, int]:
        """Return the range of a stored object with the chunks of a range of its content."""
        start, size = stored_range(offset, length)
        return _before_message(path, self.generation) + start, size

    def decrypting(self, path: str, sink: S) -> Finishing[S]:
        """Return a sink that decrypts a stored object and hands its content on.

        It takes the object piece by piece.
        """
        name = self.stored_path(path)
        mark = mark_of(path, self.generation)
        decrypting = DecryptingSink(name, mark, lambda header: self.key_of_header(path, header), sink)
        return self.checking_tag(path, decrypting) if object_paths.holds_state(path) else decrypting

    def checking_tag(self, path: str, sink: Finishing[R]) -> TagSink[R]:
        """Return a sink that checks the outer tag of an artifact or a pack.

        It hands the message behind the tag on.
        """
        return TagSink(self.stored_path(path), SALT_BYTES, self._context(path), self._tags, sink)


def _derive(key: bytes, purpose: bytes, size: int = KEY_BYTES) -> bytes:
    return HKDFExpand(SHA512(), size, _PURPOSE + purpose).derive(key)


def mark_of(path: str, generation: int) -> bytes:
    """Return the first bytes of an object.

    The name of an object that is written once says that it is encrypted, and with which generation of keys. An object
    that is replaced always has the same name, so its first bytes say it.
    """
    if object_paths.is_written_once(path):
        return b""
    return MARK + (b"\n" if generation == 1 else b" %d\n" % generation)


def stored_size(path: str, size: int, generation: int = 1) -> int:
    """Return the size of an object once it is encrypted."""
    return _before_message(path, generation) + encrypted_size(size)


def logical_size(path: str, size: int, generation: int) -> int:
    """Return the size of a stored object's content.

    A size that no encrypted object has is returned unchanged. A reader of the object gets an error.
    """
    found = decrypted_size(size - _before_message(path, generation))
    return size if found is None else found


def _before_message(path: str, generation: int) -> int:
    """Return the number of bytes before the message of an object."""
    return TAG_BYTES if object_paths.holds_state(path) else len(mark_of(path, generation))


__all__ = ["DataKeys", "logical_size", "mark_of", "stored_size"]
