"""Check that Spark begins the batch that the state waits for."""

import shlex
from dataclasses import replace
from typing import Literal

from pyspark_checkpointer.admin.streaming.offset_log import (
    NO_OFFSET,
    BatchOffsets,
    by_source,
    returned_sources,
    same_offsets,
)
from pyspark_checkpointer.errors import BatchGapError, BatchResetError
from pyspark_checkpointer.manifests.model import Job

BatchStep = Literal["next", "repeated"]

RESET_ADVICE = (
    'on_reset="continue" keeps the state as it is and starts a new line of batch ids on it: what Spark then reads '
    "again is counted twice, and what it no longer reads is left out"
)


def follow(root: str, last: Job | None, job: Job, is_empty: bool) -> BatchStep:
    """Return how the batch that Spark begins follows the state of `root`.

    The root may have no state yet.

    Raises as `compare` does.
    """
    if last is not None:
        return compare(root, last, job)
    # State without a batch, such as a first commit by hand: nothing says which batch it contains.
    if not is_empty:
        raise BatchResetError(f"{root}: its state was not written by a streaming query; {RESET_ADVICE}")
    # The earlier batches were counted somewhere else, or their state was lost. Going on would give too small sums.
    if job.batch_id > 0:
        raise BatchGapError(
            f"{root} is empty, but query {job.query_id} is at batch {job.batch_id}: the state of the earlier batches "
            f"is missing; use their root, or start Spark from a new checkpointLocation; {RESET_ADVICE}"
        )
    return "next"


def compare(root: str, last: Job, job: Job) -> BatchStep:
    """Return how the batch that Spark begins follows the last one of the state.

    `job` is the batch that Spark begins. `last` is the last batch in the state of `root`. "next": both are in step.
    "repeated": the state has the batch already, as after a crash between the commit of the state and Spark's commit.
    Raises `BatchResetError` or `BatchGapError` where Spark is further ahead or behind, is another query, or read other
    offsets than the state was made of. They say how far each side is, and what to do.
    """
    sides = f"{root}: its state is at batch {last.batch_id} of query {last.query_id}"
    # Asked first: batch ids of different queries cannot be compared.
    if last.query_id != job.query_id:
        raise BatchResetError(
            f"{sides}; this is query {job.query_id}, at batch {job.batch_id}: Spark's checkpoint was reset or is "
            f"another one; {RESET_ADVICE}"
        )
    if job.batch_id < last.batch_id:
        back = rewind_command(root, job, f"epoch={job.batch_id - 1}")
        raise BatchResetError(
            f"{sides}, Spark went back to batch {job.batch_id}"
            + (f": take the state back too, with `{back}`" if job.batch_id else "")
            + f"; `{rewind_command(root, job, 'latest')}` takes Spark to where the state is, and reads nothing again; "
            + RESET_ADVICE
        )
    if job.batch_id > last.batch_id + 1:
        raise BatchGapError(
            f"{sides}, Spark is already at batch {job.batch_id}: the state lacks the batches between; "
            f"`{rewind_command(root, job, 'latest')}` takes Spark back, to read them again; {RESET_ADVICE}"
        )
    step: BatchStep = "repeated" if job.batch_id == last.batch_id else "next"
    # Before the offsets are compared: these can be equal numbers that stand for other files.
    if others := _other_lists(last, job):
        back = rewind_command(root, job, f"epoch={last.batch_id - 1}")
        raise BatchResetError(
            f"{sides}, Spark begins batch {job.batch_id}, but its list of files has others as {others} than the state "
            "has read: its checkpoint was restored, copied or damaged; "
            + (
                f"`{back}`, or to an older one, takes the state back, so that all these files are read"
                if last.batch_id
                else "keep this root as it is, and start another, empty one with a new checkpointLocation"
            )
        )
    if not _same_input(last, job, step):
        raise BatchResetError(
            f"{sides}, Spark begins batch {job.batch_id}, but its batch {last.batch_id} ended at other offsets than "
            f"the one of the state: its checkpoint was restored, copied or changed; "
            f"`{rewind_command(root, job, 'latest')}` brings both back to the same batch; {RESET_ADVICE}"
        )
    if step == "next" and (returned := _returned(last, job)):
        raise BatchResetError(
            f"{sides}, Spark begins batch {job.batch_id} with {returned}: the query had left it out, so Spark forgot "
            f"this, and reads it from its beginning; `{rewind_command(root, job, 'latest')}` takes that batch back; "
            f"then leave the source out, or give it a new name; {RESET_ADVICE}"
        )
    return step


def carry_gone(last: Job | None, job: Job) -> Job:
    """Return a batch with the offsets of the sources that it lacks.

    They are sources that the batches up to `last` have read.
    """
    if last is None or last.query_id != job.query_id or last.spark is None or job.spark is None:
        return job
    ends = BatchOffsets.parse(job.spark.offsets)
    # In version 1 a query always has the same sources.
    if ends.version == "v1":
        return job
    read = {**last.spark.gone, **by_source(BatchOffsets.parse(last.spark.offsets).sources)}
    there = by_source(ends.sources)
    gone = {name: offset for name, offset in read.items() if name not in there and offset != NO_OFFSET}
    return replace(job, spark=replace(job.spark, gone=gone))


def _returned(last: Job, job: Job) -> str:
    """Return the sources that the state has read, and that Spark now reads again."""
    if last.spark is None or job.spark is None:
        return ""
    back = returned_sources(last.spark, BatchOffsets.parse(job.spark.offsets).sources)
    return ", ".join(f"source {name}, which the state has read up to {offset}" for name, offset in back.items())


def _same_input(last: Job, job: Job, step: BatchStep) -> bool:
    """Return whether Spark's last batch ended at the offsets that the state has.

    Offsets that are not known on both sides count as equal.
    """
    if last.spark is None or job.spark is None:
        return True
    ends = BatchOffsets.parse(last.spark.offsets).sources
    # A repeated batch has to end where the state ended. The next one has to begin there.
    return same_offsets(ends, BatchOffsets.parse(job.spark.offsets).sources if step == "repeated" else job.spark.before)


def _other_lists(last: Job, job: Job) -> str:
    """Return the entries of Spark's lists that have other files than the state read."""
    if last.spark is None or job.spark is None:
        return ""
    there = job.spark.lists
    # Only entries that both sides know are compared; a missing one is no proof of another list.
    return ", ".join(name for name, digest in last.spark.lists.items() if there.get(name, digest) != digest)


def rewind_command(root: str, job: Job, to: str) -> str:
    """Return the command that brings both sides in step."""
    words = ["checkpointer", "rewind", root, to]
    words += ["--spark-checkpoint", job.spark.location] if job.spark and job.spark.location else []
    return shlex.join(words)
