"""Measure what grows with what, as the power of x with which y grows: 1 is in proportion, 0 is not at all.

A delta commit must not grow with the state, and neither a commit nor a restore with the history. A full save and a
restore may grow in proportion to the state, and a delta in proportion to its changes. All is in memory: a disk would
add the same to each point and hide the growth. Only chains are restored from a local folder, since there the number of
objects matters. Each restore is compared with what was saved.
"""

import random
import statistics
from collections.abc import Iterator, Sequence

from benchmarks import growth_keys
from benchmarks.growth_keys import LINEAR, STEADY
from benchmarks.measure import Finding, Plot, Target, Times, alternate, grows, timed
from benchmarks.stores import backend, folder
from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint.metrics import CommitMetrics, Metrics
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.storage.memory.store import forget

STILL = 0.1
"""The largest power for what must not grow with the history: over a thousandfold history it doubles."""

METADATA = 0.2
"""The largest power of the metadata bytes of a commit over the number of partitions."""

AMORTISED = 2048
"""The most bytes of metadata for each partition that a commit changes, as the mean of many commits."""

TOUCHED = 10
"""The number of partitions that a commit changes."""

CHAIN = 10
"""The number of deltas on a snapshot after which the caller writes a new snapshot."""

DELTA = 16 << 10
"""The bytes of a delta in a chain."""


def run(quick: bool) -> list[Finding]:
    partitions, commits = ((10, 100, 500, 1000, 5000), 100) if quick else ((10, 100, 500, 1000, 10_000, 100_000), 640)
    return [
        *_partitions(partitions, commits),
        *_chains(3 if quick else 9),
        *_history((10, 100, 1000) if quick else (10, 100, 1000, 10_000), 15 if quick else 51),
        *growth_keys.keys((10_000, 30_000, 100_000) if quick else (10_000, 100_000, 1_000_000, 10_000_000)),
        *growth_keys.shares(50_000 if quick else 1_000_000),
    ]


def _restored(client: Checkpointer) -> Restored:
    found = client.restore()
    assert found is not None
    return found


# ---- partitions ------------------------------------------------------------------------------------------------------


def _partitions(counts: Sequence[int], commits: int) -> Iterator[Finding]:
    """Measure commits that change ten random partitions, and restores that read all chains but no artifact.

    A commit writes a delta for each, or a snapshot where the chain is long. The time of a commit is the mean of many,
    so that metadata which is written only now and then counts too. It does not include the rewriting of all 100,000
    partitions, which takes more commits. A commit by a client that goes on reads no metadata. A restore reads what a
    new client reads before its first commit.
    """
    commit, restore, wrote, read, fetched = {}, {}, {}, {}, {}
    for count in counts:
        url, records = f"memory://growth-partitions-{count}", list[Metrics]()
        with Checkpointer(url, metrics=records.append) as client:
            commit[count], restore[count], wrote[count], read[count] = _of_partitions(client, count, commits)
        _, *later = (one.bytes_read for one in records if isinstance(one, CommitMetrics))  # the first proves the store
        fetched[count] = statistics.mean(later)
        forget(url)
    times = {f"commit of {TOUCHED} changed partitions": [*commit.items()], "restore of all chains": [*restore.items()]}
    title = "Many partitions, in memory (of 100,000 only some rewritten)"
    plot = Plot("growth-partitions", title, "partitions", "time (s)", times)
    lines = {f"metadata written, {TOUCHED} partitions changed": [*wrote.items()], "metadata read": [*read.items()]}
    metadata = Plot(
        "growth-metadata", "Metadata of many partitions, in memory", "partitions", "metadata (bytes)", lines
    )
    written, _ = lines
    worst = max(wrote, key=lambda count: wrote[count])
    yield plot
    yield metadata
    yield from map(grows, (plot, plot, metadata, metadata), (*times, *lines), (STEADY, LINEAR, METADATA, LINEAR))
    yield Target(
        f"{written}, in memory: bytes for each of them / {AMORTISED:,}",
        wrote[worst] / TOUCHED / AMORTISED,
        1.0,
        f"the most: {wrote[worst] / TOUCHED:,.0f} B, of {worst:,} partitions",
    )
    few, many = min(counts), max(counts)
    yield Target(
        f"bytes read by a commit of {TOUCHED} changed partitions of {many:,}, in memory",
        fetched[many],
        0.0,
        f"by a client that goes on; {fetched[few]:,.0f} of {few:,} partitions, whose chains are folded",
    )


