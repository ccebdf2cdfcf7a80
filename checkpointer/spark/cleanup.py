"""Clean up stores with very many objects.

Tasks list and delete objects; each has its own part of the paths. The driver applies the policy, expires checkpoints
with one swap of the pointer, and sends the index of live objects to all tasks. Garbage never becomes live again. So the
tasks need not know of each other, and a task may run twice.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer.admin.retention.classifier import GarbageClassifier, PlanRow
from pyspark_checkpointer.admin.retention.garbage_collect import (
    Cleaned,
    begin_plan,
    check_policy,
    classify_leftovers,
)
from pyspark_checkpointer.admin.retention.plan import CleanupPlan
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.retention.reachability import DELETE, LATER
from pyspark_checkpointer.admin.retention.retire import retire
from pyspark_checkpointer.admin.retention.spool import Total
from pyspark_checkpointer.admin.retention.sweep import DELETE_BATCH
from pyspark_checkpointer.checkpoint.old_copy import refuse_old_copy
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.client.base import Client
from pyspark_checkpointer.errors import StoreRefusedError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.executors import destroying_broadcasts, parallelism, share
from pyspark_checkpointer.spark.task_client import TaskRoot
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption
from pyspark_checkpointer.storage.base import Store, WriteLeftover
from pyspark_checkpointer.storage.signed_paths import SignedPaths

LISTING_PREFIXES = 64
"""The approximate number of prefixes for a parallel listing.

