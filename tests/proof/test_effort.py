"""The summary of the long run keeps the last whole run of each proof."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof.effort import write_summary

ROOT = Path(__file__).parents[2]


def test_a_proof_that_ran_again_replaces_what_it_had_counted(tmp_path: Path) -> None:
    path = tmp_path / "proof.md"
    write_summary(path, {("kills", "driver: lost"): 0, ("kills", "old"): 5, ("load", "soak: commits"): 1234})
    write_summary(path, {("kills", "driver: lost"): 0, ("kills", "driver: kills"): 1_000_000})
    rows = [line for line in path.read_text().splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        "| kills | driver: kills | 1,000,000 |",
        "| kills | driver: lost | 0 |",
        "| load | soak: commits | 1,234 |",
    ]


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
    written = pytester.path / "proof.md"
    environment = {**os.environ, "CHECKPOINTER_PROVE": str(written), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "tests.proof.effort", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=pytester.path, env=environment, capture_output=True, text=True, timeout=100)
    assert "1 failed, 5 passed" in done.stdout, done.stdout
    assert not written.exists()
