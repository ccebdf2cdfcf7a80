"""Write the measurements as JSON, pictures and Markdown, and as a table in `docs/performance.md`."""

import json
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.draw import draw, grid_table, plots_table, targets_table
from benchmarks.measure import Finding, Grid, Note, Plot, Target

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- bench -->\n", "<!-- /bench -->"

KINDS = {kind.__name__: kind for kind in (Target, Grid, Plot, Note)}


class Results:
    """The results of one size of the benchmarks, in a folder. Those of a part stay until it is run again."""

    def __init__(self, size: str, parts: Sequence[str]) -> None:
        self._folder = Path(__file__).parent / "results" / size
        self._parts = parts
        self._version = _version()

    def write(self, part: str, findings: Sequence[Finding]) -> None:
        """Replace the results of a part."""
        self._folder.mkdir(parents=True, exist_ok=True)
        found = [{"kind": type(finding).__name__} | asdict(finding) for finding in findings]
        run = {
            "version": self._version,
            "machine": f"{platform.python_version()}, {platform.machine()}",
            "found": found,
        }
        (self._folder / f"{part}.json").write_text(json.dumps(run, indent=1) + "\n")
        for finding in findings:
            if isinstance(finding, Plot):
                draw(finding, self._folder)
        self.put_together()

    def put_together(self) -> None:
        """Make one page of all parts, and the table of `docs/performance.md` if there are all of them."""
        everything = [finding for name in self._parts for finding in self._read(name)]
        (self._folder / "README.md").write_text(tables(everything))
        (self._folder / "summary.md").write_text(tables(finding for finding in everything if _is_target(finding)))
        if self._folder.name == "full" and all((self._folder / f"{name}.json").exists() for name in self._parts):
            before, _, rest = PAGE.read_text().partition(BEGIN)
            PAGE.write_text(f"{before}{BEGIN}{(self._folder / 'summary.md').read_text()}{END}{rest.partition(END)[2]}")

    def _read(self, part: str) -> list[Finding]:
        path = self._folder / f"{part}.json"
        found = json.loads(path.read_text())["found"] if path.exists() else []
        return [KINDS[one.pop("kind")](**one) for one in found]


def tables(findings: Iterable[Finding]) -> str:
    """Return a table of the targets and one of the plots, then the grids and notes in their order."""
    listed = list(findings)
    targets = [finding for finding in listed if isinstance(finding, Target)]
    plots = [finding for finding in listed if isinstance(finding, Plot)]
    found = [targets_table(targets)] if targets else []
    found += [grid_table(finding) for finding in listed if isinstance(finding, Grid)]
    found += [plots_table(plots)] if plots else []
    found += [f"{finding.text}.\n" for finding in listed if isinstance(finding, Note)]
    return "\n".join(found)


def _is_target(finding: Finding) -> bool:
    return isinstance(finding, Target) and finding.limit is not None


def _version() -> str | None:
    """Return the commit that was measured, and `-dirty` if the program differed from it.

    What this program writes does not count: the parts of one run write results and pages one after the other.
    """
    written = [f":(exclude,top){path}" for path in ("benchmarks/results", "docs", "README.md")]
    commit = _git("describe", "--always").stdout.strip()
    differs = _git("diff", "--quiet", "HEAD", "--", ":(top)", *written).returncode == 1
    return f"{commit}-dirty" if differs else commit or None


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
