"""The summary of the long run keeps the last whole run of each proof, and says what that was."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof.effort import TESTS, Run, area_of, commit_of, write_summary

ROOT = Path(__file__).parents[2]
KILLS, LOAD = {"kills": Run("Kills.", 2, 61.4)}, {"load": Run("Loads.", 1, 5)}


def table(path: Path, columns: int) -> list[str]:
    rows = [line for line in path.read_text().splitlines() if line.startswith("| ") and line.count(" |") == columns]
    return rows[1:]


def prove(folder: Path, *arguments: str) -> tuple[str, Path]:
    """Run what is in a folder as `make prove` does. Returns what it printed, and where it writes."""
    written = folder / "proof.md"
    environment = {**os.environ, "CHECKPOINTER_PROVE": str(written), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "tests.proof.effort", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    return done.stdout, written


def test_a_proof_that_ran_again_replaces_what_it_had_counted(tmp_path: Path) -> None:
    path = tmp_path / "proof.md"
    counts = {("kills", "driver: lost"): 0, ("kills", "old"): 5, ("load", "soak: commits"): 1234}
    write_summary(path, counts, KILLS | LOAD)
    write_summary(path, {("kills", "driver: lost"): 0, ("kills", "driver: kills"): 1_000_000}, KILLS)
    assert table(path, 3) == [
        "| kills | driver: kills | 1,000,000 |",
        "| kills | driver: lost | 0 |",
        "| load | soak: commits | 1,234 |",
    ]


def test_each_run_says_what_it_was_how_long_it_took_and_on_which_commit(tmp_path: Path) -> None:
    path = tmp_path / "proof.md"
    path.write_text("| old | things | 7 |\n")
    write_summary(path, {}, KILLS)
    write_summary(path, {("load", "soak: commits"): 1}, LOAD)
    commit, day = re.escape(commit_of(ROOT)), r"\d{4}-\d\d-\d\d"
    kills, load, old = table(path, 6)
    assert re.fullmatch(rf"\| kills \| Kills\. \| 2 \| 0:01:01 \| {commit} \| {day} \|", kills)
    assert re.fullmatch(rf"\| load \| Loads\. \| 1 \| 0:00:05 \| {commit} \| {day} \|", load)
    assert old == "| old | - | - | - | not recorded | - |"


def test_a_commit_with_changes_says_so(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *arguments], cwd=tmp_path, check=True)

    assert commit_of(tmp_path) == "no repository"
    (tmp_path / "file").write_text("1")
    git("init", "-q")
    git("add", "file")
    git("commit", "-qm", "First")
    clean = commit_of(tmp_path)
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    (tmp_path / "file").write_text("2")
    assert commit_of(tmp_path) == f"{clean} and changes"


def test_a_proof_is_named_after_its_file() -> None:
    assert area_of(TESTS / "proof" / "test_kills.py") == "kills"
    assert area_of(TESTS / "core" / "test_keyed_histories.py") == "core/keyed_histories"


def test_of_the_proofs_that_ran_those_are_written_of_which_every_test_passed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_whole='"""Whole,\nin two lines.\n\nMore."""\ndef test_it(figures, effort): figures["n"] += effort(1, 20)\n'
        "def test_no_proof(): assert False",
        test_broken='def test_it(figures): figures["n"] += 1\ndef test_that(figures): assert False',
        test_skipping="import pytest\n"
        'def test_it(figures): figures["n"] += 1\n'
        'def test_that(figures): pytest.skip("no server")',
        test_unreached='def test_it(figures): figures["n"] += 1',
    )
    order = ("test_skipping.py", "test_whole.py", "test_broken.py", "test_unreached.py")
    said, written = prove(pytester.path, "-x", *order)
    assert "1 failed, 3 passed, 1 skipped" in said, said
    assert table(written, 3) == ["| whole | n | 20 |"]
    (row,) = table(written, 6)
    assert row.startswith("| whole | Whole, in two lines. | 1 | ")
    before = written.read_text()
    said, _ = prove(pytester.path, "test_skipping.py", "-k", "test_it")
    assert "1 passed, 1 deselected" in said, said
    assert written.read_text() == before


def test_what_one_of_two_processes_counted_is_no_whole_run(pytester: pytest.Pytester) -> None:
    """The parts that went well, of a run in which another failed, are not written by the process that ran them."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_something(number, figures):
            figures["counted"] += 1
            assert number != 5
        """
    )
    said, written = prove(pytester.path, "-n", "2")
    assert "1 failed, 5 passed" in said, said
    assert not written.exists()
