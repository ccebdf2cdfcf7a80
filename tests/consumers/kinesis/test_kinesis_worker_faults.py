"""A worker whose store, processors or fellows fail: what was delivered and not checkpointed is delivered again."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_checkpointer.consumers.kinesis import TRIM_HORIZON, ExtendedSequenceNumber, Worker
from pyspark_checkpointer.errors import ConflictError, FencedError, InvalidStateError, RetryableError, ThrottlingError
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from pyspark_checkpointer.testing.faults import Faults
from tests.consumers.kinesis.kinesis_world import Node, records
from tests.consumers.kinesis.test_kinesis_worker import THIRD, Processor, Stream, checkpoint
from tests.consumers.world import TestHost, World

Act = Callable[[str, Any], None]


@pytest.fixture
def host() -> TestHost:
    return TestHost()


@pytest.fixture
def one(world: World, host: TestHost) -> Node:
    leases = Node(world.store, "one", host)
    leases.create(["s"])
    return leases


@pytest.fixture
def two(world: World, host: TestHost) -> Node:
    return Node(world.store, "two", host)


@pytest.fixture
def stream() -> Stream:
    stream = Stream()
    stream.records["s"] = records(1, 5)
    return stream


@pytest.fixture
def calls() -> list[Any]:
    return []


# ---- renewals that fail ---------------------------------------------------------------------------------------------


def test_a_worker_that_cannot_renew_reads_no_longer_than_its_lease(
    one: Node, two: Node, host: TestHost, stream: Stream, calls: list[Any]
) -> None:
    """Another worker has its shards by then, and reads them."""
    stream.records["s"] = records(1, 9)
    worker = Worker(one, stream.fetch, lambda: Processor(calls, lambda name, given: None))
    assert worker.run_once()
    for kind in ("get", "swap"):
        one.faults.fail(kind, path="ownership", times=1000)
    host.seconds += THIRD
    assert worker.run_once()  # a store that is away for a moment ends nothing
    host.seconds += 3 * THIRD
    before = len(calls)
    assert not worker.run_once()
    assert len(calls) == before
    one.faults.clear()
    host.seconds += THIRD
    assert worker.run_once()  # nobody has taken it


def test_leases_that_are_taken_after_a_pause_are_fresh(one: Node, host: TestHost) -> None:
    host.seconds += 10 * THIRD
    assert one.may_have_expired
    assert one.take("s") is not None
    assert not one.may_have_expired
    host.seconds += 4 * THIRD
    assert one.may_have_expired


# ---- releases that fail --------------------------------------------------------------------------------------------


def test_what_a_processor_did_not_do_is_delivered_again_where_nothing_could_be_released(
    one: Node, stream: Stream, calls: list[Any]
) -> None:
    def fail(name: str, given: Any) -> None:
        if calls[-1] == ("s", "process_records", ["4", "5"]):
            raise ZeroDivisionError
        checkpoint(name, given)

    acts = iter([fail, checkpoint])
    worker = Worker(one, stream.fetch, lambda: Processor(calls, next(acts)))
    worker.run_once()
    one.faults.fail("swap", path="ownership", times=MAX_SENDS)
    with pytest.raises(ZeroDivisionError):
        worker.run_once()
    assert not one.held
    worker.run_once()
    assert calls[-3:] == [("s", "lease_lost"), ("s", "initialize", "3"), ("s", "process_records", ["4", "5"])]


def test_what_was_not_checkpointed_is_delivered_again_after_a_hand_over_that_failed(
    one: Node, two: Node, host: TestHost, stream: Stream, calls: list[Any]
) -> None:
    worker = Worker(one, stream.fetch, lambda: Processor(calls, lambda name, given: None))
    worker.run_once()
    two.claim("s")
    host.seconds += THIRD
    one.faults.fail("swap", nth=2, path="ownership", times=MAX_SENDS)  # the first balances
    worker.run_once()
    assert calls[-2:] == [("s", "shutdown_requested"), ("s", "lease_lost")]
    assert not one.held
    host.seconds += THIRD
    worker.run_once()
    assert calls[-2:] == [("s", "initialize", "TRIM_HORIZON"), ("s", "process_records", ["1", "2", "3"])]


def test_what_waits_and_cannot_be_written_is_delivered_again(
    world: World, host: TestHost, stream: Stream, calls: list[Any]
) -> None:
    lazy = Node(world.store, "lazy", host, max_updates=1000, interval=1000)
    lazy.create(["s"])

    def stop(name: str, given: Any) -> None:
        checkpoint(name, given)
        if name == "process_records":
            worker.stop()

    worker = Worker(lazy, stream.fetch, lambda: Processor(calls, stop))
    lazy.faults.fail("swap", nth=2, path="positions", times=MAX_SENDS)  # the first takes it
    worker.run()
    assert not lazy.held
    worker.run_once()
    assert calls[-2:] == [("s", "initialize", "TRIM_HORIZON"), ("s", "process_records", ["1", "2", "3"])]


def test_a_worker_begins_no_shard_whose_records_somebody_else_was_handed(
    one: Node, stream: Stream, calls: list[Any]
) -> None:
    one.deliver(one.must("s"), records(1, 3))
    worker = Worker(one, stream.fetch, lambda: Processor(calls))
    with pytest.raises(
        InvalidStateError, match=r"shard 's': records up to 3 .* only TRIM_HORIZON is checkpointed: call"
    ):
        worker.run_once()
    assert worker.run_once()
    assert calls[-1] == ("s", "process_records", ["1", "2", "3"])


@pytest.mark.parametrize("tries", [1, 2])
def test_a_throttled_finish_is_made_up_for(
    one: Node, host: TestHost, stream: Stream, calls: list[Any], tries: int
) -> None:
    stream.ended.add("s")
    worker = Worker(one, stream.fetch, lambda: Processor(calls))
    worker.run_once()
    one.faults.fail("swap", path="ownership", times=MAX_SENDS, error=ThrottlingError)
    worker.run_once()
    assert not one.rows()["s"].finished
    if tries == 2:
        host.seconds += THIRD
        one.faults.fail("swap", nth=2, path="ownership", times=MAX_SENDS, error=ThrottlingError)  # the first takes it
        worker.run_once()
        assert not one.rows()["s"].finished
    host.seconds += THIRD
    worker.run_once()
    assert one.rows()["s"].finished
    assert [call[1] for call in calls] == ["initialize", "process_records", "process_records", "shard_ended"]


# ---- processors that fail ------------------------------------------------------------------------------------------


def test_a_state_that_is_fenced_by_the_next_owner_ends_no_other_shard(
    one: Node, two: Node, stream: Stream, calls: list[Any]
) -> None:
    one.create(["t"])
    stream.records["t"] = records(1, 2)

    def be_fenced(name: str, given: Any) -> None:
        checkpoint(name, given)
        if calls[-1][:2] == ("s", "process_records"):
            two.must("s", force=True)
            raise FencedError("the state has another writer")

    Worker(one, stream.fetch, lambda: Processor(calls, be_fenced)).run_once()
    assert [call[:2] for call in calls[2:]] == [("s", "process_records"), ("s", "lease_lost"), ("t", "process_records")]
    assert list(one.held) == ["t"]


@pytest.mark.parametrize("renewed", [True, False])
def test_a_state_that_is_fenced_under_a_lease_that_is_held_ends_the_worker(
    one: Node, stream: Stream, calls: list[Any], renewed: bool
) -> None:
    def be_fenced(name: str, given: Any) -> None:
        if name == "process_records":
            if not renewed:
                one.faults.fail("swap", path="ownership", times=MAX_SENDS)
            raise FencedError("the state has another writer")

    with pytest.raises(FencedError):
        Worker(one, stream.fetch, lambda: Processor(calls, be_fenced)).run_once()
    assert calls[-1] == ("s", "lease_lost")


def test_a_state_that_another_worker_wrote_ends_the_run_and_the_next_one_goes_on(
    one: Node, two: Node, stream: Stream, calls: list[Any]
) -> None:
    """End it, as of a paused worker that has not committed yet since it took the shard: others may read it now."""
    written = ConflictError("the state was committed by another writer")

    def commit(name: str, given: Any) -> None:
        if name == "process_records" and calls.count(calls[-1]) == 1:
            two.must("s", force=True)
            raise written
        if name == "process_records":
            worker.stop()
        checkpoint(name, given)

    worker = Worker(one, stream.fetch, lambda: Processor(calls, commit))
    with pytest.raises(ConflictError) as caught:
        worker.run()
    assert caught.value is written
    assert [call[1] for call in calls] == ["initialize", "process_records", "lease_lost"]
    assert not one.held
    two.release(two.must("s", force=True))
    worker.run()
    assert calls[4][1:] == ("process_records", ["1", "2", "3"]), "what was not checkpointed is delivered again"
    assert str(two.must("s", force=True).position) == "3"


@pytest.mark.parametrize("where", ["initialize", "process_records", "shard_ended", "lease_lost"])
def test_what_a_processor_raises_is_followed_by_the_last_call_of_each(
    one: Node, stream: Stream, calls: list[Any], where: str
) -> None:
    one.create(["t"])
    stream.ended.add("s")

    def fail(name: str, given: Any) -> None:
        if calls[-1][:2] == ("s", where) or calls[-1][:2] == ("s", "shard_ended"):
            raise ZeroDivisionError
        checkpoint(name, given)

    worker = Worker(one, stream.fetch, lambda: Processor(calls, fail))
    with pytest.raises(ZeroDivisionError):
        for _ in range(3):
            worker.run_once()
    lost = [call for call in calls if call[1] == "lease_lost"]
    assert lost == [(shard, "lease_lost") for shard in (["s"] if where == "initialize" else ["s", "t"])]
    assert calls[-len(lost) :] == lost


# ---- random histories ----------------------------------------------------------------------------------------------

LENGTH = 15


class Effects:
    """What the processors of a history did of each shard."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.done: dict[str, set[int]] = {}


