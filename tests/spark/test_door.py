"""What users get wrong first: refused by name, before anything is done, and told in one line."""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pyspark_checkpointer import Checkpointer, errors
from pyspark_checkpointer.errors import FencedError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.spark import (
    Delta,
    Snapshot,
    State,
    can_restore,
    diff,
    executors,
    read_changes,
    read_state,
    stateful,
)
from pyspark_checkpointer.spark.arguments import check_key_columns, check_names
from pyspark_checkpointer.spark.batch import identify
from pyspark_checkpointer.spark.executors import share
from pyspark_checkpointer.spark.failure import AFTER_BATCH, FOR_TASKS, NEXT_STEP, describe
from pyspark_checkpointer.spark.task_client import TaskRoot, check_tasks
from tests.cli.conftest import golden
from tests.spark.conftest import Job
from tests.spark.needs import CONNECT, DATA_SOURCES, needs_spark
from tests.spark.test_sink import failure

__all__ = ["golden"]

WRONG = {
    "key='user': expected a list of column names, as in ['user']": lambda s, b: s.table("a", "user"),
    "key=3: expected a list of column names": lambda s, b: s.table("a", 3),
    "key=['user', 1]: expected a list of column names": lambda s, b: s.table("a", ["user", 1]),
    "table 't': upsert() takes a Spark DataFrame, not pandas": lambda s, b: s.table("t", ["key"]).upsert(
        pd.DataFrame({"key": ["a"]})
    ),
    "table 'u': replace() takes a Spark DataFrame, not pyarrow": lambda s, b: s.table("u", ["key"]).replace(
        pa.table({"key": ["a"]})
    ),
    "table 'v': delete() takes a Spark DataFrame, not builtins.list": lambda s, b: s.table("v", ["key"]).delete(["a"]),
    "table 'x': lookup() takes a Spark DataFrame, not builtins.list": lambda s, b: s.table(
        "x", ["key"], schema="key string"
    ).lookup([{"key": "a"}]),
    "table 'y': columns='key': expected a list": lambda s, b: s.table(
        "y", ["key"], schema="key string, amount long"
    ).read("key"),
    "operator 'w': write_partitions() takes a Spark DataFrame": lambda s, b: s.write_partitions(
        "w", [1], lambda p, r: None
    ),
    "operator 'w': key='key': expected a list": lambda s, b: s.write_partitions(
        "w", b, lambda p, r: None, key="key", num_partitions=2
    ),
    "operator 'w': key=5: expected a list": lambda s, b: s.write_partitions(
        "w", b, lambda p, r: None, key=5, num_partitions=2
    ),
    "operator 'w': num_partitions='2': expected an integer": lambda s, b: s.write_partitions(
        "w", b, lambda p, r: None, key=["key"], num_partitions="2"
    ),
    "operator 'w': give both key and num_partitions": lambda s, b: s.write_partitions("w", b, print, key=["key"]),
    "operator 'w': write_partitions(): write=b'': expected a function": lambda s, b: s.write_partitions("w", b, b""),
    "operator 'w': write_partitions() takes a batch DataFrame": lambda s, b: s.write_partitions(
        "w", stream(b), lambda p, r: None
    ),
    "table 'b1': combine=['n']: expected a dict from column names": lambda s, b: s.table("b1", ["key"], combine=["n"]),
    "table 'b2': combine='sum': expected a dict": lambda s, b: s.table("b2", ["key"], combine="sum"),
    "table 'b3': combine={'n'}: expected a dict": lambda s, b: s.table("b3", ["key"], combine={"n"}),
    "table 'b4': combine={1: 'sum'}: expected a dict": lambda s, b: s.table("b4", ["key"], combine={1: "sum"}),
    "table 'b5': num_partitions='8': expected an integer from 1 to": lambda s, b: s.table(
        "b5", ["key"], num_partitions="8"
    ),
    "table 'b6': num_partitions=0: expected an integer from 1 to": lambda s, b: s.table(
        "b6", ["key"], num_partitions=0
    ),
    "table 'b7': schema='key strnig, n long': Spark cannot parse it: [": lambda s, b: s.table(
        "b7", ["key"], schema="key strnig, n long"
    ),
    "table 'b8': schema=5: expected a StructType": lambda s, b: s.table("b8", ["key"], schema=5),
    "map: expected a name of at least one character, got 5": lambda s, b: s.map(5),
    "map: expected a name of at least one character, got ''": lambda s, b: s.map(""),
    "map 'a/b': a name must not start with a dot nor hold slashes": lambda s, b: s.map("a/b"),
    "table: expected a name of at least one character, got None": lambda s, b: s.table(None, ["key"]),
    "operator: expected a name of at least one character, got ['t']": lambda s, b: s.drop(["t"]),
    "operator: expected a name of at least one character, got b'w'": lambda s, b: s.write_partitions(b"w", b, print),
    "operator: expected a name of at least one character, got 7": lambda s, b: s.partition(7, 0),
    "partition '0': expected an integer": lambda s, b: s.partition("w", "0"),
    "table 'c1': drop_columns(): columns='n': expected a list of column names, as in ['n']": lambda s, b: opened(
        s, "c1"
    ).drop_columns("n"),
    "table 'c2': drop_columns(): columns=[Column<'n'>]: expected column names, as in ['n'], not Column objects": (
        lambda s, b: opened(s, "c2").drop_columns([F.col("n")])
    ),
    "table 'c3': columns=[Column<'n'>]: expected column names": lambda s, b: opened(s, "c3").read([F.col("n")]),
    "table 'c4': columns=[]: expected at least one column; there are key, n": lambda s, b: opened(s, "c4").read([]),
    "table 'c5': columns=[]: expected at least one column; there are key, n": lambda s, b: opened(s, "c5").lookup(
        b, []
    ),
    "table 'c6': lookup() takes a Spark DataFrame, not builtins.list: make one": lambda s, b: opened(s, "c6").lookup(
        []
    ),
    "table 'd1': upsert() takes a batch DataFrame, not a streaming": lambda s, b: opened(s, "d1").upsert(stream(b)),
    "table 'd2': replace() takes a batch DataFrame": lambda s, b: opened(s, "d2").replace(stream(b)),
    "table 'd3': delete() takes a batch DataFrame": lambda s, b: opened(s, "d3").delete(stream(b)),
    "table 'd4': lookup() takes a batch DataFrame": lambda s, b: opened(s, "d4").lookup(stream(b)),
}


