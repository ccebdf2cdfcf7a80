"""Leases on partitions, whatever fails, stalls, lands late, was deleted by hand, or stops in the middle."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import (
    CorruptionError,
    DependencyError,
    LeaseLostError,
    MalformedError,
    OutcomeUnknownError,
)
from pyspark_checkpointer.manifests.positions_json import encode_position
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from pyspark_checkpointer.testing.requests import CrashError
from tests.consumers.world import FOLDER, LEASE, OWNERSHIP, Worker, World, eventually, lost, path, run, write

# ---- swaps that fail, stall or land late -----------------------------------------------------------------------------


def test_a_write_under_way_when_the_lease_is_stolen_is_refused(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    old = a.must_take("p")
    gate = a.faults.hold("swap", path=path("p"))
    work = runtime.submit(old.write(lambda value: {"at": 1}))
    gate.wait()
    new = b.must_take("p", force=True)
    gate.open()
    with pytest.raises(LeaseLostError):
        work.result(30)
    assert world.at("p") is None
    assert write(new, 2) == {"at": 2}


@pytest.mark.parametrize("moment", ["stolen", "written", "regained"])
def test_a_write_that_lands_after_the_lease_was_stolen_takes_no_effect(
    world: World, pair: tuple[Worker, Worker], moment: str
) -> None:
    a, b = pair
    old = a.must_take("p")
    late = a.faults.late(times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError):
        write(old, 1)
    new = b.must_take("p", force=True)
    if moment == "written":
        write(new, 2)
    if moment == "regained":
        new = a.must_take("p", force=True)
    before = world.read(path("p"))
    assert not any(swap.land() for swap in late)
    assert world.read(path("p")) == before
    assert write(new, 3) == {"at": 3}
    assert lost(old)


def test_a_write_whose_answer_was_lost_may_land_before_the_next_owner_reads(
    world: World, pair: tuple[Worker, Worker]
) -> None:
    a, b = pair
    old = a.must_take("p")
    late = a.faults.late(times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError):
        write(old, 1)
    assert late[0].land()
    assert b.must_take("p", force=True).value_when_taken == {"at": 1}


def test_who_enters_late_does_not_take_the_position_back(world: World, pair: tuple[Worker, Worker]) -> None:
    """a took the row, stalled, and lost it; the position has b's lease by the time that a marks it."""
    a, b = pair
    gate = a.faults.hold("swap", path=path("p"))
    work = runtime.submit(a.leases.take("p"))
    gate.wait()
    new = b.must_take("p", force=True)
    gate.open()
    assert work.result(30) is None
    assert write(new, 1) == {"at": 1}
    assert a.leases.held == {}


