"""Expiry of rows: what is past its time by the job's clock is in no read, and is never combined with what follows."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.cli.app import checkpointer as command
from pyspark_checkpointer.errors import DependencyError, DigestMismatchError, IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests.map_expiry import MAX_AFTER_US
from pyspark_checkpointer.manifests.model import Clock
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import Expire, State, diff, read_state, stateful
from pyspark_checkpointer.spark.failure import is_damage
from pyspark_checkpointer.spark.versions import HAS_DATA_SOURCES
from pyspark_checkpointer.storage.base import DAMAGE, ObjectNotFoundError
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.table import due_rows, object_files
from pyspark_checkpointer.table.hashing import partitions_by_type
from pyspark_checkpointer.table.object_files import ObjectFiles
from pyspark_checkpointer.table.version import TableVersion
from tests.spark.conftest import Job
from tests.spark.expiring import COLUMNS, DAY, MICROSECOND, RULE, START, UTC_TIME, Place, given, keys
from tests.spark.tables import rows

MAX_AFTER = timedelta(microseconds=MAX_AFTER_US)


def test_a_row_is_gone_once_the_clock_has_reached_its_time(place: Place) -> None:
    place.batch(0, given((1, 0), (2, 1), (3, None)))
    state = place.begin()
    state.advance_clock(START + 10 * DAY - MICROSECOND)
    place.commit(state)
    assert keys(place.rows()) == [1, 2, 3]
    place.batch(10)
    assert keys(place.rows()) == [2, 3]
    assert keys(place.rows(keys=[{"k": 1}, {"k": 2}])) == [2]
    assert place.rows(columns=["k"]) == [{"k": 2}, {"k": 3}]  # the time is not asked for
    place.batch(1000)
    assert keys(place.rows()) == [3]  # null never expires


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), UTC_TIME])
def test_the_types_of_a_time(place: Place, kind: pa.DataType) -> None:
    times = [START.date(), START.date() + DAY] if kind == pa.date32() else [START, START + DAY]
    place.batch(0, pa.table({"k": [1, 2], "seen": pa.array(times).cast(kind)}))
    place.batch(10.5)
    assert keys(place.rows()) == [2]


def test_the_clock_of_a_batch_that_does_not_open_the_table_counts(place: Place) -> None:
    place.batch(0, given((1, 0)))
    place.commit(place.begin(10))
    assert keys(place.rows()) == []


def test_what_expired_is_not_combined_with_what_follows(place: Place) -> None:
    """Also where two rows of one key come in two tasks, and where a row keeps columns."""
    combine = {"n": "sum", "seen": "max"}
    place.batch(0, given((1, 0), (2, 0), n=[5, 5]), combine=combine)
    state = place.begin(10)
    table = state.table("t", ["k"], num_partitions=2, combine=combine, expire=RULE)  # type: ignore[arg-type]
    table.upsert(place.frame(given((1, 10), n=[1]), given((1, 9), n=[2])))
    table.upsert(place.frame(given((1, 10), n=[4])))
    place.commit(state)
    assert place.rows() == [{"k": 1, "n": 7, "seen": START + 10 * DAY}]
    # A row that is late counts where the key has a row, and begins none.
    place.batch(15, given((1, 1), (2, 1), n=[10, 10]), combine=combine)
    place.batch(15, given((2, 15), n=[1]), combine=combine)
    assert [(row["k"], row["n"]) for row in place.rows()] == [(1, 17), (2, 1)]


def test_whether_a_row_below_is_expired_is_told_by_bounds_that_are_read_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_checkpointer.compaction.SMALL_BYTES", 1)
    monkeypatch.setattr(due_rows, "_lowest_times", {})
    fetched, opened = list[str](), list[str]()
    fetch, open_tail = ObjectFiles.data, ObjectFiles.open

    async def data(self: ObjectFiles, artifact: Any) -> bytes:
        fetched.append(artifact.path)
        return await fetch(self, artifact)

    async def bounds(self: ObjectFiles, artifact: Any) -> Any:
        opened.append(artifact.path)
        return await open_tail(self, artifact)

    monkeypatch.setattr(ObjectFiles, "data", data)
    monkeypatch.setattr(ObjectFiles, "open", bounds)
    combine = {"n": "sum"}
    place.batch(0, given(*((k, 1) for k in range(100)), n=[1] * 100), combine=combine)
    # Changes without times, and then with such as expire first.
    place.batch(1, pa.table({"k": [1, 2], "n": [10, 10]}), combine=combine)
    place.batch(2, given((3, 0), n=[10]), combine=combine)
    for day in (3, 4):
        place.batch(day, given((1, day), (4, day), (200, day), n=[100, 100, 100]), combine=combine)
    assert not fetched
    assert len(opened) == len(set(opened)) == 4  # The pack of the last batch was not below anything yet.
    # Keys 3 and 2 are expired at different times, each by another object of their chains.
    place.batch(10, given((3, 10), (2, 10), n=[1000, 1000]), combine=combine)
    assert fetched
    place.batch(11, given((5, 11), (1, 11), n=[1000, 1000]), combine=combine)
    found = {row["k"]: row["n"] for row in place.rows()}
    assert {k: found.get(k) for k in (1, 2, 3, 4, 5, 6, 200)} == {
        1: 1211,
        2: 1011,
        3: 1000,
        4: 201,
        5: 1000,
        6: None,
        200: 200,
    }


@pytest.mark.parametrize("first", [START, datetime(1969, 12, 25, tzinfo=UTC)])
@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), UTC_TIME])
def test_a_row_below_expires_at_the_same_moment_in_each_type(place: Place, kind: pa.DataType, first: datetime) -> None:
    def at(*days: int) -> pa.Array:
        # A row without a time lies in the same row groups, and never expires.
        times = pa.array([*(first + day * DAY for day in days), None], UTC_TIME)
        return times.cast(pa.timestamp("us")).cast(kind)

    def batch(clock: datetime, *days: int) -> None:
        state = place.begin()
        state.advance_clock(clock)
        table = state.table("t", ["k"], num_partitions=1, combine={"n": "sum"}, expire=RULE)
        rows = {"k": [0, 1, 2, 3], "seen": at(*days), "n": [1] * 4}
        table.upsert(place.frame(pa.table(rows)))
        place.commit(state)

    batch(first, 0, 1, 2)
    batch(first + 11 * DAY - MICROSECOND, 11, 11, 11)
    assert [row["n"] for row in place.rows()] == [1, 2, 2, 2]
    batch(first + 21 * DAY, 30, 30, 30)
    assert [row["n"] for row in place.rows()] == [1, 1, 1, 3]


def test_rows_from_before_the_column_of_times_are_not_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.batch(0, pa.table({"k": [1, 2], "n": [1, 1]}), combine={"n": "sum"}, expire=None)
    fetched = list[str]()
    fetch = ObjectFiles.data

    async def data(self: ObjectFiles, artifact: Any) -> bytes:
        fetched.append(artifact.path)
        return await fetch(self, artifact)

    monkeypatch.setattr(ObjectFiles, "data", data)
    for day in (20, 21):
        place.batch(day, given((1, day), n=[1]), combine={"n": "sum"})
    assert not fetched
    place.batch(40, given((1, 40), (2, 40), n=[1, 1]), combine={"n": "sum"})
    assert fetched
    assert [row["n"] for row in place.rows()] == [1, 2]


def test_a_time_is_not_taken_for_a_field_whose_path_is_its_name(place: Place) -> None:
    rule = Expire("a.b", after=10 * DAY)
    far = pa.array([{"b": START + 1000 * DAY}], pa.struct([("b", UTC_TIME)]))
    due = []
    for day, n in ((0, 5), (11, 1)):
        state = place.begin(day)
        table = state.table("t", ["k"], num_partitions=1, combine={"n": "sum"}, expire=rule)
        due += [] if day == 0 else table.expired().rows["k"].to_pylist()  # type: ignore[attr-defined]
        time = pa.array([START + day * DAY], UTC_TIME)
        table.upsert(place.frame(pa.table({"k": [1], "a": far, "a.b": time, "n": [n]})))
        table.compact() if day == 0 else None
        place.commit(state)
    assert due == [1]
    assert [row["n"] for row in place.rows()] == [1]


def test_columns_that_a_row_keeps_are_those_of_a_living_row(place: Place) -> None:
    place.batch(0, given((1, 0), (2, 5), title=["old", "old"]))
    place.batch(10, pa.table({"k": [1, 2], "n": [1, 1]}))
    found = [(row["k"], row["title"], row["seen"] and row["seen"].day) for row in place.rows()]
    assert found == [(1, None, None), (2, "old", 6)]


def test_apply_sees_no_expired_row(place: Place) -> None:
    combine = {"n": "sum"}
    place.batch(0, given((1, 0), n=[5]), combine=combine)
    state = place.begin(10)
    table = state.table("t", ["k"], num_partitions=2, combine=combine, expire=RULE)  # type: ignore[arg-type]
    saw = []

    def add(rows: pa.Table, below: pa.Table) -> pa.Table:
        saw.append(below.num_rows)
        return rows

    table.apply(place.frame(given((1, 10), n=[1])), add)
    place.commit(state)
    assert (set(saw), [row["n"] for row in place.rows()]) == ({0}, [1])


@pytest.mark.parametrize("later", [None, Expire("seen", after=20 * DAY), Expire("other", after=DAY)])
def test_rows_that_expired_do_not_come_back_by_another_rule(place: Place, later: Expire | None) -> None:
    other = pa.array([START + 100 * DAY] * 2, UTC_TIME)
    place.batch(0, given((1, 0), (2, 8), other=other))
    place.batch(10)
    # At day 18 row 2 would be expired by the old rule too, but the last checkpoint was at day 10.
    place.batch(18, expire=later)
    assert keys(place.rows()) == [2]
    place.batch(18, given((1, 17)), expire=later)
    assert keys(place.rows()) == [1, 2]


def test_rows_that_expired_do_not_come_back_by_a_column_that_is_new(place: Place) -> None:
    place.batch(0, given((1, 0), (2, 8)))
    place.batch(10)
    later = pa.array([START + 100 * DAY], UTC_TIME)
    place.batch(11, given((3, 11), until=later), expire=Expire("until", after=DAY))
    assert keys(place.rows()) == [2, 3]


def test_rows_expire_sooner_without_a_rewrite(place: Place) -> None:
    place.batch(0, given((1, 0), (2, 8)))
    before = _paths(place.client)
    place.batch(9, expire=Expire("seen", after=5 * DAY))
    assert (keys(place.rows()), _paths(place.client)) == ([2], before)


def _paths(client: Checkpointer) -> set[str]:
    restored = client.copy().restore()
    assert restored is not None
    operator = restored.operator("t")
    return {artifact.path for number in operator.partitions for artifact in operator.chain(number)}


def test_compaction_removes_what_expired(place: Place) -> None:
    place.batch(0, given(*((k, 0) for k in range(100))), given((1000, 20)))
    state = place.begin(10)
    state.table("t", ["k"], num_partitions=2, expire=RULE).compact()
    place.commit(state)
    restored = place.client.copy().restore()
    assert restored is not None
    operator = restored.operator("t")
    assert sum(artifact.records for number in operator.partitions for artifact in operator.chain(number)) == 1


def test_a_partition_that_is_too_small_for_a_snapshot_forgets_what_expired(place: Place) -> None:
    for day in range(60):
        place.batch(day, given((day, day)))
    restored = place.client.copy().restore()
    assert restored is not None
    operator = restored.operator("t")
    chains = [operator.chain(number) for number in operator.partitions]
    assert all(chain[0].length == 0 for chain in chains), "no snapshot was written"
    assert keys(place.rows()) == [*range(50, 60)]
    assert sum(artifact.records for chain in chains for artifact in chain) < 30


def _stored(place: Place) -> int:
    """Return the rows and changes of all chains."""
    restored = place.client.copy().restore()
    assert restored is not None
    assert restored.manifest is not None
    version = TableVersion.of("t", restored.manifest.operators["t"], restored.manifest.clock)
    return sum(artifact.records for chain in version.chains.values() for artifact in chain)


@pytest.mark.parametrize(("partitions", "has_snapshots"), [(2, True), (2, False), (40, False)])
def test_partitions_that_get_no_rows_any_more_forget_what_expired(
    place: Place, partitions: int, has_snapshots: bool
) -> None:
    """Nothing but the clock says that their rows are old: they have a snapshot, or a delta in a pack of many."""
    due = []
    for day, some in ((0, [(k, 0) for k in range(10_000)]), *((20, [(1, 20)]) for _ in range(60))):
        state = place.begin(day)
        table = state.table("t", ["k"], num_partitions=partitions, expire=RULE)
        table.upsert(place.frame(given(*some)))
        if has_snapshots and day == 0:
            table.compact()
        due += table.expired().rows["k"].to_pylist()  # type: ignore[attr-defined]
        place.commit(state)
    assert sorted(due) == [*range(10_000)]
    assert keys(place.rows()) == [1]
    assert _stored(place) < 100


def _damage(place: Place, path: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change a byte of an object, and forget what the process has read of it."""
    store = MemoryStore(place.client.root)
    data = bytearray(run_sync(store.get(path)).data)
    data[at] ^= 1
    run_sync(store.delete([path]))
    run_sync(store.put(path, data))
    monkeypatch.setattr(object_files, "_opened", {})
    monkeypatch.setattr(due_rows, "_lowest_times", {})


