"""A signed root is encrypted where it is, and encrypted anew, with the signatures that it has."""

import copy
import itertools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState
from pyspark_checkpointer.admin import encrypt
from pyspark_checkpointer.admin.encrypt_in_place import InPlace
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    UnsupportedFormatError,
    UntrustedError,
)
from pyspark_checkpointer.manifests.json_text import ENCRYPTED
from pyspark_checkpointer.manifests.keys_json import KEYS
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from pyspark_checkpointer.storage.encryption.keyring import open_keys
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.testing import CrashError, crash_points
from tests.admin.test_signers import States, fill, states
from tests.conftest import Root
from tests.signing_keys import make_keys


class Place:
    """A signed root with checkpoints, a savepoint, a prepared checkpoint and a position; and its keys."""

    def __init__(self, url: str, keys: Path, encryption: str | None, options: dict[str, Any] | None = None) -> None:
        self.url, self.keys, self.options = url, keys, options
        self.old, self.new = (f"key-file:{keys / name}.key" for name in ("old", "new"))
        owner = Checkpointer(url, options, encryption=encryption)
        allow = {keys / "driver.pub": "commit", keys / "cleaner.pub": "clean", keys / "host.pub": "consume"}
        owner.change_signers(keys / "owner.pem", allow=allow)
        fill(self.client("driver", encryption), commits=2)
        self.leases(encryption).create(["shard-1"])
        self.states = states(self.client(None, encryption))

    def signing(self, signer: str | None) -> str:
        return f"trust:{self.keys / 'owner.pub'}" + ("" if signer is None else f",sign:{self.keys / signer}.pem")

    def client(self, signer: str | None, encryption: str | None) -> Checkpointer:
        return Checkpointer(self.url, self.options, encryption=encryption, signing=self.signing(signer))

    def leases(self, encryption: str | None) -> ShardLeases:
        signing = self.signing("host")
        return ShardLeases(self.url, "app", "worker", self.options, encryption=encryption, signing=signing)

    def objects(self) -> dict[str, bytes]:
        store = open_store(self.url, self.options, fencing="none")
        return {entry.path: run_sync(store.get(entry.path)).data for entry in run_sync(store.list(""))}

    def opened(self, encryption: str) -> DataKeys:
        store = open_store(self.url, self.options, fencing="none")
        keys = run_sync(open_keys(store, parse_provider(encryption)))
        assert keys is not None
        return keys

    def is_whole(self, encryption: str | None) -> None:
        """Check that one who trusts the owner alone reads all of it, and that its signers go on."""
        reader = self.client(None, encryption)
        assert states(reader) == self.states
        assert reader.verify().findings == ()
        assert [*self.leases(encryption).rows()] == ["shard-1"]
        driver = self.client("driver", encryption)
        restored = driver.restore()
        assert restored is not None
        assert restored.prepared is not None
        restored.prepared.abort()
        with driver.begin(epoch=9) as cp:
            cp.save("totals", KeyedState({"x": 1}))
        restored = reader.restore()
        assert restored is not None
        assert restored.keyed("totals").to_dict() == {"x": 1}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(*(tmp_path / f"{name}.pem" for name in ("owner", "driver", "cleaner", "host", "stranger")))
    for name in ("old", "new"):
        (tmp_path / f"{name}.key").write_text(secrets.token_hex(32))
    return tmp_path


@pytest.fixture
def new_url() -> Callable[[], str]:
    names = itertools.count()
    return lambda: f"memory://{secrets.token_hex(8)}-{next(names)}"


@pytest.mark.by_turns
def test_a_signed_root_is_encrypted_where_it_is_and_then_anew(any_root: Root, keys: Path) -> None:
    place = Place(any_root.url, keys, None, any_root.storage_options)
    made = place.client("driver", None).encrypt(place.old)
    assert made.deleted >= made.objects - 3
    found = place.objects()
    assert {path for path in found if not path.endswith(".enc") and not path.startswith("progress/")} == {
        "_latest",
        "_keys",
        "_signers",
    }
    assert [path for path, data in found.items() if b"user-" in data or b"shard-1" in data or b'"key"' in data] == [
        KEYS
    ]
    assert all(found[path].startswith(ENCRYPTED) for path in ("_latest", "_signers"))
    assert states(place.client(None, place.old)) == place.states
    before = place.opened(place.old)
    place.client("driver", place.old).reencrypt("hide-names:" + place.new)
    for stored, data in place.objects().items():
        for name in {stored, stored.replace(".enc2", ".enc")} - {KEYS}:
            path = before.logical_path(name)
            if path is not None:
                with pytest.raises(CheckpointError):
                    before.decrypt(path, data)
    assert [path for path in place.objects() if path.endswith(".enc")] == []
    place.is_whole(place.new)


