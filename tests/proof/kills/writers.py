"""What runs in the processes that are killed: writers that compete for one root, and a cleanup job."""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.checkpoint.fencing import Owner
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint, Prepared, Restored
from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    InvalidStateError,
    OutcomeUnknownError,
    RetryableError,
)
from tests.proof.histories import Diary, History, Operation, digest, seen
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

    def diary(self, name: str) -> Diary:
        """Where a process writes down what it asks of the root."""
        return Diary(self.ledgers / f"{name}.history")


def going(place: Place) -> Callable[[], bool]:
    """Whether to go on: nobody said stop, and whoever started this process is still there."""
    parent = os.getppid()
    return lambda: os.getppid() == parent and not (place.ledgers / "stop").exists()


# ---- the state: tokens, in the order in which they came, and how many of each process ----


@dataclass(slots=True)
class Asking:
    """One user of a root, whose operations are recorded."""

    client: Checkpointer
    history: History
    session: str

    def asks(self, kind: str, **fields: Any) -> AbstractContextManager[Operation]:
        return self.history.operation(os.getpid(), kind, session=self.session, **fields)

    def attempts(self, kind: str, cp: Checkpoint, parent: Restored | None, content: Sequence[str]) -> Any:
        """Record an attempt at a checkpoint."""
        before = "" if parent is None else str(parent.id)
        return self.asks(kind, parent=before, id=str(cp.id), content=digest("\n".join(content).encode()))

    def restore(self) -> tuple[Restored, list[str]]:
        """Restore, and read the tokens."""
        with self.asks("restore") as asked:
            restored = self.client.restore()
            asked.result = seen(restored)
            found = tokens(restored)
            assert restored is not None
            asked.result["content"] = digest("\n".join(found).encode())
        return restored, found


def begin(place: Place) -> None:
    """The first checkpoint: no tokens."""
    with place.open() as client:
        first = Asking(client, place.diary("first"), "first")
        with first.asks("restore") as asked:
            asked.result = seen(client.restore())
        cp = client.begin()
        cp.snapshot("tokens", 0, b"")
        cp.save("counts", KeyedState(partitions=2))
        with first.attempts("commit", cp, None, []):
            cp.commit()


def tokens(restored: Restored | None) -> list[str]:
    """The tokens of a state, which its counts have to agree with."""
    assert restored is not None
    found = b"".join(restored.operator("tokens").partition(0)).decode().split()
    counts = {name: number for name, number in restored.keyed("counts").items() if number}
    names = [token.rpartition("-")[0] for token in found]
    assert counts == {name: names.count(name) for name in set(names)}, "one checkpoint, two stories"
    return found


def add(cp: Checkpoint, restored: Restored, found: list[str], token: str, numbers: random.Random) -> None:
    if numbers.randrange(WHOLE):
        cp.delta("tokens", 0, f"{token}\n".encode())
    else:
        cp.snapshot("tokens", 0, "".join(f"{one}\n" for one in [*found, token]).encode())
    counts, name = restored.keyed("counts"), token.rpartition("-")[0]
    counts[name] = counts.get(name, 0) + 1
    cp.save("counts", counts)


# ---- the processes ----


def compete(
    place: Place,
    name: str,
    seed: str,
    padding: int = 0,
    savepoints: bool = False,
    careless: bool = False,
    trigger: float = 0,
) -> None:
    """Add a token after the other to whatever is there, for ever; where that fails, restore and go on.

    After a commit its next batch comes within `trigger` seconds. Who is `careless` has lost the rule that a commit
    stands on what was restored: a bug for those who judge.
    """
    if careless:
        Owner.follows = lambda *_: True  # type: ignore[method-assign]
    ledger, numbers, go_on = Ledger(place.ledger(name)), random.Random(seed), going(place)
    diary = place.diary(name)
    for number, client in enumerate(_clients(place, go_on)):
        asking = Asking(client, diary, f"{os.getpid()}.{number}")
        try:
            while go_on():
                if _step(asking, ledger, numbers, padding) and trigger:
                    time.sleep(numbers.uniform(0, trigger))
                if savepoints and numbers.random() < 0.2:
                    _savepoint(client, ledger, name)
        except EXPECTED as error:
            ledger.tell(ANEW, note=f"{type(error).__name__}: {error}")
            time.sleep(numbers.uniform(0, 0.05))


def _step(asking: Asking, ledger: Ledger, numbers: random.Random, padding: int) -> bool:
    """Commit a token, or decide what was found prepared. Returns whether a token was committed."""
    restored, found = asking.restore()
    if restored.prepared is not None:
        _decide(asking, restored.prepared, promote=numbers.random() < 0.5)
        return False
    token, prepared = ledger.new_token(), None
    try:
        cp = asking.client.begin()
        add(cp, restored, found, token, numbers)
        if padding:
            cp.snapshot("padding", 0, numbers.randbytes(numbers.randrange(padding)))
        kind = numbers.random()
        if kind < 0.1:
            cp.abort()
            ledger.tell(REFUSED, token, "given up")
        elif kind < 0.7:
            with asking.attempts("commit", cp, restored, [*found, token]):
                cp.commit()
            ledger.tell(ADDED, token)
        else:
            with asking.attempts("prepare", cp, restored, [*found, token]):
                prepared = cp.prepare()
            _decide(asking, prepared, promote=True)
            ledger.tell(ADDED, token)
        return kind >= 0.1
    except CheckpointError as error:
        # Somebody else may have promoted what was prepared before this process lost its place.
        sure = isinstance(error, CERTAIN) and prepared is None
        ledger.tell(REFUSED if sure else UNKNOWN, token, f"{type(error).__name__}: {error}")
        raise


def _decide(asking: Asking, prepared: Prepared, *, promote: bool) -> None:
    with asking.asks("promote" if promote else "abort", id=str(prepared.id)):
        prepared.commit() if promote else prepared.abort()


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
