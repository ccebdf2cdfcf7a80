"""The pointer and a manifest as JSON, and back.

Each pair of functions handles the same fields in the same order.

Decoding checks everything that can be checked without another object, so that a value of the model never
contradicts itself. Whoever reads an object whose digest is known checks size and digest first (`digest.py`).
"""

import re
from collections.abc import Mapping
from typing import get_args

from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.chain_json import decode_rows, encode_rows
from pyspark_checkpointer.manifests.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests.json_fields import (
    Fields,
    check_json,
    check_json_fields,
    dump,
    dump_sealed,
    format_time,
)
from pyspark_checkpointer.manifests.model import (
    FORMAT_VERSION,
    CatalogRef,
    CheckpointId,
    Clock,
    ClockSource,
    Cost,
    Job,
    Json,
    Manifest,
    Operator,
    Pointer,
    Ref,
    Retired,
    Segment,
    SparkProgress,
    Writer,
)
from pyspark_checkpointer.manifests.shown import show

COST_FIELDS = ("requests", "objects", "bytes", "elapsed_us", "blocked_us")

LIST_ENTRY = re.compile(r"[A-Za-z0-9_]+/[0-9]{1,18}")
"""A name in the `lists` of a job: the source, and the number of the entry."""

_OFFSETS = re.compile(r"v[0-9]+\n")


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
    """Return the pointer that `_latest` holds, its digest compared."""
    name = object_paths.LATEST
    fields = Fields.parse_sealed(name, data)
    writer = Fields(f"{name}: writer", fields.mapping("writer"))
    pointer = Pointer(
        writer=Writer(epoch=writer.integer("epoch", minimum=1), instance=writer.filled_text("instance")),
        committed=fields.ref_or_null("committed"),
        prepared=fields.ref_or_null("prepared"),
        boundary=fields.integer("boundary", minimum=1),
        catalog=_decode_catalog_ref(fields, "catalog"),
        retired=tuple(_decode_retired(name, old) for old in fields.items("retired")),
        nonce=fields.filled_text("nonce"),
        extra=fields.rest(),
    )
    committed = 0 if pointer.committed is None else pointer.committed.id.sequence
    # The committed checkpoint is never retired, so nothing that keeps the rules writes this.
    if pointer.boundary > max(committed, 1):
        fields.fail(f"boundary {pointer.boundary} is above the committed sequence {committed}")
    if pointer.prepared is not None and pointer.prepared.id.sequence != committed + 1:
        fields.fail(f"prepared {pointer.prepared.id} does not follow the committed sequence {committed}")
    owner = None if pointer.catalog is None else object_paths.owner(pointer.catalog.path)
    # The id was drawn for the catalog, so that no attempt at a checkpoint can have it.
    if owner is not None and owner in {ref.id for ref in (pointer.committed, pointer.prepared) if ref is not None}:
        fields.fail(f"catalog: has the id of a checkpoint, {owner}")
    if any(old.boundary > pointer.boundary for old in pointer.retired):
        fields.fail(f"retired: a boundary above the present one, {pointer.boundary}, which never decreases")
    return pointer


def _encode_ref(ref: Ref | None) -> Json:
    return None if ref is None else {"id": str(ref.id), "digest": ref.digest}


def _encode_catalog_ref(ref: CatalogRef | None) -> Json:
    return None if ref is None else {"path": ref.path, "digest": ref.digest}


