"""Keep checkpoints and leases for consumers of Kinesis streams.

They follow the contract of the Kinesis Client Library.

    leases = ShardLeases("s3://bucket/jobs/orders", "orders")
    leases.create(shard_ids)
    Worker(leases, fetch, Processor).run()

`fetch` reads from the stream; everything about positions and ownership is here, on any store of this library.
"""

from pyspark_checkpointer.consumers.kinesis.checkpointer import PreparedCheckpointer, RecordCheckpointer
from pyspark_checkpointer.consumers.kinesis.leases import ShardLeases
from pyspark_checkpointer.consumers.kinesis.processor import (
    InitializationInput,
    LeaseLostInput,
    ProcessRecordsInput,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from pyspark_checkpointer.consumers.kinesis.sequence import (
    AT_TIMESTAMP,
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from pyspark_checkpointer.consumers.kinesis.shards import Balance
from pyspark_checkpointer.consumers.kinesis.worker import Fetch, Worker
from pyspark_checkpointer.manifests.positions_json import Row

__all__ = [
    "AT_TIMESTAMP",
    "LATEST",
    "SHARD_END",
    "TRIM_HORIZON",
    "Balance",
    "ExtendedSequenceNumber",
    "Fetch",
    "InitializationInput",
    "LeaseLostInput",
    "PreparedCheckpointer",
    "ProcessRecordsInput",
    "RecordCheckpointer",
    "RecordProcessor",
    "Row",
    "ShardEndedInput",
    "ShardLeases",
    "ShutdownRequestedInput",
    "Worker",
]
