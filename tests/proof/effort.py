"""The proofs run short in `make test` and long in `make prove`, and both count what they did.

`effort(short, long)` is the size that this run asks for; what `figures` was told stands in a table at the end.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

SUMMARY = os.environ.get("CHECKPOINTER_PROVE")
"""Where the long run writes its summary; unset in the short one."""

HEAD = """# What was proven

Counted by `make prove`, which wrote this file: each proof as its last whole run left it, without a failure. What it
shows stands in [guarantees.md](guarantees.md).

| proof | counted | |
|---|---|---:|
"""

ROW = re.compile(r"\| (.+?) \| (.+) \| ([\d,]+) \|")


@pytest.fixture
def effort() -> Callable[[T, T], T]:
    """`effort(short, long)`: one of the two."""
    return lambda short, long: short if SUMMARY is None else long


@pytest.fixture
def figures(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[Counter[str]]:
    """Counts, to be added to while the proof runs: `figures["commits acknowledged"] += 1`."""
    counts: Counter[str] = Counter()
    yield counts
    area = Path(request.node.path).stem.removeprefix("test_")
    for name, count in counts.items():
        record_property(f"figure {area}: {name}", count)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, count in getattr(report, "user_properties", []):
                if (getattr(report, "when", None) == "teardown") and (
                    found := re.fullmatch("figure (.+?): (.+)", name)
                ):
                    counts[found[1], found[2]] += count
    if not counts:
        return
    terminalreporter.section("proofs")
    for (area, name), count in sorted(counts.items()):
        terminalreporter.write_line(f"{area}: {count:,} {name}")
    part = {"deselected", "skipped"} & terminalreporter.stats.keys() or any(
        "::" in a for a in terminalreporter.config.args
    )
    part = part or hasattr(terminalreporter.config, "workerinput")  # one of several processes, with what it ran itself
    if SUMMARY is not None and exitstatus == pytest.ExitCode.OK and not part:
        write_summary(Path(SUMMARY), counts)


def write_summary(path: Path, counts: Mapping[tuple[str, str], int]) -> None:
    """Put these counts in the place of those that the same proofs had before."""
    before = [row.groups() for row in map(ROW.fullmatch, path.read_text().splitlines()) if row] if path.exists() else []
    now = {area for area, _ in counts}
    rows = [(area, name, count) for area, name, count in before if area not in now]
    rows += [(area, name, f"{count:,}") for (area, name), count in counts.items()]
    path.write_text(HEAD + "".join(f"| {area} | {name} | {count} |\n" for area, name, count in sorted(rows)))
