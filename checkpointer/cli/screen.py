"""Print results as JSON, or for people.

JSON is for scripts; tables, trees and progress are for a terminal; plain columns are for anything else.
"""

import codecs
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TextIO

from pyspark_checkpointer.cli.table import GAP, TextColumn, arrange, row_lines
from pyspark_checkpointer.display import size
from pyspark_checkpointer.runtime.host import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
"""Characters that a terminal acts on, or does not show.

In JSON only strings have them, as escapes.
"""

_NOT_ASCII = re.compile("[^\x00-\x7f]")
"""Characters of JSON text that only strings have."""

_EMPTY_CELL = "-"
"""The text of a cell without a value."""

_TREE_WIDTH = 10_000
"""A width greater than any line of a tree.

rich would cut a longer line, and a terminal breaks it by itself.
"""

_STYLES = {
    "committed": "green",
    "prepared": "yellow",
    "kept": "cyan",
    "added": "green",
    "inserted": "green",
    "deleted": "red",
    "updated": "yellow",
    "removed": "red",
    "changed": "yellow",
    "missing": "red",
    "damaged": "red",
}


@dataclass(frozen=True, slots=True)
class Node:
    """A line of a tree, and the nodes below it."""

    label: str
    children: "tuple[Node, ...]" = ()


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that understands control sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def may_colour(stream: TextIO) -> bool:
    """Return whether colours may be printed to a stream. See https://no-color.org."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def visible(text: str) -> str:
    """Return a text that cannot move the cursor, change colours, or hide anything."""
    return _UNPRINTABLE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    """Return a character as JSON escapes it, in units of UTF-16."""
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def to_text(value: object, *, indent: int | None = None) -> str:
    """Return a JSON value on one line, or indented."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    # Line by line: line ends are control characters too, and those of indented JSON have to stay.
    return "\n".join(map(visible, text.split("\n")))


def to_output(value: object, *, indent: int | None = None, stream: TextIO | None = None) -> str:
    """Return a JSON value as it is printed to stdout, or to another stream.

    JSON is UTF-8: for a stream of another encoding, all but ASCII is escaped.
    """
    encoding = (stream or sys.stdout).encoding or "utf-8"
    text = to_text(value, indent=indent)
    return text if codecs.lookup(encoding).name == "utf-8" else _NOT_ASCII.sub(_escape, text)


def print_json(value: object) -> None:
    """Print a JSON value, indented."""
    print(to_output(value, indent=2))


def print_line(text: str = "") -> None:
    """Print a line without control characters."""
    print(visible(text))


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair on a line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print_line(f"{name.ljust(width)}  {_cell(value)}")


