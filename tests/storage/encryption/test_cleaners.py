"""Who has the structure key of a root cleans and verifies it, and reads nothing of its state."""

import copy
import pickle
import random
import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.errors import CheckpointError, CorruptionError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.keys_json import ALL, KEYS, STRUCTURE, RootKeys, decode_keys, encode_keys
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import Store, open_store
from pyspark_checkpointer.storage.base import PreconditionFailedError, SinkRead
from pyspark_checkpointer.storage.encryption import keyring
from pyspark_checkpointer.storage.encryption.chunked import SALT_BYTES, MessageKey
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.key_providers import KeyFile
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from pyspark_checkpointer.storage.encryption.keyring import open_keys
from pyspark_checkpointer.storage.encryption.outer_tags import TAG_BYTES, OuterTag
from pyspark_checkpointer.storage.encryption.root_keys import change_keys
from pyspark_checkpointer.storage.local.store import LocalStore
from pyspark_checkpointer.testing import Faults, injected
from tests.signing_keys import make_keys
from tests.storage.conftest import CONDITIONAL, Place, copy_objects

LARGE = random.Random(1).randbytes(300_000)
"""Bytes that get an object of their own, and have several chunks."""


class Root:
    """An encrypted root with three commits, and a cleaner of it."""

    def __init__(self, url: str, options: dict[str, object] | None, folder: Path, hides: str = "") -> None:
        self.url, self.options = url, options
        self.names = {name: f"key-file:{folder / name}.key" for name in ("owner", "cleaner", "other")}
        for name in self.names:
            (folder / f"{name}.key").write_text(secrets.token_hex(32))
        self.names["owner"] = hides + self.names["owner"]
        self.raw: Store = open_store(url, options, fencing="none")
        self.state = KeyedState({f"user-{n}": n for n in range(50)}, partitions=2)
        client = self.client("owner")
        for number in range(3):
            self.state[f"user-{number}"] = -1
            with client.begin(epoch=number) as cp:
                cp.save("totals", self.state)
                cp.snapshot("model", 0, LARGE + bytes([number]))
                cp.positions["orders"] = {"0": number}
        client.change_cleaners(allow=[self.names["cleaner"]])

    def copied_to(self, place: Place, folder: Path) -> "Root":
        """Return the same root at another place. To copy its objects takes fewer requests than to commit them."""
        made = copy.copy(self)
        made.url, made.options = place.url, place.storage_options
        made.names = {name: f"key-file:{folder / name}.key" for name in self.names}
        for name, text in self.names.items():
            shutil.copy(text.removeprefix("key-file:"), folder / f"{name}.key")
        made.raw = open_store(place.url, place.storage_options, fencing="none")
        copy_objects(self.raw, made.raw)
        return made

    def client(self, name: str) -> Checkpointer:
        return Checkpointer(self.url, self.options, encryption=self.names[name])

    def objects(self) -> dict[str, bytes]:
        return {entry.path: run_sync(self.raw.get(entry.path)).data for entry in run_sync(self.raw.list(""))}

    def artifacts(self) -> dict[str, bytes]:
        return {path: data for path, data in self.objects().items() if path.startswith("artifacts/")}

    def write(self, path: str, data: bytes) -> None:
        run_sync(self.raw.delete([path]))
        run_sync(self.raw.put(path, data))

    def keys(self) -> RootKeys:
        return decode_keys(run_sync(self.raw.get(KEYS)).data)

    def opened(self, name: str) -> DataKeys:
        found = run_sync(open_keys(self.raw, parse_provider(self.names[name])))
        assert found is not None
        return found

    def is_whole(self) -> bool:
        restored = self.client("owner").restore()
        return (
            restored is not None
            and dict(restored.keyed("totals")) == dict(self.state)
            and restored.operator("model").partition(0) == [LARGE + b"\2"]
        )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return Root(f"memory://{secrets.token_hex(8)}", None, tmp_path_factory.mktemp("original"))


