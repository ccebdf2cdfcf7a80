"""Do what callers ask of the keys of an encrypted root.

It parses what they give as `encryption`, gives a root its first keys, replaces the provider that opens them, and hands
the opened keys to tasks. `keyring.py` reads and writes `_keys` for it.
"""

from collections.abc import Iterator, Sequence

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.keys_json import WrappedKey
from pyspark_checkpointer.storage.base import Store, WrappedStore
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.generations import CheckNames, KeyChange, begin_change
from pyspark_checkpointer.storage.encryption.key_providers import KeyProvider, is_provider
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from pyspark_checkpointer.storage.encryption.keyring import (
    UNFINISHED,
    find_root_keys,
    make_keys,
    open_keys,
    require_all,
)
from pyspark_checkpointer.storage.encryption.store import EncryptedStore, Encryption
from pyspark_checkpointer.storage.encryption.wrappings import (
    change_structure_keys,
    read_wrappings,
    replace_wrapping,
)


def as_encryption(given: "Encryption | str") -> Encryption:
    """Return the provider or keys that open a root, also from a text that names it.

    Raises `IllegalArgumentError` for any other value. The error does not repeat the value, as it may be a key.
    """
    if isinstance(given, str):
        return parse_provider(given)
    if isinstance(given, DataKeys) or is_provider(given):
        return given
    raise IllegalArgumentError(f"encryption: expected a text or a provider of keys, got {type(given).__name__}")


async def keys_of(store: Store) -> DataKeys:
    """Return the opened keys of an encrypted root, for tasks of the same job.

    A new root gets its keys.
    """
    return await _encrypted_store(store).keys()


async def find_keys_of(store: Store) -> DataKeys | None:
    """Return the opened keys of an encrypted root, for tasks that only read.

    Return None for a root without keys.
    """
    return await _encrypted_store(store).find_keys()


async def adopt(store: Store, encryption: Encryption | str | None) -> tuple[DataKeys, bool]:
    """Return keys for a root that is not encrypted yet, which stand in it from now on.

    Return also whether anything is left to encrypt. An earlier call may have done it all. Whatever of consumers is not
    encrypted then was put there since, by somebody who has no key.

    Raises `IllegalArgumentError` where the store encrypts already, or `encryption` is no provider of keys.
    """
    if not is_provider(encryption):
        raise IllegalArgumentError(f"{store.url}: encrypt needs a provider of keys")
    if any(isinstance(one, EncryptedStore) for one in _layers(store)):
        raise IllegalArgumentError(f"{store.url}: was opened with encryption: to encrypt a root, open it without")
    keys = await find_root_keys(store)
    if keys is not None and len(keys.generations) > 1:
        raise InvalidStateError(f"{store.url}: {UNFINISHED}")
    found = await open_keys(store, encryption)
    if keys is None or found is None:
        return await make_keys(store, encryption, adopting=True), True
    return require_all(store, found), keys.adopting


async def rekey(store: Store, encryption: Encryption | str | None) -> None:
    """Let another provider open the keys of an encrypted root.

    It takes the place of the present provider. Raises `IllegalArgumentError` if the store was not opened with a
    provider of keys, or if `encryption` is no provider.
    """
    inner, old, new = _providers(store, encryption)
    await replace_wrapping(inner, old, new)


async def change_keys(
    store: Store, encryption: Encryption | str | None, check_names: CheckNames
) -> tuple[Store, KeyChange]:
    """Give an encrypted root another data key, which another provider opens.

    Return the root as it is stored, and both keys. Raises as `rekey`.
    """
    inner, old, new = _providers(store, encryption)
    return inner, await begin_change(inner, old, new, check_names)


async def cleaners(store: Store) -> Sequence[WrappedKey]:
    """Return the keys that open a root, those of cleaners too."""
    return await read_wrappings(_encrypted_store(store).inner)


async def change_cleaners(
    store: Store, allow: Sequence[Encryption | str | None], remove: Sequence[str]
) -> Sequence[WrappedKey]:
    """Give the structure key of a root to cleaners, and take it away.

    Return all keys that open the root. Raises as `rekey`.
    """
    if allow or remove:
        encrypted, added = _encrypted_store(store), [_providers(store, encryption)[2] for encryption in allow]
        await change_structure_keys(encrypted.inner, _provider(encrypted), added, remove)
    return await cleaners(store)


def _providers(store: Store, encryption: Encryption | str | None) -> tuple[Store, KeyProvider, KeyProvider]:
    """Return the root as stored, its provider of keys, and the one that follows."""
    encrypted = _encrypted_store(store)
    if not is_provider(encryption):
        raise IllegalArgumentError(f"{store.url}: needs a provider of keys that wraps, got opened keys or none")
    return encrypted.inner, _provider(encrypted), encryption


def _provider(store: EncryptedStore) -> KeyProvider:
    if store.provider is None:
        raise IllegalArgumentError(f"{store.url}: was opened with the keys themselves: open it with their provider")
    return store.provider


def _encrypted_store(store: Store) -> EncryptedStore:
    for one in _layers(store):
        if isinstance(one, EncryptedStore):
            return one
    raise IllegalArgumentError(f"{store.url}: was opened without encryption: say what opens its keys")


def _layers(store: Store) -> Iterator[Store]:
    """Yield a store and those that it hands requests on to."""
    yield store
    while isinstance(store, WrappedStore):
        store = store.inner
        yield store


__all__ = [
    "adopt",
    "as_encryption",
    "change_cleaners",
    "change_keys",
    "cleaners",
    "find_keys_of",
    "keys_of",
    "rekey",
]
