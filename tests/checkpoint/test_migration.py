"""A new version of a job starts from an older checkpoint: renamed, dropped, transformed, or refused as a whole."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState, RetentionPolicy, compaction
from pyspark_checkpointer.admin.stats import read_stats
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint, Restored
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests import codecs, segments
from pyspark_checkpointer.manifests.model import Chain, Job, Operator
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table import migration
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.schema import CHANGE, MERGE, PARTITION, TableSchema
from pyspark_checkpointer.table.schema_evolution import first_schema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top
from pyspark_checkpointer.testing.crashes import crash_points
from tests.world import Actor, World, contents

MAP = {f"user-{number}": {"n": number} for number in range(400)}
ROWS = {key: key * 10 for key in range(40)}
SCHEMA = first_schema(
    "rows",
    [{"name": "k", "type": "long", "metadata": {}}, {"name": "n", "type": "long", "metadata": {}}],
    ["k"],
    {"n": "sum"},
)
JOB = Job("query", "run", 7)


def table(rows: dict[int, int], schema: TableSchema = SCHEMA) -> pa.Table:
    return pa.table({"k": [*rows], "n": [*rows.values()]}, schema=schema.arrow())


def write_rows(client: Checkpointer, cp: Checkpoint, rows: dict[int, int], name: str = "rows") -> None:
    """Rows on top of a table of four partitions, as changes."""
    session, known = client.session, cp.writer.operator(name)
    writer = TableWriter(session.store, session.host, cp.id, name, SCHEMA)
    chains: dict[int, Chain] = dict(known.chains) if known else {}
    new = table(rows)
    numbers = pa.array(partitions_of(new.select(["k"]), SCHEMA, 4), pa.int32())
    changes = new.append_column(PARTITION, numbers).append_column(CHANGE, pa.array([MERGE] * len(rows), pa.int8()))
    for partition, delta in run_sync(writer.pack(in_order(changes, SCHEMA.key))).items():
        chains[partition] = on_top(chains.get(partition, ()), delta)
    cp.writer.put_operator(name, TableVersion(name, SCHEMA, 4, chains).operator())


@pytest.fixture
def client(world: World) -> Actor:
    return old_job(world)


def old_job(world: World) -> Actor:
    """The old job's last two checkpoints: a map, opaque bytes, a table and something that nobody needs any more."""
    client = world.actor(retries=False)
    state = KeyedState(MAP)
    with client._begin(6, JOB) as cp:
        cp.save("seen", state)
        cp.snapshot("model", 0, b"weights")
        cp.snapshot("model", 3, b"bias")
        cp.snapshot("old", 0, b"old")
        write_rows(client, cp, dict.fromkeys(ROWS, 0))
    with client._begin(7, JOB) as cp:
        state["user-1"]["n"] = 1
        cp.save("seen", state)
        cp.delta("model", 0, b"+1")
        write_rows(client, cp, ROWS)
        cp.positions["topic"] = {"0": "12"}
        cp.properties["version"] = "1"
        cp.watermark = "2024-01-01"
    return client


def double(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "n", pc.multiply(rows["n"], 2))


CHANGES: dict[str, Any] = {
    "rename": {"seen": "users", "rows": "totals"},
    "drop": ["old"],
    "transform": {
        "users": lambda old: {key: value["n"] for key, value in old.items()},
        "model": lambda partition, chain: b"%d:" % partition + b"|".join(chain),
        "totals": double,
    },
}


def restored(client: Checkpointer, **options: Any) -> Restored:
    found = client.restore(**options)
    assert found is not None
    return found


def rows_of(found: Restored, name: str) -> dict[int, int]:
    return {row["k"]: row["n"] for row in found.table(name).to_pylist()}


