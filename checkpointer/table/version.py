"""The class `TableVersion`: a table as it is in one checkpoint.

It has the table's schema and the chain of each partition.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import codecs
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.model import SNAPSHOT, Artifact, Chain, Operator
from pyspark_checkpointer.table.schema import TableSchema


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table as one checkpoint has it, or as a batch has made it so far.

    `chains` is by partition.
    """

    name: str
    schema: TableSchema
    partitions: int
    chains: Mapping[int, Chain]

    @classmethod
    def of(cls, name: str, operator: Operator) -> "TableVersion":
        if operator.codec != codecs.PARQUET.name:
            kind, way = "bytes", "operator"
            if operator.codec == codecs.MSGPACK.name:
                kind, way = "a map", "keyed"
            raise IllegalArgumentError(f"operator {name!r}: is {kind}, not a table: restored.{way}({name!r}) reads it")
        return cls(name, TableSchema.from_json(name, operator.schema), operator.partitions, operator.chains)

    def operator(self) -> Operator:
        return Operator(
            self.partitions, codecs.PARQUET.partitioner, codecs.PARQUET.name, self.chains, self.schema.to_json()
        )

    def only(self, partitions: Sequence[int]) -> "TableVersion":
        """Return the version with some partitions alone, which is what one task needs."""
        chains = {number: self.chains[number] for number in partitions if number in self.chains}
        return TableVersion(self.name, self.schema, self.partitions, chains)

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
    def size(self) -> int:
        """Stored bytes of the table; an object that partitions share counts once."""
        return sum({a.path: a.length for chain in self.chains.values() for a in chain}.values())


def empty_base(pack: Artifact) -> Artifact:
    """Return the empty snapshot below the first delta of a partition.

    It is a range of zero bytes in the delta's pack.
    """
    # A chain must begin with a snapshot (SPEC, Manifests). Naming the delta's own pack costs no object of its own.
    return Artifact(pack.path, SNAPSHOT, 0, 0, pack.size, 0, 0, sha256(b""), pack.tail)
