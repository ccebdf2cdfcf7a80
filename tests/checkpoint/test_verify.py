"""Verify finds every damage that a restore would meet, says which checkpoints it hurts, and nothing else."""

import asyncio
import errno
import os
import random
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, RetentionPolicy, compaction, runtime
from pyspark_checkpointer.checkpoint.comparison import Comparison
from pyspark_checkpointer.checkpoint.history import read_history
from pyspark_checkpointer.checkpoint.latest import read_head
from pyspark_checkpointer.checkpoint.verification import Verification
from pyspark_checkpointer.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    DigestMismatchError,
    IllegalArgumentError,
    OperatorNotFoundError,
    RetiredError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.model import SNAPSHOT, Artifact, CheckpointId, Tail
from pyspark_checkpointer.storage.base import ObjectRefusedError
from tests.damage import DAMAGE, flip, lengthen
from tests.proof.forgery import forge
from tests.world import World, contents, line, live_objects, put

pytestmark = pytest.mark.usefixtures("small_manifests")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, small_manifests: None) -> Path:
    """Five checkpoints and a prepared one: packs, chains, segments, a savepoint whose history is gone, and garbage."""
    root = tmp_path_factory.mktemp("verify") / "root"
    with Checkpointer(root) as ck:
        for number in range(5):
            with ck.begin(epoch=number) as cp:
                cp.snapshot("own", 0, random.Random(number).randbytes(2000))
                cp.snapshot("pack", 0, b"pack 0 %d" % number)
                cp.snapshot("pack", 1, b"pack 1 %d" % number)
                for partition in range(compaction.INLINE + 1) if number == 1 else [number]:
                    cp.snapshot("many", partition, b"%d %d" % (partition, number))
            if number == 1:
                ck.savepoint("early")
                early = cp.id
        ck.delete_checkpoint(next(known for known in ck.list_checkpoints() if known.sequence == 3))
        assert early in ck.list_checkpoints()
        ck.save_snapshot(ck.new_id(), "own", 0, b"garbage")
        cp = ck.begin(epoch=6)
        cp.snapshot("own", 0, b"prepared" * 300)
        cp.prepare()
    return root


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "root"))


def live_paths(root: Path) -> set[str]:
    session = Checkpointer(root).session

    async def read() -> set[str]:
        return await live_objects(session.store, session.host, await read_head(session.store))

    return runtime.run_sync(read())


def live_ids(root: Path) -> list[CheckpointId]:
    session = Checkpointer(root).session

    async def read() -> list[CheckpointId]:
        return list((await read_history(session.store, await read_head(session.store))).refs())

    return runtime.run_sync(read())


def unreadable(root: Path, ids: list[CheckpointId]) -> list[CheckpointId]:
    """The checkpoints of which not every byte can be restored: the truth that findings are compared with."""
    found = []
    for known in ids:
        try:
            contents(Checkpointer(root).restore(known))
        except CheckpointError:
            found.append(known)
    return found


def test_a_sound_store_has_no_findings_and_everything_live_was_looked_at(root: Path) -> None:
    found = Checkpointer(root).verify()
    assert found
    assert found.findings == ()
    assert found.objects == len(live_paths(root))
    assert found.checkpoints == len(live_ids(root)) + 1
    assert found.skipped == 0
    assert "no findings" in str(found)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_to_any_live_object_is_found_with_the_checkpoints_that_it_hurts(root: Path, damage: Any) -> None:
    ids = live_ids(root)
    with Checkpointer(root) as ck:
        prepared = ck.restore().prepared.id  # type: ignore[union-attr]
    for path in sorted(live_paths(root) - {object_paths.LATEST}):
        if damage is not flip and random.Random(path).random() > 0.3:
            continue  # they are found as the others are, and reading everything each time takes long
        sound = (root / path).read_bytes()
        damage(root / path)
        findings = Checkpointer(root).verify().findings
        assert [finding.path for finding in findings] == [path]
        (finding,) = findings
        assert finding.missing == (damage is Path.unlink)
        assert path in finding.problem
        assert "expected" in finding.problem
        if not path.startswith(object_paths.CATALOGS) and not finding.and_older:
            hurt = [known for known in finding.checkpoints if known != prepared]
            # Whoever reads a slice does not see that its object has become longer; it is damage all the same.
            assert hurt == unreadable(root, ids) or (damage is lengthen and not unreadable(root, ids))
        if finding.and_older:
            assert path.startswith(object_paths.MANIFESTS)
            assert max(finding.checkpoints) == max(unreadable(root, ids))
        (root / path).write_bytes(sound)
    assert Checkpointer(root).verify()


