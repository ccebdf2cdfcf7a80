"""Expiry of the entries of maps: by the job's clock, which is part of each checkpoint.

What holds: an entry is in a checkpoint exactly if, since it was last set or changed, no checkpoint's clock has reached
the clock of the checkpoint that set it plus the duration of the rule at that time.
"""

import copy
import random
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.cli.app import checkpointer as command
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError, MalformedError
from pyspark_checkpointer.spark import State
from tests.proof.plain_spark import new_state

START = datetime(2024, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


class Place:
    """A root, and batches of maps without Spark."""

    def __init__(self, root: str | None = None) -> None:
        self.client = Checkpointer(root or f"memory://{uuid.uuid4().hex}", max_chain=4)
        self.number = -1
        self.kept: State | None = None

    def begin(self, day: float | None = None, *, time: datetime | None = None, again: bool = False) -> State:
        """The next batch: of a new run, or of the run of the batch before."""
        if again and self.kept is not None:
            run = self.kept._attempt.run
            run.allow_changes()
            state = new_state(run.client, None, self.number + 1, time=time)
            state._attempt.run = run
        else:
            self.client = self.client.copy()
            state = new_state(self.client, self.client.restore(), self.number + 1, time=time)
        if day is not None:
            state.advance_clock(START + day * DAY)
        return state

    def commit(self, state: State) -> None:
        state._attempt.commit()
        self.number += 1
        self.kept = state

    def batch(self, day: float, entries: dict[Any, Any] | None = None, after: float | None = 10) -> None:
        state = self.begin(day)
        found = state.map("m", partitions=2, expire_after=None if after is None else after * DAY)
        found.update(entries or {})
        self.commit(state)

    def read(self) -> dict[Any, Any]:
        restored = self.client.copy().restore()
        assert restored is not None
        keyed = restored.keyed("m")
        assert (len(keyed), dict(keyed.items())) == (len(keyed.to_dict()), keyed.to_dict())
        return keyed.to_dict()

    def records(self) -> int:
        restored = self.client.copy().restore()
        assert restored is not None
        operator = restored.operator("m")
        return sum(artifact.records for p in operator.partitions for artifact in operator.chain(p))


@pytest.fixture
def place() -> Place:
    return Place()


def test_an_entry_is_gone_once_the_clock_has_reached_its_time(place: Place) -> None:
    place.batch(0, {"a": 1, "b": [1]})
    place.batch(5, {"b": [1], "c": 3})  # set to what it was: its time is new
    state = place.begin()
    state.advance_clock(START + 10 * DAY - timedelta(microseconds=1))
    assert sorted(state.map("m", expire_after=10 * DAY)) == ["a", "b", "c"]
    state.advance_clock(START + 10 * DAY)
    found = state.map("m", expire_after=10 * DAY)
    assert (sorted(found), "a" in found, found.get("a"), len(found)) == (["b", "c"], False, None, 2)
    place.commit(state)
    assert place.read() == {"b": [1], "c": 3}
    place.batch(15)
    assert place.read() == {}


def test_a_change_inside_a_value_counts_and_a_look_at_it_does_not(place: Place) -> None:
    place.batch(0, {"changed": [1], "read": [1]})
    state = place.begin(5)
    found = state.map("m", expire_after=10 * DAY)
    found["changed"].append(2)
    assert found["read"] == [1]
    place.commit(state)
    place.batch(12)
    assert place.read() == {"changed": [1, 2]}


def test_the_clock_of_a_batch_that_does_not_open_the_map_counts(place: Place) -> None:
    place.batch(0, {"a": 1})
    place.commit(place.begin(10))
    assert place.read() == {}
    state = place.begin(10, again=True)  # of the same run, whose map is in memory
    assert state.map("m", expire_after=10 * DAY).to_dict() == {}


def test_all_of_a_batch_has_one_time_whenever_the_clock_is_moved(place: Place) -> None:
    state = place.begin(0)
    found = state.map("m", expire_after=10 * DAY)
    found["plain"] = 1
    state.advance_clock(START + DAY)
    found["list"] = [1]
    place.commit(state)
    place.batch(10.5)
    assert place.read() == {"plain": 1, "list": [1]}
    place.batch(11)
    assert place.read() == {}


def test_older_entries_count_from_the_adoption_and_nothing_is_written_again(place: Place) -> None:
    place.batch(0, {k: k for k in range(100)}, after=None)
    before = place.records()
    place.batch(20, after=10)
    assert (len(place.read()), place.records()) == (100, before)
    place.batch(29, {1: 1})
    place.batch(30)
    assert place.read() == {1: 1}


def test_a_map_with_entries_adopts_its_rule_with_the_first_time_of_the_clock(place: Place) -> None:
    state = place.begin()
    state.map("m", partitions=2)["a"] = 1
    place.commit(state)
    for again in (False, True):  # Batches without rows, which know no time.
        state = place.begin(again=again)
        state.advance_clock(None)
        found = state.map("m", partitions=2, expire_after=10 * DAY)
        assert state.map("m", expire_after=10 * DAY) is found
        assert dict(found) == {"a": 1}
        place.commit(state)
        assert place.read() == {"a": 1}
    place.batch(0)
    assert place.read() == {"a": 1}
    place.batch(10)
    assert place.read() == {}


def test_the_clock_does_not_get_its_first_time_after_a_map_has_asked_for_it(place: Place) -> None:
    state = place.begin()
    state.map("m", partitions=2)["a"] = 1
    place.commit(state)
    state = place.begin()
    state.advance_clock(None)
    state.map("m", partitions=2, expire_after=10 * DAY)
    with pytest.raises(InvalidStateError, match="waits for a time"):
        state.advance_clock(START)


def test_the_clock_of_sparks_batches_moves_maps_too(place: Place) -> None:
    for days, left in ((0, {"a": 1}), (9, {"a": 1}), (10, {})):
        state = place.begin(time=START + days * DAY)
        found = state.map("m", expire_after=10 * DAY)
        if not days:
            found["a"] = 1
        place.commit(state)
        assert place.read() == left


@pytest.mark.parametrize("later", [None, 20])
def test_what_expired_does_not_come_back_by_another_rule(place: Place, later: float | None) -> None:
    place.batch(0, {"a": 1, "b": 2})
    place.batch(8, {"c": 3, "d": 4, "e": 5, "f": 6})
    place.batch(10)
    # At day 18 the others would be expired by the old rule too, but the last checkpoint was at day 10.
    place.batch(18, after=later)
    assert sorted(place.read()) == ["c", "d", "e", "f"]
    place.batch(19, {"g": 7}, after=later)
    assert sorted(place.read()) == ["c", "d", "e", "f", "g"]
    place.batch(28, after=10)
    assert sorted(place.read()) == (["g"] if later else ["c", "d", "e", "f", "g"])


def test_a_rollback_to_before_the_rule_shows_what_came_back(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "root"))
    place.batch(0, {"a": 1}, after=None)
    place.batch(0, after=10)
    place.batch(20, after=10)
    place.client.rollback(place.client.list_checkpoints()[0])
    for before, after, shown in (("2", "3", "1 expired"), ("3", "4", "1 inserted")):
        arguments = ["diff", place.client.root, f"{before:0>10}", f"{after:0>10}"]
        assert shown in CliRunner().invoke(command, [*arguments, "m"]).output
        assert "name the operator" in CliRunner().invoke(command, arguments).output


