"""What was written as plain Parquet is the same table to Spark."""

from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_checkpointer import Checkpointer
from tests.table.test_export import root, wanted

__all__ = ["root"]


def test_spark_reads_each_row_of_one_version_once(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    Checkpointer(root).export_parquet("s4", tmp_path / "tables")
    found = spark.read.parquet(str(tmp_path / "tables" / "totals")).select("k", "n", "title").collect()
    assert sorted(map(tuple, found)) == wanted(root, "s4")
    (last,) = spark.read.parquet(str(tmp_path / "tables" / "seen")).where("key = '\"last\"'").collect()
    assert last.value == "4"
