"""What manifests tell of a store: at what price, and that it adds up."""

from collections import Counter

import pytest

from checkpointer import Checkpointer, runtime
from checkpointer.admin import checkpoint_sizes, diff, savepoints, stats
from checkpointer.checkpoint import resolve
from checkpointer.checkpoint.latest import read_head
from checkpointer.errors import IllegalArgumentError
from manifests.model import SNAPSHOT, Artifact, CheckpointId, Manifest, Operator
from manifests.segments import INLINE
from tests.world import Actor, World, line, live_objects, put

MANY = INLINE + 1
ID = CheckpointId(1, "00000000")


def spread_out(ck: Checkpointer, commits: int) -> None:
    """Checkpoints of an operator whose partition list stands in segments."""
    for number in range(commits):
        with ck.begin() as cp:
            for partition in range(MANY) if number == 0 else [number]:
                cp.snapshot("many", partition, b"%d %d" % (partition, number))


def requests(actor: Actor) -> Counter[str]:
    counts = Counter(actor.faults.counts)
    actor.faults.forget()
    return counts


def test_an_overview_reads_manifests_alone(world: World) -> None:
    with world.actor() as ck:
        spread_out(ck, 10)
        requests(ck)
        found = runtime.run_sync(resolve.read_overview(ck._session))
        assert requests(ck) == {"get": 11, "list": 1}  # the pointer, and each manifest once
        assert [checkpoint_sizes.checkpoint_bytes(listed.manifest) for listed in found.checkpoints] == [None] * 10
        whole = runtime.run_sync(resolve.read_overview(ck._session, chains=True))
        segments = {s.path for c in whole.checkpoints for s in c.manifest.operators["many"].segments}
        assert all(checkpoint_sizes.checkpoint_bytes(listed.manifest) for listed in whole.checkpoints)
        assert len(segments) <= requests(ck)["get"] - 11 < 10 * len(segments)


def test_what_has_the_same_segments_is_read_once(world: World) -> None:
    with world.actor() as ck:
        spread_out(ck, 1)
        for _ in range(30):
            put(ck, b"other")
        requests(ck)
        counted = runtime.run_sync(stats.take_census(ck._session))
        gets = [request.path for request in ck.faults.requests if request.kind == "get"]
        assert sum(path.startswith("manifests/segments/") for path in gets) <= resolve.AT_ONCE
        assert counted.checkpoints == 31


def test_a_census_counts_what_is_live(folder: World) -> None:
    with folder.actor() as ck:
        spread_out(ck, 5)
        ck.savepoint("kept", ck.list_checkpoints()[1])
        ck.delete_checkpoint(ck.list_checkpoints()[2])
        with ck.begin() as cp:
            cp.snapshot("prepared", 0, b"prepared")
            cp.prepare()
        ck.save_snapshot(CheckpointId(3, "0badbad0"), "many", 0, b"garbage")
        told: list[tuple[int, int]] = []
        counted = runtime.run_sync(stats.take_census(ck._session, lambda *step: told.append(step)))
        session = ck._session

        async def live() -> set[str]:
            return await live_objects(session.store, session.host, await read_head(session.store))

        paths = runtime.run_sync(live())
    assert (counted.checkpoints, counted.savepoints, counted.objects) == (5, 1, len(paths))
    assert counted.bytes == sum(len(folder.read(path)) for path in paths)
    assert told[-1] == (5, 5)


def test_a_prepared_checkpoint_is_seen_and_nothing_abandoned_is(world: World) -> None:
    with world.actor() as ck:
        line(ck, 3)
        with world.actor() as other, other.begin() as cp:
            cp.snapshot("op", 0, b"prepared")
            cp.prepare()
            found = runtime.run_sync(resolve.read_overview(other._session))
        states = [listed.state for listed in found.checkpoints]
    assert states == ["history", "history", "committed", "prepared"]


@pytest.mark.parametrize("name", ["5", "0", "2026", "0000000007", "7-", "7-1a2b", "2026-01", "latest", "prepared"])
@pytest.mark.parametrize("more", ["", "epoch=", "savepoint=", "at="])
def test_a_savepoint_whose_name_would_mean_two_things_is_not_made(world: World, name: str, more: str) -> None:
    with world.actor() as ck:
        line(ck, 1)
        with pytest.raises(IllegalArgumentError, match=f"savepoint '{more}{name}': .* two things: choose another name"):
            ck.savepoint(more + name)
        assert ck.savepoints() == []


