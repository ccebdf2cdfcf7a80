"""Make requests of a store fail, by script or by a seed.

A fault stands between a request and the store, and decides what is sent and what is answered:

    faults = Faults()
    faults.drop_answer("swap")              # the next swap takes effect, and its answer is lost
    faults.crash(5)                         # the process dies before the fifth request from now on
    store = FaultyStore(MemoryStore("memory://x"), faults)
"""

import inspect
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark_checkpointer.errors import DependencyError, IllegalArgumentError, ThrottlingError
from pyspark_checkpointer.storage.base import ListedObject, ListingPage
from pyspark_checkpointer.testing.fault_kinds import Action, calling, delaying, failing, flipping, tearing, through
from pyspark_checkpointer.testing.requests import KINDS, WRITES, CrashError, Fault, Gate, LateWrite, Request, Send

DEFAULT_RATE = 0.1
"""The share of requests that a seed lets fail unless told otherwise."""

FAILURES = ("fail", "drop_answer", "throttle", "delay", "stale_listing")
"""The faults that a seed chooses from unless told otherwise.

A correct client survives all of them.
"""

DAMAGE = ("flip", "tear")
"""Further faults that a seed may be told to choose from."""

MAX_RANDOM_DELAY = 0.01
"""Seconds that a seed delays a request at most.

They are enough for other requests to overtake it.
"""


@dataclass(slots=True, eq=False)
class _Rule:
    """A fault for the matching requests from the `nth` on, `times` of them."""

    fault: Fault
    kind: str | None
    path: str
    nth: int
    times: int
    of_objects: bool = False
    """True if listings of folders alone do not count."""
    seen: int = 0

    def matches(self, request: Request) -> bool:
        """Return whether the fault is for this request.

        Counts the request if it is of the right kind and path.
        """
        if self.kind not in (None, request.kind) or self.path not in request.path:
            return False
        if self.of_objects and request.lists_folders:
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


def _noted(request: Request) -> Request:
    """Return what is kept of a request.

    A long test may write more than fits into memory.
    """
    return replace(request, data=b"") if request.kind == "put" else request


