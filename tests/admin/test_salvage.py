"""Salvage damaged checkpoints: what is whole keeps its values, and all else is named.

Stores are damaged in many ways. What should survive is worked out here from the bytes that are left, without the code
under test; what the values are was read before the damage.
"""

import logging
import random
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy, runtime
from pyspark_checkpointer.admin import older_states, salvage
from pyspark_checkpointer.admin.losses import RepairPlan
from pyspark_checkpointer.checkpoint.map_entries import living_entries
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId, Manifest
from pyspark_checkpointer.storage.base import ObjectRefusedError
from pyspark_checkpointer.table.opening import partition_reader
from tests.admin.test_repair import missing, objects_of
from tests.checkpoint.test_intact import spoil
from tests.cli.conftest import Run, run
from tests.damage import fill
from tests.proof.planted import Planted
from tests.table.tables import rows_in
from tests.world import World, latest, line, put

SEEDS = range(12)

pytestmark = pytest.mark.usefixtures("small_manifests")

__all__ = ["run"]

Values = dict[tuple[str, int], Any]


def values(client: Checkpointer, manifest: Manifest) -> Values:
    """Return what each partition of a checkpoint holds: entries, rows, or bytes."""
    snapshot = CheckpointReader(client.session, manifest, None)
    found: Values = {}
    for name, operator in manifest.operators.items():
        for partition in operator.chains:
            if operator.codec == codecs.MSGPACK.name:
                value: Any = runtime.run_sync(living_entries(snapshot, name, partition))
            elif operator.codec == codecs.PARQUET.name:
                value = rows_in(runtime.run_sync(partition_reader(snapshot, name, [partition])(partition)))
            else:
                value = runtime.run_sync(snapshot.partition(name, partition))
            found[name, partition] = value
    return found


def stored(world: World) -> dict[str, bytes]:
    return {path: blob.data for path, blob in objects_of(world).items()}


@dataclass
class Store:
    """A root with several checkpoints, and what each of their partitions held before anything was damaged."""

    world: World
    ids: list[CheckpointId]
    manifests: dict[CheckpointId, Manifest]
    values: dict[CheckpointId, Values]

    @classmethod
    def of(cls, world: World) -> "Store":
        client = world.actor()
        ids = client.list_checkpoints()
        manifests = {known: client.load_manifest(known) for known in ids}
        return cls(world, ids, manifests, {known: values(client, manifests[known]) for known in ids})

    def is_whole(self, artifact: Artifact) -> bool:
        data = stored(self.world).get(artifact.path, b"")
        return sha256(data[artifact.offset : artifact.offset + artifact.length]).hexdigest() == artifact.digest

    def survivors(self, checkpoint: CheckpointId) -> set[tuple[str, int]]:
        """Return the partitions that are known and have only slices as they were written."""
        found = set()
        for name, operator in self.manifests[checkpoint].operators.items():
            if not all(self.segment_is_whole(segment.path) for segment in operator.segments):
                continue
            for partition, chain in operator.chains.items():
                if all(map(self.is_whole, chain)):
                    found.add((name, partition))
        return found

    def segment_is_whole(self, path: str) -> bool:
        return sha256(stored(self.world).get(path, b"")).hexdigest() == object_paths.digest_of(path)

    def check(self, plan: RepairPlan, older_partitions: bool) -> None:
        """Compare what was committed with what was there before."""
        client = self.world.actor()
        restored = client.restore()
        assert restored is not None
        assert restored.manifest is not None
        assert client.verify(), "what was committed is whole"
        now, wanted = values(client, restored.manifest), self.values[plan.id]
        whole = self.survivors(plan.id)
        lost = {(loss.operator, loss.partition): loss for loss in plan.losses}
        gone = {name for name, partition in lost if partition is None}
        assert plan.kept == len(whole)
        assert {key for key in wanted if key not in lost and key[0] not in gone} == whole
        for key in wanted:
            loss = lost.get(key) or lost.get((key[0], None))
            if key in whole:
                assert now[key] == wanted[key]
            elif loss is None or loss.older is None or not older_partitions:
                assert key not in now
            elif loss.older.id is not None:
                assert now.get(key) == self.values[loss.older.id].get(key)
                assert loss.older.epoch == self.manifests[loss.older.id].epoch
            else:
                assert now[key] in [known.get(key) for known in self.values.values()]
        assert set(now) <= set(wanted)
        assert restored.manifest.operators.keys() == self.manifests[plan.id].operators.keys()
        state = restored.keyed("map")  # the job goes on with what there is
        state["more"] = 1
        with client.begin(epoch=8) as cp:
            cp.save("map", state)
        assert self.world.actor().restore().keyed("map").to_dict() == state.to_dict()  # type: ignore[union-attr]


