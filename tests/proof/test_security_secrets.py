"""Credentials come back from nowhere: no text, log, error, file or object; pickles hold what was configured alone."""

import copy
import io
import json
import pickle
import re
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import zstandard
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.client.opentelemetry import opentelemetry_metrics
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.dataframes import struct_of
from pyspark_checkpointer.spark.datasource import TableSourceReader
from pyspark_checkpointer.spark.read import version_of
from pyspark_checkpointer.spark.source_options import ReadRequest
from pyspark_checkpointer.spark.task_client import TaskRoot
from pyspark_checkpointer.storage import open_store
from tests.proof.life import Life
from tests.servers import Server
from tests.storage.fake import FakeServer, says, serving
from tests.test_layers import FILES

# ---- looking for them --------------------------------------------------------------------------------------------


def secrets_of(options: Any, name: str = "") -> set[str]:
    """Every text of the options but those that say where a store is."""
    if isinstance(options, dict):
        return {secret for key, value in options.items() for secret in secrets_of(value, key)}
    if name in ("endpoint_url", "region_name", "account_name") or not isinstance(options, str):
        return set()
    if name == "connection_string":
        settings = dict(setting.split("=", 1) for setting in options.strip(";").split(";"))
        return {
            settings[name].rpartition("sig=")[2] for name in ("AccountKey", "SharedAccessSignature") if name in settings
        }
    return {options}


