"""The scripts that a fresh machine depends on, and the servers that other tests take down."""

import os
import runpy
import subprocess
from pathlib import Path

import pytest

from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from tests import sparks
from tests.kafka import Broker
from tests.servers import Server

JAVA_HOME_SCRIPT = Path(__file__).parents[1] / "scripts" / "java-home"


def make_java(folder: Path, version: str) -> str:
    home = folder / f"jdk-{version}"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '    java.home = {home}' >&2\n")
    java.chmod(0o755)
    return str(home)


@pytest.mark.parametrize(
    ("installed", "on_path", "java_home", "chosen"),
    [
        (["25.0.3", "17.0.15"], None, None, "17.0.15"),
        (["25.0.3", "21.0.4", "11.0.2"], None, None, "21.0.4"),
        (["26", "25.0.3", "1.8.0_402"], None, None, "25.0.3"),
        (["21.0.4"], "17.0.15", None, "17.0.15"),
        (["17.0.15"], "25.0.3", None, "17.0.15"),
        (["17.0.15"], None, "21.0.4", "21.0.4"),
        (["17.0.15"], None, "25.0.3", "17.0.15"),
        ([], "17.0.15", "11.0.2", "17.0.15"),
        (["11.0.2", "1.8.0_402"], "16.0.1", "9", None),
        ([], None, None, None),
    ],
)
def test_spark_gets_the_java_that_fits_best(
    tmp_path: Path, installed: list[str], on_path: str | None, java_home: str | None, chosen: str | None
) -> None:
    searched = tmp_path / "with space" / "jvm"
    searched.mkdir(parents=True)
    for version in installed:
        make_java(searched, version)
    environment = {"PATH": f"{hide_java(tmp_path)}:/usr/bin:/bin"}
    if on_path:
        environment["PATH"] = f"{make_java(tmp_path / 'path', on_path)}/bin:{environment['PATH']}"
    if java_home:
        environment["JAVA_HOME"] = make_java(tmp_path / "home", java_home)

    done = subprocess.run([JAVA_HOME_SCRIPT, searched], env=environment, capture_output=True, text=True, timeout=60)

    if chosen is None:
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "Java 17 or newer was not found.\n"
    else:
        assert done.returncode == 0
        assert Path(done.stdout.strip()).name == f"jdk-{chosen}"


def hide_java(tmp_path: Path) -> Path:
    """A folder for the PATH with a java that tells nothing, before the machine's own."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "java").write_text("#!/bin/sh\nexit 1\n")
    (folder / "java").chmod(0o755)
    return folder


@pytest.mark.parametrize("kind", ["s3", "azure", "gcs"])
@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_server_comes_back_with_its_data(request: pytest.FixtureRequest, kind: str, ending: str) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    store = open_store(f"{server.url}/{ending}", server.storage_options)
    run_sync(store.put("object", b"data"))
    before = server.pid

    getattr(server, ending)()
    assert server.pid is None
    server.start()

    assert server.pid not in (None, before)
    assert run_sync(store.get("object")).data == b"data"


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_broker_comes_back_with_its_records(kafka_server: Broker, ending: str) -> None:
    kafka_server.create_topic(ending, 2)
    kafka_server.produce(ending, [(0, "a"), (1, "b"), (1, "c")])

    getattr(kafka_server, ending)()
    assert kafka_server.pid is None
    kafka_server.start()

    assert kafka_server.ends(ending) == {0: 1, 1: 2}


REPORT = '<testsuites><testsuite errors="1" failures="2" skipped="3" tests="10" time="61.5"/></testsuites>'


def test_the_matrix_counts_what_pytest_did(tmp_path: Path) -> None:
    matrix = runpy.run_path(str(JAVA_HOME_SCRIPT.with_name("matrix")))
    (tmp_path / "report.xml").write_text(REPORT)
    assert str(matrix["Run"].read(tmp_path / "report.xml")) == "4 passed, 3 failed, 3 skipped, 62 s"


def test_a_spark_of_the_matrix_comes_before_that_of_the_environment(tmp_path: Path) -> None:
    made = sparks.environment(Path("/python"), tmp_path)
    paths = made["PYTHONPATH"].split(os.pathsep)
    assert paths[0] == str(tmp_path)
    assert (Path(paths[1]) / "pyspark_checkpointer" / "spark" / "versions.py").exists()
    assert made["PYSPARK_PYTHON"] == made["PYSPARK_DRIVER_PYTHON"] == "/python"
