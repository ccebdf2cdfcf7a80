"""Call a user's function, with frames of many keys or with the rows of one key.

Both ways return the same type. So `apply.py` is the only place that checks the results.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.table import conform, large_rows, merge, python_values, row_order
from pyspark_checkpointer.table.change import Change
from pyspark_checkpointer.table.frames import Frames, from_arrow, joined, to_arrow
from pyspark_checkpointer.table.key_floats import canonical
from pyspark_checkpointer.table.plain_values import plain_row
from pyspark_checkpointer.table.schema import PARTITION

GroupRows = Literal["rows"] | Frames
"""The kind of rows that a function of one key is given: "rows" is a list of dicts."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one call: a row for each key, with its partition.

    `starts` has the index of the first row of each key.
    """

    names: list[str]
    rows: pa.Table
    starts: Any

    @classmethod
    def of(cls, rows: pa.Table, names: list[str]) -> "Keys":
        """Return the keys of rows. The rows of one key must be next to each other."""
        starts = row_order.key_starts(rows, names)
        return cls(names, rows.select([*names, PARTITION]).take(pa.array(starts)), starts)

    def positions(self, rows: pa.Table) -> Any:
        """Return the index of each row's key, or -1 where it is none of these."""
        return merge.row_positions(rows, self.rows, self.names)

    def __str__(self) -> str:
        first = row_order.show_key(self.rows, self.names, 0)
        more = self.rows.num_rows - 1
        return f"{first} and {more} more key{'s' if more > 1 else ''}" if more else first


class Returned(NamedTuple):
    """The rows that the function returned, as Arrow rows in its own types.

    There may be several parts, each with columns of its own.
    """

    upserts: list[pa.Table]
    deletes: list[pa.Table]
    output: list[pa.Table]


class UserFunctionError(Exception):
    """An error of a user's function, with the key. Its cause is the error itself.

    It is no `CheckpointError`, so a task fails with it and does not report it as a refusal. It is also raised for
    errors that are no `Exception`, such as a cancellation or a panic of a package in Rust. Such an error would end the
    worker or its thread, and nobody would know why.
    """

    def __init__(self, what: str, key: str, error: BaseException) -> None:
        super().__init__(f"{what} raised {type(error).__name__} when it was called for {key}: {error}")


@dataclass(frozen=True, slots=True)
class FrameCall:
    """A function that is called with the rows and the state of many keys.

    It is called as `function(rows, state)`. `what` names the function in errors. `stored` and `output` have the types
    of the table's columns and of the emitted ones.
    """

    what: str
    function: Callable[[Any, Any], Any]
    frames: Frames
    stored: pa.Schema
    output: pa.Schema

    def __call__(self, keys: Keys, rows: pa.Table, state: pa.Table) -> Returned:
        try:
            given = self._call(rows, state)
        except BaseException as error:
            raise UserFunctionError(self.what, self._culprit(keys, rows, state, error), error) from error
        if given is None:
            raise IllegalArgumentError(
                f"{self.what} returned None for {keys}: return the rows to upsert, or a Change (Change() changes "
                "nothing)"
            )
        change = given if isinstance(given, Change) else Change(upserts=given)
        return Returned(
            self._frame("upserts", change.upserts, self.stored),
            self._frame("deletes", change.deletes, self.stored),
            self._frame("output", change.output, self.output),
        )

    def _call(self, rows: pa.Table, state: pa.Table) -> Any:
        return self.function(from_arrow(rows, self.frames), from_arrow(state, self.frames))

    def _frame(self, part: str, given: Any, wanted: pa.Schema) -> list[pa.Table]:
        if given is None:
            return []
        try:
            rows = to_arrow(given, wanted)
        except Exception as error:  # Each kind of frame has errors of its own.
            raise IllegalArgumentError(f"{self.what} returned {part} that Arrow cannot hold: {error}") from None
        if rows is None:
            raise IllegalArgumentError(
                f"{self.what} returned {type(given).__qualname__} as {part}: expected a pyarrow Table, a pandas or "
                "polars DataFrame, or a Change with these"
            )
        return [rows]

    def _culprit(self, keys: Keys, rows: pa.Table, state: pa.Table, error: BaseException) -> str:
        """Return a key, as text, whose rows alone make the function fail alike.

        Returns all keys where no half of them does. The function is called about twice for each halving.
        """
        of_state = keys.positions(state)
        ends = [*keys.starts.tolist(), rows.num_rows]
        low, high = 0, len(keys.starts)

        def fails(first: int, last: int) -> bool:
            own = rows.slice(ends[first], ends[last] - ends[first])
            below = state.take(pa.array(np.flatnonzero((of_state >= first) & (of_state < last))))
            try:
                self._call(own, below)
            except BaseException as found:
                return _same_failure(found, error)
            return False

        while high - low > 1:
            middle = (low + high) // 2
            if fails(low, middle):
                high = middle
            elif fails(middle, high):
                low = middle
            else:
                break
        return str(Keys(keys.names, keys.rows.slice(low, high - low), keys.starts[low:high]))


