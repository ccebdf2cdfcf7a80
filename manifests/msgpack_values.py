"""Pack Python values as msgpack so that each type comes back as itself.

A type that would not is refused by name.

Types that msgpack itself knows (None, bool, 64-bit integers, floats, text, bytes, lists, maps) are written as msgpack;
the extension types are listed in `manifests/SPEC.md`. Subclasses (of dict, tuple, str, …) are refused, since they would
come back as something else.
"""

import io
import re
import uuid
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import accumulate, chain, compress, count, pairwise, repeat
from operator import contains
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import msgpack

from pyspark_checkpointer.manifests import zones
from pyspark_checkpointer.manifests.errors import BAD_INPUT, MalformedError
from pyspark_checkpointer.manifests.idle import Idle

MAX_DEPTH = 32
"""Extensions (tuples, sets) one inside the other, at most.

Each takes some 40 KiB of the C stack, which has an end.
"""

MAX_UNCHECKED_BYTES = 1024
"""Bytes that are unpacked without `check_whole`, at most.

msgpack makes room for 2 MB, whatever they claim to hold; for 18 MB where 1,024 such values are unpacked together.
"""

PIECE_BYTES = 1 << 20
"""Bytes that an unpacker is fed, and that are packed, at once."""

PACK_COUNT = 32
"""Values that are packed before their bytes are counted."""

MAX_KEPT_BYTES = 4 << 20
"""Bytes that a packer may have packed and still be used again, at most.

Its buffer never becomes smaller.
"""

SHORT_LENGTH = 1024
"""Length from which `_pack_atom` does not pack texts and bytes.

So its buffer stays small.
"""

TUPLE, INTEGER, DECIMAL, DATETIME, TIME, DURATION, SET, FROZENSET, DATE, UUID = range(1, 11)


_Set = TypeVar("_Set", set[Any], frozenset[Any])

Pack = Callable[[Any], bytes]
"""A function that packs the content of an extension, which is one level deeper."""

Hook = Callable[[int, bytes], Any]
"""A function that unpacks an extension, given its type and its bytes."""


class UnsupportedValueError(TypeError):
    """A value that cannot be stored.

    The message names its type and what to use instead.
    """


def pack(value: Any) -> bytes:
    """Return one value as msgpack.

    Raises `UnsupportedValueError`, which names what in the value cannot be stored.
    """
    kind = type(value)
    if kind in _ATOMS and (kind not in _TEXTS or len(value) < SHORT_LENGTH):
        try:
            return _pack_atom(value)  # type: ignore[no-any-return]
        except (OverflowError, UnicodeEncodeError):  # a long integer, or what is refused
            return _pack_any(value)
    return _pack_any(value)


def _pack_any(value: Any) -> bytes:
    try:
        if type(value) in _TEXTS and MAX_KEPT_BYTES < len(value) < 2**32:
            return _pack_large(value)
        calls = next(_calls)
        packed = _LEVELS[0].pack(value)
        # A search in the bytes takes far less time than the walk through the value that it mostly spares.
        if type(value) not in _ATOMS and _MARKERS.search(packed):
            _refuse_lookalikes(value)
            _refuse_torn([packed], calls)
        return packed
    except UnsupportedValueError:
        raise
    except UnicodeEncodeError:
        raise UnsupportedValueError("text that is not valid Unicode (a lone surrogate)") from None
    except _REFUSED as error:
        raise UnsupportedValueError(f"a value that msgpack refuses: {error}") from None


def _pack_large(value: str | bytes) -> bytes:
    """Pack a long text or long bytes as a packer does.

    A packer would fill a buffer first; this function does not.
    """
    if type(value) is bytes:
        return b"".join((b"\xc6", len(value).to_bytes(4, "big"), value))
    if not value.isascii():
        encoded = value.encode()  # type: ignore[union-attr]  # mypy does not see that it is text
        # Text is written as binary data is, but for this first byte.
        return _pack_large(encoded).replace(b"\xc6", b"\xdb", 1) if len(encoded) < 2**32 else _LEVELS[0].pack(value)
    packed = io.BytesIO(b"\xdb" + len(value).to_bytes(4, "big"))
    packed.seek(0, io.SEEK_END)
    for start in range(0, len(value), PIECE_BYTES):
        packed.write(value[start : start + PIECE_BYTES].encode())  # type: ignore[union-attr]
    return packed.getvalue()


