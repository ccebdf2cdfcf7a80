"""Open roots in a bucket of Google Cloud Storage."""

from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.storage.base import Settings, Store
from pyspark_checkpointer.storage.gcs.store import GCSStore
from pyspark_checkpointer.storage.url import Location


def open_root(location: Location, options: Mapping[str, Any], settings: Settings) -> Store:
    """Open a root in a bucket; `options` are those of gcsfs."""
    return GCSStore(location, options, settings)
