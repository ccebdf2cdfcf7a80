"""Tokens of Databricks: where they come from, how they are replaced, and that nobody sees them."""

import asyncio
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    IllegalArgumentError,
    StoreRefusedError,
    ThrottlingError,
)
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import Store, open_store
from tests.storage.fake import gives, refuses, serving
from tests.storage.test_faults import CALLS, once
from tests.volumes_server import CLIENT, VOLUME, Handler, VolumesServer, volumes

ROOT = f"dbfs:{VOLUME}/jobs/orders"
PRINCIPAL = {"client_id": CLIENT[0], "client_secret": CLIENT[1]}
VARIABLES = ("HOST", "TOKEN", "CLIENT_ID", "CLIENT_SECRET")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"DATABRICKS_{name}", raising=False)


@pytest.fixture
def server() -> Iterator[VolumesServer]:
    with volumes() as running:
        yield running


def asked(server: VolumesServer, what: str = "/oidc/") -> int:
    """Return how many requests were about something."""
    return sum(what in request for request in server.requests)


def single(**options: Any) -> Store:
    """Return a store that sends each request once."""
    store: Store = open_store(ROOT, options, timeout=5.0).inner  # type: ignore[attr-defined]
    return store


# --- who the caller is ---


def test_a_service_principal_gets_a_token_and_keeps_it(server: VolumesServer) -> None:
    store = open_store(ROOT, {"host": server.address, "endpoint_url": server.address, **PRINCIPAL})

    async def many() -> None:
        await asyncio.gather(*(store.put(f"a/{number}", b"") for number in range(20)))

    run_sync(many())
    run_sync(store.list(""))
    assert asked(server) == 1


def test_a_token_is_replaced_before_its_end(server: VolumesServer) -> None:
    server.lifetime = 0  # over at once
    store = open_store(ROOT, {"host": server.address, "endpoint_url": server.address, **PRINCIPAL})
    for number in range(3):
        run_sync(store.put(f"{number}", b""))
    assert asked(server) == 3
    assert not any(request.startswith("GET") for request in server.requests)


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_is_refused_before_its_end_is_replaced(server: VolumesServer, status: int) -> None:
    store = open_store(ROOT, {"host": server.address, **PRINCIPAL})
    run_sync(store.put("x", b"1"))
    server.tokens.clear()

    def refuse(handler: Handler) -> bool:
        if (
            handler.headers.get("Authorization", "").removeprefix("Bearer ") in server.tokens
            or handler.command == "POST"
        ):
            return False
        handler.refuse(status, "PERMISSION_DENIED", "Invalid access token.")
        return True

    server.meddle = refuse
    assert run_sync(store.get("x")).data == b"1"
    assert asked(server) == 2


def test_a_fresh_token_that_is_refused_is_not_replaced_for_ever(server: VolumesServer) -> None:
    store = single(host=server.address, endpoint_url=server.address, **PRINCIPAL)

    def refuse(handler: Handler) -> bool:
        if handler.command == "POST":
            return False
        handler.refuse(401, "UNAUTHENTICATED", "no")
        return True

    server.meddle = refuse
    for _ in range(3):
        with pytest.raises(StoreRefusedError, match="401 UNAUTHENTICATED: no; correct the credentials"):
            run_sync(store.get("x"))
    assert asked(server) == 1


def test_a_swap_with_a_refused_token_is_told_as_undecided_and_can_be_sent_again(server: VolumesServer) -> None:
    store = single(host=server.address, **PRINCIPAL)
    version = run_sync(store.compare_and_swap("x", b"1", None))
    server.tokens.clear()
    with pytest.raises(DependencyError, match="401: the token is replaced"):
        run_sync(store.compare_and_swap("x", b"2", version))
    assert run_sync(store.compare_and_swap("x", b"2", version)) != version


