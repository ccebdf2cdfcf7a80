"""The contract of Event Processor Host's checkpoint and lease managers, for whatever implements it."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer.consumers import store_context
from pyspark_checkpointer.consumers.eventprocessorhost import CheckpointInfo, CheckpointManager
from pyspark_checkpointer.errors import IllegalArgumentError, LeaseLostError, NotFoundError
from pyspark_checkpointer.storage import Store
from tests.consumers.eventprocessorhost.eph_model import ModelCheckpoints, ModelStore

PARTITIONS = ["0", "1"]

Open = Callable[..., Any]


@pytest.fixture(autouse=True)
def _trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a new root costs of requests, to prove that it keeps conditions, is spent once for all by other tests."""

    async def trust(store: Store) -> None:
        pass

    monkeypatch.setattr(store_context, "probe", trust)


@pytest.fixture(params=["model", "memory", "local", "s3", "azure"])
def open_manager(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the checkpoint manager of a group anew, on the same store."""
    kind, name = request.param, uuid.uuid4().hex
    if kind == "model":
        stores: dict[tuple[str, str], ModelStore] = {}
        return lambda event_hub="hub", consumer_group="group": ModelCheckpoints(
            stores.setdefault((event_hub, consumer_group), ModelStore())
        )
    url, options = {"memory": f"memory://{name}", "local": str(tmp_path / "root")}.get(kind, ""), {}
    if not url:
        server = request.getfixturevalue(f"{kind}_server")
        url, options = f"{server.url}/{name}", server.storage_options
    return lambda event_hub="hub", consumer_group="group": CheckpointManager(
        url, options, event_hub=event_hub, consumer_group=consumer_group
    )


@pytest.fixture
def manager(open_manager: Open) -> Any:
    return open_manager()


@pytest.fixture
def ready(manager: Any) -> Any:
    """With both stores, and a lease and a holder for each partition."""
    leases = manager.leases("setup")
    leases.create_lease_store_if_not_exists()
    manager.create_checkpoint_store_if_not_exists()
    leases.create_all_leases_if_not_exists(PARTITIONS)
    manager.create_all_checkpoints_if_not_exists(PARTITIONS)
    return manager


def acquired(leases: Any, partition: str = "0") -> Any:
    lease = leases.get_lease(partition)
    assert leases.acquire_lease(lease)
    return lease


def at(number: int, partition: str = "0") -> CheckpointInfo:
    return CheckpointInfo(partition, str(number * 234), number)


# ---- stores and holders ----------------------------------------------------------------------------------------------


def test_the_checkpoint_store_is_created_found_and_deleted(open_manager: Open) -> None:
    mine, other = open_manager(), open_manager()
    assert not mine.checkpoint_store_exists()
    for _ in range(2):
        other.create_checkpoint_store_if_not_exists()
        assert mine.checkpoint_store_exists()
    for _ in range(2):
        mine.delete_checkpoint_store()
        assert not other.checkpoint_store_exists()
    other.create_checkpoint_store_if_not_exists()
    assert mine.checkpoint_store_exists()


def test_the_lease_store_is_created_found_and_deleted(manager: Any) -> None:
    mine, other = manager.leases("mine"), manager.leases("other")
    assert not mine.lease_store_exists()
    assert (mine.get_lease("0"), mine.get_all_leases()) == (None, [])
    for _ in range(2):
        other.create_lease_store_if_not_exists()
        assert mine.lease_store_exists()
    for _ in range(2):
        mine.delete_lease_store()
        assert not other.lease_store_exists()
    assert not manager.checkpoint_store_exists()


def test_holders_and_leases_need_their_store(manager: Any) -> None:
    with pytest.raises(NotFoundError):
        manager.create_all_checkpoints_if_not_exists(PARTITIONS)
    with pytest.raises(NotFoundError):
        manager.leases("host").create_all_leases_if_not_exists(PARTITIONS)
    assert not manager.checkpoint_store_exists()
    assert not manager.leases("host").lease_store_exists()


def test_an_update_needs_the_checkpoint_store(manager: Any) -> None:
    leases = manager.leases("host")
    leases.create_lease_store_if_not_exists()
    leases.create_all_leases_if_not_exists(PARTITIONS)
    lease = acquired(leases)
    with pytest.raises(NotFoundError):
        manager.update_checkpoint(lease, at(1))
    assert manager.get_checkpoint("0") is None
    manager.create_checkpoint_store_if_not_exists()
    manager.update_checkpoint(lease, at(1))
    assert manager.get_checkpoint("0") == at(1)


def test_a_holder_is_no_checkpoint(ready: Any) -> None:
    assert [ready.get_checkpoint(name) for name in [*PARTITIONS, "no-such"]] == [None] * 3


def test_creating_again_keeps_what_is_there(ready: Any) -> None:
    leases = ready.leases("host")
    lease = acquired(leases)
    ready.update_checkpoint(lease, at(1))
    ready.create_checkpoint_store_if_not_exists()
    ready.create_all_checkpoints_if_not_exists([*PARTITIONS, "2"])
    leases.create_lease_store_if_not_exists()
    leases.create_all_leases_if_not_exists([*PARTITIONS, "2"])
    assert leases.renew_lease(lease)
    ready.update_checkpoint(lease, at(2))
    assert (ready.get_checkpoint("0"), ready.get_checkpoint("2")) == (at(2), None)
    assert sorted(lease.partition_id for lease in leases.get_all_leases()) == [*PARTITIONS, "2"]


def test_a_deleted_store_keeps_nothing(ready: Any) -> None:
    leases = ready.leases("host")
    for name in PARTITIONS:
        ready.update_checkpoint(acquired(leases, name), at(7, name))
    ready.delete_checkpoint_store()
    with pytest.raises(NotFoundError):
        ready.update_checkpoint(acquired(leases), at(8))
    ready.create_checkpoint_store_if_not_exists()
    ready.create_all_checkpoints_if_not_exists(PARTITIONS)
    assert [ready.get_checkpoint(name) for name in PARTITIONS] == [None] * 2


def test_groups_are_apart(open_manager: Open, ready: Any) -> None:
    ready.update_checkpoint(acquired(ready.leases("host")), at(1))
    for names in (("hub", "other"), ("other", "group")):
        other = open_manager(*names)
        assert not other.checkpoint_store_exists()
        assert not other.leases("host").lease_store_exists()
        other.create_checkpoint_store_if_not_exists()
        assert other.get_checkpoint("0") is None
        other.delete_checkpoint_store()
    assert ready.get_checkpoint("0") == at(1)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_what_one_host_updates_another_gets(open_manager: Open, ready: Any) -> None:
    leases, other = ready.leases("host"), open_manager()
    for number, name in enumerate(PARTITIONS):
        ready.update_checkpoint(acquired(leases, name), at(number, name))
    assert [other.get_checkpoint(name) for name in PARTITIONS] == [at(n, name) for n, name in enumerate(PARTITIONS)]


def test_the_largest_place_there_is(ready: Any) -> None:
    largest = CheckpointInfo("0", "x" * 1000, 2**63 - 1)
    ready.update_checkpoint(acquired(ready.leases("host")), largest)
    assert ready.get_checkpoint("0") == largest


def test_an_older_checkpoint_is_refused_and_an_equal_one_changes_nothing(ready: Any) -> None:
    lease = acquired(ready.leases("host"))
    ready.update_checkpoint(lease, at(5))
    with pytest.raises(IllegalArgumentError):
        ready.update_checkpoint(lease, at(4))
    ready.update_checkpoint(lease, at(5))
    ready.update_checkpoint(lease, CheckpointInfo("0", "another", 5))
    assert ready.get_checkpoint("0") == at(5)
    ready.update_checkpoint(lease, at(6))
    assert ready.get_checkpoint("0") == at(6)


def test_a_lease_is_for_its_partition_only(ready: Any) -> None:
    lease = acquired(ready.leases("host"), "0")
    with pytest.raises(IllegalArgumentError):
        ready.update_checkpoint(lease, at(1, "1"))
    assert ready.get_checkpoint("1") is None


def test_deleting_a_checkpoint_again_is_no_error(ready: Any) -> None:
    lease = acquired(ready.leases("host"))
    ready.update_checkpoint(lease, at(5))
    for _ in range(2):
        ready.delete_checkpoint("0")
        assert ready.get_checkpoint("0") is None
    ready.delete_checkpoint("no-such")


@pytest.mark.parametrize("again", [False, True])
def test_a_lease_from_before_a_deletion_brings_nothing_back(ready: Any, again: bool) -> None:
    leases = ready.leases("host")
    lease = acquired(leases)
    ready.update_checkpoint(lease, at(5))
    ready.delete_checkpoint("0")
    if again:
        ready.create_all_checkpoints_if_not_exists(PARTITIONS)
    with pytest.raises(LeaseLostError):
        ready.update_checkpoint(lease, at(6))
    assert ready.get_checkpoint("0") is None
    ready.update_checkpoint(acquired(leases), at(1))
    assert ready.get_checkpoint("0") == at(1)


# ---- leases ----------------------------------------------------------------------------------------------------------


def test_an_acquired_lease_says_so(ready: Any) -> None:
    leases = ready.leases("host")
    lease = leases.get_lease("0")
    assert (lease.partition_id, lease.owner, lease.is_owned) == ("0", "", False)
    before = lease.epoch
    assert leases.acquire_lease(lease)
    assert (lease.owner, lease.is_owned, lease.epoch) == ("host", True, before + 1)
    seen = ready.leases("other").get_lease("0")
    assert (seen.owner, seen.is_owned, seen.epoch) == ("host", True, before + 1)
    owned = {lease.partition_id: lease.is_owned for lease in leases.get_all_leases()}
    assert owned == {"0": True, "1": False}


def test_only_an_acquired_lease_may_update(ready: Any) -> None:
    leases = ready.leases("host")
    for lease in (leases.get_lease("0"), acquired(leases)):
        if not lease.is_owned:
            with pytest.raises(LeaseLostError):
                ready.update_checkpoint(lease, at(1))
            assert not leases.renew_lease(lease)
            assert ready.get_checkpoint("0") is None
    with pytest.raises(LeaseLostError):
        ready.update_checkpoint(leases.get_lease("0"), at(1))  # seen, not acquired, though this host has it


def test_a_stolen_lease_is_lost(ready: Any) -> None:
    mine, thief = ready.leases("mine"), ready.leases("thief")
    lease = acquired(mine)
    ready.update_checkpoint(lease, at(1))
    stolen = acquired(thief)
    with pytest.raises(LeaseLostError):
        ready.update_checkpoint(lease, at(2))
    assert ready.get_checkpoint("0") == at(1)
    assert not mine.renew_lease(lease)
    assert not mine.update_lease(lease)
    mine.release_lease(lease)  # given up already
    assert thief.renew_lease(stolen)
    ready.update_checkpoint(stolen, at(3))
    assert ready.get_checkpoint("0") == at(3)


def test_lost_and_regained_is_lost(ready: Any) -> None:
    mine, thief = ready.leases("mine"), ready.leases("thief")
    lease = acquired(mine)
    thief.release_lease(acquired(thief))
    again = acquired(mine)
    with pytest.raises(LeaseLostError):
        ready.update_checkpoint(lease, at(1))
    assert not mine.renew_lease(lease)
    assert ready.get_checkpoint("0") is None
    ready.update_checkpoint(again, at(1))
    assert ready.get_checkpoint("0") == at(1)


def test_a_lost_lease_is_not_acquired_again(ready: Any) -> None:
    mine, thief = ready.leases("mine"), ready.leases("thief")
    lease = acquired(mine)
    stolen = acquired(thief)
    assert not mine.renew_lease(lease)
    assert not mine.acquire_lease(lease)
    thief.release_lease(stolen)
    assert not mine.acquire_lease(lease)
    assert mine.acquire_lease(mine.get_lease("0"))


def test_a_lease_that_another_host_had_meanwhile_is_not_acquired_again(ready: Any) -> None:
    """Although it is free, and its loss was not noticed before."""
    mine, other = ready.leases("mine"), ready.leases("other")
    lease = acquired(mine)
    other.release_lease(acquired(other))
    assert not mine.acquire_lease(lease)
    assert mine.acquire_lease(mine.get_lease("0"))


def test_a_lease_is_stolen_from_the_owner_it_names_only(ready: Any) -> None:
    first, second, third = (ready.leases(name) for name in ("first", "second", "third"))
    free = third.get_lease("0")
    acquired(first)
    assert not third.acquire_lease(free)  # another was faster
    owned = third.get_lease("0")
    again = acquired(first)
    assert not third.acquire_lease(owned)
    assert first.renew_lease(again)
    owned = third.get_lease("0")
    assert first.renew_lease(again)
    later = acquired(second)
    assert not third.acquire_lease(owned)
    assert second.renew_lease(later)
    assert third.acquire_lease(third.get_lease("0"))


def test_a_released_lease_is_free_and_its_checkpoint_stays(ready: Any) -> None:
    mine, other = ready.leases("mine"), ready.leases("other")
    lease = acquired(mine)
    ready.update_checkpoint(lease, at(1))
    for _ in range(2):
        mine.release_lease(lease)
    assert (lease.owner, lease.is_owned) == ("", False)
    with pytest.raises(LeaseLostError):
        ready.update_checkpoint(lease, at(2))
    assert not mine.renew_lease(lease)
    assert other.get_lease("0").owner == ""
    next_one = acquired(other)
    assert ready.get_checkpoint("0") == at(1)
    with pytest.raises(IllegalArgumentError):
        ready.update_checkpoint(next_one, at(0))
    other.release_lease(next_one)
    assert mine.acquire_lease(lease)
    ready.update_checkpoint(lease, at(2))


def test_a_deleted_lease_is_lost(ready: Any) -> None:
    leases = ready.leases("host")
    lease, seen = acquired(leases), leases.get_lease("0")
    for _ in range(2):
        leases.delete_lease(seen)
        assert leases.get_lease("0") is None
    with pytest.raises(LeaseLostError):
        ready.update_checkpoint(lease, at(1))
    assert not leases.renew_lease(lease)
    assert not leases.acquire_lease(seen)
    leases.release_lease(lease)
    assert leases.get_lease("0") is None


def test_leases_of_a_deleted_store_are_lost(ready: Any) -> None:
    leases = ready.leases("host")
    lease, seen = acquired(leases), leases.get_lease("0")
    leases.delete_lease_store()
    with pytest.raises(LeaseLostError):
        ready.update_checkpoint(lease, at(1))
    assert not leases.renew_lease(lease)
    assert not leases.acquire_lease(seen)
    leases.release_lease(lease)
    leases.delete_lease(lease)
    assert not leases.lease_store_exists()


def test_a_lease_from_before_all_was_deleted_is_lost(ready: Any) -> None:
    before, after = ready.leases("before"), ready.leases("after")
    lease = acquired(before)
    after.delete_lease_store()
    ready.delete_checkpoint_store()
    after.create_lease_store_if_not_exists()
    after.create_all_leases_if_not_exists(PARTITIONS)
    ready.create_checkpoint_store_if_not_exists()
    new = acquired(after)
    assert new.epoch == lease.epoch
    with pytest.raises(LeaseLostError):
        ready.update_checkpoint(lease, at(9))
    ready.update_checkpoint(new, at(1))
    assert ready.get_checkpoint("0") == at(1)
