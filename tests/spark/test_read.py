"""Tables from anywhere: other sessions, older checkpoints, plain SQL, and without Spark."""

import asyncio
import itertools
import json
import weakref
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.checkpoint.listing import LOAD_BATCH
from pyspark_checkpointer.checkpoint.metadata import Segments
from pyspark_checkpointer.errors import (
    CheckpointNotFoundError,
    DigestMismatchError,
    IllegalArgumentError,
    MalformedError,
    OperatorNotFoundError,
    SavepointNotFoundError,
    StoreNotFoundError,
)
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import can_restore, diff, read_state
from pyspark_checkpointer.spark.arguments import TableDefinition
from pyspark_checkpointer.spark.dataframes import struct_of
from pyspark_checkpointer.spark.scan import (
    MAX_SCAN_TASKS,
    READ_TASK_BYTES,
    SCAN_TASK_BYTES,
    group_by_bytes,
    scan_tasks,
    task_numbers,
)
from pyspark_checkpointer.spark.table_changes import TableChanges
from pyspark_checkpointer.spark.versions import HAS_DATA_SOURCES, is_at_least, parse_schema
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.version import TableVersion
from tests.spark.needs import COLLATIONS, DATA_SOURCES, EMPTY_STRUCTS, FILTERS, VARIANTS, needs_spark, skip_before

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def put(
    spark: SparkSession, root: str, rows: DataFrame | None = None, delete: DataFrame | None = None, **options: Any
) -> CheckpointId:
    """A checkpoint of the table `t`, made without a query."""
    client = Checkpointer(root)
    client.restore()
    compact, drop, epoch = options.pop("compact", False), options.pop("drop", []), options.pop("epoch", None)
    with client.begin(epoch=epoch) as checkpoint:
        checkpoint.positions["topic"] = {"0": 5}
        table = TableChanges(spark, client, checkpoint.attempt, "t", TableDefinition(**{"key": ["k"]} | options))
        if drop:
            table.drop_columns(drop)
        if rows is not None:
            table.upsert(rows)
        if delete is not None:
            table.delete(delete)
        if compact:
            table.compact()
        table.finish()
    return checkpoint.id


@pytest.fixture(scope="module")
def store(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[CheckpointId]]:
    """1,000 rows; then 100 of them changed, 100 new and 10 deleted. A savepoint of the first checkpoint."""
    root = str(tmp_path_factory.mktemp("read") / "root")
    first = spark.range(1000).select(F.col("id").alias("k"), F.expr("id % 7").alias("v"), F.lit("x").alias("w"))
    second = spark.range(900, 1100).select(
        F.col("id").alias("k"), F.lit(100).cast("long").alias("v"), F.lit("x").alias("w")
    )
    ids = [put(spark, root, first, epoch=1)]
    Checkpointer(root).savepoint("before")
    ids.append(put(spark, root, second, spark.range(10).toDF("k"), epoch=2))
    return root, ids


def load(spark: SparkSession, root: str, **options: Any) -> DataFrame:
    skip_before("4.0", DATA_SOURCES)
    reader = spark.read.format("checkpointer")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(root)


def test_the_latest_state_an_older_one_and_a_savepoint(spark: SparkSession, store: Any) -> None:
    root, ids = store
    assert read_state(spark, root, "t").count() == 1090
    assert read_state(spark, root, "t", id=ids[0]).agg(F.sum("v")).first()[0] == sum(n % 7 for n in range(1000))
    assert read_state(spark, root, "t", epoch=1).count() == 1000
    assert read_state(spark, root, "t", savepoint="before").count() == 1000
    assert load(spark, root, operator="t").count() == 1090
    assert load(spark, root, operator="t", id=str(ids[0])).count() == 1000
    assert load(spark, root, operator="t", epoch="1").count() == 1000
    assert load(spark, root, operator="t", savepoint="before").count() == 1000


def test_a_checkpoint_is_named_as_everywhere_else(spark: SparkSession, store: Any) -> None:
    root, (first, second) = store
    made = Checkpointer(root).load_manifest(first).created
    forms = (
        str(first),
        str(first)[:10],
        f"1-{first.suffix[:4]}",
        "epoch=1",
        "savepoint=before",
        "before",
        f"at={made}",
    )
    for form in forms:
        assert read_state(spark, root, "t", id=form).count() == 1000, form
        assert load(spark, root, operator="t", id=form).count() == 1000, form
        assert diff(spark, root, form, second, "t").count() == 210, form
    assert read_state(spark, root, "t", id="latest").count() == 1090
    for work in (
        lambda: read_state(spark, root, "t", id="1"),
        lambda: load(spark, root, operator="t", id="1").count(),
        lambda: diff(spark, root, "1", second, "t"),
    ):
        with pytest.raises(
            (IllegalArgumentError, PySparkException), match="1 could be epoch=1, or checkpoint 00000000"
        ):
            work()


def test_columns_in_the_order_asked_for(spark: SparkSession, store: Any) -> None:
    root, _ = store
    for frame in (
        read_state(spark, root, "t", epoch=1, columns=["v", "k"]),
        load(spark, root, operator="t", epoch="1", columns="v, k"),
    ):
        assert frame.columns == ["v", "k"]
        assert frame.orderBy("k").take(9)[-1] == (1, 8)
    assert read_state(spark, root, "t", columns=["w"]).distinct().collect() == [("x",)]


