"""Show measurements as tables of Markdown."""

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.measure import Grid, Plot, Target


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
