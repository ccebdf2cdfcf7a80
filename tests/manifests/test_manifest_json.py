"""The pointer, manifests and catalogs: what is written comes back, and what is bad ends in the right error."""

import json
import pickle
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta, timezone
from types import EllipsisType
from typing import Any

import pytest
from hypothesis import given

from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.catalog_json import decode_catalog, encode_catalog
from pyspark_checkpointer.manifests.errors import (
    CheckpointError,
    CorruptionError,
    DigestMismatchError,
    IllegalArgumentError,
    MalformedError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests.json_text import check_json
from pyspark_checkpointer.manifests.manifest_json import (
    decode_manifest,
    decode_pointer,
    encode_manifest,
    encode_pointer,
)
from pyspark_checkpointer.manifests.model import (
    DELTA,
    FORMAT_VERSION,
    Artifact,
    Catalog,
    CheckpointId,
    Job,
    Json,
    Manifest,
    Operator,
    Pointer,
    Ref,
    Tail,
    Writer,
)
from tests.manifests.samples import (
    AT,
    CATALOG,
    ID,
    MANIFEST,
    PARENT,
    POINTER,
    alone,
    catalogs,
    changed,
    digest,
    empty_snapshot,
    json_values,
    manifests,
    packed,
    pointers,
    sealed,
    table_delta,
)

POINTER_BYTES = encode_pointer(POINTER)
MANIFEST_BYTES = encode_manifest(MANIFEST)
CATALOG_BYTES = encode_catalog(CATALOG)
CATALOG_PATH = object_paths.catalog(CATALOG.id, digest("any"))

Read = Callable[[bytes], Any]
FILES: dict[str, tuple[str, bytes, Read]] = {
    "pointer": ("_latest", POINTER_BYTES, lambda data: decode_pointer(data)),
    "manifest": (object_paths.manifest(ID), MANIFEST_BYTES, lambda data: decode_manifest(ID, data)),
    "catalog": (CATALOG_PATH, CATALOG_BYTES, lambda data: decode_catalog(CATALOG_PATH, data)),
}

# ---- round trips ----------------------------------------------------------------------------------------------------


@given(pointers())
def test_any_pointer_comes_back(pointer: Pointer) -> None:
    data = encode_pointer(pointer)
    assert decode_pointer(data) == pointer
    assert encode_pointer(decode_pointer(data)) == data


@given(manifests())
def test_any_manifest_comes_back(manifest: Manifest) -> None:
    data = encode_manifest(manifest)
    assert decode_manifest(manifest.id, data) == manifest
    assert encode_manifest(decode_manifest(manifest.id, data)) == data


@given(catalogs)
def test_any_catalog_comes_back(catalog: Catalog) -> None:
    data = encode_catalog(catalog)
    path = object_paths.catalog(catalog.id, digest("any"))
    assert decode_catalog(path, data) == catalog
    assert encode_catalog(decode_catalog(path, data)) == data


def test_the_samples_come_back() -> None:
    assert decode_pointer(POINTER_BYTES) == POINTER
    assert decode_manifest(ID, MANIFEST_BYTES) == MANIFEST
    assert decode_catalog(CATALOG_PATH, CATALOG_BYTES) == CATALOG


def test_bytes_do_not_depend_on_the_order_of_mappings() -> None:
    totals = MANIFEST.operators["totals"]
    turned = replace(totals, chains=dict(reversed(totals.chains.items())))
    operators = {"totals": turned, **{n: op for n, op in reversed(MANIFEST.operators.items()) if n != "totals"}}
    assert encode_manifest(replace(MANIFEST, operators=operators)) == MANIFEST_BYTES


def test_a_time_is_written_in_utc() -> None:
    there = AT.astimezone(timezone(timedelta(hours=-9)))
    assert encode_manifest(replace(MANIFEST, created=there)) == MANIFEST_BYTES
    assert b'"created":"2024-01-02T03:04:05.000678Z"' in MANIFEST_BYTES


@pytest.mark.parametrize("kind", FILES)
def test_fields_of_a_newer_writer_survive(kind: str) -> None:
    _, data, read = FILES[kind]
    newer = {"x_list": [1, {"deep": None}], "x_text": "ü", "x_null": None}
    for key, value in newer.items():
        data = changed(data, key, value)
    if kind == "pointer":
        data = sealed(changed(changed(data, "digest", ...), "digest", ""))
    value = read(data)
    assert {key: value.extra[key] for key in newer} == newer
    write: Any = {"pointer": encode_pointer, "manifest": encode_manifest, "catalog": encode_catalog}[kind]
    assert read(write(value)) == value


def test_fields_of_a_newer_operator_survive() -> None:
    data = changed(MANIFEST_BYTES, "operators.totals.x_new", {"a": 1})
    found = decode_manifest(ID, data)
    assert found.operators["totals"].extra == {"operator_colour": "blue", "x_new": {"a": 1}}
    assert decode_manifest(ID, encode_manifest(found)) == found


def test_a_manifest_may_say_nothing_of_its_cost() -> None:
    silent = replace(MANIFEST, cost=None)
    assert b"cost" not in encode_manifest(silent)
    assert decode_manifest(ID, changed(MANIFEST_BYTES, "cost", ...)) == silent


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 99, 2**62])
def test_a_newer_version_is_refused_by_name(kind: str, version: int) -> None:
    name, data, read = FILES[kind]
    with pytest.raises(UnsupportedFormatError, match=rf"^{name}: has format version {version}, .* up to 1: upgrade"):
        read(changed(data, "format_version", version))
    with pytest.raises(UnsupportedFormatError, match=rf"version {version}"):
        read(b'{"format_version":%d,"nothing":"else"}' % version)


