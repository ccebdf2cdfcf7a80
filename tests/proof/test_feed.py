"""Random histories of tables: their change feed, applied to nothing, is the table at each checkpoint."""

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa
import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint.ancestry import read_ancestry
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.change_source import FeedStreamReader
from pyspark_checkpointer.spark.datasource import CheckpointerSource
from pyspark_checkpointer.table.feed import (
    ROW_CHANGE,
    FeedStep,
    feed_steps,
)
from pyspark_checkpointer.table.feed_reader import FeedReader
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.shown_columns import newest_schema
from pyspark_checkpointer.table.types import is_wider
from pyspark_checkpointer.table.version import TableVersion
from tests.proof.effort import SUMMARY
from tests.proof.feed_columns import ColumnHistory, Rows
from tests.proof.plain_spark import plain_spark
from tests.proof.table_history import History
from tests.proof.table_model import KEY, Key, Row, TableModel, key_of
from tests.table.plain_store import plain_store

Effort = Callable[[int, int], int]
Figures = Counter[str]


def read_feed(
    client: Checkpointer, name: str, after: str | None, to: str
) -> tuple[list[Manifest], TableSchema | None, list[tuple[FeedStep, pa.Table]]]:
    """The checkpoints, the columns shown, and what each checkpoint changed."""
    start = None if after is None else CheckpointSelector.parse(after)
    parent, manifests = run_sync(read_ancestry(client.session, start, CheckpointSelector.parse(to)))
    shown = newest_schema(name, parent, manifests)
    if shown is None:
        return manifests, None, []
    found = []
    for step in feed_steps(name, parent, manifests, shown):
        reader = FeedReader(client.session.store, client.session.host, step, shown)
        parts = [run_sync(reader.changes(group)) for group in step.groups]
        found.append((step, pa.concat_tables(parts)))
    return manifests, shown, found


class Follower:
    """What somebody has who applies each change, and checks that it fits."""

    def __init__(self, rows: dict[Key, Row]) -> None:
        self.rows = rows
        self._before: Key | None = None

    def take(self, change: Row, model: TableModel, same: set[str]) -> None:
        kind = change.pop(ROW_CHANGE)
        key = key_of(change)
        change |= dict(zip(KEY, key, strict=True))  # NaN does not equal itself
        match kind:
            case "insert":
                assert key not in self.rows
                self.rows[key] = change
            case "update_before":
                assert self.rows[key] == change
                self._before = key
            case "update_after":
                assert self._before == key, "an update without the row before it"
                assert self.rows[key] != change, "an update that changes nothing"
                self.rows[key] = change
            case "delete" | "expire":
                assert self.rows.pop(key) == change
                rule, clock = model.rule, model.clock
                time = None if rule is None else change.get(rule.column)
                due = rule is not None and clock is not None and time is not None and time + rule.after <= clock
                if rule is None or rule.column in same:
                    assert kind == ("expire" if due else "delete")
            case _:
                raise AssertionError(kind)


def check(client: Checkpointer, name: str, known: list[tuple[CheckpointId, TableModel]], start: int) -> int:
    """Follow the table from a checkpoint on, and compare with what it should hold at each; returns the changes."""
    after = None if start < 0 else str(known[start][0])
    manifests, shown, steps = read_feed(client, name, after, str(known[-1][0]))
    assert [manifest.id for manifest in manifests] == [id_ for id_, _ in known[start + 1 :]]
    if shown is None:
        assert not any(model.rows for _, model in known[max(start, 0) :])
        return 0
    by_id = {step.checkpoint: changes for step, changes in steps}
    followed, before = Follower({}), set[tuple[int, str]]()
    if start >= 0:
        id_, model = known[start]
        followed.rows = _as_shown(model, client.load_manifest(id_), name, shown)
        before = _columns(client.load_manifest(id_), name)
    changes = 0
    for manifest, (_, model) in zip(manifests, known[start + 1 :], strict=True):
        found, now = by_id.get(manifest.id), _columns(manifest, name)
        for change in [] if found is None else found.to_pylist():
            # A row expires only by a column that is the same before and after, and that the feed shows.
            followed.take(change, model, {column for _, column in now & before if column in shown.names})
            changes += 1
        before = now
        assert followed.rows == _as_shown(model, manifest, name, shown), manifest.id
    return changes


