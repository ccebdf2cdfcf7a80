"""What first_seen takes, and what it refuses before any task: without Spark."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_checkpointer.errors import IllegalArgumentError
from tests.proof.plain_spark import plain_spark
from tests.spark.test_expiry import Place


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    with plain_spark(place.draw):
        yield place


def table_of(**columns: pa.Array) -> pa.Table:
    return pa.table({"k": pa.array([7], pa.int64())} | columns)


def seen(place: Place, rows: pa.Table, **options: Any) -> list[dict[str, Any]]:
    """The new rows of a batch."""
    state = place.begin(1)
    new: Any = state.table("t", ["k"], num_partitions=2, **options).first_seen(place.frame(rows))
    place.commit(state)
    found: list[dict[str, Any]] = new.rows.to_pylist()
    return found


@pytest.mark.parametrize("is_new", [True, False])
def test_a_key_that_differs_in_case_alone_is_named(place: Place, is_new: bool) -> None:
    if not is_new:
        place.batch(0, table_of(), expire=None)
    rows = pa.table({"K": [1], "n": [2]})
    said = "column 'k' is missing; there are K, n: 'K' differs from it in case alone: rename it"
    with pytest.raises(IllegalArgumentError, match=said):
        seen(place, rows)
    state = place.begin(2)
    table = state.table("t", ["k"], num_partitions=2, schema=StructType().add("k", "long"))
    with pytest.raises(IllegalArgumentError, match=said):
        table.apply(place.frame(rows), lambda given, below: None)
    with pytest.raises(IllegalArgumentError, match=said):
        table.upsert(place.frame(rows))
