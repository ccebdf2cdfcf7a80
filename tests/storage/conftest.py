"""A fresh store of each kind. The mark `kinds` names the kinds that a test is for.

With `CHECKPOINTER_S3_SERVERS`, names of tests/s3_servers.py, the tests of the kind "s3" run on those servers, and no
others.
"""

import asyncio
import os
import secrets
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import Store, open_store, request_path
from pyspark_checkpointer.storage.fsspec_any import store as fsspec_any
from tests import s3_servers
from tests.servers import Server, ServerUnavailableError

MORE_S3 = os.environ.get("CHECKPOINTER_S3_SERVERS", "").split()
CONDITIONAL = ["memory", "local", "s3", "azure", "gcs", "databricks"]
PLAIN = [*CONDITIONAL, "generic", "generic-objects"]
EVERY = [*PLAIN, "encrypted", "hidden"]


@dataclass(frozen=True)
class Place:
    """An empty root, and how to open it; opened again it is the same root."""

    kind: str
    url: str
    storage_options: dict[str, Any] = field(repr=False)
    fencing: str = "required"
    encryption: str | None = None

    @property
    def is_near(self) -> bool:
        """Return whether no server is asked.

        Then an attack tries all there is. On a server it tries a part: the library has the same bytes there.
        """
        return self.kind in ("memory", "local")

    def open(self, **changes: Any) -> Store:
        given = {"fencing": self.fencing, "encryption": self.encryption, **changes}
        return open_store(self.url, self.storage_options, **given)


def copy_objects(source: Store, target: Store) -> None:
    """Put all objects of a root into an empty one."""

    async def copy() -> None:
        entries = await source.list("")
        found = await asyncio.gather(*(source.get(entry.path) for entry in entries))
        await asyncio.gather(*(target.put(entry.path, blob.data) for entry, blob in zip(entries, found, strict=True)))

    run_sync(copy())


@pytest.fixture
def place_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Place]:
    """Return a function that makes a root of a kind. The servers of four kinds start with their first root."""

    def make(kind: str) -> Place:
        name = uuid.uuid4().hex
        if kind == "local":
            return Place(kind, str(tmp_path / name / "root"), {})
        if kind == "memory":
            return Place(kind, f"memory://{name}", {})
        if kind == "generic":  # a protocol that this library has no store of its own for
            return Place(kind, f"generic-test://{tmp_path}/{name}", {}, "none")
        if kind == "generic-objects":
            return Place(kind, f"generic-objects-test://{name}/root", {}, "none")
        if kind in ("encrypted", "hidden"):  # in a folder, on whose files the key has to be found
            key = tmp_path / f"{name}.key"
            key.write_text(secrets.token_hex(32))
            hides = "hide-names:" if kind == "hidden" else ""
            return Place(kind, str(tmp_path / name / "root"), {}, encryption=f"{hides}key-file:{key}")
        if kind in MORE_S3:
            server = request.getfixturevalue("more_s3")(kind)
            return Place("s3", f"{server.url}/{name}/root", server.storage_options)
        server = request.getfixturevalue(f"{kind}_server")
        return Place(kind, f"{server.url}/{name}/root", server.storage_options)

    return make


@pytest.fixture(scope="session")
def more_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Return a function that gives a server by its name, started with the first call."""
    started: dict[str, Server] = {}

    def give(name: str) -> Server:
        if name not in started:
            try:
                started[name] = s3_servers.START[name](tmp_path_factory.mktemp(name))
            except ServerUnavailableError as unavailable:
                pytest.skip(str(unavailable))
        return started[name]

    yield give
    for server in started.values():
        server.stop()


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try requests again at once: a store that refuses every time is waited for half a minute."""
    monkeypatch.setattr(request_path, "wait_random_exponential", lambda **_: lambda state: 0.0)


@pytest.fixture
def place(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Place:
    """Return a root of the kind that the test is parametrised with: every kind, unless its mark says otherwise."""
    return place_of(request.param)


@pytest.fixture
def store(place: Place) -> Store:
    return place.open()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `place` or `store` once for each kind of its `kinds` mark."""
    if "place" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("kinds")
        kinds = mark.args if mark else EVERY
        if MORE_S3:
            kinds = MORE_S3 if "s3" in kinds else ()
        metafunc.parametrize("place", kinds, indirect=True)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kinds(*names): the kinds of store that a test runs on")


@pytest.fixture(scope="session", autouse=True)
def _generic_protocols() -> Iterator[None]:
    """Two file systems that are not asynchronous, each under a protocol of its own: files, and an object store."""
    import fsspec
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem

    class Files(LocalFileSystem):
        protocol = "generic-test"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return super()._strip_protocol(path.removeprefix("generic-test://"))

    class Objects(MemoryFileSystem):
        protocol = "generic-objects-test"
        store: ClassVar[dict[str, Any]] = {}
        pseudo_dirs: ClassVar[list[str]] = [""]

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return super()._strip_protocol(path.removeprefix("generic-objects-test://"))

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            """Do nothing: an object store has no folders."""

    for files in (Files, Objects):
        fsspec.register_implementation(files.protocol, files, clobber=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsspec_any, "_OBJECT_STORES", {*fsspec_any._OBJECT_STORES, Objects.protocol})
        yield
