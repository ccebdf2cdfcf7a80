"""Every value comes back as itself, of its own type, or is refused by name."""

import enum
import math
import struct
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.errors import InvalidStateError, MalformedError
from pyspark_checkpointer.manifests import msgpack_extensions, msgpack_values
from pyspark_checkpointer.manifests.msgpack_checks import PIECE_BYTES, UnsupportedValueError
from pyspark_checkpointer.manifests.msgpack_values import (
    PACK_COUNT,
    pack,
    pack_some,
    unpack,
    unpack_all,
    unpack_by_msgspec,
)
from tests.manifests.names import shown
from tests.stack import outcomes

BERLIN = ZoneInfo("Europe/Berlin")
TWICE = datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)  # this time of day came twice


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types, down to the sign of zero, the payload of NaN, the zone and the fold."""
    if type(a) is not type(b):
        return False
    match a:
        case float():
            return a.hex() == b.hex() if not math.isnan(a) else math.isnan(b)
        case Decimal():
            return str(a) == str(b)
        case datetime():
            return (a.isoformat(), a.fold, str(a.tzinfo), type(a.tzinfo)) == (
                b.isoformat(),
                b.fold,
                str(b.tzinfo),
                type(b.tzinfo),
            )
        case time():
            return (a.isoformat(), a.fold) == (b.isoformat(), b.fold)
        case list() | tuple():
            return len(a) == len(b) and all(map(same, a, b))
        case dict():
            return same(list(a.items()), list(b.items()))
        case set() | frozenset():
            return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    return bool(a == b)


VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    10**400,
    -(10**400),
    0.0,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    5e-324,
    "",
    "text",
    "naïve 日本語 \U0001f600",
    "nul \0 inside",
    b"",
    b"\xff\x00bytes",
    b"x" * 70_000,
    [],
    [1, [2, [3]]],
    (),
    (1,),
    (1, (2, ([3], {"four": (5,)}))),
    {},
    {"a": {"b": {}}},
    {1: "int", "1": "text", b"1": "bytes", (1,): "tuple", None: "nil", 1.5: "float", frozenset({1}): "set"},
    set(),
    {1, 2, 3},
    {(1, 2), frozenset({3}), "four", b"five", None},
    frozenset(),
    frozenset({"a", ("b", 1)}),
    Decimal("0"),
    Decimal("-0"),
    Decimal("1.10"),
    Decimal("1E+5"),
    Decimal("1E-999999"),
    Decimal("NaN"),
    Decimal("sNaN123"),
    Decimal("-Infinity"),
    Decimal("1" * 60 + ".5"),
    date.min,
    date(2024, 2, 29),
    date.max,
    datetime.min,
    datetime.max,
    datetime(2024, 1, 2, 3, 4, 5),
    datetime(2024, 1, 2, 3, 4, 5, 6),
    datetime(2024, 10, 27, 2, 30, fold=1),
    datetime(2024, 1, 2, tzinfo=UTC),
    datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
    datetime(2024, 1, 2, tzinfo=timezone(timedelta(seconds=1, microseconds=1))),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=23, minutes=59))),
    datetime(2024, 1, 2, tzinfo=ZoneInfo("UTC")),
    TWICE,
    TWICE.replace(fold=1),
    time.min,
    time(1, 2, 3, 4),
    time(2, 30, fold=1),
    timedelta.min,
    timedelta(microseconds=-1),
    timedelta.max,
    UUID(int=0),
    UUID("12345678-1234-5678-1234-567812345678"),
    [bytes(range(256)), {"all markers": bytes(range(0xC0, 0xE0))}],
]


@pytest.mark.parametrize("value", VALUES, ids=shown)
def test_a_value_comes_back_as_itself(value: Any) -> None:
    assert same(unpack(pack(value)), value)
    assert same(unpack(pack([value, {"k": (value,)}])), [value, {"k": (value,)}])


class Color(enum.IntEnum):
    RED = 1


class Nowhere(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, when: datetime | None) -> str:
        return "nowhere"

    def dst(self, when: datetime | None) -> timedelta:
        return timedelta(0)


class Text(str):
    __slots__ = ()


class Octets(bytes):
    pass


class Map(dict):  # type: ignore[type-arg]
    pass


class Row(list):  # type: ignore[type-arg]
    pass


Point = namedtuple("Point", "x y")

REFUSED: dict[str, tuple[Any, str]] = {
    "OrderedDict": (OrderedDict(a=1), "collections.OrderedDict"),
    "defaultdict": (defaultdict(int), "collections.defaultdict"),
    "Counter": (Counter("aab"), "collections.Counter"),
    "a dict of one's own": (Map(), "Map"),
    "a list of one's own": (Row(), "Row"),
    "namedtuple": (Point(1, 2), "Point"),
    "IntEnum": (Color.RED, "Color"),
    "text of one's own": (Text("a"), "Text"),
    "bytes of one's own": (Octets(b"a"), "Octets"),
    "bytearray": (bytearray(b"a"), "bytearray"),
    "memoryview": (memoryview(b"a"), "memoryview"),
    "msgpack's extension": (msgpack.ExtType(1, b"\x90"), "msgpack.ext.ExtType"),
    "msgpack's timestamp": (msgpack.Timestamp(1, 2), "msgpack.ext.Timestamp"),
    "object": (object(), "object"),
    "complex": (1j, "complex"),
    "Fraction": (Fraction(1, 2), "fractions.Fraction"),
    "range": (range(3), "range"),
    "generator": ((x for x in ()), "generator"),
    "function": (same, "function"),
    "type": (int, "type"),
    "path": (PurePosixPath("a"), r"pathlib\S*\.PurePosixPath"),
    "a lone surrogate": ("a\ud800", "lone surrogate"),
    "a time with a zone": (time(1, tzinfo=UTC), "time of day with a zone"),
    "a zone of one's own": (datetime(2024, 1, 1, tzinfo=Nowhere()), "Nowhere"),
}


@pytest.mark.parametrize("place", ["alone", "in a list", "in a tuple", "as a dict's value", "as a key's neighbour"])
@pytest.mark.parametrize(("value", "named"), REFUSED.values(), ids=REFUSED)
def test_a_value_that_would_change_is_refused_by_name(value: Any, named: str, place: str) -> None:
    places = {
        "alone": value,
        "in a list": [[1.5, "text"], [value]],
        "in a tuple": ({"deep": (1, value)},),
        "as a dict's value": {"a": {"b": value}},
        "as a key's neighbour": {("a", 1): [{"x": value}]},
    }
    with pytest.raises(UnsupportedValueError, match=named):
        pack(places[place])
    with pytest.raises(UnsupportedValueError):
        pack_some([1.5, places[place], "text"])


@pytest.mark.parametrize(
    "key", [memoryview(b"a"), Text("a"), Color.RED, Point(1, 2)], ids=lambda key: type(key).__name__
)
def test_a_key_of_a_dict_that_would_change_is_refused_by_name(key: Any) -> None:
    for value in ({key: 1}, {("a", key): 1}, {frozenset({key}): 1}, {key}):
        with pytest.raises(UnsupportedValueError, match=type(key).__name__):
            pack(value)


def test_values_of_other_libraries_are_refused_by_name() -> None:
    numpy = pytest.importorskip("numpy")
    pandas = pytest.importorskip("pandas")
    for value in (
        numpy.float64(1.5),
        numpy.int64(1),
        numpy.bool_(True),
        numpy.str_("a"),
        numpy.array([1]),
        numpy.datetime64("2024-01-01"),
        pandas.Timestamp("2024-01-01"),
        pandas.Timedelta(1),
        pandas.NaT,
        pandas.NA,
    ):
        with pytest.raises(UnsupportedValueError, match=type(value).__name__):
            pack([value])


def recursive(wrap: Callable[[Any], Any]) -> Any:
    hub: list[Any] = []
    hub.append(wrap(hub))
    return hub


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: (v,), lambda v: {"a": v}, lambda v: {"a": ({"b": v},)}])
def test_a_value_that_holds_itself_is_refused(wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(UnsupportedValueError, match=r"recursion|one inside the other"):
        pack(recursive(wrap))


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {"a": (v,)}])
def test_whatever_depth_can_be_packed_can_be_unpacked(wrap: Callable[[Any], Any]) -> None:
    value: Any = 1
    for depth in range(1100):
        try:
            packed = pack(value)
        except UnsupportedValueError:
            assert depth > 32
            return
        assert pack(unpack(packed)) == packed
        value = wrap(value)
    pytest.fail("nothing was refused")


def test_a_refused_value_does_not_spoil_the_next() -> None:
    for _ in range(3):
        with pytest.raises(UnsupportedValueError):
            pack(["a" * 1000, object()])
        assert unpack(pack(["b"])) == ["b"]


def test_equal_sets_are_equal_bytes() -> None:
    members = [str(n) for n in range(100)]
    backwards = members[::-1]
    assert pack(set(members)) == pack(set(backwards))


def nested_tuples(depth: int) -> bytes:
    data = b"\x90"
    for _ in range(depth):
        data = b"\x91\xc9" + len(data).to_bytes(4, "big") + b"\x01" + data
    return data


def extension(code: int, data: bytes) -> bytes:
    packed: bytes = msgpack.packb(msgpack.ExtType(code, data))
    return packed


BAD: dict[str, bytes] = {
    "nothing": b"",
    "something behind": b"\x01\x02",
    "cut text": b"\xa5abc",
    "cut map": b"\x82\x01\x02",
    "no such type": b"\xc1",
    "text that is not UTF-8": b"\xa1\xff",
    "a list as a key": b"\x81\x91\x01\x02",
    "a map as a key": b"\x81\x80\x01",
    "an array of four thousand million": b"\xdd\xff\xff\xff\xff",
    "a map of four thousand million": b"\xdf\xff\xff\xff\xff",
    "text of four thousand million": b"\xdb\xff\xff\xff\xff",
    "very deep": b"\x91" * 100_000 + b"\x01",
    "extension 0": b"\xd4\x00\x00",
    "extension 11": b"\xd4\x0b\x00",
    "extension 127": b"\xd4\x7f\x00",
    "a tuple that is a number": b"\xd4\x01\x01",
    "a decimal that is none": b"\xd4\x03x",
    "a decimal that is not UTF-8": b"\xd4\x03\xff",
    "a datetime of two": b"\xd5\x04\x92\x01",
    "a datetime of a month 13": msgpack.packb(msgpack.ExtType(4, msgpack.packb(["2024-13-01T00:00:00", 0, None]))),
    "a fold of 2": msgpack.packb(msgpack.ExtType(4, msgpack.packb(["2024-01-01T00:00:00", 2, None]))),
    "a zone outside": msgpack.packb(msgpack.ExtType(4, msgpack.packb(["2024-01-01T00:00:00", 0, "zone:../../etc/x"]))),
    "an offset of a year": msgpack.packb(msgpack.ExtType(4, msgpack.packb(["2024-01-01T00:00:00", 0, [365, 0, 0]]))),
    "a duration too long": msgpack.packb(msgpack.ExtType(6, msgpack.packb([10**10, 0, 0]))),
    "a set of what is not packed": msgpack.packb(msgpack.ExtType(7, msgpack.packb([1]))),
    "a set of lists": msgpack.packb(msgpack.ExtType(7, msgpack.packb([msgpack.packb([1])]))),
    "tuples in tuples": nested_tuples(10_000),
    "arrays that claim more than is there": b"\xdd\x00\x00\x20\x00" * 1_000 + b"\xc0" * 4_000,
    "a UUID of one byte": b"\xd4\x0a\x00",
    "a timestamp of msgpack": b"\xd6\xff\x00\x00\x00\x01",
    "a timestamp deep inside": b"\x91\x81\xa1a\x92\x01\xd7\xff\x00\x00\x00\x00\x00\x00\x00\x01",
    "a timestamp of twelve bytes": b"\xc7\x0c\xff" + bytes(12),
    "a timestamp with a longer head": b"\xc8\x00\x04\xff" + bytes(4),
    "a timestamp with the longest head": b"\xc9\x00\x00\x00\x04\xff" + bytes(4),
    "a timestamp as a key": b"\x81\xd6\xff\x00\x00\x00\x01\x01",
    "a list as a key, deeper": b"\x91\x81\xa1a\x81\x91\x01\x01",
    "a timestamp in a tuple": extension(1, b"\x91\xd6\xff\x00\x00\x00\x01"),
    "a timestamp in a set": extension(7, msgpack.packb([b"\xd6\xff\x00\x00\x00\x01"])),
    "a tuple of a text": extension(1, b"\xa2ab"),
    "a tuple of a map": extension(1, b"\x81\x01\x02"),
    **{
        f"a decimal {text!r}": extension(3, text.encode())
        for text in (
            "inf",
            "Inf",
            "infinity",
            "nan",
            "NAN",
            "NaN0",
            "NaN01",
            "1_0",
            " 1",
            "1 ",
            "1\n",
            "\u0661",
            "\uff11",
            "+1",
            "01",
            "1.",
            ".5",
            "1e5",
            "1E5",
            "10E+5",
            "1.5E+1",
            "0.0000001",
            "1E+0",
            "1E+05",
            "",
            "-",
            "1E+1000000000000000000",
            "1E-1999999999999999998",
        )
    },
    **{
        f"the date and time {text!r}": extension(4, msgpack.packb([text, 0, None]))
        for text in (
            "2024-01-02",
            "2024-01-02 03:04:05",
            "2024-01-02t03:04:05",
            "20240102T030405",
            "2024-01-02T03:04",
            "2024-01-02T03",
            "2024-01-02T03:04:05Z",
            "2024-01-02T03:04:05+01:00",
            "2024-01-02T03:04:05.1234+1",
            "2024-01-02T03:04:05.123+01",
            "2024-01-02T03:04:05.000000",
            "2024-01-02T03:04:05.123",
            "2024-01-02T03:04:05,123456",
            "2024-01-02T03:04:05.1234567",
            "2024-W01-2T03:04:05",
            "2024-01-02T030405.1",
            "20240102T030405.123",
            "2024-01-02T24:00:00",
            "2024-01-02T03:04:60",
            "+024-01-02T03:04:05",
            "2024-01-02T\u0660\u0663:04:05",
            " 2024-01-02T03:04:05",
            "0000-01-02T03:04:05",
        )
    },
    **{
        f"the time of day {text!r}": extension(5, msgpack.packb([text, 0]))
        for text in (
            "01:02",
            "01",
            "010203",
            "T01:02:03",
            "01:02:03Z",
            "01:02:03+01:00",
            "01:02:03.1234+1",
            "01:02:03.123+01",
            "01:02:03.000000",
            "01:02:03.1",
            "01:02:03,123456",
            "24:00:00",
            "1:02:03",
        )
    },
    **{
        f"the date {text!r}": extension(9, text.encode())
        for text in (
            "20240102",
            "2024-W01-2",
            "2024W012",
            "2024-1-02",
            "2024-01-02T00:00:00",
            "2024/01/02",
            "\u06602024-01-0",
            "0000-01-01",
        )
    },
    "a fold that is true": extension(4, msgpack.packb(["2024-01-02T03:04:05", True, None])),
    "a fold that is a float": extension(5, msgpack.packb(["03:04:05", 0.0])),
    "a date and time in a tuple": extension(4, extension(1, msgpack.packb(["2024-01-02T03:04:05", 0, None]))),
    **{
        f"the zone {zone!r}": extension(4, msgpack.packb(["2024-01-02T03:04:05", 0, zone]))
        for zone in (
            "",
            "utc",
            "Z",
            "Europe/Berlin",
            "zone:",
            "zone:/etc/localtime",
            "+01:00",
            0,
            [0, 0, 0],
            [0, 3600],
            [3600],
            [1, 0, 0],
            [-1, 0, 0],
            [0, 86_400, 0],
            [0, -3600, 0],
            [0, 0, 1_000_000],
            [0, 3600.0, 0],
            [False, 3600, 0],
            [0, 3600, 0, None],
            [0, 3600, 0, "a", "b"],
            [-2, 3600, 0],
            {"a": 1},
        )
    },
    **{
        f"the duration {parts!r}": extension(6, msgpack.packb(parts))
        for parts in (
            [],
            [1],
            [1, 2],
            [1, 2, 3, 4],
            [1.0, 2, 3],
            [1, True, 3],
            [0, 86_400, 0],
            [0, -1, 0],
            [0, 0, 1_000_000],
            [0, 0, -1],
            [10**9, 0, 0],
            "abc",
            {"a": 1},
            ["1", 2, 3],
        )
    },
    "a duration that is a tuple": extension(6, pack((1, 2, 3))),
    "a duration that is a map": extension(6, pack({1: 1, 2: 2, 3: 3})),
    "a zone in capitals": extension(4, msgpack.packb(["2024-01-02T03:04:05", 0, "ZONE:Europe/Berlin"])),
    "a time of day without colons": extension(5, msgpack.packb(["010203.1", 0])),
    "an integer that msgpack has": extension(2, (2**63).to_bytes(9, "big")),
    "a small integer": extension(2, b"\x01"),
    "an integer of no bytes": extension(2, b""),
    "an integer with a byte too many": extension(2, (2**64).to_bytes(10, "big")),
    "a set out of order": extension(7, msgpack.packb([b"\x02", b"\x01"])),
    "a frozen set out of order": extension(8, msgpack.packb([b"\x02", b"\x01"])),
    "a set with a member twice": extension(7, msgpack.packb([b"\x01", b"\x01"])),
    "a set with two equal members": extension(7, msgpack.packb([b"\x01", b"\xc3"])),
    "a set of a text": extension(7, b"\xa1a"),
    "a set of a map": extension(8, msgpack.packb({b"\x01": 1})),
    "1,025 lists": b"\x91" * 1025 + b"\xc0",
    "33 tuples, one inside the other": nested_tuples(33),
    "a set of lists in lists": extension(7, b"\x92" + b"\x91" * 1000 + b"\x01" + b"\x91" * 1000 + b"\x02"),
    "a set of one list in lists": extension(7, b"\x91\x96" + b"\x91" * 1000 + b"\x01" + b"\x01" * 5),
    "a set of one list of many members": extension(7, b"\x91\x96" + b"\x01" * 6),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bad_bytes_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError, match="msgpack"):
        unpack(data)


NOWHERE = extension(4, msgpack.packb(["2024-01-01T00:00:00", 0, "zone:No/Where"]))


@pytest.mark.parametrize(
    "data",
    [
        NOWHERE,
        b"\x91" + NOWHERE,
        b"\x81" + NOWHERE + b"\x01",
        extension(1, b"\x91" + NOWHERE),
        extension(7, msgpack.packb([NOWHERE])),
    ],
    ids=["alone", "in a list", "as a key", "in a tuple", "in a set"],
)
def test_a_zone_that_this_machine_does_not_have_is_no_damage(data: bytes) -> None:
    with pytest.raises(InvalidStateError, match=r"^time zone 'No/Where' .*Nothing is lost: install .*tzdata"):
        unpack(data)
    assert unpack_all([b"\x01", data, b"\xff"]) is None


@pytest.mark.parametrize("data", [b"\xd4\x63\x00", b"\x91\xd4\x63\x00", extension(1, b"\x91\xd4\x63\x00")])
def test_an_extension_of_a_later_version_is_named(data: bytes) -> None:
    with pytest.raises(MalformedError, match="an extension of type 99, which this version does not know"):
        unpack(data)


def test_little_of_the_stack_is_not_taken_for_bad_bytes() -> None:
    value = {"a": ((1, {(2, frozenset({(3,)}))}), [Decimal("1.5"), datetime(2024, 1, 2, tzinfo=UTC)])}
    packed = pack(value)
    assert outcomes(lambda: unpack(packed) == value) == {True, RecursionError}


READ: dict[str, tuple[bytes, Any]] = {
    "an integer in two bytes": (b"\xcc\x01", 1),
    "an integer in nine bytes": (b"\xd3" + bytes(7) + b"\x01", 1),
    "a float of 32 bits": (b"\xca\x3f\xc0\x00\x00", 1.5),
    "a text with a longer head": (b"\xd9\x01a", "a"),
    "bytes with a longer head": (b"\xc5\x00\x01a", b"a"),
    "a list with a longer head": (b"\xdc\x00\x01\x01", [1]),
    "a map with a longer head": (b"\xdf\x00\x00\x00\x01\x01\x02", {1: 2}),
    "a tuple with a longer head": (b"\xc7\x01\x01\x90", ()),
    "a list of a long integer inside a tuple": (extension(1, b"\xdc\x00\x01\xcc\x01"), (1,)),
    "bytes that look like a timestamp": (b"\xc4\x06\xd6\xff\x00\x00\x00\x01", b"\xd6\xff\x00\x00\x00\x01"),
    "1,024 lists": (b"\x91" * 1024 + b"\xc0", None),
    "the largest decimal": (extension(3, b"1E+999999999999999999"), Decimal("1E+999999999999999999")),
    "the smallest decimal": (extension(3, b"1E-1999999999999999997"), Decimal("1E-1999999999999999997")),
    "an offset with a name and no length": (
        extension(4, msgpack.packb(["2024-01-02T03:04:05", 0, [0, 0, 0, "GMT"]])),
        datetime(2024, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(0), "GMT")),
    ),
}


@pytest.mark.parametrize(("data", "value"), READ.values(), ids=READ)
def test_what_others_may_write_is_read(data: bytes, value: Any) -> None:
    found = unpack(data)
    assert value is None or same(found, value)


def test_a_decimal_is_written_and_read_alike_in_any_context() -> None:
    with localcontext(capitals=0):
        assert pack(Decimal("1E+5")) == b"\xd6\x031E+5"
        assert str(unpack(b"\xd6\x031E+5")) == "1e+5"
    with localcontext(traps=[]), pytest.raises(MalformedError):
        unpack(extension(3, b"x"))


def test_several_nans_may_be_in_a_set() -> None:
    found = unpack(pack({float("nan"), float("nan"), 1}))
    assert len(found) == 3


def test_no_room_is_made_for_what_is_not_there() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError):
            unpack(BAD["arrays that claim more than is there"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("members", [2048, 20_000])
def test_many_values_that_claim_more_than_is_there_get_little_room(members: int) -> None:
    claims = [(b"\xdc" + members.to_bytes(2, "big")) * 341] * 1024  # arrays, each in the one before
    tracemalloc.start()
    try:
        assert unpack_all(claims) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20


@pytest.mark.parametrize("value", [[b"x" * PIECE_BYTES, ["y"] * 10], ["y" * 99] * (PIECE_BYTES // 40)])
def test_a_value_of_several_pieces_comes_back(value: Any) -> None:
    assert unpack(pack(value)) == value


def test_large_values_are_packed_a_few_at_a_time() -> None:
    large = ["x" * (PIECE_BYTES // PACK_COUNT)] * (3 * PACK_COUNT)
    assert pack_some(large) == list(map(pack, large[:PACK_COUNT]))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_malformed(data: bytes) -> None:
    with suppress(MalformedError):
        unpack(data)


keys = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.sampled_from([BERLIN, ZoneInfo("Asia/Kathmandu")]))
    | st.timedeltas()
    | st.uuids(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
values = st.recursive(
    keys | st.floats() | st.times() | st.sets(keys, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=12,
)


@given(values)
def test_every_value_comes_back_as_itself(value: Any) -> None:
    assert same(unpack(pack(value)), value)


@given(st.lists(values, max_size=6))
def test_many_values_are_packed_as_each_alone(some: list[Any]) -> None:
    assert pack_some(some) == list(map(pack, some))


LOOKALIKES = st.sampled_from([bytearray(b"a"), memoryview(b"a"), msgpack.ExtType(5, b"a"), msgpack.Timestamp(1, 2)])
strange = st.recursive(
    values | LOOKALIKES | st.sampled_from([Text("a"), Color.RED, Point(1, 2), Counter(a=1), OrderedDict(a=1), 1j]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | st.just(memoryview(b"k")), inner, max_size=3),
    max_leaves=3,
)


@given(st.lists(strange, min_size=1, max_size=4), st.integers(0, 80), st.randoms(use_true_random=False))
def test_many_values_are_refused_if_one_of_them_alone_is(some: list[Any], others: int, random: Any) -> None:
    # Beside others it depends on how many bytes look like those of another type which values are looked into.
    among = [*some, *({"n": number, "at": number / 7} for number in range(others))]
    random.shuffle(among)
    try:
        alone = list(map(pack, among))
    except UnsupportedValueError:
        with pytest.raises(UnsupportedValueError):
            pack_some(among)
    else:
        packed = pack_some(among)
        assert packed
        assert packed == alone[: len(packed)]


@given(st.lists(values.map(pack) | st.binary(max_size=20), max_size=6))
def test_many_values_are_unpacked_as_each_alone_or_not_at_all(some: list[bytes]) -> None:
    together = unpack_all(some)
    try:
        alone = list(map(unpack, some))
    except MalformedError:
        assert together is None
    else:
        assert together is None or same(together, alone)


@given(values.map(pack) | st.binary(max_size=20))
def test_a_plain_value_is_unpacked_as_any_other_or_not_at_all(data: bytes) -> None:
    try:
        found = unpack_by_msgspec(data)
    except (ValueError, RecursionError):
        return
    assert same(found, unpack(data))


def test_many_plain_values_are_unpacked_together() -> None:
    some = [1, "a", {"n": 1, "at": 0.5}, [None, True]]
    assert unpack_all(list(map(pack, some))) == some


def test_a_plain_value_may_be_no_longer_than_what_is_unpacked_without_a_check() -> None:
    assert unpack_by_msgspec(pack("x" * 1000)) == "x" * 1000
    with pytest.raises(ValueError, match="a long value"):
        unpack_by_msgspec(pack("x" * 1024))


@given(st.lists(values.map(pack), min_size=1, max_size=6), st.lists(st.integers(0, 400), max_size=6))
def test_values_that_are_whole_only_together_are_not_unpacked(some: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(some)
    edges = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    pieces = [whole[start:end] for start, end in pairwise(edges)]
    together = unpack_all(pieces)
    try:
        alone = list(map(unpack, pieces))
    except MalformedError:
        assert together is None
    else:
        assert together is None or same(together, alone)


@pytest.mark.parametrize(
    "some",
    [
        [b"\x01\x02", b""],
        [b"", b"\x01\x02"],
        [b"\x92\x01", b"\x02"],
        [b"\x91", b"\x01", b"\x01\x02"],
        [b"\xa9", b"\x01\x02\x03"],  # a text that would take the mark behind it
        [b"\xd9\x12", b"\x01\x02\x03\x04", b"\x01"],
        [b"\x93", b"\x01\x01\x01"],
    ],
)
def test_no_value_takes_bytes_of_another(some: list[bytes]) -> None:
    assert unpack_all(some) is None
    assert unpack_all([*some, *[b"\x01"] * 20]) is None


def test_values_are_unpacked_in_order_also_where_they_are_many_or_none() -> None:
    numbers = list(range(3000))
    assert unpack_all(list(map(pack, numbers))) == numbers
    assert unpack_all([]) == []


@pytest.mark.parametrize(
    "value",
    [
        *(1, 1.0, -0.0, 1e300, True, False, None, "", "ü", 2**63, 2**64 - 1, -(2**63), math.inf),
        [1, 1.0, True],
        {"a": {"b": [1.0, {"c": -0.0}]}, "": []},
    ],
)
def test_plain_values_are_unpacked_together_each_as_itself(value: Any) -> None:
    found = unpack_all([b"\x01", pack(value), b"\x02"])
    assert found is not None
    assert repr(found) == repr([1, value, 2])


@pytest.mark.parametrize("value", [b"a", (1,), {1: "a"}, {True: 1}, Decimal(1), ["x" * 2000], 2**64, {"a": {1.5}}])
def test_other_values_are_left_to_be_unpacked_alone(value: Any) -> None:
    assert unpack_all([b"\x01", pack(value)]) is None
    assert repr(unpack(pack(value))) == repr(value)


def test_values_that_are_nested_deeply_are_left_to_be_unpacked_alone() -> None:
    value: Any = 1
    for depth in range(1, 300):
        value = [value] if depth % 2 else {"a": value}
        found = unpack_all([pack(value)])
        assert found == ([value] if depth <= msgpack_values.PLAIN_DEPTH else None)


@given(st.lists(st.tuples(values.map(pack), st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4))
def test_values_with_a_changed_byte_are_unpacked_as_each_alone_or_not_at_all(
    some: list[tuple[bytes, int, int]],
) -> None:
    changed = []
    for packed, place, byte in some:
        at = place % len(packed)
        changed.append(packed[:at] + bytes([byte]) + packed[at + 1 :])
    together = unpack_all(changed)
    if together is not None:
        assert same(together, list(map(unpack, changed)))


@pytest.mark.parametrize("looks", [b"\xd6\xff", b"\xc7\x04\xff", b"\xc8\x00\x04\xff", b"\xc9\x00\x00\x00\x04\xff"])
def test_numbers_whose_bytes_look_like_a_timestamp_are_unpacked_together(looks: bytes) -> None:
    number = struct.unpack(">d", b"\x40" + looks.ljust(7, b"\0"))[0]
    numbers = [1, number, {"a": [number]}, -1]
    assert unpack_all(list(map(pack, numbers))) == numbers
    # The looks do not hide a timestamp in a later value.
    assert unpack_all([*map(pack, numbers), b"\x91\xd6\xff\0\0\0\0"]) is None


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_malformed_value_among_many_is_found(bad: bytes) -> None:
    assert unpack_all([b"\x01", b"\x91\xff", b"\x81\xa1a\xff"]) == [1, [-1], {"a": -1}]
    assert unpack_all([b"\x01", bad, b"\xff"]) is None


@pytest.mark.parametrize("packing", [pack, lambda value: pack_some([1, value])])
@pytest.mark.parametrize("inside", [lambda part: part, lambda part: [1, (2, part)], lambda part: {"a": ((part,),)}])
@pytest.mark.parametrize(
    ("part", "change"),
    [
        ([Decimal(1), 2, 3], lambda part: part.append(4)),
        ([Decimal(1), 2, 3], lambda part: part.pop()),
        ({"a": Decimal(1), "b": 2}, lambda part: part.popitem()),
        ([b"x" * PIECE_BYTES, Decimal(1), 2], lambda part: part.append(b"x" * PIECE_BYTES)),
    ],
)
def test_a_value_that_changes_while_it_is_packed_is_refused(
    packing: Callable[[Any], Any], inside: Any, part: Any, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may run whenever a part is packed by Python."""
    part = part.copy()
    code, encode = msgpack_extensions.PACKERS[Decimal]

    def changed(value: Any, pack: Any) -> bytes:
        change(part)
        return encode(value, pack)

    with monkeypatch.context() as patch:
        patch.setitem(msgpack_extensions.PACKERS, Decimal, (code, changed))
        with pytest.raises(UnsupportedValueError):
            packing(inside(part))
    assert packing(inside(part))
