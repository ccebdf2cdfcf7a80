"""`table.apply` on real Spark: a function sees the rows and the state of its keys, and decides what becomes of them."""

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer import Checkpointer, compaction
from pyspark_checkpointer.spark import Change, State, read_state, stateful
from pyspark_checkpointer.spark.apply_task import whole_keys
from pyspark_checkpointer.spark.table_hints import VerbHints
from pyspark_checkpointer.spark.task_client import DriverRoot, TaskRoot
from tests.spark.conftest import Job
from tests.spark.needs import AQE, COLLATIONS, VARIANTS, needs_spark
from tests.spark.tables import all_refused, artifacts, once, rows

SCHEMA = "key string, n long, total long"


def running(given: pa.Table, state: pa.Table) -> Change:
    """Count and sum, made from what was there, and the new totals as output."""
    new = given.group_by("key").aggregate([("amount", "count"), ("amount", "sum")])
    new = new.rename_columns(["key", "n", "total"])
    both = pa.concat_tables([new, state.select(["key", "n", "total"])])
    made = both.group_by("key").aggregate([("n", "sum"), ("total", "sum")]).rename_columns(["key", "n", "total"])
    return Change(upserts=made, output=made.select(["key", "total"]))


def running_alone(given: pa.Table, state: pa.Table) -> pa.Table:
    upserts: pa.Table = running(given, state).upserts
    return upserts


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


