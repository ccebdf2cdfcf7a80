"""A key in a partition that is not its own is refused before anybody can miss it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.checkpoint.decode import merge_all
from pyspark_checkpointer.checkpoint.map_entries import living_entries
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests.keyed_records import partition_of
from pyspark_checkpointer.manifests.msgpack_values import pack
from pyspark_checkpointer.runtime import run_sync
from tests.keyed.states import filled, save
from tests.world import World

KEYS: list[Any] = ["x", b"x", 7, 7.5, Decimal("7.50"), None, ("x", 1), frozenset({"x"}), datetime(2024, 1, 2)]

USES: dict[str, Callable[[KeyedState, Any], object]] = {
    "get": lambda s, key: s.get(key),
    "in": lambda s, key: key in s,
    "set": lambda s, key: s.__setitem__(key, 2),
    "set a list": lambda s, key: s.__setitem__(key, [2]),
    "update": lambda s, key: s.update({key: 2, "other": 3}),
    "setdefault": lambda s, key: s.setdefault(key, 2),
    "delete": lambda s, key: s.pop(key, None),
    "popitem": lambda s, key: s.popitem(),
    "another key": lambda s, key: s.get("no such key"),
    "len": lambda s, key: len(s),
    "items": lambda s, key: list(s.items()),
    "to_dict": lambda s, key: s.to_dict(),
    "clear": lambda s, key: s.clear(),
}
EVERY_USE = pytest.mark.parametrize("use", USES.values(), ids=USES)


def misplace(state: KeyedState, key: Any) -> int:
    """Put a key into the partition after its own, and return the number of that one."""
    number = (partition_of(key, state.partitions) + 1) % state.partitions
    state._parts[number].set_packed(key, pack(1))
    return number


def restored(world: World) -> Restored:
    found = world.actor().restore()
    assert found is not None
    return found


@EVERY_USE
@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_no_use_of_a_map_misses_a_key_in_another_partition(world: World, key: Any, use: Any) -> None:
    client, state = world.actor(), filled(partitions=3)
    number = misplace(state, key)
    save(client, state)
    found = restored(world).keyed("s")
    for _ in range(2):  # it is refused as often as somebody asks
        with pytest.raises(CorruptionError, match=rf"^artifacts/s/.*expected keys of partition {number} of 3"):
            use(found, key)
    with pytest.raises(CorruptionError, match=f"partition {number} of 3"):
        save(client, found)


def test_a_key_that_is_found_where_it_belongs_is_read_without_a_look_at_all_others(world: World) -> None:
    state = filled(partitions=3)
    misplace(state, "x")
    save(world.actor(), state)
    found = restored(world).keyed("s")
    assert found["bulk 1"] == f"{1:032}"
    assert "bulk 2" in found


def test_the_error_names_the_delta_that_holds_the_key(world: World) -> None:
    client, state = world.actor(), filled(partitions=3)
    save(client, state)
    number = misplace(state, "x")
    save(client, state)
    delta = restored(world).operator("s").chain(number)[-1]
    assert delta.kind == "delta"
    with pytest.raises(CorruptionError) as error:
        len(restored(world).keyed("s"))
    assert str(error.value).startswith(delta.path)


def claim(world: World, partitions: int) -> None:
    """Commit the same chains with another number of partitions."""
    client = world.actor()
    client.restore()
    with client.begin() as cp:
        operator = cp.attempt.operator("s")
        assert operator is not None
        cp.attempt.put_operator("s", replace(operator, partitions=partitions))


@EVERY_USE
@pytest.mark.parametrize("partitions", [4, 1000])
def test_another_number_of_partitions_in_the_manifest_is_refused(world: World, use: Any, partitions: int) -> None:
    save(world.actor(), filled(partitions=3))
    claim(world, partitions)
    with pytest.raises(CorruptionError, match=f"of {partitions}, found 'bulk"):
        use(restored(world).keyed("s"), "no such key")


def test_a_map_is_checked_before_it_is_restored_in_other_partitions(world: World) -> None:
    save(world.actor(), filled(partitions=3))
    claim(world, 1000)
    with pytest.raises(CorruptionError, match="of 1000"):
        restored(world).keyed("s", partitions=8)


def test_the_entries_of_one_partition_are_checked(world: World) -> None:
    state = filled(partitions=3)
    number = misplace(state, "x")
    save(world.actor(), state)
    reader = restored(world).reader
    for partition in range(3):
        if partition == number:
            with pytest.raises(CorruptionError, match=f"partition {number} of 3, found 'x'"):
                run_sync(living_entries(reader, "s", partition))
        else:
            assert run_sync(living_entries(reader, "s", partition))


@pytest.mark.parametrize("partitions", [1, 2, 8, 300])
def test_keys_that_are_equal_and_of_other_types_stay_right_in_any_number_of_partitions(
    world: World, partitions: int
) -> None:
    client, state = world.actor(), filled(partitions=3)
    save(client, state)
    for one, other in [(1, True), (2.0, 2), (0.0, -0.0), (Decimal("7.50"), 7.5), ((1, "a"), (True, "a"))]:
        state[one] = 1
        save(client, state)
        del state[one]
        state[other] = 2
        save(client, state)
    found = restored(world).keyed("s", partitions=partitions)
    assert found.to_dict() == state.to_dict()
    assert [*map(pack, sorted(found, key=pack))] == [*map(pack, sorted(state, key=pack))]


def test_a_key_with_a_named_zone_may_be_in_any_partition_and_is_found(world: World) -> None:
    key = (datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")), "x")
    state = filled(partitions=3)
    misplace(state, key)
    save(world.actor(), state)
    found = restored(world).keyed("s")
    assert found[key] == 1
    assert len(found) == len([*found.items()]) == len(state)


def test_the_error_names_the_object_also_where_a_key_with_a_named_zone_was_moved(world: World) -> None:
    state = filled(partitions=3)
    number = misplace(state, "x")
    zoned = next(k for k in zoned_keys() if (partition_of(k, 3) + 1) % 3 == number)
    misplace(state, zoned)
    save(world.actor(), state)
    (artifact,) = restored(world).operator("s").chain(number)
    found = restored(world).keyed("s")
    assert found[zoned] == 1
    with pytest.raises(CorruptionError, match=f"^{re.escape(artifact.path)}: .*found 'x'"):
        len(found)


def zoned_keys() -> Iterator[datetime]:
    return (datetime(2024, 7, day, tzinfo=ZoneInfo("Europe/Berlin")) for day in range(1, 32))


def test_partitions_that_share_an_empty_snapshot_stay_apart(world: World) -> None:
    client = world.actor()
    save(client, filled(partitions=2))
    save(client, KeyedState(partitions=2))
    (empty, *_), _ = restored(world).reader.operator("s").chains.values()
    assert (empty.kind, empty.records) == ("snapshot", 0)
    deltas = [replace(empty, kind="delta", records=1, offset=n) for n in range(2)]
    decoded: dict[Any, Any] = {empty: {}, deltas[0]: {"a": b"1"}, deltas[1]: {"b": b"2"}}
    merged = merge_all([(empty, delta) for delta in deltas], decoded)
    assert [entries for _, entries, *_ in merged] == [{"a": b"1"}, {"b": b"2"}]
