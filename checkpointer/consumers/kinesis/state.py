"""Define the recorded state of a shard, as a value and as JSON.

This module also decides which changes of the state are allowed.

    {"checkpoint": {"sequence_number": "4959…", "sub_sequence_number": 0},
     "pending": {"sequence_number": "SHARD_END", "sub_sequence_number": 0, "state": "aGk="}}

This is the `value` of the shard's position. `checkpoint` is the record after which the next owner goes on, or the
shard's end; null if nothing was checkpointed yet. `pending` is the checkpoint that was prepared since; null if none
was, or a later checkpoint ended it. Its `state` is the application's, in base64, or null. Sequence numbers are text: 1
to 129 decimal digits without leading zeros, or `SHARD_END`; a pending one may also be `AT_TIMESTAMP`, `TRIM_HORIZON` or
`LATEST`. Sub-sequence numbers are integers from 0, and 0 beside a name. `initial` is mostly left out. It says where a
shard begins that was created later, such as the child of a split, as long as there is no checkpoint. Other fields are
kept.
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
    """A prepared checkpoint, and the state that the application keeps with it."""

    number: ExtendedSequenceNumber
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class ShardState:
    """The checkpoint of a shard, and the prepared one.

    If nothing was checkpointed, `checkpoint` is the place to begin: `initial` if one was recorded with the shard, else
    the place that the reader was given. `extra` are other fields.
    """

    shard: str
    checkpoint: ExtendedSequenceNumber
    pending: PendingCheckpoint | None = None
    initial: ExtendedSequenceNumber | None = field(default=None, kw_only=True)
    extra: Mapping[str, Json] = field(default_factory=dict, kw_only=True)


def beginning_at(initial: ExtendedSequenceNumber) -> ShardState:
    """Return the state of a new shard that is to begin at a place of its own."""
    return ShardState("", initial, initial=initial)


def checkpointed(recorded: ShardState, new: ExtendedSequenceNumber, seen: ExtendedSequenceNumber) -> ShardState:
    """Return the state after a checkpoint at `new`, which ends a pending checkpoint.

    `seen` is the largest number that was delivered to this owner, and that may be checkpointed.
    """
    _check(recorded, new, seen)
    # At a place to begin nothing was read yet, so that the one that was recorded is still wanted.
    return replace(recorded, checkpoint=new, pending=None, initial=recorded.initial if new.is_start else None)


def prepared(
    recorded: ShardState, new: ExtendedSequenceNumber, seen: ExtendedSequenceNumber, state: bytes | None
) -> ShardState:
    """Return the state with `new` pending, in place of an older pending checkpoint.

    A number that is the checkpoint already is pending only if the application keeps a state with it.
    """
    _check(recorded, new, seen)
    needless = new == recorded.checkpoint and state is None
    return replace(recorded, pending=None if needless else PendingCheckpoint(new, state))


def coalesced(recorded: ShardState, new: ShardState) -> ShardState:
    """Return `new`, the outcome of several checkpoints that are written as one.

    Another user of the same lease may have written a later checkpoint meanwhile. `new` would then go back, and is
    refused.
    """
    # What was delivered was checked when each checkpoint was accepted; here only going back is refused.
    _check(recorded, new.checkpoint, new.checkpoint)
    return new


def _check(recorded: ShardState, new: ExtendedSequenceNumber, seen: ExtendedSequenceNumber) -> None:
    """Raise `IllegalArgumentError` if `new` is below the checkpoint, or above `seen`."""
    if new < recorded.checkpoint:
        raise IllegalArgumentError(
            f"shard {recorded.shard!r:.60}: {new} is below the last checkpoint, {recorded.checkpoint}"
        )
    # A pending number was delivered, perhaps to an earlier owner, so it may be above what this owner has seen. So may
    # the last checkpoint, which may have been that number before its answer was lost.
    if new > max(seen, recorded.checkpoint) and (recorded.pending is None or new != recorded.pending.number):
        raise IllegalArgumentError(
            f"shard {recorded.shard!r:.60}: {new} is above the largest sequence number that was delivered, {seen}"
        )


def encode(recorded: ShardState) -> Value:
    """Return the value of the shard's position."""
    checkpoint, pending = recorded.checkpoint, recorded.pending
    return {
        # A place to begin stands in `initial`, or is the reader's own configuration.
        "checkpoint": None if checkpoint.is_start else _number(checkpoint),
        "pending": None
        if pending is None
        else {
            **_number(pending.number),
            "state": None if pending.state is None else base64.b64encode(pending.state).decode(),
        },
        **({} if recorded.initial is None else {"initial": str(recorded.initial)}),
        **recorded.extra,
    }


def _number(number: ExtendedSequenceNumber) -> dict[str, Json]:
    return {"sequence_number": number.sequence_number, "sub_sequence_number": number.sub_sequence_number}


def decode(shard: str, value: Value | None, initial: ExtendedSequenceNumber) -> ShardState:
    """Return the state in the value of a shard's position.

    Without a checkpoint, the state begins where the value says, or else at `initial`.
    """
    if value is None:
        return ShardState(shard, initial)
    fields = Fields(f"position of shard {shard!r:.60}", dict(value))
    checkpoint, pending, recorded = fields.inner("checkpoint"), fields.inner("pending"), _decode_initial(fields)
    number = recorded or initial if checkpoint is None else _decode_number(checkpoint)
    if checkpoint is not None and number.is_start:
        fields.fail(f"checkpoint: {number} is a place to begin, which only stands in pending")
    return ShardState(
        shard,
        number,
        None if pending is None else PendingCheckpoint(_decode_number(pending), _decode_state(pending)),
        initial=recorded,
        extra=fields.rest,
    )


def _decode_number(fields: Fields) -> ExtendedSequenceNumber:
    try:
        return ExtendedSequenceNumber(fields.text("sequence_number"), fields.integer("sub_sequence_number"))
    except IllegalArgumentError as error:
        fields.fail(str(error))


def _decode_initial(fields: Fields) -> ExtendedSequenceNumber | None:
    value = fields.optional("initial")
    try:
        initial = None if value is None else ExtendedSequenceNumber(fields.check_text("initial", value))
    except IllegalArgumentError as error:
        fields.fail(f"initial: {error}")
    if initial is not None and not initial.is_start:
        fields.fail(f"initial: expected a place to begin, found {initial}")
    return initial


def _decode_state(fields: Fields) -> bytes | None:
    value = fields.take("state")
    try:
        # With `validate`, since Python else skips characters that are no base64, and damage would give another state.
        return None if value is None else base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError):
        fields.fail("state: expected base64 or null")
