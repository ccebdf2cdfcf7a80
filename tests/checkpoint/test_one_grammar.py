"""Everything that is asked which checkpoint is meant takes every form of the grammar.

The test finds what is asked: parameters of public classes and functions, arguments and options of the command line, and
options of the data source. One that is new has to be entered in a table here, and is then tried with each form.
"""

import inspect
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import pyspark_checkpointer
from pyspark_checkpointer import Checkpointer, spark
from pyspark_checkpointer.cli.app import checkpointer as command_line
from pyspark_checkpointer.cli.arguments import CHECKPOINT
from pyspark_checkpointer.client import _async, _async_checkpoint, _sync, _sync_checkpoint
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.spark import change_feed, difference, read
from pyspark_checkpointer.spark.source_options import OPTIONS, ReadRequest
from tests.admin.streaming.spark_model import history
from tests.cli.conftest import Result, Run, run
from tests.proof.plain_spark import new_state
from tests.table.plain_store import plain_store, upsert

__all__ = ["run"]

BATCH = 1
"""The epoch of the checkpoint that all forms below mean. Its sequence is 2."""

FORMS: dict[str, Callable[[CheckpointId, str], str]] = {
    "an id": lambda known, made: str(known),
    "a sequence of ten digits": lambda known, made: str(known)[:10],
    "the beginning of an id": lambda known, made: str(known)[:14],
    "the short beginning of an id": lambda known, made: f"{known.sequence}-{known.suffix[:4]}",
    "an epoch": lambda known, made: f"epoch={BATCH}",
    "a savepoint": lambda known, made: "savepoint=good",
    "a bare name": lambda known, made: "good",
    "a time": lambda known, made: f"at={made}",
}

REFUSED = {
    "2": "2 could be epoch=2, or checkpoint 0000000002-…: say which",
    "1732345678": "1732345678 could be epoch=1732345678, or checkpoint 1732345678-…: say which",
    "000000002": "000000002 could be epoch=2, or checkpoint 0000000002-…: say which",
    "20260131121500": "20260131121500 could be epoch=20260131121500, or savepoint=20260131121500: say which",
    "epoch=two": "epoch=two: expected a number",
    "at=noon": "at=noon: expected a time such as at=2024-01-02T06:00Z",
}
"""What is no form, or could be two, with what everything says of it."""


class Root:
    """A root of five checkpoints, in which the one that is meant is savepoint "good"."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.client = Checkpointer(path)
        self.ids = self.client.list_checkpoints()
        self.meant = self.ids[BATCH]

    def form(self, name: str) -> str:
        created = self.client.load_manifest(self.meant).created
        assert created is not None
        return FORMS[name](self.meant, created.isoformat())

    def of_epoch(self, epoch: int | None) -> CheckpointId:
        assert epoch is not None
        return self.ids[epoch]

    def of_copy(self, copy: Path | None = None) -> CheckpointId:
        """Return the checkpoint whose content is committed, here or in a copy."""
        with Checkpointer(copy or self.path) as client:
            found = client.restore()
        assert found is not None
        return self.of_epoch(found.epoch)

    def lose_pointer(self) -> None:
        (self.path / "_latest").unlink()


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root that a query wrote, with the query's own checkpoint beside it."""
    root = tmp_path_factory.mktemp("grammar") / "streaming"
    history(str(root))
    Checkpointer(root).savepoint("good", f"epoch={BATCH}")
    return root


