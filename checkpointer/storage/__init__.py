"""Objects on any store: get, put, compare_and_swap, list, delete. `open_store` is the way in."""

import os
import threading
from collections.abc import Mapping
from typing import Any, Literal

from checkpointer.errors import IllegalArgumentError
from checkpointer.storage.base import (
    SWAP_LIMIT,
    Blob,
    Entry,
    Leftover,
    ObjectExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    Store,
)
from checkpointer.storage.limiting import LimitedStore
from checkpointer.storage.retrying import RetryingStore
from checkpointer.storage.url import Location, absolute, parse

Fencing = Literal["required", "none"]

_S3 = ("s3", "s3a", "s3n")
_AZURE = ("abfs", "abfss", "az")
CLOUD = (*_S3, *_AZURE)
"""Protocols of the object stores that put under conditions."""


def open_store(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    fencing: Fencing = "required",
    concurrency: int = 16,
    timeout: float = 60.0,
) -> Store:
    """The store of a root. Does no I/O and imports no cloud package: that waits for the first request.

    Args:
        url: A folder, `file:///…`, `memory://name`, `s3://bucket/path`, `abfs://container/path`, or any other
            URL that fsspec knows (those with `fencing="none"` only).
        storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
        fencing: "required" writes under conditions that the store keeps against every other writer; "none"
            writes without them, and two writers of one root can then overwrite each other.
        concurrency: Requests at once, not counting small reads and writes: of these sixteen times as many.
        timeout: Seconds for one request of small size; large ones get a second more for each MiB.

    Raises:
        IllegalArgumentError: The URL or an option cannot be right.
    """
    if fencing not in ("required", "none"):
        raise IllegalArgumentError(f"fencing={fencing!r:.40}: expected 'required' or 'none'")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise IllegalArgumentError(f"concurrency={concurrency!r:.40}: expected an integer of at least 1")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= threading.TIMEOUT_MAX:
        raise IllegalArgumentError(f"timeout={timeout!r:.40}: expected seconds, more than 0")
    if not isinstance(storage_options, Mapping | None):
        raise IllegalArgumentError(f"storage_options: expected a mapping, got {type(storage_options).__name__}")
    store = _backend(parse(url), dict(storage_options or {}), fencing == "required", concurrency, timeout)
    return RetryingStore(LimitedStore(store, concurrency=concurrency, timeout=timeout))


def _backend(location: Location, options: dict[str, Any], fencing: bool, concurrency: int, timeout: float) -> Store:
    if location.protocol == "file":
        from checkpointer.storage.local.store import LocalStore

        if options.keys() - {"auto_mkdir"}:
            raise IllegalArgumentError(
                f"{location.url}: a local folder takes no storage_options; was a URL such as s3://… meant?"
            )
        return LocalStore(location.path, fencing=fencing, timeout=timeout)
    if location.protocol == "memory":
        from checkpointer.storage.memory import MemoryStore

        return MemoryStore(location.url, fencing=fencing)
    if location.protocol in _S3:
        from checkpointer.storage.s3.store import S3Store

        return S3Store(location, options, fencing=fencing, concurrency=concurrency, timeout=timeout)
    if location.protocol in _AZURE:
        from checkpointer.storage.azure.store import AzureStore

        return AzureStore(location, options, fencing=fencing, timeout=timeout)
    from checkpointer.storage.fsspec_store import GenericStore, check_protocol

    check_protocol(location, fencing)
    return GenericStore(location.url, options)


def open_files(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, fencing: Fencing = "none"
) -> Store:
    """Open a folder of somebody else's files, in which nothing is swapped.

    With `fencing="required"` only new files are put, where the store can refuse others.
    """
    conditions = fencing if parse(location).protocol in CLOUD else "none"
    return open_store(location, storage_options, fencing=conditions)


def options_near(url: str | os.PathLike[str], root: str, options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The storage options of a root, for another place where that is on a store of the same kind."""
    return options if _kind(parse(url)) == _kind(parse(root)) else None


def _kind(location: Location) -> str:
    return next((kinds[0] for kinds in (_S3, _AZURE) if location.protocol in kinds), location.protocol)


__all__ = [
    "CLOUD",
    "SWAP_LIMIT",
    "Blob",
    "Entry",
    "Fencing",
    "Leftover",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "PreconditionFailedError",
    "Store",
    "absolute",
    "open_store",
    "options_near",
    "parse",
]
