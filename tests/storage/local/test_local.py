"""Behaviour of local folders alone: durability, disks, rights, links, mounts and the files of dead writers."""

import asyncio
import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, runtime
from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import (
    ListedObject,
    ObjectExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    Store,
    compare_and_swap,
    open_store,
    request_path,
)
from pyspark_checkpointer.storage.base import WriteLeftover
from pyspark_checkpointer.storage.local import files, locks, mounts
from pyspark_checkpointer.storage.local.locks import locked
from pyspark_checkpointer.storage.local.store import LocalStore
from pyspark_checkpointer.storage.local.walk import FileWalk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "jobs" / "orders"


@pytest.fixture
def local(root: Path) -> Store:
    return open_store(root)


def modes(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): oct(stat.S_IMODE(path.stat().st_mode)) for path in [root, *root.rglob("*")]}


def test_a_root_is_a_path_a_string_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    spellings = ["here", "./here/", Path("here"), tmp_path / "here", f"file://{tmp_path}/here", "~/here"]
    spellings += [f"file:{tmp_path}/here", f"local://{tmp_path}/here/"]
    stores = [open_store(spelling) for spelling in spellings]
    assert {store.url for store in stores} == {str(tmp_path / "here")}
    monkeypatch.chdir("/")  # a relative root means the folder of the moment it was named
    run_sync(stores[0].put("x", b"1"))
    assert run_sync(stores[3].get("x")).data == b"1"
    assert repr(stores[0]) == f"<LocalStore {tmp_path}/here>"


def test_opening_and_reading_make_nothing(root: Path, local: Store) -> None:
    assert run_sync(local.list("")) == []
    with pytest.raises(ObjectNotFoundError):
        run_sync(local.get("_latest"))
    run_sync(local.delete(["x"]))
    assert not root.parent.exists()


def test_only_the_owner_may_read(root: Path, local: Store) -> None:
    previous = os.umask(0)  # so that a mode that is left out shows
    try:
        run_sync(local.put("artifacts/a/0/x", b"1"))
        run_sync(local.compare_and_swap("_latest", b"1", None))
    finally:
        os.umask(previous)
    assert modes(root.parent) == {
        ".": "0o700",
        "orders": "0o700",
        "orders/.lock": "0o600",
        "orders/_latest": "0o600",
        "orders/artifacts": "0o700",
        "orders/artifacts/a": "0o700",
        "orders/artifacts/a/0": "0o700",
        "orders/artifacts/a/0/x": "0o600",
    }


