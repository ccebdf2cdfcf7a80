"""Restore a checkpoint: read from the pointer down to the records.

Each object is verified before it is used.

    GET _latest → GET manifest → verify → GET artifacts (parallel) → verify → decompress → decode → records

`save.py` is the mirror image. An object may be gone because retention has retired its checkpoint. Then the store is not
damaged. The reader reads `_latest` again to tell retirement from damage.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Literal, TypeVar

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.attempt_state import Promotion, promotion
from pyspark_checkpointer.checkpoint.decode import Records, is_quick_to_decode, merge_all, read_decoded
from pyspark_checkpointer.checkpoint.download import by_object, read_all
from pyspark_checkpointer.checkpoint.fencing import Base, ViewOnly
from pyspark_checkpointer.checkpoint.history import is_live
from pyspark_checkpointer.checkpoint.intact import find_intact
from pyspark_checkpointer.checkpoint.latest import Head, read_consistent
from pyspark_checkpointer.checkpoint.migrated import Migrated
from pyspark_checkpointer.checkpoint.prepared import Prepared
from pyspark_checkpointer.checkpoint.resolve import read_live
from pyspark_checkpointer.checkpoint.selector import LATEST, CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.verification import Finding
from pyspark_checkpointer.errors import (
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    OperatorNotFoundError,
    RetiredError,
)
from pyspark_checkpointer.keyed.state import KeyedState
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.map_expiry import MapRule, decode_schema
from pyspark_checkpointer.manifests.model import Artifact, Chain, CheckpointId, Clock, Manifest, Operator
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import ObjectNotFoundError

T = TypeVar("T")

OnCorruption = Literal["error", "previous"]


def find_operator(operators: Mapping[str, Operator], name: str) -> Operator:
    """Return the operator of this name.

    Otherwise raise an error that lists the names that exist.
    """
    if name not in operators:
        raise OperatorNotFoundError(
            f"operator {name!r:.80}: the checkpoint has {', '.join(sorted(operators)) or 'none'}"
        )
    return operators[name]


class CheckpointReader:
    """One restored checkpoint.

    It can also be an empty store that holds nothing but a prepared checkpoint.
    """

    def __init__(
        self,
        session: Session,
        manifest: Manifest | None,
        prepared: Prepared | None,
        skipped: tuple[Finding, ...] = (),
        migrated: Migrated | None = None,
        promotion: Promotion | None = None,
    ) -> None:
        self._manifest = manifest
        self.prepared = prepared
        self.promotion = promotion if prepared is None else prepared.promotion
        """Tells whether a checkpoint that was prepared on top of this one is committed."""
        self.skipped = skipped
        self.session = session
        self.store = session.store
        if migrated is not None and manifest is not None:
            self._manifest, self.store = replace(manifest, operators=migrated.operators), migrated.store

    @property
    def manifest(self) -> Manifest | None:
        """Return the manifest; None if nothing is committed.

        Raises `InvalidStateError` once this session has committed what was prepared on top of it.
        """
        if self.promotion is not None:
            self.promotion.refuse_read(self.session)
        return self._manifest

    def operator(self, name: str) -> Operator:
        return find_operator(self.manifest.operators if self.manifest else {}, name)

    async def partition(self, name: str, partition: int) -> list[bytes]:
        """Return the verified bytes of a partition: the snapshot, then the deltas."""
        return (await self.read(name, [partition]))[partition]

    async def read(self, name: str, partitions: Iterable[int] | None) -> dict[int, list[bytes]]:
        """Return the verified bytes of some partitions or all, with one request an object."""
        known = self.operator(name).chains
        chains: dict[int, Chain] = {}
        for partition in known if partitions is None else partitions:
            if object_paths.check_partition(partition) not in known:
                raise IllegalArgumentError(f"operator {name!r}: has no partition {partition}")
            chains[partition] = known[partition]
        store, host = self.store, self.session.host

        async def load() -> dict[int, list[bytes]]:
            found = await read_all(store, host, (artifact for chain in chains.values() for artifact in chain))
            return {partition: [bytes(found[artifact]) for artifact in chain] for partition, chain in chains.items()}

        return await self._explaining(load)

    async def keyed(self, name: str, partitions: int | None) -> KeyedState:
        """Return the map that was saved under this name.

        It has its own number of partitions, or `partitions` of them.
        """
        operator = self.operator(name)
        kind = codecs.kind_of(operator)
        if kind == "table":
            raise IllegalArgumentError(f"operator {name!r}: is a table, not a map: restored.table({name!r}) reads it")
        if kind != "map":
            raise IllegalArgumentError(
                f"operator {name!r}: was not saved from a KeyedState: use operator().partition()"
            )
        decoded: dict[Artifact, Records] = {}

        async def load() -> None:
            groups, turn = by_object(chain.from_iterable(operator.chains.values())), asyncio.Lock()
            reads = (read_decoded(self.store, self.session.host, operator.codec, group, turn) for group in groups)
            for found in await asyncio.gather(*reads):
                decoded.update(found)

        await self._explaining(load)

        def build() -> KeyedState:
            chains = [operator.chains.get(p, ()) for p in range(operator.partitions)]
            state = KeyedState.from_checkpoint(merge_all(chains, decoded))
            if partitions not in (None, operator.partitions):
                state = state.repartitioned_for_restore(partitions)
            if operator.schema is not None:
                state.take_times_for_restore(f"operator {name!r}", *self.expiry(name))
            if self.promotion is not None:  # saved after it, the map would overwrite what was prepared
                state.check_saves_for_restore(self.promotion.refuse_save)
            return state

        few = operator.partitions <= metadata.SMALL_MANIFEST and partitions in (None, operator.partitions)
        small = few and is_quick_to_decode(decoded)
        return build() if small else await self.session.host.run(build)

    def expiry(self, name: str) -> tuple[MapRule | None, Clock | None]:
        """Return the rule by which entries of a map expire, and the job's clock."""
        assert self.manifest is not None
        return decode_schema(f"operator {name!r}", self.operator(name).schema), self.manifest.clock

    async def _explaining(self, load: Callable[[], Awaitable[T]]) -> T:
        assert self.manifest is not None
        return await explaining(self.session, load, self.manifest.id)


