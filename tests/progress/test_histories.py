"""Histories of several workers, request by request: every order of small ones, and many long ones at random.

Whatever the order and the faults, a position is written by the lease that was marked in it last and by no other, is
never moved back, and can be taken again once a lease of quiet time has passed.
"""

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from checkpointer.errors import CheckpointError, LeaseLostError
from checkpointer.progress.lease import Lease, Value
from checkpointer.testing.requests import CrashError
from manifests.progress import Position, decode_position
from tests.progress.stepping import Stage, start
from tests.progress.world import FOLDER, LEASE, TestHost, Worker, run


class Judge:
    """Looks at every version of every position, and at who wrote it."""

    def __init__(self) -> None:
        self.marks: dict[str, tuple[str, str]] = {}
        self.writes: list[tuple[str, int]] = []

    def __call__(self, worker: str, path: str, before: bytes | None, after: bytes) -> None:
        if not path.startswith(f"{FOLDER}positions/"):
            return
        old = Position("", 0, None, None) if before is None else decode_position(path, before)
        new = decode_position(path, after)
        if (old.epoch, old.lease) != (new.epoch, new.lease):
            assert new.epoch > old.epoch, f"{worker} marked {new} over {old}"
            assert new.value == old.value, f"{worker} changed the position while marking it"
            self.marks[path] = (worker, new.lease)
            return
        assert self.marks[path] == (worker, new.lease), f"{worker} wrote {new}, which belongs to {self.marks[path]}"
        assert number(new.value) > number(old.value), f"{worker} moved {old} back to {new}"
        self.writes.append((worker, number(new.value)))


def number(value: Value | None) -> int:
    return -1 if value is None else value["at"]


