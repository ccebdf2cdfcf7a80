"""Hash bytes with SHA-256 and check bytes that were read.

SHA-256 is the only digest of the format. A check compares the size first, then the digest.
"""

import hashlib

from pyspark_checkpointer.manifests.errors import DigestMismatchError

Bytes = bytes | bytearray | memoryview
"""Types that hold bytes and can be hashed and written without a copy."""


def sha256(data: Bytes) -> str:
    """Return the digest of `data` as `sha256sum` prints it.

    It has 64 lower-case hexadecimal digits.
    """
    return hashlib.sha256(data).hexdigest()


def verify(name: str, data: Bytes, *, size: int, digest: str) -> None:
    """Check that `data` has `size` bytes and hashes to `digest`.

    Raises `DigestMismatchError` if not. `name` is the path or URL that an error names.
    """
    check_size(name, len(data), size)
    check_digest(name, sha256(data), digest)


def check_size(name: str, found: int, expected: int) -> None:
    """Raise `DigestMismatchError` unless the object has as many bytes as expected."""
    if found != expected:
        raise DigestMismatchError(f"{name}: expected {expected} bytes, found {found}")


def check_digest(name: str, found: str, expected: str) -> None:
    """Raise `DigestMismatchError` unless the object has the expected SHA-256.

    The caller has checked its size.
    """
    if found != expected:
        raise DigestMismatchError(f"{name}: expected SHA-256 {expected}, found {found}")
