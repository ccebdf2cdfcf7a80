"""How far the consumers of a stream are, and who reads which partition: small objects, as values and as bytes.

They are changed in place, by compare-and-swap alone, and each ends in a digest of itself. Nothing else names them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from pyspark_checkpointer.manifests.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.json_fields import Fields, check_json, dump_sealed, format_time
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, Json
from pyspark_checkpointer.manifests.shown import show

MAX_OWNERSHIP = 16 << 20
"""Bytes of the ownership of one group: some 60,000 partitions."""

MAX_POSITION = 256 << 10
"""Bytes of the position of one partition, with what an application keeps beside it."""

MAX_MARKER = 64 << 10

_NOTHING: Mapping[str, Json] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Row:
    """One partition's owner. `epoch` is one more with each change of owner; `etag` is new with each claim or renewal.

    `owner` is empty where nobody has it. `asked_by` is who asked for it while somebody else has it. A partition that
    is `finished` has nothing more to read and needs no owner. `modified` is for people, and for those who ask for it;
    `lease_ms`, in milliseconds, is how long others wait for a new `etag`, 0 where that is not recorded.
    """

    partition: str
    owner: str
    epoch: int
    etag: str
    modified: datetime
    lease_ms: int = 0
    asked_by: str = ""
    finished: bool = False
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who reads which partition, for one group of consumers."""

    rows: Mapping[str, Row]
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Position:
    """How far one partition is. `value` belongs to the interface; null where nothing was recorded.

    `epoch` and `lease` are of the only lease that may write it: the number puts leases in order, and the text, drawn
    for this one, tells it from another of that number after the group was deleted. 0 and empty where anybody may.
    """

    partition: str
    epoch: int
    value: Mapping[str, Json] | None
    modified: datetime
    lease: str = ""
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Marker:
    """That the positions of a folder were created, some of them perhaps not yet, and when."""

    created: datetime
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


def encode_ownership(ownership: Ownership, nonce: str) -> bytes:
    """Return the bytes of an ownership. `nonce` is never used again, so that no two versions are equal.

    `IllegalArgumentError` where a number is one that nobody could read again.
    """
    for row in ownership.rows.values():
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
    fields = _parse(path, data, "ownership")
    rows = [_decode_row(path, value) for value in fields.items("rows")]
    fields.text("nonce")
    by_partition = {row.partition: row for row in rows}
    if len(by_partition) != len(rows):
        fields.fail("a partition stands twice")
    return Ownership(by_partition, extra=dict(fields.rest()))


def _decode_row(path: str, value: Json) -> Row:
    fields = Fields(f"{path}: row", value)
    return Row(
        partition=fields.text("partition"),
        owner=fields.text("owner"),
        epoch=fields.integer("epoch"),
        etag=fields.text("etag"),
        modified=fields.time("modified"),
        lease_ms=fields.integer("lease_ms"),
        asked_by=fields.text("asked_by"),
        finished=fields.boolean("finished"),
        extra=fields.rest(),
    )


def encode_position(position: Position, nonce: str) -> bytes:
    """Return the bytes of a position; `IllegalArgumentError` where its value is nothing that JSON can carry."""
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
    fields = _parse(path, data, "position")
    partition, epoch, lease = fields.text("partition"), fields.integer("epoch"), fields.text("lease")
    value = fields.take("value")
    if value is not None and not isinstance(value, dict):
        fields.fail(f"value: expected an object or null, found {show(value)}")
    modified = fields.time("modified")
    fields.text("nonce")
    return Position(partition, epoch, value, modified, lease, extra=dict(fields.rest()))


def _check_number(what: str, number: int) -> None:
    if not 0 <= number < 2**63:
        raise IllegalArgumentError(f"{what}: expected an integer from 0 to 2**63 - 1, found {show(number)}")


def encode_marker(marker: Marker, nonce: str) -> bytes:
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
    fields = _parse(path, data, "store")
    created = fields.time("created")
    fields.text("nonce")
    return Marker(created, extra=dict(fields.rest()))


def _parse(path: str, data: bytes, kind: str) -> Fields:
    fields = Fields.parse_sealed(path, data)
    if (found := fields.text("kind")) != kind:
        fields.fail(f"expected the kind {kind!r}, found {found!r:.60}")
    return fields
