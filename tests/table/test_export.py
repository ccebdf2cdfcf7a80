"""A checkpoint as plain Parquet files: every row once, whoever reads them, and nothing is overwritten."""

import json
import random
import re
import uuid
from pathlib import Path
from typing import Any
from zlib import crc32

import duckdb
import pyarrow.parquet as pq
import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState, runtime
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint
from pyspark_checkpointer.errors import (
    ConflictError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    OperatorNotFoundError,
)
from pyspark_checkpointer.manifests.model import Chain
from pyspark_checkpointer.manifests.tagged_json import to_json
from pyspark_checkpointer.storage import open_files
from pyspark_checkpointer.table import export
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.schema import DELETE, MERGE, TableSchema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top
from tests.cli.conftest import Run, run
from tests.conftest import Root
from tests.damage import fill, flip
from tests.proof.planted import Planted
from tests.table.tables import changes_of, rows_in, schema_of

__all__ = ["run"]

TOTALS = schema_of({"k": "long", "n": "long", "title": "string"}, ["k"], n="sum")
PARTITIONS = 3

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def change(client: Checkpointer, cp: Checkpoint, changes: list[tuple[Any, ...]], schema: TableSchema = TOTALS) -> None:
    """Put changes on top of a table, a pack of deltas for each batch: many old rows stay in the store's objects."""
    session = client.session
    writer = TableWriter(session.store, session.host, cp.id, "totals", schema)
    old = cp.attempt.operator("totals")
    chains: dict[int, Chain] = {} if old is None else dict(old.chains)
    for partition in range(PARTITIONS):
        own = [one for one in changes if crc32(repr(one[1][0]).encode()) % PARTITIONS == partition]
        if own:
            packed = runtime.run_sync(writer.pack(in_order(changes_of(schema, own, partition), schema.key)))
            for number, delta in packed.items():
                chains[number] = on_top(chains.get(number, ()), delta)
    cp.attempt.put_operator("totals", TableVersion("totals", schema, PARTITIONS, chains).operator())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five checkpoints of a table whose keys are counted, changed and deleted, a map, and bytes of the job's own."""
    rng = random.Random(7)
    with Checkpointer(tmp_path / "root") as ck:
        seen = KeyedState(partitions=2)
        for batch in range(5):
            with ck.begin(epoch=batch) as cp:
                rows = [(MERGE, (k, rng.randrange(10), f"{batch} ü")) for k in rng.sample(range(20), 8)]
                gone = [(DELETE, (k, None, None)) for k in rng.sample(range(20), 2)] if batch else []
                change(ck, cp, list({one[1][0]: one for one in [*rows, *gone]}.values()))
                seen["last"], seen[1, "two"] = batch, {"half": "ü", "set": {1, 2}}
                cp.save("seen", seen)
                cp.snapshot("own", 0, b"bytes")
            ck.savepoint(f"s{batch}")
    return tmp_path / "root"


def wanted(root: Path, name: str) -> list[Any]:
    restored = Checkpointer(root).restore(savepoint=name)
    assert restored is not None
    return sorted(rows_in(restored.table("totals")))


