"""The Python of Spark's tasks: chosen in local mode, proven once elsewhere. `tests/test_readme.py` does it for real."""

import re
import sys
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer import __version__ as VERSION  # noqa: N812
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.spark import State, interpreter, stateful, versions
from pyspark_checkpointer.spark.executors import Executors, make_probe
from pyspark_checkpointer.spark.interpreter import ensure_interpreter
from pyspark_checkpointer.spark.task_client import TaskRoot, check_tasks
from pyspark_checkpointer.spark.versions import HAS_DATA_SOURCES
from tests.spark.conftest import Job

PACKAGE = "pyspark_checkpointer"


class Context:
    """As much of a Spark context as is asked, which counts what it is asked."""

    def __init__(
        self,
        *,
        local: bool,
        python: str = "python3",
        look: Callable[[Any], Any] | None = None,
        version: str | None = None,
        conf: dict[str, str] | None = None,
    ) -> None:
        self.pythonExec = python
        self._conf = conf or {}
        self.pythonVer = "3.11"
        self.asked = 0
        self._local = local
        self._look = look
        self._version = version
        self._found: Any = None

    @property
    def _jsc(self) -> "Context":
        self.asked += 1
        return self

    def sc(self) -> "Context":
        return self

    def isLocal(self) -> bool:  # noqa: N802  # Spark's name
        return self._local

    statusTracker = sc  # noqa: N815

    def getExecutorInfos(self) -> list[str]:  # noqa: N802
        return ["driver", "executor"]

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return self._conf

    def parallelize(self, items: Any, tasks: int) -> "Context":
        self.asked += 1
        return self

    def map(self, function: Any) -> "Context":
        self._found = (self._look or function)(0)
        return self

    def pipe(self, command: list[str]) -> "Context":
        assert command[0] == self.pythonExec
        self._found = self._version
        return self

    def collect(self) -> list[Any]:
        if self._found is None:
            raise OSError("the program ended with an error")
        return [self._found]


class Session:
    """A session that takes data sources."""

    def __init__(self, context: Context) -> None:
        self.sparkContext = context
        self.registered: list[Any] = []

    @property
    def dataSource(self) -> Any:  # noqa: N802  # Spark's name
        return type("Registration", (), {"register": self.registered.append})

    @property
    def _jsparkSession(self) -> Any:  # noqa: N802
        return type("JavaSession", (), {"sessionUUID": lambda self: "one"})()


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def settle(session: Session, root: str = "/root") -> None:
    ensure_interpreter(session, root)  # type: ignore[arg-type]


def test_local_tasks_get_the_drivers_python_and_its_data_source() -> None:
    context = Context(local=True)
    session = Session(context)
    settle(session)
    assert context.pythonExec == sys.executable
    assert [source.name() for source in session.registered] == (["checkpointer"] if HAS_DATA_SOURCES else [])


def test_a_choice_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context(local=True, python="/opt/python")
    settle(Session(context))
    assert context.pythonExec == "/opt/python"
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    chosen = Context(local=True)
    session = Session(chosen)
    settle(session)
    assert (chosen.pythonExec, session.registered) == ("python3", [])


@pytest.mark.parametrize("local", [True, False])
def test_what_is_settled_costs_nothing_in_the_next_batch(local: bool) -> None:
    context = Context(local=local)
    session = Session(context)
    settle(session)
    asked = context.asked
    for _ in range(100):
        settle(session)
    assert context.asked == asked
    settle(session, "s3://bucket/root")
    assert context.asked > asked, "another store needs another package"


@pytest.mark.parametrize(
    ("text", "version", "said"),
    [
        ("[PYTHON_VERSION_MISMATCH]", None, "is not Python 3.11, which this program is"),
        ("[PYTHON_VERSION_MISMATCH]", "3.12", f"is Python 3.12, and the driver's, {sys.executable}, is Python 3.11"),
        ("SyntaxError: invalid syntax", "2.7", f"is Python 2.7, and the driver's, {sys.executable}, is Python 3.11"),
        ('Cannot run program "python3": error=2', None, "cannot be started there"),
        ("No module named 'pyspark'", "3.11", "cannot import pyspark"),
        ("ModuleNotFoundError: No module named 'pyarrow.lib'", "3.11", "cannot import pyarrow.lib"),
    ],
)
def test_a_python_that_cannot_run_is_told_in_a_sentence(text: str, version: str | None, said: str) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError(text)

    session = Session(Context(local=False, look=fail, version=version))
    for _ in range(2):  # what failed is asked again
        with pytest.raises(
            InvalidStateError, match=f"the Python of Spark's tasks, python3, {said}: let PYSPARK_PYTHON"
        ):
            settle(session)


