"""What comes from a store is read and never run: no code of ours evaluates it, and no payload leaves a mark."""

import ast
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pyspark_checkpointer.consumers.journal import Journal, yaml_format
from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.manifests.msgpack_values import unpack
from pyspark_checkpointer.spark.dataframes import struct_of
from pyspark_checkpointer.table.schema import TableSchema
from tests.proof.forgery import copy, forge
from tests.proof.verbs import do_everything, every_command
from tests.test_layers import FILES, ROOT, parse

# ---- nothing of ours evaluates anything ------------------------------------------------------------------------------

MODULES = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "runpy", "subprocess", "xml"}
NAMES = {"eval", "exec", "compile", "__import__", "import_module", "system", "popen", "from_string"}
NAMES |= {"full_load", "unsafe_load", "load_all", "UnsafeLoader", "FullLoader", "Loader", "PyExtensionType"}
NAMES |= {"register_extension_type", "read_pickle", "deserialize", "CloudPickleSerializer"}
WORDS = {"allow_pickle", "shell", "object_hook", "trust_remote_code"}

EXCEPTIONS = {
    "pyspark_checkpointer.manifests.msgpack_values": (
        {"ext_hook"},
        "the hooks of this module itself, one for each level of a value",
    ),
    "pyspark_checkpointer.manifests.msgpack_extensions": (
        {"ext_hook"},
        "the same hooks, for short members of a set",
    ),
    "pyspark_checkpointer.one_copy": (
        {"import_module", "Loader"},
        "modules of this package, where an import statement names them by their folder; the loader is Python's own",
    ),
    "pyspark_checkpointer.spark.task_client": (
        {"pickle"},
        "the driver's client, sent to tasks of its own job as Spark sends them",
    ),
    "pyspark_checkpointer.spark.function_copy": (
        {"pickle"},
        "the user's function, pickled and unpickled by one call in the driver",
    ),
    "pyspark_checkpointer.spark.write_tasks": (
        {"pickle"},
        "what a task wrote, sent back to its own driver by Spark",
    ),
    "pyspark_checkpointer.storage": (
        {"import_module"},
        "the folders of the stores, by names that stand in their registry",
    ),
    "pyspark_checkpointer.storage.connection": (
        {"import_module"},
        "s3fs, adlfs and gcsfs, by names that stand in the code",
    ),
    "pyspark_checkpointer.spark.executors": (
        {"__import__", "pickle", "CloudPickleSerializer"},
        "packages that the code names, in a task: only an import proves that one works there; pickle counts bytes, and "
        "opens in a task what its own driver sent it",
    ),
}


