"""Choose the Python of Spark's tasks, and check its packages.

That Python must have the packages that tasks need. PySpark runs tasks with the command in PYSPARK_PYTHON, else with
`python3`. In an environment that is not activated, `python3` is another Python than the driver's.
"""

import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import SparkSession

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.spark.connect import is_connect
from pyspark_checkpointer.spark.executors import NEEDED, OWN, make_probe, own_version, probe_executors, why_not_run
from pyspark_checkpointer.spark.versions import refuse_python
from pyspark_checkpointer.storage import parse

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource  # PySpark 4 added it.

logger = logging.getLogger("pyspark_checkpointer")

_MAX_PROBE_TASKS = 16

_DEFAULT_PYTHON = "python3"
"""The Python that PySpark runs if the user chose none."""

_chosen: "WeakKeyDictionary[SparkContext, set[str]]" = WeakKeyDictionary()
"""Contexts whose interpreter was chosen here.

Each has the sessions in which the data source is registered.
"""

_sources: "list[type[DataSource]]" = []
"""Data sources of this package.

Their modules import this one, so they register themselves here (`offer`).
"""

_checked: "WeakKeyDictionary[SparkContext | SparkSession, set[tuple[str, ...]]]" = WeakKeyDictionary()
"""Contexts, and sessions of Spark Connect, whose tasks can import what they need.

Each has the packages of stores and of encrypted roots that were checked.
"""


def offer(source: "type[DataSource]") -> None:
    """Have a data source registered in each session whose interpreter is chosen here."""
    _sources.append(source)


def use_driver_python(spark: SparkSession) -> None:
    """Give local tasks the driver's interpreter, unless the user chose one.

    Spark looks for data sources with the interpreter that it chose, so it does not find those of this package. They are
    registered here.
    """
    if is_connect(spark):
        return  # The server has chosen it, and finds data sources with it.
    context: Any = spark.sparkContext
    if _is_default(context) and _is_local(context):
        context.pythonExec = sys.executable
        _chosen[context] = set()
    if context in _chosen:
        _register(spark, _chosen[context])


def ensure_interpreter(spark: SparkSession, root: str, *, is_encrypted: bool = False) -> None:
    """Choose the interpreter of local tasks, and check any other one.

    Another interpreter is checked once, for what tasks of this root need.
    """
    context: Any = spark if is_connect(spark) else spark.sparkContext
    checked = _checked.setdefault(context, set())
    package = parse(root).kind.package
    special = (*([package] if package else []), *(["cryptography"] if is_encrypted else []))
    if special in checked:
        return
    refuse_python()
    use_driver_python(spark)
    packages = [*NEEDED, *special]
    # Local tasks with the driver's own Python can import what the driver has imported.
    if is_connect(spark):
        found = probe_executors(spark, packages).found
        _judge(found, packages, "PYSPARK_PYTHON, set before the server is started,", "addArtifacts")
    elif context.pythonExec != sys.executable or not _is_local(context):
        _check_packages(context, packages)
    # Last, so that a check that failed is made again: somebody may have installed what was missing.
    checked.add(special)


def _is_default(context: Any) -> bool:
    if context.pythonExec != _DEFAULT_PYTHON or "PYSPARK_PYTHON" in os.environ:
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


def _check_packages(context: Any, packages: list[str]) -> None:
    """Import the packages in a few tasks. Log other versions than the driver's.

    Raises `InvalidStateError` where a package is missing or the interpreter cannot be started.

    This need not reach every executor: there are at most `_MAX_PROBE_TASKS` tasks, Spark may give several of them to
    one executor, and executors may come later. An executor that was not reached fails its first task instead.
    """
    look = make_probe()
    tasks = min(max(len(context._jsc.sc().statusTracker().getExecutorInfos()), 1), _MAX_PROBE_TASKS)
    try:
        seen = context.parallelize(range(tasks), tasks).map(lambda _: look(packages)).collect()
    except Exception as error:
        # Only an interpreter that could not run is explained. Any other failure stays what it is.
        why = _explain(context, str(error))
        if why is None:
            raise
        raise InvalidStateError(
            f"the Python of Spark's tasks, {context.pythonExec}, {why}: let {_setting(context)}, set before the "
            "session is made, name a Python of the same version, with the same packages, that is on every machine"
        ) from error
    _judge(seen, packages, f"{_setting(context)}, set before the session is made,", "--py-files or --archives")


def _setting(context: Any) -> str:
    """Return the name of the setting that chooses the Python of tasks.

    `spark-submit` lets `spark.pyspark.python` replace the variable. A plain `python` does not read it.
    """
    named = context.getConf().get("spark.pyspark.python")
    return "spark.pyspark.python" if named == context.pythonExec else "PYSPARK_PYTHON"


def _judge(seen: Sequence[tuple[str, dict[str, str]]], packages: list[str], setting: str, carrier: str) -> None:
    """Raise `InvalidStateError` for packages that tasks lack.

    It is also raised for another version of this library.

    The error says which `setting` chooses their Python, and which `carrier` brings packages to it. Log versions of
    other packages that differ from those of this process.
    """
    here, own = make_probe()(packages), own_version()
    for python, found in seen:
        missing = [name + what[1:] for name, what in found.items() if what.startswith("!")]
        if missing:
            raise InvalidStateError(
                f"the Python of Spark's tasks, {python}, cannot import {', '.join(missing)}: install what is missing "
                f"there, bring it with {carrier}, or let {setting} name a Python that has it"
            )
        if (there := found.get(OWN, own)) != own:
            raise InvalidStateError(
                f"the Python of Spark's tasks, {python}, has {OWN} {there or '(no version)'}, and the driver has {own}"
                f": they need the same version: install it there, bring it with {carrier}, or let {setting} name a "
                "Python that has it"
            )
    others = {f"{name} {what}" for _, found in seen for name, what in found.items() if what != here[1][name]}
    if others:
        driver = ", ".join(f"{name} {here[1][name]}" for name in sorted({other.split()[0] for other in others}))
        logger.warning("Spark's tasks have %s, the driver has %s", ", ".join(sorted(others)), driver)


def _explain(context: Any, text: str) -> str | None:
    """Return why Spark could not run the interpreter at all, from its error.

    Returns None for any other error.
    """
    # Asked first: a Python that is too old for PySpark fails in many ways, before it compares its version.
    version = _version(context)
    if version not in (None, context.pythonVer):
        return f"is Python {version}, and the driver's, {sys.executable}, is Python {context.pythonVer}"
    return why_not_run(text, context.pythonVer)


def _version(context: Any) -> str | None:
    """Return the version of Python on one executor; None where it does not tell.

    It is text such as 3.11.
    """
    ask = [context.pythonExec, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        # Executors start it as a plain program. PySpark, which might not run there, takes no part.
        (said,) = context._jsc.parallelize([0], 1).pipe(ask).collect()
    except Exception as error:
        logger.debug("the version of %s could not be found: %s", context.pythonExec, type(error).__name__)
        return None
    return str(said)


__all__ = ["ensure_interpreter", "offer", "use_driver_python"]
