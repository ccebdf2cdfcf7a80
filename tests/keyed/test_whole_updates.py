"""An update from a dict or list is one change: no handler, thread or exception sees or leaves half of it."""

import gc
import signal
import sys
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.errors import IllegalArgumentError
from tests.world import World

KEYS = range(1500)
TIMES = 40


@pytest.fixture
def alarm() -> Iterator[Any]:
    """Call a function from a signal handler, after a time that is another at each call."""
    before = signal.getsignal(signal.SIGALRM)
    calls = 0

    def soon(handler: Any) -> None:
        nonlocal calls
        calls += 1
        signal.signal(signal.SIGALRM, lambda *_: handler())
        signal.setitimer(signal.ITIMER_REAL, 0.0002 * (calls % 10 + 1))

    yield soon
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def states() -> Iterator[tuple[str, dict[Any, Any], dict[Any, Any]]]:
    yield "numbers", dict.fromkeys(KEYS, 0), dict.fromkeys(KEYS, 1)
    yield "lists", {key: [0] for key in KEYS}, {key: [1] for key in KEYS}
    yield "both", dict.fromkeys(KEYS, 0), {key: 1 if key % 2 else [1] for key in KEYS}


@pytest.mark.parametrize(("name", "old", "new"), [*states()], ids=lambda value: value if isinstance(value, str) else "")
def test_a_handler_that_saves_never_saves_half_an_update(
    world: World, alarm: Any, name: str, old: dict[Any, Any], new: dict[Any, Any]
) -> None:
    client, state, saved = world.actor(), KeyedState(old), []

    def save() -> None:
        with client.begin() as cp:
            cp.save("s", state)
        saved.append(client.restore().keyed("s").to_dict())

    for _ in range(TIMES):
        alarm(save)
        state.update(new)
        state.update(old)
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert saved
    assert all(seen in (old, new) for seen in saved)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # where a weak reference's callback ran
def test_an_exception_of_a_handler_leaves_all_of_an_update_or_nothing(alarm: Any) -> None:
    found: Counter[int] = Counter()

    def give_up() -> None:
        raise TimeoutError

    raised = 0
    for _ in range(TIMES):
        state = KeyedState(dict.fromkeys(KEYS, 0))
        try:
            alarm(give_up)
            for _ in range(100):  # it is lost where it comes in the middle of a callback of the garbage collector
                state.update(dict.fromkeys(KEYS, 1))
                state.update(dict.fromkeys(KEYS, 0))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except TimeoutError:
            raised += 1
        found[sum(state.to_dict().values())] += 1
    assert raised > TIMES / 2
    assert set(found) <= {0, len(KEYS)}


def test_other_threads_see_no_half_of_an_update() -> None:
    state, first, last = KeyedState(dict.fromkeys(KEYS, 0)), KEYS[0], KEYS[-1]
    stop, halves, reads = threading.Event(), 0, 0

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            state.update(dict.fromkeys(KEYS, number))

    pause = sys.getswitchinterval()
    writer = threading.Thread(target=write)
    try:
        sys.setswitchinterval(1e-5)
        writer.start()
        while reads < 20_000:
            reads += 1
            early, late = state[first], state[last]  # what is read later is never older
            halves += early > late
    finally:
        sys.setswitchinterval(pause)
        stop.set()
        writer.join()
    assert halves == 0


def test_a_map_that_changes_while_somebody_goes_through_it_gives_each_key_once() -> None:
    state, seen = KeyedState(dict.fromkeys(KEYS, 0), partitions=1), []
    for key in state:
        seen.append(key)
        state[f"new {key}"] = 1
        state[key] = state.pop(key) + 1  # it stands last now
    assert seen == [*KEYS]


def test_pairs_may_be_iterators() -> None:
    assert KeyedState([map(str, (1, 2))]) == {"1": "2"}  # type: ignore[list-item]
    state = KeyedState()
    state.update([iter(("a", 1)), ("b", 2)])
    assert state == {"a": 1, "b": 2}


class Code:
    """A key of a dict that cannot be stored, as a member of an enumeration."""


@pytest.mark.parametrize("count", [1, 5000])
@pytest.mark.parametrize("value", [1, [1]])
@pytest.mark.parametrize("kind", [dict, OrderedDict, list, tuple])
def test_an_update_with_a_key_that_cannot_be_stored_sets_nothing(kind: Any, value: Any, count: int) -> None:
    state = KeyedState({0: 0})
    pairs = [*((number, value) for number in range(count)), (Code(), value), ("after", value)]
    with pytest.raises(IllegalArgumentError, match="Code"):
        state.update(kind(pairs))
    assert state == {0: 0}


