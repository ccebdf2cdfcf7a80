"""Keyed state as stored bytes, and which partition a key belongs to."""

import ast
import math
import os
import pickle
import random
import subprocess
import sys
import tracemalloc
import zlib
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError, MalformedError
from pyspark_checkpointer.manifests.keyed_records import CHUNK_BYTES, CHUNK_ENTRIES, decode, encode, partition_of
from pyspark_checkpointer.manifests.msgpack_values import pack
from pyspark_checkpointer.manifests.zones import normalise
from tests.manifests.names import shown
from tests.manifests.test_msgpack_values import keys, same
from tests.stack import outcomes

ROOT = Path(__file__).parents[2]
RECORDS: dict[Any, bytes | None] = {
    "a": pack(1),
    b"a": pack([1, 2]),
    ("t", 1, (None, b"x")): pack({"deep": (1, 2)}),
    frozenset({1, "b"}): pack(None),
    10**30: pack("big"),
    Decimal("1.50"): pack(Decimal("1.50")),
    datetime(2024, 1, 2, tzinfo=ZoneInfo("Asia/Kathmandu")): pack(b""),
    None: pack("nil"),
    "gone": None,
}

# ---- stored bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "records",
    [{}, {"a": b"\x01"}, RECORDS, {n: pack(str(n)) for n in range(2 * CHUNK_ENTRIES + 1)}],
    ids=["none", "one", "every type of key", "more than two chunks"],
)
def test_records_come_back_in_order(records: dict[Any, bytes | None]) -> None:
    stored, raw_size = encode(records)
    decoded = decode("obj", stored, raw_size, len(records))
    assert list(decoded.items()) == list(records.items())
    assert all(map(same, decoded, records))
    assert decode("obj", memoryview(stored), raw_size, len(records)) == decoded


def test_equal_records_are_equal_bytes() -> None:
    assert encode(dict(RECORDS)) == encode(dict(RECORDS))


def test_stored_bytes_are_one_frame_of_keys_and_values_in_turn() -> None:
    stored, raw_size = encode(dict.fromkeys(range(CHUNK_ENTRIES + 1)))
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(stored)
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(raw)
    assert [*unpacker] == [[*range(CHUNK_ENTRIES)], [None] * CHUNK_ENTRIES, [CHUNK_ENTRIES], [None]]
    assert len(raw) == raw_size