@pytest.mark.parametrize(
    ("pyspark", "there", "refused"), [("3.5.9", False, True), ("3.5.9", True, False), ("4.0.5", False, False)]
)
def test_a_python_on_which_this_pyspark_runs_no_tasks_is_refused(
    monkeypatch: pytest.MonkeyPatch, pyspark: str, there: bool, refused: bool
) -> None:
    monkeypatch.setattr("pyspark.__version__", pyspark)
    monkeypatch.setattr(versions, "_has_distutils", lambda: there)
    version = rf"{sys.version_info[0]}\.{sys.version_info[1]}"
    said = rf"^a task on Python {version}, which has no module distutils, needs PySpark 4\.0 or newer, and this is "
    with pytest.raises(InvalidStateError, match=said) if refused else nullcontext():
        settle(Session(Context(local=True)))


def test_any_other_failure_stays_what_it_is() -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError("the cluster is full")

    with pytest.raises(RuntimeError, match="the cluster is full"):
        settle(Session(Context(local=False, look=fail)))


def test_missing_packages_are_named_and_other_versions_logged(caplog: pytest.LogCaptureFixture) -> None:
    look = ("/usr/bin/python3", {"fsspec": "!", "numpy": "! (broken)", "pyarrow": "1.0"})
    with pytest.raises(InvalidStateError, match=r"tasks, /usr/bin/python3, cannot import fsspec, numpy \(broken\): "):
        settle(Session(Context(local=False, look=lambda _: look)))
    settle(Session(Context(local=False, look=lambda _: ("python3", {"pyarrow": "1.0"}))))
    (record,) = [record for record in caplog.records if record.name == "pyspark_checkpointer"]
    assert record.getMessage().startswith("Spark's tasks have pyarrow 1.0, the driver has pyarrow ")


def test_the_probe_tells_the_version_of_this_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert make_probe()([PACKAGE])[1] == {PACKAGE: project["version"]}


@pytest.mark.parametrize("there", ["0.0.1", ""])
def test_another_version_of_this_package_is_refused_by_both_versions(there: str) -> None:
    session = Session(Context(local=False, look=lambda _: ("/opt/python", {PACKAGE: there})))
    said = re.escape(f"tasks, /opt/python, has {PACKAGE} {there or '(no version)'}, and the driver has {VERSION}: ")
    for _ in range(2):  # what was refused is asked again
        with pytest.raises(InvalidStateError, match=said + "they need .*bring it with --py-files"):
            settle(session)
    assert not Executors(["host"], [("python3", {PACKAGE: there})]).has(PACKAGE)
    assert Executors(["host"], [("python3", {PACKAGE: VERSION})]).has(PACKAGE)


@pytest.mark.parametrize(
    ("conf", "setting"),
    [
        ({}, "PYSPARK_PYTHON"),
        ({"spark.pyspark.python": "/opt/python"}, "spark.pyspark.python"),
        ({"spark.pyspark.python": "/not/read"}, "PYSPARK_PYTHON"),  # as in a plain `python`
    ],
)
def test_the_setting_that_chose_the_python_is_named(conf: dict[str, str], setting: str) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError('Cannot run program "/opt/python"')

    absent = Context(local=False, python="/opt/python", look=fail, conf=conf)
    with pytest.raises(InvalidStateError, match=f"cannot be started there: let {setting}, set before the session is"):
        settle(Session(absent))
    bare = Context(local=False, python="/opt/python", look=lambda _: ("/opt/python", {"numpy": "!"}), conf=conf)
    with pytest.raises(InvalidStateError, match=f"bring it with --py-files or --archives, or let {setting}, set"):
        settle(Session(bare))


