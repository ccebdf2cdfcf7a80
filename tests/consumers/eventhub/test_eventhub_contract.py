"""The contract of an Event Hubs checkpoint store, for whatever implements it: ours on every store, and the SDK's own.

Where the latter is known to break it, the test is expected to fail, and the reason is named.
"""

import asyncio
import copy
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore

from pyspark_checkpointer.consumers.eventhub import CheckpointStore, aio
from tests.servers import Server

HERE = ("orders.servicebus.windows.net", "clicks", "$Default")

# Both faces send the same requests. So each of them has one of the two servers.
OURS = [f"{face}-{kind}" for face, server in (("sync", "s3"), ("aio", "azure")) for kind in ("memory", "local", server)]

BREAKS = {
    "sdk-blob": {  # as seen on Azurite; the service itself was not tried
        "test_without_an_etag_a_claim_only_creates": "takes a partition that has an owner",
        "test_one_lost_claim_does_not_spoil_the_others": "takes a partition that has an owner",
        "test_names_are_compared_without_case": "takes a partition that has an owner",
        "test_racing_claims_have_one_winner": "takes a partition that has an owner",
        "test_a_claim_that_was_won_says_how_to_renew_it": "lists another etag than the one that a claim returned",
        "test_a_released_partition_stays_listed": "lists no owner as None",
    },
}


class Blocking:
    """An awaitable store for tests that block."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Coroutine[Any, Any, Any]] = getattr(self._inner, name)
        return lambda *args, **kwargs: asyncio.run(method(*args, **kwargs))


Open = Callable[[], Any]


@pytest.fixture(params=[*OURS, "sdk-blob"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the store anew, on the same rows."""
    kind: str = request.param
    reason = BREAKS.get(kind, {}).get(request.node.originalname)
    if reason is not None:
        request.applymarker(
            pytest.mark.xfail(strict="racing" not in request.node.originalname, reason=f"{kind} {reason}")
        )
    return _opener(kind, request, tmp_path)


