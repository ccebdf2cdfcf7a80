"""A new version of a streaming job on the state of the old one, renamed and transformed in between."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import State, read_state, stateful
from tests.spark.conftest import Job


def job_of(root: str, batches: str, amounts: str, calls: list[int]) -> Any:
    @stateful(root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        calls.append(batch_id)
        seen = state.map(batches)
        seen["batches"] = seen.get("batches", 0) + 1
        state.table(amounts, key=["key"], combine={"amount": "sum"}, num_partitions=4).upsert(batch)

    return update


def add_thousand(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "amount", pc.add(rows["amount"], 1000))


def test_a_job_goes_on_from_a_migrated_state_and_recognises_its_last_batch(job: Job) -> None:
    calls: list[int] = []
    job.feed(("a", 1), ("b", 2))
    job.feed(("c", 3))
    job.run(job_of(job.root, "seen", "totals", calls))
    ck = Checkpointer(job.root)
    old = ck.restore()
    assert old is not None
    ck.restore(
        rename={"seen": "totals", "totals": "amounts"},
        transform={"totals": lambda seen: {"batches": seen["batches"] * 100}, "amounts": add_thousand},
    )
    with ck.begin():
        pass
    migrated = ck.restore()
    assert migrated is not None
    assert migrated.job == old.job
    assert migrated.epoch == 1
    job.forget_commit(1)  # Spark gives it again
    job.feed(("c", 30), ("d", 4))
    job.run(job_of(job.root, "totals", "amounts", calls))
    assert calls == [0, 1, 2]
    now = ck.restore()
    assert now is not None
    assert now.keyed("totals").to_dict() == {"batches": 201}
    rows = read_state(job.spark, job.root, "amounts").collect()
    assert {row.key: row.amount for row in rows} == {"a": 1001, "b": 1002, "c": 1033, "d": 4}
    assert ck.verify()


def test_a_table_that_was_only_renamed_is_read_and_extended_by_tasks(job: Job) -> None:
    calls: list[int] = []
    job.feed(("a", 1), ("b", 2))
    job.run(job_of(job.root, "seen", "totals", calls))
    ck = Checkpointer(job.root)
    ck.restore(rename={"totals": "amounts"})
    with ck.begin():
        pass
    job.feed(("a", 10))
    job.feed(("b", 20))
    job.run(job_of(job.root, "seen", "amounts", calls))
    assert calls == [0, 1, 2]
    rows = read_state(job.spark, job.root, "amounts").collect()
    assert {row.key: row.amount for row in rows} == {"a": 11, "b": 22}
    assert ck.verify()
