"""What a commit and a restore say they cost is what they cost, and saying it harms nobody."""

import asyncio
import itertools
import logging
import pickle
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState, runtime
from pyspark_checkpointer.checkpoint import metering
from pyspark_checkpointer.checkpoint.metering import Meter, blocking
from pyspark_checkpointer.checkpoint.metrics import CommitMetrics, Metrics, OperatorMetrics, Requests, RestoreMetrics
from pyspark_checkpointer.compaction import INLINE
from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    FencedError,
    IllegalArgumentError,
    SavepointNotFoundError,
)
from pyspark_checkpointer.manifests.model import CheckpointId, Cost, Manifest, Operator
from pyspark_checkpointer.runtime import user_functions
from pyspark_checkpointer.runtime.host import SystemHost
from pyspark_checkpointer.storage.request_path import LimitedStore, RetryingStore
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.store import FaultyStore
from tests.servers import Server
from tests.world import World, at_once, latest, line, put

BIG = b"x" * ((1 << 20) + 1)
SECOND = 1_000_000_000


class Clock(SystemHost):
    """Time goes by when a test says so."""

    def __init__(self) -> None:
        self._time = 0
        self._looks = threading.Condition()
        self._looked = 0

    def clock(self) -> int:
        with self._looks:
            self._looked += 1
            self._looks.notify_all()
            return self._time

    def pass_by(self, seconds: int) -> None:
        self._time += seconds * SECOND

    def wait_for_looks(self, more: int, begin: Callable[[], object]) -> None:
        """`begin` something, and go on once it has looked at the clock so often."""
        with self._looks:
            until = self._looked + more
        begin()
        with self._looks:
            assert self._looks.wait_for(lambda: self._looked >= until, 30)


class Watched:
    """A client of a root, the records it hands out, and behind its retries a store that counts every try."""

    def __init__(self, world: World, kind: Any = Checkpointer, **options: Any) -> None:
        self.given: list[Metrics] = []
        self.client = kind(world.store.url, **({"metrics": self.given.append} | options))
        self.faults = Faults()
        faulty = FaultyStore(world.store, self.faults)
        self.host = Clock()
        session = self.client.session
        session.store = RetryingStore(LimitedStore(faulty, concurrency=16, timeout=60.0), sleep=at_once)
        session.host = session.reports._host = self.host

    def records(self) -> list[Metrics]:
        """Those since the last time."""
        runtime.run_sync(self.client.session.reports.delivered())
        found, self.given[:] = list(self.given), []
        return found

    def record(self) -> Any:
        """The only one since the last time."""
        (record,) = self.records()
        return record

    def sent(self) -> Requests:
        """What the store was asked for since the last time."""
        counts = self.faults.counts
        self.faults.forget()
        return Requests(
            get=counts["get"] + counts["get_range"],
            put=counts["put"],
            swap=counts["swap"],
            list=counts["list"],
            delete=counts["delete"],
        )

    def spend(self) -> None:
        """Forget what was so far."""
        self.records()
        self.sent()


@pytest.fixture
def watched(world: World) -> Watched:
    """One that has committed and restored before."""
    watched = Watched(world)
    put(watched.client, b"first")
    watched.client.restore()
    watched.spend()
    return watched


def stored(world: World, checkpoint: CheckpointId) -> dict[str, int]:
    """Sizes of the objects that carry an id, without the manifest."""
    entries = runtime.run_sync(world.store.list(""))
    return {e.path: e.size for e in entries if str(checkpoint) in e.path and e.path != f"manifests/{checkpoint}.json"}


def manifest_of(world: World, checkpoint: CheckpointId) -> Manifest:
    return Checkpointer(world.store.url).load_manifest(checkpoint)


def cost_of(world: World, checkpoint: CheckpointId) -> Cost:
    cost = manifest_of(world, checkpoint).cost
    assert cost is not None
    return cost


def figures(record: Any) -> tuple[Any, ...]:
    """What two runs of one history have in common."""
    return record.error, record.bytes_read, record.requests, record.operators


# ---- commits ---------------------------------------------------------------------------------------------------------


