"""The operations of one batch, without Spark."""

import threading
import uuid
from collections.abc import Callable

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.spark.operations import Operations
from tests.proof.plain_spark import new_state
from tests.table.plain_store import frame


def test_an_operation_that_waits_when_the_batch_fails_is_refused() -> None:
    operations, ran, refused = Operations("root", 1), [], []
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
    assert ran == []
    assert ["batch 1 has ended" in text for text in refused] == [True]


def test_the_end_waits_for_an_operation_that_waits() -> None:
    operations, ran = Operations("root", 1), []
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
    assert ran == ["late"]
    assert "has ended" in str(operations.failure)


def test_what_a_check_refuses_spoils_the_batch() -> None:
    operations = Operations("root", 1)

    def refuse() -> None:
        raise InvalidStateError("was dropped")

    with pytest.raises(InvalidStateError, match="was dropped"), operations.one("t", refuse):
        pass
    assert str(operations.failure) == "was dropped"


@pytest.mark.parametrize("late", ["a call", "a write", "a change of a map"])
def test_what_is_refused_during_a_commit_makes_the_batch_fail(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function left work behind, in a pool whose results nobody asks for: half of it would be committed."""
    client = Checkpointer(f"memory://{uuid.uuid4().hex}")
    state = new_state(client, None, 0)
    first = state.map("first")
    first["n"] = 1
    table = state.table("t", ["k"])

    def come_late() -> None:
        with pytest.raises(InvalidStateError):
            if late == "a call":
                state.map("second")
            elif late == "a write":
                table.delete(frame(k=[1]))
            else:
                first["m"] = 2

    monkeypatch.setattr(state._attempt, "_finish", come_late)
    with pytest.raises(InvalidStateError, match="was not committed"):
        state._attempt.commit()
    assert client.copy().restore() is None


def test_what_only_reads_during_a_commit_is_refused_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that logs the clock each second leaves nothing out of the state."""
    client = Checkpointer(f"memory://{uuid.uuid4().hex}")
    other = Checkpointer(f"memory://{uuid.uuid4().hex}")
    with other.begin():
        pass
    state = new_state(client, None, 0)
    table, shop = state.table("t", ["k"]), state.other(other.root)
    keys = frame(k=[1])
    reads: list[Callable[[], object]] = [
        lambda: state.clock,
        lambda: state.positions,
        lambda: state.properties,
        lambda: state.partition("raw", 0),
        lambda: state.other(other.root),
        lambda: shop.table("t"),
        lambda: shop.map("m"),
        table.read,
        lambda: table.lookup(keys),
        table.expired,
    ]

    def come_late() -> None:
        for read in reads:
            with pytest.raises(InvalidStateError, match="batch 0 has ended"):
                read()

    monkeypatch.setattr(state._attempt, "_finish", come_late)
    state._attempt.commit()
    come_late()
    assert client.copy().restore() is not None
    assert caplog.records == []


def test_the_first_call_that_comes_after_the_batch_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    client = Checkpointer(f"memory://{uuid.uuid4().hex}")
    state = new_state(client, None, 7)
    state._attempt.commit()
    for name in "ab":
        with pytest.raises(InvalidStateError, match="batch 7 has ended"):
            state.map(name)
    (said,) = caplog.records
    assert said.levelname == "ERROR"
    assert said.getMessage().startswith(f"{client.root}: batch 7: ")


def test_what_comes_after_a_batch_that_failed_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The failure of the batch is the error to look at."""
    state = new_state(Checkpointer(f"memory://{uuid.uuid4().hex}"), None, 0)
    state._attempt.abort()
    with pytest.raises(InvalidStateError, match="has ended"):
        state.map("a")
    assert caplog.records == []
