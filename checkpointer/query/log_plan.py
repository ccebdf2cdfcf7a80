"""What has to change in Spark's progress so that a query goes on right after one batch, and changing it.

What Spark needs for that: the offsets of the batch and of the one before it, and that the batch is committed. The batch
after it may keep the offsets that were planned for it; everything newer goes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from checkpointer.errors import ConflictError, InvalidStateError
from checkpointer.query.spark_log import (
    COMMITS,
    MAX_FILE,
    OFFSETS,
    Offsets,
    SparkLog,
    read_offsets,
    read_text,
    same_offsets,
)
from checkpointer.store.base import ObjectExistsError, ObjectNotFoundError, Store
from manifests.model import Job

NO_WATERMARK = ("v1", {"nextBatchWatermarkMs": 0})


@dataclass(frozen=True, slots=True)
class LogPlan:
    """Files of a `checkpointLocation`: those that go, in their order, and those that come, in theirs."""

    cut: tuple[str, ...]
    write: Mapping[str, bytes]

    def __bool__(self) -> bool:
        return bool(self.cut or self.write)


async def plan_log(store: Store, log: SparkLog, job: Job, back: Mapping[str, bytes]) -> LogPlan:
    """What takes Spark to the end of a batch. `back` are files that were cut once, and belong there again.

    Raises `InvalidStateError` where neither Spark nor the checkpoint knows the offsets any more.
    """
    batch = job.batch_id
    kept = [f"{OFFSETS}{n}" for n in log.offsets if n < batch - 1] + [f"{COMMITS}{n}" for n in log.commits if n < batch]
    wanted: dict[str, bytes | None] = dict.fromkeys(kept)  # None: as it is
    wanted |= await recorded_offsets(store, log, job)
    if wanted[f"{OFFSETS}{batch}"] is None and batch + 1 in log.offsets:
        wanted[f"{OFFSETS}{batch + 1}"] = None
    if batch in log.commits or not back:  # a batch that Spark had not finished, it repeats, and the state has it
        wanted[f"{COMMITS}{batch}"] = None if batch in log.commits else await commit_of(store, log, job)
    wanted |= back
    cut: list[str] = []
    for folder, files in ((COMMITS, log.commits), (OFFSETS, log.offsets)):
        for n in sorted(files, reverse=True):  # newest first: a log that is cut half way is ahead of the state
            path = f"{folder}{n}"
            new = wanted.get(path)
            if new is not None and new == await read(store, path):
                wanted[path] = None
            elif path not in wanted or new is not None:
                cut.append(path)
    return LogPlan(tuple(cut), {path: wanted[path] or b"" for path in _in_order(wanted) if wanted[path] is not None})


def _in_order(wanted: Mapping[str, bytes | None]) -> list[str]:
    """Offsets before commits, oldest first: as Spark writes them."""
    return sorted(wanted, key=lambda path: (path.startswith(COMMITS), int(path.rpartition("/")[2])))


async def recorded_offsets(store: Store, log: SparkLog, job: Job) -> dict[str, bytes | None]:
    """The offsets of a batch and of the one before it, by path; None for a file that is there and says the same."""
    batch, spark = job.batch_id, job.spark
    found: dict[str, bytes | None] = {}
    ends = None if spark is None else Offsets.parse(spark.offsets)
    starts = None if spark is None or ends is None else ends._replace(sources=spark.before)
    for n, recorded in ((batch - 1, starts), (batch, ends)):
        if n < 0:
            continue
        path = f"{OFFSETS}{n}"
        there = await read_offsets(store, path)
        if there is None and recorded is None:
            raise InvalidStateError(
                f"{log.url}: Spark has deleted the offsets of batch {n}, and the checkpoint did not record them: "
                f"choose a checkpoint whose batch is still in {OFFSETS}"
            )
        same = recorded is None or (there is not None and same_offsets(there.sources, recorded.sources))
        found[path] = None if same else str(recorded).encode()
    return found


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


async def apply(store: Store, plan: LogPlan, kept_in: str) -> None:
    """Copy what is cut into the folder `kept_in`, then cut it, then write what comes. May be done again."""
    for path in plan.cut:
        data = await read(store, path)
        if data is not None:
            await _keep(store, f"{kept_in}{path}", data)
        folder, _, name = path.rpartition("/")
        await store.delete([path])
        await store.delete([f"{folder}/.{name}.crc"])  # Spark's file systems would compare it with what comes
    for path, data in plan.write.items():
        try:
            await store.put(path, data)
        except ObjectExistsError:
            if await read(store, path) != data:
                raise ConflictError(
                    f"{store.url}/{path}: was written meanwhile: stop the query, then call again"
                ) from None


async def _keep(store: Store, path: str, data: bytes) -> None:
    """Under another name where an earlier try kept something else under this one."""
    name, number = path, 0
    while True:
        try:
            await store.put(name, data)
        except ObjectExistsError:
            if await read(store, name) == data:
                return
            number += 1
            name = f"{path}.{number}"
        else:
            return


async def read(store: Store, path: str) -> bytes | None:
    """A file of Spark's; None where there is none."""
    try:
        return (await store.get(path, limit=MAX_FILE)).data
    except ObjectNotFoundError:
        return None
