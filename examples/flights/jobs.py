"""The jobs of the demo: what each is called, where it is killed, and what it must have at the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from examples.flights.data import Day
from examples.flights.expected import State, batch_maps, batch_tables
from examples.flights.outcomes import Places
from examples.flights.pauses import POINTS, SWAPPED, UPLOADING
from examples.flights.process import Limit
from examples.flights.readback import Found, read_maps, read_tables


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    module: str
    batch: int
    """Days that make a batch: the stream takes that many files at once."""
    points: Sequence[str]
    """Where it is killed, once each, in batches that are equally far apart."""
    limit: float
    """Seconds after which it has failed: several times what it takes on two quiet processors."""
    about: str
    """What its state is and holds, as the demo says it."""
    operators: dict[str, str]
    """What its state is made of, and what each part counts."""
    same: str
    """What was compared, and is the same."""
    expected: Callable[[Sequence[Day]], State]
    read: Callable[[Places, Limit], Found]

    @property
    def min_days(self) -> int:
        """So few days that each kill still has a batch of its own, after the first one."""
        return self.batch * (len(self.points) + 1)


AIRCRAFT = "aircraft (those without a tail number count as one)"

MAPS = Job(
    name="maps",
    module="examples.flights.maps",
    batch=5,
    points=POINTS,
    limit=600,
    about="Its state is two mappings on the driver, each aircraft's totals, in all and by month:\n"
    "flights, miles, minutes in the air and late.",
    operators={"aircraft": AIRCRAFT, "months": "aircraft and months"},
    same="every total is the same",
    expected=batch_maps,
    read=read_maps,
)

TABLES = Job(
    name="tables",
    module="examples.flights.tables",
    batch=30,
    points=(UPLOADING, SWAPPED),
    limit=240,
    about="Its state is two tables, a row for each aircraft and one for each route, which Spark's tasks write:\n"
    "flights, miles and minutes late, the first and the last day, the quickest and the longest flight.",
    operators={"aircraft": AIRCRAFT, "routes": "routes"},
    same="every column of every row, and what they add up to, is the same",
    expected=batch_tables,
    read=read_tables,
)

JOBS = {job.name: job for job in (MAPS, TABLES)}
