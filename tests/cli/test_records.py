"""The records of an operator: as a Parquet file, and key by key compared with an older checkpoint."""

import importlib.util
import json
import stat
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.manifests.msgpack_values import unpack
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table import parquet_file
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter
from tests.cli.conftest import Run
from tests.cli.every import write
from tests.table.tables import far, schema_of, text


def save(root: Path, partitions: int = 4, **maps: dict[Any, Any]) -> None:
    """Commit one more checkpoint, of these maps alone."""
    with Checkpointer(root) as ck, ck.begin() as cp:
        for name, content in maps.items():
            cp.save(name, KeyedState(content, partitions=partitions))


# ---- Parquet ---------------------------------------------------------------------------------------------------------


def test_a_table_becomes_a_parquet_file(golden: Path, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "table.parquet"
    assert run("cat", golden, "table", "-o", file, "--json").json == {
        "file": str(file),
        "records": 7,
        "bytes": file.stat().st_size,
    }
    shown = run("cat", golden, "table", "--json").json
    rows = pq.read_table(file).to_pylist()
    assert sorted((row["k"] or 0, row["n"] or 0) for row in rows) == sorted(
        (one["row"]["k"] or 0, one["row"]["n"] or 0) for one in shown
    )
    assert pq.read_schema(file).names == ["k", "n", "amount"]
    assert Decimal("-0.01") in [row["amount"] for row in rows]
    assert run("cat", golden, "table", "2", "-o", file).out == f"{file}: 4 records\n"
    assert run("cat", golden, "table", "--limit", 4, "-o", file).status == 0
    assert pq.read_table(file).num_rows == 4
    assert [path.name for path in tmp_path.iterdir() if "parquet" in path.name] == [file.name]


@pytest.mark.parametrize(
    "content",
    [
        {"a": 1, "b": 2},
        {1: b"\xff", 2: b""},
        {"a": 1, "b": 1.0, "c": True},
        {"a": 2**63},
        {("ü", 1): [1, (2,)]},
        {"a": datetime(2024, 1, 1, tzinfo=UTC)},
        {},
    ],
)
def test_a_map_becomes_the_same_parquet_as_its_export(tmp_path: Path, run: Run, content: dict[Any, Any]) -> None:
    save(tmp_path / "root", seen=content)
    file = tmp_path / "map.parquet"
    assert run("cat", tmp_path / "root", "seen", "-o", file).status == 0
    assert run("export", tmp_path / "root", "latest", tmp_path / "all", "--format", "parquet").status == 0
    found, exported = pq.read_table(file), pq.read_table(tmp_path / "all" / "seen")
    assert found.schema == exported.schema
    assert [str(kind) for kind in found.schema.types] == ["string", "string"], "whatever is in the map"
    assert found.to_pylist() == exported.to_pylist()
    shown = [(one["key"], one["value"]) for one in run("cat", tmp_path / "root", "seen", "--json").json]
    assert [(json.loads(row["key"]), json.loads(row["value"])) for row in found.to_pylist()] == shown
    assert pq.ParquetFile(file).metadata.num_rows == len(content)


def test_a_table_becomes_the_same_parquet_as_its_export(golden: Path, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "table.parquet"
    assert run("cat", golden, "table", "-o", file).status == 0
    assert run("export", golden, "latest", tmp_path / "all", "--format", "parquet").status == 0
    exported = sorted((tmp_path / "all" / "table").iterdir())
    assert pa.concat_tables([pq.read_table(path) for path in exported]).equals(pq.read_table(file))
    for path in (file, *exported):
        assert pq.read_schema(path).field("k").metadata in (None, {b"PARQUET:field_id": b"1"})
        assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_limit_ends_the_decoding_of_a_map(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "root", partitions=3, seen={n: n for n in range(100)})
    decoded: list[bytes] = []
    monkeypatch.setattr(parquet_file, "unpack", lambda value: decoded.append(value) or unpack(value))
    for limit in (0, 5, 99):
        decoded.clear()
        assert run("cat", tmp_path / "root", "seen", "--limit", limit, "-o", tmp_path / "a.parquet").status == 0
        assert pq.read_table(tmp_path / "a.parquet").num_rows == len(decoded) == limit


def test_a_store_that_cannot_be_read_is_not_called_an_output_that_cannot_be_written(
    golden: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise OSError(5, "of the store")

    file = tmp_path / "out.parquet"
    file.write_text("old")
    monkeypatch.setattr(TableReader, "rows", fail)
    done = run("cat", golden, "table", "-o", file)
    assert done.status != 0
    assert "of the store" in done.err
    assert "cannot be written" not in done.err
    assert [path.name for path in tmp_path.iterdir() if "parquet" in path.name] == [file.name]
    assert file.read_text() == "old"


def test_what_cannot_be_parquet_is_refused_before_anything_is_written(
    golden: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.parquet"
    file.write_text("old")
    for args, said in (
        (("totals", "-o", file), "bytes of the job's own format"),
        (("table", "-o", tmp_path / "out.csv"), "ends in .parquet"),
        (("table", "-o", tmp_path / "no" / "out.parquet"), "No such file"),
        (("table", "9", "-o", file), "no state in partition 9"),
    ):
        done = run("cat", golden, *args)
        assert (done.status, done.out) == (1 if "9" in args else 2, "")
        assert said in done.err
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "pyarrow" else found(name))
    done = run("cat", golden, "seen", "-o", file)
    assert done.status == 2
    assert "pip install 'spark-state-checkpointer[spark]'" in done.err
    assert file.read_text() == "old"


def test_a_failed_write_leaves_the_old_file(
    golden: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.parquet"
    file.write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise pa.ArrowInvalid("no")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fail)
    assert run("cat", golden, "table", "-o", file).status == 1
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if "parquet" in path.name] == [file.name]


def test_a_parquet_file_that_is_replaced_keeps_its_mode_and_the_link_to_it(
    golden: Path, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    file, link = tmp_path / "real" / "out.parquet", tmp_path / "link.parquet"
    file.write_text("old")
    file.chmod(0o644)
    link.symlink_to(file)
    assert run("cat", golden, "table", "-o", link).out == f"{link}: 7 records\n"
    assert link.is_symlink()
    assert pq.read_table(file).num_rows == 7
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    file.unlink()
    assert run("cat", golden, "table", "-o", link).status == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "nobody else may read a new one"
    assert list(file.parent.iterdir()) == [file]


# ---- keys ------------------------------------------------------------------------------------------------------------


def changes(found: dict[str, Any]) -> dict[str, str]:
    return {str(one["key"]): one["change"] for one in found["keys"]}


def test_the_keys_of_a_map(tmp_path: Path, run: Run) -> None:
    root = tmp_path / "root"
    save(root, seen={"same": 1, "other": 1, "gone": None, 7: "x", ("t",): 1})
    save(root, seen={"same": 1, "other": 1.0, "new": None, 7: "x", ("t",): [1]})
    found = run("diff", root, "0000000001", "latest", "seen", "--json").json
    assert changes(found) == {
        "other": "updated",
        "new": "inserted",
        "gone": "deleted",
        "{'$tuple': ['t']}": "updated",
    }
    assert (found["inserted"], found["updated"], found["deleted"], found["left_out"]) == (1, 2, 1, 0)
    text = run("diff", root, "0000000001", "latest", "seen").out
    assert 'inserted  "new"' in text
    assert text.endswith("1 inserted, 2 updated, 1 deleted\n")
    assert run("diff", root, "0000000001", "0000000001", "seen", "--json").json["keys"] == []


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_keys_of_a_map_that_was_spread_anew_are_the_same(tmp_path: Path, run: Run, partitions: int) -> None:
    root = tmp_path / "root"
    content = {f"key {n}": n for n in range(50)}
    save(root, partitions=5, seen=content)
    save(root, partitions=partitions, seen=content | {"key 7": 0})
    assert changes(run("diff", root, "0000000001", "latest", "seen", "--json").json) == {"key 7": "updated"}


def test_many_keys_are_counted_and_some_are_named(tmp_path: Path, run: Run) -> None:
    root = tmp_path / "root"
    save(root, other={}, seen={})
    save(root, seen={n: n for n in range(1000)})
    found = run("diff", root, "0000000001", "latest", "seen", "--json", "--limit", 7).json
    assert (len(found["keys"]), found["inserted"], found["left_out"]) == (7, 1000, 993)
    assert "and 900 more keys: raise --limit" in run("diff", root, "0000000001", "latest", "seen").out
    assert run("diff", root, "0000000001", "latest", "seen", "--json", "--limit", 0).json["left_out"] == 1000


def test_the_keys_of_a_table_without_spark(tmp_path: Path, run: Run, golden: Path) -> None:
    write(tmp_path / "root")
    found = run("diff", tmp_path / "root", "0000000001", "latest", "table", "--json").json
    assert (found["inserted"], found["updated"], found["deleted"]) == (2, 2, 0)
    assert [one["change"] for one in found["keys"] if one["key"] == {"user": f"{'u' * 80}-0"}] == ["updated"]
    assert changes(run("diff", golden, "0000000001", "0000000004", "table", "--json").json) == {
        "{'k': None}": "updated",
        "{'k': 1}": "updated",
        "{'k': 2}": "updated",
        "{'k': 9}": "inserted",
        "{'k': 4}": "deleted",
    }


def test_an_operator_that_one_side_lacks_is_all_new_or_all_gone(tmp_path: Path, run: Run) -> None:
    root = tmp_path / "root"
    save(root, one={"a": 1})
    save(root, two={"b": 2, "c": 3})
    with Checkpointer(root) as ck, ck.begin() as cp:
        cp.drop("one")
    assert changes(run("diff", root, "0000000001", "latest", "one", "--json").json) == {"a": "deleted"}
    assert changes(run("diff", root, "0000000001", "latest", "two", "--json").json) == {
        "b": "inserted",
        "c": "inserted",
    }
    done = run("diff", root, "0000000001", "latest", "three")
    assert (done.status, "the checkpoint has two" in done.err) == (1, True)


def test_keys_of_bytes_are_nobody_elses_business(golden: Path, run: Run) -> None:
    done = run("diff", golden, "0000000001", "0000000004", "totals")
    assert done.status == 2
    assert "leave OPERATOR out" in done.err


def test_a_table_is_shown_with_the_values_that_python_lacks(tmp_path: Path, run: Run) -> None:
    schema = schema_of({"k": "string", "at": "timestamp"}, ["k"])
    held = pa.table([text(b"a", b"\xff"), far(schema.arrow().field("at").type, 0, 2**60)], schema=schema.arrow())
    with Checkpointer(tmp_path / "root") as ck, ck.begin() as cp:
        writer = TableWriter(ck.session.store, ck.session.host, cp.id, "t", schema)
        chains = {0: (run_sync(writer.snapshot(0, held)),)}
        cp.attempt.put_operator("t", TableVersion("t", schema, 1, chains).operator())
    assert [one["row"] for one in run("cat", tmp_path / "root", "t", "--json").json] == [
        {"k": "a", "at": {"$datetime": "1970-01-01T00:00:00+00:00", "zone": "UTC"}},
        {"k": {"$bytes": "/w=="}, "at": {"$datetime": "+38504-08-17T21:30:06.846976+00:00", "zone": "UTC"}},
    ]
