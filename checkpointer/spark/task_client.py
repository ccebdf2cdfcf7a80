"""Give tasks a client of the root.

This also checks that driver and executors share the root.
"""

import functools
import logging
import os
import pickle
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from pyspark_checkpointer.checkpoint.placement import this_executor
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.client.base import opens_keys
from pyspark_checkpointer.errors import CheckpointError, InvalidStateError, RetiredError
from pyspark_checkpointer.manifests import codecs
from pyspark_checkpointer.runtime import forks
from pyspark_checkpointer.spark.connect import is_connect
from pyspark_checkpointer.spark.executors import OWN, driver_hosts, executor_hosts, own_version
from pyspark_checkpointer.spark.failure import FOR_TASKS, describe
from pyspark_checkpointer.spark.interpreter import ensure_interpreter, use_driver_python
from pyspark_checkpointer.storage import parse
from pyspark_checkpointer.storage.local import mounts
from pyspark_checkpointer.storage.registry import Reach, cloud_roots, enumerate_words
from pyspark_checkpointer.table.local_copies import LocalCopies

T = TypeVar("T")

logger = logging.getLogger("pyspark_checkpointer")


@dataclass(frozen=True, slots=True)
class TaskRoot:
    """A root as it is sent to executors: configuration, no connection."""

    version: str
    """The driver's version of this library.

    It is the first field in all versions: Python pickles the fields of task objects by their positions.
    """
    client: bytes = field(repr=False)
    driver_host: str
    keeps_copies: bool = False
    """True if tasks may keep decoded rows on the local disk of their executor."""

    @classmethod
    def of(cls, client: Checkpointer, spark: SparkSession) -> "TaskRoot":
        """Return the root for tasks of this session.

        Raises `InvalidStateError` where executors do not share the root with the driver, or lack packages.
        """
        if (why := _why_no_tables(client, spark)) is not None:
            raise InvalidStateError(why)
        ensure_interpreter(spark, client.root, is_encrypted=opens_keys(client))
        # With an external shuffle service an executor that ends leaves its folder, and the next begins another one.
        # A limit of the memory of Python workers counts the copies that they map, and other work would have no room.
        keeps_copies = (
            not _encrypts_files(spark)
            and not _is_set(spark, "spark.shuffle.service.enabled")
            and not spark.conf.get("spark.executor.pyspark.memory", "")
        )
        # As bytes it is hashable, which the cache of `_client` needs.
        return cls(own_version(), pickle.dumps(client.for_tasks()), socket.gethostname(), keeps_copies)

    def open(self) -> Checkpointer:
        """Return the client of this Python worker, which is kept for its next tasks.

        Each task calls this before it does anything else. Raises `InvalidStateError` for a task that another version of
        this library has made, or that cannot reach the root.
        """
        refuse_other_version(self.version)
        # By the process too: a worker is a fork, and connections and event loops do not survive one.
        client = _client(self.client, forks.current)
        # Asked again here, as executors on other machines may have come after the driver looked.
        _refuse_elsewhere(client.root, self.driver_host)
        return client

    @property
    def executor(self) -> str:
        """Return the name of the executor that writes, for errors of the driver."""
        return this_executor(self.open().root)

    def copies(self) -> LocalCopies | None:
        """Return the copies of this executor; None where there may be none.

        The executor loses them when it ends.
        """
        folders = os.environ.get("SPARK_LOCAL_DIRS", "") if self.keeps_copies else ""
        return _copies(folders.split(",")[0]) if folders else None


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """A root for a task object that works in the driver.

    It has the driver's own client and folder for copies.
    """

    client: Checkpointer = field(repr=False)
    folder: str | None

    @classmethod
    def of(cls, client: Checkpointer, spark: SparkSession) -> "DriverRoot":
        # A folder of Spark's for local files, which is removed when Spark ends: PySpark's own, or that of the process
        # beside a server of Spark Connect.
        folder = (
            os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
            if is_connect(spark)
            else getattr(spark.sparkContext, "_temp_dir", None)
        )
        return cls(client, None if _encrypts_files(spark) else folder)

    def open(self) -> Checkpointer:
        return self.client

    @property
    def executor(self) -> str:
        return this_executor(self.client.root)

    def copies(self) -> LocalCopies | None:
        return None if self.folder is None else _copies(self.folder)


Root = TaskRoot | DriverRoot
"""The root as a task object sees it, on an executor or in the driver."""


def refuse_other_version(driver_version: str) -> None:
    """Raise `InvalidStateError` if the driver has another version of this library.

    Python pickles most task objects by the positions of their fields. What one version does not know is dropped without
    an error, such as the rule by which rows expire, and the task would write something wrong.
    """
    if driver_version != own_version():
        raise InvalidStateError(
            f"the driver has {OWN} {driver_version}, and a task on {socket.gethostname()} has {own_version()} "
            f"({sys.executable}): they need the same version: {FOR_TASKS}"
        )


