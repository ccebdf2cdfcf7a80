"""A query that is taken back, forked, or found out of step, on real Spark: the state equals one that never failed."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint import liveness
from pyspark_checkpointer.errors import InvalidStateError, NotFoundError
from pyspark_checkpointer.spark import State, batch, stateful
from pyspark_checkpointer.spark.batch_offsets import QueryOffsets
from pyspark_checkpointer.spark.versions import is_at_least
from tests.spark.conftest import Job
from tests.spark.needs import NAMED_SOURCES, needs_spark
from tests.spark.test_sink import failure, summing, totals


def batches(job: Job, count: int, **options: Any) -> None:
    """So many batches of one file each, of amounts that tell them apart."""
    for n in range(count):
        job.feed(("a", 10**n), (f"k{n % 2}", 1))
    job.run(summing(job.root, **options))


def log_of(job: Job) -> dict[str, str]:
    """Spark's progress: what is in offsets/ and commits/."""
    return {
        str(path.relative_to(job.location)): path.read_text()
        for folder in ("offsets", "commits")
        for path in (job.location / folder).iterdir()
        if path.name.isdecimal()
    }


def test_a_checkpoint_records_where_spark_was(job: Job) -> None:
    batches(job, 3)
    for n in range(3):
        restored = Checkpointer(job.root).restore(epoch=n)
        assert restored is not None
        spark = restored.job.spark  # type: ignore[union-attr]
        assert spark is not None
        assert Path(spark.location) == job.location
        assert spark.offsets == (job.location / "offsets" / str(n)).read_text()
        assert [json.loads(line) for line in spark.before] == ([{"logOffset": n - 1}] if n else [])


def test_after_a_rewind_and_replay_the_state_is_that_of_a_run_that_never_failed(job: Job) -> None:
    batches(job, 5)
    expected = totals(job.root)
    before = log_of(job)
    result = Checkpointer(job.root).rewind(to="epoch=1")
    assert (result.left_batch, result.batch, result.new) == (4, 1, Checkpointer(job.root).read_latest())
    assert totals(job.root) == {"a": 11, "k0": 1, "k1": 1}
    left = {"commits/0", "commits/1", "offsets/0", "offsets/1", "offsets/2"}
    assert log_of(job) == {path: text for path, text in before.items() if path in left}
    kept = job.location / str(result.kept_in)
    assert {path: (kept / path).read_text() for path in result.cut} == {
        path: text for path, text in before.items() if path not in left
    }
    seen: list[int] = []
    job.run(summing(job.root, seen))
    assert seen == [2, 3], "the batch that had been planned, and one for all that came after it"
    assert totals(job.root) == expected
    job.feed(("z", 1))
    job.run(summing(job.root, seen))
    assert totals(job.root) == expected | {"z": 1}
    assert seen == [2, 3, 4]


def test_a_wrong_deploy_is_taken_back_and_replayed(job: Job) -> None:
    batches(job, 3)
    for _ in range(3):
        job.feed(("a", 5))
    job.run(summing(job.root, factor=100))
    assert totals(job.root)["a"] == 111 + 1500
    Checkpointer(job.root).rewind(to="epoch=2")
    job.run(summing(job.root))
    assert totals(job.root)["a"] == 111 + 15


def test_an_undo_puts_everything_back(job: Job) -> None:
    batches(job, 5)
    wanted, before = totals(job.root), log_of(job)
    Checkpointer(job.root).rewind(to="epoch=2")
    undone = Checkpointer(job.root).undo_rewind()
    assert (undone.batch, totals(job.root), log_of(job)) == (4, wanted, before)
    assert not Checkpointer(job.root).undo_rewind().changes
    job.feed(("z", 1))
    job.run(summing(job.root))
    assert totals(job.root) == wanted | {"z": 1}


