"""A keyed state is used in the middle of each of its own operations, as by a signal handler, and by several threads."""

import copy
import gc
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.keyed import state as state_module
from tests.instructions import each_instruction
from tests.keyed.states import failing_save, notes_deletions, save, saved
from tests.world import Actor, World

TRACED = str(Path(state_module.__file__).parent)
"""The folder of the package whose instructions are interrupted."""

Act = Callable[[Any], Any]


@contextmanager
def interrupted(number: int, handler: Callable[[], None]) -> Iterator[list[int]]:
    """Call `handler` once, before instruction `number` of those that the keyed state runs in this block.

    A signal handler runs between two instructions, at fewer places. The block is given how many there were.
    """
    count = [0]

    def step() -> None:
        count[0] += 1
        if count[0] == number:
            handler()

    with each_instruction(lambda file: file.startswith(TRACED), step):
        yield count


def start() -> dict[Any, Any]:
    return {f"bulk {n}": n for n in range(60)} | {"plain": 1, "list": [1], "dict": {"n": 1}, (1, "x"): 2}


def add(state: Any) -> None:
    state.setdefault("list", []).append("more")


def change_inside(state: Any) -> None:
    if "dict" in state:
        state["dict"]["n"] = 7


UPDATES: dict[str, dict[Any, Any]] = {
    "update": {"plain": 3, "new": [3], "list": [3]},
    "update with plain values": {"plain": 3, "new": 4, "dict": 5},
    "update with lists": {"plain": [3], "new": [3], "list": [3]},
}

OPERATIONS: dict[str, Act] = {
    "get": lambda s: s.get("dict"),
    "set plain": lambda s: s.__setitem__("plain", 2),
    "set list": lambda s: s.__setitem__("list", [2]),
    "set new": lambda s: s.__setitem__("new", [2]),
    "set tuple key": lambda s: s.__setitem__((1, "x"), 3),
    **{name: lambda s, values=values: s.update(copy.deepcopy(values)) for name, values in UPDATES.items()},
    "delete": lambda s: s.pop("plain", None),
    "pop": lambda s: s.pop("list", None),
    "setdefault": lambda s: s.setdefault("new", [4]),
    "clear": lambda s: s.clear(),
    "change inside": change_inside,
    "length": lambda s: len(s) > 0,
    "copy": lambda s: len(dict(s)) > 0,
}

HANDLERS: dict[str, Act] = {
    "set the same": lambda s: s.__setitem__("plain", "handler"),
    "set another": lambda s: s.__setitem__("other", ["handler"]),
    "set a list": lambda s: s.__setitem__("list", ["handler"]),
    "append": add,
    "delete": lambda s: s.pop("plain", None),
    "pop a list": lambda s: s.pop("list", None),
    "clear": lambda s: s.clear(),
    "read": lambda s: (s.get("list"), len(s)),
}


def outcomes(operation: Act, handler: Act) -> list[tuple[Any, dict[Any, Any]]]:
    """Return what an operation returns and leaves, with the handler before it or after it."""
    found = []
    for first, second in ((operation, handler), (handler, operation)):
        model = start()
        results = [act(model) for act in (first, second)]
        found.append((results[first is handler], model))
    if operation is OPERATIONS["get"]:  # two steps: it finds the value, and makes a live one of it
        model = start()
        handler(model)
        found += [(result, model) for result in (None, {"n": 1})]
    return found


@pytest.fixture
def client(world: World, monkeypatch: pytest.MonkeyPatch) -> Actor:
    monkeypatch.setattr(state_module, "MIN_LIVE_VALUES", 2)
    return world.actor(max_chain=3)


