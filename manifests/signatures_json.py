"""Encode and decode signed objects, and the list of those whose signatures count.

A signed object begins with one line, its signature. The object `_signers` is the list.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal, get_args

from pyspark_checkpointer.manifests.errors import MalformedError, UnsupportedFormatError
from pyspark_checkpointer.manifests.json_fields import HEXADECIMAL, Fields, Optional, Table, at_least
from pyspark_checkpointer.manifests.json_text import ENCRYPTED, SIGNED, dump, format_time, load
from pyspark_checkpointer.manifests.model import FORMAT_VERSION, Json
from pyspark_checkpointer.manifests.object_paths import CONSUMERS, LATEST, SIGNERS, is_manifest
from pyspark_checkpointer.manifests.object_paths import SIGNED as SUFFIX

MAX_SIGNERS = 1 << 20
"""The most bytes of the object `_signers`."""

PURPOSE = b"spark-state-checkpointer/signature@1\n"
"""The first bytes of what is signed, so that no signature of another program counts here."""

Role = Literal["commit", "clean", "consume"]
"""The kinds of changes that a signer may make."""

ROLES: tuple[Role, ...] = get_args(Role)

_SIGNATURE = b',"signature":"'
_TAIL = re.compile(rb"[0-9a-f]{128}\"\}")


# ---- a signed object -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a signed object, without the signature."""

    key: str
    """The public key of the signer, in hexadecimal digits."""
    at: datetime | None = None
    """The time of the version, later than that of every version before it; None for an object that is written once."""
    signers: int | None = None
    """The version of the list of signers that the signer had read; None for an object that is written once."""
    commit: str | None = None
    """The last `_latest` of a signer that may commit, as it was stored; None if this signer may commit itself."""


@dataclass(frozen=True, slots=True)
class SignedObject:
    """A signed object in its parts."""

    header: Header
    signature: bytes = field(repr=False)
    content: bytes = field(repr=False)
    line: bytes = field(repr=False)
    """The header as it stands there, up to the signature."""

    def message(self, root_id: str, path: str) -> bytes:
        """Return the bytes that are signed."""
        return signed_message(root_id, path, self.line, self.content)


def encode_header(header: Header) -> bytes:
    """Return the first line of a signed object, up to the signature."""
    fields: dict[str, Json] = {}
    if header.at is not None:
        fields |= {"at": format_time(header.at), "signers": header.signers}
    if header.commit is not None:
        fields["commit"] = header.commit
    return dump({**fields, "key": header.key})[:-1]


def signed_message(root_id: str, path: str, line: bytes, content: bytes) -> bytes:
    """Return the bytes that a signer signs.

    They name the root and the path, so that nothing can be moved.
    """
    return b"".join((PURPOSE, root_id.encode(), b"\n", path.encode(), b"\n", line, b"\n", content))


def encode_signed(line: bytes, signature: bytes, content: bytes) -> bytes:
    """Return a signed object as it is stored."""
    return b"".join((SIGNED, line, _SIGNATURE, signature.hex().encode(), b'"}\n', content))


def decode_signed(name: str, data: bytes) -> SignedObject:
    """Return a signed object in its parts. Its signature is not checked.

    Raises `MalformedError` for an object without a signature. Raises `UnsupportedFormatError` for an encrypted
    `_latest` or list of signers: an interrupted `encrypt` leaves them so, and a repair must not take that for damage.
    """
    if data.startswith(ENCRYPTED) and name in (LATEST, SIGNERS):
        raise UnsupportedFormatError(
            f"{name}: is encrypted: say what opens the keys of the root, with encryption= or --encryption; if it was "
            "encrypted just now, and that was interrupted, call `checkpointer encrypt` again; or somebody replaced it: "
            + ("keep a copy, then delete it, and repair the root" if name == LATEST else "bring it back from a copy")
        )
    first, newline, content = data.partition(b"\n")
    line, found, tail = first.removeprefix(SIGNED).rpartition(_SIGNATURE)
    if not first.startswith(SIGNED) or not newline or not found or not _TAIL.fullmatch(tail):
        raise MalformedError(f"{name}: expected a signature in its first line, found none")
    fields = Fields(f"{name}: signature", load(name, line + b"}"))
    header = Header(**fields.read(_HEADER))
    if fields.rest or (header.at is None) != (header.signers is None) or encode_header(header) != line:
        fields.fail("expected the fields of a signature, in their order")
    return SignedObject(header, bytes.fromhex(tail[:-2].decode()), content, line)


