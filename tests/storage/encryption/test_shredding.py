"""Who destroys a key destroys all that it encrypted, in every version of every object that anybody kept."""

import base64
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer import storage as stores
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.errors import CheckpointError, InvalidStateError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.manifests.keys_json import KEYS, decode_keys
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from pyspark_checkpointer.storage.encryption.keyring import open_keys
from pyspark_checkpointer.testing import FaultyStore
from tests.key_files import make_key

SECRET = b"4929-1234-of-the-shredded"
LARGE = SECRET * 20_000

Versions = list[tuple[str, bytes]]
"""Every object that was ever written to a root, with its stored path: a bucket that keeps all versions."""


@contextmanager
def recorded(versions: Versions) -> Iterator[None]:
    class RecordingStore(FaultyStore):
        async def put(self, path: str, data: Bytes) -> None:
            await super().put(path, data)
            versions.append((path, bytes(data)))

        async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
            version = await super().compare_and_swap(path, data, expected)
            versions.append((path, bytes(data)))
            return version

    open_root = stores.open_root
    with mock.patch.object(stores, "open_root", lambda *args: RecordingStore(open_root(*args))):
        yield


def live(url: str, encryption: str, tmp_path: Path) -> None:
    """Use a root for all that writes to it: commits, savepoints, a cleanup, positions, a saved plan."""
    client = Checkpointer(url, encryption=encryption)
    client.restore()
    state = KeyedState({f"user-{n}": SECRET.decode() for n in range(20)}, partitions=2)
    for number in range(3):
        state[f"user-{number}"] = f"{SECRET.decode()}-{number}"
        with client.begin() as cp:
            cp.save("totals", state)
            cp.snapshot("model", 0, LARGE + bytes([number]))
            cp.positions["orders"] = {"0": SECRET.decode()}
    with suppress(CheckpointError):
        client.savepoint("first")
    client.plan(RetentionPolicy(keep_last=1)).save(tmp_path / "saved.plan")
    client.clean(RetentionPolicy(keep_last=1))
    ShardLeases(url, "app", "worker", encryption=encryption).create([SECRET.decode()])


def put_back(versions: Versions, keys: bytes | None) -> str:
    """Return a new root with the newest version of each object, and one version of `_keys` or none."""
    url = f"memory://{secrets.token_hex(8)}"
    newest = dict(versions) | ({} if keys is None else {KEYS: keys})
    for path, data in newest.items():
        if path != KEYS or keys is not None:
            run_sync(open_store(url).put(path, data))
    return url


def opened(keys: DataKeys, versions: Versions) -> Versions:
    """Return the contents that some keys open, of all versions."""
    found = []
    for stored, data in versions:
        path = None if stored == KEYS else keys.logical_path(stored)
        with suppress(CheckpointError):
            if path is not None:
                found.append((path, keys.decrypt(path, data)))
    return found


def shown(key: bytes) -> set[bytes]:
    """Return a key in every form in which somebody could find it."""
    return {key, key.hex().encode(), key.hex().upper().encode(), base64.b64encode(key), base64.urlsafe_b64encode(key)}


def keys_of(url: str, encryption: str) -> DataKeys:
    keys = run_sync(open_keys(open_store(url), parse_provider(encryption)))
    assert keys is not None
    return keys


