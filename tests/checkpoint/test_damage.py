"""Real files, really damaged: the error names the object, nothing wrong is given back, the rest is readable."""

import hashlib
import json
import random
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
import zstandard

from pyspark_checkpointer import Checkpointer, KeyedState, runtime
from pyspark_checkpointer.compaction import INLINE
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    DigestMismatchError,
    InvalidStateError,
    MalformedError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.model import SNAPSHOT, Artifact, CheckpointId, Manifest, Operator
from pyspark_checkpointer.runtime.host import SystemHost
from tests.world import contents, put

BIG = random.Random(0).randbytes((1 << 20) + 1)
MANY = INLINE + 1


class Stored:
    """A root in a folder: three checkpoints, each with a large partition, a pack, a map, and many partitions."""

    def __init__(self, root: Path) -> None:
        self.root = root
        client = self.client()
        self.state = KeyedState({n: [n, "x" * 20] for n in range(300)}, partitions=2)
        self.ids: list[CheckpointId] = []
        for number in range(3):
            with client.begin(epoch=number) as cp:
                cp.snapshot("big", 0, BIG + b"%d" % number)
                cp.snapshot("pack", 0, b"pack 0 %d" % number)
                cp.snapshot("pack", 1, b"pack 1 %d" % number)
                self.state[number].append("changed")
                cp.save("map", self.state)
                for partition in range(MANY) if number == 0 else [number]:
                    cp.snapshot("many", partition, b"%d %d" % (partition, number))
            self.ids.append(cp.id)

    def client(self) -> Checkpointer:
        return Checkpointer(self.root)

    def files(self, pattern: str, owner: CheckpointId | None = None) -> list[Path]:
        """The files of one kind, those of the newest checkpoint unless told otherwise."""
        wanted = owner or self.ids[-1]
        return sorted(path for path in self.root.glob(pattern) if object_paths.owner(self.name(path)) == wanted)

    def name(self, path: Path) -> str:
        return str(path.relative_to(self.root))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return Stored(tmp_path_factory.mktemp("damage") / "root")


@pytest.fixture
def stored(original: Stored, tmp_path: Path) -> Stored:
    copy = object.__new__(Stored)
    copy.__dict__.update(original.__dict__)
    copy.root = tmp_path / "root"
    shutil.copytree(original.root, copy.root)
    return copy


def read_all(client: Checkpointer, **which: object) -> None:
    """Every object of a checkpoint."""
    restored = client.restore(**which)
    for name in restored.operators:
        if name == "map":
            restored.keyed("map")
        else:
            operator = restored.operator(name)
            for partition in operator.partitions[:3]:
                operator.partition(partition)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


DAMAGES = [flip, truncate, lengthen, empty, remove]
OBJECTS = {
    "large artifact": "artifacts/big/0/*",
    "pack": "artifacts/pack/packs/*",
    "map": "artifacts/map/**/*.msgpack+zstd",
    "segment": "manifests/segments/*",
    "manifest": "manifests/*.json",
}


@pytest.mark.parametrize(
    ("kind", "damage"),
    # The slices of a pack are read by range: what follows them is never seen.
    [(kind, damage) for kind in OBJECTS for damage in DAMAGES if (kind, damage) != ("pack", lengthen)],
)
def test_a_damaged_object_is_named_and_older_checkpoints_stay_readable(
    stored: Stored, kind: str, damage: Callable[[Path], None]
) -> None:
    files = stored.files(OBJECTS[kind])
    assert files
    damage(files[0])
    with pytest.raises(CorruptionError) as raised:
        read_all(stored.client())
    assert files[0].name in str(raised.value)
    assert not raised.value.retryable
    if kind != "manifest":  # without the newest manifest nothing proves which of the older ones were committed
        read_all(stored.client(), id=stored.ids[1])
        read_all(stored.client(), id=stored.ids[0])
        assert stored.client().list_checkpoints() == stored.ids


@pytest.mark.parametrize("damage", [flip, truncate, remove])
def test_a_damaged_object_stops_only_what_needs_it(stored: Stored, damage: Callable[[Path], None]) -> None:
    (path,) = stored.files(OBJECTS["pack"])
    damage(path)
    restored = stored.client().restore()
    assert restored.operator("big").partition(0) == [BIG + b"2"]
    assert dict(restored.keyed("map")) == dict(stored.state)
    with pytest.raises(CorruptionError, match=path.name):
        [restored.operator("pack").partition(partition) for partition in (0, 1)]


