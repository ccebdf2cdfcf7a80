"""A fresh root for each test of the core."""

from pathlib import Path

import pytest

from tests.core.world import World


@pytest.fixture
def world() -> World:
    """A root in memory."""
    return World()


@pytest.fixture
def folder(tmp_path: Path) -> World:
    """A root in a local folder."""
    return World(tmp_path / "root")