@pytest.mark.parametrize("name", ["v5", "5 a", "2026-01-31", "latest-good", "Latest", "epoch 5", "-5", "V"])
def test_other_names_of_savepoints_mean_one_thing(world: World, name: str) -> None:
    with world.actor() as ck:
        (first,) = line(ck, 1)
        ck.savepoint(name)
        assert runtime.run_sync(resolve.find(ck._session, name)) == first


def test_a_savepoint_that_has_such_a_name_from_before_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savepoints, "means_two_things", lambda name: False)
    with world.actor() as ck:
        first, _, third = line(ck, 3)
        for name in ("latest", "2"):
            ck.savepoint(name, first)
    monkeypatch.undo()
    with world.actor() as ck:
        assert runtime.run_sync(resolve.find(ck._session, "latest")) == third
        assert runtime.run_sync(resolve.find(ck._session, "savepoint=latest")) == first
        assert ck.restore(savepoint="latest").id == first  # type: ignore[union-attr]
        for name in ("latest", "2"):
            ck.delete_savepoint(name)
        assert ck.savepoints() == []


def test_a_savepoint_whose_name_is_a_number_is_no_guess(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        savepoints, "means_two_things", lambda name: False
    )  # as one that was made before it was refused
    with world.actor() as ck:
        first, second, _ = line(ck, 3)
        ck.savepoint("2", first)
        ask = ck._session
        assert runtime.run_sync(resolve.find(ask, "savepoint=2")) == first
        assert runtime.run_sync(resolve.find(ask, str(second))) == second
        with pytest.raises(IllegalArgumentError, match=rf"{first} \(savepoint 2\), {second}"):
            runtime.run_sync(resolve.find(ask, "2"))


def test_a_savepoint_is_found_where_the_history_is_damaged(world: World) -> None:
    with world.actor() as ck:
        first, second, third = line(ck, 3)
        ck.savepoint("first", first)
        world.delete(f"manifests/{second}.json")
        assert runtime.run_sync(resolve.find(ck._session, "first")) == first
        assert runtime.run_sync(resolve.find(ck._session, str(third))) == third
        assert runtime.run_sync(resolve.read_listed(ck._session, "first")).savepoints == ("first",)


def artifact(records: int, *, path: str = "shared", length: int = 100, offset: int = 0) -> Artifact:
    return Artifact(path, SNAPSHOT, offset, length, 1000, length, records, f"{path} {offset}")


def test_bytes_that_partitions_share_are_divided_by_records() -> None:
    shared = Operator(4, "p", "parquet", {0: (artifact(30),), 1: (artifact(10),), 2: (artifact(5, path="own"),)})
    assert checkpoint_sizes.partition_bytes(shared) == {0: 75, 1: 25, 2: 100}
    empty = Operator(2, "p", "parquet", {0: (artifact(0),), 1: (artifact(0),)})
    assert checkpoint_sizes.partition_bytes(empty) == {0: 50, 1: 50}
    packed = Operator(2, "p", "raw", {0: (artifact(1),), 1: (artifact(1, offset=100, length=7),)})
    assert checkpoint_sizes.partition_bytes(packed) == {0: 100, 1: 7}
    assert checkpoint_sizes.operator_size(shared).snapshot_bytes == 200


def test_a_difference_names_what_is_on_one_side_alone() -> None:
    old = Operator(3, "p", "raw", {0: (artifact(1),), 1: (artifact(1, path="b"),)})
    new = Operator(3, "p", "raw", {0: (artifact(1),), 1: (artifact(1, path="c"),), 2: (artifact(1, path="d"),)})
    before = Manifest(ID, operators={"same": old, "op": old}, positions={"x": 1, "gone": 2, "y": None}, watermark=None)
    after = Manifest(ID, operators={"same": old, "op": new}, positions={"x": None, "new": 3, "y": 1}, watermark=5)
    found = diff.compare(before, after)
    (operator,) = found.operators
    assert (operator.name, operator.added, operator.removed, operator.changed) == ("op", (2,), (), (1,))
    changes = {value.name: value.change for value in found.positions}
    assert changes == {"gone": "removed", "new": "added", "x": "changed", "y": "changed"}
    assert found.watermark is not None
    assert found.watermark.change == "added"
    assert (found.bytes_added, found.bytes_removed) == (2000, 0)
    assert not diff.compare(before, before)
