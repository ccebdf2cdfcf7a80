"""The lines that the demo prints while it runs."""

import sys
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from examples.flights.data import Day
from examples.flights.events import Event
from examples.flights.jobs import Job
from examples.flights.outcomes import Finished, Outcomes, Places, Stop
from examples.flights.pauses import SWAPPED, UPLOADED, UPLOADING

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)

WHEN = {
    UPLOADING: "while batch {} uploads its state",
    UPLOADED: "after batch {} uploaded its state, before the swap that makes it the latest",
    SWAPPED: "after the swap in batch {}, before Spark records the batch as done",
}

PROVES = {
    UPLOADING: "computed again: half an upload is nothing",
    UPLOADED: "computed again: what nothing names does not count",
    SWAPPED: "Spark replayed it; the state had it already: skipped",
}


EQUAL = "equal"
NOT_EQUAL = "not equal"
FAILED = "failed"
"""The ways in which a job may end."""

TIMES = {2: "twice", 3: "three times"}


def begin(days: list[Day], jobs: list[Job], folder: Path, root: str | None) -> None:
    flights = sum(len(day.lines) for day in days)
    console.print(f"[bold]{flights:,} flights[/] left New York {_text(days[0].date)} to {_text(days[-1].date)}, 2013.")
    if len(jobs) > 1:
        console.print(f"{len(jobs)} Structured Streaming jobs read them, one job after the other.")
    console.print(f"Everything is in {escape(str(folder))}" + (f", but the state in {escape(root)}" if root else ""))


def job_begins(job: Job, batches: list[list[Day]], stops: list[Stop]) -> None:
    console.print(
        f"\n[bold]Job {job.name}[/] reads one file a day, {job.batch} days a batch: {len(batches)} batches.\n"
        f"{job.about}\n"
        f"\nIts process is killed {TIMES[len(stops)]} (SIGKILL, and the JVM with it) and started again:"
    )
    for point, batch in stops:
        console.print(f"  - {WHEN[point].format(batch)}")
    console.print("At the end everything must be exactly right.\n")


def started(start: int, pid: int, seconds: float) -> None:
    console.print(f"[bold cyan]start {start}[/]   process {pid}: Spark is up after {seconds:.1f} s")


def finished(outcomes: Outcomes, done: Finished) -> None:
    """Return a line for a batch that Spark has finished, and what it proves if the job was killed in it."""
    line = _batch(outcomes, done.batch, done.seen) + f"{done.seconds:6.2f} s"
    for point, batch in outcomes.stops:
        if batch == done.batch:
            line += f"\n          [green]{PROVES[point]}[/]"
    console.print(line)


def stopped(outcomes: Outcomes, event: Event) -> None:
    console.print(_batch(outcomes, event["batch"], outcomes.seen(event["batch"])))


def killed(places: Places, pid: int, event: Event) -> None:
    """Return what a kill left on disk, as another process finds it."""
    point, batch = event["point"], event["batch"]
    console.print(f"[bold red]SIGKILL[/]   process {pid} and its JVM,\n          {WHEN[point].format(batch)}")
    if point == UPLOADING:
        for size in places.unfinished(batch):
            console.print(f"          left behind: {size:,} of {event['size']:,} bytes of an upload")
    elif point == UPLOADED:
        for size in places.uploaded(batch):
            console.print(f"          left behind: an upload of {size:,} bytes, whole, which nothing names")
    spark = max(places.spark_batches(), default=None)
    console.print(f"          the state is that of batch {places.state_batch()}, Spark's last batch is {spark}\n")


def reads(job: Job) -> None:
    console.print(f"\nReading back what every checkpoint of job {job.name} has, in another process.")


def job_failed(job: Job, why: str) -> None:
    console.print(f"\n{_verdict(FAILED)}  {job.name}: {escape(why)}")


def job_ended(job: Job, end: str, seconds: float, places: Places) -> None:
    where = escape(str(places.folder))
    if places.root is not None:
        where += f", {escape(places.root)}"
    console.print(
        f"\n{_verdict(end)}  {job.name}, after {seconds:.0f} s. Its state, Spark's checkpoint and the logs: {where}"
    )


def end(ends: dict[str, str], seconds: float) -> None:
    """Return the last line for several jobs: how each ended."""
    each = ", ".join(f"{name} {end}" for name, end in ends.items())
    whole = EQUAL if set(ends.values()) == {EQUAL} else NOT_EQUAL
    console.print(f"\n{_verdict(whole)}  {each}, {seconds:.0f} s in all.")


def _verdict(end: str) -> str:
    return f"[bold {'green' if end == EQUAL else 'red'}]{end.upper()}[/]"


def _batch(outcomes: Outcomes, batch: int, seen: tuple[int, int] | None) -> str:
    days = outcomes.batches[batch]
    line = f"batch {batch:>2}  {_text(days[0].date)} - {_text(days[-1].date)}"
    return line + ("  {:>6,} flights {:>6,} aircraft".format(*seen) if seen else " " * 32)


def _text(day: date) -> str:
    return f"{day:%b} {day.day:>2}"