def test_an_undo_after_a_replay_leaves_that_and_can_be_left_for_it(job: Job) -> None:
    batches(job, 5)
    wanted, before = totals(job.root), log_of(job)
    Checkpointer(job.root).rewind(to="epoch=2")
    job.feed(("z", 1))
    job.run(summing(job.root))
    replayed = totals(job.root)
    assert replayed == wanted | {"z": 1}
    undone = Checkpointer(job.root).undo_rewind()
    assert (totals(job.root), log_of(job)) == (wanted, before)
    Checkpointer(job.root).rewind(to=str(undone.savepoint))
    assert totals(job.root) == replayed
    job.feed(("z", 2))
    job.run(summing(job.root))
    assert totals(job.root) == wanted | {"z": 3}


def test_what_spark_has_deleted_is_written_from_the_checkpoint(job: Job) -> None:
    batches(job, 5)
    wanted = totals(job.root)
    for folder in ("offsets", "commits"):
        for n in range(3):
            for name in (str(n), f".{n}.crc"):
                (job.location / folder / name).unlink()
    result = Checkpointer(job.root).rewind(to="epoch=1")
    assert set(result.written) == {"offsets/0", "offsets/1", "commits/1"}
    job.run(summing(job.root))
    assert totals(job.root) == wanted


def test_a_dry_run_tells_what_would_change_and_changes_nothing(job: Job) -> None:
    batches(job, 4)
    before, latest = log_of(job), Checkpointer(job.root).read_latest()
    planned = Checkpointer(job.root).rewind(to="epoch=1", dry_run=True)
    assert planned.changes
    assert planned.new is None
    assert planned.cut == ("commits/3", "commits/2", "offsets/3")
    assert (log_of(job), Checkpointer(job.root).read_latest()) == (before, latest)
    assert not (job.location / "rewound").exists()
    assert Checkpointer(job.root).savepoints() == []


def test_a_rewind_to_where_both_are_does_nothing(job: Job) -> None:
    batches(job, 2)
    latest = Checkpointer(job.root).read_latest()
    assert not Checkpointer(job.root).rewind(to="latest").changes
    assert Checkpointer(job.root).read_latest() == latest


def test_spark_ahead_is_refused_with_the_command_that_mends_it(job: Job) -> None:
    batches(job, 3)
    wanted = totals(job.root)
    Checkpointer(job.root).rollback(Checkpointer(job.root).restore(epoch=0).id)  # type: ignore[union-attr]
    job.feed(("z", 1))
    message = failure(job, summing(job.root))
    assert "BatchGapError" in message
    assert f"checkpointer rewind {job.root} latest" in message
    assert "its state is at batch 0" in message
    assert "Spark is already at batch 3" in message
    Checkpointer(job.root).rewind(job.location, to="latest")
    job.run(summing(job.root))
    assert totals(job.root) == wanted | {"z": 1}


def tamper(job: Job, batch: int, offset: int) -> None:
    """As if Spark's checkpoint were one that went another way: its batch ended elsewhere."""
    target = job.location / "offsets" / str(batch)
    version, metadata, _ = target.read_text().split("\n")
    target.write_text("\n".join([version, metadata, json.dumps({"logOffset": offset})]))
    (job.location / "offsets" / f".{batch}.crc").unlink()


def test_a_batch_that_begins_elsewhere_than_the_state_ends_is_refused(job: Job) -> None:
    batches(job, 3)
    job.feed(("a", 1000))
    tamper(job, 2, 1)
    message = failure(job, summing(job.root))
    assert "BatchResetError" in message
    assert "other offsets" in message
    Checkpointer(job.root).rewind(to="latest")
    job.run(summing(job.root))
    assert totals(job.root) == {"a": 1111, "k0": 2, "k1": 1}


def test_a_replay_of_another_input_is_not_taken_for_the_same_batch(job: Job) -> None:
    batches(job, 2)
    job.forget_commit(1)
    tamper(job, 1, 0)
    assert "other offsets" in failure(job, summing(job.root))


