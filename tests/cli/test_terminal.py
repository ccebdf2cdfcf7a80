"""The command as a process: on a terminal, into a pipe, interrupted, and with a question to answer."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.manifests import object_paths
from tests.cli.conftest import GOLDEN
from tests.world import line

REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "pyspark_checkpointer"]
PATIENCE = 60
PRESSES = 12


class Terminal:
    """The command on a pseudo terminal of its own."""

    def __init__(self, *args: object, columns: int = 160, **environment: str) -> None:
        clean = {
            name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
        }
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._process = subprocess.Popen(
            [*COMMAND, *map(str, args)],
            cwd=REPOSITORY,
            env=clean | {"TERM": "xterm-256color", "PYTHONFAULTHANDLER": "1"} | environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._seen = ""

    def wait_for(self, text: str) -> None:
        while text not in self._seen:
            assert self._read(), f"ended without {text!r}: {self._seen}"

    def interrupt(self) -> None:
        """Press Ctrl-C until the process ends: one just before Python reads from the terminal is lost."""
        time.sleep(0.2)
        self.type("\x03")
        pressed = 1
        while pressed < PRESSES:
            if not select.select([self._master], [], [], 5)[0]:
                self.type("\x03")
                pressed += 1
            elif not self._read():
                return
        os.kill(self._process.pid, signal.SIGABRT)  # Python then says where each of its threads is
        self.end()
        pytest.fail(f"nothing ends it: {self._seen}")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> tuple[int, str]:
        """Return the status, and everything that was on the screen."""
        while self._read():
            pass
        os.close(self._master)
        return self._process.wait(PATIENCE), self._seen.replace("\r\n", "\n")

    def _read(self) -> bool:
        assert select.select([self._master], [], [], PATIENCE)[0], f"nothing came after {self._seen!r}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self._seen += data.decode(errors="replace")
        return bool(data)


def test_a_terminal_gets_a_table_in_colours() -> None:
    status, seen = Terminal("list", GOLDEN).end()
    assert status == 0
    assert "───" in seen
    assert re.search("\x1b\\[32mcommitted", seen)
    assert "0000000002-f4bb65ce" in seen


@pytest.mark.parametrize("verb", ["list", "show", "tree", "verify"])
def test_no_color_is_respected(verb: str) -> None:
    status, seen = Terminal(verb, GOLDEN, NO_COLOR="1").end()
    assert status == 0
    assert not re.search("\x1b\\[[0-9;]*m", seen)


def test_a_dumb_terminal_gets_plain_text() -> None:
    status, seen = Terminal("list", GOLDEN, TERM="dumb").end()
    assert status == 0
    assert not set(seen) & set("\x1b─")


def test_a_narrow_terminal_goes_without_columns_and_says_so() -> None:
    _, seen = Terminal("list", GOLDEN, columns=90, NO_COLOR="1").end()
    lines = seen.rstrip("\n").split("\n")
    assert lines[-1] == "a wider terminal also shows AGE, OPERATORS, PARTITIONS, OWN"
    assert all(len(line) <= 90 for line in lines)
    assert "before the flood" in seen


def test_a_tree_is_never_cut() -> None:
    _, seen = Terminal("tree", GOLDEN, "0000000002", columns=40, NO_COLOR="1").end()
    assert "└──" in seen
    assert "byte 185 of a pack of 349 B\n" in seen


def test_progress_is_shown_with_rate_and_time_left() -> None:
    _, seen = Terminal("verify", GOLDEN).end()
    plain = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", seen)
    assert re.search(r"verifying .*6\.4/6\.4 KiB .*/s .*0:00:00", plain)
    assert plain.rstrip().endswith("all is well")


def test_the_command_asks_and_takes_no_for_an_answer(root: Path) -> None:
    before = (root / "_latest").read_bytes()
    for answer in ("n\n", "\x04"):
        terminal = Terminal("rollback", root, "good")
        terminal.wait_for("A running job is fenced")
        terminal.wait_for("[y/N]")
        terminal.type(answer)
        status, seen = terminal.end()
        assert status == 1
        assert "nothing was changed" in seen
    assert (root / "_latest").read_bytes() == before


def test_the_command_asks_and_takes_yes_for_an_answer(root: Path) -> None:
    terminal = Terminal("delete", root, "0000000001")
    terminal.wait_for("[y/N]")
    terminal.type("y\n")
    status, seen = terminal.end()
    assert status == 0
    assert "is deleted" in seen
    with Checkpointer(root) as ck:
        assert [known.sequence for known in ck.list_checkpoints()] == [2, 3]


def test_a_delete_asks_for_all_that_goes_with_it(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "holed") as ck:
        ids = line(ck, 6)
    (tmp_path / "holed" / object_paths.manifest(ids[3])).unlink()
    terminal = Terminal("delete", tmp_path / "holed", ids[3])
    terminal.wait_for("3 older checkpoints")
    terminal.wait_for("[y/N]")
    terminal.type("n\n")
    status, seen = terminal.end()
    assert status == 1
    assert str(ids[0]) in seen
    assert "nothing was changed" in seen


def test_an_interrupt_ends_it_silently(root: Path) -> None:
    terminal = Terminal("rollback", root, "good")
    terminal.wait_for("[y/N]")
    terminal.interrupt()
    status, seen = terminal.end()
    assert status == 128 + signal.SIGINT
    assert "Traceback" not in seen
    assert "changed" not in seen


def test_a_pipe_gets_plain_text_and_its_end_is_no_error() -> None:
    with subprocess.Popen(
        [*COMMAND, "tree", str(GOLDEN), "--all"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert first.startswith(b"0000000004-9e2b5704")
    assert process.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("plan", [False, True])
def test_what_a_cleanup_did_goes_to_stdout_beside_a_bar_on_the_screen(root: Path, tmp_path: Path, plan: bool) -> None:
    rules: list[object] = ["--keep-last", "1"]
    if plan:
        saved = tmp_path / "saved.plan"
        Checkpointer(root).plan(RetentionPolicy(keep_last=1)).save(saved)
        rules = ["--plan", saved]
    master, screen = pty.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, "clean", root, *map(str, rules), "--yes", "--json"],
            cwd=REPOSITORY,
            env=os.environ | {"TERM": "xterm-256color"},
            stdin=screen,
            stdout=subprocess.PIPE,
            stderr=screen,
            timeout=PATIENCE,
            check=True,
        )
    finally:
        os.close(screen)
        os.close(master)
    assert json.loads(done.stdout)["retired"]


def test_a_closed_input_is_no_terminal() -> None:
    done = subprocess.run(
        [*COMMAND, "clean", GOLDEN, "--keep-last", "1"],
        cwd=REPOSITORY,
        preexec_fn=lambda: os.close(0),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, "add --yes" in done.stderr) == (2, True), done.stderr


def test_a_pipe_that_nobody_reads_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "savepoint", GOLDEN], cwd=REPOSITORY, stdout=writing, stderr=subprocess.PIPE, timeout=PATIENCE
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_real_process_ends_with_the_status_and_one_sentence(tmp_path: Path) -> None:
    for args, status in ((["--version"], 0), (["list", str(tmp_path)], 1), (["lst"], 2)):
        done = subprocess.run([*COMMAND, *args], cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == status
        assert done.stderr.count("\n") == (status > 0)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", [["rollback", "good", "--yes"], ["list", "--json"], ["tree", "--all"]])
def test_a_full_disk_below_stdout_is_no_bug_and_what_was_done_stays_done(
    root: Path, args: list[str], unbuffered: str
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, args[0], root, *args[1:]],
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "the output cannot be written: No space left on device; what the command did stays done" in done.stderr
    with Checkpointer(root) as ck:
        assert len(ck.list_checkpoints()) == (4 if args[0] == "rollback" else 3)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_json_is_valid_in_any_locale(tmp_path: Path, encoding: str) -> None:
    names = {"Zoë": 1, "日本": 2, "\U0001f980": 3}
    with Checkpointer(tmp_path / "root") as ck, ck.begin() as cp:
        cp.save("seen", KeyedState(names))
    for form in ([], ["--json"]):
        done = subprocess.run(
            [*COMMAND, "cat", tmp_path / "root", "seen", *form],
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONIOENCODING": encoding},
            capture_output=True,
            timeout=PATIENCE,
            check=True,
        )
        records = json.loads(done.stdout) if form else list(map(json.loads, done.stdout.splitlines()))
        assert {record["key"]: record["value"] for record in records} == names
    done = subprocess.run(
        [*COMMAND, "list", tmp_path / "Zoë", "--json"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=PATIENCE,
    )
    assert "Zoë" in json.loads(done.stderr)["error"]["message"]
