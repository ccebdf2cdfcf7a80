"""Real executor processes: attempts that failed, were lost or came second leave nothing in the manifest."""

import json
import os
import shutil
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer.spark.versions import HAS_DATA_SOURCES
from tests.servers import Server

JOB = Path(__file__).with_name("cluster_job.py")
PROJECT = JOB.parents[2]
PACKAGE = "pyspark_checkpointer"
CLUSTER = "local-cluster[2,1,1024]"


class Cluster:
    """What the scenarios of one run of the job left: processes start once for all of them."""

    def __init__(self, folder: Path, root: str, command: list[str], *scenarios: str, **environment: str) -> None:
        self.folder, self.root = folder, root
        env = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable} | environment
        done = subprocess.run(
            [*command, str(JOB), root, str(folder), *scenarios],
            capture_output=True,
            text=True,
            timeout=480,
            env=env,
            cwd=folder,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"scenario"')]
        self._told = {line["scenario"]: line for line in lines}
        self._errors = done.stderr[-4000:]

    def answer(self, scenario: str) -> dict[str, Any]:
        """Return what a scenario left. Raises if it failed."""
        told = self._told.get(scenario, {})
        assert "answer" in told, told.get("failed", self._errors)
        answer: dict[str, Any] = told["answer"]
        return answer

    def rows(self, scenario: str) -> dict[str, Any]:
        """Return what a scenario without tables left, which has every row once."""
        answer = self.answer(scenario)
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


@pytest.fixture(scope="module")
def local_cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Two executors on this machine, which get the packages as one zip. The one that is lost is lost at the end."""
    folder = tmp_path_factory.mktemp("local-cluster")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "src" / PACKAGE, folder / "zip" / PACKAGE, ignore=ignored)
    archive = shutil.make_archive(str(folder / "packages"), "zip", folder / "zip")
    submit = [spark_program("spark-submit"), "--master", CLUSTER, "--py-files", archive]
    return Cluster(folder, str(folder / "roots"), submit, "retry", "tables-retry", "relative", "executor-lost")


def packed_environment(folder: Path) -> str:
    """An environment as venv-pack or conda-pack packs one; what this one lacks, it finds where it is installed here."""
    venv.create(folder / "environment", symlinks=True)
    (site,) = (folder / "environment" / "lib").glob("python*/site-packages")
    shutil.copytree(PROJECT / "src" / PACKAGE, site / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    (site / "installed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return shutil.make_archive(str(folder / "environment"), "gztar", folder / "environment")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Two executors on this machine, which get a packed environment."""
    folder = tmp_path_factory.mktemp("packed")
    archive = packed_environment(folder)
    submit = [spark_program("spark-submit"), "--master", CLUSTER, "--archives", f"{archive}#environment"]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if not path.startswith(str(PROJECT))]
    environment = {
        "PYSPARK_DRIVER_PYTHON": str(folder / "environment" / "bin" / "python"),
        "PYSPARK_PYTHON": "./environment/bin/python",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return Cluster(folder, str(folder / "roots"), submit, "retry", "tables-retry", **environment)


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory, s3_server: Server) -> Iterator[Cluster]:
    """A cluster of two workers with addresses of their own: Spark never speculates on the host of the first attempt."""
    tmp_path = tmp_path_factory.mktemp("two-hosts")
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
        options = json.dumps(s3_server.storage_options)
        environment = {"TEST_MASTER": master, "TEST_STORAGE_OPTIONS": options}
        root = f"{s3_server.url}/two-hosts"
        yield Cluster(tmp_path, root, [sys.executable], "speculation", "tables-speculation", **environment)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)


def test_an_attempt_that_wrote_and_then_failed_is_not_in_the_manifest(local_cluster: Cluster) -> None:
    root, answer = Path(local_cluster.root) / "retry", local_cluster.rows("retry")
    assert answer["told"][1]["attempt"] == 1
    left = abandoned(answer, root)
    assert len(left) == 1
    content = json.loads((root / left.pop()).read_bytes())
    assert (content["partition"], content["attempt"]) == (1, 0)


