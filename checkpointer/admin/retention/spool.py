"""Hold the rows of a cleanup plan in a temporary file.

They are written, counted, read and deleted there.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import zstandard

from pyspark_checkpointer.admin.retention.classifier import PlanRow
from pyspark_checkpointer.admin.retention.reachability import Action

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
    """A temporary file that rows are written to, with their totals.

    An error in its block deletes it; otherwise a plan takes it over.
    """

    def __init__(self) -> None:
        self.totals: dict[tuple[Action, str], Total] = {}
        descriptor, self.path = tempfile.mkstemp(prefix="checkpointer-plan-")
        self.file = os.fdopen(descriptor, "wb")
        self._packer: Any = zstandard.ZstdCompressor(level=1).stream_writer(self.file, closefd=False)

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
        self.file.close()
        if kind is not None:
            _remove(self.path)


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


def remove_own(path: str, process: int) -> None:
    """Delete a plan's file in the process that made it.

    In a forked child, the copy of the plan shares the file with its parent.
    """
    if os.getpid() == process:
        _remove(path)


def _remove(path: str) -> None:
    """Delete a file, if it is there still."""
    with suppress(OSError):
        os.unlink(path)
