"""Real executor processes: attempts that failed, were lost or came second leave nothing in the manifest."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server

JOB = Path(__file__).with_name("cluster_job.py")
PROJECT = JOB.parents[2]


def run(command: list[str], tmp_path: Path, **environment: str) -> dict[str, Any]:
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable} | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def scenario(name: str, root: str, tmp_path: Path, **environment: str) -> dict[str, Any]:
    answer = run([sys.executable, str(JOB), name, root, str(tmp_path)], tmp_path, **environment)
    assert sum(told["rows"] for told in answer["told"]) == 100
    assert [told["partition"] for told in answer["told"]] == [0, 1, 2, 3]
    return answer


def abandoned(answer: dict[str, Any], root: Path) -> set[str]:
    """What lies in the store and in no manifest."""
    stored = {str(path.relative_to(root)) for path in (root / "artifacts" / "rows").rglob("*.raw")}
    assert set(answer["paths"]) <= stored
    return stored - set(answer["paths"])


def spark_program(name: str) -> str:
    """A launcher of the Spark that PySpark brings."""
    import pyspark

    return str(Path(pyspark.__file__).parent / "bin" / name)


def test_an_attempt_that_wrote_and_then_failed_is_not_in_the_manifest(tmp_path: Path) -> None:
    root = tmp_path / "root"
    answer = scenario("retry", str(root), tmp_path)
    assert answer["told"][1]["attempt"] == 1
    left = abandoned(answer, root)
    assert len(left) == 1
    content = json.loads((root / left.pop()).read_bytes())
    assert (content["partition"], content["attempt"]) == (1, 0)


def test_an_executor_lost_in_mid_batch_costs_nothing_but_time(tmp_path: Path) -> None:
    scenario("executor-lost", str(tmp_path / "root"), tmp_path)
    assert (tmp_path / "killed").exists()


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[str]:
    """A cluster of two workers with addresses of their own: Spark never speculates on the host of the first attempt."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    master, spark_class = f"spark://127.0.0.1:{port}", spark_program("spark-class")
    commands = [[spark_class, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]]
    for host in ("127.0.0.2", "127.0.0.3"):
        worker = [spark_class, "org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", "1"]
        commands.append([*worker, "--memory", "1g", "--work-dir", str(tmp_path / host), master])
    processes = []
    try:
        for command in commands:
            environment = {k: v for k, v in os.environ.items() if k != "SPARK_LOCAL_IP"}
            with (tmp_path / "cluster.log").open("ab") as log:
                processes.append(
                    subprocess.Popen(
                        command,
                        stdout=log,
                        stderr=log,
                        env=environment | {"SPARK_MASTER_WEBUI_PORT": "0", "SPARK_WORKER_WEBUI_PORT": "0"},
                    )
                )
        yield master
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)


def test_of_a_speculative_pair_one_is_in_the_manifest(tmp_path: Path, two_hosts: str, s3_server: Server) -> None:
    options = json.dumps(s3_server.storage_options)
    root = f"{s3_server.url}/speculation"
    answer = scenario("speculation", root, tmp_path, TEST_MASTER=two_hosts, TEST_STORAGE_OPTIONS=options)
    assert answer["told"][1]["attempt"] == 1


@pytest.mark.parametrize("place", ["local-cluster", "two hosts"])
def test_tables_are_exact_whatever_becomes_of_the_tasks(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """On one machine tasks write and fail; on two hosts they are also overtaken by speculative attempts."""
    if place == "local-cluster":
        name, root, environment = "tables-retry", str(tmp_path / "root"), {}
    else:
        server, master = request.getfixturevalue("s3_server"), request.getfixturevalue("two_hosts")
        name, root = "tables-speculation", f"{server.url}/tables"
        environment = {"TEST_MASTER": master, "TEST_STORAGE_OPTIONS": json.dumps(server.storage_options)}
    answer = run([sys.executable, str(JOB), name, root, str(tmp_path)], tmp_path, **environment)
    assert answer["rows"] == answer["read"] == [[n, 2] for n in range(100)]
    assert len(answer["paths"]) == 4
    if place == "local-cluster":
        stored = list((Path(root) / "artifacts").rglob("*.parquet"))
        assert len(stored) > len(answer["paths"])


def test_spark_submit_with_the_package_as_a_zip(tmp_path: Path) -> None:
    """The README's packaging: the packages travel in one zip, their dependencies are installed on the nodes."""
    package, ignored = "pyspark_checkpointer", shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "src" / package, tmp_path / "zip" / package, ignore=ignored)
    archive = shutil.make_archive(str(tmp_path / "packages"), "zip", tmp_path / "zip")
    command = [
        spark_program("spark-submit"),
        "--master",
        "local-cluster[2,1,1024]",
        "--py-files",
        archive,
        str(JOB),
        "submit",
    ]
    answer = run([*command, str(tmp_path / "root"), str(tmp_path)], tmp_path)
    assert sum(told["rows"] for told in answer["told"]) == 100
    assert all("packages.zip" in told["module"] for told in answer["told"])
