"""Changes that are made once and whole, whoever interrupts them.

Several threads take turns: they share a lock. But a signal handler, a `__del__` or a callback of the garbage collector
runs inside of the thread that it interrupts. It holds that thread's lock already, it may find the content half changed,
and the interrupted change cannot go on before it returns. So the handler never touches the half changed content. It
copies it, finishes the interrupted change in the copy, makes its own change there, and publishes the copy. When the
interrupted change goes on, it finds a newer version and takes its result from there.

Each step by which a change becomes visible is one call of a function written in C (`dict.setdefault`, `dict.clear`),
which no signal handler interrupts.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from pyspark_checkpointer.errors import InvalidStateError

LOOK = 1.0
"""Seconds after which a thread that waits looks what the one that it waits for is doing."""

LONGEST = 60.0
"""Seconds that a thread waits for one that was interrupted in a change. A save in a signal handler takes less."""


class Copyable(Protocol):
    def copied(self) -> Self:
        """Return a copy to change independently, in order even where a change of this one stopped half way."""


C = TypeVar("C", bound=Copyable)
R = TypeVar("R")

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""A change that runs: the function that makes it, and its arguments."""

Guard = Callable[[Callable[..., Any]], None]
"""Raises for an operation that must not be made."""


def _nothing(content: object) -> None:
    """Stands in the place of a change that ended with an exception: what it left is copied and put in order."""


_FAILED: Step = (_nothing, ())


class Version(Generic[C]):
    """The content, until somebody takes over from a change that did not end."""

    __slots__ = ("completed", "content", "failure", "heir", "result", "running")

    def __init__(self, content: C) -> None:
        self.content = content
        self.running: dict[int, Step] = {}
        """The change that runs, under 0: `setdefault(0, …)` is one step, which takes the place or finds it taken."""
        self.heir: dict[int, Version[C]] = {}
        """The version that took the place of this one, under 0."""
        self.completed: Step | None = None
        """The change of the version before that was completed here."""
        self.result: Any = None
        self.failure: Exception | None = None
        """Why that change could not be completed, for whoever began it."""


