"""Leaks to plant into the real code of this process, to show that the soak would tell of them."""

import asyncio
import os
import tempfile
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pyspark_checkpointer.admin.retention import garbage_collect, plan, spool
from pyspark_checkpointer.checkpoint import metadata, upload
from pyspark_checkpointer.manifests.manifest_json import decode_manifest
from pyspark_checkpointer.storage.local import files

_kept: list[Any] = []


def keep_manifests() -> None:
    """Every manifest that was written stays in a list."""
    _after(metadata, "put_manifest", lambda _store, of, data: _kept.append(decode_manifest(of, data)))


def keep_bytes() -> None:
    """What is uploaded stays in memory."""
    _after(upload, "put_once", lambda _store, _path, data: _kept.append(data))


def leave_files_open() -> None:
    """A folder that was made durable stays open."""
    sync = files.sync_folder

    def leaky(folder: str) -> None:
        if folder.endswith("manifests"):
            os.open(folder, os.O_RDONLY)
        sync(folder)

    files.sync_folder = leaky


def leave_spools() -> None:
    """The rows of a plan are in a file that has a name and stays, however few they are."""
    spool._MEMORY_BYTES = 0
    tempfile.TemporaryFile = partial(tempfile.NamedTemporaryFile, delete=False)  # type: ignore[assignment]


def leave_tasks() -> None:
    """A task waits for something that never comes."""
    _after(metadata, "put_manifest", lambda *_: _kept.append(asyncio.ensure_future(asyncio.Event().wait())))


def leave_threads() -> None:
    """A thread is never told to end."""
    _after(
        garbage_collect,
        "plan_retire_and_sweep",
        lambda *_: threading.Thread(target=threading.Event().wait, daemon=True).start(),
    )


def sweep_nothing() -> None:
    """Objects that nobody needs stay."""

    async def idle(*_: Any) -> Any:
        return plan.Total(0, 0)

    garbage_collect._sweep = idle


def _after(module: Any, name: str, then: Callable[..., object]) -> None:
    """Do `then`, too, with the arguments of each call of a coroutine function."""
    real: Callable[..., Awaitable[Any]] = getattr(module, name)

    async def leaky(*arguments: Any) -> Any:
        result = await real(*arguments)
        then(*arguments)
        return result

    setattr(module, name, leaky)
