"""Run the flights through a streaming job, kill it three times, and compare every total at the end.

    python -m examples.flights [--days DAYS] [--folder FOLDER]

Exit status 0 only if every total, and every claim made on the way, is exactly right.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from examples.flights import report, story
from examples.flights.data import BATCH, Day, read_days, write_days
from examples.flights.expected import batch_totals
from examples.flights.outcomes import Outcomes, Places
from examples.flights.pauses import POINTS
from examples.flights.process import REPOSITORY, JobFailedError, JobProcess

FOLDER = REPOSITORY / ".cache" / "flights"
MIN_DAYS = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description="A year of flights, three kills.")
    parser.add_argument("--days", type=int, default=365, help="only the first DAYS days of the year")
    parser.add_argument("--folder", type=Path, help=f"an empty folder to work in; else {FOLDER}, emptied first")
    parser.add_argument("--job", default="examples.flights.job", help="the job's module: a test puts a wrong one here")
    arguments = parser.parse_args()
    if not MIN_DAYS <= arguments.days <= 365:
        parser.error(f"--days: expected {MIN_DAYS} to 365")
    if arguments.folder is None:
        shutil.rmtree(FOLDER, ignore_errors=True)
    elif arguments.folder.exists() and any(arguments.folder.iterdir()):
        parser.error(f"--folder: {arguments.folder} is not empty")
    places = Places((arguments.folder or FOLDER).resolve())
    places.folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    try:
        right = run(places, arguments.job, read_days(arguments.days))
    except JobFailedError as error:
        story.failed(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    story.end(right, time.monotonic() - begun, places)
    return 0 if right else 1


def run(places: Places, module: str, days: list[Day]) -> bool:
    """The whole story. Returns whether everything was right."""
    batches = [days[first : first + BATCH] for first in range(0, len(days), BATCH)]
    stops = [(point, len(batches) * quarter // 4) for quarter, point in enumerate(POINTS, start=1)]
    story.begin(places, days, batches, stops)
    write_days(places.flights, days)
    outcomes = Outcomes(batches, stops)
    for start in range(1, len(stops) + 2):
        run_once(places, module, start, outcomes)
    findings = report.check(places, batches, batch_totals(days), outcomes)
    report.show(findings, outcomes)
    return not findings.wrong


def run_once(places: Places, module: str, start: int, outcomes: Outcomes) -> None:
    """Start the job; kill it where it is to be killed, or let it come to its end."""
    stop = outcomes.stops[start - 1] if start <= len(outcomes.stops) else None
    arguments = ["--root", str(places.state), "--input", str(places.flights), "--checkpoint", str(places.spark)]
    if stop is not None:
        arguments += ["--stop-at", "{}:{}".format(*stop)]
    begun = time.monotonic()
    with JobProcess(module, arguments, places.log(start)) as job:
        for event in job.events():
            match event["event"]:
                case "started":
                    story.started(start, job.pid, time.monotonic() - begun)
                    outcomes.started()
                case "computed":
                    outcomes.computed(event)
                case "finished":
                    story.finished(outcomes, outcomes.finished(event))
                case "stopped":
                    story.stopped(outcomes, event)
                    job.kill()
                    story.killed(places, job.pid, event)
                    return
    if stop is not None:
        raise JobFailedError("The job came to its end without stopping to be killed: {} of batch {}.".format(*stop))


if __name__ == "__main__":
    sys.exit(main())
