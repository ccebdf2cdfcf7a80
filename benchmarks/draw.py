"""Show measurements as pictures."""

import textwrap
from pathlib import Path

import matplotlib as mpl

from benchmarks.measure import Plot

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "benchmarks"  # equal points, equal bytes

from matplotlib import pyplot as plt  # noqa: E402

FORMATS = {"svg": {"Date": None}, "png": {}}


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
