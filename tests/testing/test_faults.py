"""A faulty store fails as the test says, and in no other way."""

import asyncio
import inspect
import re
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import (
    CorruptionError,
    DependencyError,
    IllegalArgumentError,
    OutcomeUnknownError,
    ThrottlingError,
)
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import ObjectNotFoundError, open_store
from pyspark_checkpointer.storage.base import PreconditionFailedError
from pyspark_checkpointer.testing import CrashError, Faults, FaultyStore, Request, injected
from tests.conftest import Root


@pytest.fixture
def store(any_root: Root) -> FaultyStore:
    """Return a faulty store of each kind; its retries are beneath the faults."""
    return FaultyStore(open_store(any_root.url, any_root.storage_options))


def test_without_faults_it_is_the_store_it_wraps(store: FaultyStore) -> None:
    run_sync(store.put("a/b", b"1"))
    version = run_sync(store.compare_and_swap("_latest", b"2", None))
    assert run_sync(store.get("a/b")).data == b"1"
    assert run_sync(store.get("_latest")).version == version
    assert run_sync(store.get_range("a/b", 0, 9)) == b"1"
    assert [entry.path for entry in run_sync(store.list(""))] == ["_latest", "a/b"]
    assert list(run_sync(store.folders(""))) == ["a/"]
    run_sync(store.delete(["a/b"]))
    assert (store.url, store.fencing) == (store.inner.url, True)
    lists = 3 if store.url.startswith("dbfs") else 2  # a volume lists each directory by itself
    assert store.faults.counts == {"put": 1, "swap": 1, "get": 2, "get_range": 1, "list": lists, "delete": 1}
    run_sync(store.close())


@pytest.mark.parametrize("after", [False, True])
def test_a_request_fails_before_or_after_it_took_effect(store: FaultyStore, after: bool) -> None:
    store.faults.fail("put", 2, after=after)
    run_sync(store.put("a", b"1"))
    with pytest.raises(DependencyError):
        run_sync(store.put("b", b"2"))
    run_sync(store.put("c", b"3"))
    assert [entry.path for entry in run_sync(store.list(""))] == (["a", "b", "c"] if after else ["a", "c"])
    run_sync(store.close())


def memory(**options: Any) -> FaultyStore:
    return FaultyStore(open_store(f"memory://{uuid.uuid4().hex}"), Faults(**options))


@pytest.fixture
def plain(tmp_path: Any) -> FaultyStore:
    return FaultyStore(open_store(tmp_path / "root"))


def test_a_late_write_lands_when_it_is_told(plain: FaultyStore) -> None:
    late = plain.faults.late("put")
    with pytest.raises(DependencyError):
        run_sync(plain.put("a", b"1"))
    with pytest.raises(ObjectNotFoundError):
        run_sync(plain.get("a"))
    assert late[0].land()
    assert run_sync(plain.get("a")).data == b"1"


def test_a_late_swap_is_refused_where_another_came_first(plain: FaultyStore) -> None:
    late = plain.faults.late()
    with pytest.raises(DependencyError):
        run_sync(plain.compare_and_swap("_latest", b"1", None))
    run_sync(plain.compare_and_swap("_latest", b"2", None))
    assert not late[0].land()
    assert run_sync(plain.get("_latest")).data == b"2"


def test_the_dead_are_not_served(plain: FaultyStore) -> None:
    plain.faults.crash(2, after=True)
    run_sync(plain.put("a", b"1"))
    with pytest.raises(CrashError):
        run_sync(plain.put("b", b"2"))
    with pytest.raises(CrashError):
        run_sync(plain.get("b"))
    plain.faults.clear()
    assert run_sync(plain.get("b")).data == b"2"


def test_a_delayed_request_is_overtaken(plain: FaultyStore) -> None:
    async def race() -> list[str]:
        done: list[str] = []

        async def put(path: str) -> None:
            await plain.put(path, b"1")
            done.append(path)

        await asyncio.gather(put("slow"), put("fast"))
        return done

    plain.faults.delay(0.3, "put", path="slow")
    assert run_sync(race()) == ["fast", "slow"]


def test_a_bit_of_an_answer_is_flipped_and_the_object_is_not(plain: FaultyStore) -> None:
    run_sync(plain.put("a", b"\0\0"))
    plain.faults.flip(path="a", bit=9)
    assert run_sync(plain.get("a")).data == b"\0\2"
    assert run_sync(plain.get("a")).data == b"\0\0"
    plain.faults.flip("get_range", bit=0)
    assert run_sync(plain.get_range("a", 1, 1)) == b"\1"


def test_a_listing_may_be_of_a_moment_ago(plain: FaultyStore) -> None:
    for path in ("a", "b", "c"):
        run_sync(plain.put(path, b"1"))
    run_sync(plain.delete(["a"]))
    plain.faults.stale_listing(lag=2)
    run_sync(plain.folders(""))
    assert [entry.path for entry in run_sync(plain.list(""))] == ["a", "b"]
    assert [entry.path for entry in run_sync(plain.list(""))] == ["b", "c"]


def test_a_stale_listing_does_not_know_what_a_swap_made(plain: FaultyStore) -> None:
    version = run_sync(plain.compare_and_swap("a", b"1", None))
    run_sync(plain.compare_and_swap("a", b"2", version))
    run_sync(plain.compare_and_swap("b", b"1", None))
    plain.faults.stale_listing(lag=1)
    assert [entry.path for entry in run_sync(plain.list(""))] == ["a"]
    plain.faults.stale_listing(lag=2)
    assert [entry.path for entry in run_sync(plain.list(""))] == []


