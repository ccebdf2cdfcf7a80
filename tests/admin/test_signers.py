"""A root that was begun without signatures is signed where it is, and no crash loses anything."""

import itertools
import secrets
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.admin.sign_root import _Adoption
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
    UnsupportedFormatError,
    UntrustedError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_text import SIGNED
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.signatures import signers
from pyspark_checkpointer.testing import crash_points
from pyspark_checkpointer.testing.faults import CrashError
from tests.conftest import Root
from tests.signing_keys import make_keys

States = dict[str, Any]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "owner.pem", tmp_path / "driver.pem", tmp_path / "other.pem")
    return tmp_path


def sign(root: Root, keys: Path, encryption: str | None = None) -> int:
    client = client_of(root, encryption=encryption)
    return client.change_signers(keys / "owner.pem", allow={keys / "driver.pub": ["commit", "consume"]}).version


def client_of(root: Root, signing: str | None = None, encryption: str | None = None) -> Checkpointer:
    return Checkpointer(root.url, root.storage_options, signing=signing, encryption=encryption)


def driver_of(root: Root, keys: Path, encryption: str | None = None) -> Checkpointer:
    return client_of(root, f"trust:{keys / 'owner.pub'},sign:{keys / 'driver.pem'}", encryption)


def fill(client: Checkpointer, commits: int = 4) -> None:
    """Write some checkpoints, a savepoint that retention leaves alone, and a prepared checkpoint."""
    state = KeyedState({f"user-{n}": n for n in range(50)}, partitions=2)
    for number in range(commits):
        state["user-0"] = number
        with client.begin(epoch=number) as cp:
            cp.save("totals", state)
        if number == 0:
            client.savepoint("first")
    client.clean(RetentionPolicy(keep_last=2))
    with client.begin(epoch=commits) as cp:
        cp.save("totals", state)
        cp.prepare()


def states(client: Checkpointer) -> States:
    """Return what every live checkpoint holds, by its id."""
    found: States = {}
    for listed in client.list_checkpoints():
        restored = client.restore(listed)
        assert restored is not None
        found[str(listed)] = restored.keyed("totals").to_dict(), restored.epoch
    return found | {"savepoints": [(one.name, one.id) for one in client.savepoints()]}


def paths(root: Root) -> list[str]:
    store = open_store(root.url, root.storage_options, fencing="none")
    return [entry.path for entry in run_sync(store.list(""))]


@pytest.mark.by_turns
@pytest.mark.parametrize("encrypted", [False, True])
def test_all_that_is_live_is_signed(any_root: Root, keys: Path, encrypted: bool) -> None:
    encryption = None
    if encrypted:
        (keys / "state.key").write_text(secrets.token_hex(32))
        encryption = f"key-file:{keys / 'state.key'}"
    fill(client_of(any_root, encryption=encryption))
    before = states(client_of(any_root, encryption=encryption))
    assert len(before) == 4
    with ShardLeases(any_root.url, "app", "me", any_root.storage_options, encryption=encryption) as leases:
        leases.create(["shard"])
    assert sign(any_root, keys, encryption) == 2
    driver = driver_of(any_root, keys, encryption)
    assert states(driver) == before
    assert driver.verify().findings == ()
    assert not [path for path in paths(any_root) if object_paths.is_manifest(path.removesuffix(".enc"))]
    signing = f"trust:{keys / 'owner.pub'},sign:{keys / 'driver.pem'}"
    given: dict[str, Any] = {"encryption": encryption, "signing": signing}
    with ShardLeases(any_root.url, "app", "me", any_root.storage_options, **given) as leases:
        assert [*leases.rows()] == ["shard"]
        leases.create(["shard-2"])
    for use in (lambda: client_of(any_root, None, encryption).restore(), lambda: client_of(any_root).begin()):
        with pytest.raises(UnsupportedFormatError, match=r"is (signed|encrypted): say"):
            use()
    prepared = driver.restore().prepared  # type: ignore[union-attr]
    assert prepared is not None
    prepared.commit()
    with driver.begin(epoch=9) as cp:
        cp.save("totals", KeyedState({"new": 1}))
    assert driver_of(any_root, keys, encryption).restore().keyed("totals").to_dict() == {"new": 1}  # type: ignore[union-attr]
    assert sign(any_root, keys, encryption) == 2, "nothing changed"


