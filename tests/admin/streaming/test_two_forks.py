"""Call one fork twice at the same time, with a model of what Spark does with its files.

One call stops at some request until another one has completed the fork and the second query has run.
"""

import asyncio
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.admin.streaming import fork, fork_log
from pyspark_checkpointer.errors import CheckpointNotFoundError, InvalidStateError
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.testing.faults import CrashError
from tests.admin.streaming.spark_model import Query, history

TO = 2


@pytest.fixture
def first(tmp_path: Path) -> Query:
    history(str(tmp_path / "root"))
    return Query(str(tmp_path / "root"))


def call(query: Query) -> Query:
    """Fork a query, and return the copy."""
    copy = Query(f"{query.root}-copy")
    Checkpointer(query.root).fork(f"epoch={TO}", copy.root, copy.spark)
    return copy


def interrupted(query: Query) -> None:
    """Make a fork that has its state, and no file of Spark's."""

    async def stop(*_: object) -> None:
        raise CrashError("before Spark's files")

    with pytest.MonkeyPatch.context() as patched, pytest.raises(CrashError):
        patched.setattr(fork, "write_log", stop)
        call(query)


class Late:
    """Let a call wait at its n-th use of a function, until `meanwhile` has happened."""

    def __init__(self, module: object, name: str, number: int, meanwhile: Callable[[], None]) -> None:
        self.module, self.name, self.left, self.meanwhile = module, name, number, meanwhile
        self.original = getattr(module, name)

    def __call__(self, query: Query) -> None:
        async def waits(*args: object) -> object:
            self.left -= 1
            if self.left == 0:
                await asyncio.to_thread(self.meanwhile)
            return await self.original(*args)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self.module, self.name, waits)
            call(query)


@pytest.mark.parametrize(
    ("module", "name", "number"),
    [
        (fork, "write_log", 1),
        (fork_log, "remove_file", 1),
        (fork_log, "_copy_sources", 1),
        (fork_log, "_source_files", 1),
        (fork_log, "_source_files", 2),
        (fork_log, "_source_files", 3),
        (fork_log, "_put", 1),
        (fork_log, "check_lists", 1),
    ],
    ids=lambda each: each if isinstance(each, str | int) else "",
)
def test_a_late_call_leaves_what_the_second_query_has_written(
    first: Query, module: object, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(first)
    copy, ran, before = Query(f"{first.root}-copy"), [], {}

    def meanwhile() -> None:
        call(first)
        ran.extend(copy.run(step=7) for _ in range(3))
        for path in ("sources/0/1", f"offsets/{TO - 1}"):
            (copy.spark / path).unlink()  # as Spark deletes old files
        before.update(copy.files())
        monkeypatch.setattr(fork_log, "check_lists", differ)

    async def differ(*_: object) -> None:
        raise AssertionError("the lists of a query that runs are not those of its first checkpoint")

    Late(module, name, number, meanwhile)(first)
    assert ran == [TO + 1, TO + 2, TO + 3]
    assert copy.files() == before
    assert copy.run(step=7) == TO + 4
    assert copy.read == (TO + 1) * 10 + 4 * 7


def test_a_late_call_deletes_no_metadata_that_a_query_may_read(first: Query) -> None:
    """Without them, a query that is started gets another id."""
    removed = list[str]()

    async def watch(store: Store, path: str) -> None:
        removed.append(path)
        await original(store, path)

    def meanwhile() -> None:
        call(first)
        removed.clear()

    original = fork_log.remove_file
    interrupted(first)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fork_log, "remove_file", watch)
        Late(fork, "write_log", 1, meanwhile)(first)
    assert removed == []


def test_a_late_call_puts_back_the_metadata_that_it_deleted(first: Query) -> None:
    """It deletes them after the other call has written them, and before the commit of the batch."""
    interrupted(first)

    def completes_without_metadata() -> None:
        (call(first).spark / "metadata").unlink()

    Late(fork_log, "_copy_sources", 1, completes_without_metadata)(first)
    assert Query(f"{first.root}-copy").run() == TO + 1


def test_a_query_that_was_started_without_metadata_is_named(first: Query) -> None:
    interrupted(first)

    def another_starts() -> None:
        copy = call(first)
        (copy.spark / "metadata").write_text('{"id":"66666666-2222-4333-8444-555555555555"}')

    with pytest.raises(InvalidStateError, match="a query was started here before the copy was complete"):
        Late(fork_log, "_copy_sources", 1, another_starts)(first)


def test_an_interrupted_fork_whose_checkpoint_was_retired_says_how_to_begin_anew(first: Query) -> None:
    interrupted(first)
    Checkpointer(first.root).clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    with pytest.raises(CheckpointNotFoundError, match="epoch"):
        call(first)
    copy = Query(f"{first.root}-copy")
    way_out = rf"epoch={TO}, or, if it was retired, empty both folders, this one and {copy.spark}, and fork another one"
    with pytest.raises(InvalidStateError, match=way_out):
        Checkpointer(first.root).fork("latest", copy.root, copy.spark)
    for folder in (copy.root, copy.spark):
        shutil.rmtree(folder, ignore_errors=True)
    Checkpointer(first.root).fork("latest", copy.root, copy.spark)
    assert copy.run() > TO + 1
