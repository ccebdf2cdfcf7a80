"""Sign what is committed to a root, and check what is read.

It stands between the library and the store below, which may encrypt:

    caller
      -> SignedStore      signs manifests, `_latest` and positions; checks them before anybody reads them
      -> EncryptedStore or PlainStore, LimitedStore, S3Store, ...

All other objects are named by their digests in a manifest or in `_latest`. For all layers above, contents and sizes are
those without signatures. `manifests/SIGNATURES.md` describes what is stored.
"""

import asyncio
from collections.abc import Callable, Sequence

from pyspark_checkpointer.errors import (
    CheckpointError,
    IllegalArgumentError,
    InvalidStateError,
    UntrustedError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.manifests.signatures_json import (
    SIGNERS,
    Header,
    Signers,
    decode_signed,
    is_signed,
    logical_path,
    stored_path,
)
from pyspark_checkpointer.storage.base import (
    SWAP_LIMIT,
    Blob,
    ListedObject,
    ListingPage,
    ObjectNotFoundError,
    PreconditionFailedError,
    Range,
    S,
    Signed,
    SinkRead,
    Store,
    UndecryptableError,
    check_path,
    check_swap_size,
    read_or_error,
)
from pyspark_checkpointer.storage.signatures.rules import NotAllowedError, Rules
from pyspark_checkpointer.storage.signatures.signers import begin_signers, find_signers, holds_others, unsigned
from pyspark_checkpointer.storage.signatures.signing_keys import Signing, SigningKey
from pyspark_checkpointer.storage.signatures.versions import (
    Seen,
    SignedVersion,
    all_seen_before,
    left_commit,
    next_time,
    open_object,
    see,
    seen_before,
    sign_object,
)
from pyspark_checkpointer.storage.signed_paths import SignedPaths, as_listed


class SignedStore(SignedPaths):
    """`inner`, with signatures that are made by each write and checked by each read.

    The list of signers is read again with each object that is replaced.
    """

    def __init__(self, inner: Store, signing: Signing) -> None:
        super().__init__(inner)
        self.signing = signing
        self._rules: Rules | None = None
        self._root_id: str | None = None
        """The root that this client began with. Another one of the same owner may be put in its place."""
        self._versions: dict[str, SignedVersion] = {}

    # ---- reading -----------------------------------------------------------------------------------------------

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        if not is_signed(path):
            return await self.inner.get(path, limit=limit)
        try:
            return await self._get(path, limit)
        except UntrustedError:
            # The list and the object may be from before and after a change of the signers.
            self._rules = None
            return await self._get(path, limit)

    async def _get(self, path: str, limit: int | None) -> Blob:
        seen = seen_before(self.url, path)
        # A `_latest` of one who may not commit holds another one as a text.
        most = None if limit is None else 3 * limit + 4096
        request = self.inner.get(stored_path(path), limit=most)
        # Only what is named by digest in an object that was checked a moment ago is checked by the same list.
        known = self._rules if object_paths.is_manifest(path) else None
        if known is not None:
            return self._open(path, await request, known, seen)
        blob, rules = await asyncio.gather(request, self.read_rules(), return_exceptions=True)
        if isinstance(rules, BaseException):
            raise rules
        if rules is None and (isinstance(blob, Blob) or await holds_others(self.inner)):
            raise InvalidStateError(unsigned(self))
        if isinstance(blob, BaseException):
            if path == object_paths.LATEST:
                self._rules = None  # the root may have been removed, and begun anew with another list
            raise blob
        assert rules is not None
        return self._open(path, blob, rules, seen)

    def _open(self, path: str, blob: Blob, rules: Rules, seen: Seen) -> Blob:
        """Return the content of an object, after its signature and its age were checked."""
        content, version = open_object(self.url, path, blob, rules, seen)
        if version is not None:
            self._versions[path] = version
        # The version is that of the stored bytes, which a swap compares. Objects that are written once need none.
        return Blob(content, blob.tag if version is None else blob.version, blob.at)

    async def read_rules(self) -> Rules | None:
        """Read the list of signers; None where there is none.

        Raises `InvalidStateError` where it was removed, or is another root's, since this client read it first.
        """
        found = await find_signers(self.inner, self.signing)
        self._rules = None
        if self._root_id is not None and (found is None or found[0].root_id != self._root_id):
            raise InvalidStateError(
                f"{self.url}: its {SIGNERS} was removed or replaced while this client was open, so nothing was read or "
                "written: look who did it. If the root was begun anew, open it with a new client"
            )
        if found is not None:
            self._take(found[0])
        return self._rules

    def _take(self, signers: Signers) -> Rules:
        self._root_id = signers.root_id
        self._rules = Rules(self.signing.trust, signers)
        return self._rules

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        if not is_signed(path):
            return await self.inner.read_into(path, make, limit=limit)
        sink = make()
        sink.update((await self.get(path, limit=limit)).data)
        return sink

    @property
    def reads_at_once(self) -> int:
        return self.inner.reads_at_once

    async def read_each_into(self, reads: Sequence[SinkRead[S]]) -> list[S | CheckpointError]:
        if any(is_signed(read.path) for read in reads):
            return [await read_or_error(self, read) for read in reads]
        return await self.inner.read_each_into(reads)

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        if is_signed(path):
            return (await self.get(path)).data[offset : offset + length]
        return await self.inner.get_range(path, offset, length)

    @property
    def reads_ranges(self) -> bool:
        return self.inner.reads_ranges

    async def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        if is_signed(path):
            data = (await self.get(path)).data
            return [data[offset : offset + length] for offset, length in ranges]
        return await self.inner.get_ranges(path, ranges)

    async def signed_version(self, path: str) -> SignedVersion:
        """Return the present version of an object that is replaced, and who signed it.

        Raises `ObjectNotFoundError`.
        """
        # Nobody swaps a larger one. Whoever needs no key to put one there must not fill the memory of this process.
        await self.get(path, limit=SWAP_LIMIT)
        return self._versions[path]

    async def signed(self, path: str) -> Signed | None:
        return (await self.signed_version(path)).commit

    # ---- writing -----------------------------------------------------------------------------------------------

    async def put(self, path: str, data: Bytes) -> None:
        key, rules = await self._allowed(path)
        if is_signed(path):
            data = sign_object(rules, key, Header(key.public_key), path, bytes(data))
        await self.inner.put(stored_path(path), data)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        if not is_signed(path):
            await self._allowed(path)
            return await self.inner.compare_and_swap(path, data, expected)
        stored, rules = await self.sign_swap(path, data, expected)
        version = await self.inner.compare_and_swap(path, stored, expected)
        self._versions[path] = see(self.url, path, version, decode_signed(path, stored), rules)
        return version

    async def sign_swap(self, path: str, data: bytes, expected: str | None) -> tuple[bytes, Rules]:
        """Return a new version of an object as it is stored, before it is swapped.

        Return also the rules by which it was signed.
        """
        key, rules = await self._allowed(path)
        if expected is None:
            # Something begins. The root may have been removed since the list was read, or the signer revoked. Where
            # something is replaced, the version that is expected tells: the owner replaces it before or after the list.
            rules = await self.read_rules() or rules
            self._check_role(rules, path, key)
        before = None if expected is None else await self._version_before(path, expected)
        last_commit = None
        if path == object_paths.LATEST and not rules.may_commit(key.public_key):
            last_commit = left_commit(self.url, key, rules, data, before)
        stored = self.sign(rules, path, data, last_commit)
        check_swap_size(f"{self.url}/{path}", stored)
        return stored, rules

    def sign(self, rules: Rules, path: str, data: bytes, last_commit: str | None = None) -> bytes:
        """Return a new version of an object that is replaced, as it is stored.

        It is later than all versions that were seen.
        """
        key = self.signing.key
        assert key is not None
        at = next_time(self.url, rules, path)
        return sign_object(rules, key, Header(key.public_key, at, rules.signers.version, last_commit), path, data)

    async def check_may_write(self, path: str) -> None:
        """Raise an error where this client may not write an object."""
        await self._allowed(path)

    async def _allowed(self, path: str) -> tuple[SigningKey, Rules]:
        """Return the key and the rules for a write.

        Raises an error where this client may not make it.
        """
        check_path(path)
        key = self.signing.key
        if key is None:
            raise IllegalArgumentError(
                f"{self.url}: is signed, and this client was opened to read it: say what it signs with, as in "
                "signing='trust:owner.pub,sign:driver.pem'"
            )
        rules = self._rules or await self.read_rules()
        if rules is None:
            rules = self._take(await begin_signers(self.inner, self.signing))
        self._check_role(rules, path, key)
        return key, rules

    def _check_role(self, rules: Rules, path: str, key: SigningKey) -> None:
        """Raise `InvalidStateError` where the signer may not write this object."""
        try:
            rules.check_role(path, key.public_key)
        except NotAllowedError as error:
            self._rules = None  # the owner may have allowed it by the next time
            raise InvalidStateError(
                f"{self.url}: {path} was not written: {error}. The owner of the root changes that with `checkpointer "
                "signers`"
            ) from None

    async def _version_before(self, path: str, expected: str) -> SignedVersion | None:
        """Return the version that a swap replaces: the new one is signed as a later one.

        Returns None for one that nobody signed whose signature counts, or that nothing decrypts: that is what a repair
        replaces.
        """
        known = self._versions.get(path)
        if known is None or known.version != expected:
            try:
                known = await self.signed_version(path)
            except (UntrustedError, UndecryptableError) as error:
                if error.version == expected:
                    return None
                raise
            except ObjectNotFoundError:
                known = None
            if known is None or known.version != expected:
                raise PreconditionFailedError(f"{self.url}/{path}: has another version than was expected")
        return known

    # ---- listing and deleting ----------------------------------------------------------------------------------

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        if self._rules is None and await self.read_rules() is None and await holds_others(self.inner):
            raise InvalidStateError(unsigned(self))
        seen = all_seen_before(self.url, prefix)
        page = await self.inner.list_page(prefix, more)
        if any(entry.blob is not None and is_signed(logical_path(entry.path) or "") for entry in page.entries):
            await self.read_rules()
        return ListingPage(
            [found for entry in page.entries if (found := self._listed(entry, seen)) is not None], page.more
        )

    def _listed(self, entry: ListedObject, seen: Seen) -> ListedObject | None:
        """Return a listed object as the layers above know it.

        Return None for one that is not of the signed root.
        """
        listed = as_listed(entry)
        if listed is None or entry.blob is None or not is_signed(listed.path) or self._rules is None:
            return listed
        try:
            blob = self._open(listed.path, entry.blob, self._rules, seen)
        except UntrustedError:
            return listed  # Whoever needs it reads it, and gets this error.
        return ListedObject(listed.path, len(blob.data), blob)


__all__ = ["SignedStore"]
