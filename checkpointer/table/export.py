"""Export the tables and maps of one checkpoint as plain Parquet files.

    TARGET/<operator>/part-00000.parquet …    the merged rows of one partition each; of a map columns `key` and `value`
    TARGET/_checkpoint.json                   which checkpoint it is, and what was written; written last

The objects of a store hold old rows, changes and deletions of many checkpoints. Here every row stands once, so that all
files of a folder together are the table.
"""

import json
import logging
from collections.abc import AsyncIterator, Collection
from dataclasses import asdict, dataclass
from io import BytesIO

import pyarrow as pa

from pyspark_checkpointer.checkpoint.latest import read_consistent
from pyspark_checkpointer.checkpoint.resolve import read_live
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import ConflictError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.codecs import kind_of
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime.host import Progress, tell
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import ObjectExistsError, Store, is_empty
from pyspark_checkpointer.table.parquet_file import PlainRows, RowKind, open_writer

EXPORT_MARKER = "_checkpoint.json"


@dataclass(frozen=True, slots=True)
class ExportedOperator:
    """The files of a table or map that was exported."""

    name: str
    kind: RowKind
    folder: str
    rows: int
    files: int


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export: the checkpoint and the files of each operator."""

    id: CheckpointId
    """The checkpoint."""
    epoch: int | None
    """Its epoch, such as Spark's batch id, or None."""
    target: str
    """The folder that was written, without secrets."""
    operators: tuple[ExportedOperator, ...]
    """What was written of each operator: rows, files and bytes."""
    left_out: tuple[str, ...]
    """Operators that hold bytes in the job's own format, not a table."""


async def export_parquet(
    session: Session,
    what: CheckpointSelector,
    target: Store,
    operators: Collection[str] | None,
    progress: Progress | None,
) -> Exported:
    """Write a live checkpoint to an empty folder, and close the target.

    One partition is in memory at a time.
    """
    try:
        return await _export(session, what, target, operators, progress)
    finally:
        await target.close()


async def _export(
    session: Session,
    what: CheckpointSelector,
    target: Store,
    operators: Collection[str] | None,
    progress: Progress | None,
) -> Exported:
    # The list of operators comes from one checkpoint, and cleanup does not delete live objects. The marker comes last:
    # a folder without it is not a whole export.
    ref, manifest = await read_consistent(session.store, lambda head: read_live(session, head, what))
    reader = CheckpointReader(session, manifest, None)
    wanted = _choose(reader, operators)
    # All files of a folder together are the table: older files would add rows of another checkpoint.
    if not await is_empty(target, ""):
        raise InvalidStateError(f"{target.url}: is not empty, and nothing is overwritten: give a new folder")
    total = sum(len(reader.operator(name).chains) for name in wanted)
    done = 0
    written = []
    for name, kind in wanted.items():
        folder = object_paths.encode_name("operator", name)
        rows = files = 0
        async for partition, table in _partitions(reader, name, kind):
            path = f"{folder}/part-{partition:05d}.parquet"
            await _put(target, path, await session.host.run(lambda t=table: _encode(t)))  # type: ignore[misc]
            rows, files, done = rows + table.num_rows, files + 1, done + 1
            # An operator without partitions still gives one file, which the total does not count.
            await tell(session.host, progress, min(done, total), total)
        written.append(ExportedOperator(name, kind, folder, rows, files))
    left = tuple(sorted(manifest.operators.keys() - wanted.keys())) if operators is None else ()
    made = Exported(ref.id, manifest.epoch, target.url, tuple(written), left)
    await _put(target, EXPORT_MARKER, json.dumps(asdict(made) | {"id": str(ref.id)}, indent=2).encode())
    log_safely(logging.INFO, "%s: wrote %s as Parquet to %s", session.store.url, ref.id, target.url)
    return made


async def _put(target: Store, path: str, data: bytes) -> None:
    try:
        await target.put(path, data)
    # Two exports may have found the folder empty. A put never overwrites, so the first one's files stay.
    except ObjectExistsError:
        raise ConflictError(f"{target.url}/{path}: was written meanwhile, and is kept: give a new folder") from None


def _choose(reader: CheckpointReader, operators: Collection[str] | None) -> dict[str, RowKind]:
    """Return the operators to write, with their kinds.

    These are all tables and maps, or those asked for.
    """
    known = reader.manifest.operators if reader.manifest else {}
    names = sorted(known) if operators is None else list(dict.fromkeys(operators))
    kinds = {name: kind_of(reader.operator(name)) for name in names}
    if operators is not None and (raw := [name for name, kind in kinds.items() if kind == "bytes"]):
        raise IllegalArgumentError(f"operator {raw[0]!r}: holds the job's own bytes, which are no table: use `cat`")
    found: dict[str, RowKind] = {name: kind for name, kind in kinds.items() if kind != "bytes"}
    if not found:
        raise IllegalArgumentError(f"{reader.store.url}: the checkpoint has no table and no map to write as Parquet")
    return found


async def _partitions(reader: CheckpointReader, name: str, kind: RowKind) -> AsyncIterator[tuple[int, pa.Table]]:
    """Yield each partition that has rows, with its rows.

    An empty operator yields one table without rows.
    """
    numbers = sorted(reader.operator(name).chains)
    rows = PlainRows(reader, name, kind, numbers)
    empty, some = None, False
    # A folder without any file would tell its readers nothing about the columns.
    for partition in numbers or [0]:
        table = await rows.read(partition)
        if table.num_rows:
            some = True
            yield partition, table
        else:
            empty = table
    if not some and empty is not None:
        yield 0, empty


def _encode(table: pa.Table) -> bytes:
    buffer = BytesIO()
    with open_writer(buffer, table.schema) as writer:
        writer.write_table(table)
    return buffer.getvalue()
