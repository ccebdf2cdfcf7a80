"""Change Spark's progress file by file.

Nothing is overwritten, and each file is copied aside before it is deleted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_checkpointer.admin.streaming.offset_log import read_file
from pyspark_checkpointer.errors import ConflictError, CorruptionError
from pyspark_checkpointer.storage.base import ObjectExistsError, ObjectNotFoundError, Store


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The files of a `checkpointLocation` to delete and to write.

    True where there is something to do.
    """

    cut: tuple[str, ...]
    """Paths of the files to delete, in this order."""
    write: Mapping[str, bytes]
    """The files to write, by path, in this order."""
    names: tuple[str, ...]
    """Paths of all files of offsets and commits when the plan was made."""

    def __bool__(self) -> bool:
        return bool(self.cut or self.write)


async def apply_log_plan(store: Store, plan: LogPlan, kept_in: str) -> None:
    """Copy each file that goes to `kept_in`, and delete it; then write the new files.

    After an interruption the same call finishes the work.
    """
    for path in plan.cut:
        data = await read_file(store, path)
        # After an interruption the file may be gone already, and its copy is there.
        if data is not None:
            await _copy_aside(store, f"{kept_in}{path}", data)
        # The copy is complete before the file goes, so a crash loses nothing.
        await remove_file(store, path)
    for path, data in plan.write.items():
        if not await put_new(store, path, data):
            raise ConflictError(f"{store.url}/{path}: was written meanwhile: stop the query, then call again")


async def remove_file(store: Store, path: str) -> None:
    """Delete a file of Spark's and its checksums.

    They go first: a file without a checksum is read as it is.
    """
    await store.delete(_checksums(path))
    await store.delete([path])


async def put_new(store: Store, path: str, data: bytes) -> bool:
    """Write a new file; return False where another one of this name has other content."""
    # Not every store refuses to overwrite a file, so look first.
    same = await _has_content(store, path, data)
    if same is not None:
        return same
    # Of a file that was here before, the checksum may be left: Spark would compare the new file with it.
    await store.delete(_checksums(path))
    try:
        await store.put(path, data)
    # Somebody wrote it since the look; only the same content counts as success.
    except ObjectExistsError:
        return bool(await _has_content(store, path, data))
    return True


async def _has_content(store: Store, path: str, data: bytes) -> bool | None:
    """Return whether a file has this content, of any size; None if there is none."""
    try:
        return (await store.get(path, limit=len(data))).data == data
    except ObjectNotFoundError:
        return None
    # It is larger.
    except CorruptionError:
        return False


async def _copy_aside(store: Store, path: str, data: bytes) -> None:
    """Write a copy under `path`, or under a numbered name.

    An earlier try may have kept other content under `path`.
    """
    name, number = path, 0
    while not await put_new(store, name, data):
        number += 1
        name = f"{path}.{number}"


def _checksums(path: str) -> list[str]:
    """Return the paths where a checksum of a file may be.

    One is the path of Hadoop's local file system, the other is Spark's own. PySpark 4.1 to 4.3 write the second one
    only for files of state stores.
    """
    folder, slash, name = path.rpartition("/")
    return [f"{folder}{slash}.{name}.crc", f"{path}.crc"]
