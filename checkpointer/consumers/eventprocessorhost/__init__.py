"""Implement the checkpoint and lease managers of Event Processor Host.

Both work on any store of this library.

checkpoints = CheckpointManager("s3://bucket/jobs/orders", event_hub="clicks")
leases = checkpoints.leases()
lease = leases.get_lease("0")
if leases.acquire_lease(lease):
    checkpoints.update_checkpoint(lease, CheckpointInfo("0", offset="4096", sequence_number=17))
"""

from pyspark_checkpointer.consumers.eventprocessorhost.checkpoint_info import CheckpointInfo
from pyspark_checkpointer.consumers.eventprocessorhost.checkpoint_manager import CheckpointManager
from pyspark_checkpointer.consumers.eventprocessorhost.lease_manager import LeaseManager
from pyspark_checkpointer.consumers.eventprocessorhost.leases import CompleteLease

__all__ = ["CheckpointInfo", "CheckpointManager", "CompleteLease", "LeaseManager"]
