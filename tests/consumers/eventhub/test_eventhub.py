"""What our checkpoint store for Event Hubs promises beyond the contract: requests, failures, clocks, coalescing."""

import json
import os
import pickle
import re
import threading
import time
import uuid
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.consumers.eventhub import CheckpointStore, aio
from pyspark_checkpointer.consumers.eventhub.core import EventHubGroups
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    DependencyError,
    DigestMismatchError,
    IllegalArgumentError,
    InvalidStateError,
)
from pyspark_checkpointer.storage.base import Blob
from pyspark_checkpointer.storage.request_path import Traffic, counted
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.store import FaultyStore
from tests.consumers.eventhub.test_eventhub_contract import HERE, checkpoint, claim, owners, positions
from tests.servers import Server

FOLDER = "progress/eventhub/orders.servicebus.windows.net/clicks/%24default/"


class Faulty(CheckpointStore):
    """One whose requests are counted, and fail where a test says so."""

    def _make_core(self, context: StoreContext) -> EventHubGroups:
        self.faults = Faults()
        return super()._make_core(StoreContext(FaultyStore(context.store, self.faults), context.host))


class Waiting(Faulty):
    """One whose updates wait until it is flushed or closed."""

    def __init__(self, url: str) -> None:
        super().__init__(url, max_updates=100, interval=60.0)


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(url: str) -> Faulty:
    return Faulty(url)


def read(store: CheckpointStore, path: str) -> bytes:
    return runtime.run_sync(store._config.open().store.get(path)).data


def overwrite(store: CheckpointStore, path: str, data: bytes) -> None:
    async def work() -> None:
        inner = store._config.open().store
        await inner.delete([path])
        await inner.put(path, data)

    runtime.run_sync(work())


# ---- requests --------------------------------------------------------------------------------------------------


def test_listing_a_group_is_one_read(store: Faulty) -> None:
    store.claim_ownership([claim(str(n), "a") for n in range(32)])
    store.faults.forget()
    assert len(store.list_ownership(*HERE)) == 32
    assert store.faults.counts == {"get": 1}


def test_a_round_of_balancing_is_one_read_and_one_swap(store: Faulty) -> None:
    store.claim_ownership([claim(str(n), "a") for n in range(32)])
    store.faults.forget()
    rows = store.list_ownership(*HERE)
    assert len(store.claim_ownership(rows)) == 32
    assert store.faults.counts == {"get": 1, "swap": 1}


def test_an_update_is_one_swap(store: Faulty) -> None:
    store.update_checkpoint(checkpoint("0", 1, "1"))
    store.faults.forget()
    for number in range(2, 10):
        store.update_checkpoint(checkpoint("0", number, str(number)))
    assert store.faults.counts == {"swap": 8}


def test_the_next_process_reads_before_its_first_update(url: str, store: Faulty) -> None:
    store.update_checkpoint(checkpoint("0", 1, "1"))
    second = Faulty(url)
    second.update_checkpoint(checkpoint("0", 2, "2"))
    assert second.faults.counts == {"get": 1, "swap": 1}
    store.update_checkpoint(checkpoint("0", 3, "3"))  # what it remembers is old by now
    assert positions(second) == {"0": (3, "3")}


def test_what_waits_from_an_earlier_ownership_is_not_written_over_later_positions(url: str) -> None:
    store, other = CheckpointStore(url, max_updates=100, interval=60.0), CheckpointStore(url)
    (mine,) = store.claim_ownership([claim("0", "a")])
    store.update_checkpoint(checkpoint("0", 99, "99"))
    (mine,) = store.claim_ownership([mine])  # what waits stays where the owner is the same
    assert positions(store) == {"0": (99, "99")}
    store.update_checkpoint(checkpoint("0", 100, "100"))
    (theirs,) = other.claim_ownership([{**mine, "owner_id": "b"}])
    other.update_checkpoint(checkpoint("0", 5000, "5000"))
    other.claim_ownership([{**theirs, "owner_id": ""}])
    (row,) = store.list_ownership(*HERE)
    store.claim_ownership([{**row, "owner_id": "a"}])
    assert positions(store) == {"0": (5000, "5000")}
    store.update_checkpoint(checkpoint("0", 5001, "5001"))
    store.close()
    assert positions(other) == {"0": (5001, "5001")}


