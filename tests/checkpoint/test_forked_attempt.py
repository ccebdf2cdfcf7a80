"""An attempt that a fork copied stays its parent's: what a child would add to it is refused, not dropped in silence."""

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint
from tests.world import latest, put

SECONDS = 60


def in_child(work: Callable[[], object]) -> str:
    """Run `work` in a forked child. Returns the last line of what it raised, "" where it raised nothing."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            work()
        except BaseException as error:
            said = traceback.format_exception_only(error)[-1].strip()
        finally:
            os.write(sending, said.encode())
            os._exit(0)
    os.close(sending)
    try:
        with os.fdopen(receiving) as answer:
            return answer.read()
    finally:
        os.waitpid(child, 0)


WRITES: dict[str, Callable[[Checkpoint], object]] = {
    "snapshot": lambda cp: cp.snapshot("op", 1, b"child"),
    "delta": lambda cp: cp.delta("op", 0, b"child"),
    "save": lambda cp: cp.save("map", KeyedState({"child": 1})),
    "keep": lambda cp: cp.keep("op"),
    "drop": lambda cp: cp.drop("op"),
    "prepare": lambda cp: cp.prepare(),
    "commit": lambda cp: cp.commit(),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_child_cannot_write_into_its_parents_attempt(tmp_path: Path, write: str) -> None:
    client = Checkpointer(tmp_path)
    put(client, b"first")
    with client.begin() as cp:
        cp.delta("op", 0, b"parent")
        assert "belongs to its parent: write here with save_snapshot" in in_child(lambda: WRITES[write](cp))
    restored = Checkpointer(tmp_path).restore()
    assert restored is not None
    assert restored.operator("op").partition(0) == [b"first", b"parent"]
    assert restored.operators == ["op"]


def leave(cp: Checkpoint) -> None:
    with cp:
        pass


def leave_with(cp: Checkpoint) -> None:
    with cp:
        sys.exit("the child is done")


def test_a_child_that_leaves_the_block_is_told_and_commits_nothing(tmp_path: Path) -> None:
    client = Checkpointer(tmp_path)
    cp = client.begin()
    cp.snapshot("op", 0, b"parent")
    assert "belongs to its parent" in in_child(lambda: leave(cp))
    assert Checkpointer(tmp_path).read_latest() is None
    assert in_child(lambda: leave_with(cp)) == "SystemExit: the child is done"
    assert in_child(cp.abort) == ""
    cp.commit()
    assert latest(Checkpointer(tmp_path)) == b"parent"


def test_a_child_writes_artifacts_that_its_parent_attaches(tmp_path: Path) -> None:
    """The way that the error names."""
    client = Checkpointer(tmp_path)
    with client.begin() as cp, multiprocessing.get_context("fork").Pool(2) as pool:
        for artifact in pool.starmap(client.save_snapshot, [(cp.id, "op", n, b"%d" % n) for n in range(4)]):
            cp.attach(artifact)
    restored = Checkpointer(tmp_path).restore()
    assert restored is not None
    assert restored.operator("op").read() == {n: [b"%d" % n] for n in range(4)}


def test_a_child_redeems_what_it_restored_itself(tmp_path: Path) -> None:
    client = Checkpointer(tmp_path)
    with client.begin() as cp:
        cp.snapshot("op", 0, b"prepared")
        prepared = cp.prepare()
    assert "restore().prepared is the same here" in in_child(prepared.commit)
    assert "restore().prepared is the same here" in in_child(prepared.abort)

    def redeem() -> None:
        restored = client.restore()
        assert restored is not None
        assert restored.prepared is not None
        restored.prepared.commit()

    assert in_child(redeem) == ""
    assert latest(Checkpointer(tmp_path)) == b"prepared"