class Careful:
    """Has its effects when it checkpoints or prepares to, now and then, and fails now and then. It skips nothing."""

    def __init__(self, effects: Effects) -> None:
        self.effects, self.random = effects, effects.random

    def initialize(self, start: Any) -> None:
        self.done = self.effects.done.setdefault(start.shard_id, set())
        self.last, self.waiting = number(start.extended_sequence_number), []
        assert self.done >= {*range(1, self.last + 1)}
        self.stumble()
        if start.checkpointer.pending is not None and self.random.random() < 0.5:
            start.checkpointer.pending.checkpoint()
            self.last = number(start.checkpointer.position)
            assert self.done >= {*range(1, self.last + 1)}

    def process_records(self, given: Any) -> None:
        for record in given.records:
            assert int(record["SequenceNumber"]) == self.last + 1
            self.last += 1
            self.waiting.append(self.last)
        self.stumble()
        choice = self.random.random()
        if choice < 0.5:
            self.checkpoint(given)
        elif choice < 0.7:
            self.settle()
            given.checkpointer.prepare_checkpoint()

    def shard_ended(self, given: Any) -> None:
        self.stumble()
        self.checkpoint(given)
        assert self.done == {*range(1, LENGTH + 1)}

    def shutdown_requested(self, given: Any) -> None:
        self.stumble()
        if self.random.random() < 0.5:
            self.checkpoint(given)

    def lease_lost(self, lost: Any) -> None:
        self.stumble()

    def checkpoint(self, given: Any) -> None:
        self.settle()
        given.checkpointer.checkpoint()

    def settle(self) -> None:
        self.done.update(self.waiting)
        self.waiting = []

    def stumble(self) -> None:
        if self.random.random() < 0.1:
            raise ZeroDivisionError


