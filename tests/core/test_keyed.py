"""A keyed state is a dict, whatever happens to the checkpoints it is saved in."""

import asyncio
import copy
import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, precondition, rule

from checkpointer import Checkpointer, KeyedState, keyed
from checkpointer.errors import DependencyError, IllegalArgumentError, InvalidStateError
from checkpointer.host import SystemHost
from checkpointer.references import unheld
from manifests import layout
from manifests.model import DELTA, SNAPSHOT
from tests.core.world import Actor, World, put

BULK = 400
"""Keys that make a snapshot large enough for deltas to be written on top of it."""


def filled(partitions: int = 1, **more: Any) -> KeyedState:
    state = KeyedState({f"bulk {n}": f"{n:032}" for n in range(BULK)}, partitions=partitions)
    state.update(more)
    return state


def save(client: Checkpointer, state: KeyedState) -> None:
    with client.begin() as cp:
        cp.save("s", state)


def saved(world: World) -> dict[Any, Any]:
    """What a fresh reader finds."""
    restored = world.actor().restore()
    assert restored is not None
    return dict(restored.keyed("s"))


def live_keys(state: KeyedState) -> list[Any]:
    return [key for part in state._parts for key in part.live]


def kinds(client: Checkpointer, partition: int = 0) -> list[str]:
    restored = client.restore()
    assert restored is not None
    return [artifact.kind for artifact in restored.operator("s").chain(partition)]


def failing_save(client: Checkpointer, state: KeyedState) -> None:
    """A block that raises after its save."""
    with suppress(ZeroDivisionError), client.begin() as cp:
        cp.save("s", state)
        raise ZeroDivisionError


# ---- any history at all ----------------------------------------------------------------------------------------------

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
        self._live, keyed.LIVE = keyed.LIVE, 3
        self.world = World()
        self.client = self.world.actor(max_chain=3)
        self.state, self.model = KeyedState(partitions=2), {}
        self.committed: dict[Any, Any] | None = None
        self.pending: dict[Any, Any] | None = None
        self.prepared: Any = None
        self.generation = 0

    def teardown(self) -> None:
        keyed.LIVE = self._live
        self._settle()
        self.check()
        if self.prepared is not None:
            self.prepared.abort()
        self.save()
        assert saved(self.world) == self.model

    def _settle(self) -> None:
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
        self._settle()
        with self.client.begin(background=True) as cp:
            cp.save("s", self.state)
        self.pending = copy.deepcopy(self.model)

    @precondition(lambda self: self.prepared is None)
    @rule()
    def save_that_fails(self) -> None:
        self._settle()
        failing_save(self.client, self.state)

    @precondition(lambda self: self.prepared is None)
    @rule()
    def save_that_the_store_refuses(self) -> None:
        self._settle()
        self.client.faults.fail("put", path="manifests/", times=6)
        with pytest.raises(DependencyError):
            save(self.client, self.state)

    @precondition(lambda self: self.prepared is None)
    @rule()
    def prepare(self) -> None:
        self._settle()
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
        self._settle()
        put(self.client, repr(other).encode())

    @precondition(lambda self: self.prepared is None and (self.committed or self.pending) is not None)
    @rule(partitions=st.sampled_from([None, 1, 2, 5]))
    def restore(self, partitions: int | None) -> None:
        self._settle()
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


# ---- changes inside values are never lost ----------------------------------------------------------------------------

Change = Callable[[KeyedState], object]


def through_a_closure(state: KeyedState) -> Callable[[], None]:
    value = state["list"]

    def later() -> None:
        value.append("later")

    return later


def through_a_generator(state: KeyedState) -> Iterator[None]:
    value = state["list"]
    yield
    value.append("later")
    yield


