"""The fixtures as users have them: a job is killed at every place, and the test checks what a restart finds."""

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer import storage as stores
from pyspark_checkpointer.errors import DependencyError, IllegalArgumentError, OutcomeUnknownError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import compare_and_swap, request_path
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.storage.request_path import RetryingStore
from pyspark_checkpointer.testing import CrashError, CrashPoint, Faults, FaultyStore, injected
from pyspark_checkpointer.testing import crash_points as crash_points_of

EVENTS = ["a", "b", "a", "c"]


def count_events(root: str) -> None:
    """Count events, one in each batch, and go on from the last checkpoint."""
    with Checkpointer(root) as checkpointer:
        restored = checkpointer.restore()
        state = restored.keyed("counts") if restored else KeyedState(partitions=1)
        for offset in range(restored.epoch + 1 if restored else 0, len(EVENTS)):
            state[EVENTS[offset]] = state.get(EVENTS[offset], 0) + 1
            with checkpointer.begin(epoch=offset) as cp:
                cp.save("counts", state)


def forgetful(root: str) -> None:
    """Count events with a bug: the offset is kept beside the checkpoint, not in it."""
    offset_file = Path(f"{root}.offset")
    begin = int(offset_file.read_text()) if offset_file.exists() else 0
    with Checkpointer(root) as checkpointer:
        restored = checkpointer.restore()
        state = restored.keyed("counts") if restored else KeyedState(partitions=1)
        for offset in range(begin, len(EVENTS)):
            state[EVENTS[offset]] = state.get(EVENTS[offset], 0) + 1
            with checkpointer.begin() as cp:
                cp.save("counts", state)
            offset_file.write_text(str(offset + 1))


def counts(root: str) -> dict[str, int]:
    with Checkpointer(root) as checkpointer:
        restored = checkpointer.restore()
        return dict(restored.keyed("counts")) if restored else {}


CrashPoints = Callable[..., Iterator[CrashPoint]]


def test_a_job_that_keeps_its_offset_in_its_checkpoint_counts_once_wherever_it_dies(crash_points: CrashPoints) -> None:
    points = 0
    for point in crash_points(count_events):
        assert isinstance(point.error, CrashError)
        count_events(point.root)
        assert counts(point.root) == {"a": 2, "b": 1, "c": 1}, point
        points += 1
    assert points > 30


def test_a_job_that_keeps_it_elsewhere_is_found_out(crash_points: CrashPoints) -> None:
    wrong = 0
    for point in crash_points(forgetful):
        forgetful(point.root)
        wrong += counts(point.root) != {"a": 2, "b": 1, "c": 1}
    assert wrong


def test_what_the_job_finds_is_made_undisturbed(crash_points: CrashPoints) -> None:
    def again(root: str) -> None:
        assert counts(root)
        count_events(root)

    assert all(counts(point.root)["c"] == 1 for point in crash_points(again, setup=count_events))


def test_a_job_that_fails_by_itself_is_told(crash_points: CrashPoints) -> None:
    with pytest.raises(ZeroDivisionError):
        next(crash_points(lambda root: 1 / 0))


def test_what_a_test_lets_fail_is_not_waited_for() -> None:
    with injected(Faults()) as faults, Checkpointer("memory://not-waited-for") as client:
        with client.begin() as cp:
            cp.snapshot("op", 0, b"1")
        started = time.monotonic()
        faults.fail("put", times=100)
        with pytest.raises(DependencyError), client.begin() as cp:
            cp.snapshot("op", 0, b"2")
        faults.clear()
        faults.late("swap", times=100)
        with pytest.raises(OutcomeUnknownError), client.begin() as cp:
            cp.snapshot("op", 0, b"3")
        assert time.monotonic() - started < 5