Migrate = Callable[[CheckpointReader], Awaitable[Migrated]]
"""Function that checks a migration and runs it in memory."""


async def explaining(session: Session, load: Callable[[], Awaitable[T]], *checkpoints: CheckpointId | None) -> T:
    """Run `load`, and explain a missing object.

    If an object of the checkpoints is gone, the error says whether one was retired or the store is damaged.
    """
    try:
        return await load()
    except ObjectNotFoundError as missing:
        store, known = session.store, [checkpoint for checkpoint in checkpoints if checkpoint is not None]
        # Retention may pass while a reader is slow. That is no damage, and the reader can do something about it.
        for one in known:
            if not await read_consistent(store, partial(is_live, store, checkpoint=one)):
                raise RetiredError(f"{store.url}: {one} was retired meanwhile: restore again") from None
        names = " or ".join(map(str, known)) or None
        raise CorruptionError(f"{store.url}: {names} names an object that is not there: {missing}") from None


async def restore(
    session: Session,
    wanted: CheckpointSelector | None = None,
    on_corruption: OnCorruption = "error",
    migrate: Migrate | None = None,
) -> CheckpointReader | None:
    """Restore the committed checkpoint, or the live one that is wanted.

    Returns None on an empty root.

    The session continues from the committed checkpoint. If another checkpoint was restored, the session may only read,
    or roll back. If a migration fails, the session does not change.
    """
    # A commit whose caller stopped waiting may still run. It ends first, so that this sees what became of it.
    async with session.lock:
        base, reader = await _restore(session, wanted, on_corruption)
        if migrate is None or reader is None:
            return _restored(session, base, reader)
        before = session.standing
    if base is not None:
        session.refuse_prepared(base.head.prepared)  # it was made of what is to be migrated
    # Without the lock: the functions of a migration are the user's, and may call this library.
    migrated = await migrate(reader)
    async with session.lock:
        if session.standing is not before:
            why = "another call of this client committed or restored while the migration ran: call restore() again"
            raise InvalidStateError(f"{session.store.url}: {why}")
        # After everything that can fail: until here the session stands where it stood.
        reader = CheckpointReader(session, reader.manifest, reader.prepared, reader.skipped, migrated, reader.promotion)
        return _restored(session, base and replace(base, migrated=migrated), reader)


