"""Keep decoded objects on the local disk of an executor.

Random keys need nearly all rows of a table, and most of its objects are the same in the next batch. Without copies each
batch would fetch, verify and decode them again.

object of the store, verified and decoded → file of Arrow + its SHA-256 → mapped into memory, verified once per process
"""

import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.table import large_rows
from pyspark_checkpointer.table.schema import TableSchema

MAX_BYTES = 4 << 30
"""The most bytes of copies in a folder."""

MAX_COPIES = 4096
"""The most copies in a folder, and the most that a process has mapped.

Packs of small batches are small, so that their bytes alone would allow hundreds of thousands of files. Linux lets a
process map 65,530.
"""

MAX_COPY_BYTES = 256 << 20
"""The most bytes of a copy: a task that makes one has to hold it in memory as a whole."""

IDLE_SECONDS = 300
"""The time after which a copy that nobody used makes room for others.

Copies in use stay, and an object that does not fit beside them gets no copy. If the oldest copies were removed, a state
that is too large would lose each copy before the next batch needs it. Every batch would then write all copies again.
"""

FULL_SECONDS = 30
"""The time for which no copy is made that is as large as one for which there was no room."""

MIN_FREE_SHARE = 4
"""A copy is made only while the disk has at least this number of free bytes for each byte of it."""

_SUFFIX = ".arrow"
_DIGEST_BYTES = hashlib.sha256().digest_size

_ERRORS = (OSError, pa.ArrowException)