The objects of an operator are listed by these prefixes.
"""

_ROW = (
    "path string, size bigint, action string, reason string, referenced_by string, reference_count int, leftover string"
)
_ARROW_ROW = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("action", pa.string()),
        ("reason", pa.string()),
        ("referenced_by", pa.string()),
        ("reference_count", pa.int32()),
        ("leftover", pa.string()),
    ]
)
_COUNT = "action string, objects bigint, bytes bigint"


def plan_cleanup(
    spark: SparkSession,
    root: str | os.PathLike[str],
    policy: RetentionPolicy | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    fencing: Fencing = "required",
    encryption: EncryptionOption = None,
    signing: SigningOption = None,
) -> DataFrame:
    """Return what a cleanup would do, with one row for each object.

    The objects are those of the format in a folder of the root. The columns are those of `PlanRow`. The store is listed
    when the DataFrame is read. Leftovers of interrupted writes are not listed.

    Args:
        spark: The session.
        root: The root: a folder or a URL.
        policy: Which checkpoints to keep. Without it nothing is retired.
        storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
        fencing: As in `Checkpointer`.
        encryption: As in `Checkpointer`.
        signing: As in `Checkpointer`.

    Raises:
        IllegalArgumentError: `policy` is no `RetentionPolicy`.
        CorruptionError: Metadata is missing or damaged. The message names the object.
        InvalidStateError: `_latest` is missing, or is an old copy that somebody put back.

    Examples:
        >>> plan = plan_cleanup(spark, "state/shop")
        >>> plan.where("action = 'delete'").count()
        0
    """
    with Checkpointer(root, storage_options, fencing=fencing, encryption=encryption, signing=signing) as client:
        run_sync(refuse_old_copy(client.session.store))
        _, classifier = run_sync(begin_plan(client.session, check_policy(policy)))
        return _over_objects(spark, client, classifier, lambda _, rows: _as_batch(rows), _ROW, newer=True)


def frame_of(spark: SparkSession, plan: CleanupPlan) -> DataFrame:
    """Return the rows of a plan as a DataFrame.

    They go through the memory of the driver.

    Args:
        spark: The session.
        plan: What `Checkpointer.plan` returned.

    Examples:
        >>> from pyspark_checkpointer import Checkpointer
        >>> frame_of(spark, Checkpointer("state/shop").plan()).select("action").distinct().collect()
        [Row(action='keep')]
    """
    return spark.createDataFrame([*plan], _ROW)


def clean(
    spark: SparkSession,
    root: str | os.PathLike[str],
    policy: RetentionPolicy | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    fencing: Fencing = "required",
    encryption: EncryptionOption = None,
    signing: SigningOption = None,
) -> Cleaned:
    """Clean up as `Checkpointer.clean` does, with the work on the executors.

    Listing and deleting are spread over them.

    Args:
        spark: The session.
        root: The root: a folder or a URL.
        policy: Which checkpoints to keep. Without it only garbage is deleted.
        storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
        fencing: As in `Checkpointer`.
        encryption: As in `Checkpointer`.
        signing: As in `Checkpointer`.

    Returns:
        The sums of what was retired, deleted, and will be deleted after the grace period.

    Raises:
        IllegalArgumentError: `policy` is no `RetentionPolicy`.
        CorruptionError: Metadata is missing or damaged. The message names the object.
        InvalidStateError: `_latest` is missing, or is an old copy that somebody put back.

    Examples:
        >>> clean(spark, "state/shop").deleted.objects
        0
    """
    policy = check_policy(policy)
    with Checkpointer(root, storage_options, fencing=fencing, encryption=encryption, signing=signing) as client:
        session = client.session
        run_sync(refuse_old_copy(session.store))
        before = Total()
        try:
            done = run_sync(retire(session, policy))
        except StoreRefusedError:
            # A full disk has no room for the swap: delete first, as `retire_and_sweep` does.
            before = _sweep(spark, client, policy)[0]
            if not before.objects:
                raise
            done = run_sync(retire(session, policy))
        deleted, later, why = _sweep(spark, client, policy)
    gone = tuple(ref.id for ref in done.retired)
    return Cleaned(gone, before + deleted, later, done.note or why, done.followers)


def _sweep(spark: SparkSession, client: Checkpointer, policy: RetentionPolicy) -> tuple[Total, Total, str | None]:
    """Delete garbage on the executors.

    Return the totals of what was deleted and of what is deleted later, and the note of the plan.
    """
    session = client.session
    # Without rules, as the checkpoints were retired before. The grace period still protects their readers.
    plan, classifier = run_sync(begin_plan(session, RetentionPolicy(grace=policy.grace)))
    totals = {DELETE: Total(), LATER: Total()}
    with destroying_broadcasts():
        for action, objects, size in _over_objects(spark, client, classifier, _delete, _COUNT).collect():
            totals[action] += Total(objects, size)
    if classifier is not None:
        # Leftovers belong to no prefix that a task could list, so the driver deletes them.
        left = run_sync(classify_leftovers(session, plan, classifier))
        garbage = [WriteLeftover(row.path, row.leftover) for row in left if row.leftover and row.action == DELETE]
        run_sync(session.store.discard(garbage))
    return totals[DELETE], totals[LATER], plan.note


Work = Callable[[Store, Iterator[PlanRow]], Iterator[pa.RecordBatch]]


def _over_objects(
    spark: SparkSession,
    client: Checkpointer,
    classifier: GarbageClassifier | None,
    work: Work,
    schema: str,
    *,
    newer: bool = False,
) -> DataFrame:
    """Return the rows that `work` yields for all objects, as a DataFrame.

    Each task lists some prefixes of the paths. `newer` is as in `_listing_prefixes`.
    """
    # There is no `_latest`, and no manifest proves that one was lost. So nothing proves what is garbage, and nothing is
    # touched (SPEC, Retire and sweep).
    if classifier is None:
        return spark.createDataFrame([], schema)
    # Several tasks for each core, since nobody knows how many objects a prefix has.
    wanted = 4 * parallelism(spark)
    prefixes = run_sync(_listing_prefixes(client, classifier.sequence, wanted, newer=newer))
    root, signed = TaskRoot.of(client, spark), client.is_signed
    # The index of live objects can be large.
    sent = share(spark, classifier, f"{client.root}: the index of its live objects")

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # The client of tasks has no keys, and knows nothing of signatures.
        stored = root.open().session.store
        store: Store = SignedPaths(stored) if signed else stored
        for batch in batches:
            for prefix in batch.column("prefix").to_pylist():
                yield from work(store, _rows(store, prefix, sent()))

    frame = spark.createDataFrame([(prefix,) for prefix in prefixes], "prefix string")
    return frame.repartition(max(1, min(len(prefixes), wanted))).mapInArrow(run, schema)


def _rows(store: Store, prefix: str, classifier: GarbageClassifier) -> Iterator[PlanRow]:
    more: object | None = None
    while True:
        page = run_sync(store.list_page(prefix, more))
        yield from (classifier(entry.path, entry.size) for entry in page.entries)
        more = page.more
        if more is None:
            return


def _as_batch(rows: Iterator[PlanRow]) -> Iterator[pa.RecordBatch]:
    for some in _bulks(rows):
        yield pa.RecordBatch.from_pylist([row._asdict() for row in some], _ARROW_ROW)


def _bulks(rows: Iterator[PlanRow]) -> Iterator[list[PlanRow]]:
    while some := [*islice(rows, DELETE_BATCH)]:
        yield some


def _delete(store: Store, rows: Iterator[PlanRow]) -> Iterator[pa.RecordBatch]:
    """Delete the garbage among some objects.

    Yield the totals of what was deleted and what is deleted later.
    """
    later = Total()

    def garbage() -> Iterator[PlanRow]:
        nonlocal later
        for row in rows:
            if row.action == LATER:
                later += Total(1, row.size)
            if row.action == DELETE:
                yield row

    deleted = Total()
    for some in _bulks(garbage()):
        run_sync(store.delete([row.path for row in some]))
        deleted += Total(len(some), sum(row.size for row in some))
    yield pa.RecordBatch.from_pydict(
        {"action": [DELETE, LATER], "objects": [deleted.objects, later.objects], "bytes": [deleted.bytes, later.bytes]}
    )


async def _listing_prefixes(client: Client, sequence: int, wanted: int, *, newer: bool) -> Sequence[str]:
    """Return prefixes that cover every object of the format exactly once.

    The objects are those in a folder of the root, for `wanted` tasks. Without `newer`, a folder that is split by
    sequence ends with the one after `sequence`. Objects above it cannot be garbage. There are many of them if somebody
    put back an old `_latest`.
    """
    store = client.session.store
    ids = _id_prefixes(sequence + 1)  # Objects that are being written now have the next sequence.
    if newer:
        ids = [*ids, *_prefixes_above(ids[-1])]
    prefixes: list[str] = []
    for folder in await store.folders(""):
        if folder == object_paths.ARTIFACTS:
            operators = await store.folders(folder)
            # Each prefix costs a request, also one without objects. More operators than tasks are parts enough.
            is_whole = store.lists_whole_folders or len(operators) > wanted
            parts = ("",) if is_whole else (*_PARTITION_PREFIXES, *(f"packs/{start}" for start in ids))
            prefixes += [f"{operator}{part}" for operator in operators for part in parts]
        elif folder == object_paths.MANIFESTS and not store.lists_whole_folders:
            prefixes += [object_paths.SEGMENTS, *(f"{folder}{start}" for start in ids)]
        else:
            prefixes.append(folder)
    return prefixes


# `1/` is partition 1, and `10` is the beginning of 10, 100 and 1000: each partition has exactly one of these
# prefixes.
_PARTITION_PREFIXES = (*(f"{digit}/" for digit in range(10)), *map(str, range(10, 100)))


def _id_prefixes(newest: int) -> Sequence[str]:
    """Return about `LISTING_PREFIXES` prefixes that cover all ids up to a sequence."""
    # Each digit more makes ten times as many prefixes. The fewest digits that give a quarter of the wanted number
    # come near enough to it.
    digits = next((d for d in range(1, 10) if int(f"{newest:010d}"[:d]) >= LISTING_PREFIXES // 4), 10)
    return [f"{number:0{digits}d}" for number in range(int(f"{newest:010d}"[:digits]) + 1)]


def _prefixes_above(last: str) -> Sequence[str]:
    """Return prefixes that cover all ids above those that begin with `last`."""
    return [last[:place] + digit for place in range(len(last)) for digit in "0123456789" if digit > last[place]]
