"""Read a streaming query's `checkpointLocation`, the folder that Spark keeps.

    metadata              which query this is
    offsets/<batch>       up to where a batch reads each source; written before the batch runs
    commits/<batch>       the batch is finished
    sources/…             what some sources remember
    state/…               what Spark's own stateful operators hold
    rewound/<number>/…    what a rewind of this library took out; Spark does not look at it

A query that starts again repeats the last batch of `offsets/`, unless `commits/` has it too. The batch begins where the
batch before it ended. So the two newest files of `offsets/` and the newest file of `commits/` say how far the query is.
Some sources keep the meaning of an offset in `sources/`.
"""

import asyncio
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job, SparkProgress
from pyspark_checkpointer.storage.base import ObjectNotFoundError, Store

METADATA, OFFSETS, COMMITS, SOURCES, STATE = "metadata", "offsets/", "commits/", "sources/", "state/"

NO_OFFSET = "-"
"""The offset that Spark writes for a source that has not been read yet."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MAX_FILE = 64 << 20
"""Bytes that a file of Spark's may have to be read.

Offsets of very many partitions have some megabytes.
"""


class BatchOffsets(NamedTuple):
    """A file of `offsets/`: a version, metadata (JSON), and a line for each source."""

    version: str
    metadata: str
    sources: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the offsets in a file. Raises `ValueError` if it has none."""
        # Spark splits lines at these three, and at none of the others that `splitlines` knows.
        version, *rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if not rest or not re.fullmatch(r"v[0-9]+", version):
            raise ValueError("expected a version, a line of metadata, and one for each source")
        return cls(version, rest[0], tuple(rest[1:]))

    def __str__(self) -> str:
        return "\n".join([self.version, self.metadata, *self.sources])

    @property
    def has_metadata(self) -> bool:
        """Return whether the line of metadata is a JSON object, as Spark needs it."""
        try:
            return isinstance(json.loads(self.metadata), dict)
        except (ValueError, RecursionError):
            return False

    @property
    def watermark(self) -> int:
        """Return the watermark in milliseconds since the epoch; 0 where there is none."""
        try:
            return int(json.loads(self.metadata)["batchWatermarkMs"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return 0

    @property
    def time(self) -> datetime | None:
        """Return the time that Spark recorded for the batch; None if there is none.

        Spark recorded it before it ran the batch for the first time. Spark uses it again when it repeats the batch.
        """
        try:
            milliseconds = json.loads(self.metadata)["batchTimestampMs"]
            return _EPOCH + timedelta(milliseconds=milliseconds) if type(milliseconds) is int else None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None


def same_offsets(some: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether two lists of offsets are equal, however their JSON is written.

    Sources that have names may be in any order.
    """
    some, others = list(some), list(others)
    return some == others or _parse_sources(some) == _parse_sources(others)


def by_source(lines: Iterable[str]) -> dict[str, str]:
    """Return the offset of each source by its id.

    Version 2 of a file of offsets has the id of a source before its offset. In version 1 the id is the number of the
    line.
    """
    lines = list(lines)
    # An offset of JSON has colons of its own, but never a plain name before the first one.
    named = [match for line in lines if (match := re.fullmatch(r"([A-Za-z0-9_]+):(.*)", line))]
    found = {match[1]: match[2] for match in named}
    # An offset that is no JSON can look like a named one, but hardly all of them, with different names.
    return found if len(found) == len(lines) else {str(number): line for number, line in enumerate(lines)}


def returned_sources(last: SparkProgress, lines: Iterable[str]) -> dict[str, str]:
    """Return the sources that batches before the last one read, with their offsets.

    Only the sources of `lines` count. The offsets are those that these batches reached. Spark knows the offsets of two
    batches. It continues with a source that only the last one lacks. It reads any other source that a query had left
    out from its beginning.
    """
    there, known = by_source(lines), by_source(last.before)
    return {name: offset for name, offset in last.gone.items() if name in there and name not in known}


def _parse_sources(lines: Iterable[str]) -> dict[str, Any]:
    """Return offsets as values, by the ids of their sources.

    The values are equal for equal JSON.
    """
    return {source: _parse(offset) for source, offset in by_source(lines).items()}


def _parse(offset: str) -> Any:
    try:
        return [json.loads(offset)]
    except (ValueError, RecursionError):
        # An offset that is no JSON is compared as text.
        return offset


@dataclass(frozen=True, slots=True)
class SparkLog:
    """The contents of a `checkpointLocation`.

    They are the id of the query, and the numbers of its batches.
    """

    url: str
    query_id: str
    offsets: tuple[int, ...]
    """The batches that have a file in `offsets/`, in order."""
    commits: tuple[int, ...]
    """The batches that have a file in `commits/`, in order."""
    operators: tuple[str, ...]
    """Spark's own stateful operators, by name."""

    @property
    def finished(self) -> int | None:
        """Return the last batch that Spark has finished; None where there is none."""
        return max(self.commits, default=None)

    def has_finished(self, job: Job | None) -> bool:
        """Return whether the batch of a job is one of this query that Spark has finished."""
        last = self.finished
        return job is not None and job.query_id == self.query_id and last is not None and job.batch_id <= last

    def check_belongs(self, job: Job) -> None:
        """Raise `InvalidStateError` where the checkpoint belongs to another query."""
        if self.query_id != job.query_id:
            raise InvalidStateError(
                f"{self.url}: is the checkpoint of query {self.query_id}, the state is of query {job.query_id}, at "
                f"batch {job.batch_id}: give the checkpointLocation of that query"
            )

    def check_stateless(self, what: str) -> None:
        """Raise `InvalidStateError` where Spark holds state that this library does not."""
        if self.operators:
            raise InvalidStateError(
                f"{self.url}: Spark itself holds state of this query ({', '.join(self.operators)}), which only goes "
                f"forward with its batches, so the query cannot be {what} exactly: keep that state in tables of this "
                "library, or aggregate in the foreachBatch function"
            )


async def read_log(store: Store) -> SparkLog:
    """Read the progress in a `checkpointLocation`.

    Raises `IllegalArgumentError` if the folder is no `checkpointLocation`.
    """
    query_id, offsets, commits, stateful = await asyncio.gather(
        query_id_of(store), _batches(store, OFFSETS), _batches(store, COMMITS), _stateful(store)
    )
    if query_id is None:
        raise IllegalArgumentError(
            f"{store.url}: expected a checkpointLocation of Spark: its file `metadata` is not there, or names no "
            "query; if it was moved, say where it is: spark_checkpoint=…, or --spark-checkpoint on the command line"
        )
    return SparkLog(store.url, query_id, offsets, commits, stateful)


async def read_file(store: Store, path: str) -> bytes | None:
    """Return a file of Spark's; None where there is none."""
    try:
        return (await store.get(path, limit=MAX_FILE)).data
    except ObjectNotFoundError:
        return None


async def read_text(store: Store, path: str) -> str | None:
    """Return a file of Spark's as text; None where there is none.

    Raises `InvalidStateError` where it is no text.
    """
    data = await read_file(store, path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        raise InvalidStateError(f"{store.url}/{path}: is no text: restore this file, or start a new query") from None


async def read_offsets(store: Store, path: str) -> BatchOffsets | None:
    """Return a file of offsets; None where there is none.

    Raises `InvalidStateError` where it is damaged.
    """
    text = await read_text(store, path)
    try:
        return None if text is None else BatchOffsets.parse(text)
    except ValueError as error:
        raise InvalidStateError(f"{store.url}/{path}: {error}: restore this file, or start a new query") from None


async def query_id_of(store: Store) -> str | None:
    """Return the query's id from `metadata`.

    None where that file is missing or has none.
    """
    try:
        found = json.loads(await read_text(store, METADATA) or "null")["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


async def _batches(store: Store, folder: str) -> tuple[int, ...]:
    """Return the batches that have a file in a folder, in order."""
    names = [entry.path.removeprefix(folder) for entry in await store.list(folder)]
    # Temporary files, checksums and other spellings of a number are not Spark's batches.
    return tuple(sorted(int(name) for name in names if name.isdecimal() and name == str(int(name))))


async def _stateful(store: Store) -> tuple[str, ...]:
    """Return the names of Spark's stateful operators.

    Their folders may hold very much and are not listed.
    """
    folders = [folder for folder in await store.folders(STATE) if folder.split("/")[1].isdecimal()]
    return tuple(sorted(set(await asyncio.gather(*(_operator(store, folder) for folder in folders)))))


async def _operator(store: Store, folder: str) -> str:
    """Return the name that Spark gives the operator, where it wrote one down."""
    for entry in await store.list(f"{folder}_metadata/"):
        with suppress(InvalidStateError):  # The file may be a checksum, which is no text.
            for line in (await read_text(store, entry.path) or "").splitlines():
                with suppress(ValueError, KeyError, TypeError, RecursionError):
                    return str(json.loads(line)["operatorInfo"]["operatorName"])
    return f"operator {folder.split('/')[1]}"
