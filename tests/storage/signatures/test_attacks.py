"""What somebody can do to a signed root who can write to it, or has a key that may not do everything, or was revoked.
Each row of the table in SECURITY.md is a test here, on every store that has conditional writes.
"""

import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.admin.followers import register
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    UnsupportedFormatError,
    UntrustedError,
)
from pyspark_checkpointer.manifests.json_text import ENCRYPTED, SIGNED
from pyspark_checkpointer.manifests.manifest_json import decode_manifest, decode_pointer, encode_pointer
from pyspark_checkpointer.manifests.signatures_json import SIGNERS, Signers, decode_signed
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.signatures.rules import Rules
from pyspark_checkpointer.storage.signatures.signers import swap_signers
from pyspark_checkpointer.storage.signatures.signing_keys import PrivateKeyFile
from pyspark_checkpointer.storage.signatures.store import SignedStore
from tests.storage.conftest import Place
from tests.storage.signatures.victim import Victim

# ---- who writes to the root, and has no key --------------------------------------------------------------------------


def test_every_change_of_a_signed_object_is_noticed(victim: Victim) -> None:
    before = victim.objects()
    signed = sorted(path for path in before if path.endswith(".signed") or path in ("_latest", SIGNERS))
    for number, path in enumerate(signed):
        data = before[path]
        changes = (_flipped(data, 30), _flipped(data, len(data) - 2), data[:-1], data + b" ", b"")
        # On a server each object is changed in two ways. The library judges the same bytes wherever they come from.
        for changed in changes if victim.place.is_near else (changes[number % 5], changes[(number + 2) % 5]):
            victim.write(path, changed)
            try:
                assert victim.state() == victim.states[-1], path
                found = victim.client().verify()
                assert not found, path
            except CorruptionError:
                pass
            else:
                assert path != "_latest"
        victim.write(path, data)
    assert victim.state() == victim.states[-1]
    assert victim.client().verify()


def test_a_forged_state_with_right_digests_is_refused(victim: Victim) -> None:
    """Somebody commits with this library and a key of their own, or with none."""
    with pytest.raises(InvalidStateError, match="is not in version 1 of the list of signers"):
        victim.commit(victim.client("stranger"), 4)
    url = f"memory://{secrets.token_hex(8)}"
    raw, same_root = open_store(url), Signers(victim.client().signers().root_id, 1)
    assert run_sync(swap_signers(raw, PrivateKeyFile(victim.private("stranger")), same_root, None))
    victim.commit(Checkpointer(url, signing=victim.signing("stranger", owner="stranger")), 666)
    paths = [entry.path for entry in run_sync(raw.list("")) if entry.path != SIGNERS]
    paths.sort(key="_latest".__eq__)  # nothing leads to the others before it is there
    before = victim.read("_latest")
    for form, why in (
        (bytes, r"_latest: .* is not in version 1 of the list of signers"),
        (_content, "_latest: expected a signature in its first line, found none"),
    ):
        victim.write("_latest", before)
        for path in paths:
            assert victim.state() == victim.states[2]
            data = form(run_sync(raw.get(path)).data)
            for name in {path, path.removesuffix(".signed")}:  # those of a root without signatures have no suffix
                victim.write(name, data)
        for reader in (victim.client(), victim.driver):
            with pytest.raises(UntrustedError, match=why):
                reader.restore()


def test_a_list_of_another_owner_is_refused(victim: Victim) -> None:
    """A list of signers that a stranger signed lets nobody sign."""
    list_of_stranger = Signers("0" * 32, 5)
    before = victim.read(SIGNERS)
    run_sync(victim.raw.delete([SIGNERS]))
    assert run_sync(swap_signers(victim.raw, PrivateKeyFile(victim.private("stranger")), list_of_stranger, None))
    for use in (lambda: victim.state(), lambda: victim.commit(victim.client("driver"), 4)):
        with pytest.raises(UntrustedError, match="_signers: no owner signed it whom this client trusts"):
            use()
    with pytest.raises(UntrustedError, match="no owner signed it"):
        victim.change(allow={victim.public("stranger"): "commit"})
    victim.write(SIGNERS, before)
    assert victim.state() == victim.states[-1]


def test_a_lost_list_is_no_way_back_to_a_root_without_signatures(victim: Victim) -> None:
    data = victim.read(SIGNERS)
    run_sync(victim.raw.delete([SIGNERS]))
    for client in (victim.client(), victim.client("owner")):
        with pytest.raises(InvalidStateError, match="is not signed, or has lost its _signers"):
            client.restore()
        with pytest.raises(InvalidStateError, match="is not signed, or has lost its _signers"):
            victim.commit(client, 4)
    victim.write(SIGNERS, data)
    assert victim.state() == victim.states[-1]


