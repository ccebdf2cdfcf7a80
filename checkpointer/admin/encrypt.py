"""Encrypt a root where it is.

    _keys → an encrypted copy of each live object → swap of _latest → positions of consumers → deletion of the originals

The swap is the commit: before it all clients read what is not encrypted, and after it none of them can. A commit of a
job that still runs makes it begin again with what is new. After a crash the same call finishes the work.
"""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.download import read_by_path, verify_bytes
from pyspark_checkpointer.checkpoint.history import read_history
from pyspark_checkpointer.checkpoint.latest import Head, read_head, refresh
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.upload import IN_FLIGHT, UploadQueue, put_once
from pyspark_checkpointer.errors import ConflictError, InvalidStateError, OutcomeUnknownError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_text import ENCRYPTED
from pyspark_checkpointer.manifests.manifest_json import encode_pointer
from pyspark_checkpointer.manifests.model import Manifest, Ref
from pyspark_checkpointer.runtime.host import Progress, tell
from pyspark_checkpointer.storage.base import SWAP_LIMIT, ObjectNotFoundError, PreconditionFailedError, Store, pages
from pyspark_checkpointer.storage.compare_and_swap import UndecidedError, find_object, swap_until_decided
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.root_keys import adopt
from pyspark_checkpointer.storage.encryption.store import EncryptedStore, Encryption

logger = logging.getLogger("pyspark_checkpointer")

MAX_CONCURRENT_COPIES = 16
"""Objects that are copied at the same time. Fewer are, where they are large."""

ROUNDS = 100
"""Largest number of times that the work begins again because a job committed meanwhile."""


@dataclass(frozen=True, slots=True)
class EncryptedRoot:
    """The result of encrypting a root."""

    root: str
    objects: int
    """Objects that were copied, in this call."""
    bytes: int
    """Their bytes before encryption."""
    deleted: int
    """Originals that were deleted, in this call."""


async def encrypt_root(
    session: Session, encryption: Encryption | str | None, progress: Progress | None = None
) -> EncryptedRoot:
    """Encrypt a root of which `session` reads what is not encrypted.

    Raises `InvalidStateError` where nothing was committed yet.
    """
    # Before the keys are made: an empty root that has keys would refuse a client without them.
    if await find_object(session.store, object_paths.LATEST, SWAP_LIMIT) is None:
        raise InvalidStateError(
            f"{session.store.url}: nothing was committed here yet: let the first client have the encryption"
        )
    work = _Encrypting(session, await adopt(session.store, encryption), progress)
    await work.commit()
    await work.encrypt_positions()
    deleted = await work.delete_originals()
    logger.info("%s: is encrypted; %d objects were copied, %d deleted", session.store.url, work.objects, deleted)
    return EncryptedRoot(session.store.url, work.objects, work.bytes, deleted)


