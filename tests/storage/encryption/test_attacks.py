"""What somebody can do to an encrypted root who can read it, or write to it, or has a key of it that is not valid any
more. Each row of the table in SECURITY.md is a test here, on every store that has conditional writes.
"""

import copy
import hashlib
import logging
import random
import secrets
import shutil
import struct
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests.keys_json import KEYS, decode_keys
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.source_options import ReadRequest
from pyspark_checkpointer.storage import Store, open_store
from pyspark_checkpointer.storage.base import Blob, ListedObject, ListingPage
from pyspark_checkpointer.storage.encryption import store as store_module
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.key_providers import KeyFile, UnwrapError
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from pyspark_checkpointer.storage.encryption.keyring import create_keys, open_keys
from pyspark_checkpointer.storage.memory.store import MemoryStore
from tests.key_files import make_key
from tests.storage.conftest import Place, copy_objects

SECRET = "4929-1234-secret"
LARGE = random.Random(1).randbytes(300_000)
"""Bytes that get an object of their own, and have several chunks."""


@pytest.fixture
def key(tmp_path: Path) -> str:
    return make_key(tmp_path / "state.key")


class Victim:
    """A root with three commits, a savepoint and a position, and the states of its commits."""

    def __init__(self, place: Place, encryption: str | None) -> None:
        self.place, self.encryption = place, encryption
        self.raw: Store = open_store(place.url, place.storage_options, fencing="none")
        """The root as an attacker sees it."""
        client = self.client()
        state, self.states = KeyedState({f"user-{n}": SECRET for n in range(50)}, partitions=2), []
        for number in range(3):
            state[f"user-{number}"] = f"{SECRET}-{number}"
            with client.begin(epoch=number) as cp:
                cp.save("totals", state)
                cp.snapshot("model", 0, LARGE + bytes([number]))
                cp.positions["orders"] = {"0": f"{SECRET}-{number}"}
            self.states.append(dict(state))
        client.savepoint(f"savepoint-{SECRET}")

    def copied_to(self, place: Place, encryption: str) -> "Victim":
        """Return the same root at another place. To copy its objects takes fewer requests than to commit them."""
        made = copy.copy(self)
        made.place, made.encryption = place, encryption
        made.raw = open_store(place.url, place.storage_options, fencing="none")
        copy_objects(self.raw, made.raw)
        return made

    def client(self, encryption: Any = ...) -> Checkpointer:
        chosen = self.encryption if encryption is ... else encryption
        return Checkpointer(self.place.url, self.place.storage_options, encryption=chosen)

    def objects(self) -> dict[str, bytes]:
        return {entry.path: run_sync(self.raw.get(entry.path)).data for entry in run_sync(self.raw.list(""))}

    def write(self, path: str, data: bytes) -> None:
        run_sync(self.raw.delete([path]))
        run_sync(self.raw.put(path, data))

    def is_safe(self) -> bool:
        """Whether nobody is deceived: a reader gets the last state, or an error that shows nothing of it."""
        for read in (self._restore, lambda client: SECRET not in str(client.verify())):
            try:
                if not read(self.client()):
                    return False
            except CheckpointError as error:
                if SECRET in str(error):
                    return False
        return True

    def _restore(self, client: Checkpointer) -> bool:
        restored = client.restore()
        assert restored is not None
        model = restored.operator("model").partition(0)
        return dict(restored.keyed("totals")) == self.states[-1] and model == [LARGE + b"\2"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Victim:
    place = Place("memory", f"memory://{secrets.token_hex(8)}", {})
    return Victim(place, make_key(tmp_path_factory.mktemp("original") / "state.key"))


@pytest.fixture
def victim(
    request: pytest.FixtureRequest, place_of: Callable[[str], Place], original: Victim, key: str, tmp_path: Path
) -> Victim:
    assert original.encryption is not None
    shutil.copy(original.encryption.removeprefix("key-file:"), tmp_path / "state.key")
    return original.copied_to(place_of(request.param), key)


# ---- who reads the root ----------------------------------------------------------------------------------------------


def test_no_object_and_no_name_tells_a_content(victim: Victim) -> None:
    objects = victim.objects()
    for path, data in objects.items():
        assert SECRET.encode() not in data, path
        assert b"user-" not in data, path
        assert LARGE[:32] not in data, path
        assert SECRET not in path
    digests = {hashlib.sha256(LARGE + bytes([number])).hexdigest() for number in range(3)}
    assert not any(digest in path for digest in digests for path in objects), "a name would confirm a guess"
    assert {path for path in objects if not path.endswith(".enc")} <= {"_latest", KEYS}


def test_a_client_without_the_key_is_refused_by_name(victim: Victim, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match="_latest: is encrypted: say what opens its keys"):
        victim.client(None).restore()
    with pytest.raises(UnsupportedFormatError, match="is encrypted"), victim.client(None).begin() as cp:
        cp.save("totals", KeyedState({"x": 1}))
    other = make_key(tmp_path / "other.key")
    with pytest.raises(InvalidStateError, match=r"its keys are opened by 'key-file'.*, not by 'key-file'"):
        victim.client(other).restore()
    assert victim.is_safe()


@pytest.mark.parametrize("missing", ["nothing", "everything", "pointer"])
def test_a_client_without_the_key_begins_nothing_in_an_encrypted_root(victim: Victim, missing: str) -> None:
    """Where nothing says by itself that it is encrypted, a client without the key would write plain text beside it."""
    lost = {"nothing": [], "pointer": ["_latest"], "everything": [path for path in victim.objects() if path != KEYS]}
    run_sync(victim.raw.delete(lost[missing]))
    before, plain = victim.objects(), victim.client(None)

    def commit(client: Checkpointer) -> None:
        with client.begin() as cp:
            cp.snapshot("model", 0, LARGE)

    source = Checkpointer(f"memory://{secrets.token_hex(8)}")
    commit(source)
    for use in (
        lambda: commit(plain),
        lambda: plain.save_snapshot(plain.new_id(), "model", 0, LARGE),
        lambda: plain.restore(),
        lambda: plain.repair_candidates(),
        lambda: source.export("latest", victim.place.url, victim.place.storage_options),
        lambda: ShardLeases(victim.place.url, "app", "worker", victim.place.storage_options).create(["0"]),
    ):
        with pytest.raises(CheckpointError, match=r"is encrypted.*: say what opens its keys"):
            use()
        left = {path: data for path, data in victim.objects().items() if not path.startswith("_probe")}
        assert left == before


# ---- who writes to the root ------------------------------------------------------------------------------------------


def damages(data: bytes) -> Iterator[bytes]:
    """Yield an object that was changed, cut, extended, emptied."""
    for at in {0, 30, 60, len(data) // 2, len(data) - 1}:
        if at < len(data):
            yield data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    yield data[: len(data) // 2]
    yield data[:-1]
    yield data + b"\0"
    yield b""


@pytest.mark.parametrize("victim", ["memory", "local"], indirect=True)
def test_every_change_of_an_object_is_noticed(victim: Victim) -> None:
    for path, data in victim.objects().items():
        for damaged in damages(data):
            victim.write(path, damaged)
            assert victim.is_safe(), path
        victim.write(path, data)
    assert victim.client().verify().findings == ()


def test_no_object_can_take_the_place_of_another(victim: Victim) -> None:
    objects = victim.objects()
    paths = sorted(objects)
    pairs = [*zip(paths, [*paths[1:], paths[0]], strict=True)]
    for one, other in pairs if victim.place.is_near else pairs[::3]:
        victim.write(one, objects[other])
        assert victim.is_safe(), (one, other)
        victim.write(one, objects[one])


def test_objects_of_another_root_are_refused_although_the_same_key_opens_it(
    victim: Victim, place_of: Callable[[str], Place]
) -> None:
    objects, other = victim.objects(), Victim(place_of("memory"), victim.encryption).objects()
    victim.write("_latest", other["_latest"])
    with pytest.raises(CorruptionError, match="_latest: cannot be decrypted: its bytes were changed, or belong to"):
        victim.client().restore()
    victim.write("_latest", objects["_latest"])
    for path, data in other.items():
        if path not in objects:
            victim.write(path, data)
    assert victim.is_safe()
    victim.write(KEYS, other[KEYS])
    assert victim.is_safe(), "the keys of another root"


def test_what_is_not_encrypted_is_never_taken_for_state(victim: Victim, place_of: Callable[[str], Place]) -> None:
    plain = Victim(place_of("memory"), None).objects()
    encrypted = victim.objects()
    for path, data in plain.items():
        victim.write(path, data)
        victim.write(f"{path}.enc", data)
    with pytest.raises(CorruptionError, match="_latest: is not encrypted, as all objects of this root are"):
        victim.client().restore()
    # With the right pointer again, all that was planted beside it is as if it were not there.
    for path, data in encrypted.items():
        victim.write(path, data)
    assert victim.client().verify().findings == ()
    assert victim.is_safe()


def test_a_plain_state_is_not_encrypted_into_an_encrypted_root(victim: Victim) -> None:
    """No error asks for it, and the command refuses it."""
    encrypted, other = victim.objects(), f"memory://{secrets.token_hex(8)}"
    with Checkpointer(other).begin(epoch=9) as cp:
        cp.save("totals", KeyedState({"planted": 1}))
    plain = open_store(other, fencing="none")
    for entry in run_sync(plain.list("")):
        victim.write(entry.path, run_sync(plain.get(entry.path)).data)
    planted = victim.objects()
    with pytest.raises(UnsupportedFormatError, match=r"_latest: is not encrypted.*somebody replaced it") as raised:
        victim.client().restore()
    assert "checkpointer encrypt" not in str(raised.value)
    assert victim.encryption is not None
    with pytest.raises(InvalidStateError, match=r"_latest: is not encrypted.*somebody.*then delete it, and repair"):
        victim.client(None).encrypt(victim.encryption)
    assert victim.objects() == planted
    victim.write("_latest", encrypted["_latest"])
    assert victim.client(None).encrypt(victim.encryption).objects == 0
    assert victim.objects() == encrypted
    assert victim.is_safe()


def test_encryption_does_not_end_with_the_loss_of_the_keys(victim: Victim) -> None:
    keys = victim.objects()[KEYS]
    run_sync(victim.raw.delete([KEYS]))
    for use in (lambda: victim.client().restore(), lambda: victim.client().begin().commit()):
        with pytest.raises(InvalidStateError, match=r"is not encrypted, or has lost its _keys|holds objects"):
            use()
    victim.write(KEYS, keys)
    assert victim.is_safe()


def test_a_root_that_is_not_encrypted_is_refused_with_a_key(place_of: Callable[[str], Place], key: str) -> None:
    plain = Victim(place_of("memory"), None)
    with pytest.raises(InvalidStateError, match=r"is not encrypted.*checkpointer encrypt"):
        plain.client(key).restore()
    with pytest.raises(InvalidStateError, match=r"holds objects that are not encrypted|is not encrypted"):
        plain.client(key).begin().commit()
    assert plain.is_safe()


@pytest.mark.parametrize("left", ["_probe-", "_doctor-"])
def test_what_a_trial_left_behind_does_not_keep_a_root_from_being_encrypted(
    tmp_path: Path, key: str, left: str
) -> None:
    """A first commit that died, or had no right to delete, leaves such an object."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / f"{left}{secrets.token_hex(16)}").write_bytes(b"1")
    with Checkpointer(tmp_path / "root", encryption=key) as ck, ck.begin() as cp:
        cp.snapshot("op", 0, b"1")
    restored = Checkpointer(tmp_path / "root", encryption=key).restore()
    assert restored is not None
    assert restored.operator("op").partition(0) == [b"1"]


@pytest.mark.parametrize("planted", ["changed", "cut", "foreign"])
def test_a_pointer_that_cannot_be_decrypted_is_repaired(victim: Victim, planted: str) -> None:
    latest = victim.objects()["_latest"]
    other = f"memory://{secrets.token_hex(8)}"
    Checkpointer(other, encryption=victim.encryption).begin().commit()
    foreign = run_sync(open_store(other, fencing="none").get("_latest")).data
    victim.write(
        "_latest", {"changed": latest[:-1] + bytes([latest[-1] ^ 1]), "cut": latest[:40]}.get(planted, foreign)
    )
    client = victim.client()
    with pytest.raises(CorruptionError, match=r"_latest: .*`checkpointer repair`, lists what the root can be repaired"):
        client.restore()
    best = client.repair_candidates()[0]
    client.repair(best.id)
    assert victim.is_safe()
    assert client.verify().findings == ()


def test_what_cannot_be_decrypted_above_the_commits_stops_no_cleanup(
    victim: Victim, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever writes to the root needs no key for it, and the owner needs no repair."""
    client, junk = victim.client(), "manifests/0000009000-aaaaaaaa.json"
    victim.write(f"{junk}.enc", b"junk")
    first, *_, newest = client.list_checkpoints()
    with caplog.at_level(logging.WARNING):
        client.clean()
    assert f"{junk}: has no signature that counts, or cannot be decrypted" in caplog.text
    assert [finding.path for finding in client.verify().findings] == [junk]
    with pytest.raises(InvalidStateError, match="nothing to repair"):
        client.repair(newest)
    client.delete_checkpoint(first)
    client.rollback(newest)
    assert victim.is_safe()


def test_a_pointer_that_is_not_encrypted_is_no_damage(victim: Victim) -> None:
    """It may be the right one, of a root that is being encrypted: a repair would put an older state in its place."""
    other = f"memory://{secrets.token_hex(8)}"
    Checkpointer(other).begin().commit()
    victim.write("_latest", run_sync(open_store(other).get("_latest")).data)
    for use in (victim.client().restore, victim.client().repair_candidates):
        with pytest.raises(UnsupportedFormatError, match=r"_latest: is not encrypted.*then delete it, and repair"):
            use()
    run_sync(victim.raw.delete(["_latest"]))
    client = victim.client()
    client.repair(client.repair_candidates()[0].id)
    assert victim.is_safe()


def test_a_pointer_of_another_data_key_is_no_damage(victim: Victim, tmp_path: Path) -> None:
    """It may be the right one, of a root that is being encrypted anew. Where it was put back, the error says it."""
    old = victim.objects()["_latest"]
    new = make_key(tmp_path / "new.key")
    victim.client().reencrypt(new)
    victim.encryption = new
    victim.write("_latest", old)
    for use in (victim.client().restore, victim.client().repair_candidates):
        with pytest.raises(
            InvalidStateError, match=r"_latest: is encrypted with another data key.*then delete it, and"
        ):
            use()
    run_sync(victim.raw.delete(["_latest"]))
    client = victim.client()
    client.repair(client.repair_candidates()[0].id)
    assert victim.is_safe()


def test_a_newer_form_of_encryption_is_no_damage(victim: Victim) -> None:
    latest = victim.objects()["_latest"]
    victim.write("_latest", latest.replace(b"checkpointer-encrypted-1", b"checkpointer-encrypted-2"))
    for use in (victim.client().restore, victim.client().repair_candidates):
        with pytest.raises(UnsupportedFormatError, match="_latest: is encrypted in a form of a newer version"):
            use()


def test_an_old_pointer_is_an_old_state_and_no_other(victim: Victim) -> None:
    """Encryption does not tell old from new: this is what SECURITY.md says that it cannot do."""
    old = victim.objects()["_latest"]
    with victim.client().begin(epoch=3) as cp:
        cp.save("totals", KeyedState({"new": 1}))
    victim.write("_latest", old)
    assert victim.is_safe(), "the state before, whole"


# ---- who has an old key ----------------------------------------------------------------------------------------------


def test_an_old_key_opens_nothing_after_it_was_replaced(victim: Victim, tmp_path: Path) -> None:
    old, new = victim.encryption, make_key(tmp_path / "new.key")
    victim.client().rekey(new)
    with pytest.raises(InvalidStateError, match="not by 'key-file'"):
        victim.client(old).restore()
    victim.encryption = new
    assert victim.is_safe()
    with victim.client().begin() as cp:
        cp.save("totals", KeyedState({"new": 1}))
    assert victim.client().restore().keyed("totals").to_dict() == {"new": 1}  # type: ignore[union-attr]


def test_no_old_copy_of_the_keys_opens_what_was_encrypted_anew(victim: Victim, tmp_path: Path) -> None:
    """Whoever kept the old key, the old data key and an old `_keys`, and can write to the root."""
    old, new, kept = victim.encryption, make_key(tmp_path / "new.key"), victim.objects()
    assert old is not None
    keys = run_sync(open_keys(victim.raw, parse_provider(old)))
    assert keys is not None
    victim.client().reencrypt(new)
    for path, data in victim.objects().items():
        for name in {path, path.removesuffix("2")} - {KEYS}:
            with pytest.raises(CheckpointError):
                keys.decrypt(keys.logical_path(name) or name, data)
    victim.encryption = new
    assert victim.is_safe()
    now = victim.objects()
    for planted in ({KEYS}, {"_latest"}, {KEYS, "_latest"}, kept.keys()):
        for path in planted:
            victim.write(path, kept[path])
        with pytest.raises((InvalidStateError, CorruptionError)):
            victim.client(old if planted == {KEYS} else new).restore()
        for path in planted:
            run_sync(victim.raw.delete([path]))
        for path, data in now.items():
            victim.write(path, data)
    assert victim.is_safe()


def test_a_key_that_only_seems_to_be_the_same_is_refused(victim: Victim, tmp_path: Path) -> None:
    class Liar(KeyFile):
        key = KeyFile(str(tmp_path / "state.key")).key

    make_key(tmp_path / "liar.key")
    with pytest.raises(InvalidStateError, match="does not open the keys of this root"):
        victim.client(Liar(str(tmp_path / "liar.key"))).restore()


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_two_clients_that_create_a_root_at_once_get_the_same_keys(key: str) -> None:
    url = f"memory://{secrets.token_hex(8)}"

    async def both() -> list[DataKeys]:
        import asyncio

        stores = [open_store(url) for _ in range(8)]
        return list(await asyncio.gather(*(create_keys(store, parse_provider(key)) for store in stores)))

    found = run_sync(both())
    assert len({(one.root_id, one.key) for one in found}) == 1


def test_a_root_that_another_client_begins_meanwhile_is_used(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look for keys and the look for other objects, another client may make both."""
    list_page = MemoryStore.list_page
    started: set[str] = set()

    async def list_after_another(store: MemoryStore, prefix: str, more: object | None = None) -> ListingPage:
        if store.url not in started:
            started.add(store.url)
            await open_store(store.url, encryption=key).put("_other", b"x")
        return await list_page(store, prefix, more)

    monkeypatch.setattr(MemoryStore, "list_page", list_after_another)
    for use in (
        lambda client: client.restore(),
        lambda client: client.session.store.put("_mine", b"x"),
        lambda client: client.session.store.list(""),
    ):
        client = Checkpointer(f"memory://{secrets.token_hex(8)}", encryption=key)
        found = use(client)
        if isinstance(found, Coroutine):
            run_sync(found)
        assert run_sync(client.session.store.get("_other")).data == b"x"


def test_a_root_is_only_new_if_all_pages_of_it_are_empty(place_of: Callable[[str], Place], key: str) -> None:
    place = place_of("local")
    client = Checkpointer(place.url)
    client.save_snapshot(client.new_id(), "totals", 0, b"")
    for number in range(1000):  # of writers that were killed: a page has a thousand files, and leaves these out
        (Path(place.url) / f"._latest.{number:016x}.tmp").touch()
    for use in (lambda client: client.restore(), lambda client: client.save_snapshot(client.new_id(), "a", 0, b"")):
        with pytest.raises(InvalidStateError, match="not encrypted"):
            use(Checkpointer(place.url, encryption=key))


def test_a_damaged_position_does_not_end_a_listing(key: str) -> None:
    """A listing of Azure tells small objects. Who reads the damaged one gets an error, and nobody else."""
    keys, path = DataKeys.generate(), "progress/kinesis/app/ownership.json"
    sound, damaged = (ListedObject(path, 100, Blob(data)) for data in (keys.encrypt(path, b"x"), b"damaged"))
    assert store_module._listed(keys, sound).blob == Blob(b"x", sound.blob.version)  # type: ignore[union-attr]
    assert store_module._listed(keys, damaged).blob is None  # type: ignore[union-attr]


def test_nothing_is_written_with_keys_that_the_root_has_no_more(key: str, tmp_path: Path) -> None:
    """A root that is removed while a client has its keys begins anew, with keys that can be opened later."""
    root = tmp_path / "root"
    client, leases = Checkpointer(root, encryption=key), ShardLeases(root, "app", "worker", encryption=key)
    for number in range(2):
        assert client.restore() is None
        with client.begin() as cp:
            cp.save("totals", KeyedState({"x": number}))
        assert Checkpointer(root, encryption=key).restore().keyed("totals").to_dict() == {"x": number}  # type: ignore[union-attr]
        shutil.rmtree(root)
    leases.create(["0"])
    shutil.rmtree(root)
    with pytest.raises(InvalidStateError, match="_keys was removed or replaced while this client was open"):
        leases.create(["0"])
    assert not [path for path in root.rglob("*") if path.is_file() and path.name != ".lock"]
    leases.create(["0"])
    ShardLeases(root, "app", "other", encryption=key).create(["0"])


@pytest.mark.full_cost
def test_a_passphrase_opens_a_root(tmp_path: Path) -> None:
    phrase = tmp_path / "phrase"
    phrase.write_text("correct horse battery staple\n")
    url, encryption = f"memory://{secrets.token_hex(8)}", f"passphrase-file:{phrase}"
    with Checkpointer(url, encryption=encryption).begin() as cp:
        cp.save("totals", KeyedState({"x": 1}))
    assert Checkpointer(url, encryption=encryption).restore().keyed("totals").to_dict() == {"x": 1}  # type: ignore[union-attr]
    phrase.write_text("wrong\n")
    with pytest.raises(InvalidStateError, match="does not open the keys"):
        Checkpointer(url, encryption=encryption).restore()
    raw = open_store(url)
    wrapped = decode_keys(run_sync(raw.get(KEYS)).data).generations[0].wrappings[0].wrapped
    assert b"correct" not in wrapped
    assert wrapped.startswith(struct.pack(">IHH", 1 << 17, 8, 1)), "128 MiB for each guess"


@pytest.mark.parametrize("opened", [b"other", None])
def test_a_provider_that_does_not_open_what_it_wrapped_is_refused(opened: bytes | None) -> None:
    class Forgetful:
        provider, key = "forgetful", ""

        def wrap(self, data: bytes) -> bytes:
            return data[::-1]

        def unwrap(self, wrapped: bytes) -> bytes:
            if opened is None:
                raise UnwrapError
            return opened

    url = f"memory://{secrets.token_hex(8)}"
    with pytest.raises(IllegalArgumentError, match="'forgetful' does not return what it wrapped"):
        Checkpointer(url, encryption=Forgetful()).begin().commit()
    assert not run_sync(open_store(url).list("")), "nothing was written with a key that nobody opens"


def test_wrong_texts_are_not_repeated(tmp_path: Path) -> None:
    for wrong in ("0" * 64, "key-file:", "password:x", ":x", ""):
        with pytest.raises(CheckpointError, match=r"encryption: expected key-file:PATH(, got| or passphrase-f)") as met:
            Checkpointer("memory://x", encryption=wrong)
        assert len(wrong) < 20 or wrong not in str(met.value)
    with pytest.raises(CheckpointError, match="encryption: expected a text or a provider of keys, got bytes"):
        Checkpointer("memory://x", encryption=b"0" * 32)  # type: ignore[arg-type]
    (tmp_path / "short").write_text("abc")
    # The file is read when a key is needed.
    client = Checkpointer(f"memory://{secrets.token_hex(8)}", encryption=f"key-file:{tmp_path}/short")
    with (
        pytest.raises(CheckpointError, match="short: expected a key of 32 bytes or 64 hexadecimal digits"),
        client.begin() as cp,
    ):
        cp.snapshot("op", 0, b"x")
    assert client.read_latest() is None


def test_positions_of_consumers_are_encrypted(key: str) -> None:
    url = f"memory://{secrets.token_hex(8)}"
    ShardLeases(url, "app", "worker-1", encryption=key).create(["shard-secret"])
    raw = open_store(url)
    stored = {entry.path: run_sync(raw.get(entry.path)).data for entry in run_sync(raw.list("progress/"))}
    assert stored
    assert all(
        data.startswith(b"checkpointer-encrypted-1\n") and b"shard-secret" not in data for data in stored.values()
    )
    with pytest.raises(InvalidStateError, match="is encrypted: say what opens its keys"):
        ShardLeases(url, "app", "worker-2").create(["shard-secret"])


@pytest.mark.parametrize("victim", ["local"], indirect=True)
def test_an_error_names_the_object_that_is_stored_and_no_digest_of_its_content(victim: Victim) -> None:
    stored = {path: data for path, data in victim.objects().items() if "/model/" in path}
    assert stored
    for path, data in stored.items():
        for damaged in (data[:-1] + bytes([data[-1] ^ 1]), data[:30] + b"\0" + data[31:], data[:100], data[:50]):
            victim.write(path, damaged)
            found = victim.client().verify().findings
            assert [finding.problem.partition(":")[0] for finding in found] == [path]
            if path == max(stored):
                with pytest.raises(CorruptionError) as met:
                    victim.client().restore().operator("model").partition(0)  # type: ignore[union-attr]
                assert str(met.value).startswith(f"{path}: ")
        victim.write(path, data)


@pytest.mark.parametrize("options", [{"operator": "t"}, {"view": "checkpoints"}, {"view": "changes", "operator": "t"}])
def test_the_data_source_writes_nothing_to_a_root_that_is_not_there(
    key: str, tmp_path: Path, options: dict[str, str]
) -> None:
    with suppress(StoreNotFoundError):
        ReadRequest.of({"path": str(tmp_path / "mistyped"), "encryption": key, **options}).pin()
    assert not (tmp_path / "mistyped").exists()


def test_keys_are_shown_nowhere(key: str) -> None:
    url = f"memory://{secrets.token_hex(8)}"
    client = Checkpointer(url, encryption=key)
    with client.begin() as cp:
        cp.save("totals", KeyedState({"x": 1}))
    keys = run_sync(open_keys(open_store(url), parse_provider(key)))
    assert keys is not None
    for shown in (
        repr(keys),
        str(keys),
        repr(client.for_tasks()),
        repr(client._config),
        f"{client.for_tasks()._config}",
    ):
        assert repr(keys.key)[2:-1] not in shown
        assert keys.key.hex() not in shown
