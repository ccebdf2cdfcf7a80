"""Implement the contract of an Event Hubs checkpoint store.

Ownership and checkpoints are dictionaries.

    claims        one swap of the group's ownership: a claim's etag must be the row's, and none means "no row yet"
    checkpoints   the last one wins; each partition has an object of its own

Names are compared case-insensitively, as Event Hubs does, and returned as the caller wrote them.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from pyspark_checkpointer.consumers.eventhub.checkpoint import (
    Checkpoint,
    GroupName,
    checkpoint_of,
    decode,
    group_name,
    overwriting,
    text_of,
)
from pyspark_checkpointer.consumers.group import Group, check_name
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.consumers.write_behind import WriteBehind, write_each
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_text import check_json
from pyspark_checkpointer.manifests.positions_json import Ownership, Row
from pyspark_checkpointer.runtime.user_functions import log_safely


class _Claim(NamedTuple):
    """One claim of a call.

    `given` is what the caller gave. `expected` is the etag of the row that the claim is for; None means no row. `etag`
    is the new one.
    """

    given: Mapping[str, Any]
    partition: str
    owner: str
    expected: str | None
    etag: str


class _Key(NamedTuple):
    """One position. Its URL is the same for every spelling of the partition's name."""

    group: Group
    position_url: str


class EventHubGroups:
    """All consumer groups in one store, on the library's event loop."""

    def __init__(self, context: StoreContext, max_updates: int, interval: float) -> None:
        self._context = context
        self._groups: dict[str, Group] = {}
        self._own_etags: dict[_Key, set[str]] = {}
        """The etags that claims of this object have given to a row, or may have: nobody else draws them."""
        self._ever_won: set[_Key] = set()
        self._write_behind: WriteBehind[_Key, Checkpoint] = WriteBehind(
            write_each(_write), max_updates=max_updates, interval=interval, name=context.store.url
        )

    async def list_ownership(self, name: GroupName) -> list[dict[str, Any]]:
        """Return the rows of a group as dictionaries.

        There are none if nobody ever claimed a partition.
        """
        ownership = await self._group(group_name(name._asdict())).ownership.read()
        rows = [] if ownership is None else ownership.rows.values()
        return [
            {
                **name._asdict(),
                "partition_id": row.partition,
                "owner_id": row.owner,
                "etag": row.etag,
                "last_modified_time": row.modified.timestamp(),
            }
            for row in rows
        ]

    async def claim_ownership(self, ownerships: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Apply claims, and return those that were won, with their new etags.

        The claims may be of one or several groups. If a call that only releases partitions fails, they stay claimed
        until they expire.
        """
        if isinstance(ownerships, Mapping | str) or not isinstance(ownerships, Iterable):
            raise IllegalArgumentError(f"expected a list of ownerships, got {type(ownerships).__name__}")
        # All are checked before anything is sent: a call with one bad claim changes nothing.
        claims = [self._claim(given) for given in ownerships]
        try:
            return await self._apply(claims)
        except CheckpointError as error:
            if not claims or any(claim.owner for claim in claims):
                raise
            # The client calls this while it gives up a partition. An error would end it, with all others still claimed.
            partitions = ", ".join(claim.partition for claim in claims)
            log_safely(
                logging.WARNING, "partition %s was not released, and its claim will expire: %s", partitions, error
            )
            return []

    async def _apply(self, claims: Sequence[_Claim]) -> list[dict[str, Any]]:
        released = {self._key(claim.given): claim.partition for claim in claims if not claim.owner}
        if released:
            # The next owner reads the position as soon as it sees the partition released. An update whose caller was
            # cancelled may be under way.
            await self._write_behind.flush(released.__contains__)
            await asyncio.gather(*(key.group.position(partition).settle() for key, partition in released.items()))
        await self._forget_stale(claims)
        by_group: dict[Group, list[_Claim]] = {}
        for claim in claims:
            by_group.setdefault(self._group(group_name(claim.given)), []).append(claim)
        # Each group is one object, so its claims are one swap, and groups do not wait for each other.
        won = await asyncio.gather(*(_swap_claims(group, some) for group, some in by_group.items()))
        rows = {row.etag: row for some in won for row in some}
        for claim in claims:
            key = self._key(claim.given)
            if claim.etag in rows:
                self._ever_won.add(key)
                self._own_etags[key].clear()
                self._own_etags[key].add(claim.etag)
            else:
                self._own_etags[key].discard(claim.etag)
        return [
            {**claim.given, "etag": claim.etag, "last_modified_time": rows[claim.etag].modified.timestamp()}
            for claim in claims
            # The etag was drawn for this claim, so a row that has it shows that the claim was won.
            if claim.etag in rows
        ]

    async def _forget_stale(self, claims: Sequence[_Claim]) -> None:
        """Drop the updates that wait from before another object had the partition.

        Done before it is claimed. The owners since have recorded later positions.
        """
        waiting = self._write_behind.pending
        found: dict[Group, Mapping[str, str]] = {}
        stale = set()
        for claim in claims:
            key = self._key(claim.given)
            own = self._own_etags.setdefault(key, set())
            # If this object never had the partition, what waits was put there to be the position.
            if key in waiting and key in self._ever_won and claim.expected is not None and claim.expected not in own:
                # The claim may be of an older listing, and be lost. What waits is stale only if the row has this etag.
                if key.group not in found:
                    ownership = await key.group.ownership.read()
                    rows = {} if ownership is None else ownership.rows
                    found[key.group] = {row.partition.lower(): row.etag for row in rows.values()}
                if found[key.group].get(claim.partition.lower()) == claim.expected:
                    own.clear()
                    stale.add(key)
            # Until the answer comes, this etag may be in the row, or one of those before.
            own.add(claim.etag)
        if stale:
            await self._write_behind.forget(stale.__contains__)

    async def update_checkpoint(self, given: Mapping[str, Any]) -> None:
        """Record a checkpoint.

        It is written at once, or in the background if updates may wait for others.
        """
        key, checkpoint = self._key(given), checkpoint_of(given)
        if self._write_behind.coalesces:
            self._write_behind.put(key, checkpoint)
        else:
            # Updates that wait are refused after `close()`; those that do not wait are refused alike.
            self._write_behind.check_open()
            await _write(key, checkpoint)

    async def list_checkpoints(self, name: GroupName) -> list[dict[str, Any]]:
        """Return the checkpoints of a group as dictionaries.

        Checkpoints that were recorded here are written first.
        """
        group = self._group(group_name(name._asdict()))
        # A client that reads where to begin must not get a position from before its own last update.
        await self._write_behind.flush_for_read(lambda key: key.group is group)
        return [
            {**name._asdict(), **decode(group.position_url(position.partition), position)._asdict()}
            for position in await group.positions()
        ]

    async def flush(self) -> None:
        """Write the recorded checkpoints; raise the reason if one was not written."""
        await self._write_behind.flush()

    async def close(self) -> None:
        """Write the recorded checkpoints, refuse others, and release connections."""
        try:
            await self._write_behind.close()
        finally:
            await self._context.store.close()

    def _group(self, name: GroupName) -> Group:
        folder = object_paths.group_folder("eventhub", *(part.lower() for part in name))
        # There is one `Group` for each folder: keys compare groups by identity, and its objects remember what they
        # read.
        return self._groups.setdefault(folder, Group(self._context, folder, str.lower))

    def _key(self, given: Mapping[str, Any]) -> _Key:
        group = self._group(group_name(given))
        return _Key(group, group.position_url(text_of(given, "partition_id")))

    def _claim(self, given: Mapping[str, Any]) -> _Claim:
        partition = check_name(text_of(given, "partition_id"))
        owner = given.get("owner_id")
        if not isinstance(owner, str):
            raise IllegalArgumentError(f"owner_id {owner!r:.60}: expected text; an empty one releases the partition")
        # An owner may have any length and characters, as long as they can be written as UTF-8.
        check_json("owner_id", owner)
        group_name(given)
        return _Claim(given, partition, owner, given.get("etag") or None, self._context.host.token(32))


async def _write(key: _Key, checkpoint: Checkpoint) -> None:
    await key.group.position(checkpoint.partition_id).change(overwriting(checkpoint))


async def _swap_claims(group: Group, claims: list[_Claim]) -> list[Row]:
    """Apply claims to the group's ownership in one swap.

    Return the rows of those that were won.
    """
    won: list[Row] = []

    def next_ownership(ownership: Ownership | None, now: datetime) -> Ownership | None:
        won.clear()  # An earlier attempt that lost its swap may have won others.
        before = Ownership({}) if ownership is None else ownership
        # Event Hubs compares names without case, so two spellings claim the same row.
        rows = {row.partition.lower(): row for row in before.rows.values()}
        for claim in claims:
            key = claim.partition.lower()
            row = rows.get(key)
            # A row that has the new etag already was written by our own swap, whose answer was lost.
            if row is None or row.etag != claim.etag:
                # The claim rests on a row that is gone. It is left out, and the other claims of the call may still be
                # won (SPEC.md, Event Hubs).
                if (None if row is None else row.etag) != claim.expected:
                    continue
                row = rows[key] = _claimed(row, claim, now)
            won.append(row)
        # By the name as the last claim wrote it, which is how it is returned.
        after = replace(before, rows={row.partition: row for row in rows.values()})
        # Where no claim holds, nothing is written: a swap would only make those of other consumers fail.
        return None if after == before else after

    await group.ownership.change(next_ownership)
    return won


def _claimed(row: Row | None, claim: _Claim, now: datetime) -> Row:
    """Return the row after a claim; the epoch grows if the owner changes."""
    if row is None:
        return Row(claim.partition, claim.owner, 1, claim.etag, now)
    epoch = row.epoch + (row.owner != claim.owner)
    return replace(row, partition=claim.partition, owner=claim.owner, epoch=epoch, etag=claim.etag, modified=now)
