"""Valid bytes of every kind that the product reads, made by its own encoders, and the marks of each kind.

A mark is a short piece of bytes that means something where it stands; mutations put it where it does not belong.
"""

import json
import tempfile
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import zstandard

from pyspark_checkpointer.admin.retention.classifier import PlanRow
from pyspark_checkpointer.admin.retention.plan import CleanupPlan, PlannedCheckpoint
from pyspark_checkpointer.admin.retention.reachability import DELETE, KEEP
from pyspark_checkpointer.admin.retention.spool import Spool
from pyspark_checkpointer.consumers.journal import yaml_format
from pyspark_checkpointer.consumers.kinesis import state as kinesis
from pyspark_checkpointer.consumers.kinesis.sequence import SHARD_END, ExtendedSequenceNumber
from pyspark_checkpointer.manifests import codecs, msgpack_values, object_paths
from pyspark_checkpointer.manifests.followers_json import FollowerPosition, FollowerPositions, encode_followers
from pyspark_checkpointer.manifests.json_text import dump
from pyspark_checkpointer.manifests.keys_json import KeyGeneration, RootKeys, WrappedKey, encode_keys
from pyspark_checkpointer.manifests.model import Artifact, Json, Manifest, Operator, Patch, Ref, Segment, Tail
from pyspark_checkpointer.manifests.positions_json import Ownership, Position, Row, encode_ownership, encode_position
from pyspark_checkpointer.manifests.signatures_json import (
    Header,
    Signer,
    Signers,
    encode_header,
    encode_signed,
    encode_signers,
)
from pyspark_checkpointer.table import parquet_encode
from pyspark_checkpointer.table.expiry import Expire
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.schema import MERGE
from tests.manifests.samples import AT, ID, MANIFEST, PARENT, alone, digest, packed
from tests.table.tables import array, changes_of, mapping, schema_of, snapshot_rows, struct

TABLE = schema_of({"k": "long", "n": "long"}, ["k"], n="sum")
WIDE = schema_of(
    {
        "k": "string",
        "d": "decimal(5,2)",
        "at": "timestamp",
        "many": array("double"),
        "deep": mapping("string", struct(a="binary", b="boolean")),
    },
    ["k", "d"],
)

JSON_MARKS = (
    *(b"null true false 0 -1 1.0 1e400 -0 [] {} [[]] NaN".split()),
    b'""',
    b'"\\ud800"',
    b'"../../etc"',
    b'"%2e%2e"',
    b'"0000000042-1a2b3c4d"',
    b'"9999-12-31T23:59:59-23:59"',
    b'"0001-01-01T00:00:00+23:59"',
    b"9" * 18,
    b"9" * 19,
    b"9" * 5_000,
    b"[" * 3_000,
    b'{"a":' * 3_000,
    b"[" * 900 + b"]" * 900,
    b'"' + b"x" * 300 + b'"',
    b'"format_version":1,',
    b'"format_version":2,',
    b'"digest":"',
)

MSGPACK_MARKS = (
    b"\xc0",
    b"\xc1",
    b"\xdd\x00\x00\x0f\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x00\x00\x0f\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\xdd\x00\x00\x20\x00" * 1_000,
    b"\x91" * 2_000,
    b"\x91" * 600 + b"\xc0",
    b"\x81\x01" * 400 + b"\x01",
    b"\xd6\xff\x00\x00\x00\x01",
    b"\xc7\x00\x01",
    b"\xd4\x02\xff",
    b"\xca\x7f\xc0\x00\x00",
    msgpack_values.pack(1 << 20_000),
)

YAML_MARKS = (
    b"&a [*a]",
    b"*a",
    b"<<: {a: 1}",
    b"!!python/object/apply:os.getcwd []",
    b"!!set {a, b}",
    b"!!omap [a: 1]",
    b"!!binary aGk=",
    b"!!int a",
    b"0x" + b"f" * 5_000,
    b"1" + b":1" * 3_000,
    b"2024-01-01",
    b"9999-12-31T23:59:59-23:59",
    b".nan",
    b"~",
    b"- ",
    b"\n",
    b"\n  ",
    b": ",
    b"? ",
    b"[" * 500,
    b"{a: " * 250 + b"}" * 250,
    b'"\\uD800"',
    b'"\\x85\\u2028"',
    b"|\n  x",
    b"%YAML 9.9\n---\n",
    b"\n---\n",
    b"\xef\xbb\xbf",
)

PATH_MARKS = (b"/", b"..", b"%2e%2e", b"%2F", b"%", b"\0", b"\n", "é".encode(), b"~", b"-", b".", b"packs/", b"@", b"[")


# ---- the format's own ------------------------------------------------------------------------------------------------


def manifests() -> tuple[Manifest, ...]:
    kept = Segment(object_paths.segment(PARENT, digest("segment")), 120, 700, 600)
    tail = replace(alone(1, operator="table", codec=codecs.PARQUET.name), tail=Tail(7, digest("tail")))
    return (
        MANIFEST,
        Manifest(ID),
        replace(MANIFEST, operators={"many": Operator(1000, "explicit", codecs.RAW.name, segments=(kept,))}, extra={}),
        replace(
            MANIFEST,
            operators={
                "table": Operator(2, codecs.PARQUET.partitioner, codecs.PARQUET.name, {1: (tail,)}, WIDE.to_json())
            },
        ),
    )


