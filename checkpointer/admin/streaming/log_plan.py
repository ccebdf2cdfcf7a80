"""Plan how Spark's progress has to change so that a query goes on after a batch.

For that Spark needs three files: the offsets of the batch, the offsets of the batch before it, and the commit of the
batch. The next batch may keep the offsets that were planned for it. All newer files go.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark_checkpointer.admin.streaming.file_source_log import check_lists
from pyspark_checkpointer.admin.streaming.log_edit import LogPlan
from pyspark_checkpointer.admin.streaming.offset_log import (
    COMMITS,
    NO_OFFSET,
    OFFSETS,
    BatchOffsets,
    SparkLog,
    by_source,
    read_file,
    read_offsets,
    read_text,
    returned_sources,
    same_offsets,
)
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests.model import Job, SparkProgress
from pyspark_checkpointer.storage.base import Store

NO_WATERMARK = ("v1", {"nextBatchWatermarkMs": 0})


@dataclass(frozen=True, slots=True)
class LogBeforeRewind:
    """Spark's progress before a rewind: all paths, and the content of cut files."""

    names: Collection[str]
    cut: Mapping[str, bytes]


async def plan_log(store: Store, log: SparkLog, job: Job, before: LogBeforeRewind | None) -> LogPlan:
    """Return the changes that take Spark to the end of a batch.

    For an undo they take Spark back to how it was `before` the rewind. Raises `InvalidStateError` where neither Spark
    nor the checkpoint knows the offsets any more.
    """
    here = {f"{OFFSETS}{n}" for n in log.offsets} | {f"{COMMITS}{n}" for n in log.commits}
    recorded = await recorded_offsets(store, log, job, before.cut if before else {})
    written = {path for path, data in recorded.items() if data is not None}
    # A file that differs from what the checkpoint recorded belongs to batches that began after the rewind. The files
    # that would come back do not fit to such batches.
    if before is None or written & here - before.cut.keys():
        wanted = await _wanted_after(store, log, job, recorded)
    else:
        # What was there before the rewind and is there now stays as it is.
        wanted = dict.fromkeys(here & {*before.names})
        wanted |= {**recorded, **before.cut}
        if not _can_start(wanted):  # Spark has since deleted older offsets that it would need.
            wanted = await _wanted_after(store, log, job, recorded)
    cut: list[str] = []
    # Commits go first: until the offsets are cut too, Spark repeats a batch that the state does not wait for, and is
    # refused (step 7 in `rewind.py`).
    for folder, files in ((COMMITS, log.commits), (OFFSETS, log.offsets)):
        for n in sorted(files, reverse=True):  # Newest first: a log that is half cut is ahead of the state.
            path = f"{folder}{n}"
            new = wanted.get(path)
            if new is not None and new == await read_file(store, path):
                wanted[path] = None
            elif path not in wanted or new is not None:
                cut.append(path)
    write = {path: data for path in _in_order(wanted) if (data := wanted[path]) is not None}
    if before is not None and cut and _were_purged(write, here) and await _has_gone_on(store, job, cut):
        cut, write = [], {}  # The undo is complete, and the query was started since.
    return LogPlan(tuple(cut), write, tuple(sorted(here)))


async def _has_gone_on(store: Store, job: Job, paths: Collection[str]) -> bool:
    """Return whether these are files that Spark writes after a batch, and can read.

    It commits the batch, unless it had, and plans the next one.
    """
    jobs = {f"{COMMITS}{job.batch_id}": None, f"{OFFSETS}{job.batch_id + 1}": job}
    return {*paths} <= jobs.keys() and all([await _is_readable(store, path, jobs[path]) for path in paths])


def _were_purged(paths: Collection[str], here: Collection[str]) -> bool:
    """Return whether Spark can have deleted these files as too old.

    It deletes the oldest files of a folder, and none that it needs to start. An undo that was interrupted lacks files
    that are newer than others, because it writes the oldest ones first.
    """
    for folder in (OFFSETS, COMMITS):
        gone, there = (
            [int(path.removeprefix(folder)) for path in some if path.startswith(folder)] for some in (paths, here)
        )
        if gone and (not there or max(gone) >= min(there)):
            return False
    return _can_start(here)


def _can_start(paths: Collection[str]) -> bool:
    """Return whether Spark could start with these files.

    It needs the offsets of the newest batch and of the one before.
    """
    numbers = {int(path.removeprefix(OFFSETS)) for path in paths if path.startswith(OFFSETS)}
    return not numbers or max(numbers) == 0 or max(numbers) - 1 in numbers


async def _wanted_after(
    store: Store, log: SparkLog, job: Job, recorded: Mapping[str, bytes | None]
) -> dict[str, bytes | None]:
    """Return the files that Spark is to have right after a batch, by path.

    None for a file that stays as it is.
    """
    batch, wanted = job.batch_id, dict(recorded)
    # Spark reads each file of offsets as following the one before it. So where the offsets of this batch have to be
    # written anew, the other files are of another line of batches, and none of them may stay.
    if not any(wanted.values()):
        wanted |= {f"{OFFSETS}{n}": None for n in log.offsets if n < batch - 1}
        if await _is_readable(store, f"{OFFSETS}{batch + 1}", job):
            wanted[f"{OFFSETS}{batch + 1}"] = None
    wanted |= {f"{COMMITS}{n}": None for n in log.commits if n < batch}
    commit = f"{COMMITS}{batch}"
    wanted[commit] = None if await _is_readable(store, commit) else await commit_of(store, log, job)
    return wanted