@pytest.mark.parametrize(("wrong", "error"), [((4, 5, 6), ValueError), (8, TypeError)])
def test_an_update_with_a_wrong_pair_sets_nothing(wrong: Any, error: type[Exception]) -> None:
    state = KeyedState({"a": 0})
    with pytest.raises(error):
        state.update([("a", 1), wrong, ("b", 2)], c=3)
    with pytest.raises(error):  # as in a dict, since what makes the pairs may look at those before
        state.update(pair for pair in [("d", 4), wrong, ("e", 5)])
    assert state == {"a": 0, "d": 4}


def test_names_are_set_in_one_change_with_the_pairs() -> None:
    state = KeyedState({"a": 0})
    with pytest.raises(IllegalArgumentError, match="key"):
        state.update({"a": 1}, **{"\ud800": 2})
    assert state == {"a": 0}
    state.update({"a": 1, "b": 2}, b=3)
    assert state == {"a": 1, "b": 3}


def test_the_last_value_of_a_key_in_one_update_counts_whatever_its_kind() -> None:
    state = KeyedState()
    state.update([("a", 1), ("a", [1]), ("b", [1]), ("b", 2), (1, "one"), (1.0, ["float"]), (True, "true")])
    assert state == {"a": [1], "b": 2, 1: "true"}
    assert [type(key) for key in state if key == 1] == [int]


class Interrupt(BaseException):
    """What a handler raises, such as KeyboardInterrupt."""


@pytest.mark.parametrize(("name", "old", "new"), [*states()], ids=lambda value: value if isinstance(value, str) else "")
def test_interrupts_that_come_faster_than_a_partition_is_set_leave_no_half(
    name: str, old: dict[Any, Any], new: dict[Any, Any]
) -> None:
    """A step that is begun again as a whole would never end: each interruption comes before it does."""
    old, new = ({f"{key}-{more}": value for key, value in some.items() for more in range(8)} for some in (old, new))
    state, interrupted, updating = KeyedState(old, partitions=1), 0, False
    gc.disable()  # others have callbacks there, which nobody means to interrupt

    def interrupt(*_: object) -> None:
        if updating:
            raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(30):
            wanted = new if number % 2 == 0 else old
            signal.setitimer(signal.ITIMER_REAL, 0.002 + number % 5 * 0.002, 0.0015)
            try:
                try:
                    updating = True
                    state.update(wanted)
                finally:
                    updating = False
            except Interrupt:
                updating = False
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            seen = state.to_dict()
            assert seen in (old, new)
            state.update(wanted)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert interrupted


@pytest.mark.parametrize("kind", [dict, Counter, OrderedDict, lambda pairs: defaultdict(int, pairs)])
def test_an_update_from_a_kind_of_dict_is_one_change_too(kind: Any) -> None:
    state, torn, done = KeyedState({"a": 0, "b": 0}), 0, threading.Event()

    def write() -> None:
        try:
            for number in range(3000):
                state.update(kind({"a": number, "b": number}))
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        seen = state.to_dict()
        torn += seen["a"] != seen["b"]
    writer.join()
    assert torn == 0


def test_a_list_that_gives_other_pairs_is_asked_for_them() -> None:
    class Doubled(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            return ((key, 2 * value) for key, value in super().__iter__())

    state = KeyedState()
    state.update(Doubled([("a", 1)]))
    assert dict(state) == {"a": 2}


def test_going_through_a_state_leaves_out_what_was_removed_meanwhile() -> None:
    state = KeyedState({number: [number] for number in range(1000)})
    for key, value in state.items():
        assert value == [key]
        state.pop(key + 1 if key % 2 == 0 else key, None)
    state = KeyedState({number: number for number in range(1000)})
    popping = threading.Thread(target=lambda: [state.pop(number) for number in range(1000)])
    popping.start()
    for _ in range(20):
        assert all(key == value for key, value in state.items())
        assert all(isinstance(value, int) for value in state.values())
    popping.join()
    assert (list(state.items()), list(state.values())) == ([], [])


def test_a_look_for_a_value_leaves_out_what_was_removed_meanwhile() -> None:
    state = KeyedState({number: number for number in range(10)}, partitions=1)

    class Removing:
        """Compared with the first value, it removes the second, as another thread might."""

        def __eq__(self, other: object) -> bool:
            state.pop(1, None)
            return other == 9

        __hash__ = None  # type: ignore[assignment]

    assert Removing() in state.values()
    assert 1 not in state
    assert 9 in state.values()
    assert 1 not in state.values()
    held = state[2] = [float("nan")]
    assert held in state.values()
    assert (2, held) in state.items()
    assert (1, 1) not in state.items()
