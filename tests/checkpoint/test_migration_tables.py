"""Migrate tables: columns come and go, and small partitions share an object."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_checkpointer import compaction, runtime
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import codecs
from pyspark_checkpointer.manifests.model import Clock, Json, Operator
from pyspark_checkpointer.table import large_rows, migration
from pyspark_checkpointer.table.expiry import Expire
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.schema_evolution import extended_schema, first_schema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter
from tests.checkpoint.migrations import CHANGES, ROWS, SCHEMA, double, old_job, restored, rows_of, write_rows
from tests.table.plain_store import plain_store, upsert
from tests.table.tables import array, field, mapping
from tests.world import Actor, World


@pytest.fixture
def client(world: World) -> Actor:
    return old_job(world)


def test_a_table_that_was_transformed_can_be_extended_in_the_same_checkpoint(world: World, client: Actor) -> None:
    """Tasks read the table by themselves, so it is in the store before the callback runs."""
    restored(client, **CHANGES)
    with client.begin() as cp:
        operator = cp.attempt.operator("totals")
        assert operator is not None
        assert {a.path for chain in operator.chains.values() for a in chain} <= world.objects("artifacts/totals/")
        write_rows(client, cp, {3: 5}, "totals")
    assert rows_of(restored(world.actor()), "totals")[3] == 65


def test_columns_come_and_go_and_are_recorded(world: World, client: Actor) -> None:
    def evolve(rows: pa.Table) -> pa.Table:
        rows = rows.filter(pc.greater(rows["k"], 4))
        count = pc.cast(rows["n"], pa.float64())
        tags = pa.array([["a"]] * rows.num_rows, pa.list_(pa.string()))
        return pa.table({"tags": tags, "k": rows["k"], "n": count})

    found = restored(client, transform={"rows": evolve})
    wanted = [{"k": key, "tags": ["a"], "n": float(value)} for key, value in ROWS.items() if key > 4]
    assert sorted(found.table("rows").to_pylist(), key=lambda row: row["k"]) == wanted
    with client.begin():
        pass
    found = restored(world.actor())
    assert sorted(found.table("rows").to_pylist(), key=lambda row: row["k"]) == wanted
    assert found.manifest is not None
    array = {"type": "array", "elementType": "string", "containsNull": True}
    assert found.manifest.operators["rows"].schema == {
        "columns": [
            {"id": 1, "name": "k", "type": "long", "role": "key"},
            {"id": 3, "name": "tags", "type": array, "role": "last"},
            {"id": 4, "name": "n", "type": "double", "role": "sum"},
        ],
        "next_id": 5,
    }


@pytest.mark.parametrize(
    ("change", "role"),
    [
        (lambda rows: rows.rename_columns(["k", "total"]), "sum"),
        (lambda rows: pa.table({"k": rows["k"], "total": rows["n"]}), "last"),
        (lambda rows: _with_field(rows, pa.field("total", pa.int64(), metadata={"combine": "max"})), "max"),
        (lambda rows: _with_field(rows, pa.field("n", pa.int64(), metadata={"combine": "last"})), "last"),
    ],
    ids=["renamed", "made", "said", "said of an old one"],
)
def test_a_column_is_combined_as_before_or_as_its_field_says(
    world: World, client: Actor, change: Callable[[pa.Table], pa.Table], role: str
) -> None:
    restored(client, transform={"rows": change})
    with client.begin():
        pass
    found = restored(world.actor())
    assert found.manifest is not None
    schema = TableSchema.from_json("rows", found.manifest.operators["rows"].schema)
    assert [column.role for column in schema.columns] == ["key", role]
    assert sorted(row[schema.names[1]] for row in found.table("rows").to_pylist()) == [*ROWS.values()]


LARGE = {"t": pa.large_string(), "b": pa.large_binary(), "l": pa.large_list(pa.large_string())}


def large(rows: pa.Table) -> pa.Table:
    return large_rows.cast(rows, lambda found: LARGE.get(found.name, found.type))


@pytest.mark.parametrize(
    "change",
    [
        large,
        lambda rows: rows.set_column(1, "t", rows["t"].dictionary_encode()),
        lambda rows: large(rows) if 1 in rows["k"].to_pylist() else rows,
        lambda rows: pl.DataFrame(pl.from_arrow(rows)).to_arrow(),
    ],
    ids=["large", "categories", "of some partitions", "polars"],
)
def test_a_transform_may_return_any_form_of_arrow_for_text_and_lists(
    change: Callable[[pa.Table], pa.Table],
) -> None:
    with plain_store() as store:
        tags = pa.array([["x"], None, ["y", None]], pa.list_(pa.string()))
        store.batch(upsert(k=[1, 2, 3], t=["a", "b", None], b=[b"a", None, b"c"], l=tags))
        before = store.client.restore()
        assert before is not None
        found = store.client.copy().restore(transform={"t": change})
        assert found is not None
        assert found.table("t").sort_by("k").equals(before.table("t").sort_by("k"))
        with store.client.copy() as again:
            again.restore(transform={"t": change})
            with again.begin():
                pass
        after = store.client.copy().restore()
        assert after is not None
        assert after.manifest is not None
        assert before.manifest is not None
        assert after.manifest.operators["t"].schema == before.manifest.operators["t"].schema


COLLATED = "spark.UTF8_LCASE"


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("variant", {}, {}),
        ("interval day", {}, {}),
        (array("interval hour to minute"), {}, {}),
        ("string", {"old": COLLATED}, {"new": COLLATED}),
        (array("string"), {"old.element": COLLATED}, {"new.element": COLLATED}),
        (
            mapping("string", array("string")),
            {"old.key": COLLATED, "old.value.element": COLLATED},
            {"new.key": COLLATED, "new.value.element": COLLATED},
        ),
    ],
    ids=["variant", "interval", "inside", "text", "texts", "map of texts"],
)
def test_a_renamed_column_keeps_its_type_and_its_collation(
    world: World, kind: Json, before: dict[str, str], after: dict[str, str]
) -> None:
    old = first_schema("rows", [field("k", "long"), _column("old", kind, before)], ["k"], {})
    found = _migrated(world, old, lambda rows: rows.rename_columns(["k", "new"]))
    assert found.columns[1].metadata == ({"__COLLATIONS": after} if after else None)
    # The next batch, in the words of the new job, is taken.
    assert extended_schema("rows", found, [field("k", "long"), _column("new", kind, after)], ["k"], {}) == found


def test_a_renamed_column_of_another_type_has_no_collation(world: World) -> None:
    def cast(rows: pa.Table) -> pa.Table:
        key, text = rows.schema
        return rows.cast(pa.schema([key, text.with_type(pa.binary())])).rename_columns(["k", "new"])

    old = first_schema("rows", [field("k", "long"), _column("old", "string", {"old": COLLATED})], ["k"], {})
    assert [(c.type, c.metadata) for c in _migrated(world, old, cast).values] == [("binary", None)]


def _column(name: str, kind: Json, collations: dict[str, str]) -> Json:
    return field(name, kind, {"__COLLATIONS": collations} if collations else {})


def _migrated(world: World, old: TableSchema, change: Callable[[pa.Table], pa.Table]) -> TableSchema:
    """The schema of a table without rows once it was migrated."""
    client = world.actor()
    with client.begin() as cp:
        cp.attempt.put_operator("rows", Operator(4, codecs.PARQUET.partitioner, codecs.PARQUET.name, {}, old.to_json()))
    restored(client, transform={"rows": change})
    with client.begin():
        pass
    manifest = restored(world.actor()).manifest
    assert manifest is not None
    return TableSchema.from_json("rows", manifest.operators["rows"].schema)


def _with_field(rows: pa.Table, field: pa.Field) -> pa.Table:
    return pa.table({"k": rows["k"], field.name: rows["n"]}, schema=pa.schema([("k", pa.int64()), field]))


def test_small_partitions_share_an_object(world: World, client: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones do, as in a job; large ones have an object of their own."""
    before = world.objects("artifacts/rows/")
    restored(client, transform={"rows": double})
    with client.begin():
        pass
    assert len(world.objects("artifacts/rows/") - before) == 1
    monkeypatch.setattr(compaction, "SMALL_PARTITION", 10)
    monkeypatch.setattr(migration, "MIGRATION_PACK_BYTES", 1)
    before = world.objects("artifacts/rows/")
    restored(client, transform={"rows": double})
    with client.begin():
        pass
    assert len(world.objects("artifacts/rows/") - before) == 4
    assert rows_of(restored(world.actor()), "rows") == {key: 4 * value for key, value in ROWS.items()}
    assert world.actor().verify()


