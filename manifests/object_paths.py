"""Make every path of a store, and tell what a path means.

Paths are relative to the root, with `/` between parts. Names from users are checked, then percent-encoded. So no name
can lead out of the root or to a path with another purpose.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Literal
from urllib.parse import quote, unquote

from pyspark_checkpointer.manifests.codecs import CODECS
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests.model import CheckpointId, Kind

LATEST = "_latest"
KEYS = "_keys"
"""The object with the keys of an encrypted root."""
SIGNERS = "_signers"
"""The object that says whose signatures count in a signed root."""
SIGNED = ".signed"
"""The end of the stored name of a signed manifest."""

MANIFESTS = "manifests/"
SEGMENTS = "manifests/segments/"
CATALOGS = "catalog/"
ARTIFACTS = "artifacts/"
CONSUMERS = "progress/"
FOLLOWERS = "progress/followers.json"

PATH_CACHE = 256
"""Paths whose meanings are cached.

These are the paths of a small manifest, which is checked at each commit.
"""

NAME_CACHE = 4096
"""Names whose part of a path is cached, such as those of a consumer's partitions."""

MAX_NAME = 160
"""Longest encoded name, in bytes.

The parts of a path stay below the 255 bytes of common file systems.
"""

_CUT = 80
"""Characters that a shortened encoded name keeps."""

_CUT_NAME = re.compile(r".*~[0-9a-f]{64}")

_UNSEEN = re.compile("[\x00-\x1f\x7f-\xa0\xad\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]")
"""Control and formatting characters, which make one name look like another.

The list is part of the format.
"""

_NAME = r"(?P<operator>[A-Za-z0-9_%.~-]+)"
_OWNER = r"(?P<id>(?!0{10})[0-9]{10}-[0-9a-f]{8})"
_DIGEST = r"(?P<digest>[0-9a-f]{64})"
_CODEC = rf"(?P<codec>{'|'.join(map(re.escape, CODECS))})"
_ARTIFACT = re.compile(
    rf"artifacts/{_NAME}/(?P<partition>0|[1-9][0-9]{{0,9}})/{_OWNER}\.(?P<kind>snapshot|delta)\.{_DIGEST}\.{_CODEC}"
)
# `packs` stands where an artifact has its partition. It is no number, so the two never have one path.
_PACK = re.compile(rf"artifacts/{_NAME}/packs/{_OWNER}\.{_DIGEST}\.{_CODEC}")
_MANIFEST = re.compile(rf"manifests/{_OWNER}\.json")
_SEGMENT = re.compile(rf"manifests/segments/{_OWNER}\.{_DIGEST}\.json\.zst")
_CATALOG = re.compile(rf"catalog/{_OWNER}\.{_DIGEST}\.json")

_PART = r"[A-Za-z0-9_%~-][A-Za-z0-9_%.~-]*"
_NAME_COUNTS = {"eventhub": 3, "eventprocessorhost": 2, "kinesis": 1}
"""Names that identify a group of consumers, by interface."""

_POSITION_PATH = re.compile(
    "|".join(
        rf"progress/{interface}(?:/{_PART}){{{names}}}/(?:ownership|store|positions/{_PART})\.json"
        for interface, names in _NAME_COUNTS.items()
    )
)


@dataclass(frozen=True, slots=True)
class ArtifactName:
    """The parts of an artifact's path.

    The path of a pack has neither a partition nor a kind.
    """

    operator: str
    partition: int | None
    id: CheckpointId
    kind: Kind | None
    digest: str
    codec: str


def encode_name(what: str, name: str) -> str:
    """Percent-encode a user's name for one part of a path.

    Raises `IllegalArgumentError` where that is impossible; `what` says whose name it is.
    """
    if not isinstance(name, str) or not name:
        raise IllegalArgumentError(f"{what}: expected a name of at least one character, got {name!r:.60}")
    if name.startswith(".") or "/" in name or "\\" in name or _UNSEEN.search(name):
        raise IllegalArgumentError(
            f"{what} {name!r:.60}: a name must not start with a dot nor hold slashes or control characters"
        )
    encoded = quote(name, safe="")
    # Not cut, unlike names in `encode_part`: the operator's name must be found again from its path.
    if len(encoded) > MAX_NAME:
        raise IllegalArgumentError(
            f"{what} {name[:40]!r}…: {len(encoded)} bytes once encoded, at most {MAX_NAME} are allowed"
        )
    return encoded


