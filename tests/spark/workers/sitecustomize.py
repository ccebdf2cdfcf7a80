"""Import this library once, before Spark forks the processes that plan reads of its data source.

Spark forks them from `pyspark.daemon`, whatever `spark.python.daemon.module` says, and ends each one whose data source
raises an error. So each of them would import the library anew, which takes most of its time. Python imports this module
when it starts, in the processes of the session of tests.
"""

import sys

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    import pyspark_checkpointer.spark.datasource  # noqa: F401
    from pyspark_checkpointer.spark.dataframes import exempt_imports_from_gc

    exempt_imports_from_gc()