def opened(state: State, name: str) -> Any:
    return state.table(name, ["key"], schema="key string, n long")


def stream(batch: DataFrame) -> DataFrame:
    return batch.sparkSession.readStream.format("rate").load().select(F.col("value").cast("string").alias("key"))


def test_what_is_decorated_wrongly_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(IllegalArgumentError, match=r"/root'\): decorates a function of .*, not int: write @stateful"):
        stateful(tmp_path / "root")(5)  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentError, match=r"@stateful needs a root: write @stateful\('s3://"):

        @stateful  # type: ignore[arg-type]
        def update(batch: DataFrame, batch_id: int, state: State) -> None: ...

    with pytest.raises(IllegalArgumentError, match=r"storage_options: expected a dict of .*, not str$") as raised:
        stateful("s3://bucket/root", "hidden")  # type: ignore[arg-type]
    assert "hidden" not in str(raised.value)


def test_a_method_is_decorated_once_it_is_bound(tmp_path: Path) -> None:
    """Above a method the decorator is given a function that takes the object too, which no batch has."""
    decorator = stateful(tmp_path / "root")

    class App:
        def update(self, batch: DataFrame, batch_id: int, state: State) -> None: ...

    def hidden(function: Any) -> Any:
        @functools.wraps(function)
        def call(*given: Any) -> Any:
            return function(App(), *given)

        return call

    for wrong in (App.update, lambda batch, batch_id: None):
        with pytest.raises(IllegalArgumentError, match=r"takes .*: .*a method.*stateful\(root\)\(self\.update\)"):
            decorator(wrong)  # type: ignore[arg-type]
    for right in (App().update, hidden(App.update), functools.partial(App.update, App()), lambda *given: None, max):
        decorator(right)  # type: ignore[arg-type]


