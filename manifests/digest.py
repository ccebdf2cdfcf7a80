"""SHA-256, the only digest of the format, and the check that no switch skips: size first, then digest."""

import hashlib

from manifests.errors import DigestMismatchError

Bytes = bytes | bytearray | memoryview
"""Anything that holds bytes and can be hashed and written without a copy."""


def sha256(data: Bytes) -> str:
    """The digest of `data`, 64 lower-case hexadecimal digits, as `sha256sum` prints it."""
    return hashlib.sha256(data).hexdigest()


def verify(name: str, data: Bytes, *, size: int, digest: str) -> None:
    """Raise `DigestMismatchError` unless `data` has `size` bytes and hashes to `digest`.

    `name` is the object as an operator would look for it.
    """
    if len(data) != size:
        raise DigestMismatchError(f"{name}: expected {size} bytes, found {len(data)}")
    found = sha256(data)
    if found != digest:
        raise DigestMismatchError(f"{name}: expected SHA-256 {digest}, found {found}")
