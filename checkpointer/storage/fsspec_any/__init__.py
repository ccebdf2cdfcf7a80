"""Open roots on any other file system of fsspec, without conditional writes."""

from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.storage.base import Settings, Store
from pyspark_checkpointer.storage.fsspec_any.store import GenericStore, check_protocol
from pyspark_checkpointer.storage.url import Location


def open_root(location: Location, options: Mapping[str, Any], settings: Settings) -> Store:
    """Open a root through fsspec.

    Raises `IllegalArgumentError` unless fencing is given up and fsspec can open it.
    """
    check_protocol(location, settings.fencing)
    return GenericStore(location.url, options)