@pytest.fixture(params=CONDITIONAL)
def root(request: pytest.FixtureRequest, place_of: Callable[[str], Place], original: Root, tmp_path: Path) -> Root:
    return original.copied_to(place_of(request.param), tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Root:
    return Root(str(tmp_path / "root"), None, tmp_path)


# ---- what a cleaner can do -------------------------------------------------------------------------------------------


def test_a_cleaner_verifies_and_cleans(root: Root) -> None:
    cleaner = root.client("cleaner")
    found = cleaner.verify()
    assert found
    assert (found.checkpoints, found.objects) == (3, root.client("owner").verify().objects)
    assert found.unread == len(root.artifacts())
    assert "as stored" in repr(found)
    assert "as stored" in str(found)
    before = len(root.objects())
    assert cleaner.clean(RetentionPolicy(keep_last=1, grace=timedelta()))
    assert len(root.objects()) < before
    assert root.is_whole()
    assert cleaner.verify()
    assert root.client("owner").verify().unread == 0


@pytest.mark.parametrize("hides", ["", "hide-names:"])
def test_a_cleaner_uses_what_reads_no_state(hides: str, tmp_path: Path) -> None:
    root = Root(str(tmp_path / "root"), None, tmp_path, hides)
    cleaner, owner = root.client("cleaner"), root.client("owner")
    assert cleaner.list_checkpoints() == owner.list_checkpoints()
    cleaner.savepoint("kept")
    assert [one.name for one in owner.savepoints()] == ["kept"]
    plan = cleaner.plan(RetentionPolicy(keep_last=1, grace=timedelta()))
    plan.save(tmp_path / "plan")
    assert b"totals" not in (tmp_path / "plan").read_bytes()
    assert list(owner.load_plan(tmp_path / "plan")) == list(plan)
    cleaner.delete_savepoint("kept")
    cleaner.rollback(cleaner.list_checkpoints()[1])
    restored = owner.restore()
    assert restored is not None
    assert restored.epoch == 1


@pytest.mark.parametrize("hides", ["", "hide-names:"])
def test_the_keys_of_a_cleaner_are_those_that_its_owner_gives(hides: str, tmp_path: Path) -> None:
    root = Root(str(tmp_path / "root"), None, tmp_path, hides)
    for owner in ("owner", "other"):
        if owner == "other":
            root.client("owner").reencrypt(root.names["other"])
            root.client("other").change_cleaners(allow=[root.names["cleaner"]])
        keys, given = root.opened("cleaner"), root.opened(owner).structure()
        assert keys == given == pickle.loads(pickle.dumps(given))
        assert (keys.hides_names, keys.generation) == (bool(hides), 1 if owner == "owner" else 2)
        paths = [path for stored in root.artifacts() if (path := keys.logical_path(stored))]
        assert len(paths) == len(root.artifacts())
        assert [given.stored_path(path) for path in paths] == [*root.artifacts()]
        assert root.client("cleaner").verify()


def test_an_owner_reads_parts_of_what_a_cleaner_checks(local: Root) -> None:
    store, keys = local.client("owner").session.store, local.opened("owner")
    for path in (path for stored in local.artifacts() if (path := keys.logical_path(stored))):
        whole = run_sync(store.get(path)).data
        ranges = [(0, 1), (len(whole) // 2, len(whole)), (16_380, 10), (len(whole) - 1, 1)]
        ranges = [(start, size) for start, size in ranges if start < len(whole)]
        parts = [whole[start : start + size] for start, size in ranges]
        assert run_sync(store.get_ranges(path, ranges)) == parts
        assert [run_sync(store.get_range(path, *one)) for one in ranges] == parts


def test_a_cleaner_verifies_one_checkpoint_one_operator_and_a_share(local: Root) -> None:
    cleaner = local.client("cleaner")
    newest = cleaner.list_checkpoints()[-1]
    assert cleaner.verify(newest, operator="model").unread == 1
    assert cleaner.verify(share=0).unread == 0


def test_a_signed_root_is_cleaned_with_both_keys(tmp_path: Path) -> None:
    make_keys(*(tmp_path / f"{name}.pem" for name in ("boss", "driver", "sweeper")))
    root, trust = Root(str(tmp_path / "root"), None, tmp_path), f"trust:{tmp_path / 'boss.pub'}"
    root.client("owner").change_signers(
        tmp_path / "boss.pem", allow={tmp_path / "driver.pub": "commit", tmp_path / "sweeper.pub": "clean"}
    )
    signing = f"{trust},sign:{tmp_path / 'sweeper.pem'}"
    cleaner = Checkpointer(root.url, encryption=root.names["cleaner"], signing=signing)
    assert cleaner.verify().unread > 0
    assert cleaner.clean(RetentionPolicy(keep_last=1, grace=timedelta()))
    reader = Checkpointer(root.url, encryption=root.names["owner"], signing=trust)
    restored = reader.restore()
    assert restored is not None
    assert dict(restored.keyed("totals")) == dict(root.state)


# ---- what a cleaner cannot do ----------------------------------------------------------------------------------------


def test_a_cleaner_reads_nothing_of_the_state(root: Root, tmp_path: Path) -> None:
    cleaner = root.client("cleaner")
    restored = cleaner.restore()
    assert restored is not None
    for read in (
        lambda: restored.keyed("totals"),
        lambda: restored.operator("model").partition(0),
        lambda: cleaner.export(None, tmp_path / "copy"),
    ):
        with pytest.raises(InvalidStateError, match=r"artifacts/.*the given key is that of a cleaner, which opens no"):
            read()


def test_a_cleaner_is_refused_before_anything_is_asked_for(local: Root) -> None:
    keys = local.opened("cleaner")
    path = next(path for stored in local.artifacts() if (path := keys.logical_path(stored)))
    with injected(Faults()) as faults:
        store = local.client("cleaner").session.store
        run_sync(store.get("_latest"))
        for read in (
            lambda: store.get(path),
            lambda: store.read_into(path, Gathering),
            lambda: store.read_each_into([SinkRead(path, Gathering, 100)]),
            lambda: store.read_each_into(
                [SinkRead("_latest", Gathering, 1 << 20), SinkRead(path, Gathering, 100)],
            ),
            lambda: store.get_range(path, 0, 1),
            lambda: store.get_ranges(path, [(0, 1)]),
            lambda: store.put(path, b""),
        ):
            with pytest.raises(InvalidStateError, match="that of a cleaner, which opens no artifact"):
                run_sync(read())
        assert {one.path for one in faults.requests} == {KEYS, "_latest"}


def test_no_key_of_a_cleaner_opens_an_artifact(root: Root) -> None:
    keys, owner = root.opened("cleaner"), root.opened("owner")
    assert (keys.opens, owner.opens) == (STRUCTURE, ALL)
    assert owner.key not in pickle.dumps(keys)
    assert pickle.loads(pickle.dumps(keys)) == keys
    known = [keys.key, keys._metadata, keys._tags]
    assert owner._state not in known
    for stored, data in root.artifacts().items():
        path = keys.logical_path(stored)
        assert path is not None
        message = data[16:]
        context = f"{keys.root_id}\0{path}".encode()
        for one in known:
            with pytest.raises(CorruptionError):
                MessageKey(lambda: "it", one, message[:SALT_BYTES], context).decrypt(message)
        MessageKey(lambda: "it", owner._state or b"", message[:SALT_BYTES], context).decrypt(message)


def test_a_cleaner_writes_no_state(root: Root) -> None:
    cleaner = root.client("cleaner")
    cleaner.restore()
    before = root.objects()
    with pytest.raises(InvalidStateError, match="that of a cleaner, which opens no artifact"):
        cleaner.save_snapshot(root.client("owner").new_id(), "model", 0, LARGE)
    # Not one of positions alone either: it would fence the job, whose state it does not have.
    with pytest.raises(InvalidStateError, match="that of a cleaner, which begins no commit"):
        cleaner.begin(epoch=3)
    after = root.objects()
    assert [path for path in after if path not in before] == []
    assert root.is_whole()


def test_a_cleaner_does_not_say_who_opens_the_root(root: Root) -> None:
    cleaner, before = root.client("cleaner"), root.objects()
    for use in (
        lambda: cleaner.change_cleaners(allow=[root.names["other"]]),
        lambda: cleaner.change_cleaners(remove=[parse_provider(root.names["cleaner"]).key]),
        lambda: cleaner.rekey(root.names["other"]),
        lambda: cleaner.rekey(root.names["cleaner"]),
        lambda: cleaner.reencrypt(root.names["other"]),
        lambda: cleaner.reencrypt(root.names["cleaner"]),
    ):
        with pytest.raises(InvalidStateError, match="that of a cleaner, which cannot do this"):
            use()
    with pytest.raises(InvalidStateError, match="that of a cleaner, which cannot do this"):
        Checkpointer(root.url, root.options).encrypt(root.names["cleaner"])
    assert root.objects() == before


# ---- what a cleaner finds --------------------------------------------------------------------------------------------


def found_by(root: Root, path: str) -> tuple[set[str], set[str]]:
    """Return what the cleaner and the owner find damaged."""
    keys = root.opened("owner")
    logical = keys.logical_path(path)
    assert logical is not None
    found = [{finding.path for finding in root.client(name).verify().findings} for name in ("cleaner", "owner")]
    assert found[0] <= {logical}
    return found[0], found[1]


def test_a_cleaner_finds_every_change_of_an_artifact(root: Root) -> None:
    path, data = next(iter(root.artifacts().items()))
    every = 1 if root.url.startswith(("memory:", "/")) else 5  # the same bytes are judged wherever they come from
    for place in (0, 15, 16, 39, 40, len(data) // 2, len(data) - 1)[::every]:
        changed = bytearray(data)
        changed[place] ^= 1
        root.write(path, bytes(changed))
        cleaner, owner = found_by(root, path)
        assert cleaner == owner != set(), place
    for cut in (b"", data[:15], data[:20], data[:72], data[:-1], data[:-16], data[16:], data + b"x", data * 2)[::every]:
        root.write(path, cut)
        cleaner, owner = found_by(root, path)
        assert cleaner == owner != set(), len(cut)
    run_sync(root.raw.delete([path]))
    assert all(found_by(root, path))
    root.write(path, data)
    assert root.client("cleaner").verify()


def test_a_cleaner_finds_an_artifact_that_was_moved(local: Root, tmp_path: Path) -> None:
    artifacts = local.artifacts()
    (first, one), (second, other) = list(artifacts.items())[-2:]
    for path, data, moved in ((first, one, other), (second, other, one)):
        local.write(path, moved)
        cleaner, owner = found_by(local, path)
        assert cleaner == owner != set()
        local.write(path, data)
    (tmp_path / "beside").mkdir()
    beside = Root(str(tmp_path / "beside" / "root"), None, tmp_path / "beside")
    [moved, *_] = beside.artifacts().values()
    local.write(first, moved)
    assert all(found_by(local, first))


def test_an_artifact_of_another_size_is_found(local: Root) -> None:
    """A manifest says how long an artifact is. The tag alone does not tell that another size was meant."""
    keys = local.opened("cleaner")
    check = run_sync(local.client("cleaner").session.store.artifact_check())
    assert check is not None
    path = next(path for stored in local.artifacts() if (path := keys.logical_path(stored)) and "model" in path)
    size = len(LARGE) + 1
    run_sync(check(path, size))
    for wrong in (size - 1, size + 1, 0):
        with pytest.raises(CorruptionError):
            run_sync(check(path, wrong))


def test_a_changed_tag_is_damage_for_whoever_reads_the_artifact(local: Root) -> None:
    """Otherwise a cleaner would report damage that nobody else can see."""
    store, keys = local.client("owner").session.store, local.opened("owner")
    for stored, data in local.artifacts().items():
        path = keys.logical_path(stored)
        assert path is not None
        local.write(stored, data[:15] + bytes([data[15] ^ 1]) + data[16:])
        for read in (
            lambda path=path: run_sync(store.get(path)),
            lambda path=path: run_sync(store.read_into(path, Gathering)),
        ):
            with pytest.raises(CorruptionError, match="is not stored as it was written"):
                read()
        [found] = run_sync(store.read_each_into([SinkRead(path, Gathering, len(data))]))
        assert isinstance(found, CorruptionError)
        local.write(stored, data)
        assert run_sync(store.get(path)).data == bytes(run_sync(store.read_into(path, Gathering)).pieces)


class Gathering:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.pieces = bytearray()

    def update(self, piece: bytes, /) -> None:
        self.pieces += piece

    def finish(self) -> bytes:
        return bytes(self.pieces)


@pytest.mark.parametrize("size", [0, 1, 16, 16_383, 16_384, 16_385, 1 << 17, 5 << 20])
def test_objects_of_each_size_are_checked_in_pieces_of_each_size(size: int) -> None:
    keys = DataKeys("0" * 32, bytes(32))
    path = f"artifacts/x/0/0000000042-1a2b3c4d.snapshot.{'0' * 64}.raw"
    data = random.Random(size).randbytes(size)
    stored = keys.encrypt(path, data)
    assert keys.decrypt(path, stored) == data
    for step in (7, 16, 40, 16_400, len(stored)):
        if len(stored) / step > 20_000:
            continue
        content, message = keys.decrypting(path, Gathering()), keys.structure().checking_tag(path, Gathering())
        for start in range(0, len(stored), step):
            content.update(stored[start : start + step])
            message.update(stored[start : start + step])
        assert content.finish().pieces == data
        assert message.finish() == stored[16:]


# ---- who is a cleaner ------------------------------------------------------------------------------------------------


def test_a_cleaner_is_allowed_and_removed(root: Root) -> None:
    owner, name = root.client("owner"), parse_provider(root.names["cleaner"]).key
    keys = owner.cleaners()
    assert [(one.opens, one.key) for one in keys] == [
        (ALL, parse_provider(root.names["owner"]).key),
        (STRUCTURE, name),
    ]
    assert owner.change_cleaners(allow=[root.names["cleaner"]]) == keys
    assert [one.opens for one in owner.change_cleaners(remove=[name])] == [ALL]
    with pytest.raises(InvalidStateError, match="its keys are opened by 'key-file'"):
        root.client("cleaner").verify()
    assert root.is_whole()


def test_a_late_change_of_the_keys_brings_back_nobody(local: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, swap = local.client("owner"), LocalStore.compare_and_swap
    sent: list[tuple[bytes, str | None]] = []

    async def noted(self: LocalStore, path: str, data: bytes, expected: str | None) -> str:
        sent.append((data, expected))
        return await swap(self, path, data, expected)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "compare_and_swap", noted)
        owner.change_cleaners(allow=[local.names["other"]])
    (first,) = sent
    owner.change_cleaners(remove=[parse_provider(local.names["other"]).key])
    # It was sent twice, and the first request arrives only now. The version on a disk is a hash of the content.
    with pytest.raises(PreconditionFailedError):
        run_sync(local.raw.compare_and_swap(KEYS, *first))
    with pytest.raises(InvalidStateError, match="its keys are opened by"):
        local.client("other").verify()


def test_what_cannot_be_a_cleaner_is_refused(local: Root, tmp_path: Path) -> None:
    owner, before = local.client("owner"), local.objects()
    (tmp_path / "words").write_text("four words of a passphrase")
    for use, error, message in (
        (lambda: owner.change_cleaners(allow=[local.names["owner"]]), IllegalArgumentError, "opens all of this root"),
        (lambda: owner.change_cleaners(allow=["hide-names:" + local.names["other"]]), InvalidStateError, "not hidden"),
        (lambda: owner.change_cleaners(allow=["0" * 64]), IllegalArgumentError, "expected key-file:PATH"),
        (lambda: owner.change_cleaners(allow=[local.opened("owner")]), IllegalArgumentError, "needs a provider"),  # type: ignore[list-item]
        (lambda: owner.change_cleaners(remove=["nobody"]), IllegalArgumentError, "of these: 'key-file'"),
        (lambda: owner.change_cleaners(remove=[owner.cleaners()[0].key]), IllegalArgumentError, "of these"),
        (
            lambda: owner.change_cleaners(allow=[local.names["other"]], remove=["nobody"]),
            IllegalArgumentError,
            "of these",
        ),
        (lambda: owner.change_cleaners(remove=["key-file", "nobody"]), IllegalArgumentError, "of these"),
        (lambda: owner.change_cleaners(remove="key-file"), IllegalArgumentError, "expected a list"),
        (lambda: owner.change_cleaners(allow="0" * 64), IllegalArgumentError, "got a text of 64 characters$"),
        (lambda: Checkpointer(local.url).cleaners(), IllegalArgumentError, "was opened without encryption"),
        (lambda: local.client("other").change_cleaners(remove=["key-file"]), InvalidStateError, "are opened by"),
    ):
        with pytest.raises(error, match=message):
            use()
    assert local.objects() == before
    passphrase = f"passphrase-file:{tmp_path / 'words'}"
    owner.change_cleaners(allow=[passphrase, local.names["other"]])
    assert Checkpointer(local.url, encryption=passphrase).verify().unread
    with pytest.raises(IllegalArgumentError, match="expected the name of one cleaner's key"):
        owner.change_cleaners(remove=["key-file"])  # two have it
    with pytest.raises(IllegalArgumentError, match="expected the name of one cleaner's key"):
        owner.change_cleaners(remove=[""])
    assert len(owner.change_cleaners(remove=["passphrase-file"])) == 3


def test_keys_that_nobody_could_read_are_not_written(local: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, before = local.client("owner"), local.objects()
    monkeypatch.setattr(keyring, "MAX_KEYS", len(before[KEYS]))
    with pytest.raises(IllegalArgumentError, match=r"_keys: would have \d+ bytes, and at most \d+ can be read"):
        owner.change_cleaners(allow=[local.names["other"]])
    assert local.objects() == before
    assert local.is_whole()
    owner.change_cleaners(remove=[parse_provider(local.names["cleaner"]).key])
    owner.change_cleaners(allow=[local.names["other"]])
    assert local.client("other").verify()


@pytest.mark.parametrize("kind", ["key-file", "passphrase-file"])
def test_a_rekey_that_was_done_is_done_again(kind: str, tmp_path: Path) -> None:
    """Rekey twice, as after an interruption or a lost answer. Both passphrases have one name."""
    for number, name in enumerate(("one", "two", "three")):
        (tmp_path / name).write_text(f"{number}" * 64)
    one, two, three = (f"{kind}:{tmp_path / name}" for name in ("one", "two", "three"))
    with Checkpointer(tmp_path / "root", encryption=one) as client, client.begin() as cp:
        cp.snapshot("op", 0, b"1")
    for _ in range(2):
        Checkpointer(tmp_path / "root", encryption=one).rekey(two)
    for old, new in ((one, three), (three, one)):  # neither opens it
        with pytest.raises(InvalidStateError):
            Checkpointer(tmp_path / "root", encryption=old).rekey(new)
    restored = Checkpointer(tmp_path / "root", encryption=two).restore()
    assert restored is not None
    assert restored.operator("op").partition(0) == [b"1"]


def test_two_passphrases_are_one_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    client = Checkpointer(tmp_path / "root", encryption=f"passphrase-file:{tmp_path / 'one'}")
    with client.begin(epoch=0) as cp:
        cp.snapshot("model", 0, LARGE)
    with pytest.raises(IllegalArgumentError, match="a key file if both are passphrases"):
        client.change_cleaners(allow=[f"passphrase-file:{tmp_path / 'two'}"])


def test_no_other_passphrase_takes_the_place_of_a_cleaners(local: Root, tmp_path: Path) -> None:
    """All passphrases have one name. Neither call may say that it is done and shut a cleaner out, or let none in."""
    one, two = (f"passphrase-file:{tmp_path / name}" for name in ("one", "two"))
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    owner = local.client("owner")
    owner.change_cleaners(allow=[one])
    before = local.objects()
    for use in (lambda: owner.change_cleaners(allow=[two]), lambda: owner.rekey(two)):
        with pytest.raises(
            IllegalArgumentError, match="a cleaner has another key with the same name, 'passphrase-file'"
        ):
            use()
    owner.change_cleaners(allow=[one])
    assert local.objects() == before
    assert Checkpointer(local.url, encryption=one).verify().unread
    owner.rekey(one)
    assert Checkpointer(local.url, encryption=one).verify().unread == 0


def test_the_keys_of_cleaners_outlive_a_new_key_of_the_owner(local: Root) -> None:
    owner = local.client("owner")
    owner.rekey(local.names["other"])
    assert local.client("cleaner").verify().unread
    local.client("other").rekey(local.names["cleaner"])  # the former cleaner opens all of it now, and is no cleaner
    assert [one.opens for one in local.client("cleaner").cleaners()] == [ALL]
    assert local.client("cleaner").verify().unread == 0


def test_no_cleaner_opens_a_root_that_was_encrypted_anew(local: Root) -> None:
    before = local.opened("cleaner")
    local.client("owner").reencrypt(local.names["other"])
    with pytest.raises(InvalidStateError, match="its keys are opened by"):
        local.client("cleaner").verify()
    kept = Checkpointer(local.url, encryption=before)
    with pytest.raises(CheckpointError):
        kept.verify()
    local.client("other").change_cleaners(allow=[local.names["cleaner"]])
    assert local.client("cleaner").verify().unread


def test_nobody_becomes_a_cleaner_while_a_root_is_encrypted_anew(local: Root) -> None:
    async def begin() -> None:
        async def no_check(_: Store) -> None:
            pass

        await change_keys(local.client("owner").session.store, parse_provider(local.names["other"]), no_check)

    run_sync(begin())
    for use in (
        lambda: local.client("owner").change_cleaners(allow=[local.names["other"]]),
        lambda: local.client("owner").cleaners(),
    ):
        with pytest.raises(InvalidStateError, match="was interrupted, or is under way"):
            use()


# ---- who writes to the root ------------------------------------------------------------------------------------------


def test_a_wrapped_key_has_one_meaning(local: Root, tmp_path: Path) -> None:
    """Somebody who writes to the root says that a key opens more, or less, or gives it the key of another root."""
    (tmp_path / "beside").mkdir()
    beside = Root(str(tmp_path / "beside" / "root"), None, tmp_path / "beside")
    keys = local.keys()
    [present] = keys.generations
    all_of_it, structure = present.wrappings
    extra = replace(all_of_it, provider="passphrase-file", key="")
    [_, foreign] = beside.keys().generations[0].wrappings
    moved = replace(foreign, key=structure.key)
    beside_cleaner = KeyFile(beside.names["cleaner"].removeprefix("key-file:"))
    for forged, name in (
        ((replace(structure, opens=ALL), extra), "cleaner"),
        ((replace(all_of_it, opens=STRUCTURE), extra), "owner"),
        ((all_of_it, moved), "cleaner"),
        ((all_of_it, replace(structure, wrapped=all_of_it.wrapped)), "cleaner"),
    ):
        planned = replace(keys, generations=(replace(present, wrappings=forged),))
        local.write(KEYS, encode_keys(planned))
        with pytest.raises(InvalidStateError, match="does not open the keys of this root"):
            local.client(name).verify()
    local.write(KEYS, encode_keys(replace(keys, generations=(replace(present, wrappings=(all_of_it, foreign)),))))
    with pytest.raises(InvalidStateError, match="does not open the keys of this root"):
        Checkpointer(local.url, encryption=beside_cleaner).verify()


def test_a_cleaner_who_writes_to_the_root_deceives_cleaners_alone(root: Root) -> None:
    """They can make the tag of what they wrote. Only whoever reads the artifact finds that it is no artifact."""
    keys = root.opened("cleaner")
    path, data = next((path, data) for path, data in root.artifacts().items() if "model" in path)
    logical = keys.logical_path(path)
    assert logical is not None
    message = data[TAG_BYTES:-1] + b"x"
    tag = OuterTag(keys._tags, message[:SALT_BYTES], f"{keys.root_id}\0{logical}".encode())
    tag.update(message)
    root.write(path, tag.value() + message)
    cleaner, owner = found_by(root, path)
    assert (cleaner, owner) == (set(), {logical})
