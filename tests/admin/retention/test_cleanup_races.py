"""Crash a cleanup, or let others work beside it: nothing that is or may become live is deleted."""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from pyspark_checkpointer import RetentionPolicy, runtime
from pyspark_checkpointer.checkpoint import commit
from pyspark_checkpointer.errors import CheckpointError, FencedError, RetiredError, StalePlanError
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.testing.requests import CrashError
from tests.admin.retention.histories import LAST_TWO, NO_GRACE, garbage, mixed
from tests.world import Actor, Contents, World, attempt, latest, line, put


def test_a_plan_is_outrun_even_in_the_middle_of_its_swap(world: World) -> None:
    client, other = world.actor(), world.actor()
    ids = mixed(client, 6)
    plan = client.plan(LAST_TWO)
    client.faults.call(lambda _: other.savepoint("just now", ids[0]), "swap")
    objects = world.objects()
    with pytest.raises(StalePlanError):
        client.apply(plan)
    assert objects <= world.objects()


def test_a_job_that_commits_faster_than_its_history_can_be_read_does_not_keep_cleanup_waiting(world: World) -> None:
    """Manifests that were read for one version of `_latest` are not read again for the next."""
    job, janitor = world.actor(), world.actor()
    ids = mixed(job, 40)
    job.savepoint("early", ids[3])
    job.clean(RetentionPolicy(keep_last=30, grace=timedelta(0)))
    before = len(world.objects("manifests/"))
    janitor.faults.call(lambda _: put(job, b"on it goes"), "swap", times=10)
    retired = janitor.clean(LAST_TWO).retired
    swaps = [n for n, request in enumerate(janitor.faults.requests) if request.kind == "swap"]
    assert len(swaps) == 11
    read = Counter(request.path for request in janitor.faults.requests[: swaps[-1]] if request.kind == "get")
    assert len([path for path in read if path.startswith("manifests/")]) == before + 10
    assert {path: times for path, times in read.items() if path.startswith("manifests/") and times > 1} == {}
    assert len(retired) == 30 + 10 - 2
    assert len(world.contents()) == 1 + 2


def test_clean_asks_the_policy_again_when_the_pointer_moved(world: World) -> None:
    client, other = world.actor(), world.actor()
    ids = mixed(client, 6)
    before = world.contents()
    client.faults.call(lambda _: other.savepoint("just now", ids[0]), "swap")
    client.clean(LAST_TWO)
    assert client.list_checkpoints() == [ids[0], *ids[4:]]
    assert world.contents() == {i: before[i] for i in [ids[0], *ids[4:]]}
    assert client.clean(NO_GRACE).deleted.objects <= 1  # the catalog that lost the race
    assert garbage(world) == set()


def test_the_loser_of_two_cleanups_does_not_claim_what_the_other_did(world: World) -> None:
    writer, one, two = world.actor(), world.actor(), world.actor()
    mixed(writer, 9)
    other: list[Any] = []
    one.faults.call(lambda _: other.append(two.clean(LAST_TWO)), "swap")
    assert one.clean(LAST_TWO).retired == ()
    assert len(other[0].retired) == 7


def test_two_cleanups_at_once(world: World) -> None:
    writer, one, two = world.actor(), world.actor(), world.actor()
    mixed(writer, 9)
    contents = world.contents()
    one.faults.call(lambda _: two.clean(LAST_TWO), "swap")
    one.clean(RetentionPolicy(keep_last=3, grace=timedelta(0)))
    kept = writer.list_checkpoints()
    assert len(kept) == 2
    assert world.contents() == {i: contents[i] for i in kept}
    one.clean(NO_GRACE)
    assert garbage(world) == set()


def test_a_cleanup_that_died_is_finished_by_the_next(world: World) -> None:
    client = world.actor()
    mixed(client, 9)
    contents = world.contents()
    kept = client.list_checkpoints()[-2:]
    for number in range(1, 100):
        victim = world.actor()
        victim.faults.crash(number, after=bool(number % 2))
        try:
            victim.clean(LAST_TWO)
        except CrashError:
            assert set(world.contents()) >= set(kept)
            continue
        break
    else:
        pytest.fail("never ended")
    assert world.contents() == {i: contents[i] for i in kept}
    assert garbage(world) == set()


def test_an_attempt_in_the_making_is_not_swept(world: World) -> None:
    writer, janitor = world.actor(), world.actor()
    line(writer, 3)
    running = attempt(writer, b"x" * 200_000)
    gate = writer.faults.hold("swap")
    work = runtime.submit(commit.commit(running.attempt))
    gate.wait()
    janitor.clean(LAST_TWO)
    gate.open()
    work.result()
    assert latest(world.actor()) == b"x" * 200_000
    assert world.actor().verify()


def test_a_commit_between_listing_and_deleting_is_not_swept(world: World) -> None:
    writer, janitor = world.actor(), world.actor()
    line(writer, 3)
    janitor.faults.call(lambda _: put(writer, b"4"), "list", times=100)
    janitor.faults.call(lambda _: put(writer, b"5"), "delete", times=100)
    janitor.clean(LAST_TWO)
    assert latest(world.actor()) == b"5"
    assert world.actor().verify()


