"""Change one thing in a file of a table."""

import io
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.judge.hostile.frames import sha256
from tests.judge.hostile.json_changes import Text, change_json, way_of

WRITER_OPTIONS: list[tuple[str, Any]] = [
    *(("compression", name) for name in ("none", "snappy", "gzip", "lz4", "brotli")),
    *(("data_page_version", "2.0"), ("version", "1.0"), ("version", "2.4"), ("use_dictionary", False)),
    *(("store_decimal_as_integer", True), ("store_decimal_as_integer", True), ("store_schema", False)),
    *(("use_deprecated_int96_timestamps", True), ("coerce_timestamps", "ms"), ("write_statistics", False)),
    *(
        ("write_page_index", True),
        ("write_page_checksum", True),
        ("data_page_size", 1),
        ("use_compliant_nested_type", False),
    ),
]


def odd_values(kind: pa.DataType, rows: int, random: Random) -> pa.Array | None:
    """Values of a type that has odd ones, in ascending order."""
    if pa.types.is_string(kind):
        held = pa.array(sorted(random.randbytes(random.randrange(6)) for _ in range(rows)), pa.binary())
        return pa.Array.from_buffers(kind, rows, held.buffers())
    if pa.types.is_date32(kind):
        return pa.array(sorted(random.randrange(-(2**31), 2**31) for _ in range(rows)), pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(sorted(random.randrange(-(2**63), 2**63) for _ in range(rows)), pa.int64()).cast(kind)
    if pa.types.is_decimal128(kind):
        numbers = sorted(random.randrange(-2 * 10**kind.precision, 2 * 10**kind.precision) for _ in range(rows))
        stored = b"".join((n % 2**128).to_bytes(16, "little") for n in numbers)
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(stored)])
    return None


class ChangedTable:
    """A Parquet file with one change."""

    def __init__(self, table: pa.Table, delta: bool, schema: Any, random: Random) -> None:
        self.table, self.random, self.delta = table.replace_schema_metadata(None), random, delta
        self.keys = [column["name"] for column in schema["columns"] if column["role"] == "key"]
        self.group_rows: int | None = None
        self.groups: str | None = ""
        self.options: dict[str, Any] = {"compression": "zstd", "allow_truncated_timestamps": True}
        ways = [self._column] * 4 + [self._order] * 3 + [self._metadata] * 3 + [self._groups]
        ways += [self._writer] * 3 + [self._odd] * 3
        self.how = random.choice(ways + ([self._special] * 6 if delta else []))()

    def records(self, partition: int) -> int:
        if not self.delta or "__partition" not in self.table.column_names:
            return int(self.table.num_rows)
        return self.table.column(self.table.column_names.index("__partition")).to_pylist().count(partition)

    def data(self) -> tuple[bytes, int]:
        """The file, and the length of its tail."""
        sink, found, start = io.BytesIO(), [], 4
        writer = pq.ParquetWriter(sink, self.table.schema, **self.options)
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
            there = self.table.column(key).is_valid().to_pylist()
            rows.sort(key=lambda row: there[row])
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

    def _writer(self) -> str:
        """What another program may choose when it writes a file."""
        name, value = self.random.choice(WRITER_OPTIONS)
        self.options[name] = value
        return f"written with {name}={value}"

    def _odd(self) -> str:
        """A value that Python does not have, or that its type has no room for."""
        at = self.random.randrange(self.table.num_columns)
        field = self.table.schema.field(at)
        made = odd_values(field.type, self.table.num_rows, self.random)
        if made is None or field.name.startswith("__"):
            return "the same"
        self._set(at, field, made)
        return f"odd values in {'key' if field.name in self.keys else 'column'} of {field.type}"

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
