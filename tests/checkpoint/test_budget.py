"""What a commit and a restore cost in requests, counted at the store and, for S3, on the wire."""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.checkpoint.history import READ_BATCH
from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.compaction import INLINE
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.base import Blob, ListingPage
from pyspark_checkpointer.storage.encryption.key_providers import KeyFile
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.storage.request_path import LimitedStore, RetryingStore
from pyspark_checkpointer.testing import injected
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.store import FaultyStore
from tests.conftest import Root
from tests.servers import Server
from tests.world import World, line, put

BIG = b"x" * ((1 << 20) + 1)


class Counted:
    """A checkpointer whose requests are counted."""

    def __init__(self, root: Root) -> None:
        self.client = Checkpointer(root.url, root.storage_options or None)
        self.faults = Faults()
        store = open_store(root.url, root.storage_options or None)
        self.client.session.store = FaultyStore(store, self.faults)

    def spend(self) -> dict[str, int]:
        """Requests by kind since the last time."""
        counts = dict(self.faults.counts)
        self.faults.forget()
        return counts


@pytest.fixture
def counted(any_root: Root) -> Iterator[Counted]:
    counted = Counted(any_root)
    put(counted.client, b"first")
    counted.spend()
    yield counted
    counted.client.close()


def test_a_commit_is_one_put_for_each_object_one_manifest_and_one_swap(counted: Counted) -> None:
    with counted.client.begin() as cp:
        cp.snapshot("op", 0, b"small")
        cp.snapshot("op", 1, b"small too")
        cp.snapshot("op", 2, BIG)
        cp.save("map", KeyedState({n: n for n in range(100)}))
    assert counted.spend() == {"put": 4, "swap": 1}, "a pack, the big one, the pack of the map, the manifest"
    with counted.client.begin():
        pass
    assert counted.spend() == {"put": 1, "swap": 1}


def test_a_commit_of_two_hundred_small_partitions_is_one_object(counted: Counted) -> None:
    with counted.client.begin() as cp:
        for partition in range(200):
            cp.snapshot("op", partition, b"%d" % partition)
    assert counted.spend() == {"put": 2, "swap": 1}


def test_a_commit_with_many_partitions_writes_one_segment_for_what_changed(counted: Counted) -> None:
    with counted.client.begin() as cp:
        for partition in range(INLINE + 1):
            cp.snapshot("many", partition, b"%d" % partition)
    assert counted.spend() == {"put": 3, "swap": 1}
    for _ in range(3):
        with counted.client.begin() as cp:
            cp.delta("many", 3, b"more")
        assert counted.spend() == {"put": 3, "swap": 1}
    with counted.client.begin() as cp:
        cp.snapshot("op", 0, b"other")
    assert counted.spend() == {"put": 2, "swap": 1}, "unchanged segments are not written again"
    counted.client.restore()
    spent = counted.spend()
    assert spent.keys() == {"get"}
    assert spent["get"] <= 2 + 4


def test_a_commit_writes_few_chains_of_operators_that_it_leaves_alone(world: World) -> None:
    client, names = world.actor(), [f"map {number}" for number in range(50)]
    for length in range(16):
        with client.begin() as cp:
            for name in names:
                for partition in range(8):
                    (cp.delta if length else cp.snapshot)(name, partition, b"%d" % length)
    written, before = [], world.objects("manifests")
    for number in range(20):
        with client.begin() as cp:
            cp.delta(names[number], 3, b"more")
        paths, before = world.objects("manifests") - before, world.objects("manifests")
        written.append((len(paths), sum(len(world.read(path)) for path in paths)))
    assert written[0][0] > 40, "a segment for each map that is left alone, once"
    assert max(objects for objects, _ in written[1:]) <= 2, "the manifest, and the segment of what changed before"
    assert max(size for _, size in written[1:]) <= 2048 + (80 << 10), "without segments it is 600 KiB"
    restored, writer = world.actor().restore(), client.restore()
    assert restored is not None
    assert writer is not None
    for number, name in enumerate(names):
        deltas = [*map(str, range(1, 16))] + (["more"] if number < 20 else [])
        assert restored.operator(name).read([3]) == {3: [b"0", *(text.encode() for text in deltas)]}
        assert restored.operator(name).read([7]) == writer.operator(name).read([7])


def commit_large_maps(world: World, names: list[str], commits: int) -> None:
    """Commit maps of so many chains that those which a commit leaves alone stand in segments."""
    client = world.actor()
    for number in range(commits):
        with client.begin() as cp:
            for name in names if number == 0 else names[number : number + 1]:
                for partition in range(33):
                    cp.snapshot(name, partition, b"%d" % number)


