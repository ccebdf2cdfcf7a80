"""Versions of a table on a store: what was written comes back, compaction changes no row, damage is an error."""

import asyncio
import itertools
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_checkpointer import Checkpointer, compaction
from pyspark_checkpointer.errors import (
    CorruptionError,
    DigestMismatchError,
    IllegalArgumentError,
    NotFoundError,
)
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.model import SNAPSHOT, Artifact, Chain, CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table import object_files, parquet_encode
from pyspark_checkpointer.table import packs as packs_module
from pyspark_checkpointer.table import reader as reader_module
from pyspark_checkpointer.table.compact import compact_chains
from pyspark_checkpointer.table.encoder import EncodedObject
from pyspark_checkpointer.table.kept_columns import ids_of
from pyspark_checkpointer.table.merge import fold_changes
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.row_order import in_order, split_partitions
from pyspark_checkpointer.table.schema import CHANGE, DELETE, KEPT, MERGE, RESET, TableSchema
from pyspark_checkpointer.table.schema_evolution import next_schema
from pyspark_checkpointer.table.version import TableVersion, empty_base
from pyspark_checkpointer.table.writer import TableWriter, on_top
from tests.table.tables import (
    PARTITION,
    Change,
    Model,
    Row,
    changes_of,
    fields,
    keys_of,
    mapping,
    rows_in,
    schema_of,
    snapshot_rows,
)

SCHEMA = schema_of(
    {"a": "long", "b": "string", "text": "string", "n": "long", "m": mapping("string", "long")}, ["a", "b"], n="sum"
)
SIMPLE = schema_of({"k": "long", "n": "long"}, ["k"], n="sum")


class Place:
    """A root in memory, and the attempt that writes there."""

    def __init__(self, schema: TableSchema) -> None:
        self.session = session = Checkpointer(f"memory://{uuid.uuid4().hex}").session
        self.store, self.host = session.store, session.host
        self.schema = schema
        self.chains: dict[int, Chain] = {}

    @property
    def version(self) -> TableVersion:
        return TableVersion("t", self.schema, 8, self.chains)

    @property
    def writer(self) -> TableWriter:
        return TableWriter(self.store, self.host, CheckpointId(1, "0123abcd"), "t", self.schema)

    def reader(self, columns: list[str] | None = None) -> TableReader:
        return TableReader(self.store, self.host, self.version, columns)

    def snapshot(self, partition: int, rows: list[Row]) -> Artifact:
        artifact = run_sync(
            self.writer.snapshot(partition, in_order(snapshot_rows(self.schema, rows), self.schema.key))
        )
        self.chains[partition] = (artifact,)
        return artifact

    def pack(self, changes: Mapping[int, list[Change]]) -> dict[int, Artifact]:
        """Changes of several partitions as one object, on top of their chains."""
        rows = [changes_of(self.schema, some, partition) for partition, some in changes.items()]
        written = run_sync(self.writer.pack(in_order(pa.concat_tables(rows), self.schema.key)))
        for partition, delta in written.items():
            self.chains[partition] = on_top(self.chains.get(partition, ()), delta)
        return written

    def compact(self, keep: Mapping[int, int]) -> None:
        self.chains |= run_sync(compact_chains(self.reader(), self.writer, self.chains, keep))

    def rows(self, partition: int) -> list[Row]:
        return rows_in(run_sync(self.reader().rows(partition)))

    def lookup(self, partition: int, keys: list[Row]) -> list[Row]:
        return rows_in(run_sync(self.reader().rows(partition, keys_of(self.schema, keys))))

    def put(self, artifact: Artifact, data: bytes) -> Artifact:
        """The artifact with other bytes in its place."""
        other = replace(artifact, path=f"artifacts/t/damaged/{uuid.uuid4().hex}")
        run_sync(self.store.put(other.path, data))
        return other

    def read(self, artifact: Artifact) -> bytes:
        return run_sync(self.store.get(artifact.path)).data


def wanted(schema: TableSchema, rows: list[Row]) -> list[Row]:
    return Model(schema, rows).rows()


