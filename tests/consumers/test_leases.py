"""Leases on partitions: how they are taken, renewed, asked for, given back and lost."""

import os
from datetime import timedelta
from typing import Any

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.consumers.leases import Leases
from pyspark_checkpointer.errors import (
    DependencyError,
    IllegalArgumentError,
    InvalidStateError,
    LeaseLostError,
    OutcomeUnknownError,
)
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from tests.consumers.world import LEASE, OWNERSHIP, Worker, World, lost, path, run, write

# ---- take, renew, release --------------------------------------------------------------------------------------------


def test_a_free_partition_is_taken_by_one(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    lease = a.must_take("p")
    assert (lease.owner, lease.partition, lease.epoch, lease.value_when_taken, lease.lost) == ("a", "p", 1, None, False)
    assert b.take("p") is None
    assert world.rows()["p"].owner == "a"
    position = world.position("p")
    assert (position.epoch, position.lease, position.value) == (1, lease.token, None)
    assert world.rows()["p"].etag == lease.token


@pytest.mark.parametrize("force", [False, True])
def test_a_partition_that_was_not_created_is_not_taken(world: World, force: bool) -> None:
    """A name that was mistyped once would else be read by every worker, for ever."""
    world.create("p")
    a = world.worker("a")
    assert a.take("new", force=force) is None
    assert set(world.rows()) == {"p"}


def test_what_was_recorded_is_found_by_the_next_owner(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    lease = a.must_take("p")
    assert write(lease, 1) == {"at": 1}
    assert write(lease, 2) == {"at": 2}
    run(a.leases.release(lease))
    assert world.rows()["p"].owner == ""
    assert world.at("p") == 2
    assert b.must_take("p").value_when_taken == {"at": 2}
    assert world.position("p").epoch == 2


def test_what_is_not_to_be_written_is_left(world: World, pair: tuple[Worker, Worker]) -> None:
    a, _ = pair
    lease = a.must_take("p")
    write(lease, 1)
    before = world.read(path("p"))
    assert run(lease.write(lambda value: None)) == {"at": 1}
    assert world.read(path("p")) == before

    def refuse(value: object) -> None:
        raise InvalidStateError("backwards")

    with pytest.raises(InvalidStateError, match="backwards"):
        run(lease.write(refuse))
    assert not lease.lost


def test_release_writes_what_waits_first(world: World, pair: tuple[Worker, Worker]) -> None:
    a, _ = pair
    lease = a.must_take("p")

    async def flush() -> None:
        await lease.write(lambda value: {"at": 7})

    lease.flush = flush
    run(a.leases.release(lease))
    assert world.at("p") == 7
    kinds = [(request.kind, request.path) for request in a.faults.requests][-2:]
    assert kinds == [("swap", path("p")), ("swap", OWNERSHIP)]


def test_a_partition_whose_last_words_could_not_be_written_is_not_given_back(
    world: World, pair: tuple[Worker, Worker]
) -> None:
    a, _ = pair
    lease = a.must_take("p")

    async def flush() -> None:
        raise DependencyError("no answer")

    lease.flush = flush
    with pytest.raises(DependencyError):
        run(a.leases.release(lease))
    assert world.rows()["p"].owner == "a"
    assert (a.leases.held, lease.lost) == ({"p": lease}, False)


def test_a_release_without_an_answer_ends_the_lease_here(pair: tuple[Worker, Worker]) -> None:
    """Else this worker would go on renewing what it has stopped reading."""
    a, b = pair
    lease = a.must_take("p")
    write(lease, 7)
    a.faults.fail("swap", times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError):
        run(a.leases.release(lease))
    assert (a.leases.held, lease.lost) == ({}, True)
    assert run(a.leases.renew()) == ()
    b.take("p")
    b.host.seconds += LEASE + 1
    assert b.must_take("p").value_when_taken == {"at": 7}


def test_releasing_what_is_found_lost_while_it_is_flushed_is_no_error(pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    lease = a.must_take("p")
    b.must_take("p", force=True)

    async def flush() -> None:
        await lease.write(lambda value: {"n": 1})

    lease.flush = flush
    run(a.leases.release(lease))
    assert (a.leases.held, lease.lost) == ({}, True)


def test_a_row_says_how_long_its_lease_is(world: World) -> None:
    """Workers need not agree on it: a new version of a job may have another length while the old one still runs."""
    world.create("p")
    slow, quick = world.worker("slow"), world.worker("quick")
    slow.leases = Leases(slow.group, "slow", 60.0)
    lease = slow.must_take("p")
    for _ in range(4):
        quick.host.seconds += 15.0
        assert quick.take("p") is None
    assert run(slow.leases.renew(lease)) == ()
    assert world.rows()["p"].lease_ms == 60_000
    assert quick.take("p") is None
    quick.host.seconds += 61.0
    assert quick.take("p") is not None


def test_a_store_that_hangs_is_told_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_checkpointer.consumers.group_ownership.MIN_TIMEOUT_SECONDS", 0.05)
    world.create("p")
    a = world.worker("a")
    a.leases = Leases(a.group, "a", 0.1)
    a.must_take("p")
    gate = a.faults.hold("get")
    with pytest.raises(DependencyError, match=r"0\.05 s"):
        run(a.leases.rows())
    gate.open()
    assert run(a.leases.renew()) == ()  # nothing is locked by the request that was given up


def test_a_forked_child_has_no_lease(pair: tuple[Worker, Worker]) -> None:
    lease = pair[0].must_take("p")
    child = os.fork()
    if child == 0:
        try:
            lease.check()
        except LeaseLostError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    write(lease, 1)


def test_a_released_lease_is_over(world: World, pair: tuple[Worker, Worker]) -> None:
    a, _ = pair
    lease = a.must_take("p")
    run(a.leases.release(lease))
    with pytest.raises(LeaseLostError, match=r"'p': the lease of 'a' \(epoch 1\) has ended"):
        write(lease, 1)
    assert a.leases.held == {}
    before = world.read(OWNERSHIP)
    run(a.leases.release(lease))
    assert world.read(OWNERSHIP) == before


def test_a_lease_that_was_lost_gives_nothing_back(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    old = a.must_take("p")
    b.must_take("p", force=True)
    flushed: list[int] = []

    async def flush() -> None:
        flushed.append(1)

    old.lost, old.flush = True, flush
    run(a.leases.release(old))
    assert world.rows()["p"].owner == "b"
    assert not flushed


def test_a_finished_partition_needs_no_owner(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    lease = a.must_take("p")
    write(lease, 9)
    run(a.leases.release(lease, finished=True))
    assert world.rows()["p"].finished
    for worker in pair:
        assert worker.take("p") is None
        assert run(worker.leases.balance()).gained == ()
        assert not run(worker.leases.ask("p"))
    world.wait(10 * LEASE)
    assert b.take("p") is None
    assert b.must_take("p", force=True).value_when_taken == {"at": 9}
    assert not world.rows()["p"].finished


def test_a_forgotten_partition_keeps_its_position(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    lease = a.must_take("p")
    write(lease, 3)
    run(b.leases.forget("p"))
    run(b.leases.forget("p"))
    assert world.rows() == {}
    assert run(a.leases.renew()) == (lease,)
    run(b.leases.create(["p"]))
    found = b.must_take("p")
    assert found.value_when_taken == {"at": 3}
    assert found.epoch == 2
    assert lost(lease)


def test_creating_what_is_there_changes_nothing(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    a.must_take("p")
    before = world.read(OWNERSHIP)
    run(b.leases.create(["p"]))
    assert world.read(OWNERSHIP) == before
    run(b.leases.create(["q", "p", "o"]))
    assert list(world.rows()) == ["p", "q", "o"]
    assert world.rows()["p"].owner == "a"


@pytest.mark.parametrize("name", ["", None, 1, b"p", "\ud800"])
def test_a_name_that_no_position_can_have_gets_into_no_row(world: World, name: Any) -> None:
    """It would make the ownership unreadable for everybody."""
    a = world.worker("a")
    with pytest.raises(IllegalArgumentError):
        run(a.leases.create(["p", name]))
    with pytest.raises(IllegalArgumentError):
        a.take(name)
    with pytest.raises(IllegalArgumentError):
        Leases(a.group, name, LEASE)
    assert not world.exists(OWNERSHIP)


@pytest.mark.parametrize("duration", [0, -1, True, "1", None, float("inf"), float("nan"), 1e10, 1e306, 10**400])
def test_a_bad_duration_is_refused(world: World, duration: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="duration"):
        Leases(world.worker("a").group, "a", duration)


# ---- what ends a lease -----------------------------------------------------------------------------------------------


def test_a_renewed_lease_is_never_free(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    lease = a.must_take("p")
    for _ in range(6):
        assert b.take("p") is None
        world.wait(0.9 * LEASE)
        assert run(a.leases.renew()) == ()
    assert write(lease, 1) == {"at": 1}


def test_a_lease_that_is_not_renewed_is_free_after_its_length(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    lease = a.must_take("p")
    run(b.leases.rows())
    world.wait(LEASE)
    assert b.take("p") is None
    world.wait(0.1)
    assert b.must_take("p").epoch == 2
    assert lost(lease)


def test_a_lease_is_as_old_as_the_watcher_has_seen_it(world: World, pair: tuple[Worker, Worker]) -> None:
    """Who comes late has seen nothing, whatever time stands in the row."""
    a, b = pair
    a.must_take("p")
    world.wait(100 * LEASE)
    assert b.take("p") is None
    world.wait(1.1 * LEASE)
    assert b.take("p") is not None


@pytest.mark.parametrize("skew", [timedelta(days=-400), timedelta(days=400)])
def test_clocks_that_are_wrong_change_nothing(world: World, skew: timedelta) -> None:
    world.create("p")
    a, b = world.worker("a", skew=skew), world.worker("b", skew=-skew)
    a.must_take("p")
    for _ in range(3):
        assert b.take("p") is None
        world.wait(0.9 * LEASE)
        run(a.leases.renew())
    assert b.take("p") is None
    world.wait(1.1 * LEASE)
    assert b.take("p") is not None
    assert a.take("p") is None


def test_what_stands_in_memory_does_not_let_a_lease_expire(world: World, pair: tuple[Worker, Worker]) -> None:
    """The watcher slept; its owner did not."""
    a, b = pair
    a.must_take("p")
    run(b.leases.rows())
    world.wait(1.5 * LEASE)
    run(a.leases.renew())
    assert b.take("p") is None
    assert run(b.leases.balance()).gained == ()


def test_a_lost_lease_is_told_of_by_renew_and_balance(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    first = a.must_take("p")
    b.must_take("p", force=True)
    assert run(a.leases.renew(first)) == (first,)
    assert first.lost
    assert a.leases.held == {}
    second = a.must_take("p", force=True)
    b.must_take("p", force=True)
    found = run(a.leases.balance())
    assert found.lost == (second,)
    assert found.gained == ()
    assert world.rows()["p"].owner == "b"


def test_renewing_some_leases_leaves_the_others(world: World) -> None:
    world.create("p", "q")
    a = world.worker("a")
    p, _ = a.must_take("p"), a.must_take("q")
    before = world.rows()
    assert run(a.leases.renew(p)) == ()
    after = world.rows()
    assert before["p"].etag != after["p"].etag
    assert before["q"] == after["q"]


def test_who_lost_a_lease_cannot_write_and_is_told_each_time(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    old = a.must_take("p")
    write(old, 1)
    new = b.must_take("p", force=True)
    for _ in range(2):
        with pytest.raises(LeaseLostError, match="its next owner continues from the recorded position"):
            write(old, 2)
    assert old.lost
    assert world.at("p") == 1
    assert write(new, 3) == {"at": 3}


def test_what_was_lost_and_regained_is_still_lost(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    old = a.must_take("p")
    b.must_take("p", force=True)
    new = a.must_take("p", force=True)
    assert lost(old)
    assert write(new, 1) == {"at": 1}
    assert lost(old)
    run(a.leases.release(old))
    assert world.rows()["p"].owner == "a"


def test_taking_again_what_one_has_ends_the_lease_before(world: World, pair: tuple[Worker, Worker]) -> None:
    a, _ = pair
    old = a.must_take("p")
    new = a.must_take("p")
    assert old.lost
    assert lost(old)
    assert new.epoch == 2
    assert a.leases.held == {"p": new}
    assert write(new, 1) == {"at": 1}


def test_a_process_that_came_back_under_its_name_takes_its_own_at_once(
    world: World, pair: tuple[Worker, Worker]
) -> None:
    a, _ = pair
    old = a.must_take("p")
    again = world.worker("a")
    (new,) = run(again.leases.balance()).gained
    assert new.epoch == 2
    assert lost(old)
    assert not lost(new)


# ---- asking for a partition ------------------------------------------------------------------------------------------


def test_an_owner_who_is_asked_hands_over(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    lease = a.must_take("p")
    assert run(b.leases.ask("p"))
    assert b.take("p") is None
    assert run(a.leases.balance()).asked == (lease,)
    run(a.leases.release(lease))
    assert a.take("p") is None, "it was promised"
    assert world.worker("c").take("p") is None
    assert b.must_take("p").epoch == 2
    assert world.rows()["p"].asked_by == ""


def test_an_owner_who_does_not_hand_over_loses_it(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    lease = a.must_take("p")
    assert run(b.leases.ask("p"))
    for _ in range(2):
        world.wait(0.6 * LEASE)
        run(a.leases.renew())
    assert world.worker("c").take("p") is None, "only who asked may"
    assert b.must_take("p") is not None
    assert lost(lease)


def test_the_first_who_asks_is_served(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    c = world.worker("c")
    a.must_take("p")
    assert run(b.leases.ask("p"))
    assert not run(c.leases.ask("p"))
    assert run(b.leases.ask("p"))


def test_a_steal_request_of_one_who_is_gone_counts_no_more(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    c = world.worker("c")
    lease = a.must_take("p")
    run(b.leases.ask("p"))
    run(a.leases.balance())
    for _ in range(3):
        assert not run(c.leases.ask("p"))
        world.wait(0.7 * LEASE)
        run(a.leases.renew())
    assert run(a.leases.balance()).asked == ()
    assert run(c.leases.ask("p"))
    assert run(a.leases.balance()).asked == (lease,)


def test_what_was_promised_to_one_who_is_gone_is_free_after_a_lease(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    lease = a.must_take("p")
    run(b.leases.ask("p"))
    run(a.leases.release(lease))
    assert a.take("p") is None
    world.wait(1.1 * LEASE)
    assert a.must_take("p").epoch == 2


def test_what_nobody_else_has_cannot_be_asked_for(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    assert not run(b.leases.ask("p"))
    assert not run(b.leases.ask("nothing"))
    a.must_take("p")
    assert not run(a.leases.ask("p"))
    assert world.rows()["p"].asked_by == ""


# ---- requests --------------------------------------------------------------------------------------------------------


def test_requests(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    world.create(*(f"q{number}" for number in range(10)))
    for worker in pair:
        run(worker.group.context.check_conditional_writes())
    assert a.counts(a.leases.take("p")) == {"get": 2, "swap": 2}, "both objects are new to it"
    lease = a.leases.held["p"]
    assert a.counts(lease.write(lambda value: {"at": 1})) == {"swap": 1}
    assert a.counts(lease.write(lambda value: None)) == {"get": 1}
    assert a.counts(a.leases.renew()) == {"swap": 1}
    assert a.counts(a.leases.rows()) == {"get": 1}
    assert a.counts(a.leases.take("p")) == {"swap": 2}
    assert b.counts(b.leases.take("p")) == {"get": 1}, "held by another"
    assert b.counts(b.leases.take("p")) == {"get": 1}
    assert b.counts(b.leases.ask("p")) == {"swap": 1}
    assert b.counts(b.leases.ask("p")) == {"get": 1}
    assert a.counts(a.leases.release(a.leases.held["p"])) == {"get": 1, "swap": 2}, "b changed it meanwhile"
    assert b.counts(b.leases.balance()) == {"get": 1 + 11, "swap": 1 + 11}, "two more for each that is gained"
    assert b.counts(b.leases.balance()) == {"get": 1, "swap": 1}
    assert b.counts(b.leases.renew()) == {"swap": 1}
    assert b.counts(b.leases.forget("q1")) == {"swap": 1}
    assert b.counts(b.leases.create(["q1"])) == {"swap": 1}
    assert b.counts(b.leases.create(["q1"])) == {"get": 1}
    assert a.counts(a.leases.renew()) == {"get": 1}, "nothing to renew"


def test_a_round_of_a_worker_with_nothing_to_do_costs_one_read(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    run(a.leases.balance())
    assert run(b.leases.balance()).gained == ()
    assert b.counts(b.leases.balance()) == {"get": 1}


def test_positions_are_marked_all_at_once(world: World) -> None:
    """One round trip after the other would take longer than a lease lasts."""
    names = [f"p{number}" for number in range(8)]
    world.create(*names)
    a = world.worker("a")
    run(a.group.context.check_conditional_writes())
    gates = [a.faults.hold("swap", path=path(name)) for name in names[:3]]
    work = runtime.submit(a.leases.balance())
    for gate in gates:
        gate.wait()
    for gate in gates:
        gate.open()
    assert len(work.result(30).gained) == 8
