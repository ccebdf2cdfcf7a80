"""The filter of a pack: it finds every key that is there, in all types, and a lookup reads little else."""

import importlib
import io
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import CorruptionError, MalformedError
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table import kept_columns, key_filter, object_files, packs, parquet_encode
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.key_filter import FILTER_KEY, KeyFilter, SoughtKeys, build_filter, key_hashes
from pyspark_checkpointer.table.local_copies import LocalCopies
from pyspark_checkpointer.table.merge import matching
from pyspark_checkpointer.table.parquet_decode import decode_pack
from pyspark_checkpointer.table.parquet_encode import EncodedFile
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.row_groups import RowGroups
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.schema import CHANGE, DELETE, MERGE, PARTITION, TableSchema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top
from tests.judge.reader.files import parquet
from tests.table.tables import (
    ORDERED,
    Change,
    Row,
    array,
    changes_of,
    keys_of,
    plain,
    rows_in,
    schema_of,
    snapshot_rows,
)

LONG = schema_of({"k": "long", "n": "long", "text": "string"}, ["k"])
MANY = 12_345


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small packs have an index and a filter, several row groups, and are opened anew by each test."""
    monkeypatch.setattr(parquet_encode, "ROW_GROUP_ROWS", 1000)
    monkeypatch.setattr(parquet_encode, "PACK_BLOCK_ROWS", 16)
    monkeypatch.setattr(parquet_encode, "LARGE_PACK_BYTES", 1)
    monkeypatch.setattr(packs, "LARGE_PACK_BYTES", 1)
    monkeypatch.setattr(object_files, "_opened", {})
    return


def changes(schema: TableSchema, rows: pa.Table, partitions: int) -> pa.Table:
    """Rows as the changes of a pack, each in the partition of its key."""
    numbers = pa.array(partitions_of(rows.select(schema.key), schema, partitions), pa.int32())
    rows = rows.append_column(PARTITION, numbers)
    rows = rows.append_column(CHANGE, pa.array(np.zeros(rows.num_rows, np.int8)))
    return in_order(rows, schema.key).cast(schema.arrow_delta())


def encode(schema: TableSchema, rows: pa.Table) -> EncodedFile:
    return parquet_encode.encode(rows, schema.key, pack=True)


def opened(file: EncodedFile, schema: TableSchema) -> RowGroups:
    groups = RowGroups("the/pack", len(file.data), file.data[-file.tail.length :], schema)
    if groups.filter_range is not None:
        start, length, _ = groups.filter_range
        groups.read_filter(file.data[start : start + length])
    return groups


def found_in(file: EncodedFile, schema: TableSchema, keys: pa.Table, partitions: int) -> Any:
    """What a lookup finds in a pack. None if the pack does not tell."""
    chosen = opened(file, schema).select_changes(SoughtKeys(keys, schema.key, partitions))
    if chosen is None:
        return None
    rows = chosen.decode([file.data[start : start + size] for start, size in chosen.ranges], schema.names)
    assert rows.column_names[: len(schema.names) + 2] == [*schema.names, PARTITION, CHANGE]
    return matching(rows, keys, schema.key)


# ---- no key is missed ------------------------------------------------------------------------------------------------


@given(st.data())
def test_no_key_is_missed(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(ORDERED)), min_size=1, max_size=2))
    schema = schema_of(
        {f"k{n}": kind for n, kind in enumerate(kinds)} | {"n": "long"}, [f"k{n}" for n in range(len(kinds))]
    )
    row = st.tuples(*(st.none() | st.sampled_from(ORDERED[kind]) for kind in kinds), st.just(7))
    rows = data.draw(st.lists(row, min_size=1, max_size=30, unique_by=plain))
    keys = data.draw(st.lists(st.sampled_from(rows) | row, max_size=5))
    partitions = data.draw(st.integers(1, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_encode, "ROW_GROUP_ROWS", data.draw(st.integers(1, 9)))
        patch.setattr(parquet_encode, "PACK_BLOCK_ROWS", data.draw(st.integers(1, 4)))
        patch.setattr(parquet_encode, "MIN_PACK_BLOCKS", 0)
        stored = changes(schema, snapshot_rows(schema, rows), partitions)
        file = encode(schema, stored)
    # The sign of a zero is none of the key.
    wanted = keys_of(schema, [tuple(-v if v == 0 and isinstance(v, float) else v for v in key) for key in keys])
    assert rows_in(found_in(file, schema, wanted, partitions)) == rows_in(matching(stored, wanted, schema.key))
    numbers = data.draw(st.lists(st.integers(0, 4), unique=True))
    for number, (least, most) in opened(file, schema).counts(numbers).items():
        assert least <= stored[PARTITION].to_pylist().count(number) <= most
    assert len(parquet(file.data, (file.tail.length, ""), judged(schema), delta=True)) == len(rows)


def judged(schema: TableSchema) -> list[dict[str, Any]]:
    kinds = [column.field().type for column in schema.columns]
    return [
        {"id": c.id, "role": c.role, "type": c.type, "arrow": k} for c, k in zip(schema.columns, kinds, strict=True)
    ]


@pytest.mark.parametrize(
    ("old", "new", "make", "beyond"),
    [
        ("byte", "short", int, 2**15 - 1),
        ("byte", "long", int, -(2**63)),
        ("short", "integer", int, 2**31 - 1),
        ("integer", "long", int, 2**63 - 1),
        ("integer", "decimal(38,10)", Decimal, Decimal(10**28 - 1)),
        ("long", "decimal(38,18)", Decimal, Decimal(10**20 - 1)),
        ("float", "double", lambda n: n / 8, 1e300),
        ("decimal(5,2)", "decimal(10,2)", lambda n: Decimal(n).scaleb(-2), Decimal("99999999.99")),
        ("decimal(5,2)", "decimal(38,5)", lambda n: Decimal(n).scaleb(-2), Decimal(10**33 - 1)),
        ("decimal(18,0)", "decimal(38,3)", Decimal, Decimal(-(10**35) + 1)),
    ],
)
def test_keys_that_were_widened_are_found(old: str, new: str, make: Callable[[int], Any], beyond: Any) -> None:
    before, after = (schema_of({"k": kind, "n": "long"}, ["k"]) for kind in (old, new))
    rows = snapshot_rows(before, [(None if n == 99 else make(n - 50), n) for n in range(100)])
    # By the narrower type many keys are in other partitions.
    stored = changes(before, rows, 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_encode, "MIN_PACK_BLOCKS", 0)
        file = encode(before, stored)
    keys = keys_of(after, [(make(-50),), (make(48),), (None,), (beyond,), (make(0),)])
    assert sorted(found_in(file, after, keys, 7)["n"].to_pylist()) == [0, 50, 98, 99]


def test_of_a_type_that_is_not_known_nothing_is_said() -> None:
    keys = keys_of(LONG, [(1,), (2,)])
    data = build_filter(key_hashes(keys_of(LONG, [(5,)])))
    for kind in (pa.large_string(), pa.list_(pa.int64())):
        found = KeyFilter.parse(data, [kind])
        assert SoughtKeys(keys, LONG.key, 4).may_be_in(found) is None
    found = KeyFilter.parse(data, [pa.int64()])
    none = SoughtKeys(keys, LONG.key, 4).may_be_in(found)
    assert none is not None
    assert none.num_rows == 0


def test_one_of_170_other_keys_is_taken_to_be_there() -> None:
    rng = np.random.default_rng(3)
    for count, make in ((20_000, lambda n: pa.array(n)), (2000, lambda n: pa.array([f"user-{x}" for x in n]))):
        numbers = rng.choice(10**9, 3 * count, replace=False)
        data = build_filter(key_hashes(pa.table([make(numbers[:count])], ["k"])))
        found = KeyFilter.parse(data, [pa.int64()])
        assert len(data) == pytest.approx(12 * count / 8, rel=0.02)
        assert found.may_hold(key_hashes(pa.table([make(numbers[:count])], ["k"]))).all()
        assert 0.003 < found.may_hold(key_hashes(pa.table([make(numbers[count:])], ["k"]))).mean() < 0.009


# ---- lookups ---------------------------------------------------------------------------------------------------------


class Place:
    """A table of eight partitions in memory, with packs alone."""

    def __init__(self, schema: TableSchema = LONG) -> None:
        self.session = session = Checkpointer(f"memory://{uuid.uuid4().hex}").session
        self.store, self.host, self.schema = session.store, session.host, schema
        self.writer = TableWriter(self.store, self.host, CheckpointId(1, "0123abcd"), "t", schema)
        self.chains: dict[int, Any] = {}

    @property
    def version(self) -> TableVersion:
        return TableVersion("t", self.schema, 8, self.chains)

    def pack(self, rows: pa.Table) -> Artifact:
        written = run_sync(self.writer.pack(changes(self.schema, rows, 8)))
        self.chains |= {p: on_top(self.chains.get(p, ()), delta) for p, delta in written.items()}
        return next(iter(written.values()))

    def look(
        self, keys: Sequence[Row], copies: LocalCopies | None = None, columns: list[str] | None = None
    ) -> tuple[list[Row], int]:
        """The rows of keys, and how many bytes were read for them."""
        sought = keys_of(self.schema, keys)
        numbers = np.array(partitions_of(sought, self.schema, 8))
        by_partition = {
            int(p): in_order(sought.filter(pa.array(numbers == p)), self.schema.key) for p in np.unique(numbers)
        }
        version = self.version.only(list(by_partition))
        reader = TableReader(self.store, self.host, version, columns, sought, copies)
        return rows_in(run_sync(reader.rows_of(by_partition))), reader.bytes_read


def long_rows(numbers: Sequence[int], n: int = 1) -> pa.Table:
    return snapshot_rows(LONG, [(3 * number, n, f"{number:040}") for number in numbers])


@pytest.fixture
def place() -> Place:
    """Two packs, of keys that are multiples of three."""
    place = Place()
    place.pack(long_rows(range(MANY)))
    place.pack(long_rows(range(0, MANY, 2), 2))
    return place


def tails(place: Place) -> int:
    """Bytes of the tails and filters of the packs."""
    artifacts = {a.path: a for chain in place.chains.values() for a in chain}
    files = [run_sync(place.store.get(path)).data for path in artifacts]
    filters = [json.loads(pq.read_metadata(io.BytesIO(data)).metadata[FILTER_KEY.encode()]) for data in files]
    return sum(a.tail.length for a in artifacts.values() if a.tail) + sum(length for _, length, _ in filters)


def test_a_lookup_reads_the_tails_once_and_then_the_blocks_of_its_keys(place: Place) -> None:
    found, read = place.look([(300,), (303,), (3 * MANY,)])
    assert [row[:2] for row in found] == [(300, 2), (303, 1)]
    again, less = place.look([(300,), (303,), (3 * MANY,)])
    assert again == found
    assert read - less == tails(place)
    assert 0 < less < place.version.size / 50
    assert place.look([(300,)], columns=["n"])[0] == [(2,)]


def test_keys_that_are_not_there_cost_nothing(place: Place) -> None:
    place.look([(0,)])
    assert place.look([(3 * n + 1,) for n in range(5)]) == ([], 0)
    assert place.look([(3,)])[1] > 0


def test_a_lookup_finds_what_a_whole_read_finds(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    for count in (1, 10, 100, 1000, 5000):
        keys = [(int(key),) for key in rng.choice(4 * MANY, count, replace=False)]
        found, _ = place.look(keys)
        with monkeypatch.context() as patch:
            patch.setattr(packs, "LARGE_PACK_BYTES", 1 << 60)
            whole, read = place.look(keys)
        assert found == whole
        assert read == place.version.size


def test_changes_that_keep_columns_or_delete_are_read_as_they_are(place: Place) -> None:
    numbers = partitions_of(keys_of(LONG, [(3 * n,) for n in range(2000)]), LONG, 8)
    rows = []
    for n, number in enumerate(numbers):
        change: Change = (DELETE, (3 * n, None, None)) if n % 5 == 0 else (MERGE, (3 * n, 9, None), frozenset({"text"}))
        rows.append(changes_of(LONG, [change], number))
    written = run_sync(place.writer.pack(in_order(kept_columns.concat(rows), LONG.key)))
    place.chains |= {p: on_top(place.chains[p], delta) for p, delta in written.items()}
    found, read = place.look([(3 * n,) for n in (5, 6, 7, 10)])
    assert found == [(18, 9, f"{6:040}"), (21, 9, f"{7:040}")]
    assert read < place.version.size / 2


def test_many_keys_read_whole_packs(place: Place) -> None:
    keys = [(3 * n,) for n in range(MANY // packs.ROWS_PER_KEY + 1)]
    assert place.look(keys)[1] > place.version.size
    assert not [groups for groups in object_files._opened.values() if groups.unread_filter is None]


def test_with_copies_a_pack_is_read_whole_or_not_at_all(place: Place, tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path)
    assert place.look([(1,), (4,)], copies) == ([], tails(place))
    assert not list(tmp_path.iterdir())
    assert [row[:2] for row in place.look([(3,)], copies)[0]] == [(3, 1)]
    assert len(list(tmp_path.iterdir())) == 1, "the second pack does not hold the key"
    assert place.look([(3,)], copies)[1] == 0
    assert [row[:2] for row in place.look([(3 * n,) for n in range(packs.FEW_KEYS + 1)], copies)[0]][:1] == [(0, 2)]
    assert len(list(tmp_path.iterdir())) == 2


def test_tables_with_lists_have_a_filter_without_an_index() -> None:
    schema = schema_of({"k": "long", "many": array("long")}, ["k"])
    place = Place(schema)
    place.pack(snapshot_rows(schema, [(3 * n, [n]) for n in range(2000)]))
    assert place.look([(1,)]) == ([], tails(place))
    found, read = place.look([(6,)])
    assert found == [(6, (2,))]
    assert read > 0


def test_packs_of_few_rows_have_neither() -> None:
    place = Place()
    artifact = place.pack(long_rows(range(255)))
    data = run_sync(place.store.get(artifact.path)).data
    assert not {FILTER_KEY.encode(), b"checkpointer.blocks"} & pq.read_metadata(io.BytesIO(data)).metadata.keys()
    assert place.look([(3,), (4,)])[0] == [(3, 1, f"{1:040}")]


def test_packs_of_few_bytes_have_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader fetches such a pack as a whole. The file tells only at its end that it is large enough."""
    rows = changes(LONG, long_rows(range(5000)), 3)
    groups = opened(encode(LONG, rows), LONG)
    size = sum(length for _, length, _ in groups.ranges)
    assert len(groups.ranges) == 5
    for least, has_both in ((1, True), (size // 2, True), (size, True), (size + 1, False)):
        monkeypatch.setattr(parquet_encode, "LARGE_PACK_BYTES", least)
        file = encode(LONG, rows)
        found = {FILTER_KEY.encode(), b"checkpointer.blocks"} & opened(file, LONG).metadata.metadata.keys()
        assert len(found) == (2 if has_both else 0), least
        if has_both:
            keys = keys_of(LONG, [(3,), (3 * 4997,), (4,)])
            assert sorted(found_in(file, LONG, keys, 3)["k"].to_pylist()) == [3, 3 * 4997]


def test_a_pack_with_a_wide_value_among_narrow_ones_has_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow looks at the size of a page after some rows, which may be fewer than those of a block."""
    monkeypatch.setattr(parquet_encode, "PACK_BLOCK_ROWS", 2048)
    monkeypatch.setattr(parquet_encode, "ROW_GROUP_ROWS", 16_384)
    monkeypatch.setattr(parquet_encode, "MIN_PACK_BLOCKS", 2)
    texts = ["" if n != 100 else np.random.default_rng(1).bytes(700_000).hex() for n in range(20_000)]
    rows = changes(LONG, snapshot_rows(LONG, [(n, n, text) for n, text in enumerate(texts)]), 1)
    assert b"checkpointer.blocks" in opened(encode(LONG, rows), LONG).metadata.metadata


@pytest.mark.parametrize("program", ["pyarrow", "polars", "duckdb"])
def test_other_programs_read_a_pack_with_a_filter(program: str, place: Place, tmp_path: Path) -> None:
    data = run_sync(place.store.get(place.chains[0][1].path)).data
    path = tmp_path / "file.parquet"
    path.write_bytes(data)
    if program == "polars":
        found = importlib.import_module("polars").read_parquet(path).to_arrow()
    elif program == "duckdb":
        found = importlib.import_module("duckdb").read_parquet(str(path)).to_arrow_table()
    else:
        found = pq.read_table(path)
    whole = decode_pack("the/pack", data, LONG, LONG.names, None)
    for name in ("k", "text", PARTITION):
        assert found[name].to_pylist() == whole[name].to_pylist()


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_the_number_of_rows_of_a_partition_is_held_against_the_index(place: Place) -> None:
    (number,) = partitions_of(keys_of(LONG, [(300,)]), LONG, 8)
    base, first, second = place.chains[number]
    for records, wrong in ((first.records + 40, True), (first.records - 40, True), (first.records, False)):
        place.chains[number] = base, replace(first, records=records), second
        if wrong:
            with pytest.raises(CorruptionError, match=f"expected {records} rows of partition {number}, there are "):
                place.look([(300,)])
        else:
            assert place.look([(300,)])[0]


def test_a_changed_byte_is_noticed_by_whoever_reads_it(place: Place) -> None:
    (number,) = partitions_of(keys_of(LONG, [(300,)]), LONG, 8)
    base, first, _ = place.chains[number]
    data = bytearray(run_sync(place.store.get(first.path)).data)
    assert first.tail is not None
    groups = opened_place(first, bytes(data))
    assert groups.filter_range is not None
    filter_at = groups.filter_range[0]
    wrong = []
    for at in [*range(4, len(data), 4999), filter_at + 5, len(data) - first.tail.length + 5]:
        damaged = replace(first, path=f"artifacts/t/damaged/{uuid.uuid4().hex}")
        changed = bytearray(data)
        changed[at] ^= 1
        run_sync(place.store.put(damaged.path, bytes(changed)))
        place.chains = {number: (base, damaged)}
        try:
            assert [row[:2] for row in place.look([(300,)])[0]] == [(300, 1)]
        except CorruptionError:
            wrong.append(at)
    assert set(wrong) >= {at for at in (*range(4, len(data), 4999), filter_at + 5) if at >= filter_at}
    assert len(wrong) < len(data) / 4999


def opened_place(artifact: Artifact, data: bytes) -> RowGroups:
    assert artifact.tail is not None
    return RowGroups("the/pack", len(data), data[-artifact.tail.length :], LONG)


@pytest.mark.parametrize(
    "text",
    ["0", "[]", "", "[4,32]", '[4,0,""]', '[-4,32,""]', '[4,99999999,""]', "[true,32,null]", "[" * 100_000, "{}"],
)
def test_a_description_that_does_not_fit_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    described = json.dumps

    def changed(value: Any, **options: Any) -> str:
        is_filter = isinstance(value, list) and len(value) == 3 and isinstance(value[2], str)
        return text if is_filter else described(value, **options)

    monkeypatch.setattr(json, "dumps", changed)
    file = encode(LONG, changes(LONG, long_rows(range(1000)), 8))
    with pytest.raises(MalformedError, match="the/pack"):
        RowGroups("the/pack", len(file.data), file.data[-file.tail.length :], LONG)


def test_a_filter_of_no_whole_blocks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_encode, "build_filter", lambda _: b"12345678")
    with pytest.raises(MalformedError, match="the/pack"):
        opened(encode(LONG, changes(LONG, long_rows(range(1000)), 8)), LONG)


def test_no_changed_byte_of_the_tail_ends_the_process() -> None:
    """A reader verifies the tail first. Here somebody has written a digest that fits."""
    file = encode(LONG, changes(LONG, long_rows(range(1000)), 8))
    keys = keys_of(LONG, [(3 * n,) for n in range(0, 1000, 50)])
    start = len(file.data) - file.tail.length
    outcomes: set[int | str] = set()
    for at in range(start, len(file.data) - 8, 7):
        data = file.data[:at] + bytes([file.data[at] ^ 1 << at % 8]) + file.data[at + 1 :]
        try:
            found = found_in(file._replace(data=data), LONG, keys, 8)
            # Of a file whose filter has another name, nothing is known.
            outcomes.add(20 if found is None else found.num_rows)
        except (CorruptionError, MalformedError):
            outcomes.add("refused")
    assert outcomes == {20, "refused"}


def test_hashes_are_made_once_for_all_packs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    hashed = key_filter.key_hashes

    def counted(keys: pa.Table) -> Any:
        calls.append(keys.num_rows)
        return hashed(keys)

    monkeypatch.setattr(key_filter, "key_hashes", counted)
    place.look([(300,), (303,)])
    assert calls == [2]
