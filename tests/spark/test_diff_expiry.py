"""Compare what `diff` calls expired, in Spark and on the command line, with the history of the key."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.cli.app import checkpointer as command
from pyspark_checkpointer.spark import Expire, diff
from tests.proof.plain_spark import plain_spark
from tests.spark.expiring import DAY, RULE, START, Place, given

LATER = [None, Expire("seen", after=20 * DAY), Expire("other", after=DAY)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place()
    place.client = Checkpointer(tmp_path / "root")
    with plain_spark(place.draw):
        yield place


def told(place: Place, before: str, after: str, name: str = "t") -> dict[int, str]:
    """Return what the command says of each key."""
    said = CliRunner().invoke(command, ["diff", place.client.root, before, after, name, "--json"])
    return {found["key"]["k"]: found["change"] for found in json.loads(said.stdout)["keys"]}


def history(place: Place, key: int) -> list[str]:
    restored = place.client.copy().restore()
    assert restored is not None
    return [change.change for change in restored.history("t", key).changes]


@pytest.mark.parametrize("later", LATER, ids=str)
def test_a_row_that_expired_before_the_rule_changed(place: Place, later: Expire | None) -> None:
    other = pa.array([START + 100 * DAY] * 3, pa.timestamp("us", "UTC"))
    place.batch(0, given((1, 0), (2, 15), (3, 15), other=other))
    place.batch(10)
    state = place.begin(11)
    state.table("t", ["k"], expire=later).delete(place.frame(pa.table({"k": [3]})))
    place.commit(state)
    assert [history(place, key)[-1] for key in (1, 3)] == ["expire", "delete"]
    assert told(place, "epoch=0", "epoch=1") == {1: "expired"}
    assert told(place, "epoch=0", "epoch=2") == {1: "expired", 3: "deleted"}
    assert told(place, "epoch=1", "epoch=2") == {3: "deleted"}
    assert told(place, "epoch=2", "epoch=0") == {1: "inserted", 3: "inserted"}


def test_a_row_that_came_back_by_a_rollback_and_was_deleted(place: Place) -> None:
    place.batch(0, given((1, 0), (2, 5)))
    place.batch(20)
    place.client.rollback("epoch=0")
    state = place.begin(1)
    state.table("t", ["k"], expire=RULE).delete(place.frame(pa.table({"k": [1]})))
    place.commit(state)
    first = str(place.client.list_checkpoints()[0])
    assert history(place, 1) == ["insert", "expire", "insert", "delete"]
    assert told(place, first, "latest") == {1: "deleted"}


def test_a_table_that_was_dropped_after_a_row_expired(place: Place) -> None:
    place.batch(0, given((1, 0), (2, 15)))
    place.batch(10)
    state = place.begin(10)
    state.drop("t")
    place.commit(state)
    assert told(place, "epoch=0", "latest") == {1: "expired", 2: "deleted"}


def test_checkpoints_between_that_are_gone_say_nothing(place: Place) -> None:
    place.batch(0, given((1, 0), (2, 15)))
    place.client.savepoint("first")
    place.batch(10)
    for _ in range(2):
        place.batch(11, expire=None)
    assert told(place, "first", "latest") == {1: "expired"}
    place.client.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    assert told(place, "first", "latest") == {1: "deleted"}


def remade(place: Place, seen: Any) -> None:
    """A column `seen`, which is dropped; then rows expire by another column of this name, and key 1 is deleted."""
    place.batch(0, pa.table({"k": [1, 2], "seen": seen}), expire=None)
    state = place.begin(0)
    state.table("t", ["k"]).drop_columns(["seen"])
    place.commit(state)
    state = place.begin(1)
    table = state.table("t", ["k"], expire=RULE)
    table.delete(place.frame(pa.table({"k": [1]})))
    table.upsert(place.frame(given((2, 1))))
    place.commit(state)
    assert history(place, 1) == ["insert", "update", "delete"]


def in_spark(spark: SparkSession, root: str) -> dict[int, str]:
    """Return what `diff` says of each key."""
    found = diff(spark, root, "epoch=0", "latest", "t").select("k", "change").collect()
    return {row.k: row.change for row in found}


@pytest.mark.parametrize("seen", [given((1, -100), (2, -100))["seen"], [5, 6]], ids=["a time", "a number"])
def test_a_dropped_column_of_the_name_of_the_time_says_nothing(spark: SparkSession, tmp_path: Path, seen: Any) -> None:
    place = Place()
    place.client = Checkpointer(tmp_path / "root")
    with plain_spark(place.draw):
        remade(place, seen)
    assert told(place, "epoch=0", "latest") == {1: "deleted", 2: "updated"}
    assert in_spark(spark, place.client.root) == {1: "deleted", 2: "updated"}


@pytest.mark.parametrize("later", LATER[:2], ids=str)
def test_spark_says_the_same_of_a_rule_that_changed(spark: SparkSession, tmp_path: Path, later: Expire | None) -> None:
    place = Place()
    place.client = Checkpointer(tmp_path / "root")
    with plain_spark(place.draw):
        place.batch(0, given((1, 0), (2, 15), (3, None)))
        place.batch(10)
        state = place.begin(11)
        state.table("t", ["k"], expire=later).delete(place.frame(pa.table({"k": [2, 3]})))
        place.commit(state)
    expected = {1: "expired", 2: "deleted", 3: "deleted"}
    assert told(place, "epoch=0", "latest") == expected
    assert in_spark(spark, place.client.root) == expected


def test_a_row_is_expired_whatever_a_timestamp_is_called_in_the_session(spark: SparkSession, tmp_path: Path) -> None:
    place = Place()
    place.client = Checkpointer(tmp_path / "root")
    with plain_spark(place.draw):
        place.batch(0, given((1, 0), (2, 0.1)))
        place.batch(10)
    settings = {"spark.sql.session.timeZone": "Asia/Kathmandu", "spark.sql.timestampType": "TIMESTAMP_NTZ"}
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        found = diff(spark, place.client.root, "epoch=0", "epoch=1", "t").collect()
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert [(row.k, row.change) for row in found] == [(1, "expired")]
