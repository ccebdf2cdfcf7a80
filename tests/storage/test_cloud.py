"""Behaviour of cloud stores alone: memory, pages of listings, uploads in parts, dropped connections."""

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import DependencyError, InvalidStateError, StoreRefusedError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import (
    Blob,
    ListedObject,
    ObjectNotFoundError,
    Store,
    WriteLeftover,
    cloud,
    open_store,
)
from pyspark_checkpointer.storage.base import ObjectRefusedError
from tests.storage.conftest import Place
from tests.storage.fake import Answer, says, serves, serving

MIB = 1 << 20
CLOUDS = pytest.mark.parametrize("kind", ["s3", "azure", "gcs", "databricks"])

MEASURE = r"""if True:
    import re, sys
    from pyspark_checkpointer.runtime import run_sync
    from pyspark_checkpointer.storage import open_store
    def peak():
        # Not ru_maxrss: that starts at what the process that forked this one had in use.
        return int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) >> 10
    verb, size = {verb!r}, {size!r}
    store = open_store({url!r}, {options!r})
    try:
        run_sync(store.get("warm"))
    except LookupError:
        run_sync(store.put("warm", b"1"))
    if verb == "put":
        data = bytes(range(256)) * (size << 12)
        before = peak()
        run_sync(store.put("big", data))
        print(peak() - before)
    else:
        before = peak()
        data = run_sync(store.get("big")).data
        assert len(data) == size << 20 and data[-256:] == bytes(range(256))
        print(peak() - before - size)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell what was in use")
@pytest.mark.parametrize("kind", ["s3", "azure", "gcs", "databricks", "local"])
def test_a_large_object_takes_little_more_memory_than_itself(kind: str, place_of: Callable[[str], Place]) -> None:
    place = place_of(kind)
    for verb in ("put", "get"):
        program = MEASURE.format(verb=verb, size=96, url=place.url, options=place.storage_options)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        print(f"{kind} {verb}: {done.stdout.strip()} MiB more than the object")
        assert int(done.stdout) <= 64, verb


def test_a_listing_of_s3_goes_on_to_the_last_page(place_of: Callable[[str], Place]) -> None:
    place = place_of("s3")
    paged = {**place.storage_options, "s3_additional_kwargs": {"MaxKeys": 2}}
    store = Place("s3", place.url, paged).open()

    async def put_all() -> None:
        await asyncio.gather(*(store.put(f"a/{number}", b"1") for number in range(7)))

    run_sync(put_all())
    assert run_sync(store.list("")) == [ListedObject(f"a/{number}", 1) for number in range(7)]


@pytest.mark.parametrize("kind", ["azure", "gcs"])
def test_a_listing_goes_on_to_the_last_page(
    kind: str, place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"pyspark_checkpointer.storage.{kind}.store._PAGE_SIZE", 2)
    store = place_of(kind).open()

    async def put_all() -> None:
        await asyncio.gather(*(store.put(f"a/{number}", b"1") for number in range(7)))

    run_sync(put_all())
    assert len(run_sync(store.list_page("a/")).entries) == 2
    assert run_sync(store.list("")) == [ListedObject(f"a/{number}", 1) for number in range(7)]


@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_folders_made_by_a_console_are_no_objects(kind: str, place_of: Callable[[str], Place]) -> None:
    place = place_of(kind)
    store = place.open()
    backend: Any = store.inner.inner  # type: ignore[attr-defined]

    async def make() -> None:
        for key in (f"{backend._root}/", f"{backend._root}/artifacts/"):
            if kind == "s3":
                await backend._call("put_object", Key=key, Body=b"")
            else:
                client = (await backend._connection.get()).service.get_container_client(backend._bucket)
                await client.upload_blob(key, b"")
                await client.upload_blob(key + "folder", b"", metadata={"hdi_isfolder": "true"})

    run_sync(make())
    assert run_sync(store.list("")) == []


POSITION = "progress/kinesis/clicks/positions/0.json"


def listed(store: Store) -> dict[str, Blob | None]:
    return {entry.path: entry.blob for entry in run_sync(store.list(""))}


def test_a_listing_of_azure_tells_positions(place_of: Callable[[str], Place]) -> None:
    store = place_of("azure").open()
    run_sync(store.compare_and_swap("_latest", b"1", None))
    run_sync(store.compare_and_swap(POSITION, b"\x00\xff one", None))
    run_sync(store.compare_and_swap(POSITION.replace("0.json", "1.json"), bytes(5000), None))
    found = listed(store)
    told = found[POSITION]
    assert told == run_sync(store.get(POSITION))
    assert [path for path, blob in found.items() if blob is not None] == [POSITION]
    assert told.at is not None
    assert abs(told.at - time.time()) < 600
    run_sync(store.compare_and_swap(POSITION, b"two", told.version))
    assert listed(store)[POSITION] == run_sync(store.get(POSITION))


@pytest.mark.parametrize(
    ("content", "copy"),
    [(b"new", None), (b"new", b"bmV3ZXI="), (b"new", b"b2xk"), (b"new", b"?"), (b"new", b"bmV3*"), (b"", b"bmV3")],
    ids=["none", "longer", "another", "no base64", "not all base64", "nothing there"],
)
def test_what_is_no_copy_of_its_blob_is_not_told(
    place_of: Callable[[str], Place], content: bytes, copy: bytes | None
) -> None:
    store = place_of("azure").open()
    backend: Any = store.inner.inner  # type: ignore[attr-defined]

    async def write() -> None:
        blob = await backend._blob(POSITION)
        await blob.upload_blob(content, metadata=None if copy is None else {"position": copy.decode()})

    run_sync(write())
    assert listed(store) == {POSITION: None}


@pytest.mark.parametrize("proxy", [False, True])
def test_no_password_file_is_read_for_requests_to_azure(proxy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import aiohttp

    hosts: list[str] = []

    def read(_: object, host: str) -> None:
        hosts.append(host)

    monkeypatch.setattr(aiohttp.ClientSession, "_get_netrc_auth", read)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with serving(says(404, "BlobNotFound")) as server, serving(says(404, "BlobNotFound")) as other:
        if proxy:  # it is in the environment too, and goes on to be used
            monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{other.server_address[1]}")
        with pytest.raises(ObjectNotFoundError):
            run_sync(server.place("azure").open().get("x"))
        assert len(other.requests if proxy else server.requests) == 1
    assert (hosts == []) is not proxy


class Failing:
    """A server that accepts some parts of an upload and fails the next one."""

    def __init__(self, call: Callable[..., Any], method: str, after: int, error: BaseException) -> None:
        self.call, self.method, self.after, self.error = call, method, after, error
        self.calls: list[str] = []

    async def __call__(self, method: str, **arguments: Any) -> Any:
        self.calls.append(method)
        if self.calls.count(self.method) > self.after and method == self.method:
            raise self.error
        return await self.call(method, **arguments)


@pytest.mark.parametrize(
    ("method", "after", "error"),
    [
        ("upload_part", 2, OSError("no answer")),
        ("upload_part", 2, asyncio.CancelledError()),
        ("complete_multipart_upload", 0, OSError("no answer")),
    ],
)
def test_an_upload_in_parts_that_fails_is_aborted(
    place_of: Callable[[str], Place], method: str, after: int, error: BaseException
) -> None:
    store = place_of("s3").open()
    backend: Any = store.inner.inner  # type: ignore[attr-defined]
    backend._call = failing = Failing(backend._call, method, after, error)
    work = runtime.submit(backend.put("big", bytes(50 * MIB)))
    with (
        pytest.raises((DependencyError, asyncio.CancelledError))
        if isinstance(error, OSError)
        else pytest.raises(
            BaseException  # noqa: PT011 - futures have a cancellation of their own
        )
    ):
        work.result(30)
    assert failing.calls[-1] == "abort_multipart_upload"
    assert failing.calls.count("upload_part") <= 7
    with pytest.raises(ObjectNotFoundError):
        run_sync(store.get("big"))


def test_uploads_that_nobody_finished_can_be_discarded(place_of: Callable[[str], Place]) -> None:
    store = place_of("s3").open()
    backend: Any = store.inner.inner  # type: ignore[attr-defined]
    key = backend._key("artifacts/a/0/big")
    upload = run_sync(backend._call("create_multipart_upload", Key=key))["UploadId"]
    assert list(run_sync(store.leftovers())) == []  # this server lists uploads by full key only

    def unfinished() -> int:
        return len(run_sync(backend._call("list_multipart_uploads", Prefix=key)).get("Uploads", []))

    assert unfinished() == 1
    for _ in range(2):
        run_sync(store.discard([WriteLeftover("artifacts/a/0/big", upload)]))
        assert unfinished() == 0


def test_an_upload_that_could_not_be_discarded_is_tried_again() -> None:
    with serving(says(500, "InternalError"), says(404, "NoSuchUpload")) as server:
        run_sync(server.place("s3").open().discard([WriteLeftover("artifacts/a/0/big", "1")]))
    assert len(server.requests) == 2


def test_uploads_are_listed_page_by_page() -> None:
    def page(key: str, upload: str, more: bool) -> Answer:
        def answer(handler: Any) -> None:
            body = (
                '<?xml version="1.0"?><ListMultipartUploadsResult>'
                f"<IsTruncated>{str(more).lower()}</IsTruncated><NextKeyMarker>{key}</NextKeyMarker>"
                f"<NextUploadIdMarker>{upload}</NextUploadIdMarker>"
                f"<Upload><Key>{key}</Key><UploadId>{upload}</UploadId></Upload></ListMultipartUploadsResult>"
            ).encode()
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)

        return answer

    with serving(page("root/a", "1", True), page("root/b/c", "2", False)) as server:
        found = run_sync(server.place("s3").open().leftovers())
    assert [(one.path, one.token) for one in found] == [("a", "1"), ("b/c", "2")]
    assert "key-marker=root%2Fa" in server.requests[1]
    assert "upload-id-marker=1" in server.requests[1]


def test_a_server_that_finds_no_upload_has_none() -> None:
    with serving(says(404, "NoSuchUpload")) as server:
        assert list(run_sync(server.place("s3").open().leftovers())) == []
        assert len(server.requests) == 1


def test_what_could_not_be_deleted_is_told() -> None:
    def answer(handler: Any) -> None:
        body = (
            b'<?xml version="1.0"?><DeleteResult><Error><Key>root/gone</Key><Code>NoSuchKey</Code></Error>'
            b"<Error><Key>root/kept</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
        )
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with (
        serving(answer) as server,
        pytest.raises(InvalidStateError, match=r"delete root/kept: AccessDenied: no; the credentials in use need"),
    ):
        run_sync(server.place("s3").open().delete(["gone", "kept"]))


@pytest.mark.parametrize(("total", "size"), [(1, 8 * MIB), (80_000 * MIB, 8 * MIB), (5 << 40, -(-(5 << 40) // 10_000))])
def test_parts_are_few_enough(total: int, size: int) -> None:
    assert cloud.part_size(total, 10_000) == size
    assert -(-total // size) <= 10_000


@pytest.mark.parametrize(
    ("date", "seconds"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", 784111777),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 784111777),  # the two older forms that HTTP still allows
        ("Sun Nov  6 08:49:37 1994", 784111777),
        ("Sun, 06 Nov 1994 08:49:37 -0000", 784111777),
        (None, None),
        ("", None),
        (" ", None),
        ("yesterday", None),
        ("784111777", None),
        ("Sun, 06 Nov 1994", None),
        ("Sun, 32 Nov 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 99999 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 08:49:37 +99999999999999999999", None),
    ],
)
def test_the_time_in_a_header_is_read(date: str | None, seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert cloud.server_time(date) == seconds
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("kind", "date", "seconds"),
    [
        ("s3", "Sun, 06 Nov 1994 08:49:37 GMT", 784111777),
        ("s3", None, None),
        ("s3", "yesterday", None),  # of Azure, the SDK itself refuses such an answer
        ("azure", "Sun, 06 Nov 1994 08:49:37 GMT", 784111777),
        ("azure", None, None),
        ("gcs", "Sun, 06 Nov 1994 08:49:37 GMT", 784111777),
        ("gcs", None, None),
        ("gcs", "yesterday", None),
        ("databricks", "Sun, 06 Nov 1994 08:49:37 GMT", 784111777),
        ("databricks", None, None),
        ("databricks", "yesterday", None),
    ],
)
def test_a_read_tells_what_the_clock_of_the_server_said(kind: str, date: str | None, seconds: float | None) -> None:
    with serving(serves(5, date)) as server:
        blob = run_sync(server.place(kind).open().get("x"))
    assert (blob.data, blob.at) == (bytes(5), seconds)
    assert len(server.requests) == 1


def test_a_read_of_many_answers_tells_the_time_of_the_first() -> None:
    size = 33 * MIB  # one more than the first answer may hold
    first, later = serves(size, "Sun, 06 Nov 1994 08:49:37 GMT"), serves(size, "Sun, 06 Nov 1994 08:50:00 GMT")
    with serving(first, later) as server:
        blob = run_sync(server.place("azure").open().get("x"))
    assert (len(blob.data), blob.at) == (size, 784111777)
    assert len(server.requests) > 1


def test_a_read_of_nothing_tells_the_time_of_the_answer_that_named_it() -> None:
    answers = says(416, "InvalidRange"), serves(0, "Sun, 06 Nov 1994 08:49:37 GMT")
    with serving(*answers) as server:  # Azurite answers the first request; the service asks for the second one
        blob = run_sync(server.place("azure").open().get("x", limit=5))
    assert (blob.data, blob.tag, blob.at) == (b"", '"1"', 784111777)
    assert [request.partition(" ")[0] for request in server.requests] == ["GET", "HEAD"]


@pytest.mark.parametrize("limit", [None, 5])
def test_what_is_written_while_an_empty_blob_is_read_is_not_called_empty(limit: int | None) -> None:
    """No bytes with the version of the others' write would let a swap on it overwrite that write unseen."""
    answers = says(416, "InvalidRange"), serves(5, None)
    with serving(*answers) as server:
        blob = run_sync(server.place("azure").open().get("x", limit=limit))
    assert (blob.data, blob.tag) == (bytes(5), '"1"')