def test_a_call_in_a_thread_without_the_properties_of_its_query_says_how_threads_have_them() -> None:
    context = SimpleNamespace(getLocalProperty=lambda name: None)
    batch: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
    with pytest.raises(IllegalArgumentError, match=r"not called from a streaming query: .*pyspark\.InheritableThread"):
        identify(batch, 0)


def test_a_function_of_which_a_call_runs_nothing_is_refused(job: Job) -> None:
    """Each batch would be committed as done, and nothing of the function would have run."""

    async def later(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("seen")[batch_id] = True

    def stepwise(batch: DataFrame, batch_id: int, state: State) -> Any:
        state.map("seen")[batch_id] = True
        yield

    class Later:
        async def __call__(self, batch: DataFrame, batch_id: int, state: State) -> None:
            state.map("seen")[batch_id] = True

    for function in (later, stepwise, functools.partial(later), Later()):
        with pytest.raises(IllegalArgumentError, match="nothing of it runs when it is called"):
            stateful(job.root)(function)
    sink = stateful(job.root)(lambda *given: stepwise(*given))
    job.feed(("a", 1))
    assert "the function returned a generator: nothing of it runs" in failure(job, sink)
    assert sink.checkpointer.restore() is None


@needs_spark("4.0", DATA_SOURCES)
def test_a_source_without_a_table_or_view_says_what_to_say(job: Job) -> None:
    with Checkpointer(job.root).begin() as cp:
        cp.snapshot("op", 0, b"")
    load = job.spark.read.format("checkpointer")
    with pytest.raises(PySparkException, match=r"there is neither: say one table, as in option\('operator', 'tot"):
        load.load(job.root).collect()
    with pytest.raises(PySparkException, match="there are both: say one table"):
        load.option("operator", "op").option("view", "checkpoints").load(job.root).collect()


def test_can_restore_refuses_what_a_table_refuses(spark: SparkSession, tmp_path: Path) -> None:
    ask = functools.partial(can_restore, tmp_path / "new", "t", key=["a"])
    with pytest.raises(IllegalArgumentError, match=r"table 't': combine=\['n'\]: expected a dict"):
        ask(schema="a long", combine=["n"])  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentError, match="table 't': num_partitions='8': expected an integer"):
        ask(schema="a long", num_partitions="8")  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentError, match=r"schema='a lnog': Spark cannot parse it: \[.*as in 'user string"):
        ask(schema="a lnog")


def test_wrong_types_are_refused_by_name(job: Job) -> None:
    said: list[str] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        for call in WRONG.values():
            with pytest.raises(IllegalArgumentError) as raised:
                call(state, batch)
            said.append(str(raised.value))

    job.feed(("a", 1))
    assert "was not committed" in failure(job, update)
    assert [found for found, expected in zip(said, WRONG, strict=True) if expected not in found] == []


def test_partitions_of_bytes_are_no_map_in_the_same_run(job: Job) -> None:
    """The callback would go on with an empty map, and learn of it at the end of the batch."""
    went_on = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        if batch_id == 0:
            state.write_partitions("raw", batch.coalesce(1), lambda partition, _: Snapshot(b"1"))
        else:
            state.map("raw")["a"] = 1
            went_on.append(batch_id)

    job.feed(("a", 1))
    job.feed(("a", 1))
    assert "the state has partitions of bytes of that name" in failure(job, update)
    assert not went_on


@pytest.mark.parametrize("kind", ["map", "table"])
def test_partitions_of_bytes_do_not_take_the_name_of_what_is_open(job: Job, kind: str) -> None:
    """The callback went on, and the batch failed at its end."""

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        if kind == "map":
            state.map("mine")["a"] = 1
        else:
            state.table("mine", key=["key"]).upsert(batch)
        state.write_partitions("mine", batch.coalesce(1), lambda partition, batches: Snapshot(b""))
        pytest.fail("it was not refused")

    job.feed(("a", 1))
    assert f"operator 'mine': a {kind} of this job has that name" in failure(job, update)


