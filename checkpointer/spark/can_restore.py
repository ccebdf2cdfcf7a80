"""Check whether a new version of a job can go on from the stored tables.

The check comes before the new version is deployed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError
from pyspark_checkpointer.spark.arguments import check_combine, check_key_columns, check_num_partitions, check_schema
from pyspark_checkpointer.spark.read import Root, version_of
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption
from pyspark_checkpointer.table.schema import Combine
from pyspark_checkpointer.table.schema_evolution import extended_schema, first_schema, needs_rescale
from pyspark_checkpointer.table.types import show_type


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The answer of `can_restore`: true if the table can be used.

    Args:
        changes: What the first upsert will change, one sentence each.
        reason: Why the table cannot be used; empty if it can.

    Examples:
        >>> str(Compatibility())
        'nothing changes'
        >>> bool(Compatibility(reason="column 'n': a string cannot become a long"))
        False
    """

    changes: tuple[str, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        return self.reason or "; ".join(self.changes) or "nothing changes"


def can_restore(
    root: Root,
    operator: str,
    *,
    schema: StructType | str,
    key: Sequence[str] | None = None,
    combine: Mapping[str, Combine] | None = None,
    num_partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fencing: Fencing = "required",
    encryption: EncryptionOption = None,
    signing: SigningOption = None,
) -> Compatibility:
    """Return whether a job that upserts rows of a schema can go on.

    It would go on from the last checkpoint. This is for CI, before a deploy.

    Args:
        root: The root: a folder or a URL. A root that cannot be read raises.
        operator: The name of the table.
        schema: The columns of the rows: a `StructType`, which needs no Spark session, or text such as
            "user string, n long", which only Spark can parse. Columns of the table that it lacks keep their values.
        key: The key of `state.table`; by default as it was.
        combine: The rules of `state.table`; by default as they were.
        num_partitions: The number of partitions of `state.table`; by default as it was.
        storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
        fencing: As in `Checkpointer`.
        encryption: As in `Checkpointer`.
        signing: As in `Checkpointer`.

    Returns:
        The answer: true if the job can go on, with the reason if it cannot. Of an empty root it says that the table is
        created: look at its `changes` where the root must exist.

    Raises:
        IllegalArgumentError: An argument is not what it must be, the text of `schema` cannot be parsed without a Spark
            session, or the table does not exist yet and `key` is missing.
        StoreNotFoundError: There is no such bucket or container.

    Examples:
        >>> from pyspark.sql.types import StructType
        >>> answer = can_restore("state/shop", "totals", schema=StructType().add("digit", "long").add("n", "string"))
        >>> bool(answer)
        False
    """
    fields = [field.jsonValue() for field in check_schema(f"table {operator!r}: schema", schema).fields]
    if key is not None:
        key = check_key_columns(operator, key)
    if combine is not None:
        combine = check_combine(operator, combine)
    if num_partitions is not None:
        check_num_partitions(f"table {operator!r}", num_partitions)
    restored = Checkpointer(root, storage_options, fencing=fencing, encryption=encryption, signing=signing).restore()
    known = restored.manifest.operators.get(operator) if restored and restored.manifest else None
    if restored is None or known is None:
        # Only a table that exists has a key to go on with.
        if key is None:
            raise IllegalArgumentError(f"table {operator!r}: it does not exist yet: give its key")
        # Called only to see whether such a table would be refused.
        try:
            first_schema(operator, fields, key, combine or {})
        except CheckpointError as error:
            return Compatibility(reason=str(error))
        return Compatibility((f"table {operator!r} is created",))
    try:
        version = version_of(restored, operator)
    except IllegalArgumentError as error:  # The name is that of a map or of bytes.
        return Compatibility(reason=str(error))
    old = version.schema
    # What is left out stays as it was. Passed as nothing, every column would be compared with the role `last`.
    if combine is None:
        combine = {c.name: c.role for c in old.values if c.role != "last"}  # type: ignore[misc]
    try:
        new = extended_schema(operator, old, fields, list(old.key) if key is None else key, combine)
    except IllegalArgumentError as error:
        return Compatibility(reason=str(error))
    before, given = {c.id: c for c in old.columns}, {field["name"] for field in fields}
    changes = [f"column {c.name!r} is added" for c in new.columns if c.id not in before]
    changes += [f"column {c.name!r} keeps its values" for c in new.columns if c.name not in given]
    changes += [
        f"column {c.name!r} is widened from {show_type(before[c.id].type)} to {show_type(c.type)}"
        for c in new.columns
        if c.id in before and before[c.id].type != c.type
    ]
    # Another number of partitions moves every row anyway, whatever its hash is.
    if num_partitions not in (None, version.partitions):
        changes.append(f"every row moves: {version.partitions} partitions become {num_partitions}")
    elif needs_rescale(old, new):
        changes.append("every row moves: the hash of its key changes")
    return Compatibility(tuple(changes))
