"""Programs of users that `make lint` checks: mypy reads this file, and no test runs it.

An expectation that does not hold is an error: `assert_type`, and a `type: ignore` that nothing needs.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, assert_type

import pyarrow as pa
from pyspark.sql import DataFrame

from pyspark_checkpointer.spark import State, stateful

if TYPE_CHECKING:
    from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, CleanupPlan, RetentionPolicy
    from pyspark_checkpointer import Chekpointer as Misspelt  # type: ignore[attr-defined]  # noqa: F401

    def names(a: AsyncCheckpointer, b: Checkpointer, c: CleanupPlan, d: RetentionPolicy) -> None:
        assert_type(b.plan(d), CleanupPlan)


def rows_of(rows: pa.Table, state: pa.Table) -> pa.Table:
    return rows


def row_of(key: tuple[Any, ...], rows: list[dict[str, Any]], row: dict[str, Any] | None) -> Mapping[str, Any]:
    return {"n": len(rows)}


@stateful("state/typed")
def update(batch: DataFrame, batch_id: int, state: State) -> None:
    table = state.table("totals", ["key"])
    assert_type(table.apply(batch, rows_of, "key long"), DataFrame)
    assert_type(table.apply_groups(batch, row_of, "key long"), DataFrame)
    assert_type(table.first_seen(batch), DataFrame)
    table.apply(batch, rows_of)
    table.apply_groups(batch, row_of)
