"""Keep long lists of chains as a stack of patches, the oldest first.

So a commit writes only what it changed.

An operator with many chains, or with many deltas of which a commit changes few, keeps them in segments. The first
segment holds whole chains; each later one holds, for the partitions it touches, how much of the chain below to keep and
what to append. The writer decides which operators have segments, and which segments become one: it hands these
decisions in as functions. So an entry is written again a few times in its life, and not at each commit.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from operator import is_not
from typing import NamedTuple

import zstandard

from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.chain_json import ArtifactReader, ObjectTable, decode_partitions, is_well_formed
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.errors import MalformedError
from pyspark_checkpointer.manifests.json_fields import Fields, Table
from pyspark_checkpointer.manifests.json_text import dump
from pyspark_checkpointer.manifests.model import (
    FORMAT_VERSION,
    Artifact,
    Chain,
    CheckpointId,
    Operator,
    Patch,
    Patches,
    Segment,
)
from pyspark_checkpointer.manifests.shown import show
from pyspark_checkpointer.manifests.zstd import decompress

Fits = Callable[[Mapping[int, Chain], Mapping[int, Chain]], bool]
"""Function that returns whether the manifest itself holds an operator's chains.

It gets these chains and those of the parent.
"""

FoldStart = Callable[[Sequence[int]], int]
"""Function that returns the first of the segments that become one.

It gets the number of entries of each segment, the newest last.
"""


class SegmentObject(NamedTuple):
    """The path and the stored bytes of a segment that is to be written."""

    path: str
    data: bytes


def encode_segment(owner: CheckpointId, operator: str, patches: Patches) -> tuple[Segment, SegmentObject]:
    """Return the segment's reference and its stored bytes."""
    table = ObjectTable()
    rows = {str(p): [patch.keep, [table.row(a) for a in patch.added]] for p, patch in sorted(patches.items())}
    raw = dump({"format_version": FORMAT_VERSION, "operator": operator, "objects": table.rows, "patches": rows})
    data = zstandard.ZstdCompressor(level=3).compress(raw)
    path = object_paths.segment(owner, sha256(data))
    return Segment(path, len(data), len(raw), len(rows)), SegmentObject(path, data)


_SEGMENT: Table = {"operator": Fields.check_text, "objects": Fields.check_items, "patches": Fields.check_mapping}


def decode_segment(segment: Segment, operator: str, partitions: int, codec: str, data: bytes) -> dict[int, Patch]:
    """Return the patches of a segment whose size and digest were checked."""
    fields = Fields.parse_compact(segment.path, decompress(segment.path, data, segment.raw_size))
    found = fields.read(_SEGMENT)
    # The path of a segment does not tell whose it is.
    if found["operator"] != operator:
        fields.fail(f"expected operator {operator!r}, found {found['operator']!r:.60}")
    owner = object_paths.owner(segment.path)
    reader = ArtifactReader(fields, found["objects"], operator, codec, owner.sequence if owner else 0)
    values = found["patches"]
    if len(values) != segment.entries:
        fields.fail(f"expected {segment.entries} entries, found {len(values)}")
    patches = {}
    for partition, value in zip(decode_partitions(fields, values, partitions), values.values(), strict=True):
        if not isinstance(value, list) or len(value) != 2:
            fields.fail(f"partition {partition}: expected [keep, rows], found {show(value)}")
        keep = fields.check_integer("keep", value[0])
        patches[partition] = Patch(keep, reader.chain(partition, value[1]))
    reader.refuse_unused()
    return patches


def load(name: str, operator: Operator, patches: Sequence[Patches]) -> Operator:
    """Return the operator with the chains that its segments describe.

    `name` is the operator in error messages.
    """
    if len(patches) > 1:
        _check_objects(name, patches)
    chains: dict[int, Chain] = {}
    for patch_of in patches:
        for partition, patch in patch_of.items():
            below = chains.get(partition, ())
            if patch.keep > len(below):
                raise MalformedError(f"{name}: partition {partition}: keeps {patch.keep} of {len(below)} artifacts")
            chain = below[: patch.keep] + patch.added
            if not chain:
                # A patch of `[0, []]` leaves no chain, and a partition without one has no state.
                chains.pop(partition, None)
            elif not is_well_formed(chain):
                raise MalformedError(f"{name}: partition {partition}: a chain is one snapshot, then deltas")
            else:
                chains[partition] = chain
    return replace(operator, chains=chains, patches=tuple(patches))


