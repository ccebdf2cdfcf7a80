"""A map that was closed for changes, or for everything, is closed for what was kept of it before."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from operator import contains
from types import FrameType
from typing import Any

import pytest

from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError, MalformedError
from pyspark_checkpointer.keyed import content as content_module
from pyspark_checkpointer.keyed import reentry
from tests.keyed.states import filled

WRITES: dict[str, Callable[[KeyedState], Callable[[], Any]]] = {
    "set": lambda s: lambda put=s.__setitem__: put("x", 1),
    "set a list": lambda s: lambda put=s.__setitem__: put("x", [1]),
    "set what is there": lambda s: lambda put=s.__setitem__: put("a", 1),
    "delete": lambda s: lambda delete=s.__delitem__: delete("a"),
    "delete what is not there": lambda s: lambda delete=s.__delitem__: delete("x"),
    "update": lambda s: lambda update=s.update: update({"x": [1], "y": [2]}),
    "update by pairs": lambda s: lambda update=s.update: update(pair for pair in [("x", 1)]),
    "update by name": lambda s: lambda update=s.update: update(x=1),
    "update with nothing": lambda s: lambda update=s.update: update({}),
    "setdefault": lambda s: lambda put=s.setdefault: put("x", [1]),
    "setdefault of what is there": lambda s: lambda put=s.setdefault: put("a", [1]),
    "pop": lambda s: lambda pop=s.pop: pop("a", None),
    "pop what is not there": lambda s: lambda pop=s.pop: pop("x", None),
    "popitem": lambda s: lambda popitem=s.popitem: popitem(),
    "clear": lambda s: lambda clear=s.clear: clear(),
}


def first(made: Iterable[Any]) -> Any:
    return next(iter(made))


def begun(made: Iterator[Any]) -> Callable[[], Any]:
    next(made)
    return lambda: next(made)


READS: dict[str, Callable[[KeyedState], Callable[[], Any]]] = {
    "get item": lambda s: lambda read=s.__getitem__: read("a"),
    "get a list": lambda s: lambda read=s.__getitem__: read("list"),
    "get": lambda s: lambda read=s.get: read("a"),
    "in": lambda s: lambda read=s.__contains__: read("a"),
    "in keys": lambda s: partial(contains, s.keys(), "a"),
    "length": lambda s: s.__len__,
    "length of items": lambda s: partial(len, s.items()),
    "to_dict": lambda s: s.to_dict,
    "a new iterator": lambda s: partial(first, s.keys()),
    "an iterator": lambda s: begun(iter(s)),
    "an iterator of items": lambda s: begun(iter(s.items())),
    "an iterator of values": lambda s: begun(iter(s.values())),
}


def refuse_changes(operation: Callable[..., Any]) -> None:
    if operation in content_module.CHANGES:
        raise InvalidStateError("closed for changes")


def refuse_all(operation: Callable[..., Any]) -> None:
    raise InvalidStateError("closed for good")


def content() -> dict[str, Any]:
    return {"a": 1, "list": [1], **{f"n {n}": n for n in range(20)}}


@pytest.mark.parametrize("guard", [refuse_changes, refuse_all])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_bound_method_changes_nothing_in_a_closed_map(write: Any, guard: Any) -> None:
    state = KeyedState(content())
    call = write(state)
    state.set_guard(guard)
    with pytest.raises(InvalidStateError, match="closed for"):
        call()
    state.set_guard(None)
    assert dict(state) == content()
    with suppress(KeyError):  # of what is not there
        call()


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_map_that_is_closed_for_good_is_not_read_by_what_was_kept(read: Any) -> None:
    state = KeyedState(content())
    call = read(state)
    state.set_guard(refuse_all)
    with pytest.raises(InvalidStateError, match="closed for good"):
        call()


@pytest.mark.parametrize(
    ("guard", "shown"),
    [
        (None, "KeyedState(22 keys in 2 partitions)"),
        (refuse_changes, "KeyedState(22 keys in 2 partitions)"),
        (refuse_all, "KeyedState(2 partitions, closed: closed for good)"),
    ],
)
def test_the_text_of_a_map_says_how_many_keys_it_has_or_why_it_is_closed(guard: Any, shown: str) -> None:
    state = KeyedState(content(), partitions=2)
    state.set_guard(guard)
    assert repr(state) == shown


def test_the_text_of_a_map_that_another_thread_changes_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A debugger and a logger show a map while a thread is stopped in the middle of a change."""
    state, begun, stop = KeyedState(content(), partitions=1), threading.Event(), threading.Event()
    assign = content_module.Content.assign

    def slow(self: Any, *arguments: Any) -> Any:
        begun.set()
        assert stop.wait(30)
        return assign(self, *arguments)

    monkeypatch.setattr(content_module.Content, "assign", slow)
    thread = threading.Thread(target=state.__setitem__, args=("new", [1]))
    thread.start()
    begun.wait()
    shown: list[str] = []
    reader = threading.Thread(target=lambda: shown.append(repr(state)), daemon=True)
    reader.start()
    reader.join(5)
    stop.set()
    thread.join()
    assert shown == ["KeyedState(22 keys in 1 partitions)"]
    assert repr(state) == "KeyedState(23 keys in 1 partitions)"


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_map_that_is_closed_for_changes_is_read(read: Any) -> None:
    state = KeyedState(content())
    call, again = read(state), read(state)
    expected = again()
    state.set_guard(refuse_changes)
    assert call() == expected


