"""The docstrings of public names say what a user needs, and their examples run.

The examples without Spark take about six seconds. Those with Spark share one process, in the JVM of all pages; those of
methods of `State` and `TableState` share one batch of one query. `make docs` builds the pages that are made of them.
"""

import ast
import asyncio
import builtins
import dataclasses
import doctest
import functools
import importlib
import inspect
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Coroutine, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql.datasource import DataSource

import pyspark_checkpointer
import pyspark_checkpointer.spark
from pyspark_checkpointer import errors
from pyspark_checkpointer.client import _async_checkpoint, _sync_checkpoint
from pyspark_checkpointer.consumers.eventhub import aio
from pyspark_checkpointer.consumers.eventprocessorhost import CompleteLease
from pyspark_checkpointer.consumers.kinesis import RecordCheckpointer
from pyspark_checkpointer.spark import TableState
from pyspark_checkpointer.spark.stateful import StatefulSink
from pyspark_checkpointer.storage.base import Store, WrappedStore
from pyspark_checkpointer.testing import Gate, LateWrite
from tests.docs import shared_spark
from tests.docs.shared_spark import SharedSpark
from tests.signing_keys import make_keys

ROOT = Path(__file__).parents[1]

HANDED = ("Checkpoint", "Prepared", "Restored", "RestoredOperator")

RETURNED = [
    *(getattr(_sync_checkpoint, name) for name in HANDED),
    *(getattr(_async_checkpoint, f"Async{name}") for name in HANDED),
    pyspark_checkpointer.CleanupPlan,
    pyspark_checkpointer.spark.OtherState,
    pyspark_checkpointer.spark.State,
    pyspark_checkpointer.spark.TableState,
    StatefulSink,
    CompleteLease,
    RecordCheckpointer,
    Gate,
    LateWrite,
]
"""Classes that users get and never make, so that nobody has to know what their constructors take."""

CALLED_BY_OTHERS = {WrappedStore: Store, DataSource: DataSource}
"""Base classes, each with its interface: methods that the library or Spark calls.

Their docstrings stand in the interface, so the site does not show them.
"""

RAISE_NOTHING = {
    "it only reads what is in memory": [
        *("Checkpointer.copy", "AsyncCheckpointer.copy", "CleanupPlan.total", "RetentionPolicy.kept"),
        *("RepairPlan.outcome", "RepairPlan.summary", "RestoredOperator.chain", "AsyncRestoredOperator.chain"),
        *("CompleteLease.is_owned_by", "ShardLeases.clock", "Faults.paths"),
    ],
    "it only changes what is in memory": [
        "Faults.forget",
        "Faults.clear",
        "Gate.open",
        "ShardLeases.end",
        "Worker.stop",
    ],
    "it only hands Spark what is in memory": ["frame_of"],
    "its errors are those of the block": ["ShardLeases.renewing"],
    "users write it, and it raises what they like": [
        *("RecordProcessor.initialize", "RecordProcessor.process_records", "RecordProcessor.lease_lost"),
        *("RecordProcessor.shard_ended", "RecordProcessor.shutdown_requested"),
    ],
}
"""The functions and methods that need no `Raises:`, by the reason. Others meet a store, Spark or wrong arguments."""


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


def options() -> dict[str, Any]:
    """Return the options of mkdocstrings that all entries of the reference have in common."""
    plugins = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["plugins"]
    found = next(plugin["mkdocstrings"] for plugin in plugins if "mkdocstrings" in plugin)
    return found["handlers"]["python"]["options"]


def entries() -> dict[str, list[str]]:
    """Return the filters of each entry of the reference, by its path. An entry may have filters of its own."""
    pages = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md")))
    found = re.findall(r"^::: (\S+)\n((?: {4}.*\n)*)", pages, re.M)
    return {path: ((yaml.safe_load(own) or {}).get("options") or {}).get("filters", FILTERS) for path, own in found}


FILTERS: list[str] = options()["filters"]

ENTRIES = entries()


def is_hidden(name: str, filters: list[str]) -> bool:
    """Return whether the site leaves a member of this name out. All filters are of names to leave out."""
    return any(re.search(one.removeprefix("!"), name) for one in filters)


