"""`--json`: each verb prints what `docs/json.md` says, with any arguments, and errors as JSON too."""

import io
import json
import re
import secrets
import sys
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.cli import lists, schemas, screen, verb
from pyspark_checkpointer.cli.app import checkpointer
from pyspark_checkpointer.cli.completion import BashWords
from pyspark_checkpointer.errors import (
    ConflictError,
    DependencyError,
    MalformedError,
    OutcomeUnknownError,
    StoreRefusedError,
    ThrottlingError,
)
from tests.cli import schema
from tests.cli.conftest import Run
from tests.cli.every import calls
from tests.damage import flip
from tests.docs.pages import Reader, blocks

DOCUMENT = Path(__file__).parents[2] / "docs" / "json.md"


def test_the_page_is_made_of_the_schema() -> None:
    assert DOCUMENT.read_text() == schema.page(), "run: python -m tests.cli.schema > docs/json.md"


def test_every_verb_prints_what_the_schema_says(tmp_path: Path, golden: Path, run: Run) -> None:
    printed = dict(schemas.PRINTED)
    seen: set[str] = set()
    for call in calls(tmp_path):
        done = run(call.form.split()[0], *call.args, "--json")
        assert done.status == call.status, (call, done)
        assert schema.faults(done.json, printed[call.form], call.form) == [], call
        seen.add(call.form)
    assert seen == set(printed)
    for args in (
        ["list"],
        ["show", "0000000002"],
        ["tree"],
        ["diff", "0000000001"],
        ["stats"],
        ["report"],
        ["plan"],
        ["repair"],
    ):
        done = run(args[0], golden, *args[1:], "--json")
        assert schema.faults(done.json, printed[args[0]], args[0]) == []
    for operator in ("seen", "table", "totals"):
        assert schema.faults(run("cat", golden, operator, "--json").json, printed["cat"]) == []


def test_values_of_one_schema_are_the_same_everywhere(golden: Path, run: Run) -> None:
    listed = run("list", golden, "--json", "--sizes").json[1]
    shown, tree = (run(verb, golden, "0000000002", "--json").json for verb in ("show", "tree"))
    reported = next(c for c in run("report", golden, "--json").json["checkpoints"] if c["id"] == listed["id"])
    for other in (shown, tree, reported):
        assert {name: value for name, value in listed.items() if name in other} == {
            name: other[name] for name in listed if name in other
        }
    for inner in tree["contents"]:
        known = next(operator for operator in shown["contents"] if operator["name"] == inner["name"])
        assert known.items() <= inner.items()
    stats, report = (run(verb, golden, "--json").json for verb in ("stats", "report"))
    by_name = {operator["name"]: operator for operator in report["operators"]}
    assert all(operator.items() <= by_name[operator["name"]].items() for operator in stats["operators"])
    assert run("savepoint", golden, "--json").json == report["savepoints"]
    assert run("verify", golden, "--json").json["findings"] == report["verification"]["findings"]
    assert report["pointer"]["writer"].keys() == {"number", "instance"}


@pytest.mark.parametrize(
    ("value", "kind", "fault"),
    [
        ({"minimum": 1, "median": 2}, schemas.Spread, "maximum: is missing"),
        ({"minimum": 1, "median": 2, "maximum": 3, "mean": 2}, schemas.Spread, "mean: not in the schema"),
        ({"minimum": 1, "median": 2.5, "maximum": 3}, schemas.Spread, "median: expected"),
        ({"minimum": True, "median": 2, "maximum": 3}, schemas.Spread, "minimum: expected"),
        ({"deleted": None}, schemas.Deleted, "deleted: expected"),
        ([{"name": "a", "id": "0000000001-00000000", "created": "now"}], list[schemas.Savepoint], "no time"),
        ({}, list[schemas.Savepoint], "no list"),
    ],
)
def test_the_check_finds_what_is_wrong(value: Any, kind: Any, fault: str) -> None:
    assert fault in "; ".join(schema.faults(value, kind))


# ---- errors ----------------------------------------------------------------------------------------------------------


