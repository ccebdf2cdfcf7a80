"""Cleanup by executors does what cleanup by one process does."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.admin.retention.classifier import PlanRow
from pyspark_checkpointer.errors import InvalidStateError, StoreRefusedError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import clean, frame_of, plan_cleanup
from pyspark_checkpointer.spark.cleanup import LISTING_PREFIXES, _id_prefixes, _listing_prefixes, _prefixes_above
from pyspark_checkpointer.storage.base import PagedStore
from pyspark_checkpointer.testing import Faults, injected
from tests.signing_keys import make_keys

NOW = RetentionPolicy(keep_last=2, grace=timedelta(0))


def fill(root: str) -> Checkpointer:
    """A history in which every kind of object is live, retired, and left by an attempt that was given up."""
    client = Checkpointer(root)
    for number in range(1, 13):
        with client.begin(number) as cp:
            for partition in (0, 7, 10, 123):
                cp.snapshot("wide name", partition, b"%d %d" % (number, partition) * 20_000)
            if number in (1, 6):
                for partition in range(600):
                    cp.snapshot("many", partition, b"%d" % number)
        if number % 4 == 0:
            client.begin().prepare().abort()
            client.restore()
    client.savepoint("first", client.list_checkpoints()[0])
    run_sync(client.session.store.put("progress/group/0", b"7"))
    return client


def test_prefixes_cover_every_object_once(tmp_path: Path) -> None:
    client = fill(str(tmp_path))
    paths = [entry.path for entry in run_sync(client.session.store.list("")) if "/" in entry.path]
    for sequence, newer in ((12, False), (12, True), (1, True)):
        prefixes = run_sync(_listing_prefixes(client, sequence, 8, newer=newer))
        for path in paths:
            assert len([prefix for prefix in prefixes if path.startswith(prefix)]) == 1, path
    for newest in (0, 1, 9, 15, 16, 99, 1234, 10**7, 10**10 - 1):
        starts = _id_prefixes(newest)
        assert len(starts) <= max(LISTING_PREFIXES * 4, 16)
        for sequence in {0, newest // 3, newest - 1, newest} - {-1}:
            assert len([start for start in starts if f"{sequence:010d}".startswith(start)]) == 1
        for sequence in {newest + 1, newest + 10, newest * 7 + 100, 10**10 - 1}:
            everything = [*starts, *_prefixes_above(starts[-1])]
            assert len([start for start in everything if f"{sequence % 10**10:010d}".startswith(start)]) == 1


@pytest.mark.parametrize("lists_whole_folders", [False, True])
def test_an_operator_is_one_prefix_where_more_would_only_cost_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists_whole_folders: bool
) -> None:
    """Many operators are parts enough, and some stores list the whole folder for each part of it."""
    monkeypatch.setattr(PagedStore, "lists_whole_folders", lists_whole_folders)
    client = Checkpointer(tmp_path)
    for number in range(2):
        with client.begin() as cp:
            for name in range(3 if lists_whole_folders else 50):
                cp.save(f"map {name}", KeyedState({name: number}))
                cp.snapshot(f"bytes {name}", number, b"%d" % number * 20_000)
    prefixes = run_sync(_listing_prefixes(client, 2, 8, newer=False))
    assert len(prefixes) < (12 if lists_whole_folders else 120)
    for path in [entry.path for entry in run_sync(client.session.store.list("")) if "/" in entry.path]:
        assert len([prefix for prefix in prefixes if path.startswith(prefix)]) == 1, path


def test_a_plan_by_executors_is_the_plan_of_one_process(spark: SparkSession, tmp_path: Path) -> None:
    client = fill(str(tmp_path))
    plan = client.plan(NOW)
    rows = {PlanRow(*row) for row in plan_cleanup(spark, str(tmp_path), NOW).collect()}
    assert rows == {row for row in plan if "/" in row.path}
    frame = frame_of(spark, plan)
    assert frame.count() == len([*plan])
    assert frame.where("action = 'delete'").count() == plan.total("delete").objects > 10


def test_under_an_old_pointer_a_plan_by_executors_has_the_newer_objects_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    client = Checkpointer(tmp_path)
    for number in range(1, 13):
        with client.begin(number) as cp:
            cp.snapshot("op", 0, b"%d" % number)
            for partition in range(600 if number % 6 == 0 else 0):
                cp.snapshot("many", partition, b"%d" % number)
        if number == 11:  # what is one above it may be an attempt
            old = (tmp_path / "_latest").read_bytes()
    (tmp_path / "_latest").write_bytes(old)
    plan = Checkpointer(tmp_path).plan(NOW)
    rows = {PlanRow(*row) for row in plan_cleanup(spark, str(tmp_path), NOW).collect()}
    assert rows == {row for row in plan if "/" in row.path}
    assert len([row for row in rows if row.path.startswith("manifests/0")]) == 12


def test_no_executor_deletes_on_an_old_copy_of_the_pointer(spark: SparkSession, tmp_path: Path) -> None:
    client = Checkpointer(tmp_path)
    for number in range(1, 7):
        with client.begin(number) as cp:
            cp.snapshot("op", 0, b"%d" % number)
        if number == 3:
            old = (tmp_path / "_latest").read_bytes()
    client.savepoint("since", "epoch=2")
    (tmp_path / "_latest").write_bytes(old)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    for verb in (clean, plan_cleanup):
        with pytest.raises(InvalidStateError, match="old copy"):
            verb(spark, str(tmp_path), NOW)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    assert (tmp_path / "_latest").read_bytes() == old


def test_no_executor_deletes_where_the_pointer_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    client = Checkpointer(tmp_path)
    for number in range(1, 7):
        with client.begin(number) as cp:
            cp.snapshot("op", 0, b"%d" % number)
    (tmp_path / "_latest").unlink()
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    for verb in (clean, plan_cleanup):
        with pytest.raises(InvalidStateError, match="has no _latest, though"):
            verb(spark, str(tmp_path), NOW)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_cleanup_by_executors_leaves_what_one_process_leaves(spark: SparkSession, tmp_path: Path) -> None:
    one, other = fill(str(tmp_path / "a")), fill(str(tmp_path / "b"))
    alone = one.clean(NOW)
    temporary = tmp_path / "b/artifacts/many/packs" / f".0000000003-00000000.{'0' * 64}.raw.{'a' * 16}.tmp"
    temporary.write_bytes(b"half")
    spread = clean(spark, str(tmp_path / "b"), NOW)
    assert spread.deleted.objects == alone.deleted.objects > 10  # manifests say what they cost, in more or fewer digits
    assert (spread.later, len(spread.retired)) == (alone.later, len(alone.retired))
    assert not temporary.exists()
    assert other.verify()
    assert other.plan(RetentionPolicy(grace=timedelta(0))).total("delete").objects == 0
    assert len(other.list_checkpoints()) == 3
    assert (tmp_path / "b/progress/group/0").read_bytes() == b"7"


def test_the_manifests_of_a_signed_root_are_cleaned_by_executors(spark: SparkSession, tmp_path: Path) -> None:
    """They are stored under other names, which the tasks have to know without a key."""
    make_keys(tmp_path / "owner.pem")
    root, signing = tmp_path / "root", f"sign:{tmp_path / 'owner.pem'}"
    client = Checkpointer(root, signing=signing)
    for number in range(5):
        with client.begin(number) as cp:
            cp.snapshot("op", 0, b"%d" % number)
    live = {f"{one}.json.signed" for one in client.list_checkpoints()[-2:]}
    assert plan_cleanup(spark, str(root), NOW, signing=signing).where("path like 'manifests/%.json'").count() == 5
    clean(spark, str(root), NOW, signing=signing)
    assert {path.name for path in (root / "manifests").iterdir()} == live
    assert client.verify()


def test_where_there_is_no_room_for_a_swap_garbage_goes_first(spark: SparkSession, tmp_path: Path) -> None:
    client = fill(str(tmp_path))
    garbage = client.plan(RetentionPolicy(grace=timedelta(0))).total("delete").objects
    assert garbage > 0
    with injected(Faults()) as faults:
        faults.fail("swap", error=StoreRefusedError)
        done = clean(spark, str(tmp_path), NOW)
        assert done.deleted.objects > garbage
        assert len(done.retired) == 9
        faults.fail("swap", error=StoreRefusedError)
        with pytest.raises(StoreRefusedError):  # and nothing to make room of
            clean(spark, str(tmp_path), RetentionPolicy(keep_last=1, grace=timedelta(0)))
    assert client.verify()


def test_where_nothing_is_nothing_is_done(spark: SparkSession, tmp_path: Path) -> None:
    done = clean(spark, str(tmp_path / "none"), NOW)
    assert done.deleted.objects == 0
    assert "no _latest" in str(done.note)
    assert plan_cleanup(spark, str(tmp_path / "none")).count() == 0
