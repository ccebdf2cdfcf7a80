"""Kinds of damage that other readers of Parquet fell over, each made of a sound file of a table.

They are those of Apache's collection of bad files, and lies of the same kind in every number of a page's header or of
the footer. The digests of the file are right: so are those of somebody with bad intentions.

`python -m tests.table.bad_parquet SHARE` reads them in every way, and tells of each what came of it, as JSON.
"""

import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.table import parquet_decode, parquet_encode, repeated_texts, row_groups
from tests.proof.load.gauges import resident
from tests.table.parquet_file import (
    CHUNK_SIZE,
    CHUNK_STORED,
    CHUNK_TYPE,
    CHUNK_VALUES,
    CODEC,
    DATA_HEADER,
    DATA_OFFSET,
    DICTIONARY_HEADER,
    DICTIONARY_OFFSET,
    ELEMENT_CHILDREN,
    ELEMENT_LENGTH,
    ELEMENT_REPETITION,
    ELEMENT_TYPE,
    GROUP_ROWS,
    NUM_ROWS,
    PAGE_ENCODING,
    PAGE_SIZE,
    PAGE_STORED,
    PAGE_TYPE,
    PAGE_VALUES,
    SCHEMA,
    ParquetFile,
    Struct,
    encoded,
    varint,
    with_footer,
)
from tests.table.tables import array, changes_of, schema_of, snapshot_rows

TABLE = schema_of({"k": "long", "n": "double", "text": "string", "b": "binary", "many": array("long")}, ["k"])
K, N, TEXT, B, MANY = range(5)
ROWS = [(i, i + 0.5, f"text{i % 3}", b"abcd" if i % 2 else b"efgh", [i, i + 1, i + 2]) for i in range(100)]

ADDRESSES = 4 << 30
"""Bytes of address space for the program that reads: what a lie makes it ask for beyond that, it does not get."""

LIES = (-1, 0, 1, 2**31 - 1, -(2**31))
LONG_LIES = (*LIES, 2**40, 2**63 - 1, -(2**63))

Damage = Callable[[ParquetFile], bytes]


def levels_of(body: bytes) -> tuple[bytes, bytes]:
    """Part a page's body into its first run of levels, and the rest."""
    size = int.from_bytes(body[:4], "little")
    return body[4 : 4 + size], body[4 + size :]


def with_levels(levels: bytes, rest: bytes) -> bytes:
    return len(levels).to_bytes(4, "little") + levels + rest


def run_of(level: int, count: int) -> bytes:
    """Return so many equal levels, of one bit each."""
    return varint(count << 1) + bytes([level])


# ---- what Apache's collection has ------------------------------------------------------------------------------------


def unknown_type_in_schema(file: ParquetFile) -> bytes:
    file.elements[K].put(ELEMENT_TYPE, 42)
    return file.build()


def negative_dictionary(file: ParquetFile) -> bytes:
    file.pages[TEXT][0].header.get_value(DICTIONARY_HEADER).put(PAGE_VALUES, -5)
    return file.build()


def too_few_repetition_levels(file: ParquetFile) -> bytes:
    (page,) = file.pages[MANY]
    _, rest = levels_of(page.body)
    page.body = with_levels(run_of(0, 10), rest)
    return file.build()


def first_repetition_level_is_one(file: ParquetFile) -> bytes:
    (page,) = file.pages[MANY]
    _, rest = levels_of(page.body)
    page.body = with_levels(run_of(1, 300), rest)
    return file.build()


def fewer_levels_than_values(file: ParquetFile) -> bytes:
    (page,) = file.pages[N]
    _, rest = levels_of(page.body)
    page.body = with_levels(run_of(1, 10), rest)
    return file.build()


def levels_of_a_bit_width_that_is_none(file: ParquetFile) -> bytes:
    page = file.pages[TEXT][1]
    levels, rest = levels_of(page.body)
    page.body = with_levels(levels, bytes([254]) + rest[1:])
    return file.build()


def columns_of_different_sizes(file: ParquetFile) -> bytes:
    (page,) = file.pages[N]
    page.body = with_levels(run_of(1, 40), levels_of(page.body)[1][: 40 * 8])
    page.header.get_value(DATA_HEADER).put(PAGE_VALUES, 40)
    file.chunks[N].put(CHUNK_VALUES, 40)
    return file.build()


def column_that_ends_early(file: ParquetFile) -> bytes:
    """The same, while its chunk says that all values are there."""
    (page,) = file.pages[N]
    page.body = with_levels(run_of(1, 40), levels_of(page.body)[1][: 40 * 8])
    page.header.get_value(DATA_HEADER).put(PAGE_VALUES, 40)
    return file.build()


