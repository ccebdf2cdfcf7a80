"""Histories of tables on real Spark: large rows, relative roots, and executors that are processes of their own."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

PROJECT = Path(__file__).parents[2]

PARTS = {
    ("local[2]", "absolute"): 60,
    ("local[2]", "relative"): 60,
    ("local-cluster[2,1,1024]", "absolute"): 40,
    ("local-cluster[2,1,1024]", "relative"): 60,
}
"""The number of histories of each kind."""


# In the short run tests/proof/test_table_histories.py and test_table_walks.py have such histories without a JVM.
# tests/spark/test_table_compaction.py has random ones on Spark, and tests/spark/test_cluster.py has tables on
# executors, under a relative root too.
@pytest.mark.prove
@pytest.mark.parametrize(("master", "root"), PARTS)
def test_a_table_on_spark_is_what_a_dict_would_be(
    master: str, root: str, tmp_path: Path, figures: Counter[str]
) -> None:
    count = PARTS[master, root]
    command = [sys.executable, "-m", "tests.proof.table_job", master, str(tmp_path), root, "0", str(count)]
    # What is there already may lead to another PySpark than `.venv` has.
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, env=env, timeout=7200, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    for name, number in json.loads(done.stdout.strip().splitlines()[-1]).items():
        figures[f"{master}: {name}" if name == "histories" else name] += number
