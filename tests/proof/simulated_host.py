"""A host in a simulation: its time is that of the simulation, and nothing about it is random."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from pyspark_checkpointer.testing.simulation import Simulation

T = TypeVar("T")

START = datetime(2024, 1, 1, tzinfo=UTC)
"""The time at which every simulation begins."""


class SimulatedHost:
    """A `Host` whose time advances by one second with each step, plus `skew`.

    Its tokens are a count, and not random. Computations are done at once, in the calling thread.
    """

    def __init__(self, simulation: Simulation, name: int, skew: timedelta = timedelta(0)) -> None:
        self._simulation, self.name, self._skew = simulation, name, skew
        self.drawn = 0

    def now(self) -> datetime:
        return START + timedelta(seconds=self._simulation.steps) + self._skew

    def clock(self) -> int:
        return self._simulation.steps * 1_000_000_000

    def token(self, digits: int) -> str:
        """Return the host's number, then a count: never the same twice."""
        self.drawn += 1
        return f"{self.name:04x}{self.drawn:0{digits - 4}x}"

    async def run(self, compute: Callable[[], T]) -> T:
        return compute()

    async def call(self, function: Callable[[], T]) -> T:
        return function()
