"""Batches of a table: run one, read what is there, and say what was refused."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError
from pyspark_checkpointer.spark import State, stateful
from tests.spark.conftest import Job

Body = Callable[[DataFrame, int, State], None]


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=str)


def once(job: Job, body: Body, **options: Any) -> None:
    """One more batch, run by `body`."""
    job.feed(("x", 1))

    @stateful(job.root, **options)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        body(batch, batch_id, state)

    job.run(update)


def refused(job: Job, body: Body) -> str:
    """What a batch was refused with; the same batch is run without it afterwards, so that the next one can come."""
    (said,) = all_refused(job, [body])
    return said


def all_refused(job: Job, bodies: Iterable[Body]) -> list[str]:
    """What each attempt at one batch was refused with; in the end the batch is run without any of them."""
    job.feed(("x", 1))
    said = [_refusal(job, body) for body in bodies]
    job.run(stateful(job.root)(lambda batch, batch_id, state: None))
    return said


def _refusal(job: Job, body: Body) -> str:
    caught: list[CheckpointError] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        try:
            body(batch, batch_id, state)
        except CheckpointError as error:
            caught.append(error)
            raise

    with pytest.raises(StreamingQueryException):
        job.run(update)
    (error,) = caught
    assert isinstance(error, IllegalArgumentError)
    return str(error)


def artifacts(root: str, operator: str) -> list[Any]:
    restored = Checkpointer(root).restore()
    assert restored is not None
    assert restored.manifest is not None
    chains = restored.manifest.operators[operator].chains
    return [artifact for chain in chains.values() for artifact in chain]