def _partition_of(key: int) -> int:
    """Return the partition of a key in a table with two of them."""
    return int(partitions_by_type(given((key, 0)).select(["k"]), 2)[0])


def _compacted(place: Place, partitions: int, rows: int) -> None:
    state = place.begin(0)
    table = state.table("t", ["k"], num_partitions=partitions, expire=RULE)
    table.upsert(place.frame(given(*((k, 0) for k in range(rows)))))
    table.compact()
    place.commit(state)


@pytest.mark.parametrize(
    ("at", "added", "is_dropped", "told"),
    [
        (-20, [], False, "rows that expired were not looked for in objects that cannot be read"),
        (20, [], True, ""),
        (20, [0], True, ""),
        (20, [None], False, "partitions that cannot be read keep the rows that expired"),
    ],
    ids=["tail", "page", "page below a delta", "page below a living row"],
)
def test_a_damaged_object_that_nobody_needs_stops_no_batch(
    place: Place,
    at: int,
    added: list[int | None],
    is_dropped: bool,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No batch reads the old rows. Bounds that are intact say that none of them lives, and the chain goes unread."""
    _compacted(place, 2, 10_000)
    ours = {_partition_of(k): k for k in range(10)}
    place.batch(0, given((ours[0], 0), *((ours[1], day) for day in added)))
    restored = place.client.copy().restore()
    assert restored is not None
    old = restored.operator("t").chain(1)[0]
    _damage(place, old.path, at, monkeypatch)
    for _ in range(20):
        place.batch(20, given((ours[0], 20)))
    assert keys(place.rows(keys=[{"k": ours[0]}])) == [ours[0]]
    assert (old.path not in _paths(place.client)) is is_dropped
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert bool(said) is bool(told)
    assert all(told in one and old.path in one for one in said)


@pytest.mark.parametrize("at", [-20, 20], ids=["tail", "page"])
def test_one_damaged_object_does_not_keep_the_expired_rows_of_others(
    place: Place, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same batches look at four partitions each, which still have some rows that live."""
    place.client = Checkpointer(place.client.root, max_chain=2)
    _compacted(place, 8, 4_000)
    place.batch(0, given(*((k, None) for k in range(100))), num_partitions=8)
    restored = place.client.copy().restore()
    assert restored is not None
    chains = restored.operator("t")
    _damage(place, chains.chain(3)[0].path, at, monkeypatch)
    before = {number: chains.chain(number)[0].path for number in chains.partitions}
    for _ in range(12):
        place.batch(20, given((1, 20)), num_partitions=8)
    assert [number for number, path in before.items() if path in _paths(place.client)] == [3]


def _in_task(name: str) -> PySparkException:
    """What Spark raises in the driver for an error of a task."""
    return PySparkException(
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times: PythonException: Traceback (most recent "
        'call last):\n  File "job.py", line 1, in work\npyspark_checkpointer.storage.base.ObjectNotFoundError: gone\n\n'
        "During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
        f'  File "job.py", line 2, in work\n{name}: told\n\nDriver stacktrace:\n\tat org.apache.spark.scheduler'
    )


@pytest.mark.parametrize(
    ("error", "jobs"),
    [
        (DigestMismatchError("other bytes"), 7),
        (ObjectNotFoundError("gone"), 7),
        (_in_task("pyspark_checkpointer.errors.DigestMismatchError"), 7),
        (_in_task("pyspark_checkpointer.storage.base.UndecryptableError"), 7),
        (DependencyError("no answer"), 1),
        (_in_task("pyspark_checkpointer.errors.DependencyError"), 1),
        (_in_task("MemoryError"), 1),
        (PySparkException("Task 0 failed 4 times: ExecutorLostFailure (executor 1 exited)"), 1),
    ],
    ids=["bytes", "gone", "bytes in a task", "key in a task", "outage", "outage in a task", "memory", "lost executor"],
)
def test_only_damage_is_looked_for_in_fewer_partitions(
    place: Place, error: Exception, jobs: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In an outage each job waits for the store, as often as Spark tries a task, and the batch does not end."""
    asked, compacted = [], set[int]()
    changes = place.begin(0).table("t", ["k"], num_partitions=8, expire=RULE)._changes

    def compact(keep: Mapping[int, int]) -> None:
        asked.append(keep)
        if 3 in keep:
            raise error
        compacted.update(keep)

    monkeypatch.setattr(changes, "_compact", compact)
    changes._compact_readable(dict.fromkeys(range(8), 0))
    assert len(asked) == jobs
    assert compacted == ({*range(8)} - {3} if jobs > 1 else set())
    assert caplog.text.count("partitions that cannot be read keep the rows that expired") == 1


def test_the_text_of_a_task_names_each_kind_of_damage() -> None:
    def kinds(kind: type[Exception]) -> Iterator[type[Exception]]:
        yield kind
        for other in kind.__subclasses__():
            yield from kinds(other)

    for kind in (found for damage in DAMAGE for found in kinds(damage)):
        if kind.__module__.startswith("pyspark_checkpointer."):
            assert is_damage(kind("told"))
            assert is_damage(_in_task(f"{kind.__module__}.{kind.__name__}"))


def test_a_look_for_expired_rows_asks_once_for_an_object_of_many_partitions(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batch(day: int, keys: int) -> None:
        state = place.begin(day)
        table = state.table("t", ["k"], num_partitions=40, expire=RULE)
        table.upsert(place.frame(given(*((k, day) for k in range(keys)))))
        place.commit(state)

    place.client = Checkpointer(place.client.root, max_chain=2)
    batch(0, 1_000)
    (pack,) = _paths(place.client)
    monkeypatch.setattr(object_files, "_opened", {})
    monkeypatch.setattr(due_rows, "_lowest_times", {})
    asked = Counter[str]()
    get_range = MemoryStore.get_range

    async def counted(self: MemoryStore, path: str, offset: int, length: int) -> bytes:
        asked[path] += 1
        return await get_range(self, path, offset, length)

    monkeypatch.setattr(MemoryStore, "get_range", counted)
    batch(20, 1)
    assert asked[pack] == 1


def test_a_snapshot_is_written_again_once_most_of_its_row_groups_are_past(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_checkpointer.table.parquet_encode.ROW_GROUP_ROWS", 100)
    place.batch(0, given(*((k, k / 1000) for k in range(10_000))))
    state = place.begin(0)
    state.table("t", ["k"], num_partitions=2, expire=RULE).compact()
    place.commit(state)
    before = _paths(place.client)
    for _ in range(5):
        place.batch(14, given((1, 14)))
    assert before <= _paths(place.client), "two fifths are past"
    for _ in range(20):
        place.batch(17, given((1, 17)))
    assert not before & _paths(place.client)
    assert 2_999 < _stored(place) < 3_100
    assert len(place.rows()) == 3_000


def test_rows_that_live_are_not_written_again_since_others_expired(place: Place) -> None:
    """All some of the snapshots are past, and as many changes may have moved their times since."""
    for day in (0, 5):
        place.batch(day, given(*((k, day) for k in range(10_000))), combine={"seen": "max"})
    before = _paths(place.client)
    for _ in range(5):
        place.batch(11, given((1, 11)), combine={"seen": "max"})
    assert before <= _paths(place.client)
    assert len(place.rows()) == 10_000


def test_a_row_without_a_time_keeps_its_row_group(place: Place) -> None:
    place.batch(0, given(*((k, 0) for k in range(10_000)), *((k, None) for k in range(10_000, 10_100))))
    before = _paths(place.client)
    for _ in range(20):
        place.batch(20, given((1, 20)))
    assert before <= _paths(place.client)
    assert len(place.rows()) == 101


def test_due_rows_are_returned_once(place: Place) -> None:
    due = []
    for number, day in enumerate([0, 5, 10, 10, 11, 30]):
        state = place.begin(day)
        table = state.table("t", ["k"], num_partitions=2, expire=RULE)
        if number == 0:
            table.upsert(place.frame(given((1, 0), (2, 1), (3, 2), (4, None))))
        if number == 4:
            table.upsert(place.frame(given((2, 11))))  # it begins anew, and what it was is due all the same
        due.append([(row["k"], row["seen"].day) for row in table.expired().rows.sort_by("k").to_pylist()])  # type: ignore
        place.commit(state)
    assert due == [[], [], [(1, 1)], [], [(2, 2)], [(2, 12), (3, 3)]]


def test_due_rows_are_found_by_the_bounds_of_row_groups(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that grow with time: a few due rows are read alone, and rows of changes with what lies below them."""
    monkeypatch.setattr("pyspark_checkpointer.table.parquet_encode.ROW_GROUP_ROWS", 100)
    monkeypatch.setattr("pyspark_checkpointer.compaction.SMALL_BYTES", 1)
    combine = {"n": "sum", "seen": "max"}
    first = given(*((k, k / 1000) for k in range(10_000)), n=[k % 7 for k in range(10_000)])
    state = place.begin(0)
    table = state.table("t", ["k"], num_partitions=2, combine=combine, expire=RULE)  # type: ignore[arg-type]
    table.upsert(place.frame(first))
    table.compact()
    place.commit(state)
    # A late change of a row that lives on, and one of a row that is due.
    place.batch(5, given((9_000, 0), (4, 0), n=[100, 100]), combine=combine)
    read, sizes = list[int](), list[int]()
    opened = ObjectFiles.fetch

    async def fetch(self: ObjectFiles, artifact: Any, chosen: Any) -> Any:
        read.append(sum(length for _, length in chosen))
        sizes.append(artifact.size)
        return await opened(self, artifact, chosen)

    monkeypatch.setattr(ObjectFiles, "fetch", fetch)
    state = place.begin(10.005)
    table = state.table("t", ["k"], num_partitions=2, combine=combine, expire=RULE)  # type: ignore[arg-type]
    due = table.expired().rows.sort_by("k").to_pylist()  # type: ignore[attr-defined]
    assert [(row["k"], row["n"]) for row in due] == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 104), (5, 5)]
    assert 0 < sum(read) < 0.05 * sum(set(sizes)), read


def test_first_seen_returns_each_key_once_until_it_expires(place: Place) -> None:
    found = []
    for day, ks in ((0, [3, 1, 3, 2]), (1, [2, 4, 4]), (10, [1, 4])):
        state = place.begin(day)
        table = state.table("t", ["k"], num_partitions=2, expire=RULE)
        times = pa.array([START + day * DAY] * len(ks), UTC_TIME)
        frame = place.frame(pa.table({"k": ks, "seen": times, "at": list(range(len(ks)))}))
        new = table.first_seen(frame, order_by=["at"])
        found.append([(row["k"], row["at"]) for row in new.rows.sort_by("k").to_pylist()])  # type: ignore[attr-defined]
        place.commit(state)
    assert found == [[(1, 1), (2, 3), (3, 0)], [(4, 1)], [(1, 0)]]
    assert [(row["k"], set(row)) for row in place.rows()] == [(1, {"k", "seen"}), (4, {"k", "seen"})]


def test_first_seen_returns_a_row_that_has_expired_when_it_comes_and_does_not_remember_it(place: Place) -> None:
    for day in (10, 11):
        state = place.begin(day)
        table = state.table("t", ["k"], num_partitions=2, expire=RULE)
        new = table.first_seen(place.frame(pa.table({"k": [1], "seen": pa.array([START], UTC_TIME)})))
        assert new.rows["k"].to_pylist() == [1]  # type: ignore[attr-defined]
        place.commit(state)
        assert place.rows() == []


@pytest.mark.parametrize("use", ["nothing", "expired", "read", "apply"])
def test_a_table_adopts_a_rule_by_a_column_that_the_job_declares(place: Place, use: str) -> None:
    place.batch(0, pa.table({"k": pa.array([1], pa.int32()), "n": [5]}), expire=None)
    state = place.begin(1)
    columns = StructType([*COLUMNS, StructField("n", LongType())])
    table = state.table("t", ["k"], num_partitions=2, schema=columns, expire=RULE)
    if use == "apply":
        table.apply(place.frame(given((1, 1))), lambda rows, state: rows)
    elif use != "nothing":
        assert getattr(table, use)().rows.num_rows == (use == "read")
    place.commit(state)
    assert place.rows() == [{"k": 1, "n": 5, "seen": START + DAY if use == "apply" else None}]
    place.batch(30)
    assert keys(place.rows()) == ([] if use == "apply" else [1])


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expire", "message"),
    [
        (Expire("nothing", after=DAY), "there would be no such column; there are k, seen"),
        (Expire("k", after=DAY), "the column is long, not timestamp or timestamp_ntz or date"),
    ],
)
def test_a_column_that_is_no_time_is_refused(place: Place, expire: Expire, message: str) -> None:
    with pytest.raises(IllegalArgumentError, match=message):
        place.batch(0, given((1, 0)), expire=expire)
    place.client = place.client.copy()
    place.number = -1
    place.batch(0, given((1, 0)), expire=None)
    # Nothing is written, so nothing brings the column.
    with pytest.raises(IllegalArgumentError, match=message):
        place.batch(1, expire=expire)


