"""Ask a session for its executors.

The answer says how many tasks they run at once, where they run, and which packages their Python has. A session of Spark
Connect has no context with the answer. A small job finds the answer, once for each session.
"""

import json
import pickle
import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.spark.connect import is_connect

T = TypeVar("T")

_broadcasts: ContextVar[list[Any] | None] = ContextVar("broadcasts", default=None)

MAX_REQUEST_BYTES = 64 << 20
"""The most bytes of a value that are sent with a request: a server of Spark Connect takes twice as much by default."""

MAX_WORK_BYTES = 512 << 10
"""The most bytes of work that PySpark is given as it is: by default it broadcasts itself what has 1 MiB."""

OWN = "pyspark_checkpointer"
"""The name of this package."""

NEEDED = (OWN, "fsspec", "msgpack", "numpy", "pandas", "pyarrow", "tenacity", "zstandard")
"""The packages that every task of this package needs."""


@dataclass(frozen=True, slots=True)
class Executors:
    """The answers of the tasks of one job of Spark Connect.

    There is one answer for each task that the session runs at once.
    """

    hosts: Sequence[str]
    found: Sequence[tuple[str, dict[str, str]]]
    """The interpreter of each task, and the version or error of each package. An error begins with "!"."""

    def has(self, package: str) -> bool:
        """Return whether all tasks have a package; of this library, in this version.

        Where it is false, ask the tasks again: somebody may have installed the package meanwhile.
        """
        if package == OWN:
            return all(versions.get(package) == own_version() for _, versions in self.found)
        return all(not versions.get(package, "!").startswith("!") for _, versions in self.found)