def test_the_fixtures_come_with_one_line(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["pyspark_checkpointer.testing.plugin"]')
    pytester.makepyfile(
        """
        import pytest
        from pyspark_checkpointer import Checkpointer
        from pyspark_checkpointer.errors import DependencyError

        def commit(root):
            with Checkpointer(root) as client, client.begin() as cp:
                cp.snapshot("op", 0, b"1")

        def test_faults(checkpoint_root, checkpoint_faults):
            checkpoint_faults.fail("put", times=100)
            with pytest.raises(DependencyError):
                commit(checkpoint_root)
            checkpoint_faults.clear()
            commit(checkpoint_root)

        def test_points(crash_points):
            assert len(list(crash_points(commit))) > 4
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def fresh() -> str:
    return f"memory://{uuid.uuid4().hex}"


def commit(client: Checkpointer) -> None:
    with client.begin() as cp:
        cp.snapshot("op", 0, b"1")


def second_time(
    act: Callable[[], object], then: Callable[[str], object] = lambda root: None
) -> Callable[[str], object]:
    """Return a function that acts like `then` once, and fails by itself from the second time on."""
    times = itertools.count(1)
    return lambda root: act() if next(times) > 1 else then(root)


def open_port_again() -> None:
    raise FileExistsError("made the first time")


def test_an_error_of_the_setup_is_told_whenever_it_comes() -> None:
    """It was taken for the death of the job, and the restart then ran on an empty root: a test of nothing passed."""
    with pytest.raises(FileExistsError):
        list(crash_points_of(count_events, fresh, second_time(open_port_again)))


def test_an_error_of_a_job_that_did_not_die_is_told_whenever_it_comes() -> None:
    with pytest.raises(FileExistsError):
        list(crash_points_of(second_time(open_port_again, count_events), fresh))


def test_each_point_needs_a_root_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(IllegalArgumentError, match=r"new_root returned .*/same twice"):
        list(crash_points_of(count_events, lambda: str(tmp_path / "same")))


def test_a_job_that_dies_nowhere_is_refused() -> None:
    """After the first time it uses what is open, or has nothing to do."""
    clients = list[Checkpointer]()

    def cached(root: str) -> None:
        if not clients:
            clients.append(Checkpointer(root))
        commit(clients[0])

    with pytest.raises(IllegalArgumentError, match="no store was opened"):
        list(crash_points_of(cached, fresh))
    with pytest.raises(IllegalArgumentError, match="died at no request"):
        list(crash_points_of(second_time(lambda: Checkpointer(fresh()), count_events), fresh))


async def waits(root: str) -> None:
    """Does what is never awaited."""


def test_coroutines_are_refused() -> None:
    with pytest.raises(IllegalArgumentError, match="the job returned a coroutine"):
        next(crash_points_of(waits, fresh))
    with pytest.raises(IllegalArgumentError, match="setup returned a coroutine"):
        next(crash_points_of(count_events, fresh, lambda root: waits(root)))


def test_what_ends_a_test_ends_it_also_within_a_job() -> None:
    """A job that goes on after each error never ends; a timeout of pytest raises this, and was taken for a death."""

    def run(root: str) -> None:
        try:
            count_events(root)
        except CrashError:
            pytest.fail("timed out")

    with pytest.raises(pytest.fail.Exception):
        next(crash_points_of(run, fresh))


def test_a_job_may_end_its_process() -> None:
    def run(root: str) -> None:
        try:
            count_events(root)
        except CrashError:
            raise SystemExit(1) from None

    assert all(isinstance(point.error, SystemExit) for point in crash_points_of(run, fresh))


def test_faults_end_with_the_block_also_for_clients_that_were_opened_in_it() -> None:
    with injected(Faults(seed=1, rate=1.0, failures=["delay"])) as faults, Checkpointer(fresh()) as client:
        commit(client)
        faults.fail("put", times=10**6)
        late = faults.late("swap", path="_latest")
    commit(client)
    assert late == []


def test_a_process_that_died_is_not_revived_by_the_end_of_the_block() -> None:
    with pytest.raises(CrashError), injected(Faults()) as faults:
        client = Checkpointer(fresh())
        faults.crash(1)
        commit(client)
    assert faults.dead
    with pytest.raises(CrashError):
        commit(client)


def test_blocks_may_end_in_any_order() -> None:
    """Threads and fixtures let them overlap; the first one's faults stayed for the whole process."""
    before = (stores.open_root, request_path.FIRST_PAUSE, compare_and_swap.FIRST_PAUSE)
    one, other = injected(Faults()), injected(Faults())
    first, second = one.__enter__(), other.__enter__()
    commit(Checkpointer(fresh()))
    assert first.counts == second.counts != {}
    one.__exit__(None, None, None)
    second.forget()
    first.forget()
    commit(Checkpointer(fresh()))
    assert second.counts
    assert not first.counts
    assert request_path.FIRST_PAUSE == 0
    other.__exit__(None, None, None)
    assert before == (stores.open_root, request_path.FIRST_PAUSE, compare_and_swap.FIRST_PAUSE)


def test_pauses_are_back_after_the_block() -> None:
    """A client that was opened in it had none for ever."""
    slept: list[float] = []

    async def note(seconds: float) -> None:
        slept.append(seconds)

    faulty = FaultyStore(MemoryStore(fresh()))
    with injected(Faults()):
        store = RetryingStore(faulty, sleep=note)
    faulty.faults.fail("put", times=9)
    run_sync(store.put("x", b"1"))
    assert max(slept) > 0.1


def test_faults_that_no_store_can_meet_are_refused() -> None:
    """A client that was made before the block has opened its store."""
    with Checkpointer(fresh()) as client:
        with pytest.raises(IllegalArgumentError, match="no store was opened"), injected(Faults()) as faults:
            faults.fail(times=10**6)
            commit(client)
        with injected(Faults()) as faults:
            faults.fail(times=10**6)
            faults.clear()
            commit(client)
        with pytest.raises(ZeroDivisionError), injected(Faults()) as faults:
            faults.fail()
            _ = 1 / 0


def test_the_faults_of_a_test_end_with_it_and_are_refused_where_nothing_meets_them(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["pyspark_checkpointer.testing.plugin"]')
    pytester.makepyfile(
        """
        import pytest
        from pyspark_checkpointer import Checkpointer

        @pytest.fixture(scope="module")
        def clients():
            return []

        def commit(client):
            with client.begin() as cp:
                cp.snapshot("op", 0, b"1")

        def test_that_opens(checkpoint_root, checkpoint_faults, clients):
            clients.append(Checkpointer(checkpoint_root))
            commit(clients[0])
            checkpoint_faults.fail(times=10**6)

        def test_without_faults(clients):
            commit(clients[0])

        def test_of_nothing(clients, checkpoint_faults):
            checkpoint_faults.fail(times=10**6)
            commit(clients[0])
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*test_of_nothing*", "*IllegalArgumentError: no store was opened in the block*"])
