"""Store a root on any other file system that fsspec knows.

Writes are not conditional there, so it can be opened with `fencing="none"` only.
"""

import importlib.util
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    IllegalArgumentError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import Bytes, sha256
from pyspark_checkpointer.storage import cloud
from pyspark_checkpointer.storage.base import (
    UNFENCED,
    Blob,
    ListedObject,
    ListingPage,
    ObjectExistsError,
    ObjectNotFoundError,
    PagedStore,
    PreconditionFailedError,
    S,
    WriteLeftover,
    check_path,
    check_swap_size,
)
from pyspark_checkpointer.storage.connection import Connection
from pyspark_checkpointer.storage.fsspec_any.calls import is_missing, is_there, list_folder, move
from pyspark_checkpointer.storage.local import files
from pyspark_checkpointer.storage.registry import cloud_roots, enumerate_words, known_protocols
from pyspark_checkpointer.storage.scrubbing import scrub
from pyspark_checkpointer.storage.url import Location

T = TypeVar("T")

# Object stores show an object when its upload is complete. Elsewhere a file is visible while it is written, so it is
# written under another name and then moved.
_OBJECT_STORES = {"oci", "ocilake", "oss", "tos", "hf", "memory"}


def check_protocol(location: Location, fencing: bool) -> None:
    """Check that fsspec knows the location and that fencing is given up.

    Raises `IllegalArgumentError` if not.
    """
    from fsspec.registry import known_implementations, registry

    protocol, shown = location.protocol, location.url
    if protocol not in known_implementations and protocol not in registry:
        raise IllegalArgumentError(
            f"{shown}: unknown protocol {protocol!r}; a root is a folder, {known_protocols()} or anything else that "
            f"fsspec knows with {UNFENCED}"
        )
    known = known_implementations.get(protocol, {})
    package = str(known.get("class", "fsspec")).partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise IllegalArgumentError(f"{shown}: needs the package {package}: pip install {package}")
    if fencing:
        raise IllegalArgumentError(
            f"{shown}: writes to {protocol}:// cannot be made conditional, so two writers could overwrite each "
            f"other; use {enumerate_words(['a folder', *cloud_roots()], 'or')}, or accept the risk with {UNFENCED}"
        )


