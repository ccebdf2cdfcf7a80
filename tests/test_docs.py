"""The docstrings of public names say what a user needs, and their examples run.

The examples without Spark take about three seconds. Those with Spark share one process of about 25 seconds on two free
cores. `make docs` builds the pages that are made of them.
"""

import ast
import asyncio
import doctest
import functools
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import pyspark_checkpointer
import pyspark_checkpointer.spark
from pyspark_checkpointer import errors
from pyspark_checkpointer.client import _async_checkpoint, _sync_checkpoint
from pyspark_checkpointer.spark.stateful import StatefulSink

ROOT = Path(__file__).parents[1]

HANDED = ("Checkpoint", "Prepared", "Restored", "RestoredOperator")

RETURNED = [
    *(getattr(_sync_checkpoint, name) for name in HANDED),
    *(getattr(_async_checkpoint, f"Async{name}") for name in HANDED),
    pyspark_checkpointer.CleanupPlan,
    pyspark_checkpointer.spark.State,
    pyspark_checkpointer.spark.TableState,
    StatefulSink,
]
"""Classes that users get and never make, so that nobody has to know what their constructors take."""

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (pyspark_checkpointer, pyspark_checkpointer.spark)
    for name in module.__all__
    if name not in ("errors", "Combine")  # a module, and a choice of texts
}
PUBLIC |= {f"{found.__module__}.{found.__name__}": found for found in RETURNED if found not in PUBLIC.values()}

INTERNAL = {
    "session",
    "writer",
    "reader",
    "begin_batch",
    "spark_location",
    "CleanupPlan.attach",
    "KeyedState.set_guard",
}
"""Names for other packages of the library. Others say so in their docstrings, by a line that begins with "For"."""

MOST_USED = (
    "Checkpointer.begin",
    "Checkpointer.restore",
    "Checkpointer.savepoint",
    "Checkpointer.rollback",
    "Checkpointer.clean",
    "Checkpointer.verify",
    "Checkpointer.read_latest",
    "Checkpoint.save",
    "Checkpoint.snapshot",
    "Restored.keyed",
    "KeyedState.update",
)


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls", "args", "kwargs")]


