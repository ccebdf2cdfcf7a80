"""Check what msgpack itself does not: values to pack and bytes to unpack.

msgpack packs some types as others, and believes bytes that claim to hold more than is there.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain, count
from typing import Any

import msgpack

from pyspark_checkpointer.manifests import zones
from pyspark_checkpointer.manifests.errors import BAD_INPUT
from pyspark_checkpointer.manifests.idle import Idle

MAX_UNCHECKED_BYTES = 1024
"""Bytes that are unpacked without `check_whole`, at most.

For so few bytes msgpack allocates 2 MB, whatever they claim to hold.
"""

PIECE_BYTES = 1 << 20
"""Bytes that an unpacker is fed, and that are packed, at once."""

MAX_KEPT_BYTES = 4 << 20
"""Bytes that a packer may have packed and still be used again, at most.

Its buffer never becomes smaller.
"""

MAX_VALUE_BYTES = 2**32 - 1 - 9
"""Bytes that a packed value may have, at most.

A record gives the length of a value in 32 bits, and a time in front of the value (`map_expiry.py`) takes 9 bytes.
"""


class UnsupportedValueError(TypeError):
    """A value that cannot be stored.

    The message names its type and what to use instead.
    """


BAD_VALUE = (*(error for error in BAD_INPUT if error is not RecursionError), msgpack.UnpackException)
"""Errors that msgpack or a constructor raises for bad bytes.

msgpack has a limit of its own for lists inside each other, and `MAX_DEPTH` is one for extensions. So a RecursionError
tells of the stack of the caller, and not of the bytes.
"""


def explain(error: BaseException) -> str:
    """Return what is wrong with bad bytes, in words.

    The errors of Python and msgpack do not always have words.
    """
    if isinstance(error, ArithmeticError):
        return "a number that is not of its form"
    if isinstance(error, TypeError | AttributeError):
        return f"a value of another type than its form asks for: {error}"
    return str(error) or "bytes that are not msgpack"


def check_whole(data: bytes) -> None:
    """Raise `ValueError` unless everything that arrays claim to hold is there.

    msgpack allocates memory for everything beforehand, and nested arrays can claim 8,000 times their bytes. To skip
    over the arrays takes a small part of the time of unpacking.
    """
    for _ in cut_whole((data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)), len(data)):
        pass


def cut_whole(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same `size` bytes, cut where values end.

    So no piece claims to hold more than is there.
    """
    # 0 would mean almost no limit.
    unpacker, waiting, begin, end = msgpack.Unpacker(max_buffer_size=max(size, 1)), bytearray(), 0, 0
    for piece in pieces:
        unpacker.feed(piece)
        waiting += piece
        with suppress(msgpack.OutOfData):  # the next piece goes on from there
            while True:
                unpacker.skip()
                end = unpacker.tell()
        # After a large value both buffers are given up, which would keep its memory.
        if end - begin == len(waiting) > MAX_KEPT_BYTES:
            whole, waiting = bytes(waiting), bytearray()
            unpacker, begin, end = msgpack.Unpacker(max_buffer_size=max(size, 1)), 0, 0
            yield whole
            del whole
        elif end > begin:
            yield bytes(memoryview(waiting)[: end - begin])
            del waiting[: end - begin]
            begin = end
    if waiting:
        raise ValueError("it claims to hold more than is there")


TIMESTAMP_BYTES = 6
"""Bytes of the shortest timestamp of msgpack."""

MINUS_ONE = re.compile(rb"\xff(?:(?<=[\xd4-\xd8]\xff)|(?<=\xc7.\xff)|(?<=\xc8..\xff)|(?<=\xc9.{4}\xff))", re.DOTALL)
"""The type -1, of a timestamp, behind the beginning of an extension.

msgpack unpacks it without asking the hook. The type comes first in the pattern, so that the search goes from one such
byte to the next.
"""


def refuse_timestamps(value: Any) -> None:
    """Raise `ValueError` for a msgpack timestamp in a value.

    The format has no such value.
    """
    try:
        refuse_lookalikes(value)
    except UnsupportedValueError:
        raise ValueError("an extension of type -1") from None


