"""Values: msgpack and its extensions."""

import datetime as dt
import decimal
import re
import struct
import uuid
import zoneinfo

from tests.judge.reader.checks import Refused, integer, is_a, need, text
from tests.judge.reader.keys import distinct

DAY = dt.timedelta(days=1)


def take(b, i, n):
    need(i + n <= len(b), "msgpack ends early")
    return b[i : i + n], i + n


NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
SIZES = {
    0xC4: ("bin", 1),
    0xC5: ("bin", 2),
    0xC6: ("bin", 4),
    0xC7: ("ext", 1),
    0xC8: ("ext", 2),
    0xC9: ("ext", 4),
    0xD9: ("str", 1),
    0xDA: ("str", 2),
    0xDB: ("str", 4),
    0xDC: ("list", 2),
    0xDD: ("list", 4),
    0xDE: ("map", 2),
    0xDF: ("map", 4),
}


def value(b, i, level, inside):
    """One value at i: (value, end). level: lists and maps around it; inside: extensions around it."""
    t, i = take(b, i, 1)
    t = t[0]
    if t <= 0x7F or t >= 0xE0:
        return (t if t <= 0x7F else t - 256), i
    if t in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[t], i
    if t in NUMBERS:
        raw, i = take(b, i, struct.calcsize(NUMBERS[t]))
        return struct.unpack(NUMBERS[t], raw)[0], i
    if t in SIZES:
        kind, n = SIZES[t]
        raw, i = take(b, i, n)
        n = int.from_bytes(raw, "big")
    elif 0xD4 <= t <= 0xD8:
        kind, n = "ext", 1 << t - 0xD4
    else:
        need(t != 0xC1, "msgpack c1")
        kind, n = ("map", t & 15) if t < 0x90 else ("list", t & 15) if t < 0xA0 else ("str", t & 31)
    if kind == "ext":
        code, i = take(b, i, 1)
        raw, i = take(b, i, n)
        need(inside < 32, "more than 32 extensions inside one another")
        return extension(code[0], raw, inside + 1), i
    if kind in ("bin", "str"):
        raw, i = take(b, i, n)
        return (raw.decode("utf-8") if kind == "str" else raw), i
    need(level < 1024, "more than 1,024 levels")
    if kind == "list":
        out = []
        for _ in range(n):
            v, i = value(b, i, level + 1, inside)
            out.append(v)
        return out, i
    out = {}
    for _ in range(n):
        k, i = value(b, i, level + 1, inside)
        v, i = value(b, i, level + 1, inside)
        distinct(set(), k, nan=True)  # a reader may accept equal keys here
        out[k] = v
    return out, i


def unpack(b, inside=0):
    v, end = value(b, 0, 0, inside)
    need(end == len(b), "something behind the value")
    return v


def members(data, inside, *counts):
    a = unpack(data, inside)
    need(type(a) is list and (not counts or len(a) in counts), f"{a!r:.80} is no array of {counts or 'any'} members")
    return a


DATE, CLOCK = r"([0-9]{4})-([0-9]{2})-([0-9]{2})", r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.(?!000000)([0-9]{6}))?"


def numbers(pattern, s):
    m = re.fullmatch(pattern, s) if type(s) is str else None
    need(m, f"{s!r:.80} is no text of a time")
    return [int(g or 0) for g in m.groups()]


def duration(a):
    for v, low, high in zip(a, (-999999999, 0, 0), (999999999, 86399, 999999), strict=True):
        integer(low, high)(v)
    return dt.timedelta(*a)


def zone(z):
    if z is None:
        return None
    if z == "UTC":
        return dt.UTC
    if type(z) is str:
        need(z.startswith("zone:"), f"the zone {z!r:.80}")
        try:
            return zoneinfo.ZoneInfo(z[5:])
        except (KeyError, ValueError, OSError) as e:
            raise Refused(f"the zone {z!r:.80}") from e
    need(type(z) is list and len(z) in (3, 4), f"the zone {z!r:.80}")
    offset = duration(z[:3])
    need(-DAY < offset < DAY, f"an offset of {offset}")
    need(len(z) == 4 or offset, "an offset of 0 without a name")
    return dt.timezone(offset, *map(text, z[3:]))


def extension(code, data, inside):
    if code == 1:
        return tuple(members(data, inside))
    if code == 2:
        v = int.from_bytes(data, "big", signed=True)
        need(not -(2**63) <= v < 2**64 and len(data) == v.bit_length() // 8 + 1, "an integer that is not of its form")
        return v
    if code == 3:
        s = data.decode("ascii")
        need(re.fullmatch(r"-?([0-9]+(\.[0-9]+)?(E[+-][0-9]+)?|Infinity|s?NaN[0-9]*)", s), f"the decimal {s!r:.80}")
        v = decimal.Decimal(s)
        need(str(v) == s, f"the decimal {s!r:.80}, which is {v}")
        return v
    if code == 4:
        s, fold, z = members(data, inside, 3)
        return dt.datetime(*numbers(f"{DATE}T{CLOCK}", s), tzinfo=zone(z), fold=integer(0, 1)(fold))
    if code == 5:
        s, fold = members(data, inside, 2)
        return dt.time(*numbers(CLOCK, s), fold=integer(0, 1)(fold))
    if code == 6:
        return duration(members(data, inside, 3))
    if code in (7, 8):
        packed = [is_a(bytes, "bin")(m) for m in members(data, inside)]
        need(packed == sorted(packed), "a set out of order")
        out, seen = [unpack(m, inside) for m in packed], set()
        for m in out:
            distinct(seen, m, nan=True)
        return set(out) if code == 7 else frozenset(out)
    if code == 9:
        return dt.date(*numbers(DATE, data.decode("ascii")))
    need(code == 10, f"type {code}")
    return uuid.UUID(bytes=data)
