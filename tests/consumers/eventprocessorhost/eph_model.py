"""The contract of Event Processor Host in memory, as plain as it can be, for the tests of it to be tried on."""

from dataclasses import dataclass, field

from pyspark_checkpointer.consumers.eventprocessorhost import CheckpointInfo
from pyspark_checkpointer.errors import IllegalArgumentError, LeaseLostError, StoreNotFoundError


@dataclass(eq=False)
class ModelLease:
    partition_id: str
    owner: str
    epoch: int
    is_owned: bool
    held: bool = False


@dataclass
class _Row:
    owner: str = ""
    epoch: int = 0
    holder: ModelLease | None = None


@dataclass
class ModelStore:
    """One group's, for all its hosts. Leases here never expire."""

    rows: dict[str, _Row] | None = None
    checkpoints: dict[str, CheckpointInfo | None] | None = None
    fences: dict[str, ModelLease] = field(default_factory=dict)


class ModelCheckpoints:
    def __init__(self, store: ModelStore) -> None:
        self._store = store

    def leases(self, host_name: str) -> "ModelLeases":
        return ModelLeases(self._store, host_name)

    def checkpoint_store_exists(self) -> bool:
        return self._store.checkpoints is not None

    def create_checkpoint_store_if_not_exists(self) -> None:
        self._store.checkpoints = self._store.checkpoints or {}

    def delete_checkpoint_store(self) -> None:
        self._store.checkpoints = None
        self._store.fences.clear()

    def create_all_checkpoints_if_not_exists(self, partition_ids: list[str]) -> None:
        for name in partition_ids:
            self._there().setdefault(name, None)

    def get_checkpoint(self, partition_id: str) -> CheckpointInfo | None:
        return (self._store.checkpoints or {}).get(partition_id)

    def update_checkpoint(self, lease: ModelLease, checkpoint: CheckpointInfo) -> None:
        if lease.partition_id != checkpoint.partition_id:
            raise IllegalArgumentError("another partition")
        if not lease.held or self._store.fences.get(lease.partition_id) is not lease:
            raise LeaseLostError("lost")
        found = self._there().get(lease.partition_id)
        if found is not None and found.sequence_number > checkpoint.sequence_number:
            raise IllegalArgumentError("older")
        if found is None or found.sequence_number < checkpoint.sequence_number:
            self._there()[lease.partition_id] = checkpoint

    def delete_checkpoint(self, partition_id: str) -> None:
        (self._store.checkpoints or {}).pop(partition_id, None)
        self._store.fences.pop(partition_id, None)

    def _there(self) -> dict[str, CheckpointInfo | None]:
        if self._store.checkpoints is None:
            raise StoreNotFoundError("no checkpoint store")
        return self._store.checkpoints


class ModelLeases:
    def __init__(self, store: ModelStore, host_name: str) -> None:
        self._store, self.host_name = store, host_name

    def lease_store_exists(self) -> bool:
        return self._store.rows is not None

    def create_lease_store_if_not_exists(self) -> None:
        self._store.rows = self._store.rows or {}

    def delete_lease_store(self) -> None:
        for row in (self._store.rows or {}).values():
            self._end(row)
        self._store.rows = None

    def create_all_leases_if_not_exists(self, partition_ids: list[str]) -> None:
        if self._store.rows is None:
            raise StoreNotFoundError("no lease store")
        for name in partition_ids:
            self._store.rows.setdefault(name, _Row())

    def get_lease(self, partition_id: str) -> ModelLease | None:
        row = self._row(partition_id)
        return None if row is None else ModelLease(partition_id, row.owner, row.epoch, bool(row.owner))

    def get_all_leases(self) -> list[ModelLease]:
        return [
            ModelLease(name, row.owner, row.epoch, bool(row.owner)) for name, row in (self._store.rows or {}).items()
        ]

    def delete_lease(self, lease: ModelLease) -> None:
        row = (self._store.rows or {}).pop(lease.partition_id, None)
        if row is not None:
            self._end(row)

    def acquire_lease(self, lease: ModelLease) -> bool:
        row = self._row(lease.partition_id)
        if row is None or (lease.held and row.holder is not lease):
            return False
        if row.owner not in ("", self.host_name) and (row.owner, row.epoch) != (lease.owner, lease.epoch):
            return False
        if row.holder is not None:
            self._end(row)
        row.owner, row.epoch, row.holder = self.host_name, row.epoch + 1, lease
        lease.owner, lease.epoch, lease.held, lease.is_owned = row.owner, row.epoch, True, True
        self._store.fences[lease.partition_id] = lease
        return True

    def renew_lease(self, lease: ModelLease) -> bool:
        row = self._row(lease.partition_id)
        return row is not None and row.holder is lease

    update_lease = renew_lease

    def release_lease(self, lease: ModelLease) -> None:
        row = self._row(lease.partition_id)
        if row is not None and row.holder is lease:
            row.owner, row.holder = "", None
            lease.owner, lease.held, lease.is_owned = "", False, False

    def _row(self, partition_id: str) -> _Row | None:
        return (self._store.rows or {}).get(partition_id)

    def _end(self, row: _Row) -> None:
        if row.holder is not None and self._store.fences.get(row.holder.partition_id) is row.holder:
            del self._store.fences[row.holder.partition_id]
