"""Keys that are equal and not the same: a state keeps the key that a dict keeps, also in the store."""

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, reset_tzpath

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests import zones
from pyspark_checkpointer.manifests.equal_keys import may_differ, overlay, same
from pyspark_checkpointer.manifests.keyed_records import partition_of
from pyspark_checkpointer.manifests.msgpack_values import pack
from tests.keyed.states import failing_save, notes_deletions, save
from tests.manifests.names import shown
from tests.proof.effort import SUMMARY
from tests.world import Actor, World

NOON = datetime(2024, 1, 2, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
REPEATED = datetime(2024, 10, 27, 2, 30)

EQUAL: list[tuple[Any, ...]] = [
    (1, 1.0, True, Decimal(1), Decimal("1.00")),
    (0.0, -0.0, 0, False, Decimal("-0")),
    (7, 7.0),
    (10**30, Decimal("1E+30")),
    (NOON, NOON.astimezone(BERLIN), NOON.astimezone(timezone(timedelta(hours=1), "CET"))),
    (NOON, NOON.astimezone(timezone(timedelta(hours=1))), NOON.astimezone(ZoneInfo("UTC"))),
    (REPEATED, REPEATED.replace(fold=1)),
    (REPEATED.replace(tzinfo=BERLIN), REPEATED.replace(tzinfo=BERLIN, fold=1)),
    (time(2, 30), time(2, 30, fold=1)),
    (("x", 1), ("x", 1.0), ("x", True)),
    ((NOON, (0.0,)), (NOON.astimezone(BERLIN), (-0.0,))),
    (frozenset({1, "a"}), frozenset({1.0, "a"}), frozenset({True, "a"})),
]
pytestmark = pytest.mark.usefixtures("computed_at_once")

PAIRS = [pair for keys in EQUAL for pair in itertools.permutations(keys, 2)]


def exact(mapping: Any) -> set[tuple[bytes, Any]]:
    """Keys as they are, with their values: equal ones that are not the same differ."""
    return {(pack(key), value) for key, value in dict(mapping).items()}


def restored(world: World, partitions: int | None = None) -> KeyedState:
    found = world.actor().restore()
    assert found is not None
    return found.keyed("s", partitions)


SCENES = {
    "set over": ["set old", "save", "set new", "save"],
    "set over at once": ["set old", "set new", "save"],
    "deleted and added": ["set old", "save", "delete", "save", "set new", "save"],
    "deleted and added at once": ["set old", "save", "delete", "set new", "save"],
    "replaced before a save that fails": ["set old", "save", "delete", "fail", "set new", "fail", "save"],
    "replaced after a save that fails": ["set old", "save", "delete", "set new", "fail", "set old", "save"],
    "folded": ["set old", "save", "delete", "save", "set new", "save", "other", "save", "other", "save"],
    "back again": ["set old", "save", "delete", "set new", "save", "delete", "set old", "save", "set new", "save"],
    "emptied": ["set old", "save", "clear", "set new", "save"],
    "restored": ["set old", "save", "restore", "delete", "set new", "save", "restore", "set old", "save"],
}


BESIDE: dict[str, Callable[[int], Any]] = {
    "texts": lambda n: f"bulk {n}",
    "floats": lambda n: n + 20.5,
    "integers": lambda n: n + 20,
}


@pytest.mark.parametrize("value", [1, [1]], ids=["plain", "container"])
@pytest.mark.parametrize("scene", SCENES)
def test_a_state_keeps_the_key_that_a_dict_keeps(
    world: World, scene: str, value: Any, effort: Callable[[int, int], int]
) -> None:
    """Every pair in every scene, beside keys of each kind; in the short run every other pair, with plain values or in
    containers, and each scene has another kind.
    """
    kinds, turn = [*BESIDE.values()], [*SCENES].index(scene) + (value == 1)
    for number, (old, new) in [*enumerate(PAIRS)][turn % effort(2, 1) :: effort(2, 1)]:
        for beside in range(effort(1, len(kinds))):
            keep_as_a_dict(world, scene, value, kinds[(number + turn + beside) % len(kinds)], old, new)


def keep_as_a_dict(world: World, scene: str, value: Any, beside: Callable[[int], Any], old: Any, new: Any) -> None:
    """Play a scene with a state and a dict."""
    client = world.actor(max_chain=3)
    bulk: dict[Any, Any] = {beside(n): "x" * 20 for n in range(40)}
    state, model = KeyedState(bulk, partitions=1), dict(bulk)
    numbers = itertools.count()
    client.restore()
    for step in SCENES[scene]:
        match step.split():
            case ["set", which]:
                key = old if which == "old" else new
                model[key] = f"{next(numbers)}" if value == 1 else [next(numbers)]
                state[key] = model[key]
            case ["delete"]:
                del state[old], model[old]
            case ["clear"]:
                state.clear()
                model.clear()
            case ["other"]:
                state["other"] = model["other"] = next(numbers)
            case ["fail"]:
                failing_save(client, state)
            case ["restore"]:
                state = client.restore().keyed("s")  # type: ignore[union-attr]
            case ["save"]:
                save(client, state)
                found = restored(world)
                shape = {(pack(k), repr(v)) for k, v in model.items()}
                assert {(pack(k), repr(v)) for k, v in state.items()} == shape, (old, new)
                assert {(pack(k), repr(v)) for k, v in found.items()} == shape, (old, new)


@pytest.mark.parametrize("value", [1, [1]], ids=["plain", "container"])
@pytest.mark.parametrize("keys", [(0.0, -0.0), (-0.0, 0.0), (7, 7.0), (7.0, 7)])
def test_updates_with_numbers_of_one_type_keep_the_key_that_a_dict_keeps(
    world: World, keys: tuple[Any, Any], value: Any
) -> None:
    client, state, model = world.actor(), KeyedState(partitions=1), {}
    for number, key in enumerate(keys):
        kind, now = type(key), [number, value] if value != 1 else number
        for change in ({kind(n + 20): "x" * 30 for n in range(60)}, {kind(5): now, key: now}):
            state.update(change)
            model.update(change)
            save(client, state)
            assert {pack(k) for k in restored(world)} == {pack(k) for k in model} == {pack(k) for k in state}


KEYS = st.sampled_from([key for keys in EQUAL for key in keys])


class EqualKeys(RuleBasedStateMachine):
    """A state against a dict, by what each key is and not by what it is equal to."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.client = self.world.actor(max_chain=3)
        self.state, self.model = KeyedState(partitions=2), {}
        self.committed: dict[Any, Any] | None = None

    @initialize(bulk=st.sampled_from([None, *BESIDE]))
    def fill(self, bulk: str | None) -> None:
        keys = [] if bulk is None else [BESIDE[bulk](number) for number in range(60)]
        for key in keys:
            self.state[key] = self.model[key] = "x" * 20

    @rule(key=KEYS, value=st.integers(0, 9))
    def assign(self, key: Any, value: int) -> None:
        self.state[key] = self.model[key] = value

    @rule(key=KEYS, value=st.integers(0, 9))
    def assign_a_container(self, key: Any, value: int) -> None:
        self.state[key] = (value, ())
        self.model[key] = (value, ())

    @rule(key=KEYS)
    def setdefault(self, key: Any) -> None:
        assert self.state.setdefault(key, 5) == self.model.setdefault(key, 5)

    @rule(key=KEYS)
    def pop(self, key: Any) -> None:
        assert self.state.pop(key, None) == self.model.pop(key, None)

    @rule(keys=st.lists(KEYS, max_size=4))
    def update_with_pairs_that_are_there(self, keys: list[Any]) -> None:
        self.state.update([(key, 7) for key in keys])
        self.model.update([(key, 7) for key in keys])

    @rule(keys=st.lists(KEYS, max_size=4))
    def update(self, keys: list[Any]) -> None:
        self.state.update((key, 6) for key in keys)
        self.model.update((key, 6) for key in keys)

    @rule()
    def clear(self) -> None:
        self.state.clear()
        self.model.clear()

    @rule()
    def save(self) -> None:
        save(self.client, self.state)
        self.committed = dict(self.model)

    @rule()
    def save_that_fails(self) -> None:
        failing_save(self.client, self.state)

    @precondition(lambda self: self.committed is not None)
    @rule(partitions=st.sampled_from([None, 1, 2, 5]))
    def restore(self, partitions: int | None) -> None:
        found = self.client.restore()
        assert found is not None
        self.state, self.model = found.keyed("s", partitions), dict(self.committed or {})

    @rule()
    def check(self) -> None:
        assert exact(self.state) == exact(self.model)
        assert notes_deletions(self.state)

    def teardown(self) -> None:
        self.check()
        self.save()
        assert exact(restored(self.world)) == exact(self.model)


TestEqualKeys = EqualKeys.TestCase
TestEqualKeys.settings = settings(
    max_examples=60 if SUMMARY is None else 5_000,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("pair", PAIRS, ids=shown)
def test_equal_keys_are_told_apart_and_share_a_partition(pair: tuple[Any, Any]) -> None:
    one, other = pair
    assert one == other
    assert not same(one, other)
    assert may_differ([one, other])
    assert partition_of(one, 1000) == partition_of(other, 1000)
    records: dict[Any, bytes | None] = {one: b"1"}
    overlay(records, {other: b"2"})
    assert exact(records) == {(pack(other), b"2")}


# ---- zones whose rules change ----------------------------------------------------------------------------------------


def zone_file(hours: int) -> bytes:
    """A file of the time zone database: so many hours east of UTC, always."""
    seconds = (hours * 3600).to_bytes(4, "big", signed=True)
    counts = b"".join(n.to_bytes(4, "big") for n in (0, 0, 0, 0, 1, 4))
    part = b"TZif2" + bytes(15) + counts
    return part + seconds + b"\0\0XYZ\0" + part + seconds + b"\0\0XYZ\0" + f"\n<X>{-hours}\n".encode()


@pytest.fixture
def rules(tmp_path: Path) -> Iterator[Any]:
    """Sets how far east of UTC the zones Test/A and Test/B are."""

    def be(a: int, b: int) -> None:
        folder = tmp_path / f"{a} {b}"
        (folder / "Test").mkdir(parents=True, exist_ok=True)
        (folder / "Test" / "A").write_bytes(zone_file(a))
        (folder / "Test" / "B").write_bytes(zone_file(b))
        reset_tzpath([str(folder)])
        ZoneInfo.clear_cache()
        zones._KNOWN.clear()  # as in a new process: this one stays with the rules that it began with

    yield be
    reset_tzpath()
    ZoneInfo.clear_cache()
    zones._KNOWN.clear()


def at(hour: int, zone: str, day: int = 1) -> datetime:
    return datetime(2024, 1, day, hour, tzinfo=ZoneInfo(zone))


@pytest.mark.parametrize("partitions", [None, 3, 8])
@pytest.mark.parametrize("inside", [False, True], ids=["times", "tuples"])
def test_keys_are_found_after_the_rules_of_their_zone_changed(
    world: World, rules: Any, partitions: int | None, inside: bool
) -> None:
    def key(n: int) -> Any:
        moment = at(n, "Test/A")
        return ("k", (moment, n)) if inside else moment

    rules(1, 2)
    client = world.actor()
    save(client, KeyedState({key(n): n for n in range(20)} | {f"bulk {n}": "x" * 99 for n in range(200)}))
    rules(2, 2)
    client = world.actor()
    state = client.restore().keyed("s", partitions)  # type: ignore[union-attr]
    assert [state.get(key(n)) for n in range(20)] == list(range(20))
    for n in range(20):
        state[key(n)] += 100
    save(client, state)
    for _ in range(2):
        found = restored(world)
        assert len(found) == len(dict(found)) == 220
        assert [found.get(key(n)) for n in range(20)] == list(range(100, 120))
        rules(1, 2)
    for n in range(20):
        client = world.actor()
        state = client.restore().keyed("s")  # type: ignore[union-attr]
        assert state.pop(key(n)) == n + 100
        save(client, state)
    assert len(restored(world)) == 200


@pytest.mark.parametrize("how", ["one snapshot", "a delta", "two partitions", "other partitions"])
def test_keys_that_became_equal_are_named_and_none_is_lost(world: World, rules: Any, how: str) -> None:
    rules(1, 2)
    client = world.actor()
    one, other = at(12, "Test/A"), at(12, "Test/B")
    assert one != other
    partitions = 8 if how == "two partitions" else 1
    assert how != "two partitions" or partition_of(one, 8) != partition_of(other, 8)
    state = KeyedState({one: 1} | {f"bulk {n}": "x" * 99 for n in range(400)}, partitions=partitions)
    if how == "a delta":
        save(client, state)
    state[other] = 2
    save(client, state)
    rules(1, 1)
    with pytest.raises(InvalidStateError, match=r"Test/A.*Test/B.*were two|Test/B.*Test/A.*were two") as caught:
        restored(world, 5 if how == "other partitions" else None)
    assert "Nothing is lost" in str(caught.value)
    rules(1, 2)
    assert restored(world)[one] == 1
    assert restored(world)[other] == 2


@pytest.mark.parametrize("scene", ["at once", "in two saves", "folded", "after a save that fails"])
def test_a_key_that_gave_way_to_another_does_not_come_back_when_they_are_no_longer_equal(
    world: World, rules: Any, scene: str
) -> None:
    rules(1, 1)
    client: Actor = world.actor(max_chain=3)
    one, other = at(12, "Test/A"), at(12, "Test/B")
    state = KeyedState({one: 1} | {f"bulk {n}": "x" * 99 for n in range(400)}, partitions=1)
    save(client, state)
    del state[other]
    if scene in ("in two saves", "folded"):
        save(client, state)
    elif scene == "after a save that fails":
        failing_save(client, state)
    state[other] = 2
    save(client, state)
    for n in range(6 if scene == "folded" else 0):
        state["n"] = n
        save(client, state)
    rules(1, 2)
    found = restored(world)
    assert at(12, "Test/A") not in found
    assert found[at(12, "Test/B")] == 2
    assert len(found) == len(dict(found)) == len(state)


@pytest.mark.parametrize("where", ["key", "value"])
def test_a_zone_that_is_missing_here_is_named_and_nothing_is_lost(world: World, rules: Any, where: str) -> None:
    rules(1, 2)
    moment = at(12, "Test/A")
    content: dict[Any, Any] = {moment: 1} if where == "key" else {"k": [moment]}
    save(world.actor(), KeyedState(content))
    reset_tzpath([])
    ZoneInfo.clear_cache()
    zones._KNOWN.clear()
    named = "artifacts/s/.*: " if where == "key" else "the value of key 'k': "
    with pytest.raises(InvalidStateError, match=f"^{named}time zone 'Test/A' .*Nothing is lost: install .*tzdata"):
        restored(world).to_dict()
    if where == "value":
        with pytest.raises(InvalidStateError, match=r"^the value of key 'k': time zone 'Test/A'"):
            restored(world)["k"]
    rules(1, 2)
    assert restored(world).to_dict() == content
