"""Examine the store of a root: conditions, clock, permissions, bucket and speed.

Everything is written under fresh names that begin with `_doctor-`, and deleted at the end.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from pyspark_checkpointer.errors import CheckpointError, NotFoundError, RetryableError, StoreRefusedError
from pyspark_checkpointer.runtime.host import Host, Progress, tell
from pyspark_checkpointer.storage import Store, parse
from pyspark_checkpointer.storage.base import DOCTOR, BucketRule
from pyspark_checkpointer.storage.conditional_write_check import try_conditions
from pyspark_checkpointer.storage.contest import WRITERS, Contest, hold_contest, swap_patiently
from pyspark_checkpointer.storage.registry import Reach

ROUNDS = 100
"""Rounds of the contest of writers, unless the caller says otherwise."""

REPEATS = 10
"""Requests of each verb whose time is taken."""

MAX_SKEW = 60.0
"""Seconds by which the clocks of this machine and of the store may differ without a warning."""

CheckOutcome = Literal["good", "warning", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    outcome: CheckOutcome
    found: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """The time that a verb of the store took, in seconds."""

    verb: str
    requests: int
    median: float
    slowest: float


@dataclass(slots=True)
class Diagnosis:
    """All that an examination found. It is true if nothing of it is bad."""

    root: str
    fenced_by: str | None
    """The means by which one writer excludes the others; None without fencing."""
    checks: list[Check] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    contest: Contest | None = None
    """The contest of writers; None where it was not held."""

    def __bool__(self) -> bool:
        return not any(check.outcome == "bad" for check in self.checks)

    def add(self, name: str, outcome: CheckOutcome, found: str, advice: str | None = None) -> None:
        """Add a check with its outcome."""
        self.checks.append(Check(name, outcome, found, advice))


async def examine(
    store: Store,
    writers: Sequence[Store],
    host: Host,
    *,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> Diagnosis:
    """Return the findings about the store of a root.

    `writers` are other clients of the same root, which write at the same time.

    Raises:
        RetryableError: The store does not answer.
    """
    kind = parse(store.url).kind
    found = Diagnosis(store.url, kind.fenced_by if store.fencing else None)
    # A directory bucket lists whole folders only, and a folder on a disk or in a volume would stay behind.
    end = "/" if kind.reach is Reach.CLOUD and kind.volume is None else "-"
    prefix = f"{DOCTOR}{host.token(16)}{end}"
    steps: tuple[Callable[[], Awaitable[None]], ...] = (
        lambda: _try_verbs(found, store, prefix, host),
        lambda: _try_fencing(found, store, f"{prefix}conditions"),
        lambda: _hold_contest(found, store, writers, prefix, rounds),
        lambda: _look_at_uploads(found, store),
        lambda: _look_at_bucket(found, store),
    )
    for number, step in enumerate(steps):
        await tell(host, progress, number, len(steps))
        await step()
    await tell(host, progress, len(steps), len(steps))
    return found


# ---- permissions, times, clock --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Verb:
    name: str
    needed_for: str
    call: Callable[[int], Awaitable[Any]]


async def _try_verbs(found: Diagnosis, store: Store, prefix: str, host: Host) -> None:
    """Send each kind of request several times.

    See which of them are refused, how long they take, and what they show.
    """
    names = [f"{prefix}{number}" for number in range(REPEATS)]
    versions: list[str | None] = [None]
    listed: list[int] = []

    async def swap(number: int) -> None:
        versions[0] = await swap_patiently(store, f"{prefix}pointer", b"swap %d" % number, versions[0])

    async def look(number: int) -> None:
        listed.append(len(await store.list(prefix)))

    verbs = (
        _Verb("put", "commits", lambda number: store.put(names[number], b"%d" % number)),
        _Verb("get", "restores", lambda number: store.get(names[number])),
        _Verb("swap", "commits", swap),
        _Verb("list", "cleanup and `list`", look),
        _Verb("delete", "cleanup", lambda number: store.delete([names[number]])),
    )
    try:
        for verb in verbs:
            await _time(found, verb, host)
        if len(found.latencies) == len(verbs):
            await _look_for_stale(found, store, prefix, names, listed)
        await _look_at_clock(found, store, f"{prefix}pointer", host)
    finally:
        with suppress(CheckpointError):
            await store.delete([*names, f"{prefix}pointer"])


async def _time(found: Diagnosis, verb: _Verb, host: Host) -> None:
    times: list[float] = []
    try:
        for number in range(REPEATS):
            started = host.clock()
            await verb.call(number)
            times.append((host.clock() - started) / 1e9)
    except RetryableError:
        raise
    except CheckpointError as error:
        # Of the verbs after a refused put, some find nothing. That is no finding of its own.
        if not isinstance(error, NotFoundError):
            found.add(f"right to {verb.name}", "bad", str(error), f"{verb.needed_for} need it")
        return
    found.add(f"right to {verb.name}", "good", "granted")
    found.latencies.append(Latency(verb.name, REPEATS, median(times), max(times)))


async def _look_for_stale(found: Diagnosis, store: Store, prefix: str, names: list[str], listed: list[int]) -> None:
    """Compare listings and reads with earlier writes and deletions.

    Whether a read shows the last swap is looked at with the conditions, and by all writers of the contest.
    """
    stale = []
    if any(number != REPEATS + 1 for number in listed):
        stale.append("a listing did not show what had been written")
    if len(await store.list(prefix)) != 1:
        stale.append("a listing showed what had been deleted")
    with suppress(NotFoundError):
        await store.get(names[0])
        stale.append("a read returned what had been deleted")
    advice = "cleanup and consumers may miss objects: use a store that shows writes at once" if stale else None
    good = "listings show what was written, and nothing shows what was deleted"
    found.add("freshness", "bad" if stale else "good", "; ".join(stale) or good, advice)


async def _look_at_clock(found: Diagnosis, store: Store, path: str, host: Host) -> None:
    try:
        before = host.now().timestamp()
        told = (await store.get(path)).at
        after = host.now().timestamp()
    except (NotFoundError, StoreRefusedError):
        return
    if told is None:
        found.add("clock", "good", "this machine's")
        return
    # The server tells whole seconds.
    skew = max(0.0, told - after, before - told - 1)
    late = skew > MAX_SKEW
    found.add(
        "clock",
        "warning" if late else "good",
        f"{'differs by' if late else 'within'} {max(skew, 1):.0f} s of the store's",
        "set the clock of this machine: retention, leases and expiry compare times" if late else None,
    )


# ---- fencing --------------------------------------------------------------------------------------------------------


async def _try_fencing(found: Diagnosis, store: Store, path: str) -> None:
    if not store.fencing:
        advice = "a second writer can overwrite the first one: run one at a time"
        found.add("conditions", "warning", "not used: fencing is off", advice)
        return
    try:
        await try_conditions(store, path)
    except StoreRefusedError as error:
        found.add("conditions", "bad", str(error))
    else:
        found.add("conditions", "good", f"kept, one request after the other: {found.fenced_by}")
    finally:
        with suppress(CheckpointError):
            await store.delete([path])


async def _hold_contest(found: Diagnosis, store: Store, writers: Sequence[Store], prefix: str, rounds: int) -> None:
    if not store.fencing:
        return
    title = f"{WRITERS} writers at once"
    try:
        contest = await hold_contest(writers, f"{prefix}contest-", rounds)
    except StoreRefusedError as error:
        found.add(title, "unknown", str(error))
        return
    found.contest = contest
    advice = "two jobs could overwrite each other: use another store, or one writer with fencing off"
    if contest.problem:
        found.add(title, "bad", contest.problem, advice)
    else:
        found.add(title, "good", f"one winner in each of {contest.rounds} rounds, and all readers saw it")


# ---- bucket ---------------------------------------------------------------------------------------------------------


async def _look_at_uploads(found: Diagnosis, store: Store) -> None:
    try:
        uploads = len(await store.leftovers())
    except (StoreRefusedError, RetryableError) as error:  # some servers cannot list them, and say so in many ways
        found.add("unfinished writes", "warning", str(error), "`checkpointer plan` and `clean` ask for them too")
        return
    advice = "they run, or were broken off: `checkpointer clean` removes the latter" if uploads else None
    found.add("unfinished writes", "good", f"{uploads} listed", advice)


async def _look_at_bucket(found: Diagnosis, store: Store) -> None:
    try:
        rules = await store.bucket_rules()
    except StoreRefusedError as error:
        found.add("bucket", "unknown", str(error))
        return
    for rule in rules:
        found.add(f"bucket: {rule.name}", _outcome(rule), rule.found, rule.advice)


def _outcome(rule: BucketRule) -> CheckOutcome:
    if rule.found.startswith("not known"):
        return "unknown"
    return "bad" if rule.harmful else "warning" if rule.advice else "good"
