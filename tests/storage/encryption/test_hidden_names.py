"""A root that hides its names shows none of them, and works as any other."""

import pickle
import random
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.consumers.inspect import read_consumers
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.keys_json import KEYS, decode_keys, encode_keys
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from pyspark_checkpointer.storage.encryption.keyring import create_keys
from pyspark_checkpointer.storage.encryption.stored_names import MAX_HIDDEN_NAME
from tests.storage.conftest import CONDITIONAL, Place

NAMES = ("fraud-suspects", "model of Müller", "shard-of-acme", "acme-consumer")
LARGE = random.Random(1).randbytes(300_000)


@pytest.fixture
def key(tmp_path: Path) -> str:
    (tmp_path / "state.key").write_text(secrets.token_hex(32))
    return f"key-file:{tmp_path}/state.key"


def use(client: Checkpointer, leases: ShardLeases) -> None:
    """Write operators of all forms, and positions."""
    state = KeyedState({f"user-{n}": n for n in range(500)}, partitions=4)
    for number in range(4):
        state["user-1"] = number
        with client.begin(epoch=number) as cp:
            cp.save(NAMES[0], state)
            cp.snapshot(NAMES[1], 0, LARGE + bytes([number]))
    leases.create([NAMES[2]])


@pytest.mark.parametrize("kind", CONDITIONAL)
def test_no_stored_path_shows_a_name_and_all_verbs_work(
    kind: str, place_of: Callable[[str], Place], key: str, tmp_path: Path
) -> None:
    place = place_of(kind)
    client = Checkpointer(place.url, place.storage_options, encryption=f"hide-names:{key}")
    leases = ShardLeases(place.url, NAMES[3], "worker", place.storage_options, encryption=f"hide-names:{key}")
    use(client, leases)
    raw = open_store(place.url, place.storage_options, fencing="none")
    stored = [entry.path for entry in run_sync(raw.list(""))]
    shown = " ".join(stored)
    for name in (*NAMES, *map(object_paths.encode_part, NAMES), "kinesis", "ownership"):
        assert name not in shown, name
    assert sum(path.startswith("artifacts/") for path in stored) >= 8
    # `_keys` tells that names are hidden, so nobody has to say it again.
    reader = Checkpointer(place.url, place.storage_options, encryption=key)
    restored = reader.restore()
    assert restored is not None
    assert restored.keyed(NAMES[0])["user-1"] == 3
    assert restored.operator(NAMES[1]).partition(0) == [LARGE + b"\3"]
    assert reader.verify().findings == ()
    assert {row.path.split("/")[1] for row in reader.plan() if row.path.startswith("artifacts/")} == {
        object_paths.encode_name("operator", name) for name in NAMES[:2]
    }
    store = reader.session.store
    assert run_sync(store.folders("artifacts/")) == sorted(
        f"artifacts/{object_paths.encode_name('operator', name)}/" for name in NAMES[:2]
    )
    assert run_sync(store.folders("")) == ["artifacts/", "manifests/", "progress/"]
    for prefix in ("artifacts/fraud-suspects/", "artifacts/fraud-suspects/p", "artifacts/fr", "art", "progress/ki"):
        found = [entry.path for entry in run_sync(store.list(prefix))]
        assert found == [entry.path for entry in run_sync(store.list("")) if entry.path.startswith(prefix)]
        assert found
    assert [*ShardLeases(place.url, NAMES[3], "other", place.storage_options, encryption=key).rows()] == [NAMES[2]]
    assert [(one.group, one.name) for one in run_sync(read_consumers(store)).partitions] == [
        (("kinesis", NAMES[3]), NAMES[2])
    ]
    before = len(stored)
    assert reader.clean(RetentionPolicy(keep_last=1)).deleted.objects == 0  # the grace period
    plain = Checkpointer(f"memory://{secrets.token_hex(8)}")
    reader.export("latest", plain.root)
    assert plain.restore().operator(NAMES[1]).partition(0) == [LARGE + b"\3"]  # type: ignore[union-attr]
    assert len(run_sync(raw.list(""))) >= before - 3
    run_sync(raw.delete(["_latest"]))
    reader.repair(reader.repair_candidates()[0].id)
    assert reader.restore().keyed(NAMES[0])["user-1"] == 3  # type: ignore[union-attr]


