"""Codecs: zstd frames."""

import zstandard

from tests.judge.reader.checks import need
from tests.judge.reader.objects import length


def unzstd(b, raw):
    """Codecs, zstd frames: walk over the frame first, then decompress exactly raw bytes."""
    need(len(b) >= 6 and b[:4] == b"\x28\xb5\x2f\xfd", "no zstd frame")
    head, p, single = b[4], 5, b[4] >> 5 & 1
    need(not head & 8, "a reserved bit")
    window = 0
    if not single:
        base = 1 << 10 + (b[p] >> 3)
        window, p = base + base // 8 * (b[p] & 7), p + 1
    n = (0, 1, 2, 4)[head & 3]
    need(not any(b[p : p + n]), "a dictionary")
    p += n
    n = (single, 2, 4, 8)[head >> 6]
    if n:
        content = int.from_bytes(b[p : p + n], "little") + (256 if n == 2 else 0)
        need(content == raw, f"a content size of {content}, expected {raw}")
        window, p = content if single else window, p + n
    need(window <= 8 << 20, f"a window of {window} bytes")
    least = most = last = 0
    while not last:
        need(p + 3 <= len(b), "the frame ends early")
        h, p = int.from_bytes(b[p : p + 3], "little"), p + 3
        last, kind, n = h & 1, h >> 1 & 3, h >> 3
        need(kind != 3 and n <= 128 << 10, "no block")
        least += n if kind < 2 else 0
        most += n if kind < 2 else 128 << 10
        p += 1 if kind == 1 else n
    p += 4 if head & 4 else 0
    need(p == len(b), f"the frame ends at {p} of {len(b)} bytes")
    need(least <= raw <= most, f"the frame holds {least} to {most} bytes, expected {raw}")
    with zstandard.ZstdDecompressor(max_window_size=8 << 20).stream_reader(b) as r:
        out = r.read(raw + 1)  # the one byte more makes it read to the end, and compare the checksum
    length(out, raw)
    return out