@pytest.mark.parametrize("saves", [0, 1, 3])
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize(
    ("reach", "change", "expected"),
    [
        (lambda s: s["list"], lambda v: v.append(1), ("list", [0, 1])),
        (lambda s: s["dict"], lambda v: v.update(b=1), ("dict", {"a": 0, "b": 1})),
        (lambda s: s["set"], lambda v: v.add(1), ("set", {0, 1})),
        (lambda s: s["nested"]["in"], lambda v: v.append(1), ("nested", {"in": [0, 1], "deep": [[[]]]})),
        (lambda s: s["nested"]["deep"][0][0], lambda v: v.append(1), ("nested", {"in": [0], "deep": [[[1]]]})),
        (lambda s: s["tuple"][0], lambda v: v.append(1), ("tuple", ([1], ({},)))),
        (lambda s: s["tuple"][1][0], lambda v: v.update(x=1), ("tuple", ([], ({"x": 1},)))),
        (lambda s: s["dicts"]["x"]["y"], lambda v: v.update(z=1), ("dicts", {"x": {"y": {"z": 1}}})),
        (lambda s: s["heap"], lambda v: heapq.heappush(v, 1), ("heap", [1, 9, 5])),
        (lambda s: s["list"].append, lambda v: v(1), ("list", [0, 1])),
        (lambda s: s["dict"].items(), lambda v: v.mapping, ("dict", {"a": 0})),
        (lambda s: iter([s["list"]]), lambda v: next(v).append(1), ("list", [0, 1])),
        (
            lambda s: {"mine": s["nested"]["in"]},
            lambda v: v["mine"].append(1),
            ("nested", {"in": [0, 1], "deep": [[[]]]}),
        ),
        (through_a_closure, lambda v: v(), ("list", [0, "later"])),
        (lambda s: advanced(through_a_generator(s)), next, ("list", [0, "later"])),
    ],
)
def test_a_change_inside_a_value_is_saved(
    world: World, saves: int, held: bool, reach: Any, change: Any, expected: tuple[str, Any]
) -> None:
    client = world.actor()
    state = filled(
        list=[0],
        dict={"a": 0},
        set={0},
        nested={"in": [0], "deep": [[[]]]},
        tuple=([], ({},)),
        dicts={"x": {"y": {}}},
        heap=[5, 9],
    )
    reference = reach(state) if held else None
    for number in range(saves):
        save(client, state)
        state["other"] = number
    change(reference if held else reach(state))
    key, value = expected
    assert state[key] == value
    save(client, state)
    assert saved(world)[key] == value
    assert saved(world) == dict(state)


def advanced(generator: Iterator[None]) -> Iterator[None]:
    next(generator)
    return generator


def test_two_keys_may_share_a_value_as_in_a_dict(world: World) -> None:
    client = world.actor()
    shared: list[int] = []
    state = KeyedState({"a": shared, "b": [shared]})
    del shared
    save(client, state)
    state["a"].append(1)
    assert state["b"] == [[1]]
    save(client, state)
    assert saved(world) == {"a": [1], "b": [[1]]}


def test_what_was_popped_or_replaced_no_longer_belongs_to_the_state(world: World) -> None:
    client = world.actor()
    state = KeyedState({"a": [], "b": [], "c": []})
    held = state["a"], state["b"], state["c"]
    state.pop("a")
    state["b"] = "other"
    state.clear()
    state["c"] = [9]
    for value in held:
        value.append(1)
    save(client, state)
    assert saved(world) == {"c": [9]}


def test_more_values_than_are_kept_alive_are_all_saved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "LIVE", 10)
    client = world.actor()
    state = KeyedState()
    held = []
    for number in range(500):
        state[number] = [number]
        if number % 7 == 0:
            held.append(state[number])
    assert len(live_keys(state)) < 200
    for value in held:
        value.append("held")
    save(client, state)
    assert saved(world) == {n: [n, "held"] if n % 7 == 0 else [n] for n in range(500)}


def test_values_nobody_holds_are_put_to_rest_by_a_save(world: World) -> None:
    client = world.actor()
    state = KeyedState({n: {"n": n, "list": [n]} for n in range(50)})
    mine = state[7]
    save(client, state)
    assert live_keys(state) == [7]
    assert mine is state[7]
    del mine
    state["x"] = 1
    save(client, state)
    assert live_keys(state) == []


