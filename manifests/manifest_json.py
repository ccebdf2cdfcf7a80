"""Encode and decode the pointer and a manifest as JSON.

Each pair of functions handles the same fields in the same order. Tables say what a reader checks of each field.

Decoding checks everything that can be checked without another object, so that a value of the model never contradicts
itself. A reader that knows the digest of an object checks size and digest first (`digest.py`).
"""

from collections.abc import Mapping
from typing import Any, get_args

from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.chain_json import decode_rows, encode_rows
from pyspark_checkpointer.manifests.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests.job_json import JOB, encode_job
from pyspark_checkpointer.manifests.json_fields import (
    REF,
    Fields,
    Optional,
    Table,
    at_least,
    inner_objects,
    nullable,
    one_of,
    record,
    required,
)
from pyspark_checkpointer.manifests.json_text import check_json, check_json_fields, dump, dump_sealed, format_time
from pyspark_checkpointer.manifests.model import (
    FORMAT_VERSION,
    CatalogRef,
    CheckpointId,
    Clock,
    ClockSource,
    Cost,
    Json,
    Manifest,
    Operator,
    Pointer,
    Ref,
    Retired,
    Segment,
    Writer,
)
from pyspark_checkpointer.manifests.shown import show

COST_FIELDS = ("requests", "objects", "bytes", "elapsed_us", "blocked_us")

# ---- pointer ---------------------------------------------------------------------------------------------------


def encode_pointer(pointer: Pointer) -> bytes:
    """Return the bytes of `_latest`.

    The last field is the SHA-256 of all the bytes before it.
    """
    return dump_sealed(
        {
            "format_version": FORMAT_VERSION,
            "writer": {"epoch": pointer.writer.epoch, "instance": pointer.writer.instance},
            "committed": _encode_ref(pointer.committed),
            "prepared": _encode_ref(pointer.prepared),
            "boundary": pointer.boundary,
            "catalog": _encode_catalog_ref(pointer.catalog),
            "retired": [
                {
                    "boundary": old.boundary,
                    "catalog": _encode_catalog_ref(old.catalog),
                    "at": format_time(old.at),
                }
                for old in pointer.retired
            ],
            "nonce": pointer.nonce,
            **pointer.extra,
        }
    )


def decode_pointer(data: bytes) -> Pointer:
    """Return the pointer in `_latest`, with its digest compared."""
    name = object_paths.LATEST
    fields = Fields.parse_sealed(name, data)
    found = fields.read(_POINTER)
    retired = [Fields(f"{name}: retired", old).read(_RETIRED) for old in found.pop("retired")]
    pointer = Pointer(retired=tuple(Retired(**old) for old in retired), extra=fields.rest, **found)
    _check_catalog(fields, "catalog", pointer.catalog)
    for old in pointer.retired:
        _check_catalog(fields, "retired: catalog", old.catalog)
    committed = 0 if pointer.committed is None else pointer.committed.id.sequence
    # The committed checkpoint is never retired, so nothing that keeps the rules writes this.
    if pointer.boundary > max(committed, 1):
        fields.fail(f"boundary {pointer.boundary} is above the committed sequence {committed}")
    # Every commit clears what was prepared on the checkpoint below it.
    if pointer.prepared is not None and pointer.prepared.id.sequence != committed + 1:
        fields.fail(f"prepared {pointer.prepared.id} does not follow the committed sequence {committed}")
    owner = None if pointer.catalog is None else object_paths.owner(pointer.catalog.path)
    # The id was drawn for the catalog, so that no attempt at a checkpoint can have it.
    if owner is not None and owner in {ref.id for ref in (pointer.committed, pointer.prepared) if ref is not None}:
        fields.fail(f"catalog: has the id of a checkpoint, {owner}")
    if any(old.boundary > pointer.boundary for old in pointer.retired):
        fields.fail(f"retired: a boundary above the present one, {pointer.boundary}, which never decreases")
    return pointer


_WRITER: Table = {"epoch": at_least(1), "instance": Fields.check_filled_text}

_CATALOG_REF: Table = {"path": Fields.check_text, "digest": Fields.check_digest}

