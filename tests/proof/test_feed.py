"""Random histories of tables: their change feed, applied to nothing, is the table at each checkpoint."""

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint.ancestry import read_ancestry
from pyspark_checkpointer.checkpoint.resolve import CheckpointSelector
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table.feed import (
    ROW_CHANGE,
    FeedStep,
    feed_steps,
    newest_schema,
)
from pyspark_checkpointer.table.feed_reader import FeedReader
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.types import is_wider
from pyspark_checkpointer.table.version import TableVersion
from tests.proof.effort import SUMMARY
from tests.proof.plain_spark import plain_spark
from tests.proof.table_history import History
from tests.proof.table_model import KEY, Key, Row, TableModel, key_of

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
    followed, before = Follower({}), set[str]()
    if start >= 0:
        id_, model = known[start]
        followed.rows = _as_shown(model, client.load_manifest(id_), name, shown)
        before = _same(client.load_manifest(id_), name, shown)
    changes = 0
    for manifest, (_, model) in zip(manifests, known[start + 1 :], strict=True):
        found, now = by_id.get(manifest.id), _same(manifest, name, shown)
        for change in [] if found is None else found.to_pylist():
            # The time of a row is shown only if its column is the same before and after.
            followed.take(change, model, now & before)
            changes += 1
        before = now
        assert followed.rows == _as_shown(model, manifest, name, shown), manifest.id
    return changes


def _as_shown(model: TableModel, manifest: Manifest, name: str, shown: TableSchema) -> dict[Key, Row]:
    """The rows of the model in the columns shown: one of another id was another column."""
    operator = manifest.operators.get(name)
    if operator is None:
        assert not model.rows
        return {}
    same = _same(manifest, name, shown)
    return {
        key: {n: (key[KEY.index(n)] if n in KEY else row.get(n) if n in same else None) for n in shown.names}
        for key, row in model.rows.items()
    }


def _same(manifest: Manifest, name: str, shown: TableSchema) -> set[str]:
    """The columns shown that a checkpoint has: one that was dropped and added again, or was wider, is another one."""
    operator = manifest.operators.get(name)
    columns = () if operator is None else TableVersion.of(name, operator, manifest.clock).schema.columns
    found = {column.id: column for column in columns}
    return {
        column.name
        for column in shown.columns
        if (old := found.get(column.id)) is not None
        and old.name == column.name
        and (old.type == column.type or is_wider(old.type, column.type))
    }


@pytest.mark.parametrize("part", range(1 if SUMMARY is None else 40))
def test_the_feed_of_a_table_leads_to_each_of_its_checkpoints(part: int, effort: Effort, figures: Figures) -> None:
    histories = effort(6, 50)
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
                history.batch(number)
                latest: Any = history.client.read_latest()
                if latest is not None and (not known or known[-1][0] != latest):
                    known.append((latest, {name: model.copy() for name, model in history.models.items()}))
                if known and history.draw.random() < 0.2:
                    known.append(_roll_back(history, history.draw.choice(known)))
                    figures["rollbacks followed"] += 1
        for name in history.models if known else ():
            models = [(id_, models[name]) for id_, models in known]
            for start in (-1, history.draw.randrange(-1, len(known))):
                figures["changes followed"] += check(history.client, name, models, start)


def _roll_back(
    history: History, target: tuple[CheckpointId, dict[str, TableModel]]
) -> tuple[CheckpointId, dict[str, TableModel]]:
    """Roll back: rows that were deleted or had expired come back, and so do columns, rules and the clock."""
    history.models = {name: model.copy() for name, model in target[1].items()}
    history.clock = next(iter(history.models.values())).clock
    return history.client.rollback(target[0]), {name: model.copy() for name, model in target[1].items()}
