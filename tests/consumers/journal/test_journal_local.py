"""What a journal owes to a local file, and to the processes that come and go around it."""

import logging
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pyspark_checkpointer.consumers.journal import Journal
from pyspark_checkpointer.errors import CheckpointError
from tests.consumers.journal.journals import AT, Place


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place(str(tmp_path))


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")}


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_only_the_owner_may_read(tmp_path: Path, umask: int) -> None:
    previous = os.umask(umask)
    try:
        with Journal(tmp_path / "a" / "b" / ".winlogbeat.yml") as journal:
            journal.persist("a", 1, AT)
    finally:
        os.umask(previous)
    assert tree(tmp_path) == {
        "a": "0o700",
        "a/b": "0o700",
        "a/b/.lock": "0o600",
        "a/b/.winlogbeat.yml": "0o600",
        "a/b/.winlogbeat.yml.previous": "0o600",
    }


def test_a_file_that_others_could_read_is_theirs_no_more(local: Place) -> None:
    with local.open() as journal:
        journal.persist("a", 1, AT)
    os.chmod(local.file, 0o644)
    local.open().shutdown()
    assert {mode for name, mode in tree(Path(local.folder)).items()} == {"0o600"}


def test_spellings_of_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    spellings = [".w.yml", "./.w.yml", Path(".w.yml"), tmp_path / ".w.yml", "~/.w.yml", f"file://{tmp_path}/.w.yml"]
    for number, spelling in enumerate(spellings):
        with Journal(spelling) as journal:
            assert len(journal.states()) == number
            monkeypatch.chdir("/")  # a relative name means the folder of the moment it was given
            journal.persist(f"log {number}", 1, AT)
        monkeypatch.chdir(tmp_path)
    assert len(yaml.safe_load((tmp_path / ".w.yml").read_bytes())["event_logs"]) == len(spellings)


@pytest.mark.parametrize("way", ["folder", "file above", "link"])
def test_a_file_that_cannot_be_written_is_refused_at_once(local: Place, tmp_path: Path, way: str) -> None:
    if way == "file above":
        (tmp_path / "logs").write_bytes(b"")
    else:
        (tmp_path / "logs").mkdir()
    if way == "folder":
        Path(local.file).mkdir()
    elif way == "link":
        Path(local.file).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="logs"):
        local.open()


def test_a_flush_is_durable_when_it_returns(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = local.open()
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noting_fsync(fd: int) -> None:
        fsync(fd)
        steps.append("fsync " + os.readlink(f"/proc/self/fd/{fd}"))

    def noting_rename(source: str, target: str) -> None:
        rename(source, target)
        steps.append(f"rename {target}")

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "rename", noting_rename)
    journal.persist("a", 1, AT)
    journal.flush()
    monkeypatch.undo()
    plain = [re.sub(r"/\.(journal\S+)\.[0-9a-f]{16}\.tmp", r"/<\1>", step.replace(local.folder, "")) for step in steps]
    assert plain == [
        "fsync /<journal.yml.previous>",
        "rename /journal.yml.previous",
        "fsync ",
        "fsync /<journal.yml>",
        "rename /journal.yml",
        "fsync ",
    ]
    journal.shutdown()


# --- processes ---


def test_a_forked_child_is_told_to_open_its_own(local: Place) -> None:
    program = """if True:
        import os, sys
        from datetime import datetime
        from pyspark_checkpointer.errors import InvalidStateError
        from pyspark_checkpointer.consumers.journal import Journal
        with Journal(sys.argv[1], 1000, 3600) as journal:
            journal.persist("parent", 1, datetime(2026, 1, 1))
            child = os.fork()
            if child == 0:
                try:
                    journal.persist("child", 1, datetime(2026, 1, 1))
                except InvalidStateError as error:
                    print(error, flush=True)
                journal.shutdown()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    """
    done = subprocess.run(
        [sys.executable, "-c", program, local.file], capture_output=True, text=True, timeout=60, check=True
    )
    assert "was opened before this process was forked" in done.stdout
    assert local.numbers() == {"parent": 1}


WRITER = """if True:
    import sys
    from datetime import datetime
    from pyspark_checkpointer.consumers.journal import Journal
    journal = Journal(sys.argv[1], 3, 3600)
    at = datetime(2026, 1, 1)
    number = journal.states()["a"].record_number if journal.states() else 0
    while True:
        for _ in range(10):
            number += 1
            journal.persist("a", number, at)
            journal.persist("b", number, at)
        journal.flush()
        print(number, flush=True)
"""


def test_a_killed_process_loses_nothing_that_was_acknowledged(local: Place, caplog: pytest.LogCaptureFixture) -> None:
    for lines in (1, 4, 9):
        with subprocess.Popen([sys.executable, "-c", WRITER, local.file], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(lines):
                acknowledged = int(writer.stdout.readline())
            writer.kill()
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        with caplog.at_level(logging.WARNING, "pyspark_checkpointer"), local.open() as journal:
            states = journal.states()
            assert states["a"].record_number >= acknowledged
            assert states["b"].record_number >= acknowledged
            assert journal.recovered_from is None
    assert caplog.records == []
