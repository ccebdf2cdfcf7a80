"""A root where no store is: saying so, and where one is that may have been meant."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark_checkpointer.errors import CheckpointError, CorruptionError, StoreNotFoundError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.storage import ObjectNotFoundError, Store, open_store, parse
from pyspark_checkpointer.storage.registry import Reach

_LOST = "manifests are there, but `_latest`, which names the committed one, was lost: see `checkpointer repair`"
_ABOVE = 3
_MOST = 5
_LOOKED_AT = 2000


async def require_store(store: Store, options: Mapping[str, Any] | None) -> None:
    """Raise where the root has no `_latest`. What else is wrong with it is the verb's business.

    Raises:
        StoreNotFoundError: Nothing is there.
        CorruptionError: Manifests are there, so `_latest` was lost.
    """
    try:
        found = await _has_pointer(store)
    except CorruptionError:
        return
    if not found:
        there, meant = await _around(store, options)
        hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
        error = CorruptionError if there == _LOST else StoreNotFoundError
        raise error(f"no store at {store.url}: {there}{hint}")


async def _has_pointer(store: Store) -> bool:
    try:
        await store.get(object_paths.LATEST)
    except ObjectNotFoundError:
        return False
    return True


async def _around(store: Store, options: Mapping[str, Any] | None) -> tuple[str, list[str]]:
    if parse(store.url).kind.reach is Reach.MACHINE:
        folder = Path(store.url)
        found = [*islice((p for p in folder.parents[:_ABOVE] if _is_root(p)), _MOST)]
        return _describe(folder), [str(path) for path in found or sorted(islice(_near(folder), _MOST))]
    if (await store.list_page(object_paths.MANIFESTS)).entries:
        return _LOST, []
    above = await _above(store.url, options)
    return "it has no `_latest`", [] if above is None else [above]


def _describe(folder: Path) -> str:
    with suppress(OSError):
        if not folder.exists():
            return "there is no such folder"
        if next((folder / object_paths.MANIFESTS).glob("*"), None) is not None:
            return _LOST
        if not any(folder.iterdir()):
            return "the folder is empty"
    return "the folder has no `_latest`"


def _near(folder: Path) -> Iterator[Path]:
    """Stores below the folder; where the folder is not there, beside it under a similar name."""
    with suppress(OSError):
        if not folder.exists():
            names = get_close_matches(folder.name, (p.name for p in folder.parent.iterdir()), n=_MOST)
            yield from (folder.parent / name for name in names if _is_root(folder.parent / name))
            return
        below = [path for pattern in ("*", "*/*") for path in islice(folder.glob(pattern), _LOOKED_AT)]
        yield from (path for path in below if _is_root(path))


def _is_root(folder: Path) -> bool:
    try:
        return (folder / object_paths.LATEST).is_file()
    except OSError:
        return False


async def _above(url: str, options: Mapping[str, Any] | None) -> str | None:
    """Return the nearest store that the root lies in."""
    for _ in range(_ABOVE):
        url = url.rpartition("/")[0]
        if url.endswith(":/"):
            return None
        store = open_store(url, options, fencing="none")
        with suppress(CheckpointError):  # who may not look there is not helped by hearing of it
            if await _has_pointer(store):
                return url
        await store.close()
    return None
