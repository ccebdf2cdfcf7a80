"""Decide when chains are folded or replaced by a snapshot.

This is decided only here, by pure functions of sizes. These modules ask, and carry out the decision:

- `checkpoint/save_bytes.py` asks for opaque bytes: `opaque_fold_start`.
- `keyed/partition.py` asks for keyed states: `has_shrunk` and `keyed_delta`.
- `spark/table_changes.py` asks what a batch compacts of a table: `table_compactions`, `compactions_left` and
  `all_compactions`.
- `spark/table_jobs.py` asks what the driver compacts, and what tasks do: `within_bytes`; what is compacted before
  the next batch needs it: `early_compactions`; and what is compacted because rows have expired:
  `artifacts_to_look_at` and `expiry_compactions`.
- `spark/write_tasks.py` and `table/migration.py` ask which partitions of a table share an object: `is_small_partition`.
- `checkpoint/metadata.py` asks for the lists of chains in manifests: `fits_in_manifest`, `unchanged_beyond_manifest`
  and `segment_fold_start`. It hands the answers to `manifests/segments.py`, which decides nothing.
- `admin/forecast_operators.py` asks what a job will ask, to forecast costs: `keyed_delta`, `table_compactions`, and
  `admin/forecast.py` those of manifests.

`spark/table_jobs.py`, `table/reader.py` and `table/parquet_encode.py` write snapshots by sizes that are defined here
too. A forecast counts with these sizes, and needs neither Spark nor Arrow.

To fold is to make one delta of several. To compact a chain is to put one artifact in the place of its last ones: a
folded delta, or a snapshot. `…_start` and `…_compactions` return the index of the first delta or artifact to fold or
compact. Everything before this index stays.

Each function states its rule and the cost of the rule. If you change a rule, also change `docs/concepts.md`,
`docs/cost.md` and `manifests/PROTOCOL.md` (Segments).
"""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from pyspark_checkpointer.manifests.model import Chain

SMALL_PARTITION = 4096
SMALL_BYTES = 8 << 20
"""Rows, and bytes of them in memory, below which a partition is small.

A small partition shares an object with others, even as a snapshot.
"""

COMPACT_ROWS = 65_536
COMPACT_BYTES = 64 << 20
"""Changed rows of a partition, and bytes of them, that are merged cheaply.

Below these limits, merging in each read costs less than a snapshot.
"""

MAX_DELTA_BYTES = 512 << 20
"""Largest number of bytes of a partition's deltas.

A reader of the partition has all of them in memory.
"""

INLINE = 512
"""The most chains that the manifest itself holds."""

INLINE_DELTAS = 128
"""The most deltas of all chains that the manifest itself holds.

If `DELTAS_OF_CHANGE` for each changed chain is more, that is the limit.
"""

DELTAS_OF_CHANGE = 12
"""Deltas for each chain that a commit changes.

With more of them, the commit would write many deltas that it does not change.
"""

INLINE_UNCHANGED = 512
"""The most artifacts of operators that a commit does not change that the manifest itself holds.

If `DELTAS_OF_CHANGE` for each changed chain is more, that is the limit. Those of operators with fewer than
`SMALLEST_UNCHANGED` do not count.
"""

SMALLEST_UNCHANGED = 9
"""The fewest artifacts of an operator that get a segment though a commit does not change them.

The reference to a segment takes as many bytes as about two artifacts. So with any number of operators, a manifest is at
most about four times as large as with a segment for each. And a small map of 8 partitions never costs a request.
"""

SEGMENT_FAN_OUT = 4
"""Number of segments of one tier that are folded into one of the next."""

DRIVER_BYTES = 16 << 20
"""Stored bytes that the driver reads to compact chains itself, and a quarter of what their rows take in memory.

Tasks compact the other chains. The driver also writes changes of a batch itself, up to a quarter of this, as Arrow.
"""

STREAMED_SNAPSHOT_BYTES = 64 << 20
"""The size in memory from which a table's snapshot is read piece by piece.

Such a snapshot is also merged piece by piece, and not as a whole.
"""

