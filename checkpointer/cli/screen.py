"""Showing things: JSON for scripts; tables, trees and progress on a terminal; plain columns anywhere else."""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TextIO

from checkpointer.host import Progress
from manifests.model import Json
from manifests.words import size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
"""Characters that a terminal acts on, or does not show. In JSON they stand in texts only, where they can be escaped."""

_GAP = "  "

_UNCUT = 10_000
"""A width that the lines of a tree stay within: rich would cut them, and a terminal breaks what is longer itself."""

_STYLES = {
    "committed": "green",
    "prepared": "yellow",
    "kept": "cyan",
    "added": "green",
    "removed": "red",
    "changed": "yellow",
    "missing": "red",
    "damaged": "red",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    A terminal never breaks `whole` cells over lines, and goes without `extra` columns where it is too narrow for all.
    """

    title: str
    right: bool = False
    whole: bool = False
    extra: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A line of a tree, and what is below it."""

    label: str
    children: "tuple[Node, ...]" = ()


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def may_colour(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def visible(text: str) -> str:
    """Text that cannot move the cursor, change colours, or hide."""
    return _UNSEEN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    """As JSON writes it: in units of UTF-16."""
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def to_text(value: Json, *, indent: int | None = None) -> str:
    """A JSON value on one line, or indented."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "\n".join(map(visible, text.split("\n")))


def print_json(value: Json) -> None:
    print(to_text(value, indent=2))


def print_line(text: str = "") -> None:
    print(visible(text))


def print_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one on a line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print_line(f"{name.ljust(width)}  {_cell(value)}")


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    """Rows under their titles; None is shown as `-`."""
    cells = [[_cell(value) for value in row] for row in rows]
    if is_terminal(sys.stdout):
        _print_rich_table(columns, cells)
        return
    widths = _widths(columns, cells)
    for line in [[column.title for column in columns], *cells]:
        padded = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        )
        print(_GAP.join(padded).rstrip())


def _widths(columns: Sequence[Column], cells: list[list[str]]) -> list[int]:
    return [max(map(len, texts)) for texts in zip([column.title for column in columns], *cells, strict=True)]


def _print_rich_table(columns: Sequence[Column], cells: list[list[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console, widths = _console(sys.stdout), _widths(columns, cells)
    shown = _that_fit(columns, widths, console.width)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for number in shown:
        column, width = columns[number], widths[number]
        justify: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.title, justify=justify, overflow="fold", min_width=width if column.whole else None)
    for row in cells:
        table.add_row(*(Text(row[number], style=_STYLES.get(row[number], "")) for number in shown))
    console.print(table)
    if left := [column.title for number, column in enumerate(columns) if number not in shown]:
        console.print(Text(f"a wider terminal also shows {', '.join(left)}", style="dim"))


def _that_fit(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """The numbers of the columns to show: without extra ones, the last of them first, until the others fit."""
    shown = list(range(len(columns)))
    for number in reversed(range(len(columns))):
        needed = sum(widths[n] + len(_GAP) for n in shown) - len(_GAP)
        if needed > room and columns[number].extra:
            shown.remove(number)
    return shown


def print_tree(root: Node) -> None:
    if not is_terminal(sys.stdout):
        for depth, label in _flat(root, 0):
            print_line("  " * depth + label)
        return
    _console(sys.stdout, _UNCUT).print(_rich_tree(root))


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
    return "-" if value is None or value == "" else visible(str(value))


def _console(stream: TextIO, width: int | None = None) -> "Console":
    from rich.console import Console

    colours: Any = "auto" if may_colour(stream) else None
    return Console(file=stream, width=width, color_system=colours, markup=False, emoji=False, highlight=False)


def complain(who: str, message: str) -> None:
    """One sentence on stderr."""
    mark = f"\x1b[1;31m{who}:\x1b[0m" if may_colour(sys.stderr) else f"{who}:"
    print(mark, visible(" ".join(message.split())), file=sys.stderr)


@contextmanager
def progress(doing: str, unit: Literal["bytes", "items"]) -> Iterator[Progress | None]:
    """A bar with rate and time left on stderr, where a terminal shows it; else None, and nobody needs to be told."""
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
    with bars.Progress(*columns, console=_console(sys.stderr), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda now, total: bar.update(task, completed=now, total=total)