@pytest.mark.parametrize("saving", [False, True], ids=["change", "save"])
@pytest.mark.parametrize("name", [*OPERATIONS, "save", "failing save"])
def test_an_operation_in_the_middle_of_another_comes_before_or_after_it(
    world: World, client: Actor, name: str, saving: bool, effort: Callable[[int, int], int], figures: Counter[str]
) -> None:
    """Also a save: then what is saved is what the state was at that moment, and nothing is left out of the next one."""
    for handler_name, handler in HANDLERS.items():
        number, total = 1, 2
        while number <= total:
            state = KeyedState(start(), partitions=2)
            save(client, state)
            committed: list[dict[Any, Any]] = []

            def interrupt(state: Any = state, handler: Act = handler, committed: Any = committed) -> None:
                handler(state)
                if saving:
                    expected = state.to_dict()
                    save(client, state)
                    committed.append(expected)
                    assert saved(world) == expected

            result = None
            with interrupted(number, interrupt) as count:
                if name == "save":
                    with suppress(CheckpointError):  # it was begun before the one that came first
                        save(client, state)
                elif name == "failing save":
                    failing_save(client, state)
                else:
                    try:
                        result = OPERATIONS[name](state)
                    except KeyError:
                        assert name in ("copy", "change inside")
                    except RuntimeError as error:
                        assert "changed size" in str(error)  # noqa: PT017
            total = count[0]
            assert total > 30, "the instructions of the keyed state are traced"
            where = f"{handler_name} before instruction {number} of {total} of {name}"
            if name in OPERATIONS and name not in ("change inside", "copy"):  # which are several operations
                found = outcomes(OPERATIONS[name], handler if number <= total else len)
                assert (result, dict(state)) in found, where
            assert notes_deletions(state), where
            save(client, state)
            assert saved(world) == dict(state) == state.to_dict(), where
            figures["operations interrupted by another"] += 1
            if saving or name in ("save", "failing save", "copy"):
                number += effort(401, 3)
            else:
                number += effort(71, 1)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_ends_in_the_middle_leaves_the_state_whole(
    world: World, client: Actor, name: str, effort: Callable[[int, int], int], figures: Counter[str]
) -> None:
    def end() -> None:
        raise KeyboardInterrupt

    with interrupted(0, end) as count:
        OPERATIONS[name](KeyedState(start(), partitions=2))
    assert count[0] > 30, "the instructions of the keyed state are traced"
    total = min(count[0], effort(700, 10_000))
    for number in range(1, total, effort(43, 1)):
        state, before, after = KeyedState(start(), partitions=2), start(), start()
        save(client, state)
        OPERATIONS[name](after)
        with suppress(KeyboardInterrupt), interrupted(number, end):
            OPERATIONS[name](state)
        found = dict(state)
        assert all(found.get(key) in (before.get(key), after.get(key)) for key in {**before, **after, **found}), number
        assert found in (before, after), number
        assert notes_deletions(state), number
        save(client, state)
        assert saved(world) == found == dict(state)
        figures["operations ended by an exception"] += 1


# ---- real signals ----------------------------------------------------------------------------------------------------


@contextmanager
def alarms(handler: Callable[[], None], seconds: float) -> Iterator[None]:
    """Interrupt the main thread again and again."""

    def handle(number: int, frame: FrameType | None) -> None:
        handler()
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def value(number: int) -> Any:
    """A value that is packed by Python code."""
    return {
        "set": {number, number + 1, "x"},
        "at": datetime(2024, 1, 1 + number % 28, tzinfo=UTC),
        "pair": (number, (1,)),
    }


def test_a_handler_that_sets_and_saves_loses_nothing(
    world: World, effort: Callable[[int, int], int], figures: Counter[str]
) -> None:
    """The handler of a graceful shutdown, over and over, through the client that the main thread uses."""
    client, state, other = world.actor(), KeyedState(partitions=2), KeyedState()
    model: dict[Any, Any] = {}
    wrong: list[str] = []
    times = [0]

    def handle() -> None:
        times[0] += 1
        state["handler"] = other[times[0]] = value(times[0])
        if times[0] % 10 == 0:
            expected = state.to_dict()
            try:
                save(client, state)
            except CheckpointError:
                return
            if saved(world) != expected:
                wrong.append(f"save {times[0]}")

    end = time.monotonic() + effort(3, 300)
    number = 0
    with alarms(handle, 0.0005):
        while time.monotonic() < end:
            number += 1
            key = number % 50
            if number % 7 == 0:
                assert state.pop(key, None) == model.pop(key, None)
            else:
                state[key] = model[key] = value(number)
            assert state.get(key) == model.get(key)
            if number % 100 == 0:
                with suppress(CheckpointError):  # it was begun before a handler's
                    save(client, state)
    assert not wrong
    assert times[0] > 50
    model["handler"] = value(times[0])
    assert dict(state) == model
    assert dict(other) == {n: value(n) for n in range(1, times[0] + 1)}
    save(client, state)
    assert saved(world) == model
    figures["signals handled"] += times[0]


