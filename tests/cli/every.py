"""Call every verb, in every form that prints another schema, over stores with long names."""

import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.admin.followers import register
from pyspark_checkpointer.checkpoint.save import CheckpointAttempt
from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.schema_evolution import first_schema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter
from tests.admin.streaming.spark_model import Query, history
from tests.consumers.eventhub.test_eventhub_contract import checkpoint, claim
from tests.damage import flip
from tests.signing_keys import make_keys

OPERATOR = "größe-" + "o" * 30 + "-総計-" + "p" * 57
SAVEPOINT = "before-the-migration-of-all-orders-to-another-region-in-" + "2026"
FOLLOWER = "warehouse-" + "w" * 60
OWNER = "pod-7f9c-" + "h" * 51
LONG_PATH = "/".join(["checkpoints", "q" * 60, "r" * 60, "s" * 60])


@dataclass(frozen=True)
class Call:
    """A verb with its arguments; `form` is its name in `schemas.PRINTED`."""

    form: str
    args: tuple[str, ...]
    status: int = 0


def write(root: Path, encryption: str | None = None) -> None:
    """Write three checkpoints: a map, bytes and a table with long names, a savepoint, positions, properties."""
    with Checkpointer(root, encryption=encryption) as ck:
        seen = KeyedState({"k" * 90: 1, 7: "x" * 300}, partitions=1)
        for number in range(3):
            seen[number] = number
            with ck.begin(epoch=number) as cp:
                cp.save("seen-" + "m" * 95, seen)
                cp.snapshot(OPERATOR, number, b"x" * 5000)
                cp.positions["orders-" + "t" * 60] = {"0": str(number) * 50}
                cp.properties["model"] = f"s3://{LONG_PATH}/{number}"
                put_table(ck, cp.attempt, number)
            if number == 1:
                ck.savepoint(SAVEPOINT)
                ck.savepoint(SAVEPOINT[:59] + "7")


def put_table(ck: Checkpointer, attempt: CheckpointAttempt, number: int) -> None:
    """Write a table as Spark's tasks would: two rows, and one more each time."""
    fields = [
        {"name": "user", "type": "string", "nullable": False, "metadata": {}},
        {"name": "n", "type": "long", "nullable": True, "metadata": {}},
    ]
    schema: TableSchema = first_schema("table", fields, ["user"], {})
    session = ck.session
    writer = TableWriter(session.store, session.host, attempt.id, "table", schema)
    names = [f"{'u' * 80}-{n}" for n in range(number + 2)]
    rows = pa.table({"user": names, "n": list(range(number, number + len(names)))})
    stored = schema.arrow()
    table = pa.table(
        [rows[name].cast(kind) for name, kind in zip(stored.names, stored.types, strict=True)], schema=stored
    )
    snapshot = run_sync(writer.snapshot(0, table))
    attempt.put_operator("table", TableVersion("table", schema, 1, {0: (snapshot,)}).operator())