def test_large_values_are_packed_a_few_at_a_time() -> None:
    records = {n: bytes(CHUNK_BYTES // 2 - 100 * (n % 2)) if n % 3 else None for n in range(20)}
    stored, raw_size = encode(records)
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=raw_size)
    unpacker.feed(zstandard.ZstdDecompressor().decompressobj().decompress(stored))
    arrays = [*unpacker]
    assert [key for keys in arrays[::2] for key in keys] == [*records]
    assert max(sum(len(value or b"") for value in values) for values in arrays[1::2]) < 2 * CHUNK_BYTES
    assert decode("obj", stored, raw_size, len(records)) == records


def test_large_values_are_never_in_memory_all_together_a_second_time() -> None:
    noise, size = random.Random(0), 64 * (256 << 10)
    records: dict[Any, bytes | None] = {n: noise.randbytes(256 << 10) for n in range(64)}
    tracemalloc.start()
    try:
        stored, raw_size = encode(records)
        _, encoding = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        decoded = decode("obj", stored, raw_size, len(records))
        _, decoding = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoded == records
    assert encoding < 1.6 * size, "what is stored, and a few values"
    assert decoding - before < 1.6 * size, "the values themselves, and few of them packed"


def frame(raw: bytes) -> bytes:
    return zstandard.compress(raw)


def raw_of(*values: Any) -> bytes:
    return b"".join(map(msgpack.packb, values))


RAW = raw_of(["a"], [b"\x01"])


def whole(raw: bytes, *, records: int = 1) -> tuple[bytes, int, int]:
    return frame(raw), len(raw), records


def window(log: int, raw: bytes) -> bytes:
    """A frame of one stored block, with a window of 2**(10 + log) bytes."""
    block = (len(raw) << 3 | 1).to_bytes(3, "little") + raw
    return b"\x28\xb5\x2f\xfd\x00" + bytes([log << 3]) + block


BAD: dict[str, tuple[bytes, int, int]] = {
    "nothing": (b"", len(RAW), 1),
    "no frame": (RAW, len(RAW), 1),
    "a cut frame": (frame(RAW)[:-1], len(RAW), 1),
    "a frame without its end": (zstandard.ZstdCompressor().compressobj().compress(RAW), len(RAW), 1),
    "a byte behind the frame": (frame(RAW) + b"\0", len(RAW), 1),
    "a frame behind the frame": (frame(RAW) + frame(RAW), len(RAW), 1),
    "a frame before the frame": (frame(b"") + frame(RAW), len(RAW), 1),
    "a skippable frame": (b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc", 0, 0),
    "raw size too small": (frame(RAW), len(RAW) - 1, 1),
    "raw size too large": (frame(RAW), len(RAW) + 1, 1),
    "raw size zero": (frame(RAW), 0, 0),
    "raw size of exabytes": (frame(RAW), 2**62, 1),
    "raw size of terabytes": (frame(RAW), 2**42, 1),
    "a bomb": (frame(bytes(100_000_000)), 100, 1),
    "too many records": (frame(RAW), len(RAW), 0),
    "too few records": (frame(RAW), len(RAW), 2),
    "a key twice": whole(RAW + RAW, records=2),
    "a key twice, recorded as one": whole(RAW + RAW, records=1),
    "two equal keys, recorded as one": whole(raw_of([1, True], [None, None])),
    "NaN as a key": whole(raw_of([1.5, math.nan], [None, None]), records=2),
    "NaN among integers": whole(raw_of([2**64 - 1, math.nan], [None, None]), records=2),
    "NaN among texts": whole(raw_of(["a", math.nan], [None, None]), records=2),
    "NaN of 32 bits": whole(b"\x91\xca\x7f\xc0\x00\x00\x91\xc0"),
    "NaN beside infinities": whole(raw_of([math.inf, -math.inf, math.nan], [None] * 3), records=3),
    "a decimal NaN": whole(b"\x91" + pack(Decimal("NaN")) + b"\x91\xc0"),
    "NaN in a tuple": whole(b"\x92" + pack(("a", 1.5)) + pack(("a", math.nan)) + b"\x92\xc0\xc0", records=2),
    "NaN in one of several tuples": whole(b"\x92" + pack(("a",)) + pack(("a", math.nan)) + b"\x92\xc0\xc0", records=2),
    "NaN deep in a key": whole(b"\x91" + pack((1, frozenset({("a", math.nan)}))) + b"\x91\xc0"),
    "a timestamp as a key": whole(b"\x91\xd6\xff\x00\x00\x00\x01\x91\xc0"),
    "a timestamp among texts": whole(b"\x92\xa1a\xd6\xff\x00\x00\x00\x01\x92\xc0\xc0", records=2),
    "a window of 16 MiB": (window(14, RAW), len(RAW), 1),
    "a key twice in one array": whole(raw_of(["a", "a"], [None, None]), records=2),
    "a number": whole(b"\x01", records=0),
    "a map": whole(raw_of({"a": b"\x01"})),
    "maps": whole(raw_of({"a": 1}, {b"\x01": 1})),
    "text": whole(raw_of("a", [b"\x01"])),
    "text of no letters": whole(raw_of("", ""), records=0),
    "bytes": whole(raw_of(b"a", [b"\x01"])),
    "a tuple": whole(pack(("a",)) + raw_of([b"\x01"])),
    "keys without values": whole(raw_of(["a"])),
    "no keys without values": whole(raw_of([]), records=0),
    "more keys than values": whole(raw_of(["a", "b"], [b"\x01"])),
    "more values than keys": whole(raw_of(["a"], [b"\x01", b"\x01"])),
    "cut values": whole(RAW[:-1]),
    "a byte behind the values": whole(RAW + b"\x91"),
    "a number behind the values": whole(RAW + b"\x01"),
    "a value that is text": whole(raw_of(["a"], ["b"])),
    "a value that is a number": whole(raw_of(["a"], [1])),
    "a value that is a list": whole(raw_of(["a"], [[]])),
    "a list as a key": whole(raw_of([["a"]], [None])),
    "a map as a key": whole(raw_of([{}], [None])),
    "a key of an unknown extension": whole(b"\x91\xd4\x0b\x00\x91\xc0"),
    "an array of four thousand million": whole(b"\xdd\xff\xff\xff\xff"),
    "a byte that msgpack does not know": (frame(b"\xc1"), 1, 0),
}


@pytest.mark.parametrize(("stored", "raw_size", "records"), BAD.values(), ids=BAD)
def test_bad_bytes_are_malformed_and_named(stored: bytes, raw_size: int, records: int) -> None:
    with pytest.raises(MalformedError, match=r"^artifacts/obj: "):
        decode("artifacts/obj", stored, raw_size, records)


def test_a_key_in_a_zone_that_this_machine_does_not_have_is_no_damage() -> None:
    packed = pack(datetime(2024, 1, 2, tzinfo=ZoneInfo("Asia/Kathmandu"))).replace(b"Asia/Kathmandu", b"Asia/Nowhere12")
    with pytest.raises(
        InvalidStateError, match=r"^artifacts/obj: time zone 'Asia/Nowhere12' .*Nothing is lost.*tzdata"
    ):
        decode("artifacts/obj", *whole(b"\x91" + packed + b"\x91\xc0"))


@pytest.mark.parametrize("key", [b"\xd4\x63\x00", b"\xc7\x05\x01\x92\x01\xd4\x63\x00"], ids=["alone", "in a tuple"])
def test_a_key_of_a_later_version_is_named_and_so_is_its_object(key: bytes) -> None:
    with pytest.raises(MalformedError, match=r"^artifacts/obj: .*an extension of type 99, which this version does not"):
        decode("artifacts/obj", *whole(b"\x91" + key + b"\x91\xc0"))


def test_a_frame_may_have_a_window_of_8_mib() -> None:
    assert decode("obj", window(13, RAW), len(RAW), 1) == {"a": b"\x01"}


def test_infinities_and_keys_of_several_types_are_keys() -> None:
    some: list[Any] = [
        math.inf,
        -math.inf,
        2**2000,
        1.5,
        "a",
        b"a",
        None,
        ("a", 1.5),
        ("a",),
        (),
        frozenset({(1.5, "a")}),
    ]
    for several in (some, some[::-1], [("a", 1.5), ("b", 2)], [2**2000, 1.5], [Decimal("1.5"), Decimal("Infinity")]):
        stored, raw_size = encode(dict.fromkeys(several))
        assert list(decode("obj", stored, raw_size, len(several))) == several


def test_a_flipped_bit_is_malformed_or_read_as_something_else() -> None:
    """Whoever reads compares the digest first; without it the decoder must still end in the tree."""
    stored, raw_size = encode(RECORDS)
    for at in range(8 * len(stored)):
        bad = bytearray(stored)
        bad[at // 8] ^= 1 << at % 8
        with suppress(CheckpointError):
            decode("obj", bytes(bad), raw_size, len(RECORDS))


def test_little_of_the_stack_is_not_taken_for_a_damaged_object() -> None:
    stored, raw_size = encode(RECORDS)
    assert outcomes(lambda: decode("obj", stored, raw_size, len(RECORDS)) == RECORDS) == {True, RecursionError}
    keys = list(RECORDS)
    assert outcomes(lambda: all(partition_of(key, 1) == 0 for key in keys)) == {True, RecursionError}


@given(st.binary(max_size=100), st.integers(0, 300), st.integers(0, 10))
def test_any_raw_bytes_are_records_or_malformed(raw: bytes, raw_size: int, records: int) -> None:
    with suppress(MalformedError):
        decode("obj", raw, raw_size, records)
    with suppress(MalformedError):
        decode("obj", frame(raw), len(raw), records)


@given(st.dictionaries(keys, st.none() | st.binary(min_size=1, max_size=9), max_size=8))
def test_any_records_come_back(records: dict[Any, bytes | None]) -> None:
    # Keys as a state stores them: a test of zones that ran before may have made other zones the known ones.
    records = {normalise(key): value for key, value in records.items()}
    stored, raw_size = encode(records)
    assert list(decode("obj", stored, raw_size, len(records)).items()) == list(records.items())


# ---- partitions -----------------------------------------------------------------------------------------------------

MANY = 2**31
BERLIN = ZoneInfo("Europe/Berlin")

EQUAL: list[tuple[Any, ...]] = [
    (0, 0.0, -0.0, False, Decimal(0), Decimal("-0"), Decimal("0E+7")),
    (1, 1.0, True, Decimal(1), Decimal("1.000"), Decimal("10E-1")),
    (-1, -1.0, Decimal("-1")),
    (0.5, Decimal("0.5"), Decimal("0.50")),
    (2**61 - 1, Decimal(2**61 - 1)),
    (10**30, Decimal("1E+30")),
    (2**1000, float(2**1000), Decimal(2**1000)),
    (float("inf"), Decimal("Infinity")),
    (float("-inf"), Decimal("-Infinity")),
    ((1, (2.0, True)), (1.0, (2, 1)), (Decimal(1), (Decimal(2), Decimal(1)))),
    (frozenset({1, "a"}), frozenset({"a", True}), frozenset({"a", 1.0})),
    (
        datetime(2024, 7, 1, 12, tzinfo=UTC),
        datetime(2024, 7, 1, 14, tzinfo=BERLIN),
        datetime(2024, 7, 1, 14, tzinfo=timezone(timedelta(hours=2), "named")),
        datetime(2024, 7, 1, 2, 30, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
    ),
    (datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN), datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1)),
    (datetime(2024, 1, 1), datetime(2024, 1, 1, fold=1)),
    (time(1, 2), time(1, 2, fold=1)),
    (timedelta(days=1), timedelta(hours=24)),
    (UUID(int=1), UUID("00000000-0000-0000-0000-000000000001")),
]


@pytest.mark.parametrize("group", EQUAL, ids=lambda group: shown(group[0]))
def test_equal_keys_share_a_partition(group: tuple[Any, ...]) -> None:
    assert len(set(group)) == 1, "these are not equal: the table is wrong"
    assert len({partition_of(key, MANY) for key in group}) == 1


@given(keys, keys)
def test_whatever_is_equal_shares_a_partition(a: Any, b: Any) -> None:
    assert 0 <= partition_of(a, 7) < 7
    assert a != b or partition_of(a, MANY) == partition_of(b, MANY)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3) | st.floats(allow_nan=False) | st.integers())