def _as_shown(model: TableModel, manifest: Manifest, name: str, shown: TableSchema) -> dict[Key, Row]:
    """The rows of the model in the columns shown, by name."""
    if name not in manifest.operators:
        assert not model.rows
        return {}
    return {
        key: {n: (key[KEY.index(n)] if n in KEY else row.get(n)) for n in shown.names}
        for key, row in model.rows.items()
    }


def _columns(manifest: Manifest, name: str) -> set[tuple[int, str]]:
    """The ids and names of the columns that a checkpoint has."""
    operator = manifest.operators.get(name)
    columns = () if operator is None else TableVersion.of(name, operator, manifest.clock).schema.columns
    return {(column.id, column.name) for column in columns}


@pytest.mark.parametrize("part", range(1 if SUMMARY is None else 40))
def test_the_feed_of_a_table_leads_to_each_of_its_checkpoints(part: int, effort: Effort, figures: Figures) -> None:
    histories = effort(2, 50)
    for seed in range(part * histories, (part + 1) * histories):
        try:
            _follow(seed, figures)
        except BaseException as error:
            error.add_note(f"in the history of seed {seed}")
            raise
        figures["histories followed"] += 1


def _follow(seed: int, figures: Figures) -> None:
    with pytest.MonkeyPatch.context() as patch:
        history = History(seed, figures, f"memory://{uuid.uuid4().hex}", 200)
        history.limits(patch)
        known: list[tuple[CheckpointId, dict[str, TableModel]]] = []
        with plain_spark(history.draw):
            for number in range(8):
                if history.draw.random() < 0.2:
                    history.drawn.types["x"] = pa.int64()
                history.batch(number)
                latest: Any = history.client.read_latest()
                if latest is not None and (not known or known[-1][0] != latest):
                    known.append((latest, {name: model.copy() for name, model in history.models.items()}))
                if known and history.draw.random() < 0.2:
                    known.append(_roll_back(history, history.draw.choice(known), figures))
                    figures["rollbacks followed"] += 1
        for name in history.models if known else ():
            models = [(id_, models[name]) for id_, models in known]
            for start in (-1, history.draw.randrange(-1, len(known))):
                figures["changes followed"] += check(history.client, name, models, start)


def _roll_back(
    history: History, target: tuple[CheckpointId, dict[str, TableModel]], figures: Figures
) -> tuple[CheckpointId, dict[str, TableModel]]:
    """Roll back: rows that were deleted or had expired come back, and so do columns, types, rules and the clock."""
    latest: Any = history.client.read_latest()
    wide, then = _has_wide(history, latest), _has_wide(history, target[0])
    figures["widenings rolled back"] += len(wide - then)
    if not then:
        history.drawn.types["x"] = pa.int32()
    history.models = {name: model.copy() for name, model in target[1].items()}
    history.clock = next(iter(history.models.values())).clock
    return history.client.rollback(target[0]), {name: model.copy() for name, model in target[1].items()}


def _has_wide(history: History, checkpoint: CheckpointId) -> set[str]:
    """The tables whose column x is wide."""
    manifest = history.client.load_manifest(checkpoint)
    found = {name: TableVersion.of(name, o, manifest.clock).schema for name, o in manifest.operators.items()}
    return {name for name, schema in found.items() if any((c.name, c.type) == ("x", "long") for c in schema.columns)}


# ---- columns that go, come back, become wider and are exchanged --------------------------------------------------


@pytest.mark.parametrize("part", range(1 if SUMMARY is None else 40))
def test_a_follower_has_the_table_by_name_whatever_becomes_of_its_columns(
    part: int, effort: Effort, figures: Figures
) -> None:
    histories = effort(5, 200)
    for seed in range(part * histories, (part + 1) * histories):
        try:
            with plain_store() as store:
                history = ColumnHistory(seed, store, figures)
                streamed = StreamFollower(history)
                for _ in range(12):
                    history.batch()
                    if history.draw.random() < 0.5:
                        streamed.follow()
                for start in (-1, *history.draw.sample(range(len(history.known)), 3)):
                    _follow_by_name(history, start)
        except BaseException as error:
            error.add_note(f"in the history of seed {seed}")
            raise
        figures["histories of columns"] += 1