def test_the_objects_of_what_was_retired_lately_stay_for_their_readers(keys: Path) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    client = client_of(root)
    for number in range(5):
        with client.begin(epoch=number) as cp:
            cp.snapshot("sums", 0, b"%d" % number)
    hour = RetentionPolicy(keep_last=1, grace=timedelta(hours=1))
    client.clean(hour)
    waiting = client.plan(hour).total("later").objects
    assert waiting >= 8, "a manifest and an object each"
    before = objects(root)
    sign(root, keys)
    owner = client_of(root, f"sign:{keys / 'owner.pem'}")
    assert owner.plan(hour).total("later").objects == waiting
    owner.clean(hour)
    assert objects(root) == before
    assert owner.clean(RetentionPolicy(grace=timedelta(0))).deleted.objects == waiting
    assert len(objects(root)) == 1
    assert owner.verify().findings == ()


def objects(root: Root) -> list[str]:
    return [path for path in paths(root) if path.startswith(object_paths.ARTIFACTS)]


def test_a_crash_at_any_request_loses_nothing(keys: Path) -> None:
    """At each moment the root is the one without signatures or the signed one; the same call finishes the work."""
    names = itertools.count()
    before: States = {}

    def new_root() -> str:
        return f"memory://{secrets.token_hex(8)}-{next(names)}"

    def setup(url: str) -> None:
        fill(Checkpointer(url), commits=3)
        ShardLeases(url, "app", "me").create(["shard"])
        before[url] = states(Checkpointer(url))

    died = 0
    for point in crash_points(lambda url: sign(Root(url, {}, "memory"), keys), new_root, setup):
        died += point.died
        root, readable = Root(point.root, {}, "memory"), []
        for client in (client_of(root), driver_of(root, keys)):
            try:
                readable.append(states(client))
            except (UnsupportedFormatError, CorruptionError, InvalidStateError):
                continue
        assert readable == [before[point.root]], (point.number, point.after)
        sign(root, keys)
        assert states(driver_of(root, keys)) == before[point.root]
        assert driver_of(root, keys).verify()
        assert not [path for path in paths(root) if object_paths.is_manifest(path)]
        assert not driver_of(root, keys).signers().adopting
        with ShardLeases(root.url, "app", "me", signing=f"sign:{keys / 'owner.pem'}") as leases:
            assert [*leases.rows()] == ["shard"]
    assert died > 20


def test_a_crash_while_a_signer_is_revoked_loses_nothing(keys: Path) -> None:
    names = itertools.count()

    def new_root() -> str:
        return f"memory://{secrets.token_hex(8)}-{next(names)}"

    def setup(url: str) -> None:
        root = Root(url, {}, "memory")
        sign(root, keys)
        fill(driver_of(root, keys), commits=3)
        signing = f"trust:{keys / 'owner.pub'},sign:{keys / 'driver.pem'}"
        ShardLeases(url, "app", "me", signing=signing).create(["shard"])

    def revoke(url: str) -> None:
        Checkpointer(url).change_signers(keys / "owner.pem", revoke=["driver"])

    for point in crash_points(revoke, new_root, setup):
        root = Root(point.root, {}, "memory")
        reader = client_of(root, f"sign:{keys / 'owner.pem'}")
        assert len(states(reader)) == 4
        assert reader.verify()
        with ShardLeases(root.url, "app", "me", signing=f"sign:{keys / 'owner.pem'}") as leases:
            assert [*leases.rows()] == ["shard"]
        [driver] = reader.signers().signers.values()
        if driver.through is None:
            revoke(point.root)
        with pytest.raises(CheckpointError), driver_of(root, keys).begin() as cp:
            cp.save("totals", KeyedState({"late": 1}))
        assert len(states(reader)) == 4


