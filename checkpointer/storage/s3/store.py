"""A root in a bucket of S3 or of a server that speaks its protocol, through s3fs.

Conditions are `If-Match` and `If-None-Match`; versions are ETags. Every request is one attempt: botocore's
and s3fs's own retries are off, since after a lost answer only the layers above can tell what happened.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pyspark_checkpointer.errors import CheckpointError, DependencyError, StoreRefusedError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage import cloud
from pyspark_checkpointer.storage.base import (
    Blob,
    Entry,
    Leftover,
    Listing,
    ObjectExistsError,
    ObjectNotFoundError,
    Page,
    PreconditionFailedError,
    S,
    check_path,
)
from pyspark_checkpointer.storage.connection import Connection, load, take_finalizers_off
from pyspark_checkpointer.storage.s3.errors import meaning, refusal
from pyspark_checkpointer.storage.url import Location

_CHUNK = 1 << 20
_DELETES = 1000
_PARTS = 10_000
_DIRECTORY = "--x-s3"
"""How the names of directory buckets end, and of no others."""


class S3Store(Listing):
    """The keys of a bucket below a prefix."""

    def __init__(
        self,
        location: Location,
        options: Mapping[str, Any],
        *,
        fencing: bool,
        concurrency: int,
        timeout: float,
    ) -> None:
        self._url, self._bucket, self._root = location.url, location.host, location.path
        self._options = dict(options)
        self._fencing = fencing
        self._concurrency, self._timeout = concurrency, timeout
        self._connection = Connection(self._connect, _close)

    def __repr__(self) -> str:
        return f"<S3Store {self._url}>"

    @property
    def url(self) -> str:
        return self._url

    @property
    def fencing(self) -> bool:
        return self._fencing

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        name = self._name(path)
        return await cloud.answer(self._get(path, limit), partial(self._error, name=name))

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        request = self._read_into(path, make(), limit)
        return await cloud.answer(request, partial(self._error, name=self._name(path)))

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        name, span = self._name(path), f"bytes={offset}-{offset + length - 1}"

        async def read() -> bytes:
            reply = await self._call("get_object", Key=self._at(path), Range=span)
            return await _read(reply["Body"])

        def translate(error: Exception) -> CheckpointError:
            return _PastTheEndError() if refusal(error).code == "InvalidRange" else self._error(error, name)

        try:
            return await cloud.answer(read(), translate)
        except _PastTheEndError:
            return b""

    async def put(self, path: str, data: Bytes) -> None:
        name = self._name(path)
        write = self._put_one if len(data) <= cloud.SINGLE else self._put_parts
        await cloud.answer(write(self._at(path), data), partial(self._put_error, name=name))

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        name = self._name(path)
        cloud.check_swap(name, data)
        if not self._fencing:
            await self._compare(path, expected)
            condition = {}
        else:
            condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
        request = self._call("put_object", Key=self._at(path), Body=data, **condition)
        reply = await cloud.answer(request, partial(self._swap_error, name=name))
        return str(reply["ETag"])

    async def list_page(self, prefix: str, more: object | None = None) -> Page:
        return await cloud.answer(self._list_page(prefix, more), partial(self._error, name=self._name(prefix)))

    async def folders(self, prefix: str) -> Sequence[str]:
        return await cloud.answer(self._folders(prefix), partial(self._error, name=self._name(prefix)))

    async def delete(self, paths: Sequence[str]) -> None:
        for some in cloud.batches([*paths], _DELETES):
            request = self._delete(some)
            await cloud.answer(request, partial(self._error, name=f"{self._url}: delete"))

    async def leftovers(self) -> Sequence[Leftover]:
        """Uploads in parts that were not completed. Some servers (MinIO) list them by full key only: none
        then."""
        return await cloud.answer(self._uploads(), partial(self._error, name=f"{self._url}: uploads"))

    async def discard(self, leftovers: Sequence[Leftover]) -> None:
        for leftover in leftovers:
            request = self._abort(self._at(leftover.path), leftover.token)
            with suppress(ObjectNotFoundError, DependencyError):
                await cloud.answer(request, partial(self._error, name=self._name(leftover.path)))

    async def close(self) -> None:
        await self._connection.close()

    # --- requests ---

    async def _connect(self) -> Any:
        return await cloud.answer(self._open(), partial(self._error, name=self._url))

    async def _open(self) -> Any:
        s3fs = await load("s3fs")
        options = {k: v for k, v in self._options.items() if k not in _FORCED}
        given = dict(options.pop("config_kwargs", None) or {})
        pool = max(cloud.connections(self._concurrency), given.get("max_pool_connections", 0))
        config = {"connect_timeout": min(self._timeout, 10.0), "read_timeout": self._timeout, **given}
        # One clear attempt: "standard" counts the first one, "legacy" would not.
        config |= {"retries": {"mode": "standard", "total_max_attempts": 1}, "max_pool_connections": pool}
        files = s3fs.S3FileSystem(**options, config_kwargs=config, **_FORCED)
        files.retries = 1
        files.session = _session(await load("aiobotocore.session"), files.kwargs)
        client = await files.set_session()
        take_finalizers_off(files)
        known = client.meta.service_model.operation_model("PutObject").input_shape.members
        if not {"IfMatch", "IfNoneMatch"} <= known.keys():
            # s3fs drops what botocore does not know: a swap would silently write over anything.
            raise StoreRefusedError(f"{self._url}: this botocore has no conditional writes; upgrade it")
        return files

    async def _call(self, method: str, **arguments: Any) -> Any:
        files = await self._connection.get()
        return await files._call_s3(method, Bucket=self._bucket, **arguments)

    async def _open_object(self, path: str, limit: int | None) -> Any:
        reply = await self._call("get_object", Key=self._at(path))
        if limit is not None and reply["ContentLength"] > limit:
            reply["Body"].close()
            raise cloud.too_large(self._name(path), limit, reply["ContentLength"])
        return reply

    async def _get(self, path: str, limit: int | None) -> Blob:
        reply = await self._open_object(path, limit)
        data = await _read(reply["Body"])
        self._check_whole(path, len(data), reply)
        return Blob(data, reply["ETag"], cloud.server_time(reply["ResponseMetadata"]["HTTPHeaders"].get("date")))

    async def _read_into(self, path: str, sink: S, limit: int | None) -> S:
        reply = await self._open_object(path, limit)
        self._check_whole(path, await cloud.pour(_pieces(reply["Body"]), sink), reply)
        return sink

    def _check_whole(self, path: str, found: int, reply: Any) -> None:
        if found != reply["ContentLength"]:
            raise DependencyError(
                f"{self._name(path)}: the answer broke off after {found} of {reply['ContentLength']} bytes"
            )

    async def _put_one(self, key: str, data: Bytes) -> None:
        await self._call("put_object", Key=key, Body=cloud.body_of(data), **self._if_absent())

    async def _put_parts(self, key: str, data: Bytes) -> None:
        upload = (await self._call("create_multipart_upload", Key=key))["UploadId"]

        async def send(number: int, part: io.BytesIO) -> dict[str, Any]:
            reply = await self._call("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=part)
            sums = {name: value for name, value in reply.items() if name in _CHECKSUMS}
            return {"PartNumber": number, "ETag": reply["ETag"], **sums}

        try:
            parts = await cloud.upload_parts(data, cloud.part_size(len(data), _PARTS), send)
            await self._call(
                "complete_multipart_upload",
                Key=key,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                **self._if_absent(),
            )
        except BaseException:
            # Parts of an upload that is never completed are paid for until somebody aborts it.
            await asyncio.shield(asyncio.ensure_future(cloud.clean_up(self._abort(key, upload))))
            raise

    async def _abort(self, key: str, upload: str) -> None:
        await self._call("abort_multipart_upload", Key=key, UploadId=upload)

    async def _list_page(self, prefix: str, more: object | None) -> Page:
        after = {} if more is None else {"ContinuationToken": more}
        page = await self._call("list_objects_v2", Prefix=self._listed(prefix), **after)
        entries = []
        for found in page.get("Contents", []):
            path = found["Key"].removeprefix(self._key(""))
            if path.startswith(prefix) and path and not path.endswith("/"):  # a folder, as consoles make them
                entries.append(Entry(path, found["Size"]))
        return Page(entries, page["NextContinuationToken"] if page.get("IsTruncated") else None)

    async def _folders(self, prefix: str) -> Sequence[str]:
        found = []
        async for page in self._pages("list_objects_v2", "NextContinuationToken", prefix, Delimiter="/"):
            found += [folder["Prefix"].removeprefix(self._key("")) for folder in page.get("CommonPrefixes", [])]
        return found

    async def _uploads(self) -> Sequence[Leftover]:
        found = []
        async for page in self._pages("list_multipart_uploads", "NextUploadIdMarker", ""):
            for upload in page.get("Uploads", []):
                found.append(Leftover(upload["Key"].removeprefix(self._key("")), upload["UploadId"]))
        return found

    async def _pages(self, method: str, token: str, prefix: str, **given: str) -> AsyncIterator[Any]:
        more: dict[str, str] = {}
        while True:
            page = await self._call(method, Prefix=self._listed(prefix), **given, **more)
            yield page
            if not page.get("IsTruncated"):
                return
            more = {token.removeprefix("Next"): page[token]}
            if "NextKeyMarker" in page:
                more["KeyMarker"] = page["NextKeyMarker"]

    async def _delete(self, paths: Sequence[str]) -> None:
        objects = [{"Key": self._at(path)} for path in paths]
        reply = await self._call("delete_objects", Delete={"Objects": objects, "Quiet": True})
        for failed in reply.get("Errors", []):
            code = failed.get("Code", "")
            if code not in ("NoSuchKey", "NoSuchVersion"):
                name = f"{self._url}: delete {failed.get('Key', '')}"
                raise meaning(refusal(code, failed.get("Message", "")), name, self._url, self._options)

    async def _compare(self, path: str, expected: str | None) -> None:
        """The check of `fencing="none"`: it tells of a change that came before, not of one that comes
        meanwhile."""
        try:
            found: str | None = (await self.get(path)).version
        except ObjectNotFoundError:
            found = None
        if found != expected:
            raise PreconditionFailedError(f"{self._name(path)}: was changed by somebody else")

    def _if_absent(self) -> dict[str, str]:
        return {"IfNoneMatch": "*"} if self._fencing else {}

    def _at(self, path: str) -> str:
        return self._key(check_path(path))

    def _key(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root else path

    def _listed(self, prefix: str) -> str:
        """Return what to ask for to list `prefix`. A directory bucket (S3 Express) lists whole folders only."""
        key = self._key(prefix)
        return key[: key.rfind("/") + 1] if self._bucket.endswith(_DIRECTORY) else key

    def _name(self, path: str) -> str:
        return f"{self._url}/{path}"

    def _error(self, error: Exception, name: str) -> CheckpointError:
        return meaning(refusal(error), name, self._url, self._options)

    def _put_error(self, error: Exception, name: str) -> CheckpointError:
        if refusal(error).code == "PreconditionFailed":
            return ObjectExistsError(f"{name}: exists already")
        return self._error(error, name)

    def _swap_error(self, error: Exception, name: str) -> CheckpointError:
        if refusal(error).code in ("PreconditionFailed", "NoSuchKey"):
            return PreconditionFailedError(f"{name}: was changed by somebody else")
        return self._error(error, name)


# Nothing of a user's options may bring back caches, shared instances or requests that read old versions.
_FORCED = {
    "asynchronous": False,
    "skip_instance_cache": True,
    "use_listings_cache": False,
    "version_aware": False,
}

_CHECKSUMS = {"ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256"}


_loaders: dict[str | None, Any] = {}


def _session(package: Any, arguments: Mapping[str, Any]) -> Any:
    """Return the session that s3fs would make, but botocore's descriptions of S3 are parsed once in a process.

    That is four fifths of the time that opening a root takes, and tasks open one each.
    """
    session = package.AioSession(**arguments)
    where = session.get_config_variable("data_path")
    if where not in _loaders:
        _loaders[where] = session.get_component("data_loader")
    session.register_component("data_loader", _loaders[where])
    return session


class _PastTheEndError(CheckpointError):
    """A range that starts where the object has ended."""


async def _read(body: Any) -> bytes:
    """Return a body in pieces: the buffer becomes the result without a copy."""
    buffer = io.BytesIO()
    async for piece in _pieces(body):
        buffer.write(piece)
    return buffer.getvalue()


async def _pieces(body: Any) -> AsyncIterator[bytes]:
    try:
        while piece := await body.read(_CHUNK):
            yield piece
    finally:
        body.close()


async def _close(files: Any) -> None:
    await files._s3creator.__aexit__(None, None, None)
