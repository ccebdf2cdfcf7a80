"""Open roots in a container of Azure Blob Storage or Data Lake Storage."""

from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.storage.azure.client import account_of
from pyspark_checkpointer.storage.azure.store import AzureStore
from pyspark_checkpointer.storage.base import Settings, Store
from pyspark_checkpointer.storage.url import Location


def open_root(location: Location, options: Mapping[str, Any], settings: Settings) -> Store:
    """Open a root in a container; `options` are those of adlfs."""
    return AzureStore(location, options, settings)


__all__ = ["account_of", "open_root"]
