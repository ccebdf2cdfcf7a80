"""Directory buckets (S3 Express) list whole folders only, in no order; the store does the rest."""

import random
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("s3fs")

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.base import Settings
from pyspark_checkpointer.storage.s3.store import S3Store
from pyspark_checkpointer.storage.url import parse
from tests.storage.s3.tiny_s3 import tiny_s3


class Bucket(S3Store):
    """A server that answers as a directory bucket: `InvalidRequest` for a prefix that is no folder."""

    def __init__(self, root: str, keys: list[str], bucket: str = "data--use1-az4--x-s3") -> None:
        url = f"s3://{bucket}/{root}".rstrip("/")
        super().__init__(parse(url), {}, Settings(fencing=True, concurrency=4, timeout=5.0))
        self.keys, self.asked = keys, list[str]()
        random.Random(1).shuffle(self.keys)

    async def _call(self, method: str, **given: Any) -> Any:
        prefix = given["Prefix"]
        self.asked.append(prefix)
        if self._bucket.endswith("--x-s3"):
            assert prefix == "" or prefix.endswith("/"), f"InvalidRequest: {prefix}"
        start = int(given.get("ContinuationToken", 0))
        found = [key for key in self.keys if key.startswith(prefix)]
        if "Delimiter" in given:
            folders = {prefix + key[len(prefix) :].split("/")[0] + "/" for key in found if "/" in key[len(prefix) :]}
            names = sorted(folders, reverse=True)
            return {"CommonPrefixes": [{"Prefix": name} for name in names], "IsTruncated": False}
        if method == "list_multipart_uploads":
            return {"Uploads": [{"Key": key, "UploadId": "1"} for key in found], "IsTruncated": False}
        page = [{"Key": key, "Size": 1} for key in found[start : start + 2]]
        more = start + 2 < len(found)
        return {"Contents": page, "IsTruncated": more} | ({"NextContinuationToken": str(start + 2)} if more else {})


NAMES = [
    "_latest",
    "manifests/0000000001-aaaaaaaa.json",
    "manifests/0000000002-bbbbbbbb.json",
    "manifests/0000000012-cccccccc.json",
    "manifests/segments/0000000001-aaaaaaaa.x",
    "artifacts/op/1/a",
    "artifacts/op/10/b",
    "artifacts/op/11/c",
    "artifacts/other/1/d",
]

PREFIXES = [
    "",
    "_",
    "_latest",
    "manifests/",
    "manifests/00000000",
    "manifests/000000000",
    "artifacts/op/1",
    "none",
    "no/x",
]


@pytest.mark.parametrize("root", ["", "jobs", "jobs/orders"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_listing_is_that_of_any_other_bucket(root: str, prefix: str) -> None:
    at = f"{root}/" if root else ""
    keys = [at + name for name in NAMES] + (["jobs-other/x", "jobsorders/y"] if root else [])
    found = [entry.path for entry in run_sync(Bucket(root, [*keys]).list(prefix))]
    plain = [entry.path for entry in run_sync(Bucket(root, [*keys], "data").list(prefix))]
    assert found == plain == sorted(name for name in NAMES if name.startswith(prefix))
    assert [Bucket(root, [], name).lists_whole_folders for name in ("data--use1-az4--x-s3", "data")] == [True, False]


@pytest.mark.parametrize("root", ["", "jobs"])
def test_folders_and_uploads_are_listed_too(root: str) -> None:
    at = f"{root}/" if root else ""
    bucket = Bucket(root, [at + name for name in NAMES])
    assert run_sync(bucket.folders("")) == ["artifacts/", "manifests/"]
    assert run_sync(bucket.folders("artifacts/op/")) == ["artifacts/op/1/", "artifacts/op/10/", "artifacts/op/11/"]
    assert {one.path for one in run_sync(bucket.leftovers())} == set(NAMES)


def test_other_buckets_are_asked_for_the_very_prefix() -> None:
    bucket = Bucket("jobs", [f"jobs/{name}" for name in NAMES], "data")
    run_sync(bucket.list("manifests/00000000"))
    assert set(bucket.asked) == {"jobs/manifests/00000000"}


def test_a_job_runs_and_is_cleaned_up_over_http() -> None:
    """The real client asks for a session first, and signs all other requests with it."""
    with tiny_s3(bucket="data--use1-az4--x-s3") as server:
        options = {"endpoint_url": server.endpoint, "key": "key", "secret": "secret"}
        with Checkpointer(f"s3://{server.bucket}/jobs", options) as ck:
            for number in range(12):
                with ck.begin(epoch=number) as attempt:
                    for partition in range(3):
                        attempt.snapshot("op", partition, b"%d/%d" % (number, partition))
            assert [ck.load_manifest(one).epoch for one in ck.list_checkpoints()] == [*range(12)]
            before = len(server.objects)
            ck.clean(RetentionPolicy(keep_last=2, grace=timedelta(0)))
            assert len(ck.list_checkpoints()) == 2
            assert len(server.objects) < before / 2
            restored = ck.restore()
            assert restored is not None
            assert restored.operator("op").partition(2) == [b"11/2"]
            assert ck.verify()
        sessions = [asked for asked in server.asked if asked.query == "session"]
        assert {asked.user for asked in sessions} == {"key"}
        assert {asked.user for asked in server.asked if asked not in sessions} == {"session"}