def pack_some(values: Sequence[Any]) -> list[bytes]:
    """Return the first of these values packed, about `PIECE_BYTES` of them.

    It takes less than half of the time of `pack`.

    Raises `UnsupportedValueError` if any of them cannot be stored; `pack` says which and why.
    """
    packed: list[bytes] = []
    size, calls = 0, next(_calls)
    try:
        # Some at a time: the sizes are known only once they are packed, and large values must not all be in memory
        # twice.
        while len(packed) < len(values) and size < PIECE_BYTES:
            more, more_bytes = _LEVELS[0].pack_each(values[len(packed) : len(packed) + PACK_COUNT])
            packed += more
            size += more_bytes
        if suspects := _find_marked(packed):
            _refuse_lookalikes([values[number] for number in suspects])
            _refuse_torn([packed[number] for number in suspects], calls)
    except _REFUSED as error:
        raise UnsupportedValueError(f"a value that msgpack refuses: {error}") from None
    return packed


def _find_marked(packed: list[bytes]) -> Sequence[int]:
    """Return the numbers of the packed values that a marker occurs in.

    Only these can have a part that would change its type. If there are many, all numbers are returned.
    """
    marks = b"".join(packed).translate(_MARKS)
    count = marks.count(1)
    # To find the value of a marker takes longer than to look into a value.
    if 2 * count > len(packed):
        return range(len(packed))
    ends, found = list(accumulate(map(len, packed))) if count else [], list[int]()
    at = marks.find(1)
    while at >= 0:
        found.append(bisect_right(ends, at))
        at = marks.find(1, ends[found[-1]])
    return found


def pack_checked(*arrays: list[Any]) -> bytes:
    """Return arrays of keys or of packed values, one after the other.

    They are not checked again: they were checked when they were set.
    """
    return b"".join(_LEVELS[0].pack_each(arrays)[0])


BAD_VALUE = (*BAD_INPUT, msgpack.UnpackException)
"""Errors that msgpack or a constructor raises for bad bytes."""

_unpackb = msgpack.unpackb


def unpack(data: bytes, hook: Hook | None = None) -> Any:
    """Return the value that `pack` was given.

    `hook` unpacks its extensions, at their level; None for the first one.
    """
    try:
        # The check is a second pass, which short values, the most frequent ones, are spared.
        if len(data) > MAX_UNCHECKED_BYTES:
            check_whole(data)
        # msgpack by itself takes only text and bytes as keys of a map.
        value = _unpackb(data, ext_hook=hook or from_extension, strict_map_key=False)
        if 0xFF in data and len(data) >= _TIMESTAMP_BYTES and _MINUS_ONE.search(data):
            _refuse_timestamps(value)
        return value
    except MalformedError:
        raise
    except BAD_VALUE as error:
        raise MalformedError(f"expected a msgpack value, found {data[:40]!r}: {explain(error)}") from None


