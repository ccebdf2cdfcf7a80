"""What manifests tell of a store: at what price, and that it adds up."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

from pyspark_checkpointer import Checkpointer, runtime
from pyspark_checkpointer.admin import checkpoint_sizes, diff, stats
from pyspark_checkpointer.checkpoint import listing
from pyspark_checkpointer.checkpoint.latest import read_head
from pyspark_checkpointer.checkpoint.metadata import read_manifest
from pyspark_checkpointer.compaction import INLINE
from pyspark_checkpointer.manifests.model import (
    SNAPSHOT,
    Artifact,
    CheckpointId,
    Clock,
    Manifest,
    Operator,
    share_operators,
)
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
        found = runtime.run_sync(listing.read_listing(ck.session))
        assert requests(ck) == {"get": 11, "list": 1}  # the pointer, and each manifest once
        assert [checkpoint_sizes.checkpoint_bytes(listed.manifest) for listed in found.checkpoints] == [None] * 10
        whole = runtime.run_sync(listing.read_listing(ck.session, chains=True))
        segments = {s.path for c in whole.checkpoints for s in c.manifest.operators["many"].segments}
        assert all(checkpoint_sizes.checkpoint_bytes(listed.manifest) for listed in whole.checkpoints)
        assert len(segments) <= requests(ck)["get"] - 11 < 10 * len(segments)


def test_neighbours_share_the_operators_and_chains_that_are_equal(world: World) -> None:
    """A long history in memory takes little more than its changes."""
    with world.actor() as ck:
        for number in range(8):
            with ck.begin() as cp:
                for name in ("same", "changed", "new"):
                    for partition in range(4) if number == 0 or name == "new" else [0] if name == "changed" else []:
                        cp.snapshot(name, partition, b"%d %d" % (partition, number))
        found = runtime.run_sync(listing.read_listing(ck.session)).checkpoints
        for listed in found:
            assert listed.manifest == runtime.run_sync(read_manifest(ck.session.store, ck.session.host, listed.ref))
        operators = {n: [listed.manifest.operators[n] for listed in found] for n in ("same", "changed", "new")}
        assert {n: len(set(map(id, some))) for n, some in operators.items()} == {"same": 1, "changed": 8, "new": 8}
        chains = {n: len({id(op.chains[1]) for op in some}) for n, some in operators.items()}
        assert chains == {"same": 1, "changed": 1, "new": 8}


def test_a_number_of_a_schema_is_not_taken_for_true() -> None:
    first, second = (Manifest(ID, operators={"t": Operator(1, "", "", {}, {"x": x})}) for x in (1, True))
    assert share_operators(second, first).operators["t"].schema["x"] is True


def test_what_has_the_same_segments_is_read_once(world: World) -> None:
    with world.actor() as ck:
        spread_out(ck, 1)
        for _ in range(30):
            put(ck, b"other")
        requests(ck)
        counted = runtime.run_sync(stats.read_stats(ck.session))
        gets = [request.path for request in ck.faults.requests if request.kind == "get"]
        assert sum(path.startswith("manifests/segments/") for path in gets) <= listing.LOAD_BATCH
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
        counted = runtime.run_sync(stats.read_stats(ck.session, lambda *step: told.append(step)))
        session = ck.session

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
            found = runtime.run_sync(listing.read_listing(other.session))
        states = [listed.state for listed in found.checkpoints]
    assert states == ["history", "history", "committed", "prepared"]


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


def test_a_difference_names_tables_whose_rows_expire_by_the_clock_alone() -> None:
    rule = {"columns": [], "next_id": 1, "expire": {"column": "at", "after_us": 1}}
    expires = Operator(1, "p", "parquet", {0: (artifact(1),)}, schema=rule)
    stays = Operator(1, "p", "parquet", {0: (artifact(1),)}, schema={"columns": [], "next_id": 1})
    operators = {"expires": expires, "stays": stays, "raw": Operator(1, "p", "raw", {0: (artifact(1),)})}
    before = Manifest(ID, operators=operators, clock=Clock(datetime(2024, 1, 2, tzinfo=UTC), "job"))
    after = replace(before, clock=Clock(datetime(2024, 1, 3, tzinfo=UTC), "job"))
    assert diff.compare(before, after).expiring == ("expires",)
    assert diff.compare(after, before).expiring == ("expires",)
    assert diff.compare(before, before).expiring == ()
