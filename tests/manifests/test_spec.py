"""Every example in SPEC.md, and in the files beside it, is what the library reads and writes, byte for byte."""

import hashlib
import io
import json
import math
import re
import zlib
from contextlib import nullcontext
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.checkpoint.latest import MAX_POINTER
from pyspark_checkpointer.checkpoint.metadata import MAX_CATALOG, MAX_MANIFEST
from pyspark_checkpointer.compaction import (
    DELTAS_OF_CHANGE,
    INLINE,
    INLINE_DELTAS,
    INLINE_UNCHANGED,
    SMALLEST_UNCHANGED,
)
from pyspark_checkpointer.manifests import map_expiry, object_paths
from pyspark_checkpointer.manifests.catalog_json import decode_catalog, encode_catalog
from pyspark_checkpointer.manifests.codecs import MAX_MAP_PARTITIONS
from pyspark_checkpointer.manifests.errors import InvalidStateError, MalformedError
from pyspark_checkpointer.manifests.followers_json import decode_followers, encode_followers
from pyspark_checkpointer.manifests.json_text import dump
from pyspark_checkpointer.manifests.keyed_records import check_places, decode, encode, partition_of
from pyspark_checkpointer.manifests.manifest_json import (
    decode_manifest,
    decode_pointer,
    encode_manifest,
    encode_pointer,
)
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, CheckpointId
from pyspark_checkpointer.manifests.msgpack_values import MAX_DEPTH, pack, unpack
from pyspark_checkpointer.manifests.positions_json import (
    MAX_MARKER,
    MAX_OWNERSHIP,
    MAX_POSITION,
    decode_marker,
    decode_ownership,
    decode_position,
    encode_marker,
    encode_ownership,
    encode_position,
)
from pyspark_checkpointer.manifests.segments import (
    decode_segment,
    encode_segment,
    load,
)
from pyspark_checkpointer.manifests.zstd import MAX_WINDOW, decompress
from pyspark_checkpointer.table.expiry import decode_rule, is_past, limit
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.key_filter import build_filter, key_hashes
from pyspark_checkpointer.table.merge import apply, fold_changes
from pyspark_checkpointer.table.parquet_decode import decode as decode_file
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.schema_evolution import first_schema
from tests.manifests.samples import alone, changed, sealed
from tests.manifests.test_msgpack_values import same
from tests.table.tables import far, long_decimals, text

FOLDER = Path(__file__).parents[2] / "manifests"
PAGES = {name: (FOLDER / name).read_text("utf-8") for name in ("SPEC.md", "BLOCKS.md", "PROTOCOL.md", "POSITIONS.md")}
SPEC = PAGES["SPEC.md"]
FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
FENCES: list[tuple[str, str]] = [found for page in PAGES.values() for found in FENCE.findall(page)]
TEXTS = {label.removeprefix("text "): body for label, body in FENCES if label.startswith("text ")}
FILES = {label.removeprefix("json "): body for label, body in FENCES if label.startswith("json ")}
NAMES: dict[str, Any] = {
    kind.__name__: kind for kind in (Decimal, UUID, ZoneInfo, date, datetime, time, timedelta, timezone)
} | {"UTC": UTC}


MANIFEST = "manifests/0000000042-1a2b3c4d.json"
MANIFEST_ID = CheckpointId.parse("0000000042-1a2b3c4d")

PROGRESS_FORMS: dict[str, tuple[Any, Any]] = {
    "ownership.json": (encode_ownership, decode_ownership),
    "0.json": (encode_position, decode_position),
    "store.json": (encode_marker, decode_marker),
    "followers.json": (encode_followers, decode_followers),
}


def stored(example: str) -> bytes:
    """What an example looks like in a store: the same without whitespace."""
    return dump(json.loads(example))


def rows(name: str) -> list[list[str]]:
    return [[part.strip() for part in line.split("→")] for line in TEXTS[name].splitlines()]


def test_every_example_is_tested() -> None:
    assert sorted(TEXTS) == [
        "accepted JSON",
        "accepted values",
        "chains",
        "equal keys",
        "expiry",
        "filter bits of 100",
        "frames",
        "key partitions of 200",
        "keys in partition 4 of 8",
        "map expiry",
        "merged values",
        "merging",
        "msgpack",
        "names",
        "partitions of 8",
        "paths",
        "progress names",
        "records",
        "refused JSON",
        "refused changes",
        "refused records",
        "refused values",
        "stored values",
    ]
    kinds = sorted(re.sub(r"[/ ].*", "", name) for name in FILES)
    assert kinds == [
        "_latest",
        "catalog",
        "manifests",
        "manifests",
        *["progress"] * 4,
        "segment",
        "segment",
        "table",
        "table",
    ]
    assert len(FENCES) == len(TEXTS) + len(FILES)
    assert sum(page.count("```") for page in PAGES.values()) == 2 * len(FENCES)


