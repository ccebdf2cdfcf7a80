"""Ways to damage a file, and a root that has a bit of everything to damage."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_checkpointer import Checkpointer, KeyedState, compaction
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint, Restored
from pyspark_checkpointer.manifests.model import Chain, CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.schema import MERGE
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top
from tests.table.tables import changes_of, rows_in, schema_of, snapshot_rows
from tests.world import contents

TABLE = schema_of({"k": "long", "n": "long"}, ["k"], n="sum")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


DAMAGE: list[Callable[[Path], Any]] = [flip, shorten, lengthen, Path.unlink]


def fill(client: Checkpointer, number: int, *, many: bool = True) -> CheckpointId:
    """Commit a checkpoint that changes a bit of everything; number 0 is the first."""
    restored = client.restore()
    state = KeyedState(partitions=2) if restored is None else restored.keyed("map")
    with client.begin(epoch=number) as cp:
        cp.snapshot("own", 0, random.Random(number).randbytes(2000))
        for partition in range(2):
            cp.snapshot("pack", partition, b"pack %d %d" % (partition, number))
        cp.delta("chain", 0, b"the same") if number else cp.snapshot("chain", 0, b"first")
        if many:
            for partition in range(compaction.INLINE + 1) if number == 0 else [number]:
                cp.snapshot("many", partition, b"%d %d" % (partition, number))
        state[number] = ["value", number]
        cp.save("map", state)
        cp.positions["topic"] = {"0": str(number)}
        cp.properties["number"] = number
        cp.watermark = f"2024-01-0{number + 1}T00:00:00Z"
        fill_table(client, cp, number)
    return cp.id


def fill_table(client: Checkpointer, cp: Checkpoint, number: int) -> None:
    """A table of two partitions: a snapshot in one, then packs of deltas in both."""
    session = client.session
    writer = TableWriter(session.store, session.host, cp.id, "table", TABLE)
    old = cp.attempt.operator("table")
    chains: dict[int, Chain] = {} if old is None else dict(old.chains)
    if old is None:
        rows = in_order(snapshot_rows(TABLE, [(2, 1), (4, 2)]), TABLE.key)
        chains[0] = (run_sync(writer.snapshot(0, rows)),)
    # The hashes of 2 and 4 say partition 0, and that of 1 says partition 1.
    changes = pa.concat_tables([changes_of(TABLE, [(MERGE, (2 - p, number))], p) for p in range(2)])
    for partition, delta in run_sync(writer.pack(in_order(changes, TABLE.key))).items():
        chains[partition] = on_top(chains.get(partition, ()), delta)
    cp.attempt.put_operator("table", TableVersion("table", TABLE, 2, chains).operator())


def everything(restored: Restored | None) -> Any:
    """All that a restored checkpoint holds, read through every door there is."""
    assert restored is not None
    assert restored.manifest is not None
    chains = {
        (name, partition): [(a.kind, a.length, a.digest, a.tail) for a in chain]
        for name, operator in restored.manifest.operators.items()
        for partition, chain in operator.chains.items()
    }
    stored = contents(restored)
    return (
        (restored.epoch, restored.job, restored.positions, restored.properties, restored.watermark),
        (stored, chains),
        (
            dict(restored.keyed("map")),
            rows_in(restored.table("table")),
            rows_in(restored.table("table", keys=[{"k": 1}])),
        ),
    )
