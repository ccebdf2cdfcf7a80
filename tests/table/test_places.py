"""A key that stands in another partition than its hash says: only a verification notices, and it says which."""

from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.client import base
from pyspark_checkpointer.manifests.model import Chain
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table import reader
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.schema import MERGE
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top
from tests.table.tables import changes_of, schema_of, snapshot_rows

SCHEMA = schema_of({"k": "long", "s": "string", "n": "long"}, ["k", "s"], n="sum")
ROWS = [(number, f"s{number}", 1) for number in range(300)]
PARTITIONS = 4


def commit(client: Checkpointer, snapshot_shift: int = 0, delta_shift: int = 0) -> None:
    """Commit a snapshot of each partition, and a pack on top; a shift puts the last key into the next partition."""
    places = partitions_of(snapshot_rows(SCHEMA, ROWS), SCHEMA, PARTITIONS)
    with client.begin() as cp:
        writer = TableWriter(client.session.store, client.session.host, cp.id, "t", SCHEMA)
        chains: dict[int, Chain] = {}
        for partition in range(PARTITIONS):
            found = [(places[at] + (snapshot_shift if at == 299 else 0)) % PARTITIONS for at in range(300)]
            rows = [row for row, place in zip(ROWS, found, strict=True) if place == partition]
            chains[partition] = (run_sync(writer.snapshot(partition, snapshot_rows(SCHEMA, rows))),)
        found = [(places[at] + (delta_shift if at == 299 else 0)) % PARTITIONS for at in range(300)]
        changes = [changes_of(SCHEMA, [(MERGE, row)], place) for row, place in zip(ROWS, found, strict=True)]
        for partition, delta in run_sync(writer.pack(in_order(pa.concat_tables(changes), SCHEMA.key))).items():
            chains[partition] = on_top(chains[partition], delta)
        cp.attempt.put_operator("t", TableVersion("t", SCHEMA, PARTITIONS, chains).operator())


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "pieces"])
@pytest.mark.parametrize(("snapshot_shift", "delta_shift"), [(0, 0), (1, 0), (0, 1)])
def test_a_verification_names_a_key_in_another_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot_shift: int, delta_shift: int, pieces: bool
) -> None:
    if pieces:
        monkeypatch.setattr(reader, "HUGE_PACK_BYTES", 0)
    with Checkpointer(tmp_path) as client:
        commit(client, snapshot_shift, delta_shift)
        found = client.verify()
        restored = client.restore()
        assert restored is not None
        rows = restored.table("t")
    wrong = snapshot_shift + delta_shift
    assert rows.num_rows == 300 + wrong, "the reader has the key twice"
    assert len(found.findings) == wrong
    for finding in found.findings:
        right = partitions_of(snapshot_rows(SCHEMA, ROWS[299:]), SCHEMA, PARTITIONS)[0]
        kind = "snapshot" if snapshot_shift else "packs"
        assert kind in finding.path
        assert finding.problem == (
            f"{finding.path}: the key k=299, s='s299' is in partition {(right + 1) % PARTITIONS} and belongs to "
            f"partition {right} of {PARTITIONS}: no lookup finds it there"
        )
        assert [checkpoint.sequence for checkpoint in finding.checkpoints] == [1]


def test_without_pyarrow_bytes_alone_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpointer(tmp_path) as client:
        commit(client, snapshot_shift=1)
        monkeypatch.setattr(base, "is_installed", lambda package: package != "pyarrow")
        assert client.verify()


def test_an_object_that_is_damaged_is_one_finding(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as client:
        commit(client, snapshot_shift=1, delta_shift=1)
        for path in tmp_path.rglob("*.parquet"):
            path.write_bytes(path.read_bytes()[:-1] + b"x")
        found = client.verify().findings
    assert len(found) == PARTITIONS + 1
    assert not [finding.problem for finding in found if "belongs" in finding.problem]
