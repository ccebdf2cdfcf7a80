"""Kill a job before and after each request that it makes of a store."""

import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from pyspark_checkpointer import storage as stores
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.storage import Store, compare_and_swap, request_path
from pyspark_checkpointer.testing.fault_kinds import refuse_coroutine
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.store import FaultyStore

Job = Callable[[str], object]
"""A program that keeps its state below the root it is given."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The root left behind by a job that died at one request.

    It died at request `number`: before the request took effect, or `after`.
    """

    root: str
    """The root that the job left."""
    number: int
    """The request at which it died, from 1."""
    after: bool
    """True if that request took effect."""
    died: bool
    """True if the job came to that request.

    False where it made other requests than the first time, and ended.
    """
    error: BaseException | None = field(repr=False)
    """The exception that ended the job; None if the job ended normally."""


@dataclass(slots=True, eq=False)
class _Block:
    """A block of `injected` that has begun and not ended."""

    faults: Faults
    opened: bool = False
    """True if a store was opened in it."""


_blocks: list[_Block] = []
"""The blocks of the process, in the order in which they began. They may end in any order, as threads let them."""
_patches = ExitStack()
"""Replacements of functions and pauses, while there are blocks."""
_lock = threading.Lock()


@contextmanager
def injected(faults: Faults) -> Iterator[Faults]:
    """Let every store that this process opens in the block meet these faults.

    They end with the block; a process that died in it stays dead. Stores that were opened before meet none, nor do
    those of other processes, such as Spark's executors. What fails is tried again at once: there is no outage to wait
    for.

    Args:
        faults: The faults.

    Raises:
        IllegalArgumentError: Faults were told, and no store was opened that could meet them.

    Examples:
        >>> from pyspark_checkpointer.testing import Faults, injected
        >>> with injected(Faults()) as faults, Checkpointer("state/orders") as ck:
        ...     with ck.begin(epoch=1) as cp:
        ...         cp.snapshot("totals", 0, b"1")
        >>> "_latest" in faults.paths("swap")
        True
    """
    block = _Block(faults)
    with _lock:
        if not _blocks:
            _replace_open_root()
        _blocks.append(block)
    try:
        yield faults
        if faults.told and not (block.opened or faults.requests):
            raise IllegalArgumentError(
                "no store was opened in the block of these faults, so nothing can meet them: open the client in it"
            )
    finally:
        with _lock:
            _blocks.remove(block)
            if not _blocks:
                _patches.close()
        faults.end()


def _replace_open_root() -> None:
    """Wrap each store that is opened in the faults of all blocks.

    What fails is sent again without a pause.
    """
    open_root = stores.open_root

    def open_faulty(*args: Any) -> Store:
        store = open_root(*args)
        for block in tuple(_blocks):
            block.opened = True
            store = FaultyStore(store, block.faults)
        return store

    # Every store is opened by this one function, whoever asks: clients, copies of them, and targets of an export.
    _patches.enter_context(mock.patch.object(stores, "open_root", open_faulty))
    _patches.enter_context(mock.patch.object(request_path, "FIRST_PAUSE", 0.0))
    _patches.enter_context(mock.patch.object(compare_and_swap, "FIRST_PAUSE", 0.0))


def crash_points(run: Job, new_root: Callable[[], str], setup: Job | None = None) -> Iterator[CrashPoint]:
    """Play a job once for each place where it can die, and yield the root it left.

    Each time it has a new root. While a point is yielded there are no faults: start the job again, and check its state.

    Args:
        run: A function of a root, which keeps its state there and makes the same requests each time.
        new_root: A function that returns a root that was never used.
        setup: A function of a root, which prepares it. It meets no faults.

    Raises:
        Exception: The job, or `setup`, raised it without any fault, the first time or later.
        IllegalArgumentError: The job opened no store, used one that was open before, or died at no request; `new_root`
            returned a root twice; or the job or `setup` is a coroutine function.

    Examples:
        >>> import tempfile
        >>> from pyspark_checkpointer.testing import crash_points
        >>> def job(root):
        ...     with Checkpointer(root) as ck, ck.begin(epoch=1) as cp:
        ...         cp.snapshot("totals", 0, b"1")
        >>> points = list(crash_points(job, tempfile.mkdtemp))
        >>> all(point.died for point in points)
        True
    """
    roots: set[str] = set()

    def prepared() -> str:
        root = new_root()
        if root in roots:
            raise IllegalArgumentError(f"new_root returned {root} twice: the job would find what it left there before")
        roots.add(root)
        if setup is not None:
            refuse_coroutine(setup(root), "setup")
        return root

    # The first time nothing fails: it counts the requests.
    requests = _play(run, prepared(), Faults())
    if not requests:
        raise IllegalArgumentError(
            "the job made no request of a store: it must open what it uses itself, and return when it is done"
        )
    died = False
    for number in range(1, requests + 1):
        for after in (False, True):
            root, faults = prepared(), Faults()
            error: BaseException | None = None
            faults.crash(number, after=after)
            try:
                _play(run, root, faults)
            # A job may end its process, or be cancelled. What else is no `Exception` is meant for the test, such as the
            # timeout of a test and the person at the keyboard.
            except (Exception, SystemExit, CancelledError) as ended:
                if not faults.dead:
                    raise
                error = ended
            died = died or faults.dead
            yield CrashPoint(root, number, after, faults.dead, error)
    if not died:
        raise IllegalArgumentError(
            "the job died at no request: it must open what it uses itself, and make the same requests each time"
        )


def _play(run: Job, root: str, faults: Faults) -> int:
    """Run the job on a root. Return how many requests it made."""
    with injected(faults):
        refuse_coroutine(run(root), "the job")
    return len(faults.requests)
