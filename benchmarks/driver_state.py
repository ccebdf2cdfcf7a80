"""Measure state on the driver on the local store: a durable save, how long it blocks, and a restore.

The limit to compare with is the same work by hand in one thread: pack, compress, hash, write and fsync, one after the
other. A restore by hand reads, hashes, decompresses and unpacks. Zstandard runs at the same level on both sides.
"""

import hashlib
import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import zstandard

from benchmarks.measure import Target, Times, alternate, timed
from benchmarks.stores import folder
from benchmarks.streaming import job
from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.manifests.keyed_records import ZSTD_LEVEL

State = dict[str, dict[str, Any]]

CYCLE = 60
"""Deltas of 1 % in which each partition is folded several times, and written as a snapshot once."""


def value(number: int) -> dict[str, Any]:
    return {"flights": number % 977, "distance": number * 1.25, "carrier": f"C{number % 31}"}


def plain(keys: int) -> State:
    return {f"N{number:07d}": value(number) for number in range(keys)}


def keyed(keys: int) -> KeyedState:
    return KeyedState((f"N{number:07d}", value(number)) for number in range(keys))


def save_by_hand(state: State, path: Path) -> None:
    data = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(msgpack.packb(state))
    digest = hashlib.sha256(data).hexdigest()
    with path.open("wb") as file:
        file.write(digest.encode() + data)
        file.flush()
        os.fsync(file.fileno())


def restore_by_hand(path: Path) -> State:
    stored = path.read_bytes()
    digest, data = stored[:64], memoryview(stored)[64:]
    if hashlib.sha256(data).hexdigest().encode() != digest:
        raise ValueError("digest")
    state: State = msgpack.unpackb(zstandard.ZstdDecompressor().decompress(data))
    return state


def commit(client: Checkpointer, state: KeyedState, *, background: bool = False) -> None:
    with client.begin(background=background) as checkpoint:
        checkpoint.save("state", state)


def longest_stall(client: Checkpointer, state: KeyedState) -> float:
    """Return the longest time for which a busy thread that saves in the background did not go on."""
    longest, last = 0.0, time.perf_counter()
    commit(client, state, background=True)
    session = client.session
    while session._background is not None and not session._background.done():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    client.close()
    return max(longest, time.perf_counter() - last)


def stored_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def run(quick: bool) -> list[Target]:
    keys, repetitions = (20_000, 2) if quick else (1_000_000, 7)
    with folder() as base:
        reference, state = plain(keys), keyed(keys)
        saves = _saves(base, reference, state, repetitions)
        firsts = _first_saves(base, reference, keys, repetitions)
        deltas, sizes, full_bytes = _deltas(base, state, keys)
        restores = _restores(base, reference, repetitions)
        access = _access(keys)
    full, few = saves["ours"], Times(deltas.seconds[:repetitions])
    one, mean = statistics.median(sizes[:repetitions]), statistics.mean(sizes)
    return [
        _target("full save, values packed before / by hand in one thread", full, saves["by_hand"], 0.9),
        _target("first save, records that the caller holds / by hand", firsts["held"], firsts["by_hand"], None),
        _target("first save, records that nobody holds / by hand", firsts["unheld"], firsts["stream_by_hand"], None),
        _target(
            "longest stall of a save in the background, values packed before / full save", saves["stall"], full, 0.10
        ),
        _target("delta of 1 %, values packed before / full save, time", few, full, 0.04),
        Target("delta of 1 % / full save, bytes", one / full_bytes, 0.02, f"{one:,.0f} / {full_bytes:,} B"),
        Target(
            f"mean of {CYCLE} such deltas, with folds and a snapshot / full save, time",
            statistics.mean(deltas.seconds) / full.median,
            None,
            f"the longest: {max(deltas.seconds) / full.median:.2f}",
        ),
        Target(
            f"mean of {CYCLE} such deltas, with folds and a snapshot / full save, bytes",
            mean / full_bytes,
            None,
            f"{mean:,.0f} / {full_bytes:,} B",
        ),
        _target("restore, values stay packed / by hand in one thread", restores["ours"], restores["by_hand"], 1.15),
        _target("restore, and read every value / by hand", restores["and_read"], restores["by_hand"], None),
        _target("state[k] = v / dict", access["set"], access["dict_set"], None),
        _target("state[k] / dict", access["get"], access["dict_get"], None),
        *([] if quick else _memory(keys)),
    ]


