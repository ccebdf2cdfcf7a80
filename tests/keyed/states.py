"""What the tests of keyed states have in common."""

from contextlib import suppress
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.keyed import references
from tests.world import World

BULK = 400
"""Keys that make a snapshot large enough for deltas to be written on top of it."""

exact_counts = pytest.mark.skipif(
    not references._COUNTED,
    reason="a Python that can run without the GIL does not count references exactly: every value counts as held",
)


def filled(partitions: int = 1, **more: Any) -> KeyedState:
    state = KeyedState({f"bulk {n}": f"{n:032}" for n in range(BULK)}, partitions=partitions)
    state.update(more)
    return state


def save(client: Checkpointer, state: KeyedState) -> None:
    with client.begin() as cp:
        cp.save("s", state)


def saved(world: World) -> dict[Any, Any]:
    """What a fresh reader finds."""
    restored = world.actor().restore()
    assert restored is not None
    return dict(restored.keyed("s"))


def notes_deletions(state: KeyedState) -> bool:
    """Whether each partition whose changes have deletions says so."""
    return all(part.has_deletions or None not in part.dirty.values() for part in state._parts)


def live_keys(state: KeyedState) -> list[Any]:
    return [key for part in state._parts for key in part.live]


def kinds(client: Checkpointer, partition: int = 0) -> list[str]:
    restored = client.restore()
    assert restored is not None
    return [artifact.kind for artifact in restored.operator("s").chain(partition)]


def failing_save(client: Checkpointer, state: KeyedState) -> None:
    """A block that raises after its save."""
    with suppress(ZeroDivisionError), client.begin() as cp:
        cp.save("s", state)
        raise ZeroDivisionError
