"""Workers that are killed one after the other count every record once."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_no_record_is_lost_or_counted_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.sharded_source", "--folder", str(tmp_path), "--kills", "5"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=180, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    *kills, last = done.stdout.splitlines()
    counted = [int(re.search(r"([\d,]+) of", line)[1].replace(",", "")) for line in kills]  # type: ignore[index]
    assert last == "6,000 records counted, 6,000 written: exact"
    assert len(counted) == 5
    assert 0 < counted[-1] < 6000  # they were killed in the middle of it