@pytest.mark.parametrize("held", [True, False])
def test_an_update_is_that_of_a_dict(held: bool) -> None:
    class Keyed:
        """Not a mapping, but what `dict.update` takes for one."""

        def keys(self) -> list[Any]:
            return ["a", 1, (2, 3)]

        def __getitem__(self, key: Any) -> Any:
            return {"value": key}

    def failing(pairs: int) -> Iterator[tuple[str, Any]]:
        for number in range(pairs):
            yield f"f{number}", {"n": number}
        raise ConnectionError

    kept = [{"n": [n]} for n in range(1000)]
    others: list[Callable[[], Any]] = [
        lambda: {f"k{n}": kept[n] if held else {"n": [n]} for n in range(1000)},
        lambda: {f"k{n}": n if n % 7 else [n] for n in range(900)},
        lambda: [(f"k{n}", kept[n]) for n in range(0, 1000, 3)] + [("k9", 9), ("k9", [9]), ("\xe4", [1])],
        lambda: KeyedState({n: [n] for n in range(300)}),
        Keyed,
        dict,
    ]
    state, model = KeyedState(), {}
    for other in others:
        state.update(other(), more=[1], self=2)
        model.update(other(), more=[1], self=2)
        assert dict(state) == model
    for number in (0, 255, 256, 300):
        for mapping in (state, model):
            with pytest.raises(ConnectionError):
                mapping.update(failing(number))
        assert dict(state) == model
    kept[3]["n"].append("later")
    assert state.to_dict() == dict(state) == model
    with pytest.raises(IllegalArgumentError, match="Unicode"):
        state.update({"fine": [1], "\ud800": [2]})
    assert state["fine"] == [1]
    with pytest.raises(IllegalArgumentError, match="list"):
        state.update([("also fine", [1]), ([], [2])])


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_was_captured_does_not_follow_the_state(partitions: int) -> None:
    def changes(state: KeyedState) -> Iterator[Callable[[], object]]:
        held = [state[f"bulk {n}"] for n in range(BULK)]
        yield lambda: state.update({f"new {n}": [n] for n in range(BULK)})
        yield lambda: [value.append("changed") for value in held]
        yield lambda: state.update({f"bulk {n}": "text" for n in range(BULK)})
        yield lambda: [state.pop(f"bulk {n}") for n in range(10)]
        yield state.clear

    for number in range(5):
        state = KeyedState({f"bulk {n}": [n] for n in range(BULK)}, partitions=partitions)
        change = list(changes(state))[number]
        capture = state._capture({}, 10)
        before = [dict(change.records) for change in capture.changes]
        assert sum(map(len, before)) == BULK
        change()
        state.to_dict()  # which packs what is live
        assert [dict(change.records) for change in capture.changes] == before


def test_a_dict_of_everything_is_no_part_of_the_state(world: World) -> None:
    client = world.actor()
    state = KeyedState({n: {"n": n, "list": [n]} for n in range(700)} | {"large": ["x" * 2000], "plain": 3})
    held = state[7]
    held["list"].append("changed")
    taken = state.to_dict()
    assert taken == dict(state)
    taken[7]["list"].append("in the copy alone")
    taken["large"].append(1)
    assert state[7] is held
    assert held == {"n": 7, "list": [7, "changed"]}
    save(client, state)
    assert saved(world) == dict(state) == state.to_dict()


def test_what_cannot_be_stored_is_named_among_many_that_can(world: World) -> None:
    state = KeyedState({n: {"n": n * 0.7} for n in range(2000)})
    state[1234] = wrong = {"inside": [bytearray(b"x")]}
    for work in (state.to_dict, lambda: save(world.actor(), state)):
        with pytest.raises(IllegalArgumentError, match=r"key 1234: a value of type bytearray"):
            work()
    wrong["inside"] = [b"x"]
    save(world.actor(), state)
    assert saved(world) == {n: {"n": n * 0.7} for n in range(2000)} | {1234: {"inside": [b"x"]}}


