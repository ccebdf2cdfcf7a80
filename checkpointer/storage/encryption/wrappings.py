"""Say which keys open an encrypted root.

That of the owner opens all of it, and those of cleaners its structure. The structure key lists, cleans and verifies the
root. It opens no artifact and no pack.
"""

from collections.abc import Sequence
from dataclasses import replace

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.keys_json import ALL, STRUCTURE, KeyGeneration, RootKeys, WrappedKey
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.key_providers import KeyProvider
from pyspark_checkpointer.storage.encryption.keyring import (
    UNFINISHED,
    check_hiding,
    find_wrapping,
    moved,
    opens,
    read_root_keys,
    shown_key,
    swap_keys,
    unwrap_all,
    wrap_key,
)


async def read_wrappings(store: Store) -> Sequence[WrappedKey]:
    """Return the keys that open a root, as `_keys` names them."""
    return (await _Change.begin(store)).present.wrappings


async def replace_wrapping(store: Store, old: KeyProvider, new: KeyProvider) -> None:
    """Wrap the data key for another provider, in place of the present one.

    The keys of cleaners stay. So does the content of the root: whoever has an old key and an old copy of `_keys` can
    still open it.
    """
    change = await _Change.begin(store)
    try:
        opened = await change.unwrap(old)
    except InvalidStateError:
        # An earlier call may have done it, and its answer was lost.
        done = await find_wrapping(new, change.present)
        if done is not None and done.opens == ALL and await change.is_opened_by(new):
            return
        raise
    check_hiding(store, new, change.present)
    # A cleaner's own key may take the place of the owner's. Another passphrase than the cleaner's would only look so.
    known = await find_wrapping(new, change.present)
    if known is not None and known.opens == STRUCTURE and not await change.is_opened_by(new):
        raise _taken(store, known)
    made = await wrap_key(new, opened)
    cleaners = [one for one in change.present.wrappings if one.opens == STRUCTURE and one.named != made.named]
    await change.end((made, *cleaners))


async def change_structure_keys(
    store: Store, owner: KeyProvider, allow: Sequence[KeyProvider], remove: Sequence[str]
) -> None:
    """Let other keys open the structure of a root, and take it away from cleaners.

    A key that opens it already stays. All of it is one swap. `remove` has names of keys, or kinds of their providers.

    Raises `InvalidStateError` where `owner` does not open all of the root. Raises `IllegalArgumentError` where one of
    `allow` does, or is another passphrase than that of a cleaner, and where not exactly one cleaner has a name.
    """
    change = await _Change.begin(store)
    opened, before = await change.unwrap(owner), change.present.wrappings
    for cleaner in allow:
        check_hiding(store, cleaner, change.present)
        known = await find_wrapping(cleaner, change.present)
        if known is None:
            change.plan([*change.present.wrappings, await wrap_key(cleaner, opened.structure())])
        elif known.opens != STRUCTURE:
            raise IllegalArgumentError(
                f"{store.url}: {shown_key(*known.named)} opens all of this root already: give another key to the "
                "cleaner, and a key file if both are passphrases"
            )
        elif not await change.is_opened_by(cleaner):
            raise _taken(store, known)
    for name in remove:
        cleaners = [one for one in change.present.wrappings if one.opens == STRUCTURE]
        gone = [one for one in cleaners if name and name in one.named]
        if len(gone) != 1:
            named = ", ".join(shown_key(*one.named) for one in cleaners)
            raise IllegalArgumentError(
                f"{store.url}: {name!r:.200}: expected the name of one cleaner's key, of these: {named or 'none'}"
            )
        change.plan([one for one in change.present.wrappings if one not in gone])
    if change.present.wrappings != before:
        await change.end(change.present.wrappings)


class _Change:
    """A change of the wrappings of a root's data key: `_keys` as it was read."""

    def __init__(self, store: Store, keys: RootKeys, version: str) -> None:
        self._store, self._keys, self._version = store, keys, version
        self.present: KeyGeneration = keys.generations[0]

    @classmethod
    async def begin(cls, store: Store) -> "_Change":
        """Read `_keys`.

        Raises `InvalidStateError` where the root is not encrypted, or is getting another data key.
        """
        blob, keys = await read_root_keys(store)
        if len(keys.generations) > 1:
            raise InvalidStateError(f"{store.url}: {UNFINISHED}")
        return cls(store, keys, blob.version)

    async def unwrap(self, owner: KeyProvider) -> DataKeys:
        """Return the opened data key."""
        return await unwrap_all(self._store, owner, self._keys, self.present)

    async def is_opened_by(self, provider: KeyProvider) -> bool:
        """Return whether a provider's key opens the root, or its structure."""
        return await opens(self._store, provider, self._keys, self.present)

    def plan(self, wrappings: Sequence[WrappedKey]) -> None:
        """Note what `end` is to write."""
        self.present = replace(self.present, wrappings=tuple(wrappings))

    async def end(self, wrappings: Sequence[WrappedKey]) -> None:
        """Swap `_keys`; raise `ConflictError` if somebody else did so first."""
        planned = replace(self._keys, generations=(replace(self.present, wrappings=tuple(wrappings)),))
        if not await swap_keys(self._store, planned, self._version):
            raise moved(self._store)


def _taken(store: Store, known: WrappedKey) -> IllegalArgumentError:
    """Return the error of a new key that only has the name of a cleaner's."""
    return IllegalArgumentError(
        f"{store.url}: a cleaner has another key with the same name, {shown_key(*known.named)}: remove that cleaner "
        "first, or give a key file to one of them, as all passphrases have the same name"
    )


__all__ = ["change_structure_keys", "read_wrappings", "replace_wrapping"]
