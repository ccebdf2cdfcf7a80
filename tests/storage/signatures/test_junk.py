"""What somebody without a key puts into a signed root proves nothing, and nothing that was signed is lost by it."""

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.checkpoint.metadata import MAX_MANIFEST
from pyspark_checkpointer.errors import CheckpointNotFoundError, InvalidStateError, SavepointNotFoundError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.json_text import dump
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from tests.storage.signatures.victim import Victim

KEPT = RetentionPolicy(keep_last=1, grace=timedelta(0))
JUNK = CheckpointId(9000, "aaaaaaaa")


def plant(victim: Victim, checkpoint: CheckpointId, data: bytes) -> None:
    """Write what nobody signed, and no key encrypted, in the place of a manifest."""
    stored = open_store(victim.place.url, victim.place.storage_options, fencing="none")
    end = ".signed" if victim.encryption is None else ".signed.enc"
    path = object_paths.manifest(checkpoint) + end
    run_sync(stored.delete([path]))
    run_sync(stored.put(path, data))


def stored_manifest(victim: Victim, checkpoint: CheckpointId) -> bytes:
    """Return a manifest as it is stored, with its signature."""
    return victim.read(f"{object_paths.manifest(checkpoint)}.signed")


def plant_catalog(victim: Victim, sequence: int, **savepoints: CheckpointId) -> str:
    """Write a catalog as anybody can who has the key that encrypts, if there is one."""
    own = CheckpointId(sequence, "deadbeef")
    entries = [
        {
            "id": str(known),
            "digest": sha256(stored_manifest(victim, known).partition(b"\n")[2]),
            "name": name,
            "created": "2026-01-01T00:00:00.000000Z",
            "nonce": name,
        }
        for name, known in savepoints.items()
    ]
    data = dump({"format_version": 1, "id": str(own), "entries": entries})
    path = object_paths.catalog(own, sha256(data))
    victim.write(path, data)
    return path


def saved(victim: Victim, name: str) -> object:
    """Return the state of a savepoint."""
    restored = victim.client().restore(savepoint=name)
    assert restored is not None
    return restored.keyed("totals").to_dict()


