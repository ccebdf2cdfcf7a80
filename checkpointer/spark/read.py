"""Read tables of live checkpoints as DataFrames.

`difference.py` reads what differs between two of them.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.errors import OperatorNotFoundError, StoreNotFoundError
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.spark.arguments import check_frame
from pyspark_checkpointer.spark.interpreter import use_driver_python
from pyspark_checkpointer.spark.scan import lookup, scan
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption
from pyspark_checkpointer.table.version import TableVersion

Root = str | os.PathLike[str]


def read_state(
    spark: SparkSession,
    root: Root,
    operator: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    id: CheckpointId | str | None = None,
    epoch: int | None = None,
    savepoint: str | None = None,
    columns: Sequence[str] | None = None,
    keys: DataFrame | None = None,
    fencing: Fencing = "required",
    encryption: EncryptionOption = None,
    signing: SigningOption = None,
) -> DataFrame:
    """Return the rows of a table of one checkpoint.

    It is the last checkpoint, or a live one by id, epoch or savepoint. The DataFrame is pinned to that checkpoint.

    Args:
        spark: The session.
        root: The root: a folder or a URL.
        operator: The name of the table.
        storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
        id: A live checkpoint in any form that `Checkpointer.restore` takes, such as "at=2024-01-02T06:00Z".
        epoch: The newest checkpoint of this epoch, Spark's batch id.
        savepoint: The checkpoint that has this name.
        columns: The columns to read; by default all.
        keys: Rows with the key columns: only rows with these keys are returned, and only partitions and row groups that
            may hold them are read.
        fencing: As in `Checkpointer`.
        encryption: As in `Checkpointer`.
        signing: As in `Checkpointer`.

    Raises:
        StoreNotFoundError: No checkpoint was committed there.
        OperatorNotFoundError: The checkpoint has no table of this name. The message names those it has.
        CheckpointNotFoundError: No live checkpoint has this id or epoch.

    Examples:
        >>> read_state(spark, "state/shop", "totals").orderBy("digit").collect()
        [Row(digit=0, n=5), Row(digit=1, n=5)]
    """
    use_driver_python(spark)
    if keys is not None:
        check_frame(f"read_state() of {operator!r}: keys", keys)
    client = Checkpointer(root, storage_options, fencing=fencing, encryption=encryption, signing=signing)
    restored = restore(client, id, epoch, savepoint)
    version = version_of(restored, operator)
    if keys is None:
        return scan(spark, client, restored.id, version, columns)
    return lookup(spark, client, restored.id, version, keys, columns)


def restore(
    client: Checkpointer,
    id: CheckpointId | str | None,
    epoch: int | None = None,
    savepoint: str | None = None,
) -> Restored:
    """Return a checkpoint as `Checkpointer.restore` does.

    Raises `StoreNotFoundError` where there is none.
    """
    restored = client.restore(id, epoch=epoch, savepoint=savepoint)
    if restored is None or restored.manifest is None:
        raise StoreNotFoundError(f"{client.root}: no checkpoint was committed there")
    return restored


def version_of(restored: Restored, operator: str) -> TableVersion:
    """Return the version of a table in a checkpoint.

    Raises `OperatorNotFoundError` where the checkpoint has none.
    """
    assert restored.manifest is not None
    found = restored.manifest.operators.get(operator)
    if found is None:
        names = ", ".join(sorted(restored.manifest.operators)) or "none"
        raise OperatorNotFoundError(f"operator {operator!r}: {restored.id} has {names}")
    return TableVersion.of(operator, found, restored.manifest.clock)
