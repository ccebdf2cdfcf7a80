"""An event log is refused where it might not fit into the file, whoever persists it at the same time."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer.consumers import journal as module
from pyspark_checkpointer.consumers.journal import Journal
from pyspark_checkpointer.errors import IllegalArgumentError
from tests.consumers.journal.journals import AT, Place


class Limit(int):
    """A limit that calls a function when a size is first compared with it, as another thread could come then."""

    meanwhile: Callable[[], Any] | None = None

    def __lt__(self, size: int) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return int(self) < size


@pytest.fixture
def journal() -> Journal:
    return Journal(f"memory://{uuid.uuid4().hex}/journal.yml", 1000, 3600)


def test_a_log_that_two_threads_persist_at_once_is_refused_to_both(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def persist() -> None:
        with pytest.raises(IllegalArgumentError, match="might not fit"):
            journal.persist("log", 1, AT)
        refused.append("log")

    limit = Limit(journal._size + 100)
    limit.meanwhile = persist
    monkeypatch.setattr(module, "MAX_FILE_BYTES", limit)
    persist()
    assert refused == ["log", "log"]


def test_the_room_of_a_log_stays_taken_when_another_thread_is_refused_it(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One takes the room; the other was compared while a third log was tried, which was too much."""
    room = module.max_entry_bytes(module.check_state("log", 1, AT, {}))
    monkeypatch.setattr(module, "MAX_FILE_BYTES", journal._size + room)
    journal._reserve_space(module.check_state("log", 1, AT, {}))
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 0)
    with pytest.raises(IllegalArgumentError, match="might not fit"):
        journal._reserve_space(module.check_state("log", 2, AT, {}))
    monkeypatch.setattr(module, "MAX_FILE_BYTES", journal._size + room)
    journal._reserve_space(module.check_state("log", 3, AT, {}))
    with pytest.raises(IllegalArgumentError, match="might not fit"):
        journal._reserve_space(module.check_state("log 2", 1, AT, {}))


def test_a_log_has_room_after_a_restart_too(tmp_path: Path) -> None:
    """Reckon closely: what the file has already counts twice then."""
    place = Place(str(tmp_path))
    with place.open() as journal:
        for number in range(1000):
            journal.persist(f"Microsoft-Windows-{number:04}-{'x' * 40}/Operational", 1, AT)
    assert len(place.read()) < module.MAX_FILE_BYTES / 4
    with place.open() as again:
        again.persist("one more", 1, AT)
