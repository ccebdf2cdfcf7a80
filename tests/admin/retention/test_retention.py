"""Retire, plan, sweep: nothing that is live or may become so is deleted, whatever happens meanwhile."""

import gc
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pyspark_checkpointer import Checkpointer, RetentionPolicy, runtime
from pyspark_checkpointer.admin.retention.plan import Plan, PlanRow, Spool, Total
from pyspark_checkpointer.checkpoint import commit
from pyspark_checkpointer.checkpoint.latest import read_head
from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    CorruptionError,
    FencedError,
    IllegalArgumentError,
    RetiredError,
    StalePlanError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime.host import SystemHost
from pyspark_checkpointer.testing.requests import CrashError
from tests.conftest import Root
from tests.world import Actor, Contents, World, attempt, got, latest, line, live_objects, put

AT_ONCE = RetentionPolicy(grace=timedelta(0))
LAST_TWO = RetentionPolicy(keep_last=2, grace=timedelta(0))


class Clock(SystemHost):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time


def with_clock(client: Actor) -> Clock:
    clock = Clock()
    client.session.host = clock
    return clock


def garbage(world: World) -> set[str]:
    """What the store holds beyond what is live now, up to the committed sequence; a replaced catalog goes next time."""
    head = runtime.run_sync(read_head(world.store))
    live = runtime.run_sync(live_objects(world.store, SystemHost(), head))
    owners = {path: object_paths.owner(path) for path in world.objects() - live if not path.startswith("catalog/")}
    return {path for path, owner in owners.items() if owner is None or owner.sequence <= head.sequence}


def mixed(client: Checkpointer, length: int) -> list[CheckpointId]:
    """A history with chains, packs, objects that many checkpoints share, and some that only one needs."""
    ids = []
    for number in range(1, length + 1):
        with client.begin(number) as cp:
            cp.snapshot("own", 0, b"%d" % number)
            for partition in range(3):
                cp.snapshot("packed", partition, b"%d %d" % (number, partition))
            cp.snapshot("chain", 0, b"0") if number % 4 == 1 else cp.delta("chain", 0, b"%d" % number)
            if number % 3 == 1:
                cp.snapshot("shared", 0, b"shared %d" % number)
        ids.append(cp.id)
    return ids


# ---- retiring --------------------------------------------------------------------------------------------------------


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
    client.clean(AT_ONCE)
    assert len(world.objects("catalog/")) == 2, "above the committed sequence, as one that is being swapped in"
    put(client, b"4")
    client.clean(AT_ONCE)
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


def test_a_boundary_that_moves_often_does_not_keep_everything(world: World) -> None:
    """Each entry of `retired` has a time of its own, and retiring is done every eighth of the grace period at most."""
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


def test_a_plan_says_that_it_is_too_soon(world: World) -> None:
    client = world.actor()
    clock = with_clock(client)
    policy = RetentionPolicy(keep_last=1, grace=timedelta(minutes=80))
    line(client, 3)
    client.clean(policy)
    line(client, 2)
    plan = client.plan(policy)
    assert plan.retired == ()
    assert "every eighth" in str(plan.note)
    clock.time += timedelta(minutes=10)
    assert len(client.plan(policy).retired) == 2


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_has_every_object_once_and_deletes_nothing(world: World) -> None:
    client = world.actor()
    ids = mixed(client, 6)
    client.savepoint("second", ids[1])
    attempt(client, b"abandoned").prepare().abort()
    put(client, b"7")
    runtime.run_sync(world.store.put("progress/group/0", b"42"))
    runtime.run_sync(world.store.put("notes.txt", b"mine"))
    before = {entry.path: entry.size for entry in runtime.run_sync(world.store.list(""))}
    client.faults.forget()
    plan = client.plan(RetentionPolicy(keep_last=2))
    assert not {"swap", "put", "delete", "discard"} & client.faults.counts.keys()
    rows = [*plan]
    assert {row.path: row.size for row in rows} == before
    assert len(rows) == len(before)
    totals: Counter[Any] = Counter()
    for row in rows:
        totals[row.action] += row.size
    for action, size in totals.items():
        assert plan.total(action).bytes == size
    by_path = {row.path: row for row in rows}
    assert by_path["notes.txt"].action == by_path["progress/group/0"].action == "keep"
    assert "not of the format" in by_path["notes.txt"].reason
    assert by_path[object_paths.manifest(ids[1])].reason == "savepoint 'second'"
    assert by_path[object_paths.manifest(ids[2])].action == "later"
    assert by_path[object_paths.manifest(ids[2])].named_by == str(ids[2])
    assert {row.reason for row in rows if row.action == "delete"} == {"no live checkpoint names it"}
    assert [c.id for c in plan.checkpoints if not c.keep] == [ids[0], *ids[2:5]]