def _target(question: str, mine: Times, other: Times, limit: float | None) -> Target:
    spread = f"spread {mine.spread:.0%} / {other.spread:.0%}"
    return Target(question, mine.median / other.median, limit, spread)


def _memory(keys: int) -> list[Target]:
    """Compare the memory of a map and of a dict with the same records, each in a process of its own."""
    found = {kind: job("map_memory", keys, kind) for kind in ("map", "dict")}
    return [
        Target(
            f"{what} memory of a map of {keys:,} records that is saved / of a dict",
            found["map"][size] / found["dict"][size],
            None,
            " / ".join(f"{found[kind][size] / 2**20:,.0f}" for kind in ("map", "dict")) + " MiB",
        )
        for what, size in (("resident", "resident"), ("peak of the", "peak"))
    ]


def _saves(base: Path, reference: State, state: KeyedState, repetitions: int) -> dict[str, Times]:
    roots = (base / f"full-{number}" for number in range(10_000))

    def ours() -> float:
        with Checkpointer(next(roots)) as client:
            return timed(lambda: commit(client, state))

    def stall() -> float:
        return longest_stall(Checkpointer(next(roots)), state)

    return alternate(
        repetitions, ours=ours, by_hand=lambda: timed(lambda: save_by_hand(reference, base / "by-hand")), stall=stall
    )


def _first_saves(base: Path, reference: State, keys: int, repetitions: int) -> dict[str, Times]:
    """Measure making a state and saving it. Values that the caller holds have to be looked at again later."""
    roots = (base / f"first-{number}" for number in range(10_000))

    def first(make: Callable[[], KeyedState]) -> float:
        with Checkpointer(next(roots)) as client:
            return timed(lambda: commit(client, make()))

    return alternate(
        repetitions,
        held=lambda: first(lambda: KeyedState(reference)),
        by_hand=lambda: timed(lambda: save_by_hand(reference, base / "by-hand")),
        unheld=lambda: first(lambda: keyed(keys)),
        stream_by_hand=lambda: timed(lambda: save_by_hand(plain(keys), base / "by-hand")),
    )


def _deltas(base: Path, state: KeyedState, keys: int) -> tuple[Times, list[int], int]:
    """Return the bytes of a full save, and the seconds and bytes of each delta of a whole cycle after it."""
    client = Checkpointer(base / "deltas")
    commit(client, state)
    full = before = stored_bytes(base / "deltas")
    rounds = iter(range(10_000))
    sizes = []

    def ours() -> float:
        nonlocal before
        step = next(rounds)
        for number in range(step, keys, 100):
            state[f"N{number:07d}"] = value(number + step + 1)
        seconds = timed(lambda: commit(client, state))
        after = stored_bytes(base / "deltas")
        sizes.append(after - before)
        before = after
        return seconds

    times = alternate(CYCLE, ours=ours)["ours"]
    if max(sizes) < full / 2:
        raise AssertionError("no snapshot was written: this was no whole cycle")
    if Checkpointer(base / "deltas").restore().keyed("state") != state:  # type: ignore[union-attr]
        raise AssertionError("what was restored is not what was saved")
    return times, sizes, full


def _restores(base: Path, reference: State, repetitions: int) -> dict[str, Times]:
    root = base / "restore"
    commit(Checkpointer(root), KeyedState(reference))
    save_by_hand(reference, base / "by-hand")

    def restored() -> KeyedState:
        found = Checkpointer(root).restore()
        if found is None:
            raise AssertionError("nothing was restored")
        return found.keyed("state")

    if dict(restored()) != restore_by_hand(base / "by-hand"):
        raise AssertionError("what was restored is not what was saved")
    return alternate(
        repetitions,
        ours=lambda: timed(restored),
        by_hand=lambda: timed(lambda: restore_by_hand(base / "by-hand")),
        and_read=lambda: timed(lambda: all(v is not None for v in restored().values())),
    )


def _access(keys: int) -> dict[str, Times]:
    names = [f"N{number:07d}" for number in range(keys)]
    values: dict[str, dict[str, int]] = {}
    state, turn = KeyedState(), itertools.count()

    def fill(mapping: Any) -> float:
        def work() -> None:
            seen = next(turn)
            for name in names:
                mapping[name] = {"seen": seen}

        return timed(work)

    def read(mapping: Any) -> float:
        def work() -> None:
            for name in names:
                mapping[name]

        return timed(work)

    return alternate(
        3,
        set=lambda: fill(state),
        dict_set=lambda: fill(values),
        get=lambda: read(state),
        dict_get=lambda: read(values),
    )
