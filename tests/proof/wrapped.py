"""Decoders that need more than bytes, as functions of bytes alone; and their encoders."""

import asyncio
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from pyspark_checkpointer.admin.retention.plan import CleanupPlan
from pyspark_checkpointer.admin.streaming import file_source_log, log_plan, offset_log, rewind_record
from pyspark_checkpointer.admin.streaming.offset_log import SparkLog
from pyspark_checkpointer.consumers.journal import yaml_format
from pyspark_checkpointer.consumers.kinesis.sequence import ExtendedSequenceNumber
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests import (
    codecs,
    keyed_records,
    map_expiry,
    msgpack_values,
    object_paths,
    positions_json,
    segments,
    tagged_json,
    zstd,
)
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.json_fields import Fields
from pyspark_checkpointer.manifests.json_text import dump
from pyspark_checkpointer.manifests.map_expiry import MapRule
from pyspark_checkpointer.manifests.model import (
    DELTA,
    SNAPSHOT,
    Artifact,
    CheckpointId,
    Clock,
    Job,
    Json,
    Patches,
    Segment,
    SparkProgress,
)
from pyspark_checkpointer.storage import url
from pyspark_checkpointer.storage.base import Blob, ListedObject
from pyspark_checkpointer.table import parquet_encode
from pyspark_checkpointer.table.key_filter import SoughtKeys
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.row_groups import RowGroups
from pyspark_checkpointer.table.schema import PARTITION, TableSchema
from pyspark_checkpointer.table.version import TableVersion
from tests.manifests.samples import CATALOG, ID, digest
from tests.proof import seeds

NAME = "the/object"

# ---- the format's own ------------------------------------------------------------------------------------------------

CATALOG_PATH = object_paths.catalog(CATALOG.id, digest("any"))


def segment(data: bytes) -> Patches:
    """The first byte is how many entries the manifest promises."""
    stored = zstandard.ZstdCompressor().compress(data[1:])
    segment = Segment(object_paths.segment(ID, sha256(stored)), len(stored), len(data) - 1, data[0] if data else 0)
    patches = segments.decode_segment(segment, "totals", 10, codecs.RAW.name, stored)
    segments.load("totals", seeds.MANIFEST.operators["totals"], [patches])
    return patches


def encode_segment(patches: Patches) -> bytes:
    segment, stored = segments.encode_segment(ID, "totals", patches)
    return bytes([segment.entries]) + zstd.decompress(segment.path, stored.data, segment.raw_size)


def frame(data: bytes) -> bytes:
    """The first three bytes are the size that the manifest promises."""
    return zstd.decompress(NAME, data[3:], int.from_bytes(data[:3], "big"))


def encode_frame(raw: bytes) -> bytes:
    return len(raw).to_bytes(3, "big") + zstandard.ZstdCompressor().compress(raw)


def keyed(data: bytes) -> dict[Any, bytes | None]:
    """The first two bytes are how many records the manifest promises, the rest is what the frame holds."""
    raw = data[2:]
    stored = zstandard.ZstdCompressor().compress(raw)
    return keyed_records.decode(NAME, stored, len(raw), int.from_bytes(data[:2], "big"))


def encode_keyed(records: dict[Any, bytes | None]) -> bytes:
    stored, raw_size = keyed_records.encode(records)
    return len(records).to_bytes(2, "big") + zstd.decompress(NAME, stored, raw_size)


def among_others(data: bytes) -> Any:
    """Decode a value as one of many, as a whole map is read."""
    together = msgpack_values.unpack_all([b"\x01", data, b"\xff"])
    return msgpack_values.unpack(data) if together is None else together[1]


def as_plain(data: bytes) -> Any:
    """Decode a value as a map does that has had only plain ones so far."""
    try:
        return msgpack_values.unpack_by_msgspec(data)
    except (ValueError, RecursionError):
        return msgpack_values.unpack(data)


def as_json(data: bytes) -> bytes:
    return json.dumps(tagged_json.to_json(msgpack_values.unpack(data)), allow_nan=False).encode()


def reseal_journal(data: bytes) -> bytes:
    _, line, body = data.partition(b"\n")
    return yaml_format._SEAL % sha256(body).encode() + body if line else data


