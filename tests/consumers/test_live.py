"""What belongs to one process is not sent to another, nor copied; what ends without being closed is written or told."""

import copy
import json
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from pyspark_checkpointer.consumers.eventprocessorhost import CheckpointManager
from pyspark_checkpointer.consumers.journal import Journal
from pyspark_checkpointer.consumers.kinesis import ShardLeases, Worker
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from tests.consumers.journal.journals import AT


def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def checkpointer() -> Any:
    leases = ShardLeases(url(), "app")
    leases.create(["s"])
    one = leases.take("s")
    assert one is not None
    leases.deliver(one, [{"SequenceNumber": "1"}])
    return one


def complete_lease() -> Any:
    manager = CheckpointManager(url())
    leases = manager.leases()
    leases.create_lease_store_if_not_exists()
    leases.create_all_leases_if_not_exists(["0"])
    lease = leases.get_lease("0")
    assert lease is not None
    assert leases.acquire_lease(lease)
    return lease


LIVE: dict[str, Callable[[], Any]] = {
    "Journal": lambda: Journal(f"{url()}/journal.yml"),
    "RecordCheckpointer": checkpointer,
    "PreparedCheckpointer": lambda: checkpointer().prepare_checkpoint(),
    "CompleteLease": complete_lease,
    "Lease": lambda: complete_lease().hold,
    "Worker": lambda: Worker(ShardLeases(url(), "app"), print, dict),  # type: ignore[arg-type]
}


def in_a_closure(one: Any) -> Any:
    """Pickle a function that refers to it, as Spark does with a function for its tasks."""
    return pytest.importorskip("pyspark.cloudpickle").dumps(lambda: one)


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy, in_a_closure])
@pytest.mark.parametrize("name", LIVE)
def test_what_lives_in_one_process_is_refused_by_name(name: str, way: Callable[[Any], Any]) -> None:
    """A copy of a journal or of a lease would take updates that nobody writes."""
    with pytest.raises(IllegalArgumentError, match=f"^{name}: cannot be pickled, copied, sent to tasks"):
        way(LIVE[name]())


@pytest.mark.parametrize("make", [CheckpointStore, CheckpointManager, lambda root: CheckpointManager(root).leases("h")])
def test_what_is_configuration_may_be_sent(make: Callable[[str], Any]) -> None:
    client = make(url())
    assert type(pickle.loads(pickle.dumps(client))) is type(client)
    assert type(copy.deepcopy(client)) is type(client)


# ---- the end of a process --------------------------------------------------------------------------------------------

ENDS = {
    "journal": """
from pyspark_checkpointer.consumers.journal import Journal
journal = Journal(root + "/journal.yml", 1000, 3600, options)
journal.persist("log", 7, datetime(2026, 1, 1))
""",
    "eventhub": """
from pyspark_checkpointer.consumers.eventhub import CheckpointStore
store = CheckpointStore(root, options, max_updates=1000, interval=3600)
store.update_checkpoint({"fully_qualified_namespace": "n", "eventhub_name": "e", "consumer_group": "c",
                         "partition_id": "0", "sequence_number": 7, "offset": "7"})
""",
    "kinesis": """
from pyspark_checkpointer.consumers.kinesis import ShardLeases
leases = ShardLeases(root, "app", None, options, max_updates=1000, interval=3600)
leases.create(["s"])
one = leases.take("s")
leases.deliver(one, [{"SequenceNumber": "7"}])
one.checkpoint()
""",
}


