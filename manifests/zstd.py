"""Decompress zstd frames from outside.

It takes no more memory than the format allows or the frame can fill.
"""

from collections.abc import Iterator

import zstandard

from pyspark_checkpointer.manifests.errors import MalformedError

MAX_BLOCK = 128 << 10
"""Bytes that one block of a zstd frame holds once decompressed, at most."""

READ_BYTES = 1 << 20
"""Bytes that are decompressed at once."""

MAX_WINDOW = 8 << 20
"""Bytes that a frame may refer back, at most.

Every decoder supports windows of this size (RFC 8878, 3.1.1.1.2).
"""

RLE_BLOCK = 1
"""The type of a zstd block that is one byte, repeated.

The block has one byte, whatever its size says.
"""


def decompress(name: str, data: bytes, raw_size: int) -> bytes:
    """Return the content of one zstd frame of exactly `raw_size` bytes.

    Nothing may follow the frame.

    `MalformedError`, which names the object `name`, for anything else; a larger frame is refused unread.
    """
    return b"".join(decompress_pieces(name, data, raw_size))


def decompress_pieces(name: str, data: bytes, raw_size: int) -> Iterator[bytes]:
    """Yield the same content in pieces, never more than `raw_size` bytes.

    Missing bytes raise an error at the end.
    """
    found = 0
    try:
        # First of all: a size that the frame cannot fill is refused before any memory is taken for it.
        _check_frame(data, raw_size)
        with zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).stream_reader(data) as reader:
            # One byte more than there should be shows a frame that goes on.
            while piece := reader.read(min(READ_BYTES, raw_size + 1 - found)):
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
    """Raise `ValueError` unless the blocks of a frame match its data.

    The blocks (RFC 8878) have to end with the data and be able to hold `raw_size` bytes.
    """
    checksum = 4 if zstandard.get_frame_parameters(data).has_checksum else 0
    at, room, last = zstandard.frame_header_size(data), 0, 0
    while not last:
        header = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == RLE_BLOCK else size)
        room += MAX_BLOCK
        if at + checksum > len(data):
            raise ValueError("it is cut short")
    # zstd itself would read only the first frame and say nothing of the rest.
    if at + checksum != len(data):
        raise ValueError("something stands behind it")
    if raw_size > room:
        raise ValueError(f"it has room for {room}")
