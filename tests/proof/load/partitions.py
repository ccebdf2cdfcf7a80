"""What a checkpoint of very many partitions costs: to write, to change a few, to restore, to verify, to clean."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark_checkpointer import KeyedState, RetentionPolicy
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint, Restored
from pyspark_checkpointer.manifests.keyed_records import partition_of
from tests.proof.load.gauges import answer, peak
from tests.world import Actor, World

TOUCHED = 10
"""Partitions that a commit changes after the first one."""

TURNS = 5
"""Commits after which the same partitions are changed again: their chains become as long as they may be."""

KEYS = 8
"""Keys in a partition, on average."""


class Raw:
    """Partitions of the caller's own bytes."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.chains = {partition: [b"%064d" % partition] for partition in range(count)}

    def first(self, cp: Checkpoint) -> None:
        for partition, (data,) in self.chains.items():
            cp.snapshot("op", partition, data)

    def change(self, cp: Checkpoint, number: int) -> None:
        for partition in touched(number, self.count):
            data = b"%064d" % -number
            cp.delta("op", partition, data)
            self.chains[partition].append(data)

    def is_in(self, restored: Restored) -> bool:
        operator = restored.operator("op")
        return {partition: operator.partition(partition) for partition in operator.partitions} == self.chains


class Keyed:
    """A keyed state that is spread over as many partitions."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.state = KeyedState(partitions=count)
        self.keys: dict[int, list[int]] = {}
        for key in range(count * KEYS):
            self.keys.setdefault(partition_of(key, count), []).append(key)

    def first(self, cp: Checkpoint) -> None:
        self.state.update((key, b"%064d" % key) for keys in self.keys.values() for key in keys)
        cp.save("op", self.state)

    def change(self, cp: Checkpoint, number: int) -> None:
        for partition in touched(number, len(self.keys)):
            self.state[self.keys[sorted(self.keys)[partition]][0]] = b"%064d" % -number
        cp.save("op", self.state)

    def is_in(self, restored: Restored) -> bool:
        return dict(restored.keyed("op")) == dict(self.state)


def touched(number: int, count: int) -> list[int]:
    """The partitions that commit `number` changes, spread over all; a few commits later it is their turn again."""
    return [number % TURNS + i * (count // TOUCHED) for i in range(TOUCHED)]


FORMS: dict[str, Callable[[int], Raw | Keyed]] = {"raw": Raw, "keyed": Keyed}


def measure_partitions(folder: str, form: str, count: int, commits: int) -> dict[str, Any]:
    """Requests by kind of each step, and the bytes of `_latest`, manifests and segments that a commit writes."""
    world = World(Path(folder))
    state, writer = FORMS[form](count), world.actor()
    with peak() as job:
        with writer.begin() as cp:
            state.first(cp)
        report: dict[str, Any] = {"first": spent(writer)[0], "commits": [], "metadata": 0, "wrong": 0}
        for number in range(1, commits + 1):
            with writer.begin() as cp:
                state.change(cp, number)
            requests, metadata = spent(writer)
            report["commits"].append(requests)
            report["metadata"] += metadata
        reader = world.actor()
        restored = reader.restore()
        report["restore"] = spent(reader)[0]
        assert restored is not None
        report["wrong"] += not state.is_in(restored)
    with peak() as verify:
        report["findings"] = len(reader.verify().findings)
    with peak() as clean:
        report["retired"] = len(world.actor().clean(RetentionPolicy(keep_last=1, grace=timedelta(0))).retired)
    restored = world.actor().restore()
    assert restored is not None
    report["wrong"] += not state.is_in(restored)
    return report | {"job": job.bytes, "verify": verify.bytes, "clean": clean.bytes}


def spent(actor: Actor) -> tuple[dict[str, int], int]:
    """Requests since the last time by kind, and the bytes written that are no artifacts."""
    counts = dict(actor.faults.counts)
    metadata = sum(request.size for request in actor.faults.requests if not request.path.startswith("artifacts/"))
    actor.faults.forget()
    return counts, metadata


if __name__ == "__main__":
    answer(measure_partitions)