def test_reading_a_value_writes_nothing(world: World) -> None:
    client = world.actor()
    state = filled(a=[1], b={"x": (1, [2])}, c={3})
    save(client, state)
    before = world.objects("artifacts/")
    values = [state[key] for key in state]
    save(client, state)
    state["a"] = [1]
    state["b"]["x"] = (1, [2])
    state["bulk 3"] = state["bulk 3"]
    state["new"] = 1
    del state["new"]
    save(client, state)
    assert len(values) == len(state)
    added = world.objects("artifacts/") - before
    assert len(added) <= 1, "only the key that came and went"
    save(client, state)
    assert world.objects("artifacts/") - before == added


def test_no_operation_without_a_change_writes_an_artifact(world: World) -> None:
    client = world.actor()
    state = filled(a=[1], partitions=4)
    save(client, state)
    before = world.objects("artifacts/")
    for change in (
        lambda: state.update({}),
        lambda: state.setdefault("a", []),
        lambda: state.pop("none", None),
        lambda: state.get("none"),
        lambda: state["a"].extend([]),
        lambda: state.update(a=[1]),
        lambda: list(state.items()),
    ):
        change()
        save(client, state)
    assert world.objects("artifacts/") == before


def test_a_key_that_several_deltas_touch_is_as_the_last_one_left_it(world: World) -> None:
    client = world.actor()
    state = filled()
    save(client, state)
    expected = []
    for change in (
        lambda: state.update(a=1, b=1),
        lambda: state.update(a=2, b=2),
        lambda: state.pop("a"),
        lambda: state.update(a=3),
        lambda: (state.pop("a"), state.pop("b")),
        lambda: state.update(b=4),
    ):
        change()
        save(client, state)
        expected.append(dict(state))
        assert saved(world) == dict(state)
        assert dict(client.restore().keyed("s", 3)) == dict(state)
    assert kinds(client) == [SNAPSHOT, *[DELTA] * 6]
    found = [client.restore(checkpoint).keyed("s") for checkpoint in client.list_checkpoints()[1:]]
    assert [dict(each) for each in found] == expected


# ---- what is being written stays as it was ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SNAPSHOT, DELTA])
@pytest.mark.parametrize("background", [True, False])
def test_a_change_made_while_a_save_is_written_does_not_reach_it(world: World, kind: str, background: bool) -> None:
    client = world.actor()
    state = filled(a=[1], b={"x": [1]}, c=1)
    held = state["a"], state["b"]["x"]
    if kind == DELTA:
        save(client, state)
        held[0].append(2)
        state["c"] = 2
        state["d"] = 1
    expected = copy.deepcopy(dict(state))
    gate = client.faults.hold("put", path="artifacts/")
    cp = client.begin(background=background)
    with cp:
        cp.save("s", state)
        if not background:
            changed(state, held)
            gate.open()
    if background:
        gate.wait()
        changed(state, held)
        gate.open()
        client.read_latest()
    assert saved(world) == expected
    assert kinds(client)[-1] == kind
    after = copy.deepcopy(dict(state))
    client.restore()
    save(client, state)
    assert saved(world) == after


