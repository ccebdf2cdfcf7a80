"""Failures of clouds: the error of the tree for each, the number of attempts, and no secret in the message."""

import asyncio
import hashlib
import json
import logging
import pickle
import threading
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import fsspec.config
import pytest

from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    IllegalArgumentError,
    InvalidStateError,
    StoreNotFoundError,
    StoreRefusedError,
    ThrottlingError,
)
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import ObjectNotFoundError, PreconditionFailedError, Store, open_store
from pyspark_checkpointer.storage.request_path import SMALL_SLOTS, LimitedStore
from pyspark_checkpointer.storage.scrubbing import scrub
from tests.servers import Server
from tests.storage.conftest import Place
from tests.storage.fake import breaks_off, refuses, says, says_nothing, serving, tells

KINDS = ["s3", "azure", "gcs", "databricks"]
CLOUDS = pytest.mark.parametrize("kind", KINDS)


def once(place: Place, timeout: float = 5.0, **options: Any) -> Store:
    """Return the store without its retries."""
    inner = place.open(timeout=timeout, **options).inner  # type: ignore[attr-defined]
    assert isinstance(inner, LimitedStore)
    return inner


CALLS: dict[str, Callable[[Store], Any]] = {
    "get": lambda store: store.get("x"),
    "get with a limit": lambda store: store.get("x", limit=100),
    "get_range": lambda store: store.get_range("x", 0, 10),
    "read_into": lambda store: store.read_into("x", hashlib.sha256),
    "put": lambda store: store.put("x", b"1"),
    "put in parts": lambda store: store.put("x", bytes(33 << 20)),
    "create": lambda store: store.compare_and_swap("x", b"1", None),
    "swap": lambda store: store.compare_and_swap("x", b"1", "1"),
    "list": lambda store: store.list(""),
    "delete": lambda store: store.delete(["x"]),
}


@pytest.mark.parametrize("call", ["get", "put", "swap"])
@pytest.mark.parametrize(
    ("kind", "status", "code", "expected"),
    [
        ("s3", 503, "SlowDown", ThrottlingError),
        ("s3", 429, "TooManyRequests", ThrottlingError),
        ("s3", 500, "InternalError", DependencyError),
        ("s3", 502, "", DependencyError),
        ("s3", 409, "ConditionalRequestConflict", DependencyError),
        ("s3", 400, "RequestTimeout", DependencyError),
        ("s3", 403, "AccessDenied", StoreRefusedError),
        ("s3", 403, "InvalidAccessKeyId", StoreRefusedError),
        ("s3", 400, "ExpiredToken", StoreRefusedError),
        ("s3", 403, "RequestTimeTooSkewed", StoreRefusedError),
        ("s3", 301, "PermanentRedirect", StoreRefusedError),
        ("s3", 501, "NotImplemented", StoreRefusedError),
        ("s3", 404, "NoSuchBucket", StoreNotFoundError),
        ("s3", 400, "Nonsense", StoreRefusedError),
        ("azure", 503, "ServerBusy", ThrottlingError),
        ("azure", 429, "TooManyRequests", ThrottlingError),
        ("azure", 500, "InternalError", DependencyError),
        ("azure", 500, "OperationTimedOut", DependencyError),
        ("azure", 403, "AuthenticationFailed", StoreRefusedError),
        ("azure", 401, "NoAuthenticationInformation", StoreRefusedError),
        ("azure", 409, "PublicAccessNotPermitted", StoreRefusedError),
        ("azure", 404, "ContainerNotFound", StoreNotFoundError),
        ("azure", 400, "Nonsense", StoreRefusedError),
        ("azure", 412, "LeaseIdMissing", StoreRefusedError),
        ("gcs", 503, "backendError", ThrottlingError),
        ("gcs", 429, "rateLimitExceeded", ThrottlingError),
        ("gcs", 403, "rateLimitExceeded", ThrottlingError),
        ("gcs", 403, "userRateLimitExceeded", ThrottlingError),
        ("gcs", 500, "backendError", DependencyError),
        ("gcs", 502, "", DependencyError),
        ("gcs", 504, "", DependencyError),
        ("gcs", 408, "uploadBrokenConnection", DependencyError),
        ("gcs", 409, "conflict", DependencyError),
        ("gcs", 401, "authError", StoreRefusedError),
        ("gcs", 403, "forbidden", StoreRefusedError),
        ("gcs", 307, "", StoreRefusedError),
        ("gcs", 501, "notImplemented", StoreRefusedError),
        ("gcs", 400, "invalid", StoreRefusedError),
        ("databricks", 503, "TEMPORARILY_UNAVAILABLE", ThrottlingError),
        ("databricks", 429, "REQUEST_LIMIT_EXCEEDED", ThrottlingError),
        ("databricks", 500, "INTERNAL_ERROR", DependencyError),
        ("databricks", 502, "", DependencyError),
        ("databricks", 504, "DEADLINE_EXCEEDED", DependencyError),
        ("databricks", 408, "", DependencyError),
        ("databricks", 409, "ABORTED", DependencyError),
        ("databricks", 401, "UNAUTHENTICATED", StoreRefusedError),
        ("databricks", 403, "PERMISSION_DENIED", StoreRefusedError),
        ("databricks", 302, "", StoreRefusedError),
        ("databricks", 501, "NOT_IMPLEMENTED", StoreRefusedError),
        ("databricks", 400, "INVALID_PARAMETER_VALUE", StoreRefusedError),
        ("databricks", 404, "ENDPOINT_NOT_FOUND", StoreNotFoundError),
    ],
)
def test_a_refusal_becomes_the_error_that_says_what_to_do(
    kind: str, status: int, code: str, expected: type[CheckpointError], call: str
) -> None:
    answer = {"gcs": tells, "databricks": refuses}.get(kind, says)(status, code, "as the test says")
    with serving(answer) as server:
        place = server.place(kind)
        with pytest.raises(expected, match=place.url) as raised:
            run_sync(CALLS[call](once(place)))
    assert type(raised.value) is expected
    assert "hunter22" not in "".join(traceback.format_exception(raised.value))
    assert raised.value.__context__ is None
    assert raised.value.__cause__ is None
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@CLOUDS
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_one_attempt_is_one_request(kind: str, call: Callable[[Store], Any]) -> None:
    with serving(says(503, "SlowDown")) as server, pytest.raises(ThrottlingError):
        run_sync(call(once(server.place(kind))))
    assert len(server.requests) == 1 or call is CALLS["put in parts"]


