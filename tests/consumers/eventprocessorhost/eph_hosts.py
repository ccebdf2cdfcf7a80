"""A host of Event Processor Host, as plain as it can be, for tests that run it in processes of their own."""

import os
import signal

from pyspark_checkpointer.consumers.eventprocessorhost import CheckpointInfo, CheckpointManager, CompleteLease
from pyspark_checkpointer.errors import LeaseLostError

PARTITIONS = ["0", "1", "2", "3"]
EVENTS = 40
SECONDS = 1.0
"""The length of a lease."""


def work(url: str, name: str, log: str, until: int = EVENTS, stand_still_at: int | None = None) -> None:
    """Process the events of all partitions that can be had, each noted in `log` before it is checkpointed.

    With an `until` before the end it never ends. With `stand_still_at` it stops itself before that checkpoint, and ends
    where it finds a lease lost.
    """
    manager = CheckpointManager(url)
    leases = manager.leases(name, lease_duration=SECONDS)
    held: list[CompleteLease] = []
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    updates = 0
    while any(next_event(manager, partition) < EVENTS for partition in PARTITIONS):
        held += [lease for lease in leases.get_all_leases() if not lease.is_owned and leases.acquire_lease(lease)]
        for lease in held:
            number = next_event(manager, lease.partition_id)
            if number >= until:
                leases.renew_lease(lease)
                continue
            os.write(out, f"{name} {lease.partition_id} {number}\n".encode())
            updates += 1
            if updates == stand_still_at:
                os.kill(os.getpid(), signal.SIGSTOP)
            try:
                manager.update_checkpoint(lease, CheckpointInfo(lease.partition_id, str(number), number))
            except LeaseLostError:
                os.write(out, f"{name} {lease.partition_id} lost\n".encode())
                return


def next_event(manager: CheckpointManager, partition: str) -> int:
    found = manager.get_checkpoint(partition)
    return 0 if found is None else found.sequence_number + 1
