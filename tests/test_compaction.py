"""When chains are folded, or replaced by a snapshot: the rule of each function, and what the rule costs."""

import math
import statistics
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.compaction import (
    COMPACT_BYTES,
    COMPACT_ROWS,
    MAX_DELTA_BYTES,
    SMALL_BYTES,
    SMALL_PARTITION,
    changes_all,
    fold_start,
    is_small,
    keyed_fold_start,
    opaque_fold_start,
    room_for_delta,
    segment_fold_start,
    table_rewrites,
)
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Artifact, Chain, Kind

# ---- chains of any kind ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "limit", "first"),
    [
        ([5], 1, 0),
        ([5, 5, 5], 3, 2),
        ([5, 5, 5, 5], 3, 0),
        ([100, 2, 1], 2, 1),
        ([100, 3, 1], 2, 1),
        ([100, 10, 3, 1], 3, 2),
        ([100, 10, 2, 1], 3, 2),
        ([100, 6, 2, 1], 3, 1),
        ([1000, 1], 1, 0),
    ],
)
def test_the_newest_swallow_what_is_at_most_twice_as_large(sizes: list[int], limit: int, first: int) -> None:
    assert fold_start(sizes, limit) == first


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40), st.integers(1, 20))
def test_a_fold_stays_within_the_limit(sizes: list[int], limit: int) -> None:
    assert fold_start(sizes, limit) + 1 <= max(limit, 1)


def folded(count: int, size: int, start: Callable[[Sequence[int]], int]) -> tuple[list[int], int]:
    """Add so many of one size, one after the other. Return what is there in the end, and how much was written."""
    stack: list[int] = []
    written = 0
    for _ in range(count):
        stack.append(size)
        first = start(stack)
        stack[first:] = [sum(stack[first:])]
        written += stack[-1]
    return stack, written


@pytest.mark.parametrize("limit", [7, 10, 30])
def test_a_delta_is_written_again_as_often_as_a_logarithm_says(limit: int) -> None:
    stack, written = folded(1000, 10, lambda sizes: fold_start(sizes, limit))
    assert len(stack) <= limit
    assert written / 10_000 < 2 * math.log2(1000)


# ---- opaque bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "limit", "kept"),
    [
        ([], 0, 0),
        ([[1]], 0, 0),
        ([[1], [1]], 3, 2),
        ([[1], [1]], 2, 0),
        ([[100], [1, 1], [1]], 3, 1),
        ([[100, 100], [1], [1]], 3, 2),
        ([[100, 100], [50, 50], [1]], 3, 4),
    ],
)
def test_opaque_deltas_are_folded_by_whole_objects(objects: list[list[int]], limit: int, kept: int) -> None:
    assert opaque_fold_start(objects, 1, limit) == kept


# ---- keyed states ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("snapshot", "deltas", "room"), [(100, [], 50), (101, [20, 10], 20), (10, [5, 1], -1)])
def test_deltas_of_a_keyed_partition_have_half_of_its_snapshot(snapshot: int, deltas: list[int], room: int) -> None:
    assert room_for_delta(snapshot, deltas) == room


@pytest.mark.parametrize(
    ("changed", "keys", "all_of_them"), [(9, 10, False), (10, 10, True), (10, 0, True), (0, 0, True)]
)
def test_a_delta_with_as_many_entries_as_the_partition_is_a_snapshot(
    changed: int, keys: int, all_of_them: bool
) -> None:
    assert changes_all(changed, keys) is all_of_them


def test_the_snapshot_counts_as_one_of_the_chain() -> None:
    assert keyed_fold_start([1, 1], 1, 4) == 2
    assert keyed_fold_start([1, 1], 1, 3) == 0


def test_each_changed_byte_of_a_keyed_partition_brings_three_of_snapshots_at_most() -> None:
    snapshot, deltas, changed, snapshots = 1000, list[int](), 0, 0
    for _ in range(5000):
        changed += 10
        if room_for_delta(snapshot, deltas) >= 10:
            first = keyed_fold_start(deltas, 10, 10)
            deltas[first:] = [sum(deltas[first:]) + 10]
            assert len(deltas) < 10
            assert sum(deltas) <= snapshot / 2
        else:
            snapshot, deltas = snapshot + sum(deltas) + 10, []
            snapshots += snapshot
    assert snapshots <= 3 * changed


