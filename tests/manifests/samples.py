"""Values of the model that other tests start from, and strategies that draw any of them."""

import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.json_text import dump
from pyspark_checkpointer.manifests.model import (
    DELTA,
    SNAPSHOT,
    Artifact,
    Catalog,
    CatalogEntry,
    CatalogRef,
    Chain,
    CheckpointId,
    Cost,
    Job,
    Json,
    Kind,
    Manifest,
    Operator,
    Pointer,
    Ref,
    Retired,
    SparkProgress,
    Writer,
)

AT = datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
ID = CheckpointId(42, "1a2b3c4d")
PARENT = CheckpointId(41, "0f0f0f0f")


def digest(text: object) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()


def alone(
    partition: int,
    *,
    operator: str = "totals",
    kind: Kind = SNAPSHOT,
    owner: CheckpointId = PARENT,
    codec: str = codecs.RAW.name,
    size: int = 10,
) -> Artifact:
    """An artifact that is an object of its own."""
    content = digest((partition, kind, owner, size))
    path = object_paths.artifact(operator, partition, owner, kind, content, codec)
    return Artifact(path, kind, 0, size, size, size, 1, content)


def packed(
    lengths: list[int],
    *,
    operator: str = "totals",
    kind: Kind = SNAPSHOT,
    owner: CheckpointId = PARENT,
    codec: str = codecs.RAW.name,
) -> list[Artifact]:
    """Artifacts that stand one after the other in a pack."""
    path = object_paths.pack(operator, owner, digest(("pack", kind, owner, lengths)), codec)
    size, offset, found = sum(lengths), 0, []
    ratio = 1 if codec == codecs.RAW.name else 3
    for number, length in enumerate(lengths):
        found.append(Artifact(path, kind, offset, length, size, ratio * length, 1, digest((path, number))))
        offset += length
    return found


def table_delta(size: int, *, operator: str = "totals", owner: CheckpointId = PARENT) -> Artifact:
    """A delta of a table: all of a pack."""
    content = digest(("pack", owner, size))
    path = object_paths.pack(operator, owner, content, codecs.PARQUET.name)
    return Artifact(path, DELTA, 0, size, size, 3 * size, 1, content)


def empty_snapshot(pack: Artifact) -> Artifact:
    """The snapshot of a table's partition that was empty before this pack."""
    return Artifact(pack.path, SNAPSHOT, 0, 0, pack.size, 0, 0, hashlib.sha256(b"").hexdigest())


_PACK = packed([5, 0, 7], kind=DELTA, owner=ID)

MANIFEST = Manifest(
    id=ID,
    parent=Ref(PARENT, digest("parent")),
    epoch=7,
    created=AT,
    job=Job("query", "run", 7, "1@host/m", SparkProgress("/spark", "v1\n{}\n1", ("0",))),
    operators={
        "totals": Operator(
            partitions=3,
            partitioner="explicit",
            codec=codecs.RAW.name,
            chains={0: (alone(0), _PACK[0]), 2: (alone(2), alone(2, kind=DELTA, owner=ID), _PACK[1], _PACK[2])},
            schema={"fields": ["a"]},
            extra={"operator_colour": "blue"},
        ),
        "naïve": Operator(0, "explicit", codecs.RAW.name),
    },
    positions={"topic": {"0": "1031"}},
    watermark="2024-01-02",
    properties={"model": "v7", "n": [1, 2.5, None, True]},
    cost=Cost(requests=7, objects=3, bytes=54, elapsed_us=2_000, blocked_us=1_000),
    extra={"colour": {"deep": [1]}},
)

POINTER = Pointer(
    writer=Writer(3, "a" * 32),
    committed=Ref(ID, digest("manifest")),
    prepared=Ref(CheckpointId(43, "00000001"), digest("next")),
    boundary=40,
    catalog=CatalogRef(object_paths.catalog(CheckpointId(41, "00000002"), digest("catalog")), digest("catalog")),
    retired=(Retired(38, None, AT), Retired(39, CatalogRef(object_paths.catalog(PARENT, digest(1)), digest(1)), AT)),
    nonce="f" * 32,
    extra={"colour": "blue"},
)

CATALOG = Catalog(
    id=CheckpointId(43, "00000003"),
    entries=(
        CatalogEntry(Ref(CheckpointId(5, "00000004"), digest(5)), "before", AT, "1" * 32),
        CatalogEntry(Ref(CheckpointId(6, "00000005"), digest(6)), None, AT, "2" * 32),
    ),
    extra={"colour": "blue"},
)


def changed(data: bytes, path: str, value: Json) -> bytes:
    """JSON with one field changed, `path` being its keys with dots between; `...` takes the field away."""
    root = json.loads(data)
    *above, last = [int(part) if part.lstrip("-").isdigit() else part for part in path.split(".")]
    place: Any = root
    for part in above:
        place = place[part] if isinstance(place, list) else place[str(part)]
    last = last if isinstance(place, list) else str(last)
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return dump(root)


def sealed(data: bytes) -> bytes:
    """A pointer's JSON with a digest that fits."""
    body = data.rpartition(b',"digest":"')[0]
    return body + b',"digest":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


