"""Measure what grows with the keys of a mapping, and with the share of changed keys. All is in memory: see `growth`."""

import itertools
import statistics
from collections.abc import Iterator, MutableMapping, Sequence

from benchmarks.measure import Finding, Plot, Target, alternate, grows, timed
from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.checkpoint.metrics import CommitMetrics, Metrics
from pyspark_checkpointer.storage.memory.store import forget

STEADY = 0.15
"""The largest power of a delta commit over the size of the state."""

LINEAR = 1.1
"""The largest power of what may grow in proportion."""

EVERYTHING = 1.05
"""The most that a delta of all keys may cost, as a ratio to a full save."""

CHANGED = 200
"""The keys that a delta changes, however many keys there are."""

DELTAS = 20
"""The number of deltas. Some of them are folded, and no snapshot is due; the measured time is their mean."""

SHARES = (0.0001, 0.001, 0.01, 0.1, 0.3, 1.0)


def plain(keys: int) -> Iterator[tuple[str, str]]:
    """Return values of plain text, which the state packs at once, so that only the number of keys matters."""
    return ((f"N{number:08d}", f"{number:032d}") for number in range(keys))


def change(state: MutableMapping[str, str], keys: int, changed: int, turn: int) -> None:
    """Give some of the keys, spread over all, another value in each turn, from the first on."""
    for number in range(changed):
        state[f"N{(number * keys // changed + turn) % keys:08d}"] = f"{turn:012d}{number:020d}"


def save(client: Checkpointer, state: KeyedState) -> None:
    with client.begin() as checkpoint:
        checkpoint.save("state", state)


def restore(client: Checkpointer) -> KeyedState:
    found = client.copy().restore()
    assert found is not None
    return found.keyed("state")


def check(client: Checkpointer, expected: dict[str, str]) -> None:
    if restore(client).to_dict() != expected:
        raise AssertionError("what was restored is not what was saved")


def keys(counts: Sequence[int]) -> Iterator[Finding]:
    """Measure mappings of more and more keys. The largest is saved and restored once."""
    full, whole = "full save of a mapping", "restore of a mapping"
    delta = f"delta of {CHANGED:,} keys, until the next snapshot"
    lines: dict[str, list[tuple[float, float]]] = {full: [], delta: [], whole: []}
    for count in counts:
        for line, seconds in zip(lines, _of_keys(count, max(1, min(7, 3_000_000 // count))), strict=True):
            lines[line].append((count, seconds))
    plot = Plot("growth-keys", "Many keys, in memory", "keys", "time (s)", lines)
    yield plot
    yield from (grows(plot, full, LINEAR), grows(plot, delta, STEADY), grows(plot, whole, LINEAR))


def _of_keys(count: int, repetitions: int) -> tuple[float, float, float]:
    """Return the seconds of a full save, of a delta, and of a restore."""
    state, expected = KeyedState(plain(count)), dict(plain(count))
    saves, deltas, restores = [], [], []
    for number in range(repetitions):
        client = Checkpointer(f"memory://growth-keys-{count}-{number}")
        saves.append(timed(lambda client=client: save(client, state)))  # type: ignore[misc]
        if number < repetitions - 1:
            forget(client.root)
    for turn in range(1, DELTAS + 1):
        change(state, count, CHANGED, turn)
        change(expected, count, CHANGED, turn)
        deltas.append(timed(lambda: save(client, state)))
    check(client, expected)
    for _ in range(repetitions):
        restores.append(timed(lambda: restore(client)))
    forget(client.root)
    return statistics.median(saves), statistics.mean(deltas), statistics.median(restores)


def shares(count: int) -> Iterator[Finding]:
    """Measure the first save after a full one, of a mapping in which some or all keys have changed."""
    state, expected = KeyedState(plain(count)), dict(plain(count))
    turns, wrote = itertools.count(1), dict[float, int]()

    def full() -> float:
        with Checkpointer(f"memory://growth-shares-{next(turns)}") as client:
            seconds = timed(lambda: save(client, state))
        forget(client.root)
        return seconds

    def delta(share: float) -> float:
        turn, records = next(turns), list[Metrics]()
        with Checkpointer(f"memory://growth-shares-{turn}", metrics=records.append) as client:
            save(client, state)
            change(state, count, round(count * share), turn)
            change(expected, count, round(count * share), turn)
            seconds = timed(lambda: save(client, state))
            check(client, expected)
        forget(client.root)
        _, last = (record for record in records if isinstance(record, CommitMetrics))
        wrote[share] = last.bytes_written
        return seconds

    deltas = {f"{share}": lambda share=share: delta(share) for share in SHARES}
    times = alternate(5, full=full, **deltas)
    what = f"delta of {count:,} keys"
    took = {f"{what}, time": [(share, times[f"{share}"].median) for share in SHARES]}
    stored = {f"{what}, bytes": [*wrote.items()]}
    plots = (
        Plot("growth-share-time", "A changed share, in memory", "changed share", "time (s)", took),
        Plot("growth-share-bytes", "A changed share, in memory", "changed share", "stored (bytes)", stored),
    )
    for plot in plots:
        yield plot
        yield from (grows(plot, line, LINEAR) for line in plot.lines)
    all_of_them, from_nothing = times[f"{SHARES[-1]}"], times["full"]
    spread = f"spread {all_of_them.spread:.0%} / {from_nothing.spread:.0%}"
    yield Target(
        f"{what} that all changed, in memory / full save", all_of_them.median / from_nothing.median, EVERYTHING, spread
    )
