"""Who may record what: leases that are lost, given back, claimed and balanced, and answers that do not come."""

import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.consumers.kinesis import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
    RecordCheckpointer,
    Row,
    ShardLeases,
)
from pyspark_checkpointer.consumers.kinesis.state import ShardState, checkpointed, decode, encode, prepared
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    DependencyError,
    IllegalArgumentError,
    InvalidStateError,
    LeaseLostError,
    ShutdownError,
    StoreNotFoundError,
    ThrottlingError,
)
from pyspark_checkpointer.manifests.errors import MalformedError
from pyspark_checkpointer.manifests.positions_json import MAX_POSITION, decode_ownership, encode_ownership
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from tests.consumers.kinesis.kinesis_world import Node, records
from tests.consumers.world import TestHost, World, run

OWNERSHIP = "progress/kinesis/app/ownership.json"
POSITION = "progress/kinesis/app/positions/s.json"


@pytest.fixture
def clock() -> TestHost:
    return TestHost()


@pytest.fixture
def node(world: World, clock: TestHost) -> Callable[..., Node]:
    """Makes workers of one application."""
    return lambda worker, **options: Node(world.store, worker, clock, **options)


@pytest.fixture
def one(node: Callable[..., Node]) -> Node:
    return node("one")


@pytest.fixture
def two(node: Callable[..., Node]) -> Node:
    return node("two")


def at(checkpointer: RecordCheckpointer) -> str:
    return str(checkpointer.position)


def taken(leases: Node, shard: str = "s") -> RecordCheckpointer:
    """A checkpointer that was handed records 1 to 9."""
    checkpointer = leases.must(shard)
    leases.deliver(checkpointer, records(1, 9))
    return checkpointer


# ---- fencing ---------------------------------------------------------------------------------------------------------


def test_a_lost_lease_is_found_out_and_dropped(one: Node, two: Node) -> None:
    mine = taken(one)
    mine.checkpoint_by_sequence_number("3")
    theirs = two.must("s", force=True)
    assert at(theirs) == "3"
    with pytest.raises(LeaseLostError, match=r"'s'.*'one'.*stop reading"):
        mine.checkpoint()
    assert mine.lost
    assert not one.held
    assert at(two.must("s")) == "3"


def test_lost_and_regained_is_still_lost(one: Node, two: Node) -> None:
    mine = taken(one)
    prepared = mine.prepare_checkpoint()
    two.must("s", force=True)
    again = one.must("s", force=True)
    one.deliver(again, records(1, 9))
    for verb in (mine.checkpoint, mine.prepare_checkpoint, mine.flush, prepared.checkpoint):
        with pytest.raises(ShutdownError):
            verb()
    assert one.held == {"s": again}
    again.checkpoint_by_sequence_number("5")
    assert at(two.must("s", force=True)) == "5"


