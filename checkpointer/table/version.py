"""Define the class `TableVersion`: a table as it is in one checkpoint.

It has the table's schema and the chain of each partition.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests import codecs
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.model import SNAPSHOT, Artifact, Chain, Clock, Operator
from pyspark_checkpointer.table.expiry import is_expired, limit
from pyspark_checkpointer.table.schema import TableSchema


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table as one checkpoint has it, or as a batch has made it so far.

    `chains` is by partition. Rows whose time is at most `expired_until`, in microseconds since 1970, are expired.
    """

    name: str
    schema: TableSchema
    partitions: int
    chains: Mapping[int, Chain]
    expired_until: int | None = None

    @classmethod
    def of(cls, name: str, operator: Operator, clock: Clock | None) -> "TableVersion":
        """Return a table of a manifest that has this clock."""
        if (kind := codecs.kind_of(operator)) != "table":
            what, way = ("a map", "keyed") if kind == "map" else ("bytes", "operator")
            raise IllegalArgumentError(f"operator {name!r}: is {what}, not a table: restored.{way}({name!r}) reads it")
        schema = TableSchema.from_json(name, operator.schema)
        if schema.expire is not None and clock is None:
            raise MalformedError(f"operator {name!r}: its rows expire, and the manifest has no clock")
        version = cls(name, schema, operator.partitions, operator.chains)
        return version if clock is None else version.at(clock.at)

    def at(self, clock: datetime) -> "TableVersion":
        """Return the table at this time of the job's clock."""
        rule = self.schema.expire
        return replace(self, expired_until=None if rule is None else limit(rule, clock))

    def operator(self) -> Operator:
        return Operator(
            self.partitions, codecs.PARQUET.partitioner, codecs.PARQUET.name, self.chains, self.schema.to_json()
        )

    def only(self, partitions: Sequence[int]) -> "TableVersion":
        """Return the version with some partitions alone, which is what one task needs."""
        chains = {number: self.chains[number] for number in partitions if number in self.chains}
        return replace(self, chains=chains)

    def living(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are not expired."""
        rule = self.schema.expire
        if rule is None or self.expired_until is None:
            return rows
        expired = is_expired(rows[rule.column], self.expired_until)
        # Mostly no row is expired, and then nothing is copied.
        return rows.filter(pc.invert(expired)) if pc.any(expired).as_py() else rows

    def sizes(self, keep: Mapping[int, int] | None = None) -> dict[int, int]:
        """Return the stored bytes that reading each partition costs.

        Work is spread over tasks by these bytes. The bytes of a pack are divided among the partitions that still name
        it, by their rows: together they cost one fetch. So this is not how large a partition is.

        With `keep`, only those partitions count, without the first `keep[partition]` artifacts of each.
        """
        rows = Counter[str]()
        for chain in self.chains.values():
            for artifact in chain:
                rows[artifact.path] += artifact.records
        return {
            # A manifest may say that an object holds no records.
            partition: sum(a.length * a.records // max(rows[a.path], 1) for a in self.chains[partition][count:])
            for partition, count in (keep or dict.fromkeys(self.chains, 0)).items()
        }

    @property
    def row_bytes(self) -> int:
        """Bytes in memory of an average row."""
        rows = sum(artifact.records for chain in self.chains.values() for artifact in chain)
        return self.memory_bytes // max(1, rows)

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory of all rows and changes."""
        return sum(artifact.raw_size for chain in self.chains.values() for artifact in chain)

    @property
    def size(self) -> int:
        """Stored bytes of the table; an object that partitions share counts once."""
        return sum({a.path: a.length for chain in self.chains.values() for a in chain}.values())


def empty_base(pack: Artifact) -> Artifact:
    """Return the empty snapshot below the first delta of a partition.

    It is a range of zero bytes in the delta's pack.
    """
    # A chain must begin with a snapshot (SPEC, Manifests). Naming the delta's own pack costs no object of its own.
    return Artifact(pack.path, SNAPSHOT, 0, 0, pack.size, 0, 0, sha256(b""), pack.tail)