@pytest.mark.parametrize("later", [30, None])
def test_what_expired_before_its_map_was_opened_does_not_come_back(place: Place, later: float | None) -> None:
    """The run began before the entry expired, and opens the map only after another batch has moved the clock."""
    place.batch(0, {"a": 1})
    place.commit(place.begin(1))
    place.commit(place.begin(20, again=True))
    assert place.read() == {}
    state = place.begin(again=True)
    found = state.map("m", expire_after=None if later is None else later * DAY)
    assert dict(found) == {}
    found["b"] = 2
    place.commit(state)
    assert place.read() == {"b": 2}


def test_the_history_of_a_key_knows_when_it_expired(place: Place) -> None:
    place.batch(0, {"a": 1, "b": 1}, after=None)
    place.batch(1, {"a": [1], "b": 2})  # adopts the rule
    place.batch(5, {"a": [1]})  # the same value, with a new time
    place.batch(12)
    place.batch(16, {"b": 3})
    restored = place.client.copy().restore()
    assert restored is not None
    told = {key: [(c.epoch, c.change, c.before, c.after) for c in restored.history("m", key).changes] for key in "ab"}
    assert told == {
        "a": [(0, "insert", None, 1), (1, "update", 1, [1]), (4, "expire", [1], None)],
        "b": [(0, "insert", None, 1), (1, "update", 1, 2), (3, "expire", 2, None), (4, "insert", None, 3)],
    }
    place.client.rollback(place.client.list_checkpoints()[2])
    again = place.client.copy().restore()
    assert again is not None
    back = [(c.change, c.before, c.after) for c in again.history("m", "a").changes]
    assert back[-2:] == [("expire", [1], None), ("insert", None, [1])]


