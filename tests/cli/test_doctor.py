"""`checkpointer doctor`: what it prints, where it may be run, and how it ends."""

from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.storage.memory.store import MemoryStore, forget
from tests.cli.conftest import Run, write_history
from tests.storage.fake import says, serving


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file() and path.name != ".lock")


def test_a_good_root_is_examined_and_left_as_it_was(root: Path, run: Run) -> None:
    before = files(root)
    done = run("doctor", root, "--rounds", 3, "--json")
    assert (done.status, done.json["root"]) == (0, str(root))
    assert done.json["contest"]["rounds"] == 3
    shown = run("doctor", root, "--rounds", 3)
    assert shown.status == 0
    assert "one winner in each of 3 rounds, and all readers saw it" in shown.out
    assert "fenced by  `flock` on this machine" in shown.out
    assert files(root) == before


def test_a_place_without_a_store_is_examined_if_that_is_said(tmp_path: Path, run: Run) -> None:
    place = tmp_path / "new"
    done = run("doctor", place, "--json")
    assert done.status == 1
    assert "there is no such folder; --new examines a place that has no store yet" in done.err
    assert not place.exists()
    assert run("doctor", place, "--new", "--rounds", 2).status == 0
    assert files(place) == []
    (tmp_path / "key").write_text("0" * 64)
    assert run("doctor", place, "--new", "--rounds", 2, "--encryption", f"key-file:{tmp_path / 'key'}").status == 0
    assert files(place) == [], "no key was made: the first job chooses how the root is encrypted"
    with Checkpointer(place) as ck:
        write_history(ck)


def test_a_root_with_damage_is_examined_too(root: Path, run: Run) -> None:
    (root / "_latest").write_bytes(b"damaged")
    assert run("doctor", root, "--rounds", 2).status == 0


def test_a_store_that_lets_two_writers_win_ends_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def careless(self: Any, path: str, data: bytes, expected: str | None) -> str:
        found = self.objects.get(path)
        return await swap(self, path, data, None if found is None else found.version)

    swap = MemoryStore.compare_and_swap
    monkeypatch.setattr(MemoryStore, "compare_and_swap", careless)
    done = run("doctor", "memory://careless", "--new", "--rounds", 4)
    assert done.status == 1
    assert "let several writers win in 4 of 4 rounds" in done.out
    assert MemoryStore("memory://careless").objects == {}
    forget("memory://careless")


def test_without_fencing_it_warns(tmp_path: Path, run: Run) -> None:
    done = run("doctor", tmp_path / "x", "--new", "--fencing", "none")
    assert done.status == 0
    assert "nothing: one writer at a time, by your care" in done.out


def test_a_store_that_does_not_answer_ends_with_75(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pyspark_checkpointer.storage.request_path.RetryingStore._retry", lambda self, request: request()
    )
    with serving(says(503, "SlowDown")) as server:
        place = server.place("s3")
        options = f'{{"endpoint_url": "{place.storage_options["endpoint_url"]}", "key": "k", "secret": "s"}}'
        done = run("doctor", place.url, "--new", "--storage-options", options, "--json")
    assert done.status == 75
    assert "SlowDown" in done.err