@pytest.mark.parametrize("name", FILES)
def test_a_json_example_is_what_the_library_reads_and_writes(name: str) -> None:
    data = stored(FILES[name])
    path = name.removeprefix("segment ")
    if name.startswith("table"):
        assert dump(TableSchema.from_json("t", json.loads(data)).to_json()) == data
    elif path == object_paths.LATEST:
        assert encode_pointer(decode_pointer(data)) == data
    elif path.startswith(object_paths.CONSUMERS):
        encode_one, decode_one = PROGRESS_FORMS[Path(path).name]
        assert encode_one(decode_one(path, data), json.loads(data)["nonce"]) == data
    elif path.startswith(object_paths.CATALOGS):
        assert encode_catalog(decode_catalog(path, data)) == data
        assert json.loads(FILES["_latest"])["catalog"] == {"path": path, "digest": object_paths.digest_of(path)}
    elif path.startswith(object_paths.SEGMENTS):
        operator = decode_manifest_of_segments()
        segment = next(segment for segment in operator.segments if segment.path == path)
        patches = decode_segment(segment, "big", operator.partitions, operator.codec, zstandard.compress(data))
        owner = object_paths.owner(path)
        assert owner is not None
        written = encode_segment(owner, "big", patches)[1].data
        assert zstandard.decompress(written) == data
        assert (segment.raw_size, segment.entries) == (len(data), len(patches))
    else:
        owner = object_paths.owner(path)
        assert owner is not None
        assert encode_manifest(decode_manifest(owner, data)) == data


def decode_manifest_of_segments() -> Any:
    path = "manifests/0000000051-5e6f7a8b.json"
    manifest = decode_manifest(CheckpointId.parse(path[10:29]), stored(FILES[path]))
    return manifest.operators["big"]


def test_the_pointer_names_the_manifest() -> None:
    path = "manifests/0000000042-1a2b3c4d.json"
    digest = json.loads(FILES["_latest"])["committed"]["digest"]
    assert hashlib.sha256(stored(FILES[path])).hexdigest() == digest


def test_the_segments_make_the_chains() -> None:
    operator = decode_manifest_of_segments()
    patches = [
        decode_segment(
            segment,
            "big",
            operator.partitions,
            operator.codec,
            zstandard.compress(stored(FILES[f"segment {segment.path}"])),
        )
        for segment in operator.segments
    ]
    chains = load("big", operator, patches).chains
    expected = dict(map(int, line.split()) for line in TEXTS["chains"].splitlines())
    assert {partition: len(chain) for partition, chain in chains.items()} == expected


def test_paths() -> None:
    for line in TEXTS["paths"].splitlines():
        owner, path = line.split()
        assert str(object_paths.owner(path) or "-") == owner, path


def test_names() -> None:
    for line in TEXTS["names"].splitlines():
        name, encoded = line.rsplit(" ", 1)
        assert object_paths.encode_name("operator", name) == encoded


@pytest.mark.parametrize(("value", "data"), rows("msgpack"))
def test_msgpack(value: str, data: str) -> None:
    evaluated = eval(value, NAMES)
    assert pack(evaluated).hex() == data
    assert same(unpack(bytes.fromhex(data)), evaluated)


@pytest.mark.parametrize(("data", "value"), rows("accepted values"))
def test_other_forms_of_a_value_are_read(data: str, value: str) -> None:
    found, wanted = unpack(bytes.fromhex(data)), eval(value, NAMES)
    assert same(found, wanted)
    assert pack(found).hex() != data


@pytest.mark.parametrize(("data", "why"), rows("refused values"))
def test_values_that_are_not_of_the_format_are_refused(data: str, why: str) -> None:
    # The zone may be one of a newer database: then the value is no damage.
    with pytest.raises(InvalidStateError if why == "a zone that nobody knows" else MalformedError):
        unpack(bytes.fromhex(data))


@pytest.mark.parametrize(("data", "why"), rows("refused records"))
def test_records_that_are_not_of_the_format_are_refused(data: str, why: str) -> None:
    raw = bytes.fromhex(data)
    for records in (1, 2):
        with pytest.raises(MalformedError):
            decode("x", zstandard.compress(raw), len(raw), records)


