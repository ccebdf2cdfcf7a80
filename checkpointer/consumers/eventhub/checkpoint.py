"""Check what callers say about a partition, and read its stored checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from pyspark_checkpointer.consumers.cas_object import NextValue
from pyspark_checkpointer.consumers.group import MAX_OFFSET_CHARACTERS
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_fields import Fields
from pyspark_checkpointer.manifests.json_text import check_json
from pyspark_checkpointer.manifests.positions_json import Position


class GroupName(NamedTuple):
    """The three names that identify a consumer group."""

    fully_qualified_namespace: str
    eventhub_name: str
    consumer_group: str


class Checkpoint(NamedTuple):
    """The place up to which a partition was read."""

    partition_id: str
    sequence_number: int | None
    offset: str | None


def overwriting(checkpoint: Checkpoint) -> NextValue[Position]:
    """Return the change of a position that records a checkpoint.

    It does so whatever stands there.
    """
    value = {"sequence_number": checkpoint.sequence_number, "offset": checkpoint.offset}

    def next_position(position: Position | None, now: datetime) -> Position:
        if position is None:
            return Position(checkpoint.partition_id, 0, value, now)
        kept = dict(position.value or {})  # Fields of a later version of this library stay.
        return replace(position, partition=checkpoint.partition_id, value=kept | value, modified=now)

    return next_position


def decode(name: str, position: Position) -> Checkpoint:
    """Return the checkpoint in a position.

    Raise `MalformedError`, with `name`, if there is none.
    """
    fields = Fields(name, position.value)
    found = {key: fields.take(key) for key in ("sequence_number", "offset")}
    try:
        # A stored value obeys the rules of a given one; here it is the object that is at fault, and not the caller.
        return checkpoint_of({"partition_id": position.partition, **found})
    except IllegalArgumentError as error:
        fields.fail(str(error))


def group_name(given: Mapping[str, Any]) -> GroupName:
    """Return the names of the group in a dictionary."""
    return GroupName(*(text_of(given, name) for name in GroupName._fields))


def text_of(given: Mapping[str, Any], key: str) -> str:
    """Return a field that has to be text.

    Raise `IllegalArgumentError` if it is not text, or cannot be part of a path.
    """
    if not isinstance(given, Mapping):
        raise IllegalArgumentError(f"expected a dictionary, got {type(given).__name__}")
    value = given.get(key)
    if not isinstance(value, str) or not value:
        raise IllegalArgumentError(f"{key} {value!r:.60}: expected text of at least one character")
    try:
        object_paths.encode_part(value)
    except IllegalArgumentError as error:
        raise IllegalArgumentError(f"{key}: {error}") from None
    return value


def checkpoint_of(given: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint in a dictionary.

    Raise `IllegalArgumentError` if a field is not as the contract says.
    """
    partition, number, offset = text_of(given, "partition_id"), given.get("sequence_number"), given.get("offset")
    if number is not None and not _is_integer(number):
        raise IllegalArgumentError("sequence_number: expected an integer of at most 64 bits, or None")
    if offset is not None and not isinstance(offset, str) and not _is_integer(offset):
        raise IllegalArgumentError("offset: expected text, or None")
    if isinstance(offset, str) and len(offset) > MAX_OFFSET_CHARACTERS:
        raise IllegalArgumentError(f"offset: {len(offset)} characters, at most {MAX_OFFSET_CHARACTERS} are kept")
    check_json("offset", offset)
    # Not by `str(offset)`: an enum would say its own name.
    text = str.__str__(offset) if isinstance(offset, str) else None if offset is None else str(int(offset))
    return Checkpoint(partition, number, text)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