def test_what_is_delivered_while_a_checkpoint_is_under_way_is_seen(one: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = taken(one)
    last, compare = 9, ExtendedSequenceNumber.__lt__

    def deliver_and_compare(number: ExtendedSequenceNumber, other: object) -> bool:
        nonlocal last
        if runtime.on_loop():  # where the checkpoint is taken, and where nothing is delivered: as if threads changed
            last += 1
            with monkeypatch.context() as patch:
                patch.setattr(ExtendedSequenceNumber, "__lt__", compare)
                one.deliver(mine, records(last, last))
        return compare(number, other)

    monkeypatch.setattr(ExtendedSequenceNumber, "__lt__", deliver_and_compare)
    mine.checkpoint()
    assert last > 9
    assert (at(mine), str(mine.seen)) == ("9", str(last))


def test_it_is_taken_while_a_checkpoint_is_under_way(one: Node, two: Node) -> None:
    mine = taken(one)
    mine.checkpoint_by_sequence_number("3")
    gate = one.faults.hold("swap", path=POSITION)
    errors: list[Exception] = []

    def late() -> None:
        try:
            mine.checkpoint()
        except CheckpointError as error:
            errors.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    gate.wait()
    theirs = two.must("s", force=True)
    gate.open()
    thread.join()
    assert isinstance(errors[0], LeaseLostError)
    assert at(theirs) == at(two.must("s")) == "3"


def test_nothing_is_written_for_an_equal_or_a_refused_checkpoint(one: Node) -> None:
    mine = taken(one)
    mine.checkpoint_by_sequence_number("5")
    one.faults.forget()
    mine.checkpoint_by_sequence_number("5")
    with pytest.raises(IllegalArgumentError, match="shard 's': 4 is below the last checkpoint, 5"):
        mine.checkpoint_by_sequence_number("4")
    with pytest.raises(IllegalArgumentError, match=r"shard 's': 10 is above .* delivered, 9"):
        mine.checkpoint_by_sequence_number("10")
    assert not one.faults.paths("swap")


def test_a_checkpoint_is_one_request(one: Node) -> None:
    mine = taken(one)
    one.faults.forget()
    mine.checkpoint_by_sequence_number("5")
    mine.prepare_checkpoint(application_state=b"x")
    mine.checkpoint()
    assert one.faults.counts == {"swap": 3}


@pytest.mark.parametrize("verb", ["checkpoint", "prepare_checkpoint"])
def test_a_lost_answer_is_no_lost_checkpoint(one: Node, two: Node, verb: str) -> None:
    mine = taken(one)
    one.faults.drop_answer(path=POSITION)
    getattr(mine, verb)()
    theirs = two.must("s", force=True)
    pending = theirs.pending
    assert at(theirs) == "9" if verb == "checkpoint" else str(pending and pending.pending_checkpoint) == "9"


def test_a_store_that_does_not_answer_says_so_and_may_be_asked_again(one: Node, two: Node) -> None:
    mine = taken(one)
    one.faults.drop_answer(path=POSITION)
    one.faults.fail("get", path=POSITION)  # nor does it tell what became of it
    with pytest.raises(DependencyError) as caught:
        mine.checkpoint_by_sequence_number("5")
    assert caught.value.retryable
    with pytest.raises(IllegalArgumentError):  # the checkpoint was written, whatever was said
        mine.checkpoint_by_sequence_number("4")
    mine.checkpoint_by_sequence_number("5")
    assert at(two.must("s", force=True)) == "5"


def test_a_pending_checkpoint_whose_answer_was_lost_may_be_made_again(one: Node, two: Node) -> None:
    """It is above all that was delivered to its new owner."""
    taken(one).prepare_checkpoint()
    theirs = two.must("s", force=True)
    pending = theirs.pending
    assert pending is not None
    two.faults.drop_answer(path=POSITION)
    two.faults.fail("get", path=POSITION)
    with pytest.raises(DependencyError):
        pending.checkpoint()
    pending.checkpoint()
    assert (at(theirs), theirs.pending) == ("9", None)


@pytest.mark.parametrize(
    ("error", "contract"),
    [
        (ThrottlingError, ThrottlingError),
        (DependencyError, DependencyError),
        (StoreNotFoundError, InvalidStateError),
        (CheckpointError, InvalidStateError),
    ],
)
@pytest.mark.parametrize("reads", ["answered", "failed"])
def test_errors_are_the_contracts(
    one: Node, error: type[CheckpointError], contract: type[CheckpointError], reads: str
) -> None:
    mine = taken(one)
    one.faults.fail("swap", path=POSITION, times=MAX_SENDS, error=error)
    if reads == "failed":
        one.faults.fail("get", path=POSITION, times=MAX_SENDS, error=error)
    with pytest.raises(contract) as caught:
        mine.checkpoint()
    assert type(caught.value) is contract
    assert caught.value.retryable == (error.__name__ in ("ThrottlingError", "DependencyError"))


def test_a_damaged_position_is_named_and_spoils_no_other(world: World, one: Node, two: Node) -> None:
    mine = taken(one)
    mine.checkpoint()
    one.release(mine)
    whole = world.read(POSITION)
    world.put(POSITION, whole.replace(b'"9"', b'"8"'))
    with pytest.raises(InvalidStateError, match=r"positions/s\.json") as caught:
        two.take("s")
    assert isinstance(caught.value.__cause__, CorruptionError)
    two.create(["t"])
    change = two.balance()
    assert [gained.shard_id for gained in change.gained] == ["t"]
    assert "positions/s.json" in str(change.failed["s"])
    world.put(POSITION, whole)
    assert [at(gained) for gained in two.balance().gained] == ["9"]


def test_a_value_of_another_form_is_named_and_spoils_no_other(one: Node, two: Node) -> None:
    mine = taken(one)
    run(mine._lease.write(lambda value: {"checkpoint": "9"}))
    one.release(mine)
    two.create(["t"])
    for _ in range(2):
        change = two.balance()
        assert "position of shard 's'" in str(change.failed["s"])
    assert list(two.held) == ["t"]


def test_a_value_of_another_form_that_was_mended_is_read_by_the_next_round(world: World, one: Node, two: Node) -> None:
    mine = taken(one)
    mine.checkpoint()
    whole = world.read(POSITION)
    run(mine._lease.write(lambda value: {"checkpoint": "9"}))
    one.release(mine)
    for _ in range(2):
        assert "s" in two.balance().failed
    world.put(POSITION, whole)
    assert [at(gained) for gained in two.balance().gained] == ["9"]


@pytest.mark.parametrize(
    "value",
    [
        {"checkpoint": None},
        {"checkpoint": {"sequence_number": "05", "sub_sequence_number": 0}, "pending": None},
        {"checkpoint": {"sequence_number": "5", "sub_sequence_number": -1}, "pending": None},
        {"checkpoint": {"sequence_number": "LATEST", "sub_sequence_number": 0}, "pending": None},
        {"checkpoint": None, "pending": {"sequence_number": "5", "sub_sequence_number": 0, "state": "?"}},
        {"checkpoint": None, "pending": {"sequence_number": "5", "sub_sequence_number": 0, "state": 7}},
        *({"checkpoint": None, "pending": None, "initial": wrong} for wrong in (None, 5, "5", "SHARD_END", "NOW")),
    ],
)
def test_a_value_of_another_form_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(MalformedError, match="position of shard 's'"):
        decode("s", value, LATEST)


def test_fields_of_a_newer_writer_are_kept() -> None:
    value = {"checkpoint": None, "pending": None, "later": [1]}
    five = ExtendedSequenceNumber("5")
    assert encode(checkpointed(decode("s", value, LATEST), five, five)) == {
        "checkpoint": {"sequence_number": "5", "sub_sequence_number": 0},
        "pending": None,
        "later": [1],
    }


def test_a_place_to_begin_is_kept_until_the_first_checkpoint() -> None:
    value = {"checkpoint": None, "pending": None, "initial": "TRIM_HORIZON"}
    begun = decode("s", value, LATEST)
    assert begun.checkpoint == TRIM_HORIZON
    assert encode(begun) == value
    five = ExtendedSequenceNumber("5")
    assert decode("s", encode(prepared(begun, five, five, b"state")), LATEST).initial == TRIM_HORIZON
    assert checkpointed(begun, TRIM_HORIZON, TRIM_HORIZON).initial == TRIM_HORIZON
    assert "initial" not in encode(checkpointed(begun, five, five))


# ---- leases ----------------------------------------------------------------------------------------------------------


def test_what_is_held_is_not_free_until_it_expires(one: Node, two: Node, clock: TestHost) -> None:
    mine = taken(one)
    mine.checkpoint()
    assert two.take("s") is None
    clock.seconds += 10.1
    assert one.renew() == ()
    assert two.take("s") is None  # it was renewed meanwhile
    clock.seconds += 10.1
    assert at(two.must("s")) == "9"
    assert one.renew() == (mine,)
    assert one.renew() == ()
    assert two.renew() == ()


def test_a_release_keeps_the_checkpoint(one: Node, two: Node) -> None:
    mine = taken(one)
    mine.checkpoint_by_sequence_number("5")
    mine.prepare_checkpoint(application_state=b"x")
    one.release(mine)
    theirs = two.must("s")
    assert (at(theirs), theirs.pending_state) == ("5", b"x")
    with pytest.raises(ShutdownError):
        mine.checkpoint()
    one.release(mine)  # let go already
    assert two.held == {"s": theirs}
    theirs.checkpoint()


def test_a_shard_is_claimed(one: Node, two: Node, clock: TestHost) -> None:
    mine = taken(one)
    assert two.claim("s")
    assert two.take("s") is None
    assert one.balance().asked == (mine,)
    one.release(mine)
    assert one.take("s") is None  # it is promised
    assert two.must("s").shard_id == "s"


def test_a_claim_that_is_not_answered_takes(one: Node, two: Node, clock: TestHost) -> None:
    mine = taken(one)
    assert two.claim("s")
    clock.seconds += 10.1
    one.renew()
    assert two.must("s")
    assert one.balance().lost == (mine,)


def test_four_shards_and_two_workers(one: Node, two: Node) -> None:
    one.create(f"s{n}" for n in range(4))
    assert len(one.balance().gained) == 4
    assert two.balance().gained == ()
    asked = one.balance().asked
    for checkpointer in asked:
        one.release(checkpointer)
    assert len(asked) == 2
    assert len(two.balance().gained) == 2
    assert len(one.held) == len(two.held) == 2
    for leases in (one, two, one):
        change = leases.balance()
        assert (change.gained, change.lost, change.asked) == ((), (), ())
    assert sorted(row.owner for row in one.rows().values()) == ["one", "one", "two", "two"]


def test_a_shard_that_cannot_be_taken_spoils_no_other(one: Node) -> None:
    one.create(["a", "b"])
    one.faults.fail("swap", path="positions/b.json", times=MAX_SENDS)
    change = one.balance()
    assert [gained.shard_id for gained in change.gained] == ["a"]
    assert list(change.failed) == ["b"]
    assert [gained.shard_id for gained in one.balance().gained] == ["b"]


def test_nobody_takes_a_finished_shard(one: Node, two: Node, clock: TestHost) -> None:
    mine = taken(one)
    one.end(mine)
    with pytest.raises(IllegalArgumentError, match=r"shard 's': has ended, and its checkpoint is TRIM_HORIZON: call"):
        one.finish(mine)
    assert one.held == {"s": mine}
    mine.checkpoint()
    one.finish(mine)
    clock.seconds += 100
    assert one.take("s") is two.take("s") is None
    assert two.balance().gained == ()
    assert one.rows()["s"].finished


def test_a_shard_is_forgotten_and_its_end_is_not(one: Node, two: Node) -> None:
    mine = taken(one)
    one.end(mine)
    mine.checkpoint()
    one.finish(mine)
    two.forget("s")
    assert not one.rows()
    one.create(["s"])
    assert two.must("s").position == SHARD_END


@pytest.mark.parametrize("who", ["owner", "another"])
def test_who_has_a_shard_that_is_forgotten_has_it_no_more(one: Node, two: Node, who: str) -> None:
    mine = taken(one)
    mine.checkpoint_by_sequence_number("5")
    (one if who == "owner" else two).forget("s")
    assert one.renew() == (() if who == "owner" else (mine,))  # who forgets it knows
    assert not one.held
    with pytest.raises(ShutdownError):
        mine.checkpoint()
    assert at(two.must("s")) == "5"


def test_a_processor_is_handed_the_contract_and_no_more() -> None:
    contract = {
        *("shard_id", "lost", "position", "seen", "pending", "pending_state", "flush"),
        *("checkpoint", "checkpoint_by_record", "checkpoint_by_sequence_number", "checkpoint_by_sequence_number_ex"),
        *("prepare_checkpoint", "prepare_checkpoint_by_record"),
        *("prepare_checkpoint_by_sequence_number", "prepare_checkpoint_by_sequence_number_ex"),
    }
    with ShardLeases("memory://handed", "app") as leases:
        leases.create(["s"])
        assert {name for name in dir(leases.take("s")) if not name.startswith("_")} == contract
        assert {type(row) for row in leases.rows().values()} == {Row}


def test_the_initial_position_is_the_readers_own(node: Callable[..., Node]) -> None:
    latest = node("one", initial=LATEST).must("s")
    assert latest.position == latest.seen == LATEST
    latest.checkpoint()
    latest.prepare_checkpoint(application_state=b"x")
    assert at(node("two").must("s", force=True)) == "TRIM_HORIZON"


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial": SHARD_END},
        {"initial": ExtendedSequenceNumber("5")},
        {"initial": "LATEST"},
        {"duration": 0},
        {"max_updates": 0},
        {"interval": 0},
        {"worker": ""},
        {"application": ""},
    ],
)
def test_a_wrong_configuration_is_refused_at_once(wrong: dict[str, object]) -> None:
    with pytest.raises(IllegalArgumentError):
        ShardLeases("memory://wrong", **{"application": "app", **wrong})  # type: ignore[arg-type]


