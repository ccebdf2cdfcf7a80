"""A client of Spark Connect: `python connect_client.py URL`. It reads what to run as lines of JSON, and answers so.

A line is the name of a function here, a folder, and arguments. The functions of foreachBatch are pickled as those of
any program are, and run in a process beside the server.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pyspark_checkpointer
from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.checkpoint.liveness import is_running
from pyspark_checkpointer.checkpoint.metrics import Metrics
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.spark import (
    Change,
    Expire,
    Snapshot,
    State,
    clean,
    diff,
    frame_of,
    plan_cleanup,
    read_changes,
    read_state,
    stateful,
)

spark: SparkSession
SCHEMA = "key string, amount long"


def run(folder: Path, sink: Any, location: str = "spark") -> str:
    """Run a query over the files of a folder until all are read, one a batch. Return its error, or ""."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).csv(str(folder / "input"))
    writer = source.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / location))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except PySparkException as error:
        return str(error)
    return ""


def sink(folder: Path, callback: Any, location: str | None = "spark", root: str = "root", **options: Any) -> Any:
    where = None if location is None else folder / location
    return stateful(folder / root, checkpoint_location=where, **options)(callback)


def count(batch: DataFrame, batch_id: int, state: State) -> None:
    totals = state.map("totals")
    for row in batch.collect():
        totals[row.key] = totals.get(row.key, 0) + row.amount
    totals["batches"] = totals.get("batches", 0) + 1


def state_of(folder: Path) -> Any:
    """Return the map of the last checkpoint, and its batch."""
    restored = Checkpointer(folder / "root").restore()
    if restored is None or restored.job is None:
        return None
    return {"totals": restored.keyed("totals").to_dict(), "batch": restored.job.batch_id}


# ---- maps ------------------------------------------------------------------------------------------------------------


def maps(folder: Path) -> Any:
    error = run(folder, sink(folder, count))
    restored = Checkpointer(folder / "root").restore()
    assert restored is not None
    assert restored.job is not None
    spark_progress = restored.job.spark
    return state_of(folder) | {
        "error": error,
        "query": restored.job.query_id,
        "location": spark_progress and spark_progress.location,
        "offsets": spark_progress and spark_progress.offsets,
        "lists": spark_progress and dict(spark_progress.lists),
    }


def maps_in_classic_location(folder: Path, location: str | None, root: str) -> str:
    """Return the error of a query that gives another location than its own."""
    return run(folder, sink(folder, count, location, root), "spark")


def crossed(folder: Path) -> str:
    """Return the error of a query that gives the location of another one, which is active."""
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    rows = numbers.selectExpr("'a' AS key", "value AS amount")
    writer = rows.writeStream.foreachBatch(sink(folder, count)).option("checkpointLocation", str(folder / "spark"))
    other = writer.trigger(processingTime="1 hour").start()
    try:
        while not (folder / "spark" / "commits" / "0").exists():
            time.sleep(0.05)
        return run(folder, sink(folder, count, "spark", "root-2"), "spark-2")
    finally:
        other.stop()


