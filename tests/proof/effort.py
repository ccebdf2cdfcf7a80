"""The proofs run short in `make test` and long in `make prove`, and both count what they did.

`effort(short, long)` is the size that this run asks for. What `figures` counts is printed in a table at the end.

A test is a proof if it is in `tests/proof`, if it has the mark `prove`, or if it uses one of these two fixtures. So a
proof may be in any folder. `make test` leaves out what has the mark: tests that take minutes of Spark, and that have a
shorter one of their kind there. `make prove` runs only proofs.
"""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

SUMMARY = os.environ.get("CHECKPOINTER_PROVE")
"""Where the long run writes its summary; unset in the short one."""

TESTS = Path(__file__).parents[1]

HEAD = """# What was proven

Counted by `make prove`, which wrote this file: each proof as its last whole run left it, without a failure. What it
shows stands in [guarantees.md](guarantees.md).

## Runs

| proof | what was run | tests | took | commit | day |
|---|---|---:|---:|---|---|
"""

COUNTS = """
## Counts

| proof | counted | |
|---|---|---:|
"""

RUN = re.compile(r"\| (.+?) \| (.+) \| ([\d,]+|-) \| (.+) \| (.+) \| (.+) \|")
ROW = re.compile(r"\| (.+?) \| (.+) \| ([\d,]+) \|")
UNRECORDED = ("-", "-", "-", "not recorded", "-")

COLLECTED = pytest.StashKey[Counter[str]]()
"""How many tests each proof has."""


@dataclass(slots=True)
class Run:
    """What one run did for one proof."""

    what: str
    tests: int = 0
    seconds: float = 0
    failed: bool = False

    @property
    def took(self) -> str:
        """How long it took, without fractions of a second."""
        return str(timedelta(seconds=round(self.seconds)))


@pytest.fixture
def effort() -> Callable[[T, T], T]:
    """`effort(short, long)`: one of the two."""
    return lambda short, long: short if SUMMARY is None else long


@pytest.fixture
def figures(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[Counter[str]]:
    """Counts, to be added to while the proof runs: `figures["commits acknowledged"] += 1`."""
    counts: Counter[str] = Counter()
    yield counts
    for name, count in counts.items():
        record_property(f"figure {area_of(request.node.path)}: {name}", count)


def area_of(path: Path) -> str:
    """Return the name of a proof: `kills` for tests/proof/test_kills.py, `spark/read` for tests/spark/test_read.py."""
    name = path.stem.removeprefix("test_")
    folder = path.parent.relative_to(TESTS) if path.is_relative_to(TESTS) else Path("proof")
    return name if folder == Path("proof") else f"{folder.as_posix()}/{name}"


def is_proof(item: pytest.Item) -> bool:
    """Tell whether a test runs longer, or counts, in `make prove`."""
    asks = {"effort", "figures"} & {*getattr(item, "fixturenames", ())}
    return TESTS / "proof" in item.path.parents or bool(asks) or item.get_closest_marker("prove") is not None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "prove: runs in `make prove` alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Name the proof of each test, and leave out what this run does not run: `prove` in the short one, or no proof."""
    proofs = [item for item in items if is_proof(item)]
    for item in proofs:
        about = (getattr(getattr(item, "module", None), "__doc__", None) or "").strip().partition("\n\n")[0]
        item.user_properties.append((f"proof {area_of(item.path)}", " ".join(about.split())))
    config.stash[COLLECTED] = Counter(area_of(item.path) for item in proofs)
    if SUMMARY is not None:
        items[:] = proofs
    elif left := [item for item in items if item.get_closest_marker("prove")]:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    runs: dict[str, Run] = {}
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            _add(outcome, report, counts, runs)
    if not counts:
        return
    terminalreporter.section("proofs")
    for (area, name), count in sorted(counts.items()):
        terminalreporter.write_line(f"{area}: {count:,} {name}")
    config = terminalreporter.config
    part = "deselected" in terminalreporter.stats or any("::" in a for a in config.args)
    part = part or hasattr(config, "workerinput")  # a worker of xdist, which knows only its own tests
    if SUMMARY is None or part:
        return
    # With xdist the main process collects no tests, so that it does not know how many there are. It writes only if the
    # whole run passed.
    expected = config.stash.get(COLLECTED, None) or {area: run.tests for area, run in runs.items()}
    done = exitstatus == pytest.ExitCode.OK or bool(config.stash.get(COLLECTED, None))
    whole = {area: run for area, run in runs.items() if done and not run.failed and run.tests == expected.get(area)}
    if whole:
        write_summary(Path(SUMMARY), {key: count for key, count in counts.items() if key[0] in whole}, whole)


def _add(outcome: str, report: Any, counts: Counter[tuple[str, str]], runs: dict[str, Run]) -> None:
    """Add what a report says of a proof. Setup and teardown count too: they take time, and may fail."""
    when = getattr(report, "when", None)  # a deselected test has none
    for name, value in getattr(report, "user_properties", []) if when else []:
        if when == "teardown" and (found := re.fullmatch("figure (.+?): (.+)", name)):
            counts[found[1], found[2]] += value
        if name.startswith("proof "):
            run = runs.setdefault(name.removeprefix("proof "), Run(value))
            run.seconds += report.duration
            run.tests += when == "call" and outcome == "passed"
            run.failed = run.failed or outcome not in ("", "passed")


def write_summary(path: Path, counts: Mapping[tuple[str, str], int], runs: Mapping[str, Run]) -> None:
    """Replace the rows of these proofs, and keep the others."""
    lines = path.read_text().splitlines() if path.exists() else []
    told = {run[1]: run.groups()[1:] for run in map(RUN.fullmatch, lines) if run}
    rows = [row.groups() for row in map(ROW.fullmatch, lines) if row and row[1] not in runs]
    rows += [(area, name, f"{count:,}") for (area, name), count in counts.items()]
    told = {area: told.get(area, UNRECORDED) for area in (*told, *(row[0] for row in rows))}
    commit, day = commit_of(TESTS.parent), f"{datetime.now(UTC):%Y-%m-%d}"
    for area, run in runs.items():
        told[area] = (run.what.replace("|", "/"), f"{run.tests:,}", run.took, commit, day)
    path.write_text(HEAD + _table((area, *told[area]) for area in told) + COUNTS + _table(rows))


def _table(rows: Iterable[tuple[Any, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in sorted(rows))


def commit_of(folder: Path) -> str:
    """Return the commit that is checked out, and whether files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/proof.md")
        return git("rev-parse", "--short", "HEAD") + (" and changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "no repository"
