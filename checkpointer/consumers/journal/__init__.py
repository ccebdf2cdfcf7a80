"""Where the reading of event logs stands, in one YAML file: Winlogbeat's journal, made durable and fenced."""

try:
    import yaml  # noqa: F401
except ImportError as error:
    raise ImportError(
        "pyspark_checkpointer.consumers.journal needs PyYAML: pip install 'spark-state-checkpointer[journal]'",
        name=error.name,
    ) from error

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Self

from pyspark_checkpointer import runtime
from pyspark_checkpointer.consumers.journal.file import JournalFile
from pyspark_checkpointer.consumers.journal.yaml_format import LIMIT, EventLogState, check_state, largest
from pyspark_checkpointer.consumers.write_behind import Coalescer
from pyspark_checkpointer.errors import FencedError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.shown import show
from pyspark_checkpointer.runtime.not_picklable import NotPicklable
from pyspark_checkpointer.storage import Fencing, open_store
from pyspark_checkpointer.storage.url import parse

logger = logging.getLogger("pyspark_checkpointer")


class Journal(NotPicklable):
    """The last event of each log that was dealt with, kept in a file for the next start.

    `persist` is cheap; the file is written in the background, after `max_updates` of them or `interval` after the
    first. What a failed write did not write is kept and tried again. Two journals on one file do not overwrite each
    other: the one opened last goes on, the other's writes, and then its `persist`, raise `FencedError`.
    """

    _instead = "persist in that process, from what the others return to it; one journal writes a file"

    def __init__(
        self,
        file: str | os.PathLike[str],
        max_updates: int = 10,
        interval: float | timedelta = 5.0,
        storage_options: Mapping[str, Any] | None = None,
        *,
        fencing: Fencing = "required",
    ) -> None:
        """Read the file, and write it, which proves that it can be written. Blocks.

        Args:
            file: A path, or a URL such as `s3://bucket/path/journal.yml`. Folders are made, the file's mode is 0600.
            max_updates: Updates that are written without waiting for more; what is below 1 is 1.
            interval: Seconds that an update may wait for others; what is below one is one.
            storage_options: What s3fs or adlfs takes. Never shown or logged.
            fencing: "none" also takes a file on a store without conditions on writes; nothing then keeps two journals
                from overwriting each other.

        An entry that cannot be read, such as one with a time of the year 0, costs no other entry: a warning names it,
        and so does `unreadable`.

        Raises:
            CorruptionError: Neither the file nor `<file>.previous` can be read. Where only the latter can, a warning
                is logged and `recovered_from` names it.
        """
        updates, seconds = _clamp(max_updates, interval)
        folder, name = _split(file)
        self._file = JournalFile(open_store(folder, storage_options, fencing=fencing), name)
        self._written = runtime.run_sync(self._file.open())
        self._states = dict(self._written.states)
        self._size = self._file.size
        self._room = [(name, largest(state)) for name, state in self._states.items()]  # one may be there twice
        self._warned: set[str] = set()  # event logs whose last update was passed over
        self._process = os.getpid()
        self._updates = Coalescer(
            self._write, max_updates=updates, interval=seconds, name=self._file.url, accept=self._accept
        )

    def __repr__(self) -> str:
        return f"Journal({self._file.url!r})"

    @property
    def recovered_from(self) -> str | None:
        """The previous version that this journal began with, as the file itself was not there or could not be read."""
        return self._file.recovered_from

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Entries of the file that say no state, each with the reason. They stay there until their log is persisted."""
        states = self.states()
        return tuple(entry.why for entry in self._written.unreadable if entry.name not in states)

    def persist(self, name: str, record_number: int, timestamp: datetime) -> None:
        """Note the last event of the log `name` that was dealt with. From any thread; waits for no write.

        `timestamp` without a zone is taken to be in UTC. An event with a lower record number and no later time than
        the one held is stale and changes nothing, which is logged once. After a log was cleared its numbers begin again
        at later times.
        Fields that another writer added to the event before go with it.

        Raises:
            IllegalArgumentError: A name that is no text, a number outside 0 to 2**64 - 1, or more event logs than
                a file may hold.
            FencedError: Somebody else has written the file; nothing of this journal is written any more.
            InvalidStateError: After `shutdown()`, or in a process forked from that of the journal.
        """
        self._check_process()
        if not isinstance(timestamp, datetime):
            raise IllegalArgumentError(f"timestamp: expected a datetime, found {show(timestamp)}")
        state = check_state(name, record_number, timestamp, {})
        if self._file.fenced is not None:
            raise FencedError(self._file.fenced)
        if state.name not in self._states:
            self._make_room(state)
        self._updates.put(state.name, state)

    def states(self) -> dict[str, EventLogState]:
        """Return the last event of each log, by its name: as read at the start, and as persisted since."""
        self._check_process()
        waiting = self._updates.waiting()  # first: what leaves it is in the states by then
        states = dict(self._states)
        for name, state in waiting:
            if name not in states or not _is_stale(state, states[name]):
                states[name] = state
        return states

    def flush(self) -> None:
        """Block until everything persisted before is in the file. Raises what writing it raised."""
        self._check_process()
        runtime.run_sync(self._updates.flush())

    def shutdown(self) -> None:
        """Write everything persisted, and take no more. Blocks. A second call has no effect after a first that worked.

        Raises what writing raised; then nothing is lost yet, and it may be called again.
        """
        runtime.run_sync(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _make_room(self, state: EventLogState) -> None:
        mine = state.name, largest(state)
        self._room.append(mine)  # before it is looked at: of two at once none is overlooked
        if self._size + sum(dict(self._room.copy()).values()) > LIMIT:
            self._room.remove(mine)  # one of its kind: what another thread took for the same log stays taken
            raise IllegalArgumentError(f"{self._file.url}: another event log might not fit into its {LIMIT} bytes")

    def _accept(self, name: str, state: EventLogState) -> bool:
        """Return whether this is news. On the loop, which decides of what several threads persisted in one order."""
        held = self._states.get(name)
        if held is not None and _is_stale(state, held):
            if state.record_number != held.record_number and name not in self._warned:
                self._warned.add(name)
                logger.warning(
                    "%s: event log %r: record %d of %s was persisted after record %d of %s and is passed over, as "
                    "all are that are not newer, also those of a log that was cleared while the clock was behind",
                    self._file.url,
                    name,
                    *(state.record_number, state.timestamp, held.record_number, held.timestamp),
                )
            return False
        self._warned.discard(name)
        self._states[name] = state
        return True

    async def _write(self, batch: Mapping[str, EventLogState]) -> Mapping[str, Exception]:
        content = replace(self._written, states={**self._written.states, **batch})
        await self._file.write(content)
        self._written = content
        return {}

    async def _close(self) -> None:
        try:
            await self._updates.close()
        finally:
            await self._file.close()

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise InvalidStateError(f"{self._file.url}: was opened before this process was forked; open it here")


def _is_stale(state: EventLogState, held: EventLogState) -> bool:
    if (state.record_number, state.timestamp) == (held.record_number, held.timestamp):
        return True  # and what else is known of the event stays
    return state.record_number < held.record_number and state.timestamp <= held.timestamp


def _clamp(max_updates: int, interval: float | timedelta) -> tuple[int, float]:
    if isinstance(max_updates, bool) or not isinstance(max_updates, int):
        raise IllegalArgumentError(f"max_updates={max_updates!r:.40}: expected an integer")
    seconds = interval.total_seconds() if isinstance(interval, timedelta) else interval
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not abs(seconds) <= threading.TIMEOUT_MAX:
        raise IllegalArgumentError(f"interval={interval!r:.40}: expected seconds or a timedelta")
    return max(max_updates, 1), max(float(seconds), 1.0)


def _split(file: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the folder and the name of a file, given as a path or a URL."""
    location = parse(file)
    folder, _, name = location.url.rpartition("/")
    if not name or not location.path or os.fspath(file).endswith("/"):
        raise IllegalArgumentError(f"{location.url}: names no file")
    return folder or "/", name


__all__ = ["EventLogState", "Journal"]
