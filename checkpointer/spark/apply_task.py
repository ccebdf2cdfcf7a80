"""Apply a user's function to rows and the state of their keys, in a task.

rows in order of partition and key → parts of whole keys → state of these keys → the function → one pack of changes
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer.checkpoint import upload
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.function_copy import copy_function
from pyspark_checkpointer.spark.scan import read_keys
from pyspark_checkpointer.spark.surroundings import surroundings
from pyspark_checkpointer.spark.task_client import DriverRoot
from pyspark_checkpointer.spark.write_tasks import Target, TaskOutput, run_task, stream
from pyspark_checkpointer.table import kept_columns, large_rows, merge, parquet_encode, row_order
from pyspark_checkpointer.table.apply import UserFunction
from pyspark_checkpointer.table.hashing import check_row_partitions
from pyspark_checkpointer.table.schema import CHANGE, DELETE, PARTITION
from pyspark_checkpointer.table.types import hold_the_same
from pyspark_checkpointer.table.user_calls import Keys
from pyspark_checkpointer.table.version import TableVersion

MAX_CALL_ROWS = 1 << 20
MAX_CALL_BYTES = 128 << 20
"""The most rows, and bytes of them, that a function is called with.

All rows of a key come in one call, so a single key may bring more.
"""

MAX_CALL_STATE_BYTES = 128 << 20
"""The most bytes of state, about, that a function is called with: wide rows of state come in more calls."""

MAX_HELD_BYTES = 128 << 20
"""Bytes of changes, or of emitted rows, that a task holds before it writes them."""


@dataclass(frozen=True, slots=True)
class ApplyTask:
    """The task that applies a function to some partitions of a table.

    It is given all rows of these partitions, in order of partition and key. `checkpoint` keeps the objects of `version`
    alive. The function sees this version, also if the task runs again.
    """

    target: Target
    checkpoint: CheckpointId | None
    version: TableVersion
    function: UserFunction

    @property
    def reads(self) -> TableVersion:
        """Return the version that the function sees."""
        return self.version

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield run_task(partial(self._apply, batches))

    def in_driver(self, root: DriverRoot) -> "ApplyTask":
        """Return the task as it works in the driver, with a copy of the user's function.

        Raises what `copy_function` raises.
        """
        return replace(self, target=replace(self.target, root=root), function=copy_function(self.function))

    def _apply(self, batches: Iterator[pa.RecordBatch]) -> TaskOutput:
        clock = self.target.root.open().session.host.clock
        begin, around = clock(), surroundings()  # The function may change them.
        output = self._applied(batches)
        output.surroundings = around
        output.seconds = (clock() - begin) / 1e9
        return output

    def _applied(self, batches: Iterator[pa.RecordBatch]) -> TaskOutput:
        with large_rows.explain_arrow_errors(self.target.table):
            made = _Made(self)
            key, most = self.version.schema.key, max(1, MAX_CALL_STATE_BYTES // max(1, self.version.row_bytes))
            for rows in whole_keys(batches, key):
                made.output.given_rows += rows.num_rows
                made.output.given_bytes += rows.nbytes
                made.output.applied |= set(rows[PARTITION].unique().to_pylist())
                for part in some_keys(rows, key, most):
                    made.take(*self._call(self._prepared(part)))
            return made.finish()

    def _call(self, rows: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        version = self.version
        keys = Keys.of(rows, version.schema.key)
        # In another partition than theirs, all of them would look new to the function.
        check_row_partitions(keys.rows, version.schema, version.partitions, version.name)
        state = pa.concat_tables(read_keys(self.target.root, self.checkpoint, self.version, keys.rows))
        found = self.function.apply(keys, rows.drop_columns([PARTITION]), state)
        changes = found.changes
        if self.version.schema.expire is not None:
            # A key without a living row may have an expired one.
            changes = merge.reset(changes, merge.row_positions(changes, state, self.version.schema.key) < 0)
        # In a partition without rows there is nothing to delete.
        known = pa.array(list(self.version.chains), pa.int32())
        useless = pc.and_(pc.equal(changes[CHANGE], DELETE), pc.invert(pc.is_in(changes[PARTITION], known)))
        return changes.filter(pc.invert(useless)), found.output

    def _prepared(self, rows: pa.Table) -> pa.Table:
        """Return rows whose keys have the types of the state.

        A function can then compare the two.
        """
        stored = {field.name: field.type for field in self.version.schema.arrow_key()}
        found = large_rows.cast(rows, lambda field: stored.get(field.name, _in_utc(field.type)))
        return pa.table(found.columns, names=found.column_names)  # nullable, as the columns of the state are


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the type that state has for times, at all depths.

    Spark gives times the time zone of its session. A type without such times stays as it is.
    """
    found = _nullable_in_utc(kind)
    return kind if hold_the_same(found, kind) else found


