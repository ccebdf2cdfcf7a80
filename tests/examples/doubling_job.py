"""The first job with a bug: its state does not know which batch it belongs to, so a replayed batch counts twice."""

from collections.abc import Callable
from typing import Any
from unittest import mock

from pyspark.sql import DataFrame

from examples.flights import maps, stream
from pyspark_checkpointer import Checkpointer, KeyedState


class Maps:
    """What the callback uses of a `State`."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self._restored = checkpointer.restore()
        self.maps: dict[str, KeyedState] = {}

    def map(self, name: str) -> KeyedState:
        return self.maps.setdefault(name, self._restored.keyed(name) if self._restored else KeyedState())


def stateful(root: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    checkpointer = Checkpointer(root)

    def decorate(update: Callable[..., None]) -> Callable[..., None]:
        def save(batch: DataFrame, batch_id: int) -> None:
            state: Any = Maps(checkpointer)
            update(batch, batch_id, state)
            with checkpointer.begin(batch_id) as checkpoint:
                for name, kept in state.maps.items():
                    checkpoint.save(name, kept)

        return save

    return decorate


if __name__ == "__main__":
    with mock.patch.object(maps, "stateful", stateful):
        stream.main(maps.sink)
