"""A root in a local folder.

An object appears under its name at once and whole: it is written to a temporary file in the same folder, made
durable, and only then linked (objects written once) or renamed (swapped objects) to its name. Swaps hold the
root's lock, so that comparing and renaming are one step for every process of this host.
"""

import errno
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import ParamSpec, TypeVar

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, OutcomeUnknownError, StoreRefusedError
from pyspark_checkpointer.manifests.digest import Bytes, sha256
from pyspark_checkpointer.storage.base import (
    SWAP_LIMIT,
    UNFENCED,
    Blob,
    Entry,
    Leftover,
    Listing,
    ObjectExistsError,
    ObjectNotFoundError,
    Page,
    PreconditionFailedError,
    S,
    check_path,
)
from pyspark_checkpointer.storage.local import files, locks, mounts, walk

P = ParamSpec("P")
T = TypeVar("T")

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_UNDECIDED = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR}
_MAX_SETTLED = 65536
_PAGE = 1000
_PATIENCE = 0.8
"""The share of a request's time that it waits for the lock: it gives up by itself, before it counts as unanswered."""


class LocalStore(Listing):
    """The folder `root`, an absolute path. It is made by the first write, like everything in it with mode
    0700."""

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
        # Folders whose names this process knows to be durable. Plain set operations: safe between threads.
        self._settled: set[str] = set()

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
        # What sinks do keeps a processor busy: more threads than processors would only be in each other's way.
        return await self._answer(path, runtime.on_cpu(self._read_into, path, make, limit))

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return await self._run(path, self._get_range, path, offset, length)

    async def put(self, path: str, data: Bytes) -> None:
        await self._run(path, self._put, path, data)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        return await self._run(path, self._swap, path, data, expected)

    async def list_page(self, prefix: str, more: object | None = None) -> Page:
        steps = more if isinstance(more, walk.Walk) else walk.Walk(self._walk(prefix))
        try:
            found = await self._run(prefix, steps.take, _PAGE)
        except BaseException:
            steps.give_up()  # a thread may still be taking the steps of this page
            raise
        entries = [Entry(path, size) for path, size in found if not files.is_hidden(path.rpartition("/")[2])]
        return Page(entries, None if steps.ended else steps)

    async def folders(self, prefix: str) -> Sequence[str]:
        return sorted(await self._run(prefix, self._folders, prefix))

    async def delete(self, paths: Sequence[str]) -> None:
        await self._run("", self._delete, paths)

    async def leftovers(self) -> Sequence[Leftover]:
        """Temporary files, each with the object that it was to become."""
        return await self._run("", lambda: [*self._leftovers()])

    async def discard(self, leftovers: Sequence[Leftover]) -> None:
        await self._run("", self._discard, leftovers)

    async def close(self) -> None:
        pass

    # --- what runs in a thread ---

    async def _run(self, path: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`function` in a thread of those that wait for files."""
        return await self._answer(path, runtime.in_thread(function, *args, **kwargs))

    async def _answer(self, path: str, work: Awaitable[T]) -> T:
        """Return the result of work on a file, with the system's errors turned into those of the tree."""
        try:
            return await work
        except OSError as error:
            raise self._translate(error, os.path.join(self._root, path)) from error

    def _translate(self, error: OSError, full: str) -> CheckpointError:
        if error.errno in (errno.ENOTDIR, errno.EEXIST) and (file := _file_above(self._root)):
            return IllegalArgumentError(f"{file}: is a file; the root of a store is a folder")
        return files.translate(error, full)

    @contextmanager
    def _finding(self, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            if _file_above(self._root):
                raise
            raise ObjectNotFoundError(f"{os.path.join(self._root, path)}: not found") from None

    def _locate(self, path: str) -> str:
        """Return the file of an object, refused where a symbolic link on the way leads out of the root."""
        if files.is_hidden(check_path(path).rpartition("/")[2]):
            raise IllegalArgumentError(f"{path!r:.200}: this name is kept for the store's own files")
        full = os.path.join(self._root, path)
        folders = itertools.accumulate(path.split("/")[:-1], os.path.join, initial=self._root)
        if any(map(os.path.islink, itertools.islice(folders, 1, None))) and not _is_inside(full, self._root):
            raise StoreRefusedError(f"{full}: a symbolic link on the way leads out of the root; move it away")
        return full

    def _get(self, path: str, limit: int | None) -> Blob:
        with self._finding(path):
            return Blob(files.read(self._locate(path), limit))

    def _read_into(self, path: str, make: Callable[[], S], limit: int | None) -> S:
        sink = make()
        with self._finding(path):
            for piece in files.pieces(self._locate(path), limit):
                sink.update(piece)
        return sink

    def _get_range(self, path: str, offset: int, length: int) -> bytes:
        with self._finding(path):
            return files.read_range(self._locate(path), offset, length)

    def _put(self, path: str, data: Bytes) -> None:
        target = self._locate(path)
        folder = os.path.dirname(target)
        self._make_folders(folder)
        temporary = files.write_temporary(target, data)
        try:
            self._publish(temporary, target)
        except FileExistsError:
            # It may be there from an earlier attempt that could not make its name durable.
            files.sync_folder(folder)
            raise ObjectExistsError(f"{target}: exists already") from None
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        files.sync_folder(folder)

    def _publish(self, temporary: str, target: str) -> None:
        try:
            os.link(temporary, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with self._lock():
                if os.path.lexists(target):
                    raise FileExistsError(target) from None
                os.rename(temporary, target)

    def _swap(self, path: str, data: bytes, expected: str | None) -> str:
        target = self._locate(path)
        if len(data) > SWAP_LIMIT:
            raise IllegalArgumentError(f"{target}: {len(data)} bytes are too many to swap")
        self._make_folders(os.path.dirname(target))
        with self._lock():
            if self._current(target) != expected:
                raise PreconditionFailedError(f"{target}: was changed by somebody else")
            temporary = files.write_temporary(target, data)
            try:
                _replace(temporary, target)
            finally:
                with suppress(OSError):
                    os.unlink(temporary)
        return sha256(data)

    def _current(self, target: str) -> str | None:
        try:
            return Blob(files.read(target, None)).version
        except FileNotFoundError:
            return None

    @contextmanager
    def _lock(self) -> Iterator[None]:
        lock = os.path.join(self._root, files.LOCK)
        with locks.locked(lock, self._timeout * _PATIENCE) if self._fencing else nullcontext():
            yield

    def _make_folders(self, folder: str) -> None:
        """Make `folder` and those above it durable, up to the parent of the root.

        A folder that is there already may have been made a moment ago by somebody whose fsync has not come
        yet. Therefore every folder is synced once by each process that writes below it.
        """
        self._check_mount()
        if not os.path.isdir(folder):
            self._settled.clear()  # removed since it was last seen, perhaps with the whole root
        missing = []
        while folder not in self._settled:
            missing.append(folder)
            if folder == self._root:
                missing += _missing_above(folder)
                break
            folder = os.path.dirname(folder)
        for name in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(name, 0o700)
            if not os.path.isdir(name):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
            with suppress(PermissionError):  # the system may let us pass its folders, but not open them
                files.sync_folder(os.path.dirname(name))
            if len(self._settled) >= _MAX_SETTLED:
                self._settled.clear()
            self._settled.add(name)

    def _check_mount(self) -> None:
        if self._may_write:
            return
        found = mounts.shared_mount(os.path.realpath(self._root), self._mount_table())
        if found is not None:
            raise StoreRefusedError(
                f"{self._root}: is on a {found[1]} mount ({found[0]}), where a lock may not hold between hosts, "
                "so two writers could overwrite each other; choose a local disk or an object store, or accept "
                f"it with {UNFENCED}"
            )
        self._may_write = True

    def _walk(self, prefix: str) -> Iterator[tuple[str, int]]:
        start = prefix.rpartition("/")[0]
        if start:
            self._locate(start + "/_")
        if _file_above(self._root):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._root)
        yield from walk.files_below(self._root, prefix)

    def _folders(self, prefix: str) -> list[str]:
        self._locate(prefix + "_")
        return [f"{prefix}{name}/" for name in walk.folders_in(os.path.join(self._root, prefix))]

    def _leftovers(self) -> Iterator[Leftover]:
        for path, _ in self._walk(""):
            folder, slash, name = path.rpartition("/")
            target = files.temporary_target(name)
            if target is not None:
                yield Leftover(folder + slash + target, path)

    def _delete(self, paths: Sequence[str]) -> None:
        self._check_mount()
        folders: dict[str, str] = {}  # many objects stand in few folders
        for path in paths:
            folder, _, name = check_path(path).rpartition("/")
            if folder not in folders or files.is_hidden(name):
                folders[folder] = os.path.dirname(self._locate(path))
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(os.path.join(folders[folder], name))

    def _discard(self, leftovers: Sequence[Leftover]) -> None:
        self._check_mount()
        for leftover in leftovers:
            folder, name = os.path.split(self._locate(leftover.path))
            own = os.path.basename(leftover.token)
            if files.temporary_target(own) != name:
                raise IllegalArgumentError(f"{leftover.token!r:.200}: is no temporary file of {leftover.path}")
            # A swap keeps its temporary file only while it holds the lock: whose file is seen under the
            # lock is dead.
            with self._lock(), suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, own))


def _replace(temporary: str, target: str) -> None:
    """Rename durably, or say which of three things happened: not done (`OSError`), done, or nobody knows."""
    try:
        os.rename(temporary, target)
    except OSError as error:
        if error.errno not in _UNDECIDED:
            raise
        why = os.strerror(error.errno or 0)
        raise OutcomeUnknownError(f"{target}: {why} while it was replaced; nothing proves whether it was") from error
    try:
        files.sync_folder(os.path.dirname(target))
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise OutcomeUnknownError(
            f"{target}: was replaced, but {why} while making that durable; a crash may still undo it"
        ) from error


def _is_inside(file: str, root: str) -> bool:
    """Return whether the folder that really holds `file` is `root` or below it."""
    real = os.path.realpath(root)
    return os.path.commonpath([real, os.path.realpath(os.path.dirname(file))]) == real


def _missing_above(folder: str) -> list[str]:
    """Return the parents of `folder` that do not exist yet, nearest first."""
    missing = []
    while not os.path.lexists(parent := os.path.dirname(folder)):
        missing.append(parent)
        folder = parent
    return missing


def _file_above(path: str) -> str | None:
    """`path` or the first of its parents that is there, if that is no folder."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return None if os.path.isdir(path) else path
