"""The index of blocks: which pages a lookup reads, that it finds every key there is, and what it says of damage."""

import importlib
import io
import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.errors import CorruptionError, MalformedError
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.table import block_index, blocks, parquet_decode, parquet_encode
from pyspark_checkpointer.table.block_index import BLOCKS_KEY, IndexBuilder
from pyspark_checkpointer.table.merge import matching
from pyspark_checkpointer.table.parquet_decode import Selection, decode
from pyspark_checkpointer.table.parquet_encode import EncodedFile, Encoder
from pyspark_checkpointer.table.row_equality import equal_rows
from pyspark_checkpointer.table.row_groups import RowGroups
from pyspark_checkpointer.table.schema import TableSchema
from tests.judge.reader.files import check_blocks
from tests.table.tables import ORDERED, array, changes_of, keys_of, plain, rows_in, schema_of, snapshot_rows, struct
from tests.table.test_parquet import KEYS, sorted_rows

WIDE = schema_of(
    {
        "k": "long",
        "n": "double",
        "seen": "timestamp",
        "day": "date",
        "flag": "boolean",
        "few": "string",
        "name": "string",
        "text": "string",
        "b": "binary",
        "price": "decimal(38,0)",
        "place": struct(x="integer", name="string"),
        "a.b": "integer",
    },
    ["k"],
)


def wide_rows(count: int) -> pa.Table:
    """Rows with nulls in every column but the key."""
    times, days = ORDERED["timestamp"], ORDERED["date"]
    first = [(3 * n, n / 7, times[n % 4], days[n % 4], n % 3 == 0, f"few{n % 5}", f"name-{n}") for n in range(count)]
    rest = [(f"{n:0100}", bytes([n % 256]), n, {"x": n, "name": f"x{n}"}, n) for n in range(count)]
    rows = [(*a, *b) for a, b in zip(first, rest, strict=True)]
    rows = [
        (row[0], *(None if (n + at) % 11 == 0 else v for at, v in enumerate(row[1:]))) for n, row in enumerate(rows)
    ]
    return snapshot_rows(WIDE, rows)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of few rows have several row groups, and an index."""
    monkeypatch.setattr(parquet_encode, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(parquet_encode, "BLOCK_ROWS", 16)
    monkeypatch.setattr(parquet_encode, "MIN_BLOCKS", 2)


def encode(rows: pa.Table, schema: TableSchema = WIDE) -> EncodedFile:
    return parquet_encode.encode(rows, schema.key)


def opened(data: bytes, schema: TableSchema = WIDE, tail: int | None = None) -> RowGroups:
    return RowGroups("the/object", len(data), data if tail is None else data[-tail:], schema)


def read(data: bytes, chosen: Selection, columns: Sequence[str]) -> pa.Table:
    return chosen.decode([data[start : start + length] for start, length in chosen.ranges], columns)


def lookup(data: bytes, keys: pa.Table, schema: TableSchema = WIDE) -> pa.Table:
    groups = opened(data, schema)
    assert BLOCKS_KEY.encode() in groups.metadata.metadata
    return matching(read(data, groups.select_keys(keys), schema.names), keys, schema.key)


def described(data: bytes) -> list[int]:
    found: list[int] = json.loads(pq.read_metadata(pa.BufferReader(data)).metadata[BLOCKS_KEY.encode()])
    return found


# ---- sound files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [32, 33, 100, 101, 116, 117, 500])
def test_blocks_have_the_rows_of_the_file(count: int) -> None:
    rows = wide_rows(count)
    file = encode(rows)
    assert decode("the/object", file.data, WIDE, WIDE.names).equals(rows)
    for chosen in ([0], [count - 1], list(range(0, count, 7)), list(range(count))):
        keys = rows.select(["k"]).take(chosen)
        assert lookup(file.data, keys).equals(rows.take(chosen))
    some = read(file.data, opened(file.data).select_keys(rows.select(["k"]).slice(5, 1)), ["place", "n"])
    assert some.equals(rows.select(["place", "n"]).slice(0, 16))


def test_the_index_is_true() -> None:
    data = encode(wide_rows(500)).data
    file = pq.ParquetFile(io.BytesIO(data))
    end = sum(opened(data).ranges[-1][:2])
    check_blocks(described(data), data, file, end)
    with pytest.raises(Exception, match="another digest"):
        check_blocks(described(data), data[:20] + bytes([data[20] ^ 1]) + data[21:], file, end)


def test_a_lookup_reads_the_pages_of_its_blocks_and_the_dictionaries() -> None:
    data = encode(wide_rows(500)).data
    groups = opened(data)
    chosen = groups.select_keys(keys_of(WIDE, [(3 * 250,) + (None,) * 11]))
    columns = len(groups.metadata.schema)
    assert len(chosen.ranges) == 2 * columns
    start, length, _ = groups.ranges[2]
    assert all(start <= at and at + size <= start + length for at, size in chosen.ranges)
    assert 0 < sum(size for _, size in chosen.ranges) < length / 2
    assert chosen.share == pytest.approx(1 / 35)


def test_blocks_are_decoded_together_by_their_bytes_before_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow fails on 2 GiB of texts within structs, however few bytes are stored of them."""
    schema = schema_of({"k": "long", "place": struct(name="string")}, ["k"])
    rows = snapshot_rows(schema, [(n, {"name": f"{n:09000}"}) for n in range(500)])
    runs, sizes = parquet_decode._runs, []

    def noted(metadata: pq.FileMetaData, groups: list[int]) -> list[list[int]]:
        sizes.append(sum(metadata.row_group(group).total_byte_size for group in groups))
        return runs(metadata, groups)

    monkeypatch.setattr(parquet_decode, "_runs", noted)
    data = encode(rows, schema).data
    assert lookup(data, rows.select(["k"]), schema).equals(rows)
    assert lookup(data, rows.select(["k"]).slice(30, 1), schema).equals(rows.slice(30, 1))
    assert len(data) < 500_000
    assert sizes[1] == pytest.approx(500 * 9000, rel=0.01)
    assert sizes[3] < sizes[1] / 10