def test_after_damage_a_rollback_brings_the_job_on(stored: Stored) -> None:
    (path,) = stored.files(OBJECTS["large artifact"])
    flip(path)
    client = stored.client()
    client.restore()
    client.rollback(stored.ids[1])
    read_all(stored.client())
    put(client, b"on it goes")
    read_all(stored.client())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_in_the_middle_leaves_what_is_above_it(
    stored: Stored, damage: Callable[[Path], None]
) -> None:
    put(stored.client(), b"one more")
    (path,) = stored.files(OBJECTS["manifest"], stored.ids[1])
    damage(path)
    read_all(stored.client())
    read_all(stored.client(), id=stored.ids[2])
    for verb in (
        lambda c: c.list_checkpoints(),
        lambda c: c.restore(stored.ids[1]),
        lambda c: c.restore(stored.ids[0]),
    ):
        with pytest.raises(CorruptionError, match=path.name):
            verb(stored.client())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_savepoint_survives_damage_to_the_newest_manifest(stored: Stored, damage: Callable[[Path], None]) -> None:
    stored.client().savepoint("safe", stored.ids[0])
    (path,) = stored.files(OBJECTS["manifest"])
    damage(path)
    read_all(stored.client(), savepoint="safe")
    read_all(stored.client(), id=stored.ids[0])
    with pytest.raises(CorruptionError, match=path.name):
        stored.client().restore()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_catalog_is_named_and_the_newest_checkpoint_stays_readable(
    stored: Stored, damage: Callable[[Path], None]
) -> None:
    stored.client().savepoint("s")
    (path,) = stored.root.glob("catalog/*")
    damage(path)
    read_all(stored.client())
    put(stored.client(), b"on it goes")
    for verb in (lambda c: c.savepoints(), lambda c: c.list_checkpoints(), lambda c: c.delete_savepoint("s")):
        with pytest.raises(CorruptionError, match=path.name):
            verb(stored.client())


@pytest.mark.parametrize("damage", [flip, truncate, lengthen, empty])
def test_a_damaged_pointer_is_named_and_nothing_is_written_over_it(
    stored: Stored, damage: Callable[[Path], None]
) -> None:
    path = stored.root / "_latest"
    damage(path)
    before = path.read_bytes()
    for verb in (lambda c: c.restore(), lambda c: c.begin(), lambda c: c.savepoint("s"), lambda c: c.read_latest()):
        with pytest.raises(CorruptionError, match="_latest"):
            verb(stored.client())
    assert path.read_bytes() == before


def test_every_single_damaged_byte_of_the_pointer_is_found(stored: Stored) -> None:
    path = stored.root / "_latest"
    data = path.read_bytes()
    client = stored.client()
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(CorruptionError):
            client.read_latest()
    path.write_bytes(data)
    assert client.read_latest() == stored.ids[-1]


def test_objects_that_changed_places_are_found(stored: Stored) -> None:
    for kind in OBJECTS:
        new, old = stored.files(OBJECTS[kind])[0], stored.files(OBJECTS[kind], stored.ids[0])[0]
        saved = new.read_bytes()
        shutil.copy(old, new)
        with pytest.raises(CorruptionError, match=new.name.replace("+", r"\+")):
            read_all(stored.client())
        new.write_bytes(saved)
    read_all(stored.client())


def test_two_slices_of_one_pack_do_not_pass_for_each_other(stored: Stored) -> None:
    (path,) = stored.files(OBJECTS["pack"])
    data = path.read_bytes()
    assert data == b"pack 0 2pack 1 2"
    path.write_bytes(b"pack 1 2pack 0 2")
    with pytest.raises(DigestMismatchError):
        stored.client().restore().operator("pack").partition(0)


def test_an_artifact_is_verified_by_its_path_alone(stored: Stored) -> None:
    (path,) = stored.files(OBJECTS["large artifact"])
    name = stored.name(path)
    assert stored.client().load_artifact(name) == BIG + b"2"
    assert hashlib.sha256(path.read_bytes()).hexdigest() in name
    flip(path)
    with pytest.raises(DigestMismatchError, match=path.name):
        stored.client().load_artifact(name)


def test_a_newer_format_is_refused_by_its_version(stored: Stored) -> None:
    path = stored.root / "_latest"
    value = json.loads(path.read_text())
    value["format_version"] = 2
    path.write_text(json.dumps(value))
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        stored.client().restore()


def test_a_file_that_is_in_the_way_is_named(stored: Stored) -> None:
    (path,) = stored.files(OBJECTS["large artifact"])
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=path.name):
        read_all(stored.client())


