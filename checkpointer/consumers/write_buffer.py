"""Hold the values that wait to be written, and track the fate of each.

There is no I/O here, no timer and no lock.

    add ─> inbox ─ accept ─> held ─ take ─> writing ─┬─> written
                              ^                      ├─> given up ─> unreported, until a flush of its key raises it
                              └──────── kept ────────┘

* A value is in the next stage before it leaves the one before, so any thread that looks finds it in one.
* Only `add`, `take_back`, `waiting` and `pending` may be called from any thread, or from a signal handler that
  interrupts one of them: each operation on the inbox is atomic. Everything else belongs to the event loop's thread.
* A value is claimed once: it is either held, or taken back by the call that added it. So a call that raises has not
  written anything.
* A kept value never replaces a newer one of its key that came during the write.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Put(Generic[K, V]):
    """One call of `add`.

    No two are equal, so that a call takes back its own value and no other.
    """

    __slots__ = ("_claims", "key", "value")

    def __init__(self, key: K, value: V) -> None:
        self.key, self.value = key, value
        self._claims = [None]

    def claim(self) -> bool:
        """Return True to the first caller, and False to all others.

        Any thread may call it. The caller that gets True decides about the value: the event loop holds it, or the
        thread that added it takes it back.
        """
        try:
            self._claims.pop()  # atomic, also for a signal handler that interrupts it
        except IndexError:
            return False
        return True


class _Stages(NamedTuple, Generic[K, V]):
    held: dict[K, V]
    writing: Mapping[K, V]


class WriteBuffer(Generic[K, V]):
    """The latest value of each key, on its way to be written.

    `accept` is called with each value, in the order in which they were added, and returns whether it is held. `count`
    is the number of values that were accepted since nothing was held.
    """

    def __init__(self, accept: Callable[[K, V], bool]) -> None:
        self.count = 0
        self._accept = accept
        self._inbox: deque[Put[K, V]] = deque()
        # Both are replaced by one assignment: another thread that reads two attributes could miss a value between them.
        self._stages: _Stages[K, V] = _Stages({}, {})
        self._failed_tries: dict[K, int] = {}  # in a row, of the values that are held
        self._unreported: dict[K, Exception] = {}  # why the last value of a key was given up

    # ---- from any thread -----------------------------------------------------------------------------------------

    def add(self, key: K, value: V) -> Put[K, V]:
        """Put a value into the inbox."""
        put = Put(key, value)
        self._inbox.append(put)
        return put

    def take_back(self, put: Put[K, V]) -> bool:
        """Remove a value from the inbox.

        Return False if it is held already, or about to be.
        """
        if not put.claim():
            return False
        self._inbox.remove(put)
        return True

    def waiting(self) -> Sequence[tuple[K, V]]:
        """Return the values in the inbox, in order.

        `accept` may have been called with the first of them.
        """
        # A copy, which is atomic: other threads append meanwhile, and a deque that changes cannot be iterated.
        return [(put.key, put.value) for put in self._inbox.copy()]

    @property
    def pending(self) -> Mapping[K, V]:
        """The values that are not known to be written, the latest of each key."""
        waiting = self.waiting()  # The inbox is read first: what leaves it afterwards is in this copy.
        # One read of both: a value that moves from one to the other in between would be seen in neither.
        held, writing = self._stages
        # Later stages first, so that the newest value of a key wins.
        return {**writing, **dict(held), **dict(waiting)}

    # ---- on the event loop ---------------------------------------------------------------------------------------

    def drain_inbox(self) -> None:
        """Hold the values of the inbox that `accept` accepts."""
        # Values that are added from here on wait for the next call: their `put` schedules one.
        for put in self._inbox.copy():
            if not put.claim():
                continue  # The thread that added it takes it back, and removes it.
            if self._accept(put.key, put.value):
                self._stages.held[put.key] = put.value
                self.count += 1
            self._inbox.remove(put)

    def take(self, wanted: Callable[[K], bool]) -> Mapping[K, V]:
        """Move the held values of these keys to `writing`, and return them.

        `finish_write` has to follow.
        """
        held = self._stages.held
        writing = {key: value for key, value in held.items() if wanted(key)}
        rest = {key: value for key, value in held.items() if key not in writing}
        self._stages = _Stages(rest, writing)
        if not rest:
            self.count = 0
        return writing

    def finish_write(self, kept: Collection[K], given_up: Mapping[K, Exception]) -> None:
        """Hold the values of `kept` again, and drop the others.

        Remember why some were given up.
        """
        held, writing = self._stages
        # `held` comes last: its values came during the write, and are newer than what is kept.
        self._stages = _Stages({**{key: writing[key] for key in kept}, **held}, {})
        for key in writing:
            tries = self._failed_tries.pop(key, 0)
            # A value that was written or given up starts to count anew.
            if key in kept:
                self._failed_tries[key] = tries + 1
        # Nobody may be waiting for this write, so the reasons are kept for the next flush of their keys.
        self._unreported.update(given_up)

    def forget(self, wanted: Callable[[K], bool]) -> int:
        """Drop the held values of these keys, and return how many there were."""
        held, writing = self._stages
        rest = {key: value for key, value in held.items() if not wanted(key)}
        self._stages = _Stages(rest, writing)
        for key in held.keys() - rest.keys():
            self._failed_tries.pop(key, None)
        if not rest:
            self.count = 0
        return len(held) - len(rest)

    @property
    def has_held(self) -> bool:
        """Return whether any value is held."""
        return bool(self._stages.held)

    def failed_tries(self, key: K) -> int:
        """Return how many tries to write the held value of a key have failed in a row."""
        return self._failed_tries.get(key, 0)

    def has_failed(self, tries: int) -> bool:
        """Return whether the last `tries` writes of every held value have failed."""
        return all(self.failed_tries(key) >= tries for key in self._stages.held)

    def take_report(self, wanted: Callable[[K], bool]) -> Exception | None:
        """Remove and return one reason why a value of these keys was given up.

        Return None if there is none.
        """
        for key in [*self._unreported]:
            if wanted(key):
                return self._unreported.pop(key)
        return None
