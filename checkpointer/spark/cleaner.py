"""Clean up from within a job, beside its batches. Errors are only logged."""

import logging
import threading
from typing import Any

from pyspark_checkpointer.admin.retention.garbage_collect import retire_and_sweep
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.client.base import Client
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import run_sync

logger = logging.getLogger("pyspark_checkpointer")


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
            # A daemon, as a cleanup must not keep the driver from ending. One that is cut short is finished by the
            # next.
            self._running = threading.Thread(target=self._clean, name="checkpointer-clean", daemon=True)
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
