"""Stop the job at one point of one batch, so that the demo can kill it exactly there.

The job is patched in one place, and only when it is told to stop: the store that the checkpointer opens. Everything
else runs as always, and a real SIGKILL from another process ends it.
"""

import asyncio
import os
from typing import Any
from unittest import mock

from examples.flights.events import emit, told
from pyspark_checkpointer.client import base
from pyspark_checkpointer.manifests import manifest_json, object_paths
from pyspark_checkpointer.storage import Store, open_store
from pyspark_checkpointer.storage import parse as parse_url
from pyspark_checkpointer.storage.local import files
from pyspark_checkpointer.storage.registry import Reach

UPLOADING = "uploading"
UPLOADED = "uploaded"
SWAPPED = "swapped"
POINTS = (UPLOADING, UPLOADED, SWAPPED)

PATIENCE = 30
"""Seconds in which Spark has to report the batch before."""


def parse(text: str) -> tuple[str, int]:
    """Return the point and the batch of `POINT:BATCH`."""
    point, _, batch = text.partition(":")
    if point not in POINTS:
        raise ValueError(f"{point!r}: expected one of {', '.join(POINTS)}")
    return point, int(batch)


def install(point: str, batch: int) -> None:
    """Let stores that are opened from now on stop at `point` of `batch`."""

    def open_stopping(*args: Any, **options: Any) -> StoppingStore:
        return StoppingStore(open_store(*args, **options), point, batch)

    mock.patch.object(base, "open_store", open_stopping).start()


class StoppingStore:
    """A store that stops for ever at one point of one batch.

    It needs nobody to say which batch is being saved: every batch commits one checkpoint. So the checkpoint of batch 17
    is the 18th, and everything that is written for it carries this sequence number.
    """

    def __init__(self, store: Store, point: str, batch: int) -> None:
        self._store = store
        self._point = point
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, path: str, data: bytes) -> None:
        owner = object_paths.owner(path)
        if path.startswith(object_paths.ARTIFACTS) and owner is not None:
            await self._stop(UPLOADING, owner.sequence, path, data)
        await self._store.put(path, data)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        committed = manifest_json.decode_pointer(data).committed if path == object_paths.LATEST else None
        sequence = committed.id.sequence if committed else 0
        await self._stop(UPLOADED, sequence)
        version = await self._store.compare_and_swap(path, data, expected)
        await self._stop(SWAPPED, sequence)
        return version

    async def _stop(self, point: str, sequence: int, path: str = "", data: bytes = b"") -> None:
        if (point, sequence) != (self._point, self._batch + 1):
            return
        # Write half of it, to the temporary file that a local store begins with. A server shows none of it.
        if data and parse_url(self._store.url).kind.reach is Reach.MACHINE:
            target = os.path.join(self._store.url, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            files.write_temporary(target, data[: len(data) // 2])
        for _ in range(PATIENCE * 20):  # what happened before the kill is told before it
            if self._batch == 0 or self._batch - 1 in told:
                break
            await asyncio.sleep(0.05)
        emit("stopped", point=point, batch=self._batch, size=len(data))
        await asyncio.Event().wait()