def as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def path(data: bytes) -> object:
    path = as_text(data)
    object_paths.parse_position_path(path)
    object_paths.is_position(path)
    owner = object_paths.owner(path)
    name = object_paths.parse_artifact(path)
    assert owner == name.id
    assert object_paths.digest_of(path) == name.digest
    assert object_paths.under(path, ID)
    assert ".." not in path.split("/")
    return name


def encode_path(name: object_paths.ArtifactName) -> bytes:
    if name.partition is None or name.kind is None:
        return object_paths.pack(name.operator, name.id, name.digest, name.codec).encode()
    return object_paths.artifact(name.operator, name.partition, name.id, name.kind, name.digest, name.codec).encode()


def progress_path(data: bytes) -> object_paths.PositionPath:
    found = object_paths.parse_position_path(as_text(data))
    if found is None:
        raise MalformedError("none of the format's own")
    assert object_paths.owner(found.path) is None
    assert ".." not in found.path.split("/")
    return found


# ---- progress --------------------------------------------------------------------------------------------------------


def position(of: Callable[[positions_json.Position], Any]) -> Callable[[bytes], Any]:
    return lambda data: of(positions_json.decode_position(NAME, data))


def positions(found: tuple[Json, ...]) -> tuple[bytes, ...]:
    return tuple(map(seeds.position, found))


# ---- tables ----------------------------------------------------------------------------------------------------------


def map_entries(data: bytes) -> tuple[MapRule | None, dict[str, bytes]]:
    """The rule of a map, and of an entry with and without a time what is read."""
    fields = Fields.parse(NAME, data)
    rule = map_expiry.decode_schema(NAME, fields.take("schema"))
    stored = {"none": b"\x07", "some": fields.text("value").encode("latin-1", "replace")}
    return rule, map_expiry.living(NAME, stored, rule, Clock(datetime(2024, 1, 2, tzinfo=UTC), "job"))[0]


def encode_map_entries(rule: MapRule | None, time: int) -> bytes:
    value = map_expiry.with_time(b"\x07", time).decode("latin-1")
    schema = map_expiry.encode_schema(rule)
    return dump({"format_version": 1, "schema": schema, "value": value})


def schema(data: bytes) -> TableSchema:
    schema = TableSchema.from_json("t", Fields.parse(NAME, data).take("schema"))
    assert str(schema)
    assert len(schema.arrow_delta()) == len(schema.columns) + 2
    return schema


def encode_table(rows: pa.Table) -> bytes:
    return parquet_encode.encode(rows).data


def row_groups(data: bytes) -> pa.Table:
    """As a lookup reads a file: its tail, then some of its row groups."""
    tail = data[-(int.from_bytes(data[-8:-4], "little") + 8) :]
    groups = RowGroups(NAME, len(data), tail, seeds.TABLE)
    wanted = groups.of_keys(pa.table({"k": pa.array([3, 7], pa.int64())}))
    ranges = {group: groups.ranges[group] for group in wanted}
    found = {group: data[max(start, 0) :][: max(size, 0)] for group, (start, size, _) in ranges.items()}
    return groups.read(found, seeds.TABLE.names)


def blocks(data: bytes) -> pa.Table:
    """Read a file with an index as a lookup does: what follows the last row group, then some of its blocks."""
    groups = RowGroups(NAME, len(data), data, seeds.TABLE)
    chosen = groups.select_keys(pa.table({"k": pa.array([3, 7], pa.int64())}))
    found = [data[max(start, 0) :][: max(size, 0)] for start, size in chosen.ranges]
    return chosen.decode(found, seeds.TABLE.names)


def key_filter(data: bytes) -> Any:
    """As a lookup reads a pack: its filter, which of its blocks may hold the keys, and how many rows it can have."""
    groups = RowGroups(NAME, len(data), data, seeds.TABLE)
    if groups.filter_range is None:
        return None
    start, size, digest = groups.filter_range
    found = data[start : start + size]
    groups.filter_range = start, size, sha256(found)  # Else each changed byte of it would be found by its digest.
    groups.read_filter(found)
    groups.filter_range = start, size, digest
    sought = SoughtKeys(pa.table({"k": pa.array([3, 7], pa.int64())}), seeds.TABLE.key, 2)
    chosen = groups.select_changes(sought)
    parts = [data[max(at, 0) :][: max(length, 0)] for at, length in (chosen.ranges if chosen else ())]
    return chosen and chosen.decode(parts, seeds.TABLE.names), groups.counts([0, 1])


