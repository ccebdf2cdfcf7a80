"""Keys and values that a keyed state cannot store, and who holds those that it can."""

import copy
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.keyed import packing, references, updates
from pyspark_checkpointer.keyed.references import counts_are_exact, unheld
from pyspark_checkpointer.manifests import msgpack_values, object_paths
from pyspark_checkpointer.manifests.keyed_records import place_key
from pyspark_checkpointer.manifests.map_expiry import with_time
from pyspark_checkpointer.manifests.msgpack_checks import MAX_KEPT_BYTES
from tests.keyed.states import exact_counts, filled, live_keys, save, saved
from tests.world import World, put

# ---- what comes back ------------------------------------------------------------------------------------------------


def test_values_of_any_type_are_read_one_after_the_other(world: World) -> None:
    """The first that is not plain, or is long, changes how those after it are unpacked."""
    given = {1: {"n": 1}, 2: {"t": (1, b"x", {3})}, 3: ["x" * 2000], 4: {"n": [1.5, None]}, 5: {1: 2}, 6: [10**30]}
    client = world.actor()
    save(client, KeyedState(given))
    for first in given:
        restored = world.actor().restore()
        assert restored is not None
        state = restored.keyed("s")
        for key in (first, *given):
            assert repr(state[key]) == repr(given[key])


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
        (bytearray(b"x"), "bytearray: convert it to bytes first"),
        ([memoryview(b"x")], "memoryview: convert it to bytes first"),
        ({"a": (1, 1j)}, "complex: convert it to a tuple of two floats first"),
        ("\ud800", "surrogate"),
        (range(3), "range: convert it to a list first"),
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
    assert str(raised.value).startswith("operator 's': key 'the bad key': ")
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


LIMIT = 5 << 20


@pytest.fixture
def _few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let values have so few bytes that a test can make one that is too large."""
    assert len(with_time(b"", 0)) + msgpack_values.MAX_VALUE_BYTES == 2**32 - 1
    monkeypatch.setattr(msgpack_values, "MAX_VALUE_BYTES", LIMIT)


TOO_LARGE: dict[str, tuple[Any, str]] = {
    "bytes": (b"\x01" * (LIMIT - 4), "bytes"),
    "text": ("x" * (LIMIT - 4), "str"),
    "text that is not ASCII": ("é" * (LIMIT // 2), "str"),
    "long text that is not ASCII": ("é" * (MAX_KEPT_BYTES + 1), "str"),
    "a list": (["x" * (LIMIT // 4)] * 4, "list"),
    "a tuple": (("x" * (LIMIT // 4), ["x" * (LIMIT // 4)] * 3), "tuple"),
}


@pytest.mark.usefixtures("_few_bytes")
@pytest.mark.parametrize("how", ["set", "update", "made of pairs", "beside others"])
@pytest.mark.parametrize(("value", "kind"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_value_that_no_record_can_hold_is_refused_by_key_and_type(
    world: World, value: Any, kind: str, how: str
) -> None:
    client, state = world.actor(), KeyedState({"good": 1})
    if how == "set":
        state["k"] = value
    elif how == "update":
        state.update(k=value)
    elif how == "made of pairs":
        state = KeyedState(pair for pair in [("good", 1), ("k", value)])
    else:
        state.update({f"n {number}": [number] for number in range(300)} | {"k": value})
    told = rf"key 'k': a value of type {kind} that takes more than 4,294,967,286 bytes: store it in parts"
    with pytest.raises(IllegalArgumentError, match=told):
        save(client, state)
    assert client.read_latest() is None
    state["k"] = "small"
    save(client, state)
    assert saved(world) == state.to_dict()
    assert state["good"] == 1


@pytest.mark.usefixtures("_few_bytes")
@pytest.mark.parametrize("value", [b"\x01" * (LIMIT - 5), "x" * (LIMIT - 5)], ids=["bytes", "text"])
def test_the_largest_values_are_stored(world: World, value: Any) -> None:
    save(world.actor(), KeyedState({"k": value, "n": [1]}))
    assert saved(world) == {"k": value, "n": [1]}


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
    (free,) = unheld(list(values.values()))
    return not free


@exact_counts
@pytest.mark.parametrize("make", [list, dict, set, lambda: [[]], lambda: {"a": [{}]}, lambda: ([],), lambda: ((), 1)])
def test_a_value_nobody_else_has_is_not_held(make: Callable[[], Any]) -> None:
    assert not is_held({"v": make()})


@exact_counts
@pytest.mark.parametrize("make", [list, dict, set, lambda: [[]], lambda: {"a": [{}]}])
def test_a_value_somebody_else_has_is_held(make: Callable[[], Any]) -> None:
    values = {"v": make()}
    other = [values["v"]]
    assert is_held(values)
    other.clear()
    assert not is_held(values)


@exact_counts
@pytest.mark.parametrize(("value", "reach"), INNER)
def test_a_value_is_held_by_whoever_has_something_inside_it(value: Any, reach: Callable[[Any], Any]) -> None:
    values = {"v": copy.deepcopy(value)}
    assert not is_held(values)
    inner = reach(values["v"])
    assert is_held(values)
    del inner
    assert not is_held(values)


@exact_counts
def test_what_cannot_change_does_not_count_as_held() -> None:
    text, pair = "x" * 50, (1, "y")
    assert not is_held({"v": [text, pair, 1, None]})
    assert text
    assert pair


@exact_counts
def test_values_outside_of_a_dict_are_held_by_others_alone() -> None:
    values: list[Any] = [[1], {"a": 1}, ([],)]
    assert unheld(values, dicts=0) == [True, True, True]
    inner, first = values[2][0], values[0]
    assert unheld(values, dicts=0) == [False, True, False]
    assert (inner, first) == ([], [1])


TRACED = """
import sys

