"""Store a root in a local folder.

An object appears under its name at once and whole: it is written to a temporary file in the same folder, and made
durable. Then it is linked (objects written once) or renamed (swapped objects) to its name. A swap holds the root's
lock, so that comparing and renaming are one step for every process of this host.
"""

import errno
import itertools
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import ParamSpec, TypeVar

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    IllegalArgumentError,
    OutcomeUnknownError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import Bytes, sha256
from pyspark_checkpointer.storage.base import (
    UNFENCED,
    Blob,
    ListedObject,
    ListingPage,
    ObjectExistsError,
    ObjectNotFoundError,
    PagedStore,
    PreconditionFailedError,
    Range,
    S,
    SinkRead,
    WriteLeftover,
    check_path,
    check_swap_size,
)
from pyspark_checkpointer.storage.local import files, locks, mounts, walk
from pyspark_checkpointer.storage.local.folders import DurableFolders

P = ParamSpec("P")
T = TypeVar("T")

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
"""Errors that say that a file system, or a file, takes no further hard link."""

_PAGE_SIZE = 1000
"""Files in one page of a listing."""

_READS_AT_ONCE = 8
"""Files that one thread reads into their sinks before it answers."""

_LOCK_SHARE = 0.8
"""Share of a request's time limit that it waits for the lock.

So the request gives up before it counts as unanswered.
"""


