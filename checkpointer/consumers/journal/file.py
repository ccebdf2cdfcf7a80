"""Read and write the file of a journal, and its last version `<file>.previous`.

Both are replaced by compare-and-swap only.

* A write first copies the present version to `.previous`, then replaces the file. Even if that is interrupted, the
  file is whole: it has what was acknowledged last, or what was being written.
* A file that cannot be read is never copied to `.previous`, and its bytes are saved under another name before it is
  replaced.
* Every content is unique, so a swap fails if anybody else wrote since this journal read the file, even if they wrote
  the same states.
* The outcome of a swap without an answer is found out by reading the file.
"""

import logging
from contextlib import suppress

from pyspark_checkpointer import runtime
from pyspark_checkpointer.consumers.journal.yaml_format import JournalContent, decode, encode
from pyspark_checkpointer.errors import (
    ConflictError,
    CorruptionError,
    FencedError,
    MalformedError,
)
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.runtime.host import SystemHost
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage import SWAP_LIMIT, Blob, ObjectExistsError, Store
from pyspark_checkpointer.storage.compare_and_swap import UndecidedError, find_object, swap_until_decided
from pyspark_checkpointer.storage.conditional_write_check import probe

MAX_ATTEMPTS = 20
"""Number of times that the file is read again if somebody else wrote it."""


