"""Stores of which one thing is changed, and everything above it digested again: that thing alone can be wrong.

A change is drawn from a seed. Its kind says what was changed and how; a test names kinds by it.
"""

import copy
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256 as _sha256
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from pyspark_checkpointer.manifests import msgpack_values
from tests.judge import reader, stores

SPEC = Path(__file__).parents[2] / "manifests" / "SPEC.md"


def sha256(data: bytes) -> str:
    return _sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Hostile:
    kind: str
    files: dict[str, bytes]
    """Those that are new or other ones."""


def files_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def hostile(files: dict[str, bytes], random: Random) -> Hostile:
    """A store with one change."""
    forged = Forgery(files, random)
    kind = forged.change()
    forged.seal()
    changed = {path: data for path, data in forged.files.items() if files.get(path) != data}
    return Hostile(kind, changed)


# ---- JSON ------------------------------------------------------------------------------------------------------------

DIGEST, ID = "ab" * 32, "0000000001-00000000"
AT = "2024-01-02T03:04:05.000678Z"
ANY = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**31 + 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 1.0, 1.5),
    *("", "x", "0", "01", " ", [], {}, [[]], [0], [None], {"": None}, {"a": [1]}, DIGEST, ID, AT, [0, []], [1, []]),
    *([0, 1, 1], [0, 0, 0, "snapshot", 0, 0, None], [0, 0, 0, "snapshot", 0, 0, sha256(b"")]),
)
RAW = (
    *("NaN", "-Infinity", "1e999", "-0", "0e0", "1e1", "1.0", "01", "+1", "1" + "0" * 310, "-1e-999", "2e308", "tru"),
    *(
        '"\\ud800"',
        '"\\ud83d\\ude00"',
        '"\\u0000"',
        '"\\/"',
        '"\n"',
        '"\\x"',
        '"\x7f"',
        "'a'",
        "[1,]",
        "[1 ]",
        '{"a": 1}',
    ),
    *('{"a":1,"a":1}', '{"a":1,"\\u0061":2}', "[" * 250 + "]" * 250, "[" * 251 + "]" * 251, "[" * 400 + "]" * 400),
)
"""Tokens of JSON that a writer would not write."""

NAMED: dict[str, tuple[Any, ...]] = {
    "id": (
        "0000000000-00000000",
        "0000000001-0000000G",
        "0000000001-ABCDEF00",
        "9999999999-00000000",
        "1-0",
        ID + "\n",
    ),
    "digest": (DIGEST.upper(), DIGEST[:-1], DIGEST + "0", DIGEST + "\n", "g" * 64, "\u0660" * 64),
    "created": (
        *("2024-01-02T03:04:05Z", "2024-01-02T03:04:05.000678+00:00", "2024-02-30T03:04:05.000678Z"),
        *("0000-01-02T03:04:05.000678Z", "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z", AT + "\n"),
        *("2024-01-02T24:00:00.000000Z", "2024-01-02T03:04:60.000000Z", "2024-01-02 03:04:05.000678Z", AT.lower()),
        "\uff12024-01-02T03:04:05.000678Z",
    ),
    "name": (
        *("", ".a", "a/b", "a\\b", "a\x00", "a\x1f", "a\x7f", "a\xa0", "a\xa1", "a\xad", "\u200b", "\u2010", "\u2028"),
        *(
            "\u2060",
            "\u2070",
            "\ufeff",
            "\ufff9",
            "\ufffc",
            "\U000e0001",
            "é" * 26,
            "é" * 27,
            "a" * 160,
            "a" * 161,
            "a.",
        ),
        *("e\u0301", "\u3000", "\u061c", "\ue000", "~", " ", "__Change", "__change", "K", "n", "N", "İ", "ß"),
    ),
    "codec": ("raw", "msgpack+zstd", "parquet", "RAW", "zstd", ""),
    "partitioner": ("explicit", "crc32-key-1", "spark-murmur3-1", "other", "", "\u2028"),
    "kind": ("snapshot", "delta", "Delta", "patch"),
    "role": ("key", "last", "sum", "min", "max", "Sum", "avg", ""),
    "type": (
        *("boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date", "timestamp"),
        *(
            "timestamp_ntz",
            "decimal(38,38)",
            "decimal(39,0)",
            "decimal(5,6)",
            "decimal(0,0)",
            "decimal(10, 2)",
            "decimal",
        ),
        *("decimal(10,-2)", "decimal(010,2)", "interval day to second", "interval day", "interval hour to second"),
        *("interval second to day", "interval year to month", "interval", "void", "null", "int", "bigint", "variant"),
        *("char(3)", "char(0)", "varchar(5)", "char", "time(6)", "string collate UNICODE_CI", "Long", " long"),
        {"type": "struct", "fields": []},
        {"type": "struct", "fields": [{"name": "a", "type": "long"}]},
        {"type": "struct", "fields": [{"name": "a", "type": "long"}, {"name": "a", "type": "long"}]},
        {"type": "struct", "fields": [{"name": "a", "type": "long"}, {"name": "A", "type": "long"}]},
        {"type": "array", "elementType": "long"},
        {"type": "array", "elementType": "variant", "containsNull": True},
        {"type": "map", "keyType": "string", "valueType": "long"},
        {"type": "udt", "class": "x"},
    ),
    "partitions": (0, 1, 2, 3, 2**31 - 1, 2**31, 2**31 + 1, 600),
    "metadata": ({"__COLLATIONS": {"x": "icu.UNICODE_CI"}}, {"other": 1}, {"__COLLATIONS": None}, None, {}),
    "boundary": (1, 2, 3, 4, 5, 6, 0),
    "offsets": ("v1\n", "v1", "1\n", "v\nx", "v\u0661\n", "v12\n\n", "V1\nx", " v1\nx"),
    "lists": ({"a/1": "x"}, {"a/": "x"}, {"/1": "x"}, {"a-b/1": ""}, {"é/1": "x"}, {"a/" + "1" * 19: "x"}, {"a/1": 1}),
    "driver": ("", None),
    "epoch": (-(2**63), -(2**63) - 1, 2**63 - 1, 2**63, None),
    "next_id": (1, 2, 3, 10**20, 2**31, 2**31 + 1),
    "format_version": (0, 1, 2, -1, True, "1", 1.0, 10**30),
}
"""What a field of this name is exchanged for now and then."""


