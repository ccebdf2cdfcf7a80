"""What a checkpoint of very many operators costs: to write, to change a few, to restore, to verify, to clean."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark_checkpointer import KeyedState, RetentionPolicy
from tests.proof.load.gauges import answer, peak
from tests.proof.load.partitions import TOUCHED, spent, touched
from tests.world import Actor, World


def name(number: int) -> str:
    return f"operator {number}"


def measure_operators(folder: str, count: int, commits: int) -> dict[str, Any]:
    """Every second operator is a map, the others are bytes; each commit changes some of both."""
    world = World(Path(folder))
    maps = {number: KeyedState({"n": number}, partitions=1) for number in range(0, count, 2)}
    chains = {number: [b"%064d" % number] for number in range(1, count, 2)}
    report: dict[str, Any] = {"commits": [], "metadata": []}
    with peak() as job:
        writer = world.actor()
        with writer.begin() as cp:
            for number, state in maps.items():
                cp.save(name(number), state)
            for number, (data,) in chains.items():
                cp.snapshot(name(number), 0, data)
        report["first"] = spent(writer)
        for commit in range(commits):
            with writer.begin() as cp:
                for number in touched(commit, count):
                    if number in maps:
                        maps[number]["n"] += 1
                        cp.save(name(number), maps[number])
                    else:
                        chains[number].append(b"%064d" % -commit)
                        cp.delta(name(number), 0, chains[number][-1])
            requests, metadata = spent(writer)
            report["commits"].append(requests)
            report["metadata"].append(metadata)
        wrong, report["restore"] = _compare(world.actor(), maps, chains)
    with peak() as verify:
        report["findings"] = len(world.actor().verify().findings)
    report["retired"] = len(world.actor().clean(RetentionPolicy(keep_last=1, grace=timedelta(0))).retired)
    wrong += _compare(world.actor(), maps, chains)[0]
    return report | {"wrong": wrong, "job": job.bytes, "verify": verify.bytes, "touched": TOUCHED}


def _compare(reader: Actor, maps: dict[int, KeyedState], chains: dict[int, list[bytes]]) -> tuple[int, dict[str, int]]:
    """Return how many operators are not as they should be, and the requests of the restore alone."""
    restored = reader.restore()
    requests = spent(reader)[0]
    assert restored is not None
    wrong = len(set(restored.operators) ^ {name(number) for number in (*maps, *chains)})
    wrong += sum(dict(restored.keyed(name(number))) != dict(state) for number, state in maps.items())
    wrong += sum(restored.operator(name(number)).partition(0) != chain for number, chain in chains.items())
    return wrong, requests


if __name__ == "__main__":
    answer(measure_operators)