def unsafe(tree: ast.AST) -> Iterator[str]:
    """What in a module could run what it is given."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)):
                yield from {module, module.partition(".")[0]} & MODULES
                yield from (alias.name for alias in node.names if alias.name in NAMES)
            case ast.Attribute(value=ast.Name(id="yaml"), attr="load"):
                yield "yaml.load"
            case ast.Attribute(value=ast.Name(id="re"), attr="compile"):
                pass
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in NAMES:
                yield name
            case ast.keyword(arg="ext_hook", value=value):
                yield from () if ast.unparse(value) == "from_extension" else ("ext_hook",)
            case ast.keyword(arg=str(word)) if word in WORDS:
                yield word


def test_nothing_is_unpickled_or_evaluated() -> None:
    found = {module: {*unsafe(parse(module))} for module in FILES}
    assert {module: what for module, what in found.items() if what} == {
        module: allowed for module, (allowed, _) in EXCEPTIONS.items()
    }


EVALUATING = """
import pickle
from pickle import loads
eval(x)
run(exec, x)
os.system(x)
importlib.import_module(x)
yaml.load(x)
np.load(x, allow_pickle=True)
json.loads(x, object_hook=f)
subprocess.run(x, shell=True)
environment.from_string(x)
msgpack.unpackb(x, ext_hook=mine)
"""


@pytest.mark.parametrize("source", EVALUATING.strip().split("\n"))
def test_what_evaluates_is_found(source: str) -> None:
    assert [*unsafe(ast.parse(source))]


PLAIN = {str, int, float, bool, type(None), bytes, date, datetime, list, dict}
TEXTS = ("a", "1", "1.5", "yes", "null", "2024-01-01", "2024-01-01 00:00:00", "YQ==", "[a]", "[a: 1]", "{a: 1}")


def constructed(loader: type[yaml.SafeLoader], tag: str) -> Iterator[type]:
    """Types of what a loader makes of a tag, whatever stands behind it."""
    for text in TEXTS:
        made = loader(f"!<{tag}> {text}")
        with suppress(yaml.YAMLError, ValueError, LookupError, AttributeError):  # as `decode` refuses them
            yield type(made.get_single_data())


def strange(loader: type[yaml.SafeLoader]) -> set[object]:
    """Tags of which a loader makes more than plain data, and those that it knows only by how they begin."""
    tags = {tag for tag in loader.yaml_constructors if tag is not None}
    return {tag for tag in tags if {*constructed(loader, tag)} - PLAIN} | {*loader.yaml_multi_constructors}


def test_the_loader_of_journals_knows_no_types_but_those_of_yaml() -> None:
    assert issubclass(yaml_format._Loader, yaml.SafeLoader)
    assert all(tag is None or tag.startswith("tag:yaml.org,2002:") for tag in yaml_format._Loader.yaml_constructors)
    assert not any("python" in str(tag) for tag in yaml_format._Loader.yaml_constructors)
    assert strange(yaml_format._Loader) == set()
    for mark in ("value", "merge"):  # tags that SafeLoader constructs nothing of
        assert {*constructed(yaml_format._Loader, f"tag:yaml.org,2002:{mark}")} == {str}


def test_a_loader_of_more_types_is_found() -> None:
    class Ours(yaml_format._Loader):
        pass

    Ours.add_constructor("tag:yaml.org,2002:path", lambda loader, node: Path("."))
    Ours.add_multi_constructor("!any", lambda loader, suffix, node: None)
    assert strange(Ours) == {"tag:yaml.org,2002:path", "!any"}
    assert "tag:yaml.org,2002:python/tuple" in strange(yaml.UnsafeLoader)


# ---- and no payload leaves a mark ------------------------------------------------------------------------------------


class Mark:
    """What unpickling makes a file of."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """The file that a payload makes, if it is run."""
    made = tmp_path / "mark"
    pickle.loads(pickle.dumps(Mark(made)))
    made.unlink()  # it does
    yield made
    assert not made.exists()


def texts(mark: Path) -> list[str]:
    """Texts that would make the file, or fail in a telling way, where somebody evaluates them."""
    return [
        f"__import__('os').mknod('{mark}')",
        f"{{{{ cycler.__init__.__globals__.os.mknod('{mark}') }}}}",
        f"$(touch {mark})",
        f"`touch {mark}`",
        f"!!python/object/apply:os.mknod ['{mark}']",
        f"${{jndi:ldap://127.0.0.1/{mark}}}",
        "%s%n%(name)s {0.__class__} {unknown}",
    ]


@pytest.mark.usefixtures("careless")
def test_texts_of_a_manifest_are_only_shown(tmp_path: Path, mark: Path, figures: Counter[str]) -> None:
    root = copy(tmp_path / "root")

    def change(manifest: dict[str, Json]) -> None:
        for text in texts(mark):
            manifest["properties"][text] = manifest["positions"][text] = text
        manifest["watermark"] = texts(mark)
        manifest["job"] = {"query_id": texts(mark)[0], "run_id": texts(mark)[1], "batch_id": 1}
        manifest["operators"]["table"]["schema"]["columns"][1]["name"] = texts(mark)[0]

    forge(root, "manifest", change)
    assert {said.status for said in every_command(root)} <= {0, 1}
    assert [*do_everything(root, tmp_path / "aside")]
    figures["texts that nobody evaluated"] += len(texts(mark))


@pytest.mark.parametrize("at", ["column", "element", "field", "key"])
def test_a_type_of_a_users_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: Path, at: str) -> None:
    """Spark's reader of schemas imports the module that such a type names."""
    (tmp_path / f"marking_{at}.py").write_text(f"import os\nos.mknod({str(mark)!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    udt = {"type": "udt", "class": None, "pyClass": f"marking_{at}.Type", "sqlType": "long"}
    kind = {
        "column": udt,
        "element": {"type": "array", "elementType": udt, "containsNull": True},
        "field": {"type": "struct", "fields": [{"name": "f", "type": udt, "nullable": True, "metadata": {}}]},
        "key": {"type": "map", "keyType": udt, "valueType": "long", "valueContainsNull": True},
    }[at]
    columns = [
        {"id": 1, "name": "k", "type": "long", "role": "key"},
        {"id": 2, "name": "v", "type": kind, "role": "last"},
    ]
    with pytest.raises(CorruptionError):
        struct_of(list(TableSchema.from_json("t", {"columns": columns, "next_id": 3}).columns))


@pytest.mark.usefixtures("careless")
def test_extension_types_of_arrow_are_not_loaded(tmp_path: Path, mark: Path) -> None:
    """A table whose Parquet names a Python type of Arrow's, which older readers unpickle."""
    root = copy(tmp_path / "root")
    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Mark(mark)),
        b"PARQUET:field_id": b"1",
    }
    table = pa.table({"k": pa.array([1])}, schema=pa.schema([pa.field("k", pa.int64(), metadata=metadata)]))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data = bytes(sink.getvalue())

    def change(manifest: dict[str, Json]) -> None:
        old = manifest["operators"]["table"]
        owner = object_paths.owner(old["objects"][0][0])
        assert owner is not None
        path = object_paths.artifact("table", 0, owner, "snapshot", sha256(data), "parquet")
        (root / path).write_bytes(data)
        old["objects"], old["chains"] = [[path, len(data)]], {"0": [[0, len(data), 1]]}

    forge(root, "manifest", change)
    assert [*do_everything(root, tmp_path / "aside")]
    assert {said.status for said in every_command(root)} <= {0, 1}


def test_values_of_msgpack_are_not_loaded(mark: Path) -> None:
    data = pickle.dumps(Mark(mark))
    for code in range(128):
        for inner in (data, msgpack.packb(data), msgpack.packb(f"zone:{mark}")):
            with suppress(CorruptionError):
                unpack(msgpack.packb(msgpack.ExtType(code, inner)))


def test_tags_of_yaml_are_refused(tmp_path: Path, mark: Path) -> None:
    tags = [
        f"!!python/object/apply:os.mknod ['{mark}']",
        f"!!python/object/new:os.mknod ['{mark}']",
        "!!python/name:os.mknod",
    ]
    for number, text in enumerate(tags):
        file = tmp_path / f"{number}.yml"
        file.write_text(f"update_time: {text}\nevent_logs: [{text}]\n")
        with pytest.raises(CorruptionError):
            Journal(file)


# ---- what is promised ------------------------------------------------------------------------------------------------


def test_every_promise_names_a_test_that_is_there() -> None:
    text = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 15
    for file, test in named:
        assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
    promises = text.partition("## What is promised")[2].partition("## How to keep")[0]
    for promise in re.split(r" (?=\*\*)", promises)[1:]:
        assert "tests/" in promise, promise[:80]
