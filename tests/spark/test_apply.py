"""`table.apply` on real Spark: a function sees the rows and the state of its keys, and decides what becomes of them."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import Change, State, stateful
from tests.spark.conftest import Job
from tests.spark.tables import rows

SCHEMA = "key string, n long, total long"


def running(given: pa.Table, state: pa.Table) -> Change:
    """Count and sum, made from what was there, and the new totals as output."""
    new = given.group_by("key").aggregate([("amount", "count"), ("amount", "sum")])
    new = new.rename_columns(["key", "n", "total"])
    both = pa.concat_tables([new, state.select(["key", "n", "total"])])
    made = both.group_by("key").aggregate([("n", "sum"), ("total", "sum")]).rename_columns(["key", "n", "total"])
    return Change(upserts=made, output=made.select(["key", "total"]))


def running_of_one(key: tuple[Any, ...], given: list[dict[str, Any]], row: dict[str, Any] | None) -> Change:
    before = row or {"n": 0, "total": 0}
    made = {"n": before["n"] + len(given), "total": before["total"] + sum(one["amount"] for one in given)}
    return Change(upserts=made, output=[{"key": key[0], "total": made["total"]}])


@pytest.mark.parametrize("groups", [False, True])
def test_state_is_read_decided_on_and_written_in_one_call(job: Job, groups: bool) -> None:
    emitted: list[Any] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["key"], num_partitions=4, schema=SCHEMA)
        apply: Any = table.apply_groups if groups else table.apply
        output = apply(batch, running_of_one if groups else running, "key string, total long")
        emitted.append((rows(output), rows(output)))  # as often as wanted
        assert rows(table.lookup(batch.select("key").distinct())) == rows(table.read().join(batch, "key", "semi"))

    job.feed(("a", 1), ("b", 2), ("a", 4))
    job.feed(("a", 10), ("c", 7))
    job.run(update)
    job.feed(("c", 5))
    job.run(update)
    assert [one for one, _ in emitted] == [[("a", 5), ("b", 2)], [("a", 15), ("c", 7)], [("c", 12)]]
    assert [two for _, two in emitted] == [one for one, _ in emitted]
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    found = restored.table("t").sort_by("key").to_pylist()
    assert [tuple(row.values()) for row in found] == [("a", 3, 15), ("b", 1, 2), ("c", 2, 12)]