@CLOUDS
@pytest.mark.usefixtures("no_pauses")
def test_a_refused_request_is_tried_again_but_a_swap_never(kind: str) -> None:
    with serving(says(503, "SlowDown")) as server:
        store = server.place(kind).open()
        with pytest.raises(ThrottlingError, match="12 attempts"):
            run_sync(store.get("x"))
        assert len(server.requests) == 12
        server.requests.clear()
        with pytest.raises(ThrottlingError):
            run_sync(store.compare_and_swap("x", b"1", "1"))
        assert len(server.requests) == 1


@CLOUDS
def test_a_swap_on_what_is_gone_is_refused(kind: str) -> None:
    answers = {"s3": (404, "NoSuchKey"), "azure": (404, "BlobNotFound"), "gcs": (412, "conditionNotMet")}
    missing = says(*answers.get(kind, (412, "PRECONDITION_FAILED")))
    with serving(missing) as server, pytest.raises(PreconditionFailedError):
        run_sync(once(server.place(kind)).compare_and_swap("x", b"1", "1"))


@pytest.mark.parametrize("kind", ["s3", "gcs", "databricks"])
def test_every_turn_has_a_connection(kind: str) -> None:
    turns = 8 * SMALL_SLOTS
    all_there = threading.Barrier(turns)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        all_there.wait(5)
        breaks_off(1, 1)(handler)

    async def read_all(store: Store) -> None:
        await asyncio.gather(*(store.get("x", limit=1) for _ in range(turns)))

    with serving(answer) as server:
        run_sync(read_all(once(server.place(kind), concurrency=8)))


@CLOUDS
@pytest.mark.parametrize("call", ["get", "get with a limit", "get_range", "read_into"])
@pytest.mark.parametrize("sent", [0, 4])
def test_an_answer_that_breaks_off_is_no_object(kind: str, call: str, sent: int) -> None:
    with serving(breaks_off(10, sent)) as server, pytest.raises(DependencyError):
        run_sync(CALLS[call](once(server.place(kind))))


