"""Start Spark's Python workers with all that tasks of tables need, through `spark.python.daemon.module`.

Spark forks Python workers from a daemon of each executor, and ends a worker that was idle for a minute. Each new worker
imports pandas, pyarrow and this library, which takes more than a second of a core. This daemon imports them once, and
the workers that are forked from it have them from the beginning. It is `pyspark.daemon` in all else.
"""

from contextlib import suppress

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

from pyspark_checkpointer.spark import apply_task  # noqa: F401
from pyspark_checkpointer.spark.dataframes import freeze_imports


def main() -> None:
    """Import the rest, and fork workers until Spark ends this process."""
    # Where pandas is missing, the check of `interpreter.py` names it; a daemon that dies would not.
    with suppress(ImportError):
        import pandas  # noqa: F401
    freeze_imports()  # here, so that no worker copies the pages that they share
    manager()


if __name__ == "__main__":
    main()