ROWS: list[Row] = [
    (1, "x", "one", 10, [("a", 1)]),
    (None, "x", None, None, None),
    (2, None, "two", -3, []),
    (1, "y", "", 0, [("a", None)]),
]


# ---- written and read ------------------------------------------------------------------------------------------------


def test_a_snapshot_is_what_was_written() -> None:
    place = Place(SCHEMA)
    artifact = place.snapshot(3, ROWS)
    assert place.rows(3) == wanted(SCHEMA, ROWS)
    assert artifact.kind == SNAPSHOT
    assert artifact.records == len(ROWS)
    data = place.read(artifact)
    assert (artifact.length, artifact.digest) == (len(data), sha256(data))
    assert artifact.tail is not None
    assert artifact.tail.digest == sha256(data[-artifact.tail.length :])
    parsed = object_paths.parse_artifact(artifact.path)
    assert (parsed.operator, parsed.partition, parsed.codec) == ("t", 3, codecs.PARQUET.name)


def test_a_snapshot_is_sorted_by_key() -> None:
    place = Place(SIMPLE)
    place.snapshot(0, [(n, n) for n in (5, 1, 4, 2, 3)])
    assert run_sync(place.reader().rows(0))["k"].to_pylist() == [1, 2, 3, 4, 5]


def test_the_partitions_of_a_pack_are_found_and_it_is_fetched_once() -> None:
    place = Place(SIMPLE)
    written = place.pack({p: [(MERGE, (n, p)) for n in range(p + 1)] for p in (5, 0, 2)})
    assert {p: a.records for p, a in written.items()} == {0: 1, 2: 3, 5: 6}
    assert len({a.path for a in written.values()}) == 1
    reader = place.reader()
    for partition in (0, 2, 5):
        assert rows_in(run_sync(reader.rows(partition))) == [(n, partition) for n in range(partition + 1)]
    assert reader.bytes_read == written[0].size == place.version.size
    assert place.rows(1) == []


def some_packs(place: Place) -> dict[int, list[Row]]:
    """Four packs of five partitions, and what is in each partition then."""
    for step in range(4):
        place.pack({p: [(MERGE, (100 * p + n, 1)) for n in range(step, 20)] for p in range(5)})
    return {p: [(100 * p + n, min(n + 1, 4)) for n in range(20)] for p in range(5)}


def test_a_pack_is_held_until_the_last_partition_that_has_it_was_read() -> None:
    place = Place(SIMPLE)
    expected = some_packs(place)
    reader = place.reader()
    for partition, rows in expected.items():
        assert rows_in(run_sync(reader.rows(partition))) == sorted(rows, key=repr)
        assert len(reader.packs._tasks) == (4 if partition < 4 else 0)
    assert reader.bytes_read == place.version.size
    assert rows_in(run_sync(reader.rows(2))) == sorted(expected[2], key=repr)
    assert reader.packs._tasks == {}


def test_where_the_keys_are_known_only_their_rows_are_held() -> None:
    place = Place(SIMPLE)
    expected = some_packs(place)
    keys = keys_of(SIMPLE, [(n,) for n in (3, 17, 203, 999)])
    reader = TableReader(place.store, place.host, place.version, None, keys)
    assert rows_in(run_sync(reader.rows(2, keys))) == [(203, 4)] != expected[2]
    held = [task.result() for task in reader.packs._tasks.values()]
    assert [sorted(pack.rows["k"].to_pylist()) for pack in held] == [[3, 17, 203]] * 4
    assert rows_in(run_sync(reader.rows(0, keys))) == [(17, 4), (3, 4)]
    assert rows_in(run_sync(reader.rows(1, keys))) == []


def test_of_a_pack_that_lacks_rows_no_key_is_looked_up() -> None:
    place = Place(SIMPLE)
    some_packs(place)
    base, *deltas = place.chains[2]
    place.chains[2] = (base, *deltas[:-1], replace(deltas[-1], records=deltas[-1].records + 1))
    keys = keys_of(SIMPLE, [(3,)])
    reader = TableReader(place.store, place.host, place.version, None, keys)
    with pytest.raises(CorruptionError, match="rows of partition 2"):
        run_sync(reader.rows(2, keys))