def calls(folder: Path) -> Iterator[Call]:
    """Yield a call of every verb. A verb that changes a store gets a store of its own."""
    counter = itertools.count()

    def store() -> str:
        root = folder / f"store-{next(counter)}"
        write(root)
        return str(root)

    root = store()
    yield Call("list", (root,))
    yield Call("show", (root,))
    yield Call("tree", (root, "--all"))
    yield Call("diff", (root, "0000000001"))
    yield Call("diff OPERATOR", (root, "0000000001", "latest", "seen-" + "m" * 95))
    yield Call("diff OPERATOR", (root, "0000000001", "latest", "table"))
    yield Call("history", (root, "seen-" + "m" * 95, "7"))
    yield Call("history", (root, "table", f"{'u' * 80}-0"))
    for operator in ("seen-" + "m" * 95, OPERATOR, "table"):
        yield Call("cat", (root, operator))
    yield Call("cat --output", (root, "table", "-o", str(folder / "out.parquet")))
    yield Call("stats", (root,))
    yield Call("cost", (root, "--batches-per-hour", "60", "--keep-last", "10"))
    yield Call("cost", ("--map", "state=5MB,change=20kB", "--every", "30s"))
    yield Call("verify", (root,))
    yield Call("report", (root,))
    yield Call("doctor", (root, "--rounds", "2"))
    yield Call("plan", (root, "--keep-last", "1"))
    yield Call("plan --rows", (root, "--rows", "--keep-last", "1"))
    yield Call("savepoint", (root,))
    followed = store()
    with Checkpointer(followed) as ck:
        run_sync(register(ck.session, FOLLOWER, "table", ck.list_checkpoints()[0]))
    yield Call("followers", (followed,))
    yield Call("plan", (followed, "--keep-last", "1"))
    yield Call("clean", (followed, "--keep-last", "1", "--max-follower-lag", "1", "--yes"))
    yield Call("followers --remove", (followed, "--remove", FOLLOWER, "--yes"))
    yield Call("repair", (root,))
    damaged = store()
    for path in Path(damaged).glob("artifacts/*/*/*"):
        flip(path)
    Path(max(Path(damaged).glob("artifacts/*/*/*"))).unlink()
    yield Call("verify", (damaged,), 1)
    yield Call("report", (damaged,), 1)
    (Path(damaged) / "_latest").unlink()
    yield Call("repair", (damaged,))
    newest = max(path.stem for path in Path(damaged).glob("manifests/*.json"))
    yield Call("repair --to DAMAGED", (damaged, "--to", newest), 1)
    yield Call("report", (damaged,), 1)
    consumers = folder / "consumers"
    with CheckpointStore(consumers) as events, ShardLeases(consumers, "app", OWNER) as leases:
        events.claim_ownership([claim("3", OWNER)])
        events.update_checkpoint(checkpoint("3", 41, "4100" * 20))
        leases.create([f"shardId-{'0' * 50}1"])
        leases.balance()
    yield Call("consumers", (str(consumers),))
    yield Call("savepoint NAME", (store(), "another-" + "n" * 52))
    yield Call("savepoint --delete", (store(), "--delete", SAVEPOINT, "--yes"))
    yield Call("rollback", (store(), "0000000001", "--yes"))
    yield Call("delete", (store(), "0000000001", "--yes"))
    yield Call("clean", (store(), "--keep-last", "1", "--yes"))
    yield Call("export", (root, SAVEPOINT, str(folder / ("copy-" + "c" * 60))))
    yield Call(
        "export --format parquet", (root, SAVEPOINT, str(folder / ("tables-" + "p" * 60)), "--format", "parquet")
    )
    keys = [folder / f"{name}-{'k' * 60}.key" for name in ("old", "new", "cleaner")]
    for key in keys:
        key.write_text(secrets.token_hex(32))
    old, new, cleaner = (f"key-file:{key}" for key in keys)
    write(folder / "encrypted", old)
    yield Call("cleaners --allow", (str(folder / "encrypted"), "--encryption", old, "--allow", cleaner))
    yield Call("cleaners", (str(folder / "encrypted"), "--encryption", old))
    yield Call("rekey", (str(folder / "encrypted"), "--encryption", old, "--new-encryption", new))
    owner, driver = (folder / f"{name}-{'k' * 60}.pem" for name in ("owner", "driver"))
    make_keys(owner, driver)
    signed = str(folder / "signed")
    yield Call("signers --owner", (signed, "--owner", str(owner), "--allow", f"{driver.with_suffix('.pub')}=commit"))
    yield Call("signers", (signed, "--signing", f"trust:{owner.with_suffix('.pub')}"))
    yield Call("rekey", (str(folder / "encrypted"), "--encryption", new, "--new-encryption", old, "--rewrite", "--yes"))
    yield Call("encrypt", (store(), "--encryption", old, "--yes"))
    lost = store()
    newest = max(path.stem for path in Path(lost).glob("manifests/*.json"))
    (Path(lost) / "_latest").unlink()
    yield Call("repair --to", (lost, "--to", newest, "--yes"))
    home = folder / ("home-" + "z" * 80)
    home.mkdir()
    history(str(home / "root"))
    query = Query(str(home / "root"))
    yield Call("rewind", (query.root, "epoch=1", "--dry-run"))
    yield Call("rewind", (query.root, "epoch=1", "--yes"))
    yield Call("fork", (query.root, "latest", str(home / "fork"), str(home / "fork-spark")))
