"""Loops, threads, forks and pickles: the same verbs work from anywhere, and a session stays in its process."""

import asyncio
import gc
import inspect
import os
import pickle
import signal
import threading
import traceback
import uuid
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState, runtime
from pyspark_checkpointer.checkpoint.fencing import Owner
from pyspark_checkpointer.client import _async_checkpoint, _sync_checkpoint
from pyspark_checkpointer.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConflictError,
    DependencyError,
    FencedError,
    IllegalArgumentError,
    InvalidStateError,
    StoreRefusedError,
)
from pyspark_checkpointer.runtime.host import SystemHost
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.store import FaultyStore
from tests.servers import Server
from tests.world import World, contents, got, latest, line, put


def asynchronous(world: World, **options: Any) -> AsyncCheckpointer:
    """An asynchronous client of a root, behind a faulty store: `client.faults`."""
    client = AsyncCheckpointer(world.store.url, **options)
    client.faults = Faults()
    client.session.store = FaultyStore(world.store, client.faults)
    return client


async def aput(client: AsyncCheckpointer, value: bytes) -> None:
    async with client.begin() as cp:
        await cp.snapshot("op", 0, value)


async def alatest(client: AsyncCheckpointer) -> bytes:
    restored = await client.restore()
    assert restored is not None
    (value,) = await restored.operator("op").partition(0)
    return value


# ---- the same verbs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Checkpointer, AsyncCheckpointer),
        (_sync_checkpoint.Checkpoint, _async_checkpoint.AsyncCheckpoint),
        (_sync_checkpoint.Prepared, _async_checkpoint.AsyncPrepared),
        (_sync_checkpoint.Restored, _async_checkpoint.AsyncRestored),
        (_sync_checkpoint.RestoredOperator, _async_checkpoint.AsyncRestoredOperator),
    ],
)
def test_both_interfaces_have_the_same_verbs_with_the_same_arguments(one: type, other: type) -> None:
    def verbs(of: type) -> dict[str, list[tuple[str, Any]]]:
        return {
            name: [(p.name, p.kind) for p in inspect.signature(member).parameters.values()]
            for name, member in inspect.getmembers(of, callable)
            if not name.startswith("_")
        }

    assert verbs(one) == verbs(other)
    assert properties(one) == properties(other)


def properties(of: type) -> set[str]:
    found = inspect.getmembers(of, lambda member: isinstance(member, property))
    return {name for name, _ in found if not name.startswith("_")}


def test_a_whole_life_is_awaited(world: World) -> None:
    async def life() -> None:
        async with asynchronous(world) as client:
            assert await client.restore() is None
            state = KeyedState({"a": [1]})
            async with client.begin(epoch=1) as cp:
                await cp.snapshot("op", 0, b"1")
                await cp.save("map", state)
                cp.positions["t"] = 1
                cp.watermark = 5
            first = cp.id
            async with client.begin(epoch=2) as cp:
                await cp.delta("op", 0, b"2")
                cp.keep("map")
            restored = await client.restore()
            assert (restored.epoch, restored.positions, restored.watermark) == (2, {"t": 1}, 5)
            assert await restored.operator("op").partition(0) == [b"1", b"2"]
            assert dict(await restored.keyed("map")) == {"a": [1]}
            await client.savepoint("s", first)
            assert [s.id for s in await client.savepoints()] == [first]
            cp = await client.begin(epoch=3)
            await cp.snapshot("op", 0, b"3")
            prepared = await cp.prepare()
            assert (await client.restore()).prepared.id == prepared.id
            await prepared.commit()
            assert await alatest(client) == b"3"
            await client.rollback("s")
            assert await alatest(client) == b"1"
            await client.delete_savepoint("s")
            await client.delete_checkpoint(first)
            assert first not in await client.list_checkpoints()
            with pytest.raises(ValueError, match="fails"):
                async with client.begin() as cp:
                    raise ValueError("fails")
            with pytest.raises(InvalidStateError, match="not begun"):
                await client.begin().snapshot("op", 0, b"x")
            async with client.begin(background=True) as cp:
                await cp.snapshot("op", 0, b"background")
        assert await alatest(asynchronous(world)) == b"background"

    asyncio.run(life())