def test_objects_are_decoded_once_unless_spark_encrypts_its_files(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copies() -> set[str]:
        def names(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            list(batches)
            folder = Path(os.environ["SPARK_LOCAL_DIRS"].split(",")[0]) / "checkpointer-copies"
            found = [path.name for path in folder.iterdir()] if folder.exists() else []
            yield pa.RecordBatch.from_pydict({"name": pa.array(found, pa.string())})

        return {row["name"] for row in spark.range(0, 1, 1, 1).mapInArrow(names, "name string").collect()}

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        made.append(copies())
        state.table("t", ["key"], num_partitions=1, schema=SCHEMA).apply(batch, running_alone)

    made: list[set[str]] = [copies()]
    for _ in range(3):
        job.feed(("a", 1), ("b", 2))
        job.run(update)
    # The second and third batch read the objects of those before them.
    assert [len(found - made[0]) for found in (*made[2:], copies())] == [0, 1, 2]
    monkeypatch.setattr(TaskRoot, "of", partial(_encrypted, TaskRoot.of))
    before = copies()
    job.feed(("a", 1), ("b", 2))
    job.run(update)
    assert copies() == before
    assert rows(read_state(spark, job.root, "t")) == [("a", 4, 4), ("b", 4, 8)]


@pytest.mark.parametrize("word", ["true", "True", " TRUE "])
@pytest.mark.parametrize(("setting", "driver"), [("io.encryption", False), ("shuffle.service", True)])
def test_settings_with_which_there_are_no_copies_are_taken_in_any_case(
    spark: SparkSession, tmp_path: Path, setting: str, driver: bool, word: str
) -> None:
    """A shuffle service lets executors leave their folders. That of the driver is removed all the same."""
    conf = SimpleNamespace(
        get=lambda name, *default: word if name == f"spark.{setting}.enabled" else spark.conf.get(name, *default)
    )
    session: Any = SimpleNamespace(conf=conf, sparkContext=spark.sparkContext)
    client = Checkpointer(tmp_path)
    assert not TaskRoot.of(client, session).keeps_copies
    assert (DriverRoot.of(client, session).copies() is not None) == driver


def test_there_are_no_copies_where_the_memory_of_python_workers_is_limited(spark: SparkSession, tmp_path: Path) -> None:
    """Leave the limit to other work: what a worker has mapped counts too."""
    conf = SimpleNamespace(
        get=lambda name, *default: "4g" if name == "spark.executor.pyspark.memory" else spark.conf.get(name, *default)
    )
    session: Any = SimpleNamespace(conf=conf, sparkContext=spark.sparkContext)
    assert TaskRoot.of(Checkpointer(tmp_path), spark).keeps_copies
    assert not TaskRoot.of(Checkpointer(tmp_path), session).keeps_copies


@pytest.mark.skipif(not Path("/dev/shm").is_mount(), reason="needs a file system in memory")
def test_there_are_no_copies_where_the_local_folder_is_in_memory(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave the memory of a pod to its work: `spark.kubernetes.local.dirs.tmpfs` counts each byte of a file there."""
    client = Checkpointer(tmp_path)
    root = TaskRoot.of(client, spark)
    for folder, kept in ((Path(__file__).parent, True), ("/dev/shm/blockmgr", False)):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{folder},/data")
        assert (root.copies() is not None, DriverRoot(client, str(folder)).copies() is not None) == (kept, kept)


def test_many_small_batches_take_the_time_of_their_rows() -> None:
    def seconds(size: int) -> float:
        batches = [pa.RecordBatch.from_pydict({"k": [*range(n, n + size)]}) for n in range(0, 5_000, size)]
        begin = time.thread_time()
        parts = list(whole_keys(iter(batches), ["k"]))
        assert sum(part.num_rows for part in parts) == 5_000
        return time.thread_time() - begin

    seconds(10)  # what is done once
    # It takes 100 times as long where all rows that are held are counted for each batch.
    assert seconds(1) < 30 * seconds(10)


def _encrypted(of: Any, client: Checkpointer, spark: SparkSession) -> TaskRoot:
    """What tasks are given where Spark encrypts its files, which it is told when it starts."""
    conf = SimpleNamespace(
        get=lambda name, *default: "true" if "encryption" in name else spark.conf.get(name, *default)
    )
    found: TaskRoot = of(client, SimpleNamespace(conf=conf, sparkContext=spark.sparkContext))
    return found


def test_rows_of_a_key_come_in_one_call_in_the_order_asked_for(job: Job) -> None:
    seen: list[Any] = []

    def look(key: tuple[Any, ...], given: list[dict[str, Any]], row: Any) -> Change:
        return Change({"n": len(given)}, output=[{"seen": repr([one["at"] for one in given])}])

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        numbers = batch.sparkSession.range(200).selectExpr("id % 3 AS k", "nullif(199 - id, 150) AS at", "id AS __rest")
        table = state.table("t", ["k"], num_partitions=2, schema="k int, n long")  # The rows have a wider key.
        output = table.apply_groups(numbers.repartition(5), look, "seen string", order_by=["at"])
        assert output is not None
        seen.extend(sorted(row.seen for row in output.collect()))
        seen.append(rows(table.read()))

    once(job, body)
    expected = [[199 - n for n in range(199, -1, -1) if n % 3 == k] for k in range(3)]
    expected = [([None] if 150 in one else []) + [at for at in one if at != 150] for one in expected]
    assert seen[:3] == sorted(map(repr, expected))
    assert seen[3] == [(0, 67), (1, 67), (2, 66)]


def test_output_of_any_size_and_type_is_what_was_emitted_and_goes_with_its_batch(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each emitted value is random: a function that was called again would emit others."""
    kept: list[DataFrame] = []
    written: list[set[str]] = []

    def emit(given: pa.Table, state: pa.Table) -> Change:
        ids = [uuid.uuid4().hex for _ in range(given.num_rows)]
        upserts = pa.table({"k": given["k"], "id": ids, "at": given["at"]})
        return Change(upserts, output=upserts.append_column("more", pa.array([[{"a": i}] for i in ids])))

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        given = batch.sparkSession.range(50).selectExpr("id AS k", "timestamp_micros(id * 1000001) AS at")
        table = state.table("t", ["k"], num_partitions=4, schema="k long, id string, at timestamp")
        output = table.apply(
            given, emit, "k long, id string NOT NULL, at timestamp, more array<struct<a: string NOT NULL>>"
        )
        assert output is not None
        assert output.where("more[0].a = id").count() == 50
        assert rows(output.select("k", "id", "at")) == rows(table.read(["k", "id", "at"]))
        written.append(objects(job))
        kept.append(output)

    monkeypatch.setattr(compaction, "DRIVER_BYTES", 1)
    once(job, body)
    with pytest.raises(PythonException, match="kept until their batch ends"):
        kept[0].collect()
    assert {a.path for a in artifacts(job.root, "t")} == objects(job) < written[0]


def objects(job: Job) -> set[str]:
    return {str(path.relative_to(job.root)) for path in Path(job.root).rglob("*.parquet")}


def test_columns_that_the_job_declares_are_added_to_the_table(job: Job, spark: SparkSession) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        declared = "key string, n long" + ("" if batch_id == 0 else ", note string, most long")
        combine: Any = {"most": "max"}
        table = state.table("t", ["key"], schema=declared, combine=combine if batch_id else None)
        columns = {"n": 1} if batch_id == 0 else {"note": "new", "most": batch_id}
        table.apply_groups(batch, lambda key, given, row: columns)

    for _ in range(3):
        once(job, body)
    assert rows(read_state(spark, job.root, "t")) == [("x", 1, "new", 2)]


LOCK = threading.Lock()


class Locked:
    def __init__(self) -> None:
        self.lock = LOCK

    def running(self, given: pa.Table, below: pa.Table) -> Change:
        return Change()

    __call__ = running


BAD: dict[str, tuple[Callable[[State, DataFrame], Any], str]] = {
    "no schema": (
        lambda state, batch: state.table("new", ["key"]).apply(batch, running),
        "nothing was written to it yet: its columns are not known: open it with schema=",
    ),
    "no function": (lambda state, batch: opened(state).apply(batch, 5), "apply(): function=5: expected a function"),
    "no frame": (lambda state, batch: opened(state).apply([1], running), "apply() takes a Spark DataFrame, not"),
    "no key": (
        lambda state, batch: opened(state).apply(batch.drop("key"), running),
        "column 'key' is missing; there are",
    ),
    "another key's type": (
        lambda state, batch: opened(state).apply(batch.selectExpr("amount AS key"), running),
        "column 'key' is string, which is no part of long",
    ),
    "a column twice": (
        lambda state, batch: opened(state).apply(batch.selectExpr("*", "amount AS AMOUNT"), running),
        "column 'amount' is there twice: rename one",
    ),
    "a reserved column": (
        lambda state, batch: opened(state).apply(batch.selectExpr("*", "1 AS __partition"), running),
        "column '__partition': the name is taken",
    ),
    "months": (
        lambda state, batch: opened(state).apply(batch.selectExpr("*", "interval '1' month AS m"), running),
        "apply(): rows: column 'm' is interval month, of which Python tasks have no values: cast year-month intervals",
    ),
    "years within other types": (
        lambda state, batch: opened(state).apply_groups(
            batch.selectExpr("*", "map(1, array(named_struct('y', interval '1' year))) AS y"), lambda key, rows, row: {}
        ),
        "apply_groups(): rows: column 'y' is map<integer,array<struct<y:interval year>>>, of which Python tasks",
    ),
    "an unknown order": (
        lambda state, batch: opened(state).apply(batch, running, order_by=["at"]),
        "apply(): order_by: there is no column at; there are key, amount",
    ),
    "order by a name": (
        lambda state, batch: opened(state).apply(batch, running, order_by="amount"),
        "expected a list of column names",
    ),
    "an order of maps": (
        lambda state, batch: opened(state).apply(
            batch.selectExpr("*", "array(named_struct('a', map(1, 2))) AS m"), running, order_by=["m"]
        ),
        "order_by: column 'm' is array<struct<a:map<int,int>>>, whose values have no order: make a column",
    ),
    "unknown frames": (
        lambda state, batch: opened(state).apply(batch, running, frames="rows"),
        "frames='rows': expected one of arrow, pandas, polars",
    ),
    "output that cannot be stored": (
        lambda state, batch: opened(state).apply(batch, running, output="a interval year"),
        "output: column 'a': type interval year cannot be stored",
    ),
    "output twice": (
        lambda state, batch: opened(state).apply(batch, running, output="a long, A long"),
        "output: column 'a' is there twice",
    ),
    "a session in the function": (
        lambda state, batch: opened(state).apply(batch, lambda given, below: batch.sparkSession.range(1)),
        "cannot be sent to tasks because of 'batch', which it uses",
    ),
    "a lock as a default": (
        lambda state, batch: opened(state).apply(batch, lambda given, below, lock=LOCK: None),
        "cannot be sent to tasks because of 'lock', which it uses",
    ),
    "a lock as an argument of partial": (
        lambda state, batch: opened(state).apply(batch, partial(running, lock=LOCK)),
        "partial of running cannot be sent to tasks because of 'lock', which it uses",
    ),
    "a lock in a method's object": (
        lambda state, batch: opened(state).apply(batch, Locked().running),
        "Locked.running cannot be sent to tasks because of 'self.lock', which it uses",
    ),
    "a lock in an object": (
        lambda state, batch: opened(state).apply(batch, Locked()),
        "Locked cannot be sent to tasks because of 'self.lock', which it uses",
    ),
    "another key": (
        lambda state, batch: opened(state).apply(batch, lambda given, below: pa.table({"key": ["other"], "n": [1]})),
        "key='other' is none of these keys",
    ),
}


def opened(state: State) -> Any:
    return state.table("t", ["key"], num_partitions=2, schema=SCHEMA)


def test_what_cannot_be_applied_is_refused_by_name_and_changes_nothing(job: Job, spark: SparkSession) -> None:
    once(job, lambda batch, _, state: opened(state).apply(batch, running_alone))
    found = all_refused(job, [lambda batch, _, state, use=use: use(state, batch) for use, _ in BAD.values()])  # type: ignore[misc]
    for (name, (_, said)), told in zip(BAD.items(), found, strict=True):
        assert said in told, name
    assert rows(read_state(spark, job.root, "t")) == [("x", 1, 1)]


def test_an_exception_of_the_function_fails_the_batch_and_names_the_key(job: Job, spark: SparkSession) -> None:
    def fail(given: pa.Table, below: pa.Table) -> Change:
        if "bad" in given["key"].to_pylist():
            raise ZeroDivisionError("planted")
        return Change()

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        opened(state).apply(batch, fail)

    job.feed(*((f"good{n}", n) for n in range(20)), ("bad", 1), *((f"fine{n}", n) for n in range(20)))
    with pytest.raises(StreamingQueryException) as caught:
        job.run(update)
    assert "fail raised ZeroDivisionError when it was called for key='bad': planted" in str(caught.value)
    assert Checkpointer(job.root).restore() is None


@needs_spark("4.1", AQE)
def test_a_function_that_takes_long_gets_more_tasks_in_the_next_batch(job: Job, spark: SparkSession) -> None:
    """Spark alone brings rows as few as these into one task."""
    counts: list[int] = []

    def slow(given: pa.Table, below: pa.Table) -> Change:
        time.sleep(0.4)
        context = TaskContext.get()
        assert context is not None
        task = pa.array([context.partitionId()] * given.num_rows)
        return Change(upserts=running_alone(given, below), output=pa.table({"task": task}))

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        emitted = state.table("t", ["key"], num_partitions=8, schema=SCHEMA).apply(batch, slow, "task long")
        counts.append(emitted.distinct().count())

    for day in range(3):
        job.feed(*((f"key{n}", day) for n in range(40)))
    job.run(update)
    assert counts == [1, 2, 2]
    assert rows(read_state(spark, job.root, "t")) == sorted((f"key{n}", 3, 3) for n in range(40))


def test_tasks_are_as_many_as_their_work_is_worth() -> None:
    hints = VerbHints()
    for seconds, tasks in ((0.0, None), (0.29, None), (0.31, 2), (1.0, 6), (60.0, 8), (0.1, None)):
        hints.learn_from_apply(seconds, 8)
        hints.begin_batch()
        assert hints.apply_tasks == tasks
    hints.learn_from_apply(60.0, 1)
    hints.begin_batch()
    assert hints.apply_tasks is None


@needs_spark("4.0", COLLATIONS)
@pytest.mark.parametrize("size", [1, 5 << 20], ids=["few bytes", "many bytes"])
def test_emitted_rows_have_the_collations_of_their_columns(job: Job, spark: SparkSession, size: int) -> None:
    """The same filter finds the same rows, as in a table that is read."""
    kinds = ("string collate UNICODE_CI", "array<string collate UNICODE_CI>", "struct<x: string collate UTF8_LCASE>")
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    wanted = "c0 = 'X' and array_contains(c1, 'X') and c2.x = 'X'"
    found: list[Any] = []

    def emit(key: tuple[Any, ...], given: list[dict[str, Any]], row: Any) -> Change:
        return Change(output=[{name: given[0][name] for name in ("c0", "c1", "c2", "wide")}])

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        values = ("'x'", "array('x')", "named_struct('x', 'x')")
        cells = [
            f"cast({value} as {kind}) c{number}" for number, (value, kind) in enumerate(zip(values, kinds, strict=True))
        ]
        given = batch.selectExpr("key", *cells, f"repeat('a', {size}) wide")
        table = state.table("t", ["key"], num_partitions=2, schema=f"key string, {columns}")
        output = table.apply_groups(given, emit, f"{columns}, wide string")
        frames = [given.drop("key"), output, table.first_seen(given).drop("key"), table.read().drop("key")]
        found.extend((frame.schema.simpleString(), frame.where(wanted).count()) for frame in frames)

    once(job, body)
    plain = f"struct<{','.join(f'c{number}:{kind}' for number, kind in enumerate(kinds))}".replace(": ", ":")
    assert found == [(f"{plain},wide:string>", 1)] * 3 + [(f"{plain}>", 1)]


def test_rows_of_a_left_join_have_structs_that_are_null(job: Job) -> None:
    """Their fields are never null, and Arrow then refuses the cast to the very same type."""
    found = []

    def show(rows: pa.Table, state: pa.Table) -> pa.Table:
        return pa.table({"k": rows["k"], "seen": [str(value) for value in rows["v"].to_pylist()]})

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        rows = batch.sparkSession.sql("select k, if(k = 1, null, named_struct('b', 1)) v from values (1L), (2L) t(k)")
        table = state.table("t", ["k"], num_partitions=1, schema="k long, seen string")
        for _ in range(2):  # by tasks, and in the driver
            table.apply(rows, show)
        found.extend(row.seen for row in table.read().sort("k").collect())

    once(job, body)
    assert found == ["None", "{'b': 1}"]


def test_null_structs_beside_times_come_in_every_time_zone(job: Job, spark: SparkSession) -> None:
    """The time gets another type, and Arrow refuses to cast the nulls beside it to fields that are never null."""
    found: list[Any] = []

    def show(rows: pa.Table, state: pa.Table) -> pa.Table:
        seen = [f"{row['v']['g']} {row['a'][0]['g']}" for row in rows.to_pylist()]
        return pa.table({"k": rows["k"], "seen": seen})

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        given = spark.sql(
            "select k, v, array(v) a from (select k, named_struct('t', timestamp'2024-01-01 10:00:00 UTC',"
            " 'g', if(k = 1, null, named_struct('b', 1))) v from values (1L), (2L) t(k))"
        )
        table = state.table("t", ["k"], num_partitions=1, schema="k long, seen string")
        table.apply(given, show)
        found.extend(rows(table.read()))
        new = state.table("seen", ["k"], num_partitions=1).first_seen(given)
        found.extend(rows(new.selectExpr("k", "v.g.b", "a[0].g.b")))

    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        once(job, body)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert found == [(1, "None None"), (2, "{'b': 1} {'b': 1}"), (1, None, None), (2, 1, 1)]


@needs_spark("4.0", VARIANTS)
def test_emitted_variants_may_be_null(job: Job) -> None:
    """PySpark makes a DataFrame of variants only if their parts are never null."""
    found: list[Any] = []

    def emit(key: tuple[Any, ...], given: list[dict[str, Any]], row: Any) -> Change:
        return Change(output=given)

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        given = batch.sparkSession.sql("select 1L k, parse_json('1') v union all select 2L, null")
        new = state.table("seen", ["k"], num_partitions=1).first_seen(given)
        table = state.table("t", ["k"], num_partitions=1, schema="k long")
        emitted = table.apply_groups(given, emit, output="k long, v variant")
        assert emitted is not None
        found.extend(rows(frame.selectExpr("k", "to_json(v)")) for frame in (new, emitted))

    once(job, body)
    assert found == [[(1, "1"), (2, None)]] * 2


def test_emitted_structs_that_look_like_variants_keep_their_nulls(job: Job) -> None:
    found: list[Any] = []

    def emit(key: tuple[Any, ...], given: list[dict[str, Any]], row: Any) -> Change:
        return Change(output=given)

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        given = batch.sparkSession.sql("select 1L k, named_struct('value', binary('x'), 'metadata', binary(null)) v")
        new = state.table("seen", ["k"], num_partitions=1).first_seen(given)
        table = state.table("t", ["k"], num_partitions=1, schema="k long")
        emitted = table.apply_groups(given, emit, output="k long, v struct<value: binary, metadata: binary>")
        assert emitted is not None
        found.extend(rows(frame.selectExpr("k", "v.value", "v.metadata")) for frame in (new, emitted))

    once(job, body)
    assert found == [[(1, b"x", None)]] * 2
