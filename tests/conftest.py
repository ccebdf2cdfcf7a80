"""What every test may use: a root of each kind, and the servers behind three of them."""

import gc
import inspect
import multiprocessing
import os
import re
import subprocess
import sys
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import fsspec
import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from pyspark_checkpointer import compaction
from pyspark_checkpointer.runtime.host import SystemHost
from pyspark_checkpointer.storage import Store, conditional_write_check
from pyspark_checkpointer.storage.registry import STORES, folder_of
from tests import jvm
from tests.kafka import Broker, start_kafka
from tests.servers import (
    Server,
    ServerUnavailableError,
    Service,
    start_azurite,
    start_fake_gcs,
    start_minio,
    start_volumes,
)
from tests.world import World

S = TypeVar("S", bound=Service)
T = TypeVar("T")

pytest_plugins = [
    "pytester",
    "pyspark_checkpointer.testing.plugin",
    "tests.temporary",
    "tests.proof.effort",
    "tests.docs.one_spark",
]

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark would take any python3
if "JDK_JAVA_OPTIONS" not in os.environ:  # the processes of one run have them from the first
    os.environ["JDK_JAVA_OPTIONS"] = jvm.options()

# Python looks for cycles less often. By default that takes an eighth of the time of all tests without Spark, and
# a fifth of that of a random history. The oldest objects are still looked at whenever they have become a quarter more.
gc.set_threshold(50_000, 20, 20)


# Processes of tests are forked from a server that has imported what is slow. It imports once, when the first of them
# starts, whoever that is: so all is named here. A process that has to import the stores takes a second of a processor.
multiprocessing.set_forkserver_preload(
    [
        *("s3fs", "adlfs", "gcsfs", "pyspark_checkpointer"),
        *("tests.storage.workers", "tests.proof.kills.lives", "tests.consumers.test_cas_object"),
    ]
)


def pytest_collection_finish() -> None:
    """Take all that was imported and collected out of garbage collection: none of it becomes garbage.

    A test that collects garbage would look at all these objects, which takes half a second each time.
    """
    gc.collect()
    gc.freeze()


if "CI" not in os.environ:  # Hypothesis brings a profile of its own for CI
    settings.register_profile("shared-machine", deadline=None)
    settings.load_profile("shared-machine")


LONG = (
    "tests/spark/test_cluster.py",
    "tests/examples/",
    "tests/docs/",
    "tests/test_readme.py",
    "tests/test_docs.py::test_the_examples_with_spark_run",
    "tests/spark/",
)
"""What takes longest, so that a second process has something to do while it runs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((n for n, start in enumerate(LONG) if item.nodeid.startswith(start)), len(LONG))

    items.sort(key=place)


IN_PARTS = (
    "test_nothing_breaks_in_random_histories",
    "tests/admin/streaming/test_rewind_crashes.py",
    "tests/proof/test_table_walks.py",
)
"""Tests that take minutes, and need nothing of each other."""

ONE_SPARK = (
    "tests/docs/test_tutorial.py",
    "tests/docs/test_migrate.py",
    "tests/docs/test_operators.py",
    "tests/test_docs.py::test_the_examples_with_spark_run",
    "tests/examples/test_idempotent_sink.py",
    "tests/examples/test_sessions.py",
)
"""Tests that share the JVM of tests/docs/one_spark.py, so that one process runs all of them."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """With `--dist loadfile` a process is given a file at a time, or a part of what takes minutes."""

    class ByFileOrPart(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(ONE_SPARK):
                return "one Spark"
            return nodeid if any(part in nodeid for part in IN_PARTS) else super()._split_scope(nodeid)

    return ByFileOrPart(config, log) if config.getoption("dist") == "loadfile" else None


@dataclass(frozen=True, slots=True)
class Root:
    """An empty place for a store: local, memory, s3, azure, gcs or databricks."""

    url: str
    storage_options: dict[str, Any] = field(repr=False)
    kind: str


@pytest.fixture(scope="session")
def _servers() -> Iterator[list[Service]]:
    servers: list[Service] = []
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture(autouse=True)
def _servers_are_up(_servers: list[Service]) -> Iterator[None]:
    """A test that took a server down, and failed, does not take the others with it."""
    yield
    for server in _servers:
        server.start()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory, _servers: list[Service]) -> Server:
    """A MinIO server with an empty bucket."""
    _register_quickly()
    return _started(start_minio, tmp_path_factory.mktemp("minio"), _servers)


def _register_quickly() -> None:
    """Let botocore tell at a glance whether a function takes any arguments.

    It asks the slow `inspect` about more than a hundred functions for each client: 10 ms, and there are thousands.
    """
    hooks = pytest.importorskip("botocore.hooks")
    ask = hooks.accepts_kwargs

    def accepts_kwargs(function: Any) -> bool:
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        return bool(ask(function) if code is None else code.co_flags & inspect.CO_VARKEYWORDS)

    hooks.accepts_kwargs = accepts_kwargs


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory, _servers: list[Service]) -> Server:
    """An Azurite server with an empty container."""
    return _started(start_azurite, tmp_path_factory.mktemp("azurite"), _servers)


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory, _servers: list[Service]) -> Server:
    """A fake-gcs-server with an empty bucket."""
    return _started(start_fake_gcs, tmp_path_factory.mktemp("gcs"), _servers)


@pytest.fixture(scope="session")
def databricks_server(tmp_path_factory: pytest.TempPathFactory, _servers: list[Service]) -> Server:
    """A server of ours with an empty volume."""
    return _started(start_volumes, tmp_path_factory.mktemp("volumes"), _servers)


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory, _servers: list[Service]) -> Broker:
    """A Kafka broker without a topic."""
    return _started(start_kafka, tmp_path_factory.mktemp("kafka"), _servers)


def _started(start: Callable[[Path], S], folder: Path, servers: list[Service]) -> S:
    try:
        server = start(folder)
    except ServerUnavailableError as unavailable:
        _skip_or_fail(str(unavailable))
    servers.append(server)
    return server


def _skip_or_fail(reason: str) -> NoReturn:
    """Skip a test that lacks something here; fail where all of it is required."""
    if os.environ.get("CHECKPOINTER_REQUIRE_SERVERS"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


FRESH_ROOT = re.compile(r"((?:s3|abfs|gs)://checkpoints|dbfs:/Volumes/main/default/checkpoints)/[0-9a-f]{32}(/|$)")
"""The URLs of roots that fixtures and tests make on the servers of a session."""

SHOWN_HONEST: set[str] = set()
"""The servers, by the URLs of their buckets, that a contest of several writers has shown to keep conditions."""

_try_writers = conditional_write_check._try_writers


async def _try_writers_once(store: Store) -> None:
    """Hold the contest of writers for the first root on each server of the session, and for every root elsewhere.

    It makes two thirds of the requests of a test that commits once, and a server does not change its answers. What the
    contest finds is tested in tests/storage/test_contest.py; the fixture `whole_probe` holds it for each root.
    """
    found = FRESH_ROOT.match(store.url)
    if found is None or found[1] not in SHOWN_HONEST:
        await _try_writers(store)
    if found is not None:
        SHOWN_HONEST.add(found[1])


conditional_write_check._try_writers = _try_writers_once


@pytest.fixture
def whole_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the contest of writers for each root, as outside of tests."""
    monkeypatch.setattr(conditional_write_check, "_try_writers", _try_writers)