def test_a_finalizer_and_a_callback_of_the_collector_may_use_the_state(world: World) -> None:
    state, times = KeyedState(partitions=1), [0]

    class Dying:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            times[0] += 1
            state["finalizer"] = value(times[0])

    def collected(phase: str, info: object) -> None:
        state["collector"] = {phase}

    thresholds = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(5, 2, 2)
    try:
        for number in range(3000):
            Dying()
            state[number % 40] = value(number)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collected)
    assert times[0] > 100
    assert dict(state) == {n % 40: value(n) for n in range(2960, 3000)} | {
        "finalizer": value(times[0]),
        "collector": state["collector"],
    }


# ---- threads ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def often_switched() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*works: Callable[[], None]) -> None:
    """Run each in a thread of its own."""
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


@pytest.mark.usefixtures("often_switched")
def test_several_threads_change_a_state_that_another_one_saves(
    world: World, client: Actor, effort: Callable[[int, int], int], figures: Counter[str]
) -> None:
    state, rounds, writing = KeyedState(partitions=2), effort(300, 20_000), [3]

    def change(name: int) -> Callable[[], None]:
        def work() -> None:
            for number in range(rounds):
                state.update({("first", name): number, ("second", name): number, f"list {name}": [number]})
                state[f"list {name}"].append(name)
                state[f"dict {name}"] = {"n": number}
                state[f"dict {name}"]["n"] += 1
                assert state.pop(("gone", name), None) is None
                state["gone", name] = (number,)
                del state["gone", name]
            writing[0] -= 1

        return work

    def commit() -> None:
        while writing[0]:
            save(client, state)
            found = saved(world)
            for name in range(3):
                assert found.get(("first", name)) == found.get(("second", name))
                assert found.get(f"dict {name}") in (None, *({"n": n} for n in range(rounds + 1)))
            figures["saves beside changes of other threads"] += 1

    together(*map(change, range(3)), commit)
    save(client, state)
    last = rounds - 1
    assert (
        saved(world)
        == dict(state)
        == {
            key: found
            for name in range(3)
            for key, found in {
                ("first", name): last,
                ("second", name): last,
                f"list {name}": [last, name],
                f"dict {name}": {"n": rounds},
            }.items()
        }
    )


@pytest.mark.usefixtures("often_switched")
def test_what_several_threads_take_is_taken_once() -> None:
    state: KeyedState = KeyedState({n: [n] for n in range(2000)}, partitions=2)
    taken: list[Any] = []
    made: list[tuple[int, list[Any]]] = []
    all_are_made = threading.Barrier(3)  # what is taken out may be made again

    def take() -> None:
        for n in range(1000):
            if (found := state.pop(n, None)) is not None:
                taken.append(found)
            made.append((n, state.setdefault(("made", n), [])))
        all_are_made.wait(60)
        with suppress(KeyError):
            while True:
                key, found = state.popitem()
                if type(key) is int:
                    taken.append(found)

    together(take, take, take)
    assert sorted(taken) == [[n] for n in range(2000)]
    lists: dict[int, set[int]] = {}
    for n, found in made:
        lists.setdefault(n, set()).add(id(found))
    assert len(made) == 3000
    assert set(map(len, lists.values())) == {1}, "a thread was given a list that is not in the state"


@pytest.mark.usefixtures("often_switched")
def test_a_value_that_a_thread_holds_is_not_put_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "MIN_LIVE_VALUES", 2)
    state = KeyedState({n: {"n": 0} for n in range(20)}, partitions=1)

    def count(first: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(200):
                for key in range(first, first + 5):
                    state[key]["n"] += 1

        return work

    together(*(count(first) for first in (0, 5, 10, 15)))
    assert state.to_dict() == {n: {"n": 200} for n in range(20)}
