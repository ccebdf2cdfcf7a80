"""Encrypt the objects that are replaced by swaps, each where it is.

These are the positions of consumers, and the list of signers. `encrypt.py` copies all other objects.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from pyspark_checkpointer.errors import ConflictError, CorruptionError, InvalidStateError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_text import ENCRYPTED
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import (
    SWAP_LIMIT,
    Blob,
    ObjectExistsError,
    PreconditionFailedError,
    Store,
    pages,
)
from pyspark_checkpointer.storage.compare_and_swap import find_object
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys, mark_of

ROUNDS = 100
"""Largest number of times that the work begins again because somebody wrote meanwhile."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """A root as it is stored, and its keys before and after."""

    stored: Store
    before: DataKeys | None
    """None where the root is not encrypted yet."""
    after: DataKeys
    count: Callable[[int], Awaitable[None]]
    """A function that is called for each object, with its size."""

    def is_done(self, path: str, blob: Blob) -> bool:
        """Return whether an object that is replaced has the new keys already."""
        return blob.data.startswith(mark_of(path, self.after.generation))

    async def encrypt_positions(self) -> None:
        """Encrypt what consumers and followers store, object by object."""
        async for stored, path in self._positions():
            await self._encrypt(stored, path)

    async def encrypt_signers(self) -> None:
        """Encrypt the list of signers of a signed root, with its signature."""
        await self._encrypt(object_paths.SIGNERS, object_paths.SIGNERS)

    async def _positions(self) -> AsyncIterator[tuple[str, str]]:
        """Yield the stored path and the path of every position not at its new path."""
        async for entries in pages(self.stored, object_paths.CONSUMERS):
            for entry in entries:
                if self.after.hides_names and self.after.logical_path(entry.path) is not None:
                    continue
                path = entry.path if self.before is None else self.before.logical_path(entry.path)
                if path is not None:
                    yield entry.path, path

    async def _encrypt(self, stored: str, path: str) -> None:
        """Encrypt an object where it is stored, then give it its new path.

        So no old writer can replace it meanwhile.
        """
        for _ in range(ROUNDS):
            blob = await find_object(self.stored, stored, SWAP_LIMIT)
            if blob is None:
                return
            data = blob.data
            if not self.is_done(path, blob):
                content = self._content(stored, path, data)
                if content is None:
                    return
                data = self.after.encrypt(path, content)
                try:
                    await self.stored.compare_and_swap(stored, data, blob.version)
                except PreconditionFailedError:
                    continue  # a consumer stored another position meanwhile
                await self.count(len(content))
            await self._move(stored, self.after.stored_path(path), data)
            return
        raise ConflictError(
            f"{self.stored.url}/{stored}: is written all the time: stop its consumers, and call this again"
        )

    def _content(self, stored: str, path: str, data: bytes) -> bytes | None:
        """Return the content of an object, or None for one that is none of this root.

        Raises an error for one of the root that cannot be decrypted. It is not left out: it may only be misread.
        """
        if self.before is None:
            if data.startswith(ENCRYPTED):
                raise InvalidStateError(
                    f"{self.stored.url}/{stored}: is encrypted with another data key than the root has: look who wrote "
                    "it"
                )
            return data
        try:
            return self.before.decrypt(path, data)
        except (CorruptionError, InvalidStateError) as error:
            known = path in (object_paths.FOLLOWERS, object_paths.SIGNERS)
            if known or object_paths.parse_position_path(path) is not None:
                raise type(error)(
                    f"{error}. If nobody can mend it, keep a copy, delete it, and call this again"
                ) from None
        log_safely(logging.WARNING, "%s/%s: is no object of this root, and was left as it is", self.stored.url, stored)
        return None

    async def _move(self, stored: str, target: str, data: bytes) -> None:
        """Give an encrypted object its new path, which differs where names are hidden."""
        if stored == target:
            return
        # Where something is there, an earlier call wrote it, and a consumer may have replaced it since.
        with suppress(ObjectExistsError):
            await self.stored.put(target, data)
        await self.stored.delete([stored])


__all__ = ["ROUNDS", "InPlace"]