@pytest.mark.parametrize(("commits", "has_old_copy"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("work", ["sign", "encrypt"])
def test_what_a_lost_pointer_does_not_lead_to_is_not_deleted(
    keys: Path, commits: int, has_old_copy: bool, work: str
) -> None:
    """Signing or encrypting a root deletes what `_latest` does not lead to: a repair has to come first."""
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    store = open_store(root.url)

    def write(number: int) -> None:
        with client_of(root).begin(epoch=number) as cp:
            cp.save("totals", KeyedState({"n": number}))

    write(0)
    old = run_sync(store.get(object_paths.LATEST)).data
    for number in range(1, commits):
        write(number)
    run_sync(store.delete([object_paths.LATEST]))
    if has_old_copy:
        run_sync(store.compare_and_swap(object_paths.LATEST, old, None))
    before = sorted(paths(root))
    (keys / "state.key").write_text(secrets.token_hex(32))
    with pytest.raises(InvalidStateError, match="checkpointer repair"):
        if work == "sign":
            sign(root, keys)
        else:
            client_of(root).encrypt(f"key-file:{keys / 'state.key'}")
    assert sorted(paths(root)) == before
    client = client_of(root)
    client.repair(client.repair_candidates()[0].id)
    assert client_of(root).restore().keyed("totals").to_dict() == {"n": commits - 1}  # type: ignore[union-attr]
    if work == "sign":
        sign(root, keys)
        assert driver_of(root, keys).restore().keyed("totals").to_dict() == {"n": commits - 1}  # type: ignore[union-attr]


def test_first_bytes_alone_do_not_have_the_originals_deleted(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who may put objects can write the first bytes of a signed `_latest`, while the root is being signed."""
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    fill(client_of(root))

    async def stops(adoption: object) -> None:
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(_Adoption, "_sign_commits", stops)
        with pytest.raises(CrashError):
            sign(root, keys)
    store, before = open_store(root.url), paths(root)
    latest = run_sync(store.get(object_paths.LATEST))
    planted = run_sync(store.compare_and_swap(object_paths.LATEST, SIGNED + b"x", latest.version))
    with pytest.raises(UntrustedError):
        sign(root, keys)
    assert paths(root) == before
    run_sync(store.compare_and_swap(object_paths.LATEST, latest.data, planted))
    sign(root, keys)
    assert driver_of(root, keys).verify()


def test_a_job_that_still_runs_without_signatures_is_stopped(keys: Path) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    job = client_of(root)
    with job.begin(epoch=1) as cp:
        cp.save("totals", KeyedState({"a": 1}))
    sign(root, keys)
    with pytest.raises((OutcomeUnknownError, UnsupportedFormatError)), job.begin() as cp:
        cp.save("totals", KeyedState({"zombie": 1}))
    assert driver_of(root, keys).restore().keyed("totals").to_dict() == {"a": 1}  # type: ignore[union-attr]


def test_what_cannot_be_is_refused(keys: Path) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    plain = client_of(root)

    def refused(kind: type[Exception], match: str, **given: Any) -> None:
        owner = given.pop("owner", keys / "owner.pem")
        with pytest.raises(kind, match=match):
            plain.change_signers(owner, **given)

    refused(IllegalArgumentError, "cannot be read", owner=keys / "nothing.pem")
    refused(IllegalArgumentError, "expected a private key of ed25519", owner=keys / "owner.pub")
    refused(IllegalArgumentError, "expected a key to sign with", owner=5)
    refused(IllegalArgumentError, "expected public keys of ed25519", allow={keys / "owner.pem": "commit"})
    refused(IllegalArgumentError, "expected some of commit, clean, consume", allow={keys / "driver.pub": "write"})
    refused(IllegalArgumentError, "expected some of commit, clean, consume", allow={keys / "driver.pub": []})
    refused(IllegalArgumentError, "is not signed, so there is nobody to revoke", revoke=["driver"])
    assert paths(root) == []
    with pytest.raises(IllegalArgumentError, match="was opened without signing"):
        plain.signers()
    with pytest.raises(InvalidStateError, match="is not signed"):
        driver_of(root, keys).signers()
    refusal = "has no list of signers, and this client has no key of an owner"
    with pytest.raises(InvalidStateError, match=refusal), driver_of(root, keys).begin() as cp:
        cp.save("totals", KeyedState({"a": 1}))
    assert sign(root, keys) == 1
    refused(IllegalArgumentError, "'nobody': is no signer: there are 'driver'", revoke=["nobody"])
    refused(IllegalArgumentError, "revoke it, and allow a new key", allow={keys / "driver.pub": "clean"})
    refused(UntrustedError, "no owner signed it", owner=keys / "other.pem", allow={keys / "other.pub": "commit"})
    (keys / "second").mkdir()
    make_keys(keys / "second" / "driver.pem")
    refused(IllegalArgumentError, "another signer has this name", allow={keys / "second" / "driver.pub": "commit"})


def test_who_is_revoked_is_named_too_where_a_name_is_mistyped(keys: Path) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    sign(root, keys)
    client_of(root).change_signers(keys / "owner.pem", revoke=["driver"])
    with pytest.raises(IllegalArgumentError, match="'drivr': is no signer: there are 'driver', revoked"):
        client_of(root).change_signers(keys / "owner.pem", revoke=["drivr"])


def test_a_second_owner_takes_over(keys: Path) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    sign(root, keys)
    both = keys / "both.pub"
    both.write_bytes((keys / "owner.pub").read_bytes() + (keys / "other.pub").read_bytes())
    driver = client_of(root, f"trust:{both},sign:{keys / 'driver.pem'}")
    with driver.begin() as cp:
        cp.save("totals", KeyedState({"a": 1}))
    client = client_of(root, f"trust:{both}")
    client.change_signers(keys / "other.pem", allow={keys / "driver.pub": ["commit", "clean", "consume"]})
    for trust, works in ((both, True), (keys / "other.pub", True), (keys / "owner.pub", False)):
        read: Callable[[], Any] = lambda trust=trust: client_of(root, f"trust:{trust}").restore()  # noqa: E731
        if works:
            assert read() is not None
        else:
            with pytest.raises(UntrustedError, match="no owner signed it"):
                read()


def test_a_second_owner_takes_over_what_the_first_one_signed(keys: Path) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    fill(client_of(root))
    client_of(root).restore().prepared.abort()  # type: ignore[union-attr]
    sign(root, keys)
    both = keys / "both.pub"
    both.write_bytes((keys / "owner.pub").read_bytes() + (keys / "other.pub").read_bytes())
    driver = client_of(root, f"trust:{both},sign:{keys / 'driver.pem'}")
    driver.restore()
    with driver.begin(epoch=9) as cp:
        cp.save("totals", KeyedState({"a": 3}))
    client, after = client_of(root, f"trust:{both}"), client_of(root, f"trust:{keys / 'other.pub'}")
    before = states(client)
    client.change_signers(keys / "other.pem", allow={keys / "owner.pub": ["commit", "clean", "consume"]})
    client.change_signers(keys / "other.pem", revoke=["owner"])
    assert states(after) == before
    assert after.verify()


def test_who_may_clean_does_not_get_to_commit_too(keys: Path) -> None:
    """Its `_latest` holds that of one who may commit, and nobody who may commit writes such a one."""
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    client_of(root).change_signers(
        keys / "owner.pem", allow={keys / "driver.pub": "commit", keys / "other.pub": "clean"}
    )
    fill(driver_of(root, keys))
    cleaner = client_of(root, f"trust:{keys / 'owner.pub'},sign:{keys / 'other.pem'}")
    cleaner.savepoint("late")
    owner = client_of(root, f"trust:{keys / 'owner.pub'}")
    before = states(owner)
    with pytest.raises(IllegalArgumentError, match="may clean, and its `_latest` would not count any more"):
        owner.change_signers(keys / "owner.pem", allow={keys / "other.pub": ["commit", "clean"]})
    assert states(owner) == before
    owner.change_signers(keys / "owner.pem", allow={keys / "other.pub": ["clean", "consume"]})
    assert states(owner) == before
    owner.change_signers(keys / "owner.pem", revoke=["other"])
    owner.change_signers(keys / "owner.pem", allow={keys / "other.pub": ["commit", "clean", "consume"]})
    assert states(owner) == before


def test_a_list_of_signers_that_nobody_could_read_is_not_written(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    assert sign(root, keys) == 1
    client = driver_of(root, keys)
    fill(client)
    make_keys(keys / "third.pem", keys / "fourth.pem")
    client.change_signers(keys / "owner.pem", allow={keys / f"{name}.pub": "consume" for name in ("other", "third")})
    before = states(client)
    monkeypatch.setattr(signers, "MAX_SIGNERS", len(run_sync(open_store(root.url).get(object_paths.SIGNERS)).data))
    with pytest.raises(IllegalArgumentError, match=r"_signers: would have \d+ bytes, and at most \d+ can be read"):
        client.change_signers(keys / "owner.pem", allow={keys / "fourth.pub": "consume"})
    for still in (client, driver_of(root, keys)):
        assert [one.name for one in still.signers().signers.values()] == ["driver", "other", "third"]
        assert states(still) == before


def test_files_of_others_do_not_look_like_signatures_of_the_root(keys: Path) -> None:
    root = Root(f"memory://{secrets.token_hex(8)}", {}, "memory")
    fill(client_of(root))
    inside = f"sub/{object_paths.manifest(client_of(root).list_checkpoints()[0])}.signed"
    for path in ("report.pdf.signed", inside):
        run_sync(open_store(root.url).put(path, b"mine"))
    assert sign(root, keys)
    assert driver_of(root, keys).restore()
