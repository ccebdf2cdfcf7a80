"""The summary of the long run keeps the last whole run of each proof."""

from pathlib import Path

from tests.proof.effort import write_summary


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
