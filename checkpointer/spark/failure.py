"""Describe in one line why a batch failed, and what to do next."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pyspark_checkpointer.errors import CheckpointError, DependencyError
from pyspark_checkpointer.storage.base import DAMAGE

_MAX_LENGTH = 1_000
_TRACEBACK = "Traceback (most recent call last):"
_LAST_LINE = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:: .*)?")
_OWN_ERROR = re.compile(r"pyspark_checkpointer(?:\.\w+)*\.[A-Z]\w*: ")

_DAMAGE = re.compile(
    r"pyspark_checkpointer(?:\.\w+)*\.(?:Corruption|DigestMismatch|Malformed|UnsupportedFormat|Untrusted|Undecryptable|"
    r"ObjectNotFound|ObjectRefused)Error(?:: |$)"
)

_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '[\w.]+'.*")

NEXT_STEP = "remove the cause and start the query again: it continues after the last committed batch"
_CANCELLED = re.compile(r"SPARK_JOB_CANCELLED|Job \d+ cancelled|OPERATION_CANCELED|InterruptedException")

FOR_TASKS = (
    "install it for the Python of Spark's tasks, which PYSPARK_PYTHON or spark.pyspark.python names, or bring it with "
    "--py-files or --archives, in Spark Connect with addArtifacts"
)
"""The next step where a task could not import a package."""

_OUTLIVED = re.compile(r"Attempted to use Broadcast\(\d+\) after it was destroyed")

AFTER_BATCH = (
    "a DataFrame of the state of an earlier batch, such as table.read() or table.lookup(keys), can be read until its "
    "batch ends: ask for it again in this batch, or use read_state(spark, root, name); then start the query again"
)
"""The next step where a batch reads a large table by a DataFrame of a batch before it."""


def describe(error: BaseException) -> str:
    """Describe an error in one line.

    An error of this library already says the next step. A package that a task cannot import is an error of Spark's,
    which holds the task's `ModuleNotFoundError` as text; the driver raises it as it is.
    """
    said = " ".join(_core(error).split())
    if len(said) > _MAX_LENGTH:
        said = said[: _MAX_LENGTH - 1] + "…"
    if isinstance(error, CheckpointError) or _OWN_ERROR.match(said):
        return said
    if _OUTLIVED.search(said):
        return f"{said}: {AFTER_BATCH}"
    if _NO_MODULE.match(said) and not isinstance(error, ImportError):
        return f"{said}: {FOR_TASKS}; then start the query again"
    return f"{said}: {NEXT_STEP}"


def was_cancelled(error: BaseException | None) -> bool:
    """Return whether an error of Spark says that somebody cancelled its job.

    `query.stop()` does so.
    """
    return isinstance(error, (PySparkException, Py4JError)) and _CANCELLED.search(str(error)) is not None


def is_damage(error: BaseException) -> bool:
    """Return whether one object is gone or unreadable, also where a task says so.

    Other objects may be intact. Of an outage, or of an executor without memory, nothing of the kind is known.
    """
    if isinstance(error, (PySparkException, Py4JError)):
        return _DAMAGE.match(_core(error)) is not None
    return isinstance(error, DAMAGE)


@contextmanager
def explain_unanswered() -> Iterator[None]:
    """Add to the error of a store that gave no answer that a task asked it.

    The driver may reach the store all the same: it has just restored the state. On some computes the user's functions,
    and so the tasks of this package, have no network.
    """
    try:
        yield
    except DependencyError as error:
        raise type(error)(
            f"{error}: a task on {socket.gethostname()} asked, not the driver. If the driver reaches the store, give "
            "tasks the same network, proxy and endpoint. Where tasks have no network of their own (serverless "
            "compute), tables cannot be used: keep the state in maps, which need no tasks"
        ) from None


def _core(error: BaseException) -> str:
    """Return the error of a task without what Spark wrapped around it.

    For another error, return its type and the first line of its text.
    """
    if isinstance(error, CheckpointError):
        return f"{type(error).__name__}: {error}"
    text = str(error)
    # Of chained exceptions Python prints the last one at the end, and that is the one that was raised.
    lines = text.rpartition(_TRACEBACK)[2].splitlines()
    if _TRACEBACK in text:
        # The frames are indented. The first line that is not indented names the error; its text may have more lines.
        raised = [line for line in lines if _LAST_LINE.fullmatch(line)]
        if raised:
            return raised[0]
    told = [line.strip() for line in lines if line.strip()]
    if told and told[0].startswith("An error occurred while calling") and len(told) > 1:
        told = told[1:]  # The first line is py4j's; the error of the JVM follows.
    first = told[0].removeprefix(": ") if told else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