def test_what_waits_is_not_dropped_for_another_owner_of_the_same_store(url: str) -> None:
    """The SDK draws an owner for each `receive()`; nobody but this object has had the partition."""
    store = CheckpointStore(url, max_updates=100, interval=60.0)
    (row,) = store.claim_ownership([claim("0", "a")])
    store.update_checkpoint(checkpoint("0", 100, "100"))
    store.claim_ownership([{**row, "owner_id": "b"}])
    store.close()
    assert positions(CheckpointStore(url)) == {"0": (100, "100")}


def test_what_waits_is_not_dropped_for_a_claim_that_is_lost(url: str) -> None:
    store = CheckpointStore(url, max_updates=100, interval=60.0)
    (first,) = store.claim_ownership([claim("0", "a")])
    store.update_checkpoint(checkpoint("0", 99, "99"))
    assert store.claim_ownership([claim("0", "b")]) == []  # of a listing from before there was a row
    (renewed,) = store.claim_ownership([first])
    store.update_checkpoint(checkpoint("0", 100, "100"))
    assert store.claim_ownership([{**first, "owner_id": "b"}]) == []  # of an older listing
    (renewed,) = store.claim_ownership([renewed])
    other = CheckpointStore(url, max_updates=100, interval=60.0)
    other.update_checkpoint(checkpoint("0", 7, "7"))
    assert other.claim_ownership([{**first, "owner_id": "c"}]) == []  # nor what another object has to say
    store.close()
    assert positions(CheckpointStore(url)) == {"0": (100, "100")}
    other.close()
    assert positions(CheckpointStore(url)) == {"0": (7, "7")}


def test_a_position_that_is_set_before_the_first_claim_is_written(url: str) -> None:
    """Go back as consumers do: set the position, then claim what others had."""
    first = CheckpointStore(url)
    first.claim_ownership([claim("0", "a")])
    first.update_checkpoint(checkpoint("0", 5000, "5000"))
    store = CheckpointStore(url, max_updates=100, interval=60.0)
    store.update_checkpoint(checkpoint("0", 7, "7"))
    (row,) = store.list_ownership(*HERE)
    assert store.claim_ownership([{**row, "owner_id": "b"}])
    assert positions(store) == {"0": (7, "7")}


def test_a_position_that_is_set_before_the_first_claim_outlives_a_claim_without_an_answer(url: str) -> None:
    CheckpointStore(url).claim_ownership([claim("0", "a")])
    store = Waiting(url)
    store.update_checkpoint(checkpoint("0", 7, "7"))
    (row,) = store.list_ownership(*HERE)
    store.faults.call(_lose, "swap", path="ownership", times=100)
    with pytest.raises(CheckpointError):
        store.claim_ownership([{**row, "owner_id": "b"}])
    store.faults.clear()
    (row,) = store.list_ownership(*HERE)
    assert store.claim_ownership([{**row, "owner_id": "b"}])
    store.close()
    assert positions(CheckpointStore(url)) == {"0": (7, "7")}


def test_what_an_old_owner_puts_after_a_lost_claim_is_stale(url: str) -> None:
    store, other = Waiting(url), CheckpointStore(url)
    (mine,) = store.claim_ownership([claim("0", "a")])
    store.update_checkpoint(checkpoint("0", 100, "100"))
    (theirs,) = other.claim_ownership([{**mine, "owner_id": "b"}])
    store.faults.call(lambda _: other.claim_ownership([theirs]), "swap", path="ownership")
    assert store.claim_ownership([{**theirs, "owner_id": "a"}]) == []
    store.faults.clear()
    store.update_checkpoint(checkpoint("0", 101, "101"))  # its processor is still ending its batch
    other.update_checkpoint(checkpoint("0", 6000, "6000"))
    (row,) = store.list_ownership(*HERE)
    assert store.claim_ownership([{**row, "owner_id": "a"}])
    store.close()
    assert positions(other) == {"0": (6000, "6000")}


