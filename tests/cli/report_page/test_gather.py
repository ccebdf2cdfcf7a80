"""What a report says is what the store holds; damage is told, and keeps nothing else from being told."""

import json
import shutil
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer, RetentionPolicy, runtime
from pyspark_checkpointer.checkpoint.latest import read_head
from pyspark_checkpointer.cli import report_document
from pyspark_checkpointer.cli.report_page import gather, page
from pyspark_checkpointer.errors import IllegalArgumentError, StoreRefusedError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.testing.requests import Request
from tests.cli.report_page.conftest import report_on
from tests.damage import fill, flip
from tests.world import World, line, live_objects, put

pytestmark = pytest.mark.usefixtures("small_manifests")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that a store can hold: every codec, packs, segments, a catalog, and a prepared checkpoint."""
    root = tmp_path_factory.mktemp("filled") / "root"
    with Checkpointer(root) as ck:
        first = fill(ck, 0)
        fill(ck, 1)
        ck.savepoint("first", first)
        fill(ck, 2)
        cp = ck.begin(epoch=3)
        cp.snapshot("own", 0, b"prepared")
        cp.prepare()
    return root


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def root(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "root"))


def live(root: Path) -> list[str]:
    """Every live object, `_latest` first."""
    session = Checkpointer(root).session

    async def read() -> set[str]:
        return await live_objects(session.store, session.host, await read_head(session.store))

    return sorted(runtime.run_sync(read()), key=lambda path: (path != object_paths.LATEST, path))


def test_what_checkpoints_and_operators_hold(world: World) -> None:
    with world.actor() as ck:
        with ck.begin(epoch=7) as cp:
            for partition, length in enumerate((10, 20, 3000)):
                cp.snapshot("op", partition, b"s" * length)
        with ck.begin(epoch=8) as cp:
            cp.delta("op", 2, b"d" * 500)
        ck.savepoint("kept")
        with ck.begin(epoch=9) as cp:
            cp.delta("op", 2, b"d" * 600)
            cp.snapshot("op", 0, b"s" * 40)
            cp.properties["model"] = "v7"
        report = gather.make_report(ck)
        manifest = ck.restore()
        assert manifest is not None
        assert manifest.manifest is not None
        costs = [ck.restore(known).manifest.cost for known in ck.list_checkpoints()]  # type: ignore[union-attr]
    first, second, third = report.checkpoints
    assert [row.epoch for row in report.checkpoints] == [7, 8, 9]
    assert [row.state for row in report.checkpoints] == ["history", "history", "committed"]
    assert [row.savepoints for row in report.checkpoints] == [(), ("kept",), ()]
    assert [(row.snapshot_bytes, row.delta_bytes) for row in report.checkpoints] == [(3030, 0), (0, 500), (40, 600)]
    assert [row.own_bytes for row in report.checkpoints] == [3030, 500, 640]
    assert (first.bytes, second.bytes, third.bytes) == (3030, 3530, 4170)
    assert [row.cost for row in report.checkpoints] == costs
    assert all(cost is not None for cost in costs)
    (operator,) = report.operators
    assert operator.lengths == ((1, 2), (3, 1))
    assert (operator.size.snapshot_bytes, operator.size.delta_bytes) == (3060, 1100)
    assert operator.partition_bytes is not None
    assert operator.skew == 4100 / 40
    assert [(p.partition, p.bytes, p.chain) for p in report.biggest] == [(2, 4100, 3), (0, 40, 1), (1, 20, 1)]
    assert report.committed is not None
    assert report.committed.properties == {"model": "v7"}
    assert report.pointer is not None
    assert (report.pointer.boundary, report.pointer.writer.epoch, report.pointer.prepared) == (1, 1, None)
    assert report.newest == report.intact == third
    assert (report.verdict, report.share, report.verification.skipped) == ("Nothing is wrong", 1.0, 0)


def test_what_cleanup_would_free(world: World) -> None:
    with world.actor() as ck:
        line(ck, 5)
        cp = ck.begin()
        cp.snapshot("op", 0, b"x" * 5000)
        cp.prepare().abort()
        put(ck, b"6")
        before = world.objects()
        cleanup = gather.make_report(ck).cleanup
        assert cleanup.bytes("delete") > 5000
        assert [row.objects for row in cleanup.rows if row.action == "delete"] == [2]
        assert {row.reason for row in cleanup.rows if row.action == "delete"} == {"no live checkpoint names it"}
        assert cleanup.retired == ()
        assert sum(row.objects for row in cleanup.rows) == len(before)
        cleanup = gather.make_report(ck, policy=RetentionPolicy(keep_last=2)).cleanup
        assert [known.sequence for known in cleanup.retired] == [1, 2, 3, 4]
        assert cleanup.bytes("later") > 0
        assert world.objects() == before


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_damage_to_any_object_is_named_on_a_page_that_has_the_rest(
    filled: Path, tmp_path: Path, damage: object
) -> None:
    assert callable(damage)
    root = Path(shutil.copytree(filled, tmp_path / "root"))
    paths = live(root)
    assert {path.split("/")[0] for path in paths} == {"_latest", "manifests", "catalog", "artifacts"}
    for path in paths:
        file = root / path
        whole = file.read_bytes()
        damage(file)
        report = report_on(root)
        assert path in {finding.path for finding in report.verification.findings}
        shown = page.render(report)
        assert path in shown
        assert report.verdict in shown
        assert "finding" in report.verdict
        json.dumps(report_document.report(report))
        if path == object_paths.LATEST:
            assert report.pointer is None
            assert report.candidates
            assert "nothing can be restored" in report.verdict
        else:
            assert report.pointer is not None
            assert len(report.checkpoints) >= 2
            assert report.newest is not None
            assert report.newest.damaged == (report.newest.id in report.verification.findings[0].checkpoints)
        file.write_bytes(whole)
    assert report_on(root).verdict == "Nothing is wrong"


def test_the_next_step_is_the_newest_checkpoint_that_is_whole(world: World) -> None:
    with world.actor() as ck:
        ids = line(ck, 3)
        for known in ids[1:]:
            world.delete(*(path for path in world.objects("artifacts/") if str(known) in path))
        report = gather.make_report(ck)
    assert report.verdict == "2 findings: 2 missing; the newest checkpoint is hurt"
    assert report.intact is not None
    assert report.intact.id == ids[0]
    step = page.next_step(report)
    assert step is not None
    assert step[1] == f"checkpointer verify {ck.root} {ids[0]}"


def test_an_operator_that_cannot_be_read_is_named_beside_the_others(root: Path) -> None:
    newest = max(path for path in live(root) if path.startswith("manifests/segments/"))
    (root / newest).unlink()
    report = report_on(root)
    assert report.unread_operators == ("many",)
    assert {row.name for row in report.operators} == {"own", "pack", "chain", "map", "table"}
    assert "many" in page.render(report)
    assert report.cleanup.rows == ()
    assert report.cleanup.note is not None
    assert newest in report.cleanup.note
    assert report.newest is not None
    assert report.newest.bytes is None


def test_a_lost_pointer_is_a_finding_and_an_empty_root_is_none(root: Path, tmp_path: Path) -> None:
    (root / "_latest").unlink()
    report = report_on(root)
    assert [(finding.path, finding.missing) for finding in report.verification.findings] == [("_latest", True)]
    assert report.candidates[0].id.sequence == 4  # the prepared one: nothing is left that says so
    assert not report.is_empty
    assert str(report.candidates[0].id) in page.render(report)
    empty = report_on(tmp_path / "empty")
    assert empty.is_empty
    assert "Nothing is stored here" in page.render(empty)


def test_a_large_store_is_sampled_and_the_page_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MAX_OBJECTS", 5)
    reports = [report_on(root) for _ in range(8)]  # one sample may by chance be all objects, or none
    assert all(0 < report.share < 1 for report in reports)
    for report in reports:
        assert ("a random sample" in page.render(report)) == (report.verification.skipped > 0)
    assert max(report.verification.skipped for report in reports) > 0
    whole = report_on(root, share=1.0)
    assert whole.verification.skipped == 0
    assert "random sample" not in page.render(whole)
    assert report_on(root, share=0.0).verification.skipped > min(report.verification.skipped for report in reports)
    with pytest.raises(IllegalArgumentError, match="from 0 to 1"):
        report_on(root, share=2.0)


def test_very_many_partitions_are_left_out_and_the_page_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MAX_PARTITIONS", 1)
    report = report_on(root)
    *older, committed, prepared = report.checkpoints
    assert prepared.bytes is not None
    assert committed.bytes is not None  # the same partitions as the prepared one
    assert [row.bytes for row in older] == [None, None]
    assert all(row.own_bytes is not None for row in older)  # says its manifest
    assert report.chains_left_out == 2
    assert "Of 2 older checkpoints only the manifests were read" in page.render(report)
    assert report.cleanup.rows == ()
    assert report_on(root, share=0.0).chains_left_out == 0
    assert report_on(root, policy=RetentionPolicy(keep_last=1)).cleanup.rows


def test_what_was_deleted_meanwhile_is_no_finding(world: World) -> None:
    writer, reader = world.actor(), world.actor()
    old = put(writer, b"1" * 5000)
    put(writer, b"2" * 5000)
    reader.faults.call(lambda _: world.actor().delete_checkpoint(old), "get", path="artifacts/")
    assert gather.make_report(reader).verdict == "Nothing is wrong"
    assert old not in world.actor().list_checkpoints()


def test_who_may_not_list_everything_still_gets_the_rest(world: World) -> None:
    with world.actor(retries=False) as ck:
        line(ck, 2)

        def refuse(request: Request) -> None:
            if request.path == "":
                raise StoreRefusedError("list: not allowed")

        ck.faults.call(refuse, "list", times=100)
        report = gather.make_report(ck)
    assert report.cleanup.note is not None
    assert report.cleanup.note.startswith("Could not be looked at: list: not allowed")
    assert len(report.checkpoints) == 2


def test_an_old_copy_of_the_pointer_is_a_finding_with_what_to_repair_to(root: Path, tmp_path: Path) -> None:
    old = (root / "_latest").read_bytes()
    with Checkpointer(root) as ck:
        ck.restore().prepared.commit()  # type: ignore[union-attr]
        line(ck, 2)
    (root / "_latest").write_bytes(old)
    report = report_on(root)
    assert [finding.path for finding in report.verification.findings] == ["_latest"]
    assert 6 in [candidate.id.sequence for candidate in report.candidates]
    assert "checkpointer repair" in page.render(report)
