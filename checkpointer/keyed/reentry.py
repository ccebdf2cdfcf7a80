"""Make each change of shared content once and whole, whoever interrupts it.

Several threads share a lock and take turns. But a signal handler, a `__del__` or a callback of the garbage collector
runs inside the thread that it interrupts. This thread already holds the lock, and the content may be half changed. The
interrupted change cannot continue before the handler returns. So the handler never touches the half changed content. It
copies the content, finishes the interrupted change in the copy, makes its own change there, and publishes the copy.
When the interrupted change continues, it finds a newer version and takes its result from there.

Each step by which a change becomes visible is one call of a function written in C (`dict.setdefault`, `dict.clear`),
which no signal handler interrupts.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Container
from types import FrameType
from typing import Any, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from pyspark_checkpointer.errors import InvalidStateError

CHECK_INTERVAL = 1.0
"""Seconds between checks on the thread that has the lock.

A thread that waits for the lock looks at what that thread is doing.
"""

MAX_INTERRUPTION = 60.0
"""Seconds to wait for a thread that was interrupted in its change.

A save in a signal handler takes less.
"""


class Copyable(Protocol):
    """Content that can be made consistent after a change of it was interrupted."""

    def copied(self) -> Self:
        """Return a consistent copy that can be changed independently.

        The copy is consistent even if a change of this one stopped half way.
        """


C = TypeVar("C", bound=Copyable)
R = TypeVar("R")

RunningChange = tuple[Callable[..., Any], tuple[Any, ...]]
"""A change that runs: the function that makes it, and its arguments."""

Guard = Callable[[Callable[..., Any]], None]
"""A function that raises for an operation that must not be made."""


def _nothing(content: object) -> None:
    """Change nothing.

    This takes the place of a change that ended with an exception. The next user takes over from it, and so makes a
    consistent copy of the content.
    """


class _Abandoned(tuple[Any, ...]):
    """A change that ended with an exception.

    The next user completes the change. The caller of the change does not come back.
    """

    __slots__ = ()


_FAILED: RunningChange = (_nothing, ())


class Version(Generic[C]):
    """A version of the content, until somebody takes over from an unfinished change.

    | running   | successor    | state                                                                 |
    |-----------|--------------|-----------------------------------------------------------------------|
    | {}        | {}           | nobody changes the content; it is in order                            |
    | {0: step} | {}           | a change runs, was interrupted, or raised; it may have done a part    |
    | any       | {0: version} | final: somebody took over, and `version` counts in place of this one  |

    Both are dicts because `setdefault(0, …)` is one step: it takes the place, or finds it taken.
    """

    __slots__ = ("completed", "content", "failure", "result", "running", "successor")

    def __init__(self, content: C) -> None:
        self.content = content
        self.running: dict[int, RunningChange] = {}
        """The change that runs, under the key 0."""
        self.successor: dict[int, Version[C]] = {}
        """The version that took the place of this one, under the key 0."""
        self.completed: RunningChange | None = None
        """The change that was completed here after an interruption.

        The change was interrupted in the version before this one.
        """
        self.result: Any = None
        """The result of that change, for the caller that began it."""
        self.failure: Exception | None = None
        """The error of that change, for the caller that began it."""


class Exclusive(Generic[C]):
    """Content that one change at a time can reach."""

    def __init__(self, content: C, compound: Container[Any]) -> None:
        """Take the content, and the operations that make several changes.

        Such an operation takes effect completely or not at all.
        """
        self._compound = compound
        self.version: Version[C] = Version(content)
        """The last version, or one before it.

        It may be read without the lock while no change runs on it and it has no successor.
        """
        self.guard: Guard | None = None
        """A guard that refuses operations.

        Code that reads without the lock asks it first. `set_guard` sets it.
        """
        self.check: Callable[[C], None] | None = None
        """A check that content which was just restored has to pass before the first operation.

        Until the content has passed the check, code that reads without the lock may trust only entries that it finds.
        """
        self._lock = threading.RLock()
        self._taken = False
        """True if a thread has the lock.

        Nothing interrupts a thread between taking it and setting this.
        """
        self._waiting: dict[object, None] = {}
        """Threads that wait for the lock, or had to wait for it and have it now.

        Each is named by an object of its own.
        """
        _instances.add(self)

    def set_guard(self, guard: Guard | None) -> None:
        """Let a guard refuse operations from now on; None allows all again."""
        self.exclusively(setattr, self, "guard", guard)

    def change(self, operation: Callable[..., R], *args: Any) -> R:
        """Call `operation(content, *args)` once.

        Its effect takes place once, even if another thread completes it.

        `operation` must be idempotent: it may run again on a copy in which a part of it is already done. It may append
        to a list among its arguments only while that is empty.

        Raises what the guard raises, and `InvalidStateError` where another thread was interrupted in its own change and
        does not come back to it.
        """
        step = (operation, args)
        # Waiting for the lock itself could last for ever: the thread that has it may be inside a handler that waits for
        # this one. `_wait` looks for that now and then. A lock that is free here is free below: nothing is called in
        # between, so no other thread runs, unless Python 3.11 collects garbage at this very moment and a finalizer
        # waits.
        if (self._taken or self._waiting) and not self._is_mine():
            return self._wait(self.change, (operation, *args))  # type: ignore[no-any-return]
        with self._lock:
            outer, self._taken = self._taken, True
            try:
                if self.guard is not None:
                    self.guard(operation)
                if self.check is not None:
                    self.pass_check()
                while True:
                    version = self.version
                    if version.successor:
                        version = self.version = self.last()  # old contents are freed
                    if version.running.setdefault(0, step) is not step:
                        # This call interrupted a change of its own thread, or found one that failed.
                        self._take_over(version)
                        continue
                    done, result = False, None
                    if not version.successor:
                        # From here on, whoever interrupts this completes the change in a successor.
                        try:
                            result = operation(version.content, *args)
                        except BaseException:
                            # A signal handler may have raised in the middle of a change. The next operation repairs
                            # the copy: a single change is undone there, and a change of several keys is completed.
                            version.running[0] = _Abandoned(step) if operation in self._compound else _FAILED
                            raise
                        version.running.clear()
                        if not version.successor:
                            return result
                        # A handler made a successor meanwhile. It completed this change if it came before `clear`,
                        # and copied the completed change if it came after.
                        done = True
                    successor = version.successor[0]
                    if successor.completed is step:
                        return _outcome(successor)  # type: ignore[no-any-return]
                    if done:
                        return result  # type: ignore[return-value]
                    # Somebody took over before this change began: it begins in the newest version.
            finally:
                if self.version.successor:
                    self.version = self.last()
                self._taken = outer

    def pass_check(self) -> None:
        """Make the check of restored content, if it was not made yet.

        A check that raises is made again before the next operation. The check changes nothing, so interrupting code may
        make it too.
        """
        if self.check is not None:
            self.check(self.last().content)
            self.check = None

    def exclusively(self, work: Callable[..., R], *args: Any) -> R:
        """Call `work(*args)` while no other thread makes a change."""
        if (self._taken or self._waiting) and not self._is_mine():
            return self._wait(work, args)
        with self._lock:
            outer, self._taken = self._taken, True
            try:
                return work(*args)
            finally:
                self._taken = outer

    def _is_mine(self) -> bool:
        """Return whether this thread has the lock.

        If so, it was interrupted in a change, or makes several changes as one.
        """
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # what `threading.Condition` asks it

    def _wait(self, work: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Wait for the lock, then call `work(*args)`.

        Meanwhile check now and then whether the lock can ever be free.
        """
        lock, me, taken = self._lock, object(), [False]  # a child that is forked in `work` has another lock, not taken
        try:
            self._waiting[me] = None
            watchdog = _Watchdog(self)
            while not taken[-1]:
                # Taking it and taking note of that is one step: an exception may come right after it.
                taken.extend(map(lock.acquire, (True,), (CHECK_INTERVAL,)))
                if not taken[-1]:
                    watchdog.check()
            self._taken = True
            return work(*args)
        finally:
            # A KeyboardInterrupt may come right after the lock is released. A name that stays would have every later
            # call wait here first.
            try:
                if taken[-1]:
                    self._taken = False
                    lock.release()
            finally:
                self._waiting.pop(me, None)

    def last(self) -> Version[C]:
        """Return the version that counts: the one that has no successor."""
        version = self.version
        while version.successor:
            version = version.successor[0]
        return version

    def _take_over(self, version: Version[C]) -> None:
        """Replace a version whose change did not end, and complete the change.

        A copy takes the place of the version, and the change is completed in the copy. If the change cannot be
        completed, only its caller gets the error.
        """
        step = version.running[0]
        successor = Version(version.content.copied())
        try:
            result = step[0](successor.content, *step[1])
            if type(step) is not _Abandoned:  # else nobody would ever take it, and it may be large
                successor.completed, successor.result = step, result
        except Exception as error:
            # KeyboardInterrupt and the like are no Exception and pass: they are meant for this thread, and not for the
            # one whose change this is.
            successor.completed, successor.failure = step, error
            successor.running[0] = _FAILED
        # Whoever interrupted this may have taken over first. Then the version keeps that successor.
        version.successor.setdefault(0, successor)


