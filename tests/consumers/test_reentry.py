"""A signal handler may use whatever the thread that it interrupts is using: nothing locks up, and nothing is lost."""

import subprocess
import sys
from collections import Counter

import pytest

from tests.consumers.reentry import SCENES


@pytest.mark.parametrize("scene", SCENES)
def test_a_handler_may_interrupt_at_any_step(scene: str, figures: Counter[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.consumers.reentry", scene],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 10
    figures["steps at which a handler interrupted"] += int(done.stdout)