def test_signed_objects_of_another_root_are_refused(victim: Victim, place_of: Callable[[str], Place]) -> None:
    """The owner and the driver have a second root. Nothing of it counts here."""
    place = place_of("memory")
    other = Checkpointer(place.url, signing=victim.signing("owner"))
    for number in range(3):
        victim.commit(other, 100 + number)
    raw = open_store(place.url)
    assert run_sync(raw.get("_latest"))
    victim.write("_latest", run_sync(raw.get("_latest")).data)
    for entry in run_sync(raw.list("manifests/")):
        victim.write(entry.path, run_sync(raw.get(entry.path)).data)
    with pytest.raises(UntrustedError, match=r"_latest: the signature of the owner .* does not fit"):
        victim.state()


def test_no_signed_object_can_take_the_place_of_another(victim: Victim) -> None:
    manifests = sorted(path for path in victim.objects() if path.endswith(".signed"))
    first, last = victim.read(manifests[0]), victim.read(manifests[-1])
    victim.write(manifests[-1], first)
    with pytest.raises(CorruptionError, match=manifests[-1]):
        victim.state()
    victim.write(manifests[-1], last)
    latest = victim.read("_latest")
    victim.write("_latest", last)
    with pytest.raises(UntrustedError, match="_latest: "):
        victim.state()
    victim.write("_latest", latest)
    assert victim.state() == victim.states[-1]


def test_an_older_pointer_is_found_by_whoever_saw_a_newer_one(victim: Victim, forget: Callable[[], None]) -> None:
    reader = victim.client()
    verified = reader.verify()
    assert verified.signed is not None
    older = victim.objects()
    victim.commit(victim.driver, 3)
    newer = victim.client().verify().signed
    assert newer is not None
    assert newer.at > verified.signed.at
    victim.put_back(older)
    for client in (reader, victim.client(), victim.driver):
        with pytest.raises(UntrustedError, match=r"_latest: was signed at .*: an older version was put back"):
            client.restore()
    forget()
    # A process that saw nothing is told by the moment that somebody noted.
    fresh = victim.client()
    assert victim.state(fresh) == victim.states[2]
    assert fresh.verify(since=verified.signed.at)
    [finding] = fresh.verify(since=newer.at).findings
    assert "an older version was put back, or nothing was committed since" in finding.problem
    assert finding.path == "_latest"


def test_an_older_list_is_found(victim: Victim, forget: Callable[[], None]) -> None:
    older = victim.read(SIGNERS)
    assert victim.change(revoke=["host"], allow={victim.public("stranger"): "consume"}).version == 2
    newer = victim.read(SIGNERS)
    victim.write(SIGNERS, older)
    with pytest.raises(UntrustedError, match="is version 1 of the list of signers, and version 2 is known"):
        victim.state()
    forget()
    # A process that saw nothing is told by the version that it was given.
    with pytest.raises(UntrustedError, match="is version 1 of the list of signers, and version 2 is known"):
        victim.state(victim.client(more=",at-least:2"))
    assert victim.state() == victim.states[-1]
    forget()
    # And by everything that was signed under the newer list, such as the next commit.
    victim.write(SIGNERS, newer)
    victim.commit(victim.client("driver"), 3)
    victim.write(SIGNERS, older)
    forget()
    with pytest.raises(UntrustedError, match=r"was signed under version 2 .* is version 1: an older list was put back"):
        victim.state()


def test_an_older_position_is_found_by_whoever_saw_a_newer_one(victim: Victim) -> None:
    with victim.leases("host") as leases:
        leases.balance()
        owned = [path for path in victim.objects() if path.startswith("progress/")]
        older = {path: victim.read(path) for path in owned}
        leases.create(["shard-2"])
        for path, data in older.items():
            if victim.read(path) != data:
                victim.write(path, data)
        with pytest.raises(CheckpointError, match="an older version was put back"):
            leases.create(["shard-3"])


def test_what_is_not_signed_is_never_read(victim: Victim) -> None:
    """An unsigned manifest is not of the root, whatever it says."""
    manifests = sorted(path for path in victim.objects() if path.endswith(".signed"))
    unsigned = manifests[-1].removesuffix(".signed")
    victim.write(unsigned, _content(victim.read(manifests[-1])))
    run_sync(victim.raw.delete([manifests[-1]]))
    with pytest.raises(CorruptionError, match=r"expected an object, found none|not found|missing"):
        victim.state()


