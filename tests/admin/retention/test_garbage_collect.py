"""Apply a plan, or clean: dead objects go, in batches; a plan that was outrun does nothing."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer, RetentionPolicy, runtime
from pyspark_checkpointer.admin.retention.reachability import ReferenceIndex, Referrer
from pyspark_checkpointer.admin.retention.spool import Total
from pyspark_checkpointer.checkpoint import commit
from pyspark_checkpointer.errors import (
    ConflictError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    StalePlanError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests import manifest_json, object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest
from tests.admin.retention.histories import LAST_TWO, NO_GRACE, garbage, mixed
from tests.conftest import Root
from tests.world import Contents, World, attempt, latest, line, put


def test_what_was_applied_once_is_not_retired_again(world: World) -> None:
    client = world.actor()
    mixed(client, 6)
    plan = client.plan(LAST_TWO)
    assert len(client.apply(plan).retired) == 4
    assert client.apply(plan).retired == ()


def test_who_may_not_list_broken_writes_still_cleans_up(world: World) -> None:
    client = world.actor()
    mixed(client, 6)
    client.faults.fail("leftovers", times=9, error=StoreRefusedError)
    assert "interrupted writes" in str(client.plan(LAST_TWO).note)
    done = client.clean(LAST_TWO)
    assert (len(done.retired), "interrupted writes" in str(done.note)) == (4, True)
    assert garbage(world) == set()


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
    world.actor().clean(NO_GRACE)
    assert world.contents() == contents


def test_a_plan_is_for_one_store(world: World) -> None:
    client = world.actor()
    line(client, 2)
    other = World().actor()
    line(other, 2)
    with pytest.raises(IllegalArgumentError, match="was made for"):
        other.apply(client.plan())
    plan = client.plan(LAST_TWO)
    world.delete("_latest")
    with pytest.raises(InvalidStateError, match=r"has no _latest, though .* it was lost"):
        client.apply(plan)
    with pytest.raises(IllegalArgumentError):
        client.apply([])  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentError):
        client.plan(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("retired_before", [False, True])
def test_a_plan_for_a_store_that_went_back_in_time_is_refused(world: World, retired_before: bool) -> None:
    """A backup was put back: dead objects are live again, and newer ones look like an attempt."""
    client = world.actor()
    line(client, 3)
    backup = world.latest(), world.objects(), {path: world.read(path) for path in world.objects()}
    line(client, 3)
    if retired_before:
        client.clean(RetentionPolicy(keep_last=2))
    plan = client.plan(NO_GRACE if retired_before else LAST_TWO)
    assert plan.total("delete").objects >= 6
    world.delete(*world.objects())
    for path, data in backup[2].items():
        runtime.run_sync(world.store.compare_and_swap(path, data, None))
    with pytest.raises(StalePlanError):
        world.actor().apply(plan)
    assert world.objects() == backup[1]


def test_long_computations_of_a_cleanup_do_not_hold_up_the_commits_beside_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a job both are on one event loop."""
    client = world.actor()
    for number in range(1, 13):
        with client.begin(number) as cp:
            for partition in range(200):
                cp.snapshot("op", partition, b"%d %d" % (number, partition))
    decode, add = manifest_json.decode_manifest, ReferenceIndex.add
    threads = Counter[tuple[str, str]]()

    def note(what: str) -> None:
        threads[what, threading.current_thread().name.rstrip("_0123456789")] += 1

    def decoding(checkpoint: CheckpointId, data: bytes) -> Manifest:
        note("decode")
        return decode(checkpoint, data)

    def adding(index: ReferenceIndex, referrer: Referrer, paths: Iterable[str]) -> None:
        if referrer.id is not None:
            note("index")
        add(index, referrer, paths)

    monkeypatch.setattr(manifest_json, "decode_manifest", decoding)
    monkeypatch.setattr(ReferenceIndex, "add", adding)
    policy = RetentionPolicy(keep_last=2, every_epoch=4)
    assert len(client.clean(policy).retired) == 8
    assert client.clean(policy).later.objects > 0
    assert {name for _, name in threads} == {"checkpointer-cpu"}
    assert threads["index", "checkpointer-cpu"] == 2 * 12
    assert threads["decode", "checkpointer-cpu"] > 3 * 12


def test_what_names_others_is_deleted_before_them(world: World) -> None:
    client, janitor = world.actor(), world.actor()
    mixed(client, 6)
    janitor.clean(LAST_TWO)
    janitor.clean(NO_GRACE)
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