def test_threads_read_several_small_objects_before_they_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "INLINE", 64)  # no segments
    with Checkpointer(tmp_path / "root") as ck:
        with ck.begin() as cp:
            for partition in range(64):
                cp.snapshot("own", partition, bytes([partition]) * (300 << 10))
        hops, on_cpu = 0, runtime.on_cpu

        def counted(*arguments: Any) -> Any:
            nonlocal hops
            hops += 1
            return on_cpu(*arguments)

        monkeypatch.setattr(runtime, "on_cpu", counted)
        told: list[tuple[int, int]] = []
        found = ck.verify(progress=lambda *of: told.append(of))
        assert (bool(found), found.bytes) == (True, 64 * (300 << 10))
        assert 16 <= hops <= 24
        assert len(told) == 64  # each object is told by itself
        path = sorted(tmp_path.rglob("*.raw"))[20]
        flip(path)
        assert [finding.path for finding in ck.verify().findings] == [str(path.relative_to(tmp_path / "root"))]


def test_a_damaged_pointer_is_a_finding(root: Path) -> None:
    flip(root / object_paths.LATEST)
    (finding,) = Checkpointer(root).verify().findings
    assert finding.path == object_paths.LATEST


def test_what_nothing_names_is_not_looked_at(root: Path) -> None:
    garbage = {path for path in (root / "artifacts").rglob("*") if path.is_file()}
    garbage -= {root / path for path in live_paths(root)}
    assert garbage
    for path in garbage:
        path.write_bytes(b"")
    assert Checkpointer(root).verify()


def test_one_checkpoint_or_one_operator_alone(root: Path) -> None:
    ck = Checkpointer(root)
    newest, oldest = live_ids(root)[-1], live_ids(root)[0]
    restored = ck.restore(newest)
    assert restored is not None
    assert restored.manifest is not None
    (own,) = restored.manifest.operators["own"].chains[0]
    flip(root / own.path)
    assert [finding.checkpoints for finding in ck.verify().findings] == [(newest,)]
    assert not ck.verify(newest)
    assert ck.verify(oldest)
    assert ck.verify(operator="pack")
    assert not ck.verify(operator="own")
    assert ck.verify(newest, operator="pack").checkpoints == 1
    with pytest.raises(CheckpointNotFoundError):
        ck.verify("0000000099-00000000")
    with pytest.raises(OperatorNotFoundError, match="operator 'nothing'"):
        ck.verify(operator="nothing")


def test_of_one_checkpoint_only_what_hurts_it_is_a_finding(tmp_path: Path) -> None:
    """What is damaged below it is told apart; what is out of reach because of that is hurt."""
    with Checkpointer(tmp_path / "root") as ck:
        first, second, third = (put(ck, b"%d" % number) for number in range(3))
        damaged = tmp_path / "root" / object_paths.manifest(second)
        damaged.chmod(0o600)
        flip(damaged)
        assert [finding.checkpoints for finding in ck.verify().findings] == [(second,)]
        found = ck.verify(third)
        assert found
        assert [finding.path for finding in found.elsewhere] == [object_paths.manifest(second)]
        assert "1 elsewhere" in repr(found)
        assert f"elsewhere: {object_paths.manifest(second)}" in str(found)
        for hurt in (first, second):
            found = ck.verify(hurt)
            assert ([finding.path for finding in found.findings], found.elsewhere) == (
                [object_paths.manifest(second)],
                (),
            )
        with pytest.raises(CheckpointNotFoundError):
            ck.verify("0000000099-00000000")


