"""The pointer, one swap at a time: what a lost answer, a delayed swap or another writer may do to it.

Each test is one history of the protocol: what would go wrong without the rule, played on the real code.
"""

from dataclasses import replace

import pytest

from pyspark_checkpointer import RetentionPolicy
from pyspark_checkpointer.checkpoint import fencing
from pyspark_checkpointer.checkpoint import latest as pointer_swaps
from pyspark_checkpointer.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConflictError,
    DependencyError,
    FencedError,
    IllegalArgumentError,
    InvalidStateError,
    NotFoundError,
    OutcomeUnknownError,
    StoreNotFoundError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests.model import Job, Manifest
from pyspark_checkpointer.storage.base import ObjectNotFoundError
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from tests.world import Actor, World, attempt, latest, line, put

# ---- who is the writer -----------------------------------------------------------------------------------------------


def test_of_two_takeovers_of_one_version_only_one_is_the_writer(world: World) -> None:
    line(world.actor(), 1)
    first, second = world.actor(), world.actor()
    first.restore()
    second.restore()
    mine = attempt(first, b"first")
    # The second takes over with a prepare, so that the committed checkpoint stays and the epoch is the same for both.
    prepared = []
    first.faults.call(lambda _: prepared.append(attempt(second, b"second").prepare()), "swap")
    with pytest.raises(ConflictError, match="another writer took over"):
        mine.commit()
    assert world.pointer().writer.epoch == 2
    prepared[0].commit()
    assert latest(world.actor()) == b"second"


def test_a_takeover_that_arrives_late_makes_nobody_the_writer(world: World) -> None:
    line(world.actor(), 1)
    first, second = world.actor(), world.actor()
    late = first.faults.late(times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError):
        put(first, b"first")
    put(second, b"second")
    assert not any(swap.land() for swap in late)
    put(second, b"third")
    assert latest(world.actor()) == b"third"


def test_the_swaps_of_others_carry_the_writer_through(world: World) -> None:
    writer, other = world.actor(), world.actor()
    ids = line(writer, 4)
    before = world.pointer().writer
    other.savepoint("s")
    other.delete_checkpoint(ids[1])
    other.delete_savepoint("s")
    assert world.pointer().writer == before
    put(writer, b"5")
    assert world.pointer().writer == before


def test_savepoint_and_delete_do_not_fence_the_running_writer(world: World) -> None:
    writer = world.actor()
    ids = line(writer, 3)
    running = attempt(writer, b"4")
    world.actor().savepoint("s", ids[1])
    world.actor().delete_checkpoint(ids[0])
    running.commit()
    assert latest(world.actor()) == b"4"
    assert world.actor().list_checkpoints() == [*ids[1:], running.id]


@pytest.mark.parametrize("verb", ["commit", "prepare", "rollback", "update_latest"])
def test_what_writes_takes_over(world: World, verb: str) -> None:
    old, new = world.actor(), world.actor()
    (first,) = line(old, 1)
    new.restore()
    match verb:
        case "commit":
            put(new, b"new")
        case "prepare":
            attempt(new, b"new").prepare().commit()
        case "rollback":
            new.rollback(first)
        case "update_latest":
            hand_made(new, b"new")
    assert world.pointer().writer.epoch == 2
    with pytest.raises(FencedError):
        put(old, b"zombie")
    assert world.pointer().committed.id.sequence == 2


def test_an_abort_takes_over_too(world: World) -> None:
    old, new = world.actor(), world.actor()
    line(old, 1)
    prepared = attempt(old, b"2").prepare()
    new.restore().prepared.abort()
    assert world.pointer().writer.epoch == 2
    with pytest.raises(FencedError):
        prepared.commit()
    put(new, b"another 2")
    assert latest(world.actor()) == b"another 2"


def hand_made(client: Actor, value: bytes) -> None:
    """A commit through the verbs that write one object each."""
    base = client.restore().manifest
    attempt_id = client.new_id()
    artifact = client.save_snapshot(attempt_id, "op", 0, value)
    operator = replace(base.operators["op"], chains={0: (artifact,)})
    client.save_manifest(Manifest(attempt_id, parent=client.session.restored.parent, operators={"op": operator}))
    client.update_latest(attempt_id)


