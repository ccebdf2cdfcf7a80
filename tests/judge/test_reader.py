"""What the library writes is read alike by it and by the judge, who knows the specification alone."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.judge import reader, stores

EXPECTED: dict[str, Any] = json.loads((stores.GOLDEN.parent / "expected.json").read_text(encoding="utf-8"))


def test_the_judge_imports_nothing_of_the_project() -> None:
    tree = ast.parse(Path(reader.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if "checkpointer" in name or name.startswith("tests")]


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
    assert stores.judged(root) is not None
    assert stores.judged(root) == stores.library(root)
    assert stores.verified(root)
