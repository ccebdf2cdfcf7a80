"""Save bytes of a job's own format, partition by partition.

Only the caller can merge such bytes. So deltas are folded by writing several of them as one object.
`checkpointer/compaction.py` decides when. `save.py` does the same for maps.
"""

from dataclasses import replace
from itertools import groupby

from pyspark_checkpointer.checkpoint import download, placement
from pyspark_checkpointer.checkpoint.chains import ChainPlan, OperatorChange
from pyspark_checkpointer.checkpoint.migrated import how_to_keep
from pyspark_checkpointer.checkpoint.save import CheckpointAttempt
from pyspark_checkpointer.checkpoint.upload import IN_FLIGHT, ChainSlot, EncodedBlob
from pyspark_checkpointer.compaction import opaque_fold_start
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.json_text import check_json
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Artifact, Chain, Json, Kind

MAX_RAW_DELTAS = 1000
"""Deltas of opaque bytes above one snapshot. Nobody but the caller can merge them."""

MAX_CONCURRENT_CHECKS = 256
"""Attached artifacts that are looked for at one time. A store has a limit of its own for requests under way."""


async def add(attempt: CheckpointAttempt, operator: str, partition: int, kind: Kind, data: bytes) -> None:
    """Take a snapshot or delta of raw bytes.

    This waits only if very much is under way already.
    """
    attempt.check_open()
    object_paths.encode_name("operator", operator)
    partition = object_paths.check_partition(partition)
    change = attempt.change(operator, codecs.RAW, partition + 1)
    slot, stored = ChainSlot(operator, partition, codecs.RAW.name), EncodedBlob(kind, data, len(data), 1)
    older: Chain = ()
    if kind == SNAPSHOT:
        # Only the parent's own snapshot may be reused. An object of any other attempt may be dead, and a sweep that
        # saw it dead may delete it at any time.
        known = change.parent.get(partition, (None,))[0]
        change.plans[partition] = ChainPlan((), [slot])
        write = attempt.uploader.write(slot, stored, known)
    else:
        plan = _below_delta(change, operator, partition)
        older = _split_for_fold(plan, len(data), attempt.session.max_chain)
        slot.count += len(older)
        plan.added.append(slot)
        write = _write_folded(attempt, slot, older, stored) if older else attempt.uploader.write(slot, stored, None)
    # Before the wait below, during which a commit may begin: it must find the partition.
    change.grow(partition)
    # A fold reads the older deltas into memory too, so they count as bytes under way.
    await attempt.uploader.queue.submit(write, len(data) + _size(older))