def hurt(rng: random.Random, world: World, path: str) -> None:
    """Damage an object in one of the ways that disks and people have."""
    data = stored(world)[path]
    place = rng.randrange(len(data))
    kind = rng.randrange(5)
    world.delete(path)
    if kind == 0:
        return
    changed = [data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], data[:place], data + b"more", b""][kind - 1]
    runtime.run_sync(world.store.put(path, changed))


def filled(world: World, many: bool = False) -> Store:
    client = world.actor()
    for number in range(6):
        fill(client, number, many=many and number < 2)
    return Store.of(world)


def damaged_base(store: Store) -> None:
    """Damage what all checkpoints share, so that no older state is whole."""
    spoil(store.world, own_first(store.world, "artifacts/chain/"))


def own_first(world: World, prefix: str) -> str:
    return min(path for path in world.objects(prefix))


def repair(store: Store, to: CheckpointId, *, older: bool) -> RepairPlan:
    """Plan a repair, see that it is refused with nothing written, then accept the loss."""
    world = store.world
    before = stored(world)
    plan = world.actor().repair_plan(to)
    assert not plan
    with pytest.raises(CorruptionError, match="Nothing was written"):
        world.actor().repair(to)
    with pytest.raises(IllegalArgumentError, match="mix of batches"):
        world.actor().repair(to, older_partitions=True)
    assert stored(world) == before, "nothing was written"
    new = world.actor().repair(to, accept_loss=True, older_partitions=older)
    assert new.sequence > max(known.sequence for known in store.ids)
    assert {path: data for path, data in stored(world).items() if path in before and path != object_paths.LATEST} == {
        path: data for path, data in before.items() if path != object_paths.LATEST
    }, "nothing that was there was touched"
    return plan