@pytest.mark.parametrize(
    ("url", "account"),
    [
        ("abfs://c/x", {}),
        ("abfss://c@acc.dfs.core.windows.net/x", {"account_name": "acc"}),
        (
            "abfss://c@acc.dfs.core.chinacloudapi.cn/x",
            {"account_name": "acc", "account_host": "acc.blob.core.chinacloudapi.cn"},
        ),
    ],
)
def test_the_account_in_a_url_of_azure_is_used(url: str, account: dict[str, str]) -> None:
    backend: Any = open_store(url).inner.inner  # type: ignore[attr-defined]
    assert backend._options == account
    assert (backend._bucket, backend._root, backend.url) == ("c", "x", url)


def test_a_failed_connection_is_made_again(place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch) -> None:
    store = place_of("s3").open()
    backend: Any = store.inner.inner  # type: ignore[attr-defined]
    options, backend._options = backend._options, {**backend._options, "nonsense": 1}
    with pytest.raises(ValueError, match="TypeError"):
        run_sync(store.get("x"))
    backend._options = options
    with pytest.raises(ObjectNotFoundError):
        run_sync(store.get("x"))


@CLOUDS
def test_a_dropped_store_closes_its_connection(
    kind: str, place_of: Callable[[str], Place], recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()
    recwarn.clear()  # What earlier tests of this process dropped is not this store's.
    store = place_of(kind).open()
    run_sync(store.list(""))
    del store
    gc.collect()
    run_sync(asyncio.sleep(0.05))
    gc.collect()
    assert caplog.text == ""
    assert [str(warning.message) for warning in recwarn if "nclosed" in str(warning.message)] == []


@CLOUDS
def test_an_interpreter_ends_quietly_with_open_connections(kind: str, place_of: Callable[[str], Place]) -> None:
    place = place_of(kind)
    program = f"""if True:
        from pyspark_checkpointer.runtime import run_sync
        from pyspark_checkpointer.storage import open_store
        stores = [open_store({place.url!r}, {place.storage_options!r}) for _ in range(2)]
        for store in stores:
            run_sync(store.list(""))
    """
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", program], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@CLOUDS
def test_a_server_that_knows_no_conditions_is_named(kind: str) -> None:
    with serving(says(501, "NotImplemented")) as server, pytest.raises(InvalidStateError, match="NotImplemented"):
        run_sync(server.place(kind).open().compare_and_swap("x", b"1", None))


@pytest.mark.parametrize(("when", "announced"), [("when_supported", "CRC32"), ("when_required", None)])
def test_the_checksums_of_parts_are_announced(
    place_of: Callable[[str], Place], when: str, announced: str | None
) -> None:
    """Else versitygw refuses the whole upload at its end; MinIO takes it either way."""
    place = place_of("s3")
    options = {**place.storage_options, "config_kwargs": {"request_checksum_calculation": when}}
    store = Place("s3", place.url, options).open()
    backend: Any = store.inner.inner  # type: ignore[attr-defined]
    call, begun = backend._call, []

    async def noting(method: str, **arguments: Any) -> Any:
        if method == "create_multipart_upload":
            begun.append(arguments.get("ChecksumAlgorithm"))
        return await call(method, **arguments)

    backend._call = noting
    run_sync(store.put("big", bytes(33 * MIB)))
    assert run_sync(store.get("big")).data == bytes(33 * MIB)
    assert begun == [announced]


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [("s3", 403, "InvalidObjectState"), ("azure", 409, "BlobArchived"), ("azure", 409, "BlobBeingRehydrated")],
)
def test_an_archived_object_is_no_lost_one(kind: str, status: int, code: str) -> None:
    with serving(says(status, code)) as server, pytest.raises(StoreRefusedError, match="is archived") as caught:
        run_sync(server.place(kind).open().get("x"))
    assert not isinstance(caught.value, ObjectRefusedError)  # it can be brought back