def test_what_a_fenced_attempt_left_is_garbage_once_its_sequence_is_past(world: World) -> None:
    zombie, other, janitor = world.actor(), world.actor(), world.actor()
    line(zombie, 2)
    running = attempt(zombie, b"z" * 200_000)
    put(other, b"3")
    with pytest.raises(FencedError):
        running.commit()
    assert garbage(world)
    janitor.clean(NO_GRACE)
    assert garbage(world) == set()
    assert latest(world.actor()) == b"3"


def test_a_sweep_that_stalled_for_long_still_deletes_only_what_is_dead(world: World) -> None:
    writer, janitor = world.actor(), world.actor()
    ids = mixed(writer, 6)
    gate = janitor.faults.hold("delete")
    work = runtime.submit(_clean(janitor))
    gate.wait()
    for number in range(7, 12):
        put(writer, b"%d" % number)
    writer.savepoint("kept", ids[5])
    writer.rollback(ids[4])
    writer.delete_checkpoint(ids[4])
    contents = world.contents()
    gate.open()
    work.result()
    assert world.contents() == contents
    assert world.actor().verify()


async def _clean(client: Actor) -> None:
    from pyspark_checkpointer.admin.retention.garbage_collect import retire_and_sweep

    await retire_and_sweep(client.session, LAST_TWO)


def test_a_reader_whose_checkpoint_goes_is_told_so(world: World) -> None:
    writer, reader = world.actor(), world.actor()
    ids = mixed(writer, 5)
    restored = reader.restore(ids[0])
    assert restored is not None
    world.actor().clean(LAST_TWO)
    assert restored.operator("chain").partition(0) == [b"0"], "a newer one needs it too"
    with pytest.raises(RetiredError):
        restored.operator("own").partition(0)
    assert latest_own(world) == [b"5"]


def latest_own(world: World) -> list[bytes]:
    restored = world.actor().restore()
    assert restored is not None
    return restored.operator("own").partition(0)


def test_a_restore_under_way_starts_over_when_its_checkpoint_goes(world: World) -> None:
    writer, reader = world.actor(), world.actor()
    line(writer, 3)

    def move_on(_: object) -> None:
        put(writer, b"4")
        put(writer, b"5")
        world.actor().clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))

    reader.faults.call(move_on, "get", path="manifests/")
    assert latest(reader) == b"5"


@pytest.mark.parametrize("seed", range(24))
def test_random_histories_lose_nothing(seed: int) -> None:
    """Play writers, savepoints, rollbacks, deletions and cleanups; some fail or die midway."""
    rng = random.Random(seed)
    world = World()
    known: dict[CheckpointId, Contents] = {}
    writer = world.actor()
    mixed(writer, 3)
    for step in range(25):
        live = world.contents()
        for checkpoint, contents in live.items():
            assert known.setdefault(checkpoint, contents) == contents
        act(rng, world, writer if rng.random() < 0.7 else world.actor(), step)
    world.actor().clean(NO_GRACE)
    assert world.actor().verify()
    assert garbage(world) == set()


def act(rng: random.Random, world: World, client: Actor, step: int) -> None:
    ids = client.list_checkpoints()
    names = [savepoint.name for savepoint in client.savepoints()]
    policy = rng.choice(
        [
            LAST_TWO,
            NO_GRACE,
            RetentionPolicy(keep_last=rng.randint(1, 4), every_epoch=rng.randint(1, 5), grace=timedelta(0)),
            RetentionPolicy(keep_last=1),
            RetentionPolicy(keep_if=lambda _: rng.random() < 0.5, grace=timedelta(0)),
        ]
    )

    def commit() -> None:
        client.restore()
        with client.begin(step) as cp:
            cp.snapshot("own", 0, b"step %d" % step)
            cp.delta("chain", 0, b"step %d" % step)

    def dying_cleanup() -> None:
        victim = world.actor()
        victim.faults.crash(rng.randint(1, 25), after=rng.random() < 0.5)
        victim.clean(policy)

    def cleanup_against_a_writer() -> None:
        janitor, busy = world.actor(), world.actor()
        busy.restore()
        janitor.faults.call(lambda _: put(busy, b"busy %d" % step), rng.choice(["list", "swap", "delete", "get"]))
        janitor.clean(policy)

    actions: list[Callable[[], object]] = [
        commit,
        commit,
        lambda: client.savepoint(f"s{step}", rng.choice(ids)),
        lambda: client.delete_savepoint(rng.choice(names)),
        lambda: client.rollback(rng.choice(ids)),
        lambda: client.delete_checkpoint(rng.choice(ids)),
        lambda: client.clean(policy),
        lambda: client.apply(client.plan(policy)),
        dying_cleanup,
        cleanup_against_a_writer,
    ]
    with suppress(CheckpointError, CrashError, IndexError):
        rng.choice(actions)()
    if rng.random() < 0.3:
        client.restore()