def test_a_client_without_trust_is_refused_by_name(victim: Victim) -> None:
    def plain() -> Checkpointer:
        return Checkpointer(victim.place.url, victim.place.storage_options)

    before = victim.objects()
    with pytest.raises(UnsupportedFormatError, match="_latest: is signed: say whom to trust"):
        plain().restore()
    with pytest.raises(UnsupportedFormatError, match="is signed"):
        victim.commit(plain(), 4)
    assert victim.objects() == before
    for gone in (["_latest"], [path for path in before if path != SIGNERS]):
        run_sync(victim.raw.delete(gone))
        with pytest.raises(UnsupportedFormatError, match="is signed, as its _signers shows"):
            plain().restore()
        with pytest.raises(CheckpointError, match="is signed, as its _signers shows"):
            ShardLeases(victim.place.url, "new", "me", victim.place.storage_options).create(["shard-1"])
        with pytest.raises(UnsupportedFormatError, match="is signed, as its _signers shows"):
            victim.commit(plain(), 4)
    victim.put_back(before)
    assert victim.state() == victim.states[2]


def test_an_encrypted_root_begins_nothing_for_a_client_without_trust(local_victim: Victim) -> None:
    victim = local_victim
    client = Checkpointer(victim.place.url, encryption=victim.encryption)
    with pytest.raises(UnsupportedFormatError, match="is signed"):
        client.restore()
    run_sync(victim.raw.delete([path for path in victim.objects() if path != SIGNERS]))
    for use in (lambda: client.restore(), lambda: victim.commit(client, 4)):
        with pytest.raises(UnsupportedFormatError, match="is signed, as its _signers shows"):
            use()


# ---- who has a key that may not do everything ------------------------------------------------------------------------


def test_who_may_only_clean_cannot_commit(victim: Victim) -> None:
    cleaner = victim.client("cleaner")
    before = victim.objects()
    for use in (
        lambda: victim.commit(cleaner, 4),
        lambda: cleaner.rollback(victim.client().list_checkpoints()[0]),
        lambda: victim.leases("cleaner").create(["shard-9"]),
    ):
        cleaner.restore()
        with pytest.raises(InvalidStateError, match=r"may (only clean|not commit)"):
            use()
    assert {path for path in victim.objects() if not path.startswith("artifacts/")} == {
        path for path in before if not path.startswith("artifacts/")
    }
    cleaner.savepoint("second")
    cleaner.clean(RetentionPolicy(keep_last=1))
    assert victim.state() == victim.states[-1]
    assert [one.name for one in victim.client().savepoints()] == ["kept", "second"]
    victim.commit(victim.driver, 3)
    assert victim.state() == {"n": 3}


def test_a_pointer_that_a_cleaner_forged_is_refused(local_victim: Victim, forget: Callable[[], None]) -> None:
    """The cleaner does not use this library, which would not let it."""
    victim = local_victim
    signed = decode_signed("_latest", victim.read("_latest"))
    assert signed.header.commit is not None
    pointer = decode_pointer(signed.content)
    manifests = victim.driver.list_checkpoints()
    data = _content(victim.read(f"manifests/{manifests[1]}.json.signed"))
    older = decode_manifest(manifests[1], data)
    assert older.parent is not None
    cleaner = PrivateKeyFile(victim.private("cleaner"))
    [rules] = [run_sync(_rules(victim))]
    forged = encode_pointer(replace(pointer, committed=older.parent, boundary=1, catalog=None, nonce="x" * 32))
    store = SignedStore(victim.raw, replace(rules[0], key=cleaner))
    run_sync(store.get("_latest"))
    for commit in (signed.header.commit, victim.read("_latest").decode(), None, "no signature"):
        data = run_sync(_sign(store, "_latest", forged, commit))
        victim.write("_latest", data)
        forget()
        with pytest.raises(UntrustedError, match="_latest"):
            victim.state()
    # With the commits as they are, the boundary may not go back.
    for changed in (replace(pointer, boundary=pointer.boundary - 1), replace(pointer, prepared=older.parent)):
        if changed.boundary:
            victim.write("_latest", run_sync(_sign(store, "_latest", encode_pointer(changed), signed.header.commit)))
            forget()
            with pytest.raises(CheckpointError):
                victim.state()


