"""Define the values that a store is made of.

They are frozen, are compared by content, and have no behaviour except to give their own text and parts.

Pointer ──> Manifest ──> Operator ──> chain of Artifact      one chain for each partition
   └──────> Catalog                                          checkpoints kept besides the recent history
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import Any, Literal, Self

from pyspark_checkpointer.manifests.errors import IllegalArgumentError

FORMAT_VERSION = 1

Kind = Literal["snapshot", "delta"]
SNAPSHOT: Kind = "snapshot"
DELTA: Kind = "delta"

Json = Any
"""A value that JSON can carry."""

# Not \d, which takes digits of every script: all digits of the format are ASCII.
_ID = re.compile(r"([0-9]{10})-([0-9a-f]{8})")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """`<sequence, 10 digits>-<8 hex, random>`.

    Ids sort by age. A new id is drawn for each attempt at a checkpoint.

    Examples:
        >>> from pyspark_checkpointer.manifests.model import CheckpointId
        >>> str(CheckpointId(42, "1a2b3c4d"))
        '0000000042-1a2b3c4d'
    """

    sequence: int
    """The sequence, from 1. It is higher than that of the checkpoint below it."""
    suffix: str
    """Eight hexadecimal digits, drawn at random."""

    def __str__(self) -> str:
        return f"{self.sequence:010d}-{self.suffix}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the id that a text is.

        Args:
            text: The whole id, as `str()` wrote it.

        Raises:
            IllegalArgumentError: The text is no id.

        Examples:
            >>> CheckpointId.parse("0000000042-1a2b3c4d").sequence
            42
        """
        match = _ID.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise IllegalArgumentError(f"not a checkpoint id: {text!r:.80} (expected 0000000042-1a2b3c4d)")
        return cls(int(match[1]), match[2])


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a manifest: its id, and the SHA-256 of its bytes.

    So no other manifest can take its place.
    """

    id: CheckpointId
    digest: str


@dataclass(frozen=True, slots=True)
class Tail:
    """The last `length` bytes of an object and their SHA-256.

    With them a reader can verify parts that are read alone.
    """

    length: int
    digest: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """The place of one snapshot or delta of one partition in the store.

    It also says what its stored bytes must be.
    """

    path: str
    """The path of the object, below the root."""
    kind: Kind
    """"snapshot" or "delta"."""
    offset: int
    """Where the stored bytes begin in the object."""
    length: int
    """How many bytes are stored."""
    size: int
    """Bytes of the whole object."""
    raw_size: int
    """Bytes once they are decompressed."""
    records: int
    """How many records they hold."""
    digest: str
    """The SHA-256 of the stored bytes, in hex."""
    tail: Tail | None = None
    """The end of the object if parts of it can be read alone, or None."""


Chain = tuple[Artifact, ...]
"""One snapshot, then deltas, oldest first.

