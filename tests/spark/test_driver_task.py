"""Few rows are written by the driver without tasks, and nobody can tell from the state who did it."""

import asyncio
import importlib
import locale
import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import (
    Change,
    State,
    driver_task,
    read_state,
    stateful,
    table_changes,
    table_hints,
    table_jobs,
)
from pyspark_checkpointer.spark.dataframes import fields_of, rows_of
from pyspark_checkpointer.spark.driver_task import DriverTaskError, can_place, run_in_driver, sorts_alike, works_alike
from pyspark_checkpointer.spark.surroundings import surroundings
from pyspark_checkpointer.spark.table_hints import VerbHints
from pyspark_checkpointer.spark.versions import is_at_least, parse_schema, rows_of_frame
from pyspark_checkpointer.table.hashing import with_partitions
from pyspark_checkpointer.table.schema_evolution import first_schema
from tests.spark.conftest import Job
from tests.spark.tables import rows

SCHEMA = "k long, n long, seen string"
LITTLE_WORK = table_hints.SECONDS_OF_TASK


OF_SURROUNDINGS = {
    "test_a_function_stays_in_tasks_where_the_driver_has_another_seed",
    "test_a_function_stays_in_tasks_that_have_another_environment",
}
"""Tests of the conditions under which the driver may call a function."""


