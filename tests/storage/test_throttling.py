"""Servers that ask for less, and that decide between writers at the same time: 503, Retry-After, 409 beside 412."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from pyspark_checkpointer.consumers.journal import Journal
from pyspark_checkpointer.errors import CheckpointError, DependencyError, RetryableError, ThrottlingError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import Store, cloud, compare_and_swap, open_store
from pyspark_checkpointer.storage.compare_and_swap import UndecidedError, swap_until_decided
from pyspark_checkpointer.storage.conditional_write_check import probe, try_conditions
from pyspark_checkpointer.storage.contest import WRITERS, hold_contest
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.testing.crashes import injected
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.store import FaultyStore
from tests.storage.conftest import Place
from tests.storage.fake import Answer, gives, serving
from tests.storage.s3.tiny_s3 import Asked, Refusal, TinyS3, tiny_s3
from tests.storage.test_rotation import check_all, commit


def store_of(server: TinyS3) -> Store:
    return open_store("s3://bucket/root", options_of(server))


def options_of(server: TinyS3) -> dict[str, Any]:
    return {"endpoint_url": server.endpoint, "key": "k", "secret": "s"}


@pytest.mark.parametrize(
    ("text", "pause"),
    [("0", 0.0), ("7", 7.0), (" 7 ", 7.0), ("3600", 30.0), (None, None), ("", None), ("soon", None), ("-1", None)],
)
def test_the_pause_that_a_server_asks_for(text: str | None, pause: float | None) -> None:
    assert cloud.asked_pause(text) == pause


def test_a_pause_until_a_time() -> None:
    assert cloud.asked_pause(formatdate(time.time() + 12, usegmt=True)) == pytest.approx(12, abs=2)
    assert cloud.asked_pause(formatdate(time.time() - 12, usegmt=True)) == 0
    assert cloud.asked_pause(formatdate(time.time() + 9999, usegmt=True)) == 30


def asking(kind: str) -> Answer:
    body = {"error": {"code": 503, "message": "busy", "errors": [{"reason": "backendError"}]}}
    return gives(503, body if kind == "gcs" else {}, **{"Retry-After": "1"})


@pytest.mark.parametrize("kind", ["s3", "azure", "gcs", "databricks"])
@pytest.mark.parametrize("call", ["put", "swap"])
def test_a_request_is_not_sent_again_before_the_time_that_the_server_asked_for(kind: str, call: str) -> None:
    with serving(asking(kind)) as server:
        place: Place = server.place(kind)
        store = place.open().inner  # type: ignore[attr-defined]
        with pytest.raises(ThrottlingError) as raised:
            run_sync(store.put("x", b"1") if call == "put" else store.compare_and_swap("x", b"1", None))
    assert raised.value.pause == 1.0


def test_a_put_waits_as_long_as_the_server_asked_for() -> None:
    refused = iter([(503, "SlowDown", {"Retry-After": "1"})])
    with tiny_s3(lambda asked: next(refused, None) if asked.method == "PUT" else None) as server:
        started = time.monotonic()
        run_sync(store_of(server).put("x", b"1"))
        assert 1.0 <= time.monotonic() - started < 5
        assert len(server.asked) == 2


def test_swaps_that_are_refused_for_a_while_wait_and_are_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of S3, SlowDown comes without a time to wait. Five attempts without a pause are over in no time."""
    monkeypatch.setattr(cloud, "SWAP_PAUSE", 0.1)
    refused: list[float] = []

    def check(asked: Asked) -> Refusal | None:
        if asked.is_swap and asked.key == "root/_latest" and len(refused) < 3:
            refused.append(time.monotonic())
            return 503, "SlowDown"
        return None

    with tiny_s3(check) as server, Checkpointer("s3://bucket/root", options_of(server)) as ck:
        commit(ck, 0)
        commit(ck, 1)
        check_all(ck, 2)
    first, second, third = refused
    assert second - first >= 0.1
    assert third - second >= 0.1


