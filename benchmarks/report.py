"""Write the measurements as JSON, pictures and Markdown, and as a table in `docs/performance.md`."""

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measure import Finding, Grid, Note, Plot, Target
from benchmarks.tables import grid_table, plots_table, targets_table

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- bench -->\n", "<!-- /bench -->"

MACHINE = f"{platform.python_version()}, {platform.machine()}"

KINDS = {kind.__name__: kind for kind in (Target, Grid, Plot, Note)}


class Results:
    """The results of one size of the benchmarks, in a folder. Those of a part stay until it is run again."""

    def __init__(self, size: str, parts: Sequence[str]) -> None:
        self._folder = Path(__file__).parent / "results" / size
        self._history = self._folder / "history.json"
        self._parts = parts
        self._version = _version()

    def write(self, part: str, findings: Sequence[Finding]) -> None:
        """Replace the results of a part."""
        self._folder.mkdir(parents=True, exist_ok=True)
        found = [{"kind": type(finding).__name__} | asdict(finding) for finding in findings]
        run = {
            "version": self._version,
            "machine": MACHINE,
            "found": found,
        }
        (self._folder / f"{part}.json").write_text(json.dumps(run, indent=1) + "\n")
        self._remember(findings)
        if plots := [finding for finding in findings if isinstance(finding, Plot)]:
            # Here, because tests make tables without the packages of the benchmarks.
            from benchmarks.draw import draw

            for plot in plots:
                draw(plot, self._folder)
        self.put_together()

    def _remember(self, findings: Sequence[Finding]) -> None:
        """Add the ratios of a run to those of all runs."""
        ratios = self._ratios()
        for finding in findings:
            if isinstance(finding, Target):
                ratios.setdefault(finding.question, []).append(finding.ratio)
        self._history.write_text(json.dumps(ratios, indent=1) + "\n")

    def _ratios(self) -> dict[str, list[float]]:
        """Return the ratios of all runs by question, the oldest first."""
        found: dict[str, list[float]] = json.loads(self._history.read_text()) if self._history.exists() else {}
        return found

    def put_together(self) -> None:
        """Make one page of all parts, and the table of `docs/performance.md` if there are all of them."""
        everything = [finding for name in self._parts for finding in self._read(name)]
        ratios = self._ratios()
        commits = Grid("Measured commits", ["part", "commit"], [*map(self._commit, filter(self._has, self._parts))])
        (self._folder / "README.md").write_text(tables([*everything, commits], ratios))
        summary = tables([finding for finding in everything if _is_target(finding)], ratios)
        (self._folder / "summary.md").write_text(summary)
        if self._folder.name == "full" and all(map(self._has, self._parts)):
            before, _, rest = PAGE.read_text().partition(BEGIN)
            PAGE.write_text(f"{before}{BEGIN}{summary}{END}{rest.partition(END)[2]}")

    def left(self) -> list[str]:
        """Return the parts that an interrupted run of the present program has left, or all if there was none."""
        is_clean = self._version is not None and not self._version.endswith("-dirty")
        left = [part for part in self._parts if not (self._has(part) and self._is_present(self._run(part)))]
        return left if is_clean and left else [*self._parts]

    def _is_present(self, run: Mapping[str, Any]) -> bool:
        return (run["version"], run["machine"]) == (self._version, MACHINE)

    def missed(self, parts: Sequence[str] | None = None) -> bool:
        """Return whether a target is missed in the stored results of some parts, or of all."""
        findings = (finding for part in parts or self._parts for finding in self._read(part))
        return any(isinstance(finding, Target) and not finding.holds for finding in findings)

    def _has(self, part: str) -> bool:
        return (self._folder / f"{part}.json").exists()

    def _run(self, part: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / f"{part}.json").read_text())
        return found

    def _commit(self, part: str) -> tuple[str, str]:
        return part, self._run(part)["version"] or ""

    def _read(self, part: str) -> list[Finding]:
        found = self._run(part)["found"] if self._has(part) else []
        return [KINDS[one.pop("kind")](**one) for one in found]


def tables(findings: Sequence[Finding], ratios: Mapping[str, Sequence[float]] | None = None) -> str:
    """Return a table of the targets and one of the plots, then the grids and notes in their order.

    `ratios` has the ratios of all runs by question.
    """
    targets = [finding for finding in findings if isinstance(finding, Target)]
    plots = [finding for finding in findings if isinstance(finding, Plot)]
    found = [targets_table(targets, ratios or {})] if targets else []
    found += [grid_table(finding) for finding in findings if isinstance(finding, Grid)]
    found += [plots_table(plots)] if plots else []
    found += [f"{finding.text}.\n" for finding in findings if isinstance(finding, Note)]
    return "\n".join(found)


def _is_target(finding: Finding) -> bool:
    return isinstance(finding, Target) and finding.limit is not None


def _version() -> str | None:
    """Return the commit that was measured, and `-dirty` if the program differed from it.

    It is the last commit that changed what is measured. Later ones may change tests and pages, or add results.
    """
    measured = [f":(top){path}" for path in ("checkpointer", "manifests", "benchmarks", "pyproject.toml")]
    measured += [f":(exclude,top){path}" for path in ("benchmarks/results", "*.md")]
    commit = _git("log", "-1", "--format=%h", "--", *measured).stdout.strip()
    differs = _git("diff", "--quiet", "HEAD", "--", *measured).returncode == 1
    return f"{commit}-dirty" if differs else commit or None


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
