"""Decide when chains are folded or replaced by a snapshot.

This is decided only here, by pure functions of sizes. These modules ask, and do what is decided:
`checkpoint/save_bytes.py` for opaque bytes, `keyed/partition.py` for keyed states, `spark/table_changes.py` for tables,
`checkpoint/metadata.py` for the lists of chains in manifests. `admin/forecast.py` asks to forecast costs.

An answer is the index of the first thing to be folded or rewritten: what comes before it stays. `room_for_delta` and
`is_small` answer what their names say.

Each function states its rule and what the rule costs. Who changes a rule also changes what `docs/concepts.md`,
`docs/cost.md` and `manifests/PROTOCOL.md` (Segments) say of it.
"""

import math
from collections.abc import Mapping, Sequence

from pyspark_checkpointer.manifests.model import Chain

SMALL_PARTITION = 4096
SMALL_BYTES = 8 << 20
"""Rows, and bytes of them in memory, below which a partition is small.

A small partition shares an object with others, even as a snapshot.
"""

COMPACT_ROWS = 65_536
COMPACT_BYTES = 64 << 20
"""Changed rows of a partition, and bytes of them, that are merged cheaply.

Below these limits, merging while reading costs less than a snapshot.
"""

MAX_DELTA_BYTES = 512 << 20
"""Largest number of bytes of a partition's deltas.

A reader of the partition has all of them in memory.
"""

SEGMENT_FAN_OUT = 4
"""Number of segments of one tier that are folded into one of the next."""

# ---- chains of any kind ----------------------------------------------------------------------------------------------