@pytest.mark.parametrize(("data", "content"), rows("frames"))
def test_frames_are_decompressed_as_shown(data: str, content: str) -> None:
    if content.startswith("refused: "):
        for size in (3, 4):
            with pytest.raises(MalformedError):
                decompress("x", bytes.fromhex(data), size)
    else:
        assert decompress("x", bytes.fromhex(data), len(content)) == content.encode()


def with_watermark(text: str) -> bytes:
    """The manifest of the examples, with a text in the place of its watermark."""
    return stored(FILES[MANIFEST]).replace(b'"2024-01-02T03:00:00Z"', text.encode())


@pytest.mark.parametrize("text", TEXTS["accepted JSON"].splitlines())
def test_other_json_is_read(text: str) -> None:
    assert decode_manifest(MANIFEST_ID, with_watermark(text)).watermark == json.loads(text)


@pytest.mark.parametrize("text", TEXTS["refused JSON"].splitlines())
def test_json_that_is_not_of_the_format_is_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        decode_manifest(MANIFEST_ID, with_watermark(text))


def decode_example(path: str, data: bytes) -> Any:
    if path == object_paths.LATEST:
        return decode_pointer(sealed(data))
    if path.startswith(object_paths.CATALOGS):
        return decode_catalog(path, data)
    if path == "table":
        return TableSchema.from_json("t", json.loads(data))
    owner = object_paths.owner(path)
    assert owner is not None
    return decode_manifest(owner, data)


@pytest.mark.parametrize(("example", "field", "value", "why"), rows("refused changes"))
def test_a_change_that_the_format_does_not_allow_is_refused(example: str, field: str, value: str, why: str) -> None:
    path = next(name for name in FILES if name.startswith(example))
    data = stored(FILES[path])
    decode_example(path, data)
    if value.startswith("= "):
        other: Any = json.loads(data)
        for part in value[2:].split("."):
            other = other[int(part)] if isinstance(other, list) else other[part]
        value = json.dumps(other)
    marked = changed(data, field, "the new value")
    with pytest.raises(MalformedError):
        decode_example(path, marked.replace(b'"the new value"', value.encode()))


def test_records() -> None:
    stored, raw_size = encode({"a": pack(1), "b": None})
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(stored)
    assert raw.hex() == "".join(data for _, data in rows("records"))
    assert raw_size == len(raw)


@pytest.mark.parametrize(("key", "canonical", "crc", "partition"), rows("partitions of 8"))
def test_partitions(key: str, canonical: str, crc: str, partition: str) -> None:
    assert zlib.crc32(bytes.fromhex(canonical)) == int(crc)
    assert int(crc) % 8 == int(partition)
    assert partition_of(eval(key, NAMES), 8) == int(partition)
    assert partition_of(eval(key, NAMES), 2**32) == int(crc)


@pytest.mark.parametrize(("keys", "outcome"), rows("equal keys"))
def test_equal_keys(keys: str, outcome: str) -> None:
    one, other = eval(keys, NAMES)
    assert (one == other) is (outcome == "equal")
    assert len({one, other}) == len(KeyedState([(one, 1), (other, 2)])) == (1 if outcome == "equal" else 2)
    if outcome == "equal":
        assert partition_of(one, 2**32) == partition_of(other, 2**32)


@pytest.mark.parametrize(("key", "outcome"), rows("keys in partition 4 of 8"))
def test_a_key_in_another_partition_than_its_own_is_refused(key: str, outcome: str) -> None:
    snapshot = alone(4, codec="msgpack+zstd")
    if outcome == "held":
        check_places([eval(key, NAMES)], 4, 8, (snapshot,), ())
        return
    with pytest.raises(MalformedError, match=f"^{re.escape(snapshot.path)}: .* partition {outcome[-1]}$"):
        check_places([eval(key, NAMES)], 4, 8, (snapshot,), ())


@pytest.mark.parametrize(("types", "values", "partition"), rows("key partitions of 200"))
def test_partitions_of_tables(types: str, values: str, partition: str) -> None:
    keys, schema = one_key(types, values)
    assert partitions_of(keys, schema, 200) == [int(partition)]


