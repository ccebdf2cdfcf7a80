"""The path of a request: what is tried again and for how long, and how many run at once. And the probe."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    InvalidStateError,
    RetryableError,
    ThrottlingError,
)
from pyspark_checkpointer.manifests.digest import Bytes, sha256
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import (
    ObjectExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    compare_and_swap,
    request_path,
)
from pyspark_checkpointer.storage.base import Blob, ListingPage, S, SinkRead
from pyspark_checkpointer.storage.conditional_write_check import probe
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.storage.request_path import (
    SMALL_READ,
    SMALL_SLOTS,
    SMALL_WRITE,
    LimitedStore,
    RetryingStore,
    Traffic,
    counted,
)


class Time:
    """A clock that goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


class Faulty(MemoryStore):
    """A store that raises given errors, before or after a request takes effect."""

    def __init__(self, *errors: Exception, after: bool = False, each: Callable[[], None] = lambda: None) -> None:
        super().__init__(f"memory://{id(self)}")
        self.objects.clear()
        self.errors, self.after, self.each = list(errors), after, each
        self.calls = 0

    async def _maybe(self, action: Any) -> Any:
        self.calls += 1
        self.each()
        error = self.errors.pop(0) if self.errors else None
        if error is None:
            return await action
        if self.after:
            await action
        else:
            action.close()
        raise error

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return await self._maybe(super().get(path, limit=limit))

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        return await self._maybe(super().read_into(path, make, limit=limit))

    async def put(self, path: str, data: Bytes) -> None:
        await self._maybe(super().put(path, data))

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        return await self._maybe(super().compare_and_swap(path, data, expected))

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        return await self._maybe(super().list_page(prefix, more))

    async def folders(self, prefix: str) -> Sequence[str]:
        return await self._maybe(super().folders(prefix))

    async def delete(self, paths: Sequence[str]) -> None:
        await self._maybe(super().delete(paths))


def retrying(inner: Faulty, time: Time, **bounds: Any) -> RetryingStore:
    return RetryingStore(inner, sleep=time.sleep, clock=time.clock, **bounds)


