"""Migrate an older checkpoint to a new version of a job.

Operators are renamed or dropped, and what they hold is transformed.

    check the names → run every transform → check and encode what it gave → the next commit writes it

`restore()` does all steps but the last, in memory. If anything is wrong, nothing was written, and the session does not
change. An operator that was only renamed keeps its objects, and the next manifest names them.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyspark_checkpointer.checkpoint.migrated import Migrated
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.checkpoint.upload import ChainSlot, EncodedBlob, Uploader
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.keyed.state import KeyedState
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.map_expiry import MapRule, decode_schema, encode_schema, now_of
from pyspark_checkpointer.manifests.model import SNAPSHOT, Chain, CheckpointId, Json, Operator
from pyspark_checkpointer.storage.overlay import OverlayStore

Transform = Callable[..., Any]
"""Function that transforms what an operator holds.

For a map it is `dict -> dict`. For opaque bytes it is `(partition, chain) -> bytes`, for each partition. For a table it
is `pyarrow.Table -> pyarrow.Table`, for each partition.
"""

TransformTable = Callable[[CheckpointReader, str, str, Transform, OverlayStore, CheckpointId], Awaitable[Operator]]
"""Function that transforms one table of a snapshot to one of another name.

The first name is the old one, the second the new one. `table.migration` has the function.
"""


class Migration:
    """The migration that a caller asks for.

    `drop` and the keys of `rename` are old names. The keys of `transform` are new names.
    """

    def __init__(
        self,
        rename: Mapping[str, str] | None,
        drop: Iterable[str] | None,
        transform: Mapping[str, Transform] | None,
        transform_table: TransformTable,
    ) -> None:
        for what, given in (("rename", rename), ("transform", transform)):
            if given is not None and not isinstance(given, Mapping):
                raise IllegalArgumentError(f"{what}={given!r:.60}: expected a dict by the names of operators")
        # A text is iterable too: its letters would be taken for names.
        if drop is not None and (isinstance(drop, str | bytes) or not isinstance(drop, Iterable)):
            raise IllegalArgumentError(f"drop={drop!r:.60}: expected a list of the names of operators")
        self._rename = dict(rename or {})
        self._drop = list(drop or ())
        self._transform = dict(transform or {})
        self._transform_table = transform_table
        for name, function in self._transform.items():
            if not callable(function):
                raise IllegalArgumentError(f"transform of operator {name!r:.80}: {function!r:.40} is no function")
        for new in self._rename.values():
            object_paths.encode_name("rename: operator", new)

    def __bool__(self) -> bool:
        return bool(self._rename or self._drop or self._transform)

    async def run(self, reader: CheckpointReader) -> Migrated:
        """Return the migrated checkpoint. Check all names before anything is read."""
        assert reader.manifest is not None
        known = reader.manifest.operators
        names = self._new_names(known)
        store = OverlayStore(reader.store)
        owner = reader.session.draw_id(reader.manifest.id.sequence)  # in memory only: each attempt has its own
        operators = {}
        for old, new in names.items():
            operators[new] = known[old]
            if new in self._transform:
                operators[new] = await self._transformed(reader, old, new, store, owner)
        return Migrated(operators, frozenset(self._transform), store)

    # ---- names ---------------------------------------------------------------------------------------------------

    def _new_names(self, known: Mapping[str, Operator]) -> dict[str, str]:
        """Return the new name of each operator that stays."""
        for what, given in (("rename", list(self._rename)), ("drop", self._drop)):
            for name in given:
                if not isinstance(name, str) or name not in known:
                    raise IllegalArgumentError(f"{what}: operator {name!r:.80}: the checkpoint has {_list(known)}")
        for old in self._drop:
            if old in self._rename:
                raise IllegalArgumentError(f"operator {old!r}: cannot be both dropped and renamed")
        names: dict[str, str] = {}
        taken: dict[str, str] = {}
        for old in known:
            if old in self._drop:
                continue
            new = self._rename.get(old, old)
            if new in taken:
                raise IllegalArgumentError(
                    f"rename: {taken[new]!r} and {old!r} would both be operator {new!r}: rename or drop one of them too"
                )
            names[old], taken[new] = new, old
        for name in self._transform:
            if name not in taken:
                raise IllegalArgumentError(f"transform: operator {name!r:.80}: {self._why_not(name, taken)}")
        return names

    def _why_not(self, name: object, there: Iterable[str]) -> str:
        if isinstance(name, str) and name in self._drop:
            return "is dropped"
        if isinstance(name, str) and name in self._rename:
            return f"is renamed to {self._rename[name]!r}: use that name"
        return f"after the migration there are {_list(there)}"

    # ---- content -------------------------------------------------------------------------------------------------

    async def _transformed(
        self, reader: CheckpointReader, old: str, new: str, store: OverlayStore, owner: CheckpointId
    ) -> Operator:
        operator, function = reader.operator(old), self._transform[new]
        kind = codecs.kind_of(operator)
        if kind == "table":
            return await self._transform_table(reader, old, new, function, store, owner)
        make = _transformed_map if kind == "map" else _transformed_bytes
        slices = await make(reader, old, new, function)
        # Into the memory above the store, in packs as a commit would write them, so that the commit has only to change
        # the ids in their paths.
        uploads = Uploader(store, reader.session.host, owner)
        pieces = {partition: ChainSlot(new, partition, operator.codec) for partition in slices}
        for partition, stored in slices.items():
            await uploads.write(pieces[partition], stored, None)
        await uploads.flush(new, operator.codec)
        chains: dict[int, Chain] = {partition: piece.artifacts for partition, piece in pieces.items()}
        schema = operator.schema
        if kind == "map" and schema is not None:
            schema = _counted_anew(reader, f"operator {old!r}", schema)
        return replace(operator, chains=chains, schema=schema, segments=(), patches=())


def call(where: str, function: Transform, *given: Any) -> Any:
    """Call a user's function. If it raises, raise an error that names the operator."""
    try:
        return function(*given)
    except BaseException as error:  # in a thread of its own, where no Ctrl-C arrives: SystemExit is its own too
        raise IllegalArgumentError(f"{where}: its transform raised {type(error).__name__}: {error!s:.500}") from error


