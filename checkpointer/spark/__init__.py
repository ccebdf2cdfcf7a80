"""Keep state for Structured Streaming jobs: `@stateful(root)`.

The package also reads the tables that such jobs write.
"""

from typing import TYPE_CHECKING, Any

try:
    import pyarrow  # noqa: F401
    import pyspark.sql  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"pyspark_checkpointer.spark needs PySpark 3.5 or newer and pyarrow, and {error.name} is missing: "
        "pip install 'spark-state-checkpointer[spark]'",
        name=error.name,
    ) from error

from pyspark_checkpointer.spark.versions import DATA_SOURCES, HAS_DATA_SOURCES, OLDEST, is_at_least, needs

if not is_at_least(OLDEST):
    raise ImportError(needs("pyspark_checkpointer.spark", OLDEST))

from pyspark_checkpointer.spark.batch import Token
from pyspark_checkpointer.spark.can_restore import Compatibility, can_restore
from pyspark_checkpointer.spark.change_feed import read_changes
from pyspark_checkpointer.spark.cleanup import clean, frame_of, plan_cleanup
from pyspark_checkpointer.spark.difference import diff
from pyspark_checkpointer.spark.other_state import OtherState
from pyspark_checkpointer.spark.raw_partitions import Delta, Snapshot
from pyspark_checkpointer.spark.read import read_state
from pyspark_checkpointer.spark.state import State
from pyspark_checkpointer.spark.stateful import stateful
from pyspark_checkpointer.spark.table import TableState
from pyspark_checkpointer.table.change import Change
from pyspark_checkpointer.table.expiry import Expire
from pyspark_checkpointer.table.schema import Combine

__all__ = [
    "Change",
    "CheckpointerSource",
    "Combine",
    "Compatibility",
    "Delta",
    "Expire",
    "OtherState",
    "Snapshot",
    "State",
    "TableState",
    "Token",
    "can_restore",
    "clean",
    "diff",
    "frame_of",
    "plan_cleanup",
    "read_changes",
    "read_state",
    "stateful",
]

if TYPE_CHECKING or HAS_DATA_SOURCES:
    from pyspark_checkpointer.spark.datasource import CheckpointerSource
else:
    __all__.remove("CheckpointerSource")

    def __getattr__(name: str) -> Any:
        """Say why there is no data source."""
        if name == "CheckpointerSource":
            raise ImportError(
                needs("CheckpointerSource", DATA_SOURCES) + ": read_state(…) and read_changes(…) return the same rows"
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
