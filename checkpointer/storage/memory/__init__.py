"""Open roots in the memory of this process."""

from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.storage.base import Settings, Store
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.storage.url import Location


def open_root(location: Location, options: Mapping[str, Any], settings: Settings) -> Store:
    """Open a root in memory. No option changes anything there."""
    return MemoryStore(location.url, fencing=settings.fencing)