class GenericStore(PagedStore):
    """The store of a root that fsspec opens.

    Its calls are synchronous; each runs in a thread.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url
        self._options = dict(options)
        self._shows_whole_objects = url.partition("://")[0] in _OBJECT_STORES
        self._connection: Connection[Any] = Connection(self._connect, _close)

    def __repr__(self) -> str:
        return f"<GenericStore {self._url}>"

    @property
    def url(self) -> str:
        return self._url

    @property
    def fencing(self) -> bool:
        return False

    @property
    def lists_whole_folders(self) -> bool:
        return True

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return await self._run(check_path(path), lambda fs, key: Blob(self._read(fs, key, path, limit)))

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        def read(fs: Any, key: str) -> S:
            sink = make()
            sink.update(self._read(fs, key, path, limit))
            return sink

        return await self._run(check_path(path), read)

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        def read(fs: Any, key: str) -> bytes:
            end = min(offset + length, fs.size(key))
            data: bytes = fs.cat_file(key, start=offset, end=end) if end > offset else b""
            return data

        return await self._run(check_path(path), read)

    async def put(self, path: str, data: Bytes) -> None:
        def write(fs: Any, key: str) -> None:
            # Not atomic: another writer may create the object now. That is what giving up fencing means.
            if is_there(fs, key):
                raise ObjectExistsError(f"{self._name(path)}: exists already")
            self._write(fs, key, bytes(data), check=None)

        await self._run(check_path(path), write)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        """Compare, then write.

        This detects a change made before, and not one made between the two.
        """
        check_swap_size(self._name(path), data)

        def swap(fs: Any, key: str, cancelled: threading.Event) -> str:
            def check() -> None:
                found = sha256(fs.cat_file(key)) if is_there(fs, key) else None
                if cancelled.is_set() or found != expected:
                    raise PreconditionFailedError(f"{self._name(path)}: was changed by somebody else")

            check()  # first, since a lost swap need not be written
            self._write(fs, key, data, check=check)
            return sha256(data)

        # A call that took too long goes on in its thread. Meanwhile its caller may write something later.
        with runtime.set_when_cancelled() as cancelled:
            return await self._run(check_path(path), lambda fs, key: swap(fs, key, cancelled))

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        """Return the whole listing as one page, as fsspec gives it."""
        entries = [
            ListedObject(path, size)
            for path, size in (await self._find(prefix)).items()
            if not files.is_hidden(path.rpartition("/")[2])
        ]
        return ListingPage(entries, None)

    async def _find(self, prefix: str) -> dict[str, int]:
        """Return the sizes, by path, of all files whose path starts with `prefix`.

        Temporary files are included.
        """

        def find(fs: Any, root: str) -> dict[str, int]:
            folder = f"{root}/{prefix.rpartition('/')[0]}".rstrip("/")
            inside = len(root.rstrip("/")) + 1
            return {str(info["name"])[inside:]: info["size"] for info in self._below(fs, folder)}

        found = await self._run("", find)
        return {path: size for path, size in found.items() if path.startswith(prefix)}

    def _below(self, fs: Any, folder: str) -> Iterator[Mapping[str, Any]]:
        """Yield what the file system says of each file below a folder."""
        if self._shows_whole_objects:  # such stores list all of them with few requests
            if is_there(fs, folder):
                yield from ({**info, "name": name} for name, info in fs.find(folder, detail=True).items())
            return
        # Not by `find`, which leaves out a folder that it cannot list. An object that is there would look missing.
        todo = [folder]
        while todo:
            for info in list_folder(fs, todo.pop()):
                if info["type"] != "directory":
                    yield info
                elif (name := str(info["name"]).rstrip("/")) != folder:
                    todo.append(name)

    async def folders(self, prefix: str) -> Sequence[str]:
        def find(fs: Any, folder: str) -> list[str]:
            inside = list_folder(fs, folder)
            return [str(info["name"]).rstrip("/").rpartition("/")[2] for info in inside if info["type"] == "directory"]

        return sorted(f"{prefix}{name}/" for name in await self._run(prefix.rstrip("/"), find))

    async def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with suppress(ObjectNotFoundError):
                await self._run(check_path(path), lambda fs, key: fs.rm_file(key))

    async def leftovers(self) -> Sequence[WriteLeftover]:
        """Return the temporary files of objects that are written once.

        Each comes with the object that it was to become.

        Those of `_latest` and of other swapped objects are left out. No lock tells here whether such a swap still runs.
        The file may be the only copy, since a swap removes the old object before it moves the new one.
        """
        if self._shows_whole_objects:
            return []
        found: list[WriteLeftover] = []
        for path in await self._find(""):
            folder, slash, name = path.rpartition("/")
            target = files.temporary_target(name)
            if target is not None and not object_paths.is_swapped(folder + slash + target):
                found.append(WriteLeftover(folder + slash + target, path))
        return found

    async def discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        for leftover in leftovers:
            folder, slash, name = leftover.path.rpartition("/")
            own = leftover.token.rpartition("/")[2]
            # A token from outside must not lead to another file than a temporary one of this very object.
            if files.temporary_target(own) != name or object_paths.is_swapped(leftover.path):
                raise IllegalArgumentError(f"{leftover.token!r:.200}: is no temporary file of {leftover.path}")
            await self.delete([folder + slash + own])

    async def close(self) -> None:
        await self._connection.close()

    # --- what runs in a thread ---

    async def _connect(self) -> Any:
        return await cloud.answer(runtime.in_thread(self._open), partial(self._error, name=self._url))

    def _open(self) -> Any:
        from fsspec.core import url_to_fs

        try:
            # A cached listing says that an object is missing which is there, and an instance of somebody else may have
            # such a cache.
            return url_to_fs(self._url, skip_instance_cache=True, use_listings_cache=False, **self._options)[0]
        except ImportError as error:
            # fsspec has modules of its own for some protocols, which need packages that only they know.
            raise IllegalArgumentError(f"{self._url}: {error}: pip install that package") from error

    async def _run(self, path: str, call: Callable[[Any, str], T]) -> T:
        """Call a function with the file system and the key of an object, in a thread."""
        fs = await self._connection.get()
        root = str(fs._strip_protocol(self._url)).rstrip("/")
        key = f"{root}/{path}" if path else root
        return await cloud.answer(runtime.in_thread(call, fs, key), partial(self._error, name=self._name(path)))

    def _read(self, fs: Any, key: str, path: str, limit: int | None) -> bytes:
        if limit is not None and (size := fs.size(key)) > limit:
            raise cloud.too_large(self._name(path), limit, size)
        data: bytes = fs.cat_file(key)
        return data

    def _write(self, fs: Any, key: str, data: bytes, *, check: Callable[[], None] | None) -> None:
        """Write an object that is never visible in part.

        With `check` it takes the place of an older one, unless that raises just before. A request that is sent by then
        may still come late.

        This holds as far as the file system moves files in one step.
        """
        folder, _, name = key.rpartition("/")
        fs.makedirs(folder, exist_ok=True)
        if self._shows_whole_objects:
            if check is not None:
                check()
            fs.pipe_file(key, data)
            return
        temporary, removed = f"{folder}/.{name}.{secrets.token_hex(8)}.tmp", False
        try:
            fs.pipe_file(temporary, data)
            if check is not None:
                check()
                # A crash right after this leaves no object at all, which for the pointer means a repair. Giving up
                # fencing accepts that.
                if is_there(fs, key):  # not every file system moves over a file
                    removed = True
                    fs.rm_file(key)
            move(fs, temporary, key)
        except BaseException:
            # Once the old object is gone, the temporary file may be the only copy.
            if not removed:
                with suppress(Exception):
                    fs.rm_file(temporary)
            raise

    def _name(self, path: str) -> str:
        return f"{self._url}/{path}"

    def _error(self, error: Exception, name: str) -> CheckpointError:
        said = scrub(f"{type(error).__name__}: {error}", self._options)
        if is_missing(error):
            return ObjectNotFoundError(f"{name}: not found")
        if isinstance(error, PermissionError):
            return StoreRefusedError(f"{name}: {said}; correct the credentials or the rights on the root")
        if isinstance(error, NotImplementedError | ImportError):
            return StoreRefusedError(f"{name}: {said}; this file system lacks an operation that a root needs")
        if isinstance(error, TypeError | ValueError | KeyError):
            return IllegalArgumentError(f"{name}: {said}")
        return DependencyError(f"{name}: {said}")


async def _close(fs: Any) -> None:
    """Do nothing: fsspec's file systems close themselves when they are dropped."""
