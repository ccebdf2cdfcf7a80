"""Every error is one sentence on stderr and a status, without a traceback and without secrets."""

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, runtime
from pyspark_checkpointer.checkpoint import latest, metadata
from pyspark_checkpointer.cli import lists
from pyspark_checkpointer.cli.root import _above
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.compare_and_swap import UndecidedError
from pyspark_checkpointer.storage.memory.store import MemoryStore
from tests.cli.conftest import Result, Run
from tests.conftest import Root
from tests.damage import flip
from tests.servers import Server
from tests.world import put

SECRET = "s3cr3t-0123456789"


def said(done: Result, status: int, *parts: str) -> None:
    assert done.status == status
    assert done.out == ""
    assert done.err.startswith("checkpointer")
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
    for part in parts:
        assert part in done.err


@pytest.mark.parametrize(
    ("args", "status", "part"),
    [
        (("lst", "ROOT"), 2, "lst"),
        (("list",), 2, "ROOT"),
        (("list", "ROOT", "--jsn"), 2, "--json"),
        (("list", "ROOT", "more"), 2, "more"),
        (("--debug", "cat", "ROOT", "seen"), 2, "No such option '--debug' before the verb: it goes behind it"),
        (("--limit", "list", "ROOT"), 2, "No such option '--limit'; see"),
        (
            ("cat", "ROOT", "latest", "seen"),
            2,
            "'seen' is not a valid integer range; a checkpoint goes with --checkpoint",
        ),
        (("cat", "ROOT", "seen", "-1"), 2, "-1"),
        (
            ("diff", "ROOT", "0000000001", "seen"),
            1,
            "savepoints are 'before the flood'; OPERATOR is the third argument",
        ),
        (("diff", "ROOT", "0000000001", "seen", "table"), 1, "no savepoint: the savepoints are 'before the flood'\n"),
        (("list", ""), 2, "the root is empty"),
        (("list", "s3x://bucket/path"), 2, "unknown protocol 's3x'"),
        (("list", "s3://key:word@bucket/path"), 2, "must not hold credentials"),
        (("list", "ROOT", "--storage-options", '{"key": 1}'), 2, "takes no storage_options"),
        (("list", "ROOT", "--storage-options", "@/no/such/file"), 2, "No such file"),
        (("show", "ROOT", "0000000009-00000000"), 1, "no live checkpoint 0000000009-00000000"),
        (("show", "ROOT", "0000000077"), 1, "there are 0000000001-0c5442af to 0000000005-c3dc518a"),
        (("show", "ROOT", "2"), 2, "2 could be epoch=2, or checkpoint 0000000002-…: say which"),
        (("show", "ROOT", "00000"), 2, "00000 could be epoch=0, or checkpoint 0000000000-…: say which"),
        (("show", "ROOT", "before"), 1, "did you mean 'before the flood'?"),
        (("show", "ROOT", "epoch=99"), 1, "epoch 99"),
        (("show", "ROOT", "epoch=4"), 1, "epoch 4"),  # prepared, not committed
        (("show", "ROOT", "epoch=one"), 2, "expected a number"),
        (("tree", "ROOT", "--operator", "sen"), 1, "the checkpoint has seen, table"),
        (("verify", "ROOT", "--share", "7"), 2, "from 0 to 1"),
        (("verify", "ROOT", "--operator", "sen"), 1, "'sen'"),
        (("cat", "ROOT", "sen"), 1, "the checkpoint has seen, table"),
        (("cat", "ROOT", "seen", "9"), 1, "no state in partition 9"),
        (("cat", "ROOT", "seen", "--checkpoint", "1"), 2, "1 could be epoch=1, or checkpoint 0000000001-…: say which"),
        (("savepoint", "ROOT", "before the flood"), 2, "the name is taken"),
        (("savepoint", "ROOT", "a/b"), 2, "slashes"),
        (("savepoint", "ROOT", "--delete", "nothing", "--yes"), 1, "no savepoint 'nothing'"),
        (("delete", "ROOT", "0000000004", "--yes"), 1, "is the committed checkpoint"),
        (("delete", "ROOT", "0000000002", "--yes"), 1, "before the flood"),
        (("rollback", "ROOT", "prepared", "--yes"), 1, "0000000005"),
    ],
)
def test_a_mistake_gets_one_sentence(golden: Path, run: Run, args: tuple[str, ...], status: int, part: str) -> None:
    before = (golden / "_latest").read_bytes()
    said(run(*(str(golden) if arg == "ROOT" else arg for arg in args)), status, part)
    assert (golden / "_latest").read_bytes() == before


def test_json_before_the_verb_is_told_as_json_that_it_goes_behind_it(golden: Path, run: Run) -> None:
    done = run("--json", "list", golden)
    assert (done.status, done.out) == (2, "")
    assert "No such option '--json' before the verb: it goes behind it" in json.loads(done.err)["error"]["message"]