def test_keys_choose_rows_and_partitions(spark: SparkSession, store: Any) -> None:
    root, _ = store
    found = read_state(spark, root, "t", keys=spark.createDataFrame([(3,), (899,), (950,), (5000,)], "k long"))
    assert sorted(map(tuple, found.collect())) == [(899, 3, "x"), (950, 100, "x")]


@pytest.fixture(params=[pytest.param("true", marks=needs_spark("4.1", FILTERS)), "false"])
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """Both settings of Spark's conf that offers filters to sources written in Python."""
    if not is_at_least("4.1"):
        yield request.param
        return
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param
    spark.conf.set(PUSHDOWN, before)


@pytest.fixture(scope="module")
def keyed_root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of the keys 0 to 499 in four partitions."""
    root = str(tmp_path_factory.mktemp("keyed") / "root")
    put(spark, root, spark.range(500).selectExpr("id k", "id * 2 v"), num_partitions=4)
    return root


def keys(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.select("k").collect())


@pytest.mark.usefixtures("pushdown")
def test_a_filter_of_one_query_leaves_out_no_rows_of_another(spark: SparkSession, keyed_root: str) -> None:
    frame = load(spark, keyed_root, operator="t")
    assert keys(frame.where("k = 7")) == [7]
    assert frame.count() == 500
    assert keys(frame.where("k in (8, 9) and v > 0")) == [8, 9]
    assert frame.count() == 500
    assert keys(frame.where("k <=> 10")) == [10]
    assert frame.agg(F.sum("v")).first()[0] == 499 * 500


@pytest.mark.usefixtures("pushdown")
def test_a_filter_of_one_branch_leaves_out_no_rows_of_another(spark: SparkSession, keyed_root: str) -> None:
    frame = load(spark, keyed_root, operator="t")
    one, other = frame.where("k = 7"), frame.where("k = 8")
    assert keys(one.union(other)) == [7, 8]
    assert one.union(frame).count() == frame.union(one).count() == 501
    assert one.alias("a").join(frame.alias("b"), F.expr("a.v < b.v")).count() == 492
    assert [tuple(row) for row in one.crossJoin(other.toDF("k2", "v2")).collect()] == [(7, 14, 8, 16)]
    assert frame.join(other, "k", "left_anti").count() == 499


@needs_spark("4.0", DATA_SOURCES)
@pytest.mark.usefixtures("pushdown")
def test_a_filter_of_a_view_or_of_a_cached_frame_stays_in_its_query(spark: SparkSession, keyed_root: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMP VIEW pruned USING checkpointer OPTIONS (path '{keyed_root}', operator 't')")
    assert [keys(spark.sql(f"select * from pruned where k = {key}")) for key in range(5)] == [[0], [1], [2], [3], [4]]
    assert spark.table("pruned").count() == 500
    assert spark.sql("select * from pruned a join pruned b on a.k = b.k and a.k = 3 and b.v = 6").count() == 1
    frame = load(spark, keyed_root, operator="t")
    assert keys(frame.where("k = 1")) == [1]
    try:
        assert frame.cache().count() == 500
        assert keys(frame.where("k = 2")) == [2]
    finally:
        frame.unpersist()


@pytest.mark.usefixtures("pushdown")
def test_decimal_keys_of_any_length_are_found(spark: SparkSession, tmp_path: Path) -> None:
    root, digits = str(tmp_path / "root"), [5, 18, 19, 27, 28, 29, 30, 37, 38]
    texts = [sign + ("1234567890" * 4)[:n] for n in digits for sign in ("", "-")]
    rows = spark.createDataFrame([(text,) for text in texts], "t string").selectExpr("cast(t as decimal(38,0)) k", "t")
    put(spark, root, rows, num_partitions=7)
    restored = Checkpointer(root).restore()
    assert restored is not None
    with localcontext(prec=3):
        for text in texts:
            assert restored.table("t", keys=[{"k": Decimal(text)}])["t"].to_pylist() == [text]
            assert restored.table("t", keys=[{"k": Decimal(text) + Decimal(1)}]).num_rows == 0
    for text in texts[-4:]:
        assert load(spark, root, operator="t").where(f"k = {text}BD").first().t == text
    sought = spark.createDataFrame([(Decimal(text),) for text in texts], "k decimal(38,0)")
    assert read_state(spark, root, "t", keys=sought).count() == len(texts)


@pytest.mark.usefixtures("pushdown")
def test_a_frame_or_view_shows_the_checkpoint_it_was_made_on(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    put(spark, root, spark.range(5).selectExpr("id k", "id v"))
    view = f"CREATE OR REPLACE TEMP VIEW pinned USING checkpointer OPTIONS (path '{root}', operator 't')"
    frames, unread = [load(spark, root, operator="t"), read_state(spark, root, "t")], load(spark, root, operator="t")
    spark.sql(view)
    for more in (5, 6):
        put(spark, root, spark.range(more, more + 1).selectExpr("id k", "id v"))
        assert [frame.count() for frame in (*frames, spark.table("pinned"))] == [5, 5, 5]
        assert [frame.where("v >= 0").count() for frame in (*frames, spark.table("pinned"))] == [5, 5, 5]
    spark.sql(view)
    assert spark.table("pinned").count() == load(spark, root, operator="t").count() == 7
    assert load(spark, root, view="checkpoints").count() == 3
    Checkpointer(root).clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    with pytest.raises(PySparkException, match="was retired meanwhile: make it again"):
        unread.count()


@needs_spark("4.0", DATA_SOURCES)
def test_a_table_of_the_catalog_is_refused_by_name(spark: SparkSession, keyed_root: str) -> None:
    with pytest.raises(PySparkException, match="use CREATE OR REPLACE TEMP VIEW"):
        spark.sql(f"CREATE TABLE listed USING checkpointer OPTIONS (path '{keyed_root}', operator 't')")


@needs_spark("4.0", DATA_SOURCES)
def test_sql_and_new_sessions_find_the_source_by_themselves(spark: SparkSession, store: Any) -> None:
    root, _ = store
    other = spark.newSession()
    other.sql(f"CREATE TEMP VIEW totals USING checkpointer OPTIONS (path '{root}', operator 't', epoch '1')")
    assert other.sql("select count(*) from totals where v = 6").first()[0] == 142


def test_the_view_of_checkpoints_stands_beside_a_cleanup(tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.datasource")
    from pyspark_checkpointer.spark.source_options import ReadRequest
    from pyspark_checkpointer.spark.source_views import VIEWS

    client = Checkpointer(tmp_path)
    ids = []
    for number in range(4):
        with client.begin(number) as cp:
            cp.snapshot("op", 0, b"%d" % number)
        ids.append(str(cp.id))
    client.begin().prepare()
    request = ReadRequest.of({"path": str(tmp_path), "view": "checkpoints"})
    rows = VIEWS["checkpoints"][1](request)
    first = next(rows)
    Checkpointer(tmp_path).clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    assert [row[0] for row in (first, *rows)] == ids
    assert [row[0] for row in VIEWS["checkpoints"][1](request)] == ids[-1:]


def test_the_view_of_checkpoints_holds_the_chains_of_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark.sql.datasource")
    from pyspark_checkpointer.spark.source_options import ReadRequest
    from pyspark_checkpointer.spark.source_views import VIEWS

    class Loaded(Manifest):
        """A manifest with its chains, without slots: so it can have weak references."""

    monkeypatch.setattr("pyspark_checkpointer.compaction.INLINE", 0)
    client = Checkpointer(tmp_path)
    for number in range(1, 4 * LOAD_BATCH):
        with client.begin(number) as cp:
            cp.snapshot("op", 0, bytes(number))
    seen, most, load_chains = list[weakref.ref[Loaded]](), 0, Segments.load

    async def spied(self: Segments, manifest: Manifest) -> Manifest:
        nonlocal most
        found = await load_chains(self, manifest)
        assert found is not manifest, "it has no segments"
        loaded = Loaded(**{field.name: getattr(found, field.name) for field in fields(found)})
        seen.append(weakref.ref(loaded))
        most = max(most, sum(one() is not None for one in seen))
        return loaded

    monkeypatch.setattr(Segments, "load", spied)
    rows = VIEWS["checkpoints"][1](ReadRequest.of({"path": str(tmp_path), "view": "checkpoints"}))
    assert [row[-1] for row in rows] == [*range(1, 4 * LOAD_BATCH)]
    assert 0 < most <= LOAD_BATCH


def test_views_of_checkpoints_artifacts_and_positions(spark: SparkSession, store: Any) -> None:
    root, ids = store
    checkpoints = load(spark, root, view="checkpoints").orderBy("id").collect()
    assert [row.id for row in checkpoints] == list(map(str, ids))
    assert [(row.epoch, row.latest, row.savepoint) for row in checkpoints] == [(1, False, "before"), (2, True, None)]
    assert [row.operators for row in checkpoints] == [["t"], ["t"]]
    artifacts = load(spark, root, view="artifacts").where("kind = 'delta'")
    assert artifacts.agg(F.sum("records")).first()[0] == 1000 + 200 + 10
    positions = load(spark, root, view="positions", epoch="1").collect()
    assert [tuple(row) for row in positions] == [(str(ids[0]), 1, "topic", '{"0": 5}')]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "there is neither: say one table"),
        ({"operator": "t", "view": "artifacts"}, "there are both: say one table"),
        ({"view": "checkpoints", "epoch": "1"}, "option epoch: has no effect on it"),
        ({"view": "positions", "columns": "source"}, "option columns: has no effect on it"),
        ({"view": "nope"}, "there are checkpoints"),
        ({"operator": "t", "coluns": "k"}, "option coluns: is not known"),
        ({"operator": "t", "columns": "nope"}, "no column nope"),
        ({"operator": "nope"}, "has t"),
        ({"operator": "t", "epoch": "x"}, "epoch=x: expected a number"),
    ],
)
def test_what_cannot_be_read_is_said_by_name(spark: SparkSession, store: Any, options: Any, said: str) -> None:
    with pytest.raises(PySparkException, match=said):
        load(spark, store[0], **options).collect()


def test_nothing_there_is_said_by_name(spark: SparkSession, store: Any, tmp_path: Path) -> None:
    root, _ = store
    with pytest.raises(OperatorNotFoundError, match="has t"):
        read_state(spark, root, "nope")
    with pytest.raises(IllegalArgumentError, match="no column nope"):
        read_state(spark, root, "t", columns=["nope"])
    with pytest.raises(IllegalArgumentError, match="key: column 'k' is missing"):
        read_state(spark, root, "t", keys=spark.range(1))
    with pytest.raises(CheckpointNotFoundError):
        read_state(spark, root, "t", epoch=77)
    with pytest.raises(SavepointNotFoundError):
        read_state(spark, root, "t", savepoint="nope")
    with pytest.raises(StoreNotFoundError):
        read_state(spark, str(tmp_path / "empty"), "t")


def test_what_changed_between_two_checkpoints(spark: SparkSession, store: Any) -> None:
    root, (first, second) = store
    changes = diff(spark, root, first, second, "t")
    assert {row.change: row["count"] for row in changes.groupBy("change").count().collect()} == {
        "inserted": 100,
        "updated": 100,
        "deleted": 10,
    }
    updated = changes.where("k = 901").first()
    assert (updated.before.v, updated.after.v) == (901 % 7, 100)
    assert changes.where("k = 3").first().after is None
    back = diff(spark, root, second, "before", "t").groupBy("change").count().collect()
    assert {row.change: row["count"] for row in back} == {"inserted": 10, "updated": 100, "deleted": 100}
    assert diff(spark, root, second, second, "t").count() == 0


def test_a_difference_in_nulls_maps_and_new_columns_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    a = put(
        spark,
        root,
        spark.sql("select 1L k, null x, map('a', 1) m union all select 2L, null, map('b', 1)").select(
            "k", F.col("x").cast("int"), "m"
        ),
    )
    b = put(
        spark,
        root,
        spark.sql("select 1L k, null x, map('a', 2) m union all select 2L, null, map('b', 1)").select(
            "k", F.col("x").cast("int"), "m"
        ),
    )
    c = put(spark, root, spark.sql("select 2L k, 5 x, map('b', 1) m, 'new' y"))
    assert [row.k for row in diff(spark, root, a, b, "t").collect()] == [1]
    assert [(row.k, row.after.y) for row in diff(spark, root, b, c, "t").collect()] == [(2, "new")]


@needs_spark("4.0", COLLATIONS)
def test_texts_that_a_collation_takes_for_equal_differ(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")

    def state(text: str) -> DataFrame:
        return spark.sql(f"select 1L k, '{text}' collate UTF8_LCASE t, array('{text}' collate UTF8_LCASE) a")

    first, second = put(spark, root, state("smith")), put(spark, root, state("SMITH"))
    assert [row.change for row in diff(spark, root, first, second, "t").collect()] == ["updated"]
    assert diff(spark, root, second, second, "t").count() == 0


@needs_spark("4.0", COLLATIONS)
def test_keys_that_a_collation_takes_for_equal_are_all_looked_up(spark: SparkSession, tmp_path: Path) -> None:
    root, names = str(tmp_path / "root"), ["SMITH", "Smith", "smith"]
    put(spark, root, spark.createDataFrame([(name,) for name in [*names, "jones"]], "k string"))
    wanted = spark.createDataFrame([(name,) for name in names], "k string").selectExpr("k collate UTF8_LCASE AS k")
    assert sorted(row.k for row in read_state(spark, root, "t", keys=wanted).collect()) == names


@needs_spark("4.0", VARIANTS)
def test_fields_whose_names_differ_in_case_alone_are_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        first, second = (
            put(spark, root, spark.sql(f"select 1 k, named_struct('a', {n}, 'A', map('x', {m})) s"))
            for n, m in ((1, 1), (1, 2))
        )
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert [row.change for row in diff(spark, root, first, second, "t").collect()] == ["updated"]
    assert diff(spark, root, second, second, "t").count() == 0


def test_a_difference_inside_maps_is_seen_and_their_order_is_none(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")

    def state(at: str, order: str, nested: str) -> DataFrame:
        value = f"map_from_arrays(array({order}), array(timestamp'2024-01-01 00:00:00.{at}', null)) m"
        return spark.sql(f"select 1L k, {value}, parse_json('1') v, array(named_struct('map', {nested})) n")

    first = put(spark, root, state("000001", "'a', 'b'", "map(1, 2, 3, 4)"))
    same = put(spark, root, state("000001", "'a', 'b'", "map(3, 4, 1, 2)"))
    later = put(spark, root, state("000002", "'a', 'b'", "map(1, 2, 3, 4)"))
    inside = put(spark, root, state("000002", "'a', 'b'", "map(1, 2, 3, 5)"))
    found = [diff(spark, root, a, b, "t").count() for a, b in itertools.pairwise((first, same, later, inside))]
    assert found == [0, 1, 1]


def test_a_frame_keeps_its_columns_when_the_table_gets_others(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    put(spark, root, spark.sql("select 1L k, 1 v, 2 w"))
    view = load(spark, root, operator="t")
    put(spark, root, spark.sql("select 2L k, 1 v, 2 w, 3 x"))
    put(spark, root, spark.sql("select 3L k, 1L v, 2 w"))
    assert [tuple(row) for row in view.collect()] == [(1, 1, 2)]
    with pytest.raises(PySparkException, match="column 'v' was asked for as int, but 0000000003"):
        spark.read.schema("k long, v int").format("checkpointer").option("operator", "t").load(root).count()


@pytest.mark.parametrize("name", ["change", "before", "after", "After", "change_", "a`b", "a.b"])
def test_a_difference_is_told_of_columns_of_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    rows = spark.sql("select 1L k, 1 v union all select 2L, 2")
    for key, names in ((name, [name, "v"]), ("k", ["k", name])):
        root = str(tmp_path / key.replace("`", ""))
        a = put(spark, root, rows.toDF(*names), key=[key])
        b = put(spark, root, rows.where("k = 2").withColumn("v", F.lit(5)).toDF(*names), key=[key])
        found = diff(spark, root, a, b, "t")
        assert len({column.lower() for column in found.columns}) == 4
        (row,) = found.collect()
        assert row[:2] == (2, "updated")
        assert (tuple(row[2]), tuple(row[3])) == ((2,), (5,))
    assert found.columns == ["k", "change", "before", "after"]


def test_keys_without_spark_are_compared_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    put(spark, root, spark.sql("select 0D k union all select double('nan')"))
    restored = Checkpointer(root).restore()
    assert restored is not None
    assert restored.table("t", keys=[{"k": -0.0}, {"k": float("nan")}]).num_rows == 2
    put(spark, str(tmp_path / "other"), spark.range(3).toDF("k"))
    other = Checkpointer(str(tmp_path / "other")).restore()
    assert other is not None
    assert other.table("t", keys=[]).num_rows == 0
    for wrong in (2**70, 1.5, "1", True):
        with pytest.raises(IllegalArgumentError, match="keys: expected rows with k"):
            other.table("t", keys=[{"k": wrong}])


@needs_spark("4.0", VARIANTS)
def test_a_column_that_came_back_with_another_type_differs(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    a = put(spark, root, spark.sql("select 1L k, 'abc' v, parse_json('1') w union all select 2L, null, null"))
    put(spark, root, spark.sql("select 3L k"), drop=["v", "w"])
    b = put(spark, root, spark.sql("select 1L k, date'2024-01-01' v, parse_json('\"1\"') w"))
    assert sorted((row.k, row.change) for row in diff(spark, root, a, b, "t").collect()) == [
        (1, "updated"),
        (3, "inserted"),
    ]


NAMES = ["a.b", "a`b", "a b", "__row", "row", "0", "`", "a.b.c", ".a", "..", "[0]", ".a[0]", "'", '"', "a\\", ".a\\`"]


@pytest.mark.parametrize("kind", ["long", "string"])
@pytest.mark.parametrize("name", NAMES)
def test_a_column_of_the_key_may_have_any_name(spark: SparkSession, tmp_path: Path, name: str, kind: str) -> None:
    root = str(tmp_path / "root")
    rows = spark.createDataFrame([(1, "x"), (2, "y")], "k long, v string").withColumn("k", F.col("k").cast(kind))
    put(spark, root, rows.toDF(name, "v"), key=[name])
    put(spark, root, rows.where("k = 2").toDF(name, "v"), key=[name])
    found = read_state(spark, root, "t", keys=rows.where("k = 2").select("k").toDF(name))
    key = 2 if kind == "long" else "2"
    assert (found.columns, [tuple(row) for row in found.collect()]) == ([name, "v"], [(key, "y")])


@pytest.mark.parametrize("name", NAMES)
def test_two_columns_of_a_key_of_texts_may_have_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Rows are in the order of both, also where a path of Arrow would lead from one to the other."""
    root, key = str(tmp_path / "root"), [name, "a"]
    given: list[tuple[Any, ...]] = [("x", "2", 1), ("y", "1", 2), (None, "0", 3), ("y", None, 4)]
    rows = spark.createDataFrame(given, "k string, a string, v long").toDF(*key, "v")
    first = put(spark, root, rows, key=key, num_partitions=1)
    second = put(spark, root, rows.where("v < 3").withColumn("v", F.col("v") + 10), key=key, num_partitions=1)
    expected = {("x", "2", 11), ("y", "1", 12), (None, "0", 3), ("y", None, 4)}
    assert {tuple(row) for row in read_state(spark, root, "t").collect()} == expected
    assert {tuple(row) for row in read_state(spark, root, "t", keys=rows.drop("v")).collect()} == expected
    changed = diff(spark, root, first, second, "t").collect()
    assert sorted(tuple(row[:3]) for row in changed) == [("x", "2", "updated"), ("y", "1", "updated")]
    restored = Checkpointer(root).restore()
    assert restored is not None
    assert restored.table("t", keys=[{name: "y", "a": "1"}]).to_pylist() == [{name: "y", "a": "1", "v": 12}]


