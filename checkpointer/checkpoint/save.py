"""Saving: what one attempt at a checkpoint writes, until its manifest stands and the pointer can be swapped.

    records → encode → compress → digest → PUT artifacts (parallel, the last beside the manifest) → swap _latest

`restore.py` is the mirror image.
"""

from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace

from pyspark_checkpointer.checkpoint import download, metadata, offload, placement
from pyspark_checkpointer.checkpoint.chains import ChainPlan, OperatorChange, split_for_fold
from pyspark_checkpointer.checkpoint.latest import Head
from pyspark_checkpointer.checkpoint.metering import Meter, written
from pyspark_checkpointer.checkpoint.migrated import how_to_keep
from pyspark_checkpointer.checkpoint.prepared import Prepared, refuse_prepared
from pyspark_checkpointer.checkpoint.upload import PACK, ChainSlot, EncodedBlob, PendingPut, Uploader, UploadQueue
from pyspark_checkpointer.checkpoint.writer import Base, Session
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError, StoreRefusedError
from pyspark_checkpointer.keyed.changes import ChangeSet, PartitionChange
from pyspark_checkpointer.keyed.state import KeyedState
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.codecs import Codec
from pyspark_checkpointer.manifests.json_fields import check_json
from pyspark_checkpointer.manifests.model import (
    DELTA,
    SNAPSHOT,
    Artifact,
    Chain,
    Job,
    Json,
    Kind,
    Manifest,
    Operator,
    Pointer,
    Ref,
)
from pyspark_checkpointer.manifests.segments import SegmentObject

ENCODE_TOGETHER = 2 << 20
"""Bytes of small partitions that are encoded in one go."""

ENCODE_AT_ONCE = 32 << 10
"""Bytes that are encoded sooner than a thread is woken."""


BEING_WRITTEN = "is being committed"
"""How an attempt stands that takes no more, and that can still be aborted. Others like it end it."""