ROW_GROUP_ROWS = 16_384
"""The most rows of a row group, which is the smallest piece."""

# ---- chains of any kind ----------------------------------------------------------------------------------------------


def fold_start(sizes: Sequence[int], limit: int) -> int:
    """Return the index of the first delta to fold; the rest follow it.

    `sizes` has the size of each delta, the newest last. All deltas from that index on become one.

    Sizes are in any unit that is the same for all: stored bytes for opaque bytes, raw bytes (before compression) for
    keyed states, rows for tables.

    Rule: nothing is folded (the newest delta stays alone) while there are at most `limit` deltas. Then the newest delta
    is folded with the deltas before it, one by one, as long as the next one is at most twice as large as the folded
    ones. More are folded if that is needed to stay within `limit`.

    Cost: each further delta makes the object at least half as large again. So a delta is written again about as often
    as the logarithm of the number of deltas after it. It is written more often only if `limit` is below that logarithm.
    A reader fetches at most `limit` deltas.
    """
    first = len(sizes) - 1
    if len(sizes) <= limit:
        return first
    gathered = sizes[first]
    # What is folded is one object, so `first + 1` objects are left.
    while first > 0 and (first >= limit or sizes[first - 1] <= 2 * gathered):
        first -= 1
        gathered += sizes[first]
    return first


# ---- opaque bytes ----------------------------------------------------------------------------------------------------


def opaque_fold_start(objects: Sequence[Sequence[int]], size: int, max_chain: int, *, is_stored: bool = False) -> int:
    """Return the index of a partition's first delta to fold.

    It is folded with a new delta of `size` bytes that comes on top. If the new delta is stored already (`is_stored`),
    the older ones are folded without it, and become an object below it.

    `objects` has the sizes of the deltas above the snapshot, oldest first, one sequence for each object. All sizes are
    stored bytes.

    Rule: that of `fold_start`, for whole objects. Folding never makes a snapshot: only the caller can merge opaque
    bytes. The snapshot is one of the `max_chain` objects of a chain, and a delta that is stored already is another. A
    chain always has room for one object of deltas. A single object is not folded without the new delta.

    Cost: that of `fold_start`. A fold joins bytes and drops none, so a chain grows until the caller saves a snapshot.
    """
    sizes = [sum(deltas) for deltas in objects]
    # At least one, since `max_chain` may be 2.
    first = fold_start([*sizes, size], max(max_chain - (2 if is_stored else 1), 1))
    # To write one object again would leave as many objects as before.
    if is_stored and len(objects) - first < 2:
        first = len(objects)
    return sum(map(len, objects[:first]))


# ---- keyed states ----------------------------------------------------------------------------------------------------


def room_for_delta(snapshot: int, deltas: Sequence[int]) -> int:
    """Return how many bytes the next delta of a keyed partition may have.

    If it has more, a snapshot is written.

    All sizes are raw bytes, before compression; that of the next delta is an estimate.

    Rule: the deltas of a partition together are at most half as large as its snapshot.

    Cost: a restore reads at most one and a half times the snapshot. Each changed byte costs at most about three bytes
    of a later snapshot.
    """
    return snapshot // 2 - sum(deltas)


def has_shrunk(records: int, keys: int) -> bool:
    """Return whether a keyed partition has shrunk to less than half of its snapshot.

    The snapshot has `records` entries. The partition has `keys` now, without expired ones. Also asked of a table's
    chain, whose rows have expired.

    Rule: then a snapshot is written, also if nothing else changed in the partition. So after a save the snapshot of
    each partition has at most twice as many entries as the partition.

    Cost: at most one entry is written for each entry of the old snapshot that was deleted or has expired. That one is
    not in the new snapshot, so it counts once. Entries are counted and not bytes, as nobody adds up the bytes of a
    partition. So a value that became smaller is an entry as before. Where a few large entries stay and many small ones
    go, the large ones are written again each time the number of entries is halved.
    """
    return 2 * keys < records


