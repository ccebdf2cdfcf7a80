"""Times in zones of the same name and of different identity: keys that are one when restored are one all along."""

from datetime import UTC, datetime, time, timedelta, timezone
from importlib.resources import files
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.keyed import state as state_module
from pyspark_checkpointer.manifests import zones
from pyspark_checkpointer.manifests.msgpack_values import pack, unpack
from tests.keyed.states import save, saved
from tests.world import World

DATABASE = files("tzdata") / "zoneinfo"
NAME = "Europe/Berlin"
REPEATED = datetime(2024, 10, 27, 2, 30)
SKIPPED = datetime(2024, 3, 31, 2, 30)
HOURS = pytest.mark.parametrize("hour", [REPEATED, SKIPPED], ids=["repeated hour", "skipped hour"])

WRAPS = {
    "time": lambda moment: moment,
    "tuple": lambda moment: ("k", (moment, 1)),
    "frozen set": lambda moment: frozenset({"k", moment}),
}
WRAPPED = pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)


def twins(hour: datetime, wrap: Any = WRAPS["time"]) -> tuple[Any, Any, Any]:
    """Equal times in three zones of one name: the cached one, that of another cache, and one of no cache."""
    first = wrap(hour.replace(tzinfo=ZoneInfo(NAME)))
    ZoneInfo.clear_cache()
    second = wrap(hour.replace(tzinfo=ZoneInfo(NAME)))
    third = wrap(hour.replace(tzinfo=ZoneInfo.no_cache(NAME)))
    assert len({first, second, third}) == 3, "to Python they are never equal"
    assert pack(first) == pack(second) == pack(third)
    return first, second, third


ENTRIES: dict[str, Any] = {
    "set": lambda s, key: s.__setitem__(key, 2),
    "set a list": lambda s, key: s.__setitem__(key, [2]),
    "setdefault": lambda s, key: s.setdefault(key, 2),
    "update": lambda s, key: s.update({key: 2}),
    "update with pairs": lambda s, key: s.update(pair for pair in [(key, 2)]),
}


@HOURS
@WRAPPED
@pytest.mark.parametrize("enter", ENTRIES.values(), ids=ENTRIES)
def test_keys_whose_zones_have_one_name_are_one_key(world: World, hour: datetime, wrap: Any, enter: Any) -> None:
    first, *others = twins(hour, wrap)
    state = KeyedState({first: [1]}, partitions=1)
    for key in others:
        enter(state, key)
    assert len(state) == len(dict(state)) == 1
    save(world.actor(), state)
    found = saved(world)
    assert list(map(pack, found)) == [pack(first)]
    assert list(found.values()) == list(state.values())


@HOURS
@WRAPPED
def test_a_key_is_found_whatever_the_identity_of_its_zone(world: World, hour: datetime, wrap: Any) -> None:
    first, *others = twins(hour, wrap)
    state = KeyedState({first: [1]})
    save(world.actor(), state)
    for found in (state, world.actor().restore().keyed("s")):  # type: ignore[union-attr]
        for key in others:
            assert found[key] == found.get(key) == [1]
            assert key in found
            assert key in found.keys()  # noqa: SIM118
            assert (key, [1]) in found.items()
            found[key] = [1]
            assert found.pop(key) == [1]
            found[first] = [1]
            del found[key]
            assert first not in found
            found[first] = [1]


@HOURS
def test_the_constructor_and_a_second_delta_know_the_key(world: World, hour: datetime) -> None:
    first, second, third = twins(hour)
    client, state = world.actor(), KeyedState([(first, 1), (second, 2)], partitions=1)
    assert len(state) == 1
    for key in (third, first):
        state[key] = 3
        save(client, state)
        del state[second]
        save(client, state)
        assert saved(world) == {}


def test_the_two_times_of_a_repeated_hour_are_one_key_and_in_utc_they_are_two(world: World) -> None:
    first = REPEATED.replace(tzinfo=ZoneInfo(NAME))
    second = first.replace(fold=1)
    state = KeyedState({first: 1})
    state[second] = 2
    assert list(state.values()) == [2]
    state = KeyedState({first.astimezone(UTC): 1, second.astimezone(UTC): 2})
    save(world.actor(), state)
    assert len(saved(world)) == len(state) == 2


