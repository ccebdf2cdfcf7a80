"""Partitioners: `crc32-key-1`."""

import datetime as dt
import decimal
import uuid

from tests.judge.reader.keys import Moment

NUMBER_HASH = 2**61 - 1


def number(n):
    """Partitioners: the hash of a number, in decimal."""
    if n in (float("inf"), float("-inf")):
        h = 314159
    else:
        p, q = ratio(n) if isinstance(n, decimal.Decimal) else abs(n).as_integer_ratio()
        h = 314159 if q % NUMBER_HASH == 0 else p * pow(q, -1, NUMBER_HASH) % NUMBER_HASH
    h = -h if n < 0 else h
    return b"%d" % (-2 if h == -1 else h)


def ratio(n):
    """A fraction that gives the same hash, without the huge powers of ten that a decimal may have."""
    _, digits, exponent = n.as_tuple()
    p = int("".join(map(str, digits)))
    ten = pow(10, abs(exponent), NUMBER_HASH)
    return (p * ten, 1) if exponent >= 0 else (p, ten)


def micros(d):
    return b"%d" % (d // dt.timedelta(microseconds=1))


def canonical(k):
    """Partitioners, crc32-key-1: the canonical bytes of a key."""
    if isinstance(k, (str, bytes)):
        return k.encode("utf-8") if isinstance(k, str) else k
    if k is None:
        return b"nil"
    if isinstance(k, (int, float, decimal.Decimal)):
        return number(k)
    if isinstance(k, tuple):
        return b"(" + b",".join(map(canonical, k)) + b")"
    if isinstance(k, frozenset):
        return b"{" + b",".join(sorted(map(canonical, k))) + b"}"
    if isinstance(k, dt.timedelta):
        return micros(k)
    if isinstance(k, uuid.UUID):
        return k.bytes
    if isinstance(k, dt.datetime) and k.tzinfo:
        return micros(Moment(k).at)
    return (k if type(k) is dt.date else k.replace(fold=0)).isoformat().encode()
