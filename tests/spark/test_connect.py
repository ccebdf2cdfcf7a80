"""Queries and reads of Spark Connect, on a real server: maps and tables as in classic PySpark."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

from pyspark_checkpointer import Checkpointer
from tests.programs import run_python
from tests.spark.connect_server import ConnectClient, start_server
from tests.spark.needs import CONNECT, needs_spark

pytestmark = needs_spark("4.0", CONNECT)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectClient]:
    """One client of one server for all tests here: both take seconds to start."""
    server = start_server(tmp_path_factory.mktemp("connect"))
    client = ConnectClient(server)
    yield client
    client.kill()
    server.kill()


def feed(folder: Path, *batches: str) -> None:
    """Add files of rows such as "a1 b2": each is a batch."""
    (folder / "input").mkdir(exist_ok=True)
    start = len([*(folder / "input").iterdir()])
    for number, batch in enumerate(batches, start):
        file = folder / "input" / f"{number}.csv"
        file.write_text("".join(f"{row[0]},{row[1:]}\n" for row in batch.split()))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))  # by which Spark puts them in order


def forget_commit(folder: Path, batch_id: int) -> None:
    """As if the server had died after the function returned and before Spark recorded the batch."""
    for name in (str(batch_id), f".{batch_id}.crc"):
        (folder / "spark" / "commits" / name).unlink(missing_ok=True)


def test_maps_go_on_after_a_restart_and_a_repeated_batch_counts_once(client: ConnectClient, tmp_path: Path) -> None:
    feed(tmp_path, "a1 b2", "a3")
    first = client.run("maps", tmp_path)
    assert (first["error"], first["totals"]) == ("", {"a": 4, "b": 2, "batches": 2})
    assert first["location"] == str(tmp_path / "spark")
    assert first["offsets"] == (tmp_path / "spark" / "offsets" / "1").read_text()
    assert sorted(first["lists"]) == ["0/0", "0/1"]
    forget_commit(tmp_path, 1)
    feed(tmp_path, "c5")
    second = client.run("maps", tmp_path)
    assert (second["error"], second["batch"]) == ("", 2)
    assert second["totals"] == {"a": 4, "b": 2, "c": 5, "batches": 3}
    assert second["query"] == first["query"]


@pytest.mark.prove
def test_lists_of_files_have_the_digests_that_classic_pyspark_finds(client: ConnectClient, tmp_path: Path) -> None:
    """Spark compacts every third list here."""
    feed(tmp_path, "a1", "a1", "a1", "a1")
    told = client.run("maps", tmp_path)
    assert told["totals"] == {"a": 4, "batches": 4}
    assert (tmp_path / "spark" / "sources" / "0" / "2.compact").exists()
    assert sorted(told["lists"]) == ["0/2", "0/3"]
    client.run("wait_for_the_end", tmp_path)
    Checkpointer(tmp_path / "root").rewind(to="epoch=2")  # which compares them with Spark's files
    assert client.run("maps", tmp_path)["totals"] == {"a": 4, "batches": 4}


@pytest.mark.parametrize(
    ("location", "said"),
    [
        (None, "in Spark Connect nothing tells a function of foreachBatch which query calls it: give stateful"),
        ("nowhere", "nowhere/metadata: is not there, or names no query"),
        ("other", "which is not active in the session of the query that calls this function"),
    ],
)
def test_a_query_is_refused_by_name_unless_the_job_says_where_its_checkpoint_is(
    client: ConnectClient, tmp_path: Path, location: str | None, said: str
) -> None:
    feed(tmp_path, "a1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metadata").write_text('{"id":"5f3c9a1e-2b7d-4d6a-9f5e-0c1b2a3d4e5f"}')
    assert said in client.run("maps_in_classic_location", tmp_path, location, "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.prove
def test_a_query_that_names_the_checkpoint_of_another_active_query_is_refused(
    client: ConnectClient, tmp_path: Path
) -> None:
    feed(tmp_path, "a1")
    assert "Spark begins batch 0 of the query that calls this function, but is not within" in client.run(
        "crossed", tmp_path
    )
    assert not (tmp_path / "root-2").exists()


def test_a_root_in_memory_and_a_call_outside_of_a_query_are_refused(client: ConnectClient, tmp_path: Path) -> None:
    feed(tmp_path, "a1")
    assert "runs in a process of its own, whose memory ends with the query" in client.run("memory", tmp_path)
    assert "IllegalArgumentError: not called from a streaming query" in client.run("outside", tmp_path)


@pytest.mark.prove
def test_a_server_with_another_version_of_this_package_is_refused(client: ConnectClient, tmp_path: Path) -> None:
    feed(tmp_path, "a1")
    told = client.run("of_another_version", tmp_path)
    assert "comes from a program with pyspark_checkpointer 0.0.1, and the Python of the server" in told
    assert not (tmp_path / "root").exists()


def test_metrics_are_those_of_the_process_that_commits(client: ConnectClient, tmp_path: Path) -> None:
    feed(tmp_path, "a1", "b2")
    assert client.run("measured", tmp_path) == ""
    assert (tmp_path / "metrics").read_text().split() == ["RestoreMetrics", "CommitMetrics", "CommitMetrics"]


def test_metrics_that_cannot_be_pickled_are_refused_before_the_query_starts(
    client: ConnectClient, tmp_path: Path
) -> None:
    feed(tmp_path, "a1")
    kind, why = client.run("measured_by_what_cannot_travel", tmp_path)
    assert kind == "PySparkPicklingError"
    assert "stateful(metrics=…) goes to another process in Spark Connect, and cannot be pickled" in why
    assert not (tmp_path / "root").exists()


@pytest.mark.prove
def test_what_is_no_exception_fails_the_query_by_name(client: ConnectClient, tmp_path: Path) -> None:
    feed(tmp_path, "a1")
    assert (
        "it raised SystemExit, which is no Exception; it is committed only if restore() shows it: no way"
        in client.run("raising", tmp_path)
    )
    assert client.run("maps", tmp_path)["totals"] == {"a": 1, "batches": 1}


def test_a_function_whose_process_is_killed_leaves_nothing_of_its_batch(client: ConnectClient, tmp_path: Path) -> None:
    feed(tmp_path, "a1", "a2", "a3")
    assert client.run("killed", tmp_path) != ""
    assert client.run("state_of", tmp_path) == {"totals": {"a": 1, "batches": 1}, "batch": 0}
    assert client.run("killed", tmp_path) == ""
    assert client.run("state_of", tmp_path) == {"totals": {"a": 6, "batches": 3}, "batch": 2}


@pytest.mark.prove
def test_a_rewind_is_refused_within_the_function_and_works_after_it(client: ConnectClient, tmp_path: Path) -> None:
    feed(tmp_path, "a1", "a2", "a3")
    told = client.run("rewinding", tmp_path)
    assert told["error"] == ""
    assert "it is active in this process" in told["refused"]
    assert told["back"] == {"totals": {"a": 1, "batches": 1}, "batch": 0}
    assert told["again"] == ["", {"totals": {"a": 6, "batches": 3}, "batch": 2}]


def test_the_program_of_the_page_runs(client: ConnectClient, tmp_path: Path) -> None:
    """It is run with the address of this server, and in a folder of its own."""
    page = Path(__file__).parents[2] / "docs" / "connect.md"
    (program,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    said = run_python(program.replace("sc://localhost:15002", client.server.url).replace("/data/", f"{tmp_path}/"))
    assert [line.split("|")[1:3] for line in said.splitlines() if "|" in line][1:] == [
        ["     0", " 50"],
        ["     1", " 50"],
    ]


# ---- tables, and reads of them ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(client: ConnectClient, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a job whose three batches used all verbs of tables, and what it told."""
    folder = tmp_path_factory.mktemp("tables")
    feed(folder, "a1 b2 b3", "a4 c5", "b6")
    return folder, client.run("tables", folder)