@pytest.fixture(autouse=True)
def _alike(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let functions run in this driver, whose Python may have another seed of hashes than workers have.

    On a machine that is busy a small task may take long, which the driver would leave to tasks.
    """
    monkeypatch.setattr(table_hints, "SECONDS_OF_TASK", 60)
    if request.node.name not in OF_SURROUNDINGS:
        monkeypatch.setattr(table_changes, "works_alike", lambda context: True)
        monkeypatch.setattr(table_changes, "has_same_surroundings", lambda found: True)


def as_they_are(rows: pa.Table) -> pa.Table:
    return rows


def where() -> str:
    return "driver" if TaskContext.get() is None else "task"


def run(job: Job, spark: SparkSession, sizes: list[int], function: Any, **arguments: Any) -> list[set[str]]:
    """Apply a function to batches of these sizes, and return where it ran for each."""
    places: list[set[str]] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        size = sizes[batch_id]
        given = spark.range(size).selectExpr("id % 10 AS k", f"nullif(id, {size // 2}) AS at", "double(id) AS part")
        table = state.table("t", ["k"], num_partitions=4, schema=SCHEMA)
        emitted = table.apply_groups(given.repartition(3), function, "place string", **arguments)
        assert emitted is not None
        places.append({row.place for row in emitted.collect()})

    for _ in sizes:
        job.feed(("x", 1))
    job.run(update)
    return places


def look(key: tuple[Any, ...], given: list[dict[str, Any]], row: dict[str, Any] | None) -> Change:
    n = len(given) + (row["n"] if row else 0)
    return Change({"n": n, "seen": repr([one["at"] for one in given])}, output=[{"place": where()}])


def test_few_rows_come_to_the_driver_from_the_second_batch_on(job: Job, spark: SparkSession) -> None:
    sizes = [40, 40, 3000, 40, 40]
    assert run(job, spark, sizes, look, order_by=["at"]) == [{"task"}, {"driver"}, {"task"}, {"driver"}, {"driver"}]
    expected = [[None if at == 20 else at for at in range(k, 40, 10)] for k in range(10)]
    ordered = [sorted(ats, key=lambda at: -1 if at is None else at) for ats in expected]
    assert rows(read_state(spark, job.root, "t")) == [(k, sum(sizes) // 10, repr(ats)) for k, ats in enumerate(ordered)]


@pytest.mark.parametrize("order_by", [["part"], ["k", "part"]])
def test_an_order_that_arrow_does_not_have_is_left_to_tasks(job: Job, spark: SparkSession, order_by: list[str]) -> None:
    assert run(job, spark, [40, 40], look, order_by=order_by) == [{"task"}, {"task"}]


def test_a_large_state_is_left_to_tasks(job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_jobs, "MAX_DRIVER_STATE_BYTES", 300)
    assert run(job, spark, [4, 40, 40, 40], look) == [{"task"}, {"driver"}, {"task"}, {"task"}]


def test_work_that_takes_long_is_left_to_tasks(job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_hints, "SECONDS_OF_TASK", LITTLE_WORK)

    def slow(key: Any, given: Any, row: Any) -> Change:
        time.sleep(0.05)
        return Change(output=[{"place": where()}])

    assert run(job, spark, [40, 40], slow) == [{"task"}, {"task"}]


def test_a_function_that_fails_in_the_driver_is_called_by_tasks_from_then_on(job: Job, spark: SparkSession) -> None:
    """It may need packages that only executors have."""
    tries = Path(job.root).parent / "tries"

    def picky(key: Any, given: Any, row: Any) -> Change:
        if where() == "driver":
            with tries.open("a") as file:
                file.write("x")
            raise SystemExit("a module is missing")
        return look(key, given, row)

    assert run(job, spark, [40, 40, 40], picky) == [{"task"}] * 3
    assert tries.read_text() == "x"
    assert [row[1] for row in rows(read_state(spark, job.root, "t"))] == [12] * 10


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_an_error_of_the_function_is_that_of_a_task(job: Job, spark: SparkSession, error: type[BaseException]) -> None:
    """Also one that ends threads: Spark would wait for ever for that of the callback."""

    def fail(key: Any, given: Any, row: Any) -> Change:
        if row:
            raise error("planted")
        return look(key, given, row)

    with pytest.raises(StreamingQueryException, match=f"fail raised {error.__name__} when it was called for k="):
        run(job, spark, [40, 40], fail)
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert restored.epoch == 0


@pytest.mark.parametrize("by_value", [False, True])
def test_a_module_that_the_program_changed_goes_along_if_it_is_pickled_by_value(
    job: Job,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    by_value: bool,
) -> None:
    """Do as docs/tables.md says: by its name alone, workers import the module as its source is."""
    name = f"rules_{by_value}".lower()
    # Spark may fetch the file again in a later test, so it stays as long as Spark does.
    folder = tmp_path_factory.mktemp("rules")
    source = folder / f"{name}.py"
    source.write_text(
        "from pyspark import TaskContext\n"
        "from pyspark_checkpointer.spark import Change\n\n"
        "LIMIT = 1\n\n\n"
        "def decide(key, given, row):\n"
        "    place = 'driver' if TaskContext.get() is None else 'task'\n"
        "    return Change(output=[{'place': f'{place} {LIMIT}'}])\n"
    )
    spark.sparkContext.addPyFile(str(source))
    monkeypatch.syspath_prepend(str(folder))
    rules: Any = importlib.import_module(name)
    rules.LIMIT = 2
    if by_value:
        cloudpickle.register_pickle_by_value(rules)  # type: ignore[no-untyped-call]
    try:
        places = run(job, spark, [40, 40], rules.decide)
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(rules)  # type: ignore[no-untyped-call]
    assert places == [{f"task {2 if by_value else 1}"}, {"driver 2"}]


def test_what_a_function_keeps_for_itself_is_lost_after_each_batch(job: Job, spark: SparkSession) -> None:
    calls: list[int] = []

    def keep(key: Any, given: Any, row: Any) -> Change:
        calls.append(1)
        return Change({"n": len(calls)}, output=[{"place": where()}])

    assert run(job, spark, [40, 40, 40], keep)[1:] == [{"driver"}] * 2
    assert calls == []
    assert sorted(row[1] for row in rows(read_state(spark, job.root, "t"))) == [*range(1, 11)]


def test_a_function_with_a_class_of_the_program_stays_in_tasks(job: Job, spark: SparkSession) -> None:
    """In the driver the class would be itself its copy: what a batch does to it would be left for the next one."""

    class Seen:
        keys: ClassVar[list[Any]] = []

        def add(self, key: Any) -> int:
            self.keys.append(key)
            return len(self.keys)

    def keep(key: Any, given: Any, row: Any) -> Change:
        return Change({"n": Seen().add(key)}, output=[{"place": where()}])

    add = Seen.add
    assert run(job, spark, [40, 40, 40], keep) == [{"task"}] * 3
    assert Seen.add is add
    assert Seen.keys == []


def test_a_callback_that_raises_no_exception_fails_its_query(job: Job) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        raise asyncio.CancelledError("planted")

    job.feed(("x", 1))
    with pytest.raises(
        StreamingQueryException, match="batch 0 failed: it raised CancelledError, which is no Exception"
    ):
        job.run(update)
    assert Checkpointer(job.root).restore() is None


def test_a_function_stays_in_tasks_where_the_driver_has_another_seed(job: Job, spark: SparkSession) -> None:
    def hashed(key: Any, given: Any, row: Any) -> Change:
        return Change({"n": hash("abc")}, output=[{"place": where()}])

    expected = {"driver"} if works_alike(spark) else {"task"}
    assert run(job, spark, [40, 40], hashed) == [{"task"}, expected]


def test_a_function_stays_in_tasks_that_have_another_environment(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver of this test has a variable that no worker has, as executors of another image have others."""
    monkeypatch.setattr(table_changes, "works_alike", lambda context: True)
    monkeypatch.setenv("RATE", "1.2")

    def rated(key: Any, given: Any, row: Any) -> Change:
        return Change({"n": int("RATE" in os.environ)}, output=[{"place": where()}])

    assert run(job, spark, [40, 40, 40], rated) == [{"task"}] * 3
    assert {row[1] for row in rows(read_state(spark, job.root, "t"))} == {0}


def test_what_a_function_finds_around_it_has_one_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed() -> bool:
        return surroundings() != before

    before = surroundings()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/other")
    monkeypatch.setenv("PYTHONUNBUFFERED", "YES")
    assert not changed()
    monkeypatch.setenv("RATE", "1.2")
    assert changed()
    monkeypatch.delenv("RATE")
    assert not changed()
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        assert changed()
    with monkeypatch.context() as patch:
        patch.setattr(time, "tzname", ("JST", "JST"))
        assert changed()
    with monkeypatch.context() as patch:
        patch.setattr(locale, "setlocale", lambda category: "ja_JP.UTF-8")
        assert changed()


def test_a_folder_that_was_removed_fails_no_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a release that was replaced leaves a job without its folder, which most functions do not use."""
    here = surroundings()
    (gone := tmp_path / "release").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert surroundings() == surroundings() != here


@pytest.mark.parametrize(
    ("randomized", "variables", "alike"),
    [
        (0, {"PYTHONHASHSEED": "0"}, True),
        (1, {"PYTHONHASHSEED": "0"}, False),
        (0, {"PYTHONHASHSEED": "0", "REGION": "eu"}, False),
    ],
)
def test_a_driver_works_as_workers_with_their_seed_and_variables(
    monkeypatch: pytest.MonkeyPatch, randomized: int, variables: dict[str, str], alike: bool
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(driver_task, "sys", SimpleNamespace(flags=SimpleNamespace(hash_randomization=randomized)))
    spark = SimpleNamespace(sparkContext=SimpleNamespace(environment=variables))
    assert works_alike(spark) == alike  # type: ignore[arg-type]


def test_times_within_values_are_in_utc_for_functions_too(job: Job, spark: SparkSession) -> None:
    """In tasks and in the driver, whatever the time zone of the session is."""
    seen: list[str] = []

    def show(key: Any, given: list[dict[str, Any]], row: Any) -> Change:
        return Change({"n": 1}, output=[{"place": where(), "shown": repr(given)}])

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        given = spark.sql(
            "SELECT 1 AS k, t, named_struct('t', t) AS s, array(t) AS a, map(t, array(named_struct('t', t))) AS m,"
            " timestamp_ntz'2024-01-01 10:00:00' AS n FROM (SELECT timestamp'2024-01-01 10:00:00 UTC' AS t)"
        )
        table = state.table("t", ["k"], num_partitions=1, schema="k int, n long")
        emitted = table.apply_groups(given, show, "place string, shown string")
        assert emitted is not None
        seen.extend(f"{row.place} {row.shown}" for row in emitted.collect())

    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for _ in range(2):
            job.feed(("x", 1))
        job.run(update)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert seen[0].removeprefix("task ") == seen[1].removeprefix("driver ")
    assert "New_York" not in seen[0]


@pytest.mark.parametrize("verb", ["upsert", "delete", "replace"])
def test_other_changes_come_to_the_driver_too(
    job: Job, spark: SparkSession, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the rows are more than the driver keeps for its own object, or the table moves."""
    used = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["k"], num_partitions=4 if batch_id < 3 else 7)
        hints = table._changes._hints.verbs
        used.append((hints["upsert"].driver_rows, hints[verb].driver_rows))
        given = spark.range(batch_id * 100, batch_id * 100 + 150).selectExpr("id AS k", f"{batch_id} AS n")
        if batch_id in (0, 1):
            table.upsert(given)
        elif verb == "delete":
            table.delete(given.select("k"))
        else:
            getattr(table, verb)(given)

    for _ in range(5):
        job.feed(("x", 1))
    job.run(update)
    first = 1600 if verb == "upsert" else 0
    assert used == [(0, 0), (1600, first), (1600, first), (1600, 1600), (1600, 1600)]
    model: dict[int, int] = {}
    for batch in range(5):
        keys = range(batch * 100, batch * 100 + 150)
        if batch > 1 and verb == "delete":
            model = {k: n for k, n in model.items() if k not in keys}
        else:
            model = ({} if batch > 1 and verb == "replace" else model) | dict.fromkeys(keys, batch)
    assert rows(read_state(spark, job.root, "t")) == sorted(model.items(), key=repr)