@pytest.mark.parametrize("signer", ["owner", "cleaner"])
def test_whoever_may_sign_the_pointer_may_encrypt(keys: Path, new_url: Callable[[], str], signer: str) -> None:
    place = Place(new_url(), keys, None)
    place.client(signer, None).encrypt(place.old)
    place.client(signer, place.old).reencrypt(place.new)
    place.is_whole(place.new)


@pytest.mark.parametrize("anew", [False, True])
def test_a_crash_at_any_request_loses_nothing(keys: Path, new_url: Callable[[], str], anew: bool) -> None:
    """At each moment the root reads as before or after, with its signatures; and the same call finishes the work."""
    first = f"key-file:{keys / 'old.key'}" if anew else None
    filled = Place(new_url(), keys, first)

    def at(url: str) -> Place:
        place = copy.copy(filled)
        place.url = url
        return place

    def setup(url: str) -> None:
        MemoryStore(url).objects.update(MemoryStore(filled.url).objects)

    def work(url: str) -> None:
        place = at(url)
        client = place.client("driver", first)
        _ = client.reencrypt(place.new) if anew else client.encrypt(place.new)

    died = unreadable = 0
    for point in crash_points(work, new_url, setup):
        died += point.died
        if point.after == anew:
            continue  # what is left before a request is what is left after the one before it: either sees all of it
        place, readable = at(point.root), list[States]()
        for encryption in (first, place.new):
            try:
                readable.append(states(place.client(None, encryption)))
            except (InvalidStateError, CorruptionError):
                continue
        assert all(found == place.states for found in readable)
        # Between the swaps of `_latest` and of `_signers` nobody reads it, and the same call goes on.
        unreadable += not readable
        work(point.root)
        place.is_whole(place.new)
    assert died > 20
    assert 0 < unreadable <= 6, "a listing, the position, and what leads to the swap of `_signers`"


def test_who_may_not_sign_is_refused_before_anything_is_written(keys: Path, new_url: Callable[[], str]) -> None:
    for encryption in (None, f"key-file:{keys / 'old.key'}"):
        place = Place(new_url(), keys, encryption)
        before = place.objects()

        def encrypt(client: Checkpointer, anew: bool = encryption is not None, key: str = place.new) -> object:
            return client.reencrypt(key) if anew else client.encrypt(key)

        with pytest.raises(InvalidStateError, match="is signed: say what it is signed with"):
            encrypt(Checkpointer(place.url, encryption=encryption))
        with pytest.raises(IllegalArgumentError, match="this client was opened to read it: say what it signs with"):
            encrypt(place.client(None, encryption))
        for signer, why in (("host", "may only consume"), ("stranger", "is not in version 1")):
            with pytest.raises(InvalidStateError, match=why):
                encrypt(place.client(signer, encryption))
        assert place.objects() == before


def test_a_root_without_signatures_is_refused_with_signing(keys: Path, new_url: Callable[[], str]) -> None:
    url = new_url()
    with Checkpointer(url).begin() as cp:
        cp.save("totals", KeyedState({"x": 1}))
    client = Checkpointer(url, signing=f"trust:{keys / 'owner.pub'},sign:{keys / 'owner.pem'}")
    with pytest.raises(InvalidStateError, match="is not signed, or has lost its _signers"):
        client.encrypt(f"key-file:{keys / 'new.key'}")
    assert [entry.path for entry in run_sync(open_store(url).list("")) if entry.path == KEYS] == []


