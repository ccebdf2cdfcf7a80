"""Bytes written by the executors: what finished tasks returned is committed, and nothing else."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import Delta, Snapshot, State, stateful
from pyspark_checkpointer.spark.raw_partitions import _partitions
from tests.spark.conftest import Job
from tests.spark.needs import COLLATIONS, needs_spark
from tests.spark.tables import once, refused


def sums(partition: int, batches: Iterator[pa.RecordBatch]) -> Snapshot:
    totals: dict[str, int] = {}
    for batch in batches:
        for row in batch.to_pylist():
            totals[row["key"]] = totals.get(row["key"], 0) + row["amount"]
    return Snapshot(json.dumps(totals, sort_keys=True).encode())


def stored(root: str, name: str = "sums") -> dict[int, list[bytes]]:
    restored = Checkpointer(root).restore()
    assert restored is not None
    operator = restored.operator(name)
    return {p: operator.partition(p) for p in operator.partitions}


def merged(root: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for chain in stored(root).values():
        for key, amount in json.loads(chain[-1]).items():
            assert key not in found, "one key in two partitions"
            found[key] = amount
    return found


def test_rows_of_a_key_meet_in_one_partition_and_stay_there(job: Job) -> None:
    rows = [(f"k{n}", n) for n in range(50)]

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.write_partitions("sums", batch, sums, key=["key"], num_partitions=5)

    job.feed(*rows)
    job.run(update)
    first = {p: set(json.loads(chain[-1])) for p, chain in stored(job.root).items()}
    assert merged(job.root) == dict(rows)
    job.feed(*reversed(rows))
    job.run(update)
    assert {p: set(json.loads(chain[-1])) for p, chain in stored(job.root).items()} == first


def test_snapshots_deltas_and_partitions_left_alone(job: Job) -> None:
    def write(partition: int, batches: Iterator[pa.RecordBatch]) -> Snapshot | Delta | None:
        text = ",".join(sorted(v for b in batches for v in b.column("key").to_pylist())).encode()
        if text.startswith(b"new"):
            return Snapshot(text)
        return Delta(text) if text.startswith(b"more") else None

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.write_partitions("raw", batch.coalesce(1), write)
        seen.append(state.partition("raw", 0))

    seen: list[list[bytes]] = []
    for key in ("new", "more", "nothing"):
        job.feed((key, 1))
    job.run(update)
    assert stored(job.root, "raw") == {0: [b"new", b"more"]}
    assert seen == [[], [b"new"], [b"new", b"more"]]


def test_partitions_that_a_batch_does_not_have_stay(job: Job) -> None:
    numbers = iter([3, 2])

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        data = b"%d" % batch_id
        state.write_partitions("raw", batch.repartition(next(numbers)), lambda partition, _: Snapshot(data))

    for key in ("a", "b"):
        job.feed((key, 1))
    job.run(update)
    assert stored(job.root, "raw") == {0: [b"1"], 1: [b"1"], 2: [b"0"]}


@pytest.mark.parametrize("is_keyed", [False, True])
@pytest.mark.parametrize("name", ["a.b", "a`b", "a b", "sum(a)", "é"])
def test_columns_have_any_name(job: Job, name: str, is_keyed: bool) -> None:
    def write(partition: int, batches: Iterator[pa.RecordBatch]) -> Snapshot | None:
        texts = [text for batch in batches for text in batch.column(name).to_pylist()]
        return Snapshot(",".join(sorted(texts)).encode()) if texts else None

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        layout: dict[str, Any] = {"key": [name], "num_partitions": 1} if is_keyed else {}
        state.write_partitions("raw", batch.withColumnRenamed("key", name).coalesce(1), write, **layout)

    once(job, body)
    assert stored(job.root, "raw") == {0: [b"x"]}


def test_a_key_may_be_a_field_of_a_column(job: Job) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        rows = batch.selectExpr("named_struct('of', key) AS user", "key", "amount")
        state.write_partitions("sums", rows, sums, key=["user.of"], num_partitions=4)

    once(job, body)
    assert merged(job.root) == {"x": 1}


def test_texts_of_any_width_are_taken(job: Job, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        test_rows_of_a_key_meet_in_one_partition_and_stay_there(job)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


@needs_spark("4.0", COLLATIONS)
@pytest.mark.parametrize("key", ["{}", "array({})", "named_struct('k', {})"])
def test_a_collated_key_is_refused(job: Job, key: str) -> None:
    """Spark's hash of two texts that the collation takes for equal differs."""

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        rows = batch.selectExpr(f"{key.format('key collate UTF8_LCASE')} AS k", "key", "amount")
        state.write_partitions("sums", rows, sums, key=["k"], num_partitions=8)

    assert "which cannot be a key" in refused(job, body)


@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
def test_each_partition_has_its_rows_however_they_come(rows: int) -> None:
    """A partition may go on in the next batches, and there may be batches without rows."""
    numbers = [0] * 5 + [3] + [4] * 12 + [9] * 3
    given = pa.table({"x": range(len(numbers)), "__partition": pa.array(numbers, pa.int32())})
    batches = [batch for start in range(0, len(numbers), rows) for batch in given.slice(start, rows).to_batches()]
    spread = [one for batch in batches for one in (batch.slice(0, 0), batch)]
    found = {number: pa.Table.from_batches(held)["x"].to_pylist() for number, held in _partitions(iter(spread))}
    assert found == {n: [x for x, number in enumerate(numbers) if number == n] for n in (0, 3, 4, 9)}


