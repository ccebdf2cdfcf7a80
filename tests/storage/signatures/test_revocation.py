"""What a signer can still do around the moment at which it is revoked, and what must not stop the revocation."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.errors import DependencyError, IllegalArgumentError, InvalidStateError, UntrustedError
from pyspark_checkpointer.manifests.json_text import ENCRYPTED, SIGNED
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.base import SWAP_LIMIT, ObjectRefusedError
from pyspark_checkpointer.storage.encryption.chunked import MARK
from pyspark_checkpointer.storage.local import files
from pyspark_checkpointer.storage.signatures.signers import swap_signers
from pyspark_checkpointer.storage.signatures.store import SignedStore
from tests.storage.signatures.victim import Victim


def test_a_job_that_only_restored_is_fenced(victim: Victim) -> None:
    """Nothing there is signed by its key, and its client still has the list that allowed it."""
    victim.change(allow={victim.public("stranger"): "commit"})
    zombie = victim.client("stranger")
    zombie.restore()
    victim.change(revoke=["stranger"])
    with pytest.raises(InvalidStateError, match=r"'stranger' .* was revoked"):
        victim.commit(zombie, 3)
    assert victim.state() == victim.states[2]


def test_a_swap_that_waits_while_the_list_is_swapped_fails(
    local_victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has read what the owner signed, under the old list, and its commit comes after the last check."""
    victim, zombie = local_victim, local_victim.client("driver")

    async def late(*given: Any) -> bool:
        monkeypatch.undo()
        # It reads the pointer that the owner has signed anew, and the list that still allows it.
        await zombie.session.store.get("_latest")
        return await swap_signers(*given)

    monkeypatch.setattr("pyspark_checkpointer.admin.signers.swap_signers", late)
    zombie.restore()
    victim.change(revoke=["driver"])
    with pytest.raises(InvalidStateError, match=r"'driver' .* was revoked"):
        victim.commit(zombie, 3)
    assert victim.state() == victim.states[2]


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda client: client.savepoint("late"), id="savepoint"),
        pytest.param(lambda client: client.clean(RetentionPolicy(keep_last=1, grace=timedelta(0))), id="retention"),
    ],
)
def test_a_swap_of_a_cleaner_that_waits_until_the_revocation_is_done_fails(
    local_victim: Victim, monkeypatch: pytest.MonkeyPatch, write: Callable[[Checkpointer], object]
) -> None:
    """It has read what the owner signed, under the old list, and signed its own version of that."""
    victim, zombie = local_victim, local_victim.client("cleaner")
    store = zombie.session.store
    assert isinstance(store, SignedStore)
    swap, reached, go_on = store.inner.compare_and_swap, asyncio.Event(), asyncio.Event()
    writing: asyncio.Future[object] | None = None

    async def held(path: str, data: bytes, expected: str | None) -> str:
        if path == "_latest":
            reached.set()
            await go_on.wait()
        return await swap(path, data, expected)

    async def late(*given: Any) -> bool:
        nonlocal writing
        monkeypatch.undo()
        monkeypatch.setattr(store.inner, "compare_and_swap", held)
        writing = asyncio.ensure_future(asyncio.to_thread(write, zombie))
        async with asyncio.timeout(30):
            await reached.wait()
        return await swap_signers(*given)

    async def go_on_writing() -> None:
        go_on.set()
        assert writing is not None
        await writing

    monkeypatch.setattr("pyspark_checkpointer.admin.signers.swap_signers", late)
    victim.change(revoke=["cleaner"])
    with pytest.raises(InvalidStateError, match=r"'cleaner' .* was revoked"):
        run_sync(go_on_writing())
    assert victim.state() == victim.states[2]
    assert len(victim.client().list_checkpoints()) == len(victim.states)
    assert [savepoint.name for savepoint in victim.client().savepoints()] == ["kept"]


