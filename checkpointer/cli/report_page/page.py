"""Render a report as one HTML file without any other files."""

import json
import shlex
from functools import cache
from typing import TYPE_CHECKING

from pyspark_checkpointer import display
from pyspark_checkpointer.cli.report_page import charts
from pyspark_checkpointer.cli.report_page.model import Report
from pyspark_checkpointer.manifests.model import Json

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_ROWS = 50
"""Rows of a table that can be long."""

MAX_TEXT = 200
"""Characters of a value that comes from the job."""


def render(report: Report) -> str:
    """Return the page. Everything that came from a store is escaped."""
    page = _environment().get_template("page.html")
    return page.render(
        report=report,
        most=MAX_ROWS,
        bytes_chart=charts.bytes_chart(report.checkpoints),
        time_chart=charts.time_chart(report.checkpoints),
        age=age_of_newest(report),
        looked_at=looked_at(report),
        next_step=next_step(report),
    )


def age_of_newest(report: Report) -> str:
    """Say how old the newest committed checkpoint is."""
    newest = report.newest
    if newest is None and report.verification.findings:
        return "which checkpoint is the newest cannot be told"
    if newest is None:
        return "no checkpoint is committed"
    return f"newest checkpoint: {display.age(newest.created, report.made) or 'of unknown age'}"


def looked_at(report: Report) -> list[str]:
    """Return what was read and what was left out, as sentences."""
    seen = report.verification
    said = [
        f"Read and compared: {display.count(seen.objects, 'object')} with {display.size(seen.bytes)}, of "
        f"{display.count(seen.checkpoints, 'checkpoint')}."
    ]
    if seen.skipped:
        said.append(
            f"{display.count(seen.skipped, 'object')} with state were not read (a random sample of {report.share:.2%} "
            "was): verify reads all."
        )
    if seen.unread:
        said.append(
            f"{display.count(seen.unread, 'object')} of them are compared as stored: this key does not open what is in "
            "them, so what manifests say of their parts was not compared."
        )
    if report.chains_left_out:
        said.append(
            f"Of {display.count(report.chains_left_out, 'older checkpoint')} only the manifests were read, because "
            "there are very many partitions."
        )
    return said


def next_step(report: Report) -> tuple[str, str | None] | None:
    """Return what to do about the findings.

    It is a sentence, and the command that the sentence ends with.
    """
    # Quoted, as people copy the command into a shell, and a root may have any characters.
    root, newest, intact = shlex.quote(report.root), report.newest, report.intact
    if not report.verification.findings:
        return None
    if report.candidates or newest is None:
        return "What the store can be repaired to, with the evidence for each:", f"checkpointer repair {root}"
    if not newest.damaged:
        return (
            "Nothing found hurts the newest checkpoint, which a restart goes on from. To be sure of it:",
            f"checkpointer verify {root} {newest.id}",
        )
    if intact is None:
        return "Nothing found is whole. What else there is:", f"checkpointer repair {root}"
    return (
        f"The newest checkpoint that nothing found hurts is {intact.id}. To see whether every byte of it is there, "
        'before the job goes on from it (rollback, or restore with on_corruption="previous"):',
        f"checkpointer verify {root} {intact.id}",
    )


@cache
def _environment() -> "Environment":
    """Return the templates, with the functions that they call."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # of the extra `report`, only for those who render

    # `StrictUndefined`, so that a misspelt name in the template fails and does not leave a gap.
    environment = Environment(
        loader=PackageLoader("pyspark_checkpointer.cli", "report_page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": display.size,
        "moment": display.moment,
        "duration": display.duration,
        "number": "{:,}".format,
        "cut": _cut,
    }
    environment.globals |= {"lengths_chart": charts.lengths_chart, "count": display.count}
    return environment


def _cut(value: Json) -> str:
    """Return a value of the job as text of at most `MAX_TEXT` characters.

    A longer text is cut, and its length is added.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text):,} characters)"
