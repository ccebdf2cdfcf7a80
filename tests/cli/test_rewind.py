"""`checkpointer rewind` and `checkpointer fork`, over a query whose Spark is a model."""

import json
import shutil
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint import liveness
from pyspark_checkpointer.cli.verb import Opened
from tests.admin.streaming.spark_model import LAST, Query, history
from tests.cli.conftest import Run


@pytest.fixture
def query(tmp_path: Path) -> Query:
    history(str(tmp_path / "root"))
    return Query(str(tmp_path / "root"))


def test_a_dry_run_shows_what_would_change(query: Query, run: Run) -> None:
    before = query.files()
    shown = run("rewind", query.root, "epoch=1", "--dry-run")
    assert (shown.status, shown.err) == (0, "")
    assert f"batch {LAST} → 1" in shown.out
    assert "commits/3, commits/2, offsets/4, offsets/3" in shown.out
    assert "Nothing was changed." in shown.out
    assert str(query.spark) in shown.out
    assert query.files() == before


def test_a_rewind_says_what_it_did_and_how_to_go_on(query: Query, run: Run) -> None:
    done = run("rewind", query.root, "epoch=1", "--yes")
    assert done.status == 0
    assert "it goes on with batch 2" in done.out
    assert "rewound/0001/" in done.out
    assert "before-rewind-5" in done.out
    assert query.run() == 2
    assert "nothing to do" in run("rewind", query.root, "latest", "--yes").out


def test_only_a_rewind_says_that_batches_run_again(query: Query, run: Run) -> None:
    assert "Batches above 1 run again" in run("rewind", query.root, "epoch=1", "--yes").out
    undone = run("rewind", query.root, "--undo", "--yes").out
    assert f"goes on with batch {LAST + 1}" in undone
    assert "run again" not in undone


def test_json_has_all_of_it(query: Query, run: Run) -> None:
    done = run("rewind", query.root, "epoch=1", "--yes", "--json").json
    assert (done["left_batch"], done["batch"], done["spark_checkpoint"]) == (LAST, 1, str(query.spark))
    assert done["new"] == str(Checkpointer(query.root).read_latest())
    undone = run("rewind", query.root, "--undo", "--yes", "--json").json
    assert (undone["batch"], undone["written"]) == (LAST, ["offsets/3", "offsets/4", "commits/2", "commits/3"])


def test_what_was_typed_wrong_is_said_before_anything_is_done(query: Query, run: Run) -> None:
    for args in ((), ("epoch=1", "--undo"), ("epoch=1",), ("1", "--yes")):
        assert run("rewind", query.root, *args).status == 2, args
    assert run("rewind", query.root, "at=noon", "--yes").status == 2
    assert run("rewind", query.root, "epoch=9", "--yes").status == 1
    assert run("rewind", query.root, "epoch=1", "--spark-checkpoint", query.root, "--yes").status == 2
    assert "nothing to undo" in run("rewind", query.root, "--undo", "--yes").err
    assert Checkpointer(query.root).restore().epoch == LAST  # type: ignore[union-attr]


def test_a_driver_that_cannot_be_seen_needs_a_word(query: Query, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_here", lambda: "elsewhere/0")
    refused = run("rewind", query.root, "epoch=1", "--yes")
    assert refused.status == 1
    assert "--stopped" in refused.err
    told = json.loads(run("rewind", query.root, "epoch=1", "--yes", "--json").err)["error"]
    assert (told["type"], told["status"]) == ("InvalidStateError", 1)
    assert run("rewind", query.root, "epoch=1", "--yes", "--stopped").status == 0


def test_the_question_and_the_refusal_name_the_folder_that_is_cut(
    query: Query, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A copy of a root names the checkpointLocation of the first root."""
    copy, asked = tmp_path / "rehearsal", list[str]()
    shutil.copytree(query.root, copy)
    monkeypatch.setattr(Opened, "check_can_ask", lambda *_: None)
    monkeypatch.setattr("click.confirm", lambda question, **__: asked.append(question))  # which is no yes
    assert run("rewind", copy, "epoch=1").status != 0
    assert f"with Spark's progress in {query.spark}," in asked[0]
    monkeypatch.setattr(liveness, "_here", lambda: "elsewhere/0")
    assert str(query.spark) in run("rewind", query.root, "epoch=1", "--yes").err


def test_a_rewind_of_an_export_asks_which_progress_is_meant(query: Query, run: Run, tmp_path: Path) -> None:
    before, copy = query.files(), str(tmp_path / "copy")
    assert run("export", query.root, "epoch=1", copy).status == 0
    refused = run("rewind", copy, "latest", "--yes")
    assert (refused.status, "--spark-checkpoint" in refused.err) == (2, True)
    assert query.files() == before
    assert run("rewind", copy, "latest", "--yes", "--spark-checkpoint", query.spark).status == 0
    assert query.files() != before


def test_a_rewind_on_an_old_copy_of_the_pointer_is_refused(query: Query, run: Run) -> None:
    pointer = Path(query.root) / "_latest"
    old = pointer.read_bytes()
    with Checkpointer(query.root) as client:
        for _ in range(2):
            client.restore()
            client.begin().commit()
    pointer.write_bytes(old)
    before = query.files()
    for args in (("epoch=1",), ("epoch=1", "--dry-run"), ("--undo",)):
        refused = run("rewind", query.root, *args, "--yes")
        assert (refused.status, "old copy" in refused.err) == (1, True)
    assert query.files() == before


def test_a_fork_is_a_query_of_its_own(query: Query, run: Run, tmp_path: Path) -> None:
    copy = Query(str(tmp_path / "copy"))
    made = run("fork", query.root, "epoch=1", copy.root, copy.spark, "--json").json
    assert made["query_id"] == json.loads((copy.spark / "metadata").read_text())["id"]
    assert copy.run() == 2
    refused = run("fork", query.root, "epoch=1", copy.root, copy.spark)
    assert (refused.status, "holds a store already" in refused.err) == (1, True)
    other = Query(str(tmp_path / "other"))
    said = run("fork", query.root, "latest", other.root, other.spark)
    assert f"goes on with batch {LAST + 1}" in said.out
    assert "a sink of its own" in said.out  # the tokens of the first query do not tell it what is written already
    assert f"wrote above batch {LAST}" in said.out
    assert other.run() == LAST + 1


def test_show_says_where_spark_was(query: Query, run: Run) -> None:
    assert str(query.spark) in run("show", query.root).out
    assert run("show", query.root, "--json").json["job"]["spark"]["before"] == ['{"at": 40}']
