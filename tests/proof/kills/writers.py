"""What runs in the processes that are killed: writers that compete for one root, and a cleanup job."""

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from checkpointer import Checkpointer, KeyedState, RetentionPolicy
from checkpointer.errors import CheckpointError, ConflictError, InvalidStateError, OutcomeUnknownError, RetryableError
from checkpointer.sync_handles import Checkpoint, Restored
from tests.proof.kills.ledger import ADDED, ANEW, REFUSED, UNKNOWN, Ledger

CERTAIN = (ConflictError, InvalidStateError)
"""What says for certain that a commit did not happen."""

EXPECTED = (*CERTAIN, RetryableError, OutcomeUnknownError)
"""What a writer meets in a bad hour and goes on from by itself. Anything else ends it, and counts."""

KEEP = RetentionPolicy(keep_last=3, grace=timedelta(0))

WHOLE = 8
"""Every so many tokens, at random, all of them are written anew; the others are deltas."""


@dataclass(frozen=True, slots=True)
class Place:
    """A root that several processes use, and the folder where they tell what they did."""

    url: str
    storage_options: dict[str, Any] = field(repr=False)
    ledgers: Path

    def open(self) -> Checkpointer:
        return Checkpointer(self.url, self.storage_options or None, timeout=20.0)

    def ledger(self, name: str) -> Path:
        return self.ledgers / f"{name}.jsonl"


def going(place: Place) -> Callable[[], bool]:
    """Whether to go on: nobody said stop, and whoever started this process is still there."""
    parent = os.getppid()
    return lambda: os.getppid() == parent and not (place.ledgers / "stop").exists()


# ---- the state: tokens, in the order in which they came, and how many of each process ----


def begin(place: Place) -> None:
    """The first checkpoint: no tokens."""
    with place.open() as client, client.begin() as cp:
        cp.snapshot("tokens", 0, b"")
        cp.save("counts", KeyedState(partitions=2))


def tokens(restored: Restored | None) -> list[str]:
    """The tokens of a state, which its counts have to agree with."""
    assert restored is not None
    found = b"".join(restored.operator("tokens").partition(0)).decode().split()
    counts = {name: number for name, number in restored.keyed("counts").items() if number}
    names = [token.rpartition("-")[0] for token in found]
    assert counts == {name: names.count(name) for name in set(names)}, "one checkpoint, two stories"
    return found


def add(cp: Checkpoint, restored: Restored, token: str, numbers: random.Random) -> None:
    if numbers.randrange(WHOLE):
        cp.delta("tokens", 0, f"{token}\n".encode())
    else:
        cp.snapshot("tokens", 0, "".join(f"{one}\n" for one in [*tokens(restored), token]).encode())
    counts, name = restored.keyed("counts"), token.rpartition("-")[0]
    counts[name] = counts.get(name, 0) + 1
    cp.save("counts", counts)


# ---- the processes ----


def compete(place: Place, name: str, seed: str, padding: int = 0, savepoints: bool = False) -> None:
    """Add a token after the other to whatever is there, for ever; where that fails, restore and go on."""
    ledger, numbers, go_on = Ledger(place.ledger(name)), random.Random(seed), going(place)
    for client in _clients(place, go_on):
        try:
            while go_on():
                _step(client, ledger, numbers, padding)
                if savepoints and numbers.random() < 0.2:
                    _savepoint(client, ledger, name)
        except EXPECTED as error:
            ledger.tell(ANEW, note=f"{type(error).__name__}: {error}")
            time.sleep(numbers.uniform(0, 0.05))


def _step(client: Checkpointer, ledger: Ledger, numbers: random.Random, padding: int) -> None:
    restored = client.restore()
    assert restored is not None
    if restored.prepared is not None:
        restored.prepared.commit() if numbers.random() < 0.5 else restored.prepared.abort()
        return
    token, prepared = ledger.new_token(), None
    try:
        cp = client.begin()
        add(cp, restored, token, numbers)
        if padding:
            cp.snapshot("padding", 0, numbers.randbytes(numbers.randrange(padding)))
        kind = numbers.random()
        if kind < 0.1:
            cp.abort()
            ledger.tell(REFUSED, token, "given up")
        elif kind < 0.7:
            cp.commit()
            ledger.tell(ADDED, token)
        else:
            prepared = cp.prepare()
            prepared.commit()
            ledger.tell(ADDED, token)
    except CheckpointError as error:
        # Somebody else may have promoted what was prepared before this process lost its place.
        sure = isinstance(error, CERTAIN) and prepared is None
        ledger.tell(REFUSED if sure else UNKNOWN, token, f"{type(error).__name__}: {error}")
        raise


def _savepoint(client: Checkpointer, ledger: Ledger, name: str) -> None:
    """Keep the tokens that are there now, and tell their number once that is acknowledged."""
    restored = client.restore()
    assert restored is not None
    found = tokens(restored)
    label = f"{name} with {len(found)}"
    if label not in [savepoint.name for savepoint in client.savepoints()]:
        client.savepoint(label, restored.id)
        ledger.tell("saved", label, len(found))


def clean(place: Place, name: str, seed: str) -> None:
    """Retire and sweep, over and over."""
    ledger, go_on = Ledger(place.ledger(name)), going(place)
    for client in _clients(place, go_on):
        try:
            while go_on():
                ledger.tell("cleaned", note=client.clean(KEEP).deleted.objects)
        except EXPECTED as error:
            ledger.tell(ANEW, note=f"{type(error).__name__}: {error}")


def _clients(place: Place, go_on: Callable[[], bool]) -> Iterator[Checkpointer]:
    """A new client for each round, until it is over."""
    while go_on():
        with place.open() as client:
            yield client