# ---- anything that can be written -----------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
entries = st.builds("{}/{}".format, st.text("azAZ09_", min_size=1, max_size=8), st.integers(0, 10**18 - 1))
progress = st.none() | st.builds(
    SparkProgress,
    texts,
    texts.map("v1\n{}".__add__),
    st.lists(texts, max_size=2).map(tuple),
    st.dictionaries(entries, texts, max_size=2),
    st.dictionaries(st.text("azAZ09_", min_size=1, max_size=8), texts, max_size=2),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
extras = st.dictionaries(st.text("xyz_", min_size=1, max_size=4).map("x_".__add__), json_values, max_size=2)
nonces = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
hexes = st.text("0123456789abcdef", min_size=8, max_size=8)
digests = st.integers().map(digest)
ids = st.builds(CheckpointId, st.integers(1, 9_999_999_999), hexes)
refs = st.builds(Ref, ids, digests)
zones = st.sampled_from([UTC, timezone(timedelta(hours=-9)), timezone(timedelta(hours=5, minutes=45))])
times = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=zones)
names = (
    st.text(
        st.characters(exclude_categories=["Cs", "Cc", "Cf", "Zl", "Zp", "Zs"], exclude_characters="/\\"), max_size=12
    )
    .map("n".__add__)
    .filter(lambda name: len(name.encode()) < 50)
)


@st.composite
def catalog_refs(draw: st.DrawFn) -> CatalogRef:
    content = draw(digests)
    return CatalogRef(object_paths.catalog(draw(ids), content), content)


@st.composite
def pointers(draw: st.DrawFn) -> Pointer:
    committed = draw(st.none() | st.builds(Ref, st.builds(CheckpointId, st.integers(1, 10**9), hexes), digests))
    sequence = committed.id.sequence if committed else 0
    boundary = draw(st.integers(1, max(sequence, 1)))
    prepared = draw(st.none() | st.builds(Ref, st.builds(CheckpointId, st.just(sequence + 1), hexes), digests))
    taken = {str(ref.id) for ref in (committed, prepared) if ref}
    return Pointer(
        writer=Writer(draw(st.integers(1, 2**62)), draw(nonces)),
        committed=committed,
        prepared=prepared,
        boundary=boundary,
        catalog=draw(st.none() | catalog_refs().filter(lambda ref: str(object_paths.owner(ref.path)) not in taken)),
        retired=tuple(
            draw(st.lists(st.builds(Retired, st.integers(1, boundary), st.none() | catalog_refs(), times), max_size=3))
        ),
        nonce=draw(nonces),
        extra=draw(extras),
    )


@st.composite
def chains(draw: st.DrawFn, operator: str, partition: int, codec: str, owner: CheckpointId) -> Chain:
    if codec == codecs.PARQUET.name:
        sizes = st.integers(1, 99)
        deltas = [table_delta(draw(sizes), operator=operator, owner=owner) for _ in range(draw(st.integers(0, 3)))]
        whole = alone(partition, operator=operator, owner=owner, codec=codec, size=draw(sizes))
        return (empty_snapshot(deltas[0]) if deltas and draw(st.booleans()) else whole, *deltas)
    found: list[Artifact] = []
    for kind in [SNAPSHOT, *[DELTA] * draw(st.integers(0, 3))]:
        if draw(st.booleans()):
            found.append(
                alone(partition, operator=operator, kind=kind, owner=owner, codec=codec, size=draw(st.integers(0, 99)))
            )
        else:
            pack = packed(
                draw(st.lists(st.integers(0, 99), min_size=1, max_size=4)),
                operator=operator,
                kind=kind,
                owner=owner,
                codec=codec,
            )
            found.append(draw(st.sampled_from(pack)))
    return tuple(found)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    checkpoint = draw(ids)
    owner = CheckpointId(draw(st.integers(1, checkpoint.sequence)), draw(hexes))
    operators = {}
    for name in draw(st.sets(names, max_size=3)):
        codec = draw(st.sampled_from([*codecs.CODECS]))
        limits = codecs.CODECS[codec]
        partitions = draw(st.integers(limits.min_partitions, limits.max_partitions))
        numbers = draw(st.sets(st.integers(0, partitions - 1), max_size=4)) if partitions else set()
        operators[name] = Operator(
            partitions=partitions,
            partitioner=codecs.CODECS[codec].partitioner,
            codec=codec,
            chains={number: draw(chains(name, number, codec, owner)) for number in numbers},
            schema=draw(json_values),
            extra=draw(extras),
        )
    older = st.builds(CheckpointId, st.integers(1, max(checkpoint.sequence - 1, 1)), hexes)
    return Manifest(
        id=checkpoint,
        parent=draw(st.none() | st.builds(Ref, older, digests)) if checkpoint.sequence > 1 else None,
        epoch=draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
        created=draw(st.none() | times),
        job=draw(st.none() | st.builds(Job, texts, texts, st.integers(0, 2**63 - 1), st.none() | texts, progress)),
        operators=operators,
        positions=draw(st.dictionaries(texts, json_values, max_size=3)),
        watermark=draw(json_values),
        properties=draw(st.dictionaries(texts, json_values, max_size=3)),
        cost=draw(st.none() | st.builds(Cost, *[st.integers(0, 2**63 - 1)] * 5)),
        extra=draw(extras),
    )


catalogs = st.builds(
    Catalog,
    ids,
    st.lists(
        st.builds(CatalogEntry, refs, st.none() | names, times, nonces),
        min_size=1,
        max_size=4,
        unique_by=(lambda entry: entry.name or entry.ref, lambda entry: entry.ref.id),
    ).map(tuple),
    extras,
).filter(lambda catalog: all(entry.ref.id != catalog.id for entry in catalog.entries))