def test_a_table_is_no_map_in_the_same_run(job: Job) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        if batch_id == 0:
            state.table("t", ["key"]).upsert(batch)
        else:
            state.map("t")["a"] = 1

    job.feed(("a", 1))
    job.feed(("a", 1))
    assert "the state has a table of that name: state.table('t', key=…)" in failure(job, update)
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    with pytest.raises(IllegalArgumentError, match=r"is a table, not a map: restored\.table\('t'\) reads it"):
        restored.keyed("t")
    with pytest.raises(IllegalArgumentError, match="takes a Spark DataFrame, not builtins"):
        read_state(job.spark, job.root, "t", keys=["a"])  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentError, match=r"columns='amount': expected a list"):
        read_state(job.spark, job.root, "t", columns="amount")


def test_spark_connect_is_refused_by_name_on_an_old_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    root = tmp_path / "root"
    calls: list[Callable[[], Any]] = [
        lambda: read_state(spark, root, "t"),
        lambda: diff(spark, root, "a", "b", "t"),
        lambda: read_changes(spark, root, "t"),
        lambda: stateful(root)(lambda batch, batch_id, state: None)(spark, 0),
    ]
    for call in calls:
        with pytest.raises(
            IllegalArgumentError, match=r"Spark Connect needs PySpark 4\.0 or newer, and this is 3\.5\.9"
        ):
            call()


@needs_spark("4.0", CONNECT)
def test_what_a_request_of_spark_connect_cannot_carry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    assert share(spark, [1], "the index")() == [1]
    monkeypatch.setattr(executors, "MAX_REQUEST_BYTES", 1 << 20)
    with pytest.raises(InvalidStateError, match="the index has 2 MiB, and a request of Spark Connect carries 1 MiB"):
        share(spark, bytes(2 << 20), "the index")


@needs_spark("4.0", CONNECT)
@pytest.mark.parametrize("root", ["/root", "s3://bucket/root"])
@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version", r"is not Python 3\.\d+, which this"),
        ('Cannot run program "python3": error=2', "cannot be started there: let PYSPARK_PYTHON"),
        ("ModuleNotFoundError: No module named 'pyarrow'", "cannot import pyarrow: let PYSPARK_PYTHON"),
    ],
)
def test_a_python_that_cannot_run_in_spark_connect_is_told_in_one_sentence(root: str, told: str, why: str) -> None:
    with pytest.raises(InvalidStateError, match=f"the Python of Spark's tasks {why}"):
        TaskRoot.of(Checkpointer(root), _broken(told))
    with pytest.raises(InvalidStateError, match=f"the Python of Spark's tasks {why}"):
        check_tasks(Checkpointer(root), _broken(told), None)


@needs_spark("4.0", CONNECT)
def test_any_other_failure_of_tasks_in_spark_connect_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="no room"):
        TaskRoot.of(Checkpointer("/root"), _broken("no room"))


def _broken(told: str) -> Any:
    """Return what looks like a session of Spark Connect, whose jobs fail with what is told."""

    class Broken:
        def __getattr__(self, name: str) -> Any:
            if name == "collect":
                raise RuntimeError(told)
            return lambda *_: self

    return type("SparkSession", (Broken,), {"__module__": "pyspark.sql.connect.session"})()


def test_a_schema_as_text_is_parsed_by_a_session_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    assert can_restore(tmp_path / "new", "t", schema="a long", key=["a"])
    with pytest.raises(IllegalArgumentError, match="schema='long': expected a StructType or columns as text"):
        can_restore(tmp_path / "new", "t", schema="long", key=["a"])
    with pytest.raises(IllegalArgumentError, match="key='a': expected a list of column names"):
        can_restore(tmp_path / "new", "t", schema="a long", key="a")


def test_a_schema_as_text_without_a_session_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(IllegalArgumentError, match="there is no session: pass a StructType"):
        can_restore(tmp_path / "new", "t", schema="a long", key=["a"])
    assert can_restore(tmp_path / "new", "t", schema=StructType().add("a", "long"), key=["a"])


