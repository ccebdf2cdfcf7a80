"""Register the codecs, which say what the artifacts of an operator hold.

A codec also names the partitioner, which spreads keys over the operator's partitions.

A codec belongs to one kind of operator, and nothing chooses a codec for a single map or table today.

How to add a codec, with the files in the order in which the data passes them:

1. Write its pure functions, `encode` and `decode` as `PureCodec` describes them, in a module of this package.
2. Add it to `CODECS` below. Its name ends the paths of its objects: `object_paths.py`, `manifest_json.py` and the
   readers of a manifest take name and partitioner from here. `chain_json.py` says what chains it may have.
   `checkpoint/encode.py` and `checkpoint/decode.py` find its functions by the name in the manifest.
3. If it is a codec of maps, name it as `MAP_CODEC`, with which new maps are written. A map keeps the codec that it
   began with. The partitioner of all codecs of maps is `MAP_PARTITIONER`: a `KeyedState` spreads its keys before it has
   a codec. It holds each value as its msgpack bytes, so `encode` is given packed bytes, and not values.
4. Describe its bytes in `SPEC.md`, and its partitioner if that is new. Readers that do not know the name refuse the
   manifest, so the format needs a new version (`manifest_json.py`). Teach them to the independent reader in
   `tests/judge/reader`.
5. Add a sample to `tests/manifests/samples.py`, and its content to `tests/manifests/test_codecs.py`.

A codec of maps is complete with this. How to go on with a codec of a new kind of operator:

6. Add the kind to `OperatorKind` below.
7. Write with it: a method of `CheckpointAttempt` like `save` (`checkpoint/save.py`), which gives the change of an
   operator its codec, and each partition that changed to `checkpoint/encode.py`.
8. Read with it: a method of `CheckpointReader` like `keyed` (`checkpoint/restore.py`), which calls
   `checkpoint/decode.py`.
9. Say how `restore(transform=)` changes it, in `checkpoint/migration.py`, or refuse it there by name.
10. Show it where the callers of `kind_of` show maps and tables, or refuse it there by name. `git grep kind_of` finds
    them; `cli/records.py`, `cli/keys.py` and `table/export.py` show records. Forecast what it costs in
    `admin/forecast.py`.
11. Offer it to users in `client/_async_checkpoint.py` and `client/restored.py`; `make format` makes the blocking face.
12. Add an operator of it to `tests/proof/operations.py`.

Two codecs have no functions here. `raw` changes no byte, so `checkpoint/save_bytes.py` writes what it is given. Arrow
writes and reads `parquet`, in `checkpointer/table`, which this package must not import.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pyspark_checkpointer.manifests import keyed_records
from pyspark_checkpointer.manifests.model import Operator

Stored = bytes | bytearray | memoryview

MAX_PARTITIONS = 2**31
"""Partitions of an operator, at most.

Their numbers fit in a signed integer of 32 bits.
"""

MAX_MAP_PARTITIONS = 131_072
"""Partitions of a map, at most.

100,000 are proven. With this limit, no manifest makes a restore ask for memory without end.
"""

MAX_TABLE_PARTITIONS = 2**31 - 1
"""Partitions of a table, at most: Spark divides the hash of a key by an integer of 32 bits."""


OperatorKind = Literal["bytes", "map", "table"]
"""Name what an operator holds: bytes of the job's own format, entries of a keyed state, or rows that Spark wrote."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec and its partitioner, by their names in a manifest.

    An operator in a manifest gives these names, and a number of partitions between these limits.
    """

    name: str
    holds: OperatorKind
    partitioner: str
    min_partitions: int
    max_partitions: int


@dataclass(frozen=True, slots=True)
class PureCodec(Codec):
    """A codec whose functions need no other package than this one.

    The functions turn the records of an artifact into stored bytes and back.
    """

    encode: Callable[[Any], tuple[bytes, int]]
    """Return the stored bytes of records, and their size before compression."""
    decode: Callable[[str, Stored, int, int], Any]
    """Return the records of stored bytes.

    The arguments are the name of the object in errors, the stored bytes, the raw size and the number of records.
    """


MAP_PARTITIONER = "crc32-key-1"
"""The partitioner of all codecs of maps.

Its function is `keyed_records.place_key`. A map calls it before it is saved, and so before it has a codec.
"""

RAW = Codec("raw", "bytes", "explicit", 0, MAX_PARTITIONS)
"""A job's own bytes.

Only the job can merge them, and it names the partition of everything it writes.
"""

MSGPACK = PureCodec(
    "msgpack+zstd", "map", MAP_PARTITIONER, 1, MAX_MAP_PARTITIONS, keyed_records.encode, keyed_records.decode
)
"""The entries of a keyed state."""

PARQUET = Codec("parquet", "table", "spark-murmur3-1", 1, MAX_TABLE_PARTITIONS)
"""The rows of a table.

`checkpointer/table`, which needs Arrow, encodes, decodes and spreads them.

The partition of a key is `pmod(hash(keys), partitions)`, with Spark's 32-bit hash over the key columns in their order.
"""

MAP_CODEC = MSGPACK
"""The codec that new maps are written with."""

CODECS: Mapping[str, Codec] = {codec.name: codec for codec in (RAW, MSGPACK, PARQUET)}
"""All codecs of the format, by the name in a manifest's `codec`."""

PURE_CODECS = {name: codec for name, codec in CODECS.items() if isinstance(codec, PureCodec)}
"""Those of `CODECS` with functions to encode and decode. Made from it, so nothing is added here."""


def kind_of(operator: Operator) -> OperatorKind:
    """Return the kind of an operator, by its codec."""
    return CODECS[operator.codec].holds
