"""Changes inside the values of a keyed state are never lost."""

import heapq
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.keyed import state as state_module
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT
from tests.keyed.states import BULK, exact_counts, filled, kinds, live_keys, save, saved
from tests.world import World

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


@exact_counts
def test_more_values_than_are_kept_alive_are_all_saved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "MIN_LIVE_VALUES", 10)
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


@exact_counts
def test_values_that_setdefault_set_are_dropped_once_nobody_holds_them(world: World) -> None:
    client, state = world.actor(), KeyedState(partitions=1)
    held = [state.setdefault(number, [number]) for number in range(0, 5_000, 1_000)]
    for number in range(5_000):
        state.setdefault(number, [number]).append("added")
        assert len(live_keys(state)) <= state_module.MIN_LIVE_VALUES + 1
    for value in held:
        value.append("held")
    save(client, state)
    assert saved(world) == {n: [n, "added", *(["held"] if n % 1_000 == 0 else [])] for n in range(5_000)}


@exact_counts
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
    for number in (0, state_module.UPDATE_BATCH - 1, state_module.UPDATE_BATCH, state_module.UPDATE_BATCH + 44):
        for mapping in (state, model):
            with pytest.raises(ConnectionError):
                mapping.update(failing(number))
        assert dict(state) == model
    kept[3]["n"].append("later")
    assert state.to_dict() == dict(state) == model
    with pytest.raises(IllegalArgumentError, match="Unicode"):
        state.update({"fine": [1], "\ud800": [2]})
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
        capture = state.capture_for_checkpoint({}, 10)
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


def test_what_makes_the_pairs_sees_those_before_as_in_a_dict() -> None:
    words = ["a", "b", "a", "a"] * 300
    state, model = KeyedState(), dict[Any, Any]()
    for counts in (state, model):
        counts.update((word, [counts.get(word, [0])[0] + 1]) for word in words)
    assert dict(state) == model == {"a": [900], "b": [300]}


@exact_counts
def test_a_state_made_of_a_stream_lets_go_of_it() -> None:
    state = KeyedState((f"{n}", [n]) for n in range(20_000))
    assert len(live_keys(state)) < state_module.MIN_LIVE_VALUES // 2
    assert state.to_dict() == {f"{n}": [n] for n in range(20_000)}


def test_a_malformed_value_among_many_is_told_by_its_key() -> None:
    state = KeyedState({f"k{n}": {"n": n} for n in range(100)}, partitions=1)
    assert state.to_dict()["k7"] == {"n": 7}
    state._parts[0].live.clear()
    state._parts[0].data["k7"] = b"\x92\x01"
    with pytest.raises(MalformedError, match="the value of key 'k7'"):
        state.to_dict()
