"""Kill the server, the client or the process of the function at every stage of a batch: maps and tables stay exact."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from tests.spark.connect_server import ConnectClient, ConnectServer, start_server
from tests.spark.needs import CONNECT, needs_spark
from tests.spark.test_connect import feed

# In the short run tests/spark/test_connect.py kills the process of the function, and repeats a batch.
pytestmark = [pytest.mark.prove, needs_spark("4.0", CONNECT)]

STAGES = ("begun", "changed", "swapping", "swapped", "returned")
MOST_STARTS = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    server = start_server(tmp_path_factory.mktemp("connect"))
    yield server
    server.kill()


def until_done(server: ConnectServer, folder: Path) -> None:
    """Start the query again, as who looks after a job does, until all batches are done."""
    errors = []
    for _ in range(MOST_STARTS):
        server.start()
        client = ConnectClient(server)
        try:
            errors.append(client.run("dying", folder))
        finally:
            client.kill()
        if not errors[-1]:
            return
    raise AssertionError(errors)


@pytest.mark.parametrize("victim", ["function", "server", "client"])
@pytest.mark.parametrize("stage", STAGES)
def test_maps_and_tables_are_exact_whatever_is_killed(
    server: ConnectServer, tmp_path: Path, victim: str, stage: str
) -> None:
    server.start()
    feed(tmp_path, "a1 b2", "a3", "c5 a6")
    client = ConnectClient(server)
    pid = {"function": 0, "server": server.pid, "client": client.pid}[victim]
    (tmp_path / "kill").write_text(json.dumps([1, stage, pid]))
    client.begin("dying", tmp_path)
    if victim == "server":
        server.wait()
        client.kill()
    elif victim == "client":
        client.wait()
    else:
        assert client.answer()
        client.kill()
    assert not (tmp_path / "kill").exists()
    until_done(server, tmp_path)
    client = ConnectClient(server)
    assert client.run("left", tmp_path) == [{"a": 10, "b": 2, "c": 5, "batches": 3}, {"a": 10, "b": 2, "c": 5}]
    client.kill()
