"""Objects: JSON, names, paths, sizes and digests."""

import hashlib
import json
import re
import urllib.parse

from tests.judge.reader.checks import ID, MAX, Missing, Refused, get, integer, need, obj, some, text


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