class SlowHost(SystemHost):
    """Computes nothing before it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()

    async def run(self, compute: Callable[[], Any]) -> Any:
        assert await asyncio.to_thread(self.go.wait, 30)
        return compute()


@pytest.mark.parametrize("kind", [SNAPSHOT, DELTA])
@pytest.mark.parametrize("again", [False, True])
def test_a_change_made_before_a_save_is_encoded_does_not_reach_it(world: World, kind: str, again: bool) -> None:
    client = world.actor()
    state = filled(a=[1], b={"x": [1]}, c=1)
    held = state["a"], state["b"]["x"]
    if kind == DELTA:
        save(client, state)
        held[0].append(2)
        state["c"] = 2
        state["d"] = 1
    expected = copy.deepcopy(dict(state))
    client._session.host = host = SlowHost()
    with client.begin(background=True) as cp:
        cp.save("s", state)
        if again:
            cp.save("t", state)  # two captures read the same values
    changed(state, held)
    after = copy.deepcopy(dict(state))
    host.go.set()
    client.read_latest()
    assert saved(world) == expected
    assert not again or dict(client.restore().keyed("t")) == expected
    client.restore()
    save(client, state)
    assert saved(world) == after


def changed(state: KeyedState, held: tuple[list[Any], list[Any]]) -> None:
    """Every kind of change at once."""
    held[0].append("leak")
    held[1].append("leak")
    state["c"] = "leak"
    state["new"] = ["leak"]
    state["bulk 1"] = "leak"
    state["a"].append("leak")
    del state["bulk 2"]
    state.pop("bulk 3")


def test_clearing_while_a_save_is_written_does_not_reach_it(world: World) -> None:
    client = world.actor()
    state = filled(partitions=3)
    expected = dict(state)
    gate = client.faults.hold("put", path="artifacts/")
    with client.begin(background=True) as cp:
        cp.save("s", state)
    state.clear()
    state["after"] = 1
    gate.open()
    client.read_latest()
    assert saved(world) == expected
    save(client, state)
    assert saved(world) == {"after": 1}


def test_a_save_is_taken_before_the_call_returns_even_where_encoding_waits(world: World) -> None:
    client = world.actor()
    state = filled(a=[1])
    with client.begin() as cp:
        cp.save("s", state)
        state["a"].append(2)
        state["bulk 0"] = "later"
    assert saved(world)["a"] == [1]
    assert saved(world)["bulk 0"] == f"{0:032}"


# ---- what becomes of a save ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["raise", "abort", "store", "abort the prepared", "never ended"])
def test_the_changes_of_a_save_that_came_to_nothing_are_in_the_next(world: World, how: str) -> None:
    client = world.actor()
    state = filled(a=[1], gone=1)
    save(client, state)
    state["a"].append(2)
    del state["gone"]
    state["plain"] = 1
    if how != "raise":
        cp = client.begin()
        cp.save("s", state)
    match how:
        case "raise":
            failing_save(client, state)
        case "abort":
            cp.abort()
        case "store":
            client.faults.fail("put", times=6)
            with pytest.raises(DependencyError):
                cp.commit()
        case "abort the prepared":
            cp.prepare().abort()
    state["later"] = 1
    state["plain"] = 2  # once more, and not as the save that came to nothing had it
    save(client, state)
    assert saved(world) == dict(state)
    assert saved(world)["a"] == [1, 2]
    assert saved(world)["plain"] == 2
    assert "gone" not in saved(world)
    assert kinds(client) == [SNAPSHOT, DELTA]


def test_after_a_rollback_a_state_is_saved_whole(world: World) -> None:
    client = world.actor()
    state = filled(a=[1])
    save(client, state)
    first = client.read_latest()
    state["a"].append(2)
    save(client, state)
    client.rollback(first)
    state["b"] = 1
    save(client, state)
    assert saved(world) == dict(state)
    assert kinds(client) == [SNAPSHOT]


def test_one_state_saved_under_two_names_is_whole_under_both(world: World) -> None:
    client = world.actor()
    state = filled(a=[1])
    for number in range(3):
        state["a"].append(number)
        with client.begin() as cp:
            cp.save("s", state)
            cp.save("t", state)
    restored = world.actor().restore()
    assert dict(restored.keyed("s")) == dict(restored.keyed("t")) == dict(state)


def test_another_state_under_the_name_replaces_the_first(world: World) -> None:
    client = world.actor()
    save(client, filled(a=1, partitions=8))
    save(client, KeyedState({"b": 2}, partitions=3))
    assert saved(world) == {"b": 2}
    assert client.restore().manifest.operators["s"].partitions == 3


@pytest.mark.parametrize("partitions", [1, 3, 16])
def test_a_state_can_be_restored_into_another_number_of_partitions(world: World, partitions: int) -> None:
    client = world.actor()
    state = filled(partitions=8, a=[1])
    save(client, state)
    state["a"].append(2)
    save(client, state)
    again = client.restore().keyed("s", partitions)
    assert (again.partitions, dict(again)) == (partitions, dict(state))
    again["a"].append(3)
    save(client, again)
    again["b"] = 1
    save(client, again)
    assert saved(world) == {**dict(state), "a": [1, 2, 3], "b": 1}
    assert len(client.restore().manifest.operators["s"].chains) <= partitions


def test_an_emptied_state_is_restored_empty(world: World) -> None:
    client = world.actor()
    state = filled(partitions=2)
    save(client, state)
    state.clear()
    save(client, state)
    assert saved(world) == {}
    save(client, KeyedState())
    assert saved(world) == {}


# ---- background ------------------------------------------------------------------------------------------------------


def failing_in_background(client: Actor, state: KeyedState) -> None:
    client.faults.fail("put", path="manifests/", times=6)
    with client.begin(background=True) as cp:
        cp.save("s", state)


@pytest.mark.parametrize("call", ["begin", "restore", "read_latest", "list_checkpoints", "savepoints", "new_id"])
def test_a_failure_in_the_background_is_raised_once_by_the_next_call(world: World, call: str) -> None:
    client = world.actor()
    state = filled(a=[1])
    save(client, state)
    state["a"].append(2)
    failing_in_background(client, state)
    with pytest.raises(DependencyError, match="manifests/"):
        getattr(client, call)()
    getattr(client, call)()
    save(client, state)
    assert saved(world)["a"] == [1, 2]
    client.close()


def test_a_failure_in_the_background_is_raised_by_close(world: World) -> None:
    client = world.actor()
    failing_in_background(client, filled())
    with pytest.raises(DependencyError):
        client.close()
    client.close()


def test_a_failure_in_the_background_is_raised_at_the_end_of_the_clients_block(world: World) -> None:
    with pytest.raises(DependencyError), world.actor() as client:
        failing_in_background(client, filled())


def test_saves_in_the_background_are_committed_in_their_order(world: World) -> None:
    client = world.actor()
    state = filled()
    for number in range(10):
        state["n"] = number
        with client.begin(epoch=number, background=True) as cp:
            cp.save("s", state)
    client.close()
    assert saved(world)["n"] == 9
    epochs = [world.actor().restore(checkpoint).epoch for checkpoint in client.list_checkpoints()]
    assert epochs == list(range(10))


# ---- what cannot be stored -------------------------------------------------------------------------------------------


class Mine:
    pass


class MyDict(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Mine(), "Mine"),
        ([1, {"x": Mine()}], "Mine"),
        (MyDict(), "MyDict"),
        (lambda: 0, "function"),
        (bytearray(b"x"), "bytearray"),
        (1j, "complex"),
        ("\ud800", "surrogate"),
        (range(3), "range"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused_by_key_and_type_before_anything_is_written(
    world: World, value: Any, named: str
) -> None:
    client = world.actor()
    state = KeyedState({"good": 1})
    save(client, state)
    before = world.objects()
    state["the bad key"] = value
    state["good"] = 2
    with pytest.raises(IllegalArgumentError, match=named) as raised, client.begin() as cp:
        cp.save("s", state)
    assert "the bad key" in str(raised.value)
    assert world.objects() == before
    assert saved(world) == {"good": 1}
    state["the bad key"] = "good after all"
    save(client, state)
    assert saved(world) == {"good": 2, "the bad key": "good after all"}


def test_a_value_that_turned_bad_inside_is_refused_and_can_be_mended(world: World) -> None:
    client = world.actor()
    state = KeyedState({"k": {"list": []}})
    save(client, state)
    inner = state["k"]["list"]
    inner.append(Mine())
    with pytest.raises(IllegalArgumentError, match=r"'k'.*Mine"):
        save(client, state)
    inner.pop()
    inner.append(1)
    save(client, state)
    assert saved(world) == {"k": {"list": [1]}}


def test_a_value_that_holds_itself_is_refused(world: World) -> None:
    state = KeyedState()
    state["loop"] = loop = []
    loop.append(loop)
    with pytest.raises(IllegalArgumentError, match="'loop'"):
        save(world.actor(), state)


@pytest.mark.parametrize("key", [float("nan"), Mine(), (1, Mine()), "\ud800"])
def test_a_key_that_cannot_be_stored_is_refused_at_once(key: Any) -> None:
    state = KeyedState()
    with pytest.raises(IllegalArgumentError):
        state[key] = 1
    assert key not in state
    assert len(state) == 0


def test_keys_that_are_equal_are_one_key(world: World) -> None:
    client = world.actor()
    keys = [1, "1", b"1", (1,), Decimal("1.5"), None, datetime(2026, 1, 1, tzinfo=UTC), frozenset({1}), -0.0]
    state = KeyedState({key: number for number, key in enumerate(keys)})
    save(client, state)
    again = client.restore().keyed("s")
    for equal in (True, 1.0, Decimal(1)):
        assert again[equal] == 0
    assert again[1.5] == 4
    assert again[0] == len(keys) - 1
    again[True] = "one"
    del again[1.5]
    save(client, again)
    expected = {**dict(state), 1: "one"}
    del expected[1.5]
    assert saved(world) == expected


def test_a_state_cannot_stand_under_a_name_that_holds_bytes(world: World) -> None:
    client = world.actor()
    put(client, b"1")
    with pytest.raises(IllegalArgumentError, match="drop"), client.begin() as cp:
        cp.save("op", KeyedState())
    with pytest.raises(IllegalArgumentError, match="KeyedState"), client.begin() as cp:
        cp.save("s", {"a": 1})
    with client.begin() as cp:
        cp.save("s", KeyedState({"a": 1}))
        with pytest.raises(IllegalArgumentError, match="already written"):
            cp.save("s", KeyedState())
    with pytest.raises(IllegalArgumentError, match="KeyedState"):
        client.restore().keyed("op")


# ---- references ------------------------------------------------------------------------------------------------------

INNER = [
    ([[]], lambda v: v[0]),
    ({"a": {}}, lambda v: v["a"]),
    ({"a": set()}, lambda v: v["a"]),
    (([],), lambda v: v[0]),
    ([([],)], lambda v: v[0]),
    ([([],)], lambda v: v[0][0]),
    ({"a": [{"b": [1, ({},)]}]}, lambda v: v["a"][0]["b"][1][0]),
    ([1, 2, [3, [4, [5]]]], lambda v: v[2][1][1]),
]


def is_held(values: dict[str, Any]) -> bool:
    return unheld(values) == []


@pytest.mark.parametrize("make", [list, dict, set, lambda: [[]], lambda: {"a": [{}]}, lambda: ([],), lambda: ((), 1)])
def test_a_value_nobody_else_has_is_not_held(make: Callable[[], Any]) -> None:
    assert not is_held({"v": make()})


@pytest.mark.parametrize("make", [list, dict, set, lambda: [[]], lambda: {"a": [{}]}])
def test_a_value_somebody_else_has_is_held(make: Callable[[], Any]) -> None:
    values = {"v": make()}
    other = [values["v"]]
    assert is_held(values)
    other.clear()
    assert not is_held(values)


@pytest.mark.parametrize(("value", "reach"), INNER)
def test_a_value_is_held_by_whoever_has_something_inside_it(value: Any, reach: Callable[[Any], Any]) -> None:
    values = {"v": copy.deepcopy(value)}
    assert not is_held(values)
    inner = reach(values["v"])
    assert is_held(values)
    del inner
    assert not is_held(values)


def test_what_cannot_change_does_not_count_as_held() -> None:
    text, pair = "x" * 50, (1, "y")
    assert not is_held({"v": [text, pair, 1, None]})
    assert text
    assert pair


def test_the_layout_of_a_saved_state_is_one_chain_for_each_partition(world: World) -> None:
    client = world.actor()
    save(client, filled(partitions=4))
    restored = client.restore()
    assert restored.operator("s").partitions == [0, 1, 2, 3]
    assert all(layout.parse_artifact(restored.operator("s").chain(p)[0].path).codec == "msgpack+zstd" for p in range(4))


def test_a_closed_checkpoint_takes_no_state(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.save("s", KeyedState())
    with pytest.raises(InvalidStateError, match="begin another"):
        cp.save("t", KeyedState())
