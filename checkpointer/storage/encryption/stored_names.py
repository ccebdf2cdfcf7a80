"""Say at which path an object of an encrypted root is stored, and the reverse.

Digests in paths are encrypted, and so are names of operators, groups and partitions where the root hides them. A path
is encrypted part by part, always to the same text, so that a folder can still be listed.
"""

import base64
import binascii
import re
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.storage.encryption.chunked import SALT_BYTES

_DIGEST = re.compile(r"(?<=\.)[0-9a-f]{64}(?=\.)")
_STORED_DIGEST = re.compile(r"(?<=\.)[0-9a-f]{96}(?=\.)")
"""A digest of 32 bytes, encrypted, with its tag of 16 bytes before it."""

_SUFFIX = re.compile(r"\.enc(?P<generation>[2-9]|[1-9][0-9]{1,17})?\Z")
"""The end of the stored path of an encrypted object that is written once, of any generation."""

_HIDDEN_OPERATOR = re.compile(r"\Aartifacts/[A-Za-z0-9_-]{22,222}(?=/)")
"""The folder of an operator whose name may be hidden: of 1 to 150 bytes, with a tag of 16, in base64url."""

MAX_HIDDEN_NAME = 150
"""Longest encoded name that can be hidden, in bytes.

It is longer once it is encrypted, and a local store puts its own text around it while it writes.
"""


class StoredNames:
    """The paths of a root that one generation of keys encrypts."""

    def __init__(self, generation: int, digests: AESSIV, parts: AESSIV | None) -> None:
        """Take the key of digests, and the key of names where they are hidden."""
        self._generation = generation
        self._suffix = ".enc" if generation == 1 else f".enc{generation}"
        self._digests = digests
        self._parts = parts
        # A request asks for the path and for the salt. A listing has the same few names again and again.
        self._stored = lru_cache(1024)(self._encrypt_path)
        self._hidden, self._shown = lru_cache(1024)(self._hide_part), lru_cache(1024)(self._show_part)

    def stored_path(self, path: str) -> str:
        """Return the path at which an object is stored."""
        return self._stored(path)

    def fixed_salt(self, path: str) -> bytes | None:
        """Return the salt of an object whose path has a digest of its content.

        It is the beginning of the encrypted digest. Returns None for any other object.
        """
        found = _STORED_DIGEST.search(self._stored(path).rpartition("/")[2])
        return None if found is None else bytes.fromhex(found[0])[:SALT_BYTES]

    def _encrypt_path(self, path: str) -> str:
        if not object_paths.is_written_once(path):
            return self._hide(path)
        folder, slash, stored = path.rpartition("/")
        if (found := _DIGEST.search(stored)) is not None:
            before, after = stored[: found.start()], stored[found.end() :]
            bound = [(before + after).encode(), folder.encode()]
            stored = before + self._digests.encrypt(bytes.fromhex(found[0]), bound).hex() + after
        return self._hide(folder + slash + stored + self._suffix)

    def logical_path(self, stored: str) -> str | None:
        """Return the path of a stored object.

        Returns None for an object that is not part of the encrypted root.
        """
        if _SUFFIX.search(stored) is None:
            # An object of the format that is not encrypted: it was there before the root was encrypted, or somebody
            # planted it.
            return None if object_paths.is_written_once(stored) else self._show(stored)
        shown = self._show(stored.removesuffix(self._suffix)) if stored.endswith(self._suffix) else None
        if shown is None:
            return None
        folder, slash, name = shown.rpartition("/")
        try:
            bound = [_STORED_DIGEST.sub("", name).encode(), folder.encode()]
            name = _STORED_DIGEST.sub(lambda found: self._digests.decrypt(bytes.fromhex(found[0]), bound).hex(), name)
        except (InvalidTag, UnicodeEncodeError):  # a file of somebody else may have a name that is no UTF-8
            return None
        path = folder + slash + name
        return None if not object_paths.is_written_once(path) or self.stored_path(path) != stored else path

    def is_outdated(self, stored: str) -> bool:
        """Return whether a stored object is of the format, and older than these keys.

        It is not encrypted, or it has keys of an earlier generation. Keys of a later generation may have come since
        this call began: their objects are never outdated.
        """
        generation = generation_of(stored)
        return generation is not None and generation < self._generation

    # ---- folders -----------------------------------------------------------------------------------------------

    def stored_prefix(self, prefix: str) -> str:
        """Return the prefix of the stored paths of all objects below a prefix.

        Others may have it too where names are hidden, and the prefix does not end with a slash.
        """
        folder, slash, name = prefix.rpartition("/")
        number = folder.count("/") + bool(slash)
        is_hidden = self._parts is not None and number in _hidden_parts(prefix)
        return self._hide(folder + slash) + ("" if is_hidden else name)

    def logical_folder(self, stored: str) -> str | None:
        """Return the folder of a stored one, with its slash.

        Returns None for a folder that is not part of the encrypted root.
        """
        return self._show(stored)

    # ---- names -------------------------------------------------------------------------------------------------

    def _hide(self, path: str) -> str:
        """Return a path with its names encrypted, if the root hides them."""
        if self._parts is None or not (hidden := _hidden_parts(path)):
            return path
        parts, before = path.split("/"), ""
        for number, whole in enumerate(parts):
            part, end = _cut(path, whole, number == len(parts) - 1)
            if number in hidden and part:
                parts[number] = self._hidden(part, before) + end
            before += f"{whole}/"
        return "/".join(parts)

    def _show(self, stored: str) -> str | None:
        """Return the path that was hidden; None for another path."""
        if self._parts is None or not (hidden := _hidden_parts(stored)):
            return stored
        parts, before = stored.split("/"), ""
        for number, whole in enumerate(parts):
            part, end = _cut(stored, whole, number == len(parts) - 1)
            if number in hidden and part:
                shown = self._shown(part, before)
                if shown is None:
                    return None
                parts[number] = shown + end
            before += f"{parts[number]}/"
        path = "/".join(parts)
        return path if self._hide(path) == stored else None

    def _hide_part(self, part: str, before: str) -> str:
        assert self._parts is not None
        data = check_length(part).encode()
        return base64.urlsafe_b64encode(self._parts.encrypt(data, [before.encode()])).decode().rstrip("=")

    def _show_part(self, part: str, before: str) -> str | None:
        assert self._parts is not None
        try:
            data = base64.urlsafe_b64decode(part.encode("ascii") + b"=" * (-len(part) % 4))
            return self._parts.decrypt(data, [before.encode()]).decode()
        except (ValueError, binascii.Error, InvalidTag):
            return None