def _follow_by_name(history: ColumnHistory, start: int) -> None:
    """Apply the feed to the rows of a checkpoint, and compare with those of each later one."""
    known, client = history.known, history.store.client
    rows, kinds = known[start][1:] if start >= 0 else ({}, {})
    after = str(known[start][0]) if start >= 0 else None
    _, shown, steps = read_feed(client, "t", after, str(known[-1][0]))
    if shown is None:
        assert not any(rows for _, rows, _ in known[max(start, 0) :])
        return
    types = {column.name: column.type for column in shown.columns}
    changes = {step.checkpoint: found.to_pylist() for step, found in steps}
    copy, hidden = _only(rows, types), _hidden(kinds, types)
    for id_, later, later_kinds in known[start + 1 :]:
        for change in changes.pop(id_, ()):
            kind, key = change.pop(ROW_CHANGE), change["k"]
            old = {name: None if name in hidden else rows.get(key, {}).get(name) for name in types}
            history.figures["changes of columns"] += 1
            match kind:
                case "insert":
                    assert key not in copy
                case "update_before" | "delete" | "expire":
                    assert change == old
                    before = change
                    if kind != "update_before":
                        del copy[key]
                case "update_after":
                    # What it had and lost may have been of a type that cannot be shown.
                    stays = {n for n in hidden if (later_kinds.get(n), later[key].get(n)) == (kinds[n], rows[key][n])}
                    assert before != change or any(rows[key][name] is not None for name in hidden - stays)
            if kind in ("insert", "update_after"):
                copy[key] = change
        rows, kinds = later, later_kinds
        hidden = _hidden(kinds, types)
        history.figures["values that cannot be shown"] += len(hidden)
        compared = types.keys() - hidden
        assert _only(copy, compared) == _only(rows, compared), id_
    assert not changes
    assert not hidden, "the newest columns are not shown"


def _hidden(kinds: Mapping[str, Any], types: Mapping[str, Any]) -> set[str]:
    """The columns whose values cannot be shown in the types of the feed."""
    both = kinds.keys() & types.keys()
    return {name for name in both if kinds[name] != types[name] and not is_wider(kinds[name], types[name])}


def _only(rows: Rows, columns: Collection[str]) -> Rows:
    return {key: {name: row.get(name) for name in columns} for key, row in rows.items()}


class StreamFollower:
    """A query that follows a table, and that is started again with its offset whenever it stops."""

    def __init__(self, history: ColumnHistory) -> None:
        self._history = history
        self._reader: FeedStreamReader | None = None
        self._offset = {"checkpoint": ""}
        self._copy: Rows = {}

    def follow(self) -> None:
        """One trigger: afterwards the copy is the table."""
        if not any(kinds for _, _, kinds in self._history.known):
            return
        self._reader = self._reader or self._start()
        end = self._reader.latestOffset()
        try:
            parts = self._reader.partitions(self._offset, end)
        except IllegalArgumentError as error:
            if "start the query again" not in str(error):
                raise
            self._history.figures["streams started again"] += 1
            self._reader = self._start()
            parts = self._reader.partitions(self._offset, end)
        found = [row for part in parts for batch in self._reader.read(part) for row in batch.to_pylist()]
        columns = [*self._reader._known.shown.names]
        for row in sorted(found, key=lambda row: row["sequence"]):
            if row["change"] in ("delete", "expire"):
                del self._copy[row["k"]]
            elif row["change"] != "update_before":
                self._copy[row["k"]] = {name: row[name] for name in columns}
        _, rows, kinds = self._history.known[-1]
        assert not kinds or kinds.keys() == set(columns)
        assert self._copy == _only(rows, columns)
        self._offset = end

    def _start(self) -> FeedStreamReader:
        source = CheckpointerSource({"path": self._history.store.client.root, "view": "changes", "operator": "t"})
        reader = source.streamReader(source.schema())  # type: ignore[arg-type]
        assert isinstance(reader, FeedStreamReader)
        # The copy gets the columns of the query.
        self._copy = _only(self._copy, reader._known.shown.names)
        return reader