class Text:
    """JSON with tokens that no dump makes."""

    def __init__(self) -> None:
        self._tokens: dict[str, str] = {}

    def token(self, raw: str) -> str:
        name = f"@@{len(self._tokens)}@@"
        self._tokens[name] = raw
        return name

    def dump(self, value: Any) -> bytes:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        for name, raw in self._tokens.items():
            text = text.replace(f'"{name}"', raw)
        return text.encode("utf-8", "surrogatepass")


def places(value: Any, random: Random) -> tuple[Any, Any, tuple[Any, ...]]:
    """A place in a value: what it stands in, its key there, and the way to it."""
    way: list[Any] = []
    parent = key = None
    while value and isinstance(value, dict | list) and (not way or random.random() < 0.85):
        parent, key = value, random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value = value[key]
        way.append(key)
    return parent, key, tuple(way)


def way_of(way: tuple[Any, ...]) -> str:
    return ".".join("*" if isinstance(part, int) or re.fullmatch("[0-9]+", part) else part for part in way)


def change_json(doc: Any, text: Text, random: Random) -> tuple[str, tuple[Any, ...]]:
    """Change one thing in place. Return what was done, and where."""
    parent, key, way = places(doc, random)
    old = parent[key]
    field = next((part for part in reversed(way) if isinstance(part, str) and not part.isdigit()), "")
    if len(way) > 1 and way[-2] in ("retired", "entries") and isinstance(key, int) and random.random() < 0.5:
        parent, key, way, field = parent[key], "created", (*way, "created"), "created"
    action = random.choice(["any", "raw", "named", "named", "near", "near", "drop", "double", "add", "order", "copy"])
    if action == "named":
        named = NAMED.get({"at": "created", "watermark": "created"}.get(field, field))
        if named is None or isinstance(key, int):
            action = "near"
        else:
            parent[key] = copy.deepcopy(random.choice(named))
            return f"{field}={parent[key]!r:.60}", way
    if action == "raw":
        raw = random.choice(RAW)
        parent[key] = text.token(raw)
        return f"raw {raw[:20]}", way
    if action == "drop":
        del parent[key]
        return "drop", way
    if action == "double":
        if isinstance(parent, dict):
            parent[text.token(json.dumps(key, ensure_ascii=False))] = copy.deepcopy(old)
        else:
            parent.insert(key, copy.deepcopy(old))
        return "double", way
    if action == "add":
        target = old if isinstance(old, dict | list) else parent
        if isinstance(target, dict):
            target[random.choice(["unknown", "Id", "digest ", "", "x\u2028", "segments", "objects"])] = random.choice(
                ANY
            )
            return "add field", (way if target is old else way[:-1])
        target.append(random.choice(ANY))
        return "append", (way if target is old else way[:-1])
    if action == "order":
        target = old if isinstance(old, dict | list) else parent
        items = list(target.items()) if isinstance(target, dict) else list(target)
        random.shuffle(items)
        if isinstance(target, dict):
            target.clear()
            target.update(items)
        else:
            target[:] = items
        return "order", (way if target is old else way[:-1])
    if action == "copy":
        other, other_key, _ = places(doc, random)
        parent[key] = copy.deepcopy(other[other_key])
        return "copy", way
    if action == "near" and (isinstance(old, str) or (isinstance(old, int) and not isinstance(old, bool))):
        parent[key], how = near(old, text, random)
        return how, way
    if action == "near" and isinstance(parent, dict) and isinstance(key, str):
        new, _ = near(key, Text(), random)
        items = [(new if name == key else name, value) for name, value in parent.items()]
        parent.clear()
        parent.update(items)
        return "rename", way
    parent[key] = copy.deepcopy(random.choice(ANY))
    return f"any {parent[key]!r:.30}", way


def near(old: Any, text: Text, random: Random) -> tuple[Any, str]:
    if isinstance(old, int):
        way = random.randrange(6)
        token = text.token(random.choice([f"{old}.0", f"{old}e0", f"0{old}", f"-{old}", f"{old}E+0"]))
        return [old + 1, old - 1, old * 2, str(old), token, float(old)][way], f"number {way}"
    at = random.randrange(len(old) + 1)
    found = [
        old[:at] + random.choice(["a", "0", "-", "/", ".", "%", "%20", "é", "\n", "\u200b", "~", "A"]) + old[at:],
        old[: at - 1] + old[at:] if at else old[1:],
        old.upper(),
        old.lower(),
        old[:at] + random.choice("0123456789abcdef") + old[at + 1 :],
        old.replace("snapshot", "\0").replace("delta", "snapshot").replace("\0", "delta"),
        re.sub("raw|msgpack[+]zstd|parquet", lambda m: random.choice(["raw", "parquet", "msgpack+zstd"]), old),
        re.sub("/([0-9]+)/", lambda m: f"/{random.choice(['0', '1', '07', '2147483648', '5'])}/", old),
        re.sub(
            "^artifacts/[^/]+/", lambda m: random.choice(["artifacts/other/", "artifacts/%6F/", "artifacts/~/"]), old
        ),
        re.sub(
            "[0-9]{10}-", lambda m: random.choice(["0000000001-", "0000000009-", "9999999999-", "0000000000-"]), old
        ),
    ]
    ways = [way for way, new in enumerate(found) if new != old]
    way = random.choice(ways)
    return found[way], f"text {way}"