def _outcome(successor: Version[Any]) -> Any:
    """Return the result of a version's completed change, or raise its error.

    The version then forgets both.
    """
    result, failure = successor.result, successor.failure
    successor.completed = successor.result = successor.failure = None
    if failure is not None:
        raise failure
    return result


class _Watchdog:
    """Ends the wait for a thread that does not come back to its change.

    That thread was interrupted in its change.

    A signal handler may wait for the thread that waits here. Then neither could ever continue. A change that nobody
    interrupts may take any time.
    """

    def __init__(self, owner: Exclusive[Any]) -> None:
        self._owner = owner
        self._seen: FrameType | None = None
        self._since = 0.0

    def check(self) -> None:
        """Raise `InvalidStateError` if the same interruption has been there for too long."""
        name, frame = self._find_interruption()
        if frame is None or frame is not self._seen:
            self._seen, self._since = frame, time.monotonic()
        # Measured for one frame: a thread that is interrupted again and again, and comes back each time, is not stuck.
        elif time.monotonic() - self._since >= MAX_INTERRUPTION:
            raise InvalidStateError(
                f"a map that another thread changes: thread {name} was interrupted in its change by "
                f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}, line {frame.f_code.co_firstlineno}), which "
                f"did not return for {MAX_INTERRUPTION:g} seconds. This call was given up. A signal handler or "
                "finalizer must not wait for a thread that uses the map: let it set a flag, and wait after it has "
                "returned"
            )

    def _find_interruption(self) -> tuple[str, FrameType | None]:
        """Return the name of the thread that makes a change, and a frame.

        The frame is the one that interrupted the thread; None if it was not interrupted.
        """
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, innermost in sys._current_frames().items():
            frame: FrameType | None = innermost
            foreign: FrameType | None = None
            while frame is not None:
                if frame.f_code in _CHANGING and foreign is not None and frame.f_locals["self"] is self._owner:
                    return names.get(ident, str(ident)), foreign
                if not frame.f_globals.get("__name__", "").startswith(_PACKAGE):
                    foreign = frame
                frame = frame.f_back
        return "", None


_PACKAGE = f"{__name__.partition('.')[0]}."

_CHANGING = (Exclusive.change.__code__, Exclusive.exclusively.__code__)
"""Code that a thread runs while it makes a change.

Frames of other packages inside this code have interrupted it.
"""


_instances: "WeakSet[Exclusive[Any]]" = WeakSet()


def _after_fork() -> None:
    """Replace the locks in a child process.

    Another thread may have held one, and only the forking thread runs in the child.
    """
    for each in list(_instances):
        each._lock = threading.RLock()
        each._taken, each._waiting = False, {}


os.register_at_fork(after_in_child=_after_fork)
