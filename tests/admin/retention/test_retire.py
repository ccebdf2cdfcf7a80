"""A policy retires checkpoints with one swap, keeps what it must, and waits for readers."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from pyspark_checkpointer import RetentionPolicy
from pyspark_checkpointer.admin.retention.retire import KnownManifests, decide_retention
from pyspark_checkpointer.admin.retention.spool import Total
from pyspark_checkpointer.checkpoint.latest import read_head
from pyspark_checkpointer.errors import IllegalArgumentError, RetiredError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.base import ObjectRefusedError
from tests.admin.retention.histories import LAST_TWO, NO_GRACE, garbage, mixed, with_clock
from tests.world import World, attempt, got, latest, line, put


def test_the_recent_run_stays_history_and_what_else_is_kept_goes_into_the_catalog(world: World) -> None:
    client = world.actor()
    ids = mixed(client, 12)
    client.savepoint("third", ids[2])
    before = world.contents()
    done = client.clean(RetentionPolicy(keep_last=3, every_epoch=4, grace=timedelta(0)))
    kept = [ids[2], ids[3], ids[7], *ids[9:]]
    assert client.list_checkpoints() == kept
    assert list(done.retired) == [i for i in ids if i not in kept]
    assert world.pointer().boundary == ids[9].sequence
    assert world.contents() == {i: before[i] for i in kept}
    assert garbage(world) == set()
    assert client.verify()
    assert [(s.name, s.id) for s in client.savepoints()] == [("third", ids[2])]


def test_a_savepoint_that_is_deleted_leaves_its_checkpoint_to_the_rules(world: World) -> None:
    client, reader = world.actor(), world.actor()
    clock, ids = with_clock(client), mixed(client, 8)
    client.savepoint("of the rule", ids[3])
    client.savepoint("of nothing else", ids[4])
    client.clean(RetentionPolicy(keep_last=2, every_epoch=4, grace=timedelta(0)))
    assert client.list_checkpoints() == [ids[3], ids[4], *ids[6:]]
    used = reader.restore(savepoint="of nothing else")
    for name in ("of the rule", "of nothing else"):
        client.delete_savepoint(name)
    assert client.list_checkpoints() == [ids[3], ids[4], *ids[6:]]
    clock.time += timedelta(hours=2)
    client.clean(RetentionPolicy(keep_last=2, every_epoch=4, grace=timedelta(hours=1)))
    assert client.list_checkpoints() == [ids[3], *ids[6:]]
    assert used.operator("own").partition(0) == [b"5"], "a reader has the grace period"
    client.clean(NO_GRACE)
    assert client.verify()
    assert garbage(world) == set()


def test_retention_costs_one_swap_and_fences_nobody(world: World) -> None:
    writer, janitor = world.actor(), world.actor()
    line(writer, 9)
    before = world.pointer().writer
    janitor.clean(LAST_TWO)
    assert janitor.faults.counts["swap"] == 1
    assert world.pointer().writer == before
    put(writer, b"10")  # finds the pointer moved, and plans again on it
    assert latest(world.actor()) == b"10"
    assert world.pointer().boundary == 8


def test_nothing_to_do_swaps_and_deletes_nothing(world: World) -> None:
    client = world.actor()
    line(client, 3)
    before = world.latest()
    client.faults.forget()
    done = client.clean(RetentionPolicy(keep_last=3, grace=timedelta(0)))
    assert (done.retired, done.deleted, done.later) == ((), Total(), Total())
    assert world.latest() == before
    assert not {"swap", "put", "delete"} & client.faults.counts.keys()


def test_the_committed_and_the_prepared_one_and_savepoints_stay_whatever_the_policy_says(world: World) -> None:
    client = world.actor()
    ids = line(client, 4)
    client.savepoint("second", ids[1])
    prepared = attempt(client, b"prepared").prepare()
    policy = RetentionPolicy(keep_if=lambda _: False, grace=timedelta(0))
    (row,) = [row for row in client.plan(policy) if row.path == object_paths.manifest(prepared.id)]
    assert (row.action, row.reason) == ("keep", "prepared")
    client.clean(policy)
    assert client.list_checkpoints() == [ids[1], ids[3]]
    assert got(world.actor().restore(savepoint="second")) == b"2"
    prepared.commit()
    assert latest(world.actor()) == b"prepared"


def test_what_retention_kept_is_asked_again_the_next_time(world: World) -> None:
    client = world.actor()
    ids = mixed(client, 8)
    client.clean(RetentionPolicy(keep_last=1, every_epoch=2, grace=timedelta(0)))
    assert client.list_checkpoints() == [ids[1], ids[3], ids[5], ids[7]]
    client.clean(RetentionPolicy(keep_last=1, every_epoch=4, grace=timedelta(0)))
    assert client.list_checkpoints() == [ids[3], ids[7]]
    assert garbage(world) == set()


def test_a_replaced_catalog_goes_with_a_later_cleanup(world: World) -> None:
    client = world.actor()
    ids = line(client, 3)
    client.savepoint("one", ids[0])
    client.savepoint("two", ids[1])
    assert len(world.objects("catalog/")) == 2
    client.clean(NO_GRACE)
    assert len(world.objects("catalog/")) == 2, "above the committed sequence, as one that is being swapped in"
    put(client, b"4")
    client.clean(NO_GRACE)
    assert len(world.objects("catalog/")) == 1


def test_a_restore_goes_on_from_the_newest_after_retention(world: World) -> None:
    client = world.actor()
    mixed(client, 7)
    world.actor().clean(LAST_TWO)
    reader = world.actor()
    restored = reader.restore()
    assert restored is not None
    assert restored.operator("chain").partition(0) == [b"0", b"6", b"7"]
    put(reader, b"8")


def test_the_time_comes_from_the_host_and_the_grace_period_is_kept(world: World) -> None:
    client = world.actor()
    clock = with_clock(client)
    ids = line(client, 5)
    policy = RetentionPolicy(keep_last=1, grace=timedelta(hours=1))
    before = world.objects()
    done = client.clean(policy)
    assert (len(done.retired), done.deleted.objects, done.later.objects) == (4, 0, 8)
    assert client.list_checkpoints() == [ids[4]]
    assert before <= world.objects()
    clock.time += timedelta(minutes=59)
    assert client.clean(policy).deleted.objects == 0
    clock.time += timedelta(minutes=1)
    assert client.clean(policy).deleted.objects == 8
    assert garbage(world) == set()


def test_a_later_retirement_does_not_shorten_the_grace_of_an_earlier_one(world: World) -> None:
    client, reader = world.actor(), world.actor()
    clock = with_clock(client)
    ids = mixed(client, 6)
    restored = reader.restore(ids[0])
    assert restored is not None
    for keep in (4, 2):
        done = client.clean(RetentionPolicy(keep_last=keep, grace=timedelta(minutes=80)))
        assert len(done.retired) == 2
        clock.time += timedelta(minutes=10)
    client.clean(RetentionPolicy(keep_last=2, grace=timedelta(minutes=80)))
    assert restored.operator("own").partition(0) == [b"1"]
    clock.time += timedelta(minutes=60)
    client.clean(RetentionPolicy(keep_last=2, grace=timedelta(minutes=80)))
    with pytest.raises(RetiredError):
        restored.operator("own").partition(0)


def test_what_a_savepoint_followed_goes_while_others_are_retired(world: World) -> None:
    """The predecessor of a checkpoint that only the catalog keeps was live in no version that still counts."""
    client = world.actor()
    clock = with_clock(client)
    ids = mixed(client, 4)
    client.savepoint("x", ids[2])
    policy = RetentionPolicy(keep_last=1, grace=timedelta(hours=1))
    for number in range(5):
        client.clean(policy)
        clock.time += timedelta(hours=2)
        put(client, b"%d" % number)
    client.clean(policy)
    assert {str(ids[1]), str(ids[0])} & {str(object_paths.owner(path)) for path in world.objects("manifests/")} == set()
    assert object_paths.manifest(ids[2]) in world.objects()


def test_a_refused_listing_does_not_end_the_grace_period(world: World) -> None:
    client = world.actor(retries=False)
    line(client, 12)
    policy = RetentionPolicy(grace=timedelta(hours=1))
    client.clean(RetentionPolicy(keep_last=2, grace=timedelta(hours=1)))
    # The walk of the live checkpoints is too short to be listed. That of the retired ones is long.
    client.faults.fail("list", path="manifests/", error=ObjectRefusedError)
    with pytest.raises(ObjectRefusedError):
        client.plan(policy)
    assert {row.action for row in client.plan(policy)} == {"keep", "later"}


def test_a_boundary_that_moves_often_does_not_keep_everything(world: World) -> None:
    """Each entry of `retired` has a time of its own, and at most eight are made in a grace period."""
    client = world.actor()
    clock = with_clock(client)
    policy = RetentionPolicy(keep_last=1, grace=timedelta(minutes=40))
    for number in range(60):
        put(client, b"%d" % number)
        client.clean(policy)
        clock.time += timedelta(minutes=2)
        assert len(world.pointer().retired) <= 9
    # 40 minutes at two each, 5 more until they are retired, and what is live
    assert len(world.objects("manifests/")) <= 20 + 3 + 2


def test_a_cleanup_reads_each_manifest_that_was_retired_lately_once(world: World) -> None:
    client = world.actor()
    clock = with_clock(client)
    policy = RetentionPolicy(every_epoch=10, grace=timedelta(hours=1))
    for epoch in range(1, 401):
        put(client, b"%d" % epoch, epoch=epoch)
    assert len(client.clean(policy).retired) == 360
    clock.time += timedelta(minutes=30)
    client.faults.forget()
    assert client.clean(policy).later.objects > 700
    paths = [request.path for request in client.faults.requests if request.kind == "get"]
    read = Counter(path for path in paths if path.startswith("manifests/"))
    assert len(read) == 400
    assert sum(read.values()) <= 360 + 4 * 40
    clock.time += timedelta(minutes=30)
    client.clean(policy)
    assert garbage(world) == set()


def test_what_the_policy_needs_of_a_manifest_is_kept_in_memory_and_no_more(world: World) -> None:
    client = world.actor()
    policy = RetentionPolicy(every_epoch=2, grace=timedelta(0))
    for epoch in range(1, 21):
        put(client, b"%d" % epoch, epoch=epoch)
    client.clean(policy)
    known: KnownManifests = {}
    run_sync(decide_retention(client.session, run_sync(read_head(client.session.store)), policy, known))
    assert sorted(manifest.epoch or 0 for manifest in known.values()) == [*range(2, 21, 2)]
    assert not any(manifest.operators for manifest in known.values())


def test_a_clock_that_was_far_ahead_does_not_keep_everything(world: World) -> None:
    client = world.actor()
    clock = with_clock(client)
    now = clock.time
    line(client, 5)
    clock.time = now.replace(year=2099)
    client.clean(RetentionPolicy(keep_last=2))
    clock.time = now
    put(client, b"6")
    client.clean(RetentionPolicy(keep_last=2))
    assert garbage(world) <= {path for path in world.objects() if path.startswith("catalog/") or "0000000004" in path}


def test_a_policy_that_is_none_is_refused_before_anything_happens(world: World) -> None:
    client = world.actor()
    line(client, 3)
    client.faults.forget()
    for verb in (client.clean, client.plan):
        with pytest.raises(IllegalArgumentError, match="RetentionPolicy"):
            verb("x")  # type: ignore[arg-type]
    assert client.faults.requests == []


def test_users_functions_may_take_long_and_call_the_library(world: World) -> None:
    client = world.actor()
    ids = line(client, 5)
    seen: list[Any] = []

    def keep(manifest: Any) -> bool:
        seen.append(world.actor().load_manifest(manifest.id).id)  # would never answer on the event loop
        return True

    def progress(done: int, total: int) -> None:
        seen.append((done, total, world.actor().read_latest()))

    client.clean(RetentionPolicy(keep_if=keep))
    assert set(ids) <= set(seen)
    assert client.verify(progress=progress)
    client.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)), progress=progress)
    assert seen[-1] == (8, 8, ids[-1])
