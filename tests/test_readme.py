"""README and docs show only what runs: programs are run as they stand, in an empty folder, twice; commands are typed.

In `make prove` two programs go on, in their second run, on a cluster. Those without Spark run twice as they stand. The
first program with Spark starts Java itself, as a new user's does. All others are processes of their own, too, but use
one JVM.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.quotes import FIGURES, MEMORY, measured
from pyspark_checkpointer import errors
from pyspark_checkpointer.cli.app import checkpointer
from tests.docs import shared_spark
from tests.docs.shared_spark import SharedSpark

README = Path(__file__).parents[1] / "README.md"
DOCS = README.parent / "docs"
OPERATIONS, CONSUMERS, TESTING = DOCS / "operations.md", DOCS / "consumers.md", DOCS / "testing.md"
STREAMING, TABLES, PYTHON = DOCS / "streaming.md", DOCS / "tables.md", DOCS / "python.md"
PAGES = (README, STREAMING, TABLES, PYTHON, OPERATIONS, CONSUMERS, TESTING)


def blocks(file: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", file.read_text(), re.DOTALL | re.MULTILINE)


def programs(file: Path) -> list[str]:
    """Return the programs of a page. On the pages of Spark each block goes on from the one before."""
    found = blocks(file, "python")
    return ["\n".join(found)] if file in (STREAMING, TABLES) else found


PROGRAMS = [program for file in PAGES for program in programs(file)]
NAMES = [re.sub(r"\W+", "-", program.splitlines()[0]) + f"-{number}" for number, program in enumerate(PROGRAMS)]


def bare_environment(folder: Path) -> dict[str, str]:
    """What a new user's shell has: no activated environment, an empty home, and a `python3` that has no packages."""
    home, path = folder / "home", folder / "path"
    home.mkdir()
    path.mkdir()
    (path / "python3").write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} -S "$@"\n')
    (path / "python3").chmod(0o755)
    java = subprocess.run(
        [README.parent / "scripts" / "java-home"], capture_output=True, text=True, check=True, timeout=60
    )
    return {
        "PATH": f"{path}:/usr/bin:/bin",
        "HOME": str(home),
        "JAVA_HOME": java.stdout.strip(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": os.environ["JDK_JAVA_OPTIONS"],  # how fast Java starts, and no more
        "TMPDIR": tempfile.gettempdir(),  # what programs leave there goes with the run
    }


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    """A JVM that was started as a new user's is."""
    folder = tmp_path_factory.mktemp("readme")
    with shared_spark.shared_spark(folder / "work", bare_environment(folder)) as spark:
        yield spark


def run_program(
    program: str, cwd: Path, environment: dict[str, str], runner: tuple[str, ...] = ("-c",)
) -> "subprocess.CompletedProcess[str]":
    cwd.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, *runner, program],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=480,  # a loaded machine starts a JVM slowly
        check=False,
    )


STREAMS = [program for file in (README, TABLES) for program in programs(file)]
"""The programs that go on, in their second run, on a cluster."""


def on_a_cluster(program: str) -> str:
    assert 'master("local[2]")' in program
    return program.replace("local[2]", "local-cluster[2,1,1024]")


def printed(program: str, tmp_path: Path, environment: dict[str, str], spark: SharedSpark | None = None) -> str:
    """Return what a program prints, which has to be something."""
    if spark is None:
        done = run_program(program, tmp_path / "work", environment)
    else:
        (file := tmp_path / "program.py").write_text(program)
        done = run_program(str(file), spark.empty(), environment | spark.environment, (shared_spark.__file__,))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()
    assert "|" not in done.stdout or re.search(r"\d", done.stdout), f"a table without a row:\n{done.stdout}"
    return done.stdout.strip()