def test_everything_is_synced_before_it_is_promised(root: Path, local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def fsync(fd: int) -> None:
        steps.append("fsync " + os.readlink(f"/proc/self/fd/{fd}"))

    def noting(name: str) -> Callable[..., None]:
        call = getattr(os, name)

        def note(*arguments: Any, **options: Any) -> None:
            call(*arguments, **options)
            steps.append(f"{name} {arguments[1] if name != 'mkdir' else arguments[0]}")

        return note

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("link", "rename", "mkdir"):
        monkeypatch.setattr(os, name, noting(name))

    def plain() -> list[str]:
        shown = [step.replace(str(root.parent.parent), "") for step in steps]
        steps.clear()
        return ["fsync <temporary>" if step.endswith(".tmp") else step for step in shown]

    run_sync(local.put("artifacts/x", b"1"))
    assert plain() == [
        "mkdir /jobs",
        "fsync ",
        "mkdir /jobs/orders",
        "fsync /jobs",
        "mkdir /jobs/orders/artifacts",
        "fsync /jobs/orders",
        "fsync <temporary>",
        "link /jobs/orders/artifacts/x",
        "fsync /jobs/orders/artifacts",
    ]
    run_sync(local.put("artifacts/y", b"1"))
    assert plain() == ["fsync <temporary>", "link /jobs/orders/artifacts/y", "fsync /jobs/orders/artifacts"]
    run_sync(local.compare_and_swap("_latest", b"1", None))
    assert plain() == ["fsync <temporary>", "rename /jobs/orders/_latest", "fsync /jobs/orders"]
    # Somebody else may have made these folders a moment ago, and not have synced them yet.
    run_sync(open_store(root).put("artifacts/z", b"1"))
    assert plain() == [
        "fsync /jobs",
        "fsync /jobs/orders",
        "fsync <temporary>",
        "link /jobs/orders/artifacts/z",
        "fsync /jobs/orders/artifacts",
    ]
    with pytest.raises(ObjectExistsError):  # it may be ours, from an attempt whose last fsync failed
        run_sync(local.put("artifacts/x", b"1"))
    assert plain() == ["fsync <temporary>", "fsync /jobs/orders/artifacts"]


def failing(name: str, code: int, only: Callable[[str], bool] = lambda target: True) -> Callable[..., Any]:
    call = getattr(os, name)

    def fail(*arguments: Any, **options: Any) -> Any:
        target = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else str(arguments[-1])
        if only(target):
            raise OSError(code, os.strerror(code))
        return call(*arguments, **options)

    return fail


@pytest.mark.parametrize(
    ("call", "code", "expected"),
    [
        ("fsync", errno.ENOSPC, InvalidStateError),
        ("fsync", errno.EDQUOT, InvalidStateError),
        ("fsync", errno.EIO, InvalidStateError),
        ("link", errno.EACCES, InvalidStateError),
        ("link", errno.EROFS, InvalidStateError),
        ("mkdir", errno.ENOSPC, InvalidStateError),
        ("mkdir", errno.EACCES, InvalidStateError),
        ("open", errno.EMFILE, DependencyError),
        ("open", errno.ENFILE, DependencyError),
        ("open", errno.ENOMEM, DependencyError),
    ],
)
def test_a_failed_put_names_the_file_and_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, expected: type[CheckpointError]
) -> None:
    store = LocalStore(str(root))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(call, code))
        with pytest.raises(expected, match=f"{root}/artifacts/x: {os.strerror(code)}"):
            run_sync(store.put("artifacts/x", b"1"))
    assert run_sync(store.list("")) == []
    assert list(run_sync(store.leftovers())) == []
    run_sync(store.put("artifacts/x", b"1"))


