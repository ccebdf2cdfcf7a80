"""A place in the stream of a partition, as a value and as it is stored."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark_checkpointer.consumers.group import MAX_OFFSET
from pyspark_checkpointer.consumers.lease import Value
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_fields import Fields, check_json


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """The last event of a partition that needs no processing again: its offset, as text, and its sequence number.

    "0" and 0 are a place like any other. `IllegalArgumentError` where it cannot be that of an event.
    """

    partition_id: str
    offset: str
    sequence_number: int

    def __post_init__(self) -> None:
        object_paths.encode_part(self.partition_id)
        if isinstance(self.offset, str) and len(self.offset) > MAX_OFFSET:
            raise IllegalArgumentError(f"offset: {len(self.offset)} characters, at most {MAX_OFFSET} are kept")
        if not isinstance(self.offset, str) or not self.offset:
            raise IllegalArgumentError(f"offset {self.offset!r:.60}: expected text of at least one character")
        check_json("offset", self.offset)
        number = self.sequence_number
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**63:
            raise IllegalArgumentError(f"sequence_number {number!r:.60}: expected an integer from 0 to 2**63 - 1")


def decode(name: str, partition_id: str, value: Value | None) -> CheckpointInfo | None:
    """Return the checkpoint that stands in the position `name`, if there is one."""
    if value is None:
        return None
    fields = Fields(name, dict(value))
    offset, number = fields.text("offset"), fields.integer("sequence_number")
    try:
        return CheckpointInfo(partition_id, offset, number)
    except IllegalArgumentError as error:
        fields.fail(str(error))


def is_news(found: CheckpointInfo | None, new: CheckpointInfo) -> bool:
    """Return whether `new` comes after `found`: `IllegalArgumentError` where it comes before.

    The sequence number tells an event from others, so an equal one is nothing new, whatever its offset.
    """
    if found is None or new.sequence_number > found.sequence_number:
        return True
    if new.sequence_number < found.sequence_number:
        raise IllegalArgumentError(
            f"partition {new.partition_id!r}: sequence number {new.sequence_number} comes before "
            f"{found.sequence_number}, which is checkpointed already: "
            "to go back all the same, note that position, then delete the checkpoint"
        )
    return False


def advancing(name: str, new: CheckpointInfo) -> Callable[[Value | None], Value | None]:
    """Return a change of the position `name` to `new`. What others keep in its value stays."""

    def change(value: Value | None) -> Value | None:
        if not is_news(decode(name, new.partition_id, value), new):
            return None
        return {**(value or {}), "offset": new.offset, "sequence_number": new.sequence_number}

    return change
