"""Read the rows of a version of a table.

Tasks, readers without Spark and compaction use it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from pyspark_checkpointer.compaction import STREAMED_SNAPSHOT_BYTES
from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests.model import DELTA, Artifact
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.table import kept_columns, large_rows, merge, parquet_decode, row_order
from pyspark_checkpointer.table.local_copies import LocalCopies
from pyspark_checkpointer.table.object_files import ObjectFiles
from pyspark_checkpointer.table.packs import HUGE_PACK_BYTES, Packs
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.snapshots import Part, Snapshots, has_parts
from pyspark_checkpointer.table.version import TableVersion

MAX_PIECE_ROW_GROUPS = 16
MAX_PIECE_BYTES = 16 << 20
"""The most row groups of a piece, and the most stored bytes of them.

A single row group may have more bytes.
"""


class TableReader:
    """A reader of the partitions of one version.

    A pack that several partitions share is fetched and decoded once.

    With `keys`, only changes of these keys are held in memory; it must then be asked for no other keys. With `copies`,
    an object is decoded once and kept there if a lookup needs much of it. `reads` says how often each partition will be
    asked for, if that is more than once.
    """

    def __init__(
        self,
        store: Store,
        host: Host,
        version: TableVersion,
        columns: Sequence[str] | None = None,
        keys: pa.Table | None = None,
        copies: LocalCopies | None = None,
        reads: Mapping[int, int] | None = None,
    ) -> None:
        self.host = host
        self.version = version
        self._has_keys = keys is not None
        self.schema = version.schema if columns is None else _choose_columns(version, columns)
        self._shown = self.schema.names if columns is None else list(columns)
        self.files = ObjectFiles(store, host, self.schema)
        self.snapshots = Snapshots(self.files, version.schema, copies)
        self.packs = Packs(self.files, version, keys, copies, reads)

    @property
    def bytes_read(self) -> int:
        """Return the bytes that were fetched so far."""
        return self.files.bytes_read

    def empty(self) -> pa.Table:
        """Return a table without rows that has the columns of this reader."""
        return self.schema.arrow().empty_table().select(self._shown)

    async def rows(self, partition: int, keys: pa.Table | None = None) -> pa.Table:
        """Return the rows of a partition, or only the rows whose key is in `keys`."""
        if keys is not None:
            return await self.rows_of({partition: keys})
        self._check_reads_all()
        chain = self.version.chains.get(partition, ())
        if not chain:
            return self.empty()
        base, *deltas = await asyncio.gather(
            self.snapshots.whole(chain[0]), *(self.packs.delta(artifact, partition) for artifact in chain[1:])
        )
        return await self.host.run(partial(self._merge, base, deltas, partition))

    async def rows_of(self, keys: Mapping[int, pa.Table]) -> pa.Table:
        """Return the rows of some keys, which are given by partition.

        All partitions are merged in one step. For few keys, one step for each partition would take several times as
        long.
        """
        chains = {partition: chain for partition in keys if (chain := self.version.chains.get(partition))}
        if not chains:
            return self.empty()
        deltas = [(artifact, partition) for partition, chain in chains.items() for artifact in chain[1:]]
        bases, changes = await asyncio.gather(
            self.lookup([(chain[0], keys[partition]) for partition, chain in chains.items()]),
            asyncio.gather(*(self.packs.delta(artifact, partition) for artifact, partition in deltas)),
        )

        def merged() -> pa.Table:
            # One by one: a delta is in order of its keys, so that they are found without a look at all of its rows.
            pairs = zip(changes, deltas, strict=True)
            wanted = [merge.matching(delta, keys[partition], self.schema.key) for delta, (_, partition) in pairs]
            # A key is in one partition only, so its changes still come oldest first.
            return self._merge(pa.concat_tables(bases), wanted)

        return await self.host.run(merged)

    def _merge(self, base: pa.Table, deltas: list[pa.Table], partition: int | None = None) -> pa.Table:
        """Return the living rows of a base and its deltas, which come oldest first."""
        if not deltas:
            return self._living(base)
        with large_rows.explain_arrow_errors(self.version.name, partition):
            return self._living(merge.apply(base, kept_columns.concat(deltas), self.schema, self.version.name))

    def _living(self, rows: pa.Table) -> pa.Table:
        """Return the columns of this reader, of rows that are not expired.

        Only merged rows can be expired: a later change may have moved the time of a row.
        """
        return self.version.living(rows).select(self._shown)

    async def pieces(self, partition: int, *, ordered: bool = False) -> AsyncIterator[pa.Table]:
        """Yield the rows of a partition in pieces.

        A large partition has only its changes and one piece in memory at a time.

        The pieces come in order of their keys. With `ordered`, the rows within a piece do too. Raises `CorruptionError`
        where the snapshot is not in order or has another number of rows than its artifact says.
        """
        self._check_reads_all()
        chain = self.version.chains.get(partition, ())
        if not chain or not has_parts(chain[0]) or chain[0].raw_size < STREAMED_SNAPSHOT_BYTES:
            rows = await self.rows(partition)
            yield await self.host.run(lambda: row_order.in_order(rows, self.schema.key)) if ordered else rows
            return
        base, deltas = chain[0], [await self.packs.delta(artifact, partition) for artifact in chain[1:]]
        changes = await self.host.run(partial(self._by_key, partition, deltas))
        # `changes` is a sorted copy. Without this all deltas would stay in memory twice while the pieces are read.
        deltas.clear()
        groups = await self.files.open(base)
        records, last = 0, None
        for wanted in group_pieces(groups.ranges):
            chosen = groups.select(wanted)
            found = await self.files.fetch(base, chosen.ranges)
            rows = await self.host.run(partial(chosen.decode, found, self.schema.names))
            # The caller may hold this generator for long. The stored bytes are not needed once they are decoded.
            found.clear()
            records += rows.num_rows
            if rows.num_rows:
                self._check_order(base, last, rows)
                # The next piece must begin above this key. A copy: a slice would hold the whole piece in memory.
                last = rows.select(self.schema.key).slice(rows.num_rows - 1).take([0])
            # Changes up to the last key of this piece belong to it, also those whose keys have no row yet.
            count = 0 if changes is None or last is None else row_order.count_up_to(changes, last, self.schema.key)
            if changes is not None and count:
                some, changes = changes.slice(0, count), changes.slice(count)
                rows = await self.host.run(partial(self._merged, partition, rows, some, ordered))
            yield self._living(rows)
            del rows  # before the next piece is decoded
        # Only now are all rows counted. The error comes before the end, so nobody takes the rows for all of them.
        if records != base.records:
            raise CorruptionError(f"{base.path}: expected {base.records} rows, found {records}")
        # What is left has keys above all rows of the snapshot.
        if changes is not None and changes.num_rows:
            none = self.schema.arrow().empty_table()
            rows = await self.host.run(partial(self._merged, partition, none, changes, ordered))
            yield self._living(rows)

    def _check_reads_all(self) -> None:
        """Raise `AssertionError` for a reader of some keys.

        It lacks the changes of all others.
        """
        if self._has_keys:
            raise AssertionError("a reader of some keys was asked for all rows, and would return old ones")

    def _by_key(self, partition: int, deltas: list[pa.Table]) -> pa.Table | None:
        """Return all changes in order of their key.

        Changes of one key stay in the order of their age.
        """
        if not deltas:
            return None
        with large_rows.explain_arrow_errors(self.version.name, partition):
            return row_order.in_order(kept_columns.concat(deltas), self.schema.key, stable=True)

    def _merged(self, partition: int, rows: pa.Table, changes: pa.Table, ordered: bool) -> pa.Table:
        with large_rows.explain_arrow_errors(self.version.name, partition):
            found = merge.apply(rows, changes, self.schema, self.version.name)
            return row_order.in_order(found, self.schema.key) if ordered else found

    def _check_order(self, base: Artifact, last: pa.Table | None, rows: pa.Table) -> None:
        """Raise `CorruptionError` for pieces that are not in order.

        Out of order, changes would miss their rows.
        """
        if last is not None and row_order.count_up_to(rows.slice(0, 1), last, self.schema.key):
            raise CorruptionError(f"{base.path}: expected rows in order of their key")

    async def changes(self, partition: int, artifacts: Sequence[Artifact]) -> pa.Table:
        """Return the effect of consecutive deltas of a partition.

        There is one change for each key. Raises `SumOverflowError` where the sum of changes does not fit into its type.
        It may fit together with the row below.
        """
        deltas = await asyncio.gather(*(self.packs.delta(artifact, partition) for artifact in artifacts))

        def merged() -> pa.Table:
            with large_rows.explain_arrow_errors(self.version.name, partition):
                return merge.fold_changes(kept_columns.concat(deltas), self.schema, self.version.name)

        return await self.host.run(merged)

    async def changed_keys(self, partition: int, artifacts: Sequence[Artifact]) -> pa.Table:
        """Return the keys of consecutive deltas of a partition, each once."""
        deltas = await asyncio.gather(*(self.packs.delta(artifact, partition) for artifact in artifacts))
        # Without the values: the sum of these changes may not fit into its type, and may fit with the row below.
        keys = replace(self.schema, columns=self.schema.key_columns)

        def once() -> pa.Table:
            with large_rows.explain_arrow_errors(self.version.name, partition):
                changed = pa.concat_tables(delta.select(keys.key) for delta in deltas)
                return merge.fold_changes(changed, keys, self.version.name)

        return await self.host.run(once)

    async def lookup(self, wanted: Sequence[tuple[Artifact, pa.Table]]) -> list[pa.Table]:
        """Return the rows of some keys in each snapshot, without the changes above it."""
        return await self.snapshots.parts([self._part(snapshot, keys) for snapshot, keys in wanted])

    def _part(self, snapshot: Artifact, keys: pa.Table) -> Part:
        key = self.schema.key
        return Part(snapshot, lambda groups: groups.select_keys(keys), lambda rows: merge.matching(rows, keys, key))

    async def object_rows(self, artifact: Artifact) -> AsyncIterator[pa.Table]:
        """Yield the rows of a snapshot, or the changes of all partitions, in pieces."""
        path, schema, names = artifact.path, self.schema, self.schema.names
        # One request, where the whole object is small enough to be in memory.
        if artifact.tail is None or artifact.size < HUGE_PACK_BYTES:
            data = await self.files.data(artifact)
            if artifact.kind == DELTA:
                yield await self.host.run(lambda: parquet_decode.decode_pack(path, data, schema, names, None))
            else:
                yield await self.host.run(lambda: parquet_decode.decode(path, data, schema, names))
            return
        groups = await self.files.open(artifact)
        for wanted in group_pieces(groups.ranges):
            chosen = groups.select(wanted, changes=artifact.kind == DELTA)
            found = await self.files.fetch(artifact, chosen.ranges)
            yield await self.host.run(partial(chosen.decode, found, names))


def _choose_columns(version: TableVersion, columns: Sequence[str]) -> TableSchema:
    """Return the schema with the columns asked for and those that merging needs.

    Merging needs the key, and the time of a row.
    """
    schema = version.schema
    shown = schema.choose(version.name, columns)
    time = None if schema.expire is None else schema.expire.column
    needed = tuple(c for c in schema.columns if c.role == "key" or c.name == time or c in shown)
    return replace(schema, columns=needed)


def group_pieces(ranges: Sequence[tuple[int, int, str]]) -> Iterator[list[int]]:
    """Yield the numbers of the row groups of each piece of a snapshot."""
    return large_rows.runs(range(len(ranges)), lambda group: ranges[group][1], MAX_PIECE_BYTES, MAX_PIECE_ROW_GROUPS)
