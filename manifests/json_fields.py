"""Reading a JSON object of the format field by field: each accessor checks the type and takes the field away.

What is left at the end are fields that a newer writer added; they are kept on a round trip.
"""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NoReturn, Self

from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.errors import (
    DigestMismatchError,
    IllegalArgumentError,
    MalformedError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, CheckpointId, Json
from pyspark_checkpointer.manifests.shown import show


def dump(value: Json) -> bytes:
    """Compact JSON in UTF-8, fields in the order given."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def dump_sealed(value: dict[str, Json]) -> bytes:
    """An object that nothing above it names: its last field is the SHA-256 of all the bytes before that field."""
    body = dump(value)[:-1]
    return body + _SEAL + sha256(body).encode() + b'"}'


_SEAL = b',"digest":"'


def check_json(what: str, value: Json) -> Json:
    """Return the value as it will be read back; `IllegalArgumentError` naming `what` where JSON would change it."""
    try:
        copy = json.loads(dump(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise IllegalArgumentError(f"{what}: not a JSON value: {error}") from None
    if copy != value:
        raise IllegalArgumentError(
            f"{what}: JSON would change it (tuples and keys that are no strings do): {show(value)}"
        )
    return copy


def format_time(at: datetime) -> str:
    """Return a time as text, in UTC; one without a zone is taken to be in UTC already."""
    aware = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return aware.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field stands twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is too large a number")
    return value


class Fields:
    """The fields of one JSON object of the object `name` of the store."""

    def __init__(self, name: str, value: Json) -> None:
        self.name = name
        if not isinstance(value, dict):
            self.fail(f"expected a JSON object, found {type(value).__name__}")
        self._fields = dict(value)

    @classmethod
    def parse(cls, name: str, data: bytes) -> Self:
        """Return a whole file, whose `format_version` is checked before anything else."""
        try:
            value = json.loads(
                data.decode(), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
            )
            if b"\\u" in data:
                dump(value)  # an escape may stand for half a character, which no UTF-8 can say
        except (ValueError, RecursionError) as error:
            raise MalformedError(f"{name}: expected JSON in UTF-8, found {len(data)} bytes: {error}") from None
        fields = cls(name, value)
        version = fields.integer("format_version", minimum=1)
        if version > FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"{name}: has format version {version}, this library reads up to {FORMAT_VERSION}: upgrade it"
            )
        return fields

    @classmethod
    def parse_sealed(cls, name: str, data: bytes) -> Self:
        """Return a whole file as `dump_sealed` makes it, its digest compared."""
        fields = cls.parse(name, data)
        body, seal, tail = data.rpartition(_SEAL)
        digest = fields.hexadecimal("digest", 64)
        if not seal or tail != digest.encode() + b'"}':
            fields.fail("expected the digest as its last field")
        if sha256(body) != digest:
            raise DigestMismatchError(f"{name}: expected SHA-256 {digest} before its digest, found {sha256(body)}")
        return fields

    def fail(self, why: str) -> NoReturn:
        raise MalformedError(f"{self.name}: {why}")

    def take(self, key: str) -> Json:
        if key not in self._fields:
            self.fail(f"expected a field {key!r}, found none")
        return self._fields.pop(key)

    def optional(self, key: str) -> Json:
        return self._fields.pop(key, None)

    def integer(self, key: str, minimum: int = 0) -> int:
        return self.check_integer(key, self.take(key), minimum)

    def check_integer(self, key: str, value: Json, minimum: int = 0) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**63:
            self.fail(f"{key}: expected an integer of at least {minimum}, found {show(value)}")
        return value

    def text(self, key: str) -> str:
        value = self.take(key)
        if not isinstance(value, str):
            self.fail(f"{key}: expected text, found {show(value)}")
        return value

    def boolean(self, key: str) -> bool:
        value = self.take(key)
        if not isinstance(value, bool):
            self.fail(f"{key}: expected true or false, found {show(value)}")
        return value

    def hexadecimal(self, key: str, digits: int) -> str:
        value = self.text(key)
        if len(value) != digits or set(value) - set("0123456789abcdef"):
            self.fail(f"{key}: expected {digits} hexadecimal digits, found {show(value)}")
        return value

    def id(self, key: str) -> CheckpointId:
        try:
            found = CheckpointId.parse(self.text(key))
        except IllegalArgumentError as error:
            self.fail(f"{key}: {error}")
        if found.sequence < 1:
            self.fail(f"{key}: {found}: sequences begin at 1")
        return found

    def time(self, key: str) -> datetime:
        value = self.text(key)
        try:
            at = datetime.fromisoformat(value)
            utc = None if at.tzinfo is None else at.astimezone(UTC)
        except (ValueError, OverflowError):
            utc = None
        if utc is None:
            self.fail(f"{key}: expected a time with its zone, found {show(value)}")
        return utc

    def items(self, key: str) -> list[Json]:
        value = self.take(key)
        if not isinstance(value, list):
            self.fail(f"{key}: expected a list, found {show(value)}")
        return value

    def mapping(self, key: str) -> dict[str, Json]:
        value = self.take(key)
        if not isinstance(value, dict):
            self.fail(f"{key}: expected an object, found {show(value)}")
        return value

    def inner(self, key: str) -> "Fields | None":
        """Return a field that is an object of its own, or null."""
        value = self.take(key)
        return None if value is None else Fields(f"{self.name}: {key}", value)

    def rest(self) -> Mapping[str, Json]:
        return self._fields
