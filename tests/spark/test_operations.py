"""The operations of one batch, without Spark."""

import threading

import pytest

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.spark.operations import Operations


def test_an_operation_that_waits_when_the_batch_fails_is_refused() -> None:
    operations, ran, refused = Operations(1), [], []
    holds, waits = threading.Event(), threading.Event()

    def late() -> None:
        waits.set()
        try:
            with operations.one("t"):
                ran.append("late")
        except InvalidStateError as error:
            refused.append(str(error))

    with operations.one("t"):
        thread = threading.Thread(target=late)
        thread.start()
        assert waits.wait(10)
        while operations._active < 2:
            holds.wait(0.001)
        operations.abandon()
    thread.join(10)
    assert (ran, refused) == ([], ["batch 1 has ended: use the state of the current callback"])


def test_the_end_waits_for_an_operation_that_waits() -> None:
    operations, ran = Operations(1), []
    pause = threading.Event()

    def late() -> None:
        with operations.one("t"):
            ran.append("late")

    with operations.one("t"):
        thread = threading.Thread(target=late)
        thread.start()
        while operations._active < 2:
            pause.wait(0.001)
    operations.end()
    assert ran == ["late"]
    with pytest.raises(InvalidStateError, match="has ended"), operations.one("t"):
        ran.append("never")
    assert operations.failure is None


def test_what_a_check_refuses_spoils_the_batch() -> None:
    operations = Operations(1)

    def refuse() -> None:
        raise InvalidStateError("was dropped")

    with pytest.raises(InvalidStateError, match="was dropped"), operations.one("t", refuse):
        pass
    assert str(operations.failure) == "was dropped"
