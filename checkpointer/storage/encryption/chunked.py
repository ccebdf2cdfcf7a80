"""Encrypt bytes so that a part of them can be decrypted alone.

Nothing of them can be changed, cut or moved. This is the construction of c2sp.org/chunked-encryption with AES-256-GCM
and SHA-512: a salt and a commitment to the key, then chunks of 16 KiB, of which the last is always shorter. Its
published test vectors pass (`tests/storage/encryption/test_chunked.py`).

A message is bound to its context: it can only be decrypted as the object that it was encrypted for.
"""

import hmac
import io
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Generic

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from pyspark_checkpointer.errors import (
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.manifests.json_text import ENCRYPTED, SIGNED
from pyspark_checkpointer.storage.base import S
from pyspark_checkpointer.storage.encryption.outer_tags import KEY_BYTES, TAG_BYTES, OuterTag

SALT_BYTES = 24
CHUNK_BYTES = 16 << 10
"""Bytes of a chunk before it is encrypted."""

MARK = ENCRYPTED + b"1"
"""The first bytes of an encrypted object that is replaced. The generation of its keys and a line feed follow."""

_COMMITMENT_BYTES = 32
HEADER_BYTES = SALT_BYTES + _COMMITMENT_BYTES
_NONCE_BYTES = 12
_STORED_CHUNK = CHUNK_BYTES + TAG_BYTES
_INFO = b"c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM\0"


def encrypted_size(size: int) -> int:
    """Return the size of a message of `size` bytes once it is encrypted."""
    return HEADER_BYTES + size + TAG_BYTES * (size // CHUNK_BYTES + 1)


def decrypted_size(size: int) -> int | None:
    """Return the size of the message in `size` encrypted bytes.

    Returns None if no message has that size.
    """
    chunks, rest = divmod(size - HEADER_BYTES, _STORED_CHUNK)
    return chunks * CHUNK_BYTES + rest - TAG_BYTES if size >= HEADER_BYTES and rest >= TAG_BYTES else None


def stored_range(offset: int, length: int) -> tuple[int, int]:
    """Return the range of stored bytes with the chunks of a range of a message.

    It is the offset and the length of whole chunks.
    """
    first, last = offset // CHUNK_BYTES, (offset + length - 1) // CHUNK_BYTES
    return HEADER_BYTES + first * _STORED_CHUNK, (last - first + 1) * _STORED_CHUNK


def merged_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges of whole chunks that cover some ranges of a message.

    They are in order, and do not overlap.
    """
    merged: list[tuple[int, int]] = []
    for offset, length in sorted(ranges):
        start = offset // CHUNK_BYTES * CHUNK_BYTES
        end = -(-(offset + length) // CHUNK_BYTES) * CHUNK_BYTES
        if merged and start <= merged[-1][0] + merged[-1][1]:
            first, known = merged.pop()
            start, end = first, max(end, first + known)
        merged.append((start, end - start))
    return merged


def cut_ranges(
    ranges: Sequence[tuple[int, int]], merged: Sequence[tuple[int, int]], contents: Sequence[bytes]
) -> list[bytes]:
    """Return the content of each range from those of `merged_ranges`."""
    starts = [start for start, _ in merged]
    found = []
    for offset, length in ranges:
        number = bisect_right(starts, offset) - 1
        begin = offset - starts[number]
        found.append(contents[number][begin : begin + length])
    return found


class MessageKey:
    """The key of one message.

    It is made of the input key (32 random bytes), a salt that no other message has, and the context.
    """

    def __init__(self, name: Callable[[], str], input_key: bytes, salt: bytes, context: bytes) -> None:
        """Derive the key. `name` returns the object that errors speak of."""
        if len(input_key) != KEY_BYTES:
            raise IllegalArgumentError(f"{name()}: expected a key of {KEY_BYTES} bytes, got {len(input_key)}")
        size = KEY_BYTES + _NONCE_BYTES + _COMMITMENT_BYTES
        derived = HKDFExpand(SHA512(), size, _INFO + salt + context).derive(input_key)
        self._name = name
        self._cipher = AESGCM(derived[:KEY_BYTES])
        self._nonce = int.from_bytes(derived[KEY_BYTES : KEY_BYTES + _NONCE_BYTES], "big")
        self.header = salt + derived[KEY_BYTES + _NONCE_BYTES :]
        """Bytes with which the message begins: the salt, and the commitment to the key."""

    def encrypt(self, data: Bytes, tag: OuterTag | None = None) -> bytes:
        """Encrypt a message. If an outer tag is given, it stands before the message."""
        if len(data) < CHUNK_BYTES:
            # In one piece: the buffers below would cost more than to encrypt it.
            short = self.header + self._cipher.encrypt(self._nonce_of(0), data, None)
            return short if tag is None else tag.of(short) + short
        view, before = memoryview(data).cast("B"), 0 if tag is None else TAG_BYTES
        message = _sized(before + encrypted_size(len(data)))
        message.seek(before)
        message.write(self.header)
        if tag is not None:
            tag.update(self.header)
        # One small buffer stays in the processor's cache; memory for each chunk would cost more than to encrypt it.
        chunk = memoryview(bytearray(_STORED_CHUNK))
        # Up to and with the end, so that the last chunk is short: an empty one, if need be.
        for number, start in enumerate(range(0, len(view) + 1, CHUNK_BYTES)):
            content = view[start : start + CHUNK_BYTES]
            stored = chunk[: len(content) + TAG_BYTES]
            self._cipher.encrypt_into(self._nonce_of(number), content, None, stored)
            message.write(stored)
            if tag is not None:
                tag.update(stored)
        if tag is not None:
            message.seek(0)
            message.write(tag.value())
        return message.getvalue()

    def check_header(self, header: Bytes) -> None:
        """Raise `CorruptionError` for a message that has another key or context.

        The message must be encrypted with this key, for this context.
        """
        if not hmac.compare_digest(bytes(header), self.header):
            raise CorruptionError(self._refusal())

    def decrypt(self, data: Bytes) -> bytes:
        """Decrypt a whole message.

        Raises `CorruptionError` if it was changed, cut or moved.
        """
        view = memoryview(data)
        if decrypted_size(len(view)) is None:
            raise CorruptionError(f"{self._name()}: {len(view)} bytes are no encrypted object: it was cut")
        self.check_header(view[:HEADER_BYTES])
        return self.decrypt_chunks(0, view[HEADER_BYTES:])

    def decrypt_range(self, offset: int, length: int, stored: Bytes) -> bytes:
        """Return a range of a message from the chunks that hold it.

        `stored_range` names these chunks. If the message ends before the range does, the result is the rest of the
        message.
        """
        first = offset // CHUNK_BYTES
        begin = offset - first * CHUNK_BYTES
        return self.decrypt_chunks(first, stored)[begin : begin + length]

    def decrypt_chunks(self, first: int, stored: Bytes) -> bytes:
        """Return the content of chunks that follow each other.

        The first of them has the number `first`.
        """
        view = memoryview(stored)
        starts = range(0, len(view), _STORED_CHUNK)
        content = _sized(max(len(view) - TAG_BYTES * len(starts), 0))
        chunk = memoryview(bytearray(CHUNK_BYTES))
        for number, start in enumerate(starts, first):
            part = view[start : start + _STORED_CHUNK]
            opened = chunk[: max(len(part) - TAG_BYTES, 0)]
            try:
                self._cipher.decrypt_into(self._nonce_of(number), part, None, opened)
            except InvalidTag:
                raise CorruptionError(self._refusal()) from None
            content.write(opened)
        return content.getvalue()

    def _nonce_of(self, number: int) -> bytes:
        return (self._nonce ^ number).to_bytes(_NONCE_BYTES, "big")

    def _refusal(self) -> str:
        return f"{self._name()}: cannot be decrypted: its bytes were changed, or belong to another object, root or key"


def _sized(size: int) -> io.BytesIO:
    """Return a file in memory that has its whole size.

    So it never grows, and gives its bytes without a copy.
    """
    file = io.BytesIO()
    if size:
        file.seek(size - 1)
        file.write(b"\0")
        file.seek(0)
    return file


def check_mark(name: str, found: Bytes, mark: bytes) -> None:
    """Raise `CorruptionError` for an object that does not begin with its mark.

    Raises `InvalidStateError` for an object with the mark of another generation of keys.
    """
    if bytes(found) != mark:
        if bytes(found).startswith((MARK + b"\n", MARK + b" ")):
            raise InvalidStateError(
                f"{name}: is encrypted with another data key than this client has: `checkpointer rekey --rewrite` gave "
                "the root a new one, so open it with a new client; if that is refused too, the command was interrupted "
                "and finishes if it is called again, or somebody put back an old object: keep a copy, then delete it, "
                "and repair the root"
            )
        # A repair must take neither for damage: both are `UnsupportedFormatError`, as for a newer pointer.
        if bytes(found).startswith(ENCRYPTED):
            raise UnsupportedFormatError(f"{name}: is encrypted in a form of a newer version: use that version")
        if bytes(found).startswith((b"{", SIGNED)):
            raise UnsupportedFormatError(
                f"{name}: is not encrypted, as all objects of this root are: somebody replaced it: keep a copy, then "
                "delete it, and repair the root"
            )
        raise CorruptionError(f"{name}: is not encrypted, as all objects of this root are: it was damaged")


class DecryptingSink(Generic[S]):
    """A sink that decrypts a message piece by piece for another sink.

    `finish` must be called at the end: only there a message is known to be whole.
    """

    def __init__(self, name: str, mark: bytes, find_key: Callable[[bytes], MessageKey], sink: S) -> None:
        """Begin, with the bytes that stand before the message.

        `find_key` returns the key of a message that begins with a header, which it has checked.
        """
        self._name = name
        self._mark = mark
        self._find_key = find_key
        self._sink = sink
        self._rest = bytearray()
        self._key: MessageKey | None = None
        self._number = 0

    def update(self, piece: bytes, /) -> None:
        """Take the next stored bytes."""
        self._rest += piece
        if self._key is None:
            size = len(self._mark) + HEADER_BYTES
            if len(self._rest) < size:
                return
            check_mark(self._name, self._rest[: len(self._mark)], self._mark)
            self._key = self._find_key(bytes(self._rest[len(self._mark) : size]))
            del self._rest[:size]
        self._hand_on(len(self._rest) // _STORED_CHUNK * _STORED_CHUNK)

    def _hand_on(self, size: int) -> None:
        """Decrypt the next stored bytes, which are whole chunks."""
        assert self._key is not None
        # A copy, as a bytearray cannot shrink while somebody views it.
        content = self._key.decrypt_chunks(self._number, bytes(self._rest[:size]))
        self._number += size // _STORED_CHUNK
        if content:
            self._sink.update(content)
        del self._rest[:size]

    def finish(self) -> S:
        """Take the last chunk, and return the sink.

        Raises `CorruptionError` for a message that was cut.
        """
        if self._key is None or len(self._rest) < TAG_BYTES:
            raise CorruptionError(f"{self._name}: its end is missing: the object was cut")
        self._hand_on(len(self._rest))
        return self._sink


__all__ = [
    "CHUNK_BYTES",
    "HEADER_BYTES",
    "KEY_BYTES",
    "MARK",
    "SALT_BYTES",
    "TAG_BYTES",
    "DecryptingSink",
    "MessageKey",
    "check_mark",
    "cut_ranges",
    "decrypted_size",
    "encrypted_size",
    "merged_ranges",
    "stored_range",
]