def unpack_all(packed: Sequence[bytes]) -> list[Any] | None:
    """Return what `unpack` returns for each of some values. None if one is malformed, or has to be looked at by itself.

    It takes less time than `unpack` for each: they are unpacked as members of one array, with a mark behind each.
    """
    longest, count = max(map(len, packed), default=0), len(packed)
    if longest > MAX_UNCHECKED_BYTES:
        return None
    # Most values have no byte that could belong to a timestamp, which a search in C tells sooner than a pattern.
    suspects = compress(packed, map(contains, packed, repeat(0xFF)))
    if any(map(_MINUS_ONE.search, suspects)):
        return None
    whole = b"".join((b"\xdd", (2 * count).to_bytes(4, "big"), _MARK.join(packed), _MARK if count else b""))
    # Of a value that holds the mark itself nothing is proven below.
    if whole.count(_MARK) != count:
        return None
    # Arrays inside each other may all claim to hold that many members, and msgpack makes room for all of them.
    limit = max(2 * count, longest)
    try:
        members = _unpackb(whole, ext_hook=from_extension, strict_map_key=False, max_array_len=limit, max_map_len=limit)
    except (MalformedError, *BAD_VALUE):
        return None
    # Each of these integers was read from a mark, since nothing else is read as this integer, and these are all marks.
    # So none was read as a part of a value, and between two of them is one value: each of these bytes is a whole value.
    found = members[1::2]
    return members[::2] if found.count(_MARKED) == count and _INTEGERS.issuperset(map(type, found)) else None


_INTEGERS = frozenset({int})

_MARKED = 0xC1A5_9E3B_70D2_4F87
_MARK = b"\xcf" + _MARKED.to_bytes(8, "big")
"""An integer that hardly any value holds, and how it is packed.

No double is equal to it, and it begins with a byte that does not come again in it: so two of them never overlap.
"""


def explain(error: BaseException) -> str:
    """Return what is wrong with bad bytes, in words also where the error of Python or msgpack has none."""
    if isinstance(error, ArithmeticError):
        return "a number that is not of its form"
    if isinstance(error, TypeError | AttributeError):
        return f"a value of another type than its form asks for: {error}"
    return str(error) or "bytes that are not msgpack"


def check_whole(data: bytes) -> None:
    """Raise `ValueError` unless everything that arrays claim to hold is there.

    msgpack makes room for all of it beforehand, and nested arrays can claim 8,000 times their bytes. To skip over them
    takes a small part of the time that unpacking takes.
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


_TIMESTAMP_BYTES = 6
"""Bytes of the shortest timestamp of msgpack."""

_MINUS_ONE = re.compile(rb"[\xd4-\xd8]\xff|\xc7.\xff|\xc8..\xff|\xc9.{4}\xff", re.DOTALL)
"""The beginning of an extension of type -1, a timestamp.

msgpack unpacks it without asking the hook.
"""


def _refuse_timestamps(value: Any) -> None:
    """Raise `ValueError` for a msgpack timestamp in a value.

    The format has no such value.
    """
    try:
        _refuse_lookalikes(value)
    except UnsupportedValueError:
        raise ValueError("an extension of type -1") from None


_MARKERS = re.compile(rb"[\xc4-\xc9\xd4-\xd8]")
"""The bytes that msgpack puts before binary data and extensions.

If none of them occurs, there are no binary data and no extensions.
"""

_MARKS = bytes(_MARKERS.match(bytes([number])) is not None for number in range(256))
"""A table for `bytes.translate`, which is much faster than a pattern: 1 for a marker, 0 for all other bytes."""

_REFUSED = (RuntimeError, ValueError, OverflowError)
"""Errors that a packer raises for a value: one nested too deep, or a dict that another thread changes, among them."""

_LOOKALIKES = frozenset({bytearray, memoryview, msgpack.ExtType, msgpack.Timestamp})
"""Types that msgpack writes without asking as something else.

They come back as another type.
"""

_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_TEXTS = frozenset({str, bytes})

_pack_atom = msgpack.Packer(strict_types=True).pack
"""Packer of values without parts.

