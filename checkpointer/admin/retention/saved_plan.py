"""Encrypt the saved plan of an encrypted root.

It has digests of contents, and names.

It has the keys of its root, and nobody reads it once these are gone.
"""

import os
from typing import TYPE_CHECKING, BinaryIO

from pyspark_checkpointer.errors import CorruptionError, IllegalArgumentError, InvalidStateError, MalformedError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.manifests.json_text import ENCRYPTED

if TYPE_CHECKING:
    from pyspark_checkpointer.storage.encryption.data_keys import DataKeys

_PATH = "_saved-plan"
"""The path as which a plan is encrypted. No object of a root has it."""


def is_encrypted(file: BinaryIO) -> bool:
    """Return whether a file that is at its beginning is encrypted. It is left there."""
    start = file.read(len(ENCRYPTED))
    file.seek(0)
    return start == ENCRYPTED


def encrypt_plan(keys: "DataKeys", data: Bytes) -> bytes:
    """Return the bytes of a file with a plan."""
    return keys.encrypt(_PATH, data)


def decrypt_plan(path: str | os.PathLike[str], data: bytes, keys: "DataKeys | None") -> bytes:
    """Return the plan in a file.

    Raises `IllegalArgumentError` without keys, and `MalformedError` where they do not open it.
    """
    if keys is None:
        raise IllegalArgumentError(
            f"{path}: is encrypted with the keys of its root: load it with load_plan() of a client that has them, or "
            "say with --encryption what opens them"
        )
    try:
        return keys.decrypt(_PATH, data)
    except (CorruptionError, InvalidStateError):
        raise MalformedError(
            f"{path}: expected a saved plan, and cannot decrypt it: it was changed, or its root is another one or has "
            "another data key by now: make a new plan"
        ) from None


__all__ = ["decrypt_plan", "encrypt_plan", "is_encrypted"]
