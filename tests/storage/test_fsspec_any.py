"""The store on any file system of fsspec, where its calls fail or do nothing: no answer is taken for "not there"."""

import asyncio
import ftplib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import DependencyError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import ObjectExistsError, ObjectNotFoundError, PreconditionFailedError
from pyspark_checkpointer.storage.compare_and_swap import swap_until_decided
from pyspark_checkpointer.storage.fsspec_any.store import GenericStore


@pytest.fixture
def store(tmp_path: Path) -> GenericStore:
    return GenericStore(f"generic-test://{tmp_path}/root", {})


def files() -> Any:
    return fsspec.get_filesystem_class("generic-test")


def no_answer(*_: object, **__: object) -> Any:
    raise OSError("no answer, says the test")


def test_an_object_that_cannot_be_asked_for_is_not_missing(
    store: GenericStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sync(store.put("a/x", b"1"))
    version = run_sync(store.compare_and_swap("_latest", b"1", None))
    with monkeypatch.context() as patch:
        patch.setattr(files(), "info", no_answer)
        for call in (
            store.put("a/x", b"2"),
            store.compare_and_swap("_latest", b"2", None),
            store.compare_and_swap("_latest", b"2", version),
        ):
            with pytest.raises(DependencyError, match="no answer"):
                run_sync(call)
    assert run_sync(store.get("_latest")).data == b"1"
    assert run_sync(store.get("a/x")).data == b"1"


def test_a_folder_that_cannot_be_listed_is_not_empty(store: GenericStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("a/1/x", "a/2/x", "b/x"):
        run_sync(store.put(path, b"1"))
    ls: Callable[..., Any] = files().ls

    def fails_in_a_folder(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        return no_answer() if path.endswith("a/2") else ls(self, path, *arguments, **options)

    monkeypatch.setattr(files(), "ls", fails_in_a_folder)
    for prefix in ("", "a/", "a/2/"):
        with pytest.raises(DependencyError, match="no answer"):
            run_sync(store.list_page(prefix))
    with pytest.raises(DependencyError, match="no answer"):
        run_sync(store.folders("a/2/"))
    assert [entry.path for entry in run_sync(store.list_page("b/")).entries] == ["b/x"]


@pytest.mark.parametrize("done", [False, True])
def test_a_move_that_failed_once_loses_nothing(
    done: bool, store: GenericStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = run_sync(store.compare_and_swap("_latest", b"1", None))
    mv: Callable[..., Any] = files().mv
    calls = 0

    def fails_once(self: Any, *arguments: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if done or calls > 1:
            mv(self, *arguments, **options)
        if calls == 1:
            no_answer()

    monkeypatch.setattr(files(), "mv", fails_once)
    version = run_sync(store.compare_and_swap("_latest", b"2", version))
    assert run_sync(store.get("_latest")).version == version
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["_latest"]
    assert calls == (1 if done else 2)


def test_a_swap_that_was_moved_and_cannot_be_looked_at_is_not_refused(
    store: GenericStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Find such a swap done: a refusal would say that nothing was written."""
    version = run_sync(store.compare_and_swap("_latest", b"1", None))
    info: Callable[..., Any] = files().info

    def refuses_temporary(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith(".tmp"):
            raise PermissionError("the ticket has expired, says the test")
        return info(self, path, *arguments, **options)

    monkeypatch.setattr(files(), "info", refuses_temporary)
    with pytest.raises(DependencyError, match="ticket has expired"):
        run_sync(store.compare_and_swap("_latest", b"2", version))
    version = run_sync(store.get("_latest")).version
    found = run_sync(swap_until_decided(store, "_latest", b"3", version, 1000))
    assert found is not None
    assert found.data == b"3"


@pytest.mark.parametrize("move", [no_answer, lambda *_, **__: None])
def test_a_move_that_is_never_done_is_an_error_and_keeps_the_only_copy(
    move: Callable[..., Any], store: GenericStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system of WebHDFS does not look at the answer of the service."""
    version = run_sync(store.compare_and_swap("_latest", b"1", None))
    with monkeypatch.context() as patch:
        patch.setattr(files(), "mv", move)
        with pytest.raises(DependencyError):
            run_sync(store.compare_and_swap("_latest", b"2", version))
        with pytest.raises(DependencyError):
            run_sync(store.put("a/x", b"3"))
    left = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in left] == [b"2"]
    run_sync(store.put("a/x", b"3"))


@pytest.mark.parametrize("overtaken", [False, True])
@pytest.mark.parametrize(
    ("protocol", "last_call"), [("generic-test", "pipe_file"), ("generic-objects-test", "makedirs")]
)
def test_a_swap_that_took_too_long_overwrites_nothing_later(
    protocol: str, last_call: str, overtaken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold its thread after the last call before it looks once more: of files, a temporary one is written by then."""
    store = GenericStore(f"{protocol}://{tmp_path}/root", {})
    version = run_sync(store.compare_and_swap("_latest", b"1", None))
    file_system, write = fsspec.get_filesystem_class(protocol), store._write
    call: Callable[..., Any] = getattr(file_system, last_call)
    reached, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(self: Any, *arguments: Any, **options: Any) -> None:
        call(self, *arguments, **options)
        if not reached.is_set():
            reached.set()
            assert go_on.wait(30)

    def noting_the_end(*arguments: Any, **options: Any) -> None:
        try:
            write(*arguments, **options)
        finally:
            ended.set()

    monkeypatch.setattr(file_system, last_call, slow)
    monkeypatch.setattr(store, "_write", noting_the_end)

    async def swap() -> None:
        swapping = asyncio.ensure_future(store.compare_and_swap("_latest", b"slow", version))
        assert await runtime.in_thread(reached.wait, 30)
        if overtaken:
            await store.compare_and_swap("_latest", b"later", version)
        else:
            swapping.cancel()
            await asyncio.wait([swapping])
        go_on.set()
        with pytest.raises(PreconditionFailedError if overtaken else asyncio.CancelledError):
            await swapping

    run_sync(swap())
    assert ended.wait(30)
    assert run_sync(store.get("_latest")).data == (b"later" if overtaken else b"1")
    assert list((tmp_path / "root").glob(".*.tmp")) == []


def test_a_put_removes_nothing_that_others_wrote_meanwhile(
    store: GenericStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = list[str]()
    monkeypatch.setattr(files(), "rm_file", lambda self, path: removed.append(path))
    run_sync(store.put("a/x", b"1"))
    with pytest.raises(ObjectExistsError):
        run_sync(store.put("a/x", b"1"))
    pipe: Callable[..., Any] = files().pipe_file

    def writes_both(self: Any, path: str, *arguments: Any, **options: Any) -> None:
        pipe(self, path, *arguments, **options)
        Path(path).with_name("y").write_bytes(b"1")

    monkeypatch.setattr(files(), "pipe_file", writes_both)
    run_sync(store.put("a/y", b"1"))
    assert removed == []
    assert run_sync(store.get("a/y")).data == b"1"


def test_a_folder_that_changes_while_it_is_listed_is_not_empty(
    store: GenericStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems list the names, and ask for each file after that: one that is gone by then fails it all."""
    run_sync(store.put("a/x", b"1"))

    def vanished(self: Any, path: str, *_: object, **__: object) -> Any:
        raise FileNotFoundError(f"{path}/.x.tmp")

    with monkeypatch.context() as patch:
        patch.setattr(files(), "ls", vanished)
        for call in (store.list_page("a/"), store.folders("")):
            with pytest.raises(DependencyError, match="changed while it was listed"):
                run_sync(call)
    assert [entry.path for entry in run_sync(store.list_page("a/")).entries] == ["a/x"]
    assert run_sync(store.list_page("b/")).entries == []


@pytest.mark.parametrize(("said", "missing"), [("550 No such file", True), ("425 Can't open data connection", False)])
def test_not_now_is_not_missing_on_ftp(
    store: GenericStore, monkeypatch: pytest.MonkeyPatch, said: str, missing: bool
) -> None:
    def refused(self: Any, path: str, *_: object, **__: object) -> Any:
        raise FileNotFoundError(path) from ftplib.error_reply(said)

    monkeypatch.setattr(files(), "cat_file", refused)
    with pytest.raises(ObjectNotFoundError if missing else DependencyError):
        run_sync(store.get("a/x"))