@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_a_program_of_the_docs_runs_and_goes_on(program: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """From an environment that nobody activated, in an empty folder: with the interpreter's path and nothing else."""
    environment = bare_environment(tmp_path)
    shares = "SparkSession" in program and program != STREAMS[0]
    first = printed(program, tmp_path, environment, request.getfixturevalue("spark") if shares else None)
    if program in STREAMS and program in blocks(README, "python"):
        assert f"The first run prints `{first}`" in README.read_text()
    if "SparkSession" not in program:  # each start of Spark takes long
        printed(program, tmp_path, environment)


@pytest.mark.prove  # five starts of Spark, six executors; in the short run tests/spark/test_cluster.py has executors
def test_the_programs_with_a_stream_run_and_go_on_on_a_cluster(tmp_path: Path) -> None:
    """First each as it stands, as above; then one after the other with the processes of one cluster."""
    environment = bare_environment(tmp_path)
    for program in STREAMS:
        printed(program, tmp_path, environment)
    both = "\n".join([on_a_cluster(program) + "\nprint('done')" for program in STREAMS])
    said = printed(both, tmp_path, environment | {"PYSPARK_PYTHON": sys.executable})
    parts = said.split("done")
    assert "{0: 100, 1: 100}" in parts[0], "the counts go on"
    assert all(part.strip() for part in parts[: len(STREAMS)])


@pytest.mark.prove  # in the short run tests/spark/test_interpreter.py sees that such tasks are refused
def test_a_cluster_whose_python_lacks_packages_is_told_in_one_sentence(tmp_path: Path) -> None:
    environment = bare_environment(tmp_path)
    done = run_program(on_a_cluster(STREAMS[1]), tmp_path / "work", environment)
    assert done.returncode != 0
    (said,) = [line for line in done.stderr.splitlines() if "state/totals: batch 0 failed: " in line]
    assert "the Python of Spark's tasks" in said
    assert "cannot import pyspark_checkpointer" in said
    assert "let PYSPARK_PYTHON" in said


def test_the_docs_have_their_programs() -> None:
    assert len(PROGRAMS) == 15
    assert len(STREAMS) == 2


def test_the_readme_is_short() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 170
    assert len(text.split()) <= 1600


def test_what_the_readme_installs_is_there() -> None:
    """The commands of the set-up are named right: extras of the package, and targets of the Makefile."""
    extras = tomllib.loads((README.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = README.read_text()
    (install,) = re.findall(r"pip install '\.\[(.*?)\]'", text)
    assert set(install.split(",")) <= set(extras)
    (table,) = re.findall(r"^\| extra .*?\n\n", text, re.DOTALL | re.MULTILINE)
    assert {
        name for row in table.strip().splitlines()[2:] for name in re.findall(r"`([a-z0-9-]+)`", row.split("|")[1])
    } == set(extras)
    made = set(re.findall(r"^([a-z-]+):", (README.parent / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= made


def test_every_guarantee_names_a_test_that_is_there() -> None:
    text = (README.parent / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`(tests/[\w/]+(?:\.py)?)/?(?:::(\w+))?`", text)
    assert len(named) > 30
    for file, test in named:
        place = README.parent / file
        assert place.exists(), file
        assert not test or f"def {test}(" in place.read_text(), f"{file}::{test}"
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ") and "promise" not in line]
    assert all("tests/" in row[2] for row in rows), "a promise without a test"


def test_the_figures_are_those_of_the_benchmark() -> None:
    table = (README.parent / "benchmarks" / "results" / "full" / "summary.md").read_text()
    assert f"<!-- bench -->\n{table}<!-- /bench -->" in (DOCS / "performance.md").read_text()


def test_the_figures_of_the_readme_are_those_of_the_benchmark() -> None:
    found = measured((README.parent / "benchmarks" / "results" / "full" / "README.md").read_text())
    (table,) = re.findall(r"^\| this library / the other .*?\n\n", README.read_text(), re.DOTALL | re.MULTILINE)
    rows = [row.strip("| ").split(" | ") for row in table.strip().splitlines()[2:]]
    assert len(rows) == len(FIGURES)
    for line, ratio in rows:
        (begins,) = [words for words in FIGURES if re.match(rf"{words}\b", line)]
        digits = len(ratio.partition(".")[2])
        assert round(found[FIGURES[begins]][0], digits) == float(ratio), line
    (memory,) = re.findall(
        r"All processes of a job with 10 GB of table state together use ([0-9.]+) times", README.read_text()
    )
    assert round(found[MEMORY][0], 2) == float(memory)
    assert "RocksDB" in found[FIGURES["Map: time"]][1]


def test_the_picture_is_what_the_program_draws() -> None:
    done = subprocess.run(
        [sys.executable, README.parent / "scripts" / "draw-batch", "--check"], check=False, timeout=60
    )
    assert done.returncode == 0


def test_the_commands_of_the_docs_run_one_after_the_other(tmp_path: Path) -> None:
    (commands,) = blocks(PYTHON, "sh")
    first = blocks(PYTHON, "python")[0]
    command = tmp_path / "bin" / "checkpointer"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m checkpointer "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(README.parent),
    }
    for argv in ([sys.executable, "-c", first], [sys.executable, "-c", first], ["sh", "-ec", commands]):
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=360, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "report.html").stat().st_size > 1000
    assert (tmp_path / "exports" / "visits" / "_latest").exists()


JOB = """
import sys
from pyspark.sql import SparkSession, functions as F
from pyspark_checkpointer.spark import stateful

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()

@stateful("state/orders")
def update(batch, batch_id, state):
    totals = state.map("totals")
    for row in batch.groupBy("key").agg(F.sum("amount").alias("amount")).collect():
        totals[row.key] = totals.get(row.key, 0) + FACTOR * row.amount

orders = spark.readStream.schema("key string, amount long").option("maxFilesPerTrigger", 1).csv("orders")
writer = orders.writeStream.foreachBatch(update).option("checkpointLocation", "state/orders-spark")
writer.trigger(availableNow=True).start().awaitTermination()
"""

DEPLOYS = """
import json, runpy, sys
from datetime import UTC, datetime
from pathlib import Path

for job, files in json.loads(sys.argv[1]):
    Path("job.py").write_text(job)
    for name, text in files.items():
        Path("orders", name).write_text(text)
    runpy.run_path("job.py")
    print(datetime.now(UTC).isoformat())
"""
"""Runs one deploy after the other, each over the files that came for it, and prints when it ended."""


def test_the_five_commands_that_take_a_deploy_back(tmp_path: Path, spark: SharedSpark) -> None:
    """A job with a bug ran since 06:00; the commands stand in README, with another time of day."""
    (commands,) = [block for block in blocks(README, "sh") if "checkpointer rewind" in block]
    assert len(commands.splitlines()) == 5
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(README.parent)} | spark.environment
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    for name, arguments in (("python", shared_spark.__file__), ("checkpointer", "-m checkpointer")):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (tmp_path / name).chmod(0o755)
    folder = spark.empty()
    (folder / "orders").mkdir()
    (tmp_path / "deploys.py").write_text(DEPLOYS)

    def run(*argv: str) -> str:
        done = subprocess.run(
            argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=480, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        return done.stdout

    def deploy(factor: int, *days: int) -> tuple[str, dict[str, str]]:
        return JOB.replace("FACTOR", str(factor)), {f"{day}.csv": f"ann,{10**day}\nbob,1\n" for day in days}

    # In one process, so that Spark starts once less.
    steps = json.dumps([deploy(1, 0, 1), deploy(7, 2, 3)])
    at, _ = run("python", str(tmp_path / "deploys.py"), steps).split()
    assert '"value": 7711' in run("checkpointer", "cat", "state/orders", "totals", "--json")
    (folder / "job.py").write_text(deploy(1)[0])
    shown = run("sh", "-ec", commands.replace("2026-11-21T06:00Z", at))
    assert "Nothing was changed." in shown
    assert '"value": 1111' in run("checkpointer", "cat", "state/orders", "totals", "--json")
    run("checkpointer", "rewind", "state/orders", "--undo", "--yes")
    assert '"value": 7711' in run("checkpointer", "cat", "state/orders", "totals", "--json")


TYPED = re.findall(r"`(checkpointer [a-z]+(?: [^`]*)?)`", "".join(page.read_text() for page in PAGES))
TYPED += [line for block in blocks(OPERATIONS, "sh") for line in block.splitlines()]


@pytest.mark.parametrize("line", sorted(set(TYPED)))
def test_a_command_of_the_docs_can_be_typed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINTER_ROOT", "state/visits")  # what `-` stands for
    _, verb, *arguments = shlex.split(line, comments=True)
    command = checkpointer.commands[verb]
    if arguments:
        command.make_context(verb, arguments)


def test_the_docs_say_what_to_do_about_every_error() -> None:
    text = OPERATIONS.read_text()
    groups = {"CheckpointError", "RetryableError", "NotFoundError", "ShutdownError"}
    assert [name for name in errors.__all__ if f"`{name}`" not in text and name not in groups] == []
