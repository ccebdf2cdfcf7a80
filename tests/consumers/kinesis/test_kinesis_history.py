"""Random histories of a shard and its owners: ours does what the model of the contract does, step by step."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_checkpointer.errors import CheckpointError
from tests.consumers.kinesis.kinesis_model import ModelShard
from tests.consumers.kinesis.kinesis_world import Node
from tests.consumers.world import TestHost, World

Step = Callable[["Side"], Any]

NUMBERS = st.integers(7, 13).map(str)  # as text, 9 is above 10
SUBS = st.integers(-1, 2)
STATES = st.none() | st.binary(max_size=3)


class Side:
    """One implementation, as a history sees it: the owner of now and those before, and all that was prepared."""

    def __init__(self, leases: Any, take: Callable[[], Any]) -> None:
        self.leases, self.take = leases, take
        self.owners, self.prepared = [take()], []

    @property
    def one(self) -> Any:
        return self.owners[-1]

    def do(self, step: Step) -> tuple[Any, ...]:
        """What the step gives, and what can be seen of the shard then."""
        try:
            outcome = step(self)
        except CheckpointError as error:
            outcome = type(error).__name__
        pending = self.one.pending
        number = None if pending is None else pending.pending_checkpoint
        return outcome, self.one.position, self.one.seen, number, self.one.pending_state

    def keep(self, prepared: Any) -> Any:
        self.prepared.append(prepared)
        return prepared.pending_checkpoint


def hand_over(side: Side) -> None:
    side.leases.release(side.one)
    side.owners.append(side.take())


def redeem(side: Side, which: int) -> None:
    if side.prepared:
        side.prepared[which % len(side.prepared)].checkpoint()


def redeem_pending(side: Side) -> None:
    if side.one.pending is not None:
        side.one.pending.checkpoint()


def steps() -> st.SearchStrategy[Step]:
    record = st.builds(lambda n, sub: {"SequenceNumber": n, "SubSequenceNumber": max(0, sub)}, NUMBERS, SUBS)
    return st.one_of(
        record.map(lambda record: lambda side: side.leases.deliver(side.one, [record])),
        st.just(lambda side: side.one.checkpoint()),
        NUMBERS.map(lambda n: lambda side: side.one.checkpoint_by_sequence_number(n)),
        st.tuples(NUMBERS, SUBS).map(lambda t: lambda side: side.one.checkpoint_by_sequence_number_ex(*t)),
        record.map(lambda record: lambda side: side.one.checkpoint_by_record(record)),
        STATES.map(lambda state: lambda side: side.keep(side.one.prepare_checkpoint(application_state=state))),
        st.tuples(NUMBERS, SUBS, STATES).map(
            lambda t: (
                lambda side: side.keep(
                    side.one.prepare_checkpoint_by_sequence_number_ex(*t[:2], application_state=t[2])
                )
            )
        ),
        st.integers(0, 9).map(lambda which: lambda side: redeem(side, which)),
        st.just(redeem_pending),
        st.just(lambda side: side.one.checkpoint_by_sequence_number("SHARD_END")),
        st.just(lambda side: side.leases.end(side.one)),
        st.just(hand_over),
        st.just(lambda side: side.owners[0].checkpoint()),
    )


@pytest.mark.parametrize("max_updates", [1, 3, 1000])
@settings(max_examples=120)
@given(history=st.lists(steps(), max_size=25))
def test_a_history_goes_as_the_contract_says(max_updates: int, history: list[Step]) -> None:
    model = ModelShard()
    node = Node(World().store, "w", TestHost(), max_updates=max_updates, interval=1000)
    sides = Side(model, model.take), Side(node, lambda: node.must("s", force=True))
    for step in [*history, hand_over]:
        expected, found = (side.do(step) for side in sides)
        assert found == expected