EVERY_STORE = [folder_of(kind) for kind in STORES]


def stores_by_turns(test: str) -> list[str]:
    """Return a folder, S3, and one of the other stores, which the name of the test chooses.

    What is above the stores makes the same requests of each, and the tests of `tests/storage` show that all of them
    answer alike. With `CHECKPOINTER_EVERY_STORE` set these are all stores.
    """
    if "CHECKPOINTER_EVERY_STORE" in os.environ:
        return EVERY_STORE
    others = [kind for kind in EVERY_STORE if kind not in ("local", "s3")]
    return ["local", "s3", others[zlib.crc32(test.encode()) % len(others)]]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "by_turns: of all stores, the test runs on those of `stores_by_turns`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each store that its root may be on."""
    marks = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    given = {name.strip() for names in marks for name in (names.split(",") if isinstance(names, str) else names)}
    for fixture in {"any_root", "victim"} & {*metafunc.fixturenames} - given:
        by_turns = metafunc.definition.get_closest_marker("by_turns")
        kinds = stores_by_turns(metafunc.definition.name) if by_turns else EVERY_STORE
        metafunc.parametrize(fixture, kinds, indirect=True)


@pytest.fixture
def any_root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    """A fresh root on every kind of store; the test runs once for each, or with the mark `by_turns` for some."""
    kind: str = request.param
    name = uuid.uuid4().hex
    match kind:
        case "local":
            yield Root(str(tmp_path / "root"), {}, kind)
        case "memory":
            yield Root(f"memory://{name}", {}, kind)
            memory = fsspec.filesystem("memory")
            if memory.exists(f"/{name}"):
                memory.rm(f"/{name}", recursive=True)
        case _:
            server: Server = request.getfixturevalue(f"{kind}_server")
            yield Root(f"{server.url}/{name}", server.storage_options, kind)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB. An own name space would be safer, but a test must be able to see it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, text=True)
    if done.returncode:
        _skip_or_fail(f"cannot mount a small file system here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.fixture
def superuser() -> None:
    """For tests that change users or owners."""
    if os.geteuid() != 0:
        _skip_or_fail("only root can change users and owners")


@pytest.fixture
def computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computations are made where they are asked for: of thousands of small histories, waking threads takes a fifth."""

    async def run(host: SystemHost, compute: Callable[[], T]) -> T:
        return compute()

    monkeypatch.setattr(SystemHost, "run", run)


@pytest.fixture(scope="module")
def small_manifests() -> Iterator[None]:
    """From 17 partitions on an operator is in segments, and not from 513 on.

    For tests that read everything again and again.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "INLINE", 16)
        yield


@pytest.fixture
def world() -> World:
    """A root in memory."""
    return World()


@pytest.fixture
def folder(tmp_path: Path) -> World:
    """A root in a local folder."""
    return World(tmp_path / "root")