def test_large_packs_are_read_a_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs_module, "HUGE_PACK_BYTES", 0)
    place, now, most = Place(SIMPLE), 0, 0
    expected = some_packs(place)
    reader = place.reader()
    fetch = reader.packs._fetch_pack

    async def counted(artifact: Artifact) -> Any:
        nonlocal now, most
        now += 1
        most = max(now, most)
        await asyncio.sleep(0.01)
        now -= 1
        return await fetch(artifact)

    reader.packs._fetch_pack = counted  # type: ignore[method-assign]
    assert rows_in(run_sync(reader.rows(0))) == sorted(expected[0], key=repr)
    assert most == packs_module.MAX_CONCURRENT_PACK_READS == 2


def test_of_shared_objects_each_partition_has_its_share() -> None:
    place = Place(SIMPLE)
    some_packs(place)
    place.snapshot(7, [(n, n) for n in range(1000)])
    sizes = place.version.sizes()
    assert sizes[7] == place.chains[7][0].length
    assert len({sizes[p] for p in range(5)}) == 1
    assert 0.97 * place.version.size <= sum(sizes.values()) <= place.version.size
    some = place.version.sizes({0: 0, 3: 4, 7: 1})
    assert some[0] == sizes[0]
    assert 0 < some[3] < sizes[3] / 2
    assert some[7] == 0


def test_a_partition_does_not_grow_when_others_leave_its_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(SCHEMA)
    rows: dict[int, list[Change]] = {p: [(MERGE, (n, "b", "text", n, [])) for n in range(20)] for p in range(8)}
    rows[3] = [(MERGE, (n, "b", "x" * 5000, n, [])) for n in range(20)]
    sizes = {partition: delta.raw_size for partition, delta in place.pack(rows).items()}
    assert len({sizes[p] for p in range(8) if p != 3}) == 1
    assert 20 * 5000 < sizes[3] < 20 * 6000, "of rows as wide as its own"
    monkeypatch.setattr(compaction, "MAX_DELTA_BYTES", 2 * sizes[0])
    assert compaction.table_compactions(place.chains, 10, 0) == {3: 0}
    place.compact(dict.fromkeys(range(1, 8), 0))
    assert compaction.table_compactions(place.chains, 10, 0) == {}, "the last one in a large pack is as small as it was"


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file was opened before."""
    monkeypatch.setattr(object_files, "_opened", {})


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Two packs of eight partitions in many row groups, neither of them small."""
    monkeypatch.setattr(parquet_encode, "ROW_GROUP_ROWS", 50)
    monkeypatch.setattr(packs_module, "LARGE_PACK_BYTES", 1)
    place = Place(SIMPLE)
    for turn in range(2):
        place.pack({p: [(MERGE, (n, p + turn)) for n in range(100)] for p in range(8)})
    return place


@pytest.mark.parametrize("wanted", [[0], [7], [2, 3], [0, 4, 7], list(range(8))])
def test_of_a_large_pack_only_what_some_partitions_need_is_read(wide: Place, wanted: list[int]) -> None:
    reader = TableReader(wide.store, wide.host, wide.version.only(wanted))
    for partition in wanted:
        assert sorted(rows_in(run_sync(reader.rows(partition)))) == [(n, 2 * partition + 1) for n in range(100)]
    tails = sum(artifact.tail.length for artifact in wide.chains[0][1:] if artifact.tail)
    groups = wide.version.size - tails
    assert reader.bytes_read - tails == pytest.approx(groups * len(wanted) / 8, rel=0.1)


