"""Hold the rows of a cleanup plan, in memory or in a temporary file."""

import io
import json
import logging
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, Self, cast

import zstandard

from pyspark_checkpointer.admin.retention.classifier import PlanRow
from pyspark_checkpointer.admin.retention.reachability import Action
from pyspark_checkpointer.runtime.user_functions import log_safely

_MEMORY_BYTES = 1 << 19
"""Most bytes of compressed rows in memory, where a file can be written. A row takes some ten."""

_MAX_ROW_BYTES = 1 << 20
"""Bytes that a row may have.

Real rows have some thousand, but a damaged zstd frame can claim any size.
"""


@dataclass(frozen=True, slots=True)
class Total:
    """A number of objects, and the bytes that they store."""

    objects: int = 0
    """The number of objects."""
    bytes: int = 0
    """The bytes that they store."""

    def __add__(self, other: "Total") -> "Total":
        return Total(self.objects + other.objects, self.bytes + other.bytes)


_NOTHING = Total()


class Spool:
    """The rows of a plan, compressed, with their totals.

    Another thread may read them once the block has ended.

    They are in memory as long as they are few, and else in a temporary file, which has no name: the system deletes it
    with the last reference to it. Where no file can be written, they stay in memory. A cleanup is what makes room on a
    full disk, so it must not need room.
    """

    def __init__(self) -> None:
        self.totals: dict[tuple[Action, str], Total] = {}
        self._file: IO[bytes] | None = None
        self._stored = 0
        """The bytes that are in the file. Those that follow are in `_tail`."""
        self._tail = bytearray()
        self._most_in_memory = _MEMORY_BYTES
        self._packer: Any = zstandard.ZstdCompressor(level=1).stream_writer(cast(BinaryIO, self), closefd=False)

    def add(self, row: PlanRow) -> None:
        """Write one row."""
        count_row(self.totals, row)
        self._packer.write(json.dumps(row).encode() + b"\n")

    def extend(self, rows: Iterable[PlanRow]) -> None:
        """Write some rows."""
        for row in rows:
            self.add(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            # This is all that close() does, but close() leaks the bytes object that it returns.
            self._packer.flush(zstandard.FLUSH_FRAME)
        # It refers to this object, and the garbage collector does not look into it.
        self._packer = None

    def write(self, data: bytes) -> int:
        """Add bytes that are compressed already."""
        self._tail += data
        if len(self._tail) > self._most_in_memory:
            self._store()
        return len(data)

    def _store(self) -> None:
        """Move what is in memory to the file, as far as that is possible."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="checkpointer-plan-", buffering=0)  # noqa: SIM115  # kept
                # Without it, the interpreter would warn that nobody closed the file.
                weakref.finalize(self, self._file.close)
            written = os.pwrite(self._file.fileno(), self._tail, self._stored)
        except OSError as error:
            log_safely(logging.DEBUG, "the rows of a plan stay in memory: %s", error)
            self._most_in_memory = 2 * len(self._tail)  # room may be made meanwhile
            return
        del self._tail[:written]
        self._stored += written

    def reader(self) -> BinaryIO:
        """Return a file with the compressed rows, at its beginning.

        There may be several at once.
        """
        return cast(BinaryIO, io.BufferedReader(_Reader(self)))

    def read_at(self, start: int, most: int) -> bytes:
        """Return compressed bytes from `start` on; none at the end."""
        if start < self._stored:
            assert self._file is not None
            return os.pread(self._file.fileno(), min(most, self._stored - start), start)
        return bytes(self._tail[start - self._stored : start - self._stored + most])


class _Reader(io.RawIOBase):
    """Read a spool from its beginning, whoever else reads it."""

    def __init__(self, spool: Spool) -> None:
        self._spool, self._at = spool, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._spool.read_at(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def count_row(totals: dict[tuple[Action, str], Total], row: PlanRow) -> None:
    """Add one row to the totals."""
    key = row.action, row.reason
    before = totals.get(key, _NOTHING)
    totals[key] = Total(before.objects + 1, before.bytes + row.size)


def lines_of(reader: Any) -> Iterator[bytes]:
    """Yield the lines of a file.

    Raise `ValueError` for a line that is longer than any row.
    """
    rest = b""
    while piece := reader.read(_MAX_ROW_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _MAX_ROW_BYTES:
            raise ValueError(f"a row of more than {_MAX_ROW_BYTES} bytes")
        yield from lines
