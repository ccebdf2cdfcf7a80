"""Read packs: objects with changes of several partitions."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests.model import DELTA, Artifact
from pyspark_checkpointer.table import large_rows, local_copies, merge, parquet_decode
from pyspark_checkpointer.table.key_filter import SoughtKeys
from pyspark_checkpointer.table.local_copies import LocalCopies
from pyspark_checkpointer.table.object_files import ObjectFiles
from pyspark_checkpointer.table.parquet_encode import LARGE_PACK_BYTES
from pyspark_checkpointer.table.schema import CHANGE, OWN_COLUMNS, PARTITION
from pyspark_checkpointer.table.version import TableVersion

ROWS_PER_KEY = 32
"""Changes of a pack for each key that is sought, from which its filter is asked.

With more keys, the filter finds a key in most blocks, whether it is there or not.
"""

FEW_KEYS = 100
"""The most keys for which a filter is asked whether the pack holds none of them.

A filter errs for one key of 170.
"""

HUGE_PACK_BYTES = 8 << 20
"""The size of a pack, in bytes, from which it has no local copy, and few are fetched and decoded at once.

A verification reads all objects from this size on in pieces (`TableReader.object_rows`).
"""

MAX_CONCURRENT_PACK_READS = 2
"""The most huge packs that are fetched and decoded at the same time. A chain may have many."""


class _Pack(NamedTuple):
    """Changes of a pack, in order of their partitions.

    `counts` has the least and the most changes that each partition can have in the pack, before keys were left out.
    They are the same where all changes of the partition were read.
    """

    rows: pa.Table
    counts: Mapping[int, tuple[int, int]]


class Packs:
    """A reader of the packs of one version.

    Each pack is fetched and decoded once for all of its partitions. With `keys`, only changes of these keys are held in
    memory.

    Life of a pack: the first reader of a partition in the pack begins to fetch it (`_tasks`). The other readers wait
    for the same task. The last expected reader (`_expected_reads`) drops the pack.
    """

    def __init__(
        self,
        files: ObjectFiles,
        version: TableVersion,
        keys: pa.Table | None,
        copies: LocalCopies | None,
        reads: Mapping[int, int] | None,
    ) -> None:
        self._files = files
        self._host = files.host
        self._schema = files.schema
        self._version = version
        self._keys = None if keys is None else SoughtKeys(keys, version.schema.key, version.partitions)
        self._copies = copies
        self._huge_packs = asyncio.Semaphore(MAX_CONCURRENT_PACK_READS)
        self._tasks: dict[str, asyncio.Task[_Pack]] = {}
        # The first artifact of a chain is the snapshot. It is fetched by itself, or not at all where it is empty.
        self._expected_reads = Counter[str]()
        """The number of reads of each pack that are still to come, by path."""
        self._rows = Counter[str]()
        """The number of changes of the version in each pack, by path."""
        for partition, chain in version.chains.items():
            for artifact in chain[1:]:
                self._expected_reads[artifact.path] += 1 if reads is None else reads[partition]
                self._rows[artifact.path] += artifact.records

    def expect(self, artifacts: Iterable[Artifact]) -> None:
        """Say which deltas will be read, before the first of them is.

        By default they are all deltas of the version. A pack of which a delta is expected, and not read, stays in
        memory.
        """
        self._expected_reads = Counter(artifact.path for artifact in artifacts)

    async def delta(self, artifact: Artifact, partition: int) -> pa.Table:
        """Return the changes of one partition from a pack.

        The pack is fetched once for all partitions.
        """
        task = self._tasks.get(artifact.path)
        if task is None:
            task = self._tasks[artifact.path] = asyncio.ensure_future(self._pack(artifact))
        # Counted before the wait: a reader that is cancelled has to count too, or nobody would be the last one, and
        # the pack would stay in memory.
        self._expected_reads[artifact.path] -= 1
        if self._expected_reads[artifact.path] <= 0:
            del self._tasks[artifact.path]  # If it is read again, it is fetched again.
        # One reader that is cancelled must not cancel the fetch that others wait for.
        pack = await asyncio.shield(task)
        least, most = pack.counts.get(partition, (0, 0))
        # SPEC (Tables): each artifact says how many rows of the pack are its own. Fewer would be changes lost. A
        # reader of some blocks knows only bounds of that number, and that these blocks are as they were written.
        if artifact.kind != DELTA or not least <= artifact.records <= most:
            found = f"found {least}" if least == most else f"there are {least} to {most}"
            raise CorruptionError(
                f"{artifact.path}: expected {artifact.records} rows of partition {partition}, {found}"
            )
        start, end = np.searchsorted(pack.rows[PARTITION].to_numpy(), [partition, partition + 1])
        return pack.rows.slice(start, end - start)

    async def _pack(self, artifact: Artifact) -> _Pack:
        """Fetch and decode the changes of a pack that this reader wants.

        They are of all partitions of this version in the pack, and maybe of others, or of the wanted keys alone.
        """
        copies = self._copies if artifact.size < HUGE_PACK_BYTES else None
        if copies is not None and (copied := await self._copied_pack(artifact, copies)) is not None:
            return copied
        async with self._huge_packs if artifact.size >= HUGE_PACK_BYTES else nullcontext():
            most = self._rows[artifact.path] // ROWS_PER_KEY
            if (found := await self._some(artifact, most, artifact.size // 2)) is not None:
                return found
            decode = await self._fetch_pack(artifact)
            return await self._host.run(lambda: self._hold(decode()))

    async def _copied_pack(self, artifact: Artifact, copies: LocalCopies) -> _Pack | None:
        """Return the changes of a pack from its local copy.

        Returns None where there is no room for a copy. The copy is made first if there is none, unless the filter says
        that the pack has none of a few keys.
        """
        whole = self._version.schema
        name = local_copies.name_of(artifact.digest, whole, [*whole.names, PARTITION, CHANGE])
        mapped = await self._host.run(partial(copies.get, name))
        if mapped is not None:
            # A mapped copy takes no memory of this process, so that all of its changes stay.
            return _Pack(self._chosen(mapped), _counts(mapped))
        if not copies.has_room(artifact.raw_size, name):
            return None
        if (found := await self._some(artifact, FEW_KEYS, 0)) is not None:
            return found
        data = await self._files.data(artifact)

        def decode() -> _Pack:
            rows = parquet_decode.decode_pack(artifact.path, data, whole, whole.names, None)
            copies.put(name, rows)
            return self._hold(self._chosen(rows))

        return await self._host.run(decode)

    async def _some(self, artifact: Artifact, most_keys: int, most_bytes: int) -> _Pack | None:
        """Return the changes of the wanted keys, if they are few bytes of the pack.

        Returns None if they take more than `most_bytes`. It also returns None for more than `most_keys` keys: to ask
        the filter is then not worth the time.
        """
        keys = self._keys
        if keys is None or keys.keys.num_rows > most_keys or artifact.tail is None or artifact.size < LARGE_PACK_BYTES:
            return None
        groups = await self._files.open_filter(artifact)
        chosen = await self._host.run(partial(groups.select_changes, keys))
        if chosen is None or sum(length for _, length in chosen.ranges) > most_bytes:
            return None
        found = await self._files.fetch(artifact, chosen.ranges)

        def read() -> _Pack:
            rows = chosen.decode(found, self._schema.names)
            return _Pack(self._of_keys(rows), groups.counts(list(self._version.chains)))

        return await self._host.run(read)

    def _chosen(self, changes: pa.Table) -> pa.Table:
        """Return the columns of this reader, and those of a delta."""
        return changes.select([n for n in changes.column_names if n in self._schema.names or n in OWN_COLUMNS])

    def _hold(self, rows: pa.Table) -> _Pack:
        """Return the part of a pack that stays in memory.

        With `keys` this is only their changes, but the counts of all.
        """
        # Counted before rows of other keys are left out, as the manifest counts all of them.
        counts = _counts(rows)
        return _Pack(self._of_keys(rows), counts)

    def _of_keys(self, rows: pa.Table) -> pa.Table:
        if self._keys is not None:
            rows = merge.matching(rows, self._keys.keys, self._schema.key)
        return large_rows.combine_chunks(rows)

    async def _fetch_pack(self, artifact: Artifact) -> Callable[[], pa.Table]:
        """Fetch a pack, or those row groups of it that are needed.

        Return a function that decodes them.
        """
        names, wanted = self._schema.names, list(self._version.chains)
        if artifact.tail is not None and artifact.size >= LARGE_PACK_BYTES:
            groups = await self._files.open(artifact)
            some = groups.of_partitions(wanted)
            size = sum(groups.ranges[group][1] for group in some)
            if 2 * size <= artifact.size:  # Else one request for the whole pack is faster.
                chosen = groups.select(some, changes=True)
                found = await self._files.fetch(artifact, chosen.ranges)
                return lambda: chosen.decode(found, names)
        data = await self._files.data(artifact)
        return lambda: parquet_decode.decode_pack(artifact.path, data, self._schema, names, wanted)


def _counts(changes: pa.Table) -> dict[int, tuple[int, int]]:
    """Return the number of changes of each partition."""
    numbers = changes[PARTITION].to_numpy()
    # A pack is in order of its partitions, so that nothing needs to be sorted. One that is not is still counted right.
    starts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1])) if len(numbers) else np.empty(0, np.int64)
    counts: Counter[int] = Counter()
    for start, end in pairwise([*starts.tolist(), len(numbers)]):
        counts[int(numbers[start])] += end - start
    return {partition: (count, count) for partition, count in counts.items()}


__all__ = ["HUGE_PACK_BYTES", "Packs"]
