"""Make sure that the Python of Spark's tasks has what they need, before the first of them runs.

PySpark runs tasks with the command in PYSPARK_PYTHON, else with `python3`. In an environment that is not activated,
`python3` is another Python than the driver's.
"""

import logging
import os
import sys
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.storage import parse

logger = logging.getLogger("pyspark_checkpointer")

_NEEDED = ("pyspark_checkpointer", "fsspec", "msgpack", "numpy", "pandas", "pyarrow", "tenacity", "zstandard")
_MOST_TASKS = 16

_NOT_CHOSEN = "python3"
"""What PySpark takes where the user says nothing."""

_chosen: "WeakKeyDictionary[SparkContext, set[str]]" = WeakKeyDictionary()
"""Contexts whose interpreter was chosen here, and the sessions of each in which the data source is registered."""

_sources: list[type[DataSource]] = []
"""Data sources of this package. Their modules offer them: they stand above this one, and so cannot be imported here."""

_fit: "WeakKeyDictionary[SparkContext, set[str | None]]" = WeakKeyDictionary()
"""Contexts whose tasks can import what they need, with these packages of stores."""


def offer(source: type[DataSource]) -> None:
    """Have a data source registered in each session whose interpreter is chosen here."""
    _sources.append(source)


def use_driver_python(spark: SparkSession) -> None:
    """Give local tasks the driver's interpreter, unless the user chose one.

    Spark looks for data sources with its own choice too, and so does not find this package's: it is registered here.
    """
    context: Any = spark.sparkContext
    if _is_unsaid(context) and _is_local(context):
        context.pythonExec = sys.executable
        _chosen[context] = set()
    if context in _chosen:
        _register(spark, _chosen[context])


def settle_interpreter(spark: SparkSession, root: str) -> None:
    """Choose the interpreter of local tasks; prove once that any other has what the tasks of a root need."""
    context: Any = spark.sparkContext
    fit = _fit.setdefault(context, set())
    package = parse(root).kind.package
    if package in fit:
        return
    use_driver_python(spark)
    if context.pythonExec != sys.executable or not _is_local(context):
        _prove(context, [*_NEEDED, package] if package else [*_NEEDED])
    fit.add(package)


def _is_unsaid(context: Any) -> bool:
    if context.pythonExec != _NOT_CHOSEN or "PYSPARK_PYTHON" in os.environ:
        return False
    return context.getConf().get("spark.pyspark.python") is None


def _is_local(context: Any) -> bool:
    return bool(context._jsc.sc().isLocal())


def _register(spark: Any, known: set[str]) -> None:
    session = str(spark._jsparkSession.sessionUUID())
    if session not in known:
        for source in _sources:
            spark.dataSource.register(source)
        known.add(session)


def _prove(context: Any, packages: list[str]) -> None:
    """Import the packages in a few tasks; refuse to go on where one is missing, and log other versions."""
    look = _looker()
    here = look(packages)
    tasks = min(max(len(context._jsc.sc().statusTracker().getExecutorInfos()), 1), _MOST_TASKS)
    try:
        seen = context.parallelize(range(tasks), tasks).map(lambda _: look(packages)).collect()
    except Exception as error:
        why = _why(context, str(error))
        if why is None:
            raise
        raise InvalidStateError(
            f"the Python of Spark's tasks, {context.pythonExec}, {why}: let PYSPARK_PYTHON, set before the session is "
            "made, name a Python of the same version, with the same packages, that is on every machine"
        ) from error
    for python, found in seen:
        missing = [name + what[1:] for name, what in found.items() if what.startswith("!")]
        if missing:
            raise InvalidStateError(
                f"the Python of Spark's tasks, {python}, cannot import {', '.join(missing)}: install what is missing "
                "there, or let PYSPARK_PYTHON, set before the session is made, name a Python that has it"
            )
    others = {f"{name} {what}" for _, found in seen for name, what in found.items() if what != here[1][name]}
    if others:
        driver = ", ".join(f"{name} {here[1][name]}" for name in sorted({other.split()[0] for other in others}))
        logger.warning("Spark's tasks have %s, the driver has %s", ", ".join(sorted(others)), driver)


def _looker() -> Any:
    """What runs in the tasks. A function within a function is sent as a whole: there this package may be missing."""

    def look(packages: list[str]) -> tuple[str, dict[str, str]]:
        import sys

        found = {}
        for name in packages:
            try:
                found[name] = str(getattr(__import__(name), "__version__", ""))
            except Exception as error:
                absent = isinstance(error, ModuleNotFoundError) and error.name == name
                found[name] = "!" if absent else f"! ({error})"
        return sys.executable, found

    return look


def _why(context: Any, text: str) -> str | None:
    """Tell from Spark's own error that it could not run the interpreter at all; None for any other error."""
    if "PYTHON_VERSION_MISMATCH" in text:
        return f"is not Python {context.pythonVer}, which the driver is"
    if "Cannot run program" in text:
        return "cannot be started there"
    return "cannot import pyspark" if "No module named 'pyspark'" in text else None


__all__ = ["offer", "settle_interpreter", "use_driver_python"]
