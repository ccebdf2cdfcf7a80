"""What requests do to the checkpoints and leases of Event Processor Host when they are late, lost, or the last ones."""

import multiprocessing
import os
import pickle
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer.consumers.eventprocessorhost import (
    CheckpointInfo,
    CheckpointManager,
    CompleteLease,
    LeaseManager,
)
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.errors import CorruptionError, IllegalArgumentError, InvalidStateError, LeaseLostError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.runtime import forks, run_sync
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.requests import CrashError, Gate
from pyspark_checkpointer.testing.store import FaultyStore
from tests.consumers.eventprocessorhost import eph_hosts
from tests.consumers.world import LEASE, TestHost

FOLDER = object_paths.group_folder("eventprocessorhost", "default", "$Default")
PARTITIONS = ["0", "1", "2"]


class Faulty:
    """Its requests go through `faults`, and nothing is tried again below it. `host` has its clock."""

    def _make_core(self, context: StoreContext) -> Any:
        self.host = TestHost()
        self.faults = Faults()
        return super()._make_core(StoreContext(FaultyStore(context.store, self.faults), self.host))  # type: ignore[misc]

    def counts(self, work: Callable[[], object]) -> dict[str, int]:
        self.faults.forget()
        work()
        return dict(self.faults.counts)


class Checkpoints(Faulty, CheckpointManager):
    pass


class Leases(Faulty, LeaseManager):
    def acquired(self, partition: str = "0") -> CompleteLease:
        lease = self.get_lease(partition)
        assert lease is not None
        assert self.acquire_lease(lease)
        return lease

    def wait(self, seconds: float) -> None:
        self.host.seconds += seconds