def changes_all(changed: int, keys: int) -> bool:
    """Return whether a snapshot has no more entries than the next delta.

    The partition is a keyed one. `changed` keys were set or deleted, and the partition has `keys` now.

    Rule: then a snapshot is written, unless keys were deleted and the delta is smaller all the same: what was not
    changed may be large.

    Cost: none. The snapshot is no larger than the delta, and readers no longer need the objects below it.
    """
    return changed >= keys


def keyed_fold_start(deltas: Sequence[int], size: int, max_chain: int) -> int:
    """Return the index of a keyed partition's first delta to fold.

    It is folded with a new delta of `size` bytes.

    All sizes are raw bytes, as in `room_for_delta`.

    Rule and cost: those of `fold_start`. The snapshot is one of the `max_chain` objects of a chain.
    """
    return fold_start([*deltas, size], max_chain - 1)


class KeyedDelta(NamedTuple):
    """Describe the delta that is written of a keyed partition."""

    first: int
    """The index of the first delta to fold with the new one."""
    size: int
    """The bytes of the delta to write, with those that are folded into it."""


def keyed_delta(
    snapshot: int,
    deltas: Sequence[int],
    new: Iterable[int],
    max_chain: int,
    *,
    records: int,
    changed: int,
    keys: int,
    whole: Iterable[int] | None = None,
) -> KeyedDelta | None:
    """Return the delta to write of a keyed partition; None to write a snapshot.

    `new` has the sizes of parts of the new delta. They are added up only until it is clear that the delta has no room.
    The old snapshot has `records` entries. `changed` of the partition's `keys` were set or deleted. If some may have
    been deleted, `whole` has the sizes of parts of a new snapshot. These are added up only if `changes_all` says that
    the snapshot has no more entries than the delta, and only until it is clear that it is larger. All sizes are raw
    bytes, as in `room_for_delta`.

    Rule: a snapshot is written if the partition `has_shrunk`, if the new delta is larger than `room_for_delta`, or if
    `changes_all` says so and the snapshot is no larger than the delta. Else the new delta is folded with those from
    `keyed_fold_start` on.

    Cost: that of these four.
    """
    if has_shrunk(records, keys):
        return None
    has_no_more_entries = changes_all(changed, keys)
    if has_no_more_entries and whole is None:
        return None
    size = _add_up(new, room_for_delta(snapshot, deltas))
    if size is None or (has_no_more_entries and whole is not None and _add_up(whole, size) is not None):
        return None
    first = keyed_fold_start(deltas, size, max_chain)
    return KeyedDelta(first, size + sum(deltas[first:]))


def _add_up(parts: Iterable[int], limit: int) -> int | None:
    """Return the sum of sizes, or None as soon as it is more than `limit`."""
    total = 0
    for part in parts:
        total += part
        if total > limit:
            return None
    return None if total > limit else total  # Even no bytes are more than a limit below 0.


# ---- tables ----------------------------------------------------------------------------------------------------------


