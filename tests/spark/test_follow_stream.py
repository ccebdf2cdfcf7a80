"""The stream that follows a table, asked as Spark asks it: what it does where retention and repairs have been."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 4.0 is the first with data sources in Python")

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.client import base
from pyspark_checkpointer.errors import DependencyError, IllegalArgumentError, InvalidStateError, RetiredError
from pyspark_checkpointer.spark.change_feed import FeedRange
from pyspark_checkpointer.spark.change_source import FeedStreamReader, input_partitions, read_part
from pyspark_checkpointer.spark.datasource import CheckpointerSource
from pyspark_checkpointer.spark.state import State
from tests.table.plain_store import Store, frame, opened, plain_store, upsert

NEWEST = RetentionPolicy(keep_last=1, grace=timedelta(0))


@pytest.fixture
def store() -> Iterator[Store]:
    with plain_store() as made:
        yield made


def stream(store: Store, **options: str) -> FeedStreamReader:
    source = CheckpointerSource({"path": store.client.root, "view": "changes", "operator": "t", **options})
    reader = source.streamReader(source.schema())  # type: ignore[arg-type]
    assert isinstance(reader, FeedStreamReader)
    return reader


def first(store: Store) -> str:
    """Return the id of the first checkpoint."""
    return str(store.client.list_checkpoints()[0])


def read(reader: FeedStreamReader, start: dict[str, str], end: dict[str, str]) -> list[tuple[Any, ...]]:
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [tuple(row.values())[3:] for batch in batches for row in batch.to_pylist()]


def test_a_stream_goes_on_after_the_beginning_was_retired(store: Store) -> None:
    store.batch(upsert(k=[1]))
    reader = stream(store, after=first(store))
    began = reader.initialOffset()
    assert read(stream(store), {"checkpoint": ""}, reader.latestOffset()) == [("insert", 1)]
    for key in (2, 3):
        store.batch(upsert(k=[key]))
    read_until = reader.latestOffset()
    assert read(reader, began, read_until) == [("insert", 2), ("insert", 3)]
    store.client.clean(NEWEST)
    store.batch(upsert(k=[4]))
    # Started again, with the options that it was given then: what is before its offset is not needed.
    for options in ({}, {"after": "epoch=0"}, {"after": began["checkpoint"]}):
        again = stream(store, **options)
        assert read(again, read_until, again.latestOffset()) == [("insert", 4)]
    with pytest.raises(RetiredError, match="oldest checkpoint that they can be read after"):
        read(stream(store), {"checkpoint": ""}, reader.latestOffset())


def test_a_parent_that_is_retired_while_its_changes_are_read_is_no_damage(store: Store) -> None:
    store.batch(upsert(k=[1]))
    store.batch(upsert(k=[2]))
    after = str(store.client.read_latest())
    store.batch(lambda state: state.table("t", ["k"]).compact())
    feed = FeedRange.of(store.client, "t", after, "latest").feed(None)
    store.client.clean(NEWEST)
    with pytest.raises(RetiredError, match=f"{after} was retired meanwhile"):
        for part in input_partitions(feed):
            list(read_part(store.client, part))


def test_an_idle_stream_opens_no_store_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.batch(upsert(k=[1]))
    reader = stream(store)
    reader.latestOffset()
    opened_stores: list[object] = []
    monkeypatch.setattr(base, "open_store", lambda *given, **options: opened_stores.append(given))
    for _ in range(20):
        assert reader.latestOffset()
    assert opened_stores == []


def test_a_task_that_does_not_reach_the_folder_says_so(store: Store, tmp_path: Path) -> None:
    """Refuse an empty folder of the task's machine, which is not the driver's."""
    store.batch(upsert(k=[1, 2]))
    ids = store.client.list_checkpoints()
    feed = FeedRange.of(store.client, "t", None, str(ids[-1])).feed(None)
    (part,) = input_partitions(feed)
    assert sum(batch.num_rows for batch in read_part(store.client, part)) == 2
    here = Checkpointer(tmp_path / "not mounted")
    with pytest.raises(RetiredError):
        list(read_part(here, part))
    part.driver_host = "elsewhere"  # type: ignore[attr-defined]
    with pytest.raises(InvalidStateError, match="not mounted: a folder of elsewhere, this task runs elsewhere"):
        list(read_part(here, part))
    source = CheckpointerSource({"path": store.client.root, "operator": "t"})
    reader: Any = source.reader(source.schema())
    (part,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(part)) == 2
    reader._request = replace(reader._request, root=here.root)
    with pytest.raises(RetiredError):
        list(reader.read(part))
    part.driver_host = "elsewhere"
    with pytest.raises(InvalidStateError, match="not mounted: a folder of elsewhere, this task runs elsewhere"):
        list(reader.read(part))


def test_a_stream_that_comes_too_late_is_told_where_to_begin(store: Store) -> None:
    store.batch(upsert(k=[1]))
    read_until = stream(store).latestOffset()
    for key in (2, 3):
        store.batch(upsert(k=[key]))
    store.client.clean(NEWEST)
    store.batch(upsert(k=[4]))
    oldest = store.client.list_checkpoints()[0]
    late = stream(store)
    with pytest.raises(RetiredError, match="though this stream goes on from there") as caught:
        read(late, read_until, late.latestOffset())
    assert f"option('after', '{oldest}')" in str(caught.value)
    fresh = stream(store, after=str(oldest))
    assert read(fresh, fresh.initialOffset(), fresh.latestOffset()) == [("insert", 4)]


def test_a_stream_waits_while_the_table_is_dropped(store: Store) -> None:
    def drop(state: State) -> None:
        state.drop("t")

    store.batch(upsert(k=[1]))
    reader = stream(store)
    offsets = [reader.initialOffset()]
    for work in (drop, lambda state: None, upsert(k=[2]), opened()):
        store.batch(work)
        offsets.append(reader.latestOffset())
    found = [read(reader, *pair) for pair in pairwise(offsets)]
    assert found == [[("insert", 1), ("delete", 1)], [], [("insert", 2)], []]
    assert read(reader, offsets[-1], offsets[-1]) == []


def test_a_follower_goes_over_a_rename_with_another_name(store: Store) -> None:
    """Under the old name all rows are deleted, and under the new one all are inserted."""
    store.batch(upsert(k=[1]))
    old = stream(store, follower="old")
    before = old.latestOffset()
    store.client.restore(rename={"t": "u"})
    with store.client.begin() as renamed:
        pass
    assert read(old, before, old.latestOffset()) == [("delete", 1)]
    whole = stream(store, operator="u")
    assert read(whole, whole.initialOffset(), whole.latestOffset()) == [("insert", 1)]
    new = stream(store, operator="u", after=str(renamed.id), follower="new")
    began = new.initialOffset()
    store.batch(lambda state: state.table("u", ["k"]).upsert(frame(k=[2])))
    assert read(new, began, new.latestOffset()) == [("insert", 2)]
    store.client.remove_follower("old")
    assert behind(store) == {"new": 1}


@pytest.mark.parametrize("moving", ["latest", "at=2999-01-01", "epoch=0"])
def test_a_stream_begins_with_a_checkpoint_that_stays_the_same(store: Store, moving: str) -> None:
    """Spark notes where its first batch ends, and asks again where it begins if it has to repeat it."""
    store.batch(upsert(k=[1]))
    said = f"option('after', '{store.client.read_latest()}')"
    with pytest.raises(IllegalArgumentError, match=re.escape(said)):
        stream(store, after=moving, follower="copy").initialOffset()
    assert behind(store) == {}
    store.client.savepoint("begin")
    kept = {"checkpoint": str(store.client.read_latest())}
    assert [stream(store, after=stays).initialOffset() for stays in ("begin", *kept.values())] == [kept, kept]


def test_retention_waits_for_a_batch_that_is_repeated_after_a_restart(store: Store) -> None:
    """Spark may ask for an empty range at a start, at the end of the batch that it has planned last."""
    for key in (1, 2, 3):
        store.batch(upsert(k=[key]))
    reader = stream(store, follower="copy", after=first(store))
    start, end = reader.initialOffset(), reader.latestOffset()
    read(reader, start, end)  # Its sink failed: the batch is planned, and not committed.
    again = stream(store, follower="copy", after=first(store))
    again.partitions(end, end)
    assert [one.behind for one in store.client.followers()] == [2]
    store.client.clean(NEWEST)
    assert read(again, start, end) == [("insert", 2), ("insert", 3)]


@pytest.mark.parametrize("tells_start", [True, False])
def test_a_follower_that_was_outrun_is_kept_again_while_nothing_is_new(store: Store, tells_start: bool) -> None:
    for key in (1, 2, 3):
        store.batch(upsert(k=[key]))
    stream(store, follower="copy", after=first(store)).initialOffset()  # A position is one batch old.
    offset = {"checkpoint": str(store.client.read_latest())}
    store.client.clean(RetentionPolicy(keep_last=1, max_follower_lag=1, grace=timedelta(0)))
    assert [one.behind for one in store.client.followers()] == [None]
    again = stream(store, follower="copy")
    again.latestOffset(*([offset] if tells_start else []))
    for key in (4, 5):
        store.batch(upsert(k=[key]))
    store.client.clean(NEWEST)
    assert read(again, offset, again.latestOffset()) == [("insert", 4), ("insert", 5)]


@pytest.mark.parametrize("asks_latest", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
def test_nothing_is_kept_for_a_query_that_is_refused_at_its_start(
    store: Store, asks_latest: bool, is_known: bool
) -> None:
    for key in (1, 2, 3):
        store.batch(upsert(k=[key]))
    stream(store, follower="copy", after=first(store)).initialOffset()
    offset, end = ({"checkpoint": str(id_)} for id_ in store.client.list_checkpoints()[1:])
    store.client.clean(RetentionPolicy(keep_last=1, max_follower_lag=1, grace=timedelta(0)))
    if not is_known:
        store.client.remove_follower("copy")
    before = behind(store)
    assert before == ({"copy": None} if is_known else {})
    again = stream(store, follower="copy")
    if asks_latest:
        again.latestOffset()
    else:
        again.partitions(end, end)
    assert behind(store) == {"copy": 0}
    with pytest.raises(RetiredError):
        again.partitions(offset, end)
    assert behind(store) == before


def test_a_feed_is_not_read_under_other_columns(store: Store) -> None:
    store.batch(upsert(k=[1], v=[7]))
    source = CheckpointerSource({"path": store.client.root, "view": "changes", "operator": "t"})
    own: Any = source.schema()
    exchanged = StructType([*own.fields[:4], *reversed(own.fields[4:])])
    other = StructType([*own.fields[:-1], StructField(own.fields[-1].name, StringType())])
    for schema in (exchanged, other, StructType(own.fields[:-1])):
        for ask in (source.reader, source.streamReader):
            with pytest.raises(IllegalArgumentError, match="leave the schema out"):
                ask(schema)
    assert source.reader(own)


def test_a_stream_sees_a_rollback_as_changes(store: Store) -> None:
    store.batch(upsert(k=[1]))
    reader = stream(store, after=str(store.client.read_latest()))
    began = reader.initialOffset()
    store.batch(upsert(k=[2]))
    middle = reader.latestOffset()
    assert read(reader, began, middle) == [("insert", 2)]
    store.client.rollback("epoch=0")
    assert read(reader, middle, reader.latestOffset()) == [("delete", 2)]


def test_a_stream_with_too_narrow_columns_stops_and_goes_on_with_wide_ones(store: Store) -> None:
    def put(value: int, kind: pa.DataType) -> None:
        store.batch(upsert(k=[1], v=pa.array([value], kind)))

    put(1, pa.int32())
    reader = stream(store)
    start, middle = reader.initialOffset(), reader.latestOffset()
    assert read(reader, start, middle) == [("insert", 1, 1)]
    put(2**40, pa.int64())
    store.client.rollback("epoch=0")
    end = reader.latestOffset()
    with pytest.raises(IllegalArgumentError, match=r"v long.*v integer.*start the query again"):
        read(reader, middle, end)
    again = stream(store)  # The newest column is narrow, and what is to be read has wide values.
    changes = [("update_before", 1, 1), ("update_after", 1, 2**40), ("update_before", 1, 2**40), ("update_after", 1, 1)]
    assert read(again, middle, end) == changes
    put(3, pa.int32())
    assert read(again, end, again.latestOffset())[1:] == [("update_after", 1, 3)]


def test_a_read_has_the_columns_that_spark_was_told(store: Store) -> None:
    """They hold the values of all checkpoints, and the feed between two of them could have narrower ones."""
    for value, kind in ((1, pa.int32()), (2, pa.int64())):
        store.batch(upsert(k=[1], v=pa.array([value], kind)))
    back = str(store.client.rollback(store.client.list_checkpoints()[0]))
    store.batch(upsert(k=[1], v=pa.array([3], pa.int32())))
    source = CheckpointerSource({"path": store.client.root, "view": "changes", "operator": "t", "after": back})
    reader = source.reader(source.schema())  # type: ignore[arg-type]
    (found,) = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert (source.schema()["v"].dataType.simpleString(), found.schema.field("v").type) == ("bigint", pa.int64())  # type: ignore[index]
    assert found["v"].to_pylist() == [1, 3]


def test_what_was_a_map_once_is_no_matter_of_a_later_stream(store: Store) -> None:
    def drop(state: State) -> None:
        state.drop("t")

    with store.client.begin(epoch=0) as cp:
        cp.save("t", KeyedState({"a": 1}))
    store.epoch = 1
    store.batch(drop)
    gone = str(store.client.list_checkpoints()[-1])
    store.batch(upsert(k=[1]))
    reader = stream(store, after=gone)
    assert read(reader, reader.initialOffset(), reader.latestOffset()) == [("insert", 1)]


def test_a_stream_goes_on_where_a_column_comes_back_with_another_id(store: Store) -> None:
    def drop(state: State) -> None:
        state.table("t", ["k"]).drop_columns(["v"])

    store.batch(upsert(k=[1, 2], v=[5, 6], w=[0, 0]))
    reader = stream(store)
    offsets = [reader.latestOffset()]
    store.batch(drop)
    store.batch(upsert(k=[1], v=[9]))  # It is the last column now.
    offsets.append(reader.latestOffset())
    store.batch(upsert(k=[2], v=[7]))
    offsets.append(reader.latestOffset())
    copy = {1: (5, 0), 2: (6, 0)}
    for start, end in pairwise(offsets):
        copy |= {k: (v, w) for change, k, v, w in read(reader, start, end) if change == "update_after"}
    assert copy == {1: (9, 0), 2: (7, 0)}
    assert read(reader, *offsets[1:]) == [("update_before", 2, None, 0), ("update_after", 2, 7, 0)]


def test_a_stream_stops_where_a_column_is_gone(store: Store) -> None:
    def drop(state: State) -> None:
        state.table("t", ["k"]).drop_columns(["v"])

    store.batch(upsert(k=[1], v=[5]))
    reader = stream(store)
    start = reader.latestOffset()
    store.batch(drop)
    with pytest.raises(IllegalArgumentError, match="start the query again"):
        read(reader, start, reader.latestOffset())
    assert read(stream(store), start, reader.latestOffset()) == []


@pytest.mark.parametrize("name", [None, "copy"])
def test_a_stream_over_another_key_is_told_where_to_begin(store: Store, name: str | None) -> None:
    def remake(state: State) -> None:
        state.drop("t")
        state.table("t", ["j"]).upsert(frame(j=["a"], v=[1]))

    def more(state: State) -> None:
        state.table("t", ["j"]).upsert(frame(j=["b"], v=[2]))

    options = {} if name is None else {"follower": name}
    store.batch(upsert(k=[1], v=[5]))
    reader = stream(store, **options)
    start = reader.latestOffset()
    read(reader, reader.initialOffset(), start)
    store.batch(upsert(k=[1], v=[6]))
    store.batch(remake)
    newest = str(store.client.read_latest())
    store.batch(more)
    end = reader.latestOffset()
    for one in (reader, stream(store, **options)):  # Started again, it has the same changes before it.
        with pytest.raises(IllegalArgumentError, match="with a new checkpointLocation") as caught:
            read(one, start, end)
        assert f"option('after', '{newest}')" in str(caught.value)
        assert (f"followers {store.client.root} --remove copy" in str(caught.value)) == (name is not None)
    # A batch of before, which Spark repeats after the query was started again.
    with pytest.raises(IllegalArgumentError, match="with a new checkpointLocation"):
        read(stream(store, **options), {"checkpoint": ""}, start)
    fresh = stream(store, after=newest, **options)
    assert read(fresh, fresh.initialOffset(), fresh.latestOffset()) == [("insert", "b", 2)]
    assert behind(store) == ({} if name is None else {"copy": 1})


def test_a_stream_takes_another_key_once_the_table_was_gone(store: Store) -> None:
    def drop(state: State) -> None:
        state.drop("t")

    def other(state: State) -> None:
        state.table("t", ["j"]).upsert(frame(j=["a"]))

    store.batch(upsert(k=[1]))
    reader = stream(store)
    start = reader.latestOffset()
    store.batch(drop)
    gone = reader.latestOffset()
    assert read(reader, start, gone) == [("delete", 1)]
    store.batch(other)
    end = reader.latestOffset()
    with pytest.raises(IllegalArgumentError, match="start the query again"):
        read(reader, gone, end)
    assert read(stream(store), gone, end) == [("insert", "a")]


def test_a_root_without_a_table_is_refused_by_name(store: Store) -> None:
    with pytest.raises(Exception, match="no checkpoint is committed yet"):
        stream(store)
    store.batch(upsert(k=[1]))
    with pytest.raises(IllegalArgumentError, match="it is the older one"):
        store.batch(upsert(k=[2]))
        read(stream(store), stream(store).latestOffset(), {"checkpoint": str(store.client.list_checkpoints()[0])})


# ---- with a name -----------------------------------------------------------------------------------------------------


def behind(store: Store) -> dict[str, int | None]:
    return {follower.name: follower.behind for follower in store.client.followers()}


def test_retention_waits_for_a_stream_with_a_name(store: Store) -> None:
    store.batch(upsert(k=[1]))
    reader = stream(store, follower="copy")
    offsets = [reader.initialOffset()]
    assert behind(store) == {"copy": 1}
    for key in (2, 3):
        store.batch(upsert(k=[key]))
    store.client.clean(NEWEST)
    offsets.append(reader.latestOffset())
    assert read(reader, *offsets) == [("insert", 1), ("insert", 2), ("insert", 3)]
    store.batch(upsert(k=[4]))
    store.client.clean(NEWEST)  # Spark has not committed the batch yet, and may repeat it.
    assert read(stream(store, follower="copy"), *offsets) == [("insert", 1), ("insert", 2), ("insert", 3)]
    reader.commit(offsets[-1])
    reader.commit(offsets[0])
    assert behind(store) == {"copy": 1}
    store.client.clean(NEWEST)
    again = stream(store, follower="copy")  # another start of the query, after the beginning was retired
    assert read(again, offsets[-1], again.latestOffset()) == [("insert", 4)]


def test_a_follower_that_is_started_again_further_back_is_kept_there(store: Store) -> None:
    for key in (1, 2, 3):
        store.batch(upsert(k=[key]))
    beginning, second, third = ({"checkpoint": str(id_)} for id_ in store.client.list_checkpoints())
    reader = stream(store, follower="copy", after=beginning["checkpoint"])
    read(reader, reader.initialOffset(), third)
    reader.commit(third)
    rewound = stream(store, follower="copy")  # The follower's own job was rewound to its batch before.
    assert read(rewound, second, third) == [("insert", 3)]
    assert behind(store) == {"copy": 1}
    store.client.remove_follower("copy")
    store.client.clean(NEWEST)
    with pytest.raises(RetiredError, match="is not live any more"):
        read(stream(store, follower="copy"), beginning, third)
    assert behind(store) == {}


@pytest.mark.parametrize("tells_start", [True, False])
def test_a_follower_that_goes_on_while_nothing_is_new_is_registered(store: Store, tells_start: bool) -> None:
    """Spark asks for the latest offset alone then: with the start of the batch, and before 4.2 without."""
    for key in (1, 2):
        store.batch(upsert(k=[key]))
    offset = stream(store).latestOffset()
    again = stream(store, follower="copy")
    assert again.latestOffset(*([offset] if tells_start else [])) == offset
    assert behind(store) == {"copy": 0 if tells_start else 1}
    for key in (3, 4):
        store.batch(upsert(k=[key]))
    store.client.clean(NEWEST)
    assert read(again, offset, again.latestOffset()) == [("insert", 3), ("insert", 4)]
    assert behind(store) == {"copy": 2}
    again.commit(again.latestOffset())
    assert stream(store, follower="copy").latestOffset() == again.latestOffset()
    assert behind(store) == {"copy": 0}


def test_a_follower_that_was_removed_is_told_and_stays_removed(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.batch(upsert(k=[1]))
    reader = stream(store, follower="copy")
    start, end = reader.initialOffset(), reader.latestOffset()
    read(reader, start, end)
    store.client.remove_follower("copy")
    reader.commit(end)
    assert "follower 'copy' was removed" in caplog.text
    assert behind(store) == {}
    read(stream(store, follower="copy"), start, end)
    assert behind(store) == {"copy": 1}
    # Also where the query that is started again finds nothing new: what comes next must not be retired.
    store.client.remove_follower("copy")
    read(stream(store, follower="copy"), end, end)
    assert behind(store) == {"copy": 0}


def test_a_position_that_cannot_be_noted_is_no_reason_to_fail(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> bool:
        raise DependencyError("the store does not answer")

    store.batch(upsert(k=[1]))
    reader = stream(store, follower="copy")
    read(reader, reader.initialOffset(), reader.latestOffset())
    monkeypatch.setattr("pyspark_checkpointer.admin.followers.advance", fail)
    reader.commit(reader.latestOffset())
    assert "follower 'copy' stays at its position: the store does not answer" in caplog.text
    assert behind(store) == {"copy": 1}


def test_only_a_stream_can_be_a_follower(store: Store) -> None:
    store.batch(upsert(k=[1]))
    source = CheckpointerSource({"path": store.client.root, "view": "changes", "operator": "t", "follower": "copy"})
    with pytest.raises(IllegalArgumentError, match="option follower: is for a stream"):
        source.reader(source.schema())  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentError, match="option follower: is for the changes"):
        CheckpointerSource({"path": store.client.root, "operator": "t", "follower": "copy"})
