"""Clean up from within a job, beside its batches. Errors are only logged."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

from pyspark_checkpointer.admin.retention.garbage_collect import retire_and_sweep
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.retention.retire import RETIREMENTS_PER_GRACE
from pyspark_checkpointer.client.base import Client
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import at_exit, run_sync
from pyspark_checkpointer.runtime.process_exit import SILENT_SECONDS
from pyspark_checkpointer.spark.connect import runs_callbacks

logger = logging.getLogger("pyspark_checkpointer")

EXIT_SECONDS = 60.0
"""Seconds that a process waits at its end for cleanups.

A batch of Spark Connect waits as long for its own.

Many jobs make one batch for each process, so that each of their cleanups begins when the process is about to end.
"""

_cleanups: dict[threading.Thread, str] = {}
"""The threads of cleanups that run, and the root of each."""


class Cleaner:
    """A cleanup of a root after some of its commits.

    It runs after each `every` commits or batches of the job, but at most `RETIREMENTS_PER_GRACE` times in a grace
    period: what comes sooner retires nothing, and costs as much. It runs in a thread of its own, one cleanup at a time.
    Only in Spark Connect does a batch wait for it, for at most `EXIT_SECONDS`.
    """

    def __init__(self, client: Client, policy: RetentionPolicy, every: int) -> None:
        self._client = client.copy()  # It has connections of its own, so that a slow deletion delays no commit.
        self._policy = policy
        self._every = every
        self._running: threading.Thread | None = None
        self._cleaned_at: float | None = None

    def after(self, committed: CheckpointId, batch_id: int) -> None:
        """Start a cleanup if it is due after the commit of a batch.

        The numbers of checkpoint and batch decide, so that a job that restarts often is cleaned up too. Commits by hand
        between the batches may take the multiples among the sequence numbers, and a query that is begun anew each time
        has no high numbers of batches.
        """
        if self._is_too_soon():
            return
        is_due = committed.sequence % self._every == 0 or (batch_id + 1) % self._every == 0
        if is_due and not (self._running and self._running.is_alive()):
            # A daemon, as a cleanup must not keep the driver from ending for long.
            cleanup = threading.Thread(target=self._clean, name="checkpointer-clean", daemon=True)
            # The batch is committed, and must not fail where a container has no thread left.
            try:
                cleanup.start()
            except RuntimeError as error:
                logger.warning("%s: no cleanup was begun, and the next one does its work: %s", self._client.root, error)
                return
            self._running = cleanup
            # Once the query ends, Spark ends such a process by a signal, so that it waits for nothing at its end.
            if runs_callbacks():
                self._wait_within_batch(cleanup)

    def _is_too_soon(self) -> bool:
        """Return whether another cleanup would retire nothing yet."""
        interval = self._policy.grace.total_seconds() / RETIREMENTS_PER_GRACE
        return self._cleaned_at is not None and time.monotonic() - self._cleaned_at < interval

    def _wait_within_batch(self, cleanup: threading.Thread) -> None:
        """Wait for a cleanup, and log that it goes on if it takes too long."""
        _join([cleanup], EXIT_SECONDS)
        if cleanup.is_alive():
            logger.warning(
                "%s: the cleanup takes longer than %g s, and goes on beside the next batches. If the query ends before "
                "it, the next one begins anew: if no run of this query lasts long enough, run `checkpointer clean`",
                self._client.root,
                EXIT_SECONDS,
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_running": None, "_cleaned_at": None}

    def wait(self) -> None:
        """Wait until a cleanup that is under way has ended."""
        if self._running is not None:
            self._running.join()

    def _clean(self) -> None:
        _cleanups[threading.current_thread()] = self._client.root
        try:
            logger.info("%s: %s", self._client.root, run_sync(retire_and_sweep(self._client.session, self._policy)))
            self._cleaned_at = time.monotonic()
        except CheckpointError as error:
            logger.warning("%s: the cleanup failed, and the next one continues it: %s", self._client.root, error)
        # An exception of this thread would reach nobody, so the log has to say it.
        except Exception:
            logger.exception("%s: the cleanup failed, the next one goes on", self._client.root)
        finally:
            _cleanups.pop(threading.current_thread(), None)


def _wait_at_exit() -> None:
    """Wait for the cleanups that run, and log those that are cut short."""
    # Not in a forked child, which has none of its parent's threads.
    running = {thread: root for thread, root in [*_cleanups.items()] if thread.is_alive()}
    # Ctrl-C ends the waiting. What else is finished at the end of the process must be finished all the same.
    with contextlib.suppress(KeyboardInterrupt):
        _join(running, SILENT_SECONDS)
        if left := [root for thread, root in running.items() if thread in _cleanups]:
            logger.warning("the process waits for cleanups before it ends, for at most %g s: %s", EXIT_SECONDS, left)
            _join(running, EXIT_SECONDS)
    for thread, root in running.items():
        # Not by `is_alive`: Python 3.11 takes a thread for ended once a join with it was interrupted.
        if thread in _cleanups:
            logger.warning(
                "%s: the process ends before its cleanup, and the next one begins anew: if no process of this job "
                "lives long enough, run `checkpointer clean`",
                root,
            )


def _join(threads: Iterable[threading.Thread], seconds: float) -> None:
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


at_exit(_wait_at_exit, while_threads_work=True)
