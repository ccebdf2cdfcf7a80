"""Count the reads of each manifest of a long history: a verb makes one, and walks it once for all its questions."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.checkpoint import history
from pyspark_checkpointer.manifests import manifest_json
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest
from tests.cli.conftest import Run

LENGTH = 30
FEW = 8
"""Manifests that a verb reads for their content."""


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[CheckpointId]:
    """Return how often each manifest was decoded."""
    counts = Counter[CheckpointId]()
    decode = manifest_json.decode_manifest

    def counted(checkpoint: CheckpointId, data: Any) -> Manifest:
        counts[checkpoint] += 1
        return decode(checkpoint, data)

    monkeypatch.setattr(manifest_json, "decode_manifest", counted)
    return counts


@pytest.fixture
def long(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path / "root") as ck:
        state = KeyedState({"a": 0})
        for number in range(LENGTH):
            state["a"] = number
            with ck.begin(epoch=number) as cp:
                cp.save("m", state)
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (("show", "epoch=2"), 1),
        (("diff", "epoch=2", "epoch=3"), 1),
        (("savepoint", "good", "epoch=2"), 1),
        (("rollback", "epoch=2", "--yes"), 1),
        # The walk that finds them keeps no content, so what lies between is read for it.
        (("history", "m", "a", "--after", "epoch=2", "--to", "epoch=4"), 2),
        # The index of what is live needs the content of all.
        (("delete", "epoch=2", "--yes"), 2),
        (("delete", "3-", "--yes"), 2),
    ],
    ids=str,
)
def test_a_verb_walks_the_history_once(
    long: Path, run: Run, reads: Counter[CheckpointId], words: tuple[str, ...], times: int
) -> None:
    assert run(words[0], long, *words[1:]).status == 0
    assert reads.total() <= times * LENGTH + FEW


def test_what_is_kept_of_a_history_is_bounded(
    long: Path, run: Run, reads: Counter[CheckpointId], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_LINKS", 10)
    assert run("delete", long, "epoch=2", "--yes").status == 0
    assert reads.total() <= 5 * (LENGTH - 10) + 2 * 10 + FEW
    assert run("verify", long).status == 0
    assert len(run("list", long, "--json").json) == LENGTH - 1
