"""The few durable things one can do to a local file, and what each failure of the system means to a
caller."""

import errno
import io
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    DependencyError,
    IllegalArgumentError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests.digest import Bytes

_TEMPORARY = re.compile(r"\.(?P<target>.+)\.[0-9a-f]{16}\.tmp")

LOCK = ".lock"
"""The one lock file of a root."""

_PIECE = 1 << 20
"""Bytes that may still be in a processor's own cache when they are hashed, having been read."""

_ONE_CALL = 1 << 30
"""Bytes that one call is asked for. The system reads a little less than 2 GiB at most."""

_BIT = 8 << 20
"""Bytes of a larger file that are in memory once more at a time."""


def temporary_target(name: str) -> str | None:
    """Return the name of the file that the temporary file `name` was to become, or None if it is not a temporary
    file."""
    match = _TEMPORARY.fullmatch(name)
    return match["target"] if match else None


def is_hidden(name: str) -> bool:
    """Return whether a file of this name is the store's own, and no object."""
    return _TEMPORARY.fullmatch(name) is not None or name == LOCK


def read(path: str, limit: int | None) -> bytes:
    """Return a whole file, from one open: what a rename puts in its place meanwhile does not mix in."""
    with _opened(path) as (fd, size):
        _check_size(path, size, limit)
        return _read(fd, size, 0)


def pieces(path: str, limit: int | None) -> Iterator[bytes]:
    """Yield a whole file, from one open, a piece at a time."""
    with _opened(path) as (fd, size):
        _check_size(path, size, limit)
        while piece := os.read(fd, _PIECE):
            yield piece


def _check_size(path: str, size: int, limit: int | None) -> None:
    if limit is not None and size > limit:
        raise CorruptionError(f"{path}: expected at most {limit} bytes, found {size}")


def read_range(path: str, offset: int, length: int) -> bytes:
    """`length` bytes from `offset`, fewer where the file ends."""
    with _opened(path) as (fd, size):
        return _read(fd, max(0, min(length, size - offset)), offset)


@contextmanager
def _opened(path: str) -> Iterator[tuple[int, int]]:
    """The descriptor and the size of a regular file."""
    # O_NONBLOCK: a FIFO of that name must not block the thread for ever.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not stat.S_ISREG(status.st_mode):
            raise StoreRefusedError(f"{path}: is not a regular file; move it away")
        yield fd, status.st_size
    finally:
        os.close(fd)


def _read(fd: int, size: int, offset: int) -> bytes:
    data = os.pread(fd, size, offset) if size <= _ONE_CALL else b""
    if len(data) == size:
        return data
    # The buffer of a BytesIO becomes the result without a copy; what a call brings is copied, so each brings little.
    buffer = io.BytesIO()
    while buffer.tell() < size and (data := os.pread(fd, min(size - buffer.tell(), _BIT), offset + buffer.tell())):
        buffer.write(data)
    return buffer.getvalue()


def write_temporary(target: str, data: Bytes) -> str:
    """A durable temporary file beside `target`; nothing is left behind on a failure."""
    temporary, fd = create_temporary(target)
    try:
        with os.fdopen(fd, "wb", buffering=0) as file:
            rest = memoryview(data).cast("B")
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return temporary


def create_temporary(target: str) -> tuple[str, int]:
    """Create an empty temporary file beside `target`, which nobody but the owner may read. Returns path, descriptor."""
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
    return temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def private(path: str, flags: int) -> int:
    """Return an opener for `open`: what it makes, nobody but the owner may read, whatever the umask says."""
    return os.open(path, flags, 0o600)


def sync_folder(folder: str) -> None:
    """Make the names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems keep no folders to sync
            raise
    finally:
        os.close(fd)


_BUSY = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.EINTR,
    errno.ENFILE,
    errno.ENOLCK,
    errno.ENOMEM,
    errno.ESTALE,
    errno.ETIMEDOUT,
}


def translate(error: OSError, path: str) -> CheckpointError:
    """Return what a failed system call on `path` means. Missing files are told apart before this is asked."""
    code = error.errno
    why = os.strerror(code) if code else str(error)
    if code == errno.EMFILE:
        return DependencyError(f"{path}: {why}: raise this process's limit (ulimit -n)")
    if code in _BUSY:
        return DependencyError(f"{path}: {why}")
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreRefusedError(f"{path}: {why}: free space there, or move the root; nothing was committed")
    if code in (errno.EACCES, errno.EPERM):
        return StoreRefusedError(
            f"{path}: {why}: give user {os.geteuid()} read and write access to the folder and what is in it"
        )
    if code == errno.EROFS:
        return StoreRefusedError(f"{path}: {why}: mount it writable, or choose another root")
    if code == errno.EIO:
        return StoreRefusedError(f"{path}: {why}: the disk failed; look at the system log before going on")
    if code == errno.ELOOP:
        return StoreRefusedError(f"{path}: is a symbolic link, which a store never makes; move it away")
    if code in (errno.ENOTDIR, errno.EISDIR):
        return StoreRefusedError(f"{path}: {why}: a file stands where a folder should be, or the reverse; move it away")
    if code in (errno.ENAMETOOLONG, errno.EINVAL):
        return IllegalArgumentError(f"{path}: {why}")
    return StoreRefusedError(f"{path}: {why}")
