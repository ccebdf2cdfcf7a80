"""What can be done to a root, each as steps that are acknowledged one by one, on what a setup made."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint, Restored
from pyspark_checkpointer.errors import CorruptionError, InvalidStateError
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest
from pyspark_checkpointer.spark.arguments import TableDefinition
from pyspark_checkpointer.spark.table_changes import TableChanges
from pyspark_checkpointer.storage.base import Blob
from pyspark_checkpointer.storage.memory.store import MemoryStore
from tests import damage
from tests.proof.onlooker import Saved
from tests.table.tables import rows_in
from tests.world import Actor

LENGTH = 5
"""Checkpoints in the history that an operation finds."""

NEXT = LENGTH + 1

Setup = Callable[[Actor], object]

Step = Callable[[Actor, dict[str, Any]], object]
"""One acknowledged part of an operation; the dict carries what a later part needs."""

State = dict[str, Any]
"""What a job gets back: raw bytes by partition, mappings, and the rows of tables."""


@dataclass(frozen=True, slots=True)
class Operation:
    setup: Setup
    steps: tuple[Step, ...]
    again: Step | None = None
    """What the next run does first, where it is not just to restore and to go on."""
    max_chain: int = 10


# ---- what jobs commit ------------------------------------------------------------------------------------------------


def fill(client: Checkpointer, number: int, **options: Any) -> Checkpoint:
    """Begin a checkpoint that changes a bit of everything."""
    cp = client.begin(epoch=number, **options)
    cp.snapshot("single", 0, b"single %d" % number)
    for partition in range(3):
        cp.snapshot("packed", partition, b"packed %d %d" % (partition, number))
    begun = cp.parent is not None and "chain" in cp.parent.operators
    cp.delta("chain", 0, b"%d" % number) if begun else cp.snapshot("chain", 0, b"0")
    if number % 2:
        cp.snapshot("kept", 0, b"kept %d" % number)
    return cp


def grown(state: State, number: int) -> State:
    """What `fill` makes of a state."""
    new = {
        "single": {0: [b"single %d" % number]},
        "packed": {partition: [b"packed %d %d" % (partition, number)] for partition in range(3)},
        "chain": {0: [*state["chain"][0], b"%d" % number] if "chain" in state else [b"0"]},
        "kept": {0: [b"kept %d" % number]},
    }
    return {**state, **({name: new[name] for name in new if name != "kept" or number % 2})}


def state_of(restored: Restored | None) -> State:
    """Every byte of what was restored, through the door that its kind has."""
    if restored is None or restored.manifest is None:
        return {}

    def read(name: str, codec: str) -> Any:
        if codec == codecs.PARQUET.name:
            return rows_in(restored.table(name))
        if codec == codecs.MSGPACK.name:
            return dict(restored.keyed(name))
        operator = restored.operator(name)
        return {partition: operator.partition(partition) for partition in operator.partitions}

    return {name: read(name, operator.codec) for name, operator in restored.manifest.operators.items()}


def commit(client: Checkpointer, number: int) -> CheckpointId:
    return fill(client, number).commit()


def history(client: Checkpointer) -> None:
    for number in range(1, NEXT):
        commit(client, number)


def with_savepoints(client: Checkpointer) -> None:
    history(client)
    ids = client.list_checkpoints()
    client.savepoint("first", ids[0])
    client.savepoint("fourth", ids[3])


def with_garbage(client: Checkpointer) -> None:
    with_savepoints(client)
    fill(client, NEXT).prepare().abort()
    commit(client, NEXT)


NOW = RetentionPolicy(keep_last=2, grace=timedelta(0))
LATER = RetentionPolicy(keep_last=2)


def retired(client: Checkpointer) -> None:
    """Savepoints of what is in the catalog alone."""
    with_savepoints(client)
    client.clean(NOW)


def prepared_by_another(client: Checkpointer) -> None:
    history(client)
    fill(client, NEXT).prepare()


def nothing(client: Checkpointer) -> None:
    pass


# ---- saving ----------------------------------------------------------------------------------------------------------


def save(number: int) -> Step:
    return lambda client, _: commit(client, number)


def prepare(number: int) -> Step:
    return lambda client, notes: notes.update(prepared=fill(client, number).prepare())


def in_background(number: int) -> Step:
    """Acknowledged with the next call that waits for it."""

    def step(client: Actor, notes: dict[str, Any]) -> None:
        with fill(client, number, background=True):
            pass
        client.read_latest()

    return step


def by_hand(client: Actor, notes: dict[str, Any]) -> None:
    """A commit through the verbs that write one object each."""
    restored = client.restore()
    assert restored is not None
    checkpoint = client.new_id()
    artifact = client.save_snapshot(checkpoint, "single", 0, b"by hand")
    operators = dict(restored.manifest.operators)
    operators["single"] = replace(operators["single"], chains={0: (artifact,)})
    client.save_manifest(Manifest(checkpoint, parent=client.session.restored.parent, operators=operators))
    client.update_latest(checkpoint)


def keyed(client: Actor, notes: dict[str, Any]) -> None:
    restored = client.restore()
    if restored is None or "map" not in restored.operators:
        state = KeyedState({n: [n] for n in range(100)}, partitions=2)
    else:
        state = restored.keyed("map")
        state[5].append("more")
    with client.begin() as cp:
        cp.save("map", state)


def keyed_history(client: Actor) -> None:
    for _ in range(2):
        keyed(client, {})


def table_history(client: Actor) -> None:
    for number in range(3):
        with client.begin() as cp:
            damage.fill_table(client, cp, number)


def table_of(client: Actor, cp: Checkpoint) -> TableChanges:
    """What the driver has of a table during a batch. As long as its tasks have nothing to do, it needs no Spark."""
    no_spark = cast(Any, None)
    return TableChanges(no_spark, client, cp.attempt, "table", TableDefinition(["k"], combine={"n": "sum"}))


def compact_table(client: Actor, notes: dict[str, Any]) -> None:
    with client.begin() as cp:
        table = table_of(client, cp)
        table.compact()
        table.finish()


def fold_table(client: Actor, notes: dict[str, Any]) -> None:
    """A batch after which the chains of the table are too long."""
    with client.begin() as cp:
        damage.fill_table(client, cp, 3)
        table_of(client, cp).finish()


# ---- the same, awaited -----------------------------------------------------------------------------------------------


class AsyncActor(AsyncCheckpointer):
    """What an actor is, for those who await."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        super().__init__(actor.root)

    def _open_session(self) -> Session:
        session = super()._open_session()
        session.store = self._actor.session.store
        return session


