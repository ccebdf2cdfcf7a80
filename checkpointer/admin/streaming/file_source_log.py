"""Check the lists of files that Spark's file source has read.

An offset of the file source is the number of an entry in `sources/<source>/`. The number does not say which files the
entry has. If an entry is lost, in a power cut or because a backup was put back, Spark makes a new entry with the same
number, from the files that exist then. So a checkpoint records a digest of the files of its offsets.
"""

import json
import re
from collections.abc import Iterable, Mapping

from pyspark_checkpointer.admin.streaming.offset_log import SOURCES, BatchOffsets, by_source
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.runtime import on_cpu
from pyspark_checkpointer.storage.base import ObjectNotFoundError, Store

_ENTRY = re.compile(r"([0-9]+)(\.compact)?")


def last_entries(sources: Iterable[str], folders: Mapping[str, str] | None = None) -> dict[str, int]:
    """Return the last entry that each file source has read, by folder name.

    `folders` has the folders of sources by their ids, as `by_source` gives them. The folder of another source has the
    name of its id.
    """
    found = {}
    for source, offset in by_source(sources).items():
        # Only sources that keep a list of files have offsets of this form.
        if match := re.fullmatch(r'\{"logOffset":([0-9]+)\}', offset):
            found[(folders or {}).get(source, source)] = int(match[1])
    return found


def digest(text: str, entry: int) -> str | None:
    """Return the SHA-256 of one entry: the paths and times of its files.

    None where `text`, a list, lacks the entry.
    """
    files = []
    for line in text.split("\n"):
        if f'"batchId":{entry}' not in line:
            continue  # A compacted list has all files that were ever read: parse only the lines that may count.
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and found.get("batchId") == entry:
            # Path and time: a file that was replaced under its old name is another input.
            files.append(json.dumps([found.get("path"), found.get("timestamp")]))
    # Sorted, so that only the files count, and not their order in the list.
    return sha256("\n".join(sorted(files)).encode()) if files else None


async def check_lists(store: Store, job: Job) -> None:
    """Raise `InvalidStateError` unless Spark's lists have the files that a batch read."""
    if job.spark is None:
        return
    recorded = job.spark.lists
    entries = _newest_entries(recorded) or last_entries(BatchOffsets.parse(job.spark.offsets).sources)
    for source, entry in entries.items():
        folder = f"{SOURCES}{source}/"
        names = [listed.path.removeprefix(folder) for listed in await store.list(folder)]
        numbers = {int(match[1]): match[0] for name in names if (match := _ENTRY.fullmatch(name))}
        reached = max(numbers, default=-1)
        if reached < entry:
            raise InvalidStateError(
                f"{store.url}/{folder}: Spark's list of files ends with {reached}, the checkpoint was made of those up "
                f"to {entry}: this is another list; put back the {SOURCES} of the query's own checkpoint"
            )
        known = recorded.get(f"{source}/{entry}")
        # Spark deletes single entries once it has compacted them, so the entry may stand only in a later compacted
        # file.
        compacted = min((n for n, name in numbers.items() if n >= entry and name.endswith(".compact")), default=reached)
        path = f"{folder}{numbers.get(entry, numbers[compacted])}"
        if known is not None and known != await _digest_of(store, path, entry):
            raise InvalidStateError(
                f"{store.url}/{path}: the files that Spark's list has as number {entry} are not those that batch "
                f"{job.batch_id} has read: it lost them, and others took that number; go back to the batch before, "
                "to read them"
            )


def _newest_entries(recorded: Iterable[str]) -> dict[str, int]:
    """Return the newest entry of each source, from names such as `<source>/<entry>`."""
    found: dict[str, int] = {}
    for name in recorded:
        source, _, entry = name.partition("/")
        found[source] = max(int(entry), found.get(source, -1))
    return found


async def _digest_of(store: Store, path: str, entry: int) -> str | None:
    """Return the digest of an entry in a file of the list; None without one.

    The file may have any size.
    """
    try:
        data = (await store.get(path)).data
    except ObjectNotFoundError:
        return None
    # In a thread: a compacted list can have all files that were ever read.
    return await on_cpu(lambda: digest(bytes(data).decode(errors="replace"), entry))
