"""Fit a table into the width of a terminal.

Nothing that tells rows apart is ever cut. A column whose cells do not fit is not made narrower: its cells get lines of
their own, next to their row. There the terminal breaks a long line itself, and a path or name that is copied from the
screen comes out whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

GAP = "  "

MIN_PROSE_WIDTH = 24
"""Cells of the terminal that a column of prose gets at least.

It gets fewer only if its texts are shorter.
"""


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of a table.

    `prose` may be broken over lines at its spaces; every other cell stays whole on one line. `extra` columns repeat
    what other columns or verbs show: a narrow terminal leaves them out.
    """

    title: str
    right: bool = False
    prose: bool = False
    extra: bool = False


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The place of each column, by its number."""

    widths: dict[int, int]
    """The columns that stand side by side, each with its width."""
    alone: tuple[int, ...]
    """The columns whose cells get lines of their own.

    The lines stand before the row if these columns begin it, else after it.
    """
    left_out: tuple[int, ...]


def arrange(
    columns: Sequence[TextColumn], cells: Sequence[Sequence[str]], room: int, measure: Callable[[str], int]
) -> Arrangement:
    """Return an arrangement of columns that fits into `room` cells.

    The widest columns get lines of their own until the others fit side by side. Then `extra` columns join them, in
    order, while there is room; what room is left goes to prose.
    """
    everything = range(len(columns))
    natural = [max(measure(text) for text in (columns[n].title, *(row[n] for row in cells))) for n in everything]
    least = [_least(columns[n], natural[n], [row[n] for row in cells], measure) for n in everything]
    beside = [n for n in everything if not columns[n].extra]
    alone: list[int] = []
    while beside and _total(beside, least) > room:
        # The widest one leaves, so that as few columns as possible lose their place.
        widest = max(beside, key=lambda n: least[n])
        beside.remove(widest)
        alone.append(widest)
    extra = [n for n in everything if columns[n].extra]
    # In their order, and not the ones that happen to fit, so that a narrower window only ever loses the last ones.
    while extra and _total([*beside, extra[0]], least) <= room:
        beside.append(extra.pop(0))
    spare = room - _total(beside, least)
    widths = {}
    for n in sorted(beside):
        grown = min(natural[n] - least[n], max(spare, 0))
        widths[n], spare = least[n] + grown, spare - grown
    return Arrangement(widths, tuple(sorted(alone)), tuple(extra))


def _least(column: TextColumn, natural: int, texts: Sequence[str], measure: Callable[[str], int]) -> int:
    """Return the smallest width of a column.

    Prose can be broken, but not within a word.
    """
    if not column.prose:
        return natural
    longest = max((measure(word) for text in texts for word in text.split(" ")), default=0)
    return max(longest, measure(column.title), min(natural, MIN_PROSE_WIDTH))


def _total(beside: Sequence[int], widths: Sequence[int]) -> int:
    """Return the width of columns side by side, with the gaps between them."""
    return sum(widths[n] + len(GAP) for n in beside) - len(GAP)


def broken(text: str, width: int, measure: Callable[[str], int]) -> list[str]:
    """Return the lines of a cell.

    No word is longer than `width`, and only prose is ever broken.
    """
    if measure(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if measure(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    return lines


def row_lines(row: Sequence[str], widths: dict[int, int], measure: Callable[[str], int]) -> Iterator[dict[int, str]]:
    """Yield the lines of a row that stand side by side.

    Each line has the texts of those columns that have any left on it.
    """
    parts = {n: broken(row[n], width, measure) for n, width in widths.items()}
    for number in range(max(map(len, parts.values()), default=0)):
        yield {n: lines[number] for n, lines in parts.items() if number < len(lines)}
