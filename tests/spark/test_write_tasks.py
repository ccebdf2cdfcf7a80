"""What a task makes of its failure: Spark runs it again, or the driver raises what it was refused with."""

from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    StoreRefusedError,
    ThrottlingError,
)
from pyspark_checkpointer.spark.write_tasks import TaskOutput, run_task
from pyspark_checkpointer.table.combine import SumOverflowError


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
    ],
)
def test_what_no_other_attempt_can_do_is_raised_in_the_driver(error: Exception, seen: type[CheckpointError]) -> None:
    output = TaskOutput.load(run_task(failing(error))["written"][0].as_py())
    with pytest.raises(seen, match=r"^said$") as raised:
        output.raise_refused()
    assert type(raised.value) is seen


@pytest.mark.parametrize(
    "error", [StoreRefusedError("403"), ThrottlingError("429"), CorruptionError("other bytes"), ZeroDivisionError()]
)
def test_what_another_attempt_may_do_fails_the_task(error: Exception) -> None:
    """The store may refuse one executor alone, or for a while: Spark runs the task again."""
    with pytest.raises(type(error)) as raised:
        run_task(failing(error))
    assert raised.value is error
