"""Credentials that expire and rotate in the middle of a job: they are read again, and no commit is lost."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gcsfs")

from google.auth.exceptions import RefreshError
from google.oauth2.credentials import Credentials

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import StoreRefusedError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import Store, open_store
from pyspark_checkpointer.storage.compare_and_swap import swap_until_decided
from tests.storage.fake import FakeServer, gives, says, serves, serving, tells
from tests.storage.s3.tiny_s3 import Asked, Refusal, TinyS3, tiny_s3

COMMITS = 3


@pytest.fixture(autouse=True)
def _no_other_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


class Users:
    """What the server believes: the tokens that are valid now."""

    def __init__(self, *valid: str) -> None:
        self.valid = {*valid}

    def check(self, asked: Asked) -> Refusal | None:
        return None if asked.token in self.valid else (400, "ExpiredToken")


def write(folder: Path, token: str) -> None:
    """Write a file of credentials, as an agent does that renews them."""
    text = f"[default]\naws_access_key_id = KEY{token}\naws_secret_access_key = secret{token}\n"
    (folder / "credentials").write_text(f"{text}aws_session_token = {token}\n")


def client(server: TinyS3) -> Checkpointer:
    ck = Checkpointer("s3://bucket/root", {"endpoint_url": server.endpoint})
    ck.session._probed = True  # the probe is many requests, and none of them is of a commit
    return ck


def commit(ck: Checkpointer, number: int) -> None:
    with ck.begin(epoch=number) as attempt:
        attempt.snapshot("op", 0, b"%d" % number)


def check_all(ck: Checkpointer, count: int) -> None:
    """See that each commit is there once, in its order."""
    found = [ck.load_manifest(one).epoch for one in ck.list_checkpoints()]
    assert found == list(range(count))
    restored = ck.restore()
    assert restored is not None
    assert restored.operator("op").partition(0) == [b"%d" % (count - 1)]


def test_a_file_of_credentials_is_read_again(tmp_path: Path) -> None:
    users = Users("0")
    write(tmp_path, "0")
    with tiny_s3(users.check) as server, client(server) as ck:
        for number in range(COMMITS):
            commit(ck, number)
            users.valid = {str(number + 1)}
            write(tmp_path, str(number + 1))
        check_all(ck, COMMITS)


@pytest.mark.parametrize("method", ["the swap", "PUT", "GET"])
def test_they_may_expire_before_any_request(tmp_path: Path, method: str) -> None:
    """The request that is refused first is a put of an artifact, the swap of `_latest`, or a read."""
    users, done = Users("old", "new"), []

    def check(asked: Asked) -> Refusal | None:
        wanted = asked.is_swap if method == "the swap" else asked.method == method
        if wanted and armed and not done:
            users.valid = {"new"}
            write(tmp_path, "new")
            done.append(asked)
        return users.check(asked)

    write(tmp_path, "old")
    armed = False
    with tiny_s3(check) as server, client(server) as ck:
        commit(ck, 0)
        armed = True
        commit(ck, 1)
        check_all(ck, 2)
        assert len(done) == 1
        swaps = [asked for asked in server.asked if asked.is_swap and asked.key == "root/_latest"]
        assert len(swaps) == (2 if method == "the swap" else 1), "a refused swap is sent again once"


def test_variables_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_to(token: str) -> None:
        for name, value in (("ACCESS_KEY_ID", "K"), ("SECRET_ACCESS_KEY", "S"), ("SESSION_TOKEN", token)):
            monkeypatch.setenv(f"AWS_{name}", value)

    users = Users("old")
    set_to("old")
    with tiny_s3(users.check) as server, client(server) as ck:
        commit(ck, 0)
        set_to("new")
        users.valid = {"new"}
        commit(ck, 1)
        check_all(ck, 2)


@pytest.mark.parametrize("given", [True, False])
def test_credentials_that_nobody_renewed_are_refused_at_once(tmp_path: Path, given: bool) -> None:
    write(tmp_path, "old")
    options = {"key": "KEYold", "secret": "secretold", "token": "old"} if given else {}
    with tiny_s3(Users().check) as server:
        store = open_store("s3://bucket/root", {"endpoint_url": server.endpoint, **options})
        if given:
            write(tmp_path, "new")  # for somebody else: the options of this store stay what they are
        for request in (store.get("x"), store.put("x", b"1"), store.compare_and_swap("x", b"1", '"1"')):
            with pytest.raises(StoreRefusedError, match=r"ExpiredToken: .*; correct the credentials"):
                run_sync(request)
        assert len(server.asked) == 3


def test_a_client_that_was_opened_without_credentials_finds_them_later(tmp_path: Path) -> None:
    """An agent writes the file after the job has started."""
    with tiny_s3(Users("late").check) as server:
        store = open_store("s3://bucket/root", {"endpoint_url": server.endpoint})
        for _ in range(2):
            with pytest.raises(StoreRefusedError, match="give credentials in storage_options or the environment"):
                run_sync(store.put("x", b"1"))
        assert server.asked == []
        write(tmp_path, "late")
        run_sync(store.put("x", b"1"))
        assert bytes(run_sync(store.get("x")).data) == b"1"


# --- services that hand out credentials for a while ---


@contextmanager
def metadata(*, fails: range) -> Iterator[tuple[FakeServer, list[str]]]:
    """A service that gives another token each time, which botocore renews at once, and the tokens it gave."""
    given: list[str] = []
    count = 0
    lock = threading.Lock()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        nonlocal count
        with lock:
            count += 1
            failing = count in fails
            if not failing:
                given.append(str(count))
        end = datetime.now(UTC) + timedelta(minutes=5)  # botocore renews ten minutes before the end
        document = {
            "AccessKeyId": f"KEY{count}",
            "SecretAccessKey": f"secret{count}",
            "Token": str(count),
            "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        gives(500 if failing else 200, {} if failing else document)(handler)

    with serving(answer) as server:
        yield server, given


def test_a_role_is_renewed_while_a_job_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the service has an outage that is shorter than what the library waits for."""
    with metadata(fails=range(7, 9)) as (service, given):
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{service.server_address[1]}/role")

        def check(asked: Asked) -> Refusal | None:
            return None if asked.token in given[-20:] else (400, "ExpiredToken")

        with tiny_s3(check) as server, client(server) as ck:
            for number in range(COMMITS):
                commit(ck, number)
            check_all(ck, COMMITS)
            assert len({asked.token for asked in server.asked}) > COMMITS