def _check_objects(name: str, patches: Sequence[Patches]) -> None:
    """Raise `MalformedError` if two segments disagree about an object.

    A range of an object is read without its size, so nobody else would notice.
    """
    known: dict[str, Artifact] = {}
    for patch_of in patches:
        for patch in patch_of.values():
            for artifact in patch.added:
                one = known.setdefault(artifact.path, artifact)
                if one.size != artifact.size or one.tail != artifact.tail:
                    raise MalformedError(
                        f"{name}: two segments disagree about {artifact.path}: {one.size} bytes, and {artifact.size}, "
                        f"or its tail: {one.tail}, and {artifact.tail}"
                    )


def spill(
    owner: CheckpointId,
    name: str,
    operator: Operator,
    parent: Operator | None,
    known: Collection[int] | None = None,
    *,
    fits: Fits,
    fold_start: FoldStart,
) -> tuple[Operator, list[SegmentObject]]:
    """Return the operator to write, and the segments beside its manifest.

    `parent` is the operator of that name in the parent, with its chains loaded. `known` has all partitions whose chains
    may differ from those there; None if that is not known. `fits` decides whether the manifest itself holds the chains.
    `fold_start` decides which of the parent's segments become one with the new one.
    """
    if fits(operator.chains, parent.chains if parent is not None else {}):
        return replace(operator, segments=(), patches=()), []
    if parent is not None and (parent.codec != operator.codec or parent.partitions > operator.partitions):
        parent = None  # this operator could not have the chains of its segments
    # Where the parent has its chains in the manifest, there is no segment to build on, and the first one holds
    # everything.
    old = parent.chains if parent is not None and parent.segments else {}
    stack = list(zip(parent.segments, parent.patches, strict=True)) if old and parent is not None else []
    # `known` tells what differs from the parent's chains. On top of no segments every chain has to be written.
    changes = _changes(old, operator.chains, known if old else None)
    if not changes:
        # Named as the parent names them: a commit that changes nothing here writes no segment.
        return replace(operator, segments=tuple(s for s, _ in stack), patches=tuple(p for _, p in stack)), []
    first = fold_start([len(patches) for _, patches in stack] + [len(changes)])
    # The newest is laid over the one below it first, and so on down to the oldest that is taken in.
    merged: Patches = changes
    for _, below in reversed(stack[first:]):
        merged = _merge(below, merged)
    if first == 0:
        # Nothing is below the first segment, so a partition that is gone needs no entry in it.
        merged = {p: patch for p, patch in merged.items() if patch.added}
    segment, stored = encode_segment(owner, name, merged)
    kept = stack[:first]
    return (
        replace(
            operator,
            segments=(*(s for s, _ in kept), segment),
            patches=(*(p for _, p in kept), merged),
        ),
        [stored],
    )


def touched(old: Mapping[int, Chain], new: Mapping[int, Chain], known: Collection[int] | None = None) -> list[int]:
    """Return the partitions of `new` whose chains are other objects in `old`.

    If `known` is given, only those partitions are looked at.
    """
    if new is old:
        return []
    if known is not None:
        return [partition for partition in known if partition in new and old.get(partition) is not new[partition]]
    # Chains that a commit did not touch are the very objects of the parent. Comparing them by value would cost much
    # more, at each commit.
    return [*compress(new, map(is_not, map(old.get, new), new.values()))]


def _changes(old: Mapping[int, Chain], new: Mapping[int, Chain], known: Collection[int] | None) -> dict[int, Patch]:
    """Return the patches that turn the chains `old` into `new`.

    Only the `known` partitions can differ.
    """
    own = touched(old, new, known)
    # Counted from the lengths and the changed partitions: the difference of two large sets is only built where
    # something is gone.
    gone = len(old) - len(new) + sum(partition not in old for partition in own)
    changes = {p: Patch(0, ()) for p in (old.keys() - new.keys() if gone else ())}
    for partition in own:
        below, chain = old.get(partition, ()), new[partition]
        keep = next(
            (i for i, (a, b) in enumerate(zip(below, chain, strict=False)) if a != b),
            min(len(below), len(chain)),
        )
        if keep < len(chain) or keep < len(below):
            changes[partition] = Patch(keep, chain[keep:])
    return changes


def _merge(below: Patches, above: Patches) -> dict[int, Patch]:
    """Return patches that do what `below` and then `above` do."""
    merged = dict(below)
    for partition, patch in above.items():
        under = below.get(partition)
        # The lower patch added what the upper one keeps beyond that point, so that the merged patch has to add it.
        if under is not None and patch.keep > under.keep:
            patch = Patch(under.keep, under.added[: patch.keep - under.keep] + patch.added)
        merged[partition] = patch
    return merged
