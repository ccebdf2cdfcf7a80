"""The jobs of the demo: the name of each, where it is killed, and the state it must have at the end."""

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
    """Days in a batch: the stream takes this many files at once."""
    points: Sequence[str]
    """The points where it is killed, once each, in batches at equal distances."""
    limit: float
    """Seconds after which it has failed: several times what it takes on two idle processors."""
    about: str
    """A description of its state, which the demo prints."""
    operators: dict[str, str]
    """The operators of its state, and what each counts."""
    same: str
    """A description of what was compared and is equal."""
    expected: Callable[[Sequence[Day]], State]
    read: Callable[[Places, Limit], Found]

    @property
    def min_days(self) -> int:
        """The fewest days with which each kill has a batch of its own, after the first batch."""
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