def check_migrated(found: Restored) -> None:
    """All of `CHANGES`, on what the fixture wrote."""
    assert found.operators == ["model", "totals", "users"]
    assert found.keyed("users").to_dict() == {key: value["n"] for key, value in MAP.items()}
    assert found.keyed("users").partitions == 8
    assert found.operator("model").read() == {0: [b"0:weights|+1"], 3: [b"3:bias"]}
    assert rows_of(found, "totals") == {key: 2 * value for key, value in ROWS.items()}
    assert found.table("totals", keys=[{"k": 7}]).to_pylist() == [{"k": 7, "n": 140}]
    assert found.positions == {"topic": {"0": "12"}}
    assert found.properties == {"version": "1"}
    assert found.watermark == "2024-01-01"
    assert found.epoch == 7
    assert found.job == JOB


# ---- what it gives ---------------------------------------------------------------------------------------------------


def test_a_migration_is_shown_at_once_and_committed_by_the_next_checkpoint(world: World, client: Actor) -> None:
    before, objects = world.latest(), world.objects()
    check_migrated(restored(client, **CHANGES))
    assert world.latest() == before
    assert world.objects() == objects
    with client.begin() as cp:
        assert cp.epoch == 7
        assert cp.parent is not None
        check_migrated(cp.parent)
    check_migrated(restored(world.actor()))
    assert world.actor().verify()
    assert world.pointer().committed != before


def test_a_commit_after_the_migration_is_an_ordinary_one(world: World, client: Actor) -> None:
    restored(client, **CHANGES)
    with client.begin():
        pass
    whole = contents(restored(world.actor()))
    with client.begin(8) as cp:
        pass
    found = restored(world.actor())
    assert contents(found) == whole
    assert (found.epoch, found.job) == (8, None)
    assert cp.id.sequence == 4


def test_what_was_only_renamed_is_not_written_again(world: World, client: Actor) -> None:
    before = world.objects("artifacts/")
    restored(client, rename={"seen": "users", "model": "seen", "rows": "totals"})
    with client.begin():
        pass
    assert world.objects("artifacts/") == before
    found = restored(world.actor())
    assert found.keyed("users").to_dict() == MAP | {"user-1": {"n": 1}}
    assert found.operator("seen").read() == {0: [b"weights", b"+1"], 3: [b"bias"]}
    assert rows_of(found, "totals") == ROWS


def test_names_can_be_swapped(world: World, client: Actor) -> None:
    old = contents(restored(client))
    restored(client, rename={"model": "old", "old": "model"})
    with client.begin():
        pass
    new = contents(restored(world.actor()))
    assert new == old | {"model": old["old"], "old": old["model"]}


def test_a_name_that_is_dropped_can_be_taken(world: World, client: Actor) -> None:
    restored(client, drop=["model"], rename={"old": "model"}, transform={"model": lambda partition, chain: b"new"})
    with client.begin():
        pass
    assert contents(restored(world.actor()))["model"] == {0: [b"new"]}


@pytest.mark.parametrize("early", [True, False])
def test_a_map_that_was_renamed_is_saved_on_as_deltas(world: World, client: Actor, early: bool) -> None:
    """Whether it was restored before or after, and the table beside it too."""
    state = restored(client).keyed("seen")
    migrated = restored(client, rename={"seen": "users", "rows": "totals"})
    state = state if early else migrated.keyed("users")
    known = world.objects("artifacts/")
    for value in (100, 200):
        with client.begin() as cp:
            state["user-5"]["n"] = value
            cp.save("users", state)
            write_rows(client, cp, {3: value}, "totals")
    new = world.objects("artifacts/") - known
    assert all(path.startswith(("artifacts/users/", "artifacts/totals/")) for path in new)
    assert {path.split(".")[1] for path in new if "/users/" in path} == {"delta"}
    found = restored(world.actor())
    assert found.keyed("users").to_dict() == MAP | {"user-1": {"n": 1}, "user-5": {"n": 200}}
    assert rows_of(found, "totals") == ROWS | {3: 330}