def _nullable_in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type whose times are in UTC, and whose parts may all be null.

    Arrow refuses to cast nulls of a struct to a type whose fields are never null.
    """
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC") if kind.tz else kind
    if pa.types.is_struct(kind):
        return pa.struct([_part_in_utc(field) for field in kind])
    if pa.types.is_map(kind):
        # Arrow has no maps whose keys may be null.
        return pa.map_(_part_in_utc(kind.key_field).with_nullable(False), _part_in_utc(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_part_in_utc(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_part_in_utc(kind.value_field))
    return kind


def _part_in_utc(field: pa.Field) -> pa.Field:
    return field.with_type(_nullable_in_utc(field.type)).with_nullable(True)


class _Made:
    """The changes and emitted rows of the calls of one task so far."""

    def __init__(self, task: ApplyTask) -> None:
        self._task = task
        self.output = TaskOutput()
        self._changes: list[pa.Table] = []
        self._emitted: list[pa.Table] = []
        self._written: set[int] = set()
        """Partitions of which something is written: what follows is a delta on top."""

    def take(self, changes: pa.Table, emitted: pa.Table | None) -> None:
        """Take the results of one call, and write the held results if they are large."""
        if changes.num_rows:
            self._changes.append(changes)
        if emitted is not None and emitted.num_rows:
            # A function may emit a slice of its rows. A copy lets the rest of them go.
            self._emitted.append(large_rows.copied(emitted))
        if _size(self._changes) > MAX_HELD_BYTES:
            self._write_changes()
        if _size(self._emitted) > MAX_HELD_BYTES:
            self._write_emitted()

    def finish(self) -> TaskOutput:
        """Write the rest, or leave it to the driver, and return the task's output."""
        target, output = self._task.target, self.output
        if self._changes and not output.packs and target.leaves_to_driver(_size(self._changes)):
            rows = self._held_changes()
            check_row_partitions(rows, target.schema, target.partitions, target.table)
            output.rows = stream(rows)
        elif self._changes:
            self._write_changes()
        if self._emitted and not output.emitted and target.leaves_to_driver(_size(self._emitted)):
            output.emitted.append(stream(pa.concat_tables(self._emitted)))
        elif self._emitted:
            self._write_emitted()
        return output

    def _held_changes(self) -> pa.Table:
        """Return the changes that are held, in order, and hold them no longer."""
        rows = kept_columns.concat(self._changes)
        self._changes.clear()
        # Calls come in Spark's order of keys, which differs from that of a pack: its nulls come first, for instance.
        return row_order.in_order(rows, self._task.version.schema.key)

    def _write_changes(self) -> None:
        rows = self._held_changes()
        numbers = set(rows[PARTITION].unique().to_pylist())
        # Of an empty table, the first rows of a partition may become a snapshot.
        whole = set[int]() if self._task.version.chains else numbers - self._written
        self._task.target.write(rows, whole, self.output)
        self._written |= numbers

    def _write_emitted(self) -> None:
        """Write emitted rows as an object that no manifest names.

        The driver removes it when the batch ends, and cleanup does if the driver cannot.
        """
        target, session = self._task.target, self._task.target.root.open().session
        encoded = parquet_encode.encode(pa.concat_tables(self._emitted))
        self._emitted.clear()
        path = object_paths.pack(target.table, target.owner, encoded.digest, codecs.PARQUET.name)
        run_sync(upload.put_once(session.store, path, encoded.data))
        self.output.written_by = target.root.executor
        self.output.emitted.append(path)


def _size(tables: list[pa.Table]) -> int:
    return sum(table.nbytes for table in tables)


def some_keys(rows: pa.Table, key: list[str], most: int) -> Iterator[pa.Table]:
    """Yield rows in parts of at most `most` keys, with all rows of each key.

    The rows of one key must be next to each other.
    """
    edges = (
        [*row_order.key_starts(rows, key)[::most].tolist(), rows.num_rows]
        if most < rows.num_rows
        else [0, rows.num_rows]
    )
    for start, end in pairwise(edges):
        yield rows.slice(start, end - start)


def whole_keys(batches: Iterator[pa.RecordBatch], key: list[str]) -> Iterator[pa.Table]:
    """Yield rows in parts that have all rows of their keys.

    Rows of one key stand together. A part has about `MAX_CALL_ROWS` rows or `MAX_CALL_BYTES` bytes at most, unless one
    key has more.
    """
    held: list[pa.RecordBatch] = []
    most_rows, most_bytes = MAX_CALL_ROWS, MAX_CALL_BYTES
    held_rows = held_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held.append(batch)
        held_rows, held_bytes = held_rows + batch.num_rows, held_bytes + batch.nbytes
        if held_rows < most_rows and held_bytes < most_bytes:
            continue
        rows = pa.Table.from_batches(held)
        # The last key may go on in the next batch.
        last = int(row_order.key_starts(rows, key)[-1])
        if last:
            yield rows.slice(0, last)
            held = rows.slice(last).to_batches()
            held_rows, held_bytes = rows.num_rows - last, sum(b.nbytes for b in held)
            most_rows, most_bytes = MAX_CALL_ROWS, MAX_CALL_BYTES
        else:
            # One key has all of these rows. Looking for its end in every batch would take quadratic time.
            most_rows, most_bytes = 2 * rows.num_rows, 2 * rows.nbytes
    if held:
        yield pa.Table.from_batches(held)


__all__ = ["ApplyTask", "some_keys", "whole_keys"]