def test_a_table_without_rows_gets_its_new_columns(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.attempt.put_operator(
            "rows", Operator(4, codecs.PARQUET.partitioner, codecs.PARQUET.name, {}, SCHEMA.to_json())
        )
    restored(client, transform={"rows": lambda rows: rows.append_column("x", pa.nulls(0, pa.string()))})
    with client.begin():
        pass
    assert restored(world.actor()).table("rows").schema.names == ["k", "n", "x"]


def test_columns_have_to_be_the_same_in_every_partition(client: Actor) -> None:
    seen: list[int] = []

    def fickle(rows: pa.Table) -> pa.Table:
        seen.append(rows.num_rows)
        return rows if len(seen) < 3 else rows.append_column("x", rows["n"])

    with pytest.raises(
        IllegalArgumentError, match=r"partition 2: .* k int64, n int64 sum, x int64, but k int64, n int64 sum"
    ):
        client.restore(transform={"rows": fickle})
    seen.clear()

    def forgets_how_it_combines(rows: pa.Table) -> pa.Table:
        seen.append(rows.num_rows)
        rows = rows.rename_columns(["k", "total"])
        return rows if len(seen) < 3 else pa.table({"k": rows["k"], "total": rows["total"]})

    with pytest.raises(IllegalArgumentError, match=r"partition 2: .* total int64, but k int64, total int64 sum"):
        client.restore(transform={"rows": forgets_how_it_combines})


def test_parquet_that_is_no_table_is_not_written(world: World) -> None:
    with (
        pytest.raises(IllegalArgumentError, match=r"'x': expected the partitioner of parquet, spark-murmur3-1"),
        world.actor().begin() as cp,
    ):
        cp.attempt.put_operator("x", Operator(1, "explicit", codecs.PARQUET.name))
    assert world.actor().restore() is None


NOON = datetime(2024, 1, 11, 12, tzinfo=UTC)


def _seen(*ages: timedelta) -> pa.Array:
    return pa.array([NOON - age for age in ages], pa.timestamp("us", "UTC"))


@pytest.fixture
def expiring(world: World) -> Actor:
    """A table of a row of five days, whose rows expire after ten days."""
    client = world.actor()
    schema = first_schema("rows", [field("k", "long"), field("seen", "timestamp")], ["k"], {})
    schema = schema.expiring("rows", Expire("seen", after=timedelta(days=10)))
    rows = pa.table([pa.array([1]), _seen(timedelta(days=5))], schema=schema.arrow())
    with client.begin() as cp:
        writer = TableWriter(client.session.store, client.session.host, cp.id, "rows", schema)
        chains = {0: (runtime.run_sync(writer.snapshot(0, rows)),)}
        cp.attempt.put_operator("rows", TableVersion("rows", schema, 1, chains).operator())
        cp.attempt.clock = Clock(NOON, "job")
    return client


def test_a_transform_may_not_let_a_row_expire_unseen(world: World, expiring: Actor) -> None:
    """No batch would return it as expired."""

    def aged(days: int) -> Callable[[pa.Table], pa.Table]:
        return lambda rows: rows.set_column(1, "seen", _seen(timedelta(days=days)))

    with pytest.raises(IllegalArgumentError) as caught:
        restored(expiring, transform={"rows": aged(10)})
    assert (
        "partition 0: its transform returned rows that are expired, 10 days, 0:00:00 after seen, at the job's clock, "
        "2024-01-11T12:00:00.000000Z: 1 of 1."
    ) in str(caught.value)
    restored(expiring, transform={"rows": aged(9)})
    with expiring.begin():
        pass
    assert restored(world.actor()).table("rows")["seen"].to_pylist() == [NOON - timedelta(days=9)]
    restored(expiring, transform={"rows": lambda rows: rows.slice(1)})
    restored(expiring, transform={"rows": lambda rows: pa.table({"k": rows["k"]})})
    with expiring.begin():  # no rule any more
        pass
    assert restored(world.actor()).table("rows").to_pylist() == [{"k": 1}]