def _same_failure(one: BaseException, other: BaseException) -> bool:
    """Return whether two errors are equal but for numbers.

    A message may say how many rows there were.
    """
    said, also = (re.sub(r"\d+", "0", str(error)) for error in (one, other))
    return type(one) is type(other) and said == also


@dataclass(slots=True)
class _Collected:
    """The results of the calls for single keys so far, with the index of each key."""

    upserts: dict[tuple[str, ...], list[tuple[int, Mapping[str, Any]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """The rows by their columns. Columns that a row does not have keep their values, so rows with other columns are
    kept apart.
    """
    deletes: list[int] = field(default_factory=list)
    emitted: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    frames: list[pa.Table] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GroupCall:
    """A function that is called once for each key: `function(key, rows, row)`.

    `row` is the state of the key as a dict, or None. `stored` and `output` have the types of the table's columns and of
    the emitted ones.
    """

    what: str
    function: Callable[[tuple[Any, ...], Any, dict[str, Any] | None], Any]
    rows_as: GroupRows
    stored: pa.Schema
    output: pa.Schema

    def __call__(self, keys: Keys, rows: pa.Table, state: pa.Table) -> Returned:
        below = dict(zip(keys.positions(state).tolist(), self._python_rows(keys, state), strict=True))
        values = [tuple(row.values()) for row in self._python_rows(keys, keys.rows.select(keys.names))]
        collected = _Collected()
        for number, (key, own) in enumerate(zip(values, self._groups(keys, rows), strict=True)):
            try:
                given = self.function(key, own, below.get(number))
            except BaseException as error:
                raise UserFunctionError(self.what, self._show(keys, number), error) from error
            self._collect(collected, keys, number, given)
        return self._returned(collected, keys)

    def _groups(self, keys: Keys, rows: pa.Table) -> Iterator[Any]:
        ends = [*keys.starts.tolist(), rows.num_rows]
        # All rows at once: converting them key by key takes several times as long.
        found: Any = self._python_rows(keys, rows) if self.rows_as == "rows" else None
        for start, end in pairwise(ends):
            if self.rows_as == "rows":
                yield found[start:end]
            else:
                yield from_arrow(rows.slice(start, end - start), self.rows_as)

    def _python_rows(self, keys: Keys, rows: pa.Table) -> list[dict[str, Any]]:
        return python_values.python_rows(
            self.what, rows, keys.names, 'use `apply` with frames="arrow", which has all values'
        )

    def _collect(self, collected: _Collected, keys: Keys, number: int, given: Any) -> None:
        change = given if isinstance(given, Change) else Change(upserts=given)

        def refused(said: str) -> IllegalArgumentError:
            return IllegalArgumentError(f"{self.what} for {self._show(keys, number)}: {said}")

        if change.upserts is not None:
            if not isinstance(change.upserts, Mapping):
                raise refused(
                    f"returned {type(change.upserts).__qualname__}: expected a dict of columns to upsert, a Change, or "
                    "None to change nothing"
                )
            columns = tuple(change.upserts)
            if columns not in collected.upserts and not all(isinstance(name, str) for name in columns):
                raise refused("returned a dict with names that are no text")
            collected.upserts[columns].append((number, plain_row(change.upserts)))
        # numpy's booleans too: comparing values of numpy gives them.
        if not (change.deletes is None or isinstance(change.deletes, bool | np.bool_)):
            raise refused(f"deletes={change.deletes!r:.40}: expected True or None")
        if change.deletes:
            collected.deletes.append(number)
        if change.output is None:
            return
        # An empty text has no rows, and yet is no list of them.
        if _is_list(change.output) and all(isinstance(row, Mapping) for row in change.output):
            collected.emitted.extend((number, plain_row(row)) for row in change.output)
            return
        try:
            frame = to_arrow(change.output, self.output)
        except Exception as error:  # Each kind of frame has errors of its own.
            raise refused(f"output that Arrow cannot hold: {error}") from None
        if frame is None:
            raise refused(f"output is {type(change.output).__qualname__}: expected a list of dicts, or a frame")
        # The function may fill the same arrays anew for the next key.
        collected.frames.append(large_rows.copied(frame))

    def _returned(self, collected: _Collected, keys: Keys) -> Returned:
        upserts = []
        for columns, some in collected.upserts.items():
            made = self._table(keys, "", columns, some, self.stored)
            numbers = pa.array([number for number, _ in some], pa.int64())
            upserts.append(self._with_own_keys(keys, numbers, made))
        deletes = [keys.rows.select(keys.names).take(pa.array(collected.deletes, pa.int64()))]
        output = joined(collected.frames)
        if collected.emitted:
            columns = tuple(dict.fromkeys(name for _, row in collected.emitted for name in row))
            if other := [name for name in columns if not isinstance(name, str)]:
                number = next(number for number, row in collected.emitted if other[0] in row)
                raise IllegalArgumentError(
                    f"{self.what} for {self._show(keys, number)}: output has names that are no text"
                )
            output.append(self._table(keys, ": output", columns, collected.emitted, self.output))
        return Returned(upserts, deletes, output)

    def _table(
        self,
        keys: Keys,
        part: str,
        columns: Sequence[str],
        rows: Sequence[tuple[int, Mapping[str, Any]]],
        known: pa.Schema,
    ) -> pa.Table:
        """Return rows as Arrow, in the types of the known columns.

        Each row comes with the index of its key. An unknown column has no type and no values. Its name is refused
        later, in an error with the known names.
        """
        wanted = pa.schema([known.field(name) for name in columns if name in known.names])
        try:
            made = conform.table_of(self.what + part, [row for _, row in rows], wanted)
        except IllegalArgumentError:
            # All at once is faster. Only after an error is it worth the time to find the row, and so the key.
            for number, row in rows:
                conform.table_of(f"{self.what} for {self._show(keys, number)}{part}", [row], wanted)
            raise
        unknown = {name: pa.nulls(len(rows)) for name in columns if name not in known.names}
        return pa.table({name: made[name] for name in made.column_names} | unknown)

    def _with_own_keys(self, keys: Keys, numbers: pa.Array, made: pa.Table) -> pa.Table:
        """Return the rows with the key columns of their groups.

        Raises `IllegalArgumentError` where the function gave a row another key.
        """
        own = keys.rows.select(keys.names).take(numbers)
        given = {name: canonical(made[name]) if name in keys.names else made[name] for name in made.column_names}
        # The function may return no column at all, and then `made` has no rows either.
        made = pa.table({name: own[name] for name in keys.names} | given)
        other = np.flatnonzero(keys.positions(made) != numbers.to_numpy())
        if len(other):
            raise IllegalArgumentError(
                f"{self.what} for {self._show(keys, numbers[other[0]].as_py())}: returned a row of "
                f"{row_order.show_key(made, keys.names, int(other[0]))}: leave the key out, or return it as it came"
            )
        return made

    @staticmethod
    def _show(keys: Keys, number: int) -> str:
        return row_order.show_key(keys.rows, keys.names, number)


def _is_list(given: Any) -> bool:
    # Nearly all are lists, and the other tests take longer than the rest of what is done with a row.
    return isinstance(given, list) or (isinstance(given, Sequence) and not isinstance(given, str | bytes))


__all__ = ["FrameCall", "GroupCall", "GroupRows", "Keys", "Returned", "UserFunctionError"]