class _Encrypting:
    """One call: the root as it is, and as it is going to be."""

    def __init__(self, session: Session, keys: DataKeys, progress: Progress | None) -> None:
        self._plain, self._host, self._keys = session.store, session.host, keys
        self._encrypted: Store = EncryptedStore(session.store, keys)
        self._progress = progress
        self._copied: set[str] = set()
        self._total = 0
        self.objects = self.bytes = 0

    async def commit(self) -> None:
        """Copy what is live, and swap `_latest`."""
        for _ in range(ROUNDS):
            blob = await find_object(self._plain, object_paths.LATEST, SWAP_LIMIT)
            if blob is not None and blob.data.startswith(ENCRYPTED):
                return  # an earlier call got so far
            head = await read_head(self._plain)
            try:
                await self._copy_live(head)
            except ObjectNotFoundError as error:
                await refresh(self._plain, head, error)  # it raises unless somebody moved `_latest` meanwhile
                continue
            if await self._swap(head):
                return
        raise ConflictError(f"{self._plain.url}: a job commits all the time: stop it, and call this again")

    async def _copy_live(self, head: Head) -> None:
        """Copy every object that a live checkpoint names."""
        assert head.pointer is not None
        queue = UploadQueue()
        try:
            async for ref, manifest in self._live(head):
                sizes = {s.path: s.size for operator in manifest.operators.values() for s in operator.segments}
                loaded = await metadata.load_operators(self._plain, self._host, manifest)
                for operator in loaded.operators.values():
                    sizes |= {one.path: one.size for chain in operator.chains.values() for one in chain if one.length}
                for path in sizes.keys() - self._copied:
                    self._copied.add(path)
                    self._total += sizes[path]
                    await queue.submit(self._copy(path), max(sizes[path], IN_FLIGHT // MAX_CONCURRENT_COPIES))
                await self._copy_manifest(ref)
            if head.pointer.catalog is not None:
                await self._copy(head.pointer.catalog.path)
            await queue.join()
        finally:
            await queue.cancel()

    async def _live(self, head: Head) -> AsyncIterator[tuple[Ref, Manifest]]:
        """Yield every live checkpoint.

        These are the checkpoints of the history and of the catalog, and the prepared one.
        """
        history = await read_history(self._plain, head)
        for pair in history.ancestry:
            yield pair
        others = [entry.ref for entry in history.entries] + ([head.prepared] if head.prepared is not None else [])
        for ref in dict.fromkeys(others):
            yield ref, await metadata.read_manifest_alone(self._plain, ref)

    async def _copy(self, path: str) -> None:
        """Copy an object whose path holds its digest, which is compared."""
        data = await read_by_path(self._plain, self._host, path)
        await put_once(self._encrypted, path, data)
        await self._count(len(data))

    async def _copy_manifest(self, ref: Ref) -> None:
        path = object_paths.manifest(ref.id)
        if path in self._copied:
            return
        data = (await self._plain.get(path)).data
        await verify_bytes(self._host, path, data, len(data), ref.digest)
        await metadata.put_manifest(self._encrypted, ref.id, data)
        self._copied.add(path)
        self._total += len(data)
        await self._count(len(data))

    async def _count(self, size: int) -> None:
        self.objects += 1
        self.bytes += size
        await tell(self._host, self._progress, self.bytes, max(self._total, self.bytes))

    async def _swap(self, head: Head) -> bool:
        """Put an encrypted `_latest` in the place of `head`.

        Return False if somebody else moved it first.
        """
        assert head.pointer is not None
        # Readers of what was replaced lately cannot go on anyway, as they have no keys.
        planned = replace(head.pointer, retired=(), nonce=self._host.token(32))
        data = self._keys.encrypt(object_paths.LATEST, encode_pointer(planned))
        try:
            found = await swap_until_decided(self._plain, object_paths.LATEST, data, head.version, SWAP_LIMIT)
        except UndecidedError as error:
            raise OutcomeUnknownError(
                f"{self._plain.url}: a swap of _latest was sent and nothing proves whether it took effect: call this "
                "again, which goes on from there"
            ) from error.__cause__
        return found is not None and found.data == data

    async def encrypt_positions(self) -> None:
        """Encrypt what consumers and followers store, object by object."""
        async for entries in pages(self._plain, object_paths.CONSUMERS):
            for entry in entries:
                await self._encrypt_in_place(entry.path)

    async def _encrypt_in_place(self, path: str) -> None:
        for _ in range(ROUNDS):
            blob = await find_object(self._plain, path, SWAP_LIMIT)
            if blob is None or blob.data.startswith(ENCRYPTED):
                return
            try:
                await self._plain.compare_and_swap(path, self._keys.encrypt(path, blob.data), blob.version)
            except PreconditionFailedError:
                continue  # a consumer stored another position meanwhile
            await self._count(len(blob.data))
            return
        raise ConflictError(
            f"{self._plain.url}/{path}: is written all the time: stop its consumers, and call this again"
        )

    async def delete_originals(self) -> int:
        """Delete the objects of the format that are not encrypted.

        Nothing reads them any more.
        """
        deleted = 0
        async for entries in pages(self._plain, ""):
            # Never what is not of the format: it belongs to somebody else.
            paths = [entry.path for entry in entries if object_paths.owner(entry.path) is not None]
            if paths:
                await self._plain.delete(paths)
            deleted += len(paths)
        return deleted


__all__ = ["EncryptedRoot", "encrypt_root"]