def test_a_copy_in_another_process_is_another_worker() -> None:
    leases = ShardLeases("memory://copied", "app")
    leases.create(["s"])
    copy = pickle.loads(pickle.dumps(leases))
    assert copy.worker != leases.worker
    assert leases.take("s") is not None
    assert copy.held == {}
    assert copy.take("s") is None


def test_a_large_application_state_is_refused(one: Node, two: Node) -> None:
    mine = taken(one)
    with pytest.raises(IllegalArgumentError, match="bytes"):
        mine.prepare_checkpoint(application_state=bytes(1 << 20))
    with pytest.raises(IllegalArgumentError, match="application_state: expected bytes, got str"):
        mine.prepare_checkpoint(application_state="x")  # type: ignore[arg-type]
    assert two.must("s", force=True).pending is None


def test_the_largest_application_state_can_be_taken_over(one: Node, two: Node, world: World) -> None:
    """However many digits the epochs have that come."""
    mine = taken(one)
    size = MAX_POSITION * 3 // 4
    while mine.pending is None:
        size -= 3  # four bytes in base64
        with suppress(IllegalArgumentError):
            mine.prepare_checkpoint(application_state=bytes(size))
    before = decode_ownership(OWNERSHIP, world.read(OWNERSHIP))
    rows = {"s": replace(before.rows["s"], epoch=10**18)}
    world.put(OWNERSHIP, encode_ownership(replace(before, rows=rows), "another nonce"))
    assert two.must("s", force=True).pending_state == bytes(size)