No Python code runs meanwhile, so one packer is enough for all threads.
"""

_GROUPS = frozenset({list, tuple, set, frozenset})
_CHANGEABLE = frozenset({list, dict})


def _refuse_lookalikes(value: Any) -> None:
    """Raise `UnsupportedValueError` for a part that would change its type.

    Such a part would come back as another type, or not at all. The value is walked level by level: that takes a few
    steps for each level, and little for each member.
    """
    level: Sequence[Any] = [value]
    while level:
        kinds = set(map(type, level))
        for kind in kinds & _LOOKALIKES:
            raise _unsupported(kind)
        dicts = [member for member in level if type(member) is dict] if dict in kinds else []
        groups = [member for member in level if type(member) in _GROUPS] if kinds & _GROUPS else []
        members = (*dicts, *map(dict.values, dicts), *groups)
        if _ATOMS.issuperset(map(type, chain.from_iterable(members))):
            return
        for keys in dicts:
            _refuse_merging(keys)
        level = list(chain.from_iterable(members))


def _refuse_torn(packed: Sequence[bytes], calls: int) -> None:
    """Raise `UnsupportedValueError` unless each of these is the bytes of one whole value.

    `calls` is what `_calls` gave before they were packed. A packer writes the length of a list first. While it calls
    Python for an extension, another thread may make the list longer or shorter. The bytes would be refused when they
    are read.
    """
    if next(_calls) == calls + 1:  # Nothing was called, so no other thread ran.
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


_calls = count()
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


def _refuse_merging(members: Collection[Any]) -> None:
    """Raise `UnsupportedValueError` for a set or dict that would lose a member.

    Two of its members or keys would come back as one.
    """
    if zones.would_merge(members):
        raise UnsupportedValueError(
            "a set or a dict with two times in zones of one name that are different objects, which would be one when "
            "they are read: use one ZoneInfo(name) for both"
        )


def _unsupported(kind: type) -> UnsupportedValueError:
    """Return the error for a value of a type that cannot be stored."""
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    instead = _INSTEAD.get(kind, "a built-in type, such as a dict, list, text or number,")
    return UnsupportedValueError(f"a value of type {name}: convert it to {instead} first")


class _Level:
    """Packs and unpacks values that are inside a given number of extensions.

    A packer has one buffer, and while it packs an extension Python code runs: a signal handler, a `__del__`, a callback
    of the garbage collector or another greenlet may pack something else meanwhile. That takes another packer.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self.deeper: Hook | None = None
        """The hook of the next level; None for the last one."""
        # Strict: a subclass of dict or text would otherwise be packed as its base, and come back as another type.
        self._packers = Idle(lambda: msgpack.Packer(default=self._extension, strict_types=True))

    def pack(self, value: Any) -> bytes:
        """Pack one value."""
        packer = self._packers.take()
        packed: bytes = packer.pack(value)
        if len(packed) <= MAX_KEPT_BYTES:
            self._packers.put_back(packer)
        return packed

    def pack_each(self, values: Sequence[Any]) -> tuple[list[bytes], int]:
        """Pack several values, each by itself, and return their size too."""
        packer = self._packers.take()
        packed = list(map(packer.pack, values))
        size = sum(map(len, packed))
        if size <= MAX_KEPT_BYTES:
            self._packers.put_back(packer)
        return packed, size

    def _extension(self, value: Any) -> msgpack.ExtType:
        """Pack a value that msgpack does not know; called by the packers of this level."""
        packer = _PACKERS.get(type(value))
        if packer is None:
            raise _unsupported(type(value))
        if self._depth == MAX_DEPTH:
            raise UnsupportedValueError(f"a value with more than {MAX_DEPTH} tuples or sets one inside the other")
        next(_calls)
        code, encode = packer
        return msgpack.ExtType(code, encode(value, _LEVELS[self._depth + 1].pack))

    def from_extension(self, code: int, data: bytes) -> Any:
        """Unpack an extension; the hook of this level's unpackers."""
        deeper = self.deeper
        if deeper is None:
            raise MalformedError(f"expected msgpack, found more than {MAX_DEPTH} extensions one inside the other")
        # A type that is not known is a KeyError, which `_unpack` and the decoders turn into a MalformedError.
        return _UNPACKERS[code](data, deeper)


_LEVELS = [_Level(depth) for depth in range(MAX_DEPTH + 1)]
for _level, _next in pairwise(_LEVELS):
    _level.deeper = _next.from_extension

from_extension = _LEVELS[0].from_extension
"""The hook for unpackers of values that are in no extension."""


