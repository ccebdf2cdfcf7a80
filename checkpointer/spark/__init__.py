"""State for Structured Streaming jobs: `@stateful(root)` around a foreachBatch function."""

from checkpointer.spark.batch import Token
from checkpointer.spark.partitions import Delta, Snapshot
from checkpointer.spark.sink import stateful
from checkpointer.spark.state import State

__all__ = ["Delta", "Snapshot", "State", "Token", "stateful"]
