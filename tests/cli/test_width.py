"""On a terminal of any width, each name, id, path and sentence of a result is on the screen, whole."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from pyspark_checkpointer.cli import cleanup, screen, table
from pyspark_checkpointer.cli.app import VERBS
from pyspark_checkpointer.cli.table import TextColumn, arrange
from tests.cli.conftest import Run
from tests.cli.every import LONG_PATH, OPERATOR, SAVEPOINT, Call, calls

TELLING = {
    "id", "name", "names", "operator", "operators", "savepoints", "savepoint", "path", "problem", "problems", "reason",
    "referenced_by", "owner", "group", "partition", "left", "to", "new", "kept_in", "cut", "written", "root",
    "content_of", "before", "after", "key", "deleted", "query_id", "spark_checkpoint", "state", "action", "kind",
    "codec", "file",
}  # fmt: skip
"""Fields whose values identify something."""


def telling(value: Any, field: str = "") -> Iterator[str]:
    """Yield each word of each such value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from telling(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from telling(inner, field)
    elif isinstance(value, str) and field in TELLING:
        yield from value.split()


@pytest.fixture(params=[80, 100, 200, None], ids=lambda columns: str(columns or "pipe"))
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Stand in for a terminal of some width, or for a pipe."""
    found: int | None = request.param
    if found is not None:

        def is_terminal(stream: TextIO) -> bool:
            return stream is sys.stdout

        monkeypatch.setattr(screen, "is_terminal", is_terminal)
        monkeypatch.setenv("COLUMNS", str(found))
        monkeypatch.setenv("NO_COLOR", "1")
    return found


COUNTED = {
    "list": ("operators",),
    "show": ("schema",),
    "stats": ("schema", "codec"),
    "plan": ("id", "root"),
    "tree": ("path", "schema"),
}
"""Fields of which a verb shows only the number, or the beginning."""


def missing(call: Call, document: Any, shown: str) -> set[str]:
    """Return the words that are not on the screen."""
    left_out = {word for name in COUNTED.get(call.form, ()) for word in telling({name: _of(document, name)})}
    return {word for word in telling(document) if word not in shown} - left_out


def _of(value: Any, field: str) -> list[Any]:
    """Return the values of a field, on all levels of a JSON value."""
    if isinstance(value, dict):
        return [found for name, inner in value.items() for found in ([inner] if name == field else _of(inner, field))]
    return [found for inner in value for found in _of(inner, field)] if isinstance(value, list) else []


CHANGING = {
    "savepoint NAME",
    "savepoint --delete",
    "rollback",
    "delete",
    "clean",
    "export",
    "export --format parquet",
    "encrypt",
    "rekey",
    "cleaners --allow",
    "signers --owner",
    "repair --to",
    "fork",
}


def test_nothing_that_tells_rows_apart_is_ever_hidden(tmp_path: Path, run: Run, columns: int | None) -> None:
    """All that a verb prints as JSON is on the screen; of a verb that changes something, all but its own arguments."""
    seen = set()
    for call in calls(tmp_path):
        verb = call.form.split()[0]
        seen.add(verb)
        if verb in ("report", "cat"):
            continue  # a page, and JSON lines
        document: Any = None
        if call.form not in CHANGING and "--yes" not in call.args:
            done = run(verb, *call.args, "--json")
            assert done.status == call.status, done
            document = done.json
        shown = run(verb, *call.args)
        assert (shown.status, shown.err) == (call.status, ""), shown
        assert missing(call, document, shown.out) == set(), (call, shown.out)
        written = [arg for arg in call.args[1:] if len(arg) > 40 and call.form in CHANGING and arg != SAVEPOINT]
        # Where keys are may be nobody's business.
        written = [
            arg for arg in written if not arg.startswith("key-file:") and ".pem" not in arg and ".pub" not in arg
        ]
        assert all(name in shown.out for name in written), (call, shown.out)
        if columns is not None:
            assert "…" not in shown.out.replace(" …", "")
    assert seen == {command.name for command in VERBS}


@pytest.mark.parametrize("columns", [80], indirect=True)
def test_a_plan_shows_paths_and_reasons_at_80_columns(tmp_path: Path, run: Run, columns: int) -> None:
    root = next(iter(calls(tmp_path))).args[0]
    lines = run("plan", root, "--rows", "--keep-last", 1).out.splitlines()
    assert lines[0].split() == ["ACTION", "SIZE", "NAMED", "BY"]
    reasons = [line.removeprefix("  REASON  ") for line in lines if line.startswith("  REASON  ")]
    assert any(f"savepoint '{SAVEPOINT[:59]}7'" in reason for reason in reasons)
    paths = [line.split()[1] for line in lines if line.startswith("  PATH  ")]
    assert len(paths) == len([path for path in Path(root).rglob("*") if path.is_file() and path.name[0] != "."])
    assert all(path == "_latest" or "/" in path for path in paths)
    assert len(paths) == len(reasons)
    assert all(len(line) <= columns for line in lines if not line.startswith(("  PATH", "  REASON")))


@pytest.mark.parametrize("columns", [80], indirect=True)
def test_a_list_shows_names_of_sixty_characters(tmp_path: Path, run: Run, columns: int) -> None:
    root = next(iter(calls(tmp_path))).args[0]
    shown = run("list", root).out
    assert f"  SAVEPOINTS  {SAVEPOINT}, {SAVEPOINT[:59]}7\n" in shown
    assert "AGE" in shown.splitlines()[0]  # there is room again
    assert OPERATOR in run("show", root).out
    assert f"s3://{LONG_PATH}/2" in run("show", root).out


def fitted(columns: list[TextColumn], cells: list[list[str]], room: int) -> tuple[dict[int, int], tuple[int, ...], Any]:
    found = arrange(columns, cells, room, len)
    return found.widths, found.alone, found.left_out


def test_columns_find_their_places_by_one_rule() -> None:
    columns = [TextColumn("ID"), TextColumn("AGE", extra=True), TextColumn("PATH"), TextColumn("REASON", prose=True)]
    row = ["1" * 10, "2" * 10, "p" * 30, "it is no longer needed by anybody at all"]
    assert fitted(columns, [row], 200) == ({0: 10, 1: 10, 2: 30, 3: 40}, (), ())
    assert fitted(columns, [row], 82) == ({0: 10, 1: 10, 2: 30, 3: 26}, (), ())  # prose is broken
    assert fitted(columns, [row], 70) == ({0: 10, 2: 30, 3: 26}, (), (1,))  # extra columns go
    assert fitted(columns, [row], 60) == ({0: 10, 1: 10, 3: 36}, (2,), ())  # then the widest gets a line of its own
    assert fitted(columns, [row], 5) == ({}, (0, 2, 3), (1,))


def test_no_word_is_ever_broken() -> None:
    assert table.broken("a bb  ccc dddd", 6, len) == ["a bb ", "ccc", "dddd"]
    assert table.broken("short", 5, len) == ["short"]
    assert cleanup._ROWS[2].title == "PATH"
