"""Compare two checkpoints: functions of their manifests, with chains loaded."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pyspark_checkpointer.admin.checkpoint_sizes import object_sizes
from pyspark_checkpointer.manifests.model import CheckpointId, Json, Manifest, Operator

DiffType = Literal["added", "removed", "changed"]
KeyDiffType = Literal["inserted", "updated", "deleted", "expired"]


@dataclass(frozen=True, slots=True)
class OperatorDifference:
    """An operator that differs between two checkpoints.

    It names the partitions that differ.
    """

    name: str
    change: DiffType
    added: tuple[int, ...]
    removed: tuple[int, ...]
    changed: tuple[int, ...]
    redefined: tuple[str, ...]
    """Changes of its codec, schema, partitioner and number of partitions, by name."""


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A position, property or the watermark that differs.

    A value is None where its checkpoint has none.
    """

    name: str
    change: DiffType
    before: Json
    after: Json


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes from `before` to `after`.

    Bytes count only objects that one of the two has and the other has not.
    """

    before: CheckpointId
    after: CheckpointId
    operators: tuple[OperatorDifference, ...]
    positions: tuple[ValueDifference, ...]
    properties: tuple[ValueDifference, ...]
    watermark: ValueDifference | None
    expiring: tuple[str, ...]
    """Tables and maps that the clock alone may have changed: rows expired, or live again after a rollback."""
    bytes_added: int
    bytes_removed: int

    def __bool__(self) -> bool:
        return bool(self.operators or self.positions or self.properties or self.watermark)


def expires(operator: Operator | None) -> bool:
    """Return whether rows or entries of an operator expire by the clock."""
    return operator is not None and isinstance(operator.schema, dict) and operator.schema.get("expire") is not None


def compare(before: Manifest, after: Manifest) -> Difference:
    """Return the changes that turn `before` into `after`."""
    old, new = object_sizes(before), object_sizes(after)
    names = sorted({*before.operators, *after.operators})
    pairs = ((name, before.operators.get(name), after.operators.get(name)) for name in names)
    return Difference(
        before=before.id,
        after=after.id,
        operators=tuple(found for pair in pairs if (found := _compare_operator(*pair))),
        positions=_compare_values(before.positions, after.positions),
        properties=_compare_values(before.properties, after.properties),
        watermark=next(iter(_compare_values(_watermark(before), _watermark(after))), None),
        expiring=tuple(n for n in names if any(expires(side.operators.get(n)) for side in (before, after)))
        if before.clock != after.clock
        else (),
        # Counted by object and not by partition: several partitions may share one.
        bytes_added=sum(size for path, size in new.items() if path not in old),
        bytes_removed=sum(size for path, size in old.items() if path not in new),
    )


def _watermark(manifest: Manifest) -> dict[str, Json]:
    """Return the watermark as the values of a dict, which is empty without one."""
    return {} if manifest.watermark is None else {"watermark": manifest.watermark}


def _compare_operator(name: str, old: Operator | None, new: Operator | None) -> OperatorDifference | None:
    """Return how an operator differs; None where it does not.

    A side is None where it has no such operator.
    """
    before, after = old.chains if old else {}, new.chains if new else {}
    added = tuple(sorted(p for p in after if p not in before))
    removed = tuple(sorted(p for p in before if p not in after))
    changed = tuple(sorted(p for p, chain in after.items() if p in before and chain != before[p]))
    if old is None or new is None:
        return OperatorDifference(name, "added" if old is None else "removed", added, removed, changed, ())
    aspects = ("partitions", "partitioner", "codec", "schema")
    redefined = tuple(aspect for aspect in aspects if getattr(old, aspect) != getattr(new, aspect))
    if not (added or removed or changed or redefined):
        return None
    return OperatorDifference(name, "changed", added, removed, changed, redefined)


def partitions_to_compare(
    before: Operator | None, after: Operator | None, *, differs: bool = False, moves: bool = False
) -> Iterator[list[int]]:
    """Yield groups of partitions whose keys have to be compared together.

    If both sides spread keys alike, a key is in the same partition of both. Partitions with equal chains then have
    equal content, unless it `differs` for another reason: records expired meanwhile, or a column was dropped.
    Otherwise, or if `moves` says that keys are in other partitions, all partitions are one group.
    """
    old, new = before.chains if before else {}, after.chains if after else {}
    numbers = sorted({*old, *new})
    if before is not None and after is not None:
        # Where keys are spread otherwise, the same key may be in partition 1 before and in 5 after, so all partitions
        # have to be compared.
        layouts = {(side.partitions, side.partitioner, side.codec) for side in (before, after)}
        if len(layouts) == 1 and not moves:
            yield from ([number] for number in numbers if differs or old.get(number) != new.get(number))
            return
        yield numbers
    else:
        # One side has no keys, so each partition can be compared by itself.
        yield from ([number] for number in numbers)


def compare_keys(
    before: Mapping[str, bytes], after: Mapping[str, bytes], expired: Collection[str] = ()
) -> Iterator[tuple[str, KeyDiffType]]:
    """Yield the keys that differ, each with its change from `before` to `after`.

    `expired` are keys whose records of `before` have expired since.
    """
    for key, value in after.items():
        if key not in before:
            yield key, "inserted"
        elif before[key] != value:
            yield key, "updated"
    yield from ((key, "expired" if key in expired else "deleted") for key in before if key not in after)


def _compare_values(before: Mapping[str, Json], after: Mapping[str, Json]) -> tuple[ValueDifference, ...]:
    """Return the values that differ, by name in order."""
    found = []
    for name in sorted({*before, *after}):
        if name not in before:
            found.append(ValueDifference(name, "added", None, after[name]))
        elif name not in after:
            found.append(ValueDifference(name, "removed", before[name], None))
        # As text: to Python 1, 1.0 and True are equal, also within lists.
        elif json.dumps(before[name], sort_keys=True) != json.dumps(after[name], sort_keys=True):
            found.append(ValueDifference(name, "changed", before[name], after[name]))
    return tuple(found)
