"""`@stateful(root)`: a foreachBatch function whose state survives.

For every batch: find out which query, run and batch this is; compare that with the last checkpoint; skip what is
committed already, refuse what does not belong together, run the callback otherwise; commit before returning to Spark.
"""

import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pyspark.sql import DataFrame

from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.streaming.alignment import RESET_ADVICE, Step, compare
from pyspark_checkpointer.checkpoint.metrics import MetricsCallback
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.errors import BatchGapError, BatchResetError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.spark.batch import drain, find_query, identify, refuse_temporary
from pyspark_checkpointer.spark.batch_offsets import QueryProgress
from pyspark_checkpointer.spark.cleaner import Cleaner
from pyspark_checkpointer.spark.failure import describe
from pyspark_checkpointer.spark.state import Callback, QueryRun, State
from pyspark_checkpointer.spark.task_client import prove_tasks
from pyspark_checkpointer.storage import Fencing

logger = logging.getLogger("pyspark_checkpointer")

OnReset = Literal["error", "continue"]

_owners: dict[str, str] = {}
"""The query that last used each root in this process, by root."""

_owners_lock = threading.Lock()


def stateful(
    root: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    on_reset: OnReset = "error",
    fencing: Fencing = "required",
    max_chain: int = 10,
    retention: RetentionPolicy | None = None,
    clean_every: int = 100,
    metrics: MetricsCallback | None = None,
) -> Callable[[Callback], "StatefulSink"]:
    """Decorate `update(batch, batch_id, state)` for `writeStream.foreachBatch`, keeping its state under `root`.

    Args:
        root: Where the state lives, one root for each query. See `Checkpointer`.
        storage_options: What s3fs, adlfs or another fsspec file system takes.
        on_reset: What to do when Spark's progress and the state do not belong together: "error" refuses; "continue"
            lets the first batch of a run begin a new line of batch ids on the old state. Take it out again after that.
        fencing: See `Checkpointer`.
        max_chain: See `Checkpointer`.
        retention: What to keep of the history. Without it everything is kept, until a cleanup job says otherwise.
        clean_every: With `retention`, clean up after every so many commits. That runs beside the next batches; what
            goes wrong with it is logged, and does not fail the job.
        metrics: See `Checkpointer`. Called on the driver.
    """
    if callable(root) and not isinstance(root, str | os.PathLike):
        raise IllegalArgumentError(
            "@stateful stands without its root: write @stateful('s3://bucket/jobs/orders'), or a folder, above the "
            "function"
        )
    if isinstance(clean_every, bool) or not isinstance(clean_every, int) or clean_every < 1:
        raise IllegalArgumentError(f"clean_every={clean_every!r:.40}: expected an integer of at least 1")
    if retention is not None and not isinstance(retention, RetentionPolicy):
        raise IllegalArgumentError(f"retention={retention!r:.40}: expected a RetentionPolicy")
    if on_reset not in ("error", "continue"):
        raise IllegalArgumentError(f"on_reset={on_reset!r:.40}: expected 'error' or 'continue'")
    client = Checkpointer(root, storage_options, fencing=fencing, max_chain=max_chain, metrics=metrics)
    cleaner = None if retention is None else Cleaner(client, retention, clean_every)
    return lambda callback: StatefulSink(client, callback, on_reset, cleaner)


class StatefulSink:
    """What `stateful` makes of a function: callable by foreachBatch, and the checkpointer of its root."""

    def __init__(self, client: Checkpointer, callback: Callback, on_reset: OnReset, cleaner: Cleaner | None) -> None:
        if not callable(callback):
            raise IllegalArgumentError(
                f"stateful({client.root!r}): decorates a function of batch, batch_id and state, not "
                f"{type(callback).__name__}: write @stateful(root) above it"
            )
        self.checkpointer = client
        self._callback = callback
        self._on_reset = on_reset
        self._cleaner = cleaner
        self._lines: dict[str, QueryRun] = {}
        functools.update_wrapper(self, callback)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        try:
            self._run(batch, batch_id)
        except Exception as error:
            # Spark wraps what is raised in many lines and ends with its plan: this line is what a person looks for.
            logger.error("%s: batch %s failed: %s", self.checkpointer.root, batch_id, describe(error))
            raise

    def _run(self, batch: DataFrame, batch_id: int) -> None:
        job = identify(batch, batch_id)
        _claim(self.checkpointer.root, batch, job.query_id)
        line = self._lines.get(job.run_id) or self._restore(batch, job)
        job = line.progress.of(job, line.last if line.begun else None)
        if self._is_repeated(line, job):
            logger.info("%s: batch %d is committed already, skipped", self.checkpointer.root, batch_id)
            drain(batch)
            return
        state = None
        try:
            line.wake()
            state = State(batch.sparkSession, line, job, line.client._begin(batch_id, job))
            self._callback(batch, batch_id, state)
            state._commit()
        except BaseException:
            self._lines.pop(job.run_id, None)  # the next call begins with what is committed
            line.end()
            if state is not None:
                state._abort()
            raise
        if self._cleaner is not None:
            self._cleaner.after(state.id)

    def _restore(self, batch: DataFrame, job: Job) -> QueryRun:
        """A client of its own for each run: whoever ran before, in this process too, is fenced by its first commit."""
        refuse_temporary(batch, job.query_id)
        client = self.checkpointer.copy()
        line = QueryRun(client, client.restore(), QueryProgress(batch.sparkSession, job.query_id))
        prove_tasks(client, batch.sparkSession, line.restored)
        for before in self._lines.values():
            before.end()
        self._lines = {job.run_id: line}
        return line

    def _is_repeated(self, line: QueryRun, job: Job) -> bool:
        """Whether the state has this batch already; refused where it is not one that the state can go on with."""
        try:
            repeated = self._step(line, job) == "repeated"
        except (BatchResetError, BatchGapError):
            if self._on_reset == "continue" and not line.begun:
                return False
            raise
        if not line.begun:
            at = line.last.batch_id if line.last else "none"
            logger.info("%s: its state is at batch %s, Spark begins batch %d", self.checkpointer.root, at, job.batch_id)
        return repeated

    def _step(self, line: QueryRun, job: Job) -> Step:
        """Return how a batch follows the state."""
        root = self.checkpointer.root
        if line.last is not None:
            return compare(root, line.last, job)
        if line.restored is not None:
            raise BatchResetError(f"{root}: its state was not written by a streaming query; {RESET_ADVICE}")
        if job.batch_id > 0:
            raise BatchGapError(
                f"{root} is empty, but query {job.query_id} is at batch {job.batch_id}: the state of the batches "
                f"before is missing; point to their root, or start Spark from a new checkpointLocation; {RESET_ADVICE}"
            )
        return "next"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lines": {}}


def _claim(root: str, batch: DataFrame, query_id: str) -> None:
    """Refuse a second query on a root that another active query of this process uses."""
    with _owners_lock:
        owner = _owners.get(root)
        if owner is not None and owner != query_id and find_query(batch.sparkSession, owner) is not None:
            raise InvalidStateError(
                f"{root}: query {owner} of this process uses it, query {query_id} cannot: give each query its own root"
            )
        _owners[root] = query_id