_POINTER: Table = {
    "writer": required(record(_WRITER, Writer)),
    "committed": nullable(REF),
    "prepared": nullable(REF),
    "boundary": at_least(1),
    "catalog": nullable(record(_CATALOG_REF, CatalogRef)),
    "retired": Fields.check_items,
    "nonce": Fields.check_filled_text,
}

_RETIRED: Table = {
    "boundary": at_least(1),
    "catalog": nullable(record(_CATALOG_REF, CatalogRef)),
    "at": Fields.check_time,
}


def _encode_ref(ref: Ref | None) -> Json:
    return None if ref is None else {"id": str(ref.id), "digest": ref.digest}


def _encode_catalog_ref(ref: CatalogRef | None) -> Json:
    return None if ref is None else {"path": ref.path, "digest": ref.digest}


def _check_catalog(fields: Fields, key: str, ref: CatalogRef | None) -> None:
    """Raise `MalformedError` unless a path is that of a catalog with this digest."""
    owner = None if ref is None else object_paths.owner(ref.path)
    # Made anew and compared, so that path and digest cannot contradict each other and no path can lead elsewhere.
    if ref is not None and (owner is None or ref.path != object_paths.catalog(owner, ref.digest)):
        fields.fail(f"{key}: {ref.path!r:.200} is not the path of a catalog with digest {ref.digest}")


