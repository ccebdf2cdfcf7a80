"""`diff ROOT A B TABLE` over changes of its columns: the command says what Spark's `diff` says."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark_checkpointer.spark.state import State
from tests.cli.conftest import Run
from tests.table.plain_store import Store, frame, plain_store, upsert


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with plain_store(str(tmp_path / "root")) as made:
        yield made


def told(run: Run, store: Store, before: str, after: str) -> dict[int, str]:
    """Return what the command says of each key, an integer or a decimal."""
    found = run("diff", store.client.root, before, after, "t", "--json").json["keys"]
    keys = [key["key"]["k"] for key in found]
    values = [int(Decimal(key["$decimal"])) if isinstance(key, dict) else key for key in keys]
    return {value: key["change"] for value, key in zip(values, found, strict=True)}


@pytest.mark.parametrize("wide", [pa.int64(), pa.decimal128(12, 2)])
def test_a_key_that_became_wider_is_the_same(run: Run, store: Store, wide: pa.DataType) -> None:
    keys = range(10)
    store.batch(upsert(partitions=5, k=pa.array(keys, pa.int32()), v=[*keys]))
    store.batch(upsert(partitions=5, k=pa.array([3, 11], wide), v=[99, 11]))
    assert told(run, store, "epoch=0", "epoch=1") == {3: "updated", 11: "inserted"}
    assert told(run, store, "epoch=1", "epoch=0") == {3: "updated", 11: "deleted"}


@pytest.mark.parametrize("wide", [pa.int64(), pa.decimal128(12, 2), pa.decimal128(14, 4)])
def test_a_value_that_became_wider_is_the_same(run: Run, store: Store, wide: pa.DataType) -> None:
    first = pa.int32() if wide == pa.int64() else pa.decimal128(12, 2) if wide.scale == 4 else pa.int16()
    store.batch(upsert(partitions=1, k=[1, 2], v=pa.array([1, 2], first)))
    store.batch(upsert(partitions=1, k=[1], v=pa.array([9], wide)))
    assert told(run, store, "epoch=0", "epoch=1") == {1: "updated"}


def drop(state: State) -> None:
    state.table("t", ["k"]).drop_columns(["v"])


def exchange(state: State) -> None:
    table = state.table("t", ["k"])
    table.drop_columns(["v"])
    table.upsert(frame(k=[1], v=[5]))


@pytest.mark.parametrize(("work", "changed"), [(drop, {1, 2}), (exchange, {2})])
def test_values_that_went_with_their_column_differ(
    run: Run, store: Store, work: Callable[[State], None], changed: set[int]
) -> None:
    store.batch(upsert(partitions=5, k=[1, 2, 3], v=[5, 6, None]))
    store.batch(work)
    assert told(run, store, "epoch=0", "epoch=1") == dict.fromkeys(changed, "updated")
    assert told(run, store, "epoch=1", "epoch=0") == dict.fromkeys(changed, "updated")


def test_a_column_that_is_new_reads_no_more_partitions(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.batch(upsert(partitions=5, k=[*range(20)]))
    store.batch(upsert(partitions=5, k=[1], v=[5]))
    read: list[int] = []
    old, new = (store.client.load_manifest(id_).operators["t"].chains for id_ in store.client.list_checkpoints())
    (changed,) = (number for number, chain in new.items() if chain != old[number])

    def note(reader: object, name: str, partitions: list[int], shown: object) -> Iterator[object]:
        read.extend(partitions)
        return iter(())

    monkeypatch.setattr("pyspark_checkpointer.cli.keys.records", note)
    told(run, store, "epoch=0", "epoch=1")
    assert read == [changed, changed]