# ---- values ----------------------------------------------------------------------------------------------------------


def _vectors() -> Iterator[bytes]:
    """The bytes of all values of the specification, good and bad."""
    tag = None
    for line in SPEC.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            tag = line[3:]
        elif tag == "text msgpack":
            yield bytes.fromhex(line.rpartition(" → ")[2])
        elif tag in ("text refused values", "text accepted values"):
            yield bytes.fromhex(line.partition(" → ")[0])


def _ext(code: int, data: bytes) -> bytes:
    return b"\xc9" + len(data).to_bytes(4, "big") + bytes([code]) + data


def _inside(levels: int) -> bytes:
    data = b"\xc0"
    for _ in range(levels):
        data = _ext(1, b"\x91" + data)
    return data


_BERLIN, _BUSINGEN = ZoneInfo("Europe/Berlin"), ZoneInfo("Europe/Busingen")
_TIMES = [
    datetime(2024, 10, 27, 2, 30, tzinfo=_BERLIN),
    datetime(2024, 10, 27, 2, 30, tzinfo=_BERLIN, fold=1),
    datetime(2024, 10, 27, 2, 30, tzinfo=_BUSINGEN),
    datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
    datetime(2024, 10, 27, 1, 30, tzinfo=UTC),
    datetime(2024, 3, 31, 2, 30, tzinfo=_BERLIN),
    datetime(2024, 3, 31, 3, 30, tzinfo=_BERLIN),
    datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
    datetime(2024, 1, 1, 1, fold=1),
    datetime(2024, 1, 1, 1),
    datetime(1, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo")),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=ZoneInfo("America/New_York")),
]
_EQUAL = [1, 1.0, True, Decimal("1.00"), 0.0, -0.0, 0, False, Decimal("-0"), 0.5, Decimal("0.5"), 2**53, 2.0**53]
_EQUAL += [
    (1,),
    (True,),
    frozenset({1}),
    frozenset({1.0}),
    10**30,
    Decimal("1E+30"),
    1e30,
    float("inf"),
    Decimal("Infinity"),
]
_RAW = [
    *(_inside(32), _inside(33), b"\x91" * 1024 + b"\xc0", b"\x91" * 1025 + b"\xc0", b"\x82\x01\xc0\x01\xc0"),
    *(
        b"\x82\x01\xc0\xc3\xc0",
        b"\x81\xcb\x7f\xf8\0\0\0\0\0\0\xc0",
        b"\x81\x90\xc0",
        b"\xc1",
        b"\xc6\0\0\0\1a",
        b"\xdb\0\0\0\1a",
    ),
    *(
        _ext(3, b"NaN"),
        _ext(3, b"-NaN12"),
        _ext(3, b"NaN012"),
        _ext(3, b"sNaN"),
        _ext(3, b"-Infinity"),
        _ext(3, b"1E+5"),
    ),
    *(_ext(3, b"1.E+5"), _ext(3, b"0E-7"), _ext(3, b"0.000000"), _ext(3, b"1E+999999999999999999"), _ext(3, b"00")),
    *(_ext(3, b"1E+1000000000000000000"), _ext(3, b"1E-1999999999999999997"), _ext(3, b"1E-1999999999999999998")),
    *(
        _ext(2, b""),
        _ext(2, b"\0" * 9),
        _ext(2, b"\1" + b"\0" * 8),
        _ext(2, b"\xfe" + b"\xff" * 8),
        _ext(2, b"\0" + b"\xff" * 8),
    ),
    *(
        _ext(7, b"\x92\xc4\1\1\xc4\1\1"),
        _ext(7, b"\x92\xc4\1\1\xc4\2\xcc\1"),
        _ext(8, b"\x91\xc4\x01\x90"),
        _ext(7, b"\x91\1"),
    ),
    *(_ext(1, b"\x91\xcb\x7f\xf8\0\0\0\0\0\0"), _ext(9, b"0000-01-01"), _ext(9, b"2023-02-29"), _ext(10, b"\0" * 17)),
    *(
        _ext(7, b"\x92" + 2 * b"\xc4\x09\xcb\x7f\xf8\0\0\0\0\0\0"),
        _ext(7, b"\x92" + 2 * (b"\xc4\x09" + _ext(3, b"NaN"))),
    ),
    *(
        _ext(5, b"\x92\xa823:59:60\0"),
        _ext(5, b"\x92\xa823:59:59\xc3"),
        _ext(5, b"\x92\xa823:59:59\xcc\1"),
        b"\xca\x7f\xc0\0\0",
    ),
    _ext(7, b"\x92\xc4\1\xc0" + b"\xc4\x0a" + _ext(3, b"sNaN")),
    _ext(7, b"\x91\xc4\x0f" + _ext(1, b"\x91\xcb\x7f\xf8\0\0\0\0\0\0")),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb("zone:Europe/Berlin ")),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb("zone:../Berlin")),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb("zone:europe/berlin")),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb("zone:UTC")),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb([0, 0, 0, "x"])),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb([-1, 1, 0])),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb([-1, 0, 0])),
    _ext(4, b"\x93" + msgpack.packb("2024-01-02T03:04:05") + b"\0" + msgpack.packb([0, 3600, 0, 1])),
    _ext(4, b"\x93" + msgpack.packb("0001-01-01T00:00:00") + b"\0" + msgpack.packb([0, 3600, 0])),
]
KEYS = [msgpack_values.pack(key) for key in [*_TIMES, *_EQUAL, *stores.KEYS]]
POOL = [*_vectors(), *_RAW, *KEYS]


# ---- a store ---------------------------------------------------------------------------------------------------------

Rows = list[list[Any]]