def _counted_anew(reader: CheckpointReader, what: str, schema: Json) -> Json:
    """Return the rule of a map for entries that a function made.

    The time of these entries counts from the clock of the checkpoint.
    """
    rule, manifest = decode_schema(what, schema), reader.manifest
    if rule is None or manifest is None:
        return None
    return encode_schema(MapRule(rule.after, now_of(what, manifest.clock)))


async def _transformed_map(reader: CheckpointReader, old: str, new: str, function: Transform) -> dict[int, EncodedBlob]:
    state = await reader.keyed(old, None)
    where, encode = f"operator {new!r}", codecs.PURE_CODECS[reader.operator(old).codec].encode

    def compute() -> dict[int, EncodedBlob]:
        made = call(where, function, state.to_dict())
        if not isinstance(made, dict):
            raise IllegalArgumentError(f"{where}: its transform has to return a dict, not {type(made).__name__}")
        try:
            # Without a parent every partition is captured as a snapshot. The longest chain does not matter then, so the
            # least one that is allowed is given.
            capture = KeyedState(made, partitions=state.partitions).capture_for_checkpoint({}, 2)
        except IllegalArgumentError as error:
            raise IllegalArgumentError(
                f"{where}: its transform returned a value that cannot be stored: {error}"
            ) from None
        slices = {}
        for change in capture.changes:
            data, raw_size = encode(change.records)
            slices[change.partition] = EncodedBlob(SNAPSHOT, data, raw_size, len(change.records))
        return slices

    return await reader.session.host.call(compute)


async def _transformed_bytes(
    reader: CheckpointReader, old: str, new: str, function: Transform
) -> dict[int, EncodedBlob]:
    chains = await reader.read(old, None)

    def compute() -> dict[int, EncodedBlob]:
        slices = {}
        for partition, chain in sorted(chains.items()):
            where = f"operator {new!r}, partition {partition}"
            made = call(where, function, partition, chain)
            if not isinstance(made, bytes | bytearray | memoryview):
                raise IllegalArgumentError(f"{where}: its transform has to return bytes, not {type(made).__name__}")
            # A copy of what can change: the function may use its buffer again for the next partition.
            data = bytes(made)
            slices[partition] = EncodedBlob(SNAPSHOT, data, len(data), 1)
        return slices

    return await reader.session.host.call(compute)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
