"""Give up, crash or refuse a migration: the old state stays whole."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError, OutcomeUnknownError
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from pyspark_checkpointer.table.schema import CHANGE
from pyspark_checkpointer.testing.crashes import crash_points
from tests.checkpoint.migrations import CHANGES, JOB, MAP, check_migrated, fails, old_job, restored
from tests.table.tables import long_decimals
from tests.world import Actor, World, contents


@pytest.fixture
def client(world: World) -> Actor:
    return old_job(world)


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


def test_a_migration_outlives_the_abort_of_an_attempt_begun_before_it(world: World, client: Actor) -> None:
    cp = client.begin()
    late = client.faults.late(times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError):
        cp.prepare()
    restored(client, **CHANGES)
    cp.abort()
    assert not any(swap.land() for swap in late)
    with client.begin():
        pass
    check_migrated(restored(world.actor()))


def test_a_migration_outlives_an_attempt_that_was_prepared_and_aborted_after_it(world: World, client: Actor) -> None:
    cp = client.begin()
    restored(client, **CHANGES)
    cp.prepare().abort()
    with client.begin():
        pass
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


NAMES: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown name is renamed": ({"rename": {"sen": "x"}}, "'sen'.* has model, old, rows, seen"),
    "an unknown name is dropped": ({"drop": ["x"]}, "'x'.* has model, old, rows, seen"),
    "what is no name is dropped": ({"drop": [["x"]]}, "drop: .* has model, old, rows, seen"),
    "an unknown name is transformed": ({"transform": {"x": dict}}, "'x'.*there are model, old, rows, seen"),
    "an old name is transformed": (
        {"rename": {"seen": "s"}, "transform": {"seen": dict}},
        "renamed to 's': use that name",
    ),
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
    "a decimal of too many digits": (
        "rows",
        lambda rows: rows.append_column("x", long_decimals(pa.decimal128(5, 2), *[100_000] * rows.num_rows)),
        "operator 'rows', partition 0: its transform returned rows that cannot be stored",
    ),
    "a map with a key twice": (
        "rows",
        lambda rows: rows.append_column(
            "x", pa.array([[("a", 1), ("a", 2)]] * rows.num_rows, pa.map_(pa.string(), pa.int64()))
        ),
        "cannot be stored: a map has the key 'a' twice",
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
