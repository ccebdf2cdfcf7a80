"""Read snapshots of a table, as a whole or in parts.

parts of many snapshots → one look at their indexes → one fetch of each → few computations that decode them
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
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


class Part(NamedTuple):
    """The rows of a snapshot that `pick` picks.

    All of them are in the parts of the file that `choose` chooses.
    """

    snapshot: Artifact
    choose: Callable[[RowGroups], Selection]
    pick: Callable[[pa.Table], pa.Table]


class _Fetched(NamedTuple):
    """The verified bytes of a part, and the function that decodes them."""

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

        return await self._files.host.run(lambda: [*map(read, parts)])

    async def _read(self, parts: Sequence[Part]) -> list[pa.Table]:
        run = self._files.host.run
        opened = await asyncio.gather(*(self._open(part.snapshot) for part in parts))
        pairs = zip(parts, opened, strict=True)
        chosen = await run(lambda: [None if groups is None else part.choose(groups) for part, groups in pairs])
        fetched = await asyncio.gather(*map(self._fetch, parts, chosen))
        some_at_once = _divide([*zip(parts, fetched, strict=True)])
        return [*chain.from_iterable(await asyncio.gather(*(run(partial(_decode, some)) for some in some_at_once)))]

    def _copy_name(self, snapshot: Artifact) -> str:
        return local_copies.name_of(snapshot.digest, self._stored, self._stored.names)

    async def _open(self, snapshot: Artifact) -> RowGroups | None:
        """Open a snapshot that can be read in parts.

        Without a recorded tail its footer cannot be verified alone, so the whole object is read.
        """
        return await self._files.open(snapshot) if snapshot.length and snapshot.tail is not None else None

    async def _fetch(self, part: Part, chosen: Selection | None) -> _Fetched:
        """Fetch what was chosen of a snapshot, or all of it."""
        snapshot, names, copies = part.snapshot, self._files.schema.names, self._copies
        if chosen is None:
            return await self._fetch_whole(snapshot, self._files.schema)
        if copies is None or chosen.share < 0.5 or snapshot.raw_size > local_copies.MAX_COPY_BYTES:
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


def _divide(fetched: Sequence[tuple[Part, _Fetched]]) -> Iterator[list[tuple[Part, _Fetched]]]:
    """Yield all parts, as many at once as have `DECODED_AT_ONCE`."""
    some: list[tuple[Part, _Fetched]] = []
    for pair in fetched:
        some.append(pair)
        if sum(one.size for _, one in some) >= DECODED_AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def _decode(fetched: Sequence[tuple[Part, _Fetched]]) -> list[pa.Table]:
    return [part.pick(one.decode()) for part, one in fetched]


__all__ = ["Part", "Snapshots"]
