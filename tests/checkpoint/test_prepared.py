"""Checkpoints that are prepared, and then committed or aborted by whoever finds them.

Each test is one history of the protocol, as in `test_swaps.py`.
"""

import asyncio
import copy
from collections.abc import Callable
from functools import partial

import pytest

from pyspark_checkpointer import AsyncCheckpointer, KeyedState
from pyspark_checkpointer.client._async_checkpoint import AsyncPrepared
from pyspark_checkpointer.client._sync_checkpoint import Prepared
from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    FencedError,
    InvalidStateError,
    OutcomeUnknownError,
    SwapNotSentError,
)
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from tests.world import Actor, World, attempt, got, latest, line, put


def test_an_abort_kills_a_prepare_that_is_still_under_way(folder: World) -> None:
    # In a folder the version of an object is the digest of its bytes: what was written before could come back.
    writer = folder.actor()
    line(writer, 1)
    late = writer.faults.late(times=MAX_SENDS)
    running = attempt(writer, b"2")
    with pytest.raises(OutcomeUnknownError):
        running.prepare()
    running.abort()
    assert len(late) == MAX_SENDS
    assert not any(swap.land() for swap in late)
    assert folder.actor().restore().prepared is None
    writer.restore()
    put(writer, b"another 2")
    assert latest(folder.actor()) == b"another 2"


def test_every_swap_writes_a_value_never_seen_before(folder: World) -> None:
    seen = []
    for _ in range(3):
        writer = folder.actor()
        writer.restore()
        put(writer, b"same")
        seen.append(folder.latest())
        for _ in range(2):
            running = attempt(writer, b"2")
            running.prepare().abort()
            seen.append(folder.latest())
        folder.actor().savepoint("s")
        seen.append(folder.latest())
        folder.actor().delete_savepoint("s")
        seen.append(folder.latest())
    assert len(set(seen)) == len(seen)


