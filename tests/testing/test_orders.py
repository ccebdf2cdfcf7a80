"""Every order that makes a difference is played exactly once."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest

from pyspark_checkpointer.errors import DependencyError
from pyspark_checkpointer.storage import compare_and_swap
from pyspark_checkpointer.storage.base import PreconditionFailedError, Store
from pyspark_checkpointer.storage.compare_and_swap import swap_until_decided
from pyspark_checkpointer.testing.orders import play_in_every_order
from pyspark_checkpointer.testing.requests import CrashError
from pyspark_checkpointer.testing.simulation import Effect, Simulation, StuckError

Life = Callable[[Store, list[str]], object]


def histories(*lives: Life, faults: int = 0) -> Counter[str]:
    """Return the possible results, and how many orders were played."""
    found: Counter[str] = Counter()

    def begin(simulation: Simulation) -> Callable[[], object]:
        told: list[str] = []
        for number, life in enumerate(lives):
            simulation.start(str(number), life(simulation.store_of(str(number)), told))
        return lambda: found.update([" ".join(told)])

    assert play_in_every_order(begin, faults) == sum(found.values())
    return found


def writes(path: str) -> Life:
    async def life(store: Store, told: list[str]) -> None:
        await store.put(path, b"1")
        told.append(f"+{path}")

    return life


async def lists(store: Store, told: list[str]) -> None:
    told.append(f"[{','.join(entry.path for entry in await store.list(''))}]")


async def swaps(store: Store, told: list[str]) -> None:
    try:
        await store.compare_and_swap("x", b"1", None)
        told.append("won")
    except PreconditionFailedError:
        told.append("lost")
    except DependencyError:
        told.append("unknown")


def test_writes_of_different_objects_come_in_one_order() -> None:
    assert sum(histories(writes("a"), writes("b"), writes("c")).values()) == 1


def test_a_listing_sees_every_set_of_what_was_written_before_it() -> None:
    found = histories(writes("a"), writes("b"), lists)
    seen = {part for told in found for part in told.split() if part.startswith("[")}
    assert seen == {"[]", "[a]", "[b]", "[a,b]"}


def test_each_of_three_swaps_of_one_object_can_be_the_first() -> None:
    found = histories(swaps, swaps, swaps)
    assert found == {"won lost lost": 6}


def test_a_swap_without_an_answer_may_have_landed_or_land_later() -> None:
    found = histories(swaps, swaps, faults=1)
    assert set(found) == {"won lost", "unknown lost", "unknown won", "won unknown"}


def test_a_swap_that_is_sent_again_lets_nobody_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause before it is sent again would leave out all orders in which the others come later."""

    def decides(data: bytes) -> Life:
        async def life(store: Store, told: list[str]) -> None:
            found = await swap_until_decided(store, "x", data, None, 100)
            told.append(f"{data!r}: {found and found.data!r}")

        return life

    def orders(pause: float) -> Counter[str]:
        monkeypatch.setattr(compare_and_swap, "FIRST_PAUSE", pause)
        return histories(decides(b"a"), decides(b"b"), faults=1)

    assert orders(0.2) == orders(0.0)


def test_what_is_not_decided_here_is_told() -> None:
    async def throws_dice(store: Store, told: list[str]) -> None:
        await store.put(uuid.uuid4().hex, b"")

    with pytest.raises(AssertionError, match="the same decisions lead elsewhere"):
        histories(throws_dice, lists)


def test_the_same_decisions_are_the_same_history() -> None:
    assert histories(swaps, lists, faults=1) == histories(swaps, lists, faults=1)


def test_an_error_says_in_which_order_it_came() -> None:
    async def trusts(store: Store) -> None:
        await store.get("x")

    def begin(simulation: Simulation) -> Callable[[], object]:
        simulation.start("writer", writes("x")(simulation.store_of("writer"), []))
        simulation.start("reader", trusts(simulation.store_of("reader")))
        return list

    with pytest.raises(LookupError) as raised:
        play_in_every_order(begin)
    assert raised.value.__notes__ == ["in this order: reader get x 1 serve"]


def test_a_swap_may_land_when_all_have_come_to_an_end_or_never() -> None:
    ends: set[tuple[str, bool]] = set()

    def begin(simulation: Simulation) -> Callable[[], object]:
        told: list[str] = []
        simulation.start("a", swaps(simulation.store_of("a"), told))
        return lambda: ends.add((told[0], "x" in simulation.store.objects))

    assert play_in_every_order(begin, faults=1) == 4
    assert ends == {("won", True), ("unknown", True), ("unknown", False)}


