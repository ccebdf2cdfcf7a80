"""Define providers of keys: they wrap the data key of a root, and open it again.

A provider is anything with the members of `KeyProvider`. Two are built in: a key in a file, and a passphrase in a file.
Neither file is ever written to the store, nor copied into a pickle. Others ask a key service
(`key_services/`). `key_registry.py` has all that a text can name.
"""

import hashlib
import inspect
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeGuard, runtime_checkable

from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap_with_padding, aes_key_wrap_with_padding

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.storage.encryption.chunked import KEY_BYTES

_SCRYPT = (1 << 17, 8, 1)
"""Cost, block size and parallelism of scrypt for new passphrases: 128 MiB and some tenths of a second."""

_MAX_SCRYPT_BYTES = 1 << 30
"""The most memory that a stored cost may make a reader take: who can write to the root can write any."""

_PARAMETERS = struct.Struct(">IHH")
_SALT_BYTES = 16


class UnwrapError(Exception):
    """The key of this provider did not wrap these bytes."""


@runtime_checkable
class KeyProvider(Protocol):
    """A provider of keys. Its functions are called in a thread, and may take long."""

    @property
    def provider(self) -> str:
        """Return the kind of this provider, such as "key-file". It is stored in `_keys`."""

    @property
    def key(self) -> str:
        """Return the name of the key that wraps, or an empty text.

        The name is stored in `_keys`, so it must not be secret.
        """

    def wrap(self, data: bytes) -> bytes:
        """Return bytes that only `unwrap` with the same key can open."""

    def unwrap(self, wrapped: bytes) -> bytes:
        """Return the key that was wrapped.

        Raises `UnwrapError` if another key wrapped it, or if it was changed.
        """


_MEMBERS = [name for name in vars(KeyProvider) if not name.startswith("_")]


def is_provider(given: object) -> TypeGuard[KeyProvider]:
    """Return whether an object is a provider of keys.

    It has to have all members, and none of them is evaluated: `key` may ask a key service, or read a file. `isinstance`
    evaluates it before Python 3.12.
    """
    absent = object()
    return all(inspect.getattr_static(given, name, absent) is not absent for name in _MEMBERS)


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A key of 32 random bytes in a file: raw, or as 64 hexadecimal digits.

    `openssl rand -hex 32` makes one.
    """

    path: str

    provider = "key-file"
    form = "PATH"

    @classmethod
    def named(cls, name: str) -> "KeyFile | None":
        """Return the provider of a file; None for an empty path."""
        # Absolute, as a task or a later moment must not resolve it anew.
        return cls(os.path.abspath(name)) if name else None

    @property
    def key(self) -> str:
        return hashlib.sha256(b"spark-state-checkpointer key " + self._read()).hexdigest()[:16]

    def wrap(self, data: bytes) -> bytes:
        return aes_key_wrap_with_padding(self._read(), data)

    def unwrap(self, wrapped: bytes) -> bytes:
        return _unwrap(self._read(), wrapped)

    def _read(self) -> bytes:
        found = _read(self.path)
        if len(found) == KEY_BYTES:
            return found
        try:
            key = bytes.fromhex(found.decode().strip())
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise IllegalArgumentError(
                f"{self.path}: expected a key of 32 bytes or 64 hexadecimal digits, found {len(found)} bytes: make one "
                "with `openssl rand -hex 32`"
            )
        return key


@dataclass(frozen=True, slots=True)
class PassphraseFile:
    """A passphrase in a file: its first line, in UTF-8. scrypt makes a key of it."""

    path: str

    provider = "passphrase-file"
    form = "PATH"
    key = ""

    @classmethod
    def named(cls, name: str) -> "PassphraseFile | None":
        """Return the provider of a file; None for an empty path."""
        return cls(os.path.abspath(name)) if name else None

    def wrap(self, data: bytes) -> bytes:
        salt, parameters = secrets.token_bytes(_SALT_BYTES), _PARAMETERS.pack(*_SCRYPT)
        return parameters + salt + aes_key_wrap_with_padding(self._stretch(salt, *_SCRYPT), data)

    def unwrap(self, wrapped: bytes) -> bytes:
        if len(wrapped) < _PARAMETERS.size + _SALT_BYTES:
            raise UnwrapError
        cost, block, parallel = _PARAMETERS.unpack_from(wrapped)
        salt, rest = wrapped[_PARAMETERS.size :][:_SALT_BYTES], wrapped[_PARAMETERS.size + _SALT_BYTES :]
        if cost < 2 or cost & (cost - 1) or not block or not parallel:
            raise UnwrapError
        # Memory and time: each of the parallel parts takes as long as one alone.
        if 128 * cost * block * parallel > _MAX_SCRYPT_BYTES:
            raise UnwrapError
        return _unwrap(self._stretch(salt, cost, block, parallel), rest)

    def _stretch(self, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
        lines = _read(self.path).splitlines()
        if not lines or not lines[0]:
            raise IllegalArgumentError(f"{self.path}: expected a passphrase in its first line, found none")
        try:
            return hashlib.scrypt(
                lines[0], salt=salt, n=cost, r=block, p=parallel, maxmem=2 * _MAX_SCRYPT_BYTES - 1, dklen=KEY_BYTES
            )
        except ValueError:  # a cost that no writer chose
            raise UnwrapError from None


@dataclass(frozen=True, slots=True)
class HiddenNames:
    """A provider for roots that hide their names. It wraps as another one does."""

    inner: KeyProvider

    @property
    def provider(self) -> str:
        return self.inner.provider

    @property
    def key(self) -> str:
        return self.inner.key

    def wrap(self, data: bytes) -> bytes:
        return self.inner.wrap(data)

    def unwrap(self, wrapped: bytes) -> bytes:
        return self.inner.unwrap(wrapped)


HIDE_NAMES = "hide-names"
"""The word before a text that names a provider, for a root that hides its names."""


def hides_names(provider: KeyProvider) -> bool:
    """Return whether a root that gets a data key from this provider hides its names."""
    return isinstance(provider, HiddenNames)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise IllegalArgumentError(f"{path}: cannot be read: {error.strerror}: give a file with the key") from None


def _unwrap(key: bytes, wrapped: bytes) -> bytes:
    try:
        return aes_key_unwrap_with_padding(key, wrapped)
    except (InvalidUnwrap, ValueError):
        raise UnwrapError from None


__all__ = [
    "HIDE_NAMES",
    "HiddenNames",
    "KeyFile",
    "KeyProvider",
    "PassphraseFile",
    "UnwrapError",
    "hides_names",
    "is_provider",
]
