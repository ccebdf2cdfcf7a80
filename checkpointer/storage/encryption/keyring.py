"""Open, make and wrap the keys of an encrypted root.

They are made for a new root. The object `_keys` has them. It is replaced only by a swap. `wrappings.py` says which keys
open a root, and `generations.py` gives it another data key.
"""

import secrets
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import (
    ConflictError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    StoreRefusedError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.keys_json import (
    ALL,
    KEYS,
    MAX_KEYS,
    KeyGeneration,
    RootKeys,
    WrappedKey,
    decode_keys,
    encode_keys,
)
from pyspark_checkpointer.storage.base import Blob, ObjectNotFoundError, Store, holds_beside
from pyspark_checkpointer.storage.compare_and_swap import find_object, swap_or_explain
from pyspark_checkpointer.storage.encryption.chunked import KEY_BYTES
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys, mark_of
from pyspark_checkpointer.storage.encryption.key_providers import HIDE_NAMES, KeyProvider, UnwrapError, hides_names

UNADOPTED = "`checkpointer encrypt` was interrupted, or is under way: let it finish, or call it again"
UNFINISHED = "`checkpointer rekey --rewrite` was interrupted, or is under way: let it finish, or call it again"


async def find_root_keys(store: Store) -> RootKeys | None:
    """Return the content of `_keys`, not opened yet; None for a root without it."""
    blob = await find_object(store, KEYS, MAX_KEYS)
    return None if blob is None else _decode(store, blob)


def _decode(store: Store, blob: Blob) -> RootKeys:
    """Return the content of `_keys`.

    Raises `CorruptionError` with the next step if it is damaged.
    """
    try:
        return decode_keys(blob.data)
    except UnsupportedFormatError:
        raise
    except CorruptionError as error:
        # Nothing else has the data key, and no verb opens the root without it: not `verify`, and not `repair`.
        raise type(error)(
            f"{store.url}/{error}: bring it back from a copy, which opens with the key of its time"
        ) from None


async def open_keys(store: Store, provider: KeyProvider) -> DataKeys | None:
    """Return the keys of a root; None where it has none.

    Raises `InvalidStateError` where the provider's key does not open them.
    """
    keys = await find_root_keys(store)
    return None if keys is None else await unwrap_keys(store, provider, keys, await _present(store, keys))


async def _present(store: Store, keys: RootKeys) -> KeyGeneration:
    """Return the generation with which a root is encrypted.

    Where there are two, the root is being rewritten. The swap of `_latest` makes the next one the present one.
    """
    present, *following = keys.generations
    for each in following:
        mark = mark_of(object_paths.LATEST, each.number)
        with suppress(ObjectNotFoundError):
            if await store.get_range(object_paths.LATEST, 0, len(mark)) == mark:
                return each
    return present


async def unwrap_keys(store: Store, provider: KeyProvider, keys: RootKeys, chosen: KeyGeneration) -> DataKeys:
    """Return the opened keys of one generation.

    Raises `InvalidStateError` where the provider's key does not open them.
    """
    check_hiding(store, provider, chosen)
    one = await find_wrapping(provider, chosen)
    if one is not None:
        return await _unwrap(store, provider, keys.root_id, chosen, one)
    known = ", ".join(shown_key(one.provider, one.key) for one in chosen.wrappings)
    name = await runtime.call_alone(lambda: provider.key)
    raise InvalidStateError(
        f"{store.url}: is encrypted, and its keys are opened by {known}, not by "
        f"{shown_key(provider.provider, name)}: give that one as encryption"
    )


def check_hiding(store: Store, provider: KeyProvider, chosen: KeyGeneration) -> None:
    """Raise `InvalidStateError` where a provider asks for hidden names in vain."""
    if hides_names(provider) and not chosen.hides_names:
        raise InvalidStateError(
            f"{store.url}: its names are not hidden: that is chosen when a root gets its data key. Open it without "
            f"`{HIDE_NAMES}:`; to hide its names, use `checkpointer rekey --rewrite`"
        )


async def unwrap_all(store: Store, provider: KeyProvider, keys: RootKeys, chosen: KeyGeneration) -> DataKeys:
    """Return the opened keys of one generation, as `unwrap_keys` does.

    Raises `InvalidStateError` also for the key of a cleaner.
    """
    return require_all(store, await unwrap_keys(store, provider, keys, chosen))


def require_all(store: Store, keys: DataKeys) -> DataKeys:
    """Return keys; raise `InvalidStateError` for those of a cleaner."""
    if keys.opens != ALL:
        raise InvalidStateError(
            f"{store.url}: the given key is that of a cleaner, which cannot do this: give one that opens the whole root"
        )
    return keys


async def opens(store: Store, provider: KeyProvider, keys: RootKeys, chosen: KeyGeneration) -> bool:
    """Return whether the provider's key opens one generation.

    Its name alone does not tell: all passphrases have the same one.
    """
    try:
        await unwrap_keys(store, provider, keys, chosen)
    except StoreRefusedError:
        raise  # the key service says nothing about the key
    except InvalidStateError:
        return False
    return True


async def find_wrapping(provider: KeyProvider, chosen: KeyGeneration) -> WrappedKey | None:
    """Return the wrapping of a generation by a provider, found by its key's name."""
    name = await runtime.call_alone(lambda: provider.key)
    return next((one for one in chosen.wrappings if one.named == (provider.provider, name)), None)


async def create_keys(store: Store, provider: KeyProvider) -> DataKeys:
    """Make the keys of a new root, or return those of another client.

    Another client may make keys at the same time. Raises `InvalidStateError` for a root that is not empty: what is
    there is not encrypted, and would stay so.
    """
    if await holds_others(store):
        # Another client may have begun the root since its keys were looked for.
        found = await open_keys(store, provider)
        if found is not None:
            return found
        raise InvalidStateError(
            f"{store.url}: holds objects that are not encrypted: encrypt them with `checkpointer encrypt`, or choose "
            "an empty root"
        )
    return await make_keys(store, provider)


async def make_keys(store: Store, provider: KeyProvider, *, adopting: bool = False) -> DataKeys:
    """Make the keys of a root that has none.

    If another client makes keys at the same time, return those.
    """
    made = DataKeys.generate(hides_names=hides_names(provider))
    if await swap_keys(store, RootKeys(made.root_id, (await wrap_keys(provider, made),), adopting=adopting), None):
        return made
    found = await open_keys(store, provider)
    if found is None:
        raise ConflictError(f"{store.url}: {KEYS} was written and removed by others at the same time: try again")
    return found


async def holds_others(store: Store) -> bool:
    """Return whether a root holds anything but its keys."""
    return await holds_beside(store, KEYS)


def check_generation(store: Store, found: RootKeys, keys: DataKeys) -> None:
    """Raise `InvalidStateError` where a root has, or is getting, another data key."""
    if [each.number for each in found.generations] != [keys.generation]:
        raise _replaced(store)


def check_same_generation(store: Store, found: DataKeys, keys: DataKeys) -> None:
    """Raise `InvalidStateError` where keys are other ones of the same root."""
    if found.root_id == keys.root_id and found.generation != keys.generation:
        raise _replaced(store)


def _replaced(store: Store) -> InvalidStateError:
    return InvalidStateError(
        f"{store.url}: `checkpointer rekey --rewrite` gives this root another data key, or has done so while this "
        "client was open, so nothing was written: when the command is finished, open the root with a new client"
    )


async def read_root_keys(store: Store) -> tuple[Blob, RootKeys]:
    """Return `_keys` and its content; `InvalidStateError` for a root without it."""
    blob = await find_object(store, KEYS, MAX_KEYS)
    if blob is None:
        raise InvalidStateError(f"{store.url}: is not encrypted, or has lost its {KEYS}: bring that back from a copy")
    return blob, _decode(store, blob)


def moved(store: Store) -> ConflictError:
    """Return the error of a swap that came too late."""
    return ConflictError(
        f"{store.url}: somebody else changed {KEYS} at the same time: look which keys open it now, and try again"
    )


async def swap_keys(store: Store, keys: RootKeys, expected: str | None) -> bool:
    """Swap `_keys`, and return whether that took effect."""
    data = encode_keys(replace(keys, nonce=secrets.token_hex(16)))
    unknown = f"{store.url}: a swap of {KEYS} was sent and nothing proves whether it took effect: try again"
    return await swap_or_explain(store, KEYS, data, expected, MAX_KEYS, unknown)


async def wrap_keys(provider: KeyProvider, keys: DataKeys) -> KeyGeneration:
    """Return opened keys as `_keys` has them, wrapped by one provider."""
    return KeyGeneration(keys.generation, keys.hides_names, (await wrap_key(provider, keys),))


async def wrap_key(provider: KeyProvider, keys: DataKeys) -> WrappedKey:
    """Return opened keys as one provider wrapped them."""
    data = keys.wrapped_content
    wrapped = await runtime.call_alone(partial(provider.wrap, data))
    # Before anything is written with it: a data key that cannot be opened again would lose the whole root.
    try:
        opened = await runtime.call_alone(partial(provider.unwrap, wrapped))
    except UnwrapError:
        opened = b""
    if opened != data:
        raise IllegalArgumentError(f"the provider {provider.provider!r} does not return what it wrapped")
    return WrappedKey(provider.provider, await runtime.call_alone(lambda: provider.key), wrapped, keys.opens)


async def _unwrap(
    store: Store, provider: KeyProvider, root_id: str, chosen: KeyGeneration, one: WrappedKey
) -> DataKeys:
    try:
        data = await runtime.call_alone(partial(provider.unwrap, one.wrapped))
    except UnwrapError:
        data = b""
    if len(data) > KEY_BYTES:
        keys = DataKeys(root_id, data[-KEY_BYTES:], chosen.number, chosen.hides_names, one.opens)
        if keys.wrapped_content == data:
            return keys
    raise InvalidStateError(
        f"{store.url}: {shown_key(provider.provider, one.key)} does not open the keys of this root: give the right "
        f"one, or bring back {KEYS} if somebody changed it"
    )


def shown_key(provider: str, key: str) -> str:
    return f"{provider!r:.60} ({key!r:.200})" if key else f"{provider!r:.60}"


__all__ = [
    "UNADOPTED",
    "UNFINISHED",
    "check_generation",
    "check_hiding",
    "check_same_generation",
    "create_keys",
    "find_root_keys",
    "find_wrapping",
    "holds_others",
    "make_keys",
    "moved",
    "open_keys",
    "opens",
    "read_root_keys",
    "require_all",
    "shown_key",
    "swap_keys",
    "unwrap_all",
    "unwrap_keys",
    "wrap_key",
    "wrap_keys",
]