def test_it_is_chosen_when_the_root_gets_its_data_key(key: str, tmp_path: Path) -> None:
    url = f"memory://{secrets.token_hex(8)}"
    (tmp_path / "new.key").write_text(secrets.token_hex(32))
    new = f"key-file:{tmp_path}/new.key"
    client = Checkpointer(url, encryption=key)
    with client.begin() as cp:
        cp.snapshot(NAMES[0], 0, b"x")
    with pytest.raises(InvalidStateError, match="its names are not hidden: that is chosen when a root gets its data"):
        Checkpointer(url, encryption=f"hide-names:{key}").restore()
    with pytest.raises(InvalidStateError, match="its names are not hidden"):
        client.rekey(f"hide-names:{new}")
    client.reencrypt(f"hide-names:{new}")
    assert NAMES[0] not in paths(url)
    # It stays so, whatever the next key is.
    Checkpointer(url, encryption=new).rekey(key)
    Checkpointer(url, encryption=key).reencrypt(new)
    assert NAMES[0] not in paths(url)
    assert Checkpointer(url, encryption=new).restore().operator(NAMES[0]).partition(0) == [b"x"]  # type: ignore[union-attr]
    with pytest.raises(IllegalArgumentError, match="expected key-file:PATH or passphrase"):
        Checkpointer(url, encryption="hide-names:hide-names:" + key)


def paths(url: str) -> str:
    return " ".join(entry.path for entry in run_sync(open_store(url).list("")))


@pytest.mark.parametrize("long", [MAX_HIDDEN_NAME, MAX_HIDDEN_NAME + 1])
def test_a_name_that_is_too_long_is_refused_before_anything_is_written(tmp_path: Path, key: str, long: int) -> None:
    root, name = tmp_path / "root", "n" * long
    client = Checkpointer(root, encryption=f"hide-names:{key}")
    leases = ShardLeases(root, name, "worker", encryption=f"hide-names:{key}")
    if long == MAX_HIDDEN_NAME:
        with client.begin() as cp:
            cp.snapshot(name, 0, LARGE)
        leases.create(["0"])
        assert client.restore().operator(name).partition(0) == [LARGE]  # type: ignore[union-attr]
        assert [*leases.rows()] == ["0"]
        # A name that is hidden is longer than it was, and the same call has to finish what was interrupted.
        plain = Checkpointer(tmp_path / "plain")
        with plain.begin() as cp:
            cp.snapshot(name, 0, LARGE)
        for _ in range(2):
            plain.encrypt(f"hide-names:{key}")
        sealed = Checkpointer(tmp_path / "plain", encryption=key)
        assert sealed.restore().operator(name).partition(0) == [LARGE]  # type: ignore[union-attr]
        return
    with pytest.raises(IllegalArgumentError, match="151 bytes once encoded, at most 150 are allowed in a root"):
        client.save_snapshot(client.new_id(), name, 0, LARGE)
    with pytest.raises(IllegalArgumentError, match="151 bytes once encoded"):
        leases.create(["0"])
    plain = Checkpointer(tmp_path / "plain")
    plain.begin().commit()
    ShardLeases(tmp_path / "plain", name, "worker").create(["0"])
    with pytest.raises(IllegalArgumentError, match="151 bytes once encoded"):
        plain.encrypt(f"hide-names:{key}")
    plain.encrypt(key)
    sealed = Checkpointer(tmp_path / "plain", encryption=key)
    before = run_sync(open_store(tmp_path / "plain").get(KEYS))
    with pytest.raises(IllegalArgumentError, match="151 bytes once encoded"):
        sealed.reencrypt(f"hide-names:{key}")
    assert run_sync(open_store(tmp_path / "plain").get(KEYS)) == before
    assert sealed.restore() is not None


def test_a_path_of_every_length_of_a_name_fits_in_a_file_system(tmp_path: Path, key: str) -> None:
    """Also the shortened names of consumers, whose own digest makes them long, and while the file is written."""
    store = open_store(tmp_path / "root", encryption=f"hide-names:{key}")
    for long in (MAX_HIDDEN_NAME, 400):
        path = object_paths.position(object_paths.group_folder("kinesis", "a" * long), "p" * long)
        run_sync(store.compare_and_swap(path, b"{}", None))
        assert run_sync(store.get(path)).data == b"{}"
    written = max(len(path.name) for path in (tmp_path / "root").rglob("*"))
    assert written + len("." + "." + "0" * 16 + ".tmp") <= 255


HIDING = DataKeys("00" * 16, bytes(range(32)), 3, hides_names=True)
OTHER = DataKeys("00" * 16, bytes(range(1, 33)), 3, hides_names=True)
ID = CheckpointId.parse("0000000042-1a2b3c4d")
TEXTS = st.text(min_size=1, max_size=40).filter(lambda text: all(ord(c) < 0xD800 or ord(c) > 0xDFFF for c in text))


@st.composite
def logical_paths(draw: st.DrawFn) -> str:
    part = object_paths.encode_part
    match draw(st.integers(0, 4)):
        case 0:
            name = object_paths.encode_name(
                "operator", draw(st.text("ab.Äß~ %-_", min_size=1, max_size=20).map("x".__add__))
            )
            return f"artifacts/{name}/{draw(st.integers(0, 99))}/{ID}.snapshot.{'a' * 64}.raw"
        case 1:
            return object_paths.ownership(object_paths.group_folder("kinesis", draw(TEXTS)))
        case 2:
            return object_paths.position(
                object_paths.group_folder("eventhub", *(draw(TEXTS) for _ in "abc")), draw(TEXTS)
            )
        case 3:
            return draw(st.sampled_from([object_paths.FOLLOWERS, object_paths.LATEST, f"manifests/{ID}.json"]))
        case _:
            return f"{object_paths.CONSUMERS}{'/'.join(part(draw(TEXTS)) for _ in range(3))}"