@pytest.mark.parametrize("verb", ["verify", "previous"])
def test_a_verification_reads_each_segment_once_and_those_of_all_operators_at_once(world: World, verb: str) -> None:
    commit_large_maps(world, [f"map {number}" for number in range(40)], 3)
    segments = world.objects(object_paths.SEGMENTS)
    assert len(segments) > 20
    reader = world.actor()
    # Each operator has one: it breaks if no two are asked for at the same time.
    together = threading.Barrier(2)
    reader.faults.call(lambda _: together.wait(10), "get", path=object_paths.SEGMENTS, times=2)
    if verb == "verify":
        assert reader.verify()
    else:
        assert reader.restore(on_corruption="previous") is not None
    paths = [path for path in reader.faults.paths("get") if path in segments]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize("verb", ["repair_candidates", "encrypt"])
def test_a_walk_over_all_checkpoints_reads_shared_segments_once(world: World, tmp_path: Path, verb: str) -> None:
    commit_large_maps(world, [f"map {number}" for number in range(40)], 20)
    segments, faults = world.objects(object_paths.SEGMENTS), Faults()
    with injected(faults):
        walker = Checkpointer(world.store.url)
        if verb == "encrypt":
            (tmp_path / "key").write_bytes(bytes(32))
            walker.encrypt(KeyFile(tmp_path / "key"))
        else:
            walker.repair_candidates()
    reads = Counter(path for path in faults.paths("get") if path in segments)
    assert reads
    # An encryption reads each once more, to copy it.
    assert max(reads.values()) <= (2 if verb == "encrypt" else 1)


