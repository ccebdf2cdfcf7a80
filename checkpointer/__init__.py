"""Durable, verifiable state for PySpark jobs: snapshots, deltas and an atomic pointer on any store.

`Checkpointer` blocks, `AsyncCheckpointer` is awaited; `KeyedState` is a mapping that knows what changed. The decorator
for foreachBatch is `checkpointer.spark.stateful`.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  # a zip of this package is installed by nobody who would refuse
    raise ImportError("checkpointer needs Python 3.11 or newer, this is Python {}.{}".format(*sys.version_info[:2]))

from checkpointer import errors
from checkpointer.admin.retention.plan import Plan
from checkpointer.admin.retention.policy import RetentionPolicy
from checkpointer.client._async import AsyncCheckpointer
from checkpointer.client._sync import Checkpointer
from checkpointer.keyed.state import KeyedState

__all__ = ["AsyncCheckpointer", "Checkpointer", "KeyedState", "Plan", "RetentionPolicy", "errors"]
