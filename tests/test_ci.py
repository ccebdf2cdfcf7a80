"""What CI runs, and what fails it: `.ci/run` with all its programs replaced by one that notes how it was called."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
NAME = re.compile(r"^def (test_\w+)", re.MULTILINE)

NOTE = """#!/bin/sh
case " $* " in
    *" smoke "*) sleep 0.2; echo "said by the smoke test" ;;
    *" test "*) servers=" servers=$CHECKPOINTER_REQUIRE_SERVERS" ;;
esac
echo "$*$servers" >>"$CALLS"
case "$*" in
    $FAILS) exit 3 ;;
    *audit*) exit "$AUDIT" ;;
esac
"""


def run(tmp_path: Path, fails: str = "nothing", audit: int = 0) -> tuple[int, list[str], str]:
    """Run it where the calls that fit a pattern fail; return its status, the calls, and what it printed."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(PROJECT / ".ci" / "run", tmp_path / ".ci" / "run")
    for place in ("bin/make", "scripts/run", ".venv/bin/python"):
        program = tmp_path / place
        program.parent.mkdir(parents=True)
        program.write_text(NOTE)
        program.chmod(0o755)
    calls = tmp_path / "calls"
    environ = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "CALLS": str(calls)}
    environ |= {"FAILS": fails, "AUDIT": str(audit)}
    done = subprocess.run([tmp_path / ".ci" / "run"], env=environ, capture_output=True, text=True, timeout=60)
    return done.returncode, calls.read_text().splitlines(), done.stdout + done.stderr


def test_everything_runs_and_the_smoke_test_speaks_last(tmp_path: Path) -> None:
    status, calls, said = run(tmp_path)
    assert status == 0
    assert calls[0] == "setup"
    assert sorted(calls[1:6]) == [
        "docs",
        "lint",
        "python -m pytest --collect-only -qq",
        "python scripts/matrix oldest --fetch",
        "servers",
    ]
    assert sorted(calls[6:8]) == ["smoke", "test servers=1"]
    assert calls[8:] == ["scripts/audit"]
    assert said == "said by the smoke test\n"


@pytest.mark.parametrize("step", ["setup", "servers", "*--fetch", "*--collect-only*", "docs", "lint"])
def test_a_step_before_the_tests_that_fails_ends_it(tmp_path: Path, step: str) -> None:
    status, calls, _ = run(tmp_path, step)
    assert status not in (0, 75)
    assert not any(call.startswith(("test", "smoke")) for call in calls)


@pytest.mark.parametrize("step", ["smoke", "test"])
def test_tests_that_fail_fail_it_after_the_others_have_ended(tmp_path: Path, step: str) -> None:
    status, calls, said = run(tmp_path, step)
    assert status == 3
    assert {"smoke", "test servers=1"} <= {*calls}
    assert "scripts/audit" not in calls
    assert "said by the smoke test" in said


@pytest.mark.parametrize(("audit", "status"), [(1, 1), (75, 0)])
def test_an_audit_fails_it_unless_nobody_answered(tmp_path: Path, audit: int, status: int) -> None:
    assert run(tmp_path, audit=audit)[0] == status


def test_the_smoke_test_chooses_tests_of_maps_and_tables() -> None:
    """A test that was given another name would be left out of it without a word."""
    makefile = (PROJECT / "Makefile").read_text()
    [smoke] = [part.partition("\n\n")[0] for part in makefile.split("SMOKE ?= ")[1:]]
    files, _, words = " ".join(smoke.replace("\\\n", " ").split()).partition(" -k ")
    for file in files.split():
        assert (PROJECT / file).is_file(), file
    tests = [f"{file}::{name}" for file in files.split() for name in NAME.findall((PROJECT / file).read_text())]
    for word in words.strip('"').split(" or "):
        assert any(word in test for test in tests), word
