"""What has to change in Spark's progress so that a query goes on right after one batch.

What Spark needs for that: the offsets of the batch and of the one before it, and that the batch is committed. The batch
after it may keep the offsets that were planned for it; everything newer goes.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark_checkpointer.admin.streaming.file_source_log import check_lists
from pyspark_checkpointer.admin.streaming.log_edit import LogPlan
from pyspark_checkpointer.admin.streaming.offset_log import (
    COMMITS,
    OFFSETS,
    Offsets,
    SparkLog,
    parts,
    read_file,
    read_offsets,
    read_text,
    same_offsets,
)
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests.model import Job, SparkProgress
from pyspark_checkpointer.storage.base import Store

NO_OFFSET = "-"
"""The line of a source that has not been read yet."""

NO_WATERMARK = ("v1", {"nextBatchWatermarkMs": 0})


@dataclass(frozen=True, slots=True)
class Before:
    """Spark's progress before a rewind: the names of its files, and those of them that it cut so far."""

    names: Collection[str]
    cut: Mapping[str, bytes]


async def plan_log(store: Store, log: SparkLog, job: Job, before: Before | None) -> LogPlan:
    """Return what takes Spark to the end of a batch; or, where that is to be undone, to how it was `before` a rewind.

    Raises `InvalidStateError` where neither Spark nor the checkpoint knows the offsets any more.
    """
    here = {f"{OFFSETS}{n}" for n in log.offsets} | {f"{COMMITS}{n}" for n in log.commits}
    recorded = await recorded_offsets(store, log, job, before.cut if before else {})
    written = {path for path, data in recorded.items() if data is not None}
    if before is None or written & here - before.cut.keys():  # what is there is of another line of batches
        wanted = await _after(store, log, job, recorded)
    else:
        wanted = dict.fromkeys(here & {*before.names})
        wanted |= {**recorded, **before.cut}
        if not _can_start(wanted):  # Spark has deleted since what it needs below what would come back
            wanted = await _after(store, log, job, recorded)
    cut: list[str] = []
    for folder, files in ((COMMITS, log.commits), (OFFSETS, log.offsets)):
        for n in sorted(files, reverse=True):  # newest first: a log that is cut half way is ahead of the state
            path = f"{folder}{n}"
            new = wanted.get(path)
            if new is not None and new == await read_file(store, path):
                wanted[path] = None
            elif path not in wanted or new is not None:
                cut.append(path)
    write = {path: data for path in _in_order(wanted) if (data := wanted[path]) is not None}
    following = f"{OFFSETS}{job.batch_id + 1}"
    if before is not None and not write and cut == [following] and await _is_whole(store, following, job):
        cut = []  # all is as it was, and the query has begun the next batch since
    return LogPlan(tuple(cut), write, tuple(sorted(here)))


def _can_start(paths: Collection[str]) -> bool:
    """Return whether Spark finds the offsets of the newest batch and of the one before: it does not start without."""
    numbers = {int(path.removeprefix(OFFSETS)) for path in paths if path.startswith(OFFSETS)}
    return not numbers or max(numbers) == 0 or max(numbers) - 1 in numbers


async def _after(
    store: Store, log: SparkLog, job: Job, recorded: Mapping[str, bytes | None]
) -> dict[str, bytes | None]:
    """Return what Spark's progress is to be made of right after a batch; None for a file that is to stay as it is."""
    batch, wanted = job.batch_id, dict(recorded)
    if not any(wanted.values()):  # otherwise the others are of another line: each file is read as following the last
        wanted |= {f"{OFFSETS}{n}": None for n in log.offsets if n < batch - 1}
        if await _is_whole(store, f"{OFFSETS}{batch + 1}", job):
            wanted[f"{OFFSETS}{batch + 1}"] = None
    wanted |= {f"{COMMITS}{n}": None for n in log.commits if n < batch}
    commit = f"{COMMITS}{batch}"
    wanted[commit] = None if await _is_whole(store, commit) else await commit_of(store, log, job)
    return wanted


async def _is_whole(store: Store, path: str, job: Job | None = None) -> bool:
    """Whether there is a file that Spark can read: a version, then JSON, then a line for each source of the job."""
    wanted = Offsets.parse(job.spark.offsets).sources if job is not None and job.spark is not None else ()
    try:
        found = await read_offsets(store, path)
        if found is None or not isinstance(json.loads(found.metadata), dict) or len(found.sources) < len(wanted):
            return False
        for line, known in zip(found.sources, wanted, strict=False):
            if parts(known)[1].startswith(("{", "[")) and parts(line)[1] != NO_OFFSET:
                json.loads(parts(line)[1])
    except (InvalidStateError, ValueError, RecursionError):
        return False
    return True


def _in_order(wanted: Mapping[str, bytes | None]) -> list[str]:
    """Offsets before commits, oldest first: as Spark writes them."""
    return sorted(wanted, key=lambda path: (path.startswith(COMMITS), int(path.rpartition("/")[2])))


async def recorded_offsets(store: Store, log: SparkLog, job: Job, back: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """The offsets of a batch and of the one before it, by path; None for a file that is there and says the same."""
    batch, spark = job.batch_id, job.spark
    found: dict[str, bytes | None] = {}
    ends = None if spark is None else Offsets.parse(spark.offsets)
    starts = None if spark is None or ends is None else ends._replace(sources=spark.before)
    for n, recorded in ((batch - 1, starts), (batch, ends)):
        path = f"{OFFSETS}{n}"
        if n < 0 or path in back:
            found |= {path: back[path]} if path in back else {}
            continue
        try:
            there = await read_offsets(store, path)
        except InvalidStateError:  # of no use; one that was recorded takes its place
            if recorded is None:
                raise
            there = None
        if there is None and recorded is None:
            raise InvalidStateError(
                f"{log.url}: Spark has deleted the offsets of batch {n}, and the checkpoint did not record them: "
                f"choose a checkpoint whose batch is still in {OFFSETS}"
            )
        same = recorded is None or (there is not None and same_offsets(there.sources, recorded.sources))
        found[path] = None if same else str(recorded).encode()
    await check_lists(store, job)
    return found


async def progress_of(store: Store, job: Job, back: Mapping[str, bytes]) -> SparkProgress | None:
    """How far Spark was at a batch whose checkpoint did not record it, by files that are there, or come `back`."""
    try:
        ends, starts = [
            await read_offsets(store, path) if (data := back.get(path)) is None else Offsets.parse(data.decode())
            for path in (f"{OFFSETS}{job.batch_id}", f"{OFFSETS}{job.batch_id - 1}")
        ]
    except ValueError:  # it was damaged when it was kept
        return None
    if ends is None or (starts is None and job.batch_id > 0):
        return None
    return SparkProgress(store.url, str(ends), starts.sources if starts else ())


async def commit_of(store: Store, log: SparkLog, job: Job) -> bytes:
    """What Spark writes once a batch is done, in the version that it uses there."""
    version, value = NO_WATERMARK
    if log.finished is not None:
        text = await read_text(store, f"{COMMITS}{log.finished}") or ""
        version, _, body = text.partition("\n")
        try:
            value = dict(json.loads(body))
        except (ValueError, TypeError, RecursionError):
            version, value = NO_WATERMARK
    watermark = Offsets.parse(job.spark.offsets).watermark if job.spark else 0
    line = json.dumps({**value, "nextBatchWatermarkMs": watermark}, separators=(",", ":"))
    return f"{version}\n{line}".encode()