def test_swaps_that_fail_without_a_time_to_wait_are_sent_after_pauses_that_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """500 says nothing of a time. Sent at once, all swaps were over in no time, and their outcome was unknown."""
    monkeypatch.setattr(compare_and_swap, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(compare_and_swap, "LONGEST_PAUSE", 0.5)
    refused: list[float] = []

    def check(asked: Asked) -> Refusal | None:
        if asked.is_swap and len(refused) < compare_and_swap.MAX_SENDS - 1:
            refused.append(time.monotonic())
            return 500, "InternalError"
        return None

    with tiny_s3(check) as server:
        store = store_of(server)
        run_sync(store.put("x", b"old"))
        found = run_sync(swap_until_decided(store, "x", b"mine", run_sync(store.get("x")).version, 100))
    assert found is not None
    assert found.data == b"mine"
    pauses = [later - earlier for earlier, later in pairwise(refused)]
    assert [pause > least for pause, least in zip(pauses, (0.02, 0.1, 0.5, 0.5, 0.5, 0.5), strict=True)] == [True] * 6


def test_no_swap_sleeps_for_long_while_the_store_is_well_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch and its lease wait for it. An outage of six seconds held them for half a minute."""
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(compare_and_swap, "FIRST_PAUSE", 0.2)
    monkeypatch.setattr("pyspark_checkpointer.storage.compare_and_swap.asyncio.sleep", note)
    faults = Faults()
    faults.fail("swap", times=compare_and_swap.MAX_SENDS)
    store = FaultyStore(MemoryStore(f"memory://{uuid.uuid4().hex}"), faults)
    with pytest.raises(UndecidedError):
        run_sync(swap_until_decided(store, "x", b"mine", None, 100))
    assert max(pauses) <= 5
    assert sum(pauses) >= 20, "an outage of that length is waited for"


def test_a_swap_is_not_sent_for_ever_to_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each send takes the whole time limit of a request, and the old version can be read meanwhile."""
    now = 0.0
    monkeypatch.setattr(compare_and_swap, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(compare_and_swap, "FIRST_PAUSE", 0.0)
    faults, sends = Faults(), count(1)

    def hang(_: object) -> None:
        nonlocal now
        now += 60
        next(sends)
        raise DependencyError("x: no answer within 60 s")

    faults.call(hang, "swap", times=compare_and_swap.MAX_SENDS)
    store = FaultyStore(MemoryStore(f"memory://{uuid.uuid4().hex}"), faults)
    with pytest.raises(UndecidedError):
        run_sync(swap_until_decided(store, "x", b"mine", None, 100))
    assert next(sends) - 1 == 3


@pytest.mark.parametrize("error", [DependencyError, ThrottlingError])
def test_the_proof_of_conditional_writes_waits_as_long_as_a_commit(
    monkeypatch: pytest.MonkeyPatch, error: type[DependencyError]
) -> None:
    """The first commit of a root, and each first position, need it. An outage of 10 ms failed them."""
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(compare_and_swap, "FIRST_PAUSE", 0.2)
    monkeypatch.setattr(asyncio, "sleep", note)
    faults = Faults()
    faults.fail("swap", times=1000, error=error)
    with pytest.raises(error):
        run_sync(probe(FaultyStore(MemoryStore(f"memory://{uuid.uuid4().hex}"), faults)))
    assert max(pauses) <= 5
    assert 20 <= sum(pauses) <= 120


def test_what_comes_first_outlasts_what_a_commit_outlasts(tmp_path: Path) -> None:
    def commit(root: str) -> None:
        with Checkpointer(root) as ck:
            ck.begin(epoch=1).commit()

    def update(root: str, partition: str = "0") -> None:
        position = {"fully_qualified_namespace": "a", "eventhub_name": "b", "consumer_group": "c"}
        with CheckpointStore(root) as store:
            store.update_checkpoint({**position, "partition_id": partition, "offset": "1", "sequence_number": 1})

    def keep(root: str) -> None:
        with Journal(f"{root}/journal.yml"):
            pass

    update(str(tmp_path / "positions"))
    for job, root in (
        (commit, "commits"),
        (keep, "journals"),
        (update, "first"),
        (lambda root: update(root, "1"), "positions"),  # a new partition, in a new process
    ):
        with injected(Faults()) as faults:
            faults.fail("swap", times=compare_and_swap.MAX_SENDS - 1)
            job(str(tmp_path / root))


@pytest.mark.parametrize("lands", [True, False])
def test_a_swap_whose_outcome_can_be_read_back_waits_for_nothing(monkeypatch: pytest.MonkeyPatch, lands: bool) -> None:
    """Its own answer was lost, or another writer was faster."""
    monkeypatch.setattr(compare_and_swap, "FIRST_PAUSE", 60.0)
    faults, inner = Faults(), MemoryStore(f"memory://{uuid.uuid4().hex}")
    store = FaultyStore(inner, faults)
    if lands:
        faults.drop_answer()
    else:
        faults.fail("swap")
        faults.call(lambda _: run_sync(inner.compare_and_swap("x", b"of another", None)), "get", nth=1)
    found = run_sync(swap_until_decided(store, "x", b"mine", None, 100))
    assert found is not None
    assert found.data == (b"mine" if lands else b"of another")


def test_a_key_of_kms_that_is_asked_too_often_is_no_refusal() -> None:
    refused = iter([(400, "KMS.ThrottlingException"), (400, "ThrottlingException")])
    with tiny_s3(lambda asked: next(refused, None)) as server:
        run_sync(store_of(server).put("x", b"1"))
        assert len(server.asked) == 3


# --- writers at the same time ---


class Conflicting:
    """S3 answers a conditional write with 409 where another one is under way, and decides nothing of it."""

    def __init__(self, every: int) -> None:
        self.numbers, self.every = count(), every

    def __call__(self, asked: Asked) -> Refusal | None:
        conditional = asked.method == "PUT" and ("If-Match" in asked.headers or "If-None-Match" in asked.headers)
        conflict = conditional and next(self.numbers) % self.every
        return (409, "ConditionalRequestConflict") if conflict else None


def test_no_increment_is_lost_among_409_and_412() -> None:
    """Every second conditional write is refused with 409, and of the others all but one with 412."""

    def increment(number: int) -> None:
        store = store_of(server)
        for turn in range(2):
            while True:
                blob = run_sync(store.get("counter"))
                data = b"%d by %d/%d" % (int(blob.data.split()[0]) + 1, number, turn)
                try:
                    found = run_sync(swap_until_decided(store, "counter", data, blob.version, 100))
                except CheckpointError:
                    continue
                if found is not None and found.data == data:
                    break

    with tiny_s3() as server:
        run_sync(store_of(server).put("counter", b"0 by nobody"))
        server.check = Conflicting(2)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(increment, range(8)))
        assert server.objects["root/counter"].split()[0] == b"16"


def test_a_contest_among_409_and_412_has_one_winner() -> None:
    with tiny_s3(Conflicting(3)) as server:
        contest = run_sync(hold_contest([store_of(server)] * WRITERS, "c-", 12))
    assert (contest.problem, contest.rounds) == (None, 12)


def once_a_second(clock: Iterator[int]) -> Any:
    """Refuse a write of an object that was written less than two requests ago, as Google does within a second."""
    written: dict[str, int] = {}

    def check(asked: Asked) -> Refusal | None:
        now = next(clock)
        if asked.method != "PUT":
            return None
        if now - written.get(asked.key, -9) < 3:
            return 429, "TooManyRequests"
        written[asked.key] = now
        return None

    return check


def test_the_probe_waits_where_an_object_is_written_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "SWAP_PAUSE", 0.01)
    with tiny_s3(once_a_second(count())) as server:
        run_sync(try_conditions(store_of(server), "x"))
        refused = len(server.asked)
    assert refused > 6


def test_what_a_pause_is_for_can_be_pickled() -> None:
    import pickle

    error = cloud.with_pause(ThrottlingError("slow down"), 3.0)
    assert isinstance(error, RetryableError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.pause) == ("slow down", 3.0)