@pytest.mark.parametrize("landed", [False, True])
def test_what_waits_is_not_written_over_later_positions_after_a_claim_without_an_answer(url: str, landed: bool) -> None:
    store, other = Waiting(url), CheckpointStore(url)
    (mine,) = store.claim_ownership([claim("0", "a")])
    store.update_checkpoint(checkpoint("0", 100, "100"))
    (theirs,) = other.claim_ownership([{**mine, "owner_id": "b"}])
    other.update_checkpoint(checkpoint("0", 5000, "5000"))
    lost = [{**theirs, "owner_id": "a"}]
    store.list_ownership(*HERE)  # so that the swap is the next request
    store.faults.call(_lose, "swap", path="ownership", after=landed, times=100)
    store.faults.call(_lose, "get", nth=2, path="ownership", times=100)  # the first looks whose row it is
    with pytest.raises(CheckpointError):
        store.claim_ownership(lost)
    store.faults.clear()
    (row,) = store.list_ownership(*HERE)
    assert row["owner_id"] == ("a" if landed else "b")
    store.claim_ownership([{**row, "owner_id": "a"}])
    store.update_checkpoint(checkpoint("1", 1, "1"))
    store.close()
    assert positions(other) == {"0": (5000, "5000"), "1": (1, "1")}


def test_what_waits_stays_after_a_renewal_without_an_answer(url: str) -> None:
    for landed in (False, True):
        store = Waiting(url)
        (mine,) = store.claim_ownership([claim(str(landed), "a")])
        store.update_checkpoint(checkpoint(str(landed), 100, "100"))
        store.faults.call(_lose, "swap", path="ownership", after=landed, times=100)
        store.faults.call(_lose, "get", path="ownership", times=100)
        with pytest.raises(CheckpointError):
            store.claim_ownership([mine])
        store.faults.clear()
        (row,) = [row for row in store.list_ownership(*HERE) if row["partition_id"] == str(landed)]
        store.claim_ownership([row])
        store.close()
        assert positions(CheckpointStore(url))[str(landed)] == (100, "100")


def test_listing_checkpoints_is_one_listing_and_the_reads_at_once(store: Faulty) -> None:
    for partition in range(32):
        store.update_checkpoint(checkpoint(str(partition), partition, str(partition)))
    under_way, most = 0, 0
    lock = threading.Lock()

    def begin(_: object) -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.02)

    def end(_: object) -> None:
        nonlocal under_way
        with lock:
            under_way -= 1

    store.faults.call(begin, "get", times=32)
    store.faults.call(end, "get", times=32, after=True)
    store.faults.forget()
    assert len(store.list_checkpoints(*HERE)) == 32
    assert store.faults.counts == {"list": 1, "get": 32}
    assert most > 1


def test_a_listing_saves_the_reads_of_the_updates_after_it(url: str, store: Faulty) -> None:
    store.update_checkpoint(checkpoint("0", 1, "1"))
    second = Faulty(url)
    second.list_checkpoints(*HERE)
    second.faults.forget()
    second.update_checkpoint(checkpoint("0", 2, "2"))
    assert second.faults.counts == {"swap": 1}


def test_where_to_begin_is_one_listing_on_azure(azure_server: Server) -> None:
    root = f"{azure_server.url}/{uuid.uuid4().hex}"
    with CheckpointStore(root, azure_server.storage_options) as first:
        for partition in range(5):
            first.update_checkpoint(checkpoint(str(partition), partition, str(partition)))
        first.update_checkpoint(checkpoint("3", 7, "7"))
        with CheckpointStore(root, azure_server.storage_options) as second:
            traffic = Traffic()
            with counted(traffic):
                found = positions(second)
            assert found == {**{str(n): (n, str(n)) for n in range(5)}, "3": (7, "7")}
            assert traffic.requests == {"list": 1}
            with counted(traffic):
                second.update_checkpoint(checkpoint("3", 8, "8"))  # on the version that the listing told
            assert traffic.requests == {"list": 1, "swap": 1}
            first.update_checkpoint(checkpoint("3", 9, "9"))  # what it remembers is old by now
            assert positions(second)["3"] == positions(first)["3"] == (9, "9")


