"""Open roots in a folder of this machine."""

from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.storage.base import Settings, Store
from pyspark_checkpointer.storage.local.store import LocalStore
from pyspark_checkpointer.storage.url import Location


def open_root(location: Location, options: Mapping[str, Any], settings: Settings) -> Store:
    """Open a folder.

    Raises `IllegalArgumentError` for any option but `auto_mkdir`, which it does in any case.
    """
    if options.keys() - {"auto_mkdir"}:
        raise IllegalArgumentError(
            f"{location.url}: a local folder takes no storage_options; was a URL such as s3://… meant?"
        )
    return LocalStore(location.path, fencing=settings.fencing, timeout=settings.timeout)