def _of_partitions(client: Checkpointer, count: int, commits: int) -> tuple[float, float, float, float]:
    """Return the seconds of a commit and of a restore, and the metadata bytes that each writes or reads."""
    source = random.Random(count)
    saved = {partition: [b"%064d" % partition] for partition in range(count)}
    with client.begin() as checkpoint:
        for partition, (data,) in saved.items():
            checkpoint.snapshot("op", partition, data)
    stored = backend(client).objects
    before, seconds = _metadata(client), []

    def change(number: int) -> None:
        with client.begin() as checkpoint:
            for partition in source.sample(range(count), TOUCHED):
                data, chain = b"%032d%032d" % (partition, number), saved[partition]
                if len(chain) > CHAIN:
                    chain.clear()
                (checkpoint.delta if chain else checkpoint.snapshot)("op", partition, data)
                chain.append(data)

    for number in range(commits):
        seconds.append(timed(lambda number=number: change(number)))  # type: ignore[misc]
    wrote = (_metadata(client) - before) / commits + len(stored["_latest"].data)
    if count > 2 * TOUCHED * commits:  # all is written anew once half of it has changed: its share of that
        whole = max(len(blob.data) for path, blob in stored.items() if path.startswith("manifests/segments/"))
        wrote += whole * 2 * TOUCHED / count
    restores = Times(tuple(timed(lambda: _restored(client.copy()).operator("op")) for _ in range(5)))
    _check_partitions(_restored(client.copy()), saved, source)
    records: list[Metrics] = []
    with Checkpointer(client.root, metrics=records.append) as reader:
        reader.restore()
    return statistics.mean(seconds), restores.median, wrote, records[0].bytes_read


def _metadata(client: Checkpointer) -> int:
    return sum(len(blob.data) for path, blob in backend(client).objects.items() if not path.startswith("artifacts/"))


def _check_partitions(restored: Restored, saved: dict[int, list[bytes]], source: random.Random) -> None:
    operator = restored.operator("op")
    changed = [partition for partition, chain in saved.items() if len(chain) > 1]
    some = source.sample(changed, min(len(changed), 500)) + source.sample(range(len(saved)), min(len(saved), 500))
    if operator.read(some) != {partition: saved[partition] for partition in some}:
        raise AssertionError("what was restored is not what was saved")


# ---- history ---------------------------------------------------------------------------------------------------------


def _chains(repetitions: int) -> Iterator[Finding]:
    """Measure deltas of equal size on one partition. The time of a commit is the mean since the last point."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for max_chain in (10, 64):
        in_memory, in_folder = [], []
        for number in range(repetitions):
            in_memory.append(_chain(f"memory://growth-chain-{max_chain}-{number}", max_chain))
            forget(f"memory://growth-chain-{max_chain}-{number}")
            with folder() as base:
                in_folder.append(_chain(str(base / "root"), max_chain))
        for line, runs, verb in (
            (f"commit in memory, max_chain={max_chain}", in_memory, 0),
            (f"restore from a folder, max_chain={max_chain}", in_folder, 1),
        ):
            lines[line] = [(float(length), statistics.median(run[length][verb] for run in runs)) for length in runs[0]]
    plot = Plot("growth-chain", "Long chains", "deltas of a chain", "time (s)", lines)
    yield plot
    for line in lines:
        yield grows(plot, line, STILL if line.startswith("commit") else LINEAR)


def _chain(root: str, max_chain: int, lengths: Sequence[int] = (1, 2, 5, 10, 20, 50)) -> dict[int, tuple[float, float]]:
    """Return the seconds of a commit and of a restore for each length of the chain."""
    source, found, since = random.Random(0), {}, []
    saved = [source.randbytes(DELTA)]
    with Checkpointer(root, max_chain=max_chain) as client:
        with client.begin() as checkpoint:
            checkpoint.snapshot("op", 0, saved[0])

        def commit() -> None:
            with client.begin() as checkpoint:
                checkpoint.delta("op", 0, saved[-1])

        def restore() -> None:
            if _restored(client.copy()).operator("op").partition(0) != saved:
                raise AssertionError("what was restored is not what was saved")

        for length in range(1, lengths[-1] + 1):
            saved.append(source.randbytes(DELTA))
            since.append(timed(commit))
            if length in lengths:
                found[length] = (statistics.mean(since), timed(restore))
                since.clear()
    return found


def _history(counts: Sequence[int], repetitions: int) -> Iterator[Finding]:
    """Measure roots with a short and a long history. Each commits and restores in turn."""
    roots = {count: Checkpointer(f"memory://growth-history-{count}") for count in counts}

    def commit(client: Checkpointer) -> None:
        with client.begin() as checkpoint:
            checkpoint.snapshot("op", 0, str(checkpoint.id).encode())

    def restore(client: Checkpointer) -> None:
        restored = _restored(client.copy())
        if restored.operator("op").partition(0) != [str(restored.id).encode()]:
            raise AssertionError("what was restored is not what was saved")

    for count, client in roots.items():
        for _ in range(count):
            commit(client)
    verbs = {"commit": commit, "restore": restore}
    times = alternate(
        repetitions,
        **{
            f"{name} {count}": lambda verb=verb, client=client: timed(lambda: verb(client))
            for count, client in roots.items()
            for name, verb in verbs.items()
        },
    )
    for client in roots.values():
        client.close()
        forget(client.root)
    # Those that are measured are committed too: half of them, on average, are there already.
    lines = {name: [(n + repetitions / 2, times[f"{name} {n}"].median) for n in counts] for name in verbs}
    plot = Plot("growth-history", "A long history, in memory", "checkpoints", "time (s)", lines)
    yield plot
    for line in lines:
        yield grows(plot, line, STILL)
