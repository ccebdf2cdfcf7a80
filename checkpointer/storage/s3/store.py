"""Store a root in a bucket of S3, or of a server of its protocol, through s3fs.

Conditions are `If-Match` and `If-None-Match`; versions are ETags. Every request is one attempt: botocore's and s3fs's
own retries are off, since after a lost answer only the layers above can tell what happened.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from pyspark_checkpointer.errors import CheckpointError, DependencyError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage import cloud
from pyspark_checkpointer.storage.base import (
    Blob,
    BucketRule,
    ListedObject,
    ListingPage,
    ObjectExistsError,
    PreconditionFailedError,
    S,
    WriteLeftover,
)
from pyspark_checkpointer.storage.cloud_store import CloudStore
from pyspark_checkpointer.storage.s3.bucket import read_rules
from pyspark_checkpointer.storage.s3.client import close_client, has_new_credentials, open_client
from pyspark_checkpointer.storage.s3.errors import lacks_known_user, meaning, refusal

_CHUNK = 1 << 20
"""Bytes of a body that are read at a time."""

_DELETE_BATCH = 1000
"""Keys of one request to delete, at most: a limit of S3."""

_MAX_PARTS = 10_000
"""Parts of one upload, at most: a limit of S3."""

_DIRECTORY_BUCKET = "--x-s3"
"""The end of the names of directory buckets (S3 Express), and of no others."""

_CHECKSUMS = {"ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256"}
"""Fields in the answer for a part that the completion of the upload has to repeat."""


class S3Store(CloudStore[Any]):
    """The store of the keys of a bucket below a prefix."""

    _close_client = staticmethod(close_client)
    _delete_batch = _DELETE_BATCH

    @property
    def lists_whole_folders(self) -> bool:
        return self._bucket.endswith(_DIRECTORY_BUCKET)

    async def leftovers(self) -> Sequence[WriteLeftover]:
        """Return the uploads in parts that were not completed.

        Some servers (MinIO) list them only by their full key: there, nothing is found.
        """
        return await cloud.answer(self._uploads(), partial(self._error, name=f"{self._url}: uploads"))

    async def discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        for leftover in leftovers:
            request = self._drop(self._at(leftover.path), leftover.token)
            await cloud.answer(request, partial(self._error, name=self._name(leftover.path)))

    # --- requests ---

    async def _open_client(self) -> Any:
        return await open_client(self._url, self._options, self._concurrency, self._timeout)

    async def _bucket_rules(self) -> Sequence[BucketRule]:
        return await read_rules(self._call, self._root)

    async def _call(self, method: str, **arguments: Any) -> Any:
        """Send one request about the bucket, and return the answer."""
        files = await self._connection.get()
        try:
            return await files._call_s3(method, Bucket=self._bucket, **arguments)
        except Exception as error:
            why = refusal(error)
            if not lacks_known_user(why) or not await has_new_credentials(files):
                raise
            said = why.code or "no credentials"
        self._connection.replace(files, after=self._timeout)
        # The request was refused or not sent, and did nothing. Whoever sent it sends it again, with new credentials.
        raise DependencyError(f"{self._url}: {said}: other credentials are there by now, and are used from now on")

    async def _open_object(self, path: str, limit: int | None) -> Any:
        reply = await self._call("get_object", Key=self._at(path))
        if limit is not None and (size := self._told(path, reply, "ContentLength")) > limit:
            reply["Body"].close()  # drops the connection in place of reading the rest
            raise cloud.too_large(self._name(path), limit, size)
        return reply

    async def _get(self, path: str, limit: int | None) -> Blob:
        reply = await self._open_object(path, limit)
        data = await cloud.gather_pieces(_pieces(reply["Body"]))
        self._check_whole(path, len(data), reply)
        version = self._told(path, reply, "ETag")
        return Blob(data, version, cloud.server_time(reply["ResponseMetadata"]["HTTPHeaders"].get("date")))

    async def _read_into(self, path: str, sink: S, limit: int | None) -> S:
        reply = await self._open_object(path, limit)
        self._check_whole(path, await cloud.pour(_pieces(reply["Body"]), sink), reply)
        return sink

    def _check_whole(self, path: str, found: int, reply: Any) -> None:
        """Raise `DependencyError` where the body ended early."""
        # A connection that breaks off can look like the end of the body.
        if found != (size := self._told(path, reply, "ContentLength")):
            raise DependencyError(f"{self._name(path)}: the answer broke off after {found} of {size} bytes")

    def _told(self, path: str, reply: Any, field: str) -> Any:
        """Return a field of an answer.

        Raises `DependencyError` where a gateway has left it out.
        """
        # Of a swap, another error would say that it was refused, although the server has done it.
        if field not in reply:
            raise DependencyError(f"{self._name(path)}: the answer has no {field}: ask what stands before the server")
        return reply[field]

    async def _get_range(self, path: str, offset: int, length: int) -> bytes:
        span = f"bytes={offset}-{offset + length - 1}"
        try:
            reply = await self._call("get_object", Key=self._at(path), Range=span)
        except Exception as error:
            # S3 refuses a range that starts after the end, where the contract asks for no bytes.
            if refusal(error).code != "InvalidRange":
                raise
            return b""
        return await cloud.gather_pieces(_pieces(reply["Body"]))

    async def _put(self, path: str, data: Bytes) -> None:
        write = self._put_one if len(data) <= cloud.MAX_SINGLE_PUT else self._put_parts
        await write(self._at(path), data)

    async def _put_one(self, key: str, data: Bytes) -> None:
        await self._call("put_object", Key=key, Body=cloud.body_of(data), **self._if_absent())

    async def _put_parts(self, key: str, data: Bytes) -> None:
        """Upload the parts of a large object, then complete the upload.

        Nothing is visible before that.
        """
        upload = (await self._call("create_multipart_upload", Key=key, **await self._checksum_algorithm()))["UploadId"]

        async def send(number: int, part: io.BytesIO) -> dict[str, Any]:
            reply = await self._call("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=part)
            sums = {name: value for name, value in reply.items() if name in _CHECKSUMS}
            return {"PartNumber": number, "ETag": reply["ETag"], **sums}

        try:
            parts = await cloud.upload_parts(data, cloud.part_size(len(data), _MAX_PARTS), send)
            await self._call(
                "complete_multipart_upload",
                Key=key,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                **self._if_absent(),
            )
        except BaseException:
            # The parts of an upload that is never completed cost money until somebody aborts it.
            # It is shielded, because a caller whose time is over would cancel the abort too. If the completion took
            # effect unseen, there is nothing left to abort and the object stays.
            await asyncio.shield(asyncio.ensure_future(cloud.clean_up(self._abort(key, upload))))
            raise

    async def _checksum_algorithm(self) -> dict[str, str]:
        """Return the argument that announces the checksums that botocore sends.

        botocore sends one with each part. Some servers refuse, at the end, an upload whose parts have checksums that
        nobody announced.
        """
        files = await self._connection.get()
        computes = getattr(files.s3.meta.config, "request_checksum_calculation", None) == "when_supported"
        return {"ChecksumAlgorithm": "CRC32"} if computes else {}

    async def _abort(self, key: str, upload: str) -> None:
        await self._call("abort_multipart_upload", Key=key, UploadId=upload)

    async def _drop(self, key: str, upload: str) -> None:
        """Abort an upload, unless it is gone."""
        try:
            await self._abort(key, upload)
        except Exception as error:
            if refusal(error).code not in ("NoSuchUpload", "NoSuchKey"):
                raise

    async def _swap(self, path: str, data: bytes, expected: str | None) -> str:
        condition: dict[str, str] = {}
        if self._fencing:
            condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
        reply = await self._call("put_object", Key=self._at(path), Body=data, **condition)
        return str(self._told(path, reply, "ETag"))

    async def _list_page(self, prefix: str, more: object | None) -> ListingPage:
        after = {} if more is None else {"ContinuationToken": more}
        page = await self._call("list_objects_v2", Prefix=self._listed(prefix), **after)
        entries = []
        for found in page.get("Contents", []):
            path = found["Key"].removeprefix(self._key(""))
            # A key that ends with a slash is a folder, as consoles make them.
            if path.startswith(prefix) and path and not path.endswith("/"):
                entries.append(ListedObject(path, found["Size"]))
        return ListingPage(entries, page["NextContinuationToken"] if page.get("IsTruncated") else None)

    async def _folders(self, prefix: str) -> Sequence[str]:
        found = []
        async for page in self._result_pages("list_objects_v2", "NextContinuationToken", prefix, Delimiter="/"):
            found += [folder["Prefix"].removeprefix(self._key("")) for folder in page.get("CommonPrefixes", [])]
        return sorted(found)  # a directory bucket lists in no order

    async def _uploads(self) -> Sequence[WriteLeftover]:
        found = []
        try:
            async for page in self._result_pages("list_multipart_uploads", "NextUploadIdMarker", ""):
                for upload in page.get("Uploads", []):
                    found.append(WriteLeftover(upload["Key"].removeprefix(self._key("")), upload["UploadId"]))
        except Exception as error:
            # So rclone answers where nobody has begun an upload.
            if refusal(error).code != "NoSuchUpload":
                raise
        return found

    async def _result_pages(self, method: str, token: str, prefix: str, **given: str) -> AsyncIterator[Any]:
        """Yield all pages of a listing.

        `token` is the field of an answer that asks for the next page.
        """
        more: dict[str, str] = {}
        while True:
            page = await self._call(method, Prefix=self._listed(prefix), **given, **more)
            yield page
            if not page.get("IsTruncated"):
                return
            more = {token.removeprefix("Next"): page[token]}
            # A listing of uploads goes on from a key and an id: one key may have several uploads.
            if "NextKeyMarker" in page:
                more["KeyMarker"] = page["NextKeyMarker"]

    async def _delete(self, paths: list[str]) -> None:
        objects = [{"Key": self._at(path)} for path in paths]
        # Quiet: the answer names the failures only. It has status 200 also where some of the keys failed.
        reply = await self._call("delete_objects", Delete={"Objects": objects, "Quiet": True})
        for failed in reply.get("Errors", []):
            code = failed.get("Code", "")
            if code not in ("NoSuchKey", "NoSuchVersion"):
                name = f"{self._url}: delete {failed.get('Key', '')}"
                raise meaning(refusal(code, failed.get("Message", "")), name, self._url, self._options)

    def _if_absent(self) -> dict[str, str]:
        """Return the condition that a put has, unless the root was opened without fencing."""
        return {"IfNoneMatch": "*"} if self._fencing else {}

    def _listed(self, prefix: str) -> str:
        """Return the prefix to ask for, to list `prefix`.

        A directory bucket lists whole folders only.
        """
        key = self._key(prefix)
        return key[: key.rfind("/") + 1] if self.lists_whole_folders else key

    def _error(self, error: Exception, name: str) -> CheckpointError:
        return meaning(refusal(error), name, self._url, self._options)

    def _put_error(self, error: Exception, name: str) -> CheckpointError:
        if refusal(error).code == "PreconditionFailed":
            return ObjectExistsError(f"{name}: exists already")
        return self._error(error, name)

    def _swap_error(self, error: Exception, name: str) -> CheckpointError:
        # If-Match on a key that is missing is answered with NoSuchKey.
        if refusal(error).code in ("PreconditionFailed", "NoSuchKey"):
            return PreconditionFailedError(f"{name}: was changed by somebody else")
        return cloud.with_swap_pause(self._error(error, name))


async def _pieces(body: Any) -> AsyncIterator[bytes]:
    try:
        while piece := await body.read(_CHUNK):
            yield piece
    finally:
        body.close()
