"""Fork a streaming query: make a second one with the same state and progress.

The second query has an id of its own.

    copy the state → compare-and-swap _latest → write Spark's checkpoint: sources/, metadata, offsets/, commits/

Until the last file is written, a query that is started on the copy is refused: its id differs, or its batches do not
follow the state. A second call finishes an interrupted fork, and leaves a complete one as it is, also while the second
query runs. Nothing is written to the first query, which may run meanwhile.
"""

import logging
import uuid
from dataclasses import dataclass, replace

from pyspark_checkpointer.admin.export import create_root, refuse_used
from pyspark_checkpointer.admin.streaming.fork_log import keep_complete, write_log
from pyspark_checkpointer.admin.streaming.log_plan import commit_of, recorded_offsets
from pyspark_checkpointer.admin.streaming.offset_log import (
    COMMITS,
    OFFSETS,
    BatchOffsets,
    SparkLog,
    read_file,
    read_log,
)
from pyspark_checkpointer.admin.streaming.rewind_record import read_records
from pyspark_checkpointer.admin.streaming.spark_location import SparkCheckpointLocation, job_of
from pyspark_checkpointer.checkpoint.latest import find_head, read_consistent
from pyspark_checkpointer.checkpoint.liveness import this_copier
from pyspark_checkpointer.checkpoint.resolve import read_live
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.display import cut, facts
from pyspark_checkpointer.errors import ConflictError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId, Job, Manifest, SparkProgress
from pyspark_checkpointer.runtime.host import Progress
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import Store, is_empty


@dataclass(frozen=True, slots=True)
class Fork:
    """The second query: where it is, and after which batch it continues."""

    root: str
    """The root of its state, without secrets."""
    spark_checkpoint: str
    """The `checkpointLocation` to start it with."""
    query_id: str
    """The id of the new query."""
    id: CheckpointId
    """Its first checkpoint."""
    batch: int
    """The last batch in its state. The query continues with the next one."""

    def __repr__(self) -> str:
        where = f"{cut(repr(self.root), 200)}: {self.id}, query {self.query_id} after batch {self.batch}"
        return f"Fork({where}, in {cut(repr(self.spark_checkpoint), 200)})"

    def _repr_html_(self) -> str:
        return facts(
            "Fork",
            {
                "root": self.root,
                "checkpoint": self.id,
                "query": self.query_id,
                "batch": self.batch,
                "checkpointLocation": self.spark_checkpoint,
            },
        )


async def fork(
    session: Session,
    what: CheckpointSelector,
    target: Session,
    source_log: SparkCheckpointLocation,
    target_log: Store,
    progress: Progress | None,
) -> Fork:
    """Fork a query; see `Checkpointer.fork`. Closes the target and its log."""
    try:
        return await _fork(session, what, target, source_log, target_log, progress)
    finally:
        await target.close()
        await target_log.close()


async def _fork(
    session: Session,
    what: CheckpointSelector,
    target: Session,
    source_log: SparkCheckpointLocation,
    target_log: Store,
    progress: Progress | None,
) -> Fork:
    """Fork a query, or finish a fork that was interrupted."""
    # Spark's files in a root, or one root for both, would mix two histories.
    if target_log.url in (target.store.url, session.store.url) or target.store.url == session.store.url:
        raise IllegalArgumentError(
            f"{target_log.url}: the two roots and the two checkpointLocations must be four different folders"
        )
    ref, manifest = await read_consistent(session.store, lambda head: read_live(session, head, what))
    job = job_of(session, manifest)
    spark = source_log.open(session.store.url, job)
    try:
        if spark.url in (target_log.url, target.store.url):
            raise IllegalArgumentError(f"{spark.url}: is the checkpoint of the first query: give a new one")
        log = await read_log(spark)
        log.check_belongs(job)
        log.check_stateless("forked")
        if job.spark is None and await read_records(spark):
            raise InvalidStateError(
                f"{session.store.url}: {ref.id} did not record the offsets of its batch, and those of Spark may be of "
                "another one since it was rewound: fork a checkpoint that was made since"
            )
        # Asked before the target is refused as used: what lies there may be an earlier try of this very fork.
        begun = await _find_interrupted(target, target_log, manifest)
        complete = begun is not None and await keep_complete(target_log, begun[0])
        files = {} if complete else await _read_spark_files(spark, log, job)
        if begun is None:
            await _refuse_used_root(target, target_log)
            await _refuse_used_log(target_log)
            # The id of the new query is drawn once, and committed with the state. So the call that finishes a fork
            # finds it again.
            copy = _make_job(session, job, files, target_log)
            # The state goes first. A query that is started before Spark's files are there gets another id, and is
            # refused.
            first = await create_root(session, ref.id, replace(manifest, job=copy), target, progress)
        else:
            copy, first = begun
        if not complete:
            await write_log(spark, target_log, copy, files)
    finally:
        await spark.close()
    log_safely(
        logging.INFO, "%s: forked %s to %s, query %s", session.store.url, ref.id, target.store.url, copy.query_id
    )
    return Fork(target.store.url, target_log.url, copy.query_id, first, job.batch_id)