def awaited(work: Callable[[AsyncCheckpointer], Coroutine[Any, Any, object]]) -> Step:
    return lambda client, _: asyncio.run(work(AsyncActor(client)))


async def commit_awaited(client: AsyncCheckpointer) -> None:
    async with client.begin(epoch=NEXT) as cp:
        await cp.snapshot("single", 0, b"awaited")
        await cp.delta("chain", 0, b"awaited")


async def prepare_awaited(client: AsyncCheckpointer) -> None:
    async with client.begin(epoch=NEXT) as cp:
        await cp.snapshot("single", 0, b"awaited")
        await cp.prepare()


async def promote_awaited(client: AsyncCheckpointer) -> None:
    await (await client.restore()).prepared.commit()


async def clean_awaited(client: AsyncCheckpointer) -> None:
    await client.clean(NOW)


# ---- copies ----------------------------------------------------------------------------------------------------------


SOURCE = Saved.after(with_savepoints)


class Source(Actor):
    """Of an export to the root of `target`: one process has sessions on both, and dies with both."""

    def __init__(self, url: str, target: Actor) -> None:
        self._target = target
        super().__init__(MemoryStore(url), faults=target.faults, retries=target._retries)

    def _connect(self, root: Any, options: Any, fencing: Any, encryption: Any, signing: Any) -> Session:
        if root == self._target.root:
            return self._target._open_session()
        return super()._connect(root, options, fencing, encryption, signing)


def export(client: Actor, notes: dict[str, Any]) -> None:
    with SOURCE.world() as source:
        try:
            Source(source.store.url, client).export(None, client.root)
        finally:
            assert source.objects_now == SOURCE.objects, "an export changed its source"


