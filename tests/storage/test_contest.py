"""Many writers at once find out servers that keep conditions only as long as requests come one after the other."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_checkpointer.errors import DependencyError, StoreRefusedError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import PreconditionFailedError, Store
from pyspark_checkpointer.storage.base import Blob
from pyspark_checkpointer.storage.conditional_write_check import probe, try_conditions
from pyspark_checkpointer.storage.contest import WRITERS, Contest, hold_contest
from pyspark_checkpointer.storage.memory.store import MemoryStore, forget
from tests.storage.conftest import CONDITIONAL, Place


class Server(MemoryStore):
    """A store in memory that looks like a server: there the probe holds a contest."""

    def __init__(self) -> None:
        super().__init__(f"s3://bucket/{id(self)}")
        forget(self.url)
        super().__init__(self.url)
        self.swaps = 0


class Careless(Server):
    """A server that compares, and writes a moment later: right for one request at a time."""

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        found = self.objects.get(path)
        if (None if found is None else found.version) != expected:
            raise PreconditionFailedError("changed")
        await asyncio.sleep(0.001)
        now = self.objects.get(path)
        return await super().compare_and_swap(path, data, None if now is None else now.version)


class Late(Server):
    """A server that shows a write a moment after it was answered, to all but the connection that asks first."""

    shown: Blob | None = None

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        blob = await super().get(path, limit=limit)
        self.shown, old = blob, self.shown
        return blob if old is None or old.data[:7] == blob.data[:7] else old


class Stubborn(Server):
    """A server that refuses what comes while another request for the object is under way."""

    under_way = 0

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        self.under_way += 1
        try:
            await asyncio.sleep(0.001)
            if self.under_way > 1:
                raise PreconditionFailedError("changed")
            return await super().compare_and_swap(path, data, expected)
        finally:
            await asyncio.sleep(0.001)
            self.under_way -= 1


class Silent(Server):
    """A server that loses answers: those numbered in `lost`, before or after the swap took effect."""

    def __init__(self, lost: Callable[[int], bool], *, after: bool) -> None:
        super().__init__()
        self.lost, self.after = lost, after

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        self.swaps += 1
        lost = self.lost(self.swaps)
        if lost and not self.after:
            raise DependencyError("no answer")
        version = await super().compare_and_swap(path, data, expected)
        if lost:
            raise DependencyError("no answer")
        return version


def held(store: Store, rounds: int = 20) -> Contest:
    contest = run_sync(hold_contest([store] * WRITERS, "c-", rounds))
    assert run_sync(store.list("")) == [], "nothing stays behind"
    return contest


@pytest.mark.kinds(*CONDITIONAL)
def test_every_round_has_one_winner_and_everybody_sees_it(place: Place) -> None:
    stores = [place.open() for _ in range(WRITERS)]
    contest = run_sync(hold_contest(stores, "c-", 20))
    assert (contest.problem, contest.rounds, contest.undecided) == (None, 20, 0)
    assert run_sync(stores[0].list("")) == []


@pytest.mark.parametrize("rounds", [1, 2, 3, 19, 20, 21])
def test_so_many_rounds_are_held(rounds: int) -> None:
    assert held(Server(), rounds).rounds == rounds


@pytest.mark.parametrize(
    ("server", "count", "problem"),
    [
        (Careless, "won_twice", "let several writers win in 20 of 20 rounds"),
        (Stubborn, "won_by_nobody", "refused all writers in 20 of 20 rounds"),
        (Late, "late", "gave a reader another object than the one last written"),
    ],
)
def test_what_one_request_after_the_other_does_not_show(server: Callable[[], Server], count: str, problem: str) -> None:
    run_sync(try_conditions(server(), "alone"))
    contest = held(server())
    assert problem in str(contest.problem)
    assert getattr(contest, count) > 0
    with pytest.raises(
        StoreRefusedError, match=rf"s3://bucket/.*{problem.partition(' in ')[0]}.*8 writers at the same"
    ):
        run_sync(probe(server()))


def test_a_lost_answer_to_the_winner_is_found_by_reading() -> None:
    silent = Silent(lambda number: True, after=True)
    contest = held(silent)
    assert (contest.problem, contest.rounds, contest.undecided) == (None, 20, 0)


def test_a_round_without_a_known_winner_is_held_again_with_another_object() -> None:
    silent = Silent(lambda number: number <= WRITERS, after=False)
    contest = held(silent)
    assert (contest.problem, contest.rounds, contest.undecided) == (None, 20, 1)


def test_a_server_that_never_answers_gets_no_verdict() -> None:
    silent = Silent(lambda number: True, after=False)
    with pytest.raises(DependencyError, match="no answer"):
        run_sync(hold_contest([silent] * WRITERS, "c-", 20))
    assert run_sync(silent.list("")) == []
    with pytest.raises(DependencyError, match="no answer"):
        run_sync(probe(silent))


def test_the_contest_of_a_new_root_is_short() -> None:
    """To create a root takes few requests: more are for the command."""
    server = Silent(lambda number: False, after=False)
    run_sync(probe(server))
    assert server.swaps == 4 + 2 * WRITERS
    assert run_sync(server.list("")) == []


@pytest.mark.parametrize("url", ["memory://own", "/somewhere"])
def test_no_contest_is_held_where_the_locks_are_our_own(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("a contest")

    monkeypatch.setattr("pyspark_checkpointer.storage.conditional_write_check.hold_contest", never)
    run_sync(probe(MemoryStore(url)))