def test_a_damaged_position_in_a_listing_is_named(azure_server: Server) -> None:
    root = f"{azure_server.url}/{uuid.uuid4().hex}"
    with CheckpointStore(root, azure_server.storage_options) as store:
        store.update_checkpoint(checkpoint("0", 1, "1"))
        other = store._config.open().store
        [entry] = runtime.run_sync(other.list(""))
        assert entry.blob is not None
        damaged = entry.blob.data.replace(b'"sequence_number":1', b'"sequence_number":2')
        runtime.run_sync(other.compare_and_swap(entry.path, damaged, entry.blob.version))
        with pytest.raises(DigestMismatchError, match=re.escape(entry.path)):
            store.list_checkpoints(*HERE)


# ---- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("times", [1, 4])
def test_answers_that_are_lost_change_nothing(url: str, store: Faulty, after: bool, times: int) -> None:
    [row] = CheckpointStore(url).claim_ownership([claim("0", "a")])
    store.faults.call(_lose, "swap", after=after, times=times)
    won = store.claim_ownership([{**row, "owner_id": "b"}])
    assert owners(store) == {"0": "b"}
    assert [found["etag"] for found in store.list_ownership(*HERE)] == [found["etag"] for found in won]


def _lose(_: object) -> None:
    raise DependencyError("the answer was lost")


def test_a_claim_that_landed_unseen_and_was_taken_since_is_lost(url: str, store: Faulty) -> None:
    [row] = CheckpointStore(url).claim_ownership([claim("0", "a")])
    other = CheckpointStore(url)

    def steal(_: object) -> None:
        [mine] = other.list_ownership(*HERE)
        other.claim_ownership([{**mine, "owner_id": "thief"}])
        raise DependencyError("the answer was lost")

    store.faults.call(steal, "swap", after=True)
    assert store.claim_ownership([{**row, "owner_id": "b"}]) == []
    assert owners(store) == {"0": "thief"}


def test_a_claim_whose_answer_was_lost_is_won_though_another_row_changed_since(url: str, store: Faulty) -> None:
    [row] = CheckpointStore(url).claim_ownership([claim("0", "a")])

    def meanwhile(_: object) -> None:
        CheckpointStore(url).claim_ownership([claim("1", "c")])
        raise DependencyError("the answer was lost")

    store.faults.call(meanwhile, "swap", after=True)
    [won] = store.claim_ownership([{**row, "owner_id": "b"}])
    rows = {found["partition_id"]: found for found in store.list_ownership(*HERE)}
    assert rows["0"]["etag"] == won["etag"]
    assert (rows["0"]["owner_id"], rows["1"]["owner_id"]) == ("b", "c")


def test_an_update_that_was_given_up_cannot_undo_a_later_one(store: Faulty) -> None:
    store.update_checkpoint(checkpoint("0", 1, "1"))
    late = store.faults.late()
    store.update_checkpoint(checkpoint("0", 2, "2"))  # sent twice: the first is still on its way
    store.update_checkpoint(checkpoint("0", 3, "3"))
    assert [swap.land() for swap in late] == [False]
    assert positions(store) == {"0": (3, "3")}


def test_other_failures_raise(store: Faulty) -> None:
    store.claim_ownership([claim("0", "a")])
    store.faults.call(_lose, "get", times=100)
    with pytest.raises(DependencyError):
        store.list_ownership(*HERE)


