"""Encode and decode followers of tables as JSON.

They say who reads which change feeds, and how far. One small object of a root holds all of them. It is changed in
place, by compare-and-swap alone, and ends in a digest of itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from pyspark_checkpointer.manifests.json_fields import Fields, Table, nullable
from pyspark_checkpointer.manifests.json_text import dump_sealed, format_time
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, CheckpointId, Json

MAX_FOLLOWERS = 1 << 20
"""Bytes of the followers of a root, at most: some thousands."""

_NOTHING: Mapping[str, Json] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FollowerPosition:
    """A follower of a table, and how far it has processed the changes.

    It has processed all changes up to the checkpoint. Without a checkpoint nothing was read yet. `modified` is for
    people.
    """

    name: str
    operator: str
    checkpoint: CheckpointId | None
    modified: datetime
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class FollowerPositions:
    """All followers of a root, by name."""

    by_name: Mapping[str, FollowerPosition] = field(default_factory=dict)
    extra: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)


def encode_followers(positions: FollowerPositions, nonce: str) -> bytes:
    """Return the bytes of all followers.

    `nonce` is never used again, so that no two versions are equal.
    """
    return dump_sealed(
        {
            "format_version": FORMAT_VERSION,
            "kind": "followers",
            "followers": [_encode(follower) for follower in positions.by_name.values()],
            "nonce": nonce,
            **positions.extra,
        }
    )


def _encode(follower: FollowerPosition) -> Json:
    return {
        "name": follower.name,
        "operator": follower.operator,
        "checkpoint": None if follower.checkpoint is None else str(follower.checkpoint),
        "modified": format_time(follower.modified),
        **follower.extra,
    }


def decode_followers(path: str, data: bytes) -> FollowerPositions:
    """Return the followers at `path`, its digest compared."""
    fields = Fields.parse_sealed(path, data)
    if (found := fields.text("kind")) != "followers":
        fields.fail(f"expected the kind 'followers', found {found!r:.60}")
    followers = [_decode(path, value) for value in fields.items("followers")]
    by_name = _by_name(followers)
    # A dict would keep the last of two positions without a word.
    if len(by_name) != len(followers):
        fields.fail("a follower stands twice")
    # Taken out: what is left becomes `extra`, and a nonce there would be written again in place of a new one.
    fields.filled_text("nonce")
    return FollowerPositions(by_name, extra=dict(fields.rest))


def _by_name(followers: Iterable[FollowerPosition]) -> dict[str, FollowerPosition]:
    return {follower.name: follower for follower in followers}


def _decode(path: str, value: Json) -> FollowerPosition:
    fields = Fields(f"{path}: follower", value)
    found = fields.read(_FOLLOWER)
    return FollowerPosition(extra=dict(fields.rest), **found)


_FOLLOWER: Table = {
    "name": Fields.check_filled_text,
    "operator": Fields.check_filled_text,
    "checkpoint": nullable(Fields.check_id),
    "modified": Fields.check_time,
}

__all__ = ["MAX_FOLLOWERS", "FollowerPosition", "FollowerPositions", "decode_followers", "encode_followers"]
