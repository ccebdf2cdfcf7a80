"""A second query with the state and the progress of a first one, and an id of its own.

    state copied → compare-and-swap _latest → Spark's checkpoint: metadata, sources/, offsets/, commits/

Until the last file is there, a query that is started on the copy is refused, since its batches do not follow the
state; the same call finishes the work. Nothing is written to the first query, which may run meanwhile.
"""

import json
import logging
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from checkpointer.errors import ConflictError, InvalidStateError
from checkpointer.export import found, refuse_used
from checkpointer.host import Progress
from checkpointer.lineage import find_target
from checkpointer.pointer import read_head, reading
from checkpointer.query.log_plan import commit_of, read, recorded_offsets
from checkpointer.query.rewind import To, Where, job_of, resolve
from checkpointer.query.running import this_driver
from checkpointer.query.spark_log import COMMITS, METADATA, SOURCES, SparkLog, read_log
from checkpointer.session import Session
from checkpointer.store.base import ObjectExistsError, Store
from manifests.model import Artifact, CheckpointId, Job, Manifest

logger = logging.getLogger("checkpointer")

TRIES = 5
"""How often the files of a running query are listed anew where it deleted one while they were read."""


@dataclass(frozen=True, slots=True)
class Fork:
    """The copy: where it is, and what it goes on from."""

    root: str
    spark_checkpoint: str
    query_id: str
    id: CheckpointId
    """Its first checkpoint."""
    batch: int
    """The batch that it ends with: the query goes on with the next one."""


async def fork(
    session: Session, what: To, target: Session, source_log: Where, target_log: Store, progress: Progress | None
) -> Fork:
    """See `Checkpointer.fork`. Closes the target."""
    try:
        return await _fork(session, what, target, source_log, target_log, progress)
    finally:
        await target.close()
        await target_log.close()


async def _fork(
    session: Session, what: To, target: Session, source_log: Where, target_log: Store, progress: Progress | None
) -> Fork:
    wanted = await resolve(session, what)
    ref, manifest = await reading(session.store, lambda head: find_target(session, head, wanted))
    job = job_of(session, manifest)
    spark = source_log.open(session.store.url, job)
    try:
        log = await read_log(spark)
        log.check_belongs(job)
        log.check_stateless("forked")
        files = await _files(spark, log, job)
        begun = await _begun(target, target_log, manifest)
        if begun is None:
            await refuse_used(target)
            await _refuse_used_log(target_log)
            renamed = _renamed(session, job, target_log)
            commit = await found(session, ref.id, replace(manifest, job=renamed), target, progress)
        else:
            renamed, commit = begun
    finally:
        await spark.close()
    await _write(target_log, {METADATA: json.dumps({"id": renamed.query_id}).encode(), **files})
    logger.info("%s: forked %s to %s, query %s", session.store.url, ref.id, target.store.url, renamed.query_id)
    return Fork(target.store.url, target_log.url, renamed.query_id, commit, job.batch_id)


def _renamed(session: Session, job: Job, target_log: Store) -> Job:
    query_id = str(uuid.UUID(hex=session.host.token(32), version=4))
    spark = None if job.spark is None else replace(job.spark, location=target_log.url)
    return replace(job, query_id=query_id, driver=this_driver(), spark=spark)


async def _files(spark: Store, log: SparkLog, job: Job) -> dict[str, bytes]:
    """What Spark needs to go on after the batch, in the order in which it is written."""
    files = await _sources(spark)
    for path, recorded in (await recorded_offsets(spark, log, job)).items():
        data = await read(spark, path) if recorded is None else recorded
        if data is None:
            raise ConflictError(f"{spark.url}/{path}: Spark deleted it just now: call again")
        files[path] = data
    files[f"{COMMITS}{job.batch_id}"] = await commit_of(spark, log, job)
    return files


async def _sources(spark: Store) -> dict[str, bytes]:
    """What the sources remember. Some of it is about batches to come, which they then need not look for again."""
    for _ in range(TRIES):
        paths = [entry.path for entry in await spark.list(SOURCES) if not entry.path.rpartition("/")[2].startswith(".")]
        files = {path: await read(spark, path) for path in paths}
        whole = {path: data for path, data in files.items() if data is not None}
        if len(whole) == len(files):
            return whole
    raise ConflictError(f"{spark.url}/{SOURCES}: changes faster than it can be copied: stop the query, or call again")


async def _begun(target: Session, target_log: Store, manifest: Manifest) -> tuple[Job, CheckpointId] | None:
    """What an earlier call committed that did not come to its end: the same content, for the same place."""
    head = await read_head(target.store)
    if head.committed is None or head.committed.id.sequence != 1:
        return None
    copy = (await target.read_base()).manifest
    if copy is None or copy.job is None or copy.job.spark is None or _content(copy) != _content(manifest):
        return None
    if copy.job.spark.location != target_log.url:
        return None
    return copy.job, copy.id


def _content(manifest: Manifest) -> object:
    def seen(artifact: Artifact) -> tuple[object, ...]:
        return artifact.kind, artifact.offset, artifact.length, artifact.digest

    chains = {
        (name, partition): tuple(map(seen, chain))
        for name, operator in manifest.operators.items()
        for partition, chain in operator.chains.items()
    }
    return manifest.epoch, manifest.positions, manifest.properties, chains


async def _refuse_used_log(target_log: Store) -> None:
    if (await target_log.list_page("")).entries:
        raise InvalidStateError(f"{target_log.url}: is not empty: give a new checkpointLocation")


async def _write(target_log: Store, files: Mapping[str, bytes]) -> None:
    """In order; each is read back, since Spark reads it without a digest."""
    for path, data in files.items():
        with suppress(ObjectExistsError):
            await target_log.put(path, data)
        if await read(target_log, path) != data:
            raise InvalidStateError(
                f"{target_log.url}/{path}: is in use by another query: give a new checkpointLocation"
            )