def patches() -> dict[int, Patch]:
    whole: list[Artifact] = [alone(number, operator="totals") for number in range(4)]
    pack = packed([5, 7], operator="totals", kind="delta")
    return {**{n: Patch(0, (a,)) for n, a in enumerate(whole)}, 1: Patch(0, (whole[1], pack[0])), 9: Patch(0, ())}


VALUES: tuple[Any, ...] = (
    None,
    [1, -1, 2**63, 2**64 - 1, 1.5, float("nan"), True, "é", b"\x00\xff"],
    {"a": [1, {2: ()}], 3: {"b": None}},
    ((), (1, (2, (3,)))),
    {1, 2, "x", (1, 2)},
    frozenset({b"", frozenset()}),
    [Decimal("-1.10"), Decimal("NaN"), Decimal("1E+6144"), UUID(int=7), 2**70, -(2**100)],
    [date(2024, 2, 29), time(2, 30, fold=1), timedelta(-1, 5, 7), datetime(2024, 1, 2, 3, 4, 5, 6)],
    [datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 11, 3, 1, fold=1, tzinfo=ZoneInfo("America/New_York"))],
    datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=-9, seconds=1))),
)

RECORDS: tuple[dict[Any, bytes | None], ...] = (
    {},
    {key: msgpack_values.pack(["value", key]) for key in range(5)},
    {
        "gone": None,
        (1, "a"): msgpack_values.pack({}),
        Decimal("1.5"): msgpack_values.pack(b""),
        None: msgpack_values.pack(None),
    },
)

_AT_TEXT = "2024-01-02T03:04:05.000678Z"


def root_keys() -> bytes:
    """The keys of an encrypted root that is being rewritten, wrapped by two providers."""
    wrappings = (WrappedKey("key-file", "0123456789abcdef", bytes(56)), WrappedKey("passphrase-file", "", bytes(80)))
    return encode_keys(RootKeys("0" * 32, (KeyGeneration(1, False, wrappings), KeyGeneration(2, True, wrappings))))


def signed_objects() -> tuple[bytes, ...]:
    """A manifest, and a `_latest` of one who may not commit."""
    headers = Header("0" * 64), Header("f" * 64, AT, 3, "another")
    return tuple(encode_signed(encode_header(header), bytes(range(64)), b'{"a":1}') for header in headers)


def signers() -> bytes:
    """A list of signers that is being made, with one who was revoked."""
    both = Signer("driver", "0" * 64, ("commit", "consume")), Signer("old", "1" * 64, ("clean",), 41)
    return encode_signers(Signers("0" * 32, 3, {one.key: one for one in both}, adopting=True))


def followers() -> bytes:
    positions = [FollowerPosition("a", "t", ID, AT, {"colour": 1}), FollowerPosition("b", "t", None, AT)]
    return encode_followers(FollowerPositions({one.name: one for one in positions}, {"colour": 1}), "n" * 32)


def ownership() -> bytes:
    rows = {
        "0": Row("0", "me", 3, "e1", AT, 10_000, "you", extra={"colour": "blue"}),
        "1": Row("1", "", 9, "e2", AT, finished=True),
    }
    return encode_ownership(Ownership(rows, {"colour": 1}), "n" * 32)


def position(value: Json, partition: str = "0") -> bytes:
    return encode_position(Position(partition, 3, value, AT, "lease", {"colour": 1}), "n" * 32)


EVENTHUB: tuple[Json, ...] = ({"sequence_number": 7, "offset": "120"}, {"sequence_number": None, "offset": None})
EPH: tuple[Json, ...] = ({"offset": "120", "sequence_number": 7, "more": 1},)
KINESIS = tuple(
    kinesis.encode(kinesis.ShardState("shard-1", number, pending, initial=initial, extra={"more": 1}))
    for number, pending, initial in (
        (ExtendedSequenceNumber("4959", 3), None, None),
        (ExtendedSequenceNumber("TRIM_HORIZON"), None, ExtendedSequenceNumber("TRIM_HORIZON")),
        (
            ExtendedSequenceNumber("TRIM_HORIZON"),
            kinesis.PendingCheckpoint(ExtendedSequenceNumber("9" * 129), b"state"),
            None,
        ),
        (ExtendedSequenceNumber("12"), kinesis.PendingCheckpoint(SHARD_END), None),
    )
)


def journals() -> tuple[bytes, ...]:
    states = [
        yaml_format.EventLogState("Application", 42, AT),
        yaml_format.EventLogState("Sécurité: 'a'\x01", 2**64 - 1, AT, {"bookmark": {"deep": [1, 2.5, None]}}),
    ]
    content = yaml_format.JournalContent({state.name: state for state in states}, {"colour": "blue"})
    foreign = f"update_time: {_AT_TEXT}\nevent_logs:\n- name: System\n  record_number: 7\n  timestamp: {_AT_TEXT}\n"
    return (
        yaml_format.encode(content, AT, "n" * 16),
        foreign.encode(),
        b"update_time: 2024-01-02 03:04:05\nevent_logs: []\n",
    )