@pytest.mark.parametrize("anew", [False, True])
def test_what_nobody_signed_is_not_encrypted(keys: Path, new_url: Callable[[], str], anew: bool) -> None:
    """Somebody who may write to the root, and sign nothing, does not get a state of theirs encrypted."""
    first = f"key-file:{keys / 'old.key'}" if anew else None
    place = Place(new_url(), keys, first)
    store = open_store(place.url, encryption=first)
    forged = run_sync(store.get("_latest"))
    run_sync(store.compare_and_swap("_latest", forged.data.replace(b'"nonce":"', b'"nonce":"0'), forged.version))
    client, before = place.client("driver", first), place.objects()
    with pytest.raises(UntrustedError, match="its content was changed"):
        _ = client.reencrypt(place.new) if anew else client.encrypt(place.new)
    assert place.objects() == before


def test_what_a_revoked_signer_committed_stays(keys: Path, new_url: Callable[[], str]) -> None:
    place = Place(new_url(), keys, None)
    Checkpointer(place.url, signing=place.signing(None)).change_signers(keys / "owner.pem", revoke=["driver"])
    place.client("owner", None).encrypt(place.old)
    assert states(place.client(None, place.old)) == place.states
    place.client("owner", place.old).reencrypt(place.new)
    assert states(place.client(None, place.new)) == place.states


def test_a_commit_meanwhile_is_part_of_it(
    keys: Path, new_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(new_url(), keys, f"key-file:{keys / 'old.key'}")
    step, once = encrypt._Encrypting._copy_live, []

    async def copy_and_commit(work: encrypt._Encrypting, head: Any) -> None:
        await step(work, head)
        if not once:
            once.append(True)
            async with AsyncCheckpointer(place.url, encryption=place.old, signing=place.signing("driver")) as job:
                restored = await job.restore()
                assert restored is not None
                assert restored.prepared is not None
                await restored.prepared.abort()
                async with job.begin(epoch=7) as cp:
                    await cp.save("totals", KeyedState({"meanwhile": 7}))

    monkeypatch.setattr(encrypt._Encrypting, "_copy_live", copy_and_commit)
    place.client("driver", place.old).reencrypt(place.new)
    restored = place.client(None, place.new).restore()
    assert restored is not None
    assert restored.keyed("totals").to_dict() == {"meanwhile": 7}


def test_nobody_takes_an_interrupted_encryption_for_damage(
    keys: Path, new_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair would put the plain history back in the place of the encrypted one."""
    place = Place(new_url(), keys, None)

    async def stops(work: object) -> None:
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(InPlace, "encrypt_signers", stops)
        with pytest.raises(CrashError):
            place.client("driver", None).encrypt(place.old)
    found = place.objects()
    for client in (place.client("driver", None), place.client("driver", place.old)):
        for use in (client.restore, client.repair_candidates):
            with pytest.raises(UnsupportedFormatError, match=r"checkpointer encrypt` (again|was interrupted)"):
                use()
    assert place.objects() == found
    place.client("driver", None).encrypt(place.old)
    place.is_whole(place.old)


@pytest.mark.parametrize("stops_at", [None, "encrypt_positions", "encrypt_signers"])
def test_a_signed_root_with_nothing_but_positions_is_encrypted(
    keys: Path, new_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch, stops_at: str | None
) -> None:
    url, key, trust = new_url(), f"key-file:{keys / 'old.key'}", f"trust:{keys / 'owner.pub'}"
    allow = {keys / "host.pub": "consume", keys / "driver.pub": "commit"}
    Checkpointer(url).change_signers(keys / "owner.pem", allow=allow)
    host, driver = (f"{trust},sign:{keys / name}.pem" for name in ("host", "driver"))
    ShardLeases(url, "app", "worker", signing=host).create(["shard-1"])

    async def stops(work: object) -> None:
        raise CrashError

    if stops_at is not None:
        with monkeypatch.context() as patch:
            patch.setattr(InPlace, stops_at, stops)
            with pytest.raises(CrashError):
                Checkpointer(url, signing=driver).encrypt(key)
    for _ in range(2):
        Checkpointer(url, signing=driver).encrypt(key)
    assert [*ShardLeases(url, "app", "worker", encryption=key, signing=host).rows()] == ["shard-1"]
    with Checkpointer(url, signing=driver, encryption=key).begin() as cp:
        cp.snapshot("op", 0, b"1")
    assert Checkpointer(url, signing=trust, encryption=key).restore()