@pytest.mark.parametrize("older", [False, True], ids=["left out", "older"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_whole_survives_and_the_rest_is_named(seed: int, older: bool) -> None:
    salvaged(seed, older)


def salvaged(seed: int, older: bool) -> RepairPlan:
    rng = random.Random(seed)
    store = filled(World(), many=seed % 6 == 0)
    if rng.random() < 0.3:
        store.world.actor().rollback(rng.choice(store.ids))
        fill(store.world.actor(), 7, many=False)
        store = Store.of(store.world)
    paths = sorted(store.world.objects(object_paths.ARTIFACTS) | store.world.objects(object_paths.SEGMENTS))
    damaged_base(store)
    for path in rng.sample(paths, min(len(paths), rng.choice([1, 2, 4, 12]))):
        hurt(rng, store.world, path)
    if rng.random() < 0.4:
        missing(store.world)
    to = rng.choice(store.ids[2:])
    if rng.random() < 0.3:  # what a cleanup retired
        gone = [known for known in store.ids if known != to and rng.random() < 0.5]
        if object_paths.LATEST not in store.world.objects():
            store.world.delete(*map(object_paths.manifest, gone))
    plan = repair(store, to, older=older)
    store.check(plan, older)
    return plan


def test_one_slice_of_a_pack_does_not_take_the_others_with_it(world: World) -> None:
    client = world.actor()
    with client.begin(epoch=1) as cp:
        for partition in range(20):
            cp.snapshot("pack", partition, b"partition %02d" % partition)
    store = Store.of(world)
    artifact = store.manifests[cp.id].operators["pack"].chains[7][0]
    data = bytearray(stored(world)[artifact.path])
    data[artifact.offset] ^= 1
    world.delete(artifact.path)
    runtime.run_sync(world.store.put(artifact.path, bytes(data)))
    plan = repair(store, cp.id, older=False)
    assert [(loss.operator, loss.partition, loss.older) for loss in plan.losses] == [("pack", 7, None)]
    restored = world.actor().restore()
    assert restored is not None
    assert restored.operator("pack").partitions == [number for number in range(20) if number != 7]
    assert restored.operator("pack").partition(19) == [b"partition 19"]


def test_a_partition_that_is_damaged_in_the_older_state_too_is_named(world: World) -> None:
    """The list of partitions is lost, and so is one of the partitions that the list before it has."""
    client = world.actor()
    for epoch in (1, 2, 3):
        with client.begin(epoch=epoch) as cp:
            for partition in range(20):
                cp.snapshot("pack", partition, b"partition %d of epoch %d" % (partition, epoch))
    store = Store.of(world)
    newest, before = store.manifests[store.ids[2]], store.manifests[store.ids[1]]
    world.delete(newest.operators["pack"].segments[-1].path)
    (artifact,) = before.operators["pack"].chains[7]
    data = bytearray(stored(world)[artifact.path])
    data[artifact.offset] ^= 1
    world.delete(artifact.path)
    runtime.run_sync(world.store.put(artifact.path, bytes(data)))
    plan = repair(store, store.ids[2], older=True)
    assert [(loss.partition, loss.older and loss.older.epoch) for loss in plan.losses] == [(None, 2), (7, 1)]
    assert "partition 7 with 1 record went back to a state of" in "; ".join(plan.outcome(older_partitions=True))
    restored = world.actor().restore()
    assert restored is not None
    assert restored.operator("pack").partition(7) == [b"partition 7 of epoch 1"]
    assert restored.operator("pack").partition(8) == [b"partition 8 of epoch 2"]


def test_an_older_state_is_taken_from_an_object_that_is_damaged_elsewhere(world: World) -> None:
    client = world.actor()
    for epoch in (1, 2):
        with client.begin(epoch=epoch) as cp:
            for partition in (0, 1):
                cp.snapshot("pack", partition, b"partition %d of epoch %d" % (partition, epoch))
    store = Store.of(world)
    (older,) = store.manifests[store.ids[0]].operators["pack"].chains[0]
    (newer,) = store.manifests[store.ids[1]].operators["pack"].chains[0]
    data = stored(world)[older.path]
    world.delete(older.path, newer.path)
    runtime.run_sync(world.store.put(older.path, data[:-3]))  # its second partition is hurt, its first is whole
    plan = repair(store, store.ids[1], older=True)
    assert [(loss.partition, loss.older is not None) for loss in plan.losses] == [(0, True), (1, False)]
    restored = world.actor().restore()
    assert restored is not None
    assert restored.operator("pack").partitions == [0]
    assert restored.operator("pack").partition(0) == [b"partition 0 of epoch 1"]


def test_it_says_how_much_is_lost_and_what_older_state_there_is(world: World, caplog: pytest.LogCaptureFixture) -> None:
    client = world.actor()
    state = KeyedState({"a": 1, "b": 2}, partitions=1)
    with client.begin(epoch=10) as cp:
        cp.save("map", state)
        cp.snapshot("other", 0, b"whole")
    first = cp.id
    put(client, b"between", epoch=11)
    between = client.read_latest()
    state["c"] = 3
    with client.begin(epoch=12) as cp:
        cp.save("map", state)
    spoil(world, own_first(world, f"artifacts/map/0/{cp.id}"))
    (loss,) = world.actor().repair_plan(cp.id).losses
    assert loss.older is not None
    assert (loss.operator, loss.partition, loss.records) == ("map", 0, 3)
    assert (loss.older.id, loss.older.epoch, loss.older.records) == (between, 11, 2), "as it was until then"
    said = str(world.actor().repair_plan(cp.id))
    assert f"operator 'map', partition 0 with 3 records: artifacts/map/0/{cp.id}" in said
    assert f"there is an older state of it, of {between}, epoch 11, with 2 records" in said
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        world.actor().repair(cp.id, accept_loss=True, older_partitions=True)
    assert "operator 'map', partition 0" in caplog.text
    restored = world.actor().restore()
    assert restored is not None
    assert restored.epoch == 12
    assert restored.keyed("map").to_dict() == {"a": 1, "b": 2}
    assert restored.operator("other").partition(0) == [b"whole"]
    assert first


def test_what_was_rolled_back_from_is_no_older_state(world: World) -> None:
    """The parent of a rollback is the very state that was given up."""
    client = world.actor()
    for number in range(3):
        with client.begin(epoch=number) as cp:
            cp.delta("op", 0, b"%d" % number) if number else cp.snapshot("op", 0, b"0")
    good = client.list_checkpoints()[1]
    with client.begin(epoch=3) as cp:
        cp.snapshot("op", 0, b"a bug")
    client.rollback(good)
    rolled = client.read_latest()
    assert rolled is not None
    spoil(world, own_first(world, f"artifacts/op/0/{good}"))
    (loss,) = world.actor().repair_plan(rolled).losses
    assert loss.older is not None
    assert loss.older.id == client.list_checkpoints()[0]
    world.actor().repair(rolled, accept_loss=True, older_partitions=True)
    assert world.actor().restore().operator("op").partition(0) == [b"0"]  # type: ignore[union-attr]


def test_a_partition_of_another_number_of_partitions_is_no_older_state(world: World) -> None:
    client = world.actor()
    for partitions in (2, 3):
        with client.begin(epoch=partitions) as cp:
            cp.save("map", KeyedState(dict.fromkeys(range(20), partitions), partitions=partitions))
    for path in world.objects(f"artifacts/map/0/{cp.id}") | world.objects(f"artifacts/map/packs/{cp.id}"):
        world.delete(path)
    assert {loss.older for loss in world.actor().repair_plan(cp.id).losses} == {None}


def test_without_older_manifests_a_chain_is_kept_as_far_as_it_is_whole(world: World) -> None:
    client = world.actor()
    for number in range(4):
        with client.begin(epoch=number) as cp:
            cp.delta("op", 0, b"%d" % number) if number else cp.snapshot("op", 0, b"0")
    ids = client.list_checkpoints()
    missing(world)
    world.delete(*map(object_paths.manifest, ids[:3]))
    spoil(world, own_first(world, f"artifacts/op/0/{ids[2]}"))
    (loss,) = world.actor().repair_plan(ids[3]).losses
    assert loss.older is not None
    assert (loss.older.id, loss.older.epoch, loss.older.records) == (None, None, 2)
    assert "of a batch that is not known" in str(loss)
    world.actor().repair(ids[3], accept_loss=True, older_partitions=True)
    assert world.actor().restore().operator("op").partition(0) == [b"0", b"1"]  # type: ignore[union-attr]


def test_of_a_manifest_that_cannot_be_read_nothing_can_be_salvaged(world: World) -> None:
    ids = line(world.actor(), 2)
    spoil(world, object_paths.manifest(ids[1]))
    missing(world)
    for verb in (world.actor().repair_plan, lambda to: world.actor().repair(to, accept_loss=True)):
        with pytest.raises(CorruptionError, match="choose another"):
            verb(ids[1])
        with pytest.raises(CheckpointNotFoundError, match="repair_candidates"):
            verb("0000000009-00000000")
    world.actor().repair(ids[0], accept_loss=True)
    assert latest(world.actor()) == b"1"


def test_where_something_is_whole_the_refusal_names_it_and_a_loss_can_still_be_accepted(world: World) -> None:
    client = world.actor()
    ids = line(client, 2)
    with client.begin(epoch=3) as cp:
        cp.snapshot("scratch", 0, b"of no use")
    spoil(world, own_first(world, "artifacts/scratch/"))
    with pytest.raises(CorruptionError, match=rf"rollback\(to=…\), or `checkpointer rollback`: {ids[1]} is intact"):
        world.actor().repair(cp.id)
    with pytest.raises(InvalidStateError, match="nothing to repair"):
        world.actor().repair(ids[0], accept_loss=True)
    world.actor().repair(cp.id, accept_loss=True)
    assert latest(world.actor()) == b"2"
    assert world.actor().restore().operator("scratch").partitions == []  # type: ignore[union-attr]


def test_the_command_says_what_would_be_missing_and_does_nothing_unasked(tmp_path: Path, run: Run) -> None:
    root = tmp_path / "root"
    with Checkpointer(root) as ck:
        for number in range(3):
            fill(ck, number, many=False)
        to = ck.read_latest()
    (base,) = (root / "artifacts" / "chain" / "0").glob("0000000001-*")
    base.chmod(0o600)
    base.write_bytes(b"other")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    shown = run("repair", root, "--to", to)
    assert shown.status == 1
    assert "operator 'chain', partition 0 with 3 records" in shown.out
    assert "--accept-loss commits what is whole" in shown.out
    found = run("repair", root, "--to", to, "--json").json
    assert [(loss["operator"], loss["partition"], loss["older"]) for loss in found["losses"]] == [("chain", 0, None)]
    assert run("repair", root, "--to", to, "--accept-loss").status == 2, "nobody said yes"
    assert run("repair", root, "--to", to, "--older-partitions", "--yes").status == 2
    assert run("repair", root, "--accept-loss", "--yes").status == 2
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    done = run("repair", root, "--to", to, "--accept-loss", "--yes")
    assert (done.status, "is committed" in done.out) == (0, True)
    assert run("verify", root).status == 0
    restored = Checkpointer(root).restore()
    assert restored is not None
    assert (restored.epoch, restored.keyed("map")[2]) == (2, ["value", 2])


PLANTED = (
    Planted(
        "the parent is taken for the older state",
        older_states.OlderStates._step_back,
        "object_paths.owner(path)",
        "max(self._found.manifests)",
    ),
    Planted(
        "damage is not looked for in slices",
        salvage._DamageSearch._partitions,
        "if not await self._slices.is_intact(artifact)",
        "if False",
    ),
    Planted(
        "a damaged object takes all with it",
        salvage._DamageSearch._partitions,
        "if not await self._slices.is_intact(artifact)",
        "",
    ),
    Planted(
        "a pack of an older state is copied as a whole", salvage._packs, "artifact.length != artifact.size", "False"
    ),
    Planted(
        "an older state is not looked at",
        older_states.OlderStates.find_chain,
        "await self._slices.are_intact(previous)",
        "True",
    ),
)


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
def test_a_salvage_without_one_of_its_rules_is_found(planted: Planted) -> None:
    # An `IndexError` where a whole chain comes to where its damaged slice is sought.
    with planted(), pytest.raises((AssertionError, CheckpointError, IndexError)):
        test_what_was_rolled_back_from_is_no_older_state(World())
        test_one_slice_of_a_pack_does_not_take_the_others_with_it(World())
        test_an_older_state_is_taken_from_an_object_that_is_damaged_elsewhere(World())
        for seed in SEEDS:
            salvaged(seed, older=True)


def test_what_a_store_shows_to_nobody_can_be_accepted_as_lost(world: World) -> None:
    client = world.actor()
    ids = line(client, 2)
    path = own_first(world, f"artifacts/op/0/{ids[1]}")
    missing(world)
    healer = world.actor(retries=False)
    healer.faults.fail("get", path=path, times=100, error=StoreRefusedError)
    with pytest.raises(StoreRefusedError, match="failed by the test"):  # of this client alone: it may be intact
        healer.repair(ids[1], accept_loss=True)
    healer.faults.clear()
    for kind in ("get", "get_range"):
        healer.faults.fail(kind, path=path, times=100, error=ObjectRefusedError)
    (loss,) = healer.repair_plan(ids[1]).losses
    assert loss.operator == "op"
    healer.repair(ids[1], accept_loss=True)
    assert world.actor().restore()


@pytest.mark.parametrize("kind", ["manifest", "catalog", "segment"])
def test_metadata_that_a_store_shows_to_nobody_is_lost_and_no_obstacle(world: World, kind: str) -> None:
    client = world.actor()
    ids = [fill(client, number) for number in range(3)]
    client.savepoint("s", ids[0])
    client.savepoint("t", ids[1])
    newest = world.pointer().catalog
    assert newest is not None
    path = {
        "manifest": object_paths.manifest(ids[2]),
        "catalog": newest.path,
        "segment": next(path for path in world.objects(object_paths.SEGMENTS) if str(ids[0]) in path),
    }[kind]
    missing(world)
    healer = world.actor(retries=False)
    healer.faults.fail("get", path=path, times=100, error=ObjectRefusedError)
    by_id = {candidate.id: candidate for candidate in healer.repair_candidates()}
    assert {*by_id} == {*ids}
    assert bool(by_id[ids[2]].problems) == (kind != "catalog")
    healer.repair(ids[1], accept_loss=True)
    assert world.actor().restore().epoch == 1


@pytest.mark.parametrize("which", [2, 1, 0])
def test_a_manifest_of_the_history_that_a_store_shows_to_nobody_can_be_left_behind(world: World, which: int) -> None:
    ids = line(world.actor(), 3)
    healer = world.actor(retries=False)
    healer.faults.fail("get", path=object_paths.manifest(ids[which]), times=100, error=ObjectRefusedError)
    chosen = ids[which - 1]
    healer.repair(chosen)
    assert world.actor().restore().manifest.parent is None


@pytest.mark.parametrize("length", [4, 12])
def test_a_checkpoint_whose_manifest_a_store_shows_to_nobody_can_be_deleted(world: World, length: int) -> None:
    ids = line(world.actor(), length)
    healer = world.actor(retries=False)
    healer.faults.fail("get", path=object_paths.manifest(ids[1]), times=100, error=ObjectRefusedError)
    healer.delete_checkpoint(ids[1])
    assert world.actor().list_checkpoints() == ids[2:]


def test_a_cleanup_passes_over_retired_manifests_that_a_store_shows_to_nobody(world: World) -> None:
    client = world.actor()
    ids = line(client, 9)
    client.clean(RetentionPolicy(keep_last=6))
    healer = world.actor(retries=False)
    healer.faults.fail("get", path=object_paths.manifest(ids[5]), times=100, error=ObjectRefusedError)
    healer.delete_checkpoint(ids[5])
    assert healer.plan().total("delete").objects > 0, "nothing leads to what is older"
    assert healer.clean().deleted.objects > 0
    assert healer.list_checkpoints() == ids[6:]


def test_a_catalog_that_a_store_shows_to_nobody_is_left_behind(world: World) -> None:
    client = world.actor()
    ids = line(client, 2)
    client.savepoint("s", ids[0])
    catalog = world.pointer().catalog
    assert catalog is not None
    healer = world.actor(retries=False)
    healer.faults.fail("get", path=catalog.path, times=100, error=ObjectRefusedError)
    healer.repair(ids[1])
    assert world.actor().list_checkpoints()


def test_a_pointer_that_a_store_shows_to_nobody_has_to_be_moved_away(tmp_path: Path) -> None:
    world = World(tmp_path)
    ids = line(world.actor(), 2)
    healer = world.actor(retries=False)
    healer.faults.fail("get", path=object_paths.LATEST, times=100, error=ObjectRefusedError)
    for verb in (healer.repair_candidates, lambda: healer.repair(ids[1])):
        with pytest.raises(ObjectRefusedError, match="move `_latest` away"):
            verb()
    world.delete(object_paths.LATEST)
    healer.faults.clear()
    healer.repair(ids[1])