async def attach(attempt: CheckpointAttempt, artifact: Artifact, written_by: str | None = None) -> None:
    """Take an artifact that was written under this attempt's id.

    `save_snapshot` or `save_delta` wrote it, in any process. `written_by` is its executor, if that is known.
    """
    attempt.check_open()
    if not isinstance(artifact, Artifact):
        raise IllegalArgumentError(f"expected an Artifact, got {type(artifact).__name__}")
    name = object_paths.parse_artifact(artifact.path)
    if name.id != attempt.id or name.partition is None or name.codec != codecs.RAW.name:
        raise IllegalArgumentError(f"{artifact.path}: not an artifact that was written for {attempt.id}")
    operator, partition = name.operator, name.partition
    change = attempt.change(operator, codecs.RAW, partition + 1)
    slot = ChainSlot(operator, partition, codecs.RAW.name, (artifact,))
    if artifact.kind == SNAPSHOT:
        change.plans[partition] = ChainPlan((), [slot])
    else:
        plan = _below_delta(change, operator, partition)
        # Unlike in `add` the new delta stands already: what is folded becomes an object of its own beside it.
        older = _split_for_fold(plan, artifact.size, attempt.session.max_chain, is_stored=True)
        folded = ChainSlot(operator, partition, codecs.RAW.name, count=len(older))
        plan.added += [folded, slot] if older else [slot]
        if older:
            change.grow(partition)  # before the first wait: a commit may begin meanwhile
            await attempt.uploader.queue.submit(_write_folded(attempt, folded, older, None), _size(older))
    change.grow(partition)
    if written_by not in attempt.proven_executors:
        # A check counts as a write of some size, so that no more than this many are under way.
        await attempt.uploader.queue.submit(prove(attempt, written_by, artifact), IN_FLIGHT // MAX_CONCURRENT_CHECKS)


async def prove(attempt: CheckpointAttempt, written_by: str | None, artifact: Artifact) -> None:
    """Check that an artifact that `written_by` wrote is in this store.

    There is one check for each executor, however many artifacts it wrote, and one for each artifact of which nobody
    says who wrote it: any of them may come from a machine of its own.
    """
    if written_by is None:
        await placement.prove(attempt.session.store, "another process", artifact)
        return
    if written_by in attempt.proven_executors:
        return
    # Noted before the wait, so that artifacts of one executor that are attached together send one request.
    # Forgotten after an error: an outage says nothing about the executor, and the next artifact has to ask again.
    attempt.proven_executors.add(written_by)
    try:
        await placement.prove(attempt.session.store, written_by, artifact)
    except BaseException:
        attempt.proven_executors.discard(written_by)
        raise


def declare(attempt: CheckpointAttempt, operator: str, schema: Json) -> None:
    """Record the layout of an operator's bytes.

    Raises `IllegalArgumentError` if the parent's bytes have another layout.
    """
    attempt.check_open()
    object_paths.encode_name("operator", operator)
    old = attempt.operator(operator)
    if old is not None and old.schema != schema:
        raise IllegalArgumentError(
            f"operator {operator!r}: was written as {old.schema}, not as {schema}: {how_to_keep(operator)}"
        )
    change = attempt.change(operator, codecs.RAW, 0)
    declared = change.operator.schema if old is None else None
    if (change.plans or declared is not None) and change.operator.schema != schema:
        raise IllegalArgumentError(
            f"operator {operator!r}: was written as {change.operator.schema} in this batch, not as {schema}: write all "
            "of it in one way, or give one of them another name"
        )
    change.operator = replace(change.operator, schema=check_json(f"operator {operator!r}: schema", schema))


async def _write_folded(attempt: CheckpointAttempt, slot: ChainSlot, older: Chain, newest: EncodedBlob | None) -> None:
    """Write older deltas again as one object, with the newest one if there is one."""
    found = await download.read_all(attempt.session.store, attempt.session.host, older)
    # Equal deltas of one attempt can be one artifact, which the chain then names more than once.
    blobs = [EncodedBlob(DELTA, bytes(found[artifact]), artifact.length, 1) for artifact in older]
    await attempt.uploader.write_together(slot, blobs if newest is None else [*blobs, newest])


def _below_delta(change: OperatorChange, name: str, partition: int) -> ChainPlan:
    """Return the plan to which a delta of opaque bytes is added.

    Raises `IllegalArgumentError` if the partition has no snapshot below the delta, or too many deltas above the
    snapshot.
    """
    plan = change.plans.get(partition) or ChainPlan(change.parent.get(partition, ()))
    if not plan.kept and not plan.added:
        raise IllegalArgumentError(
            f"operator {name!r}, partition {partition}: a delta needs a snapshot below it: save that first"
        )
    if len(plan.kept) + sum(slot.count for slot in plan.added) > MAX_RAW_DELTAS:
        raise IllegalArgumentError(
            f"operator {name!r}, partition {partition}: {MAX_RAW_DELTAS} deltas above one snapshot, and "
            "only the caller can merge them: save a snapshot"
        )
    change.plans[partition] = plan
    return plan


def _split_for_fold(plan: ChainPlan, size: int, max_chain: int, *, is_stored: bool = False) -> Chain:
    """Take the deltas to fold off a chain of opaque bytes, and return them.

    The caller writes them again as one object. `size` is the size of the delta to come, and `is_stored` whether it is
    stored already.
    """
    # By object, since a fold that took only some deltas of an object would leave the others in it, and save no request.
    # The first artifact is the snapshot.
    groups = [list(group) for _, group in groupby(plan.kept[1:], lambda artifact: artifact.path)]
    # What this attempt added may still be on its way, and cannot be read for a fold. So there is nothing to decide.
    if plan.added:
        return ()
    objects = [[artifact.length for artifact in group] for group in groups]
    start = 1 + opaque_fold_start(objects, size, max_chain, is_stored=is_stored)
    folded, plan.kept = plan.kept[start:], plan.kept[:start]
    return folded


def _size(chain: Chain) -> int:
    return sum(artifact.length for artifact in chain)
