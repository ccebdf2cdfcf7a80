"""A signal handler may use whatever the thread that it interrupts is using: nothing locks up, and nothing is lost."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from tests.consumers.reentry import SCENES


@pytest.mark.parametrize("scene", SCENES)
def test_a_handler_may_interrupt_at_any_step(
    scene: str, figures: Counter[str], effort: Callable[[int, int], int]
) -> None:
    """At every step of the interpreter, or in the short run at every third."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.consumers.reentry", scene, str(effort(3, 1))],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 10
    figures["steps at which a handler interrupted"] += int(done.stdout)