def test_a_token_of_the_environment_may_be_replaced_while_a_job_runs(
    server: VolumesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABRICKS_HOST", server.address.removeprefix("http://"))
    monkeypatch.setenv("DATABRICKS_TOKEN", server.issue())
    store = open_store(ROOT, {"host": server.address})
    run_sync(store.put("x", b"1"))
    server.tokens.clear()
    with pytest.raises(StoreRefusedError, match="correct the credentials in storage_options or the environment"):
        run_sync(store.get("x"))
    monkeypatch.setenv("DATABRICKS_TOKEN", server.issue())
    assert run_sync(store.get("x")).data == b"1"


def test_options_count_more_than_the_environment(server: VolumesServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_TOKEN", "not-this-one")
    monkeypatch.setenv("DATABRICKS_CLIENT_ID", "nor-this-one")
    run_sync(open_store(ROOT, {"endpoint_url": server.address, "token": server.issue()}).put("x", b""))
    monkeypatch.setenv("DATABRICKS_CLIENT_SECRET", CLIENT[1])
    run_sync(open_store(ROOT, {"host": server.address, "client_id": CLIENT[0]}).get("x"))


def test_a_service_principal_of_the_environment(server: VolumesServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, (server.address, None, *CLIENT), strict=True):
        if value is not None:
            monkeypatch.setenv(f"DATABRICKS_{name}", value)
    run_sync(open_store(ROOT).put("x", b""))
    assert asked(server) == 1


# --- where the server is ---


def test_the_workspace_tells_where_its_volumes_are(server: VolumesServer) -> None:
    store = open_store(ROOT, {"host": server.address + "/?o=1234567890123456", "token": server.issue()})
    run_sync(store.put("x", b""))
    run_sync(store.get("x"))
    assert server.requests[0] == "GET /api/2.0/fs/endpoints"
    assert asked(server, "/endpoints") == 1


@pytest.mark.parametrize(
    "entry",
    [
        {"scheme": "https", "hostname": "user@evil.example"},
        {"scheme": "https", "hostname": "evil.example/x?"},
        {"scheme": "http", "hostname": "evil.example"},
        {"scheme": "https"},
        {},
    ],
)
def test_a_token_goes_to_no_strange_address(entry: dict[str, str]) -> None:
    told = {"endpoints": [{"api": "FILES_API", "api_version": "3.0", **entry}]}
    with (
        serving(gives(200, told)) as fake,
        pytest.raises(CheckpointError, match=r"expected the name of a server|names no server of FILES_API 3\.0"),
    ):
        host = fake.place("databricks").storage_options["endpoint_url"]
        run_sync(single(host=host, token="hunter22hunter22").get("x"))
    assert len(fake.requests) == 1


@pytest.mark.parametrize("answer", [gives(404, {}), gives(200, {"endpoints": []}), gives(400, "?"), gives(200, {})])
def test_a_workspace_that_does_not_tell_is_told_what_to_give(answer: Any) -> None:
    with serving(answer) as fake, pytest.raises(StoreRefusedError, match="give endpoint_url in storage_options"):
        host = fake.place("databricks").storage_options["endpoint_url"]
        run_sync(single(host=host, token="hunter22hunter22").get("x"))


@pytest.mark.parametrize(("answer", "expected"), [(gives(503, {}), ThrottlingError), (gives(500, {}), DependencyError)])
@pytest.mark.parametrize("options", [{"token": "hunter22hunter22"}, PRINCIPAL])
def test_a_workspace_in_trouble_is_no_refusal(
    answer: Any, expected: type[CheckpointError], options: dict[str, str]
) -> None:
    with serving(answer) as fake, pytest.raises(expected, match=ROOT):
        host = fake.place("databricks").storage_options["endpoint_url"]
        run_sync(single(host=host, **options).get("x"))


@pytest.mark.parametrize("name", ["endpoint_url", "host"])
@pytest.mark.parametrize(
    "address", ["http://storage.example", "ftp://127.0.0.1", "https://", "https://me:hunter22@host", "http://[", "a b"]
)
def test_a_token_is_sent_over_tls_only(name: str, address: str) -> None:
    with pytest.raises((IllegalArgumentError, DependencyError), match=f"{name}: expected the name|Cannot connect|a b"):
        run_sync(single(token="hunter22hunter22", **{name: address}).get("x"))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("call", ["get", "put", "swap", "list", "delete"])
def test_credentials_follow_no_redirect(status: int, call: str) -> None:
    with serving(gives(200, {})) as other:
        elsewhere = other.place("databricks").storage_options["endpoint_url"]
        with (
            serving(gives(status, {}, Location=elsewhere)) as fake,
            pytest.raises(StoreRefusedError, match=f"{status}:"),
        ):
            run_sync(CALLS[call](once(fake.place("databricks"))))
    assert (len(fake.requests), other.requests) == (1, [])


# --- mistakes ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no credentials were found; give token, or client_id and client_secret, in storage_options"),
        ({"client_id": "x"}, "no token of the service principal: give client_secret, or set DATABRICKS_CLIENT_SECRET"),
        (PRINCIPAL, "no token of the service principal: give host, or set DATABRICKS_HOST"),
        ({"token": "t", "endpoint_url": None}, "no workspace: give host in storage_options, or set DATABRICKS_HOST"),
        ({"key": "hunter22"}, "storage_options: 'key': expected host, endpoint_url, token, client_id, client_secret"),
        ({"token": b"hunter22"}, "storage_options: token: expected a text, got bytes"),
    ],
)
def test_options_that_cannot_be_right(options: dict[str, Any], said: str) -> None:
    with pytest.raises((StoreRefusedError, IllegalArgumentError), match=said) as raised:
        run_sync(single(**{"endpoint_url": "http://127.0.0.1:1", **options}).get("x"))
    assert "hunter22" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_secret_is_shown_to_nobody(server: VolumesServer, call: str, caplog: pytest.LogCaptureFixture) -> None:
    """The server of the tests quotes what it refuses."""
    store = single(host=server.address, client_id=CLIENT[0], client_secret="hunter22-but-wrong")
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreRefusedError, match="correct the credentials") as raised:
        run_sync(CALLS[call](store))
    for text in (*traceback.format_exception(raised.value), repr(store), caplog.text):
        assert "hunter22" not in text


def test_permissions_that_are_missing_are_named() -> None:
    denied = refuses(403, "PERMISSION_DENIED", "User does not have WRITE VOLUME on Volume 'main.default.checkpoints'.")
    with serving(denied) as fake, pytest.raises(StoreRefusedError, match="give them READ VOLUME and WRITE VOLUME"):
        run_sync(once(fake.place("databricks")).put("x", b""))


@pytest.mark.parametrize("name", ["TOKEN", "CLIENT_SECRET"])
def test_a_secret_of_the_environment_is_shown_to_nobody(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_CLIENT_ID", CLIENT[0])
    monkeypatch.setenv(f"DATABRICKS_{name}", "hunter22hunter22")
    with serving(refuses(403, "PERMISSION_DENIED", "no right for hunter22hunter22")) as fake:
        address = fake.place("databricks").storage_options["endpoint_url"]
        with pytest.raises(StoreRefusedError, match="no right for") as raised:
            run_sync(single(host=address, endpoint_url=address).get("x"))
    assert "hunter22" not in str(raised.value)
