"""What one batch teaches the next ones of its run, and what it must not teach them."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from pyspark_checkpointer import compaction
from pyspark_checkpointer.errors import DependencyError, StoreRefusedError, SwapNotSentError, ThrottlingError
from pyspark_checkpointer.spark import driver_task, table_changes, table_hints, table_jobs
from pyspark_checkpointer.spark.driver_task import run_in_driver
from pyspark_checkpointer.spark.state import State
from pyspark_checkpointer.spark.table_hints import TableHints, VerbHints
from pyspark_checkpointer.spark.write_tasks import WriteTask
from tests.proof.plain_spark import PlainFrame, new_state
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

    hints = TableHints()
    hints.verbs["upsert"].driver_rows = 1000
    with monkeypatch.context() as patch:
        patch.setattr(WriteTask, "in_driver", lambda task, root: SimpleNamespace(run=fail))
        state = begin(store, hints)
        state.table("t", ["k"]).upsert(frame(k=[1, 2]))
        state._attempt.commit()
    assert hints.is_driver_unfit == is_unfit
    restored = store.client.restore()
    assert restored is not None
    assert restored.table("t").num_rows == 2


def test_rows_that_spark_fails_to_compute_do_not_turn_the_driver_off(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(frame: Any) -> Any:
        raise PySparkException("a source gave no answer")

    hints = TableHints()
    hints.verbs["upsert"].driver_rows = 1000
    with monkeypatch.context() as patch:
        patch.setattr(driver_task, "rows_of_frame", fail)
        begin(store, hints).table("t", ["k"]).upsert(frame(k=[1, 2]))
    assert not hints.is_driver_unfit


def test_rows_that_only_tasks_can_have_are_computed_twice_in_two_batches(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a limit of Spark's, or a lack of memory, keeps rows from the driver: each batch computed them twice."""
    error: Exception | None = PySparkException("is bigger than spark.driver.maxResultSize")
    rows_of_frame, hints, tried = driver_task.rows_of_frame, TableHints(), []
    hints.verbs["upsert"].driver_rows = hints.verbs["delete"].driver_rows = 1000

    def fail(rows: Any) -> Any:
        tried.append(True)
        if error is not None:
            raise error
        return rows_of_frame(rows)

    monkeypatch.setattr(VerbHints, "learn_size", lambda *given: None)
    monkeypatch.setattr(driver_task, "rows_of_frame", fail)

    def upsert() -> None:
        state = begin(store, hints)
        state.table("t", ["k"]).upsert(frame(k=[1, 2]))
        state._attempt.commit()

    upsert()
    # One failure may have been the source's, and says nothing once the rows came again.
    failure, error = error, None
    upsert()
    with monkeypatch.context() as patch:
        patch.setattr(table_jobs.TableJobs, "run", lambda *given: pytest.fail("tasks had to do it"))
        upsert()
    error = ThrottlingError("429")
    for _ in range(3):
        upsert()
    error = failure
    with monkeypatch.context() as patch:
        # Where tasks fail too, the cause is not the driver.
        patch.setattr(table_jobs, "map_batches", lambda *given: 1 / 0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                upsert()
    tried.clear()
    for _ in range(4):
        upsert()
    assert len(tried) == 2
    begin(store, hints).table("t", ["k"]).delete(frame(k=[1]))
    assert len(tried) == 3, "its rows come from elsewhere"


def test_a_call_without_tasks_does_not_bring_functions_to_the_driver(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of no rows Spark may make no task, so nothing was compared."""
    state = begin(store, TableHints())
    state.table("t", ["k"], num_partitions=2).upsert(frame(k=[1]))
    state._attempt.commit()
    monkeypatch.setattr(VerbHints, "learn_size", LEARN_SIZE)
    monkeypatch.setattr(table_changes, "has_same_surroundings", driver_task.has_same_surroundings)
    monkeypatch.setattr(driver_task, "surroundings", lambda: "of the driver")
    calls: list[int] = []
    done: list[str] = []
    monkeypatch.setattr(table_jobs, "run_in_driver", lambda *given: calls.append(len(done)))
    run, hints = table_jobs.TableJobs.run, TableHints()
    found = ["none", "of the driver", "of the driver", "of another image", "of the driver", "of the driver"]

    def run_around(jobs: Any, *given: Any) -> Any:
        outputs = run(jobs, *given)
        done.append(found[len(done)])
        for output in outputs:
            output.surroundings = done[-1]
        return [] if done[-1] == "none" else outputs

    monkeypatch.setattr(table_jobs.TableJobs, "run", run_around)
    for _ in found:
        state = begin(store, hints)
        table = state.table("t", ["k"], num_partitions=2)
        table.apply(frame(k=[1, 2]), lambda rows, known: rows)
        state._attempt.commit()
    assert calls == [2, 3], "from the first comparison on, until one finds a difference"


def test_a_callback_that_changes_its_surroundings_brings_functions_back_to_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hints = VerbHints()
    assert not driver_task.has_same_surroundings(hints.surroundings)
    hints.learn_surroundings([driver_task.surroundings()] * 3)
    assert driver_task.has_same_surroundings(hints.surroundings)
    with monkeypatch.context() as patch:
        patch.setenv("TZ_OF_CALLBACK", "Asia/Tokyo")
        assert not driver_task.has_same_surroundings(hints.surroundings)
    assert driver_task.has_same_surroundings(hints.surroundings)
    hints.learn_surroundings(["of another image"])
    hints.learn_surroundings(map(str, range(100)))
    assert not driver_task.has_same_surroundings(hints.surroundings)
    assert len(hints.surroundings) == 2


def packs(store: Store) -> int:
    """How many packs the last batch has written."""
    restored = store.client.restore()
    assert restored is not None
    assert restored.manifest is not None
    chains = restored.manifest.operators["t"].chains
    return len({a.path for chain in chains.values() for a in chain if str(restored.id) in a.path})


def test_a_move_to_other_partitions_says_nothing_about_a_batch(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes all rows of the table, in a pack for each task."""
    written = []
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "DRIVER_BYTES", 0)
        state = begin(store, TableHints())
        state.table("t", ["k"], num_partitions=2).upsert(frame(k=[*range(64)]))
        state._attempt.commit()
        for partitions in (16, 5, 32, 7):
            hints = TableHints()
            state = begin(store, hints)
            state.table("t", ["k"], num_partitions=partitions)
            state._attempt.commit()
            assert hints.verbs.keys() == {"move"}
            written.append(packs(store))
    assert max(written) > 1


LEARN_SIZE = VerbHints.learn_size
"""As the library has it: tables without Spark learn sizes that are drawn."""


def test_a_small_call_of_another_verb_does_not_bring_large_ones_to_the_driver(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch upserts more rows than the driver takes, and then deletes three."""
    tried: list[tuple[str, bool]] = []
    monkeypatch.setattr(VerbHints, "learn_size", LEARN_SIZE)
    monkeypatch.setattr(table_hints, "MAX_DRIVER_ROWS", 1000)

    def spy(given: Any, *rest: Any) -> Any:
        outputs = run_in_driver(given, *rest)
        tried.append((verb, outputs is not None))
        return outputs

    monkeypatch.setattr(table_jobs, "run_in_driver", spy)
    hints = TableHints()
    for batch in range(4):
        state = begin(store, hints)
        table = state.table("t", ["k"], num_partitions=2)
        for verb, keys in (("upsert", range(1001)), ("delete", range(batch, batch + 3))):
            getattr(table, verb)(frame(k=[*keys]))
        state._attempt.commit()
    assert tried == [("delete", True)] * 3


def test_a_small_call_of_another_verb_does_not_spread_large_ones(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upserts of many packs go through a shuffle from the third batch on, whatever deletes do."""
    shuffled: list[bool] = []
    monkeypatch.setattr(VerbHints, "learn_size", lambda *given: None)  # tasks do it all
    monkeypatch.setattr(compaction, "DRIVER_BYTES", 8000)

    def repartition(rows: PlainFrame, column: str) -> PlainFrame:
        shuffled.append(True)
        return PlainFrame(rows.draw, [rows.rows])

    monkeypatch.setattr(PlainFrame, "repartition", repartition)
    hints, counts = TableHints(), []
    for batch in range(5):
        state = begin(store, hints)
        table = state.table("t", ["k"], num_partitions=2, combine={"n": "sum"})
        parts = [pa.table({"k": range(task, 8000, 4), "n": range(2000)}) for task in range(4)]
        shuffled.clear()
        table.upsert(PlainFrame(random.Random(1), parts))  # type: ignore[arg-type]
        counts.append(len(shuffled))
        table.delete(frame(k=[batch]))
        state._attempt.commit()
    assert counts == [1, 0, 1, 1, 1], "the first ones are whole partitions, the second ones spread"


def test_each_verb_has_its_number_of_tasks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int | None] = []
    together = table_changes.bring_together

    def spy(rows: Any, order: list[str], tasks: int | None) -> Any:
        given.append(tasks)
        return together(rows, order, tasks)

    monkeypatch.setattr(table_changes, "bring_together", spy)
    monkeypatch.setattr(VerbHints, "learn_size", lambda *given: None)  # tasks do it all
    hints = TableHints()
    hints.verbs["apply"].apply_tasks = 5
    state = begin(store, hints)
    table = state.table("t", ["k"], num_partitions=2)
    table.upsert(frame(k=[1]))
    table.apply(frame(k=[1, 2]), lambda rows, known: rows)
    table.first_seen(frame(k=[2, 3]), order_by=[])
    table.apply(frame(k=[1, 2]), lambda rows, known: rows)
    state._attempt.commit()
    assert given == [5, None, 5]


def test_few_large_rows_of_a_call_count_beside_many_small_ones_of_another() -> None:
    hints = VerbHints()
    hints.learn_size(60_000, 2 << 20)
    hints.learn_size(5, 3_500_000)
    hints.begin_batch()
    assert 0 < hints.driver_rows * 700_000 <= 4 * table_hints.MAX_DRIVER_BYTES


def test_the_largest_call_of_a_verb_counts() -> None:
    """Whichever comes first in the batch."""
    for sizes in ([(100, 100), (90_000, 100)], [(90_000, 100), (100, 100)]):
        hints = VerbHints(driver_rows=1400)
        for size in sizes:
            hints.learn_size(*size)
            assert hints.driver_rows == 1400, "until the batch ends"
        hints.begin_batch()
        assert hints.driver_rows == 0
        hints.begin_batch()
        assert hints.driver_rows == 0, "a batch without a call teaches nothing"
        hints.learn_size(100, 100)
        hints.begin_batch()
        assert hints.driver_rows == 1400
    hints = VerbHints()
    for packs, seconds in ((0, 0.1), (2, 60.0), (0, 0.2)):
        hints.learn_packs(packs)
        hints.learn_from_apply(seconds, 8)
    hints.begin_batch()
    assert (hints.shuffle_first, hints.apply_tasks) == (True, 8)
