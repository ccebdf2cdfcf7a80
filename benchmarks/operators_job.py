"""Count and sum per key with several operators: `python -m benchmarks.operators_job KEYS CHANGED TURNS BATCHES NAME…`.

It works in the current folder, with two cores. The first batch has KEYS keys, each later one CHANGED of them. For each
operator it prints, as JSON, the seconds of its batches. What each operator keeps is compared with the sums of all rows.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.micro_batches import Feed, Query, fingerprint, in_turns, location, session
from pyspark_checkpointer.spark import Change, Combine, Expire, State, read_state, stateful

PARTITIONS = 8
COLUMNS = "key long, n long, amount long"

SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

EXPIRE = Expire("at", after=timedelta(days=30))

Update = Callable[[DataFrame, int, State], None]


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))


def add(rows: pa.Table, state: pa.Table) -> pa.Table:
    """Return the new totals of all keys at once."""
    ones = pa.array(np.ones(rows.num_rows, dtype=np.int64))
    both = pa.concat_tables([rows.select(["key", "amount"]).append_column("n", ones), state], promote_options="default")
    found = both.group_by("key").aggregate([("n", "sum"), ("amount", "sum")])
    return found.rename_columns({"n_sum": "n", "amount_sum": "amount"})


def add_and_stamp(rows: pa.Table, state: pa.Table) -> pa.Table:
    """Return the new totals of all keys, with the time of the change."""
    found = add(rows, state.drop_columns(["at"]))
    now = pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC"))
    return found.append_column("at", pa.repeat(now, found.num_rows))


def add_one(key: tuple[Any, ...], rows: list[dict[str, Any]], row: dict[str, Any] | None) -> dict[str, Any]:
    """Return the new totals of one key."""
    before = row or {"n": 0, "amount": 0}
    return {"n": before["n"] + len(rows), "amount": before["amount"] + sum(row["amount"] for row in rows)}


def add_in_pandas(key: tuple[Any, ...], parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    n, amount = state.get if state.exists else (0, 0)
    for part in parts:
        n, amount = n + len(part), amount + int(part["amount"].sum())
    state.update((n, amount))
    yield pd.DataFrame({"key": [key[0]], "n": [n], "amount": [amount]})


class Adder(StatefulProcessor):
    """The same sums for `transformWithStateInPandas`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", "n long, amount long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        n, amount = self._totals.get() or (0, 0)
        for part in rows:
            n, amount = n + len(part), amount + int(part["amount"].sum())
        self._totals.update((n, amount))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "amount": [amount]})

    def close(self) -> None:
        pass


def emitted(made: pa.Table) -> Change:
    """Return a change that emits what it stores."""
    return Change(upserts=made, output=made)


def add_one_and_emit(key: tuple[Any, ...], rows: list[dict[str, Any]], row: dict[str, Any] | None) -> Change:
    made = add_one(key, rows, row)
    return Change(upserts=made, output=[{"key": key[0], **made}])


def write_nowhere(rows: DataFrame | None) -> None:
    assert rows is not None
    rows.write.format("noop").mode("overwrite").save()


def apply(batch: DataFrame, batch_id: int, state: State) -> None:
    table = state.table("t", ["key"], num_partitions=PARTITIONS, schema=COLUMNS)
    # Spark's operators emit a row for each key, and so does this.
    write_nowhere(table.apply(batch, lambda rows, old: emitted(add(rows, old)), output=COLUMNS))


def apply_expiring(batch: DataFrame, batch_id: int, state: State, expire: Expire | None = EXPIRE) -> None:
    columns = f"{COLUMNS}, at timestamp"
    state.table("t", ["key"], num_partitions=PARTITIONS, schema=columns, expire=expire).apply(batch, add_and_stamp)


def upsert_expiring(batch: DataFrame, batch_id: int, state: State, expire: Expire | None = EXPIRE) -> None:
    combine: dict[str, Combine] = {"n": "sum", "amount": "sum", "at": "max"}
    rows = totals(batch).withColumn("at", F.current_timestamp())
    state.table("t", ["key"], num_partitions=PARTITIONS, combine=combine, expire=expire).upsert(rows)


