"""What an older PySpark lacks is refused by name, with the version that has it. `make matrix` runs them all."""

import pyspark
import pytest

import pyspark_checkpointer.spark
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.spark import versions
from pyspark_checkpointer.spark.dataframes import struct_of
from pyspark_checkpointer.table.schema import Column, TableSchema


@pytest.mark.parametrize(
    ("version", "asked", "is_so"),
    [
        ("3.5.9", "3.5", True),
        ("3.4.4", "3.5", False),
        ("3.5.9", "4.0", False),
        ("4.0.5", "4.0", True),
        ("4.0.5", "4.1", False),
        ("4.10.0", "4.2", True),
        ("4.3.0.dev1", "4.3", True),
    ],
)
def test_versions_are_compared_by_their_numbers(
    monkeypatch: pytest.MonkeyPatch, version: str, asked: str, is_so: bool
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    assert versions.is_at_least(asked) is is_so


def test_what_needs_a_newer_spark_is_refused_with_the_version_and_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    with pytest.raises(IllegalArgumentError, match=r"^it needs PySpark 4\.0 or newer, and this is 3\.5\.9: do that$"):
        versions.refuse_before("4.0", "it", "do that")
    versions.refuse_before("3.5", "it", "do that")


COLUMNS = {
    "a variant": {"type": "variant"},
    "text with a collation": {"type": "string", "metadata": {"__COLLATIONS": {"v": "icu.UNICODE_CI"}}},
}


@pytest.mark.parametrize("what", COLUMNS)
def test_a_column_whose_type_this_spark_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(versions, "HAS_ALL_TYPES", False)
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    with pytest.raises(
        IllegalArgumentError,
        match=rf"column 'v' is {what}, which needs PySpark 4\.0 or newer, and this is 3\.5\.9: choose other",
    ):
        struct_of(columns(what))


@pytest.mark.parametrize("what", COLUMNS)
def test_the_same_column_is_taken_where_spark_has_its_type(what: str) -> None:
    if versions.HAS_ALL_TYPES:
        assert struct_of(columns(what)).names == ["k", "v"]


def columns(what: str) -> list[Column]:
    """The columns of a table."""
    given = [
        {"id": 1, "name": "k", "type": "long", "role": "key"},
        {"id": 2, "name": "v", "role": "last", **COLUMNS[what]},
    ]
    return list(TableSchema.from_json("t", {"columns": given, "next_id": 3}).columns)


def test_there_is_a_data_source_or_the_version_that_has_one_is_named() -> None:
    if versions.HAS_DATA_SOURCES:
        assert "CheckpointerSource" in pyspark_checkpointer.spark.__all__
        return
    assert "CheckpointerSource" not in pyspark_checkpointer.spark.__all__
    for package in (pyspark_checkpointer.spark, pyspark_checkpointer):
        name = "CheckpointerSource" if package is pyspark_checkpointer.spark else "DefaultSource"
        with pytest.raises(
            ImportError, match=r"CheckpointerSource needs PySpark 4\.0 or newer, and this is 3\.5\.\d+: r"
        ):
            getattr(package, name)
