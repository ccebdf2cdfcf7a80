"""`checkpointer report`: where the page goes, and what the status says."""

import json
import os
import secrets
import stat
import sys
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.cli.app import checkpointer
from tests.cli.conftest import Run, write_history
from tests.damage import flip


def test_a_page_or_json_or_both(root: Path, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    done = run("report", root, "-o", file)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{file}: Nothing is wrong; newest checkpoint: ")
    assert file.read_text().startswith("<!doctype html>")
    assert file.read_text().endswith("</html>")
    found = run("report", root, "--json").json
    assert [row["epoch"] for row in found["checkpoints"]] == [10, 11, 12]
    assert run("report", root, "--json", "-o", file, "--keep-last", 1).json["cleanup"]["retired"]
    assert [path.name for path in tmp_path.iterdir() if "report" in path.name] == ["report.html"]


def test_without_jinja2_a_page_is_refused_before_anything_is_read_and_json_is_not(
    root: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    file = tmp_path / "report.html"
    done = run("report", root, "-o", file)
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "checkpointer: the page of a report: needs the package jinja2: pip install 'spark-state-checkpointer[report]'\n"
    )
    done = run("report", root, "-o", file, "--json")
    assert (done.status, done.out) == (2, "")
    assert json.loads(done.err)["error"] == {
        "type": "IllegalArgumentError",
        "message": "the page of a report: needs the package jinja2: pip install 'spark-state-checkpointer[report]'",
        "retryable": False,
        "status": 2,
    }
    assert not file.exists()
    assert run("report", root, "--json").json["verdict"] == "Nothing is wrong"


def test_a_page_to_stdout(root: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with pytest.raises(SystemExit) as ended:
        checkpointer(["report", str(root), "-o", "-"])
    assert ended.value.code == 0
    captured = capfdbinary.readouterr()
    assert captured.err == b""
    assert captured.out.startswith(b"<!doctype html>")
    assert captured.out.endswith(b"</html>")


def test_findings_are_written_and_give_status_1(root: Path, run: Run, tmp_path: Path) -> None:
    flip(max((root / "artifacts" / "blob").glob("*/*")))
    file = tmp_path / "report.html"
    done = run("report", root, "-o", file)
    assert (done.status, done.err) == (1, "")
    assert "1 finding: 1 damaged" in done.out
    assert "1 finding: 1 damaged" in file.read_text()
    assert run("report", root, "--json", "--verify", 0).status == 0
    (root / "_latest").unlink()
    assert run("report", root, "-o", file).status == 1
    assert "can be repaired to" in file.read_text()


def test_what_cannot_be_written_is_refused_first(root: Path, run: Run, tmp_path: Path) -> None:
    for args, part in (
        ((), "-o report.html"),
        (("-o", "-", "--json"), "stdout"),
        (("-o", tmp_path), "is a folder"),
        (("-o", tmp_path / "no" / "such" / "report.html"), "no folder"),
        (("-o", tmp_path / "report.html", "--verify", "7"), "from 0 to 1"),
    ):
        done = run("report", root, *args)
        assert (done.status, done.out) == (2, "")
        assert part in done.err
    assert not [*tmp_path.glob("report*")]


def test_a_root_without_a_store_gets_no_page(root: Path, run: Run, tmp_path: Path) -> None:
    done = run("report", root.parent / "rot", "-o", tmp_path / "report.html")
    assert (done.status, done.out) == (1, "")
    assert f"did you mean {root}?" in done.err
    assert not (tmp_path / "report.html").exists()


def test_a_failed_write_leaves_the_old_page(
    root: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.html"
    file.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    done = run("report", root, "-o", file)
    assert done.status == 2
    assert "No space left" in done.err
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if "report" in path.name] == ["report.html"]


def test_a_page_is_its_owners_alone_until_somebody_shares_it(root: Path, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    previous = os.umask(0)  # so that a mode that is left out shows
    try:
        assert run("report", root, "-o", file).status == 0
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.chmod(0o644)
        assert run("report", root, "-o", file).status == 0
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
    finally:
        os.umask(previous)


def test_a_pipe_is_written_to_and_a_link_is_kept(root: Path, run: Run, tmp_path: Path) -> None:
    link, pipe = tmp_path / "link.html", tmp_path / "pipe"
    link.symlink_to(tmp_path / "real.html")
    assert run("report", root, "-o", link).status == 0
    assert link.is_symlink()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert run("report", root, "-o", pipe).status == 0
    assert pipe.is_fifo()
    assert os.read(reader, 1 << 16).startswith(b"<!doctype html>")
    os.close(reader)


def test_a_page_is_encrypted_on_request_and_opened_again(root: Path, run: Run, tmp_path: Path) -> None:
    for name in ("state", "other"):
        (tmp_path / f"{name}.key").write_text(secrets.token_hex(32))
    key, other = (f"key-file:{tmp_path / name}.key" for name in ("state", "other"))
    sealed, page = tmp_path / "report.enc", tmp_path / "report.html"
    refused = run("report", root, "-o", sealed, "--encrypted")
    assert (refused.status, sealed.exists()) == (2, False)
    assert "needs a page, with -o, and a ROOT that is encrypted" in refused.err
    with Checkpointer(tmp_path / "sealed", encryption=key) as client:
        write_history(client)
    made = run("report", tmp_path / "sealed", "-o", sealed, "--encrypted", "--encryption", key)
    assert (made.status, made.err) == (0, "")
    assert made.out.startswith(f"{sealed}: Nothing is wrong")
    assert sealed.read_bytes().startswith(b"checkpointer-encrypted-1\n")
    assert b"html" not in sealed.read_bytes()
    assert run("report", tmp_path / "sealed", "--open", sealed, "-o", page, "--encryption", key).status == 0
    assert page.read_text().startswith("<!doctype html>")
    assert page.read_text().endswith("</html>")
    page.unlink()
    with Checkpointer(tmp_path / "another", encryption=other) as client:
        write_history(client)
    (tmp_path / "plain").write_text("<!doctype html>")
    plan = tmp_path / "cleanup.plan"
    run("plan", tmp_path / "sealed", "--keep-last", "1", "-o", plan, "--encryption", key)
    for store, file, encryption, why in (
        ("another", sealed, other, "cannot decrypt it: it was changed, or its root is another one"),
        ("sealed", plan, key, "expected a saved report, and cannot decrypt it"),
        ("sealed", tmp_path / "plain", key, "is no encrypted report"),
        ("sealed", tmp_path / "none", key, "No such file"),
    ):
        refused = run("report", tmp_path / store, "--open", file, "-o", page, "--encryption", encryption)
        assert refused.status in (2, 3), refused
        assert why in refused.err
    refused = run("report", root, "--open", sealed, "-o", page)
    assert "is encrypted with the keys of its root: open it with `checkpointer report ROOT --open FILE" in refused.err
    assert not page.exists()
    assert (
        "expected a saved plan, and cannot decrypt it"
        in run("clean", tmp_path / "sealed", "--plan", sealed, "--yes", "--encryption", key).err
    )