def _restored(session: Session, base: Base | None, reader: CheckpointReader | None) -> CheckpointReader | None:
    """Let the session go on from a base, or only read; return the reader."""
    if base is not None:
        session.stand_on_restored(base)
    elif reader is not None and reader.manifest is not None:
        session.stand_on_restored(ViewOnly(reader.manifest.id, replaces_damaged=bool(reader.skipped)))
    return reader


async def _restore(
    session: Session, wanted: CheckpointSelector | None, on_corruption: OnCorruption
) -> tuple[Base | None, CheckpointReader | None]:
    """Return the base of later saves, and the checkpoint that was asked for.

    The base is None unless the committed checkpoint was asked for.
    """
    if on_corruption not in ("error", "previous"):
        raise IllegalArgumentError(f"on_corruption={on_corruption!r:.40}: expected 'error' or 'previous'")
    if wanted is None or wanted.kind == LATEST:
        return await (_restore_latest(session) if on_corruption == "error" else _restore_intact(session))
    if on_corruption != "error":
        raise IllegalArgumentError(
            f"on_corruption={on_corruption!r}: needs the latest checkpoint: leave out id, epoch and savepoint"
        )

    async def load(head: Head) -> tuple[Head, Manifest]:
        _, manifest = await read_live(session, head, wanted)
        return head, manifest

    head, manifest = await read_consistent(session.store, load)
    if head.committed is None or head.committed.id != manifest.id:
        return None, CheckpointReader(session, manifest, None)
    above = None if head.prepared is None else promotion(session.root, head.prepared.id)
    return Base(head, manifest), CheckpointReader(session, manifest, None, promotion=above)


async def _restore_latest(session: Session) -> tuple[Base, CheckpointReader | None]:
    async def read(head: Head) -> tuple[Base, Manifest | None]:
        ref = head.prepared
        # Its manifest too, since a promotion makes it what the next attempt goes on top of.
        prepared = None if ref is None else await metadata.read_manifest(session.store, session.host, ref)
        return await session.base_in(head), prepared

    return _go_on(session, *await read_consistent(session.store, read))


async def _restore_intact(session: Session) -> tuple[Base | None, CheckpointReader | None]:
    """Return the committed checkpoint if it is intact.

    Intact means that every byte of it is as it was written. Otherwise the newest older checkpoint that is intact is
    returned, and it can only be read.
    """
    found = await find_intact(session)
    if found.manifest is None or not found.skipped:
        return _go_on(session, Base(found.head, found.manifest), found.prepared)
    problems = "; ".join(map(str, found.skipped))
    log_safely(
        logging.WARNING,
        "%s: %s was restored instead of a newer one: %s",
        session.store.url,
        found.manifest.id,
        problems,
    )
    return None, CheckpointReader(session, found.manifest, None, found.skipped)


def _go_on(session: Session, base: Base, manifest: Manifest | None) -> tuple[Base, CheckpointReader | None]:
    """Return the committed checkpoint and its reader.

    The reader has the manifest of the prepared checkpoint if there is one.
    """
    ref = base.head.prepared
    if ref is None or manifest is None:
        return base, parent_reader(session, base)
    prepared = Prepared(session, base, ref, manifest, promotion(session.root, ref.id))
    return base, CheckpointReader(session, base.manifest, prepared)


def parent_reader(session: Session, base: Base) -> CheckpointReader | None:
    """Return a reader of the checkpoint that the next attempt builds on.

    Returns None before the first checkpoint.
    """
    return None if base.manifest is None else CheckpointReader(session, base.manifest, None, migrated=base.migrated)
