"""Entries that expire: what a state notes of them, whatever becomes of its saves."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.map_expiry import micros
from pyspark_checkpointer.manifests.model import DELTA, Clock
from tests.keyed.states import BULK, failing_save, filled, kinds, saved
from tests.manifests.samples import AT
from tests.world import World

NOW = micros(AT)


def save(client: Checkpointer, state: KeyedState, later: int = 0, *, fails: bool = False) -> None:
    """Save by a clock of so many microseconds after NOW."""
    with suppress(ZeroDivisionError), client.begin() as cp:
        cp.attempt.clock = Clock(AT + timedelta(microseconds=later), "job")
        cp.save("s", state)
        if fails:
            raise ZeroDivisionError


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("fails", [False, True])
def test_what_expired_stays_away_after_saves_that_failed(world: World, fails: bool) -> None:
    """A snapshot without it was captured and is in no checkpoint: the next rule must not bring it back by a delta."""
    client, state = world.actor(), filled()
    state.set_rule(5, NOW)
    save(client, state)
    # As many as expire and more than change below, or a snapshot would be written in any case.
    kept = {f"kept {n}": n for n in range(BULK)}
    state.update(kept)
    save(client, state, 4)
    state["new"] = 1
    state.expire(NOW + 8)
    assert {*state} == {*kept, "new"}
    state["big"] = "x" * 1_000_000
    if fails:
        save(client, state, 8, fails=True)  # of a snapshot
    del state["big"]
    if fails:
        save(client, state, 8)
        assert kinds(client) == ["snapshot", "delta", "delta"]
    state.set_rule(None, NOW + 8)
    save(client, state, 8)
    assert saved(world) == {**kept, "new": 1}


@pytest.mark.parametrize("has_times", [False, True])
def test_a_value_that_cannot_be_stored_is_told_and_not_forgotten(world: World, has_times: bool) -> None:
    client, state = world.actor(), KeyedState({"a": [1], "b": [2]}, partitions=1)
    if not has_times:
        save(client, state)
    state.set_rule(5, NOW)
    save(client, state)
    bad: Any = state["a"]
    bad.append(object())
    state.expire(NOW + 9)
    assert [*state] == ["a"]
    with pytest.raises(ValueError, match="key 'a'"):
        save(client, state, 9)
    bad.pop()
    save(client, state, 9)
    assert saved(world) == state.to_dict() == {}  # it is what it was, and that is past its time


def test_keys_that_are_equal_have_one_time(world: World) -> None:
    client, state = world.actor(), KeyedState({1: "int", (1, 2): "tuple"}, partitions=1)
    state.set_rule(50, NOW)
    save(client, state)
    state[1.0] = "int"
    state[(True, 2)] = "tuple"
    state.expire(NOW + 60)
    save(client, state, 60)
    assert saved(world) == {1: "int", (1, 2): "tuple"}


def test_a_copy_has_the_entries_and_no_rule(world: World) -> None:
    client, state = world.actor(), KeyedState({"a": 1})
    state.set_rule(5, NOW)
    other = state.__copy__()
    assert (other.to_dict(), other.expires, state.expires) == ({"a": 1}, False, True)
    save(client, other)
    assert saved(world) == {"a": 1}


def test_a_state_that_was_interrupted_keeps_its_times(world: World) -> None:
    """A copy of the content, as one that completes a change takes it."""
    state = KeyedState({"a": [1], "b": 2, "c": 3}, partitions=1)
    state.set_rule(50, NOW)
    save(world.actor(), state)  # all have the time NOW
    state["b"] = 2
    content = state._owner.last().content.copied()
    content.expire(NOW + 50)
    assert content.parts[0].listed().keys() == {"b"}
    state.expire(NOW + 49)
    assert len(state) == 3


def test_a_root_without_a_clock_refuses_entries_that_expire_and_loses_none(world: World) -> None:
    client, state = world.actor(), KeyedState({"a": [1]}, partitions=1)
    state.set_rule(50, NOW)
    held = state["a"]
    held.append(2)
    told = "operator 's': its entries expire, and this root has no clock"
    with pytest.raises(IllegalArgumentError, match=told), client.begin() as cp:
        cp.save("s", state)
    held.append(3)
    assert state["a"] is held
    save(client, state)
    assert saved(world) == {"a": [1, 2, 3]}


@pytest.mark.parametrize("how", ["expire", "a shorter rule", "a longer rule", "no rule", "a first rule"])
def test_what_a_save_that_failed_was_to_write_is_set_and_not_expired(world: World, how: str) -> None:
    """Memory and store have the same, whenever the state learns that the save failed."""
    client, state = world.actor(), filled()
    if how != "a first rule":
        state.set_rule(5, NOW)
    save(client, state)
    state["k"] = [1]
    failing_save(client, state)
    if how == "a first rule":
        state.set_rule(5, NOW)
        state.expire(NOW + 9)
    elif how == "expire":
        state.expire(NOW + 9)
    else:
        state.set_rule({"a shorter rule": 1, "a longer rule": 7}.get(how), NOW + 9)
    assert state["k"] == [1]
    assert len(state) == (1 if how != "no rule" else len(filled()) + 1)
    save(client, state, 9)
    assert saved(world) == state.to_dict()


def test_what_is_set_after_a_rollback_to_an_earlier_clock_expires_by_its_own_time(world: World) -> None:
    client, state = world.actor(), KeyedState({"a": 1}, partitions=1)
    state.set_rule(5, NOW)
    save(client, state)
    first = client.read_latest()
    assert first is not None
    state["b"] = 2
    save(client, state, 100)
    state.expire(NOW + 101)  # it looks at the times of all entries
    client.rollback(first)
    state["c"] = 3
    save(client, state, 1)
    assert saved(world) == state.to_dict() == {"b": 2, "c": 3}
    save(client, state, 50)
    assert saved(world) == state.to_dict() == {"b": 2}


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize("change", [False, True])
def test_what_expired_stays_away_after_a_rollback_to_an_earlier_clock(
    world: World, change: bool, is_restored: bool
) -> None:
    """The chain is the same as before the rollback, and by its clock the entry lives."""
    client, state = world.actor(), KeyedState({"a": "x" * 10_000}, partitions=1)
    state.set_rule(5, NOW)
    save(client, state)
    kept: dict[Any, Any] = dict.fromkeys(range(4), "x" * 10_000)
    state.update(kept)
    save(client, state, 4)
    before = client.restore()
    assert before is not None
    assert before.id is not None
    save(client, state, 8)
    if is_restored:
        client = world.actor()
        restored = client.restore()
        assert restored is not None
        state = restored.keyed("s")
    assert {*state} == {*kept}
    client.rollback(before.id)
    if change:
        state["new"] = 1
        kept["new"] = 1
    save(client, state, 4)
    assert saved(world) == kept == state.to_dict()
    state["newer"] = 2
    save(client, state, 4)
    assert kinds(client) == ["snapshot", "delta"], "one snapshot is enough"
    assert saved(world) == state.to_dict()


BERLIN = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
FOLDED = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (BERLIN, BERLIN.astimezone(UTC)),
        (BERLIN.astimezone(UTC), BERLIN),
        (BERLIN, BERLIN.astimezone(ZoneInfo("Europe/Paris"))),
        (FOLDED, FOLDED.replace(fold=1)),
        ((BERLIN, "a"), (BERLIN.astimezone(UTC), "a")),
    ],
)
def test_a_key_equal_to_a_zoned_one_that_expired_can_be_read(
    world: World, old: Any, new: Any, is_restored: bool
) -> None:
    """The chain still has the expired key. A delta with the new one would have two keys for a reader."""
    client, state = world.actor(), KeyedState(partitions=1)
    state.set_rule(5, NOW)
    state[old] = "old"
    save(client, state)
    kept = {f"kept {n}": n for n in range(9)}
    state.update(kept)
    save(client, state, 4)
    if is_restored:
        state.expire(NOW + 5)
        state["kept 0"] = 0
        save(client, state, 5)
        restored = client.restore()
        assert restored is not None
        state = restored.keyed("s")
    state.expire(NOW + 5)
    assert old not in state
    state[new] = "new"
    save(client, state, 5)
    assert saved(world) == {**kept, new: "new"}
    # Once a snapshot has taken its place, the next save writes a delta again.
    state["kept 1"] = 1.5
    state[new] = "newer"
    save(client, state, 5)
    assert kinds(client)[-1] == DELTA
    assert saved(world) == {**kept, "kept 1": 1.5, new: "newer"}


def test_times_in_utc_are_saved_as_deltas_after_some_expired(world: World) -> None:
    client, state = world.actor(), KeyedState({f"kept {n}": n for n in range(99)}, partitions=1)
    first = BERLIN.astimezone(UTC)
    state.set_rule(5, NOW)
    state[first] = "old"
    save(client, state)
    state.update({f"kept {n}": -n for n in range(99)})
    save(client, state, 4)
    state.expire(NOW + 5)
    assert first not in state
    state[first + timedelta(days=1)] = "new"
    save(client, state, 5)
    assert kinds(client)[-1] == DELTA
