"""Stores with everything that the library writes."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.checkpoint.metering import Meter
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.manifests.map_expiry import micros
from pyspark_checkpointer.manifests.model import Clock, Job, SparkProgress
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table.expiry import Expire
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.schema import CHANGE, DELETE, DELTA_COLUMNS, MERGE, PARTITION, RESET, TableSchema
from pyspark_checkpointer.table.schema_evolution import next_schema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top
from tests import damage
from tests.golden.test_golden import load_script
from tests.proof import operations
from tests.table.tables import (
    NAN,
    ORDERED,
    Change,
    Row,
    array,
    changes_of,
    far,
    fields,
    mapping,
    schema_of,
    snapshot_rows,
    text,
)
from tests.table.tables import (
    struct as structure,
)

PARTITIONS = 3
"""Of each table here."""

GOLDEN = Path(__file__).parents[1] / "golden" / "v1" / "store"
BERLIN = ZoneInfo("Europe/Berlin")

KEYS: tuple[Any, ...] = (
    *(None, "", "text", "naïve 日本", b"", b"\x00\xff", True, 0, -1, 2**63, 2**64, -(2**63) - 1, 2**200, 0.5, -1e300),
    *(float("inf"), Decimal("1.10"), Decimal("-0E+3"), Decimal("1E-7"), Decimal("2E+6144"), UUID(int=258)),
    *(date(2024, 2, 29), date.min, time(2, 30), time(1, 2, 3, 4, fold=1), timedelta(days=-1, microseconds=1)),
    *(datetime(2024, 1, 2, 3, 4, 5, 6), datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)),
    datetime(2024, 1, 2, 5, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
    datetime(2024, 1, 2, 7, tzinfo=timezone(timedelta(hours=1), "CET")),
    datetime(2024, 3, 31, 2, 30, tzinfo=ZoneInfo("Europe/Rome"), fold=1),
    *((), ("tuple", 1, (None, b"x")), frozenset(), frozenset({1, "b", (2, 3)})),
)
VALUES: tuple[Any, ...] = (
    *KEYS,
    *(NAN, -0.0, Decimal("sNaN7"), [1, [True, None]], {"a": {1: ()}, (2,): [b""]}, {"one", 2}, {NAN}, "x" * 300),
    datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
)


def keys(client: Checkpointer) -> None:
    """Every kind of key and value: snapshots, then deltas that set, exchange and delete."""
    every = dict(zip(KEYS, reversed(VALUES), strict=False))
    states = {"one": KeyedState(every, partitions=1), "many": KeyedState(every, partitions=3)}
    for number in range(3):
        with client.begin(epoch=number) as cp:
            for name, state in states.items():
                cp.save(name, state)
        for state in states.values():
            for at, key in enumerate(KEYS):
                if at % 4 == number:
                    state[key] = VALUES[-at - 1]
            del state[KEYS[number * 5]]
            state["new", number] = number


def short(client: Checkpointer) -> None:
    """Maps and bytes that are as small as can be."""
    state = KeyedState({1: "a", "b": None}, partitions=1)
    with client.begin(epoch=None) as cp:
        cp.save("map", state)
        cp.save("none", KeyedState(partitions=2))
        cp.snapshot("bytes", 0, b"")
        cp.snapshot("bytes", 2**31 - 1, b"1")
    state[1] = "c"
    with client.begin(epoch=-5) as cp:
        cp.save("map", state)


def segments(client: Checkpointer) -> None:
    """More partitions than a manifest lists, of bytes and of a map, in several segments."""
    for number in range(3):
        damage.fill(client, number)
    state = KeyedState({number: number for number in range(4000)}, partitions=600)
    with client.begin(epoch=3) as cp:
        for partition in range(1000, 1020):
            cp.snapshot("many", partition, b"more")
        cp.save("keyed", state)
    state[5] = "changed"
    with client.begin(epoch=4) as cp:
        cp.drop("many", 5)
        cp.delta("many", 6, b"changed")
        cp.save("keyed", state)


def described(client: Checkpointer) -> None:
    """All that a manifest says besides its operators."""
    progress = SparkProgress("/spark", "v1\n{}\nx", ("0", ""), {"sources_0/12": "list"}, {"left_1": "-"})
    with client.begin_batch(7, Job("query", "run", 7, "1@host/m", progress)) as cp:
        cp.snapshot("o~.-_ %é", 0, b"0")
        cp.positions["topic"] = {"0": "1", "deep": [1.5, None, [True, -(2**63)]]}
        cp.properties["größe"] = [2**70, -0.5, "\x00\u2028\U0001f600", {}]
        cp.watermark = 1.0


def nothing_yet(client: Checkpointer) -> None:
    """A prepared checkpoint before there is a committed one."""
    operations.fill(client, 1).prepare()


def rolled_back(client: Checkpointer) -> None:
    operations.history(client)
    client.rollback(client.list_checkpoints()[1])
    operations.commit(client, operations.NEXT)


# ---- tables ----------------------------------------------------------------------------------------------------------


def save_table(client: Checkpointer, schema: TableSchema, rows: Sequence[Row], changes: Sequence[Change] = ()) -> None:
    """Commit snapshots of the partitions that rows belong to, and changes on top of those."""
    save_rows(client, schema, snapshot_rows(schema, rows), changes_of(schema, changes) if changes else None)


def save_rows(client: Checkpointer, schema: TableSchema, rows: pa.Table, changes: pa.Table | None) -> None:
    """Commit snapshots of the partitions that rows belong to, and one pack of changes on top."""
    numbers = pa.array(partitions_of(rows, schema, PARTITIONS))
    with client.begin() as cp:
        writer = TableWriter(client.session.store, client.session.host, cp.id, "table", schema)
        old = cp.attempt.operator("table")
        chains = {} if old is None else dict(old.chains)
        for partition in numbers.unique().to_pylist():
            wanted = rows.filter(pc.equal(numbers, partition))
            chains[partition] = (run_sync(writer.snapshot(partition, in_order(wanted, schema.key))),)
        if changes is not None:
            places = pa.array(partitions_of(changes, schema, PARTITIONS), pa.int32())
            changes = changes.set_column(changes.column_names.index(PARTITION), PARTITION, places)
            for partition, delta in run_sync(writer.pack(in_order(changes, schema.key))).items():
                chains[partition] = on_top(chains.get(partition, ()), delta)
        cp.attempt.put_operator("table", TableVersion("table", schema, PARTITIONS, chains).operator())


def all_types(client: Checkpointer) -> None:
    """A key and a value of every type."""
    nested = {"a": array("string"), "m": mapping("string", array("long")), "s": structure(x="double", y=array("date"))}
    schema = schema_of(
        {"k": "integer", **{f"c{n}": kind for n, kind in enumerate(ORDERED)}, **nested, "v": "variant"}, ["k"]
    )
    some = [["a", None], [], None], [[("a", [1, None])], [], None], [{"x": NAN, "y": [date.min]}, {"x": None, "y": []}]
    columns = [*ORDERED.values(), *some, [{"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}, None]]
    rows = [(key, *(column[key % len(column)] for column in columns)) for key in range(9)]
    save_table(client, schema, [*rows[:4], (None, *rows[8][1:])], [(MERGE, rows[5]), (RESET, rows[6])])


def all_keys(client: Checkpointer) -> None:
    """Keys of all types at once, nulls and NaN among them."""
    schema = schema_of({**{f"k{n}": kind for n, kind in enumerate(ORDERED)}, "n": "long"}, [f"k{n}" for n in range(15)])
    rows: list[Row] = [(*(column[at % len(column)] for column in ORDERED.values()), at) for at in range(7)]
    rows.append((*[None] * 15, -1))
    changes: list[Change] = [(MERGE, (*rows[0][:15], 100)), (DELETE, (*rows[1][:15], None)), (RESET, rows[7])]
    save_table(client, schema, rows, changes)


COMBINED = {
    **{"k": "string", "s": "long", "b": "byte", "d": "decimal(5,2)", "f": "double", "g": "float"},
    **{"lo": "double", "hi": "string", "at": "timestamp", "t": "boolean", "last": "string", "more": "binary"},
}
ROLES = {"s": "sum", "b": "sum", "d": "sum", "f": "sum", "g": "sum", "lo": "min", "hi": "max", "at": "max", "t": "min"}


def combined(client: Checkpointer) -> None:
    """Every way to combine, over several deltas, with columns that are kept."""
    schema = schema_of(COMBINED, ["k"], **ROLES)
    at = datetime(2024, 1, 1, tzinfo=UTC)

    def row(key: str | None, number: int, *last: Any) -> Row:
        sums = (number * 2**40, number, Decimal(number), number / 2, number / 4)
        return (
            key,
            *sums,
            NAN if number % 2 else number / 8,
            "é" * number,
            at + timedelta(hours=number),
            number % 3 == 0,
            *last,
        )

    a, b, c = row("a", 1, "x", b"x"), row("b", 2, "y", b""), row(None, 3, None, None)
    nulls: Row = ("a", *[None] * 11)
    kept = frozenset({"last", "more"})
    save_table(client, schema, [a, b], [(MERGE, c)])
    save_table(client, schema, [], [(MERGE, row("a", 5, None, b"z"), frozenset({"last"})), (DELETE, _bare("b"))])
    save_table(client, schema, [], [(MERGE, nulls, kept), (MERGE, row("b", 7, None, None), kept), (RESET, c)])
    save_table(client, schema, [], [(MERGE, row("a", -9, "w", None)), (DELETE, _bare("gone"))])


def _bare(key: str) -> Row:
    return (key, *[None] * 11)


def other_columns(client: Checkpointer) -> None:
    """Columns that are widened, renamed by dropping and adding, and dropped."""
    first = schema_of({"k": "long", "n": "byte", "f": "float", "d": "short", "x": "string"}, ["k"], n="sum")
    save_table(client, first, [(1, 1, 0.5, 7, "a")], [(MERGE, (2, 2, 1.5, None, "b"))])
    kinds = {"k": "long", "n": "long", "f": "double", "d": "decimal(9,2)", "x": "string", "y": array("long")}
    second = next_schema("table", first, fields(kinds), ["k"], {"n": "sum"})
    save_table(client, second, [], [(MERGE, (1, 2**40, 0.1, None, None, [1]), frozenset({"d", "x"}))])
    third = next_schema("table", second.without("table", ["x"]), fields(kinds), ["k"], {"n": "sum"})
    save_table(client, third, [], [(MERGE, (2**40, 1, 1.0, None, "new", None))])


def beyond_python(client: Checkpointer) -> None:
    """Text that is not UTF-8, and dates and times of years that Python does not have."""
    schema = schema_of(
        {"k": "string", "d": "date", "t": "timestamp", "n": "timestamp_ntz", "lo": "string", "in": array("string")},
        ["k", "d", "t"],
        lo="min",
        n="max",
    )
    times = [-(2**63), -62_135_596_800_000_001, 0, 253_402_300_800_000_000, 2**63 - 1]
    dates = [-(2**31), -719_529, 0, 2_932_897, 2**31 - 1]
    keys = [b"", b"a\xe9", b"\xc3\xa9", b"\xed\xa0\x80", b"\xff"]

    def rows(low: bytes, at: int) -> pa.Table:
        types = schema.arrow().types
        texts, inside = text(*keys), pa.ListArray.from_arrays(pa.array(range(6), pa.int32()), text(*reversed(keys)))
        columns = [texts, far(types[1], *dates), far(types[2], *times), far(types[3], *times[at:], *times[:at])]
        return pa.table([*columns, text(low, *keys[1:]), inside.cast(types[5])], schema=schema.arrow())

    save_rows(client, schema, rows(b"\xff\xff", 0), None)
    again = rows(b"\xff\xfe", 2)
    for name, values in ((PARTITION, pa.array([0] * 5, pa.int32())), (CHANGE, pa.array([MERGE] * 5, pa.int8()))):
        again = again.append_column(name, values)
    save_rows(client, schema, schema.arrow().empty_table(), again)


def expiring(client: Checkpointer, kind: str) -> None:
    """Rows that expire by a type of time: one at the last moment, one a moment later, far ones."""
    clock, after = datetime(2024, 3, 1, tzinfo=UTC), timedelta(days=60)
    schema = schema_of({"k": "long", "n": "long", "t": kind}, ["k"], n="sum", t="max")
    schema = schema.expiring("table", Expire("t", after=after))
    moment = timedelta(days=1) if kind == "date" else timedelta(microseconds=1)
    times = [clock - after + number * moment for number in (-1, 0, 1)]
    given: list[Any] = times if kind == "timestamp" else [time.replace(tzinfo=None) for time in times]
    given = [time.date() for time in times] if kind == "date" else given
    rows: list[Row] = [(key, 1, time) for key, time in enumerate([*given, None])]
    # The merged time decides: that of a change keeps a row alive, or ends it.
    save_table(client, schema, rows, [(MERGE, (0, 1, given[2])), (RESET, (2, 1, given[0])), (MERGE, (3, 1, given[1]))])
    with client.begin() as cp:
        cp.attempt.clock = Clock(clock, "job")
    if kind == "timestamp_ntz":
        far_times = far(pa.timestamp("us"), -(2**63), 2**63 - 1)
        columns = [pa.array([100, 101], pa.int64()), pa.array([1, 1], pa.int64()), far_times]
        delta = pa.table(columns, schema=schema.arrow())
        for name, value in ((PARTITION, 0), (CHANGE, RESET)):
            delta = delta.append_column(name, pa.array([value] * 2, pa.int32()).cast(DELTA_COLUMNS[name]))
        save_rows(client, schema, schema.arrow().empty_table(), delta)


def expiring_map(client: Checkpointer) -> None:
    """Entries that expire: without a time, at the last moment, a moment later; and a map that dropped its rule."""
    clock, moment, day = datetime(2024, 3, 1, tzinfo=UTC), timedelta(microseconds=1), timedelta(days=1)
    maps = {name: KeyedState({0: "older", "a": [1]}, partitions=2) for name in ("map", "free", "late")}
    for number, at in enumerate([clock - 60 * day, clock - 30 * day, clock - 30 * day + moment, clock]):
        with client.begin(epoch=number) as cp:
            cp.attempt.clock = Clock(at, "job")
            for name, keyed in maps.items():
                if number or name == "late":
                    keyed.set_rule((31 if name == "late" else 30) * day // moment, micros(at))
                if number < 3:
                    keyed.update({number: number, "a": [number], (number, "x"): None})
                if number == 2 and name == "free":
                    keyed.set_rule(None, micros(at))
                    del keyed[1]
                if number < 3 or name != "free":
                    cp.save(name, keyed)


STORES: dict[str, Callable[[Checkpointer], object]] = {
    "keys": keys,
    "short": short,
    "segments": segments,
    "described": described,
    "history": operations.history,
    "savepoints": operations.with_savepoints,
    "retired": operations.retired,
    "prepared": operations.prepared_by_another,
    "nothing yet": nothing_yet,
    "rolled back": rolled_back,
    "all types": all_types,
    "all keys": all_keys,
    "combined": combined,
    "other columns": other_columns,
    "beyond python": beyond_python,
    "expiring map": expiring_map,
    **{f"expiring by {kind}": partial(expiring, kind=kind) for kind in ("date", "timestamp", "timestamp_ntz")},
}
"""What makes each store, by its name."""


class FixedClient(Checkpointer):
    """One whose times and ids are the same in every run, so that a seed is too."""

    def _open_session(self) -> Session:
        session = super()._open_session()
        fixed = Session(session.store, load_script().FixedHost(), max_chain=session.max_chain)
        fixed.reports.meter = lambda: Meter(lambda: 0)
        return fixed


def make(name: str, root: Path) -> Path:
    """A store of this name, in a new folder; the same bytes each time."""
    with FixedClient(str(root)) as client:
        STORES[name](client)
    (root / ".lock").unlink(missing_ok=True)
    return root
