"""Random histories of a query end with every record counted once, or with a way there."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_checkpointer.admin.streaming import alignment, log_edit, log_plan, rewind_attempt
from pyspark_checkpointer.errors import CheckpointError
from tests.admin.streaming.query_histories import play
from tests.proof.planted import Planted

PARTS = 8

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder for Spark's thousands of files, in memory where the machine has one."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(dir=MEMORY))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_record_is_counted_once_or_a_command_gets_there(
    folder: Path, part: int, effort: Callable[[int, int], int], figures: Counter[str]
) -> None:
    histories = effort(4, 300)
    for number in range(histories):
        play(part * 100_000 + number, folder, figures)
    figures["histories"] += histories


PLANTED = (
    Planted(
        "commits stay",
        log_plan.plan_log,
        "((COMMITS, log.commits), (OFFSETS, log.offsets))",
        "((OFFSETS, log.offsets),)",
    ),
    Planted("nothing is put back", log_edit.apply_log_plan, "in plan.write.items():", "in ():"),
    Planted("other offsets are not noticed", alignment.compare, "if not _same_input(last, job, step):", "if False:"),
    Planted(
        "what is left is not kept",
        rewind_attempt.RewindAttempt._commit,
        "if record.savepoint is not None:",
        "if False:",
    ),
    Planted(
        "offsets of another line of batches are taken",
        log_plan.recorded_offsets,
        "same = recorded is None or",
        "same = there is not None or recorded is None or",
    ),
)


FIRST = {"other offsets are not noticed": 128}
"""Where the search begins: histories before do not meet the bug. After a change it may be met anywhere."""


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
def test_a_query_without_one_of_its_rules_is_found(folder: Path, planted: Planted) -> None:
    first = FIRST.get(planted.name, 0)
    with planted(), pytest.raises((AssertionError, CheckpointError, FileNotFoundError)):
        for seed in (*range(first, 400), *range(first)):
            play(seed, folder, Counter())
