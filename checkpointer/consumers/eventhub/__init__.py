"""Implement a checkpoint store for the consumer client of `azure-eventhub`.

It works on any store of this library.

    store = CheckpointStore("s3://bucket/jobs/orders")
    client = EventHubConsumerClient.from_connection_string(…, checkpoint_store=store)

For the client's asyncio half there is `pyspark_checkpointer.consumers.eventhub.aio.CheckpointStore`.
"""

from pyspark_checkpointer.consumers.eventhub._blocking import CheckpointStore

__all__ = ["CheckpointStore"]
