"""Encrypt a root where it is, or encrypt it anew with other keys.

    _keys → encrypted copies of live objects → swap of _latest → positions of consumers → deletion of the originals

The swap is the commit: before it all clients read the root as it was, and after it none of them can. A commit of a job
that still runs makes it begin again with what is new. After a crash the same call finishes the work. Objects of both
kinds never have one path (`storage/encryption/stored_names.py`).
"""

import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.download import read_by_path, verify_bytes
from pyspark_checkpointer.checkpoint.history import read_history
from pyspark_checkpointer.checkpoint.latest import Head, read_head, refresh
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.upload import IN_FLIGHT, UploadQueue, put_once
from pyspark_checkpointer.errors import ConflictError, InvalidStateError, OutcomeUnknownError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.manifest_json import encode_pointer
from pyspark_checkpointer.manifests.model import Manifest, Ref
from pyspark_checkpointer.runtime.host import Host, Progress, tell
from pyspark_checkpointer.storage.base import (
    SWAP_LIMIT,
    Blob,
    ObjectExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    Store,
    pages,
)
from pyspark_checkpointer.storage.compare_and_swap import UndecidedError, find_object, swap_until_decided
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys, mark_of
from pyspark_checkpointer.storage.encryption.generations import check_change, end_change
from pyspark_checkpointer.storage.encryption.key_providers import HiddenNames
from pyspark_checkpointer.storage.encryption.root_keys import adopt, change_keys, layers
from pyspark_checkpointer.storage.encryption.store import EncryptedStore, Encryption
from pyspark_checkpointer.storage.encryption.stored_names import check_length

logger = logging.getLogger("pyspark_checkpointer")

MAX_CONCURRENT_COPIES = 16
"""Objects that are copied at the same time. Fewer are, where they are large."""

ROUNDS = 100
"""Largest number of times that the work begins again because a job committed meanwhile."""


@dataclass(frozen=True, slots=True)
class EncryptedRoot:
    """The result of encrypting a root, for the first time or anew."""

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
    await _refuse_signed(session.store)
    # Before the keys are made: an empty root that has keys would refuse a client without them.
    if await find_object(session.store, object_paths.LATEST, SWAP_LIMIT) is None:
        raise InvalidStateError(
            f"{session.store.url}: nothing was committed here yet: let the first client have the encryption"
        )
    if isinstance(encryption, HiddenNames):
        await _check_names(session.store)
    keys = await adopt(session.store, encryption)
    work = _Encrypting(session.host, session.store, None, keys, progress)
    await work.commit()
    await work.encrypt_positions()
    return await work.delete_originals()


async def reencrypt_root(
    session: Session, encryption: Encryption | str | None, progress: Progress | None = None
) -> EncryptedRoot:
    """Encrypt an encrypted root anew, with another data key.

    Another provider opens it.

    Raises `IllegalArgumentError` where `session` was not opened with a provider of keys, and `InvalidStateError`
    where its provider does not open the root.
    """
    await _refuse_signed(session.store, "encrypted anew")
    stored, change = await change_keys(session.store, encryption, _check_names)
    work = _Encrypting(session.host, stored, change.before, change.after, progress)
    if change.before is not None:
        await work.commit()
        await work.encrypt_positions()
        # A job may have begun the root meanwhile, in which there were only positions.
        await work.commit()
        await end_change(stored, change.after, deletes=True)
    done = await work.delete_originals()
    await end_change(stored, change.after, deletes=False)
    return done


async def _refuse_signed(store: Store, what: str = "encrypted") -> None:
    """Raise `InvalidStateError` for a signed root.

    Only its signers may write a manifest there.
    """
    # As it is stored: once an earlier call has committed, the keys of this client open nothing.
    stored = next((one.inner for one in layers(store) if isinstance(one, EncryptedStore)), store)
    if await find_object(stored, object_paths.SIGNERS, SWAP_LIMIT) is not None:
        raise InvalidStateError(
            f"{store.url}: is signed, and cannot be {what} where it is: export a checkpoint to a new root, with "
            "encryption and signing"
        )


async def _check_names(store: Store) -> None:
    """Raise `IllegalArgumentError` for a root with a name that is too long to hide.

    Done before its keys say that they are hidden: nothing could finish the work then.
    """
    folders = list(await store.folders(object_paths.ARTIFACTS))
    async for entries in pages(store, object_paths.CONSUMERS):
        folders += [entry.path for entry in entries]
    for path in folders:
        for part in path.split("/"):
            check_length(part.removesuffix(".json"))


