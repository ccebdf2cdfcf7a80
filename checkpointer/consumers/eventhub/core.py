"""The contract of an Event Hubs checkpoint store: rows of ownership and checkpoints, as dictionaries.

    claims        plan on the group's ownership: an etag must be the row's, none means that there is no row; one swap
    checkpoints   the last one wins, each in an object of its own

Names are compared without regard to case, as Event Hubs does, and given back as the caller wrote them.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from pyspark_checkpointer.consumers.cas_object import Space
from pyspark_checkpointer.consumers.group import MAX_OFFSET, Group, check_name
from pyspark_checkpointer.consumers.write_behind import Coalescer, each
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_fields import Fields, check_json
from pyspark_checkpointer.manifests.positions_json import Ownership, Position, Row


class Names(NamedTuple):
    """What a group of consumers is told apart by."""

    fully_qualified_namespace: str
    eventhub_name: str
    consumer_group: str


class _Claim(NamedTuple):
    given: Mapping[str, Any]
    partition: str
    owner: str
    expected: str | None
    etag: str


class _Key(NamedTuple):
    """What there is one position for. Its name is the same however a partition is written."""

    group: Group
    position: str


class _Checkpoint(NamedTuple):
    partition_id: str
    sequence_number: int | None
    offset: str | None


class Consumers:
    """All groups below one root."""

    def __init__(self, space: Space, max_updates: int, interval: float) -> None:
        self._space = space
        self._groups: dict[str, Group] = {}
        self._waiting: Coalescer[_Key, _Checkpoint] = Coalescer(
            each(_write), max_updates=max_updates, interval=interval, name=space.store.url
        )

    async def list_ownership(self, names: Names) -> list[dict[str, Any]]:
        ownership = await self._group(_names(names._asdict())).ownership.read()
        rows = [] if ownership is None else ownership.rows.values()
        return [
            {
                **names._asdict(),
                "partition_id": row.partition,
                "owner_id": row.owner,
                "etag": row.etag,
                "last_modified_time": row.modified.timestamp(),
            }
            for row in rows
        ]

    async def claim_ownership(self, ownerships: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        if isinstance(ownerships, Mapping | str) or not isinstance(ownerships, Iterable):
            raise IllegalArgumentError(f"expected a list of ownerships, got {type(ownerships).__name__}")
        claims = [self._claim(given) for given in ownerships]
        released = {self._key(claim.given) for claim in claims if not claim.owner}
        if released:
            await self._waiting.flush(released.__contains__)  # before the next owner reads where to begin
        by_group: dict[Group, list[_Claim]] = {}
        for claim in claims:
            by_group.setdefault(self._group(_names(claim.given)), []).append(claim)
        won = await asyncio.gather(*(_settle(group, some) for group, some in by_group.items()))
        rows = {row.etag: row for some in won for row in some}
        return [
            {**claim.given, "etag": claim.etag, "last_modified_time": rows[claim.etag].modified.timestamp()}
            for claim in claims
            if claim.etag in rows
        ]

    async def update_checkpoint(self, given: Mapping[str, Any]) -> None:
        key, checkpoint = self._key(given), _checkpoint(given)
        if self._waiting.coalesces:
            self._waiting.put(key, checkpoint)
        else:
            self._waiting.check_open()
            await _write(key, checkpoint)

    async def list_checkpoints(self, names: Names) -> list[dict[str, Any]]:
        group = self._group(_names(names._asdict()))
        await self._waiting.settle(lambda key: key.group is group)
        return [
            {**names._asdict(), **decode(group.name(position.partition), position)._asdict()}
            for position in await group.positions()
        ]

    async def flush(self) -> None:
        await self._waiting.flush()

    async def close(self) -> None:
        try:
            await self._waiting.close()
        finally:
            await self._space.store.close()

    def _group(self, names: Names) -> Group:
        folder = object_paths.progress("eventhub", *(name.lower() for name in names))
        return self._groups.setdefault(folder, Group(self._space, folder, str.lower))

    def _key(self, given: Mapping[str, Any]) -> _Key:
        group = self._group(_names(given))
        return _Key(group, group.name(_text(given, "partition_id")))

    def _claim(self, given: Mapping[str, Any]) -> _Claim:
        partition = check_name(_text(given, "partition_id"))
        owner = given.get("owner_id")
        if not isinstance(owner, str):
            raise IllegalArgumentError(f"owner_id {owner!r:.60}: expected text; an empty one releases the partition")
        check_json("owner_id", owner)  # it may be of any length and form, in UTF-8
        _names(given)
        return _Claim(given, partition, owner, given.get("etag") or None, self._space.host.token(32))


async def _write(key: _Key, checkpoint: _Checkpoint) -> None:
    await key.group.position(checkpoint.partition_id).change(_overwriting(checkpoint))


async def _settle(group: Group, claims: list[_Claim]) -> list[Row]:
    """Return the rows of those claims that were won, in one swap of the group's ownership."""
    mine: list[Row] = []

    def plan(ownership: Ownership | None, now: datetime) -> Ownership | None:
        mine.clear()
        before = Ownership({}) if ownership is None else ownership
        rows = {row.partition.lower(): row for row in before.rows.values()}
        for claim in claims:
            key = claim.partition.lower()
            row = rows.get(key)
            if row is None or row.etag != claim.etag:  # else an unanswered swap of ours took effect
                if (None if row is None else row.etag) != claim.expected:
                    continue
                row = rows[key] = _taken(row, claim, now)
            mine.append(row)
        after = replace(before, rows={row.partition: row for row in rows.values()})
        return None if after == before else after

    await group.ownership.change(plan)
    return mine


