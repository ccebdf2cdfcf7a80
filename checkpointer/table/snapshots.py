"""Read snapshots of a table, as a whole or in parts.

parts of many snapshots → one look at their indexes → one fetch of each → few computations that decode them
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from typing import NamedTuple

import pyarrow as pa

from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests.model import Artifact
from pyspark_checkpointer.table import local_copies, parquet_decode
from pyspark_checkpointer.table.local_copies import LocalCopies
from pyspark_checkpointer.table.object_files import ObjectFiles
from pyspark_checkpointer.table.parquet_decode import Selection
from pyspark_checkpointer.table.row_groups import RowGroups
from pyspark_checkpointer.table.schema import TableSchema

DECODED_AT_ONCE = 256 << 10
"""The bytes from which fetched parts are worth a computation of their own.

To hand work to a thread, and to take its result, takes about as long as decoding the few rows of one part.
"""

COPIED_SHARE = 0.5
"""The share of a snapshot from which on all of it is fetched, and a copy is kept."""


class Part(NamedTuple):
    """A request for rows of one snapshot.

    `choose` says which row groups or blocks may hold them, and `pick` leaves out the other rows of these.
    """

    snapshot: Artifact
    choose: Callable[[RowGroups], Selection]
    pick: Callable[[pa.Table], pa.Table]


class _Fetched(NamedTuple):
    """The fetched bytes of a part: how many they are, and how to decode them.

    `decode` verifies ranges first. A whole object was verified when it was fetched.
    """

    size: int
    decode: Callable[[], pa.Table]


class Snapshots:
    """The snapshots of a version.

    `stored` are the columns that they have, and `files` knows the columns to read. With `copies`, a snapshot is decoded
    once and kept there if much of it is needed.
    """

    def __init__(self, files: ObjectFiles, stored: TableSchema, copies: LocalCopies | None) -> None:
        self._files = files
        self._stored = stored
        self._copies = copies

    async def whole(self, snapshot: Artifact) -> pa.Table:
        """Return all rows of a snapshot."""
        return await self._files.host.run((await self._fetch_whole(snapshot, self._files.schema)).decode)

    async def parts(self, parts: Sequence[Part]) -> list[pa.Table]:
        """Return the rows of each part."""
        copied = await self._read_copies(parts)
        rest = [part for part, rows in zip(parts, copied, strict=True) if rows is None]
        found = iter(await self._read(rest) if rest else ())
        return [next(found) if rows is None else rows for rows in copied]

    async def _read_copies(self, parts: Sequence[Part]) -> list[pa.Table | None]:
        """Return the rows of those parts of whose snapshots there are copies."""
        if (copies := self._copies) is None:
            return [None] * len(parts)

        def read(part: Part) -> pa.Table | None:
            rows = copies.get(self._copy_name(part.snapshot))
            # Another artifact may name the same bytes, with a number of rows that is wrong. Reading the object says so.
            if rows is None or rows.num_rows != part.snapshot.records:
                return None
            return part.pick(rows.select(self._files.schema.names))

        # A copy is verified when a process maps it for the first time, so each of these is worth a computation.
        mapped = [copies.is_mapped(self._copy_name(part.snapshot)) for part in parts]
        known = [*compress(parts, mapped)]
        first = [part for part, is_mapped in zip(parts, mapped, strict=True) if not is_mapped]
        run = self._files.host.run
        of_known, of_first = await asyncio.gather(
            run(lambda: [*map(read, known)]), asyncio.gather(*(run(partial(read, part)) for part in first))
        )
        found = {True: iter(of_known), False: iter(of_first)}
        return [next(found[is_mapped]) for is_mapped in mapped]

    async def _read(self, parts: Sequence[Part]) -> list[pa.Table]:
        run = self._files.host.run
        opened = await asyncio.gather(*(self._open(part.snapshot) for part in parts))
        pairs = zip(parts, opened, strict=True)
        chosen = await run(lambda: [None if groups is None else part.choose(groups) for part, groups in pairs])
        # Nothing here keeps what was fetched, so that `_decode` can give up the bytes of each part.
        batches = _divide(zip(parts, await asyncio.gather(*map(self._fetch, parts, chosen)), strict=True))
        decoded = await asyncio.gather(*(run(partial(_decode, batch)) for batch in batches))
        return [rows for batch in decoded for rows in batch]

    def _copy_name(self, snapshot: Artifact) -> str:
        return local_copies.name_of(snapshot.digest, self._stored, self._stored.names)

    async def _open(self, snapshot: Artifact) -> RowGroups | None:
        """Return the row groups of a snapshot; None if it cannot be read in parts."""
        return await self._files.open(snapshot) if has_parts(snapshot) else None

    async def _fetch(self, part: Part, chosen: Selection | None) -> _Fetched:
        """Fetch what was chosen of a snapshot, or all of it."""
        snapshot, names, copies = part.snapshot, self._files.schema.names, self._copies
        if chosen is None:
            return await self._fetch_whole(snapshot, self._files.schema)
        is_small_part = chosen.share < COPIED_SHARE or snapshot.raw_size > local_copies.MAX_COPY_BYTES
        if copies is None or is_small_part or not copies.has_room(snapshot.raw_size, self._copy_name(snapshot)):
            found = await self._files.fetch(snapshot, chosen.ranges)
            return _Fetched(sum(map(len, found)), lambda: chosen.decode(found, names))
        whole = await self._fetch_whole(snapshot, self._stored)

        def decode() -> pa.Table:
            rows = whole.decode()
            copies.put(self._copy_name(snapshot), rows)
            return rows.select(names)

        return _Fetched(whole.size, decode)

    async def _fetch_whole(self, snapshot: Artifact, schema: TableSchema) -> _Fetched:
        if snapshot.length == 0:
            return _Fetched(0, schema.arrow().empty_table)
        data = await self._files.data(snapshot)

        def decode() -> pa.Table:
            rows = parquet_decode.decode(snapshot.path, data, schema, schema.names)
            if rows.num_rows != snapshot.records:
                raise CorruptionError(f"{snapshot.path}: expected {snapshot.records} rows, found {rows.num_rows}")
            return rows

        return _Fetched(len(data), decode)


def has_parts(snapshot: Artifact) -> bool:
    """Return whether a snapshot can be read in parts.

    An empty one has none. Without a recorded tail, the footer of a file cannot be verified alone.
    """
    return bool(snapshot.length) and snapshot.tail is not None


def _divide(fetched: Iterable[tuple[Part, _Fetched]]) -> Iterator[list[tuple[Part, _Fetched]]]:
    """Yield all parts in batches that have `DECODED_AT_ONCE`, but for the last one."""
    batch: list[tuple[Part, _Fetched]] = []
    size = 0
    for part, one in fetched:
        batch.append((part, one))
        size += one.size
        if size >= DECODED_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _decode(batch: list[tuple[Part, _Fetched]]) -> list[pa.Table]:
    """Return the rows of each part, and empty the list.

    The fetched bytes of a part are given up once they are decoded.
    """
    rows = []
    batch.reverse()
    while batch:
        part, one = batch.pop()
        rows.append(part.pick(one.decode()))
    return rows


__all__ = ["Part", "Snapshots", "has_parts"]