def test_who_may_only_consume_cannot_touch_the_state(victim: Victim) -> None:
    host = victim.client("host")
    host.restore()
    for use in (lambda: victim.commit(host, 4), lambda: host.savepoint("mine"), lambda: host.delete_savepoint("kept")):
        with pytest.raises(InvalidStateError, match=r"'host' .* may only consume"):
            use()
    assert victim.state() == victim.states[2]
    # What a host signed for a position is no `_latest` and no manifest.
    store = SignedStore(victim.raw, replace(run_sync(_rules(victim))[0], key=PrivateKeyFile(victim.private("host"))))
    run_sync(store.read_rules())
    data = run_sync(_sign(store, "_latest", decode_signed("_latest", victim.read("_latest")).content, None))
    victim.write("_latest", data)
    with pytest.raises(UntrustedError, match=r"_latest: 'host' .* may only consume"):
        victim.state()


def test_who_only_reads_writes_nothing(victim: Victim) -> None:
    before = victim.objects()
    reader = victim.client()
    reader.restore()
    for use in (lambda: victim.commit(reader, 4), lambda: reader.savepoint("mine")):
        with pytest.raises(IllegalArgumentError, match="this client was opened to read it"):
            use()
    assert victim.objects() == before


# ---- who was revoked -------------------------------------------------------------------------------------------------


def test_what_a_revoked_signer_signs_later_does_not_count(victim: Victim) -> None:
    zombie = victim.client("driver")
    zombie.restore()
    found = victim.change(revoke=["driver"], allow={victim.public("stranger"): "commit"})
    assert [(one.name, one.through) for one in found.signers.values()] == [
        ("driver", 3),
        ("cleaner", None),
        ("host", None),
        ("stranger", None),
    ]
    # All that it committed before still counts.
    assert victim.state() == victim.states[2]
    assert victim.client().verify()
    assert victim.client().restore("kept") is not None
    with pytest.raises(CheckpointError, match=r"was revoked|lost|restore\(\)"):
        victim.commit(zombie, 3)
    with pytest.raises(InvalidStateError, match=r"'driver' .* was revoked"):
        victim.commit(victim.client("driver"), 3)
    del victim.states[3:]
    victim.commit(victim.client("stranger"), 3)
    assert victim.state() == {"n": 3}
    assert victim.client().verify()


def test_a_pointer_that_a_revoked_signer_forged_is_refused(victim: Victim, forget: Callable[[], None]) -> None:
    signing = run_sync(_rules(victim))[0]
    store = SignedStore(victim.raw, replace(signing, key=PrivateKeyFile(victim.private("driver"))))
    content = run_sync(store.get("_latest")).data
    before = victim.read("_latest")
    victim.change(revoke=["driver"])
    victim.write("_latest", run_sync(_sign(store, "_latest", content, None)))
    for _ in range(2):
        with pytest.raises(UntrustedError, match=r"_latest: ('driver' .* was revoked|.* of one who may not commit)"):
            victim.state()
        forget()
        victim.write("_latest", before)  # the one that it signed while it was allowed