def test_an_unknown_root_names_those_nearby(root: Path, run: Run) -> None:
    meant = f"did you mean {root}?"
    said(run("list", root.parent / "rot"), 1, "there is no such folder", meant)
    said(run("list", root.parent), 1, "has no `_latest`", meant)
    said(run("list", root / "manifests"), 1, meant)
    said(run("verify", root / "artifacts" / "seen"), 1, meant)
    said(run("list", root / "_latest"), 2, "is a file")
    deep = shutil.copytree(root, root.parent / "deep" / "jobs" / "orders")
    said(run("list", root.parent / "deep"), 1, f"did you mean {deep}?")
    (root.parent / "empty").mkdir()
    said(run("savepoint", root.parent / "empty", "new"), 1, "the folder is empty")
    assert [*(root.parent / "empty").iterdir()] == []


def test_a_lost_pointer_is_told_from_a_folder_without_a_store(root: Path, run: Run) -> None:
    (root / "_latest").unlink()
    said(run("list", root), 3, "manifests are there", "was lost")


def test_a_root_one_level_too_deep_is_told_on_every_store(any_root: Root, run: Run) -> None:
    with Checkpointer(any_root.url, any_root.storage_options or None) as ck:
        put(ck, b"value")
    options = ["--storage-options", json.dumps(any_root.storage_options)] if any_root.storage_options else []
    said(run("list", f"{any_root.url}/artifacts/op", *options), 1, f"did you mean {any_root.url}?")
    said(run("list", f"{any_root.url}-other", *options), 1, f"no store at {any_root.url}-other")


def test_damage_is_told_with_the_verb_that_tells_more(root: Path, run: Run) -> None:
    newest = max((root / "manifests").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-1])
    said(run("list", root), 3, newest.name, "`checkpointer verify`")


def test_wrong_credentials_are_told_and_not_shown(s3_server: Server, run: Run) -> None:
    options = s3_server.storage_options | {"secret": SECRET}
    done = run("list", f"{s3_server.url}/any", "--storage-options", json.dumps(options))
    said(done, 1, s3_server.url)
    assert SECRET not in done.err


def test_options_from_a_file(s3_server: Server, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps(s3_server.storage_options))
    said(run("list", f"{s3_server.url}/nothing-there", "--storage-options", f"@{file}"), 1, "no store at")