class Exclusive(Generic[C]):
    """Content that one change at a time can reach."""

    def __init__(self, content: C) -> None:
        self.version: Version[C] = Version(content)
        """The last version, or one before it. Whoever only reads may do so where nothing runs and no heir is."""
        self.guard: Guard | None = None
        """Refuses operations; whoever only reads asks it first. Set by `close`."""
        self._lock = threading.RLock()
        self._taken = False
        """Whether a thread has the lock. Nothing interrupts a thread between taking it and setting this."""
        self._waiting: dict[object, None] = {}
        """Threads that wait for the lock, or had to wait for it and have it now."""
        _everyone.add(self)

    def close(self, guard: Guard | None) -> None:
        """Let a guard refuse operations from now on. None lets all of them be made again."""
        self.whole(setattr, self, "guard", guard)

    def change(self, operation: Callable[..., R], *args: Any) -> R:
        """Call `operation(content, *args)` once; its effect is there once, even where somebody else completes it.

        `operation` must be idempotent: it may run again on a copy in which a part of it is already done. It may append
        to a list among its arguments only while that is empty.

        Raises what the guard raises, and `InvalidStateError` where another thread was interrupted in its own change and
        does not come back to it.
        """
        if (self._taken or self._waiting) and not self._is_mine():
            return self._wait(self.change, (operation, *args))  # type: ignore[no-any-return]
        step = (operation, args)
        with self._lock:
            outer, self._taken = self._taken, True
            try:
                if self.guard is not None:
                    self.guard(operation)
                while True:
                    version = self.version
                    if version.heir:
                        version = self.version = self.last()  # old contents are freed
                    if version.running.setdefault(0, step) is not step:
                        self._take_over(version)
                        continue
                    done, result = False, None
                    if not version.heir:
                        try:
                            result = operation(version.content, *args)
                        except BaseException:
                            version.running[0] = _FAILED
                            raise
                        version.running.clear()
                        if not version.heir:
                            return result
                        done = True
                    heir = version.heir[0]
                    if heir.completed is step:
                        return _outcome(heir)  # type: ignore[no-any-return]
                    if done:  # whoever took over since then found it done
                        return result  # type: ignore[return-value]
                    # Somebody took over before this began.
            finally:
                if self.version.heir:
                    self.version = self.last()
                self._taken = outer

    def whole(self, work: Callable[..., R], *args: Any) -> R:
        """Call `work(*args)`, which may make several changes, while no other thread makes any."""
        if (self._taken or self._waiting) and not self._is_mine():
            return self._wait(work, args)
        with self._lock:
            outer, self._taken = self._taken, True
            try:
                return work(*args)
            finally:
                self._taken = outer

    def _is_mine(self) -> bool:
        """Return whether this thread has the lock: it was interrupted in a change, or makes several as one."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # what `threading.Condition` asks it

    def _wait(self, work: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Wait for the lock, look now and then whether it can ever be free, and call `work(*args)`."""
        lock, me, taken = self._lock, object(), [False]  # a child that is forked in `work` has another lock, not taken
        try:
            self._waiting[me] = None
            patience = _Patience(self)
            while not taken[-1]:
                # Taking it and taking note of that is one step: an exception may come right after it.
                taken.extend(map(lock.acquire, (True,), (LOOK,)))
                if not taken[-1]:
                    patience.look()
            self._taken = True
            return work(*args)
        finally:
            if taken[-1]:
                self._taken = False
                lock.release()
            self._waiting.pop(me, None)

    def last(self) -> Version[C]:
        """Return the version that counts."""
        version = self.version
        while version.heir:
            version = version.heir[0]
        return version

    def _take_over(self, version: Version[C]) -> None:
        """Put a copy in the place of a version with a change that did not end, and complete the change there.

        A change that cannot be completed is the business of whoever began it, and who may never come back.
        """
        step = version.running[0]
        heir = Version(version.content.copied())
        heir.completed = step
        try:
            heir.result = step[0](heir.content, *step[1])
        except Exception as error:
            heir.failure = error
            heir.running[0] = _FAILED
        # Whoever interrupted this may have been first: then the version has an heir, and this one was made in vain.
        version.heir.setdefault(0, heir)


def _outcome(heir: Version[Any]) -> Any:
    """Take from a version the result of the change that was completed there, or raise why it was not."""
    result, failure = heir.result, heir.failure
    heir.completed = heir.result = heir.failure = None
    if failure is not None:
        raise failure
    return result


class _Patience:
    """Waits for a thread that makes a change, but not for ever for one that was interrupted in it.

    A signal handler may wait for the very thread that waits here: then neither would ever go on. A change that takes
    long, and that nobody interrupts, is waited for as long as it takes.
    """

    def __init__(self, owner: Exclusive[Any]) -> None:
        self._owner = owner
        self._seen: FrameType | None = None
        self._since = 0.0

    def look(self) -> None:
        """Raise `InvalidStateError` if the same interruption has been there for too long."""
        name, frame = self._find_interruption()
        if frame is None or frame is not self._seen:
            self._seen, self._since = frame, time.monotonic()
        elif time.monotonic() - self._since >= LONGEST:
            raise InvalidStateError(
                f"a map that another thread changes: thread {name} was interrupted in its change by "
                f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}, line {frame.f_code.co_firstlineno}), which "
                f"did not return for {LONGEST:g} seconds. This call was given up. A signal handler or finalizer must "
                "not wait for a thread that uses the map: let it set a flag, and wait after it has returned"
            )

    def _find_interruption(self) -> tuple[str, FrameType | None]:
        """Return the thread that makes a change, and the frame that interrupted the change."""
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

_CHANGING = (Exclusive.change.__code__, Exclusive.whole.__code__)
"""What runs while a thread makes a change. Nothing foreign runs inside of it where the thread waits for its turn."""


_everyone: "WeakSet[Exclusive[Any]]" = WeakSet()


def _after_fork() -> None:
    """Replace the locks: another thread may hold one, and no other thread goes on in the child."""
    for each in list(_everyone):
        each._lock = threading.RLock()
        each._taken, each._waiting = False, {}


os.register_at_fork(after_in_child=_after_fork)