def test_more_rows_than_the_driver_takes_are_refused_to_it(spark: SparkSession) -> None:
    def work(batches: Any) -> Any:
        raise AssertionError("called")

    for partitions in (1, 7, 200):  # all rows in one partition, and some in each
        assert run_in_driver(spark.range(0, 101, 1, partitions), 100, as_they_are, work) is None


def test_rows_whose_job_was_cancelled_are_not_computed_again(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever cancels the job, as `query.stop()` does, wants the batch to end."""
    begun = tmp_path / "begun"

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun.touch()
        time.sleep(20)
        yield from batches

    def cancel() -> None:
        while not begun.exists():
            time.sleep(0.05)
        spark.sparkContext.cancelAllJobs()

    thread = Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(Exception, match=r"(?i)cancelled") as failed:
            run_in_driver(
                spark.range(0, 3, 1, 1).mapInArrow(slow, "id long"), 100, as_they_are, lambda batches: batches
            )
    finally:
        thread.join()
    assert not isinstance(failed.value, DriverTaskError)


@pytest.mark.parametrize("partitions", [1, 7])
def test_as_many_rows_as_the_driver_takes_come_to_it(spark: SparkSession, partitions: int) -> None:
    seen: list[int] = []
    frame = spark.range(0, 300, 1, partitions).where("id % 3 = 0")
    work: Any = lambda batches: iter([seen.extend(batch[0].to_pylist()) for batch in batches] and ())  # noqa: E731
    assert run_in_driver(frame, 100, as_they_are, work) == []
    assert sorted(seen) == list(range(0, 300, 3))


def test_rows_are_sorted_as_spark_sorts_them_or_not_at_all(spark: SparkSession) -> None:
    collated = "n string collate UTF8_LCASE, " if is_at_least("4.0") else ""
    types = parse_schema(
        "a long, b string, c binary, d boolean, e date, f decimal(38,9), g timestamp, h timestamp_ntz, i tinyint,"
        f"j float, k double, l struct<x: int>, m array<int>, {collated}o interval day to second"
    )
    frame = spark.createDataFrame([], types)
    assert [name for name in frame.columns if sorts_alike(frame, [name])] == list("abcdefghi")
    texts = [None, "", "a", "B", "ab", "é", "\U0001f600", "\ufffd", "z"]
    given = [(text, flag) for text in texts for flag in (None, True, False)]
    drawn = spark.createDataFrame(given, "b string, d boolean").selectExpr("b", "cast(b AS binary) AS c", "d")
    order = ["d", "b", "c"]
    seen: list[pa.RecordBatch] = []
    work: Any = lambda batches: iter(seen.extend(batches) or ())  # type: ignore[func-returns-value]  # noqa: E731
    assert run_in_driver(drawn, 100, as_they_are, work, order) == []
    expected = [tuple(row) for row in drawn.coalesce(1).sortWithinPartitions(*order).select("d", "b").collect()]
    assert [(row["d"], row["b"]) for row in pa.Table.from_batches(seen).to_pylist()] == expected


HASHED = {
    "byte": "tinyint(a % 100)",
    "short": "smallint(-a)",
    "int": "int(a * 1000003)",
    "long": "a * 7919 * 7919 * 7919",
    "flag": "a % 2 = 0",
    "day": "date_add(DATE '1969-12-01', int(a))",
    "time": "timestamp_micros(a * 1234567 - 5)",
    "local": "CAST(timestamp_micros(a * 1234567 - 5) AS timestamp_ntz)",
    "text": "repeat('aé😀', int(a % 5))",
    "data": "unhex(hex(a * 65537))",
}
"""Keys that the driver hashes as Spark does, by the type of the key."""


@pytest.mark.parametrize("names", [[name] for name in HASHED] + [["text", "long", "flag"], ["day", "data"]])
def test_the_driver_finds_the_partitions_that_spark_finds(spark: SparkSession, names: list[str]) -> None:
    columns = [f"if(a % 11 = 3, NULL, {HASHED[name]}) AS {name}" for name in names]
    frame = spark.range(0, 500, 1, 3).toDF("a").selectExpr(*columns, "a")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        schema = first_schema("t", fields_of(frame), names, {})
        assert can_place(frame, schema, schema.columns)
        by_spark = rows_of_frame(rows_of(frame, schema, 13))
        by_driver = with_partitions(rows_of_frame(frame), schema, 13)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert by_driver.sort_by("a").equals(by_spark.sort_by("a").cast(by_driver.schema))


def test_the_driver_leaves_other_keys_and_types_to_spark(spark: SparkSession) -> None:
    frame = spark.range(3).selectExpr("id", "int(id) AS i", "id AS n")
    schema = first_schema("t", fields_of(frame), ["id"], {})
    keys = schema.columns[:1]
    assert can_place(frame, schema, schema.columns)
    narrower = frame.selectExpr("id", "i", "int(n) AS n")
    assert not can_place(narrower, schema, schema.columns)
    assert can_place(narrower, schema, keys)
    assert not can_place(frame.selectExpr("i AS id", "n"), schema, keys)
    assert not can_place(frame.selectExpr("*", "0 AS __partition"), schema, keys)
    for kind in ("float(id)", "double(id)", "decimal(id)"):
        other = frame.selectExpr(f"{kind} AS id")
        assert not can_place(other, first_schema("t", fields_of(other), ["id"], {}), keys), kind
    if is_at_least("4.0"):
        texts = frame.selectExpr("string(id) AS id")
        collated = texts.selectExpr("id COLLATE UTF8_LCASE AS id")
        schema = first_schema("t", fields_of(texts), ["id"], {})
        assert can_place(texts, schema, schema.columns)
        assert not can_place(collated, schema, schema.columns)


def test_spark_places_rows_until_its_hashes_were_compared(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch without rows compares nothing, and neither does one whose key had a narrower type."""
    placed: list[int] = []
    monkeypatch.setattr(table_changes, "rows_of", lambda *given: placed.append(1) or rows_of(*given))  # type: ignore[func-returns-value]

    def run(*kinds: str) -> list[int]:
        counts: list[int] = []

        @stateful(job.root)
        def update(batch: DataFrame, batch_id: int, state: State) -> None:
            kind = kinds[len(counts)]
            rows = spark.range(0 if kind == "none" else 5).selectExpr(
                f"CAST(id AS {'int' if kind == 'none' else kind}) AS id"
            )
            state.table("t", ["id"]).upsert(rows)
            counts.append(len(placed))
            placed.clear()

        for _ in kinds:
            job.feed(("x", 1))
        job.run(update)
        return counts

    assert run("none", "int", "int", "none", "int") == [1, 1, 0, 0, 0]
    assert run("int", "int", "long", "long") == [1, 0, 2, 0]


def test_the_driver_takes_few_rows_of_few_bytes_and_of_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_hints, "SECONDS_OF_TASK", LITTLE_WORK)
    hints = VerbHints()
    rows, size = table_hints.MAX_DRIVER_ROWS, table_hints.MAX_DRIVER_BYTES
    for given, taken in (
        ((0, 0, 0.0), 1000),
        ((100, 100, 0.1), 1400),
        ((rows, size, 0.29), rows),
        ((rows + 1, 1, 0.0), 0),
        ((1, size + 1, 0.0), 0),
        ((1, 1, 0.31), 0),
        ((1, size, 0.0), 4),
    ):
        hints.learn_size(*given)
        hints.begin_batch()
        assert hints.driver_rows == taken