def test_nothing_of_a_shredded_root_opens_in_any_version_of_any_object(tmp_path: Path) -> None:
    url, versions = f"memory://{secrets.token_hex(8)}", Versions()
    old, new, newer = (make_key(tmp_path / f"{name}.key") for name in ("old", "new", "newer"))
    known = []
    with recorded(versions):
        live(url, old, tmp_path)
        known.append(keys_of(url, old))
        Checkpointer(url, encryption=old).rekey(new)
        Checkpointer(url, encryption=new).reencrypt(newer)
        known.append(keys_of(url, newer))
        live(url, newer, tmp_path)
    kept = [data for path, data in versions if path == KEYS]
    objects = [(path, data) for path, data in versions if path != KEYS]
    assert len(kept) == 5, "made, wrapped anew, two generations, one, and its end"
    # Otherwise the rest would prove nothing: with the keys every version opens.
    contents = [content for keys in known for content in opened(keys, objects)]
    assert len(contents) == len(objects) > 30
    assert sum(SECRET in content for _, content in contents) > 6
    assert Checkpointer(put_back(objects, kept[-1]), encryption=newer).restore() is not None

    # `_keys` is destroyed, in all versions; the keys that wrap are still there.
    lost = put_back(objects, None)
    for encryption in (old, new, newer):
        client = Checkpointer(lost, encryption=encryption)
        for use in (client.restore, client.verify, client.repair_candidates, lambda c=client: c.begin().commit()):
            with pytest.raises(InvalidStateError, match=r"has lost its _keys|holds objects that are not encrypted"):
                use()
    # The keys that wrap are destroyed; all versions of `_keys` are still there.
    for name in ("old", "new", "newer"):
        make_key(tmp_path / f"{name}.key")
    for keys in kept:
        for encryption in (old, new, newer, make_key(tmp_path / "another.key")):
            with pytest.raises(InvalidStateError, match="its keys are opened by"):
                Checkpointer(put_back(objects, keys), encryption=encryption).restore()
            for each in decode_keys(keys).generations:
                assert all(unwraps(encryption, one.wrapped) is None for one in each.wrappings)
    # Whatever was written, to the store and beside it: no content, and nothing of a data key.
    beside = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    derived = {key for keys in known for key in (keys.key, keys.structure_key, keys._state, keys._metadata, keys._tags)}
    for data in [data for _, data in versions] + beside:
        assert SECRET not in data
        assert not any(form in data for key in derived for form in shown(key))


def unwraps(encryption: str, wrapped: bytes) -> bytes | None:
    try:
        return parse_provider(encryption).unwrap(wrapped)
    except Exception:
        return None


def test_one_savepoint_is_shredded_by_its_own_key(tmp_path: Path) -> None:
    """As docs/encryption.md says it: it is exported, and its root encrypted anew without it."""
    root, aside = (f"memory://{secrets.token_hex(8)}" for _ in range(2))
    key, new, savepoint = (make_key(tmp_path / f"{name}.key") for name in ("state", "new", "savepoint"))
    versions = Versions()
    with recorded(versions):
        client = Checkpointer(root, encryption=key)
        with client.begin() as cp:
            cp.snapshot("model", 0, LARGE)
        client.savepoint("audit")
        with client.begin() as cp:
            cp.snapshot("model", 0, b"what comes after it")
        client.export("audit", aside, encryption=savepoint)
        client.delete_savepoint("audit")
        client.clean(RetentionPolicy(keep_last=1))
        client.reencrypt(new)
    kept = Checkpointer(aside, encryption=savepoint).restore()
    assert kept is not None
    assert kept.operator("model").partition(0) == [LARGE]
    # The old key of the root is destroyed, and then that of the savepoint.
    remains, gone = keys_of(root, new), keys_of(aside, savepoint)
    make_key(tmp_path / "state.key")
    assert any(LARGE in content for _, content in opened(gone, versions))
    make_key(tmp_path / "savepoint.key")
    with pytest.raises(InvalidStateError, match="its keys are opened by"):
        Checkpointer(aside, encryption=savepoint).restore()
    assert Checkpointer(root, encryption=new).restore().operator("model").partition(0) == [b"what comes after it"]  # type: ignore[union-attr]
    contents = opened(remains, versions)
    assert any(b"what comes after it" in content for _, content in contents)
    assert not any(SECRET in content for _, content in contents), "with all keys that are left, and all versions"
    for data in (data for path, data in versions if path == KEYS):
        for each in decode_keys(data).generations:
            for one in each.wrappings:
                assert all(
                    (found := unwraps(encryption, one.wrapped)) is None or found[16:] == remains.key
                    for encryption in (key, new, savepoint)
                )