def test_a_row_names_the_strongest_of_those_that_need_an_object(world: World) -> None:
    client = world.actor()
    ids = mixed(client, 6)
    client.savepoint("first", ids[0])
    rows = {row.path: row for row in client.plan(RetentionPolicy(keep_last=1))}
    (shared,) = [path for path in rows if path.startswith(f"artifacts/shared/0/{ids[0]}")]
    assert (rows[shared].named_by, rows[shared].namers, rows[shared].action) == (str(ids[0]), 3, "keep")
    (newest,) = [path for path in rows if path.startswith(f"artifacts/shared/0/{ids[3]}")]
    assert (rows[newest].named_by, rows[newest].namers, rows[newest].reason) == (str(ids[5]), 3, "committed")


def test_a_saved_plan_is_the_same_plan(world: World, tmp_path: Path) -> None:
    client = world.actor()
    mixed(client, 9)
    plan = client.plan(LAST_TWO)
    plan.save(tmp_path / "plan")
    loaded = Plan.load(tmp_path / "plan")
    assert [*loaded] == [*plan]
    assert [*loaded] == [*plan], "as often as wanted"
    assert (loaded.totals, loaded.checkpoints, loaded.retired) == (plan.totals, plan.checkpoints, plan.retired)
    assert client.apply(loaded).deleted == plan.total("delete")
    assert garbage(world) == set()


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped", "version", "root", "sums", "deep", "long"])
def test_a_file_that_is_no_plan_is_refused_by_name(world: World, tmp_path: Path, damage: str) -> None:
    client = world.actor()
    mixed(client, 3)
    file = tmp_path / "plan"
    client.plan(LAST_TWO).save(file)
    data = file.read_bytes()
    body = data.index(b"\n") + 1
    file.write_bytes(
        {
            "empty": b"",
            "text": b"rm -rf",
            "cut": data[: body + 30],
            "flipped": data[:body] + bytes([data[body] ^ 255]) + data[body + 1 :],
            "root": data.replace(json.dumps(client.root).encode(), b'["plan"]'),
            "sums": re.sub(rb'"totals": \[\[("\w+", "[^"]+"), \d+', rb'"totals": [[\1, "x"', data, count=1),
            "deep": data[:body] + zstandard.compress(b"[" * 100_000),
            "long": data[:body] + zstandard.compress(b" " * (64 << 20)),
            "version": data.replace(b'"plan_version": 1', b'"plan_version": 2'),
        }[damage]
    )
    before = world.objects()
    with pytest.raises(CorruptionError, match="plan"):
        client.apply(Plan.load(file))
    assert world.objects() == before


def test_a_plan_from_a_file_cannot_delete_what_is_live(world: World, tmp_path: Path) -> None:
    """Somebody edited it; its nonce is still that of `_latest`."""
    client = world.actor()
    mixed(client, 4)
    file = tmp_path / "plan"
    plan = client.plan(AT_ONCE)
    plan.save(file)
    head = file.read_bytes().partition(b"\n")[0] + b"\n"
    rows = b"".join(json.dumps(row._replace(action="delete")).encode() + b"\n" for row in plan)
    before = world.objects()
    file.write_bytes(head + zstandard.compress(rows))
    with pytest.raises(CorruptionError, match="not what it says in sum"):
        Plan.load(file)
    file.write_bytes(head.replace(b'["keep", ', b'["delete", ') + zstandard.compress(rows))
    with pytest.raises(StalePlanError):
        client.apply(Plan.load(file))
    assert world.objects() == before