# ---- manifest --------------------------------------------------------------------------------------------------


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest.

    Chains of an operator that has segments are not written: the segments hold them.

    Raises `IllegalArgumentError` where the caller's values cannot be written.
    """
    value = {
        "format_version": FORMAT_VERSION,
        "id": str(manifest.id),
        "sequence": manifest.id.sequence,
        "parent": _encode_ref(manifest.parent),
        "epoch": manifest.epoch,
        "created": None if manifest.created is None else format_time(manifest.created),
        "job": None if manifest.job is None else encode_job(manifest.job),
        "operators": {name: _encode_operator(name, op) for name, op in sorted(manifest.operators.items())},
        # At any depth: a rollback writes again what a stored manifest has. Where values enter, their depth is checked.
        **check_json_fields(
            positions=dict(manifest.positions),
            watermark=manifest.watermark,
            properties=dict(manifest.properties),
            max_levels=None,
        ),
        **_encode_clock(manifest.clock),
        **_encode_cost(manifest.cost),
        **manifest.extra,
    }
    try:
        data = dump(value)
        decode_manifest(manifest.id, data)  # what a reader would refuse is never written
    except (TypeError, ValueError, RecursionError, MalformedError) as error:
        raise IllegalArgumentError(f"manifest refused: {error}") from None
    return data


def decode_manifest(checkpoint: CheckpointId, data: bytes) -> Manifest:
    """Return the manifest of `checkpoint`.

    Operators with segments have no chains until `segments.load` adds them.
    """
    name = object_paths.manifest(checkpoint)
    fields = Fields.parse_compact(name, data)
    found = fields.read(_MANIFEST)
    sequence, operators = found.pop("sequence"), found.pop("operators")
    if found["id"] != checkpoint:
        fields.fail(f"expected the id {checkpoint}, found {found['id']}")
    if sequence != checkpoint.sequence:
        fields.fail(f"expected the sequence {checkpoint.sequence}, found {sequence}")
    parent = found["parent"]
    # The walk down the chain ends where a sequence is below the boundary, so sequences have to fall.
    if (0 if parent is None else parent.id.sequence) >= sequence:
        fields.fail(f"its parent {parent and parent.id} is not older than itself")
    decoded = {
        operator: _decode_operator(operator, inner, values, sequence) for operator, (inner, values) in operators.items()
    }
    return Manifest(operators=decoded, extra=fields.rest, **found)


def _encode_clock(clock: Clock | None) -> dict[str, Json]:
    """Return the field of a manifest for the clock.

    No field is returned for a job that has no clock.
    """
    return {} if clock is None else {"clock": {"at": format_time(clock.at), "source": clock.source}}


def _encode_cost(cost: Cost | None) -> dict[str, Json]:
    """Return the field of a manifest for the cost.

    No field is returned if nothing was measured.
    """
    return {} if cost is None else {"cost": {name: getattr(cost, name) for name in COST_FIELDS}}


_CLOCK: Table = {"at": Fields.check_time, "source": one_of(*get_args(ClockSource))}

_COST: Table = dict.fromkeys(COST_FIELDS, Fields.check_integer)

_OPERATOR: Table = {
    "partitions": Fields.check_integer,
    "partitioner": Fields.check_text,
    "codec": Fields.check_text,
    "schema": Fields.take_any,
    "segments": Optional(Fields.take_any),
}

_MANIFEST: Table = {
    "id": Fields.check_id,
    "sequence": at_least(1),
    "parent": nullable(REF),
    "epoch": nullable(at_least(-(2**63))),
    "created": nullable(Fields.check_time),
    "job": nullable(JOB),
    "operators": inner_objects("operator", _OPERATOR),
    "positions": Fields.check_mapping,
    "watermark": Fields.take_any,
    "properties": Fields.check_mapping,
    "clock": Optional(record(_CLOCK, Clock)),
    "cost": Optional(record(_COST, Cost)),
}


def _encode_operator(name: str, operator: Operator) -> Json:
    # Called for its check alone: a name stands in a manifest as it is.
    object_paths.encode_name("operator", name)
    head = {
        "partitions": operator.partitions,
        "partitioner": operator.partitioner,
        "codec": operator.codec,
        "schema": check_json(f"operator {name!r}: schema", operator.schema, max_levels=None),
    }
    if operator.segments:
        body: dict[str, Json] = {"segments": [[s.path, s.size, s.raw_size, s.entries] for s in operator.segments]}
    else:
        objects, rows = encode_rows(operator.chains)
        body = {"objects": objects, "chains": rows}
    # Fields of a newer writer are carried over into the next checkpoint (SPEC.md, "Versions").
    return head | body | dict(operator.extra)


def _decode_operator(operator: str, fields: Fields, found: dict[str, Any], sequence: int) -> Operator:
    try:
        object_paths.encode_name("operator", operator)
    except IllegalArgumentError as error:
        fields.fail(str(error))
    partitions, partitioner, codec = found["partitions"], found["partitioner"], found["codec"]
    # A new codec needs a new version of the format (SPEC.md, "Versions"), so none that is unknown belongs in this
    # one.
    if codec not in codecs.CODECS:
        fields.fail(f"unknown codec {codec!r:.60}")
    known = codecs.CODECS[codec]
    # Keys that were spread in another way would be looked for in the wrong partitions.
    if partitioner != known.partitioner:
        fields.fail(f"expected the partitioner of {codec}, {known.partitioner}, found {show(partitioner)}")
    if not known.min_partitions <= partitions <= known.max_partitions:
        fields.fail(
            f"{partitions} partitions of {codec}, from {known.min_partitions} to {known.max_partitions} are possible"
        )
    segments = found.pop("segments")
    # Chains in segments are not loaded here: this module has no way to read another object.
    if segments is not None:
        if not isinstance(segments, list) or not segments:
            fields.fail("segments: expected a list of at least one")
        fields.refuse(("objects", "chains"), "stands beside segments")
        chains: Mapping = {}  # type: ignore[type-arg]
        refs = tuple(_decode_segment_ref(fields, row, sequence) for row in segments)
        if len({ref.path for ref in refs}) < len(refs):
            fields.fail("segments: one is there twice")
    else:
        chains = decode_rows(fields, operator, partitions, codec, sequence)
        refs = ()
    return Operator(chains=chains, segments=refs, extra=fields.rest, **found)


def _decode_segment_ref(fields: Fields, row: Json, sequence: int) -> Segment:
    if not isinstance(row, list) or len(row) != 4 or not isinstance(row[0], str):
        fields.fail(f"segments: expected [path, size, raw size, entries], found {show(row)}")
    path, size, raw_size, entries = row
    owner = object_paths.owner(path)
    if not path.startswith(object_paths.SEGMENTS) or owner is None or owner.sequence > sequence:
        # A manifest names only what was there when it was written.
        fields.fail(f"{path!r:.200} is not the path of a segment this old")
    return Segment(
        path=path,
        size=fields.check_integer("segment size", size, 1),
        raw_size=fields.check_integer("segment raw size", raw_size, 1),
        entries=fields.check_integer("segment entries", entries, 1),
    )
