"""Another root of the same owner in the place of this one, and keys and clocks that are wrong."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.errors import DependencyError, IllegalArgumentError, InvalidStateError, UntrustedError
from pyspark_checkpointer.manifests.signatures_json import decode_signed
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.signatures import versions
from pyspark_checkpointer.storage.signatures.signing_keys import PrivateKeyFile, Signing
from pyspark_checkpointer.storage.signatures.store import SignedStore
from tests.storage.signatures.victim import Victim


@pytest.fixture
def other(local_victim: Victim, tmp_path: Path) -> dict[str, bytes]:
    """The objects of another root of the same owner and driver."""
    victim, root = local_victim, str(tmp_path / "another")
    Checkpointer(root, encryption=victim.encryption).change_signers(
        victim.private("owner"), allow={victim.public("driver"): "commit"}
    )
    with Checkpointer(root, encryption=victim.encryption, signing=victim.signing("driver")).begin(epoch=0) as cp:
        cp.save("totals", KeyedState({"n": -1}))
    store = open_store(root, fencing="none")
    return {entry.path: run_sync(store.get(entry.path)).data for entry in run_sync(store.list(""))}


def stored(victim: Victim) -> Any:
    """The victim's root as it is stored, so that keys that encrypt can be exchanged too."""
    victim.raw = open_store(victim.place.url, fencing="none")
    return victim


def test_a_client_stays_with_the_root_that_it_began_with(local_victim: Victim, other: dict[str, bytes]) -> None:
    victim = stored(local_victim)
    reader = victim.client()
    assert victim.state(reader) == victim.states[2]
    victim.put_back(other)
    if victim.encryption is not None:
        # Its objects do not even open with the keys that this client has.
        with pytest.raises(UntrustedError, match=r"_signers: cannot be decrypted: .*: bring it back from a copy$"):
            reader.restore()
        return
    for use in (reader.restore, reader.list_checkpoints, lambda: victim.commit(victim.driver, 3)):
        with pytest.raises(InvalidStateError, match="_signers was removed or replaced"):
            use()
    assert victim.state() == {"n": -1}


@pytest.mark.parametrize("damaged", [b"not signed", b"checkpointer-signed-1 {}", b""])
def test_a_list_that_cannot_be_read_is_named_with_the_next_step(local_victim: Victim, damaged: bytes) -> None:
    local_victim.write("_signers", damaged)
    for use in (local_victim.client().restore, local_victim.client("owner").repair_candidates):
        with pytest.raises(UntrustedError, match=r"/_signers: expected .*: bring it back from a copy$") as raised:
            use()
        assert raised.value.version is None


def test_a_visit_of_another_root_makes_nobody_forget(local_victim: Victim, other: dict[str, bytes]) -> None:
    victim = stored(local_victim)
    older = victim.objects()
    victim.commit(victim.driver, 3)
    assert victim.state() == {"n": 3}
    victim.put_back(other)
    assert victim.state() == {"n": -1}
    victim.put_back(older)
    with pytest.raises(UntrustedError, match="an older version was put back"):
        victim.state()


def test_a_root_that_is_named_is_no_other(
    local_victim: Victim, other: dict[str, bytes], forget: Callable[[], None]
) -> None:
    victim = stored(local_victim)
    named = f",root:{victim.client().signers().root_id}"
    assert victim.state(victim.client(more=named)) == victim.states[2]
    forget()
    victim.put_back(other)
    for use in (lambda c: c.restore(), lambda c: c.signers(), lambda c: c.change_signers(victim.private("owner"))):
        with pytest.raises(UntrustedError, match="another root of the same owner was put here"):
            use(victim.client(more=named))
    run_sync(victim.raw.delete(list(other)))
    with pytest.raises(UntrustedError, match="has lost its _signers, which this client was told to find"):
        victim.client("owner", more=named).begin()
    with pytest.raises(IllegalArgumentError, match="expected 32 hexadecimal digits"):
        victim.client(more=",root:abc")


# ---- keys and clocks -------------------------------------------------------------------------------------------------