def number(position: ExtendedSequenceNumber) -> int:
    return 0 if position == TRIM_HORIZON else LENGTH if position.is_record is False else int(position.sequence_number)


@pytest.mark.parametrize("max_updates", [1, 1000])
@pytest.mark.parametrize("seed", range(12))
def test_no_record_is_skipped_whatever_fails(world: World, host: TestHost, seed: int, max_updates: int) -> None:
    source = random.Random(seed)
    stream, effects = Stream(), Effects(source)
    shards = ["a", "b", "c"]
    stream.records = {shard: records(1, LENGTH) for shard in shards}
    stream.ended.update(shards)
    onlooker = Node(world.store, "onlooker", host)
    onlooker.create(shards)
    nodes = []
    for name in ("one", "two"):
        faults = Faults(seed=source.randrange(1000), rate=0.05, failures=("fail", "drop_answer"))
        nodes.append(Node(world.store, name, host, faults=faults, max_updates=max_updates, interval=1000))
    workers = [Worker(leases, stream.fetch, lambda: Careful(effects)) for leases in nodes]
    for step in itertools.count():
        assert step < 2000
        if all(row.finished for row in onlooker.rows().values()):
            break
        host.seconds += source.choice([0.0, 1.0, THIRD])
        which = source.randrange(2)
        worker = workers[which]
        if source.random() < 0.2:  # the store is away, longer than anybody tries
            nodes[which].faults.fail("swap", source.randint(1, 4), times=MAX_SENDS)
        try:
            if source.random() < 0.05:
                worker.stop()
                worker.run()
            worker.run_once()
        except (RetryableError, ZeroDivisionError):
            pass
    assert all(effects.done[shard] == {*range(1, LENGTH + 1)} for shard in shards)