class Scene:
    """A stage with workers on it, and the tasks they are at."""

    def __init__(self) -> None:
        self.judge = Judge()
        self.stage = Stage(f"memory://{uuid.uuid4().hex}", self.judge)
        self.now = 1000.0
        self.workers: dict[str, Worker] = {}
        self.tasks: dict[str, asyncio.Task[Any]] = {}

    def worker(self, name: str) -> Worker:
        worker = Worker(self.stage.store, name)
        worker.host = TestHost()
        worker.host.seconds = self.now
        store: Any = self.stage.store_of(name)
        worker.group.space.store, worker.group.space.host = store, worker.host
        worker.leases._watch._host = worker.host
        self.workers[name] = worker
        return worker

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for worker in self.workers.values():
            worker.host.seconds += seconds

    async def play(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Something done with nothing in its way."""
        task = start(work)
        await self.stage.settle()
        while not task.done():
            await self.stage.serve(self.stage.waiting[0])
        return await task


# ---- every order of a small history ----------------------------------------------------------------------------------


Script = Callable[[Worker], Coroutine[Any, Any, None]]


async def explore(lives: dict[str, Script], prepare: Callable[[Scene], Coroutine[Any, Any, None]]) -> int:
    """Run every order in which the requests of these can be served. How many there are."""
    count, path = 0, []
    while True:
        scene = Scene()
        for name in lives:
            scene.worker(name)
        await prepare(scene)
        tasks = [start(script(scene.workers[name])) for name, script in lives.items()]
        await scene.stage.settle()
        depth = 0
        while scene.stage.waiting:
            assert len(scene.stage.waiting) <= len(lives)
            if depth == len(path):
                path.append((0, len(scene.stage.waiting)))
            waiting = sorted(scene.stage.waiting, key=lambda one: one.worker)
            assert len(waiting) == path[depth][1], "the same requests, served in the same order, lead elsewhere"
            await scene.stage.serve(waiting[path[depth][0]])
            depth += 1
        for task in tasks:
            assert task.done()
            await task
        count += 1
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return count
        path[-1] = (path[-1][0] + 1, path[-1][1])


async def created(scene: Scene) -> None:
    await scene.play(scene.workers["a"].leases.create(["p"]))


async def put_one_more(lease: Lease | None, outcomes: Counter[str]) -> None:
    try:
        if lease is not None:
            await lease.write(lambda value: {"at": number(value) + 1})
    except LeaseLostError:
        outcomes["lost"] += 1
    else:
        outcomes["written" if lease else "outrun"] += 1


def test_one_who_writes_while_another_steals_in_every_order() -> None:
    """a has the lease and records twice, or takes it back by force; b takes it by force and records."""
    held: dict[str, Lease] = {}
    outcomes: Counter[str] = Counter()

    async def prepare(scene: Scene) -> None:
        await created(scene)
        held["p"] = await scene.play(scene.workers["a"].leases.take("p"))

    async def owner(worker: Worker) -> None:
        await put_one_more(held["p"], outcomes)
        await put_one_more(held["p"], outcomes)
        if held["p"].lost:
            await put_one_more(await worker.leases.take("p", force=True), outcomes)

    async def thief(worker: Worker) -> None:
        await put_one_more(await worker.leases.take("p", force=True), outcomes)

    count = run(explore({"a": owner, "b": thief}, prepare))
    assert count > 20
    assert outcomes["written"] > 2 * count
    assert outcomes["lost"] > count, "the orders did not meet"


@pytest.mark.parametrize("deleted", [False, True])
def test_two_who_take_by_force_in_every_order(deleted: bool) -> None:
    """With the ownership deleted before, epochs of rows begin anew below those of positions."""
    outcomes: Counter[str] = Counter()

    async def prepare(scene: Scene) -> None:
        await created(scene)
        await scene.play(scene.workers["a"].leases.take("p"))
        if deleted:
            await scene.stage.store.delete([f"{FOLDER}ownership.json"])
            await created(scene)

    async def take(worker: Worker) -> None:
        lease = await worker.leases.take("p", force=True)
        if not deleted:  # else there are too many orders
            await put_one_more(lease, outcomes)
        outcomes["taken" if lease else "outrun"] += 1

    count = run(explore({"a": take, "b": take}, prepare))
    assert count > 100
    assert outcomes["taken"] > count
    assert outcomes["outrun"] > 0


# ---- long histories at random ----------------------------------------------------------------------------------------

PARTITIONS = ["p", "q"]


class Walk(Scene):
    """Workers that do what they like, served in any order; some requests are lost, some land late, some workers die."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.names = [f"w{number}" for number in range(self.chance.choice((2, 3)))]
        self.died = 0
        self.done: Counter[str] = Counter()

    def verb(self, worker: Worker) -> tuple[str, Coroutine[Any, Any, Any]]:
        chance, leases = self.chance, worker.leases
        lease = chance.choice([*leases.held.values(), None])
        partition = chance.choice(PARTITIONS)
        if lease is not None and chance.random() < 0.6:
            return "write", lease.write(lambda value: {"at": number(value) + 1})
        match chance.randrange(12):
            case 0 | 1 | 2 | 3:
                return "balance", leases.balance()
            case 4:
                return "take", leases.take(partition)
            case 5:
                return "force", leases.take(partition, force=True)
            case 6:
                return "ask", leases.ask(partition)
            case 7 if lease is not None:
                return "release", leases.release(lease)
            case 8:
                return "forget", leases.forget(partition)
            case 9:
                return "create", leases.create(PARTITIONS)
            case _:
                return "renew", leases.renew()

    async def step(self) -> None:
        for name in self.names:
            task = self.tasks.get(name)
            if task is None or task.done():
                if task is not None:
                    self.account(name, task)
                if name not in self.workers:
                    self.worker(name)
                what, work = self.verb(self.workers[name])
                self.tasks[name] = start(work)
                self.tasks[name].set_name(what)
        await self.stage.settle()
        await self.disturb()
        if self.stage.waiting:
            one = self.chance.choice(self.stage.waiting)
            luck = self.chance.random()
            if luck < 0.84:
                await self.stage.serve(one)
            elif luck < 0.9:
                await self.stage.lose(one, after=True)
            elif luck < 0.94:
                await self.stage.lose(one, after=False)
            else:
                await self.stage.delay(one)

    async def disturb(self) -> None:
        luck = self.chance.random()
        if luck < 0.05:
            self.wait(self.chance.choice((0.2, 0.7, 1.2)) * LEASE)
        elif luck < 0.1 and self.stage.late:
            await self.stage.land(self.chance.randrange(len(self.stage.late)))
        elif luck < 0.105:
            name = self.chance.choice(self.names)
            await self.stage.kill(name)
            self.names.remove(name)
            self.died += 1
            self.names.append(f"{name}'" if self.chance.random() < 0.5 else f"v{self.died}")
        elif luck < 0.107:
            await self.stage.store.delete([f"{FOLDER}ownership.json"])

    def account(self, name: str, task: "asyncio.Task[Any]") -> None:
        error = task.exception()
        assert error is None or isinstance(error, CheckpointError | CrashError), error
        self.done[f"{task.get_name()} {type(error).__name__ if error else 'well'}"] += 1

    async def finish(self) -> None:
        """All stop; swaps under way land; after a lease of quiet, a newcomer has everything."""
        for name in self.names:
            await self.stage.kill(name)
        while self.stage.late:
            await self.stage.land(0)
        newcomer = self.worker("newcomer")
        await self.play(newcomer.leases.create(PARTITIONS))
        await self.play(newcomer.leases.balance())
        self.wait(1.1 * LEASE)
        await self.play(newcomer.leases.balance())
        assert set(newcomer.leases.held) == set(PARTITIONS)
        for lease in newcomer.leases.held.values():
            await self.play(lease.write(lambda value: {"at": number(value) + 1}))


async def walk(seed: int, steps: int) -> Counter[str]:
    one = Walk(seed)
    for _ in range(steps):
        await one.step()
    await one.finish()
    return one.done


def test_any_history_leaves_positions_with_whoever_was_marked_last() -> None:
    done: Counter[str] = Counter()
    for seed in range(20):
        done += run(walk(seed, 400))
    for what in ("write well", "write LeaseLostError", "write OutcomeUnknownError", "balance well", "force well"):
        assert done[what] > 10, f"the walk met too little: {done}"