def test_a_zone_that_is_found_by_no_name_is_refused_as_a_key_and_not_found() -> None:
    assert zones.known(ZoneInfo(NAME)).key == NAME
    with DATABASE.joinpath(NAME).open("rb") as file:
        key = REPEATED.replace(tzinfo=ZoneInfo.from_file(file, key=NAME))
    state = KeyedState({"a": 1})
    assert key not in state
    with pytest.raises(IllegalArgumentError, match="read from a file"):
        state[key] = 1


@WRAPPED
def test_a_time_of_day_with_a_zone_is_refused_also_beside_one_without(wrap: Any) -> None:
    """Both are equal, and only the one without a zone can be stored."""
    state = KeyedState({wrap(time(10)): 1})
    with pytest.raises(IllegalArgumentError, match="time"):
        state[wrap(time(10, tzinfo=ZoneInfo(NAME)))] = 2
    assert state.to_dict() == {wrap(time(10)): 1}


@WRAPPED
def test_a_key_that_cannot_be_stored_is_refused_also_beside_an_equal_one(wrap: Any) -> None:
    """Another thread may delete the stored one in between: then this one would take its place."""
    with DATABASE.joinpath(NAME).open("rb") as file:
        unnamed = wrap(datetime(2024, 7, 1, 12, tzinfo=ZoneInfo.from_file(file, key=NAME)))
    stored = wrap(datetime(2024, 7, 1, 10, tzinfo=UTC))
    state = KeyedState({stored: 1})
    assert unnamed == stored
    for value in (2, [2]):
        with pytest.raises(IllegalArgumentError, match="read from a file"):
            state[unnamed] = value
    assert state[unnamed] == state[stored] == 1


def test_keys_that_are_stored_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [
        datetime(2024, 7, 1, 10),
        datetime(2024, 7, 1, 10, tzinfo=UTC),
        datetime(2024, 7, 1, 10, tzinfo=ZoneInfo(NAME)),
        datetime(2024, 7, 1, 10, tzinfo=timezone(timedelta(hours=5), "X")),
    ]
    keys = [*moments, ("a", 1), ("a", (1.5, None)), frozenset({"a"}), *(("k", (moment, 1)) for moment in moments)]
    state, checked = KeyedState(partitions=1), list[Any]()
    monkeypatch.setattr(state_module, "check_key", checked.append)
    for _ in range(3):
        for key in keys:
            state[key] = 1
    assert checked == keys


def test_a_set_as_a_key_whose_members_would_become_one_is_refused() -> None:
    first, second, _ = twins(REPEATED)
    state = KeyedState()
    assert ("k", frozenset({first, second})) not in state
    with pytest.raises(IllegalArgumentError, match="zones of one name"):
        state["k", frozenset({first, second})] = 1
    assert len(state) == 0


# ---- inside of values ------------------------------------------------------------------------------------------------


@HOURS
@WRAPPED
@pytest.mark.parametrize("kind", [set, frozenset, dict.fromkeys], ids=["set", "frozen set", "dict"])
def test_a_value_whose_members_would_become_one_is_refused(hour: datetime, wrap: Any, kind: Any, world: World) -> None:
    first, second, _ = twins(hour, wrap)
    for value in (kind([first, second]), [kind([first, second])], (kind([second, first]),)):
        state = KeyedState({"k": value})
        with pytest.raises(IllegalArgumentError, match=r"key 'k'.*zones of one name"):
            save(world.actor(), state)
    assert world.actor().restore() is None


def test_members_that_differ_in_their_fold_in_two_zones_of_one_name_are_refused(world: World) -> None:
    first, second, _ = twins(REPEATED)
    assert pack(first) != pack(second.replace(fold=1))
    with pytest.raises(IllegalArgumentError, match="zones of one name"):
        save(world.actor(), KeyedState({"k": {first, second.replace(fold=1)}}))


def test_values_with_members_that_stay_what_they_are_are_stored() -> None:
    nan = float("nan")
    berlin = REPEATED.replace(tzinfo=ZoneInfo(NAME))
    values: list[Any] = [
        {nan, float("nan")},
        {berlin, SKIPPED.replace(tzinfo=ZoneInfo(NAME)), datetime(2024, 1, 1, tzinfo=UTC), 1, "x"},
        {berlin: 1, ("x", berlin): 2, "x": 3},
    ]
    for value in values:
        assert len(unpack(pack(value))) == len(value)