class Search:
    """Everything that was seen, in one text, in which no secret may be in any spelling."""

    def __init__(self) -> None:
        self._seen = io.StringIO()

    def see(self, *texts: object) -> None:
        for text in texts:
            self._seen.write(f"{text}\n")

    def look_at(self, made: object) -> None:
        """An object as people see it, and an error with all that hangs on it."""
        self.see(repr(made), str(made), f"{made}")
        if isinstance(made, BaseException):
            self.see(*traceback.format_exception(made), *made.__dict__.items())
            for other in (made.__cause__, made.__context__):
                if other is not None:
                    self.look_at(other)
        show = getattr(made, "_repr_html_", None)
        if show is not None:
            self.see(show())

    def look_through(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.see(path.name, readable(path.read_bytes()))

    def find(self, secrets: set[str]) -> set[str]:
        everything = self._seen.getvalue()
        return {secret for secret in secrets for spelling in (secret, quote(secret, safe="")) if spelling in everything}

    @property
    def size(self) -> int:
        return self._seen.tell()


def readable(data: bytes) -> str:
    """Bytes as text, decompressed where they are a whole frame of zstd."""
    with suppress(zstandard.ZstdError):
        data += zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return data.decode("utf-8", "replace")


@pytest.fixture
def search(caplog: pytest.LogCaptureFixture) -> Iterator[Search]:
    """What is logged meanwhile, at any level, is searched too."""
    search = Search()
    with caplog.at_level(1, "pyspark_checkpointer"):
        yield search


def live(life: Life, search: Search, caplog: pytest.LogCaptureFixture, *, typed: bool = True) -> list[object]:
    made = life.live()
    for one in made:
        search.look_at(one)
    for said in life.type_it() if typed else ():
        search.see(said.out, said.err)
    search.look_through(life.aside)
    search.see(caplog.text, *(record.__dict__ for record in caplog.records))
    return made


# ---- where all is well -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["s3", "azure", "databricks"])
def test_no_credentials_come_back_from_a_store(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    search: Search,
    caplog: pytest.LogCaptureFixture,
    effort: Callable[[bool, bool], bool],
    figures: Counter[str],
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    options = copy.deepcopy(server.storage_options)
    life = Life(f"{server.url}/{uuid.uuid4().hex}", options, tmp_path / "aside")
    made = live(life, search, caplog, typed=effort(kind == "s3", True))
    assert [error for error in made if isinstance(error, CheckpointError)] == []
    assert options == server.storage_options  # not even by those that were given them
    store = open_store(life.url, options)
    for entry in run_sync(store.list("")):
        search.see(entry.path, readable(run_sync(store.get(entry.path)).data))
    secrets = secrets_of(options)
    assert secrets
    assert search.find(secrets) == set()
    figures["characters searched"] += search.size


# ---- where nothing works -----------------------------------------------------------------------------------------

KEY = "c4nary+Key/of=="

ACCOUNT = "DefaultEndpointsProtocol=http;AccountName=account;"
LONG = "YzRuYXJ5" * 8
FOUND = re.compile("c4n|YzRu")

OPTIONS: dict[str, dict[str, Any]] = {
    "s3 key": {"key": "AKIAc4nary", "secret": KEY, "token": "c4nary/token+x="},
    "s3 nested": {"client_kwargs": {"aws_access_key_id": "AKIAc4nary", "aws_secret_access_key": KEY}},
    "azure key": {"connection_string": f"{ACCOUNT}AccountKey={LONG};"},
    "azure signature": {"connection_string": f"{ACCOUNT}SharedAccessSignature=sv=2024&ss=b&sig=c4nary%2Bsignature%3D;"},
    "databricks token": {"token": "c4nary/token+x="},
    "databricks secret": {"client_id": "c4nary-client", "client_secret": KEY},
    "not for this": {"key": "AKIAc4nary", "secret": KEY, "c4naryoption": "c4naryvalue"},
}


def place(name: str, server: FakeServer) -> tuple[str, dict[str, Any]]:
    """Options that lead to a server which does not help."""
    options = copy.deepcopy(OPTIONS[name])
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    if name.startswith("azure"):
        options["connection_string"] += f"BlobEndpoint={endpoint}/account;"
        return "abfs://container/root", options
    if name.startswith("databricks"):
        options |= {"host": endpoint, "endpoint_url": endpoint}
        return "dbfs:/Volumes/main/default/checkpoints/root", options
    options.setdefault("client_kwargs", {}).update(endpoint_url=endpoint, region_name="us-east-1")
    return "s3://bucket/root", options


@pytest.mark.parametrize("name", OPTIONS)
def test_a_server_that_repeats_what_it_was_sent_is_not_quoted(
    name: str,
    tmp_path: Path,
    search: Search,
    caplog: pytest.LogCaptureFixture,
    effort: Callable[[bool, bool], bool],
    figures: Counter[str],
) -> None:
    secrets = set(filter(FOUND.search, secrets_of(OPTIONS[name])))
    assert secrets
    told = " and ".join([*secrets, *(quote(secret, safe="") for secret in secrets)]).replace("&", "&amp;")
    with serving(says(403, "AccessDenied", f"no right for {told}")) as server:
        url, options = place(name, server)
        life = Life(url, options, tmp_path / "aside", timeout=5.0)
        made = live(life, search, caplog, typed=effort(name == "azure key", True))
    errors = [error for error in made if isinstance(error, CheckpointError)]
    assert len(errors) > 20
    assert search.find(secrets) == set()
    figures["errors searched"] += len(errors)


# ---- what is sent to executors -----------------------------------------------------------------------------------


def test_a_pickle_holds_what_was_configured_and_nothing_that_was_found(
    s3_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors find credentials of the environment themselves, or are refused."""
    given = copy.deepcopy(s3_server.storage_options)
    found = {"AWS_ACCESS_KEY_ID": given.pop("key"), "AWS_SECRET_ACCESS_KEY": given.pop("secret")}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    life = Life(f"{s3_server.url}/{uuid.uuid4().hex}", given, tmp_path / "aside")
    made = life.live()
    assert [error for error in made if isinstance(error, CheckpointError)] == []
    clients = made[: len(list(life.clients()))]
    sent = [pickle.dumps(client) for client in clients if type(client).__name__ != "StatefulSink"]
    sent.append(pickle.dumps(TaskRoot("1.0", sent[0], "host")))
    request = ReadRequest.of({"path": life.url, "operator": "table", "storage_options": json.dumps(given)})
    restored = request.restore()
    assert restored.id is not None
    reader = TableSourceReader(request, struct_of(list(version_of(restored, "table").schema.columns)))
    sent += [pickle.dumps(reader), *(pickle.dumps(part) for part in reader.partitions())]
    for pickled in sent:
        assert not [secret for secret in found.values() if secret.encode() in pickled]
    back = [pickle.loads(pickled) for pickled in sent[: len(clients) - 1]]
    for client in back:
        config = vars(client).get("_config") or vars(client)["_root"]
        assert config.storage_options == given


def test_what_is_sent_does_not_show_what_it_holds() -> None:
    client = Checkpointer("s3://bucket/root", {"secret": KEY})
    request = ReadRequest.of({"path": "s3://b/x", "operator": "t", "storage_options": json.dumps({"secret": KEY})})
    shown = repr((TaskRoot("1.0", pickle.dumps(client), "host"), request, client._config, client.session))
    assert KEY not in shown


SECRET_FIELDS = {"storage_options", "options", "_options", "_config", "client"}


def test_no_dataclass_shows_a_field_that_may_hold_credentials() -> None:
    names = [name.removesuffix(".__init__") for name in FILES if not re.search(r"__main__|\.testing\b", name)]
    modules = [import_module(name) for name in names]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    shown = [
        f"{kind.__name__}.{field.name}" for kind in filter(is_dataclass, kinds) for field in fields(kind) if field.repr
    ]
    assert [name for name in shown if name.rpartition(".")[2] in SECRET_FIELDS] == []


def test_telemetry_tells_no_credentials() -> None:
    collected = InMemoryMetricReader()
    with serving(says(403, "AccessDenied", f"no right for {KEY}")) as server:
        url, options = place("s3 key", server)
        client = Checkpointer(url, options, metrics=opentelemetry_metrics(MeterProvider([collected])))
        with pytest.raises(CheckpointError):
            client.restore()
        client.close()
    told = str(collected.get_metrics_data())
    assert "checkpointer.restore.duration" in told
    assert KEY not in told