kept = []

def trace(frame, event, argument):
    if frame.f_code.co_filename.endswith("references.py"):
        found = frame.f_locals
        if sys.argv[1] == "keeps":
            kept.append(dict(found))
    return trace

sys.settrace(trace)
from pyspark_checkpointer.keyed import references
sys.settrace(None)
kept.clear()
wraps = [lambda v: [v], lambda v: {"a": v}, lambda v: (v,), lambda v: [(v,)], lambda v: {"a": {"b": v}}]
found = []
for wrap in wraps:
    inner = []
    values = [wrap(inner)]
    found.append(references.unheld(values, dicts=0))
    del inner
    found.append(references.unheld(values, dicts=0))
print(found == [[False], [True]] * len(wraps), found)
"""


@exact_counts
@pytest.mark.parametrize("how", ["reads", "keeps"])
def test_a_debugger_that_follows_the_import_makes_no_held_value_count_as_free(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", TRACED, how], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("True"), done.stdout


def test_without_exact_counts_every_value_counts_as_held(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Builds of Python without the GIL, and other implementations.
    monkeypatch.setattr(references, "_COUNTED", False)
    client, state = world.actor(), KeyedState((f"k{n}", {"n": n}) for n in range(2000))
    assert len(live_keys(state)) == 2000
    for turn in range(3):
        state["k7"]["n"] = -turn
        save(client, state)
        assert saved(world) == {**{f"k{n}": {"n": n} for n in range(2000)}, "k7": {"n": -turn}}
    assert len(live_keys(state)) == 2000


@pytest.mark.parametrize(
    ("implementation", "flags", "exact"),
    [
        ("cpython", "", True),
        ("cpython", "d", True),
        ("cpython", "t", False),
        ("cpython", "td", False),
        ("pypy", "", False),
    ],
)
def test_only_a_cpython_with_a_gil_counts_references_exactly(implementation: str, flags: str, exact: bool) -> None:
    assert counts_are_exact(implementation, flags) is exact


def test_a_change_between_packing_and_letting_go_is_in_the_next_save(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, state = world.actor(), KeyedState({"k": {"n": 0}})
    held = [state["k"]]
    pack = packing.pack_some

    def pack_then_change(values: list[Any]) -> list[bytes]:
        packed = pack(values)
        while held:  # as another thread might
            held.pop()["n"] = "changed"
        return packed

    monkeypatch.setattr(packing, "pack_some", pack_then_change)
    save(client, state)
    save(client, state)
    assert saved(world) == {"k": {"n": "changed"}}


def test_the_layout_of_a_saved_state_is_one_chain_for_each_partition(world: World) -> None:
    client = world.actor()
    save(client, filled(partitions=4))
    restored = client.restore()
    assert restored.operator("s").partitions == [0, 1, 2, 3]
    assert all(
        object_paths.parse_artifact(restored.operator("s").chain(p)[0].path).codec == "msgpack+zstd" for p in range(4)
    )


@exact_counts
def test_values_of_a_stream_are_packed_partition_by_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed values that are read together lie together in memory: a full save takes a third less."""
    packed: list[int] = []

    def pack_some(values: list[Any]) -> list[bytes]:
        packed.extend(value["n"] for value in values)
        return packing.pack_some(values)

    monkeypatch.setattr(updates, "pack_some", pack_some)
    state = KeyedState(((number, {"n": number}) for number in range(200)), partitions=4)
    partitions = [place_key(number, 4)[0] for number in packed]
    assert sorted(packed) == list(range(200)) == sorted(value["n"] for value in state.values())
    assert sum(one != other for one, other in pairwise(partitions)) == 3


def test_a_closed_checkpoint_takes_no_state(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.save("s", KeyedState())
    with pytest.raises(InvalidStateError, match="begin another"):
        cp.save("t", KeyedState())
