"""What one batch teaches the next ones of its run, and what it must not teach them."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark_checkpointer import compaction
from pyspark_checkpointer.errors import DependencyError, StoreRefusedError, SwapNotSentError, ThrottlingError
from pyspark_checkpointer.spark.state import State
from pyspark_checkpointer.spark.table_hints import TableHints
from pyspark_checkpointer.spark.write_tasks import WriteTask
from tests.proof.plain_spark import new_state
from tests.table.plain_store import Store, frame, plain_store


@pytest.fixture
def store() -> Iterator[Store]:
    with plain_store() as made:
        yield made


def begin(store: Store, hints: TableHints) -> State:
    store.epoch += 1
    return new_state(store.client, store.client.restore(), store.epoch, hints={"t": hints})


@pytest.mark.parametrize(
    ("error", "is_unfit"),
    [
        (ThrottlingError("429"), False),
        (DependencyError("no answer"), False),
        (SwapNotSentError("too late"), False),
        (StoreRefusedError("403"), True),
        (ModuleNotFoundError("only executors have it"), True),
        (SystemExit(1), True),
    ],
)
def test_an_error_that_passes_does_not_turn_the_driver_off(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: BaseException, is_unfit: bool
) -> None:
    """Tasks do the work of this batch in any case."""

    def fail(batches: Any) -> Any:
        raise error

    hints = TableHints(driver_rows=1000)
    with monkeypatch.context() as patch:
        patch.setattr(WriteTask, "in_driver", lambda task, root: SimpleNamespace(run=fail))
        state = begin(store, hints)
        state.table("t", ["k"]).upsert(frame(k=[1, 2]))
        state._attempt.commit()
    assert hints.is_driver_unfit == is_unfit
    restored = store.client.restore()
    assert restored is not None
    assert restored.table("t").num_rows == 2


def packs(store: Store) -> int:
    """How many packs the last batch has written."""
    restored = store.client.restore()
    assert restored is not None
    assert restored.manifest is not None
    chains = restored.manifest.operators["t"].chains
    return len({a.path for chain in chains.values() for a in chain if str(restored.id) in a.path})


@pytest.mark.parametrize("known", [False, True])
def test_a_move_to_other_partitions_says_nothing_about_a_batch(
    store: Store, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """It writes all rows of the table, in a pack for each task."""
    written = []
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "DRIVER_BYTES", 0)
        state = begin(store, TableHints())
        state.table("t", ["k"], num_partitions=2).upsert(frame(k=[*range(64)]))
        state._attempt.commit()
        for partitions in (16, 5, 32, 7):
            hints = TableHints(shuffle_first=known)
            state = begin(store, hints)
            state.table("t", ["k"], num_partitions=partitions)
            state._attempt.commit()
            assert hints.shuffle_first == known
            written.append(packs(store))
    assert max(written) > 1
