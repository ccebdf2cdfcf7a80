"""Find the partitions of a table that a checkpoint may have changed.

The change feed reads only these.

manifests of a checkpoint and its parent → partitions that may differ → (`feed_reader`) changes in order of key

Invariant: take the table of the first parent, and apply all changes in order, by key and by the names of columns. The
result is the table of the last checkpoint, in the columns shown (`shown_columns`). So there is an update wherever a
value is removed, also if its column was dropped and added again, or has a type that cannot be shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import CheckpointId, Json, Manifest
from pyspark_checkpointer.table.large_rows import runs
from pyspark_checkpointer.table.row_times import Time, time_of
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.shown_columns import (
    key_columns_change,
    shows_others,
    unshown,
    version_in,
    version_shown,
)
from pyspark_checkpointer.table.version import TableVersion

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE, EXPIRE = "insert", "update_before", "update_after", "delete", "expire"

ROW_CHANGE = "__change"
"""The column of the kind of change. No column of a table can have its name."""


TOGETHER_BYTES = 256 << 20
"""Decoded bytes of partitions, before and after, that are compared together although they have no key in common."""


@dataclass(frozen=True, slots=True)
class FeedStep:
    """A table in a checkpoint and in its parent.

    Both have the columns to show, by name, where they have them at all. `groups` are partitions that are compared
    together. `parent` is None before the first checkpoint.
    """

    parent: CheckpointId | None
    checkpoint: CheckpointId
    epoch: int | None
    before: TableVersion
    after: TableVersion
    groups: tuple[tuple[int, ...], ...]
    shows_others: bool = False
    """True if columns were dropped, added again or renamed meanwhile, so that unchanged objects read differently."""
    unshown: tuple[tuple[str, str | None], ...] = ()
    """Columns of `before` whose values cannot be shown, each with the column of `after` that has the same values."""

    def only(self, groups: Sequence[tuple[int, ...]]) -> "FeedStep":
        """Return the step with some groups alone, which is what one task needs."""
        numbers = [partition for group in groups for partition in group]
        return replace(self, before=self.before.only(numbers), after=self.after.only(numbers), groups=tuple(groups))

    def sizes(self) -> dict[int, int]:
        """Return the stored bytes that each group is about worth, by its index."""
        before, after = self.before.sizes(), self.after.sizes()
        return {i: sum(before.get(p, 0) + after.get(p, 0) for p in g) for i, g in enumerate(self.groups)}


def feed_steps(
    name: str, parent: Manifest | None, manifests: Sequence[Manifest], shown: TableSchema
) -> Iterator[FeedStep]:
    """Return the step to compare for each checkpoint, oldest first.

    `parent` is the one before the first, if any. Raises `IllegalArgumentError` where the key of the table is another
    one in one of them.
    """
    # At once, and not with the first step.
    if (change := key_columns_change(name, parent, manifests, shown)) is not None:
        older = [] if change.schema is None else [f"the older changes with to={str(change.last)!r}"]
        since = "the newer ones" if older else "the changes since"
        newer = [] if change.first is None else [f"{since} with after={str(change.first)!r}"]
        raise IllegalArgumentError(f"{change.describe(name, shown)}: read {', and '.join(older + newer)}")
    return _steps(name, parent, manifests, shown)


def _steps(name: str, parent: Manifest | None, manifests: Sequence[Manifest], shown: TableSchema) -> Iterator[FeedStep]:
    for manifest in manifests:
        before, after = version_in(name, parent), version_in(name, manifest)
        # Where one side has no rows, all rows of the other one are the changes.
        others = bool(before and after and before.chains and after.chains and shows_others(before, after, shown.names))
        groups = [*_groups(before, after, others)]
        if groups:
            times = [time_of(before), time_of(after)]
            old_side, new_side = (
                None if side is None else version_shown(side, shown, times) for side in (before, after)
            )
            yield FeedStep(
                None if parent is None else parent.id,
                manifest.id,
                manifest.epoch,
                old_side or _nothing(new_side),
                new_side or _nothing(old_side),
                tuple(groups),
                others,
                unshown(before, after, shown),
            )
        parent = manifest


def starting_step(name: str, manifest: Manifest, shown: TableSchema) -> FeedStep | None:
    """Return the step from nothing to a checkpoint; None if it has no such table."""
    version = version_in(name, manifest)
    if version is None:
        return None
    after = version_shown(version, shown, [time_of(version)])
    groups = tuple((number,) for number in sorted(version.chains))
    return FeedStep(None, manifest.id, manifest.epoch, _nothing(after), after, groups)


def _nothing(other: TableVersion | None) -> TableVersion:
    """Return a version without rows beside another one."""
    assert other is not None  # a step has groups only where one side has partitions
    return replace(other, chains={}, schema=replace(other.schema, expire=None), expired_until=None)


def _groups(before: TableVersion | None, after: TableVersion | None, others: bool) -> Iterator[tuple[int, ...]]:
    """Yield the groups of partitions that may differ.

    The partitions of one group are compared together.
    """
    old, new = before.chains if before else {}, after.chains if after else {}
    numbers = sorted({*old, *new})
    if before and after and old and new and layout(before) != layout(after):
        yield from _moved_groups(before, after, numbers)
        return
    # Without a change of its chain a partition may hold other rows and values: those that have expired since, or, after
    # a rollback, those that came back.
    differs = others or bool(old and new and limit_of(before) != limit_of(after))
    yield from ((number,) for number in numbers if differs or old.get(number) != new.get(number))


def _moved_groups(before: TableVersion, after: TableVersion, numbers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield groups of partitions where keys moved from one partition to another.

    Partitions that may have a key in common are in one group. Small groups come together, since partitions of one group
    fetch an object that they share once.
    """
    (old_count, old_key), (new_count, new_key) = layout(before), layout(after)
    # A partition is the hash of the key modulo their count, so the old and the new one of a key are equal modulo each
    # common divisor of both counts. Keys of another type have other hashes.
    divisor = gcd(old_count, new_count) if old_key == new_key else 1
    by_residue: dict[int, list[int]] = {}
    for number in numbers:
        by_residue.setdefault(number % divisor, []).append(number)

    def size(residue: int) -> int:
        chains = (side.chains.get(number, ()) for number in by_residue[residue] for side in (before, after))
        return sum(artifact.raw_size for chain in chains for artifact in chain)

    for run in runs(sorted(by_residue), size, TOGETHER_BYTES):
        yield tuple(sorted(number for residue in run for number in by_residue[residue]))


def layout(version: TableVersion) -> tuple[int, list[tuple[str, Json]]]:
    """Return the values that decide in which partition a key is.

    They are the number of partitions, and the columns that are hashed.
    """
    return version.partitions, [(column.name, column.type) for column in version.schema.key_columns]


def limit_of(version: TableVersion | None) -> tuple[Time | None, int | None] | None:
    """Return the time column of a version and the time until which rows are expired.

    Returns None without a version.
    """
    return None if version is None else (time_of(version), version.expired_until)


def is_forward(before: TableVersion, after: TableVersion) -> bool:
    """Return whether all rows of unchanged objects live in `before` too.

    Only rows that live in `after` count. After a rollback the clock may be an earlier one, or the rule may differ.
    """
    if before.expired_until is None:
        return True
    if after.expired_until is None or time_of(before) != time_of(after):
        return False
    return after.expired_until >= before.expired_until


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
    "layout",
    "limit_of",
    "starting_step",
]