class LocalStore(PagedStore):
    """The store of the folder `root`, an absolute path.

    The first write makes the folder. Nobody but the owner may enter it, or read what is in it.
    """

    def __init__(
        self,
        root: str,
        *,
        fencing: bool = True,
        timeout: float = 60.0,
        mount_table: mounts.Table = mounts.system_table,
    ) -> None:
        self._root = root
        self._fencing = fencing
        self._timeout = timeout
        self._mount_table = mount_table
        self._may_write = not fencing
        """True if a write is allowed.

        Without fencing a write is always allowed; with fencing it is allowed after the check of the mount.
        """
        self._durable_folders = DurableFolders(root)
        self._unconfirmed: dict[threading.Event, str] = {}
        """The files of swaps that the disk has not confirmed, each with an event that is set when its swap has ended.

        A swap stays here if the disk failed to confirm it. Single operations need no lock between threads.
        """

    def __repr__(self) -> str:
        return f"<LocalStore {self._root}>"

    @property
    def url(self) -> str:
        return self._root

    @property
    def fencing(self) -> bool:
        return self._fencing

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return await self._run(path, self._get, path, limit)

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        # Sinks keep a processor busy: more threads than processors would only be in each other's way.
        return await self._answer(path, runtime.on_cpu(self._read_into, path, make, limit))

    @property
    def reads_at_once(self) -> int:
        return _READS_AT_ONCE

    async def read_each_into(self, reads: Sequence[SinkRead[S]]) -> list[S | CheckpointError]:
        # In one thread, since waking one takes as long as hashing half a MiB.
        return await runtime.on_cpu(lambda: [*map(self._read_or_error, reads)])

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return await self._run(path, self._get_range, path, offset, length)

    @property
    def reads_ranges(self) -> bool:
        return True

    async def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        return await self._run(path, self._get_ranges, path, ranges)

    async def put(self, path: str, data: Bytes) -> None:
        # Its thread goes on when it took too long. After a failed commit the object would take room for long.
        with runtime.set_when_cancelled() as given_up:
            await self._run(path, self._put, path, data, given_up)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        # Its thread goes on when it took too long. Without a lock it could overwrite what its caller writes then.
        with runtime.set_when_cancelled() as given_up:
            return await self._run(path, self._swap, path, data, expected, given_up)

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        steps = more if isinstance(more, walk.FileWalk) else walk.FileWalk(self._walk(prefix))
        try:
            found = await self._run(prefix, steps.take, _PAGE_SIZE)
        except BaseException:
            # A thread may still be reading this page.
            lost = f"{self._root}/{prefix}: a page of this listing was not read in time: list again from the beginning"
            steps.give_up(DependencyError(lost))
            raise
        entries = [ListedObject(path, size) for path, size in found if not files.is_hidden(path.rpartition("/")[2])]
        return ListingPage(entries, None if steps.ended else steps)

    async def folders(self, prefix: str) -> Sequence[str]:
        return sorted(await self._run(prefix, self._folders, prefix))

    async def delete(self, paths: Sequence[str]) -> None:
        await self._run("", self._delete, paths)

    async def leftovers(self) -> Sequence[WriteLeftover]:
        """Return the temporary files, each with the object that it should become.

        Without a lock nothing tells whether a swap still runs, so those of swapped objects are left out then.
        """
        found = await self._run("", lambda: [*self._leftovers()])
        return [leftover for leftover in found if self._may_discard(leftover)]

    async def discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        await self._run("", self._discard, leftovers)

    async def close(self) -> None:
        pass

    # --- what runs in a thread ---

    async def _run(self, path: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` in the pool of threads that wait for files."""
        return await self._answer(path, runtime.in_thread(function, *args, **kwargs))

    async def _answer(self, path: str, work: Awaitable[T]) -> T:
        """Return the result of work on a file.

        Errors of the system become errors of the tree.
        """
        try:
            return await work
        except OSError as error:
            raise self._translate(error, os.path.join(self._root, path)) from error

    def _translate(self, error: OSError, full: str) -> CheckpointError:
        # A listing is of the root, and one of its folders may be at fault.
        if isinstance(error, PermissionError) and str(error.filename).startswith(full):
            full = str(error.filename)
        # The root, or a folder above it, is a file: a mistake of the user and no failure of the store.
        if error.errno in (errno.ENOTDIR, errno.EEXIST) and (file := _file_above(self._root)):
            return IllegalArgumentError(f"{file}: is a file; the root of a store is a folder")
        return files.translate(error, full)

    @contextmanager
    def _finding(self, path: str) -> Iterator[None]:
        """Turn the system's error for a missing file into `ObjectNotFoundError`."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            if _file_above(self._root):  # no root at all: that is another error than a missing object
                raise
            raise ObjectNotFoundError(f"{os.path.join(self._root, path)}: not found") from None

    def _locate(self, path: str) -> str:
        """Return the path of an object's file.

        Refuse it where a symbolic link on the way leads out of the root.
        """
        if files.is_hidden(check_path(path).rpartition("/")[2]):
            raise IllegalArgumentError(f"{path!r:.200}: this name is kept for the store's own files")
        full = os.path.join(self._root, path)
        # The root itself may be a link, so only what is below it is looked at. `realpath` asks for each part of a path:
        # it is called only where there is a link at all.
        folders = itertools.accumulate(path.split("/")[:-1], os.path.join, initial=self._root)
        if any(map(os.path.islink, itertools.islice(folders, 1, None))) and not _is_inside(full, self._root):
            raise StoreRefusedError(f"{full}: a symbolic link on the way leads out of the root; move it away")
        return full

    def _get(self, path: str, limit: int | None) -> Blob:
        target = self._locate(path)
        # A swap that took too long may still wait for the disk in its thread. Whoever reads its bytes back would take
        # that for the proof that it took effect.
        swaps = [ended for ended, swapped in self._unconfirmed.copy().items() if swapped == target]
        if not all(ended.wait(self._timeout * _LOCK_SHARE) for ended in swaps):
            raise DependencyError(f"{target}: was replaced, but the disk has not confirmed it yet")
        if any(ended in self._unconfirmed for ended in swaps):
            with suppress(FileNotFoundError, NotADirectoryError):
                files.sync_folder(os.path.dirname(target))
            for ended in swaps:
                self._unconfirmed.pop(ended, None)
        with self._finding(path):
            return Blob(files.read(target, limit))

    def _read_into(self, path: str, make: Callable[[], S], limit: int | None) -> S:
        sink = make()
        with self._finding(path):
            for piece in files.pieces(self._locate(path), limit):
                sink.update(piece)
        return sink

    def _read_or_error(self, read: SinkRead[S]) -> S | CheckpointError:
        try:
            return self._read_into(read.path, read.make, read.limit)
        except CheckpointError as error:
            return error
        except OSError as error:
            return self._translate(error, os.path.join(self._root, read.path))

    def _get_range(self, path: str, offset: int, length: int) -> bytes:
        return self._get_ranges(path, [(offset, length)])[0]

    def _get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        with self._finding(path):
            return files.read_ranges(self._locate(path), ranges)

    def _put(self, path: str, data: Bytes, given_up: threading.Event) -> None:
        target = self._locate(path)
        folder = os.path.dirname(target)
        self._prepare_write(folder)
        # A crash leaves the temporary file behind: alone, or beside the object, which is whole.
        temporary = files.write_temporary(target, data)
        try:
            if given_up.is_set():
                return
            self._publish(temporary, target)
        except FileExistsError:
            # It may be our own, from an earlier attempt that could not make its name durable.
            files.sync_folder(folder)
            raise ObjectExistsError(f"{target}: exists already") from None
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        files.sync_folder(folder)

    def _publish(self, temporary: str, target: str) -> None:
        """Give a temporary file its name. Raise `FileExistsError` where the name is taken."""
        try:
            # Unlike a rename, a link fails where the name is taken: so it creates the object only if it is absent, in
            # one step.
            os.link(temporary, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A rename would replace a file of that name, so only the lock keeps a second writer out.
            with self._lock():
                if os.path.lexists(target):
                    raise FileExistsError(target) from None
                os.rename(temporary, target)

    def _swap(self, path: str, data: bytes, expected: str | None, given_up: threading.Event) -> str:
        """Compare and rename under the lock of the root. Return the new version."""
        target = self._locate(path)
        check_swap_size(target, data)
        self._prepare_write(os.path.dirname(target))
        with self._lock():
            # The digest of the content is the version (SPEC.md, "Stores"): the nonce in each pointer makes it unique.
            if self._current(target) != expected:
                raise PreconditionFailedError(f"{target}: was changed by somebody else")
            # Written under the lock, so that `discard` can tell the files of dead writers.
            temporary = files.write_temporary(target, data)
            # Before the swap looks whether its caller still waits: one that does not finds the event, and waits for it.
            ended = threading.Event()
            self._unconfirmed[ended] = target
            try:
                # Without the lock others write meanwhile, and the disk may have taken long.
                if given_up.is_set() or (not self._fencing and self._current(target) != expected):
                    raise PreconditionFailedError(f"{target}: was changed by somebody else")
                files.replace(temporary, target)
            except OutcomeUnknownError:
                raise  # It stays: others read what a crash may still undo.
            except BaseException:
                del self._unconfirmed[ended]
                raise
            else:
                self._unconfirmed.pop(ended, None)
            finally:
                ended.set()
                with suppress(OSError):
                    os.unlink(temporary)
        return sha256(data)

    def _current(self, target: str) -> str | None:
        """Return the version of a file; None where there is none."""
        try:
            return Blob(files.read(target, None)).version
        except FileNotFoundError:
            return None

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock of the root for the block; without fencing, nothing is locked."""
        lock = os.path.join(self._root, files.LOCK)
        with locks.locked(lock, self._timeout * _LOCK_SHARE) if self._fencing else nullcontext():
            yield

    def _prepare_write(self, folder: str) -> None:
        """Make `folder` durable, so that a file can be written there."""
        self._check_mount()
        self._durable_folders.make(folder)

    def _check_mount(self) -> None:
        """Raise `StoreRefusedError` where a lock may not exclude writers on other hosts."""
        # Asked with the first write only: reading takes no lock, so a root on any mount can be read.
        if self._may_write:
            return
        found = mounts.shared_mount(os.path.realpath(self._root), self._mount_table())
        if found is not None:
            raise StoreRefusedError(
                f"{self._root}: is on a {found[1]} mount ({found[0]}), where a lock may not hold between hosts, "
                "so two writers could overwrite each other; choose a local disk or an object store, or accept "
                f"the risk with {UNFENCED}"
            )
        self._may_write = True

    def _walk(self, prefix: str) -> Iterator[tuple[str, int]]:
        start = prefix.rpartition("/")[0]
        if start:
            self._locate(start + "/_")  # refuses links that lead out of the root
        if _file_above(self._root):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._root)
        yield from walk.files_below(self._root, prefix)

    def _folders(self, prefix: str) -> list[str]:
        self._locate(prefix + "_")
        return [f"{prefix}{name}/" for name in walk.folders_in(os.path.join(self._root, prefix))]

    def _leftovers(self) -> Iterator[WriteLeftover]:
        for path, _ in self._walk(""):
            folder, slash, name = path.rpartition("/")
            target = files.temporary_target(name)
            if target is not None:
                yield WriteLeftover(folder + slash + target, path)

    def _may_discard(self, leftover: WriteLeftover) -> bool:
        return self._fencing or not object_paths.is_swapped(leftover.path)

    def _delete(self, paths: Sequence[str]) -> None:
        self._check_mount()
        folders: dict[str, str] = {}  # many objects are in few folders, each of which is checked once
        changed: set[str] = set()
        for path in paths:
            folder, _, name = check_path(path).rpartition("/")
            # `_locate` refuses hidden names, so each of those is checked, also in a folder that was.
            if folder not in folders or files.is_hidden(name):
                folders[folder] = os.path.dirname(self._locate(path))
            # An object written once that comes back after a crash is garbage still, and the next cleanup deletes it.
            # One that is swapped would count again, so its folder is synced. This is done also where the file is gone
            # already: an earlier call may have failed before it synced.
            if object_paths.begins_state(path):
                changed.add(folders[folder])
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(os.path.join(folders[folder], name))
        for folder in changed:
            with suppress(FileNotFoundError, NotADirectoryError):
                files.sync_folder(folder)

    def _discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        self._check_mount()
        for leftover in leftovers:
            folder, name = os.path.split(self._locate(leftover.path))
            own = os.path.basename(leftover.token)
            # A token from outside must not lead to another file than a temporary one of this very object.
            if files.temporary_target(own) != name or not self._may_discard(leftover):
                raise IllegalArgumentError(f"{leftover.token!r:.200}: is no temporary file of {leftover.path}")
            # A swap has a temporary file only while it holds the lock. So a file that is seen under the lock belongs
            # to a dead writer.
            with self._lock(), suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, own))


def _is_inside(file: str, root: str) -> bool:
    """Return whether the folder that really holds `file` is `root` or below it."""
    # The file itself may be a link here: it is opened with O_NOFOLLOW, so only its folder has to be judged.
    real = os.path.realpath(root)
    return os.path.commonpath([real, os.path.realpath(os.path.dirname(file))]) == real


def _file_above(path: str) -> str | None:
    """Return the nearest existing one of `path` and its parents if it is no folder.

    None if it is a folder.
    """
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return None if os.path.isdir(path) else path
