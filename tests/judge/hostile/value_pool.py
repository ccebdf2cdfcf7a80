"""Keys and values of maps, good and bad, as bytes."""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import msgpack

from pyspark_checkpointer.manifests import msgpack_values
from tests.judge import stores

SPEC = Path(__file__).parents[3] / "manifests" / "SPEC.md"


def _vectors() -> Iterator[bytes]:
    """The bytes of all values of the specification, good and bad."""
    tag = None
    for line in SPEC.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            tag = line[3:]
        elif tag == "text msgpack":
            yield bytes.fromhex(line.rpartition(" → ")[2])
        elif tag in ("text refused values", "text accepted values"):
            yield bytes.fromhex(line.partition(" → ")[0])


def _ext(code: int, data: bytes) -> bytes:
    return b"\xc9" + len(data).to_bytes(4, "big") + bytes([code]) + data


def _inside(levels: int) -> bytes:
    data = b"\xc0"
    for _ in range(levels):
        data = _ext(1, b"\x91" + data)
    return data


_BERLIN, _BUSINGEN = ZoneInfo("Europe/Berlin"), ZoneInfo("Europe/Busingen")
_TIMES = [
    datetime(2024, 10, 27, 2, 30, tzinfo=_BERLIN),
    datetime(2024, 10, 27, 2, 30, tzinfo=_BERLIN, fold=1),
    datetime(2024, 10, 27, 2, 30, tzinfo=_BUSINGEN),
    datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
    datetime(2024, 10, 27, 1, 30, tzinfo=UTC),
    datetime(2024, 3, 31, 2, 30, tzinfo=_BERLIN),
    datetime(2024, 3, 31, 3, 30, tzinfo=_BERLIN),
    datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
    datetime(2024, 1, 1, 1, fold=1),
    datetime(2024, 1, 1, 1),
    datetime(1, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo")),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=ZoneInfo("America/New_York")),
]
_EQUAL = [1, 1.0, True, Decimal("1.00"), 0.0, -0.0, 0, False, Decimal("-0"), 0.5, Decimal("0.5"), 2**53, 2.0**53]
_EQUAL += [
    (1,),
    (True,),
    frozenset({1}),
    frozenset({1.0}),
    10**30,
    Decimal("1E+30"),
    1e30,
    float("inf"),
    Decimal("Infinity"),
]
_RAW = [
    *(_inside(32), _inside(33), b"\x91" * 1024 + b"\xc0", b"\x91" * 1025 + b"\xc0", b"\x82\x01\xc0\x01\xc0"),
    *(
        b"\x82\x01\xc0\xc3\xc0",
        b"\x81\xcb\x7f\xf8\0\0\0\0\0\0\xc0",
        b"\x81\x90\xc0",
        b"\xc1",
        b"\xc6\0\0\0\1a",
        b"\xdb\0\0\0\1a",
    ),
    *(
        _ext(3, b"NaN"),
        _ext(3, b"-NaN12"),
        _ext(3, b"NaN012"),
        _ext(3, b"sNaN"),
        _ext(3, b"-Infinity"),
        _ext(3, b"1E+5"),
    ),
    *(_ext(3, b"1.E+5"), _ext(3, b"0E-7"), _ext(3, b"0.000000"), _ext(3, b"1E+999999999999999999"), _ext(3, b"00")),
    *(_ext(3, b"1E+1000000000000000000"), _ext(3, b"1E-1999999999999999997"), _ext(3, b"1E-1999999999999999998")),
    *(
        _ext(2, b""),
        _ext(2, b"\0" * 9),
        _ext(2, b"\1" + b"\0" * 8),
        _ext(2, b"\xfe" + b"\xff" * 8),
        _ext(2, b"\0" + b"\xff" * 8),
    ),
    *(
        _ext(7, b"\x92\xc4\1\1\xc4\1\1"),
        _ext(7, b"\x92\xc4\1\1\xc4\2\xcc\1"),
        _ext(8, b"\x91\xc4\x01\x90"),
        _ext(7, b"\x91\1"),
    ),
    *(_ext(1, b"\x91\xcb\x7f\xf8\0\0\0\0\0\0"), _ext(9, b"0000-01-01"), _ext(9, b"2023-02-29"), _ext(10, b"\0" * 17)),
    *(
        _ext(7, b"\x92" + 2 * b"\xc4\x09\xcb\x7f\xf8\0\0\0\0\0\0"),
        _ext(7, b"\x92" + 2 * (b"\xc4\x09" + _ext(3, b"NaN"))),
    ),
    *(
        _ext(5, b"\x92\xa823:59:60\0"),
        _ext(5, b"\x92\xa823:59:59\xc3"),
        _ext(5, b"\x92\xa823:59:59\xcc\1"),
        b"\xca\x7f\xc0\0\0",
    ),
    _ext(7, b"\x92\xc4\1\xc0" + b"\xc4\x0a" + _ext(3, b"sNaN")),
    _ext(7, b"\x91\xc4\x10" + _ext(1, b"\x91\xcb\x7f\xf8\0\0\0\0\0\0")),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb("zone:Europe/Berlin ")),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb("zone:../Berlin")),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb("zone:europe/berlin")),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb("zone:UTC")),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb([0, 0, 0, "x"])),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb([-1, 1, 0])),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb([-1, 0, 0])),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb([0, 3600, 0, 1])),
    _ext(4, b"\x93" + msgpack.packb("0001-01-01T00:00:00") + b"\0" + msgpack.packb([0, 3600, 0])),
]
KEYS = [msgpack_values.pack(key) for key in [*_TIMES, *_EQUAL, *stores.KEYS]]
POOL = [*_vectors(), *_RAW, *KEYS]