class Faults:
    """The faults to come, and the requests so far.

    Several stores may share one `Faults`: they fail as one process does. The arguments of each method say which request
    meets the fault: the `nth` from now on of a `kind` (None: any) whose path contains `path`, and the `times - 1`
    matching requests after it. With a seed, each request meets one of `failures` with probability `rate`.

    Args:
        seed: An integer for random faults; None for only those that you tell.
        rate: The probability of a random fault, from 0 to 1.
        failures: Random faults to choose from: "fail", "drop_answer", "throttle", "delay", "stale_listing", "flip",
            "tear". A correct client survives the first five; the last two damage data.

    Raises:
        IllegalArgumentError: An argument is out of its range, or `rate` or `failures` is given without a seed.

    Examples:
        The examples of the methods go on from here.

        >>> from pyspark_checkpointer.testing import Faults, injected
        >>> def save(number):
        ...     with ck.begin(epoch=number) as cp:
        ...         cp.snapshot("totals", 0, b"%d" % number)
        >>> with injected(Faults()) as faults:
        ...     ck = Checkpointer("state/orders")
        ...     save(1)
        >>> faults.counts["put"] > 0
        True
    """

    def __init__(
        self, *, seed: int | None = None, rate: float = DEFAULT_RATE, failures: Sequence[str] = FAILURES
    ) -> None:
        if not failures or set(failures) - {*FAILURES, *DAMAGE}:
            raise IllegalArgumentError(f"failures={failures!r}: expected some of {', '.join(FAILURES + DAMAGE)}")
        if not 0 <= rate <= 1:
            raise IllegalArgumentError(f"rate={rate}: expected a probability")
        if seed is None and (rate, failures) != (DEFAULT_RATE, FAILURES):
            raise IllegalArgumentError("rate and failures are of random faults: give a seed")
        self.requests: list[Request] = []
        """The requests so far, of puts without their data."""
        self._rules: list[_Rule] = []
        self.dead = False
        """True if the process has died; then no request is served any more."""
        self._late: set[int] = set()
        """Numbers of the requests that may take effect after the process has died."""
        self._random = None if seed is None else random.Random(seed)
        self._rate, self._failures = rate, tuple(failures)
        self._effects: list[Request] = []
        """Writes and deletions that reached the store, oldest first."""
        self._lock = threading.Lock()

    # ---- requests so far ------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Counter[str]:
        """Return the number of requests by kind."""
        return Counter(request.kind for request in self.requests)

    def paths(self, kind: str) -> list[str]:
        """Return the paths of all requests of a kind, in their order.

        Args:
            kind: The kind of request, such as "put".

        Examples:
            >>> faults.paths("swap")[-1]
            '_latest'
        """
        return [request.path for request in self.requests if request.kind == kind]

    def forget(self) -> None:
        """Forget the requests so far, and begin to count anew.

        Examples:
            >>> faults.forget()
            >>> faults.counts["put"]
            0
        """
        self.requests = []

    # ---- faults to come -------------------------------------------------------------------------------------

    def apply(self, fault: Fault, kind: str | None = None, nth: int = 1, *, path: str = "", times: int = 1) -> None:
        """Let any fault meet the nth matching request.

        Args:
            fault: A coroutine function of the request and of what sends it on. The caller gets its result or error.
            kind: The kind of request; None for any.
            nth: The number of the request among the matching ones, from 1.
            path: Text that the path of the request contains.
            times: How many matching requests from the nth on meet the fault.

        Raises:
            IllegalArgumentError: There is no such kind, or `nth` or `times` is below 1.

        Examples:
            >>> async def twice(request, send):
            ...     await send(request)
            ...     return await send(request)
            >>> faults.apply(twice, "put")
            >>> save(2)
        """
        if kind not in (None, *KINDS):
            raise IllegalArgumentError(f"no request is of kind {kind!r}: kinds are {', '.join(KINDS)}")
        if nth < 1 or times < 1:
            raise IllegalArgumentError(f"nth={nth}, times={times}: expected 1 or more of each")
        self._rules.append(_Rule(fault, kind, path, nth, times))

    def call(
        self,
        action: Action,
        kind: str | None = None,
        nth: int = 1,
        *,
        path: str = "",
        after: bool = False,
        times: int = 1,
    ) -> None:
        """Call `action` in a thread at the nth matching request.

        The request raises what the action raises.

        Args:
            action: A function of the request.
            kind: As in `apply`.
            nth: As in `apply`.
            path: As in `apply`.
            after: Whether to call it after the request took effect.
            times: As in `apply`.

        Raises:
            IllegalArgumentError: `action` is a coroutine function, or as in `apply`. The request raises it where
                `action` returns a coroutine.

        Examples:
            >>> seen = []
            >>> faults.call(lambda request: seen.append(request.path), "swap")
            >>> save(2)
            >>> seen
            ['_latest']
        """
        if inspect.iscoroutinefunction(action):
            raise IllegalArgumentError("a coroutine function would not be awaited: give a function")
        self.apply(calling(action, after), kind, nth, path=path, times=times)

    def fail(
        self,
        kind: str | None = None,
        nth: int = 1,
        *,
        path: str = "",
        after: bool = False,
        times: int = 1,
        error: type[Exception] = DependencyError,
    ) -> None:
        """Let the nth matching request fail, before or (`after`) after it took effect.

        Args:
            kind: As in `apply`.
            nth: As in `apply`.
            path: As in `apply`.
            after: Whether the request takes effect first.
            times: As in `apply`.
            error: The class of the error.

        Raises:
            IllegalArgumentError: As in `apply`.

        Examples:
            >>> faults.fail("put")  # the library sends it again
            >>> save(2)
            >>> ck.restore().epoch
            2
        """
        self.apply(failing(error, after), kind, nth, path=path, times=times)

    def drop_answer(self, kind: str = "swap", nth: int = 1, *, path: str = "", times: int = 1) -> None:
        """Let the nth matching request take effect, and lose its answer.

        Args:
            kind: As in `apply`.
            nth: As in `apply`.
            path: As in `apply`.
            times: As in `apply`.

        Raises:
            IllegalArgumentError: As in `apply`.

        Examples:
            >>> faults.drop_answer("swap")  # the library reads what became of it
            >>> save(2)
            >>> ck.restore().epoch
            2
        """
        self.fail(kind, nth, path=path, after=True, times=times)

    def throttle(self, kind: str | None = None, nth: int = 1, *, path: str = "", times: int = 1) -> None:
        """Let the store refuse the nth matching request as one too many (status 503).

        Args:
            kind: As in `apply`.
            nth: As in `apply`.
            path: As in `apply`.
            times: As in `apply`.

        Raises:
            IllegalArgumentError: As in `apply`.

        Examples:
            >>> faults.throttle("put")
            >>> save(2)
            >>> ck.restore().epoch
            2
        """
        self.fail(kind, nth, path=path, times=times, error=ThrottlingError)

    def delay(
        self,
        seconds: float,
        kind: str | None = None,
        nth: int = 1,
        *,
        path: str = "",
        after: bool = False,
        times: int = 1,
    ) -> None:
        """Delay the nth matching request, or (`after`) its answer.

        So later requests overtake it.

        Args:
            seconds: How long.
            kind: As in `apply`.
            nth: As in `apply`.
            path: As in `apply`.
            after: Whether to delay the answer.
            times: As in `apply`.

        Raises:
            IllegalArgumentError: `seconds` is below 0.

        Examples:
            >>> faults.delay(0.01, "put")
            >>> save(2)
        """
        if not seconds >= 0:
            raise IllegalArgumentError(f"seconds={seconds}: expected 0 or more")
        self.apply(delaying(0.0 if after else seconds, seconds if after else 0.0), kind, nth, path=path, times=times)

    def late(self, kind: str = "swap", nth: int = 1, *, path: str = "", times: int = 1) -> list[LateWrite]:
        """Leave the nth put, swap or delete unanswered.

        Args:
            kind: "put", "swap" or "delete".
            nth: As in `apply`.
            path: As in `apply`.
            times: As in `apply`.

        Returns:
            A list that will hold it, for the test to land it.

        Raises:
            IllegalArgumentError: Requests of this kind cannot land late.

        Examples:
            >>> late = faults.late("swap")
            >>> save(2)  # the library sends it again
            >>> late[0].land()
            False
        """
        if kind not in WRITES:
            raise IllegalArgumentError(f"a {kind} cannot land late: expected one of {', '.join(WRITES)}")
        late: list[LateWrite] = []

        async def fault(request: Request, send: Send) -> Any:
            # Marked before it is handed out: the test may land it after the process has died.
            self._late.add(request.number)
            late.append(LateWrite(request, send))
            raise DependencyError(f"{request.kind} {request.path}: no answer yet, says the test")

        self.apply(fault, kind, nth, path=path, times=times)
        return late

    def hold(self, kind: str, nth: int = 1, *, path: str = "", after: bool = False, times: int = 1) -> Gate:
        """Hold the nth matching request until the gate is opened.

        Args:
            kind: As in `apply`.
            nth: As in `apply`.
            path: As in `apply`.
            after: Whether to hold the answer.
            times: As in `apply`.

        Returns:
            The gate.

        Raises:
            IllegalArgumentError: As in `apply`.

        Examples:
            >>> from threading import Thread
            >>> gate = faults.hold("swap")
            >>> commit = Thread(target=save, args=[2])
            >>> commit.start()
            >>> gate.wait()  # the swap is on its way
            >>> gate.open()
            >>> commit.join()
        """
        gate = Gate()
        self.call(gate, kind, nth, path=path, after=after, times=times)
        return gate

    def tear(self, nth: int = 1, *, path: str = "", share: float = 0.5) -> None:
        """Let the nth matching put write only the first `share` of its bytes, and fail.

        Of real stores, only those without fencing (any fsspec URL with `fencing="none"`) can do that.

        Args:
            nth: As in `apply`.
            path: As in `apply`.
            share: The part of the bytes that is written, from 0 to below 1.

        Raises:
            IllegalArgumentError: `share` is out of its range.

        Examples:
            >>> faults.tear(share=0.5)
        """
        if not 0 <= share < 1:
            raise IllegalArgumentError(f"share={share}: expected a part of the bytes, and not all of them")
        self.apply(tearing(share), "put", nth, path=path)

    def flip(self, kind: str = "get", nth: int = 1, *, path: str = "", bit: int = 0, times: int = 1) -> None:
        """Flip one bit of the nth matching answer.

        Args:
            kind: "get" or "get_range".
            nth: As in `apply`.
            path: As in `apply`.
            bit: The number of the bit; 0 is the lowest of the first byte.
            times: As in `apply`.

        Raises:
            IllegalArgumentError: Requests of this kind are answered with no bytes.

        Examples:
            >>> faults.flip("get", path="_latest", bit=9)
            >>> ck.verify().findings[0].path
            '_latest'
        """
        if kind not in ("get", "get_range"):
            raise IllegalArgumentError(f"{kind!r} is answered with no bytes: flip those of a get or get_range")
        self.apply(flipping(bit), kind, nth, path=path, times=times)

    def stale_listing(self, nth: int = 1, *, path: str = "", lag: int = 1, times: int = 1) -> None:
        """Let the nth matching listing miss the last `lag` writes and deletions.

        Only writes and deletions that go through these faults count. A listing of folders alone is never stale, and
        does not count.

        Args:
            nth: As in `apply`.
            path: As in `apply`.
            lag: How many writes and deletions, from 1.
            times: As in `apply`.

        Raises:
            IllegalArgumentError: `lag` is below 1.

        Examples:
            >>> faults.stale_listing(lag=2)
            >>> cleaned = ck.clean()
            >>> ck.restore().epoch
            1
        """
        if lag < 1:
            raise IllegalArgumentError(f"lag={lag}: expected 1 or more")
        self.apply(self._stale(lag), "list", nth, path=path, times=times)
        self._rules[-1].of_objects = True

    def crash(self, number: int, *, after: bool = False) -> None:
        """Let the process die at the nth request from now on.

        No request is served afterwards.

        Args:
            number: The number of the request, from 1.
            after: Whether the request takes effect first.

        Raises:
            IllegalArgumentError: `number` is below 1.

        Examples:
            >>> faults.crash(1)
            >>> try:
            ...     save(2)
            ... except Exception as error:
            ...     faults.dead
            True
        """

        def action(request: Request) -> None:
            self.dead = True
            raise CrashError(f"died at {request}")

        self.call(action, None, number, after=after)

    def clear(self) -> None:
        """Remove all faults, and revive a process that died.

        The requests so far stay counted.

        Examples:
            >>> faults.fail(times=1000)
            >>> faults.clear()
            >>> save(2)
        """
        self.end()
        self.dead = False

    def end(self) -> None:
        """Remove all faults at the end of a block.

        For `injected`. What died in the block stays dead, with all its threads.
        """
        # The dice too: a test that checks a state wants no more faults.
        self._rules, self._random = [], None

    @property
    def told(self) -> bool:
        """Return whether there are faults to come, by script or by the seed.

        For `injected`.
        """
        return bool(self._rules or self._random)

    # ---- how a request is served ---------------------------------------------------------------------------------

    async def serve(self, request: Request, send: Send) -> Any:
        """Send a request through the faults that it meets.

        For `FaultyStore`.
        """
        # Several stores may share the faults, each with threads of its own. Numbers and dice have to stay in one
        # order.
        with self._lock:
            request = replace(request, number=len(self.requests) + 1)
            self.requests.append(_noted(request))
            faults = [rule.fault for rule in self._rules if rule.matches(request)]
            if self._random is not None and self._random.random() < self._rate:
                faults.append(self._by_chance(self._random))

        async def reach_store(sent: Request) -> Any:
            if sent.number not in self._late:  # a late write is under way, and outlives its sender
                # The process may have died while a fault held this request.
                self._check_alive()
            answer = await send(sent)
            # Listings can be stale about a new object, and not about one that is only replaced.
            if sent.kind in ("put", "delete") or (sent.kind == "swap" and sent.expected is None):
                self._effects.append(_noted(sent))
            return answer

        # Before any fault: what the dead send is not even delayed.
        self._check_alive()
        # The first fault is the outermost.
        way: Send = reach_store
        for fault in reversed(faults):
            way = through(fault, way)
        return await way(request)

    def _check_alive(self) -> None:
        if self.dead:
            raise CrashError("died before")

    def _by_chance(self, dice: random.Random) -> Fault:
        """Return one of the faults that the seed may choose."""
        match dice.choice(self._failures):
            case "fail":
                return failing(DependencyError, after=False)
            case "drop_answer":
                return failing(DependencyError, after=True)
            case "throttle":
                return failing(ThrottlingError, after=False)
            case "delay":
                return delaying(dice.uniform(0, MAX_RANDOM_DELAY), dice.uniform(0, MAX_RANDOM_DELAY))
            case "flip":
                return flipping(dice.randrange(1 << 20))
            case "tear":
                return tearing(dice.random())
            case _:
                return self._stale(dice.randrange(1, 5))

    def _stale(self, lag: int) -> Fault:
        """Return a fault that answers a listing with an older one."""

        async def fault(request: Request, send: Send) -> Any:
            page = await send(request)
            return self._without_last(page, request.path, lag) if isinstance(page, ListingPage) else page

        return fault

    def _without_last(self, page: ListingPage, prefix: str, lag: int) -> ListingPage:
        """Return a page as it was before the last `lag` effects on the store."""
        entries = {entry.path: entry for entry in page.entries}
        # A deleted object is shown again with the size of its last write.
        sizes = {effect.path: effect.size for effect in self._effects if effect.kind != "delete"}
        for effect in reversed(self._effects[-lag:]):
            if effect.kind != "delete":
                entries.pop(effect.path, None)
            # Only on the last page, or a deleted object would stand on each of them again.
            elif page.more is None:
                gone = [path for path in effect.path.split(" ") if path.startswith(prefix) and path in sizes]
                entries |= {path: ListedObject(path, sizes[path]) for path in gone}
        return ListingPage(list(entries.values()), page.more)
