"""The `job` of a manifest as JSON, and back: which batch of which query wrote it, and how far Spark was then."""

import re

from pyspark_checkpointer.manifests.json_fields import Fields
from pyspark_checkpointer.manifests.model import Job, Json, SparkProgress
from pyspark_checkpointer.manifests.shown import show

_OFFSETS = re.compile(r"v[0-9]+\n")
LIST_ENTRY = re.compile(r"[A-Za-z0-9_]+/[0-9]{1,18}")
"""A name in `lists`: the source, and the number of the entry."""


def encode_job(job: Job | None) -> Json:
    """Where the driver or Spark's progress is not known, the field is left out."""
    if job is None:
        return None
    value: dict[str, Json] = {"query_id": job.query_id, "run_id": job.run_id, "batch_id": job.batch_id}
    if job.driver is not None:
        value["driver"] = job.driver
    if (spark := job.spark) is not None:
        value["spark"] = {"location": spark.location, "offsets": spark.offsets, "before": list(spark.before)}
        if spark.lists:
            value["spark"]["lists"] = dict(sorted(spark.lists.items()))
    return value


def decode_job(fields: Fields | None) -> Job | None:
    if fields is None:
        return None
    driver, spark = fields.optional("driver"), fields.optional("spark")
    if driver is not None and not isinstance(driver, str):
        fields.fail(f"driver: expected text, found {show(driver)}")
    return Job(
        query_id=fields.text("query_id"),
        run_id=fields.text("run_id"),
        batch_id=fields.integer("batch_id"),
        driver=driver,
        spark=None if spark is None else _decode_spark(Fields(f"{fields.name}: spark", spark)),
    )


def _decode_spark(fields: Fields) -> SparkProgress:
    before = fields.items("before")
    if not all(isinstance(line, str) for line in before):
        fields.fail(f"before: expected lines of text, found {show(before)}")
    offsets = fields.text("offsets")
    if not _OFFSETS.match(offsets):
        fields.fail(f"offsets: expected a version, then lines, found {show(offsets)}")
    lists = fields.optional("lists")
    if not isinstance(lists, dict | None) or not all(
        LIST_ENTRY.fullmatch(name) and isinstance(digest, str) for name, digest in (lists or {}).items()
    ):
        fields.fail(f"lists: expected digests by <source>/<entry>, found {show(lists)}")
    return SparkProgress(fields.text("location"), offsets, tuple(before), lists or {})