# ---- bad bytes that any file can have -------------------------------------------------------------------------------

GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "zeroes": bytes(512),
    "not UTF-8": b'{"format_version":1,"x":"\xff"}',
    "UTF-16": '{"format_version":1}'.encode("utf-16"),
    "a byte-order mark": b'\xef\xbb\xbf{"format_version":1}',
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "text": b'"text"',
    "no version": b"{}",
    "version null": b'{"format_version":null}',
    "version 0": b'{"format_version":0}',
    "version -1": b'{"format_version":-1}',
    "version true": b'{"format_version":true}',
    "version 1.0": b'{"format_version":1.0}',
    "version as text": b'{"format_version":"1"}',
    "a huge version": b'{"format_version":' + b"9" * 30 + b"}",
    "a version of 5000 digits": b'{"format_version":' + b"9" * 5000 + b"}",
    "a version of a million digits": b'{"format_version":' + b"9" * 1_000_000 + b"}",
    "only a version": b'{"format_version":1}',
    "a field twice": b'{"format_version":1,"format_version":1}',
    "an inner field twice": b'{"format_version":1,"x":[{"a":1,"a":1}]}',
    "a bare control character": b'{"format_version":1,"x":"\n"}',
    "something behind": b'{"format_version":1} {}',
    "a comma too many": b'{"format_version":1,}',
    "single quotes": b"{'format_version':1}",
    "a comment": b'{"format_version":1/**/}',
    "cut": b'{"format_version":1,"x":[',
    "deep lists": b'{"format_version":1,"x":' + b"[" * 100_000,
    "deep objects": b'{"format_version":1,"x":' + b'{"a":' * 100_000,
    "deep and closed": b'{"format_version":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_malformed_named_and_quick(kind: str, data: bytes) -> None:
    name, _, read = FILES[kind]
    started = time.monotonic()
    with pytest.raises(MalformedError, match=rf"^{name}: ") as caught:
        read(data)
    assert time.monotonic() - started < 2
    assert len(str(caught.value)) < 500
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), MalformedError)


BAD_JSON: dict[str, bytes] = {
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "minus infinity": b"[-Infinity]",
    "a number beyond a double": b"1e999",
    "a number beyond a double, below zero": b'{"a":[-1e999]}',
    "a field twice": b'{"a":1,"a":1}',
    "a field twice, deep inside": b'[[{"a":{"b":1,"b":2}}]]',
    "half a character": b'"\\ud800"',
    "half a character as a key": b'{"\\udfff":1}',
    "half a character in capitals": b'["\\uD800"]',
    "two halves the wrong way": b'"\\udc00\\ud800"',
    "a number of 5000 digits": b"9" * 5000,
    "an integer beyond a double": b"1" + b"0" * 309,
    "an integer beyond a double, below zero": b"[-" + b"9" * 309 + b"]",
    "a space": b'{"a": 1}',
    "a space before a comma": b"[1 ,2]",
    "a space in an empty list": b"[ ]",
    "a tabulator": b"[\t1]",
    "a line feed": b"[1,\n2]",
    "a line's end of Windows": b"[1,\r\n2]",
    "no UTF-8": b'"\xff"',
    "too deep": b"[" * 100_000 + b"]" * 100_000,  # Python 3.13 reads 10,000 levels
}