# ---- coalescing ------------------------------------------------------------------------------------------------------


@pytest.fixture
def lazy(node: Callable[..., Node]) -> Node:
    """A worker that writes when it is told to."""
    return node("lazy", max_updates=1000, interval=1000)


def test_checkpoints_wait_for_a_flush(lazy: Node, two: Node) -> None:
    mine = taken(lazy)
    lazy.faults.forget()
    for number in range(1, 9):
        mine.checkpoint_by_sequence_number(str(number))
    with pytest.raises(IllegalArgumentError):
        mine.checkpoint_by_sequence_number("7")
    assert not lazy.faults.counts
    mine.flush()
    assert lazy.faults.counts == {"swap": 1}
    assert at(two.must("s", force=True)) == "8"


def test_checkpoints_are_written_after_some(node: Callable[..., Node], two: Node) -> None:
    lazy = node("lazy", max_updates=3, interval=1000)
    mine = taken(lazy)
    gate = lazy.faults.hold("swap", path=POSITION)
    for number in (1, 2, 3):
        mine.checkpoint_by_sequence_number(str(number))
    gate.wait()
    gate.open()
    mine.flush()
    assert at(two.must("s", force=True)) == "3"


def test_a_release_writes_first(lazy: Node, two: Node) -> None:
    mine = taken(lazy)
    mine.checkpoint()
    lazy.release(mine)
    assert at(two.must("s")) == "9"


