"""Which checkpoints a store has, and which of them somebody means, as far as manifests and the catalog tell."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Literal

from checkpointer.checkpoint import objects
from checkpointer.checkpoint.history import History, is_live, read_history
from checkpointer.checkpoint.latest import Head, reading
from checkpointer.checkpoint.writer import Session
from checkpointer.display import some
from checkpointer.errors import CheckpointNotFoundError, IllegalArgumentError, NotFoundError, SavepointNotFoundError
from manifests.json_fields import format_time
from manifests.model import CheckpointId, Manifest, Ref

State = Literal["committed", "prepared", "history", "kept"]
"""`history`: on the chain below the committed one. `kept`: below the boundary, by the catalog alone."""

LATEST, PREPARED = "latest", "prepared"

ID_START = re.compile(r"[0-9]{1,10}(-[0-9a-f]{0,8})?")
"""A sequence, an id, or the beginning of one."""

WHOLE = len("0000000042-1a2b3c4d")
"""Characters of a whole id."""

_KEYS = ("epoch=", "savepoint=", "at=")
"""What stands before a text that is no id and no name."""

AT_ONCE = 8
"""Manifests whose chains are loaded at the same time."""

_SHOWN = 5
"""How many of those that could be meant an error names."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint, what it is to the store, and the savepoints that keep it, by name."""

    ref: Ref
    manifest: Manifest
    state: State
    savepoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """Every live checkpoint and the prepared one, oldest first. Chains that stand in segments are not loaded."""

    checkpoints: tuple[Listed, ...]
    history: History


async def read_overview(session: Session, *, chains: bool = False) -> Overview:
    """All manifests at once, in few round trips however many there are; with `chains`, the segments too."""

    async def read(head: Head) -> Overview:
        overview = await _overview(session, head)
        if not chains:
            return overview
        segments = objects.Segments(session.store, session.host)
        checkpoints: list[Listed] = []
        for batch in batched(overview.checkpoints):
            manifests = await asyncio.gather(*(segments.load(listed.manifest) for listed in batch))
            checkpoints += (replace(listed, manifest=m) for listed, m in zip(batch, manifests, strict=True))
        return replace(overview, checkpoints=tuple(checkpoints))

    return await reading(session.store, read)


def batched(checkpoints: tuple[Listed, ...]) -> Iterator[tuple[Listed, ...]]:
    """So many at a time as have their chains loaded together."""
    for start in range(0, len(checkpoints), AT_ONCE):
        yield checkpoints[start : start + AT_ONCE]


async def _overview(session: Session, head: Head) -> Overview:
    history = await read_history(session.store, head)
    known = dict(history.chain)
    refs = {**history.refs(), **({head.prepared.id: head.prepared} if head.prepared else {})}
    others = [ref for ref in refs.values() if ref not in known]
    known.update(
        zip(others, await asyncio.gather(*(objects.read_manifest_alone(session.store, r) for r in others)), strict=True)
    )
    names = _names(history)
    listed = (Listed(r, known[r], state_of(head, r), names.get(r, ())) for _, r in sorted(refs.items()))
    return Overview(tuple(listed), history)


def _names(history: History) -> dict[Ref, tuple[str, ...]]:
    names: dict[Ref, tuple[str, ...]] = {}
    for entry in history.entries:
        if entry.name is not None:
            names[entry.ref] = (*names.get(entry.ref, ()), entry.name)
    return names


def state_of(head: Head, ref: Ref) -> State:
    if ref == head.committed:
        return "committed"
    if ref == head.prepared:
        return "prepared"
    return "kept" if head.pointer is not None and ref.id.sequence < head.pointer.boundary else "history"


async def read_listed(session: Session, wanted: str) -> Listed:
    """One checkpoint with all its chains; see `find` for `wanted`."""

    async def read(head: Head) -> Listed:
        ref = await _find(session, head, wanted)
        catalog = await objects.read_catalog(session.store, None if head.pointer is None else head.pointer.catalog)
        manifest = await objects.read_manifest(session.store, session.host, ref)
        return Listed(ref, manifest, state_of(head, ref), _names(History((), catalog)).get(ref, ()))

    return await reading(session.store, read)


async def find(session: Session, wanted: str) -> CheckpointId:
    """The checkpoint that `wanted` means.

    "latest", "prepared", an id, its sequence, the beginning of an id, the name of a savepoint, "epoch=41",
    "savepoint=NAME", or "at=2024-01-02T06:00Z" for the newest one that was made by then. An id and a
    savepoint are found without reading the history, so damage elsewhere does not matter.
    """
    return (await reading(session.store, lambda head: _find(session, head, wanted))).id


