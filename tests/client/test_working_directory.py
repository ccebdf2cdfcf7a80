"""A relative location means what it meant when it was given: later changes of directory do not move a root."""

import asyncio
import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, RetentionPolicy
from pyspark_checkpointer.admin.streaming.spark_location import SparkCheckpointLocation
from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from pyspark_checkpointer.consumers.journal import Journal
from pyspark_checkpointer.spark.source_options import ReadRequest

ROOTS = {
    "relative": lambda home: "state/totals",
    "dots": lambda home: "../home/./state/totals",
    "file URL": lambda home: "file://~/state/totals",
    "path": lambda home: Path("state/totals"),
    "home": lambda home: "~/state/totals",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory when things are made; it is also the user's home."""
    for name in ("home", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def leave(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def leave() -> None:
        monkeypatch.chdir(home.parent / "elsewhere")
        monkeypatch.setenv("HOME", str(home.parent / "elsewhere"))

    return leave


def nothing_elsewhere(home: Path) -> bool:
    return list((home.parent / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("again", ["pickle", "copy", "copy.copy"])
def test_a_client_and_its_copies_stay_where_it_was_made(
    root: str, again: str, home: Path, leave: Callable[[], None]
) -> None:
    client = Checkpointer(ROOTS[root](home))
    leave()
    twin = {
        "pickle": lambda: pickle.loads(pickle.dumps(client)),
        "copy": client.copy,
        "copy.copy": lambda: copy.copy(client),
    }[again]()
    with twin.begin() as cp:
        cp.snapshot("op", 0, b"x" * (1 << 20))
    assert twin.root == client.root == str(home / "state/totals")
    restored = client.restore()
    assert restored is not None
    assert restored.operator("op").partition(0) == [b"x" * (1 << 20)]
    assert nothing_elsewhere(home)


def test_a_client_outlives_the_folder_it_was_made_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    client = Checkpointer("../root")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").rmdir()
    twin = pickle.loads(pickle.dumps(client))
    assert twin.root == str(tmp_path / "root")


def test_a_process_that_is_started_elsewhere_gets_the_same_root(home: Path) -> None:
    client = Checkpointer("state/totals")
    project = str(Path(__file__).parents[2] / "src")
    told = f"import pickle, sys; sys.path.insert(0, {project!r}); print(pickle.loads(bytes.fromhex(sys.argv[1])).root)"
    done = subprocess.run(
        [sys.executable, "-c", told, pickle.dumps(client).hex()],
        cwd=home.parent / "elsewhere",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == client.root


def test_a_cleaner_and_an_asynchronous_client_stay_too(home: Path, leave: Callable[[], None]) -> None:
    from pyspark_checkpointer.spark.cleaner import Cleaner

    client = AsyncCheckpointer("state/totals")
    cleaner = Cleaner(client, RetentionPolicy(), 1)
    leave()
    again: Cleaner = pickle.loads(pickle.dumps(cleaner))
    assert again._client.root == client.root == str(home / "state/totals")

    async def save() -> None:
        async with pickle.loads(pickle.dumps(client)).begin() as cp:
            await cp.snapshot("op", 0, b"x")
        assert await client.read_latest() is not None

    asyncio.run(save())
    assert nothing_elsewhere(home)


def test_where_spark_keeps_its_checkpoint_is_resolved_when_it_is_said(home: Path, leave: Callable[[], None]) -> None:
    client = Checkpointer("state/totals")
    where = client.spark_location("spark-checkpoint", None)
    assert client.spark_location(None, None).location is None
    leave()
    from pyspark_checkpointer.manifests.model import Job

    assert isinstance(where, SparkCheckpointLocation)
    assert where.open(client.root, Job("q", "r", 1)).url == str(home / "spark-checkpoint")


def test_positions_of_consumers_stay_where_they_were(home: Path, leave: Callable[[], None]) -> None:
    def checkpoint(store: Any) -> None:
        place = {"fully_qualified_namespace": "ns", "eventhub_name": "hub", "consumer_group": "g", "partition_id": "0"}
        store.update_checkpoint(place | {"offset": "1", "sequence_number": 1})

    store = CheckpointStore("state/positions")
    leave()
    checkpoint(pickle.loads(pickle.dumps(store)))
    assert len(list(store.list_checkpoints("ns", "hub", "g"))) == 1
    assert nothing_elsewhere(home)


def test_a_journal_stays_where_it_was_opened(home: Path, leave: Callable[[], None]) -> None:
    from datetime import UTC, datetime

    journal = Journal("state/journal.yml")
    leave()
    journal.persist("log", 1, datetime(2026, 1, 1, tzinfo=UTC))
    journal.shutdown()
    assert "log" in (home / "state/journal.yml").read_text()
    assert nothing_elsewhere(home)


def test_a_scan_that_is_sent_to_executors_names_an_absolute_root(home: Path, leave: Callable[[], None]) -> None:
    request = ReadRequest.of({"path": "state/totals", "operator": "op"})
    leave()
    assert pickle.loads(pickle.dumps(request)).client().root == str(home / "state/totals")


def test_what_a_root_is_called_does_not_change_with_its_copies(home: Path) -> None:
    for url in ("memory://a/b", "file:///tmp/x y/%41", "/tmp/s3:b", "./odd: name"):
        client = Checkpointer(url)
        assert client.copy().root == client.root == Checkpointer(client.root).root


def test_options_inside_of_options_are_those_of_the_call() -> None:
    given: dict[str, Any] = {"client_kwargs": {"endpoint_url": "http://one"}}
    client, store = Checkpointer("s3://bucket/root", given), CheckpointStore("s3://bucket/root", given)
    given["client_kwargs"]["endpoint_url"] = "http://two"
    given["key"] = "x"
    wanted = {"client_kwargs": {"endpoint_url": "http://one"}}
    assert client._config.storage_options == client.copy()._config.storage_options == wanted
    assert store._config.storage_options == wanted