def outside(folder: Path) -> str:
    try:
        sink(folder, count)(spark.range(3), 0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def raising(folder: Path) -> str:
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("totals")["lost"] = 1
        raise SystemExit("no way")

    return run(folder, sink(folder, update))


def killed(folder: Path) -> str:
    """Kill the process of the function in batch 1, once."""

    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        count(batch, batch_id, state)
        marker = folder / "killed"
        if batch_id == 1 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return run(folder, sink(folder, update))


def wait_for_the_end(folder: Path) -> None:
    """Wait until the process of the function has ended, which the server ends soon after the query."""
    restored = Checkpointer(folder / "root").restore()
    assert restored is not None
    assert restored.job is not None
    deadline = time.monotonic() + 30
    while is_running(restored.job)[0] != "no":
        assert time.monotonic() < deadline, restored.job
        time.sleep(0.05)


def rewinding(folder: Path) -> Any:
    """Rewind within the function, which is refused, and once the query has ended."""

    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        count(batch, batch_id, state)
        if batch_id == 2:
            try:
                Checkpointer(folder / "root").rewind(to="epoch=0", stopped=True)
            except InvalidStateError as error:
                state.properties["refused"] = str(error)

    error = run(folder, sink(folder, update))
    restored = Checkpointer(folder / "root").restore()
    assert restored is not None
    refused = restored.properties["refused"]
    wait_for_the_end(folder)
    Checkpointer(folder / "root").rewind(to="epoch=0")
    back = state_of(folder)
    again = run(folder, sink(folder, count)), state_of(folder)
    return {"error": error, "refused": refused, "back": back, "again": again}


# ---- tables ----------------------------------------------------------------------------------------------------------


def rows_of(frame: DataFrame) -> list[Any]:
    return sorted(list(row) for row in frame.collect())


def applied(rows: pa.Table, state: pa.Table) -> Change:
    new = rows.group_by("key").aggregate([("amount", "sum")]).rename_columns(["key", "amount"])
    both = pa.concat_tables([new, state.select(["key", "amount"]).cast(new.schema)])
    sums = both.group_by("key").aggregate([("amount", "sum")]).rename_columns(["key", "amount"])
    return Change(upserts=sums, output=new)


def grouped(key: tuple[Any, ...], rows: list[dict[str, Any]], row: dict[str, Any] | None) -> dict[str, Any]:
    return {"n": len(rows) + (row["n"] if row else 0)}


def bytes_of(partition: int, batches: Iterator[pa.RecordBatch]) -> Snapshot:
    return Snapshot(b"%d" % sum(batch.num_rows for batch in batches))


KINDS = {
    "flag": "amount > 1",
    "small": "CAST(amount AS tinyint)",
    "real": "CAST(amount AS float) / 3",
    "nan": "double('NaN')",
    "price": "CAST(amount AS decimal(20, 4)) / 3",
    "data": "CAST(key AS binary)",
    "day": "date'2024-02-29'",
    "at": "timestamp'2024-03-31 01:30:00.123456 UTC'",
    "local": "timestamp_ntz'2024-03-31 02:30:00.123456'",
    "took": "INTERVAL '1 02:03:04.5' DAY TO SECOND",
    "list": "array(timestamp'1969-12-31 23:59:59.999999 UTC', null)",
    "map": "map(key, struct(amount, timestamp'2024-03-31 01:30:00 UTC' AS at))",
    "nothing": "CAST(null AS struct<a: array<date>>)",
    "any": "parse_json('{\"a\": [1, 2.5, null]}')",
    "text": "key COLLATE UTF8_LCASE",
}


def kinds(folder: Path) -> Any:
    """Write values of all types by tasks, then in the process of the function. Return what differs from the batch."""

    def shown(frame: DataFrame) -> list[str]:
        text = {name: f"to_json({name})" if name == "any" else name for name in frame.columns}
        return sorted(
            str(row) for row in frame.selectExpr(*(f"{value} AS {name}" for name, value in text.items())).collect()
        )

    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        rows = batch.selectExpr("key", "amount", *(f"{value} AS {name}" for name, value in KINDS.items()))
        given = shown(rows)
        table = state.table("kinds", ["key"], num_partitions=2)
        table.upsert(rows)
        wanted = batch.select("key")
        seen = {"read": table.lookup(wanted), "new": state.table("known", ["key"]).first_seen(rows)}
        state.map("totals")[batch_id] = {name: [given, shown(frame)] for name, frame in seen.items()}

    error = run(folder, sink(folder, update))
    restored = Checkpointer(folder / "root").restore()
    return [error, None if restored is None else [*restored.keyed("totals").to_dict().values()]]


def tables(folder: Path) -> Any:
    """Use all verbs of tables in each batch. Return what they returned, by batch."""

    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        sums = state.table("sums", ["key"], num_partitions=3, combine={"amount": "sum"}, schema=SCHEMA)
        sums.upsert(batch)
        seen: dict[str, Any] = {"read": rows_of(sums.read())}
        seen["lookup"] = rows_of(sums.lookup(batch.where("key = 'a'").select("key").distinct()))
        own = state.table("applied", ["key"], num_partitions=3, schema=SCHEMA)
        emitted = own.apply(batch, applied, output=SCHEMA)
        assert emitted is not None
        seen["applied"] = [rows_of(emitted), rows_of(own.read())]
        groups = state.table("groups", ["key"], num_partitions=3, schema="key string, n long")
        groups.apply_groups(batch, grouped)
        seen["groups"] = rows_of(groups.read())
        seen["new"] = sorted(row.key for row in state.table("known", ["key"]).first_seen(batch).collect())
        last = state.table("last", ["key"], num_partitions=2)
        last.replace(batch.groupBy("key").count())
        last.delete(batch.where("key = 'b'").select("key"))
        seen["last"] = rows_of(last.read())
        rule = Expire("at", after=timedelta(hours=1))
        expiring = state.table("expiring", ["key"], num_partitions=2, expire=rule)
        late = f"timestamp_seconds(unix_timestamp(timestamp'{state.clock.isoformat()}') - 7200)"
        expiring.upsert(batch.selectExpr("key", f"{late} AS at").distinct())
        seen["expired"] = sorted(row.key for row in expiring.expired().collect())
        state.write_partitions("raw", batch, bytes_of, key=["key"], num_partitions=1)
        state.map("seen", partitions=1)[batch_id] = seen

    error = run(folder, sink(folder, update))
    restored = Checkpointer(folder / "root").restore()
    assert restored is not None
    return {
        "error": error,
        "seen": {str(batch): seen for batch, seen in restored.keyed("seen").to_dict().items()},
        "sums": sorted(map(list, zip(*restored.table("sums").to_pydict().values(), strict=True))),
        "raw": sum(int(restored.operator("raw").partition(n)[-1]) for n in restored.operator("raw").partitions),
    }


def other_job(folder: Path) -> Any:
    """Read the tables and maps of another job in each batch."""

    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        other = state.other(folder / "root")
        state.map("totals")[batch_id] = [rows_of(other.table("sums")), sorted(other.map("seen"))]

    error = run(folder, sink(folder, update, "spark-2", "root-2"), "spark-2")
    restored = Checkpointer(folder / "root-2").restore()
    assert restored is not None
    return [error, restored.keyed("totals")[0]]


def measured(folder: Path) -> str:
    """Count the metrics of a query, in a file: the process that calls this client's function is another one."""

    def note(record: Metrics) -> None:
        with (folder / "metrics").open("a") as file:
            file.write(f"{type(record).__name__}\n")

    return run(folder, sink(folder, count, metrics=note))


def measured_by_what_cannot_travel(folder: Path) -> list[str]:
    lock = threading.Lock()

    def note(record: Metrics) -> None:
        with lock:
            pass

    try:
        return [run(folder, sink(folder, count, metrics=note))]
    except PySparkException as error:
        return [type(error).__name__, str(error.__context__)]


def of_another_version(folder: Path) -> str:
    mine, pyspark_checkpointer.__version__ = pyspark_checkpointer.__version__, "0.0.1"
    try:
        return run(folder, sink(folder, count))
    except PySparkException as error:
        return str(error)
    finally:
        pyspark_checkpointer.__version__ = mine


def memory(folder: Path) -> str:
    return run(folder, stateful("memory://nowhere", checkpoint_location=folder / "spark")(count))


# ---- packages --------------------------------------------------------------------------------------------------------


def shipped(folder: Path, archive: str | None) -> Any:
    """Use a map and a table, whose tasks may get the package as an artifact of the session."""
    if archive:
        spark.addArtifacts(archive, pyfile=True)

    def modules(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark_checkpointer

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"module": [pyspark_checkpointer.__file__] * batch.num_rows})

    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        count(batch, batch_id, state)
        state.table("sums", ["key"], num_partitions=3, combine={"amount": "sum"}).upsert(batch)
        state.map("modules")[batch_id] = sorted(
            {row[0] for row in batch.mapInArrow(modules, "module string").collect()}
        )

    error = run(folder, sink(folder, update))
    if error:
        return error
    restored = Checkpointer(folder / "root").restore()
    assert restored is not None
    read = rows_of(read_state(spark, folder / "root", "sums"))
    return [restored.keyed("totals").to_dict(), read, restored.keyed("modules").to_dict()[0]]


