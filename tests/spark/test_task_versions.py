"""A task that was made by another version of this library does nothing: it may lack what the driver has put into it."""

import pickle
import re
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.spark import State, stateful
from pyspark_checkpointer.spark.apply_task import ApplyTask
from pyspark_checkpointer.spark.change_feed import FeedTask
from pyspark_checkpointer.spark.emitted import EmittedTask
from pyspark_checkpointer.spark.executors import own_version
from pyspark_checkpointer.spark.raw_partitions import _PartitionTask
from pyspark_checkpointer.spark.scan import LookupTask, ReadTask
from pyspark_checkpointer.spark.scan_expired import ExpiredTask
from pyspark_checkpointer.spark.task_client import TaskRoot
from pyspark_checkpointer.spark.write_tasks import CompactTask, Target, TaskOutput, WriteTask
from tests.spark.needs import DATA_SOURCES, needs_spark

Run = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

NUMBERS = pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int32())})

REFUSED = (
    rf"^the driver has pyspark_checkpointer 0\.0\.1, and a task on {socket.gethostname()} has {own_version()} \(.*\): "
    "they need the same version: install it"
)


def made_by(version: str) -> TaskRoot:
    return TaskRoot(version, pickle.dumps(Checkpointer("memory://versions")), socket.gethostname())


def tasks(root: TaskRoot, rest: Any) -> dict[str, Run]:
    """All tasks, of which nothing but the root is what the task needs."""
    target = Target(root, rest, "t", rest, 1, 0)
    raw = _PartitionTask(root, rest, "raw", rest)
    return {
        "write": WriteTask(target, 0, whole=False).run,
        "apply": ApplyTask(target, rest, rest, rest).run,
        "compact": CompactTask(root, rest, rest, [[0]], {0: 0}).run,
        "read": ReadTask(root, rest, rest, [[0]], None).run,
        "look up": LookupTask(root, rest, rest, None).run,
        "emitted": EmittedTask(root, ["path"]).run,
        "expired": ExpiredTask(root, rest, rest, [[0]], []).run,
        "changes": FeedTask(root, rest).run,
        "raw": lambda batches: raw._store(0, batches).to_batches(),
        "raw of a key": raw.run_partitions,
    }


@pytest.mark.parametrize("name", tasks(made_by("1"), None))
def test_a_task_of_another_version_is_refused_before_it_does_anything(name: str) -> None:
    rest = Mock()
    with pytest.raises(InvalidStateError, match=REFUSED):
        for batch in tasks(made_by("0.0.1"), rest)[name](iter([NUMBERS])):
            TaskOutput.load(batch["written"][0].as_py()).raise_refused()
    assert rest.mock_calls == []


def test_the_version_stays_where_older_and_newer_tasks_look_for_it() -> None:
    """Python pickles the root by the positions of its fields, and each task has it first."""
    assert fields(TaskRoot)[0].name == "version"
    for task in (CompactTask, ReadTask, LookupTask, EmittedTask, ExpiredTask, FeedTask, _PartitionTask, Target):
        assert fields(task)[0].name == "root", task
    assert [fields(task)[0].name for task in (WriteTask, ApplyTask)] == ["target"] * 2
    assert made_by(own_version()).open().root == "memory://versions"


@needs_spark("4.0", DATA_SOURCES)
def test_a_reader_of_another_version_is_refused_before_it_reads() -> None:
    from pyspark.sql.datasource import InputPartition

    from pyspark_checkpointer.spark.change_source import FeedPartition, FeedSourceReader, FeedStreamReader
    from pyspark_checkpointer.spark.datasource import PartitionRead, TableSourceReader
    from pyspark_checkpointer.spark.source_views import ViewSourceReader

    rest = Mock()
    feed = FeedPartition(rest, "host", "0.0.1")
    readers: list[tuple[Any, Any]] = [
        (TableSourceReader(rest, Mock()), PartitionRead(None, rest, [0], "host", "0.0.1")),
        (FeedSourceReader(rest, rest), feed),
        (FeedStreamReader(rest, "t", None, rest), feed),
        (ViewSourceReader(rest), InputPartition("0.0.1")),
    ]
    for reader, partition in readers:
        with pytest.raises(InvalidStateError, match=REFUSED):
            list(reader.read(partition))
    assert rest.mock_calls == []


def _fail() -> None:
    raise AssertionError("it was unpickled")


class Unreadable:
    def __reduce__(self) -> Any:
        return _fail, ()


def keep(batch: Any, batch_id: int, state: State) -> None:
    """Do nothing."""


def test_a_function_of_another_version_is_refused_before_its_parts_are_unpickled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process beside a server of Spark Connect makes all commits, and its Python may have another version."""
    sink = stateful("memory://versions")(keep)
    monkeypatch.setattr(sink, "part", Unreadable(), raising=False)
    with pytest.raises(AssertionError, match="it was unpickled"):
        pickle.loads(pickle.dumps(sink))
    with monkeypatch.context() as there:
        there.setattr("pyspark_checkpointer.__version__", "0.0.1")
        made = pickle.dumps(sink)
    said = (
        "the function of foreachBatch comes from a program with pyspark_checkpointer 0.0.1, and the Python of the "
        f"server, {sys.executable}, has {own_version()}: they need the same version: install it there"
    )
    with pytest.raises(InvalidStateError, match=f"^{re.escape(said)}$"):
        pickle.loads(made)
