"""Keep state for PySpark jobs, durable and verifiable.

It consists of snapshots, deltas and an atomic pointer, on any store.

`Checkpointer` blocks, `AsyncCheckpointer` is awaited. `KeyedState` is a mapping that records its changes. The decorator
for foreachBatch is `pyspark_checkpointer.spark.stateful`.
"""

import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"  # as in pyproject.toml: a zip file on the path has no metadata to read it from

if sys.version_info < (3, 11):  # noqa: UP036  # pip would refuse, but nobody installs a zip on the path
    raise ImportError(
        "pyspark_checkpointer needs Python 3.11 or newer, this is Python {}.{}".format(*sys.version_info[:2])
    )

if __name__ != "pyspark_checkpointer":  # imported from a checkout, by the name of the folder
    from pyspark_checkpointer.one_copy import import_as

    import_as(__name__, "pyspark_checkpointer")

# Only what every program needs: each further import would be paid by each task and each start of the command.
from pyspark_checkpointer import errors
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.keyed.state import KeyedState

if TYPE_CHECKING:
    from pyspark_checkpointer.admin.retention.plan import CleanupPlan
    from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
    from pyspark_checkpointer.client._async import AsyncCheckpointer

__all__ = ["AsyncCheckpointer", "Checkpointer", "CleanupPlan", "KeyedState", "RetentionPolicy", "errors"]

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that this knows

    def __getattr__(name: str) -> Any:
        """Import a name that not every program needs, when it is first asked for.

        `DefaultSource` is Spark's data source "checkpointer": Spark asks each module named `pyspark_…` for one.
        """
        if name == "AsyncCheckpointer":
            from pyspark_checkpointer.client._async import AsyncCheckpointer

            return AsyncCheckpointer
        if name == "CleanupPlan":
            from pyspark_checkpointer.admin.retention.plan import CleanupPlan

            return CleanupPlan
        if name == "RetentionPolicy":
            from pyspark_checkpointer.admin.retention.policy import RetentionPolicy

            return RetentionPolicy
        if name == "DefaultSource":
            from pyspark_checkpointer.spark import CheckpointerSource

            return CheckpointerSource
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the names that are not imported yet too, for completion in notebooks."""
    return sorted({*globals(), *__all__})