@CLOUDS
@pytest.mark.parametrize("call", ["get", "put", "swap", "list", "delete"])
def test_no_answer_is_waited_for_no_longer_than_allowed(kind: str, call: str) -> None:
    with serving(says_nothing) as server:
        started = time.monotonic()
        with pytest.raises(DependencyError):
            run_sync(CALLS[call](once(server.place(kind), timeout=0.4)))
        assert time.monotonic() - started < 3
    assert len(server.requests) <= 1


@CLOUDS
@pytest.mark.parametrize("call", ["get", "put", "swap", "list", "delete"])
def test_nobody_there(kind: str, call: str) -> None:
    with serving(says_nothing) as server:
        place = server.place(kind)
    with pytest.raises(DependencyError, match=place.url) as raised:
        run_sync(CALLS[call](once(place)))
    assert raised.value.__context__ is None


@CLOUDS
def test_a_server_that_comes_back_is_used_again(kind: str, request: pytest.FixtureRequest, place_of: Any) -> None:
    place: Place = place_of(kind)
    server: Server = request.getfixturevalue(f"{kind}_server")
    store = place.open()
    run_sync(store.put("x", b"1"))
    server.stop()
    with pytest.raises(DependencyError):
        run_sync(once(place).get("x"))
    with pytest.raises(DependencyError):
        run_sync(store.compare_and_swap("y", b"1", None))
    server.start()
    assert run_sync(store.get("x")).data == b"1"


# --- secrets ---


def wrong(place: Place) -> Place:
    """Return the same root with a wrong secret."""
    options = dict(place.storage_options)
    if place.kind in ("s3", "databricks"):
        options["secret" if place.kind == "s3" else "token"] = "hunter22" * 4
    else:
        options["connection_string"] = options["connection_string"].replace("AccountKey=E", "AccountKey=hunter22")
    return Place(place.kind, place.url, options)


@pytest.mark.parametrize("kind", ["s3", "azure", "databricks"])  # the server of gcs asks for none: test_gcs.py
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_wrong_credentials(
    kind: str, place_of: Any, caplog: pytest.LogCaptureFixture, call: Callable[[Store], Any]
) -> None:
    place = wrong(place_of(kind))
    store = place.open()
    with caplog.at_level(logging.INFO), pytest.raises(InvalidStateError, match=place.url) as raised:
        run_sync(call(store))
    assert "correct the credentials" in str(raised.value)
    for text in (*traceback.format_exception(raised.value), repr(raised.value), repr(store), caplog.text):
        assert "hunter22" not in text


@pytest.mark.parametrize(
    "kind", ["s3", "azure", "databricks"]
)  # the server of gcs does not tell it from no object: test_gcs.py
def test_no_bucket(kind: str, place_of: Any) -> None:
    place: Place = place_of(kind)
    url = place.url.replace("checkpoints", "no-such-place", 1)
    for call in CALLS.values():
        with pytest.raises(StoreNotFoundError, match=rf"{url}: there is no .*; create it, or correct the root"):
            run_sync(call(open_store(url, place.storage_options)))


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("s3://b/x", {"key": "AKIAhunter22", "secret": "hunter22", "nonsense": "hunter22"}, "TypeError"),
        ("s3://b/x", {"endpoint_url": "hunter22", "key": "AKIA", "secret": "hunter22"}, "Invalid endpoint"),
        ("s3://b/x", {"key": "hunter22", "username": "hunter22"}, "not both"),
        ("s3://b$/x", {"key": "hunter22", "secret": "hunter22"}, "Invalid bucket name"),
        ("gs://b/x", {"token": "anon", "endpoint_url": "nonsense"}, "InvalidUrl"),
        ("gs://b/x", {"token": "anon", "access": "hunter22"}, "access must be one of"),
        ("gs://b/x", {"token": {"client_secret": "hunter22"}}, "KeyError"),
        ("abfs://c/x", {}, "no account"),
        ("abfs://c/x", {"connection_string": "hunter22"}, "[Cc]onnection string"),
        ("abfs://c/x", {"account_name": "a", "account_key": "hunter22!", "account_host": "localhost:1"}, "abfs://c/x"),
        (
            "abfs://c/x",
            {"account_name": "a", "max_single": "hunter22", "sas_token": "sig=hunter22", "nonsense": 1},
            "abfs://c/x",
        ),
    ],
)
def test_options_that_cannot_be_right(
    url: str, options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    store = open_store(url, options, timeout=1.0).inner  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=reason) as raised:
        run_sync(store.get("y"))
    assert isinstance(raised.value, IllegalArgumentError | InvalidStateError | DependencyError)
    assert "hunter22" not in "".join(traceback.format_exception(raised.value))


