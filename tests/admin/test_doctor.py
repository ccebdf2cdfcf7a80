"""The examination of a store: what it finds, and that nothing stays behind."""

from collections.abc import Sequence
from typing import Any

import pytest

from pyspark_checkpointer.admin.doctor import REPEATS, CheckOutcome, Diagnosis, examine
from pyspark_checkpointer.errors import DependencyError, StoreRefusedError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.runtime.host import SystemHost
from pyspark_checkpointer.storage import Store, open_store
from pyspark_checkpointer.storage.base import Blob, BucketRule, ListingPage, WriteLeftover
from pyspark_checkpointer.storage.contest import WRITERS
from pyspark_checkpointer.storage.memory.store import MemoryStore
from tests.conftest import Root


def examined(store: Store, rounds: int = 4) -> Diagnosis:
    return run_sync(examine(store, [store] * WRITERS, SystemHost(), rounds=rounds))


def outcomes(found: Diagnosis, outcome: CheckOutcome) -> dict[str, str]:
    return {check.name: check.found for check in found.checks if check.outcome == outcome}


class Empty(MemoryStore):
    """A store in memory with nothing in it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(f"memory://doctor-{id(self)}", **options)
        self.objects.clear()


def test_a_good_store_is_good_and_nothing_stays_behind(any_root: Root) -> None:
    store = open_store(any_root.url, any_root.storage_options)
    run_sync(store.put("artifacts/a/0/x", b"mine"))
    writers = [open_store(any_root.url, any_root.storage_options) for _ in range(WRITERS)]
    found = run_sync(examine(store, writers, SystemHost(), rounds=10))
    assert found, found
    assert outcomes(found, "bad") == {}
    assert found.contest is not None
    assert (found.contest.rounds, found.contest.problem) == (10, None)
    assert [latency.verb for latency in found.latencies] == ["put", "get", "swap", "list", "delete"]
    assert all(0 <= latency.median <= latency.slowest for latency in found.latencies)
    assert [entry.path for entry in run_sync(store.list(""))] == ["artifacts/a/0/x"]
    rules = [check.name for check in found.checks if check.name.startswith("bucket: ")]
    assert bool(rules) == (any_root.kind in ("s3", "azure", "gcs"))


def test_a_store_without_fencing_is_no_failure_but_a_warning() -> None:
    found = examined(Empty(fencing=False))
    assert found
    assert (found.fenced_by, found.contest) == (None, None)
    assert outcomes(found, "warning") == {"conditions": "not used: fencing is off"}


def test_a_store_that_ignores_conditions_is_bad() -> None:
    class Careless(Empty):
        async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
            found = self.objects.get(path)
            return await super().compare_and_swap(path, data, None if found is None else found.version)

    found = examined(Careless())
    assert not found
    bad = outcomes(found, "bad")
    assert "created an object that exists" in bad["conditions"]
    assert bad["8 writers at once"] == "let several writers win in 4 of 4 rounds"
    assert found.contest is not None
    assert found.contest.won_twice == 4


@pytest.mark.parametrize(
    ("verb", "kind"),
    [("put", "put"), ("get", "get"), ("compare_and_swap", "swap"), ("list_page", "list"), ("delete", "delete")],
)
def test_a_right_that_is_missing_is_named(verb: str, kind: str) -> None:
    store = Empty()

    async def refuse(*_: Any, **__: Any) -> Any:
        raise StoreRefusedError(f"{store.url}: AccessDenied; the credentials need more")

    setattr(store, verb, refuse)
    found = examined(store)
    assert not found
    bad = outcomes(found, "bad")
    assert "AccessDenied" in bad[f"right to {kind}"]
    assert [name for name in bad if name.startswith("right to")] == [f"right to {kind}"]
    assert verb == "delete" or store.objects == {}


@pytest.mark.parametrize("lag", ["written", "deleted", "read"])
def test_what_is_shown_late_is_bad(lag: str) -> None:
    class Late(Empty):
        def __init__(self) -> None:
            super().__init__()
            self.gone: dict[str, Blob] = {}

        async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
            page = await super().list_page(prefix, more)
            if lag == "written":
                return ListingPage(page.entries[1:], None)
            return page if lag == "read" or len(page.entries) != 1 else ListingPage([*page.entries] * 2, None)

        async def delete(self, paths: Sequence[str]) -> None:
            if lag == "read":
                self.gone |= {path: self.objects[path] for path in paths if path in self.objects}
            await super().delete(paths)

        async def get(self, path: str, *, limit: int | None = None) -> Blob:
            return self.gone[path] if path in self.gone else await super().get(path, limit=limit)

    found = examined(Late())
    assert lag in outcomes(found, "bad")["freshness"]


@pytest.mark.parametrize(
    ("ahead", "outcome", "said"),
    [
        (0.0, "good", "within 1 s of the store's"),
        (-59.0, "good", "within 58 s"),
        (3600.0, "warning", "differs by 3600 s"),
        (-3600.0, "warning", "differs by 3599 s"),
    ],
)
def test_the_clock_of_the_store_is_compared(ahead: float, outcome: CheckOutcome, said: str) -> None:
    host = SystemHost()

    class Clock(Empty):
        async def get(self, path: str, *, limit: int | None = None) -> Blob:
            blob = await super().get(path, limit=limit)
            return Blob(blob.data, blob.tag, host.now().timestamp() + ahead)

    assert said in outcomes(examined(Clock()), outcome)["clock"]


def test_what_the_bucket_does_is_shown() -> None:
    class Bucket(Empty):
        async def bucket_rules(self) -> Sequence[BucketRule]:
            return [
                BucketRule("versioning", "off"),
                BucketRule("soft delete", "7 days", "shorten it"),
                BucketRule("expiry by age", "rule 'x'", "leave this root out", True),
                BucketRule("encryption", "not known (AccessDenied)"),
            ]

        async def leftovers(self) -> Sequence[WriteLeftover]:
            return [WriteLeftover("x", "1"), WriteLeftover("y", "2")]

    found = examined(Bucket())
    assert not found
    assert outcomes(found, "bad") == {"bucket: expiry by age": "rule 'x'"}
    assert outcomes(found, "warning") == {"bucket: soft delete": "7 days"}
    assert outcomes(found, "unknown") == {"bucket: encryption": "not known (AccessDenied)"}
    assert outcomes(found, "good")["unfinished writes"] == "2 listed"


def test_a_store_that_does_not_answer_is_no_finding() -> None:
    class Silent(Empty):
        puts = 0

        async def put(self, path: str, data: Bytes) -> None:
            self.puts += 1
            if self.puts > REPEATS // 2:
                raise DependencyError("no answer")
            await super().put(path, data)

    store = Silent()
    with pytest.raises(DependencyError, match="no answer"):
        examined(store)
    assert store.objects == {}
