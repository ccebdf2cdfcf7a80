"""The verbs that clean, copy and repair."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.manifests import object_paths
from tests.cli.conftest import Run
from tests.conftest import Root
from tests.world import line, put


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """Return a root with ten checkpoints, the third of them savepoint "third", and the rest of an aborted attempt."""
    with Checkpointer(tmp_path / "long") as ck:
        ids = line(ck, 9)
        ck.savepoint("third", ids[2])
        cp = ck.begin()
        cp.snapshot("op", 0, b"x" * 5000)
        cp.prepare().abort()
        put(ck, b"10")
    return tmp_path / "long"


def files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")}


def sequences(root: Path) -> list[int]:
    with Checkpointer(root) as ck:
        return [checkpoint.sequence for checkpoint in ck.list_checkpoints()]


def test_a_plan_shows_what_would_go_and_deletes_nothing(long: Path, run: Run) -> None:
    before = files(long)
    found = run("plan", long, "--keep-last", 2, "--json").json
    assert [c["id"][:10] for c in found["checkpoints"] if c["action"] == "keep"] == [
        "0000000003",
        "0000000009",
        "0000000010",
    ]
    totals: dict[str, int] = {}
    for total in found["totals"]:
        totals[total["action"]] = totals.get(total["action"], 0) + total["objects"]
    assert totals["later"] == 14
    assert totals["delete"] == 2
    rows = run("plan", long, "--keep-last", 2, "--rows", "--json").json
    assert len(rows) == len(before) == sum(totals.values())
    assert sum(row["action"] == "delete" for row in rows) == 2
    text = run("plan", long, "--keep-last", 2)
    assert (text.status, text.err) == (0, "")
    assert "savepoint 'third'" in text.out
    assert "retired by this plan" in text.out
    assert "0000000003" in run("plan", long, "--rows").out
    assert files(long) == before


def test_clean_does_it(long: Path, run: Run) -> None:
    done = run("clean", long, "--keep-last", 2, "--grace", "0s", "--yes", "--json").json
    assert len(done["retired"]) == 7
    assert done["deleted"]["objects"] == 16
    assert sequences(long) == [3, 9, 10]
    assert run("verify", long).status == 0
    again = run("clean", long, "--keep-last", 1, "--yes")
    assert "every eighth of the grace period" in again.out


def test_clean_says_what_goes_later(long: Path, run: Run) -> None:
    text = run("clean", long, "--keep-last", 2, "--yes")
    assert "7 checkpoints retired, 2 objects" in text.out
    assert "14 objects with" in text.out
    assert "go after the grace period" in text.out


def test_a_saved_plan_is_done_or_refused(long: Path, tmp_path: Path, run: Run) -> None:
    plan = tmp_path / "cleanup.plan"
    assert run("plan", long, "--keep-last", 2, "--grace", "0s", "-o", plan).status == 0
    with Checkpointer(long) as ck:
        put(ck, b"11")
    assert run("clean", long, "--plan", plan, "--yes", "--json").json["deleted"]["objects"] == 16
    assert sequences(long) == [3, 9, 10, 11]
    again = tmp_path / "again.plan"
    assert run("plan", long, "--keep-last", 1, "--grace", "0s", "-o", again).status == 0
    with Checkpointer(long) as ck:
        ck.savepoint("in time", ck.list_checkpoints()[1])
    refused = run("clean", long, "--plan", again, "--yes")
    assert refused.status == 1
    assert "make a new plan" in refused.err
    assert sequences(long) == [3, 9, 10, 11]


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("clean", "--keep-last", "2"), 2, "--yes"),
        (("clean", "--keep-last", "0", "--yes"), 2, "keep_last=0"),
        (("clean", "--hourly", "soon", "--yes"), 2, "'soon': write 90s"),
        (("clean", "--daily", "3", "--yes"), 2, "1d12h"),
        (("clean", "--daily", "99999999999w", "--yes"), 2, "too long"),
        (("clean", "--plan", "/nowhere", "--yes"), 2, "/nowhere: No such file"),
        (("clean", "--plan", __file__, "--yes"), 1, "expected a saved plan"),
        (("clean", "--plan", __file__, "--keep-last", "2", "--yes"), 2, "cannot be combined with rules"),
        (("clean", "--plan", __file__, "--grace", "2h", "--yes"), 2, "cannot be combined with rules"),
        (("repair", "--to", "0000000003-00000000", "--yes"), 1, "rollback"),
        (("repair", "--to", "third", "--yes"), 1, "there is nothing to repair"),
        (("export", "third", "{root}"), 1, "export to an empty root"),
        (("export", "fourth", "{root}-copy"), 1, "the savepoints are 'third'"),
    ],
)
def test_mistakes_change_nothing(long: Path, run: Run, args: tuple[str, ...], status: int, said: str) -> None:
    before = {path: path.read_bytes() for path in files(long)}
    verb, *rest = (arg.format(root=long) if "{root}" in arg else arg for arg in args)
    done = run(verb, long, *rest)
    assert (done.status, done.out) == (status, "")
    assert said in done.err
    assert "Traceback" not in done.err
    assert {path: path.read_bytes() for path in files(long)} == before


def test_a_plan_of_another_store_is_refused(long: Path, root: Path, tmp_path: Path, run: Run) -> None:
    plan = tmp_path / "cleanup.plan"
    run("plan", root, "-o", plan)
    done = run("clean", long, "--plan", plan, "--yes")
    assert done.status == 2
    assert "was made for" in done.err


def test_an_export_gives_the_same_state(long: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = run("export", long, "third", tmp_path / "copy", "--json").json
    assert copied["content_of"].startswith("0000000003-")
    with Checkpointer(tmp_path / "copy") as ck:
        restored = ck.restore()
        assert restored is not None
        assert restored.operator("op").partition(0) == [b"3"]
    assert "is committed" in run("export", long, "latest", tmp_path / "other").out
    monkeypatch.chdir(tmp_path)
    assert run("export", long, "latest", "typed", "--json").json["root"] == str(tmp_path / "typed")


def test_repair_lists_the_candidates_and_commits_the_chosen_one(long: Path, run: Run) -> None:
    (long / "_latest").unlink()
    lost = run("list", long)
    assert lost.status == 3
    assert "see `checkpointer repair`" in lost.err
    found: list[dict[str, Any]] = run("repair", long, "--json").json
    assert len(found) >= 10
    assert found[0]["id"].startswith("0000000010-")
    text = run("repair", long)
    assert (text.status, text.err) == (0, "")
    assert "may never have been committed" in text.out
    assert "savepoint 'third'" in text.out
    assert run("repair", long, "--to", found[0]["id"]).status == 2
    assert not (long / "_latest").exists()
    done = run("repair", long, "--to", found[0]["id"], "--yes", "--json").json
    assert done["content_of"] == found[0]["id"]
    with Checkpointer(long) as ck:
        restored = ck.restore()
        assert restored is not None
        assert restored.operator("op").partition(0) == [b"10"]
        assert [savepoint.name for savepoint in ck.savepoints()] == ["third"]


def test_a_root_without_anything_says_so(tmp_path: Path, run: Run) -> None:
    (tmp_path / "_latest").write_bytes(b"what is left of it")
    assert "nothing to repair to" in run("repair", tmp_path).out


def test_the_new_verbs_work_on_every_store(any_root: Root, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    if any_root.storage_options:
        monkeypatch.setenv("CHECKPOINTER_STORAGE_OPTIONS", json.dumps(any_root.storage_options))
    options = any_root.storage_options or None
    with Checkpointer(any_root.url, options) as ck:
        line(ck, 4)
    assert run("plan", any_root.url, "--keep-last", 1, "--json").json["checkpoints"][-1]["action"] == "keep"
    assert len(run("clean", any_root.url, "--keep-last", 1, "--yes", "--json").json["retired"]) == 3
    target = f"{any_root.url}-copy"
    given = ["--target-storage-options", json.dumps(options)] if options else []
    run("export", any_root.url, "latest", target, *given)
    with Checkpointer(target, options) as copy:
        restored = copy.restore()
        assert restored is not None
        assert restored.operator("op").partition(0) == [b"4"]
    assert run("repair", any_root.url, "--json").json[0]["id"].startswith("0000000004-")


@pytest.fixture
def holed(tmp_path: Path) -> tuple[Path, list[str]]:
    """Return a root with nine checkpoints, of which the sixth lost its manifest, and their ids; 2 is a savepoint."""
    with Checkpointer(tmp_path / "holed") as ck:
        ids = line(ck, 9)
        ck.savepoint("second", ids[1])
    (tmp_path / "holed" / object_paths.manifest(ids[5])).unlink()
    return tmp_path / "holed", [str(one) for one in ids]


def test_a_delete_names_the_older_ones_that_go_with_it(holed: tuple[Path, list[str]], run: Run) -> None:
    root, ids = holed
    done = run("delete", root, ids[5], "--yes", "--json").json
    assert done == {"deleted": ids[5], "older": [ids[0], *ids[2:5]]}
    assert sequences(root) == [2, 7, 8, 9]
    assert run("delete", root, ids[6], "--yes", "--json").json == {"deleted": ids[6], "older": []}


def test_a_delete_says_in_words_how_many_older_ones_go_with_it(holed: tuple[Path, list[str]], run: Run) -> None:
    root, ids = holed
    text = run("delete", root, ids[5], "--yes").out
    assert f"{ids[5]} is deleted, and with it 4 older checkpoints, {ids[0]} to {ids[4]}" in " ".join(text.split())


def test_what_a_manifest_lost_costs_is_said_where_it_is_missed(holed: tuple[Path, list[str]], run: Run) -> None:
    root, _ = holed
    done = run("list", root)
    assert done.status == 3
    assert "older ones go too" in done.err