def _decode_catalog_ref(fields: Fields, key: str) -> CatalogRef | None:
    inner = fields.inner(key)
    if inner is None:
        return None
    ref = CatalogRef(path=inner.text("path"), digest=inner.hexadecimal("digest", 64))
    owner = object_paths.owner(ref.path)
    # Made anew and compared, so that path and digest cannot contradict each other and no path can lead elsewhere.
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
        "job": _encode_job(manifest.job),
        "operators": {name: _encode_operator(name, op) for name, op in sorted(manifest.operators.items())},
        **check_json_fields(
            positions=dict(manifest.positions), watermark=manifest.watermark, properties=dict(manifest.properties)
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
    if (found := fields.id("id")) != checkpoint:
        fields.fail(f"expected the id {checkpoint}, found {found}")
    if (sequence := fields.integer("sequence", minimum=1)) != checkpoint.sequence:
        fields.fail(f"expected the sequence {checkpoint.sequence}, found {sequence}")
    parent = fields.ref_or_null("parent")
    # The walk down the chain ends where a sequence is below the boundary, so sequences have to fall.
    if (0 if parent is None else parent.id.sequence) >= sequence:
        fields.fail(f"its parent {parent and parent.id} is not older than itself")
    return Manifest(
        id=checkpoint,
        parent=parent,
        epoch=fields.integer_or_null("epoch", -(2**63)),
        created=fields.time_or_null("created"),
        job=_decode_job(fields.inner("job")),
        operators={
            operator: _decode_operator(name, operator, value, sequence)
            for operator, value in fields.mapping("operators").items()
        },
        positions=fields.mapping("positions"),
        watermark=fields.take("watermark"),
        properties=fields.mapping("properties"),
        clock=_decode_clock(fields.optional_inner("clock")),
        cost=_decode_cost(fields.optional_inner("cost")),
        extra=fields.rest(),
    )


def _encode_job(job: Job | None) -> Json:
    """Return the batch that wrote a manifest.

    The driver and Spark's progress are left out where they are not known.
    """
    if job is None:
        return None
    value: dict[str, Json] = {"query_id": job.query_id, "run_id": job.run_id, "batch_id": job.batch_id}
    if job.driver is not None:
        value["driver"] = job.driver
    if (spark := job.spark) is not None:
        value["spark"] = {"location": spark.location, "offsets": spark.offsets, "before": list(spark.before)}
        if spark.lists:
            value["spark"]["lists"] = dict(sorted(spark.lists.items()))
    return value


def _decode_job(fields: Fields | None) -> Job | None:
    if fields is None:
        return None
    query_id, run_id = fields.texts("query_id", "run_id")
    return Job(
        query_id,
        run_id,
        batch_id=fields.integer("batch_id"),
        driver=fields.optional_text("driver"),
        spark=_decode_spark(fields.optional_inner("spark")),
    )


def _decode_spark(fields: Fields | None) -> SparkProgress | None:
    if fields is None:
        return None
    before = fields.items("before")
    if not all(isinstance(line, str) for line in before):
        fields.fail(f"before: expected lines of text, found {show(before)}")
    location, offsets = fields.texts("location", "offsets")
    if not _OFFSETS.match(offsets):
        fields.fail(f"offsets: expected a version, then lines, found {show(offsets)}")
    lists = fields.optional("lists")
    if (
        not isinstance(lists, dict | None)
        or lists == {}
        or not all(LIST_ENTRY.fullmatch(name) and isinstance(digest, str) for name, digest in (lists or {}).items())
    ):
        fields.fail(f"lists: expected digests by <source>/<entry>, found {show(lists)}")
    return SparkProgress(location, offsets, tuple(before), lists or {})


def _encode_clock(clock: Clock | None) -> dict[str, Json]:
    """Return the field as it stands in a manifest.

    No field is returned for a job that has no clock.
    """
    return {} if clock is None else {"clock": {"at": format_time(clock.at), "source": clock.source}}


def _decode_clock(fields: Fields | None) -> Clock | None:
    if fields is None:
        return None
    at, source = fields.time("at"), fields.text("source")
    if source not in get_args(ClockSource):
        fields.fail(f"source: expected one of {', '.join(get_args(ClockSource))}, found {show(source)}")
    return Clock(at, source)  # type: ignore[arg-type]


def _encode_cost(cost: Cost | None) -> dict[str, Json]:
    """Return the field as it stands in a manifest.

    No field is returned where nothing was measured.
    """
    return {} if cost is None else {"cost": {name: getattr(cost, name) for name in COST_FIELDS}}


def _decode_cost(fields: Fields | None) -> Cost | None:
    if fields is None:
        return None
    return Cost(**dict(zip(COST_FIELDS, fields.integers(*COST_FIELDS), strict=True)))


def _encode_operator(name: str, operator: Operator) -> Json:
    # Called for its check alone: a name stands in a manifest as it is.
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
    # Fields of a newer writer are carried over into the next checkpoint (SPEC.md, "Versions").
    return head | body | dict(operator.extra)


def _decode_operator(manifest: str, operator: str, value: Json, sequence: int) -> Operator:
    fields = Fields(f"{manifest}: operator {operator!r:.60}", value)
    try:
        object_paths.encode_name("operator", operator)
    except IllegalArgumentError as error:
        fields.fail(str(error))
    partitions = fields.integer("partitions")
    partitioner, codec = fields.texts("partitioner", "codec")
    schema = fields.take("schema")
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
    segments = fields.optional("segments")
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
    return Operator(partitions, partitioner, codec, chains, schema, refs, extra=fields.rest())


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
