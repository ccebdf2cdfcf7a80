"""Files of offsets in Spark's second version: sources have ids or names there, and queries gain and lose them."""

import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import InvalidStateError
from tests.spark.conftest import Job
from tests.spark.needs import NAMED_SOURCES, needs_spark
from tests.spark.test_sink import failure, summing, totals

pytestmark = needs_spark("4.2", NAMED_SOURCES)

VERSION = "spark.sql.streaming.offsetLog.formatVersion"
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[Any]:
    """Set options of Spark for one test."""

    def choose(**options: str) -> None:
        for name, value in options.items():
            spark.conf.set({"version": VERSION, "evolution": EVOLUTION}[name], value)

    yield choose
    spark.conf.unset(VERSION)
    spark.conf.unset(EVOLUTION)


class Sources:
    """A query over folders of files, whose sources have the names of their folders, or none."""

    def __init__(self, job: Job, named: bool) -> None:
        self.job, self.named = job, named
        self._days = 0

    def feed(self, **amounts: int) -> None:
        """Write one file into each folder, of one row whose key is the name of the folder."""
        for name, amount in amounts.items():
            folder = self.job.folder / name
            folder.mkdir(exist_ok=True)
            self._days += 1
            file = folder / f"{self._days}.csv"
            file.write_text(f"{name},{amount}\n")
            os.utime(file, (1_700_000_000 + self._days,) * 2)

    def frame(self, names: str) -> DataFrame:
        frames = {}
        for name in names.split():
            reader = self.job.spark.readStream.schema("key string, amount long")
            frames[name] = (reader.name(name) if self.named else reader).csv(str(self.job.folder / name))
        return functools.reduce(DataFrame.union, [frames[name] for name in names.split()])

    def run(self, names: str, job: Job | None = None) -> dict[str, int]:
        job = job or self.job
        job.run(summing(job.root), self.frame(names))
        return totals(job.root)


@pytest.fixture
def named(job: Job, settings: Any) -> Sources:
    settings(version="2", evolution="true")
    return Sources(job, named=True)


def offsets(job: Job, batch: int) -> list[str]:
    return (job.location / "offsets" / str(batch)).read_text().split("\n")[2:]


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_source_that_stands_twice_in_a_query_has_one_list(job: Job, settings: Any, version: str) -> None:
    """So the number of the list of another source is not the number of its line."""
    settings(version=version)
    sources = Sources(job, named=False)
    for n in range(3):
        sources.feed(x=10**n, **({"y": 7} if n == 0 else {}))
        found = sources.run("x x y")
    assert found == {"x": 222, "y": 7}
    assert len(offsets(job, 2)) == (3 if version == "1" else 2)
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert set(restored.job.spark.lists) == {"0/1", "0/2", "1/0"}  # type: ignore[union-attr]
    assert not Checkpointer(job.root).rewind(to="latest").changes
    Checkpointer(job.root).rewind(to="epoch=0")
    assert sources.run("x x y") == {"x": 222, "y": 7}
    (job.location / "sources/1/0").write_text((job.location / "sources/0/0").read_text())
    (job.location / "sources/1/.0.crc").unlink()
    with pytest.raises(InvalidStateError, match="sources/1/0: the files that Spark's list has as number 0 are not"):
        Checkpointer(job.root).rewind(to="latest")


def test_a_query_goes_on_when_its_sources_change_places_come_and_go(named: Sources) -> None:
    named.feed(a=1, b=1)
    assert named.run("a b") == {"a": 1, "b": 1}
    named.feed(a=10, b=10)
    assert named.run("b a") == {"a": 11, "b": 11}
    named.feed(a=100, b=100, c=100)
    assert named.run("c b a") == {"a": 111, "b": 111, "c": 100}
    named.feed(a=1000, b=1000, c=1000)
    assert named.run("c b") == {"a": 111, "b": 1111, "c": 1100}
    assert [line.split(":")[0] for line in offsets(named.job, 3)] == ["b", "c"]


def test_a_source_that_only_the_last_batch_lacked_goes_on_where_it_was(named: Sources) -> None:
    for names in ("a b", "b", "a b"):
        named.feed(a=1, b=10)
        found = named.run(names)
    assert found == {"a": 3, "b": 30}


