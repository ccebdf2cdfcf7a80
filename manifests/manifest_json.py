"""Values of the model as bytes, and back. Each pair of functions handles the same fields in the same order.

Decoding checks everything that can be checked without another object, so that a value of the model never
contradicts itself. Whoever reads an object whose digest is known checks size and digest first (`digest.py`).
"""

from collections.abc import Mapping
from datetime import datetime

from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.chain_json import decode_rows, encode_rows
from pyspark_checkpointer.manifests.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests.job_json import decode_job, encode_job
from pyspark_checkpointer.manifests.json_fields import Fields, check_json, dump, dump_sealed, format_time
from pyspark_checkpointer.manifests.model import (
    FORMAT_VERSION,
    Catalog,
    CatalogEntry,
    CatalogRef,
    CheckpointId,
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

MAX_PARTITIONS = 2**31


# ---- pointer ---------------------------------------------------------------------------------------------------


def encode_pointer(pointer: Pointer) -> bytes:
    """Return the bytes of `_latest`. The last field is the SHA-256 of all the bytes before it."""
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
    name = object_paths.LATEST
    fields = Fields.parse_sealed(name, data)
    writer = Fields(f"{name}: writer", fields.mapping("writer"))
    pointer = Pointer(
        writer=Writer(epoch=writer.integer("epoch", minimum=1), instance=writer.text("instance")),
        committed=_decode_ref(fields, "committed"),
        prepared=_decode_ref(fields, "prepared"),
        boundary=fields.integer("boundary", minimum=1),
        catalog=_decode_catalog_ref(fields, "catalog"),
        retired=tuple(_decode_retired(name, old) for old in fields.items("retired")),
        nonce=fields.text("nonce"),
        extra=fields.rest(),
    )
    committed = 0 if pointer.committed is None else pointer.committed.id.sequence
    if pointer.boundary > max(committed, 1):
        fields.fail(f"boundary {pointer.boundary} is above the committed sequence {committed}")
    if pointer.prepared is not None and pointer.prepared.id.sequence != committed + 1:
        fields.fail(f"prepared {pointer.prepared.id} does not follow the committed sequence {committed}")
    return pointer


def _encode_ref(ref: Ref | None) -> Json:
    return None if ref is None else {"id": str(ref.id), "digest": ref.digest}


def _decode_ref(fields: Fields, key: str) -> Ref | None:
    inner = fields.inner(key)
    return None if inner is None else Ref(id=inner.id("id"), digest=inner.hexadecimal("digest", 64))


def _encode_catalog_ref(ref: CatalogRef | None) -> Json:
    return None if ref is None else {"path": ref.path, "digest": ref.digest}


def _decode_catalog_ref(fields: Fields, key: str) -> CatalogRef | None:
    inner = fields.inner(key)
    if inner is None:
        return None
    ref = CatalogRef(path=inner.text("path"), digest=inner.hexadecimal("digest", 64))
    owner = object_paths.owner(ref.path)
    if owner is None or ref.path != object_paths.catalog(owner, ref.digest):
        inner.fail(f"{ref.path!r:.200} is not the path of a catalog with digest {ref.digest}")
    return ref


def _decode_retired(name: str, value: Json) -> Retired:
    fields = Fields(f"{name}: retired", value)
    return Retired(
        boundary=fields.integer("boundary", minimum=1),
        catalog=_decode_catalog_ref(fields, "catalog"),
        at=fields.time("at"),
    )


# ---- manifest --------------------------------------------------------------------------------------------------


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest. Chains of an operator that has segments are not written: the segments hold them.

    Raises `IllegalArgumentError` where the caller's values cannot be written.
    """
    value = {
        "format_version": FORMAT_VERSION,
        "id": str(manifest.id),
        "sequence": manifest.id.sequence,
        "parent": _encode_ref(manifest.parent),
        "epoch": manifest.epoch,
        "created": None if manifest.created is None else format_time(manifest.created),
        "job": encode_job(manifest.job),
        "operators": {name: _encode_operator(name, op) for name, op in sorted(manifest.operators.items())},
        "positions": check_json("positions", dict(manifest.positions)),
        "watermark": check_json("watermark", manifest.watermark),
        "properties": check_json("properties", dict(manifest.properties)),
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
    """The manifest of `checkpoint`. Operators with segments come without chains (`segments.load` adds them)."""
    name = object_paths.manifest(checkpoint)
    fields = Fields.parse(name, data)
    if (found := fields.id("id")) != checkpoint:
        fields.fail(f"expected the id {checkpoint}, found {found}")
    if (sequence := fields.integer("sequence", minimum=1)) != checkpoint.sequence:
        fields.fail(f"expected the sequence {checkpoint.sequence}, found {sequence}")
    parent = _decode_ref(fields, "parent")
    if (0 if parent is None else parent.id.sequence) >= sequence:
        fields.fail(f"its parent {parent and parent.id} is not older than itself")
    epoch, created = fields.take("epoch"), fields.take("created")
    return Manifest(
        id=checkpoint,
        parent=parent,
        epoch=None if epoch is None else fields.check_integer("epoch", epoch, -(2**63)),
        created=None if created is None else _decode_created(name, created),
        job=decode_job(fields.inner("job")),
        operators={
            operator: _decode_operator(name, operator, value, sequence)
            for operator, value in fields.mapping("operators").items()
        },
        positions=fields.mapping("positions"),
        watermark=fields.take("watermark"),
        properties=fields.mapping("properties"),
        cost=_decode_cost(name, fields.optional("cost")),
        extra=fields.rest(),
    )


def _encode_cost(cost: Cost | None) -> dict[str, Json]:
    """Return the field as it stands in a manifest; nothing where nothing was measured."""
    if cost is None:
        return {}
    return {
        "cost": {
            "requests": cost.requests,
            "objects": cost.objects,
            "bytes": cost.bytes,
            "elapsed_us": cost.elapsed_us,
            "blocked_us": cost.blocked_us,
        }
    }


def _decode_cost(name: str, value: Json) -> Cost | None:
    if value is None:
        return None
    fields = Fields(f"{name}: cost", value)
    return Cost(
        requests=fields.integer("requests"),
        objects=fields.integer("objects"),
        bytes=fields.integer("bytes"),
        elapsed_us=fields.integer("elapsed_us"),
        blocked_us=fields.integer("blocked_us"),
    )


def _decode_created(name: str, value: Json) -> datetime:
    return Fields(name, {"created": value}).time("created")


def _encode_operator(name: str, operator: Operator) -> Json:
    object_paths.encode_name("operator", name)
    head = {
        "partitions": operator.partitions,
        "partitioner": operator.partitioner,
        "codec": operator.codec,
        "schema": check_json(f"operator {name!r}: schema", operator.schema),
    }
    if operator.segments:
        body: dict[str, Json] = {"segments": [[s.path, s.size, s.raw_size, s.entries] for s in operator.segments]}
    else:
        objects, rows = encode_rows(operator.chains)
        body = {"objects": objects, "chains": rows}
    return head | body | dict(operator.extra)


def _decode_operator(manifest: str, operator: str, value: Json, sequence: int) -> Operator:
    fields = Fields(f"{manifest}: operator {operator!r:.60}", value)
    try:
        object_paths.encode_name("operator", operator)
    except IllegalArgumentError as error:
        fields.fail(str(error))
    partitions = fields.integer("partitions")
    if partitions > MAX_PARTITIONS:
        fields.fail(f"{partitions} partitions, at most {MAX_PARTITIONS} are possible")
    partitioner, codec, schema = fields.text("partitioner"), fields.text("codec"), fields.take("schema")
    if codec not in codecs.CODECS:
        fields.fail(f"unknown codec {codec!r:.60}")
    segments = fields.optional("segments")
    if segments is not None:
        if not isinstance(segments, list) or not segments:
            fields.fail("segments: expected a list of at least one")
        chains: Mapping = {}  # type: ignore[type-arg]
        refs = tuple(_decode_segment_ref(fields, row, sequence) for row in segments)
    else:
        chains = decode_rows(fields, operator, partitions, codec, sequence)
        refs = ()
        for partition, chain in chains.items():
            if not chain or chain[0].kind != "snapshot" or any(a.kind != "delta" for a in chain[1:]):
                fields.fail(f"partition {partition}: a chain is one snapshot, then deltas")
    return Operator(partitions, partitioner, codec, chains, schema, refs, extra=fields.rest())


def _decode_segment_ref(fields: Fields, row: Json, sequence: int) -> Segment:
    if not isinstance(row, list) or len(row) != 4 or not isinstance(row[0], str):
        fields.fail(f"segments: expected [path, size, raw size, entries], found {show(row)}")
    path, size, raw_size, entries = row
    owner = object_paths.owner(path)
    if not path.startswith(object_paths.SEGMENTS) or owner is None or owner.sequence > sequence:
        fields.fail(f"{path!r:.200} is not the path of a segment this old")
    return Segment(
        path=path,
        size=fields.check_integer("segment size", size, 1),
        raw_size=fields.check_integer("segment raw size", raw_size, 1),
        entries=fields.check_integer("segment entries", entries),
    )


# ---- catalog ---------------------------------------------------------------------------------------------------


def encode_catalog(catalog: Catalog) -> bytes:
    return dump(
        {
            "format_version": FORMAT_VERSION,
            "id": str(catalog.id),
            "entries": [
                {
                    "id": str(entry.ref.id),
                    "digest": entry.ref.digest,
                    "name": entry.name,
                    "created": format_time(entry.created),
                    "nonce": entry.nonce,
                }
                for entry in catalog.entries
            ],
            **catalog.extra,
        }
    )


def decode_catalog(path: str, data: bytes) -> Catalog:
    """Return the catalog at `path`, whose bytes were compared with the digest in the path."""
    fields = Fields.parse(path, data)
    catalog = Catalog(
        id=fields.id("id"),
        entries=tuple(_decode_entry(path, value) for value in fields.items("entries")),
        extra=fields.rest(),
    )
    if catalog.id != object_paths.owner(path):
        fields.fail(f"expected the id in its path, found {catalog.id}")
    names = [entry.name for entry in catalog.entries if entry.name is not None]
    if len(set(names)) != len(names):
        fields.fail("two savepoints have the same name")
    return catalog


def _decode_entry(path: str, value: Json) -> CatalogEntry:
    fields = Fields(f"{path}: entry", value)
    ref = Ref(id=fields.id("id"), digest=fields.hexadecimal("digest", 64))
    name = fields.take("name")
    if name is not None and not isinstance(name, str):
        fields.fail(f"name: expected text or null, found {name!r:.60}")
    return CatalogEntry(ref=ref, name=name, created=fields.time("created"), nonce=fields.text("nonce"))
