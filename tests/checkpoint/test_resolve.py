"""Which checkpoint is meant: what a name is, what is found, and what is refused.

`test_one_grammar.py` tries every form wherever a checkpoint is asked for.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy, runtime
from pyspark_checkpointer.admin import savepoints
from pyspark_checkpointer.checkpoint.listing import read_listed
from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    NotFoundError,
    SavepointNotFoundError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId
from tests.cli.conftest import Run, run
from tests.world import World, latest, line, put

__all__ = ["run"]


def meant(ck: Checkpointer, wanted: str) -> CheckpointId:
    return runtime.run_sync(find(ck.session, CheckpointSelector.parse(wanted)))


@pytest.mark.parametrize(
    "name",
    ["5", "0", "2026", "20260131", "20260131121500", "0000000007", "7-", "7-1a2b", "2026-01", "latest", "prepared"],
)
@pytest.mark.parametrize("more", ["", "epoch=", "savepoint=", "at="])
def test_a_savepoint_whose_name_would_mean_two_things_is_not_made(world: World, name: str, more: str) -> None:
    with world.actor() as ck:
        line(ck, 1)
        with pytest.raises(IllegalArgumentError, match=f"savepoint '{more}{name}': .* ambiguous: choose another name"):
            ck.savepoint(more + name)
        assert ck.savepoints() == []


@pytest.mark.parametrize("name", ["v5", "5 a", "2026-01-31", "latest-good", "epoch 5", "V"])
def test_other_names_of_savepoints_mean_one_thing(world: World, name: str) -> None:
    with world.actor() as ck:
        (first,) = line(ck, 1)
        ck.savepoint(name)
        assert meant(ck, name) == first


def test_a_savepoint_that_has_such_a_name_from_before_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savepoints, "means_two_things", lambda name: False)
    with world.actor() as ck:
        first, _, third = line(ck, 3)
        for name in ("latest", "2"):
            ck.savepoint(name, first)
    monkeypatch.undo()
    with world.actor() as ck:
        assert meant(ck, "latest") == third
        assert meant(ck, "savepoint=latest") == first
        assert ck.restore(savepoint="latest").id == first  # type: ignore[union-attr]
        for name in ("latest", "2"):
            ck.delete_savepoint(name)
        assert ck.savepoints() == []


@pytest.mark.parametrize("epoch", [1795446116680452841, 2**63 - 1, -(2**63) + 1])
def test_every_epoch_that_begin_takes_can_be_named(world: World, epoch: int) -> None:
    with world.actor() as ck:
        made = put(ck, b"x", epoch=epoch)
        assert meant(ck, f"epoch={epoch}") == made
        assert ck.restore(f"epoch={epoch}").id == ck.restore(epoch=epoch).id == made  # type: ignore[union-attr]
        with pytest.raises(IllegalArgumentError, match="expected a number"):
            meant(ck, "epoch=" + "1" * 20)


def test_a_savepoint_whose_name_is_a_number_is_no_guess(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        savepoints, "means_two_things", lambda name: False
    )  # as one that was made before it was refused
    with world.actor() as ck:
        first, second, _ = line(ck, 3)
        for name in ("2", "0000000002"):
            ck.savepoint(name, first)
            assert meant(ck, f"savepoint={name}") == first
        assert meant(ck, str(second)) == second
        with pytest.raises(IllegalArgumentError, match="2 could be epoch=2, or checkpoint 0000000002-…: say which"):
            meant(ck, "2")
        with pytest.raises(IllegalArgumentError, match=rf"{first} \(savepoint 0000000002\), {second}"):
            meant(ck, "0000000002")


def test_a_savepoint_is_found_where_the_history_is_damaged(world: World) -> None:
    with world.actor() as ck:
        first, second, third = line(ck, 3)
        ck.savepoint("first", first)
        world.delete(f"manifests/{second}.json")
        assert meant(ck, "first") == first
        assert meant(ck, str(third)) == third
        assert runtime.run_sync(read_listed(ck.session, CheckpointSelector("name", "first"))).savepoints == ("first",)


# ---- what verbs say alike -------------------------------------------------------------------------------

BATCH = 11
"""The epoch of the checkpoint that all forms below mean. Its sequence is 2."""

MISSING = {
    "0000000009": "no live checkpoint 0000000009: there are 0000000001-",
    "0000000009-00000000": "no live checkpoint 0000000009-00000000",
    "epoch=99": "no live checkpoint of epoch 99",
    "at=2001-01-01": "no live checkpoint of 2001-01-01T00:00:00.000000Z or before: the oldest is of ",
    "savepoint=god": "no savepoint 'god': did you mean 'good'?",
    "god": "'god' is no id and no savepoint: did you mean 'good'?",
}
"""What means nothing here, with what every verb says of it."""


def first(ck: Checkpointer) -> str:
    """The parameter of the state that is committed: the epoch that wrote it."""
    restored = ck.restore()
    assert restored is not None
    return restored.operator("op").partition(0)[0].decode()


def restored(ck: Checkpointer, to: str, beside: Path) -> str:
    found = ck.restore(to)
    assert found is not None
    return found.operator("op").partition(0)[0].decode()


def kept(ck: Checkpointer, to: str, beside: Path) -> str:
    made = ck.savepoint("another", to)
    return restored(ck, str(made.id), beside)


def rolled_back(ck: Checkpointer, to: str, beside: Path) -> str:
    ck.rollback(to)
    return first(ck)


def exported(ck: Checkpointer, to: str, beside: Path) -> str:
    ck.export(to, beside / "copy")
    with Checkpointer(beside / "copy") as copy:
        return first(copy)


def as_parquet(ck: Checkpointer, to: str, beside: Path) -> str:
    return str(ck.export_parquet(to, beside / "tables").epoch)


def verified(ck: Checkpointer, to: str, beside: Path) -> str:
    found = ck.verify(to)
    assert (found.checkpoints, bool(found)) == (1, True)
    return str(BATCH)


def deleted(ck: Checkpointer, to: str, beside: Path) -> str:
    """The one that is deleted: no savepoint keeps it then, unless it is found by that."""
    before = set(ck.list_checkpoints())
    if "good" not in str(to):
        for point in ck.savepoints():
            ck.delete_savepoint(point.name)
        ck.delete_checkpoint(to)
        (gone,) = before - set(ck.list_checkpoints())
        return str(gone.sequence + 9)
    with pytest.raises(InvalidStateError, match=r"0000000002-.* is kept by savepoint 'good'"):
        ck.delete_checkpoint(to)
    return str(BATCH)


PYTHON: dict[str, Callable[[Checkpointer, str, Path], str]] = {
    "restore": restored,
    "savepoint": kept,
    "rollback": rolled_back,
    "export": exported,
    "export_parquet": as_parquet,
    "verify": verified,
    "delete_checkpoint": deleted,
}


@pytest.fixture
def told(tmp_path: Path) -> Checkpointer:
    """Checkpoints 1 to 3 of epochs 10 to 12, 2 is savepoint "good"."""
    ck = Checkpointer(tmp_path / "root")
    for epoch in range(10, 13):
        with ck.begin(epoch) as cp:
            cp.snapshot("op", 0, str(epoch).encode())
            cp.save("map", KeyedState({"epoch": epoch}))
    ck.savepoint("good", "epoch=11")
    return ck


def known(ck: Checkpointer) -> CheckpointId:
    return ck.list_checkpoints()[1]


@pytest.mark.parametrize("verb", [verb for verb in PYTHON if verb != "delete_checkpoint"])
def test_every_verb_of_python_says_alike_that_nothing_is_meant(told: Checkpointer, tmp_path: Path, verb: str) -> None:
    for text, said in MISSING.items():
        with pytest.raises(NotFoundError) as missing:
            PYTHON[verb](told, text, tmp_path)
        assert said in str(missing.value)


@pytest.mark.parametrize("wanted", [True, 1.5, b"0000000002", None])
def test_what_is_no_text_is_refused_by_name(told: Checkpointer, wanted: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="expected latest, an id or the beginning of one, epoch=41, "):
        told.rollback(wanted)


def test_latest_is_the_committed_checkpoint_for_every_verb(told: Checkpointer, tmp_path: Path) -> None:
    for verb, work in PYTHON.items():
        if verb not in ("verify", "delete_checkpoint"):
            assert work(told, "latest", tmp_path) == "12", verb
    with pytest.raises(InvalidStateError, match="is the committed checkpoint: roll back"):
        told.delete_checkpoint("latest")
    assert Checkpointer(tmp_path / "empty").restore("latest") is None
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint is committed yet"):
        Checkpointer(tmp_path / "empty").savepoint("none")


@pytest.mark.parametrize("form", ["prepared", "id", "beginning"])
def test_what_is_prepared_can_be_looked_at_and_no_more(told: Checkpointer, tmp_path: Path, run: Run, form: str) -> None:
    with told.begin(13) as cp:
        cp.snapshot("op", 0, b"13")
        prepared = cp.prepare().id
    wanted = {"prepared": "prepared", "id": str(prepared), "beginning": str(prepared)[:10]}[form]
    assert run("show", told.root, wanted, "--json").json["id"] == str(prepared)
    assert told.verify(wanted).checkpoints == 1
    for verb in ("restore", "savepoint", "rollback", "export", "export_parquet"):
        with pytest.raises(CheckpointNotFoundError, match=f"no live checkpoint {prepared}: it is prepared: commit"):
            PYTHON[verb](told, wanted, tmp_path)
    with pytest.raises(InvalidStateError, match="is prepared: abort it instead"):
        told.delete_checkpoint(wanted)
    with pytest.raises(CheckpointNotFoundError, match="no live checkpoint of epoch 13"):
        told.restore("epoch=13")


def test_the_keywords_of_restore_are_the_same_forms(told: Checkpointer) -> None:
    for found in (told.restore(epoch=11), told.restore(savepoint="good"), told.restore(known(told))):
        assert found is not None
        assert found.epoch == 11
    with pytest.raises(SavepointNotFoundError, match=r"no savepoint 'god': did you mean 'good'\?"):
        told.restore(savepoint="god")
    for wrong in ({"id": "good", "epoch": 1}, {"epoch": 1, "savepoint": "good"}):
        with pytest.raises(IllegalArgumentError, match="restore by one of id, epoch and savepoint, not by several"):
            told.restore(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["latest", "LATEST", " latest", "Prepared", "epoch=4", "Epoch=4", "7", "-", "--json"])
def test_a_savepoint_is_not_named_like_something_else(world: World, name: str) -> None:
    with world.actor() as ck:
        put(ck, b"x")
        with pytest.raises(IllegalArgumentError, match="would be ambiguous: choose another name"):
            ck.savepoint(name)
        for good in ("Latest-of-May", "epoch", "v-1", " Before v2"):
            ck.savepoint(good)
            assert meant(ck, good) == ck.read_latest()


def test_a_selector_says_what_was_typed() -> None:
    for text in ("latest", "prepared", "0000000002-0a1b2c3d", "2-0a", "epoch=-1", "savepoint=a=b", "a name"):
        selector = CheckpointSelector.parse(text)
        assert str(selector) == text
        assert CheckpointSelector.parse(selector) == selector
    assert str(CheckpointSelector.parse("at=2024-01-02T07:00+01:00")) == "at=2024-01-02T06:00:00Z"


def test_what_is_kept_is_read_only_where_nothing_of_the_chain_fits(world: World) -> None:
    """So damage of an old savepoint does not matter to who asks for something newer."""
    with world.actor() as ck:
        for epoch in range(4):
            with ck.begin(epoch) as cp:
                cp.snapshot("op", 0, b"%d" % epoch)
        old, between, newer, _ = ck.list_checkpoints()
        ck.savepoint("old", old)
        ck.delete_checkpoint(between)
        assert meant(ck, "epoch=0") == old
        world.delete(f"manifests/{old}.json")
        assert meant(ck, "epoch=2") == newer
        with pytest.raises(Exception, match=str(old)):
            meant(ck, "epoch=99")


@pytest.fixture
def holed(world: World) -> Iterator[tuple[Checkpointer, list[CheckpointId]]]:
    """Six checkpoints of epochs 1 to 6; the manifest of the second is lost."""
    with world.actor() as ck:
        ids = [put(ck, b"x", epoch=epoch) for epoch in range(1, 7)]
        world.delete(f"manifests/{ids[1]}.json")
        yield ck, ids


Holed = tuple[Checkpointer, list[CheckpointId]]


def test_a_lost_older_manifest_does_not_matter_to_who_asks_for_a_newer_checkpoint(holed: Holed) -> None:
    ck, ids = holed
    for wanted in ("epoch=6", "at=9999-01-01", str(ids[5])[:10], "6-"):
        assert meant(ck, wanted) == ids[5]
    for wanted in ("epoch=3", str(ids[2])[:10]):
        assert meant(ck, wanted) == ids[2]
    assert meant(ck, "2-") == ids[1], "its child says that it is live"
    for wanted in ("epoch=2", "epoch=1", "1-", "at=2001-01-01"):
        with pytest.raises(CorruptionError, match=str(ids[1])):
            meant(ck, wanted)


def test_a_damaged_savepoint_does_not_matter_to_who_asks_for_a_newer_one(world: World) -> None:
    with world.actor() as ck:
        older, newer, gone, _ = (put(ck, b"x", epoch=epoch) for epoch in range(4))
        for name, kept in (("older", older), ("newer", newer)):
            ck.savepoint(name, kept)
        ck.delete_checkpoint(gone)
        world.delete(f"manifests/{older}.json")
        assert meant(ck, "epoch=1") == newer
        for wanted in ("1-", "0000000001"):
            assert meant(ck, wanted) == older, "the catalog names it"


def test_a_retired_checkpoint_says_how_to_bring_it_back(world: World) -> None:
    with world.actor() as ck:
        ids = line(ck, 5)
        ck.clean(RetentionPolicy(keep_last=2, grace=timedelta(hours=1)))
        for wanted in (str(ids[1]), str(ids[1]).partition("-")[0]):
            with pytest.raises(CheckpointNotFoundError, match="retired, or never committed") as caught:
                meant(ck, wanted)
            assert f"`checkpointer repair COPY --to {ids[1]}`" in str(caught.value)
        with pytest.raises(InvalidStateError, match=f"repair COPY --to {ids[1]}") as refused:
            ck.repair(ids[1])
        assert "rollback" not in str(refused.value)
    # What the errors say, in the root itself in place of a copy.
    world.delete(object_paths.LATEST)
    with world.actor() as ck:
        ck.repair(ids[1])
        assert ck.verify()
        assert latest(ck) == b"2"


def test_a_checkpoint_that_was_swept_is_not_there(world: World) -> None:
    with world.actor() as ck:
        ids = line(ck, 5)
        ck.clean(RetentionPolicy(keep_last=2, grace=timedelta(0)))
        with pytest.raises(CheckpointNotFoundError, match=f"no live checkpoint {ids[1]}$"):
            meant(ck, str(ids[1]))