def test_a_client_that_was_opened_in_an_outage_of_the_service_of_roles_asks_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """botocore takes an outage of the service of a machine for a machine without a role."""
    end = datetime.now(UTC) + timedelta(hours=6)
    role = {"Code": "Success", "AccessKeyId": "KEY", "SecretAccessKey": "secret", "Token": "role"}
    role["Expiration"] = end.strftime("%Y-%m-%dT%H:%M:%SZ")

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if len(service.requests) <= 2:
            return gives(500, {})(handler)
        name_is_asked = handler.path.endswith("/security-credentials/")
        return gives(200, {} if handler.command == "PUT" else "role" if name_is_asked else role)(handler)

    with serving(answer) as service:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{service.server_address[1]}")
        with tiny_s3(Users("role").check) as server:
            run_sync(open_store("s3://bucket/root", {"endpoint_url": server.endpoint}).put("x", b"1"))
            assert [asked.token for asked in server.asked] == ["role"]


# --- Azure and Google ---

CALLS = {
    "get": lambda store, version: store.get("x"),
    "put": lambda store, version: store.put("x", b"1"),
    "swap": lambda store, version: swap_until_decided(store, "x", b"1", version, 100),
}


def written(handler: BaseHTTPRequestHandler) -> None:
    """Answer a read with an object, and a write with its new version; on Azure and on Google."""
    if handler.command == "GET":
        serves(5, None)(handler)
    else:
        status = 201 if handler.command == "PUT" else 200
        gives(status, {"generation": "7"}, ETag='"7"')(handler)