def test_what_was_applied_once_is_not_retired_again(world: World) -> None:
    client = world.actor()
    mixed(client, 6)
    plan = client.plan(LAST_TWO)
    assert len(client.apply(plan).retired) == 4
    assert client.apply(plan).retired == ()


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


@pytest.mark.parametrize("length", [3, 9])
def test_a_deleted_checkpoint_is_gone_although_others_were_retired_lately(world: World, length: int) -> None:
    client = world.actor()
    line(client, length)
    client.clean(RetentionPolicy(keep_last=2))
    oldest = client.list_checkpoints()[0]
    client.delete_checkpoint(oldest)
    assert {path for path in world.objects() if str(oldest) in path} <= {object_paths.manifest(oldest)}


def test_the_rows_of_a_plan_go_with_it(world: World) -> None:
    client = world.actor()
    line(client, 2)
    plan = client.plan()
    file = Path(str(plan._file))
    assert file.exists()
    del plan
    assert not file.exists()


def test_who_may_not_list_broken_writes_still_cleans_up(world: World) -> None:
    client = world.actor()
    mixed(client, 6)
    client.faults.fail("leftovers", times=9, error=StoreRefusedError)
    assert "interrupted writes" in str(client.plan(LAST_TWO).note)
    done = client.clean(LAST_TWO)
    assert (len(done.retired), "interrupted writes" in str(done.note)) == (4, True)
    assert garbage(world) == set()


