"""Encode and decode the batch that wrote a manifest as JSON.

The JSON also says where Spark's progress is, so that a query can begin again after this batch.
"""

import re
from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.manifests.json_fields import FieldKind, Fields, Optional, Table, record
from pyspark_checkpointer.manifests.model import Job, Json, SparkProgress
from pyspark_checkpointer.manifests.shown import show

LIST_ENTRY = re.compile(r"[A-Za-z0-9_]+/[0-9]{1,18}")
"""A name in the `lists` of a job: the source, and the number of the entry."""

SOURCE = re.compile(r"[A-Za-z0-9_]+")
"""A name of a source of a streaming query."""

_OFFSETS = re.compile(r"v[0-9]+\n")


def encode_job(job: Job) -> Json:
    """Return the batch that wrote a manifest.

    The driver and Spark's progress are left out where they are not known.
    """
    value: dict[str, Json] = {"query_id": job.query_id, "run_id": job.run_id, "batch_id": job.batch_id}
    if job.driver is not None:
        value["driver"] = job.driver
    if (spark := job.spark) is not None:
        value["spark"] = {"location": spark.location, "offsets": spark.offsets, "before": list(spark.before)}
        if spark.lists:
            value["spark"]["lists"] = dict(sorted(spark.lists.items()))
        if spark.gone:
            value["spark"]["gone"] = dict(sorted(spark.gone.items()))
    return value


def _check_before(fields: Fields, key: str, value: Json) -> tuple[str, ...]:
    lines = fields.check_items(key, value)
    if not all(isinstance(line, str) for line in lines):
        fields.fail(f"{key}: expected lines of text, found {show(lines)}")
    return tuple(lines)


def _check_offsets(fields: Fields, key: str, value: Json) -> str:
    text = fields.check_text(key, value)
    if not _OFFSETS.match(text):
        fields.fail(f"{key}: expected a version, then lines, found {show(text)}")
    return text


def _texts(names: re.Pattern[str], what: str) -> FieldKind:
    """Return the check of texts by name. The field is left out where there are none."""

    def check(fields: Fields, key: str, value: Json) -> Mapping[str, str]:
        if (
            not isinstance(value, dict)
            or not value
            or not all(names.fullmatch(name) and isinstance(text, str) for name, text in value.items())
        ):
            fields.fail(f"{key}: expected {what}, found {show(value)}")
        return value

    return check


def _make_spark(*, lists: Mapping[str, str] | None, gone: Mapping[str, str] | None, **fields: Any) -> SparkProgress:
    return SparkProgress(lists=lists or {}, gone=gone or {}, **fields)


_SPARK: Table = {
    "before": _check_before,
    "location": Fields.check_text,
    "offsets": _check_offsets,
    "lists": Optional(_texts(LIST_ENTRY, "digests by <source>/<entry>")),
    "gone": Optional(_texts(SOURCE, "offsets by the names of sources")),
}

JOB: FieldKind = record(
    {
        "query_id": Fields.check_text,
        "run_id": Fields.check_text,
        "batch_id": Fields.check_integer,
        "driver": Optional(Fields.check_text),
        "spark": Optional(record(_SPARK, _make_spark)),
    },
    Job,
)
"""The batch that wrote a manifest."""