@pytest.mark.parametrize(
    ("call", "code", "where", "expected"),
    [
        ("fsync", errno.ENOSPC, ".tmp", StoreRefusedError),
        ("rename", errno.ENOSPC, "", StoreRefusedError),
        ("rename", errno.EACCES, "", StoreRefusedError),
        ("rename", errno.EIO, "", OutcomeUnknownError),
        ("fsync", errno.EIO, "orders", OutcomeUnknownError),
        ("fsync", errno.ENOSPC, "orders", OutcomeUnknownError),
    ],
)
def test_a_swap_that_may_have_happened_is_not_called_a_failure(
    root: Path,
    local: Store,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    code: int,
    where: str,
    expected: type[CheckpointError],
) -> None:
    version = run_sync(local.compare_and_swap("_latest", b"1", None))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(call, code, lambda target: target.endswith(where)))
        with pytest.raises(CheckpointError, match=f"{root}/_latest") as raised:
            run_sync(local.compare_and_swap("_latest", b"2", version))
    assert type(raised.value) is expected
    assert os.strerror(code) in str(raised.value)
    assert list(run_sync(local.leftovers())) == []
    if expected is not OutcomeUnknownError:
        assert run_sync(local.get("_latest")).version == version


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_where_files_cannot_be_linked_they_are_renamed(
    local: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", failing("link", code))
    run_sync(local.put("x", b"1"))
    with pytest.raises(ObjectExistsError):
        run_sync(local.put("x", b"2"))
    assert run_sync(local.get("x")).data == b"1"
    assert list(run_sync(local.leftovers())) == []


def test_the_whole_root_may_be_removed_under_a_running_store(root: Path, local: Store) -> None:
    run_sync(local.put("artifacts/x", b"1"))
    run_sync(local.compare_and_swap("_latest", b"1", None))
    subprocess.run(["rm", "-r", root.parent], check=True)
    run_sync(local.put("artifacts/x", b"2"))
    run_sync(local.compare_and_swap("_latest", b"2", None))
    subprocess.run(["rm", "-r", root.parent], check=True)
    run_sync(local.compare_and_swap("_latest", b"3", None))
    assert run_sync(local.list("")) == [ListedObject("_latest", 1)]


@pytest.mark.parametrize("blocked", ["jobs/orders", "jobs"])
def test_a_root_that_is_a_file(tmp_path: Path, local: Store, blocked: str) -> None:
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("a file")
    for call in (
        local.get("_latest"),
        local.get_range("_latest", 0, 1),
        local.put("artifacts/x", b"1"),
        local.compare_and_swap("_latest", b"1", None),
        local.list(""),
    ):
        with pytest.raises(IllegalArgumentError, match=f"{tmp_path / blocked}: is a file; the root of a store is"):
            run_sync(call)
    run_sync(local.delete(["x"]))
    assert (tmp_path / blocked).read_text() == "a file"


def test_a_file_in_the_place_of_a_folder(root: Path, local: Store) -> None:
    root.mkdir(parents=True)
    (root / "artifacts").write_text("a file")
    with pytest.raises(InvalidStateError, match=r"artifacts/x: .*expected a folder and found a file"):
        run_sync(local.put("artifacts/x", b"1"))
    with pytest.raises(ObjectNotFoundError):
        run_sync(local.get("artifacts/x"))


def test_links_do_not_lead_out_of_the_root(tmp_path: Path, root: Path, local: Store) -> None:
    outside = tmp_path / "outside"
    (outside / "a").mkdir(parents=True)
    (outside / "a/x").write_text("secret")
    root.mkdir(parents=True)
    (root / "artifacts").symlink_to(outside)
    (root / "manifests").symlink_to("../../outside")
    for folder in ("artifacts", "manifests"):
        for call in (
            local.get(f"{folder}/a/x"),
            local.get_range(f"{folder}/a/x", 0, 1),
            local.put(f"{folder}/a/y", b"1"),
            local.compare_and_swap(f"{folder}/a/x", b"1", None),
            local.delete([f"{folder}/a/x"]),
            local.list(f"{folder}/a/"),
        ):
            with pytest.raises(InvalidStateError, match="a symbolic link on the way leads out of the root"):
                run_sync(call)
    assert run_sync(local.list("")) == []
    assert [path.name for path in outside.rglob("*")] == ["a", "x"]


def test_an_object_is_never_a_link(tmp_path: Path, root: Path, local: Store) -> None:
    (tmp_path / "secret").write_text("secret")
    root.mkdir(parents=True)
    (root / "x").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidStateError, match="x: is a symbolic link"):
        run_sync(local.get("x"))
    with pytest.raises(ObjectExistsError):
        run_sync(local.put("x", b"1"))
    run_sync(local.delete(["x"]))
    assert (tmp_path / "secret").read_text() == "secret"
    os.mkfifo(root / "x")
    with pytest.raises(InvalidStateError, match="x: is not a regular file"):
        run_sync(local.get("x"))


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    store = open_store(tmp_path / "root")
    run_sync(store.put("artifacts/x", b"1"))
    assert (tmp_path / "disk/artifacts/x").read_bytes() == b"1"


@pytest.mark.parametrize("name", [".lock", ".x.0123456789abcdef.tmp", "artifacts/.x.0123456789abcdef.tmp"])
def test_the_stores_own_names_are_no_objects(root: Path, local: Store, name: str) -> None:
    (root / name).parent.mkdir(parents=True)
    (root / name).write_text("own")
    assert run_sync(local.list("")) == []
    for call in (local.get(name), local.put(name, b"1"), local.delete([name])):
        with pytest.raises(IllegalArgumentError, match="this name is kept for the store's own files"):
            run_sync(call)


def test_leftovers_name_their_object_and_can_be_discarded(root: Path, local: Store) -> None:
    run_sync(local.put("artifacts/a.b/x", b"1"))
    run_sync(local.compare_and_swap("_latest", b"1", None))
    one = Path(files.write_temporary(str(root / "artifacts/a.b/y.raw"), b"half"))
    other = Path(files.write_temporary(str(root / "_latest"), b"half"))
    found = run_sync(local.leftovers())
    assert {leftover.path for leftover in found} == {"artifacts/a.b/y.raw", "_latest"}
    assert run_sync(local.list("")) == [ListedObject("_latest", 1), ListedObject("artifacts/a.b/x", 1)]
    run_sync(local.discard(found))
    run_sync(local.discard(found))
    assert not one.exists()
    assert not other.exists()
    with pytest.raises(IllegalArgumentError, match="is no temporary file"):
        run_sync(local.discard([WriteLeftover("_latest", "_latest")]))
    assert run_sync(local.get("_latest")).data == b"1"