def test_a_release_that_cannot_write_first_is_made_again_or_given_up(lazy: Node, two: Node, clock: TestHost) -> None:
    mine, other = taken(lazy), taken(lazy, "t")
    for checkpointer in (mine, other):
        checkpointer.checkpoint()
        lazy.faults.fail("swap", path="positions", times=MAX_SENDS)
        with pytest.raises(DependencyError):
            lazy.release(checkpointer)
    assert lazy.held == {"s": mine, "t": other}
    lazy.release(mine)
    assert at(two.must("s")) == "9"
    lazy.let_go(other)
    assert not lazy.held
    lazy.flush()
    assert two.take("t") is None
    clock.seconds += 10.1
    assert at(two.must("t")) == "TRIM_HORIZON"


def test_closing_writes(lazy: Node, two: Node) -> None:
    taken(lazy).checkpoint()
    lazy.close()
    assert at(two.must("s", force=True)) == "9"


@pytest.mark.parametrize("max_updates", [1, 1000])
def test_what_is_closed_takes_no_checkpoints_and_releases(
    node: Callable[..., Node], two: Node, max_updates: int
) -> None:
    closed = node("closed", max_updates=max_updates, interval=1000)
    mine = taken(closed)
    prepared = mine.prepare_checkpoint()
    mine.checkpoint_by_sequence_number("5")
    closed.close()
    for verb in (mine.checkpoint, mine.checkpoint, mine.prepare_checkpoint, prepared.checkpoint):
        with pytest.raises(InvalidStateError, match="was closed"):
            verb()
    assert at(mine) == "5"
    closed.release(mine)
    assert at(two.must("s")) == "5"
    closed.close()


