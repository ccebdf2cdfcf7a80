"""Write JSON text of the format, and read it strictly.

Text that another reader could read as another value is refused: a repeated field, NaN, a number that is too large.
"""

import json
import math
import sys
from datetime import UTC, datetime
from typing import NoReturn

from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.manifests.shown import show


def dump(value: Json) -> bytes:
    """Return compact JSON in UTF-8, with the fields in the order given."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def dump_sealed(value: dict[str, Json]) -> bytes:
    """Return JSON whose last field is the SHA-256 of all the bytes before it.

    This is for objects that change in place: no other object names their digest.
    """
    body = dump(value)[:-1]
    return body + SEAL + sha256(body).encode() + b'"}'


SEAL = b',"digest":"'
"""The text before the digest of a sealed object."""


ENCRYPTED = b"checkpointer-encrypted-"
"""The first bytes of an object that is replaced, such as `_latest`, where the root is encrypted.

The form of the encryption follows.
"""

SIGNED = b"checkpointer-signed-1 "
"""The first bytes of a signed object."""


MAX_LEVELS = 250
"""Levels of lists and dicts in a value of the caller, the value itself the first.

Every reader accepts so many. Python cannot copy values that are nested a few times deeper.
"""


def check_json_fields(
    *, positions: Json, watermark: Json, properties: Json, max_levels: int | None = MAX_LEVELS
) -> dict[str, Json]:
    """Return the values by name as they will be read back.

    Raises `IllegalArgumentError` as `check_json` does.
    """
    # These two are dicts of values.
    of_dict = None if max_levels is None else max_levels + 1
    return {
        "positions": check_json("positions", positions, of_dict),
        "watermark": check_json("watermark", watermark, max_levels),
        "properties": check_json("properties", properties, of_dict),
    }


def check_json(what: str, value: Json, max_levels: int | None = MAX_LEVELS) -> Json:
    """Return a value as it will be read back.

    Raises `IllegalArgumentError`, which names the value, where JSON would change it, or readers may refuse it. What a
    stored object has already is written again at any depth: `max_levels` is None.
    """
    try:
        # Tuples come back as lists and numbers as keys come back as text: comparing shows what a type check would have
        # to list.
        copy = json.loads(dump(value), parse_int=_finite_integer)
        is_changed = copy != value
    except (TypeError, ValueError, RecursionError) as error:
        raise IllegalArgumentError(f"{what}: not a JSON value: {error}") from None
    if max_levels is not None and _is_deeper(copy, max_levels):
        raise IllegalArgumentError(
            f"{what}: a value has more than {MAX_LEVELS} levels of lists and dicts inside each other, which not every "
            "reader accepts: nest it less deeply, or give it as text"
        )
    if is_changed:
        raise IllegalArgumentError(
            f"{what}: JSON would change it (tuples and keys that are no strings do): {show(value)}"
        )
    return copy


def _is_deeper(value: Json, levels: int) -> bool:
    """Return whether a value has more than `levels` levels of lists and dicts."""
    # Level by level: a function that calls itself would not come to the end of a value that is too deep.
    found = [value]
    for _ in range(levels + 1):
        outer = [part for part in found if isinstance(part, dict | list)]
        if not outer:
            return False
        found = [part for each in outer for part in (each.values() if isinstance(each, dict) else each)]
    return True


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


def load(name: str, data: bytes) -> Json:
    """Return the value of JSON in UTF-8.

    Raises `MalformedError`, which names the object, for anything else.
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
    return value