A partition's state is made of all of them.
"""


@dataclass(frozen=True, slots=True)
class Segment:
    """The place of a list of patches to an operator's chains.

    `entries` is the number of partitions it touches.
    """

    path: str
    size: int
    raw_size: int
    entries: int


@dataclass(frozen=True, slots=True)
class Patch:
    """A change to one partition's chain.

    The chain keeps its first `keep` artifacts, then `added` is appended.
    """

    keep: int
    added: Chain


Patches = Mapping[int, Patch]


@dataclass(frozen=True, slots=True)
class Operator:
    """The state of one operator: a chain for each partition that has state.

    `partitions` is how many partitions keys are spread over by `partitioner`. If the chains are too many for the
    manifest, they are in `segments`. `patches` holds the content of each segment after it was loaded.
    """

    partitions: int
    partitioner: str
    codec: str
    chains: Mapping[int, Chain] = field(default_factory=dict)
    schema: Json = None
    segments: tuple[Segment, ...] = ()
    patches: tuple[Patches, ...] = field(default=(), compare=False, repr=False)
    extra: Mapping[str, Json] = field(default_factory=dict)

    def artifacts(self) -> Iterator[Artifact]:
        """Return the artifacts of all chains.

        One that several partitions share comes several times.
        """
        return chain.from_iterable(self.chains.values())


@dataclass(frozen=True, slots=True)
class SparkProgress:
    """The part of Spark's own checkpoint needed to begin again after a batch.

    `location` is where that checkpoint was. `offsets` is the text of its file `offsets/<batch id>`: how far the batch
    reads each source. `before` are the offsets of the batch before, a line for each source; empty for batch 0. `lists`
    has the SHA-256 of the last entries of Spark's lists of files at `offsets` and `before`, by `<source>/<entry>`.
    `gone` has the last offsets of named sources that earlier batches read and this batch lacks.
    """

    location: str
    offsets: str
    before: tuple[str, ...]
    lists: Mapping[str, str] = field(default_factory=dict, hash=False)
    gone: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Job:
    """The batch that wrote a checkpoint, and the process of its driver.

    The batch is given by Spark's ids.
    """

    query_id: str
    """The id of the streaming query, which lives in its `checkpointLocation`."""
    run_id: str
    """The id of its run, which is new with each start."""
    batch_id: int
    """The number of the batch, from 0."""
    driver: str | None = None
    """The process of the driver, or None."""
    spark: SparkProgress | None = None
    """Where Spark's progress is, and the offsets of the batch, or None."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The requests, bytes and microseconds that a checkpoint cost.

    They are counted until its manifest was encoded.

    `requests` counts the requests to the store so far. It also counts those that still follow: the PUTs beside the
    manifest, the PUT of the manifest, and the swap. `objects` and `bytes` count what was stored under the checkpoint's
    id, without the manifest. `elapsed_us` is the time since the attempt was begun, by a clock that only goes forward;
    `blocked_us` is the part of this time that the caller spent in calls that belong to the attempt.
    """

    requests: int
    objects: int
    bytes: int
    elapsed_us: int
    blocked_us: int


ClockSource = Literal["batch", "job"]


@dataclass(frozen=True, slots=True)
class Clock:
    """The job's clock at a checkpoint, by which rows of tables expire.

    `at` never goes back from one checkpoint to the next. `source` says who moves it: "batch" for the time that Spark
    recorded for each batch, "job" for the job itself.
    """

    at: datetime
    source: ClockSource


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of everything in one checkpoint.

    A restore needs no other manifest.
    """

    id: CheckpointId
    """The id of the checkpoint."""
    parent: Ref | None = None
    """The checkpoint below it, by id and digest; None for the first."""
    epoch: int | None = None
    """The number that the job gave it, such as Spark's batch id, or None."""
    created: datetime | None = None
    """When it was made, in UTC, by the writer's clock, or None."""
    job: Job | None = None
    """The streaming query that made it, and its batch, or None."""
    operators: Mapping[str, Operator] = field(default_factory=dict)
    """The state of each operator, by its name."""
    positions: Mapping[str, Json] = field(default_factory=dict)
    """Source positions, JSON values by name."""
    watermark: Json = None
    """The watermark of the job, a JSON value, or None."""
    properties: Mapping[str, Json] = field(default_factory=dict)
    """Properties of the job's own, JSON values by name."""
    clock: Clock | None = None
    """The job's clock, by which rows expire, or None."""
    cost: Cost | None = None
    """The requests, bytes and time that it cost, or None where that was not recorded."""
    extra: Mapping[str, Json] = field(default_factory=dict)
    """Fields of a later version of the format, which are kept as they are."""


def share_operators(manifest: Manifest, neighbour: Manifest | None) -> Manifest:
    """Return an equal manifest that shares what is equal with its neighbour.

    From one checkpoint to the next most operators stay as they are, and of the others most chains do.
    """
    if neighbour is None:
        return manifest
    known = neighbour.operators
    shared = {name: _share_chains(op, known[name]) if name in known else op for name, op in manifest.operators.items()}
    return replace(manifest, operators=shared)


def _share_chains(operator: Operator, known: Operator) -> Operator:
    # What was loaded of segments takes no part in a comparison.
    if operator.patches or known.patches:
        return operator
    # For Python 1, 1.0 and true are equal; in JSON they are not.
    if operator == known and repr((operator.schema, operator.extra)) == repr((known.schema, known.extra)):
        return known
    chains = {}
    for number, own in operator.chains.items():
        other = known.chains.get(number)
        chains[number] = own if other is None or other != own else other
    return replace(operator, chains=chains)


def without_content(manifest: Manifest) -> Manifest:
    """Return a manifest without what takes much memory.

    Its place in the history stays, with its epoch and its times.
    """
    return replace(manifest, job=None, operators={}, positions={}, watermark=None, properties={}, extra={})


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer that may move the pointer.

    It has the epoch of its takeover, and a random name.
    """

    epoch: int
    instance: str


@dataclass(frozen=True, slots=True)
class CatalogRef:
    """A reference to a catalog; its digest is in the path too."""

    path: str
    digest: str


@dataclass(frozen=True, slots=True)
class Retired:
    """A boundary and catalog that were replaced, and when.

    Readers may still use the checkpoints that these kept.
    """

    boundary: int
    catalog: CatalogRef | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Pointer:
    """The whole mutable state of a store, as `_latest` holds it."""

    writer: Writer
    committed: Ref | None
    prepared: Ref | None
    boundary: int
    catalog: CatalogRef | None
    retired: tuple[Retired, ...]
    nonce: str
    extra: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A checkpoint kept outside the contiguous history.

    It is a savepoint where it has a name.
    """

    ref: Ref
    name: str | None
    created: datetime
    nonce: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """The checkpoints that are kept besides the recent history.

    It is written once, under an id of its own.
    """

    id: CheckpointId
    entries: tuple[CatalogEntry, ...] = ()
    extra: Mapping[str, Json] = field(default_factory=dict)
