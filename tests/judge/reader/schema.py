"""Tables: types and the schema."""

import re

import pyarrow as pa

from tests.judge.reader.checks import anything, array, get, integer, need, obj, or_null, text, time

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


def read_map_expire(s):
    """Of a map: None, or after how many microseconds entries expire, and since when they count."""
    rule = get(obj(s), "expire", or_null(obj))
    if rule is None:
        return None
    return get(rule, "after_us", integer(1, 8_640_000_000_000_000_000)), get(rule, "since", time)


def read_expire(s, columns):
    """The column by whose time rows expire, and after how many microseconds; None where they do not."""
    rule = get(s, "expire", obj, absent=True)
    if rule is None:
        return None
    name, after = get(rule, "column", text), get(rule, "after_us", integer(1, 8_640_000_000_000_000_000))
    found = [c for c in columns if c["name"] == name and c["type"] in ("date", "timestamp", "timestamp_ntz")]
    need(found, f"rows expire by {name!r:.80}, which is no time of this table")
    return found[0], after
