"""Test a job, or anything else that is built on a store.

`FaultyStore` wraps any store and fails as a script or a seed says. `injected` puts faults into every root that a
process opens. `crash_points` kills a job at every place where it can die. `pyspark_checkpointer.testing.plugin` has
them as fixtures for pytest.
"""

from pyspark_checkpointer.testing.crashes import CrashPoint, crash_points, injected
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.requests import CrashError, Fault, Gate, LateWrite, Request, Send
from pyspark_checkpointer.testing.store import FaultyStore

__all__ = [
    "CrashError",
    "CrashPoint",
    "Fault",
    "Faults",
    "FaultyStore",
    "Gate",
    "LateWrite",
    "Request",
    "Send",
    "crash_points",
    "injected",
]