CALLS = {
    "get": lambda store: store.get("there"),
    "read_into": lambda store: store.read_into("there", hashlib.sha256),
    "get_range": lambda store: store.get_range("there", 0, 2),
    "put": lambda store: store.put("new", b"1"),
    "list": lambda store: store.list(""),
    "folders": lambda store: store.folders(""),
    "delete": lambda store: store.delete(["there"]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("error", [DependencyError("no answer"), ThrottlingError("slow down")], ids=type)
def test_what_can_be_tried_again_is(call: Callable[[Any], Any], error: Exception) -> None:
    inner, time = Faulty(), Time()
    run_sync(inner.put("there", b"data"))
    inner.errors = [error, error, error]
    run_sync(call(retrying(inner, time)))
    if inner.errors != [error] * 3:  # a range is not one of the faulty calls
        assert len(time.slept) == 3


def test_each_attempt_reads_into_a_sink_of_its_own() -> None:
    inner = Faulty()
    run_sync(inner.put("x", b"data"))
    inner.errors, inner.after = [DependencyError("broke off")], True
    made: list[Any] = []

    def make() -> Any:
        made.append(hashlib.sha256())
        return made[-1]

    assert run_sync(retrying(inner, Time()).read_into("x", make)).hexdigest() == sha256(b"data")
    assert len(made) == 2


@pytest.mark.parametrize("whole", [False, True])
def test_reads_that_failed_together_are_tried_again_apart(whole: bool) -> None:
    class Together(Faulty):
        async def read_each_into(self, reads: Sequence[SinkRead[S]]) -> list[S | CheckpointError]:
            if whole:
                raise DependencyError("no answer in time")
            return await super().read_each_into(reads)

    inner, time = Together(), Time()
    for path in ("x", "y"):
        run_sync(inner.put(path, path.encode()))
    inner.errors = [DependencyError("no answer")] * 3
    reads = [SinkRead(path, hashlib.sha256, 1) for path in ("x", "y", "z")]
    x, y, z = run_sync(retrying(inner, time).read_each_into(reads))
    assert not isinstance(x, CheckpointError)
    assert not isinstance(y, CheckpointError)
    assert (x.hexdigest(), y.hexdigest()) == (sha256(b"x"), sha256(b"y"))
    assert isinstance(z, ObjectNotFoundError)


def test_it_ends_after_so_many_attempts_with_pauses_that_grow() -> None:
    inner, time = Faulty(*[DependencyError("root/x: no answer")] * 99), Time()
    with pytest.raises(DependencyError, match=r"root/x: no answer \(12 attempts in \d+\.\d s\)"):
        run_sync(retrying(inner, time).get("x"))
    assert inner.calls == 12
    assert len(time.slept) == 11
    assert all(0 < pause <= min(0.1 * 2**number, 10) for number, pause in enumerate(time.slept))


def test_a_store_that_refuses_at_once_is_waited_for_as_long_as_clouds_ask_for_less() -> None:
    waited = []
    for _ in range(100):
        time = Time()
        with pytest.raises(ThrottlingError):
            run_sync(retrying(Faulty(*[ThrottlingError("slow down")] * 99), time).get("x"))
        waited.append(time.now - 1000)
    assert 20 < sum(waited) / len(waited) < 35
    assert max(waited) < 60


def test_the_log_tells_that_a_store_keeps_refusing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tell it by the first of the many requests of a commit."""
    monkeypatch.setattr(request_path, "wait_random_exponential", lambda **_: lambda state: 2.0)
    error = ThrottlingError("root/x: slow down")
    inner, time = Faulty(error, error, error), Time()
    store = retrying(inner, time)
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        with pytest.raises(ObjectNotFoundError):
            run_sync(store.get("x"))
        assert caplog.messages == [], "three failures are nothing to tell"
        inner.errors = [error] * 99
        for told in (1, 1, 2):
            with pytest.raises(ThrottlingError):
                run_sync(store.get("x"))
            assert caplog.messages == ["root/x: slow down: failed 4 times in 6 s; trying again"] * told
            time.now += 20


def test_no_pause_is_longer_than_the_longest() -> None:
    inner, time = Faulty(*[ThrottlingError("slow down")] * 99), Time()
    with pytest.raises(ThrottlingError):
        run_sync(retrying(inner, time, attempts=60, patience=1e9, longest=0.5).get("x"))
    assert max(time.slept) <= 0.5


def test_it_ends_when_patience_is_over() -> None:
    time = Time()

    def take_long() -> None:
        time.now += 50

    inner = Faulty(*[DependencyError("no answer")] * 99, each=take_long)
    with pytest.raises(DependencyError, match="3 attempts"):
        run_sync(retrying(inner, time, patience=120.0).get("x"))
    assert time.now < 1000 + 3 * 50 + 10


@pytest.mark.parametrize("error", [ObjectNotFoundError("x"), InvalidStateError("x"), OSError("x"), KeyError("x")])
def test_what_cannot_be_helped_is_tried_once(error: Exception) -> None:
    inner, time = Faulty(error, error), Time()
    with pytest.raises(type(error)) as raised:
        run_sync(retrying(inner, time).get("x"))
    assert raised.value is error
    assert inner.calls == 1


@pytest.mark.parametrize("error", [DependencyError("no answer"), ThrottlingError("slow down")], ids=type)
def test_a_swap_is_tried_once(error: RetryableError) -> None:
    inner, time = Faulty(error, error), Time()
    with pytest.raises(type(error)) as raised:
        run_sync(retrying(inner, time).compare_and_swap("x", b"1", None))
    assert raised.value is error
    assert (inner.calls, time.slept) == (1, [])


@pytest.mark.parametrize("size", [0, 10, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, 20 << 20])
def test_a_put_whose_answer_was_lost_meets_its_own_object(size: int) -> None:
    inner = Faulty(DependencyError("no answer"), after=True)
    run_sync(retrying(inner, Time()).put("x", bytes(size)))
    assert inner.calls == 2
    assert run_sync(inner.get("x")).data == bytes(size)


@pytest.mark.parametrize("other", [b"", b"other", b"mine and more", bytes(20 << 20)])
def test_a_put_that_failed_is_not_taken_for_the_object_of_another(other: bytes) -> None:
    inner = Faulty()
    run_sync(inner.put("x", other))
    inner.errors = [DependencyError("no answer")]
    with pytest.raises(ObjectExistsError):
        run_sync(retrying(inner, Time()).put("x", b"mine"))
    with pytest.raises(ObjectExistsError):
        run_sync(retrying(inner, Time()).put("x", other))  # nothing was lost here: it was there before


class Slow(MemoryStore):
    """A store that is slow, and counts the requests under way."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"memory://{id(self)}")
        self.seconds, self.now, self.most = seconds, 0, 0

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.seconds)
            return ListingPage([], None)
        finally:
            self.now -= 1

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        await self.list_page("")
        return Blob(b"")

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return (await self.get(path)).data

    async def put(self, path: str, data: Bytes) -> None:
        await self.list_page("")

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        await asyncio.sleep(self.seconds)
        return ""


def test_no_more_requests_at_once_than_allowed() -> None:
    slow = Slow(0.01)
    store = LimitedStore(slow, concurrency=3, timeout=5)

    async def many() -> None:
        await asyncio.gather(*(store.list("") for _ in range(20)))

    run_sync(many())
    assert slow.most == 3


@pytest.mark.parametrize(
    ("ask", "most"),
    [
        (lambda store: store.get("x", limit=SMALL_READ), SMALL_SLOTS * 3),
        (lambda store: store.get("x", limit=SMALL_READ + 1), 3),
        (lambda store: store.get("x"), 3),
        (lambda store: store.get_range("x", 0, SMALL_READ), SMALL_SLOTS * 3),
        (lambda store: store.get_range("x", 0, SMALL_READ + 1), 3),
        (lambda store: store.put("x", bytes(SMALL_WRITE)), SMALL_SLOTS * 3),
        (lambda store: store.put("x", bytes(SMALL_WRITE + 1)), 3),
    ],
)
def test_requests_that_are_known_to_be_small_have_more_turns(ask: Callable[[LimitedStore], Any], most: int) -> None:
    slow = Slow(0.01)
    store = LimitedStore(slow, concurrency=3, timeout=5)

    async def many() -> None:
        await asyncio.gather(*(ask(store) for _ in range(SMALL_SLOTS * 4)))

    run_sync(many())
    assert slow.most == most


def test_what_goes_into_a_sink_is_counted_as_read() -> None:
    store, traffic = LimitedStore(Faulty(), concurrency=1, timeout=5), Traffic()

    async def read() -> str:
        await store.put("x", b"data")
        with counted(traffic):
            return (await store.read_into("x", hashlib.sha256)).hexdigest()

    assert run_sync(read()) == sha256(b"data")
    assert (traffic.requests["get"], traffic.bytes_read) == (1, 4)


def test_a_request_without_answer_is_given_up() -> None:
    store = LimitedStore(Slow(60), concurrency=1, timeout=0.05)
    for call in (store.put("x", b"1"), store.compare_and_swap("x", b"1", None)):
        with pytest.raises(DependencyError, match=r"memory://\d+: (put|swap) x: no answer within 0.05"):
            run_sync(call)


def test_waiting_for_a_turn_is_not_waiting_for_an_answer() -> None:
    store = LimitedStore(Slow(0.1), concurrency=1, timeout=0.3)

    async def many() -> None:
        await asyncio.gather(*(store.put("x", b"1") for _ in range(6)))

    run_sync(many())


def test_large_objects_have_more_time() -> None:
    store = LimitedStore(Slow(0.2), concurrency=1, timeout=0.1)
    run_sync(store.put("x", bytes(1 << 20)))


def test_a_cancelled_request_gives_its_turn_back() -> None:
    store = LimitedStore(Slow(60), concurrency=1, timeout=60)
    for _ in range(3):
        work = runtime.submit(store.list(""))
        assert not work.done()
        work.cancel()

    async def free() -> bool:
        await asyncio.sleep(0.01)
        return not store._slots.locked()

    assert run_sync(free())


class Liar(MemoryStore):
    """A store that ignores some conditions, as servers do that do not know them."""

    def __init__(self, *ignored: str) -> None:
        super().__init__(f"memory://liar-{id(self)}")
        self.ignored = ignored

    async def put(self, path: str, data: Bytes) -> None:
        if "put" in self.ignored:
            await super().delete([path])
        await super().put(path, data)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        if "create" in self.ignored and expected is None:
            await super().delete([path])
        if "swap" in self.ignored and expected is not None:
            expected = (await super().get(path)).version
        if "always" in self.ignored and expected is not None:
            raise PreconditionFailedError("never")
        return await super().compare_and_swap(path, data, expected)

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        blob = await super().get(path, limit=limit)
        return Blob(b"stale", blob.version) if "read" in self.ignored else blob


@pytest.mark.parametrize(
    ("ignored", "found"),
    [
        ("put", "wrote over an object that exists"),
        ("create", "created an object that exists"),
        ("swap", "swapped on a version that is gone"),
        ("always", "refused a swap on the version that it had just given"),
        ("read", "gave back another object than the one last written"),
    ],
)
def test_the_probe_finds_a_store_that_ignores_conditions(ignored: str, found: str) -> None:
    store = Liar(ignored)
    with pytest.raises(InvalidStateError, match=rf'memory://liar-\d+: .*{found}.*fencing="none"'):
        run_sync(probe(store))
    assert run_sync(store.list("")) == []


def test_the_probe_starts_again_when_an_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_and_swap, "FIRST_PAUSE", 0.0)
    store = Faulty(DependencyError("no answer"), ThrottlingError("slow down"))
    run_sync(probe(store))
    assert run_sync(store.list("")) == []
    store = Faulty(*[DependencyError("no answer")] * 99)
    with pytest.raises(DependencyError):
        run_sync(probe(store))
    assert store.calls == compare_and_swap.MAX_SENDS + 1, "the swaps, and one deletion of all that may have landed"


def test_nothing_is_probed_where_fencing_was_given_up() -> None:
    store = Liar("put", "create", "swap")
    store._fencing = False
    run_sync(probe(store))
