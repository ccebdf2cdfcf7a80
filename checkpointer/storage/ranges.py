"""Read several ranges of one object, in as few requests as pays off."""

import asyncio
from collections.abc import Iterable, Sequence

from pyspark_checkpointer.storage.base import Range, Store

MAX_GAP_BYTES = 256 << 10
"""The most bytes between two ranges that are read as one: to read these takes no longer than another request."""

MAX_SPAN_BYTES = 2 << 20
"""The most bytes that are read as one. More of them take less time in several requests side by side.

A single range may have more.
"""


async def get_ranges(store: Store, path: str, ranges: Sequence[Range]) -> tuple[list[bytes], int]:
    """Return the bytes of each range, and how many bytes were read for them.

    Each range is a start and a length. The ranges come in any order. Bytes are missing where the object ends before.
    Raises `ObjectNotFoundError`.
    """
    wanted = sorted({part for part in ranges if part[1]})
    if store.reads_ranges:
        spans = wanted
        answers = await store.get_ranges(path, wanted) if wanted else []
    else:
        spans = list(_spans(wanted))
        requests = [asyncio.ensure_future(store.get_range(path, *span)) for span in spans]
        try:
            answers = await asyncio.gather(*requests)
        finally:
            # `gather` lets the others run on after an error of one.
            for request in requests:
                request.cancel()
    found = {(0, 0): b""}
    at = 0
    for start, length in wanted:
        while start + length > sum(spans[at]):
            at += 1
        first = start - spans[at][0]
        found[start, length] = answers[at][first : first + length]
    return [found[part] if part[1] else b"" for part in ranges], sum(map(len, answers))


def _spans(ranges: Iterable[Range]) -> Iterable[Range]:
    """Yield the ranges to read, each of which has one or more of some ranges.

    The given ranges come in order.
    """
    begin = end = 0
    for start, length in ranges:
        if end and start - end <= MAX_GAP_BYTES and start + length - begin <= MAX_SPAN_BYTES:
            end = max(end, start + length)
            continue
        if end:
            yield begin, end - begin
        begin, end = start, start + length
    if end:
        yield begin, end - begin


__all__ = ["get_ranges"]
