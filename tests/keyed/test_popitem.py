"""To empty a keyed state item by item takes as long for each item, however many were taken before."""

import time

import pytest

from pyspark_checkpointer import KeyedState


def test_the_last_items_are_taken_as_fast_as_the_first() -> None:
    count, few = 60_000, 5_000
    state = KeyedState({str(number): number for number in range(count)}, partitions=1)
    spent = []
    for many in (few, count - 2 * few, few):
        before = time.thread_time()
        for _ in range(many):
            state.popitem()
        spent.append(time.thread_time() - before)
    assert spent[2] < 4 * spent[0]
    assert len(state) == 0
    with pytest.raises(KeyError):
        state.popitem()


def test_all_items_are_taken_once_also_those_that_are_alive() -> None:
    model = {number: [number] if number % 3 else number for number in range(100)}
    state = KeyedState(model, partitions=3)
    held = [state[number] for number in range(50)]
    for number in range(90, 100):
        del state[number], model[number]
    taken = dict(state.popitem() for _ in range(90))
    assert taken == model
    assert all(taken[number] is held[number] for number in range(50) if number % 3)
    assert len(state) == 0