def test_corrupt_records_are_named(store: Faulty) -> None:
    store.claim_ownership([claim("0", "a")])
    store.update_checkpoint(checkpoint("7", 1, "1"))
    for path in ("ownership.json", "positions/7.json"):
        good = read(store, FOLDER + path)
        overwrite(store, FOLDER + path, good.replace(b'"nonce":"', b'"nonce":"0'))
        with pytest.raises(CorruptionError, match=path):
            [*store.list_ownership(*HERE), *store.list_checkpoints(*HERE)]
        overwrite(store, FOLDER + path, good)
    assert (owners(store), positions(store)) == ({"0": "a"}, {"7": (1, "1")})


def test_a_record_under_another_name_is_named(store: Faulty) -> None:
    store.update_checkpoint(checkpoint("7", 1, "1"))
    overwrite(store, f"{FOLDER}positions/8.json", read(store, f"{FOLDER}positions/7.json"))
    with pytest.raises(CorruptionError, match=r"8\.json.*partition '7'"):
        store.list_checkpoints(*HERE)


def test_a_checkpoint_that_is_none_of_ours_is_named(store: Faulty) -> None:
    """A position of another interface, say, or one that a person wrote."""
    from pyspark_checkpointer.manifests.positions_json import Position, encode_position

    made = encode_position(Position("7", 0, {"checkpoint": "5"}, datetime.now(UTC)), "ab")
    overwrite(store, f"{FOLDER}positions/7.json", made)
    with pytest.raises(CorruptionError, match=r"7\.json"):
        store.list_checkpoints(*HERE)


def test_stray_objects_are_ignored(store: Faulty) -> None:
    store.claim_ownership([claim("0", "a")])
    store.update_checkpoint(checkpoint("7", 1, "1"))
    for path in ("positions/notes.txt", "positions/old/7.json", "positions/7.json.bak", "other.json"):
        overwrite(store, FOLDER + path, b"stray")
    assert (owners(store), positions(store)) == ({"0": "a"}, {"7": (1, "1")})


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({**claim("0", "a"), "owner_id": None}, "owner_id"),
        ({**claim("0", "a"), "partition_id": ""}, "partition_id"),
        ({**claim("0", "a"), "partition_id": 3}, "partition_id"),
        ({**claim("0", "a"), "consumer_group": None}, "consumer_group"),
        ({"owner_id": "a"}, "partition_id"),
        ({**claim("0", "a"), "owner_id": "\ud800"}, "owner_id"),
        ({**claim("0", "a"), "partition_id": "\ud800"}, "partition_id"),
        ("no dictionary", "dictionary"),
    ],
)
def test_a_claim_that_cannot_be_right_is_refused_whole(store: Faulty, given: dict[str, Any], names: str) -> None:
    with pytest.raises(IllegalArgumentError, match=names):
        store.claim_ownership([claim("1", "a"), given])
    assert store.faults.requests == []


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"sequence_number": "7"}, "sequence_number"),
        ({"sequence_number": True}, "sequence_number"),
        ({"sequence_number": 1.5}, "sequence_number"),
        ({"offset": 1.5}, "offset"),
        ({"offset": 10**5000}, "offset"),
        ({"offset": "1" * 20_000}, "offset"),
        ({"offset": "\ud800"}, "offset"),
        ({"sequence_number": 2**63}, "sequence_number"),
        ({"partition_id": "\ud800"}, "partition_id"),
        ({"eventhub_name": ""}, "eventhub_name"),
    ],
)
def test_a_checkpoint_that_cannot_be_right_is_refused(store: Faulty, changed: dict[str, Any], names: str) -> None:
    with pytest.raises(IllegalArgumentError, match=names):
        store.update_checkpoint({**checkpoint("0", 1, "1"), **changed})
    assert store.faults.requests == []


class Start(str, Enum):  # noqa: UP042  # Not a StrEnum, which is its text also by `str`.
    EARLIEST = "-1"


def test_an_offset_that_is_a_member_of_an_enum_is_its_text(store: Faulty) -> None:
    store.update_checkpoint(checkpoint("0", 1, Start.EARLIEST))
    assert [found["offset"] for found in store.list_checkpoints(*HERE)] == ["-1"]


def test_an_offset_may_come_as_an_integer(store: Faulty) -> None:
    store.update_checkpoint({**checkpoint("0", 1, None), "offset": 0})
    assert positions(store) == {"0": (1, "0")}