def test_entries_expire_sooner_without_a_rewrite(place: Place) -> None:
    place.batch(0, {"a": 1})
    place.batch(8, {"b": 1})
    before = place.records()
    place.batch(9, after=5)
    assert (place.read(), place.records()) == ({"b": 1}, before)


def test_expiry_costs_no_bytes_until_more_than_half_expired(place: Place) -> None:
    place.batch(0, dict.fromkeys(range(80), "x" * 50))
    place.batch(5, dict.fromkeys(range(80, 200), "y" * 50))  # too much for a delta
    before = place.records()
    place.batch(10)
    assert (len(place.read()), place.records(), before) == (120, 200, 200)
    place.batch(14)
    assert place.records() == 200
    place.batch(15)
    assert (place.read(), place.records()) == ({}, 0)
    place.batch(16, {"a": 1})
    assert (place.read(), place.records()) == ({"a": 1}, 1)


def test_a_rollback_takes_the_clock_back_with_the_entries(place: Place) -> None:
    place.batch(0, {"a": 1})
    place.batch(10)
    assert place.read() == {}
    place.client.rollback(to="epoch=0")
    assert place.read() == {"a": 1}


def test_another_number_of_partitions_keeps_the_times(place: Place) -> None:
    place.batch(0, {k: k for k in range(50)})
    place.batch(5, {k: -k for k in range(20)})
    state = place.begin(9)
    state.map("m", partitions=7, expire_after=10 * DAY)
    place.commit(state)
    place.commit(place.begin(10))
    assert place.read() == {k: -k for k in range(20)}


def test_a_migration_counts_the_new_entries_from_its_checkpoint(place: Place) -> None:
    place.batch(0, {"a": 1})
    place.batch(9)
    client = place.client = place.client.copy()
    assert client.restore(transform={"m": lambda old: {key: str(value) for key, value in old.items()}})
    with client.begin():
        pass
    place.commit(place.begin(18))
    assert place.read() == {"a": "1"}
    place.commit(place.begin(19))
    assert place.read() == {}


def test_a_checkpoint_by_hand_keeps_rule_and_times(place: Place) -> None:
    place.batch(0, {"a": 1, "b": 1})
    place.batch(5)
    client = place.client = place.client.copy()
    restored = client.restore()
    assert restored is not None
    keyed = restored.keyed("m")
    keyed["b"] = 2
    with client.begin(epoch=2) as cp:
        cp.save("m", keyed)
    place.number = 1
    place.commit(place.begin(10))
    assert place.read() == {"b": 2}
    other = Checkpointer(f"memory://{uuid.uuid4().hex}")
    with pytest.raises(IllegalArgumentError, match="has no clock"), other.begin() as cp:
        cp.save("m", keyed)


def test_a_failed_commit_loses_no_change(place: Place) -> None:
    place.batch(0, {"a": 1})
    state = place.begin(5)
    state.map("m", expire_after=10 * DAY)["b"] = 2
    place.commit(state)
    again = place.begin(6, again=True)
    again.map("m", expire_after=10 * DAY)["a"] = 3
    again._attempt.abort()
    assert place.read() == {"a": 1, "b": 2}
    place.batch(10)
    assert place.read() == {"b": 2}


