"""A fresh root for each test, and no waiting where somebody else was faster."""

import pytest

from checkpointer.progress import document
from tests.progress.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_LONGEST_WAIT", 0.0)
