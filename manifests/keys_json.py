"""Encode and decode the keys of an encrypted root as JSON.

The object `_keys` holds the root's data key, wrapped: nobody can use it without a key that is not in the store.
"""

import base64
from dataclasses import dataclass, field

from pyspark_checkpointer.manifests.json_fields import Fields
from pyspark_checkpointer.manifests.json_text import dump_sealed
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, Json
from pyspark_checkpointer.manifests.object_paths import KEYS

SUFFIX = ".enc"
"""The end of the stored name of an encrypted object that is written once."""

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
class RootKeys:
    """The content of `_keys`."""

    root_id: str
    """Random text. It binds all objects to their root."""
    wrappings: tuple[WrappedKey, ...]
    """The same data key, once for each key that may open the root."""


def encode_keys(keys: RootKeys) -> bytes:
    """Return the bytes of `_keys`."""
    return dump_sealed(
        {
            "format_version": FORMAT_VERSION,
            "root": keys.root_id,
            "wrappings": [
                {"provider": one.provider, "key": one.key, "wrapped": base64.b64encode(one.wrapped).decode()}
                for one in keys.wrappings
            ],
        }
    )


def decode_keys(data: bytes) -> RootKeys:
    """Return the content of `_keys`, with its digest compared."""
    fields = Fields.parse_sealed(KEYS, data)
    root_id = fields.filled_text("root")
    wrappings = tuple(_decode_wrapping(value) for value in fields.items("wrappings"))
    if not wrappings:
        fields.fail("expected at least one wrapping")
    return RootKeys(root_id, wrappings)


def _decode_wrapping(value: Json) -> WrappedKey:
    fields = Fields(f"{KEYS}: wrapping", value)
    text = fields.filled_text("wrapped")
    try:
        wrapped = base64.b64decode(text, validate=True)
    except ValueError:
        fields.fail("wrapped: expected base64")
    return WrappedKey(fields.filled_text("provider"), fields.text("key"), wrapped)


__all__ = ["KEYS", "MAX_KEYS", "SUFFIX", "RootKeys", "WrappedKey", "decode_keys", "encode_keys"]