_probed: "WeakKeyDictionary[SparkSession, Executors]" = WeakKeyDictionary()


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks the session runs at once."""
    return len(_executors(spark).hosts) if is_connect(spark) else spark.sparkContext.defaultParallelism


def executor_hosts(spark: SparkSession) -> set[str]:
    """Return the hosts of the session's executors.

    There are none where the driver runs the tasks itself.
    """
    if is_connect(spark):
        return {*_executors(spark).hosts}
    context: Any = spark.sparkContext
    if context._jsc.sc().isLocal():
        return set()
    return {str(info.host()) for info in context._jsc.sc().statusTracker().getExecutorInfos()}


def driver_hosts(spark: SparkSession) -> set[str]:
    """Return the names of this machine by which Spark may know it."""
    here = {socket.gethostname()}
    if is_connect(spark):  # The server's name for itself would say nothing about this process.
        return here
    context: Any = spark.sparkContext
    named: str | None = context.getConf().get("spark.driver.host")
    return here | {"localhost", "127.0.0.1"} | ({named} if named else set())


@contextmanager
def collecting_broadcasts(made: list[Any]) -> Iterator[None]:
    """Add to a list what the block broadcasts, for `destroy`."""
    token = _broadcasts.set(made)
    try:
        yield
    finally:
        _broadcasts.reset(token)


@contextmanager
def destroying_broadcasts() -> Iterator[None]:
    """Destroy what the block broadcasts at its end."""
    made: list[Any] = []
    try:
        with collecting_broadcasts(made):
            yield
    finally:
        destroy(made)


def destroy(broadcasts: list[Any]) -> None:
    """Destroy broadcasts that no task reads any more.

    PySpark keeps a file of each on the disk of the driver until the application ends.
    """
    while broadcasts:
        with suppress(Py4JError, OSError):  # Once the context has stopped, its folder is gone.
            broadcasts.pop().destroy()


def send(spark: SparkSession, work: T) -> Callable[[], T]:
    """Return a function by which tasks get their work.

    PySpark broadcasts large work too, and nobody could destroy that. So it is done here where `collecting_broadcasts`
    says when the work is over.
    """
    if _broadcasts.get() is None or is_connect(spark):
        return lambda: work
    pickled: bytes = CloudPickleSerializer().dumps(work)  # type: ignore[no-untyped-call]
    if len(pickled) <= MAX_WORK_BYTES:
        return lambda: work
    sent = share(spark, pickled, "the work")
    return lambda: pickle.loads(sent())  # noqa: S301  # made by the driver of this job


def share(spark: SparkSession, value: T, what: str) -> Callable[[], T]:
    """Return a function by which tasks get a value that may be large.

    A broadcast reaches each executor once, not each task. Spark Connect has none, so the value goes along with the
    function, in one request. Raises `InvalidStateError` where it is too large for that, and says `what` it is.
    """
    if not is_connect(spark):
        sent = spark.sparkContext.broadcast(value)
        if (made := _broadcasts.get()) is not None:
            made.append(sent)
        return lambda: sent.value
    size = len(pickle.dumps(value))
    if size > MAX_REQUEST_BYTES:
        raise InvalidStateError(
            f"{what} has {size >> 20} MiB, and a request of Spark Connect carries {MAX_REQUEST_BYTES >> 20} MiB: use a "
            "classic session, or do the same without Spark, as Checkpointer(root).clean(policy) does"
        )
    return lambda: value


def probe_executors(spark: SparkSession, packages: Sequence[str]) -> Executors:
    """Run a job of Spark Connect whose tasks import some packages.

    Spark gives a range without a number of partitions as many as it runs tasks at once. Raises `InvalidStateError`
    where the tasks cannot run Python, or have another version than this process.
    """
    known = _probed.get(spark)
    if known is not None and all(known.has(package) for package in packages):
        return known
    look = make_probe()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"host": [socket.gethostname()], "seen": [json.dumps(look(packages))]})

    try:
        rows = spark.range(0, 1 << 10).mapInArrow(run, "host string, seen string").collect()
    except Exception as error:
        own = ".".join(map(str, sys.version_info[:2]))
        # Only an interpreter that could not run is explained. Any other failure stays what it is.
        why = why_not_run(str(error), own)
        if why is None:
            raise
        raise InvalidStateError(
            f"the Python of Spark's tasks {why}: let PYSPARK_PYTHON, set before the server is started, name a Python "
            f"{own} that has this package's dependencies and is on every machine, or use the tasks' version here"
        ) from error
    seen = [json.loads(row["seen"]) for row in rows]
    found = Executors([row["host"] for row in rows], [(python, versions) for python, versions in seen])
    _probed[spark] = found
    return found


def why_not_run(error: str, own: str) -> str | None:
    """Return why Spark could not run the interpreter of tasks, from its error.

    `own` is the version of this process, such as 3.11. Returns None for any other error.
    """
    if "Cannot run program" in error:
        return "cannot be started there"
    if "PYTHON_VERSION_MISMATCH" in error:
        return f"is not Python {own}, which this program is"
    # PySpark itself, or what the module in `spark.python.daemon.module` imports.
    missing = re.search(r"No module named '([\w.]+)'", error)
    return f"cannot import {missing[1]}" if missing else None


def own_version() -> str:
    """Return the version of this library in this process, as tasks tell theirs."""
    version: str = make_probe()([OWN])[1][OWN]
    return version


def _executors(spark: SparkSession) -> Executors:
    return _probed.get(spark) or probe_executors(spark, NEEDED)


def make_probe() -> Any:
    """Return the function that tasks run to import packages.

    It returns the version or error of each package. An error begins with "!".

    Spark sends a function that is defined within another one as code. A function of a module is sent by name, and this
    package may be missing in the task.
    """

    def look(packages: list[str]) -> tuple[str, dict[str, str]]:
        import sys

        found = {}
        for name in packages:
            try:
                found[name] = str(getattr(__import__(name), "__version__", ""))
            except Exception as error:
                # A package can also be there and fail to import what it needs itself. Then the error says more than
                # its name.
                absent = isinstance(error, ModuleNotFoundError) and error.name == name
                found[name] = "!" if absent else f"! ({error})"
        return sys.executable, found

    return look


__all__ = [
    "NEEDED",
    "OWN",
    "Executors",
    "collecting_broadcasts",
    "destroy",
    "destroying_broadcasts",
    "driver_hosts",
    "executor_hosts",
    "make_probe",
    "own_version",
    "parallelism",
    "probe_executors",
    "send",
    "share",
    "why_not_run",
]
