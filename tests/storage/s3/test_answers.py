"""Answers of S3 that lack what a gateway in between has left out, and codes of single keys."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from pyspark_checkpointer.errors import DependencyError, ThrottlingError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.s3.errors import meaning, refusal
from pyspark_checkpointer.storage.s3.store import S3Store


class _Body:
    async def read(self, size: int = -1) -> bytes:
        return b""

    def close(self) -> None:
        pass


@pytest.mark.parametrize("lacks", ["ETag", "ContentLength"])
def test_an_answer_that_lacks_a_field_proves_nothing(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    """Any other error would say that a swap was refused, although the server has done it."""

    async def call(self: S3Store, method: str, **arguments: Any) -> Any:
        if not arguments["Key"].endswith("_latest"):
            raise ClientError({"Error": {"Code": "NoSuchKey"}, "ResponseMetadata": {"HTTPStatusCode": 404}}, method)
        whole = {"ETag": "1", "ContentLength": 0, "Body": _Body(), "ResponseMetadata": {"HTTPHeaders": {}}}
        return {name: value for name, value in whole.items() if name != lacks}

    monkeypatch.setattr(S3Store, "_call", call)
    store = open_store("s3://bucket/root")
    with pytest.raises(DependencyError, match=lacks):
        run_sync(store.get("_latest", limit=9))
    if lacks == "ETag":
        with pytest.raises(DependencyError, match=lacks):
            run_sync(store.compare_and_swap("_latest", b"1", None))


@pytest.mark.parametrize("code", ["SlowDown", "SlowDownRead", "SlowDownWrite"])
def test_a_key_that_is_slowed_down_is_deleted_later(code: str) -> None:
    assert isinstance(meaning(refusal(code, ""), "key", "s3://bucket/root", {}), ThrottlingError)