def means_two_things(name: str) -> bool:
    """Whether `find` would take this name of a savepoint for something else."""
    return name in (LATEST, PREPARED) or name.startswith(_KEYS) or ID_START.fullmatch(name) is not None


async def _find(session: Session, head: Head, wanted: str) -> Ref:
    url = session.store.url
    if wanted in (LATEST, PREPARED):
        ref = head.committed if wanted == LATEST else head.prepared
        if ref is None:
            what = "is committed yet" if wanted == LATEST else "is prepared"
            raise CheckpointNotFoundError(f"{url}: no checkpoint {what}")
        return ref
    key, equals, value = wanted.partition("=")
    if equals and key == "epoch":
        return await _of_epoch(session, head, value)
    if equals and key == "savepoint":
        return await _of_name(session, head, value)
    if equals and key == "at":
        return await _of_time(session, head, value)
    if ID_START.fullmatch(wanted):
        return await _of_id(session, head, wanted)
    return await _of_name(session, head, wanted)


async def _of_name(session: Session, head: Head, name: str) -> Ref:
    catalog = await objects.read_catalog(session.store, None if head.pointer is None else head.pointer.catalog)
    entries = {entry.name: entry.ref for entry in (catalog.entries if catalog else ()) if entry.name is not None}
    if name in entries:
        return entries[name]
    close = get_close_matches(name, entries, n=1, cutoff=0.4)
    known = some(map(repr, sorted(entries)), _SHOWN) or "none"
    hint = f"did you mean {close[0]!r}?" if close else f"the savepoints are {known}"
    raise SavepointNotFoundError(f"{session.store.url}: {name!r:.80} is no id and no savepoint: {hint}")


async def _of_epoch(session: Session, head: Head, text: str) -> Ref:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise IllegalArgumentError(f"epoch={text:.40}: expected a number")
    listed = (await _overview(session, head)).checkpoints
    found = [c.ref for c in listed if c.manifest.epoch == int(text) and c.state != "prepared"]
    if not found:
        raise CheckpointNotFoundError(f"{session.store.url}: no live checkpoint of epoch {text}")
    return found[-1]


async def _of_time(session: Session, head: Head, text: str) -> Ref:
    """By the writers' clocks, which are as right as they were."""
    try:
        given = datetime.fromisoformat(text)
        at = given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    except (ValueError, OverflowError):
        raise IllegalArgumentError(f"at={text:.40}: expected a time such as at=2024-01-02T06:00Z") from None
    listed = [c for c in (await _overview(session, head)).checkpoints if c.state != "prepared"]
    found = [c.ref for c in listed if c.manifest.created is not None and c.manifest.created <= at]
    if not found:
        oldest = min((c.manifest.created for c in listed if c.manifest.created), default=None)
        since = f"the oldest is of {format_time(oldest)}" if oldest else "none says when it was made"
        raise CheckpointNotFoundError(
            f"{session.store.url}: no live checkpoint of {format_time(at)} or before: {since}"
        )
    return found[-1]


async def _of_id(session: Session, head: Head, text: str) -> Ref:
    url = session.store.url
    if len(text) == WHOLE:
        wanted = CheckpointId.parse(text)
        if head.prepared is not None and head.prepared.id == wanted:
            return head.prepared
        ref = await is_live(session.store, head, wanted)
        if ref is None:
            raise CheckpointNotFoundError(f"{url}: no live checkpoint {text}")
        return ref
    listed = (await _overview(session, head)).checkpoints
    found = [c for c in listed if begins(c.ref.id, text) or text in c.savepoints]
    if not found:
        raise _nothing_like(url, text, listed)
    if len(found) > 1:
        known = [str(c.ref.id) + (f" (savepoint {text})" if text in c.savepoints else "") for c in found]
        raise IllegalArgumentError(f"{text} could be {some(known, _SHOWN)}: give more of the id, or savepoint=NAME")
    return found[0].ref


def begins(checkpoint: CheckpointId, text: str) -> bool:
    """Whether `text` is the sequence, or the beginning of the id, with or without its zeros."""
    if text.isdigit() and int(text) == checkpoint.sequence:
        return True
    short = "-" in text and f"{checkpoint.sequence}-{checkpoint.suffix}".startswith(text)
    return short or str(checkpoint).startswith(text)


def _nothing_like(url: str, text: str, listed: tuple[Listed, ...]) -> NotFoundError:
    if not listed:
        return CheckpointNotFoundError(f"{url}: no checkpoint is committed yet")
    return CheckpointNotFoundError(
        f"{url}: no live checkpoint {text}: there are {listed[0].ref.id} to {listed[-1].ref.id}"
    )
