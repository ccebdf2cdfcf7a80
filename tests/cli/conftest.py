"""Run the command in this process, over stores of each kind, and over the golden store."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.cli.app import checkpointer

GOLDEN = Path(__file__).parents[1] / "golden" / "v1" / "store"


@dataclass(frozen=True, slots=True)
class Result:
    """The status of a run, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.err == ""
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command with some arguments, without a terminal."""

    def call(*args: object) -> Result:
        with pytest.raises(SystemExit) as ended:
            checkpointer(list(map(str, args)))
        captured = capsys.readouterr()
        status = ended.value.code
        assert isinstance(status, int)
        return Result(status, captured.out, captured.err)

    return call


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """Return a root with checkpoints 1 and 2 (kept), 4 (committed) and 5 (prepared), of every codec, with segments."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "golden"))


def write_history(ck: Checkpointer) -> None:
    """Write checkpoints 1 to 3 of epochs 10 to 12: a keyed state, bytes, positions; 2 is savepoint "good"."""
    seen = KeyedState({"a": 1}, partitions=2)
    for number in range(1, 4):
        seen["n"] = number
        with ck.begin(epoch=9 + number) as cp:
            cp.save("seen", seen)
            cp.snapshot("blob", number % 2, b"blob %d" % number)
            cp.positions["orders"] = {"0": str(number)}
        if number == 2:
            ck.savepoint("good")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a local root with the history of `write_history`."""
    with Checkpointer(tmp_path / "root") as ck:
        write_history(ck)
    return tmp_path / "root"
