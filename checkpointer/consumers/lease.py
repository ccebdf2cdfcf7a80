"""Lease one partition to one worker: it gets the right to write its position."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark_checkpointer.consumers.cas_object import CasObject
from pyspark_checkpointer.errors import LeaseLostError
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.manifests.positions_json import Position
from pyspark_checkpointer.runtime import forks
from pyspark_checkpointer.runtime.not_picklable import NotPicklable

Value = Mapping[str, Json]
"""The type of the values that an interface records for a partition."""

ROOM_FOR_EPOCH = 20
"""Bytes that a value leaves free in its position.

The next leases are written beside it, with epochs of up to 19 digits.
"""


class Lease(NotPicklable):
    """One worker's lease on one partition, until it is released or lost.

    A lost lease stays lost. `value_when_taken` is the position's value when the lease was written into it. `token` was
    drawn only for this lease, and stays in the position until another lease is written there. `retaking` has the tokens
    of tries to take the partition again, whose outcome may be unknown.

    Code that delays writes under this lease sets `flush` and `flush_kept`, which write what that code holds. `flush`
    also raises the errors of what was given up before, and `flush_kept` leaves these to a later `flush`.
    """

    _instead = "write under it there, or take one here"

    def __init__(self, owner: str, partition: str, epoch: int, token: str, position: CasObject[Position]) -> None:
        self.owner, self.partition, self.epoch, self.token = owner, partition, epoch, token
        self.value_when_taken: Value | None = None
        self.lost = False
        self.retaking: set[str] = set()
        self.flush: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.flush_kept: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._position, self._process = position, forks.current

    def __repr__(self) -> str:
        return f"<Lease of {self.partition!r} by {self.owner!r}, epoch {self.epoch}{', lost' if self.lost else ''}>"

    async def write(self, change: Callable[[Value | None], Value | None]) -> Value | None:
        """Replace the position's value with what `change` returns for it.

        None leaves the value as it is. Return the value that the position then has.

        Raise `LeaseLostError`, and write nothing, once anybody has taken the partition again, this worker included.
        """
        # A lease that is known to be lost costs no request.
        self.check()

        def next_position(position: Position | None, now: datetime) -> Position | None:
            if position is None or (position.epoch, position.lease) != (self.epoch, self.token):
                # This may rest on a remembered position. `CasObject.change` reads it again before it lets this out.
                raise self._ended()
            value = change(position.value)
            return None if value is None else replace(position, value=value, modified=now)

        try:
            position = await self._position.change(next_position, room=ROOM_FOR_EPOCH)
        except LeaseLostError:
            # Remembered for good: each lease has a token of its own, so this one cannot come back into the position.
            self.lost = True
            raise
        return None if position is None else position.value

    def check(self) -> None:
        """Raise `LeaseLostError` if the lease is known to be lost.

        Raise it, too, if the lease belongs to the process that forked this one.
        """
        if self.lost:
            raise self._ended()
        # A forked child has the same token, so the store could not tell its writes from those of its parent.
        if self._process is not forks.current:
            raise LeaseLostError(
                f"partition {self.partition!r}: this lease belongs to the process that took it: take one here"
            )

    def _ended(self) -> LeaseLostError:
        return LeaseLostError(
            f"partition {self.partition!r}: the lease of {self.owner!r} (epoch {self.epoch}) has ended: "
            "stop reading the partition; its next owner continues from the recorded position"
        )
