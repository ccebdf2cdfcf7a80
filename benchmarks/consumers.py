"""Measure what positions of consumers cost: requests and time of updates and balancing, for 32 and 1,024 partitions.

The peer is the checkpoint store of the Event Hubs SDK, which keeps a blob for each partition. Both run on one Azurite,
and each reads back what it recorded. Only requests that leave the process count.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore
from azure.storage.blob import BlobServiceClient

from benchmarks.measure import Finding, Note, Target, Times, alternate, timed
from benchmarks.stores import azure_server
from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from pyspark_checkpointer.consumers.group import Group
from pyspark_checkpointer.consumers.leases import Leases
from pyspark_checkpointer.consumers.store_client import StoreConfig
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.request_path import Traffic, counted
from tests.servers import Server, ServerUnavailableError

UPDATES = 50
"""Updates that are measured together: one takes a few milliseconds, which vary too much."""

GROUP = ("orders.servicebus.windows.net", "clicks", "$Default")
PROCESSORS = 8


class Peer:
    """The store of the SDK in a container of its own, with the number of requests it sent."""

    def __init__(self, server: Server, container: str) -> None:
        connection = server.storage_options["connection_string"]
        BlobServiceClient.from_connection_string(connection).create_container(container)
        self.requests = 0
        self.store = BlobCheckpointStore.from_connection_string(connection, container, raw_request_hook=self._count)

    def _count(self, request: object) -> None:
        self.requests += 1


def run(quick: bool) -> list[Finding]:
    repetitions = 2 if quick else 9
    try:
        with azure_server() as server:
            return [
                target
                for partitions in (32, 128 if quick else 1024)
                for target in _measure(server, partitions, repetitions)
            ]
    except ServerUnavailableError as unavailable:
        return [Note(f"{unavailable}: nothing was measured on Azure")]


def _measure(server: Server, partitions: int, repetitions: int) -> Iterator[Target]:
    peer = Peer(server, f"bench-{partitions}")
    with CheckpointStore(f"{server.url}/bench-{partitions}", server.storage_options) as ours:
        for store in (ours, peer.store):
            store.claim_ownership([_claim(partition, "a") for partition in range(partitions)])
            for partition in range(partitions):
                store.update_checkpoint(_checkpoint(partition, 1))
        what = f"Event Hubs on Azurite, {partitions:,} partitions"
        yield _compare(f"{what}: a round of balancing", ours, peer, partial(_balance, partitions), repetitions, 1.0)
        yield _compare(f"{what}: an update", ours, peer, _update, repetitions, 1.0, UPDATES)
        yield _compare(f"{what}: where to begin", ours, peer, partial(_positions, partitions), repetitions, 1.2)
        yield _newcomer(f"{what}: where a new consumer begins", server, peer, partitions, repetitions)
        yield _crowd(what, server, partitions)
    yield _leases(server, partitions)


def _compare(
    question: str,
    ours: CheckpointStore,
    peer: Peer,
    work: Callable[[Any], None],
    repetitions: int,
    limit: float | None,
    count: int = 1,
) -> Target:
    with _requests() as mine:
        work(ours)
    before = peer.requests
    work(peer.store)
    theirs = peer.requests - before

    def repeated(store: Any) -> None:
        for _ in range(count):
            work(store)

    def seconds(store: Any) -> float:
        return timed(lambda: repeated(store)) / count

    times = alternate(repetitions, ours=lambda: seconds(ours), sdk=lambda: seconds(peer.store))
    detail = f"requests {sum(mine.requests.values()):,} / {theirs:,}, {_milliseconds(times['ours'], times['sdk'])}"
    return Target(f"{question} / the SDK's blob store, time", times["ours"].median / times["sdk"].median, limit, detail)


def _newcomer(question: str, server: Server, peer: Peer, partitions: int, repetitions: int) -> Target:
    """Compare where a consumer begins that is connected and remembers nothing. The SDK's store never remembers."""
    begins = partial(_positions, partitions)

    def ours() -> float:
        with CheckpointStore(f"{server.url}/bench-{partitions}", server.storage_options) as store:
            store.list_checkpoints(*GROUP[:2], "another")
            return timed(lambda: begins(store))

    times = alternate(repetitions, ours=ours, sdk=lambda: timed(lambda: begins(peer.store)))
    ratio = times["ours"].median / times["sdk"].median
    return Target(f"{question} / the SDK's blob store, time", ratio, 1.2, _milliseconds(times["ours"], times["sdk"]))


