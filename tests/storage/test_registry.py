"""The registry knows all stores: a new one is a folder and a line, and no other module names a protocol."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store, options_near, parse, registry
from pyspark_checkpointer.storage.base import Settings, Store
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.storage.registry import STORES, Reach, StoreKind, store_kind_of
from pyspark_checkpointer.storage.url import Location
from tests.test_layers import FILES, ROOT
from tests.test_layers import parse as parse_module

_FOLDERS = {
    f"pyspark_checkpointer.storage.{path.name}"
    for path in (ROOT / "checkpointer" / "storage").iterdir()
    if (path / "__init__.py").exists()
    and path.name not in ("encryption", "signatures")  # they stand before a store of any kind
}


def test_every_folder_is_in_the_table_and_opens_roots() -> None:
    assert {store_kind_of("oss").module, *(kind.module for kind in STORES)} == _FOLDERS
    for module in _FOLDERS:
        assert callable(importlib.import_module(module).open_root)


@pytest.mark.parametrize(
    ("url", "folder", "package"),
    [
        ("/tmp/x", "local", None),
        ("file:///tmp/x", "local", None),
        ("local:///tmp/x", "local", None),
        ("memory://x", "memory", None),
        ("s3://b/x", "s3", "s3fs"),
        ("S3A://b/x", "s3", "s3fs"),
        ("s3n://b/x", "s3", "s3fs"),
        ("abfs://c/x", "azure", "adlfs"),
        ("abfss://c@a.dfs.core.windows.net/x", "azure", "adlfs"),
        ("az://c/x", "azure", "adlfs"),
        ("gs://b/x", "gcs", "gcsfs"),
        ("gcs://b/x", "gcs", "gcsfs"),
        ("dbfs:/Volumes/c/s/v/x", "databricks", "aiohttp"),
        ("oss://b/x", "fsspec_any", None),
    ],
)
def test_a_root_knows_its_store_and_the_package_that_it_needs(url: str, folder: str, package: str | None) -> None:
    kind = parse(url).kind
    assert (kind.module, kind.package) == (f"pyspark_checkpointer.storage.{folder}", package)
    reaches = {"local": Reach.MACHINE, "memory": Reach.PROCESS, "fsspec_any": Reach.UNKNOWN}
    assert kind.reach is reaches.get(folder, Reach.CLOUD)


def test_options_go_along_to_what_the_same_service_answers() -> None:
    options = {"key": "x"}
    assert options_near("s3a://b/x", "s3://c/y", options) == options
    assert options_near("gs://b/x", "gcs://c/y", options) == options
    assert options_near("oss://b/x", "oss://b/y", options) == options
    assert options_near("oss://b/x", "oss://c/y", options) is None
    assert options_near("oss://b/x", "oci://b/y", options) is None
    account, other = "acct.dfs.core.windows.net", "other.dfs.core.windows.net"
    assert options_near(f"abfss://b@{account}/x", f"abfs://c@{account}/y", options) == options
    assert options_near(f"abfss://b@{account}/x", "abfs://c/y", options) == options
    assert options_near(f"abfss://b@{other}/x", f"abfs://b@{account}/y", options) is None
    assert options_near("abfs://b/x", "s3://c/y", options) is None


def test_a_new_store_is_a_folder_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def open_root(location: Location, options: Mapping[str, Any], settings: Settings) -> Store:
        opened.append((location, options, settings))
        return MemoryStore(location.url, fencing=settings.fencing)

    toy = ModuleType("pyspark_checkpointer.storage.toy")
    toy.__dict__["open_root"] = open_root
    monkeypatch.setitem(sys.modules, toy.__name__, toy)
    line = StoreKind(("toy", "toys"), toy.__name__, Reach.CLOUD)
    monkeypatch.setattr(registry, "STORES", (*STORES, line))

    assert open_store("toys://bucket/x", {"key": 1}, timeout=3.0).url == "toys://bucket/x"
    assert opened == [(Location("toys", "bucket", "x"), {"key": 1}, Settings(True, 16, 3.0))]
    assert options_near("toy://a/x", "toys://b/y", {"key": 1}) == {"key": 1}
    with pytest.raises(IllegalArgumentError, match="names no bucket"):
        open_store("toy:///x")
    monkeypatch.setattr(registry, "STORES", (*STORES, StoreKind(("toy",), toy.__name__, package="no_such_package")))
    with pytest.raises(IllegalArgumentError, match=r"toy://b/x: needs the package no_such_package: pip.*\[toy\]"):
        open_store("toy://b/x")


def test_errors_name_every_store_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "STORES", (*STORES, StoreKind(("toy", "toys"), "toy", Reach.CLOUD)))
    known = ", ".join(f"{protocol}://" for kind in registry.STORES for protocol in kind.protocols)
    known = known.replace("dbfs://", "dbfs:/Volumes/")
    with pytest.raises(
        IllegalArgumentError, match=f"unknown protocol 'nosuch'; a root is a folder, {known} or anything"
    ):
        open_store("nosuch://b/x")
    clouds = "a folder, s3://bucket/path, abfs://container/path, gs://bucket/path, "
    clouds += "dbfs:/Volumes/catalog/schema/volume/path or toy://bucket/path"
    with pytest.raises(IllegalArgumentError, match=f"use {clouds}, or accept"):
        open_store("https://host/x")


HELP_WITH_A_NEW_STORE = """
from pyspark_checkpointer.storage import registry
new = registry.StoreKind(("toy",), "toy", registry.Reach.CLOUD, package="toyfs")
registry.STORES = (*registry.STORES, new)
from pyspark_checkpointer.cli.app import checkpointer
checkpointer(["--help"])
"""


def test_the_help_of_the_command_names_every_store_of_the_table() -> None:
    command = [sys.executable, "-c", HELP_WITH_A_NEW_STORE]
    told = " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    clouds = "s3://bucket/path, abfs://container/path, gs://bucket/path, dbfs:/Volumes/catalog/schema/volume/path"
    assert f"ROOT is a folder, {clouds}, toy://bucket/path, or" in told
    assert "as s3fs, adlfs, gcsfs, the tools of Databricks and toyfs find them" in told


_NAMES = {protocol for kind in STORES for protocol in kind.protocols} - {"file", "memory", "local"}
_NAMES |= {"dbfs:/", "/Volumes/"}
_NAMES |= {f"{protocol}://" for kind in STORES for protocol in kind.protocols}
"""Text that names a protocol, and is no word of English besides."""


def _protocols_in(tree: ast.AST) -> set[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str) and value in _NAMES}


def test_no_other_module_asks_for_protocols_by_name() -> None:
    found = {module: _protocols_in(parse_module(module)) for module in FILES if module != registry.__name__}
    assert {module: names for module, names in found.items() if names} == {}
    assert _protocols_in(ast.parse('root.startswith("memory://") or scheme in ("s3", "x")')) == {"memory://", "s3"}


def test_a_package_that_a_file_system_of_fsspec_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    store = open_store("https://127.0.0.1:1/root", fencing="none")
    with pytest.raises(IllegalArgumentError, match='"aiohttp" to be installed: pip install'):
        run_sync(store.get("_latest"))
