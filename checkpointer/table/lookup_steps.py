"""Divide a lookup of many keys into steps.

Only the rows of one step are in memory.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from pyspark_checkpointer.table.version import TableVersion

MAX_STEP_PARTITIONS = 32
MAX_STEP_KEYS = 65_536
"""The most partitions, and keys, of a step, unless one partition has more keys."""

MAX_STEP_BYTES = 128 << 20
"""The most bytes, about, of the rows that a step finds, and as many again of the snapshots that it looks into.

Their stored bytes come on top. One snapshot may have more: of a large one only the row groups are read that may have
the keys.
"""


class LookupSteps(NamedTuple):
    """The steps of a lookup: the keys of each, by partition.

    `reads` says in how many steps each partition is.
    """

    steps: list[dict[int, pa.Table]]
    reads: Counter[int]


def lookup_steps(version: TableVersion, keys: Mapping[int, pa.Table]) -> LookupSteps:
    """Return keys as steps that are looked up one after the other.

    The keys are given by partition. The keys of a partition come in order, so that parts of them lie in different row
    groups.
    """
    steps = list(_steps(version, keys))
    return LookupSteps(steps, Counter(partition for step in steps for partition in step))


def _steps(version: TableVersion, keys: Mapping[int, pa.Table]) -> Iterator[dict[int, pa.Table]]:
    most = max(1, MAX_STEP_BYTES // max(1, version.row_bytes))
    step: dict[int, pa.Table] = {}
    count = size = 0
    for partition, some in keys.items():
        chain = version.chains.get(partition, ())
        own = chain[0].raw_size if chain else 0
        for start in range(0, some.num_rows, most):
            part = some.slice(start, most)
            is_full = (
                partition in step
                or len(step) == MAX_STEP_PARTITIONS
                or count + part.num_rows > min(MAX_STEP_KEYS, most)
                or size + own > MAX_STEP_BYTES
            )
            if step and is_full:
                yield step
                step, count, size = {}, 0, 0
            step[partition] = part
            count += part.num_rows
            size += own
    if step:
        yield step


__all__ = ["LookupSteps", "lookup_steps"]
