"""Durable, verifiable state for PySpark jobs: snapshots, deltas and an atomic pointer on any store.

`Checkpointer` blocks, `AsyncCheckpointer` is awaited; `KeyedState` is a mapping that knows what changed. The decorator
for foreachBatch is `checkpointer.spark.stateful`.
"""

from checkpointer import errors
from checkpointer.aio import AsyncCheckpointer
from checkpointer.keyed import KeyedState
from checkpointer.retention.plan import Plan
from checkpointer.retention.policies import RetentionPolicy
from checkpointer.sync import Checkpointer

__all__ = ["AsyncCheckpointer", "Checkpointer", "KeyedState", "Plan", "RetentionPolicy", "errors"]