@pytest.mark.parametrize("key", [[], ["k", "k"]])
@pytest.mark.parametrize("operator", ["table", "new"])
def test_a_key_that_a_table_refuses_cannot_be_restored_either(golden: Path, operator: str, key: list[str]) -> None:
    schema = StructType().add("k", "long").add("n", "long").add("amount", "decimal(9,2)")
    assert can_restore(golden, operator, schema=schema, key=["k"])
    for refuse in (
        lambda: can_restore(golden, operator, schema=schema, key=key),
        lambda: check_key_columns(operator, key),
    ):
        with pytest.raises(IllegalArgumentError, match=rf"table '{operator}': key=.*: expected at least one column"):
            refuse()


def test_names_are_taken_as_they_are_given() -> None:
    assert check_names("key", ("a", "b")) == ["a", "b"]


@pytest.mark.parametrize("kind", [Snapshot, Delta])
def test_bytes_of_partitions_are_copied_and_anything_else_is_refused(kind: type[Snapshot]) -> None:
    buffer = bytearray(b"one")
    made = kind(buffer)  # type: ignore[arg-type]
    buffer[:] = b"two"
    assert made.data == b"one"
    with pytest.raises(IllegalArgumentError, match="expected bytes, got str"):
        kind("text")  # type: ignore[arg-type]


WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/scan.py", line 52, in run
    yield from self.read(group)
{line}
JVM stacktrace:
org.apache.spark.SparkException: Job aborted"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FencedError("root: another writer\nhas taken over"), "FencedError: root: another writer has taken over"),
        (ValueError("no such user"), f"ValueError: no such user: {NEXT_STEP}"),
        (ValueError(), f"ValueError: {NEXT_STEP}"),
        (
            RuntimeError(WORKER.format(line="pyspark_checkpointer.errors.CorruptionError: artifacts/x: is not there")),
            "pyspark_checkpointer.errors.CorruptionError: artifacts/x: is not there",
        ),
        (RuntimeError(WORKER.format(line="ValueError: a: b")), f"ValueError: a: b: {NEXT_STEP}"),
        (
            RuntimeError(WORKER.format(line="ModuleNotFoundError: No module named 'rates'")),
            f"ModuleNotFoundError: No module named 'rates': {FOR_TASKS}; then start the query again",
        ),
        (
            ModuleNotFoundError("No module named 'rates'"),
            f"ModuleNotFoundError: No module named 'rates': {NEXT_STEP}",
        ),
        (RuntimeError(WORKER.format(line="KeyboardInterrupt")), f"KeyboardInterrupt: {NEXT_STEP}"),
        (
            RuntimeError("An error occurred while calling o1.collect.\n: java.io.IOException: full\n\tat a.b"),
            f"RuntimeError: java.io.IOException: full: {NEXT_STEP}",
        ),
        (
            RuntimeError("Attempted to use Broadcast(3) after it was destroyed (destroy at x)"),
            f"RuntimeError: Attempted to use Broadcast(3) after it was destroyed (destroy at x): {AFTER_BATCH}",
        ),
    ],
)
def test_a_failure_is_told_in_one_line(error: Exception, said: str) -> None:
    assert describe(error) == said
    assert len(describe(ValueError("x" * 5000))) < 1200


def test_a_failed_batch_is_told_once_in_one_line(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        if batch_id == 1:
            batch.mapInArrow(broken, "key string").collect()

    job.feed(("a", 1))
    job.feed(("a", 1))
    with caplog.at_level(logging.ERROR, logger="pyspark_checkpointer"):
        failure(job, update)
    (record,) = [record for record in caplog.records if record.name == "pyspark_checkpointer"]
    assert record.getMessage() == f"{job.root}: batch 1 failed: ValueError: planted: {NEXT_STEP}"
    assert not record.exc_info


def broken(batches: Any) -> Any:
    raise ValueError("planted")
    yield


def test_every_public_error_can_be_told() -> None:
    for name in errors.__all__:
        assert describe(getattr(errors, name)("said")) == f"{name}: said"