def test_a_signer_who_writes_while_it_is_revoked_is_told(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """It commits after its objects were signed anew, and before the list is swapped."""
    zombie = victim.client("driver")

    async def late(*given: Any) -> bool:
        monkeypatch.undo()
        await _in_thread(lambda: victim.commit(zombie, 3))
        return await swap_signers(*given)

    monkeypatch.setattr("pyspark_checkpointer.admin.signers.swap_signers", late)
    with pytest.raises(InvalidStateError, match="allow the key again, and revoke it again"):
        victim.change(revoke=["driver"])
    with pytest.raises(UntrustedError, match=r"'driver' .* was revoked"):
        victim.state()
    victim.change(allow={victim.public("driver"): "commit"})
    victim.change(revoke=["driver"])
    assert victim.state() == {"n": 3}


def test_positions_of_a_revoked_host_go_on(victim: Victim) -> None:
    victim.change(revoke=["host"], allow={victim.public("stranger"): "consume"})
    with victim.leases("stranger") as leases:
        assert [*leases.rows()] == ["shard-1"]
        leases.create(["shard-2"])
    with victim.leases("host") as leases, pytest.raises(InvalidStateError, match="was revoked"):
        leases.create(["shard-3"])


def test_a_root_that_was_begun_anew_needs_a_new_client(victim: Victim) -> None:
    """Nobody can ever read what is signed for a root that is gone."""
    if victim.place.kind != "local":
        run_sync(victim.raw.delete(list(victim.objects())))
    else:
        shutil.rmtree(victim.place.url)
    with pytest.raises(CheckpointError, match=r"removed or replaced|has lost its _signers"):
        victim.commit(victim.driver, 3)
    run_sync(victim.raw.delete(list(victim.objects())))
    host = victim.client("owner").session.store
    run_sync(host.compare_and_swap("progress/kinesis/a/store.json", b"{}", None))
    run_sync(victim.raw.delete(list(victim.objects())))
    victim.commit(victim.client("owner"), 7)
    with pytest.raises(InvalidStateError, match="its _signers was removed or replaced while this client was open"):
        run_sync(host.compare_and_swap("progress/kinesis/a/store.json", b"{}", None))
    assert victim.state() == {"n": 7}


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _content(data: bytes) -> bytes:
    return data.partition(b"\n")[2] if data.startswith(b"checkpointer-signed-1 ") else data


async def _rules(victim: Victim) -> tuple[Any, Rules]:
    store = victim.client().session.store
    assert isinstance(store, SignedStore)
    rules = await store.read_rules()
    assert rules is not None
    return store.signing, rules


async def _sign(store: SignedStore, path: str, content: bytes, commit: str | None) -> bytes:
    rules = await store.read_rules()
    assert rules is not None
    return store.sign(rules, path, content, commit)


async def _in_thread(work: Callable[[], None]) -> None:
    import asyncio

    await asyncio.get_running_loop().run_in_executor(None, work)


def test_who_may_only_consume_becomes_no_follower_and_leaves_none(local_victim: Victim) -> None:
    """To begin, a follower swaps `_latest`. One that is noted and never reads would hold retention up for ever."""
    victim = local_victim
    driver, sweeper = victim.client("driver"), victim.client("cleaner")
    first, *_ = driver.list_checkpoints()
    with pytest.raises(InvalidStateError, match=r"_latest was not written: .* may only consume"):
        run_sync(register(victim.client("host").session, "copy", "totals", first))
    assert driver.followers() == []
    run_sync(register(sweeper.session, "copy", "totals", first))
    for again in (first, driver.list_checkpoints()[-1]):
        with pytest.raises(InvalidStateError, match="may only consume"):
            run_sync(register(victim.client("host").session, "copy", "totals", again))
        assert [one.name for one in driver.followers()] == ["copy"]  # it was there, and stays


@pytest.mark.parametrize("damage", [lambda data: b"x" * 50, lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_a_damaged_pointer_of_a_signed_root_is_repaired(local_victim: Victim, damage: Callable[[bytes], bytes]) -> None:
    """Also where it is encrypted too, and so cannot even be decrypted."""
    victim = local_victim
    stored = open_store(victim.place.url, victim.place.storage_options, fencing="none")
    data = damage(run_sync(stored.get("_latest")).data)
    run_sync(stored.delete(["_latest"]))
    run_sync(stored.put("_latest", data))
    driver, cleaner = victim.client("driver"), victim.client("cleaner")
    best = driver.repair_candidates()[0].id
    with pytest.raises(InvalidStateError, match="may only clean"):
        cleaner.repair(best)
    driver.repair(best)
    assert victim.state() == victim.states[2]
    assert victim.client().verify()


@pytest.mark.parametrize("content", [None, b'{"format_version":2}', ENCRYPTED + b"x", SIGNED + b"x"])
def test_a_damaged_pointer_that_a_cleaner_signed_is_repaired(local_victim: Victim, content: bytes | None) -> None:
    """Otherwise it keeps the root, and itself, as they are for ever."""
    victim = local_victim
    signing = victim.client("cleaner").session.store
    assert isinstance(signing, SignedStore)
    version = run_sync(signing.signed_version("_latest"))
    sound = run_sync(signing.get("_latest")).data
    digest = sound.index(b'"digest":"') + len(b'"digest":"')
    flipped = sound[:digest] + (b"1" if sound[digest : digest + 1] == b"0" else b"0") + sound[digest + 1 :]
    damaged = flipped if content is None else content
    victim.write("_latest", run_sync(_sign(signing, "_latest", damaged, version.last_commit)))
    driver = victim.client("driver")
    with pytest.raises(UntrustedError, match="_latest"):
        driver.restore()
    driver.repair(driver.repair_candidates()[0].id)
    assert victim.state() == victim.states[2]
    victim.change(revoke=["cleaner"])


def test_what_looks_encrypted_is_one_candidate_less_and_no_end(local_victim: Victim) -> None:
    """Anybody who writes to the root can put it there."""
    victim = local_victim
    stored = open_store(victim.place.url, victim.place.storage_options, fencing="none")
    run_sync(stored.put("manifests/0000000099-deadbeef.json.signed", b"checkpointer-encrypted-1\nx"))
    assert victim.state() == victim.states[2]
    assert len(victim.client("driver").repair_candidates()) >= 3
