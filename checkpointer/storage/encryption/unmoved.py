"""Refuse to call positions missing whose names are not hidden yet.

`encrypt` and `rekey --rewrite` move positions and followers after the swap of `_latest`. Where they are interrupted,
the root opens with its new keys, by which these objects have other names. Whoever took them for missing would begin
anew, or retire what a follower has not read.
"""

import re

from pyspark_checkpointer.errors import InvalidStateError, UnsupportedFormatError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_text import ENCRYPTED
from pyspark_checkpointer.storage.base import Store, pages
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.keyring import UNADOPTED, UNFINISHED, check_generation, find_root_keys

_HIDDEN = re.compile(r"progress(/[A-Za-z0-9_-]{22,})+\.json")
"""The form of a stored path whose names are hidden: each has 16 bytes of AES-SIV at least."""


def may_be_unmoved(keys: DataKeys, prefix: str) -> bool:
    """Return whether objects below a prefix are moved after the swap of `_latest`."""
    return keys.hides_names and prefix.startswith(object_paths.CONSUMERS)


async def refuse_unmoved(store: Store, keys: DataKeys, prefix: str) -> None:
    """Raise `InvalidStateError` where an object below `progress/` is not moved yet.

    `store` is the root as stored, and `prefix` begins the paths that are looked for. Asked where an object was not
    found, before one is made or deleted, and before a listing. Raises it too where the root has another data key by
    now.
    """
    if not may_be_unmoved(keys, prefix):
        return
    root = await find_root_keys(store)
    if root is None:
        return
    if len(root.generations) > 1:
        # Names that the other data key has hidden tell nothing, so any of them counts.
        async for entries in pages(store, object_paths.CONSUMERS):
            for entry in entries:
                if keys.logical_path(entry.path) is None and (_is_plain(entry.path) or _HIDDEN.fullmatch(entry.path)):
                    raise InvalidStateError(f"{store.url}: {UNFINISHED}")
        return
    if root.root_id == keys.root_id:
        # A client that was open before a `rekey --rewrite` looks for names that the earlier data key has hidden.
        check_generation(store, root, keys)
    if not root.adopting:
        return  # whoever put a plain name here has no key
    async for entries in pages(store, prefix):
        for entry in entries:
            if _is_plain(entry.path):
                raise InvalidStateError(f"{store.url}/{entry.path}: its name is not hidden yet: {UNADOPTED}")


async def refuse_unadopted(store: Store, stored: str, data: bytes) -> None:
    """Raise `UnsupportedFormatError` for an object that `encrypt` has not reached yet.

    `store` is the root as stored, `stored` the path of the object. In a root that was encrypted completely, somebody
    without a key put it there: then no error may ask the owner to encrypt it.
    """
    if data.startswith(ENCRYPTED):
        return
    root = await find_root_keys(store)
    if root is not None and root.adopting:
        raise UnsupportedFormatError(f"{stored}: is not encrypted yet: {UNADOPTED}")


def _is_plain(path: str) -> bool:
    """Return whether an object below `progress/` has a name that is not hidden."""
    return path == object_paths.FOLLOWERS or object_paths.parse_position_path(path) is not None


__all__ = ["may_be_unmoved", "refuse_unadopted", "refuse_unmoved"]
