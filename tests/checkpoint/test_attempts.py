"""What one attempt may never do: commit in part, leak, or let one state's change reach another's."""

import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.checkpoint import save_bytes
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint
from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    DependencyError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
    StoreRefusedError,
)
from pyspark_checkpointer.keyed import packing
from pyspark_checkpointer.storage.local import files
from pyspark_checkpointer.storage.local.store import LocalStore
from pyspark_checkpointer.storage.memory.store import MemoryStore
from tests.world import Actor, World, attempt, latest, put

BIG = b"z" * (1 << 20)


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    return f"memory://attempts-{request.node.name}-{time.monotonic_ns()}"


def fail_once(monkeypatch: pytest.MonkeyPatch, fragment: str) -> None:
    write, left = MemoryStore.put, [True]

    async def planted(self: Any, path: str, data: Any) -> None:
        if fragment in path and left:
            left.clear()
            raise InvalidStateError("planted")
        await write(self, path, data)

    monkeypatch.setattr(MemoryStore, "put", planted)


def raw(root: str, operator: str, partition: int) -> list[bytes]:
    restored = Checkpointer(root).restore()
    assert restored is not None
    return restored.operator(operator).partition(partition)


def test_after_a_failed_write_the_attempt_can_only_be_given_up(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Checkpointer(root)
    with client.begin() as cp:
        cp.snapshot("t", 0, b"old0" + BIG)
        cp.snapshot("t", 1, b"old1" + BIG)
    fail_once(monkeypatch, "artifacts/t/0/")
    cp = client.begin()
    cp.snapshot("t", 0, b"new0" + BIG)
    time.sleep(0.3)
    for _ in range(3):
        with pytest.raises(InvalidStateError, match="planted"):
            cp.delta("t", 1, b"+1" + BIG)
    with pytest.raises(InvalidStateError, match="planted"):
        cp.commit()
    assert raw(root, "t", 0) == [b"old0" + BIG]
    assert raw(root, "t", 1) == [b"old1" + BIG]


def test_positions_of_an_aborted_attempt_do_not_reach_the_next(root: str) -> None:
    client = Checkpointer(root)
    with client.begin() as cp:
        cp.positions["orders"] = {"0": "10"}
    with pytest.raises(RuntimeError), client.begin() as cp:
        cp.positions["orders"]["0"] = "999"
        raise RuntimeError
    restored = client.restore()
    assert restored is not None
    restored.positions["orders"]["0"] = "555"
    with client.begin():
        pass
    again = Checkpointer(root).restore()
    assert again is not None
    assert again.positions == {"orders": {"0": "10"}}


def test_what_changes_after_a_background_block_does_not_reach_it(root: str) -> None:
    client = Checkpointer(root)
    with client.begin(background=True) as cp:
        cp.positions["t"] = {"0": 1}
    cp.positions["t"]["0"] = 777
    cp.properties["late"] = True
    client.close()
    restored = Checkpointer(root).restore()
    assert restored is not None
    assert (restored.positions, restored.properties) == ({"t": {"0": 1}}, {})


def test_positions_that_json_would_change_are_refused_before_anything_is_written(root: str) -> None:
    client = Checkpointer(root)
    with pytest.raises(IllegalArgumentError, match="positions"), client.begin() as cp:
        cp.snapshot("t", 0, b"x")
        cp.positions["x"] = (1, 2)
    assert client.restore() is None


def test_a_dropped_save_is_not_taken_for_the_one_that_came_after(root: str) -> None:
    client, one, two = Checkpointer(root), KeyedState({"one": 1}), KeyedState({"two": 2})
    with client.begin() as cp:
        cp.save("s", one)
        cp.drop("s")
        cp.save("s", two)
    one["new"] = 1
    with client.begin() as cp:
        cp.save("s", one)
    restored = Checkpointer(root).restore()
    assert restored is not None
    assert dict(restored.keyed("s")) == {"one": 1, "new": 1}


def test_a_value_survives_a_failure_while_it_is_packed(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client, state = Checkpointer(root), KeyedState({"k": {"n": 0}})
    with client.begin() as cp:
        cp.save("s", state)
    held = state["k"]
    held["n"] = 42
    state["new"] = [1]
    pack = packing.pack_some
    monkeypatch.setattr(packing, "pack_some", lambda values: (_ for _ in ()).throw(MemoryError("planted")))
    with pytest.raises(MemoryError), client.begin() as cp:
        cp.save("s", state)
    monkeypatch.setattr(packing, "pack_some", pack)
    with client.begin() as cp:
        cp.save("s", state)
    restored = Checkpointer(root).restore()
    assert restored is not None
    assert dict(restored.keyed("s")) == {"k": {"n": 42}, "new": [1]}


def test_equal_large_deltas_of_one_attempt_survive_folding(root: str) -> None:
    client = Checkpointer(root, max_chain=3)
    deltas = [b"X" + BIG * 10, b"+1" + BIG, b"+1" + BIG, b"d" + BIG]
    with client.begin() as cp:
        cp.snapshot("t", 0, b"S")
    with client.begin() as cp:
        cp.delta("t", 0, deltas[0])
    with client.begin() as cp:
        cp.delta("t", 0, deltas[1])
        cp.delta("t", 0, deltas[2])
    with client.begin() as cp:
        cp.delta("t", 0, deltas[3])
    assert raw(root, "t", 0) == [b"S", *deltas]


def test_one_state_under_two_names_keeps_both_apart_from_later_changes(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition stays frozen until the last of the two has been encoded."""
    state = KeyedState(dict.fromkeys(range(100), "old"), partitions=1)
    first, second = state.capture_for_checkpoint({}, 10), state.capture_for_checkpoint({}, 10)
    second.changes[0].release()
    state[0] = "LEAK"
    assert first.changes[0].records[0] != packing.pack("LEAK")


def test_a_key_that_cannot_be_stored_is_refused_when_it_is_set() -> None:
    from datetime import UTC, datetime, time, tzinfo

    class Zone(tzinfo):
        def utcoffset(self, at: datetime | None) -> Any:
            return UTC.utcoffset(at)

    state = KeyedState()
    for key in (time(1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=Zone()), ("a\ud800",), frozenset(["\ud800"])):
        with pytest.raises(IllegalArgumentError):
            state[key] = 1
        with pytest.raises(IllegalArgumentError):
            state[key] = [1]
    assert len(state) == 0


def test_committing_a_prepared_checkpoint_again_does_not_move_the_session_back(root: str) -> None:
    client = Checkpointer(root)
    with client.begin() as cp:
        cp.snapshot("t", 0, b"1")
        prepared = cp.prepare()
    prepared.commit()
    with client.begin() as cp:
        cp.snapshot("t", 0, b"2")
    prepared.commit()
    with pytest.raises(CheckpointError):
        prepared.abort()
    with client.begin() as cp:
        cp.snapshot("t", 0, b"3")
    assert raw(root, "t", 0) == [b"3"]


def test_a_restarted_job_that_redeems_what_was_committed_meanwhile_is_not_fenced(root: str) -> None:
    first = Checkpointer(root)
    with first.begin() as cp:
        cp.snapshot("t", 0, b"1")
        prepared = cp.prepare()
    second = Checkpointer(root)
    restored = second.restore()
    assert restored is not None
    assert restored.prepared is not None
    prepared.commit()
    restored.prepared.commit()
    second.restore()
    with second.begin() as cp:
        cp.snapshot("t", 0, b"2")
    assert raw(root, "t", 0) == [b"2"]


def test_an_awaited_begin_is_not_begun_again_by_async_with(root: str) -> None:
    import asyncio

    async def work() -> None:
        client = AsyncCheckpointer(root)
        cp = await client.begin()
        await cp.snapshot("x", 0, b"x")
        async with cp:
            await cp.snapshot("y", 0, b"y")

    asyncio.run(work())
    assert (raw(root, "x", 0), raw(root, "y", 0)) == ([b"x"], [b"y"])


def test_a_block_of_an_attempt_that_has_ended_is_refused(root: str) -> None:
    """Refuse a block whose changes would go nowhere."""
    import asyncio

    client = Checkpointer(root)
    cp = client.begin()
    with cp:
        cp.positions["t"] = {"0": 1}
    with pytest.raises(InvalidStateError, match="this attempt was committed"), cp:
        cp.positions["t"] = {"0": 2}

    async def work() -> None:
        again = AsyncCheckpointer(root).begin()
        async with again:
            pass
        with pytest.raises(InvalidStateError, match="this attempt was committed"):
            async with again:
                pass

    asyncio.run(work())


def test_looking_at_an_old_checkpoint_and_rolling_back_to_it(root: str) -> None:
    client = Checkpointer(root)
    for n in range(3):
        with client.begin() as cp:
            cp.snapshot("t", 0, b"%d" % n)
    oldest = client.list_checkpoints()[0]
    client.restore(oldest)
    with pytest.raises(InvalidStateError, match="rollback"):
        client.begin()
    client.rollback(oldest)
    assert raw(root, "t", 0) == [b"0"]


@pytest.mark.parametrize(
    ("kind", "path"), [("put", "artifacts/"), ("put", "segments/"), ("put", "manifests/0"), ("swap", "_latest")]
)
@pytest.mark.parametrize("how", ["commit", "prepare"])
def test_an_attempt_that_the_store_has_no_room_for_takes_none(world: World, kind: str, path: str, how: str) -> None:
    """No cleanup may delete it before the next commit, for which a full disk has no room."""
    client = world.actor()
    put(client, b"before")
    before = world.objects()
    cp = client.begin()
    cp.snapshot("large", 0, b"x" * 300_000)
    cp.snapshot("small", 0, b"y")
    for number in range(600):
        cp.snapshot("many", number, b"%d" % number)
    client.faults.fail(kind, nth=2 if path == "artifacts/" else 1, path=path, error=StoreRefusedError)
    with pytest.raises(StoreRefusedError, match="failed by the test"):
        cp.commit() if how == "commit" else cp.prepare()
    assert world.objects() == before
    put(client, b"after")


@pytest.mark.parametrize("how", ["commit", "prepare"])
def test_a_swap_that_took_effect_and_counts_as_refused_keeps_what_it_names(world: World, how: str) -> None:
    """Something may fail after the rename, and the store cannot tell."""
    client = world.actor()
    put(client, b"before")

    def refuse(_: object) -> None:
        raise StoreRefusedError("the disk was full when the lock was closed")

    cp = client.begin()
    cp.snapshot("large", 0, b"x" * 300_000)
    client.faults.call(refuse, "swap", path="_latest", after=True)
    with pytest.raises(StoreRefusedError, match="when the lock was closed"):
        cp.commit() if how == "commit" else cp.prepare()
    other = world.actor()
    if how == "prepare":
        other.restore().prepared.commit()
    assert other.restore().operator("large").partition(0) == [b"x" * 300_000]


def test_an_attempt_that_is_given_up_because_there_was_no_room_takes_none(world: World) -> None:
    client = world.actor()
    client.faults.fail("put", nth=2, path="artifacts/", error=StoreRefusedError)
    with pytest.raises(StoreRefusedError, match="failed by the test"), client.begin() as cp:
        cp.snapshot("large", 0, b"x" * 300_000)
        for partition in range(1, 100):
            cp.snapshot("large", partition, b"x" * 300_000)
            time.sleep(0.001)
    assert world.objects("artifacts/") == set()


def test_an_attempt_that_is_swept_while_its_manifest_is_under_way_lost_to_another_writer(world: World) -> None:
    client, other = world.actor(), world.actor()
    put(client, b"before")
    cp = attempt(client, b"mine")

    def commit_and_sweep(_: object) -> None:
        other.restore()
        put(other, b"another's")
        other.clean(RetentionPolicy(grace=timedelta(0)))

    client.faults.drop_answer("put", path="manifests/")
    client.faults.call(commit_and_sweep, "get_range", path="manifests/")
    with pytest.raises(ConflictError, match="swept"):
        cp.commit()
    assert latest(world.actor()) == b"another's"


def test_folded_deltas_count_towards_the_most_that_may_lie_above_a_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_bytes, "MAX_RAW_DELTAS", 10)
    client = world.actor(max_chain=2)
    with client.begin() as cp:
        cp.snapshot("o", 0, b"s")
    with pytest.raises(IllegalArgumentError, match="save a snapshot"):
        for _ in range(4):
            with client.begin() as cp:
                for number in range(4):
                    cp.delta("o", 0, b"%d" % number)
    restored = world.actor().restore()
    assert restored is not None
    assert len(restored.operator("o").partition(0)) == 1 + 8


def test_an_attached_delta_does_not_write_a_single_older_one_again(root: str) -> None:
    """It stands in an object of its own already, so a fold of one other object would join nothing."""
    client = Checkpointer(root, max_chain=3)
    with client.begin() as cp:
        cp.snapshot("op", 0, b"snapshot")
    with client.begin() as cp:
        cp.delta("op", 0, b"delta")
    before = client.restore().operator("op").chain(0)  # type: ignore[union-attr]
    with client.begin() as cp:
        cp.attach(client.save_delta(cp.id, "op", 0, b"attached"))
    assert client.restore().operator("op").chain(0)[:-1] == before  # type: ignore[union-attr]


def says(cp: Checkpoint) -> str:
    """What a second commit of an attempt says, and everything else that it refuses says too."""
    told = set()
    for late in (cp.commit, cp.prepare, lambda: cp.snapshot("op", 7, b"late"), lambda: cp.drop("op")):
        with pytest.raises(InvalidStateError) as raised:
            late()
        told.add(str(raised.value))
    (only,) = told
    start = f"{cp.id}: this attempt "
    assert only.startswith(start)
    return only.removeprefix(start)


def test_a_committed_attempt_says_so(world: World) -> None:
    cp = attempt(world.actor(), b"1")
    cp.commit()
    assert says(cp) == "was committed: begin another"
    cp.abort()
    assert latest(world.actor()) == b"1"


def test_a_prepared_attempt_says_so_and_what_became_of_it(world: World) -> None:
    client = world.actor()
    cp = attempt(client, b"1")
    prepared = cp.prepare()
    assert says(cp) == "is prepared: commit() or abort() what prepare() returned"
    prepared.commit()
    assert says(cp) == "was committed: begin another"
    with pytest.raises(InvalidStateError, match=rf"{cp.id} was committed already: use rollback\(\)$"):
        prepared.abort()
    cp = attempt(client, b"2")
    prepared = cp.prepare()
    prepared.abort()
    assert says(cp) == "was aborted: begin another"
    with pytest.raises(InvalidStateError, match=f"{cp.id} was aborted already: begin another$"):
        prepared.commit()
    cp = attempt(client, b"3")
    cp.prepare()
    cp.abort()
    assert says(cp) == "was aborted: begin another"
    assert latest(world.actor()) == b"1"


def test_an_aborted_attempt_says_so(world: World) -> None:
    cp = attempt(world.actor(), b"1")
    cp.abort()
    assert says(cp) == "was aborted: begin another"


def test_a_failed_attempt_says_so(world: World) -> None:
    client, other = world.actor(), world.actor()
    cp = attempt(client, b"1")
    client.faults.fail("put", path="manifests/", times=100)
    with pytest.raises(DependencyError):
        cp.commit()
    assert says(cp) == "failed, and was not committed: begin another"
    cp = attempt(other, b"2")
    put(world.actor(), b"3")
    with pytest.raises(ConflictError):
        cp.commit()
    assert says(cp) == "failed, and was not committed: begin another"


def without_an_answer(world: World) -> tuple[Actor, Checkpoint]:
    """Return an attempt whose swap gets no answer, and whose pointer cannot be read to find out, with its client."""
    client = world.actor()
    put(client, b"1")
    cp = attempt(client, b"2")
    client.faults.fail("swap", times=100)
    client.faults.fail("get", path="_latest", times=100)
    return client, cp


def test_an_attempt_without_an_answer_says_so(world: World) -> None:
    _, cp = without_an_answer(world)
    with pytest.raises(OutcomeUnknownError):
        cp.commit()
    assert says(cp) == ("may be committed, because its commit got no clear answer: restore() tells; then begin another")


def test_an_attempt_whose_prepare_failed_says_so_and_can_be_aborted(world: World) -> None:
    client, cp = without_an_answer(world)
    with pytest.raises(OutcomeUnknownError):
        cp.prepare()
    assert says(cp) == "may be prepared, because prepare() failed: abort() it, and begin another"
    client.faults.clear()
    before = world.latest()
    cp.abort()
    assert world.latest() != before, "a prepare that is still under way can never land"
    assert says(cp) == "was aborted: begin another"


@pytest.mark.parametrize(
    ("kind", "path", "begin", "told"),
    [
        ("put", "manifests/", "commit", "is being committed or prepared: wait until that has ended, and begin another"),
        (
            "put",
            "manifests/",
            "prepare",
            "is being committed or prepared: wait until that has ended, and begin another",
        ),
        (
            *("swap", "_latest", "commit"),
            "is being committed, and its swap is under way: wait until that has ended, and begin another",
        ),
        (
            *("swap", "_latest", "prepare"),
            "is being prepared: wait until that has ended, and commit() or abort() what prepare() returns",
        ),
    ],
)
def test_an_attempt_under_way_says_so(world: World, kind: str, path: str, begin: str, told: str) -> None:
    client = world.actor()
    put(client, b"1")
    cp = attempt(client, b"2")
    gate = client.faults.hold(kind, path=path)
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(getattr(cp, begin))
        gate.wait()
        try:
            assert says(cp) == told
        finally:
            gate.open()
        ended.result()


def test_an_attempt_that_waits_for_its_commit_says_so(world: World) -> None:
    client = world.actor()
    put(client, b"1")
    with client.begin() as cp:
        cp.snapshot("op", 0, b"2")
        cp.attempt.freeze()
        with pytest.raises(InvalidStateError, match="is being committed in the background: begin another"):
            cp.snapshot("op", 0, b"late")
    assert latest(world.actor()) == b"2", "frozen is not yet decided: the end of the block commits it"


def test_what_is_still_written_when_an_attempt_had_no_room_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Checkpointer(tmp_path / "root")
    put(client, b"before")
    written, publish, begun, go_on = files.write_temporary, LocalStore._put, threading.Event(), threading.Event()
    ended = threading.Event()

    def noting(self: LocalStore, path: str, *given: Any) -> None:
        try:
            publish(self, path, *given)
        finally:
            if "/slow/" in path:
                ended.set()

    def slow_or_full(target: str, data: Any) -> str:
        if "/slow/" in target:
            begun.set()
            go_on.wait(20)
        elif "/full/" in target:
            begun.wait(20)
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(target, data)

    monkeypatch.setattr(files, "write_temporary", slow_or_full)
    monkeypatch.setattr(LocalStore, "_put", noting)
    with pytest.raises(StoreRefusedError, match="No space left"), client.begin() as cp:
        for name in ("slow", "full"):
            cp.snapshot(name, 0, b"x" * 300_000)
    go_on.set()
    put(client, b"after")
    assert ended.wait(20)
    assert [*(tmp_path / "root" / "artifacts" / "slow").rglob("*")] in ([], [tmp_path / "root" / "artifacts/slow/0"])