def test_the_single_verbs_are_awaited(world: World) -> None:
    async def by_hand() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        old = (await client.restore()).manifest
        checkpoint = await client.new_id()
        artifact = await client.save_snapshot(checkpoint, "x", 0, b"x")
        delta = await client.save_delta(checkpoint, "x", 0, b"d")
        assert [await client.load_artifact(a) for a in (artifact, delta)] == [b"x", b"d"]
        await client.save_manifest(
            type(old)(checkpoint, parent=client.session.restored.parent, operators=old.operators)
        )
        assert (await client.load_manifest(checkpoint)).operators == old.operators
        assert await client.update_latest(checkpoint) == await client.read_latest() == checkpoint

    asyncio.run(by_hand())


# ---- loops and threads -----------------------------------------------------------------------------------------------


def test_one_client_serves_one_event_loop_after_the_other(world: World) -> None:
    client = asynchronous(world)
    for number in range(3):
        asyncio.run(aput(client, b"%d" % number))
    assert asyncio.run(alatest(client)) == b"2"
    assert latest(world.actor()) == b"2"


def test_one_client_serves_two_event_loops_at_once(world: World) -> None:
    client = asynchronous(world)
    asyncio.run(aput(client, b"1"))
    gate = client.faults.hold("get", times=2)
    with ThreadPoolExecutor() as threads:
        loops = [threads.submit(asyncio.run, alatest(client)) for _ in range(2)]
        gate.wait()
        gate.open()
        assert [loop.result(30) for loop in loops] == [b"1", b"1"]


def test_the_blocking_interface_works_inside_a_running_loop(world: World) -> None:
    async def inside() -> bytes:
        put(world.actor(), b"1")
        await asyncio.sleep(0)
        return latest(world.actor())

    assert asyncio.run(inside()) == b"1"


def test_a_blocking_call_on_the_library_s_own_loop_is_refused(world: World) -> None:
    async def there() -> None:
        world.actor().close()

    with pytest.raises(IllegalArgumentError, match="asynchronous interface"):
        runtime.run_sync(there())


def test_many_threads_read_through_one_client(world: World) -> None:
    client = world.actor()
    line(client, 3)
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: latest(client), range(64))) == {b"3"}


def test_many_threads_write_to_roots_of_their_own(world: World) -> None:
    worlds = [World() for _ in range(8)]

    def work(mine: World) -> None:
        line(mine.actor(), 10)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, worlds))
    assert [latest(each.actor()) for each in worlds] == [b"10"] * 8


def test_threads_that_write_through_one_client_lose_nothing_they_were_told_is_saved(world: World) -> None:
    client = world.actor()
    put(client, b"first")

    def work(number: int) -> str | None:
        try:
            return str(put(client, b"%d" % number))
        except InvalidStateError:
            return None  # another thread was first

    with ThreadPoolExecutor(8) as threads:
        told = [checkpoint for checkpoint in threads.map(work, range(40)) if checkpoint]
    listed = world.actor().list_checkpoints()
    assert told
    assert set(told) == set(map(str, listed[1:]))
    assert [checkpoint.sequence for checkpoint in listed] == list(range(1, len(told) + 2))


def test_clients_that_race_for_one_root_never_lose_an_update(world: World) -> None:
    put(world.actor(), b"0")

    def work(_: int) -> int:
        done = 0
        for _ in range(15):
            client = world.actor()
            value = int(latest(client))
            try:
                put(client, b"%d" % (value + 1))
            except CheckpointError:
                continue
            done += 1
        return done

    with ThreadPoolExecutor(6) as threads:
        total = sum(threads.map(work, range(6)))
    assert int(latest(world.actor())) == total
    assert total >= 1


# ---- giving up waiting -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["put", "swap"])
@pytest.mark.parametrize("after", [False, True])
def test_a_cancelled_waiter_leaves_the_commit_to_end_on_its_own(world: World, kind: str, after: bool) -> None:
    async def cancelled() -> bytes:
        client = asynchronous(world)
        await aput(client, b"1")
        gate = client.faults.hold(kind, after=after)
        waiter = asyncio.create_task(aput(client, b"2"))
        await asyncio.to_thread(gate.wait)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        gate.open()
        found = [await alatest(client)]
        while found[-1] != b"2":
            await asyncio.sleep(0.005)
            found.append(await alatest(client))
        assert set(found) <= {b"1", b"2"}
        await aput(client, b"3")
        return await alatest(asynchronous(world))

    assert asyncio.run(asyncio.wait_for(cancelled(), 30)) == b"3"
    assert len(world.contents()) == 3


