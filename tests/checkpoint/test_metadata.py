"""Segments are read once, and again where the first read failed in a way that passes."""

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from pyspark_checkpointer.checkpoint.metadata import Segments
from pyspark_checkpointer.errors import DependencyError, InvalidStateError
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Operator, Segment
from pyspark_checkpointer.runtime.host import SystemHost

SEGMENT = Segment("manifests/segments/one", 1, 1, 1)


@pytest.mark.parametrize(("error", "reads"), [(DependencyError, 2), (InvalidStateError, 1)])
def test_a_segment_is_read_again_after_a_failure_that_passes(error: type[Exception], reads: int) -> None:
    asked: list[str] = []

    class Failing:
        async def get(self, path: str, *, limit: int | None = None) -> Any:
            asked.append(path)
            raise error("down")

    operator = Operator(1, "explicit", "raw", segments=(SEGMENT,))
    manifest = Manifest(CheckpointId(1, "a" * 8), created=datetime.now(UTC), operators={"o": operator})

    async def work() -> None:
        segments = Segments(cast(Any, Failing()), SystemHost())
        for _ in range(2):
            with pytest.raises(error):
                await segments.load(manifest)

    asyncio.run(work())
    assert len(asked) == reads
