"""Open roots in a bucket of S3, or of a server that speaks its protocol."""

from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.storage.base import Settings, Store
from pyspark_checkpointer.storage.s3.store import S3Store
from pyspark_checkpointer.storage.url import Location


def open_root(location: Location, options: Mapping[str, Any], settings: Settings) -> Store:
    """Open a root in a bucket; `options` are those of s3fs."""
    return S3Store(location, options, settings)
