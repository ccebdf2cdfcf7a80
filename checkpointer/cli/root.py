"""Refuse a root without a store, and suggest the root that may have been meant."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark_checkpointer.checkpoint.latest import Head, list_sizes, newest_above
from pyspark_checkpointer.errors import CheckpointError, CorruptionError, StoreNotFoundError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.storage import SWAP_LIMIT, ObjectNotFoundError, Store, open_store, parse
from pyspark_checkpointer.storage.registry import Reach
from pyspark_checkpointer.storage.url import above

_LOST = "manifests are there, but `_latest`, which names the committed one, was lost: see `checkpointer repair`"
_BEGUN = (
    "nothing shows a commit: a first one is under way, or ended before it was done; or it was the only one, and "
    "`_latest`, which names it, was lost: see `checkpointer repair`"
)
_MAX_PARENTS = 3
"""Levels above the root that are searched for a store."""

_MAX_SUGGESTIONS = 5

_MAX_ENTRIES = 2000
"""Entries of a folder, on each of two levels, that are searched for a store."""


async def require_store(store: Store, options: Mapping[str, Any] | None) -> None:
    """Raise if the root has no `_latest`. Other damage is for the verb to report.

    Raises:
        StoreNotFoundError: The root has no manifests either.
        CorruptionError: The root has manifests, so `_latest` was lost.
    """
    try:
        found = await _has_pointer(store)
    except CorruptionError:
        return  # `_latest` is there, and damaged: `verify` and `report` say so
    if not found:
        state, suggestions = await _look_around(store, options)
        hint = f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""
        error = CorruptionError if state == _LOST else StoreNotFoundError
        raise error(f"no store at {store.url}: {state}{hint}")


async def _has_pointer(store: Store) -> bool:
    try:
        await store.get(object_paths.LATEST, limit=SWAP_LIMIT)
    except ObjectNotFoundError:
        return False
    return True


async def _look_around(store: Store, options: Mapping[str, Any] | None) -> tuple[str, list[str]]:
    """Return what is at a root without `_latest`, and stores near it.

    The stores that the root lies in come first.
    """
    if parse(store.url).kind.reach is Reach.MACHINE:
        folder = Path(store.url)
        found = [parent for parent in folder.parents[:_MAX_PARENTS] if _is_root(parent)]
        near = [str(path) for path in found or sorted(islice(_near(folder), _MAX_SUGGESTIONS))]
        return await _manifests_of(store) or _describe(folder), near
    if (begun := await _manifests_of(store)) is not None:
        return begun, []
    above = await _above(store.url, options)
    return "it has no `_latest`", [] if above is None else [above]


async def _manifests_of(store: Store) -> str | None:
    """Say what the manifests of a root without `_latest` mean; None where it has none."""
    if await newest_above(store, Head()) is not None:
        return _LOST
    return _BEGUN if await list_sizes(store, 1, 1) else None


def _describe(folder: Path) -> str:
    """Say what is at a folder without `_latest`."""
    with suppress(OSError):
        if not folder.exists():
            return "there is no such folder"
        if not any(folder.iterdir()):
            return "the folder is empty"
    return "the folder has no `_latest`"


def _near(folder: Path) -> Iterator[Path]:
    """Yield stores below the folder.

    If the folder does not exist, yield those beside it with a similar name.
    """
    with suppress(OSError):
        if not folder.exists():
            names = get_close_matches(folder.name, (path.name for path in folder.parent.iterdir()), n=_MAX_SUGGESTIONS)
            yield from (folder.parent / name for name in names if _is_root(folder.parent / name))
            return
        below = [path for pattern in ("*", "*/*") for path in islice(folder.glob(pattern), _MAX_ENTRIES)]
        yield from (path for path in below if _is_root(path))


def _is_root(folder: Path) -> bool:
    try:
        return (folder / object_paths.LATEST).is_file()
    except OSError:
        return False


async def _above(url: str, options: Mapping[str, Any] | None) -> str | None:
    """Return the nearest store that the root lies in.

    The root is on a store that is not of this machine.
    """
    for _ in range(_MAX_PARENTS):
        folder = above(url)
        if folder is None:
            return None
        url = folder
        store = open_store(url, options, fencing="none")
        try:
            with suppress(CheckpointError):  # a missing permission there is not what the user asked about
                if await _has_pointer(store):
                    return url
        finally:
            await store.close()
    return None