def test_a_commit_is_counted_request_by_request_and_byte_by_byte(world: World, watched: Watched) -> None:
    state = KeyedState({n: n for n in range(100)})
    with watched.client.begin(epoch=7) as cp:
        cp.snapshot("op", 0, b"small")
        cp.snapshot("op", 1, b"small too")
        cp.snapshot("op", 2, BIG)
        cp.save("map", state)
    record = watched.record()
    assert isinstance(record, CommitMetrics)
    assert (record.root, record.id, record.epoch, record.error) == (world.store.url, cp.id, 7, None)
    assert record.requests == watched.sent() == Requests(put=4, swap=1)
    sizes = stored(world, cp.id)
    assert (record.objects, record.bytes_written, record.bytes_read) == (3, sum(sizes.values()), 0)
    raw = len(BIG) + len(b"small") + len(b"small too")
    assert record.operators["op"] == OperatorMetrics(raw, 2, 3, raw, 0)
    packed = sum(sizes.values()) - raw
    assert record.operators == {
        "op": OperatorMetrics(raw, 2, 3, raw, 0),
        "map": OperatorMetrics(packed, 1, state.partitions, packed, 0),
    }
    state[5] = "changed"
    with watched.client.begin() as cp:
        cp.delta("op", 1, b"more")
        cp.save("map", state)
    (changed,) = (size for path, size in stored(world, cp.id).items() if "/map/" in path)
    record = watched.record()
    assert record.requests == watched.sent() == Requests(put=3, swap=1)
    assert record.operators == {
        "op": OperatorMetrics(4, 1, 1, 0, 4),
        "map": OperatorMetrics(changed, 1, 1, 0, changed),
    }


def test_the_cost_in_the_manifest_is_that_of_the_record(world: World, watched: Watched) -> None:
    with watched.client.begin() as cp:
        cp.snapshot("op", 0, b"small")
        cp.snapshot("op", 1, BIG)
        watched.host.pass_by(3)
    record = watched.record()
    assert cost_of(world, cp.id) == Cost(
        requests=record.requests.total, objects=2, bytes=record.bytes_written, elapsed_us=3_000_000, blocked_us=0
    )


def test_what_was_not_written_is_not_counted(watched: Watched) -> None:
    with watched.client.begin():
        pass
    record = watched.record()
    assert (record.bytes_written, record.objects, record.operators) == (0, 0, {})
    with watched.client.begin() as cp:
        cp.snapshot("op", 0, b"first")
    assert watched.record().operators == {}, "the parent has just this"
    with watched.client.begin() as cp:
        cp.drop("op")
    assert watched.record().operators == {}


def test_segments_are_counted_with_their_operator(world: World, watched: Watched) -> None:
    with watched.client.begin() as cp:
        for partition in range(INLINE + 1):
            cp.snapshot("many", partition, b"%d" % partition)
    sizes = stored(world, cp.id)
    assert any("segments" in path for path in sizes)
    part = watched.record().operators["many"]
    assert (part.bytes, part.objects, part.partitions) == (sum(sizes.values()), 2, INLINE + 1)
    with watched.client.begin() as cp:
        cp.delta("many", 3, b"more")
    part = watched.record().operators["many"]
    assert (part.bytes, part.objects, part.partitions) == (sum(stored(world, cp.id).values()), 2, 1)
    assert (part.snapshot_bytes, part.delta_bytes) == (0, 4)
    cost = cost_of(world, cp.id)
    assert (cost.requests, cost.objects, cost.bytes) == (4, 2, part.bytes)


def test_every_try_counts(world: World, watched: Watched) -> None:
    watched.faults.fail("put", path="artifacts/", times=2)
    watched.faults.fail("put", path="manifests/")
    watched.faults.drop_answer("swap")
    checkpoint = put(watched.client, b"second")
    record = watched.record()
    assert record.requests == watched.sent() == Requests(get=1, put=5, swap=1)
    assert cost_of(world, checkpoint).requests == 3, "each once: the artifact goes beside the manifest"


def test_the_first_commit_pays_for_the_test_of_the_store(world: World) -> None:
    watched = Watched(world)
    checkpoint = put(watched.client, b"first")
    record = watched.record()
    assert record.requests == watched.sent()
    assert record.requests.delete == 1
    assert cost_of(world, checkpoint).requests == record.requests.total == 5 + 7, "and seven to try the store"


def test_what_a_commit_reads_is_counted(world: World, watched: Watched) -> None:
    fresh = Watched(world)
    expected = len(world.latest()) + len(world.read(f"manifests/{watched.client.read_latest()}.json"))
    put(fresh.client, b"second")
    record = fresh.record()
    assert record.requests == fresh.sent() == Requests(get=2, put=2, swap=1)
    assert record.bytes_read == expected


