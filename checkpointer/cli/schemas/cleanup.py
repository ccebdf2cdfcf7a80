"""Define the JSON of a cleanup: its plan, and its result."""

from typing import Annotated, Literal, TypedDict

from pyspark_checkpointer.cli.schemas.values import Amount, Id


class Total(TypedDict):
    """Objects that cleanup treats alike."""

    action: Literal["keep", "delete", "later"]
    reason: str
    objects: int
    bytes: int


class PlannedCheckpoint(TypedDict):
    """A checkpoint, and what a policy makes of it."""

    id: Id
    action: Literal["keep", "retire"]
    reason: str


class CleanupPlan(TypedDict):
    """The plan of a cleanup."""

    root: str
    grace_seconds: float
    note: Annotated[str | None, "why nothing is retired although the policy would"]
    checkpoints: list[PlannedCheckpoint]
    totals: list[Total]


class PlanRow(TypedDict):
    """One object, and what cleanup would do with it."""

    path: Annotated[str, "below the root"]
    bytes: int
    action: Literal["keep", "delete", "later"]
    reason: str
    referenced_by: Annotated[Id | None, "the strongest of the checkpoints that reference it"]
    reference_count: Annotated[int, "how many reference it"]
    leftover: Annotated[str | None, "the store's own name of what an interrupted write left behind"]


class Cleaned(TypedDict):
    """The result of a cleanup."""

    retired: list[Id]
    deleted: Amount
    later: Annotated[Amount, "what goes once the grace period is over"]
    note: Annotated[str | None, "why nothing was retired although the policy would"]


class Deleted(TypedDict):
    """The deleted checkpoint, and the objects deleted with it."""

    deleted: Annotated[str, "the id of a checkpoint, or the name of a savepoint"]
