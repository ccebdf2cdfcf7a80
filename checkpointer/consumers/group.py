"""Read and write the objects of one consumer group.

They are the owners of its partitions, and the position of each partition.

<folder>/ownership.json               one object for the group: one read shows all owners
<folder>/positions/<partition>.json   one for each partition: writers of different partitions never conflict
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime

from pyspark_checkpointer.consumers.cas_object import CasObject, Serializer
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.positions_json import (
    MAX_OWNERSHIP,
    MAX_PARTITION,
    MAX_POSITION,
    Ownership,
    Position,
    decode_ownership,
    decode_position,
    encode_ownership,
    encode_position,
)
from pyspark_checkpointer.storage.base import ListedObject

# The ownership is `large`, since it has a row for each partition of the group. It is created `empty`, since its rows
# need the store's time from the beginning, which a missing object does not tell.
_OWNERSHIP = Serializer(encode_ownership, decode_ownership, MAX_OWNERSHIP, empty=Ownership({}), large=True)
_POSITION = Serializer(encode_position, decode_position, MAX_POSITION)


MAX_OFFSET_CHARACTERS = MAX_PARTITION
"""Maximum number of characters of an offset, as of a partition's name.

A position has room for the longest of both, escaped as JSON. Longer ones are refused when they are given. Later, when
an acknowledged update is written in the background, would be too late.
"""


class Group:
    """The objects below one folder of `progress/`.

    `path_name` turns a partition's name into the one in its path; names that it makes equal share one position.
    """

    def __init__(self, context: StoreContext, folder: str, path_name: Callable[[str], str] = lambda name: name) -> None:
        self.context, self.folder, self._path_name = context, folder, path_name
        self.ownership = CasObject(context, object_paths.ownership(folder), _OWNERSHIP)
        self._positions: dict[str, CasObject[Position]] = {}

    def position(self, partition: str) -> CasObject[Position]:
        """Return the object with the position of a partition, whether it exists or not."""
        return self._object_at(self._path(partition))

    async def positions(self) -> list[Position]:
        """Return all positions of the group, by path.

        This costs one listing, and concurrent reads of the positions that the listing does not tell. Other objects are
        ignored.
        """
        listed = await self._list()
        # The objects remember what they read here, so updates after a listing need no read of their own.
        unread = [entry.path for entry in listed if entry.blob is None]
        found = dict(zip(unread, await asyncio.gather(*(self._object_at(path).read() for path in unread)), strict=True))
        for entry in listed:
            if entry.blob is not None:
                found[entry.path] = await self._object_at(entry.path).take_listed(entry.blob)
        return [
            self._checked(entry.path, position)
            for entry in listed
            if (position := found[entry.path]) is not None  # else it was deleted since the listing
        ]

    async def create(self, partitions: Iterable[str]) -> None:
        """Create positions without a value for the partitions that have none.

        If all partitions have one, this costs one listing.
        """
        # By path, so a name that is given twice, or in two spellings, is created once.
        wanted = {self._path(partition): partition for partition in partitions}
        existing = {entry.path for entry in await self._list()}
        await asyncio.gather(
            *(
                self._object_at(path).change(_create_if_missing(name))
                for path, name in wanted.items()
                if path not in existing
            )
        )

    async def delete(self, partitions: Iterable[str]) -> None:
        """Remove the positions of these partitions. A missing one is no error."""
        await self._remove([self._path(partition) for partition in partitions])

    async def clear(self) -> None:
        """Remove all positions of the group. Other objects stay."""
        await self._remove([entry.path for entry in await self._list()])

    def position_url(self, partition: str) -> str:
        """Return the URL of a position, for errors and logs."""
        return f"{self.context.store.url}/{self._path(partition)}"

    def check_place(self, partition: str, position: Position) -> None:
        """Raise `MalformedError` if the position of a partition is another one's."""
        self._checked(self._path(partition), position)

    async def _list(self) -> list[ListedObject]:
        prefix = object_paths.positions(self.folder)
        found = await self.context.store.list(prefix)
        # Objects that are no positions are not ours to read or to delete.
        return [entry for entry in found if object_paths.is_position(entry.path.removeprefix(prefix))]

    async def _remove(self, paths: list[str]) -> None:
        await self.context.store.delete(paths)
        for path in paths:
            # What these objects remember is gone: their next change would begin with a swap that is refused.
            self._positions.pop(path, None)

    def _checked(self, path: str, position: Position) -> Position:
        if self._path(position.partition) != path:
            raise misplaced(f"{self.context.store.url}/{path}", position.partition)
        return position

    def _path(self, partition: str) -> str:
        # The name is checked as it was given: `path_name` may turn a bad one into a good one.
        check_name(partition)
        return object_paths.position(self.folder, self._path_name(partition))

    def _object_at(self, path: str) -> CasObject[Position]:
        found = self._positions.get(path)
        if found is None:
            found = self._positions[path] = CasObject(self.context, path, _POSITION)
        return found


def check_name(partition: str) -> str:
    """Return the name of a partition.

    Raise `IllegalArgumentError` if no position can have it.
    """
    object_paths.encode_part(partition)  # raises if it is not text
    if len(partition) > MAX_PARTITION:
        raise IllegalArgumentError(f"{partition!r:.60}…: {len(partition)} characters, at most {MAX_PARTITION} are kept")
    return partition


def check_names(partitions: Iterable[str]) -> list[str]:
    """Return the names of partitions, each once.

    Raise `IllegalArgumentError` if this is no list of them.
    """
    if isinstance(partitions, str) or not isinstance(partitions, Iterable):
        raise IllegalArgumentError(f"{partitions!r:.60}: expected a list of names of partitions")
    return [*dict.fromkeys(map(check_name, partitions))]


def misplaced(where: str, partition: str) -> MalformedError:
    """Return the error for a position at the path of another partition.

    Somebody has copied the position there.
    """
    return MalformedError(
        f"{where}: holds the position of partition {partition!r:.60}, which stands elsewhere: remove this copy"
    )


def _create_if_missing(partition: str) -> Callable[[Position | None, datetime], Position | None]:
    def next_position(position: Position | None, now: datetime) -> Position | None:
        # A position that came since the listing stays as it is, with its lease and its value.
        return Position(partition, 0, None, now) if position is None else None

    return next_position