@pytest.fixture(scope="module")
def tabular(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a table `t`, whose batches wrote one key each."""
    root = tmp_path_factory.mktemp("grammar") / "tabular"
    with plain_store(str(root)) as store:
        for number in range(5):
            store.batch(upsert(k=[number], v=[number]))
        store.client.savepoint("good", f"epoch={BATCH}")
    return root


@pytest.fixture
def root(streaming: Path, tmp_path: Path) -> Root:
    return Root(Path(shutil.copytree(streaming, tmp_path / "root")))


@pytest.fixture
def table_root(tabular: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """A root with a table. What would be a job of Spark tells which checkpoint it reads."""
    for module in (read, difference, change_feed):
        monkeypatch.setattr(module, "use_driver_python", lambda session: None)
    for module in (read, difference):
        monkeypatch.setattr(module, "scan", lambda session, client, checkpoint, *rest, **options: checkpoint)
    monkeypatch.setattr(change_feed.TaskRoot, "of", lambda client, session: None)
    monkeypatch.setattr(change_feed, "task_numbers", lambda session, count, size: None)
    monkeypatch.setattr(change_feed, "FeedTask", lambda root, feed: feed)
    monkeypatch.setattr(change_feed.ChangeFeed, "run", property(lambda feed: feed), raising=False)
    monkeypatch.setattr(change_feed, "run_tasks", lambda numbers, feed, schema: feed)
    # A difference is compared by Spark: here both sides are handed back.
    monkeypatch.setattr(difference, "_expired_since", lambda old, limits: None)
    monkeypatch.setattr(difference, "_compare", lambda before, after, key, expired: (before, after))
    return Root(tabular)


# ---- Python ----------------------------------------------------------------------------------------------------------


def deleted(root: Root, to: Any) -> CheckpointId:
    before = set(root.client.list_checkpoints())
    if "good" not in str(to):
        if any(point.name == "good" for point in root.client.savepoints()):
            root.client.delete_savepoint("good")
        root.client.delete_checkpoint(to)
        (gone,) = before - set(root.client.list_checkpoints())
        return gone
    with pytest.raises(InvalidStateError, match="is kept by savepoint 'good'") as kept:
        root.client.delete_checkpoint(to)
    found = re.search(r"\d{10}-[0-9a-f]{8}", str(kept.value))
    assert found is not None
    return CheckpointId.parse(found[0])


def verified(root: Root, to: str) -> CheckpointId:
    """The newest one is damaged, and so are all together, so that only an older one is found intact."""
    newest = root.client.load_manifest(root.ids[-1]).operators["sum"].chains
    (root.path / next(iter(newest.values()))[-1].path).write_bytes(b"damaged")
    found = root.client.verify(to)
    assert (found.checkpoints, bool(found)) == (1, True)
    return root.meant


def rolled_back(root: Root, work: Callable[[], object]) -> CheckpointId:
    work()
    return root.of_copy()


def repaired(root: Root, to: str) -> CheckpointId:
    root.lose_pointer()
    Checkpointer(root.path).repair(to)
    return root.of_copy()


def planned(root: Root, to: str) -> CheckpointId:
    root.lose_pointer()
    return Checkpointer(root.path).repair_plan(to).id


def copied(root: Root, to: str) -> CheckpointId:
    root.client.export(to, root.path / "copy")
    return root.of_copy(root.path / "copy")


def restored(root: Root, **wanted: Any) -> CheckpointId:
    found = root.client.restore(**wanted)
    assert found is not None
    assert found.id is not None
    return found.id


def key_history(root: Root, after: str) -> CheckpointId:
    found = root.client.restore()
    assert found is not None
    return found.history("sum", "read", after=after).since


PYTHON: dict[str, Callable[[Root, Any], CheckpointId]] = {
    "Checkpointer.restore(id)": lambda root, to: restored(root, id=to),
    "Checkpointer.savepoint(id)": lambda root, to: root.client.savepoint("another", to).id,
    "Checkpointer.rollback(to)": lambda root, to: rolled_back(root, lambda: root.client.rollback(to)),
    "Checkpointer.export(what)": copied,
    "Checkpointer.export_parquet(what)": lambda root, to: root.of_epoch(
        root.client.export_parquet(to, root.path / "tables").epoch
    ),
    "Checkpointer.rewind(to)": lambda root, to: root.client.rewind(to=to, dry_run=True).to,
    "Checkpointer.fork(what)": lambda root, to: root.of_epoch(
        root.client.fork(to, root.path / "copy", root.path / "copy-spark").batch
    ),
    "Checkpointer.repair_plan(to)": planned,
    "Checkpointer.repair(to)": repaired,
    "Checkpointer.load_manifest(id)": lambda root, to: root.client.load_manifest(to).id,
    "Checkpointer.update_latest(id)": lambda root, to: rolled_back(root, lambda: root.client.update_latest(to)),
    "Checkpointer.verify(id)": verified,
    "Checkpointer.delete_checkpoint(id)": deleted,
    "Restored.history(after)": key_history,
    "State.other(start)": lambda root, to: (
        new_state(Checkpointer(f"memory://{root.path}"), None, 0).other(str(root.path), start=to).id
    ),
}

SPARK: dict[str, Callable[[Root, Any], Any]] = {
    "read_state(id)": lambda root, to: read.read_state(None, root.path, "t", id=to),  # type: ignore[arg-type]
    "diff(a)": lambda root, to: difference.diff(None, root.path, to, "latest", "t")[0],  # type: ignore[arg-type, index]
    "diff(b)": lambda root, to: difference.diff(None, root.path, "epoch=0", to, "t")[1],  # type: ignore[arg-type, index]
    "read_changes(after)": lambda root, to: before_first(
        change_feed.read_changes(None, root.path, "t", after=to), root
    ),  # type: ignore[arg-type]
    "read_changes(to)": lambda root, to: change_feed.read_changes(None, root.path, "t", to=to).to,  # type: ignore[arg-type]
    "option id": lambda root, to: CheckpointId.parse(pinned(root, id=to).checkpoint or ""),
    "option after": lambda root, to: CheckpointId.parse(pinned(root, view="changes", after=to).after or ""),
    "option to": lambda root, to: CheckpointId.parse(pinned(root, view="changes", to=to).to or ""),
}
"""What runs jobs of Spark, and the options of the data source."""

KEYWORDS = {
    "Checkpointer.restore(epoch)": lambda root: restored(root, epoch=BATCH),
    "Checkpointer.restore(savepoint)": lambda root: restored(root, savepoint="good"),
}
"""The forms `epoch=` and `savepoint=` as keywords."""

SPARK_KEYWORDS: dict[str, Callable[[Root], Any]] = {
    "read_state(epoch)": lambda root: read.read_state(None, root.path, "t", epoch=BATCH),  # type: ignore[arg-type]
    "read_state(savepoint)": lambda root: read.read_state(None, root.path, "t", savepoint="good"),  # type: ignore[arg-type]
    "option epoch": lambda root: CheckpointId.parse(pinned(root, epoch=str(BATCH)).checkpoint or ""),
    "option savepoint": lambda root: CheckpointId.parse(pinned(root, savepoint="good").checkpoint or ""),
}

OTHERWISE = {
    "Checkpointer.begin(epoch)": "it is the epoch of a checkpoint that is not made yet",
    "Checkpointer.begin_batch(epoch)": "it is the epoch of a checkpoint that is not made yet",
    "Checkpointer.save_snapshot(id)": "it is the id of an attempt that is not committed yet, so nothing knows it",
    "Checkpointer.save_delta(id)": "it is the id of an attempt that is not committed yet, so nothing knows it",
    "State.advance_clock(to)": "it is a time",
    "KeyedState.set_rule(after)": "it is a lifetime",
}
"""Parameters that name no live checkpoint, and why."""

TIMELESS = {
    "Checkpointer.repair_plan(to)": "nothing proves which candidate was the committed one at that time",
    "Checkpointer.repair(to)": "nothing proves which candidate was the committed one at that time",
    "repair --to": "nothing proves which candidate was the committed one at that time",
}
"""What refuses `at=`, and says so."""

NAMES = {"id", "epoch", "savepoint", "checkpoint", "to", "what", "a", "b", "after", "before", "start", "at"}
"""Names that a parameter has which says which checkpoint is meant."""


def pinned(root: Root, **options: str) -> ReadRequest:
    return ReadRequest.of({"path": str(root.path), "operator": "t", **options}).pin()


def before_first(feed: Any, root: Root) -> CheckpointId:
    """Return the checkpoint before the first one of a feed, in which each checkpoint changes the table."""
    first = min(step.checkpoint for task in feed.tasks for step in task)
    return root.ids[root.ids.index(first) - 1]


def asked(function: Any) -> Iterator[str]:
    """The parameters of a public function that say which checkpoint is meant."""
    for name, parameter in inspect.signature(function).parameters.items():
        if name in NAMES or "CheckpointId" in str(parameter.annotation):
            yield name


def public_classes() -> Iterator[type]:
    for module in (pyspark_checkpointer, spark):
        yield from (value for name in module.__all__ if inspect.isclass(value := getattr(module, name)))
    for module in (_async, _async_checkpoint, _sync, _sync_checkpoint):
        yield from (value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__)


def asked_of_python() -> set[str]:
    found = set()
    for owner in {one for one in public_classes() if inspect.isclass(one)}:
        for name, method in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_") and method.__module__.startswith("pyspark_checkpointer"):
                found |= {f"{owner.__name__.removeprefix('Async')}.{name}({one})" for one in asked(method)}
    for name in spark.__all__:
        if inspect.isfunction(function := getattr(spark, name)):
            found |= {f"{name}({one})" for one in asked(function)}
    return found


def test_everything_of_python_that_is_asked_is_tried_here() -> None:
    tried = {*PYTHON, *SPARK, *KEYWORDS, *SPARK_KEYWORDS, *OTHERWISE}
    assert asked_of_python() == {name for name in tried if not name.startswith("option ")}


def test_every_option_of_the_data_source_that_is_asked_is_tried_here() -> None:
    others = {"path", "operator", "view", "columns", "follower", "storage_options", "fencing", "encryption", "signing"}
    tried = {name.removeprefix("option ") for name in {*SPARK, *SPARK_KEYWORDS} if name.startswith("option ")}
    assert {*OPTIONS} - others == tried


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", PYTHON)
def test_python_takes_every_form(root: Root, place: str, form: str) -> None:
    to = root.form(form)
    if form == "a time" and place in TIMELESS:
        with pytest.raises(IllegalArgumentError, match=TIMELESS[place]):
            PYTHON[place](root, to)
    else:
        assert PYTHON[place](root, to) == root.meant


@pytest.mark.parametrize("place", PYTHON)
def test_python_refuses_alike(root: Root, place: str) -> None:
    before = root.client.list_checkpoints()
    refuses_alike(root, PYTHON[place])
    if place not in TIMELESS:  # else `_latest` is gone
        assert root.client.list_checkpoints() == before


def refuses_alike(root: Root, ask: Callable[[Root, Any], Any], *, numbers: bool = True) -> None:
    pointer = (root.path / "_latest").read_bytes()
    for text, said in {**REFUSED, **({2: REFUSED["2"]} if numbers else {})}.items():
        (root.path / "_latest").write_bytes(pointer)
        with pytest.raises(IllegalArgumentError) as refused:
            ask(root, text)
        assert str(refused.value) == said


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", SPARK)
def test_what_reads_with_spark_takes_every_form(table_root: Root, place: str, form: str) -> None:
    assert SPARK[place](table_root, table_root.form(form)) == table_root.meant


@pytest.mark.parametrize("place", SPARK)
def test_what_reads_with_spark_refuses_alike(table_root: Root, place: str) -> None:
    refuses_alike(table_root, SPARK[place], numbers=not place.startswith("option "))


@pytest.mark.parametrize("place", KEYWORDS)
def test_the_keywords_are_two_of_the_forms(root: Root, place: str) -> None:
    assert KEYWORDS[place](root) == root.meant


@pytest.mark.parametrize("place", SPARK_KEYWORDS)
def test_the_keywords_of_what_reads_with_spark_are_two_of_the_forms(table_root: Root, place: str) -> None:
    assert SPARK_KEYWORDS[place](table_root) == table_root.meant


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epoch": "two"}, "epoch=two: expected a number"),
        ({"epoch": "1_0"}, "epoch=1_0: expected a number"),
        ({"id": "latest", "epoch": "1"}, "option id, epoch and savepoint: give one of them, not latest and epoch=1"),
    ],
)
def test_the_options_of_the_data_source_have_no_grammar_of_their_own(
    table_root: Root, options: dict[str, str], said: str
) -> None:
    with pytest.raises(IllegalArgumentError) as refused:
        pinned(table_root, **options)
    assert str(refused.value) == said


# ---- the command line ------------------------------------------------------------------------------------------------


def named(root: Root, done: Result) -> bool:
    """Return whether the answer has the id of the checkpoint that is meant."""
    return str(root.meant) in done.out


SHELL: dict[str, tuple[Callable[[str, Path], tuple[object, ...]], Callable[[Root, Result], bool]]] = {
    "show CHECKPOINT": (lambda to, beside: (to,), named),
    "tree CHECKPOINT": (lambda to, beside: (to,), named),
    "diff BEFORE": (lambda to, beside: (to, "latest"), lambda root, done: done.json["before"] == str(root.meant)),
    "diff AFTER": (lambda to, beside: ("latest", to), lambda root, done: done.json["after"] == str(root.meant)),
    "history --after": (
        lambda to, beside: ("sum", "read", "--after", to),
        lambda root, done: done.json["since"] == str(root.meant),
    ),
    "history --to": (
        lambda to, beside: ("sum", "read", "--to", to),
        lambda root, done: done.json["changes"][-1]["id"] == str(root.meant),
    ),
    "cat --checkpoint": (
        lambda to, beside: ("sum", "--checkpoint", to),
        lambda root, done: {"read": 10 * BATCH + 10}.items() <= {one["key"]: one["value"] for one in done.json}.items(),
    ),
    "verify CHECKPOINT": (lambda to, beside: (to,), lambda root, done: done.json["checkpoints"] == 1),
    "savepoint CHECKPOINT": (lambda to, beside: ("another", to), named),
    "rewind CHECKPOINT": (lambda to, beside: (to, "--dry-run"), named),
    "fork CHECKPOINT": (
        lambda to, beside: (to, beside / "copy", beside / "copy-spark"),
        lambda root, done: done.json["batch"] == BATCH,
    ),
    "rollback CHECKPOINT": (lambda to, beside: (to, "--yes"), named),
    "delete CHECKPOINT": (lambda to, beside: (to, "--yes"), named),
    "export CHECKPOINT": (lambda to, beside: (to, beside / "copy"), named),
    "repair --to": (lambda to, beside: ("--to", to, "--yes"), named),
}
"""The words behind verb and root, and whether the answer is of the checkpoint that is meant."""


def parameters() -> Iterator[tuple[str, click.Parameter]]:
    for verb, command in command_line.commands.items():
        for parameter in command.params:
            option = isinstance(parameter, click.Option)
            yield f"{verb} {parameter.opts[-1] if option else str(parameter.name).upper()}", parameter


def test_every_argument_of_the_command_line_that_is_asked_is_tried_here() -> None:
    asked = {
        place
        for place, parameter in parameters()
        if parameter.type is CHECKPOINT or {str(parameter.name), *(o.lstrip("-") for o in parameter.opts)} & NAMES
    }
    assert asked == {*SHELL}
    assert [place for place, parameter in parameters() if place in SHELL and parameter.type is not CHECKPOINT] == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", SHELL)
def test_the_command_line_takes_every_form(root: Root, tmp_path: Path, run: Run, place: str, form: str) -> None:
    to, (words, is_meant) = root.form(form), SHELL[place]
    if place == "repair --to":
        root.lose_pointer()
    if place == "delete CHECKPOINT" and "good" not in to:
        root.client.delete_savepoint("good")
    done = run(place.split()[0], root.path, *words(to, tmp_path), "--json")
    if place in TIMELESS and form == "a time":
        assert (done.status, TIMELESS[place] in done.err) == (2, True)
    elif place == "delete CHECKPOINT" and "good" in to:
        assert (done.status, str(root.meant) in done.err) == (1, True), "a savepoint keeps it"
    else:
        assert done.status == 0, done
        assert is_meant(root, done)


@pytest.mark.parametrize("place", SHELL)
def test_the_command_line_refuses_alike(root: Root, tmp_path: Path, run: Run, place: str) -> None:
    for text, said in REFUSED.items():
        done = run(place.split()[0], root.path, *SHELL[place][0](text, tmp_path))
        assert (done.status, done.out, done.err) == (2, "", f"checkpointer: {said}\n")