@pytest.mark.parametrize("huge", [0, 1 << 30], ids=["in pieces", "whole"])
def test_all_changes_of_a_pack_are_read_for_a_verification(
    wide: Place, monkeypatch: pytest.MonkeyPatch, huge: int
) -> None:
    """Also those of partitions that have no chain any more."""
    monkeypatch.setattr(reader_module, "HUGE_PACK_BYTES", huge)
    reader, pack = TableReader(wide.store, wide.host, wide.version.only([0])), wide.chains[0][1]

    async def read() -> list[pa.Table]:
        return [rows async for rows in reader.object_rows(pack)]

    found = pa.concat_tables(run_sync(read()))
    assert found[PARTITION].to_pylist() == [partition for partition in range(8) for _ in range(100)]


def test_a_large_pack_is_read_whole_where_most_of_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs_module, "LARGE_PACK_BYTES", 1)
    place = Place(SIMPLE)
    place.pack({p: [(MERGE, (n, value(n + p))) for n in range(1000)] for p in range(8)})
    reader = place.reader()
    assert all(run_sync(reader.rows(partition)).num_rows == 1000 for partition in range(8))
    delta = place.chains[0][1]
    assert delta.tail is not None
    assert reader.bytes_read == delta.size + delta.tail.length


def test_a_pack_leaves_memory_after_its_last_reader(wide: Place) -> None:
    """Partitions fold other deltas, and a pack that one of them keeps is folded by others."""
    keep = {partition: (2, 1, 0)[partition % 3] for partition in range(8)}
    reader = TableReader(wide.store, wide.host, wide.version)
    chains = run_sync(compact_chains(reader, wide.writer, wide.chains, keep))
    assert reader.packs._tasks == {}
    before = {partition: wide.rows(partition) for partition in range(8)}
    wide.chains |= chains
    assert {partition: wide.rows(partition) for partition in range(8)} == before


def test_a_reader_of_some_keys_is_asked_for_nothing_else(wide: Place) -> None:
    """It has left out the changes of other keys, so that it would return rows as they were before."""
    reader = TableReader(wide.store, wide.host, wide.version, keys=keys_of(SIMPLE, [(1, None)]))
    with pytest.raises(AssertionError, match="a reader of some keys"):
        run_sync(reader.rows(0))
    with pytest.raises(AssertionError, match="a reader of some keys"):
        run_sync(anext(reader.pieces(0)))


def test_damage_to_a_part_of_a_large_pack_is_noticed_by_whoever_reads_it(wide: Place) -> None:
    sound = wide.chains[0][1]
    data = wide.read(sound)
    assert sound.tail is not None
    for at, harmed in ((10, [0]), (len(data) - sound.tail.length - 2, [7]), (len(data) - 20, list(range(8)))):
        changed = bytearray(data)
        changed[at] ^= 1
        damaged = wide.put(sound, bytes(changed))
        for partition in range(8):
            base, delta = empty_base(damaged), replace(damaged, records=100)
            broken = TableVersion("t", SIMPLE, 8, {partition: (base, delta)})
            reader = TableReader(wide.store, wide.host, broken)
            if partition in harmed:
                with pytest.raises(DigestMismatchError, match=damaged.path):
                    run_sync(reader.rows(partition))
            else:
                assert run_sync(reader.rows(partition)).num_rows == 100


def test_an_empty_base_has_no_bytes() -> None:
    place = Place(SIMPLE)
    delta = place.pack({0: [(MERGE, (1, 1)), (DELETE, (2, None))]})[0]
    base = place.chains[0][0]
    assert base == empty_base(delta)
    assert (base.kind, base.length, base.records, base.path) == (SNAPSHOT, 0, 0, delta.path)
    assert place.rows(0) == place.lookup(0, [(1,), (2,)]) == [(1, 1)]


def test_some_columns_alone_are_merged_like_all() -> None:
    place = Place(SCHEMA)
    place.snapshot(0, ROWS)
    place.pack({0: [(MERGE, (1, "x", "uno", 5, None)), (DELETE, (2, None, None, None, None))]})
    whole = run_sync(place.reader().rows(0))
    for columns in (["n"], ["m", "a"], ["text", "n"], ["b"]):
        found = run_sync(place.reader(columns).rows(0))
        assert found.column_names == columns
        assert rows_in(found) == rows_in(whole.select(columns))
    for columns, said in (([], r"columns=\[\]: expected at least one"), (["n", "nothing"], "no column nothing")):
        with pytest.raises(IllegalArgumentError, match=f"table 't': {said}"):
            place.reader(columns)


