"""Read everything that a store holds of stream consumers, for people.

This costs one listing, and a read for each object.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pyspark_checkpointer.consumers.eventhub import checkpoint as eventhub
from pyspark_checkpointer.consumers.eventprocessorhost import checkpoint_info as eph
from pyspark_checkpointer.consumers.group import misplaced
from pyspark_checkpointer.consumers.kinesis import state as kinesis
from pyspark_checkpointer.consumers.kinesis.sequence import TRIM_HORIZON
from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.positions_json import (
    MAX_MARKER,
    MAX_OWNERSHIP,
    MAX_POSITION,
    Marker,
    Ownership,
    Position,
    Row,
    decode_marker,
    decode_ownership,
    decode_position,
)
from pyspark_checkpointer.storage.base import ObjectNotFoundError, Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConsumedPartition:
    """One partition of a consumer group, with its owner and its position.

    Each of the two is None if it was never recorded.
    """

    group: tuple[str, ...]
    name: str
    row: Row | None
    position: Position | None


@dataclass(frozen=True, slots=True)
class ConsumersOverview:
    """All partitions, by group and name, and messages about unreadable objects.

    There is one message for each object that could not be read.
    """

    partitions: tuple[ConsumedPartition, ...]
    damage: tuple[str, ...]


async def read_consumers(store: Store) -> ConsumersOverview:
    """Return all partitions of all consumer groups in a store.

    Damaged objects are named, and do not hide others.
    """
    names = [
        name
        for entry in await store.list(object_paths.CONSUMERS)
        if (name := object_paths.parse_position_path(entry.path))
    ]
    damage: list[str] = []
    found = await asyncio.gather(*(_read(store, name, damage) for name in names))
    rows: dict[tuple[tuple[str, ...], str], Row] = {}
    positions: dict[tuple[tuple[str, ...], str], Position] = {}
    for name, value in zip(names, found, strict=True):
        if isinstance(value, Ownership):
            rows |= {(name.group, _comparable(name, row.partition)): row for row in value.rows.values()}
        elif isinstance(value, Position):
            positions[name.group, _comparable(name, value.partition)] = value
    # Partitions are often numbers: by length first, so that 9 comes before 10.
    keys = sorted(rows.keys() | positions.keys(), key=lambda key: (key[0], len(key[1]), key[1]))
    partitions = [_partition(key[0], rows.get(key), positions.get(key)) for key in keys]
    return ConsumersOverview(tuple(partitions), tuple(sorted(damage)))


def _partition(group: tuple[str, ...], row: Row | None, position: Position | None) -> ConsumedPartition:
    named = position if row is None else row
    assert named is not None
    return ConsumedPartition(group, named.partition, row=row, position=position)


def _comparable(name: object_paths.PositionPath, partition: str) -> str:
    """Return the name of a partition as its interface compares it.

    Event Hubs compares names without case. An owner and a position may spell one differently.
    """
    return partition.lower() if name.group[0] == "eventhub" else partition


_DECODERS: dict[str, tuple[Callable[[str, bytes], Ownership | Position | Marker], int]] = {
    "ownership": (decode_ownership, MAX_OWNERSHIP),
    "position": (decode_position, MAX_POSITION),
    "store": (decode_marker, MAX_MARKER),
}
"""Decoder and maximum size in bytes, by kind of object."""

_VALUE_CHECKS: dict[str, Callable[[str, Position], object]] = {
    "eventhub": eventhub.decode,
    "eventprocessorhost": lambda name, position: eph.decode(name, position.partition, position.value),
    # Any place to begin would do: the decoder needs one for a shard without a checkpoint, and the result is not used.
    "kinesis": lambda name, position: kinesis.decode(position.partition, position.value, TRIM_HORIZON),
}
"""Decoder of a position's value, by interface.

It raises what the consumers of the interface would raise.
"""


def _check(name: object_paths.PositionPath, position: Position) -> None:
    """Raise if a position is not in its place, or its interface cannot read it.

    A position is not in its place if it belongs to another path.
    """
    partition = _comparable(name, position.partition)
    if name.path.rpartition("/")[2] != f"{object_paths.encode_part(partition)}.json":
        raise misplaced(name.path, partition)
    _VALUE_CHECKS[name.group[0]](name.path, position)


async def _read(
    store: Store, name: object_paths.PositionPath, damage: list[str]
) -> Ownership | Position | Marker | None:
    """Return an object, or None if it is gone or damaged.

    A message about damage goes to `damage`.
    """
    decode, limit = _DECODERS[name.kind]
    try:
        found = decode(name.path, (await store.get(name.path, limit=limit)).data)
        if isinstance(found, Position):
            _check(name, found)
        return found
    except ObjectNotFoundError:
        return None  # It was deleted since the listing.
    except CorruptionError as error:
        # Some decoders name only the shard; the path tells the reader which object to look at.
        damage.append(str(error) if name.path in str(error) else f"{name.path}: {error}")
        return None