def _pack_tuple(value: tuple[Any, ...], pack: Pack) -> bytes:
    calls = next(_calls)
    packed = pack(list(value))
    # What another thread can change is checked here too: who checks the whole value does not look into extensions.
    if not _CHANGEABLE.isdisjoint(map(type, value)):
        _refuse_torn([packed], calls)
    return packed


def _pack_members(values: Any, pack: Pack) -> bytes:
    """Pack members in the order of their bytes, so that equal sets are equal bytes."""
    _refuse_merging(values)
    # Each member is packed by itself: bytes can be sorted, whatever the types of the members are.
    return pack(sorted(map(pack, values)))


def _unpack_list(data: bytes, hook: Hook) -> list[Any]:
    members = unpack(data, hook)
    if type(members) is not list:
        raise TypeError(f"a {type(members).__name__} in the place of a list")
    return members


def _unpack_tuple(data: bytes, hook: Hook) -> tuple[Any, ...]:
    members = unpack(data, hook)
    if type(members) is not list:
        raise TypeError(f"a {type(members).__name__} in the place of a list")
    return tuple(members)


def _unpack_members(kind: Callable[[list[Any]], _Set], data: bytes, hook: Hook) -> _Set:
    """Unpack a set, each of whose members was packed by itself."""
    packed = unpack(data, hook)
    if sorted(packed) != packed:
        raise ValueError("a set whose members are not in the order of their bytes")
    # Short members are unpacked without the steps that only longer ones need.
    members = [
        _unpackb(member, ext_hook=hook, strict_map_key=False)
        if len(member) < _TIMESTAMP_BYTES
        else unpack(member, hook)
        for member in packed
    ]
    made = kind(members)
    if len(made) < len(members):
        raise ValueError(
            "a set of which two members are equal, by the rules that their zones have here if they are times"
        )
    return made


def _pack_zone(value: datetime) -> Any:
    zone = value.tzinfo
    if zone is None or zone is UTC:
        return None if zone is None else "UTC"
    if type(zone) is timezone:
        return [*_duration(zone.utcoffset(None)), *zone_name(zone)]
    if type(zone) is ZoneInfo:
        # Its key may be the name of another zone, which would then come back in its place.
        if zones.is_unnamed(zone):
            raise UnsupportedValueError(
                "a datetime whose zone was read from a file: use ZoneInfo(name), which is found again by its name"
            )
        return f"zone:{zone.key}"
    raise UnsupportedValueError(f"a datetime whose zone is a {type(zone).__name__}: use datetime.timezone or ZoneInfo")


def zone_name(zone: timezone) -> list[str]:
    """Return the name given to a zone of a fixed offset, in a list of one.

    The list is empty if the zone has no name.
    """
    return list(zone.__getinitargs__()[1:])  # type: ignore[attr-defined]  # what it is pickled by


def _unpack_zone(zone: Any) -> Any:
    if zone is None or zone == "UTC":
        return None if zone is None else UTC
    if isinstance(zone, list):
        offset = _make_duration(zone[:3])
        if not offset and len(zone) == 3:
            raise ValueError("an offset of nothing, which is UTC")
        return timezone(offset, *zone[3:])
    if not zone.startswith("zone:"):
        raise ValueError(f"{zone!r:.60} in the place of a zone")
    return zones.find(zone[5:])


def _pack_datetime(value: datetime, pack: Pack) -> bytes:
    # The text of a time leaves out its fold and the name of its zone, so these are kept beside it.
    return pack([value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _pack_zone(value)])


def _unpack_datetime(data: bytes, hook: Hook) -> datetime:
    text, fold, zone = _unpack_list(data, hook)
    value = datetime.fromisoformat(text)
    if text[4:17:3] != "--T::" or not _is_canonical(text[11:], value) or type(fold) is not int:
        raise ValueError("a date and time that is not written as YYYY-MM-DDTHH:MM:SS with a fold")
    if fold:
        value = value.replace(fold=fold)
    # `combine` takes a fraction of the time of `replace`.
    return value if zone is None else datetime.combine(value, value.time(), _unpack_zone(zone))