def test_a_lock_that_is_not_given_back_is_not_waited_for_for_ever(root: Path) -> None:
    store = LocalStore(str(root), timeout=0.2)
    version = run_sync(store.compare_and_swap("_latest", b"1", None))
    with (
        locked(str(root / ".lock"), 1.0),
        pytest.raises(DependencyError, match=rf"{root}/.lock: not free for 0.16 s, .*: process {os.getpid()} of "),
    ):
        run_sync(store.compare_and_swap("_latest", b"2", version))
    run_sync(store.compare_and_swap("_latest", b"2", version))


def test_a_swap_that_the_disk_is_slow_to_confirm_is_not_proven_by_its_bytes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, slow, sync = LocalStore(str(root), timeout=0.2), threading.Event(), files.sync_folder
    version = run_sync(local.compare_and_swap("_latest", b"1", None))
    monkeypatch.setattr(files, "sync_folder", lambda folder: (slow.wait(30), sync(folder)))

    async def no_pause(_: float) -> None:
        pass

    limited = request_path.LimitedStore(local, concurrency=4, timeout=0.2)
    store = request_path.RetryingStore(limited, sleep=no_pause)
    try:
        with pytest.raises(compare_and_swap.UndecidedError):
            run_sync(compare_and_swap.swap_until_decided(store, "_latest", b"2", version, 100))
        assert (root / "_latest").read_bytes() == b"2"
    finally:
        slow.set()
    assert run_sync(local.get("_latest")).data == b"2"


def test_a_swap_that_the_disk_failed_to_confirm_is_proven_once_it_does(
    root: Path, local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = run_sync(local.compare_and_swap("_latest", b"1", None))

    def fails(folder: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), folder)

    with monkeypatch.context() as broken:
        broken.setattr(files, "sync_folder", fails)
        with pytest.raises(OutcomeUnknownError, match="was replaced, but"):
            run_sync(local.compare_and_swap("_latest", b"2", version))
        for _ in range(2):
            with pytest.raises(InvalidStateError, match="the disk failed"):
                run_sync(local.get("_latest"))
    assert run_sync(local.get("_latest")).data == b"2"
    with monkeypatch.context() as later:
        later.setattr(files, "sync_folder", fails)
        version = run_sync(local.get("_latest")).version
        with pytest.raises(OutcomeUnknownError, match="was replaced, but"):
            run_sync(local.compare_and_swap("_latest", b"3", version))
    shutil.rmtree(root)
    with pytest.raises(ObjectNotFoundError):
        run_sync(local.get("_latest"))