@pytest.mark.parametrize(("types", "values", "bits"), rows("filter bits of 100"))
def test_filters_of_packs(types: str, values: str, bits: str) -> None:
    keys, _ = one_key(types, values)
    # The same key many times: a filter is as large as the number of keys says.
    data = build_filter(np.repeat(key_hashes(keys), 2133))
    assert len(data) == 3200
    found = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little"))
    assert found.tolist() == [int(bit) for bit in bits.split(",")]


def one_key(types: str, values: str) -> tuple[pa.Table, TableSchema]:
    names = [f"k{number}" for number in range(len(re.findall(r"\w+(?:\(.*?\))?", types)))]
    fields = [{"name": n, "type": t, "metadata": {}} for n, t in zip(names, re.split(r", ", types), strict=True)]
    schema = first_schema("t", fields, names, {})
    given = eval(f"[{values}]", NAMES)
    columns = zip(given, schema.columns, strict=True)
    return pa.table([held(value, column.field().type) for value, column in columns], names), schema


def held(value: Any, kind: pa.DataType) -> pa.Array:
    """A value in a column: also text that is not UTF-8, or the integer that is stored for a value."""
    if isinstance(value, bytes) and kind == pa.string():
        return text(value)
    if isinstance(value, int) and pa.types.is_decimal(kind):
        return long_decimals(kind, value)
    return far(kind, value) if isinstance(value, int) and pa.types.is_temporal(kind) else pa.array([value], kind)


@pytest.mark.parametrize(("kind", "value", "outcome"), rows("stored values"))
def test_values_are_stored_as_shown(kind: str, value: str, outcome: str) -> None:
    kind, _, physical = kind.partition(" as ")
    schema = first_schema(
        "t", [{"name": n, "type": t, "metadata": {}} for n, t in (("k", "long"), ("v", kind))], ["k"], {}
    )
    given = held(eval(value), schema.columns[1].field().type)
    rows = pa.table([pa.array([1]), given], schema=schema.arrow())
    sink = io.BytesIO()
    pq.write_table(rows, sink, store_decimal_as_integer=bool(physical))
    leaf = pq.ParquetFile(io.BytesIO(sink.getvalue())).schema.column(1)
    assert physical in ("", leaf.physical_type)
    with nullcontext() if outcome == "accepted" else pytest.raises(MalformedError):
        assert decode_file("object", sink.getvalue(), schema, ["v"])["v"].chunk(0).equals(given)


@pytest.mark.parametrize(("given", "wanted"), rows("merging"))
def test_changes_of_a_table_are_merged_as_shown(given: str, wanted: str) -> None:
    """At once, and folded first."""
    kinds = {"k": "long", "n": "long", "title": "string", "owner": "string"}
    schema = first_schema("t", [{"name": n, "type": t, "metadata": {}} for n, t in kinds.items()], ["k"], {"n": "sum"})
    below, *steps = given.split("; ")
    deltas = []
    for step in steps:
        found = re.fullmatch(r"(merge|reset|delete) (\[.*\])(?: ([\d,]+))?", step)
        assert found is not None
        change = ["merge", "reset", "delete"].index(found[1])
        deltas.append((1, *eval(found[2]), 0, change, found[3]))
    stored = schema.arrow_delta(kept=True)
    changes = pa.table(
        [pa.array(c, f.type) for c, f in zip(zip(*deltas, strict=True), stored, strict=True)], schema=stored
    )
    there = [] if below == "nothing" else [dict(zip(kinds, [1, *eval(below)], strict=True))]
    base = pa.Table.from_pylist(there, schema.arrow())
    for some in (changes, fold_changes(changes, schema, "t")):
        left = [list(row.values())[1:] for row in apply(base, some, schema, "t").to_pylist()]
        assert left == ([] if wanted == "nothing" else [eval(wanted)])


@pytest.mark.parametrize(("given", "wanted"), rows("merged values"))
def test_values_of_one_column_are_merged_as_shown(given: str, wanted: str) -> None:
    """On top of the first one and on top of nothing, at once and folded first."""
    kind, role, values = given.split(" ", 2)
    kinds = {"k": "long", "v": kind}
    schema = first_schema("t", [{"name": n, "type": t, "metadata": {}} for n, t in kinds.items()], ["k"], {"v": role})
    names = NAMES | {"nan": math.nan}
    steps = eval(f"[{values}]", names)
    stored = schema.arrow_delta()
    for above in (steps, steps[1:]):
        base = pa.Table.from_pylist([{"k": 1, "v": steps[0]}] * (len(steps) - len(above)), schema.arrow())
        columns = [[1] * len(above), above, [0] * len(above), [0] * len(above)]
        changes = pa.table([pa.array(c, f.type) for c, f in zip(columns, stored, strict=True)], schema=stored)
        for some in (changes, fold_changes(changes, schema, "t")):
            assert same(apply(base, some, schema, "t")["v"].to_pylist(), [eval(wanted, names)])