# ---- tables ----------------------------------------------------------------------------------------------------------


def artifact(records: int, kind: Kind = DELTA, raw_size: int = 1) -> Artifact:
    return Artifact("p", kind, 0, 1, 1, raw_size, records, "0" * 64)


def chains_of(**sizes: list[int]) -> dict[int, Chain]:
    """Make partitions p0, p1, … with the records of their base and deltas."""
    return {
        int(name[1:]): (artifact(base, SNAPSHOT), *map(artifact, deltas)) for name, (base, *deltas) in sizes.items()
    }


@pytest.mark.parametrize(
    ("sizes", "keep"),
    [
        ([10], None),
        ([10, 1], None),
        ([10, 1, 1, 1], None),
        ([10, 1, 1, 1, 1], 1),
        ([10, 100, 10, 1, 1], 3),
        ([10**6, COMPACT_ROWS], None),
        ([2 * COMPACT_ROWS, COMPACT_ROWS], None),
        ([2 * COMPACT_ROWS - 1, COMPACT_ROWS], 0),
        ([2 * COMPACT_ROWS - 1, COMPACT_ROWS // 2, COMPACT_ROWS // 2], 0),
        ([0, COMPACT_ROWS - 1], None),
        ([0, COMPACT_ROWS], 0),
        ([0, COMPACT_ROWS, 1, 1, 1], 0),
    ],
)
def test_when_a_chain_is_shortened(sizes: list[int], keep: int | None) -> None:
    assert table_rewrites(chains_of(p0=sizes), 4, 8) == ({} if keep is None else {0: keep})


def test_snapshots_that_are_due_most_come_first_and_the_rest_is_folded_if_too_long() -> None:
    tables = chains_of(
        p0=[0, COMPACT_ROWS + 1], p1=[0, COMPACT_ROWS + 3], p2=[4 * COMPACT_ROWS, COMPACT_ROWS, 1, 1, 0], p3=[0, 1]
    )
    assert table_rewrites(tables, 4, 12) == {0: 0, 1: 0, 2: 2}
    assert table_rewrites(tables, 4, 4) == {1: 0, 2: 2}
    assert table_rewrites(tables, 4, 0) == {2: 2}


@pytest.mark.parametrize(
    ("sizes", "keep"),
    [
        ([3 * SMALL_PARTITION, *[1000] * 4], 1),
        ([SMALL_PARTITION, *[SMALL_PARTITION] * 4], 0),
        ([0, *[SMALL_PARTITION // 4] * 4], 0),
        ([0, *[SMALL_PARTITION // 4 - 1] * 4], 1),
    ],
)
def test_a_chain_that_is_too_long_ends_in_a_snapshot_if_it_outweighs_the_old_one(sizes: list[int], keep: int) -> None:
    assert table_rewrites(chains_of(p0=sizes), 4, 0) == {0: keep}


@given(
    st.lists(st.lists(st.integers(0, 2 * COMPACT_ROWS), min_size=1, max_size=12), max_size=6),
    st.integers(2, 8),
    st.integers(0, 4),
)
def test_no_chain_stays_too_long(sizes: list[list[int]], max_chain: int, snapshots: int) -> None:
    tables = chains_of(**{f"p{n}": some for n, some in enumerate(sizes)})
    keep = table_rewrites(tables, max_chain, snapshots * max_chain)
    limit = max_chain - max(1, max_chain // 3)
    early = [number for number, kept in keep.items() if kept == 0 and len(tables[number]) <= limit]
    assert len(early) <= snapshots
    for partition, chain in tables.items():
        kept = keep.get(partition)
        assert (len(chain) if kept is None else kept + 1) <= max_chain


@given(
    st.lists(st.lists(st.integers(0, 2 * COMPACT_ROWS), min_size=1, max_size=12), max_size=6),
    st.integers(2, 40),
)
def test_a_chain_that_would_become_too_long_is_shortened_before(sizes: list[list[int]], max_chain: int) -> None:
    """Rewrite before a delta comes what would be rewritten with it, and never a single delta."""
    now = chains_of(**{f"p{n}": some for n, some in enumerate(sizes)})
    later = {partition: (*chain, artifact(1)) for partition, chain in now.items()}
    before = table_rewrites(now, max_chain, 0, coming=1)
    for partition in table_rewrites(later, max_chain, 0):
        assert partition in before or len(now[partition]) == 2
    for partition, kept in before.items():
        assert kept == 0 or len(now[partition]) - kept > 1


@pytest.mark.parametrize("partitions", [6, 16, 200])
def test_partitions_that_grow_alike_are_not_all_folded_in_one_batch(partitions: int) -> None:
    chains = {f"p{number}": [10**9] for number in range(partitions)}
    shares = []
    for _ in range(60):
        for chain in chains.values():
            chain.append(1)
        keep = table_rewrites(chains_of(**chains), 10, 10)
        shares.append(len(keep))
        for number, kept in keep.items():
            chain = chains[f"p{number}"]
            chain[kept:] = [sum(chain[kept:])]
    assert max(shares) < partitions
    assert statistics.mean(sorted(shares)[-10:]) < partitions / 2


def test_deltas_are_written_again_a_few_times_only() -> None:
    """However long a table lives without a snapshot, each row is folded about as often as a logarithm says."""
    chain: list[int] = [10**9]
    rewritten = 0
    for _ in range(500):
        chain.append(10)
        for kept in table_rewrites(chains_of(p0=chain), 10, 1).values():
            rewritten += sum(chain[kept:])
            chain = [*chain[:kept], sum(chain[kept:])]
    assert len(chain) <= 10
    assert rewritten / 5000 < 2 * math.log2(500)


def chain_of_bytes(base: int, *deltas: int) -> dict[int, Chain]:
    """Make a partition of few rows and so many bytes in memory, stored in next to none."""
    return {0: (artifact(10, SNAPSHOT, base), *(artifact(10, DELTA, size) for size in deltas))}


@pytest.mark.parametrize(
    ("sizes", "keep"),
    [
        ([COMPACT_BYTES, COMPACT_BYTES], {0: 0}),
        ([COMPACT_BYTES, COMPACT_BYTES // 2], {}),
        ([3 * COMPACT_BYTES, COMPACT_BYTES], {}),
        ([8 * MAX_DELTA_BYTES, MAX_DELTA_BYTES], {0: 0}),
        ([8 * MAX_DELTA_BYTES, MAX_DELTA_BYTES - 1], {}),
        ([SMALL_BYTES, *[1] * 10], {0: 0}),
        ([10, *[1] * 10], {0: 1}),
    ],
)
def test_a_chain_is_shortened_for_its_bytes_too(sizes: list[int], keep: dict[int, int]) -> None:
    assert table_rewrites(chain_of_bytes(*sizes), 10, 1) == keep


def test_changes_that_a_task_could_not_hold_wait_for_no_turn() -> None:
    assert table_rewrites(chain_of_bytes(1, MAX_DELTA_BYTES), 10, 0) == {0: 0}
    assert table_rewrites(chain_of_bytes(1, COMPACT_BYTES), 10, 0) == {}


def test_a_small_partition_has_few_rows_and_few_bytes() -> None:
    assert is_small(SMALL_PARTITION - 1, SMALL_BYTES - 1)
    assert not is_small(SMALL_PARTITION, 0)
    assert not is_small(0, SMALL_BYTES)


# ---- segments of manifests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "first"),
    [
        ([5], 0),
        ([100, 50], 1),
        ([100, 51], 0),
        ([1000, 1, 1], 2),
        ([1000, 1, 1, 1], 3),
        ([1000, 1, 1, 1, 1], 1),
        ([1000, 16, 1, 1, 1, 1], 2),
        ([1000, 16, 16, 16, 1, 1, 1, 13], 1),
    ],
)
def test_four_segments_of_a_tier_become_one_of_the_next(entries: list[int], first: int) -> None:
    assert segment_fold_start(entries) == first


def test_an_entry_of_a_segment_is_written_again_about_once_for_each_tier() -> None:
    stack, written = folded(4096, 1, segment_fold_start)
    assert written / 4096 < 3 * math.log(4096, 4)
    assert len(stack) <= 3 * math.log(4096, 4)
