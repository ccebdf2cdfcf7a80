"""The memory that one very large partition of a table takes, where tasks write, fold and read it.

This is the level of Arrow, below Spark: what one Python worker has to hold. Rows are wide and cannot be compressed, so
that the stored bytes are what there is.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.manifests.model import Chain, CheckpointId
from pyspark_checkpointer.runtime.host import SystemHost
from pyspark_checkpointer.storage.local.store import LocalStore
from pyspark_checkpointer.table.compact import compact_chains
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import CHANGE, MERGE, PARTITION
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top
from tests.proof.load.gauges import MIB, answer, peak
from tests.table.tables import schema_of

ROW = 36 << 10
"""Bytes of a row."""

BATCH = 128 * MIB
"""Bytes that one batch changes."""

SCHEMA = schema_of({"k": "long", "data": "binary"}, ["k"])


def changes(keys: Sequence[int], seed: int) -> pa.Table:
    """Return new values of these keys, as a task hands them to its writer."""
    noise = np.random.default_rng(seed).bytes(len(keys) * ROW)
    offsets = pa.py_buffer(np.arange(0, (len(keys) + 1) * ROW, ROW, dtype=np.int32))
    data = pa.Array.from_buffers(pa.binary(), len(keys), [None, offsets, pa.py_buffer(noise)])
    columns = {"k": pa.array(keys, pa.int64()), "data": data}
    own = {PARTITION: pa.array([0] * len(keys), pa.int32()), CHANGE: pa.array([MERGE] * len(keys), pa.int8())}
    return pa.table(columns | own).cast(SCHEMA.arrow_delta())


def batches(size: int) -> Iterator[Sequence[int]]:
    """Yield the keys of each batch: all of them once, and then a few all over the partition."""
    count, each = size // ROW, max(BATCH // ROW, 1)
    for start in range(0, count, each):
        yield range(start, min(start + each, count))
    yield range(0, count, max(count // each, 8))


def identify(sequence: int) -> CheckpointId:
    return CheckpointId(sequence, os.urandom(4).hex())


async def measure(folder: str, size: int) -> dict[str, Any]:
    """Fill a partition in batches, folding it whenever its changes outweigh half of its snapshot; then read it."""
    store, host = LocalStore(folder), SystemHost()
    chain: Chain = ()
    expected: dict[int, int] = {}
    folds: list[tuple[int, int]] = []
    report: dict[str, Any] = {"write": 0, "folds": folds}
    last = len(list(batches(size)))
    for number, keys in enumerate(batches(size), 1):
        rows = changes(keys, number)
        expected |= dict.fromkeys(keys, number)
        with peak() as most:
            packed = await TableWriter(store, host, identify(2 * number), "t", SCHEMA).pack(rows)
        del rows
        report["write"] = max(report["write"], most.bytes)
        chain = on_top(chain, packed[0])
        base, *deltas = (artifact.length for artifact in chain)
        if 2 * sum(deltas) >= base or number == last:
            with peak() as most:
                chain = await fold(store, host, chain, 2 * number + 1)
            folds.append((most.bytes, base + sum(deltas)))
    with peak() as most:
        found = await TableReader(store, host, TableVersion("t", SCHEMA, 1, {0: chain})).rows(0)
    report["read"] = most.bytes
    report["stored"] = sum(artifact.length for artifact in chain)
    report["right"] = is_right(found, expected, dict(enumerate(batches(size), 1)))
    return report


async def fold(store: LocalStore, host: SystemHost, chain: Chain, number: int) -> Chain:
    """Return the partition as one snapshot."""
    version = TableVersion("t", SCHEMA, 1, {0: chain})
    writer = TableWriter(store, host, identify(number), "t", SCHEMA)
    return (await compact_chains(TableReader(store, host, version), writer, {0: chain}, {0: 0}))[0]


def is_right(rows: pa.Table, expected: dict[int, int], written: dict[int, Sequence[int]]) -> bool:
    """Compare the rows with what was written last, a batch at a time."""
    place = {key: at for at, key in enumerate(rows["k"].to_pylist())}
    if place.keys() != expected.keys():
        return False
    for number, keys in written.items():
        wrote = changes(keys, number)["data"].combine_chunks()
        for at, key in enumerate(keys):
            if expected[key] == number and rows["data"][place[key]].as_buffer() != wrote[at].as_buffer():
                return False
    return True


def measure_table_partition(folder: str, size: int) -> dict[str, Any]:
    """Return the peak of each step, above what was held before it."""
    return asyncio.run(measure(folder, size))


if __name__ == "__main__":
    answer(measure_table_partition)
