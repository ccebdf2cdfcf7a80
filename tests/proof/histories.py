"""Records what processes asked of a root and what they were told, as histories that a stranger can judge.

An operation has a call, and a return unless nobody knows its outcome: its process died, or was told
`OutcomeUnknownError`. `tests/proof/linearizability` says what each kind of operation means.
"""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.errors import CheckpointError, FencedError, NotFoundError, OutcomeUnknownError, StalePlanError
from pyspark_checkpointer.manifests.model import Ref

CLEANUPS = ("clean", "retire")
"""They retire with one swap and delete afterwards: an error says only that not all of it was done."""


@dataclass(slots=True)
class Operation:
    """One line of a history."""

    process: int
    call: int
    op: dict[str, Any]
    returned: int | None = None
    result: dict[str, Any] | None = None

    def line(self) -> str:
        """Return the operation as JSON, in the form that the checker reads."""
        found = asdict(self)
        found["return"] = found.pop("returned")
        return json.dumps(found, separators=(",", ":"))


class History:
    """The operations of one root, in memory; `clock` never gives the same number twice."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self.operations: list[Operation] = []
        self._clock = clock or itertools.count(1).__next__

    @contextmanager
    def operation(self, process: int, kind: str, **fields: Any) -> Iterator[Operation]:
        """Record what happens in the block. It sets `result`; an error says by itself what is known then."""
        one = Operation(process, self._clock(), {"kind": kind, **fields})
        self.began(one)
        try:
            yield one
        except BaseException as error:
            if one.result is None:
                one.result = refusal(kind, error)
            raise
        else:
            one.result = {} if one.result is None else one.result
        finally:
            if one.result is not None:
                one.returned = self._clock()
                self.ended(one)

    def began(self, one: Operation) -> None:
        self.operations.append(one)

    def ended(self, one: Operation) -> None:
        """Nothing to do: the operation is in memory."""


class Diary(History):
    """The operations of one process in a file, where its death does not matter."""

    def __init__(self, path: Path) -> None:
        super().__init__(time.monotonic_ns)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._file, b"\n")  # the life before may have died in the middle of a line

    def began(self, one: Operation) -> None:
        os.write(self._file, one.line().encode() + b"\n")

    ended = began


def refusal(kind: str, error: BaseException) -> dict[str, Any] | None:
    """Return what an error proves: that nothing happened, or (None) nothing."""
    if not isinstance(error, CheckpointError) or isinstance(error, OutcomeUnknownError):
        return None
    if kind in CLEANUPS and not isinstance(error, StalePlanError):
        return None
    if isinstance(error, FencedError):
        return {"refused": "fenced"}
    return {"refused": "not found" if isinstance(error, NotFoundError) else type(error).__name__}


def seen(restored: Restored | None) -> dict[str, Any]:
    """Return what a restore showed, but for the content."""
    prepared = None if restored is None else restored.prepared
    return {
        "id": "" if restored is None or restored.manifest is None else str(restored.id),
        "prepared": "" if prepared is None else str(prepared.id),
    }


def gather(paths: Iterable[Path]) -> list[Operation]:
    """Return the operations of all diaries, by the time of their calls."""
    found: dict[tuple[int, int], Operation] = {}
    for line in itertools.chain.from_iterable(path.read_text().splitlines() for path in paths):
        with suppress(ValueError):  # empty, or cut off by the death of its writer
            told = json.loads(line)
            one = Operation(told["process"], told["call"], told["op"], told["return"], told["result"])
            found[one.process, one.call] = one
    return sorted(found.values(), key=lambda one: one.call)


def digest(content: bytes) -> str:
    """Return what stands for a content in a history."""
    return sha256(content).hexdigest()[:16]


def id_of(ref: Ref | None) -> str:
    """Return the id of a checkpoint; an empty one for none."""
    return "" if ref is None else str(ref.id)