# ---- manifests above the commits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["junk", "a signed one of another path", "what looks encrypted"])
@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda client, ids: client.clean(KEPT), id="clean"),
        pytest.param(lambda client, ids: client.plan(KEPT), id="plan"),
        pytest.param(lambda client, ids: client.rollback(ids[0]), id="rollback"),
        pytest.param(lambda client, ids: client.delete_checkpoint(ids[0]), id="delete"),
    ],
)
def test_junk_above_the_commits_stops_no_cleanup(
    local_victim: Victim,
    use: Callable[[Checkpointer, list[CheckpointId]], object],
    form: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise whoever writes to the bucket leads the owner to a repair, which drops the history."""
    victim = local_victim
    ids = victim.client().list_checkpoints()
    junk = {"junk": b"junk", "what looks encrypted": b"checkpointer-encrypted-1\nx"}
    plant(victim, JUNK, junk.get(form) or stored_manifest(victim, ids[0]))
    with caplog.at_level(logging.WARNING):
        use(victim.client("driver"), ids)
    assert f"{JUNK}.json: has no signature that counts, or cannot be decrypted" in caplog.text
    with pytest.raises(InvalidStateError, match="nothing to repair"):
        victim.client("driver").repair(ids[-1])
    (finding,) = victim.client().verify().findings
    assert (finding.path, finding.checkpoints) == (object_paths.manifest(JUNK), ())


def test_an_old_copy_below_a_damaged_commit_is_still_found(local_victim: Victim, forget: Callable[[], None]) -> None:
    """The commit below the damaged one is whole, and a cleanup on the old copy would lose it."""
    victim = local_victim
    old, ids = victim.read("_latest"), victim.client().list_checkpoints()
    for number in (3, 4):
        victim.commit(victim.driver, number)
    *_, lost, damaged = victim.client().list_checkpoints()
    plant(victim, damaged, b"damaged")
    victim.write("_latest", old)
    forget()
    driver = victim.client("driver")
    for use in (
        lambda: driver.clean(KEPT),
        lambda: driver.plan(KEPT),
        lambda: driver.rollback(ids[0]),
        lambda: driver.delete_checkpoint(ids[0]),
    ):
        with pytest.raises(InvalidStateError, match=f"old copy.*{lost} may be a commit.*checkpointer repair"):
            use()
    assert {finding.path for finding in victim.client().verify().findings} == {
        "_latest",
        object_paths.manifest(damaged),
    }
    driver.repair(lost)
    assert victim.state() == victim.states[3]


def test_an_attempt_that_failed_is_no_commit_below_distant_junk(local_victim: Victim) -> None:
    victim = local_victim
    writer = victim.client("driver")
    with writer.begin(epoch=3) as cp:
        cp.prepare().abort()
    plant(victim, JUNK, b"junk")
    victim.client("driver").clean(KEPT)
    assert victim.state() == victim.states[2]


def test_junk_that_is_too_large_to_be_a_manifest_proves_nothing(
    local_victim: Victim, caplog: pytest.LogCaptureFixture
) -> None:
    """What no client would have written is no commit, though nobody looks whether it is signed."""
    victim = local_victim
    ids = victim.client().list_checkpoints()
    plant(victim, JUNK, b"junk")
    (file,) = Path(victim.place.url).rglob(f"*{JUNK}*")
    os.truncate(file, 4 * MAX_MANIFEST)
    with caplog.at_level(logging.WARNING):
        victim.client("driver").delete_checkpoint(ids[0])
    assert f"{JUNK}.json: has no signature that counts, or cannot be decrypted, or is too large" in caplog.text
    with pytest.raises(InvalidStateError, match="nothing to repair"):
        victim.client("driver").repair(ids[-1])


def test_a_prepared_checkpoint_below_junk_is_no_lost_commit(local_victim: Victim) -> None:
    """`_latest` itself names it, and what is prepared has no child."""
    victim = local_victim
    ids = victim.client().list_checkpoints()
    with victim.client("driver").begin(epoch=3) as cp:
        cp.save("totals", KeyedState({"n": 3}))
        prepared = cp.prepare()
        plant(victim, CheckpointId(prepared.id.sequence + 1, "aaaaaaaa"), b"x")
        victim.client("driver").delete_checkpoint(ids[0])
        with pytest.raises(InvalidStateError, match="nothing to repair"):
            victim.client("driver").repair(ids[-1])
        prepared.commit()
    assert victim.state() == {"n": 3}


def test_junk_does_not_change_which_candidate_is_the_best(local_victim: Victim) -> None:
    """Whole candidates are ranked by sequence, unless a `_latest` that is no old copy names one of them."""
    victim = local_victim
    newest = victim.client().list_checkpoints()[-1]
    with victim.client("driver").begin(epoch=3) as cp:
        cp.prepare().abort()
    plant(victim, JUNK, b"junk")
    assert victim.client().repair_candidates()[0].id == newest


# ---- catalogs that nobody signed -------------------------------------------------------------------------------------


@pytest.fixture
def audited(local_victim: Victim) -> Victim:
    """A root whose savepoint `audited` is of the second checkpoint."""
    local_victim.client("cleaner").savepoint("audited", local_victim.client().list_checkpoints()[1])
    return local_victim


@pytest.mark.parametrize("sequence", [4, 9999])
def test_a_catalog_that_nobody_signed_gives_no_savepoint_another_state(
    audited: Victim, sequence: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Only `_latest` says which catalog counts. If it is lost, states are kept, and none is taken for `audited`."""
    ids = audited.client().list_checkpoints()
    plant_catalog(audited, sequence, audited=ids[0])
    run_sync(audited.raw.delete(["_latest"]))
    driver = audited.client("driver")
    assert all(not one.catalogs and not one.savepoints for one in driver.repair_candidates())
    with pytest.raises(CheckpointNotFoundError):
        driver.repair("savepoint=audited")
    plan = driver.repair_plan(ids[-1])
    assert ("audited", f"unproven-{ids[0]}") in plan.unproven
    with caplog.at_level(logging.WARNING):
        driver.repair(ids[-1])
    assert f"savepoint 'audited' gets the name 'unproven-{ids[0]}'" in caplog.text
    with pytest.raises(SavepointNotFoundError):
        saved(audited, "audited")
    assert saved(audited, f"unproven-{ids[0]}") == audited.states[0]
    assert audited.client().verify()
    audited.client("cleaner").savepoint("audited", f"unproven-{ids[0]}")  # the owner has looked at it
    assert saved(audited, "audited") == audited.states[0]


def test_savepoints_of_a_lost_pointer_are_kept_under_other_names(audited: Victim) -> None:
    ids = audited.client().list_checkpoints()
    run_sync(audited.raw.delete(["_latest"]))
    audited.client("driver").repair(ids[0])
    names = {savepoint.name for savepoint in audited.client().savepoints()}
    assert names == {f"unproven-{ids[1]}", f"unproven-{ids[2]}"}
    audited.client("cleaner").clean(KEPT)
    assert [saved(audited, f"unproven-{known}") for known in ids[1:]] == audited.states[1:3]


@pytest.mark.parametrize("evil", [False, True])
def test_savepoints_that_an_old_copy_names_keep_their_names(
    audited: Victim, evil: bool, forget: Callable[[], None]
) -> None:
    """Those that were made since are kept as well, but only what the old `_latest` leads to is signed."""
    ids, old = audited.client().list_checkpoints(), audited.read("_latest")
    audited.driver.restore()
    for number in (3, 4, 5):
        audited.commit(audited.driver, number)
    newest = audited.client().list_checkpoints()[-1]
    cleaner = audited.client("cleaner")
    cleaner.savepoint("since", newest)
    cleaner.savepoint("another name", ids[1])
    if evil:
        plant_catalog(audited, 9999, audited=ids[0], kept=ids[0])
    audited.write("_latest", old)
    forget()
    driver = audited.client("driver")
    plan = driver.repair_plan(newest)
    driver.repair(newest)
    other = ids[0] if evil else newest
    assert {savepoint.name for savepoint in audited.client().savepoints()} == {"audited", "kept", f"unproven-{other}"}
    assert saved(audited, "audited") == audited.states[1]
    assert saved(audited, "kept") == audited.states[2]
    assert saved(audited, f"unproven-{other}") == audited.states[0 if evil else 5]
    renamed = ["audited", "kept"] if evil else ["since"]
    assert plan.unproven == (
        *([] if evil else [("another name", "audited")]),
        *((name, f"unproven-{other}") for name in renamed),
    )
    assert all(line in str(plan) for line in plan.renames)


def test_a_pointer_that_counts_keeps_its_catalog(audited: Victim) -> None:
    """Also where the committed manifest is lost, and the root needs a repair."""
    ids = audited.client().list_checkpoints()
    plant_catalog(audited, 9999, audited=ids[0])
    plant(audited, JUNK, b"junk")
    run_sync(audited.raw.delete([f"{object_paths.manifest(ids[-1])}.signed"]))
    audited.client("driver").repair(ids[1])
    assert saved(audited, "audited") == audited.states[1]


def test_a_catalog_that_nobody_signed_is_no_evidence(audited: Victim) -> None:
    """By another digest in it a sound checkpoint would look changed, and a failed attempt like a commit."""
    newest = audited.client().list_checkpoints()[-1]
    data = audited.read(plant_catalog(audited, 9999, evil=newest))
    own = CheckpointId(9998, "deadbeef")
    changed = data.replace(b"9999-deadbeef", b"9998-deadbeef")
    digest = sha256(stored_manifest(audited, newest).partition(b"\n")[2])
    changed = changed.replace(digest.encode(), b"0" * 64)
    audited.write(object_paths.catalog(own, sha256(changed)), changed)
    best, *_ = audited.client().repair_candidates()
    assert (best.id, best.problems, best.savepoints) == (newest, (), ("kept",))
    run_sync(audited.raw.delete(["_latest"]))
    best, *_ = audited.client().repair_candidates()
    assert (best.id, best.problems, best.savepoints) == (newest, (), ())
