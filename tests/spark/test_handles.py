"""What a callback was handed is of use while it runs, on the driver, and nowhere in silence."""

import gc
import logging
import pickle
import weakref
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.spark import State, stateful
from tests.spark.conftest import Job


def test_a_state_or_a_table_in_a_udf_is_refused(job: Job) -> None:
    refused: list[str] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", key=["key"])
        table.upsert(batch.select("key").distinct())
        for live in (state, table, state.restored):
            if live is None:
                continue
            with pytest.raises(IllegalArgumentError, match="cannot be pickled, copied, sent to tasks or used in a UDF"):
                pickle.dumps(live)

            def use(key: str, live: Any = live) -> str:
                live.map("m")[key] = 1
                return key

            try:
                batch.select(F.udf(use)("key")).collect()
            except (PySparkException, pickle.PicklingError) as error:
                refused.append(f"{type(live).__name__}: {error}")

    for number in range(2):
        job.feed(("a", number))
        job.run(update)
    said = [text for text in refused if "cannot be pickled" in text]
    assert {text.partition(":")[0] for text in said} == {"State", "TableState", "Restored"}


class Handles:
    """The maps that a callback got, batch by batch."""

    def __init__(self) -> None:
        self.maps: list[KeyedState] = []
        self.fail = False

    def __call__(self, batch: DataFrame, batch_id: int, state: State) -> None:
        found = state.map("seen")
        found[batch_id] = True
        self.maps.append(found)
        if self.fail:
            raise ValueError("of the callback")


def test_attributes_of_a_callable_object_are_not_those_of_the_sink(job: Job) -> None:
    class Update:
        """A function with attributes."""

        def __init__(self) -> None:
            self.checkpointer = Checkpointer(job.root + "-reference")
            self._callback = self._cleaner = self._classic = None

        def __call__(self, batch: DataFrame, batch_id: int, state: State) -> None:
            state.map("seen")[batch_id] = True

    sink = stateful(job.root)(Update())
    assert (sink.__doc__, sink.checkpointer.root) == ("A function with attributes.", job.root)
    job.feed(("a", 1))
    job.run(sink)
    assert Checkpointer(job.root).restore().keyed("seen").to_dict() == {0: True}  # type: ignore[union-attr]


def writes(state: KeyedState) -> list[Any]:
    return [
        lambda: state.__setitem__("x", 1),
        lambda: state.update({"x": 1}),
        lambda: state.update(x=1),
        lambda: state.setdefault("x", 1),
        lambda: state.__delitem__(0),
        lambda: state.pop(0),
        lambda: state.popitem(),
        lambda: state.clear(),
    ]


def reads(state: KeyedState) -> list[Any]:
    return [
        lambda: state[0],
        lambda: state.get(0),
        lambda: 0 in state,
        lambda: len(state),
        lambda: list(state),
        lambda: dict(state),
        lambda: list(state.items()),
        lambda: list(state.values()),
        lambda: state == {0: True},
        lambda: state.to_dict(),
    ]


def test_a_map_after_its_run_can_be_read_and_not_changed(job: Job) -> None:
    handles = Handles()
    sink = stateful(job.root)(handles)
    job.feed(("a", 1))
    job.run(sink)
    (handle,) = handles.maps
    for write in writes(handle):
        with pytest.raises(InvalidStateError, match="changed outside of a batch"):
            write()
    assert dict(handle) == {0: True}
    assert isinstance(handle, KeyedState)


@pytest.mark.parametrize("function", ["the same", "a new one"])
def test_a_map_of_an_earlier_run_is_of_no_use(job: Job, function: str) -> None:
    """In a notebook the cell with the function may be run again before the query is started again."""
    handles = Handles()
    sink = stateful(job.root)(handles)
    for number in range(2):
        job.feed(("a", number))
        job.run(sink if function == "the same" else stateful(job.root)(handles))
    first, second = handles.maps
    for call in [*writes(first), *reads(first)]:
        with pytest.raises(InvalidStateError):
            call()
    with pytest.raises(InvalidStateError, match="of a run that has ended"):
        first[0]
    with pytest.raises(InvalidStateError, match="of a run that has ended"), Checkpointer(job.root).begin() as cp:
        cp.save("seen", first)
    assert repr(first)
    assert dict(second) == {0: True, 1: True}