class LocalCopies:
    """Decoded objects in a folder, which all processes of an executor share.

    A copy is named by the SHA-256 of the object and of the columns in which it was decoded, so it never gets old. One
    that is missing, damaged or cannot be written costs time and nothing else: the object is read again.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._mapped: dict[str, pa.Table] = {}
        """Copies that this process has verified, the longest known first."""
        self._refused: tuple[float, int] = (0.0, 0)
        """Until when no copy of how many bytes, or more, is made."""
        self._refused_names: dict[str, float] = {}
        """Until when no copy of an object is made."""
        self._warned: dict[str, float] = {}
        """Until when no further error of the disk is logged, by message."""
        self._lock = threading.Lock()

    def has_room(self, size: int, name: str) -> bool:
        """Return whether a copy of about `size` bytes may be made.

        There is none if this copy, or one of this size or a smaller one, found no room a short time ago. Whoever would
        read a whole object for the sake of its copy then reads only what it needs. The name decides too: of a pack, an
        artifact says only how large the share of one partition is.
        """
        until, refused = self._refused
        now = time.monotonic()
        return now >= self._refused_names.get(name, 0.0) and (size < refused or now >= until)

    def is_mapped(self, name: str) -> bool:
        """Return whether this process has mapped a copy, and so has verified it."""
        with self._lock:
            return name in self._mapped

    def get(self, name: str) -> pa.Table | None:
        """Return the rows of a copy, or None where there is none."""
        path = self._folder / name
        try:
            # Before anything else: it shows that the copy is used, and fails once another process has removed it.
            _touch(path)
            with self._lock:
                known = self._mapped.get(name)
            if known is not None:
                return known
            rows = _map(path)
        except FileNotFoundError:
            with self._lock:
                self._mapped.pop(name, None)  # The disk gets its space back once nobody maps it any more.
            return None
        except _ERRORS as error:
            self._warn(error, "%s: a copy of a table's object cannot be read, the object is read instead: %s", path)
            # Other errors may be those of this process: it may have no room to map a sound copy.
            if isinstance(error, pa.ArrowInvalid):
                self._remove(path)
            return None
        with self._lock:
            self._mapped[name] = rows
            while len(self._mapped) > MAX_COPIES:
                del self._mapped[next(iter(self._mapped))]
        return rows

    def put(self, name: str, rows: pa.Table) -> None:
        """Write a copy, if there is room for it."""
        rows = large_rows.combine_chunks(rows)  # One chunk, which numpy can see without another copy.
        if rows.nbytes > min(MAX_COPY_BYTES, self._max_bytes):
            self._refuse(name, rows.nbytes)
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_low = rows.nbytes * MIN_FREE_SHARE > shutil.disk_usage(self._folder).free
            if is_low or not self._make_room(rows.nbytes):
                self._refuse(name, rows.nbytes)
                return
            # Other processes see the whole file or none.
            new = self._folder / f".{name}-{os.getpid()}-{threading.get_ident()}"
            try:
                _write(new, rows)
                new.replace(self._folder / name)
            except BaseException:
                self._remove(new)
                raise
        except _ERRORS as error:
            # Or each batch would read whole objects again, for copies that cannot be written either.
            self._refuse(name, rows.nbytes)
            self._warn(error, "%s: a copy of a table's object cannot be written: %s", self._folder)

    def _warn(self, error: Exception, message: str, path: Path) -> None:
        """Log an error of a copy.

        Of the errors of a bad disk, one is logged in `FULL_SECONDS`.
        """
        if isinstance(error, OSError):
            now, until = time.monotonic(), self._warned.get(message, 0.0)
            if now < until:
                return
            self._warned[message] = now + FULL_SECONDS
        log_safely(logging.WARNING, message, path, error)

    def _refuse(self, name: str, size: int) -> None:
        """Note that there is no room for a copy of so many bytes."""
        size //= 2  # whoever asks only knows about how large the rows are
        now, (until, refused) = time.monotonic(), self._refused
        with self._lock:
            self._refused_names[name] = now + FULL_SECONDS
            while len(self._refused_names) > MAX_COPIES:
                del self._refused_names[next(iter(self._refused_names))]
        self._refused = now + FULL_SECONDS, min(size, refused) if now < until else size

    def _make_room(self, size: int) -> bool:
        """Remove idle copies until one of `size` bytes fits, and return whether it fits.

        The copy that was unused for longest goes first.
        """
        found = []
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # Another process removed it.
                found.append((entry.stat().st_mtime, entry.stat().st_size, entry.name))
        total, removed = sum(stored for _, stored, _ in found), set[str]()

        def fits(most: int) -> bool:
            return total + size <= self._max_bytes and len(found) - len(removed) < most

        # To look through all files takes long, so that many are removed at once if they are too many.
        enough = MAX_COPIES if len(found) < MAX_COPIES else MAX_COPIES // 2
        for used, freed, name in sorted(found):
            if fits(enough) or used > time.time() - IDLE_SECONDS:
                break
            self._remove(self._folder / name)
            removed.add(name)
            total -= freed
        with self._lock:
            # The disk gets the space of a removed file back once nobody maps it any more.
            there = {name for _, _, name in found} - removed
            self._mapped = {name: rows for name, rows in self._mapped.items() if name in there}
        return fits(MAX_COPIES)

    @staticmethod
    def _remove(path: Path) -> None:
        with suppress(OSError):
            path.unlink()


def name_of(digest: str, schema: TableSchema, columns: Sequence[str]) -> str:
    """Return the name of the copy of an object, decoded as these columns of a schema."""
    types = [(column.id, column.name, column.type, column.role, column.metadata) for column in schema.columns]
    return hashlib.sha256(repr((digest, types, list(columns))).encode()).hexdigest() + _SUFFIX


def _touch(path: Path) -> None:
    """Show that a copy is used.

    Raises `FileNotFoundError` where there is none.
    """
    try:
        os.utime(path)
    except FileNotFoundError:
        raise
    except OSError:
        pass  # Copies on a disk that takes no more writes can be read all the same.


def _write(path: Path, rows: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as file:
        file.write_table(rows)
    data = sink.getvalue()
    # Rows of a table may be secret, so nobody else may read them. No fsync: a copy need not outlive the machine.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(data)
        out.write(hashlib.sha256(data).digest())


def _map(path: Path) -> pa.Table:
    """Return the rows of a copy as a view of its file.

    Raises `ArrowInvalid` for a copy whose bytes differ from those that were written.
    """
    with pa.memory_map(str(path)) as file:
        data = file.read_buffer()
    rows, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(rows).digest() != digest.to_pybytes():
        raise pa.ArrowInvalid("its SHA-256 differs")
    return pa.ipc.open_file(rows).read_all()


__all__ = ["LocalCopies", "name_of"]
