"""Copies of a keyed state, keys of odd sizes, and zones that come back as they were."""

import copy
import pickle
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.msgpack_checks import UnsupportedValueError
from pyspark_checkpointer.manifests.msgpack_values import pack, unpack
from pyspark_checkpointer.manifests.tagged_json import to_json
from tests.keyed.states import filled, save, saved
from tests.stack import outcomes
from tests.world import World


def test_a_state_is_not_pickled_and_the_error_names_what_works() -> None:
    state = KeyedState({"a": [1]})
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(IllegalArgumentError, match=r"state\.to_dict\(\)"):
            pickle.dumps({"in": [state]}, protocol)
    assert pickle.loads(pickle.dumps(state.to_dict())) == {"a": [1]}


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda s: copy.deepcopy({"in": [s]})["in"][0]])
def test_a_copy_is_a_state_of_its_own(world: World, make: Any) -> None:
    client, state = world.actor(), filled(partitions=3, held=[1])
    save(client, state)
    held = state["held"]
    other = make(state)
    held.append(2)
    other["only here"] = {"n": 1}
    other["held"].append("other")
    del other["bulk 1"]
    assert state["held"] == [1, 2]
    assert "only here" not in state
    assert "bulk 1" in state
    save(client, state)
    assert saved(world) == dict(state)
    save(client, other)
    assert saved(world) == dict(other)
    assert other.partitions == 3
    assert other["held"] == [1, "other"]


def nested(levels: int) -> Any:
    key: Any = "x"
    for _ in range(levels):
        key = (key,)
    return key


@pytest.mark.parametrize("levels", [33, 300, 2_000])
@pytest.mark.parametrize("make", [nested, lambda n: ("a", frozenset({nested(n)}))], ids=["tuples", "a set"])
def test_a_key_of_too_many_levels_is_refused(levels: int, make: Any) -> None:
    state, key = KeyedState(), make(levels)
    for change in (
        lambda: state.__setitem__(key, 1),
        lambda: state.setdefault(key, 1),
        lambda: state.update({key: [1]}),
    ):
        with pytest.raises(IllegalArgumentError, match="inside the other"):
            change()
    assert len(state) == 0
    assert "x" not in state


def test_a_key_that_is_there_is_found_or_the_stack_is_said_to_be_full() -> None:
    key = ("a", (1, frozenset({("b", (2, (3,)))})))
    state = KeyedState({key: 1})
    assert outcomes(lambda: key in state) == {True, RecursionError}
    assert outcomes(lambda: state.get(key)) == {1, RecursionError}
    assert nested(2_000) not in state


@pytest.mark.parametrize(
    "huge",
    [10**4300, -(10**9000), (10**5000, "x"), frozenset({10**5000})],
    ids=["just", "negative", "in a tuple", "in a set"],
)
def test_integers_longer_than_python_writes_are_keys_and_values(world: World, huge: Any) -> None:
    client = world.actor()
    save(client, KeyedState({huge: huge, "in": {"a": [huge]}}))
    assert saved(world) == {huge: huge, "in": {"a": [huge]}}
    state = KeyedState({huge: object()})
    with pytest.raises(IllegalArgumentError, match=r"an integer of [\d,]+ bits.*object"):
        save(client, state)
    with pytest.raises(IllegalArgumentError, match="NaN"):
        KeyedState({(huge, float("nan")): 1})
    with pytest.raises(IllegalArgumentError, match="cannot be stored"):
        KeyedState()[huge, object()] = 1
    assert "$" in str(to_json({huge: [huge]}))


ZONES = [
    UTC,
    timezone(timedelta(0), "Z"),
    timezone(timedelta(hours=1)),
    timezone(timedelta(hours=1), "CET"),
    timezone(timedelta(hours=-3, microseconds=-1), "odd one"),
    ZoneInfo("UTC"),
    ZoneInfo("Europe/Berlin"),
    ZoneInfo.no_cache("Europe/Berlin"),
    pickle.loads(pickle.dumps(ZoneInfo("Asia/Kathmandu"))),
]


@pytest.mark.parametrize("zone", ZONES, ids=lambda zone: f"{type(zone).__name__} {zone}")
def test_a_zone_comes_back_by_its_name(world: World, zone: Any) -> None:
    moment = datetime(2024, 10, 27, 2, 30, 1, 2, zone, fold=1)
    for back in (unpack(pack(moment)), next(iter(unpack(pack({moment: 1}))))):
        assert type(back.tzinfo) is type(zone)
        assert (back.tzname(), str(back.tzinfo), back.utcoffset()) == (moment.tzname(), str(zone), moment.utcoffset())
        assert back.replace(tzinfo=None) == moment.replace(tzinfo=None)
        assert back.fold == 1
    client = world.actor()
    save(client, KeyedState({moment: [moment]}))
    for key, (value,) in saved(world).items():
        assert str(key.tzinfo) == str(value.tzinfo) == str(zone)
        assert key.tzname() == value.tzname() == moment.tzname()


def test_no_two_zones_have_one_form() -> None:
    forms = {str(to_json(datetime(2024, 1, 1, tzinfo=zone))) for zone in ZONES}
    assert len(forms) == len(ZONES) - 1  # one of them is there twice
    assert to_json(datetime(2024, 1, 1, tzinfo=ZONES[3])) == {"$datetime": "2024-01-01T00:00:00+01:00", "name": "CET"}


@pytest.mark.parametrize("key", [None, "Europe/Berlin"])
def test_a_zone_that_was_read_from_a_file_is_refused(key: str | None) -> None:
    """Its name may be that of another zone, which would come back."""
    folder = next(Path(path) for path in zoneinfo.TZPATH if (Path(path) / "Asia/Tokyo").exists())
    with (folder / "Asia/Tokyo").open("rb") as file:
        zone = ZoneInfo.from_file(file, key=key)
    with pytest.raises(UnsupportedValueError, match="ZoneInfo"):
        pack(datetime(2024, 1, 1, tzinfo=zone))


def test_a_decimal_of_many_digits_is_a_key() -> None:
    key = Decimal("1." + "1" * 6000)
    assert KeyedState({key: 1})[key] == 1
