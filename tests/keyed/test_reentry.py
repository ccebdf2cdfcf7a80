"""A change that was left half way, and that fails when another completes it, hurts nobody but its own caller."""

import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from pyspark_checkpointer.keyed import reentry
from pyspark_checkpointer.keyed.reentry import Exclusive


class Numbers:
    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.when_copied: Callable[[], None] | None = None

    def copied(self) -> "Numbers":
        if self.when_copied is not None:
            self.when_copied()
        return Numbers([number for number in self.numbers if number >= 0])  # puts in order what stopped half way

    def add(self, number: int) -> list[int]:
        self.numbers.append(number)
        return list(self.numbers)

    def fail(self, number: int) -> None:
        self.numbers.append(-number)
        raise ValueError(number)


def leave_behind(owner: Exclusive[Numbers], operation: Callable[..., object], *args: object) -> None:
    """Stop where a KeyboardInterrupt does, right after the change was noted."""
    owner.last().running[0] = (operation, args)


def test_a_change_left_behind_that_fails_does_not_stop_the_next_ones() -> None:
    owner = Exclusive(Numbers([1]), ())
    leave_behind(owner, Numbers.fail, 7)
    assert owner.change(Numbers.add, 2) == [1, 2]
    assert owner.change(Numbers.add, 3) == [1, 2, 3]


def test_the_owner_of_a_change_learns_why_another_could_not_complete_it() -> None:
    owner = Exclusive(Numbers([1]), ())
    seen: list[object] = []

    def begun(numbers: Numbers) -> str:
        if not seen:
            seen.append(None)
            seen[0] = owner.change(Numbers.add, 2)  # a handler, which has to complete this first
            return "done"
        raise ValueError("of the owner")

    with pytest.raises(ValueError, match="of the owner"):
        owner.change(begun)
    assert seen == [[1, 2]]
    assert owner.change(Numbers.add, 3) == [1, 2, 3]


def test_an_interrupt_of_who_completes_a_change_is_not_kept_for_its_owner() -> None:
    owner = Exclusive(Numbers([1]), ())
    tries: list[None] = []

    def interrupted(numbers: Numbers) -> None:
        tries.append(None)
        if len(tries) == 1:
            raise KeyboardInterrupt
        numbers.add(7)

    leave_behind(owner, interrupted)
    with pytest.raises(KeyboardInterrupt):
        owner.change(Numbers.add, 2)
    assert owner.change(Numbers.add, 3) == [1, 7, 3]


def test_old_contents_are_freed_after_nested_take_overs() -> None:
    """Who was interrupted while it took over would go back to the version that it found."""
    owner = Exclusive(Numbers([1]), ())
    leave_behind(owner, Numbers.add, 2)

    def handler() -> None:
        owner.version.content.when_copied = None
        owner.change(Numbers.add, 3)
        leave_behind(owner, Numbers.add, 4)
        owner.change(Numbers.add, 5)

    owner.version.content.when_copied = handler
    old = weakref.ref(owner.version.content)
    assert owner.change(Numbers.add, 6) == [1, 2, 3, 4, 5, 6]
    assert owner.version is owner.last()
    gc.collect()
    assert old() is None
    assert sum(isinstance(one, reentry.Version) and isinstance(one.content, Numbers) for one in gc.get_objects()) == 1


class InterruptedLock:
    """A lock after whose release Ctrl-C is noticed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.acquire, self._is_owned = self._lock.acquire, self._lock._is_owned  # type: ignore[attr-defined]

    def release(self) -> None:
        self._lock.release()
        raise KeyboardInterrupt

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_who_had_to_wait_and_was_interrupted_at_the_end_is_not_waited_for() -> None:
    owner = Exclusive(Numbers([1]), ())
    lock = owner._lock
    owner._lock = InterruptedLock()  # type: ignore[assignment]
    owner._taken = True  # so that the next call looks whether it has to wait
    with pytest.raises(KeyboardInterrupt):
        owner.change(Numbers.add, 2)
    owner._lock = lock
    assert (owner._waiting, owner._taken) == ({}, False)
    assert owner.change(Numbers.add, 3) == [1, 2, 3]