class Forgery:
    """A store that is taken apart, changed, and put together again."""

    def __init__(self, files: dict[str, bytes], random: Random) -> None:
        self.files, self.random = dict(files), random
        self.text = Text()
        self.latest: Any = json.loads(files["_latest"])
        self.latest.pop("digest")
        self._pointer_bytes: bytes | None = None
        ref = self.latest["committed"]
        self.manifest: Any = json.loads(files[f"manifests/{ref['id']}.json"]) if ref else None
        self.catalog: Any = json.loads(files[self.latest["catalog"]["path"]]) if self.latest["catalog"] else None
        self.segments: dict[str, list[Any]] = {
            name: [json.loads(unzstd(files[row[0]])) for row in operator["segments"]]
            for name, operator in (self.manifest or {"operators": {}})["operators"].items()
            if "segments" in operator
        }
        self._changed: set[str] = set()
        self._spread = ""

    def change(self) -> str:
        makers = [self._pointer]
        if self.catalog:
            makers += [self._catalog]
        if self.manifest:
            makers += [self._manifest] * 4 + [self._rows] * 2
            found = self.operators()
            makers += [self._segment] * 2 if self.segments else []
            makers += [self._records] * 5 + [self._frame] if any(o["codec"] == "msgpack+zstd" for _, o in found) else []
            makers += [self._parquet] * 6 + [self._schema] * 2 if any(o["codec"] == "parquet" for _, o in found) else []
        return self.random.choice(makers)()

    def operators(self) -> list[tuple[str, Any]]:
        return list(self.manifest["operators"].items())

    def seal(self) -> None:
        """Digest everything again, from what was changed up to the pointer."""
        dump = self.text.dump
        for name in self._changed & self.segments.keys():
            rows = self.manifest["operators"][name]["segments"]
            for row, doc in zip(rows, self.segments[name], strict=True):
                raw = dump(doc)
                if raw == unzstd(self.files[row[0]]):
                    continue
                data = zstandard.compress(raw)
                path = re.sub("[0-9a-f]{64}", sha256(data), row[0])
                patches = doc.get("patches") if isinstance(doc, dict) else None
                row[:] = [path, len(data), len(raw), len(patches) if isinstance(patches, dict) and patches else row[3]]
                self.files[path] = data
        if "manifest" in self._changed or self._changed & self.segments.keys():
            data = dump(self.manifest)
            self.files[f"manifests/{self.latest['committed']['id']}.json"] = data
            self.latest["committed"]["digest"] = sha256(data)
        if "catalog" in self._changed:
            data = dump(self.catalog)
            path = re.sub("[0-9a-f]{64}", sha256(data), self.latest["catalog"]["path"])
            self.latest["catalog"] = {"path": path, "digest": sha256(data)}
            self.files[path] = data
        body = dump(self.latest)[:-1]
        self.files["_latest"] = self._pointer_bytes or body + b',"digest":"' + sha256(body).encode() + b'"}'

    def _put(self, old: Any, new: Any) -> None:
        """What had the name `old` has the name `new` too, so that the name alone may be wrong."""
        safe = (
            isinstance(new, str) and re.fullmatch(r"[^/\0]{1,200}(/[^/\0]{1,200})*", new) and ".." not in new.split("/")
        )
        if safe and isinstance(old, str) and old in self.files and new != "_latest":
            try:
                new.encode()
            except UnicodeEncodeError:
                return
            if not any(new.startswith(f"{path}/") or path.startswith(f"{new}/") for path in self.files):
                self.files.setdefault(new, self.files[old])

    # ---- JSON --------------------------------------------------------------------------------------------------------

    def _pointer(self) -> str:
        if self.random.random() < 0.2:
            return self._end_of_pointer()
        old = copy.deepcopy(self.latest)
        how, way = change_json(self.latest, self.text, self.random)
        for name in ("committed", "prepared"):
            before, after = old[name], self.latest.get(name)
            if isinstance(before, dict) and isinstance(after, dict):
                self._put(f"manifests/{before['id']}.json", f"manifests/{after.get('id')}.json")
        before, after = old["catalog"], self.latest.get("catalog")
        if isinstance(before, dict) and isinstance(after, dict):
            self._put(before["path"], after.get("path"))
        return f"pointer {way_of(way)}: {how}"

    def _end_of_pointer(self) -> str:
        body = self.text.dump(self.latest)[:-1]
        digest = sha256(body).encode()
        mark = b',"digest":"'
        first = b'{"digest":"' + digest + b'",' + body[1:]
        ends = {
            "upper": body + mark + digest.upper() + b'"}',
            "behind": body + mark + digest + b'"}\n',
            "blank": body + mark + digest + b'" }',
            "a field behind": body + mark + digest + b'","x":1}',
            "first": first + b"}",
            "twice": first + mark + sha256(first).encode() + b'"}',
            "another": body + mark + sha256(body + b" ").encode() + b'"}',
            "short": body + mark + digest[:-1] + b'"}',
            "in a text": (t := body + b',"x":",\\"digest\\":\\""') + mark + sha256(t).encode() + b'"}',
            "a BOM": (t := b"\xef\xbb\xbf" + body) + mark + sha256(t).encode() + b'"}',
            "long": (t := body + b',"x":"' + b"x" * (1 << 20) + b'"') + mark + sha256(t).encode() + b'"}',
            "just not long": (t := body + b',"x":"' + b"x" * ((1 << 20) - len(body) - 84) + b'"')
            + mark
            + sha256(t).encode()
            + b'"}',
            "empty": b"",
            "missing": body + b"}",
        }
        how = self.random.choice(sorted(ends))
        self._pointer_bytes = ends[how]
        if how == "empty":
            self._pointer_bytes = b" "
        return f"pointer digest: {how}"

    def _catalog(self) -> str:
        self._changed.add("catalog")
        how, way = change_json(self.catalog, self.text, self.random)
        return f"catalog {way_of(way)}: {how}"

    def _manifest(self) -> str:
        self._changed.add("manifest")
        old = copy.deepcopy(self.manifest)
        if self.random.random() < 0.6 and self.manifest["operators"]:  # or the fields besides would be seen most
            name, operator = self.random.choice(self.operators())
            how, way = change_json(operator, self.text, self.random)
            self._follow(old["operators"][name], operator, way)
            return f"manifest operators.?.{way_of(way)}: {how}"
        how, way = change_json(self.manifest, self.text, self.random)
        if len(way) > 2 and way[0] == "operators":
            self._follow(old["operators"].get(way[1], {}), self.manifest["operators"].get(way[1], {}), way[2:])
            way = ("operators", "?", *way[2:])
        return f"manifest {way_of(way)}: {how}"

    def _segment(self) -> str:
        name = self.random.choice(sorted(self.segments))
        self._changed |= {name, "manifest"}
        doc = self.random.choice(self.segments[name])
        old = copy.deepcopy(doc)
        how, way = change_json(doc, self.text, self.random)
        self._follow(old, doc, way)
        return f"segment {way_of(way)}: {how}"

    def _follow(self, old: Any, new: Any, way: tuple[Any, ...]) -> None:
        """Where a row names another object, see to it that there is one."""
        if len(way) == 3 and way[0] in ("objects", "segments") and way[2] == 0:
            try:
                self._put(old[way[0]][way[1]][0], new[way[0]][way[1]][0])
            except (LookupError, TypeError):
                return

    def _schema(self) -> str:
        operator = self.random.choice([o for _, o in self.operators() if o["codec"] == "parquet"])
        self._changed.add("manifest")
        how, way = change_json(operator["schema"], self.text, self.random)
        return f"manifest operators.?.schema.{way_of(way)}: {how}"

    # ---- artifacts ---------------------------------------------------------------------------------------------------

    def _documents(self, *codecs: str) -> list[tuple[str, Any, list[tuple[str, Rows]]]]:
        """The operator, what has its `objects`, and each chain or patch there with its partition."""
        found = []
        for name, operator in self.operators():
            if codecs and operator["codec"] not in codecs:
                continue
            if "chains" in operator:
                found.append((name, operator, list(operator["chains"].items())))
            else:
                for doc in self.segments[name]:
                    found.append((name, doc, [(p, rows) for p, (_, rows) in doc["patches"].items()]))
        return [(name, doc, chains) for name, doc, chains in found if any(rows for _, rows in chains)]

    def _chosen(self, *codecs: str) -> tuple[Any, str, Rows, int] | None:
        """A row of an artifact: what has its objects, its partition, its chain, and its index there."""
        documents = self._documents(*codecs)
        if not documents:
            return None
        name, doc, chains = self.random.choice(documents)
        self._changed |= {name, "manifest"}
        self._spread = (
            "of one partition" if self.manifest["operators"][name]["partitions"] == 1 else "of many partitions"
        )
        partition, rows = self.random.choice([(p, rows) for p, rows in chains if rows])
        return doc, partition, rows, self.random.randrange(len(rows))

    def _rows(self) -> str:
        """Change a row as a whole, its digest too."""
        chosen = self._chosen()
        if chosen is None:
            return self._manifest()
        doc, partition, rows, at = chosen
        row = rows[at]
        path, size = doc["objects"][row[0]][:2]
        data = self.files[path]
        how = self.random.choice(
            ["other form", "slice", "twice", "null digest", "whole digest", "digest", "kind", "moved"]
        )
        if how == "other form":
            kind = "delta" if at else "snapshot"
            rows[at] = row[:3] if len(row) == 7 else [*row[:3], kind, 0, size, self.random.choice([None, sha256(data)])]
        elif how == "slice" and len(row) == 7:
            start = self.random.randrange(size + 1)
            end = self.random.randrange(start, size + 1)
            raw = end - start if row[1] == row[5] else row[1]
            rows[at] = [row[0], raw, row[2], row[3], start, end - start, sha256(data[start:end])]
        elif how == "twice":
            rows.insert(at, copy.deepcopy(row))
        elif how in ("null digest", "whole digest") and len(row) == 7:
            row[6] = None if how == "null digest" else sha256(data)
        elif how == "digest" and len(row) == 7:
            row[6] = DIGEST
        elif how == "kind" and len(row) == 7:
            row[3] = "delta" if row[3] == "snapshot" else "snapshot"
        else:
            chains = chains_of(doc)
            other = self.random.choice(sorted(chains))
            chains[other].append(copy.deepcopy(row))
            how = "moved" if other != partition else "again"
        return f"row: {how}"

    def _exchange(self, doc: Any, row: list[Any], new: bytes, raw: int, records: int) -> None:
        """Other bytes for an artifact."""
        entry = doc["objects"][row[0]]
        data = self.files[entry[0]]
        offset, length = (0, entry[1]) if len(row) == 3 else (row[4], row[5])
        whole = data[:offset] + new + data[offset + length :]
        for other in [other for rows in chains_of(doc).values() for other in rows if other[0] == row[0]]:
            if len(other) == 3 or (other[4], other[5]) == (offset, length):
                other[1:3] = [raw, records]
            if len(other) == 7:
                if (other[4], other[5]) == (offset, length):
                    other[5] = len(new)
                    other[6] = None if other[6] is None or new == whole else sha256(new)
                elif other[4] >= offset + length:
                    other[4] += len(new) - length
        self._store(entry, whole)

    def _store(self, entry: list[Any], data: bytes, tail: int | None = None) -> None:
        path = re.sub("[0-9a-f]{64}", sha256(data), entry[0])
        self.files[path] = data
        entry[:2] = [path, len(data)]
        if len(entry) == 4:
            length = entry[2] if tail is None else tail
            entry[2:] = [length, sha256(data[len(data) - length :])]

    def _artifact(self, *codecs: str) -> tuple[Any, list[Any], bytes]:
        chosen = self._chosen(*codecs)
        assert chosen is not None
        doc, _, rows, at = chosen
        row = rows[at]
        data = self.files[doc["objects"][row[0]][0]]
        return doc, row, data if len(row) == 3 else data[row[4] : row[4] + row[5]]

    # ---- maps --------------------------------------------------------------------------------------------------------

    def _records(self) -> str:
        doc, row, data = self._artifact("msgpack+zstd")
        pairs = taken_apart(unzstd(data, row[1]))
        how, raw = change_records(pairs, self.random)
        try:
            count = sum(len(keys) for keys, _ in taken_apart(raw))
        except Exception:  # whatever is wrong there
            count = row[2]
        self._exchange(doc, row, zstandard.compress(raw), len(raw), count)
        return f"records {self._spread}: {how}"

    def _frame(self) -> str:
        doc, row, data = self._artifact("msgpack+zstd")
        raw = unzstd(data, row[1])
        compress = zstandard.ZstdCompressor
        good = compress().compress(raw)
        plain = compress(write_content_size=False)
        block = (len(raw) << 3 | 1).to_bytes(3, "little") + raw
        frames = {
            "checksum": compress(write_checksum=True).compress(raw),
            "another checksum": (checked := compress(write_checksum=True).compress(raw))[:-1]
            + bytes([checked[-1] ^ 1]),
            "no content size": plain.compress(raw),
            "level 19": compress(level=19).compress(raw),
            "an empty frame behind": good + compress().compress(b""),
            "an empty frame before": compress().compress(b"") + good,
            "skippable before": bytes.fromhex("502a4d1803000000616263") + good,
            "skippable behind": good + bytes.fromhex("502a4d1803000000616263"),
            "a byte behind": good + b"\0",
            "cut": good[:-1],
            "nothing": b"",
            "not compressed": raw,
            "a window of 16 MiB": b"\x28\xb5\x2f\xfd\x00\x70" + block,
            "a window of 8 MiB": b"\x28\xb5\x2f\xfd\x00\x68" + block,
            "a dictionary 0": b"\x28\xb5\x2f\xfd\x01\x68\x00" + block,
            "a dictionary 1": b"\x28\xb5\x2f\xfd\x01\x68\x01" + block,
            "a reserved bit": b"\x28\xb5\x2f\xfd\x08\x68" + block,
            "an unused bit": b"\x28\xb5\x2f\xfd\x10\x68" + block,
            "another content size": b"\x28\xb5\x2f\xfd\xa0" + (len(raw) + 1).to_bytes(4, "little") + block,
            "a long content size": b"\x28\xb5\x2f\xfd\xe0" + len(raw).to_bytes(8, "little") + block,
            "an empty block": b"\x28\xb5\x2f\xfd\x00\x68" + b"\0\0\0" + block,
            "a reserved block": b"\x28\xb5\x2f\xfd\x00\x68" + b"\x07\0\0",
            "a flipped bit": flipped(good, self.random),
        }
        how = self.random.choice(sorted(frames))
        more = self.random.choice([0, 0, 0, 0, 0, 0, 1, -1])
        self._exchange(doc, row, frames[how], len(raw) + more, row[2])
        return f"frame {self._spread}: {how}{f', raw size {more:+}' if more else ''}"

    # ---- tables ------------------------------------------------------------------------------------------------------

    def _parquet(self) -> str:
        documents = [
            (name, doc, chains) for name, doc, chains in self._documents("parquet") if any(e[1] for e in doc["objects"])
        ]
        name, doc, chains = self.random.choice(documents)
        self._changed |= {name, "manifest"}
        entry = self.random.choice(doc["objects"])
        index = doc["objects"].index(entry)
        data = self.files[entry[0]]
        table = pq.ParquetFile(io.BytesIO(data)).read()
        delta = "/packs/" in entry[0]
        changed = ChangedTable(table, delta, self.manifest["operators"][name]["schema"], self.random)
        new, tail = changed.data()
        self._store(entry, new, tail)
        for partition, rows in chains:
            for row in rows:
                if row[0] == index and not (len(row) == 7 and row[5] == 0):
                    row[2] = changed.records(int(partition))
                    if len(row) == 7:
                        row[5] = len(new)
                elif row[0] == index and row[6] == sha256(b""):
                    row[4] = 0
        return f"parquet {'delta' if delta else 'snapshot'}: {changed.how}"


