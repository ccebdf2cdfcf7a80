"""Define the JSON of a whole store at one moment."""

from typing import Annotated, TypedDict

from pyspark_checkpointer.cli.schemas.checkpoint import Checkpoint, Job, Operator, Partition, Savepoint
from pyspark_checkpointer.cli.schemas.cleanup import Total
from pyspark_checkpointer.cli.schemas.damage import Candidate, Verification
from pyspark_checkpointer.cli.schemas.values import Id, Time
from pyspark_checkpointer.manifests.model import Json


class Writer(TypedDict):
    """The writer that may commit. Each takeover raises its number by one."""

    number: int
    instance: str


class Retired(TypedDict):
    """A part of the history that was retired recently."""

    boundary: Annotated[int, "the sequence that the history began with"]
    at: Time


class Pointer(TypedDict):
    """The content of `_latest`."""

    writer: Writer
    committed: Id | None
    prepared: Id | None
    boundary: Annotated[int, "the sequence that the history begins with"]
    retired: list[Retired]


class Committed(TypedDict):
    """The job, as the committed checkpoint describes it."""

    job: Job | None
    watermark: Json
    positions: dict[str, Json]
    properties: dict[str, Json]


class Cleanup(TypedDict):
    """The plan of a cleanup, in short."""

    totals: list[Total]
    retired: list[Id]
    note: Annotated[str | None, "why that is not known"]


class Report(TypedDict):
    """A store at one moment, as far as it could be read."""

    verdict: str
    root: str
    made: Time
    pointer: Pointer | None
    committed: Committed | None
    checkpoints: list[Checkpoint]
    operators: Annotated[list[Operator], "of the committed checkpoint, the largest first"]
    unread_operators: Annotated[list[str], "those whose partition lists are damaged"]
    biggest_partitions: list[Partition]
    savepoints: list[Savepoint]
    cleanup: Cleanup
    verification: Verification
    share: Annotated[float, "the chance that each object had of being compared, from 0 to 1"]
    chains_left_out: Annotated[int, "checkpoints of which only the manifest was read"]
    candidates: list[Candidate]
