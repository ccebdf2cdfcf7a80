"""Any history at all: a keyed state is a dict, whatever happens to the checkpoints it is saved in."""

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, precondition, rule

from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.errors import DependencyError
from pyspark_checkpointer.keyed import state
from tests.keyed.states import failing_save, notes_deletions, save, saved
from tests.world import World, put

KEYS = st.sampled_from(["a", "b", 1, (1, "x"), None])
LEAVES = st.one_of(st.integers(-9, 9), st.text("xyz", max_size=3), st.none())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from("pqr"), inner, max_size=3),
        st.tuples(inner, inner),
        st.sets(st.integers(0, 5), max_size=3),
    ),
    max_leaves=5,
)


class Histories(RuleBasedStateMachine):
    """The state against a plain dict: every change is made to both, also through references held across saves."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self._live, state.MIN_LIVE_VALUES = state.MIN_LIVE_VALUES, 3
        self.world = World()
        self.client = self.world.actor(max_chain=3)
        self.state, self.model = KeyedState(partitions=2), {}
        self.committed: dict[Any, Any] | None = None
        self.pending: dict[Any, Any] | None = None
        self.prepared: Any = None
        self.generation = 0

    def teardown(self) -> None:
        state.MIN_LIVE_VALUES = self._live
        self._record_outcome()
        self.check()
        if self.prepared is not None:
            self.prepared.abort()
        self.save()
        assert saved(self.world) == self.model

    def _record_outcome(self) -> None:
        if self.pending is not None:
            self.client.read_latest()
            self.committed, self.pending = self.pending, None

    # ---- changes

    @initialize(bulk=st.booleans())
    def fill(self, bulk: bool) -> None:
        if bulk:
            for number in range(60):
                self.state[f"bulk {number}"] = self.model[f"bulk {number}"] = [number, "x" * 20]

    @rule(key=KEYS, value=VALUES)
    def assign(self, key: Any, value: Any) -> None:
        self.state[key], self.model[key] = copy.deepcopy(value), copy.deepcopy(value)

    @rule(target=held, key=KEYS, value=VALUES)
    def assign_and_hold(self, key: Any, value: Any) -> Any:
        mine, its = copy.deepcopy(value), copy.deepcopy(value)
        self.state[key], self.model[key] = its, mine
        return self.generation, its, mine

    @rule(key=KEYS)
    def delete(self, key: Any) -> None:
        assert (key in self.state) == (key in self.model)
        if key in self.model:
            del self.state[key], self.model[key]

    @rule(key=KEYS)
    def pop(self, key: Any) -> None:
        assert self.state.pop(key, "none") == self.model.pop(key, "none")

    @rule(target=held, key=KEYS)
    def setdefault(self, key: Any) -> Any:
        its, mine = self.state.setdefault(key, []), self.model.setdefault(key, [])
        assert its == mine
        return self.generation, its, mine

    @rule()
    def clear(self) -> None:
        self.state.clear()
        self.model.clear()

    @rule(target=held, key=KEYS)
    def hold(self, key: Any) -> Any:
        if key not in self.model:
            assert self.state.get(key) is None
            return multiple()
        return self.generation, self.state[key], self.model[key]

    @rule(target=held, reference=held, index=st.integers(0, 2))
    def hold_inner(self, reference: Any, index: int) -> Any:
        generation, its, mine = reference
        children = sorted(mine) if type(mine) is dict else range(len(mine)) if type(mine) in (list, tuple) else ()
        if generation != self.generation or index >= len(children):
            return multiple()
        return generation, its[children[index]], mine[children[index]]

    @rule(reference=held, value=VALUES)
    def change_inside(self, reference: Any, value: Any) -> None:
        generation, its, mine = reference
        if generation == self.generation:
            change(its, value)
            change(mine, value)

    @rule(key=KEYS, value=VALUES)
    def change_in_passing(self, key: Any, value: Any) -> None:
        if key in self.model:
            change(self.state[key], value)
            change(self.model[key], value)

    # ---- saves

    @precondition(lambda self: self.prepared is None)
    @rule()
    def save(self) -> None:
        save(self.client, self.state)
        self.committed, self.pending = copy.deepcopy(self.model), None

    @precondition(lambda self: self.prepared is None)
    @rule()
    def save_in_background(self) -> None:
        self._record_outcome()
        with self.client.begin(background=True) as cp:
            cp.save("s", self.state)
        self.pending = copy.deepcopy(self.model)

    @precondition(lambda self: self.prepared is None)
    @rule()
    def save_that_fails(self) -> None:
        self._record_outcome()
        failing_save(self.client, self.state)

    @precondition(lambda self: self.prepared is None)
    @rule()
    def save_that_the_store_refuses(self) -> None:
        self._record_outcome()
        self.client.faults.fail("put", path="manifests/", times=12)
        with pytest.raises(DependencyError):
            save(self.client, self.state)

    @precondition(lambda self: self.prepared is None)
    @rule()
    def prepare(self) -> None:
        self._record_outcome()
        cp = self.client.begin()
        cp.save("s", self.state)
        self.prepared = cp.prepare()
        self.prepared_model = copy.deepcopy(self.model)

    @precondition(lambda self: self.prepared is not None)
    @rule(commit=st.booleans())
    def decide(self, commit: bool) -> None:
        if commit:
            self.prepared.commit()
            self.committed = self.prepared_model
        else:
            self.prepared.abort()
        self.prepared = None

    @precondition(lambda self: self.prepared is None)
    @rule(other=VALUES)
    def another_operator(self, other: Any) -> None:
        self._record_outcome()
        put(self.client, repr(other).encode())

    @precondition(lambda self: self.prepared is None and (self.committed or self.pending) is not None)
    @rule(partitions=st.sampled_from([None, 1, 2, 5]))
    def restore(self, partitions: int | None) -> None:
        self._record_outcome()
        restored = self.client.restore()
        if "s" not in restored.operators:
            return
        self.state, self.model = restored.keyed("s", partitions), copy.deepcopy(self.committed)
        self.generation += 1

    # ---- checks

    @rule()
    def check(self) -> None:
        assert len(self.state) == len(self.model)
        assert dict(self.state) == self.model
        assert notes_deletions(self.state)

    @rule()
    def take_out(self) -> None:
        taken = self.state.to_dict()
        assert taken == self.model
        for value in taken.values():
            change(value, "no part of the state")

    @rule()
    def look_up(self) -> None:
        for key in [*self.model, "nowhere"]:
            assert self.state.get(key) == self.model.get(key)

    @precondition(lambda self: self.committed is not None and self.pending is None)
    @rule()
    def check_saved(self) -> None:
        restored = self.world.actor().restore()
        if "s" in restored.operators:
            assert dict(restored.keyed("s")) == self.committed
            assert all(len(restored.operator("s").chain(p)) <= 3 for p in restored.operator("s").partitions)


def change(value: Any, more: Any) -> None:
    """Change a container in place; anything else stays as it is."""
    more = copy.deepcopy(more)
    if type(value) is list:
        value.append(more)
        if len(value) > 4:
            del value[0]
    elif type(value) is dict:
        value["q" if len(value) % 2 else "z"] = more
    elif type(value) is set:
        value.symmetric_difference_update({len(value), 2})
    elif type(value) is tuple:
        for inner in value:
            change(inner, more)


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
