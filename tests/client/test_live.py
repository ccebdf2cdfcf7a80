"""Live objects belong to the process that made them: pickling or copying them is refused, with the way that works."""

import asyncio
import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer
from pyspark_checkpointer.errors import IllegalArgumentError
from tests.world import put

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": pickle.dumps,
    "pickle 2": lambda live: pickle.dumps(live, 2),
    "within a value": lambda live: pickle.dumps({"of a closure": [live]}),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def objects(root: Path) -> dict[str, Any]:
    client = Checkpointer(root)
    put(client, b"first")
    restored = client.restore()
    assert restored is not None
    cp = client.begin()
    prepared = client.begin().prepare()

    async def live() -> dict[str, Any]:
        a = AsyncCheckpointer(root)
        found = await a.restore()
        assert found is not None
        assert found.prepared is not None
        return {
            "AsyncCheckpoint": a.begin(),
            "AsyncRestored": found,
            "AsyncRestoredOperator": found.operator("op"),
            "AsyncPrepared": found.prepared,
        }

    blocking = {
        "Checkpoint": cp,
        "Restored": restored,
        "RestoredOperator": restored.operator("op"),
        "Prepared": prepared,
    }
    return blocking | asyncio.run(live())


NAMES = ["Checkpoint", "Restored", "RestoredOperator", "Prepared"]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_alive_is_neither_pickled_nor_copied(way: str, tmp_path: Path) -> None:
    found = objects(tmp_path / "root")
    assert set(found) == {*NAMES, *(f"Async{name}" for name in NAMES)}
    for name, live in found.items():
        assert type(live).__name__ == name
        with pytest.raises(IllegalArgumentError, match=f"^{name}: cannot be pickled, copied, sent to tasks") as refused:
            WAYS[way](live)
        assert "Checkpointer, which is its configuration only" in str(refused.value)


def test_what_the_error_says_works(tmp_path: Path) -> None:
    client = Checkpointer(tmp_path / "root")
    with client.begin() as cp:
        there: Checkpointer = pickle.loads(pickle.dumps(client))
        cp.attach(there.save_snapshot(str(cp.id), "op", 0, b"from a task"))
    restored = client.restore()
    assert restored is not None
    again = pickle.loads(pickle.dumps(client)).restore(id=restored.id)
    assert again.operator("op").partition(0) == [b"from a task"]
