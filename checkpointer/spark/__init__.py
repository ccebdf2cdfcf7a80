"""State for Structured Streaming jobs: `@stateful(root)`.

The package also reads the tables that such jobs write.
"""

try:
    import pyarrow  # noqa: F401
    import pyspark.sql.datasource  # noqa: F401  # PySpark 4 added it.
except ImportError as error:
    raise ImportError(
        f"pyspark_checkpointer.spark needs PySpark 4 and pyarrow, and {error.name} is missing: "
        "pip install 'spark-state-checkpointer[spark]'",
        name=error.name,
    ) from error

from pyspark_checkpointer.spark.batch import Token
from pyspark_checkpointer.spark.can_restore import Compatibility, can_restore
from pyspark_checkpointer.spark.change_feed import read_changes
from pyspark_checkpointer.spark.cleanup import clean, frame_of, plan_cleanup
from pyspark_checkpointer.spark.datasource import CheckpointerSource
from pyspark_checkpointer.spark.other_state import OtherState
from pyspark_checkpointer.spark.raw_partitions import Delta, Snapshot
from pyspark_checkpointer.spark.read import diff, read_state
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