def nulls_in_a_required_column(file: ParquetFile) -> bytes:
    (page,) = file.pages[N]
    page.body = levels_of(page.body)[1][:-8]
    file.elements[N].put(ELEMENT_REPETITION, 0)
    return file.build()


def fixed_length_with_lengths(file: ParquetFile) -> bytes:
    """Values with their lengths before them, in a column that says that all are of one."""
    element = file.elements[B]
    element.put(ELEMENT_TYPE, 7)
    element.put(ELEMENT_LENGTH, 4, kind=5)
    file.chunks[B].put(CHUNK_TYPE, 7)
    return file.build()


def indices_of_no_bits(file: ParquetFile) -> bytes:
    page = file.pages[TEXT][1]
    levels, _ = levels_of(page.body)
    page.body = with_levels(levels, bytes([0]) + varint(100 << 1))
    return file.build()


def indices_beyond_the_dictionary(file: ParquetFile) -> bytes:
    page = file.pages[TEXT][1]
    levels, _ = levels_of(page.body)
    page.body = with_levels(levels, bytes([8]) + varint(100 << 1) + b"\xc8")
    return file.build()


# ---- lies in any number ----------------------------------------------------------------------------------------------


def page_number(column: int, at: int, number: int, value: int) -> Damage:
    def damage(file: ParquetFile) -> bytes:
        page = file.pages[column][at]
        if number in (PAGE_SIZE, PAGE_STORED):
            page.claims[number] = value
        else:
            page.header.put(number, value)
        return file.build()

    return damage


def inner_number(column: int, at: int, inner: int, number: int, value: int) -> Damage:
    def damage(file: ParquetFile) -> bytes:
        file.pages[column][at].header.get_value(inner).put(number, value)
        return file.build()

    return damage


def footer_number(find: Callable[[ParquetFile], Struct], number: int, value: int) -> Damage:
    """What is built anew with the file is exchanged afterwards."""

    def damage(file: ParquetFile) -> bytes:
        body, footer = file.parts()
        find(file).put(number, value)
        return with_footer(body, encoded(footer))

    return damage


def body_byte(column: int, at: int, value: int) -> Damage:
    """A byte of what the page holds: levels, and the heads of encodings."""

    def damage(file: ParquetFile) -> bytes:
        page = file.pages[column][-1]
        page.body = page.body[:at] + bytes([value]) + page.body[at + 1 :]
        return file.build()

    return damage


def deep_schema(file: ParquetFile) -> bytes:
    """Groups in groups, until somebody's stack is full."""
    root, *leaves = file.footer.get_value(SCHEMA)[1]
    group = Struct({ELEMENT_REPETITION: (5, 0), 4: (8, b"g"), ELEMENT_CHILDREN: (5, 1)})
    file.footer.put(SCHEMA, (12, [root, *[group] * 100_000, *leaves]))
    return file.build()


def many_rows(file: ParquetFile) -> bytes:
    """All that says how many rows there are agrees: more than any memory holds."""
    file.footer.put(NUM_ROWS, 2**40)
    file.group.put(GROUP_ROWS, 2**40)
    for chunk in file.chunks:
        chunk.put(CHUNK_VALUES, 2**40)
    return file.build()


def fewer_rows(file: ParquetFile) -> bytes:
    """The group says that it has fewer rows than are there, so the rest would be passed over."""
    file.group.put(GROUP_ROWS, 40)
    return file.build()


def more_rows(file: ParquetFile) -> bytes:
    file.footer.put(NUM_ROWS, 101)
    file.group.put(GROUP_ROWS, 101)
    return file.build()


NAMED: tuple[Damage, ...] = (
    unknown_type_in_schema,
    negative_dictionary,
    too_few_repetition_levels,
    first_repetition_level_is_one,
    fewer_levels_than_values,
    levels_of_a_bit_width_that_is_none,
    columns_of_different_sizes,
    column_that_ends_early,
    nulls_in_a_required_column,
    fixed_length_with_lengths,
    indices_of_no_bits,
    indices_beyond_the_dictionary,
    deep_schema,
    many_rows,
    fewer_rows,
    more_rows,
)