# ---- kills -----------------------------------------------------------------------------------------------------------


def end(folder: Path, batch_id: int, stage: str) -> None:
    """Kill the process that the file `kill` names for this stage of this batch, or else this one. Once."""
    order = folder / "kill"
    if order.exists():
        batch, at, pid = json.loads(order.read_text())
        if (batch, at) == (batch_id, stage):
            order.unlink()
            os.kill(pid or os.getpid(), signal.SIGKILL)


def dying(folder: Path) -> str:
    """Change a map and a table in each batch, and kill what is to be killed."""

    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        end(folder, batch_id, "begun")
        count(batch, batch_id, state)
        state.table("sums", ["key"], num_partitions=3, combine={"amount": "sum"}).upsert(batch)
        end(folder, batch_id, "changed")
        swap_pointer: Any = getattr(Session._swap, "before", Session._swap)

        async def swap(session: Session, *args: Any) -> Any:
            end(folder, batch_id, "swapping")
            swapped = await swap_pointer(session, *args)
            end(folder, batch_id, "swapped")
            return swapped

        swap.before = swap_pointer  # type: ignore[attr-defined]
        Session._swap = swap  # type: ignore[method-assign]

    stateful_update = sink(folder, update)

    def whole(batch: DataFrame, batch_id: int) -> None:
        stateful_update(batch, batch_id)
        end(folder, batch_id, "returned")

    return run(folder, whole)


