"""Encode and decode chains as JSON: a table of objects, a row for each artifact.

A row names its object by index.

objects   [[path, stored size], …]                                          or, if parts of it can be read alone,
          [[path, stored size, tail length, tail digest], …]
row       [object, raw size, records]                                       the whole object
          [object, raw size, records, kind, offset, length, digest | null]  part of a pack; null: all of it
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, NoReturn

from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests.json_fields import HEXADECIMAL, Fields, Table
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Artifact, Chain, Json, Tail
from pyspark_checkpointer.manifests.shown import show


class ObjectTable:
    """The objects that rows have named so far, each once.

    They are in the order in which they were first named.
    """

    def __init__(self) -> None:
        self.rows: list[list[Json]] = []
        self._known: dict[str, tuple[int, object_paths.ArtifactName]] = {}

    def row(self, artifact: Artifact) -> list[Json]:
        """Return the row of an artifact, and add its object to the table."""
        index, name = self._find(artifact)
        head: list[Json] = [index, artifact.raw_size, artifact.records]
        if name.partition is not None:
            # The short row leaves these out, and a reader takes them from the path. They would change without a word.
            whole = (name.kind, 0, artifact.size, name.digest)
            if (artifact.kind, artifact.offset, artifact.length, artifact.digest) != whole:
                raise IllegalArgumentError(f"{artifact.path}: the artifact does not say what its path says")
            return head
        digest = None if artifact.digest == name.digest else artifact.digest
        return [*head, artifact.kind, artifact.offset, artifact.length, digest]

    def _find(self, artifact: Artifact) -> tuple[int, object_paths.ArtifactName]:
        """Return the index of an artifact's object, and what its path says.

        The object is added if it is new.
        """
        known = self._known.get(artifact.path)
        if known is None:
            try:
                name = object_paths.parse_artifact(artifact.path)
            except MalformedError as error:
                raise IllegalArgumentError(str(error)) from None
            known = self._known[artifact.path] = len(self.rows), name
            self.rows.append(_object(artifact))
        # The table names each object once, so two sizes or tails of it cannot both be written.
        if self.rows[known[0]] != _object(artifact):
            raise IllegalArgumentError(
                f"{artifact.path}: is {self.rows[known[0]][1:]} in one place and {_object(artifact)[1:]} in another"
            )
        return known


def encode_rows(chains: Mapping[int, Chain]) -> tuple[list[list[Json]], dict[str, list[list[Json]]]]:
    """Return the table of objects, and the rows of each chain by partition."""
    table = ObjectTable()
    rows = {str(partition): [table.row(a) for a in chain] for partition, chain in sorted(chains.items())}
    return table.rows, rows


class _Object(NamedTuple):
    """An object of the table, and what its path says."""

    path: str
    size: int
    name: object_paths.ArtifactName
    tail: Tail | None


class ArtifactReader:
    """Turns rows back into artifacts of one operator.

    No artifact is newer than `sequence`.
    """

    def __init__(self, fields: Fields, objects: list[Json], operator: str, codec: str, sequence: int) -> None:
        self.fields = fields
        self._objects = [self._object(row, operator, codec, sequence) for row in objects]
        if len({each.path for each in self._objects}) < len(self._objects):
            fields.fail("objects: one is there twice")
        self._used = bytearray(len(self._objects))
        self._is_raw = codec == codecs.RAW.name
        self._is_table = codec == codecs.PARQUET.name

    def _object(self, row: Json, operator: str, codec: str, sequence: int) -> "_Object":
        if not isinstance(row, list) or len(row) not in (2, 4) or not isinstance(row[0], str):
            self.fields.fail(f"objects: expected [path, size] or these and a tail, found {show(row)}")
        try:
            name = object_paths.parse_artifact(row[0])
        except MalformedError as error:
            self.fields.fail(str(error))
        # Its folder is not compared: it has the name that the operator had when the object was written.
        if name.codec != codec or name.id.sequence > sequence:
            self.fields.fail(f"{show(row[0])} does not belong to operator {operator!r} with codec {codec}")
        size = self.fields.check_integer("object size", row[1])
        return _Object(row[0], size, name, self._tail(row[2], row[3], size) if len(row) == 4 else None)

    def artifact(self, partition: int, row: Json) -> Artifact:
        """Return the artifact of a row in the chain of `partition`."""
        fields = self.fields
        if not isinstance(row, list) or len(row) not in (3, 7):
            fields.fail(f"partition {partition}: expected a row of 3 or 7, found {show(row)}")
        index, raw_size, records = fields.check_integers("object, raw size, records", row[:3])
        if index >= len(self._objects):
            fields.fail(f"partition {partition}: names object {index} of {len(self._objects)}")
        path, size, name, tail = self._objects[index]
        self._used[index] = 1
        # A row of 3 names a whole object of the partition's own, and a row of 7 a part of a pack.
        if len(row) == 3:
            if name.kind is None or name.partition != partition:
                fields.fail(f"partition {partition}: {path} is not its own")
            if self._is_raw and (records != 1 or raw_size != size):
                self._refuse_raw(partition, row, size)
            if self._is_table and (name.kind == DELTA or not size):
                fields.fail(f"partition {partition}: expected a snapshot of a table with bytes, found {show(row)}")
            return Artifact(path, name.kind, 0, size, size, raw_size, records, name.digest, tail)
        kind, digest = row[3], name.digest if row[6] is None else row[6]
        offset, length = fields.check_integers("offset, length", row[4:6])
        if name.partition is not None or kind not in ("snapshot", "delta") or offset + length > size:
            fields.fail(f"partition {partition}: {show(row)} is not part of a pack of {size} bytes")
        if not _is_digest(digest):
            fields.fail(f"partition {partition}: expected a digest, found {show(digest)}")
        # A null digest stands for that of the whole pack, which no part of it can have.
        if digest == name.digest and (offset, length) != (0, size):
            fields.fail(f"partition {partition}: the digest of the whole pack on a part of it")
        if self._is_raw and (records != 1 or raw_size != length):
            self._refuse_raw(partition, row, length)
        if self._is_table:
            self._check_table_slice(partition, row, size, name.digest)
        return Artifact(path, kind, offset, length, size, raw_size, records, digest, tail)

    def _refuse_raw(self, partition: int, row: list[Json], length: int) -> NoReturn:
        """Raise `MalformedError` for a raw artifact that is not one record.

        The record must have as many bytes as are stored.
        """
        self.fields.fail(f"partition {partition}: expected {length} bytes and 1 record, found {show(row)}")

    def _check_table_slice(self, partition: int, row: list[Json], size: int, of_pack: str) -> None:
        """Raise `MalformedError` unless a row is a table's delta or empty snapshot.

        The delta must be the whole pack. All partitions share one file and one digest, so a reader compares it once.
        """
        digest = of_pack if row[6] is None else row[6]
        is_delta = row[3] == DELTA and digest == of_pack and size > 0
        # A repair that keeps nothing else of a pack leaves an object without bytes, whose digest this is too.
        if not is_delta and (row[1:6] != _EMPTY_SNAPSHOT or digest != _NOTHING):
            self.fields.fail(
                f"partition {partition}: expected a delta that is all of a pack of {size} bytes, or an empty snapshot, "
                f"found {show(row)}"
            )

    def _tail(self, length: Json, digest: Json, size: int) -> Tail:
        if not _is_digest(digest):
            self.fields.fail(f"tail: expected a digest, found {show(digest)}")
        if self.fields.check_integer("tail length", length, 1) > size:
            self.fields.fail(f"a tail of {length} bytes in an object of {size}")
        return Tail(length, digest)

    def chain(self, partition: int, rows: Json) -> Chain:
        """Return the artifacts of some rows in the chain of `partition`."""
        if not isinstance(rows, list):
            self.fields.fail(f"partition {partition}: expected a list of rows, found {show(rows)}")
        return tuple(self.artifact(partition, row) for row in rows)

    def refuse_unused(self) -> None:
        """Raise `MalformedError` if there is an object that no row has named.

        It is called when all rows were read.
        """
        unused = self._used.find(0)
        if unused >= 0:
            self.fields.fail(f"objects: no row names {self._objects[unused].path}")


_NOTHING = sha256(b"")
_EMPTY_SNAPSHOT: list[Json] = [0, 0, SNAPSHOT, 0, 0]
"""Raw size, records, kind, offset and length in the row of a table's partition that had no rows below its deltas."""