# ---- before the first callback of a run ------------------------------------------------------------------------------


@pytest.fixture
def lost_python(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are run with a Python that is not there."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python")
    monkeypatch.setattr(interpreter, "_checked", WeakKeyDictionary())


@pytest.fixture
def other_version(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tasks are run with a Python that says that it is Python 3.7."""
    (tmp_path / "sitecustomize.py").write_text("import sys\n\nsys.version_info = (3, 7, 9, 'final', 0)\n")
    python = tmp_path / "python3.7"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    monkeypatch.setattr(interpreter, "_checked", WeakKeyDictionary())


LOST = "/nowhere/python, cannot be started there: let PYSPARK_PYTHON"


def start(job: Job, *, tables: bool, root: str | None = None, refused: str = "") -> list[int]:
    """One more batch; return the batches for which the callback was called."""
    called: list[int] = []

    @stateful(root or job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        called.append(batch_id)
        state.map("seen")[batch_id] = True
        if tables:
            state.table("t", ["key"]).upsert(batch)

    job.feed(("a", 1))
    if refused:
        with pytest.raises(StreamingQueryException, match=refused):
            job.run(update)
    else:
        job.run(update)
    return called


@pytest.mark.parametrize("known", [False, True])
def test_what_tasks_lack_is_refused_before_the_callback_is_called(
    job: Job, known: bool, request: pytest.FixtureRequest
) -> None:
    if known:
        assert start(job, tables=True) == [0]
    request.getfixturevalue("lost_python")
    assert start(job, tables=True, refused=LOST) == []


def test_a_python_of_another_version_is_refused_by_both_versions(job: Job, other_version: None) -> None:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    said = rf"python3\.7, is Python 3\.7, and the driver's, .*, is Python {here}: let PYSPARK_PYTHON, set before"
    assert start(job, tables=True, refused=said) == []


def test_a_task_with_another_version_of_this_package_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's version is a later one than that of Spark's workers."""
    monkeypatch.setattr("pyspark_checkpointer.__version__", "99.0")
    said = rf"the driver has {PACKAGE} 99\.0, and a task on \S+ has {re.escape(VERSION)} .*need the same version: inst"
    assert start(job, tables=True, refused=said) == [0]
    assert Checkpointer(job.root).restore() is None


def test_a_job_of_maps_needs_nothing_of_tasks(
    job: Job, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    assert start(job, tables=False) == [0]
    request.getfixturevalue("lost_python")
    assert start(job, tables=False) == [1]
    assert "no table can be used: the Python of Spark's tasks, /nowhere/python, cannot be started" in caplog.text
    assert start(job, tables=True, refused=LOST) == [2]


def test_a_job_of_maps_goes_on_whatever_befalls_the_job_that_looks(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the cluster is full")

    assert start(job, tables=False) == [0]
    monkeypatch.setattr("pyspark_checkpointer.spark.task_client.ensure_interpreter", fail)
    assert start(job, tables=False) == [1]
    assert "no table can be used: RuntimeError: the cluster is full" in caplog.text
    assert start(job, tables=True, refused="the cluster is full") == [2]


def test_tasks_of_an_encrypted_root_need_cryptography(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The root's keys travel to tasks, and the package for them has to be there."""
    asked: list[list[str]] = []
    monkeypatch.setattr(interpreter, "_checked", WeakKeyDictionary())
    monkeypatch.setattr(interpreter, "_is_local", lambda context: False)
    monkeypatch.setattr(interpreter, "_check_packages", lambda context, packages: asked.append(packages))
    (tmp_path / "key").write_text("11" * 32)
    for encryption in (None, f"key-file:{tmp_path / 'key'}"):
        client = Checkpointer(tmp_path / ("encrypted" if encryption else "plain"), encryption=encryption)
        for _ in range(2):
            TaskRoot.of(client, job.spark)
            check_tasks(client, job.spark, None)
    assert ["cryptography" in packages for packages in asked] == [False, True]


def test_a_root_that_can_have_no_tables_needs_nothing_of_tasks(job: Job, lost_python: None) -> None:
    assert start(job, tables=False, root="memory://no-tables-here") == [0]