def left(folder: Path) -> Any:
    restored = Checkpointer(folder / "root").restore()
    assert restored is not None
    table = restored.table("sums").to_pydict()
    return [restored.keyed("totals").to_dict(), dict(zip(table["key"], table["amount"], strict=True))]


# ---- reading, from the client ----------------------------------------------------------------------------------------


def reading(folder: Path) -> Any:
    root = folder / "root"
    wanted = spark.createDataFrame([("a",)], "key string")
    source = spark.read.format("checkpointer")
    return {
        "read_state": rows_of(read_state(spark, root, "sums")),
        "epoch": rows_of(read_state(spark, root, "sums", epoch=0)),
        "keys": rows_of(read_state(spark, root, "sums", keys=wanted)),
        "diff": rows_of(diff(spark, root, "epoch=0", "latest", "sums").select("key", "change", "after.amount")),
        "changes": read_changes(spark, root, "sums", after="epoch=1").count(),
        "source": rows_of(source.option("operator", "sums").load(str(root))),
        "view": spark.read.format("checkpointer").option("view", "checkpoints").load(str(root)).count(),
    }


def following(folder: Path) -> int:
    changes = spark.readStream.format("checkpointer").option("view", "changes").option("operator", "sums")
    writer = changes.load(str(folder / "root")).writeStream.format("parquet")
    query = writer.option("checkpointLocation", str(folder / "follower")).trigger(availableNow=True)
    query.start(str(folder / "followed")).awaitTermination()
    return spark.read.parquet(str(folder / "followed")).count()


def cleaning(folder: Path) -> Any:
    root = folder / "root"
    policy = RetentionPolicy(keep_last=1, grace=timedelta(0))
    plan = {
        row["action"]: row["count"] for row in plan_cleanup(spark, root, policy).groupBy("action").count().collect()
    }
    planned = Checkpointer(root).plan(policy)
    done = clean(spark, root, policy)
    return {
        "plan": plan,
        "frame": frame_of(spark, planned).count() == len([*planned]),
        "retired": len(done.retired),
        "deleted": done.deleted.objects,
        "left": rows_of(read_state(spark, root, "sums")),
    }


def serve(functions: Mapping[str, Any]) -> None:
    """Run the functions that the lines name, and print their answers."""
    for line in sys.stdin:
        name, folder, *args = json.loads(line)
        try:
            told = {"answer": functions[name](Path(folder), *args)}
        except Exception:
            told = {"failed": traceback.format_exc()}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    serve(globals())