@pytest.mark.prove
def test_all_verbs_of_tables_do_what_they_do_in_classic_pyspark(written: tuple[Path, Any]) -> None:
    told = written[1]
    assert told["error"] == ""
    seen = told["seen"]
    sums: list[Any] = [[["a", 1], ["b", 5]], [["a", 5], ["b", 5], ["c", 5]], [["a", 5], ["b", 11], ["c", 5]]]
    assert [seen[n]["read"] for n in "012"] == sums
    assert [seen[n]["lookup"] for n in "012"] == [[["a", 1]], [["a", 5]], []]
    assert [seen[n]["applied"] for n in "012"] == [
        [[["a", 1], ["b", 5]], sums[0]],
        [[["a", 4], ["c", 5]], sums[1]],
        [[["b", 6]], sums[2]],
    ]
    assert seen["2"]["groups"] == [["a", 2], ["b", 3], ["c", 1]]
    assert [seen[n]["new"] for n in "012"] == [["a", "b"], ["c"], []]
    assert [seen[n]["last"] for n in "012"] == [[["a", 1]], [["a", 1], ["c", 1]], []]
    assert [seen[n]["expired"] for n in "012"] == [["a", "b"], ["a", "c"], ["b"]]
    assert told["sums"] == sums[2]
    assert told["raw"] == 1


@pytest.mark.prove
def test_values_of_all_types_come_back_as_they_were(client: ConnectClient, tmp_path: Path) -> None:
    """Tasks write those of the first batch, and the process of the function those of the others."""
    feed(tmp_path, "a1 b2", "c3", "d4 e5")
    error, seen = client.run("kinds", tmp_path)
    assert error == ""
    assert len(seen) == 3
    for batch in seen:
        for given, found in batch.values():
            assert found == given


@pytest.mark.prove
def test_a_client_reads_state_changes_and_the_data_source(client: ConnectClient, written: tuple[Path, Any]) -> None:
    folder, _ = written
    now = [["a", 5], ["b", 11], ["c", 5]]
    assert client.run("reading", folder) == {
        "read_state": now,
        "epoch": [["a", 1], ["b", 5]],
        "keys": [["a", 5]],
        "diff": [["a", "updated", 5], ["b", "updated", 11], ["c", "inserted", 5]],
        "changes": 2,
        "source": now,
        "view": 3,
    }
    assert client.run("following", folder) == 7
    assert client.run("other_job", folder) == ["", [now, [0, 1, 2]]]


@pytest.mark.prove
def test_a_client_cleans_up(client: ConnectClient, written: tuple[Path, Any]) -> None:
    folder, _ = written
    told = client.run("cleaning", folder)
    assert told["frame"]
    assert told["retired"] == 2
    assert told["deleted"] == told["plan"]["delete"] > 0
    assert told["left"] == [["a", 5], ["b", 11], ["c", 5]]
