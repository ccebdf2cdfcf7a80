"""Values of a table that Python does not have: text that is not UTF-8, and years beyond 9999 or before 1."""

from typing import Any

import pyarrow as pa
import pytest

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.table.python_values import json_rows, python_rows
from pyspark_checkpointer.table.schema import PARTITION
from pyspark_checkpointer.table.user_calls import GroupCall, Keys
from tests.table.tables import far, text

ODD = {
    "text": (text(b"\xff\xe9"), {"$bytes": "/+k="}),
    "late date": (far(pa.date32(), 2_932_897), {"$date": "+10000-01-01"}),
    "early date": (far(pa.date32(), -719_529), {"$date": "-0001-12-31"}),
    "the last date of all": (far(pa.date32(), 2**31 - 1), {"$date": "+5881580-07-11"}),
    "year 0": (far(pa.timestamp("us"), -62_135_596_800_000_001), {"$datetime": "0000-12-31T23:59:59.999999"}),
    "the least time of all": (far(pa.timestamp("us"), -(2**63)), {"$datetime": "-290308-12-21T19:59:05.224192"}),
    "late time": (
        far(pa.timestamp("us", "UTC"), 2**63 - 1),
        {"$datetime": "+294247-01-10T04:00:54.775807+00:00", "zone": "UTC"},
    ),
}


def nested(inside: pa.Array) -> dict[str, Any]:
    """The value in a list, a struct and a map."""
    at = pa.array([0, 1], pa.int32())
    return {
        "list": (pa.ListArray.from_arrays(at, inside), lambda said: [said]),
        "struct": (pa.StructArray.from_arrays([inside], ["x"]), lambda said: {"x": said}),
        "map": (pa.MapArray.from_arrays(at, inside, inside), lambda said: [{"$tuple": [said, said]}]),
    }


@pytest.mark.parametrize("name", ODD)
def test_every_value_is_shown(name: str) -> None:
    odd, said = ODD[name]
    rows = pa.table({"k": [1], "v": odd})
    assert list(json_rows(rows)) == [{"k": 1, "v": said}]
    for inside, wrapped in nested(odd).values():
        assert list(json_rows(pa.table({"k": [1], "v": inside}))) == [{"k": 1, "v": wrapped(said)}]


def test_rows_beside_an_odd_one_are_shown_as_ever() -> None:
    values = pa.table({"s": ["a", None], "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64()))})
    odd = pa.table({"s": text(b"\xff"), "m": pa.nulls(1, pa.map_(pa.string(), pa.int64()))})
    found = list(json_rows(pa.concat_tables([values, odd])))
    assert found[:2] == list(json_rows(values))
    assert found[2] == {"s": {"$bytes": "/w=="}, "m": None}


@pytest.mark.parametrize("name", ODD)
def test_a_value_that_python_lacks_is_named_with_its_row(name: str) -> None:
    odd, _ = ODD[name]
    rows = pa.table({"k": [1, 2], "v": pa.concat_arrays([pa.nulls(1, odd.type), odd])})
    with pytest.raises(
        IllegalArgumentError, match=r"^f: column 'v' of the row k=2: Python has no value for .*: do this"
    ):
        python_rows("f", rows, ["k"], "do this")
    assert python_rows("f", rows.slice(0, 1), ["k"], "") == [{"k": 1, "v": None}]


@pytest.mark.parametrize("at", ["key", "row", "state"])
def test_a_function_of_single_keys_is_not_given_what_python_lacks(at: str) -> None:
    odd, good = text(b"\xff"), pa.array(["a"])
    key = odd if at == "key" else good
    rows = pa.table({"k": key, "v": odd if at == "row" else good, PARTITION: pa.array([0], pa.int32())})
    state = pa.table({"k": key, "v": odd if at == "state" else good})
    call = GroupCall("f", lambda key, rows, row: None, "rows", state.schema, pa.schema([]))
    column = "k" if at == "key" else "v"
    with pytest.raises(IllegalArgumentError, match=f"^f: column '{column}' of the row k=.*: use `apply` with frames="):
        call(Keys.of(rows, ["k"]), rows, state)