def test_a_source_that_comes_back_and_is_read_again_is_refused(named: Sources) -> None:
    """Spark has forgotten it: what the state has of it would count twice."""
    for names in ("a b", "a b", "b", "b"):
        named.feed(a=1, b=10)
        named.run(names)
    restored = Checkpointer(named.job.root).restore()
    assert restored is not None
    assert restored.job.spark.gone == {"a": '{"logOffset":1}'}  # type: ignore[union-attr]
    named.feed(a=1, b=10)
    message = failure(named.job, summing(named.job.root), named.frame("a b"))
    assert 'begins batch 4 with source a, which the state has read up to {"logOffset":1}' in message
    assert f"checkpointer rewind {named.job.root} latest" in message
    assert Checkpointer(named.job.root).rewind(to="latest").cut == ("offsets/4",)
    assert named.run("b") == {"a": 2, "b": 50}
    Checkpointer(named.job.root).rewind(to="epoch=1")
    assert named.run("a b") == {"a": 5, "b": 50}


@pytest.mark.parametrize("epoch", [1, *(pytest.param(epoch, marks=pytest.mark.prove) for epoch in (0, 2, 3))])
def test_a_rewind_crosses_the_batches_in_which_sources_came_and_went(named: Sources, epoch: int) -> None:
    for names in ("a b", "b a", "c b a", "c b"):
        named.feed(a=1, b=10, c=100)
        named.run(names)
    named.feed(b=10, c=100)
    expected = {"a": 3, "b": 50, "c": 500}
    assert named.run("c b") == expected
    Checkpointer(named.job.root).rewind(to=f"epoch={epoch}")
    # The query that reads the input again has all three, as a corrected job would.
    found = named.run("a b c" if epoch < 3 else "c b")
    assert found == expected | ({"a": 4} if epoch < 3 else {})


def test_an_undo_and_the_next_batch_after_sources_came_and_went(named: Sources) -> None:
    for names in ("a b", "c b a", "c b"):
        named.feed(a=1, b=10, c=100)
        found = named.run(names)
    Checkpointer(named.job.root).rewind(to="epoch=0")
    Checkpointer(named.job.root).undo_rewind()
    assert totals(named.job.root) == found
    named.feed(b=10, c=100)
    assert named.run("b c") == {"a": 2, "b": 40, "c": 400}


def test_a_fork_of_named_sources_goes_on(named: Sources, spark: SparkSession) -> None:
    for names in ("a b", "c b a"):
        named.feed(a=1, b=10, c=100)
        named.run(names)
    Checkpointer(named.job.root).fork("epoch=0", named.job.root + "-copy", named.job.folder / "spark-copy")
    copy = Job(spark, named.job.folder, "spark-copy", "root-copy")
    named.feed(a=1, b=10, c=100)
    assert named.run("c b a", copy) == named.run("a c b") == {"a": 3, "b": 30, "c": 300}


def test_offsets_that_spark_deleted_are_written_with_their_names(named: Sources) -> None:
    for _ in range(4):
        named.feed(a=1, b=10)
        named.run("a b")
    for folder in ("offsets", "commits"):
        for n in range(3):
            for name in (str(n), f".{n}.crc"):
                (named.job.location / folder / name).unlink()
    Checkpointer(named.job.root).rewind(to="epoch=1")
    assert offsets(named.job, 1) == ['a:{"logOffset":1}', 'b:{"logOffset":1}']
    assert named.run("b a") == {"a": 4, "b": 40}


def rewrite(job: Job, batch: int, lines: list[str]) -> None:
    path: Path = job.location / "offsets" / str(batch)
    path.write_text("\n".join([*path.read_text().split("\n")[:2], *lines]))
    (job.location / "offsets" / f".{batch}.crc").unlink()


def test_the_order_of_named_sources_says_nothing_and_their_offsets_do(named: Sources) -> None:
    for _ in range(2):
        named.feed(a=1, b=10)
        named.run("a b")
    first, second = offsets(named.job, 1)
    rewrite(named.job, 1, [second, first])
    named.feed(a=1, b=10)
    assert named.run("a b") == {"a": 3, "b": 30}
    rewrite(named.job, 2, [f"a:{json.dumps({'logOffset': 1})}", offsets(named.job, 2)[0].replace("a:", "b:")])
    named.feed(a=1, b=10)
    assert "other offsets" in failure(named.job, summing(named.job.root), named.frame("a b"))
    Checkpointer(named.job.root).rewind(to="latest")
    assert named.run("a b") == {"a": 4, "b": 40}