def test_a_value_that_a_closed_map_hands_out_is_a_copy() -> None:
    state = KeyedState(content())
    read, items = state.__getitem__, state.items()
    held = state["list"]
    state.set_guard(refuse_changes)
    for found in (read("list"), dict(items)["list"], state["list"]):
        found.append("lost")
    with pytest.raises(KeyError):
        read("no such key")
    state.set_guard(None)
    assert state["list"] is held
    assert held == [1]


def test_a_closed_map_names_the_key_of_a_value_that_cannot_be_stored() -> None:
    state = KeyedState(content())
    state["bad"] = [object()]
    state.set_guard(refuse_changes)
    reads: list[Callable[[], Any]] = [
        lambda: state["bad"],
        lambda: state.get("bad"),
        lambda: dict(state.items()),
        lambda: list(state.values()),
        state.to_dict,
    ]
    for read in reads:
        with pytest.raises(IllegalArgumentError, match=r"^key 'bad': a value of type object"):
            read()
    assert state["list"] == [1]


def read_closed(state: KeyedState) -> None:
    state.set_guard(refuse_changes)
    try:
        state.get("bad")
    finally:
        state.set_guard(None)


REFUSED: dict[str, tuple[Callable[[KeyedState], Any], type[CheckpointError], str]] = {
    "get from a closed map": (read_closed, IllegalArgumentError, "key 'bad': a value of type object"),
    "save without a clock": (lambda s: s.capture_for_checkpoint({}, 10), IllegalArgumentError, "has no clock"),
    "pop": (lambda s: s.pop("torn"), MalformedError, "the value of key 'torn': expected a msgpack value"),
    "pop with a default": (lambda s: s.pop("torn", 1), MalformedError, "the value of key 'torn'"),
    "popitem": (lambda s: s.popitem(), MalformedError, "the value of key 'torn'"),
}