def test_rows_expire_as_shown() -> None:
    """By the rule of the table in the example, at the clock of the manifest in the example."""
    rule = decode_rule(json.loads(FILES["table"])["expire"])
    clock = decode_manifest(MANIFEST_ID, stored(FILES[MANIFEST])).clock
    assert clock is not None
    for line in TEXTS["expiry"].splitlines():
        text, result = line.split(" → ")
        time = None if text == "null" else datetime.fromisoformat(text)
        assert is_past(time, limit(rule, clock.at)) == (result == "expired"), line


def test_entries_of_maps_expire_as_told() -> None:
    found = re.search(r'With `(\{"after_us".*?\})`', SPEC)
    assert found is not None
    rule = map_expiry.decode_schema("m", {"expire": json.loads(found[1])})
    clock = decode_manifest(MANIFEST_ID, stored(FILES[MANIFEST])).clock
    for line in TEXTS["map expiry"].splitlines():
        value, result = line.split(" → ")
        if result == "refused":
            with pytest.raises(MalformedError):
                map_expiry.living("m", {"k": bytes.fromhex(value)}, rule, clock)
            continue
        living, _ = map_expiry.living("m", {"k": bytes.fromhex(value)}, rule, clock)
        assert {key: unpack(packed) for key, packed in living.items()} == (
            {} if result == "expired" else {"k": int(result)}
        ), line
    assert map_expiry.encode_schema(rule) == {"expire": json.loads(found[1])}


MAX_READER_WORDS = 5_000


def test_what_a_reader_has_to_read_stays_short() -> None:
    assert sum(bool(re.search(r"\w", word)) for word in FENCE.sub("", SPEC).split()) <= MAX_READER_WORDS


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    protocol = PAGES["PROTOCOL.md"]
    assert f"# The format, version {FORMAT_VERSION}\n" in SPEC
    assert f"Up to {INLINE} chains of an operator stand in the manifest, with up to {INLINE_DELTAS} deltas" in protocol
    assert f"or {DELTAS_OF_CHANGE} for each chain that" in protocol
    assert f"at most {INLINE_UNCHANGED} artifacts" in protocol
    assert re.search(rf"with {SMALLEST_UNCHANGED}\s+artifacts or more that the checkpoint does not change", protocol)
    assert f"a window of at most {MAX_WINDOW >> 20} MiB" in SPEC
    assert f"At most {MAX_DEPTH} extensions" in SPEC
    assert f"at most {object_paths.MAX_NAME} bytes" in SPEC
    assert f"of a map 1 to {MAX_MAP_PARTITIONS:,}" in SPEC
    largest = (
        f"A pointer has at most {MAX_POINTER >> 20} MiB, a manifest {MAX_MANIFEST >> 20}, a catalog {MAX_CATALOG >> 20}"
    )
    assert f"{largest}." in SPEC


@pytest.mark.parametrize(
    ("page", "link"), [(page, link) for page, text in PAGES.items() for link in re.findall(r"\]\(([^)]+)\)", text)]
)
def test_links_lead_somewhere(page: str, link: str) -> None:
    name, _, anchor = link.partition("#")
    text = PAGES.get(name or page) or (FOLDER / name).read_text("utf-8")
    headings = [
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.M)
    ]
    assert anchor in headings or (name and not anchor)


def test_the_names_of_progress_are_encoded_as_shown() -> None:
    for name, encoded in rows("progress names"):
        assert object_paths.encode_part("x" * 161 if name == "161 times x" else name) == encoded


def test_the_objects_of_progress_stand_where_the_paths_say() -> None:
    folder = object_paths.group_folder("kinesis", "clicks")
    assert {object_paths.ownership(folder), object_paths.position(folder, "0")} <= FILES.keys()
    assert object_paths.store(object_paths.group_folder("eventprocessorhost", "clicks", "$Default")) in FILES


def test_the_limits_of_progress_are_those_of_the_library() -> None:
    assert [MAX_OWNERSHIP, MAX_POSITION, MAX_MARKER] == [16 << 20, 256 << 10, 64 << 10]
    for size in ("16 MiB", "256 KiB", "64 KiB"):
        assert f"| {size} |" in PAGES["POSITIONS.md"]