def test_a_savepoint_below_what_is_damaged_is_not_hurt(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "root") as ck:
        first, second, _ = (put(ck, b"%d" % number) for number in range(3))
        ck.savepoint("first", first)
        flip(tmp_path / "root" / object_paths.manifest(second))
        found = ck.verify(first)
        assert found
        assert [finding.path for finding in found.elsewhere] == [object_paths.manifest(second)]


def test_a_damaged_catalog_hurts_the_savepoints(tmp_path: Path) -> None:
    client = Checkpointer(tmp_path / "root")
    ids = line(client, 4)
    client.savepoint("s", ids[0])
    client.clean(RetentionPolicy(keep_last=2))
    (catalog,) = (tmp_path / "root" / "catalog").iterdir()
    flip(catalog)
    whole, of_savepoint, of_latest = client.verify(), client.verify(ids[0]), client.verify(ids[3])
    assert [finding.path for finding in whole.findings] == [f"catalog/{catalog.name}"]
    assert "such as savepoints" in repr(whole.findings[0])
    assert of_savepoint.findings == whole.findings
    assert (of_latest.findings, of_latest.elsewhere) == ((), whole.findings)


def test_a_share_of_the_objects_is_drawn_anew_each_time(root: Path) -> None:
    ck = Checkpointer(root)
    whole = ck.verify()
    artifacts = sum(path.startswith(object_paths.ARTIFACTS) for path in live_paths(root))
    found = [ck.verify(share=0.5) for _ in range(8)]
    assert all(one.objects + one.skipped == whole.objects for one in found)
    assert len({one.bytes for one in found}) > 1
    assert 0.2 < sum(one.skipped for one in found) / 8 / artifacts < 0.8
    assert ck.verify(share=0).skipped == artifacts
    for wrong in (-0.1, 1.1, True, "all"):
        with pytest.raises(IllegalArgumentError, match="share="):
            ck.verify(share=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [1, 4, 5, 100])
@pytest.mark.parametrize("wrong", ["nothing", "slice", "tail"])
def test_what_manifests_say_of_the_parts_of_an_object_is_compared_too(wrong: str, step: int) -> None:
    data = b"first, second"
    path = object_paths.pack("t", CheckpointId(1, "0123abcd"), sha256(data), "raw")
    slices = {data[:5]: 0, data[5:]: 5}
    tail = Tail(6, sha256(b"second") if wrong != "tail" else sha256(b"another"))
    artifacts = {
        Artifact(
            path, SNAPSHOT, at, len(part), len(data), len(part), 1, sha256(part if wrong != "slice" else b""), tail
        )
        for part, at in slices.items()
    }
    message = {"slice": "from byte", "tail": "tail"}.get(wrong)
    comparison = Comparison(path, len(data), artifacts)
    for at in range(0, len(data), step):
        comparison.update(data[at : at + step])
    with pytest.raises(DigestMismatchError, match=message) if message else nullcontext():
        comparison.finish()


@pytest.mark.parametrize("wrong", [-1, 1])
def test_manifests_that_disagree_on_a_size_are_a_finding(tmp_path: Path, wrong: int) -> None:
    """One of them is right, and what the other one names cannot be restored."""
    ck = Checkpointer(tmp_path)
    ck.savepoint("right", put(ck, b"value"))
    with ck.begin(epoch=1) as cp:
        cp.snapshot("more", 0, b"more")

    def lie(manifest: dict[str, Any]) -> None:
        (row,) = manifest["operators"]["op"]["objects"]
        row[1] += wrong

    forge(tmp_path, "manifest", lie)
    with pytest.raises(CorruptionError):
        contents(Checkpointer(tmp_path).restore())
    (finding,) = Checkpointer(tmp_path).verify().findings
    assert cp.id in finding.checkpoints
    assert "bytes" in finding.problem


