"""Say what each checkpoint did to one key, and find it out for a map.

chain of the key's partition ──> newest artifact that has the key ──> its value, or that it was deleted

If a chain is that of the parent with deltas on top, only these deltas are read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal

from pyspark_checkpointer.checkpoint.decode import decode
from pyspark_checkpointer.checkpoint.download import read_artifact
from pyspark_checkpointer.checkpoint.restore import explaining
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.codecs import kind_of
from pyspark_checkpointer.manifests.equal_keys import is_zoned
from pyspark_checkpointer.manifests.keyed_records import place_key
from pyspark_checkpointer.manifests.map_expiry import decode_schema, living
from pyspark_checkpointer.manifests.model import Chain, CheckpointId, Manifest, Operator

ChangeType = Literal["insert", "update", "delete", "expire"]


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One checkpoint that changed a key.

    Attributes:
        id: The id of the checkpoint.
        epoch: Its epoch, such as Spark's batch id, or None.
        created: The time when it was made, in UTC, by the writer's clock, or None.
        change: "insert", "update", "delete" or "expire".
        before: The value or the row, as a dict, in the checkpoint before; None where there was none.
        after: The same in this checkpoint.
    """

    id: CheckpointId
    epoch: int | None
    created: datetime | None
    change: ChangeType
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """The changes of one key of a map or a table, oldest first.

    `history` of a restored checkpoint returns it.

    Attributes:
        operator: The name of the map or table.
        key: The key. Of a table: its key columns, as a dict.
        since: The checkpoint with which the history begins.
        is_complete: Whether the history of the store begins with `since`: it is the first checkpoint, or the copy that
            a repair, an export or a fork began with. What it holds was inserted there, and is among the changes.
            Otherwise the changes are those after it.
        first: The value or row in `since`, unless the history is complete; None where there was none.
        changes: A `KeyChange` for each checkpoint that changed the key.

    Examples:
        >>> from pyspark_checkpointer import Checkpointer, KeyedState
        >>> ck = Checkpointer("state/visits")
        >>> with ck.begin(epoch=1) as cp:
        ...     cp.save("visits", KeyedState({"ann": 1}))
        >>> history = ck.restore().history("visits", "ann")
        >>> history.since == ck.read_latest(), history.changes[0].change
        (True, 'insert')
    """

    operator: str
    key: Any
    since: CheckpointId
    is_complete: bool
    first: Any
    changes: tuple[KeyChange, ...]


def change_of(manifest: Manifest, change: ChangeType, before: Any, after: Any) -> KeyChange:
    """Return a change that the checkpoint of a manifest made."""
    return KeyChange(manifest.id, manifest.epoch, manifest.created, change, before, after)


Show = Callable[[bytes], Any]
"""A function that turns a packed value into the value to return."""


async def map_changes(
    session: Session, name: str, key: Any, parent: Manifest | None, manifests: Sequence[Manifest], show: Show
) -> tuple[Any, list[KeyChange]]:
    """Return the value of a map's key in `parent`, and all changes after it."""
    place_key(key, 1)  # Refuses what cannot be a key.
    known = _StoredValues(session, name, key)
    stored = None if parent is None else await known.stored(parent)
    before = None if parent is None else _living(name, stored, parent)
    first, changes = None if before is None else show(before), []
    for manifest in manifests:
        was, stored = stored, await known.stored(manifest)
        after = _living(name, stored, manifest)
        # Values without their times: a key that was set to the value that it had has not changed.
        if before != after:
            change: ChangeType = "insert" if before is None else "update"
            if after is None:
                # Also where a snapshot has left the entry out already.
                change = "delete" if _living(name, was, manifest) is not None else "expire"
            pair = [None if packed is None else show(packed) for packed in (before, after)]
            changes.append(change_of(manifest, change, *pair))
        before = after
    return first, changes


def _living(name: str, stored: bytes | None, manifest: Manifest) -> bytes | None:
    """Return the packed value of a stored one; None if it is absent or expired.

    The clock of the checkpoint decides whether it is expired.
    """
    if stored is None or name not in manifest.operators:
        return stored
    where = f"operator {name!r}"
    schema = manifest.operators[name].schema
    if schema is None:  # Its values carry no times.
        return stored
    values, _ = living(where, {name: stored}, decode_schema(where, schema), manifest.clock)
    return values.get(name)


class _StoredValues:
    """The stored value of a key in the chains that were read last."""

    def __init__(self, session: Session, name: str, key: Any) -> None:
        self._session, self._name, self._key = session, name, key
        # By the number of partitions too: where the map is spread anew, a partition has other keys.
        self._values: dict[tuple[int, int], tuple[Chain, bytes | None]] = {}

    async def stored(self, manifest: Manifest) -> bytes | None:
        """Return the stored value in a checkpoint, maybe with its time, or None."""
        operator = manifest.operators.get(self._name)
        if operator is None:
            return None
        if kind_of(operator) != "map":
            raise IllegalArgumentError(
                f"operator {self._name!r}: is no map in {manifest.id}: ask for its history after that, with after="
            )
        places, held = self._places(operator)

        async def read() -> list[bytes | None]:
            return [await self._in(operator, number, held) for number in places]

        found = await explaining(self._session, read, manifest.id)
        return next((value for value in found if value is not None), None)

    def _places(self, operator: Operator) -> tuple[list[int], Any]:
        """Return the partitions that may hold the key, and the key as it is stored."""
        number, held = place_key(self._key, operator.partitions)
        # Where such a key is depends on the time zone database of its writer.
        return (sorted(operator.chains) if is_zoned(held) else [number]), held

    async def _in(self, operator: Operator, number: int, held: Any) -> bytes | None:
        chain = operator.chains.get(number, ())
        old, value = self._values.get((operator.partitions, number), ((), None))
        if chain[: len(old)] != old:
            old, value = (), None
        # The newest one that has the key decides, so older ones need not be read.
        for artifact in reversed(chain[len(old) :]):
            data = await read_artifact(self._session.store, self._session.host, artifact)
            records = await self._session.host.run(partial(decode, operator.codec, artifact, data))
            if held in records:
                value = records[held]
                break
        self._values[operator.partitions, number] = chain, value
        return value


__all__ = ["KeyChange", "KeyHistory", "change_of", "map_changes"]
