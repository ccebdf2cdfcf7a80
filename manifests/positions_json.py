"""Encode and decode positions of stream consumers as JSON.

The module also handles which consumer reads which partition. These small objects are changed in place, by
compare-and-swap alone. Each ends in a digest of itself, since no other object names it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from pyspark_checkpointer.manifests.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.json_fields import Fields, Table
from pyspark_checkpointer.manifests.json_text import check_json, dump_sealed, format_time
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, Json
from pyspark_checkpointer.manifests.shown import show

MAX_OWNERSHIP = 16 << 20
"""Bytes of the ownership of one group, at most: some 60,000 partitions."""

MAX_POSITION = 256 << 10
"""Bytes of the position of one partition, at most.

They include what an application keeps beside it.
"""

MAX_PARTITION = 16 << 10
"""Characters of the name of a partition, at most: all of them have to fit into one object."""

MAX_MARKER = 64 << 10
"""Bytes of a marker, at most."""

_NOTHING: Mapping[str, Json] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Row:
    """One partition's owner."""

    partition: str
    """The id of the partition or shard."""
    owner: str
    """The consumer that owns it; empty if there is none."""
    epoch: int
    """One more with each change of owner."""
    etag: str
    """A text that is new with each claim or renewal."""
    modified: datetime
    """When it was written last, in UTC. For people, and for programs that ask for it."""
    lease_ms: int = 0
    """How long others wait for a new `etag`, in milliseconds; 0 if that is not recorded."""
    asked_by: str = ""
    """The consumer that asked for it while another one has it; empty if none did."""
    finished: bool = False
    """True if it has nothing more to read and needs no owner."""
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)
    """Fields of a later version of the format, which are kept as they are."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owners of all partitions, for one group of consumers."""

    rows: Mapping[str, Row]
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Position:
    """The position of one partition.

    Its `value` belongs to the interface; it is null if nothing was recorded. `epoch` and `lease` name the only lease
    that may write it. The number puts leases in order. The text is drawn for this lease. It tells this lease from
    another one with the same number after the group was deleted. If anybody may write the position, they are 0 and
    empty.
    """

    partition: str
    epoch: int
    value: Mapping[str, Json] | None
    modified: datetime
    lease: str = ""
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Marker:
    """A mark that the positions of a folder were created, and when.

    Perhaps not all of them are created yet.
    """

    created: datetime
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


def encode_ownership(ownership: Ownership, nonce: str) -> bytes:
    """Return the bytes of an ownership.

    `nonce` is never used again, so that no two versions are equal.

    `IllegalArgumentError` for a number that could not be read again.
    """
    for row in ownership.rows.values():
        # Checked before it is written: a number that no reader takes would keep the whole group from reading who owns
        # what.
        _check_number(f"partition {row.partition!r:.60}: epoch", row.epoch)
        _check_number(f"partition {row.partition!r:.60}: lease_ms", row.lease_ms)
    return dump_sealed(
        {
            "format_version": FORMAT_VERSION,
            "kind": "ownership",
            "rows": [
                {
                    "partition": row.partition,
                    "owner": row.owner,
                    "epoch": row.epoch,
                    "etag": row.etag,
                    "modified": format_time(row.modified),
                    "lease_ms": row.lease_ms,
                    "asked_by": row.asked_by,
                    "finished": row.finished,
                    **row.extra,
                }
                for row in ownership.rows.values()
            ],
            "nonce": nonce,
            **ownership.extra,
        }
    )


def decode_ownership(path: str, data: bytes) -> Ownership:
    """Return the ownership at `path`, its digest compared."""
    fields = _parse(path, data, "ownership")
    rows = [_decode_row(path, value) for value in fields.items("rows")]
    # Taken out: what is left becomes `extra`, and a nonce there would be written again in place of a new one.
    fields.filled_text("nonce")
    by_partition = {row.partition: row for row in rows}
    # A dict would keep the last of two owners without a word.
    if len(by_partition) != len(rows):
        fields.fail("a partition stands twice")
    return Ownership(by_partition, extra=dict(fields.rest))


def _decode_row(path: str, value: Json) -> Row:
    fields = Fields(f"{path}: row", value)
    partition = _decode_partition(fields)
    found = fields.read(_ROW)
    return Row(partition=partition, extra=fields.rest, **found)


_ROW: Table = {
    "owner": Fields.check_text,
    "etag": Fields.check_text,
    "asked_by": Fields.check_text,
    "epoch": Fields.check_integer,
    "lease_ms": Fields.check_integer,
    "modified": Fields.check_time,
    "finished": Fields.check_boolean,
}


def _decode_partition(fields: Fields) -> str:
    """Return the name of a partition."""
    name = fields.filled_text("partition")
    if len(name) > MAX_PARTITION:
        fields.fail(f"partition: expected at most {MAX_PARTITION} characters, found {len(name)}: {show(name)}")
    return name


def encode_position(position: Position, nonce: str) -> bytes:
    """Return the bytes of a position.

    Raises `IllegalArgumentError` for a value that JSON cannot carry.
    """
    value = None if position.value is None else dict(position.value)
    _check_number(f"position of partition {position.partition!r:.60}: epoch", position.epoch)
    return dump_sealed(
        {
            "format_version": FORMAT_VERSION,
            "kind": "position",
            "partition": position.partition,
            "epoch": position.epoch,
            "lease": position.lease,
            "value": check_json(f"position of partition {position.partition!r:.60}", value),
            "modified": format_time(position.modified),
            "nonce": nonce,
            **position.extra,
        }
    )


def decode_position(path: str, data: bytes) -> Position:
    """Return the position at `path`, its digest compared."""
    fields = _parse(path, data, "position")
    partition, epoch, lease = _decode_partition(fields), fields.integer("epoch"), fields.text("lease")
    value = fields.take("value")
    if value is not None and not isinstance(value, dict):
        fields.fail(f"value: expected an object or null, found {show(value)}")
    modified = fields.time("modified")
    fields.filled_text("nonce")
    return Position(partition, epoch, value, modified, lease, extra=dict(fields.rest))


def _check_number(what: str, number: int) -> None:
    """Raise `IllegalArgumentError` for a number that does not fit in 64 bits.

    `what` says which number it is.
    """
    if not 0 <= number < 2**63:
        raise IllegalArgumentError(f"{what}: expected an integer from 0 to 2**63 - 1, found {show(number)}")


def encode_marker(marker: Marker, nonce: str) -> bytes:
    """Return the bytes of a marker."""
    return dump_sealed(
        {
            "format_version": FORMAT_VERSION,
            "kind": "store",
            "created": format_time(marker.created),
            "nonce": nonce,
            **marker.extra,
        }
    )


def decode_marker(path: str, data: bytes) -> Marker:
    """Return the marker at `path`, its digest compared."""
    fields = _parse(path, data, "store")
    created = fields.time("created")
    fields.filled_text("nonce")
    return Marker(created, extra=dict(fields.rest))


def _parse(path: str, data: bytes, kind: str) -> Fields:
    """Return the fields of an object of a kind.

    Raises `MalformedError` for an object of another kind.
    """
    fields = Fields.parse_sealed(path, data)
    # All kinds are small sealed objects, so one that was copied to the path of another has a good digest.
    if (found := fields.text("kind")) != kind:
        fields.fail(f"expected the kind {kind!r}, found {found!r:.60}")
    return fields
