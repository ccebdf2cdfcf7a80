"""Bytes that are almost right: what a disk, a network, or somebody with bad intentions may make of good ones."""

import re
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from tests.proof.decoders import Decoder

_WORD = re.compile(rb'"[^"\\]*"|-?[0-9][0-9.eE+-]*|true|false|null|[A-Za-z_]+')
"""What stands alone in JSON and in YAML."""


def _flip(data: bytes, at: int, size: int, mark: bytes) -> bytes:
    return data[:at] + bytes(byte ^ (1 << size % 8) for byte in data[at : at + 1]) + data[at + 1 :]


def _set(data: bytes, at: int, size: int, mark: bytes) -> bytes:
    return data[:at] + bytes([size % 256]) + data[at + 1 :]


def _insert(data: bytes, at: int, size: int, mark: bytes) -> bytes:
    return data[:at] + mark + data[at:]


def _overwrite(data: bytes, at: int, size: int, mark: bytes) -> bytes:
    return data[:at] + mark + data[at + len(mark) :]


def _delete(data: bytes, at: int, size: int, mark: bytes) -> bytes:
    return data[:at] + data[at + size :]


def _cut(data: bytes, at: int, size: int, mark: bytes) -> bytes:
    return data[:at]


def _duplicate(data: bytes, at: int, size: int, mark: bytes) -> bytes:
    return data[: at + size] + data[at:]


def _repeat(data: bytes, at: int, size: int, mark: bytes) -> bytes:
    return data[:at] + data[at : at + 1 + size % 8] * 500 + data[at:]


def _move(data: bytes, at: int, size: int, mark: bytes) -> bytes:
    return data[:at] + data[at + size :] + data[at : at + size]


def _count(data: bytes, at: int, size: int, mark: bytes) -> bytes:
    """A number of 1, 2, 4 or 8 bytes, a little or a lot larger or smaller."""
    width, order = (1, 2, 4, 8)[size % 4], "little" if size & 4 else "big"
    found = int.from_bytes(data[at : at + width], order)  # type: ignore[arg-type]
    changed = (found + (1, -1, 255, 1 << (8 * width - 1))[size >> 3 & 3]) % (1 << 8 * width)
    return data[:at] + changed.to_bytes(width, order) + data[at + width :]  # type: ignore[arg-type]


def _replace(data: bytes, at: int, size: int, mark: bytes) -> bytes:
    """A value by another."""
    words = list(_WORD.finditer(data))
    if not words:
        return mark
    word = words[at % len(words)]
    return data[: word.start()] + mark + data[word.end() :]


_CHANGES = (_flip, _set, _insert, _overwrite, _delete, _cut, _duplicate, _repeat, _move, _count, *[_replace] * 4)
_NO_MARKS = (b"\0", b"\xff" * 8, b"\0" * 100)


def exchanged(decoder: Decoder) -> Iterator[bytes]:
    """Each value of each seed by every mark, and each number by its neighbours; sealed again where there is a seal."""
    seal = decoder.seal or bytes
    for seed in decoder.seeds:
        for word in _WORD.finditer(seed):
            found = word[0]
            near = [str(int(found) + step).encode() for step in (1, -1)] if found.isdigit() else []
            for mark in (*decoder.marks, *near):
                yield seal(seed[: word.start()] + mark + seed[word.end() :])


def mutated(decoder: Decoder, draws: Sequence[int]) -> bytes:
    """Seeds of the decoder, spliced or not, changed once for each number after the first, sealed again or not."""
    first, *rest = draws
    first, which = divmod(first, len(decoder.seeds))
    first, how = divmod(first, 8)
    data = decoder.seeds[which]
    if how == 0:
        first, other = divmod(first, len(decoder.seeds))
        first, start = divmod(first, len(data) + 1)
        data = data[:start] + decoder.seeds[other][first % (len(decoder.seeds[other]) + 1) :]
    marks = decoder.marks or _NO_MARKS
    for draw in rest:
        draw, change = divmod(draw, len(_CHANGES))
        draw, mark = divmod(draw, len(marks))
        draw, size = divmod(draw, 256)
        data = _CHANGES[change](data, draw % (len(data) + 1), size, marks[mark])
    return data if decoder.seal is None or how == 1 else decoder.seal(data)


def inputs(decoder: Decoder) -> st.SearchStrategy[bytes]:
    """Mutations, and now and then anything. Few numbers are drawn for each, which is what Hypothesis takes time for."""
    draws = st.lists(st.integers(0, 2**48 - 1), min_size=2, max_size=5)
    return draws.map(lambda drawn: mutated(decoder, drawn)) | st.binary(max_size=64)