def test_a_fenced_writer_stays_fenced(world: World) -> None:
    zombie = world.actor()
    (first,) = line(zombie, 1)
    running = attempt(zombie, b"zombie")
    put(world.actor(), b"2")
    with pytest.raises(FencedError):
        running.commit()
    assert latest(zombie) == b"2"  # it may still read
    for write in (
        lambda: put(zombie, b"again"),
        zombie.new_id,
        lambda: zombie.rollback(first),
        lambda: zombie.update_latest(first),
    ):
        with pytest.raises(FencedError):
            write()
    assert latest(world.actor()) == b"2"


def test_taking_over_on_another_version_than_the_restored_one_loses_no_update(world: World) -> None:
    first, second = world.actor(), world.actor()
    line(first, 1)
    assert latest(second) == b"1"
    put(first, b"2")
    with pytest.raises(ConflictError) as raised:
        put(second, b"computed from 1")
    assert not isinstance(raised.value, FencedError)
    with pytest.raises(InvalidStateError, match="restore"):
        second.begin()
    assert latest(second) == b"2"
    put(second, b"3")
    assert latest(world.actor()) == b"3"


# ---- swaps that do not answer ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", range(1, MAX_SENDS))
def test_a_commit_whose_answers_are_lost_finds_its_own_nonce(world: World, lost: int) -> None:
    writer = world.actor()
    line(writer, 1)
    writer.faults.drop_answer(times=lost)
    put(writer, b"2")
    put(writer, b"3")
    assert latest(world.actor()) == b"3"
    assert len(world.actor().list_checkpoints()) == 3