def _is_canonical(text: str, value: datetime | time) -> bool:
    """Return whether a time of day is written as `isoformat` writes it.

    The text is HH:MM:SS with its colons in their places. `fromisoformat` reads many more forms. To write the value
    again would take much longer.
    """
    if len(text) == 8:
        return value.hour > 0 or text[:2] == "00"  # not 24:00, which newer versions of Python read
    return len(text) == 15 and text[8] == "." and value.microsecond > 0 and value.tzinfo is None


def _pack_time(value: time, pack: Pack) -> bytes:
    if value.tzinfo is not None:
        raise UnsupportedValueError("a time of day with a zone: store a datetime")
    return pack([value.isoformat(), value.fold])


def _unpack_time(data: bytes, hook: Hook) -> time:
    text, fold = _unpack_list(data, hook)
    value = time.fromisoformat(text)
    if text[2:6:3] != "::" or not _is_canonical(text, value) or type(fold) is not int:
        raise ValueError("a time of day that is not written as HH:MM:SS with a fold")
    return value.replace(fold=fold) if fold else value


def _duration(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _make_duration(parts: Any) -> timedelta:
    """Return the duration of days, seconds and microseconds.

    The arguments are in the form that `_duration` writes.
    """
    days, seconds, microseconds = parts
    if type(parts) is not list or not (type(days) is type(seconds) is type(microseconds) is int):
        raise TypeError("a duration that is not three integers")
    if not 0 <= seconds < 86_400 or not 0 <= microseconds < 1_000_000:
        raise ValueError("a duration with more seconds than a day has, or microseconds than a second")
    return timedelta(days, seconds, microseconds)


def _unpack_duration(data: bytes, hook: Hook) -> timedelta:
    return _make_duration(unpack(data, hook))


def _pack_integer(value: int, _: Pack) -> bytes:
    # There is always room for the sign, one bit more than the magnitude needs.
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _unpack_integer(data: bytes, _: Hook) -> int:
    value = int.from_bytes(data, "big", signed=True)
    if -(2**63) <= value < 2**64 or len(data) != value.bit_length() // 8 + 1:
        raise ValueError("an integer that is written in another way")
    return value


def _unpack_decimal(data: bytes, _: Hook) -> Decimal:
    text = data.decode()
    value = Decimal(text)
    if str(value) != text and str(value).replace("e", "E") != text:
        raise ValueError("a decimal that is written in another way")
    return value


def _unpack_date(data: bytes, _: Hook) -> date:
    if len(data) != 10 or data[7] != 0x2D:  # a week date has its second hyphen elsewhere
        raise ValueError("a date that is not written as YYYY-MM-DD")
    return date.fromisoformat(data.decode())


_PACKERS: dict[type, tuple[int, Callable[[Any, Pack], bytes]]] = {
    tuple: (TUPLE, _pack_tuple),
    int: (INTEGER, _pack_integer),
    Decimal: (DECIMAL, lambda value, _: str(value).replace("e", "E").encode()),  # the thread's context may ask for "e"
    datetime: (DATETIME, _pack_datetime),
    time: (TIME, _pack_time),
    timedelta: (DURATION, lambda value, pack: pack(_duration(value))),
    set: (SET, _pack_members),
    frozenset: (FROZENSET, _pack_members),
    date: (DATE, lambda value, _: value.isoformat().encode()),
    uuid.UUID: (UUID, lambda value, _: value.bytes),
}

_UNPACKERS: dict[int, Callable[[bytes, Hook], Any]] = {
    TUPLE: _unpack_tuple,
    INTEGER: _unpack_integer,
    DECIMAL: _unpack_decimal,
    DATETIME: _unpack_datetime,
    TIME: _unpack_time,
    DURATION: _unpack_duration,
    SET: lambda data, hook: _unpack_members(set, data, hook),
    FROZENSET: lambda data, hook: _unpack_members(frozenset, data, hook),
    DATE: _unpack_date,
    UUID: lambda data, _: uuid.UUID(bytes=data),
}
