"""One version of a table, and its rows: what a task, a reader without Spark, and compaction start from."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from checkpointer import objects
from checkpointer.errors import CorruptionError, IllegalArgumentError
from checkpointer.host import Host
from checkpointer.store.base import Store
from checkpointer.table import merge, parquet
from checkpointer.table.schema import PARTITION, TableSchema
from manifests import layout
from manifests.digest import sha256, verify
from manifests.model import DELTA, SNAPSHOT, Artifact, Chain, Operator

PARTITIONER = "spark-murmur3-1"
"""`pmod(hash(keys), partitions)` with Spark's 32-bit hash over the key columns in their order."""


@dataclass(frozen=True, slots=True)
class Version:
    """A table as one checkpoint has it, or as a batch has made it so far."""

    name: str
    schema: TableSchema
    partitions: int
    chains: Mapping[int, Chain]

    @classmethod
    def of(cls, name: str, operator: Operator) -> "Version":
        if operator.partitioner != PARTITIONER or operator.codec != layout.PARQUET:
            raise IllegalArgumentError(f"operator {name!r}: was not saved from a table")
        return cls(name, TableSchema.from_json(name, operator.schema), operator.partitions, operator.chains)

    def operator(self) -> Operator:
        return Operator(self.partitions, PARTITIONER, layout.PARQUET, self.chains, self.schema.to_json())

    def only(self, partitions: Sequence[int]) -> "Version":
        """The same with some partitions alone: what one task needs."""
        chains = {number: self.chains[number] for number in partitions if number in self.chains}
        return Version(self.name, self.schema, self.partitions, chains)

    @property
    def size(self) -> int:
        """Stored bytes, each object counted once."""
        return sum({a.path: a.length for chain in self.chains.values() for a in chain}.values())


def empty_base(pack: Artifact) -> Artifact:
    """The snapshot of a partition that was empty before its first delta: no bytes, nowhere else to look for."""
    return Artifact(pack.path, SNAPSHOT, 0, 0, pack.size, 0, 0, sha256(b""), pack.tail)


LARGE_PACK = 256 << 10
"""Bytes of a pack from which on it is worth a request more to read only some of them."""


class Reader:
    """Reads partitions of one version. An object that several partitions share is fetched and decoded once."""

    def __init__(self, store: Store, host: Host, version: Version, columns: Sequence[str] | None = None) -> None:
        self._store = store
        self._host = host
        self._version = version
        self._schema = version.schema if columns is None else _narrow(version, columns)
        self._shown = self._schema.names if columns is None else list(columns)
        self._packs: dict[str, asyncio.Task[pa.Table]] = {}
        self.bytes_read = 0

    async def rows(self, partition: int, keys: pa.Table | None = None) -> pa.Table:
        """The rows of a partition, or those of them whose key is one of `keys`."""
        chain = self._version.chains.get(partition, ())
        if not chain:
            return self._schema.arrow().empty_table().select(self._shown)
        base, *deltas = await asyncio.gather(
            self._base(chain[0], keys), *(self._delta(artifact, partition) for artifact in chain[1:])
        )

        def merged() -> pa.Table:
            if not deltas:
                return base.select(self._shown)
            changes = pa.concat_tables(deltas)
            if keys is not None:
                changes = merge.matching(changes, keys, self._schema.key)
            return merge.apply(base, changes, self._schema, self._version.name).select(self._shown)

        return await self._host.run(merged)

    async def changes(self, partition: int, artifacts: Sequence[Artifact]) -> pa.Table:
        """What some consecutive deltas of a partition do, as one change for each key."""
        deltas = await asyncio.gather(*(self._delta(artifact, partition) for artifact in artifacts))
        return await self._host.run(
            lambda: merge.consolidate(pa.concat_tables(deltas), self._schema, self._version.name)
        )

    async def _base(self, artifact: Artifact, keys: pa.Table | None) -> pa.Table:
        if artifact.length == 0:
            return self._schema.arrow().empty_table()
        if keys is not None and artifact.tail is not None:
            return await self._lookup(artifact, keys)
        data = await objects.read_artifact(self._store, self._host, artifact)
        self.bytes_read += len(data)

        def decode() -> pa.Table:
            rows = parquet.decode(artifact.path, data, self._schema, self._schema.names)
            if rows.num_rows != artifact.records:
                raise CorruptionError(f"{artifact.path}: expected {artifact.records} rows, found {rows.num_rows}")
            return rows if keys is None else merge.matching(rows, keys, self._schema.key)

        return await self._host.run(decode)

    async def _lookup(self, artifact: Artifact, keys: pa.Table) -> pa.Table:
        """The rows of `keys`, from the tail and the row groups that may hold them."""
        groups = await self._open(artifact)
        found = await self._fetch(artifact, groups, groups.of_keys(keys))
        names, key = self._schema.names, self._schema.key
        return await self._host.run(lambda: merge.matching(groups.read(found, names), keys, key))

    async def _open(self, artifact: Artifact) -> parquet.RowGroups:
        """A file of which only the tail was read."""
        assert artifact.tail is not None
        path, length = artifact.path, artifact.tail.length
        tail = await self._store.get_range(path, artifact.size - length, length)
        self.bytes_read += len(tail)
        verify(f"{path} (tail)", tail, size=length, digest=artifact.tail.digest)
        return await self._host.run(lambda: parquet.RowGroups(path, artifact.size, tail, self._schema))

    async def _fetch(self, artifact: Artifact, groups: parquet.RowGroups, wanted: list[int]) -> dict[int, bytes]:
        ranges = [groups.ranges[group] for group in wanted]
        found = await asyncio.gather(*(self._store.get_range(artifact.path, start, size) for start, size, _ in ranges))
        self.bytes_read += sum(map(len, found))
        return dict(zip(wanted, found, strict=True))

    async def _delta(self, artifact: Artifact, partition: int) -> pa.Table:
        task = self._packs.get(artifact.path)
        if task is None:
            task = self._packs[artifact.path] = asyncio.ensure_future(self._pack(artifact))
        pack = await asyncio.shield(task)
        numbers = pack[PARTITION].to_numpy()
        start, end = np.searchsorted(numbers, [partition, partition + 1])
        if artifact.kind != DELTA or end - start != artifact.records:
            raise CorruptionError(
                f"{artifact.path}: expected {artifact.records} rows of partition {partition}, found {end - start}"
            )
        return pack.slice(start, end - start)

    async def _pack(self, artifact: Artifact) -> pa.Table:
        """The changes of all partitions of this version in a pack, and maybe others."""
        names, wanted = self._schema.names, list(self._version.chains)
        if artifact.tail is not None and artifact.size >= LARGE_PACK:
            groups = await self._open(artifact)
            some = groups.of_partitions(wanted)
            size = sum(groups.ranges[group][1] for group in some)
            if 2 * size <= artifact.size:  # else one request for all of it is better
                found = await self._fetch(artifact, groups, some)
                return (await self._host.run(lambda: groups.read_changes(found, names))).combine_chunks()
        data = await objects.read_artifact(self._store, self._host, artifact)
        self.bytes_read += len(data)
        rows = await self._host.run(lambda: parquet.decode_pack(artifact.path, data, self._schema, names, wanted))
        return rows.combine_chunks()


def _narrow(version: Version, columns: Sequence[str]) -> TableSchema:
    """The schema with its key and the columns asked for: all that merging them needs."""
    schema = version.schema
    shown = schema.choose(version.name, columns)
    kept = tuple(column for column in schema.columns if column.role == "key" or column in shown)
    return TableSchema(kept, schema.next_id)
