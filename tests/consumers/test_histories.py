"""Histories of several workers, request by request: every order of small ones, and many long ones at random.

Whatever the order and the faults, a position is written by the lease that was marked in it last and by no other, is
never moved back, and can be taken again once a lease of quiet time has passed.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from pyspark_checkpointer.consumers import leases
from pyspark_checkpointer.consumers.lease import Lease, Value
from pyspark_checkpointer.consumers.leases import LeaseChanges
from pyspark_checkpointer.errors import CheckpointError, LeaseLostError
from pyspark_checkpointer.manifests.positions_json import Position, decode_position
from pyspark_checkpointer.storage.memory import store as memory
from pyspark_checkpointer.testing.orders import play_in_every_order
from pyspark_checkpointer.testing.simulation import Effect, Simulation
from tests.consumers.history import Fields, History
from tests.consumers.world import FOLDER, LEASE, Worker
from tests.proof.planted import Planted

T = TypeVar("T")


class GarbageClassifier:
    """Looks at every version of every position, and at who wrote it."""

    def __init__(self) -> None:
        self.marks: dict[str, tuple[str, str]] = {}
        self.found: dict[str, Position] = {}
        self.writes = 0

    def __call__(self, effect: Effect) -> None:
        path = effect.request.path
        if effect.request.kind != "swap" or not effect.changed or not path.startswith(f"{FOLDER}positions/"):
            return
        old = self.found.get(path, Position("", 0, None, None))
        new = self.found[path] = decode_position(path, bytes(effect.request.data))
        if (old.epoch, old.lease) != (new.epoch, new.lease):
            assert new.epoch > old.epoch, f"{effect.actor} marked {new} over {old}"
            assert new.value == old.value, f"{effect.actor} changed the position while marking it"
            self.marks[path] = (effect.actor, new.lease)
            return
        assert self.marks[path] == (effect.actor, new.lease), f"{effect.actor} wrote {new} of {self.marks[path]}"
        assert number(new.value) > number(old.value), f"{effect.actor} moved {old} back to {new}"
        self.writes += 1


def number(value: Value | None) -> int:
    return -1 if value is None else value["at"]


class Scene:
    """A simulated store with workers on it, whose time is moved by hand."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.judge = simulation.watch = GarbageClassifier()
        self.now = 1000.0
        self.workers: dict[str, Worker] = {}
        self.outcomes: Counter[str] = Counter()

    def worker(self, name: str) -> Worker:
        worker = Worker(self.simulation.store, name)
        worker.host.seconds = self.now
        worker.group.context.store = self.simulation.store_of(name)
        worker.group.context._conditional_writes_checked = True
        self.workers[name] = worker
        return worker

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for worker in self.workers.values():
            worker.host.seconds += seconds

    def play(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Something done with nothing in its way."""
        return self.simulation.play(name, work)

    async def put_one_more(self, lease: Lease | None) -> None:
        try:
            if lease is not None:
                await lease.write(lambda value: {"at": number(value) + 1})
        except LeaseLostError:
            self.outcomes["lost"] += 1
        else:
            self.outcomes["written" if lease else "outrun"] += 1


# ---- every order of a small history ----------------------------------------------------------------------------------


Script = Callable[[Scene, Worker], Coroutine[Any, Any, None]]


def explore(lives: dict[str, Script], prepare: Callable[[Scene], None], faults: int = 0) -> tuple[int, Counter[str]]:
    """Run every order of the requests of these that makes a difference. How many there are, and what came of them."""
    outcomes = Counter[str]()

    def begin(simulation: Simulation) -> Callable[[], object]:
        scene = Scene(simulation)
        workers = {name: scene.worker(name) for name in lives}
        prepare(scene)
        for name, script in lives.items():
            simulation.start(name, script(scene, workers[name]))
        return lambda: outcomes.update(scene.outcomes)

    return play_in_every_order(begin, faults), outcomes


def created(scene: Scene) -> None:
    scene.play("a", scene.workers["a"].leases.create(["p"]))


def write_while_another_steals(faults: int = 0) -> tuple[int, Counter[str]]:
    """a has the lease and records twice, or takes it back by force; b takes it by force and records."""

    def prepare(scene: Scene) -> None:
        created(scene)
        scene.play("a", scene.workers["a"].leases.take("p"))

    async def owner(scene: Scene, worker: Worker) -> None:
        held = worker.leases.held["p"]
        await scene.put_one_more(held)
        await scene.put_one_more(held)
        if held.lost:
            await scene.put_one_more(await worker.leases.take("p", force=True))

    async def thief(scene: Scene, worker: Worker) -> None:
        await scene.put_one_more(await worker.leases.take("p", force=True))

    return explore({"a": owner, "b": thief}, prepare, faults)


def both_take_by_force(deleted: bool) -> tuple[int, Counter[str]]:
    """With the ownership deleted before, epochs of rows begin anew below those of positions."""

    def prepare(scene: Scene) -> None:
        created(scene)
        scene.play("a", scene.workers["a"].leases.take("p"))
        if deleted:
            del scene.simulation.store.objects[f"{FOLDER}ownership.json"]
            created(scene)

    async def take(scene: Scene, worker: Worker) -> None:
        lease = await worker.leases.take("p", force=True)
        await scene.put_one_more(lease)
        scene.outcomes["taken" if lease else "outrun"] += 1

    return explore({"a": take, "b": take}, prepare)


def test_one_who_writes_while_another_steals_in_every_order(
    figures: Counter[str], effort: Callable[[int, int], int]
) -> None:
    """In the long run also with one swap that is not answered, and may land later."""
    count, outcomes = write_while_another_steals(effort(0, 1))
    figures["orders of requests on leases"] += count
    assert count > 5
    assert outcomes["written"] > count
    assert outcomes["lost"], "the orders did not meet"


@pytest.mark.parametrize("deleted", [False, True])
def test_two_who_take_by_force_in_every_order(deleted: bool, figures: Counter[str]) -> None:
    count, outcomes = both_take_by_force(deleted)
    figures["orders of requests on leases"] += count
    assert count > 20
    assert outcomes["taken"] > count
    assert outcomes["outrun"] > 0


BROKEN = (
    Planted(
        "whoever had the lease writes",
        Lease.write,
        "position is None or (position.epoch, position.lease) != (self.epoch, self.token)",
        "position is None",
    ),
    Planted("any mark may be put over any other", leases.Leases._entering, "position.epoch >= row.epoch", "False"),
    Planted(
        "unconditional swap",
        memory.MemoryStore.compare_and_swap,
        "if (None if found is None else found.tag) != expected:",
        "if False:",
    ),
)
"""Rules of leases, each taken out."""


@pytest.mark.parametrize("planted", BROKEN, ids=lambda planted: planted.name)
def test_the_judge_sees_what_breaks_a_lease_in_every_order(planted: Planted) -> None:
    with planted(), pytest.raises(AssertionError):
        both_take_by_force(deleted=True)


# ---- long histories at random ----------------------------------------------------------------------------------------

PARTITIONS = ["p", "q"]


class Walk(Scene):
    """Workers that do what they like, served in any order; some requests are lost, some land late, some workers die."""

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__(Simulation())
        self.steps = steps
        self.chance = random.Random(seed)
        self.names = [f"w{number}" for number in range(self.chance.choice((2, 3)))]
        self.died = 0
        self.done: Counter[str] = Counter()
        self.history = History()

    def verb(self, worker: Worker) -> tuple[Fields, Coroutine[Any, Any, Any]]:
        chance, leases = self.chance, worker.leases
        lease = chance.choice([*leases.held.values(), None])
        partition = chance.choice(PARTITIONS)
        if lease is not None and chance.random() < 0.6:
            return {"f": "write", **held(lease)}, lease.write(lambda value: {"at": number(value) + 1})
        match chance.randrange(12):
            case 0 | 1 | 2 | 3:
                return {"f": "balance"}, leases.balance()
            case 4:
                return {"f": "take", "partition": partition}, leases.take(partition)
            case 5:
                return {"f": "force", "partition": partition}, leases.take(partition, force=True)
            case 6:
                return {"f": "ask", "partition": partition}, leases.ask(partition)
            case 7 if lease is not None:
                return {"f": "release", **held(lease)}, leases.release(lease)
            case 8:
                return {"f": "forget", "partition": partition}, leases.forget(partition)
            case 9:
                return {"f": "create", "partitions": PARTITIONS}, leases.create(PARTITIONS)
            case _:
                return {"f": "renew"}, leases.renew()

    def run(self) -> None:
        try:
            for name in self.names:
                self.enter(name)
            self.simulation.run(self.step)
            self.finish()
        finally:
            self.simulation.close()

    def enter(self, name: str) -> None:
        self.simulation.start(name, self.live(self.worker(name)))

    async def live(self, worker: Worker) -> None:
        while self.simulation.steps < self.steps:
            op, work = self.verb(worker)
            operation = self.history.call(worker.leases.worker, op)
            became = "well"
            try:
                self.history.answer(operation, told(await work))
            except LeaseLostError as error:  # and nothing was written
                self.history.answer(operation, {"error": type(error).__name__})
                became = type(error).__name__
            except CheckpointError as error:
                self.history.unknown(worker.leases.worker)
                became = type(error).__name__
            self.done[f"{op['f']} {became}"] += 1

    def step(self) -> None:
        self.disturb()
        if not self.simulation.waiting:
            return
        one = self.chance.choice(self.simulation.waiting)
        luck = self.chance.random()
        if luck < 0.84:
            self.simulation.serve(one)
        elif luck < 0.9:
            self.simulation.lose(one, after=True)
        elif luck < 0.94 or one.request.kind != "swap":
            self.simulation.lose(one, after=False)
        else:
            self.simulation.delay(one)

    def disturb(self) -> None:
        luck = self.chance.random()
        if luck < 0.05:
            self.wait(self.chance.choice((0.2, 0.7, 1.2)) * LEASE)
        elif luck < 0.1 and self.simulation.late:
            self.simulation.land(self.chance.choice(self.simulation.late))
        elif luck < 0.105:
            name = self.chance.choice(self.names)
            self.simulation.kill(name)
            self.history.unknown(name)
            self.names.remove(name)
            self.died += 1
            self.names.append(f"{name}'" if self.chance.random() < 0.5 else f"v{self.died}")
            self.enter(self.names[-1])
        elif luck < 0.107:
            self.simulation.store.objects.pop(f"{FOLDER}ownership.json", None)

    def finish(self) -> None:
        """All stop; swaps under way land; after a lease of quiet, a newcomer has everything."""
        while self.simulation.late:
            self.simulation.land(self.simulation.late[0])
        newcomer = self.worker("newcomer")
        self.play("newcomer", newcomer.leases.create(PARTITIONS))
        self.play("newcomer", newcomer.leases.balance())
        self.wait(1.1 * LEASE)
        self.play("newcomer", newcomer.leases.balance())
        assert set(newcomer.leases.held) == set(PARTITIONS)
        for lease in newcomer.leases.held.values():
            self.play("newcomer", lease.write(lambda value: {"at": number(value) + 1}))


def held(lease: Lease) -> Fields:
    return {"partition": lease.partition, "epoch": lease.epoch}


def told(result: object) -> Fields:
    """What a client was told, as JSON. A position is the number of its last write, -1 before the first."""
    if isinstance(result, LeaseChanges):
        return {
            "gained": [told(lease) for lease in result.gained],
            "lost": [held(lease) for lease in result.lost],
            "asked": [held(lease) for lease in result.asked],
            "failed": sorted(result.failed),
        }
    if isinstance(result, Lease):
        return {**held(result), "at": number(result.value_when_taken)}
    if isinstance(result, tuple):
        return {"lost": [held(lease) for lease in result]}
    if isinstance(result, dict):
        return {"at": number(result)}
    return {"answer": result}


def lease_history(seed: int, steps: int = 600) -> str:
    """Play one random history of leases and positions, and return what its clients saw, as JSON lines."""
    walk = Walk(seed, steps)
    walk.run()
    return walk.history.json_lines()


def test_a_history_can_be_judged_by_others() -> None:
    seen = Counter[str]()
    for seed in range(3):
        operations = [json.loads(line) for line in lease_history(seed).splitlines()]
        last: dict[int, Any] = {}
        written: set[tuple[str, int]] = set()
        for one in operations:
            assert set(one) == {"process", "call", "return", "op", "result"}
            assert (one["return"] is None) == (one["result"] is None)
            assert one["return"] is None or one["return"] > one["call"]
            assert one["process"] not in last or last[one["process"]]["return"] is not None, "it had not ended"
            assert one["process"] not in last or last[one["process"]]["return"] < one["call"], "two at once"
            last[one["process"]] = one
            seen[f"{one['op']['f']} {'unknown' if one['return'] is None else 'known'}"] += 1
            if one["op"]["f"] == "write" and "at" in (one["result"] or {}):
                place = (one["op"]["partition"], one["result"]["at"])
                assert place not in written, "two writes were told the same place"
                written.add(place)
        events = [one[key] for one in operations for key in ("call", "return") if one[key] is not None]
        assert sorted(events) == [*range(len(events))]
    for what in ("write known", "write unknown", "force known", "balance known", "release known", "renew known"):
        assert seen[what], f"nobody saw {what}: {seen}"


def test_any_history_leaves_positions_with_whoever_was_marked_last(
    figures: Counter[str], effort: Callable[[int, int], int]
) -> None:
    done: Counter[str] = Counter()
    for seed in range(effort(20, 2000)):
        walk = Walk(seed, 600)
        try:
            walk.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        done += walk.done
        figures["random histories of leases"] += 1
        figures["positions written in them"] += walk.judge.writes
    for what in ("write well", "write LeaseLostError", "write OutcomeUnknownError", "balance well", "force well"):
        assert done[what] > 10, f"the walk met too little: {done}"


@pytest.mark.parametrize("planted", BROKEN, ids=lambda planted: planted.name)
def test_the_judge_sees_what_breaks_a_lease_at_random(planted: Planted) -> None:
    with planted(), pytest.raises(AssertionError):
        for seed in range(100):
            Walk(seed, 600).run()