def shown() -> dict[str, Any]:
    """Return what the pages of the reference show, by path; of a module its public names."""
    found = {path: named(path) for path in ENTRIES}
    for path, module in list(found.items()):
        if inspect.ismodule(module):
            del found[path]
            found |= {f"{path}.{name}": vars(module)[name] for name in public_names(module)}
    return found


def public_names(module: Any) -> list[str]:
    """Return `__all__`, or the names of the classes and functions that a module without it defines."""
    mine = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return getattr(module, "__all__", None) or [name for name in mine if not name.startswith("_")]


def exported() -> dict[str, Any]:
    """Return what the packages for users export, and the classes that their functions return."""
    modules = (pyspark_checkpointer, pyspark_checkpointer.spark)
    found = {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__}
    return found | {f"{one.__module__}.{one.__name__}": one for one in (*RETURNED, aio.CheckpointStore)}


def by_path(names: dict[str, Any]) -> dict[str, Any]:
    """Return the classes and functions among the values, each by the first of its paths."""
    kept: dict[str, Any] = {}
    for path, found in names.items():
        if (isinstance(found, type) or inspect.isfunction(found)) and found not in kept.values():
            kept[path] = found
    return kept


EXPORTED = by_path(exported())

PUBLIC = by_path(exported() | shown())


def is_plain(found: Any) -> bool:
    """Return whether a class needs neither `Args:` nor an example.

    A record is described by the docstrings of its fields, an exception by when it is raised, and a protocol is a class
    that users write.
    """
    return isinstance(found, type) and (
        dataclasses.is_dataclass(found)
        or issubclass(found, BaseException | tuple)
        or getattr(found, "_is_protocol", False)
    )


def is_named_tuple(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, tuple)


def function_of(found: Any) -> Any:
    """Return the function in a method of any kind, or in a property."""
    return getattr(found, "fget", None) or getattr(found, "__func__", found)


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls", "args", "kwargs")]


def description(found: Any) -> str:
    """Return the docstring; of a class also that of its `__init__`, which the reference merges with it."""
    text = inspect.getdoc(found) or ""
    return f"{text}\n\n{inspect.getdoc(vars(found).get('__init__')) or ''}" if isinstance(found, type) else text


def section(text: str, *titles: str) -> str:
    """Return the lines of these sections of a docstring."""
    return "".join(re.findall(rf"^(?:{'|'.join(titles)}):\n((?:\s+.*\n?|\n)+)", text, re.M))


def missing(found: Any) -> list[str]:
    """Return the parameters that have no line of their own."""
    described = set(re.findall(r"^ {4}(\w+): ", section(description(found), "Args", "Attributes"), re.M))
    return [name for name in parameters(function_of(found)) if name not in described]