def test_a_swap_that_changed_nothing_is_sent_again_as_it_was(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    late = writer.faults.late(times=MAX_SENDS - 1)
    writer.faults.forget()
    put(writer, b"2")
    assert latest(world.actor()) == b"2"
    assert len({request.data for request in writer.faults.requests if request.kind == "swap"}) == 1
    assert not any(swap.land() for swap in late)


def test_of_two_sends_of_one_swap_it_does_not_matter_which_lands(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    late = writer.faults.late()
    writer.faults.call(lambda _: late[0].land(), "swap", 2)  # the first arrives just before the second
    put(writer, b"2")
    put(writer, b"3")
    assert latest(world.actor()) == b"3"


def test_an_unchanged_version_is_no_failure_and_the_swap_may_land_later(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    late = writer.faults.late(times=MAX_SENDS)
    running = attempt(writer, b"2")
    with pytest.raises(OutcomeUnknownError):
        running.commit()
    with pytest.raises(InvalidStateError, match="restore"):
        writer.begin()  # never on to another attempt
    assert late[0].land()
    assert latest(writer) == b"2"
    put(writer, b"3")
    assert latest(world.actor()) == b"3"


def test_nothing_that_went_before_is_lost_when_the_unanswered_swap_lands_after_a_restore(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    late = writer.faults.late(times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError):
        put(writer, b"2")
    assert latest(writer) == b"1"
    running = attempt(writer, b"computed from 1")
    assert late[0].land()
    with pytest.raises(ConflictError, match="restore"):
        running.commit()
    with pytest.raises(InvalidStateError, match="restore"):
        writer.begin()
    assert latest(writer) == b"2"
    put(writer, b"3")
    assert latest(world.actor()) == b"3"


def test_an_error_after_an_unanswered_send_is_unknown_too(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    late = writer.faults.late()
    writer.faults.fail("swap", 2, error=StoreRefusedError)
    with pytest.raises(OutcomeUnknownError):
        put(writer, b"2")
    assert late[0].land()
    assert latest(writer) == b"2"


def test_an_error_of_a_first_send_is_passed_on_and_nothing_was_sent(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    writer.faults.fail("swap", error=StoreRefusedError)
    with pytest.raises(StoreRefusedError, match="failed by the test"):
        put(writer, b"2")
    assert latest(world.actor()) == b"1"


def test_a_swap_that_cannot_be_read_back_is_unknown(world: World) -> None:
    writer = world.actor(retries=False)
    line(writer, 1)
    writer.faults.drop_answer()
    writer.faults.fail("get", path="_latest")
    with pytest.raises(OutcomeUnknownError):
        put(writer, b"2")
    assert latest(writer) == b"2"


@pytest.mark.parametrize("error", [IllegalArgumentError, CheckpointError, NotFoundError])
def test_a_read_back_that_fails_in_any_way_proves_nothing(world: World, error: type[Exception]) -> None:
    """A gateway may answer without a version, or a refresh of credentials fail: the swap was sent all the same."""
    writer = world.actor(retries=False)
    line(writer, 1)
    late = writer.faults.late()
    writer.faults.fail("get", path="_latest", error=error)
    with pytest.raises(OutcomeUnknownError):
        put(writer, b"2")
    assert late[0].land()
    assert latest(writer) == b"2"


@pytest.mark.parametrize("odd", [IllegalArgumentError, ConflictError, InvalidStateError])
def test_a_read_back_that_fails_oddly_proves_no_failure(world: World, odd: type[CheckpointError]) -> None:
    """Leave it unknown, as where a proxy answers with a page of its own: a store takes that for a wrong argument."""
    writer = world.actor()
    line(writer, 1)
    late = writer.faults.late()
    writer.faults.fail("get", path="_latest", error=odd)
    running = attempt(writer, b"2")
    with pytest.raises(OutcomeUnknownError):
        running.commit()
    with pytest.raises(InvalidStateError, match="restore"):
        writer.begin()
    assert late[0].land()
    assert latest(writer) == b"2"


# ---- the version has changed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["commit", "prepare", "promote", "abort", "rollback"])
def test_retention_and_savepoints_in_between_are_carried_on(world: World, verb: str) -> None:
    writer = world.actor()
    ids = line(writer, 4)

    def others(_: object) -> None:
        world.actor().savepoint("s", ids[0])
        world.actor().delete_checkpoint(ids[1])

    running = attempt(writer, b"5")
    prepared = running.prepare() if verb in ("promote", "abort") else None
    writer.faults.call(others, "swap")
    match verb:
        case "commit":
            running.commit()
        case "prepare":
            running.prepare().commit()
        case "promote":
            prepared.commit()
        case "abort":
            prepared.abort()
        case "rollback":
            writer.rollback(ids[2])
    reader = world.actor()
    assert [savepoint.id for savepoint in reader.savepoints()] == [ids[0]]
    assert world.pointer().boundary == 3
    assert reader.list_checkpoints()[:3] == [ids[0], ids[2], ids[3]]
    assert latest(reader) == {"abort": b"4", "rollback": b"3"}.get(verb, b"5")


@pytest.mark.parametrize("rounds", [1, pointer_swaps.ROUNDS])
def test_a_commit_whose_answer_was_lost_is_found_under_a_later_savepoint(
    world: World, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """Also after the last round: the swap landed, and the savepoint took its place."""
    monkeypatch.setattr(pointer_swaps, "ROUNDS", rounds)
    writer = world.actor()
    line(writer, 1)
    writer.faults.drop_answer()
    writer.faults.call(lambda _: world.actor().savepoint("s"), "get", path="_latest")
    put(writer, b"2")
    put(writer, b"3")
    assert latest(world.actor()) == b"3"


def test_after_the_last_round_a_swap_that_did_not_land_is_a_conflict(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = world.actor()
    line(writer, 1)
    running = attempt(writer, b"2")
    monkeypatch.setattr(pointer_swaps, "ROUNDS", 1)
    writer.faults.call(lambda _: world.actor().savepoint("s"), "swap")
    with pytest.raises(ConflictError, match="1 times in a row: try again later"):
        running.commit()
    assert latest(world.actor()) == b"1"
    writer.restore()
    put(writer, b"3")
    assert latest(world.actor()) == b"3"


@pytest.mark.parametrize("others", [1, 2, 6])
def test_a_commit_whose_answer_was_lost_is_found_on_the_chain(world: World, others: int) -> None:
    writer, other = world.actor(), world.actor()
    line(writer, 1)
    writer.faults.drop_answer()
    writer.faults.call(
        lambda _: [put(other, f"other {number}".encode()) for number in range(others)], "get", path="_latest"
    )
    mine = put(writer, b"2")  # no error: it was committed
    assert mine in world.actor().list_checkpoints()
    with pytest.raises(FencedError):
        put(writer, b"zombie")
    assert latest(world.actor()) == f"other {others - 1}".encode()


def test_a_takeover_that_was_committed_and_overtaken_has_to_restore(world: World) -> None:
    writer, other = world.actor(), world.actor()
    line(world.actor(), 1)
    writer.restore()
    writer.faults.drop_answer()
    writer.faults.call(lambda _: put(other, b"3"), "get", path="_latest")
    put(writer, b"2")  # no error: it was committed
    with pytest.raises(CheckpointError):
        put(writer, b"computed from 2")
    assert latest(world.actor()) == b"3"
    assert len(world.contents()) == 3


def test_a_commit_whose_answer_was_lost_is_found_in_the_catalog(world: World) -> None:
    writer, other = world.actor(), world.actor()
    line(writer, 1)

    def others(_: object) -> None:
        ids = [put(other, f"other {number}".encode()) for number in range(3)]
        other.delete_checkpoint(ids[1])

    writer.faults.drop_answer()
    writer.faults.call(others, "get", path="_latest")
    mine = put(writer, b"2")
    assert mine.sequence < world.pointer().boundary
    assert mine in world.actor().list_checkpoints()


def test_a_commit_whose_answer_was_lost_is_found_as_the_parent_of_the_oldest(world: World) -> None:
    writer, other = world.actor(), world.actor()
    (first,) = line(writer, 1)
    mine = attempt(writer, b"2")

    def others(_: object) -> None:
        put(other, b"3")
        other.delete_checkpoint(mine.id)
        other.delete_checkpoint(first)

    writer.faults.drop_answer()
    writer.faults.call(others, "get", path="_latest")
    assert mine.commit() == mine.id
    assert mine.id not in world.actor().list_checkpoints()


def test_another_checkpoint_at_its_sequence_fences_a_writer(world: World) -> None:
    writer, other = world.actor(), world.actor()
    line(writer, 1)
    running = attempt(writer, b"mine")
    put(other, b"its")
    put(other, b"3")
    with pytest.raises(FencedError, match="not committed"):
        running.commit()
    assert latest(world.actor()) == b"3"
    with pytest.raises(CheckpointNotFoundError):
        world.actor().restore(running.id)


def test_a_store_that_will_not_tell_what_became_of_a_commit_leaves_it_as_it_is(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    cp = attempt(writer, b"2")
    writer.faults.drop_answer()
    writer.faults.fail("get", path="_latest", error=StoreRefusedError)
    with pytest.raises(OutcomeUnknownError):
        cp.commit()
    assert latest(world.actor()) == b"2", "all of it is there"


def test_a_store_that_will_not_show_the_history_leaves_a_commit_as_it_is(world: World) -> None:
    writer, other = world.actor(), world.actor()
    line(writer, 1)
    cp = attempt(writer, b"2")

    def build_on_it(_: object) -> None:
        other.restore()
        with other.begin() as more:
            more.snapshot("another", 0, b"3")

    writer.faults.drop_answer()
    writer.faults.call(build_on_it, "get", path="_latest")
    writer.faults.fail("get", path="manifests/", times=100, error=StoreRefusedError)
    with pytest.raises(OutcomeUnknownError):
        cp.commit()
    assert latest(world.actor()) == b"2", "all of it is there"
    assert world.actor().verify()


@pytest.mark.parametrize("odd", [IllegalArgumentError, InvalidStateError])
def test_a_history_that_cannot_be_read_for_an_odd_reason_leaves_a_commit_as_it_is(
    world: World, odd: type[CheckpointError]
) -> None:
    writer, other = world.actor(), world.actor()
    line(writer, 1)
    cp = attempt(writer, b"2")
    writer.faults.drop_answer()
    writer.faults.call(lambda _: put(other, b"3"), "get", path="_latest")
    writer.faults.fail("get", path="manifests/", times=100, error=odd)
    with pytest.raises(OutcomeUnknownError):
        cp.commit()
    assert cp.id in world.actor().list_checkpoints()


@pytest.mark.parametrize("odd", [DependencyError, IllegalArgumentError])
@pytest.mark.parametrize("missing", ["_latest", "manifest"])
def test_a_pointer_that_cannot_be_read_again_proves_no_failure(
    world: World, missing: str, odd: type[CheckpointError]
) -> None:
    """The swap landed, and `_latest` or what it leads to was gone for a moment after it."""
    writer, other = world.actor(retries=False), world.actor()
    line(writer, 1)
    cp = attempt(writer, b"2")
    writer.faults.drop_answer()
    if missing == "_latest":
        writer.faults.fail("get", path="_latest", error=ObjectNotFoundError)
    else:
        writer.faults.call(lambda _: put(other, b"3"), "get", path="_latest")
        writer.faults.fail("get", path="manifests/", error=ObjectNotFoundError)
    writer.faults.fail("get", nth=2, path="_latest", error=odd)
    with pytest.raises(OutcomeUnknownError):
        cp.commit()
    assert cp.id in world.actor().list_checkpoints()


@pytest.mark.parametrize("gone", [StoreRefusedError, StoreNotFoundError])
@pytest.mark.parametrize("verb", ["savepoint", "delete_checkpoint", "clean"])
def test_a_store_that_will_not_show_the_history_proves_no_failure_of_any_swap(
    world: World, verb: str, gone: type[CheckpointError]
) -> None:
    client, other = world.actor(), world.actor()
    ids = line(client, 3)

    def move_on_and_tell_nothing(_: object) -> None:
        other.savepoint("another", ids[1])
        client.faults.fail("get", times=100, nth=2, error=gone)  # but for the one that shows that it moved

    client.faults.drop_answer()
    client.faults.call(move_on_and_tell_nothing, "swap", after=True)
    do = {
        "savepoint": lambda: client.savepoint("mine", ids[0]),
        "delete_checkpoint": lambda: client.delete_checkpoint(ids[0]),
        "clean": lambda: client.clean(RetentionPolicy(keep_last=2)),
    }
    with pytest.raises(OutcomeUnknownError):
        do[verb]()


@pytest.mark.parametrize("how", ["commit", "promote"])
@pytest.mark.parametrize("bit", [9, 40, 170])
def test_a_read_back_with_a_wrong_bit_proves_nothing(
    world: World, how: str, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    writer = world.actor()
    line(writer, 1)
    cp = attempt(writer, b"2")
    commit = cp.commit if how == "commit" else cp.prepare().commit
    writer.faults.drop_answer()
    writer.faults.flip("get", path="_latest", bit=bit)
    with pytest.raises(OutcomeUnknownError):
        commit()
    assert "was not committed" not in caplog.text
    with pytest.raises(InvalidStateError, match="restore"):
        writer.begin()
    assert latest(world.actor()) == b"2"


def test_what_a_disk_has_not_confirmed_is_written_again(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    cp = attempt(writer, b"2")
    writer.faults.forget()
    writer.faults.fail("swap", after=True, error=OutcomeUnknownError)
    cp.commit()
    assert writer.faults.counts["swap"] == 2
    assert latest(world.actor()) == b"2"


def test_below_the_history_an_outcome_is_unknown_and_never_a_failure(world: World) -> None:
    writer, other = world.actor(), world.actor()
    (first,) = line(writer, 1)
    running = attempt(writer, b"mine")
    ids = [put(other, f"its {number}".encode()) for number in range(4)]
    for gone in (ids[2], ids[1], ids[0], first):
        other.delete_checkpoint(gone)
    with pytest.raises(OutcomeUnknownError, match=str(running.id)):
        running.commit()
    assert latest(world.actor()) == b"its 3"
    with pytest.raises(InvalidStateError, match="restore"):
        put(writer, b"again")


def test_two_attempts_of_one_session_cannot_both_be_committed(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    one, two = attempt(writer, b"one"), attempt(writer, b"two")
    assert one.id != two.id
    one.commit()
    with pytest.raises(InvalidStateError, match="begin another"):
        two.commit()
    put(writer, b"3")
    assert latest(world.actor()) == b"3"


@pytest.mark.parametrize("two_phases", [False, True])
def test_who_took_over_and_since_when_is_said(world: World, two_phases: bool) -> None:
    """The number of a writer is not called an epoch: that is the number of a batch."""
    old, new = world.actor(), world.actor()
    line(old, 1)
    new.restore()
    attempt_by = new.begin_batch(41, Job("query-7", "run-8", 41, "4711@worker-9/abc"))
    attempt_by.snapshot("op", 0, b"new")
    if two_phases:
        attempt_by.prepare()
    else:
        attempt_by.commit()
    with pytest.raises(FencedError) as raised:
        put(old, b"old")
    said = str(raised.value)
    assert (
        "another writer has taken over, writer 2 (query query-7, run run-8, process 4711 on worker-9, since 20" in said
    )
    assert "at the latest)" in said
    assert "epoch" not in said


@pytest.mark.parametrize("kind", ["first", "by hand", "overtaken"])
def test_every_loser_is_told_who_took_over_and_since_when(world: World, kind: str) -> None:
    """Also one that has committed nothing yet, one that lost to a program that is no query, and one that won before."""
    old, new = world.actor(), world.actor()
    mine = Job("query-7", "run-8", 41, "4711@worker-9/abc")
    start = old.begin_batch(41, mine)
    start.snapshot("op", 0, b"1")
    start.commit()
    if kind == "first":
        old = world.actor()
        old.restore()
    new.restore()
    late = old.begin_batch(42, replace(mine, batch_id=42))
    late.snapshot("op", 0, b"2")

    def take_over(_: object = None) -> None:
        new.restore()
        theirs = new.begin_batch(42, Job("query-1", "run-2", 42, "12@worker-3/abc")) if kind == "first" else new.begin()
        theirs.snapshot("op", 0, b"new")
        theirs.commit()

    if kind == "overtaken":  # between the swap of the old one and the reading that tells what became of it
        old.faults.drop_answer("swap")
        old.faults.call(take_over, "get", path="_latest")
        late.commit()
        with pytest.raises(CheckpointError) as raised:
            put(old, b"3")
    else:
        take_over()
        with pytest.raises(ConflictError) as raised:
            late.commit()
    who = "query query-1, run run-2, process 12 on worker-3" if kind == "first" else "no streaming query"
    assert f", writer 2 ({who}, since 20" in str(raised.value)
    assert "forked" not in str(raised.value)


def test_a_rollback_by_hand_is_not_taken_for_the_query_whose_batch_it_brings_back(world: World) -> None:
    old = world.actor()
    for batch_id in range(2):
        cp = old.begin_batch(batch_id, Job("query-7", "run-8", batch_id, "4711@worker-9/abc"))
        cp.snapshot("op", 0, b"x")
        cp.commit()
    world.actor().rollback(to=old.list_checkpoints()[0])
    with pytest.raises(FencedError, match=r"writer 2 \(no streaming query, since 20"):
        put(old, b"late")


def test_who_took_over_is_left_out_where_it_cannot_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(manifest: Manifest, job: Job | None) -> str:
        raise DependencyError("planted")

    monkeypatch.setattr(fencing, "_show", fail)
    old, new = world.actor(), world.actor()
    line(old, 1)
    new.restore()
    put(new, b"new")
    with pytest.raises(FencedError, match="another writer has taken over, writer 2, and 0000000002"):
        put(old, b"old")


def test_a_pointer_that_nobody_could_read_is_not_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.actor()
    put(client, b"1")
    before = world.latest()
    monkeypatch.setattr(pointer_swaps, "MAX_POINTER", len(before))
    with pytest.raises(InvalidStateError, match=r"_latest would have \d+ bytes, and at most \d+ can be read"):
        attempt(client, b"2").prepare()
    assert world.latest() == before
    put(world.actor(), b"3")
    assert latest(world.actor()) == b"3"
