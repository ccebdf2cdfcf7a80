"""Changing Spark's progress, file by file: nothing is overwritten, and nothing deleted that was not kept before."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_checkpointer.admin.streaming.offset_log import read_file
from pyspark_checkpointer.errors import ConflictError
from pyspark_checkpointer.storage.base import ObjectExistsError, Store


@dataclass(frozen=True, slots=True)
class LogPlan:
    """Files of a `checkpointLocation`: those that go, in their order; that come, in theirs; and all that there are."""

    cut: tuple[str, ...]
    write: Mapping[str, bytes]
    names: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.cut or self.write)


async def apply(store: Store, plan: LogPlan, kept_in: str) -> None:
    """Copy what is cut into the folder `kept_in`, then cut it, then write what comes. May be done again."""
    for path in plan.cut:
        data = await read_file(store, path)
        if data is not None:
            await _keep(store, f"{kept_in}{path}", data)
        await remove(store, path)
    for path, data in plan.write.items():
        if not await put_new(store, path, data):
            raise ConflictError(f"{store.url}/{path}: was written meanwhile: stop the query, then call again")


async def remove(store: Store, path: str) -> None:
    """A file, and before it the checksum that Spark keeps of it on some stores: without one it is read as it is."""
    await store.delete([_checksum(path)])
    await store.delete([path])


async def put_new(store: Store, path: str, data: bytes) -> bool:
    """Write a file that is not there; False where another one is. Not every store would refuse to write over it."""
    there = await read_file(store, path)
    if there is not None:
        return there == data
    await store.delete([_checksum(path)])  # what is left of one that was here, which Spark would compare
    try:
        await store.put(path, data)
    except ObjectExistsError:
        return await read_file(store, path) == data
    return True


async def _keep(store: Store, path: str, data: bytes) -> None:
    """Under another name where an earlier try kept something else under this one."""
    name, number = path, 0
    while not await put_new(store, name, data):
        number += 1
        name = f"{path}.{number}"


def _checksum(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"
