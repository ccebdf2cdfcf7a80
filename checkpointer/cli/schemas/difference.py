"""Define the JSON of `diff` between checkpoints and of the history of one key."""

from typing import Annotated, Literal, TypedDict

from pyspark_checkpointer.cli.schemas.values import Id, Time
from pyspark_checkpointer.manifests.model import Json


class ValueDifference(TypedDict):
    """A position, a property or the watermark that is not the same in two checkpoints."""

    name: str
    change: Literal["added", "removed", "changed"]
    before: Json
    after: Json


class OperatorDifference(TypedDict):
    """An operator that is not the same in two checkpoints."""

    name: str
    change: Literal["added", "removed", "changed"]
    added: Annotated[list[int], "partitions"]
    removed: Annotated[list[int], "partitions"]
    changed: Annotated[list[int], "partitions"]
    redefined: Annotated[list[str], "which of its partitions, partitioner, codec and schema"]


class Difference(TypedDict):
    """The differences between two checkpoints."""

    before: Id
    after: Id
    operators: list[OperatorDifference]
    positions: list[ValueDifference]
    properties: list[ValueDifference]
    watermark: ValueDifference | None
    expiring: Annotated[
        list[str], "tables and maps that the clock alone may have changed: rows expired, or live again after a rollback"
    ]
    bytes_added: Annotated[int, "of objects that only `after` has"]
    bytes_removed: Annotated[int, "of objects that only `before` has"]


class ChangedKey(TypedDict):
    """A key whose value or row is not the same in two checkpoints."""

    key: Annotated[Json, "of a table: its key columns, by name; written as `cat` writes it"]
    change: Literal["inserted", "updated", "deleted", "expired"]


class KeyDifference(TypedDict):
    """The keys of one operator that are not the same in two checkpoints."""

    before: Id
    after: Id
    operator: str
    inserted: Annotated[int, "keys"]
    updated: Annotated[int, "keys"]
    deleted: Annotated[int, "keys"]
    expired: Annotated[
        int,
        "keys of rows that were past their time by the rule and clock of any checkpoint after `before` up to `after`, "
        "as far as they are live",
    ]
    keys: Annotated[list[ChangedKey], "the first of them, as many as `--limit` allows"]
    left_out: Annotated[int, "keys that `keys` is without"]


class HistoryChange(TypedDict):
    """A checkpoint that changed a key."""

    id: Id
    epoch: int | None
    created: Time | None
    change: Literal["insert", "update", "delete", "expire"]
    before: Annotated[Json, "the value, or the row of a table by column; null where there was none"]
    after: Json


class KeyHistory(TypedDict):
    """The checkpoints that changed one key, oldest first."""

    operator: str
    key: Json
    since: Annotated[Id, "the checkpoint with which the history begins"]
    complete: Annotated[
        bool,
        "the history of the store begins with `since`, and its change is among these",
    ]
    first: Annotated[Json, "value or row in `since`, where the history is not complete; null without one"]
    changes: list[HistoryChange]