def test_the_column_of_a_time_cannot_go(place: Place) -> None:
    place.batch(0, given((1, 0)))
    without = pa.table({"k": [1]})
    attempts: list[Callable[[Any], None]] = [
        lambda table: table.drop_columns(["seen"]),
        lambda table: table.replace(place.frame(without)),
    ]
    for attempt in attempts:
        state = place.begin(1)
        with pytest.raises(IllegalArgumentError, match="there would be no such column"):
            attempt(state.table("t", ["k"], num_partitions=2, expire=RULE))
        state._attempt.abort()
    assert keys(place.rows()) == [1]


@pytest.mark.parametrize(
    ("column", "after"),
    [("", DAY), (5, DAY), ("a", timedelta(0)), ("a", -DAY), ("a", MAX_AFTER + MICROSECOND), ("a", 5)],
)
def test_rules_that_say_nothing_are_refused(column: Any, after: Any) -> None:
    with pytest.raises(IllegalArgumentError, match=r"Expire\("):
        Expire(column, after=after)


def test_the_longest_time_is_stored_and_read(place: Place) -> None:
    place.batch(0, given((1, 0)), expire=Expire("seen", after=MAX_AFTER))
    assert keys(place.rows()) == [1]


@pytest.mark.parametrize(
    "rule",
    [None, [], {"column": "seen"}, *({"column": "seen", "after_us": us} for us in (0, -1, True, 1.0, "1", 10**19))],
)
def test_a_rule_in_a_manifest_that_contradicts_itself_is_refused(place: Place, rule: object) -> None:
    place.batch(0, given((1, 0)))
    restored = place.client.restore()
    assert restored is not None
    assert restored.manifest is not None
    operator = restored.manifest.operators["t"]
    with pytest.raises(MalformedError, match="the manifest has no clock"):
        TableVersion.of("t", operator, None)
    operator.schema["expire"] = rule
    with pytest.raises(MalformedError, match="expected the schema of a table"):
        TableVersion.of("t", operator, Clock(START, "job"))