def table_compactions(
    chains: Mapping[int, Chain], max_chain: int, partitions: int, *, coming: int = 0
) -> dict[int, int]:
    """Return the index of the first artifact to compact, for each chain to compact.

    The result is by partition. 0 is the snapshot: then a new one is written. `coming` is the number of deltas that each
    chain will get before the answer is carried out.

    Rule: a chain that is too long ends in a snapshot if its deltas outweigh half of the old one, else its newest deltas
    are folded. The limit is up to a third lower for some partitions than for others, because all of them would reach
    the same limit in the same batch. Deltas that outweigh the snapshot by many rows or bytes do not wait for the limit.
    Such partitions are compacted over several batches, the most overdue first. Each gets its snapshot within
    `max_chain` batches, and no single batch has to write them all. All partitions whose deltas reach `MAX_DELTA_BYTES`
    get a snapshot, however large the old one is.

    Cost: a changed row is written again about as often as `fold_start` says. Apart from partitions that wait for their
    turn, what a reader merges is less than `COMPACT_ROWS` and `COMPACT_BYTES`, or at most half of the snapshot.
    """
    found, outweighed = {}, []
    steps = max(1, max_chain // 3)
    for partition, (snapshot, *deltas) in chains.items():
        sizes = [artifact.records for artifact in deltas]
        changed = sum(sizes)
        snapshot_bytes, delta_bytes = snapshot.raw_size, sum(artifact.raw_size for artifact in deltas)
        # Above 1 the deltas are overdue. Deltas of at most half the snapshot are never due: a new snapshot would write
        # at least twice as much as they hold.
        due = max(
            changed / COMPACT_ROWS if 2 * changed > snapshot.records else 0,
            delta_bytes / COMPACT_BYTES if 2 * delta_bytes > snapshot_bytes else 0,
        )
        # At least one, as a single delta is not folded.
        limit = max(1, max_chain - 1 - partition % steps - coming)
        # First, because this one is a limit of memory, and the others are about cost.
        if delta_bytes >= MAX_DELTA_BYTES:
            found[partition] = 0
        elif len(deltas) > limit:
            outweighs = 2 * changed > snapshot.records or due >= 1
            # It shares an object with others then.
            small = is_small_partition(snapshot.records + changed, snapshot_bytes + delta_bytes)
            # One more than the deltas that stay: the snapshot below them stays too.
            found[partition] = 0 if outweighs and not small else 1 + fold_start(sizes, limit)
        elif due >= 1:
            outweighed.append((due, partition))
    return found | {
        partition: 0 for _, partition in sorted(outweighed, reverse=True)[: math.ceil(partitions / max_chain)]
    }


def compactions_left(chains: Mapping[int, Chain], max_chain: int, turn: Iterable[int]) -> dict[int, int]:
    """Return what a batch has to compact after chains were compacted early.

    The result has the form of `table_compactions`. `turn` has the partitions that `early_compactions` left to the
    batch.

    Rule: these partitions get their snapshot, and the chains at a limit are compacted. Nothing else is compacted, since
    `early_compactions` has chosen whose turn it is.

    Cost: that of `table_compactions`.
    """
    return table_compactions(chains, max_chain, 0) | dict.fromkeys(turn, 0)


def all_compactions(chains: Mapping[int, Chain], *, has_expiry: bool) -> dict[int, int]:
    """Return what to compact if the user asks to compact a table.

    The result has the form of `table_compactions`.

    Rule: each partition with deltas gets a snapshot. If rows expire (`has_expiry`), all partitions do, since a snapshot
    alone may also hold expired rows.

    Cost: the whole table may be written again.
    """
    return {partition: 0 for partition, chain in chains.items() if has_expiry or len(chain) > 1}


def artifacts_to_look_at(chains: Mapping[int, Chain], max_chain: int, partitions: int, sequence: int) -> dict[int, int]:
    """Return where a batch looks for chains most of whose rows have expired.

    The result has the partitions, and how many of the first artifacts of each chain the batch looks at. `sequence` is
    that of the checkpoint.

    Rule: a batch looks at one of `max_chain` parts of the partitions, which the sequence draws: a job that changes the
    table in every second batch alone comes to all of them too. Of a chain it looks at no more artifacts than have half
    of the rows, unless all rows of these have expired: else the rows of the others count as living.

    Cost: one request for each object that the process has not seen, for the bounds of its times.
    """
    turns = min(max_chain, partitions)
    turn = zlib.crc32(str(sequence).encode()) % turns
    return {partition: _most_of(chain) for partition, chain in chains.items() if partition % turns == turn}


def _most_of(chain: Chain) -> int:
    """Return how many of the first artifacts have more than half of the rows."""
    left = total = sum(artifact.records for artifact in chain)
    for count, artifact in enumerate(chain):
        if 2 * left < total:
            return count
        left -= artifact.records
    return len(chain)


class ExpiryCompactions(NamedTuple):
    """Name the chains that become shorter because rows have expired."""

    shrunk: dict[int, int]
    """The first artifact to compact, by partition, as in `table_compactions`."""
    emptied: set[int]
    """Partitions without a living row. Their chains go, and nobody has to read them."""


def expiry_compactions(chains: Mapping[int, Chain], living: Mapping[int, int]) -> ExpiryCompactions:
    """Return what to compact or to drop because rows have expired.

    `living` has the most rows that may be living, by partition.

    Rule: a chain that `has_shrunk` gets a snapshot, or one delta if it has no snapshot but an empty one. If no row of
    it is living, the chain goes. So a partition to which nothing is written forgets its rows too.

    Cost: at most one row is written for each row that has expired or was replaced. A chain that is compacted is read
    once.
    """
    stored = {partition: sum(artifact.records for artifact in chains[partition]) for partition in living}
    found = [partition for partition, rows in living.items() if has_shrunk(stored[partition], rows)]
    return ExpiryCompactions(
        {partition: 0 if chains[partition][0].length else 1 for partition in found if living[partition]},
        {partition for partition in found if not living[partition]},
    )


class ByBytes(NamedTuple):
    """Compactions in two groups, by their cost."""

    within: dict[int, int]
    """The first artifact to compact, by partition, of the compactions that cost few bytes together."""
    beyond: dict[int, int]
    """The first artifact to compact, by partition, of the other compactions."""
    cost: int
    """Bytes that the compactions of the first group cost."""


def within_bytes(chains: Mapping[int, Chain], compactions: Mapping[int, int], most: int) -> ByBytes:
    """Return which compactions cost at most `most` bytes together, and the others.

    `compactions` is an answer of `table_compactions`.

    Rule: in order of partitions, each compaction is taken that does not raise the cost above `most`. The cost is the
    stored bytes that are read, or a quarter of the bytes of the rows in memory if that is more. An object that several
    partitions share counts once.

    Cost: the driver does the compactions of the first group, and holds their bytes in memory. Tasks or the next batch
    do the others.
    """
    read: dict[str, int] = {}
    within, beyond, in_memory, cost = {}, {}, 0, 0
    for partition, first in sorted(compactions.items()):
        artifacts = chains[partition][first:]
        # Partitions that share an object are read by one request, so its bytes count once.
        read_with = read | {artifact.path: artifact.length for artifact in artifacts if artifact.length}
        in_memory_with = in_memory + sum(artifact.raw_size for artifact in artifacts)
        cost_with = max(sum(read_with.values()), in_memory_with // 4)
        if cost_with <= most:
            within[partition] = first
            read, in_memory, cost = read_with, in_memory_with, cost_with
        else:
            beyond[partition] = first
    return ByBytes(within, beyond, cost)


class EarlyCompactions(NamedTuple):
    """Name the partitions that are compacted before the next batch needs them."""

    now: dict[int, int]
    """The first artifact to compact now, by partition."""
    turn: list[int]
    """Partitions that the next batch compacts, because it is their turn and they cost too much now."""
    cost: int
    """Bytes that the compactions of `now` cost, as `within_bytes` counts them."""


def early_compactions(chains: Mapping[int, Chain], max_chain: int, partitions: int, most: int) -> EarlyCompactions:
    """Return what to compact of committed chains before the next batch.

    That batch adds a delta to each of them. The arguments are those of `table_compactions`. `most` is the number of
    bytes that the compactions may cost.

    Rule: that of `table_compactions` with the coming delta, for the compactions that `within_bytes` allows. The next
    batch compacts the other chains that get a snapshot. A chain that is only too long is left to the next batch, where
    it becomes too long.

    Cost: that of `table_compactions`. Changes that the next batch makes meanwhile are not compacted.
    """
    parted = within_bytes(chains, table_compactions(chains, max_chain, partitions, coming=1), most)
    return EarlyCompactions(parted.within, [p for p, first in parted.beyond.items() if first == 0], parted.cost)


def is_small_partition(rows: int, size: int) -> bool:
    """Return whether a table's partition is small.

    It is cheaper to keep a small partition in an object with others than in a snapshot of its own.

    Rule: it has fewer than `SMALL_PARTITION` rows and fewer than `SMALL_BYTES` bytes of them.

    Cost: one request writes many small partitions. A reader of one of them reads the object's footer and its own rows.
    """
    return rows < SMALL_PARTITION and size < SMALL_BYTES


# ---- segments of manifests -------------------------------------------------------------------------------------------


def fits_in_manifest(chains: Mapping[int, Chain], old: Mapping[int, Chain]) -> bool:
    """Return whether the manifest itself holds an operator's chains.

    Then the operator has no segments. `old` are the chains of the parent.

    Rule: it holds at most `INLINE` chains, and at most `INLINE_DELTAS` deltas of them, or `DELTAS_OF_CHANGE` for each
    chain that changed if that is more.

    Cost: each commit writes all chains in the manifest, also those that it did not change. A restore reads them with
    the manifest, without another request.
    """
    if len(chains) > INLINE:
        return False
    # Each chain has one snapshot; the rest are deltas, which grow while the number of chains stays.
    deltas = sum(map(len, chains.values())) - len(chains)
    changed = sum(chain != old.get(partition) for partition, chain in chains.items())
    return deltas <= max(INLINE_DELTAS, DELTAS_OF_CHANGE * changed)


def unchanged_beyond_manifest(artifacts: Mapping[str, int], changed: int) -> set[str]:
    """Return the unchanged operators whose chains get a segment.

    `artifacts` has the number of artifacts of each operator that the commit does not change, and that has no segments
    yet. `changed` is the number of chains that it changes.

    Rule: of those with at least `SMALLEST_UNCHANGED` artifacts, the largest get one, until the others of them have at
    most `INLINE_UNCHANGED` artifacts, or `DELTAS_OF_CHANGE` for each changed chain if that is more. The manifest
    also holds those of the smaller operators.

    Cost: one request for each of them. The commits that leave it alone write one reference to it, and a restore reads
    it with one more request. A commit that changes it writes its chains in the manifest again.
    """
    # The reference to a segment takes as many bytes as about two artifacts: small operators would gain nothing.
    large = {name: count for name, count in artifacts.items() if count >= SMALLEST_UNCHANGED}
    left, found = sum(large.values()), set[str]()
    for name, count in sorted(large.items(), key=itemgetter(1), reverse=True):
        if left <= max(INLINE_UNCHANGED, DELTAS_OF_CHANGE * changed):
            break
        left -= count
        found.add(name)
    return found


def segment_fold_start(entries: Sequence[int]) -> int:
    """Return the index of an operator's first segment to fold.

    All segments from there on become one. `entries` has the entries of each segment, the newest last.

    An entry is what a segment says of one partition.

    Rule: as in a log-structured merge tree, `SEGMENT_FAN_OUT` segments of one tier become one of the next; a tier is a
    power of four. All become one when the segments above the first have more than half as many entries as it has.

    Cost: an entry is written again about once for each tier, so as often as the logarithm of the number of entries. A
    reader fetches a few segments for each tier.
    """
    # The first segment can only shrink by being written again, so the others may not outgrow it: a reader reads at most
    # half as much again as there is.
    if len(entries) > 1 and sum(entries[1:]) * 2 > entries[0]:
        return 0
    first = len(entries) - 1
    while True:
        # The tier of the sum, because a fold can fill the next tier too, and is then done in one write.
        tier = _tier(sum(entries[first:]))
        run = 0
        while run < first and _tier(entries[first - 1 - run]) <= tier:
            run += 1
        if run < SEGMENT_FAN_OUT - 1:
            return first
        first -= run


def _tier(entries: int) -> int:
    """Return the exponent of the largest power of four up to a number of entries."""
    # Of integers, because a logarithm in floats is inexact at the powers of four.
    return (max(entries, 1).bit_length() - 1) // 2