def test_numbers_that_are_equal_share_a_partition(number: Any) -> None:
    for kind in (int, float, Decimal):
        with suppress(OverflowError, ValueError):
            other = kind(number)
            assert other != number or partition_of(other, MANY) == partition_of(number, MANY)


def python_hash(key: int | float | Decimal) -> int:
    """The rule of SPEC.md, from its text alone."""
    if key in (float("inf"), float("-inf")):
        return 314159 if key > 0 else -314159
    prime = 2**61 - 1
    top, bottom = key.as_integer_ratio()
    if bottom % prime == 0:
        return 314159 if key > 0 else -314159
    found = abs(top) % prime * pow(bottom, -1, prime) % prime
    found = found if top >= 0 else -found
    return -2 if found == -1 else found


@given(
    st.integers()
    | st.floats(allow_nan=False)
    | st.decimals(allow_nan=False, min_value=-(10**40), max_value=10**40)
    | st.sampled_from([2**61 - 1, 2**61 - 2, 2**61, -(2**61) + 1, -1, -2, float("inf"), Decimal("-Infinity")])
)
def test_the_canonical_bytes_of_a_number_are_those_of_the_specification(number: Any) -> None:
    assert partition_of(number, MANY) == zlib.crc32(str(python_hash(number)).encode()) % MANY


