"""Read a JSON object of the format field by field.

Each accessor checks the type of a field and takes it out. What is left at the end are fields that a newer writer added.
They are kept on a round trip.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NoReturn, Self

from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.errors import (
    DigestMismatchError,
    IllegalArgumentError,
    MalformedError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, CheckpointId, Json, Ref
from pyspark_checkpointer.manifests.shown import show


def dump(value: Json) -> bytes:
    """Return compact JSON in UTF-8, with the fields in the order given."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def dump_sealed(value: dict[str, Json]) -> bytes:
    """Return JSON whose last field is the SHA-256 of all the bytes before it.

    This is for objects that change in place: no other object names their digest.
    """
    body = dump(value)[:-1]
    return body + _SEAL + sha256(body).encode() + b'"}'


_SEAL = b',"digest":"'


def check_json_fields(**values: Json) -> dict[str, Json]:
    """Return the values by name as they will be read back.

    Raises `IllegalArgumentError` for a value that JSON would change.
    """
    return {name: check_json(name, value) for name, value in values.items()}


def check_json(what: str, value: Json) -> Json:
    """Return a value as it will be read back.

    Raises `IllegalArgumentError`, which names the value, where JSON would change it.
    """
    try:
        # Tuples come back as lists and numbers as keys come back as text: comparing shows what a type check would have
        # to list.
        copy = json.loads(dump(value), parse_int=_finite_integer)
    except (TypeError, ValueError, RecursionError) as error:
        raise IllegalArgumentError(f"{what}: not a JSON value: {error}") from None
    if copy != value:
        raise IllegalArgumentError(
            f"{what}: JSON would change it (tuples and keys that are no strings do): {show(value)}"
        )
    return copy


def format_time(at: datetime) -> str:
    """Return a time as text, in UTC; one without a zone is taken to be in UTC already."""
    # Python would take a time without a zone for local time, and what is written would depend on the host.
    aware = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return aware.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Return the fields of an object; refuse one that has two of one name.

    Readers take different ones of the two.
    """
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field stands twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python's reader takes and JSON does not have."""
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    """Return a number; refuse one that becomes infinite.

    An infinite number could not be written again.
    """
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is too large a number")
    return value


_DIGITS = bytes(48 if chr(byte).isdecimal() else 32 for byte in range(256))
"""A table for `translate` that makes every ASCII digit a 0.

It makes every other byte a space.
"""

_TOO_LONG = b"0" * (sys.float_info.max_10_exp + 1)
"""So many digits may be an integer that is too large for a double."""


def _finite_integer(text: str) -> int:
    """Return an integer; refuse one that is too large for a double.

    Many readers of JSON turn numbers into doubles.
    """
    value = int(text)
    try:
        float(value)
    except OverflowError:
        raise ValueError(f"{text:.40} is too large a number") from None
    return value


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


HEXADECIMAL = frozenset("0123456789abcdef")