def chains_of(doc: Any) -> dict[str, Rows]:
    """The rows of each partition that a manifest's operator, or a segment, has."""
    return doc["chains"] if "chains" in doc else {p: patch[1] for p, patch in doc["patches"].items()}


def unzstd(data: bytes, size: int = 1 << 24) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size) if data else b""


def flipped(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data)) if data else 0
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :] if data else b"\0"


Pairs = list[tuple[list[bytes], list[bytes]]]


def taken_apart(data: bytes) -> Pairs:
    """The keys and values of each pair of arrays, packed."""
    found, at = [], 0

    def items(at: int) -> tuple[list[bytes], int]:
        head = data[at]
        if head & 0xF0 == 0x90:
            count, at = head & 15, at + 1
        else:
            width = {0xDC: 2, 0xDD: 4}[head]
            count, at = int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width
        out = []
        for _ in range(count):
            _, end = reader.value(data, at, 1, 0)
            out.append(data[at:end])
            at = end
        return out, at

    while at < len(data):
        keys, at = items(at)
        values, at = items(at)
        found.append((keys, values))
    return found


def packed(items: list[bytes], random: Random | None = None) -> bytes:
    header = msgpack.Packer().pack_array_header(len(items))
    if random is not None:
        header = random.choice([b"\xdc" + len(items).to_bytes(2, "big"), b"\xdd" + len(items).to_bytes(4, "big")])
    return bytes(header) + b"".join(items)