# ---- tables ----------------------------------------------------------------------------------------------------------


def snapshots() -> tuple[bytes, ...]:
    rows = snapshot_rows(TABLE, [(key, key * 10) for key in range(20)])
    return tuple(parquet_encode.encode(table).data for table in (rows, rows.slice(0, 0)))


def snapshot_with_blocks() -> bytes:
    rows = snapshot_rows(TABLE, [(key, key * 10) for key in range(40)])
    with patch.multiple(parquet_encode, ROW_GROUP_ROWS=20, BLOCK_ROWS=4, MIN_BLOCKS=1):
        return parquet_encode.encode(rows, TABLE.key).data


def pack_with_filter() -> bytes:
    changes = pa.concat_tables([changes_of(TABLE, [(MERGE, (key, 1)) for key in range(20)], part) for part in range(2)])
    with patch.multiple(parquet_encode, ROW_GROUP_ROWS=20, PACK_BLOCK_ROWS=4, MIN_PACK_BLOCKS=1, LARGE_PACK_BYTES=1):
        return parquet_encode.encode(in_order(changes, TABLE.key), TABLE.key, pack=True).data


def wide_snapshot() -> bytes:
    rows = [("a", Decimal("1.10"), AT, [1.5, None], [("x", {"a": b"1", "b": True})]), ("b", Decimal(2), AT, None, [])]
    return parquet_encode.encode(snapshot_rows(WIDE, rows)).data


def packs() -> tuple[bytes, ...]:
    changes = pa.concat_tables([changes_of(TABLE, [(MERGE, (key, 1)) for key in range(5)], part) for part in range(2)])
    return (parquet_encode.encode(in_order(changes, TABLE.key)).data,)


# ---- beside the store ------------------------------------------------------------------------------------------------


def plans() -> tuple[bytes, ...]:
    with Spool() as spool:
        spool.add(PlanRow("_latest", 7, KEEP, "the pointer", str(ID), 2))
        spool.add(PlanRow(object_paths.manifest(PARENT), 9, DELETE, "no live checkpoint names it", leftover="x"))
    plan = CleanupPlan(
        "/data", "n" * 32, timedelta(hours=1), (PlannedCheckpoint(PARENT, False, "old"),), (Ref(PARENT, digest(1)),)
    )
    plan.attach(spool)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan"
        plan.save(path)
        return (path.read_bytes(),)


def plan_rows() -> tuple[bytes, ...]:
    """Plans whose rows are not compressed."""
    split = [plan.partition(b"\n") for plan in plans()]
    unpacked = [zstandard.ZstdDecompressor().stream_reader(rows, read_across_frames=True).read() for *_, rows in split]
    return tuple(head + b"\n" + rows for (head, *_), rows in zip(split, unpacked, strict=True))


OFFSETS = b'v1\n{"batchWatermarkMs":5,"batchTimestampMs":1,"conf":{}}\n{"logOffset":3}\n-'
FILE_LIST = b'v1\n{"path":"file:///in/1.csv","timestamp":1700000000000,"batchId":1}'
SPARK = (
    json.dumps({"id": "3f2504e0-4f89-11d3-9a0c-0305e82c3301"}).encode(),
    OFFSETS,
    b'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"stateStoreSave"}}',
    b'v1\n{"nextBatchWatermarkMs":0}',
    FILE_LIST,
    json.dumps(
        {"format_version": 1, "number": 1, "savepoint": None, "undoes": None, "names": ["offsets/0"]}
        | dict.fromkeys(("left", "to", "new"), "0000000042-1a2b3c4d")
    ).encode(),
)
EXPIRING = WIDE.expiring("t", Expire("at", timedelta(days=30)))
SCHEMAS = tuple(dump({"format_version": 1, "schema": schema.to_json()}) for schema in (TABLE, WIDE, EXPIRING))

PATHS = tuple(
    path.encode()
    for path in (
        alone(0).path,
        packed([1, 2], operator="naïve")[0].path,
        object_paths.ownership(object_paths.group_folder("eventhub", "a", "b", "c/d")),
        object_paths.position(object_paths.group_folder("kinesis", "app"), "shard:1"),
        object_paths.position(object_paths.group_folder("kinesis", ".x" * 200), "~" + digest(3)),
        object_paths.store(object_paths.group_folder("eventprocessorhost", "a", "é")),
    )
)
NUMBERS = (b"4959:3", b"SHARD_END", b"TRIM_HORIZON", b"9" * 129, b"0000000042-1a2b3c4d")
URLS = (
    b"/data/x",
    b"~/x",
    b"file:///data/x",
    b"s3://bucket/a/b",
    b"abfss://box@account.dfs.core.windows.net/a",
    b"memory://x",
    b"HDFS://host:9000/a",
)