def missing(function: Any, text: str) -> list[str]:
    """Return the parameters that a docstring names neither in `Args:` nor between backticks."""
    return [
        name for name in parameters(function) if not re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`|^\s+{name}: ", text, re.M)
    ]


def methods() -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of public classes that were written for them."""
    for owner in PUBLIC.values():
        if not isinstance(owner, type):
            continue
        for name in dir(owner):
            found = inspect.getattr_static(owner, name)
            function = getattr(found, "fget", None) or getattr(found, "__func__", found)
            if not name.startswith("_") and callable(function) and not is_internal(owner, name, function):
                yield f"{owner.__name__}.{name}", found


def is_internal(owner: type, name: str, function: Any) -> bool:
    """Return whether a method is for other packages of the library, or was inherited from another library."""
    ours = (getattr(function, "__module__", None) or "").startswith("pyspark_checkpointer")
    listed = {name, f"{owner.__name__}.{name}"} & INTERNAL
    return not ours or bool(listed) or bool(re.search(r"^For `", inspect.getdoc(function) or "", re.M))


METHODS = dict(methods())


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_described_with_its_parameters_and_an_example(name: str) -> None:
    found = PUBLIC[name]
    text = inspect.getdoc(found) or ""
    assert text
    assert len(text.splitlines()[0]) <= 117
    assert "__init__" not in text
    assert ">>> " in text, "no example"
    if found not in RETURNED:
        assert missing(found, text) == []


@pytest.mark.parametrize("name", METHODS)
def test_a_public_method_is_described_with_its_parameters(name: str) -> None:
    found = METHODS[name]
    text = inspect.getdoc(found) or ""
    assert text
    if not isinstance(found, property):
        assert missing(getattr(found, "__func__", found), text) == []


def test_the_methods_that_are_used_most_have_examples() -> None:
    assert [name for name in MOST_USED if ">>> " not in (inspect.getdoc(METHODS[name]) or "")] == []


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_says_what_happened(name: str) -> None:
    assert inspect.getdoc(vars(errors)[name])


def named(path: str) -> Any:
    """Return what a path of the reference means: a module before anything else of that name, as on the site."""
    module, rest = path, []
    while module not in sys.modules:
        try:
            importlib.import_module(module)
        except ImportError:
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
    return functools.reduce(getattr, rest, sys.modules[module])


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    shown = [named(path) for path in re.findall(r"^::: (\S+)$", pages, re.M)]
    left_out = {"AsyncCheckpoint", "AsyncPrepared", "AsyncRestored", "AsyncRestoredOperator"}  # as those that block
    assert [
        name for name, what in PUBLIC.items() if what not in shown and name.rpartition(".")[2] not in left_out
    ] == []


# ---- the examples ---------------------------------------------------------------------------------------------------

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


async def play(text: str, where: str, names: dict[str, Any]) -> None:
    """Run the examples of a docstring. As in a notebook, they may await at the top level."""
    for example in doctest.DocTestParser().get_examples(text, where):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(example.source, f"<{where}>", "single", flags=flags, dont_inherit=True)
        with redirect_stdout(io.StringIO()) as out:
            answer = eval(code, names)
            if inspect.iscoroutine(answer):
                await answer
        said = out.getvalue()
        if not example.want and said.startswith("<"):  # an object that nobody looks at, such as what start() returns
            continue
        assert doctest.OutputChecker().check_output(example.want, said, OPTIONS), (
            f"{where}: {example.source.strip()}\nexpected {example.want!r}, found {said!r}"
        )


def examples() -> Iterator[tuple[str, list[str]]]:
    """Yield what to run in one folder: the example of a class alone, and then with each of its methods'."""
    for name, found in PUBLIC.items():
        text = inspect.getdoc(found) or ""
        yield name, [text]
        for method, function in METHODS.items():
            owner, _, last = method.partition(".")
            if isinstance(found, type) and owner == found.__name__ and ">>> " in (inspect.getdoc(function) or ""):
                yield f"{name}.{last}", [text, inspect.getdoc(function) or ""]


EXAMPLES = dict(examples())


def names_for(name: str) -> dict[str, Any]:
    """Return the names that an example may use without importing them: those of its own module."""
    modules = (pyspark_checkpointer, pyspark_checkpointer.spark)
    names = {public: getattr(module, public) for module in modules for public in module.__all__}
    return names | {"__name__": name}


def uses_spark(texts: list[str]) -> bool:
    return any(re.search(r"\bspark\b|state/shop|@stateful", text) for text in texts)


@pytest.mark.parametrize("name", [name for name, texts in EXAMPLES.items() if not uses_spark(texts)])
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def run() -> None:
        names = names_for(name)
        for text in EXAMPLES[name]:
            await play(text, name, names)

    if any("await " in text for text in EXAMPLES[name]):
        asyncio.run(run())
    else:  # what blocks is not called from an event loop
        with pytest.raises(StopIteration):
            run().send(None)


def run_with_spark() -> None:
    """Run the examples that need Spark, one after the other in this folder."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    chosen = [name for name, texts in EXAMPLES.items() if uses_spark(texts)]
    chosen.sort(key=lambda name: not name.endswith(".State"))  # the others read what it writes
    done: dict[str, dict[str, Any]] = {}
    for name in chosen:
        with_spark = names_for(name) | {"spark": spark}
        for text in EXAMPLES[name]:
            if text in done:  # The example of a class, which those of its methods go on from: its query ran already.
                with_spark |= done[text]
                continue
            done[text] = with_spark
            with_text = play(text, name, with_spark)
            try:
                with_text.send(None)
            except StopIteration:
                print("ran", name)


def test_the_examples_with_spark_run(tmp_path: Path) -> None:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    program = "from tests.test_docs import run_with_spark; run_with_spark()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("ran ") >= 10
