"""Run the flights through two streaming jobs, kill each several times, and compare their state at the end.

    python -m examples.flights [--job maps|tables] [--days DAYS] [--folder FOLDER] [--root URL]
                              [--limit SECONDS]

The exit status is 0 only if both states, and every claim made on the way, are exactly right.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from examples.flights import report, story
from examples.flights.data import Day, read_days, write_days
from examples.flights.jobs import JOBS, Job
from examples.flights.outcomes import Outcomes, Places
from examples.flights.process import REPOSITORY, JobFailedError, JobProcess, Limit

FOLDER = REPOSITORY / ".cache" / "flights"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description="A year of flights, five kills.")
    parser.add_argument("--job", choices=list(JOBS), help="only this job; else both, one after the other")
    parser.add_argument("--days", type=int, default=365, help="only the first DAYS days of the year")
    parser.add_argument("--folder", type=Path, help=f"an empty folder to work in; else {FOLDER}, emptied first")
    parser.add_argument("--root", help="an empty place for the states, such as gs://bucket/flights; else in the folder")
    parser.add_argument("--limit", type=float, help="seconds after which a job has failed; else each has its own")
    parser.add_argument("--module", help="another module as the job: a test puts a wrong one here")
    arguments = parser.parse_args()
    jobs = [job for job in JOBS.values() if arguments.job in (None, job.name)]
    min_days = max(job.min_days for job in jobs)
    if not min_days <= arguments.days <= 365:
        parser.error(f"--days: expected {min_days} to 365")
    if arguments.folder is None:
        shutil.rmtree(FOLDER, ignore_errors=True)
    elif arguments.folder.exists() and any(arguments.folder.iterdir()):
        parser.error(f"--folder: {arguments.folder} is not empty")
    folder = (arguments.folder or FOLDER).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    try:
        days = read_days(arguments.days)
        story.begin(days, jobs, folder, arguments.root)
        write_days(folder / "flights", days)
        ends = {}
        for job in jobs:
            root = arguments.root and f"{arguments.root.rstrip('/')}/{job.name}"
            places = Places(folder / job.name, folder / "flights", root)
            ends[job.name] = try_run(job, arguments.module or job.module, places, days, arguments.limit or job.limit)
    except KeyboardInterrupt:
        return 130
    if len(jobs) > 1:
        story.end(ends, time.monotonic() - begun)
    return 0 if set(ends.values()) == {story.EQUAL} else 1


def try_run(job: Job, module: str, places: Places, days: list[Day], seconds: float) -> str:
    """Run a whole job. Return how it ended: `story.EQUAL`, `story.NOT_EQUAL` or `story.FAILED`."""
    places.folder.mkdir()
    begun = time.monotonic()
    try:
        right = run(job, module, places, days, Limit.begin(seconds))
    except JobFailedError as error:
        story.job_failed(job, str(error))
        return story.FAILED
    end = story.EQUAL if right else story.NOT_EQUAL
    story.job_ended(job, end, time.monotonic() - begun, places)
    return end


def run(job: Job, module: str, places: Places, days: list[Day], limit: Limit) -> bool:
    """Start and kill the job until it has finished. Return whether its state is right."""
    batches = [days[first : first + job.batch] for first in range(0, len(days), job.batch)]
    parts = len(job.points) + 1
    stops = [(point, len(batches) * part // parts) for part, point in enumerate(job.points, start=1)]
    story.job_begins(job, batches, stops)
    outcomes = Outcomes(batches, stops)
    for start in range(1, parts + 1):
        run_once(job, module, places, start, outcomes, limit)
    story.reads(job)
    found = job.read(places, limit)
    wrong = report.check(places, found, batches, job.expected(days), outcomes)
    report.show(job, found, outcomes, wrong)
    return not wrong


def run_once(job: Job, module: str, places: Places, start: int, outcomes: Outcomes, limit: Limit) -> None:
    """Start the job, and kill it at the next stop or let it finish."""
    stop = outcomes.stops[start - 1] if start <= len(outcomes.stops) else None
    arguments = ["--root", places.state, "--input", str(places.flights), "--checkpoint", str(places.spark)]
    arguments += ["--days", str(job.batch)]
    if stop is not None:
        arguments += ["--stop-at", "{}:{}".format(*stop)]
    begun = time.monotonic()
    with JobProcess(module, arguments, places.log(start), limit) as process:
        for event in process.events():
            match event["event"]:
                case "started":
                    story.started(start, process.pid, time.monotonic() - begun)
                    outcomes.started()
                case "computed":
                    outcomes.computed(event)
                case "finished":
                    story.finished(outcomes, outcomes.finished(event))
                case "stopped":
                    story.stopped(outcomes, event)
                    process.kill()
                    story.killed(places, process.pid, event)
                    return
    if stop is not None:
        raise JobFailedError("The job came to its end without stopping to be killed: {} of batch {}.".format(*stop))


if __name__ == "__main__":
    sys.exit(main())
