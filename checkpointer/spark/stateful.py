"""Define the decorator `@stateful(root)` for foreachBatch functions.

Their state survives restarts.

For every batch: identify the query, the run and the batch, and compare them with the last checkpoint. Skip a batch that
is committed already. Refuse a batch that does not belong to this state. Else run the callback, and commit before
returning to Spark.
"""

import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.streaming.alignment import carry_gone, follow
from pyspark_checkpointer.checkpoint.metrics import MetricsCallback
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.client.base import measured_by, metrics_of
from pyspark_checkpointer.errors import BatchGapError, BatchResetError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.runtime.user_functions import check_has_run, check_runs, takes
from pyspark_checkpointer.spark.batch import drain
from pyspark_checkpointer.spark.batch_attempt import BatchAttempt
from pyspark_checkpointer.spark.classic_query import ClassicQuery
from pyspark_checkpointer.spark.cleaner import Cleaner
from pyspark_checkpointer.spark.connect import is_connect, runs_callbacks
from pyspark_checkpointer.spark.connect_query import ConnectQuery
from pyspark_checkpointer.spark.failure import describe
from pyspark_checkpointer.spark.query_run import QueryRun
from pyspark_checkpointer.spark.root_uses import allow_again, begin_run, claim_root, end_run, find_run, is_first_call
from pyspark_checkpointer.spark.state import Callback, State
from pyspark_checkpointer.spark.task_client import check_tasks, reduce_by_version
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption, own_options
from pyspark_checkpointer.storage.url import absolute

logger = logging.getLogger("pyspark_checkpointer")

OnReset = Literal["error", "continue"]


def stateful(
    root: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    checkpoint_location: str | os.PathLike[str] | None = None,
    on_reset: OnReset = "error",
    fencing: Fencing = "required",
    max_chain: int = 10,
    retention: RetentionPolicy | None = None,
    clean_every: int = 100,
    metrics: MetricsCallback | None = None,
    encryption: EncryptionOption = None,
    signing: SigningOption = None,
) -> Callable[[Callback], "StatefulSink"]:
    """Decorate `update(batch, batch_id, state)` for `writeStream.foreachBatch`.

    The state lives under a root. The state of a batch is committed before Spark counts the batch as done. A batch that
    Spark repeats is skipped if it is committed. A batch that does not belong to the state is refused.

    Args:
        root: Where the state lives: a folder, `s3://bucket/path`, `abfs://container/path`,
            `gs://bucket/path` or `dbfs:/Volumes/catalog/schema/volume/path`. One root for each query.
        storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
        checkpoint_location: The query's `checkpointLocation`, which a query of Spark Connect needs: nothing else tells
            its function which query calls it. The same options serve for both if they are on the same kind of store.
            A classic query with another location is refused.
        on_reset: What to do if Spark's progress and the state do not belong together. "error" refuses the batch.
            "continue" lets the first batch of a run begin new batch ids on the old state, and logs a WARNING. The query
            has to begin to read where the state ended: what it reads again counts twice, what it does not read is
            missing. Remove the option after that run.
        fencing: As in `Checkpointer`.
        max_chain: As in `Checkpointer`.
        retention: Which checkpoints to keep. Without it all are kept until another cleanup removes them.
        clean_every: With `retention`, after how many commits or batches a cleanup begins, at least 1. A process makes
            at most eight of them in a grace period. A cleanup runs beside the next batches; in Spark Connect the batch
            waits for it, for at most a minute. Its errors are logged, and do not fail the job.
        metrics: As in `Checkpointer`. Called on the driver. In Spark Connect it is pickled, and called in the process
            of the function.
        encryption: As in `Checkpointer`. Only the driver opens the keys. Its tasks get the opened ones. Spark's own
            checkpoint is not encrypted, nor are Spark's local files without `spark.io.encryption.enabled`.
        signing: As in `Checkpointer`. Only the driver signs and checks signatures. Tasks get no key.

    Returns:
        A decorator. The decorated function goes to `foreachBatch`; its attribute `checkpointer` is the `Checkpointer`.

    Raises:
        IllegalArgumentError: An argument is not what it must be.
        BatchResetError: In a batch: Spark's progress and the state belong to different queries, or Spark went back.
        BatchGapError: In a batch: batches are missing between the state and Spark's progress.
        InvalidStateError: In a batch: the query has no `checkpointLocation`, or not the one that was given, or another
            query uses the root, or the function is called a second time.

    Examples:
        >>> @stateful("state/parity")
        ... def update(batch, batch_id, state):
        ...     counts = state.map("counts")
        ...     for row in batch.selectExpr("value % 2 AS parity").groupBy("parity").count().collect():
        ...         counts[row.parity] = counts.get(row.parity, 0) + row["count"]
        >>> numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        >>> writer = numbers.writeStream.option("checkpointLocation", "state/parity-spark")
        >>> query = writer.foreachBatch(update).trigger(availableNow=True).start()
        >>> query.awaitTermination()
        >>> update.checkpointer.restore().keyed("counts").to_dict()
        {0: 5, 1: 5}
    """
    # Written without parentheses, the decorator is given the function as its root.
    if callable(root) and not isinstance(root, str | os.PathLike):
        raise IllegalArgumentError(
            "@stateful needs a root: write @stateful('s3://bucket/jobs/orders'), or a folder, above the function"
        )
    if isinstance(clean_every, bool) or not isinstance(clean_every, int) or clean_every < 1:
        raise IllegalArgumentError(f"clean_every={clean_every!r:.40}: expected an integer of at least 1")
    if retention is not None and not isinstance(retention, RetentionPolicy):
        raise IllegalArgumentError(f"retention={retention!r:.40}: expected a RetentionPolicy")
    if on_reset not in ("error", "continue"):
        raise IllegalArgumentError(f"on_reset={on_reset!r:.40}: expected 'error' or 'continue'")
    client = Checkpointer(
        root,
        storage_options,
        fencing=fencing,
        max_chain=max_chain,
        metrics=metrics,
        encryption=encryption,
        signing=signing,
    )
    cleaner = None if retention is None else Cleaner(client, retention, clean_every)
    location = None if checkpoint_location is None else absolute(checkpoint_location)
    connect = ConnectQuery(client.root, location, own_options(storage_options))
    return lambda callback: StatefulSink(client, callback, on_reset, cleaner, ClassicQuery(location), connect)


