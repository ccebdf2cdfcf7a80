"""The registry of codecs, which say what the artifacts of an operator hold.

A codec also says how keys are spread over the operator's partitions.

A codec belongs to one kind of operator, and nothing chooses a codec for a single map or table today.

How to add a new kind of operator, with the files in the order in which the data passes them:

1. Write its pure functions, `encode` and `decode` as `PureCodec` describes them, in a module of this package.
2. Add it to `CODECS` or `MAP_CODECS` below. Its name ends the paths of its objects: `object_paths.py`,
   `manifest_json.py` and the readers of a manifest take name and partitioner from here. `chain_json.py` says what
   chains it may have.
3. Describe its bytes and its partitioner in `SPEC.md`. Readers that do not know the name refuse the manifest, so the
   format needs a new version (`manifest_json.py`). Teach them to the independent reader in `tests/judge/reader`.
4. Write with it: a method of `CheckpointWriter` like `save` (`checkpoint/save.py`), or a function of it like `add`
   (`checkpoint/save_bytes.py`), which gives the change of an operator its codec. `checkpoint/encode.py` calls the
   codec's `encode` in the executor.
5. Read with it: a method of `CheckpointReader` (`checkpoint/restore.py`). `checkpoint/decode.py` calls the codec's
   `decode`.
6. Say how `restore(transform=)` changes it, in `checkpoint/migration.py`, or refuse it there by name.
7. Show it where the callers of `kind_of` show maps and tables, or refuse it there by name. `git grep kind_of` finds
   them; `cli/records.py`, `cli/keys.py` and `table/export.py` show records. Forecast what it costs in
   `admin/forecast.py`.
8. Offer it to users in `client/_async_checkpoint.py` and `client/restored.py`; `make format` makes the blocking face.
9. Add a sample to `tests/manifests/samples.py`, its content to `tests/manifests/test_codecs.py`, and an operator of it
   to `tests/proof/operations.py`.

How to add a second codec for maps: steps 1 to 3 and 9, and name it as `MAP_CODEC`, with which new maps are written. A
map keeps the codec that it began with. Two traps:

- The modules that `git grep place_key` finds ask for the partition of a key without its codec, so the partitioner of a
  map stays `crc32-key-1`.
- A `KeyedState` holds each value as its msgpack bytes, so `encode` is given packed bytes, and not values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pyspark_checkpointer.manifests import keyed_records
from pyspark_checkpointer.manifests.model import Operator

Content = TypeVar("Content", contravariant=True)
Decoded = TypeVar("Decoded", covariant=True)

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


Kind = Literal["bytes", "map", "table"]
"""Name what an operator holds: bytes of the job's own format, entries of a keyed state, or rows that Spark wrote."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec and its partitioner, by their names in a manifest.

    An operator in a manifest gives these names, and a number of partitions between these limits.
    """

    name: str
    holds: Kind
    partitioner: str
    min_partitions: int
    max_partitions: int


@dataclass(frozen=True, slots=True)
class PureCodec(Codec, Generic[Content, Decoded]):
    """A codec whose functions need no other package than this one.

    The functions turn content into stored bytes and back.
    """

    encode: Callable[[Content], tuple[bytes, int]]
    """Return the stored bytes, and their size before compression."""
    decode: Callable[[str, Stored, int, int], Decoded]
    """Return the content of stored bytes.

    The arguments are the name of the object in errors, the stored bytes, the raw size and the number of records.
    """
    partition_of: Callable[[Any, int], int] | None = None
    """Return the partition of a key, given the number of partitions.

    None for a codec whose caller names the partition.
    """


def _store_as_is(content: bytes) -> tuple[bytes, int]:
    return content, len(content)


def _give_as_is(name: str, stored: Stored, raw_size: int, records: int) -> bytes:
    return bytes(stored)


RAW = PureCodec("raw", "bytes", "explicit", 0, MAX_PARTITIONS, _store_as_is, _give_as_is)
"""A job's own bytes.

Only the job can merge them, and it names the partition of everything it writes.
"""

MSGPACK = PureCodec(
    "msgpack+zstd",
    "map",
    "crc32-key-1",
    1,
    MAX_MAP_PARTITIONS,
    keyed_records.encode,
    keyed_records.decode,
    keyed_records.partition_of,
)
"""The entries of a keyed state."""

PARQUET = Codec("parquet", "table", "spark-murmur3-1", 1, MAX_TABLE_PARTITIONS)
"""The rows of a table.

`checkpointer/table`, which needs Arrow, encodes, decodes and spreads them.

The partition of a key is `pmod(hash(keys), partitions)`, with Spark's 32-bit hash over the key columns in their order.
"""

MAP_CODEC = MSGPACK
"""The codec that new maps are written with."""

MAP_CODECS = {MSGPACK.name: MSGPACK}
"""The codecs that maps are read with, by their names."""

CODECS: Mapping[str, Codec] = {RAW.name: RAW, **MAP_CODECS, PARQUET.name: PARQUET}
"""All codecs of the format, by the name in a manifest's `codec`."""


def kind_of(operator: Operator) -> Kind:
    """Return what an operator holds, by its codec."""
    return CODECS[operator.codec].holds


def decode_map(path: str, stored: Stored, raw_size: int, records: int) -> dict[Any, bytes | None]:
    """Return the records of an artifact of a map. The path of its object ends with the name of its codec."""
    codec = next(codec for name, codec in MAP_CODECS.items() if path.endswith(f".{name}"))
    return codec.decode(path, stored, raw_size, records)
