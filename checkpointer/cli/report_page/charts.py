"""Bars, as numbers: what a template needs to draw them. Heights and widths are percent of the picture."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pyspark_checkpointer.cli.report_page.model import CheckpointRow
from pyspark_checkpointer.display import duration, size

MOST_BARS = 60
"""More checkpoints than this share bars."""

_GAP = 0.2
"""Of a bar's place, what is left free."""


@dataclass(frozen=True, slots=True)
class Part:
    """One colour of a bar. `style` is the name of its class on the page."""

    style: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    width: float
    label: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """`top` is what the full height stands for, `first` and `last` what the outermost bars do."""

    title: str
    description: str
    legend: tuple[tuple[str, str], ...]
    """Styles, and what they stand for."""
    bars: tuple[Bar, ...]
    top: str
    middle: str
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class _Column:
    first: str
    last: str
    values: tuple[int, ...]
    """From the bottom of the bar upwards."""

    @property
    def name(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


def bytes_chart(checkpoints: Sequence[CheckpointRow]) -> Chart | None:
    """Return what each checkpoint wrote: full state, deltas, and what is neither or was not told apart."""

    def split(row: CheckpointRow) -> tuple[int, int, int] | None:
        if row.own_bytes is None:
            return None
        full, delta = row.snapshot_bytes or 0, row.delta_bytes or 0
        return full, delta, max(row.own_bytes - full - delta, 0)

    told = [(str(row.id.sequence), values) for row in checkpoints if (values := split(row)) is not None]
    columns = _columns(told, lambda values: round(fmean(values)))
    legend = (("full", "snapshots"), ("delta", "deltas"), ("other", "partition lists, or not told apart"))
    return _chart("Bytes written by each checkpoint", columns, legend, size, "the average")


def time_chart(checkpoints: Sequence[CheckpointRow]) -> Chart | None:
    """Return how long each checkpoint took, and how much of that the caller was held up."""

    def split(row: CheckpointRow) -> tuple[int, int] | None:
        if row.cost is None:
            return None
        return row.cost.blocked_us, max(row.cost.elapsed_us - row.cost.blocked_us, 0)

    told = [(str(row.id.sequence), values) for row in checkpoints if (values := split(row)) is not None]
    legend = (("blocked", "the job was held up"), ("other", "the job itself went on"))
    return _chart("Time of each checkpoint", _columns(told, max), legend, duration, "the longest")


def lengths_chart(lengths: Sequence[tuple[int, int]], most: int = 12) -> Chart | None:
    """Return how many partitions have a chain of each length; neighbours share a bar where there are many lengths."""
    told = [(str(length), (partitions,)) for length, partitions in lengths]
    legend = (("full", "partitions"),)
    return _chart("Partitions by length of chain", _columns(told, sum, most), legend, lambda n: f"{n:,}", "the sum")


def _columns(
    told: Sequence[tuple[str, tuple[int, ...]]], combine: Callable[[Iterable[int]], int], most: int = MOST_BARS
) -> list[_Column]:
    """Return one for each name with its values; or for several names together, with their values combined."""
    together = -(-len(told) // most)
    groups = [told[start : start + together] for start in range(0, len(told), together or 1)]
    return [
        _Column(some[0][0], some[-1][0], tuple(map(combine, zip(*(values for _, values in some), strict=True))))
        for some in groups
    ]


def _chart(
    title: str,
    columns: Sequence[_Column],
    legend: tuple[tuple[str, str], ...],
    unit: Callable[[int], str],
    combined: str,
) -> Chart | None:
    """None where there is nothing to draw."""
    largest = max(columns, key=lambda column: sum(column.values), default=None)
    if largest is None or not any(largest.values):
        return None
    highest, place = sum(largest.values), 100 / len(columns)
    bars = [
        Bar(
            x=round(place * (number + _GAP / 2), 3),
            width=round(place * (1 - _GAP), 3),
            label=_label(column, legend, unit),
            parts=_stack(column, legend, highest),
        )
        for number, column in enumerate(columns)
    ]
    shared = any(column.first != column.last for column in columns)
    return Chart(
        title=title,
        description=f"{columns[0].first} to {columns[-1].last}; the highest is {largest.name} with {unit(highest)}."
        + (f" A bar is {combined} of several." if shared else ""),
        legend=tuple(item for number, item in enumerate(legend) if any(column.values[number] for column in columns)),
        bars=tuple(bars),
        top=unit(highest),
        middle=unit(highest // 2),
        first=columns[0].name,
        last=columns[-1].name,
    )


def _label(column: _Column, legend: tuple[tuple[str, str], ...], unit: Callable[[int], str]) -> str:
    told = [f"{unit(value)} {what}" for (_, what), value in zip(legend, column.values, strict=True) if value]
    return f"{column.name}: {', '.join(told) or 'nothing'}"


def _stack(column: _Column, legend: tuple[tuple[str, str], ...], highest: int) -> tuple[Part, ...]:
    parts, below = [], 0
    for (style, _), value in zip(legend, column.values, strict=True):
        below += value
        parts.append(Part(style, round(100 * (highest - below) / highest, 2), round(100 * value / highest, 2)))
    return tuple(parts)
