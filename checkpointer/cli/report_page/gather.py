"""Read a store and gather what the report says of it.

Damage becomes a finding, and the rest is still reported. One version of `_latest` is read, and each manifest and each
segment once. Only steps that could take very long are limited, and the report says so.
"""

from collections import Counter

from pyspark_checkpointer.admin import checkpoint_sizes
from pyspark_checkpointer.admin.candidate import Candidate
from pyspark_checkpointer.admin.checkpoint_sizes import Spread
from pyspark_checkpointer.admin.repair_candidates import candidates
from pyspark_checkpointer.admin.retention.garbage_collect import plan_retire_and_sweep
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.checkpoint.latest import Head, find_head
from pyspark_checkpointer.checkpoint.listing import CheckpointState, state_of
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.verification import Verification
from pyspark_checkpointer.checkpoint.verify import Verifier, check_share
from pyspark_checkpointer.cli.report_page.model import (
    CheckpointRow,
    Cleanup,
    CleanupRow,
    Committed,
    OperatorRow,
    PointerSummary,
    Report,
    SavepointRow,
)
from pyspark_checkpointer.client.base import Client
from pyspark_checkpointer.errors import CheckpointError, CorruptionError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Operator, Ref
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.runtime.host import Progress
from pyspark_checkpointer.storage.base import ObjectNotFoundError

MAX_PARTITIONS = 3_000_000
"""Partitions whose chains are read from segments.

Those of the newest checkpoints come first. Reading them takes some ten seconds.
"""

MAX_BYTES, MAX_OBJECTS = 1 << 30, 10_000
"""Bytes and objects that are read and compared unless a share is given.

These are all objects of a smaller store, and a sample of a larger one.
"""