def test_a_swap_that_has_written_its_file_keeps_it_while_others_discard(
    root: Path, local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleanup has listed the file, and waits for the lock before it removes it."""
    version = run_sync(local.compare_and_swap("_latest", b"1", None))
    write, lock = files.write_temporary, locks.locked
    written, waits, go_on = threading.Event(), threading.Event(), threading.Event()

    def slow(target: str, data: Bytes) -> str:
        temporary = write(target, data)
        written.set()
        assert go_on.wait(30)
        return temporary

    def noting(path: str, timeout: float) -> AbstractContextManager[None]:
        if written.is_set():
            waits.set()
        return lock(path, timeout)

    monkeypatch.setattr(files, "write_temporary", slow)
    monkeypatch.setattr(locks, "locked", noting)
    cleaner = LocalStore(str(root))
    with ThreadPoolExecutor() as pool:
        swapping = pool.submit(run_sync, local.compare_and_swap("_latest", b"2", version))
        assert written.wait(30)
        found = run_sync(cleaner.leftovers())
        assert [leftover.path for leftover in found] == ["_latest"]
        discarding = pool.submit(run_sync, cleaner.discard(found))
        discarding.add_done_callback(lambda _: waits.set())
        assert waits.wait(30)
        go_on.set()
        assert swapping.result() == run_sync(local.get("_latest")).version
        discarding.result()
    assert run_sync(local.get("_latest")).data == b"2"


@pytest.mark.parametrize(("fencing", "late"), [(True, "given up"), (False, "given up"), (False, "overtaken")])
def test_a_swap_that_took_too_long_overwrites_nothing_later(
    root: Path, fencing: bool, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, other = LocalStore(str(root), fencing=fencing, timeout=5), LocalStore(str(root), fencing=False)
    version = run_sync(local.compare_and_swap("_latest", b"1", None))
    write, reached, go_on = files.write_temporary, threading.Event(), threading.Event()

    def slow(target: str, data: Bytes) -> str:
        temporary = write(target, data)
        if bytes(data) == b"slow":
            reached.set()
            assert go_on.wait(30)
        return temporary

    monkeypatch.setattr(files, "write_temporary", slow)

    async def swap() -> None:
        swapping = asyncio.ensure_future(local.compare_and_swap("_latest", b"slow", version))
        await runtime.in_thread(reached.wait, 30)
        if late == "given up":
            swapping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await swapping
        else:
            await other.compare_and_swap("_latest", b"later", version)
        go_on.set()
        if late == "overtaken":
            with pytest.raises(PreconditionFailedError):
                await swapping

    run_sync(swap())
    while list(root.glob(".*.tmp")):  # its thread has not ended
        time.sleep(0.01)
    assert run_sync(local.get("_latest")).data == (b"1" if late == "given up" else b"later")


def test_only_the_deletion_of_what_would_be_alive_again_is_synced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local, synced = LocalStore(str(root)), list[str]()
    paths = ["progress/kinesis/app/positions/s.json", "artifacts/op/0/0000000001-aaaaaaaa.snapshot.zst"]
    for path in paths:
        run_sync(local.put(path, b"1"))
    monkeypatch.setattr(files, "sync_folder", synced.append)
    for path in paths:
        run_sync(local.delete([path, path]))
        assert not (root / path).exists()
    assert synced == [str((root / paths[0]).parent)]


def test_a_removed_lock_file_excludes_nobody_but_for_a_moment(root: Path, local: Store) -> None:
    run_sync(local.compare_and_swap("_latest", b"1", None))
    (root / ".lock").unlink()
    version = run_sync(local.get("_latest")).version
    run_sync(local.compare_and_swap("_latest", b"2", version))
    assert (root / ".lock").exists()


@pytest.mark.parametrize("options", [{"key": "x"}, {"anon": True}])
def test_options_that_a_folder_cannot_have(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(IllegalArgumentError, match="takes no storage_options"):
        open_store(tmp_path, options)


# --- mounts ---

TABLE = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /mnt rw - tmpfs tmpfs rw
31 30 0:41 / /mnt/data rw shared:2 master:1 - {kind} server:/export rw
32 31 0:42 / /mnt/data/disk rw - ext4 /dev/vdb rw
33 22 0:43 / /with\\040space rw - {kind} server:/export rw
34 22 0:44 / /twice rw - {kind} server:/export rw
35 22 0:45 / /twice rw - xfs /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("folder", "point"),
    [
        ("/mnt/data", "/mnt/data"),
        ("/mnt/data/jobs/orders", "/mnt/data"),
        ("/with space/jobs", "/with space"),
        ("/mnt/database", None),
        ("/mnt/data/disk/jobs", None),
        ("/twice/jobs", None),
        ("/home", None),
        ("/", None),
    ],
)
def test_the_nearest_mount_counts(folder: str, point: str | None) -> None:
    found = mounts.shared_mount(folder, TABLE.format(kind="nfs4"))
    assert found == (None if point is None else (point, "nfs4"))


SHARED = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "fuse",
    "fuse.sshfs",
    "fuse.s3fs",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "gpfs",
    "vboxsf",
    "beegfs",
]
OWN = ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuseblk", "apfs", "virtiofs", "f2fs"]


@pytest.mark.parametrize("kind", SHARED + OWN)
def test_kinds_of_mounts(kind: str) -> None:
    assert (mounts.shared_mount("/mnt/data", TABLE.format(kind=kind)) is not None) == (kind in SHARED)


@pytest.mark.parametrize("table", ["", "nonsense\n1 2 3 - \n - \n", "1 2 0:1 / /\n"])
def test_a_table_that_says_nothing_forbids_nothing(table: str) -> None:
    assert mounts.shared_mount("/mnt/data", table) is None


def test_a_network_mount_is_refused_for_writing(root: Path) -> None:
    def table() -> str:
        return f"1 1 0:1 / {root.parent.parent} rw - nfs4 server:/export rw\n"

    store = LocalStore(str(root), mount_table=table)
    assert run_sync(store.list("")) == []
    with pytest.raises(ObjectNotFoundError):
        run_sync(store.get("_latest"))
    for call in (store.put("x", b"1"), store.compare_and_swap("_latest", b"1", None), store.delete(["x"])):
        with pytest.raises(InvalidStateError, match=rf'{root}: is on a nfs4 mount .*fencing="none"'):
            run_sync(call)
    assert not root.exists()
    run_sync(LocalStore(str(root), mount_table=table, fencing=False).put("x", b"1"))


def test_this_system_has_a_table() -> None:
    assert mounts.file_system("/", mounts.system_table()) is not None


# --- disks and users that only root can make ---


def test_a_full_disk(small_disk: Path) -> None:
    store = open_store(small_disk / "root")
    version = run_sync(store.compare_and_swap("_latest", b"1", None))
    with pytest.raises(InvalidStateError, match=f"{small_disk}/root/big: No space left on device: free space there"):
        run_sync(store.put("big", bytes(4 << 20)))
    with pytest.raises(InvalidStateError, match="_latest: No space left on device"):
        run_sync(store.compare_and_swap("_latest", bytes(4 << 20), version))
    assert run_sync(store.list("")) == [ListedObject("_latest", 1)]
    assert list(run_sync(store.leftovers())) == []
    run_sync(store.put("small", b"1"))


def test_a_disk_that_is_read_only(small_disk: Path) -> None:
    store = open_store(small_disk / "root")
    version = run_sync(store.compare_and_swap("_latest", b"1", None))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for call in (store.put("x", b"1"), store.compare_and_swap("_latest", b"2", version), store.delete(["_latest"])):
        with pytest.raises(InvalidStateError, match="Read-only file system: mount it writable"):
            run_sync(call)
    assert run_sync(store.get("_latest")).data == b"1"


def open_to_nobody(path: Path) -> None:
    """Let every user pass through a folder and those above it."""
    for folder in [path, *path.parents]:
        if not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)


AS_NOBODY = """if True:
    import os, sys
    from pyspark_checkpointer.runtime import run_sync
    from pyspark_checkpointer.storage import open_store
    from pyspark_checkpointer.errors import InvalidStateError
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    for name, call in (
        ("theirs", lambda store: store.get("x")),
        ("theirs", lambda store: store.put("y", b"1")),
        ("theirs", lambda store: store.compare_and_swap("_latest", b"1", None)),
        ("theirs", lambda store: store.list("")),
        ("new", lambda store: store.put("y", b"1")),
    ):
        try:
            run_sync(call(open_store(sys.argv[1] + "/" + name)))
        except InvalidStateError as error:
            print(error)
"""


@pytest.mark.usefixtures("superuser")
def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    open_to_nobody(tmp_path)
    run_sync(open_store(tmp_path / "theirs").put("x", b"1"))
    program = [sys.executable, "-c", AS_NOBODY, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    for line in lines:
        assert line.startswith(str(tmp_path))
        assert "Permission denied: give user 65534 read and write access" in line


CLEAN_AS_NOBODY = """if True:
    import os, sys
    from datetime import timedelta
    from pyspark_checkpointer import Checkpointer, RetentionPolicy
    from pyspark_checkpointer.errors import InvalidStateError
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    client = Checkpointer(sys.argv[1] + "/root")
    for epoch in range(3):
        with client.begin(epoch=epoch) as cp:
            cp.snapshot("op", 0, b"%d" % epoch)
    print(client.clean(RetentionPolicy(keep_last=1, grace=timedelta(0))).deleted.objects)
    os.makedirs(sys.argv[1] + "/root/artifacts/closed")
    os.chmod(sys.argv[1] + "/root/artifacts/closed", 0)
    try:
        client.clean()
    except InvalidStateError as error:
        print(error)
"""


@pytest.mark.usefixtures("superuser")
def test_a_folder_that_no_object_can_be_in_need_not_be_readable(tmp_path: Path) -> None:
    """Such as `lost+found`, where the root is a whole disk."""
    open_to_nobody(tmp_path)
    (tmp_path / "root" / "lost+found").mkdir(parents=True)
    (tmp_path / "root" / "lost+found").chmod(0o700)
    os.chown(tmp_path / "root", 65534, 65534)
    program = [sys.executable, "-c", CLEAN_AS_NOBODY, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    deleted, said = done.stdout.splitlines()
    assert int(deleted) > 0
    assert said.startswith(f"{tmp_path}/root/artifacts/closed: Permission denied")


def test_a_walk_that_failed_does_not_look_like_one_that_ended() -> None:
    def steps() -> Iterator[tuple[str, int]]:
        yield "a", 1
        raise PermissionError("b")

    walk = FileWalk(steps())
    for _ in range(2):
        with pytest.raises(PermissionError):
            walk.take(10)
    given_up = FileWalk(iter([("a", 1)]))
    given_up.give_up(DependencyError("lost"))
    with pytest.raises(DependencyError, match="lost"):
        given_up.take(10)


def test_a_page_that_is_not_read_in_time_is_no_failure_of_the_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = threading.Event()

    def files_below(*_: object) -> Iterator[tuple[str, int]]:
        yield "a", 1
        slow.wait(30)
        yield "b", 1

    async def no_pause(_: float) -> None:
        pass

    monkeypatch.setattr("pyspark_checkpointer.storage.local.store._PAGE_SIZE", 1)
    monkeypatch.setattr("pyspark_checkpointer.storage.local.walk.files_below", files_below)
    monkeypatch.setattr(request_path, "ASSUMED_SIZE", 0)
    root.mkdir(parents=True)
    limited = request_path.LimitedStore(LocalStore(str(root)), concurrency=1, timeout=0.2)
    try:
        with pytest.raises(DependencyError, match="not read in time: list again"):
            run_sync(request_path.RetryingStore(limited, sleep=no_pause).list(""))
    finally:
        slow.set()


def test_what_one_call_cannot_read_is_in_memory_once(root: Path, local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reads a little less than 2 GiB at most; here it reads less than 64 MiB."""
    most, data = 60 << 20, os.urandom(1 << 20) * 64 + b"the end"
    run_sync(local.put("x", data))
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, most), offset))
    monkeypatch.setattr(files, "_MAX_READ", most)
    tracemalloc.start()
    try:
        read = run_sync(local.get("x")).data
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read == data
    assert peak < 1.5 * len(data)
    assert run_sync(local.get_range("x", 5, len(data))) == data[5:]


@pytest.mark.usefixtures("superuser")
def test_what_the_superuser_writes_belongs_to_the_owner_of_the_root(root: Path) -> None:
    """A cleanup with `sudo` must not lock the job of another user out."""
    root.mkdir(parents=True)
    os.chown(root, 65534, 65533)
    with Checkpointer(root) as client:
        for epoch in range(2):
            with client.begin(epoch=epoch) as cp:
                cp.snapshot("op", 0, bytes(300_000))
        client.savepoint("kept")
    os.chown(root / files.LOCK, 0, 0)  # it may be that of somebody else
    with Checkpointer(root) as client:
        client.delete_savepoint("kept")
    assert (root / files.LOCK).stat().st_uid == 0
    (root / files.LOCK).unlink()
    with Checkpointer(root) as client:
        client.savepoint("kept")
    found = [*root.rglob("*")]
    assert {"_latest", files.LOCK, "catalog"} <= {path.name for path in found}
    assert {(path.stat().st_uid, path.stat().st_gid) for path in found} == {(65534, 65533)}
