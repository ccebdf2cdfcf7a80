"""What the demo says while it runs."""

import sys
from datetime import date

from rich.console import Console
from rich.markup import escape

from examples.flights.data import BATCH, Day
from examples.flights.events import Event
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


def begin(places: Places, days: list[Day], batches: list[list[Day]], stops: list[Stop]) -> None:
    flights = sum(len(day.lines) for day in days)
    console.print(
        f"[bold]{flights:,} flights[/] left New York {_text(days[0].date)} to {_text(days[-1].date)}, 2013.\n"
        f"A Structured Streaming job reads one file a day, {BATCH} days a batch: {len(batches)} batches.\n"
        "Its state holds each aircraft's totals, in all and by month: flights, miles, minutes in the air and late.\n"
        "\nIts process is killed three times (SIGKILL, and the JVM with it) and started again:"
    )
    for point, batch in stops:
        console.print(f"  - {WHEN[point].format(batch)}")
    console.print(f"At the end every total must be exactly right. Everything is in {escape(str(places.folder))}\n")


def started(start: int, pid: int, seconds: float) -> None:
    console.print(f"[bold cyan]start {start}[/]   process {pid}: Spark is up after {seconds:.1f} s")


def finished(outcomes: Outcomes, done: Finished) -> None:
    """A line for a batch that Spark has finished, and what it proves if the job was killed in it."""
    line = _batch(outcomes, done.batch, done.seen) + f"{done.seconds:6.2f} s"
    for point, batch in outcomes.stops:
        if batch == done.batch:
            line += f"\n          [green]{PROVES[point]}[/]"
    console.print(line)


def stopped(outcomes: Outcomes, event: Event) -> None:
    console.print(_batch(outcomes, event["batch"], outcomes.seen(event["batch"])))


def killed(places: Places, pid: int, event: Event) -> None:
    """What a kill left on disk, as another process finds it."""
    point, batch = event["point"], event["batch"]
    console.print(f"[bold red]SIGKILL[/]   process {pid} and its JVM,\n          {WHEN[point].format(batch)}")
    if point == UPLOADING:
        for path in places.objects(batch, unfinished=True):
            console.print(f"          left behind: {path.stat().st_size:,} of {event['size']:,} bytes of an upload")
    elif point == UPLOADED:
        for path in places.objects(batch):
            console.print(
                f"          left behind: an upload of {path.stat().st_size:,} bytes, whole, which nothing names"
            )
    spark = max(places.spark_batches(), default=None)
    console.print(f"          the state is that of batch {places.state_batch()}, Spark's last batch is {spark}\n")


def failed(why: str) -> None:
    console.print(f"\n[bold red]FAILED[/]  {escape(why)}")


def end(right: bool, seconds: float, places: Places) -> None:
    verdict = "[bold green]EQUAL[/]" if right else "[bold red]NOT EQUAL[/]"
    where = escape(str(places.folder))
    console.print(f"\n{verdict}  {seconds:.0f} s in all. The state, Spark's checkpoint and the logs: {where}")


def _batch(outcomes: Outcomes, batch: int, seen: tuple[int, int] | None) -> str:
    days = outcomes.batches[batch]
    line = f"batch {batch:>2}  {_text(days[0].date)} - {_text(days[-1].date)}"
    return line + ("  {:>6,} flights {:>6,} aircraft".format(*seen) if seen else " " * 32)


def _text(day: date) -> str:
    return f"{day:%b} {day.day:>2}"
