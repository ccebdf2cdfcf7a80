"""An encrypted root is encrypted anew: nothing in it opens with the old keys, and no crash loses anything."""

import itertools
import re
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.admin import encrypt
from pyspark_checkpointer.admin.encrypt_in_place import InPlace
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
    RetryableError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.keys_json import KEYS, decode_keys, encode_keys
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.encryption import key_providers
from pyspark_checkpointer.storage.encryption.chunked import MARK
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from pyspark_checkpointer.storage.encryption.keyring import make_keys, open_keys
from pyspark_checkpointer.storage.encryption.stored_names import MAX_HIDDEN_NAME
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.testing import Faults, crash_points, injected
from tests.admin.test_encrypt import SECRET, begin_empty, check_empty, client_of, fill, objects, states
from tests.conftest import Root
from tests.key_files import make_key

REPLACED = "is encrypted with another data key than this client has: `checkpointer rekey --rewrite`"


@pytest.fixture
def old(tmp_path: Path) -> str:
    return make_key(tmp_path / "old.key")


@pytest.fixture
def new(tmp_path: Path) -> str:
    return make_key(tmp_path / "new.key")


@pytest.fixture
def root() -> Root:
    return Root(f"memory://{secrets.token_hex(8)}", {}, "memory")


def write(root: Root, path: str, data: bytes) -> None:
    """Put an object in the place of another, as somebody does who may write to the root."""
    store = open_store(root.url, root.storage_options, fencing="none")
    run_sync(store.delete([path]))
    run_sync(store.put(path, data))


def keys_of(root: Root, encryption: str) -> DataKeys:
    store = open_store(root.url, root.storage_options, fencing="none")
    keys = run_sync(open_keys(store, parse_provider(encryption)))
    assert keys is not None
    return keys


def opens(keys: DataKeys, found: dict[str, bytes]) -> list[str]:
    """Return the stored objects that some keys open, wherever in the root they belong."""
    opened = []
    for stored, data in found.items():
        for name in {stored, re.sub(r"\.enc\d+$", ".enc", stored)} - {KEYS}:
            path = keys.logical_path(name)
            try:
                if path is not None:
                    keys.decrypt(path, data)
                    opened.append(stored)
            except CheckpointError:
                continue
    return opened


def leases(root: Root, encryption: str, worker: str = "worker") -> ShardLeases:
    return ShardLeases(root.url, "app", worker, root.storage_options, encryption=encryption)


@pytest.mark.by_turns
@pytest.mark.parametrize("hide", [False, True])
def test_all_that_is_live_arrives_and_the_old_keys_open_nothing(any_root: Root, old: str, new: str, hide: bool) -> None:
    fill(client_of(any_root, old), prepares=True)
    before, old_keys = states(client_of(any_root, old)), keys_of(any_root, old)
    with leases(any_root, old) as consumer:
        consumer.create([SECRET])
    stored = objects(any_root)
    assert sorted(opens(old_keys, stored)) == sorted(stored.keys() - {KEYS})
    chosen = f"hide-names:{new}" if hide else new
    made = client_of(any_root, old).reencrypt(chosen)
    assert made.objects > 6
    assert made.deleted >= made.objects - 2
    assert states(client_of(any_root, new)) == before
    assert client_of(any_root, new).verify().findings == ()
    with leases(any_root, new) as consumer:
        assert [*consumer.rows()] == [SECRET]
    stored, new_keys = objects(any_root), keys_of(any_root, new)
    assert opens(old_keys, stored) == []
    assert sorted(opens(new_keys, stored)) == sorted(stored.keys() - {KEYS})
    assert {path for path in stored if not path.endswith(".enc2") and not path.startswith("progress/")} == {
        "_latest",
        KEYS,
    }
    assert any("totals" in path for path in stored) != hide
    with pytest.raises(InvalidStateError, match=r"its keys are opened by 'key-file'.*, not by"):
        client_of(any_root, old).restore()
    with client_of(any_root, new) as client:
        prepared = client.restore().prepared  # type: ignore[union-attr]
        assert prepared is not None
        prepared.abort()
        with client.begin(epoch=9) as cp:
            cp.save("totals", KeyedState({"new": 1}))
    assert client_of(any_root, new).restore().keyed("totals").to_dict() == {"new": 1}  # type: ignore[union-attr]