@pytest.mark.parametrize(("use", "error", "told"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_changes_nothing_and_copies_nothing(
    use: Callable[[KeyedState], Any], error: type[Exception], told: str
) -> None:
    state = KeyedState({"a": 1, "torn": 2}, partitions=1)
    state.set_rule(5, 0)
    state["bad"] = [object()]
    state._parts[0].data["torn"] = b"\x92\x01"
    if use is REFUSED["popitem"][0]:
        del state["bad"]
    before, keys = state._owner.last().content, list(state)
    with pytest.raises(error, match=told):
        use(state)
    assert list(state) == keys
    state["a"] = 3
    assert state["a"] == 3
    assert state._owner.last().content is before


def test_a_map_that_is_being_changed_is_closed_between_two_changes() -> None:
    """Threads change it all the while: after it was closed, nothing changes any more."""
    state, wrong = KeyedState(partitions=2), []
    puts = [state.__setitem__, lambda key, value: state.update({key: [value], "b": value})]
    stop = threading.Event()

    def work(put: Any) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                put(f"k {number % 50}", number)
            except InvalidStateError:
                continue

    threads = [threading.Thread(target=work, args=(put,)) for put in puts]
    for thread in threads:
        thread.start()
    for _ in range(200):
        state.set_guard(refuse_changes)
        before = state.to_dict()
        if any(state.to_dict() != before for _ in range(3)):
            wrong.append(before)
        state.set_guard(None)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- a handler that waits for a thread -------------------------------------------------------------------------------


INTERRUPTED = """
def interrupted(*args):
    for call in signal:
        call()
    assign(*args)
"""
"""Stands in a module of the package, as what is interrupted does."""


class Scene:
    """The main thread is interrupted while it changes a map; the handler waits for a thread that uses the map."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, use: Callable[[KeyedState], Any], wait: float = 20) -> None:
        self.state = filled(a=[1])
        self.use, self.wait = use, wait
        self.outcome: list[Any] = []
        self.ended_meanwhile = False
        package = reentry.__name__.partition(".")[0]
        inside: dict[str, Any] = {"__name__": f"{package}.stand_in", "assign": content_module.Content.assign}
        inside["signal"] = iter([partial(signal.raise_signal, signal.SIGUSR1)])
        exec(INTERRUPTED, inside)
        monkeypatch.setattr(content_module.Content, "assign", inside["interrupted"])

    def run(self) -> None:
        before = signal.signal(signal.SIGUSR1, self._handle)
        try:
            self.state["main"] = ["main"]
        finally:
            signal.signal(signal.SIGUSR1, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        thread.join(self.wait)
        self.ended_meanwhile = not thread.is_alive()
        self.thread = thread

    def _work(self) -> None:
        try:
            self.outcome.append(self.use(self.state))
        except CheckpointError as error:
            self.outcome.append(error)


USES: dict[str, Callable[[KeyedState], Any]] = {
    "set": lambda s: s.__setitem__("thread", ["thread"]),
    "set plain": lambda s: s.__setitem__("thread", 1),
    "update": lambda s: s.update({"thread": ["thread"]}),
    "get": lambda s: s["bulk 1"],
    "in": lambda s: "bulk 1" in s,
    "length": len,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_thread_that_a_handler_waits_for_is_told_and_does_not_hang(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reentry, "MAX_INTERRUPTION", 0.5)
    monkeypatch.setattr(reentry, "CHECK_INTERVAL", 0.1)
    scene = Scene(monkeypatch, use)
    scene.run()
    assert scene.ended_meanwhile
    (error,) = scene.outcome
    assert isinstance(error, InvalidStateError)
    assert "MainThread" in str(error)
    assert "_handle" in str(error)
    assert "must not wait for" in str(error)
    assert dict(scene.state) == dict(filled(a=[1], main=["main"])), "the change of the main thread is there"
    use(scene.state)


def test_a_thread_waits_for_a_handler_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reentry, "CHECK_INTERVAL", 0.05)
    scene = Scene(monkeypatch, USES["set"], wait=0.5)
    scene.run()
    assert not scene.ended_meanwhile
    scene.thread.join()
    assert scene.outcome == [None]
    assert dict(scene.state) == dict(filled(a=[1], main=["main"], thread=["thread"]))


def test_a_thread_waits_for_a_long_change_that_nobody_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reentry, "MAX_INTERRUPTION", 0.1)
    monkeypatch.setattr(reentry, "CHECK_INTERVAL", 0.02)
    state, outcome = KeyedState(partitions=1), []
    many = {n: {n, "x"} for n in range(30_000)}
    started = threading.Event()

    def change() -> None:
        started.set()
        state.update(many)

    thread = threading.Thread(target=change)
    thread.start()
    started.wait()
    for number in range(50):
        state["other"] = number
        outcome.append(number)
    thread.join()
    assert len(outcome) == 50
    assert len(state) == 30_001


def test_a_child_forked_where_a_thread_waited_for_the_map_goes_on() -> None:
    owner = reentry.Exclusive(content_module.Content([]), ())
    held = threading.Event()

    def hold() -> None:
        held.set()
        time.sleep(0.3)

    holder = threading.Thread(target=lambda: owner.exclusively(hold))
    holder.start()
    held.wait()
    status = 1
    child = -1
    try:
        child = owner.exclusively(os.fork)  # it waits for the other thread first
        status = 0
    finally:
        if child <= 0:  # the child, also where it failed
            os._exit(status)
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
