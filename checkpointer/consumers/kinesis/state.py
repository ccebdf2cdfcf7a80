"""What is recorded of a shard: as a value, as JSON, and what may follow what.

    {"checkpoint": {"sequence_number": "4959…", "sub_sequence_number": 0},
     "pending": {"sequence_number": "SHARD_END", "sub_sequence_number": 0, "state": "aGk="}}

This is the `value` of the shard's position. `checkpoint` is the record after which the next owner goes on, or the
shard's end; null where nothing was checkpointed yet. `pending` is what was prepared since; null where nothing was, or
what was is checkpointed or given up. Its `state` is the application's, in base64, or null. Sequence numbers are text:
1 to 129 decimal digits, none of them a leading zero, or `SHARD_END`; of what is pending also `AT_TIMESTAMP`,
`TRIM_HORIZON` and `LATEST`. Sub-sequence numbers are integers from 0, and 0 beside such a name. Other fields are kept.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark_checkpointer.consumers.kinesis.sequence import ExtendedSequenceNumber
from pyspark_checkpointer.consumers.lease import Value
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.json_fields import Fields
from pyspark_checkpointer.manifests.model import Json


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint that was prepared, and what the application keeps with it."""

    number: ExtendedSequenceNumber
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """How far a shard is. Where nothing was checkpointed, `checkpoint` is the place to begin; it is not stored."""

    shard: str
    checkpoint: ExtendedSequenceNumber
    pending: PendingCheckpoint | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)


def checkpointed(recorded: Recorded, new: ExtendedSequenceNumber, seen: ExtendedSequenceNumber) -> Recorded:
    """A checkpoint at `new`, whatever is pending, which it ends. `seen` is the largest delivered to this owner."""
    _check(recorded, new, seen)
    return replace(recorded, checkpoint=new, pending=None)


def prepared(
    recorded: Recorded, new: ExtendedSequenceNumber, seen: ExtendedSequenceNumber, state: bytes | None
) -> Recorded:
    """`new` pending in place of what is. What is checkpointed already needs no preparing, unless to keep a state."""
    _check(recorded, new, seen)
    nothing = new == recorded.checkpoint and state is None
    return replace(recorded, pending=None if nothing else PendingCheckpoint(new, state))


def coalesced(recorded: Recorded, new: Recorded) -> Recorded:
    """The outcome of steps that were not written one by one. Who has the same lease may have gone on: never back."""
    _check(recorded, new.checkpoint, new.checkpoint)
    return new


def _check(recorded: Recorded, new: ExtendedSequenceNumber, seen: ExtendedSequenceNumber) -> None:
    if new < recorded.checkpoint:
        raise IllegalArgumentError(
            f"shard {recorded.shard!r:.60}: {new} is below the last checkpoint, {recorded.checkpoint}"
        )
    # What is pending was seen, if only by an earlier owner.
    if new > seen and (recorded.pending is None or new != recorded.pending.number):
        raise IllegalArgumentError(
            f"shard {recorded.shard!r:.60}: {new} is above the largest sequence number that was delivered, {seen}"
        )


def encode(recorded: Recorded) -> Value:
    checkpoint, pending = recorded.checkpoint, recorded.pending
    return {
        "checkpoint": None if checkpoint.is_start else _number(checkpoint),
        "pending": None
        if pending is None
        else {
            **_number(pending.number),
            "state": None if pending.state is None else base64.b64encode(pending.state).decode(),
        },
        **recorded.extra,
    }


def _number(number: ExtendedSequenceNumber) -> dict[str, Json]:
    return {"sequence_number": number.sequence_number, "sub_sequence_number": number.sub_sequence_number}


def decode(shard: str, value: Value | None, initial: ExtendedSequenceNumber) -> Recorded:
    """Return what is recorded of `shard`; it begins at `initial`."""
    if value is None:
        return Recorded(shard, initial)
    fields = Fields(f"position of shard {shard!r:.60}", dict(value))
    checkpoint, pending = fields.inner("checkpoint"), fields.inner("pending")
    number = initial if checkpoint is None else _decode_number(checkpoint)
    if checkpoint is not None and number.is_start:
        fields.fail(f"checkpoint: {number} is a place to begin, which only stands in pending")
    return Recorded(
        shard,
        number,
        None if pending is None else PendingCheckpoint(_decode_number(pending), _decode_state(pending)),
        fields.rest(),
    )


def _decode_number(fields: Fields) -> ExtendedSequenceNumber:
    try:
        return ExtendedSequenceNumber(fields.text("sequence_number"), fields.integer("sub_sequence_number"))
    except IllegalArgumentError as error:
        fields.fail(str(error))


def _decode_state(fields: Fields) -> bytes | None:
    value = fields.take("state")
    try:
        return None if value is None else base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError):
        fields.fail("state: expected base64 or null")
