"""Do durable operations on local files, and translate their failures."""

import errno
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    DependencyError,
    IllegalArgumentError,
    OutcomeUnknownError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage.base import ObjectRefusedError

_OWNER_ONLY = 0o600
"""Mode of every file that is created here."""

_TEMPORARY = re.compile(r"\.(?P<target>.+)\.[0-9a-f]{16}\.tmp")

LOCK = ".lock"
"""The one lock file of a root."""

_PIECE = 1 << 20
"""Bytes of a piece.

A piece is small enough to be in the processor's cache still when it is hashed after reading.
"""

_MAX_READ = 1 << 30
"""Bytes that one call reads at most.

The system itself ends a read a little below 2 GiB.
"""

_COPIED_AT_ONCE = 8 << 20
"""Bytes of a larger file that are in memory a second time while it is read."""

_UNDECIDED = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR}
"""Errors after which a rename may have happened or not."""


def temporary_target(name: str) -> str | None:
    """Return the final name of a temporary file; None for any other file."""
    match = _TEMPORARY.fullmatch(name)
    return match["target"] if match else None


def is_hidden(name: str) -> bool:
    """Return whether a file of this name belongs to the store itself and is no object."""
    return _TEMPORARY.fullmatch(name) is not None or name == LOCK


def read(path: str, limit: int | None) -> bytes:
    """Return a whole file.

    The file is opened once, so the result has no bytes of a file that is renamed over it meanwhile.
    """
    with _opened(path) as (fd, size):
        _check_size(path, size, limit)
        return _read(fd, size, 0)


def pieces(path: str, limit: int | None) -> Iterator[bytes]:
    """Yield a whole file piece by piece. It is opened once, as in `read`."""
    with _opened(path) as (fd, size):
        _check_size(path, size, limit)
        while piece := os.read(fd, _PIECE):
            yield piece


def _check_size(path: str, size: int, limit: int | None) -> None:
    if limit is not None and size > limit:
        raise CorruptionError(f"{path}: expected at most {limit} bytes, found {size}")


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the bytes of some ranges, each a start and a length.

    There are fewer bytes where the file ends before.
    """
    with _opened(path) as (fd, size):
        return [_read(fd, max(0, min(length, size - offset)), offset) for offset, length in ranges]


@contextmanager
def _opened(path: str) -> Iterator[tuple[int, int]]:
    """Open a regular file for the block; yield its descriptor and its size."""
    # O_NONBLOCK, because a FIFO of that name would block the thread for ever.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            # A folder is no object: in a cloud nothing would be found under this name either.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not stat.S_ISREG(status.st_mode):
            raise ObjectRefusedError(f"{path}: is not a regular file; move it away")
        yield fd, status.st_size
    finally:
        os.close(fd)


def _read(fd: int, size: int, offset: int) -> bytes:
    data = os.pread(fd, size, offset) if size <= _MAX_READ else b""
    if len(data) == size:
        return data
    # A BytesIO gives its buffer away without a copy. What each call reads is copied into it, so each call reads little.
    buffer = io.BytesIO()
    while (done := buffer.tell()) < size and (data := os.pread(fd, min(size - done, _COPIED_AT_ONCE), offset + done)):
        buffer.write(data)
    return buffer.getvalue()


def write_temporary(target: str, data: Bytes) -> str:
    """Write a durable temporary file beside `target` and return its path.

    A failure leaves nothing behind.
    """
    temporary, fd = create_temporary(target)
    try:
        with os.fdopen(fd, "wb", buffering=0) as file:
            rest = memoryview(data).cast("B")
            while rest:
                # One call may write only a part: at most a little below 2 GiB, or what a full disk has room for.
                rest = rest[file.write(rest) :]
            # Before the file gets its name: after a crash the name could otherwise lead to a file that is empty or cut
            # short.
            os.fsync(fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return temporary


def create_temporary(target: str) -> tuple[str, int]:
    """Create an empty temporary file beside `target`.

    Returns its path and its descriptor.
    """
    folder, name = os.path.split(target)
    # In the same folder, since neither a rename nor a link leads to another device. The form is that of SPEC.md, by
    # which a sweep recognises what a killed writer left.
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(temporary, flags, _OWNER_ONLY)
    give_away(fd, folder)
    return temporary, fd


def give_away(fd: int, folder: str) -> None:
    """Give a new file of the superuser to the owner of its folder.

    The job of another user could not read `_latest` any more after somebody has cleaned its root with `sudo`.
    """
    if os.geteuid() != 0:
        return
    # Some file systems have no owners: there, everybody may read everything.
    with suppress(OSError):
        owner = os.stat(folder)
        if (owner.st_uid, owner.st_gid) != (0, os.getegid()):
            os.fchown(fd, owner.st_uid, owner.st_gid)


def make_folder(folder: str) -> None:
    """Make a folder that only its owner may enter. See `give_away`."""
    os.mkdir(folder, 0o700)
    if os.geteuid() == 0:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(fd).st_uid == 0:  # It may be another one by now.
                give_away(fd, os.path.dirname(folder))
        finally:
            os.close(fd)


def private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, whatever the umask says.

    This is an `opener` for `open`.
    """
    return os.open(path, flags, _OWNER_ONLY)


def replace(temporary: str, target: str) -> None:
    """Rename `temporary` to `target`, durably.

    Raises:
        OSError: It was not renamed.
        OutcomeUnknownError: It was renamed and that may not be durable, or nothing proves whether it was.
    """
    try:
        os.rename(temporary, target)
    except OSError as error:
        # Over a network the server may have renamed the file before one of these is reported.
        if error.errno not in _UNDECIDED:
            raise
        why = os.strerror(error.errno or 0)
        raise OutcomeUnknownError(f"{target}: {why} while it was replaced; it is not known whether it was") from error
    try:
        sync_folder(os.path.dirname(target))
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise OutcomeUnknownError(
            f"{target}: was replaced, but {why} while it was made durable; a crash may still undo this"
        ) from error


def put_in_place(temporary: str, target: str) -> None:
    """Rename `temporary` to a file that a user named, and not a store.

    Whoever could read the old file can read the new one. A failure leaves the old one, and no temporary file.
    """
    try:
        if os.path.exists(target):
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(target))


def sync_folder(folder: str) -> None:
    """Make the names of the files in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync folders
            raise
    finally:
        os.close(fd)


# After these, a later attempt may succeed.
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
    """Return the error of the tree for a failed system call on `path`.

    Missing files never get here.
    """
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
        return ObjectRefusedError(f"{path}: {why}: the disk failed; read the system log before you continue")
    if code == errno.ELOOP:
        return ObjectRefusedError(f"{path}: is a symbolic link, which a store never makes; move it away")
    if code in (errno.ENOTDIR, errno.EISDIR):
        return ObjectRefusedError(f"{path}: {why}: expected a folder and found a file, or the reverse; move it away")
    if code in (errno.ENAMETOOLONG, errno.EINVAL):
        return IllegalArgumentError(f"{path}: {why}")
    return StoreRefusedError(f"{path}: {why}")
