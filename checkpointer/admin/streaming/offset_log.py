"""The folder that Spark keeps for a streaming query, its `checkpointLocation`, as far as this library knows it.

    metadata              which query this is
    offsets/<batch>       up to where a batch reads each source; written before the batch runs
    commits/<batch>       the batch is finished
    sources/…             what some sources remember
    state/…               what Spark's own stateful operators hold
    rewound/<number>/…    what a rewind took out; this library's, Spark does not look at it

A query that starts again runs the last batch of `offsets/` once more unless `commits/` has it too, from where the batch
before it ended. So the two newest files of `offsets/` and the newest of `commits/` say how far it is; what an offset
means, some sources have in `sources/`.
"""

import asyncio
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.storage import Fencing, open_files
from pyspark_checkpointer.storage.base import ObjectNotFoundError, Store

METADATA, OFFSETS, COMMITS, SOURCES, STATE = "metadata", "offsets/", "commits/", "sources/", "state/"

MAX_FILE = 64 << 20
"""Bytes of a file of Spark's that are read at once; offsets of very many partitions are some megabytes."""


class Offsets(NamedTuple):
    """A file of `offsets/`: a version, what Spark notes of the batch (JSON), then a line for each source."""

    version: str
    metadata: str
    sources: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """`ValueError` where it is not such a file."""
        version, *rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")  # as Spark parts lines
        if not rest or not re.fullmatch(r"v[0-9]+", version):
            raise ValueError("expected a version, a line of metadata, and one for each source")
        return cls(version, rest[0], tuple(rest[1:]))

    def __str__(self) -> str:
        return "\n".join([self.version, self.metadata, *self.sources])

    @property
    def watermark(self) -> int:
        """In milliseconds since the epoch; 0 where there is none."""
        try:
            return int(json.loads(self.metadata)["batchWatermarkMs"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return 0


def same_offsets(some: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether two lists of offsets say the same, however their JSON is written."""
    some, others = list(some), list(others)
    return some == others or list(map(_value, some)) == list(map(_value, others))


def parts(line: str) -> tuple[str, str]:
    """Return the source's name or number that the line of a newer version begins with, else nothing; and its offset."""
    name, colon, offset = line.partition(":")
    return (name, offset) if colon and re.fullmatch(r"[A-Za-z0-9_]+", name) else ("", line)


def _value(line: str) -> Any:
    name, offset = parts(line)
    try:
        return name, json.loads(offset)
    except (ValueError, RecursionError):
        return line


@dataclass(frozen=True, slots=True)
class SparkLog:
    """What is in a `checkpointLocation`: names only, but for that of the query."""

    url: str
    query_id: str
    offsets: tuple[int, ...]
    """The batches that have a file there."""
    commits: tuple[int, ...]
    operators: tuple[str, ...]
    """Spark's own stateful operators, by name."""

    @property
    def finished(self) -> int | None:
        """The last batch that Spark counts as done."""
        return max(self.commits, default=None)

    def has_finished(self, job: Job | None) -> bool:
        """Return whether a batch is one of this query that Spark counts as done."""
        last = self.finished
        return job is not None and job.query_id == self.query_id and last is not None and job.batch_id <= last

    def check_belongs(self, job: Job) -> None:
        if self.query_id != job.query_id:
            raise InvalidStateError(
                f"{self.url}: is the checkpoint of query {self.query_id}, the state is of query {job.query_id}, at "
                f"batch {job.batch_id}: give the checkpointLocation of that query"
            )

    def check_stateless(self, what: str) -> None:
        """Refuse a query that holds state which this library does not have."""
        if self.operators:
            raise InvalidStateError(
                f"{self.url}: Spark itself holds state of this query ({', '.join(self.operators)}), which only goes "
                f"forward with its batches, so the query cannot be {what} exactly: keep that state in tables of this "
                "library, or aggregate in the foreachBatch function"
            )


def open_log(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, fencing: Fencing = "none"
) -> Store:
    """The store of a `checkpointLocation`. Nothing in it is swapped.

    With `fencing="required"` only new files are put, where the store can refuse others.
    """
    return open_files(location, storage_options, fencing)


async def read_log(store: Store) -> SparkLog:
    """List a `checkpointLocation`. `IllegalArgumentError` where it is none."""
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
    """Return the same as text; `InvalidStateError` where it is none."""
    data = await read_file(store, path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        raise InvalidStateError(f"{store.url}/{path}: is no text: restore this file, or start a new query") from None


async def read_offsets(store: Store, path: str) -> Offsets | None:
    text = await read_text(store, path)
    try:
        return None if text is None else Offsets.parse(text)
    except ValueError as error:
        raise InvalidStateError(f"{store.url}/{path}: {error}: restore this file, or start a new query") from None


async def query_id_of(store: Store) -> str | None:
    """Return what `metadata` says; None where it does not."""
    try:
        found = json.loads(await read_text(store, METADATA) or "null")["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


async def _batches(store: Store, folder: str) -> tuple[int, ...]:
    names = [entry.path.removeprefix(folder) for entry in await store.list(folder)]
    return tuple(sorted(int(name) for name in names if name.isdecimal() and name == str(int(name))))


async def _stateful(store: Store) -> tuple[str, ...]:
    """Return one folder for each operator; what they hold may be very much, and is not listed."""
    folders = [folder for folder in await store.folders(STATE) if folder.split("/")[1].isdecimal()]
    return tuple(sorted(set(await asyncio.gather(*(_operator(store, folder) for folder in folders)))))


async def _operator(store: Store, folder: str) -> str:
    """Return the name that Spark gives the operator, where it wrote one down."""
    for entry in await store.list(f"{folder}_metadata/"):
        with suppress(InvalidStateError):  # a checksum
            for line in (await read_text(store, entry.path) or "").splitlines():
                with suppress(ValueError, KeyError, TypeError, RecursionError):
                    return str(json.loads(line)["operatorInfo"]["operatorName"])
    return f"operator {folder.split('/')[1]}"