@pytest.mark.parametrize("fails", [False, True])
def test_who_tidies_up_after_the_end_holds_up_nobody(fails: bool) -> None:
    """Also where an order is left early, because another order explores the rest."""

    async def tidies(store: Store) -> None:
        try:
            await store.put("x", b"1")
        finally:
            await store.delete(["x"])

    async def works(store: Store) -> None:
        await store.put("y", b"1")
        assert not fails

    def begin(simulation: Simulation) -> Callable[[], object]:
        simulation.start("a", works(simulation.store_of("a")))
        simulation.start("z", tidies(simulation.store_of("z")))
        simulation.start("w", writes("w")(simulation.store_of("w"), []))
        return list

    with pytest.raises(AssertionError) if fails else nullcontext():
        assert play_in_every_order(begin) == 1


def test_paths_with_spaces_are_one_path() -> None:
    async def looks(store: Store, told: list[str]) -> None:
        told.append(str(len((await store.list_page("a b/")).entries)))

    assert set(histories(writes("a b/x"), looks)) == {"+a b/x 1", "0 +a b/x"}


def test_a_check_that_nobody_awaits_is_refused() -> None:
    async def check() -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="coroutine"), pytest.warns(RuntimeWarning, match="never awaited"):
        play_in_every_order(lambda simulation: check)


# ---- the simulation --------------------------------------------------------------------------------------------------


def test_an_actor_that_was_killed_is_served_no_more_and_its_write_may_land() -> None:
    effects: list[Effect] = []
    simulation, told = Simulation(effects.append), list[str]()
    task = simulation.start("a", writes("x")(simulation.store_of("a"), told))

    def step() -> None:
        simulation.kill("a", in_flight=True)

    simulation.run(step)
    assert isinstance(task.exception(), CrashError)
    assert simulation.store.objects == {}
    simulation.land(simulation.late[0])
    assert [(effect.actor, effect.request.path, effect.changed) for effect in effects] == [("a", "x", True)]
    simulation.close()


async def gives_up(store: Store, told: list[str]) -> None:
    """End all other requests with the first one that is answered."""
    requests = [asyncio.ensure_future(one) for one in (store.list("never"), store.put("a", b"1"), store.put("b", b"1"))]
    await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    told.append(",".join(sorted(entry.path for entry in await store.list(""))))


def test_a_write_that_its_sender_gave_up_may_still_land() -> None:
    simulation, told = Simulation(), list[str]()
    try:
        simulation.start("one", gives_up(simulation.store_of("one"), told))
        simulation.run(lambda: simulation.serve(simulation.waiting[0]))
        assert told == [""]
        assert [late.request.path for late in simulation.late] == ["a", "b"]
        simulation.land(simulation.late[0])
        assert list(simulation.store.objects) == ["a"]
    finally:
        simulation.close()
    assert {"", "a", "b"} <= set(histories(gives_up))


def test_time_passes_while_everybody_sleeps() -> None:
    async def sleeper(store: Store) -> float:
        await asyncio.sleep(3600)
        await store.put("late", b"")
        return asyncio.get_running_loop().time()

    simulation = Simulation()
    task = simulation.start("a", sleeper(simulation.store_of("a")))
    simulation.run(lambda: simulation.serve(simulation.waiting[0]))
    assert task.result() == pytest.approx(3600)
    simulation.close()


def test_code_that_waits_for_something_else_is_told() -> None:
    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    simulation = Simulation()
    simulation.start("a", stuck())
    with pytest.raises(StuckError, match="a"):
        simulation.run(lambda: None)
    simulation.close()


def test_what_an_actor_raises_ends_the_simulation() -> None:
    async def fails(store: Store) -> None:
        await store.get("nothing")

    simulation = Simulation()
    simulation.start("a", fails(simulation.store_of("a")))
    with pytest.raises(LookupError):
        simulation.run(lambda: simulation.serve(simulation.waiting[0]))
    simulation.close()


@pytest.mark.parametrize("way", ["served", "lost after it took effect", "landed late"])
def test_what_the_watcher_raises_ends_the_simulation_and_reaches_no_actor(way: str) -> None:
    def watch(effect: Effect) -> None:
        raise AssertionError(f"seen: {effect.request.path}")

    async def careless(store: Store) -> None:
        with suppress(Exception):
            await store.put("x", b"1")

    simulation = Simulation(watch)
    simulation.start("a", careless(simulation.store_of("a")))

    def step() -> None:
        (one,) = simulation.waiting
        if way == "served":
            simulation.serve(one)
        elif way == "lost after it took effect":
            simulation.lose(one, after=True)
        else:
            simulation.delay(one)
            simulation.land(one)

    with pytest.raises(AssertionError, match="seen: x"):
        simulation.run(step)
    simulation.close()
