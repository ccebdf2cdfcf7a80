"""Make requests late, lost, or the last ones, and look at the checkpoints of Event Processor Host."""

import multiprocessing
import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer.consumers.eventprocessorhost import CheckpointInfo, CheckpointManager
from pyspark_checkpointer.errors import CorruptionError, IllegalArgumentError, LeaseLostError, OutcomeUnknownError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.testing.requests import CrashError
from tests.consumers.eventprocessorhost import eph_hosts
from tests.consumers.eventprocessorhost.eph_faults import FOLDER, PARTITIONS, Root, at, during
from tests.consumers.world import LEASE


@pytest.mark.parametrize(
    "fields",
    [
        ("", "0", 0),
        (0, "0", 0),
        ("0", "", 0),
        ("0", 0, 0),
        ("0", None, 0),
        ("0", "\ud800", 0),
        ("0", "0", -1),
        ("0", "0", 2**63),
        ("0", "0", "1"),
        ("0", "0", 1.0),
        ("0", "0", True),
    ],
)
def test_a_checkpoint_is_checked_when_it_is_made(fields: Any) -> None:
    with pytest.raises(IllegalArgumentError):
        CheckpointInfo(*fields)


def test_a_checkpoint_is_a_value() -> None:
    assert {CheckpointInfo("0", "0", 0): 1}[CheckpointInfo("0", offset="0", sequence_number=0)] == 1
    with pytest.raises(AttributeError):
        CheckpointInfo("0", "0", 0).offset = "1"  # type: ignore[misc]


def test_what_is_stored(root: Root) -> None:
    root.manager.update_checkpoint(root.leases("host").acquired(), CheckpointInfo("0", "4096", 17))
    data = run_sync(MemoryStore(root.url).get(object_paths.position(FOLDER, "0"))).data
    assert b'"value":{"offset":"4096","sequence_number":17}' in data


def put_value(root: Root, value: bytes) -> str:
    """Store something else as the value of partition 0, where there is none; the path."""
    store, path = MemoryStore(root.url), object_paths.position(FOLDER, "0")
    data = run_sync(store.get(path)).data
    body = data[: data.rindex(b',"digest"')].replace(b'"value":null', b'"value":' + value)
    run_sync(store.delete([path]))
    run_sync(store.put(path, body + b',"digest":"' + sha256(body).encode() + b'"}'))
    return path


@pytest.mark.parametrize("value", [b'{"offset":"1"}', b'{"offset":"","sequence_number":1}', b'"text"'])
def test_a_damaged_checkpoint_is_named(root: Root, value: bytes) -> None:
    lease = root.leases("host").acquired()
    path = put_value(root, value)
    for work in (lambda: root.manager.get_checkpoint("0"), lambda: root.manager.update_checkpoint(lease, at(1))):
        with pytest.raises(CorruptionError, match=re.escape(path)):
            work()


def test_what_others_keep_beside_a_checkpoint_stays(root: Root) -> None:
    lease = root.leases("host").acquired()
    path = put_value(root, b'{"offset":"1","sequence_number":1,"more":[1]}')
    root.manager.update_checkpoint(lease, at(2))
    assert root.number() == 2
    assert b'"more":[1]' in run_sync(MemoryStore(root.url).get(path)).data


def test_managers_go_to_other_processes(root: Root) -> None:
    manager = CheckpointManager(root.url)
    host = manager.leases("host")
    copies = pickle.loads(pickle.dumps((manager, host)))
    lease = copies[1].get_lease("0")
    assert copies[1].acquire_lease(lease)
    copies[0].update_checkpoint(lease, at(3))
    assert root.number() == 3


def test_an_update_is_one_request(root: Root) -> None:
    host, manager = root.leases("host"), root.checkpoints()
    lease = host.acquired()
    update = manager.update_checkpoint
    assert manager.counts(lambda: update(lease, at(1))) == {"get": 1}  # once: whether there is a store
    assert host.counts(lambda: update(lease, at(2))) == {"swap": 1}
    assert host.counts(lambda: update(lease, at(2))) == {"get": 1}
    assert manager.counts(lambda: update(lease, at(3))) == {}


def test_creating_what_is_there_is_one_look(root: Root) -> None:
    host = root.leases("host")
    create = root.manager.create_all_checkpoints_if_not_exists
    assert root.manager.counts(lambda: create(PARTITIONS)) == {"get": 1, "list": 1}
    assert set(host.counts(lambda: host.create_all_leases_if_not_exists(PARTITIONS))) == {"get"}


def test_an_update_that_comes_after_a_deletion(root: Root) -> None:
    host = root.leases("host")
    lease = host.acquired()
    root.manager.update_checkpoint(lease, at(1))
    gate = host.faults.hold("swap", path="positions/0")
    with pytest.raises(LeaseLostError):
        during(gate, lambda: root.manager.update_checkpoint(lease, at(2)), root.manager.delete_checkpoint_store)
    assert not [path for path in root.objects() if path.startswith(object_paths.positions(FOLDER))]


@pytest.mark.parametrize("path", ["ownership", "positions/0"])
def test_an_update_whose_answers_were_lost(root: Root, path: str) -> None:
    host = root.leases("host")
    lease = host.acquired()
    host.wait(LEASE / 2)
    host.faults.drop_answer(path=path)
    root.manager.update_checkpoint(lease, at(1))
    root.manager.update_checkpoint(lease, at(2))
    assert root.number() == 2


