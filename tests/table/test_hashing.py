"""Where keys belong: readers without Spark and writers in Spark agree, or nothing is written."""

from contextlib import nullcontext

import pyarrow as pa
import pytest

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.table.hashing import check_partitions, partitions_of
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.schema import PARTITION
from tests.table.tables import schema_of

SCHEMA = schema_of({"id": "long"}, ["id"])


@pytest.mark.parametrize(("shift", "wrap", "right"), [(0, 8, True), (1, 8, False), (0, 4, False), (8, 99, False)])
def test_rows_that_are_not_where_their_key_belongs_are_refused(shift: int, wrap: int, right: bool) -> None:
    keys = pa.table({"id": pa.array(range(100), pa.int64())})
    numbers = [(number + shift) % wrap for number in partitions_of(keys, SCHEMA, 8)]
    rows = in_order(keys.append_column(PARTITION, pa.array(numbers, pa.int32())), ["id"])
    with nullcontext() if right else pytest.raises(InvalidStateError, match="of 8 partitions, Spark put keys"):
        check_partitions(rows, SCHEMA, 8, "t")


def test_no_rows_are_nowhere_wrong() -> None:
    rows = pa.table({"id": pa.array([], pa.int64()), PARTITION: pa.array([], pa.int32())})
    check_partitions(rows, SCHEMA, 8, "t")
