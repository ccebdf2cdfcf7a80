"""Prove that tasks wrote their objects where the driver looks.

A commit proves this before it writes its manifest.

A task and the driver can understand one root differently: a folder that only one of two machines or containers has, or
an endpoint that comes from the environment. Then what the task wrote is in another place, and a checkpoint that names
it could never be read again.
"""

import hashlib
import os
import socket

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests.model import Artifact
from pyspark_checkpointer.storage.base import ObjectNotFoundError, Store


def this_executor(root: str) -> str:
    """Return a name for the executor of this task.

    The name has the machine, the process that started this worker, and the root. It is the same in all workers of one
    executor, and another one in all others.
    """
    # Containers may have one host name, and one number of a process. Spark draws the names of an executor's folders.
    folders = os.environ.get("SPARK_LOCAL_DIRS", "")
    drawn = f" of executor {hashlib.sha256(folders.encode()).hexdigest()[:8]}" if folders else ""
    return f"{socket.gethostname()} (process {os.getppid()}{drawn}), root {root}"


async def prove(store: Store, written_by: str, artifact: Artifact) -> None:
    """Read the last byte of an object that `written_by` wrote.

    This proves that the object is there, and that it is as long as the task said. Raises `InvalidStateError` otherwise.
    """
    try:
        # One byte is enough: the path holds a digest, so an object at it with this length is the one that was written.
        # Restores compare the bytes.
        if len(await store.get_range(artifact.path, max(artifact.size - 1, 0), 1)) == min(artifact.size, 1):
            return
        found = f"it has less than the {artifact.size} bytes that were written"
    except ObjectNotFoundError:
        found = "it is not there"
    raise InvalidStateError(
        f"{store.url}/{artifact.path}: was written by {written_by}, but where the driver looks "
        f"({socket.gethostname()}, root {store.url}) {found}. Driver and executor use different storage, so nothing "
        "was committed, and the last checkpoint is unchanged. Use a root that is the same for the driver and all "
        "executors: an object store with the same endpoint and credentials everywhere, or a folder that every "
        "container of this machine mounts"
    )
