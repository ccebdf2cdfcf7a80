"""Everything that a root holds of its consumers' progress, for people: one listing, and a read for each object."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from checkpointer.errors import CorruptionError
from checkpointer.store.base import ObjectNotFoundError, Store
from manifests import layout
from manifests.progress import (
    MAX_OWNERSHIP,
    MAX_POSITION,
    Ownership,
    Position,
    Row,
    decode_ownership,
    decode_position,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a group: who has it, and how far it is. What was never recorded is None."""

    group: tuple[str, ...]
    name: str
    row: Row | None
    position: Position | None


@dataclass(frozen=True, slots=True)
class Survey:
    """All partitions, by group and name, and what could not be read of them."""

    partitions: tuple[Partition, ...]
    damage: tuple[str, ...]


async def survey(store: Store) -> Survey:
    names = [name for entry in await store.list(layout.PROGRESS) if (name := layout.parse_progress(entry.path))]
    damage: list[str] = []
    found = await asyncio.gather(*(_read(store, name, damage) for name in names))
    rows: dict[tuple[tuple[str, ...], str], Row] = {}
    positions: dict[tuple[tuple[str, ...], str], Position] = {}
    for name, value in zip(names, found, strict=True):
        if isinstance(value, Ownership):
            rows |= {(name.group, row.partition): row for row in value.rows.values()}
        elif value is not None:
            positions[name.group, value.partition] = value
    keys = sorted(rows.keys() | positions.keys(), key=lambda key: (key[0], len(key[1]), key[1]))  # 9 before 10
    partitions = [Partition(*key, row=rows.get(key), position=positions.get(key)) for key in keys]
    return Survey(tuple(partitions), tuple(sorted(damage)))


async def _read(store: Store, name: layout.ProgressName, damage: list[str]) -> Ownership | Position | None:
    decode: Callable[[str, bytes], Ownership | Position] = decode_ownership if name.is_ownership else decode_position
    try:
        blob = await store.get(name.path, limit=MAX_OWNERSHIP if name.is_ownership else MAX_POSITION)
        return decode(name.path, blob.data)
    except ObjectNotFoundError:
        return None  # deleted since it was listed
    except CorruptionError as error:
        damage.append(str(error))
        return None
