"""Define the JSON of a cleanup: its plan, and its result."""

from typing import Annotated, Literal, TypedDict

from pyspark_checkpointer.cli.schemas.values import Amount, Id, Time


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


class PlannedFollower(TypedDict):
    """A named follower of a table, and what a cleanup keeps for it."""

    name: str
    behind: Annotated[int | None, "checkpoints that it has yet to read; null if it is lost, since it was outrun before"]
    keeps: Annotated[int, "checkpoints that stay for it alone"]
    outrun: Annotated[int, "checkpoints that it needs and that are retired, by `--max-follower-lag`"]


class CleanupPlan(TypedDict):
    """The plan of a cleanup."""

    root: str
    grace_seconds: float
    note: Annotated[str | None, "why nothing is retired although the policy would, or what could not be looked at"]
    checkpoints: list[PlannedCheckpoint]
    followers: list[PlannedFollower]
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
    note: Annotated[str | None, "why nothing was retired although the policy would, or what could not be looked at"]
    followers: list[PlannedFollower]


class Deleted(TypedDict):
    """The deleted savepoint."""

    deleted: Annotated[str, "its name"]


class DeletedCheckpoint(TypedDict):
    """The deleted checkpoint, and those that went with it."""

    deleted: Id
    older: Annotated[
        list[Id], "older ones, where its own manifest could not be read; failed attempts may be among them"
    ]


class Follower(TypedDict):
    """A named follower of a table."""

    name: str
    table: str
    checkpoint: Annotated[Id | None, "up to which it has read the changes; null where it has read none"]
    behind: Annotated[int | None, "checkpoints that it has yet to read; null if one of them is not live any more"]
    modified: Annotated[Time | None, "when this was noted, by its own clock"]


class RemovedFollower(TypedDict):
    """The follower that was removed."""

    removed: Annotated[str, "its name"]
