"""Encrypt files beside a root that tell of its content: saved plans, and reports.

They have the keys of their root, and nobody reads them once these are gone.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from pyspark_checkpointer.errors import CorruptionError, IllegalArgumentError, InvalidStateError, MalformedError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.manifests.json_text import ENCRYPTED

if TYPE_CHECKING:
    from pyspark_checkpointer.storage.encryption.data_keys import DataKeys


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file, so that none is taken for another one."""

    path: str
    """The path as which it is encrypted. No object of a root has it."""
    name: str
    """Its name in messages."""
    opened_by: str
    """The advice how to read it, for messages."""


PLAN = FileKind("_saved-plan", "plan", "load it with load_plan() of a client that has them, or")
REPORT = FileKind("_saved-report", "report", "open it with `checkpointer report ROOT --open FILE -o PAGE`, and")


def is_encrypted(file: BinaryIO) -> bool:
    """Return whether a file that is at its beginning is encrypted. It is left there."""
    start = file.read(len(ENCRYPTED))
    file.seek(0)
    return start == ENCRYPTED


def encrypt_file(keys: "DataKeys", kind: FileKind, data: Bytes) -> bytes:
    """Return the bytes of an encrypted file."""
    return keys.encrypt(kind.path, data)


def decrypt_file(path: str | os.PathLike[str], kind: FileKind, data: bytes, keys: "DataKeys | None") -> bytes:
    """Return the content of an encrypted file.

    Raises `IllegalArgumentError` without keys, and `MalformedError` where they do not open it.
    """
    if keys is None:
        raise IllegalArgumentError(
            f"{path}: is encrypted with the keys of its root: {kind.opened_by} say with --encryption what opens them"
        )
    try:
        return keys.decrypt(kind.path, data)
    except (CorruptionError, InvalidStateError):
        raise MalformedError(
            f"{path}: expected a saved {kind.name}, and cannot decrypt it: it was changed, or its root is another one "
            f"or has another data key by now: make a new {kind.name}"
        ) from None


__all__ = ["PLAN", "REPORT", "FileKind", "decrypt_file", "encrypt_file", "is_encrypted"]