_LOOKALIKES = frozenset({bytearray, memoryview, msgpack.ExtType, msgpack.Timestamp})
"""Types that msgpack writes without asking as something else.

They come back as another type.
"""

ATOMS = frozenset({type(None), bool, int, float, str, bytes})
"""Types whose values cannot change and hold nothing that can."""

TEXTS = frozenset({str, bytes})

_GROUPS = frozenset({list, tuple, set, frozenset})


def refuse_lookalikes(value: Any) -> None:
    """Raise `UnsupportedValueError` for a part that would change its type.

    Such a part would come back as another type, or not at all. The value is walked level by level: that takes a few
    steps for each level, and little for each member.
    """
    level: Sequence[Any] = [value]
    while level:
        kinds = set(map(type, level))
        for kind in kinds & _LOOKALIKES:
            raise unsupported(kind)
        dicts = [member for member in level if type(member) is dict] if dict in kinds else []
        groups = [member for member in level if type(member) in _GROUPS] if kinds & _GROUPS else []
        members = (*dicts, *map(dict.values, dicts), *groups)
        if ATOMS.issuperset(map(type, chain.from_iterable(members))):
            return
        for keys in dicts:
            refuse_merging(keys)
        level = list(chain.from_iterable(members))


def refuse_torn(packed: Sequence[bytes], calls: int) -> None:
    """Raise `UnsupportedValueError` unless each is the bytes of one whole value.

    `calls` is what `calls_of_python` gave before they were packed. A packer writes the length of a list first. While it
    calls Python for an extension, another thread may make the list longer or shorter. The resulting bytes would be
    refused by the reader.
    """
    if next(calls_of_python) == calls + 1:  # Nothing was called, so no other thread ran.
        return
    data = b"".join(packed)
    is_large = len(data) > MAX_KEPT_BYTES
    unpacker = msgpack.Unpacker(max_buffer_size=len(data)) if is_large else _unpackers.take()
    begin, starts = unpacker.tell(), iter(range(0, len(data), PIECE_BYTES))
    for end in accumulate(map(len, packed)):
        if not _skip(unpacker, data, starts) or unpacker.tell() - begin != end:
            raise UnsupportedValueError(
                "a value that another thread changed while it was packed: let that thread end first, or set a copy"
            )
    if not is_large:
        _unpackers.put_back(unpacker)


def _skip(unpacker: msgpack.Unpacker, data: bytes, starts: Iterator[int]) -> bool:
    """Skip one value. Returns False if the data ends in it."""
    while True:
        try:
            unpacker.skip()
        except msgpack.OutOfData:
            if (start := next(starts, None)) is None:
                return False
            unpacker.feed(data[start : start + PIECE_BYTES])
        else:
            return True


calls_of_python = count()
"""Counts the calls of Python by packers. A call of `next` is one step for all threads."""

_unpackers = Idle(lambda: msgpack.Unpacker(max_buffer_size=MAX_KEPT_BYTES))
"""Unpackers that hold nothing."""


_INSTEAD: dict[type, str] = {
    bytearray: "bytes",
    memoryview: "bytes",
    complex: "a tuple of two floats",
    range: "a list",
}
"""The types to use instead of those that come back as something else, or not at all.

These types are built in.
"""


def refuse_merging(members: Collection[Any]) -> None:
    """Raise `UnsupportedValueError` for a set or dict that would lose a member.

    Two of its members or keys would come back as one.
    """
    if zones.would_merge(members):
        raise UnsupportedValueError(
            "a set or a dict with two times in zones of one name that are different objects, which would be one when "
            "they are read: use one ZoneInfo(name) for both"
        )


def unsupported(kind: type) -> UnsupportedValueError:
    """Return the error for a value of a type that cannot be stored."""
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    instead = _INSTEAD.get(kind, "a built-in type, such as a dict, list, text or number,")
    return UnsupportedValueError(f"a value of type {name}: convert it to {instead} first")


def too_large(kind: type) -> UnsupportedValueError:
    """Return the error for a value that takes more than `MAX_VALUE_BYTES`."""
    return UnsupportedValueError(
        f"a value of type {kind.__qualname__} that takes more than {MAX_VALUE_BYTES:,} bytes: store it in parts, under "
        "several keys"
    )