def test_what_is_saved_in_the_same_checkpoint_wins(world: World, client: Actor) -> None:
    found = restored(client, **CHANGES)
    users = found.keyed("users")
    users.update(dict.fromkeys(users, "mine"))
    with client.begin(8) as cp:
        cp.save("users", users)
        cp.delta("model", 0, b"+2")
        cp.snapshot("model", 3, b"mine")
        cp.drop("totals")
        cp.keep("model", 0)
    now = restored(world.actor())
    assert now.operators == ["model", "users"]
    assert now.keyed("users").to_dict() == dict.fromkeys(MAP, "mine")
    assert now.operator("model").read() == {0: [b"0:weights|+1", b"+2"], 3: [b"mine"]}
    assert (now.epoch, now.job) == (8, None)
    assert len(world.objects("artifacts/users/")) == 1, "what the checkpoint replaced was written too"
    users["user-3"] = "later"
    with client.begin(9) as cp:
        cp.save("users", users)
    assert restored(world.actor()).keyed("users")["user-3"] == "later"
    assert restored(world.actor()).keyed("users")["user-2"] == "mine"


def test_a_save_reuses_what_the_migration_made_where_it_is_the_same(world: World, client: Actor) -> None:
    users = restored(client, **CHANGES).keyed("users")
    users["user-2"] = "mine"
    with client.begin() as cp:
        cp.save("users", users)
    wanted = {key: value["n"] for key, value in MAP.items()} | {"user-2": "mine"}
    assert restored(world.actor()).keyed("users").to_dict() == wanted
    assert world.actor().verify()
    known = world.objects("artifacts/users/")
    users["user-2"] = "later"
    with client.begin() as cp:
        cp.save("users", users)
    (delta,) = world.objects("artifacts/users/") - known
    assert ".delta." in delta
    assert restored(world.actor()).keyed("users").to_dict() == wanted | {"user-2": "later"}


def test_a_table_that_was_transformed_can_be_extended_in_the_same_checkpoint(world: World, client: Actor) -> None:
    """Tasks read it by themselves, so it is in the store before the callback runs."""
    restored(client, **CHANGES)
    with client.begin() as cp:
        operator = cp.writer.operator("totals")
        assert operator is not None
        assert {a.path for chain in operator.chains.values() for a in chain} <= world.objects("artifacts/totals/")
        write_rows(client, cp, {3: 5}, "totals")
    assert rows_of(restored(world.actor()), "totals")[3] == 65


def test_columns_come_and_go_and_are_recorded(world: World, client: Actor) -> None:
    def evolve(rows: pa.Table) -> pa.Table:
        rows = rows.filter(pc.greater(rows["k"], 4))
        count = pc.cast(rows["n"], pa.float64())
        tags = pa.array([["a"]] * rows.num_rows, pa.list_(pa.string()))
        return pa.table({"tags": tags, "k": rows["k"], "n": count})

    found = restored(client, transform={"rows": evolve})
    wanted = [{"k": key, "tags": ["a"], "n": float(value)} for key, value in ROWS.items() if key > 4]
    assert sorted(found.table("rows").to_pylist(), key=lambda row: row["k"]) == wanted
    with client.begin():
        pass
    found = restored(world.actor())
    assert sorted(found.table("rows").to_pylist(), key=lambda row: row["k"]) == wanted
    assert found.manifest is not None
    array = {"type": "array", "elementType": "string", "containsNull": True}
    assert found.manifest.operators["rows"].schema == {
        "columns": [
            {"id": 1, "name": "k", "type": "long", "role": "key"},
            {"id": 3, "name": "tags", "type": array, "role": "last"},
            {"id": 4, "name": "n", "type": "double", "role": "sum"},
        ],
        "next_id": 5,
    }


@pytest.mark.parametrize(
    ("change", "role"),
    [
        (lambda rows: rows.rename_columns(["k", "total"]), "sum"),
        (lambda rows: pa.table({"k": rows["k"], "total": rows["n"]}), "last"),
        (lambda rows: _with_field(rows, pa.field("total", pa.int64(), metadata={"combine": "max"})), "max"),
        (lambda rows: _with_field(rows, pa.field("n", pa.int64(), metadata={"combine": "last"})), "last"),
    ],
    ids=["renamed", "made", "said", "said of an old one"],
)
def test_a_column_is_combined_as_before_or_as_its_field_says(
    world: World, client: Actor, change: Callable[[pa.Table], pa.Table], role: str
) -> None:
    restored(client, transform={"rows": change})
    with client.begin():
        pass
    found = restored(world.actor())
    assert found.manifest is not None
    schema = TableSchema.from_json("rows", found.manifest.operators["rows"].schema)
    assert [column.role for column in schema.columns] == ["key", role]
    assert sorted(row[schema.names[1]] for row in found.table("rows").to_pylist()) == [*ROWS.values()]