def failure(run: Run, *args: object) -> tuple[int, dict[str, Any]]:
    """Return the error on stderr, after checking that stdout is empty."""
    done = run(*args)
    assert done.out == ""
    assert done.err.count("\n") == 1
    found = json.loads(done.err)
    assert schema.faults(found, schemas.Error) == []
    assert found["error"]["status"] == done.status
    return done.status, found["error"]


@pytest.mark.parametrize(
    ("args", "status", "kind"),
    [
        (("show", "ROOT", "0000000077"), 1, "CheckpointNotFoundError"),
        (("show", "ROOT", "nothing"), 1, "SavepointNotFoundError"),
        (("list", "ROOT-other"), 1, "StoreNotFoundError"),
        (("delete", "ROOT", "0000000003", "--yes"), 1, "InvalidStateError"),
        (("lst", "ROOT"), 2, "UsageError"),
        (("list", "ROOT", "--sice"), 2, "UsageError"),
        (("show", "ROOT", "epoch=one"), 2, "IllegalArgumentError"),
        (("cat", "ROOT", "nope"), 1, "OperatorNotFoundError"),
        (("rollback", "ROOT", "0000000001"), 2, "UsageError"),
        (("report", "ROOT", "-o", "-"), 2, "UsageError"),
    ],
)
def test_errors_are_json_too(root: Path, run: Run, args: tuple[str, ...], status: int, kind: str) -> None:
    found = failure(run, *(arg.replace("ROOT", str(root)) for arg in args), "--json")
    assert found[0] == status
    assert found[1]["type"] == kind
    assert not found[1]["retryable"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DependencyError("gone"), 75),
        (ThrottlingError("slow"), 75),
        (MalformedError("torn"), 3),
        (ConflictError("moved"), 1),
        (StoreRefusedError("full"), 1),
        (OutcomeUnknownError("sent"), 1),
        (RuntimeError("bug"), 1),
    ],
)
def test_damage_and_outage_have_a_status_of_their_own(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(lists, "read_listing", fail)
    assert run("list", root).status == status
    found = failure(run, "list", root, "--json")
    assert found == (status, found[1] | {"type": type(error).__name__, "retryable": status == 75})


def test_a_damaged_store_ends_with_3_and_findings_with_1(root: Path, run: Run) -> None:
    flip(max((root / "manifests").glob("*.json")))
    assert run("list", root).status == 3
    assert failure(run, "show", root, "--json")[1]["type"] == "DigestMismatchError"
    assert run("verify", root, "--json").status == 1


def test_the_example_calls_only_damage_damage(tmp_path: Path) -> None:
    root = tmp_path / "root"
    Checkpointer(root).begin(epoch=1).commit()
    reader = Reader.with_commands(tmp_path / "work", tmp_path / "commands")
    (example,) = [block.text for block in blocks(DOCUMENT) if block.language == "sh"]
    functions = 'page() { echo "$1"; }; jq() { cat "$3"; }'

    def pages(place: Path) -> str:
        return reader.run("sh", "-c", f"ROOT={place}\n{functions}\n{example}")

    assert pages(root) == ""
    assert pages(tmp_path / "nothing").startswith("cannot verify: ")
    flip(max((root / "manifests").glob("*.json")))
    assert pages(root).startswith("damage: ")


def test_a_key_that_was_not_given_is_no_damage(tmp_path: Path, run: Run) -> None:
    """A job that lost a variable of its environment must not raise the alarm for a damaged store."""
    (tmp_path / "state.key").write_text(secrets.token_hex(32))
    root = tmp_path / "sealed"
    Checkpointer(root, encryption=f"key-file:{tmp_path / 'state.key'}").begin(epoch=1).commit()
    for verb_ in ("list", "verify", "report"):
        arguments = [verb_, root, *(["-o", tmp_path / "report.html"] if verb_ == "report" else [])]
        status, error = failure(run, *arguments, "--json")
        assert (status, error["type"]) == (1, "UnsupportedFormatError"), verb_
        assert "say what opens its keys" in error["message"]
        assert "damaged" not in error["message"]


def test_a_first_commit_that_was_killed_is_no_lost_pointer(tmp_path: Path, run: Run) -> None:
    root = tmp_path / "begun"
    cp = Checkpointer(root).begin(epoch=1)
    cp.snapshot("op", 0, b"1")
    cp.prepare()
    (root / "_latest").unlink()  # as if it ended before its first swap
    for verb_ in ("list", "verify"):
        status, error = failure(run, verb_, root, "--json")
        assert (status, error["type"]) == (1, "StoreNotFoundError")
        assert "a first one is under way, or ended before it was done; or it was the only one" in error["message"]
    for _ in range(2):
        Checkpointer(root).begin(epoch=1).commit()
    (root / "_latest").unlink()
    assert failure(run, "list", root, "--json")[0] == 3


def test_a_no_is_told_apart(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb.Opened, "check_can_ask", lambda *_: None)
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    assert failure(run, "delete", root, "0000000001", "--json")[1]["type"] == "Declined"


def test_a_question_shows_no_control_characters(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb.Opened, "check_can_ask", lambda *_: None)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    verb.Opened(Checkpointer(root), json=False).confirm("go back to \x1b[2J\u202e\nit?", yes=False)
    assert capsys.readouterr().err == "go back to \\u001b[2J\\u202e it? [y/N]: "


def test_what_a_survey_could_not_read_is_json_too(root: Path, run: Run) -> None:
    (root / "progress/eventhub/a/b/c").mkdir(parents=True)
    (root / "progress/eventhub/a/b/c/ownership.json").write_text("torn")
    done = run("consumers", root, "--json")
    assert (done.status, json.loads(done.out)) == (1, [])
    assert schema.faults(json.loads(done.err), schemas.Error) == []


def test_an_error_stays_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    screen.print_error({"error": "a\nb\x1b[2J\u2028"})
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert json.loads(line) == {"error": "a\nb\x1b[2J\u2028"}


# ---- the root of the environment -------------------------------------------------------------------------------------


@pytest.fixture
def named(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHECKPOINTER_ROOT", str(root))
    return root


def test_the_root_may_stand_in_the_environment(named: Path, run: Run) -> None:
    assert [found["epoch"] for found in run("list", "--json").json] == [10, 11, 12]
    assert run("show", "--json").json["epoch"] == 12
    assert run("show", "-", "0000000002", "--json").json["epoch"] == 11
    assert run("diff", "-", "0000000001", "--json").json["bytes_added"] > 0
    assert len(run("cat", "-", "blob", "--json").json) == 2
    assert run("savepoint", "-", "new", "--json").json["name"] == "new"


def test_an_argument_is_never_taken_for_a_checkpoint_of_the_environments_root(named: Path, run: Run) -> None:
    before = (named / "_latest").read_bytes()
    other = named.parent / "other"
    for args in (("show", "0000000002"), ("savepoint", "good"), ("verify", "0000000001"), ("list", str(other))):
        done = run(*args)
        assert done.status == 1
        assert "the first argument is ROOT: `checkpointer" in done.err
        assert " - …` takes the one in CHECKPOINTER_ROOT" in done.err
    for args in (("rollback", "0000000002", "--yes"), ("delete", "good", "--yes"), ("cat", "blob")):
        done = run(*args)
        assert done.status == 2
        assert "the first argument is ROOT, `-` for the one in CHECKPOINTER_ROOT" in done.err
    assert (named / "_latest").read_bytes() == before
    with Checkpointer(other) as ck, ck.begin(epoch=77) as cp:
        cp.snapshot("op", 0, b"x")
    assert [found["epoch"] for found in run("list", other, "--json").json] == [77]


def test_without_the_variable_a_dash_is_a_mistake(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHECKPOINTER_ROOT", raising=False)
    done = run("list", "-")
    assert (done.status, "CHECKPOINTER_ROOT, which is not set" in done.err) == (2, True)
    monkeypatch.setenv("CHECKPOINTER_ROOT", "")
    assert run("list").status == 2


def test_run_bare_it_shows_its_help(run: Run) -> None:
    done = run()
    assert (done.status, done.out) == (2, "")
    assert "Usage: checkpointer" in done.err
    assert "repair" in done.err


# ---- completion ------------------------------------------------------------------------------------------------------


def completed(run: Run, monkeypatch: pytest.MonkeyPatch, *words: object, split: str = ":=@") -> list[str]:
    """Return what bash offers to complete the last of some words, which it splits at some characters too."""
    parts = f"[{split}]+|[^{split}]+" if split else ".+"
    typed = [word for whole in words for word in re.findall(parts, str(whole)) or [""]]
    monkeypatch.setenv("COMP_WORDS", "\n".join(["checkpointer", *typed]))
    monkeypatch.setenv("COMP_CWORD", str(len(typed)))
    monkeypatch.setenv("_CHECKPOINTER_COMPLETE", "bash_complete")
    monkeypatch.setattr(sys, "argv", ["checkpointer"])
    return [line.partition(",")[2] for line in run().out.splitlines() if line]


def test_names_of_a_store_are_completed(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(run, monkeypatch, "sho") == ["show"]
    assert completed(run, monkeypatch, "show", root, "g") == ["good"]
    assert completed(run, monkeypatch, "show", root, "l") == ["latest"]
    assert [name[:10] for name in completed(run, monkeypatch, "diff", root, "good", "0")] == [
        "0000000001",
        "0000000002",
        "0000000003",
    ]
    assert completed(run, monkeypatch, "cat", root, "b") == ["blob"]
    assert completed(run, monkeypatch, "tree", root, "--operator", "s") == ["seen"]
    assert completed(run, monkeypatch, "show", root / "nowhere", "g") == []
    monkeypatch.setenv("CHECKPOINTER_ROOT", str(root))
    assert completed(run, monkeypatch, "show", "-", "g") == ["good"]


def test_names_are_completed_for_a_url_and_after_an_equals_sign(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{secrets.token_hex(8)}"
    Checkpointer(root).export("latest", url)
    Checkpointer(url).savepoint("good")
    assert completed(run, monkeypatch, "show", url, "g") == ["good"]
    assert completed(run, monkeypatch, "show", url, "") == ["latest", "good"]
    assert completed(run, monkeypatch, "diff", url, "epoch=12", "g") == ["good"]
    assert completed(run, monkeypatch, "cat", url, "blob", "--checkpoint=g") == ["good"]
    assert completed(run, monkeypatch, "cat", url, "blob", "--checkpoint=") == ["latest", "good"]


def test_bash_gets_the_rest_of_a_name_after_the_last_colon(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Checkpointer(root).savepoint("v1:a=b")
    assert completed(run, monkeypatch, "show", root, "v") == ["v1:a=b"]
    assert completed(run, monkeypatch, "show", root, "v1:") == ["a=b"]
    assert completed(run, monkeypatch, "show", root, "v1:a=") == ["b"]
    assert completed(run, monkeypatch, "cat", root, "blob", "--checkpoint=v1:a") == ["a=b"]
    # A user may have told bash to split at less.
    assert completed(run, monkeypatch, "show", root, "v1:a", split="=") == ["v1:a=b"]
    assert completed(run, monkeypatch, "show", root, "v1:a=", split="=") == ["b"]
    assert completed(run, monkeypatch, "show", root, "v1:a=", split="") == ["v1:a=b"]
    assert completed(run, monkeypatch, "cat", root, "blob", "--checkpoint=v1", split="") == ["--checkpoint=v1:a=b"]


def test_words_with_an_at_sign_are_whole(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text("{}")
    assert completed(run, monkeypatch, "show", root, "--storage-options", f"@{file}", "g") == ["good"]
    assert completed(run, monkeypatch, "show", root, f"--storage-options=@{file}", "g") == ["good"]
    url = "abfs://container@account.net/path"
    monkeypatch.setenv("COMP_WORDS", "\n".join(["checkpointer", "show", *re.findall("[:=@]+|[^:=@]+", url), "g"]))
    monkeypatch.setenv("COMP_CWORD", "7")
    assert BashWords(checkpointer, {}, "checkpointer", "_X").get_completion_args() == (["show", url], "g")


def test_storage_options_of_the_environment_are_not_for_a_folder_that_completes(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINTER_STORAGE_OPTIONS", '{"anon": true}')
    assert completed(run, monkeypatch, "show", root, "g") == ["good"]


def test_only_names_that_a_shell_takes_as_they_are_are_completed(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer(root) as ck:
        for name in ("$(reboot)", "a;b", "it's", "with space", "Zoë", "plain"):
            ck.savepoint(name)
    assert completed(run, monkeypatch, "show", root, "") == ["latest", "good", "Zoë", "plain"]