def test_columns_of_values_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    put(spark, root, spark.createDataFrame([(1, *NAMES)]).toDF("k", *NAMES))
    found = read_state(spark, root, "t")
    assert (found.columns, [tuple(row) for row in found.collect()]) == (["k", *NAMES], [(1, *NAMES)])


@pytest.mark.parametrize("name", ["__Change", "__PARTITION", "__partition"])
def test_reserved_names_are_refused_however_they_are_spelled(spark: SparkSession, tmp_path: Path, name: str) -> None:
    with pytest.raises(IllegalArgumentError, match="the name is taken"):
        put(spark, str(tmp_path / "root"), spark.range(2).toDF("k").selectExpr("k", f"1 `{name}`"))


def test_spark_broadcasts_small_tables_only(spark: SparkSession, tmp_path: Path) -> None:
    """In a join it would collect a broadcast table in the driver, which a table of the cluster's size does not fit."""
    batch = spark.range(6000).toDF("k")
    for name, count in {"large": 6000, "small": 10}.items():
        put(spark, str(tmp_path / name), batch.where(f"k < {count}").withColumn("v", F.expr("repeat('y', 4000)")))
        table = read_state(spark, str(tmp_path / name), "t")
        joined = batch.join(table, "k", "left")
        assert joined.where("v IS NOT NULL").count() == count
        plan = joined._jdf.queryExecution().executedPlan().toString()
        assert ("BroadcastHashJoin" in plan) == (name == "small"), plan
        assert sorted(row.k for row in table.collect()) == [*range(count)]