V2 = {"offsetLog.formatVersion": "2"}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        pytest.param({}, "", id="lines"),
        pytest.param(V2, "", id="numbered"),
        pytest.param(
            V2 | {"queryEvolution.enableSourceEvolution": "true"},
            "files_1",
            id="named",
            marks=needs_spark("4.2", NAMED_SOURCES),
        ),
    ],
)
def test_files_that_take_the_place_of_others_are_not_skipped(
    job: Job, spark: Any, settings: dict[str, str], name: str
) -> None:
    """As after a power cut, or with an older copy put back: Spark's list goes on under the same numbers."""
    for option, value in settings.items():
        spark.conf.set(f"spark.sql.streaming.{option}", value)
    try:
        _files_take_the_place_of_others(job, name)
    finally:
        for option in settings:
            spark.conf.unset(f"spark.sql.streaming.{option}")


def _files_take_the_place_of_others(job: Job, name: str) -> None:
    reader = job.spark.readStream.schema("key string, amount long")

    def run() -> None:
        (job.folder / "input").mkdir(exist_ok=True)
        frame = (reader.name(name) if name else reader).csv(str(job.folder / "input"))
        job.run(summing(job.root), frame)

    for n in range(3):
        job.feed(("a", 10**n))
        run()
    source = f"sources/{name or 0}"
    for folder in (source, "offsets", "commits"):
        for lost in ("2", ".2.crc"):
            (job.location / folder / lost).unlink()
    job.feed(("z", 1))
    for _ in range(2):
        with pytest.raises(Exception, match=rf"has others as {name or 0}/2 than .* rewind .* epoch=1 "):
            run()
    assert totals(job.root) == {"a": 111}
    with pytest.raises(InvalidStateError, match="go back to the batch before"):
        Checkpointer(job.root).rewind(to="latest")
    with pytest.raises(InvalidStateError, match="go back to the batch before"):
        Checkpointer(job.root).fork("latest", f"{job.root}-copy", f"{job.root}-copy-spark")
    Checkpointer(job.root).rewind(to="epoch=1")
    run()
    assert totals(job.root) == {"a": 111, "z": 1}
    (job.location / source / "2").unlink()
    with pytest.raises(InvalidStateError, match="Spark's list of files ends with 1"):
        Checkpointer(job.root).rewind(to="latest")


