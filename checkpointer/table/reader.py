"""Read the rows of a version of a table.

Tasks, readers without Spark and compaction use it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.checkpoint import download
from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests.digest import verify
from pyspark_checkpointer.manifests.model import DELTA, Artifact
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.table import kept_columns, large_rows, merge, parquet_decode, row_order
from pyspark_checkpointer.table.expiry import is_expired
from pyspark_checkpointer.table.schema import PARTITION, TableSchema
from pyspark_checkpointer.table.version import TableVersion

LARGE_PACK_BYTES = 256 << 10
"""The size of a pack, in bytes, from which a partial read pays off.

Reading only some row groups of a pack takes one more request.
"""

HUGE_PACK_BYTES = 8 << 20
"""The size of a pack, in bytes, from which the limit below holds.

A chain may have many packs.
"""

MAX_CONCURRENT_PACK_READS = 2
"""The most huge packs that are fetched and decoded at the same time."""

STREAMED_SNAPSHOT_BYTES = 64 << 20
"""The size in memory of a snapshot from which it is read piece by piece.

It is also merged piece by piece, and not as a whole.
"""

MAX_PIECE_ROW_GROUPS = 16
MAX_PIECE_BYTES = 16 << 20
"""The most row groups of a piece, and the most stored bytes of them.

