"""A real cluster behind a server of Spark Connect: the client brings the package to the tasks."""

import shutil
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

from tests.spark.connect_server import PROJECT, SPARK, ConnectClient, ConnectServer, start_server
from tests.spark.needs import CONNECT, needs_spark
from tests.spark.test_connect import feed

PACKAGE = "pyspark_checkpointer"

pytestmark = [pytest.mark.prove, needs_spark("4.0", CONNECT)]  # it takes a cluster of three JVMs


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ConnectServer]:
    """A server whose own Python has the package; that of its two executors has all but the package."""
    venv.create(tmp_path / "environment", symlinks=True)
    (site,) = (tmp_path / "environment" / "lib").glob("python*/site-packages")
    # Where this Python has its packages. What only a file there leads to, as to this package, is not found.
    (site / "installed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python = str(tmp_path / "environment" / "bin" / "python")
    settings = {"spark.executorEnv.PYTHONPATH": str(SPARK), "spark.python.daemon.module": "pyspark.daemon"}
    server = start_server(tmp_path, "local-cluster[2,1,1024]", python, **settings)
    yield server
    server.kill()


def test_tasks_get_the_package_as_an_artifact_of_the_session(cluster: ConnectServer, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "src" / PACKAGE, tmp_path / "zip" / PACKAGE, ignore=ignored)
    archive = shutil.make_archive(str(tmp_path / "packages"), "zip", tmp_path / "zip")
    for name in ("without", "with"):
        (tmp_path / name).mkdir()
        feed(tmp_path / name, "a1 b2", "a3")
    # Each in a session of its own: PySpark 4.0 gives no artifact to the workers that a session has already.
    said = run(cluster, tmp_path / "without", None)
    assert f"cannot import {PACKAGE}: install what is missing there" in said
    totals, table, modules = run(cluster, tmp_path / "with", archive)
    assert totals == {"a": 4, "b": 2, "batches": 2}
    assert table == [["a", 4], ["b", 2]]
    assert modules
    assert all("/packages.zip/" in module for module in modules)


def run(cluster: ConnectServer, folder: Path, archive: str | None) -> Any:
    client = ConnectClient(cluster)
    try:
        return client.run("shipped", folder, archive)
    finally:
        client.kill()
