"""Encode and decode the keys of an encrypted root as JSON.

The object `_keys` holds the root's data key, wrapped: nobody can use it without a key that is not in the store. A root
has one data key. While it is rewritten, it has two: each is a generation.
"""

import base64
from dataclasses import dataclass, field
from typing import Literal

from pyspark_checkpointer.manifests.json_fields import HEXADECIMAL, Fields
from pyspark_checkpointer.manifests.json_text import dump_sealed
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, Json
from pyspark_checkpointer.manifests.object_paths import KEYS
from pyspark_checkpointer.manifests.shown import show

MAX_KEYS = 1 << 20
"""The most bytes of the object."""

Opens = Literal["all", "structure"]
"""The part of a root that a key opens: all of it, or all but its artifacts and packs."""

ALL: Opens = "all"
STRUCTURE: Opens = "structure"


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """The data key, or the structure key alone, as one provider of keys wrapped it."""

    provider: str
    """The kind of the provider, such as "passphrase-file"."""
    key: str
    """The provider's name of the key that wraps, such as its address; empty where it has no name."""
    wrapped: bytes = field(repr=False)
    opens: Opens = ALL
    """ALL if it holds the data key, STRUCTURE if it holds the structure key alone."""

    @property
    def named(self) -> tuple[str, str]:
        """The provider and its key. No other wrapping of a data key has both."""
        return self.provider, self.key


@dataclass(frozen=True, slots=True)
class KeyGeneration:
    """One data key of a root, and what is stored with it."""

    number: int
    """1 for the first. The stored names of encrypted objects tell it."""
    hides_names: bool
    """True if names of operators, groups and partitions are encrypted in paths."""
    wrappings: tuple[WrappedKey, ...]
    """The data key, or what is derived from it, once for each key that may open the root."""


@dataclass(frozen=True, slots=True)
class RootKeys:
    """The content of `_keys`."""

    root_id: str
    """Random text. It binds all objects to their root."""
    generations: tuple[KeyGeneration, ...]
    """The present one. While the root is rewritten, the next one comes after it."""
    deletes: bool = False
    """True while objects of earlier generations may be left, which are to be deleted."""
    adopting: bool = False
    """True while positions that were there before the root was encrypted may still be as they were."""
    nonce: str = ""
    """Random text, drawn for each swap.

    Without it, a change that is undone would bring back the bytes from before, and a swap that was given up could land
    on them.
    """


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
                        {
                            "provider": one.provider,
                            "key": one.key,
                            "opens": one.opens,
                            "wrapped": base64.b64encode(one.wrapped).decode(),
                        }
                        for one in each.wrappings
                    ],
                }
                for each in keys.generations
            ],
            "deletes": keys.deletes,
            "adopting": keys.adopting,
            "nonce": keys.nonce,
        }
    )


def decode_keys(data: bytes) -> RootKeys:
    """Return the content of `_keys`, with its digest compared."""
    fields = Fields.parse_sealed(KEYS, data)
    root_id = fields.text("root")
    if len(root_id) != 32 or set(root_id) - HEXADECIMAL:
        fields.fail(f"root: expected 32 hexadecimal digits, found {show(root_id)}")
    generations = tuple(_decode_generation(value) for value in fields.items("generations"))
    numbers = [each.number for each in generations]
    if len(numbers) not in (1, 2) or numbers != sorted({*numbers}):
        fields.fail(f"generations: expected one, or two in order, found {show(numbers)}")
    deletes = fields.check_boolean("deletes", fields.take("deletes"))
    adopting = fields.check_boolean("adopting", fields.take("adopting"))
    return RootKeys(root_id, generations, deletes, adopting, fields.text("nonce"))


def _decode_generation(value: Json) -> KeyGeneration:
    fields = Fields(f"{KEYS}: generation", value)
    number = fields.integer("number", minimum=1)
    hides_names = fields.check_boolean("hides_names", fields.take("hides_names"))
    wrappings = tuple(_decode_wrapping(value) for value in fields.items("wrappings"))
    if all(one.opens != ALL for one in wrappings):
        fields.fail("expected at least one wrapping that opens all")
    if len({one.named for one in wrappings}) < len(wrappings):
        fields.fail("wrappings: one key is there twice")
    return KeyGeneration(number, hides_names, wrappings)


def _decode_wrapping(value: Json) -> WrappedKey:
    fields = Fields(f"{KEYS}: wrapping", value)
    text = fields.filled_text("wrapped")
    try:
        wrapped = base64.b64decode(text, validate=True)
    except ValueError:
        fields.fail("wrapped: expected base64")
    opens = fields.text("opens")
    if opens not in (ALL, STRUCTURE):
        fields.fail(f"opens: expected {ALL!r} or {STRUCTURE!r}, found {show(opens)}")
    return WrappedKey(fields.filled_text("provider"), fields.text("key"), wrapped, ALL if opens == ALL else STRUCTURE)


__all__ = [
    "ALL",
    "KEYS",
    "MAX_KEYS",
    "STRUCTURE",
    "KeyGeneration",
    "Opens",
    "RootKeys",
    "WrappedKey",
    "decode_keys",
    "encode_keys",
]
