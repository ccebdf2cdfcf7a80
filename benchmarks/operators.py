"""Measure what reading, deciding and writing costs for each key, beside an aggregation without state.

The peers are Spark's own operators with a function of the user, on RocksDB with changelogs. Each job is a process with
a JVM of its own, and two cores.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import Finding, Target, Times
from benchmarks.operators_age import AGES
from benchmarks.stores import folder
from benchmarks.streaming import job
from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table.due_rows import due_rows
from pyspark_checkpointer.table.local_copies import LocalCopies
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema_evolution import first_schema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter

PEERS = ("applyInPandasWithState", "transformWithStateInPandas")
DUE = 1000
PARTITIONS = 8
TYPES = {"key": "long", "n": "long", "at": "timestamp_ntz"}


def run(quick: bool) -> list[Finding]:
    if quick:
        # A quick run leaves out other sizes, ages and rules, and Spark's own operators, which take seconds for a batch.
        return [*_by_size(100_000, 1000, 1, 1, 1.6, "first_seen"), *_timers(1_000_000)]
    million, turns, batches = 1_000_000, 4, 8
    return [
        *_by_size(million, 20_000, turns, batches, 1.35),
        *_by_size(10 * million, 50_000, turns, batches, 1.6, "first_seen"),
        *_by_age(million, 20_000, turns, batches),
        *_expiry(million, 20_000, 3 * turns, batches),  # 3 % is less than the noise of a few batches
        *_peers(20_000, 2, 3),
        *_timers(10 * million),
    ]


def _by_size(keys: int, changed: int, turns: int, batches: int, limit: float, *more: str) -> list[Target]:
    names = ["noop", "apply", "upsert", *more]
    times = _times(keys, changed, turns, batches, *names)
    limits = {"apply": limit, "upsert": None, "first_seen": 1.5}
    return [
        _ratio(f"{name}, {changed:,} of {keys:,} keys / aggregate to noop", times, name, "noop", limits[name])
        for name in names[1:]
    ]


def _by_age(keys: int, changed: int, turns: int, batches: int) -> list[Target]:
    """Compare a state of a hundred batches with one of ten, beside each other in one process."""
    times = {age: Times(tuple(seconds)) for age, seconds in job("operators_age", keys, changed, turns, batches).items()}
    question = f"apply, {changed:,} of {keys:,} keys: after {AGES['old']} batches / after {AGES['young']}"
    return [_ratio(question, times, "old", "young", 1.1)]


def _expiry(keys: int, changed: int, turns: int, batches: int) -> list[Target]:
    names = [f"{verb}_{kind}" for verb in ("apply", "upsert") for kind in ("stamped", "expiring")]
    times = _times(keys, changed, turns, batches, *names)
    return [
        _ratio(
            f"{verb}, {changed:,} of {keys:,} keys: with expire= / without",
            times,
            f"{verb}_expiring",
            f"{verb}_stamped",
            1.03,
        )
        for verb in ("apply", "upsert")
    ]


def _peers(changed: int, turns: int, batches: int) -> list[Target]:
    """Measure a small state: the peers need minutes to take in a million keys."""
    times = _times(2 * changed, changed, turns, batches, "apply", "apply_groups", *PEERS)
    return [
        _ratio(f"{ours}, {changed:,} keys a batch / {peer}", times, ours, peer, 1 / least)
        for peer in PEERS
        for ours, least in (("apply", 15), ("apply_groups", 5))
    ]


def _timers(rows: int) -> list[Target]:
    """Measure the bytes that are read for the rows that expire with a batch, once executors have copies."""
    found = []
    orders = {"the oldest keys": np.arange(rows), "any keys": np.random.default_rng(1).permutation(rows)}
    for what, order in orders.items():
        with folder() as base, Checkpointer(base / "root") as client:
            version, copies = _with_times(client, order), LocalCopies(base / "copies")
            shares = [_share_read(client, version, copies, number) for number in (1, 2)]
        question = f"timers, copies on the executor: bytes read for {DUE:,} due rows of {rows:,}, {what} / all"
        detail = f"{shares[0]:.3f} in the first batch of an executor"
        found.append(Target(question, shares[1], 0.02, detail))
    return found


def _share_read(client: Checkpointer, version: TableVersion, copies: LocalCopies, number: int) -> float:
    """Return the share of a table's bytes that is read to find the first `number` times `DUE` rows."""
    session, read, due = client.session, 0, 0
    for partition in version.chains:
        reader = TableReader(session.store, session.host, version, copies=copies)
        due += run_sync(due_rows(reader, partition, "at", number * DUE - 1)).num_rows
        read += reader.bytes_read
    if due != number * DUE:
        raise AssertionError(f"{number * DUE} rows were due, {due} found")
    return read / version.size


def _with_times(client: Checkpointer, order: Any) -> TableVersion:
    """Write rows with keys from 0 on, spread over partitions, whose times have this order."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in TYPES.items()]
    schema = first_schema("t", fields, ["key"], {})
    table = pa.table(
        {
            "key": np.arange(len(order)),
            "n": np.random.default_rng(2).integers(1 << 40, size=len(order)),
            "at": order.astype("datetime64[us]"),
        }
    )
    with client.begin() as checkpoint:
        writer = TableWriter(client.session.store, client.session.host, checkpoint.id, "t", schema)
        chains = {
            partition: (
                run_sync(
                    writer.snapshot(
                        partition,
                        table.take(np.arange(partition, len(order), PARTITIONS)).cast(schema.arrow()),
                    )
                ),
            )
            for partition in range(PARTITIONS)
        }
    return TableVersion("t", schema, PARTITIONS, chains)


def _ratio(question: str, times: dict[str, Times], mine: str, other: str, limit: float | None) -> Target:
    ours, others = times[mine], times[other]
    detail = f"{ours.median:.3f} / {others.median:.3f} s, spread {ours.spread:.0%} / {others.spread:.0%}"
    return Target(question, ours.median / others.median, limit, detail)


def _times(keys: int, changed: int, turns: int, batches: int, *names: str) -> dict[str, Times]:
    found: dict[str, list[float]] = job("operators_job", keys, changed, turns, batches, *names)
    return {name: Times(tuple(seconds)) for name, seconds in found.items()}
