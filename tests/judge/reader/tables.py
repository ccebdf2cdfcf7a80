"""Tables: how the rows of a chain are merged."""

import decimal

import pyarrow as pa

from tests.judge.reader.checks import about, need
from tests.judge.reader.files import EXACT, Far, order, parquet
from tests.judge.reader.schema import DIGITS


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
        need(EXACT.abs(v.scaleb(t.scale, EXACT)) < 10**t.precision, f"a sum of {v} in {col['type']}")
    elif t == pa.float32():
        return pa.scalar(v, pa.float64()).cast(pa.float32()).as_py()
    return v


def expired(row, op, clock):
    if not op["expire"]:
        return False
    column, after = op["expire"]
    value = row[column["id"]]
    if value is None:
        return False
    at = (value if isinstance(value, Far) else order(value)) * (86_400_000_000 if column["type"] == "date" else 1)
    return at + after <= order(clock)


def read_table(root, op, load, clock):
    columns, files, content = op["columns"], {}, []
    need(clock is not None or not op["expire"], "rows expire, and the manifest has no clock")

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
        content += [
            {c["name"]: final(r[c["id"]], c) for c in columns} for r in state.values() if not expired(r, op, clock)
        ]
    return {"kind": "table", "schema": op["schema"], "content": content}