def raised(function: Any) -> set[str]:
    """Return the errors of the library that the body of a function raises itself, without those of what it calls.

    What it calls cannot be known without running it, and is told by hand.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)  # Whoever calls these meets their errors.
    found, left = set[str](), [*tree.body[0].body]
    while left:
        node = left.pop()
        left += [] if isinstance(node, inner) else ast.iter_child_nodes(node)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            found.add(node.exc.func.id)
    return found & {*errors.__all__}


def filters_of(owner: type) -> list[str]:
    """Return the filters of the entry that shows a class, alone or with its module; those of all if none shows it."""
    found = [ENTRIES.get(path) or ENTRIES[path.rpartition(".")[0]] for path, what in shown().items() if what is owner]
    return found[0] if found else FILTERS


def methods() -> Iterator[tuple[str, Any]]:
    """Yield the methods and properties of public classes that the site shows, or shows of the blocking twin."""
    for path, owner in PUBLIC.items():
        if not isinstance(owner, type):
            continue
        filters = filters_of(owner)
        for name in dir(owner):
            found = inspect.getattr_static(owner, name)
            function = function_of(found)
            if callable(function) and not is_hidden(name, filters) and not is_of_others(owner, name, function):
                yield f"{path}.{name}", found


def is_of_others(owner: type, name: str, function: Any) -> bool:
    """Return whether a method was inherited from another library, or is described in the interface that it is of."""
    ours = (getattr(function, "__module__", None) or "").startswith("pyspark_checkpointer")
    return not ours or any(one in owner.__mro__ and hasattr(CALLED_BY_OTHERS[one], name) for one in CALLED_BY_OTHERS)


METHODS = dict(methods())

CALLS = {name: found for name, found in (PUBLIC | METHODS).items() if not isinstance(found, type | property)}
"""The functions and methods that users call. A property is described by its first line and what it returns."""


def short(path: str) -> str:
    """Return the name of a function, or that of a class and its method."""
    return re.search(r"(?:[A-Z]\w*\.)?\w+$", path)[0]  # type: ignore[index]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_described(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert text
    assert len(text.splitlines()[0]) <= 117
    assert "__init__" not in text


@pytest.mark.parametrize("name", [name for name, found in PUBLIC.items() if name in EXPORTED or not is_plain(found)])
def test_a_public_name_has_its_arguments_errors_and_an_example(name: str) -> None:
    found = PUBLIC[name]
    assert ">>> " in description(found), "no example"
    if found not in RETURNED:
        assert missing(found) == []
    written = "__post_init__" if dataclasses.is_dataclass(found) else "__init__"  # the other one is generated
    made = [vars(found)[written]] if isinstance(found, type) and written in vars(found) else []
    for function in [found] if inspect.isfunction(found) else made if found not in RETURNED else []:
        assert [error for error in raised(function) if error not in section(description(found), "Raises")] == []


def fields(record: type) -> Iterator[tuple[str, bool]]:
    """Yield each public field that a record adds, and whether a docstring stands below it."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    for node, after in itertools.pairwise([*tree.body, ast.Pass()]):  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            yield node.target.id, isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)


RECORDS = [name for name, found in PUBLIC.items() if dataclasses.is_dataclass(found) or is_named_tuple(found)]


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_described_with_its_fields(name: str) -> None:
    told = re.findall(r"^ {4}(\w+): ", section(description(PUBLIC[name]), "Args", "Attributes"), re.M)
    assert [field for field, described in fields(PUBLIC[name]) if not described and field not in told] == []


@pytest.mark.parametrize("name", METHODS)
def test_a_public_method_is_described_with_its_arguments_and_errors(name: str) -> None:
    found = METHODS[name]
    text = inspect.getdoc(found) or ""
    assert text
    if not isinstance(found, property):
        assert missing(found) == []
        assert [error for error in raised(function_of(found)) if error not in section(text, "Raises")] == []


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_an_example_and_says_what_it_raises(name: str) -> None:
    text = inspect.getdoc(CALLS[name]) or ""
    assert ">>> " in section(text, "Examples"), "no example"
    if short(name) not in [*itertools.chain(*RAISE_NOTHING.values())]:
        assert section(text, "Raises").strip(), "does not say what it raises"


@pytest.mark.parametrize("name", METHODS)
def test_what_is_for_the_library_alone_is_not_on_the_site(name: str) -> None:
    text = inspect.getdoc(METHODS[name]) or ""
    assert not re.search(r"(^|\. )For (`|other packages)|^The layer below", text, re.M)


@pytest.mark.parametrize("reason", RAISE_NOTHING)
def test_an_exception_is_still_one(reason: str) -> None:
    calls = {short(name): inspect.getdoc(found) or "" for name, found in CALLS.items()}
    assert [name for name in RAISE_NOTHING[reason] if name not in calls or section(calls[name], "Raises")] == []


@pytest.mark.parametrize("path", [path for path, filters in ENTRIES.items() if filters is not FILTERS])
def test_each_filter_of_an_entry_leaves_something_out(path: str) -> None:
    found = named(path)
    owners = [vars(found)[name] for name in public_names(found)] if inspect.ismodule(found) else [found]
    names = [name for owner in owners if isinstance(owner, type) for name in dir(owner)]
    assert [one for one in ENTRIES[path] if not any(is_hidden(name, [one]) for name in names)] == []