@given(logical_paths())
def test_every_path_is_found_again_and_by_these_keys_alone(path: str) -> None:
    try:
        stored = HIDING.stored_path(path)
    except IllegalArgumentError:
        return
    assert HIDING.logical_path(stored) == path
    for number, char in enumerate(path):
        if char == "/":
            folder = path[: number + 1]
            assert stored.startswith(HIDING.names.stored_prefix(folder)), "so a folder can be listed"
            assert HIDING.names.logical_folder(HIDING.names.stored_prefix(folder)) == folder
    cut = path.partition(".snapshot.")[0]  # nobody lists by a part of a digest
    assert stored.startswith(HIDING.names.stored_prefix(cut[: len(cut) // 2]))
    if not path.startswith(("manifests/", "_latest")):
        assert OTHER.logical_path(stored) is None


@pytest.mark.parametrize(
    "stored",
    [
        "progress/kinesis/orders/ownership.json",
        "progress/x.json",
        "progress/" + "A" * 40,
        "progress/" + "A" * 41 + ".json",
        "progress/ä.json",
        f"artifacts/totals/0/{ID}.snapshot.{'a' * 96}.raw.enc3",
        f"artifacts/totals/0/{ID}.snapshot.{'a' * 64}.raw",
    ],
)
def test_a_name_that_somebody_planted_is_no_part_of_the_root(stored: str) -> None:
    assert HIDING.logical_path(stored) is None


@given(
    st.text(max_size=30), st.sampled_from(["", "progress/", "artifacts/", "manifests/"]), st.sampled_from(["", ".enc3"])
)
def test_no_name_that_somebody_planted_stops_a_listing(text: str, folder: str, suffix: str) -> None:
    stored = folder + text + suffix
    assert HIDING.logical_path(stored) in (None, stored)
    assert HIDING.names.is_outdated(stored) in (False, True)


def test_the_same_name_in_two_places_has_two_texts_and_no_part_can_be_moved() -> None:
    one, other = (HIDING.stored_path(object_paths.ownership(object_paths.group_folder("kinesis", g))) for g in "ab")
    assert one.split("/")[1] == other.split("/")[1], "the same folder"
    assert one.split("/")[3] != other.split("/")[3], "the same name in two groups"
    moved = "/".join([*one.split("/")[:3], other.split("/")[3]])
    assert HIDING.logical_path(moved) is None


def test_one_object_has_one_stored_path() -> None:
    """The last character of a text has bits that say nothing: two texts with the same name would be two objects."""
    stored = HIDING.stored_path("progress/kinesis/orders/ownership.json")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    text = stored.split("/")[1]
    assert len(text) % 4
    twin = text[:-1] + alphabet[alphabet.index(text[-1]) ^ 1]
    for other in (twin, text + "=", text + "!"):
        assert HIDING.logical_path(stored.replace(text, other)) is None
        assert HIDING.names.logical_folder(f"progress/{other}/") is None


def test_keys_that_travel_to_tasks_are_whole() -> None:
    assert pickle.loads(pickle.dumps(HIDING)) == HIDING
    assert pickle.loads(pickle.dumps(HIDING)).stored_path("progress/x.json") == HIDING.stored_path("progress/x.json")


def test_a_new_root_records_it(key: str) -> None:
    for text, hides in ((key, False), (f"hide-names:{key}", True)):
        store = open_store(f"memory://{secrets.token_hex(8)}")
        assert run_sync(create_keys(store, parse_provider(text))).hides_names == hides
        assert (b'"hides_names":true' in run_sync(store.get(KEYS)).data) == hides


def test_nobody_who_writes_the_keys_makes_a_client_show_names(tmp_path: Path) -> None:
    (tmp_path / "state.key").write_text(secrets.token_hex(32))
    key = f"key-file:{tmp_path / 'state.key'}"
    for told in (f"hide-names:{key}", key):
        root = tmp_path / told.partition(":")[0]
        with Checkpointer(root, encryption=told).begin() as cp:
            cp.save("totals", KeyedState({"x": 1}))
        found = decode_keys((root / KEYS).read_bytes())
        [present] = found.generations
        forged = replace(found, generations=(replace(present, hides_names=not present.hides_names),))
        (root / KEYS).write_bytes(encode_keys(forged))
        with pytest.raises(InvalidStateError, match="does not open the keys of this root"):
            Checkpointer(root, encryption=key).restore()