def test_a_version_is_what_its_operator_says() -> None:
    place = Place(SCHEMA)
    place.snapshot(0, ROWS)
    place.snapshot(1, ROWS[:1])
    assert TableVersion.of("t", place.version.operator(), None) == place.version
    assert set(place.version.only([1, 7]).chains) == {1}
    operator = place.version.operator()
    assert operator.partitioner == codecs.PARQUET.partitioner
    with pytest.raises(IllegalArgumentError, match=r"operator 't': is a map, not a table"):
        TableVersion.of("t", replace(operator, codec=codecs.MSGPACK.name), None)


def test_rows_are_split_by_partition() -> None:
    rows = changes_of(SIMPLE, [(MERGE, (n, n)) for n in range(6)]).drop_columns([PARTITION])
    rows = rows.append_column(PARTITION, pa.array([3, 0, 3, 7, 0, 3], pa.int32()))
    assert [(p, part["k"].to_pylist()) for p, part in split_partitions(in_order(rows, ["k"]))] == [
        (0, [1, 4]),
        (3, [0, 2, 5]),
        (7, [3]),
    ]


def test_no_rows_are_of_no_partition() -> None:
    assert list(split_partitions(changes_of(SIMPLE, []))) == []


def test_old_objects_are_read_with_a_later_schema() -> None:
    place = Place(schema_of({"k": "integer", "n": "integer", "gone": "string"}, ["k"], n="sum"))
    place.snapshot(0, [(1, 2**31 - 1, "x"), (2, 2, "y")])
    place.pack({0: [(MERGE, (2, 3, "z"))]})
    place.schema = next_schema("t", place.schema, fields({"k": "integer", "n": "long"}), ["k"], {"n": "sum"})
    kinds = {"k": "integer", "gone": "string", "n": "long", "new": "date"}
    place.schema = next_schema("t", place.schema, fields(kinds), ["k"], {"n": "sum"})
    place.pack({0: [(MERGE, (1, None, 2**40, None))]})
    assert place.rows(0) == [(1, None, 2**31 - 1 + 2**40, None), (2, None, 5, None)]
    assert place.lookup(0, [(2,)]) == [(2, None, 5, None)]
    place.compact({0: 1})
    assert place.rows(0) == [(1, None, 2**31 - 1 + 2**40, None), (2, None, 5, None)]


# ---- a history -------------------------------------------------------------------------------------------------------


KEY = st.tuples(st.none() | st.integers(0, 3), st.sampled_from(["x", "y"]))
ROW = st.tuples(KEY, st.sampled_from(["u", "v", None]), st.none() | st.integers(-9, 9)).map(
    lambda drawn: (*drawn[0], drawn[1], drawn[2], None)
)
CHANGES = st.lists(st.tuples(st.sampled_from([MERGE, MERGE, RESET, DELETE]), ROW), min_size=1, max_size=6)
STEPS = st.lists(
    st.dictionaries(st.integers(0, 1), CHANGES, min_size=1)
    | st.dictionaries(st.integers(0, 1), st.integers(0, 3), min_size=1).map(lambda keep: ("keep", keep)),
    max_size=6,
)


@settings(max_examples=60)
@given(STEPS, st.lists(KEY, max_size=3))
def test_whatever_is_written_and_rewritten_the_rows_are_those_of_a_dict(steps: list[Any], keys: list[Row]) -> None:
    place = Place(SCHEMA)
    model = {0: Model(SCHEMA), 1: Model(SCHEMA)}
    for step in steps:
        if isinstance(step, dict):
            place.pack({p: standing_alone(SCHEMA, changes) for p, changes in step.items()})
            for partition, changes in step.items():
                model[partition].do(changes)
        else:
            place.compact({p: kept for p, kept in step[1].items() if kept < len(place.chains.get(p, ()))})
        for partition in model:
            assert place.rows(partition) == model[partition].rows()
    for partition in model:
        found = [row for row in model[partition].rows() if row[:2] in keys]
        assert place.lookup(partition, keys) == found


