"""A new version of a job starts from an older checkpoint: renamed, dropped, transformed, and committed as a whole."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_checkpointer import AsyncCheckpointer, RetentionPolicy, compaction
from pyspark_checkpointer.admin.stats import read_stats
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Operator
from pyspark_checkpointer.runtime import run_sync
from tests.checkpoint.migrations import CHANGES, MAP, ROWS, check_migrated, fails, old_job, restored, rows_of
from tests.world import Actor, World, contents


@pytest.fixture
def client(world: World) -> Actor:
    return old_job(world)


def test_a_migration_is_shown_at_once_and_committed_by_the_next_checkpoint(world: World, client: Actor) -> None:
    before, objects = world.latest(), world.objects()
    check_migrated(restored(client, **CHANGES))
    assert world.latest() == before
    assert world.objects() == objects
    with client.begin() as cp:
        assert cp.epoch == 7
        assert cp.parent is not None
        check_migrated(cp.parent)
    check_migrated(restored(world.actor()))
    assert world.actor().verify()
    assert world.pointer().committed != before


def test_a_commit_after_the_migration_is_an_ordinary_one(world: World, client: Actor) -> None:
    restored(client, **CHANGES)
    with client.begin():
        pass
    whole = contents(restored(world.actor()))
    with client.begin(8) as cp:
        pass
    found = restored(world.actor())
    assert contents(found) == whole
    assert (found.epoch, found.job) == (8, None)
    assert cp.id.sequence == 4


def test_what_was_only_renamed_is_not_written_again(world: World, client: Actor) -> None:
    before = world.objects("artifacts/")
    restored(client, rename={"seen": "users", "model": "seen", "rows": "totals"})
    with client.begin():
        pass
    assert world.objects("artifacts/") == before
    found = restored(world.actor())
    assert found.keyed("users").to_dict() == MAP | {"user-1": {"n": 1}}
    assert found.operator("seen").read() == {0: [b"weights", b"+1"], 3: [b"bias"]}
    assert rows_of(found, "totals") == ROWS


def test_names_can_be_swapped(world: World, client: Actor) -> None:
    old = contents(restored(client))
    restored(client, rename={"model": "old", "old": "model"})
    with client.begin():
        pass
    new = contents(restored(world.actor()))
    assert new == old | {"model": old["old"], "old": old["model"]}


def test_a_name_that_is_dropped_can_be_taken(world: World, client: Actor) -> None:
    restored(client, drop=["model"], rename={"old": "model"}, transform={"model": lambda partition, chain: b"new"})
    with client.begin():
        pass
    assert contents(restored(world.actor()))["model"] == {0: [b"new"]}


def test_long_lists_of_partitions_move_with_their_operator(
    world: World, monkeypatch: pytest.MonkeyPatch, client: Actor
) -> None:
    """Segments name their operator, so they have to be written anew."""
    monkeypatch.setattr(compaction, "INLINE", 2)
    restored(client)
    with client.begin() as cp:
        for partition in range(6):
            cp.snapshot("many", partition, b"%d" % partition)
    restored(client, rename={"many": "model", "model": "many"}, transform={"many": lambda partition, chain: b"new"})
    with client.begin() as cp:
        cp.snapshot("model", 2, b"two")
    found = restored(world.actor())
    assert found.operator("model").read() == {p: [b"two" if p == 2 else b"%d" % p] for p in range(6)}
    assert found.operator("many").read() == {0: [b"new"], 3: [b"new"]}
    assert world.actor().verify()


def test_large_results_are_written_too(world: World, client: Actor) -> None:
    """Each large result is an object of its own, beside small ones in a pack."""
    restored(client, transform={"model": lambda partition, chain: bytes(300_000 * partition + 1)})
    with client.begin():
        pass
    assert restored(world.actor()).operator("model").read() == {0: [bytes(1)], 3: [bytes(900_001)]}


def test_another_checkpoint_is_only_shown(world: World, client: Actor) -> None:
    """A dry run."""
    client.savepoint("here")
    with client.begin(8) as cp:
        cp.snapshot("model", 0, b"newer")
    before = world.latest()
    for options in ({"savepoint": "here"}, {"epoch": 7}, {"id": cp.parent.id if cp.parent else None}):
        check_migrated(restored(client, **options, **CHANGES))
        with pytest.raises(InvalidStateError, match="not the committed checkpoint"):
            client.begin()
    assert world.latest() == before


def test_the_committed_checkpoint_by_its_id_can_be_migrated(world: World, client: Actor) -> None:
    found = restored(client)
    check_migrated(restored(client, id=found.id, on_corruption="error", **CHANGES))
    with client.begin():
        pass
    check_migrated(restored(world.actor()))


def test_an_empty_root_has_nothing_to_migrate(world: World) -> None:
    client = world.actor()
    assert client.restore(**CHANGES) is None
    with client.begin() as cp:
        cp.snapshot("model", 0, b"first")
    assert restored(world.actor()).operators == ["model"]


def test_a_damaged_checkpoint_gives_way_to_an_older_one_that_is_shown_migrated(world: World, client: Actor) -> None:
    (newest,) = [path for path in world.objects("artifacts/model/") if ".delta." in path]
    world.delete(newest)
    found = restored(client, on_corruption="previous", rename={"model": "weights"})
    assert found.skipped
    assert found.operator("weights").partition(0) == [b"weights"]
    with pytest.raises(InvalidStateError):
        client.begin()


def test_renamed_operators_are_counted_cleaned_and_copied_as_what_they_are(world: World, client: Actor) -> None:
    restored(client, **CHANGES | {"transform": {"model": lambda partition, chain: b"m"}})
    with client.begin():
        pass
    whole = contents(restored(world.actor()))
    stats = run_sync(read_stats(client.session))
    assert {held.operator for held in stats.held} == {"users", "model", "totals", "old"}
    copy = World()
    client.export(None, copy.store.url)
    assert contents(restored(copy.actor())) == whole
    client.clean(RetentionPolicy(keep_last=1))
    assert world.actor().verify()
    assert contents(restored(world.actor())) == whole
    assert {held.operator for held in run_sync(read_stats(client.session)).held} >= {"users", "model", "totals"}


def test_a_saved_manifest_takes_no_new_object_of_another_operator(world: World, client: Actor) -> None:
    """An older object may have been written under another name, but a new one may not."""
    found = restored(client)
    assert found.manifest is not None
    wrong, head = client.new_id(), world.pointer().committed
    artifact = client.save_snapshot(wrong, "model", 0, b"x")
    operators = {**found.manifest.operators, "old": Operator(1, "explicit", "raw", {0: (artifact,)})}
    client.save_manifest(replace(found.manifest, id=wrong, parent=head, operators=operators))
    with pytest.raises(IllegalArgumentError, match="was written for 'model', not for 'old'"):
        client.update_latest(wrong)


def test_the_asynchronous_checkpointer_migrates_likewise(world: World, client: Actor) -> None:
    async def migrate() -> None:
        async with AsyncCheckpointer(world.store.url) as other:
            with pytest.raises(IllegalArgumentError, match="raised LookupError"):
                await other.restore(transform={"seen": fails})
            with pytest.raises(IllegalArgumentError, match="'x'"):
                await other.restore(drop=["x"])
            found = await other.restore(**CHANGES)
            assert found is not None
            assert (await found.keyed("users")).to_dict() == {key: value["n"] for key, value in MAP.items()}
            assert await found.operator("model").partition(3) == [b"3:bias"]
            assert (await found.table("totals")).num_rows == len(ROWS)
            cp = await other.begin()
            await cp.abort()
            async with other.begin() as cp:
                assert cp.epoch == 7
                assert cp.parent is not None
                assert cp.parent.operators == ["model", "totals", "users"]

    asyncio.run(migrate())
    check_migrated(restored(world.actor()))


NAME = st.sampled_from(["a", "b", "c", "d", "e", "f"])


@settings(max_examples=60, deadline=None)
@given(
    there=st.sets(NAME, min_size=1, max_size=4),
    rename=st.dictionaries(NAME, NAME, max_size=4),
    drop=st.sets(NAME, max_size=2),
    transform=st.sets(NAME, max_size=2),
)
def test_any_names_are_migrated_as_a_whole_or_refused(
    there: set[str], rename: dict[str, str], drop: set[str], transform: set[str]
) -> None:
    world = World()
    client = world.actor()
    with client.begin(1) as cp:
        for name in sorted(there):
            cp.snapshot(name, 0, name.encode())
    new = [rename.get(name, name) for name in sorted(there - drop)]
    good = (
        rename.keys() <= there
        and drop <= there
        and not drop & rename.keys()
        and len(set(new)) == len(new)
        and transform <= set(new)
    )
    wanted = {rename.get(name, name): {0: [name.encode()]} for name in there - drop}
    functions = dict.fromkeys(transform, lambda partition, chain: b"".join(chain).upper())
    if good:
        wanted |= {name: {0: [wanted[name][0][0].upper()]} for name in transform}
        assert contents(restored(client, rename=rename, drop=drop, transform=functions)) == wanted
    else:
        with pytest.raises(IllegalArgumentError):
            client.restore(rename=rename, drop=drop, transform=functions)
        wanted = {name: {0: [name.encode()]} for name in there}
    with client.begin():
        pass
    assert contents(restored(world.actor())) == wanted
    assert world.actor().verify()