class StatefulSink:
    """A function that `stateful` decorated: `foreachBatch` calls it for each batch.

    Attributes:
        checkpointer: The `Checkpointer` of its root, to restore and look after the state.

    Examples:
        >>> @stateful("state/orders")
        ... def update(batch, batch_id, state):
        ...     state.map("batches")[batch_id] = batch.count()
        >>> update.checkpointer.root.endswith("state/orders")
        True
    """

    def __init__(
        self,
        client: Checkpointer,
        callback: Callback,
        on_reset: OnReset,
        cleaner: Cleaner | None,
        classic: ClassicQuery,
        connect: ConnectQuery,
    ) -> None:
        if not callable(callback):
            raise IllegalArgumentError(
                f"stateful({client.root!r}): decorates a function of batch, batch_id and state, not "
                f"{type(callback).__name__}: write @stateful(root) above it"
            )
        check_runs(f"stateful({client.root!r})", callback)
        if not takes(callback, 3):
            raise IllegalArgumentError(
                f"stateful({client.root!r}): decorates a function that takes batch, batch_id and state: a method has "
                "to be bound first, as in stateful(root)(self.update)"
            )
        self.checkpointer = client
        self._callback = callback
        self._on_reset = on_reset
        self._cleaner = cleaner
        self._classic = classic
        self._connect = connect
        # Without the attributes of a callable object: some may have the names of those above.
        functools.update_wrapper(self, callback, updated=())

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        try:
            self._run_batch(batch, batch_id)
        except Exception as error:
            # Spark wraps the error in many lines and ends with its plan. This one line is what a person looks for.
            logger.error("%s: batch %s failed: %s", self.checkpointer.root, batch_id, describe(error))
            raise
        except BaseException as error:
            # In the main thread this is an interrupt of a call outside of a query, which goes on as it is. Only the
            # process beside a server of Spark Connect calls for a query in its main thread.
            if threading.current_thread() is threading.main_thread() and not runs_callbacks():
                raise
            # It would end the thread that Spark waits for, and Spark would wait for ever.
            raise InvalidStateError(
                f"{self.checkpointer.root}: batch {batch_id} failed: it raised {type(error).__name__}, which is no "
                f"Exception; it is committed only if restore() shows it: {error}"
            ) from error

    def _run_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Run the callback for a batch and commit.

        Raises `InvalidStateError` in a second call for the batch.
        """
        query = self._connect if is_connect(batch) else self._classic
        job = query.identify(batch, batch_id)
        # Before anything is restored: two active queries on one root would each write state that the other does not
        # know.
        root = self.checkpointer.root
        claim_root(root, batch, job)
        # After the first call the batch would look as if Spark repeated it, and the rows of this call would be lost.
        if not is_first_call(root, job):
            # The first call may go on in another thread, with a part of the batch.
            end_run(root)
            raise InvalidStateError(
                f"{root}: batch {batch_id} came in a second call: give all of its rows to one call. If the first call "
                "was committed, the rows of the others are missing in it: go back with `checkpointer rewind`"
            )
        try:
            self._run_first_call(batch, batch_id, job, query)
        except BaseException:
            allow_again(root, job)
            raise

    def _run_first_call(self, batch: DataFrame, batch_id: int, job: Job, query: ClassicQuery | ConnectQuery) -> None:
        """Run the callback for a batch and commit.

        A batch that is committed already is skipped.
        """
        root = self.checkpointer.root
        run = find_run(root, self, job.run_id) or self._begin_run(batch, job, query)
        job = run.offsets.add_to(job, run.last_job if run.has_committed else None)
        job = carry_gone(run.last_job, job)
        # Spark repeats a batch whose end it did not record. Run again, its changes would count twice.
        if self._is_repeated(run, job):
            logger.info("%s: batch %d is already committed and is skipped", root, batch_id)
            drain(batch)
            return
        attempt = None
        try:
            run.allow_changes()
            attempt = BatchAttempt(run, job, run.client.begin_batch(batch_id, job))
            returned = self._callback(batch, batch_id, State(batch.sparkSession, attempt))
            check_has_run(root, returned)
            attempt.commit()
        except BaseException:
            # The maps of this run may hold uncommitted changes. So the next call begins a new run, from the committed
            # checkpoint.
            end_run(root, run)
            if attempt is not None:
                attempt.abort()
            raise
        # Outside of the try: the batch is committed, and a failure here must not end its run.
        if self._cleaner is not None:
            self._cleaner.after(attempt.checkpoint.id, batch_id)

    def _begin_run(self, batch: DataFrame, job: Job, query: ClassicQuery | ConnectQuery) -> QueryRun:
        """Restore the last checkpoint for a new run, and end the run before it.

        Each run of the query has its own client. The first commit of a run fences the run before it, also in the same
        process.
        """
        offsets = query.begin_run(batch, job)
        client = self.checkpointer.copy()
        run = QueryRun(client, client.restore(), offsets)
        check_tasks(client, batch.sparkSession, run.restored)
        # Only after the restore succeeded, so that one that fails leaves the run before as it is.
        begin_run(client.root, self, job.run_id, run)
        return run

    def _is_repeated(self, run: QueryRun, job: Job) -> bool:
        """Return whether the state has this batch already.

        Raises `BatchResetError` or `BatchGapError` where the batch does not follow the state.
        """
        try:
            repeated = follow(self.checkpointer.root, run.last_job, job, run.restored is None) == "repeated"
        except (BatchResetError, BatchGapError) as error:
            # Only the first batch of a run may begin anew: later ones have to follow what this run committed.
            if self._on_reset == "continue" and not run.has_committed:
                logger.warning(
                    'on_reset="continue" lets batch %d begin new batch ids; input that it reads again counts twice. It '
                    "passes over this: %s",
                    job.batch_id,
                    error,
                )
                return False
            if needed := run.client.command_options:
                raise type(error)(f"{error}. The command needs {needed} as the job has it") from None
            raise
        if not run.has_committed:
            at = run.last_job.batch_id if run.last_job else "none"
            logger.info("%s: its state is at batch %s, Spark begins batch %d", self.checkpointer.root, at, job.batch_id)
        return repeated

    def __reduce__(self) -> tuple[Any, ...]:
        # A run has objects of the JVM, which no other process can use. A client leaves its metrics callback behind. In
        # Spark Connect the process that it travels to makes all commits, so the callback has to be there.
        metrics = metrics_of(self.checkpointer) if is_remote() else None
        try:
            cloudpickle.dumps(metrics)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise IllegalArgumentError(
                f"{self.checkpointer.root}: stateful(metrics=…) goes to another process in Spark Connect, and cannot "
                f"be pickled: {error}: give a function that makes what it needs where it is called"
            ) from error
        return reduce_by_version(self, self.__dict__ | {"_metrics": metrics})

    def __setstate__(self, state: dict[str, Any]) -> None:
        metrics = state.pop("_metrics")
        self.__dict__ |= state
        if metrics is not None:
            self.checkpointer = measured_by(self.checkpointer, metrics)
