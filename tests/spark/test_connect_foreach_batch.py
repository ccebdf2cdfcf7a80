"""The cases of PySpark's own tests of foreachBatch in Spark Connect: `stateful` changes nothing of them.

`test_foreach_batch.py` has those of classic PySpark.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

from tests.spark.connect_server import ConnectClient, start_server
from tests.spark.needs import CONNECT, needs_spark

# In the short run tests/spark/test_connect.py calls functions of foreachBatch.
pytestmark = [pytest.mark.prove, needs_spark("4.0", CONNECT)]

PROGRAM = Path(__file__).with_name("connect_foreach_batch.py")
LINES = ["again", "hello", "this"]
CASES: dict[str, list[Any]] = {
    "saved_as_a_table": LINES,
    "view_of_the_batch": LINES,
    "frames_of_the_session_of_a_batch": sorted([*LINES, "structured", "streaming"]),
    "files_read_by_the_session_of_a_batch": sorted(LINES * 2),
    "functions_that_it_calls": [1, 2, 3],
    "import_within_the_function": ["(0.0, 0.0, 0)"],
    "column_of_outside": LINES,
    "frame_of_outside": ["client"],
    "session_of_outside": ["can", "you"],
}
ERRORS = {
    "error_of_the_function": ("StreamingQueryException", "RuntimeError: this should fail the query"),
    "what_cannot_be_pickled": ("PySparkPicklingError", "STREAMING_CONNECT_SERIALIZATION_ERROR"),
    "what_cannot_be_unpickled": ("", "ValueError: it cannot be unpickled"),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectClient]:
    server = start_server(tmp_path_factory.mktemp("connect"))
    client = ConnectClient(server, PROGRAM)
    yield client
    client.kill()
    server.kill()


@pytest.mark.parametrize("case", CASES)
def test_a_wrapped_function_does_what_it_did_without(client: ConnectClient, tmp_path: Path, case: str) -> None:
    plain, wrapped = (client.run("outcome", tmp_path / str(wrapped), case, wrapped) for wrapped in (False, True))
    assert plain == wrapped == CASES[case]


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_the_one_that_it_was_without(client: ConnectClient, tmp_path: Path, case: str) -> None:
    plain, wrapped = (client.run("outcome", tmp_path / str(wrapped), case, wrapped) for wrapped in (False, True))
    kind, text = ERRORS[case]
    assert plain[0] == wrapped[0]
    assert plain[0] == kind or not kind
    assert text in plain[1]
    assert text in wrapped[1]
