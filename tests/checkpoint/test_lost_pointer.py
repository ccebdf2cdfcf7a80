"""A root that lost its `_latest` is never taken for an empty one, whatever is asked of it and by whom."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, RetentionPolicy
from pyspark_checkpointer.errors import InvalidStateError
from tests.world import World, latest, put

KEPT = RetentionPolicy(keep_last=1, grace=timedelta(0))


@pytest.fixture
def lost(world: World) -> World:
    """A root of five checkpoints and a savepoint, without its pointer."""
    with world.actor() as client:
        for number in range(5):
            put(client, b"%d" % number, epoch=number)
        client.savepoint("sp")
    world.delete("_latest")
    return world


def commit(client: Checkpointer) -> None:
    with client.begin(epoch=9) as cp:
        cp.snapshot("op", 0, b"new")


VERBS: dict[str, Callable[[Checkpointer], object]] = {
    "begin": lambda ck: ck.begin(epoch=9).__enter__(),
    "clean": lambda ck: ck.clean(KEPT),
    "delete_checkpoint": lambda ck: ck.delete_checkpoint("0000000003"),
    "delete_savepoint": lambda ck: ck.delete_savepoint("sp"),
    "export": lambda ck: ck.export("latest", "memory://elsewhere"),
    "list_checkpoints": lambda ck: ck.list_checkpoints(),
    "plan": lambda ck: ck.plan(KEPT),
    "prepare": lambda ck: ck.begin(epoch=9).__enter__().prepare(),
    "read_latest": lambda ck: ck.read_latest(),
    "restore": lambda ck: ck.restore(),
    "restore at": lambda ck: ck.restore("at=2026-01-01T00:00Z"),
    "restore epoch": lambda ck: ck.restore(epoch=3),
    "restore id": lambda ck: ck.restore("0000000003"),
    "restore previous": lambda ck: ck.restore(on_corruption="previous"),
    "restore savepoint": lambda ck: ck.restore(savepoint="sp"),
    "rollback": lambda ck: ck.rollback("sp"),
    "savepoint": lambda ck: ck.savepoint("another"),
    "savepoints": lambda ck: ck.savepoints(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_that_it_was_lost(lost: World, verb: str) -> None:
    before = lost.objects()
    with pytest.raises(InvalidStateError, match=r"has no _latest, though manifests up to .* it was lost.*repair"):
        VERBS[verb](lost.actor())
    assert lost.objects() == before


@pytest.mark.parametrize("ask", ["restore", "read_latest", "list_checkpoints"])
def test_so_does_the_asynchronous_face(tmp_path: Path, ask: str) -> None:
    with Checkpointer(tmp_path) as client:
        for number in range(2):
            put(client, b"%d" % number)
    (tmp_path / "_latest").unlink()

    async def main() -> None:
        async with AsyncCheckpointer(tmp_path) as client:
            await getattr(client, ask)()

    with pytest.raises(InvalidStateError, match="it was lost"):
        asyncio.run(main())


def test_a_client_that_restored_before_is_told_so_and_not_that_another_writer_took_over(world: World) -> None:
    client = world.actor()
    for number in range(3):
        put(client, b"%d" % number)
    before = len(world.objects("manifests/"))
    world.delete("_latest")
    with pytest.raises(InvalidStateError, match="it was lost"):
        commit(client)
    with pytest.raises(InvalidStateError, match="it was lost"):
        commit(client)
    assert len(world.objects("manifests/")) <= before + 2
    assert "_latest" not in world.objects()


def test_so_is_the_writer_of_the_first_checkpoint_alone(world: World) -> None:
    """Its second attempt has written a manifest at sequence 2, which proves that there was a first commit."""
    client = world.actor()
    put(client, b"0")
    world.delete("_latest")
    with pytest.raises(InvalidStateError, match="it was lost"):
        commit(client)


def test_commits_between_the_two_looks_are_no_loss(world: World) -> None:
    """The reader sees no pointer, then two commits are made, then it lists manifests up to the second."""
    reader = world.actor()
    writer = world.actor()

    def commit_twice(_: object) -> None:
        put(writer, b"0")
        put(writer, b"1")

    reader.faults.call(commit_twice, "list")
    assert latest(reader) == b"1"


def test_verify_and_repair_still_look_at_it(lost: World) -> None:
    client = lost.actor()
    (finding,) = client.verify().findings
    assert finding.missing
    assert "hurts every checkpoint" in str(finding)
    (candidate, *_) = client.repair_candidates()
    client.repair(candidate.id)
    assert latest(lost.actor()) == b"4"