@pytest.mark.parametrize(
    "script",
    [
        lambda: Faults().fail("explode"),
        lambda: Faults().fail("put", 0),
        lambda: Faults().fail("put", times=0),
        lambda: Faults().late("get"),
        lambda: Faults().stale_listing(lag=0),
        lambda: Faults().flip("put"),
        lambda: Faults(seed=7, failures=["explode"]),
        lambda: Faults(seed=7, failures=[]),
        lambda: Faults(seed=7, rate=7),
        lambda: Faults(rate=1.0),
        lambda: Faults(failures=("fail",)),
        lambda: Faults().delay(-1),
        lambda: Faults().tear(share=1.0),
        lambda: Faults().call(asyncio.sleep),  # type: ignore[arg-type]
    ],
)
def test_a_script_of_what_cannot_happen_is_refused(script: Callable[[], object]) -> None:
    with pytest.raises(IllegalArgumentError):
        script()


class Waits:
    async def __call__(self, request: Request) -> None:
        """Does what is never awaited."""


async def waits(request: Request) -> None:
    """Does what is never awaited."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("action", [Waits(), lambda request: waits(request)])
def test_an_action_that_would_not_be_awaited_is_refused(
    plain: FaultyStore, action: Callable[[Request], object], after: bool
) -> None:
    plain.faults.call(action, "put", after=after)
    with pytest.raises(IllegalArgumentError, match="returned a coroutine"):
        run_sync(plain.put("a", b"1"))


def test_what_was_written_is_counted_and_not_kept(plain: FaultyStore) -> None:
    """A long test with a seed ran out of memory."""
    data = bytes(1000)
    kept = sys.getrefcount(data)
    run_sync(plain.put("a", data))
    run_sync(plain.put("b", data))
    assert [request.size for request in plain.faults.requests] == [1000, 1000]
    assert sys.getrefcount(data) == kept
    assert not any(request.data for request in plain.faults.requests)
    run_sync(plain.delete(["a"]))
    plain.faults.stale_listing(lag=1)
    assert [(entry.path, entry.size) for entry in run_sync(plain.list(""))] == [("a", 1000), ("b", 1000)]


def test_a_torn_write_leaves_its_beginning() -> None:
    store = memory()
    store.faults.tear(path="a")
    with pytest.raises(DependencyError):
        run_sync(store.put("a", b"12345"))
    assert run_sync(store.get("a")).data == b"12"


def test_too_many_requests_are_refused_as_stores_do(plain: FaultyStore) -> None:
    plain.faults.throttle(times=2)
    for _ in range(2):
        with pytest.raises(ThrottlingError):
            run_sync(plain.put("a", b"1"))
    run_sync(plain.put("a", b"1"))


def outcomes(seed: int) -> list[str]:
    store, seen = memory(seed=seed, rate=0.5), []
    for number in range(60):
        try:
            run_sync(store.put(f"{number:02}", b"1"))
            seen.append("done")
        except (DependencyError, ThrottlingError) as error:
            seen.append(type(error).__name__)
    return [*seen, *(entry.path for entry in run_sync(store.inner.list("")))]


def test_a_seed_always_fails_in_the_same_way() -> None:
    assert outcomes(7) == outcomes(7) != outcomes(8)
    assert {"done", "DependencyError", "ThrottlingError"} < set(outcomes(7))


def damage(act: Callable[[Faults], None]) -> None:
    """Commit, put a fault in, and restore with a new client."""
    root = f"memory://{uuid.uuid4().hex}"
    with Checkpointer(root) as first, first.begin() as cp:
        cp.snapshot("op", 0, b"content")
    with injected(Faults()) as faults, Checkpointer(root) as second:
        act(faults)
        restored = second.restore()
        assert restored is not None
        assert restored.operator("op").partition(0) == [b"content"]


def test_faults_reach_what_a_job_opens_and_only_within_the_block() -> None:
    damage(lambda faults: faults.fail("get", times=3))  # got over by trying again
    with pytest.raises(CorruptionError):
        damage(lambda faults: faults.flip(path="artifacts/"))
    with pytest.raises(CrashError):
        damage(lambda faults: faults.crash(2))
    damage(lambda faults: None)


def test_an_unanswered_swap_of_a_job_is_an_unknown_outcome() -> None:
    root = f"memory://{uuid.uuid4().hex}"
    with injected(Faults()) as faults, Checkpointer(root) as client:
        late = faults.late(path="_latest", times=100)
        with pytest.raises(OutcomeUnknownError), client.begin() as cp:
            cp.snapshot("op", 0, b"content")
        assert late[0].land()
        assert client.restore() is not None


def test_a_swap_of_the_wrapped_store_is_refused_as_ever(plain: FaultyStore) -> None:
    with pytest.raises(PreconditionFailedError):
        run_sync(plain.compare_and_swap("_latest", b"1", "another"))


def test_the_guide_names_what_there_is() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    rows = [line for line in guide.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)", row.split("|")[1])}
    offered = {name for name, member in vars(Faults).items() if inspect.isfunction(member) and not name.startswith("_")}
    assert named == offered - {"serve", "clear", "end", "paths", "forget"}