@pytest.mark.parametrize("partitions", [1, 8])
def test_small_operators_that_a_commit_leaves_alone_cost_no_request(world: World, partitions: int) -> None:
    client, names = world.actor(), [f"tenant {number}" for number in range(600 // partitions)]
    for number in range(4):
        client.faults.forget()
        with client.begin() as cp:
            for name in names if number == 0 else names[number : number + 1]:
                for partition in range(partitions):
                    cp.snapshot(name, partition, b"%d" % number)
        assert number == 0 or client.faults.counts == {"put": 2, "swap": 1}
    reader = world.actor()
    assert reader.restore() is not None
    assert reader.faults.counts == {"get": 2}


def test_many_operators_that_a_commit_leaves_alone_stand_in_segments_once(world: World) -> None:
    client, names = world.actor(), [f"tenant {number}" for number in range(60)]
    written, before = [], world.objects("manifests")
    for number in range(4):
        with client.begin() as cp:
            for name in names if number == 0 else names[:1]:
                for partition in range(31 if number == 0 else 1):
                    (cp.delta if number else cp.snapshot)(name, partition, b"%d" % number)
        paths, before = world.objects("manifests") - before, world.objects("manifests")
        written.append((len(paths), sum(len(world.read(path)) for path in paths)))
    assert max(objects for objects, _ in written[2:]) == 1
    assert max(size for _, size in written[2:]) <= 80 << 10, "without segments it is 200 kB"


def test_a_restore_is_two_gets_and_one_for_each_object(counted: Counted) -> None:
    state = KeyedState({n: n for n in range(500)})
    for number in range(3):
        state[number] = "changed"
        with counted.client.begin() as cp:
            cp.snapshot("op", 0, b"small %d" % number)
            cp.snapshot("big", 0, BIG + b"%d" % number)
            cp.save("map", state)
    counted.spend()
    restored = counted.client.restore()
    assert counted.spend() == {"get": 2}
    objects = {a.path for p in restored.operator("map").partitions for a in restored.operator("map").chain(p)}
    restored.keyed("map")
    assert sum(counted.spend().values()) == len(objects)
    restored.operator("big").partition(0)
    restored.operator("op").partition(0)
    assert counted.spend() == {"get": 2}


def test_two_phases_are_two_swaps(counted: Counted) -> None:
    cp = counted.client.begin()
    cp.snapshot("op", 0, b"x")
    prepared = cp.prepare()
    assert counted.spend() == {"put": 2, "swap": 1}
    prepared.commit()
    assert counted.spend() == {"swap": 1}


def test_a_new_client_pays_for_a_restore_and_a_commit_and_nothing_else(any_root: Root) -> None:
    put(Checkpointer(any_root.url, any_root.storage_options or None), b"first")
    counted = Counted(any_root)
    put(counted.client, b"second")
    assert counted.spend() == {"get": 2, "put": 2, "swap": 1}
    counted.client.close()


@pytest.mark.parametrize("length", [2, 30])
def test_listing_is_never_one_round_trip_after_the_other(world: World, length: int) -> None:
    client = world.actor()
    line(client, length)
    client.faults.forget()
    client.list_checkpoints()
    counts = client.faults.counts
    assert counts["get"] == length + 1
    assert client.faults.paths("list") == (["manifests/00000000"] if length > 4 else []), "without the segments"


class Waves(MemoryStore):
    """Answers all requests that are under way together, once no more come: one wave is one round trip's time."""

    waves, most = 0, 0
    """How many there were, and how many requests the largest of them had."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._arrived = self._before = 0
        self._wave: asyncio.Task[None] | None = None

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        await self._travel()
        return await super().get(path, limit=limit)

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        await self._travel()
        return await super().list_page(prefix, more)

    async def put(self, path: str, data: Bytes) -> None:
        await self._travel()
        await super().put(path, data)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        await self._travel()
        return await super().compare_and_swap(path, data, expected)

    async def _travel(self) -> None:
        self._arrived += 1
        self._wave = self._wave or asyncio.create_task(self._answer())
        await asyncio.shield(self._wave)

    async def _answer(self) -> None:
        seen = 0
        while seen != self._arrived:
            seen = self._arrived
            for _ in range(50):  # nothing else but the loop itself brings requests
                await asyncio.sleep(0)
        self.most, self._before = max(self.most, seen - self._before), seen
        self.waves, self._wave = self.waves + 1, None


def test_listing_a_long_history_takes_few_sequential_round_trips(world: World) -> None:
    writer = world.actor()
    written = line(writer, 400)
    waves = Waves(writer.root)
    reader = world.actor()
    reader.session.store = RetryingStore(LimitedStore(waves, concurrency=16, timeout=60))
    assert reader.list_checkpoints() == written
    assert waves.waves == 2 + math.ceil(400 / READ_BATCH), "the pointer, one page, and what is fetched together"


def test_a_new_checkpoint_of_a_long_history_is_found_without_reading_all_of_it(world: World) -> None:
    client = world.actor()
    for epoch in range(600):
        put(client, b"x", epoch=epoch)
    newest = client.list_checkpoints()[-1]
    for wanted in ("epoch=599", "at=9999-01-01", str(newest)[:10], f"{newest.sequence - 5}-"):
        client.faults.forget()
        assert run_sync(find(client.session, CheckpointSelector.parse(wanted))).sequence >= newest.sequence - 5
        assert client.faults.counts["get"] <= READ_BATCH + 4, wanted


def test_verify_fetches_the_manifests_of_a_long_history_in_groups(world: World) -> None:
    line(world.actor(), 400)
    waves = Waves(world.actor().root)
    reader = world.actor()
    reader.session.store = waves
    assert reader.verify(share=0.0).checkpoints == 400
    assert waves.most <= READ_BATCH


def test_several_operators_are_written_in_one_round_trip_and_read_in_one(world: World) -> None:
    client = world.actor()
    put(client, b"first")
    waves = Waves(client.root)
    client.session.store = RetryingStore(LimitedStore(waves, concurrency=2, timeout=60))
    cp = client.begin()
    for operator in range(8):
        for partition in range(25):
            cp.snapshot(f"op {operator}", partition, b"%d" % partition)
    with cp:
        pass
    assert waves.waves == 2, "the packs and the manifest, the pointer"
    restored = client.restore()
    found = restored.operator("op 3").read()
    assert waves.waves == 2 + 2 + 1
    assert found == {partition: [b"%d" % partition] for partition in range(25)}
    assert restored.operator("op 3").read([7, 2]) == {7: [b"7"], 2: [b"2"]}
    assert restored.operator("op 3").read([]) == {}
    with pytest.raises(IllegalArgumentError, match="no partition 25"):
        restored.operator("op 3").read([0, 25])


def test_the_first_commit_of_a_root_proves_the_store_once(world: World) -> None:
    client = world.actor()
    put(client, b"1")
    assert any("_probe" in path for path in client.faults.paths("swap"))
    assert not any("_probe" in path for path in world.objects())
    client.faults.forget()
    put(client, b"2")
    put(world.actor(), b"3")
    assert not any("_probe" in path for path in client.faults.paths("swap"))


def test_the_budget_holds_on_the_wire(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import uuid

    from s3fs import S3FileSystem

    calls: list[str] = []
    send = S3FileSystem._call_s3

    async def counting(self: S3FileSystem, method: str, *args: Any, **kwargs: Any) -> Any:
        calls.append(method)
        return await send(self, method, *args, **kwargs)

    monkeypatch.setattr(S3FileSystem, "_call_s3", counting)
    client = Checkpointer(f"{s3_server.url}/{uuid.uuid4().hex}", s3_server.storage_options)
    put(client, b"first")
    calls.clear()
    with client.begin() as cp:
        for partition in range(200):
            cp.snapshot("op", partition, b"%d" % partition)
        cp.snapshot("big", 0, BIG)
    assert Counter(calls) == {"put_object": 4}, "a pack, the big one, the manifest, the pointer"
    calls.clear()
    restored = client.restore()
    assert Counter(calls) == {"get_object": 2}
    restored.operator("big").partition(0)
    restored.operator("op").partition(7)
    assert Counter(calls) == {"get_object": 4}
    client.close()