def reduce_by_version(sink: object, state: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what pickles a function so that another version of this library refuses."""
    # The version comes first: it has to be known before anything of another version is unpickled.
    return _make_sink, (type(sink), own_version()), state


def _make_sink(kind: type[T], version: str) -> T:
    """Return an object for the state of a pickled one.

    Raises `InvalidStateError` where another version of this library pickled it. In Spark Connect the process that
    unpickles it makes all commits. What one version does not know is dropped without an error.
    """
    if version != own_version():
        raise InvalidStateError(
            f"the function of foreachBatch comes from a program with {OWN} {version}, and the Python of the server, "
            f"{sys.executable}, has {own_version()}: they need the same version: install it there"
        )
    return kind.__new__(kind)


@contextmanager
def explain_elsewhere(client: Checkpointer, driver_host: str) -> Iterator[None]:
    """Explain a missing checkpoint by a folder that this machine does not have.

    Reading elsewhere is not refused as such: the folder may be mounted on all machines.
    """
    try:
        yield
    except RetiredError:
        if client.read_latest() is None:
            _refuse_elsewhere(client.root, driver_host)
        raise


def _refuse_elsewhere(root: str, driver_host: str) -> None:
    """Raise `InvalidStateError` if the root is a folder of another machine."""
    if parse(root).kind.reach is Reach.MACHINE and socket.gethostname() != driver_host:
        raise InvalidStateError(f"{root}: a folder of {driver_host}, this task runs elsewhere")


def _encrypts_files(spark: SparkSession) -> bool:
    """Return whether Spark encrypts its local files.

    Who has it do so does not want rows there in plain text.
    """
    return _is_set(spark, "spark.io.encryption.enabled")


def _is_set(spark: SparkSession, name: str) -> bool:
    # Spark takes the word in any case, and PySpark writes "True" for True.
    return str(spark.conf.get(name, "false")).strip().lower() == "true"


@functools.lru_cache(maxsize=8)
def _copies(folder: str) -> LocalCopies | None:
    """Return the copies in a folder; None for a folder in memory.

    What they have mapped stays mapped for later tasks.
    """
    # With `spark.kubernetes.local.dirs.tmpfs`, for one. Each byte there counts as memory of the pod, which would be
    # killed for it.
    if mounts.is_in_memory(os.path.realpath(folder), mounts.system_table()):
        return None
    return LocalCopies(Path(folder) / "checkpointer-copies")


@functools.lru_cache(maxsize=8)
def _client(pickled: bytes, process: forks.Process) -> Checkpointer:
    """Return one client for all the tasks of a Python worker.

    So its connections are kept for later tasks.
    """
    client: Checkpointer = pickle.loads(pickled)  # noqa: S301  # made by the driver of this same job
    return client


def check_tasks(client: Checkpointer, spark: SparkSession, restored: Restored | None) -> None:
    """Check that tasks have the packages that tables need, before a callback runs.

    A job whose state has maps alone may never need tasks. Then what they lack is only logged, and the first table is
    refused.
    """
    use_driver_python(spark)
    try:
        # A root that can have no tables needs nothing of tasks, so their packages do not matter. The first table on it
        # is refused.
        if _why_no_tables(client, spark) is None:
            ensure_interpreter(spark, client.root, is_encrypted=opens_keys(client))
    except Exception as error:  # Spark's own too: the job that looks may fail, or find no executor.
        if not _has_maps_alone(restored):
            raise
        why = error if isinstance(error, CheckpointError) else describe(error)
        logger.warning("%s: no table can be used: %s", client.root, why)


def _has_maps_alone(restored: Restored | None) -> bool:
    manifest = None if restored is None else restored.manifest
    return manifest is not None and all(codecs.kind_of(o) == "map" for o in manifest.operators.values())


def _why_no_tables(client: Checkpointer, spark: SparkSession) -> str | None:
    """Return why a root can have no tables; None if it can.

    Its executors may write to memory or a folder that the driver cannot see. Raises `InvalidStateError` where Spark
    Connect cannot ask them.
    """
    reach = parse(client.root).kind.reach
    if reach is Reach.PROCESS:
        return f"{client.root}: is in the driver's memory, which executors do not share: use a folder"
    hosts = executor_hosts(spark) if reach is Reach.MACHINE else set()
    # Spark may know the driver's machine by a name or by an address.
    elsewhere = hosts - driver_hosts(spark) if hosts else hosts
    if not elsewhere:
        return None
    return (
        f"{client.root}: a folder of the driver's machine, but executors run on {', '.join(sorted(elsewhere))}: "
        f"use a root that every machine reaches, such as {enumerate_words(cloud_roots(), 'or')}"
    )
