"""Parts of several snapshots are read at once: each comes back in its place, whatever its snapshot is like."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests.model import SNAPSHOT, Artifact
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.runtime.host import SystemHost
from pyspark_checkpointer.table import snapshots
from pyspark_checkpointer.table.local_copies import LocalCopies
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema_evolution import first_schema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter
from tests.table.tables import field

T = TypeVar("T")

SCHEMA = first_schema("t", [field("k", "long"), field("v", "string")], ["k"], {})

PARTITIONS = 40
ROWS = 3_000
"""The rows of a snapshot. The last snapshots have ten times as many."""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Checkpointer]:
    with Checkpointer(tmp_path / "root") as found:
        yield found


def count_of(partition: int) -> int:
    return ROWS * (10 if partition > PARTITIONS - 4 else 1)


@pytest.fixture
def bases(client: Checkpointer) -> list[Artifact]:
    """Snapshots whose keys are `partition + n * PARTITIONS`: some empty, and some without a recorded tail."""
    writer = TableWriter(client.session.store, client.session.host, client.begin().attempt.id, "t", SCHEMA)
    found = []
    for partition in range(PARTITIONS):
        keys = partition + PARTITIONS * np.arange(count_of(partition))
        rows = pa.table({"k": keys, "v": [f"v{key}" for key in keys]}).cast(SCHEMA.arrow())
        base = run_sync(writer.snapshot(partition, rows))
        if partition % 10 == 3:
            base = replace(base, tail=None)
        if partition % 10 == 7:
            base = Artifact(base.path, SNAPSHOT, 0, 0, base.size, 0, 0, base.digest, None)
        found.append(base)
    return found


def reader_of(client: Checkpointer, bases: list[Artifact], copies: LocalCopies | None = None) -> TableReader:
    version = TableVersion("t", SCHEMA, PARTITIONS, {number: (base,) for number, base in enumerate(bases)})
    return TableReader(client.session.store, client.session.host, version, copies=copies)


def sought(partition: int, share: int) -> pa.Table:
    """Keys of a partition, and as many that it does not have."""
    there = partition + PARTITIONS * np.arange(0, count_of(partition), share)
    return pa.table({"k": np.concatenate([there, there + PARTITIONS * 100_000])}).cast(pa.schema([("k", pa.int64())]))


def check(found: list[pa.Table], bases: list[Artifact], share: int) -> None:
    assert len(found) == len(bases)
    for partition, rows in enumerate(found):
        keys = [] if bases[partition].length == 0 else range(partition, PARTITIONS * count_of(partition), PARTITIONS)
        assert rows.sort_by("k").to_pydict() == {
            "k": list(keys)[::share],
            "v": [f"v{key}" for key in list(keys)[::share]],
        }


@pytest.mark.parametrize("share", [1, 700])
@pytest.mark.parametrize("at_once", [1, snapshots.DECODED_AT_ONCE, 1 << 40])
def test_each_part_comes_back_in_its_place(
    client: Checkpointer,
    bases: list[Artifact],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    share: int,
    at_once: int,
) -> None:
    monkeypatch.setattr(snapshots, "DECODED_AT_ONCE", at_once)
    wanted = [(base, sought(number, share)) for number, base in enumerate(bases)]
    check(run_sync(reader_of(client, bases).lookup(wanted)), bases, share)
    copies = LocalCopies(tmp_path / "copies")
    run_sync(reader_of(client, bases, copies).lookup([(bases[n], sought(n, 1)) for n in range(0, PARTITIONS, 3)]))
    check(run_sync(reader_of(client, bases, copies).lookup(wanted)), bases, share)  # a third of them from copies


@pytest.mark.parametrize("partition", [0, 3, PARTITIONS - 1])
def test_a_damaged_snapshot_among_many_is_named(
    client: Checkpointer, bases: list[Artifact], tmp_path: Path, partition: int
) -> None:
    damaged = tmp_path / "root" / bases[partition].path
    data = bytearray(damaged.read_bytes())
    data[10] ^= 1
    damaged.write_bytes(data)
    wanted = [(base, sought(number, 1)) for number, base in enumerate(bases)]
    with pytest.raises(CorruptionError, match=bases[partition].path):
        run_sync(reader_of(client, bases).lookup(wanted))


class CountingHost(SystemHost):
    """Counts the computations that are given to threads."""

    def __init__(self) -> None:
        self.computations = 0

    async def run(self, compute: Callable[[], T]) -> T:  # type: ignore[override]  # the other is a static method
        self.computations += 1
        return await SystemHost.run(compute)


def test_copies_are_verified_side_by_side(client: Checkpointer, bases: list[Artifact], tmp_path: Path) -> None:
    """A process verifies a copy when it maps it for the first time, which would take long in one thread."""
    wanted = [(bases[number], sought(number, 1)) for number in (0, 1, 2, 4, 5)]
    run_sync(reader_of(client, bases, LocalCopies(tmp_path / "copies")).lookup(wanted))
    of_another_process = LocalCopies(tmp_path / "copies")
    for computations in (1 + len(wanted), 1):
        reader = reader_of(client, bases, of_another_process)
        reader.files.host = host = CountingHost()
        run_sync(reader.lookup(wanted))
        assert reader.bytes_read == 0
        assert host.computations == computations
