"""One worker's hold on one partition, and what it records there."""

import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark_checkpointer.consumers.cas_object import Document
from pyspark_checkpointer.errors import LeaseLostError
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.manifests.positions_json import Position
from pyspark_checkpointer.runtime.not_picklable import NotPicklable

Value = Mapping[str, Json]


class Lease(NotPicklable):
    """One worker's hold on one partition, until it is released or lost. `found` is the position as it was then.

    `token` was drawn for this lease, and stands in the position while nobody else has taken it.
    """

    _instead = "write under it there, or take one here"

    def __init__(self, owner: str, partition: str, epoch: int, token: str, document: Document[Position]) -> None:
        self.owner, self.partition, self.epoch, self.token = owner, partition, epoch, token
        self.found: Value | None = None
        self.lost = False
        self.flush: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._document, self._process = document, os.getpid()

    def __repr__(self) -> str:
        return f"<Lease of {self.partition!r} by {self.owner!r}, epoch {self.epoch}{', lost' if self.lost else ''}>"

    async def write(self, change: Callable[[Value | None], Value | None]) -> Value | None:
        """Record what `change` makes of the position, or leave it where that is None. What stands then.

        `LeaseLostError`, and nothing is written, once the partition has been taken by anybody, this worker included.
        """
        self.check()

        def plan(position: Position | None, now: datetime) -> Position | None:
            if position is None or (position.epoch, position.lease) != (self.epoch, self.token):
                raise self._ended()  # perhaps only in memory that is old: it is lost once that was looked at again
            value = change(position.value)
            return None if value is None else replace(position, value=value, modified=now)

        try:
            position = await self._document.change(plan)
        except LeaseLostError:
            self.lost = True
            raise
        return None if position is None else position.value

    def check(self) -> None:
        """Raise `LeaseLostError` where it is known to be lost or released, and in a forked process, which has none."""
        if self.lost:
            raise self._ended()
        if self._process != os.getpid():
            raise LeaseLostError(
                f"partition {self.partition!r}: this lease belongs to the process that took it: take one here"
            )

    def _ended(self) -> LeaseLostError:
        return LeaseLostError(
            f"partition {self.partition!r}: the lease of {self.owner!r} (epoch {self.epoch}) has ended: "
            "stop reading the partition; its next owner goes on from what was recorded"
        )