def test_a_plan_makes_room_for_its_own_swap(world: World) -> None:
    client, janitor = world.actor(), world.actor()
    mixed(client, 6)
    client.begin().prepare().abort()
    put(client, b"on it goes")
    plan = janitor.plan(LAST_TWO)
    live = world.objects() - garbage(world)
    janitor.faults.fail("swap", error=StoreRefusedError)
    deleted = set[str]()
    janitor.faults.call(lambda _: deleted.update(live - world.objects()), "swap", nth=2)
    done = janitor.apply(plan)
    assert len(done.retired) == 5
    assert not deleted, "before the swap only what is garbage without it"
    assert garbage(world) == set()
    assert client.verify()
    put(client, b"and on")
    plan = janitor.plan(LAST_TWO)
    janitor.faults.fail("swap", error=StoreRefusedError)
    with pytest.raises(StoreRefusedError, match="failed by the test"):  # and nothing to make room of
        janitor.apply(plan)


def test_what_killed_attempts_left_goes_with_the_next_commit(world: World) -> None:
    """Until then it may belong to a commit that runs. To roll back to the latest checkpoint is such a commit."""
    line(world.actor(), 2)
    before = world.objects()
    for value in (b"3", b"4"):  # each writes all but `_latest`, and is killed
        runtime.run_sync(commit._write(attempt(world.actor(), value).attempt))
    left = world.objects() - before
    world.actor().clean(NO_GRACE)
    assert world.objects() - before == left != set()
    client = world.actor()
    client.rollback("latest")
    assert latest(client) == b"2"
    client.clean(NO_GRACE)
    assert world.objects().isdisjoint(left)
    assert garbage(world) == set()


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
    done = client.clean(NO_GRACE, progress=lambda done, total: seen.append((done, total)))
    assert done.deleted == Total(4500, 18_000)
    assert client.faults.counts["delete"] == 5 <= 4500 / 900
    assert sorted(done for done, _ in seen)[-1] == 4500
    assert {total for _, total in seen} == {4500}


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
    plan = client.plan(LAST_TWO)
    world.delete("_latest")
    before = world.objects()
    for work in (lambda ck: ck.plan(LAST_TWO), lambda ck: ck.clean(LAST_TWO), lambda ck: ck.apply(plan)):
        with pytest.raises(InvalidStateError, match=r"has no _latest, though .* it was lost"):
            work(world.actor())
    assert world.objects() == before


def test_of_a_single_checkpoint_without_a_pointer_nothing_is_touched(world: World) -> None:
    """It may be an attempt that came to no end, so nothing says that `_latest` was lost."""
    line(world.actor(), 1)
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
    swapped = [root / f".{name}.{'b' * 16}.tmp" for name in ("_latest", "_keys", "_signers")]
    foreign = root / f".vimrc.{'c' * 16}.tmp"
    for file in (dead, running, *swapped, foreign):
        file.write_bytes(b"half")
    plan = client.plan(NO_GRACE)
    assert {row.path for row in plan if row.leftover and row.action == "keep"} == {
        f"artifacts/op/0/0000000004-00000000.snapshot.{'0' * 64}.raw",
        "vimrc",
    }
    client.apply(plan)
    assert [file.exists() for file in (dead, running, foreign)] == [False, True, True]
    assert not any(file.exists() for file in swapped)
    assert latest(folder.actor()) == b"3"


def test_cleanup_on_every_kind_of_store(any_root: Root) -> None:
    client = Checkpointer(any_root.url, any_root.storage_options)
    ids = mixed(client, 8)
    client.savepoint("first", ids[0])
    expected = {i: whole(client, i) for i in [ids[0], *ids[6:]]}
    plan = client.plan(LAST_TWO)
    assert client.apply(plan).deleted == plan.total("delete")
    assert client.list_checkpoints() == [*expected]
    assert {i: whole(client, i) for i in expected} == expected
    assert client.plan(NO_GRACE).total("delete") == Total()
    assert client.verify()
    client.close()


def whole(client: Checkpointer, checkpoint: CheckpointId) -> Contents:
    restored = client.copy().restore(checkpoint)
    assert restored is not None
    return {
        name: {p: restored.operator(name).partition(p) for p in restored.operator(name).partitions}
        for name in restored.operators
    }
