"""Histories of tables on real Spark: large rows, relative roots, and executors that are processes of their own."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.proof.effort import SUMMARY

PROJECT = Path(__file__).parents[2]

PARTS = {
    ("local[2]", "absolute"): (0, 60),
    ("local[2]", "relative"): (3, 60),
    ("local-cluster[2,1,1024]", "absolute"): (0, 40),
    ("local-cluster[2,1,1024]", "relative"): (0, 60),
}
"""The number of histories of each kind in the short run, and in the long one.

In the short run tests/spark/test_cluster.py has tables on executors, under a relative root too.
"""


KINDS = [kind for kind, (short, _) in PARTS.items() if short or SUMMARY]


@pytest.mark.parametrize(("master", "root"), KINDS)
def test_a_table_on_spark_is_what_a_dict_would_be(
    master: str, root: str, tmp_path: Path, effort: Callable[[int, int], int], figures: Counter[str]
) -> None:
    count = effort(*PARTS[master, root])
    command = [sys.executable, "-m", "tests.proof.table_job", master, str(tmp_path), root, "0", str(count)]
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, env=env, timeout=7200, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    for name, number in json.loads(done.stdout.strip().splitlines()[-1]).items():
        figures[f"{master}: {name}" if name == "histories" else name] += number