A single row group may have more bytes.
"""


class _Pack(NamedTuple):
    """Changes of a pack, in order of their partitions.

    `counts` has the number of changes of each partition, before keys were left out.
    """

    rows: pa.Table
    counts: Mapping[int, int]


class TableReader:
    """A reader of the partitions of one version.

    A pack that several partitions share is fetched and decoded once.

    With `keys`, only changes of these keys are held in memory; `rows` must then be asked for no other keys. With `due`,
    a column and a time in microseconds since 1970, only rows whose time is at most that are returned.

    Life of a pack: the first reader of a partition in it begins to fetch it (`_packs`), the others wait for the same
    task, and the last one that is expected (`_expected_reads`) drops it.
    """

    def __init__(
        self,
        store: Store,
        host: Host,
        version: TableVersion,
        columns: Sequence[str] | None = None,
        keys: pa.Table | None = None,
        due: tuple[str, int] | None = None,
    ) -> None:
        self._store = store
        self._host = host
        self._version = version
        self._schema = version.schema if columns is None else _choose_columns(version, columns, due)
        self._due = due
        self._shown = self._schema.names if columns is None else list(columns)
        self._keys = keys
        self._huge_packs = asyncio.Semaphore(MAX_CONCURRENT_PACK_READS)
        self._packs: dict[str, asyncio.Task[_Pack]] = {}
        # The first artifact of a chain is the snapshot. It is fetched by itself, or not at all where it is empty.
        self._expected_reads = Counter(artifact.path for chain in version.chains.values() for artifact in chain[1:])
        """The number of reads of each pack that are still to come, by path.

        This assumes that every partition is read once.
        """
        self.bytes_read = 0

    def empty(self) -> pa.Table:
        """Return a table without rows that has the columns of this reader."""
        return self._schema.arrow().empty_table().select(self._shown)

    async def rows(self, partition: int, keys: pa.Table | None = None) -> pa.Table:
        """Return the rows of a partition, or those of them whose key is one of `keys`."""
        chain = self._version.chains.get(partition, ())
        if not chain:
            return self.empty()
        base, *deltas = await asyncio.gather(
            self._base(chain[0], keys), *(self._delta(artifact, partition) for artifact in chain[1:])
        )

        def merged() -> pa.Table:
            if not deltas:
                return self._living(base)
            with large_rows.explain_arrow_errors(self._version.name, partition):
                changes = kept_columns.concat(deltas)
                if keys is not None:
                    changes = merge.matching(changes, keys, self._schema.key)
                return self._living(merge.apply(base, changes, self._schema, self._version.name))

        return await self._host.run(merged)

    def _living(self, rows: pa.Table) -> pa.Table:
        """Return the columns of this reader, of rows that are not expired.

        Only merged rows can be expired: a later change may have moved the time of a row.
        """
        living = self._version.living(rows)
        if self._due is not None:
            column, limit = self._due
            living = living.filter(is_expired(living[column], limit))
        return living.select(self._shown)

    async def pieces(self, partition: int, *, ordered: bool = False) -> AsyncIterator[pa.Table]:
        """Yield the rows of a partition in pieces.

        A large partition has only its changes and one piece in memory at a time.

        The pieces come in order of their keys. With `ordered`, the rows within a piece do too. Raises `CorruptionError`
        where the snapshot is not in order or has another number of rows than its artifact says.
        """
        chain = self._version.chains.get(partition, ())
        # An object without a recorded tail cannot be verified in parts, so it is read as a whole.
        if not chain or not chain[0].length or chain[0].raw_size < STREAMED_SNAPSHOT_BYTES or chain[0].tail is None:
            rows = await self.rows(partition)
            yield await self._host.run(lambda: row_order.in_order(rows, self._schema.key)) if ordered else rows
            return
        base, deltas = chain[0], [await self._delta(artifact, partition) for artifact in chain[1:]]
        changes = await self._host.run(partial(self._by_key, partition, deltas))
        # `changes` is a sorted copy. Without this all deltas would stay in memory twice while the pieces are read.
        deltas.clear()
        groups = await self.open(base)
        records, last = 0, None
        for wanted in group_pieces(groups.ranges):
            found = await self.fetch(base, groups, wanted)
            rows = await self._host.run(partial(groups.read, found, self._schema.names))
            # The caller may hold this generator for long. The stored bytes are not needed once they are decoded.
            found.clear()
            records += rows.num_rows
            if rows.num_rows:
                self._check_order(base, last, rows)
                # The next piece must begin above this key. A copy: a slice would hold the whole piece in memory.
                last = rows.select(self._schema.key).slice(rows.num_rows - 1).take([0])
            # Changes up to the last key of this piece belong to it, also those whose keys have no row yet.
            count = 0 if changes is None or last is None else row_order.first_beyond(changes, last, self._schema.key)
            if changes is not None and count:
                some, changes = changes.slice(0, count), changes.slice(count)
                rows = await self._host.run(partial(self._merged, partition, rows, some, ordered))
            yield self._living(rows)
            del rows  # before the next piece is decoded
        # Only now are all rows counted. The error comes before the end, so nobody takes the rows for all of them.
        if records != base.records:
            raise CorruptionError(f"{base.path}: expected {base.records} rows, found {records}")
        # What is left has keys above all rows of the snapshot.
        if changes is not None and changes.num_rows:
            none = self._schema.arrow().empty_table()
            rows = await self._host.run(partial(self._merged, partition, none, changes, ordered))
            yield self._living(rows)

    def _by_key(self, partition: int, deltas: list[pa.Table]) -> pa.Table | None:
        """Return all changes in order of their key.

        Changes of one key stay in the order of their age.
        """
        if not deltas:
            return None
        with large_rows.explain_arrow_errors(self._version.name, partition):
            return row_order.in_order(kept_columns.concat(deltas), self._schema.key, stable=True)

    def _merged(self, partition: int, rows: pa.Table, changes: pa.Table, ordered: bool) -> pa.Table:
        with large_rows.explain_arrow_errors(self._version.name, partition):
            found = merge.apply(rows, changes, self._schema, self._version.name)
            return row_order.in_order(found, self._schema.key) if ordered else found

    def _check_order(self, base: Artifact, last: pa.Table | None, rows: pa.Table) -> None:
        """Raise `CorruptionError` for pieces that are not in order.

        Changes would miss their rows.
        """
        if last is not None and row_order.first_beyond(rows.slice(0, 1), last, self._schema.key):
            raise CorruptionError(f"{base.path}: expected rows in order of their key")

    async def changes(self, partition: int, artifacts: Sequence[Artifact]) -> pa.Table:
        """Return the effect of consecutive deltas of a partition.

        There is one change for each key.
        """
        deltas = await asyncio.gather(*(self._delta(artifact, partition) for artifact in artifacts))

        def merged() -> pa.Table:
            with large_rows.explain_arrow_errors(self._version.name, partition):
                return merge.consolidate(kept_columns.concat(deltas), self._schema, self._version.name)

        return await self._host.run(merged)

    async def _base(self, artifact: Artifact, keys: pa.Table | None) -> pa.Table:
        """Return the rows of a snapshot, or those of them whose key is one of `keys`."""
        if artifact.length == 0:
            return self._schema.arrow().empty_table()
        # Without a recorded tail the footer cannot be verified alone, so the whole object is read.
        if keys is not None and artifact.tail is not None:
            return await self._lookup(artifact, keys)
        data = await download.read_artifact(self._store, self._host, artifact)
        self.bytes_read += len(data)

        def decode() -> pa.Table:
            rows = parquet_decode.decode(artifact.path, data, self._schema, self._schema.names)
            if rows.num_rows != artifact.records:
                raise CorruptionError(f"{artifact.path}: expected {artifact.records} rows, found {rows.num_rows}")
            return rows if keys is None else merge.matching(rows, keys, self._schema.key)

        return await self._host.run(decode)

    async def _lookup(self, artifact: Artifact, keys: pa.Table) -> pa.Table:
        """Return the rows of a snapshot whose key is one of `keys`.

        Only row groups that may hold them are fetched.
        """
        groups = await self.open(artifact)
        found = await self.fetch(artifact, groups, groups.of_keys(keys))
        names, key = self._schema.names, self._schema.key
        return await self._host.run(lambda: merge.matching(groups.read(found, names), keys, key))

    async def object_rows(self, artifact: Artifact) -> AsyncIterator[pa.Table]:
        """Yield all rows of an object, piece by piece: those of a snapshot, or the changes of all partitions."""
        path, schema, names = artifact.path, self._schema, self._schema.names
        # One request, where the whole object is small enough to be in memory.
        if artifact.tail is None or artifact.size < HUGE_PACK_BYTES:
            data = await download.read_artifact(self._store, self._host, artifact)
            if artifact.kind == DELTA:
                wanted_partitions = list(self._version.chains)
                yield await self._host.run(
                    lambda: parquet_decode.decode_pack(path, data, schema, names, wanted_partitions)
                )
            else:
                yield await self._host.run(lambda: parquet_decode.decode(path, data, schema, names))
            return
        groups = await self.open(artifact)
        read = groups.read_changes if artifact.kind == DELTA else groups.read
        for wanted in group_pieces(groups.ranges):
            found = await self.fetch(artifact, groups, wanted)
            yield await self._host.run(partial(read, found, names))

    async def open(self, artifact: Artifact) -> parquet_decode.RowGroups:
        """Fetch and verify the tail of a file, and return its row groups.

        None of the row groups is fetched yet.
        """
        assert artifact.tail is not None
        path, length = artifact.path, artifact.tail.length
        tail = await self._store.get_range(path, artifact.size - length, length)
        self.bytes_read += len(tail)
        verify(f"{path} (tail)", tail, size=length, digest=artifact.tail.digest)
        return await self._host.run(lambda: parquet_decode.RowGroups(path, artifact.size, tail, self._schema))

    async def fetch(self, artifact: Artifact, groups: parquet_decode.RowGroups, wanted: list[int]) -> dict[int, bytes]:
        """Return the stored bytes of some row groups."""
        ranges = [groups.ranges[group] for group in wanted]
        found = await asyncio.gather(*(self._store.get_range(artifact.path, start, size) for start, size, _ in ranges))
        self.bytes_read += sum(map(len, found))
        return dict(zip(wanted, found, strict=True))

    async def _delta(self, artifact: Artifact, partition: int) -> pa.Table:
        """Return the changes of one partition from a pack.

        The pack is fetched once for all partitions.
        """
        task = self._packs.get(artifact.path)
        if task is None:
            task = self._packs[artifact.path] = asyncio.ensure_future(self._pack(artifact))
        # Counted before the wait: a reader that is cancelled has to count too, or nobody would be the last one, and
        # the pack would stay in memory.
        self._expected_reads[artifact.path] -= 1
        if self._expected_reads[artifact.path] <= 0:
            del self._packs[artifact.path]  # If it is read again, it is fetched again.
        # One reader that is cancelled must not cancel the fetch that others wait for.
        pack = await asyncio.shield(task)
        count = pack.counts.get(partition, 0)
        # SPEC (Tables): each artifact says how many rows of the pack are its own. Fewer would be changes lost.
        if artifact.kind != DELTA or count != artifact.records:
            raise CorruptionError(
                f"{artifact.path}: expected {artifact.records} rows of partition {partition}, found {count}"
            )
        start, end = np.searchsorted(pack.rows[PARTITION].to_numpy(), [partition, partition + 1])
        return pack.rows.slice(start, end - start)

    async def _pack(self, artifact: Artifact) -> _Pack:
        """Fetch and decode a pack.

        The result has the changes of all partitions of this version in the pack, and maybe of others.
        """
        async with self._huge_packs if artifact.size >= HUGE_PACK_BYTES else nullcontext():
            decode = await self._fetch_pack(artifact)
            return await self._host.run(lambda: self._hold(decode()))

    def _hold(self, rows: pa.Table) -> _Pack:
        """Return the part of a pack that stays in memory.

        With `keys` this is only their changes, but the counts of all.
        """
        # Counted before rows of other keys are left out, as the manifest counts all of them.
        numbers, counts = np.unique(rows[PARTITION].to_numpy(), return_counts=True)
        if self._keys is not None:
            rows = merge.matching(rows, self._keys, self._schema.key)
        return _Pack(large_rows.compact(rows), dict(zip(numbers.tolist(), counts.tolist(), strict=True)))

    async def _fetch_pack(self, artifact: Artifact) -> Callable[[], pa.Table]:
        """Fetch a pack, or those row groups of it that are needed.

        Return a function that decodes them.
        """
        names, wanted = self._schema.names, list(self._version.chains)
        if artifact.tail is not None and artifact.size >= LARGE_PACK_BYTES:
            groups = await self.open(artifact)
            some = groups.of_partitions(wanted)
            size = sum(groups.ranges[group][1] for group in some)
            if 2 * size <= artifact.size:  # Else one request for the whole pack is faster.
                found = await self.fetch(artifact, groups, some)
                return lambda: groups.read_changes(found, names)
        data = await download.read_artifact(self._store, self._host, artifact)
        self.bytes_read += len(data)
        return lambda: parquet_decode.decode_pack(artifact.path, data, self._schema, names, wanted)


def _choose_columns(version: TableVersion, columns: Sequence[str], due: tuple[str, int] | None) -> TableSchema:
    """Return the schema with its key and the columns asked for, which merging needs, and the time of a row."""
    schema = version.schema
    shown = schema.choose(version.name, columns)
    times = {schema.expire.column if schema.expire else "", due[0] if due else ""}
    needed = tuple(c for c in schema.columns if c.role == "key" or c.name in times or c in shown)
    return replace(schema, columns=needed)


def group_pieces(ranges: Sequence[tuple[int, int, str]]) -> Iterator[list[int]]:
    """Yield the numbers of the row groups of each piece of a snapshot."""
    piece: list[int] = []
    size = 0
    for group, (_, length, _) in enumerate(ranges):
        if piece and (len(piece) == MAX_PIECE_ROW_GROUPS or size + length > MAX_PIECE_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(group)
        size += length
    if piece:
        yield piece