RECORD_CHANGES = (
    *["key"] * 3,
    *["two keys"] * 3,
    *["value"] * 4,
    *("twice", "nil", "no bin", "header", "split", "order", "key without value", "behind", "bin form", "empty pair"),
    *("flipped", "flipped", "flipped value", "flipped value", "flipped key"),
)


def change_records(pairs: Pairs, random: Random) -> tuple[str, bytes]:
    """What was changed in the entries of an artifact, and its bytes then."""
    keys = [key for some, _ in pairs for key in some]
    values = [value for _, some in pairs for value in some]
    at = random.randrange(len(keys)) if keys else 0
    new = random.choice(POOL)
    how = random.choice(RECORD_CHANGES)
    if not keys:
        keys, values = [b"\xa1k"], [b"\xc0"]
    a_bin = msgpack.packb
    if how == "key":
        keys[at] = new
        return f"key {new.hex()[:60]}", packed(keys) + packed(values)
    if how == "two keys":
        other, new = random.choices(KEYS, k=2)
        keys += [other, new]
        values += [a_bin(b"\x01"), a_bin(b"\x02")]
        return f"two keys {other.hex()[:60]} {new.hex()[:60]}", packed(keys) + packed(values)
    if how == "value":
        values[at] = a_bin(new)
        return f"value {new.hex()[:60]}", packed(keys) + packed(values)
    if how == "twice":
        keys.append(keys[at])
        values.append(values[at])
    elif how == "nil":
        values[at] = b"\xc0"
    elif how == "no bin":
        values[at] = random.choice([b"\x01", b"\xa1\x01", b"\xc2", b"\x90", _ext(10, b"\0" * 16)])
    elif how == "header":
        return how, packed(keys, random) + packed(values, random)
    elif how == "split":
        return how, b"".join(packed([key]) + packed([value]) for key, value in zip(keys, values, strict=True))
    elif how == "order":
        order = random.sample(range(len(keys)), len(keys))
        keys, values = [keys[n] for n in order], [values[n] for n in order]
    elif how == "key without value":
        values.pop()
    elif how == "behind":
        return how, packed(keys) + packed(values) + random.choice(
            [b"\0", b"\x90", b"\xc0", b"\x90\xc0", b"\x91\xc0\x90"]
        )
    elif how == "empty pair":
        return how, packed(keys) + packed(values) + b"\x90\xdc\0\0"
    elif how == "flipped":
        return how, flipped(packed(keys) + packed(values), random)
    elif how == "flipped key":
        keys[at] = flipped(keys[at], random)
        return f"{how} {keys[at].hex()[:60]}", packed(keys) + packed(values)
    elif how == "flipped value":
        value = flipped(new, random)
        values[at] = a_bin(value)
        return f"{how} {value.hex()[:60]}", packed(keys) + packed(values)
    else:
        keys = [b"\xdb" + len(key[1:]).to_bytes(4, "big") + key[1:] if key[0] & 0xE0 == 0xA0 else key for key in keys]
        values = [
            value if value == b"\xc0" else b"\xc6" + len(b := msgpack.unpackb(value)).to_bytes(4, "big") + b
            for value in values
        ]
    return how, packed(keys) + packed(values)