def _crowd(what: str, server: Server, partitions: int) -> Target:
    """Let all processors balance at once, each for its share. Those that come too late plan again."""
    stores = [CheckpointStore(f"{server.url}/crowd-{partitions}", server.storage_options) for _ in range(PROCESSORS)]
    for number, store in enumerate(stores):
        store.claim_ownership([_claim(partition, str(number)) for partition in range(number, partitions, PROCESSORS)])

    def renew(number: int) -> int:
        with _requests() as traffic:
            rows = [row for row in stores[number].list_ownership(*GROUP) if row["owner_id"] == str(number)]
            if len(stores[number].claim_ownership(rows)) != partitions // PROCESSORS:
                raise AssertionError("a processor lost what it had")
        return sum(traffic.requests.values())

    with ThreadPoolExecutor(PROCESSORS) as pool:
        requests = [*pool.map(renew, range(PROCESSORS))]
    for store in stores:
        store.close()
    return Target(
        f"{what}: requests of a round, {PROCESSORS} processors at the same moment / of one alone",
        sum(requests) / PROCESSORS / 2,
        None,
        f"{min(requests)} to {max(requests)} for each; the SDK's: {partitions // PROCESSORS + 1} or more",
    )


def _leases(server: Server, partitions: int) -> Target:
    context = StoreConfig(f"{server.url}/leases-{partitions}", server.storage_options).open()
    leases = Leases(Group(context, "progress/bench/"), "worker", 60.0)
    run_sync(leases.create([str(partition) for partition in range(partitions)]))
    run_sync(leases.balance())
    with _requests() as traffic:
        run_sync(leases.balance())
    requests = sum(traffic.requests.values())
    with _requests() as traffic:
        run_sync(leases.held["0"].write(lambda value: {"checkpoint": "1"}))
    if leases.held.keys() != {str(partition) for partition in range(partitions)}:
        raise AssertionError("a lease was lost")
    run_sync(context.store.close())
    detail = f"{requests} requests; a table with a row for each: {partitions + 1:,}. An update under a lease: "
    return Target(
        f"leases, {partitions:,} partitions: requests of a round of balancing / one for each partition",
        requests / partitions,
        None,
        detail + f"{sum(traffic.requests.values())}",
    )


def _claim(partition: int, owner: str) -> dict[str, Any]:
    names = dict(zip(("fully_qualified_namespace", "eventhub_name", "consumer_group"), GROUP, strict=True))
    return {**names, "partition_id": str(partition), "owner_id": owner}


def _checkpoint(partition: int, number: int) -> dict[str, Any]:
    return {**_claim(partition, ""), "sequence_number": number, "offset": str(number)}


def _balance(partitions: int, store: Any) -> None:
    rows = store.list_ownership(*GROUP)
    if len(list(store.claim_ownership(rows))) != partitions:
        raise AssertionError("a claim was lost")


def _update(store: Any) -> None:
    store.update_checkpoint(_checkpoint(0, 1))


def _positions(partitions: int, store: Any) -> None:
    if [row["sequence_number"] for row in store.list_checkpoints(*GROUP)] != [1] * partitions:
        raise AssertionError("something else was recorded")


@contextmanager
def _requests() -> Iterator[Traffic]:
    traffic = Traffic()
    with counted(traffic):
        yield traffic


def _milliseconds(mine: Times, other: Times) -> str:
    spread = f"spread {mine.spread:.0%} / {other.spread:.0%}"
    return f"{mine.median * 1000:.1f} / {other.median * 1000:.1f} ms, {spread}"
