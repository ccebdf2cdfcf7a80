"""Check that each key of a table is in the partition that its hash says.

Readers do not check it: hashing takes longer than decoding. A key in another partition is never found by a lookup, and
may be there twice.
"""

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import DELTA, Artifact, Operator
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.table import row_order
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import PARTITION, TableSchema
from pyspark_checkpointer.table.version import TableVersion


async def check_places(store: Store, host: Host, name: str, operator: Operator, artifact: Artifact) -> None:
    """Raise `CorruptionError` if an object of a table has a key in a wrong partition.

    `artifact` is any artifact of that object which has bytes.
    """
    # No clock: a row that is expired is in its partition all the same.
    version = TableVersion(name, TableSchema.from_json(name, operator.schema), operator.partitions, operator.chains)
    reader = TableReader(store, host, version, version.schema.key)
    key = version.schema.key

    def check(rows: pa.Table) -> None:
        if artifact.kind == DELTA:
            found = rows[PARTITION].to_numpy()
        else:
            found = np.full(rows.num_rows, object_paths.parse_artifact(artifact.path).partition)
        right = np.array(partitions_of(rows.select(key), version.schema, version.partitions), np.int64)
        wrong = np.flatnonzero(found != right)
        if len(wrong):
            row = int(wrong[0])
            shown = row_order.show_key(rows, key, row)
            raise CorruptionError(
                f"{artifact.path}: the key {shown} is in partition {found[row]} and belongs to partition {right[row]} "
                f"of {version.partitions}: no lookup finds it there"
            )

    async for rows in reader.object_rows(artifact):
        await host.run(lambda rows=rows: check(rows))  # type: ignore[misc]


__all__ = ["check_places"]