def test_options_of_the_environment_are_not_for_folders(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINTER_STORAGE_OPTIONS", json.dumps({"secret": SECRET}))
    assert run("list", root).status == 0


@pytest.mark.parametrize("options", [f'{{"secret": "{SECRET}"', f'["{SECRET}"]', f'"{SECRET}"'])
def test_options_that_are_no_json_are_not_repeated(run: Run, options: str) -> None:
    done = run("list", "s3://bucket/path", "--storage-options", options)
    said(done, 2, "expected a JSON object")
    assert SECRET not in done.err


@pytest.mark.parametrize(
    ("args", "package"),
    [
        (("list", "s3://bucket/path"), "s3fs"),
        (("cat", "ROOT", "table"), "pyarrow"),
        (("diff", "ROOT", "0000000001", "latest", "table"), "pyarrow"),
        (("export", "ROOT", "latest", "tables", "--format", "parquet"), "pyarrow"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    golden: Path, run: Run, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith("pyspark_checkpointer.table")]:
        monkeypatch.delitem(sys.modules, name)  # what was imported while pyarrow could be
    said(run(*(golden if arg == "ROOT" else arg for arg in args)), 2, package, "pip install 'spark-state-checkpointer[")


def test_a_bug_gets_one_sentence_too(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"broken, with {SECRET}")

    monkeypatch.setattr(lists, "read_listing", fail)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    done = run("list", root)
    said(done, 1, "unexpected RuntimeError: broken, with ***", "--debug")
    debugged = run("list", root, "--debug")
    assert debugged.status == 1
    assert "Traceback" in debugged.err
    assert SECRET not in done.err + debugged.err


def test_a_traceback_shows_no_secret_of_the_target_and_moves_no_cursor(
    root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"\x1b[2J broken, with {SECRET}")

    monkeypatch.setattr(Checkpointer, "export", fail)
    options = json.dumps({"secret": SECRET})
    done = run("export", root, "latest", "s3://b/x", "--target-storage-options", options, "--debug")
    assert done.status == 1
    assert "Traceback" in done.err
    assert SECRET not in done.err
    assert "\x1b" not in done.err


# ---- an error that names a call of Python names what is typed here too -----------------------------------------------

CALL = re.compile(r"\b[a-z_]+\((?:to=…)?\)|\b[a-z_]+=(?:True|\"none\")")
"""A call or an argument in Python."""


def names_its_own(done: Result, own: str) -> None:
    """The command names its own verb or option in the same sentence as the call."""
    assert done.status != 0
    assert CALL.search(done.err), "nothing of Python is named: this case proves nothing"
    assert own in done.err


def pointed_at(root: Path, data: bytes) -> Path:
    (root / "_latest").unlink()
    (root / "_latest").write_bytes(data)
    return root


def test_a_damaged_pointer_names_the_verb(root: Path, run: Run) -> None:
    names_its_own(run("list", pointed_at(root, b"torn")), "`checkpointer repair`")


def test_an_old_copy_of_the_pointer_names_the_verb(root: Path, run: Run) -> None:
    old = (root / "_latest").read_bytes()
    with Checkpointer(root) as ck:
        for number in range(2):
            put(ck, b"%d" % number)
    done = run("verify", pointed_at(root, old))
    assert "`checkpointer repair`" in " ".join(done.out.split())


def test_a_savepoint_in_the_way_names_the_option(root: Path, run: Run) -> None:
    names_its_own(run("delete", root, "0000000002", "--yes"), "`checkpointer savepoint ROOT --delete NAME`")


def test_a_target_without_a_pointer_names_the_verb(root: Path, run: Run, tmp_path: Path) -> None:
    target = Path(shutil.copytree(root, tmp_path / "target"))
    (target / "_latest").unlink()
    names_its_own(run("export", root, "latest", target), "`checkpointer repair`")


@pytest.mark.parametrize(
    ("wanted", "own"), [("latest", "`checkpointer rollback`"), ("0000000002-00000000", "`checkpointer rollback`")]
)
def test_a_repair_that_is_not_needed_names_the_verb(root: Path, run: Run, wanted: str, own: str) -> None:
    names_its_own(run("repair", root, "--to", wanted, "--yes"), own)


def test_a_repair_to_nothing_names_the_verb(root: Path, run: Run) -> None:
    (root / "_latest").unlink()
    names_its_own(run("repair", root, "--to", "0000000002-00000000", "--yes"), "`checkpointer repair`")


def test_a_rollback_to_what_is_damaged_names_the_verb(root: Path, run: Run) -> None:
    for path in (root / "artifacts").rglob("0000000001-*"):
        flip(path)
    names_its_own(run("rollback", root, "0000000001", "--yes"), "`checkpointer verify`")


def test_a_store_without_conditions_names_the_option(root: Path, run: Run) -> None:
    names_its_own(run("export", root, "latest", "ftp://nowhere.invalid/copy"), "--target-fencing none")


def test_a_swap_without_an_answer_names_the_verb(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise UndecidedError("no answer")

    monkeypatch.setattr(latest, "swap_until_decided", fail)
    names_its_own(run("savepoint", root, "new"), "on the command line use `checkpointer list`")


def test_another_writer_in_between_names_what_to_do_here(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpointer(root) as ck:
        plain = metadata.write_manifest

        async def beside(*args: Any) -> Any:
            monkeypatch.setattr(metadata, "write_manifest", plain)
            ref = await plain(*args)
            await runtime.in_thread(put, ck, b"beside")
            return ref

        monkeypatch.setattr(metadata, "write_manifest", beside)
        names_its_own(run("rollback", root, "0000000001", "--yes"), "on the command line give the same command again")


def test_every_store_that_is_opened_for_a_suggestion_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    class Watched(MemoryStore):
        def __init__(self, url: str, *_: object, **__: object) -> None:
            super().__init__(url)
            opened.append(url)

        async def close(self) -> None:
            opened.remove(self.url)

    monkeypatch.setattr("pyspark_checkpointer.cli.root.open_store", Watched)
    url = f"memory://{uuid.uuid4().hex}"
    run_sync(MemoryStore(url).put("_latest", b"1"))
    assert run_sync(_above(f"{url}/artifacts/op", None)) == url
    assert not opened


@pytest.mark.parametrize(("verb", "told"), [(("rollback", "latest", "--yes"), True), (("list",), False)])
@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_verb_that_writes_says_that_it_may_have_written(
    golden: Path, run: Run, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...], told: bool, as_json: bool
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpointer, "rollback", interrupt)
    monkeypatch.setattr(lists, "read_listing", interrupt)
    done = run(verb[0], golden, *verb[1:], *(["--json"] if as_json else []))
    assert (done.status, done.out) == (130, "")
    if not told:
        assert done.err.strip() == ""
    elif as_json:
        assert json.loads(done.err.strip())["error"] | {"message": ""} == {
            "type": "Interrupted",
            "message": "",
            "retryable": False,
            "status": 130,
        }
    else:
        assert "may be changed already" in done.err


def test_ctrl_c_before_the_command_has_begun_prints_no_traceback(tmp_path: Path) -> None:
    """Half a second goes to imports."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'pyspark_checkpointer.cli.app':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pyspark_checkpointer", "list", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