@pytest.mark.parametrize("after", [False, True])
def test_a_restore_sees_what_became_of_a_commit_that_nobody_waits_for(world: World, after: bool) -> None:
    """Otherwise the caller would take the batch for lost, and add it a second time on top of it."""

    async def run() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        gate = client.faults.hold("swap", after=after)
        waiter = asyncio.create_task(add(client, b"2"))
        await asyncio.to_thread(gate.wait)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        restoring = asyncio.create_task(client.restore())
        await asyncio.sleep(0.05)
        gate.open()
        restored = await restoring
        assert restored is not None
        if b"2" not in await restored.operator("op").partition(0):
            await add(client, b"2")
        found = await asynchronous(world).restore()
        assert found is not None
        assert await found.operator("op").partition(0) == [b"1", b"2"]

    asyncio.run(asyncio.wait_for(run(), 30))


async def add(client: AsyncCheckpointer, data: bytes, *, epoch: int | None = None, background: bool = False) -> None:
    async with client.begin(epoch=epoch, background=background) as cp:
        await cp.delta("op", 0, data)


async def chain(world: World) -> list[bytes]:
    found = await asynchronous(world).restore()
    assert found is not None
    return await found.operator("op").partition(0)


async def give_up_at(client: AsyncCheckpointer, work: Coroutine[Any, Any, Any], kind: str, **gate: Any) -> None:
    """Cancel `work` at a request, which then goes on."""
    held = client.faults.hold(kind, **gate)
    waiter = asyncio.ensure_future(work)
    await asyncio.to_thread(held.wait)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    held.open()


async def by_hand(client: AsyncCheckpointer, data: bytes) -> None:
    cp = await client.begin()
    await cp.delta("op", 0, data)
    await cp.commit()


