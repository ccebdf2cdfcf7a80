"""Find the rows of a table that have expired by some time.

Only parts that may hold such a row are read.

bounds of the times in each row group → row groups that may hold a due row → merged with all changes → rows that are due
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import pyarrow as pa

from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.manifests.model import DELTA, Artifact
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.table import kept_columns, large_rows, merge
from pyspark_checkpointer.table.combine import SumOverflowError
from pyspark_checkpointer.table.expiry import is_expired
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.snapshots import Part, has_parts
from pyspark_checkpointer.table.time_bounds import lowest, may_hold

T = TypeVar("T")

MAX_LOWEST_TIMES = 1 << 16
"""The most objects of which a process remembers the lowest time."""

_lowest_times: dict[tuple[str, int], int | None] = {}
"""The lowest time in an object, by the verified digest of its tail and the id of the column.

The objects of a table are the same in many batches, and none of them ever changes.
"""


async def due_rows(reader: TableReader, partition: int, column: str, limit: int) -> pa.Table:
    """Return the living rows of a partition whose time in a column is at most `limit`.

    They have all columns of the reader, which has to read that column. `limit` is in microseconds since 1970. Raises
    what `reader.rows` raises.
    """
    version, schema = reader.version, reader.schema
    chain = version.chains.get(partition, ())
    if not chain:
        return schema.arrow().empty_table()
    deltas = await asyncio.gather(*(reader.packs.delta(artifact, partition) for artifact in chain[1:]))

    def due(below: pa.Table) -> pa.Table:
        with large_rows.explain_arrow_errors(version.name, partition):
            merged = merge.apply(below, kept_columns.concat(deltas), schema, version.name) if deltas else below
            living = version.living(merged)
            return living.filter(is_expired(living[column], limit))

    base = chain[0]
    below = await _below(reader, base, column, limit)
    try:
        found = await reader.host.run(lambda: due(below))
        # Some changes have no row in `below`: their row was not read, or was not due by itself. Only a change and its
        # row together tell the time.
        known = merge.row_positions(found, below, schema.key) >= 0
        if known.all() or not has_parts(base):
            return found
        (rest,) = await reader.lookup([(base, found.filter(pa.array(~known)).select(schema.key))])
        below = pa.concat_tables([below, rest])
    except SumOverflowError:
        # Sums of changes alone may outgrow their type, and fit together with the rows below.
        below = await reader.snapshots.whole(base)
    return await reader.host.run(lambda: due(below))


async def late_rows(
    reader: TableReader, partition: int, added: Sequence[Artifact] | None, column: str, limit: int
) -> pa.Table:
    """Return the rows of a partition that a batch wrote with a time that had passed.

    `added` are the artifacts that the batch put on top, or None if it wrote all of the chain. The version of the reader
    takes no row for expired. Else as `due_rows`.
    """
    keys = None if added is None else await reader.changed_keys(partition, added)
    rows = await reader.rows(partition, keys)
    return await reader.host.run(lambda: rows.filter(is_expired(rows[column], limit)))


async def may_be_due(reader: TableReader, column: str, limit: int) -> list[int]:
    """Return the partitions that may have an expired row.

    Such a row has a time in a column that is at most `limit`. The time of a row is one of the times in the objects of
    its chain, however these are combined. So the bounds of all row groups tell, and nothing else is read. `limit` is in
    microseconds since 1970. Raises `CorruptionError` for bounds that fail verification.
    """
    chains = reader.version.chains
    artifacts = (artifact for chain in chains.values() for artifact in chain)
    times = await _ask_once(artifacts, lambda artifact: _lowest(reader, artifact, column))
    old = {path for path, time in times.items() if time is None or time <= limit}
    return [number for number, chain in chains.items() if any(artifact.path in old for artifact in chain)]


async def most_living(reader: TableReader, looked: Mapping[int, int], column: str, limit: int) -> dict[int, int]:
    """Return the most rows that may be living in some partitions.

    The bounds of row groups alone tell it. `looked` says how many of the first artifacts of each chain are looked at.
    The others are looked at only if all rows of these are past: else all of their rows count as living. So do those of
    an object that cannot be read, and a warning says so: a batch may not need that object. A row is expired if its time
    in a column is at most `limit`.
    """
    chains = reader.version.chains
    unread: dict[str, CheckpointError] = {}
    past: dict[str, int] = {}

    async def past_rows(artifact: Artifact) -> int:
        try:
            return await _past_rows(reader, artifact, column, limit)
        except CheckpointError as error:
            unread[artifact.path] = error
            return 0

    def living(artifacts: Iterable[Artifact]) -> int:
        # Whatever changes do to a living row, one of the rows that count here has its time.
        return sum(one.records - min(one.records, past.get(one.path, 0)) for one in artifacts)

    past |= await _ask_once((one for number, count in looked.items() for one in chains[number][:count]), past_rows)
    further = [number for number, count in looked.items() if not living(chains[number][:count])]
    others = [one for number in further for one in chains[number][looked[number] :] if one.path not in past]
    past |= await _ask_once(others, past_rows)
    if unread:
        log_safely(
            logging.WARNING,
            "table %r: rows that expired were not looked for in objects that cannot be read (%d), such as: %s",
            reader.version.name,
            len(unread),
            next(iter(unread.values())),
        )
    return {number: living(chains[number]) for number in looked}


async def _ask_once(artifacts: Iterable[Artifact], ask: Callable[[Artifact], Awaitable[T]]) -> dict[str, T]:
    """Return the answer for each object that artifacts have rows in, by path.

    An object that several partitions share is asked about once.
    """
    objects = {artifact.path: artifact for artifact in artifacts if artifact.length}
    return dict(zip(objects, await asyncio.gather(*map(ask, objects.values())), strict=True))


async def _past_rows(reader: TableReader, artifact: Artifact, column: str, limit: int) -> int:
    """Return how many rows of the object of an artifact are surely past.

    Their times are at most `limit`.

    Of a pack these are all rows or none: its row groups do not tell which partitions they have rows of.
    """
    # Mostly no row of an object is past, and its lowest time is remembered longer than its tail.
    time = await _lowest(reader, artifact, column)
    if time is None or time > limit:
        return 0
    groups = await reader.files.open(artifact)
    past = groups.past_rows(column, limit)
    return past if artifact.kind != DELTA or past == groups.metadata.num_rows else 0


async def _lowest(reader: TableReader, artifact: Artifact, column: str) -> int | None:
    """Return the lowest time in an object; None if only its rows tell it."""
    if artifact.tail is None:
        return None
    name = artifact.tail.digest, next(c.id for c in reader.schema.columns if c.name == column)
    with suppress(KeyError):  # Another thread may clear them at any time.
        return _lowest_times[name]
    time = lowest((await reader.files.open(artifact)).times(column))
    if len(_lowest_times) >= MAX_LOWEST_TIMES:
        _lowest_times.clear()
    _lowest_times[name] = time
    return time


async def _below(reader: TableReader, base: Artifact, column: str, limit: int) -> pa.Table:
    """Return the rows of a snapshot that are due before its changes.

    Of a snapshot that cannot be read in parts, all rows are returned.
    """
    if not has_parts(base):
        return await reader.snapshots.whole(base)
    rule = reader.version.schema.expire
    # Rows that have expired by the same column are not living, so only later times are looked for. A rule by another
    # column says nothing about this one.
    after = reader.version.expired_until if rule is not None and rule.column == column else None
    # Rows that are not due are left out here. `due_rows` looks those up again that a change needs.
    part = Part(
        base,
        lambda groups: groups.select(
            [n for n, bounds in enumerate(groups.times(column)) if may_hold(bounds, after, limit)]
        ),
        lambda rows: rows.filter(is_expired(rows[column], limit)),
    )
    (found,) = await reader.snapshots.parts([part])
    return found


__all__ = ["due_rows", "late_rows", "may_be_due", "most_living"]