CANONICAL: list[tuple[Any, bytes]] = [
    ("naïve", "naïve".encode()),
    (b"\xff", b"\xff"),
    (None, b"nil"),
    (True, b"1"),
    (-1, b"-2"),
    (1.5, b"1152921504606846977"),
    ((), b"()"),
    (("a", (1, None), b"x"), b"(a,(1,nil),x)"),
    (frozenset({"b", "a", 1}), b"{1,a,b}"),
    (datetime(2024, 1, 2, 3, 4, 5), b"2024-01-02T03:04:05"),
    (datetime(2024, 1, 2, 3, 4, 5, 6, fold=1), b"2024-01-02T03:04:05.000006"),
    (datetime(1970, 1, 1, 1, tzinfo=BERLIN), b"0"),
    (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), b"-1"),
    (date(2024, 1, 2), b"2024-01-02"),
    (time(1, 2, 3, 4), b"01:02:03.000004"),
    (timedelta(days=-1, microseconds=1), b"-86399999999"),
    (UUID(int=258), bytes(14) + b"\x01\x02"),
]


@pytest.mark.parametrize(("key", "canonical"), CANONICAL, ids=shown)
def test_the_canonical_bytes_of_a_key(key: Any, canonical: bytes) -> None:
    assert partition_of(key, MANY) == zlib.crc32(canonical) % MANY


