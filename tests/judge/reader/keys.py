"""Equal keys."""

import datetime as dt
import decimal
import uuid
import zoneinfo

from tests.judge.reader.checks import need

EPOCH = dt.datetime(1970, 1, 1)


class Moment:
    """A time with a zone: by its clock among zones of one IANA name, else by the moment, if it has only one."""

    def __init__(self, t):
        self.clock, self.zone = t.replace(tzinfo=None), getattr(t.tzinfo, "key", None)
        self.at = self.clock - EPOCH - t.replace(fold=0).utcoffset()
        self.two = t.replace(fold=0).utcoffset() != t.replace(fold=1).utcoffset()

    def __hash__(self):
        return hash(self.at)

    def __eq__(self, other):
        if not isinstance(other, Moment):
            return NotImplemented
        if self.zone and self.zone == other.zone:
            return self.clock == other.clock
        return self.at == other.at and not (self.two or other.two)


def is_nan(k):
    return k.is_nan() if isinstance(k, decimal.Decimal) else isinstance(k, float) and k != k


def canon(k, nan=False):
    """Something that is equal for equal keys. Refuses what is no key. With `nan`, NaN is one that equals nothing."""
    if isinstance(k, dt.datetime) and k.tzinfo:
        return Moment(k)
    if isinstance(k, tuple):
        return tuple(canon(member, nan) for member in k)
    if isinstance(k, frozenset):
        return frozenset(canon(member, nan) for member in k)
    atoms = (str, bytes, type(None), int, float, decimal.Decimal, dt.date, dt.time, dt.timedelta, uuid.UUID)
    signals = isinstance(k, decimal.Decimal) and k.is_snan()
    need(isinstance(k, atoms) and not signals and (nan or not is_nan(k)), f"{k!r:.80} is no key")
    return k


def zoned(k):
    """Whether a key is or holds a time in a zone with an IANA name."""
    if isinstance(k, (tuple, frozenset)):
        return any(map(zoned, k))
    return isinstance(k, dt.datetime) and isinstance(k.tzinfo, zoneinfo.ZoneInfo)


def distinct(seen, k, nan=False):
    c = canon(k, nan)
    need(c not in seen, f"two equal keys {k!r:.80}")
    seen.add(c)


def same(a, b):
    """Whether two equal keys are one value, in one zone."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return all(map(same, a, b))
    if isinstance(a, frozenset):
        return all(any(same(x, y) for y in b) for x in a)
    return repr(a) == repr(b)