@pytest.mark.parametrize("tasks", [0, 1, 3, 32])
@pytest.mark.parametrize("size", [0, 1, 7 << 20, 1 << 40])
def test_the_numbers_of_tasks_come_one_by_one_whatever_the_size(spark: SparkSession, tasks: int, size: int) -> None:
    numbers = task_numbers(spark, tasks, size)
    estimate = int(str(numbers._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    assert min(size, 16 << 30) / 2 <= max(estimate, 1) or not tasks  # Spark broadcasts up to 8 GiB
    if size > 1 << 30:
        return  # to count so far takes seconds
    assert [row for row in numbers.rdd.map(lambda row: row.id).glom().collect() if row] == [[n] for n in range(tasks)]


def test_text_that_is_no_utf8_can_be_a_key(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    rows = spark.sql("select cast(X'C9' as string) k, 1 v union all select 'a', 2")
    put(spark, root, rows)
    put(spark, root, rows.where("v = 1").withColumn("v", F.lit(3)))
    found = read_state(spark, root, "t", keys=rows.where("v = 1").select("k"))
    assert [(bytes(row.b), row.v) for row in found.selectExpr("cast(k as binary) b", "v").collect()] == [(b"\xc9", 3)]
    with pytest.raises(IllegalArgumentError, match="several rows have the key"):
        put(spark, root, rows.where("v = 1").union(rows.where("v = 1")))


def test_no_column_is_asked_for_twice(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    put(spark, root, spark.range(2).toDF("k"))
    for columns in (["k", "k"], []):
        with pytest.raises(IllegalArgumentError, match=r"is there twice|at least one column"):
            read_state(spark, root, "t", columns=columns)


def test_a_table_opens_without_spark(store: Any) -> None:
    root, _ = store
    restored = Checkpointer(root).restore()
    assert restored is not None
    table = restored.table("t")
    assert isinstance(table, pa.Table)
    assert table.num_rows == 1090
    assert restored.table("t", ["v"], keys=[{"k": 950}, {"k": 3}]).to_pylist() == [{"v": 100}]
    with pytest.raises(
        IllegalArgumentError, match="keys: column 'k' is missing; there are K: 'K' differs from it in case"
    ):
        restored.table("t", keys=[{"k": 1}, {"K": 1}])

    async def read() -> int:
        found = await AsyncCheckpointer(root).restore(epoch=1)
        assert found is not None
        return (await found.table("t")).num_rows  # type: ignore[no-any-return]

    assert asyncio.run(read()) == 1000


KEYS = {
    "boolean": "id % 2 = 0",
    "byte": "cast(id as byte)",
    "short": "cast(id * 300 as short)",
    "int": "cast(id * 30000000 as int)",
    "long": "id * 3000000000000000",
    "float": "cast(id * 0.5 as float)",
    "double": "if(id = 0, double('nan'), if(id = 1, -0.0D, id * 1e300))",
    "string": "repeat(cast(id as string), 3) || 'ßé'",
    "binary": "cast(repeat(cast(id as string), 3) || 'ß' as binary)",
    "date": "date_add(date'2020-01-01', cast(id * 100 as int))",
    "timestamp": "timestamp_seconds(id * 100000)",
    "timestamp_ntz": "cast(timestamp_seconds(id * 100000) as timestamp_ntz)",
    "decimal(10,2)": "cast(id * 3.5 as decimal(10, 2))",
    "decimal(30,4)": "cast(id * 1e20 as decimal(30, 4))",
    "interval day to second": "make_dt_interval(cast(id as int), 1)",
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_are_found_in_the_partition_that_spark_puts_them_in(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    root = str(tmp_path / "root")
    keys = spark.range(-50, 50).selectExpr(f"{KEYS[kind]} as k", "id").selectExpr("if(id = 7, null, k) k")
    rows = keys.groupBy("k").count()
    put(spark, root, rows, num_partitions=37)
    assert sorted(map(str, read_state(spark, root, "t").collect())) == sorted(map(str, rows.collect()))
    restored = Checkpointer(root).restore()
    assert restored is not None
    assert restored.manifest is not None
    version, table = TableVersion.of("t", restored.manifest.operators["t"], None), restored.table("t")
    expected = sorted(row.p for row in rows.selectExpr("pmod(hash(k), 37) p").collect())
    assert sorted(partitions_of(table.select(["k"]), version.schema, 37)) == expected
    found = restored.table("t", keys=[{"k": value} for value in table["k"].to_pylist()])
    assert found.num_rows == table.num_rows
    assert read_state(spark, root, "t", keys=rows).count() == table.num_rows


NEWER_VALUES = ["if(id = 1, null, parse_json('[1]'))", "'a' collate UTF8_LCASE"]

VALUES = [
    *(NEWER_VALUES if is_at_least("4.0") else []),
    "map('a', 1, 'b', null)",
    "map(1, map('x', array(1, null)))",
    "struct(1 as x, cast(null as string) as y, array(struct(1.5BD as z)) as q)",
    "array(array('a', null), null)",
    "binary('x')",
    "timestamp'1500-01-02 03:04:05.123456'",
    "timestamp_ntz'9999-12-31 03:04:05'",
    "date'0001-01-01'",
    "double('nan')",
    "cast(1e-40 as float)",
    "interval '1 2:3:4.5' day to second",
    "cast('abc' as varchar(10))",
    "cast(12345678901234567890.123 as decimal(38, 10))",
    "struct(timestamp'2024-07-01 00:00:00' as t)",
    "array(timestamp_ntz'2024-07-01 00:00:00')",
    # Arrow stores it as it stores a variant.
    "named_struct('value', binary('x'), 'metadata', cast(null as binary))",
]


def test_values_of_every_type_come_back_as_they_went_in(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    rows = spark.range(3).selectExpr("id k", *(f"{value} v{number}" for number, value in enumerate(VALUES)))
    put(spark, root, rows, num_partitions=2)
    put(spark, root, rows.where("k = 2"), num_partitions=2)
    frames = [read_state(spark, root, "t")]
    if HAS_DATA_SOURCES:
        feed = load(spark, root, operator="t", view="changes").where("sequence = 1")
        frames += [load(spark, root, operator="t"), feed.select(rows.columns)]
    for frame in frames:
        assert frame.schema.simpleString() == rows.schema.simpleString()
        assert sorted(map(str, frame.collect())) == sorted(map(str, rows.collect()))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("interval '1' month", "interval month"),
        ("null", "void"),
        ("array(null)", "void"),
        pytest.param("struct()", "struct<>", marks=needs_spark("4.0", EMPTY_STRUCTS)),
        pytest.param("struct(parse_json('1') as x)", "variant", marks=needs_spark("4.0", VARIANTS)),
    ],
)
def test_other_types_are_refused_by_column_and_type(spark: SparkSession, tmp_path: Path, value: str, kind: str) -> None:
    with pytest.raises(IllegalArgumentError, match=f"column 'v': type {kind} cannot be stored"):
        put(spark, str(tmp_path / "root"), spark.range(3).selectExpr("id k", f"{value} v"))
    assert not (tmp_path / "root").exists()


def test_whether_a_new_version_of_the_job_can_go_on_is_known_before_it_is_deployed(
    spark: SparkSession, store: Any, tmp_path: Path
) -> None:
    root, _ = store

    def ask(ddl: str, **options: Any) -> Any:
        schema = parse_schema(ddl)
        assert isinstance(schema, StructType)
        return can_restore(root, "t", schema=schema, **options)

    assert str(ask("k long, v long, w string")) == "nothing changes"
    answer = ask("k long, v decimal(20,0), z string", num_partitions=4)
    assert answer
    assert answer.changes == (
        "column 'z' is added",
        "column 'w' keeps its values",
        "column 'v' is widened from long to decimal(20,0)",
        "every row moves: 16 partitions become 4",
    )
    assert ask("k decimal(20,0), v long, w string").changes[-1] == "every row moves: the hash of its key changes"
    for ddl, options in (("k string, v long", {}), ("k long, v int", {}), ("k long, v long", {"key": ["v"]})):
        refused = ask(ddl, **options)
        assert not refused
        assert "the state has (k long key, v long, w string)" in refused.reason
    assert can_restore(tmp_path / "new", "t", schema=StructType().add("a", "long"), key=["a"])
    assert not can_restore(tmp_path / "new", "t", schema=StructType().add("a", "long"), key=["b"])


def test_a_name_that_is_no_table_is_a_reason_why_a_job_cannot_go_on(tmp_path: Path) -> None:
    client = Checkpointer(tmp_path)
    with client.begin() as cp:
        cp.save("map", KeyedState({"a": 1}))
        cp.snapshot("bytes", 0, b"x")
    for name, what in (("map", "is a map, not a table"), ("bytes", "is bytes, not a table")):
        answer = can_restore(tmp_path, name, schema=StructType().add("k", "long"), key=["k"])
        assert not answer
        assert answer.reason.startswith(f"operator '{name}': {what}")


def test_a_lookup_reads_few_row_groups_and_verifies_them(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    rows = spark.range(400_000).selectExpr("id k", "rand(1) x", "uuid() u")
    put(spark, root, rows, num_partitions=1, compact=True)
    client = Checkpointer(root)
    restored = client.restore()
    assert restored is not None
    assert restored.manifest is not None
    version = TableVersion.of("t", restored.manifest.operators["t"], None)
    reader = TableReader(client.session.store, client.session.host, version)
    keys = pa.table([pa.array(range(200_000, 201_000))], schema=pa.schema([version.schema.arrow().field("k")]))
    assert run_sync(reader.rows(0, keys)).num_rows == 1000
    assert reader.bytes_read < 0.06 * version.size
    (path,) = (tmp_path / "root").rglob("*.snapshot.*.parquet")
    damaged = bytearray(path.read_bytes())
    # A page has more than a thousand bytes. Those of the keys are in the middle, and other columns are between them.
    for at in range(len(damaged) * 2 // 5, len(damaged) * 3 // 5, 1000):
        damaged[at] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DigestMismatchError, match="block"):
        run_sync(TableReader(client.session.store, client.session.host, version).rows(0, keys))
    with pytest.raises(DigestMismatchError):
        restored.table("t")


@pytest.fixture(autouse=True)
def zone(spark: SparkSession) -> Iterator[None]:
    """A session zone of its own: instants do not depend on it."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


@needs_spark("4.0", COLLATIONS)
@pytest.mark.parametrize("collations", ["x", 1, [1], {"c": 1}, {"c": "x"}, {"c": "a.b.c"}, {"c": "nobody.UNICODE"}])
def test_a_collation_that_nobody_has_is_damage(collations: Any) -> None:
    column = {"id": 1, "name": "k", "type": "long", "role": "key"}
    other = {"id": 2, "name": "c", "type": "string", "role": "last", "metadata": {"__COLLATIONS": collations}}
    with pytest.raises(MalformedError, match=r"operator 't'|a table's columns"):
        struct_of(list(TableSchema.from_json("t", {"columns": [column, other], "next_id": 3}).columns))


def test_no_plan_shows_storage_options(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    put(spark, root, spark.createDataFrame([(1, 2)], "k long, n long"))
    secret = {"auto_mkdir": "c4nary"}  # the one option that a folder takes
    source = spark.read.format("checkpointer").option("operator", "t").option("storage_options", json.dumps(secret))
    frames = [read_state(spark, root, "t", storage_options=secret)]
    for frame in [*frames, source.load(root)] if HAS_DATA_SOURCES else frames:
        assert frame.count() == 1
        execution = frame._jdf.queryExecution()
        plans = [execution.toString(), execution.logical().toJSON(), execution.executedPlan().toString()]
        assert not [plan for plan in plans if "c4nary" in plan]
    skip_before("4.0", DATA_SOURCES)
    with pytest.raises(PySparkException) as raised:
        source.option("operator", "none").load(root).collect()
    assert "c4nary" not in str(raised.value)


@given(st.dictionaries(st.integers(0, 99), st.integers(0, 3 * READ_TASK_BYTES), max_size=40), st.integers(1, 40))
@example(dict.fromkeys(range(9), READ_TASK_BYTES), 1)
def test_tasks_are_given_partitions_by_their_bytes(sizes: dict[int, int], tasks: int) -> None:
    groups = group_by_bytes(sizes, tasks)
    assert [partition for group in groups for partition in group] == sorted(sizes)
    largest = max(sizes.values(), default=0)
    assert all(sum(sizes[p] for p in group) <= READ_TASK_BYTES + largest + len(group) for group in groups)


@pytest.mark.parametrize(("partitions", "tasks"), [(0, 3), (1, 3), (3, 3), (9, 3), (200, 8), (7, 2), (7, 100)])
def test_partitions_of_one_size_are_spread_evenly(partitions: int, tasks: int) -> None:
    for size in (0, 1, READ_TASK_BYTES // 1000):
        groups = group_by_bytes(dict.fromkeys(range(partitions), size), tasks)
        assert len(groups) == min(partitions, tasks)
        assert not groups or max(map(len, groups)) - min(map(len, groups)) <= 1


@pytest.mark.parametrize(
    ("size", "tasks"), [(0, 1), (SCAN_TASK_BYTES - 1, 1), (SCAN_TASK_BYTES, 2), (1 << 40, MAX_SCAN_TASKS)]
)
def test_a_scan_of_few_bytes_has_few_tasks(size: int, tasks: int) -> None:
    assert scan_tasks(size) == tasks


def test_a_small_table_of_many_partitions_is_one_task_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    put(spark, root, spark.range(100).select(F.col("id").alias("k"), F.lit(1).alias("n")), num_partitions=16)
    frame = load(spark, root, operator="t")
    assert frame.rdd.getNumPartitions() == 1
    assert sorted(row.k for row in frame.collect()) == [*range(100)]