def test_the_owner_is_told_of_a_position_that_came_between(
    local_victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer has read what the owner signed, under the old list, and writes when the list is swapped."""
    victim, path = local_victim, "progress/kinesis/app/ownership.json"
    store = victim.client("host").session.store

    async def late(*given: Any) -> bool:
        monkeypatch.undo()
        blob = await store.get(path)
        done = await swap_signers(*given)
        await store.compare_and_swap(path, blob.data, blob.version)
        return done

    monkeypatch.setattr("pyspark_checkpointer.admin.signers.swap_signers", late)
    with pytest.raises(InvalidStateError, match="wrote it with a key that was being revoked"):
        victim.change(revoke=["host"])


def test_the_owner_is_told_of_a_commit_that_came_between_and_has_a_later_one_on_top(
    local_victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new job has gone on from what the old one committed while the list was swapped."""
    victim = local_victim
    victim.change(allow={victim.public("stranger"): "commit"})
    old, new = victim.client("driver"), victim.client("stranger")

    async def late(*given: Any) -> bool:
        monkeypatch.undo()
        for number, client in ((3, old), (4, new)):
            await asyncio.to_thread(client.restore)
            await asyncio.to_thread(victim.commit, client, number)
        return await swap_signers(*given)

    old.restore()
    monkeypatch.setattr("pyspark_checkpointer.admin.signers.swap_signers", late)
    with pytest.raises(InvalidStateError, match="wrote it with a key that was being revoked"):
        victim.change(revoke=["driver"])
    victim.change(allow={victim.public("driver"): "commit"})
    victim.change(revoke=["driver"])
    assert victim.state() == victim.states[4]
    assert len(victim.client().list_checkpoints()) == len(victim.states)


def test_a_consumer_that_only_read_is_fenced(local_victim: Victim) -> None:
    victim = local_victim
    victim.change(allow={victim.public("stranger"): "consume"})
    with victim.leases("stranger") as zombie:
        assert [*zombie.rows()] == ["shard-1"]
        victim.change(revoke=["stranger"])
        with pytest.raises(InvalidStateError, match=r"'stranger' .* was revoked"):
            zombie.create(["shard-2"])
    with victim.leases("host") as leases:
        assert [*leases.rows()] == ["shard-1"]


def test_a_revoked_consumer_begins_no_object(local_victim: Victim) -> None:
    """Nothing is replaced there, so nothing but the list tells it."""
    from pyspark_checkpointer.consumers.kinesis import ShardLeases

    victim, signing = local_victim, local_victim.signing("host")
    with ShardLeases(victim.place.url, "another", "me", encryption=victim.encryption, signing=signing) as leases:
        assert [*leases.rows()] == []
        victim.change(revoke=["host"])
        with pytest.raises(InvalidStateError, match=r"'host' .* was revoked"):
            leases.create(["shard-1"])
    with victim.leases("driver") as leases:
        assert [*leases.rows()] == ["shard-1"]


def test_junk_below_the_positions_stops_no_revocation(local_victim: Victim, caplog: pytest.LogCaptureFixture) -> None:
    victim = local_victim
    victim.write("progress/junk", b"not signed")
    with caplog.at_level(logging.WARNING):
        victim.change(revoke=["host"])
    assert "progress/junk: has no signature that counts, and was left as it is" in caplog.text
    with victim.leases("driver") as leases:
        assert [*leases.rows()] == ["shard-1"]


@pytest.mark.parametrize("path", ["progress/junk", "progress/kinesis/app/positions/shard-9.json"])
@pytest.mark.parametrize(
    "junk", [b"junk", b"{}", MARK + b"\nx", MARK + b" 7\nx", ENCRYPTED + b"2\nx", SIGNED + b"{}\n"]
)
@pytest.mark.parametrize("local_victim", ["plain", "encrypted", "hidden"], indirect=True)
def test_junk_of_one_who_has_no_key_stops_no_revocation(
    local_victim: Victim, path: str, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise whoever writes to the bucket keeps a key alive that was stolen."""
    victim = local_victim
    stored = open_store(victim.place.url, victim.place.storage_options, fencing="none")
    run_sync(stored.put(path, junk))
    with caplog.at_level(logging.WARNING):
        victim.change(revoke=["host"])
    # Where names are hidden, an object with another name is none of the root.
    is_seen = not str(victim.encryption).startswith("hide-names:")
    assert (f"{path}: has no signature that counts, and was left as it is" in caplog.text) == is_seen
    victim.change(revoke=["driver"])
    assert run_sync(stored.get(path)).data == junk
    assert victim.state() == victim.states[2]
    for name in ("host", "driver"):
        with pytest.raises(InvalidStateError, match="was revoked"):
            victim.leases(name).create(["shard-2"])


def test_an_object_too_large_for_a_position_is_not_read_by_a_revocation(
    local_victim: Victim, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise somebody without a key ends the process of the owner, and so keeps a key alive that was stolen."""
    victim, size, limits = local_victim, 4 * SWAP_LIMIT, list[int | None]()
    junk = Path(victim.place.url) / "progress" / "junk.json"
    with junk.open("wb") as file:
        file.truncate(size)  # it has no blocks on the disk
    read = files.read

    def recorded(path: str, limit: int | None) -> bytes:
        if path == str(junk):
            limits.append(limit)
        return read(path, limit)

    monkeypatch.setattr(files, "read", recorded)
    with caplog.at_level(logging.WARNING):
        for name in ("host", "driver"):
            victim.change(revoke=[name])
    assert limits
    assert all(limit is not None and limit < size for limit in limits)
    assert "progress/junk.json: has no signature that counts, and was left as it is" in caplog.text
    for name in ("host", "driver"):
        with pytest.raises(InvalidStateError, match="was revoked"):
            victim.leases(name).create(["shard-2"])


def test_nobody_is_revoked_where_the_pointer_was_destroyed(local_victim: Victim) -> None:
    victim = local_victim
    victim.write("_latest", b"not signed")
    with pytest.raises(UntrustedError, match="Nobody was revoked yet: repair the root, and revoke then"):
        victim.change(revoke=["driver"])
    assert victim.client().signers().version == 1


def test_the_same_call_finishes_a_revocation(local_victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, zombie = local_victim, local_victim.client("driver")
    zombie.restore()

    async def crash(*given: Any) -> None:
        raise DependencyError("failed by the test")

    victim.commit(victim.client("owner"), 3)
    zombie.restore()
    monkeypatch.setattr("pyspark_checkpointer.admin.signers._Change._fence", crash)
    with pytest.raises(DependencyError):
        victim.change(revoke=["driver"])
    monkeypatch.undo()
    assert victim.change(revoke=["driver"]).version == 2
    with pytest.raises(InvalidStateError, match=r"'driver' .* was revoked"):
        victim.commit(zombie, 4)
    assert victim.state() == {"n": 3}


def test_a_revocation_that_may_not_list_the_newest_commits_fails(
    local_victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them may have come between, signed by the revoked key."""
    victim = local_victim
    victim.change(revoke=["driver"])
    for number in range(3, 9):
        victim.commit(victim.client("owner"), number)

    async def refused(*given: Any) -> None:
        raise ObjectRefusedError("refused by the test")

    monkeypatch.setattr("pyspark_checkpointer.checkpoint.history.list_sizes", refused)
    with pytest.raises(ObjectRefusedError):
        victim.change(revoke=["driver"])
    monkeypatch.undo()
    assert victim.change(revoke=["driver"]).version == 2


def test_a_revoked_signer_does_not_come_back_with_less(local_victim: Victim) -> None:
    """All that it committed would not count any more."""
    victim = local_victim
    victim.change(revoke=["driver"])
    with pytest.raises(IllegalArgumentError, match="'driver': could commit already: what it signed so far"):
        victim.change(allow={victim.public("driver"): "clean"})
    assert victim.state() == victim.states[2]


# ---- an old list beside a new one ------------------------------------------------------------------------------------


def test_an_owner_changes_no_older_list_than_the_one_that_is_named(
    local_victim: Victim, forget: Callable[[], None]
) -> None:
    victim = local_victim
    old = victim.read("_signers")
    victim.change(revoke=["driver"])
    forget()
    victim.write("_signers", old)
    with pytest.raises(UntrustedError, match="is version 1 of the list of signers, and version 2 is known"):
        victim.client(more=",at-least:2").change_signers(
            victim.private("owner"), allow={victim.public("stranger"): "commit"}
        )
    assert victim.read("_signers") == old


def test_an_owner_makes_no_new_list_where_one_was_lost(local_victim: Victim) -> None:
    """Otherwise the owner would sign whatever somebody put there, and nothing old would ever count again."""
    victim = local_victim
    list_of_signers, before = victim.read("_signers"), victim.objects()
    run_delete(victim, ["_signers"])
    with pytest.raises(InvalidStateError, match="is signed, and the root has lost its _signers: bring that back"):
        victim.change(allow={victim.public("stranger"): "commit"})
    # Where nothing there is signed any more, only the version tells that something was.
    run_delete(victim, [path for path in before if path != "_signers" and not path.startswith("artifacts/")])
    with pytest.raises(UntrustedError, match="has lost its _signers, which this client was told to find"):
        victim.client(more=",at-least:2").change_signers(victim.private("owner"))
    victim.put_back(before)
    assert victim.read("_signers") == list_of_signers
    assert victim.state() == victim.states[2]


def run_delete(victim: Victim, paths: list[str]) -> None:
    from pyspark_checkpointer.runtime import run_sync

    run_sync(victim.raw.delete(paths))
