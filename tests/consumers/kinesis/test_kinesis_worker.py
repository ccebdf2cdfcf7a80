"""The loop that leads record processors through their life, and what becomes of their shards when it is killed."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer.consumers.kinesis import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber, Worker
from pyspark_checkpointer.errors import DependencyError, IllegalArgumentError
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from tests.consumers.kinesis import kinesis_job
from tests.consumers.kinesis.kinesis_job import LENGTH, SHARDS
from tests.consumers.kinesis.kinesis_world import Node, records
from tests.consumers.world import TestHost, World

OWNERSHIP = "progress/kinesis/app/ownership.json"
PATIENCE = 60.0
THIRD = 10.0 / 3 + 0.01
"""After that much of a lease it is time to balance."""


class Stream:
    """Shards that the test fills; what nobody filled is empty and open."""

    def __init__(self) -> None:
        self.records: dict[str, list[dict[str, Any]]] = {}
        self.ended: set[str] = set()
        self.asked: list[tuple[str, str]] = []

    def fetch(self, shard_id: str, after: ExtendedSequenceNumber) -> tuple[list[dict[str, Any]], bool]:
        self.asked.append((shard_id, str(after)))
        left = [
            record
            for record in self.records.get(shard_id, [])
            if ExtendedSequenceNumber(record["SequenceNumber"]) > after
        ]
        return left[:3], len(left) <= 3 and shard_id in self.ended


class Processor:
    """Notes its calls. It checkpoints what it processed, and the end, unless it is told to do something else."""

    def __init__(self, calls: list[Any], act: Callable[[str, Any], None] | None = None) -> None:
        self.calls, self.act = calls, act or checkpoint

    def initialize(self, given: Any) -> None:
        self.shard = given.shard_id
        self.note("initialize", given, str(given.extended_sequence_number))

    def process_records(self, given: Any) -> None:
        self.note("process_records", given, [record["SequenceNumber"] for record in given.records])

    def lease_lost(self, given: Any) -> None:
        self.note("lease_lost", given)

    def shard_ended(self, given: Any) -> None:
        self.note("shard_ended", given)

    def shutdown_requested(self, given: Any) -> None:
        self.note("shutdown_requested", given)

    def note(self, name: str, given: Any, *more: Any) -> None:
        self.calls.append((self.shard, name, *more))
        self.act(name, given)


def checkpoint(name: str, given: Any) -> None:
    if name in ("process_records", "shard_ended", "shutdown_requested"):
        given.checkpointer.checkpoint()


@pytest.fixture
def host() -> TestHost:
    return TestHost()


@pytest.fixture
def node(world: World, host: TestHost) -> Callable[..., Node]:
    return lambda name, **options: Node(world.store, name, host, **options)


@pytest.fixture
def one(node: Callable[..., Node]) -> Node:
    leases = node("one")
    leases.create(["s"])
    return leases


@pytest.fixture
def two(node: Callable[..., Node]) -> Node:
    return node("two")


@pytest.fixture
def stream() -> Stream:
    stream = Stream()
    stream.records["s"] = records(1, 5)
    return stream


@pytest.fixture
def calls() -> list[Any]:
    return []


def test_a_shard_from_its_beginning_to_its_end(one: Node, stream: Stream, calls: list[Any]) -> None:
    stream.ended.add("s")
    worker = Worker(one, stream.fetch, lambda: Processor(calls))
    assert [worker.run_once() for _ in range(3)] == [True, True, False]
    assert calls == [
        ("s", "initialize", "TRIM_HORIZON"),
        ("s", "process_records", ["1", "2", "3"]),
        ("s", "process_records", ["4", "5"]),
        ("s", "shard_ended"),
    ]
    assert stream.asked == [("s", "TRIM_HORIZON"), ("s", "3")]
    assert one.rows()["s"].finished
    assert not one.held


@pytest.mark.parametrize("again", [False, True])
def test_children_of_a_shard_are_read_from_their_first_record(
    node: Callable[..., Node], host: TestHost, stream: Stream, calls: list[Any], again: bool
) -> None:
    """Even if all begins at LATEST: what came before the parent was read to its end is wanted."""
    leases = node("one", initial=LATEST)
    leases.create(["s"])
    stream.ended.add("s")
    stream.records["s-1"] = records(6, 7)

    def act(name: str, given: Any) -> None:
        if name == "shard_ended" and given.checkpointer.shard_id == "s":
            for _ in range(1 + again):
                leases.create(["s", "s-1"])
        checkpoint(name, given)

    worker = Worker(leases, stream.fetch, lambda: Processor(calls, act))
    for _ in range(4):
        worker.run_once()
    host.seconds += THIRD
    worker.run_once()
    assert stream.asked[:3] == [("s", "LATEST"), ("s", "3"), ("s-1", "TRIM_HORIZON")]
    assert ("s-1", "process_records", ["6", "7"]) in calls


@pytest.mark.parametrize("initial", [TRIM_HORIZON, LATEST])
def test_owners_from_before_a_split_are_put_back_beside_later_positions(
    node: Callable[..., Node],
    world: World,
    host: TestHost,
    stream: Stream,
    calls: list[Any],
    initial: ExtendedSequenceNumber,
) -> None:
    """Once all shards were created again, the children are read, each from its own position."""
    shards = ["s", "s-1", "s-2"]
    leases = node("one", initial=initial)
    leases.create(["s"])
    stream.ended.add("s")
    stream.records["s-1"] = records(6, 9)

    def act(name: str, given: Any) -> None:
        if name == "shard_ended":
            leases.create(shards)
        checkpoint(name, given)

    worker = Worker(leases, stream.fetch, lambda: Processor(calls, act))
    worker.run_once()
    before = world.read(OWNERSHIP)
    worker.run_once()
    host.seconds += THIRD
    worker.run_once()
    assert [str(leases.held[shard].position) for shard in shards[1:]] == ["8", "TRIM_HORIZON"]
    world.put(OWNERSHIP, before)
    other = node("two", initial=initial)
    other.create(shards)
    stream.asked.clear()
    worker = Worker(other, stream.fetch, lambda: Processor(calls))
    worker.run_once()
    host.seconds += 10.1
    worker.run_once()
    assert set(stream.asked) == {("s-1", "8"), ("s-2", "TRIM_HORIZON"), ("s-1", "9")}
    assert other.rows()["s"].finished


def test_at_latest_nothing_is_read_again_before_the_first_checkpoint(
    node: Callable[..., Node], stream: Stream, calls: list[Any]
) -> None:
    """Neither what was delivered and not checkpointed, nor what came while nobody had the shard."""

    def read(name: str, *numbers: int, act: Callable[[str, Any], None] = checkpoint) -> list[str]:
        """Begin to read, with one record that came before and these that come then. Return what was delivered."""
        begun: list[ExtendedSequenceNumber] = []

        def fetch(shard_id: str, after: ExtendedSequenceNumber) -> tuple[list[dict[str, Any]], bool]:
            if after == LATEST:
                begun.append(ExtendedSequenceNumber(stream.records["s"][-1]["SequenceNumber"]))
            return stream.fetch(shard_id, begun[0] if after == LATEST else after)

        calls.clear()
        stream.records["s"] += records(numbers[0] - 1, numbers[0] - 1)
        worker = Worker(node(name, initial=LATEST), fetch, lambda: Processor(calls, act))
        worker.run_once()
        stream.records["s"] += records(numbers[0], numbers[-1])
        worker.run_once()
        worker.stop()
        worker.run()
        return [number for call in calls if call[1] == "process_records" for number in call[2]]

    node("setup", initial=LATEST).create(["s"])
    stream.records["s"] = []
    assert read("one", 2, 3, act=lambda name, given: None) == ["2", "3"]
    assert read("two", 5, 6) == ["5", "6"]
    assert read("three", 8, 9) == ["7", "8", "9"]


def test_where_a_shard_begins_goes_with_its_first_checkpoint(node: Callable[..., Node]) -> None:
    first = node("one", initial=LATEST)
    first.create(["s"])
    first.create(["child"])
    assert [first.must(name).position for name in ("s", "child")] == [LATEST, TRIM_HORIZON]
    second = node("two", initial=LATEST)
    child = second.must("child", force=True)
    child.checkpoint()  # of nothing
    child.prepare_checkpoint().checkpoint()
    assert child.position == child.seen == TRIM_HORIZON
    child.prepare_checkpoint(application_state=b"x")
    third = node("three", initial=LATEST)
    child = third.must("child", force=True)
    assert child.pending is not None
    child.pending.checkpoint()
    assert child.position == child.seen == TRIM_HORIZON
    third.deliver(child, records(1, 2))
    child.checkpoint()
    assert str(child.position) == "2"
    assert str(node("four", initial=LATEST).must("child", force=True).position) == "2"


def test_an_end_that_is_not_recorded_is_an_error(one: Node, two: Node, stream: Stream, calls: list[Any]) -> None:
    stream.ended.add("s")
    worker = Worker(one, stream.fetch, lambda: Processor(calls, lambda name, given: None))
    worker.run_once()
    with pytest.raises(IllegalArgumentError, match=r"shard 's': has ended, .* call checkpoint"):
        worker.run_once()
    assert not one.held
    assert two.must("s").position == TRIM_HORIZON


def test_an_end_that_was_recorded_and_not_released_is_finished(one: Node, two: Node, calls: list[Any]) -> None:
    mine = one.must("s")
    one.end(mine)
    mine.checkpoint()
    two.must("s", force=True)
    Worker(two, Stream().fetch, lambda: Processor(calls)).run_once()
    assert two.rows()["s"].finished
    assert not calls


def test_an_end_that_was_prepared_is_finished_by_the_next_owner(one: Node, two: Node, calls: list[Any]) -> None:
    mine = one.must("s")
    one.end(mine)
    mine.prepare_checkpoint()
    two.must("s", force=True)

    def commit(name: str, given: Any) -> None:
        if name == "initialize":
            assert given.pending_checkpoint_sequence_number == SHARD_END
            given.checkpointer.pending.checkpoint()

    Worker(two, Stream().fetch, lambda: Processor(calls, commit)).run_once()
    assert calls == [("s", "initialize", "TRIM_HORIZON"), ("s", "shard_ended")]
    assert two.rows()["s"].finished


@pytest.mark.parametrize("step", ["initialize", "process_records", "shutdown_requested"])
def test_a_prepared_end_that_is_committed_is_announced_before_the_shard_is_released(
    one: Node, two: Node, calls: list[Any], step: str
) -> None:
    """To release the shard would finish it, and its children would never be read."""
    mine = one.must("s")
    one.end(mine)
    mine.prepare_checkpoint()
    two.must("s", force=True)
    stream = Stream()
    stream.records["s"] = records(1, 1) if step == "process_records" else []

    def commit_and_stop(name: str, given: Any) -> None:
        if name == step:
            given.checkpointer.pending.checkpoint()
        if name == step or step == "shutdown_requested":
            worker.stop()

    worker = Worker(two, stream.fetch, lambda: Processor(calls, commit_and_stop))
    worker.run()
    assert [name for _, name, *_ in calls] == [*dict.fromkeys(["initialize", step]), "shard_ended"]
    assert two.rows()["s"].finished


def test_what_another_worker_asks_for_is_handed_over(
    one: Node, two: Node, host: TestHost, stream: Stream, calls: list[Any]
) -> None:
    one.create(["t"])
    worker = Worker(one, stream.fetch, lambda: Processor(calls))
    worker.run_once()
    two.balance()
    host.seconds += THIRD
    calls.clear()
    worker.run_once()
    assert calls == [
        ("s", "shutdown_requested"),
        ("s", "lease_lost"),
    ]
    assert list(one.held) == ["t"]
    (gained,) = two.balance().gained
    assert (gained.shard_id, str(gained.position)) == ("s", "3")


def test_a_lost_lease_ends_a_processor(one: Node, two: Node, host: TestHost, stream: Stream, calls: list[Any]) -> None:
    worker = Worker(one, stream.fetch, lambda: Processor(calls))
    worker.run_once()
    theirs = two.must("s", force=True)
    calls.clear()
    worker.run_once()  # its checkpoint finds out
    assert calls == [("s", "process_records", ["4", "5"]), ("s", "lease_lost")]
    worker.run_once()
    assert len(calls) == 2
    assert str(theirs.position) == "3"


def test_a_processor_is_not_handed_records_of_a_lease_that_is_known_to_be_lost(
    one: Node, two: Node, stream: Stream, calls: list[Any]
) -> None:
    def fetch(shard_id: str, after: ExtendedSequenceNumber) -> tuple[list[dict[str, Any]], bool]:
        two.must("s", force=True)
        one.renew()
        return stream.fetch(shard_id, after)

    Worker(one, fetch, lambda: Processor(calls)).run_once()
    assert calls == [("s", "initialize", "TRIM_HORIZON"), ("s", "lease_lost")]


def test_a_lost_lease_is_found_by_balancing(
    one: Node, two: Node, host: TestHost, stream: Stream, calls: list[Any]
) -> None:
    worker = Worker(one, stream.fetch, lambda: Processor(calls))
    worker.run_once()
    two.must("s", force=True)
    calls.clear()
    host.seconds += THIRD
    worker.run_once()
    assert calls == [("s", "lease_lost")]


def test_lost_and_regained_there_is_another_processor(
    one: Node, two: Node, host: TestHost, stream: Stream, calls: list[Any]
) -> None:
    worker = Worker(one, stream.fetch, lambda: Processor(calls))
    worker.run_once()
    two.release(two.must("s", force=True))
    calls.clear()
    host.seconds += THIRD
    worker.run_once()
    assert calls == [("s", "lease_lost"), ("s", "initialize", "3"), ("s", "process_records", ["4", "5"])]


def test_what_a_processor_raises_gives_back_its_shards(one: Node, two: Node, stream: Stream, calls: list[Any]) -> None:
    one.create(["t"])

    def fail(name: str, given: Any) -> None:
        if name == "process_records":
            given.checkpointer.checkpoint_by_sequence_number("2")
            raise ZeroDivisionError

    worker = Worker(one, stream.fetch, lambda: Processor(calls, fail))
    with pytest.raises(ZeroDivisionError):
        worker.run_once()
    assert not one.held
    assert str(two.must("s").position) == "2"
    two.release(two.held["s"])
    with pytest.raises(ZeroDivisionError):
        worker.run_once()
    assert [call for call in calls if call[1] == "process_records"][-1][2] == ["3", "4", "5"]  # nothing was skipped
    assert sorted(calls[-2:]) == [("s", "lease_lost"), ("t", "lease_lost")]


def test_a_store_that_is_away_for_a_moment_ends_nothing(
    one: Node, host: TestHost, stream: Stream, calls: list[Any]
) -> None:
    worker = Worker(one, stream.fetch, lambda: Processor(calls))
    worker.run_once()
    one.faults.fail("get", path="ownership", error=DependencyError)
    host.seconds += THIRD
    assert worker.run_once()
    assert calls[-1] == ("s", "process_records", ["4", "5"])


def test_it_balances_between_slow_shards(
    one: Node, two: Node, host: TestHost, stream: Stream, calls: list[Any]
) -> None:
    one.create(["t"])
    stream.records["t"] = records(1, 5)

    def dawdle(name: str, given: Any) -> None:
        checkpoint(name, given)
        if name == "process_records":
            two.claim("t")
            host.seconds += THIRD

    Worker(one, stream.fetch, lambda: Processor(calls, dawdle)).run_once()
    assert [call[:2] for call in calls if call[0] == "t"] == [
        ("t", "initialize"),
        ("t", "shutdown_requested"),
        ("t", "lease_lost"),
    ]
    assert two.must("t")


def test_run_ends_when_it_is_stopped(one: Node, two: Node, stream: Stream, calls: list[Any]) -> None:
    one.create(["t"])
    stream.records["t"] = records(1, 5)

    def stop(name: str, given: Any) -> None:
        checkpoint(name, given)
        if name == "process_records":
            worker.stop()

    worker = Worker(one, stream.fetch, lambda: Processor(calls, stop))
    worker.run()
    assert [call[:2] for call in calls] == [
        ("s", "initialize"),
        ("t", "initialize"),
        ("s", "process_records"),
        ("s", "shutdown_requested"),
        ("s", "lease_lost"),
        ("t", "shutdown_requested"),
        ("t", "lease_lost"),
    ]
    assert str(two.must("s").position) == "3"


def test_a_stop_ends_one_run(one: Node, stream: Stream, calls: list[Any]) -> None:
    def stop(name: str, given: Any) -> None:
        checkpoint(name, given)
        if name == "process_records":
            worker.stop()

    worker = Worker(one, stream.fetch, lambda: Processor(calls, stop))
    worker.stop()
    worker.run()
    assert not calls
    worker.run()
    worker.run()
    assert [call[2] for call in calls if call[1] == "process_records"] == [["1", "2", "3"], ["4", "5"]]


def test_a_stop_before_run_once_is_kept_for_the_next_run(
    one: Node, two: Node, stream: Stream, calls: list[Any]
) -> None:
    one.create(["t"])
    stream.records["t"] = records(1, 5)
    worker = Worker(one, stream.fetch, lambda: Processor(calls))
    worker.stop()
    assert worker.run_once()
    assert [call[0] for call in calls if call[1] == "process_records"] == ["s", "t"], "it is no run, and reads all"
    worker.run()
    assert [call[1] for call in calls][-4:] == ["shutdown_requested", "lease_lost"] * 2
    assert str(two.must("s").position) == "3"


def test_a_stop_is_not_lost_where_the_run_fails(one: Node, stream: Stream, calls: list[Any]) -> None:
    """Whoever runs it again after an error would otherwise never come to an end."""

    def stop_and_fail(name: str, given: Any) -> None:
        if name == "process_records":
            worker.stop()
            raise ZeroDivisionError

    worker = Worker(one, stream.fetch, lambda: Processor(calls, stop_and_fail))
    with pytest.raises(ZeroDivisionError):
        worker.run()
    calls.clear()
    worker.run()
    assert not calls
    with pytest.raises(ZeroDivisionError):
        worker.run()


def test_stopping_wakes_an_idle_worker(one: Node, calls: list[Any]) -> None:
    worker = Worker(one, Stream().fetch, lambda: Processor(calls), idle=PATIENCE)
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_for(lambda: bool(calls))
    worker.stop()
    thread.join(PATIENCE / 2)
    assert not thread.is_alive()


@pytest.mark.parametrize("error", [DependencyError, ZeroDivisionError])
def test_a_slow_processor_keeps_its_lease(
    node: Callable[..., Node], host: TestHost, stream: Stream, calls: list[Any], error: type[Exception]
) -> None:
    """However long it takes: its row is renewed meanwhile, time after time, also where that failed, for any reason."""
    leases, onlooker = node("slow", duration=0.3), node("onlooker")
    leases.create(["s"])

    def wait(name: str, given: Any) -> None:
        if name == "process_records":
            leases.faults.fail("swap", path="ownership", times=MAX_SENDS, error=error)
            for _ in range(3):
                host.seconds += 0.3
                before = onlooker.rows()["s"].etag
                wait_for(lambda before=before: onlooker.rows()["s"].etag != before)
            given.checkpointer.checkpoint()

    Worker(leases, stream.fetch, lambda: Processor(calls, wait)).run_once()
    assert str(leases.held["s"].position) == "3"
    before = onlooker.rows()["s"].etag
    host.seconds += 0.3
    time.sleep(0.2)
    assert onlooker.rows()["s"].etag == before  # nothing is renewed by those who do not work


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


# ---- real processes, killed ----------------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Starts a job, and ends it with the test."""
    started: list[subprocess.Popen[bytes]] = []
    effects = tmp_path / "effects"
    effects.touch()

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", kinesis_job.__name__, str(tmp_path / "root"), str(effects), *arguments]
        started.append(subprocess.Popen(command, cwd=Path(__file__).parents[3]))
        return started[-1]

    start.effects = effects  # type: ignore[attr-defined]
    yield start
    for job in started:
        job.kill()
        job.wait()


def check(effects: Path) -> None:
    """Every record of every shard had its effect once, in order."""
    lines = [line.split() for line in effects.read_text().splitlines() if not line.startswith("#")]
    for shard in SHARDS:
        assert [int(number) for name, number in lines if name == shard] == [*range(1, LENGTH + 1)]


def test_the_shards_of_a_killed_worker_are_taken_over(start: Any) -> None:
    first, second = start(), start()
    wait_for(lambda: start.effects.read_text().count("\n") > 40)
    first.kill()
    assert second.wait(PATIENCE) == 0
    assert first.wait() == -signal.SIGKILL
    check(start.effects)


def test_what_a_killed_worker_prepared_is_committed_by_the_next(start: Any) -> None:
    assert start("20").wait(PATIENCE) == -signal.SIGKILL
    assert start().wait(PATIENCE) == 0
    check(start.effects)
    (line,) = (line for line in start.effects.read_text().splitlines() if line.startswith("#"))
    assert line in [f"# pending {shard} 20" for shard in SHARDS], "of the shard that came to its record first"
