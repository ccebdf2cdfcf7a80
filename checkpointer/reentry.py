"""Changes that are made once and whole, whoever interrupts them.

Several threads take turns: they share a lock. But a signal handler, a `__del__` or a callback of the garbage collector
runs inside of the thread that it interrupts. It holds that thread's lock already, it may find the content half changed,
and the interrupted change cannot go on before it returns. So it leaves the half changed content to the interrupted
change, takes a copy, completes the change there, and works on that copy, which is the content from now on. When the
interrupted change goes on, nobody looks at what it does any more, and it takes the result from whoever completed it.

Each step by which a change becomes visible is one call of a function written in C (`dict.setdefault`, `dict.clear`),
which no signal handler interrupts.
"""

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar
from weakref import WeakSet


class Copyable(Protocol):
    def copied(self) -> Self:
        """Return a copy to change independently, in order even where a change of this one stopped half way."""


C = TypeVar("C", bound=Copyable)
R = TypeVar("R")

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""A change that runs: the function that makes it, and its arguments."""


def _nothing(content: object) -> None:
    """Stands in the place of a change that ended with an exception: what it left is copied and put in order."""


_FAILED: Step = (_nothing, ())


class Version(Generic[C]):
    """The content, until somebody takes over from a change that did not end."""

    __slots__ = ("completed", "content", "failure", "heir", "result", "running")

    def __init__(self, content: C) -> None:
        self.content = content
        self.running: dict[int, Step] = {}
        """The change that runs, under 0."""
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
        self.lock = threading.RLock()
        _everyone.add(self)

    def change(self, operation: Callable[..., R], *args: Any) -> R:
        """Call `operation(content, *args)` once; its effect is there once, even where somebody else completes it.

        It has to come to the same end where part of it was done before. What it adds to its arguments, it adds once.
        """
        with self.lock:
            try:
                result: R = self._change((operation, args))
                return result
            finally:
                if self.version.heir:  # old contents are freed
                    self.version = self.last()

    def _change(self, step: Step) -> Any:
        operation, args = step
        while True:
            version = self.last()
            if version.running.setdefault(0, step) is not step:
                self._take_over(version)
                continue
            done = False
            if not version.heir:
                try:
                    result = operation(version.content, *args)
                except BaseException:
                    version.running[0] = _FAILED
                    raise
                version.running.clear()
                done = True
            heir = version.heir.get(0)
            if heir is not None and heir.completed is step:
                return _outcome(heir)
            if done:  # whoever took over since then found it done
                return result
            # Somebody took over before this began.

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


_everyone: "WeakSet[Exclusive[Any]]" = WeakSet()


def _after_fork() -> None:
    """Replace the locks: another thread may hold one, and no other thread goes on in the child."""
    for each in list(_everyone):
        each.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