@pytest.mark.parametrize("work", [add, by_hand])
@pytest.mark.parametrize(("kind", "after"), [("put", False), ("swap", False), ("swap", True)])
def test_a_commit_that_was_given_up_and_took_effect_asks_for_a_restore_first(
    world: World, work: Callable[[AsyncCheckpointer, bytes], Coroutine[Any, Any, None]], kind: str, after: bool
) -> None:
    """A service that tries the batch again would add it a second time on top of it."""

    async def run() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        await give_up_at(client, work(client, b"2"), kind, after=after)
        for _ in range(2):  # whether the commit has ended or not
            with pytest.raises(InvalidStateError, match=r"nobody waited for took effect: call restore\(\)"):
                await work(client, b"2")
        assert await chain(world) == [b"1", b"2"]
        assert await client.restore() is not None
        await add(client, b"3")
        assert await chain(world) == [b"1", b"2", b"3"]

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_promotion_that_was_given_up_and_took_effect_asks_for_a_restore_first(world: World) -> None:
    async def run() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        cp = await client.begin()
        await cp.delta("op", 0, b"2")
        prepared = await cp.prepare()
        await give_up_at(client, prepared.commit(), "swap", after=True)
        await prepared.commit()  # the same one may be committed again
        with pytest.raises(InvalidStateError, match=r"call restore\(\)"):
            await add(client, b"2")
        await client.restore()
        await add(client, b"3")
        assert await chain(world) == [b"1", b"2", b"3"]

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("verb", ["rollback", "update_latest"])
def test_a_rollback_that_was_given_up_and_took_effect_asks_for_a_restore_first(world: World, verb: str) -> None:
    async def run() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        first = await client.read_latest()
        await add(client, b"2")
        await give_up_at(client, getattr(client, verb)(first), "swap", after=True)
        with pytest.raises(InvalidStateError, match=r"call restore\(\)"):
            await add(client, b"3")
        assert await chain(world) == [b"1"]
        await client.restore()
        await add(client, b"3")
        assert await chain(world) == [b"1", b"3"]

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_commit_that_was_given_up_and_failed_may_be_tried_again(world: World) -> None:
    async def run() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        client.faults.fail("swap", error=StoreRefusedError)
        await give_up_at(client, add(client, b"2"), "put", path="manifests/")
        await add(client, b"2")
        assert await chain(world) == [b"1", b"2"]

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_commit_in_the_background_took_effect_without_a_waiter(world: World) -> None:
    async def run() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        await add(client, b"2", background=True)
        await add(client, b"3")
        assert await chain(world) == [b"1", b"2", b"3"]

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("begun", [False, True])
def test_a_background_block_that_is_cancelled_at_its_end_fails_no_later_call(
    world: World, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller was told, and the library itself has aborted it, whether its commit was begun by then or not."""

    async def run() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        first, second = [await client.begin(background=not begun) for _ in range(2)]
        await first.delta("op", 0, b"2")
        gate = client.faults.hold("swap")
        committing = asyncio.ensure_future(first.__aexit__(None, None, None))
        await asyncio.to_thread(gate.wait)
        if begun:
            linger_in_background(client, monkeypatch)
            second._background = True
        await second.delta("op", 0, b"never")
        ending = asyncio.ensure_future(second.__aexit__(None, None, None))
        await asyncio.sleep(0.05)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        gate.open()
        await committing
        await add(client, b"3")
        await client.close()
        assert await chain(world) == [b"1", b"2", b"3"]

    asyncio.run(asyncio.wait_for(run(), 30))


def linger_in_background(client: AsyncCheckpointer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the end of a block waiting after its commit was begun in the background."""
    begin = client.session.in_background

    async def linger(work: Coroutine[Any, Any, Any], name: str) -> None:
        await begin(work, name)
        await asyncio.sleep(60)

    monkeypatch.setattr(client.session, "in_background", linger)


def test_a_background_block_that_is_cancelled_too_late_asks_for_a_restore_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        linger_in_background(client, monkeypatch)
        await give_up_at(client, add(client, b"2", background=True), "put", path="manifests/")
        with pytest.raises(InvalidStateError, match=r"nobody waited for took effect"):
            await add(client, b"2")
        assert await chain(world) == [b"1", b"2"]

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize(("kind", "after"), [("put", False), ("swap", False), ("swap", True)])
def test_a_block_aborts_a_prepare_that_it_gave_up_and_went_on(world: World, kind: str, after: bool) -> None:
    """A timeout that is caught inside the block; nobody has the prepared checkpoint."""

    async def run() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        async with client.begin() as cp:
            await cp.delta("op", 0, b"never")
            await give_up_at(client, cp.prepare(), kind, after=after)
        restored = await client.restore()
        assert restored is not None
        assert restored.prepared is None
        await add(client, b"2")
        assert await chain(world) == [b"1", b"2"]

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_block_may_handle_that_another_writer_keeps_it_from_preparing(world: World) -> None:
    async def run() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        async with client.begin() as cp:
            await cp.delta("op", 0, b"never")
            await aput(asynchronous(world), b"2")
            with pytest.raises(FencedError):
                await cp.prepare()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_block_does_not_commit_what_it_gave_up_to_prepare(world: World) -> None:
    """The prepare waits for its turn, so that it has not begun."""

    async def run() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        async with client.begin() as cp:
            await cp.delta("op", 0, b"never")
            gate = client.faults.hold("swap")
            committing = asyncio.ensure_future(client.rollback("latest"))
            await asyncio.to_thread(gate.wait)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await cp.prepare()
            gate.open()
        await committing
        await add(client, b"2")
        assert await chain(world) == [b"1", b"2"]

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("ends", ["commit", "abort", None])
def test_a_block_leaves_what_it_prepared_to_its_caller(world: World, ends: str | None) -> None:
    async def run() -> None:
        client = asynchronous(world)
        await aput(client, b"1")
        async with client.begin() as cp:
            await cp.delta("op", 0, b"2")
            prepared = await cp.prepare()
            if ends is not None:
                await getattr(prepared, ends)()
            with pytest.raises(InvalidStateError):
                await cp.prepare()
        restored = await client.restore()
        assert restored is not None
        assert (restored.prepared is None) == (ends is not None)
        assert await chain(world) == [b"1", b"2"][: 2 if ends == "commit" else 1]

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_restore_that_was_given_up_moves_no_later_commit(world: World) -> None:
    """It is cancelled after it has read the checkpoint of somebody else."""
    entered, leave = threading.Event(), threading.Event()

    async def held(compute: Callable[[], Any]) -> Any:
        entered.set()
        await asyncio.to_thread(leave.wait)
        return compute()

    async def run() -> None:
        client = asynchronous(world, metrics=lambda record: None)
        await aput(client, b"1")
        await client.restore()
        await aput(asynchronous(world), b"2")
        client.session.reports._host = SimpleNamespace(clock=SystemHost.clock, run=held)  # type: ignore[assignment]
        restoring = asyncio.create_task(client.restore())
        await asyncio.to_thread(entered.wait)
        restoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await restoring
        with pytest.raises(InvalidStateError, match=r"restore\(\) was interrupted"):
            await aput(client, b"of 1, and not of 2")
        leave.set()
        await client.restore()
        await aput(client, b"3")

    asyncio.run(asyncio.wait_for(run(), 30))
    assert latest(world.actor()) == b"3"


def test_a_restore_that_is_cancelled_before_it_begins_warns_of_nothing(world: World) -> None:
    client = AsyncCheckpointer(world.store.url)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await client.restore()
        await client.read_latest()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(20):
            asyncio.run(give_up())
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_cancelled_wait_for_a_turn_does_no_harm(world: World) -> None:
    async def cancelled() -> bytes:
        client = asynchronous(world)
        await aput(client, b"1")
        gate = client.faults.hold("swap")
        first = asyncio.create_task(aput(client, b"2"))
        await asyncio.to_thread(gate.wait)
        second = asyncio.create_task(aput(client, b"not on top of 2"))
        await asyncio.sleep(0.02)
        second.cancel()
        gate.open()
        await first
        with pytest.raises(asyncio.CancelledError):
            await second
        await client.restore()
        await aput(client, b"3")
        return await alatest(client)

    assert asyncio.run(asyncio.wait_for(cancelled(), 30)) == b"3"
    assert len(world.contents()) == 3


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_during_a_commit_asks_for_a_restore_first(world: World, after: bool) -> None:
    client = world.actor()
    put(client, b"1")
    main = threading.get_ident()
    gate = client.faults.hold("swap", after=after)

    def interrupt() -> None:
        gate.wait()
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            put(client, b"2")
        # Before the gate opens: the swap that goes on may be decided at any time after that.
        with pytest.raises(InvalidStateError, match="restore"):
            client.begin()
    finally:
        thread.join()
        gate.open()
    assert latest(client) == (b"2" if after else b"1")
    put(client, b"3")
    assert latest(world.actor()) == b"3"


# ---- processes -------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child; its exit status, 0 where nothing was raised."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(15)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_starts_a_session_of_its_own(tmp_path: Path) -> None:
    client = Checkpointer(tmp_path / "root")
    put(client, b"1")
    running = client.begin()

    def child() -> None:
        put(client, b"2")
        put(client, b"3")
        assert latest(client) == b"3"

    assert in_child(child) == 0
    running.snapshot("op", 0, b"zombie")
    with pytest.raises(FencedError, match="this process was forked meanwhile: a child process that commits"):
        running.commit()
    assert latest(Checkpointer(tmp_path / "root")) == b"3"


def test_a_forked_child_goes_on_from_what_its_parent_restored(tmp_path: Path) -> None:
    """Its copy of a map lacks what another child has committed since, and would replace it."""
    client = Checkpointer(tmp_path / "root")
    state = KeyedState({"a": 1})
    with client.begin() as cp:
        cp.save("visits", state)

    def commit(key: str) -> None:
        state[key] = 1
        with client.begin() as cp:
            cp.save("visits", state)

    def commit_too_late() -> None:
        with pytest.raises(ConflictError, match="call restore"):
            commit("y")
        with pytest.raises(InvalidStateError, match="call restore"):
            client.begin()

    assert in_child(lambda: commit("x")) == 0
    assert in_child(commit_too_late) == 0
    restored = Checkpointer(tmp_path / "root").restore()
    assert restored is not None
    assert restored.keyed("visits").to_dict() == {"a": 1, "x": 1}
    with pytest.raises(FencedError, match="this process was forked meanwhile"):
        commit("z")

    def go_on_after_a_restore() -> None:
        with pytest.raises(InvalidStateError, match="forked from one that another writer replaced: call restore"):
            commit("z")
        assert client.restore() is not None
        put(client, b"of a writer of its own")

    def have_a_child() -> None:
        assert in_child(go_on_after_a_restore) == 0
        with pytest.raises(InvalidStateError, match="call restore"):
            client.begin()

    assert in_child(have_a_child) == 0
    with pytest.raises(FencedError):
        client.begin()


def test_a_forked_child_must_restore_where_its_parent_must(tmp_path: Path) -> None:
    client = Checkpointer(tmp_path / "root")
    put(client, b"1")

    def refused_until_restored(why: str) -> None:
        with pytest.raises(InvalidStateError, match=why):
            client.begin()
        client.restore()
        put(client, b"2")

    client.session.invalidate("of its parent")
    assert in_child(lambda: refused_until_restored("of its parent")) == 0
    client.restore(rename={"op": "new"})
    assert in_child(lambda: refused_until_restored("this process was forked .*: call restore")) == 0
    client = Checkpointer(tmp_path / "root")
    first = client.read_latest()
    put(client, b"3")
    client.restore(first)
    assert in_child(lambda: refused_until_restored("is not the committed checkpoint")) == 0


def test_a_forked_child_has_an_event_loop_of_its_own(tmp_path: Path) -> None:
    client = AsyncCheckpointer(tmp_path / "root")
    asyncio.run(aput(client, b"1"))
    assert in_child(lambda: asyncio.run(aput(client, b"2"))) == 0
    assert asyncio.run(alatest(client)) == b"2"


def test_children_forked_while_threads_are_busy_work(tmp_path: Path) -> None:
    roots = [tmp_path / str(number) for number in range(4)]
    stop = threading.Event()

    def busy() -> None:
        client = Checkpointer(tmp_path / "busy")
        while not stop.is_set():
            put(client, b"x" * 1000)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        assert [in_child(lambda root=root: line(Checkpointer(root), 2)) for root in roots] == [0] * 4
    finally:
        stop.set()
        thread.join()
    assert [latest(Checkpointer(root)) for root in roots] == [b"2"] * 4


@pytest.mark.parametrize("kind", [Checkpointer, AsyncCheckpointer])
def test_a_client_pickles_as_its_configuration_only(tmp_path: Path, kind: type) -> None:
    client = kind(tmp_path / "root", max_chain=4, timeout=5.0)
    before = pickle.dumps(client)
    if kind is Checkpointer:
        line(client, 3)
    else:
        asyncio.run(aput(client, b"3"))
    assert pickle.dumps(client) == before
    assert len(before) < 1000
    copy = pickle.loads(before)
    assert (type(copy), copy.root, copy.session.max_chain) == (kind, client.root, 4)
    assert latest(Checkpointer(copy.root)) == b"3"
    assert pickle.dumps(copy) == before


def test_a_copy_in_another_process_reads_and_may_take_over(tmp_path: Path) -> None:
    client = Checkpointer(tmp_path / "root")
    put(client, b"1")
    copy = pickle.loads(pickle.dumps(client))
    assert latest(copy) == b"1"
    put(copy, b"2")
    with pytest.raises(FencedError):
        put(client, b"zombie")
    assert latest(client) == b"2"


def test_errors_survive_pickling(world: World) -> None:
    client = world.actor()
    put(client, b"1")
    for failing in (lambda: client.restore(savepoint="none"), lambda: client.begin(epoch="x")):
        with pytest.raises(CheckpointError) as raised:
            failing()
        copy = pickle.loads(pickle.dumps(raised.value))
        assert (type(copy), str(copy)) == (type(raised.value), str(raised.value))


# ---- secrets ---------------------------------------------------------------------------------------------------------

SECRET = "the-secret-that-nobody-may-see"


def shown(error: BaseException) -> str:
    """All that an error and those behind it say, without the source lines of this file."""
    said = []
    while error is not None:
        said += [str(error), repr(error), *getattr(error, "__notes__", [])]
        error = error.__cause__ or error.__context__
    return "\n".join(said)


def test_no_error_and_no_repr_shows_a_secret(s3_server: Server) -> None:
    options = {**s3_server.storage_options, "secret": SECRET}
    client = Checkpointer(f"{s3_server.url}/{uuid.uuid4().hex}", options)
    for verb in (client.restore, client.begin, client.list_checkpoints, lambda: client.savepoint("s")):
        with pytest.raises(CheckpointError) as raised:
            verb()
        assert SECRET not in shown(raised.value)
    for thing in (client, client.session.store, client._config, client.session):
        assert SECRET not in repr(thing)
    client.close()


@pytest.mark.parametrize(
    "root", [f"s3://key:{SECRET}@bucket/x", f"s3://bucket/x?sig={SECRET}", f"abfs://c@account/x#{SECRET}"]
)
def test_a_url_with_a_secret_in_it_is_refused_without_showing_it(root: str) -> None:
    with pytest.raises(IllegalArgumentError) as raised:
        Checkpointer(root)
    assert SECRET not in shown(raised.value)


def test_a_failure_in_the_background_of_an_asynchronous_client_is_raised_once(world: World) -> None:
    async def failing() -> None:
        client = asynchronous(world)
        client.faults.fail("put", path="manifests/")
        async with client.begin(background=True) as cp:
            await cp.snapshot("op", 0, b"x")
        with pytest.raises(DependencyError):
            await client.read_latest()
        assert await client.read_latest() is None
        await client.close()

    asyncio.run(failing())
    assert world.actor().restore() is None


def test_what_is_read_back_is_whole_after_everything(world: World) -> None:
    client = world.actor()
    line(client, 2)
    assert contents(client.restore()) == {"op": {0: [b"2"]}}
    assert got(client.restore(epoch=None)) == b"2"


def refused_puts(store: type, monkeypatch: pytest.MonkeyPatch) -> None:
    async def put(self: object, path: str, data: bytes) -> None:
        await asyncio.sleep(0.2)
        raise StoreRefusedError("no room")

    monkeypatch.setattr(store, "put", put)


def test_a_failure_in_the_background_reaches_a_caller_even_if_one_gave_up_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> list[bytes]:
        client = AsyncCheckpointer(f"memory://{uuid.uuid4().hex}")
        async with client.begin(0) as cp:
            await cp.snapshot("o", 0, b"s")
        with monkeypatch.context() as patch:
            refused_puts(type(client.session.store), patch)
            async with client.begin(1, background=True) as cp:
                await cp.delta("o", 0, b"lost")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.read_latest(), 0.05)
            await asyncio.sleep(0.5)
        with pytest.raises(StoreRefusedError):
            await client.begin(2)
        restored = await client.restore()  # it was told once
        assert restored is not None
        await client.close()
        return await restored.operator("o").partition(0)

    assert asyncio.run(work()) == [b"s"]


