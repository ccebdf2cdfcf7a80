"""Give an encrypted root another data key.

`_keys` holds two of them until all is encrypted anew.

    one generation → two (the next one is made) → one (objects of others are to be deleted) → one

`admin/encrypt.py` does the work between these swaps.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from pyspark_checkpointer.errors import InvalidStateError, StoreRefusedError
from pyspark_checkpointer.manifests.keys_json import KeyGeneration, RootKeys
from pyspark_checkpointer.storage.base import Blob, Store, pages
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.key_providers import KeyProvider, hides_names
from pyspark_checkpointer.storage.encryption.keyring import (
    UNADOPTED,
    UNFINISHED,
    find_wrapping,
    moved,
    read_root_keys,
    swap_keys,
    unwrap_all,
    wrap_keys,
)
from pyspark_checkpointer.storage.encryption.store import EncryptedStore
from pyspark_checkpointer.storage.encryption.stored_names import generation_of

MAX_GENERATION = 10**9
"""Generations from here on are none that a root can have had.

Somebody planted the object, and its number must not use up the digits that a stored path has for it.
"""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The keys that a root has, and those that it is getting."""

    before: DataKeys | None
    """None where nothing is encrypted with them any more."""
    after: DataKeys


CheckNames = Callable[[Store], Awaitable[None]]
"""Raises `IllegalArgumentError` for a root, opened by its present keys, that has a name which cannot be hidden."""


async def begin_change(store: Store, old: KeyProvider, new: KeyProvider, check_names: CheckNames) -> KeyChange:
    """Make the next data key of a root, or go on with the one of an earlier call.

    `check_names` is called before its names are to be hidden for the first time.

    Raises `InvalidStateError` where `old` does not open the present one, or where an earlier call had another `new`.
    """
    blob, keys = await read_root_keys(store)
    if keys.adopting:
        raise InvalidStateError(f"{store.url}: {UNADOPTED}")
    present, *following = keys.generations
    for each in following:
        if await find_wrapping(new, each) is None:
            known = ", ".join(one.key or one.provider for one in each.wrappings)
            raise InvalidStateError(f"{store.url}: {UNFINISHED}, with the new key {known!r:.200}")
        return KeyChange(await unwrap_all(store, old, keys, present), await unwrap_all(store, new, keys, each))
    before = await _try_unwrap(store, old, keys, present)
    # An earlier call has finished but for the deletion, or wholly, and its answer was lost. Where one key is both the
    # old and the new one, only `deletes` would tell, which anybody can write: then all is encrypted anew once more.
    if present.number > 1 and before is None:
        after = await _try_unwrap(store, new, keys, present)
        if after is not None:
            return KeyChange(None, after)
    if before is None:
        before = await unwrap_all(store, old, keys, present)  # it raises, and says why
    # Names that are hidden once stay so: their owner would not expect that another key shows them.
    above = await _highest_generation(store)
    after = before.next_generation(above=above, hides_names=before.hides_names or hides_names(new))
    if after.hides_names and not before.hides_names:
        await check_names(EncryptedStore(store, before))
    planned = replace(keys, generations=(present, await wrap_keys(new, after)))
    await _swap(store, planned, blob.version)
    return KeyChange(before, after)


async def _highest_generation(store: Store) -> int:
    """Return the highest generation of keys that any object of a root has.

    It is above the present one where a backup was put over the root. Nobody has these keys any more, and an object that
    is written once is never replaced.
    """
    highest = 0
    async for entries in pages(store, ""):
        found = (generation_of(entry.path) or 0 for entry in entries)
        highest = max([highest, *(number for number in found if number < MAX_GENERATION)])
    return highest


async def _try_unwrap(store: Store, provider: KeyProvider, keys: RootKeys, chosen: KeyGeneration) -> DataKeys | None:
    """Return the opened keys of a generation.

    Return None where the provider's key does not open all of them.
    """
    try:
        return await unwrap_all(store, provider, keys, chosen)
    except StoreRefusedError:
        raise
    except InvalidStateError:
        return None


async def end_change(store: Store, after: DataKeys, *, deletes: bool) -> None:
    """Take all data keys but the newest one out of `_keys`.

    Everything but what is to be deleted is encrypted with it.

    `deletes` says that objects of others may be left. It does nothing where an earlier call did it.
    """
    blob, keys = await _read_own(store, after)
    planned = replace(keys, generations=keys.generations[-1:], deletes=deletes, adopting=False)
    if planned != keys:
        await _swap(store, planned, blob.version)


async def check_change(store: Store, after: DataKeys) -> None:
    """Raise `ConflictError` where a root has newer keys by now, or is another root."""
    await _read_own(store, after)


async def _read_own(store: Store, after: DataKeys) -> tuple[Blob, RootKeys]:
    blob, keys = await read_root_keys(store)
    if (keys.root_id, keys.generations[-1].number) != (after.root_id, after.generation):
        raise moved(store)
    return blob, keys


async def _swap(store: Store, planned: RootKeys, version: str) -> None:
    if not await swap_keys(store, planned, version):
        raise moved(store)


__all__ = ["CheckNames", "KeyChange", "begin_change", "check_change", "end_change"]