def test_an_executor_lost_in_mid_batch_costs_nothing_but_time(local_cluster: Cluster) -> None:
    local_cluster.rows("executor-lost")
    assert (local_cluster.folder / "executor-lost" / "killed").exists()


@pytest.mark.prove  # it takes a cluster of six JVMs
def test_of_a_speculative_pair_one_is_in_the_manifest(two_hosts: Cluster) -> None:
    assert two_hosts.rows("speculation")["told"][1]["attempt"] == 1


@pytest.mark.parametrize("place", ["local-cluster", pytest.param("two hosts", marks=pytest.mark.prove)])
def test_tables_are_exact_whatever_becomes_of_the_tasks(place: str, request: pytest.FixtureRequest) -> None:
    """On one machine tasks write and fail; on two hosts they are also overtaken by speculative attempts."""
    cluster: Cluster = request.getfixturevalue(place.replace("-", "_").replace(" ", "_"))
    scenario = "tables-retry" if place == "local-cluster" else "tables-speculation"
    answer = cluster.answer(scenario)
    assert answer["rows"] == answer["read"] == [[n, 2] for n in range(100)]
    assert len(answer["paths"]) == 4
    if place == "local-cluster":
        stored = list((Path(cluster.root) / scenario / "artifacts").rglob("*.parquet"))
        assert len(stored) > len(answer["paths"])


def test_a_relative_root_is_one_folder_for_the_driver_and_executors(local_cluster: Cluster) -> None:
    found = local_cluster.answer("relative")
    assert found["relative"] == "relative/state"
    assert found["root"] == str(local_cluster.folder / "relative" / "state")
    assert (found["count"], found["here"]) == (200_000, 200_000)
    assert found["source"] == (200_000 if HAS_DATA_SOURCES else None)
    assert found["raw"] == [1 << 20] * 4
    assert found["findings"] == []


def test_spark_submit_with_the_package_as_a_zip(local_cluster: Cluster) -> None:
    """The package travels in a zip, what it needs is installed on the nodes."""
    assert all("packages.zip" in told["module"] for told in local_cluster.rows("retry")["told"])


@pytest.mark.prove  # it takes another cluster of three JVMs
def test_spark_submit_with_a_packed_environment(packed: Cluster) -> None:
    """The package and what it needs travel in an archive."""
    for told in packed.rows("retry")["told"]:
        assert "/environment/lib/" in told["module"]
        assert str(packed.folder / "environment") not in told["module"], "each executor has unpacked it for itself"
    answer = packed.answer("tables-retry")
    assert answer["rows"] == answer["read"] == [[n, 2] for n in range(100)]


def real_pythons() -> Iterator[str]:
    """Pythons of other versions that are on the PATH."""
    for minor in range(9, 20):
        name = shutil.which(f"python3.{minor}")
        if minor != sys.version_info[1] and name and not subprocess.run([name, "-V"], capture_output=True).returncode:
            yield name


@pytest.mark.prove  # it takes another cluster of three JVMs
def test_a_cluster_with_another_python_is_told_in_one_sentence(tmp_path: Path) -> None:
    other = next(real_pythons(), None)
    if other is None:
        pytest.skip("no Python of another version is on the PATH")
    submit = [spark_program("spark-submit"), "--master", CLUSTER]
    cluster = Cluster(tmp_path, str(tmp_path / "roots"), submit, "tables-retry", PYSPARK_PYTHON=other)
    with pytest.raises(AssertionError) as caught:
        cluster.answer("tables-retry")
    there, here = Path(other).name.removeprefix("python"), f"{sys.version_info[0]}.{sys.version_info[1]}"
    said = f"the Python of Spark's tasks, {other}, is Python {there}, and the driver's, "
    assert said in str(caught.value)
    assert f", is Python {here}: let PYSPARK_PYTHON, set before the session is made, " in str(caught.value)
