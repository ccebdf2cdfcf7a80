"""Every place where a process can die: before and after each request it makes of a store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

from pyspark_checkpointer import storage as stores
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.store import FaultyStore

Job = Callable[[str], object]
"""A program that keeps its state below the root it is given."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """A root that a job left behind when it died at request `number`: before it took effect, or `after`."""

    root: str
    number: int
    after: bool
    died: bool
    """False where the job ended before that request, since it made other requests than the first time."""
    error: BaseException | None = field(repr=False)
    """What the job ended with; None where it came to its end all the same."""


@contextmanager
def injected(faults: Faults) -> Iterator[Faults]:
    """Until the end of the block, whatever is opened in this process by a root meets these faults.

    Other processes, such as Spark's executors, meet none.
    """
    opened = stores.open_root
    with mock.patch.object(stores, "open_root", lambda *args: FaultyStore(opened(*args), faults)):
        yield faults


def crash_points(run: Job, new_root: Callable[[], str], setup: Job | None = None) -> Iterator[CrashPoint]:
    """Play a job once for each place where it can die, each time on a new root, and hand out what it left behind.

    `setup` makes what the job finds, undisturbed. While a point is handed out nothing is faulty: start the job again,
    and look whether its state is right.

    Raises:
        Exception: What the job, or `setup`, raised when nothing was in its way.
        IllegalArgumentError: The job opened no store, or one that was open before.
    """
    requests = _play(run, new_root(), setup, Faults())
    if not requests:
        raise IllegalArgumentError(
            "the job made no request of a store: it must open what it uses itself, and be a function that returns when "
            "it is done, not a coroutine"
        )
    for number in range(1, requests + 1):
        for after in (False, True):
            root, faults = new_root(), Faults()
            error: BaseException | None = None
            faults.crash(number, after=after)
            try:
                _play(run, root, setup, faults)
            except KeyboardInterrupt:
                raise
            except BaseException as ended:  # a job may leave the interpreter
                error = ended
            yield CrashPoint(root, number, after, faults.dead, error)


def _play(run: Job, root: str, setup: Job | None, faults: Faults) -> int:
    """Run the job on a root. How many requests it made."""
    if setup is not None:
        setup(root)
    with injected(faults):
        run(root)
    return len(faults.requests)
