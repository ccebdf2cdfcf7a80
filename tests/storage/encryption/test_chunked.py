"""Messages are encrypted as their published test vectors say, and every damage is noticed: in one piece, in a stream
and in ranges.
"""

import hashlib
import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.errors import CorruptionError, IllegalArgumentError
from pyspark_checkpointer.storage.encryption.chunked import (
    CHUNK_BYTES,
    HEADER_BYTES,
    SALT_BYTES,
    DecryptingSink,
    MessageKey,
    cut_ranges,
    decrypted_size,
    encrypted_size,
    merged_ranges,
    stored_range,
)

VECTORS = json.loads((Path(__file__).parent / "vectors/c2sp_chunked_encryption_aes_256_gcm.json").read_text())
CASES = [case for group in VECTORS["testGroups"] for case in group["tests"]]


class Content:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.data = bytearray()

    def update(self, piece: bytes, /) -> None:
        self.data += piece


def key_of(case: dict[str, Any], header: bytes) -> MessageKey:
    return MessageKey(lambda: "x", bytes.fromhex(case["key"]), header[:SALT_BYTES], bytes.fromhex(case["ctx"]))


def whole(case: dict[str, Any], stored: bytes) -> bytes:
    return key_of(case, stored).decrypt(stored)


def streamed(case: dict[str, Any], stored: bytes, piece: int = 10_000) -> bytes:
    content = Content()

    def find(header: bytes) -> MessageKey:
        key = key_of(case, header)
        key.check_header(header)
        return key

    sink = DecryptingSink("x", b"", find, content)
    try:
        for start in range(0, len(stored), piece):
            sink.update(stored[start : start + piece])
        return bytes(sink.finish().data)
    except CorruptionError:
        # Nothing that was not encrypted so may have gone further.
        assert len(content.data) <= (case.get("msgLength") or 0)
        raise


def ranges(case: dict[str, Any], stored: bytes) -> bytes:
    size = decrypted_size(len(stored))
    if size is None:
        raise CorruptionError("no message has this size")
    key = key_of(case, stored)
    key.check_header(stored[:HEADER_BYTES])
    parts = []
    for offset in range(0, size + 1, 50_000):
        start, length = stored_range(offset, 50_000)
        parts.append(key.decrypt_range(offset, 50_000, stored[start : start + length]))
    return b"".join(parts)


@pytest.mark.parametrize("read", [whole, streamed, ranges])
@pytest.mark.parametrize("case", CASES, ids=[str(case["tcId"]) for case in CASES])
def test_published_vectors(case: dict[str, Any], read: Any) -> None:
    stored = zlib.decompress(bytes.fromhex(case["ct"]))
    if case["result"] == "valid":
        found = read(case, stored)
        assert (len(found), hashlib.sha512(found).hexdigest()) == (case["msgLength"], case["msgSha512"])
        assert key_of(case, stored).encrypt(found) == stored
        assert (encrypted_size(len(found)), decrypted_size(len(stored))) == (len(stored), len(found))
    else:
        with pytest.raises((CorruptionError, IllegalArgumentError)):
            read(case, stored)


KEY = bytes(range(32))
SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES]


@given(st.sampled_from(SIZES), st.integers(0, 4 * CHUNK_BYTES), st.integers(1, 4 * CHUNK_BYTES))
def test_a_range_is_that_part_of_the_message(size: int, offset: int, length: int) -> None:
    data = hashlib.shake_128(b"x").digest(size)
    key = MessageKey(lambda: "x", KEY, bytes(SALT_BYTES), b"here")
    stored = key.encrypt(data)
    start, count = stored_range(offset, length)
    assert key.decrypt_range(offset, length, stored[start : start + count]) == data[offset : offset + length]


@given(st.lists(st.tuples(st.integers(0, 5 * CHUNK_BYTES), st.integers(1, 2 * CHUNK_BYTES)), min_size=1, max_size=12))
def test_ranges_are_cut_from_chunks_that_are_decrypted_once(ranges: list[tuple[int, int]]) -> None:
    data = hashlib.shake_128(b"x").digest(4 * CHUNK_BYTES + 100)
    merged = merged_ranges(ranges)
    chunks = [n for start, length in merged for n in range(start // CHUNK_BYTES, (start + length) // CHUNK_BYTES)]
    assert len(chunks) == len({*chunks})
    contents = [data[start : start + length] for start, length in merged]
    assert cut_ranges(ranges, merged, contents) == [data[offset : offset + length] for offset, length in ranges]


@given(st.data())
def test_every_changed_bit_is_noticed(choices: st.DataObject) -> None:
    size = choices.draw(st.sampled_from(SIZES))
    key = MessageKey(lambda: "x", KEY, bytes(SALT_BYTES), b"here")
    stored = bytearray(key.encrypt(bytes(size)))
    bit = choices.draw(st.integers(0, 8 * len(stored) - 1))
    stored[bit // 8] ^= 1 << bit % 8
    case = {"key": KEY.hex(), "ctx": b"here".hex(), "msgLength": size}
    for read in (whole, streamed, ranges):
        with pytest.raises(CorruptionError, match="x: "):
            read(case, bytes(stored))


@pytest.mark.parametrize("size", SIZES)
def test_no_cut_is_taken_for_the_end(size: int) -> None:
    case = {"key": KEY.hex(), "ctx": "", "msgLength": size}
    stored = MessageKey(lambda: "x", KEY, bytes(SALT_BYTES), b"").encrypt(bytes(size))
    for end in {0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 15, len(stored) - 16, len(stored) - 1}:
        for read in (whole, streamed, ranges):
            with pytest.raises(CorruptionError):
                read(case, stored[:end])


def test_sizes_that_no_message_has() -> None:
    sizes = {encrypted_size(size): size for size in range(3 * CHUNK_BYTES)}
    assert {stored: decrypted_size(stored) for stored in range(max(sizes))} == {
        stored: sizes.get(stored) for stored in range(max(sizes))
    }


def test_a_large_message_takes_the_memory_of_its_result_and_no_more() -> None:
    key, data = MessageKey(lambda: "x", bytes(32), bytes(SALT_BYTES), b"x"), bytes(16 << 20)
    stored = key.encrypt(data)
    tracemalloc.start()
    try:
        for work in (lambda: key.encrypt(data), lambda: key.decrypt(stored)):
            tracemalloc.reset_peak()
            assert len(work()) >= len(data)
            assert tracemalloc.get_traced_memory()[1] < 1.3 * len(data)
    finally:
        tracemalloc.stop()
