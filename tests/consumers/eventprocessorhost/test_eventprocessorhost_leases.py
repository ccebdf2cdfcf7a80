"""Leases of Event Processor Host that are renewed, stolen, lost and given back."""

import time
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer.consumers.eventprocessorhost import (
    CheckpointInfo,
    CheckpointManager,
    CompleteLease,
    LeaseManager,
)
from pyspark_checkpointer.errors import (
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    LeaseLostError,
    OutcomeUnknownError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.runtime import forks, run_sync
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from pyspark_checkpointer.storage.memory.store import MemoryStore
from tests.consumers.eventprocessorhost.eph_faults import FOLDER, PARTITIONS, Root, at, during, fail_to_release
from tests.consumers.world import LEASE


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


def test_a_lease_stays_in_its_process(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = root.leases("host").acquired()
    monkeypatch.setattr(forks, "current", forks.Process())  # as in a forked child
    with pytest.raises(LeaseLostError):
        root.manager.update_checkpoint(lease, at(1))
    monkeypatch.undo()
    assert root.number() is None


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
    host.faults.fail("swap", path="ownership", times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError, match="not known whether it took effect"):
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


@pytest.mark.parametrize("knows", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_a_lease_that_was_deleted_and_created_anew_is_acquired_by_its_old_owner(
    root: Root, times: int, knows: bool
) -> None:
    """Its epochs begin anew, below the one of the lease that was lost, or at the same."""
    host, admin = root.leases("host"), root.leases("admin")
    for _ in range(times):
        lost = host.acquired()
    deleted = admin.get_lease("0")
    assert deleted is not None
    admin.delete_lease(deleted)
    root.manager.delete_checkpoint("0")
    root.create()
    if knows:
        with pytest.raises(LeaseLostError):
            root.manager.update_checkpoint(lost, at(1))
    lease = host.acquired()
    root.manager.update_checkpoint(lease, at(2))
    with pytest.raises(LeaseLostError):
        root.manager.update_checkpoint(lost, at(3))
    assert root.number() == 2


@pytest.mark.parametrize("path", ["ownership", "positions/0"])
def test_an_acquisition_whose_answer_was_lost(root: Root, path: str) -> None:
    host = root.leases("host")
    host.faults.drop_answer(path=path)
    lease = host.acquired()
    assert (lease.owner, lease.epoch) == ("host", 1)
    root.manager.update_checkpoint(lease, at(1))
    assert root.number() == 1


@pytest.mark.parametrize("path", ["ownership", "positions/0"])
def test_a_lease_whose_renewed_acquisition_failed_is_acquired_by_the_next_call(root: Root, path: str) -> None:
    host = root.leases("host")
    lease = host.acquired()
    host.faults.fail("swap", path=path, times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError):
        host.acquire_lease(lease)
    assert host.acquire_lease(lease)
    root.manager.update_checkpoint(lease, at(1))
    assert root.number() == 1


def test_a_release_that_failed_is_made_when_it_is_called_again(root: Root) -> None:
    host = root.leases("host")
    lease = host.acquired()
    fail_to_release(host, lease, "ownership")
    host.release_lease(lease)
    seen = root.leases("other").get_lease("0")
    assert seen is not None
    assert seen.owner == ""


def test_a_release_that_is_called_again_leaves_a_later_owner_alone(root: Root) -> None:
    host, other = root.leases("host"), root.leases("other")
    lease = host.acquired()
    fail_to_release(host, lease, "ownership")
    taken = other.acquired()
    host.release_lease(lease)
    assert other.renew_lease(taken)


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


def first_acquired(manager: CheckpointManager, leases: LeaseManager) -> CompleteLease:
    """Create the stores and the lease of partition 0, and acquire it."""
    leases.create_lease_store_if_not_exists()
    manager.create_checkpoint_store_if_not_exists()
    leases.create_all_leases_if_not_exists(["0"])
    lease = leases.get_lease("0")
    assert lease is not None
    assert leases.acquire_lease(lease)
    return lease


@pytest.mark.parametrize("which", ["acquired", "seen", "seen by the next process"])
def test_an_expired_lease_that_nobody_took_is_released(tmp_path: Path, which: str) -> None:
    """Given back by its row, it is given back for real: what waits under it is written, and others may take it."""
    with CheckpointManager(tmp_path, max_updates=100, interval=3600) as manager:
        leases, others = manager.leases("mine", lease_duration=0.05), manager.leases("other", lease_duration=3600)
        lease = first_acquired(manager, leases)
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
        lease = first_acquired(manager, first)
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
        first_acquired(manager, mine)
        seen, theirs = mine.get_lease("0"), other.get_lease("0")
        assert seen is not None
        assert theirs is not None
        assert other.acquire_lease(theirs)
        mine.release_lease(seen)
        assert other.renew_lease(theirs)
        assert mine.get_lease("0").owner == "other"  # type: ignore[union-attr]
