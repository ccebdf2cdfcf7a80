"""Updates of Event Processor Host that wait to be written together, and the leases that they wait under."""

import asyncio
from typing import Any

import pytest

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError, LeaseLostError, OutcomeUnknownError
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from tests.consumers.eventprocessorhost.eph_faults import PARTITIONS, Root, at, fail_to_release
from tests.consumers.world import LEASE


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


def test_a_release_writes_an_update_that_came_while_the_lease_was_acquired_again(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = root.leases("host")
    manager = root.checkpoints(max_updates=1000, interval=1000)
    lease = host.acquired()
    manager.update_checkpoint(lease, at(1))
    ownership = host._core.leases._ownership
    plain = ownership.change

    async def slow(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        await asyncio.to_thread(manager.update_checkpoint, lease, at(7))  # by the thread that reads
        return await plain(*args, **options)

    monkeypatch.setattr(ownership, "change", slow)
    assert host.acquire_lease(lease)
    host.release_lease(lease)
    assert root.number() == 7
    manager.flush()


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
    host.faults.fail("swap", path="ownership", times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError, match="not known whether it took effect"):
        manager.flush()
    manager.flush()
    assert root.number() == 8
