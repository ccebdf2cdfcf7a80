"""Open roots in a volume of Unity Catalog on Databricks."""

from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.storage.base import Settings, Store
from pyspark_checkpointer.storage.databricks.store import VolumeStore
from pyspark_checkpointer.storage.url import Location


def open_root(location: Location, options: Mapping[str, Any], settings: Settings) -> Store:
    """Open a root in a volume; `options` are those of `login.Options`."""
    return VolumeStore(location, options, settings)
