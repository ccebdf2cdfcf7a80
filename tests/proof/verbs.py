"""Everything that can be done to a store, by the library and by the command line."""

import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.admin.retention.plan import CleanupPlan
from pyspark_checkpointer.cli.app import checkpointer
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from pyspark_checkpointer.consumers.eventprocessorhost import CheckpointInfo, CheckpointManager
from pyspark_checkpointer.consumers.journal import Journal
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.spark.dataframes import struct_of
from pyspark_checkpointer.spark.datasource import TableSourceReader
from pyspark_checkpointer.spark.read import version_of
from pyspark_checkpointer.spark.source_options import ReadRequest

FIRST, SECOND, COMMITTED = "0000000001-0c5442af", "0000000002-f4bb65ce", "0000000004-9e2b5704"
GROUP = ("namespace", "hub", "group")
ALL = RetentionPolicy(keep_last=1, grace=timedelta(0))


@dataclass(frozen=True, slots=True)
class Said:
    """How a run of the command ended, and what it printed."""

    status: int
    out: str
    err: str


def command(*args: object) -> Said:
    """The command with some arguments, where no terminal is attached."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        checkpointer(list(map(str, args)))
    assert isinstance(ended.value.code, int)
    return Said(ended.value.code, out.getvalue(), err.getvalue())


def _contents(restored: Restored | None) -> object:
    """The first and the last partition of each operator: of those between there are very many."""
    if restored is None:
        return None
    operators = [restored.operator(name) for name in restored.operators]
    return [
        operator.partition(p) for operator in operators for p in {*operator.partitions[:1], *operator.partitions[-1:]}
    ]


def _positions(ck: Checkpointer, aside: Path) -> object:
    with CheckpointStore(ck.root) as store:
        return [store.list_checkpoints(*GROUP), store.list_ownership(*GROUP)]


def partition_of(number: str) -> dict[str, Any]:
    """A partition as the consumer client names it."""
    names = ("fully_qualified_namespace", "eventhub_name", "consumer_group", "partition_id")
    return dict(zip(names, (*GROUP, number), strict=True))


def _record(ck: Checkpointer, aside: Path) -> object:
    """Own a partition, and record how far it is."""
    partition = partition_of("0")
    with CheckpointStore(ck.root) as store:
        store.update_checkpoint(partition | {"offset": "1", "sequence_number": 1})
        return store.claim_ownership([partition | {"owner_id": "me"}])


def _read_as_host(root: str) -> None:
    with CheckpointManager(root) as manager, manager.leases("me") as hosts:
        hosts.get_all_leases()
        manager.get_checkpoint("0")


def _write_as_host(root: str) -> None:
    with CheckpointManager(root) as manager, manager.leases("me") as hosts:
        manager.create_checkpoint_store_if_not_exists()
        hosts.create_lease_store_if_not_exists()
        manager.create_all_checkpoints_if_not_exists(["0"])
        hosts.create_all_leases_if_not_exists(["0"])
        lease = hosts.get_lease("0")
        assert lease is not None
        hosts.acquire_lease(lease)
        manager.update_checkpoint(lease, CheckpointInfo("0", "7", 7))


def _read_as_worker(root: str) -> None:
    with ShardLeases(root, "app", "me") as leases:
        leases.balance()


def _write_as_worker(root: str) -> None:
    with ShardLeases(root, "app", "me") as leases:
        leases.create(["0"])
        held = leases.take("0", force=True)
        assert held is not None
        leases.deliver(held, [{"SequenceNumber": "7"}])
        held.prepare_checkpoint(application_state=b"state").checkpoint()


def _with_client(verb: Callable[[Checkpointer, Path], object]) -> Callable[[str], object]:
    def use(root: str) -> object:
        with Checkpointer(root) as ck:
            return verb(ck, Path())

    return use


CONSUMERS: dict[str, tuple[Callable[[str], object], ...]] = {
    "eventhub": (_with_client(_positions), _with_client(_record)),
    "eventprocessorhost": (_read_as_host, _write_as_host),
    "kinesis": (_read_as_worker, _write_as_worker),
}
"""How each of them reads its records, and how it writes them."""


def _journal(ck: Checkpointer, aside: Path) -> object:
    with Journal(f"{ck.root}/journal.yml") as journal:
        journal.persist("System", 1, datetime(2024, 1, 1, tzinfo=UTC))
        return journal.states()


def _table(ck: Checkpointer, aside: Path) -> object:
    restored = ck.restore()
    return restored and [restored.table("table"), restored.keyed("seen")]


def _scan(ck: Checkpointer, aside: Path) -> object:
    """What `spark.read.format("checkpointer")` does in its planning and in its tasks."""
    request = ReadRequest.of({"path": ck.root, "operator": "table"})
    reader = TableSourceReader(request, struct_of(list(version_of(request.restore(), "table").schema.columns)))
    return [list(reader.read(part)) for part in reader.partitions()]


def _saved_plan(ck: Checkpointer, aside: Path) -> object:
    ck.plan(ALL).save(aside / "plan")
    return ck.apply(CleanupPlan.load(aside / "plan"))


READING: dict[str, Callable[[Checkpointer, Path], object]] = {
    "restore": lambda ck, aside: _contents(ck.restore()),
    "restore an older one": lambda ck, aside: _contents(ck.restore(FIRST)),
    "restore what is whole": lambda ck, aside: _contents(ck.restore(on_corruption="previous")),
    "table": _table,
    "scan": _scan,
    "list": lambda ck, aside: ck.list_checkpoints(),
    "savepoints": lambda ck, aside: ck.savepoints(),
    "verify": lambda ck, aside: ck.verify(),
    "plan": lambda ck, aside: list(ck.plan(ALL)),
    "export": lambda ck, aside: ck.export(COMMITTED, aside / "copy"),
    "export as Parquet": lambda ck, aside: ck.export_parquet(COMMITTED, aside / "tables"),
    "candidates": lambda ck, aside: ck.repair_candidates(),
    "positions": _positions,
}
READING_DAMAGED: dict[str, Callable[[Checkpointer, Path], object]] = {
    "what a repair would keep": lambda ck, aside: str(ck.repair_plan(SECOND)),
}
"""What is refused of a root that needs no repair, and reads one that does."""

WRITING: dict[str, Callable[[Checkpointer, Path], object]] = {
    "record": _record,
    "journal": _journal,
    "savepoint": lambda ck, aside: ck.savepoint("new"),
    "delete": lambda ck, aside: ck.delete_checkpoint(FIRST),
    "rollback": lambda ck, aside: ck.rollback(SECOND),
    "a saved plan": _saved_plan,
    "clean": lambda ck, aside: ck.clean(ALL),
    "repair": lambda ck, aside: ck.repair(SECOND),
    "repair with a loss": lambda ck, aside: ck.repair(SECOND, accept_loss=True, older_partitions=True),
}
REWINDING: dict[str, Callable[[Checkpointer, Path], object]] = {
    "a planned rewind": lambda ck, aside: ck.rewind(to="latest", dry_run=True),
    "rewind": lambda ck, aside: ck.rewind(to="latest", stopped=True),
    "undo": lambda ck, aside: ck.undo_rewind(stopped=True),
    "fork": lambda ck, aside: ck.fork("latest", aside / "copy", aside / "copy-spark"),
}
"""Verbs that work on the files of Spark that the last checkpoint names."""
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("list", "--sizes"),
    ("show",),
    ("show", "--json"),
    ("tree", "--all"),
    ("diff", SECOND),
    ("diff", SECOND, "latest", "table"),
    ("diff", SECOND, "latest", "seen", "--json"),
    ("history", "table", '{"k": 1}'),
    ("history", "seen", "a", "--json"),
    ("cat", "table"),
    ("cat", "seen"),
    ("stats",),
    ("cost",),
    ("cost", "--json"),
    ("consumers",),
    ("verify",),
    ("verify", "--json"),
    ("plan", "--rows"),
    ("plan", "--keep-last", "1", "--json"),
    ("savepoint",),
    ("followers",),
    ("repair",),
    ("report", "--json"),
)
"""That change nothing."""

CHANGING: tuple[tuple[str, ...], ...] = (
    ("doctor", "--rounds", "2"),
    ("savepoint", "typed"),
    ("rewind", "latest", "--yes", "--stopped"),
    ("fork", "latest", "aside", "beside"),
    ("rollback", SECOND, "--yes"),
    ("delete", FIRST, "--yes"),
    ("clean", "--keep-last", "1", "--yes"),
    ("encrypt", "--encryption", "key-file:new.key", "--yes"),
    ("rekey", "--new-encryption", "key-file:new.key"),
    ("cleaners", "--allow", "key-file:cleaner.key"),
    ("signers", "--owner", "owner.pem", "--yes"),
    ("rekey", "--new-encryption", "key-file:new.key", "--rewrite", "--yes"),
)


def do_everything(root: Path, aside: Path) -> Iterator[CheckpointError]:
    """Do all of it to the root, in turn, with `aside` for what is written elsewhere; what is raised is of the tree."""
    yield from do_all(root, aside, itertools.chain(READING.values(), READING_DAMAGED.values(), WRITING.values()))


def do_all(
    root: Path, aside: Path, verbs: Iterable[Callable[[Checkpointer, Path], object]]
) -> Iterator[CheckpointError]:
    """Do these to the root, in turn; what is raised is of the tree."""
    for number, verb in enumerate(verbs):
        place = aside / str(number)
        place.mkdir(parents=True)
        with Checkpointer(root) as ck:
            try:
                verb(ck, place)
            except CheckpointError as error:
                yield error


def every_command(root: Path) -> Iterator[Said]:
    """What each of those says that change nothing."""
    for name, *args in COMMANDS:
        said = command(name, root, *args)
        assert "unexpected" not in said.err, said.err
        yield said


def whole_command_line(root: Path, aside: Path) -> Iterator[Said]:
    """What each verb says, those that change something last."""
    yield from every_command(root)
    for name, *args in (("export", "latest", str(aside)), *CHANGING):
        said = command(name, root, *args)
        assert "unexpected" not in said.err, said.err
        yield said