def standing_alone(schema: TableSchema, changes: list[Change]) -> list[Change]:
    """One change for each key: within a pack nothing says which of two is the later one."""
    rows = fold_changes(changes_of(schema, changes), schema, "t").to_pylist()
    names = {column.id: column.name for column in schema.columns}
    return [
        (
            row[CHANGE],
            tuple(row[name] for name in schema.names),
            frozenset(names[column] for column in ids_of(row.get(KEPT))),
        )
        for row in rows
    ]


# ---- compaction ------------------------------------------------------------------------------------------------------


def test_folding_keeps_the_rows_and_shares_one_pack() -> None:
    place = Place(SIMPLE)
    for partition in (0, 1):
        place.snapshot(partition, [(n, 1) for n in range(10)])
    for turn in range(4):
        place.pack({p: [(MERGE, (turn, 1)), (DELETE, (9 - turn, None))] for p in (0, 1)})
    before = {p: place.rows(p) for p in (0, 1)}
    place.compact({0: 1, 1: 3})
    assert {p: len(chain) for p, chain in place.chains.items()} == {0: 2, 1: 4}
    assert place.chains[0][-1].path == place.chains[1][-1].path
    assert {p: place.rows(p) for p in (0, 1)} == before
    place.compact({0: 0, 1: 0})
    assert {p: [a.kind for a in chain] for p, chain in place.chains.items()} == {0: [SNAPSHOT], 1: [SNAPSHOT]}
    assert {p: place.rows(p) for p in (0, 1)} == before


def test_folding_above_nothing_forgets_deletions_but_not_above_a_snapshot() -> None:
    place = Place(SIMPLE)
    place.snapshot(1, [(1, 1), (2, 1)])
    for change in ((MERGE, (1, 1)), (DELETE, (1, None)), (MERGE, (2, 5))):
        place.pack({0: [change], 1: [change]})
    place.compact({0: 1, 1: 1})
    assert [a.records for a in place.chains[0]] == [0, 1]
    assert [a.records for a in place.chains[1]] == [2, 2]
    assert place.rows(0) == [(2, 5)]
    assert place.rows(1) == [(2, 6)]
    place.pack({0: [(DELETE, (2, None))], 1: [(DELETE, (2, None))]})
    place.compact({0: 1, 1: 0})
    assert place.chains == {0: (), 1: ()}
    assert place.rows(0) == place.rows(1) == []


@pytest.mark.parametrize("forgotten", [0, 1])
def test_a_partition_that_was_not_written_is_never_dropped(monkeypatch: pytest.MonkeyPatch, forgotten: int) -> None:
    place = Place(SIMPLE)
    place.snapshot(0, [(n, n) for n in range(10)])
    for turn in range(2):
        place.pack({p: [(MERGE, (n, turn)) for n in range(3)] for p in (0, 1)})
    put = TableWriter.put

    async def forgets(writer: TableWriter, encoded: EncodedObject) -> dict[int, Artifact]:
        return {p: artifact for p, artifact in (await put(writer, encoded)).items() if p != forgotten}

    monkeypatch.setattr(TableWriter, "put", forgets)
    with pytest.raises(AssertionError, match=rf"partitions \[{forgotten}\] were to be compacted"):
        place.compact({0: 1, 1: 1})


def test_deltas_whose_sum_does_not_fit_alone_end_in_a_snapshot() -> None:
    place = Place(SIMPLE)
    for partition in (0, 1):
        place.snapshot(partition, [(1, -(2**62)), (2, 0)])
    for _ in range(2):
        place.pack({p: [(MERGE, (1, 2**62)), (MERGE, (2, 1))] for p in (0, 1)})
    place.pack({1: [(MERGE, (1, -(2**62)))]})
    place.compact({0: 1, 1: 1})
    assert [len(place.chains[0]), len(place.chains[1])] == [1, 2]
    assert place.rows(0) == [(1, 2**62), (2, 2)]
    assert place.rows(1) == [(1, 0), (2, 2)]


