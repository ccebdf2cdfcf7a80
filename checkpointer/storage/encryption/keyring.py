"""Open, make and wrap the keys of an encrypted root.

They are made for a new root, and wrapped again for another provider. The object `_keys` has them. It is replaced only
by a swap.
"""

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import (
    ConflictError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
)
from pyspark_checkpointer.manifests.keys_json import (
    KEYS,
    MAX_KEYS,
    RootKeys,
    WrappedKey,
    decode_keys,
    encode_keys,
)
from pyspark_checkpointer.storage.base import Store, pages
from pyspark_checkpointer.storage.compare_and_swap import UndecidedError, find_object, swap_until_decided
from pyspark_checkpointer.storage.encryption.chunked import KEY_BYTES
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.key_providers import KeyProvider, UnwrapError

_ROOT_BYTES = 16
"""Bytes of a root's id. They are wrapped with the data key, so that keys cannot be moved to another root."""


async def open_keys(store: Store, provider: KeyProvider) -> DataKeys | None:
    """Return the keys of a root; None where it has none.

    Raises `InvalidStateError` where the provider's key does not open them.
    """
    blob = await find_object(store, KEYS, MAX_KEYS)
    if blob is None:
        return None
    keys = decode_keys(blob.data)
    name = await runtime.in_thread(lambda: provider.key)
    for one in keys.wrappings:
        if (one.provider, one.key) == (provider.provider, name):
            return await _unwrap(store, provider, keys.root_id, one)
    known = ", ".join(_shown(one.provider, one.key) for one in keys.wrappings)
    raise InvalidStateError(
        f"{store.url}: is encrypted, and its keys are opened by {known}, not by "
        f"{_shown(provider.provider, name)}: give that one as encryption"
    )


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


async def make_keys(store: Store, provider: KeyProvider) -> DataKeys:
    """Make the keys of a root that has none.

    If another client makes keys at the same time, return those.
    """
    made = DataKeys.generate()
    data = encode_keys(RootKeys(made.root_id, (await _wrap(provider, made),)))
    if await _swap(store, data, None):
        return made
    found = await open_keys(store, provider)
    if found is None:
        raise ConflictError(f"{store.url}: {KEYS} was written and removed by others at the same time: try again")
    return found


async def holds_others(store: Store) -> bool:
    """Return whether a root holds anything but its keys."""
    # Page by page until something is found: a store may leave out of a page all that it has, such as temporary files,
    # or give an empty one before others.
    async for entries in pages(store, ""):
        if any(entry.path != KEYS for entry in entries):
            return True
    return False


async def has_keys(store: Store, keys: DataKeys) -> bool:
    """Return whether a root has these keys still. They are not opened."""
    blob = await find_object(store, KEYS, MAX_KEYS)
    return blob is not None and decode_keys(blob.data).root_id == keys.root_id


async def replace_wrapping(store: Store, old: KeyProvider, new: KeyProvider) -> None:
    """Wrap the data key for another provider in place of all the old ones.

    The content of the root stays as it is: whoever has an old key and an old copy of `_keys` can still open it.
    """
    blob = await find_object(store, KEYS, MAX_KEYS)
    if blob is None:
        raise InvalidStateError(f"{store.url}: is not encrypted: there is no key to replace")
    keys = await open_keys(store, old)
    assert keys is not None
    data = encode_keys(RootKeys(keys.root_id, (await _wrap(new, keys),)))
    if not await _swap(store, data, blob.version):
        raise ConflictError(f"{store.url}: somebody else replaced {KEYS} at the same time: look which key opens it now")


async def _swap(store: Store, data: bytes, expected: str | None) -> bool:
    """Swap `_keys`, and return whether that took effect."""
    try:
        found = await swap_until_decided(store, KEYS, data, expected, MAX_KEYS)
    except UndecidedError as error:
        raise OutcomeUnknownError(
            f"{store.url}: a swap of {KEYS} was sent and nothing proves whether it took effect: try again"
        ) from error.__cause__
    return found is not None and found.data == data


async def _wrap(provider: KeyProvider, keys: DataKeys) -> WrappedKey:
    data = bytes.fromhex(keys.root_id) + keys.data_key
    wrapped = await runtime.in_thread(provider.wrap, data)
    # Before anything is written with it: a data key that cannot be opened again would lose the whole root.
    try:
        opened = await runtime.in_thread(provider.unwrap, wrapped)
    except UnwrapError:
        opened = b""
    if opened != data:
        raise IllegalArgumentError(f"the provider {provider.provider!r} does not return what it wrapped")
    return WrappedKey(provider.provider, await runtime.in_thread(lambda: provider.key), wrapped)


async def _unwrap(store: Store, provider: KeyProvider, root_id: str, one: WrappedKey) -> DataKeys:
    try:
        data = await runtime.in_thread(provider.unwrap, one.wrapped)
    except UnwrapError:
        data = b""
    if len(data) != _ROOT_BYTES + KEY_BYTES or data[:_ROOT_BYTES].hex() != root_id:
        raise InvalidStateError(
            f"{store.url}: {_shown(provider.provider, one.key)} does not open the keys of this root: give the right "
            f"one, or bring back {KEYS} if somebody changed it"
        )
    return DataKeys(root_id, data[_ROOT_BYTES:])


def _shown(provider: str, key: str) -> str:
    return f"{provider!r:.60} ({key!r:.200})" if key else f"{provider!r:.60}"


__all__ = ["create_keys", "has_keys", "holds_others", "make_keys", "open_keys", "replace_wrapping"]
