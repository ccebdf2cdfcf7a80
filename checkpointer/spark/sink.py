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

from checkpointer.errors import BatchGapError, BatchResetError, IllegalArgumentError, InvalidStateError
from checkpointer.metrics import MetricsCallback
from checkpointer.retention.policies import RetentionPolicy
from checkpointer.spark.batch import drain, find_query, identify, refuse_temporary
from checkpointer.spark.cleaner import Cleaner
from checkpointer.spark.state import Callback, Line, State
from checkpointer.store import Fencing
from checkpointer.sync import Checkpointer
from manifests.model import Job

logger = logging.getLogger("checkpointer")

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
        self.checkpointer = client
        self._callback = callback
        self._on_reset = on_reset
        self._cleaner = cleaner
        self._lines: dict[str, Line] = {}
        functools.update_wrapper(self, callback)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        job = identify(batch, batch_id)
        _claim(self.checkpointer.root, batch, job.query_id)
        line = self._lines.get(job.run_id) or self._restore(batch, job)
        if line.last is not None and (line.last.query_id, line.last.batch_id) == (job.query_id, batch_id):
            logger.info("%s: batch %d is committed already, skipped", self.checkpointer.root, batch_id)
            drain(batch)
            return
        self._check_sequence(line, job)
        state = None
        try:
            state = State(batch.sparkSession, line, job, line.client._begin(batch_id, job))
            self._callback(batch, batch_id, state)
            state._commit()
        except BaseException:
            self._lines.pop(job.run_id, None)  # the next call begins with what is committed
            if state is not None:
                state._abort()
            raise
        if self._cleaner is not None:
            self._cleaner.after(state.id)

    def _restore(self, batch: DataFrame, job: Job) -> Line:
        """A client of its own for each run: whoever ran before, in this process too, is fenced by its first commit."""
        refuse_temporary(batch, job.query_id)
        client = self.checkpointer.copy()
        line = Line(client, client.restore())
        self._lines = {job.run_id: line}
        return line

    def _check_sequence(self, line: Line, job: Job) -> None:
        root, last = self.checkpointer.root, line.last
        way_out = 'on_reset="continue" starts a new line of batch ids on the old state'
        if self._on_reset == "continue" and not line.begun:
            return
        if last is None and line.restored is None:
            if job.batch_id > 0:
                raise BatchGapError(
                    f"{root} is empty, but query {job.query_id} is at batch {job.batch_id}: the state of the batches "
                    f"before is missing; point to their root, or start Spark from a new checkpointLocation; {way_out}"
                )
            return
        if last is None:
            raise BatchResetError(f"{root}: its state was not written by a streaming query; {way_out}")
        if last.query_id != job.query_id:
            raise BatchResetError(
                f"{root}: its state belongs to query {last.query_id}, at batch {last.batch_id}; this is query "
                f"{job.query_id}, at batch {job.batch_id}: Spark's checkpoint was reset or is another one; {way_out}"
            )
        if job.batch_id < last.batch_id:
            raise BatchResetError(
                f"{root}: its state is at batch {last.batch_id} of query {job.query_id}, Spark went back to batch "
                f"{job.batch_id}: roll the state back too; {way_out}"
            )
        if job.batch_id > last.batch_id + 1:
            raise BatchGapError(
                f"{root}: its state is at batch {last.batch_id} of query {job.query_id}, Spark is already at batch "
                f"{job.batch_id}: the batches between are missing in the state; {way_out}"
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lines": {}}


def _claim(root: str, batch: DataFrame, query_id: str) -> None:
    """Refuse a second query on a root that another active query of this process uses."""
    with _owners_lock:
        owner = _owners.get(root)
        if owner is not None and owner != query_id and find_query(batch, owner) is not None:
            raise InvalidStateError(
                f"{root}: query {owner} of this process uses it, query {query_id} cannot: give each query its own root"
            )
        _owners[root] = query_id