# ---- lookups ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large() -> Place:
    """A partition of 200,000 rows, and a few changes."""
    place = Place(SIMPLE)
    rows = pa.table([pa.array(range(200_000)), pa.array(map(value, range(200_000)))], SIMPLE.names)
    place.chains[0] = (run_sync(place.writer.snapshot(0, in_order(rows, ["k"]))),)
    place.pack({0: [(MERGE, (150_000, 1)), (DELETE, (7, None)), (MERGE, (-5, 4))]})
    return place


def value(n: int) -> int:
    return n * n * 7919 % 1_000_003


def test_a_lookup_reads_little(large: Place) -> None:
    reader = large.reader()
    keys = [(150_000,), (7,), (-5,), (300_000,)]
    found = run_sync(reader.rows(0, keys_of(SIMPLE, [keys[0]])))
    assert rows_in(found) == [(150_000, value(150_000) + 1)]
    assert reader.bytes_read < large.version.size / 5
    assert large.lookup(0, [(7,), (150_000,), (-5,), (300_000,)]) == [(-5, 4), (150_000, value(150_000) + 1)]


def test_a_lookup_beyond_every_row_group_reads_the_footer_alone(large: Place) -> None:
    reader = large.reader()
    assert run_sync(reader.rows(0, keys_of(SIMPLE, [(10**6,), (-100,)]))).num_rows == 0
    base, delta = large.chains[0]
    assert base.tail is not None
    assert reader.bytes_read == base.tail.length + delta.size