def test_an_update_that_failed_is_made_again(root: Root) -> None:
    host = root.leases("host")
    lease = host.acquired()
    host.faults.fail("swap", times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError, match="not known whether it took effect"):
        root.manager.update_checkpoint(lease, at(1))
    assert root.number() is None
    root.manager.update_checkpoint(lease, at(1))
    assert root.number() == 1


def test_threads_of_one_host_do_not_go_back(root: Root) -> None:
    host = root.leases("host")
    lease = host.acquired()
    start = threading.Barrier(4)

    def update(first: int) -> None:
        start.wait()
        for number in range(first, 40, 4):
            try:
                root.manager.update_checkpoint(lease, at(number))
            except IllegalArgumentError:
                assert (root.number() or 0) > number

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(update, range(4)))
    assert root.number() == 39


@pytest.mark.parametrize("after", [False, True])
def test_a_deletion_stopped_anywhere_goes_on_when_called_again(root: Root, after: bool) -> None:
    whole = root.checkpoints()
    assert whole.counts(whole.delete_checkpoint_store) == {"list": 1, "delete": 2}
    for number in range(1, 4):
        root.create()
        root.manager.update_checkpoint(root.leases("host").acquired(), at(1))
        stray = object_paths.positions(FOLDER) + "notes.txt"
        run_sync(MemoryStore(root.url).delete([stray]))
        run_sync(MemoryStore(root.url).put(stray, b"somebody's"))
        stopped = root.checkpoints()
        stopped.faults.crash(number, after=after)
        with pytest.raises(CrashError):
            stopped.delete_checkpoint_store()
        again = root.checkpoints()
        assert again.checkpoint_store_exists() or not [p for p in root.objects() if p.endswith("/0.json")]
        again.delete_checkpoint_store()
        assert not again.checkpoint_store_exists()
        left = {path for path in root.objects() if path.startswith(FOLDER)}
        assert left == {stray, object_paths.ownership(FOLDER)}
        again.create_checkpoint_store_if_not_exists()
        assert again.get_checkpoint("0") is None


def test_a_checkpoint_of_another_partition_is_refused(root: Root) -> None:
    host = root.leases("host")
    root.manager.update_checkpoint(host.acquired("1"), at(900, "1"))
    store = MemoryStore(root.url)
    copied = run_sync(store.get(object_paths.position(FOLDER, "1"))).data
    run_sync(store.delete([object_paths.position(FOLDER, "0")]))
    run_sync(store.put(object_paths.position(FOLDER, "0"), copied))
    with pytest.raises(CorruptionError, match="holds the position of partition '1'"):
        root.manager.get_checkpoint("0")


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_host_goes_on_where_one_that_was_stopped_left_off(tmp_path: Path, comes_back: bool) -> None:
    """The first is killed, or stands still for so long that it finds its leases lost when it comes back."""
    url, log = str(tmp_path / "root"), tmp_path / "log"
    log.touch()
    manager = CheckpointManager(url)
    setup = manager.leases("setup")
    setup.create_lease_store_if_not_exists()
    setup.create_all_leases_if_not_exists(eph_hosts.PARTITIONS)
    manager.create_checkpoint_store_if_not_exists()
    context = multiprocessing.get_context("spawn")
    how = {"stand_still_at": 20} if comes_back else {"until": eph_hosts.EVENTS // 2}
    first = context.Process(target=eph_hosts.work, args=(url, "a", str(log)), kwargs=how)
    second = context.Process(target=eph_hosts.work, args=(url, "b", str(log)))
    try:
        first.start()
        wait_until(lambda: log.read_bytes().count(b"\n") >= 20)
        if not comes_back:
            first.kill()
        second.start()
        wait_until(lambda: all(f"b {name} ".encode() in log.read_bytes() for name in eph_hosts.PARTITIONS))
        if comes_back:
            os.kill(first.pid or 0, signal.SIGCONT)
        second.join(60)
        assert second.exitcode == 0
        if comes_back:
            first.join(60)
            assert first.exitcode == 0
    finally:
        for process in (first, second):
            if process.pid is not None:
                process.kill()
                process.join()
    lines = [line.split() for line in log.read_text().splitlines()]
    for partition in eph_hosts.PARTITIONS:
        numbers = [int(number) for _, name, number in lines if name == partition and number != "lost"]
        assert set(numbers) == set(range(eph_hosts.EVENTS))
        seen = -1
        for number in numbers:
            assert number <= seen + 1, "an event was skipped"
            seen = max(seen, number)
        assert manager.get_checkpoint(partition) == at(eph_hosts.EVENTS - 1, partition)
        assert len(numbers) <= eph_hosts.EVENTS + 2, "what was checkpointed was processed again"
    assert comes_back == any(host == "a" and number == "lost" for host, _, number in lines)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for a minute"
        time.sleep(0.02)


@pytest.mark.parametrize("names", [range(2), [None], [b"0"], [""], "01", None, 5])
def test_what_is_no_list_of_partitions_is_refused_before_anything_is_written(root: Root, names: Any) -> None:
    manager, host = root.checkpoints(), root.leases("host")
    before = root.objects()
    for create in (manager.create_all_checkpoints_if_not_exists, host.create_all_leases_if_not_exists):
        with pytest.raises(IllegalArgumentError):
            create(names)
    for call in (manager.get_checkpoint, manager.delete_checkpoint):
        with pytest.raises(IllegalArgumentError):
            call(0)  # type: ignore[arg-type]
    assert root.objects() == before