def test_first_keys_are_compared_without_one_array_of_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow fails to make one of 2 GiB of texts."""
    chunks = []

    def noted(found: pa.Table, wanted: pa.Table) -> Any:
        chunks.append([len(chunk) for chunk in found["k"].chunks])
        return equal_rows(found, wanted)

    monkeypatch.setattr(blocks, "equal_rows", noted)
    monkeypatch.setattr(parquet_decode, "DECODE_BATCH_BYTES", 1)
    rows = wide_rows(250)
    assert lookup(encode(rows).data, rows.select(["k"])).equals(rows)
    assert chunks == [[7, 7, 4]]


@pytest.mark.parametrize(("key", "count"), [(-1, 0), (0, 1), (1, 1), (3 * 499, 1), (3 * 499 + 1, 0), (10**9, 0)])
def test_keys_beyond_the_file_read_nothing(key: int, count: int) -> None:
    data = encode(wide_rows(500)).data
    groups = opened(data)
    chosen = groups.select_keys(pa.table({"k": pa.array([key], pa.int64())}))
    assert len(chosen.ranges) == count * 2 * len(groups.metadata.schema)
    assert read(data, chosen, WIDE.names).num_rows == count * (16 if key < 1000 else 4)


def test_a_last_block_of_one_row_has_its_key_once() -> None:
    rows = wide_rows(401)
    data = encode(rows).data
    assert lookup(data, rows.select(["k"]).slice(399, 2)).equals(rows.slice(399, 2))
    assert lookup(data, pa.table({"k": pa.array([1199, 1201], pa.int64())})).num_rows == 0


@given(st.data())
def test_no_block_that_holds_a_key_is_skipped(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2))
    schema = schema_of({f"k{n}": kind for n, kind in enumerate(kinds)}, [f"k{n}" for n in range(len(kinds))])
    row = st.tuples(*(st.none() | KEYS[kind] for kind in kinds))
    rows = data.draw(st.lists(row, min_size=1, max_size=20, unique_by=plain))
    keys = data.draw(st.lists(st.sampled_from(rows) | row, max_size=4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_encode, "ROW_GROUP_ROWS", data.draw(st.integers(1, 5)))
        patch.setattr(parquet_encode, "BLOCK_ROWS", data.draw(st.integers(1, 4)))
        patch.setattr(parquet_encode, "MIN_BLOCKS", 0)
        stored = sorted_rows(schema, rows)
        file = parquet_encode.encode(stored, schema.key)
    wanted = keys_of(schema, keys)
    found = lookup(file.data, wanted, schema)
    assert rows_in(found) == rows_in(matching(stored, wanted, schema.key))


@pytest.mark.parametrize("firsts", [[], [0], [5], [0, 1, 1, 0, 20, 0]])
def test_parts_of_one_file_have_one_index(firsts: list[int]) -> None:
    """Also where the first parts have few rows or none, as the others have expired."""
    rows = wide_rows(500)
    encoder = Encoder(WIDE.arrow(), WIDE.key)
    for start, end in pairwise([0, *accumulate(firsts), 33, 34, 284, 500]):
        encoder.add(rows.slice(start, end - start))
        assert encoder.num_rows == end
    file = encoder.finish()
    assert decode("the/object", file.data, WIDE, WIDE.names).equals(rows)
    assert lookup(file.data, rows.select(["k"]).take([32, 33, 34, 283, 284, 499])).num_rows == 6


def test_huge_first_rows_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_encode, "MAX_ROW_GROUP_BYTES", 10_000)
    schema = schema_of({"k": "long", "text": "string"}, ["k"])
    encoder = Encoder(schema.arrow(), schema.key)
    for n in range(10):
        encoder.add(snapshot_rows(schema, [(n, "x" * 4000)]))
    # The first three are cut in two, as they are too large for one row group.
    assert len(opened(encoder.finish().data, schema).ranges) == 9


def test_rows_in_chunks_that_end_within_blocks_have_an_index() -> None:
    schema = schema_of({"k": "long", "text": "string"}, ["k"])
    rows = snapshot_rows(schema, [(n, "x" * 1_500_000 if n == 2 else "y") for n in range(500)])
    parts = pa.concat_tables([rows.slice(start, 5) for start in range(0, 500, 5)])
    assert has_index(encode(parts, schema))


def test_a_key_that_was_widened_is_found() -> None:
    old = schema_of({"k": "integer", "n": "long"}, ["k"])
    new = schema_of({"k": "long", "n": "long"}, ["k"])
    file = encode(snapshot_rows(old, [(n, n) for n in range(200)]), old)
    assert rows_in(lookup(file.data, keys_of(new, [(77,), (2**40,)]), new)) == [(77, 77)]


def test_large_dictionaries_have_longer_lengths() -> None:
    schema = schema_of({"k": "long", "text": "string"}, ["k"])
    rows = snapshot_rows(schema, [(n, "".join(sorted(str(n % 2) * 50_000))) for n in range(100)])
    assert described(encode(rows, schema).data)[2] == 2
    rng = np.random.default_rng(1)
    texts = ["".join(map(chr, rng.integers(32, 127, 100_000))) for _ in range(4)]
    data = encode(snapshot_rows(schema, [(n, texts[n % 4]) for n in range(100)]), schema).data
    assert described(data)[2] == 4
    assert lookup(data, keys_of(schema, [(50,)]), schema)["text"].to_pylist() == [texts[2]]


def test_wide_rows_have_smaller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_encode, "BLOCK_BYTES", 1000)
    schema = schema_of({"k": "long", "text": "string"}, ["k"])
    assert described(encode(snapshot_rows(schema, [(n, "x" * 180) for n in range(100)]), schema).data)[0] == 5


@pytest.mark.parametrize("program", ["pyarrow", "polars", "duckdb"])
def test_other_programs_read_a_file_with_an_index(program: str, tmp_path: Path) -> None:
    rows = wide_rows(500)
    path = tmp_path / "file.parquet"
    path.write_bytes(encode(rows).data)
    if program == "polars":
        found = importlib.import_module("polars").read_parquet(path).to_arrow()
    elif program == "duckdb":
        found = importlib.import_module("duckdb").read_parquet(str(path)).to_arrow_table()
    else:
        found = pq.read_table(path)
    for name in ("k", "n", "name", "text"):
        assert found[name].to_pylist() == rows[name].to_pylist()


# ---- files without an index ------------------------------------------------------------------------------------------


def has_index(file: EncodedFile) -> bool:
    return BLOCKS_KEY.encode() in pq.read_metadata(pa.BufferReader(file.data)).metadata


def test_files_without_an_index() -> None:
    lists = schema_of({"k": "long", "many": array("long")}, ["k"])
    dots = schema_of({"k": "long", "a.b": "long", "a": struct(b="long")}, ["k"])
    assert has_index(encode(wide_rows(32)))
    assert not has_index(encode(wide_rows(31)))
    assert not has_index(encode(snapshot_rows(lists, [(n, [n]) for n in range(100)]), lists))
    assert not has_index(encode(snapshot_rows(dots, [(n, n, {"b": n}) for n in range(100)]), dots))
    plain_schema = schema_of({"k": "long"}, ["k"])
    assert not has_index(parquet_encode.encode(changes_of(plain_schema, [(0, (n,)) for n in range(100)])))


@pytest.mark.parametrize("why", ["an old pyarrow", "other pages"])
def test_a_file_can_be_written_and_read_without_an_index(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "an old pyarrow":
        monkeypatch.setattr(parquet_encode, "_HAS_BLOCKS", False)
    else:
        monkeypatch.setattr(block_index, "page_lengths", lambda *_: None)
    rows = wide_rows(500)
    file = encode(rows)
    assert not has_index(file)
    keys = rows.select(["k"]).take([3, 333])
    assert matching(read(file.data, opened(file.data).select_keys(keys), WIDE.names), keys, WIDE.key).num_rows == 2


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_a_changed_byte_of_a_block_is_noticed() -> None:
    data = encode(wide_rows(200)).data
    chosen = opened(data).select_keys(pa.table({"k": pa.array([30], pa.int64())}))
    sound = [data[start : start + length] for start, length in chosen.ranges]
    for number, part in enumerate(sound):
        for at in range(0, len(part), 37):
            wrong = part[:at] + bytes([part[at] ^ 4]) + part[at + 1 :]
            with pytest.raises(CorruptionError, match=r"the/object \(block 0\)"):
                chosen.decode([*sound[:number], wrong, *sound[number + 1 :]], WIDE.names)
    with pytest.raises(CorruptionError, match="the/object"):
        chosen.decode([*sound[:-1], sound[-1][:-1]], WIDE.names)


@pytest.mark.parametrize("wrong", [47, 49])
def test_an_index_that_names_another_first_key_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    starts = IndexBuilder.starts

    def changed(self: IndexBuilder) -> pa.Table:
        keys = [wrong if key == 48 else key for key in starts(self)["k"].to_pylist()]
        return pa.table([pa.array(keys, pa.int64())], schema=WIDE.arrow().empty_table().select(["k"]).schema)

    monkeypatch.setattr(IndexBuilder, "starts", changed)
    data = encode(wide_rows(200)).data
    with pytest.raises(CorruptionError, match="the/object: a block that begins with another key"):
        lookup(data, pa.table({"k": pa.array([51], pa.int64())}))


@pytest.mark.parametrize("more", [-1, 2, 1 << 20])
def test_an_index_with_another_number_of_keys_is_refused_before_they_are_decoded(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """A few bytes are enough for a million nulls."""

    def other(self: IndexBuilder) -> pa.Table:
        keys = pa.nulls(14 + more, pa.int64())
        return pa.table([keys], schema=WIDE.arrow().empty_table().select(["k"]).schema)

    monkeypatch.setattr(IndexBuilder, "starts", other)
    data = encode(wide_rows(200)).data
    monkeypatch.setattr(blocks, "decode", None)
    with pytest.raises(CorruptionError, match=rf"the/object: expected the first keys of 14 blocks, found {14 + more}"):
        lookup(data, pa.table({"k": pa.array([51], pa.int64())}))


def test_no_changed_byte_of_the_index_leads_to_other_rows() -> None:
    """A reader verifies the tail first. Here somebody has written a digest that fits."""
    rows = wide_rows(200)
    data = encode(rows).data
    keys = rows.select(["k"]).take([0, 90, 199])
    end = sum(opened(data).ranges[-1][:2])
    wrong = 0
    for at in range(end, len(data) - 8 - int.from_bytes(data[-8:-4], "little"), 3):
        changed = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
        try:
            assert lookup(changed, keys).equals(rows.take([0, 90, 199]))
        except (CorruptionError, MalformedError):
            wrong += 1
    assert wrong > 50


def test_pages_that_somebody_changed_and_signed_do_not_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "block_digest", lambda *_: Anything())
    rows = wide_rows(200)
    data = encode(rows).data
    keys = rows.select(["k"]).slice(20, 1)
    chosen = opened(data).select_keys(keys)
    sound = [data[start : start + length] for start, length in chosen.ranges]
    rng = np.random.default_rng(7)
    outcomes = set()
    for _ in range(1500):
        parts = [bytearray(part) for part in sound]
        number = int(rng.choice([n for n, part in enumerate(parts) if part]))
        parts[number][int(rng.integers(len(parts[number])))] ^= int(rng.integers(1, 256))
        try:
            chosen.decode([bytes(part) for part in parts], WIDE.names)
            outcomes.add("read")
        except (CorruptionError, MalformedError):
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


class Anything:
    """Equal to every digest."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@pytest.mark.parametrize(
    "text",
    [
        "[0,15,2,900]",
        "[16,15,3,900]",
        "[16,14,2,900]",
        "[16,15,2]",
        "[16,15,2,9000000000000]",
        "[1,15,2,900]",
        "[true,15,2,900]",
        "{}",
        "[[],1,2,3]",
        "[" * 100_000,
        "7",
        "",
    ],
)
@pytest.mark.parametrize("count", [0, 200])
def test_a_description_that_does_not_fit_is_refused(text: str, count: int) -> None:
    rows = wide_rows(count)
    sink = io.BytesIO()
    digests = {"checkpointer.blocks": text}
    with pq.ParquetWriter(sink, WIDE.arrow(), compression="zstd") as writer:
        found = []
        if count:
            writer.write_table(rows, row_group_size=count)
            end = sink.tell()
            found.append([4, end - 4, sha256(sink.getvalue()[4:end])])
        writer.add_key_value_metadata({"checkpointer.row_groups": json.dumps(found), **digests})
    with pytest.raises(MalformedError, match="the/object"):
        opened(sink.getvalue()).select_keys(rows.select(["k"]))