def test_a_mark_that_lands_late_does_not_take_the_position_back(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    run(a.group.context.check_conditional_writes())
    late = a.faults.late(nth=2, times=MAX_SENDS)  # the first is the row's
    with pytest.raises(OutcomeUnknownError):
        a.take("p")
    new = b.must_take("p", force=True)
    assert not any(swap.land() for swap in late)
    assert write(new, 1) == {"at": 1}


def test_a_steal_that_lands_late_is_no_lease(world: World, pair: tuple[Worker, Worker]) -> None:
    """b's swap of the row lands long after b gave up: the row is b's, but the position is still a's to write."""
    a, b = pair
    lease = a.must_take("p")
    late = b.faults.late(times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError):
        b.take("p", force=True)
    assert late[0].land()
    assert world.rows()["p"].owner == "b"
    assert write(lease, 1) == {"at": 1}
    assert run(a.leases.renew()) == (lease,)
    assert b.must_take("p").value_when_taken == {"at": 1}


@pytest.mark.parametrize("meddle", [False, True], ids=["alone", "then another changes it"])
@pytest.mark.parametrize("verb", ["take", "mark", "renew", "release", "write", "ask", "create", "forget", "balance"])
def test_a_lost_answer_is_no_failure(world: World, pair: tuple[Worker, Worker], verb: str, meddle: bool) -> None:
    """Neither where it can be read back, nor where somebody else has changed the object by then."""
    a, b = pair
    run(a.group.context.check_conditional_writes())
    if verb not in ("take", "mark"):
        (b if verb == "ask" else a).must_take("p")
    changed = path("p") if verb in ("mark", "write") else OWNERSHIP
    a.faults.drop_answer(path=changed)
    if meddle and changed == OWNERSHIP:
        a.faults.call(lambda _: a.faults.call(lambda _: run(b.leases.create(["q"])), "get"), "swap", path=changed)
    leases = a.leases
    work: dict[str, Callable[[], Any]] = {
        "take": lambda: leases.take("p"),
        "mark": lambda: leases.take("p"),
        "renew": lambda: leases.renew(),
        "release": lambda: leases.release(leases.held["p"]),
        "write": lambda: leases.held["p"].write(lambda value: {"at": 1}),
        "ask": lambda: leases.ask("p"),
        "create": lambda: leases.create(["new"]),
        "forget": lambda: leases.forget("p"),
        "balance": lambda: leases.balance(),
    }
    result = run(work[verb]())
    row = world.rows().get("p")
    assert ("q" in world.rows()) == (meddle and changed == OWNERSHIP)
    match verb:
        case "take" | "mark":
            assert result.epoch == row.epoch == 1
            assert write(result, 1) == {"at": 1}
        case "renew":
            assert result == ()
            assert not lost(leases.held["p"])
        case "release":
            assert row.owner == ""
        case "write":
            assert world.at("p") == 1
        case "ask":
            assert result
            assert row.asked_by == "a"
        case "create":
            assert "new" in world.rows()
        case "forget":
            assert row is None
        case "balance":
            assert result.lost == ()
            assert row.epoch == leases.held["p"].epoch


# ---- objects that were deleted ---------------------------------------------------------------------------------------


def test_without_its_ownership_epochs_go_on_above_those_of_positions(world: World, pair: tuple[Worker, Worker]) -> None:
    a, b = pair
    for _ in range(3):
        a.must_take("p")
    old = a.leases.held["p"]
    write(old, 1)
    world.delete(OWNERSHIP)
    world.create("p")
    new = b.must_take("p")
    assert new.epoch == 4
    assert world.rows()["p"].epoch == 4
    assert new.value_when_taken == {"at": 1}
    assert lost(old)
    write(new, 2)
    assert run(a.leases.renew()) == (old,)
    assert run(a.leases.balance()).gained == ()


def test_without_its_ownership_the_epochs_of_many_partitions_are_raised_together(world: World) -> None:
    """One by one, each swap of the whole ownership would wait for those before it, and most would take too long."""
    names = [f"p{number}" for number in range(20)]
    world.create(*names)
    a, b = world.worker("a"), world.worker("b")
    old = run(a.leases.balance()).gained
    assert len(old) == len(names)
    world.delete(OWNERSHIP)
    world.create(*names)
    b.faults.forget()
    changes = run(b.leases.balance())
    assert (len(changes.gained), changes.failed) == (len(names), {})
    assert b.faults.paths("swap").count(OWNERSHIP) == 2
    assert all(map(lost, old))


def test_without_its_ownership_the_same_epoch_is_not_the_same_lease(world: World, pair: tuple[Worker, Worker]) -> None:
    """a's lease is the first of its partition, and so would b's be."""
    a, b = pair
    old = a.must_take("p")
    world.delete(OWNERSHIP)
    world.create("p")
    new = b.must_take("p")
    write(new, 1)
    with pytest.raises(LeaseLostError):
        write(old, 2)
    assert world.at("p") == 1
    assert new.epoch == 2


def test_of_a_group_that_was_deleted_no_lease_is_left(world: World, pair: tuple[Worker, Worker]) -> None:
    """Ownership and positions begin anew, and so do epochs: only the lease's own mark tells the two apart."""
    a, b = pair
    old = a.must_take("p")
    write(old, 1)
    world.delete(OWNERSHIP, path("p"))
    world.create("p")
    new = b.must_take("p")
    assert (new.epoch, new.value_when_taken) == (old.epoch, None)
    write(new, 2)
    with pytest.raises(LeaseLostError):
        write(old, 3)
    assert world.at("p") == 2


def test_of_a_group_that_was_deleted_and_taken_by_the_same_worker_the_old_lease_is_lost(world: World) -> None:
    world.create("p")
    a = world.worker("a")
    old = a.must_take("p")
    world.delete(OWNERSHIP, path("p"))
    world.create("p")
    found = run(a.leases.balance())
    assert found.lost == (old,)
    (new,) = found.gained
    assert a.leases.held == {"p": new}
    assert lost(old)
    assert not lost(new)


def test_without_its_position_a_lease_ends_and_the_next_round_begins_anew(
    world: World, pair: tuple[Worker, Worker]
) -> None:
    a, b = pair
    old = a.must_take("p")
    write(old, 1)
    world.delete(path("p"))
    with pytest.raises(LeaseLostError):
        write(old, 2)
    assert not world.exists(path("p"))
    found = run(a.leases.balance())
    assert found.lost == (old,)
    (new,) = found.gained
    assert (new.epoch, new.value_when_taken) == (2, None)
    assert write(new, 3) == {"at": 3}
    assert lost(old)
    assert b.take("p") is None


def test_a_renewal_brings_no_deleted_group_back(world: World, pair: tuple[Worker, Worker]) -> None:
    a, _ = pair
    lease = a.must_take("p")
    world.delete(OWNERSHIP, path("p"))
    assert run(a.leases.renew()) == (lease,)
    run(a.leases.release(lease))
    run(a.leases.ask("p"))
    run(a.leases.forget("p"))
    assert run(a.leases.balance()).gained == ()
    assert not world.exists(OWNERSHIP)


# ---- what fails beside others ----------------------------------------------------------------------------------------


def test_a_position_that_cannot_be_read_keeps_nobody_from_the_others(world: World) -> None:
    world.create("p", "q", "r")
    a = world.worker("a")
    world.put(path("q"), b"torn")
    for _ in range(2):
        found = run(a.leases.balance())
        assert set(a.leases.held) == {"p", "r"}
        assert list(found.failed) == ["q"]
        with pytest.raises(CorruptionError, match=rf"{path('q')}: expected JSON"):
            raise found.failed["q"]
    with pytest.raises(CorruptionError, match=path("q")):
        a.take("q")
    world.delete(path("q"))
    found = run(a.leases.balance())
    assert [lease.partition for lease in found.gained] == ["q"]
    assert found.failed == {}


def test_a_position_that_is_slow_keeps_no_other_from_being_held(world: World) -> None:
    """What is held is renewed, so that no other worker takes it meanwhile."""
    world.create("p", "q", "r")
    a, b = world.worker("a"), world.worker("b")
    gate = a.faults.hold("get", path=path("q"))
    work = runtime.submit(a.leases.balance())
    gate.wait()
    eventually(lambda: set(a.leases.held) == {"p", "r"})
    for _ in range(3):
        world.wait(LEASE * 0.6)
        assert run(a.leases.renew()) == ()
        assert b.take("p") is None
    gate.open()
    assert {lease.partition for lease in work.result(30).gained} == {"p", "q", "r"}


def test_a_round_that_is_given_up_holds_nothing(world: World) -> None:
    """Nobody is told of its leases, so nobody would read their partitions."""
    world.create("p", "q", "r")
    a = world.worker("a")
    gate = a.faults.hold("get", path=path("q"))
    work = runtime.submit(a.leases.balance())
    gate.wait()
    eventually(lambda: set(a.leases.held) == {"p", "r"})
    work.cancel()
    eventually(lambda: a.leases.held == {})
    gate.open()
    assert {lease.partition for lease in run(a.leases.balance()).gained} == {"p", "q", "r"}


def test_a_position_of_another_partition_is_refused(world: World, pair: tuple[Worker, Worker]) -> None:
    """By its place in the group: somebody has copied it there, and its events would be taken for read."""
    a, b = pair
    world.create("q")
    lease = a.must_take("p")
    write(lease, 900)
    world.put(path("q"), world.read(path("p")))
    with pytest.raises(MalformedError, match=rf"{path('q')}: holds the position of partition 'p'"):
        b.take("q")
    assert list(run(b.leases.balance()).failed) == ["q"]
    world.delete(path("q"))
    assert b.must_take("q").value_when_taken is None


def test_a_mark_that_failed_is_tried_again_in_the_next_round(world: World) -> None:
    world.create("p", "q", "r")
    a = world.worker("a")
    a.faults.fail("get", path=path("q"))
    first = run(a.leases.balance())
    assert {lease.partition for lease in first.gained} == {"p", "r"}
    assert isinstance(first.failed["q"], DependencyError)
    second = run(a.leases.balance())
    assert [lease.partition for lease in second.gained] == ["q"]
    assert (second.lost, second.failed) == ((), {})
    assert set(a.leases.held) == {"p", "q", "r"}


def test_a_lease_that_was_entered_unseen_is_entered(world: World) -> None:
    """Its answer is lost, and the position is written by hand, under the same lease, before it is read back."""
    a = world.worker("a")

    def rewrite(_: object) -> None:
        world.put(path("p"), encode_position(replace(world.position("p"), value={"at": 7}), "0" * 32))

    world.create("p")
    a.faults.drop_answer(path=path("p"))
    a.faults.call(rewrite, "get", 2, path=path("p"))
    lease = a.must_take("p")
    assert lease.value_when_taken == {"at": 7}
    assert (lease.epoch, world.position("p").epoch) == (1, 1), "the epoch is not raised for it"
    assert a.faults.counts["swap"] == 2 + 4, "one in the ownership, one in the position, and four of the probe"
    assert write(lease, 8) == {"at": 8}


def test_a_lease_that_was_taken_again_meanwhile_is_not_put_back(world: World) -> None:
    """A round marks p and is held up with q; p is taken again, by another task of the same worker."""
    world.create("p", "q")
    a = world.worker("a")
    run(a.group.context.check_conditional_writes())
    gate = a.faults.hold("swap", path=path("q"))
    work = runtime.submit(a.leases.balance())
    gate.wait()
    newer = a.must_take("p")
    gate.open()
    found = work.result(30)
    assert [lease.partition for lease in found.gained] == ["q"]
    assert a.leases.held["p"] is newer
    assert write(newer, 1) == {"at": 1}


# ---- stopped at any request ------------------------------------------------------------------------------------------


def act(worker: Worker, verb: str) -> None:
    match verb:
        case "take" | "steal":
            worker.take("p", force=True)
        case "renew":
            run(worker.leases.renew())
        case "release":
            run(worker.leases.release(worker.leases.held["p"]))
        case "write":
            write(worker.leases.held["p"], 2)
        case "write after a steal":
            with suppress(LeaseLostError):
                write(worker.leases.held["p"], 2)
        case "balance":
            run(worker.leases.balance())
        case "ask":
            run(worker.leases.ask("r"))


FOUND = {"take": (None,), "write": (1, 2), "write after a steal": (5,)}
"""What the position of p may be once a verb was stopped; 1 where nothing else is said."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "verb", ["take", "steal", "renew", "release", "write", "write after a steal", "balance", "ask"]
)
def test_whoever_stops_at_any_request_another_goes_on_after_a_lease(
    verb: str, after: bool, figures: Counter[str]
) -> None:
    for number in itertools.count(1):
        world = World()
        world.create("p", "q", "r")
        dying, other, third = world.worker("dying"), world.worker("other"), world.worker("third")
        third.must_take("r")
        if verb != "take":
            write((other if verb == "steal" else dying).must_take("p"), 1)
        if verb == "write after a steal":
            write(other.must_take("p", force=True), 5)
        epoch = 0 if verb == "take" else world.position("p").epoch
        dying.faults.crash(number, after=after)
        try:
            act(dying, verb)
        except CrashError:
            stopped = True
        else:
            stopped = False
        for _ in range(8):
            for worker in (other, third):
                for lease in run(worker.leases.balance()).asked:
                    run(worker.leases.release(lease))
            world.wait(0.4 * LEASE)
        held = [*other.leases.held.values(), *third.leases.held.values()]
        owned = {lease.partition for lease in held if not lease.lost}
        at = world.at("p")
        figures["crash points"] += stopped
        figures["partitions without an owner after a lease"] += len({"p", "q", "r"} - owned)
        figures["positions lost"] += at not in FOUND.get(verb, (1,))
        assert owned == {"p", "q", "r"}, f"after request {number}"
        assert len(held) == 3
        assert at in FOUND.get(verb, (1,)), f"after request {number}"
        (lease,) = [lease for lease in held if lease.partition == "p"]
        if lease.epoch > epoch:  # else it is the other's since before
            assert lease.value_when_taken == (None if at is None else {"at": at})
        for one in held:
            assert write(one, 9) == {"at": 9}
        if not stopped:
            assert number > 1
            break


def test_the_group_stands_below_its_folder(world: World) -> None:
    world.create("p/q")
    a = world.worker("a")
    a.must_take("p/q")
    listed = {entry.path for entry in run(world.store.list(""))}
    assert listed == {f"{FOLDER}ownership.json", f"{FOLDER}positions/p%2Fq.json"}
    assert json.loads(world.read(OWNERSHIP))["rows"][0]["partition"] == "p/q"


def test_positions_are_found_by_one_listing(world: World) -> None:
    world.create("p", "q", "r")
    a = world.worker("a")
    run(a.leases.balance())
    write(a.leases.held["q"], 4)
    b = world.worker("b")
    world.put(f"{FOLDER}positions/.hidden", b"")
    world.put(f"{FOLDER}positions/q.txt", b"")
    world.put(f"{FOLDER}positions/deep/q.json", b"")
    found = run(b.group.positions())
    assert [(position.partition, position.value) for position in found] == [("p", None), ("q", {"at": 4}), ("r", None)]
    assert b.faults.counts == {"list": 1, "get": 3}
    world.put(f"{FOLDER}positions/copy.json", world.read(path("q")))
    with pytest.raises(CorruptionError, match=r"copy.json: holds the position of partition 'q'"):
        run(b.group.positions())
    world.delete(f"{FOLDER}positions/copy.json")
    run(a.group.delete(["q", "nothing"]))
    assert [position.partition for position in run(b.group.positions())] == ["p", "r"]
    assert lost(a.leases.held["q"])