def test_two_phases_are_one_commit(world: World, watched: Watched) -> None:
    cp = watched.client.begin(epoch=3)
    cp.snapshot("op", 0, b"second")
    prepared = cp.prepare()
    watched.host.pass_by(4)
    assert watched.records() == []
    prepared.commit()
    prepared.commit()
    record = watched.record()
    assert (record.id, record.epoch, record.bytes_written, record.total_seconds) == (cp.id, 3, 6, 4)
    assert record.requests == watched.sent() == Requests(put=2, swap=2)
    assert cost_of(world, cp.id).requests == 3


def test_a_prepared_checkpoint_of_another_process_is_counted_as_far_as_it_can_be(
    world: World, watched: Watched
) -> None:
    cp = watched.client.begin(epoch=3)
    cp.snapshot("op", 0, b"second")
    cp.prepare()
    heir = Watched(world)
    restored = heir.client.restore()
    heir.spend()
    heir.host.pass_by(2)
    restored.prepared.commit()
    record = heir.record()
    assert (record.id, record.epoch, record.bytes_written, record.total_seconds) == (cp.id, 3, 6, 2)
    assert record.requests == heir.sent() == Requests(swap=1)


def test_a_rollback_has_a_cost_of_its_own(world: World, watched: Watched) -> None:
    with watched.client.begin(epoch=1) as cp:
        cp.snapshot("op", 0, BIG)
    put(watched.client, b"later")
    watched.spend()
    back = watched.client.rollback(cp.id)
    record = watched.record()
    assert (record.id, record.epoch, record.bytes_written, record.objects) == (back, 1, 0, 0)
    assert record.requests == watched.sent()
    assert cost_of(world, back) == Cost(record.requests.total - 1, 0, 0, 0, 0), "the swap proves liveness anew"
    assert cost_of(world, cp.id).bytes == len(BIG)


def test_a_copy_on_another_root_does_not_carry_the_cost(world: World, watched: Watched) -> None:
    other = World()
    copied = watched.client.export(None, other.store.url)
    assert manifest_of(other, copied).cost is None
    assert watched.records() == []


def test_a_checkpoint_put_together_by_hand_is_counted_when_it_is_committed(world: World, watched: Watched) -> None:
    client = watched.client
    checkpoint = client.new_id()
    artifact = client.save_snapshot(checkpoint, "op", 0, b"by hand")
    parent = client.session.restored.parent
    client.save_manifest(
        Manifest(checkpoint, parent, operators={"op": Operator(1, "explicit", "raw", {0: (artifact,)})})
    )
    watched.spend()
    client.update_latest(checkpoint)
    record = watched.record()
    assert (record.id, record.operators) == (checkpoint, {"op": OperatorMetrics(7, 1, 1, 7, 0)})
    assert record.requests == watched.sent() == Requests(get=2, swap=1)
    assert manifest_of(world, checkpoint).cost is None


def test_artifacts_that_tasks_wrote_are_counted_in_bytes_and_objects(watched: Watched) -> None:
    with watched.client.begin() as cp:
        task = pickle.loads(pickle.dumps(Checkpointer(watched.client.root)))
        cp.attach(task.save_snapshot(cp.id, "op", 1, b"from a task"))
    record = watched.record()
    assert record.operators == {"op": OperatorMetrics(11, 1, 1, 11, 0)}
    assert record.requests == Requests(put=1, get=1, swap=1), "one look at what was told"


# ---- time ------------------------------------------------------------------------------------------------------------


def test_a_caller_is_blocked_by_the_commit_and_not_by_what_it_does_itself(watched: Watched) -> None:
    watched.faults.call(lambda request: watched.host.pass_by(5), "put", path="manifests/")
    with watched.client.begin() as cp:
        cp.snapshot("op", 0, b"second")
        watched.host.pass_by(7)
    record = watched.record()
    assert (record.blocked_seconds, record.total_seconds) == (5, 12)