def _taken(row: Row | None, claim: _Claim, now: datetime) -> Row:
    if row is None:
        return Row(claim.partition, claim.owner, 1, claim.etag, now)
    epoch = row.epoch + (row.owner != claim.owner)
    return replace(row, partition=claim.partition, owner=claim.owner, epoch=epoch, etag=claim.etag, modified=now)


def _overwriting(checkpoint: _Checkpoint) -> Any:
    value = {"sequence_number": checkpoint.sequence_number, "offset": checkpoint.offset}

    def plan(position: Position | None, now: datetime) -> Position:
        if position is None:
            return Position(checkpoint.partition_id, 0, value, now)
        kept = dict(position.value or {})  # what a later version added
        return replace(position, partition=checkpoint.partition_id, value=kept | value, modified=now)

    return plan


def decode(name: str, position: Position) -> _Checkpoint:
    fields = Fields(name, position.value)
    found = {key: fields.take(key) for key in ("sequence_number", "offset")}
    try:
        return _checkpoint({"partition_id": position.partition, **found})
    except IllegalArgumentError as error:
        fields.fail(str(error))


def _names(given: Mapping[str, Any]) -> Names:
    return Names(*(_text(given, name) for name in Names._fields))


def _text(given: Mapping[str, Any], key: str) -> str:
    if not isinstance(given, Mapping):
        raise IllegalArgumentError(f"expected a dictionary, got {type(given).__name__}")
    value = given.get(key)
    if not isinstance(value, str) or not value:
        raise IllegalArgumentError(f"{key} {value!r:.60}: expected text of at least one character")
    try:
        object_paths.encode_part(value)
    except IllegalArgumentError as error:
        raise IllegalArgumentError(f"{key}: {error}") from None
    return value


def _checkpoint(given: Mapping[str, Any]) -> _Checkpoint:
    partition, number, offset = _text(given, "partition_id"), given.get("sequence_number"), given.get("offset")
    if number is not None and not _is_integer(number):
        raise IllegalArgumentError("sequence_number: expected an integer of at most 64 bits, or None")
    if offset is not None and not isinstance(offset, str) and not _is_integer(offset):
        raise IllegalArgumentError("offset: expected text, or None")
    if isinstance(offset, str) and len(offset) > MAX_OFFSET:
        raise IllegalArgumentError(f"offset: {len(offset)} characters, at most {MAX_OFFSET} are kept")
    check_json("offset", offset)
    return _Checkpoint(partition, number, None if offset is None else str(offset))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