def end(url: str, which: str, how: str = "", options: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    program = f"""
import json, os, sys
from datetime import datetime
root, options = json.loads(sys.argv[1])
{ENDS[which]}
{how}
"""
    given = json.dumps([url, options])
    return subprocess.run(
        [sys.executable, "-c", program, given], capture_output=True, text=True, timeout=120, check=False
    )


def recorded(url: str, which: str, options: dict[str, Any] | None = None) -> object:
    if which == "journal":
        with Journal(f"{url}/journal.yml", storage_options=options) as journal:
            return journal.states()["log"].record_number
    if which == "eventhub":
        with CheckpointStore(url, options) as store:
            return store.list_checkpoints("n", "e", "c")[0]["sequence_number"]
    with ShardLeases(url, "app", storage_options=options) as leases:
        one = leases.take("s", force=True)
        assert one is not None
        return int(one.position.sequence_number)


@pytest.mark.parametrize("how", ["", "sys.exit(3)", "raise KeyError('mine')"])
@pytest.mark.parametrize("which", ENDS)
def test_what_waits_when_a_process_ends_is_written(tmp_path: Path, which: str, how: str) -> None:
    done = end(str(tmp_path), which, how)
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(how, 1), done.stderr
    assert recorded(str(tmp_path), which) == 7


@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_what_waits_is_written_before_connections_are_closed(request: pytest.FixtureRequest, kind: str) -> None:
    server = request.getfixturevalue(f"{kind}_server")
    url = f"{server.url}/{uuid.uuid4().hex}"
    done = end(url, "eventhub", "", server.storage_options)
    assert (done.returncode, done.stderr) == (0, "")
    assert recorded(url, "eventhub", server.storage_options) == 7


@pytest.mark.parametrize("way", ["fork", "spawn", "thread"])
def test_what_waits_in_a_child_or_a_thread_is_written_when_that_ends(tmp_path: Path, way: str) -> None:
    """A child that `multiprocessing` forked runs no exit handlers; a thread may go on when the main one has ended."""
    program = """if True:
        import multiprocessing, sys, threading, time
        from datetime import datetime
        from pyspark_checkpointer.consumers.journal import Journal
        def work(file):
            journal = Journal(file, 1000, 3600)
            time.sleep(0.3)
            journal.persist("log", 7, datetime(2026, 1, 1))
            globals()["kept"] = journal
        if __name__ == "__main__":
            way, file = sys.argv[1:]
            if way == "thread":
                threading.Thread(target=work, args=(file,)).start()
            else:
                child = multiprocessing.get_context(way).Process(target=work, args=(file,))
                child.start()
                child.join()
                assert child.exitcode == 0
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program.replace("if True:", "", 1)))
    subprocess.run([sys.executable, script, way, tmp_path / "journal.yml"], timeout=120, check=True)
    assert recorded(str(tmp_path), "journal") == 7


@pytest.mark.parametrize("which", ENDS)
def test_what_cannot_be_written_when_a_process_ends_is_told(tmp_path: Path, which: str) -> None:
    done = end(str(tmp_path), which, "import shutil; shutil.rmtree(root); open(root, 'w').close()")
    assert "the process ends, and updates could not be written (1)" in done.stderr
    assert str(tmp_path) in done.stderr


# ---- a second use ----------------------------------------------------------------------------------------------------


def test_a_worker_runs_once_at_a_time() -> None:
    """A processor that runs its own worker would read the shard within a call for that shard."""
    raised: list[Exception] = []

    class Processor:
        def initialize(self, start: object) -> None:
            try:
                worker.run_once()
            except InvalidStateError as error:
                raised.append(error)

        def shutdown_requested(self, asked: object) -> None:
            pass

        def lease_lost(self, lost: object) -> None:
            pass

    leases = ShardLeases(url(), "app")
    leases.create(["s"])
    worker = Worker(leases, lambda *_: ([], False), Processor)  # type: ignore[arg-type]
    for _ in range(2):  # and it may run again
        worker.run_once()
    (error,) = raised
    assert "is running already" in str(error)
    worker.stop()
    worker.run()


# ---- odd values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_updates", [1, 100])
def test_what_no_position_can_hold_is_refused_before_it_is_acknowledged(max_updates: int) -> None:
    group = {"fully_qualified_namespace": "n", "eventhub_name": "e", "consumer_group": "c", "sequence_number": 1}
    with CheckpointStore(url(), max_updates=max_updates, interval=3600) as store:
        longest = "\0" * 16384
        store.update_checkpoint({**group, "partition_id": longest, "offset": longest})
        store.flush()
        assert [one["offset"] for one in store.list_checkpoints("n", "e", "c")] == [longest]
        for partition, offset in [(longest + "x", "1"), ("0", longest + "x")]:
            with pytest.raises(IllegalArgumentError, match="16385 characters, at most 16384"):
                store.update_checkpoint({**group, "partition_id": partition, "offset": offset})
        with pytest.raises(IllegalArgumentError, match="16385 characters, at most 16384"):
            store.claim_ownership([{**group, "partition_id": longest + "x", "owner_id": "me"}])
        store.flush()


def test_what_a_thread_persists_while_a_journal_is_shut_down(tmp_path: Path) -> None:
    """Every `persist` that returns is in the file once `shutdown` has returned; every other one raises."""
    for number in range(50):
        taken: list[int] = []
        file = tmp_path / f"{number}.yml"
        journal = Journal(file, 1000, 3600)

        def work(journal: Journal = journal, taken: list[int] = taken) -> None:
            for record in range(10_000):
                try:
                    journal.persist("log", record, AT)
                except InvalidStateError:
                    return
                taken.append(record)

        thread = threading.Thread(target=work)
        thread.start()
        while not taken:
            time.sleep(0)
        journal.shutdown()
        thread.join(60)
        with Journal(file) as again:
            assert again.states()["log"].record_number == taken[-1]
