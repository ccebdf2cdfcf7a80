"""Keep tables in Arrow: schemas, merging, Parquet.

They need pyarrow, and work without Spark.
"""

try:
    import numpy
    import pyarrow
except ImportError as error:
    raise ImportError(
        f"tables need pyarrow and numpy, and {error.name} is missing: pip install 'spark-state-checkpointer[spark]'",
        name=error.name,
    ) from error

__all__ = ["numpy", "pyarrow"]
