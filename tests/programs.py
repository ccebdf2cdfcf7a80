"""Programs that tests run in a Python of their own."""

import os
import subprocess
import sys


def run_python(program: str, **environment: str) -> str:
    """Return the output of a program. Anything on its standard error fails the test, and so does a hang."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        timeout=120,
        text=True,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