GOOD_JSON: dict[str, bytes] = {
    "spaces in a text": b'" a \\" , b: [ "',
    "a text that looks like its end": b'{"\\\\":"a b"}',
    "the largest integer that is a double": str(int(sys.float_info.max)).encode(),
    "many digits in a text": b'"' + b"9" * 400 + b'"',
    "an escape that is not needed": b'"\\u0061\\/"',
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("value", GOOD_JSON.values(), ids=GOOD_JSON)
def test_what_is_json_may_stand_in_a_field_that_nobody_knows(kind: str, value: bytes) -> None:
    _, data, read = FILES[kind]
    changed_data = data.replace(b'"colour":', b'"x_new":' + value + b',"colour":', 1)
    found = read(sealed(changed_data) if kind == "pointer" else changed_data)
    assert found.extra["x_new"] == json.loads(value)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("value", BAD_JSON.values(), ids=BAD_JSON)
def test_what_is_no_json_is_malformed_wherever_it_stands(kind: str, value: bytes) -> None:
    """In a field that nobody knows, of a file that is good otherwise."""
    name, data, read = FILES[kind]

    def with_field(raw: bytes) -> bytes:
        bad = data.replace(b'{"format_version":1,', b'{"format_version":1,"x_new":' + raw + b",", 1)
        return sealed(bad) if kind == "pointer" else bad

    assert read(with_field(b"[1e9]")).extra["x_new"] == [1e9]
    with pytest.raises(MalformedError, match=rf"^{name}: expected JSON"):
        read(with_field(value))


@pytest.mark.parametrize("kind", FILES)
def test_every_cut_is_refused(kind: str) -> None:
    name, data, read = FILES[kind]
    for length in range(len(data)):
        with pytest.raises(MalformedError, match=rf"^{name}: "):
            read(data[:length])


@pytest.mark.parametrize("kind", FILES)
def test_every_flipped_bit_ends_in_the_tree(kind: str) -> None:
    _, data, read = FILES[kind]
    for at in range(8 * len(data)):
        bad = bytearray(data)
        bad[at // 8] ^= 1 << at % 8
        if kind == "pointer":
            with pytest.raises(CorruptionError):
                read(bytes(bad))
        else:
            with suppress(CheckpointError):
                read(bytes(bad))


@pytest.mark.parametrize("kind", FILES)
def test_nesting_just_below_what_can_be_read_ends_in_the_tree(kind: str) -> None:
    """A value that was just not too deep to be read is not too deep for its error message either."""
    _, data, read = FILES[kind]
    fields = {
        "pointer": ["boundary", "committed", "writer", "retired", "catalog"],
        "manifest": ["epoch", "created", "parent", "operators", "positions", "watermark"],
        "catalog": ["entries"],
    }[kind]
    for field in fields:
        head = data.replace(b'"%s":' % field.encode(), b'"x_old":', 1)[:-1]
        for depth in range(880, 1010):
            with suppress(CheckpointError):
                read(head + b',"%s":' % field.encode() + b"[" * depth + b"]" * depth + b"}")


# ---- bad pointers ---------------------------------------------------------------------------------------------------

BAD_NAMES = ["", ".", "..", "../x", "a/b", "a\\b", "a\0", "a\n", "x" * 10_000]
BAD_KEYS = ["", "-1", "00", "01", "1", "3", " 0", "0x0", "\u0660", "1e0", "9" * 5000]
WRONG_INTEGERS: list[Json] = [None, True, 1.0, "1", [], {}, -1, 2**63, 10**40]
WRONG_TEXTS: list[Json] = [None, True, 1, [], {}]
WRONG_DIGESTS: list[Json] = [*WRONG_TEXTS, "", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "٣" * 64]
WRONG_IDS: list[Json] = [
    *WRONG_TEXTS,
    "",
    "42-1a2b3c4d",
    "0000000042-1A2B3C4D",
    "0000000042-1a2b3c4",
    "0000000042-1a2b3c4d\n",
    " 0000000042-1a2b3c4d",
    "0000000042_1a2b3c4d",
    "٠٠٠٠٠٠٠٠٤٢-1a2b3c4d",
    "0000000000-1a2b3c4d",
    "../../../etc/passwd",
]
WRONG_TIMES: list[Json] = [
    *WRONG_TEXTS,
    "",
    "yesterday",
    "2024-01-02T03:04:05",
    "2024-13-01T00:00:00Z",
    "2024-01-02T03:04:05Z",
    "2024-01-02T03:04:05.678Z",
    "2024-01-02T03:04:05.000678+00:00",
    "2024-01-02T04:04:05.000678+01:00",
    "2024-01-02 03:04:05.000678Z",
    "2024-01-02T03:04:05.0006780Z",
    "20240102T030405.000678Z",
    "0001-01-01T00:00:00+23:00",
]
WRONG_CATALOGS: list[Json] = [
    *WRONG_TEXTS,
    "",
    "catalog/../_latest",
    f"catalog/0000000041-00000002.{digest('other')}.json",
    f"catalog/0000000041-00000002.{digest('catalog')}.json/..",
    f"/catalog/0000000041-00000002.{digest('catalog')}.json",
    f"manifests/segments/0000000041-00000002.{digest('catalog')}.json.zst",
    f"artifacts/a/0/0000000041-00000002.snapshot.{digest('catalog')}.raw",
]

BAD_POINTER: dict[str, list[Json | EllipsisType]] = {
    "writer": [..., None, [], "a"],
    "writer.epoch": [..., 0, *WRONG_INTEGERS],
    "writer.instance": [..., "", *WRONG_TEXTS],
    "committed": [..., [], "a", {}],
    "committed.id": [..., *WRONG_IDS],
    "committed.digest": [..., *WRONG_DIGESTS],
    "prepared": [..., [], "a", {}],
    "prepared.id": [..., *WRONG_IDS, str(ID), "0000000044-00000000", "0000000001-00000000"],
    "prepared.digest": [..., *WRONG_DIGESTS],
    "boundary": [..., 0, 43, *WRONG_INTEGERS],
    "catalog": [..., [], "a", {}],
    "catalog.path": [..., *WRONG_CATALOGS],
    "catalog.digest": [..., digest("other"), *WRONG_DIGESTS],
    "retired": [..., None, {}, "a", [None], [1], [[]], [{}]],
    "retired.0.boundary": [..., 0, 41, *WRONG_INTEGERS],
    "retired.0.at": [..., *WRONG_TIMES],
    "retired.1.catalog": [..., [], "a", {}],
    "retired.1.catalog.path": [..., *WRONG_CATALOGS],
    "nonce": [..., *WRONG_TEXTS],
}


def cases(table: dict[str, list[Json | EllipsisType]]) -> list[Any]:
    return [
        pytest.param(path, value, id=f"{path}={'(absent)' if value is ... else ascii(value)[:40]}")
        for path, values in table.items()
        for value in values
    ]


@pytest.mark.parametrize(("path", "value"), cases(BAD_POINTER))
def test_a_bad_pointer_is_malformed(path: str, value: Json) -> None:
    with pytest.raises(MalformedError, match=r"^_latest: "):
        decode_pointer(sealed(changed(POINTER_BYTES, path, value)))


def test_a_pointer_without_a_commit_has_boundary_one() -> None:
    empty = replace(POINTER, committed=None, prepared=None, boundary=1, retired=())
    assert decode_pointer(encode_pointer(empty)) == empty
    with pytest.raises(MalformedError, match="boundary 2 is above the committed sequence 0"):
        decode_pointer(encode_pointer(replace(empty, boundary=2)))


BAD_SEALS: dict[str, tuple[bytes, type[CorruptionError]]] = {
    "another digest": (POINTER_BYTES[:-66] + b"0" * 64 + b'"}', DigestMismatchError),
    "capitals": (POINTER_BYTES[:-66] + POINTER_BYTES[-66:-2].upper() + b'"}', MalformedError),
    "no digest": (POINTER_BYTES.rpartition(b',"digest"')[0] + b"}", MalformedError),
    "the digest before others": (changed(sealed(POINTER_BYTES), "x_new", 1), MalformedError),
    "the digest first": (b'{"digest":"' + b"0" * 64 + b'",' + POINTER_BYTES[1:-77] + b"}", MalformedError),
    "a space before the digest": (POINTER_BYTES.replace(b',"digest":"', b', "digest":"'), MalformedError),
    "a space after the colon": (POINTER_BYTES[:-67] + b' ' + POINTER_BYTES[-67:], MalformedError),
    "a space at the end": (POINTER_BYTES + b" ", MalformedError),
    "a line's end": (POINTER_BYTES + b"\n", MalformedError),
    "a changed nonce": (POINTER_BYTES.replace(b'"nonce":"f', b'"nonce":"0'), DigestMismatchError),
    "a space inside": (POINTER_BYTES.replace(b'"nonce":"f', b'"nonce": "f'), MalformedError),
}  # fmt: skip


@pytest.mark.parametrize(("data", "error"), BAD_SEALS.values(), ids=BAD_SEALS)
def test_the_digest_of_a_pointer_covers_every_byte_before_it(data: bytes, error: type[CorruptionError]) -> None:
    assert data != POINTER_BYTES
    with pytest.raises(error, match=r"^_latest: "):
        decode_pointer(data)


def test_text_that_looks_like_the_seal_does_no_harm() -> None:
    for text in (',"digest":"', '","digest":"', "x" + POINTER_BYTES[-80:].decode()):
        pointer = replace(POINTER, nonce=text, writer=Writer(1, text), extra={"x": {"a": 1, "digest": text}})
        assert decode_pointer(encode_pointer(pointer)) == pointer


# ---- bad manifests --------------------------------------------------------------------------------------------------

OWN = object_paths.artifact("totals", 0, ID, "snapshot", digest(1), "raw")
PACK = object_paths.pack("totals", ID, digest(1), "raw")
CHAINS = "operators.totals.chains"
OBJECTS = "operators.totals.objects"
SEGMENT = object_paths.segment(ID, digest(1))


def chain(objects: Json, rows: Json, partition: str = "0") -> Json:
    return {
        "partitions": 3,
        "partitioner": "explicit",
        "codec": "raw",
        "schema": None,
        "objects": objects,
        "chains": {partition: rows},
    }


def segments(value: Json) -> Json:
    return {"partitions": 3, "partitioner": "explicit", "codec": "raw", "schema": None, "segments": value}


WHOLE: Json = [[0, 1, 1]]
FIVE: Json = [[0, 5, 1]]
PART: list[Json] = [0, 5, 1, "snapshot", 0, 5, digest("part")]


def part(at: int, value: Json) -> Json:
    return chain([[PACK, 10]], [[*PART[:at], value, *PART[at + 1 :]]])


BAD_MANIFEST: dict[str, list[Json | EllipsisType]] = {
    "id": [..., *WRONG_IDS, str(PARENT), "0000000042-00000000"],
    "sequence": [..., 0, 41, 43, *WRONG_INTEGERS],
    "parent": [..., [], "a", {}],
    "parent.id": [..., *WRONG_IDS, str(ID), "0000000042-00000000", "0000000043-00000000"],
    "parent.digest": [..., *WRONG_DIGESTS],
    "epoch": [..., True, 1.0, "1", [], -(2**63) - 1, 2**63],
    "created": [..., *[value for value in WRONG_TIMES if value is not None]],
    "job": [..., [], "a", {}],
    "job.query_id": [..., *WRONG_TEXTS],
    "job.run_id": [..., *WRONG_TEXTS],
    "job.batch_id": [..., *WRONG_INTEGERS],
    "job.driver": [None, 1, [], {}, True],
    "job.spark": [None, "a", [], {}, 1],
    "job.spark.location": [..., *WRONG_TEXTS],
    "job.spark.offsets": [..., *WRONG_TEXTS, "", "v1", "1\n", "\nv1\n"],
    "job.spark.before": [..., None, {}, "a", [1], ["a", None]],
    "job.spark.lists": [None, {}, [], {"0/1": 1}, {"0": "a"}],
    "job.spark.gone": [None, {}, [], {"a": 1}, {"a/1": "a"}, {"": "a"}],
    "cost": [None, True, 1, [], "a", {}],
    **{
        f"cost.{field}": [..., *WRONG_INTEGERS]
        for field in ("requests", "objects", "bytes", "elapsed_us", "blocked_us")
    },
    "positions": [..., None, [], "a"],
    "watermark": [...],
    "properties": [..., None, [], "a"],
    "operators": [
        ...,
        None,
        [],
        "a",
        {"a": None},
        {"a": []},
        *({name: segments([[SEGMENT, 1, 1, 1]])} for name in BAD_NAMES),
    ],
    "operators.totals.partitions": [..., 2, 2**31 + 1, *WRONG_INTEGERS],
    "operators.totals.partitioner": [..., *WRONG_TEXTS, "", "other", "crc32-key-1", "spark-murmur3-1"],
    "operators.totals.codec": [..., *WRONG_TEXTS, "", "pickle", "RAW", "msgpack+zstd", "parquet"],
    "operators.totals.schema": [...],
    OBJECTS: [..., None, {}, "a", [], [None], [[]]],
    f"{OBJECTS}.0": [None, {}, [], [OWN], [OWN, 1, 1], [1, OWN], [None, 1]],
    f"{OBJECTS}.0.1": WRONG_INTEGERS,
    f"{OBJECTS}.0.0": [
        "",
        "_latest",
        "../" + OWN,
        "/" + OWN,
        OWN + "\n",
        OWN + "/",
        OWN.replace("totals", ".."),
        OWN.replace("totals", "%74otals"),
        OWN.replace("/0/", "/00/"),
        OWN.replace("/0/", "/1/"),
        OWN.replace("/0/", "/-1/"),
        OWN.replace("/0/", "/\u0660/"),
        OWN.replace(".raw", ".pickle"),
        OWN.replace(".raw", ".parquet"),
        OWN.replace("snapshot", "Snapshot"),
        OWN.replace("snapshot", "delta"),
        OWN.replace(str(ID), "0000000043-00000000"),
        object_paths.manifest(ID),
        PACK,
    ],
    CHAINS: [..., None, [], "a", {"0": None}, {"0": []}, {"0": {}}, {"0": [None]}, {"0": [[]]}, {"0": [{}]}],
    "operators.totals": [
        *(chain([[OWN, 1]], WHOLE, key) for key in BAD_KEYS),
        chain([[OWN, 1]], [[0, 1]]),
        chain([[OWN, 1]], [[0, 1, 1, "snapshot"]]),
        chain([[OWN, 1]], [[0, 1, 1, "snapshot", 0, 1, None]]),
        chain([[OWN, 1]], [[1, 1, 1]]),
        chain([[OWN, 1]], [[-1, 1, 1]]),
        chain([], WHOLE),
        *(chain([[OWN, 1]], [[bad, 1, 1]]) for bad in WRONG_INTEGERS),
        *(chain([[OWN, 1]], [[0, bad, 1]]) for bad in WRONG_INTEGERS),
        *(chain([[OWN, 1]], [[0, 1, bad]]) for bad in WRONG_INTEGERS),
        chain([[OWN, 1]], [[0, 1, 1], [0, 1, 1]]),
        chain([[OWN, 1]], [[0, 1, 0]]),
        chain([[OWN, 1]], [[0, 1, 2]]),
        chain([[OWN, 1]], [[0, 2, 1]]),
        part(1, 6),
        part(2, 2),
        chain([[OWN, 1], [OWN, 1]], WHOLE),
        chain([[PACK, 10], [PACK, 10]], [PART, [1, 5, 1, "delta", 0, 5, digest("part")]]),
        chain([[OWN, 1], [PACK, 10]], WHOLE),
        {**chain([[OWN, 1]], WHOLE), "segments": None},
        {**chain([[OWN, 1]], WHOLE), "segments": [[SEGMENT, 1, 1, 1]]},
        {**segments([[SEGMENT, 1, 1, 1]]), "chains": None},
        segments([[SEGMENT, 1, 1, 1], [SEGMENT, 1, 1, 1]]),
        segments([[SEGMENT, 1, 1, 0]]),
        chain([[OWN, 5, 3]], FIVE),
        chain([[OWN, 5, 3, digest(1), 1]], FIVE),
        *(chain([[OWN, 5, bad, digest(1)]], FIVE) for bad in (0, 6, *WRONG_INTEGERS)),
        *(chain([[OWN, 5, 3, bad]], FIVE) for bad in (None, *WRONG_DIGESTS)),
        chain([[OWN, 5]], [[0, 1, 1, [3, digest(1)]]]),
        chain([[object_paths.artifact("totals", 0, ID, "delta", digest(1), "raw"), 1]], WHOLE),
        chain([[PACK, 10]], WHOLE),
        *(part(3, bad) for bad in (*WRONG_TEXTS, "", "delta", "Snapshot", "full")),
        *(part(4, bad) for bad in (6, 10, *WRONG_INTEGERS)),
        *(part(5, bad) for bad in (11, 2**62, *WRONG_INTEGERS)),
        *(part(6, bad) for bad in (*WRONG_DIGESTS, digest(1)) if bad is not None),
        part(6, None),
        segments([]),
        segments({}),
        segments("a"),
        segments([None]),
        segments([[]]),
        segments([[SEGMENT, 1, 1]]),
        segments([[SEGMENT, 1, 1, 1, 1]]),
        *(segments([[bad, 1, 1, 1]]) for bad in (None, 1, "", "_latest", "../" + SEGMENT, SEGMENT + "\n", OWN)),
        segments([[SEGMENT.replace(str(ID), "0000000043-00000000"), 1, 1, 1]]),
        *(segments([[SEGMENT, bad, 1, 1]]) for bad in (0, *WRONG_INTEGERS)),
        *(segments([[SEGMENT, 1, bad, 1]]) for bad in (0, *WRONG_INTEGERS)),
        *(segments([[SEGMENT, 1, 1, bad]]) for bad in WRONG_INTEGERS),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("path", "value"), cases(BAD_MANIFEST))
def test_a_bad_manifest_is_malformed(path: str, value: Json) -> None:
    with pytest.raises(MalformedError, match=rf"^{object_paths.manifest(ID)}: ") as caught:
        decode_manifest(ID, changed(MANIFEST_BYTES, path, value))
    assert len(str(caught.value)) < 1000


def test_the_tables_start_from_what_is_good() -> None:
    for good in (
        chain([[OWN, 1]], WHOLE),
        chain([[OWN, 1], [PACK, 10]], [*WHOLE, *[[1, 5, 1, "delta", 0, 5, digest("part")]] * 2]),
        chain([[OWN, 5, 5, digest(1)]], FIVE),
        chain([[PACK, 10]], [PART]),
        chain([[PACK, 10, 1, digest(1)]], [PART]),
        segments([[SEGMENT, 1, 1, 1]]),
    ):
        decode_manifest(ID, changed(MANIFEST_BYTES, "operators.totals", good))


def test_the_tail_of_an_object_belongs_to_everything_in_it() -> None:
    tail = Tail(4, digest("tail"))
    whole, parts = replace(alone(0), tail=tail), [replace(part, tail=tail) for part in packed([5, 7])]
    chains = {0: (whole,), 1: (parts[0],), 2: (parts[1],)}
    manifest = replace(MANIFEST, operators={"totals": Operator(3, "explicit", "raw", chains)})
    data = encode_manifest(manifest)
    assert data.count(tail.digest.encode()) == 2  # once for each object
    assert decode_manifest(ID, data).operators["totals"].chains == chains


def test_a_manifest_is_asked_for_by_its_own_id() -> None:
    with pytest.raises(MalformedError, match=f"{PARENT}.json: expected the id {PARENT}, found {ID}"):
        decode_manifest(PARENT, MANIFEST_BYTES)


NAN = float("nan")
LOOP: list[Json] = []
LOOP.append(LOOP)
BAD_VALUES: dict[str, Manifest] = {
    "NaN": replace(MANIFEST, positions={"a": NAN}),
    "infinity": replace(MANIFEST, watermark=float("inf")),
    "an integer beyond a double": replace(MANIFEST, properties={"a": [10**309]}),
    "a tuple": replace(MANIFEST, properties={"a": (1, 2)}),
    "a number as a key": replace(MANIFEST, properties={"a": {1: 2}}),
    "bytes": replace(MANIFEST, watermark=b"a"),
    "half a character": replace(MANIFEST, properties={"a": "\ud800"}),
    "half a character in a job": replace(MANIFEST, job=Job("\ud800", "run", 1)),
    "a value that holds itself": replace(MANIFEST, watermark=LOOP),
    "NaN in a field of a newer writer": replace(MANIFEST, extra={"x": NAN}),
    "no text": replace(MANIFEST, job=Job(1, "run", 1)),  # type: ignore[arg-type]
    "a negative batch": replace(MANIFEST, job=Job("query", "run", -1)),
    "a huge epoch": replace(MANIFEST, epoch=2**63),
    "sequence 0": Manifest(CheckpointId(0, "00000000")),
    "a parent that is not older": replace(MANIFEST, parent=Ref(ID, digest(1))),
    "an operator outside": replace(MANIFEST, operators={"../x": Operator(0, "explicit", "raw")}),
    "an unknown codec": replace(MANIFEST, operators={"a": Operator(0, "explicit", "pickle")}),
    "another codec's partitioner": replace(MANIFEST, operators={"a": Operator(1, "explicit", "parquet")}),
    **{
        f"{count} partitions of {codec.name}": replace(
            MANIFEST, operators={"a": Operator(count, codec.partitioner, codec.name)}
        )
        for codec in codecs.CODECS.values()
        for count in (codec.min_partitions - 1, codec.max_partitions + 1)
    },
}


def with_chain(*artifacts: Artifact, partitions: int = 3, partition: int = 0) -> Manifest:
    return replace(MANIFEST, operators={"totals": Operator(partitions, "explicit", "raw", {partition: artifacts})})


BAD_VALUES |= {
    "a partition outside": with_chain(alone(3), partition=3),
    "another partition's artifact": with_chain(alone(1)),
    "another codec's artifact": with_chain(alone(0, codec="parquet")),
    "a later attempt's artifact": with_chain(alone(0, owner=CheckpointId(43, "00000000"))),
    "an empty chain": with_chain(),
    "a chain without a snapshot": with_chain(alone(0, kind=DELTA)),
    "two snapshots": with_chain(alone(0), alone(0, owner=ID)),
    "a path that is none": with_chain(replace(alone(0), path="../x")),
    "a kind that is not its path's": with_chain(alone(0), replace(alone(0, kind=DELTA), kind="snapshot")),
    "a digest that is not its path's": with_chain(replace(alone(0), digest=digest("other"))),
    "one object with two tails": with_chain(
        replace(packed([5, 7])[0], tail=Tail(3, digest(1))), replace(packed([5, 7])[1], kind=DELTA)
    ),
    "a part of what is no pack": with_chain(replace(alone(0), length=5)),
    "beyond a pack's end": with_chain(replace(packed([5, 5])[1], length=6)),
    "two sizes of one object": with_chain(packed([5, 5])[0], replace(packed([5, 5])[1], size=11, kind="delta")),
    "a negative size": with_chain(alone(0, size=-1)),
}


def with_rows(*artifacts: Artifact) -> Manifest:
    table = Operator(3, "spark-murmur3-1", "parquet", {0: artifacts})
    return replace(MANIFEST, operators={"totals": table})


ROWS, CHANGES = alone(0, codec="parquet"), table_delta(20)
BAD_VALUES |= {
    "a delta of a table that is no pack": with_rows(ROWS, alone(0, kind=DELTA, codec="parquet")),
    "a delta that is a part of a pack": with_rows(ROWS, replace(CHANGES, length=19, digest=digest("part"))),
    "a delta with a digest of its own": with_rows(ROWS, replace(CHANGES, digest=digest("other"))),
    "a delta of no bytes": with_rows(ROWS, table_delta(0)),
    "a snapshot of a table of no bytes": with_rows(alone(0, codec="parquet", size=0)),
    "a snapshot of a table in a pack": with_rows(replace(CHANGES, kind="snapshot")),
    "an empty snapshot with a digest": with_rows(replace(empty_snapshot(CHANGES), digest=digest("x")), CHANGES),
    "an empty snapshot behind the first byte": with_rows(replace(empty_snapshot(CHANGES), offset=1), CHANGES),
    "an empty snapshot with records": with_rows(replace(empty_snapshot(CHANGES), records=1), CHANGES),
    "an empty snapshot with a raw size": with_rows(replace(empty_snapshot(CHANGES), raw_size=1), CHANGES),
}


NO_BYTES = object_paths.pack("totals", PARENT, empty_snapshot(CHANGES).digest, "parquet")
"""What a repair makes of a pack of which it keeps only the empty snapshot."""


@pytest.mark.parametrize(
    "base", [ROWS, empty_snapshot(CHANGES), replace(empty_snapshot(CHANGES), path=NO_BYTES, size=0)]
)
def test_the_rows_of_a_table_are_snapshots_and_whole_packs(base: Artifact) -> None:
    manifest = with_rows(base, CHANGES, CHANGES)
    assert decode_manifest(manifest.id, encode_manifest(manifest)) == manifest


@pytest.mark.parametrize("manifest", BAD_VALUES.values(), ids=BAD_VALUES)
def test_what_a_reader_would_refuse_is_never_written(manifest: Manifest) -> None:
    with pytest.raises(IllegalArgumentError):
        encode_manifest(manifest)


def test_an_object_may_lie_in_the_folder_of_an_older_name() -> None:
    renamed = with_chain(alone(0, operator="other"), alone(0, kind=DELTA))
    assert decode_manifest(renamed.id, encode_manifest(renamed)) == renamed


# ---- bad catalogs ---------------------------------------------------------------------------------------------------

BAD_CATALOG: dict[str, list[Json | EllipsisType]] = {
    "id": [..., *WRONG_IDS, str(ID)],
    "entries": [..., None, {}, "a", [], [None], [[]], [{}]],
    "entries.0.id": [..., *WRONG_IDS],
    "entries.0.digest": [..., *WRONG_DIGESTS],
    "entries.0.name": [..., True, 1, [], {}, *BAD_NAMES],
    "entries.1.name": ["before"],
    "entries.1.id": ["0000000005-00000004"],
    "entries.0": [json.loads(CATALOG_BYTES)["entries"][1]],
    "entries.0.created": [..., *WRONG_TIMES],
    "entries.0.nonce": [..., "", *WRONG_TEXTS],
}


def test_a_checkpoint_may_have_several_savepoints_and_an_entry_without_a_name() -> None:
    first, second = CATALOG.entries
    entries = (first, replace(first, name="again"), replace(first, name=None), second)
    assert decode_catalog(CATALOG_PATH, encode_catalog(replace(CATALOG, entries=entries))).entries == entries


@pytest.mark.parametrize(("path", "value"), cases(BAD_CATALOG))
def test_a_bad_catalog_is_malformed(path: str, value: Json) -> None:
    with pytest.raises(MalformedError, match=rf"^{CATALOG_PATH}: "):
        decode_catalog(CATALOG_PATH, changed(CATALOG_BYTES, path, value))


# ---- JSON of the caller ---------------------------------------------------------------------------------------------


@given(json_values)
def test_json_is_taken_as_it_will_be_read(value: Json) -> None:
    assert check_json("x", value) == value


def test_json_of_any_depth_is_taken_or_refused() -> None:
    value: Json = []
    for _depth in range(1200):
        value = [value]
        with suppress(IllegalArgumentError):
            check_json("x", value)


def test_a_time_without_a_zone_is_in_utc() -> None:
    assert encode_manifest(replace(MANIFEST, created=AT.replace(tzinfo=None))) == MANIFEST_BYTES
