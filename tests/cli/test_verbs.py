"""What each verb prints, over every kind of store, and what it changes."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import click
import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.cli.app import VERBS
from pyspark_checkpointer.errors import FencedError
from tests.cli.conftest import Run, write_history
from tests.conftest import Root
from tests.damage import flip
from tests.world import put


def test_every_verb_works_on_every_store(any_root: Root, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    if any_root.storage_options:
        monkeypatch.setenv("CHECKPOINTER_STORAGE_OPTIONS", json.dumps(any_root.storage_options))
    with Checkpointer(any_root.url, any_root.storage_options or None) as ck:
        write_history(ck)
    url = any_root.url
    assert [found["epoch"] for found in run("list", url, "--json").json] == [10, 11, 12]
    assert run("show", url, "good", "--json").json["savepoints"] == ["good"]
    assert run("tree", url, "--json").json["operators"] == ["blob", "seen"]
    assert run("diff", url, "0000000001", "--json").json["bytes_added"] > 0
    assert run("verify", url, "--json").json["findings"] == []
    assert run("stats", url, "--json").json["checkpoints"] == 3
    assert [record["text"] for record in run("cat", url, "blob", "--json").json] == ["blob 2", "blob 3"]
    assert run("savepoint", url, "last", "--json").json["name"] == "last"
    assert [point["name"] for point in run("savepoint", url, "--json").json] == ["good", "last"]
    assert run("savepoint", url, "--delete", "last", "--yes", "--json").json == {"deleted": "last"}
    assert run("delete", url, "0000000001", "--yes", "--json").json["deleted"].startswith("0000000001-")
    rolled = run("rollback", url, "good", "--yes", "--json").json
    assert rolled["id"].startswith("0000000004-")
    with Checkpointer(any_root.url, any_root.storage_options or None) as ck:
        restored = ck.restore()
        assert restored is not None
        assert str(restored.id) == rolled["id"]
        assert restored.keyed("seen")["n"] == 2


def test_sizes_of_many_operators_need_their_chains(tmp_path: Path, run: Run) -> None:
    """Operators that a commit leaves alone stand in segments, where they are many."""
    root = tmp_path / "root"
    with Checkpointer(root) as ck:
        for length in range(2):
            with ck.begin() as cp:
                for number in range(40 if length == 0 else 1):
                    for partition in range(16):
                        cp.snapshot(f"map {number}", partition, b"%d" % length)
    first, newest = run("list", root, "--json").json
    assert first["bytes"] > 0
    assert newest["bytes"] is None
    assert run("list", root, "--json", "--sizes").json[1]["bytes"] > first["bytes"]
    said = " ".join(run("list", "--help").out.split())
    assert "or of many operators" in said
    assert "unless you give --sizes" in said


class Files(LocalFileSystem):
    """A file system without a store of its own in this library."""

    protocol = "cli-test"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("cli-test://"))


def test_a_store_without_fencing_is_read_at_once_and_written_when_told(tmp_path: Path, run: Run) -> None:
    fsspec.register_implementation("cli-test", Files, clobber=True)
    root = f"cli-test://{tmp_path}/root"
    with Checkpointer(root, fencing="none") as ck:
        write_history(ck)
    assert run("list", root).status == 0
    assert run("savepoint", root, "new").status == 2
    assert run("savepoint", root, "new", "--fencing", "none").status == 0
    assert [point["name"] for point in run("savepoint", root, "--fencing", "none", "--json").json] == ["good", "new"]


@pytest.mark.parametrize(
    "args",
    [("list",), ("show",), ("tree",), ("diff", "0000000001"), ("verify",), ("stats",), ("cat", "seen"), ("savepoint",)],
)
def test_plain_text_has_neither_colour_nor_boxes(root: Path, run: Run, args: tuple[str, ...]) -> None:
    done = run(args[0], root, *args[1:])
    assert (done.status, done.err) == (0, "")
    assert not set(done.out) & set("\x1b─│└├━")
    assert all(line == line.rstrip() for line in done.out.splitlines())


def test_a_list_in_plain_text_has_stable_columns(golden: Path, run: Run) -> None:
    lines = [line.split("  ") for line in run("list", golden).out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert [row[:3] + row[4:] for row in cells] == [
        ["ID", "EPOCH", "CREATED", "OPERATORS", "PARTITIONS", "SIZE", "OWN", "STATE", "SAVEPOINTS"],
        ["0000000001-0c5442af", "0", "2024-01-02T00:01:00Z", "4", "7", "2.8 KiB", "2.8 KiB", "kept", "-"],
        [
            "0000000002-f4bb65ce",
            "1",
            "2024-01-02T00:02:00Z",
            "4",
            "7",
            "4.7 KiB",
            "1.9 KiB",
            "kept",
            "before the flood",
        ],
        ["0000000004-9e2b5704", "3", "2024-01-02T00:05:00Z", "4", "605", "?", "?", "committed", "-"],
        ["0000000005-c3dc518a", "4", "2024-01-02T00:07:00Z", "4", "605", "?", "?", "prepared", "-"],
    ]


def test_sizes_of_long_partition_lists_are_told_on_demand(golden: Path, run: Run) -> None:
    *_, committed, _ = run("list", golden, "--json").json
    assert (committed["partitions"], committed["bytes"], committed["own_bytes"]) == (605, None, None)
    *_, committed, _ = run("list", golden, "--json", "--sizes").json
    assert committed["partitions"] == 604  # one of 600 was dropped
    files = [
        path for path in golden.rglob("*") if f"{committed['id']}." in path.name and path.parent.name != "manifests"
    ]
    own = sum(path.stat().st_size for path in files if "catalog" not in path.parts)
    assert committed["own_bytes"] == own > 0


@pytest.mark.parametrize(
    ("wanted", "sequence"),
    [
        ("0000000002", 2),
        ("0000000002-f4", 2),
        ("2-f4", 2),
        ("0000000002-f4bb65ce", 2),
        ("before the flood", 2),
        ("savepoint=before the flood", 2),
        ("epoch=1", 2),
        ("epoch=3", 4),
        ("latest", 4),
        ("prepared", 5),
        ("5-", 5),
        ("0000000005-c3dc518a", 5),
    ],
)
def test_a_checkpoint_can_be_named_in_many_ways(golden: Path, run: Run, wanted: str, sequence: int) -> None:
    assert run("show", golden, wanted, "--json").json["sequence"] == sequence


def test_show_says_everything(golden: Path, run: Run) -> None:
    shown = run("show", golden, "0000000002", "--json").json
    assert shown["positions"] == {"orders": {"0": "1031"}}
    assert shown["properties"] == {"model": "v7"}
    assert shown["watermark"] == "2024-01-02T00:00:00Z"
    assert shown["operators"] == ["naïve", "seen", "table", "totals"]
    assert shown["contents"][1] == {
        "name": "seen",
        "codec": "msgpack+zstd",
        "partitioner": "crc32-key-1",
        "declared_partitions": 2,
        "partitions": 2,
        "chain_lengths": {"minimum": 1, "median": 1, "maximum": 2},
        "snapshot_bytes": 349,
        "delta_bytes": 35,
        "records": 16,
        "objects": 2,
        "object_bytes": 384,
        "schema": None,
    }
    assert shown["biggest_partitions"][0]["operator"] == "table"
    text = run("show", golden, "0000000002").out
    for part in ("position orders  ", '{"0": "1031"}', "before the flood", "crc32-key-1", "1/1/2", "349 B"):
        assert part in text


def test_a_tree_goes_down_to_slices_and_says_what_it_leaves_out(golden: Path, run: Run) -> None:
    lines = run("tree", golden, "0000000002", "--operator", "seen").out.splitlines()
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 4, 6, 4, 6, 6]
    assert lines[3].endswith("sha256 1e2320fcbdcd · by 0000000001-0c5442af · byte 0 of a pack of 349 B")
    assert "and 579 more partitions: add --all" in run("tree", golden).out
    whole = run("tree", golden, "--all", "--json").json["contents"]
    assert [(len(op["contents"]), op["left_out"]) for op in whole] == [(2, 0), (2, 0), (1, 0), (599, 0)]


def test_a_difference_is_no_finding(golden: Path, run: Run) -> None:
    done = run("diff", golden, "0000000001", "0000000004")
    assert done.status == 0
    rows = [line.split() for line in done.out.splitlines()[2:-1]]
    assert [row[:3] for row in rows] == [
        ["operator", "naïve", "removed"],
        ["operator", "seen", "changed"],
        ["operator", "table", "changed"],
        ["operator", "totals", "changed"],
        ["operator", "wide", "added"],
        ["position", "orders", "changed"],
    ]
    assert "599 added (0-299, 301-599)" in done.out
    assert "nothing is different" in run("diff", golden, "0000000001", "0000000001").out


def test_cat_shows_every_value_in_a_form_of_its_own(golden: Path, run: Run) -> None:
    lines = [json.loads(line) for line in run("cat", golden, "seen", "--checkpoint", "0000000002").out.splitlines()]
    assert {"partition": 1, "key": "text", "value": "changed"} in lines
    assert {"partition": 0, "key": {"$bytes": "Ynl0ZXM="}, "value": {"$bytes": "AP8="}} in lines
    assert {"partition": 1, "key": {"$decimal": "1.10"}, "value": {"$decimal": "-0E+3"}} in lines
    assert len(lines) == 13


def test_cat_shows_rows_and_bytes(golden: Path, run: Run) -> None:
    rows = run("cat", golden, "table", "--checkpoint", "epoch=3", "--json").json
    assert {"partition": 0, "row": {"k": None, "n": 4, "amount": {"$decimal": "-0.01"}}} in rows
    assert len(rows) == 7
    assert run("cat", golden, "table", "2", "--limit", "1").out.count("\n") == 1
    assert run("cat", golden, "totals", "--checkpoint", "savepoint=before the flood", "--json").json == [
        {"partition": 0, "kind": "snapshot", "text": "zero"},
        {"partition": 0, "kind": "delta", "text": "zero, changed"},
        {"partition": 1, "kind": "snapshot", "text": "one"},
        {"partition": 1, "kind": "delta", "text": "one, changed"},
    ]
    assert run("cat", golden, "totals", "--limit", "0", "--json").json == []


def test_bytes_that_are_no_text_are_shown_in_base64(tmp_path: Path, run: Run) -> None:
    with Checkpointer(tmp_path) as ck:
        put(ck, b"\xff\x00")
    assert run("cat", tmp_path, "op", "--json").json == [{"partition": 0, "kind": "snapshot", "base64": "/wA="}]


def test_verify_says_what_is_damaged_and_whom_it_hurts(root: Path, run: Run) -> None:
    target = next((root / "artifacts" / "blob").rglob("0000000002-*"))
    target.write_bytes(b"x" * target.stat().st_size)
    done = run("verify", root, "--json")
    assert done.status == 1
    (finding,) = done.json["findings"]
    assert finding["path"] == target.relative_to(root).as_posix()
    assert [known[:10] for known in finding["checkpoints"]] == ["0000000002", "0000000003"]
    text = run("verify", root)
    assert (text.status, text.err) == (1, "")
    assert "1 finding" in text.out
    assert "damaged" in text.out
    assert run("verify", root, "0000000001").status == 0
    assert run("verify", root, "--operator", "seen").status == 0


def test_verify_of_one_checkpoint_warns_of_damage_that_does_not_hurt_it(root: Path, run: Run) -> None:
    (second,) = (root / "manifests").glob("0000000002-*")
    flip(second)
    done = run("verify", root, "latest")
    assert (done.status, "all is well" in done.out) == (0, True)
    assert f"warning, elsewhere: manifests/{second.name}" in done.err
    told = run("verify", root, "latest", "--json")
    assert (told.status, told.json["findings"]) == (0, [])
    assert [finding["path"] for finding in told.json["elsewhere"]] == [f"manifests/{second.name}"]
    assert run("verify", root).status == 1


def test_verify_reports_a_damaged_pointer(root: Path, run: Run) -> None:
    (root / "_latest").write_bytes(b"{}")
    done = run("verify", root, "--json")
    assert (done.status, done.json["findings"][0]["path"]) == (1, "_latest")


def test_stats_count_what_is_there(root: Path, golden: Path, run: Run) -> None:
    found = run("stats", root, "--json").json
    files = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert (found["objects"], found["bytes"]) == (len(files), sum(path.stat().st_size for path in files))
    assert {held["kind"] for held in found["held"]} >= {"snapshot", "pack"}
    assert run("stats", golden, "--json").json["operators"][0]["chain_lengths"]["maximum"] == 2


def test_only_a_rollback_stops_a_running_job(root: Path, run: Run) -> None:
    with Checkpointer(root) as job:
        job.restore()
        put(job, b"running")
        for args in (("list",), ("verify",), ("savepoint", "new"), ("delete", "0000000001", "--yes"), ("cat", "seen")):
            assert run(args[0], root, *args[1:]).status == 0
        assert run("savepoint", root, "--delete", "new", "--yes").status == 0
        put(job, b"still running")
        assert run("rollback", root, "good", "--yes").status == 0
        with pytest.raises(FencedError):
            put(job, b"fenced")


@pytest.mark.parametrize(
    "args", [("rollback", "0000000001"), ("delete", "0000000001"), ("savepoint", "--delete", "good")]
)
def test_what_destroys_wants_a_yes(root: Path, run: Run, args: tuple[str, ...]) -> None:
    before = (root / "_latest").read_bytes()
    done = run(args[0], root, *args[1:])
    assert (done.status, done.out) == (2, "")
    assert "--yes" in done.err
    assert (root / "_latest").read_bytes() == before


def test_what_a_job_wrote_cannot_take_over_the_terminal(tmp_path: Path, run: Run) -> None:
    with Checkpointer(tmp_path) as ck, ck.begin() as cp:
        cp.snapshot("op", 0, "\x9b31mred [bold]ü".encode())
        cp.properties["\x1b[31m"] = "\x1b[2J [bold] \u061c\U000e0041"
    for args in (("show",), ("show", "--json"), ("cat", "op"), ("diff", "latest")):
        done = run(args[0], tmp_path, *args[1:])
        assert done.status == 0
        assert not set(done.out) & {"\x1b", "\x9b", "\u061c", "\U000e0041"}
    assert run("show", tmp_path, "--json").json["properties"]["\x1b[31m"].endswith("[bold] \u061c\U000e0041")
    assert run("cat", tmp_path, "op", "--json").json[0]["text"] == "\x9b31mred [bold]ü"
    assert "red [bold]ü" in run("cat", tmp_path, "op").out


@pytest.mark.parametrize("command", VERBS, ids=lambda command: command.name)
def test_help_has_examples_that_can_be_typed(command: click.Command, run: Run) -> None:
    done = run(command.name, "--help")
    assert done.status == 0
    examples = [
        line.split("checkpointer ")[1] for line in done.out.splitlines() if line.startswith("    checkpointer ")
    ]
    assert examples
    for example in examples:
        name, *args = shlex.split(example.split("|")[0])
        assert name == command.name
        command.make_context(name, args)


def test_the_help_names_every_verb_whole(run: Run) -> None:
    text = run("--help").out
    for command in VERBS:
        line = next(line for line in text.splitlines() if line.startswith(f"  {command.name} "))
        assert line.endswith(".")
        assert "..." not in line


def test_a_property_of_another_type_is_a_difference(tmp_path: Path, run: Run) -> None:
    """To Python 1, 1.0 and True are equal, and to readers of JSON they are not."""
    with Checkpointer(tmp_path) as client:
        for value in (1, True, 1.0):
            with client.begin() as cp:
                cp.properties["strict"] = {"is": [value]}
        ids = client.list_checkpoints()
    for old, new in pairwise(ids):
        (difference,) = run("diff", tmp_path, old, new, "--json").json["properties"]
        assert "strict" in str(difference)
    assert run("diff", tmp_path, ids[0], ids[0], "--json").json["properties"] == []


def test_the_help_names_the_verbs_that_take_the_prepared_checkpoint_as_the_page_does(run: Run) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    (row,) = re.findall(r"^ *\| `prepared` \| (.*) \|$", page, re.MULTILINE)
    told = " ".join(run("export", "--help").out.split())
    (taking,) = re.findall(r"Only (.*?) also take prepared", told)
    assert re.split(", | and ", taking) == re.findall("`(.*?)`", row)
