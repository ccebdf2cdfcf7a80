"""What the blocking and the awaitable checkpoint store share."""

import os
from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.consumers.cas_object import Space
from pyspark_checkpointer.consumers.eventhub.core import Consumers
from pyspark_checkpointer.consumers.store_context import Client, Root
from pyspark_checkpointer.storage import Fencing


class Shared(Client[Consumers]):
    def __init__(
        self,
        root: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        max_updates: int = 1,
        interval: float = 1.0,
        fencing: Fencing = "required",
        concurrency: int = 16,
        timeout: float = 60.0,
    ) -> None:
        """Check the configuration; nothing is connected before the first call.

        Args:
            root: A folder, `s3://bucket/path`, `abfs://container/path`, … It may be the root of a job's state too.
            storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
            max_updates: Updates of checkpoints after which the latest of each partition are written. With 1 each is
                durable before `update_checkpoint` returns.
            interval: With more than 1: seconds after which what was recorded is written anyway.
            fencing: "required" refuses a store that cannot swap atomically; "none" does without, and then two
                consumers can own one partition.
            concurrency: Requests under way at once, not counting small reads: of these sixteen times as many.
            timeout: Seconds after which a request counts as unanswered.
        """
        self._max_updates, self._interval = max_updates, interval
        super().__init__(Root(root, storage_options, fencing, concurrency, timeout))

    def _make(self, space: Space) -> Consumers:
        return Consumers(space, self._max_updates, self._interval)