def test_a_list_of_a_name_that_no_manifest_can_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest with it could not be read again."""
    progress = object.__new__(QueryOffsets)
    progress.__dict__["_logs"] = {"0": ("orders", "log"), "1": ("per-day", "log")}
    monkeypatch.setattr(progress, "_digest", lambda *_: "0" * 64)
    line = '{"logOffset":3}'
    assert dict(progress._digests((line, line), {})) == {"orders/3": "0" * 64}


def test_a_running_query_is_refused(job: Job) -> None:
    refused: list[str] = []

    @stateful(job.root)
    def update(rows: Any, batch_id: int, state: State) -> None:
        state.map("totals")["n"] = batch_id
        if batch_id == 2:
            with pytest.raises(InvalidStateError) as caught:
                Checkpointer(job.root).rewind(to="epoch=0", stopped=True)
            refused.append(str(caught.value))

    for n in range(3):
        job.feed(("a", n))
    job.run(update)
    assert "stop it first" in refused[0]
    assert totals(job.root) == {"n": 2}
    Checkpointer(job.root).rewind(to="epoch=0")


def test_a_driver_that_cannot_be_seen_needs_somebodys_word(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    batches(job, 2)
    monkeypatch.setattr(liveness, "_here", lambda: "elsewhere/0")
    with pytest.raises(InvalidStateError, match="stopped=True"):
        Checkpointer(job.root).rewind(to="epoch=0")
    Checkpointer(job.root).rewind(to="epoch=0", stopped=True)


def test_a_driver_of_this_machine_is_looked_for(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    batches(job, 2)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        monkeypatch.setattr(batch, "this_driver", lambda: f"{other.pid}@{liveness._here()}")
        job.feed(("a", 1))
        job.run(summing(job.root))
        with pytest.raises(InvalidStateError, match="still there"):
            Checkpointer(job.root).rewind(to="epoch=0")
    Checkpointer(job.root).rewind(to="epoch=0")  # it has ended


def test_a_query_with_state_of_sparks_own_is_refused(job: Job) -> None:
    @stateful(job.root)
    def update(rows: Any, batch_id: int, state: State) -> None:
        for row in rows.collect():
            state.map("totals")[row.key] = row["count"]

    job.feed(("a", 1))
    job.feed(("a", 1))
    job.run(update, job.source().groupBy("key").count(), "update")
    for go in (
        lambda: Checkpointer(job.root).rewind(to="epoch=0"),
        lambda: Checkpointer(job.root).fork("latest", job.root + "-2", job.folder / "spark-2"),
    ):
        with pytest.raises(InvalidStateError, match="stateStoreSave" if is_at_least("4.0") else "operator 0"):
            go()
    assert not Path(job.root + "-2").exists()


def test_another_querys_checkpoint_is_refused(new_job: Callable[[str], Job]) -> None:
    one, two = new_job("one"), new_job("two")
    for job in (one, two):
        batches(job, 2)
    with pytest.raises(InvalidStateError, match="give the checkpointLocation of that query"):
        Checkpointer(one.root).rewind(two.location, to="epoch=0")


def test_a_fork_and_its_origin_do_not_disturb_each_other(job: Job, spark: Any) -> None:
    batches(job, 4)
    wanted = totals(job.root)
    Checkpointer(job.root).savepoint("canary", Checkpointer(job.root).restore(epoch=1).id)  # type: ignore[union-attr]
    made = Checkpointer(job.root).fork("canary", job.root + "-copy", job.folder / "spark-copy")
    copy = Job(spark, job.folder, "spark-copy", "root-copy", job._days)
    assert (copy.root, made.batch) == (made.root, 1)
    assert totals(copy.root) == {"a": 11, "k0": 1, "k1": 1}
    job.feed(("a", 5))
    seen: list[int] = []
    job.run(summing(job.root))
    copy.run(summing(copy.root, seen))
    assert totals(copy.root) == totals(job.root) == wanted | {"a": wanted["a"] + 5}
    assert seen[0] == 2
    ids = {json.loads((folder / "metadata").read_text())["id"] for folder in (job.location, copy.location)}
    assert len(ids) == 2
    assert made.query_id in ids
    copy.feed(("only", 1))
    copy.run(summing(copy.root))
    assert "only" not in totals(job.root)
    job.run(summing(job.root))
    assert totals(copy.root) == totals(job.root)
    with pytest.raises(InvalidStateError, match="holds a store already"):
        Checkpointer(job.root).fork("canary", copy.root, job.folder / "spark-copy")
    Checkpointer(copy.root).rewind(to=f"epoch={made.batch}")
    copy.run(summing(copy.root))
    assert totals(copy.root) == totals(job.root)


def test_the_state_of_one_query_does_not_fit_the_progress_of_its_fork(job: Job, spark: Any) -> None:
    batches(job, 2)
    Checkpointer(job.root).fork("latest", job.root + "-copy", job.folder / "spark-copy")
    crossed = Job(spark, job.folder, "spark-copy", "root", job._days)
    job.feed(("a", 1))
    assert "this is query" in failure(crossed, summing(crossed.root))


def test_what_is_not_there_is_said(job: Job) -> None:
    batches(job, 2)
    with pytest.raises(NotFoundError, match="epoch 7"):
        Checkpointer(job.root).rewind(to="epoch=7")
    with pytest.raises(InvalidStateError, match="nothing to undo"):
        Checkpointer(job.root).undo_rewind()
    shutil.rmtree(job.location)
    with pytest.raises(ValueError, match="expected a checkpointLocation"):
        Checkpointer(job.root).rewind(to="epoch=0")