def test_objects_without_a_byte_are_no_damage_afterwards(root: Root, old: str, new: str, tmp_path: Path) -> None:
    first = begin_empty(client_of(root, old))
    client_of(root, old).reencrypt(new)
    check_empty(client_of(root, new), first, tmp_path / "copy")


@pytest.mark.parametrize("provider", ["key-file", "passphrase-file"])
def test_the_same_call_after_the_end_does_nothing(
    root: Root, old: str, new: str, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All passphrases have the same name, so it is told by trial which of them opens the root."""
    monkeypatch.setattr(key_providers, "_SCRYPT", (1 << 10, 8, 1))  # cheap, for each client that opens the root
    old, new = (f"{provider}:{key.partition(':')[2]}" for key in (old, new))
    fill(client_of(root, old), partitions=2)
    client_of(root, old).reencrypt(new)
    before = objects(root)
    again = client_of(root, old).reencrypt(new)
    assert (again.objects, again.bytes, again.deleted) == (0, 0, 0)
    assert objects(root) == before


def test_a_key_may_stay_and_the_data_key_changes_each_time(root: Root, old: str) -> None:
    fill(client_of(root, old), partitions=2)
    before, known = states(client_of(root, old)), [keys_of(root, old)]
    for number in (2, 3):
        client_of(root, old).reencrypt(old)
        known.append(keys_of(root, old))
        assert known[-1].generation == number
        assert states(client_of(root, old)) == before
        assert not any(opens(keys, objects(root)) for keys in known[:-1])
    assert len({keys.key for keys in known}) == 3
    assert client_of(root, old).verify().findings == ()


@pytest.mark.parametrize("number", [1, 2])
def test_a_forged_sign_of_an_earlier_call_keeps_no_data_key(root: Root, old: str, new: str, number: int) -> None:
    """Anybody can write `deletes`."""
    fill(client_of(root, old), partitions=2)
    if number == 2:
        client_of(root, old).reencrypt(old)
    known = keys_of(root, old)
    keys = decode_keys(objects(root)[KEYS])
    stored = open_store(root.url, fencing="none")
    run_sync(stored.delete([KEYS]))
    run_sync(stored.put(KEYS, encode_keys(replace(keys, deletes=True))))
    assert client_of(root, old).reencrypt(old).objects > 6
    assert keys_of(root, old).generation == known.generation + 1
    assert opens(known, objects(root)) == []
    assert not decode_keys(objects(root)[KEYS]).deletes


def test_a_deletion_that_was_interrupted_is_finished_with_another_data_key(
    root: Root, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same key again, nothing but `_keys` tells that only the deletion is left, and anybody can write it."""
    fill(client_of(root, old), partitions=2)

    class StoppedError(Exception):
        pass

    def stop(*_: Any) -> None:
        raise StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(encrypt._Encrypting, "delete_originals", stop)
        with pytest.raises(StoppedError):
            client_of(root, old).reencrypt(old)
    # Whoever works on meanwhile is not hindered.
    leases(root, old).create(["1"])
    with client_of(root, old) as client:
        client.restore()
        client.begin(epoch=30).commit()
    made = client_of(root, old).reencrypt(old)
    assert keys_of(root, old).generation == 3
    assert made.objects > 6
    assert made.deleted > made.objects
    assert client_of(root, old).restore()
    assert [*leases(root, old).rows()] == ["1"]
    assert {path for path in objects(root) if path.endswith(".enc2")} == set()
    assert {path for path in objects(root) if path.endswith(".enc")} == set()


@pytest.mark.parametrize("seed", range(4))
def test_with_a_store_that_fails_at_random_the_same_call_comes_to_the_end(
    root: Root, old: str, new: str, seed: int
) -> None:
    fill(client_of(root, old), commits=3, partitions=2, prepares=True)
    leases(root, old).create([SECRET])
    before, old_keys = states(client_of(root, old)), keys_of(root, old)
    chosen = f"hide-names:{new}" if seed % 2 else new
    with injected(Faults(seed=seed, rate=0.2)):
        for _ in range(20):
            with suppress(RetryableError, OutcomeUnknownError):
                client_of(root, old).reencrypt(chosen)
                break
        else:
            pytest.fail("it came to no end")
    assert states(client_of(root, new)) == before
    assert [*leases(root, new).rows()] == [SECRET]
    assert opens(old_keys, objects(root)) == []


@pytest.mark.parametrize("stage", ["copy", "delete"])
def test_a_call_that_slept_while_others_went_further_destroys_nothing(
    root: Root, old: str, new: str, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """It wakes up with the second data key in a root that has the third one."""
    fill(client_of(root, old), partitions=2)
    leases(root, old).create([SECRET])
    before = states(client_of(root, old))
    owner: Any = InPlace if stage == "copy" else encrypt._Encrypting
    name = {"copy": "encrypt_positions", "delete": "delete_originals"}[stage]
    step, awake = getattr(owner, name), []

    async def sleep(work: Any) -> Any:
        if not awake:
            awake.append(True)
            async with AsyncCheckpointer(root.url, encryption=old) as other:
                await other.reencrypt(new)
            async with AsyncCheckpointer(root.url, encryption=new) as other:
                await other.reencrypt(new)
        return await step(work)

    monkeypatch.setattr(owner, name, sleep)
    with pytest.raises((ConflictError, InvalidStateError), match=r"at the same time|another data key"):
        client_of(root, old).reencrypt(new)
    assert keys_of(root, new).generation == 3
    assert states(client_of(root, new)) == before
    assert client_of(root, new).verify().findings == ()
    assert [*leases(root, new).rows()] == [SECRET]


def test_a_root_that_began_anew_keeps_what_it_has(
    root: Root, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client_of(root, old), partitions=2)
    step, store = encrypt._Encrypting.delete_originals, open_store(root.url)

    async def begin_anew(work: encrypt._Encrypting) -> Any:
        await store.delete([entry.path for entry in await store.list("")])
        async with AsyncCheckpointer(root.url, encryption=old) as job, job.begin() as cp:
            await cp.save("totals", KeyedState({"x": 1}))
        return await step(work)

    monkeypatch.setattr(encrypt._Encrypting, "delete_originals", begin_anew)
    with pytest.raises(ConflictError, match="somebody else changed _keys at the same time"):
        client_of(root, old).reencrypt(new)
    assert client_of(root, old).restore().keyed("totals").to_dict() == {"x": 1}  # type: ignore[union-attr]


@pytest.mark.parametrize("hide", [False, True])
def test_a_crash_at_any_request_loses_nothing(tmp_path: Path, old: str, new: str, hide: bool) -> None:
    """At each moment the root has the old keys or the new ones, whole; and the same call finishes the work."""
    names = itertools.count()
    chosen = f"hide-names:{new}" if hide else new

    def new_root() -> str:
        return f"memory://{secrets.token_hex(8)}-{next(names)}"

    filled = new_root()
    fill(Checkpointer(filled, encryption=old), commits=3, partitions=2, prepares=True)
    ShardLeases(filled, "app", "worker", encryption=old).create([SECRET])
    before, old_keys = states(Checkpointer(filled, encryption=old)), keys_of(Root(filled, {}, "memory"), old)

    def setup(url: str) -> None:
        MemoryStore(url).objects.update(MemoryStore(filled).objects)

    died = 0
    for point in crash_points(lambda url: Checkpointer(url, encryption=old).reencrypt(chosen), new_root, setup):
        died += point.died
        if point.after == bool(hide):
            continue  # what is left before a request is what is left after the one before it: either sees all of it
        root, readable = Root(point.root, {}, "memory"), []
        for encryption in (old, new):
            try:
                readable.append(states(Checkpointer(point.root, encryption=encryption)))
            except InvalidStateError:
                continue
        assert readable == [before], (point.number, point.after)
        Checkpointer(point.root, encryption=old).reencrypt(chosen)
        assert states(Checkpointer(point.root, encryption=new)) == before
        assert [*ShardLeases(point.root, "app", "worker", encryption=new).rows()] == [SECRET]
        assert opens(old_keys, objects(root)) == [], (point.number, point.after)
        assert len(opens(keys_of(root, new), objects(root))) == len(objects(root)) - 1
        keys = decode_keys(objects(root)[KEYS])
        assert ([each.number for each in keys.generations], keys.deletes) == ([2], False)
    assert died > 40


def test_a_driver_that_goes_on_is_refused_by_name_and_writes_nothing(root: Root, old: str, new: str) -> None:
    fill(client_of(root, old), partitions=2)
    job, other, reader, consumer = (*(client_of(root, old) for _ in range(3)), leases(root, old))
    consumer.create([SECRET])
    for client in (job, other, reader):
        client.restore()
    attempt = job.begin(epoch=20)
    attempt.snapshot("model", 0, b"x")
    client_of(root, old).reencrypt(new)
    before = {path: data for path, data in objects(root).items() if path.endswith(".enc2") or ".enc" not in path}
    with pytest.raises(InvalidStateError, match=REPLACED):
        attempt.commit()
    for use in (
        reader.restore,
        lambda: other.begin(epoch=21).commit(),
        lambda: other.savepoint("late"),
        lambda: other.clean(),
        lambda: job.restore(),
        lambda: leases(root, old).create(["1"]),
        lambda: consumer.create(["1"]),
        lambda: consumer.rows(),
    ):
        with pytest.raises(CheckpointError, match=f"{REPLACED}|its keys are opened by"):
            use()
    after = objects(root)
    assert {path: data for path, data in after.items() if path.endswith(".enc2") or ".enc" not in path} == before
    # What its tasks still wrote with the old keys is named by nothing, and goes with the same call again.
    left = [path for path in after if path.endswith(".enc")]
    assert left
    assert client_of(root, old).reencrypt(new).deleted == len(left)
    assert not any(path.endswith(".enc") for path in objects(root))
    assert states(client_of(root, new))


def test_a_commit_meanwhile_is_part_of_it(root: Root, old: str, new: str) -> None:
    fill(client_of(root, old), partitions=2)
    job, made = client_of(root, old), []
    job.restore()
    lock = threading.Lock()

    def commit(done: int, total: int) -> None:
        with lock:  # objects are copied side by side
            if len(made) == 2:
                return
            with job.begin(epoch=20 + len(made)) as cp:
                cp.save("totals", KeyedState({"late": len(made)}))
            made.append(cp.id)

    client_of(root, old).reencrypt(new, progress=commit)
    assert len(made) == 2
    restored = client_of(root, new).restore()
    assert restored is not None
    assert (restored.id, restored.keyed("totals").to_dict()) == (made[-1], {"late": 1})


def test_who_may_not_list_broken_writes_still_finishes(root: Root, old: str, new: str) -> None:
    fill(client_of(root), partitions=2)
    with injected(Faults()) as faults:
        faults.fail("leftovers", times=9, error=StoreRefusedError)
        client_of(root).encrypt(old)
        client_of(root, old).reencrypt(new)
        assert faults.counts["leftovers"] >= 2
    assert states(client_of(root, new))
    with pytest.raises(CheckpointError):
        client_of(root, old).restore()


@pytest.mark.parametrize("junk", [b"hello", b"{}", MARK + b"\nx"])
def test_what_is_no_object_of_the_root_does_not_keep_the_old_keys(
    root: Root, old: str, new: str, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise whoever has the old key and writes to the root keeps it in use."""
    fill(client_of(root, old), partitions=2)
    leases(root, old).create([SECRET])
    store, old_keys = open_store(root.url, root.storage_options, fencing="none"), keys_of(root, old)
    run_sync(store.put("progress/README.json", junk))
    client_of(root, old).reencrypt(new)
    assert "progress/README.json: is no object of this root, and was left as it is" in caplog.text
    assert opens(old_keys, objects(root)) == []
    assert objects(root)["progress/README.json"] == junk
    with leases(root, new) as consumer:
        assert [*consumer.rows()] == [SECRET]


def test_a_position_that_cannot_be_decrypted_stops_it_and_says_what_to_do(root: Root, old: str, new: str) -> None:
    """It may be misread. Once the old keys are gone, nobody could read it again."""
    fill(client_of(root, old), partitions=2)
    store, path = open_store(root.url, root.storage_options, fencing="none"), "progress/kinesis/app/ownership.json"
    run_sync(store.put(path, b"junk"))
    with pytest.raises(CorruptionError, match=f"{path}: .*keep a copy, delete it, and call this again"):
        client_of(root, old).reencrypt(new)
    run_sync(store.delete([path]))
    client_of(root, old).reencrypt(new)
    assert client_of(root, new).verify()
    assert not any(name.endswith(".enc") for name in objects(root))


@pytest.mark.parametrize("again", [False, True])
def test_a_cleanup_meanwhile_loses_nothing(root: Root, old: str, new: str, again: bool) -> None:
    """It deletes what was just to be copied. This stops all copies under way, those of live objects too."""
    given = old if again else None
    fill(client_of(root, given))
    cleaner, kept = client_of(root, given), states(client_of(root, given))
    *_, older, newest = cleaner.list_checkpoints()

    def clean(_: object) -> None:
        held.wait()
        cleaner.clean(RetentionPolicy(keep_last=1, grace=timedelta()))

    with injected(Faults()) as faults:
        client = client_of(root, given)
        held = faults.hold("get", path=f"artifacts/model/0/{newest}")
        faults.call(clean, "get", path=f"artifacts/model/0/{older}")
        assert (client.reencrypt(new) if again else client.encrypt(new)).deleted
        held.open()
    client = client_of(root, new)
    assert client.verify()
    left = states(client)
    assert str(older) not in left
    assert left == {name: value for name, value in kept.items() if name != str(older)}


@pytest.mark.parametrize("step", ["_copy", "_copy_manifest"])
@pytest.mark.parametrize("again", [False, True])
def test_a_copy_that_is_not_there_stops_it_before_the_swap(
    root: Root, old: str, new: str, monkeypatch: pytest.MonkeyPatch, again: bool, step: str
) -> None:
    given = old if again else None
    fill(client_of(root, given), partitions=2)
    before, copy, asked = states(client_of(root, given)), getattr(encrypt._Encrypting, step), list[Any]()

    async def copy_all_but_one(work: Any, what: Any, *limit: int) -> Any:
        asked.append(what)
        if len(asked) != 2:
            return await copy(work, what, *limit)
        return None if isinstance(what, str) else object_paths.manifest(what.id)

    def work() -> Any:
        client = client_of(root, given)
        return client.reencrypt(new) if again else client.encrypt(new)

    monkeypatch.setattr(encrypt._Encrypting, step, copy_all_but_one)
    with pytest.raises(CorruptionError, match="has no encrypted copy: somebody deleted it"):
        work()
    assert states(client_of(root, given)) == before
    assert work().deleted
    assert states(client_of(root, new)) == before


def test_nothing_begins_while_it_is_unfinished(root: Root, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position that begins with the old keys, or beside one that is not moved yet, would be lost."""
    fill(client_of(root, old), partitions=2)

    class StoppedError(Exception):
        pass

    def stop(*_: Any) -> None:
        raise StoppedError

    for owner, step in ((encrypt._Encrypting, "commit"), (InPlace, "encrypt_positions")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, step, stop)
            with pytest.raises(StoppedError):
                client_of(root, old).reencrypt(new)
        with pytest.raises(InvalidStateError, match="gives this root another data key"):
            leases(root, old if step == "commit" else new).create(["1"])
        with pytest.raises(InvalidStateError, match="was interrupted, or is under way"):
            client_of(root, old).rekey(new)
        with pytest.raises(InvalidStateError, match=r"was interrupted, or is under way.*, with the new key"):
            client_of(root, old).reencrypt(old)
    client_of(root, old).reencrypt(new)
    leases(root, new).create(["1"])


def test_a_root_that_has_only_positions_is_encrypted_anew(root: Root, old: str, new: str) -> None:
    leases(root, old).create([SECRET])
    old_keys = keys_of(root, old)
    assert client_of(root, old).reencrypt(new).objects == 1
    assert [*leases(root, new).rows()] == [SECRET]
    assert opens(old_keys, objects(root)) == []


def test_a_first_commit_is_not_mixed_of_two_data_keys(root: Root, old: str) -> None:
    """Without a `_latest` a client looks for the keys again; they must not be other ones of the same root."""
    leases(root, old).create([SECRET])
    job = client_of(root, old)
    attempt = job.begin(epoch=1)
    attempt.snapshot("model", 0, b"x" * 300_000)
    client_of(root, old).reencrypt(old)
    for use in (job.restore, job.restore, attempt.commit):
        with pytest.raises(InvalidStateError, match="another data key"):
            use()
    assert client_of(root, old).restore() is None
    assert not any(path.endswith(".enc2") or path == "_latest" for path in objects(root))


def test_a_job_that_begins_the_root_meanwhile_is_part_of_it(
    root: Root, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked at `_keys` before they had two generations, and wrote after `_latest` was looked for."""
    leases(root, old).create([SECRET])
    keys, move = keys_of(root, old), InPlace.encrypt_positions

    async def begin(work: InPlace) -> None:
        await move(work)
        async with AsyncCheckpointer(root.url, encryption=keys).begin() as cp:  # opened keys are not looked for again
            await cp.save("totals", KeyedState({"x": 1}))

    monkeypatch.setattr(InPlace, "encrypt_positions", begin)
    client_of(root, old).reencrypt(new)
    assert client_of(root, new).restore().keyed("totals").to_dict() == {"x": 1}  # type: ignore[union-attr]


def test_what_an_old_driver_left_is_deleted(tmp_path: Path, old: str, new: str) -> None:
    folder = tmp_path / "root"
    root = Root(str(folder), {}, "local")
    fill(client_of(root, old), partitions=2)
    old_keys = keys_of(root, old)
    model = next(path for path in objects(root) if "/model/" in path)
    (folder / model).with_name(f".{(folder / model).name}.0123456789abcdef.tmp").write_bytes(b"half of it")
    client = client_of(root, old)
    client.save_snapshot(client.new_id(), "never-committed", 0, b"x" * 10)
    (folder / "somebody.enc").write_bytes(b"not ours")
    client_of(root, old).reencrypt(new)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {path for path in left if not path.endswith(".enc2")} == {"_latest", KEYS, ".lock", "somebody.enc"}
    assert opens(old_keys, objects(root)) == []


def test_a_damaged_object_stops_it_before_the_swap(root: Root, old: str, new: str) -> None:
    fill(client_of(root, old), partitions=2)
    before, store = states(client_of(root, old)), open_store(root.url)
    path, data = next((path, data) for path, data in objects(root).items() if path.startswith("artifacts/model"))
    run_sync(store.delete([path]))
    run_sync(store.put(path, data[:-1] + bytes([data[-1] ^ 1])))
    with pytest.raises(CorruptionError, match="artifacts/model"):
        client_of(root, old).reencrypt(new)
    run_sync(store.delete([path]))
    run_sync(store.put(path, data))
    assert states(client_of(root, old)) == before
    client_of(root, old).reencrypt(new)
    assert states(client_of(root, new)) == before


def test_what_cannot_be_encrypted_anew_is_refused(root: Root, old: str, new: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidStateError, match="is not encrypted, or has lost its _keys"):
        client_of(root, old).reencrypt(new)
    fill(client_of(root, old), partitions=2)
    refused: list[tuple[Callable[[], object], type[CheckpointError], str]] = [
        (lambda: client_of(root).reencrypt(new), IllegalArgumentError, "was opened without encryption"),
        (lambda: client_of(root, old).reencrypt("0" * 64), IllegalArgumentError, "expected key-file:PATH"),
        (lambda: client_of(root, old).reencrypt(None), IllegalArgumentError, "needs a provider"),  # type: ignore[arg-type]
        (
            lambda: client_of(root, make_key(tmp_path / "third.key")).reencrypt(new),
            InvalidStateError,
            "its keys are opened by",
        ),
    ]
    before = objects(root)
    for use, error, message in refused:
        with pytest.raises(error, match=message):
            use()
    assert objects(root) == before


@pytest.mark.parametrize("length", [1, 103, 104, 105, MAX_HIDDEN_NAME])
def test_old_objects_of_a_long_hidden_name_are_deleted(root: Root, old: str, new: str, length: int) -> None:
    name = "n" * length
    with client_of(root, f"hide-names:{old}").begin(epoch=1) as cp:
        cp.save(name, KeyedState({"x": 1}, partitions=2))
        cp.snapshot(f"m{name[1:]}", 0, b"x" * 300_000)
    keys = keys_of(root, old)
    client_of(root, old).reencrypt(new)
    assert opens(keys, objects(root)) == []
    assert [path for path in objects(root) if path.endswith(".enc")] == []
    assert client_of(root, new).restore().keyed(name).to_dict() == {"x": 1}  # type: ignore[union-attr]


def test_encrypt_does_not_go_on_where_encrypting_anew_was_interrupted(
    root: Root, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take a position that has the old data key for one that has none, and encrypt it twice."""
    fill(client_of(root, old), partitions=2)
    leases(root, old).create([SECRET])
    before = states(client_of(root, old))

    def stop(_: InPlace) -> None:
        raise KeyError

    with monkeypatch.context() as patched:
        patched.setattr(InPlace, "encrypt_positions", stop)
        with pytest.raises(KeyError):
            client_of(root, old).reencrypt(new)
    stored = objects(root)
    for key in (old, new):
        with pytest.raises(InvalidStateError, match="`checkpointer rekey --rewrite` was interrupted"):
            client_of(root).encrypt(key)
    assert objects(root) == stored
    client_of(root, old).reencrypt(new)
    assert states(client_of(root, new)) == before
    assert [*leases(root, new).rows()] == [SECRET]


def test_an_older_position_is_not_encrypted_twice(root: Root, old: str, new: str) -> None:
    fill(client_of(root, old), partitions=2)
    leases(root, old).create([SECRET])
    stored = objects(root)
    client_of(root, old).reencrypt(new)
    path = next(path for path in stored if path.startswith("progress/"))
    write(root, path, stored[path])
    found = objects(root)
    assert client_of(root).encrypt(new).objects == 0  # `encrypt` ended long ago: whatever is here now came since
    assert objects(root) == found
    with pytest.raises(InvalidStateError, match="is encrypted with another data key"):
        leases(root, new).rows()


@pytest.mark.parametrize("again", [False, True])
def test_first_bytes_alone_do_not_have_the_originals_deleted(root: Root, old: str, new: str, again: bool) -> None:
    """Anybody who writes to the root can write the first bytes of an encrypted `_latest`."""
    given = old if again else None
    fill(client_of(root, given), partitions=2)
    if not again:  # an interrupted `encrypt` has made keys
        run_sync(make_keys(open_store(root.url, root.storage_options), parse_provider(new)))
    stored = objects(root)
    write(root, "_latest", b"checkpointer-encrypted-1" + (b" 2" if again else b"") + b"\n" + b"x" * 200)
    with pytest.raises(CorruptionError, match="_latest: cannot be decrypted"):
        client_of(root, given).reencrypt(new) if again else client_of(root).encrypt(new)
    assert {path: data for path, data in objects(root).items() if path not in ("_latest", KEYS)} == {
        path: data for path, data in stored.items() if path not in ("_latest", KEYS)
    }


def test_a_root_that_lost_its_keys_gets_no_others(root: Root, old: str, new: str) -> None:
    fill(client_of(root, old), partitions=2)
    lost = objects(root)[KEYS]
    run_sync(open_store(root.url, root.storage_options).delete([KEYS]))
    for key in (old, new):
        with pytest.raises(InvalidStateError, match="is encrypted, and has lost its _keys: bring that back"):
            client_of(root).encrypt(key)
    with pytest.raises(InvalidStateError, match="If it was encrypted, bring that back from a copy"):
        client_of(root, old).restore()
    write(root, KEYS, lost)
    assert client_of(root, old).verify()


def test_a_backup_of_before_that_was_put_over_the_root_is_encrypted_anew_again(
    root: Root, old: str, new: str, tmp_path: Path
) -> None:
    """The objects of the second data key are still there, and nobody has that key any more."""
    fill(client_of(root, old))
    backup, before = objects(root), states(client_of(root, old))
    client_of(root, old).reencrypt(new)
    for number in range(5, 8):
        with client_of(root, new).begin(epoch=number) as cp:
            cp.save("totals", KeyedState({"later": number}))
    for path, data in backup.items():
        write(root, path, data)
    assert states(client_of(root, old)) == before
    third = make_key(tmp_path / "third.key")
    client_of(root, old).reencrypt(third)
    assert states(client_of(root, third)) == before
    assert client_of(root, third).verify()
    found = objects(root)
    assert sorted(opens(keys_of(root, third), found)) == sorted(found.keys() - {KEYS}), "nothing of others is left"
    with client_of(root, third).begin(epoch=9) as cp:
        cp.save("totals", KeyedState({"new": 1}))
    client_of(root, third).reencrypt(new)
    assert client_of(root, new).verify()


def test_a_planted_object_does_not_use_up_the_generations(root: Root, old: str, new: str) -> None:
    fill(client_of(root, old))
    write(root, f"manifests/0000000001-0badcafe.json.enc{'9' * 18}", b"planted")
    client_of(root, old).reencrypt(new)
    assert keys_of(root, new).generation == 2
    assert client_of(root, new).verify()
