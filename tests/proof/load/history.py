"""What a long history costs: each commit, a restore, and whatever looks at all of it."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark_checkpointer import KeyedState, RetentionPolicy
from tests.proof.load.gauges import answer, peak
from tests.proof.load.partitions import spent
from tests.world import Actor, World, contents

EARLY = 10
"""The checkpoint that the last one is compared with."""

KEEP = 10
SAVEPOINTS = 5
STATE = KeyedState({f"key {n}": n for n in range(100)})


def commit(writer: Actor, number: int) -> None:
    """Every checkpoint is of one size, in one chain of one length: keys change in turn, and all numbers are as long."""
    with writer.begin(number) as cp:
        cp.snapshot("raw", 0, b"%0100d" % number)
        cp.snapshot("raw", 1, b"the same in all")
        cp.save("keyed", STATE)


def is_right(world: World, number: int, **wanted: Any) -> bool:
    restored = world.actor().restore(**wanted)
    assert restored is not None
    return (
        restored.epoch == number
        and contents(restored)["raw"] == {0: [b"%0100d" % number], 1: [b"the same in all"]}
        and dict(restored.keyed("keyed")) == dict(STATE)
    )


def measure_history(folder: str, length: int) -> dict[str, Any]:
    """Requests and bytes of an early commit and of the last, of restores then, and what became of the checkpoints."""
    world = World(Path(folder))
    writer = world.actor()
    report: dict[str, Any] = {"costs": [], "restores": [], "wrong": 0}
    savepoints = {number: f"at {number}" for number in range(EARLY // 2, length, length // SAVEPOINTS)}
    with peak() as most:
        for number in range(1, length + 1):
            commit(writer, number)
            size = sum(request.size for request in writer.faults.requests)
            requests, _ = spent(writer)
            if number in (EARLY, length):
                report["costs"].append([requests, size])
                reader = world.actor()
                reader.restore()
                report["restores"].append(spent(reader)[0])
            if number in savepoints:
                world.actor().savepoint(savepoints[number])
        ids = world.actor().list_checkpoints()
        report["listed"] = len(ids)
        some = world.actor().verify(share=0.2)
        report["verified"], report["findings"] = some.checkpoints, len(some.findings)
        report["wrong"] += not is_right(world, length // 2, id=ids[length // 2 - 1])
        cleaned = world.actor().clean(RetentionPolicy(keep_last=KEEP, grace=timedelta(0)))
        report["retired"] = len(cleaned.retired)
        report["kept"] = len(world.actor().list_checkpoints())
        report["expected"] = len(set(ids[-KEEP:]) | {ids[number - 1] for number in savepoints})
        for number, name in savepoints.items():
            report["wrong"] += not is_right(world, number, savepoint=name)
        report["wrong"] += not is_right(world, length)
        report["findings"] += len(world.actor().verify().findings)
    return report | {"peak": most.bytes}


if __name__ == "__main__":
    answer(measure_history)