def test_partitions_do_not_depend_on_the_process() -> None:
    sample = [*(key for key, _ in CANONICAL), *RECORDS]
    program = (
        "from datetime import *; from decimal import Decimal; from uuid import UUID; import pickle, sys\n"
        "from pyspark_checkpointer.manifests.keyed_records import partition_of\n"
        "print([partition_of(key, 2**31) for key in pickle.load(sys.stdin.buffer)])"
    )
    here = [partition_of(key, MANY) for key in sample]
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=pickle.dumps(sample),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            capture_output=True,
            check=True,
            timeout=60,
        )
        assert ast.literal_eval(done.stdout.decode()) == here, f"PYTHONHASHSEED={seed}"


@pytest.mark.parametrize("partitions", [2, 7, 8, 64])
@pytest.mark.parametrize(
    "make",
    [str, lambda n: f"user-{n:08d}", lambda n: n, lambda n: n * 1024, lambda n: (n, "a"), lambda n: n / 7],
    ids=["digits", "names", "numbers", "multiples", "tuples", "fractions"],
)
def test_keys_spread_evenly(make: Any, partitions: int) -> None:
    counts = [0] * partitions
    for number in range(400 * partitions):
        counts[partition_of(make(number), partitions)] += 1
    assert 300 < min(counts) <= max(counts) < 500


class Nowhere(tzinfo):
    def utcoffset(self, when: datetime | None) -> None:
        return None


class Number(IntEnum):
    ONE = 1


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("key", "named"),
    [
        (float("nan"), "NaN"),
        (Decimal("NaN"), "NaN"),
        (Decimal("sNaN"), "NaN"),
        (("a", float("nan")), "NaN"),
        ("a\ud800", "lone surrogate"),
        (Number.ONE, "Number"),
        (Name("a"), "Name"),
        (("a", Name("b")), "Name"),
        ([], "list"),
        ({}, "dict"),
        (bytearray(b"a"), "bytearray"),
        (memoryview(b"a"), "memoryview"),
        (object(), "object"),
        (1j, "complex"),
    ],
    ids=shown,
)
def test_a_key_that_cannot_be_stored_is_refused_by_name(key: Any, named: str) -> None:
    with pytest.raises(IllegalArgumentError, match=named):
        partition_of(key, 8)


def test_a_zone_that_says_nothing_is_no_zone() -> None:
    """Python calls them equal."""
    naive = datetime(2024, 1, 1)
    assert naive.replace(tzinfo=Nowhere()) == naive
    assert partition_of(naive.replace(tzinfo=Nowhere()), MANY) == partition_of(naive, MANY)
