"""A source that a query leaves out and names again: Spark may read it anew, and the state knows."""

import pytest

from pyspark_checkpointer.admin.streaming.alignment import carry_gone, compare
from pyspark_checkpointer.errors import BatchResetError
from pyspark_checkpointer.manifests.model import Job, SparkProgress


def line(batches: list[dict[str, int]], version: str = "v2") -> list[Job]:
    """Return batches that read these sources up to these offsets."""
    jobs: list[Job] = []
    for number, sources in enumerate(batches):
        lines = tuple(f'{name}:{{"logOffset":{offset}}}' for name, offset in sources.items())
        before = tuple(jobs[-1].spark.offsets.split("\n")[2:]) if jobs else ()  # type: ignore[union-attr]
        job = Job("q", "r", number, None, SparkProgress("", "\n".join([version, "{}", *lines]), before))
        jobs.append(carry_gone(jobs[-1] if jobs else None, job))
    return jobs


def test_what_is_left_out_stays_known_until_it_is_named_again() -> None:
    jobs = line([{"a": 1, "b": 1}, {"b": 2}, {"b": 3, "c": 0}, {"c": 1}, {"a": 5, "c": 2}, {"a": 6, "c": 3}])
    gone = [{name: offset[-2] for name, offset in job.spark.gone.items()} for job in jobs]  # type: ignore[union-attr]
    assert gone == [{}, {"a": "1"}, {"a": "1"}, {"a": "1", "b": "3"}, {"b": "3"}, {"b": "3"}]
    for last, job in [(jobs[0], jobs[1]), (jobs[2], jobs[3]), (jobs[4], jobs[5])]:
        assert compare("root", last, job) == "next"
    with pytest.raises(
        BatchResetError, match=r'batch 4 with source a, which the state has read up to {"logOffset":1}:'
    ):
        compare("root", jobs[3], jobs[4])


def test_a_source_that_only_the_last_batch_lacked_goes_on() -> None:
    jobs = line([{"a": 1, "b": 1}, {"b": 2}, {"a": 2, "b": 3}])
    assert compare("root", jobs[1], jobs[2]) == "next"


def test_a_source_that_was_never_read_is_not_missed() -> None:
    first = Job("q", "r", 0, None, SparkProgress("", "v2\n{}\na:-\nb:1", ()))
    second = Job("q", "r", 1, None, SparkProgress("", "v2\n{}\nb:2", ("a:-", "b:1")))
    assert carry_gone(first, second).spark.gone == {}  # type: ignore[union-attr]


def test_other_queries_and_the_first_version_have_no_such_sources() -> None:
    first, second = line([{"a": 1, "b": 1}, {"b": 2}], "v1")
    assert second.spark.gone == {}  # type: ignore[union-attr]
    (other,) = line([{"b": 2}])
    assert carry_gone(Job("p", "r", 0, None, line([{"a": 1}])[0].spark), other) == other
    assert carry_gone(first, Job("q", "r", 1)).spark is None
