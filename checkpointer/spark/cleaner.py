"""Clean up from within a job, beside its batches. Errors are only logged."""

import logging
import threading
import time
from typing import Any

from pyspark_checkpointer.admin.retention.garbage_collect import retire_and_sweep
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.client.base import Client
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import at_exit, run_sync

logger = logging.getLogger("pyspark_checkpointer")

EXIT_SECONDS = 60.0
"""Seconds that a process waits at its end for cleanups.

Many jobs make one batch for each process, so that each of their cleanups begins when the process is about to end.
"""

_cleanups: dict[threading.Thread, str] = {}
"""The threads of cleanups that run, and the root of each."""


class Cleaner:
    """A cleanup of a root after some of its commits.

    It runs after each commit whose sequence number is a multiple of `every`. It runs in a thread of its own, one
    cleanup at a time.
    """

    def __init__(self, client: Client, policy: RetentionPolicy, every: int) -> None:
        self._client = client.copy()  # It has connections of its own, so that a slow deletion delays no commit.
        self._policy = policy
        self._every = every
        self._running: threading.Thread | None = None

    def after(self, committed: CheckpointId) -> None:
        """Start a cleanup if it is due after this commit.

        The sequence number of the checkpoint decides, so that a job that restarts often is cleaned up too.
        """
        if committed.sequence % self._every == 0 and not (self._running and self._running.is_alive()):
            # A daemon, as a cleanup must not keep the driver from ending for long.
            self._running = threading.Thread(target=self._clean, name="checkpointer-clean", daemon=True)
            _cleanups[self._running] = self._client.root
            self._running.start()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_running": None}

    def wait(self) -> None:
        """Wait until a cleanup that is under way has ended."""
        if self._running is not None:
            self._running.join()

    def _clean(self) -> None:
        try:
            logger.info("%s: %s", self._client.root, run_sync(retire_and_sweep(self._client.session, self._policy)))
        except CheckpointError as error:
            logger.warning("%s: the cleanup failed, and the next one continues it: %s", self._client.root, error)
        # An exception of this thread would reach nobody, so the log has to say it.
        except Exception:
            logger.exception("%s: the cleanup failed, the next one goes on", self._client.root)
        finally:
            _cleanups.pop(threading.current_thread(), None)


def _wait_at_exit() -> None:
    """Wait for the cleanups that run, and log those that are cut short."""
    end = time.monotonic() + EXIT_SECONDS
    for thread, root in [*_cleanups.items()]:
        if thread.is_alive():  # not in a forked child, which has none of its parent's threads
            thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            logger.warning(
                "%s: the process ends before its cleanup, and the next one begins anew: if no process of this job "
                "lives long enough, run `checkpointer clean`",
                root,
            )


at_exit(_wait_at_exit, while_threads_work=True)