@pytest.mark.parametrize("call", CALLS)
def test_a_token_of_azure_in_the_environment_is_read_again(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if "sig=new" in handler.path:
            return written(handler)
        set_to("new")
        return says(403, "AuthenticationFailed")(handler)

    def set_to(signature: str) -> None:
        connection = f"BlobEndpoint={endpoint}/account;SharedAccessSignature=sv=1&sig={signature}1111"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)

    with serving(answer) as server:
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        set_to("old")
        run_sync(CALLS[call](open_store("abfs://container/root"), '"1"'))
        writes = [request for request in server.requests if request.startswith("PUT")]
        assert len(writes) == (0 if call == "get" else 2)


def test_all_requests_under_way_with_an_old_token_of_azure_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit has several, and the first answer of a refusal lets the others find the new token in use."""
    both = threading.Barrier(2, timeout=30)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if "sig=new" in handler.path:
            return written(handler)
        both.wait()
        set_to("new")
        return says(403, "AuthenticationFailed")(handler)

    def set_to(signature: str) -> None:
        connection = f"BlobEndpoint={endpoint}/account;SharedAccessSignature=sv=1&sig={signature}1111"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)

    async def put_both(store: Store) -> None:
        await asyncio.gather(store.put("x", b"1"), store.put("y", b"1"))

    with serving(answer) as server:
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        set_to("old")
        run_sync(put_both(open_store("abfs://container/root")))
        assert sum("sig=old" in request for request in server.requests) == 2


def test_a_token_of_azure_that_nobody_renewed_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(says(403, "AuthenticationFailed")) as server:
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        connection = f"BlobEndpoint={endpoint}/account;SharedAccessSignature=sv=1&sig=old1111"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
        with pytest.raises(StoreRefusedError, match="correct the credentials"):
            run_sync(open_store("abfs://container/root").get("x"))
        assert len(server.requests) == 1


class Metadata(Credentials):  # type: ignore[misc]
    """Credentials of a metadata server, which gives the tokens of a list, one after the other."""

    def __init__(self, *tokens: str) -> None:
        super().__init__(None)
        self.tokens = [*tokens]

    def refresh(self, request: Any) -> None:
        if not self.tokens:
            raise RefreshError("no more")
        self.token = self.tokens.pop(0)


def google(server: FakeServer, *tokens: str) -> Store:
    place = server.place("gcs")
    return open_store(place.url, {**place.storage_options, "token": Metadata(*tokens)})


def accepting(*valid: str) -> Any:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.headers.get("Authorization") in {f"Bearer {token}" for token in valid}:
            return written(handler)
        return tells(401, "authError", "Invalid Credentials")(handler)

    return answer


@pytest.mark.parametrize("call", CALLS)
def test_a_token_of_google_that_ends_before_its_time_is_renewed(call: str) -> None:
    with serving(accepting("new")) as server:
        run_sync(CALLS[call](google(server, "old", "new"), "1"))
        writes = [request for request in server.requests if request.startswith("POST")]
        assert len(writes) == (0 if call == "get" else 2)


@pytest.mark.parametrize("tokens", [("old",), ("old", "old"), ("old", "worse", "worst")])
def test_a_token_of_google_that_is_refused_for_good(tokens: tuple[str, ...]) -> None:
    with serving(accepting("new")) as server:
        store = google(server, *tokens)
        with pytest.raises(StoreRefusedError, match="Invalid Credentials; correct the credentials"):
            run_sync(store.compare_and_swap("x", b"1", "1") if len(tokens) < 3 else store.get("x"))
        assert len(server.requests) == (2 if len(tokens) == 3 else 1)
