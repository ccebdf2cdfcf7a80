"""Read a JSON object of the format field by field.

A table names the fields of one object, and the kind of each: `Fields.read` checks all of them at once. Each accessor
checks the type of a single field. A field that was read is taken out. The fields that are left at the end come from a
newer writer. They are kept when the object is written again.

A kind is a function of the object's fields, a key and its value. It returns the value as the model has it, or fails.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, Self

from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.errors import (
    DigestMismatchError,
    IllegalArgumentError,
    MalformedError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests.json_text import ENCRYPTED, SEAL, SIGNED, format_time, load
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, CheckpointId, Json, Ref
from pyspark_checkpointer.manifests.shown import show

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)

HEXADECIMAL = frozenset("0123456789abcdef")

FieldKind = Callable[["Fields", str, Json], Any]


@dataclass(frozen=True, slots=True)
class Optional:
    """A field that may be left out, and must not be null.

    It is read as None where it is left out.
    """

    kind: FieldKind


Table = Mapping[str, FieldKind | Optional]
"""The fields of a JSON object by name, in the order in which they are checked."""


class Fields:
    """The fields of one JSON object that have not been read yet.

    Errors name the object of the store, `name`.
    """

    def __init__(self, name: str, value: Json) -> None:
        self.name = name
        if not isinstance(value, dict):
            self.fail(f"expected a JSON object, found {type(value).__name__}")
        self.rest = dict(value)
        """The fields that nobody has read. At the end they are those that a newer writer added."""

    @classmethod
    def parse(cls, name: str, data: bytes) -> Self:
        """Return the fields of a whole JSON object.

        Its `format_version` is checked first.
        """
        # No damage: a client without the keys must not repair it, nor take it for anything else.
        if data.startswith(ENCRYPTED):
            raise UnsupportedFormatError(
                f"{name}: is encrypted: say what opens its keys, with encryption= or --encryption"
            )
        if data.startswith(SIGNED):
            raise UnsupportedFormatError(f"{name}: is signed: say whom to trust, with signing= or --signing")
        fields = cls(name, load(name, data))
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
        body, seal, tail = data.rpartition(SEAL)
        digest = fields.check_digest("digest", fields.take("digest"))
        if not seal or tail != digest.encode() + b'"}':
            fields.fail("expected the digest as its last field")
        if sha256(body) != digest:
            raise DigestMismatchError(f"{name}: expected SHA-256 {digest} before its digest, found {sha256(body)}")
        return fields

    def fail(self, why: str) -> NoReturn:
        """Raise `MalformedError` for the object."""
        raise MalformedError(f"{self.name}: {why}")

    # ---- reading ----------------------------------------------------------------------------------------------------

    def read(self, table: Table) -> dict[str, Any]:
        """Return the fields of a table by name, each checked by its kind."""
        found = {}
        for key, kind in table.items():
            if isinstance(kind, Optional):
                value = self.optional(key)
                found[key] = None if value is None else kind.kind(self, key, value)
            else:
                found[key] = kind(self, key, self.take(key))
        return found

    def take(self, key: str) -> Json:
        """Return a field of any type, null too."""
        if key not in self.rest:
            self.fail(f"expected a field {key!r}, found none")
        return self.rest.pop(key)

    def optional(self, key: str) -> Json:
        """Return a field of any type; None where it is left out. It must not be null."""
        if key not in self.rest:
            return None
        value = self.rest.pop(key)
        if value is None:
            self.fail(f"{key}: expected a value or no such field, found null")
        return value

    def refuse(self, keys: Iterable[str], why: str) -> None:
        """Raise `MalformedError` where one of these fields is there."""
        for key in keys:
            if key in self.rest:
                self.fail(f"{key}: {why}")

    def integer(self, key: str, minimum: int = 0) -> int:
        """Return an integer from `minimum` that fits in 64 bits."""
        return self.check_integer(key, self.take(key), minimum)

    def text(self, key: str) -> str:
        """Return a text."""
        return self.check_text(key, self.take(key))

    def filled_text(self, key: str) -> str:
        """Return a text of at least one character, such as a nonce."""
        return self.check_filled_text(key, self.take(key))

    def id(self, key: str) -> CheckpointId:
        """Return the id of a checkpoint."""
        return self.check_id(key, self.take(key))

    def ref(self) -> Ref:
        """Return a reference to a manifest, whose two fields are among these."""
        return Ref(**self.read(_REF))

    def time(self, key: str) -> datetime:
        """Return a moment, in UTC."""
        return self.check_time(key, self.take(key))

    def items(self, key: str) -> list[Json]:
        """Return a list."""
        return self.check_items(key, self.take(key))

    def inner(self, key: str) -> "Fields | None":
        """Return the fields of a field that is an object of its own, or None for null."""
        value = self.take(key)
        return None if value is None else Fields(f"{self.name}: {key}", value)

    # ---- kinds: what a value that was read already has to be; `key` says what it is ----------------------------------

    def take_any(self, key: str, value: Json) -> Json:
        """Return a value of any type."""
        return value

    def check_integer(self, key: str, value: Json, minimum: int = 0) -> int:
        """Return an integer from `minimum` that fits in 64 bits."""
        # In Python true is an integer; in the format it is not.
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**63:
            self.fail(f"{key}: expected an integer from {minimum} to 2**63 - 1, found {show(value)}")
        return value

    def check_integers(self, keys: str, values: Sequence[Json]) -> Sequence[int]:
        """Return integers from 0. `keys` says what they are, with commas in between."""
        for value in values:
            if type(value) is not int or not 0 <= value < 2**63:
                # One of them is wrong: find out which, and say so.
                for key, each in zip(keys.split(", "), values, strict=True):
                    self.check_integer(key, each)
        return values

    def check_boolean(self, key: str, value: Json) -> bool:
        """Return true or false."""
        if not isinstance(value, bool):
            self.fail(f"{key}: expected true or false, found {show(value)}")
        return value

    def check_text(self, key: str, value: Json) -> str:
        """Return a text."""
        if not isinstance(value, str):
            self.fail(f"{key}: expected text, found {show(value)}")
        return value

    def check_filled_text(self, key: str, value: Json) -> str:
        """Return a text of at least one character."""
        if not self.check_text(key, value):
            self.fail(f"{key}: expected at least one character, found none")
        return value  # type: ignore[no-any-return]  # it was checked

    def check_digest(self, key: str, value: Json) -> str:
        """Return a SHA-256 in lower-case hexadecimal digits."""
        text = self.check_text(key, value)
        if len(text) != 64 or set(text) - HEXADECIMAL:
            self.fail(f"{key}: expected 64 hexadecimal digits, found {show(text)}")
        return text

    def check_id(self, key: str, value: Json) -> CheckpointId:
        """Return the id of a checkpoint."""
        try:
            found = CheckpointId.parse(self.check_text(key, value))
        except IllegalArgumentError as error:
            self.fail(f"{key}: {error}")
        if found.sequence < 1:
            self.fail(f"{key}: {found}: sequences begin at 1")
        return found

    def check_time(self, key: str, value: Json) -> datetime:
        """Return a moment, in UTC."""
        text = self.check_text(key, value)
        try:
            at = datetime.fromisoformat(text)
            utc = None if at.tzinfo is None else at.astimezone(UTC)
        except (ValueError, OverflowError):
            utc = None
        if utc is None or format_time(utc) != text:
            self.fail(f"{key}: expected a time such as 2024-01-02T03:04:05.000678Z, found {show(text)}")
        return utc

    def check_items(self, key: str, value: Json) -> list[Json]:
        """Return a list."""
        if not isinstance(value, list):
            self.fail(f"{key}: expected a list, found {show(value)}")
        return value

    def check_mapping(self, key: str, value: Json) -> dict[str, Json]:
        """Return an object as a dict."""
        if not isinstance(value, dict):
            self.fail(f"{key}: expected an object, found {show(value)}")
        return value


def at_least(minimum: int) -> FieldKind:
    """Return the kind of an integer from `minimum`."""
    return lambda fields, key, value: fields.check_integer(key, value, minimum)


def one_of(*texts: str) -> FieldKind:
    """Return the kind of a text that is one of these."""

    def check(fields: Fields, key: str, value: Json) -> str:
        if fields.check_text(key, value) not in texts:
            fields.fail(f"{key}: expected one of {', '.join(texts)}, found {show(value)}")
        return value  # type: ignore[no-any-return]  # it was checked

    return check


def nullable(kind: FieldKind) -> FieldKind:
    """Return the kind of a value that may be null instead."""
    return lambda fields, key, value: None if value is None else kind(fields, key, value)


def required(kind: FieldKind) -> FieldKind:
    """Return the kind of an object of its own that must not be null."""
    return lambda fields, key, value: kind(fields, key, fields.check_mapping(key, value))


def inner_objects(what: str, table: Table) -> FieldKind:
    """Return the kind of an object whose values are objects with some fields.

    `table` names these fields. `what` is what errors call one of them, with its name.
    """

    def read(fields: Fields, key: str, value: Json) -> dict[str, tuple[Fields, dict[str, Any]]]:
        each = fields.check_mapping(key, value)
        inner = {name: Fields(f"{fields.name}: {what} {name!r:.60}", one) for name, one in each.items()}
        return {name: (one, one.read(table)) for name, one in inner.items()}

    return read


def record(table: Table, make: Callable[..., Any]) -> FieldKind:
    """Return the kind of an object of its own. Its fields are the arguments of `make`."""
    return lambda fields, key, value: make(**Fields(f"{fields.name}: {key}", value).read(table))


_REF: Table = {"id": Fields.check_id, "digest": Fields.check_digest}

REF = record(_REF, Ref)
"""A reference to a manifest."""