class ChangedTable:
    """A Parquet file with one change."""

    def __init__(self, table: pa.Table, delta: bool, schema: Any, random: Random) -> None:
        self.table, self.random, self.delta = table.replace_schema_metadata(None), random, delta
        self.keys = [column["name"] for column in schema["columns"] if column["role"] == "key"]
        self.group_rows: int | None = None
        self.groups: str | None = ""
        ways = [self._column] * 4 + [self._order] * 3 + [self._metadata] * 3 + [self._groups]
        self.how = random.choice(ways + ([self._special] * 6 if delta else []))()

    def records(self, partition: int) -> int:
        if not self.delta or "__partition" not in self.table.column_names:
            return int(self.table.num_rows)
        return self.table.column(self.table.column_names.index("__partition")).to_pylist().count(partition)

    def data(self) -> tuple[bytes, int]:
        """The file, and the length of its tail."""
        sink, found, start = io.BytesIO(), [], 4
        writer = pq.ParquetWriter(sink, self.table.schema, compression="zstd")
        rows = self.group_rows or max(self.table.num_rows, 1)
        for at in range(0, self.table.num_rows, rows):
            writer.write_table(self.table.slice(at, rows), row_group_size=rows)
            end = sink.tell()
            found.append([start, end - start, sha256(sink.getvalue()[start:end])])
            start = end
        text = Text()
        if self.groups == "json" and found:
            how, way = change_json(found, text, self.random)
            self.how += f" {way_of(way)} {how}"
        raw = text.dump(found)
        raw = {"blank": raw.replace(b",", b", "), "text": b"x", "null": b"null"}.get(self.groups or "", raw)
        if self.groups is not None:
            writer.add_key_value_metadata({"checkpointer.row_groups": raw.decode("utf-8", "replace")})
        writer.close()
        return sink.getvalue(), len(sink.getvalue()) - start

    def _set(self, at: int, field: pa.Field, column: Any) -> None:
        self.table = self.table.set_column(at, field, column)

    def _column(self) -> str:
        random, table = self.random, self.table
        at = random.randrange(table.num_columns)
        field = table.schema.field(at)
        how = random.choice(
            ["name", "name", "drop", "id", "id", "type", "type", "type", "not null", "more", "twice", "order"]
        )
        ours = field.name.startswith("__")
        if how == "name":
            new = random.choice(["other", field.name.upper(), table.column_names[0], "__partition", "__kept", ""])
            self._set(at, field.with_name(new), table.column(at))
            return f"{'our' if ours else 'a'} column is named {new!r}" if new != field.name else "the same"
        if how == "drop":
            self.table = table.remove_column(at)
            return f"no {field.name if ours else 'key' if field.name in self.keys else 'column'}"
        if how == "id":
            new = random.choice(["1", "2", "3", "99", "0", "-1", "2147483647", None])
            self._set(at, field.with_metadata({"PARQUET:field_id": new} if new else {}), table.column(at))
            return f"{field.name if ours else 'column'} id {new}"
        if how == "type":
            kinds = [
                pa.int8(),
                pa.int16(),
                pa.int32(),
                pa.int64(),
                pa.uint32(),
                pa.float32(),
                pa.float64(),
                pa.string(),
            ]
            kinds += [pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3), pa.date32(), pa.timestamp("us")]
            kinds += [
                pa.timestamp("us", "UTC"),
                pa.timestamp("us", "Europe/Berlin"),
                pa.timestamp("ms", "UTC"),
                pa.bool_(),
            ]
            kinds += [
                pa.timestamp("ns", "UTC"),
                pa.duration("us"),
                pa.duration("ms"),
                pa.decimal128(3, 0),
                pa.decimal128(38, 2),
            ]
            kinds += [
                pa.decimal256(50, 2),
                pa.dictionary(pa.int32(), pa.string()),
                pa.time64("us"),
                pa.null(),
                pa.decimal128(5, 3),
            ]
            kinds += [pa.decimal128(38, 0), pa.decimal256(5, 2), pa.list_(pa.string()), pa.list_(pa.int32())]
            kinds += [pa.large_list(pa.large_string()), pa.map_(pa.string(), pa.list_(pa.int32()))]
            kinds += [pa.struct({"x": pa.float32(), "y": pa.list_(pa.date32())}), pa.struct({"x": pa.float64()})]
            kinds += [pa.struct({"metadata": pa.binary(), "value": pa.binary()})]
            new = random.choice(kinds)
            try:
                column = table.column(at).cast(new)
            except (pa.ArrowException, NotImplementedError):
                column = pa.chunked_array([pa.nulls(table.num_rows, new)])
            self._set(at, pa.field(field.name, new, metadata=field.metadata), column)
            return f"{field.name if ours else 'key' if field.name in self.keys else 'column'} of {field.type} as {new}"
        if how == "not null" and table.column(at).null_count == 0:
            self._set(at, field.with_nullable(False), table.column(at))
        elif how == "more":
            metadata = random.choice([None, {"PARQUET:field_id": "77"}])
            name = random.choice(["more", "__kept", "__Partition"])
            kept = pa.array([None] * table.num_rows, pa.string())
            if name in table.column_names:
                return "the same"
            self.table = table.append_column(pa.field(name, pa.string(), metadata=metadata), kept)
            return f"one more column {name} {'with' if metadata else 'without'} an id"
        elif how == "twice":
            self.table = table.append_column(field, table.column(at))
            return f"{field.name if ours else 'column'} twice"
        else:
            self.table = table.select(random.sample(range(table.num_columns), table.num_columns))
            return "columns in another order"
        return f"{'our' if ours else 'a'} column {how}"

    def _taken(self, rows: list[int]) -> None:
        self.table = self.table.take(pa.array(rows, pa.int64()))

    def _order(self) -> str:
        rows = list(range(self.table.num_rows))
        how = self.random.choice(["reversed", "shuffled", "twice", "dropped", "none", "nulls first"])
        if how == "reversed":
            rows.reverse()
        elif how == "shuffled":
            self.random.shuffle(rows)
        elif how == "twice" and rows:
            at = self.random.randrange(len(rows))
            rows.insert(at, rows[at])
        elif how == "dropped" and rows:
            rows.pop(self.random.randrange(len(rows)))
        elif how == "nulls first":
            key = self.table.column_names.index(self.keys[0]) if self.keys[0] in self.table.column_names else 0
            values = self.table.column(key).to_pylist()
            rows.sort(key=lambda row: values[row] is not None)
        else:
            rows = []
        self._taken(rows)
        return f"rows {how}"

    def _metadata(self) -> str:
        self.groups = self.random.choice(["json", "json", "json", None, "blank", "text", "null"])
        return f"row groups: {self.groups}"

    def _groups(self) -> str:
        self.group_rows = 1
        return "a row group for each row"

    def _special(self) -> str:
        random, table = self.random, self.table
        name = random.choice(["__partition", "__change", "__change", "__kept", "__kept"])
        rows = table.num_rows
        if not rows:
            return "the same"
        values = table[name].to_pylist() if name in table.column_names else [None] * rows
        at = random.randrange(rows)
        kept = [
            "",
            "1",
            "2",
            "3",
            "03",
            "3,2",
            "2,3",
            "3,3",
            "99",
            " 3",
            "3,",
            "x",
            "٣",
            None,
            "3,99",
            "2147483648",
            "0",
        ]
        pool = {"__partition": [None, -1, 0, 1, 5, 2**31 - 1], "__change": [None, -1, 0, 1, 2, 3], "__kept": kept}[name]
        values[at] = random.choice(pool)
        field = {"__partition": pa.int32(), "__change": pa.int8(), "__kept": pa.string()}[name]
        column = pa.array(values, field)
        if name in table.column_names:
            self._set(table.column_names.index(name), pa.field(name, field), column)
        else:
            self.table = table.append_column(pa.field(name, field), column)
        change = table.column(table.column_names.index("__change")).to_pylist()[at]
        return f"{name} {values[at]!r}{f' where the change is {change}' if name == '__kept' else ''}"
