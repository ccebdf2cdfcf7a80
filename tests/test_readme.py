"""The README shows only what runs: its Python programs are run as they stand, in a new folder, twice."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
NAMES = [re.sub(r"\W+", "-", program.splitlines()[0]) for program in PROGRAMS]


@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_a_program_of_the_readme_runs_and_runs_again(program: str, tmp_path: Path) -> None:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.strip()


def test_the_readme_has_its_programs() -> None:
    assert len(PROGRAMS) == 3


def test_the_figures_are_those_of_the_benchmark() -> None:
    table = (README.parent / "benchmarks" / "results" / "full.md").read_text()
    assert f"<!-- bench -->\n{table}<!-- /bench -->" in README.read_text()