def check_partition(partition: int) -> int:
    """Return the number of a partition; `IllegalArgumentError` if it cannot be one."""
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < 2**31:
        raise IllegalArgumentError(f"partition {partition!r:.60}: expected an integer from 0 to 2147483647")
    return int(partition)  # A member of an enum would be written by its own name.


def manifest(checkpoint: CheckpointId) -> str:
    """Return the path of a checkpoint's manifest."""
    return f"{MANIFESTS}{checkpoint}.json"


def manifests(oldest: int, newest: int) -> str:
    """Return the longest prefix that some manifests have in common.

    The manifests are those of these two sequences and of all between them.
    """
    pairs = zip(f"{oldest:010d}", f"{newest:010d}", strict=True)
    return MANIFESTS + "".join(digit for digit, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def segment(owner: CheckpointId, digest: str) -> str:
    """Return the path of a segment that an attempt writes."""
    return f"{SEGMENTS}{owner}.{digest}.json.zst"


def catalog(owner: CheckpointId, digest: str) -> str:
    """Return the path of a catalog that is written under an id."""
    return f"{CATALOGS}{owner}.{digest}.json"


def artifacts(operator: str) -> str:
    """Return the folder of an operator's artifacts, with its slash."""
    return f"{ARTIFACTS}{encode_name('operator', operator)}/"


def artifact(operator: str, partition: int, owner: CheckpointId, kind: Kind, digest: str, codec: str) -> str:
    """Return the path of an artifact that is an object of its own."""
    return f"{artifacts(operator)}{check_partition(partition)}/{owner}.{kind}.{digest}.{codec}"


def pack(operator: str, owner: CheckpointId, digest: str, codec: str) -> str:
    """Return the path of an object that holds several artifacts of an operator."""
    return f"{artifacts(operator)}packs/{owner}.{digest}.{codec}"


def is_manifest(path: str) -> bool:
    """Return whether this is the path of a manifest."""
    return path.startswith(MANIFESTS) and _MANIFEST.fullmatch(path) is not None


def holds_state(path: str) -> bool:
    """Return whether an object holds keys and values, as artifacts and packs do."""
    return path.startswith(ARTIFACTS)


def begins_state(path: str) -> bool:
    """Return whether a state or positions of consumers begin with this object."""
    return path == LATEST or path.startswith(CONSUMERS)


def is_swapped(path: str) -> bool:
    """Return whether an object may be replaced by a swap.

    So it is in an encrypted root, which may hide the names of consumers, and has them in the same folder.
    """
    return path in (KEYS, SIGNERS) or begins_state(path)


def is_ours(path: str) -> bool:
    """Return whether an object shows that a root was begun.

    It does where an encrypted client cannot begin: with positions of consumers alone, or with what is left of a first
    commit that was killed.
    """
    return is_swapped(path) or is_written_once(path)


def group_folder(interface: str, *scope: str) -> str:
    """Return the folder of one group of consumers, with its slash.

    It is made of their interface, then the names that identify the group.
    """
    return CONSUMERS + "".join(f"{encode_part(part)}/" for part in (interface, *scope))


def store(folder: str) -> str:
    """Return the path of a marker in a folder of positions.

    The marker says that the positions were created, even if no position exists yet.
    """
    return f"{folder}store.json"


def ownership(folder: str) -> str:
    """Return the path of the ownership of a group's partitions."""
    return f"{folder}ownership.json"


def positions(folder: str) -> str:
    """Return the folder of a group's positions, with its slash."""
    return f"{folder}positions/"


def position(folder: str, partition: str) -> str:
    """Return the path of the position of a partition."""
    return f"{positions(folder)}{encode_part(partition)}.json"


@dataclass(frozen=True, slots=True)
class PositionPath:
    """The parts of a path below `progress/`.

    Shortened names are as in the path.
    """

    path: str
    group: tuple[str, ...]
    kind: Literal["ownership", "position", "store"]


def parse_position_path(path: str) -> PositionPath | None:
    """Return the parts of a path below `progress/`.

    None for a path that is not of the format.
    """
    if _POSITION_PATH.fullmatch(path) is None:
        return None
    _, interface, *rest = path.removesuffix(".json").split("/")
    names, inside = rest[: _NAME_COUNTS[interface]], rest[_NAME_COUNTS[interface] :]
    if not all(map(_is_part, names)) or not _is_part(inside[-1]):
        return None
    kind = "position" if len(inside) == 2 else inside[0]
    return PositionPath(path, (interface, *map(unquote, names)), kind)  # type: ignore[arg-type]  # by the pattern


def is_position(name: str) -> bool:
    """Return whether an object of this name in the folder of positions is one."""
    return name.endswith(".json") and _is_part(name.removesuffix(".json"))


def _is_part(encoded: str) -> bool:
    """Return whether `encode_part` makes this part of a path of some name."""
    if re.fullmatch(_PART, encoded) is None:
        return False
    if _CUT_NAME.fullmatch(encoded):
        return True
    try:
        return encode_part(unquote(encoded, errors="strict")) == encoded
    except (IllegalArgumentError, UnicodeDecodeError):
        return False


def encode_part(name: str) -> str:
    """Return one part of a path for a name that another system gave.

    The name is any text of at least one character.

    Some names are shortened, and end in a digest of the whole name: those too long for a file system, those that begin
    with a dot, and those that look like a shortened name.
    """
    if not isinstance(name, str) or not name:
        raise IllegalArgumentError(f"{name!r:.60}: expected a name of at least one character")
    return _encode_text(name)


# An update of a consumer makes several paths of the same few names.
@lru_cache(maxsize=NAME_CACHE)
def _encode_text(name: str) -> str:
    try:
        data = name.encode()
    except UnicodeEncodeError:
        raise IllegalArgumentError(f"{name!r:.60}: holds half a character, which no UTF-8 can say") from None
    encoded = quote(name, safe="")
    # A name that looks cut is cut too: otherwise it could have the path of the name that was really cut to it.
    if len(encoded) <= MAX_NAME and not name.startswith(".") and not _CUT_NAME.fullmatch(encoded):
        return encoded
    return f"{encoded[:_CUT].lstrip('.')}~{sha256(data)}"


@lru_cache(maxsize=PATH_CACHE)
def parse_artifact(path: str) -> ArtifactName:
    """Return the parts of an artifact's path; `MalformedError` for any other path."""
    match = _ARTIFACT.fullmatch(path) or _PACK.fullmatch(path)
    if match is None:
        raise MalformedError(f"{path!r:.300}: not the path of an artifact")
    parts = match.groupdict()
    # One name has one folder: `%74otals` would be a second one of `totals` (SPEC.md, "Rejected").
    if not _is_canonical(parts["operator"]):
        raise MalformedError(f"{path!r:.300}: not the path of an artifact")
    partition = parts.get("partition")
    return ArtifactName(
        operator=unquote(parts["operator"]),
        partition=None if partition is None else int(partition),
        id=CheckpointId.parse(parts["id"]),
        kind=parts.get("kind"),  # type: ignore[arg-type]  # the pattern allows the two kinds only
        digest=parts["digest"],
        codec=parts["codec"],
    )


def under(path: str, owner: CheckpointId) -> str:
    """Return the path to which an attempt copies an artifact's object.

    The path is the same except for the id of that attempt.
    """
    name = parse_artifact(path)
    if name.partition is None or name.kind is None:
        return pack(name.operator, owner, name.digest, name.codec)
    return artifact(name.operator, name.partition, owner, name.kind, name.digest, name.codec)


@lru_cache(maxsize=1024)
def _is_canonical(encoded: str) -> bool:
    """Return whether `encode_name` makes this part of a path of some name.

    It never makes `..` or `%2e%2e`.
    """
    try:
        return encode_name("operator", unquote(encoded)) == encoded
    except IllegalArgumentError:
        return False


@lru_cache(maxsize=PATH_CACHE)
def owner(path: str) -> CheckpointId | None:
    """Return the attempt that wrote the object.

    None for a path that is not of the format. Garbage collection deletes no object for which this returns None.
    """
    if path.startswith(ARTIFACTS):
        try:
            return parse_artifact(path).id
        except MalformedError:
            return None  # what is not exactly of the format's form belongs to somebody else, and is never deleted
    match = _MANIFEST.fullmatch(path) or _SEGMENT.fullmatch(path) or _CATALOG.fullmatch(path)
    return None if match is None else CheckpointId.parse(match["id"])


@lru_cache(maxsize=PATH_CACHE)
def is_written_once(path: str) -> bool:
    """Return whether an object is of the format, and never replaced.

    In a signed root a manifest has another name.
    """
    return is_manifest(path.removesuffix(SIGNED)) or owner(path) is not None


def digest_of(path: str) -> str:
    """Return the digest in the path of a segment, catalog or artifact's object.

    Raises `MalformedError` for any other path.
    """
    for pattern in (_ARTIFACT, _PACK, _SEGMENT, _CATALOG):
        if match := pattern.fullmatch(path):
            return match["digest"]
    raise MalformedError(f"{path!r:.300}: expected a path with a digest in it")
