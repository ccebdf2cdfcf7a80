"""The objects of one group of consumers of one stream: who reads which partition, and how far each is.

<folder>/ownership.json               one object for the group, so that looking at it is one read
<folder>/positions/<partition>.json   one for each partition, so that those who move do not meet
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime

from pyspark_checkpointer.consumers.cas_object import Document, Form, Space
from pyspark_checkpointer.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.positions_json import (
    MAX_OWNERSHIP,
    MAX_POSITION,
    Ownership,
    Position,
    decode_ownership,
    decode_position,
    encode_ownership,
    encode_position,
)

_OWNERSHIP = Form(encode_ownership, decode_ownership, MAX_OWNERSHIP, empty=Ownership({}), large=True)
_POSITION = Form(encode_position, decode_position, MAX_POSITION)


MAX_NAME = MAX_OFFSET = 16 << 10
"""Characters of a partition's name, and of an offset: a position has room for the longest of both, escaped as JSON.

A position that cannot be written later is refused before its update is acknowledged.
"""


class Group:
    """What stands below one folder of `progress/`. `key` makes of a partition's name the one in its path."""

    def __init__(self, space: Space, folder: str, key: Callable[[str], str] = lambda name: name) -> None:
        self.space, self.folder, self._key = space, folder, key
        self.ownership = Document(space, object_paths.ownership(folder), _OWNERSHIP)
        self._positions: dict[str, Document[Position]] = {}

    def position(self, partition: str) -> Document[Position]:
        return self._at(self._path(partition))

    async def positions(self) -> list[Position]:
        """Every position of the group, by path: one listing, and the reads at once. Other objects are ignored."""
        paths = await self._listed()
        found = await asyncio.gather(*(self._at(path).read() for path in paths))
        return [
            self._checked(path, position)
            for path, position in zip(paths, found, strict=True)
            if position is not None  # deleted meanwhile
        ]

    async def create(self, partitions: Iterable[str]) -> None:
        """Make positions without a value for those of the partitions that have none. One listing where all have one."""
        wanted = {self._path(partition): partition for partition in partitions}
        there = set(await self._listed())
        await asyncio.gather(
            *(self._at(path).change(_making(name)) for path, name in wanted.items() if path not in there)
        )

    async def delete(self, partitions: Iterable[str]) -> None:
        """Remove positions. What is not there is no error."""
        await self._remove([self._path(partition) for partition in partitions])

    async def clear(self) -> None:
        """Remove every position of the group. Other objects stay."""
        await self._remove(await self._listed())

    async def _listed(self) -> list[str]:
        prefix = object_paths.positions(self.folder)
        paths = [entry.path for entry in await self.space.store.list(prefix)]
        return [path for path in paths if object_paths.is_position(path.removeprefix(prefix))]

    async def _remove(self, paths: list[str]) -> None:
        await self.space.store.delete(paths)
        for path in paths:
            self._positions.pop(path, None)

    def _checked(self, path: str, position: Position) -> Position:
        if self._path(position.partition) != path:
            raise MalformedError(
                f"{self.space.store.url}/{path}: is the position of partition {position.partition!r:.60}, "
                "which stands elsewhere: remove this copy"
            )
        return position

    def name(self, partition: str) -> str:
        """Return a position as an operator would look for it."""
        return f"{self.space.store.url}/{self._path(partition)}"

    def _path(self, partition: str) -> str:
        check_name(partition)  # before the key makes something else of it
        return object_paths.position(self.folder, self._key(partition))

    def _at(self, path: str) -> Document[Position]:
        return self._positions.setdefault(path, Document(self.space, path, _POSITION))


def check_name(partition: str) -> str:
    """Return the name of a partition; `IllegalArgumentError` where no position could have it."""
    object_paths.encode_part(partition)  # refuses what is no text
    if len(partition) > MAX_NAME:
        raise IllegalArgumentError(f"{partition!r:.60}…: {len(partition)} characters, at most {MAX_NAME} are kept")
    return partition


def _making(partition: str) -> Callable[[Position | None, datetime], Position | None]:
    def plan(position: Position | None, now: datetime) -> Position | None:
        return Position(partition, 0, None, now) if position is None else None

    return plan
