"""Rewind and fork queries in many histories, with a model of what Spark does with its files.

The state is what the query has read: up to the offset of its last batch. So a start is right where the state and the
offsets that Spark would go on from are equal, whatever happened before. test_rewind_crashes.py has the interruptions.
"""

import asyncio
import json
import threading
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, RetentionPolicy, runtime
from pyspark_checkpointer.admin import rollback
from pyspark_checkpointer.admin.streaming import fork_log, log_edit, offset_log, rewind_attempt
from pyspark_checkpointer.admin.streaming.log_edit import put_new
from pyspark_checkpointer.admin.streaming.offset_log import read_log
from pyspark_checkpointer.checkpoint import upload
from pyspark_checkpointer.errors import (
    CheckpointError,
    IllegalArgumentError,
    InvalidStateError,
    NotFoundError,
    RetiredError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_files
from pyspark_checkpointer.storage.local.store import LocalStore
from pyspark_checkpointer.testing import injected
from pyspark_checkpointer.testing.faults import CrashError, Faults
from pyspark_checkpointer.testing.store import FaultyStore
from tests.admin.streaming.spark_model import LAST, METADATA, QUERY, Query, history
from tests.cli.conftest import run
from tests.servers import Server

__all__ = ["run"]

TO = 1
BACK = f"epoch={TO}"


@pytest.fixture
def query(tmp_path: Path) -> Query:
    history(str(tmp_path / "root"))
    return Query(str(tmp_path / "root"))


def test_a_rewind_keeps_what_it_leaves_as_a_savepoint(query: Query) -> None:
    client = Checkpointer(query.root)
    left = client.read_latest()
    done = client.rewind(to=BACK)
    assert [(s.name, s.id) for s in client.savepoints()] == [(done.savepoint, left)]
    assert (done.left, done.new) == (left, client.read_latest())
    again = client.rewind(to=BACK)
    assert not again.changes
    assert len(client.savepoints()) == 1


def test_each_way_to_name_a_checkpoint(query: Query) -> None:
    ids = Checkpointer(query.root).list_checkpoints()
    Checkpointer(query.root).savepoint("good", ids[TO])
    manifest = Checkpointer(query.root).load_manifest(ids[TO])
    for to in (ids[TO], str(ids[TO]), "good", BACK, f"at={manifest.created.isoformat()}"):  # type: ignore[union-attr]
        assert Checkpointer(query.root).rewind(to=to, dry_run=True).to == ids[TO]
    for to, error in (
        ("epoch=99", NotFoundError),
        (1, IllegalArgumentError),
        ("bad", NotFoundError),
        ("at=noon", IllegalArgumentError),
    ):
        with pytest.raises(error):
            Checkpointer(query.root).rewind(to=to)
    with pytest.raises(NotFoundError, match="the oldest is of"):
        Checkpointer(query.root).rewind(to="at=2001-01-01")
    with pytest.raises(IllegalArgumentError):
        Checkpointer(query.root).rewind(to=True)


def test_of_two_rewinds_at_once_one_does_it_and_keeps_its_way_back(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rewind_attempt.rollback

    async def after_another(*args: object, **options: object) -> object:
        monkeypatch.setattr(rewind_attempt, "rollback", original)
        await AsyncCheckpointer(query.root).rewind(to="epoch=2")
        return await original(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rewind_attempt, "rollback", after_another)
    with pytest.raises(CheckpointError, match="stop it first"):
        Checkpointer(query.root).rewind(to=BACK)
    assert Checkpointer(query.root).restore().epoch == 2  # type: ignore[union-attr]
    assert Checkpointer(query.root).undo_rewind().batch == LAST
    assert query.run() == LAST


def test_a_checkpoint_made_before_offsets_were_recorded_goes_back_and_forth(tmp_path: Path) -> None:
    query = Query(str(tmp_path / "root"))
    query.recording = False
    query.create()
    for _ in range(LAST + 1):
        query.run()
    spark = query.spark
    with pytest.raises(IllegalArgumentError, match="give spark_checkpoint"):
        Checkpointer(query.root).rewind(to=BACK)
    made = Checkpointer(query.root).fork("latest", tmp_path / "copy", tmp_path / "copy-spark", spark_checkpoint=spark)
    assert Query(str(tmp_path / "copy")).run() == made.batch + 1 == LAST + 1
    done = Checkpointer(query.root).rewind(spark, to=BACK)
    assert query.run(step=3) == TO + 1
    assert query.run(step=3) == TO + 2
    with pytest.raises(InvalidStateError, match="only an undo can go back there"):
        Checkpointer(query.root).rewind(spark, to=str(done.savepoint))
    assert Checkpointer(query.root).undo_rewind(spark).batch == LAST
    assert query.run() == LAST + 1
    with pytest.raises(InvalidStateError, match="made since"):
        Checkpointer(query.root).fork("latest", f"{query.root}-2", f"{query.root}-2-spark", spark_checkpoint=spark)


def test_an_undo_of_what_recorded_no_offsets_is_as_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The undo finds the offsets, and its commit records them, so a start before that is refused."""
    query = Query(str(tmp_path / "root"))
    query.recording = False
    query.create()
    for _ in range(LAST + 1):
        query.run()
    Checkpointer(query.root).rewind(query.spark, to=f"epoch={LAST - 2}")
    query.recording = True
    assert [query.run(), query.run(step=17)] == [LAST - 1, LAST]
    with monkeypatch.context() as patched, pytest.raises(CrashError):
        patched.setattr(rewind_attempt, "apply_log_plan", _stop)
        Checkpointer(query.root).undo_rewind(query.spark)
    assert query.run() is None
    Checkpointer(query.root).undo_rewind(query.spark)
    assert [query.run(), query.run()] == [LAST + 1, LAST + 2]


@pytest.mark.parametrize("path", ["commits/1", "offsets/2", "commits/0"])
@pytest.mark.parametrize("damage", ["", "v1", 'v1\n{"nextBatch', "v1\n7\n", 'v1\n{}\n{"at":'])
def test_a_damaged_file_that_spark_would_read_is_replaced(query: Query, path: str, damage: str) -> None:
    """The commit of the last batch is written anew; the planned batch is cut and planned again."""
    (query.spark / path).write_text(damage)
    (query.spark / path).with_name(f".{Path(path).name}.crc").unlink()
    Checkpointer(query.root).rewind(to=BACK)
    for n in (TO, TO + 1):
        for folder in ("commits", "offsets"):
            if n in query.numbers(folder):
                assert isinstance(json.loads(query.text(f"{folder}/{n}").split("\n")[1]), dict)
    assert [query.run(), query.run()] == [TO + 1, TO + 2]
    assert Checkpointer(query.root).undo_rewind().batch == LAST


def test_an_undo_called_again_leaves_what_the_query_has_begun_since(query: Query) -> None:
    query.run()
    Checkpointer(query.root).rewind(to=BACK)
    Checkpointer(query.root).undo_rewind()
    query.begin(step=13)  # planned, then killed; some sink may know this batch by now
    planned = query.text(f"offsets/{LAST + 1}")
    assert not Checkpointer(query.root).undo_rewind().changes
    assert query.text(f"offsets/{LAST + 1}") == planned
    assert query.run() == LAST + 1


def test_an_undo_called_again_leaves_a_batch_that_was_repeated_and_the_next_one(query: Query) -> None:
    Checkpointer(query.root).rewind(to=BACK)
    Checkpointer(query.root).undo_rewind()
    assert query.run() == LAST  # Spark had not finished it, and the state has it
    assert not Checkpointer(query.root).undo_rewind().changes
    query.begin(step=13)  # planned, then killed; some sink may know this batch by now
    planned = query.text(f"offsets/{LAST + 1}")
    assert not Checkpointer(query.root).undo_rewind().changes
    assert query.text(f"offsets/{LAST + 1}") == planned
    assert query.run() == LAST + 1


def test_an_undo_called_again_leaves_what_was_begun_while_spark_deleted_an_old_file(query: Query) -> None:
    for _ in range(4):
        query.run()
    oldest, last = LAST, LAST + 3
    for number in range(oldest):  # Spark keeps few files, and the rewind takes out all of them.
        query.delete(f"offsets/{number}")
        query.delete(f"commits/{number}")
    Checkpointer(query.root).rewind(to=BACK)
    Checkpointer(query.root).undo_rewind()
    assert query.numbers("offsets") == query.numbers("commits") == [*range(oldest, last + 1)]
    query.begin(step=13)  # planned, then killed; some sink may know this batch by now
    planned = query.text(f"offsets/{last + 1}")
    for folder in ("offsets", "commits"):
        (query.spark / folder / str(oldest)).unlink()
    before = query.files()
    assert not Checkpointer(query.root).undo_rewind().changes
    assert query.files() == before
    assert query.text(f"offsets/{last + 1}") == planned
    assert query.run() == last + 1


def test_an_undo_called_again_writes_a_newer_file_that_is_missing(query: Query) -> None:
    """Spark deletes the oldest files only: the undo was interrupted, and finishes what it began."""
    for _ in range(4):
        query.run()
    Checkpointer(query.root).rewind(to=BACK)
    Checkpointer(query.root).undo_rewind()
    before = query.files()
    for folder in ("offsets", "commits"):
        (query.spark / folder / str(LAST + 1)).unlink()
    query.begin(step=13)
    assert Checkpointer(query.root).undo_rewind().changes
    assert {path: text for path, text in query.files().items() if path in before} == before
    assert query.run() == LAST + 4


def test_an_undo_needs_no_savepoint_while_the_checkpoint_is_live(query: Query) -> None:
    done = Checkpointer(query.root).rewind(to=BACK)
    Checkpointer(query.root).delete_savepoint(str(done.savepoint))
    assert Checkpointer(query.root).undo_rewind().batch == LAST
    assert query.run() == LAST


def test_an_undo_of_a_rewind_that_was_retired_names_its_savepoint(query: Query) -> None:
    done = Checkpointer(query.root).rewind(to=BACK)
    for _ in range(3):
        query.run()
    Checkpointer(query.root).clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    with pytest.raises(InvalidStateError, match=f"rewind to {done.savepoint} instead"):
        Checkpointer(query.root).undo_rewind()
    assert Checkpointer(query.root).rewind(to=str(done.savepoint)).batch == LAST


def test_lines_of_batches_are_not_mixed(query: Query) -> None:
    """Rewind, replay in other batches, rewind to the first line, and back: each file follows the last."""
    query.run()
    done = Checkpointer(query.root).rewind(to="epoch=0")
    assert [query.run(step=40) for _ in range(2)] == [1, 2]
    replayed = query.read
    aside = Checkpointer(query.root).rewind(to=str(done.savepoint))
    assert Checkpointer(query.root).rewind(to="epoch=2").batch == 2
    Checkpointer(query.root).undo_rewind()
    Checkpointer(query.root).rewind(to=str(aside.savepoint))
    assert query.read == replayed
    for step in (10, 20, 10):
        query.run(step=step)
    assert query.read == replayed + 40


@pytest.mark.parametrize("to", [TO + 1, TO + 2])
def test_an_undo_to_where_both_did_not_fit_is_refused_as_it_was(query: Query, to: int) -> None:
    """The state was of one line of batches, Spark's progress of another: their files are not mixed."""
    query.run()
    Checkpointer(query.root).rewind(to=BACK)
    assert [query.run(step=3) for _ in range(3)] == [TO + 1, TO + 2, TO + 3]
    Checkpointer(query.root).rollback(Checkpointer(query.root).list_checkpoints()[to])
    Checkpointer(query.root).rewind(to=BACK)
    Checkpointer(query.root).undo_rewind()
    assert query.run() is None
    Checkpointer(query.root).rewind(to="latest")
    assert query.run() == to + 1


def test_after_a_rewind_that_did_not_end_no_batch_begins(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is committed, and Spark would go on behind it."""
    query.run()
    client = Checkpointer(query.root)
    with monkeypatch.context() as patched, pytest.raises(CrashError):
        patched.setattr(rewind_attempt, "apply_log_plan", _stop)
        client.rewind(query.spark, to=BACK)
    with pytest.raises(InvalidStateError, match=r"a rewind did not end: call it again, and then restore\(\)"):
        client.begin()
    client.rewind(query.spark, to=BACK)
    restored = client.restore()
    assert restored is not None
    assert restored.epoch == TO


def test_a_restore_after_a_rewind_that_was_given_up_stays(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rewind goes on after its commit, and ends after the restore."""
    original, may_end, has_ended = rewind_attempt.apply_log_plan, threading.Event(), threading.Event()

    async def late(*args: Any) -> None:
        await asyncio.to_thread(may_end.wait)
        await original(*args)
        runtime.loop().call_later(0.1, has_ended.set)  # after the end of the rewind

    async def go_on() -> None:
        client = AsyncCheckpointer(query.root)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await client.rewind(query.spark, to=BACK)
        restored = await client.restore()
        assert restored is not None
        assert restored.epoch == TO
        may_end.set()
        await asyncio.to_thread(has_ended.wait)
        await client.begin()

    query.run()
    monkeypatch.setattr(rewind_attempt, "apply_log_plan", late)
    asyncio.run(asyncio.wait_for(go_on(), 60))


@pytest.mark.parametrize("held", ["a file of Spark", "its store"])
@pytest.mark.parametrize("verb", ["rewind", "undo_rewind"])
def test_no_batch_begins_beside_a_rewind_that_was_given_up(
    query: Query, monkeypatch: pytest.MonkeyPatch, verb: str, held: str
) -> None:
    """Its state is committed. A caller who has not restored would add deltas of the old one to it."""
    may_end, has_begun = threading.Event(), threading.Event()
    apply_log_plan, close = rewind_attempt.apply_log_plan, LocalStore.close

    async def late(*args: Any) -> None:
        if held == "a file of Spark":
            await hold()
        await apply_log_plan(*args)

    async def late_close(store: LocalStore) -> None:
        if held == "its store" and store.url.endswith(query.spark.name):
            await hold()
        await close(store)

    async def hold() -> None:
        has_begun.set()
        await asyncio.to_thread(may_end.wait)

    async def go_on() -> None:
        client = AsyncCheckpointer(query.root)
        await client.restore()
        rewinding = asyncio.ensure_future(
            client.rewind(query.spark, to=BACK) if verb == "rewind" else client.undo_rewind(query.spark)
        )
        await asyncio.to_thread(has_begun.wait)
        rewinding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rewinding
        with pytest.raises(InvalidStateError, match=r"restore\(\)"):
            await client.begin()
        may_end.set()
        await client.restore()
        await client.begin()

    query.run()
    if verb == "undo_rewind":
        Checkpointer(query.root).rewind(query.spark, to=BACK)
    monkeypatch.setattr(rewind_attempt, "apply_log_plan", late)
    monkeypatch.setattr(LocalStore, "close", late_close)
    asyncio.run(asyncio.wait_for(go_on(), 60))


def test_after_a_rewind_a_batch_begins_without_a_restore(query: Query) -> None:
    query.run()
    client = Checkpointer(query.root)
    client.restore()
    client.rewind(query.spark, to=BACK)
    parent = client.begin().parent
    assert parent is not None
    assert parent.epoch == TO


@pytest.mark.parametrize("verb", ["rewind", "undo_rewind"])
@pytest.mark.parametrize("kind", ["commit", "prepare"])
def test_a_rewind_undoes_nothing_of_its_client_since_the_call(
    query: Query, monkeypatch: pytest.MonkeyPatch, verb: str, kind: str
) -> None:
    """Its caller may have given it up, and gone on."""
    original = rewind_attempt.refuse_damaged

    async def after_another(*args: Any) -> None:
        cp = await client.begin(LAST + 1)
        after.append(await cp.commit() if kind == "commit" else await cp.prepare())
        await original(*args)

    after: list[Any] = []
    query.run()
    if verb == "undo_rewind":
        Checkpointer(query.root).rewind(query.spark, to=BACK)
    client = AsyncCheckpointer(query.root)
    run_sync(client.restore())
    made = Checkpointer(query.root).savepoints()
    monkeypatch.setattr(rewind_attempt, "refuse_damaged", after_another)
    with pytest.raises(InvalidStateError, match="another call of this client"):
        run_sync(client.rewind(query.spark, to="epoch=0") if verb == "rewind" else client.undo_rewind(query.spark))
    if kind == "prepare":
        run_sync(after[0].commit())
    latest = Checkpointer(query.root).restore()
    assert latest is not None
    assert latest.epoch == LAST + 1
    assert Checkpointer(query.root).savepoints() == made
    run_sync(client.new_id())


def test_an_undo_of_a_rewind_that_was_interrupted_cuts_nothing_more(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.run()
    query.begin()  # planned, not run
    before = query.files()
    with monkeypatch.context() as patched, pytest.raises(CrashError):
        patched.setattr(rewind_attempt, "apply_log_plan", _stop)
        Checkpointer(query.root).rewind(query.spark, to=BACK)
    assert Checkpointer(query.root).restore().epoch == TO  # type: ignore[union-attr]
    Checkpointer(query.root).undo_rewind()
    assert query.files() == before


def test_a_fork_that_was_interrupted_after_a_long_list_of_files_is_finished(
    query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compacted list has all files that Spark ever read, and is larger than its other files."""
    monkeypatch.setattr(offset_log, "MAX_FILE", 1000)
    query.write("sources/0/99", "v1\n" + "0" * 2000)
    places = tmp_path / "copy", tmp_path / "copy-spark"
    with monkeypatch.context() as patched, pytest.raises(CrashError):
        patched.setattr(fork_log, "check_lists", _stop)
        Checkpointer(query.root).fork("latest", *places)
    assert Checkpointer(query.root).fork("latest", *places).batch == LAST
    assert Query(str(tmp_path / "copy")).run() == LAST + 1


async def _stop(*_: object) -> None:
    raise CrashError("before the first file is cut")


def test_a_fork_is_no_place_that_the_first_query_uses(query: Query, tmp_path: Path) -> None:
    for places in (
        (query.root, tmp_path / "b"),
        (tmp_path / "a", query.spark),
        (tmp_path / "a", tmp_path / "a"),
        (tmp_path / "a", query.root),
    ):
        with pytest.raises(IllegalArgumentError):
            Checkpointer(query.root).fork("latest", *places)
    assert query.run() == LAST


def test_a_moved_checkpoint_stays_where_it_is_now(query: Query) -> None:
    moved = query.spark.with_name("moved")
    query.spark.rename(moved)
    query = Query(query.root, str(moved))
    query.run()
    query.run()
    Checkpointer(query.root).rewind(to=BACK)
    assert Checkpointer(query.root).restore().job.spark.location == str(moved)  # type: ignore[union-attr]
    assert Checkpointer(query.root).undo_rewind().batch == LAST + 1


def test_a_damaged_file_of_offsets_is_written_anew_where_it_was_recorded(query: Query) -> None:
    (query.spark / "offsets" / str(TO)).write_bytes(b"")
    done = Checkpointer(query.root).rewind(to=BACK)
    assert f"offsets/{TO}" in done.written
    assert query.run() == TO + 1


def test_a_job_that_commits_meanwhile_stops_the_rewind(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    before = query.files()

    async def commits_first(*args: object) -> None:
        await original(*args)  # type: ignore[arg-type]
        other = AsyncCheckpointer(query.root)
        await other.restore()
        async with other.begin(epoch=99):
            pass

    original = rewind_attempt.write_record
    monkeypatch.setattr(rewind_attempt, "write_record", commits_first)
    with pytest.raises(CheckpointError, match="stop it first"):
        Checkpointer(query.root).rewind(to=BACK)
    assert query.files() == before
    assert Checkpointer(query.root).savepoints() == []
    restored = Checkpointer(query.root).restore()
    assert restored is not None
    assert restored.epoch == 99


def test_a_rewind_is_stopped_though_its_own_client_has_restored_meanwhile(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, client = query.files(), AsyncCheckpointer(query.root)
    original = rollback.read_consistent

    async def restored_first(*args: Any) -> Any:
        monkeypatch.setattr(rollback, "read_consistent", original)
        other = AsyncCheckpointer(query.root)
        await other.restore()
        async with other.begin(epoch=99):
            pass
        await client.restore()
        return await original(*args)

    monkeypatch.setattr(rollback, "read_consistent", restored_first)
    with pytest.raises(CheckpointError, match="stop it first"):
        asyncio.run(client.rewind(to=BACK))  # type: ignore[arg-type]
    assert query.files() == before
    assert Checkpointer(query.root).savepoints() == []


def test_a_rewind_whose_target_is_retired_meanwhile_is_withdrawn(query: Query) -> None:
    before, client, faults = query.files(), Checkpointer(query.root), Faults()
    client.session.store = FaultyStore(client.session.store, faults)
    client.restore()
    retire = RetentionPolicy(keep_last=1, grace=timedelta(0))
    # The first swap makes the savepoint, and the second one is that of the rollback.
    faults.call(lambda _: Checkpointer(query.root).clean(retire), "swap", nth=2)
    with pytest.raises(RetiredError):
        client.rewind(to=BACK)
    assert query.files() == before
    assert client.savepoints() == []
    with pytest.raises(InvalidStateError, match=r"rewind\(\) failed: call restore\(\) first"):
        client.begin()
    client.restore()
    with client.begin():
        pass


def test_a_rewind_that_was_called_refused_and_took_effect_keeps_its_way_back(query: Query) -> None:
    with injected(Faults()) as faults:
        faults.fail("swap", 3, path="_latest", after=True, error=StoreRefusedError)
        with pytest.raises(StoreRefusedError):
            Checkpointer(query.root).rewind(query.spark, to=f"epoch={TO}")
    (kept,) = Checkpointer(query.root).savepoints()
    again = Checkpointer(query.root).rewind(query.spark, to=f"epoch={TO}")
    assert again.savepoint == kept.name
    assert Checkpointer(query.root).undo_rewind(query.spark).batch == LAST


def test_spark_that_plans_a_batch_meanwhile_is_cut_too(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    original = log_edit.apply_log_plan

    async def plans_first(*args: object) -> None:
        monkeypatch.setattr(rewind_attempt, "apply_log_plan", original)
        await original(*args)  # type: ignore[arg-type]
        query.write("offsets/9", f'v1\n{METADATA}\n{{"at":1000}}')

    monkeypatch.setattr(rewind_attempt, "apply_log_plan", plans_first)
    Checkpointer(query.root).rewind(to=BACK)
    assert query.numbers("offsets") == [*range(TO + 2)]
    assert query.run() == TO + 1


def test_a_checkpoint_without_sparks_offsets_needs_those_of_spark(query: Query) -> None:
    with Checkpointer(query.root) as ck:
        restored = ck.restore()
        assert restored is not None
        with ck.begin_batch(LAST + 1, Job(QUERY, "run", LAST + 1)) as cp:
            cp.save("sum", restored.keyed("sum"))
    with pytest.raises(IllegalArgumentError, match="give spark_checkpoint"):
        Checkpointer(query.root).rewind(to="latest")
    with pytest.raises(InvalidStateError, match="did not record them"):
        Checkpointer(query.root).rewind(query.spark, to="latest", stopped=True)


def test_a_state_that_no_query_wrote_is_refused(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "root") as ck:
        with ck.begin(epoch=0):
            pass
        with pytest.raises(InvalidStateError, match="was not written by a streaming query"):
            ck.rewind(tmp_path, to="latest")
        with pytest.raises(InvalidStateError, match="was not written by a streaming query"):
            ck.fork("latest", tmp_path / "copy", tmp_path / "copy-spark")
    with pytest.raises(NotFoundError, match="no checkpoint"):
        Checkpointer(tmp_path / "none").rewind(tmp_path, to="latest")


@pytest.mark.parametrize("path", ["metadata", "rewound/0001/record.json"])
@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"v1", b"[]", b"{" * 100_000])
def test_damage_in_sparks_files_is_named_and_changes_nothing(query: Query, path: str, damage: bytes) -> None:
    latest = Checkpointer(query.root).read_latest()
    target = query.spark / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(damage)
    with pytest.raises(CheckpointError) as caught:
        Checkpointer(query.root).rewind(to="epoch=3")
    assert path in str(caught.value) or path == "metadata"
    assert Checkpointer(query.root).read_latest() == latest


def test_the_awaitable_face_does_the_same(query: Query, tmp_path: Path) -> None:
    import asyncio

    async def both() -> None:
        ck = AsyncCheckpointer(query.root)
        made = await ck.fork("latest", tmp_path / "copy", tmp_path / "copy-spark")
        assert made.batch == LAST
        done = await ck.rewind(to=BACK)
        assert done.batch == TO
        assert (await ck.undo_rewind()).batch == LAST
        await ck.close()

    asyncio.run(both())
    assert query.run() == LAST


def test_a_query_moves_from_one_store_to_another(
    query: Query, tmp_path: Path, s3_server: Server, azure_server: Server
) -> None:
    """Each fork is made of the one before, and the last one goes on where the first one was."""
    ck, read = Checkpointer(query.root), query.read
    for server in (s3_server, azure_server):
        place = f"{server.url}/{uuid.uuid4().hex}"
        made = ck.fork("latest", f"{place}/state", f"{place}/spark", server.storage_options)
        assert made.spark_checkpoint == f"{place}/spark"
        ck = Checkpointer(f"{place}/state", server.storage_options)
        assert ck.verify()
        done = ck.rewind(to="latest")
        assert not done.changes
    moved = Query(str(tmp_path / "moved"))
    ck.fork("latest", moved.root, moved.spark)
    assert moved.read == read
    assert moved.run() == LAST + 1
    other = open_files(f"{place}/spark", azure_server.storage_options)
    run_sync(upload.put_once(other, "offsets/9", b"v1\n{}\n1"))
    assert not run_sync(put_new(other, "offsets/9", b"v1\n{}\n2"))
    ck.rewind(to="latest")
    assert ck.rewind(to="latest").cut == ()
    assert run_sync(read_log(other)).offsets == (LAST - 1, LAST)


def test_an_undo_puts_back_nothing_that_spark_cannot_start_from(query: Query) -> None:
    """Spark has since deleted the offsets that it would need below those that would come back."""
    Checkpointer(query.root).rollback(Checkpointer(query.root).list_checkpoints()[TO])
    Checkpointer(query.root).rewind(to="latest")
    for _ in range(3):
        query.run(step=7)
    for number in range(TO + 2):
        for folder in ("offsets", "commits"):
            query.delete(f"{folder}/{number}")
    query.delete(f"offsets/{TO + 2}")
    (kept,) = query.spark.glob(f"rewound/0001/offsets/{TO + 2}")
    kept.unlink()
    assert Checkpointer(query.root).undo_rewind().batch == TO
    while query.run() is None:
        Checkpointer(query.root).rewind(to="latest")
    assert query.read == query.offset(query.numbers("offsets")[-1])
    assert query.total == query.read * (query.read - 1) // 2


def test_a_refusal_names_two_ways_where_spark_went_back(query: Query) -> None:
    """The checkpoint that Spark went back to may be retired by now; the other way always works."""
    for folder in ("offsets", "commits"):
        for number in query.numbers(folder):
            if number > TO + 1:
                query.delete(f"{folder}/{number}")
    assert query.run() is None
    assert query.refusal is not None
    assert f"epoch={TO + 1}" in query.refusal
    assert f"rewind {query.root} latest --spark-checkpoint" in query.refusal
    Checkpointer(query.root).rewind(to="latest")
    assert query.run() == LAST + 1
    assert query.total == query.read * (query.read - 1) // 2
