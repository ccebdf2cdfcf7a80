"""Sign a root where it is that was begun without signatures.

An owner of the root does. It is signed in this order:

    _signers → a signed copy of each manifest that counts → swap of _latest → positions of consumers → swap of _signers

After a crash the same call finishes the work.
"""

import logging
from contextlib import suppress
from dataclasses import replace

from pyspark_checkpointer.admin.retention.reachability import walk_retired
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.download import verify_bytes
from pyspark_checkpointer.checkpoint.history import read_history
from pyspark_checkpointer.checkpoint.latest import Head, refresh
from pyspark_checkpointer.checkpoint.old_copy import read_whole_head
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import ConflictError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_text import SIGNED
from pyspark_checkpointer.manifests.manifest_json import decode_manifest, encode_pointer
from pyspark_checkpointer.manifests.model import Manifest, Pointer, Ref
from pyspark_checkpointer.manifests.signatures_json import SIGNERS, Signers
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import DAMAGE, SWAP_LIMIT, ObjectNotFoundError, holds, pages
from pyspark_checkpointer.storage.compare_and_swap import find_object, swap_or_explain
from pyspark_checkpointer.storage.encryption.store import EncryptedStore
from pyspark_checkpointer.storage.signatures.rules import Rules
from pyspark_checkpointer.storage.signatures.signers import find_signers, swap_signers
from pyspark_checkpointer.storage.signatures.store import SignedStore

ROUNDS = 100
"""Largest number of times that the work begins again because a job wrote meanwhile."""


async def sign_root(session: Session, store: SignedStore) -> Signers:
    """Sign all that is live in a root whose list is marked.

    Return the list without the mark.
    """
    rules = await store.read_rules()
    assert rules is not None
    return await _Adoption(session, store, rules).run()


async def would_sign(session: Session) -> bool:
    """Return whether the first list of signers would sign what the root holds already.

    It does so where the root has no list yet, with commits or with positions of consumers.
    """
    store = session.store.inner if isinstance(session.store, SignedStore) else session.store
    # Whether the list is there and no more: without its key, or with no owner to trust, nobody could read it.
    stored = store.inner if isinstance(store, EncryptedStore) else store
    try:
        await stored.get_range(SIGNERS, 0, 1)
    except ObjectNotFoundError:
        return await holds(store, object_paths.is_ours)
    return False


def renewed(host: Host, head: Head) -> Pointer:
    """Return the content of `_latest` with another nonce, to be signed anew."""
    assert head.pointer is not None
    return replace(head.pointer, nonce=host.token(32))


class _Adoption:
    """One call, on one root."""

    def __init__(self, session: Session, store: SignedStore, rules: Rules) -> None:
        assert store.signing.key is not None
        self._host, self._store, self._plain, self._owner = session.host, store, store.inner, store.signing.key
        self._rules = rules

    async def run(self) -> Signers:
        """Sign everything that is live, and return the list without the mark."""
        await self._sign_commits()
        await self._sign_positions()
        async for entries in pages(self._plain, object_paths.MANIFESTS):
            unsigned = [entry.path for entry in entries if object_paths.is_manifest(entry.path)]
            if unsigned:
                await self._plain.delete(unsigned)
        found = await find_signers(self._plain, self._store.signing)
        assert found is not None
        done = replace(found[0], version=found[0].version + 1, adopting=False)
        if not await swap_signers(self._plain, self._owner, done, found[1].version):
            raise ConflictError(f"{self._store.url}: somebody else changed {SIGNERS} at the same time: call this again")
        log_safely(logging.INFO, "%s: is signed", self._store.url)
        return done

    async def _sign_commits(self) -> None:
        for _ in range(ROUNDS):
            blob = await find_object(self._plain, object_paths.LATEST, SWAP_LIMIT)
            if blob is not None and blob.data.startswith(SIGNED):
                # An earlier call got so far. Anybody could write the first bytes, and the originals are deleted next.
                await read_whole_head(self._store)
                return
            # What it does not lead to is not signed, and is deleted.
            head = await read_whole_head(self._plain)
            if head.pointer is None:
                return  # nothing was committed
            try:
                await self._sign_manifests(head)
            except ObjectNotFoundError as error:
                await refresh(self._plain, head, error)  # it raises unless somebody moved `_latest` meanwhile
                continue
            if await self._swap(head):
                return
        raise ConflictError(f"{self._store.url}: a job commits all the time: stop it, and call this again")

    async def _sign_manifests(self, head: Head) -> None:
        """Sign the manifest of every live checkpoint, and of those that wait.

        The prepared one may be committed. Cleanups find through the manifests of lately retired ones what readers may
        still use.
        """
        history = await read_history(self._plain, head)
        live = history.refs_with(head.prepared)
        signed = [await self._sign_manifest(ref) for ref in live]
        parents = {manifest.parent for manifest in signed if manifest.parent is not None}
        # Which of them are still in their grace period is for each cleanup to say.
        async for ref, _ in walk_retired(self._plain, head.retired, live, parents):
            # A cleanup may delete it just now. Nothing live depends on it.
            with suppress(*DAMAGE):
                await self._sign_manifest(ref)

    async def _sign_manifest(self, ref: Ref) -> Manifest:
        path = object_paths.manifest(ref.id)
        data = (await self._plain.get(path)).data
        await verify_bytes(self._host, path, data, len(data), ref.digest)
        await metadata.put_manifest(self._store, ref.id, data)
        return decode_manifest(ref.id, data)

    async def _swap(self, head: Head) -> bool:
        """Put a signed `_latest` in the place of `head`.

        Return False if somebody else moved it first.
        """
        assert head.version is not None
        data = self._store.sign(self._rules, object_paths.LATEST, encode_pointer(renewed(self._host, head)))
        return await self._swap_signed(object_paths.LATEST, data, head.version)

    async def _sign_positions(self) -> None:
        async for entries in pages(self._plain, object_paths.CONSUMERS):
            for entry in entries:
                for _ in range(ROUNDS):
                    blob = await find_object(self._plain, entry.path, SWAP_LIMIT)
                    if blob is None or blob.data.startswith(SIGNED):
                        break
                    if await self._swap_signed(
                        entry.path, self._store.sign(self._rules, entry.path, blob.data), blob.version
                    ):
                        break
                else:
                    raise ConflictError(
                        f"{self._store.url}/{entry.path}: is written all the time: stop its consumers, and call this "
                        "again"
                    )

    async def _swap_signed(self, path: str, data: bytes, version: str) -> bool:
        unknown = (
            f"{self._store.url}: a swap of {path} was sent and nothing proves whether it took effect: call this again, "
            "which goes on from there"
        )
        return await swap_or_explain(self._plain, path, data, version, SWAP_LIMIT, unknown)


__all__ = ["ROUNDS", "renewed", "sign_root", "would_sign"]
