"""What makes an older checkpoint the state again, or copies it, first looks whether all of it is as it was written."""

import asyncio
import os
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.admin.streaming import rewind_attempt
from pyspark_checkpointer.checkpoint.require_intact import refuse_damaged
from pyspark_checkpointer.errors import CorruptionError, RetiredError, StoreRefusedError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId
from tests.admin.streaming.spark_model import LAST, Query, history
from tests.checkpoint.test_intact import own, spoil
from tests.damage import DAMAGE, everything, fill
from tests.world import World, latest, line, put

pytestmark = pytest.mark.usefixtures("small_manifests")

Verb = Callable[[Checkpointer, CheckpointId, Path], object]

VERBS: dict[str, Verb] = {
    "rollback": lambda ck, to, _: ck.rollback(to),
    "rollback to a savepoint": lambda ck, to, _: ck.rollback("kept"),
    "update_latest": lambda ck, to, _: ck.update_latest(to),
    "export": lambda ck, to, folder: ck.export(to, folder / "copy"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path / "root") as ck:
        ids = [fill(ck, number, many=False) for number in range(3)]
        ck.savepoint("kept", ids[1])
    return tmp_path / "root"


def one_of_each(root: Path, checkpoint: CheckpointId) -> list[Path]:
    """An object of each operator: the one that its last partition begins with."""
    manifest = Checkpointer(root).load_manifest(checkpoint)
    return [root / operator.chains[max(operator.chains)][0].path for operator in manifest.operators.values()]


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_never_made_the_state_again(
    root: Path, tmp_path: Path, verb: Verb, damage: Callable[[Path], object]
) -> None:
    target = Checkpointer(root).list_checkpoints()[1]
    wanted = everything(Checkpointer(root).restore(target))
    before = (root / object_paths.LATEST).read_bytes()
    for path in one_of_each(root, target):
        whole = path.read_bytes()
        damage(path)
        with pytest.raises(CorruptionError) as caught:
            verb(Checkpointer(root), target, tmp_path)
        assert path.name in str(caught.value), "the damage is named"
        assert (root / object_paths.LATEST).read_bytes() == before
        assert not (tmp_path / "copy" / object_paths.LATEST).exists()
        path.unlink(missing_ok=True)
        path.write_bytes(whole)
    verb(Checkpointer(root), target, tmp_path)
    made = tmp_path / "copy" if (tmp_path / "copy").exists() else root
    assert everything(Checkpointer(made).restore()) == wanted


def test_the_refusal_names_what_keeps_the_state(world: World) -> None:
    ids = line(world.actor(), 3)
    spoil(world, own(world, ids[0]))
    with pytest.raises(
        CorruptionError, match=r"nothing was changed: .*verify\(\), or `checkpointer verify`, names.*repair_plan"
    ) as caught:
        world.actor().rollback(ids[0])
    assert str(ids[0]) in str(caught.value)
    world.actor().rollback(ids[1])
    assert latest(world.actor()) == b"2"


def test_a_rollback_reads_each_object_once_and_lists_manifests_alone(world: World) -> None:
    client = world.actor()
    ids = [fill(client, number) for number in range(3)]
    reader = world.actor()
    told: list[tuple[int, int]] = []
    reader.rollback(ids[2], progress=lambda *now: told.append(now))
    manifest = world.actor().load_manifest(ids[2])
    chains = (chain for operator in manifest.operators.values() for chain in operator.chains.values())
    named = {artifact.path for chain in chains for artifact in chain}
    gets = [path for path in reader.faults.paths("get") if path.startswith(object_paths.ARTIFACTS)]
    assert sorted(gets) == sorted(named)
    assert reader.faults.paths("list") == ["manifests/"]  # looks for commits that an old `_latest` does not name
    assert told[-1] == (told[-1][1], told[-1][1])
    assert sorted(told) == told


@pytest.mark.parametrize("verb", ["rollback", "repair"])
def test_a_function_of_progress_may_restore(world: World, verb: str) -> None:
    client = world.actor()
    ids, seen = line(client, 3), list[bytes]()

    def look(done: int, total: int) -> None:
        seen.append(latest(client))

    if verb == "rollback":
        work = threading.Thread(target=lambda: client.rollback(ids[0], progress=look), daemon=True)
    else:
        spoil(world, own(world, ids[0]))  # what is whole has nothing to be repaired
        work = threading.Thread(target=lambda: client.repair(ids[0], accept_loss=True, progress=look), daemon=True)
    work.start()
    work.join(60)
    assert not work.is_alive(), "it waits for itself"
    assert set(seen) == {b"3"}
    restored = world.actor().restore()
    assert restored is not None
    assert restored.operator("op").partitions == ([0] if verb == "rollback" else [])


def test_a_job_that_commits_while_objects_are_compared_is_rolled_back_all_the_same(world: World) -> None:
    """Comparing may take minutes, and a job may commit every second."""
    writer = world.actor()
    ids = line(writer, 2)
    reader = world.actor()
    reader.faults.call(lambda _: put(writer, b"3"), "get", path=object_paths.ARTIFACTS)
    reader.rollback(ids[0])
    assert latest(world.actor()) == b"1"
    assert len(world.actor().list_checkpoints()) == 4


def test_what_was_retired_while_it_was_compared_is_no_damage(world: World) -> None:
    ids = line(world.actor(), 3)
    reader = world.actor()
    reader.faults.call(lambda _: world.actor().delete_checkpoint(ids[0]), "get", path=object_paths.ARTIFACTS)
    with pytest.raises(RetiredError, match="choose another"):
        reader.rollback(ids[0])
    assert latest(world.actor()) == b"3"


def test_what_the_store_does_not_show_is_not_called_damaged(world: World) -> None:
    """A right that is missing: nobody is to go back further, or to accept a loss, for that."""
    ids = line(world.actor(), 2)
    before = world.latest()
    for verb in (
        lambda client: client.rollback(ids[0]),
        lambda client: client.repair_plan(ids[1]),
        lambda client: client.repair(ids[1], accept_loss=True),
    ):
        client = world.actor(retries=False)
        client.faults.fail(kind="get", path=object_paths.ARTIFACTS, error=StoreRefusedError, times=100)
        with pytest.raises(StoreRefusedError):
            verb(client)
    spoil(world, own(world, ids[0]))
    spoil(world, own(world, ids[1]))
    client = world.actor(retries=False)
    client.faults.fail(kind="get", path=object_paths.ARTIFACTS, error=StoreRefusedError, times=100)
    with pytest.raises(StoreRefusedError):
        client.repair(ids[1], accept_loss=True)
    assert world.latest() == before


# ---- a query ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def query(tmp_path: Path) -> Query:
    history(str(tmp_path / "root"))
    return Query(str(tmp_path / "root"))


def damage_state(query: Query, epoch: int) -> Path:
    """Damage what the checkpoint of an epoch wrote."""
    wanted = next(i for i in Checkpointer(query.root).list_checkpoints() if epoch_of(query, i) == epoch)
    (path,) = Path(query.root).glob(f"artifacts/*/*/{wanted}.*")
    path.chmod(0o600)
    path.write_bytes(bytes(len(path.read_bytes())))
    return path


def epoch_of(query: Query, checkpoint: CheckpointId) -> int | None:
    return Checkpointer(query.root).load_manifest(checkpoint).epoch


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_rewind_to_a_damaged_checkpoint_changes_nothing(query: Query, dry_run: bool) -> None:
    path = damage_state(query, 2)
    before, commits = query.files(), Checkpointer(query.root).list_checkpoints()
    client = Checkpointer(query.root)
    if dry_run:
        assert path.name in str(client.rewind(to="epoch=2", dry_run=True).refused)
    else:
        with pytest.raises(CorruptionError, match="nothing was changed"):
            client.rewind(to="epoch=2")
    assert query.files() == before
    assert Checkpointer(query.root).list_checkpoints() == commits
    assert Checkpointer(query.root).savepoints() == []
    assert not (query.spark / "rewound").exists()
    assert client.rewind(to="epoch=1").batch == 1
    assert query.run() == 2


def test_a_dry_run_reports_what_the_store_does_not_show(query: Query) -> None:
    path = damage_state(query, 2)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptionError, match="not a regular file"):
        Checkpointer(query.root).rewind(to="epoch=2")
    assert "not a regular file" in str(Checkpointer(query.root).rewind(to="epoch=2", dry_run=True).refused)


