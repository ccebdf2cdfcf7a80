"""Tell sessions of Spark Connect from those of classic PySpark.

A classic session has Spark's driver, a JVM, behind it in the same process. A session of Spark Connect has a server
somewhere else. The function of foreachBatch runs beside this server then, in a Python process of its own, with a
session of Spark Connect too.
"""

import os

from pyspark_checkpointer.spark.versions import SPARK_CONNECT, refuse_before

_MODULE = "pyspark.sql.connect."
_SERVER = "SPARK_CONNECT_LOCAL_URL"


def is_connect(given: object) -> bool:
    """Return whether a session or DataFrame is one of Spark Connect.

    Raises `IllegalArgumentError` where this PySpark is too old for it.
    """
    if not type(given).__module__.startswith(_MODULE):
        return False
    refuse_before(SPARK_CONNECT, "Spark Connect", "use a classic session, made without a remote")
    return True


def runs_callbacks() -> bool:
    """Return whether this process runs functions of foreachBatch for Spark Connect.

    Spark starts such a process beside the server for each run of a query, and tells it where the server is.
    """
    return _SERVER in os.environ


__all__ = ["is_connect", "runs_callbacks"]
