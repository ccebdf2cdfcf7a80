"""Start Spark's Python workers with all that tasks of tables need, through `spark.python.daemon.module`.

Spark forks Python workers from a daemon of each executor, and ends a worker that was idle for a minute. Each new worker
imports pandas, pyarrow and this library, which takes more than a second of a core. This daemon imports them once, and
the workers that are forked from it have them from the beginning. It is `pyspark.daemon` in all else.
"""

import gc
import importlib
import sys

from pyspark.daemon import manager

LOADED = (
    *("pandas", "pyarrow.parquet", "pyarrow.compute"),
    *("pyspark_checkpointer.spark.apply_task", "pyspark_checkpointer.spark.datasource"),
)
"""What is imported besides the module of the workers themselves."""


def main() -> None:
    """Import all that is needed, and fork workers until Spark ends this process."""
    for name in (*sys.argv[1:2], *LOADED):
        importlib.import_module(name)
    # None of this becomes garbage, and collecting it in a worker would copy the pages that the processes share.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