def test_an_empty_root_is_sound(tmp_path: Path) -> None:
    assert Checkpointer(tmp_path / "nothing").verify()
    with pytest.raises(CheckpointNotFoundError):
        Checkpointer(tmp_path / "nothing").verify("0000000001-00000000")


def test_what_was_deleted_meanwhile_is_no_finding() -> None:
    world = World()
    writer = world.actor()
    old, new = put(writer, b"1" * 5000), put(writer, b"2" * 5000)
    reader = world.actor()
    reader.faults.call(lambda _: world.actor().delete_checkpoint(old), "get", path="artifacts/")
    assert reader.verify().findings == ()
    assert world.actor().list_checkpoints() == [new]


def test_the_one_that_is_asked_for_is_not_called_intact_where_it_was_deleted(world: World) -> None:
    writer = world.actor()
    old = put(writer, b"1" * 5000)
    put(writer, b"2" * 5000)
    reader = world.actor()
    reader.faults.call(lambda _: world.actor().delete_checkpoint(old), "get", path="artifacts/")
    with pytest.raises(RetiredError, match=f"{old} was retired meanwhile"):
        reader.verify(old)


def test_a_job_that_writes_is_not_disturbed() -> None:
    world = World()
    writer = world.actor()
    put(writer, b"1")
    assert world.actor().verify()
    put(writer, b"2")
    assert world.actor().verify().checkpoints == 2


def test_awaitable(root: Path) -> None:
    async def verify() -> Verification:
        async with AsyncCheckpointer(root) as ck:
            return await ck.verify()

    assert asyncio.run(verify()) == Checkpointer(root).verify()


def test_a_failed_block_of_a_disk_is_damage_and_no_missing_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Checkpointer(tmp_path / "root")
    for number in range(2):
        with client.begin(epoch=number) as cp:
            cp.snapshot("op", 0, b"%d" % number * 200_000)
    (bad,) = (tmp_path / "root" / "artifacts" / "op" / "0").glob(f"{cp.id}*")
    failed = bad.stat().st_ino

    def failing(read: Callable[..., bytes]) -> Callable[..., bytes]:
        def wrapped(file: int, *given: int) -> bytes:
            if os.fstat(file).st_ino == failed:
                raise OSError(errno.EIO, "Input/output error")
            return read(file, *given)

        return wrapped

    for name in ("read", "pread"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    restored = Checkpointer(tmp_path / "root").restore(on_corruption="previous")
    assert restored is not None
    assert restored.epoch == 0


def test_what_a_disk_does_not_give_is_a_finding_and_no_end(world: World) -> None:
    client = world.actor()
    ids = line(client, 3)
    (bad,) = [path for path in world.objects("artifacts/") if str(ids[2]) in path]
    reader = world.actor(retries=False)
    reader.faults.fail("get", path=bad, times=100, error=ObjectRefusedError)
    (finding,) = reader.verify().findings
    assert (finding.path, finding.checkpoints, finding.missing) == (bad, (ids[2],), False)
    restored = reader.restore(on_corruption="previous")
    assert restored is not None
    assert restored.id == ids[1]
    # A right that is missing says nothing about the object: an older checkpoint would undo a commit that is intact.
    denied = world.actor(retries=False)
    denied.faults.fail("get", path=bad, times=100, error=StoreRefusedError)
    with pytest.raises(StoreRefusedError, match="failed by the test"):
        denied.restore(on_corruption="previous")
    reader.faults.fail("get", path="_latest", times=100, error=StoreRefusedError)
    with pytest.raises(StoreRefusedError):
        reader.verify()


def test_a_listing_that_is_refused_is_no_damage(world: World) -> None:
    client = world.actor()
    ids = line(client, 7)
    client.faults.fail("list", error=StoreRefusedError, times=99)
    with pytest.raises(StoreRefusedError):
        client.verify(ids[-1])
