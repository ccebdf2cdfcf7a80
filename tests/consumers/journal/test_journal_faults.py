"""Every request of a journal is a place to fail: what was acknowledged stays, the rest is tried again or absent."""

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pyspark_checkpointer.consumers import journal as module
from pyspark_checkpointer.consumers.journal.yaml_format import decode
from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    FencedError,
    InvalidStateError,
    OutcomeUnknownError,
    StoreRefusedError,
    ThrottlingError,
)
from pyspark_checkpointer.storage import ObjectNotFoundError
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.requests import CrashError
from pyspark_checkpointer.testing.store import FaultyStore
from tests.consumers.journal.journals import AT, Place
from tests.consumers.world import eventually

FILE, PREVIOUS = "journal.yml", "journal.yml.previous"


class World:
    """A file in memory that says a=2, a=1 before; its journals are opened on a store that fails as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.journal: Any = None
        self.begin()
        with self.place.open() as journal:
            for number in (1, 2):
                journal.persist("a", number, AT)
                journal.flush()

    def begin(self) -> None:
        self.place = Place(f"memory://{uuid.uuid4().hex}")
        self.faults = Faults()
        self.monkeypatch.setattr(
            module, "open_store", lambda *_, **__: FaultyStore(MemoryStore(self.place.folder), self.faults)
        )

    def restart(self) -> int | None:
        """Return what a new process finds."""
        self.faults = Faults()
        journal = self.place.open()
        journal.shutdown()
        state = journal.states().get("a")
        return state and state.record_number

    def tear(self, name: str = FILE) -> None:
        self.place.write(self.place.read(name)[:-2], name)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Callable[[], World]:
    return lambda: World(monkeypatch)


def each_request(
    worlds: Callable[[], World], prepare: Callable[[World], object], act: Callable[[World], object]
) -> Iterator[tuple[World, int, bool]]:
    """A fresh world for each request of `act`, and whether the request is to fail after it took effect."""
    counting = worlds()
    prepare(counting)
    counting.faults.forget()
    act(counting)
    assert counting.faults.requests
    for number in range(1, len(counting.faults.requests) + 1):
        for after in (False, True):
            world = worlds()
            prepare(world)
            yield world, number, after


def test_a_flush_is_two_requests(world: World) -> None:
    journal = world.place.open()
    world.faults.forget()
    for number in range(3, 6):
        journal.persist("a", number, AT)
        journal.flush()
    journal.shutdown()
    assert [(request.kind, request.path) for request in world.faults.requests] == [
        ("swap", PREVIOUS),
        ("swap", FILE),
    ] * 3


def opened(world: World) -> None:
    world.journal = world.place.open()


def flushed(world: World) -> None:
    journal = world.journal
    journal.persist("a", 3, AT)
    journal.flush()


def test_a_crash_in_a_flush_loses_nothing(worlds: Callable[[], World]) -> None:
    found = set()
    for world, number, after in each_request(worlds, opened, flushed):
        world.faults.crash(number, after=after)
        acknowledged = 2
        with suppress(CrashError):
            flushed(world)
            acknowledged = 3
        kept = {name: decode(name, data).states["a"].record_number for name, data in world.place.everything().items()}
        assert kept[FILE] in (acknowledged, 3)
        assert kept[PREVIOUS] in (1, 2)
        assert world.restart() == kept[FILE]
        found.add(kept[FILE])
    assert found == {2, 3}


@pytest.mark.parametrize("error", [DependencyError, ThrottlingError, OutcomeUnknownError, InvalidStateError])
@pytest.mark.parametrize("times", [1, MAX_SENDS, MAX_SENDS + 1])
def test_after_a_failed_flush_the_next_one_writes(
    worlds: Callable[[], World], error: type[CheckpointError], times: int
) -> None:
    for world, number, after in each_request(worlds, opened, flushed):
        world.faults.fail("swap", number, after=after, error=error, times=times)
        failures = 0
        while True:
            try:
                flushed(world)
                break
            except error:
                failures += 1
                assert failures <= times
        if error is InvalidStateError or (times >= MAX_SENDS and not after):
            assert failures
        assert world.place.numbers() == {"a": 3}
        world.journal.persist("a", 4, AT)
        world.journal.shutdown()
        assert world.restart() == 4


def test_one_lost_answer_is_not_even_noticed(worlds: Callable[[], World]) -> None:
    for path in (PREVIOUS, FILE):
        world = worlds()
        opened(world)
        world.faults.drop_answer("swap", path=path)
        flushed(world)
        assert world.restart() == 3


def test_bytes_that_the_disk_did_not_confirm_are_written_again(world: World) -> None:
    opened(world)
    world.faults.forget()
    world.faults.fail("swap", path=FILE, nth=2, after=True, error=OutcomeUnknownError)  # the first is `.previous`
    flushed(world)
    assert world.faults.paths("swap") == [PREVIOUS, FILE, FILE]


@pytest.mark.parametrize("landing", range(MAX_SENDS))
def test_a_swap_may_land_after_its_flush_failed(world: World, landing: int) -> None:
    opened(world)
    late = world.faults.late(nth=2, times=MAX_SENDS)  # the first is that of the previous version
    with pytest.raises(DependencyError):
        flushed(world)
    assert world.place.numbers() == {"a": 2}
    assert late[landing].land()
    assert world.place.numbers() == {"a": 3}
    world.journal.persist("a", 4, AT)
    world.journal.shutdown()
    assert not any(swap.land() for swap in late)
    assert world.restart() == 4


def test_a_swap_that_lands_in_the_next_flush_is_this_journals_own(world: World) -> None:
    opened(world)
    late = world.faults.late(nth=2, times=MAX_SENDS)
    with pytest.raises(DependencyError):
        flushed(world)
    world.faults.call(lambda request: late[0].land(), "swap", path=FILE)
    world.journal.persist("a", 4, AT)
    world.journal.flush()
    assert world.restart() == 4


def test_a_swap_of_a_dead_journal_cannot_land_on_its_successor(world: World) -> None:
    opened(world)
    late = world.faults.late(nth=2, times=MAX_SENDS)
    with pytest.raises(DependencyError):
        flushed(world)
    assert world.restart() == 2
    assert not any(swap.land() for swap in late)


def test_a_swap_that_lands_while_a_successor_opens_is_not_undone(world: World) -> None:
    opened(world)
    late = world.faults.late(nth=2, times=MAX_SENDS)
    with pytest.raises(DependencyError):
        flushed(world)
    world.faults = Faults()
    world.faults.call(lambda request: late[0].land(), "swap")  # when it has read a=2
    assert world.place.open().states()["a"].record_number == 3


def damaged(world: World) -> None:
    world.tear()


def gone(world: World) -> None:
    world.faults = Faults()
    world.place.write(b"")


@pytest.mark.parametrize(
    ("prepare", "number"),
    [(World.begin, None), (lambda world: None, 2), (damaged, 1), (gone, 1)],
    ids=["new", "there", "torn", "empty"],
)
def test_a_crash_while_opening_changes_nothing(
    worlds: Callable[[], World], prepare: Callable[[World], object], number: int | None
) -> None:
    for world, request, after in each_request(worlds, prepare, lambda world: world.place.open()):
        world.faults.crash(request, after=after)
        with suppress(CrashError):
            world.place.open()
        assert world.restart() == number
        assert world.restart() == number


@pytest.mark.parametrize("after", [False, True])
def test_opening_outlasts_a_failed_swap(world: World, after: bool) -> None:
    for path in (PREVIOUS, FILE):
        world.faults.fail("swap", path=path, after=after, times=2)
    assert world.place.open().states()["a"].record_number == 2


def test_failed_writes_in_the_background_are_logged_once_and_made_good(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    journal = world.place.open(max_updates=1)
    world.faults.fail("swap", times=3, error=StoreRefusedError)
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        for number in range(3, 8):
            tries = len(world.faults.requests)
            journal.persist("a", number, AT)
            eventually(lambda tries=tries: len(world.faults.requests) > tries)
        eventually(lambda: world.place.numbers() == {"a": 7})
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert world.place.file in caplog.text
    journal.shutdown()


def test_a_failed_shutdown_may_come_again(world: World) -> None:
    journal = world.place.open()
    journal.persist("a", 3, AT)
    world.faults.fail("swap", error=StoreRefusedError)
    with pytest.raises(InvalidStateError, match="by the test"):
        journal.shutdown()
    journal.shutdown()
    assert world.restart() == 3


def test_a_previous_version_that_vanished_is_written_again(world: World) -> None:
    opened(world)
    world.place.write(b"rubbish", PREVIOUS)
    flushed(world)
    assert decode("x", world.place.read(PREVIOUS)).states["a"].record_number == 2


def test_who_was_overtaken_does_not_touch_the_version_before_either(world: World) -> None:
    opened(world)
    other = world.place.open()
    for number in (7, 8):
        other.persist("a", number, AT)
        other.flush()
    before = world.place.everything()
    with pytest.raises(FencedError):
        flushed(world)
    assert world.place.everything() == before
    world.faults.forget()
    with pytest.raises(FencedError):
        world.journal.flush()
    assert world.faults.requests == []  # nor does it ask again


class Careless(MemoryStore):
    """A store that takes conditions and does not keep them."""

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        with suppress(ObjectNotFoundError):
            expected = (await self.get(path)).version
        return await super().compare_and_swap(path, data, expected)


def test_a_store_that_keeps_no_conditions_is_refused(world: World) -> None:
    world.begin()
    world.monkeypatch.setattr(module, "open_store", lambda *_, **__: Careless(world.place.folder))
    with pytest.raises(InvalidStateError, match="does not keep conditions"):
        world.place.open()
    assert world.place.everything() == {}


def test_a_store_that_keeps_no_conditions_is_refused_where_another_program_wrote_the_file(world: World) -> None:
    theirs = world.place.read()
    world.begin()
    world.place.write(theirs)
    world.monkeypatch.setattr(module, "open_store", lambda *_, **__: Careless(world.place.folder))
    with pytest.raises(InvalidStateError, match="does not keep conditions"):
        world.place.open()
    assert world.place.everything() == {world.place.name: theirs}


def test_a_store_is_proved_once(world: World) -> None:
    world.restart()
    assert not [request for request in world.faults.requests if "_probe" in request.path]
