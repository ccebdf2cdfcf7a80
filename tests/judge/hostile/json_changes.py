"""Change one thing in JSON, which a seed draws."""

import copy
import json
import re
from random import Random
from typing import Any

from tests.judge.hostile.frames import sha256

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
    "after_us": (1, 0, -1, True, 1.0, 8_640_000_000_000_000_000, 8_640_000_000_000_000_001, 2**63, 5 * 10**12),
    "at": ("0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z", "2024-03-01T00:00:00Z", AT, AT.lower()),
    "source": ("batch", "job", "Job", "", None),
    "column": ("k", "n", "t", "T", "", None, 5),
    "expire": (None, {}, {"column": "t"}, {"after_us": 1}, {"column": "t", "after_us": 10**15, "more": 1}),
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
        name = "at" if way[-2] == "retired" else "created"
        parent, key, way, field = parent[key], name, (*way, name), name
        old = parent[key]
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