def test_a_process_holds_one_run_of_a_root_however_many_functions_it_decorates(job: Job) -> None:
    """PySpark holds each function of foreachBatch until the process ends."""
    runs: list[weakref.ref[Any]] = []

    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("seen")[batch_id] = True
        runs.append(weakref.ref(state._attempt.run))

    for number in range(3):
        job.feed(("a", number))
        job.run(stateful(job.root)(update))
    gc.collect()
    assert [run() is None for run in runs] == [True, True, False]


def test_a_map_of_a_batch_that_failed_is_of_no_use(job: Job) -> None:
    handles = Handles()
    sink = stateful(job.root)(handles)
    handles.fail = True
    job.feed(("a", 1))
    with pytest.raises(StreamingQueryException, match="of the callback"):
        job.run(sink)
    with pytest.raises(InvalidStateError, match="a batch that failed"):
        handles.maps[0].get(0)
    handles.fail = False
    job.run(sink)
    assert dict(handles.maps[1]) == {0: True}


def test_a_handle_is_of_use_in_all_batches_of_its_run(job: Job) -> None:
    handle: list[KeyedState] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        handle[:] = handle or [state.map("seen")]
        handle[0][batch_id] = True

    for number in range(3):
        job.feed(("a", number))
    job.run(update)
    restored = update.checkpointer.restore()
    assert restored is not None
    assert dict(restored.keyed("seen")) == {0: True, 1: True, 2: True}


# ---- what was renamed ----


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "neither opened nor dropped" in record.getMessage()]


def full(batch: DataFrame, batch_id: int, state: State) -> None:
    state.map("seen")[batch_id] = True
    state.table("totals", key=["key"]).upsert(batch.select("key").distinct())