class Held:
    """A store of a few objects, for readers."""

    url = "held://"

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return Blob(self._objects[path])

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self._objects[path][offset : offset + length]


class Inline:
    """A host that computes where it is asked."""

    async def run(self, compute: Callable[[], Any]) -> Any:
        return compute()


BASE = seeds.snapshots()[0]


def table_rows(pack: bytes, records: int, base: bytes = BASE, rows: int = 20) -> pa.Table:
    """The rows of a partition whose delta is `pack`, of which its manifest says that `records` are the partition's."""

    def artifact(kind: Any, data: bytes, records: int) -> Artifact:
        return Artifact(kind, kind, 0, len(data), len(data), 1, records, sha256(data))

    chain = (artifact(SNAPSHOT, base, rows), artifact(DELTA, pack, records))
    reader = TableReader(
        Held({SNAPSHOT: base, DELTA: pack}),  # type: ignore[arg-type]
        Inline(),  # type: ignore[arg-type]
        TableVersion("t", seeds.TABLE, 2, {0: chain}),
    )
    return asyncio.run(reader.rows(0))


def delta(data: bytes) -> pa.Table:
    try:
        numbers = pq.read_table(io.BytesIO(data), columns=[PARTITION])[PARTITION].to_pylist()
        records = numbers.count(0)
    except Exception:
        records = 5
    return table_rows(data, records)


# ---- beside the store ------------------------------------------------------------------------------------------------


def fields_of(plan: CleanupPlan) -> list[object]:
    """All that a plan says besides its rows."""
    return [getattr(plan, field.name) for field in fields(plan) if not field.name.startswith("_")]


def plan(data: bytes) -> object:
    """Its rows too, and the same of what it saves."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan"
        path.write_bytes(data)
        plan = CleanupPlan.load(path)
        plan.save(path)
        again = CleanupPlan.load(path)
        assert repr((fields_of(again), list(again))) == repr((fields_of(plan), list(plan)))
    return plan


def rows_of_plan(data: bytes) -> object:
    """The same with rows that are not compressed yet."""
    head, _, rows = data.partition(b"\n")
    return plan(head + b"\n" + zstandard.compress(rows))


class OneFile:
    """A `checkpointLocation` in which every file that is read holds the same bytes."""

    url = "spark"

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return Blob(self.data)

    async def folders(self, prefix: str) -> list[str]:
        return [f"{prefix}1/", f"{prefix}0001/"]

    async def list(self, prefix: str) -> list[ListedObject]:
        return [ListedObject(f"{prefix}1", len(self.data))]


def spark(data: bytes) -> object:
    """What can be made of Spark's files, and of the record of a rewind beside them."""

    async def read(store: Any) -> list[object]:
        found: list[object] = []
        job = Job("q", "r", 1)
        listed = replace(job, spark=SparkProgress("spark", 'v1\n{}\n{"logOffset":1}', (), {"0/1": "0" * 64}))
        log = SparkLog("spark", "q", (1,), (1,), ())
        for work in (
            lambda: offset_log.read_log(store),
            lambda: rewind_record.read_records(store),
            lambda: log_plan.plan_log(store, log, job, None),
            lambda: file_source_log.check_lists(store, listed),
            lambda: log_plan.commit_of(store, log, job),
        ):
            try:
                found.append(await work())
            except CheckpointError as error:
                last = error
        if not found[1:]:
            raise last
        return found

    return asyncio.run(read(OneFile(data)))


def spark_offsets(data: bytes) -> object:
    try:
        offsets = offset_log.BatchOffsets.parse(as_text(data))
    except ValueError as error:  # which `read_offsets` says more about
        raise IllegalArgumentError(str(error) or "no") from None
    assert offset_log.same_offsets(offsets.sources, offsets.sources)
    offset_log.same_offsets(offsets.sources, [f"{line} " for line in offsets.sources])
    return offsets.watermark, offsets.time


def file_list(data: bytes) -> object:
    found = file_source_log.digest(data.decode(errors="replace"), 1)
    if found is None:
        raise IllegalArgumentError("no such entry")
    return found


def encode_url(location: url.Location) -> bytes:
    return location.url.encode("utf-8", "surrogateescape")


def number(data: bytes) -> object:
    text = as_text(data)
    return CheckpointId.parse(text) if text[10:11] == "-" else ExtendedSequenceNumber.parse(text)
