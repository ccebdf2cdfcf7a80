"""Every decoder of the product: bytes in, a value or an error of the tree out.

`TABLE` is all of them. What is sealed by a digest has `seal`, which makes the digest fit again: an attacker can, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark_checkpointer.consumers.eventhub import checkpoint as eventhub
from pyspark_checkpointer.consumers.eventprocessorhost import checkpoint_info as eph
from pyspark_checkpointer.consumers.journal import yaml_format
from pyspark_checkpointer.consumers.kinesis import state as kinesis
from pyspark_checkpointer.consumers.kinesis.sequence import TRIM_HORIZON
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError
from pyspark_checkpointer.manifests import (
    catalog_json,
    followers_json,
    keys_json,
    manifest_json,
    msgpack_checks,
    msgpack_values,
    positions_json,
    signatures_json,
)
from pyspark_checkpointer.manifests.json_text import MAX_LEVELS, dump
from pyspark_checkpointer.manifests.map_expiry import MapRule
from pyspark_checkpointer.storage import url
from pyspark_checkpointer.table import parquet_decode
from tests.manifests.samples import AT, CATALOG, ID, POINTER, sealed
from tests.proof import seeds, wrapped

NONCE = "n" * 32


@dataclass(frozen=True, slots=True)
class Decoder:
    """`encode` is the product's own, where there is one. `memory` is how many bytes each byte may become."""

    name: str
    decode: Callable[[bytes], Any]
    seeds: tuple[bytes, ...]
    marks: tuple[bytes, ...] = ()
    encode: Callable[[Any], bytes] | None = None
    seal: Callable[[bytes], bytes] | None = None
    memory: int = 100


def examine(decoder: Decoder, data: bytes) -> bool:
    """Whether a value came out, and not an error of the tree. Anything else goes on to the caller."""
    try:
        value = decoder.decode(data)
    except CheckpointError as error:
        if not str(error):
            raise AssertionError("an error that says nothing") from error
        return False
    if decoder.encode is not None:
        try:
            again = decoder.encode(value)
        except msgpack_checks.UnsupportedValueError:  # msgpack has more than what is ever written
            return True
        except IllegalArgumentError as error:  # JSON is read that is nested deeper than what is ever written
            if f"more than {MAX_LEVELS} levels" in str(error):
                return True
            raise
        back = decoder.decode(again)
        assert decoder.encode(back) == again, f"written as {again[:200]!r}, read, and written as another"
        assert back == value or repr(back) == repr(value), f"{value!r:.200} came back as {back!r:.200}"
    return True