def test_a_damaged_position_disturbs_only_its_own_shard(lazy: Node, two: Node, world: World) -> None:
    mine, damaged = taken(lazy, "fine"), taken(lazy)
    world.put(POSITION, b"torn")
    for checkpointer in (mine, damaged):
        checkpointer.checkpoint_by_sequence_number("5")
    mine.prepare_checkpoint()
    mine.checkpoint_by_sequence_number("6")
    mine.flush()
    mine.checkpoint()
    lazy.release(mine)
    assert at(two.must("fine")) == "9"
    for hear in (damaged.flush, lazy.flush, damaged.prepare_checkpoint, lazy.close):
        with pytest.raises(InvalidStateError, match=r"positions/s\.json"):
            hear()


def test_what_waits_never_lowers_what_stands(lazy: Node, two: Node) -> None:
    mine = taken(lazy)
    mine.checkpoint_by_sequence_number("5")
    # As a process that was forked with this lease might.
    run(mine._lease.write(lambda _: encode(ShardState("s", ExtendedSequenceNumber("7")))))
    with pytest.raises(IllegalArgumentError, match="5 is below the last checkpoint, 7"):
        mine.flush()
    lazy.flush()
    assert at(two.must("s", force=True)) == "7"


def test_a_prepared_checkpoint_is_written_at_once_and_in_order(lazy: Node, two: Node) -> None:
    mine = taken(lazy)
    mine.checkpoint_by_sequence_number("5")
    lazy.faults.forget()
    mine.prepare_checkpoint(application_state=b"x")
    assert lazy.faults.counts == {"swap": 2}
    theirs = two.must("s", force=True)
    assert (at(theirs), theirs.pending_state) == ("5", b"x")


def test_the_end_is_written_at_once(lazy: Node, two: Node) -> None:
    mine = taken(lazy)
    mine.checkpoint_by_sequence_number("5")
    lazy.end(mine)
    mine.checkpoint()
    assert two.must("s", force=True).position == SHARD_END


def test_nothing_waits_while_it_is_unknown_what_stands(lazy: Node, two: Node) -> None:
    mine = taken(lazy)
    mine.checkpoint_by_sequence_number("5")
    mine.flush()
    lazy.faults.drop_answer(path=POSITION)
    lazy.faults.fail("get", path=POSITION)
    with pytest.raises(DependencyError):
        mine.prepare_checkpoint()  # it was written, whatever was said
    mine.checkpoint_by_sequence_number("5")
    mine.flush()
    assert two.must("s", force=True).pending is None


def test_what_waits_when_the_lease_is_lost_is_given_up(lazy: Node, two: Node) -> None:
    mine = taken(lazy)
    mine.checkpoint()
    theirs = two.must("s", force=True)
    with pytest.raises(ShutdownError):
        mine.flush()
    with pytest.raises(ShutdownError):
        mine.checkpoint()
    assert mine.lost
    lazy.flush()
    assert at(theirs) == at(two.must("s")) == "TRIM_HORIZON"


def test_a_checkpointer_of_another_application_is_refused(tmp_path: Path) -> None:
    with ShardLeases(tmp_path, "one", "w") as one, ShardLeases(tmp_path, "two", "w") as two:
        one.create(["s"])
        two.create(["s"])
        mine, other = one.take("s"), two.take("s")
        assert mine is not None
        assert other is not None
        for wrong in (other, None):
            for call in (one.release, one.let_go, one.finish):
                with pytest.raises(IllegalArgumentError):
                    call(wrong)  # type: ignore[arg-type]
        assert not mine.lost
        assert not other.lost


@pytest.mark.parametrize("shards", ["abc", None, 5, [None], [b"s"], [""]])
def test_what_is_no_list_of_shards_is_refused(tmp_path: Path, shards: Any) -> None:
    with ShardLeases(tmp_path, "one") as leases, pytest.raises(IllegalArgumentError):
        leases.create(shards)


def test_a_shard_that_a_thread_is_taking_is_not_gained_by_balancing(one: Node) -> None:
    one.create(["s", "t"])
    core, gained = one._core, []
    take = core.leases.take

    async def take_and_balance(*given: Any, **options: Any) -> Any:
        lease = await take(*given, **options)
        gained.extend((await core.balance()).gained)  # of another thread, before this one has its checkpointer
        return lease

    core.leases.take = take_and_balance  # type: ignore[method-assign]
    mine = one.take("s")
    assert [checkpointer.shard_id for checkpointer in gained] == ["t"]
    assert one.held["s"] is mine
