"""Workers that are killed one after the other count every record once."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from examples import sharded_source
from examples.sharded_source import Clicks
from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.consumers.kinesis import LeaseLostInput, ProcessRecordsInput, ShardLeases, Worker
from pyspark_checkpointer.errors import InvalidStateError

REPOSITORY = Path(__file__).parents[2]


def test_no_record_is_lost_or_counted_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.sharded_source", "--folder", str(tmp_path), "--kills", "3"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=360, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    *kills, last = done.stdout.splitlines()
    counted = [int(re.search(r"([\d,]+) of", line)[1].replace(",", "")) for line in kills]  # type: ignore[index]
    assert last == "6,000 records counted, 6,000 written: exact"
    assert len(counted) == 3
    assert 0 < counted[-1] < 6000  # they were killed in the middle of it


@pytest.fixture
def one_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What was clicked in a source of one short shard in `tmp_path`."""
    for name, value in (("SHARDS", ["shard-0"]), ("RECORDS", 50), ("PAUSE", 0.0)):
        monkeypatch.setattr(sharded_source, name, value)
    return sharded_source.write_clicks(tmp_path)


def commit_as_another(folder: Path) -> None:
    """As the shard's owner before or after does: what it restored, once more."""
    with Checkpointer(folder / "state" / "shard-0") as state:
        restored = state.restore()
        with state.begin() as cp:
            cp.save("totals", restored.keyed("totals") if restored else KeyedState())
            cp.positions["clicks"] = restored.positions["clicks"] if restored else {"shard-0": "TRIM_HORIZON"}


def test_a_commit_of_the_owner_before_is_counted_upon(
    tmp_path: Path, one_shard: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = iter([commit_as_another])

    class Late(Clicks):
        def process_records(self, delivered: ProcessRecordsInput) -> None:
            for commit in others:
                commit(tmp_path)
            super().process_records(delivered)

    monkeypatch.setattr(sharded_source, "Clicks", Late)
    sharded_source.work(tmp_path)
    assert sharded_source.read_totals(tmp_path) == one_shard


def test_who_is_fenced_by_the_next_owner_goes_on_without_the_shard(tmp_path: Path, one_shard: Counter[str]) -> None:
    class Slow(Clicks):
        def process_records(self, delivered: ProcessRecordsInput) -> None:
            if self._position.is_record:  # it has committed once
                assert after.take("shard-0", force=True) is not None
                commit_as_another(tmp_path)
            super().process_records(delivered)

    with ShardLeases(tmp_path / "leases", "clicks") as before, ShardLeases(tmp_path / "leases", "clicks") as after:
        before.create(["shard-0"])
        worker = Worker(before, sharded_source.fetch_from(tmp_path), lambda: Slow(tmp_path))
        worker.run_once()
        worker.run_once()
        assert not before.held
    assert sharded_source.read_totals(tmp_path).total() == sharded_source.BATCH


@pytest.mark.parametrize("finished", [False, True])
def test_totals_that_were_rolled_back_are_not_added_to_past_a_gap(
    tmp_path: Path, one_shard: Counter[str], finished: bool
) -> None:
    class Brief(Clicks):
        def process_records(self, delivered: ProcessRecordsInput) -> None:
            super().process_records(delivered)
            worker.stop()

    with ShardLeases(tmp_path / "leases", "clicks") as leases:
        leases.create(["shard-0"])
        worker = Worker(leases, sharded_source.fetch_from(tmp_path), lambda: Brief(tmp_path))
        worker.run()
        first = Checkpointer(tmp_path / "state" / "shard-0").restore()
        assert first is not None
        worker.run()
        if finished:
            sharded_source.work(tmp_path)
        with Checkpointer(tmp_path / "state" / "shard-0") as state:
            state.rollback(first.id)
        position = tmp_path / "leases/progress/kinesis/clicks/positions/shard-0.json"
        with pytest.raises(InvalidStateError, match=rf"'shard-0'.*rolled back.*delete {position}"):
            sharded_source.work(tmp_path)
        position.unlink()
        if finished:
            leases.forget("shard-0")
            leases.create(["shard-0"])
        sharded_source.work(tmp_path)
    assert sharded_source.read_totals(tmp_path) == one_shard


def test_a_shard_that_was_not_begun_can_be_given_up(tmp_path: Path) -> None:
    Clicks(tmp_path).lease_lost(LeaseLostInput())
