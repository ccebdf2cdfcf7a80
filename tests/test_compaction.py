"""When chains are folded, or replaced by a snapshot: the rule of each function, and what the rule costs."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.compaction import (
    COMPACT_BYTES,
    COMPACT_ROWS,
    DELTAS_OF_CHANGE,
    INLINE,
    INLINE_DELTAS,
    INLINE_UNCHANGED,
    MAX_DELTA_BYTES,
    SMALL_BYTES,
    SMALL_PARTITION,
    SMALLEST_UNCHANGED,
    all_compactions,
    artifacts_to_look_at,
    changes_all,
    compactions_left,
    early_compactions,
    expiry_compactions,
    fits_in_manifest,
    fold_start,
    has_shrunk,
    is_small_partition,
    keyed_delta,
    keyed_fold_start,
    opaque_fold_start,
    room_for_delta,
    segment_fold_start,
    table_compactions,
    unchanged_beyond_manifest,
    within_bytes,
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
    ("objects", "max_chain", "kept"),
    [
        ([], 2, 0),
        ([[1]], 2, 0),
        ([[1], [1]], 4, 2),
        ([[1], [1]], 3, 0),
        ([[100], [1, 1], [1]], 4, 1),
        ([[100, 100], [1], [1]], 4, 2),
        ([[100, 100], [50, 50], [1]], 4, 4),
    ],
)
def test_opaque_deltas_are_folded_by_whole_objects(objects: list[list[int]], max_chain: int, kept: int) -> None:
    assert opaque_fold_start(objects, 1, max_chain) == kept


@pytest.mark.parametrize(
    ("objects", "max_chain", "kept"),
    [
        ([], 2, 0),
        ([[1, 1]], 2, 2),
        ([[1], [1]], 2, 0),
        ([[1], [1]], 4, 0),
        ([[1], [1]], 5, 2),
        ([[100], [1, 1], [1]], 5, 1),
        ([[100, 100], [50, 50], [1]], 5, 5),
    ],
)
def test_below_a_delta_that_is_stored_at_least_two_objects_are_folded(
    objects: list[list[int]], max_chain: int, kept: int
) -> None:
    assert opaque_fold_start(objects, 1, max_chain, is_stored=True) == kept


@given(st.lists(st.integers(0, 1000), max_size=12), st.integers(0, 1000), st.integers(2, 12), st.booleans())
def test_a_chain_of_opaque_bytes_stays_within_the_limit(
    sizes: list[int], size: int, max_chain: int, is_stored: bool
) -> None:
    kept = opaque_fold_start([[each] for each in sizes], size, max_chain, is_stored=is_stored)
    # The snapshot, what is kept, the fold, and the new delta if it is an object of its own.
    objects = 1 + kept + (is_stored + (kept < len(sizes)) if is_stored else 1)
    assert objects <= max(max_chain, 3 if is_stored else 2)


# ---- keyed states ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("snapshot", "deltas", "room"), [(100, [], 50), (101, [20, 10], 20), (10, [5, 1], -1)])
def test_deltas_of_a_keyed_partition_have_half_of_its_snapshot(snapshot: int, deltas: list[int], room: int) -> None:
    assert room_for_delta(snapshot, deltas) == room


@pytest.mark.parametrize(
    ("records", "keys", "shrunk"),
    [
        (10, 5, False),
        (10, 4, True),
        (11, 5, True),
        (2, 1, False),
        (1, 1, False),
        (1, 0, True),
        (0, 0, False),
        (0, 9, False),
    ],
)
def test_a_partition_with_less_than_half_of_the_entries_of_its_snapshot_has_shrunk(
    records: int, keys: int, shrunk: bool
) -> None:
    assert has_shrunk(records, keys) is shrunk


@given(st.lists(st.integers(-100, 100), max_size=100))
def test_at_most_one_entry_is_written_for_each_entry_that_is_gone(changes: list[int]) -> None:
    records = keys = gone = written = 0
    for change in changes:
        change = max(change, -keys)
        keys, gone = keys + change, gone - min(change, 0)
        if has_shrunk(records, keys):
            records = keys
            written += records
        elif 2 * keys > 3 * records:  # as deltas of half of the snapshot bring one
            records = keys
        assert records <= 2 * keys
    assert written <= gone


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


@pytest.mark.parametrize(
    ("new", "changed", "keys", "decided"),
    [
        ([20], 1, 10, (0, 56)),
        ([10, 10], 1, 10, (0, 56)),
        ([8], 1, 10, (1, 12)),
        ([21], 1, 10, None),
        ([20, 1], 1, 10, None),
        ([20], 10, 10, None),
        ([], 0, 1, (1, 4)),
    ],
)
def test_a_keyed_partition_gets_a_delta_if_that_is_smaller_and_has_room(
    new: list[int], changed: int, keys: int, decided: tuple[int, int] | None
) -> None:
    assert keyed_delta(112, [32, 4], new, 3, records=keys, changed=changed, keys=keys) == decided


@pytest.mark.parametrize(
    ("new", "changed", "keys", "whole", "decided"),
    [
        ([20], 10, 10, [20], None),
        ([20], 10, 10, [13, 7], None),
        ([20], 10, 10, [21], (0, 56)),
        ([20], 10, 10, [13, 7, 1], (0, 56)),
        ([20], 10, 2, [16, 4], None),
        ([20], 10, 2, [16, 1000], (0, 56)),
        ([20], 10, 11, [1], (0, 56)),
        ([21], 10, 2, [1000], None),
        ([16], 10, 0, [], None),
    ],
)
def test_a_keyed_partition_with_deletions_gets_a_snapshot_if_that_is_no_larger(
    new: list[int], changed: int, keys: int, whole: list[int], decided: tuple[int, int] | None
) -> None:
    assert keyed_delta(112, [32, 4], new, 3, records=keys, changed=changed, keys=keys, whole=whole) == decided


def test_a_snapshot_is_looked_at_no_further_than_is_needed_to_decide() -> None:
    parts = iter([5, 6, 7])
    assert keyed_delta(100, [], [10], 4, records=4, changed=3, keys=4, whole=parts) == (0, 10), "it has more entries"
    assert [*parts] == [5, 6, 7]
    parts = iter([5, 6, 7])
    assert keyed_delta(100, [], [10], 4, records=3, changed=3, keys=3, whole=parts) == (0, 10)
    assert [*parts] == [7]


def test_there_may_be_no_room_for_nothing() -> None:
    assert keyed_delta(10, [6], [], 4, records=1, changed=0, keys=1) is None


@pytest.mark.parametrize(("records", "decided"), [(20, (0, 10)), (21, None)])
def test_a_keyed_partition_that_has_shrunk_gets_a_snapshot(records: int, decided: tuple[int, int] | None) -> None:
    assert keyed_delta(100, [], [10], 4, records=records, changed=1, keys=10) == decided


def test_the_size_of_a_delta_is_added_up_until_it_is_clear_that_there_is_no_room() -> None:
    parts = iter([50, 1, 1])
    assert keyed_delta(100, [], parts, 4, records=10, changed=1, keys=10) is None
    assert [*parts] == [1]
    assert keyed_delta(100, [], iter([50]), 4, records=1, changed=1, keys=1) is None


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
def test_when_a_chain_is_compacted(sizes: list[int], keep: int | None) -> None:
    assert table_compactions(chains_of(p0=sizes), 4, 8) == ({} if keep is None else {0: keep})


@pytest.mark.parametrize(
    ("sizes", "looked", "living", "keep"),
    [
        ([100], 1, 49, 0),
        ([100], 1, 50, None),
        ([100], 1, 0, "emptied"),
        ([100, 99], 1, 99, 0),
        ([100, 100], 2, 100, None),
        ([100, 50, 60], 2, 110, None),
        ([0, 10], 2, 4, 1),
        ([0, 10, 5, 4], 2, 9, 1),
        ([0, 3, 3, 3, 3], 4, 6, None),
        ([0, 3, 3], 3, 0, "emptied"),
        ([0, 0], 2, 0, None),
    ],
)
def test_when_a_chain_is_compacted_because_rows_have_expired(
    sizes: list[int], looked: int, living: int, keep: int | str | None
) -> None:
    chains = chains_of(p0=sizes)
    if not sizes[0]:
        chains = {0: (replace(chains[0][0], length=0), *chains[0][1:])}
    assert artifacts_to_look_at(chains, 10, 1, 7) == {0: looked}
    shrunk, emptied = {0: keep} if isinstance(keep, int) else {}, {0} if keep == "emptied" else set()
    assert expiry_compactions(chains, {0: living}) == (shrunk, emptied)
    assert expiry_compactions(chains, {}) == ({}, set())


@pytest.mark.parametrize(("partitions", "stride"), [(1, 1), (3, 2), (16, 1), (16, 2), (40, 10)])
def test_a_look_for_expired_rows_comes_to_all_partitions(partitions: int, stride: int) -> None:
    """Also of a table that only every other batch changes."""
    chains = chains_of(**{f"p{number}": [10] for number in range(partitions)})
    looks = [artifacts_to_look_at(chains, 10, partitions, sequence) for sequence in range(1, 101 * stride, stride)]
    assert {partition for look in looks for partition in look} == set(chains)
    assert max(map(len, looks)) <= math.ceil(partitions / min(10, partitions))


def test_snapshots_that_are_due_most_come_first_and_the_rest_is_folded_if_too_long() -> None:
    tables = chains_of(
        p0=[0, COMPACT_ROWS + 1], p1=[0, COMPACT_ROWS + 3], p2=[4 * COMPACT_ROWS, COMPACT_ROWS, 1, 1, 0], p3=[0, 1]
    )
    assert table_compactions(tables, 4, 12) == {0: 0, 1: 0, 2: 2}
    assert table_compactions(tables, 4, 4) == {1: 0, 2: 2}
    assert table_compactions(tables, 4, 0) == {2: 2}


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
    assert table_compactions(chains_of(p0=sizes), 4, 0) == {0: keep}


@given(
    st.lists(st.lists(st.integers(0, 2 * COMPACT_ROWS), min_size=1, max_size=12), max_size=6),
    st.integers(2, 8),
    st.integers(0, 4),
)
def test_no_chain_stays_too_long(sizes: list[list[int]], max_chain: int, snapshots: int) -> None:
    tables = chains_of(**{f"p{n}": some for n, some in enumerate(sizes)})
    keep = table_compactions(tables, max_chain, snapshots * max_chain)
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
def test_a_chain_that_would_become_too_long_is_compacted_before(sizes: list[list[int]], max_chain: int) -> None:
    """Compact before a delta comes what would be compacted with it, and never a single delta."""
    now = chains_of(**{f"p{n}": some for n, some in enumerate(sizes)})
    later = {partition: (*chain, artifact(1)) for partition, chain in now.items()}
    before = table_compactions(now, max_chain, 0, coming=1)
    for partition in table_compactions(later, max_chain, 0):
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
        keep = table_compactions(chains_of(**chains), 10, 10)
        shares.append(len(keep))
        for number, kept in keep.items():
            chain = chains[f"p{number}"]
            chain[kept:] = [sum(chain[kept:])]
    assert max(shares) < partitions
    assert statistics.mean(sorted(shares)[-10:]) < partitions / 2


def test_deltas_are_written_again_a_few_times_only() -> None:
    """However long a table lives without a snapshot, each row is folded about as often as a logarithm says."""
    chain: list[int] = [10**9]
    compacted = 0
    for _ in range(500):
        chain.append(10)
        for kept in table_compactions(chains_of(p0=chain), 10, 1).values():
            compacted += sum(chain[kept:])
            chain = [*chain[:kept], sum(chain[kept:])]
    assert len(chain) <= 10
    assert compacted / 5000 < 2 * math.log2(500)


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
def test_a_chain_is_compacted_for_its_bytes_too(sizes: list[int], keep: dict[int, int]) -> None:
    assert table_compactions(chain_of_bytes(*sizes), 10, 1) == keep


def test_changes_that_a_task_could_not_hold_wait_for_no_turn() -> None:
    assert table_compactions(chain_of_bytes(1, MAX_DELTA_BYTES), 10, 0) == {0: 0}
    assert table_compactions(chain_of_bytes(1, COMPACT_BYTES), 10, 0) == {}


def test_what_was_left_to_the_batch_gets_a_snapshot_beside_what_is_too_long() -> None:
    tables = chains_of(p0=[0, COMPACT_ROWS], p1=[10, 1], p2=[10, 1, 1, 1, 1], p3=[10, 100, 10, 1, 1])
    assert compactions_left(tables, 4, []) == {2: 1, 3: 3}
    assert compactions_left(tables, 4, [1, 3]) == {1: 0, 2: 1, 3: 0}


def test_all_partitions_with_deltas_are_compacted_and_with_an_expiry_the_others_too() -> None:
    tables = chains_of(p0=[5], p1=[5, 1])
    assert all_compactions(tables, has_expiry=False) == {1: 0}
    assert all_compactions(tables, has_expiry=True) == {0: 0, 1: 0}


def stored(path: str, length: int, raw_size: int = 1, records: int = 1) -> Artifact:
    return Artifact(path, DELTA, 0, length, length, raw_size, records, "0" * 64)


def test_compactions_are_taken_in_order_while_they_cost_few_bytes() -> None:
    shared = stored("shared", 50)
    chains = {0: (stored("a", 99), shared), 2: (stored("b", 10),), 1: (shared,), 3: (stored("c", 60),)}
    compactions = {0: 1, 2: 0, 3: 0, 1: 0}
    assert within_bytes(chains, compactions, 60) == ({0: 1, 1: 0, 2: 0}, {3: 0}, 60)
    assert within_bytes(chains, compactions, 59) == ({0: 1, 1: 0}, {2: 0, 3: 0}, 50)
    assert within_bytes(chains, compactions, 49) == ({2: 0}, {0: 1, 1: 0, 3: 0}, 10)
    assert within_bytes({0: (stored("a", 1, 40),)}, {0: 0}, 9) == ({}, {0: 0}, 0)
    assert within_bytes({0: (stored("a", 1, 40),)}, {0: 0}, 10) == ({0: 0}, {}, 10)


def test_the_batch_gets_those_large_partitions_whose_turn_it_is() -> None:
    base = Artifact("s", SNAPSHOT, 0, 1, 1, 1, 0, "0" * 64)
    chains: dict[int, Chain] = {
        0: (base, stored("a", 100, records=COMPACT_ROWS)),
        1: (base, *(stored(f"b{n}", 100) for n in range(3))),
        2: (base, *(stored(f"c{n}", 1) for n in range(3))),
    }
    # The delta to come makes those of three deltas too long.
    assert early_compactions(chains, 4, 4, 1000) == ({0: 0, 1: 1, 2: 1}, [], 404)
    assert early_compactions(chains, 4, 4, 10) == ({2: 1}, [0], 3)
    assert early_compactions(chains, 4, 0, 10) == ({2: 1}, [], 3)


def test_a_small_partition_has_few_rows_and_few_bytes() -> None:
    assert is_small_partition(SMALL_PARTITION - 1, SMALL_BYTES - 1)
    assert not is_small_partition(SMALL_PARTITION, 0)
    assert not is_small_partition(0, SMALL_BYTES)


# ---- segments of manifests -------------------------------------------------------------------------------------------


def long_chains(chains: int, deltas: int) -> dict[int, Chain]:
    """Make chains of which the first one has all deltas."""
    base = artifact(1, SNAPSHOT)
    return {number: (base, *[artifact(1)] * (0 if number else deltas)) for number in range(chains)}


@pytest.mark.parametrize(
    ("chains", "deltas", "changed", "fits"),
    [
        (INLINE, 0, 0, True),
        (INLINE + 1, 0, INLINE + 1, False),
        (20, INLINE_DELTAS, 0, True),
        (20, INLINE_DELTAS + 1, 0, False),
        (20, INLINE_DELTAS + 1, 10, False),
        (20, 11 * DELTAS_OF_CHANGE, 11, True),
        (20, 11 * DELTAS_OF_CHANGE + 1, 11, False),
    ],
)
def test_what_the_manifest_itself_holds(chains: int, deltas: int, changed: int, fits: bool) -> None:
    now = long_chains(chains, deltas)
    old: dict[int, Chain] = {number: chain for number, chain in now.items() if number >= changed}
    assert fits_in_manifest(now, old) is fits


@pytest.mark.parametrize(
    ("artifacts", "changed", "beyond"),
    [
        ({}, 0, set()),
        ({"a": INLINE_UNCHANGED}, 0, set()),
        ({"a": INLINE_UNCHANGED, "b": SMALLEST_UNCHANGED}, 0, {"a"}),
        ({"a": INLINE_UNCHANGED, "b": INLINE_UNCHANGED + 1, "c": SMALLEST_UNCHANGED}, 0, {"a", "b"}),
        ({"a": INLINE_UNCHANGED, "b": SMALLEST_UNCHANGED - 1}, 0, set()),
        ({str(number): SMALLEST_UNCHANGED - 1 for number in range(1000)}, 0, set()),
        ({"a": 50 * DELTAS_OF_CHANGE, "b": 50 * DELTAS_OF_CHANGE}, 100, set()),
        ({"a": 50 * DELTAS_OF_CHANGE, "b": 50 * DELTAS_OF_CHANGE + 1}, 100, {"b"}),
    ],
)
def test_what_stands_in_segments_although_it_does_not_change(
    artifacts: dict[str, int], changed: int, beyond: set[str]
) -> None:
    assert unchanged_beyond_manifest(artifacts, changed) == beyond


@pytest.mark.parametrize("operators", [1, 17, 60, 1500])
@pytest.mark.parametrize("size", [1, 8, 9, 31, 32, 600])
def test_operators_left_alone_bound_both_the_manifest_and_the_requests(operators: int, size: int) -> None:
    beyond = unchanged_beyond_manifest({str(number): size for number in range(operators)}, 0)
    left = operators - len(beyond)
    assert size * left <= max(INLINE_UNCHANGED, 8 * left)
    assert not beyond or size > 8, "a segment saves several times what its reference takes"
    assert unchanged_beyond_manifest(dict.fromkeys(map(str, range(left)), size), 0) == set(), "the next commit has none"


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
