"""Small random histories of tables against a dict with a clock, in hundreds: crash, replay, rewind and fork too."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("pyspark")

from pyspark_checkpointer.admin import rollback
from pyspark_checkpointer.spark import scan_expired
from pyspark_checkpointer.spark.early_compaction import EarlyCompaction
from pyspark_checkpointer.spark.job_clock import JobClock
from pyspark_checkpointer.spark.table_changes import TableChanges
from pyspark_checkpointer.table import due_rows, merge
from tests.proof.effort import SUMMARY
from tests.proof.inline import in_one_thread
from tests.proof.planted import Planted
from tests.proof.table_walk import Walk

Effort = Callable[[int, int], int]
Figures = Counter[str]

PLANTED = (
    Planted(
        "a row is combined with an expired one",
        merge.reset,
        "anew = expired &",
        "anew = ~expired & expired &",
    ),
    Planted(
        "an expired row is sought in snapshots alone",
        due_rows.may_be_due,
        "any(artifact.path in old for artifact in chain)",
        "chain[0].path in old",
        walk=112,
    ),
    Planted(
        "a row is taken to be expired a moment later",
        due_rows.may_be_due,
        "time <= limit",
        "time < limit",
        walk=93,
    ),
    Planted(
        "a repeated batch has the clock of the machine",
        JobClock._known,
        "self._batch_time if last is None else max(last.at, self._batch_time)",
        "datetime.now(UTC)",
    ),
    Planted(
        "a rewind leaves the clock where it is",
        rollback._rollback,
        "id=new or session.draw_id(base.head.sequence),",
        "id=new or session.draw_id(base.head.sequence), clock=base.manifest.clock if base.manifest else None,",
        walk=23,
    ),
    Planted(
        "expired rows come back by a rule that lets rows live longer",
        TableChanges._adopt_expiry,
        "if self._expiry.brings_back(old, new):",
        "if False:",
        walk=30,
    ),
    Planted(
        "what expires is sought among the rows that live",
        scan_expired.find_due,
        "if committed is None or column",
        "committed = version\n    if committed is None or column",
    ),
    Planted(
        "what a batch writes too late is forgotten",
        scan_expired.find_due,
        "if column in (added",
        "if not column and (added",
    ),
    Planted(
        "what a batch wrote too late is forgotten when it writes again",
        TableChanges._change,
        "self._written.append(Written.on(below, self.version))",
        "self._written[:] = [Written.on(below, self.version)]",
        walk=35,
    ),
    Planted(
        "what was compacted early takes the place of another chain",
        EarlyCompaction._begins_alike,
        "return chains.get(partition, ())[: len(old)] == old",
        "return bool(chains.get(partition))",
        walk=23,
    ),
    Planted(
        "changes above what was compacted early are lost",
        EarlyCompaction.finish_write,
        "reduce(on_top, above, below)",
        "below",
        walk=16,
    ),
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with in_one_thread():
        yield


@pytest.mark.parametrize("part", range(3 if SUMMARY is None else 40))
def test_a_table_is_a_dict_with_a_clock(part: int, effort: Effort, figures: Figures) -> None:
    walks = effort(20, 500)
    for seed in range(part * walks, (part + 1) * walks):
        try:
            Walk(seed, figures).run()
        except BaseException as error:
            error.add_note(f"in the walk of seed {seed}")
            raise
    figures["histories"] += walks


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
def test_what_breaks_a_rule_of_expiry_is_found(planted: Planted) -> None:
    with planted(), pytest.raises(AssertionError):
        for seed in range(planted.walk, planted.walk + 50):
            Walk(seed, Counter()).run()
