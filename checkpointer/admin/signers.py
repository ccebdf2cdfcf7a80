"""Change who may sign what in a root.

An owner of the root does. A signer is revoked in this order:

    objects of the signer are signed anew by the owner → swap of _signers → all that the signer could replace is signed
    anew, so that a swap fails that it prepared before

A swap of the signer that comes between is found, and the owner is told.
"""

import logging
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from pyspark_checkpointer.admin.sign_root import ROUNDS, renewed, sign_root
from pyspark_checkpointer.admin.signer_list import allowed, find_named
from pyspark_checkpointer.checkpoint.history import begin_walk
from pyspark_checkpointer.checkpoint.latest import Head, cas_loop, find_head, read_head
from pyspark_checkpointer.checkpoint.old_copy import read_whole_head
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import (
    ConflictError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    MalformedError,
    UntrustedError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_text import SIGNED
from pyspark_checkpointer.manifests.model import Pointer
from pyspark_checkpointer.manifests.signatures_json import (
    ROLES,
    SIGNERS,
    SUFFIX,
    Signer,
    Signers,
    decode_signed,
)
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import (
    DAMAGE,
    SWAP_LIMIT,
    ObjectNotFoundError,
    PreconditionFailedError,
    UndecryptableError,
    pages,
)
from pyspark_checkpointer.storage.compare_and_swap import find_object
from pyspark_checkpointer.storage.signatures.signers import find_signers, swap_signers
from pyspark_checkpointer.storage.signatures.signing_keys import read_public_keys
from pyspark_checkpointer.storage.signatures.store import SignedStore


async def read_signers(session: Session) -> Signers:
    """Return the list of signers of a root; `InvalidStateError` where there is none."""
    store = _signed_store(session)
    found = await find_signers(store.inner, store.signing)
    if found is None:
        raise InvalidStateError(f"{store.url}: is not signed: an owner has it signed with `checkpointer signers`")
    return found[0]


async def change_signers(session: Session, allow: Collection[Signer], revoke: Collection[str]) -> Signers:
    """Allow and revoke signers, and return the new list.

    `session` signs with the key of an owner. `revoke` has names or keys.
    """
    store = _signed_store(session)
    change = _Change(session, store)
    await change.change_list(allow, revoke)
    return await sign_root(session, store) if change.signers.adopting else change.signers


class _Change:
    """One call: the root, and its list of signers as it is now."""

    def __init__(self, session: Session, store: SignedStore) -> None:
        assert store.signing.key is not None
        self._host, self._store, self._plain, self._owner = session.host, store, store.inner, store.signing.key
        self.signers = Signers(session.host.token(32), 0)

    # ---- the list ------------------------------------------------------------------------------------------------

    async def change_list(self, allow: Collection[Signer], revoke: Collection[str]) -> None:
        """Swap the list, after the objects of those who are revoked were signed anew."""
        for _ in range(ROUNDS):
            found = await find_signers(self._plain, self._store.signing)
            if found is None:
                if revoke:
                    raise IllegalArgumentError(f"{self._store.url}: is not signed, so there is nobody to revoke")
                adopting, version = await self._begins_adopting(), None
            else:
                self.signers, version = found[0], found[1].version
                adopting = self.signers.adopting
            planned = allowed(self.signers, allow)
            named = find_named(self.signers, revoke)
            gone = [key for key in named if self.signers.signers[key].through is None]
            if gone:
                await self._sign_anew(gone)
                planned |= {key: replace(planned[key], through=await self._last_sequence()) for key in gone}
            new = replace(
                self.signers,
                version=self.signers.version + 1,
                signers=MappingProxyType(planned),
                adopting=adopting,
            )
            if found is not None and planned == self.signers.signers:
                await self._fence(named)
                return
            if await swap_signers(self._plain, self._owner, new, version):
                log_safely(logging.INFO, "%s: version %d of the list of signers is there", self._store.url, new.version)
                self.signers = new
                await self._fence(named)
                return
        raise ConflictError(f"{self._store.url}: others change {SIGNERS} all the time: try again later")

    async def _last_sequence(self) -> int:
        """Return the sequence up to which the manifests of those who are revoked count."""
        head = await read_head(self._store)
        return head.sequence if head.prepared is None else head.prepared.id.sequence

    async def _begins_adopting(self) -> bool:
        """Return whether a root without a list holds something that is to be signed.

        Raises `InvalidStateError` for a signed root that lost its list. Its signatures count by that list alone. A new
        one would be a way to have the owner sign a forged state.
        """
        holds = False
        async for entries in pages(self._plain, ""):
            for entry in entries:
                holds = holds or entry.path != SIGNERS
                # A file of others may have the suffix, and so does a manifest of a signed root inside this one.
                signed = entry.path.endswith(SUFFIX) and object_paths.is_manifest(entry.path.removesuffix(SUFFIX))
                if entry.path == object_paths.LATEST or entry.path.startswith(object_paths.CONSUMERS):
                    blob = await find_object(self._plain, entry.path, SWAP_LIMIT)
                    signed = blob is not None and blob.data.startswith(SIGNED)
                if signed:
                    raise InvalidStateError(
                        f"{self._store.url}/{entry.path}: is signed, and the root has lost its {SIGNERS}: bring that "
                        "back from a copy"
                    )
        if holds:
            await read_whole_head(self._plain)  # it raises where the root needs a repair first
        return holds

    async def _sign_anew(self, gone: Collection[str]) -> None:
        """Sign what only those who are revoked signed."""

        async def by_them(path: str) -> bool:
            return (await self._store.signed_version(path)).header.key in gone

        try:
            head = await find_head(self._store)
        except (UntrustedError, UndecryptableError) as error:
            raise type(error)(f"{error}. Nobody was revoked yet: repair the root, and revoke then") from None
        if head.pointer is not None:

            async def plan(now: Head) -> Pointer | None:
                found = await self._store.signed_version(object_paths.LATEST)
                assert found.last_commit is not None
                last = decode_signed(object_paths.LATEST, found.last_commit.encode()).header.key
                return renewed(self._host, now) if {found.header.key, last} & set(gone) else None

            await cas_loop(self._store, head, plan)
        async for path in self._positions():
            try:
                renew = await by_them(path)
            except (ObjectNotFoundError, UntrustedError):
                continue  # somebody put it there whose signature does not count: it must not stop a revocation
            except (CorruptionError, InvalidStateError):
                if await self._is_decrypted(path):
                    raise
                continue  # or somebody without the key of encryption: it must not either
            if renew:
                await self._sign_position(path)

    async def _fence(self, named: Collection[str]) -> None:
        """Rewrite every object that a revoked signer could swap.

        A swap that it began before fails then. Its client may still have the old list, and the version that such a swap
        expects.
        """
        if not named:
            return
        roles = {role for key in named for role in self.signers.signers[key].roles}
        await self._store.read_rules()
        try:
            if {"commit", "clean"} & roles:
                head = await find_head(self._store)
                if head.pointer is not None:

                    async def plan(now: Head) -> Pointer:
                        return renewed(self._host, now)

                    await cas_loop(self._store, head, plan)
            if "commit" in roles:
                await self._check_commits(named)
            async for path in self._positions():
                if "consume" in roles or path == object_paths.FOLLOWERS:
                    await self._fence_position(path, named)
        except UntrustedError as error:
            raise InvalidStateError(
                f"{error}. Somebody wrote it with a key that was being revoked. If that was your own job, stop it, "
                "allow the key again, and revoke it again"
            ) from None

    async def _check_commits(self, gone: Collection[str]) -> None:
        """Raise `UntrustedError` for a commit that does not count any more.

        It came before the list did, and others may have gone on from it since.
        """
        last = min(self.signers.signers[key].through or 0 for key in gone)
        head = await find_head(self._store)
        if head.pointer is None:
            return
        # A refused listing is raised: it says nothing about the commits.
        steps = await begin_walk(self._store, head.committed, max(last + 1, head.boundary))
        try:
            async for _ in steps:
                pass
        except UntrustedError:
            raise
        except DAMAGE as error:  # Damage is nothing that a revocation has to wait for.
            log_safely(logging.WARNING, "%s: the newest commits could not be looked at: %s", self._store.url, error)

    async def _fence_position(self, path: str, gone: Collection[str]) -> None:
        try:
            await self._sign_position(path)
            return
        except UntrustedError:
            if await self._is_signed_by(path, gone):
                raise
        except (CorruptionError, InvalidStateError):
            if await self._is_decrypted(path):
                raise
        log_safely(logging.WARNING, "%s/%s: has no signature that counts, and was left as it is", self._store.url, path)

    async def _is_signed_by(self, path: str, gone: Collection[str]) -> bool:
        blob = await find_object(self._plain, path, SWAP_LIMIT)
        try:
            return blob is not None and decode_signed(path, blob.data).header.key in gone
        except MalformedError:
            return False

    async def _is_decrypted(self, path: str) -> bool:
        """Return whether the keys open an object, or it is not encrypted."""
        try:
            await find_object(self._plain, path, SWAP_LIMIT)
        except (CorruptionError, InvalidStateError):
            return False
        return True

    async def _positions(self) -> AsyncIterator[str]:
        async for entries in pages(self._store, object_paths.CONSUMERS):
            for entry in entries:
                yield entry.path

    async def _sign_position(self, path: str) -> None:
        for _ in range(ROUNDS):
            blob = await find_object(self._store, path, SWAP_LIMIT)
            if blob is None:
                return
            try:
                await self._store.compare_and_swap(path, blob.data, blob.version)
            except PreconditionFailedError:
                continue  # a consumer stored another position meanwhile
            return
        raise ConflictError(f"{self._store.url}/{path}: is written all the time: stop its consumers, and try again")


def as_signers(allow: Mapping[str | os.PathLike[str], str | Sequence[str]]) -> list[Signer]:
    """Return the signers whose public keys are in files, by the roles that they get.

    The name of each is that of its file, without its ending.
    """
    signers = []
    for path, given in allow.items():
        roles = [given] if isinstance(given, str) else list(given)
        if not roles or not set(roles) <= set(ROLES):
            raise IllegalArgumentError(f"allow: {os.fspath(path)!r:.80}: expected some of {', '.join(ROLES)}")
        keys = read_public_keys(os.path.abspath(path))
        if len(keys) != 1:
            raise IllegalArgumentError(f"allow: {os.fspath(path)!r:.80}: expected one public key, found {len(keys)}")
        signers.append(Signer(Path(path).stem, keys[0], tuple(role for role in ROLES if role in roles)))
    return signers


def _signed_store(session: Session) -> SignedStore:
    store = session.store
    if not isinstance(store, SignedStore):
        raise IllegalArgumentError(f"{store.url}: was opened without signing: say whom to trust")
    return store


__all__ = ["as_signers", "change_signers", "read_signers"]