def test_no_credentials_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidStateError, match=r"s3://b/x/y: .*give credentials in storage_options"):
        run_sync(open_store("s3://b/x", {"endpoint_url": "http://127.0.0.1:1"}).get("y"))


SECRET = "wJalr+XUt/nFEMI=="


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"secret": SECRET}, f"bad secret {SECRET} given"),
        ({"secret": SECRET}, "bad secret wJalr%2BXUt%2FnFEMI%3D%3D given"),
        ({"client_kwargs": {"aws_secret_access_key": SECRET}}, f"bad {SECRET}"),
        ({"anything": [{"deep": (SECRET,)}]}, f"bad {SECRET}"),
        ({"secret": SECRET.encode()}, f"bad {SECRET}"),
        ({"connection_string": f"AccountName=me;AccountKey={SECRET};EndpointSuffix=x"}, f"bad {SECRET}"),
        ({"sas_token": f"?sv=2020&sig={SECRET}"}, f"bad {SECRET}"),
        ({"endpoint_url": f"http://user:{SECRET}@host"}, f"bad http://user:{SECRET}@host"),
        ({}, f"GET https://host/x?sv=1&sig={SECRET}&se=2"),
        ({}, f"AccountName=me;AccountKey={SECRET};EndpointSuffix=x"),
        ({}, f"Authorization: {SECRET}"),
        ({}, f"{{'Authorization': 'Bearer {SECRET}'}}"),
        ({}, f"Authorization: Basic {SECRET}"),
        ({}, f"refused the bearer {SECRET}"),
        ({}, f"PUT https://host/upload?upload_id={SECRET}&x=1"),
        ({}, f"Authorization: AWS4-HMAC-SHA256 Credential={SECRET}, Signature={SECRET}"),
        ({}, f'"client_secret": "{SECRET}"'),
        ({"token": {"private_key": f"-----BEGIN-----\n{SECRET}\n"}}, f"bad key:\n-----BEGIN-----\n{SECRET}\n"),
        ({"token": {"private_key": f"-----BEGIN-----\n{SECRET}\n"}}, f"bad key:\n{SECRET}"),
        ({"secret": f'"\t{SECRET}'}, "bad " + repr(f'"\t{SECRET}')),
        ({"secret": f'"\t{SECRET}'}, "bad " + json.dumps(f'"\t{SECRET}')),
    ],
)
def test_secrets_are_scrubbed(options: dict[str, Any], text: str) -> None:
    shown = scrub(text, options)
    assert "***" in shown
    for part in (SECRET, "wJalr", "nFEMI"):
        assert part not in shown


def test_secrets_of_the_environment_are_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=account;AccountKey=hunter22")
    assert scrub(f"{SECRET} and hunter22 of account", {}) == "*** and *** of account"


def test_secrets_of_fsspecs_own_configuration_are_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {"key": "AKIAhunter22", "client_kwargs": {"x": SECRET}})
    assert scrub(f"AKIAhunter22 and {SECRET}", {}) == "*** and ***"


def test_what_an_operator_needs_is_shown() -> None:
    options = {"endpoint_url": "http://host:1", "client_kwargs": {"region_name": "us-east-1"}, "anon": True, "n": "x"}
    text = "no route to http://host:1 in us-east-1"
    assert scrub(text + "\nsecond line", options) == text


def test_a_store_in_a_cloud_never_shows_its_options(place_of: Any) -> None:
    for kind in KINDS:
        place: Place = place_of(kind)
        store = place.open()
        assert repr(store).endswith(f"Store {place.url}>")
        assert str(store) == repr(store)


def test_a_missing_object_is_no_refusal(place_of: Any) -> None:
    for kind in KINDS:
        with pytest.raises(ObjectNotFoundError):
            run_sync(place_of(kind).open().get("x"))
