"""Google Cloud Storage, answer by answer: what it says in words of its own, and what only it does."""

import asyncio
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

pytest.importorskip("gcsfs")

from google.auth.exceptions import RefreshError, TransportError
from google.oauth2.credentials import Credentials

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    StoreNotFoundError,
    StoreRefusedError,
)
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import (
    ListedObject,
    ObjectExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    Store,
    cloud,
    open_store,
)
from pyspark_checkpointer.storage.compare_and_swap import swap_until_decided
from tests.storage.conftest import Place
from tests.storage.fake import Answer, FakeServer, gives, hangs_up, serves, serving, tells
from tests.storage.test_faults import CALLS, once

MIB = 1 << 20
WRITTEN = gives(200, {"generation": "7"})
NO_BUCKET = tells(404, "notFound", "The specified bucket does not exist.")
NO_OBJECT = tells(404, "notFound", "No such object: bucket/root/x")
CHANGED = tells(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
BUSY = tells(429, "rateLimitExceeded", "The object exceeded the rate limit for object mutation operations.")


def contents(data: bytes, generation: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("x-goog-generation", generation)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def begins(handler: BaseHTTPRequestHandler) -> None:
    """Begin an upload in chunks."""
    host, port = handler.server.server_address[:2]
    gives(200, {}, Location=f"http://{host!s}:{port}/upload?upload_id=1")(handler)


def keeps(last: int | None) -> Answer:
    """Say that an upload goes on, and which byte came last."""
    return gives(308, {}, **({} if last is None else {"Range": f"bytes=0-{last}"}))


# --- conditions ---


def test_conditions_are_generations() -> None:
    with serving(WRITTEN) as server:
        store = once(server.place("gcs"))
        assert run_sync(store.compare_and_swap("x", b"1", None)) == "7"
        assert run_sync(store.compare_and_swap("x", b"1", "7")) == "7"
        run_sync(store.put("x", b"1"))
        unfenced = once(server.place("gcs"), fencing="none")
        run_sync(unfenced.put("x", b"1"))
    told = [request.partition("&")[2] for request in server.requests]
    assert told == [f"name=root%2Fx&ifGenerationMatch={number}" for number in (0, 7, 0)] + ["name=root%2Fx"]


@pytest.mark.parametrize("version", ['"1"', "", "0", "00", "-1", "1.5", "²", "nonsense"])
def test_what_is_no_generation_is_the_version_of_nothing(version: str) -> None:
    """0 would be the condition that there is no object: a swap on a version must never create one."""
    with serving(WRITTEN) as server, pytest.raises(PreconditionFailedError, match="x: was changed by somebody else"):
        run_sync(once(server.place("gcs")).compare_and_swap("x", b"1", version))
    assert server.requests == []


# --- answers that are lost ---


def test_a_swap_that_lost_its_answer_is_sent_by_nobody_else() -> None:
    """Not even on a connection that was open before: a client of HTTP would take it for one that had ended."""
    with serving(contents(b"0", "6"), hangs_up) as server:
        store = server.place("gcs").open()
        run_sync(store.get("x"))
        with pytest.raises(DependencyError):
            run_sync(store.compare_and_swap("x", b"1", "6"))
    assert [request.partition(" ")[0] for request in server.requests] == ["GET", "POST"]


@pytest.mark.parametrize("call", CALLS)
def test_a_request_that_lost_its_answer_was_one_request(call: str) -> None:
    with serving(contents(b"0", "6"), hangs_up) as server:
        store = once(server.place("gcs"))
        run_sync(store.get("x"))
        with pytest.raises(DependencyError):
            run_sync(CALLS[call](store))
    assert len(server.requests) == 2


@pytest.mark.parametrize("answer", [hangs_up, gives(200, []), gives(200, {}), serves(5, None)])
def test_a_swap_without_a_clear_answer_is_read_back(answer: Answer) -> None:
    with serving(answer, contents(b"mine", "7")) as server:
        found = run_sync(swap_until_decided(server.place("gcs").open(), "x", b"mine", "6", MIB))
    assert found is not None
    assert (found.data, found.tag) == (b"mine", "7")
    assert [request.partition(" ")[0] for request in server.requests] == ["POST", "GET"]


def test_a_swap_that_took_effect_unseen_and_was_refused_then_is_ours() -> None:
    answers = hangs_up, contents(b"old", "6"), CHANGED, contents(b"mine", "7")  # it landed after it was read back
    with serving(*answers) as server:
        found = run_sync(swap_until_decided(server.place("gcs").open(), "x", b"mine", "6", MIB))
    assert found is not None
    assert found.data == b"mine"
    assert len(server.requests) == 4


def test_a_put_that_took_effect_unseen_is_no_conflict() -> None:
    with serving(hangs_up, CHANGED, contents(b"mine", "7")) as server:
        run_sync(server.place("gcs").open().put("x", b"mine"))
    with serving(hangs_up, CHANGED, contents(b"more", "7")) as server, pytest.raises(ObjectExistsError):
        run_sync(server.place("gcs").open().put("x", b"mine"))


def test_swaps_that_come_too_fast_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service takes one write of an object in a second. Sent again at once, it would be refused every time."""
    monkeypatch.setattr(cloud, "SWAP_PAUSE", 0.2)
    with serving(BUSY, contents(b"old", "6"), BUSY, contents(b"old", "6"), WRITTEN) as server:
        started = time.monotonic()
        found = run_sync(swap_until_decided(server.place("gcs").open(), "x", b"mine", "6", MIB))
        assert time.monotonic() - started > 0.4
    assert found is not None
    assert found.tag == "7"


# --- uploads in chunks ---


def big() -> bytes:
    return bytes(range(256)) * (40 * MIB >> 8)


def ranges_of(*answers: Answer) -> tuple[list[str], list[str]]:
    """Upload a large object; return the requests and the ranges that were sent."""
    ranges: list[str] = []

    def noting(answer: Answer) -> Answer:
        def noted(handler: BaseHTTPRequestHandler) -> None:
            ranges.append(handler.headers.get("Content-Range", ""))
            answer(handler)

        return noted

    with serving(*(noting(answer) for answer in answers)) as server:
        run_sync(once(server.place("gcs")).put("x", big()))
    return server.requests, [told for told in ranges if told]


def test_a_large_object_goes_up_chunk_by_chunk() -> None:
    requests, ranges = ranges_of(begins, keeps(16 * MIB - 1), keeps(32 * MIB - 1), WRITTEN)
    total = 40 * MIB
    assert ranges == [
        f"bytes 0-{16 * MIB - 1}/{total}",
        f"bytes {16 * MIB}-{32 * MIB - 1}/{total}",
        f"bytes {32 * MIB}-{total - 1}/{total}",
    ]
    assert requests[0] == "POST /upload/storage/v1/b/bucket/o?uploadType=resumable&name=root%2Fx&ifGenerationMatch=0"
    assert {request.partition("?")[0] for request in requests[1:]} == {"PUT /upload"}


def test_an_upload_goes_on_from_the_last_byte_that_the_server_kept() -> None:
    _, ranges = ranges_of(begins, keeps(MIB - 1), keeps(17 * MIB - 1), keeps(33 * MIB - 1), WRITTEN)
    assert [told.partition(" ")[2].partition("-")[0] for told in ranges] == ["0", *(str(n * MIB) for n in (1, 17, 33))]


@pytest.mark.parametrize("last", [None, 40 * MIB - 1, 40 * MIB, 16 * MIB])
def test_an_upload_that_does_not_go_on_fails_and_is_cancelled(last: int | None) -> None:
    with serving(begins, keeps(last), gives(499, {})) as server, pytest.raises(DependencyError, match="does not go on"):
        run_sync(once(server.place("gcs")).put("x", big()))
    assert [request.partition(" ")[0] for request in server.requests] == ["POST", "PUT", "DELETE"]


@pytest.mark.parametrize(
    "answer",
    [
        hangs_up,
        tells(503, "backendError", "busy"),
        tells(410, "backendError", "gone"),
        tells(404, "", ""),
        gives(200, {}),
    ],
)
def test_an_upload_that_breaks_off_is_cancelled_and_begun_again(answer: Answer) -> None:
    again = begins, keeps(16 * MIB - 1), keeps(32 * MIB - 1), WRITTEN
    with serving(begins, keeps(16 * MIB - 1), answer, gives(499, {}), *again) as server:
        run_sync(server.place("gcs").open().put("x", big()))
    methods = [request.partition(" ")[0] for request in server.requests]
    assert methods == ["POST", "PUT", "PUT", "DELETE", "POST", "PUT", "PUT", "PUT"]


@pytest.mark.parametrize("answers", [(CHANGED,), (begins, CHANGED), (begins, keeps(16 * MIB - 1), CHANGED)])
def test_a_large_object_is_never_written_over_another(answers: tuple[Answer, ...]) -> None:
    with serving(*answers) as server, pytest.raises(ObjectExistsError, match="x: exists already"):
        run_sync(server.place("gcs").open().put("x", big()))


def test_an_upload_whose_time_is_over_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    there, methods = threading.Event(), []

    def waits(handler: BaseHTTPRequestHandler) -> None:
        methods.append(handler.command)
        if handler.command == "PUT":
            there.set()
            time.sleep(0.3)
        gives(499, {})(handler)

    with serving(begins, waits) as server:
        work = runtime.submit(once(server.place("gcs")).put("x", big()))  # type: ignore[arg-type]
        assert there.wait(5)
        work.cancel()
        until = time.monotonic() + 5
        while "DELETE" not in methods and time.monotonic() < until:
            time.sleep(0.01)
    assert methods[-1] == "DELETE"


def test_the_address_of_an_upload_gets_no_credentials() -> None:
    seen: list[tuple[str, str | None]] = []

    def noting(answer: Answer) -> Answer:
        def noted(handler: BaseHTTPRequestHandler) -> None:
            seen.append((handler.command, handler.headers.get("Authorization")))
            answer(handler)

        return noted

    answers = begins, keeps(16 * MIB - 1), keeps(32 * MIB - 1), WRITTEN
    with serving(*map(noting, answers)) as server:
        run_sync(once(server.place("gcs")).put("x", big()))
    assert seen == [("POST", "Bearer hunter22hunter22"), *[("PUT", None)] * 3]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("call", ["get", "put", "swap", "list", "delete"])
def test_credentials_follow_no_redirect(status: int, call: str) -> None:
    with serving(WRITTEN) as other:
        elsewhere = other.place("gcs").storage_options["endpoint_url"]
        with (
            serving(gives(status, {}, Location=elsewhere)) as server,
            pytest.raises(StoreRefusedError, match=f"{status}: "),
        ):
            run_sync(CALLS[call](once(server.place("gcs"))))
    assert (len(server.requests), other.requests) == (1, [])


# --- what there is not ---


@pytest.mark.parametrize("call", CALLS)
def test_a_bucket_that_does_not_exist_is_named(call: str) -> None:
    said = r"gs://bucket/root: there is no bucket 'bucket'; create it, or correct the root"
    with serving(NO_BUCKET) as server, pytest.raises(StoreNotFoundError, match=said):
        run_sync(CALLS[call](once(server.place("gcs"))))


@pytest.mark.parametrize("answer", [NO_OBJECT, gives(404, "Not Found")])
def test_an_object_that_does_not_exist_is_no_missing_bucket(answer: Answer) -> None:
    with serving(answer) as server:
        store = once(server.place("gcs"))
        for call in ("get", "get_range", "read_into"):
            with pytest.raises(ObjectNotFoundError, match="x: not found"):
                run_sync(CALLS[call](store))
        run_sync(store.delete(["x", "y"]))
    assert len(server.requests) == 5


def test_what_could_not_be_deleted_is_told() -> None:
    refused = tells(403, "retentionPolicyNotMet", "Object is subject to bucket's retention policy.")
    with serving(NO_OBJECT, refused, NO_OBJECT) as server, pytest.raises(StoreRefusedError, match="retention policy"):
        run_sync(once(server.place("gcs")).delete(["x", "y", "z"]))
    assert len(server.requests) == 3


# --- listings ---


def test_listings_and_folders_go_on_to_the_last_page() -> None:
    def page(names: list[str], folders: list[str], **more: str) -> Answer:
        items = [{"name": f"root/{name}", "size": "5"} for name in names]
        return gives(200, {"items": items, "prefixes": [f"root/{name}" for name in folders], **more})

    empty = gives(200, {"kind": "storage#objects", "nextPageToken": "b c"})  # a page may be empty, and not the last
    with serving(page(["a/x", "a/", ""], ["a/"], nextPageToken="p=1"), empty, page(["b"], ["a/", "c/"])) as server:
        store = once(server.place("gcs"))
        assert run_sync(store.list("")) == [ListedObject("a/x", 5), ListedObject("b", 5)]
        assert [request.rpartition("pageToken=")[2] for request in server.requests[1:]] == ["p%3D1", "b%20c"]
        server.answers[:] = [page(["a/x"], ["a/"], nextPageToken="p=1"), empty, page(["b"], ["a/", "c/"])]
        assert list(run_sync(store.folders(""))) == ["a/", "c/"]
    assert all("delimiter=%2F" in request for request in server.requests[3:])


@pytest.mark.parametrize("answer", [gives(200, []), serves(5, None), gives(200, "gateway")])
def test_a_listing_that_cannot_be_read_is_tried_again(answer: Answer) -> None:
    with serving(answer) as server, pytest.raises(DependencyError, match="no JSON object"):
        run_sync(once(server.place("gcs")).list(""))


# --- credentials ---


class Login(Credentials):  # type: ignore[misc]
    """Credentials that need a new token for each request."""

    def __init__(self, refresh: Callable[[], None]) -> None:
        super().__init__(None)
        self.ask, self.threads = refresh, set[str]()

    def refresh(self, request: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.ask()
        self.token = "hunter22hunter22"


def with_token(server: FakeServer, token: Any) -> Store:
    place = server.place("gcs")
    return once(Place("gcs", place.url, {**place.storage_options, "token": token}))


def test_the_loop_does_not_wait_for_a_token() -> None:
    asked, go = threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        assert go.wait(5)

    login = Login(wait)
    with serving(contents(b"1", "7")) as server:
        work = runtime.submit(with_token(server, login).get("x"))  # type: ignore[arg-type]
        assert asked.wait(5)
        run_sync(asyncio.sleep(0))
        go.set()
        assert work.result(5).data == b"1"
    assert len(login.threads) == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TransportError("no route to metadata.google.internal"), DependencyError),
        (RefreshError("unavailable", retryable=True), DependencyError),
        (RefreshError("invalid_grant: Bad Request"), StoreRefusedError),
    ],
)
@pytest.mark.parametrize("call", ["get", "put", "swap", "list"])
def test_an_outage_of_the_identity_service_is_no_refusal(
    error: Exception, expected: type[CheckpointError], call: str
) -> None:
    def fail() -> None:
        raise error

    with serving(WRITTEN) as server, pytest.raises(expected, match="gs://bucket/root"):
        run_sync(CALLS[call](with_token(server, Login(fail))))
    assert server.requests == []


def test_a_refused_token_is_not_quoted() -> None:
    def repeats(handler: BaseHTTPRequestHandler) -> None:
        tells(401, "authError", f"Invalid Credentials: {handler.headers['Authorization']}")(handler)

    with serving(repeats) as server, pytest.raises(StoreRefusedError, match="correct the credentials") as raised:
        run_sync(once(server.place("gcs")).get("x"))
    assert "hunter22" not in str(raised.value)


def test_no_credentials_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """gcsfs would go on without, also while the identity service has an outage, for as long as the job lives."""
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with serving(WRITTEN) as server:
        endpoint = {"endpoint_url": server.place("gcs").storage_options["endpoint_url"]}
        with pytest.raises(StoreRefusedError, match="no credentials were found; give token in storage_options"):
            run_sync(open_store("gs://bucket/root", endpoint).get("x"))
        run_sync(open_store("gs://bucket/root", {**endpoint, "token": "anon"}).put("x", b"1"))
    assert len(server.requests) == 1


def test_an_outage_of_the_metadata_server_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """gcsfs takes it for a machine that has no such server."""
    from google.auth.compute_engine import _metadata

    def tell(handler: BaseHTTPRequestHandler) -> None:
        if len(metadata.requests) == 1:  # whether it is there
            return gives(502, {})(handler)
        token = {"access_token": "fresh", "expires_in": 3600}
        told = token if "/token" in handler.path else {"email": "job@project", "scopes": []}
        return gives(200, told, **{"Metadata-Flavor": "Google"})(handler)

    monkeypatch.delenv("NO_GCE_CHECK", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with serving(WRITTEN) as server, serving(tell) as metadata:
        host = f"127.0.0.1:{metadata.server_address[1]}"
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        monkeypatch.setenv("GCE_METADATA_IP", host)
        monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)  # it reads the variable when it is imported
        endpoint = {"endpoint_url": server.place("gcs").storage_options["endpoint_url"]}
        store = once(Place("gcs", "gs://bucket/root", endpoint))
        with pytest.raises(DependencyError, match="no credentials were found; give token in storage_options"):
            run_sync(store.put("x", b"1"))
        run_sync(store.put("x", b"1"))
    assert len(server.requests) == 1


def test_an_emulator_in_the_environment_is_asked_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(WRITTEN) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.place("gcs").storage_options["endpoint_url"])
        run_sync(open_store("gs://bucket/root").put("x", b"1"))
    assert len(server.requests) == 1
