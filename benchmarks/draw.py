"""Show measurements as Markdown and as pictures."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

from benchmarks.measure import Grid, Plot, Target

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "benchmarks"  # equal points, equal bytes

from matplotlib import pyplot as plt  # noqa: E402

FORMATS = {"svg": {"Date": None}, "png": {}}


def targets_table(targets: Iterable[Target], ratios: Mapping[str, Sequence[float]]) -> str:
    """Return a table of the targets. `ratios` has those of all runs by question."""
    return _table(
        ["question", "ratio", "target", "holds", "detail", "all runs"],
        (
            [
                target.question,
                f"{target.ratio:.3f}",
                "" if target.limit is None else f"≤ {target.limit:.3g}",
                "" if target.limit is None else "yes" if target.holds else "**no**",
                target.detail,
                _range(ratios.get(target.question, ())),
            ]
            for target in targets
        ),
    )


def _range(ratios: Sequence[float]) -> str:
    """Return the least and the greatest of several ratios."""
    return f"{min(ratios):.3g} to {max(ratios):.3g} in {len(ratios)}" if len(ratios) > 1 else ""


def grid_table(grid: Grid) -> str:
    return f"{grid.title}:\n\n{_table(grid.columns, grid.rows)}"


def plots_table(plots: Iterable[Plot]) -> str:
    """Return a table with the slope of each line. A power is the power of x with which y grows."""
    return _table(
        ["plot", "line", "slope", "picture"],
        (
            [
                plot.title,
                line,
                f"{plot.slope(line):.2f}{' (power)' * plot.logarithmic}",
                f"[{plot.name}]({plot.name}.svg)",
            ]
            for plot in plots
            for line in plot.lines
        ),
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def draw(plot: Plot, folder: Path) -> None:
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, points in plot.lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=f"{name} (slope {plot.slope(name):.2f})")
    if plot.logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    # A longer title would be cut at the edges of the picture.
    axes.set(title=textwrap.fill(plot.title, 60), xlabel=plot.x, ylabel=plot.y)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    folder.mkdir(parents=True, exist_ok=True)
    for ending, metadata in FORMATS.items():
        figure.savefig(folder / f"{plot.name}.{ending}", metadata=metadata, dpi=120)
    plt.close(figure)
