"""Decide which storage options a root gets."""

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from pyspark_checkpointer.storage.registry import Reach
from pyspark_checkpointer.storage.url import parse

StorageOptions = Mapping[str, Any] | None
"""The options of s3fs, adlfs or another fsspec file system. They may hold secrets."""


def options_for(
    root: str, options: StorageOptions, name: str = "storage_options", context: click.Context | None = None
) -> StorageOptions:
    """Return the storage options of a root.

    A folder takes none: the options in the environment are for other roots.
    """
    # Options that were typed are meant for this root, also where it is a folder that takes none.
    source = (context or click.get_current_context()).get_parameter_source(name)
    return None if source is ParameterSource.ENVIRONMENT and parse(root).kind.reach is Reach.MACHINE else options
