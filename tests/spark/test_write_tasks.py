"""What a task makes of its failure, and of rows that have one key."""

import random
from collections import defaultdict
from collections.abc import Callable

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark_checkpointer import compaction
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    StoreRefusedError,
    ThrottlingError,
)
from pyspark_checkpointer.spark.table_hints import TableHints, VerbHints
from pyspark_checkpointer.spark.write_tasks import TaskOutput, run_task
from pyspark_checkpointer.table.combine import SumOverflowError
from tests.proof.plain_spark import PlainFrame, new_state
from tests.table.plain_store import plain_store


def failing(error: Exception) -> Callable[[], TaskOutput]:
    def work() -> TaskOutput:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (IllegalArgumentError("said"), IllegalArgumentError),
        (InvalidStateError("said"), InvalidStateError),
        (SumOverflowError("said"), InvalidStateError),
        (StoreRefusedError("said"), StoreRefusedError),
    ],
)
def test_what_no_other_attempt_can_do_is_raised_in_the_driver(error: Exception, seen: type[CheckpointError]) -> None:
    output = TaskOutput.load(run_task(failing(error))["written"][0].as_py())
    with pytest.raises(seen, match=r"^said$") as raised:
        output.raise_refused()
    assert type(raised.value) is seen


@pytest.mark.parametrize("error", [ThrottlingError("429"), CorruptionError("other bytes"), ZeroDivisionError()])
def test_what_another_attempt_may_do_fails_the_task(error: Exception) -> None:
    """Spark runs the task again."""
    with pytest.raises(type(error)) as raised:
        run_task(failing(error))
    assert raised.value is error


@pytest.mark.parametrize("driver_bytes", [0, 16 << 20])
@pytest.mark.parametrize("driver_rows", [0, 1000])
def test_a_key_may_stand_twice_in_rows_of_keys_alone(
    monkeypatch: pytest.MonkeyPatch, driver_rows: int, driver_bytes: int
) -> None:
    """They are equal: within a task, in two tasks, and in the driver. All of them count as given."""
    given = [pa.table({"k": keys}) for keys in ([1, 2, 1], [2, None, None, 3], [3])]
    counted: list[int] = []
    monkeypatch.setattr(compaction, "DRIVER_BYTES", driver_bytes)
    with plain_store() as store, monkeypatch.context() as patch:
        patch.setattr(VerbHints, "learn_size", lambda hints, rows, *rest: counted.append(rows))
        for epoch, verb in enumerate(["upsert", "upsert", "replace", "upsert", "delete"]):
            hints = {"t": TableHints(defaultdict(lambda: VerbHints(driver_rows=driver_rows)))}
            state = new_state(store.client, store.client.restore(), epoch, hints=hints)
            getattr(state.table("t", ["k"], num_partitions=2), verb)(PlainFrame(random.Random(epoch), given))
            state._attempt.commit()
            restored = store.client.restore()
            assert restored is not None
            rows = restored.table("t").sort_by("k").to_pylist()
            assert [row["k"] for row in rows] == ([] if verb == "delete" else [1, 2, 3, None])
    assert counted == [8] * 5


@pytest.mark.parametrize("driver_rows", [0, 1000])
def test_a_key_that_stands_twice_beside_values_is_refused(driver_rows: int) -> None:
    with plain_store() as store:
        state = new_state(
            store.client, None, 0, hints={"t": TableHints(defaultdict(lambda: VerbHints(driver_rows=driver_rows)))}
        )
        with pytest.raises(IllegalArgumentError, match="several rows have the key k=1"):
            state.table("t", ["k"]).upsert(PlainFrame(random.Random(0), [pa.table({"k": [1, 1], "v": [5, 5]})]))  # type: ignore[arg-type]
        state._attempt.abort()