class Fields:
    """The fields of one JSON object that have not been read yet.

    Errors name the object of the store, `name`.
    """

    def __init__(self, name: str, value: Json) -> None:
        self.name = name
        if not isinstance(value, dict):
            self.fail(f"expected a JSON object, found {type(value).__name__}")
        self._fields = dict(value)

    @classmethod
    def parse(cls, name: str, data: bytes) -> Self:
        """Return the fields of a whole JSON object.

        Its `format_version` is checked first.
        """
        try:
            value = json.loads(
                data.decode(),
                object_pairs_hook=_unique,
                parse_constant=_no_constant,
                parse_float=_finite,
                # Only where it is needed: a function of our own is called for each integer.
                parse_int=_finite_integer if _TOO_LONG in data.translate(_DIGITS) else None,
            )
            if b"\\u" in data:
                dump(value)  # an escape may stand for half a character, which no UTF-8 can say
        except (ValueError, RecursionError) as error:
            raise MalformedError(f"{name}: expected JSON in UTF-8, found {len(data)} bytes: {error}") from None
        fields = cls(name, value)
        version = fields.integer("format_version", minimum=1)
        # Before any other field: a newer version may use the same name for something else.
        if version > FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"{name}: has format version {version}, this library reads up to {FORMAT_VERSION}: upgrade it"
            )
        return fields

    @classmethod
    def parse_compact(cls, name: str, data: bytes) -> Self:
        """Return the fields of a whole object of the format.

        Raises `MalformedError` for white space between its tokens.
        """
        fields = cls.parse(name, data)
        if any(space in data for space in b" \n\r\t") and (found := re.search(rb"\s", _STRING.sub(b"", data))):
            fields.fail(f"expected JSON without white space between its tokens, found {found[0]!r}")
        return fields

    @classmethod
    def parse_sealed(cls, name: str, data: bytes) -> Self:
        """Return the fields of an object that `dump_sealed` made.

        Its digest is compared first.
        """
        fields = cls.parse_compact(name, data)
        # The last one: a value of the caller may hold the same characters (SPEC.md, "The digest"). The bytes are
        # compared and not a new encoding, which another language may write differently.
        body, seal, tail = data.rpartition(_SEAL)
        digest = fields.hexadecimal("digest", 64)
        if not seal or tail != digest.encode() + b'"}':
            fields.fail("expected the digest as its last field")
        if sha256(body) != digest:
            raise DigestMismatchError(f"{name}: expected SHA-256 {digest} before its digest, found {sha256(body)}")
        return fields

    def fail(self, why: str) -> NoReturn:
        """Raise `MalformedError` for the object."""
        raise MalformedError(f"{self.name}: {why}")

    # ---- fields of any type -----------------------------------------------------------------------------------------

    def take(self, key: str) -> Json:
        """Return a field of any type, null too."""
        if key not in self._fields:
            self.fail(f"expected a field {key!r}, found none")
        return self._fields.pop(key)

    def optional(self, key: str) -> Json:
        """Return a field of any type; None where it is left out. It must not be null."""
        if key not in self._fields:
            return None
        value = self._fields.pop(key)
        if value is None:
            self.fail(f"{key}: expected a value or no such field, found null")
        return value

    def refuse(self, keys: Iterable[str], why: str) -> None:
        """Raise `MalformedError` where one of these fields is there."""
        for key in keys:
            if key in self._fields:
                self.fail(f"{key}: {why}")

    def rest(self) -> Mapping[str, Json]:
        """Return the fields that nobody has read: a newer writer added them."""
        return self._fields

    # ---- fields of one type -----------------------------------------------------------------------------------------

    def integer(self, key: str, minimum: int = 0) -> int:
        """Return an integer from `minimum` that fits in 64 bits."""
        return self.check_integer(key, self.take(key), minimum)

    def integers(self, *keys: str) -> list[int]:
        """Return several integers from 0, in the order of their keys."""
        return [self.integer(key) for key in keys]

    def integer_or_null(self, key: str, minimum: int) -> int | None:
        """Return an integer from `minimum`, or None for null."""
        value = self.take(key)
        return None if value is None else self.check_integer(key, value, minimum)

    def check_integer(self, key: str, value: Json, minimum: int = 0) -> int:
        """Return an integer that was read already; `key` says what it is."""
        # In Python true is an integer; in the format it is not.
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**63:
            self.fail(f"{key}: expected an integer from {minimum} to 2**63 - 1, found {show(value)}")
        return value

    def check_integers(self, keys: str, values: Sequence[Json]) -> Sequence[int]:
        """Return integers from 0 that were read already.

        `keys` says what they are, with commas in between.
        """
        for value in values:
            if type(value) is not int or not 0 <= value < 2**63:
                # One of them is wrong: find out which, and say so.
                for key, each in zip(keys.split(", "), values, strict=True):
                    self.check_integer(key, each)
        return values

    def text(self, key: str) -> str:
        """Return a text."""
        return self._check_text(key, self.take(key))

    def filled_text(self, key: str) -> str:
        """Return a text of at least one character, such as a nonce."""
        value = self.text(key)
        if not value:
            self.fail(f"{key}: expected at least one character, found none")
        return value

    def texts(self, *keys: str) -> list[str]:
        """Return several texts, in the order of their keys."""
        return [self.text(key) for key in keys]

    def optional_text(self, key: str) -> str | None:
        """Return a text; None where it is left out."""
        value = self.optional(key)
        return None if value is None else self._check_text(key, value)

    def _check_text(self, key: str, value: Json) -> str:
        if not isinstance(value, str):
            self.fail(f"{key}: expected text, found {show(value)}")
        return value

    def boolean(self, key: str) -> bool:
        """Return true or false."""
        value = self.take(key)
        if not isinstance(value, bool):
            self.fail(f"{key}: expected true or false, found {show(value)}")
        return value

    def hexadecimal(self, key: str, digits: int) -> str:
        """Return a text of so many lower-case hexadecimal digits."""
        value = self.text(key)
        if len(value) != digits or set(value) - HEXADECIMAL:
            self.fail(f"{key}: expected {digits} hexadecimal digits, found {show(value)}")
        return value

    def id(self, key: str) -> CheckpointId:
        """Return the id of a checkpoint."""
        return self._check_id(key, self.text(key))

    def id_or_null(self, key: str) -> CheckpointId | None:
        """Return the id of a checkpoint, or None for null."""
        value = self.take(key)
        return None if value is None else self._check_id(key, self._check_text(key, value))

    def _check_id(self, key: str, value: str) -> CheckpointId:
        try:
            found = CheckpointId.parse(value)
        except IllegalArgumentError as error:
            self.fail(f"{key}: {error}")
        if found.sequence < 1:
            self.fail(f"{key}: {found}: sequences begin at 1")
        return found

    def ref(self) -> Ref:
        """Return a reference to a manifest, whose two fields are among these."""
        return Ref(id=self.id("id"), digest=self.hexadecimal("digest", 64))

    def ref_or_null(self, key: str) -> Ref | None:
        """Return a reference to a manifest; None for null.

        The reference is an object of its own.
        """
        inner = self.inner(key)
        return None if inner is None else inner.ref()

    def time(self, key: str) -> datetime:
        """Return a moment, in UTC."""
        return self._check_time(key, self.text(key))

    def time_or_null(self, key: str) -> datetime | None:
        """Return a moment, in UTC, or None for null."""
        value = self.take(key)
        return None if value is None else self._check_time(key, self._check_text(key, value))

    def _check_time(self, key: str, value: str) -> datetime:
        try:
            at = datetime.fromisoformat(value)
            utc = None if at.tzinfo is None else at.astimezone(UTC)
        except (ValueError, OverflowError):
            utc = None
        if utc is None or format_time(utc) != value:
            self.fail(f"{key}: expected a time such as 2024-01-02T03:04:05.000678Z, found {show(value)}")
        return utc

    def items(self, key: str) -> list[Json]:
        """Return a list."""
        value = self.take(key)
        if not isinstance(value, list):
            self.fail(f"{key}: expected a list, found {show(value)}")
        return value

    def mapping(self, key: str) -> dict[str, Json]:
        """Return an object as a dict."""
        value = self.take(key)
        if not isinstance(value, dict):
            self.fail(f"{key}: expected an object, found {show(value)}")
        return value

    def inner(self, key: str) -> "Fields | None":
        """Return the fields of a field that is an object of its own, or None for null."""
        value = self.take(key)
        return None if value is None else Fields(f"{self.name}: {key}", value)

    def optional_inner(self, key: str) -> "Fields | None":
        """Return the fields of a field that is an object of its own.

        None where the field is left out.
        """
        value = self.optional(key)
        return None if value is None else Fields(f"{self.name}: {key}", value)