@pytest.mark.parametrize("name", [*PUBLIC, *METHODS])
def test_what_a_public_name_raises_are_errors(name: str) -> None:
    told = re.findall(r"^ {4}(\w+(?:, \w+)*): ", section(description((PUBLIC | METHODS)[name]), "Raises"), re.M)
    classes = [vars(errors).get(error) or vars(builtins).get(error) for line in told for error in line.split(", ")]
    assert all(isinstance(found, type) and issubclass(found, Exception) for found in classes), told


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_says_what_happened(name: str) -> None:
    assert inspect.getdoc(vars(errors)[name])


def test_the_reference_has_every_public_name() -> None:
    left_out = {_async_checkpoint, aio}  # as those that block
    there = list(shown().values())
    assert [
        name for name, what in EXPORTED.items() if what not in there and sys.modules[what.__module__] not in left_out
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
        yield name, [inspect.getdoc(found) or ""]
    for name, method in METHODS.items():
        if ">>> " in (text := inspect.getdoc(method) or ""):
            yield name, [inspect.getdoc(PUBLIC[name.rpartition(".")[0]]) or "", text]


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
    make_keys(tmp_path / "owner.pem", tmp_path / "driver.pem")

    async def run() -> None:
        names = names_for(name)
        for text in EXAMPLES[name]:
            await play(text, name, names)

    if any("await " in text for text in EXAMPLES[name]):
        asyncio.run(run())
    else:  # what blocks is not called from an event loop
        block(run())


def block(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that awaits nothing, in this thread and without an event loop."""
    with pytest.raises(StopIteration):
        work.send(None)


def run_with_spark() -> None:
    """Run the examples that need Spark, one after the other in this folder."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    chosen = [name for name, texts in EXAMPLES.items() if uses_spark(texts)]
    chosen.sort(key=lambda name: not name.endswith(".State"))  # the others read what it writes
    in_batch = [name for name in chosen if runs_in_batch(name)]
    done: dict[str, dict[str, Any]] = {}
    for name in chosen:
        if name in in_batch:
            continue
        there, with_spark = {*Path().glob("state/*")}, names_for(name) | {"spark": spark}
        for text in EXAMPLES[name]:
            if text in done:  # The example of a class, which those of its methods go on from: its query ran already.
                with_spark |= done[text]
                continue
            done[text] = with_spark
            if "await " in text:
                asyncio.run(play(text, name, with_spark))
            else:
                block(play(text, name, with_spark))
        print("ran", name)
        if name in METHODS:  # the same example of the other half of a pair begins anew
            for made in {*Path().glob("state/*")} - there:
                shutil.rmtree(made)
    run_in_batch(spark, in_batch)


def runs_in_batch(name: str) -> bool:
    """Return whether an example runs in a function that `stateful` decorates, with the names of its arguments."""
    owner = PUBLIC.get(name.rpartition(".")[0])
    in_batch = (pyspark_checkpointer.spark.State, TableState, pyspark_checkpointer.spark.OtherState)
    return owner in in_batch and "@stateful" not in EXAMPLES[name][-1]


def run_in_batch(spark: Any, chosen: list[str]) -> None:
    """Run the examples of methods of `State` and `TableState` in one batch of one query."""
    rows = spark.createDataFrame([(0, 8), (1, 9)], "digit long, value long")

    @pyspark_checkpointer.spark.stateful("state/reference")
    def update(batch: Any, batch_id: int, state: Any) -> None:
        for name in chosen:
            names = names_for(name) | {"spark": spark, "batch": batch, "batch_id": batch_id, "state": state}
            if METHODS[name] in vars(TableState).values():
                names["table"] = state.table(f"for-{name}", ["digit"], num_partitions=2)
                names["table"].upsert(rows)
            block(play(EXAMPLES[name][-1], name, names))
            print("ran", name)

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = numbers.writeStream.option("checkpointLocation", "state/reference-spark")
    writer.foreachBatch(update).trigger(availableNow=True).start().awaitTermination()


def test_the_examples_with_spark_run(tmp_path: Path, one_spark: SharedSpark) -> None:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    program = tmp_path / "run.py"
    program.write_text("from tests.test_docs import run_with_spark; run_with_spark()")
    done = subprocess.run(
        [sys.executable, shared_spark.__file__, program],
        cwd=one_spark.empty(),
        env=environment | one_spark.environment,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("ran ") == sum(map(uses_spark, EXAMPLES.values()))
