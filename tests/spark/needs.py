"""What a test needs of Spark, and the first PySpark that has it."""

import pytest

from pyspark_checkpointer.spark.versions import is_at_least

DATA_SOURCES = "data sources in Python"
FILTERS = "filters that are offered to sources written in Python"
AQE = "adaptive execution in streaming queries, which brings few rows into one task"
EMPTY_STRUCTS = "structs without fields"
NAMED_SOURCES = "sources of streams that have names"
CONNECT = "sessions of Spark Connect as they are used here"
VARIANTS = "variants"
COLLATIONS = "text with a collation"


def needs_spark(version: str, what: str) -> pytest.MarkDecorator:
    """Skip a test on an older PySpark, by the name of what that lacks."""
    return pytest.mark.skipif(not is_at_least(version), reason=_reason(version, what))


def skip_before(version: str, what: str) -> None:
    """End a test, as skipped, where its rest needs a newer PySpark."""
    if not is_at_least(version):
        pytest.skip(_reason(version, what))


def _reason(version: str, what: str) -> str:
    return f"PySpark {version} is the first with {what}"