def generation_of(stored: str) -> int | None:
    """Return the generation of keys of a stored object; 0 if it is not encrypted.

    Returns None for an object that is not of the format, and for one that is replaced. This is told by the path alone,
    as nobody may have those keys.
    """
    if object_paths.is_written_once(stored):
        return 0
    found = _SUFFIX.search(stored)
    if found is None:
        return None
    folder, slash, name = stored[: found.start()].rpartition("/")
    # A hidden name is longer than the name is, and may be longer than the name of an operator can be.
    folder = _HIDDEN_OPERATOR.sub(f"{object_paths.ARTIFACTS}x", folder)
    shape = folder + slash + _STORED_DIGEST.sub("0" * 64, name)
    # A digest that is not encrypted was never written so.
    is_ours = _DIGEST.search(name) is None and object_paths.is_written_once(shape)
    return int(found["generation"] or 1) if is_ours else None


def check_length(name: str) -> str:
    """Return an encoded name that can be hidden.

    Raises `IllegalArgumentError` if it is too long.
    """
    if len(name.encode()) > MAX_HIDDEN_NAME:
        raise IllegalArgumentError(
            f"{name[:40]!r}…: {len(name.encode())} bytes once encoded, at most {MAX_HIDDEN_NAME} are allowed in a root "
            "that hides its names"
        )
    return name


def has_fixed_salt(path: str) -> bool:
    """Return whether the path of an object has a digest of its content.

    Then the path alone tells the salt, and a part of the object can be decrypted alone.
    """
    return _DIGEST.search(path.rpartition("/")[2]) is not None and object_paths.is_written_once(path)


def _hidden_parts(path: str) -> range:
    """Return the numbers of the parts of a path that are names.

    These are the operator's, or all below `progress/`.
    """
    parts = path.count("/") + 1
    if path.startswith(object_paths.ARTIFACTS):
        return range(1, 2)
    return range(1, parts) if path.startswith(object_paths.CONSUMERS) else range(0)


def _cut(path: str, part: str, is_last: bool) -> tuple[str, str]:
    """Return a part of a path, and the end of it that is never hidden."""
    if is_last and path.startswith(object_paths.CONSUMERS) and part.endswith(".json"):
        return part.removesuffix(".json"), ".json"
    return part, ""


__all__ = ["MAX_HIDDEN_NAME", "StoredNames", "check_length", "generation_of", "has_fixed_salt"]
