"""Whether a query still runs, as far as it can be seen from here, and what a rewind makes of that."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint import liveness
from pyspark_checkpointer.checkpoint.liveness import _here, is_running, this_copier, this_driver
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests.model import Job
from tests.admin.streaming import spark_model
from tests.admin.streaming.spark_model import Query, history
from tests.cli.conftest import Run, run

__all__ = ["run"]


QUERY_ID = "8d0cd2dd-8c3b-4a9e-9f0e-3f0f6c1c8a11"


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process that does nothing for a while."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def answer(driver: str | None) -> str:
    return is_running(Job(QUERY_ID, "run", 1, driver))[0]


def test_a_process_is_known_by_its_number_and_its_start(other: subprocess.Popen[bytes]) -> None:
    start = started(other.pid)
    assert answer(f"{other.pid}.{start}@{_here()}") == "yes"
    assert answer(f"{other.pid}.{int(start) - 1}@{_here()}") == "no", "its number was taken by another one since"
    assert answer(f"{other.pid}@{_here()}") == "unknown", "who copied a query does not run it"
    assert answer(f"{other.pid}.{start}@elsewhere/0") == "unknown"
    assert answer(this_driver()) == answer(this_copier()) == "no"
    assert answer(f"{os.getpid()}.1@{_here()}") == "no", "of a process that had this number before"
    assert answer(None) == answer(f"@{_here()}") == answer(f"9.x.y@{_here()}/z") == "unknown"
    other.kill()
    other.wait()
    assert answer(f"{other.pid}.{start}@{_here()}") == "no"
    assert answer(f"{other.pid}@{_here()}") == "no"


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: subprocess.Popen[bytes]) -> Query:
    """A query whose driver is another process of this machine, which is alive."""
    driver = f"{other.pid}.{started(other.pid)}@{_here()}"
    monkeypatch.setattr(spark_model, "this_driver", lambda: driver)
    history(str(tmp_path / "root"))
    return Query(str(tmp_path / "root"))


def test_a_word_does_not_override_what_can_be_seen(query: Query, run: Run, other: subprocess.Popen[bytes]) -> None:
    before, latest = query.files(), Checkpointer(query.root).read_latest()
    for arguments in ((), ("--stopped",)):
        refused = run("rewind", query.root, "epoch=1", "--yes", *arguments)
        assert refused.status == 1
        assert "is alive" in refused.err
        assert "--stopped" not in refused.err
    with pytest.raises(InvalidStateError, match="is alive"):
        Checkpointer(query.root).rewind(to="epoch=1", stopped=True)
    assert (query.files(), Checkpointer(query.root).read_latest()) == (before, latest)
    other.kill()
    other.wait()
    assert run("rewind", query.root, "epoch=1", "--yes").status == 0
    assert query.run() == 2


def test_a_dry_run_says_that_the_rewind_would_be_refused(
    query: Query, run: Run, other: subprocess.Popen[bytes]
) -> None:
    shown = run("rewind", query.root, "epoch=1", "--dry-run")
    assert shown.status == 1
    assert "batch 4 → 1" in shown.out
    assert f"would be refused now: {query.root}: query" in shown.out
    assert "process" in run("rewind", query.root, "epoch=1", "--dry-run", "--json").json["refused"]
    other.kill()
    other.wait()
    shown = run("rewind", query.root, "epoch=1", "--dry-run")
    assert (shown.status, "Nothing was changed." in shown.out) == (0, True)


def test_a_query_that_is_active_in_this_process_is_seen(
    query: Query, run: Run, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    other.kill()
    other.wait()
    monkeypatch.setattr(liveness, "_askers", [lambda query_id: query_id == spark_model.QUERY])
    assert "active in this process" in run("rewind", query.root, "epoch=1", "--dry-run").out
    with pytest.raises(InvalidStateError, match="active in this process"):
        Checkpointer(query.root).rewind(to="epoch=1", stopped=True)


def test_who_forked_a_query_is_not_taken_for_its_driver(
    query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: subprocess.Popen[bytes]
) -> None:
    """A notebook that forked a query lives on, and cannot be told to end before the copy is rewound."""
    from pyspark_checkpointer.admin.streaming import fork

    monkeypatch.setattr(fork, "this_copier", lambda: f"{other.pid}@{_here()}")
    Checkpointer(query.root).fork("epoch=1", tmp_path / "copy", tmp_path / "copy-spark")
    copy = Checkpointer(tmp_path / "copy")
    (tmp_path / "copy-spark" / "commits" / "1").unlink()
    assert not copy.restore().job.driver.partition("@")[0].count(".")  # type: ignore[union-attr]
    with pytest.raises(InvalidStateError, match="may still run"):
        copy.rewind(to="latest")
    assert copy.rewind(to="latest", stopped=True).batch == 1


def test_a_driver_whose_start_cannot_be_read_is_not_taken_for_ended(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = f"{other.pid}.{started(other.pid)}@{_here()}"
    monkeypatch.setattr(liveness, "read_start", lambda pid: "")  # as where /proc shows nobody the processes of others
    assert answer(driver) == "unknown"