def make_report(
    client: Client,
    *,
    policy: RetentionPolicy | None = None,
    share: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Return a report of what a root holds, and what is wrong with it.

    The report also says what a cleanup by `policy` would do. This only reads.

    Args:
        client: A client of the root. What it has restored stays as it is.
        policy: The rules of the cleanup; without it everything is kept.
        share: The chance of each object to be read and compared, from 0 to 1; without it `MAX_BYTES` and `MAX_OBJECTS`
            limit what is read.
        progress: Called with the bytes compared so far, and in all.
    """
    if share is not None:
        check_share(share)
    return run_sync(gather(client.session, policy or RetentionPolicy(), share, progress))


async def gather(
    session: Session, policy: RetentionPolicy, share: float | None, progress: Progress | None = None
) -> Report:
    """Return the report of a session. See `make_report`."""
    verifier = Verifier(session, None, 0.0, progress)
    head = Head()
    # A damaged `_latest` becomes a finding, and the page is made all the same.
    with verifier.noting(object_paths.LATEST):
        head = await find_head(session.store)
    alone: dict[Ref, Manifest] = {}
    left_out = 0
    if head.pointer is not None:
        verifier.objects += 1
        await verifier.read_manifests(head)
        # A copy: loading chains replaces manifests, and leaves out operators whose segments are damaged.
        alone = dict(verifier.manifests)
        left_out = await _load_chains(verifier, whole=share is not None)
        verifier.share = _share(verifier) if share is None else share
        await verifier.read_objects()
        # A cleanup may have deleted objects meanwhile. What is missing of a retired checkpoint is no damage.
        await verifier.forget_retired(head)
    # Where `_latest` itself is damaged, nothing can be said of what stands above it.
    if not any(finding.path == object_paths.LATEST for finding in verifier.findings):
        await verifier.look_above(head)
    # Without rules a plan keeps all and so reads all chains, of which some were just left out as too many.
    too_much = left_out > 0 and policy.keeps_all
    current = verifier.manifests.get(head.committed) if head.committed else None
    verification = verifier.result()
    return Report(
        root=session.store.url,
        made=session.host.now(),
        pointer=_pointer(head),
        committed=None if current is None else _committed(current),
        checkpoints=_checkpoints(head, verifier, alone),
        operators=_operators(current) if current else (),
        unread_operators=_unread(head, alone, current),
        biggest=checkpoint_sizes.biggest_partitions(current) if current else (),
        savepoints=_savepoints(verifier),
        cleanup=_skipped_cleanup() if too_much else await _cleanup(session, policy),
        verification=verification,
        share=verifier.share,
        chains_left_out=left_out,
        candidates=await _candidates(session) if _needs_repair(verification, current) else (),
    )


async def _load_chains(verifier: Verifier, *, whole: bool) -> int:
    """Load chains from segments, the newest checkpoints first.

    Return how many checkpoints were left out.
    """
    seen: set[tuple[str, ...]] = set()
    read = left_out = 0
    for ref, manifest in sorted(verifier.manifests.items(), key=lambda item: item[0].id, reverse=True):
        new = {key: op for op in manifest.operators.values() if (key := _segments(op)) and key not in seen}
        read += sum(segment.entries for operator in new.values() for segment in operator.segments)
        # `seen` is empty at the first checkpoint with segments, so that the newest is read however large it is.
        if new and seen and read > MAX_PARTITIONS and not whole:
            left_out += 1
            continue
        seen |= new.keys()
        verifier.manifests[ref] = await verifier.with_chains(manifest)
    return left_out


def _segments(operator: Operator) -> tuple[str, ...]:
    """Return the paths of an operator's segments.

    Checkpoints with the same segments have the same chains.
    """
    return tuple(segment.path for segment in operator.segments)


def _share(verifier: Verifier) -> float:
    """Return the share of the objects to read.

    `MAX_BYTES` and `MAX_OBJECTS` limit it.
    """
    sizes: dict[str, int] = {}
    for manifest in verifier.manifests.values():
        sizes |= checkpoint_sizes.object_sizes(manifest)
    return min(1.0, MAX_BYTES / max(sum(sizes.values()), 1), MAX_OBJECTS / max(len(sizes), 1))


def _committed(manifest: Manifest) -> Committed:
    return Committed(manifest.job, manifest.watermark, manifest.positions, manifest.properties)


def _pointer(head: Head) -> PointerSummary | None:
    pointer = head.pointer
    if pointer is None:
        return None
    ids = [None if ref is None else ref.id for ref in (pointer.committed, pointer.prepared)]
    return PointerSummary(pointer.writer, ids[0], ids[1], pointer.boundary, pointer.retired)


def _checkpoints(head: Head, verifier: Verifier, alone: dict[Ref, Manifest]) -> tuple[CheckpointRow, ...]:
    names: dict[CheckpointId, tuple[str, ...]] = {}
    for savepoint in _savepoints(verifier):
        names[savepoint.id] = (*names.get(savepoint.id, ()), savepoint.name)
    hurt = {checkpoint for finding in verifier.findings for checkpoint in finding.checkpoints}
    rows = [
        _row(ref, manifest, verifier.manifests[ref], state_of(head, ref), names.get(ref.id, ()), ref.id in hurt)
        for ref, manifest in alone.items()
    ]
    # What `_latest` or the catalog names has a row, even if its manifest cannot be read.
    rows += [
        CheckpointRow(
            unread, None, None, state_of(head, ref), names.get(unread, ()), None, None, None, None, None, True
        )
        for unread, ref in {ref.id: ref for ref in _named(head, verifier) if ref not in alone}.items()
    ]
    return tuple(sorted(rows, key=lambda row: row.id))


def _named(head: Head, verifier: Verifier) -> list[Ref]:
    """Return the checkpoints that `_latest` and the catalog name.

    Their manifests may be unreadable.
    """
    named = [ref for ref in (head.committed, head.prepared) if ref is not None]
    return [*named, *(entry.ref for entry in (verifier.catalog.entries if verifier.catalog else ()))]


def _row(
    ref: Ref, alone: Manifest, loaded: Manifest, state: CheckpointState, savepoints: tuple[str, ...], damaged: bool
) -> CheckpointRow:
    whole = len(loaded.operators) == len(alone.operators)  # operators with a damaged segment are not loaded
    total = checkpoint_sizes.checkpoint_bytes(loaded) if whole else None
    written = checkpoint_sizes.written_bytes(loaded) if whole else None
    cost_bytes = None if alone.cost is None else alone.cost.bytes
    return CheckpointRow(
        id=ref.id,
        epoch=alone.epoch,
        created=alone.created,
        state=state,
        savepoints=savepoints,
        bytes=total and total[0],
        own_bytes=total[1] if total else cost_bytes,
        snapshot_bytes=written and written[0],
        delta_bytes=written and written[1],
        cost=alone.cost,
        damaged=damaged,
    )


def _operators(manifest: Manifest) -> tuple[OperatorRow, ...]:
    """Return the operators of a manifest, the largest first."""
    rows = [
        OperatorRow(
            name,
            operator.codec,
            operator.partitioner,
            operator.partitions,
            operator.schema,
            checkpoint_sizes.operator_size(operator),
            tuple(sorted(Counter(map(len, operator.chains.values())).items())),
            Spread.of(checkpoint_sizes.partition_bytes(operator).values()),
        )
        for name, operator in manifest.operators.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.size.object_bytes, row.name)))


def _unread(head: Head, alone: dict[Ref, Manifest], current: Manifest | None) -> tuple[str, ...]:
    """Return the operators of the committed checkpoint whose segments cannot be read."""
    if head.committed is None or current is None:
        return ()
    return tuple(sorted(alone[head.committed].operators.keys() - current.operators.keys()))


def _savepoints(verifier: Verifier) -> tuple[SavepointRow, ...]:
    entries = () if verifier.catalog is None else verifier.catalog.entries
    return tuple(SavepointRow(entry.name, entry.ref.id, entry.created) for entry in entries if entry.name is not None)


def _skipped_cleanup() -> Cleanup:
    """Return a cleanup without rows.

    A plan needs all chains, but some were left out because there are too many.
    """
    return Cleanup((), (), "Not looked at, because there are very many partitions: `checkpointer plan` does it.")


async def _cleanup(session: Session, policy: RetentionPolicy) -> Cleanup:
    """Return what a cleanup would do, or a note that says why no plan can be made."""
    try:
        plan = await plan_retire_and_sweep(session, policy)
    # Cleanup refuses to work on a store in which it cannot see all that is live.
    except (CorruptionError, ObjectNotFoundError) as error:
        return Cleanup((), (), f"Nothing can be cleaned while something live cannot be read: {error}")
    except CheckpointError as error:  # for example, the user may read objects but not list them
        return Cleanup((), (), f"Could not be looked at: {error}")
    rows = [CleanupRow(*key, total.objects, total.bytes) for key, total in sorted(plan.totals.items())]
    return Cleanup(tuple(rows), tuple(ref.id for ref in plan.retired), plan.note)


def _needs_repair(found: Verification, current: Manifest | None) -> bool:
    """Return whether `_latest` or the committed manifest is damaged.

    Then a rollback is not possible.
    """
    return bool(found.findings) and (current is None or any(f.path == object_paths.LATEST for f in found.findings))


async def _candidates(session: Session) -> tuple[Candidate, ...]:
    """Return the candidates that the store could be repaired to."""
    try:
        return tuple(await candidates(session, None, None))
    except CheckpointError:
        return ()  # the findings say why, for example that the format is newer