class _Encrypting:
    """One call: the root as it is, and as it is going to be."""

    def __init__(
        self, host: Host, stored: Store, before: DataKeys | None, keys: DataKeys, progress: Progress | None
    ) -> None:
        """Take the root as stored, and its keys; `before` is None for a plain root."""
        self._stored, self._host, self._before, self._keys = stored, host, before, keys
        self._source: Store = stored if before is None else EncryptedStore(stored, before)
        self._target: Store = EncryptedStore(stored, keys)
        self._progress = progress
        self._copied: set[str] = set()
        self._total = 0
        self.objects = self.bytes = 0

    async def commit(self) -> None:
        """Copy what is live, and swap `_latest`."""
        for _ in range(ROUNDS):
            blob = await find_object(self._stored, object_paths.LATEST, SWAP_LIMIT)
            if blob is not None and self._is_done(object_paths.LATEST, blob):
                return  # an earlier call got so far
            head = await read_head(self._source)
            if head.pointer is None:
                return  # there are only positions here
            try:
                await self._copy_live(head)
            except ObjectNotFoundError as error:
                await refresh(self._source, head, error)  # it raises unless somebody moved `_latest` meanwhile
                continue
            if await self._swap(head):
                return
        raise ConflictError(f"{self._stored.url}: a job commits all the time: stop it, and call this again")

    def _is_done(self, path: str, blob: Blob) -> bool:
        """Return whether an object that is replaced has the new keys already."""
        return blob.data.startswith(mark_of(path, self._keys.generation))

    async def _copy_live(self, head: Head) -> None:
        """Copy every object that a live checkpoint names."""
        assert head.pointer is not None
        queue = UploadQueue()
        try:
            async for ref, manifest in self._live(head):
                sizes = {s.path: s.size for operator in manifest.operators.values() for s in operator.segments}
                loaded = await metadata.load_operators(self._source, self._host, manifest)
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
        history = await read_history(self._source, head)
        for pair in history.ancestry:
            yield pair
        others = [entry.ref for entry in history.entries] + ([head.prepared] if head.prepared is not None else [])
        for ref in dict.fromkeys(others):
            yield ref, await metadata.read_manifest_alone(self._source, ref)

    async def _copy(self, path: str) -> None:
        """Copy an object whose path holds its digest, which is compared."""
        data = await read_by_path(self._source, self._host, path)
        await put_once(self._target, path, data)
        await self._count(len(data))

    async def _copy_manifest(self, ref: Ref) -> None:
        path = object_paths.manifest(ref.id)
        if path in self._copied:
            return
        data = (await self._source.get(path)).data
        await verify_bytes(self._host, path, data, len(data), ref.digest)
        await metadata.put_manifest(self._target, ref.id, data)
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
            found = await swap_until_decided(self._stored, object_paths.LATEST, data, head.version, SWAP_LIMIT)
        except UndecidedError as error:
            raise OutcomeUnknownError(
                f"{self._stored.url}: a swap of _latest was sent and nothing proves whether it took effect: call this "
                "again, which goes on from there"
            ) from error.__cause__
        return found is not None and found.data == data

    async def encrypt_positions(self) -> None:
        """Encrypt what consumers and followers store, object by object."""
        async for stored, path in self._positions():
            await self._encrypt_in_place(stored, path)

    async def _positions(self) -> AsyncIterator[tuple[str, str]]:
        """Yield the stored path and the path of every position not at its new path."""
        async for entries in pages(self._stored, object_paths.CONSUMERS):
            for entry in entries:
                if self._keys.hides_names and self._keys.logical_path(entry.path) is not None:
                    continue
                path = entry.path if self._before is None else self._before.logical_path(entry.path)
                if path is not None:
                    yield entry.path, path

    async def _encrypt_in_place(self, stored: str, path: str) -> None:
        """Encrypt an object where it is stored, then give it its new path.

        So no old writer can replace it meanwhile.
        """
        for _ in range(ROUNDS):
            blob = await find_object(self._stored, stored, SWAP_LIMIT)
            if blob is None:
                return
            data = blob.data
            if not self._is_done(path, blob):
                content = data if self._before is None else self._before.decrypt(path, data)
                data = self._keys.encrypt(path, content)
                try:
                    await self._stored.compare_and_swap(stored, data, blob.version)
                except PreconditionFailedError:
                    continue  # a consumer stored another position meanwhile
                await self._count(len(content))
            await self._move(stored, self._keys.stored_path(path), data)
            return
        raise ConflictError(
            f"{self._stored.url}/{stored}: is written all the time: stop its consumers, and call this again"
        )

    async def _move(self, stored: str, target: str, data: bytes) -> None:
        """Give an encrypted object its new path, which differs where names are hidden."""
        if stored == target:
            return
        # Where something is there, an earlier call wrote it, and a consumer may have replaced it since.
        with suppress(ObjectExistsError):
            await self._stored.put(target, data)
        await self._stored.delete([stored])

    async def delete_originals(self) -> EncryptedRoot:
        """Delete the objects of the format that have older keys, or none.

        What is left of their writes is deleted too. Nothing reads them any more.
        """
        names, deleted = self._keys.names, 0
        async for entries in pages(self._stored, ""):
            # Never what is not of the format: it belongs to somebody else.
            paths = [entry.path for entry in entries if names.is_outdated(entry.path)]
            if paths:
                # The root may have been removed since, and begun anew.
                await check_change(self._stored, self._keys)
                await self._stored.delete(paths)
            deleted += len(paths)
        leftovers = [left for left in await self._stored.leftovers() if names.is_outdated(left.path)]
        if leftovers:
            await self._stored.discard(leftovers)
        url = self._stored.url
        logger.info("%s: is encrypted; %d objects were copied, %d deleted", url, self.objects, deleted)
        return EncryptedRoot(url, self.objects, self.bytes, deleted)


__all__ = ["EncryptedRoot", "encrypt_root", "reencrypt_root"]