class JournalFile:
    """A file that only this journal replaces after it has read it.

    It is used on the library's event loop only. `recovered_from` is the URL of the previous version, if that was used;
    `fenced` is why nothing is written any more.
    """

    # _version       the version of the file that was read or written last; None if there is no file
    # _intact_data   the bytes of that version, unless it is missing or damaged
    # _previous      the object `.previous`, as it was read or written last
    # _unanswered    digests of writes that got no answer, and may have replaced `_version`

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name, self._previous_name = name, f"{name}.previous"
        self.url = f"{store.url.rstrip('/')}/{name}"
        self._host = SystemHost()
        self.recovered_from: str | None = None
        self.fenced: str | None = None
        self._version: str | None = None
        self._intact_data: bytes | None = None
        self._previous: Blob | None = None
        self._unanswered: set[str] = set()

    async def open(self) -> JournalContent:
        """Read the file, and write it again.

        The writes of an older journal fail from then on.
        """
        for _ in range(MAX_ATTEMPTS):
            content = await self._read()
            # Only this library writes `.previous`, on a store that it has probed. Without it, the file may be another
            # program's.
            if self._previous is None:
                await probe(self._store)
            # Somebody else may open the file at this moment, or write for the last time: read it again.
            with suppress(FencedError):
                await self.write(content)
                self._warn(content)
                return content
        raise ConflictError(
            f"{self.url}: other programs wrote it {MAX_ATTEMPTS} times in a row while it was opened; stop them"
        )

    async def _read(self) -> JournalContent:
        """Return the content of the file.

        If the file is missing or damaged, return the content of the previous version.
        """
        current, self._previous = await self._get(self._name), await self._get(self._previous_name)
        # Until the file is known to be intact it has no data here, so a damaged one is never copied to `.previous`.
        self.recovered_from = self.fenced = self._intact_data = None
        self._version = None if current is None else current.version
        self._unanswered.clear()
        if current is None and self._previous is None:
            return JournalContent({}, {})
        try:
            content = await self._decode(self._name, current)
        except CorruptionError as damage:
            return await self._recover(current, damage)
        if content.unreadable and not content.states and await self._previous_has_states():
            # The file is whole and has no readable entry. The previous version is used only if it has one.
            url, why = self.url, content.unreadable[0].why
            return await self._recover(current, MalformedError(f"{url}: no entry can be read: {why}"))
        self._intact_data = None if current is None else current.data
        return content

    async def _previous_has_states(self) -> bool:
        with suppress(CorruptionError):
            return bool((await self._decode(self._previous_name, self._previous)).states)
        return False

    async def _recover(self, current: Blob | None, damage: CorruptionError) -> JournalContent:
        """Return the content of the previous version.

        The damaged file is saved under another name.
        """
        try:
            content = await self._decode(self._previous_name, self._previous)
        except CorruptionError as error:
            raise CorruptionError(
                f"{damage}; and {error}: nothing was written; put a copy of one in its place, or remove "
                "both to begin without states"
            ) from None
        kept = ""
        # There is nothing to save of a missing or empty file.
        if current is not None and current.data:
            # Named by its content, so an opening that is tried again saves it once.
            aside = f"{self._name}.damaged-{sha256(current.data)[:16]}"
            with suppress(ObjectExistsError):  # An earlier opening was interrupted after it had saved the file.
                await self._store.put(aside, current.data)
            kept = f"; the damaged file is kept as {aside}"
        self.recovered_from = f"{self.url}.previous"
        log_safely(
            logging.WARNING,
            "%s: going on from the previous version, %s (to begin without states, remove it too)%s",
            damage,
            self.recovered_from,
            kept,
        )
        return content

    def _warn(self, content: JournalContent) -> None:
        for entry in content.unreadable:
            log_safely(
                logging.WARNING,
                "%s: %s: this entry is passed over, the other %d were read; it stays in the file until its "
                "event log is persisted; to correct it, stop the journal first",
                self.url,
                entry.why,
                len(content.states),
            )

    async def write(self, content: JournalContent) -> None:
        """Replace the file, durably.

        Raise `FencedError` if anybody else has written or removed it.
        """
        if self.fenced is not None:
            raise FencedError(self.fenced)
        data = await runtime.on_cpu(encode, content, self._host.now(), self._host.token(16))
        # First the copy, then the file: a crash in between leaves the file as it is, and whole.
        await self._keep_previous()
        while True:
            # Noted before the swap: if this call ends without an answer, the request may still land, and is this
            # journal's own.
            self._unanswered.add(sha256(data))
            found = self._check_mine(await self._swap(self._name, data, self._version))
            # What was found may be an earlier write of this journal that landed late. It is then the version to swap on
            # next.
            self._version, self._intact_data = found.version, found.data
            if found.data == data:
                self._unanswered.clear()
                return

    async def _keep_previous(self) -> None:
        """Copy the present version of the file to `.previous`.

        Do nothing if that version is damaged, or is there already.
        """
        for _ in range(MAX_ATTEMPTS):
            if self._intact_data is None or (self._previous is not None and self._previous.data == self._intact_data):
                return
            expected = None if self._previous is None else self._previous.version
            self._previous = await self._swap(self._previous_name, self._intact_data, expected)
            # Somebody changed `.previous`. Before this journal tries again, it makes sure that it was not overtaken.
            if self._previous is None or self._previous.data != self._intact_data:
                self._check_mine(await self._get(self._name))
        raise ConflictError(f"{self.url}.previous: other programs change it all the time; stop them")

    def _check_mine(self, current: Blob | None) -> Blob:
        """Return the file as it was found.

        Raise `FencedError`, now and for good, if this journal did not write it.
        """
        if current is not None and (current.version == self._version or sha256(current.data) in self._unanswered):
            return current
        # Remembered for good: what this journal holds rests on a version that is gone, so it must not win a later swap.
        self.fenced = (
            f"{self.url}: was {'removed' if current is None else 'written'} by somebody else since this journal read "
            "it; their file was not overwritten; stop this journal, or open a new Journal to continue from their file"
        )
        raise FencedError(self.fenced)

    async def _swap(self, path: str, data: bytes, expected: str | None) -> Blob | None:
        """Swap the object at `path`, and return it as it is afterwards.

        It is `data`, durably, or what somebody else wrote.
        """
        try:
            return await swap_until_decided(self._store, path, data, expected, SWAP_LIMIT)
        except UndecidedError as undecided:
            if undecided.__cause__ is None:
                raise
            # Nothing is lost: the values are kept, and the next flush finds out what became of this swap.
            raise undecided.__cause__ from None

    async def _get(self, path: str) -> Blob | None:
        return await find_object(self._store, path, SWAP_LIMIT)

    async def _decode(self, name: str, blob: Blob | None) -> JournalContent:
        shown = f"{self._store.url.rstrip('/')}/{name}"
        if blob is None:
            raise MalformedError(f"{shown}: is not there")
        return await runtime.on_cpu(decode, shown, blob.data)

    @property
    def size(self) -> int:
        """Bytes of the file as it was read or written last; 0 if it is damaged."""
        return len(self._intact_data or b"")

    async def close(self) -> None:
        """Release connections."""
        await self._store.close()


__all__ = ["JournalFile"]
