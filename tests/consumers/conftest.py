"""A fresh root for each test, two workers on one, and no waiting where somebody else was faster."""

import pytest

from pyspark_checkpointer.consumers import cas_object
from tests.consumers.world import Worker, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cas_object, "_MAX_BACKOFF_SECONDS", 0.0)


@pytest.fixture
def pair(world: World) -> tuple[Worker, Worker]:
    """Two workers on a group with one partition, p, that nobody has."""
    world.create("p")
    return world.worker("a"), world.worker("b")