def test_what_was_renamed_is_named_once(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    def renamed(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("viewed")[batch_id] = True
        state.table("sums", key=["key"]).upsert(batch.select("key").distinct())

    job.feed(("a", 0))
    job.run(stateful(job.root)(full))
    assert warnings(caplog) == [], "an empty root has nothing to forget"
    before = Checkpointer(job.root).read_latest()
    for number in (1, 2):
        job.feed(("a", number))
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        job.run(stateful(job.root)(renamed))
    (said,) = warnings(caplog)
    assert f"{job.root}: {before} has 'seen', 'totals'" in said
    assert "'sums', 'viewed' began empty" in said
    assert f"rewind(to='{before}')" in said


def test_the_way_that_the_warning_names_keeps_the_content(job: Job) -> None:
    contents: list[dict[Any, Any]] = []

    def renamed(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("viewed")[batch_id] = True
        contents.append(dict(state.map("viewed")))

    job.feed(("a", 0))
    job.run(stateful(job.root)(full))
    ck = Checkpointer(job.root)
    before = ck.read_latest()
    assert before is not None
    job.feed(("a", 1))
    job.run(stateful(job.root)(renamed))
    assert contents == [{1: True}], "it began empty"
    ck.rewind(to=before, stopped=True)
    ck.restore(rename={"seen": "viewed"})
    with ck.begin():
        pass
    job.run(stateful(job.root)(renamed))
    assert contents[-1] == {0: True, 1: True}


@pytest.mark.parametrize("used", ["all", "dropped", "read only"])
def test_nothing_is_said_where_nothing_was_forgotten(used: str, job: Job, caplog: pytest.LogCaptureFixture) -> None:
    def again(batch: DataFrame, batch_id: int, state: State) -> None:
        if used == "dropped":
            state.drop("seen")
            state.drop("totals")
        elif used == "read only":
            len(state.map("seen"))
            state.table("totals", key=["key"]).read().count()
        else:
            full(batch, batch_id, state)
            state.map("one more")["x"] = 1

    job.feed(("a", 0))
    job.run(stateful(job.root)(full))
    job.feed(("a", 1))
    job.run(stateful(job.root)(again))
    assert warnings(caplog) == []


def dropping(batch: DataFrame, batch_id: int, state: State) -> None:
    state.drop("seen")
    state.drop("totals")


def test_a_name_is_dropped_in_every_batch(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """As the warning of unused names advises. Only the first of these batches finds them."""
    job.feed(("a", 0))
    job.run(stateful(job.root)(full))
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        for number in (1, 2):
            job.feed(("a", number))
        job.run(stateful(job.root)(dropping))
        assert caplog.messages == []
        job.feed(("a", 3))
        job.feed(("a", 4))
        job.run(stateful(job.root)(dropping))
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert (restored.epoch, restored.operators) == (4, [])
    assert warnings(caplog) == []
    for message, name in zip(caplog.messages, ("seen", "totals"), strict=True):
        assert f"drop('{name}'): the state has no such map, table or operator" in message


def test_a_drop_that_finds_nothing_is_named_once_in_a_run(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    def misspelt(batch: DataFrame, batch_id: int, state: State) -> None:
        state.drop("totalz")
        state.map("seen")[batch_id] = True

    job.feed(("a", 0))
    job.run(stateful(job.root)(full))
    for number in (1, 2, 3):
        job.feed(("a", number))
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        job.run(stateful(job.root)(misspelt))
    dropped, unused = caplog.messages
    assert dropped.startswith(f"{job.root}: drop('totalz'): the state has no such map, table or operator")
    assert unused.startswith(f"{job.root}: ")
    assert "has 'totals', which" in unused
    assert "began empty" not in unused, "nothing was opened by the name"


def test_a_name_that_is_dropped_and_filled_in_each_batch_is_named_once_in_a_run(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """The call outlived its purpose, and empties what the batch before has filled."""

    def refilling(batch: DataFrame, batch_id: int, state: State) -> None:
        state.drop("seen")
        state.map("seen")[batch_id] = True
        state.drop("totals")

    job.feed(("a", 0))
    job.run(stateful(job.root)(full))
    for number in (1, 2, 3):
        job.feed(("a", number))
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        job.run(stateful(job.root)(refilling))
    (said,) = caplog.messages
    assert said.startswith(f"{job.root}: drop('seen'): an earlier batch of this run dropped it too")
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert restored.keyed("seen").to_dict() == {3: True}


def test_raw_operators_count_too(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    from pyspark_checkpointer.spark import Snapshot

    def raw(batch: DataFrame, batch_id: int, state: State) -> None:
        state.write_partitions("raw", batch.coalesce(1), lambda partition, batches: Snapshot(b"x"))

    def reading(batch: DataFrame, batch_id: int, state: State) -> None:
        state.partition("raw", 0)

    def forgetting(batch: DataFrame, batch_id: int, state: State) -> None:
        pass

    for number, callback in enumerate((raw, raw, reading)):
        job.feed(("a", number))
        job.run(stateful(job.root)(callback))
    assert warnings(caplog) == []
    job.feed(("a", 9))
    job.run(stateful(job.root)(forgetting))
    (said,) = warnings(caplog)
    assert "has 'raw'" in said
    assert "began empty" not in said


def test_positions_and_properties_of_a_batch_that_ended_are_refused(job: Job) -> None:
    states: list[State] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        states.append(state)
        state.positions["source"] = batch_id
        state.properties["seen"] = batch_id

    for number in range(2):
        job.feed((str(number), number))
        job.run(update)
    for name in ("positions", "properties"):
        with pytest.raises(InvalidStateError, match="batch 0 has ended"):
            getattr(states[0], name)
    with Checkpointer(job.root) as ck:
        restored = ck.restore()
        assert restored is not None
        assert (restored.manifest.positions, restored.manifest.properties) == ({"source": 1}, {"seen": 1})  # type: ignore[union-attr]
