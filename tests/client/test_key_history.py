"""`restored.history`: what each checkpoint did to one key, and what is read for it."""

import asyncio
import random
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.checkpoint.key_history import KeyHistory
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.compaction import INLINE
from pyspark_checkpointer.errors import IllegalArgumentError, OperatorNotFoundError, RetiredError
from pyspark_checkpointer.manifests.keyed_records import partition_of
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import Expire
from tests.table.plain_store import DAY, FIRST, Store, opened, plain_store, upsert
from tests.world import World

Told = list[tuple[Any, ...]]


@pytest.fixture
def store() -> Iterator[Store]:
    with plain_store() as made:
        yield made


def restored(client: Checkpointer, **which: Any) -> Restored:
    found = client.copy().restore(**which)
    assert found is not None
    return found


def told(history: KeyHistory) -> Told:
    return [(change.id.sequence, change.change, change.before, change.after) for change in history.changes]


def test_a_map_against_a_dict_over_any_history() -> None:
    """Random sets, deletions, renamed numbers of partitions, rollbacks, dropped maps; the history of each key."""
    for seed in range(8):
        draw = random.Random(seed)
        client = Checkpointer(f"memory://{uuid.uuid4().hex}", max_chain=draw.choice([2, 5]))
        keys: list[Any] = ["a", "b", 3, (1, "x"), None]
        states: list[dict[Any, Any]] = [{}]
        expected: dict[Any, Told] = {key: [] for key in keys}
        for sequence in range(1, 25):
            found = client.restore()
            if found is not None and draw.random() < 0.1:
                chosen = draw.randrange(1, len(states))
                client.rollback(client.list_checkpoints()[chosen - 1])
                now = dict(states[chosen])
            else:
                has = found is not None and "m" in found.operators
                state = found.keyed("m", draw.choice([None, None, 1, 7])) if found and has else KeyedState({})
                with client.begin(epoch=sequence) as cp:
                    if has and draw.random() < 0.05:
                        cp.drop("m")
                        now = {}
                    else:
                        for key in draw.sample(keys, draw.randrange(3)):
                            if draw.random() < 0.3:
                                state.pop(key, None)
                            else:
                                state[key] = draw.choice([1, 2, [1], {"n": None}, "v" * 50])
                        cp.save("m", state)
                        now = state.to_dict()
            for key in keys:
                old, new = states[-1].get(key), now.get(key)
                if old != new:
                    change = "insert" if old is None else "delete" if new is None else "update"
                    expected[key].append((sequence, change, old, new))
            states.append(now)
        if not any("m" in client.load_manifest(id_).operators for id_ in client.list_checkpoints()):
            continue
        for key in keys:
            history = restored(client).history("m", key)
            assert told(history) == expected[key], (seed, key)
            assert (history.is_complete, history.since.sequence) == (True, 1)
            middle = client.list_checkpoints()[9]
            history = restored(client).history("m", key, after=middle)
            assert told(history) == [change for change in expected[key] if change[0] > 10], (seed, key)
            assert history.first == states[10].get(key)
            history = (
                restored(client, id=middle).history("m", key) if "m" in restored(client, id=middle).operators else None
            )
            assert history is None or told(history) == [change for change in expected[key] if change[0] <= 10]


def test_the_row_of_a_table(store: Store) -> None:
    rule = Expire("at", after=DAY)
    later = FIRST + 9 * DAY
    store.batch(upsert(rule, k=[1, 2], at=[FIRST, later], v=["a", "b"]), 0)
    store.batch(upsert(rule, k=[2, 3], at=[later, later], v=["b", "c"]), 0)
    store.batch(upsert(rule, 5, k=[2], at=[later], v=["B"]), 0)  # five partitions from now on
    store.batch(opened(rule, 5), 3)
    store.batch(upsert(rule, 5, k=[1], at=[later], v=["again"]), 3)
    store.batch(opened(None, 5), 3)
    store.client.rollback("epoch=2")
    ours = restored(store.client)
    assert told(ours.history("t", {"k": 1})) == [
        (1, "insert", None, {"k": 1, "at": FIRST, "v": "a"}),
        (4, "expire", {"k": 1, "at": FIRST, "v": "a"}, None),
        (5, "insert", None, {"k": 1, "at": later, "v": "again"}),
        (7, "update", {"k": 1, "at": later, "v": "again"}, {"k": 1, "at": FIRST, "v": "a"}),
    ]
    assert [change[:2] for change in told(ours.history("t", 2))] == [(1, "insert"), (3, "update")]
    assert [change[:2] for change in told(ours.history("t", {"k": 3}))] == [(2, "insert")]
    assert told(ours.history("t", {"k": 99})) == []
    change = ours.history("t", 2).changes[1]
    manifest = store.client.load_manifest(store.client.list_checkpoints()[2])
    assert (change.id, change.epoch, change.created) == (manifest.id, 2, manifest.created)


