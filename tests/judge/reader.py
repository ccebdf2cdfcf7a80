"""A second reader of stores, written from `manifests/SPEC.md` alone by somebody who had not seen the library's code.

It is the judge of the format: where it and the library read a store differently, one of them, or the text, is wrong. So
it imports nothing of the project, and whatever is changed here must follow from the text. Comments name its sections.
"""

import contextlib
import datetime as dt
import decimal
import hashlib
import io
import itertools
import json
import pathlib
import re
import struct
import sys
import urllib.parse
import uuid
import zoneinfo

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

CODECS = ("raw", "msgpack+zstd", "parquet")
MAX = 2**63 - 1
DAY = dt.timedelta(days=1)
NOTHING = hashlib.sha256(b"").hexdigest()
EXACT = decimal.Context(prec=200, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


class Refused(Exception):  # noqa: N818
    """The store, or an object of it, is not what the specification allows."""


class Missing(Exception):  # noqa: N818
    """An object that is named is not there."""


def need(ok, what):
    if not ok:
        raise Refused(what)


@contextlib.contextmanager
def about(name):
    try:
        yield
    except Refused as e:
        raise Refused(f"{name}: {e}") from e
    except (ValueError, ArithmeticError, RecursionError, pa.ArrowException, OSError, zstandard.ZstdError) as e:
        raise Refused(f"{name}: {type(e).__name__}: {e}") from e


# --- Objects: JSON ---------------------------------------------------------------------------------------------------


def pairs(items):
    out = dict(items)
    need(len(out) == len(items), "a field twice")
    return out


def whole(s):
    float(int(s))  # OverflowError: beyond a double
    return int(s)


def real(s):
    need(abs(float(s)) != float("inf"), f"the number {s} is beyond a double")
    return float(s)


def constant(s):
    raise Refused(f"{s} is no JSON")


def parse(data):
    s = data.decode("utf-8")
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", s, flags=re.S)
    need(not re.search(r"\s", bare), "white space between tokens")
    level = 0
    for c in re.findall(r"[][{}]", bare):
        level += 1 if c in "[{" else -1
        need(level <= 300, "more than 300 levels")  # 250 in any value, and those above it
    v = json.loads(s, object_pairs_hook=pairs, parse_int=whole, parse_float=real, parse_constant=constant)
    if "\\u" in s:
        json.dumps(v, ensure_ascii=False).encode("utf-8")  # UnicodeEncodeError: half of a surrogate pair
    return v


# checks of a field: each gives the value back, or refuses it


def get(o, name, check, absent=False):
    if name not in o:
        need(absent, f"no field {name}")
        return None
    with about(name):
        return check(o[name])


def anything(v):
    return v


def is_a(kind, what):
    def check(v):
        need(type(v) is kind, f"{v!r:.80} is no {what}")
        return v

    return check


obj, array, text = is_a(dict, "object"), is_a(list, "list"), is_a(str, "text")


def some(v):
    need(text(v) != "", "no characters")
    return v


def integer(low=0, high=MAX):
    def check(v):
        need(type(v) is int and low <= v <= high, f"{v!r:.80} is no integer from {low} to {high}")
        return v

    return check


size = integer()


def or_null(check):
    return lambda v: None if v is None else check(v)


def matches(pattern, what):
    def check(v):
        need(type(v) is str and re.fullmatch(pattern, v, re.S), f"{v!r:.80} is no {what}")
        return v

    return check


digest = matches("[0-9a-f]{64}", "digest")
ID = "(?!0000000000)[0-9]{10}-[0-9a-f]{8}"
ident = matches(ID, "checkpoint id")


def time(v):
    matches(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z", "time")(v)
    return dt.datetime.strptime(v, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=dt.UTC)


def sequence(i):
    return int(i[:10])


FORBIDDEN = re.compile(
    "[/\\\\\x00-\x1f\x7f-\xa0\xad\u200b-\u200f\u2028-\u202f\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)


def name(v):
    need(some(v)[0] != "." and not FORBIDDEN.search(v), f"{v!r:.80} is no name")
    need(len(urllib.parse.quote(v, safe="")) <= 160, "a name of more than 160 bytes")
    return v


HEX, DEC = "[0-9a-f]{64}", "0|[1-9][0-9]{0,9}"
CODEC = r"raw|msgpack\+zstd|parquet"
ARTIFACT = re.compile(rf"artifacts/([^/]+)/({DEC})/({ID})\.(snapshot|delta)\.({HEX})\.({CODEC})")
PACK = re.compile(rf"artifacts/([^/]+)/packs/({ID})\.({HEX})\.({CODEC})")
SEGMENT = re.compile(rf"manifests/segments/({ID})\.({HEX})\.json\.zst")
CATALOG = re.compile(rf"catalog/({ID})\.({HEX})\.json")


def object_path(v):
    """{path, id, digest, codec}, and partition and kind of an artifact (None of a pack)."""
    a, p = ARTIFACT.fullmatch(text(v)), PACK.fullmatch(v)
    need(a or p, f"{v!r:.200} is the path of no artifact or pack")
    op, partition, i, kind, d, codec = a.groups() if a else (p[1], None, p[2], None, p[3], p[4])
    decoded = urllib.parse.unquote(op, errors="strict")
    need(urllib.parse.quote(name(decoded), safe="") == op, f"{op!r} is encoded in another way")
    need(partition is None or int(partition) < 2**31, "a partition above 2147483647")
    return {
        "path": v,
        "id": i,
        "digest": d,
        "codec": codec,
        "kind": kind,
        "partition": None if partition is None else int(partition),
    }


def version(o):
    v = get(obj(o), "format_version", integer(-MAX - 1))
    need(v <= 1, f"format_version {v} is newer than 1")
    need(v == 1, f"format_version {v}")


# --- bytes -----------------------------------------------------------------------------------------------------------


def fetch(root, path):
    try:
        return (root / path).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as e:
        raise Missing(path) from e


def compare(data, want):
    found = hashlib.sha256(data).hexdigest()
    need(found == want, f"digest {found}, expected {want}")


def length(data, want):
    need(len(data) == want, f"{len(data)} bytes, expected {want}")


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


# --- Values: msgpack -------------------------------------------------------------------------------------------------


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
    out, seen = {}, set()
    for _ in range(n):
        k, i = value(b, i, level + 1, inside)
        v, i = value(b, i, level + 1, inside)
        distinct(seen, k, nan=True)  # a reader may accept equal keys here; this one does not
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


# --- Equal keys ------------------------------------------------------------------------------------------------------


class Moment:
    """A time with a zone: by its clock among zones of one IANA name, else by the moment (the offset of fold 0)."""

    def __init__(self, t):
        self.clock, self.zone = t.replace(tzinfo=None), getattr(t.tzinfo, "key", None)
        self.at = self.clock - dt.datetime(1970, 1, 1) - t.replace(fold=0).utcoffset()

    def __hash__(self):
        return hash(self.at)

    def __eq__(self, other):
        if not isinstance(other, Moment):
            return NotImplemented
        return self.clock == other.clock if self.zone and self.zone == other.zone else self.at == other.at


def is_nan(k):
    return isinstance(k, (float, decimal.Decimal)) and k != k


def canon(k):
    """Something that is equal for equal keys. Refuses what is no key."""
    if isinstance(k, dt.datetime) and k.tzinfo:
        return Moment(k)
    if isinstance(k, tuple):
        return tuple(map(canon, k))
    if isinstance(k, frozenset):
        return frozenset(map(canon, k))
    atoms = (str, bytes, type(None), int, float, decimal.Decimal, dt.date, dt.time, dt.timedelta, uuid.UUID)
    need(
        isinstance(k, atoms) and not (isinstance(k, decimal.Decimal) and k.is_nan()) and not is_nan(k),
        f"{k!r:.80} is no key",
    )
    return k


def distinct(seen, k, nan=False):
    if nan and not (isinstance(k, decimal.Decimal) and k.is_snan()) and is_nan(k):
        return  # Values: NaN is no key, but may be a member of a set or a key of a map; it equals nothing
    c = canon(k)
    need(c not in seen, f"two equal keys {k!r:.80}")
    seen.add(c)


def entries(data, row):
    """Codecs, msgpack+zstd: [(canonical key, key, packed value or None)]"""
    b, i, out, seen = unzstd(data, row["raw"]), 0, [], set()
    while i < len(b):
        keys, i = value(b, i, 0, 0)
        values, i = value(b, i, 0, 0)
        need(type(keys) is list and type(values) is list and len(keys) == len(values), "no pair of equal arrays")
        for k, v in zip(keys, values, strict=True):
            distinct(seen, k)
            need(type(v) is bytes or (v is None and row["kind"] == "delta"), f"the value {v!r:.80}")
            out.append((canon(k), k, v))
    need(len(out) == row["records"], f"{len(out)} records, expected {row['records']}")
    return out


# --- The pointer -----------------------------------------------------------------------------------------------------


def reference(v):
    return {"id": get(obj(v), "id", ident), "digest": get(v, "digest", digest)}


def catalog_reference(v):
    m = CATALOG.fullmatch(get(obj(v), "path", text))
    need(m and get(v, "digest", digest) == m[2], f"{v!r:.200} is no path and digest of a catalog")
    return {"path": v["path"], "id": m[1], "digest": m[2]}


def read_pointer(data):
    need(len(data) <= 1 << 20, "more than 1 MiB")
    o = obj(parse(data))
    version(o)  # Restore 2: version, digest, fields
    before, mark, after = data.rpartition(b',"digest":"')
    need(mark and re.fullmatch(b'[0-9a-f]{64}"}', after), "the digest is not at the end")
    compare(before, after[:64].decode())
    need(get(o, "digest", digest) == after[:64].decode(), "another digest")
    writer = get(o, "writer", obj)
    get(writer, "epoch", integer(1)), get(writer, "instance", some), get(o, "nonce", some)
    committed, prepared = get(o, "committed", or_null(reference)), get(o, "prepared", or_null(reference))
    last = sequence(committed["id"]) if committed else 0
    need(not prepared or sequence(prepared["id"]) == last + 1, "the prepared sequence is not the next one")
    boundary = get(o, "boundary", integer(1, max(last, 1)))
    for r in get(o, "retired", array):
        get(obj(r), "boundary", integer(1, boundary))
        get(r, "catalog", or_null(catalog_reference)), get(r, "at", time)
    return {
        "committed": committed,
        "prepared": prepared,
        "boundary": boundary,
        "catalog": get(o, "catalog", or_null(catalog_reference)),
    }


# --- Catalogs --------------------------------------------------------------------------------------------------------


def read_catalog(data, ref, checkpoints):
    compare(data, ref["digest"])
    o = parse(data)
    version(o)
    need(get(o, "id", ident) == ref["id"], "another id than in the path")
    savepoints, digests, bare = {}, {}, set()
    for e in get(o, "entries", array):
        r = reference(e)
        created, n = get(e, "created", time), get(e, "name", or_null(name))
        get(e, "nonce", some)
        need(digests.setdefault(r["id"], r["digest"]) == r["digest"], f"{r['id']} with two digests")
        if n is None:
            need(r["id"] not in bare, f"{r['id']} twice without a name")
            bare.add(r["id"])
        else:
            need(n not in savepoints, f"{n!r} twice")
            savepoints[n] = r | {"created": created}
    need(digests, "no entries")
    need(ref["id"] not in digests.keys() | checkpoints, "a checkpoint has the id of the catalog")
    return savepoints


# --- Manifests -------------------------------------------------------------------------------------------------------


def read_objects(rows, codec, upto):
    out = []
    for v in array(rows):
        need(type(v) is list and len(v) in (2, 4), f"{v!r:.200} is no row of objects")
        o = object_path(v[0])
        o["size"] = size(v[1])
        need(o["codec"] == codec, f"{v[0]}: not {codec}")
        need(sequence(o["id"]) <= upto, f"{v[0]}: a later sequence than {upto}")
        o["tail"] = (integer(1, o["size"])(v[2]), digest(v[3])) if len(v) == 4 else None
        out.append(o)
    need(len({o["path"] for o in out}) == len(out), "an object twice")
    return out


def read_row(v, objects, partition, codec, used):
    need(type(v) is list and len(v) in (3, 7), f"{v!r:.200} is no row")
    index = integer(0, len(objects) - 1)(v[0])
    used.add(index)
    o = objects[index]
    row = {"object": o, "raw": size(v[1]), "records": size(v[2])}
    if len(v) == 3:
        need(o["partition"] == partition, f"{o['path']}: not an object of partition {partition}")
        row |= {"kind": o["kind"], "offset": 0, "length": o["size"], "digest": o["digest"]}
    else:
        need(o["kind"] is None, f"{o['path']}: not a pack")
        need(v[3] in ("snapshot", "delta"), f"the kind {v[3]!r:.80}")
        offset = integer(0, o["size"])(v[4])
        n = integer(0, o["size"] - offset)(v[5])
        d = o["digest"] if v[6] is None else digest(v[6])
        need(d != o["digest"] or n == o["size"], "the pack's digest, but not all of the pack")
        row |= {"kind": v[3], "offset": offset, "length": n, "digest": d}
    if codec == "raw":
        need(row["raw"] == row["length"] and row["records"] == 1, "raw size or records of a raw artifact")
    if codec == "parquet" and row["kind"] == "delta":  # Tables
        need(len(v) == 7 and row["digest"] == o["digest"], "a delta of a table that is not all of a pack")
    if codec == "parquet" and row["kind"] == "snapshot" and len(v) == 7:
        need(v[1:6] == [0, 0, "snapshot", 0, 0], "a snapshot of a table in a pack, not empty")
        need(row["digest"] == NOTHING, "an empty snapshot of a table with a digest")
    elif codec == "parquet":
        need(o["size"] > 0, "an empty file")
    return row


def partition_number(v, partitions):
    need(re.fullmatch(DEC, v) and int(v) < partitions, f"the partition {v!r:.80} of {partitions}")
    return int(v)


def check_chain(chain, partition):
    kinds = [r["kind"] for r in chain]
    need(kinds == ["snapshot"] + ["delta"] * (len(kinds) - 1), f"chain {partition}: {kinds}")


def check_used(used, objects):
    need(len(used) == len(objects), f"objects in no row: {sorted(set(range(len(objects))) - used)}")


def read_segments(root, rows, op, codec, partitions, upto):
    need(array(rows), "no segments")
    chains, paths = {}, set()
    for v in rows:
        need(type(v) is list and len(v) == 4, f"{v!r:.200} is no row of segments")
        m = SEGMENT.fullmatch(text(v[0]))
        need(m and sequence(m[1]) <= upto, f"the segment {v[0]!r:.200}")
        need(v[0] not in paths, f"{v[0]} twice")
        paths.add(v[0])
        stored, raw, count = map(integer(1), v[1:])
        data = fetch(root, v[0])
        with about(v[0]):
            length(data, stored)
            compare(data, m[2])
            o = parse(unzstd(data, raw))
            version(o)
            need(get(o, "operator", text) == op, "a segment of another operator")
            objects, used = read_objects(get(o, "objects", anything), codec, sequence(m[1])), set()
            patches = get(o, "patches", obj)
            need(len(patches) == count, f"{len(patches)} patches, expected {count}")
            for key, patch in patches.items():
                p = partition_number(key, partitions)
                need(type(patch) is list and len(patch) == 2, f"{patch!r:.200} is no patch")
                below = chains.pop(p, [])
                keep = integer(0, len(below))(patch[0])
                chain = below[:keep] + [read_row(r, objects, p, codec, used) for r in array(patch[1])]
                if chain:
                    check_chain(chain, p)
                    chains[p] = chain
            check_used(used, objects)
    return chains


def read_operator(root, op, o, upto):
    partitions, partitioner = get(obj(o), "partitions", integer(0, 2**31)), get(o, "partitioner", text)
    codec, schema = get(o, "codec", text), get(o, "schema", anything)
    need(codec in CODECS, f"the codec {codec!r:.80}")
    if codec == "parquet":
        need(partitioner == "spark-murmur3-1", f"a table with the partitioner {partitioner!r:.80}")
        integer(1, 2**31 - 1)(partitions)
    columns = read_schema(schema) if codec == "parquet" else None
    if "segments" in o:
        need("objects" not in o and "chains" not in o, "segments beside chains")
        chains = read_segments(root, o["segments"], op, codec, partitions, upto)
    else:
        objects, chains, used = read_objects(get(o, "objects", anything), codec, upto), {}, set()
        for key, rows in get(o, "chains", obj).items():
            p = partition_number(key, partitions)
            need(array(rows), f"chain {p} has no rows")
            chains[p] = [read_row(r, objects, p, codec, used) for r in rows]
            check_chain(chains[p], p)
        check_used(used, objects)
    return {
        "partitions": partitions,
        "codec": codec,
        "schema": schema,
        "columns": columns,
        "chains": dict(sorted(chains.items())),
    }


def check_job(j):
    get(obj(j), "query_id", text), get(j, "run_id", text), get(j, "batch_id", size), get(j, "driver", text, absent=True)
    spark = get(j, "spark", obj, absent=True)
    if spark is None:
        return
    get(spark, "location", text), get(spark, "offsets", matches("v[0-9]+\n.*", "offsets"))
    for t in get(spark, "before", array):
        text(t)
    lists = get(spark, "lists", obj, absent=True)
    need(lists is None or lists, "lists that are empty")
    for k, t in (lists or {}).items():
        matches("[A-Za-z0-9_]+/[0-9]{1,18}", "source and number")(k), text(t)


def read_manifest(root, data, ref):
    compare(data, ref["digest"])
    o = parse(data)
    version(o)
    upto = sequence(ref["id"])
    need(get(o, "id", ident) == ref["id"], "another id than in the path")
    need(get(o, "sequence", size) == upto, "another sequence than in the id")
    parent = get(o, "parent", or_null(reference))
    need(not parent or sequence(parent["id"]) < upto, "a parent that is not before it")
    get(o, "job", or_null(check_job))
    cost = get(o, "cost", obj, absent=True)
    if cost is not None:
        for f in ("requests", "objects", "bytes", "elapsed_us", "blocked_us"):
            get(cost, f, size)
    out = {
        "epoch": get(o, "epoch", or_null(integer(-MAX - 1))),
        "created": get(o, "created", or_null(time)),
        "positions": get(o, "positions", obj),
        "watermark": get(o, "watermark", anything),
        "properties": get(o, "properties", obj),
        "operators": {},
    }
    for op, v in get(o, "operators", obj).items():
        with about(f"operator {op!r:.200}"):
            out["operators"][name(op)] = read_operator(root, op, v, upto)
    return out


# --- Tables: the schema ----------------------------------------------------------------------------------------------

INTS = {"byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64()}
DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
ATOMS = INTS | {
    "boolean": pa.bool_(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
FIELDS = ["day", "hour", "minute", "second"]
INTERVALS = {"interval " + (a if a == b else f"{a} to {b}") for i, a in enumerate(FIELDS) for b in FIELDS[i:]}


def arrow(t, nested=False):
    """The Arrow type, in the form of normal(), of a type in the JSON of Spark."""
    if type(t) is str:
        m = re.fullmatch(r"decimal\(([1-9][0-9]?),(0|[1-9][0-9]?)\)", t)
        if m:
            need(int(m[2]) <= int(m[1]) <= 38, f"the type {t}")
            return pa.decimal128(int(m[1]), int(m[2]))
        if t in INTERVALS:
            return pa.duration("us")
        if t == "variant":
            need(not nested, "a variant inside another type")
            return "struct", ("value", pa.binary()), ("metadata", pa.binary())
        need(t in ATOMS, f"the type {t!r:.80}")
        return ATOMS[t]
    kind = get(obj(t), "type", text)
    if kind == "array":
        return "list", arrow(get(t, "elementType", anything), True)
    if kind == "map":
        return "map", arrow(get(t, "keyType", anything), True), arrow(get(t, "valueType", anything), True)
    need(kind == "struct" and get(t, "fields", array), f"the type {t!r:.80}")
    fields = [(get(obj(f), "name", text), arrow(get(f, "type", anything), True)) for f in t["fields"]]
    need(len(dict(fields)) == len(fields), "two fields of a struct with one name")
    return "struct", *fields


def normal(t):
    if pa.types.is_large_string(t):
        return pa.string()
    if pa.types.is_large_binary(t):
        return pa.binary()
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        return "list", normal(t.value_type)
    if pa.types.is_map(t):
        return "map", normal(t.key_type), normal(t.item_type)
    if pa.types.is_struct(t):
        return "struct", *((f.name, normal(f.type)) for f in t)
    return t


def read_schema(s):
    out, names = [], set()
    for c in get(obj(s), "columns", array):
        col = {
            "id": get(obj(c), "id", integer(1, 2**31 - 1)),
            "name": get(c, "name", text),
            "role": get(c, "role", text),
            "type": get(c, "type", anything),
            "arrow": get(c, "type", arrow),
        }
        metadata = get(c, "metadata", obj, absent=True) or {}
        t = col["arrow"]
        need(col["role"] in ("key", "last", "sum", "min", "max"), f"the role {col['role']!r:.80}")
        if col["role"] in ("key", "min", "max"):
            need(isinstance(t, pa.DataType) and "__COLLATIONS" not in metadata, f"{col['role']} of {c['type']!r:.80}")
        if col["role"] == "sum":
            need(
                t in DIGITS or t in (pa.float32(), pa.float64()) or isinstance(t, pa.Decimal128Type),
                f"a sum of {c['type']!r:.80}",
            )
        small = col["name"].lower()
        need(small not in ("__partition", "__change", "__kept") and small not in names, f"the name {small!r:.80}")
        names.add(small)
        need(col["role"] != "key" or all(k["role"] == "key" for k in out), "a key behind another column")
        out.append(col)
    need(out and out[0]["role"] == "key", "no key")
    ids = [c["id"] for c in out]
    need(
        len(set(ids)) == len(ids) and max(ids) < get(s, "next_id", integer(0, 2**31)), "ids twice, or not below next_id"
    )
    return out


# --- Tables: files ---------------------------------------------------------------------------------------------------


def widen(found, col):
    """A function that makes a value of the type in the file one of the column."""
    f, t = normal(found), col["arrow"]
    if f == t:
        return lambda v: v
    if (f in DIGITS and t in DIGITS and DIGITS[f] < DIGITS[t]) or (f == pa.float32() and t == pa.float64()):
        return lambda v: v
    if isinstance(t, pa.Decimal128Type):
        holds = t.precision - t.scale
        if (f in DIGITS and DIGITS[f] <= holds) or (
            isinstance(f, pa.Decimal128Type) and f.scale <= t.scale and f.precision - f.scale <= holds
        ):
            one = decimal.Decimal((0, (1,), -t.scale))
            return lambda v: None if v is None else decimal.Decimal(v).quantize(one, context=EXACT)
    raise Refused(f"column {col['id']}: {found}, expected {col['type']!r:.80}")


def parquet(data, tail, columns, delta):
    """Rows of a file: [(key, {id: value}, partition, change, kept ids)]; the last three only of deltas."""
    f = pq.ParquetFile(io.BytesIO(data))
    groups = parse((f.metadata.metadata or {}).get(b"checkpointer.row_groups", b""))
    need(type(groups) is list and len(groups) == f.metadata.num_row_groups, "not one digest for each row group")
    at = 4
    for i, g in enumerate(groups):
        need(type(g) is list and len(g) == 3 and size(g[0]) == at, f"row group {i}: {g!r:.80}")
        at += integer(0, len(data) - at)(g[1])
        compare(data[g[0] : at], digest(g[2]))
        need(f.metadata.row_group(i).num_rows <= 1048576, f"row group {i} has too many rows")
    need(not tail or tail[0] == len(data) - at, "the tail is not what follows the last row group")
    table, by_id, by_name = f.read(), {}, {}
    need(len(set(table.column_names)) == table.num_columns, "two columns of one name")
    for i, field in enumerate(table.schema):
        n = int((field.metadata or {}).get(b"PARQUET:field_id", -1))
        into, k = (by_id, n) if n >= 0 else (by_name, field.name)
        need(k not in into, f"column {k} twice")
        into[k] = table.column(i)
    values = {}
    for c in columns:
        column = by_id.get(c["id"])
        need(column is not None or c["role"] != "key", f"no column {c['id']}, which is part of the key")
        values[c["id"]] = (
            [None] * table.num_rows if column is None else list(map(widen(column.type, c), column.to_pylist()))
        )
    keys = [c["id"] for c in columns if c["role"] == "key"]
    rows = [{c: v[i] for c, v in values.items()} for i in range(table.num_rows)]
    out = [(tuple(order(r[k]) for k in keys), r) for r in rows]
    if not delta:
        return in_order(out, [()] * len(out))
    special = []
    for n, t in (("__partition", pa.int32()), ("__change", pa.int8()), ("__kept", pa.string())):
        if n == "__kept" and n not in by_name:
            special.append([None] * len(rows))
            continue
        need(n in by_name and normal(by_name[n].type) == t, f"no column {n} of {t}")
        special.append(by_name[n].to_pylist())
        need(n == "__kept" or None not in special[-1], f"nulls in {n}")
    in_order(out, [(p,) for p in special[0]])
    out = [(k, r, p, change, kept_ids(kept)) for (k, r), p, change, kept in zip(out, *special, strict=True)]
    last = {c["id"] for c in columns if c["role"] == "last"}
    for _, r, _, change, kept in out:
        need(change in (0, 1, 2), f"__change {change}")
        need(change == 0 or not kept, "a row keeps columns, but does not merge")
        need(all(r[c] is None for c in kept & last), "a kept column that is not null")
    return out


def kept_ids(s):
    if s is None:
        return set()
    need(re.fullmatch("[1-9][0-9]*(,[1-9][0-9]*)*", s), f"__kept {s!r:.80}")
    ids = [int(i) for i in s.split(",")]
    need(ids == sorted(set(ids)), f"__kept {s!r:.80}")
    return set(ids)


def in_order(rows, partitions):
    """The rows, each above the one before: by partition, then by key, with nulls behind all else."""
    places = [(*p, *((v is None, v) for v in r[0])) for p, r in zip(partitions, rows, strict=True)]
    for a, b in itertools.pairwise(places):
        x, y = next(((x, y) for x, y in zip(a, b, strict=True) if x != y), (None, None))
        need(a != b and x < y, "rows that are not in order, each key once")
    return rows


# --- Tables: merging -------------------------------------------------------------------------------------------------


def order(v):
    """By what values are ordered, and equal as keys: NaN above numbers, text by its bytes."""
    if isinstance(v, float):
        return (True, 0.0) if v != v else (False, v)
    return v.encode("utf-8") if isinstance(v, str) else v


def merge_values(role, a, b):
    if role == "last":
        return b
    if a is None or b is None:
        return a if b is None else b
    if role == "sum":
        return EXACT.add(a, b) if isinstance(a, decimal.Decimal) else a + b
    return (min if role == "min" else max)(a, b, key=order)


def final(v, col):
    t = col["arrow"]
    if col["role"] != "sum" or v is None:
        return v
    if t in DIGITS:
        need(-(1 << t.bit_width - 1) <= v < 1 << t.bit_width - 1, f"a sum of {v} in {col['type']}")
    elif isinstance(t, pa.Decimal128Type):
        need(abs(v.scaleb(t.scale, EXACT)) < 10**t.precision, f"a sum of {v} in {col['type']}")
    elif t == pa.float32():
        return pa.scalar(v, pa.float64()).cast(pa.float32()).as_py()
    return v


def read_table(root, op, load):
    columns, files, content = op["columns"], {}, []

    def rows_of(row, delta):
        path, data = row["object"]["path"], load(row)  # each row has a digest of its own
        if path not in files:
            with about(path):
                files[path] = parquet(data, row["object"]["tail"], columns, delta)
        return files[path]

    for partition, chain in op["chains"].items():
        state = {}
        for row in chain:
            with about(f"{row['object']['path']}, partition {partition}"):
                if row["kind"] == "snapshot":
                    rows = rows_of(row, False) if row["length"] else load(row) or []
                    state = dict(rows)
                else:
                    rows = [r for r in rows_of(row, True) if r[2] == partition]
                need(len(rows) == row["records"], f"{len(rows)} records, expected {row['records']}")
                for key, new, _, change, kept in rows if row["kind"] == "delta" else ():
                    below = state.pop(key, None)
                    if change == 1 or (change == 0 and below is None):
                        state[key] = new
                    elif change == 0:
                        state[key] = {
                            c["id"]: below[c["id"]]
                            if c["role"] == "key" or (c["role"] == "last" and c["id"] in kept)
                            else merge_values(c["role"], below[c["id"]], new[c["id"]])
                            for c in columns
                        }
        content += [{c["name"]: final(r[c["id"]], c) for c in columns} for r in state.values()]
    return {"kind": "table", "schema": op["schema"], "content": content}


# --- Restore ---------------------------------------------------------------------------------------------------------


def read_content(root, op):
    objects = {}

    def load(row):
        """Codecs: size, digest. The whole object is read; its own digest is compared where it is the artifact's."""
        o = row["object"]
        if not row["length"]:
            data = b""  # Restore 5: needs no request
        else:
            if o["path"] not in objects:
                objects[o["path"]] = fetch(root, o["path"])
            data = objects[o["path"]]
        with about(o["path"]):
            if row["length"]:
                length(data, o["size"])
                data = data[row["offset"] : row["offset"] + row["length"]]
            compare(data, row["digest"])
            if o["tail"] and row["length"]:
                compare(objects[o["path"]][-o["tail"][0] :], o["tail"][1])
        return data

    if op["codec"] == "parquet":
        return read_table(root, op, load)
    if op["codec"] == "raw":
        return {"kind": "raw", "content": {p: [load(r) for r in chain] for p, chain in op["chains"].items()}}
    whole_map = {}
    for p, chain in op["chains"].items():
        state = {}
        for row in chain:
            data = load(row)
            with about(f"{row['object']['path']}, partition {p}"):
                for c, k, v in entries(data, row):
                    state.pop(c, None)  # key and value are replaced
                    if v is not None:
                        state[c] = k, v
        for c, (k, v) in state.items():
            need(c not in whole_map, f"equal keys in two partitions: {k!r:.80} and {whole_map.get(c, '')!r:.80}")
            with about(f"the value of {k!r:.80}"):
                whole_map[c] = k, unpack(v)
    return {"kind": "map", "content": list(whole_map.values())}


def read_once(root, data):
    with about("_latest"):
        pointer = read_pointer(data)
    ref, out = (
        pointer["committed"],
        {
            "id": None,
            "epoch": None,
            "created": None,
            "positions": {},
            "watermark": None,
            "properties": {},
            "operators": {},
            "prepared": pointer["prepared"],
            "savepoints": {},
        },
    )
    if ref:
        path = f"manifests/{ref['id']}.json"
        data = fetch(root, path)
        with about(path):
            manifest = read_manifest(root, data, ref)
        out |= manifest | {"id": ref["id"], "operators": {}}
        for op, o in manifest["operators"].items():
            with about(f"operator {op!r:.200}"):
                out["operators"][op] = read_content(root, o) | {"partitions": o["partitions"]}
    if pointer["catalog"]:
        path = pointer["catalog"]["path"]
        data = fetch(root, path)
        with about(path):
            out["savepoints"] = read_catalog(
                data, pointer["catalog"], {r["id"] for r in (ref, pointer["prepared"]) if r}
            )
    return out


DEPTH = 250_000  # Values: 33 extensions of 1,024 levels


def read(root):
    """All that the committed checkpoint of a store holds, its savepoints, and what is prepared."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(DEPTH)
    try:
        return read_again_and_again(pathlib.Path(root))
    finally:
        sys.setrecursionlimit(before)


def read_again_and_again(root):
    while True:
        try:
            data = fetch(root, "_latest")
        except Missing:
            found = [p.name for p in (root / "manifests").glob("*.json") if re.fullmatch(ID + r"\.json", p.name)]
            if any(sequence(n) > 1 for n in found):
                raise Missing("_latest: the store has lost its pointer") from None
            return {
                "id": None,
                "epoch": None,
                "created": None,
                "positions": {},
                "watermark": None,
                "properties": {},
                "operators": {},
                "prepared": None,
                "savepoints": {},
            }
        try:
            return read_once(root, data)
        except Missing:  # Restore 6
            if fetch(root, "_latest") == data:
                raise