_HEADER: Table = {
    "at": Optional(Fields.check_time),
    "signers": Optional(at_least(1)),
    "commit": Optional(Fields.check_filled_text),
    "key": Fields.check_digest,
}

LINE_SIZE = len(encode_signed(encode_header(Header("0" * 64)), bytes(64), b""))
"""The bytes that a signature adds to an object that is written once."""


def is_signed(path: str) -> bool:
    """Return whether an object of a signed root carries a signature of its own.

    All others are named by a digest in one that does.
    """
    return path == LATEST or path.startswith(CONSUMERS) or is_manifest(path)


def stored_path(path: str) -> str:
    """Return the path at which an object is stored."""
    return path + SUFFIX if is_manifest(path) else path


def logical_path(stored: str) -> str | None:
    """Return the path of a stored object; None for one that is not of a signed root."""
    if stored == SIGNERS or is_manifest(stored):  # an unsigned manifest: nobody may read it
        return None
    path = stored.removesuffix(SUFFIX)
    return path if is_manifest(path) else stored


# ---- the list of signers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Signer:
    """One whose signatures count."""

    name: str
    """A name for people."""
    key: str
    """The public key, in hexadecimal digits."""
    roles: tuple[Role, ...]
    through: int | None = None
    """The last sequence of which the manifests count, where the signer was revoked; else None."""


@dataclass(frozen=True, slots=True)
class Signers:
    """The content of `_signers`."""

    root_id: str
    """Random text. It binds all signatures to their root."""
    version: int
    """1 for the first list, and one more in each list after it."""
    signers: Mapping[str, Signer] = field(default_factory=lambda: MappingProxyType({}))
    """The signers by key."""
    adopting: bool = False
    """True if the root was begun without signatures, and not all of it is signed yet."""


def encode_signers(signers: Signers) -> bytes:
    """Return the content of `_signers`, which its owner then signs."""
    return dump(
        {
            "format_version": FORMAT_VERSION,
            "root": signers.root_id,
            "version": signers.version,
            **({"adopting": True} if signers.adopting else {}),
            "signers": [
                {"name": one.name, "key": one.key, "roles": list(one.roles)}
                | ({} if one.through is None else {"through": one.through})
                for one in signers.signers.values()
            ],
        }
    )


def decode_signers(data: bytes) -> Signers:
    """Return the list of signers. Who signed it is not checked."""
    fields = Fields.parse_compact(SIGNERS, data)
    root_id, version = fields.text("root"), fields.integer("version", minimum=1)
    if len(root_id) != 32 or set(root_id) - HEXADECIMAL:
        fields.fail("root: expected 32 hexadecimal digits")
    signers = [Signer(**Fields(f"{SIGNERS}: signer", value).read(_SIGNER)) for value in fields.items("signers")]
    adopting = fields.read(_LIST)["adopting"] or False
    found = {one.key: one for one in signers}
    if len(found) != len(signers):
        fields.fail("expected each key once")
    return Signers(root_id, version, MappingProxyType(found), adopting)


def _roles(fields: Fields, key: str, value: Json) -> tuple[Role, ...]:
    found = fields.check_items(key, value)
    roles = tuple(role for role in ROLES if role in found)
    if not roles or list(roles) != found:
        fields.fail(f"{key}: expected some of {', '.join(ROLES)}, in this order")
    return roles


_LIST: Table = {"adopting": Optional(Fields.check_boolean)}

_SIGNER: Table = {
    "name": Fields.check_filled_text,
    "key": Fields.check_digest,
    "roles": _roles,
    "through": Optional(at_least(0)),
}

__all__ = [
    "LINE_SIZE",
    "MAX_SIGNERS",
    "ROLES",
    "SIGNERS",
    "SUFFIX",
    "Header",
    "Role",
    "SignedObject",
    "Signer",
    "Signers",
    "decode_signed",
    "decode_signers",
    "encode_header",
    "encode_signed",
    "encode_signers",
    "is_signed",
    "logical_path",
    "signed_message",
    "stored_path",
]