async def _is_readable(store: Store, path: str, job: Job | None = None) -> bool:
    """Return whether Spark can read a file of offsets or commits.

    It has a version, a line of JSON, then, with a `job`, a line for each source of it.
    """
    wanted = (
        by_source(BatchOffsets.parse(job.spark.offsets).sources) if job is not None and job.spark is not None else {}
    )
    try:
        text = await read_offsets(store, path)
        if text is None or not text.has_metadata:
            return False
        found = by_source(text.sources)
        # A file that lacks a source may have lost its last lines. Spark would read that source from its beginning.
        if not wanted.keys() <= found.keys():
            return False
        if job is not None and job.spark is not None and returned_sources(job.spark, text.sources):
            return False
        for source, offset in found.items():
            # Only sources whose recorded offset is JSON are checked as JSON; others may write plain text.
            if wanted.get(source, "").startswith(("{", "[")) and offset != NO_OFFSET:
                json.loads(offset)
    except (InvalidStateError, ValueError, RecursionError):
        return False
    return True


def _in_order(wanted: Mapping[str, bytes | None]) -> list[str]:
    """Return the paths in the order in which Spark writes such files.

    Offsets come before commits, and older ones before newer ones.
    """
    return sorted(wanted, key=lambda path: (path.startswith(COMMITS), int(path.rpartition("/")[2])))


async def recorded_offsets(store: Store, log: SparkLog, job: Job, kept: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """Return the offsets of a batch and of the one before it, by path.

    None means that the file already says the same. A file that an earlier rewind `kept` comes first, then what the
    checkpoint recorded, then what Spark still has. Raises `InvalidStateError` where nobody knows the offsets any more.
    """
    batch, spark = job.batch_id, job.spark
    found: dict[str, bytes | None] = {}
    ends = None if spark is None else BatchOffsets.parse(spark.offsets)
    starts = None if spark is None or ends is None else ends._replace(sources=spark.before)
    for n, recorded in ((batch - 1, starts), (batch, ends)):
        path = f"{OFFSETS}{n}"
        # Batch 0 has no batch before it.
        if n < 0 or path in kept:
            found |= {path: kept[path]} if path in kept else {}
            continue
        try:
            there = await read_offsets(store, path)
        except InvalidStateError:  # The file is damaged: what the checkpoint recorded replaces it.
            if recorded is None:
                raise
            there = None
        if there is None and recorded is None:
            raise InvalidStateError(
                f"{log.url}: Spark has deleted the offsets of batch {n}, and the checkpoint did not record them: "
                f"choose a checkpoint whose batch is still in {OFFSETS}"
            )
        # Old versions of Spark wrote no metadata, and newer ones do not go on without.
        complete = there is not None and there.has_metadata
        if recorded is None and not complete:
            raise InvalidStateError(
                f"{store.url}/{path}: has no metadata, without which Spark does not go on, and the checkpoint did not "
                "record these offsets: choose a later checkpoint"
            )
        same = recorded is None or (complete and there is not None and same_offsets(there.sources, recorded.sources))
        found[path] = None if same else str(recorded).encode()
    # Offsets of the file source are only numbers, so the lists behind them have to be those that the batch read.
    await check_lists(store, job)
    return found


async def spark_progress_at(store: Store, job: Job, kept: Mapping[str, bytes]) -> SparkProgress | None:
    """Return how far Spark was at a batch, from files; None where no file tells.

    Files that an earlier rewind `kept` are taken before those that Spark has now.
    """
    try:
        ends, starts = [
            await read_offsets(store, path) if (data := kept.get(path)) is None else BatchOffsets.parse(data.decode())
            for path in (f"{OFFSETS}{job.batch_id}", f"{OFFSETS}{job.batch_id - 1}")
        ]
    except ValueError:  # It was damaged already when it was kept.
        return None
    if ends is None or (starts is None and job.batch_id > 0):
        return None
    return SparkProgress(store.url, str(ends), starts.sources if starts else ())


async def commit_of(store: Store, log: SparkLog, job: Job) -> bytes:
    """Return the file of `commits/` that Spark writes once a batch is done.

    It is in the version that Spark uses in its newest file there.
    """
    version, value = NO_WATERMARK
    if log.finished is not None:
        text = await read_text(store, f"{COMMITS}{log.finished}") or ""
        version, _, body = text.partition("\n")
        try:
            value = dict(json.loads(body))
        except (ValueError, TypeError, RecursionError):
            version, value = NO_WATERMARK
    watermark = BatchOffsets.parse(job.spark.offsets).watermark if job.spark else 0
    # Other fields are kept as Spark wrote them last: newer versions may need them.
    line = json.dumps({**value, "nextBatchWatermarkMs": watermark}, separators=(",", ":"))
    return f"{version}\n{line}".encode()