def test_commands_and_exports_leave_out_what_expired(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "root"))
    place.batch(0, {"a": 1, "b": 1, "c": 1})
    place.batch(5, {"b": 2, "d": 3})
    state = place.begin(10)
    del state.map("m", expire_after=10 * DAY)["d"]
    place.commit(state)
    run = CliRunner().invoke

    said = run(command, ["diff", place.client.root, "epoch=1", "latest", "m"])
    assert "0 inserted, 0 updated, 1 deleted, 2 expired" in said.output
    said = run(command, ["cat", place.client.root, "m"])
    assert ("b" in said.output, '"a"' in said.output, '"c"' in said.output) == (True, False, False)
    said = run(command, ["export", place.client.root, "latest", str(tmp_path / "out"), "--format", "parquet"])
    assert said.exit_code == 0, said.output
    rows = [row for path in (tmp_path / "out").rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert len(rows) == 1
    target = Checkpointer(str(tmp_path / "copy"))
    said = run(command, ["export", place.client.root, "latest", target.root])
    assert said.exit_code == 0, said.output
    restored = target.restore()
    assert restored is not None
    assert restored.keyed("m").to_dict() == {"b": 2}
    assert run(command, ["verify", place.client.root]).exit_code == 0


@pytest.mark.parametrize("later", [None, 20])
def test_an_entry_that_expired_before_the_rule_changed_is_told(tmp_path: Path, later: float | None) -> None:
    place = Place(str(tmp_path / "root"))
    place.batch(0, {"a": 1})
    place.batch(5, {"b": 2})
    place.batch(10)
    state = place.begin(11)
    del state.map("m", expire_after=None if later is None else later * DAY)["b"]
    place.commit(state)
    restored = place.client.copy().restore()
    assert restored is not None
    assert [restored.history("m", key).changes[-1].change for key in "ab"] == ["expire", "delete"]
    for epoch, shown in (("0", "0 deleted, 1 expired"), ("1", "1 deleted, 1 expired"), ("2", "1 deleted")):
        said = CliRunner().invoke(command, ["diff", place.client.root, f"epoch={epoch}", "latest", "m"])
        assert said.output.endswith(f"{shown}\n"), said.output


@pytest.mark.parametrize("after", [timedelta(0), -DAY, 5, timedelta(days=10**8 + 1)])
def test_rules_that_say_nothing_are_refused(place: Place, after: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="expected a timedelta above 0"):
        place.begin(0).map("m", expire_after=after)


def test_two_rules_in_one_batch_and_a_job_without_a_clock_are_refused(place: Place) -> None:
    state = place.begin(0)
    found = state.map("m", expire_after=DAY)
    assert state.map("m") is found
    assert state.map("m", expire_after=DAY) is found
    with pytest.raises(IllegalArgumentError, match="opened in this batch with another expire_after"):
        state.map("m", expire_after=2 * DAY)
    with pytest.raises(InvalidStateError, match=r"call state\.advance_clock"):
        Place().begin().map("m", expire_after=DAY)
    with pytest.raises(IllegalArgumentError, match="another expire_after"):
        state = Place().begin(0)
        state.map("m")
        state.map("m", expire_after=DAY)


def test_a_job_whose_maps_do_not_expire_has_no_clock(place: Place) -> None:
    state = place.begin(time=START)
    state.map("m")["a"] = 1
    place.commit(state)
    restored = place.client.restore()
    assert restored is not None
    assert (restored.clock, restored.manifest.operators["m"].schema) == (None, None)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "schema",
    [
        *([], "x", {}, {"expire": []}, {"expire": {}}),
        *({"expire": {"after_us": us, "since": "2024-01-01T00:00:00.000000Z"}} for us in (0, -1, True, 1.5, 10**19)),
        {"expire": {"after_us": 1, "since": "2024-01-01"}},
    ],
)
def test_a_rule_in_a_manifest_that_contradicts_itself_is_refused(place: Place, schema: Any) -> None:
    place.batch(0, {"a": 1})
    restored = place.client.copy().restore()
    assert restored is not None
    manifest = restored.reader.manifest
    assert manifest is not None
    changed = replace(manifest.operators["m"], schema=schema)
    restored.reader._manifest = replace(manifest, operators={"m": changed})
    with pytest.raises(MalformedError, match="'m'"):
        restored.keyed("m")
    restored.reader._manifest = replace(manifest, clock=None)
    with pytest.raises(MalformedError, match="has no clock"):
        restored.keyed("m")


# ---- random histories ------------------------------------------------------------------------------------------------


class Model:
    """A plain dict with a clock: for each key its value, and the time that it was set for."""

    def __init__(self) -> None:
        self.entries: dict[Any, tuple[Any, float]] = {}
        self.after: float | None = None

    def take_rule(self, after: float | None, day: float) -> None:
        if self.after is None and after is not None:
            self.entries = {key: (value, day) for key, (value, _) in self.entries.items()}
        self.after = after
        self.expire(day)

    def expire(self, day: float) -> None:
        if self.after is not None:
            self.entries = {k: (v, at) for k, (v, at) in self.entries.items() if at + self.after > day}

    def values(self) -> dict[Any, Any]:
        return {key: value for key, (value, _) in self.entries.items()}


KEYS: list[Any] = ["a", "b", "c", 1, (1, "x"), None, 2.0, *(f"k{n}" for n in range(12))]


