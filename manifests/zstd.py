"""Zstd frames from outside: decompressed only as far as they may go, and into no more memory than they can fill."""

from collections.abc import Iterator

import zstandard

from pyspark_checkpointer.manifests.errors import MalformedError

MAX_BLOCK = 128 << 10
"""Bytes that a block of a zstd frame becomes at most."""

PIECE = 1 << 20
"""Bytes that are decompressed at once."""

REPEATED = 1
"""The type of a zstd block that is one byte, repeated."""


def decompress(name: str, data: bytes, raw_size: int) -> bytes:
    """One whole zstd frame of exactly `raw_size` bytes, with nothing behind it; a larger one is refused unread."""
    return b"".join(decompress_pieces(name, data, raw_size))


def decompress_pieces(name: str, data: bytes, raw_size: int) -> Iterator[bytes]:
    """The same, a piece at a time. No byte beyond `raw_size` is handed out; that none is missing shows at the end."""
    found = 0
    try:
        _check_frame(data, raw_size)
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            while piece := reader.read(min(PIECE, raw_size + 1 - found)):
                found += len(piece)
                if found > raw_size:
                    break
                yield piece
    except (zstandard.ZstdError, ValueError, MemoryError) as error:
        raise MalformedError(f"{name}: expected a zstd frame of {raw_size} bytes: {error}") from None
    if found != raw_size:
        more = "more" if found > raw_size else str(found)
        raise MalformedError(f"{name}: expected {raw_size} bytes once decompressed, found {more}")


def _check_frame(data: bytes, raw_size: int) -> None:
    """Walk over the blocks of a frame (RFC 8878), so that memory is only taken for what can be there."""
    checksum = 4 if zstandard.get_frame_parameters(data).has_checksum else 0
    at, room, last = zstandard.frame_header_size(data), 0, 0
    while not last:
        header = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == REPEATED else size)
        room += MAX_BLOCK
        if at + checksum > len(data):
            raise ValueError("it is cut short")
    if at + checksum != len(data):
        raise ValueError("something stands behind it")
    if raw_size > room:
        raise ValueError(f"it has room for {room}")
