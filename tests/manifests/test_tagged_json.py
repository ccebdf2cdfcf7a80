"""Values as JSON: each in a form that no other value has."""

import json
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.msgpack_values import pack, unpack
from pyspark_checkpointer.manifests.tagged_json import to_json
from tests.manifests.names import shown

CASES: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (2**70, 2**70),
    (-(1 << 2_001), {"$integer": hex(-(1 << 2_001))}),
    (1.5, 1.5),
    (float("nan"), {"$float": "nan"}),
    (float("-inf"), {"$float": "-inf"}),
    ("text", "text"),
    ([1, (2,)], [1, {"$tuple": [2]}]),
    ({"a": (1,)}, {"a": {"$tuple": [1]}}),
    ({}, {}),
    ({1: "a"}, {"$map": [[1, "a"]]}),
    ({"$tuple": [1]}, {"$map": [["$tuple", [1]]]}),
    ({"b", "a", "c"}, {"$set": ["a", "b", "c"]}),
    (frozenset({(1, 2)}), {"$frozenset": [{"$tuple": [1, 2]}]}),
    (b"\x00\xff", {"$bytes": "AP8="}),
    (Decimal("1.10"), {"$decimal": "1.10"}),
    (UUID(int=1), {"$uuid": "00000000-0000-0000-0000-000000000001"}),
    (date(2024, 2, 29), {"$date": "2024-02-29"}),
    (time(2, 30, fold=1), {"$time": "02:30:00", "fold": 1}),
    (datetime(2024, 1, 2, tzinfo=UTC), {"$datetime": "2024-01-02T00:00:00+00:00"}),
    (
        datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        {"$datetime": "2024-10-27T02:30:00+01:00", "fold": 1, "zone": "Europe/Berlin"},
    ),
    (timedelta(days=-1, microseconds=1), {"$timedelta": [-1, 0, 1]}),
]


@pytest.mark.parametrize(("value", "expected"), CASES, ids=shown)
def test_a_value_has_its_form(value: Any, expected: Any) -> None:
    found = to_json(value)
    assert found == expected
    assert json.loads(json.dumps(found, allow_nan=False)) == expected


def test_no_two_values_have_one_form() -> None:
    assert len({json.dumps(to_json(value)) for value, _ in CASES}) == len(CASES)


def test_what_is_too_deep_to_be_shown_is_refused() -> None:
    value: Any = 1
    for _ in range(500):
        value = [value]
    value = unpack(pack(value))
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(500)  # Python 3.12 and newer go deeper within the same limit
    try:
        with pytest.raises(IllegalArgumentError, match="too many levels"):
            to_json(value)
    finally:
        sys.setrecursionlimit(before)


def test_an_integer_longer_than_python_writes_is_shown() -> None:
    assert json.dumps(to_json([1 << 20_000])).endswith('000"}]')
