"""Tables: the rows of a Parquet file."""

import datetime as dt
import decimal
import hashlib
import io
import itertools
import re

import pyarrow as pa
import pyarrow.parquet as pq

from tests.judge.reader.checks import Refused, digest, integer, need, size
from tests.judge.reader.filters import check_filter
from tests.judge.reader.objects import compare, parse
from tests.judge.reader.schema import DIGITS, normal

EXACT = decimal.Context(prec=200, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)

MICROSECOND = dt.timedelta(microseconds=1)


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


class Far(int):
    """A date or time that Python does not have, as it is stored."""


def python(v):
    """The value of an Arrow scalar. Text keeps all its bytes: those that are not UTF-8 as halves of surrogate pairs."""
    t = v.type
    if not v.is_valid:
        return None
    if pa.types.is_string(t) or pa.types.is_large_string(t):
        return v.as_buffer().to_pybytes().decode("utf-8", "surrogateescape")
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        return [python(member) for member in v.values]
    if pa.types.is_map(t):
        return [(python(pair["key"]), python(pair["value"])) for pair in v.values]
    if pa.types.is_struct(t):
        return {name: python(member) for name, member in v.items()}
    if isinstance(t, pa.Decimal128Type):
        found = v.as_py()
        need(EXACT.abs(found.scaleb(t.scale, EXACT)) < 10**t.precision, f"{found} in {t}")
        return found
    try:
        return v.as_py()
    except OverflowError:
        return Far(v.value)


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
    for i in range(len(f.schema)):
        column = f.schema.column(i)
        fixed = column.physical_type == "FIXED_LEN_BYTE_ARRAY"
        need(fixed or column.logical_type.type != "DECIMAL", f"{column.path}: a decimal as {column.physical_type}")
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
            [None] * table.num_rows if column is None else list(map(widen(column.type, c), map(python, column)))
        )
    keys = [c["id"] for c in columns if c["role"] == "key"]
    said = f.metadata.metadata or {}
    if (described := said.get(b"checkpointer.filter")) is not None:
        need(delta, "a filter in a snapshot")
        at = check_filter(parse(described), data, at, [by_id[c] for c in keys])
    need(not tail or tail[0] == len(data) - at, "the tail is not what follows the last row group and the filter")
    if (blocks := said.get(b"checkpointer.blocks")) is not None:
        check_blocks(parse(blocks), data, f, at)
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


def check_blocks(described, data, f, at):
    """The index of blocks, which begins at a byte: that it is true."""
    need(type(described) is list and len(described) == 4, f"blocks {described!r:.80}")
    rows, columns, width, keys = map(integer(1, 2**63), described)
    need(columns == len(f.schema) and width in (2, 4), f"blocks {described!r:.80}")
    groups = [f.metadata.row_group(i) for i in range(f.metadata.num_row_groups)]
    blocks = [[min(rows, g.num_rows - n) for n in range(0, g.num_rows, rows)] for g in groups]
    count, ends = sum(map(len, blocks)), []
    for length in (16 * count, width * columns * len(groups), width * columns * count, keys):
        ends.append((at, at + length))
        at += length
    need(at <= len(data), "an index of blocks beyond the end of the file")
    digests, dictionaries, lengths, starts = (data[a:b] for a, b in ends)
    dictionaries, lengths = (
        [int.from_bytes(part[n : n + width], "little") for n in range(0, len(part), width)]
        for part in (dictionaries, lengths)
    )
    number, firsts = 0, []
    for i, (g, own) in enumerate(zip(groups, blocks, strict=True)):
        shared, pages = b"", [b""] * len(own)
        for c in range(columns):
            chunk = g.column(c)
            begin = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
            place = begin + dictionaries[i * columns + c]
            need(place == chunk.data_page_offset, "a dictionary of another length")
            shared += data[begin:place]
            for n in range(len(own)):
                end = place + lengths[(number + n) * columns + c]
                pages[n] += data[place:end]
                place = end
            need(place == begin + chunk.total_compressed_size, "pages of another length")
        for n, page in enumerate(pages):
            sound = hashlib.sha256(shared + page).digest()[:16] == digests[16 * (number + n) :][:16]
            need(sound, f"block {number + n} of another digest")
            firsts.append(sum(blocks[i][:n]) + sum(map(sum, blocks[:i])))
        number += len(own)
    found, rest = pq.ParquetFile(io.BytesIO(starts)).read(), f.metadata.num_rows - 1
    firsts += [rest] if rest not in firsts else []
    stored = f.read(columns=found.column_names)
    need(found.num_rows == len(firsts), "a wrong number of first keys")
    need(("__partition" in found.column_names) == ("__partition" in f.schema_arrow.names), "first keys of another kind")
    for own, column in zip(found.columns, stored.columns, strict=True):
        # As text, in which NaN is equal to itself.
        need(repr([*map(python, own)]) == repr([python(column[n]) for n in firsts]), "other first keys")


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


def order(v):
    """By what values are ordered, and equal as keys: NaN above numbers, text by its bytes."""
    if isinstance(v, float):
        return (True, 0.0) if v != v else (False, v)
    if isinstance(v, dt.datetime):
        return (v - (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) if v.tzinfo else dt.datetime(1970, 1, 1))) // MICROSECOND
    if isinstance(v, dt.date):
        return v.toordinal() - dt.date(1970, 1, 1).toordinal()
    return v.encode("utf-8", "surrogateescape") if isinstance(v, str) else v