def test_a_plan_that_failed_leaves_no_file(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    client = world.actor(retries=False)
    line(client, 2)
    client.faults.fail("leftovers")
    with pytest.raises(CheckpointError):
        client.plan()
    assert [*tmp_path.iterdir()] == []


# ---- applying --------------------------------------------------------------------------------------------------------


def test_commits_that_came_since_do_not_outrun_a_plan(world: World) -> None:
    writer, janitor = world.actor(), world.actor()
    ids = mixed(writer, 6)
    plan = janitor.plan(LAST_TWO)
    newer = [put(writer, b"%d" % n) for n in (7, 8)]
    before = world.contents()
    janitor.apply(plan)
    kept = [*ids[4:], *newer]
    assert writer.list_checkpoints() == kept
    assert world.contents() == {i: before[i] for i in kept}


def outrun_by_savepoint(client: Checkpointer, ids: list[CheckpointId]) -> None:
    client.savepoint("saved in time", ids[0])


def outrun_by_rollback(client: Checkpointer, ids: list[CheckpointId]) -> None:
    client.rollback(ids[0])


def outrun_by_rollback_and_savepoint(client: Checkpointer, ids: list[CheckpointId]) -> None:
    client.savepoint("again", client.rollback(ids[1]))
    put(client, b"more")


@pytest.mark.parametrize("event", [outrun_by_savepoint, outrun_by_rollback, outrun_by_rollback_and_savepoint])
def test_a_plan_that_was_outrun_is_refused_and_does_nothing(world: World, event: Callable[..., None]) -> None:
    client = world.actor()
    ids = mixed(client, 6)
    plan = client.plan(LAST_TWO)
    event(client, ids)
    before, objects, contents = world.latest(), world.objects(), world.contents()
    with pytest.raises(StalePlanError, match="new") as caught:
        world.actor().apply(plan)
    assert isinstance(caught.value, ConflictError)
    assert (world.latest(), world.objects()) == (before, objects)
    world.actor().clean(AT_ONCE)
    assert world.contents() == contents


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
    """What was read for one version of `_latest` is not read again for the next."""
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


def test_what_names_others_is_deleted_before_them(world: World) -> None:
    client, janitor = world.actor(), world.actor()
    mixed(client, 6)
    janitor.clean(LAST_TWO)
    janitor.clean(AT_ONCE)
    names = [request.path.startswith("artifacts/") for request in janitor.faults.requests if request.kind == "delete"]
    rounds = "".join("a" if artifacts else "m" for artifacts in names)
    assert re.fullmatch("(m+a+)+", rounds)


def test_where_there_is_no_room_for_a_swap_garbage_goes_first(world: World) -> None:
    client, janitor = world.actor(), world.actor()
    mixed(client, 6)
    client.begin().prepare().abort()
    put(client, b"on it goes")
    assert garbage(world) != set()
    janitor.faults.fail("swap", error=StoreRefusedError)
    done = janitor.clean(LAST_TWO)
    kinds = [request.kind for request in janitor.faults.requests if request.kind in ("swap", "delete")]
    assert kinds[:2] == ["swap", "delete"]
    assert kinds.count("swap") == 2
    assert len(done.retired) == 5
    assert garbage(world) == set()
    put(client, b"and on")
    janitor.faults.fail("swap", error=StoreRefusedError)
    with pytest.raises(StoreRefusedError, match="failed by the test"):  # and nothing to make room of
        janitor.clean(LAST_TWO)


def test_clean_asks_the_policy_again_when_the_pointer_moved(world: World) -> None:
    client, other = world.actor(), world.actor()
    ids = mixed(client, 6)
    before = world.contents()
    client.faults.call(lambda _: other.savepoint("just now", ids[0]), "swap")
    client.clean(LAST_TWO)
    assert client.list_checkpoints() == [ids[0], *ids[4:]]
    assert world.contents() == {i: before[i] for i in [ids[0], *ids[4:]]}
    assert client.clean(AT_ONCE).deleted.objects <= 1  # the catalog that lost the race
    assert garbage(world) == set()


def test_a_plan_is_for_one_store(world: World) -> None:
    client = world.actor()
    line(client, 2)
    other = World().actor()
    line(other, 2)
    with pytest.raises(IllegalArgumentError, match="was made for"):
        other.apply(client.plan())
    plan = client.plan(LAST_TWO)
    world.delete("_latest")
    with pytest.raises(StalePlanError, match="no _latest"):
        client.apply(plan)
    with pytest.raises(IllegalArgumentError):
        client.apply([])  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentError):
        client.plan(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("retired_before", [False, True])
def test_a_plan_for_a_store_that_went_back_in_time_is_refused(world: World, retired_before: bool) -> None:
    """A backup was put back: what was dead is live again, and what was written since looks as if in the making."""
    client = world.actor()
    line(client, 3)
    backup = world.latest(), world.objects(), {path: world.read(path) for path in world.objects()}
    line(client, 3)
    if retired_before:
        client.clean(RetentionPolicy(keep_last=2))
    plan = client.plan(AT_ONCE if retired_before else LAST_TWO)
    assert plan.total("delete").objects >= 6
    world.delete(*world.objects())
    for path, data in backup[2].items():
        runtime.run_sync(world.store.compare_and_swap(path, data, None))
    with pytest.raises(StalePlanError):
        world.actor().apply(plan)
    assert world.objects() == backup[1]


def test_deleting_is_in_bulk_and_tells_its_progress(world: World) -> None:
    client = world.actor()
    put(client, b"1")
    dead = [f"artifacts/op/{n}/0000000001-0badcafe.snapshot.{'0' * 64}.raw" for n in range(4500)]

    async def write() -> None:
        for path in dead:
            await world.store.put(path, b"1234")

    runtime.run_sync(write())
    client.faults.forget()
    seen: list[tuple[int, int]] = []
    done = client.clean(AT_ONCE, progress=lambda done, total: seen.append((done, total)))
    assert done.deleted == Total(4500, 18_000)
    assert client.faults.counts["delete"] == 5 <= 4500 / 900
    assert sorted(done for done, _ in seen)[-1] == 4500
    assert {total for _, total in seen} == {4500}


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


# ---- what is never deleted -------------------------------------------------------------------------------------------


def test_an_attempt_in_the_making_is_not_swept(world: World) -> None:
    writer, janitor = world.actor(), world.actor()
    line(writer, 3)
    running = attempt(writer, b"x" * 200_000)
    gate = writer.faults.hold("swap")
    work = runtime.submit(commit.commit(running.writer))
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
    janitor.clean(AT_ONCE)
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
    from pyspark_checkpointer.admin.retention.garbage_collect import clean

    await clean(client.session, LAST_TWO)


def test_two_cleanups_at_once(world: World) -> None:
    writer, one, two = world.actor(), world.actor(), world.actor()
    mixed(writer, 9)
    contents = world.contents()
    one.faults.call(lambda _: two.clean(LAST_TWO), "swap")
    one.clean(RetentionPolicy(keep_last=3, grace=timedelta(0)))
    kept = writer.list_checkpoints()
    assert len(kept) == 2
    assert world.contents() == {i: contents[i] for i in kept}
    one.clean(AT_ONCE)
    assert garbage(world) == set()


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


@pytest.mark.parametrize("what", ["catalog", "manifest", "kept manifest", "segment"])
@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_where_something_live_cannot_be_read_nothing_is_deleted(world: World, what: str, how: str) -> None:
    client = world.actor()
    with client.begin() as cp:
        for partition in range(600):
            cp.snapshot("wide", partition, b"%d" % partition)
    ids = [cp.id, *line(client, 3)]
    client.savepoint("s", ids[0])
    client.clean(LAST_TWO)
    put(client, b"4")
    attempt(client, b"5").prepare().abort()
    put(client, b"5")
    path = {
        "catalog": next(iter(world.objects("catalog/"))),
        "manifest": object_paths.manifest(ids[3]),
        "kept manifest": object_paths.manifest(ids[0]),
        "segment": next(iter(world.objects("manifests/segments/"))),
    }[what]
    data = world.read(path)
    world.delete(path)
    if how == "damaged":
        runtime.run_sync(world.store.put(path, data[:-1] + bytes([data[-1] ^ 1])))
    before = world.objects()
    with pytest.raises(CorruptionError, match=path.rpartition("/")[2][:10]):
        world.actor().clean(LAST_TWO)
    assert world.objects() == before


def test_without_a_pointer_nothing_is_touched(world: World) -> None:
    client = world.actor()
    line(client, 3)
    world.delete("_latest")
    before = world.objects()
    plan = world.actor().plan(LAST_TWO)
    assert [*plan] == []
    assert "no _latest" in str(plan.note)
    assert world.actor().apply(plan).deleted == Total()
    assert world.objects() == before


def test_what_interrupted_writes_left_is_removed_and_what_runs_is_not(folder: World, tmp_path: Path) -> None:
    client = folder.actor()
    ids = line(client, 3)
    root = tmp_path / "root"
    dead = root / "artifacts/op/0" / f".{ids[1]}.snapshot.{'0' * 64}.raw.{'a' * 16}.tmp"
    running = root / "artifacts/op/0" / f".0000000004-00000000.snapshot.{'0' * 64}.raw.{'a' * 16}.tmp"
    pointers = root / f"._latest.{'b' * 16}.tmp"
    foreign = root / f".vimrc.{'c' * 16}.tmp"
    for file in (dead, running, pointers, foreign):
        file.write_bytes(b"half")
    plan = client.plan(AT_ONCE)
    assert {row.path for row in plan if row.leftover and row.action == "keep"} == {
        f"artifacts/op/0/0000000004-00000000.snapshot.{'0' * 64}.raw",
        "vimrc",
    }
    client.apply(plan)
    assert [file.exists() for file in (dead, running, pointers, foreign)] == [False, True, False, True]
    assert latest(folder.actor()) == b"3"


# ---- deleting one, beside retention ----------------------------------------------------------------------------------


def test_deleting_one_leaves_what_a_retired_one_still_lends_to_its_readers(world: World) -> None:
    client, reader = world.actor(), world.actor()
    ids = mixed(client, 6)
    restored = reader.restore(ids[1])
    assert restored is not None
    client.clean(RetentionPolicy(keep_last=4))  # 1 and 2 are retired, for an hour; 2 and 3 share objects
    client.delete_checkpoint(ids[2])
    assert restored.operator("shared").partition(0) == [b"shared 1"]
    client.clean(RetentionPolicy(keep_last=4))
    assert restored.operator("own").partition(0) == [b"2"]
    assert restored.operator("chain").partition(0) == [b"0", b"2"]


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_checkpoint_whose_manifest_is_lost_can_be_deleted_and_all_goes_on(world: World, how: str) -> None:
    client = world.actor()
    ids = line(client, 9)
    client.savepoint("second", ids[1])
    lost = object_paths.manifest(ids[5])
    world.delete(lost)
    if how == "damaged":
        runtime.run_sync(world.store.put(lost, b"{}"))
    operator = world.actor()
    with pytest.raises(CorruptionError):
        operator.clean(LAST_TWO)
    assert [savepoint.name for savepoint in operator.savepoints()] == ["second"]
    operator.savepoint("newest")
    operator.savepoint("eighth", ids[7])
    operator.delete_savepoint("newest")
    for checkpoint in (ids[4], ids[6]):  # one that cannot be proven, and one above the hole with older ones below
        with pytest.raises(CorruptionError):
            operator.delete_checkpoint(checkpoint)
    operator.delete_checkpoint(ids[5])
    assert operator.list_checkpoints() == [ids[1], *ids[6:]]
    operator.clean(LAST_TWO)
    assert operator.list_checkpoints() == [ids[1], *ids[7:]]
    assert operator.verify()
    put(client, b"10")
    assert garbage(world) == set()


def test_the_loser_of_two_cleanups_does_not_claim_what_the_other_did(world: World) -> None:
    writer, one, two = world.actor(), world.actor(), world.actor()
    mixed(writer, 9)
    other: list[Any] = []
    one.faults.call(lambda _: other.append(two.clean(LAST_TWO)), "swap")
    assert one.clean(LAST_TWO).retired == ()
    assert len(other[0].retired) == 7


def test_a_policy_that_is_none_is_refused_before_anything_happens(world: World) -> None:
    client = world.actor()
    line(client, 3)
    client.faults.forget()
    for verb in (client.clean, client.plan):
        with pytest.raises(IllegalArgumentError, match="RetentionPolicy"):
            verb("x")  # type: ignore[arg-type]
    assert client.faults.requests == []


def test_a_plan_from_a_file_touches_nothing_without_a_pointer(world: World, tmp_path: Path) -> None:
    client = world.actor()
    mixed(client, 4)
    file = tmp_path / "plan"
    client.plan(LAST_TWO).save(file)
    file.write_bytes(file.read_bytes().replace(b'"nonce": "', b'"nonce": null, "was": "', 1))
    world.delete("_latest")
    before = world.objects()
    with pytest.raises(StalePlanError, match="no _latest"):
        client.apply(Plan.load(file))
    assert world.objects() == before


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


# ---- everything together ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_random_histories_lose_nothing(seed: int) -> None:
    """Writers, savepoints, rollbacks, deletions and cleanups of every kind, some of which fail or die midway."""
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
    world.actor().clean(AT_ONCE)
    assert world.actor().verify()
    assert garbage(world) == set()


def act(rng: random.Random, world: World, client: Actor, step: int) -> None:
    ids = client.list_checkpoints()
    names = [savepoint.name for savepoint in client.savepoints()]
    policy = rng.choice(
        [
            LAST_TWO,
            AT_ONCE,
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


def test_cleanup_on_every_kind_of_store(any_root: Root) -> None:
    client = Checkpointer(any_root.url, any_root.storage_options)
    ids = mixed(client, 8)
    client.savepoint("first", ids[0])
    expected = {i: whole(client, i) for i in [ids[0], *ids[6:]]}
    plan = client.plan(LAST_TWO)
    assert client.apply(plan).deleted == plan.total("delete")
    assert client.list_checkpoints() == [*expected]
    assert {i: whole(client, i) for i in expected} == expected
    assert client.plan(AT_ONCE).total("delete") == Total()
    assert client.verify()
    client.close()


def whole(client: Checkpointer, checkpoint: CheckpointId) -> Contents:
    restored = client.copy().restore(checkpoint)
    assert restored is not None
    return {
        name: {p: restored.operator(name).partition(p) for p in restored.operator(name).partitions}
        for name in restored.operators
    }


def test_the_rows_of_a_plan_leave_nothing_in_memory() -> None:
    def spool() -> None:
        with Spool() as rows:
            rows.extend(PlanRow(f"artifacts/op/{n}", n, "keep", "live", None, 1) for n in range(100))
        Path(rows.path).unlink()

    for _ in range(20):
        spool()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(500):
        spool()
    gc.collect()
    assert sys.getallocatedblocks() - before < 250
