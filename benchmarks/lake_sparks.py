"""The table formats of lakes, and the Spark on which each of them runs.

Both lag behind Spark. So each has the newest Spark that it supports, in a folder that `tests/sparks.py` makes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.servers import cache
from tests.sparks import install_spark


@dataclass(frozen=True, slots=True)
class Lake:
    """A table format: its release for Spark, in Maven, and the settings of a session that uses it."""

    name: str
    spark: str
    package: str
    settings: Mapping[str, str]

    @property
    def release(self) -> str:
        return self.package.rpartition(":")[2]

    def install(self) -> Path:
        """Return the folder with its Spark, which is fetched unless it is there. Raises: ServerUnavailableError."""
        return install_spark(self.spark)

    def session_settings(self) -> dict[str, str]:
        """Return what a session needs. Spark fetches the jars at its first start."""
        return {"spark.jars.packages": self.package, "spark.jars.ivy": str(cache() / "lakes-ivy")} | dict(self.settings)


LAKES = {
    "delta": Lake(
        name="Delta",
        # Delta 4.4.0 takes no newer one by its own word. On 4.3 its MERGE fails with NoSuchMethodError, of LogicalRDD.
        spark="4.2.0",
        package="io.delta:delta-spark_4.2_2.13:4.4.0",
        settings={
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # Delta reads its log in 50 tasks unless told. Here a batch took more than twice as long with them.
            "spark.databricks.delta.snapshotPartitions": "1",
        },
    ),
    "iceberg": Lake(
        name="Iceberg",
        spark="4.1.4",  # there is no release for 4.2
        package="org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        settings={
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": "warehouse",  # in the current folder
            # With these three the join goes bucket by bucket, without a shuffle of the table.
            "spark.sql.sources.v2.bucketing.enabled": "true",
            "spark.sql.iceberg.planning.preserve-data-grouping": "true",
            "spark.sql.requireAllClusterKeysForCoPartition": "false",
        },
    ),
}