def test_calls_within_and_beside_each_other_block_once(watched: Watched) -> None:
    with watched.client.begin() as cp:
        meter = cp.attempt.meter

        @blocking
        def within(meter: Meter) -> None:
            watched.host.pass_by(3)

        @blocking
        def around(meter: Meter) -> None:
            watched.host.pass_by(2)
            within(meter)
            watched.host.pass_by(4)
            assert meter.blocked == 9 * metering.NANOSECONDS

        around(meter)
        inside, gone = threading.Barrier(3), threading.Barrier(3)

        @blocking
        def call(meter: Meter) -> None:
            inside.wait(30)
            gone.wait(30)

        threads = [threading.Thread(target=call, args=(meter,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        inside.wait(30)
        watched.host.pass_by(5)
        gone.wait(30)
        for thread in threads:
            thread.join()
        watched.host.pass_by(6)
    record = watched.record()
    assert (record.blocked_seconds, record.total_seconds) == (14, 20)


def test_a_coroutine_and_a_block_count_until_they_end() -> None:
    clock = Clock()
    meter = Meter(clock.clock)

    @blocking
    async def wait(meter: Meter) -> None:
        clock.pass_by(2)
        await asyncio.sleep(0)
        clock.pass_by(3)

    @contextmanager
    @blocking
    def operation(meter: Meter) -> Iterator[None]:
        yield

    work = wait(meter)
    clock.pass_by(100)  # made, and not awaited yet
    asyncio.run(work)
    assert meter.blocked == 5 * metering.NANOSECONDS
    with pytest.raises(KeyError), operation(meter):
        clock.pass_by(4)
        raise KeyError
    clock.pass_by(100)
    assert meter.blocked == 9 * metering.NANOSECONDS


@pytest.mark.parametrize("look", range(3))
def test_a_signal_handler_may_wait_for_a_thread_that_reads_the_meter(look: int) -> None:
    """It interrupts the reading of the clock, as that of any other line."""
    looks, threads = itertools.count(-1), list[threading.Thread]()  # -1: when the meter is made

    def clock() -> int:
        if next(looks) == look:
            threads.append(threading.Thread(target=lambda: meter.blocked, daemon=True))
            threads[0].start()
            threads[0].join(1)
            assert not threads[0].is_alive()
        return 0

    @blocking
    def call(meter: Meter) -> None:
        pass

    meter = Meter(clock)
    call(meter)
    assert meter.blocked == 0
    assert threads


def test_a_meter_of_very_many_calls_stays_small_and_exact() -> None:
    clock = Clock()
    meter = Meter(clock.clock)

    @blocking
    def call(meter: Meter) -> None:
        clock.pass_by(1)

    @blocking
    def around(meter: Meter) -> None:
        for _ in range(5_000):
            call(meter)

    for count in range(1, 4):
        for _ in range(1_000):
            call(meter)
            clock.pass_by(1)
        around(meter)
        assert meter.blocked == count * 6_000 * metering.NANOSECONDS
    assert len(meter._moments) <= 2 * metering.MOMENTS_ADDED_UP + 1


def test_threads_that_tell_the_meter_late_block_no_more_than_the_time_that_has_passed() -> None:
    """A thread reads the clock, and others go on before it is heard."""
    waiting, times = threading.Event(), iter([0, *range(10, 10_000)])
    late, heard = threading.local(), threading.Event()

    def clock() -> int:
        now = next(times)
        if getattr(late, "is_late", False):
            late.is_late = False
            waiting.set()
            heard.wait(30)
        return now

    @blocking
    def call(meter: Meter) -> None:
        pass

    def call_late() -> None:
        late.is_late = True
        call(meter)

    meter = Meter(clock)
    thread = threading.Thread(target=call_late)
    thread.start()
    waiting.wait(30)
    for _ in range(2 * metering.MOMENTS_ADDED_UP):
        call(meter)
    heard.set()
    thread.join(30)
    assert 0 < meter.blocked <= meter.elapsed


def test_a_commit_in_the_background_blocks_only_who_waits_for_it(world: World, watched: Watched) -> None:
    client, host = watched.client, watched.host
    gate = watched.faults.hold("put", path="manifests/")
    with client.begin(background=True) as cp:
        cp.snapshot("op", 0, b"second")
    gate.wait()
    host.pass_by(5)
    begun: list[Any] = []
    thread = threading.Thread(target=lambda: begun.append(client.begin()))
    host.wait_for_looks(2, thread.start)
    host.pass_by(3)
    gate.open()
    thread.join(30)
    begun[0].commit()
    first, second = watched.records()
    assert (first.blocked_seconds, first.total_seconds) == (0, 8)
    assert (second.blocked_seconds, second.total_seconds) == (3, 3)
    cost = cost_of(world, second.id)
    assert (cost.elapsed_us, cost.blocked_us) == (3_000_000, 3_000_000)
    assert watched.sent() == Requests(put=first.requests.put + second.requests.put, swap=2)


def test_a_restore_blocks_all_the_time(watched: Watched) -> None:
    watched.faults.call(lambda request: watched.host.pass_by(2), "get", times=2)
    watched.client.restore()
    record = watched.record()
    assert (record.blocked_seconds, record.total_seconds) == (4, 4)


def test_requests_are_those_of_the_commit_also_beside_a_restore(watched: Watched) -> None:
    gate = watched.faults.hold("put")
    with watched.client.begin(background=True) as cp:
        cp.snapshot("op", 0, BIG)
    gate.wait()
    other = watched.client.copy()
    other.session.store = watched.client.session.store
    other.restore()
    gate.open()
    other.close()
    watched.client.close()
    restore, commit = sorted(watched.records(), key=lambda record: isinstance(record, CommitMetrics))
    assert (restore.requests, commit.requests) == (Requests(get=2), Requests(put=2, swap=1))


# ---- restores --------------------------------------------------------------------------------------------------------


def test_a_restore_is_counted_and_says_what_there_is_to_read(world: World, watched: Watched) -> None:
    state = KeyedState({n: n for n in range(100)})
    for number in range(3):
        state[number] = "changed"
        with watched.client.begin(epoch=number) as cp:
            cp.snapshot("op", 0, BIG) if number == 0 else cp.delta("op", 0, b"delta")
            cp.save("map", state)
    watched.spend()
    restored = watched.client.restore()
    record = watched.record()
    assert isinstance(record, RestoreMetrics)
    assert (record.id, record.epoch, record.error) == (cp.id, 2, None)
    assert record.requests == watched.sent() == Requests(get=2)
    assert record.bytes_read == len(world.latest()) + len(world.read(f"manifests/{cp.id}.json"))
    assert record.operators["op"] == OperatorMetrics(len(BIG) + 10, 3, 1, len(BIG), 10)
    whole = {a.path: a.size for chain in restored.manifest.operators["map"].chains.values() for a in chain}
    part = record.operators["map"]
    assert (part.bytes, part.objects, part.partitions) == (sum(whole.values()), len(whole), state.partitions)
    restored.keyed("map")
    assert watched.sent().get == part.objects
    assert watched.records() == [], "reading what was restored is not another restore"


def test_a_restore_of_nothing_and_one_that_fails_are_counted(world: World) -> None:
    watched = Watched(world)
    watched.client.restore()
    record = watched.record()
    assert (record.id, record.error, record.requests, record.operators) == (None, None, Requests(get=1, list=1), {})
    put(watched.client, b"first")
    watched.spend()
    with pytest.raises(SavepointNotFoundError):
        watched.client.restore(savepoint="none")
    record = watched.record()
    assert (record.id, record.error, record.requests) == (None, "SavepointNotFoundError", Requests(get=1))


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_commit_that_fails_is_reported_and_one_that_was_given_up_is_not(world: World, watched: Watched) -> None:
    with pytest.raises(ValueError, match="mine"), watched.client.begin() as cp:
        cp.snapshot("op", 0, b"x")
        raise ValueError("mine")
    watched.client.begin().abort()
    assert watched.records() == []
    watched.faults.fail("put", path="manifests/", times=100)
    with pytest.raises(DependencyError):
        put(watched.client, b"second")
    record = watched.record()
    assert (record.error, record.bytes_written, record.requests.swap) == ("DependencyError", 6, 0)
    cp = watched.client.begin()
    with pytest.raises(DependencyError):
        cp.prepare()
    assert watched.record().id == cp.id
    with pytest.raises(CheckpointError, match="begin another"):
        cp.commit()
    assert watched.records() == [], "a second commit of one attempt is a mistake and costs nothing"


def test_a_fenced_writer_says_so(world: World, watched: Watched) -> None:
    put(watched.client, b"second")
    put(world.actor(), b"another")
    watched.spend()
    with pytest.raises(FencedError):
        put(watched.client, b"zombie")
    assert watched.record().error == "FencedError"


# ---- the callback ----------------------------------------------------------------------------------------------------


def test_a_callback_that_raises_harms_nothing_and_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Metrics] = []

    def callback(record: Metrics) -> None:
        seen.append(record)
        raise RuntimeError("the callback's own")

    with (
        caplog.at_level(logging.WARNING, "pyspark_checkpointer"),
        Checkpointer(world.store.url, metrics=callback) as client,
    ):
        put(client, b"1")
        put(client, b"2")
        assert latest(client) == b"2"
    assert len(seen) == 3
    assert [(r.levelname, r.exc_info is not None) for r in caplog.records] == [("WARNING", True)] * 3
    assert "the callback's own" in caplog.text


def test_a_callback_that_hangs_holds_up_no_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    go, seen = threading.Event(), []

    def callback(record: Metrics) -> None:
        assert go.wait(30)
        seen.append((record.id.sequence, threading.current_thread()))

    client = Checkpointer(world.store.url, metrics=callback)
    put(client, b"1")
    put(client, b"2")
    assert latest(world.actor()) == b"2"
    monkeypatch.setattr(metering, "PATIENCE", 0.01)
    client.close()
    assert seen == []
    go.set()
    monkeypatch.undo()
    client.close()
    assert [number for number, _ in seen] == [1, 2]
    threads = {thread for _, thread in seen}
    assert len(threads) == 1
    assert not threads & {threading.current_thread(), threading.main_thread()}


def test_a_callback_may_use_the_checkpointer(world: World) -> None:
    found = []
    client = Checkpointer(world.store.url, metrics=lambda record: found.append(client.read_latest()))
    with client.begin(background=True) as cp:
        cp.snapshot("op", 0, b"1")
    client.close()
    assert found == [cp.id]


def test_a_callback_stays_in_its_process(world: World, tmp_path: Any) -> None:
    seen: list[Metrics] = []
    client = Checkpointer(tmp_path / "root", metrics=lambda record: seen.append(record))
    with pickle.loads(pickle.dumps(client)) as copy:
        put(copy, b"1")
    assert seen == []
    with client.copy() as twin:
        assert latest(twin) == b"1"
    assert [type(record) for record in seen] == [RestoreMetrics]


def test_a_callback_has_to_be_one(world: World) -> None:
    with pytest.raises(IllegalArgumentError, match="metrics='loud'"):
        Checkpointer(world.store.url, metrics="loud")


# ---- both faces ------------------------------------------------------------------------------------------------------


def test_the_asynchronous_interface_counts_the_same() -> None:
    one, other = Watched(World()), Watched(World(), AsyncCheckpointer)

    def life(client: Checkpointer) -> None:
        client.restore()
        with client.begin(epoch=1) as cp:
            cp.snapshot("op", 0, BIG)
            cp.save("map", KeyedState({n: n for n in range(100)}))
        with client.begin(epoch=2, background=True) as cp:
            cp.delta("op", 0, b"more")
        client.restore()
        cp = client.begin(epoch=3)
        cp.prepare().commit()
        client.rollback(cp.id)
        client.close()

    async def same(client: AsyncCheckpointer) -> None:
        await client.restore()
        async with client.begin(epoch=1) as cp:
            await cp.snapshot("op", 0, BIG)
            await cp.save("map", KeyedState({n: n for n in range(100)}))
        async with client.begin(epoch=2, background=True) as cp:
            await cp.delta("op", 0, b"more")
        await client.restore()
        cp = await client.begin(epoch=3)
        await (await cp.prepare()).commit()
        await client.rollback(cp.id)
        await client.close()

    life(one.client)
    asyncio.run(same(other.client))
    mine, others = one.records(), other.records()
    assert [figures(record)[:1] + figures(record)[2:] for record in mine] == [
        figures(record)[:1] + figures(record)[2:] for record in others
    ]
    assert [type(record) for record in mine] == [RestoreMetrics, CommitMetrics, CommitMetrics, RestoreMetrics] + [
        CommitMetrics
    ] * 2
    assert one.sent() == other.sent()


def test_an_awaited_commit_blocks_its_task(world: World) -> None:
    watched = Watched(world, AsyncCheckpointer)
    watched.faults.call(lambda request: watched.host.pass_by(5), "put", path="manifests/")

    async def commit() -> None:
        async with watched.client.begin() as cp:
            await cp.snapshot("op", 0, b"1")
            watched.host.pass_by(7)

    asyncio.run(commit())
    record = watched.record()
    assert (record.blocked_seconds, record.total_seconds) == (5, 12)


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_what_is_logged_at_which_level(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def logged() -> list[tuple[str, str]]:
        found = [(record.levelname, record.getMessage()) for record in caplog.records]
        assert {record.name for record in caplog.records} <= {"pyspark_checkpointer"}
        caplog.clear()
        return found

    url = world.store.url
    watched = Watched(world)
    with caplog.at_level(logging.DEBUG, "pyspark_checkpointer"):
        first = put(watched.client, b"1")
        (took, commit) = logged()
        assert took == ("INFO", f"{url}: this writer took over (as writer 1)")
        assert commit == ("DEBUG", repr(watched.record()))
        second = put(watched.client, b"2")
        assert [level for level, _ in logged()] == ["DEBUG"]
        watched.client.savepoint("kept", first)
        assert logged() == [("INFO", f"{url}: savepoint 'kept' keeps {first}")]
        back = watched.client.rollback("kept")
        assert logged()[-1] == ("INFO", f"{url}: rolled back to {first}, as {back}")
        watched.client.delete_savepoint("kept")
        watched.client.delete_checkpoint(second)
        assert logged() == [("INFO", f"{url}: savepoint 'kept' was deleted"), ("INFO", f"{url}: {second} was deleted")]
        watched.faults.fail("put", times=100)
        with pytest.raises(DependencyError):
            put(watched.client, b"3")
        assert [level for level, _ in logged()] == ["WARNING", "DEBUG"]


def test_no_log_and_no_record_shows_a_secret(s3_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Metrics] = []
    options = s3_server.storage_options
    secrets = [options["secret"], "the-wrong-secret"]
    with caplog.at_level(logging.DEBUG, "pyspark_checkpointer"):
        for secret in secrets:
            root = f"{s3_server.url}/{uuid.uuid4().hex}"
            client = Checkpointer(root, {**options, "secret": secret}, metrics=seen.append)
            for verb in (lambda client=client: put(client, b"1"), client.restore):
                try:
                    verb()
                except CheckpointError:
                    assert secret == "the-wrong-secret"
            client.close()
            shown = repr([seen, client, client._config, client.session.reports])
            assert not any(secret in text for secret in secrets for text in (caplog.text, shown))
    assert [(type(record), record.error) for record in seen] == [
        (CommitMetrics, None),
        (RestoreMetrics, None),
        (RestoreMetrics, "StoreRefusedError"),
    ]


def test_a_callback_that_never_returns_does_not_keep_the_process(tmp_path: Path) -> None:
    program = f"""
import time
from pyspark_checkpointer import Checkpointer
ck = Checkpointer({str(tmp_path)!r}, metrics=lambda record: time.sleep(3600))
for _ in range(3):
    with ck.begin() as cp:
        cp.snapshot("op", 0, b"1")
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "done\n"


def test_records_that_nobody_takes_are_dropped_and_said_to_be(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(user_functions, "_queue", user_functions.CallQueue())
    monkeypatch.setattr(user_functions, "MAX_WAITING_CALLS", 2)
    held = threading.Event()
    client = world.actor(metrics=lambda record: held.wait(30))
    line(client, 5)
    held.set()
    assert "a record is lost" in caplog.text
    assert len(client.list_checkpoints()) == 5


def test_a_log_that_fails_hides_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(record: logging.LogRecord) -> bool:
        raise ValueError("in a filter of the user")

    heard: list[Metrics] = []

    def hear(record: Metrics) -> None:
        heard.append(record)
        if len(heard) == 1:
            raise KeyError("of the user")

    client, other = world.actor(metrics=hear), world.actor()
    client.restore()
    logger = logging.getLogger("pyspark_checkpointer")
    monkeypatch.setattr(logger, "filters", [fails])
    logger.setLevel(logging.DEBUG)
    for number in range(2):
        put(client, b"%d" % number)
    monkeypatch.setattr(logger, "filters", [])
    other.restore()
    put(other, b"other")
    monkeypatch.setattr(logger, "filters", [fails])
    with pytest.raises(FencedError):
        put(client, b"late")
    monkeypatch.setattr(logger, "filters", [])
    logger.setLevel(logging.NOTSET)
    runtime.run_sync(client.session.reports.delivered())
    assert [record.error for record in heard[1:]] == [None, None, "FencedError"]