def test_a_batch_of_which_the_store_refuses_a_partition_leaves_none(job: Job) -> None:
    """Its disk may be full, and no cleanup may delete the others before the next commit, which finds no room then."""

    def write(partition: int, batches: Iterator[pa.RecordBatch]) -> Snapshot:
        return Snapshot(b"of a partition")

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.write_partitions("raw", batch.repartition(2), write)

    folder = Path(job.root) / "artifacts" / "raw"
    folder.mkdir(parents=True)
    (folder / "1").touch()  # where the store needs a folder
    job.feed(("a", 1), ("b", 2))
    with pytest.raises(StreamingQueryException, match="expected a folder and found a file"):
        job.run(update)
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / "1"]
    (folder / "1").unlink()
    job.run(update)
    assert stored(job.root, "raw") == {number: [b"of a partition"] for number in range(2)}


def test_a_task_that_fails_for_good_fails_the_batch(job: Job) -> None:
    def broken(partition: int, batches: Iterator[pa.RecordBatch]) -> Snapshot:
        raise ValueError("planted in a task")

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.write_partitions("raw", batch, broken)

    job.feed(("a", 1))
    with pytest.raises(StreamingQueryException, match="planted in a task"):
        job.run(update)
    assert Checkpointer(job.root).restore() is None


def test_what_is_returned_must_be_a_snapshot_a_delta_or_none(job: Job) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.write_partitions("raw", batch, lambda partition, batches: b"bytes")  # type: ignore[arg-type,return-value]

    job.feed(("a", 1))
    with pytest.raises(StreamingQueryException, match="return Snapshot, Delta or None"):
        job.run(update)


def test_a_folder_is_refused_where_executors_run_on_other_machines(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark_checkpointer.spark import task_client

    monkeypatch.setattr(task_client, "executor_hosts", lambda spark: {"10.1.2.3"})

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.write_partitions("raw", batch, sums)

    job.feed(("a", 1))
    with pytest.raises(StreamingQueryException, match=r"10\.1\.2\.3"):
        job.run(update)
    assert not os.path.exists(os.path.join(job.root, "artifacts"))


def test_another_number_of_partitions_or_another_key_is_refused(job: Job) -> None:
    def sink(num_partitions: int) -> Any:
        @stateful(job.root)
        def update(batch: DataFrame, batch_id: int, state: State) -> None:
            state.write_partitions("sums", batch, sums, key=["key"], num_partitions=num_partitions)

        return update

    job.feed(("a", 1), ("b", 2), ("c", 3))
    job.run(sink(8))
    job.feed(("a", 10))
    with pytest.raises(StreamingQueryException, match="was written as"):
        job.run(sink(2))
    assert merged(job.root) == {"a": 1, "b": 2, "c": 3}


def test_a_key_of_another_type_is_refused(job: Job) -> None:
    """Spark's hash of it is another, so that the rows of one key would lie in two partitions."""

    def sink(kind: str) -> Any:
        @stateful(job.root)
        def update(batch: DataFrame, batch_id: int, state: State) -> None:
            rows = batch.withColumn("number", F.col("key").cast(kind))
            state.write_partitions("sums", rows, sums, key=["number"], num_partitions=8)

        return update

    job.feed(*((str(number), number) for number in range(9)))
    job.run(sink("int"))
    before = stored(job.root)
    job.feed(("1", 1))
    with pytest.raises(StreamingQueryException, match=r"was written as.*'types': \['integer'\]"):
        job.run(sink("long"))
    assert stored(job.root) == before


def test_a_column_of_the_name_of_the_partition_is_refused_in_any_case(job: Job) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        rows = batch.withColumn("__PARTITION", F.lit(1))
        state.write_partitions("sums", rows, sums, key=["key"], num_partitions=8)

    job.feed(("a", 1))
    with pytest.raises(StreamingQueryException, match="column '__PARTITION': the name is taken"):
        job.run(update)


def test_memory_is_refused_since_executors_do_not_share_it(job: Job) -> None:
    @stateful("memory://executors-do-not-share-this")
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.write_partitions("sums", batch, sums)

    job.feed(("a", 1))
    with pytest.raises(StreamingQueryException, match="do not share"):
        job.run(update)


@pytest.mark.parametrize("other", [{"num_partitions": 4}, {"key": ["amount"]}])
def test_two_layouts_in_one_batch_are_refused(job: Job, other: dict[str, Any]) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.write_partitions("sums", batch, sums, key=["key"], num_partitions=8)
        state.write_partitions("sums", batch, sums, **({"key": ["key"], "num_partitions": 8} | other))

    job.feed(("a", 1), ("b", 2))
    with pytest.raises(StreamingQueryException, match=r"in this batch, not as .*: write all of it in one way"):
        job.run(update)
    assert Checkpointer(job.root).restore() is None