class Root:
    def __init__(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"
        self.manager = self.checkpoints()
        self.create()

    def create(self) -> None:
        setup = self.leases("setup")
        setup.create_lease_store_if_not_exists()
        setup.create_all_leases_if_not_exists(PARTITIONS)
        self.manager.create_checkpoint_store_if_not_exists()
        self.manager.create_all_checkpoints_if_not_exists(PARTITIONS)

    def checkpoints(self, **options: Any) -> Checkpoints:
        return Checkpoints(self.url, **options)

    def leases(self, host_name: str) -> Leases:
        return Leases(self.url, host_name, lease_duration=LEASE)

    def objects(self) -> set[str]:
        return {entry.path for entry in run_sync(MemoryStore(self.url).list(""))}

    def number(self, partition: str = "0") -> int | None:
        found = CheckpointManager(self.url).get_checkpoint(partition)
        return None if found is None else found.sequence_number


@pytest.fixture
def root() -> Root:
    return Root()


def at(number: int, partition: str = "0") -> CheckpointInfo:
    return CheckpointInfo(partition, str(number), number)


def during(gate: Gate, work: Callable[[], object], meanwhile: Callable[[], object]) -> Any:
    """The result of `work`, which a gate holds until `meanwhile` was done."""
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(work)
        gate.wait()
        try:
            meanwhile()
        finally:
            gate.open()
        return result.result()


# ---- values ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("wrong", [None, "0", object()])
def test_only_leases_of_the_group_and_host_will_do(root: Root, wrong: Any) -> None:
    host, other = root.leases("host"), root.leases("other")
    lease = host.acquired()
    elsewhere = CheckpointManager(root.url, consumer_group="elsewhere")
    with pytest.raises(IllegalArgumentError):
        root.manager.update_checkpoint(wrong, at(1))
    with pytest.raises(IllegalArgumentError):
        root.manager.update_checkpoint(lease, wrong)
    with pytest.raises(IllegalArgumentError):
        elsewhere.update_checkpoint(lease, at(1))
    for verb in (other.acquire_lease, other.renew_lease, other.update_lease, other.release_lease, other.delete_lease):
        for given in (lease, wrong):
            with pytest.raises(IllegalArgumentError):
                verb(given)
    assert host.renew_lease(lease)


def test_one_name_is_no_list(root: Root) -> None:
    with pytest.raises(IllegalArgumentError):
        root.manager.create_all_checkpoints_if_not_exists("10")
    with pytest.raises(IllegalArgumentError):
        root.leases("host").create_all_leases_if_not_exists("10")


def test_hosts_have_names_of_their_own(root: Root) -> None:
    first, second = root.manager.leases(), root.manager.leases()
    assert first.host_name != second.host_name
    assert root.manager.leases("mine", lease_duration=5).lease_duration == 5
    for wrong in ("", 7):
        with pytest.raises(IllegalArgumentError):
            root.manager.leases(wrong)  # type: ignore[arg-type]


def test_managers_go_to_other_processes(root: Root) -> None:
    manager = CheckpointManager(root.url)
    host = manager.leases("host")
    copies = pickle.loads(pickle.dumps((manager, host)))
    lease = copies[1].get_lease("0")
    assert copies[1].acquire_lease(lease)
    copies[0].update_checkpoint(lease, at(3))
    assert root.number() == 3


def test_a_lease_stays_in_its_process(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = root.leases("host").acquired()
    monkeypatch.setattr(forks, "current", forks.Process())  # as in a forked child
    with pytest.raises(LeaseLostError):
        root.manager.update_checkpoint(lease, at(1))
    monkeypatch.undo()
    assert root.number() is None


# ---- requests --------------------------------------------------------------------------------------------------------


def test_an_update_is_one_request(root: Root) -> None:
    host, manager = root.leases("host"), root.checkpoints()
    lease = host.acquired()
    update = manager.update_checkpoint
    assert manager.counts(lambda: update(lease, at(1))) == {"get": 1}  # once: whether there is a store
    assert host.counts(lambda: update(lease, at(2))) == {"swap": 1}
    assert host.counts(lambda: update(lease, at(2))) == {"get": 1}
    assert manager.counts(lambda: update(lease, at(3))) == {}


def test_a_lease_is_renewed_by_updates_each_third_of_its_length(root: Root) -> None:
    host = root.leases("host")
    lease = host.acquired()
    swaps = []
    for number in range(7):
        swaps.append(host.counts(lambda number=number: root.manager.update_checkpoint(lease, at(number)))["swap"])
        host.wait(LEASE / 5)
    assert swaps == [1, 1, 2, 1, 2, 1, 2]


def test_leases_in_use_are_renewed_together_and_others_are_not(root: Root) -> None:
    host, other = root.leases("host"), root.leases("other")
    used, idle = [host.acquired("0"), host.acquired("1")], host.acquired("2")
    for lease in used:
        root.manager.update_checkpoint(lease, at(1, lease.partition_id))
    other.get_all_leases()
    host.wait(LEASE / 2)
    other.wait(LEASE / 2)
    assert host.counts(lambda: root.manager.update_checkpoint(used[0], at(2)))["swap"] == 2
    assert host.counts(lambda: root.manager.update_checkpoint(used[1], at(2, "1")))["swap"] == 1
    other.get_all_leases()
    other.wait(LEASE * 0.6)
    assert [lease.is_owned for lease in other.get_all_leases()] == [True, True, False]
    assert host.renew_lease(idle)  # nobody took it


def test_a_renewal_that_failed_is_made_up_for_all_leases(root: Root) -> None:
    """Also for those whose own update does not come again."""
    host, other = root.leases("host"), root.leases("other")
    used = [host.acquired("0"), host.acquired("1")]
    for lease in used:
        root.manager.update_checkpoint(lease, at(1, lease.partition_id))
    other.get_all_leases()
    host.wait(LEASE / 2)
    other.wait(LEASE / 2)
    host.faults.fail("swap", path="ownership", times=5)
    with pytest.raises(Exception, match="not known whether it took effect"):
        root.manager.update_checkpoint(used[0], at(2))
    root.manager.update_checkpoint(used[0], at(2))
    other.get_all_leases()
    other.wait(LEASE * 0.6)
    assert [lease.is_owned for lease in other.get_all_leases()] == [True, True, False]


def test_a_lease_that_was_used_once_is_not_renewed_for_ever(root: Root) -> None:
    host, other = root.leases("host"), root.leases("other")
    used, idle = host.acquired("0"), host.acquired("1")
    root.manager.update_checkpoint(idle, at(1, "1"))
    for number in range(6):
        root.manager.update_checkpoint(used, at(number))
        other.get_all_leases()
        host.wait(LEASE / 2)
        other.wait(LEASE / 2)
    assert [lease.is_owned for lease in other.get_all_leases()] == [True, False, False]


def test_what_leases_cost(root: Root) -> None:
    host = root.leases("host")
    assert host.counts(host.get_all_leases) == {"get": 1}
    lease = host.get_lease("0")
    assert lease is not None
    assert host.counts(lambda: host.acquire_lease(lease)) == {"get": 1, "swap": 3}
    assert host.counts(lambda: host.renew_lease(lease)) == {"swap": 1}
    root.manager.update_checkpoint(lease, at(1))
    assert host.counts(lambda: host.release_lease(lease)) == {"swap": 1}
    assert host.counts(lambda: host.acquire_lease(lease)) == {"swap": 2}  # its checkpoint proves the holder old
    host.release_lease(lease)
    other = root.leases("other")
    seen = other.get_lease("0")
    assert seen is not None
    assert other.counts(lambda: other.acquire_lease(seen)) == {"get": 1, "swap": 2}  # new to it, with a checkpoint


def test_creating_what_is_there_is_one_look(root: Root) -> None:
    host = root.leases("host")
    create = root.manager.create_all_checkpoints_if_not_exists
    assert root.manager.counts(lambda: create(PARTITIONS)) == {"get": 1, "list": 1}
    assert set(host.counts(lambda: host.create_all_leases_if_not_exists(PARTITIONS))) == {"get"}


# ---- fencing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, LEASE * 10])
def test_an_expired_lease_is_acquired_by_others_and_kept_where_nobody_did(root: Root, seconds: float) -> None:
    mine, other = root.leases("mine"), root.leases("other")
    lease = mine.acquired()
    free = other.get_lease("1")
    other.get_lease("0")
    for host in (mine, other):
        host.wait(seconds)
    root.manager.update_checkpoint(lease, at(1))
    other.wait(LEASE * 1.1)
    seen = other.get_lease("0")
    assert seen is not None
    assert seen.is_owned == (seconds > 0)  # it was renewed, just now in the eyes of the other
    assert free is not None
    assert not free.is_owned_by("mine")


def test_a_lease_stolen_between_renewal_and_write(root: Root) -> None:
    mine, thief = root.leases("mine"), root.leases("thief")
    lease = mine.acquired()
    root.manager.update_checkpoint(lease, at(1))
    mine.wait(LEASE / 2)  # so that it is renewed first
    gate = mine.faults.hold("swap", path="positions/0")

    def steal() -> None:
        root.manager.update_checkpoint(thief.acquired(), at(5))

    with pytest.raises(LeaseLostError):
        during(gate, lambda: root.manager.update_checkpoint(lease, at(9)), steal)
    assert root.number() == 5


def test_a_lease_stolen_before_its_renewal(root: Root) -> None:
    mine, thief = root.leases("mine"), root.leases("thief")
    lease = mine.acquired()
    mine.wait(LEASE / 2)
    gate = mine.faults.hold("swap", path="ownership")
    with pytest.raises(LeaseLostError):
        during(gate, lambda: root.manager.update_checkpoint(lease, at(9)), thief.acquired)
    assert root.number() is None
    assert "positions/0" not in " ".join(mine.faults.paths("swap")[2:])


def test_an_update_that_was_faster_than_a_thief_is_found_by_him(root: Root) -> None:
    mine, thief = root.leases("mine"), root.leases("thief")
    lease = mine.acquired()
    gate = thief.faults.hold("swap", path="positions/0")
    stolen = during(gate, thief.acquired, lambda: root.manager.update_checkpoint(lease, at(7)))
    assert root.number() == 7
    with pytest.raises(LeaseLostError):
        root.manager.update_checkpoint(lease, at(8))
    with pytest.raises(IllegalArgumentError, match=r"6 comes before 7"):
        root.manager.update_checkpoint(stolen, at(6))


def test_a_slow_acquisition_makes_no_holder_that_can_be_used(root: Root) -> None:
    """Its row was stolen meanwhile, and the holder of the thief deleted, so that it makes one itself."""
    slow, thief = root.leases("slow"), root.leases("thief")
    gate = slow.faults.hold("get", path="positions/0")
    lease = slow.get_lease("0")
    assert lease is not None

    def meanwhile() -> None:
        root.manager.update_checkpoint(thief.acquired(), at(5))
        root.manager.delete_checkpoint("0")

    assert during(gate, lambda: slow.acquire_lease(lease), meanwhile) is False
    with pytest.raises(LeaseLostError):
        root.manager.update_checkpoint(lease, at(3))
    assert root.number() is None


def test_a_holder_is_not_made_over_one_that_came_meanwhile(root: Root) -> None:
    host = root.leases("host")
    root.manager.delete_checkpoint("0")
    gate = root.manager.faults.hold("get", path="positions/0")

    def meanwhile() -> None:
        root.manager.update_checkpoint(host.acquired(), at(5))

    during(gate, lambda: root.manager.create_all_checkpoints_if_not_exists(PARTITIONS), meanwhile)
    assert root.number() == 5


def test_an_update_that_comes_after_a_deletion(root: Root) -> None:
    host = root.leases("host")
    lease = host.acquired()
    root.manager.update_checkpoint(lease, at(1))
    gate = host.faults.hold("swap", path="positions/0")
    with pytest.raises(LeaseLostError):
        during(gate, lambda: root.manager.update_checkpoint(lease, at(2)), root.manager.delete_checkpoint_store)
    assert not [path for path in root.objects() if path.startswith(object_paths.positions(FOLDER))]


@pytest.mark.parametrize("kind", ["renewal", "release"])
def test_a_lease_store_that_was_deleted_stays_so(root: Root, kind: str) -> None:
    mine, other = root.leases("mine"), root.leases("other")
    lease = mine.acquired()
    other.delete_lease_store()
    if kind == "renewal":
        assert not mine.renew_lease(lease)
    else:
        mine.release_lease(lease)
    assert not other.lease_store_exists()


@pytest.mark.parametrize("path", ["ownership", "positions/0"])
def test_an_acquisition_whose_answer_was_lost(root: Root, path: str) -> None:
    host = root.leases("host")
    host.faults.drop_answer(path=path)
    lease = host.acquired()
    assert (lease.owner, lease.epoch) == ("host", 1)
    root.manager.update_checkpoint(lease, at(1))
    assert root.number() == 1


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
    host.faults.fail("swap", times=5)
    with pytest.raises(Exception, match="not known whether it took effect"):
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


# ---- deletion --------------------------------------------------------------------------------------------------------


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


# ---- coalescing ------------------------------------------------------------------------------------------------------


def test_coalesced_updates_write_the_latest_of_each_partition(root: Root) -> None:
    host = root.leases("host")
    manager = root.checkpoints(max_updates=1000, interval=1000)
    leases = [host.acquired("0"), host.acquired("1")]
    host.faults.forget()
    for number in range(10):
        for lease in leases:
            manager.update_checkpoint(lease, at(number, lease.partition_id))
    assert dict(host.faults.counts) == {}
    assert (root.number("0"), root.number("1")) == (None, None)
    with pytest.raises(IllegalArgumentError, match="3 comes before 9"):
        manager.update_checkpoint(leases[0], at(3))
    manager.update_checkpoint(leases[0], at(9))
    manager.flush()
    assert dict(host.faults.counts) == {"swap": 2}
    assert (root.number("0"), root.number("1")) == (9, 9)


def test_leases_of_one_flush_are_renewed_together(root: Root) -> None:
    host = root.leases("host")
    manager = root.checkpoints(max_updates=1000, interval=1000)
    for name in PARTITIONS:
        manager.update_checkpoint(host.acquired(name), at(1, name))
    host.wait(LEASE / 2)
    assert host.counts(manager.flush) == {"swap": len(PARTITIONS) + 1}


def test_updates_that_wait_renew_their_lease_too(root: Root) -> None:
    host, other = root.leases("host"), root.leases("other")
    manager = root.checkpoints(max_updates=1000, interval=1000)
    lease = host.acquired()
    other.get_all_leases()
    for number in range(4):
        manager.update_checkpoint(lease, at(number))
        host.wait(LEASE / 2)
        other.wait(LEASE / 2)
        seen = other.get_lease("0")
        assert seen is not None
        assert seen.is_owned
    manager.flush()
    assert root.number() == 3


def test_an_update_that_would_wait_is_refused_if_its_renewal_finds_the_lease_lost(root: Root) -> None:
    host, other = root.leases("host"), root.leases("other")
    manager = root.checkpoints(max_updates=1000, interval=1000)
    lease = host.acquired()
    manager.update_checkpoint(lease, at(1))
    manager.flush()
    seen = other.get_lease("0")
    assert seen is not None
    assert other.acquire_lease(seen)
    host.wait(LEASE / 2)
    with pytest.raises(LeaseLostError):
        manager.update_checkpoint(lease, at(2))
    manager.flush()
    assert root.number() == 1


def test_a_coalesced_update_knows_what_stood_when_the_lease_was_acquired(root: Root) -> None:
    host = root.leases("host")
    lease = host.acquired()
    root.manager.update_checkpoint(lease, at(5))
    host.release_lease(lease)
    with root.checkpoints(max_updates=1000, interval=1000) as manager:
        lease = host.acquired()
        with pytest.raises(IllegalArgumentError, match="4 comes before 5"):
            manager.update_checkpoint(lease, at(4))
        manager.update_checkpoint(lease, at(6))
        assert manager.get_checkpoint("0") == at(6)
        manager.update_checkpoint(lease, at(7))
    assert root.number() == 7


def test_a_lease_acquired_again_begins_with_what_stands_then(root: Root) -> None:
    host = root.leases("host")
    with root.checkpoints(max_updates=1000, interval=1000) as manager:
        lease = host.acquired()
        manager.update_checkpoint(lease, at(9))
        host.release_lease(lease)
        manager.delete_checkpoint("0")
        assert host.acquire_lease(lease)
        manager.update_checkpoint(lease, at(1))
    assert root.number() == 1


def test_a_release_is_not_kept_from_by_an_older_update(root: Root, caplog: pytest.LogCaptureFixture) -> None:
    """An update under the lease before this one was given up, which says nothing about this one."""
    host = root.leases("host")
    with root.checkpoints(max_updates=1000, interval=1000) as manager:
        lease = host.acquired()
        manager.update_checkpoint(lease, at(9))
        manager.delete_checkpoint("0")
        assert host.acquire_lease(lease)
        manager.update_checkpoint(lease, at(1))
        host.release_lease(lease)
    found = root.leases("other").get_lease("0")
    assert found is not None
    assert (found.owner, root.number()) == ("", 1)
    assert "an update was not written" in caplog.text


def test_a_lease_acquired_again_writes_first_what_waits(root: Root) -> None:
    host = root.leases("host")
    with root.checkpoints(max_updates=1000, interval=1000) as manager:
        lease = host.acquired()
        manager.update_checkpoint(lease, at(8))
        assert host.acquire_lease(lease)
        assert root.number() == 8
        host.release_lease(lease)
    assert root.number() == 8


def test_a_checkpoint_of_another_partition_is_refused(root: Root) -> None:
    host = root.leases("host")
    root.manager.update_checkpoint(host.acquired("1"), at(900, "1"))
    store = MemoryStore(root.url)
    copied = run_sync(store.get(object_paths.position(FOLDER, "1"))).data
    run_sync(store.delete([object_paths.position(FOLDER, "0")]))
    run_sync(store.put(object_paths.position(FOLDER, "0"), copied))
    with pytest.raises(CorruptionError, match="holds the position of partition '1'"):
        root.manager.get_checkpoint("0")


def fail_to_release(host: Leases, lease: CompleteLease, folder: str) -> None:
    """Release a lease while no swap below a folder is answered."""
    host.faults.fail("swap", path=folder, times=5)
    with pytest.raises(Exception, match="not known whether it took effect"):
        host.release_lease(lease)


def test_a_release_that_failed_is_made_when_it_is_called_again(root: Root) -> None:
    host = root.leases("host")
    lease = host.acquired()
    fail_to_release(host, lease, "ownership")
    host.release_lease(lease)
    seen = root.leases("other").get_lease("0")
    assert seen is not None
    assert seen.owner == ""


def test_a_lease_that_is_lost_after_a_release_that_could_not_write_stays_lost(root: Root) -> None:
    host, thief = root.leases("host"), root.leases("thief")
    manager = root.checkpoints(max_updates=1000, interval=1000)
    lease = host.acquired()
    manager.update_checkpoint(lease, at(8))
    fail_to_release(host, lease, "positions")
    stolen = thief.acquired()
    assert not host.renew_lease(lease)
    assert host.counts(lambda: host.release_lease(lease)) == {}
    thief.release_lease(stolen)
    assert not host.acquire_lease(lease)
    with pytest.raises(LeaseLostError):  # nothing waits any more at the end of the process
        manager.flush()


def test_a_release_that_is_called_again_leaves_a_later_owner_alone(root: Root) -> None:
    host, other = root.leases("host"), root.leases("other")
    lease = host.acquired()
    fail_to_release(host, lease, "ownership")
    taken = other.acquired()
    host.release_lease(lease)
    assert other.renew_lease(taken)


def test_a_release_writes_first_what_waits(root: Root) -> None:
    host = root.leases("host")
    manager = root.checkpoints(max_updates=1000, interval=1000)
    lease = host.acquired()
    manager.update_checkpoint(lease, at(8))
    fail_to_release(host, lease, "positions")
    assert lease.is_owned
    host.release_lease(lease)
    assert root.number() == 8


def test_a_coalesced_update_of_a_lost_lease_is_told_once(root: Root) -> None:
    mine, thief = root.leases("mine"), root.leases("thief")
    manager = root.checkpoints(max_updates=1000, interval=1000)
    lost, kept = mine.acquired("0"), mine.acquired("1")
    manager.update_checkpoint(lost, at(8))
    manager.update_checkpoint(kept, at(9, "1"))
    root.manager.update_checkpoint(thief.acquired("0"), at(2))
    with pytest.raises(LeaseLostError):
        manager.flush()
    manager.flush()
    with pytest.raises(LeaseLostError):
        manager.update_checkpoint(lost, at(9))
    assert (root.number("0"), root.number("1")) == (2, 9)


def test_the_next_owner_does_not_hear_of_an_update_of_the_one_before(root: Root) -> None:
    mine, thief = root.leases("mine"), root.leases("thief")
    manager = root.checkpoints(max_updates=1000, interval=1000)
    manager.update_checkpoint(mine.acquired("0"), at(8))
    root.manager.update_checkpoint(thief.acquired("0"), at(2))
    assert manager.get_checkpoint("0") == at(2)
    with pytest.raises(LeaseLostError):
        manager.flush()
    manager.flush()


def test_a_damaged_holder_disturbs_only_its_own_lease(root: Root) -> None:
    host = root.leases("host")
    manager = root.checkpoints(max_updates=1000, interval=1000)
    damaged, fine = host.acquired("0"), host.acquired("1")
    path, store = object_paths.position(FOLDER, "0"), MemoryStore(root.url)
    before = run_sync(store.get(path)).data
    run_sync(store.delete([path]))
    run_sync(store.put(path, b"torn"))
    manager.update_checkpoint(damaged, at(8))
    manager.update_checkpoint(fine, at(9, "1"))
    assert manager.get_checkpoint("1") == at(9, "1")
    manager.update_checkpoint(fine, at(10, "1"))
    host.release_lease(fine)
    assert (fine.is_owned, root.number("1")) == (False, 10)
    for hear in (manager.flush, manager.close, lambda: host.release_lease(damaged)):
        with pytest.raises(CorruptionError, match=r"positions/0\.json"):
            hear()
    assert damaged.is_owned
    run_sync(store.delete([path]))
    run_sync(store.put(path, before))
    host.release_lease(damaged)
    assert root.number("0") == 8


@pytest.mark.parametrize("max_updates", [1, 1000])
def test_a_closed_manager_takes_no_updates_and_does_the_rest(root: Root, max_updates: int) -> None:
    host = root.leases("host")
    manager = root.checkpoints(max_updates=max_updates, interval=1000)
    lease = host.acquired()
    manager.update_checkpoint(lease, at(8))
    manager.close()
    for _ in range(2):
        with pytest.raises(InvalidStateError, match="was closed"):
            manager.update_checkpoint(lease, at(9))
    assert manager.get_checkpoint("0") == at(8)
    host.release_lease(lease)
    manager.close()


def test_a_failed_flush_keeps_what_waits(root: Root) -> None:
    host = root.leases("host")
    manager = root.checkpoints(max_updates=1000, interval=1000)
    lease = host.acquired()
    manager.update_checkpoint(lease, at(8))
    host.wait(LEASE / 2)
    host.faults.fail("swap", path="ownership", times=5)
    with pytest.raises(Exception, match="not known whether it took effect"):
        manager.flush()
    manager.flush()
    assert root.number() == 8


# ---- processes -------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("which", ["acquired", "seen", "seen by the next process"])
def test_an_expired_lease_that_nobody_took_is_released(tmp_path: Path, which: str) -> None:
    """What is given back by its row is given back for real: what waits under it is written, and others may take it."""
    with CheckpointManager(tmp_path, max_updates=100, interval=3600) as manager:
        leases, others = manager.leases("mine", lease_duration=0.05), manager.leases("other", lease_duration=3600)
        leases.create_lease_store_if_not_exists()
        manager.create_checkpoint_store_if_not_exists()
        leases.create_all_leases_if_not_exists(["0"])
        lease = leases.get_lease("0")
        assert lease is not None
        assert leases.acquire_lease(lease)
        manager.update_checkpoint(lease, CheckpointInfo("0", "1", 1))
        assert others.get_lease("0").is_owned  # type: ignore[union-attr]
        time.sleep(0.1)
        releasing = manager.leases("mine") if which == "seen by the next process" else leases
        given = lease if which == "acquired" else releasing.get_lease("0")
        assert given is not None
        if which == "seen by the next process":
            time.sleep(0.1)  # it has to see for itself that nobody renews it
        releasing.release_lease(given)
        assert (given.owner, given.is_owned) == ("", False)
        assert others.get_lease("0").owner == ""  # type: ignore[union-attr]
        assert lease.is_owned == (which == "seen by the next process")  # it is told once it renews
        assert not leases.renew_lease(lease)
        taken = others.get_lease("0")
        assert taken is not None
        assert others.acquire_lease(taken)
        if which == "seen by the next process":
            with pytest.raises(LeaseLostError):
                manager.flush()
        else:
            assert manager.get_checkpoint("0") == CheckpointInfo("0", "1", 1)


def test_a_live_lease_of_another_manager_of_the_same_name_is_not_released(tmp_path: Path) -> None:
    """It belongs to the manager that acquired it. Who wants to end that acquires it first, which the other is told."""
    with CheckpointManager(tmp_path) as manager:
        first, second = manager.leases("mine", lease_duration=3600), manager.leases("mine", lease_duration=0.05)
        first.create_lease_store_if_not_exists()
        manager.create_checkpoint_store_if_not_exists()
        first.create_all_leases_if_not_exists(["0"])
        lease = first.get_lease("0")
        assert lease is not None
        assert first.acquire_lease(lease)
        seen = second.get_lease("0")
        assert seen is not None
        time.sleep(0.1)  # longer than leases of its own last: this one is longer
        for _ in range(2):
            with pytest.raises(InvalidStateError, match=r"partition '0': 'mine' has it, .*acquire_lease\(\) it first"):
                second.release_lease(seen)
            assert seen.owner == "mine"
            assert first.renew_lease(lease)
        manager.update_checkpoint(lease, CheckpointInfo("0", "1", 1))
        other = manager.leases("other").get_lease("0")
        assert other is not None
        assert (other.owner, other.epoch, other.is_owned) == ("mine", lease.epoch, True)
        assert second.acquire_lease(seen)
        second.release_lease(seen)
        assert not first.renew_lease(lease)
        assert manager.leases("other").get_lease("0").owner == ""  # type: ignore[union-attr]


def test_a_lease_that_somebody_took_since_is_not_released_by_its_row(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        mine, other = manager.leases("mine"), manager.leases("other")
        mine.create_lease_store_if_not_exists()
        mine.create_all_leases_if_not_exists(["0"])
        lease, seen = mine.get_lease("0"), None
        assert lease is not None
        assert mine.acquire_lease(lease)
        seen, theirs = mine.get_lease("0"), other.get_lease("0")
        assert seen is not None
        assert theirs is not None
        assert other.acquire_lease(theirs)
        mine.release_lease(seen)
        assert other.renew_lease(theirs)
        assert mine.get_lease("0").owner == "other"  # type: ignore[union-attr]