def _with_field(rows: pa.Table, field: pa.Field) -> pa.Table:
    return pa.table({"k": rows["k"], field.name: rows["n"]}, schema=pa.schema([("k", pa.int64()), field]))


def test_small_partitions_share_an_object(world: World, client: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that a job writes do; large ones have one of their own."""
    before = world.objects("artifacts/rows/")
    restored(client, transform={"rows": double})
    with client.begin():
        pass
    assert len(world.objects("artifacts/rows/") - before) == 1
    monkeypatch.setattr(compaction, "SMALL_PARTITION", 10)
    monkeypatch.setattr(migration, "MIGRATION_PACK_BYTES", 1)
    before = world.objects("artifacts/rows/")
    restored(client, transform={"rows": double})
    with client.begin():
        pass
    assert len(world.objects("artifacts/rows/") - before) == 4
    assert rows_of(restored(world.actor()), "rows") == {key: 4 * value for key, value in ROWS.items()}
    assert world.actor().verify()


def test_a_table_without_rows_gets_its_new_columns(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.writer.put_operator(
            "rows", Operator(4, codecs.PARQUET.partitioner, codecs.PARQUET.name, {}, SCHEMA.to_json())
        )
    restored(client, transform={"rows": lambda rows: rows.append_column("x", pa.nulls(0, pa.string()))})
    with client.begin():
        pass
    assert restored(world.actor()).table("rows").schema.names == ["k", "n", "x"]


def test_long_lists_of_partitions_move_with_their_operator(
    world: World, monkeypatch: pytest.MonkeyPatch, client: Actor
) -> None:
    """Segments say whose they are."""
    monkeypatch.setattr(segments, "INLINE", 2)
    restored(client)
    with client.begin() as cp:
        for partition in range(6):
            cp.snapshot("many", partition, b"%d" % partition)
    restored(client, rename={"many": "model", "model": "many"}, transform={"many": lambda partition, chain: b"new"})
    with client.begin() as cp:
        cp.snapshot("model", 2, b"two")
    found = restored(world.actor())
    assert found.operator("model").read() == {p: [b"two" if p == 2 else b"%d" % p] for p in range(6)}
    assert found.operator("many").read() == {0: [b"new"], 3: [b"new"]}
    assert world.actor().verify()


def test_large_results_are_written_too(world: World, client: Actor) -> None:
    """Each as an object of its own, beside small ones in a pack."""
    restored(client, transform={"model": lambda partition, chain: bytes(300_000 * partition + 1)})
    with client.begin():
        pass
    assert restored(world.actor()).operator("model").read() == {0: [bytes(1)], 3: [bytes(900_001)]}


def test_another_checkpoint_is_only_shown(world: World, client: Actor) -> None:
    """A dry run."""
    client.savepoint("here")
    with client.begin(8) as cp:
        cp.snapshot("model", 0, b"newer")
    before = world.latest()
    for options in ({"savepoint": "here"}, {"epoch": 7}, {"id": cp.parent.id if cp.parent else None}):
        check_migrated(restored(client, **options, **CHANGES))
        with pytest.raises(InvalidStateError, match="not the committed checkpoint"):
            client.begin()
    assert world.latest() == before


def test_the_committed_checkpoint_by_its_id_can_be_migrated(world: World, client: Actor) -> None:
    found = restored(client)
    check_migrated(restored(client, id=found.id, on_corruption="error", **CHANGES))
    with client.begin():
        pass
    check_migrated(restored(world.actor()))


def test_an_empty_root_has_nothing_to_migrate(world: World) -> None:
    client = world.actor()
    assert client.restore(**CHANGES) is None
    with client.begin() as cp:
        cp.snapshot("model", 0, b"first")
    assert restored(world.actor()).operators == ["model"]


def test_a_damaged_checkpoint_gives_way_to_an_older_one_that_is_shown_migrated(world: World, client: Actor) -> None:
    (newest,) = [path for path in world.objects("artifacts/model/") if ".delta." in path]
    world.delete(newest)
    found = restored(client, on_corruption="previous", rename={"model": "weights"})
    assert found.skipped
    assert found.operator("weights").partition(0) == [b"weights"]
    with pytest.raises(InvalidStateError):
        client.begin()


def test_renamed_operators_are_counted_cleaned_and_copied_as_what_they_are(world: World, client: Actor) -> None:
    restored(client, **CHANGES | {"transform": {"model": lambda partition, chain: b"m"}})
    with client.begin():
        pass
    whole = contents(restored(world.actor()))
    stats = run_sync(read_stats(client.session))
    assert {held.operator for held in stats.held} == {"users", "model", "totals", "old"}
    copy = World()
    client.export(None, copy.store.url)
    assert contents(restored(copy.actor())) == whole
    client.clean(RetentionPolicy(keep_last=1))
    assert world.actor().verify()
    assert contents(restored(world.actor())) == whole
    assert {held.operator for held in run_sync(read_stats(client.session)).held} >= {"users", "model", "totals"}


# ---- when it is given up, or fails -----------------------------------------------------------------------------------


def test_a_migration_stays_pending_until_it_is_committed(world: World, client: Actor) -> None:
    restored(client, **CHANGES)
    old = contents(restored(world.actor()))
    with pytest.raises(ZeroDivisionError), client.begin() as cp:
        cp.snapshot("model", 1, b"gone")
        raise ZeroDivisionError
    cp = client.begin()
    cp.abort()
    prepared = client.begin().prepare()
    prepared.abort()
    assert contents(restored(world.actor())) == old
    prepared = client.begin().prepare()
    prepared.commit()
    check_migrated(restored(world.actor()))


def test_a_prepared_migration_is_committed_after_a_restart(world: World, client: Actor) -> None:
    restored(client, **CHANGES)
    client.begin().prepare()
    other = world.actor()
    found = restored(other)
    assert found.operators == ["model", "old", "rows", "seen"]
    with pytest.raises(InvalidStateError, match="is prepared"):
        other.restore(**CHANGES)
    assert found.prepared is not None
    found.prepared.commit()
    check_migrated(restored(world.actor()))


def test_another_restore_gives_a_migration_up(world: World, client: Actor) -> None:
    restored(client, **CHANGES)
    whole = contents(restored(client))
    with client.begin():
        pass
    assert contents(restored(world.actor())) == whole


def test_a_change_by_hand_belongs_to_the_same_batch(world: World, client: Actor) -> None:
    """A stream knows its batch by the epoch and the job, whoever changed its state in between."""
    with client.begin() as cp:
        cp.snapshot("model", 0, b"mended")
    with world.actor().begin():
        pass
    found = restored(world.actor())
    assert (found.epoch, found.job) == (7, JOB)
    with world.actor().begin(8):
        pass
    found = restored(world.actor())
    assert (found.epoch, found.job) == (8, None)


def test_a_rollback_gives_a_migration_up(world: World, client: Actor) -> None:
    whole = contents(restored(client))
    client.savepoint("here")
    restored(client, **CHANGES)
    client.rollback("here")
    with client.begin():
        pass
    assert contents(restored(world.actor())) == whole


def test_a_saved_manifest_cannot_leave_a_migration_out(world: World, client: Actor) -> None:
    found = restored(client, rename={"model": "weights"})
    assert found.manifest is not None
    with pytest.raises(InvalidStateError, match="a migration is pending"):
        client.update_latest(client.new_id())


@pytest.mark.parametrize("changes", [CHANGES, {"rename": {"seen": "users"}, "drop": ["old"]}], ids=["all", "names"])
def test_a_fault_in_any_request_leaves_the_old_state_and_the_next_attempt_succeeds(changes: dict[str, Any]) -> None:
    failed = 0
    for number in range(1, 50):
        world = World()
        client = old_job(world)
        old = contents(restored(world.actor()))
        new = contents(restored(client, **changes))
        client.faults.forget()
        client.faults.fail(None, number)
        try:
            with client.begin():
                pass
        except CheckpointError:
            failed += 1
            assert contents(restored(world.actor())) == old
            assert world.actor().verify()
            with client.begin():
                pass
        found = restored(world.actor())
        assert contents(found) == new
        assert (found.epoch, found.job) == (7, JOB)
        assert world.actor().verify()
        if len(client.faults.requests) < number:
            break
    # A pack each of the table, of maps and of bytes, and the manifest; an unanswered swap is resolved.
    assert failed == (4 if changes is CHANGES else 1)


def test_a_crash_at_any_request_leaves_the_old_state_or_the_new_one() -> None:
    roots: dict[str, World] = {}

    def new_root() -> str:
        world = World()
        roots[world.store.url] = world
        return world.store.url

    def setup(root: str) -> None:
        with Checkpointer(root).begin(7) as cp:
            cp.save("seen", KeyedState(MAP))
            cp.snapshot("model", 0, b"weights")

    def migrate(root: str) -> None:
        ck = Checkpointer(root)
        found = ck.restore()
        if found is None or "seen" not in found.operators:
            return
        ck.restore(rename={"seen": "users"}, transform={"users": lambda old: dict.fromkeys(old, 1)}, drop=["model"])
        with ck.begin():
            pass

    points = 0
    for point in crash_points(migrate, new_root, setup):
        found = restored(Checkpointer(point.root))
        if found.operators == ["users"]:
            assert found.keyed("users").to_dict() == dict.fromkeys(MAP, 1)
        else:
            assert found.keyed("seen").to_dict() == MAP
            assert found.operator("model").partition(0) == [b"weights"]
        migrate(point.root)
        found = restored(Checkpointer(point.root))
        assert found.operators == ["users"]
        assert found.epoch == 7
        points += 1
    assert points > 8


# ---- what is refused -------------------------------------------------------------------------------------------------


def fails(*given: Any) -> Any:
    raise LookupError("planted")


NAMES: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown name is renamed": ({"rename": {"sen": "x"}}, "'sen'.* has model, old, rows, seen"),
    "an unknown name is dropped": ({"drop": ["x"]}, "'x'.* has model, old, rows, seen"),
    "what is no name is dropped": ({"drop": [["x"]]}, "drop: .* has model, old, rows, seen"),
    "an unknown name is transformed": ({"transform": {"x": dict}}, "'x'.*there are model, old, rows, seen"),
    "an old name is transformed": ({"rename": {"seen": "s"}, "transform": {"seen": dict}}, "called 's' from now on"),
    "a dropped one is transformed": ({"drop": ["old"], "transform": {"old": fails}}, "'old': is dropped"),
    "a dropped one is renamed": ({"drop": ["old"], "rename": {"old": "x"}}, "both dropped and renamed"),
    "two get one name": ({"rename": {"seen": "x", "old": "x"}}, "'seen' and 'old'|'old' and 'seen'"),
    "a name is taken": ({"rename": {"seen": "old"}}, "would both be operator 'old'"),
    "a name that is taken later": ({"rename": {"old": "seen", "model": "x"}}, "would both be operator 'seen'"),
    "a bad name": ({"rename": {"seen": "../x"}}, "must not start with a dot"),
    "a name that is none": ({"rename": {"seen": 5}}, "expected a name"),
    "a transform that is no function": ({"transform": {"seen": 5}}, "'seen': 5 is no function"),
    "renames that are no dict": ({"rename": ["seen"]}, "expected a dict"),
    "transforms that are no dict": ({"transform": "seen"}, "expected a dict"),
    "one name to drop": ({"drop": "old"}, "expected a list"),
}

CONTENT: dict[str, tuple[str, Callable[..., Any], str]] = {
    "a function of a map raises": ("seen", fails, "operator 'seen': its transform raised LookupError: planted"),
    "a function of bytes raises": ("model", fails, "operator 'model', partition 0: .* LookupError"),
    "a function of a table raises": ("rows", fails, "operator 'rows', partition 0: .* LookupError"),
    "no dict": ("seen", list, "has to return a dict, not list"),
    "a value that cannot be stored": ("seen", lambda old: {"a": object()}, "'seen'.*cannot be stored.*'a'"),
    "a key that cannot be stored": ("seen", lambda old: {object(): 1}, "'seen'.*cannot be stored.*key"),
    "no bytes": ("model", lambda partition, chain: "text", "partition 0: .* return bytes, not str"),
    "no table": ("rows", lambda rows: rows.to_pydict(), "partition 0: .* return a pyarrow.Table, not dict"),
    "no key": ("rows", lambda rows: rows.select(["n"]), "column 'k' is missing"),
    "another type of key": (
        "rows",
        lambda rows: rows.set_column(0, "k", rows["k"].cast(pa.int32())),
        "'k' of the key has to stay long, and not become integer",
    ),
    "keys of other partitions": (
        "rows",
        lambda rows: rows.set_column(0, "k", pc.add(rows["k"], 1)),
        r"the key k=\d+, which hashes to partition \d: keys have to stay",
    ),
    "keys twice": ("rows", lambda rows: pa.concat_tables([rows, rows]), "several rows have the key k="),
    "a type that cannot be stored": (
        "rows",
        lambda rows: rows.append_column("x", pa.nulls(rows.num_rows)),
        "column 'x': type null cannot be stored",
    ),
    "a reserved name": ("rows", lambda rows: rows.append_column(CHANGE, rows["n"]), "the name is taken"),
    "one name twice": ("rows", lambda rows: rows.append_column("n", rows["n"]), "is there twice"),
    "a sum of texts": (
        "rows",
        lambda rows: rows.set_column(1, "n", rows["n"].cast(pa.string())),
        "sum of string is not defined",
    ),
}


@pytest.mark.parametrize(("changes", "message"), NAMES.values(), ids=NAMES)
def test_bad_names_are_refused_before_anything_is_read(
    world: World, client: Actor, changes: dict[str, Any], message: str
) -> None:
    before = world.latest()
    client.faults.forget()
    with pytest.raises(IllegalArgumentError, match=message):
        client.restore(**changes)
    assert not any("artifacts/" in path for path in [*client.faults.paths("get"), *client.faults.paths("get_range")])
    assert world.latest() == before


@pytest.mark.parametrize(("name", "function", "message"), CONTENT.values(), ids=CONTENT)
def test_bad_results_are_refused_and_nothing_is_written(
    world: World, client: Actor, name: str, function: Callable[..., Any], message: str
) -> None:
    whole, objects, before = contents(restored(client)), world.objects(), world.latest()
    with pytest.raises(IllegalArgumentError, match=message) as caught:
        client.restore(rename={"old": "older"}, transform={name: function})
    assert isinstance(caught.value.__cause__, LookupError) == (function is fails)
    assert world.objects() == objects
    assert world.latest() == before
    with client.begin():  # it stands where it stood
        pass
    assert contents(restored(world.actor())) == whole


def test_columns_have_to_be_the_same_in_every_partition(client: Actor) -> None:
    seen: list[int] = []

    def fickle(rows: pa.Table) -> pa.Table:
        seen.append(rows.num_rows)
        return rows if len(seen) < 3 else rows.append_column("x", rows["n"])

    with pytest.raises(
        IllegalArgumentError, match=r"partition 2: .* k int64, n int64 sum, x int64, but k int64, n int64 sum"
    ):
        client.restore(transform={"rows": fickle})
    seen.clear()

    def forgets_how_it_combines(rows: pa.Table) -> pa.Table:
        seen.append(rows.num_rows)
        rows = rows.rename_columns(["k", "total"])
        return rows if len(seen) < 3 else pa.table({"k": rows["k"], "total": rows["total"]})

    with pytest.raises(IllegalArgumentError, match=r"partition 2: .* total int64, but k int64, total int64 sum"):
        client.restore(transform={"rows": forgets_how_it_combines})


def test_parquet_that_is_no_table_is_not_transformed(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.writer.put_operator("x", Operator(1, "explicit", codecs.PARQUET.name))
    with pytest.raises(IllegalArgumentError, match=r"'x': is .*, not a table"):
        client.restore(transform={"x": lambda rows: rows})


def test_a_saved_manifest_takes_no_new_object_of_another_operator(world: World, client: Actor) -> None:
    """An older one may have been written under another name; nobody writes a new one so."""
    found = restored(client)
    assert found.manifest is not None
    wrong, head = client.new_id(), world.pointer().committed
    artifact = client.save_snapshot(wrong, "model", 0, b"x")
    operators = {**found.manifest.operators, "old": Operator(1, "explicit", "raw", {0: (artifact,)})}
    client.save_manifest(replace(found.manifest, id=wrong, parent=head, operators=operators))
    with pytest.raises(IllegalArgumentError, match="was written for 'model', not for 'old'"):
        client.update_latest(wrong)


# ---- both faces, any names -------------------------------------------------------------------------------------------


def test_the_asynchronous_checkpointer_migrates_likewise(world: World, client: Actor) -> None:
    async def migrate() -> None:
        async with AsyncCheckpointer(world.store.url) as other:
            with pytest.raises(IllegalArgumentError, match="raised LookupError"):
                await other.restore(transform={"seen": fails})
            with pytest.raises(IllegalArgumentError, match="'x'"):
                await other.restore(drop=["x"])
            found = await other.restore(**CHANGES)
            assert found is not None
            assert (await found.keyed("users")).to_dict() == {key: value["n"] for key, value in MAP.items()}
            assert await found.operator("model").partition(3) == [b"3:bias"]
            assert (await found.table("totals")).num_rows == len(ROWS)
            cp = await other.begin()
            await cp.abort()
            async with other.begin() as cp:
                assert cp.epoch == 7
                assert cp.parent is not None
                assert cp.parent.operators == ["model", "totals", "users"]

    asyncio.run(migrate())
    check_migrated(restored(world.actor()))


NAME = st.sampled_from(["a", "b", "c", "d", "e", "f"])


@settings(max_examples=60, deadline=None)
@given(
    there=st.sets(NAME, min_size=1, max_size=4),
    rename=st.dictionaries(NAME, NAME, max_size=4),
    drop=st.sets(NAME, max_size=2),
    transform=st.sets(NAME, max_size=2),
)
def test_any_names_are_migrated_as_a_whole_or_refused(
    there: set[str], rename: dict[str, str], drop: set[str], transform: set[str]
) -> None:
    world = World()
    client = world.actor()
    with client.begin(1) as cp:
        for name in sorted(there):
            cp.snapshot(name, 0, name.encode())
    new = [rename.get(name, name) for name in sorted(there - drop)]
    good = (
        rename.keys() <= there
        and drop <= there
        and not drop & rename.keys()
        and len(set(new)) == len(new)
        and transform <= set(new)
    )
    wanted = {rename.get(name, name): {0: [name.encode()]} for name in there - drop}
    functions = dict.fromkeys(transform, lambda partition, chain: b"".join(chain).upper())
    if good:
        wanted |= {name: {0: [wanted[name][0][0].upper()]} for name in transform}
        assert contents(restored(client, rename=rename, drop=drop, transform=functions)) == wanted
    else:
        with pytest.raises(IllegalArgumentError):
            client.restore(rename=rename, drop=drop, transform=functions)
        wanted = {name: {0: [name.encode()]} for name in there}
    with client.begin():
        pass
    assert contents(restored(world.actor())) == wanted
    assert world.actor().verify()