def fold_start(sizes: Sequence[int], limit: int) -> int:
    """Return the index of the first delta to fold; the rest follow it.

    `sizes` has the size of each delta, the newest last. From that index on, all become one.

    Sizes are in any unit that is the same for all: stored bytes for opaque bytes, raw bytes (before compression) for
    keyed states, rows for tables.

    Rule: nothing is folded (the newest stays alone) while there are at most `limit`. Then the newest delta is folded
    with the one before it, as long as that is at most twice as large as what is folded already, and further where that
    is needed to stay within `limit`.

    Cost: each delta that is folded in makes the object at least half as large again. So a delta is written again about
    as often as the logarithm of how many came after it, and more often only where `limit` is below that logarithm. A
    reader fetches at most `limit` deltas.
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


def opaque_fold_start(objects: Sequence[Sequence[int]], size: int, limit: int) -> int:
    """Return the index of a partition's first delta to fold.

    It is folded with a new delta of `size` bytes that comes on top.

    `objects` has the sizes of the deltas above the snapshot, oldest first, one sequence for each object. All sizes are
    stored bytes.

    Rule: that of `fold_start`, for whole objects. Folding never makes a snapshot: only the caller can merge opaque
    bytes. `limit` is the number of objects that the deltas may be in, at most; there is always room for one.

    Cost: that of `fold_start`. A fold joins bytes and drops none, so a chain grows until the caller saves a snapshot.
    """
    sizes = [sum(deltas) for deltas in objects]
    # At least one, since an attempt that attaches a delta asks with two objects less than `max_chain`, which may be 2.
    return sum(map(len, objects[: fold_start([*sizes, size], max(limit, 1))]))


# ---- keyed states ----------------------------------------------------------------------------------------------------


def room_for_delta(snapshot: int, deltas: Sequence[int]) -> int:
    """Return the most bytes that the next delta of a keyed partition may have.

    If it has more, a snapshot is written.

    All sizes are raw bytes, before compression; that of the next delta is an estimate.

    Rule: the deltas of a partition together are at most half as large as its snapshot.

    Cost: a restore reads at most one and a half times the snapshot, and each changed byte brings at most about three
    bytes of a later snapshot with it.
    """
    return snapshot // 2 - sum(deltas)


def changes_all(changed: int, keys: int) -> bool:
    """Return whether a snapshot of a keyed partition has no more entries than its next delta.

    `changed` keys were set or deleted, and the partition has `keys` now.

    Rule: then a snapshot is written.

    Cost: none. What the delta says of each key, the snapshot says too, and nothing that lies below it is read any more.
    """
    return changed >= keys


def keyed_fold_start(deltas: Sequence[int], size: int, max_chain: int) -> int:
    """Return the index of a keyed partition's first delta to fold.

    It is folded with a new delta of `size` bytes.

    All sizes are raw bytes, as in `room_for_delta`.

    Rule and cost: those of `fold_start`. The snapshot is one of the `max_chain` objects of a chain.
    """
    return fold_start([*deltas, size], max_chain - 1)


# ---- tables ----------------------------------------------------------------------------------------------------------


def table_rewrites(chains: Mapping[int, Chain], max_chain: int, partitions: int, *, coming: int = 0) -> dict[int, int]:
    """Return the index of the first artifact to rewrite, for each chain that is to be shortened.

    The result is by partition. 0 is the snapshot: then a new one is written. `coming` is the number of deltas that each
    chain will get before the answer is carried out.

    Rule: a chain that is too long ends in a snapshot if its deltas outweigh half of the old one, else its newest deltas
    are folded. The limit is up to a third lower for some partitions than for others, as all of them would reach it in
    the same batch. Deltas that outweigh the snapshot by many rows, or bytes, do not wait for the limit: of those
    partitions so few get a snapshot in a batch, the most overdue first, that each has its turn within `max_chain`
    batches: all at once would make one batch much slower. Partitions whose deltas reach `MAX_DELTA_BYTES` all get one,
    however large the old snapshot is.

    Cost: a changed row is written again about as often as `fold_start` says. Apart from partitions that wait for their
    turn, what a reader merges is less than `COMPACT_ROWS` and `COMPACT_BYTES`, or at most half of the snapshot.
    """
    found, outweighed = {}, []
    steps = max(1, max_chain // 3)
    for partition, (base, *deltas) in chains.items():
        sizes = [artifact.records for artifact in deltas]
        changed = sum(sizes)
        base_bytes, delta_bytes = base.raw_size, sum(artifact.raw_size for artifact in deltas)
        # Above 1 the deltas are overdue. Deltas of at most half the snapshot are never due: a new snapshot would write
        # at least twice as much as they hold.
        due = max(
            changed / COMPACT_ROWS if 2 * changed > base.records else 0,
            delta_bytes / COMPACT_BYTES if 2 * delta_bytes > base_bytes else 0,
        )
        # At least one, as a single delta is not folded.
        limit = max(1, max_chain - 1 - partition % steps - coming)
        # First, because this one is a limit of memory, and the others are about cost.
        if delta_bytes >= MAX_DELTA_BYTES:
            found[partition] = 0
        elif len(deltas) > limit:
            outweighs = 2 * changed > base.records or due >= 1
            small = is_small(base.records + changed, base_bytes + delta_bytes)  # then it shares an object with others
            # One more than the deltas that stay: the snapshot below them stays too.
            found[partition] = 0 if outweighs and not small else 1 + fold_start(sizes, limit)
        elif due >= 1:
            outweighed.append((due, partition))
    return found | {
        partition: 0 for _, partition in sorted(outweighed, reverse=True)[: math.ceil(partitions / max_chain)]
    }


def is_small(rows: int, size: int) -> bool:
    """Return whether a table's partition is small.

    A small partition is better kept in an object with others than in a snapshot of its own.

    Rule: it has fewer than `SMALL_PARTITION` rows and fewer than `SMALL_BYTES` bytes of them.

    Cost: one request writes many small partitions. A reader of one of them reads the object's footer and its own rows.
    """
    return rows < SMALL_PARTITION and size < SMALL_BYTES


# ---- segments of manifests -------------------------------------------------------------------------------------------


def segment_fold_start(entries: Sequence[int]) -> int:
    """Return the index of an operator's first segment to fold.

    All segments from there on become one. `entries` has the entries of each segment, the newest last.

    An entry is what a segment says of one partition.

    Rule: as in a log-structured merge tree, `SEGMENT_FAN_OUT` segments of one tier become one of the next; a tier is a
    power of four. All become one when what lies on the first has more than half as many entries.

    Cost: an entry is written again about once for each tier, as often as the logarithm of how many there are. A reader
    fetches a few segments for each tier.
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