def _opener(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    name = f"test-{time.time_ns()}"
    if kind == "sdk-blob":
        server: Server = request.getfixturevalue("azure_server")
        return lambda: _blob_store(server, name)
    face, _, where = kind.partition("-")
    options: dict[str, Any] = {}
    if where == "memory":
        url = f"memory://{name}"
    elif where == "local":
        url = str(tmp_path / "root")
    else:
        server = request.getfixturevalue(f"{where}_server")
        url, options = f"{server.url}/{name}", server.storage_options
    if face == "sync":
        return lambda: CheckpointStore(url, options)
    return lambda: Blocking(aio.CheckpointStore(url, options))


def _blob_store(server: Server, container: str) -> Any:
    from azure.storage.blob import BlobServiceClient

    connection = server.storage_options["connection_string"]
    service = BlobServiceClient.from_connection_string(connection)
    if not service.get_container_client(container).exists():
        service.create_container(container)
    return BlobCheckpointStore.from_connection_string(connection, container)


@pytest.fixture
def store(open_store: Open) -> Any:
    return open_store()


def claim(partition: str, owner: str, etag: str | None = None, where: tuple[str, str, str] = HERE) -> dict[str, Any]:
    found = {
        "fully_qualified_namespace": where[0],
        "eventhub_name": where[1],
        "consumer_group": where[2],
        "partition_id": partition,
        "owner_id": owner,
    }
    return found if etag is None else {**found, "etag": etag}


def checkpoint(
    partition: str, number: int | None, offset: str | None, where: tuple[str, str, str] = HERE
) -> dict[str, Any]:
    found = claim(partition, "", where=where)
    del found["owner_id"]
    return {**found, "sequence_number": number, "offset": offset}


def owners(store: Any, where: tuple[str, str, str] = HERE) -> dict[str, str]:
    return {row["partition_id"]: row["owner_id"] for row in store.list_ownership(*where)}


def positions(store: Any, where: tuple[str, str, str] = HERE) -> dict[str, tuple[int | None, str | None]]:
    return {row["partition_id"]: (row["sequence_number"], row["offset"]) for row in store.list_checkpoints(*where)}


# ---- ownership -------------------------------------------------------------------------------------------------


def test_nothing_is_listed_before_anything_was_claimed(store: Any) -> None:
    assert [*store.list_ownership(*HERE)] == []
    assert [*store.list_checkpoints(*HERE)] == []


def test_without_an_etag_a_claim_only_creates(store: Any) -> None:
    assert len(store.claim_ownership([claim("0", "a")])) == 1
    assert [*store.claim_ownership([claim("0", "b")])] == []
    assert owners(store) == {"0": "a"}


def test_with_an_etag_a_claim_only_replaces_that_version(store: Any) -> None:
    [first] = store.claim_ownership([claim("0", "a")])
    [second] = store.claim_ownership([claim("0", "b", first["etag"])])
    assert second["etag"] != first["etag"]
    assert [*store.claim_ownership([claim("0", "c", first["etag"])])] == []
    assert owners(store) == {"0": "b"}


def test_an_etag_needs_a_row(store: Any) -> None:
    [first] = store.claim_ownership([claim("0", "a")])
    assert [*store.claim_ownership([claim("1", "a", first["etag"])])] == []
    assert owners(store) == {"0": "a"}


def test_one_lost_claim_does_not_spoil_the_others(store: Any) -> None:
    store.claim_ownership([claim("1", "a")])
    won = store.claim_ownership([claim("0", "b"), claim("1", "b"), claim("2", "b")])
    assert [row["partition_id"] for row in won] == ["0", "2"]
    assert owners(store) == {"0": "b", "1": "a", "2": "b"}


def test_a_claim_that_was_won_says_how_to_renew_it(store: Any) -> None:
    [row] = store.claim_ownership([claim("0", "a")])
    assert {**row, "etag": None, "last_modified_time": None} == {
        **claim("0", "a"),
        "etag": None,
        "last_modified_time": None,
    }
    assert type(row["last_modified_time"]) is float  # the client adds seconds to it
    assert abs(row["last_modified_time"] - time.time()) < 60
    [listed] = store.list_ownership(*HERE)
    assert listed["etag"] == row["etag"]
    assert listed["last_modified_time"] == pytest.approx(row["last_modified_time"], abs=2)
    [renewed] = store.claim_ownership([row])
    assert renewed["etag"] != row["etag"]
    assert renewed["last_modified_time"] > row["last_modified_time"] - 2  # servers tell whole seconds


def test_a_released_partition_stays_listed(store: Any) -> None:
    [row] = store.claim_ownership([claim("0", "a")])
    store.claim_ownership([{**row, "owner_id": ""}])
    [listed] = store.list_ownership(*HERE)
    assert listed["owner_id"] == ""
    [taken] = store.claim_ownership([{**listed, "owner_id": "b"}])
    assert taken["owner_id"] == "b"
    assert owners(store) == {"0": "b"}


def test_arguments_are_left_as_they_are(store: Any) -> None:
    given = [claim("0", "a"), claim("1", "a")]
    before = copy.deepcopy(given)
    store.claim_ownership(given)
    assert given == before
    position = checkpoint("0", 7, "70")
    store.update_checkpoint(position)
    assert position == checkpoint("0", 7, "70")


def test_claims_may_come_from_a_generator(store: Any) -> None:
    assert len([*store.claim_ownership(claim(str(n), "a") for n in range(3))]) == 3


def test_no_claims_win_nothing(store: Any) -> None:
    assert [*store.claim_ownership([])] == []


def test_racing_claims_have_one_winner(open_store: Open) -> None:
    stores = [open_store() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        won = pool.map(
            lambda n: [*stores[n].claim_ownership([claim(str(p), f"owner-{n}") for p in range(8)])], range(4)
        )
    winners = {row["partition_id"]: row["owner_id"] for rows in won for row in rows}
    assert winners == owners(stores[0])
    assert len(winners) == 8


def test_racing_renewals_have_one_winner(open_store: Open) -> None:
    stores = [open_store() for _ in range(4)]
    [row] = stores[0].claim_ownership([claim("0", "a")])
    with ThreadPoolExecutor(4) as pool:
        won = [*pool.map(lambda n: [*stores[n].claim_ownership([{**row, "owner_id": str(n)}])], range(4))]
    assert sum(map(len, won)) == 1


# ---- checkpoints -----------------------------------------------------------------------------------------------


def test_the_last_update_counts(store: Any) -> None:
    for number in (5, 9, 3):  # backwards too: the caller may want to read something again
        store.update_checkpoint(checkpoint("0", number, str(number * 100)))
    assert positions(store) == {"0": (3, "300")}


def test_zero_is_a_position(store: Any) -> None:
    store.update_checkpoint(checkpoint("0", 0, "0"))
    assert positions(store) == {"0": (0, "0")}


def test_each_partition_has_its_own_position(store: Any) -> None:
    for partition in range(12):
        store.update_checkpoint(checkpoint(str(partition), partition, str(partition)))
    assert positions(store) == {str(n): (n, str(n)) for n in range(12)}


def test_offsets_are_text_and_numbers_are_integers(store: Any) -> None:
    store.update_checkpoint(checkpoint("0", 2**40, "1099511627776"))
    [row] = store.list_checkpoints(*HERE)
    assert (type(row["sequence_number"]), type(row["offset"])) == (int, str)
    assert {**row} == checkpoint("0", 2**40, "1099511627776")


def test_positions_of_the_sdks_own_store_come_over(azure_server: Server, tmp_path: Path) -> None:
    old, new = _blob_store(azure_server, f"test-{time.time_ns()}"), CheckpointStore(tmp_path)
    recorded = {"0": (7, "70"), "1": (0, "0"), "2": (2**40, "1099511627776")}
    for partition, (number, offset) in recorded.items():
        old.update_checkpoint(checkpoint(partition, number, offset))
    for found in old.list_checkpoints(*HERE):
        new.update_checkpoint(found)
    assert positions(new) == recorded


# ---- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(3))
def test_namespace_hub_and_group_separate_everything(store: Any, part: int) -> None:
    there = (*HERE[:part], "other", *HERE[part + 1 :])
    store.claim_ownership([claim("0", "a")])
    store.update_checkpoint(checkpoint("0", 1, "1"))
    assert owners(store, there) == {}
    assert positions(store, there) == {}
    assert len(store.claim_ownership([claim("0", "b", where=there)])) == 1
    assert owners(store) == {"0": "a"}


def test_names_are_compared_without_case(store: Any) -> None:
    loud = ("ORDERS.servicebus.windows.net", "CLICKS", "$DEFAULT")
    store.claim_ownership([claim("0", "a", where=loud)])
    store.update_checkpoint(checkpoint("0", 1, "1", where=loud))
    [row], [position] = store.list_ownership(*HERE), store.list_checkpoints(*HERE)
    assert (row["owner_id"], position["sequence_number"]) == ("a", 1)
    assert [*store.claim_ownership([claim("0", "b")])] == []


def test_names_come_back_as_they_were_written(store: Any) -> None:
    loud = ("Orders.servicebus.windows.net", "Clicks", "MyGroup")
    [won] = store.claim_ownership([claim("0", "a", where=loud)])
    store.update_checkpoint(checkpoint("0", 1, "1", where=loud))
    [row], [position] = store.list_ownership(*loud), store.list_checkpoints(*loud)
    for found in (won, row, position):
        assert (found["fully_qualified_namespace"], found["eventhub_name"], found["consumer_group"]) == loud


# ---- what the client demands -----------------------------------------------------------------------------------


def test_lists_are_lists(store: Any) -> None:
    """The client goes through what it gets more than once."""
    assert type(store.claim_ownership([claim("0", "a")])) is list
    store.update_checkpoint(checkpoint("0", 1, "1"))
    assert type(store.list_ownership(*HERE)) is list
    assert type(store.list_checkpoints(*HERE)) is list


def test_what_is_listed_belongs_to_the_caller(store: Any) -> None:
    """The client writes its own id into the rows that it is given, before it claims them."""
    store.claim_ownership([claim("0", "a")])
    [row] = store.list_ownership(*HERE)
    row["owner_id"] = "thief"
    assert owners(store) == {"0": "a"}


def test_unknown_keywords_are_taken(store: Any) -> None:
    """The client, and what wraps it, may hand on options of later versions."""
    assert len(store.claim_ownership([claim("0", "a")], timeout=30)) == 1
    store.update_checkpoint(checkpoint("0", 1, "1"), timeout=30)
    assert len(store.list_ownership(*HERE, timeout=30)) == 1
    assert len(store.list_checkpoints(*HERE, timeout=30)) == 1


@pytest.mark.parametrize("face", [CheckpointStore, aio.CheckpointStore])
def test_an_empty_store_is_not_false(face: type) -> None:
    """The client takes its own store in memory where the one it is given is false."""
    assert not hasattr(face, "__len__")
    assert not hasattr(face, "__bool__")


def test_what_was_written_is_there_for_the_next_process(open_store: Open) -> None:
    open_store().claim_ownership([claim("0", "a")])
    open_store().update_checkpoint(checkpoint("0", 4, "44"))
    assert owners(open_store()) == {"0": "a"}
    assert positions(open_store()) == {"0": (4, "44")}
