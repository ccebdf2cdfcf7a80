"""Compute bar charts for a template to draw.

Heights and widths are percent of the picture.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pyspark_checkpointer.cli.report_page.model import CheckpointRow
from pyspark_checkpointer.display import duration, size

MAX_BARS = 60
"""Bars of a chart. Several checkpoints share a bar if there are more."""

_GAP = 0.2
"""The share of a bar's place that stays empty."""


@dataclass(frozen=True, slots=True)
class BarPart:
    """One colour of a bar. `style` is its CSS class."""

    style: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, with its parts from the bottom upwards."""

    x: float
    width: float
    label: str
    parts: tuple[BarPart, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One bar chart.

    `top` labels the full height, `middle` half of it, `first` and `last` the outermost bars.
    """

    title: str
    description: str
    legend: tuple[tuple[str, str], ...]
    """Pairs: a CSS class, and what its parts show."""
    bars: tuple[Bar, ...]
    top: str
    middle: str
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class _Column:
    """The values of one bar.

    A bar may stand for several names: `first` and `last` are the outermost of them.
    """

    first: str
    last: str
    values: tuple[int, ...]
    """One for each part, from the bottom of the bar upwards."""

    @property
    def name(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


def bytes_chart(checkpoints: Sequence[CheckpointRow]) -> Chart | None:
    """Return the bytes that each checkpoint wrote.

    The parts are snapshots, deltas, and all bytes that are neither or not known.
    """

    def split(row: CheckpointRow) -> tuple[int, int, int] | None:
        if row.own_bytes is None:
            return None
        full, delta = row.snapshot_bytes or 0, row.delta_bytes or 0
        return full, delta, max(row.own_bytes - full - delta, 0)

    named_values = [(str(row.id.sequence), values) for row in checkpoints if (values := split(row)) is not None]
    columns = _columns(named_values, lambda values: round(fmean(values)))
    legend = (("full", "snapshots"), ("delta", "deltas"), ("other", "partition lists, or not told apart"))
    return _chart("Bytes written by each checkpoint", columns, legend, size, "the average")


def time_chart(checkpoints: Sequence[CheckpointRow]) -> Chart | None:
    """Return how long each checkpoint took, and how long the caller was blocked."""

    def split(row: CheckpointRow) -> tuple[int, int] | None:
        if row.cost is None:
            return None
        return row.cost.blocked_us, max(row.cost.elapsed_us - row.cost.blocked_us, 0)

    named_values = [(str(row.id.sequence), values) for row in checkpoints if (values := split(row)) is not None]
    legend = (("blocked", "the job was held up"), ("other", "the job itself went on"))
    return _chart("Time of each checkpoint", _columns(named_values, max), legend, duration, "the longest")


def lengths_chart(lengths: Sequence[tuple[int, int]], limit: int = 12) -> Chart | None:
    """Return how many partitions have a chain of each length.

    Neighbours share a bar if there are many lengths.
    """
    named_values = [(str(length), (partitions,)) for length, partitions in lengths]
    legend = (("full", "partitions"),)
    return _chart(
        "Partitions by length of chain", _columns(named_values, sum, limit), legend, lambda n: f"{n:,}", "the sum"
    )


def _columns(
    named_values: Sequence[tuple[str, tuple[int, ...]]],
    combine: Callable[[Iterable[int]], int],
    limit: int = MAX_BARS,
) -> list[_Column]:
    """Return a column for each name with its values.

    Several names share a column if there are more than `limit`; their values are combined.
    """
    # Rounded up, so that there are never more bars than `limit`.
    per_bar = -(-len(named_values) // limit)
    groups = [named_values[start : start + per_bar] for start in range(0, len(named_values), per_bar or 1)]
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
    """Return a chart, or None if all values are 0."""
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
    shares = [f"{unit(value)} {what}" for (_, what), value in zip(legend, column.values, strict=True) if value]
    return f"{column.name}: {', '.join(shares) or 'nothing'}"


def _stack(column: _Column, legend: tuple[tuple[str, str], ...], highest: int) -> tuple[BarPart, ...]:
    """Return the parts of a bar, one upon the other.

    Their y counts from the top of the picture.
    """
    parts, below = [], 0
    for (style, _), value in zip(legend, column.values, strict=True):
        below += value
        parts.append(BarPart(style, round(100 * (highest - below) / highest, 2), round(100 * value / highest, 2)))
    return tuple(parts)
