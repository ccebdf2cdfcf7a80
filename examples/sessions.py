"""Find the sessions of aircraft: `python -m examples.sessions [DAYS] [FOLDER]`.

A session is a row of flights with less than twelve hours on the ground between them. Each batch is one day. The session
of an aircraft is over once it flies again after a longer time, or once the job's clock says that it stood for so long:
then its row expires, and `expired()` returns it exactly once.

The result is compared with what a plain loop over all flights finds. If the program is killed, start it again with the
same folder: it goes on.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.flights.data import Day, read_days, write_days
from pyspark_checkpointer.spark import Change, Expire, State, read_state, stateful

GROUND = timedelta(hours=12)
COLUMNS = ["tailnum", "began", "landed", "flights", "miles"]
SESSION = "tailnum string, began timestamp, landed timestamp, flights long, miles long"

Session = dict[str, Any]


def walk(key: tuple[str], flights: list[dict[str, Any]], session: Session | None) -> Change:
    """Go through the flights of one aircraft: emit the sessions that are over, and keep the one that goes on."""
    over: list[Session] = []
    for flight in flights:
        if session is not None and flight["departure"] - session["landed"] >= GROUND:
            over.append(session)
            session = None
        landed = flight["departure"] + timedelta(minutes=flight["air_time"])
        if session is None:
            session = {"tailnum": key[0], "began": flight["departure"], "landed": landed, "flights": 0, "miles": 0}
        session = session | {
            "landed": max(landed, session["landed"]),
            "flights": session["flights"] + 1,
            "miles": session["miles"] + flight["distance"],
        }
    return Change(upserts=session, output=over)


def flights_of(lines: DataFrame) -> DataFrame:
    """Return the flights that took place, with the time of departure."""
    minutes = "(dep_time div 100) * 60 + dep_time % 100"
    return lines.where("tailnum IS NOT NULL AND dep_time IS NOT NULL AND air_time IS NOT NULL").select(
        "tailnum",
        F.expr(f"make_timestamp(year, month, day, 0, 0, 0) + make_dt_interval(0, 0, {minutes}, 0)").alias("departure"),
        "air_time",
        "distance",
    )


def run(spark: SparkSession, folder: Path) -> None:
    """Run the job over all days in the folder, from where it was."""

    @stateful(folder / "state")
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        flights = flights_of(batch)
        first = flights.agg(F.unix_micros(F.min("departure"))).first()
        if first is None or first[0] is None:
            return
        # All days before are known, so nothing happens before the first flight of this one.
        state.advance_clock(datetime.fromtimestamp(first[0] / 1e6, UTC))
        table = state.table("open", ["tailnum"], schema=SESSION, expire=Expire("landed", after=GROUND))
        over = table.apply_groups(flights, walk, output=SESSION, order_by=["departure"])
        assert over is not None
        stood = table.expired()
        # A batch that Spark repeats writes the same rows to the same place. Another query, with a new checkpoint of
        # Spark, counts its batches from 0 again, and has places of its own.
        stood.select(COLUMNS).unionByName(over).write.mode("overwrite").parquet(
            str(folder / "sessions" / f"{state.token.query_id}-{batch_id}")
        )

    schema = "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    schema += "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, "
    schema += "dest string, air_time long, distance long, hour int, minute int, time_hour string"
    lines = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).option("nullValue", "NA")
    days = lines.option("header", True).option("enforceSchema", True).csv(str(folder / "days"))
    writer = days.writeStream.option("checkpointLocation", str(folder / "spark")).trigger(availableNow=True)
    writer.foreachBatch(update).start().awaitTermination()


def found(spark: SparkSession, folder: Path) -> list[tuple[Any, ...]]:
    """Return all sessions, those that are over and those that are open, with their times in minutes since 1970."""
    over = spark.read.schema(SESSION).parquet(str(folder / "sessions" / "*"))
    both = over.unionByName(read_state(spark, str(folder / "state"), "open").select(COLUMNS))
    minutes = [(F.unix_micros(name) / 60_000_000).cast("long").alias(name) for name in ("began", "landed")]
    return sorted(tuple(row) for row in both.select("tailnum", *minutes, "flights", "miles").collect())


def expected(days: list[Day]) -> list[tuple[Any, ...]]:
    """Return the sessions that a plain loop over the lines of all days finds."""
    sessions: list[list[Any]] = []
    last: dict[str, list[Any]] = {}
    for tailnum, departure, air_time, distance in sorted(_plain(days)):
        session = last.get(tailnum)
        if session is None or departure - session[2] >= GROUND // timedelta(minutes=1):
            session = last[tailnum] = [tailnum, departure, departure, 0, 0]
            sessions.append(session)
        session[2] = max(session[2], departure + air_time)
        session[3] += 1
        session[4] += distance
    return sorted(map(tuple, sessions))


def _plain(days: list[Day]) -> Iterator[tuple[str, int, int, int]]:
    for day in days:
        midnight = datetime(day.date.year, day.date.month, day.date.day, tzinfo=UTC).timestamp() // 60
        names = day.header.strip().split(",")
        for line in day.lines:
            row = dict(zip(names, line.strip().split(","), strict=True))
            if "NA" not in (row["tailnum"], row["dep_time"], row["air_time"]):
                hours, minutes = divmod(int(float(row["dep_time"])), 100)
                departure = int(midnight) + 60 * hours + minutes
                yield row["tailnum"], departure, int(float(row["air_time"])), int(float(row["distance"]))


def main(days: str = "14", folder: str | None = None) -> int:
    """Run the job, and compare its sessions with the expected ones."""
    place = Path(folder or tempfile.mkdtemp(prefix="sessions-"))
    given = read_days(int(days))
    if not (place / "days").exists():
        # Under another name until all of them are there, also if it is killed and started again.
        shutil.rmtree(place / "days.part", ignore_errors=True)
        write_days(place / "days.part", given)
        (place / "days.part").rename(place / "days")
    builder = SparkSession.builder.master("local[2]").appName("sessions").config("spark.ui.enabled", "false")
    spark = (
        builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    )
    run(spark, place)
    sessions, wanted = found(spark, place), expected(given)
    same = sessions == wanted
    longest = max(sessions, key=lambda one: one[2] - one[1])
    print(f"{len(sessions):,} sessions of {len({one[0] for one in sessions}):,} aircraft in {days} days", flush=True)
    print(f"the longest: {longest[0]}, {longest[3]} flights in {(longest[2] - longest[1]) / 60:.0f} hours")
    print("exactly those of a plain loop" if same else f"WRONG: a plain loop finds {len(wanted):,}")
    spark.stop()
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