# ---- clocks ----------------------------------------------------------------------------------------------------


class Skewed(FaultyStore):
    """A store whose server lives in 2001."""

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        blob = await super().get(path, limit=limit)
        return Blob(blob.data, blob.tag, at=1_000_000_000.0)


def test_the_time_is_the_servers(url: str) -> None:
    class Elsewhere(CheckpointStore):
        def _make_core(self, context: StoreContext) -> EventHubGroups:
            return super()._make_core(StoreContext(Skewed(context.store), context.host))

    store = Elsewhere(url)
    [first] = store.claim_ownership([claim("0", "a")])  # also where nothing was there before
    time.sleep(0.01)
    [second] = store.claim_ownership([first])
    assert 1_000_000_000 <= first["last_modified_time"] < second["last_modified_time"] < 1_000_000_060


# ---- processes and threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", [CheckpointStore, aio.CheckpointStore])
def test_it_pickles_as_its_configuration(tmp_path: Path, face: type[CheckpointStore]) -> None:
    CheckpointStore(tmp_path / "root").update_checkpoint(checkpoint("0", 1, "1"))
    copy = pickle.loads(pickle.dumps(face(tmp_path / "root", max_updates=3, interval=7.0)))
    assert (type(copy), copy._max_updates, copy._interval) == (face, 3, 7.0)
    if isinstance(copy, CheckpointStore):
        assert positions(copy) == {"0": (1, "1")}


def test_a_forked_child_uses_it_too(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "root")
    store.update_checkpoint(checkpoint("0", 1, "1"))
    child = os.fork()
    if child == 0:
        store.update_checkpoint(checkpoint("0", 2, "2"))
        os._exit(0 if positions(store) == {"0": (2, "2")} else 1)
    assert os.waitpid(child, 0)[1] == 0
    store.update_checkpoint(checkpoint("0", 3, "3"))
    assert positions(store) == {"0": (3, "3")}


def test_two_threads_balance_and_update_at_once(store: Faulty) -> None:
    def update() -> None:
        for number in range(50):
            store.update_checkpoint(checkpoint("0", number, str(number)))

    thread = threading.Thread(target=update)
    thread.start()
    [row] = store.claim_ownership([claim("0", "a")])
    for _ in range(50):
        store.list_checkpoints(*HERE)
        [row] = store.claim_ownership([row])
    thread.join()
    assert positions(store) == {"0": (49, "49")}


def test_names_of_any_length_have_places(tmp_path: Path) -> None:
    where = ("n" * 255, "h" * 256, ".dots.first")
    store = CheckpointStore(tmp_path / "root")
    store.claim_ownership([claim("p" * 200, "a", where=where)])
    store.update_checkpoint(checkpoint("p" * 200, 1, "1", where=where))
    assert owners(store, where) == {"p" * 200: "a"}
    assert positions(store, where) == {"p" * 200: (1, "1")}


# ---- coalescing ------------------------------------------------------------------------------------------------


def test_updates_coalesce_to_the_latest_of_each_partition(url: str) -> None:
    store = Faulty(url, max_updates=100, interval=60.0)
    for number in range(40):
        store.update_checkpoint(checkpoint(str(number % 2), number, str(number)))
    assert store.faults.requests == []
    store.flush()
    written = [
        json.loads(request.data)["value"]
        for request in store.faults.requests
        if request.kind == "swap" and "positions" in request.path
    ]
    assert sorted(value["sequence_number"] for value in written if value) == [38, 39]
    assert positions(CheckpointStore(url)) == {"0": (38, "38"), "1": (39, "39")}


def test_a_partition_is_released_only_once_its_position_is_written(url: str) -> None:
    store = Faulty(url, max_updates=100, interval=60.0)
    [row] = store.claim_ownership([claim("0", "a")])
    store.update_checkpoint(checkpoint("0", 5, "5"))
    store.faults.forget()
    store.claim_ownership([{**row, "owner_id": ""}])
    swaps = store.faults.paths("swap")
    assert swaps.index(f"{FOLDER}positions/0.json") < swaps.index(f"{FOLDER}ownership.json")