def cases() -> Iterator[tuple[str, Damage]]:
    """Every damage, with a name."""
    yield from ((damage.__name__, damage) for damage in NAMED)
    for column, at in ((K, 0), (N, 0), (TEXT, 0), (TEXT, 1), (MANY, 0)):
        inner = DICTIONARY_HEADER if (column, at) == (TEXT, 0) else DATA_HEADER
        for value in LIES:
            for number in (PAGE_TYPE, PAGE_SIZE, PAGE_STORED):
                yield f"page {column}.{at}: {number}={value}", page_number(column, at, number, value)
            for number in (PAGE_VALUES, PAGE_ENCODING, 3, 4):
                if number < 3 or inner == DATA_HEADER:
                    name = f"page {column}.{at}: {inner}.{number}={value}"
                    yield name, inner_number(column, at, inner, number, value)
        for place in range(16):
            for byte in (0, 1, 0x7F, 0xFF):
                if inner == DATA_HEADER:
                    yield f"body {column}: byte {place}={byte}", body_byte(column, place, byte)
    places: list[tuple[str, Callable[[ParquetFile], Struct], tuple[int, ...]]] = [
        ("footer", lambda file: file.footer, (1, NUM_ROWS)),
        ("group", lambda file: file.group, (GROUP_ROWS, 2, 5, 6, 7)),
        ("element", lambda file: file.elements[K], (ELEMENT_TYPE, ELEMENT_LENGTH, ELEMENT_REPETITION, 5, 6, 9)),
    ]
    for index in (K, TEXT, MANY):
        numbers = (CHUNK_TYPE, CODEC, CHUNK_VALUES, CHUNK_SIZE, CHUNK_STORED, DATA_OFFSET, 10)
        numbers += (DICTIONARY_OFFSET,) if index == TEXT else ()
        places.append((f"chunk {index}", lambda file, index=index: file.chunks[index], numbers))  # type: ignore[misc]
    for name, find, numbers in places:
        for number in numbers:
            for value in LONG_LIES:
                yield f"{name}: {number}={value}", footer_number(find, number, value)


# ---- every way to read -----------------------------------------------------------------------------------------------

SOUND = {
    "snapshot": parquet_encode.encode(snapshot_rows(TABLE, ROWS)).data,
    "pack": parquet_encode.encode(changes_of(TABLE, [(0, row) for row in ROWS])).data,
}


def read_whole(data: bytes) -> pa.Table:
    return parquet_decode.decode("the/object", data, TABLE, TABLE.names)


def read_repeated(data: bytes) -> pa.Table:
    """As a whole, as a file whose texts repeat in many rows."""
    with mock.patch.multiple(repeated_texts, MIN_ROWS=1, MIN_GROUPS=1):
        return read_whole(data)


def read_pack(data: bytes) -> pa.Table:
    return parquet_decode.decode_pack("the/object", data, TABLE, TABLE.names, [0])


def read_groups(data: bytes) -> pa.Table:
    """By row groups, those that may hold some keys."""
    file = row_groups.RowGroups("the/object", len(data), data, TABLE)
    found = file.of_keys(pa.table({"k": pa.array([1, 50, 99], pa.int64())}))
    parts = {group: data[file.ranges[group][0] : sum(file.ranges[group][:2])] for group in found}
    return file.read(parts, TABLE.names)


WAYS: tuple[tuple[str, Callable[[bytes], pa.Table]], ...] = (
    ("snapshot", read_whole),
    ("snapshot", read_repeated),
    ("pack", read_pack),
    ("snapshot", read_groups),
)


def outcome(read: Callable[[bytes], pa.Table], data: bytes) -> str:
    """Return the error's class, or what was read: the rows that were written, or others."""
    try:
        found = read(data)
        found.validate(full=True)
    except CheckpointError as error:
        return type(error).__name__ if str(error).startswith("the/object") else f"an error without its object: {error}"
    return "sound" if found.select(TABLE.names).equals(snapshot_rows(TABLE, ROWS)) else "other rows"


def main(share: float) -> None:
    """Read what is named, and a random share of the lies."""
    for form, read in WAYS:  # whatever is loaded with the first use is there
        assert outcome(read, SOUND[form]) == "sound"
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    dice = random.Random(1)
    for number, (name, damage) in enumerate(cases()):
        if number >= len(NAMED) and dice.random() >= share:
            continue
        for form, read in WAYS:
            told: dict[str, Any] = {"case": name, "way": read.__name__}
            print(json.dumps(told), flush=True)  # in case that it is the last that this process says
            data = damage(ParquetFile(SOUND[form]))
            Path("/proc/self/clear_refs").write_text("5")
            before, began = resident(), time.monotonic()
            told["outcome"] = outcome(read, data)
            told |= {"seconds": time.monotonic() - began, "bytes": resident("VmHWM") - before}
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
