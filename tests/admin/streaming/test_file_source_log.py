"""Check Spark's lists of files: find what a batch has read, or that it is missing."""

import json
from pathlib import Path

import pytest

from pyspark_checkpointer.admin.streaming.alignment import compare
from pyspark_checkpointer.admin.streaming.file_source_log import check_lists, digest, last_entries
from pyspark_checkpointer.admin.streaming.offset_log import same_offsets
from pyspark_checkpointer.errors import BatchResetError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job, SparkProgress
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_files


def listed(*entries: int, name: str = "f") -> str:
    """Return a file of a list: two files for each entry."""
    files = [{"path": f"file:///{name}{n}-{i}", "timestamp": 7, "batchId": n} for n in entries for i in (1, 2)]
    return "\n".join(["v1", *(json.dumps(file, separators=(",", ":")) for file in files)])


def job(entry: int, folder: str = "0", *, batch: int = 5, name: str = "f") -> Job:
    known = digest(listed(entry, name=name), entry)
    assert known is not None
    offsets = f'v1\n{{}}\n{{"logOffset":{entry}}}'
    return Job("q", "r", batch, None, SparkProgress("", offsets, (), {f"{folder}/{entry}": known}))


def check(location: Path, job: Job) -> None:
    run_sync(_check(location, job))


async def _check(location: Path, job: Job) -> None:
    store = open_files(location, None)
    try:
        await check_lists(store, job)
    finally:
        await store.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Entries 0 to 12, of which 9 is compacted, and those before it have been deleted."""
    folder = tmp_path / "sources" / "0"
    folder.mkdir(parents=True)
    (folder / "9.compact").write_text(listed(*range(10)))
    for n in (8, 10, 11, 12):
        (folder / str(n)).write_text(listed(n))
    return tmp_path


@pytest.mark.parametrize("entry", [0, 3, 8, 9, 10, 12])
def test_an_entry_is_found_wherever_spark_keeps_it(log: Path, entry: int) -> None:
    check(log, job(entry))
    with pytest.raises(InvalidStateError, match=f"as number {entry} are not those that batch 5 has read"):
        check(log, job(entry, name="g"))


def test_an_entry_that_is_lost_is_missed(log: Path) -> None:
    (log / "sources/0/11").unlink()
    with pytest.raises(InvalidStateError, match="as number 11 are not those"):
        check(log, job(11))
    with pytest.raises(InvalidStateError, match="ends with 12"):
        check(log, job(13))


def test_a_list_is_looked_for_where_spark_had_it(log: Path) -> None:
    """Two lines can be of one source; then there is one folder for both."""
    both = SparkProgress("", 'v1\n{}\n{"logOffset":10}\n{"logOffset":10}', (), job(10).spark.lists)  # type: ignore[union-attr]
    check(log, Job("q", "r", 5, None, both))
    unknown = SparkProgress("", 'v1\n{}\n-\n{"logOffset":10}', ())
    with pytest.raises(InvalidStateError, match="sources/1/: Spark's list of files ends with -1"):
        check(log, Job("q", "r", 5, None, unknown))
    (log / "sources/0").rename(log / "sources/orders")
    check(log, job(10, "orders"))


def test_lists_larger_than_other_files_of_spark_are_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_checkpointer.admin.streaming.offset_log.MAX_FILE", 10)
    check(log, job(3))


def test_the_lines_of_each_version() -> None:
    files = '{"logOffset":4}'
    assert last_entries([files, "-", '{"t":{"0":1}}', "7"]) == {"0": 4}
    assert last_entries([f"0:{files}", f"2024_in:{files}", "b:-"]) == {"0": 4, "2024_in": 4}
    assert last_entries(["5", files, files], {"0": "0", "1": "1", "2": "1"}) == {"1": 4}
    assert same_offsets(['2024_in:{"a": 1}'], ['2024_in:{"a":1}'])
    assert not same_offsets(['a:{"a":1}'], ['b:{"a":1}'])
    assert same_offsets(["a:1", "b:2"], ["b:2", "a:1"])
    assert not same_offsets(["1", "2"], ["2", "1"])
    assert not same_offsets(["t:1", "t:2"], ["t:0", "t:2"]), "they only look like named ones"


@pytest.mark.parametrize(("batch", "step"), [(5, "repeated"), (6, "next")])
def test_a_start_compares_the_entries_that_both_know(batch: int, step: str) -> None:
    last, here = job(4), job(4, batch=batch)
    if step == "next":
        here = Job("q", "r", batch, None, SparkProgress("", "v1\n{}\n-", ('{"logOffset":4}',), here.spark.lists))  # type: ignore[union-attr]
    assert compare("root", last, here) == step
    other = Job("q", "r", batch, None, SparkProgress("", here.spark.offsets, here.spark.before, {"0/4": "0" * 64}))  # type: ignore[union-attr]
    with pytest.raises(BatchResetError, match=r"others as 0/4 .* rewind root epoch=4`, or to an older one") as caught:
        compare("root", last, other)
    assert "continue" not in str(caught.value)
