"""A batch of tables that fails, as in a full store: what it has written goes, since no cleanup may delete it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_checkpointer.checkpoint import metadata, upload
from pyspark_checkpointer.errors import DependencyError, InvalidStateError, StoreRefusedError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.runtime import forks, run_sync
from pyspark_checkpointer.spark import State, batch_attempt
from tests.spark.expiring import Place, given


def objects(place: Place) -> set[str]:
    return {entry.path for entry in run_sync(place.client.session.store.list(""))}


async def refuse(*_: Any, **__: Any) -> None:
    raise StoreRefusedError("No space left on device: free space there, or move the root")


def run(place: Place, callback: Callable[[State], None]) -> None:
    """Run a batch as the sink does."""
    state = place.begin(1)
    try:
        callback(state)
        place.commit(state)
    except Exception:
        state._attempt.abort()
        raise


@pytest.mark.parametrize("is_swallowed", [False, True])
def test_a_batch_of_which_a_table_is_refused_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, is_swallowed: bool
) -> None:
    place.batch(0, given((1, 0)))
    before = objects(place)

    def callback(state: State) -> None:
        first, second = (state.table(name, ["k"], num_partitions=2) for name in ("first", "second"))
        first.upsert(place.frame(given((1, 1), (2, 1))))
        first.read()  # so that its changes are written
        assert objects(place) > before
        monkeypatch.setattr(upload, "put_once", refuse)
        try:
            second.upsert(place.frame(given((1, 1))))
            second.read()
        except StoreRefusedError:
            if not is_swallowed:
                raise

    with pytest.raises(InvalidStateError, match="No space left"):
        run(place, callback)
    monkeypatch.undo()
    assert objects(place) == before
    place.batch(2, given((3, 2)))
    assert [row["k"] for row in place.rows()] == [1, 3]


def test_a_batch_whose_manifest_is_refused_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.batch(0, given((1, 0)))
    before = objects(place)

    def callback(state: State) -> None:
        state.table("t", ["k"], num_partitions=2).upsert(place.frame(given((1, 1), (2, 1))))

    monkeypatch.setattr(metadata, "put_manifest", refuse)
    with pytest.raises(StoreRefusedError, match="No space left"):
        run(place, callback)
    monkeypatch.undo()
    assert objects(place) == before
    place.batch(2, given((3, 2)))
    assert [row["k"] for row in place.rows()] == [1, 3]


def test_a_batch_that_fails_leaves_nothing(place: Place) -> None:
    """A job that fails at each restart would fill the disk otherwise."""
    place.batch(0, given((1, 0)))
    before = objects(place)

    def callback(state: State) -> None:
        state.map("m")["k"] = 1
        table = state.table("t", ["k"], num_partitions=2)
        table.upsert(place.frame(given((1, 1), (2, 1))))
        table.read()  # so that its changes are written
        assert objects(place) > before
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        run(place, callback)
    assert objects(place) == before
    place.batch(2, given((3, 2)))
    assert [row["k"] for row in place.rows()] == [1, 3]


@pytest.mark.parametrize("answer", ["an error", "none"])
def test_a_store_that_does_not_answer_hides_no_failure(
    place: Place, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    async def list_nothing(*_: object) -> None:
        if answer == "none":
            await asyncio.sleep(60)
        raise DependencyError("the store is away")

    def callback(state: State) -> None:
        table = state.table("t", ["k"], num_partitions=2)
        table.upsert(place.frame(given((1, 1))))
        monkeypatch.setattr(batch_attempt, "DISCARD_SECONDS", 0.1)
        monkeypatch.setattr(type(place.client.session.store), "list", list_nothing)
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        run(place, callback)


@pytest.mark.parametrize("is_away", [False, True])
def test_rows_that_functions_emitted_go_in_the_same_time(
    place: Place, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    place.batch(0, given((1, 0)))
    before, store = objects(place), place.client.session.store

    async def delete_nothing(*_: object) -> None:
        await asyncio.sleep(3)

    def callback(state: State) -> None:
        for name in ("first", "second"):
            state.table(name, ["k"], num_partitions=2).upsert(place.frame(given((1, 1))))
            path = object_paths.pack(name, state._attempt.checkpoint.attempt.id, sha256(b"emitted"), "parquet")
            run_sync(store.put(path, b"emitted"))
            state._attempt.tables[name]._emitted.append(path)
        if is_away:
            monkeypatch.setattr(batch_attempt, "DISCARD_SECONDS", 0.1)
            monkeypatch.setattr(type(store), "delete", delete_nothing)
        raise ValueError("on purpose")

    started = time.monotonic()
    with pytest.raises(ValueError, match="on purpose"):
        run(place, callback)
    if is_away:
        assert time.monotonic() - started < 3
    else:
        assert objects(place) == before


def test_rows_that_functions_emitted_go_also_where_the_store_lists_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their paths are known; what else tasks wrote only a listing tells."""
    place.batch(0, given((1, 0)))
    store, emitted = place.client.session.store, list[str]()

    def callback(state: State) -> None:
        state.table("t", ["k"], num_partitions=2).upsert(place.frame(given((1, 1))))
        emitted.append(object_paths.pack("t", state._attempt.checkpoint.attempt.id, sha256(b"emitted"), "parquet"))
        run_sync(store.put(emitted[0], b"emitted"))
        state._attempt.tables["t"]._emitted.extend(emitted)
        monkeypatch.setattr(type(store), "list", refuse)
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        run(place, callback)
    monkeypatch.undo()
    assert emitted
    assert not set(emitted) & objects(place)


def test_a_forked_child_leaves_the_batch_of_its_parent_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    state = place.begin(0)
    state.table("t", ["k"], num_partitions=2).upsert(place.frame(given((1, 0))))
    written = objects(place)
    assert written
    with monkeypatch.context() as patch:
        patch.setattr(forks, "current", forks.Process())  # as in a forked child
        state._attempt.abort()
    assert objects(place) == written