def test_a_file_that_was_opened_is_not_opened_again(large: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_of(SIMPLE, [(8,), (150_000,)])
    read = []
    for limit in (object_files.MAX_OPENED_BYTES, 1, 1):
        monkeypatch.setattr(object_files, "MAX_OPENED_BYTES", limit)
        for _ in range(2):
            reader = large.reader()
            assert run_sync(reader.rows(0, keys)).num_rows == 2
            read.append(reader.bytes_read)
        monkeypatch.setattr(object_files, "_opened", {})
    base = large.chains[0][0]
    assert base.tail is not None
    assert read[0] - read[1] == base.tail.length
    assert read[2:] == [read[0], read[1]] * 2, "one file is remembered, whatever its size"


def test_files_are_remembered_by_the_memory_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """And to open one more takes no look at all the others."""

    class Opened(dict[Any, Any]):
        def values(self) -> Any:
            raise AssertionError("there may be thousands of them")

    monkeypatch.setattr(object_files, "_opened", Opened())
    monkeypatch.setattr(object_files, "_opened_bytes", 0)
    place = Place(SIMPLE)
    artifacts = [place.snapshot(number, [(number, 7)]) for number in range(7)]
    tail = artifacts[0].tail
    assert tail is not None
    # Arrow and an index take ten times the bytes of a tail.
    monkeypatch.setattr(object_files, "MAX_OPENED_BYTES", 35 * tail.length)
    counts = []
    for artifact in artifacts:
        run_sync(place.reader().files.open(artifact))
        counts.append(len(object_files._opened))
    assert counts == [1, 2, 3, 1, 2, 3, 1]


def test_a_tail_of_another_digest_is_not_the_one_that_was_opened(large: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_of(SIMPLE, [(8,)])
    assert run_sync(large.reader().rows(0, keys)).num_rows == 1
    base, *deltas = large.chains[0]
    assert base.tail is not None
    other = (replace(base, tail=replace(base.tail, digest="0" * 64)), *deltas)
    monkeypatch.setitem(large.chains, 0, other)
    with pytest.raises(CorruptionError, match="tail"):
        run_sync(large.reader().rows(0, keys))


@pytest.mark.parametrize("step", [1, 16_000, 40_000])
def test_a_lookup_may_need_several_row_groups(large: Place, step: int) -> None:
    keys = list(range(16_380, 200_000, step))[:12]
    wanted = sorted(((n, value(n) + (n == 150_000)) for n in keys), key=repr)
    assert large.lookup(0, [(n,) for n in keys]) == wanted


def test_a_lookup_of_nothing_finds_nothing(large: Place) -> None:
    assert large.lookup(0, []) == []


def test_keys_of_two_columns_are_found_exactly() -> None:
    place = Place(SCHEMA)
    rows: list[Row] = [(a, b, None, 0, None) for a, b in itertools.product([None, 1, 2], [None, "x", "y"])]
    place.snapshot(0, rows)
    assert place.lookup(0, [(1, "x"), (2, "y"), (None, None)]) == sorted(
        [(1, "x", None, 0, None), (2, "y", None, 0, None), (None, None, None, 0, None)], key=repr
    )


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Place:
    """A snapshot of two row groups."""
    monkeypatch.setattr(parquet_encode, "ROW_GROUP_ROWS", 50)
    place = Place(SIMPLE)
    place.snapshot(0, [(n, n) for n in range(100)])
    return place


def test_any_byte_that_was_changed_is_noticed(small: Place) -> None:
    sound = small.chains[0][0]
    data = small.read(sound)
    for at in range(0, len(data), 3):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        small.chains[0] = (small.put(sound, bytes(changed)),)
        with pytest.raises(DigestMismatchError):
            small.rows(0)
        if at >= 4:  # a lookup does not read the magic bytes at the start
            with pytest.raises(DigestMismatchError):
                small.lookup(0, [(1,), (99,)])


@pytest.mark.parametrize("size", [0, 3, -1, -9])
def test_an_object_that_was_cut_is_noticed(small: Place, size: int) -> None:
    sound = small.chains[0][0]
    small.chains[0] = (small.put(sound, small.read(sound)[:size]),)
    for read in (lambda: small.rows(0), lambda: small.lookup(0, [(1,)])):
        with pytest.raises(DigestMismatchError):
            read()


def test_another_snapshot_in_its_place_is_noticed(small: Place) -> None:
    sound = small.chains[0][0]
    other = small.snapshot(0, [(n, n + 1) for n in range(100)])
    small.chains[0] = (small.put(sound, small.read(other)),)
    for read in (lambda: small.rows(0), lambda: small.lookup(0, [(1,)])):
        with pytest.raises(CorruptionError):
            read()


def test_an_object_that_is_gone_is_an_error_of_the_tree(small: Place) -> None:
    small.pack({0: [(MERGE, (1, 1))]})
    for gone in small.chains[0]:
        run_sync(small.store.delete([gone.path]))
        for read in (lambda: small.rows(0), lambda: small.lookup(0, [(1,)])):
            with pytest.raises(NotFoundError):
                read()


def test_damage_to_a_pack_is_noticed_in_every_partition() -> None:
    place = Place(SIMPLE)
    written = place.pack({0: [(MERGE, (1, 1))], 1: [(MERGE, (1, 1))]})
    data = bytearray(place.read(written[0]))
    data[len(data) // 2] ^= 1
    damaged = place.put(written[0], bytes(data))
    place.chains = {p: on_top((), replace(a, path=damaged.path)) for p, a in written.items()}
    reader = place.reader()
    for partition in (0, 1, 0):
        with pytest.raises(DigestMismatchError, match=damaged.path):
            run_sync(reader.rows(partition))


def test_other_rows_than_the_manifest_says_are_noticed() -> None:
    place = Place(SIMPLE)
    base = place.snapshot(0, [(1, 1), (2, 2)])
    delta = place.pack({0: [(MERGE, (1, 1))], 1: [(MERGE, (1, 1))]})[0]
    for chain in (
        (replace(base, records=3),),
        (base, replace(delta, records=2)),
        (base, replace(delta, kind=SNAPSHOT)),
    ):
        place.chains[0] = chain
        with pytest.raises(CorruptionError, match=r"expected \d rows"):
            place.rows(0)
    place.chains[2] = on_top((), delta)
    with pytest.raises(CorruptionError, match="expected 1 rows of partition 2, found 0"):
        place.rows(2)
