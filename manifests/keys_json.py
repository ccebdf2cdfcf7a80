"""Encode and decode the keys of an encrypted root as JSON.

The object `_keys` holds the root's data key, wrapped: nobody can use it without a key that is not in the store. A root
has one data key. While it is rewritten, it has two: each is a generation.
"""

import base64
from dataclasses import dataclass, field

from pyspark_checkpointer.manifests.json_fields import Fields
from pyspark_checkpointer.manifests.json_text import dump_sealed
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, Json
from pyspark_checkpointer.manifests.object_paths import KEYS
from pyspark_checkpointer.manifests.shown import show

MAX_KEYS = 1 << 20
"""The most bytes of the object."""


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """The data key as one provider of keys wrapped it."""

    provider: str
    """The kind of the provider, such as "passphrase"."""
    key: str
    """The provider's name of the key that wraps, such as its address; empty where it has no name."""
    wrapped: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyGeneration:
    """One data key of a root, and what is stored with it."""

    number: int
    """1 for the first. The stored names of encrypted objects tell it."""
    hides_names: bool
    """True if names of operators, groups and partitions are encrypted in paths."""
    wrappings: tuple[WrappedKey, ...]
    """The same data key, once for each key that may open the root."""


@dataclass(frozen=True, slots=True)
class RootKeys:
    """The content of `_keys`."""

    root_id: str
    """Random text. It binds all objects to their root."""
    generations: tuple[KeyGeneration, ...]
    """The present one. While the root is rewritten, the next one comes after it."""
    deletes: bool = False
    """True while objects of earlier generations may be left, which are to be deleted."""


def encode_keys(keys: RootKeys) -> bytes:
    """Return the bytes of `_keys`."""
    return dump_sealed(
        {
            "format_version": FORMAT_VERSION,
            "root": keys.root_id,
            "generations": [
                {
                    "number": each.number,
                    "hides_names": each.hides_names,
                    "wrappings": [
                        {"provider": one.provider, "key": one.key, "wrapped": base64.b64encode(one.wrapped).decode()}
                        for one in each.wrappings
                    ],
                }
                for each in keys.generations
            ],
            "deletes": keys.deletes,
        }
    )


def decode_keys(data: bytes) -> RootKeys:
    """Return the content of `_keys`, with its digest compared."""
    fields = Fields.parse_sealed(KEYS, data)
    root_id = fields.filled_text("root")
    generations = tuple(_decode_generation(value) for value in fields.items("generations"))
    numbers = [each.number for each in generations]
    if len(numbers) not in (1, 2) or numbers != [*range(numbers[0], numbers[0] + len(numbers))]:
        fields.fail(f"generations: expected one, or two that follow each other, found {show(numbers)}")
    deletes = fields.check_boolean("deletes", fields.take("deletes"))
    return RootKeys(root_id, generations, deletes)


def _decode_generation(value: Json) -> KeyGeneration:
    fields = Fields(f"{KEYS}: generation", value)
    number = fields.integer("number", minimum=1)
    hides_names = fields.check_boolean("hides_names", fields.take("hides_names"))
    wrappings = tuple(_decode_wrapping(value) for value in fields.items("wrappings"))
    if not wrappings:
        fields.fail("expected at least one wrapping")
    return KeyGeneration(number, hides_names, wrappings)


def _decode_wrapping(value: Json) -> WrappedKey:
    fields = Fields(f"{KEYS}: wrapping", value)
    text = fields.filled_text("wrapped")
    try:
        wrapped = base64.b64decode(text, validate=True)
    except ValueError:
        fields.fail("wrapped: expected base64")
    return WrappedKey(fields.filled_text("provider"), fields.text("key"), wrapped)


__all__ = ["KEYS", "MAX_KEYS", "KeyGeneration", "RootKeys", "WrappedKey", "decode_keys", "encode_keys"]
