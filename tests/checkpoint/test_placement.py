"""What was written elsewhere is committed only where the committing process finds it."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer
from pyspark_checkpointer.checkpoint import save_bytes
from pyspark_checkpointer.checkpoint.placement import this_executor
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.runtime import run_sync
from tests.checkpoint.test_budget import Counted, counted
from tests.world import World, latest, put

__all__ = ["counted"]

BIG = b"x" * (1 << 20)


@pytest.fixture
def client(tmp_path: Path) -> Checkpointer:
    client = Checkpointer(tmp_path / "root")
    put(client, b"first")
    return client


@pytest.mark.parametrize("phase", ["commit", "prepare"])
@pytest.mark.parametrize("kind", ["snapshot", "delta"])
def test_an_artifact_in_another_place_is_not_acknowledged(
    client: Checkpointer, tmp_path: Path, phase: str, kind: str
) -> None:
    before, elsewhere = latest(client), Checkpointer(tmp_path / "elsewhere")
    cp = client.begin()
    save = elsewhere.save_snapshot if kind == "snapshot" else elsewhere.save_delta
    artifact = save(cp.id, "op", 0, BIG)
    cp.attach(artifact)
    with pytest.raises(InvalidStateError, match="use different storage") as refused:
        getattr(cp, phase)()
    said = str(refused.value)
    assert f"{client.root}/{artifact.path}" in said
    assert "it is not there" in said
    assert latest(client) == before, "nothing was committed"
    put(client, b"second")
    assert not client.verify().findings


def test_an_artifact_that_is_shorter_here_is_not_acknowledged(client: Checkpointer, tmp_path: Path) -> None:
    cp = client.begin()
    artifact = client.save_snapshot(cp.id, "op", 0, BIG)
    (tmp_path / "root" / artifact.path).write_bytes(BIG[:-1])
    cp.attach(artifact)
    with pytest.raises(InvalidStateError, match=f"it has less than the {len(BIG)} bytes"):
        cp.commit()


def test_the_asynchronous_client_proves_it_too(client: Checkpointer, tmp_path: Path) -> None:
    async def save() -> None:
        async with AsyncCheckpointer(tmp_path / "root").begin() as cp:
            await cp.attach(await AsyncCheckpointer(tmp_path / "elsewhere").save_snapshot(cp.id, "op", 0, b"x"))

    before = latest(client)
    with pytest.raises(InvalidStateError, match="use different storage"):
        asyncio.run(save())
    assert latest(client) == before


def test_each_place_is_looked_at(client: Checkpointer, tmp_path: Path) -> None:
    """One executor that writes elsewhere is found, whichever of them tells first."""
    elsewhere = Checkpointer(tmp_path / "elsewhere")
    for first in (client, elsewhere):
        second = elsewhere if first is client else client
        cp = client.begin()
        with pytest.raises(InvalidStateError, match=re.escape(f"was written by {this_executor(elsewhere.root)}")):
            for number, writer in enumerate((first, second)):
                artifact = writer.save_snapshot(cp.id, "op", number, BIG)
                run_sync(save_bytes.attach(cp.attempt, artifact, this_executor(writer.root)))
            cp.commit()


def test_executors_in_containers_of_one_name_are_two(
    client: Checkpointer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their workers may have parents of one number, too: Spark's folders tell them apart."""
    cp, elsewhere = client.begin(), Checkpointer(tmp_path / "elsewhere")
    with pytest.raises(InvalidStateError, match="use different storage"):
        for number, writer in enumerate((client, elsewhere)):
            monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/tmp/blockmgr-{number}")
            artifact = writer.save_snapshot(cp.id, "op", number, BIG)
            run_sync(save_bytes.attach(cp.attempt, artifact, this_executor(client.root)))
        cp.commit()


@pytest.mark.parametrize("number", range(3))
def test_one_artifact_in_another_place_is_found_among_others(client: Checkpointer, tmp_path: Path, number: int) -> None:
    """Callers of `attach` do not say who wrote an artifact, and each may come from a machine of its own."""
    before, cp = latest(client), client.begin()
    writers = [client, client, client]
    writers[number] = Checkpointer(tmp_path / "elsewhere")
    artifacts = [writer.save_snapshot(cp.id, "op", partition, BIG) for partition, writer in enumerate(writers)]
    with pytest.raises(InvalidStateError, match=re.escape(f"{client.root}/{artifacts[number].path}: was written by")):
        for artifact in artifacts:
            cp.attach(artifact)
        cp.commit()
    assert latest(client) == before, "nothing was committed"


@pytest.mark.parametrize("size", [0, 1, 100, 1 << 20])
def test_what_one_executor_wrote_is_looked_at_once_for_all_of_an_attempt(counted: Counted, size: int) -> None:
    with counted.client.begin() as cp:
        for partition in range(5):
            artifact = counted.client.save_snapshot(cp.id, "op", partition, b"x" * size)
            run_sync(save_bytes.attach(cp.attempt, artifact, this_executor(counted.client.root)))
    assert counted.spend() == {"put": 5 + 1, "get_range": 1, "swap": 1}
    restored = counted.client.restore()
    assert restored is not None
    assert restored.operator("op").partition(3) == [b"x" * size]


def test_each_artifact_of_an_unknown_writer_is_looked_at(counted: Counted) -> None:
    with counted.client.begin() as cp:
        for partition in range(5):
            cp.attach(counted.client.save_snapshot(cp.id, "op", partition, b"x" * 100))
    assert counted.spend() == {"put": 5 + 1, "get_range": 5, "swap": 1}


def test_no_more_than_some_artifacts_are_looked_for_at_one_time(client: Checkpointer) -> None:
    """Each that is attached goes through all that are under way."""
    cp, pending, most = client.begin(), 0, 0
    artifact = client.save_snapshot(cp.id, "op", 0, b"x")

    store: Any = client.session.store

    async def get_range(path: str, offset: int, length: int) -> bytes:
        nonlocal pending, most
        pending += 1
        most = max(most, pending)
        await asyncio.sleep(0.1)
        pending -= 1
        return b"x"

    store.get_range = get_range
    for _ in range(2000):
        cp.attach(artifact)
    cp.commit()
    assert 1 < most <= save_bytes.MAX_CONCURRENT_CHECKS + 1


def test_an_outage_while_looking_is_no_verdict(world: World) -> None:
    client = world.actor(retries=False)
    put(client, b"first")
    cp = client.begin()
    artifact = client.save_snapshot(cp.id, "op", 0, BIG)
    fail(client)
    cp.attach(artifact)
    with pytest.raises(Exception, match="planted") as met:
        cp.commit()
    assert getattr(met.value, "retryable", False)


def fail(client: Any) -> None:
    from pyspark_checkpointer.errors import DependencyError

    async def get_range(path: str, offset: int, length: int) -> bytes:
        raise DependencyError("planted")

    client.session.store.get_range = get_range