def print_table(columns: Sequence[TextColumn], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their titles; None is shown as `-`."""
    cells = [[_cell(value) for value in row] for row in rows]
    if is_terminal(sys.stdout):
        _print_on_terminal(columns, cells)
        return
    titles = [column.title for column in columns]
    widths = [max(map(len, texts)) for texts in zip(titles, *cells, strict=True)]
    for line in [titles, *cells]:
        padded = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        )
        print(GAP.join(padded).rstrip())


def _print_on_terminal(columns: Sequence[TextColumn], cells: list[list[str]]) -> None:
    """Print a table that fits the width of the terminal, in colour. See `arrange`."""
    from rich.cells import cell_len
    from rich.text import Text

    console = _console(sys.stdout)
    arrangement = arrange(columns, cells, console.width, cell_len)

    def line(texts: Mapping[int, str], style: Callable[[str], str]) -> Text:
        made = Text()
        for n, width in arrangement.widths.items():
            text = texts.get(n, "")
            space = " " * (width - cell_len(text))
            made.append(space if columns[n].right else "").append(text, style(text))
            made.append("" if columns[n].right else space).append(GAP)
        made.rstrip()
        return made

    def put(text: Text) -> None:
        console.print(text, soft_wrap=True)  # the terminal breaks longer lines itself, and copies them whole

    if arrangement.widths:
        put(line({n: columns[n].title for n in arrangement.widths}, lambda _: "bold"))
        put(Text("─" * (sum(arrangement.widths.values()) + len(GAP) * (len(arrangement.widths) - 1)), style="dim"))
    first = min(arrangement.widths, default=0)
    for row in cells:
        alone = {
            n: Text.assemble(GAP, (columns[n].title, "bold"), GAP, (row[n], _STYLES.get(row[n], "")))
            for n in arrangement.alone
            if row[n] != _EMPTY_CELL
        }
        for n in alone:
            if n < first:  # these cells say what the row is about
                put(alone[n])
        for texts in row_lines(row, arrangement.widths, cell_len):
            put(line(texts, lambda text: _STYLES.get(text, "")))
        for n in alone:
            if n >= first:
                put(alone[n])
        if arrangement.alone:
            put(Text())
    if arrangement.left_out:
        titles = ", ".join(columns[n].title for n in arrangement.left_out)
        put(Text(f"a wider terminal also shows {titles}", style="dim"))


def print_tree(root: Node) -> None:
    """Print a tree: with lines on a terminal, indented anywhere else."""
    if not is_terminal(sys.stdout):
        for depth, label in _flat(root, 0):
            print_line("  " * depth + label)
        return
    _console(sys.stdout, _TREE_WIDTH).print(_rich_tree(root))


def _flat(node: Node, depth: int) -> Iterator[tuple[int, str]]:
    yield depth, node.label
    for child in node.children:
        yield from _flat(child, depth + 1)


def _rich_tree(node: Node) -> "Tree":
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(visible(node.label)), guide_style="dim")
    tree.children = [_rich_tree(child) for child in node.children]
    return tree


def _cell(value: object) -> str:
    return _EMPTY_CELL if value is None or value == "" else visible(str(value))


def _console(stream: TextIO, width: int | None = None) -> "Console":
    from rich.console import Console

    colours: Any = "auto" if may_colour(stream) else None
    # Names from a store are text: rich must not take brackets for markup, or `:x:` for an emoji.
    return Console(file=stream, width=width, color_system=colours, markup=False, emoji=False, highlight=False)


def one_line(message: str) -> str:
    """Return a message without line ends.

    Spaces stay as they are: they may be those of a root in a command.
    """
    return " ".join(filter(None, map(str.strip, message.splitlines())))


def complain(who: str, message: str) -> None:
    """Print one sentence to stderr, after the name of the command that says it."""
    mark = f"\x1b[1;31m{who}:\x1b[0m" if may_colour(sys.stderr) else f"{who}:"
    print(mark, visible(one_line(message)), file=sys.stderr)


def print_error(value: object) -> None:
    """Print a JSON value to stderr, on one line. Only results go to stdout."""
    print(to_output(value, stream=sys.stderr), file=sys.stderr)


@contextmanager
def progress(doing: str, unit: Literal["bytes", "items"]) -> Iterator[Progress | None]:
    """Show a progress bar on stderr while the block runs, and yield its callback.

    Without a terminal, yield None.
    """
    # Without a terminal the control sequences of a bar would fill a log.
    if not is_terminal(sys.stderr):
        yield None
        return
    from rich import progress as bars
    from rich.text import Text

    class Rate(bars.ProgressColumn):
        def render(self, task: bars.Task) -> Text:
            speed = int(task.speed or 0)
            return Text(f"{size(speed) if unit == 'bytes' else speed}/s")

    done = bars.DownloadColumn(binary_units=True) if unit == "bytes" else bars.MofNCompleteColumn()
    columns = ("{task.description}", bars.BarColumn(), done, Rate(), bars.TimeRemainingColumn())
    # What goes to stdout must stay there: by default Rich would send it to the bar's console.
    console = _console(sys.stderr)
    with bars.Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda now, total: bar.update(task, completed=now, total=total)
