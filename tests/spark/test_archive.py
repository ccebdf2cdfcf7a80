"""The archive of classes with which Java starts in tests: see `tests/jvm.py`."""

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests import jvm


def test_java_has_taken_the_archive(spark: SparkSession) -> None:
    """Java says nothing where it takes none, and each start takes a third longer."""
    archive = jvm.archive()
    if sys.platform != "linux" or archive is None or not archive.exists():
        pytest.skip("`make servers` makes the archive, for this Java and this PySpark")
    java = spark.sparkContext._gateway.proc.pid
    assert str(archive) in Path(f"/proc/{java}/maps").read_text()
