"""Answers of S3 that lack what a gateway has left out, codes of single keys, and a client that is too old."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.loaders import Loader

from pyspark_checkpointer.errors import DependencyError, StoreRefusedError, ThrottlingError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.s3 import client
from pyspark_checkpointer.storage.s3.errors import meaning, refusal
from pyspark_checkpointer.storage.s3.store import S3Store
from tests.storage.fake import gives, serving


class _Body:
    async def read(self, size: int = -1) -> bytes:
        return b""

    def close(self) -> None:
        pass


@pytest.mark.usefixtures("no_pauses")
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


@pytest.mark.parametrize("condition", ["IfMatch", "IfNoneMatch"])
def test_a_botocore_that_does_not_know_conditional_writes_is_refused(
    monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    """s3fs leaves out what botocore does not know, and the server would overwrite anything."""
    load: Callable[..., Any] = Loader.load_service_model

    def older(self: Loader, *arguments: Any, **options: Any) -> Any:
        model = copy.deepcopy(load(self, *arguments, **options))
        shapes = model.get("shapes", {})
        if "PutObjectRequest" in shapes:
            del shapes["PutObjectRequest"]["members"][condition]
        return model

    monkeypatch.setattr(Loader, "load_service_model", older)
    monkeypatch.setattr(client, "_loaders", {})
    with serving(gives(200, {}, ETag='"1"')) as server:
        store = server.place("s3").open()
        for call in (store.put("x", b"1"), store.compare_and_swap("_latest", b"1", None)):
            with pytest.raises(StoreRefusedError, match="this botocore has no conditional writes; upgrade it"):
                run_sync(call)
    assert server.requests == []
