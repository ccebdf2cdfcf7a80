"""The times of entries: which of them an expiry looks at, and that it forgets what a look at all of them would."""

from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.keyed.expiring import ExpiringPartition
from pyspark_checkpointer.keyed.partition import MapPartition
from tests.keyed.test_expiring import NOW, save
from tests.world import World

ROUNDS, KEYS = 20, 50


@pytest.mark.parametrize("is_restored", [False, True])
def test_an_expiry_looks_only_at_what_is_due(world: World, monkeypatch: pytest.MonkeyPatch, is_restored: bool) -> None:
    client, state = world.actor(), KeyedState(partitions=1)
    state.set_rule(ROUNDS, NOW)
    keys = [UUID(int=number) for number in range(ROUNDS * KEYS)]
    for later in range(ROUNDS):
        state.update(dict.fromkeys(keys[later * KEYS : (later + 1) * KEYS], later))
        save(client, state, later)
    if is_restored:
        restored = client.restore()
        assert restored is not None
        state = restored.keyed("s")
    state["new"] = 1
    state.expire(NOW + ROUNDS)
    looked = Counter[int]()
    hashed = UUID.__hash__

    def counted(key: UUID) -> int:
        looked[key.int] += 1
        return hashed(key)

    monkeypatch.setattr(UUID, "__hash__", counted)
    state.expire(NOW + ROUNDS + 1)
    monkeypatch.undo()
    assert {*state} == {*keys[2 * KEYS :], "new"}
    assert len(looked) <= KEYS + 1


@pytest.fixture
def world() -> World:
    return World()


class Model:
    """The entries of a partition in plain dicts: all of them are looked at."""

    def __init__(self, times: dict[int, int | None], since: int) -> None:
        self.times, self.since = times, since
        self.unsaved: set[int] = set()

    def expire(self, limit: int) -> None:
        due = [k for k, time in self.times.items() if k not in self.unsaved and self.time(time) <= limit]
        for key in due:
            del self.times[key]

    def time(self, time: int | None) -> int:
        return self.since if time is None else time

    def save(self, now: int) -> None:
        for key in self.unsaved & self.times.keys():
            self.times[key] = now


KEY, TIME = st.integers(0, 9), st.integers(0, 20)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEY),
        st.tuples(st.just("delete"), KEY),
        st.tuples(st.just("expire"), TIME),
        st.tuples(st.sampled_from(["save", "failing save"]), TIME),
        st.tuples(st.sampled_from(["clear", "copy"]), st.just(0)),
    ),
    max_size=40,
)


@given(times=st.dictionaries(KEY, st.none() | TIME), since=TIME, steps=STEPS, goes_back=st.booleans())
def test_what_expires_is_what_a_look_at_all_entries_finds(
    times: dict[int, int | None], since: int, steps: list[tuple[str, int]], goes_back: bool
) -> None:
    model, plain = Model(dict(times), since), MapPartition(1)
    plain.restore(plain.saved, dict.fromkeys(times, b"1"))
    part = ExpiringPartition.of(plain, since, {key: time for key, time in times.items() if time is not None})
    clock = 0
    for number, (step, argument) in enumerate(steps):
        if step == "set":
            part.set_packed(argument, b"%d" % (number % 2))
            model.times.setdefault(argument, None)
            model.unsaved.add(argument)
        elif step == "delete":
            part.delete(argument)
            model.times.pop(argument, None)
        elif step == "expire":
            part.expire(argument, ())
            model.expire(argument)
        elif step == "copy":
            part = part.copied()
        elif step == "clear":
            part = part.cleared()
            model.times.clear()
            model.unsaved.clear()
        else:
            clock = argument if goes_back else clock + argument
            capture(part, clock, fails=step == "failing save")
            model.save(clock)
            model.unsaved &= model.times.keys() if step == "failing save" else set()
        assert part.listed().keys() == model.times.keys(), (number, step)
        saved = model.times.keys() - model.unsaved
        assert {key: part.times.get(key, since) for key in saved} == {
            key: model.time(model.times[key]) for key in saved
        }


def capture(part: ExpiringPartition, now: int, *, fails: bool) -> None:
    """Save a partition, or begin a save whose commit fails."""
    part.set_times(now)
    change: Any = part.capture(0, (), 8)
    if change is None:
        return
    part.mark_captured(change)
    if fails:
        part.mark_dirty_again(change.dirty, change.needs_snapshot)
    else:
        part.mark_saved(change, ())
