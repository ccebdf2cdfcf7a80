"""Store positions of event logs in one YAML file.

This is Winlogbeat's journal, made durable and fenced.
"""

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
from pyspark_checkpointer.consumers.journal.yaml_format import (
    MAX_FILE_BYTES,
    EventLogState,
    check_state,
    max_entry_bytes,
)
from pyspark_checkpointer.consumers.write_behind import WriteBehind
from pyspark_checkpointer.errors import FencedError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.shown import show
from pyspark_checkpointer.runtime import forks
from pyspark_checkpointer.runtime.not_picklable import NotPicklable
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage import Fencing, open_store
from pyspark_checkpointer.storage.url import parse


class Journal(NotPicklable):
    """The last processed event of each log, kept in a file for the next start.

    `persist` is cheap: the file is written in the background, after `max_updates` calls or `interval` after the first.
    After a failed write everything is kept and tried again. Two journals on one file do not overwrite each other. The
    journal that was opened last continues. The writes of the other one raise `FencedError`, and after that its
    `persist` does too.

    Examples:
        The examples of the methods go on from here.

        >>> from datetime import UTC, datetime
        >>> from pyspark_checkpointer.consumers.journal import Journal
        >>> journal = Journal("state/journal.yml")
        >>> journal.persist("Security", 4711, datetime(2024, 1, 2, tzinfo=UTC))
        >>> journal.flush()
        >>> journal.states()["Security"].record_number
        4711
    """

    # _written    the content of the file as it was read or written last
    # _states     the last event of each log, whether it is in the file or still waits
    # _reserved   (name, bytes) for each entry that was promised a place in the file; see `_reserve_space`
    # _warned     event logs whose last update was ignored as stale

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
        """Read the file, and write it again, to prove that it can be written.

        This blocks. If an entry cannot be read, such as one with a time of the year 0, the other entries are read. A
        warning and `unreadable` name the bad entry.

        Args:
            file: A path, or a URL such as `s3://bucket/path/journal.yml`. Folders are created; the file's mode is 0600.
            max_updates: Updates after which they are written without waiting for more; at least 1.
            interval: Seconds that an update may wait for others; at least 1.
            storage_options: What s3fs or adlfs takes. Never shown or logged.
            fencing: "none" also accepts a store without conditional writes; then two journals can overwrite each other.

        Raises:
            CorruptionError: Neither the file nor `<file>.previous` can be read. If only the latter can be read, it is
                used; a warning and `recovered_from` name it.
            IllegalArgumentError: An argument is not what it must be, or `file` names no file.
            RetryableError: The store did not answer, or asked for less. Call again.
        """
        updates, seconds = _clamp(max_updates, interval)
        folder, name = _split(file)
        self._file = JournalFile(open_store(folder, storage_options, fencing=fencing), name)
        # Opened in the constructor: a file that cannot be read or written is told before anything is acknowledged.
        self._written = runtime.run_sync(self._file.open())
        self._states = dict(self._written.states)
        self._size = self._file.size
        self._reserved = [(name, max_entry_bytes(state)) for name, state in self._states.items()]
        self._warned: set[str] = set()
        self._process = forks.current
        self._updates = WriteBehind(
            self._write, max_updates=updates, interval=seconds, name=self._file.url, accept=self._accept
        )

    def __repr__(self) -> str:
        return f"Journal({self._file.url!r})"

    @property
    def recovered_from(self) -> str | None:
        """The URL of the previous version if it was read instead of the file, or None.

        The previous version is read if the file is missing or damaged.
        """
        return self._file.recovered_from

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The reasons why entries of the file could not be read.

        The entry of a log and its reason stay there until the log is persisted.
        """
        states = self.states()
        return tuple(entry.why for entry in self._written.unreadable if entry.name not in states)

    def persist(self, name: str, record_number: int, timestamp: datetime) -> None:
        """Record the last processed event of a log.

        Any thread may call it. It never waits for a write. An event is stale if its record number is lower than the
        recorded one, and its time is not later. Stale events are ignored, and the first one is logged. (After a log was
        cleared, its numbers begin again at later times.) Fields that another writer added to the recorded event are
        removed with it.

        Args:
            name: The name of the log.
            record_number: The number of the event, from 0 to 2**64 - 1.
            timestamp: The time of the event; without a zone it is taken to be in UTC.

        Raises:
            IllegalArgumentError: The name is not text, the number is out of its range, or the file has no space for
                another event log.
            FencedError: Somebody else has written the file; nothing of this journal is written any more.
            InvalidStateError: `shutdown()` was called, or this process was forked from that of the journal.

        Examples:
            >>> journal.persist("System", 12, datetime(2024, 1, 2, tzinfo=UTC))
            >>> journal.flush()
            >>> sorted(journal.states())
            ['Security', 'System']
        """
        self._check_process()
        if not isinstance(timestamp, datetime):
            raise IllegalArgumentError(f"timestamp: expected a datetime, found {show(timestamp)}")
        state = check_state(name, record_number, timestamp, {})
        # Without this, the caller would hear of it only at the next flush.
        if self._file.fenced is not None:
            raise FencedError(self._file.fenced)
        if state.name not in self._states:
            self._reserve_space(state)
        # Staleness is decided later, on the event loop: two threads could otherwise both pass the check, and the older
        # event be held last.
        self._updates.put(state.name, state)

    def states(self) -> dict[str, EventLogState]:
        """Return the last event of each log by its name.

        It is the event that was read at the start, or persisted since.

        Raises:
            InvalidStateError: This process was forked from that of the journal.

        Examples:
            >>> {name: state.record_number for name, state in journal.states().items()}
            {'Security': 4711}
        """
        self._check_process()
        waiting = self._updates.waiting()  # Read first: what leaves it afterwards is in this copy.
        states = dict(self._states)
        for name, state in waiting:
            if name not in states or not _is_stale(state, states[name]):
                states[name] = state
        return states

    def flush(self) -> None:
        """Block until everything persisted before is in the file.

        Raises:
            FencedError: Somebody else has written the file; nothing of this journal is written any more.
            RetryableError: The store did not answer, or asked for less. Call again.
            InvalidStateError: This process was forked from that of the journal.

        Examples:
            >>> journal.persist("System", 12, datetime(2024, 1, 2, tzinfo=UTC))
            >>> journal.flush()
            >>> Journal("state/journal.yml").states()["System"].record_number
            12
        """
        self._check_process()
        runtime.run_sync(self._updates.flush())

    def shutdown(self) -> None:
        """Write everything persisted, and take no more events.

        This blocks. Nothing is lost if writing fails, and it may be called again. After a success, another call does
        nothing.

        Raises:
            FencedError: Somebody else has written the file; nothing of this journal is written any more.
            RetryableError: The store did not answer, or asked for less. Call again.

        Examples:
            >>> journal.persist("System", 12, datetime(2024, 1, 2, tzinfo=UTC))
            >>> journal.shutdown()
            >>> Journal("state/journal.yml").states()["System"].record_number
            12
        """
        runtime.run_sync(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _reserve_space(self, state: EventLogState) -> None:
        """Reserve space in the file for a new log.

        Raise `IllegalArgumentError` if there may be too little.

        It takes no lock, since a signal handler may interrupt it. A thread adds its own entry before it sums up all
        entries. So if two threads do this at once, at least one sees both entries. A log may have two entries, and
        counts once.
        """
        mine = state.name, max_entry_bytes(state)
        self._reserved.append(mine)
        if self._size + sum(dict(self._reserved.copy()).values()) > MAX_FILE_BYTES:
            self._reserved.remove(mine)  # This removes one of equal entries. Another thread's stays.
            raise IllegalArgumentError(
                f"{self._file.url}: another event log might not fit into its {MAX_FILE_BYTES} bytes"
            )

    def _accept(self, name: str, state: EventLogState) -> bool:
        """Return whether the event is not stale, and hold it then.

        It runs on the event loop, so that events of several threads are compared one after the other.
        """
        held = self._states.get(name)
        if held is not None and _is_stale(state, held):
            # The same event once more is no sign of anything, so it is not logged.
            if state.record_number != held.record_number and name not in self._warned:
                self._warned.add(name)
                log_safely(
                    logging.WARNING,
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
        # All logs are in one file, so an error of a write counts for all values: it is raised, and not told for each.
        await self._file.write(content)
        self._written = content
        return {}

    async def _close(self) -> None:
        try:
            await self._updates.close()
        finally:
            await self._file.close()

    def _check_process(self) -> None:
        if self._process is not forks.current:
            raise InvalidStateError(f"{self._file.url}: was opened before this process was forked; open it here")


def _is_stale(state: EventLogState, held: EventLogState) -> bool:
    """Return whether `state` is the held event or an earlier one."""
    if (state.record_number, state.timestamp) == (held.record_number, held.timestamp):
        return True  # The held state may have more fields of the same event, which stay.
    return state.record_number < held.record_number and state.timestamp <= held.timestamp


def _clamp(max_updates: int, interval: float | timedelta) -> tuple[int, float]:
    """Return both, raised to at least 1; the interval in seconds."""
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
