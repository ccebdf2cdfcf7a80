"""Encrypt a root where it is, or encrypt it anew with other keys.

    _keys → encrypted copies of live objects → swap of _latest → positions of consumers → deletion of the originals

The swap is the commit: before it all clients read the root as it was, and after it none of them can. A commit of a job
that still runs makes it begin again with what is new. After a crash the same call finishes the work. Objects of both
kinds never have one path (`storage/encryption/stored_names.py`).
"""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from pyspark_checkpointer.admin.encrypt_checks import check_names, open_below_signatures
from pyspark_checkpointer.admin.encrypt_in_place import ROUNDS, InPlace
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.download import read_by_path, verify_bytes
from pyspark_checkpointer.checkpoint.history import read_history
from pyspark_checkpointer.checkpoint.latest import Head, refresh
from pyspark_checkpointer.checkpoint.old_copy import read_whole_head
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.upload import UploadQueue, put_once
from pyspark_checkpointer.errors import (
    ConflictError,
    CorruptionError,
    InvalidStateError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests import object_paths, signatures_json
from pyspark_checkpointer.manifests.json_text import ENCRYPTED
from pyspark_checkpointer.manifests.manifest_json import encode_pointer
from pyspark_checkpointer.manifests.model import Manifest, Ref
from pyspark_checkpointer.runtime.host import Host, Progress, tell
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import SWAP_LIMIT, ObjectNotFoundError, Store, holds, pages
from pyspark_checkpointer.storage.compare_and_swap import find_object, swap_or_explain
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.generations import check_change, end_change
from pyspark_checkpointer.storage.encryption.key_providers import HiddenNames
from pyspark_checkpointer.storage.encryption.root_keys import adopt, change_keys
from pyspark_checkpointer.storage.encryption.store import EncryptedStore, Encryption
from pyspark_checkpointer.storage.signatures.signing_keys import Signing
from pyspark_checkpointer.storage.signatures.store import SignedStore


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

    Raises `InvalidStateError` where the root holds nothing of this library, where it needs a repair first, and where it
    was encrypted before and somebody has put a `_latest` there that is not.
    """
    stored, signing = await open_below_signatures(session)
    # Before the keys are made: an empty root that has keys would refuse a client without them.
    latest = await find_object(stored, object_paths.LATEST, SWAP_LIMIT)
    is_encrypted = latest is not None and latest.data.startswith(ENCRYPTED)
    if latest is None and not await holds(stored, object_paths.is_ours):
        raise InvalidStateError(
            f"{stored.url}: nothing was begun here yet: let the first client have the encryption, in an empty root"
        )
    if is_encrypted and await find_object(stored, object_paths.KEYS, SWAP_LIMIT) is None:
        raise InvalidStateError(
            f"{stored.url}: is encrypted, and has lost its {object_paths.KEYS}: bring that back from a copy"
        )
    signers = await find_object(stored, object_paths.SIGNERS, SWAP_LIMIT)
    if latest is None and signers is not None and signers.data.startswith(ENCRYPTED):
        signing = None  # an earlier call has encrypted all that is signed here
    if not is_encrypted:
        await read_whole_head(stored if signing is None else SignedStore(stored, signing))
    # Only before the keys are made: an earlier call may have hidden names, which are longer than they were.
    if isinstance(encryption, HiddenNames) and await find_object(stored, object_paths.KEYS, SWAP_LIMIT) is None:
        await check_names(stored)
    keys, is_unfinished = await adopt(stored, encryption)
    if signers is not None and signers.data.startswith(ENCRYPTED):
        keys.decrypt(object_paths.SIGNERS, signers.data)  # anybody could write the first bytes
    work = _Encrypting(session.host, stored, None, keys, signing, progress)
    if not is_unfinished:
        await work.check_committed()
    else:
        await work.commit()
        await work.in_place.encrypt_positions()
        # A job may have begun the root meanwhile, in which there were only positions.
        await work.commit()
        await work.in_place.encrypt_signers()
        await end_change(stored, keys, deletes=False)
    return await work.delete_originals()


async def reencrypt_root(
    session: Session, encryption: Encryption | str | None, progress: Progress | None = None
) -> EncryptedRoot:
    """Encrypt an encrypted root anew, with another data key.

    Another provider opens it.

    Raises `IllegalArgumentError` where `session` was not opened with a provider of keys, and `InvalidStateError`
    where its provider does not open the root.
    """
    encrypted, signing = await open_below_signatures(session)
    stored, change = await change_keys(encrypted, encryption, check_names)
    work = _Encrypting(session.host, stored, change.before, change.after, signing, progress)
    if change.before is not None:
        await work.commit()
        await work.in_place.encrypt_positions()
        # A job may have begun the root meanwhile, in which there were only positions.
        await work.commit()
        # Last, since the signatures of all that is not encrypted anew yet are checked by this list.
        await work.in_place.encrypt_signers()
        await end_change(stored, change.after, deletes=True)
    done = await work.delete_originals()
    await end_change(stored, change.after, deletes=False)
    return done


class _Encrypting:
    """One call: the root as it is, and as it is going to be."""

    def __init__(
        self,
        host: Host,
        stored: Store,
        before: DataKeys | None,
        keys: DataKeys,
        signing: Signing | None,
        progress: Progress | None,
    ) -> None:
        """Take the root as stored, and its keys; `before` is None for a plain root."""
        self._stored, self._host, self._keys, self._progress = stored, host, keys, progress
        self._source: Store = stored if before is None else EncryptedStore(stored, before)
        self._target: Store = EncryptedStore(stored, keys)
        self._signed = None if signing is None else SignedStore(self._source, signing)
        self._reader: Store = self._signed or self._source
        """The root as it was, with its signatures checked."""
        self.in_place = InPlace(stored, before, keys, self._count)
        self._copied: set[str] = set()
        """Artifacts, segments and manifests whose copy is stored."""
        self._total = 0
        self.objects = self.bytes = 0

    async def commit(self) -> None:
        """Copy what is live, and swap `_latest`."""
        for _ in range(ROUNDS):
            blob = await find_object(self._stored, object_paths.LATEST, SWAP_LIMIT)
            if blob is not None and self.in_place.is_done(object_paths.LATEST, blob):
                # An earlier call got so far. Anybody could write the first bytes, and the originals are deleted next.
                self._keys.decrypt(object_paths.LATEST, blob.data)
                return
            # What it does not lead to is not copied, and is deleted.
            head = await read_whole_head(self._reader)
            if head.pointer is None:
                return  # there are only positions here
            try:
                await self._copy_live(head)
            except ObjectNotFoundError as error:
                await refresh(self._reader, head, error)  # it raises unless somebody moved `_latest` meanwhile
                continue
            if await self._swap(head):
                return
        raise ConflictError(f"{self._stored.url}: a job commits all the time: stop it, and call this again")

    async def check_committed(self) -> None:
        """Check that `_latest` is encrypted, in a root that an earlier call has encrypted.

        One that is not was put there since, by somebody who has no key.
        """
        blob = await find_object(self._stored, object_paths.LATEST, SWAP_LIMIT)
        if blob is None:
            return
        if not self.in_place.is_done(object_paths.LATEST, blob):
            raise InvalidStateError(
                f"{self._stored.url}/{object_paths.LATEST}: is not encrypted, and the root was encrypted long ago: "
                "somebody put it there, so nothing was encrypted: keep a copy, then delete it, and repair the root"
            )
        self._keys.decrypt(object_paths.LATEST, blob.data)  # anybody could write the first bytes

    async def _copy_live(self, head: Head) -> None:
        """Copy every object that a live checkpoint reads."""
        # Objects that an earlier round began to copy, and did not finish before it met a missing one, are copied again.
        begun, live = set(self._copied), set[str]()
        self._total = self.bytes
        queue, segments = UploadQueue(), metadata.Segments(self._reader, self._host)
        try:
            async for ref, manifest in self._live(head):
                sizes = {s.path: s.size for operator in manifest.operators.values() for s in operator.segments}
                loaded = await segments.load(manifest)
                segments.forget_but([manifest])
                for operator in loaded.operators.values():
                    # One of which nobody reads a byte may be missing (SPEC, Restore).
                    sizes |= {one.path: one.size for one in operator.artifacts() if one.length}
                live |= sizes.keys()
                for path in sizes.keys() - begun:
                    begun.add(path)
                    self._total += sizes[path]
                    await queue.submit_copy(self._copy(path, sizes[path]), sizes[path])
                live.add(await self._copy_manifest(ref))
            if head.catalog is not None:
                live.add(head.catalog.path)
                await self._copy(head.catalog.path, metadata.MAX_CATALOG)
            await queue.join()
        finally:
            await queue.cancel()
        await self._check_copies(live)

    async def _check_copies(self, live: set[str]) -> None:
        """Raise `CorruptionError` where a live object has no copy.

        Its original is going to be deleted, so this is asked of the store itself.
        """
        async for entries in pages(self._target, ""):
            live.difference_update(entry.path for entry in entries)
        if live:
            raise CorruptionError(
                f"{self._stored.url}: {min(live)} has no encrypted copy: somebody deleted it. Nothing was committed: "
                "call this again"
            )

    async def _live(self, head: Head) -> AsyncIterator[tuple[Ref, Manifest]]:
        """Yield every live checkpoint.

        These are the checkpoints of the history and of the catalog, and the prepared one.
        """
        history = await read_history(self._reader, head)
        known = dict(history.ancestry)
        for ref in history.refs_with(head.prepared):
            yield ref, known.get(ref) or await metadata.read_manifest_alone(self._reader, ref)

    async def _copy(self, path: str, limit: int) -> None:
        """Copy an object whose path holds its digest, which is compared."""
        data = await read_by_path(self._source, self._host, path, limit)
        await put_once(self._target, path, data)
        self._copied.add(path)
        await self._count(len(data))

    async def _copy_manifest(self, ref: Ref) -> str:
        """Copy a manifest, and return its path as it is copied."""
        path = object_paths.manifest(ref.id)
        # With its signature, which counts under every key.
        name = path if self._signed is None else signatures_json.stored_path(path)
        if path in self._copied:
            return name
        # A signature is a line before it.
        data = (await self._source.get(name, limit=metadata.MAX_MANIFEST + 4096)).data
        content = data if self._signed is None else signatures_json.decode_signed(name, data).content
        await verify_bytes(self._host, path, content, len(content), ref.digest)
        await metadata.put_as_manifest(self._target, name, ref.id, data)
        self._copied.add(path)
        self._total += len(data)
        await self._count(len(data))
        return name

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
        data = encode_pointer(planned)
        if self._signed is not None:
            data, _ = await self._signed.sign_swap(object_paths.LATEST, data, head.version)
        data = self._keys.encrypt(object_paths.LATEST, data)
        unknown = (
            f"{self._stored.url}: a swap of _latest was sent and nothing proves whether it took effect: call this "
            "again, which goes on from there"
        )
        return await swap_or_explain(self._stored, object_paths.LATEST, data, head.version, SWAP_LIMIT, unknown)

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
        url = self._stored.url
        try:
            leftovers = [left for left in await self._stored.leftovers() if names.is_outdated(left.path)]
            if leftovers:
                await self._stored.discard(leftovers)
        except StoreRefusedError as error:  # A right is missing that nothing else needs, or the server cannot do it.
            log_safely(logging.WARNING, "%s: the leftovers of interrupted writes could not be deleted: %s", url, error)
        log_safely(logging.INFO, "%s: is encrypted; %d objects were copied, %d deleted", url, self.objects, deleted)
        return EncryptedRoot(url, self.objects, self.bytes, deleted)


__all__ = ["EncryptedRoot", "encrypt_root", "reencrypt_root"]
