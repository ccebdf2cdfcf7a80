"""Maps that shrink: what is gone leaves the store, and what that costs is bounded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer import KeyedState, compaction
from pyspark_checkpointer.manifests import codecs
from pyspark_checkpointer.manifests.map_expiry import micros
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Artifact, Chain
from tests.keyed.states import filled, kinds, save, saved
from tests.keyed.test_expiring import save as save_at
from tests.manifests.samples import AT
from tests.world import World

NOW = micros(AT)
AFTER = 10


@dataclass
class Chains:
    """The chains of a state that is saved without a store, and the sizes of all snapshots written."""

    state: KeyedState
    chains: Mapping[int, Chain] = field(default_factory=dict)
    snapshots: list[int] = field(default_factory=list)

    def save(self, now: int | None = None) -> list[str]:
        """Save, and return the kinds of what was written."""
        captured = self.state.capture_for_checkpoint(self.chains, 10, now)
        chains = dict(self.chains)
        for change in captured.changes:
            stored, raw_size = codecs.MSGPACK.encode(change.records)
            size, records = len(stored), len(change.records)
            one = Artifact("p", change.kind, 0, size, size, raw_size, records, "0" * 64)
            chains[change.partition] = (*chains.get(change.partition, ())[: change.keep], one)
            if change.kind == SNAPSHOT:
                self.snapshots.append(raw_size)
        captured.record_outcome(chains)
        self.chains = chains
        return [change.kind for change in captured.changes]

    @property
    def records(self) -> list[int]:
        """The records of the snapshots."""
        return [chain[0].records for chain in self.chains.values()]

    def check(self) -> None:
        """Check what a restart reads of each partition."""
        for number, part in enumerate(self.state._parts):
            chain = self.chains.get(number, ())
            if chain:
                assert chain[0].records <= 2 * len(part.data)
                assert sum(artifact.raw_size for artifact in chain) <= 1.5 * chain[0].raw_size


def expiring(keys: int, partitions: int = 1) -> Chains:
    """A saved map of entries that all expire together."""
    place = Chains(KeyedState(partitions=partitions))
    place.state.set_rule(AFTER, NOW)
    place.state.update((n, "x" * 100) for n in range(keys))
    place.save(NOW)
    return place


def test_a_partition_that_shrinks_slowly_does_not_keep_its_largest_size() -> None:
    place = Chains(KeyedState(((n, "x" * 1000) for n in range(1000)), partitions=1))
    place.save()
    for n in range(990):
        del place.state[n]
        place.save()
        place.check()
    for n in range(20):
        place.state[990 + n % 10] = f"{n:01000}"
        place.save()
        place.check()
    assert len(place.state) == 10
    assert sum(place.snapshots) < 3.5 * place.snapshots[0], "each entry that went had at most one written"


def test_a_state_that_shrinks_is_read_as_it_is(world: World) -> None:
    client, state = world.actor(), filled(partitions=2)
    save(client, state)
    for n in range(0, 396, 12):
        for key in range(n, n + 12):
            del state[f"bulk {key}"]
        save(client, state)
        assert saved(world) == dict(state)
    assert len(state) == 4


def test_what_expired_goes_with_a_change_of_any_other_entry() -> None:
    place = expiring(1000)
    place.state.update((n, "new") for n in range(1000, 1003))
    assert place.save(NOW + AFTER - 1) == [DELTA]
    place.state[1000] = "newer"
    assert place.save(NOW + AFTER) == [SNAPSHOT]
    assert place.records == [3]


def test_what_expired_goes_from_partitions_that_nothing_changes() -> None:
    place = expiring(1000, partitions=4)
    assert place.save(NOW + AFTER - 1) == []
    place.state["new"] = 1
    assert place.save(NOW + AFTER) == [SNAPSHOT] * 4
    assert sorted(place.records) == [0, 0, 0, 1]
    assert place.save(NOW + AFTER) == []
    place.check()


def test_few_entries_that_expire_or_go_are_no_reason_for_a_snapshot() -> None:
    place = expiring(1000)
    place.state.update((n, "y" * 100) for n in range(510))
    assert place.save(NOW + 1) == [SNAPSHOT]
    assert place.save(NOW + AFTER) == []
    assert (place.records, len(place.state)) == ([1000], 510)
    for n in range(11):
        del place.state[n]
    assert place.save(NOW + AFTER) == [SNAPSHOT]
    assert place.records == [499]


def test_one_large_entry_is_not_written_each_time_small_ones_come_and_go() -> None:
    place = Chains(KeyedState({"large": "x" * 100_000, "a": 1, "b": 2}, partitions=1))
    place.save()
    for _ in range(50):
        del place.state["a"]
        del place.state["b"]
        place.save()
        place.check()
        place.state.update(a=1, b=2)
        place.save()
    assert len(place.snapshots) == 2


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("after", [5, 50, None])
def test_what_is_written_without_a_change_may_fail_and_nothing_comes_back(
    world: World, after: int | None, fails: bool
) -> None:
    client, state = world.actor(), filled()
    state.set_rule(5, NOW)
    save_at(client, state)
    save_at(client, state, 5, fails=fails)
    assert saved(world) == ({} if not fails else filled().to_dict())
    state.set_rule(after, NOW + 5)
    save_at(client, state, 5)
    assert (kinds(client), saved(world)) == ([SNAPSHOT], {})
    state["new"] = 1
    save_at(client, state, 5)
    assert saved(world) == {"new": 1}


def test_a_chain_that_holds_what_is_gone_is_mended_by_the_first_save(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer of the format, or an earlier version, may have left it."""
    client, state = world.actor(), filled(kept=1)
    save(client, state)
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "has_shrunk", lambda *_: False)
        for n in range(300):
            del state[f"bulk {n}"]
        save(client, state)
    assert kinds(client) == [SNAPSHOT, DELTA]
    again = client.restore().keyed("s")
    save(client, again)
    assert (kinds(client), saved(world)) == ([SNAPSHOT], dict(state))


SIZE = 100
"""Bytes of each value in `test_snapshots_cost_no_more_than_a_few_times_what_changed`."""

Steps = list[tuple[str, int]]


@given(
    st.integers(0, 200),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(["set", "change", "delete", "wait"]), st.integers(1, 60)), max_size=40),
    st.booleans(),
)
def test_snapshots_cost_no_more_than_a_few_times_what_changed(
    first: int, partitions: int, steps: Steps, expire: bool
) -> None:
    place = Chains(KeyedState(partitions=partitions))
    if expire:
        place.state.set_rule(AFTER, NOW)
    numbers, now, changed = iter(range(10**6)), NOW, first
    place.state.update((next(numbers), "x" * SIZE) for _ in range(first))
    place.save(now)
    for kind, count in steps:
        before = {*place.state}
        some: list[Any] = sorted(before)[:count]
        if kind == "set":
            some = [next(numbers) for _ in range(count)]
        if kind == "wait":
            now += count % 7
        elif kind == "delete":
            for key in some:
                del place.state[key]
        else:
            place.state.update((key, f"{now} {count}".ljust(SIZE)) for key in some)
        if expire:
            place.state.expire(now)
        changed += len(some) * (kind in ("set", "change")) + len(before - {*place.state})
        place.save(now)
        place.check()
    assert sum(place.snapshots) <= 4 * (SIZE + 32) * changed
