"""Find out which partitions a checkpoint may have changed in a table, for the change feed.

manifests of a checkpoint and its parent → partitions that may differ → (`feed_reader`) changes in order of key
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import CheckpointId, Json, Manifest
from pyspark_checkpointer.table.schema import Column, TableSchema
from pyspark_checkpointer.table.types import is_wider
from pyspark_checkpointer.table.version import TableVersion

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE, EXPIRE = "insert", "update_before", "update_after", "delete", "expire"

ROW_CHANGE = "__change"
"""The column of the kind of change. No column of a table can have its name."""


@dataclass(frozen=True, slots=True)
class FeedStep:
    """A table in a checkpoint and in its parent, both with the columns of the newest schema where they have them.

    `groups` are partitions whose keys have to be compared together. `parent` is None before the first checkpoint.
    """

    parent: CheckpointId | None
    checkpoint: CheckpointId
    epoch: int | None
    before: TableVersion
    after: TableVersion
    groups: tuple[tuple[int, ...], ...]

    def only(self, groups: Sequence[tuple[int, ...]]) -> "FeedStep":
        """Return the step with some groups alone, which is what one task needs."""
        numbers = [partition for group in groups for partition in group]
        return replace(self, before=self.before.only(numbers), after=self.after.only(numbers), groups=tuple(groups))

    def sizes(self) -> dict[int, int]:
        """Return the stored bytes that each group is about worth, by its index."""
        before, after = self.before.sizes(), self.after.sizes()
        return {i: sum(before.get(p, 0) + after.get(p, 0) for p in g) for i, g in enumerate(self.groups)}


def newest_schema(name: str, parent: Manifest | None, manifests: Sequence[Manifest]) -> TableSchema | None:
    """Return the schema of the newest of some checkpoints that has the table; None where none has it."""
    for manifest in (*reversed(manifests), parent):
        if manifest is not None and name in manifest.operators:
            return TableVersion.of(name, manifest.operators[name], manifest.clock).schema
    return None


def feed_steps(
    name: str, parent: Manifest | None, manifests: Sequence[Manifest], shown: TableSchema
) -> Iterator[FeedStep]:
    """Yield what has to be compared for each checkpoint, oldest first.

    `parent` is the one before the first, if any. Raises `IllegalArgumentError` where the key of the table is another
    one in one of them.
    """
    for manifest in manifests:
        before, after = _version(name, parent), _version(name, manifest)
        groups = [*_groups(before, after, shown)]
        if groups:
            times = [time_of(before), time_of(after)]
            old, new = (None if side is None else version_shown(side, shown, times) for side in (before, after))
            yield FeedStep(
                None if parent is None else parent.id,
                manifest.id,
                manifest.epoch,
                old or _nothing(new),
                new or _nothing(old),
                tuple(groups),
            )
        parent = manifest


def starting_step(name: str, manifest: Manifest, shown: TableSchema) -> FeedStep | None:
    """Return the step from nothing to what a checkpoint has; None where it has no such table."""
    version = _version(name, manifest)
    if version is None:
        return None
    after = version_shown(version, shown, [time_of(version)])
    groups = tuple((number,) for number in sorted(version.chains))
    return FeedStep(None, manifest.id, manifest.epoch, _nothing(after), after, groups)


def _version(name: str, manifest: Manifest | None) -> TableVersion | None:
    operator = None if manifest is None else manifest.operators.get(name)
    return None if operator is None or manifest is None else TableVersion.of(name, operator, manifest.clock)


def _nothing(other: TableVersion | None) -> TableVersion:
    """Return a version without rows beside another one."""
    assert other is not None  # a step has groups only where one side has partitions
    return replace(other, chains={}, schema=replace(other.schema, expire=None), expired_until=None)


def _groups(before: TableVersion | None, after: TableVersion | None, shown: TableSchema) -> Iterator[tuple[int, ...]]:
    """Yield partitions whose keys have to be compared together, and only those that may differ."""
    old, new = before.chains if before else {}, after.chains if after else {}
    numbers = sorted({*old, *new})
    if old and new and _layout(before) != _layout(after):
        # A key is in another partition than before, so nothing less than all can be compared.
        yield tuple(numbers)
        return
    # Without a change of its chain a partition may hold other rows and values: those that have expired since, or, after
    # a rollback, those that came back.
    differs = bool(old and new) and (limit_of(before) != limit_of(after) or shows_others(before, after, shown))
    yield from ((number,) for number in numbers if differs or old.get(number) != new.get(number))


def _layout(version: TableVersion | None) -> object:
    assert version is not None
    return version.partitions, [(c.id, c.name, c.type) for c in version.schema.columns if c.role == "key"]


def limit_of(version: TableVersion | None) -> object:
    return None if version is None else (time_of(version), version.expired_until)


def shows_others(before: TableVersion | None, after: TableVersion | None, shown: TableSchema) -> bool:
    """Return whether unchanged objects have other values, of columns that went or came back.

    A column that is new has none in them.
    """
    assert before is not None
    assert after is not None
    old, new = ({column.id for column in side.schema.columns if _is_shown(column, shown)} for side in (before, after))
    return bool(old - new) or any(number < before.schema.next_id for number in new - old)


def is_forward(before: TableVersion, after: TableVersion) -> bool:
    """Return whether all rows of unchanged objects that live in `after` live in `before`.

    After a rollback the clock may be an earlier one, or the rule another.
    """
    if before.expired_until is None:
        return True
    if after.expired_until is None or time_of(before) != time_of(after):
        return False
    return after.expired_until >= before.expired_until


Time = tuple[int, str, Json]
"""The id, name and type of a column by which rows expire. The id alone may be that of another column by now: a table
that was dropped and made again begins with the first id again."""


def time_of(version: TableVersion | None) -> Time | None:
    """Return the column by which rows of a version expire."""
    rule = None if version is None else version.schema.expire
    if version is None or rule is None:
        return None
    return next(_time(column) for column in version.schema.columns if column.name == rule.column)


def _time(column: Column) -> Time:
    return column.id, column.name, column.type


def time_column(schema: TableSchema, time: Time | None) -> str | None:
    """Return the name of a column by which rows of a version expire, if a schema has the same one."""
    return next((column.name for column in schema.columns if _time(column) == time), None)


def version_shown(version: TableVersion, shown: TableSchema, times: Sequence[Time | None]) -> TableVersion:
    """Return a version with the columns to show, in their newest types, and those columns of times that it needs.

    A column is the same one if it has the same id and name: an operator that was dropped and made again begins with the
    first id again.
    """
    newest, columns = {column.id: column for column in shown.columns}, []
    names = {}
    for column in version.schema.columns:
        if _is_shown(column, shown):
            columns.append(replace(newest[column.id], role=column.role))
        elif _time(column) in times:
            # It is read, and not shown; another column that is shown may have its name by now.
            names[column.name] = _hidden(column, shown)
            columns.append(replace(column, name=names[column.name]))
    if [c.name for c in columns if c.role == "key"] != shown.key:
        raise IllegalArgumentError(
            f"table {version.name!r}: its keys differ: {version.schema} and {shown}: read the changes of each by "
            "themselves, with after= and to="
        )
    rule = version.schema.expire
    rule = None if rule is None else replace(rule, column=names.get(rule.column, rule.column))
    return replace(version, schema=TableSchema(tuple(columns), version.schema.next_id, rule))


def _is_shown(column: Column, shown: TableSchema) -> bool:
    now = next((other for other in shown.columns if other.id == column.id), None)
    if now is None or now.name != column.name:
        return False
    return now.type == column.type or is_wider(column.type, now.type)


def _hidden(column: Column, shown: TableSchema) -> str:
    # The id tells apart two columns of one version. The name tells apart two columns of one id.
    name = f"__time_{column.id}_{column.name}"
    while name in shown.names:
        name += "_"
    return name


__all__ = [
    "DELETE",
    "EXPIRE",
    "INSERT",
    "ROW_CHANGE",
    "UPDATE_AFTER",
    "UPDATE_BEFORE",
    "FeedStep",
    "feed_steps",
    "is_forward",
    "limit_of",
    "newest_schema",
    "shows_others",
    "starting_step",
    "time_column",
    "time_of",
    "version_shown",
]
