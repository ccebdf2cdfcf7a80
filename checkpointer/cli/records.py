"""Read an operator's records, partition after partition, as JSON."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark_checkpointer.checkpoint.map_entries import living_entries
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.cli import schemas
from pyspark_checkpointer.manifests.codecs import kind_of
from pyspark_checkpointer.manifests.msgpack_values import unpack
from pyspark_checkpointer.manifests.tagged_json import to_json
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.connection import require

if TYPE_CHECKING:
    from pyspark_checkpointer.table.schema import TableSchema


def require_arrow(root: str) -> None:
    """Raise `IllegalArgumentError`, with what to install, if pyarrow is missing."""
    require("pyarrow", "spark", root)


def records(
    reader: CheckpointReader, name: str, partitions: Sequence[int], shown: "TableSchema | None" = None
) -> Iterator[schemas.Record]:
    """Yield every record of some partitions, verified.

    Rows of a table have the types of a schema, if one is given.
    """
    kind = kind_of(reader.operator(name))
    if kind == "table":
        require_arrow(reader.session.store.url)
        return _rows(reader, name, partitions, shown)
    return (_entries if kind == "map" else _artifacts)(reader, name, partitions)


def _rows(
    reader: CheckpointReader, name: str, partitions: Sequence[int], shown: "TableSchema | None"
) -> Iterator[schemas.Record]:
    from pyspark_checkpointer.table.opening import partition_reader, table_version  # pyarrow, only for tables
    from pyspark_checkpointer.table.python_values import json_rows
    from pyspark_checkpointer.table.shown_columns import rows_shown

    read = partition_reader(reader, name, partitions)
    schema = table_version(reader, name).schema
    for partition in partitions:
        rows = run_sync(read(partition))
        rows = rows if shown is None else rows_shown(rows, schema, shown)
        # In small batches, as Python objects take far more memory than Arrow's columns.
        for batch in rows.to_batches(max_chunksize=1024):
            for row in json_rows(batch):
                yield {"partition": partition, "row": row}


def _entries(reader: CheckpointReader, name: str, partitions: Sequence[int]) -> Iterator[schemas.Record]:
    for partition in partitions:
        for key, value in run_sync(living_entries(reader, name, partition)).items():
            yield {"partition": partition, "key": to_json(key), "value": to_json(unpack(value))}


def _artifacts(reader: CheckpointReader, name: str, partitions: Sequence[int]) -> Iterator[schemas.Record]:
    for partition in partitions:
        chain = reader.operator(name).chains[partition]
        for artifact, data in zip(chain, run_sync(reader.partition(name, partition)), strict=True):
            try:
                yield {"partition": partition, "kind": artifact.kind, "text": data.decode()}
            except UnicodeDecodeError:
                yield {"partition": partition, "kind": artifact.kind, "base64": b64encode(data).decode()}
