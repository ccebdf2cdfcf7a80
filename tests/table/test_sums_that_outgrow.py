"""Sums of changes alone may outgrow a type that holds the sum with the row below; no other refusal is such a sum."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pyspark_checkpointer.errors import StoreRefusedError
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Artifact
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table.due_rows import due_rows
from pyspark_checkpointer.table.object_files import ObjectFiles
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import MERGE
from tests.table.tables import rows_in, schema_of
from tests.table.test_version import Place

FIRST, LATER = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 9, tzinfo=UTC)
LIMIT = (FIRST - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def place_of(change: int) -> Place:
    """A table with a row of -100, to which two deltas add something. They also make the row due."""
    place = Place(schema_of({"k": "long", "seen": "timestamp", "n": "byte"}, ["k"], n="sum"))
    place.snapshot(0, [(1, FIRST, 1), (2, LATER, -100)])
    for _ in range(2):
        place.pack({0: [(MERGE, (2, FIRST, change))]})
    return place


@pytest.fixture
def refused_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Artifact]]:
    """The store refuses the first object that is asked for, and gives all others."""
    asked: list[Artifact] = []
    sound = ObjectFiles.data

    async def data(self: ObjectFiles, artifact: Artifact) -> bytes:
        asked.append(artifact)
        if len(asked) == 1:
            raise StoreRefusedError("planted")
        return await sound(self, artifact)

    monkeypatch.setattr(ObjectFiles, "data", data)
    yield asked
    assert asked


@pytest.mark.parametrize(("change", "kinds"), [(1, [SNAPSHOT, DELTA]), (100, [SNAPSHOT])])
def test_deltas_are_folded_unless_their_sum_needs_the_row_below(change: int, kinds: list[str]) -> None:
    place = place_of(change)
    place.compact({0: 1})
    assert [artifact.kind for artifact in place.chains[0]] == kinds
    assert place.rows(0) == [(1, FIRST, 1), (2, FIRST, 2 * change - 100)]


@pytest.mark.usefixtures("refused_once")
def test_a_refusal_of_the_store_does_not_make_a_snapshot_of_a_chain() -> None:
    place = place_of(1)
    before = place.chains[0]
    with pytest.raises(StoreRefusedError, match="planted"):
        place.compact({0: 1})
    assert place.chains[0] == before
    place.compact({0: 1})
    assert [artifact.kind for artifact in place.chains[0]] == [SNAPSHOT, DELTA]


@pytest.mark.parametrize("change", [1, 100])
def test_a_row_that_changes_make_due_is_found_also_where_their_sum_needs_the_row_below(change: int) -> None:
    found = run_sync(due_rows(place_of(change).reader(), 0, "seen", LIMIT))
    assert rows_in(found) == [(1, FIRST, 1), (2, FIRST, 2 * change - 100)]


def test_a_refusal_of_the_store_does_not_make_all_of_a_snapshot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> Any:
        raise StoreRefusedError("planted")

    place = place_of(1)
    monkeypatch.setattr(TableReader, "lookup", refuse)
    with pytest.raises(StoreRefusedError, match="planted"):
        run_sync(due_rows(place.reader(), 0, "seen", LIMIT))