class CheckpointWriter:
    """One attempt at a checkpoint on top of `base`. Everything it writes carries its id."""

    def __init__(self, session: Session, base: Base, epoch: int | None, job: Job | None, meter: Meter) -> None:
        parent = base.manifest
        self.id = session.draw_id(base.head.sequence)
        self.base = base
        self.epoch = epoch
        self.job = job
        self.meter = meter
        self.positions: dict[str, Json] = deepcopy(dict(parent.positions)) if parent else {}
        self.properties: dict[str, Json] = deepcopy(dict(parent.properties)) if parent else {}
        self.watermark: Json = deepcopy(parent.watermark) if parent else None
        self._frozen: tuple[dict[str, Json], Json, dict[str, Json]] | None = None
        self._session = session
        self._given: Mapping[str, Operator] = parent.operators if parent else {}
        self._made: dict[str, bytes] = {}
        """Objects of a migration that are not written yet."""
        if base.migrated is not None:
            self._given, self._made = base.migrated.under(self.id)
        self._operators = dict(self._given)
        self._changes: dict[str, OperatorChange] = {}
        self._captures: list[tuple[str, ChangeSet]] = []
        self._uploads = Uploader(session.store, session.host, self.id)
        self._flight = UploadQueue()
        self._seen: set[str] = set()
        """The places of which one artifact was looked at."""
        self._ended: str | None = None
        self._prepared: Prepared | None = None

    # ---- what the caller says: checked at once, written meanwhile ------------------------------------------------

    async def add(self, operator: str, partition: int, kind: Kind, data: bytes) -> None:
        """Take a snapshot or delta of raw bytes. Waits only where very much is under way already."""
        self._check_open()
        object_paths.encode_name("operator", operator)
        object_paths.check_partition(partition)
        change = self._change(operator, codecs.RAW, partition + 1)
        piece, stored = ChainSlot(operator, partition, codecs.RAW.name), EncodedBlob(kind, data, len(data), 1)
        older: Chain = ()
        if kind == SNAPSHOT:
            known = change.old.get(partition, (None,))[0]
            change.plans[partition] = ChainPlan((), [piece])
            write = self._uploads.write(piece, stored, known)
        else:
            plan = change.below_delta(operator, partition)
            older = split_for_fold(plan, len(data), self._session.max_chain - 1)
            piece.count += len(older)
            plan.added.append(piece)
            write = self._write_folded(piece, older, stored) if older else self._uploads.write(piece, stored, None)
        change.grow(partition)
        await self._flight.start(write, len(data) + _size(older))

    async def attach(self, artifact: Artifact, place: str = "another process") -> None:
        """Take an artifact that `save_snapshot` or `save_delta` wrote under this attempt's id, in any process."""
        self._check_open()
        if not isinstance(artifact, Artifact):
            raise IllegalArgumentError(f"expected an Artifact, got {type(artifact).__name__}")
        name = object_paths.parse_artifact(artifact.path)
        if name.id != self.id or name.partition is None or name.codec != codecs.RAW.name:
            raise IllegalArgumentError(f"{artifact.path}: not an artifact that was written for {self.id}")
        operator, partition = name.operator, name.partition
        change = self._change(operator, codecs.RAW, partition + 1)
        piece = ChainSlot(operator, partition, codecs.RAW.name, (artifact,))
        if artifact.kind == SNAPSHOT:
            change.plans[partition] = ChainPlan((), [piece])
        else:
            plan = change.below_delta(operator, partition)
            older = split_for_fold(plan, artifact.size, self._session.max_chain - 2)
            folded = ChainSlot(operator, partition, codecs.RAW.name, count=len(older))
            plan.added += [folded, piece] if older else [piece]
            change.grow(partition)
            if older:  # only now: whoever waits may find a commit that has begun
                await self._flight.start(self._write_folded(folded, older, None), _size(older))
        change.grow(partition)
        if place not in self._seen:
            await self._flight.start(self.prove(place, artifact), 0)

    async def prove(self, place: str, artifact: Artifact) -> None:
        """Look whether an artifact that was written at `place` is here. One look for each place, whatever it wrote."""
        if place in self._seen:
            return
        self._seen.add(place)
        try:
            await placement.prove(self._session.store, place, artifact)
        except BaseException:
            self._seen.discard(place)
            raise

    def capture(self, operator: str, state: KeyedState) -> ChangeSet:
        """Take what changed in `state`, in the caller's thread. Only this blocks the caller."""
        self._check_open()
        object_paths.encode_name("operator", operator)
        if not isinstance(state, KeyedState):
            raise IllegalArgumentError(
                f"operator {operator!r}: save() takes a KeyedState, not {type(state).__name__}; snapshot() takes bytes"
            )
        self._refuse_written(operator)
        old = self._operators.get(operator)
        if old is not None and old.codec != codecs.MSGPACK.name:
            raise IllegalArgumentError(f"operator {operator!r}: holds {old.codec} artifacts: {how_to_keep(operator)}")
        try:
            return state._capture({} if old is None else old.chains, self._session.max_chain)
        except IllegalArgumentError as error:  # a value that cannot be stored
            raise IllegalArgumentError(f"operator {operator!r}: {error}") from None

    async def save(self, operator: str, capture: ChangeSet) -> None:
        """Write what was captured. What may have come since then is refused: then its changes are changes still."""
        self._check_open()
        self._refuse_written(operator)
        partitions = capture.partitions
        change = self._change(operator, codecs.MSGPACK, partitions)
        self._captures.append((operator, capture))
        if change.operator.partitions != partitions:
            change.operator = replace(change.operator, partitions=partitions)
            change.parent = change.old = {}
        keyed = []  # all is planned before the first wait: what is planned and not written fails the commit
        for part in capture.changes:
            old = change.old.get(part.partition, ())
            piece = ChainSlot(operator, part.partition, codecs.MSGPACK.name)
            change.plans[part.partition] = ChainPlan(old[: part.keep], [piece])
            keyed.append((piece, part, old[0] if old and part.kind == SNAPSHOT else None))
        batch: list[tuple[ChainSlot, PartitionChange, Artifact | None]] = []
        for one in keyed:
            batch.append(one)
            if sum(part.size for _, part, _ in batch) >= ENCODE_TOGETHER:
                await self._start_keyed(batch)
                batch = []
        if batch:
            await self._start_keyed(batch)

    def declare(self, operator: str, schema: Json) -> None:
        """Record how an operator's bytes are laid out; refused where the parent's are laid out otherwise."""
        self._check_open()
        object_paths.encode_name("operator", operator)
        old = self._operators.get(operator)
        if old is not None and old.schema != schema:
            raise IllegalArgumentError(
                f"operator {operator!r}: was written as {old.schema}, not as {schema}: {how_to_keep(operator)}"
            )
        change = self._change(operator, codecs.RAW, 0)
        change.operator = replace(change.operator, schema=check_json(f"operator {operator!r}: schema", schema))

    def operator(self, name: str) -> Operator | None:
        """Return an operator as this checkpoint has it so far; None where there is none."""
        return self._operators.get(name)

    def put_operator(self, name: str, operator: Operator) -> None:
        """Take an operator whose chains were put together of the parent's artifacts and of this attempt's own."""
        self._check_open()
        object_paths.encode_name("operator", name)
        self._refuse_written(name)
        old = self._given.get(name)
        for partition, chain in operator.chains.items():
            before = old.chains.get(partition, ()) if old else ()
            for artifact in chain:
                if artifact not in before and object_paths.parse_artifact(artifact.path).id != self.id:
                    raise IllegalArgumentError(f"{artifact.path}: not an artifact that was written for {self.id}")
        self._operators[name] = operator

    def keep(self, operator: str, partition: int | None = None) -> None:
        """Say aloud that an operator, or one partition of it, stays as it was in the parent."""
        self._check_open()
        self._existing(operator, partition)

    def drop(self, operator: str, partition: int | None = None) -> None:
        """Leave an operator, or one partition of it, out from this checkpoint on."""
        self._check_open()
        self._existing(operator, partition)
        if partition is None:
            self._operators.pop(operator, None)
            self._changes.pop(operator, None)
            self._captures = [c for c in self._captures if c[0] != operator]
            return
        old = self._operators.get(operator) or self._changes[operator].operator
        self._change(operator, codecs.CODECS[old.codec], old.partitions).plans[partition] = ChainPlan(())

    # ---- how it ends --------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Make this the committed checkpoint, with one swap."""
        self._check_open()
        with self._session.reports.committing(self.meter, self.id, self.epoch):
            await self._commit()

    async def _commit(self) -> None:
        async with self._session.lock:
            base, (ref, manifest) = self.base, await self._write()

            async def plan(head: Head, pointer: Pointer) -> Pointer:
                refuse_prepared(self._session, head.prepared)
                return replace(pointer, committed=ref)

            try:
                head = await self._session.swap_pointer(base, ref, plan)
            except BaseException as error:
                self.settle(None)
                await self._make_room(error)
                raise
            self._session.rebase_on_commit(head, ref, manifest)
            self.settle(manifest)

    def freeze(self) -> None:
        """Take positions, watermark and properties as they are now; refuse what JSON cannot carry."""
        if self._frozen is None:
            self._frozen = (
                check_json("positions", self.positions),
                check_json("watermark", self.watermark),
                check_json("properties", self.properties),
            )

    async def prepare(self) -> Prepared:
        """Record this attempt in `_latest` without making it the committed checkpoint."""
        self._check_open()
        with self._session.reports.preparing(self.meter, self.id, self.epoch):
            return await self._prepare()

    async def _prepare(self) -> Prepared:
        async with self._session.lock:
            base, (ref, manifest) = self.base, await self._write()
            self._prepared = Prepared(self._session, base, ref, manifest, self.settle, self.meter)

            async def plan(head: Head, pointer: Pointer) -> Pointer | None:
                if head.prepared == ref:
                    return None
                refuse_prepared(self._session, head.prepared)
                return replace(pointer, prepared=ref)

            try:
                head = await self._session.swap_pointer(base, ref, plan)
            except StoreRefusedError as error:
                await self._make_room(error)
                raise
            if head.prepared == ref:
                self._prepared.base = replace(base, head=head)
                self._session.rebase(self._prepared.base)
            else:  # and what may be committed on top of it was never restored here
                self._prepared.found_committed()
            return self._prepared

    async def abort(self) -> None:
        """Leave nothing visible. Objects already written are garbage that cleanup knows by this attempt's id.

        Does nothing in a child process, which leaves its parent's attempt alone.
        """
        if not self._session.is_of_this_process:
            return
        if self._prepared is not None:
            if self._prepared.outcome is None:
                await self._prepared.abort()
            return
        if self._ended in (None, BEING_WRITTEN):
            self._ended = "was aborted"
            failure = await self._flight.cancel(InvalidStateError(f"{self.id}: this attempt was aborted"))
            self.settle(None)
            await self._make_room(failure)

    @property
    def open(self) -> bool:
        """Whether this attempt takes more: it was neither given up, nor written, nor begun to be."""
        return self._ended is None

    def settle(self, manifest: Manifest | None) -> None:
        """Tell every captured state what became of its change: the manifest that holds it, or None."""
        for operator, capture in self._captures:
            saved = None if manifest is None else manifest.operators.get(operator)
            capture.settle(None if saved is None else saved.chains)
        self._captures.clear()

    # ---- within --------------------------------------------------------------------------------------------------

    async def _write(self) -> tuple[Ref, Manifest]:
        """Everything up to the manifest: durable, and not yet visible."""
        self._check_open()
        self._ended = BEING_WRITTEN
        try:
            await self._session.prove_conditions(self.base.head)  # what came after the manifest, no abort would stop
            self.freeze()
            await self._flight.land()
            last = await self._last_packs()
            few = (
                metadata.are_few(self._operators) and sum(len(c.plans) for c in self._changes.values()) <= metadata.FEW
            )
            manifest, segments = await offload.compute(self._session.host, self._manifest, small=few)
            last += [PendingPut(segment.path, segment.data) for segment in segments]
            last += self._still_named(manifest)
            manifest = replace(manifest, cost=self.meter.cost(unsent=len(last)))
            encoded = await metadata.encode_manifest(self._session.host, manifest)
            for path, data in last:
                await self._flight.start(self._uploads.put(path, data), len(data))
            ref = await metadata.put_manifest(self._session.store, self.id, encoded)
            await self._flight.land()
        except BaseException as error:
            self._ended = "failed"
            failed = await self._flight.cancel(error)
            self.settle(None)
            await self._make_room(error if isinstance(error, StoreRefusedError) else failed)
            raise
        self._ended = "was written"
        return ref, manifest

    async def _last_packs(self) -> list[PendingPut]:
        """What still waits for company, to be written beside the manifest; nothing where that is more than `PACK`: then
        all of it is written first."""
        if sum(size for _, _, size in self._uploads.waiting()) > PACK:
            for operator, codec, size in self._uploads.waiting():
                await self._flight.start(self._uploads.flush(operator, codec), size)
            await self._flight.land()
        return [await self._uploads.close_pack(operator, codec) for operator, codec, _ in self._uploads.waiting()]

    def _still_named(self, manifest: Manifest) -> list[PendingPut]:
        """Return what a migration made and the attempt did not replace: written last, since much of it may be."""
        if not self._made:
            return []
        named = metadata.objects_of(Ref(self.id, ""), manifest)
        return [PendingPut(path, data) for path, data in self._made.items() if path in named]

    async def write_tables(self) -> None:
        """Write the tables that a migration made: tasks may read and extend them before the commit."""
        for path in [path for path in self._made if path.endswith(codecs.PARQUET.name)]:
            data = self._made.pop(path)
            await self._flight.start(self._uploads.put(path, data), len(data))
        await self._flight.land()

    async def _make_room(self, failure: BaseException | None) -> None:
        """Delete what this attempt wrote where the store refused to take more, such as a full disk.

        No cleanup may delete it before the next commit, for which there might never be room again.
        """
        if isinstance(failure, StoreRefusedError):
            with suppress(CheckpointError):
                await self._session.store.delete([object_paths.manifest(self.id), *self._uploads.paths])

    def _manifest(self) -> tuple[Manifest, list[SegmentObject]]:
        operators, parent = dict(self._operators), self.base.manifest
        touched: dict[str, list[int]] = {}
        for name, change in self._changes.items():
            if change.empty:
                continue
            operators[name] = replace(change.operator, chains=change.chains())
            if parent and name in parent.operators and change.parent is parent.operators[name].chains:
                touched[name] = list(change.plans)
        assert self._frozen is not None
        positions, watermark, properties = self._frozen
        manifest = Manifest(
            id=self.id,
            parent=self.base.parent,
            epoch=self.epoch,
            created=self._session.host.now(),
            job=self.job,
            operators=operators,
            positions=positions,
            watermark=watermark,
            properties=properties,
        )
        manifest, segments = metadata.spill(manifest, parent, touched)
        self.meter.operators = written(manifest, parent, touched)
        return manifest, segments

    def _check_open(self) -> None:
        if not self._session.is_of_this_process:  # the parent would commit without what is added here
            raise InvalidStateError(
                f"{self.id}: this attempt was begun before this process was forked, and belongs to its parent: write "
                "here with save_snapshot(id, …) or save_delta(id, …), and attach() in the parent what they return"
            )
        if self._ended is not None:
            raise InvalidStateError(f"{self.id}: this attempt {self._ended}: begin another")

    def _refuse_written(self, operator: str) -> None:
        if operator in self._changes and not self._changes[operator].empty:
            raise IllegalArgumentError(f"operator {operator!r}: was already written in this checkpoint")

    def _change(self, operator: str, codec: Codec, partitions: int) -> OperatorChange:
        change = self._changes.get(operator)
        if change is None or (change.empty and change.operator.codec != codec.name):
            old = self._operators.get(operator)
            head = old or Operator(partitions, codec.partitioner, codec.name)
            chains = old.chains if old else {}
            change = OperatorChange(head, chains, dict(chains))
        if (held := change.operator.codec) != codec.name:
            raise IllegalArgumentError(
                f"operator {operator!r}: holds {held} artifacts, not {codec.name}: {how_to_keep(operator)}"
            )
        self._changes[operator] = change
        return change

    def _existing(self, operator: str, partition: int | None) -> None:
        object_paths.encode_name("operator", operator)
        change, old = self._changes.get(operator), self._operators.get(operator)
        if change is None and old is None:
            raise IllegalArgumentError(
                f"operator {operator!r}: there is none in {self.base.parent and self.base.parent.id}"
            )
        known = set(old.chains if old else ()) | set(change.plans if change else ())
        if partition is not None and partition not in known:
            raise IllegalArgumentError(f"operator {operator!r}: has no partition {partition!r:.20}")

    async def _write_folded(self, piece: ChainSlot, older: Chain, newest: EncodedBlob | None) -> None:
        found = await download.read_all(self._session.store, self._session.host, older)
        # Equal deltas of one attempt can be one artifact, which the chain then names more than once.
        slices = [EncodedBlob(DELTA, bytes(found[artifact]), artifact.length, 1) for artifact in older]
        await self._uploads.write_together(piece, slices if newest is None else [*slices, newest])

    async def _start_keyed(self, batch: list[tuple[ChainSlot, PartitionChange, Artifact | None]]) -> None:
        await self._flight.start(self._write_keyed(batch), sum(part.size for _, part, _ in batch))

    async def _write_keyed(self, batch: list[tuple[ChainSlot, PartitionChange, Artifact | None]]) -> None:
        def encode() -> list[EncodedBlob]:
            slices = []
            for _, part, _ in batch:
                data, raw_size = codecs.MSGPACK.encode(part.records)
                slices.append(EncodedBlob(part.kind, data, raw_size, len(part.records)))
                part.release()
            return slices

        small = sum(part.size for _, part, _ in batch) <= ENCODE_AT_ONCE
        stored_parts = await offload.compute(self._session.host, encode, small=small)
        for (piece, _, known), stored in zip(batch, stored_parts, strict=True):
            await self._uploads.write(piece, stored, known)


def _size(chain: Chain) -> int:
    return sum(artifact.length for artifact in chain)


async def begin(session: Session, epoch: int | None, job: Job | None, meter: Meter) -> CheckpointWriter:
    """An attempt on top of what was restored, measured by `meter`."""
    if epoch is not None and (isinstance(epoch, bool) or not isinstance(epoch, int) or abs(epoch) >= 2**63):
        raise IllegalArgumentError(f"epoch {epoch!r:.40}: expected an integer or None")
    async with session.lock:  # after a commit whose caller stopped waiting
        base = await session.base()
    refuse_prepared(session, base.head.prepared)
    if epoch is None and base.manifest is not None:  # the same batch, changed by hand: its stream goes on after it
        epoch, job = base.manifest.epoch, base.manifest.job
    draft = CheckpointWriter(session, base, epoch, job, meter)
    try:
        await draft.write_tables()
    except BaseException:
        await draft.abort()
        raise
    return draft
