"""Interpreters that are refused."""

import subprocess
import sys

from tests.programs import run_python


def test_a_python_without_its_lock_is_refused() -> None:
    program = "import sys; sys._is_gil_enabled = lambda: {}; import pyspark_checkpointer; print('imported')"
    refused = subprocess.run([sys.executable, "-c", program.format(False)], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "ImportError: pyspark_checkpointer needs the global interpreter lock" in refused.stderr
    assert "PYTHON_GIL=1" in refused.stderr
    assert run_python(program.format(True)) == "imported\n"
