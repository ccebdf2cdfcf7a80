"""A root is encrypted where it is: all that is live arrives, nothing readable stays, and no crash loses anything."""

import itertools
import secrets
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.admin import followers
from pyspark_checkpointer.admin.encrypt_in_place import InPlace
from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from pyspark_checkpointer.consumers.eventprocessorhost import CheckpointManager
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.errors import (
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from pyspark_checkpointer.storage.encryption.root_keys import adopt
from pyspark_checkpointer.storage.encryption.store import EncryptedStore
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.testing import crash_points
from pyspark_checkpointer.testing.faults import CrashError, Faults
from pyspark_checkpointer.testing.store import FaultyStore
from tests.conftest import Root
from tests.key_files import make_key
from tests.world import Contents, contents, put

SECRET = "alice-of-the-plain-root"
HERE = ("ns", "hub", "$default")
POSITION = {
    "fully_qualified_namespace": "ns",
    "eventhub_name": "hub",
    "consumer_group": "$default",
    "partition_id": SECRET,
    "sequence_number": 7,
    "offset": "7",
}
PARTITIONS = 300
"""So many that the chains stand in segments."""

States = dict[str, Any]


@pytest.fixture
def key(tmp_path: Path) -> str:
    return make_key(tmp_path / "state.key")


def fill(client: Checkpointer, commits: int = 4, partitions: int = PARTITIONS, *, prepares: bool = False) -> None:
    """Write some checkpoints, a savepoint that retention leaves alone, and perhaps a prepared checkpoint."""
    state = KeyedState({f"{SECRET}-{n}": n for n in range(partitions)}, partitions=partitions)
    for number in range(commits):
        state[f"{SECRET}-0"] = number
        with client.begin(epoch=number) as cp:
            cp.save("totals", state)
            cp.snapshot("model", 0, SECRET.encode() + bytes([number]) * 300_000)
            cp.positions["orders"] = {"0": f"{SECRET}-{number}"}
        if number == 0:
            client.savepoint("first")
    client.clean(RetentionPolicy(keep_last=2))
    if prepares:
        with client.begin(epoch=commits) as cp:
            cp.save("totals", state)
            cp.prepare()


def states(client: Checkpointer) -> States:
    """Return what every live checkpoint holds, by its id."""
    found = {}
    for listed in client.list_checkpoints():
        restored = client.restore(listed)
        assert restored is not None
        model = restored.operator("model").partition(0)
        found[str(listed)] = restored.keyed("totals").to_dict(), model, restored.epoch, restored.positions
    return found | {"savepoints": [(one.name, one.id) for one in client.savepoints()]}


def objects(root: Root) -> dict[str, bytes]:
    store = open_store(root.url, root.storage_options, fencing="none")
    return {entry.path: run_sync(store.get(entry.path)).data for entry in run_sync(store.list(""))}


def client_of(root: Root, encryption: str | None = None) -> Checkpointer:
    return Checkpointer(root.url, root.storage_options, encryption=encryption)


@pytest.mark.by_turns
def test_all_that_is_live_arrives_and_nothing_readable_stays(any_root: Root, key: str) -> None:
    fill(client_of(any_root), prepares=True)
    before = states(client_of(any_root))
    assert len(before) == 4
    with ShardLeases(any_root.url, "app", "worker", any_root.storage_options) as leases:
        leases.create([SECRET])
    made = client_of(any_root).encrypt(key)
    assert made.objects > 6
    assert made.deleted >= made.objects - 2
    encrypted = client_of(any_root, key)
    assert states(encrypted) == before
    assert encrypted.verify().findings == ()
    with ShardLeases(any_root.url, "app", "worker", any_root.storage_options, encryption=key) as leases:
        assert [*leases.rows()] == [SECRET]
    for path, data in objects(any_root).items():
        assert SECRET.encode() not in data, path
        assert object_paths.owner(path) is None, path
    for use in (lambda: client_of(any_root).restore(), lambda: client_of(any_root).begin()):
        with pytest.raises(UnsupportedFormatError, match="is encrypted: say what opens its keys"):
            use()
    prepared = encrypted.restore().prepared  # type: ignore[union-attr]
    assert prepared is not None
    prepared.abort()
    with encrypted.begin(epoch=9) as cp:
        cp.save("totals", KeyedState({"new": 1}))
    assert client_of(any_root, key).restore().keyed("totals").to_dict() == {"new": 1}  # type: ignore[union-attr]
    again = client_of(any_root).encrypt(key)
    assert (again.objects, again.deleted) == (0, 0)


EMPTY: Contents = {"alone": {0: [b""]}, "pair": {0: [b"", b""]}}


def begin_empty(client: Checkpointer) -> CheckpointId:
    """Commit objects without a byte, of one artifact and of two, and a checkpoint after that."""
    with client.begin() as cp:
        cp.snapshot("alone", 0, b"")
        cp.snapshot("pair", 0, b"")
        cp.delta("pair", 0, b"")
    put(client, b"full")
    return cp.id


def check_empty(client: Checkpointer, first: CheckpointId, folder: Path) -> None:
    """Use the checkpoint of `begin_empty` in each way that looks at all of its objects."""
    assert client.verify().findings == ()
    assert contents(client.restore(first)) == EMPTY
    client.export(first, folder)
    assert contents(Checkpointer(folder).restore()) == EMPTY
    assert Checkpointer(folder).verify().findings == ()
    client.restore()
    client.rollback(first)
    assert contents(client.restore()) == EMPTY


def test_objects_without_a_byte_are_no_damage_afterwards(any_root: Root, key: str, tmp_path: Path) -> None:
    first = begin_empty(client_of(any_root))
    client_of(any_root).encrypt(key)
    check_empty(client_of(any_root, key), first, tmp_path / "copy")


@pytest.mark.parametrize("hide", ["", "hide-names:"])
def test_a_crash_at_any_request_loses_nothing(tmp_path: Path, key: str, hide: str) -> None:
    """At each moment the root is the plain one or the encrypted one, whole; and the same call finishes the work."""
    names = itertools.count()

    def new_root() -> str:
        return f"memory://{secrets.token_hex(8)}-{next(names)}"

    filled = new_root()
    fill(Checkpointer(filled), commits=3, partitions=2, prepares=True)
    ShardLeases(filled, "app", "worker").create([SECRET])
    before = states(Checkpointer(filled))

    def setup(url: str) -> None:
        MemoryStore(url).objects.update(MemoryStore(filled).objects)

    died = 0
    for point in crash_points(lambda url: Checkpointer(url).encrypt(hide + key), new_root, setup):
        died += point.died
        if point.after == bool(hide):
            continue  # what is left before a request is what is left after the one before it: either sees all of it
        readable = []
        for encryption in (None, key):
            try:
                readable.append(states(Checkpointer(point.root, encryption=encryption)))
            except (UnsupportedFormatError, CorruptionError, InvalidStateError):
                continue
        assert readable == [before], (point.number, point.after)
        Checkpointer(point.root).encrypt(hide + key)
        assert states(Checkpointer(point.root, encryption=key)) == before
        assert [*ShardLeases(point.root, "app", "worker", encryption=key).rows()] == [SECRET]
        stored = objects(Root(point.root, {}, "memory"))
        assert all(SECRET.encode() not in data for data in stored.values())
        assert any("totals" in path or "kinesis" in path for path in stored) == (not hide)
    assert died > 40


async def stops(work: object) -> None:
    raise CrashError


@pytest.mark.parametrize("again", [False, True], ids=["encrypt", "rekey --rewrite"])
def test_nobody_takes_for_missing_what_is_not_moved_yet(
    key: str, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt the move of positions and followers to hidden paths, after the root opens with the new key."""
    root, old = (
        Root(f"memory://{secrets.token_hex(8)}", {}, "memory"),
        make_key(tmp_path / "old.key") if again else None,
    )
    client = client_of(root, old)
    fill(client, partitions=2)
    run_sync(followers.register(client.copy().session, "copy", "totals", client.list_checkpoints()[1]))
    with ShardLeases(root.url, "app", "worker", encryption=old) as leases:
        leases.create([SECRET])
    with CheckpointManager(root.url, encryption=old) as checkpoints:
        checkpoints.create_checkpoint_store_if_not_exists()
        checkpoints.create_all_checkpoints_if_not_exists(["0"])

    def finish() -> None:
        client_of(root, old).reencrypt(f"hide-names:{key}") if again else client_of(root).encrypt(f"hide-names:{key}")

    with monkeypatch.context() as patch:
        patch.setattr(InPlace, "encrypt_positions", stops)
        with pytest.raises(CrashError):
            finish()
    live = client_of(root, key).list_checkpoints()
    for use in (
        lambda: client_of(root, key).clean(RetentionPolicy(keep_last=1, grace=timedelta(0))),
        lambda: client_of(root, key).followers(),
        lambda: [*ShardLeases(root.url, "app", "other", encryption=key).rows()],
        lambda: ShardLeases(root.url, "app", "other", encryption=key).create(["new"]),
        lambda: CheckpointManager(root.url, encryption=key).delete_checkpoint("0"),
    ):
        with pytest.raises(InvalidStateError, match="call it again"):
            use()
    finish()
    assert client_of(root, key).list_checkpoints() == live
    assert [one.name for one in client_of(root, key).followers()] == ["copy"]
    assert [*ShardLeases(root.url, "app", "other", encryption=key).rows()] == [SECRET]
    CheckpointManager(root.url, encryption=key).delete_checkpoint("0")
    client_of(root, key).clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    assert client_of(root, key).verify()


def test_a_position_that_is_moved_while_it_is_looked_for_is_found(key: str) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    client = client_of(root)
    fill(client, partitions=2)
    run_sync(followers.register(client.copy().session, "copy", "totals", client.list_checkpoints()[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InPlace, "encrypt_positions", stops)
        with pytest.raises(CrashError):
            client_of(root).encrypt(f"hide-names:{key}")
    reader, faults = client_of(root, key), Faults()
    encrypted = reader.session.store
    assert isinstance(encrypted, EncryptedStore)
    encrypted.inner = FaultyStore(encrypted.inner, faults)
    # After the request that does not find it, and before the one that looks whether it is still to be moved.
    faults.call(lambda _: client_of(root).encrypt(f"hide-names:{key}"), "get", path="progress/", after=True)
    assert [one.name for one in reader.followers()] == ["copy"]


def test_who_had_the_keys_before_names_were_hidden_anew_is_told(key: str, tmp_path: Path) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    old = f"hide-names:{key}"
    worker = ShardLeases(root.url, "app", "worker", encryption=old)
    worker.create([SECRET])
    client_of(root, old).reencrypt(f"hide-names:{make_key(tmp_path / 'new.key')}")
    for use in (worker.rows, lambda: worker.create(["more"])):
        with pytest.raises(InvalidStateError, match="open the root with a new client"):
            use()


@pytest.mark.parametrize("hide", ["", "hide-names:"])
def test_a_root_with_nothing_but_positions_is_encrypted(any_root: Root, key: str, hide: str) -> None:
    with CheckpointStore(any_root.url, any_root.storage_options) as store:
        store.update_checkpoint(POSITION)
    sealed = CheckpointStore(any_root.url, any_root.storage_options, encryption=hide + key)
    with pytest.raises(InvalidStateError, match="encrypt it with `checkpointer encrypt`"):
        sealed.list_checkpoints(*HERE)
    done = client_of(any_root).encrypt(hide + key)
    assert (done.objects, done.deleted) == (1, 0)
    assert [found["sequence_number"] for found in sealed.list_checkpoints(*HERE)] == [7]
    sealed.close()
    assert all(SECRET.encode() not in data for data in objects(any_root).values())
    assert client_of(any_root).encrypt(hide + key).objects == 0
    with client_of(any_root, key).begin() as cp:
        cp.save("totals", KeyedState({"a": 1}))
    assert client_of(any_root, key).restore()


def test_a_root_whose_first_commit_was_killed_is_encrypted(key: str) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    killed = client_of(root).begin(epoch=0)
    killed.snapshot("totals", 0, SECRET.encode() * 20_000)
    run_sync(killed.attempt.uploader.queue.join())
    assert objects(root)
    client_of(root).encrypt(key)
    assert [*objects(root)] == ["_keys"]
    with client_of(root, key).begin() as cp:
        cp.save("totals", KeyedState({"a": 1}))
    assert client_of(root, key).restore()


def test_a_commit_meanwhile_is_part_of_it(key: str) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    fill(client_of(root), partitions=2)
    job, made = client_of(root), []
    job.restore()

    lock = threading.Lock()

    def commit(done: int, total: int) -> None:
        with lock:  # objects are copied side by side
            if len(made) == 2:
                return
            with job.begin(epoch=20 + len(made)) as cp:
                cp.save("totals", KeyedState({"late": len(made)}))
            made.append(cp.id)

    client_of(root).encrypt(key, progress=commit)
    assert len(made) == 2
    restored = client_of(root, key).restore()
    assert restored is not None
    assert (restored.id, restored.keyed("totals").to_dict()) == (made[-1], {"late": 1})
    # The job cannot go on as if nothing had happened.
    with pytest.raises(OutcomeUnknownError, match=r"call restore\(\) to find out"), job.begin() as cp:
        cp.save("totals", KeyedState({"zombie": 1}))
    with pytest.raises(UnsupportedFormatError, match="is encrypted"):
        job.restore()
    assert client_of(root, key).restore().id == made[-1]  # type: ignore[union-attr]


def test_who_reads_a_root_that_is_being_encrypted_is_told_to_finish_it(key: str) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    fill(client_of(root), partitions=2)
    with CheckpointManager(root.url) as manager:
        manager.create_checkpoint_store_if_not_exists()
        manager.create_all_checkpoints_if_not_exists(["0"])
    run_sync(adopt(open_store(root.url), parse_provider(key)))
    manager = CheckpointManager(root.url, encryption=key)
    for use in (client_of(root, key).restore, lambda: manager.get_checkpoint("0")):
        with pytest.raises(UnsupportedFormatError, match=r"is not encrypted.*`checkpointer encrypt` was interrupted"):
            use()
    client_of(root).encrypt(key)
    assert client_of(root, key).restore()
    manager.get_checkpoint("0")


def test_a_damaged_object_stops_it_before_the_swap(key: str) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    fill(client_of(root), partitions=2)
    store = open_store(root.url)
    path = next(path for path in objects(root) if path.startswith("artifacts/model"))
    data = run_sync(store.get(path)).data
    run_sync(store.delete([path]))
    run_sync(store.put(path, data[:-1] + b"x"))
    with pytest.raises(CorruptionError, match="artifacts/model"):
        client_of(root).encrypt(key)
    assert client_of(root).read_latest() is not None
    run_sync(store.delete([path]))
    with pytest.raises(CorruptionError, match="artifacts/model"):
        client_of(root).encrypt(key)
    run_sync(store.put(path, data))
    client_of(root).encrypt(key)
    assert client_of(root, key).verify().findings == ()


def test_what_cannot_be_encrypted_is_refused(key: str, tmp_path: Path) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    with pytest.raises(InvalidStateError, match="nothing was begun here yet"):
        client_of(root).encrypt(key)
    run_sync(open_store(root.url).put("notes.txt", b"mine"))
    with pytest.raises(InvalidStateError, match="nothing was begun here yet"):
        client_of(root).encrypt(key)
    fill(client_of(root), partitions=2)
    with pytest.raises(IllegalArgumentError, match="expected key-file:PATH"):
        client_of(root).encrypt("0" * 64)
    with pytest.raises(IllegalArgumentError, match="encrypt needs a provider of keys"):
        client_of(root).encrypt(None)  # type: ignore[arg-type]
    other = make_key(tmp_path / "other.key")
    client_of(root).encrypt(other)
    with pytest.raises(InvalidStateError, match="its keys are opened by"):
        client_of(root).encrypt(key)
    with pytest.raises(IllegalArgumentError, match="was opened with encryption"):
        client_of(root, other).encrypt(key)


@pytest.mark.parametrize("what", ["first commit", "rekey"])
def test_a_crash_while_keys_are_written_leaves_a_root_that_opens(tmp_path: Path, key: str, what: str) -> None:
    new, names = make_key(tmp_path / "new.key"), itertools.count()

    def new_root() -> str:
        return f"memory://{secrets.token_hex(8)}-{next(names)}"

    def commit(url: str) -> None:
        with Checkpointer(url, encryption=key).begin(epoch=1) as cp:
            cp.save("totals", KeyedState({"x": 1}))

    run: Callable[[str], object] = commit
    if what == "rekey":
        run = lambda url: Checkpointer(url, encryption=key).rekey(new)  # noqa: E731
    for point in crash_points(run, new_root, commit if what == "rekey" else None):
        opened = []
        for encryption in (key, new) if what == "rekey" else (key,):
            try:
                restored = Checkpointer(point.root, encryption=encryption).restore()
            except InvalidStateError:
                continue
            opened.append(encryption)
            if what == "rekey" or restored is not None:
                assert restored is not None
                assert restored.keyed("totals").to_dict() == {"x": 1}
        assert len(opened) == 1, point.number
        with Checkpointer(point.root, encryption=opened[0]) as client:
            client.restore()
            with client.begin(epoch=2) as cp:
                cp.save("totals", KeyedState({"x": 2}))
        assert Checkpointer(point.root, encryption=opened[0]).restore().keyed("totals").to_dict() == {"x": 2}  # type: ignore[union-attr]


def test_what_a_driver_wrote_that_was_not_stopped_is_deleted_by_the_same_call(any_root: Root, key: str) -> None:
    fill(client_of(any_root), partitions=2)
    driver = client_of(any_root)
    driver.restore()
    client_of(any_root).encrypt(key)
    kept = objects(any_root)
    with pytest.raises(OutcomeUnknownError), driver.begin(epoch=9) as cp:
        cp.snapshot("model", 0, SECRET.encode() * 100_000)
        cp.properties["why"] = SECRET
    left = set(objects(any_root)) - set(kept)
    assert any(SECRET.encode() in objects(any_root)[path] for path in left)
    assert client_of(any_root).encrypt(key).deleted == len(left)
    assert objects(any_root) == kept