class Service:
    """A key in a service that does what a test says."""

    def __init__(self, path: str, sign: Callable[[PrivateKeyFile, bytes], Any]) -> None:
        self._key, self._sign = PrivateKeyFile(path), sign
        self.public_key = self._key.public_key

    def sign(self, message: bytes) -> bytes:
        return self._sign(self._key, message)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "made",
    [lambda key, message: key.sign(message + b"x"), lambda key, message: b"", lambda key, message: None],
    ids=["another", "empty", "none"],
)
def test_a_wrong_signature_is_never_written(local_victim: Victim, made: Callable[[PrivateKeyFile, bytes], Any]) -> None:
    victim, before = local_victim, local_victim.objects()
    with pytest.raises(InvalidStateError, match="nothing was written: the key to sign with made a signature"):
        victim.commit(_served(victim, made), 3)
    assert victim.read("_latest") == before["_latest"]
    assert victim.state() == victim.states[2]


def test_a_key_that_fails_is_an_error_of_the_tree(local_victim: Victim) -> None:
    def fail(key: PrivateKeyFile, message: bytes) -> bytes:
        raise OSError("token-1234")

    with pytest.raises(DependencyError, match="raised OSError: try again") as raised:
        local_victim.commit(_served(local_victim, fail), 3)
    assert "token-1234" not in str(raised.value)
    assert local_victim.state() == local_victim.states[2]


def test_a_signer_cannot_leave_no_time_for_others(
    local_victim: Victim, monkeypatch: pytest.MonkeyPatch, forget: Callable[[], None]
) -> None:
    """One who may clean can sign with any time. What is far ahead does not count, and a repair replaces it."""
    victim = local_victim
    monkeypatch.setattr(
        "pyspark_checkpointer.storage.signatures.store.next_time", lambda *given: datetime.max.replace(tzinfo=UTC)
    )
    victim.client("cleaner").savepoint("late")
    monkeypatch.undo()
    forget()
    with pytest.raises(
        UntrustedError, match=r"more than a day ahead of the clock of this machine.*checkpointer repair"
    ):
        victim.commit(victim.client("driver"), 3)
    driver = victim.client("driver")
    driver.repair(driver.repair_candidates()[0].id)
    assert victim.state() == victim.states[2]
    victim.commit(victim.client("driver"), 3)
    assert victim.state() == {"n": 3}


def test_a_cleaner_cannot_make_an_old_commit_look_new(local_victim: Victim, forget: Callable[[], None]) -> None:
    """It adds an old `_latest` of the driver to a new one of its own."""
    victim = local_victim
    store = victim.client("cleaner").session.store
    assert isinstance(store, SignedStore)
    old = run_sync(store.signed_version("_latest")).last_commit
    assert old is not None
    victim.commit(victim.driver, 3)
    noted = victim.client().verify().signed
    assert noted is not None
    victim.client("cleaner").savepoint("newer")
    assert victim.client().verify(since=noted.at), "retention and savepoints leave the time of the last commit alone"

    async def forge() -> bytes:
        await store.get("_latest")
        rules = await store.read_rules()
        assert rules is not None
        return store.sign(rules, "_latest", decode_signed("_latest", old.encode()).content, old)

    victim.write("_latest", run_sync(forge()))
    with pytest.raises(UntrustedError, match="an older version was put back"):
        victim.state()
    forget()
    [finding] = victim.client().verify(since=noted.at).findings
    assert "expected a commit that was signed since" in finding.problem


def test_a_listing_knows_what_another_client_saw(local_victim: Victim) -> None:
    """Stores that list contents tell the positions without a read of each."""
    seen = versions.all_seen_before(local_victim.client().session.store.url, "progress/")
    assert [*seen] == ["progress/kinesis/app/ownership.json"]


def _served(victim: Victim, made: Callable[[PrivateKeyFile, bytes], Any]) -> Checkpointer:
    trust = (PrivateKeyFile(victim.private("owner")).public_key,)
    signing = Signing(trust, Service(victim.private("driver"), made))
    return Checkpointer(victim.place.url, encryption=victim.encryption, signing=signing)