TABLE: tuple[Decoder, ...] = (
    Decoder(
        "pointer",
        manifest_json.decode_pointer,
        (manifest_json.encode_pointer(POINTER),),
        seeds.JSON_MARKS,
        encode=manifest_json.encode_pointer,
        seal=sealed,
    ),
    Decoder(
        "manifest",
        lambda data: manifest_json.decode_manifest(ID, data),
        tuple(map(manifest_json.encode_manifest, seeds.manifests())),
        seeds.JSON_MARKS,
        encode=manifest_json.encode_manifest,
    ),
    Decoder(
        "catalog",
        lambda data: catalog_json.decode_catalog(wrapped.CATALOG_PATH, data),
        (catalog_json.encode_catalog(CATALOG),),
        seeds.JSON_MARKS,
        encode=catalog_json.encode_catalog,
    ),
    Decoder(
        "segment",
        wrapped.segment,
        (wrapped.encode_segment(seeds.patches()),),
        seeds.JSON_MARKS,
        encode=wrapped.encode_segment,
    ),
    Decoder(
        "frame",
        wrapped.frame,
        (wrapped.encode_frame(b"abc" * 50), wrapped.encode_frame(b"")),
        encode=wrapped.encode_frame,
        memory=70_000,
    ),
    Decoder(
        "keyed state",
        wrapped.keyed,
        tuple(map(wrapped.encode_keyed, seeds.RECORDS)),
        seeds.MSGPACK_MARKS,
        encode=wrapped.encode_keyed,
    ),
    *(
        Decoder(
            name, decode, tuple(map(msgpack_values.pack, seeds.VALUES)), seeds.MSGPACK_MARKS, encode=msgpack_values.pack
        )
        for name, decode in {
            "value": msgpack_values.unpack,
            "value among others": wrapped.among_others,
            "plain value": wrapped.as_plain,
        }.items()
    ),
    Decoder("value as JSON", wrapped.as_json, tuple(map(msgpack_values.pack, seeds.VALUES)), seeds.MSGPACK_MARKS),
    Decoder("path", wrapped.path, seeds.PATHS[:2], seeds.PATH_MARKS, encode=wrapped.encode_path),
    Decoder(
        "path of progress",
        wrapped.progress_path,
        seeds.PATHS[2:],
        seeds.PATH_MARKS,
        encode=lambda name: name.path.encode(),
    ),
    Decoder("number", wrapped.number, seeds.NUMBERS, seeds.PATH_MARKS, encode=lambda number: str(number).encode()),
    Decoder(
        "signed object",
        lambda data: signatures_json.decode_signed("_latest", data),
        seeds.signed_objects(),
        (*seeds.JSON_MARKS, b"\n", b',"signature":"'),
        encode=lambda signed: signatures_json.encode_signed(signed.line, signed.signature, signed.content),
    ),
    Decoder(
        "signers",
        signatures_json.decode_signers,
        (seeds.signers(),),
        seeds.JSON_MARKS,
        encode=signatures_json.encode_signers,
    ),
    Decoder(
        "keys",
        keys_json.decode_keys,
        (seeds.root_keys(),),
        seeds.JSON_MARKS,
        encode=keys_json.encode_keys,
        seal=sealed,
    ),
    Decoder(
        "followers",
        lambda data: followers_json.decode_followers(wrapped.NAME, data),
        (seeds.followers(),),
        seeds.JSON_MARKS,
        encode=lambda value: followers_json.encode_followers(value, NONCE),
        seal=sealed,
    ),
    Decoder(
        "ownership",
        lambda data: positions_json.decode_ownership(wrapped.NAME, data),
        (seeds.ownership(),),
        seeds.JSON_MARKS,
        encode=lambda value: positions_json.encode_ownership(value, NONCE),
        seal=sealed,
    ),
    Decoder(
        "position",
        lambda data: positions_json.decode_position(wrapped.NAME, data),
        wrapped.positions((None, {"any": [1]})),
        seeds.JSON_MARKS,
        encode=lambda value: positions_json.encode_position(value, NONCE),
        seal=sealed,
    ),
    Decoder(
        "marker",
        lambda data: positions_json.decode_marker(wrapped.NAME, data),
        (positions_json.encode_marker(positions_json.Marker(AT), NONCE),),
        seeds.JSON_MARKS,
        encode=lambda value: positions_json.encode_marker(value, NONCE),
        seal=sealed,
    ),
    Decoder(
        "position of an event hub",
        wrapped.position(lambda position: eventhub.decode(wrapped.NAME, position)),
        wrapped.positions(seeds.EVENTHUB),
        seeds.JSON_MARKS,
        seal=sealed,
    ),
    Decoder(
        "position of an event processor host",
        wrapped.position(lambda position: eph.decode(wrapped.NAME, position.partition, position.value)),
        wrapped.positions(seeds.EPH),
        seeds.JSON_MARKS,
        seal=sealed,
    ),
    Decoder(
        "position of a shard",
        wrapped.position(lambda position: kinesis.decode(position.partition, position.value, TRIM_HORIZON)),
        wrapped.positions(seeds.KINESIS),
        seeds.JSON_MARKS,
        encode=lambda recorded: seeds.position(dict(kinesis.encode(recorded)), recorded.shard),
        seal=sealed,
    ),
    Decoder(
        "journal",
        lambda data: yaml_format.decode(wrapped.NAME, data),
        seeds.journals(),
        seeds.YAML_MARKS,
        encode=lambda content: yaml_format.encode(content, AT, NONCE),
        seal=wrapped.reseal_journal,
        memory=2_000,
    ),
    Decoder(
        "expiry of a map",
        wrapped.map_entries,
        (
            wrapped.encode_map_entries(MapRule(10**9, 10**15), 1_704_153_000_000_000),
            wrapped.encode_map_entries(None, -1),
        ),
        seeds.JSON_MARKS,
    ),
    Decoder(
        "schema",
        wrapped.schema,
        seeds.SCHEMAS,
        seeds.JSON_MARKS,
        encode=lambda schema: dump({"format_version": 1, "schema": schema.to_json()}),
    ),
    Decoder(
        "snapshot",
        lambda data: parquet_decode.decode(wrapped.NAME, data, seeds.TABLE, seeds.TABLE.names),
        seeds.snapshots(),
        encode=wrapped.encode_table,
    ),
    Decoder(
        "wide snapshot",
        lambda data: parquet_decode.decode(wrapped.NAME, data, seeds.WIDE, seeds.WIDE.names),
        (seeds.wide_snapshot(),),
        encode=wrapped.encode_table,
    ),
    Decoder("delta", wrapped.delta, seeds.packs()),
    Decoder("row groups", wrapped.row_groups, seeds.snapshots()),
    Decoder("blocks", wrapped.blocks, (seeds.snapshot_with_blocks(),)),
    Decoder("filter", wrapped.key_filter, (seeds.pack_with_filter(),)),
    Decoder("plan", wrapped.plan, seeds.plans(), seeds.JSON_MARKS),
    Decoder("rows of a plan", wrapped.rows_of_plan, seeds.plan_rows(), seeds.JSON_MARKS),
    Decoder("Spark's progress", wrapped.spark, seeds.SPARK, seeds.JSON_MARKS),
    Decoder("Spark's offsets", wrapped.spark_offsets, (seeds.OFFSETS,), seeds.JSON_MARKS),
    Decoder("Spark's list of files", wrapped.file_list, (seeds.FILE_LIST,), seeds.JSON_MARKS),
    Decoder(
        "URL", lambda data: url.parse(wrapped.as_text(data)), seeds.URLS, seeds.PATH_MARKS, encode=wrapped.encode_url
    ),
)