def export_again(client: Actor, notes: dict[str, Any]) -> None:
    if client.read_latest() is None:
        export(client, notes)


def lost(client: Actor) -> None:
    with_savepoints(client)
    del MemoryStore(client.root).objects[object_paths.LATEST]


def flipped(client: Actor) -> None:
    with_savepoints(client)
    objects = MemoryStore(client.root).objects
    found = objects[object_paths.LATEST]
    objects[object_paths.LATEST] = Blob(found.data[:-9] + b"x" + found.data[-8:], "flipped")


def repair(client: Actor, notes: dict[str, Any]) -> None:
    client.repair(client.repair_candidates()[0].id)


def repair_again(client: Actor, notes: dict[str, Any]) -> None:
    try:
        client.restore()
    except (CorruptionError, InvalidStateError):
        repair(client, notes)
        state: State = {}
        for number in range(1, NEXT):
            state = grown(state, number)
        assert state_of(client.restore()) == state, "another checkpoint than the newest one looked best"


# ---- all of them -----------------------------------------------------------------------------------------------------

OPERATIONS: dict[str, Operation] = {
    "first commit": Operation(nothing, (save(1),)),
    "first prepare": Operation(nothing, (prepare(1), lambda _, n: n["prepared"].commit())),
    "takeover": Operation(history, (save(NEXT),)),
    "two commits": Operation(history, (save(NEXT), save(NEXT + 1))),
    "commits in the background": Operation(history, (in_background(NEXT), in_background(NEXT + 1))),
    "prepare, commit": Operation(history, (prepare(NEXT), lambda _, n: n["prepared"].commit())),
    "prepare, abort": Operation(history, (prepare(NEXT), lambda _, n: n["prepared"].abort())),
    "promote another's": Operation(prepared_by_another, (lambda c, _: c.restore().prepared.commit(), save(NEXT + 1))),
    "drop another's": Operation(prepared_by_another, (lambda c, _: c.restore().prepared.abort(), save(NEXT))),
    "update_latest": Operation(history, (by_hand,)),
    "deltas put together": Operation(history, (save(NEXT), save(NEXT + 1)), max_chain=3),
    "keyed state": Operation(history, (keyed, keyed)),
    "keyed state compacted": Operation(keyed_history, (keyed, keyed), max_chain=2),
    "table compacted": Operation(table_history, (compact_table,)),
    "table folded": Operation(table_history, (fold_table,), max_chain=3),
    "savepoint": Operation(with_savepoints, (lambda c, _: c.savepoint("new", c.list_checkpoints()[1]),)),
    "delete_savepoint": Operation(with_savepoints, (lambda c, _: c.delete_savepoint("first"),)),
    "delete_savepoint of what is retired": Operation(
        retired, (lambda c, _: c.delete_savepoint("first"), lambda c, _: c.delete_savepoint("fourth"))
    ),
    "delete the oldest": Operation(history, (lambda c, _: c.delete_checkpoint(c.list_checkpoints()[0]),)),
    "delete a middle one": Operation(with_savepoints, (lambda c, _: c.delete_checkpoint(c.list_checkpoints()[2]),)),
    "rollback": Operation(with_savepoints, (lambda c, _: c.rollback("first"), save(NEXT + 1))),
    "rollback over a prepared one": Operation(prepared_by_another, (lambda c, _: c.rollback(c.list_checkpoints()[0]),)),
    "clean at once": Operation(with_garbage, (lambda c, _: c.clean(NOW),)),
    "clean with grace": Operation(with_garbage, (lambda c, _: c.clean(LATER),)),
    "plan, apply": Operation(with_garbage, (lambda c, n: n.update(plan=c.plan(NOW)), lambda c, n: c.apply(n["plan"]))),
    "export": Operation(nothing, (export,), again=export_again),
    "repair of what is lost": Operation(lost, (repair,), again=repair_again),
    "repair of what is damaged": Operation(flipped, (repair,), again=repair_again),
    "commit awaited": Operation(history, (awaited(commit_awaited),)),
    "prepare, promote awaited": Operation(history, (awaited(prepare_awaited), awaited(promote_awaited))),
    "clean awaited": Operation(with_garbage, (awaited(clean_awaited),)),
}
