"""Change who may sign what in a root, and sign a root that has no signatures.

An owner of the root does both. A signer is revoked in this order:

    objects of the signer are signed anew by the owner → swap of _signers → nothing is left that does not count

A root is signed where it is in this order:

    _signers → a signed copy of each live manifest → swap of _latest → positions of consumers → swap of _signers

After a crash the same call finishes the work.
"""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.download import verify_bytes
from pyspark_checkpointer.checkpoint.history import read_history
from pyspark_checkpointer.checkpoint.latest import Head, cas_loop, find_head, read_head, refresh
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import (
    ConflictError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
    UntrustedError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_text import SIGNED
from pyspark_checkpointer.manifests.manifest_json import encode_pointer
from pyspark_checkpointer.manifests.model import Pointer
from pyspark_checkpointer.manifests.signatures_json import ROLES, SIGNERS, Signer, Signers, decode_signed
from pyspark_checkpointer.storage.base import SWAP_LIMIT, ObjectNotFoundError, PreconditionFailedError, pages
from pyspark_checkpointer.storage.compare_and_swap import UndecidedError, find_object, swap_until_decided
from pyspark_checkpointer.storage.signatures.signers import find_signers, holds_others, swap_signers
from pyspark_checkpointer.storage.signatures.signing_keys import read_public_keys
from pyspark_checkpointer.storage.signatures.store import SignedStore

logger = logging.getLogger("pyspark_checkpointer")

ROUNDS = 100
"""Largest number of times that the work begins again because a job wrote meanwhile."""


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
    change = _Change(session, _signed_store(session))
    await change.change_list(allow, revoke)
    if change.signers.adopting:
        await change.adopt()
    elif revoke:
        await change.check_objects()
    return change.signers


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
                adopting, version = await holds_others(self._plain), None
            else:
                self.signers, version = found[0], found[1].version
                adopting = self.signers.adopting
            planned = _allowed(self.signers, allow)
            gone = _named(self.signers, revoke)
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
                return
            if await swap_signers(self._plain, self._owner, new, version):
                logger.info("%s: version %d of the list of signers is there", self._store.url, new.version)
                self.signers = new
                return
        raise ConflictError(f"{self._store.url}: others change {SIGNERS} all the time: try again later")

    async def _last_sequence(self) -> int:
        """Return the sequence up to which the manifests of those who are revoked count."""
        head = await read_head(self._store)
        return head.sequence if head.prepared is None else head.prepared.id.sequence

    async def _sign_anew(self, gone: Collection[str]) -> None:
        """Sign what only those who are revoked signed."""
        head = await find_head(self._store)
        if head.pointer is not None:

            async def plan(now: Head) -> Pointer | None:
                found = await self._store.signed_version(object_paths.LATEST)
                assert found.last_commit is not None
                last = decode_signed(object_paths.LATEST, found.last_commit.encode()).header.key
                return self._renewed(now) if {found.header.key, last} & set(gone) else None

            await cas_loop(self._store, head, plan)
        async for entries in pages(self._store, object_paths.CONSUMERS):
            for entry in entries:
                if (await self._store.signed_version(entry.path)).header.key in gone:
                    await self._sign_position(entry.path)

    def _renewed(self, head: Head) -> Pointer:
        assert head.pointer is not None
        return replace(head.pointer, nonce=self._host.token(32))

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

    async def check_objects(self) -> None:
        """Raise `InvalidStateError` where a signer wrote while it was being revoked."""
        await self._store.read_rules()
        try:
            await find_head(self._store)
            async for entries in pages(self._store, object_paths.CONSUMERS):
                for entry in entries:
                    await self._store.get(entry.path)
        except UntrustedError as error:
            raise InvalidStateError(
                f"{error}. Somebody wrote it with a key that was being revoked. If that was your own job, stop it, "
                "allow the key again, and revoke it again"
            ) from None

    # ---- a root that was begun without signatures -------------------------------------------------------------------

    async def adopt(self) -> None:
        """Sign everything that is live, and take the mark from the list."""
        rules = await self._store.read_rules()
        assert rules is not None
        self._rules = rules
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
        self.signers = done
        logger.info("%s: is signed", self._store.url)

    async def _sign_commits(self) -> None:
        for _ in range(ROUNDS):
            blob = await find_object(self._plain, object_paths.LATEST, SWAP_LIMIT)
            if blob is None or blob.data.startswith(SIGNED):
                return  # nothing was committed, or an earlier call got so far
            head = await read_head(self._plain)
            try:
                await self._sign_manifests(head)
            except ObjectNotFoundError as error:
                await refresh(self._plain, head, error)  # it raises unless somebody moved `_latest` meanwhile
                continue
            if await self._swap(head):
                return
        raise ConflictError(f"{self._store.url}: a job commits all the time: stop it, and call this again")

    async def _sign_manifests(self, head: Head) -> None:
        """Sign the manifest of every live checkpoint, the prepared one too."""
        history = await read_history(self._plain, head)
        refs = [ref for ref, _ in history.ancestry] + [entry.ref for entry in history.entries]
        for ref in dict.fromkeys(refs + ([head.prepared] if head.prepared is not None else [])):
            path = object_paths.manifest(ref.id)
            data = (await self._plain.get(path)).data
            await verify_bytes(self._host, path, data, len(data), ref.digest)
            await metadata.put_manifest(self._store, ref.id, data)

    async def _swap(self, head: Head) -> bool:
        """Put a signed `_latest` in the place of `head`.

        Return False if somebody else moved it first.
        """
        assert head.version is not None
        data = self._store.sign(self._rules, object_paths.LATEST, encode_pointer(self._renewed(head)))
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
        try:
            found = await swap_until_decided(self._plain, path, data, version, SWAP_LIMIT)
        except UndecidedError as error:
            raise OutcomeUnknownError(
                f"{self._store.url}: a swap of {path} was sent and nothing proves whether it took effect: call this "
                "again, which goes on from there"
            ) from error.__cause__
        return found is not None and found.data == data


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


def _allowed(signers: Signers, allow: Collection[Signer]) -> dict[str, Signer]:
    """Return the signers with those who are allowed from now on."""
    planned = dict(signers.signers)
    for one in allow:
        known = planned.get(one.key)
        if known is not None and set(known.roles) - set(one.roles) and known.through is None:
            raise IllegalArgumentError(
                f"{one.name!r:.60}: may {' and '.join(known.roles)} already: what it signed so far would not count any "
                "more: revoke it, and allow a new key"
            )
        namesake = next((other for other in planned.values() if other.name == one.name and other.key != one.key), None)
        if namesake is not None and namesake.through is None:
            raise IllegalArgumentError(
                f"{one.name!r:.60}: another signer has this name: revoke that, or choose another"
            )
        planned[one.key] = one
    return planned


def _named(signers: Signers, revoke: Collection[str]) -> list[str]:
    """Return the keys of signers that names or keys name."""
    gone = []
    for given in revoke:
        found = [one.key for one in signers.signers.values() if given in (one.name, one.key) and one.through is None]
        if not found:
            known = ", ".join(f"{one.name!r:.60}" for one in signers.signers.values() if one.through is None)
            raise IllegalArgumentError(f"{given!r:.80}: is no signer: there are {known or 'none'}")
        gone += found
    return gone


def _signed_store(session: Session) -> SignedStore:
    store = session.store
    if not isinstance(store, SignedStore):
        raise IllegalArgumentError(f"{store.url}: was opened without signing: say whom to trust")
    return store


__all__ = ["as_signers", "change_signers", "read_signers"]
