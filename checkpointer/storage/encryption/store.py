"""Encrypt the objects of a store before they leave this process.

It stands between the library and the path of a request, so no layer above knows of encryption:

    caller
      -> EncryptedStore   encrypts and decrypts contents, and the digests in paths
      -> RetryingStore, LimitedStore, S3Store, ...

For all layers above, contents, digests and sizes are those before encryption. `manifests/ENCRYPTION.md` describes what
is stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import CheckpointError, CorruptionError, InvalidStateError, UnsupportedFormatError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.manifests.keys_json import KEYS
from pyspark_checkpointer.runtime.host import HASH_INLINE
from pyspark_checkpointer.storage.base import (
    ArtifactCheck,
    Blob,
    ListedObject,
    ListingPage,
    ObjectNotFoundError,
    Range,
    S,
    SinkRead,
    Store,
    UndecryptableError,
    WrappedStore,
    WriteLeftover,
    check_path,
)
from pyspark_checkpointer.storage.encryption.artifact_check import make_artifact_check
from pyspark_checkpointer.storage.encryption.chunked import cut_ranges, merged_ranges
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys, logical_size, stored_size
from pyspark_checkpointer.storage.encryption.key_providers import KeyProvider
from pyspark_checkpointer.storage.encryption.keyring import (
    check_generation,
    check_same_generation,
    create_keys,
    find_root_keys,
    holds_others,
    open_keys,
)
from pyspark_checkpointer.storage.encryption.outer_tags import Finishing
from pyspark_checkpointer.storage.encryption.stored_names import has_fixed_salt
from pyspark_checkpointer.storage.encryption.unmoved import may_be_unmoved, refuse_unadopted, refuse_unmoved
from pyspark_checkpointer.storage.request_path import refuse_markers

T = TypeVar("T")

Encryption = KeyProvider | DataKeys
"""A provider of keys, or the opened keys themselves, as tasks have them."""


class EncryptedStore(WrappedStore):
    """`inner`, with all objects encrypted.

    The keys are opened by the first request. A root without keys reads as an empty one, and gets them by its first
    write.
    """

    def __init__(self, inner: Store, encryption: Encryption, markers: Sequence[str] = ()) -> None:
        super().__init__(inner)
        self._markers = markers
        """The markers of roots in which this client begins nothing."""
        self.provider = None if isinstance(encryption, DataKeys) else encryption
        """The provider that opens the keys; None where the keys were given."""
        self._keys = encryption if isinstance(encryption, DataKeys) else None
        self._had: DataKeys | None = None
        """The keys that were forgotten. What was written with them must not be mixed with other keys of the root."""

    async def keys(self) -> DataKeys:
        """Return the keys of the root, which are made if it is new."""
        return await self.find_keys() or await self._create_keys()

    async def find_keys(self) -> DataKeys | None:
        """Return the keys of the root; None where it has none, and nothing to read."""
        # Several requests at once may all open them. They find the same keys.
        if self._keys is None:
            assert self.provider is not None
            found = await open_keys(self.inner, self.provider)
            if found is not None and self._had is not None:
                check_same_generation(self.inner, found, self._had)
            self._keys = found
        return self._keys

    async def _create_keys(self) -> DataKeys:
        assert self.provider is not None
        self._keys = await create_keys(self.inner, self.provider)
        return self._keys

    def _forget_keys(self) -> None:
        if self.provider is not None:
            self._had, self._keys = self._keys or self._had, None

    async def _check_keys(self, keys: DataKeys) -> None:
        """Raise `InvalidStateError` where the root has other keys by now, or none.

        Asked before something begins in a root: it may have been removed since its keys were opened. Nobody could ever
        read what is written with keys that are stored nowhere.
        """
        if self.provider is None:
            return
        found = await find_root_keys(self.inner)
        if found is not None and found.root_id == keys.root_id:
            check_generation(self.inner, found, keys)
            return
        self._forget_keys()
        raise InvalidStateError(
            f"{self.url}: its {KEYS} was removed or replaced while this client was open, so nothing was written: "
            "restore again, then write"
        )

    # ---- reading -----------------------------------------------------------------------------------------------

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        keys = await self._readable(path)
        most = None if limit is None else stored_size(path, limit, keys.generation)
        try:
            blob = await self.inner.get(keys.stored_path(path), limit=most)
        except ObjectNotFoundError:
            # Without a pointer the root may have been removed, and begun anew with other keys.
            if path == object_paths.LATEST:
                self._forget_keys()
                await refuse_markers(self, self._markers)
            await refuse_unmoved(self.inner, keys, path)
            if not may_be_unmoved(keys, path):
                raise
            # Moved after it was looked for, and before it was found moved, it is there by now: it never moves back.
            blob = await self.inner.get(keys.stored_path(path), limit=most)
        try:
            data = await _compute(len(blob.data), lambda: keys.decrypt(path, blob.data))
        except UnsupportedFormatError:
            await refuse_unadopted(self.inner, keys.stored_path(path), blob.data)
            raise
        except CorruptionError as error:
            undecryptable = UndecryptableError(str(error))
            undecryptable.version = blob.version
            raise undecryptable from None
        # The version is that of the stored bytes, which a swap compares. Objects that are written once need none: where
        # it is a hash, it takes longer than to decrypt.
        return Blob(data, blob.tag if object_paths.is_written_once(path) else blob.version, blob.at)

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        keys = await self._readable(path)
        most = None if limit is None else stored_size(path, limit, keys.generation)
        sink = await self.inner.read_into(keys.stored_path(path), lambda: keys.decrypting(path, make()), limit=most)
        return await runtime.on_cpu(sink.finish)

    @property
    def reads_at_once(self) -> int:
        return self.inner.reads_at_once

    async def read_each_into(self, reads: Sequence[SinkRead[S]]) -> list[S | CheckpointError]:
        keys = await self._readable(reads[0].path)

        def stored(read: SinkRead[S]) -> SinkRead[Finishing[S]]:
            keys.check_opens(read.path)
            path, make = read.path, read.make
            most = stored_size(path, read.limit, keys.generation)
            return SinkRead(keys.stored_path(path), lambda: keys.decrypting(path, make()), most)

        found = await self.inner.read_each_into([stored(read) for read in reads])
        return await runtime.on_cpu(lambda: [_finished(answer) for answer in found])

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        keys = await self._readable(path)
        if not has_fixed_salt(path):  # Such objects are small, and are read as a whole nearly always.
            return (await self.get(path)).data[offset : offset + length]
        stored = await self.inner.get_range(keys.stored_path(path), *keys.stored_range(path, offset, length))
        return await _compute(len(stored), lambda: keys.key_for(path).decrypt_range(offset, length, stored))

    @property
    def reads_ranges(self) -> bool:
        return self.inner.reads_ranges

    async def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        keys = await self._readable(path)
        if not has_fixed_salt(path):
            data = (await self.get(path)).data
            return [data[offset : offset + length] for offset, length in ranges]
        # Ranges that lie near each other share chunks, each of which is read and decrypted once.
        spans = merged_ranges(ranges)
        found = await self.inner.get_ranges(keys.stored_path(path), [keys.stored_range(path, *span) for span in spans])

        def decrypt() -> list[bytes]:
            key = keys.key_for(path)
            contents = [key.decrypt_range(*span, stored) for span, stored in zip(spans, found, strict=True)]
            return cut_ranges(ranges, spans, contents)

        return await _compute(sum(map(len, found)), decrypt)

    async def _readable(self, path: str) -> DataKeys:
        """Return the keys of the root, or raise where they cannot read an object."""
        check_path(path)
        keys = await self.find_keys() or await self._find_late_keys()
        if keys is None:
            raise ObjectNotFoundError(f"{self.url}/{path}: not found")
        keys.check_opens(path)
        return keys

    async def artifact_check(self) -> ArtifactCheck | None:
        return make_artifact_check(self.inner, await self.find_keys())

    async def _find_late_keys(self) -> DataKeys | None:
        """Return the keys that another client made meanwhile, or None for an empty root.

        Raises `InvalidStateError` for a root without keys that holds something: that is not encrypted.
        """
        if not await holds_others(self.inner):
            return None
        # Another client may have begun the root since its keys were looked for.
        keys = await self.find_keys()
        if keys is None:
            raise InvalidStateError(
                f"{self.url}: is not encrypted, or has lost its {KEYS}. If it was encrypted, bring that back from a "
                "copy. If it never was, leave out encryption to read it, or encrypt it with `checkpointer encrypt`"
            )
        return keys

    # ---- writing -----------------------------------------------------------------------------------------------

    async def put(self, path: str, data: Bytes) -> None:
        check_path(path)
        keys = await self.keys()
        stored = await _compute(len(data), lambda: keys.encrypt(path, data))
        await self.inner.put(keys.stored_path(path), stored)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        check_path(path)
        keys = await self.keys()
        if expected is None and object_paths.begins_state(path):
            await self._check_keys(keys)
            await refuse_markers(self, self._markers)
            await refuse_unmoved(self.inner, keys, path)
        stored = await _compute(len(data), lambda: keys.encrypt(path, data))
        return await self.inner.compare_and_swap(keys.stored_path(path), stored, expected)

    # ---- listing and deleting ----------------------------------------------------------------------------------

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        keys = await self.find_keys() or await self._find_late_keys()
        if keys is None:
            return ListingPage((), None)
        if more is None:
            await refuse_unmoved(self.inner, keys, prefix)
        page = await self.inner.list_page(keys.names.stored_prefix(prefix), more)
        found = [found for entry in page.entries if (found := _listed(keys, entry)) is not None]
        return ListingPage([entry for entry in found if entry.path.startswith(prefix)], page.more)

    async def folders(self, prefix: str) -> Sequence[str]:
        keys = await self.find_keys()
        if keys is None:
            return await self.inner.folders(prefix)
        stored = await self.inner.folders(keys.names.stored_prefix(prefix))
        return sorted(folder for each in stored if (folder := keys.names.logical_folder(each)) is not None)

    async def delete(self, paths: Sequence[str]) -> None:
        keys = await self.find_keys()
        if keys is not None:  # Without keys nothing was ever written.
            for path in {path.rpartition("/")[0] + "/" for path in paths}:  # moved later, they would be there again
                await refuse_unmoved(self.inner, keys, path)
            await self.inner.delete([keys.stored_path(path) for path in paths])

    async def leftovers(self) -> Sequence[WriteLeftover]:
        keys = await self.find_keys()
        found = [] if keys is None else await self.inner.leftovers()
        return [
            replace(left, path=path)
            for left in found
            if keys is not None and (path := keys.logical_path(left.path)) is not None
        ]

    async def discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        keys = await self.find_keys()
        if keys is not None:  # Without keys nothing was ever written.
            await self.inner.discard([replace(left, path=keys.stored_path(left.path)) for left in leftovers])


def _listed(keys: DataKeys, entry: ListedObject) -> ListedObject | None:
    """Return a listed object as the layers above know it.

    Returns None for an object that is not of the encrypted root.
    """
    path = None if entry.path == KEYS else keys.logical_path(entry.path)
    if path is None:
        return None
    blob = entry.blob
    if blob is not None:  # Only small objects are told in a listing.
        try:
            blob = Blob(keys.decrypt(path, blob.data), blob.version, blob.at)
        except (CorruptionError, InvalidStateError):
            blob = None  # Whoever needs it reads it, and gets this error. Nobody else is to go without the listing.
    return ListedObject(path, logical_size(path, entry.size, keys.generation), blob)


def _finished(answer: Finishing[S] | CheckpointError) -> S | CheckpointError:
    """Return the sink that was fed, or the error of its read."""
    if isinstance(answer, CheckpointError):
        return answer
    try:
        return answer.finish()
    except CheckpointError as error:
        return error


async def _compute(size: int, work: Callable[[], T]) -> T:
    """Return the result of work on `size` bytes; in a thread if these are many."""
    return work() if size <= HASH_INLINE else await runtime.on_cpu(work)


__all__ = ["EncryptedStore", "Encryption"]