def history(seed: int, steps: int = 25) -> None:
    draw = random.Random(seed)
    place, day = Place(), 0.0
    committed: list[tuple[Model, float]] = []
    rule: float | None = draw.choice([None, 3, 6])
    partitions = draw.choice([1, 2, 5])
    for _ in range(steps):
        step = draw.choice(["batch"] * 8 + ["die", "die late", "rollback", "restart", "rest"])
        if step == "rollback" and committed:
            back = draw.randrange(len(committed))
            place.client = place.client.copy()
            place.client.rollback(to=f"epoch={back}")
            del committed[back + 1 :]
            place.number, place.kept, day = back, None, committed[back][1]
        if step == "restart":
            place.kept = None
        model = copy.deepcopy(committed[-1][0]) if committed else Model()
        day += draw.choice([0, 0, 1, 1, 2, 4])
        state = place.begin(day, again=True)
        if step == "rest":
            model.expire(day)  # the rule stays, and the clock moves
        else:
            rule = draw.choice([rule] * 6 + [None, 2, 3, 6, 9])
            if place.kept is None:
                partitions = draw.choice([partitions, partitions, 1, 2, 5])
            found = state.map("m", partitions=partitions, expire_after=None if rule is None else rule * DAY)
            is_adopted = model.after is None and rule is not None and model.entries
            model.take_rule(rule, day)
            touched = _change(draw, found, model, day)
            if draw.random() < 0.3 and not is_adopted:  # which would be refused
                day += draw.choice([1, 3])
                state.advance_clock(START + day * DAY)
                unset = {key: entry for key, entry in model.entries.items() if key not in touched}
                later, model.entries = {k: model.entries[k] for k in touched if k in model.entries}, unset
                model.expire(day)
                model.entries |= later
            model.entries |= {key: (model.entries[key][0], day) for key in touched if key in model.entries}
            assert found.to_dict() == model.values(), seed
            assert len(found) == len(model.entries)
        if step in ("die", "die late"):
            if step == "die late":
                for name, keyed in state._attempt.run.maps.items():
                    state._attempt.checkpoint.save(name, keyed)
            state._attempt.abort()
            place.kept, day = None, committed[-1][1] if committed else 0.0
            rule = committed[-1][0].after if committed else rule
            continue
        place.commit(state)
        committed.append((model, day))
        if model.entries:
            assert place.read() == model.values(), seed


def _change(draw: random.Random, found: KeyedState, model: Model, day: float) -> set[Any]:
    """Some changes of both; returns the keys that were set."""
    touched: set[Any] = set()
    for _ in range(draw.choice([0, 1, 4, 12])):
        key, value = draw.choice(KEYS), draw.choice([1, 2, "x" * 30, [1], {"n": [1]}])
        what = draw.choice(["set", "set", "same", "delete", "inside", "look", "update", "setdefault", "pop", "clear"])
        known = key in model.entries
        if what == "clear" and draw.random() < 0.2:
            found.clear()
            model.entries.clear()
            touched.clear()
        elif what == "set" or (what == "same" and not known):
            found[key] = copy.deepcopy(value)
            model.entries[key] = copy.deepcopy(value), day
            touched.add(key)
        elif what == "same":
            found[key] = copy.deepcopy(model.entries[key][0])
            model.entries[key] = model.entries[key][0], day
            touched.add(key)
        elif what == "update":
            some = {k: copy.deepcopy(value) for k in draw.sample(KEYS, 3)}
            found.update(copy.deepcopy(some))
            model.entries |= {k: (v, day) for k, v in some.items()}
            touched |= some.keys()
        elif what == "setdefault":
            assert found.setdefault(key, copy.deepcopy(value)) == (model.entries[key][0] if known else value)
            if not known:
                model.entries[key] = copy.deepcopy(value), day
                touched.add(key)
        elif not known:
            assert key not in found
            assert found.get(key) is None
        elif what == "delete":
            del found[key], model.entries[key]
            touched.discard(key)
        elif what == "pop":
            assert found.pop(key) == model.entries.pop(key)[0]
            touched.discard(key)
        elif what == "look":
            assert found[key] == model.entries[key][0]
        elif what == "inside" and isinstance(model.entries[key][0], list):
            found[key].append(7)
            model.entries[key][0].append(7)
            model.entries[key] = model.entries[key][0], day
            touched.add(key)
    return touched


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_random_histories_against_a_dict_with_a_clock(first: int) -> None:
    for seed in range(first, first + 40):
        history(seed)


def test_the_clock_moves_before_entries_begin_to_expire_and_not_after() -> None:
    """Else all that is there would expire in the batch in which it begins to."""
    place = Place()
    place.batch(0, {"a": 1}, after=None)
    state = place.begin()
    state.map("m", partitions=2, expire_after=10 * DAY)
    with pytest.raises(InvalidStateError, match=r"took expire_after .*: call advance_clock before that"):
        state.advance_clock(START + 20 * DAY)
    state._attempt.abort()
    place.kept = None
    state = place.begin()
    state.advance_clock(START + 20 * DAY)
    state.map("m", partitions=2, expire_after=10 * DAY)
    place.commit(state)
    assert place.read() == {"a": 1}