def test_a_release_whose_flush_fails_releases_nothing(url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Faulty(url, max_updates=100, interval=60.0)
    [row] = store.claim_ownership([claim("0", "a")])
    store.update_checkpoint(checkpoint("0", 5, "5"))
    store.faults.call(_lose, path="positions", times=1000)
    assert store.claim_ownership([{**row, "owner_id": ""}]) == []
    assert "partition 0 was not released" in caplog.text
    assert owners(CheckpointStore(url)) == {"0": "a"}
    store.faults.clear()
    store.flush()
    assert positions(CheckpointStore(url)) == {"0": (5, "5")}


@pytest.mark.parametrize("verb", ["get", "swap"])
def test_a_release_that_gets_no_answer_does_not_end_the_client(store: Faulty, url: str, verb: str) -> None:
    """The client releases a partition while it gives it up, outside of everything that would catch an error."""
    rows = store.claim_ownership([claim("0", "a"), claim("1", "a")])
    for lost in {verb, "swap"}:
        store.faults.call(_lose, lost, path="ownership", times=1000)
    assert store.claim_ownership([{**rows[0], "owner_id": ""}]) == []
    with pytest.raises(CheckpointError):
        store.claim_ownership([{**rows[0], "owner_id": ""}, rows[1]])
    store.faults.clear()
    assert owners(CheckpointStore(url)) == {"0": "a", "1": "a"}


def test_an_update_that_nobody_waits_for_ends_before_the_release(store: Faulty) -> None:
    """The next owner would else record a position, and the update go over it."""
    [row] = store.claim_ownership([claim("0", "a")])
    gate, done = store.faults.hold("swap", path="positions"), list[str]()
    store.faults.call(lambda _: done.append("update"), "swap", path="positions", after=True)
    store.faults.call(lambda _: done.append("release"), "swap", path="ownership")
    update = threading.Thread(target=lambda: store.update_checkpoint(checkpoint("0", 5, "5")))
    release = threading.Thread(target=lambda: store.claim_ownership([{**row, "owner_id": ""}]))
    update.start()
    gate.wait()
    release.start()
    release.join(0.2)
    gate.open()
    for thread in (update, release):
        thread.join()
    assert done == ["update", "release"]


def test_a_damaged_position_disturbs_nobody_else(url: str) -> None:
    store, other = CheckpointStore(url, max_updates=100, interval=60.0), (*HERE[:2], "other")
    rows = store.claim_ownership([claim("0", "a"), claim("1", "a"), claim("0", "a", where=other)])
    overwrite(store, f"{FOLDER}positions/7.json", b"torn")
    store.update_checkpoint(checkpoint("7", 1, "1"))
    store.update_checkpoint(checkpoint("0", 5, "5"))
    assert len(store.claim_ownership([{**rows[0], "owner_id": ""}, {**rows[2], "owner_id": ""}])) == 2
    assert json.loads(read(store, f"{FOLDER}positions/0.json"))["value"]["sequence_number"] == 5
    assert positions(store, other) == {}
    for hear in (store.flush, store.flush, lambda: store.list_checkpoints(*HERE), store.close):
        with pytest.raises(CorruptionError, match=r"positions/7\.json"):
            hear()
    runtime.run_sync(store._config.open().store.delete([f"{FOLDER}positions/7.json"]))
    store.close()
    assert positions(store) == {"0": (5, "5"), "7": (1, "1")}


def test_a_failed_flush_leaves_nothing_under_way(url: str) -> None:
    store = Faulty(url, max_updates=100, interval=60.0)
    for partition in ("0", "1"):
        store.update_checkpoint(checkpoint(partition, 1, "1"))
    store.flush()
    for partition in ("0", "1"):
        store.update_checkpoint(checkpoint(partition, 2, "2"))
    store.faults.call(_lose, "swap", path="positions/0", times=1000)
    store.faults.call(lambda _: time.sleep(0.05), "swap", path="positions/1")
    with pytest.raises(CheckpointError):
        store.flush()
    assert positions(CheckpointStore(url)) == {"0": (1, "1"), "1": (2, "2")}


def test_two_spellings_of_a_partition_wait_as_one(url: str) -> None:
    store = Faulty(url, max_updates=100, interval=60.0)
    for number, name in enumerate(("Left", "left", "LEFT")):
        store.update_checkpoint(checkpoint(name, number, str(number)))
    store.flush()
    assert positions(CheckpointStore(url)) == {"LEFT": (2, "2")}
    assert len([path for path in store.faults.paths("swap") if "positions" in path]) == 1


def test_a_name_that_nobody_could_write_does_not_wait(url: str) -> None:
    store = CheckpointStore(url, max_updates=100, interval=60.0)
    with pytest.raises(IllegalArgumentError, match="half a character"):
        store.update_checkpoint(checkpoint("\ud800", 1, "1"))
    store.flush()


@pytest.mark.parametrize("max_updates", [1, 100])
def test_a_closed_store_takes_no_updates_and_does_the_rest(url: str, max_updates: int) -> None:
    store = CheckpointStore(url, max_updates=max_updates, interval=60.0)
    [row] = store.claim_ownership([claim("0", "a")])
    store.update_checkpoint(checkpoint("0", 5, "5"))
    store.close()
    for _ in range(2):
        with pytest.raises(InvalidStateError, match="was closed"):
            store.update_checkpoint(checkpoint("0", 6, "6"))
    assert positions(store) == {"0": (5, "5")}
    assert len(store.claim_ownership([{**row, "owner_id": ""}])) == 1
    store.close()


def test_what_waits_is_written_in_the_background(url: str) -> None:
    store = CheckpointStore(url, max_updates=3, interval=60.0)
    soon = CheckpointStore(url, max_updates=100, interval=0.05)
    for number in range(3):
        store.update_checkpoint(checkpoint("0", number, str(number)))
    soon.update_checkpoint(checkpoint("1", 9, "9"))
    deadline = time.monotonic() + 30
    while positions(CheckpointStore(url)) != {"0": (2, "2"), "1": (9, "9")}:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closing_writes_what_waits(url: str) -> None:
    with CheckpointStore(url, max_updates=100, interval=60.0) as store:
        store.update_checkpoint(checkpoint("0", 5, "5"))
    assert positions(CheckpointStore(url)) == {"0": (5, "5")}


def test_a_listing_shows_what_was_recorded_before_it(url: str) -> None:
    store = CheckpointStore(url, max_updates=100, interval=60.0)
    store.update_checkpoint(checkpoint("0", 5, "5"))
    assert positions(store) == {"0": (5, "5")}


@pytest.mark.parametrize("given", [None, claim("0", "a"), [None], "text", 5])
def test_what_is_no_list_of_ownerships_is_refused(store: Faulty, given: Any) -> None:
    with pytest.raises(IllegalArgumentError):
        store.claim_ownership(given)


@pytest.mark.parametrize("names", [(None, "hub", "group"), ("namespace", 1, "group"), ("namespace", "hub", "")])
def test_what_is_no_group_is_refused(store: Faulty, names: Any) -> None:
    with pytest.raises(IllegalArgumentError):
        store.list_ownership(*names)
    with pytest.raises(IllegalArgumentError):
        store.list_checkpoints(*names)


def test_what_a_later_version_added_is_kept(store: Faulty) -> None:
    from pyspark_checkpointer.manifests.positions_json import Position, decode_position, encode_position

    path = f"{FOLDER}positions/7.json"
    value = {"sequence_number": 1, "offset": "1", "future": [1]}
    overwrite(store, path, encode_position(Position("7", 0, value, datetime.now(UTC)), "ab"))
    store.update_checkpoint(checkpoint("7", 2, "2"))
    assert decode_position(path, read(store, path)).value == value | {"sequence_number": 2, "offset": "2"}