@pytest.mark.parametrize("name", ["s0", "s2", "s4"])
def test_duckdb_reads_each_row_of_one_version_once(root: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "tables"
    made = Checkpointer(root).export_parquet(name, target)
    found = duckdb.sql(f"select k, n, title from '{target}/totals/*.parquet' order by k").fetchall()
    assert found == wanted(root, name)
    assert {one.name: one.rows for one in made.operators}["totals"] == len(found)
    raw = duckdb.sql(
        f"select k from read_parquet('{root}/artifacts/totals/**/*.parquet', union_by_name = true)"
    ).fetchall()
    assert name != "s4" or len(raw) > len(found), "what a glob over the store itself would have counted"


def test_the_recipe_of_the_documentation(tmp_path: Path, run: Run) -> None:
    schema = schema_of({"user": "string", "amount": "long"}, ["user"], amount="sum")
    with Checkpointer(tmp_path / "root") as ck:
        for batch in range(3):
            with ck.begin(epoch=batch) as cp:
                change(ck, cp, [(MERGE, (user, batch)) for user in ("ada", "bob")], schema)
                cp.save("seen", KeyedState({"ada": batch, "bob": 7}))
                cp.snapshot("own", 0, b"bytes")
    (shell,) = re.findall(r"```sh\n(checkpointer export ROOT latest .*?--format parquet)", OPERATIONS.read_text())
    target = tmp_path / "orders-tables"
    words = shell.replace("ROOT", str(tmp_path / "root")).replace("/data/orders-tables", str(target)).split()
    done = run(*words[1:])
    assert done.status == 0
    assert f"{target}/totals: table 'totals', 2 rows" in done.out
    assert "left out, as they hold bytes of the job's own: own" in done.out
    (block,) = re.findall(r"```sql\n(.*?)```", OPERATIONS.read_text(), re.DOTALL)
    totals, seen = [text for text in block.replace("/data/orders-tables", str(target)).split(";") if text.strip()]
    assert sorted(duckdb.sql(totals).fetchall()) == [("ada", 3), ("bob", 3)]
    assert sorted(duckdb.sql(seen).fetchall()) == [("ada", 2), ("bob", 7)]


def test_pandas_and_arrow_take_the_folder(root: Path, tmp_path: Path) -> None:
    Checkpointer(root).export_parquet("s4", tmp_path / "tables")
    assert pq.read_table(tmp_path / "tables" / "totals").num_rows == len(wanted(root, "s4"))
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(tmp_path / "tables" / "totals")
    assert sorted(map(tuple, frame[["k", "n", "title"]].values.tolist())) == wanted(root, "s4")


def test_a_map_has_its_keys_and_values_as_json(root: Path, tmp_path: Path) -> None:
    Checkpointer(root).export_parquet(None, tmp_path / "tables", operators=["seen"])
    rows = pq.read_table(tmp_path / "tables" / "seen").to_pylist()
    restored = Checkpointer(root).restore()
    assert restored is not None
    state = restored.keyed("seen")
    assert len(rows) == len(state)
    assert {row["key"] for row in rows} == {json.dumps(to_json(key), ensure_ascii=False) for key in state}
    assert [json.loads(row["value"]) for row in rows if row["key"] == '"last"'] == [4]
    assert not (tmp_path / "tables" / "totals").exists()


def test_an_empty_table_is_a_file_without_rows(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "root") as ck:
        with ck.begin(epoch=0) as cp:
            change(ck, cp, [])
            cp.save("seen", KeyedState(partitions=2))
        ck.export_parquet(None, tmp_path / "tables")
    for name in ("totals", "seen"):
        (columns,) = duckdb.sql(f"select count(*) from '{tmp_path}/tables/{name}/*.parquet'").fetchall()
        assert columns == (0,)
    assert duckdb.sql(f"select * from '{tmp_path}/tables/totals/*.parquet'").columns == ["k", "n", "title"]


def test_what_is_there_is_never_overwritten(root: Path, tmp_path: Path, run: Run) -> None:
    target = tmp_path / "tables"
    (target / "totals").mkdir(parents=True)
    (target / "totals" / "part-00000.parquet").write_bytes(b"somebody's")
    with pytest.raises(InvalidStateError, match="is not empty, and nothing is overwritten: give a new folder"):
        Checkpointer(root).export_parquet(None, target)
    assert run("export", root, "latest", target, "--format", "parquet").status == 1
    assert [path.name for path in target.rglob("*") if path.is_file()] == ["part-00000.parquet"]
    assert (target / "totals" / "part-00000.parquet").read_bytes() == b"somebody's"
    Checkpointer(root).export_parquet(None, tmp_path / "new")
    with pytest.raises(InvalidStateError):
        Checkpointer(root).export_parquet(None, tmp_path / "new")
    with pytest.raises(InvalidStateError):
        Checkpointer(root).export_parquet(None, root)


def test_a_damaged_one_is_no_export(root: Path, tmp_path: Path) -> None:
    flip(next((root / "artifacts" / "totals" / "packs").iterdir()))
    with pytest.raises(CorruptionError):
        Checkpointer(root).export_parquet(None, tmp_path / "tables")
    assert not (tmp_path / "tables" / export.EXPORT_MARKER).exists(), "what is not whole does not say that it is"


def test_mistakes(root: Path, tmp_path: Path, run: Run) -> None:
    for operators in (["own"], ["nothing"], []):
        with pytest.raises((IllegalArgumentError, OperatorNotFoundError)):
            Checkpointer(root).export_parquet(None, tmp_path / "tables", operators=operators)
    assert not (tmp_path / "tables").exists()
    assert run("export", root, "latest", tmp_path / "tables", "--operator", "totals").status == 2
    assert run("export", root, "latest", tmp_path / "tables", "--format", "csv").status == 2


def test_the_marker_says_what_it_is(root: Path, tmp_path: Path, run: Run) -> None:
    made = run("export", root, "s1", tmp_path / "tables", "--format", "parquet", "--json").json
    marker = json.loads((tmp_path / "tables" / export.EXPORT_MARKER).read_text())
    assert made == marker
    assert (marker["epoch"], marker["left_out"]) == (1, ["own"])
    assert marker["id"].startswith("0000000002-")


def test_on_every_kind_of_store(root: Path, any_root: Root) -> None:
    options = any_root.storage_options or None
    place = f"{any_root.url}-{uuid.uuid4().hex}"
    Checkpointer(root).export_parquet("s4", place, options)
    store = open_files(place, options)
    paths = sorted(entry.path for entry in runtime.run_sync(store.list("totals/")))
    rows: list[Any] = []
    for path in paths:
        rows += [
            tuple(row.values()) for row in pq.read_table(_file(runtime.run_sync(store.get(path)).data)).to_pylist()
        ]
    assert sorted(rows) == wanted(root, "s4")
    with pytest.raises(InvalidStateError):
        Checkpointer(root).export_parquet("s4", place, options)
    runtime.run_sync(store.close())


def _file(data: bytes) -> Any:
    from io import BytesIO

    return BytesIO(data)


def test_awaitable_and_told_how_far_it_is(root: Path, tmp_path: Path) -> None:
    import asyncio

    told: list[tuple[int, int]] = []

    async def write() -> int:
        async with AsyncCheckpointer(root) as ck:
            made = await ck.export_parquet("s4", tmp_path / "tables", progress=lambda *now: told.append(now))
            return sum(one.files for one in made.operators)

    assert asyncio.run(write()) == len(told) == told[-1][0] == told[-1][1]


def test_a_bit_of_everything(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "root") as ck:
        for number in range(3):
            fill(ck, number, many=False)
        made = ck.export_parquet(None, tmp_path / "tables")
        assert set(made.left_out) == {"own", "pack", "chain"}
        restored = ck.restore()
    assert restored is not None
    found = duckdb.sql(f"select k, n from '{tmp_path}/tables/table/*.parquet' order by k, n").fetchall()
    assert found == sorted(rows_in(restored.table("table")))


PLANTED = (
    Planted("what is there is written over", export._export, 'not await is_empty(target, "")', "False"),
    Planted("one partition is forgotten", export._partitions, "numbers or [0]", "numbers[1:] or [0]"),
)


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
def test_an_export_without_one_of_its_rules_is_found(root: Path, tmp_path: Path, run: Run, planted: Planted) -> None:
    with planted(), pytest.raises((AssertionError, pytest.fail.Exception, ConflictError)):
        test_duckdb_reads_each_row_of_one_version_once(root, tmp_path / "one", "s4")
        test_what_is_there_is_never_overwritten(root, tmp_path / "two", run)