def _make_job(session: Session, job: Job, files: dict[str, bytes], target_log: Store) -> Job:
    """Return the job of the new query, with a new id.

    The query has no driver yet, so this process is recorded as its driver.
    """
    query_id = str(uuid.UUID(hex=session.host.token(32), version=4))
    before = files.get(f"{OFFSETS}{job.batch_id - 1}")
    sources = () if before is None else BatchOffsets.parse(before.decode()).sources
    offsets = files[f"{OFFSETS}{job.batch_id}"].decode()
    lists, gone = (job.spark.lists, job.spark.gone) if job.spark else ({}, {})
    spark = SparkProgress(target_log.url, offsets, sources, lists, gone)
    return replace(job, query_id=query_id, driver=this_copier(), spark=spark)


async def _read_spark_files(spark: Store, log: SparkLog, job: Job) -> dict[str, bytes]:
    """Return the files that Spark needs to go on after the batch.

    They are two files of offsets, and the batch's commit.
    """
    files = {}
    for path, recorded in (await recorded_offsets(spark, log, job, {})).items():
        data = await read_file(spark, path) if recorded is None else recorded
        if data is None:  # The first query runs, and Spark deletes old files.
            raise ConflictError(f"{spark.url}/{path}: Spark deleted it just now: call again")
        files[path] = data
    return files | {f"{COMMITS}{job.batch_id}": await commit_of(spark, log, job)}


async def _find_interrupted(target: Session, target_log: Store, manifest: Manifest) -> tuple[Job, CheckpointId] | None:
    """Return what an earlier call committed in the target; None if none did.

    It has the same content, for the same place.
    """
    head = await find_head(target.store)
    if head.committed is None or head.committed.id.sequence != 1:
        return None  # A fork commits once: whatever is newer was written by the second query.
    copy = (await target.read_base()).manifest
    if copy is None or copy.job is None or copy.job.spark is None or _content(copy) != _content(manifest):
        return None
    if copy.job.spark.location != target_log.url:
        return None
    return copy.job, copy.id


def _content(manifest: Manifest) -> object:
    """Return the values that are equal in a checkpoint and its copy.

    The paths of their objects differ, so they are left out.
    """

    def identity(artifact: Artifact) -> tuple[object, ...]:
        # Without the path, since a copy has other paths.
        return artifact.kind, artifact.offset, artifact.length, artifact.digest

    chains = {
        (name, partition): tuple(map(identity, chain))
        for name, operator in manifest.operators.items()
        for partition, chain in operator.chains.items()
    }
    return manifest.epoch, manifest.positions, manifest.properties, chains


async def _refuse_used_root(target: Session, target_log: Store) -> None:
    """Raise `InvalidStateError` unless the new root is empty."""
    head = await find_head(target.store)
    if head.version is not None:
        # An interrupted fork has one commit. Where the first query went on since, `latest` means another checkpoint.
        is_first = head.committed is not None and head.committed.id.sequence == 1
        copy = (await target.read_base()).manifest if is_first else None
        epoch = "" if copy is None or copy.epoch is None else f", epoch={copy.epoch}"
        made = f"the checkpoint that it was made from{epoch}"
        spark = None if copy is None or copy.job is None else copy.job.spark
        # Only what a fork can have left may be emptied: another root may be one that a query uses.
        if spark is not None and spark.location == target_log.url:
            made += f", or, if it was retired, empty both folders, this one and {spark.location}, and fork another one"
        raise InvalidStateError(
            f"{target.store.url}: holds a store already: give an empty root; to finish an interrupted fork, give {made}"
        )
    await refuse_used(target)


async def _refuse_used_log(target_log: Store) -> None:
    """Raise `InvalidStateError` unless the folder for Spark's checkpoint is empty."""
    if not await is_empty(target_log, ""):
        raise InvalidStateError(f"{target_log.url}: is not empty: give a new checkpointLocation")
