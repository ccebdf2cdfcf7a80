"""An old job's checkpoint, and the changes that a new version of the job makes to it."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint, Restored
from pyspark_checkpointer.manifests.model import Chain, Job
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.schema import CHANGE, MERGE, PARTITION, TableSchema
from pyspark_checkpointer.table.schema_evolution import first_schema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top
from tests.world import Actor, World

MAP = {f"user-{number}": {"n": number} for number in range(400)}

ROWS = {key: key * 10 for key in range(40)}

SCHEMA = first_schema(
    "rows",
    [{"name": "k", "type": "long", "metadata": {}}, {"name": "n", "type": "long", "metadata": {}}],
    ["k"],
    {"n": "sum"},
)

JOB = Job("query", "run", 7)


def table(rows: dict[int, int], schema: TableSchema = SCHEMA) -> pa.Table:
    return pa.table({"k": [*rows], "n": [*rows.values()]}, schema=schema.arrow())


def write_rows(client: Checkpointer, cp: Checkpoint, rows: dict[int, int], name: str = "rows") -> None:
    """Write rows on top of a table of four partitions, as changes."""
    session, known = client.session, cp.attempt.operator(name)
    writer = TableWriter(session.store, session.host, cp.id, name, SCHEMA)
    chains: dict[int, Chain] = dict(known.chains) if known else {}
    new = table(rows)
    numbers = pa.array(partitions_of(new.select(["k"]), SCHEMA, 4), pa.int32())
    changes = new.append_column(PARTITION, numbers).append_column(CHANGE, pa.array([MERGE] * len(rows), pa.int8()))
    for partition, delta in run_sync(writer.pack(in_order(changes, SCHEMA.key))).items():
        chains[partition] = on_top(chains.get(partition, ()), delta)
    cp.attempt.put_operator(name, TableVersion(name, SCHEMA, 4, chains).operator())


def old_job(world: World) -> Actor:
    """Write the old job's last two checkpoints: a map, opaque bytes, a table, and old data."""
    client = world.actor(retries=False)
    state = KeyedState(MAP)
    with client.begin_batch(6, JOB) as cp:
        cp.save("seen", state)
        cp.snapshot("model", 0, b"weights")
        cp.snapshot("model", 3, b"bias")
        cp.snapshot("old", 0, b"old")
        write_rows(client, cp, dict.fromkeys(ROWS, 0))
    with client.begin_batch(7, JOB) as cp:
        state["user-1"]["n"] = 1
        cp.save("seen", state)
        cp.delta("model", 0, b"+1")
        write_rows(client, cp, ROWS)
        cp.positions["topic"] = {"0": "12"}
        cp.properties["version"] = "1"
        cp.watermark = "2024-01-01"
    return client


def double(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "n", pc.multiply(rows["n"], 2))


CHANGES: dict[str, Any] = {
    "rename": {"seen": "users", "rows": "totals"},
    "drop": ["old"],
    "transform": {
        "users": lambda old: {key: value["n"] for key, value in old.items()},
        "model": lambda partition, chain: b"%d:" % partition + b"|".join(chain),
        "totals": double,
    },
}


def restored(client: Checkpointer, **options: Any) -> Restored:
    found = client.restore(**options)
    assert found is not None
    return found


def rows_of(found: Restored, name: str) -> dict[int, int]:
    return {row["k"]: row["n"] for row in found.table(name).to_pylist()}


def check_migrated(found: Restored) -> None:
    """Check that all of `CHANGES` were made to what `old_job` wrote."""
    assert found.operators == ["model", "totals", "users"]
    assert found.keyed("users").to_dict() == {key: value["n"] for key, value in MAP.items()}
    assert found.keyed("users").partitions == 8
    assert found.operator("model").read() == {0: [b"0:weights|+1"], 3: [b"3:bias"]}
    assert rows_of(found, "totals") == {key: 2 * value for key, value in ROWS.items()}
    assert found.table("totals", keys=[{"k": 7}]).to_pylist() == [{"k": 7, "n": 140}]
    assert found.positions == {"topic": {"0": "12"}}
    assert found.properties == {"version": "1"}
    assert found.watermark == "2024-01-01"
    assert found.epoch == 7
    assert found.job == JOB


def fails(*given: Any) -> Any:
    raise LookupError("planted")