def test_a_key_and_a_value_that_were_wider_before_a_rollback(store: Store) -> None:
    def wide(key: int, value: int) -> Any:
        return upsert(partitions=5, k=pa.array([key], pa.int64()), v=pa.array([value], pa.decimal128(22, 2)))

    store.batch(upsert(partitions=5, k=pa.array([1, 2], pa.int32()), v=pa.array([1, 2], pa.int32())))
    store.batch(wide(1, 7))
    store.batch(wide(2**40, 8))
    store.client.rollback("epoch=0")
    ours = restored(store.client)
    assert told(ours.history("t", 1)) == [
        (1, "insert", None, {"k": 1, "v": 1}),
        (2, "update", {"k": 1, "v": 1}, {"k": 1, "v": 7}),
        (4, "update", {"k": 1, "v": 7}, {"k": 1, "v": 1}),
    ]
    assert told(ours.history("t", 2)) == [(1, "insert", None, {"k": 2, "v": 2})]
    assert [change[:2] for change in told(ours.history("t", 2**40))] == [(3, "insert"), (4, "delete")]
    assert ours.history("t", 1, after="epoch=1").first == {"k": 1, "v": 7}


def test_a_history_says_where_it_begins(store: Store) -> None:
    for value in "abcd":
        store.batch(upsert(k=[1], v=[value]))
    ids = store.client.list_checkpoints()
    store.client.clean(RetentionPolicy(keep_last=2, grace=timedelta(0)))
    history = restored(store.client).history("t", 1)
    assert (history.since, history.is_complete, history.first) == (ids[2], False, {"k": 1, "v": "c"})
    assert told(history) == [(4, "update", {"k": 1, "v": "c"}, {"k": 1, "v": "d"})]
    assert restored(store.client).history("t", 2).first is None
    assert told(restored(store.client).history("t", 1, after="latest")) == []
    with pytest.raises(IllegalArgumentError, match="older one"):
        restored(store.client, id=ids[2]).history("t", 1, after=ids[3])
    store.client.savepoint("kept", ids[2])
    store.batch(upsert(k=[1], v=["e"]))
    store.batch(upsert(k=[1], v=["f"]))
    store.client.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    with pytest.raises(RetiredError, match="oldest checkpoint"):
        restored(store.client).history("t", 1, after="kept")


def test_only_the_partition_of_the_key_is_read() -> None:
    """The objects of the other partitions are gone, and nobody notices."""
    client = Checkpointer(f"memory://{uuid.uuid4().hex}")
    draw = random.Random(1)
    state = KeyedState({key: draw.randbytes(300_000) for key in range(40)}, partitions=8)
    for epoch in range(3):
        state[7] = draw.randbytes(300_000)
        with client.begin(epoch=epoch) as cp:
            cp.save("m", state)
    whole = told(restored(client).history("m", 7))
    assert [change[:2] for change in whole] == [(1, "insert"), (2, "update"), (3, "update")]
    manifest = client.load_manifest(client.list_checkpoints()[0])
    chains = manifest.operators["m"].chains
    mine = {a.path for id_ in client.list_checkpoints() for a in _chain_of(client, id_, 7)}
    others = {a.path for chain in chains.values() for a in chain} - mine
    assert others
    store = client.session.store
    run_sync(store.delete(sorted(others)))
    assert told(restored(client).history("m", 7)) == whole


def _chain_of(client: Checkpointer, id_: Any, key: Any) -> Any:
    operator = client.load_manifest(id_).operators["m"]
    return operator.chains.get(partition_of(key, operator.partitions), ())


def test_what_has_no_keys_is_refused(store: Store) -> None:
    with store.client.begin(epoch=0) as cp:
        cp.save("m", KeyedState({"a": 1}))
        cp.snapshot("blob", 0, b"x")
    store.epoch = 1
    store.batch(upsert(k=[1]))
    ours = restored(store.client)
    with pytest.raises(OperatorNotFoundError, match="has blob, m, t"):
        ours.history("nosuch", "a")
    with pytest.raises(IllegalArgumentError, match="own format"):
        ours.history("blob", "a")
    with pytest.raises(IllegalArgumentError, match="cannot be stored"):
        ours.history("m", ["a"])
    with pytest.raises(IllegalArgumentError, match="keys: expected rows with k"):
        ours.history("t", "text")
    with pytest.raises(IllegalArgumentError, match="keys: column 'k' is missing; there are other"):
        ours.history("t", {"other": 1})
    empty = Checkpointer(f"memory://{uuid.uuid4().hex}")
    assert empty.restore() is None


def test_both_faces_say_the_same(store: Store) -> None:
    store.batch(upsert(k=[1], v=["a"]))

    async def ask() -> KeyHistory:
        async with AsyncCheckpointer(store.client.root) as ck:
            found = await ck.restore()
            assert found is not None
            return await found.history("t", 1)

    assert asyncio.run(ask()) == restored(store.client).history("t", 1)


def test_of_other_operators_no_segments_are_read() -> None:
    with World().actor() as ck:
        state = KeyedState({"a": 0})
        for number in range(6):
            state["a"] = number
            with ck.begin() as cp:
                cp.save("m", state)
                for partition in range(INLINE + 1) if number == 0 else [number]:
                    cp.snapshot("many", partition, b"%d" % number)
        found = ck.restore()
        assert found is not None
        ck.faults.forget()
        assert len(found.history("m", "a").changes) == 6
        assert not [r.path for r in ck.faults.requests if r.path.startswith("manifests/segments/")]
