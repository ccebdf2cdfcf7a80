"""Compare the state at the end with one computation over all the flights, and with what the job told."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from statistics import fmean
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from examples.flights.data import Day
from examples.flights.expected import State
from examples.flights.jobs import Job
from examples.flights.outcomes import Outcomes, Places
from examples.flights.pauses import SWAPPED, UPLOADED, UPLOADING
from examples.flights.readback import Found, Row
from examples.flights.story import console

KILLED = {UPLOADING: "second try", UPLOADED: "second try", SWAPPED: "then killed"}
"""What the table says about a batch in which the job was killed."""


LATELY = 10
"""The number of batches at the end of the year whose average is printed."""


def check(places: Places, found: Found, batches: list[list[Day]], expected: State, outcomes: Outcomes) -> list[str]:
    """Return all mistakes: in the flights of a checkpoint, in a value of the last one, or in what the job did."""
    wrong = _compare_flights(found.rows, batches, expected.keys() - {"totals"} or expected.keys())
    for name in expected | found.state:
        wrong += compare(name, found.state.get(name, {}), expected.get(name, {}))
    return wrong + _compare_story(places, found.rows, outcomes)


def _compare_flights(rows: list[Row], batches: list[list[Day]], operators: Collection[str]) -> list[str]:
    wrong, expected = [], 0
    for row, batch in zip(rows, batches, strict=False):
        expected += sum(len(day.lines) for day in batch)
        wrong += [
            f"checkpoint {row.manifest.id}: {row.flights.get(name, 0):,} flights in {name}, not {expected:,}"
            for name in sorted(operators)
            if row.flights.get(name, 0) != expected
        ]
    return wrong[:1]


def compare(name: str, found: Mapping[Any, Mapping[str, Any]], expected: Mapping[Any, Mapping[str, Any]]) -> list[str]:
    """Compare rows by key and column.

    Return a line for the keys, and one with an example for each column that differs.
    """
    wrong = []
    for what, some in (("missing", expected.keys() - found.keys()), ("too many", found.keys() - expected.keys())):
        if some:
            wrong.append(f"{name}: {len(some):,} of {len(expected):,} are {what}, such as {min(some, key=str)}")
    both = sorted(expected.keys() & found.keys(), key=str)
    for column in dict.fromkeys(column for rows in (expected, found) for row in rows.values() for column in row):
        cells = [(key, found[key].get(column, "nothing"), expected[key].get(column, "nothing")) for key in both]
        differ = [f"{key}: {ours}, not {theirs}" for key, ours, theirs in cells if ours != theirs]
        if differ:
            wrong.append(f"{name}: {len(differ):,} of {len(expected):,} totals differ in {column}, such as {differ[0]}")
    return wrong


def _compare_story(places: Places, rows: list[Row], outcomes: Outcomes) -> list[str]:
    """Return what did not happen as it was told."""
    every = list(range(len(outcomes.batches)))
    calls = Counter(every)
    calls.update(batch for point, batch in outcomes.stops if point != SWAPPED)
    skipped = [batch for point, batch in outcomes.stops if point == SWAPPED]
    told: list[tuple[str, object, object]] = [
        ("batches with a checkpoint", [row.manifest.epoch for row in rows], every),
        ("batches that Spark recorded", places.spark_batches(), every),
        ("surplus calls of update(), by batch", dict(outcomes.calls - calls), {}),
        ("missing calls of update(), by batch", dict(calls - outcomes.calls), {}),
        ("batches that were skipped", outcomes.skipped, skipped),
        ("batches whose flights are not those of their files", outcomes.miscounted, []),
    ]
    return [f"{what}: {found}, not {expected}" for what, found, expected in told if found != expected]


def show(job: Job, found: Found, outcomes: Outcomes, wrong: list[str]) -> None:
    """Return the table of checkpoints, their cost, and the result of the comparison."""
    if found.rows:
        console.print()
        console.print(_table(found.rows, outcomes))
        lately = found.rows[-LATELY:]
        console.print(
            f"\n{len(found.rows)} checkpoints of {' + '.join(job.operators)}: "
            f"each was restored just now, and its flights counted.\nThe last {len(lately)} "
            f"wrote {_mean(row.written + row.manifest_size for row in lately):,} bytes on average, "
            f"{_mean(row.manifest_size for row in lately):,} of them the manifest; "
            f"a full copy takes {found.full_size:,}."
        )
    for line in wrong:
        console.print(f"[bold red]wrong[/]  {escape(line)}")
    if not wrong:
        counts = [f"{len(found.state[name]):,} {what}" for name, what in job.operators.items()]
        flights = sum(row["flights"] for row in found.state["aircraft"].values())
        console.print(f"{flights:,} flights, {', '.join(counts)}:")
        console.print(f"{job.same} as in one computation over all the flights at once.")


def _mean(sizes: Iterable[int]) -> int:
    return round(fmean(sizes))


def _table(rows: list[Row], outcomes: Outcomes) -> Table:
    """Return the first two checkpoints, those of the killed batches, and the last one."""
    stops = {batch: point for point, batch in outcomes.stops}
    table = Table(box=box.SIMPLE_HEAD, padding=0) if console.is_terminal else Table(box=box.ASCII)
    for heading in ("checkpoint", "epoch", "UTC", "partitions"):
        table.add_column(heading, no_wrap=True)
    for heading in ("chain", "written"):
        table.add_column(heading, no_wrap=True, justify="right")
    table.add_column("")
    shown = {0, 1, *stops, len(rows) - 1}
    for number, row in enumerate(rows):
        if number in shown:
            table.add_row(
                str(row.manifest.id),
                str(row.manifest.epoch),
                f"{row.manifest.created:%H:%M:%S}",
                row.partitions,
                str(row.longest_chain),
                f"{row.written + row.manifest_size:,}",
                KILLED[stops[number]] if number in stops else "",
            )
        elif number - 1 in shown:
            table.add_row("...")
    return table
