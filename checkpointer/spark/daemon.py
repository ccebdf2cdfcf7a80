"""Import the packages for tasks of tables once, before Spark forks workers.

Set `spark.python.daemon.module` to the name of this module. Spark forks Python workers from a daemon of each executor,
and ends a worker that was idle for a minute. Each new worker imports pandas, pyarrow and this library, which takes more
than a second of CPU time. Workers that are forked from this daemon have them already. Otherwise it works like
`pyspark.daemon`.
"""

from contextlib import suppress

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

from pyspark_checkpointer.spark import apply_task  # noqa: F401
from pyspark_checkpointer.spark.dataframes import exempt_imports_from_gc


def main() -> None:
    """Import pandas too, and fork workers until Spark ends this process."""
    # Without pandas the daemon starts, too: `interpreter.py` then says what is missing, and a dead daemon cannot.
    with suppress(ImportError):
        import pandas  # noqa: F401
    # Before the fork: a garbage collection in a worker would write to memory that it shares with this process, and the
    # system would copy that memory.
    exempt_imports_from_gc()
    manager()


if __name__ == "__main__":
    main()
