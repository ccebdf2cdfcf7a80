"""Shares of partitions: they become even in a few rounds, and then nothing moves any more."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_checkpointer.consumers import cas_object
from pyspark_checkpointer.consumers.balance import OwnershipView, choose
from pyspark_checkpointer.manifests.positions_json import Row
from tests.consumers.test_cas_object import AT
from tests.consumers.world import LEASE, Worker, World, run, write

STEP = 0.3 * LEASE
"""Between two rounds of a worker."""

MANY = 12
"""Rounds in which anything must become even: one lease to see who is gone, and some to ask and to hand over."""


class Crew:
    """Workers that balance one after the other, round by round, and hand over what they are asked for."""

    def __init__(self, partitions: int) -> None:
        self.world = World()
        self.partitions = [f"p{number:02d}" for number in range(partitions)]
        self.world.create(*self.partitions)
        self.running: dict[str, Worker] = {}
        self.stubborn: set[str] = set()
        self.moves = 0

    def join(self, name: str) -> Worker:
        self.running[name] = self.world.worker(name)
        return self.running[name]

    def kill(self, name: str) -> None:
        del self.running[name]

    def leave(self, name: str) -> None:
        leases = self.running.pop(name).leases
        for lease in list(leases.held.values()):
            run(leases.release(lease))

    def round(self) -> None:
        for worker in self.running.values():
            found = run(worker.leases.balance())
            self.moves += len(found.gained) + len(found.lost)
            if worker.name not in self.stubborn:
                for lease in found.asked:
                    run(worker.leases.release(lease))
        self.world.wait(STEP)

    def rounds(self, number: int) -> None:
        for _ in range(number):
            self.round()

    def shares(self) -> list[int]:
        """How many partitions each worker has, of which each has exactly one owner that can write."""
        owners = Counter(row.owner for row in self.world.rows().values())
        for worker in self.running.values():
            assert owners[worker.name] == len(worker.leases.held)
            for lease in worker.leases.held.values():
                run(lease.write(lambda value: None))
        return sorted(owners[name] for name in self.running)

    def check_even(self) -> None:
        self.moves = 0
        shares = self.shares()
        assert sum(shares) == len(self.partitions)
        assert max(shares) - min(shares) <= 1, shares
        self.rounds(3)
        assert self.moves == 0, "even, and still moving"


def test_four_partitions_and_two_workers_are_two_each() -> None:
    crew = Crew(4)
    crew.join("a")
    crew.round()
    assert crew.shares() == [4]
    crew.join("b")
    crew.rounds(2)
    assert crew.shares() == [2, 2]
    crew.check_even()


@pytest.mark.parametrize(("partitions", "workers"), [(8, 3), (11, 4), (7, 3), (4, 8), (1, 2), (30, 7), (5, 1)])
def test_workers_that_come_one_by_one_share_alike(partitions: int, workers: int) -> None:
    crew = Crew(partitions)
    for number in range(workers):
        crew.join(f"w{number}")
        crew.rounds(4)
        crew.check_even()


def test_workers_that_come_at_once_share_alike() -> None:
    crew = Crew(16)
    for number in range(6):
        crew.join(f"w{number}")
    crew.rounds(6)
    crew.check_even()


def test_workers_that_come_at_once_leave_nothing_unread() -> None:
    """The first of them asks for more than its share, since it does not see the others yet."""
    crew = Crew(10)
    for name in ("a", "b"):
        crew.join(name)
        crew.rounds(3)
    for name in ("c", "d", "e"):
        crew.join(name)
    crew.rounds(3)
    assert all(row.owner for row in crew.world.rows().values())
    crew.check_even()


def test_partitions_of_a_killed_worker_are_taken_after_a_lease() -> None:
    crew = Crew(9)
    for name in ("a", "b", "c"):
        crew.join(name)
    crew.rounds(6)
    lease = next(iter(crew.running["c"].leases.held.values()))
    write(lease, 1)
    crew.kill("c")
    crew.rounds(3)
    assert sum(crew.shares()) == 6, "not before"
    crew.rounds(3)
    crew.check_even()
    assert crew.world.at(lease.partition) == 1


def test_partitions_of_a_worker_that_left_are_taken_at_once() -> None:
    crew = Crew(9)
    for name in ("a", "b", "c"):
        crew.join(name)
    crew.rounds(6)
    crew.leave("c")
    crew.round()
    crew.check_even()


def test_who_does_not_hand_over_loses_it_after_a_lease() -> None:
    crew = Crew(6)
    crew.join("a")
    crew.round()
    crew.stubborn.add("a")
    crew.join("b")
    crew.rounds(3)
    assert crew.shares() == [0, 6]
    assert Counter(row.asked_by for row in crew.world.rows().values()) == {"b": 3, "": 3}, "no more than its share"
    crew.rounds(4)
    assert crew.shares() == [3, 3]
    crew.check_even()


def test_one_who_asked_and_died_holds_nothing_up() -> None:
    crew = Crew(6)
    crew.join("a")
    crew.round()
    crew.join("b")
    run(crew.running["b"].leases.balance())
    crew.kill("b")
    crew.rounds(MANY)
    crew.check_even()
    assert crew.shares() == [6]


def test_an_old_steal_request_takes_nothing_by_surprise() -> None:
    """b asked, slept, and comes back much later: whoever has the partition is asked again before it is taken."""
    crew = Crew(2)
    a = crew.join("a")
    crew.round()
    crew.stubborn.add("a")
    b = crew.join("b")
    run(b.leases.balance())
    crew.kill("b")
    crew.rounds(8)
    crew.running["b"] = b
    crew.stubborn.clear()
    assert run(b.leases.balance()).gained == ()
    crew.rounds(3)
    assert crew.shares() == [1, 1]
    assert not any(lease.lost for lease in a.leases.held.values())


def test_a_group_without_partitions_is_even(world: World) -> None:
    assert run(world.worker("a").leases.balance()).gained == ()


def test_finished_partitions_are_nobodys_share() -> None:
    crew = Crew(8)
    a = crew.join("a")
    crew.round()
    for name in crew.partitions[:4]:
        run(a.leases.release(a.leases.held[name], finished=True))
    crew.join("b")
    crew.rounds(4)
    assert crew.shares() == [2, 2]


changes = st.lists(
    st.tuples(st.sampled_from(["join", "join", "kill", "leave", "stubborn", "wait"]), st.integers(0, 7)), max_size=8
)


@settings(max_examples=25)
@given(st.integers(1, 20), changes)
def test_whoever_comes_and_goes_shares_become_even(partitions: int, changes: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cas_object, "_MAX_BACKOFF_SECONDS", 0.0)
        crew = Crew(partitions)
        crew.join("w0")
        for number, (what, who) in enumerate(changes, 1):
            name = sorted(crew.running)[who % len(crew.running)]
            if what == "join" and len(crew.running) < 8:
                crew.join(f"w{number}")
            elif what == "stubborn":
                crew.stubborn.add(name)
            elif what in ("kill", "leave") and len(crew.running) > 1:
                (crew.kill if what == "kill" else crew.leave)(name)
            crew.round()
        crew.rounds(2 * MANY)
        crew.check_even()
        assert not any(row.asked_by in crew.running for row in crew.world.rows().values())


def test_a_worker_asks_for_no_more_than_its_share() -> None:
    """It would not take the rest, which would be kept for it, and which nobody would read meanwhile."""
    rows = {f"p{number}": Row(f"p{number}", "a", 1, "", AT) for number in range(10)}
    choice = choose(OwnershipView("me", rows, (), (), {"p0": "b", "p1": "c", "p2": "d"}))
    assert len(choice.ask) == 2


owners = st.lists(st.sampled_from(["", "me", "b", "c", "d"]), max_size=12)


@given(owners, st.data())
def test_a_choice_is_sensible_whatever_is_seen(owners: list[str], data: st.DataObject) -> None:
    names = [f"p{number:02d}" for number in range(len(owners))]
    rows = {
        name: Row(name, owner, 1, "", AT, finished=data.draw(st.booleans()))
        for name, owner in zip(names, owners, strict=True)
    }
    some = st.sets(st.sampled_from(names)) if names else st.just(set())
    held = {name for name in data.draw(some) if rows[name].owner == "me" and not rows[name].finished}
    free = {name for name in data.draw(some) if name not in held and not rows[name].finished}
    steal_requests = {name: data.draw(st.sampled_from(["me", "b", "e"])) for name in data.draw(some)}
    steal_requests = {name: requester for name, requester in steal_requests.items() if requester != rows[name].owner}
    choice = choose(OwnershipView("me", rows, held, free, steal_requests))
    assert set(choice.take) <= free
    assert len(set(choice.take)) == len(choice.take)
    for name in choice.ask:
        assert rows[name].owner not in ("", "me")
        assert not rows[name].finished
        assert name not in free
        assert name not in steal_requests
    assert len(set(choice.ask)) == len(choice.ask)
    if not any(row.owner not in ("", "me") for name, row in rows.items() if name not in free) and not steal_requests:
        assert set(choice.take) == free, "alone, it takes everything"
