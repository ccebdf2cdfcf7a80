"""A whole life of a root, with everything that the library makes on the way; each step may fail, if the store does."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, RetentionPolicy
from pyspark_checkpointer.admin.retention.plan import CleanupPlan
from pyspark_checkpointer.cli.report_page import page
from pyspark_checkpointer.cli.report_page.gather import make_report
from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from pyspark_checkpointer.consumers.eventhub import aio as eventhub_aio
from pyspark_checkpointer.consumers.eventprocessorhost import CheckpointInfo, CheckpointManager
from pyspark_checkpointer.consumers.journal import Journal
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.spark import stateful
from tests.damage import fill
from tests.proof.verbs import GROUP, Said, command, partition_of

POLICY = RetentionPolicy(keep_last=2, grace=timedelta(0))

VERBS = (
    ("list",),
    ("show", "--json"),
    ("tree", "--all"),
    ("diff", "latest"),
    ("cat", "map"),
    ("stats",),
    ("consumers",),
    ("verify",),
    ("savepoint", "by-hand"),
    ("savepoint",),
    ("rollback", "by-hand", "--yes"),
    ("delete", "0000000002", "--yes"),
    ("plan", "--keep-last", "2", "-o", "ASIDE/by-hand.plan"),
    ("clean", "--plan", "ASIDE/by-hand.plan", "--yes"),
    ("report", "-o", "ASIDE/report.html", "--debug"),
    ("repair", "--debug"),
    ("export", "latest", "ASIDE/by-hand", "--debug"),
)


class Life:
    """`made` is all that was returned, recorded or raised."""

    def __init__(self, url: str, options: dict[str, Any] | None, aside: Path, **settings: Any) -> None:
        self.url, self.options, self.aside, self.settings = url, options, aside, settings
        self.made: list[object] = []

    def clients(self) -> Iterator[object]:
        """One of each public class that takes a root."""
        yield Checkpointer(self.url, self.options, metrics=self.made.append, **self.settings)
        yield AsyncCheckpointer(self.url, self.options, **self.settings)
        yield stateful(self.url, self.options)(print)
        yield CheckpointStore(self.url, self.options, **self.settings)
        yield eventhub_aio.CheckpointStore(self.url, self.options, **self.settings)
        yield (manager := CheckpointManager(self.url, self.options, **self.settings))
        yield manager.leases("host")
        yield ShardLeases(self.url, "app", "worker", self.options, **self.settings)

    def live(self) -> list[object]:
        """Use all of them, in every way."""
        clients = list(self.clients())
        ck, awaitable, _, store, _, manager, hosts, shards = clients
        self.made += clients
        self.aside.mkdir(0o700, parents=True)
        for step in (*self._state(ck), *self._progress(store, manager, hosts, shards)):
            self._try(step)
        self._try(lambda: asyncio.run(self._await(awaitable)))
        for client in (ck, store, manager, hosts, shards):
            self._try(client.close)  # type: ignore[attr-defined]
        return self.made

    def _state(self, ck: Any) -> Iterator[Callable[[], object]]:
        for number in range(3):
            yield lambda n=number: fill(ck, n, many=False)
        yield ck.restore
        yield lambda: ck.begin(9)
        yield lambda: ck.begin(9).prepare()
        yield lambda: ck.restore().prepared.abort()
        yield lambda: ck.savepoint("named")
        yield ck.savepoints
        yield ck.list_checkpoints
        yield ck.verify
        yield lambda: ck.plan(POLICY)
        yield lambda: ck.plan(POLICY).save(self.aside / "saved.plan")
        yield lambda: CleanupPlan.load(self.aside / "saved.plan")
        yield lambda: ck.apply(CleanupPlan.load(self.aside / "saved.plan"))
        yield lambda: ck.rollback("named")
        yield lambda: ck.export("named", self.aside / "exported")
        yield lambda: ck.clean(POLICY)
        yield lambda: page.render(make_report(ck))
        yield ck.repair_candidates
        yield ck._repr_html_

    def _progress(self, store: Any, manager: Any, hosts: Any, shards: Any) -> Iterator[Callable[[], object]]:
        yield lambda: store.claim_ownership([partition_of("0") | {"owner_id": "me"}])
        yield lambda: store.update_checkpoint(partition_of("0") | {"offset": "1", "sequence_number": 1})
        yield lambda: store.list_ownership(*GROUP)
        yield lambda: store.list_checkpoints(*GROUP)
        yield manager.create_checkpoint_store_if_not_exists
        yield lambda: manager.create_all_checkpoints_if_not_exists(["0"])
        yield hosts.create_lease_store_if_not_exists
        yield lambda: hosts.create_all_leases_if_not_exists(["0"])
        yield lambda: self._lease(manager, hosts)
        yield lambda: shards.create(["shard"])
        yield lambda: shards.take("shard")
        yield shards.balance
        yield self._journal

    def _lease(self, manager: Any, hosts: Any) -> object:
        lease = hosts.get_lease("0")
        self.made.append(lease)
        hosts.acquire_lease(lease)
        return manager.update_checkpoint(lease, CheckpointInfo("0", "7", 7))

    def _journal(self) -> object:
        with Journal(f"{self.url}/journal.yml", storage_options=self.options) as journal:
            self.made.append(journal)
            journal.persist("System", 1, datetime(2024, 1, 1, tzinfo=UTC))
            journal.flush()
            return journal.states()

    async def _await(self, client: Any) -> None:
        async with client:
            self.made.append(await client.restore())
            self.made.append(await client.verify())
            self.made.append(client.begin(10))

    def _try(self, step: Callable[[], object]) -> None:
        try:
            self.made.append(step())
        except CheckpointError as error:
            self.made.append(error)

    def type_it(self) -> list[Said]:
        """The same by hand."""
        given = () if self.options is None else ("--storage-options", json.dumps(self.options))
        said = []
        for verb, *rest in VERBS:
            arguments = [argument.replace("ASIDE", str(self.aside)) for argument in rest]
            said.append(command(verb, self.url, *arguments, *given))
        return said
