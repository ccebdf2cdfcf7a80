"""Spark's lists of files: an offset of its file source is the number of an entry, in `sources/<source>/`.

A number does not say which files. An entry that is lost, with a backup that is put back or in a power cut, is made anew
of the files that are there then, under the same number. So a checkpoint records a digest of what its offsets stand for.
"""

import json
import re
from collections.abc import Iterable

from checkpointer.errors import InvalidStateError
from checkpointer.query.spark_log import SOURCES, Offsets, read_text
from checkpointer.store.base import Store
from manifests.digest import sha256
from manifests.model import Job

_OFFSET = re.compile(r'(?:([A-Za-z_][A-Za-z0-9_]*):)?\{"logOffset":([0-9]+)\}')


def last_entries(sources: Iterable[str]) -> dict[str, int]:
    """The entry up to which each file source is read, by its folder: a number, or the name that the query gave it."""
    found = (_OFFSET.fullmatch(line) for line in sources)
    return {match[1] or str(number): int(match[2]) for number, match in enumerate(found) if match}


def digest(text: str, entry: int) -> str | None:
    """SHA-256 of one entry's files, their paths and times; None where `text`, a file of the list, has none of it."""
    files = []
    for line in text.split("\n"):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue  # its version
        if isinstance(found, dict) and found.get("batchId") == entry:
            files.append(json.dumps([found.get("path"), found.get("timestamp")]))
    return sha256("\n".join(sorted(files)).encode()) if files else None


async def check_lists(store: Store, job: Job) -> None:
    """Refuse lists of files in a `checkpointLocation` that are not those a batch has read."""
    if job.spark is None:
        return
    for source, entry in last_entries(Offsets.parse(job.spark.offsets).sources).items():
        folder = f"{SOURCES}{source}/"
        names = [listed.path.removeprefix(folder) for listed in await store.list(folder)]
        numbers = {int(match[1]): match[0] for name in names if (match := re.fullmatch(r"([0-9]+)(\.compact)?", name))}
        reached = max(numbers, default=-1)
        if reached < entry:
            raise InvalidStateError(
                f"{store.url}/{folder}: Spark's list of files ends with {reached}, the checkpoint was made of those up "
                f"to {entry}: this is another list; put back the {SOURCES} of the query's own checkpoint"
            )
        recorded = job.spark.lists.get(f"{source}/{entry}")
        if recorded is None:
            continue
        compacted = min((n for n, name in numbers.items() if n >= entry and name.endswith(".compact")), default=reached)
        path = f"{folder}{numbers.get(entry, numbers[compacted])}"
        if digest(await read_text(store, path) or "", entry) != recorded:
            raise InvalidStateError(
                f"{store.url}/{path}: Spark's list of files has others as number {entry} than batch {job.batch_id} has "
                f"read: it lost that entry, and made it anew; go back to the batch before, to read them"
            )
