"""Define a checkpoint of Event Processor Host, as a value and as it is stored.

It is a place in the stream of a partition.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark_checkpointer.consumers.group import MAX_OFFSET_CHARACTERS
from pyspark_checkpointer.consumers.lease import Value
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_fields import Fields
from pyspark_checkpointer.manifests.json_text import check_json


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """The last event of a partition that was processed.

    It is its offset, as text, and its sequence number. Offset "0" with sequence number 0 is a place like any other.

    Args:
        partition_id: The partition.
        offset: The offset of the event, as text.
        sequence_number: The sequence number of the event, from 0.

    Raises:
        IllegalArgumentError: No event can have these values.

    Examples:
        >>> from pyspark_checkpointer.consumers.eventprocessorhost import CheckpointInfo
        >>> CheckpointInfo("0", offset="4096", sequence_number=17).sequence_number
        17
    """

    partition_id: str
    offset: str
    sequence_number: int

    def __post_init__(self) -> None:
        object_paths.encode_part(self.partition_id)
        if isinstance(self.offset, str) and len(self.offset) > MAX_OFFSET_CHARACTERS:
            raise IllegalArgumentError(
                f"offset: {len(self.offset)} characters, at most {MAX_OFFSET_CHARACTERS} are kept"
            )
        if not isinstance(self.offset, str) or not self.offset:
            raise IllegalArgumentError(f"offset {self.offset!r:.60}: expected text of at least one character")
        check_json("offset", self.offset)
        number = self.sequence_number
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**63:
            raise IllegalArgumentError(f"sequence_number {number!r:.60}: expected an integer from 0 to 2**63 - 1")


def decode(name: str, partition_id: str, value: Value | None) -> CheckpointInfo | None:
    """Return the checkpoint in the value of a position; None if there is none yet.

    `name` is the position's URL, for the `MalformedError` of a value that is no checkpoint.
    """
    if value is None:
        return None
    fields = Fields(name, dict(value))
    offset, number = fields.text("offset"), fields.integer("sequence_number")
    try:
        return CheckpointInfo(partition_id, offset, number)
    # The caller gave nothing wrong: the stored value is no checkpoint.
    except IllegalArgumentError as error:
        fields.fail(str(error))


def is_newer(found: CheckpointInfo | None, new: CheckpointInfo) -> bool:
    """Return whether `new` comes after `found`.

    Raise `IllegalArgumentError` if it comes before. The sequence number alone identifies an event, so an equal one is
    not newer, whatever its offset.
    """
    if found is None or new.sequence_number > found.sequence_number:
        return True
    if new.sequence_number < found.sequence_number:
        raise IllegalArgumentError(
            f"partition {new.partition_id!r}: sequence number {new.sequence_number} comes before "
            f"{found.sequence_number}, which is already recorded: to go back, note that position, then delete "
            "the checkpoint"
        )
    return False


def advancing(name: str, new: CheckpointInfo) -> Callable[[Value | None], Value | None]:
    """Return the change of the position `name` to `new`.

    Other fields of the position's value stay.
    """

    def change(value: Value | None) -> Value | None:
        # An equal checkpoint costs no write.
        if not is_newer(decode(name, new.partition_id, value), new):
            return None
        # Fields that a later version of this library added stay.
        return {**(value or {}), "offset": new.offset, "sequence_number": new.sequence_number}

    return change
