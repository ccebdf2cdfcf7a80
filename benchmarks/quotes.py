"""Bring the figures that README and the guides quote up to date.

The tests of these pages compare them with the results on their own.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.driver_state import CYCLE

ROOT = Path(__file__).parents[1]

FIGURES = {
    f"Table: a batch of 20,000 rows into {size} / `MERGE` into {lake}": (
        f"upsert, 20,000 of {size} keys, 100 batches / MERGE into {lake}"
    )
    for size in ("1,000,000", "10,000,000")
    for lake in ("Delta", "Iceberg")
} | {
    "Table: upsert": "table: upsert of 100,000 into 10,000,000 / delta-rs merge",
    "Table: a micro-batch": "table: micro-batch of a running sum / RocksDB",
    "Table: the same micro-batch": "table: micro-batch of a running sum / only aggregating",
    "Table: a function": "apply, 20,000 keys a batch / applyInPandasWithState",
    "Map: bytes": f"mean of {CYCLE} such deltas, with folds and a snapshot / full save, bytes",
    "Map: time": "1,000,000 records: delta 1 % / the fastest other",
    "Map: a batch": "1,000,000 records: read, change and save 1 % / the fastest other",
}
"""The figures of README, by how their lines begin, and the questions of the benchmark that they answer."""

MEMORY = "streaming: resident memory of all processes of a job / its 10 GB of table state"

RANDOM_KEYS = "table: bytes read for 1,000 random keys of 40,000,000 rows, no file opened before / all"

SENTENCES = (
    ("README.md", r"10 GB of table state together use ([\d.]+) times", MEMORY),
    ("docs/migrate/merge.md", r"took ([\d.]+) of the time of a merge with delta-rs", FIGURES["Table: upsert"]),
    (
        "docs/migrate/apply-in-pandas-with-state.md",
        r"read ([\d.]+) of the table's bytes",
        RANDOM_KEYS,
    ),
    (
        "docs/migrate/apply-in-pandas-with-state.md",
        r"took ([\d.]+) of the time that Spark took with RocksDB",
        FIGURES["Table: a micro-batch"],
    ),
)
"""Sentences with a ratio: the page, the words around the number, and the question of the benchmark."""

SECONDS = r"took ([\d.]+) seconds with delta-rs and ([\d.]+) seconds with this library"
"""The words around the seconds of a micro-batch, in the guide of `MERGE`."""


def measured(page: str) -> dict[str, tuple[float, str]]:
    """Return the ratio and the detail of each question of a page of results, which begins with their table."""
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in page.partition("\n\n")[0].splitlines()[2:]]
    return {question: (float(ratio), detail) for question, ratio, _, _, detail, _ in rows}


def quote() -> None:
    """Write the figures of the full results into the pages that quote them."""
    found = measured((ROOT / "benchmarks" / "results" / "full" / "README.md").read_text())
    ratios = {question: ratio for question, (ratio, _) in found.items()}
    _change("README.md", r"^\| (Table|Map): .* \| ([\d.]+) \|$", lambda line: _line(line, ratios))
    for page, words, question in SENTENCES:
        _change(page, words, lambda said, q=question: _with_ratio(said, ratios[q]))  # type: ignore[misc]
    seconds = re.findall(r"(?:ours|delta-rs) ([\d.]+) s", found[FIGURES["Table: the same micro-batch"]][1])
    ours, delta = seconds
    said = f"took {delta} seconds with delta-rs and {ours} seconds with this library"
    _change("docs/migrate/merge.md", SECONDS, lambda _: said)


def _change(page: str, pattern: str, change: Callable[[str], str]) -> None:
    path = ROOT / page
    path.write_text(re.sub(pattern, lambda match: change(match[0]), path.read_text(), flags=re.MULTILINE))


def _line(line: str, ratios: Mapping[str, float]) -> str:
    (question,) = [question for words, question in FIGURES.items() if re.match(rf"\| {words}\b", line)]
    return _with_ratio(line, ratios[question])


def _with_ratio(said: str, ratio: float) -> str:
    """Return words with another number in place of their last one, which has as many digits."""
    before, number, after = re.fullmatch(r"(.*?)([\d.]+)(\D*)", said, re.DOTALL).groups()  # type: ignore[union-attr]
    digits = len(number.partition(".")[2])
    return f"{before}{round(ratio, digits):.{digits}f}{after}"


__all__ = ["FIGURES", "MEMORY", "RANDOM_KEYS", "measured", "quote"]
