"""Records of a chain become one map, or an error that names the object."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.checkpoint import decode as decode_module
from pyspark_checkpointer.checkpoint.decode import merge
from pyspark_checkpointer.errors import MalformedError
from pyspark_checkpointer.manifests.codecs import MSGPACK
from pyspark_checkpointer.runtime.host import SystemHost
from tests.manifests.samples import alone
from tests.world import World


def test_a_snapshot_with_a_deletion_is_malformed() -> None:
    snapshot = alone(0, codec=MSGPACK.name)
    with pytest.raises(MalformedError, match="a snapshot holds a deletion"):
        merge((snapshot,), {snapshot: {"a": None}})


@pytest.mark.parametrize(
    ("state", "most"),
    [
        (KeyedState({"a": 1, "b": 2}), 0),
        (KeyedState({"a": "x" * 40_000}, partitions=1), 2),
        (KeyedState(dict.fromkeys(range(4000), 1), partitions=1), 2),
        (KeyedState({"a": 1}, partitions=100), 1),
    ],
    ids=["small", "a large value", "many entries", "many partitions"],
)
def test_only_a_small_map_is_restored_without_waking_a_thread(
    state: KeyedState, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"memory://decode-{most}-{len(state)}"
    with Checkpointer(root) as ck, ck.begin() as cp:
        cp.save("s", state)
    run, woken = SystemHost.run, 0

    def counted(host: SystemHost, work: Callable[[], Any]) -> Any:
        nonlocal woken
        woken += 1
        return run(work)

    with Checkpointer(root) as ck:
        restored = ck.restore()
        assert restored is not None
        monkeypatch.setattr(SystemHost, "run", counted)
        assert restored.keyed("s") == state
    assert woken == most


def test_objects_are_decoded_one_after_the_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(0)
    state = KeyedState({n: source.randbytes(100_000) for n in range(20)}, partitions=4)  # an object for each partition
    with world.actor().begin() as cp:
        cp.save("s", state)
    decode, running, most = decode_module.decode, list[int](), list[int]()

    def watched(*args: Any) -> Any:
        running.append(threading.get_ident())
        most.append(len(running))
        time.sleep(0.01)
        running.pop()
        return decode(*args)

    monkeypatch.setattr(decode_module, "decode", watched)
    restored = world.actor().restore()
    assert restored is not None
    assert restored.keyed("s") == state
    assert most == [1, 1, 1, 1]
