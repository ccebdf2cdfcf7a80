"""The file of a journal and the version before it, `<file>.previous`; both are replaced by compare-and-swap only.

* the version that is about to be replaced becomes the previous one first, then the file is replaced: wherever that is
  cut off, the file is whole and says what was acknowledged last, or what was being written;
* a file that cannot be read never becomes the previous one, and its bytes are put aside before it is replaced;
* every content is unique, so no version comes back, and a swap tells whether somebody else wrote since this journal
  read;
* a swap whose answer was lost is decided by reading back.
"""

import logging
from contextlib import suppress

from pyspark_checkpointer import runtime
from pyspark_checkpointer.consumers.journal.yaml_format import Content, decode, encode
from pyspark_checkpointer.errors import (
    ConflictError,
    CorruptionError,
    FencedError,
    MalformedError,
)
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.runtime.host import SystemHost
from pyspark_checkpointer.storage import SWAP_LIMIT, Blob, ObjectExistsError, Store
from pyspark_checkpointer.storage.compare_and_swap import UndecidedError, decide, find
from pyspark_checkpointer.storage.conditional_write_check import probe

logger = logging.getLogger("pyspark_checkpointer")

MAX_ATTEMPTS = 20
"""How often the file is read again because others wrote it meanwhile."""


class JournalFile:
    """A file that this journal alone replaces, from what it read on. Used on the library's loop only."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name, self._previous_name = name, f"{name}.previous"
        self.url = f"{store.url.rstrip('/')}/{name}"
        self._host = SystemHost()
        self.recovered_from: str | None = None
        self.fenced: str | None = None
        self._version: str | None = None
        self._whole: bytes | None = None  # what the file holds, unless that is nothing or damaged
        self._previous: Blob | None = None
        self._sent: set[str] = set()  # digests of what may have replaced `_version` without an answer

    async def open(self) -> Content:
        """What the file holds, read and written again. From now on another journal's writes show as conflicts."""
        for _ in range(MAX_ATTEMPTS):
            content = await self._read()
            with suppress(FencedError):  # somebody else opened it just now, or wrote for the last time
                await self.write(content)
                self._warn(content)
                return content
        raise ConflictError(f"{self.url}: others wrote it {MAX_ATTEMPTS} times in a row while it was opened; stop them")

    async def _read(self) -> Content:
        current, self._previous = await self._get(self._name), await self._get(self._previous_name)
        self.recovered_from = self.fenced = self._whole = None
        self._version = None if current is None else current.version
        self._sent.clear()
        if current is None and self._previous is None:
            await probe(self._store)
            return Content({}, {})
        try:
            content = await self._decode(self._name, current)
        except CorruptionError as damage:
            return await self._recover(current, damage)
        if content.unreadable and not content.states and await self._previous_has_states():
            # The file is whole, and the version before says more. Where that says nothing either, this is all there is.
            url, why = self.url, content.unreadable[0].why
            return await self._recover(current, MalformedError(f"{url}: no entry can be read: {why}"))
        self._whole = None if current is None else current.data
        return content

    async def _previous_has_states(self) -> bool:
        with suppress(CorruptionError):
            return bool((await self._decode(self._previous_name, self._previous)).states)
        return False

    async def _recover(self, current: Blob | None, damage: CorruptionError) -> Content:
        try:
            content = await self._decode(self._previous_name, self._previous)
        except CorruptionError as error:
            raise CorruptionError(
                f"{damage}; and {error}: nothing was written; put a copy of either in its place, or remove both to "
                "begin anew"
            ) from None
        kept = ""
        if current is not None and current.data:
            aside = f"{self._name}.damaged-{sha256(current.data)[:16]}"
            with suppress(ObjectExistsError):  # from an opening that was cut off
                await self._store.put(aside, current.data)
            kept = f"; what was there is kept in {aside}"
        self.recovered_from = f"{self.url}.previous"
        logger.warning(
            "%s: going on from the version before, %s (remove it too to begin anew)%s",
            damage,
            self.recovered_from,
            kept,
        )
        return content

    def _warn(self, content: Content) -> None:
        for entry in content.unreadable:
            logger.warning(
                "%s: %s: this entry is passed over, the other %d were read; it stays in the file until its event log "
                "is persisted: correct it there while the journal is stopped",
                self.url,
                entry.why,
                len(content.states),
            )

    async def write(self, content: Content) -> None:
        """Replace the file, durably. Raises `FencedError` if it is not what this journal left there."""
        if self.fenced is not None:
            raise FencedError(self.fenced)
        data = await runtime.on_cpu(encode, content, self._host.now(), self._host.token(16))
        await self._keep_previous()
        while True:
            self._sent.add(sha256(data))
            found = self._check_mine(await self._swap(self._name, data, self._version))
            self._version, self._whole = found.version, found.data
            if found.data == data:
                self._sent.clear()
                return

    async def _keep_previous(self) -> None:
        for _ in range(MAX_ATTEMPTS):
            if self._whole is None or (self._previous is not None and self._previous.data == self._whole):
                return
            expected = None if self._previous is None else self._previous.version
            self._previous = await self._swap(self._previous_name, self._whole, expected)
            if self._previous is None or self._previous.data != self._whole:
                self._check_mine(await self._get(self._name))
        raise ConflictError(f"{self.url}.previous: others change it all the time; stop them")

    def _check_mine(self, current: Blob | None) -> Blob:
        if current is not None and (current.version == self._version or sha256(current.data) in self._sent):
            return current
        self.fenced = (
            f"{self.url}: was {'removed' if current is None else 'written'} by somebody else since this journal read "
            "it; nothing of theirs was overwritten; stop this one, or open a new Journal to go on from what is there"
        )
        raise FencedError(self.fenced)

    async def _swap(self, path: str, data: bytes, expected: str | None) -> Blob | None:
        """What is at `path` once a swap was decided: `data`, durably, or what somebody else left there."""
        try:
            return await decide(self._store, path, data, expected, SWAP_LIMIT)
        except UndecidedError as undecided:
            if undecided.__cause__ is None:
                raise
            raise undecided.__cause__ from None  # nothing is given up: the next flush decides it

    async def _get(self, path: str) -> Blob | None:
        return await find(self._store, path, SWAP_LIMIT)

    async def _decode(self, name: str, blob: Blob | None) -> Content:
        shown = f"{self._store.url.rstrip('/')}/{name}"
        if blob is None:
            raise MalformedError(f"{shown}: is not there")
        return await runtime.on_cpu(decode, shown, blob.data)

    @property
    def size(self) -> int:
        """Bytes of the file as written last."""
        return len(self._whole or b"")

    async def close(self) -> None:
        await self._store.close()


__all__ = ["JournalFile"]