def test_what_does_not_belong_to_the_store_is_left_alone(stored: Stored) -> None:
    strange = [stored.root / "README", stored.root / "manifests" / "note.txt", stored.root / "artifacts" / "x" / "y"]
    for path in strange:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    client = stored.client()
    assert client.list_checkpoints() == stored.ids
    client.delete_checkpoint(stored.ids[0])
    assert all(path.read_text() == "mine" for path in strange)
    read_all(client)


# ---- what a manifest says and the bytes do not -----------------------------------------------------------------------


def crafted(root: Path, data: bytes, **claims: int) -> Checkpointer:
    """A committed checkpoint whose map is `data`, of which its manifest claims what is given."""
    client = Checkpointer(root)
    client.restore()
    checkpoint = client.new_id()
    path = object_paths.artifact("map", 0, checkpoint, SNAPSHOT, sha256(data), codecs.MSGPACK.name)
    runtime.run_sync(client.session.store.put(path, data))
    artifact = Artifact(path, SNAPSHOT, 0, len(data), len(data), 100, 1, sha256(data))
    operator = Operator(1, "crc32-key-1", codecs.MSGPACK.name, {0: (replace(artifact, **claims),)})
    client.save_manifest(Manifest(checkpoint, created=SystemHost().now(), operators={"map": operator}))
    client.update_latest(checkpoint)
    return client


def test_a_decompression_bomb_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    assert len(bomb) < 1 << 20
    client = crafted(tmp_path / "root", bomb)
    restored = client.restore()
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError, match="expected 100 bytes"):
            restored.keyed("map")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def packed(*arrays: object) -> bytes:
    return b"".join(map(msgpack.packb, arrays))


GOOD = packed([1], [msgpack.packb("value")])


@pytest.mark.parametrize(
    ("raw", "claims"),
    [
        (b"", {}),
        (GOOD, {"records": 2}),
        (GOOD, {"records": 0}),
        (GOOD, {"raw_size": len(GOOD) - 1}),
        (GOOD, {"raw_size": len(GOOD) + 1}),
        (GOOD[:-1], {"raw_size": len(GOOD) - 1}),
        (GOOD, {"raw_size": 2**50}),
        (packed([1], [5]), {}),
        (packed([1], [None]), {}),
        (packed([1], []), {}),
        (packed([1]), {}),
        (packed(5, 5), {}),
        (packed([[]], [b""]), {}),
        (b"\xc1" * 100, {}),
        (b"\x91" * 100, {}),
    ],
)
def test_bytes_that_are_not_what_the_manifest_says_are_refused(
    tmp_path: Path, raw: bytes, claims: dict[str, int]
) -> None:
    data = zstandard.ZstdCompressor().compress(raw)
    with pytest.raises(CorruptionError, match="artifacts/map"):
        crafted(tmp_path / "root", data, **({"raw_size": len(raw)} | claims)).restore().keyed("map")


def test_a_map_made_by_hand_is_read(tmp_path: Path) -> None:
    client = crafted(tmp_path / "root", zstandard.ZstdCompressor().compress(GOOD), raw_size=len(GOOD))
    assert dict(client.restore().keyed("map")) == {1: "value"}


def test_a_damaged_store_is_not_begun_anew(tmp_path: Path) -> None:
    """A root whose pointer is gone still has objects, which a new history would bury and cleanup take."""
    client = Checkpointer(tmp_path / "root")
    put(client, b"1")
    (tmp_path / "root" / "_latest").unlink()
    with pytest.raises(CheckpointError):
        put(client, b"2")
    old = {path: path.read_bytes() for path in (tmp_path / "root").rglob("*.*") if path.is_file()}
    fresh = Checkpointer(tmp_path / "root")
    for verb in (fresh.restore, fresh.begin, fresh.list_checkpoints, fresh.savepoints):
        with pytest.raises(InvalidStateError, match="repair_candidates"):
            verb()
    (finding,) = fresh.verify().findings
    assert (finding.path, finding.missing) == ("_latest", True)
    assert all(path.read_bytes() == data for path, data in old.items())


def test_damage_does_not_end_the_session(stored: Stored) -> None:
    client = stored.client()
    path = stored.root / "_latest"
    data = path.read_bytes()
    flip(path)
    with pytest.raises(CorruptionError):
        client.restore()
    path.write_bytes(data)
    client.restore()
    put(client, b"on it goes")
    assert contents(stored.client().restore())["op"] == {0: [b"on it goes"]}
    with pytest.raises(InvalidStateError):
        client.delete_checkpoint(client.read_latest())
