"""What can be done with a map outside of a batch, without Spark."""

import uuid
from contextlib import suppress
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.keyed.state import KeyedState
from pyspark_checkpointer.spark import maps
from tests.proof.plain_spark import new_state
from tests.spark.test_handles import reads, writes


def state() -> KeyedState:
    return KeyedState({0: True})


@pytest.mark.parametrize("number", range(8))
def test_a_resting_map_takes_no_change_until_it_is_woken(number: int) -> None:
    resting = state()
    maps.refuse_changes(resting)
    for read in reads(resting):
        read()
    with pytest.raises(InvalidStateError, match="changed outside of a batch"):
        writes(resting)[number]()
    assert dict(resting) == {0: True}
    maps.allow_changes(resting)
    writes(resting)[number]()


def test_a_value_of_a_resting_map_is_a_copy() -> None:
    resting = KeyedState({"k": {"n": 1}})
    maps.refuse_changes(resting)
    resting["k"]["n"] += 1
    next(iter(resting.values()))["n"] += 1
    resting.get("k", {})["n"] += 1
    assert resting.to_dict() == {"k": {"n": 1}}


@pytest.mark.parametrize("number", range(18))
def test_an_ended_map_is_of_no_use(number: int) -> None:
    ended = state()
    maps.refuse_all(ended)
    with pytest.raises(InvalidStateError):
        [*writes(ended), *reads(ended)][number]()
    assert "ended" in repr(ended)


def test_every_method_of_a_mapping_is_refused_by_an_ended_map() -> None:
    """Also those that a later version adds: each that is public either raises or is known to say nothing."""
    ended: Any = state()
    maps.refuse_all(ended)
    calls = {"get": (0,), "setdefault": (0,), "pop": (0,), "update": ({1: 2},), "fromkeys": None}
    calls |= {"capture_for_checkpoint": ({}, 2), "set_rule": (1, 2)}
    # This one is of a state that nobody has yet, and nothing of this state expires.
    calls |= dict.fromkeys(("take_times_for_restore", "expire"))
    # Two make a state that nobody has yet, one is for saves, and the last is how this one was ended.
    calls |= dict.fromkeys(("from_checkpoint", "repartitioned_for_restore", "check_saves_for_restore", "set_guard"))
    lazy = {"keys", "items", "values", "partitions", "expires"}
    for name in dir(KeyedState):
        if name.startswith("_") or name in lazy or calls.get(name, ()) is None:
            continue
        with pytest.raises(InvalidStateError):
            getattr(ended, name)(*(calls.get(name) or ()))
    for name in ("keys", "items", "values"):
        with pytest.raises(InvalidStateError):
            list(getattr(ended, name)())


@pytest.mark.parametrize("close", [maps.refuse_changes, maps.refuse_all])
def test_bound_methods_of_a_batch_are_of_no_use_after_it(close: Any) -> None:
    kept = state()
    put, update, pop, clear, keys = kept.__setitem__, kept.update, kept.pop, kept.clear, iter(kept)
    close(kept)
    for call in (lambda: put(1, 1), lambda: update({1: 1}), lambda: pop(0), clear):
        with pytest.raises(InvalidStateError, match="changed outside of a batch"):
            call()
    if close is maps.refuse_all:
        with pytest.raises(InvalidStateError, match="of a run that has ended"):
            next(keys)
    maps.allow_changes(kept)
    assert dict(kept) == {0: True}


def test_a_batch_of_a_run_that_was_ended_is_not_committed() -> None:
    """Its callback may have gone on although the map refused a change."""
    client = Checkpointer(f"memory://{uuid.uuid4().hex}")
    first = new_state(client, None, 0)
    first.map("m")["a"] = 1
    first._attempt.commit()
    later = new_state(client, client.restore(), 1)
    found = later.map("m")
    found["b"] = 2
    later._attempt.run.end()
    with suppress(InvalidStateError):
        found["c"] = 3
    with pytest.raises(InvalidStateError, match="another run of this query began meanwhile"):
        later._attempt.commit()
    restored = client.copy().restore()
    assert restored is not None
    assert restored.keyed("m").to_dict() == {"a": 1}


@pytest.mark.parametrize(
    ("name", "wanted", "found"),
    [
        ("m", "table", "a map of that name: state.map('m')"),
        ("b", "table", "partitions of bytes of that name: state.partition('b', …)"),
        ("b", "map", "partitions of bytes of that name: state.partition('b', …)"),
    ],
)
def test_a_name_that_the_state_has_otherwise_is_refused_with_a_way_out(name: str, wanted: str, found: str) -> None:
    client = Checkpointer(f"memory://{uuid.uuid4().hex}")
    with client.begin() as cp:
        cp.save("m", KeyedState({"a": 1}))
        cp.snapshot("b", 0, b"x")
    state = new_state(client, client.restore(), 1)

    def open_it() -> Any:
        return state.map(name) if wanted == "map" else state.table(name, ["key"])

    with pytest.raises(IllegalArgumentError) as refused:
        open_it()
    assert str(refused.value) == (
        f"{wanted} '{name}': the state has {found}; for a {wanted} take another name, or leave that out once: "
        f"state.drop('{name}')"
    )
    state.drop(name)
    open_it()
