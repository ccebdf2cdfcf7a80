"""What the library writes is read alike by it and by the judge, who knows the specification alone."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from pyspark_checkpointer.manifests.keyed_records import partition_of
from pyspark_checkpointer.manifests.msgpack_values import unpack
from tests.judge import reader, readings, stores
from tests.judge.hostile.value_pool import KEYS
from tests.judge.reader.keys import canon
from tests.judge.reader.partitioner import canonical

ROOT = Path(__file__).parents[2]

EXPECTED: dict[str, Any] = json.loads((stores.GOLDEN.parent / "expected.json").read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            yield str(node.module)


FILES = sorted(Path(str(reader.__file__)).parent.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_judge_imports_nothing_of_the_project(path: Path) -> None:
    others = [name for name in imported(path) if not name.startswith("tests.judge.reader.")]
    assert {name.partition(".")[0] for name in others} <= sys.stdlib_module_names | {"pyarrow", "zstandard"}
    assert not {"importlib", "runpy"} & {*others}


def test_the_judge_loads_nothing_of_the_project() -> None:
    code = "import sys; import tests.judge.reader; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tests.judge.reader.restore" in loaded.split()
    assert not [name for name in loaded.split() if re.match(r"(pyspark_)?checkpointer\b|manifests\b|msgpack\b", name)]


def test_the_files_of_the_judge_stay_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in Path(__file__).parent.rglob("*.py")}
    assert not {path: length for path, length in lengths.items() if length >= 350}


def test_the_golden_store() -> None:
    found = reader.read(stores.GOLDEN)
    assert found["id"] == EXPECTED["latest"]
    assert found["prepared"]["id"] == EXPECTED["prepared"][0]
    points = {name: [point["id"], point["created"].isoformat()] for name, point in found["savepoints"].items()}
    assert points == EXPECTED["savepoints"]
    expected = EXPECTED["checkpoints"][found["id"]]
    assert {name: found[name] for name in ("epoch", "positions", "properties", "watermark")} == {
        name: expected[name] for name in ("epoch", "positions", "properties", "watermark")
    }
    assert found["created"].isoformat() == expected["created"]
    assert {name: _described(operator) for name, operator in found["operators"].items()} == expected["operators"]


def _described(operator: dict[str, Any]) -> Any:
    content = operator["content"]
    if operator["kind"] == "raw":
        return {str(partition): b" + ".join(parts).decode() for partition, parts in content.items()}
    if operator["kind"] == "map":
        return dict(sorted((repr(key), repr(value)) for key, value in content))
    columns = [f"{column['name']}: {column['arrow']}" for column in reader.read_schema(operator["schema"])]
    rows = sorted(content, key=lambda row: (row["k"] is None, row["k"]))
    return [columns, *map(repr, rows)]


@pytest.mark.parametrize("name", ["golden", *stores.STORES])
def test_both_read_the_same(name: str, tmp_path: Path) -> None:
    root = stores.GOLDEN if name == "golden" else stores.make(name, tmp_path / "store")
    assert readings.judged(root) is not None
    assert readings.judged(root) == readings.library(root)
    assert readings.verified(root)


def test_both_know_the_same_keys_as_equal_and_place_them_alike() -> None:
    known = [unpack(key) for key in KEYS]
    known += [Decimal("1E+999999999999999999"), Decimal("1." + "3" * 60), Decimal("-1E-999999999999999999"), 2**61 - 1]
    for key in known:
        assert crc32(canonical(key)) == partition_of(key, 2**32), key
        for other in known:
            assert (canon(key) == canon(other)) == (key == other), (key, other)