def test_of_commits_begun_in_the_background_together_none_is_forgotten() -> None:
    async def work() -> list[int]:
        url = f"memory://{uuid.uuid4().hex}"
        client = AsyncCheckpointer(url)
        ended: list[int] = []

        async def commit(number: int) -> None:
            await asyncio.sleep(0.05)
            ended.append(number)

        session = client.session
        await client._tell(session.in_background(commit(0), "0"))
        await asyncio.gather(*(client._tell(session.in_background(commit(n), str(n))) for n in (1, 2, 3)))
        await client.close()
        return ended

    assert asyncio.run(work()) == [0, 1, 2, 3]


def test_nothing_is_added_to_a_background_commit_that_waits_for_its_turn() -> None:
    async def work() -> list[bytes]:
        client = AsyncCheckpointer(f"memory://{uuid.uuid4().hex}")
        lock = client.session.lock
        async with client.begin(background=True) as cp:
            await cp.snapshot("o", 0, b"in time")
            await runtime.bridge(lock.acquire())  # another commit of this client is under way
        with pytest.raises(InvalidStateError, match="is being committed"):
            await cp.delta("o", 0, b"too late")

        async def release() -> None:
            lock.release()

        await runtime.bridge(release())
        await client.close()
        restored = await client.copy().restore()
        assert restored is not None
        return await restored.operator("o").partition(0)

    assert asyncio.run(work()) == [b"in time"]


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_a_prepared_checkpoint_is_decided_once_by_two_calls_at_once(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> list[str]:
        client = AsyncCheckpointer(f"memory://{uuid.uuid4().hex}")
        async with client.begin() as cp:
            await cp.snapshot("op", 0, b"1")
            prepared = await cp.prepare()
        session, swaps = client.session, []
        swap = Owner.swap

        async def counted(*args: Any) -> Any:
            swaps.append(verb)
            return await swap(*args)

        monkeypatch.setattr(Owner, "swap", counted)
        await runtime.bridge(session.lock.acquire())
        calls = [asyncio.ensure_future(getattr(prepared, verb)()) for _ in range(2)]
        await asyncio.sleep(0.1)  # both wait for the lock

        async def release() -> None:
            session.lock.release()

        await runtime.bridge(release())
        await asyncio.gather(*calls)
        await aput(client, b"2")  # and the session still stands on what it decided
        return swaps

    assert len(asyncio.run(work())) == 2  # one to decide, one of the commit after it


def test_a_restore_that_failed_once_it_had_read_all_moves_no_later_commit(world: World) -> None:
    """Its caller did not get what it has read, so what it saves is of an older checkpoint."""

    async def no_memory(compute: Callable[[], Any]) -> Any:
        raise MemoryError("for the metrics")

    client = world.actor(metrics=lambda record: None)
    put(client, b"1")
    client.restore()
    put(world.actor(), b"2")
    client.session.reports._host = SimpleNamespace(clock=SystemHost.clock, run=no_memory)  # type: ignore[assignment]
    with pytest.raises(MemoryError):
        client.restore()
    with pytest.raises(InvalidStateError, match=r"restore\(\) was interrupted"):
        put(client, b"of 1, and not of 2")
    assert latest(world.actor()) == b"2"


def test_a_restore_that_found_nothing_moves_nothing(world: World) -> None:
    client = world.actor()
    put(client, b"1")
    reached, go_on = threading.Event(), threading.Event()

    def meanwhile(_: object) -> None:
        reached.set()
        go_on.wait(10)

    client.faults.call(meanwhile, "get", path="_latest")

    def restore_what_is_not_there() -> None:
        with pytest.raises(CheckpointNotFoundError):
            client.restore("epoch=99")

    with ThreadPoolExecutor(2) as pool:
        failing = pool.submit(restore_what_is_not_there)
        reached.wait(10)
        restoring = pool.submit(client.restore)
        go_on.set()
        failing.result(30)
        assert restoring.result(30)
    put(client, b"2")
    assert latest(world.actor()) == b"2"


@pytest.mark.parametrize("older", [False, True])
def test_what_a_restore_has_set_meanwhile_counts_for_a_call_that_only_reads(world: World, older: bool) -> None:
    ids = line(world.actor(), 2)
    client = world.actor()
    gate = client.faults.hold("get", path="_latest", after=True)

    def draw() -> None:
        with pytest.raises(InvalidStateError) if older else nullcontext():
            client.new_id()

    with ThreadPoolExecutor(1) as pool:
        drawing = pool.submit(draw)
        gate.wait()
        if older:
            client.restore(ids[0])  # without saving on top of it
        else:
            client.restore()
        put(world.actor(), b"of another")
        gate.open()
        drawing.result(30)
    with pytest.raises(InvalidStateError if older else ConflictError):
        put(client, b"of what was restored")
    assert latest(world.actor()) == b"of another"


def test_a_checkpoint_that_is_awaited_twice_is_begun_once(world: World) -> None:
    async def run() -> None:
        client = asynchronous(world)
        cp = await client.begin()
        await cp.snapshot("op", 0, b"saved")
        assert await cp is cp
        async with cp:
            assert await cp is cp
        assert await alatest(client) == b"saved"
        with pytest.raises(InvalidStateError, match="this attempt was committed"):
            await cp
        gate = client.faults.hold("get", path="_latest")
        fresh = asynchronous(world)
        fresh.session.store = client.session.store
        twice = fresh.begin()
        first = asyncio.create_task(twice._begin())
        await asyncio.to_thread(gate.wait)
        with pytest.raises(InvalidStateError, match="being begun by another task"):
            await twice
        gate.open()
        await first
        await twice.abort()

    asyncio.run(asyncio.wait_for(run(), 30))
