"""Copy checkpoints to other roots, with failures on the way; the source is never changed."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    InvalidStateError,
    RetiredError,
    SavepointNotFoundError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Job, SparkProgress
from pyspark_checkpointer.storage.request_path import RetryingStore
from pyspark_checkpointer.testing.requests import Request, Send
from pyspark_checkpointer.testing.store import FaultyStore
from tests.conftest import Root
from tests.damage import everything, fill, flip
from tests.world import Actor, World, at_once, latest, line, put

pytestmark = pytest.mark.usefixtures("small_manifests")


class Exporter(Actor):
    """An actor whose requests to the target meet the same faults: it is one process."""

    def _connect(self, root: Any, options: Any, fencing: Any, encryption: Any, signing: Any) -> Session:
        session = super()._connect(root, options, fencing, encryption, signing)
        if root != self._config.root:
            store = FaultyStore(session.store, self.faults)
            session.store = RetryingStore(store, sleep=at_once) if self._retries else store
        return session


def exporter(world: World, **options: Any) -> Exporter:
    return Exporter(world.store, **options)


def target_of(world: World) -> Checkpointer:
    return world.actor()


# ---- what arrives ----------------------------------------------------------------------------------------------------


def test_a_copy_does_not_name_the_progress_of_the_query_that_goes_on(world: World) -> None:
    client, spark = world.actor(), SparkProgress("/data/orders-spark", "v1\n{}\n0", ())
    with client.begin_batch(7, Job("query", "run", 7, spark=spark)) as cp:
        cp.snapshot("op", 0, b"7")
    with target_of(World()) as target:
        exporter(world).export(None, target.root)
        restored = target.restore()
        assert restored is not None
        assert restored.manifest is not None
        assert restored.manifest.job == Job("query", "run", 7, spark=replace(spark, location=""))


@pytest.mark.parametrize("what", ["committed", "id", "text", "savepoint"])
def test_a_copy_restores_to_exactly_the_same(world: World, what: str) -> None:
    client = world.actor()
    ids = [fill(client, number) for number in range(4)]
    client.savepoint("second", ids[1])
    source = {"committed": None, "id": ids[2], "text": str(ids[2]), "savepoint": "second"}[what]
    wanted = {"committed": ids[3], "id": ids[2], "text": ids[2], "savepoint": ids[1]}[what]
    target = World()
    copy = world.actor().export(source, target.store.url)
    assert copy.sequence == 1
    assert copy != wanted
    there = target_of(target)
    assert everything(there.restore()) == everything(world.actor().restore(wanted))
    assert there.list_checkpoints() == [copy]
    assert there.verify()
    assert there.restore().manifest.parent is None
    assert {object_paths.owner(path) for path in target.objects()} == {None, copy}
    assert [path for path in target.objects() if object_paths.owner(path) is None] == [object_paths.LATEST]


def test_the_copy_is_a_store_like_any_other(world: World) -> None:
    client = world.actor()
    for number in range(3):
        fill(client, number)
    target = World()
    client.export(None, target.store.url)
    there = target.actor()
    fill(there, 3)
    there.savepoint("kept")
    fill(client, 3)
    assert everything(there.restore()) == everything(client.restore())
    again = World()
    there.export("kept", again.store.url)
    assert everything(again.actor().restore()) == everything(client.restore())


def test_from_every_kind_of_store_to_another(any_root: Root, tmp_path: Path) -> None:
    options = any_root.storage_options or None
    start, end = str(tmp_path / "start"), str(tmp_path / "end")
    client = Checkpointer(start)
    for number in range(3):
        fill(client, number)
    client.export(None, any_root.url, options)
    with Checkpointer(any_root.url, options) as there:
        there.export(None, end)
        assert there.verify()
        assert everything(there.restore()) == everything(client.restore())
    assert everything(Checkpointer(end).restore()) == everything(client.restore())
    with pytest.raises(InvalidStateError, match="empty root"):
        client.export(None, any_root.url, options)


def test_equal_deltas_of_several_attempts_become_one_object(world: World) -> None:
    client = world.actor()
    for number in range(3):
        with client.begin() as cp:
            cp.snapshot("empty", 0, b"")
            cp.snapshot("op", 0, b"first") if number == 0 else cp.delta("op", 0, b"the same")
    target = World()
    client.export(None, target.store.url)
    assert target.actor().restore().operator("op").partition(0) == [b"first", b"the same", b"the same"]
    assert target.actor().restore().operator("empty").partition(0) == [b""]
    assert len(target.objects("artifacts/")) == 2  # an object without a byte is not copied


def test_awaitable(world: World) -> None:
    put(world.actor(), b"1")
    target = World()

    async def export() -> CheckpointId:
        async with AsyncCheckpointer(world.store.url) as ck:
            return await ck.export(None, target.store.url)

    assert asyncio.run(export()) == target.actor().read_latest()
    assert latest(target.actor()) == b"1"


# ---- what it costs ---------------------------------------------------------------------------------------------------


def test_each_object_is_read_once_and_written_once(world: World) -> None:
    client = world.actor()
    for number in range(3):
        fill(client, number)
    needed = {path for path in world.objects() if object_paths.owner(path)}
    actor = exporter(world)
    target = World()
    actor.export(None, target.store.url)
    puts = [path for path in actor.faults.paths("put") if not path.startswith("_probe")]
    assert sorted(puts) == sorted(target.objects() - {object_paths.LATEST})
    gets = [path for path in actor.faults.paths("get") if path.startswith(object_paths.ARTIFACTS)]
    assert len(gets) == len(set(gets))
    assert set(gets) <= needed
    assert actor.faults.paths("list") == [object_paths.MANIFESTS]  # of the target


def test_few_objects_are_in_memory_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_checkpointer.checkpoint.upload.IN_FLIGHT", 4000)
    client = world.actor()
    with client.begin() as cp:
        for number in range(30):
            cp.snapshot(f"op {number}", 0, b"%04d" % number * 250)
    held: list[int] = []
    target = World()
    actor = exporter(world)
    running = 0

    async def count(request: Request, send: Send) -> Any:
        nonlocal running
        running += 1
        held.append(running)
        await asyncio.sleep(0)
        try:
            return await send(request)
        finally:
            running -= 1

    actor.faults.apply(count, times=1000)
    actor.export(None, target.store.url)
    assert 1 < max(held) <= 5


def test_progress_is_told(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        for number in range(5):
            cp.snapshot(f"op {number}", 0, b"x" * (number + 1))
    told: list[tuple[int, int]] = []
    client.export(None, World().store.url, progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, 15)
    assert told[-1] == (15, 15)
    assert len(told) == 6
    assert told == sorted(told)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_root_in_use_is_refused_and_untouched(world: World) -> None:
    line(world.actor(), 2)
    target = World()
    put(target.actor(), b"mine")
    before = {path: target.read(path) for path in target.objects()}
    for url in (target.store.url, world.store.url):
        with pytest.raises(InvalidStateError, match="empty root"):
            world.actor().export(None, url)
    assert {path: target.read(path) for path in target.objects()} == before
    target.delete(object_paths.LATEST)
    put(target.actor(), b"1")
    put(target.actor(), b"2")
    target.delete(object_paths.LATEST)
    with pytest.raises(InvalidStateError, match="repair_candidates"):
        world.actor().export(None, target.store.url)


def test_what_is_not_there_is_not_exported(world: World) -> None:
    target = World()
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint is committed yet"):
        world.actor().export(None, target.store.url)
    line(world.actor(), 1)
    with pytest.raises(CheckpointNotFoundError):
        world.actor().export("0000000009-00000000", target.store.url)
    with pytest.raises(SavepointNotFoundError):
        world.actor().export("nothing", target.store.url)
    assert target.objects() == set()


def test_an_attempt_that_was_never_committed_is_not_exported(world: World) -> None:
    client = world.actor()
    line(client, 1)
    cp = client.begin()
    cp.snapshot("op", 0, b"2")
    prepared = cp.prepare()
    with pytest.raises(CheckpointNotFoundError):
        world.actor().export(prepared.id, World().store.url)


def test_damage_is_found_before_it_is_written(tmp_path: Path) -> None:
    root, target = tmp_path / "root", World()
    client = Checkpointer(root)
    fill(client, 0, many=False)
    (pack,) = root.glob("artifacts/pack/packs/*")
    flip(pack)
    with pytest.raises(CorruptionError, match=pack.name):
        client.export(None, target.store.url)
    assert target.actor().restore() is None
    flip(pack)
    client.export(None, target.store.url)
    assert everything(target.actor().restore()) == everything(client.restore())


def test_what_is_retired_meanwhile_is_said_to_be(world: World) -> None:
    writer = world.actor()
    old, _ = line(writer, 2)
    actor = exporter(world)
    actor.faults.call(lambda _: world.actor().delete_checkpoint(old), "get", path=object_paths.ARTIFACTS)
    target = World()
    with pytest.raises(RetiredError, match=str(old)):
        actor.export(old, target.store.url)
    assert target.actor().restore() is None


def test_two_exports_to_one_root_do_not_mix(world: World) -> None:
    client = world.actor()
    old, new = line(client, 2)
    target = World()
    actor = exporter(world)
    actor.faults.call(lambda _: world.actor().export(new, target.store.url), "swap", path=object_paths.LATEST)
    with pytest.raises(CheckpointError, match="was not"):
        actor.export(old, target.store.url)
    assert latest(target.actor()) == b"2"
    assert target.actor().verify()


def test_the_store_is_proven_before_anything_is_copied(world: World) -> None:
    put(world.actor(), b"1")
    actor = exporter(world)
    target = World()
    actor.faults.fail("swap", path="_probe", error=StoreRefusedError)
    with pytest.raises(InvalidStateError):
        actor.export(None, target.store.url)
    assert not [path for path in actor.faults.paths("put") if object_paths.owner(path)]


def test_the_writer_of_the_source_goes_on(world: World) -> None:
    writer = world.actor()
    put(writer, b"1")
    running = writer.begin()
    before = world.latest()
    world.actor().export(None, World().store.url)
    writer.export(None, World().store.url)
    assert world.latest() == before
    running.snapshot("op", 0, b"2")
    running.commit()
    assert latest(world.actor()) == b"2"


def test_the_target_is_fenced_whatever_the_source_is(tmp_path: Path) -> None:
    """The source may be opened without fencing, since it is only read; the target may not."""
    source = Checkpointer(tmp_path / "source", fencing="none")
    put(source, b"1")
    source.export(None, tmp_path / "copy")
    assert (tmp_path / "copy" / ".lock").exists()
    source.export(None, tmp_path / "other", fencing="none")
    assert not (tmp_path / "other" / ".lock").exists()