def apply_groups(batch: DataFrame, batch_id: int, state: State) -> None:
    table = state.table("t", ["key"], num_partitions=PARTITIONS, schema=COLUMNS)
    write_nowhere(table.apply_groups(batch, add_one_and_emit, output=COLUMNS))


def upsert(batch: DataFrame, batch_id: int, state: State) -> None:
    combine: dict[str, Combine] = {"n": "sum", "amount": "sum"}
    state.table("t", ["key"], num_partitions=PARTITIONS, combine=combine).upsert(totals(batch))


def first_seen(batch: DataFrame, batch_id: int, state: State) -> None:
    write_nowhere(state.table("t", ["key"], num_partitions=PARTITIONS).first_seen(batch))


def noop(batch: DataFrame, batch_id: int) -> None:
    write_nowhere(totals(batch))


OURS: Mapping[str, Update] = {
    "apply": apply,
    "apply_groups": apply_groups,
    "upsert": upsert,
    "first_seen": first_seen,
    "apply_stamped": partial(apply_expiring, expire=None),
    "apply_expiring": apply_expiring,
    "upsert_stamped": partial(upsert_expiring, expire=None),
    "upsert_expiring": upsert_expiring,
}


def main(keys: str, changed: str, turns: str, batches: str, *names: str) -> None:
    folder = Path.cwd()
    with session("local[2]", SETTINGS) as spark:
        feed = Feed(spark, folder / "input", partial(make_part, int(keys), int(changed)))
        queries = {name: query_of(feed, folder / name, name) for name in names}
        times = in_turns(feed, queries, folder, int(turns), int(batches))
        for name in set(names) - {"noop"}:
            check_sums(feed, kept_by(spark, folder, name), name)
        print(json.dumps({name: found.seconds for name, found in times.items()}))


def query_of(feed: Feed, root: Path, name: str) -> Query:
    """Return the query of an operator. One of ours keeps its state below `root`."""
    if name in OURS:
        sink = stateful(root)(OURS[name])
        return lambda: feed.stream().writeStream.foreachBatch(sink)
    match name:
        case "noop":
            return lambda: feed.stream().writeStream.foreachBatch(noop)
        case "applyInPandasWithState":
            arguments = (COLUMNS, "n long, amount long", "update", GroupStateTimeout.NoTimeout)
            make = lambda rows: rows.applyInPandasWithState(add_in_pandas, *arguments)  # noqa: E731
        case "transformWithStateInPandas":
            make = lambda rows: rows.transformWithStateInPandas(Adder(), COLUMNS, "Update", "None")  # noqa: E731
        case _:
            raise ValueError(f"{name}: no operator of this name")
    return lambda: make(feed.stream().groupBy("key")).writeStream.format("noop").outputMode("update")  # type: ignore[no-untyped-call]


STORED = {
    "applyInPandasWithState": ({}, "value.groupState.*"),
    "transformWithStateInPandas": ({"stateVarName": "totals"}, "value.*"),
}
"""Where Spark's own operators keep their sums: the options to read them, and their columns."""


def kept_by(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    """Return the state of an operator."""
    if name in OURS:
        return read_state(spark, folder / name, "t")
    options, values = STORED[name]
    stored = spark.read.format("statestore").options(**options).load(str(location(folder, name)))
    return stored.select("key.key", values)


def check_sums(feed: Feed, stored: DataFrame, name: str) -> None:
    """Compare the state of an operator with the sums of all rows."""
    given = totals(feed.read())
    if name == "first_seen":
        given = given.select("key")
    if fingerprint(stored.select(given.columns)) != fingerprint(given):
        raise AssertionError(f"{name}: the running sums are not the sums")


def make_part(keys: int, changed: int, number: int) -> pa.Table:
    """Return the rows of a batch: all keys in the first one, some of them in each later one."""
    draw = np.random.default_rng(number)
    chosen = draw.permutation(keys) if number == 0 else draw.choice(keys, changed, replace=False)
    return pa.table({"key": chosen, "amount": draw.integers(0, 100, len(chosen))})


if __name__ == "__main__":
    main(*sys.argv[1:])