# ---- on Spark --------------------------------------------------------------------------------------------------------


def test_sessions_end_on_a_real_query_and_every_reader_agrees(job: Job, tmp_path: Path) -> None:
    """The clock is the event time of the batch; a session ends three seconds after its last event."""
    ended: list[Any] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.advance_clock(batch.agg(F.max(F.timestamp_seconds("amount"))).first()[0])  # type: ignore[index]
        table = state.table(
            "sessions",
            ["key"],
            num_partitions=2,
            combine={"n": "sum", "last": "max"},
            expire=Expire("last", after=timedelta(seconds=3)),
        )
        new = batch.groupBy("key").agg(F.count("*").alias("n"), F.max(F.timestamp_seconds("amount")).alias("last"))
        table.upsert(new)
        ended.append([(key, n) for key, n, _ in rows(table.expired())])

    for fed in ([("a", 10), ("b", 11), ("a", 12)], [("c", 14)], [("a", 15), ("b", 15)], [("z", 15)]):
        job.feed(*fed)
        job.run(update)
    assert ended == [[], [("b", 1)], [("a", 2)], []]
    spark = job.spark
    assert [(key, n) for key, n, _ in rows(read_state(spark, job.root, "sessions"))] == [
        ("a", 1),
        ("b", 1),
        ("c", 1),
        ("z", 1),
    ]
    if HAS_DATA_SOURCES:
        source = spark.read.format("checkpointer").option("path", job.root).option("operator", "sessions").load()
        assert source.count() == 4
        assert source.where("key = 'b'").count() == 1
    changes = rows(diff(spark, job.root, "epoch=0", "epoch=2", "sessions").select("key", "change"))
    assert changes == [("a", "updated"), ("b", "updated"), ("c", "inserted")]
    changes = rows(diff(spark, job.root, "epoch=0", "epoch=1", "sessions").select("key", "change"))
    assert changes == [("b", "expired"), ("c", "inserted")]
    for epochs, counts in (((0, 1), {"expired": 1, "inserted": 1}), ((0, 2), {"updated": 2, "inserted": 1})):
        said = CliRunner().invoke(command, ["diff", job.root, *(f"epoch={e}" for e in epochs), "sessions", "--json"])
        found = json.loads(said.stdout)
        assert {name: found[name] for name in counts} == counts, said.output
    said = CliRunner().invoke(command, ["show", job.root, "--json"])
    assert json.loads(said.stdout)["clock"] == "1970-01-01T00:00:15Z"
