"""Steps of a lookup: bounded by partitions, keys and bytes, with each key in one of them."""

import pyarrow as pa
import pytest

from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.model import SNAPSHOT, Artifact
from pyspark_checkpointer.table.lookup_steps import MAX_STEP_BYTES, MAX_STEP_KEYS, MAX_STEP_PARTITIONS, lookup_steps
from pyspark_checkpointer.table.version import TableVersion
from tests.table.tables import schema_of

SCHEMA = schema_of({"k": "long"}, ["k"])


def version(sizes: dict[int, int], records: int = 1000) -> TableVersion:
    """Return a table whose partitions have snapshots of these bytes in memory, and so many rows each."""
    chains = {
        partition: (Artifact(f"p{partition}", SNAPSHOT, 0, 1, 1, size, records, sha256(b""), None),)
        for partition, size in sizes.items()
    }
    return TableVersion("t", SCHEMA, 1 << 20, chains)


def keys(counts: dict[int, int]) -> dict[int, pa.Table]:
    return {partition: pa.table({"k": range(count)}) for partition, count in counts.items()}


def test_steps_have_few_partitions_in_time_that_does_not_grow_with_the_square() -> None:
    partitions = range(2_000 * MAX_STEP_PARTITIONS)
    found = lookup_steps(version({}), keys(dict.fromkeys(partitions, 1)))
    assert {len(step) for step in found.steps} == {MAX_STEP_PARTITIONS}
    assert [partition for step in found.steps for partition in step] == list(partitions)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({1: 1, 2: MAX_STEP_KEYS, 3: 1, 4: 1}, [[1], [2], [3, 4]]),
        ({1: MAX_STEP_KEYS + 1}, [[1]]),
        ({}, []),
    ],
)
def test_steps_have_few_keys_unless_one_partition_has_more(counts: dict[int, int], expected: list[list[int]]) -> None:
    assert [list(step) for step in lookup_steps(version({}), keys(counts)).steps] == expected


def test_large_snapshots_are_in_steps_of_their_own() -> None:
    sizes = {1: MAX_STEP_BYTES // 2, 2: MAX_STEP_BYTES // 2, 3: MAX_STEP_BYTES + 1, 4: 1, 5: 1}
    found = lookup_steps(version(sizes, records=1 << 30), keys(dict.fromkeys(sizes, 3)))
    assert [list(step) for step in found.steps] == [[1, 2], [3], [4, 5]]


def test_wide_rows_are_found_in_parts_and_each_key_once() -> None:
    wide = version({1: MAX_STEP_BYTES // 2, 2: 0}, records=10)  # some 40 rows fill a step
    found = lookup_steps(wide, keys({1: 100, 2: 5}))
    assert found.reads == {1: 3, 2: 1}
    assert max(table.num_rows for step in found.steps for table in step.values()) <= 40
    assert [k for step in found.steps for k in step.get(1, pa.table({"k": []}))["k"].to_pylist()] == list(range(100))
