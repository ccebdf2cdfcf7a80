"""Configure both checkpoint stores of Event Hubs.

One of them is blocking, the other awaitable.
"""

import os
from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.consumers.eventhub.core import EventHubGroups
from pyspark_checkpointer.consumers.store_client import StoreClient, StoreConfig
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption


class ConfiguredStore(StoreClient[EventHubGroups]):
    """The arguments of both checkpoint stores."""

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
        encryption: EncryptionOption = None,
        signing: SigningOption = None,
    ) -> None:
        """Check the configuration; nothing is connected before the first call.

        The class describes the arguments.
        """
        self._max_updates, self._interval = max_updates, interval
        super().__init__(StoreConfig(root, storage_options, fencing, concurrency, timeout, encryption, signing))

    def _make_core(self, context: StoreContext) -> EventHubGroups:
        return EventHubGroups(context, self._max_updates, self._interval)