def _object(artifact: Artifact) -> list[Json]:
    """Return the row of an artifact's object in the table of objects."""
    tail = artifact.tail
    return [artifact.path, artifact.size] if tail is None else [artifact.path, artifact.size, tail.length, tail.digest]


def _is_digest(value: Json) -> bool:
    return isinstance(value, str) and len(value) == 64 and HEXADECIMAL.issuperset(value)


def decode_partitions(fields: Fields, keys: Iterable[str], partitions: int) -> list[int]:
    """Return the partition numbers that are the keys of a JSON object."""
    numbers = []
    for key in keys:
        # `isdigit` alone takes digits of every script. A long key is cut, because Python needs long for its number, or
        # refuses it; it is then unlike its text.
        if not (key.isascii() and key.isdigit()) or str(int(key[:12])) != key or int(key) >= partitions:
            fields.fail(f"partition {key!r:.40}: expected a number below {partitions}")
        numbers.append(int(key))
    return numbers


_ROWS: Table = {"objects": Fields.check_items, "chains": Fields.check_mapping}


def decode_rows(fields: Fields, operator: str, partitions: int, codec: str, sequence: int) -> dict[int, Chain]:
    """Return the chains by partition that the fields `objects` and `chains` describe."""
    found = fields.read(_ROWS)
    chains = found["chains"]
    reader = ArtifactReader(fields, found["objects"], operator, codec, sequence)
    numbers = decode_partitions(fields, chains, partitions)
    decoded = {number: reader.chain(number, rows) for number, rows in zip(numbers, chains.values(), strict=True)}
    reader.refuse_unused()
    for number, chain in decoded.items():
        if not is_well_formed(chain):
            fields.fail(f"partition {number}: a chain is one snapshot, then deltas")
    return decoded


def is_well_formed(chain: Chain) -> bool:
    """Return whether a chain is one snapshot, then deltas."""
    return bool(chain) and chain[0].kind == SNAPSHOT and all(artifact.kind == DELTA for artifact in chain[1:])
