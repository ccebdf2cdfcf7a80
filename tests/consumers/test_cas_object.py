"""One object changed by compare-and-swap: what a lost answer, a late swap, a crowd or a bad store may do to it."""

import asyncio
import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.consumers import cas_object as module
from pyspark_checkpointer.consumers.cas_object import MAX_ATTEMPTS, CasObject, Serializer
from pyspark_checkpointer.consumers.store_client import StoreClient, StoreConfig
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.errors import (
    CorruptionError,
    DependencyError,
    DigestMismatchError,
    IllegalArgumentError,
    InvalidStateError,
    MalformedError,
    OutcomeUnknownError,
    ThrottlingError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests.positions_json import (
    MAX_OWNERSHIP,
    MAX_POSITION,
    Ownership,
    Position,
    Row,
    decode_ownership,
    decode_position,
    encode_ownership,
    encode_position,
)
from pyspark_checkpointer.runtime.host import SystemHost
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.base import Blob, PreconditionFailedError, Store
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from pyspark_checkpointer.storage.conditional_write_check import ATTEMPTS
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.store import FaultyStore
from tests.consumers.world import TestHost, run

AT = datetime(2024, 1, 2, tzinfo=UTC)
PATH = "progress/tests/p.json"
SERIALIZER = Serializer(encode_position, decode_position, MAX_POSITION)
FIRST = Position("p", 0, {"n": 0}, AT)

Change = Callable[[Position | None, datetime], Position | None]


def add(position: Position | None, now: datetime) -> Position:
    """One more than what is there."""
    value = 0 if position is None or position.value is None else position.value["n"]
    return replace(position or FIRST, value={"n": value + 1})


def set_to(number: int) -> Change:
    return lambda position, now: replace(position or FIRST, value={"n": number})


def raise_to(number: int) -> Change:
    """A plan that has nothing to do where the number is not more than what is there."""

    def plan(position: Position | None, now: datetime) -> Position | None:
        if position is not None and position.value["n"] >= number:
            return None
        return replace(position or FIRST, value={"n": number})

    return plan


class User:
    """Somebody who changes the object, behind a store of their own."""

    def __init__(self, store: Store, serializer: Serializer[Any] = SERIALIZER) -> None:
        self.plain, self.faults = store, Faults()
        self.host = TestHost()
        self.context = StoreContext(FaultyStore(store, self.faults), self.host)
        self.document: CasObject[Any] = CasObject(self.context, PATH, serializer)

    def change(self, plan: Change, **options: bool) -> int | None:
        return number(run(self.document.change(plan, **options)))

    def read(self) -> int | None:
        return number(run(self.document.read()))

    def costs(self, act: Callable[[], object]) -> dict[str, int]:
        self.faults.forget()
        act()
        return dict(self.faults.counts)


def number(position: Position | None) -> int | None:
    return None if position is None else position.value["n"]


@pytest.fixture
def url() -> str:
    return f"memory://{os.urandom(8).hex()}"


@pytest.fixture
def users(url: str) -> tuple[User, User]:
    """Two users of an object that is there and says 0, which neither of them has seen."""
    run(User(MemoryStore(url)).document.change(set_to(0)))
    return User(MemoryStore(url)), User(MemoryStore(url))


# ---- reading and changing --------------------------------------------------------------------------------------------


def test_what_is_written_is_read(url: str) -> None:
    one, two = User(MemoryStore(url)), User(MemoryStore(url))
    assert one.read() is None
    assert one.change(add) == 1
    assert two.read() == 1
    assert two.change(add) == 2
    assert one.read() == 2


def test_a_plan_may_leave_it(users: tuple[User, User], url: str) -> None:
    one, _ = users
    assert one.change(lambda position, now: None) == 0
    assert one.faults.counts["swap"] == 0
    other = CasObject(one.context, "progress/tests/nothing.json", SERIALIZER)
    assert run(other.change(lambda position, now: None)) is None
    assert one.faults.counts["swap"] == 0


def test_what_a_plan_raises_is_raised_and_nothing_written(users: tuple[User, User]) -> None:
    one, _ = users

    def refuse(position: Position | None, now: datetime) -> Position:
        raise InvalidStateError("no")

    with pytest.raises(InvalidStateError, match="no"):
        one.change(refuse)
    assert one.faults.counts == {"get": 1}
    assert one.change(add) == 1


def test_requests(users: tuple[User, User], url: str) -> None:
    one, two = users
    assert one.costs(lambda: one.change(add)) == {"get": 1, "swap": 1}
    assert one.costs(lambda: one.change(add)) == {"swap": 1}
    assert one.costs(lambda: one.change(add, fresh=True)) == {"get": 1, "swap": 1}
    assert one.costs(one.read) == {"get": 1}
    assert one.costs(lambda: one.change(add)) == {"swap": 1}
    assert one.costs(lambda: one.change(raise_to(1))) == {"get": 1}
    assert one.costs(lambda: one.change(raise_to(1), fresh=True)) == {"get": 1}
    two.change(add)
    assert one.costs(lambda: one.change(add)) == {"swap": 2, "get": 1}


def test_the_first_change_of_a_root_costs_a_probe_and_one_swap(url: str) -> None:
    one = User(MemoryStore(url))
    probe = {"swap": 4, "put": 1, "get": 1, "delete": 1}
    assert one.costs(lambda: one.change(add)) == {**probe, "swap": 5, "get": 2}
    other = CasObject(one.context, "progress/tests/q.json", SERIALIZER)
    assert one.costs(lambda: run(other.change(add))) == {"get": 1, "swap": 1}, "one probe is enough for a process"


# ---- what is remembered never decides --------------------------------------------------------------------------------


def test_nothing_to_do_is_looked_at_again(users: tuple[User, User]) -> None:
    one, two = users
    one.change(set_to(7))
    two.change(set_to(1))
    assert one.change(raise_to(5)) == 5


def test_a_refusal_is_looked_at_again(users: tuple[User, User]) -> None:
    one, two = users

    def only_below_five(position: Position | None, now: datetime) -> Position:
        if position is None or position.value["n"] >= 5:
            raise InvalidStateError("five or more")
        return add(position, now)

    one.change(set_to(7))
    two.change(set_to(1))
    assert one.change(only_below_five) == 2


@pytest.mark.parametrize("look", ["read", "leave it"])
def test_what_was_only_read_is_memory_too(users: tuple[User, User], look: str) -> None:
    one, two = users
    two.change(set_to(7))
    one.read() if look == "read" else one.change(lambda position, now: None)
    two.change(set_to(1))
    assert one.change(raise_to(5)) == 5


def test_a_change_of_what_is_long_gone_is_planned_again(users: tuple[User, User]) -> None:
    one, two = users
    one.change(add)
    for _ in range(3):
        two.change(add)
    assert one.change(add) == 5


def test_a_read_never_comes_from_memory(users: tuple[User, User]) -> None:
    one, two = users
    one.change(add)
    two.change(set_to(9))
    assert one.read() == 9


def test_what_was_deleted_is_seen_to_be_gone(users: tuple[User, User]) -> None:
    one, _ = users
    one.change(set_to(7))
    run(one.plain.delete([PATH]))
    seen: list[int | None] = []

    def plan(position: Position | None, now: datetime) -> Position:
        seen.append(number(position))
        return add(position, now)

    assert one.change(plan) == 1
    assert seen == [7, None]


# ---- swaps that fail, or do not answer -------------------------------------------------------------------------------


def test_a_swap_whose_answer_is_lost_counts_once(users: tuple[User, User]) -> None:
    one, two = users
    one.faults.drop_answer()
    assert one.change(add) == 1
    assert two.read() == 1
    assert one.faults.counts == {"get": 2, "swap": 1}


def test_a_swap_that_never_arrived_is_sent_again(users: tuple[User, User]) -> None:
    one, two = users
    one.faults.fail("swap")
    assert one.change(add) == 1
    assert two.read() == 1
    sent = [request.data for request in one.faults.requests if request.kind == "swap"]
    assert len(sent) == 2
    assert sent[0] == sent[1], "another nonce would make two changes of one"


def test_a_swap_that_lands_after_it_was_sent_again_counts_once(users: tuple[User, User]) -> None:
    one, two = users
    late = one.faults.late()
    assert one.change(add) == 1
    assert not late[0].land()
    assert two.read() == 1
    assert one.change(add) == 2


def test_a_swap_that_lands_just_before_it_is_sent_again_counts_once(users: tuple[User, User]) -> None:
    one, two = users
    late = one.faults.late()
    one.faults.call(lambda request: late[0].land(), "get", 2, after=True)
    assert one.change(add) == 1
    assert two.read() == 1


def test_of_a_swap_that_lands_and_is_built_upon_nothing_is_written_twice(users: tuple[User, User]) -> None:
    """The answer is lost, and somebody else moves on before anything can be read back: a plan knows its own work."""
    one, two = users
    one.faults.drop_answer()
    one.faults.call(lambda request: two.change(add), "get", 2)
    planned: list[int | None] = []

    def plan(position: Position | None, now: datetime) -> Position | None:
        planned.append(number(position))
        return add(position, now) if planned[-1] == 0 else None

    assert one.change(plan) == 2
    assert planned == [0, 2]


def test_without_any_proof_the_outcome_is_unknown(users: tuple[User, User]) -> None:
    one, two = users
    one.read()
    late = one.faults.late(times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError, match=r"memory://\w+/progress/tests/p.json: .* try again"):
        one.change(add)
    assert two.read() == 0
    assert late[0].land()
    assert two.read() == 1
    assert not late[1].land()
    assert one.costs(lambda: one.change(add)) == {"get": 1, "swap": 1}, "what was remembered is out of date, likely"
    assert two.read() == 2


def test_where_nothing_can_be_read_back_the_outcome_is_unknown(users: tuple[User, User]) -> None:
    one, two = users
    one.faults.drop_answer()
    one.faults.fail("get", 2)
    with pytest.raises(OutcomeUnknownError) as caught:
        one.change(add)
    assert isinstance(caught.value.__cause__, DependencyError)
    assert two.read() == 1


def test_a_change_that_could_not_begin_is_no_unknown_outcome(users: tuple[User, User]) -> None:
    one, _ = users
    one.faults.fail("get")
    with pytest.raises(DependencyError):
        one.change(add)
    assert one.change(add) == 1


def test_a_swap_that_others_win_again_and_again_is_given_up(users: tuple[User, User]) -> None:
    one, two = users
    one.faults.call(lambda request: two.change(add), "swap", times=MAX_ATTEMPTS)
    with pytest.raises(ThrottlingError, match="other processes changed it 100 times in a row: try again later"):
        one.change(set_to(-1))
    assert two.read() == MAX_ATTEMPTS
    assert one.change(add) == MAX_ATTEMPTS + 1


def test_a_refusal_without_a_reason_is_asked_again(users: tuple[User, User]) -> None:
    """A store may refuse a swap for no reason that can be seen."""
    one, two = users
    one.faults.fail("swap", error=PreconditionFailedError)
    assert one.change(add) == 1
    assert two.read() == 1


def test_two_that_create_it_at_once_are_one_after_the_other(url: str) -> None:
    one, two = User(MemoryStore(url)), User(MemoryStore(url))
    one.faults.call(lambda request: two.change(add), "swap", path=PATH)
    assert one.change(add) == 2


# ---- crowds ----------------------------------------------------------------------------------------------------------

WRITERS, TIMES = 4, 10


def increment(url: str, options: dict[str, Any], times: int) -> None:
    """What each process, or thread with a store of its own, does."""
    document = CasObject(StoreContext(open_store(url, options), SystemHost()), PATH, SERIALIZER)
    for _ in range(times):
        runtime.run_sync(document.change(add))


def total(url: str, options: dict[str, Any]) -> int | None:
    context = StoreContext(open_store(url, options), SystemHost())
    return number(runtime.run_sync(CasObject(context, PATH, SERIALIZER).read()))


@pytest.fixture
def _waits(_no_waits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As outside of tests: a crowd on real stores needs them."""
    monkeypatch.setattr(module, "_MAX_BACKOFF_SECONDS", 0.5)


@pytest.mark.usefixtures("_waits")
def test_no_change_of_many_threads_is_lost(any_root: Any) -> None:
    """They begin without the object, so that its creation is disputed too."""
    with ThreadPoolExecutor(WRITERS) as threads:
        work = [threads.submit(increment, any_root.url, any_root.storage_options, TIMES) for _ in range(WRITERS)]
        for one in work:
            one.result()
    assert total(any_root.url, any_root.storage_options) == WRITERS * TIMES


def test_no_change_of_many_processes_is_lost(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    processes = [
        context.Process(target=increment, args=(str(tmp_path / "root"), {}, TIMES * 3)) for _ in range(WRITERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * WRITERS
    assert total(str(tmp_path / "root"), {}) == WRITERS * TIMES * 3


def test_users_of_one_document_take_turns(users: tuple[User, User]) -> None:
    one, two = users
    one.faults.call(lambda request: None, times=100)  # each request lets the others run

    async def crowd() -> None:
        await asyncio.gather(*(one.document.change(add) for _ in range(20)))

    run(crowd())
    assert two.read() == 20
    assert one.faults.counts == {"get": 1, "swap": 20}, "none is refused because of the others"


# ---- bad bytes, and bad stores ---------------------------------------------------------------------------------------

GOOD = encode_position(FIRST, "0" * 32)
BAD: dict[str, tuple[bytes, type[CorruptionError]]] = {
    "nothing": (b"", MalformedError),
    "zeroes": (bytes(300), MalformedError),
    "torn": (GOOD[:-1], MalformedError),
    "another digest": (GOOD[:-66] + b"0" * 64 + b'"}', DigestMismatchError),
    "too large": (b" " * (MAX_POSITION + 1), CorruptionError),
    "newer": (GOOD.replace(b'"format_version":1', b'"format_version":2'), UnsupportedFormatError),
}


@pytest.mark.parametrize(("data", "error"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("seen", [False, True])
def test_bad_bytes_are_named_and_never_written_over(
    users: tuple[User, User], data: bytes, error: type[CorruptionError], seen: bool
) -> None:
    one, _ = users
    if seen:
        one.change(add)
    store = one.plain
    run(store.delete([PATH]))
    run(store.put(PATH, data))
    for act in (one.read, lambda: one.change(add)):
        with pytest.raises(error, match=r"memory://\w+/progress/tests/p.json: "):
            act()
    assert run(store.get(PATH)).data == data


def test_what_could_not_be_read_back_is_not_written(users: tuple[User, User]) -> None:
    one, two = users
    with pytest.raises(IllegalArgumentError, match=rf"p.json: would have 26\d{{4}} bytes, at most {MAX_POSITION}"):
        one.change(lambda position, now: replace(position, value={"n": 1, "state": "x" * MAX_POSITION}))
    assert two.read() == 0
    assert one.change(add) == 1


def test_what_is_no_json_is_refused_before_anything_is_sent(users: tuple[User, User]) -> None:
    one, two = users
    for value in ({"n": {1: 2}}, {"n": float("nan")}, {"n": b""}, {"n": "\ud800"}, {"n": (1, 2)}):
        with pytest.raises(IllegalArgumentError, match="position of partition 'p'"):
            one.change(lambda position, now, value=value: replace(position, value=value))
    assert one.faults.counts["swap"] == 0
    assert two.read() == 0


class CarelessStore(MemoryStore):
    """Writes whatever the condition says."""

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        await self.delete([path])
        return await super().compare_and_swap(path, data, None)


def test_a_store_that_ignores_conditions_is_refused_before_the_first_object(url: str) -> None:
    one = User(CarelessStore(url))
    with pytest.raises(InvalidStateError, match="does not keep conditions on writes"):
        one.change(add)
    assert run(one.plain.list("")) == []
    with pytest.raises(InvalidStateError, match="does not keep conditions on writes"):
        one.change(add)


def test_a_store_that_could_not_be_proved_is_proved_the_next_time(url: str) -> None:
    one = User(MemoryStore(url))
    one.faults.fail("put", times=ATTEMPTS)
    with pytest.raises(DependencyError):
        one.change(add)
    assert one.change(add) == 1


def test_a_store_opened_without_fencing_is_not_probed(url: str) -> None:
    one = User(CarelessStore(url, fencing=False))
    assert one.change(add) == 1
    assert one.faults.counts == {"get": 1, "swap": 1}


# ---- the store's clock -----------------------------------------------------------------------------------------------


class ClockStore(MemoryStore):
    """Tells a time of its own with each answer."""

    at = datetime(2031, 5, 5, tzinfo=UTC).timestamp()

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return replace(await super().get(path, limit=limit), at=self.at)


OWNED: Serializer[Ownership] = Serializer(encode_ownership, decode_ownership, MAX_OWNERSHIP, empty=Ownership({}))


def times_of(user: User, count: int, pause: float) -> list[datetime]:
    """What the plan of each of some changes is told last."""
    found: list[datetime] = []

    def plan(ownership: Ownership | None, now: datetime) -> Ownership:
        found[-1] = now
        return replace(ownership or Ownership({}), rows={"p": Row("p", "", 0, str(len(found)), now)})

    for _ in range(count):
        found.append(AT)
        run(user.document.change(plan))
        user.host.seconds += pause
    return found


def test_the_time_is_the_stores_where_it_tells(url: str) -> None:
    """From the first write on, and between reads by the time that passed here."""
    user = User(ClockStore(url), OWNED)
    begun = datetime.fromtimestamp(ClockStore.at, UTC)
    assert times_of(user, 3, 1.5) == [begun, begun + timedelta(seconds=1.5), begun + timedelta(seconds=3)]


def test_the_time_is_the_hosts_where_the_store_has_none(url: str) -> None:
    user = User(MemoryStore(url), OWNED)
    begun = user.host.now()
    assert times_of(user, 2, 1.5) == [begun, begun + timedelta(seconds=1.5)]


def test_what_must_not_be_empty_is_made_before_its_first_change(url: str) -> None:
    user = User(MemoryStore(url), OWNED)
    assert user.costs(lambda: run(user.document.change(lambda ownership, now: None))) == {"get": 1}
    assert run(user.plain.list("")) == [], "nothing to change makes nothing"
    user = User(MemoryStore(url), OWNED)
    times_of(user, 1, 0)
    assert Counter(one.kind for one in user.faults.requests if one.path == PATH) == {"get": 2, "swap": 2}


# ---- cancellation, and other processes -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["get", "swap"])
@pytest.mark.parametrize("after", [False, True])
def test_a_cancelled_change_leaves_the_turn_to_the_next(users: tuple[User, User], kind: str, after: bool) -> None:
    one, two = users
    gate = one.faults.hold(kind, after=after)
    work = runtime.submit(one.document.change(add))
    gate.wait()
    work.cancel()
    expected = 2 if kind == "swap" and after else 1
    assert one.change(add) == expected
    gate.open()
    assert two.read() == expected


class _Positions(StoreClient[CasObject[Position]]):
    def _make_core(self, context: StoreContext) -> CasObject[Position]:
        return CasObject(context, PATH, SERIALIZER)

    def add(self) -> int | None:
        return number(runtime.run_sync(self._core.change(add)))


def test_a_child_forked_in_the_middle_of_a_change_starts_afresh(tmp_path: Path) -> None:
    """The parent's turn is taken at that moment, and will never end in the child."""
    client = _Positions(StoreConfig(str(tmp_path / "root"), None))
    assert client.add() == 1

    held, let_go = threading.Event(), threading.Event()

    async def hold() -> None:
        async with client._core._lock:
            held.set()
            await asyncio.to_thread(let_go.wait, 30)

    holder = runtime.submit(hold())
    held.wait(30)
    child = multiprocessing.get_context("fork").Process(target=client.add)
    child.start()
    child.join(20)
    exitcode = child.exitcode
    child.kill()
    let_go.set()
    holder.result()
    assert exitcode == 0
    assert client.add() == 3


# ---- disks that do not confirm ---------------------------------------------------------------------------------------


def unconfirmed(_: object) -> None:
    raise OutcomeUnknownError("the bytes are in place, and the disk has not confirmed them, says the test")


def test_what_the_disk_confirms_the_second_time_is_written_twice_and_no_failure(users: tuple[User, User]) -> None:
    one, two = users
    one.faults.call(unconfirmed, "swap", after=True)
    assert one.costs(lambda: one.change(set_to(5))) == {"get": 2, "swap": 2}
    assert two.read() == 5


def test_what_was_never_confirmed_is_written_again_although_it_stands_there(users: tuple[User, User]) -> None:
    one, two = users
    one.faults.call(unconfirmed, "swap", after=True, times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError):
        one.change(raise_to(5))
    assert two.read() == 5
    assert one.costs(lambda: one.change(raise_to(5))) == {"get": 1, "swap": 1}  # nothing new, but durable now
    assert one.costs(lambda: one.change(raise_to(5))) == {"get": 1}
    assert two.read() == 5


def test_a_later_swap_without_an_answer_does_not_make_an_earlier_one_durable(users: tuple[User, User]) -> None:
    one, two = users
    one.faults.call(unconfirmed, "swap", after=True, times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError):
        one.change(raise_to(5))
    one.faults.forget()
    one.faults.fail("swap", times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError):
        one.change(raise_to(9))
    assert two.read() == 5
    assert one.costs(lambda: one.change(raise_to(5))) == {"get": 1, "swap": 1}
    assert one.costs(lambda: one.change(raise_to(5))) == {"get": 1}


def test_what_was_not_confirmed_and_could_not_be_read_back_is_written_again(users: tuple[User, User]) -> None:
    one, two = users
    one.read()
    one.faults.forget()
    one.faults.call(unconfirmed, "swap", after=True)
    one.faults.fail("get")
    with pytest.raises(OutcomeUnknownError):
        one.change(raise_to(5))
    assert two.read() == 5
    assert one.costs(lambda: one.change(raise_to(5))) == {"get": 1, "swap": 1}
    assert one.costs(lambda: one.change(raise_to(5))) == {"get": 1}


def test_what_was_cancelled_after_it_landed_is_written_again(users: tuple[User, User]) -> None:
    """Its thread goes on without it, and the error of an fsync there reaches nobody."""
    one, two = users
    gate = one.faults.hold("swap", after=True)
    work = runtime.submit(one.document.change(raise_to(5)))
    gate.wait()
    work.cancel()
    assert one.costs(lambda: one.change(raise_to(5))) == {"get": 1, "swap": 1}
    assert one.costs(lambda: one.change(raise_to(5))) == {"get": 1}
    gate.open()
    assert two.read() == 5