def test_a_dry_run_reports_a_checkpoint_that_was_retired_meanwhile(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = next(i for i in Checkpointer(query.root).list_checkpoints() if epoch_of(query, i) == 1)

    async def late(*args: Any) -> None:
        await asyncio.to_thread(Checkpointer(query.root).delete_checkpoint, wanted)
        await refuse_damaged(*args)

    monkeypatch.setattr(rewind_attempt, "refuse_damaged", late)
    assert "was retired meanwhile: choose another" in str(
        Checkpointer(query.root).rewind(to="epoch=1", dry_run=True).refused
    )


def test_an_undo_to_what_was_damaged_since_changes_nothing(query: Query) -> None:
    Checkpointer(query.root).rewind(to="epoch=1")
    before, commits = query.files(), Checkpointer(query.root).list_checkpoints()
    damage_state(query, LAST)
    with pytest.raises(CorruptionError, match="nothing was changed"):
        Checkpointer(query.root).undo_rewind()
    assert query.files() == before
    assert Checkpointer(query.root).list_checkpoints() == commits
    assert query.run() == 2


def test_a_fork_of_a_damaged_checkpoint_is_refused(query: Query, tmp_path: Path) -> None:
    path = damage_state(query, 2)
    with pytest.raises(CorruptionError, match=re.escape(path.name)):
        Checkpointer(query.root).fork("epoch=2", tmp_path / "copy", tmp_path / "copy-spark")
    assert not (tmp_path / "copy" / object_paths.LATEST).exists()
    assert not (tmp_path / "copy-spark" / "metadata").exists()


def test_a_slice_that_is_another_than_its_manifest_says_is_not_copied(world: World) -> None:
    """The object is what its name says, the slice is not what the manifest says: `verify` calls that damaged."""
    client = world.actor()
    with client.begin() as cp:
        for partition in range(2):
            cp.snapshot("pack", partition, b"pack %d" % partition)
    old = client.load_manifest(cp.id)
    chains = dict(old.operators["pack"].chains)
    (first,), (second,) = chains[0], chains[1]
    assert first.path == second.path
    chains[1] = (replace(second, offset=first.offset),)
    wrong = replace(
        old,
        id=client.new_id(),
        parent=client.session.restored.parent,
        operators={"pack": replace(old.operators["pack"], chains=chains)},
    )
    client.save_manifest(wrong)
    client.update_latest(wrong.id)
    assert not client.verify(wrong.id)
    with pytest.raises(CorruptionError, match=re.escape(second.path)):
        client.export(wrong.id, World().store.url)
    client.rollback(cp.id)
    with pytest.raises(CorruptionError, match=re.escape(second.path)):
        client.rollback(wrong.id)