def test_an_abort_that_has_nothing_to_clear_swaps_all_the_same(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    prepared = attempt(writer, b"2").prepare()
    writer.restore().prepared.abort()
    before = world.latest()
    prepared.abort()
    assert world.latest() != before
    before = world.latest()
    prepared.abort()  # this one knows that it is decided
    assert world.latest() == before
    with pytest.raises(InvalidStateError, match="aborted"):
        prepared.commit()


def test_a_prepared_checkpoint_is_promoted_by_one_swap(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    prepared = attempt(writer, b"2").prepare()
    writer.faults.forget()
    prepared.commit()
    assert writer.faults.counts == {"swap": 1}
    prepared.commit()  # again is no error
    assert latest(world.actor()) == b"2"


@pytest.mark.parametrize("decision", ["commit", "abort"])
def test_a_restart_is_handed_the_prepared_checkpoint_and_decides(world: World, decision: str) -> None:
    crashed = world.actor()
    line(crashed, 1)
    attempt(crashed, b"2").prepare()
    heir = world.actor()
    restored = heir.restore()
    assert got(restored) == b"1"
    getattr(restored.prepared, decision)()
    assert latest(world.actor()) == (b"2" if decision == "commit" else b"1")
    put(heir, b"3")
    assert latest(world.actor()) == b"3"


def test_a_first_checkpoint_can_be_prepared_on_an_empty_root(world: World) -> None:
    attempt(world.actor(), b"1").prepare()
    heir = world.actor()
    restored = heir.restore()
    assert (restored.id, restored.operators, restored.positions) == (None, [], {})
    assert heir.read_latest() is None
    assert heir.list_checkpoints() == []
    restored.prepared.commit()
    assert latest(world.actor()) == b"1"


def test_what_somebody_else_prepared_must_be_decided_before_the_next_attempt(world: World) -> None:
    attempt(world.actor(), b"1").prepare()
    heir = world.actor()
    with pytest.raises(InvalidStateError, match="prepared"):
        heir.begin()
    restored = heir.restore()
    with pytest.raises(InvalidStateError, match="prepared"):
        heir.begin()
    restored.prepared.abort()
    put(heir, b"another 1")
    assert latest(world.actor()) == b"another 1"


@pytest.mark.parametrize("second", ["commit", "prepare"])
def test_an_attempt_begun_before_another_was_prepared_does_not_push_it_aside(world: World, second: str) -> None:
    writer = world.actor()
    line(writer, 1)
    one, two = attempt(writer, b"one"), attempt(writer, b"two")
    prepared = one.prepare()
    with pytest.raises(InvalidStateError, match="prepared"):
        getattr(two, second)()
    prepared.commit()
    assert latest(world.actor()) == b"one"


def test_a_prepared_checkpoint_that_was_dropped_cannot_be_committed(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    prepared = attempt(writer, b"2").prepare()
    writer.restore().prepared.abort()
    with pytest.raises(ConflictError, match="no longer prepared"):
        prepared.commit()
    assert latest(world.actor()) == b"1"


@pytest.mark.parametrize("who", ["the writer itself", "another"])
def test_a_promotion_never_lands_on_top_of_a_rollback_that_cleared_it(world: World, who: str) -> None:
    writer = world.actor()
    (first, _) = line(writer, 2)
    prepared = attempt(writer, b"3").prepare()
    if who == "another":
        # Between the promotion's plan and its swap, which is refused and planned again.
        writer.faults.call(lambda _: world.actor().rollback(first), "swap")
    else:
        writer.rollback(first)
    with pytest.raises(CheckpointError) as raised:
        prepared.commit()
    assert not isinstance(raised.value, OutcomeUnknownError)
    assert latest(world.actor()) == b"1"
    assert world.pointer().prepared is None


def test_a_promotion_that_was_taken_over_after_it_landed_is_a_success(world: World) -> None:
    writer, other = world.actor(), world.actor()
    line(writer, 1)
    prepared = attempt(writer, b"2").prepare()
    writer.faults.call(lambda _: put(other, b"3"), "get", path="_latest")
    writer.faults.drop_answer()
    prepared.commit()
    assert latest(world.actor()) == b"3"


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_second_handle_of_what_was_committed_stops_nobody(world: World, commits: int) -> None:
    attempt(world.actor(), b"1").prepare()
    writer = world.actor()
    one, two = writer.restore().prepared, writer.restore().prepared
    one.commit()
    for number in range(commits):
        put(writer, b"%d" % (number + 2))
    two.commit()
    put(writer, b"last")
    assert latest(world.actor()) == b"last"
    assert len(writer.list_checkpoints()) == commits + 2


def test_a_second_handle_of_what_was_committed_gives_no_migration_up(world: World) -> None:
    attempt(world.actor(), b"1").prepare()
    writer = world.actor()
    one, two = writer.restore().prepared, writer.restore().prepared
    one.commit()
    writer.restore(rename={"op": "renamed"})
    two.commit()
    with writer.begin():
        pass
    assert world.actor().restore().operators == ["renamed"]


@pytest.mark.parametrize("commits", [0, 1])
def test_a_second_handle_of_what_was_committed_does_not_let_a_session_write_that_may_only_view(
    world: World, commits: int
) -> None:
    (first,) = line(world.actor(), 1)
    attempt(world.actor(), b"2").prepare()
    writer = world.actor()
    one, two = writer.restore().prepared, writer.restore().prepared
    one.commit()
    for number in range(commits):
        put(writer, b"%d" % (number + 3))
    assert got(writer.restore(first)) == b"1"
    two.commit()
    with pytest.raises(InvalidStateError, match="is not the committed checkpoint"):
        writer.begin()
    writer.rollback(first)
    assert latest(world.actor()) == b"1"


def test_a_prepare_does_not_let_a_session_write_that_may_only_view(world: World) -> None:
    writer = world.actor()
    (first, _) = line(writer, 2)
    running = attempt(writer, b"3")
    assert got(writer.restore(first)) == b"1"
    prepared = running.prepare()
    prepared.abort()
    with pytest.raises(InvalidStateError, match="is not the committed checkpoint"):
        writer.begin()
    assert latest(writer) == b"2"


@pytest.mark.parametrize("how", ["commit", "promote"])
def test_an_attempt_from_before_an_older_checkpoint_was_viewed_is_committed(world: World, how: str) -> None:
    writer = world.actor()
    (first, _) = line(writer, 2)
    running = attempt(writer, b"3")
    assert got(writer.restore(first)) == b"1"
    if how == "commit":
        running.commit()
    else:
        running.prepare().commit()
    assert latest(world.actor()) == b"3"
    put(writer, b"4")
    assert latest(world.actor()) == b"4"


def test_an_abort_after_the_commit_is_refused(world: World) -> None:
    writer = world.actor()
    prepared = attempt(writer, b"1").prepare()
    prepared.commit()
    with pytest.raises(InvalidStateError, match="committed already"):
        prepared.abort()
    assert latest(world.actor()) == b"1"


def test_an_abort_of_what_another_promoted_and_built_upon_is_refused(world: World) -> None:
    writer, other = world.actor(), world.actor()
    line(writer, 1)
    prepared = attempt(writer, b"2").prepare()
    other.restore().prepared.commit()
    put(other, b"3")
    with pytest.raises(InvalidStateError, match="committed already"):
        prepared.abort()
    assert prepared.id in world.actor().list_checkpoints()


def test_an_abort_does_not_let_a_session_write_that_may_only_view(world: World) -> None:
    ids = line(world.actor(), 2)
    attempt(world.actor(), b"3").prepare()
    writer = world.actor()
    prepared = writer.restore().prepared
    assert got(writer.restore(ids[0])) == b"1"
    prepared.abort()
    with pytest.raises(InvalidStateError, match="is not the committed checkpoint"):
        writer.begin()
    assert latest(writer) == b"2"
    put(writer, b"another 3")
    assert latest(world.actor()) == b"another 3"


def test_an_old_handle_drops_no_newer_prepared_checkpoint(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    old = attempt(writer, b"old").prepare()
    writer.restore().prepared.abort()
    new = attempt(writer, b"new").prepare()
    with pytest.raises(ConflictError, match="another checkpoint is prepared"):
        old.abort()
    assert world.pointer().prepared.id == new.id
    world.actor().restore().prepared.commit()
    assert latest(world.actor()) == b"new"


def prepared_and_overtaken(world: World, more: bool) -> tuple[Actor, Prepared]:
    """Who prepared, was not answered, and finds it promoted by another, with or without `more` on top."""
    client, other = world.actor(retries=False), world.actor()
    line(client, 1)
    cp = attempt(client, b"2")
    client.faults.drop_answer("swap")

    def promote(_: object) -> None:
        restored = other.restore()
        assert restored is not None
        assert restored.prepared is not None
        restored.prepared.commit()
        if more:
            put(other, b"3")

    client.faults.call(promote, "get", path="_latest")
    return client, cp.prepare()


@pytest.mark.parametrize("more", [False, True])
def test_who_prepared_what_another_promoted_commits_nothing_before_it_was_restored(world: World, more: bool) -> None:
    client, prepared = prepared_and_overtaken(world, more)
    before = world.latest()
    with pytest.raises((FencedError, InvalidStateError)):
        put(client, b"a lost update")
    with pytest.raises(InvalidStateError, match="was committed already"):
        prepared.abort()
    assert world.latest() == before, "and nobody was fenced"
    assert latest(world.actor()) == (b"3" if more else b"2")


@pytest.mark.parametrize("more", [False, True])
def test_who_prepared_what_another_promoted_is_told_that_it_is_committed(world: World, more: bool) -> None:
    client, prepared = prepared_and_overtaken(world, more)
    prepared.commit()
    with pytest.raises((FencedError, InvalidStateError)):
        put(client, b"a lost update")
    assert latest(world.actor()) == (b"3" if more else b"2")


# ---- a block that ends after prepare() -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_raises_leaves_what_prepare_returned_to_be_decided(
    world: World, error: type[BaseException]
) -> None:
    """The other system may have committed by then."""
    writer = world.actor()
    line(writer, 1)
    with pytest.raises(error), writer.begin() as cp:
        cp.snapshot("op", 0, b"2")
        prepared = cp.prepare()
        raise error
    restored = world.actor().restore()
    assert (got(restored), restored.prepared.id) == (b"1", cp.id)
    prepared.commit()
    assert latest(world.actor()) == b"2"
    put(writer, b"3")
    assert latest(world.actor()) == b"3"


@pytest.mark.parametrize("moment", ["before commit()", "in commit()"])
def test_a_cancelled_block_leaves_what_prepare_returned_to_be_decided(world: World, moment: str) -> None:
    async def work() -> None:
        client, held = AsyncCheckpointer(world.store.url), list[AsyncPrepared]()

        async def job() -> None:
            async with client.begin() as cp:
                await cp.snapshot("op", 0, b"1")
                held.append(await cp.prepare())
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                if moment == "before commit()":
                    await asyncio.sleep(60)  # the answer of the other system is late
                await held[0].commit()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.ensure_future(job())
        if moment == "before commit()":
            restored = await AsyncCheckpointer(world.store.url).restore()
            assert restored is not None
            assert restored.prepared is not None
            assert restored.prepared.id == held[0].id
        await held[0].commit()

    asyncio.run(work())
    assert latest(world.actor()) == b"1"


def test_a_second_phase_that_failed_in_its_block_is_tried_again(world: World) -> None:
    writer, state = world.actor(retries=False), KeyedState({"a": 1})
    writer.faults.fail("swap", nth=2, path="_latest", error=SwapNotSentError)
    with pytest.raises(SwapNotSentError), writer.begin() as cp:
        cp.save("map", state)
        prepared = cp.prepare()
        prepared.commit()
    assert world.actor().restore().prepared.id == cp.id
    prepared.commit()
    state["b"] = 2
    with writer.begin() as cp:
        cp.save("map", state)
    assert dict(world.actor().restore().keyed("map")) == {"a": 1, "b": 2}


@pytest.mark.parametrize("landed", [True, False])
def test_a_second_phase_without_an_answer_is_not_taken_back_by_its_block(world: World, landed: bool) -> None:
    writer = world.actor()
    line(writer, 1)
    with pytest.raises(OutcomeUnknownError), writer.begin() as cp:
        cp.snapshot("op", 0, b"2")
        prepared = cp.prepare()
        if landed:
            writer.faults.drop_answer(times=MAX_SENDS)
        else:
            writer.faults.fail("swap", times=MAX_SENDS)
        writer.faults.fail("get", path="_latest", times=100)
        try:
            prepared.commit()
        finally:
            writer.faults.clear()
    restored = world.actor().restore()
    assert (got(restored), restored.prepared is None) == ((b"2", True) if landed else (b"1", False))
    prepared.commit()
    assert latest(world.actor()) == b"2"


@pytest.mark.parametrize("error", [SwapNotSentError, OutcomeUnknownError])
def test_a_block_whose_prepare_failed_leaves_nothing(world: World, error: type[Exception]) -> None:
    writer = world.actor(retries=False)
    line(writer, 1)
    before = world.pointer()
    if error is SwapNotSentError:
        writer.faults.fail("swap", error=SwapNotSentError)
    else:
        writer.faults.drop_answer()
        writer.faults.fail("get", path="_latest", times=MAX_SENDS)
    with pytest.raises(error), writer.begin() as cp:
        cp.snapshot("op", 0, b"2")
        try:
            cp.prepare()
        finally:
            writer.faults.clear()
    assert world.pointer().nonce != before.nonce, "a prepare that is still under way can never land"
    restored = world.actor().restore()
    assert (got(restored), restored.prepared) == (b"1", None)


def test_a_block_whose_prepare_was_cancelled_leaves_nothing(world: World) -> None:
    """Its caller was handed nothing, and asked no other system to commit."""
    client = AsyncCheckpointer(world.store.url)

    async def job() -> None:
        async with client.begin() as cp:
            await cp.snapshot("op", 0, b"1")
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await cp.prepare()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(job())
    assert world.actor().restore() is None


def prepare_map(writer: Actor) -> Prepared:
    """Commit a map, and prepare a newer state of it."""
    state = KeyedState({"ann": ["shop"]})
    with writer.begin(epoch=1) as running:
        running.save("seen", state)
    state["ann"] = ["shop", "basket"]
    running = writer.begin(epoch=2)
    running.save("seen", state)
    return running.prepare()


def refuse_to_save(writer: Actor, stale: KeyedState) -> None:
    stale["ann"] = ["older"]
    with writer.begin(epoch=3) as running:
        with pytest.raises(InvalidStateError, match=r"was committed since this was restored.*call restore"):
            running.save("seen", stale)
        running.keep("seen")
    assert writer.restore().keyed("seen") == {"ann": ["shop", "basket"]}


def test_what_was_read_before_a_prepared_checkpoint_was_committed_is_refused(world: World) -> None:
    """Saved after the commit, the map would overwrite what was prepared, and the positions lead to a second reading."""
    prepare_map(world.actor())
    restarted = world.actor()
    restored = restarted.restore()
    read_before = restored.keyed("seen")
    assert (restored.epoch, restored.positions, read_before) == (1, {}, {"ann": ["shop"]})
    assert restored.prepared is not None
    restored.prepared.commit()
    restored.prepared.commit()
    uses: list[Callable[[], object]] = [
        lambda: restored.keyed("seen"),
        lambda: restored.operator("seen"),
        lambda: restored.history("seen", "ann"),
        *(
            partial(getattr, restored, name)
            for name in ("id", "manifest", "epoch", "positions", "watermark", "operators")
        ),
    ]
    for use in uses:
        with pytest.raises(InvalidStateError, match=r"was committed since this was restored.*call restore"):
            use()
    assert "out of date" in repr(restored)
    assert "Out of date" in restored._repr_html_()
    refuse_to_save(restarted, read_before)


READ: dict[str, Callable[[Actor], KeyedState]] = {
    "as it is": lambda client: client.restore().keyed("seen"),
    "with other partitions": lambda client: client.restore().keyed("seen", partitions=3),
    "as a copy": lambda client: copy.deepcopy(client.restore().keyed("seen")),
    "by the epoch": lambda client: client.restore(epoch=1).keyed("seen"),
}


@pytest.mark.parametrize("how", READ)
def test_a_map_is_refused_however_it_was_read(world: World, how: str) -> None:
    prepare_map(world.actor())
    restarted = world.actor()
    stale = READ[how](restarted)
    prepared = restarted.restore().prepared
    assert prepared is not None
    prepared.commit()
    refuse_to_save(restarted, stale)


@pytest.mark.parametrize("by", ["the handle of prepare()", "another restore()", "update_latest()"])
def test_it_is_refused_whichever_handle_was_committed(world: World, by: str) -> None:
    writer = world.actor()
    prepared = prepare_map(writer)
    restored = writer.restore()
    stale = restored.keyed("seen")
    if by == "update_latest()":
        writer.update_latest(prepared.id)
    else:
        other = writer.restore().prepared if by == "another restore()" else prepared
        assert other is not None
        other.commit()
    with pytest.raises(InvalidStateError, match="was committed since this was restored"):
        _ = restored.epoch
    refuse_to_save(writer, stale)


def test_a_map_that_one_client_read_is_refused_by_the_client_that_committed(world: World) -> None:
    """As after a fork, where the child has the maps of its parent and a client of its own."""
    prepare_map(world.actor())
    one, another = world.actor(), world.actor()
    stale = one.restore().keyed("seen")
    prepared = another.restore().prepared
    assert prepared is not None
    prepared.commit()
    refuse_to_save(another, stale)


def test_who_only_reads_may_look_at_the_state_before_a_commit_of_others(world: World) -> None:
    writer, reader = world.actor(), world.actor()
    prepared = prepare_map(writer)
    before = reader.restore()
    stale = before.keyed("seen")
    prepared.commit()
    assert reader.restore().epoch == 2
    assert (before.epoch, before.operators, before.keyed("seen")) == (1, ["seen"], {"ann": ["shop"]})
    refuse_to_save(reader, stale)


def test_it_is_refused_once_a_restore_has_found_the_commit_whose_answer_was_lost(world: World) -> None:
    prepare_map(world.actor())
    restarted = world.actor()
    restored = restarted.restore()
    stale = restored.keyed("seen")
    assert restored.prepared is not None
    late = restarted.faults.late(times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError):
        restored.prepared.commit()
    assert any(swap.land() for swap in late)
    assert restarted.restore().epoch == 2
    refuse_to_save(restarted, stale)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_read_before_a_prepared_checkpoint_was_aborted_stays(world: World, when: str) -> None:
    """A change inside a value is found, as in any map."""
    prepare_map(world.actor())
    restarted = world.actor()
    restored = restarted.restore()
    state = restored.keyed("seen")
    if when == "before":
        state["ann"].append("home")
    assert restored.prepared is not None
    restored.prepared.abort()
    if when == "after":
        state["ann"].append("home")
    assert restored.epoch == 1
    with restarted.begin(epoch=2) as running:
        running.save("seen", state)
    assert world.actor().restore().keyed("seen") == {"ann": ["shop", "home"]}
