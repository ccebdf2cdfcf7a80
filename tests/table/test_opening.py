"""Tables of a restored checkpoint cost what they hold, however many partitions they have."""

import resource
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint.restore import restore
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.codecs import MAX_TABLE_PARTITIONS
from pyspark_checkpointer.manifests.model import Artifact
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table import lookup_steps, opening
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.object_files import ObjectFiles
from pyspark_checkpointer.table.opening import key_table, partition_reader, table_version
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.schema import MERGE
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top
from tests.table.tables import changes_of, keys_of, rows_in, schema_of, snapshot_rows

SCHEMA = schema_of({"k": "long", "n": "long"}, ["k"], n="sum")
ROWS = [(0, 1), (1, 10), (2, 20), (3, None), (None, 40)]


def commit(client: Checkpointer, partitions: int) -> None:
    """Commit a table of which each row has a partition of its own, as its hash says."""
    with client.begin() as cp:
        writer = TableWriter(client.session.store, client.session.host, cp.id, "t", SCHEMA)
        numbers = partitions_of(keys_of(SCHEMA, ROWS), SCHEMA, max(partitions, 1))
        first = snapshot_rows(SCHEMA, ROWS[:1])
        chains = {numbers[0]: (run_sync(writer.snapshot(numbers[0], first)),)}
        for number, row in zip(numbers[1:], ROWS[1:], strict=True):
            changes = in_order(changes_of(SCHEMA, [(MERGE, row)], number), SCHEMA.key)
            chains |= {p: on_top(chains.get(p, ()), delta) for p, delta in run_sync(writer.pack(changes)).items()}
        cp.attempt.put_operator("t", TableVersion("t", SCHEMA, partitions, chains).operator())


@pytest.mark.parametrize("partitions", [1, 100_000, MAX_TABLE_PARTITIONS])
def test_a_table_costs_what_has_rows(partitions: int, tmp_path: Path) -> None:
    with Checkpointer(str(tmp_path)) as client:
        commit(client, partitions)
        restored = client.restore()
        assert restored is not None
        restored.table("t")
        seconds, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        whole, keys = rows_in(restored.table("t")), [{"k": key} for key, _ in ROWS]
        assert whole == sorted(ROWS, key=repr)
        assert rows_in(restored.table("t", keys=[*keys, {"k": 99}])) == whole
        assert restored.table("t", keys=[{"k": 99}]).num_rows == 0
        assert restored.table("t", columns=["n"], keys=[]).schema.names == ["n"]
        assert time.process_time() - seconds < 2
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 64 << 10  # KiB


def test_partitions_read_one_by_one_hold_few_deltas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpointer(str(tmp_path)) as client:
        commit(client, 8)
        reader = run_sync(restore(client.session))
        assert reader is not None
        version = table_version(reader, "t")

        def opened(*arguments: Any) -> TableReader:
            held.append(sorted(arguments[2].chains))
            return TableReader(*arguments)

        def read() -> list[Any]:
            held.clear()
            rows = partition_reader(reader, "t", range(8))
            return [rows_in(run_sync(rows(number))) for number in range(8)]

        held: list[list[int]] = []
        monkeypatch.setattr(opening, "TableReader", opened)
        expected = read()
        assert sum(map(len, expected)) == len(ROWS)
        assert held == [[], sorted(version.chains)]
        monkeypatch.setattr(opening, "HELD_BYTES", 1)
        assert read() == expected
        assert held == [[], *([number] for number in sorted(version.chains))]


def test_keys_that_are_no_rows_are_refused_with_an_example(tmp_path: Path) -> None:
    with Checkpointer(str(tmp_path)) as client:
        commit(client, 1)
        restored = client.restore()
        assert restored is not None
        for keys in ([5], 5, "ab", {"k": 1}):
            with pytest.raises(IllegalArgumentError, match=r"keys=.*: expected a list of rows such as \{'k': '…'\}"):
                restored.table("t", keys=keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (
            "date",
            "2024-01-02",
            """: column 'k' takes datetime.date, on the command line written as {"$date": "2024-01-0""",
        ),
        ("timestamp", "2024-01-02", """as {"$datetime": "2024-01-02T06:00:00+00:00"}, and not '2024-01-02'"""),
        ("timestamp_ntz", date(2024, 1, 2), """as {"$datetime": "2024-01-02T06:00:00"}, and not datetime.date"""),
    ],
)
def test_a_time_that_is_given_as_text_is_refused_with_an_example(kind: str, given: Any, said: str) -> None:
    version = TableVersion("t", schema_of({"k": kind}, ["k"]), 1, {})
    with pytest.raises(IllegalArgumentError) as caught:
        key_table(version, [{"k": None}, {"k": given}])
    assert said in str(caught.value)


def test_a_key_that_is_given_twice_is_one_row_in_steps_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer(str(tmp_path)) as client:
        commit(client, 3)
        restored = client.restore()
        assert restored is not None
        monkeypatch.setattr(lookup_steps, "MAX_STEP_BYTES", 1)
        assert rows_in(restored.table("t", keys=[{"k": 1}, {"k": 3}, {"k": 1}, {"k": 2}])) == [
            (1, 10),
            (2, 20),
            (3, None),
        ]


def test_a_pack_is_fetched_once_for_all_steps_of_a_lookup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    fetch = ObjectFiles.data

    async def counted(self: ObjectFiles, artifact: Artifact) -> Any:
        fetched.append(artifact.path)
        return await fetch(self, artifact)

    with Checkpointer(str(tmp_path)) as client:
        commit(client, 1)
        restored = client.restore()
        assert restored is not None
        monkeypatch.setattr(lookup_steps, "MAX_STEP_BYTES", 1)
        monkeypatch.setattr(ObjectFiles, "data", counted)
        assert rows_in(restored.table("t", keys=[{"k": key} for key, _ in ROWS])) == sorted(ROWS, key=repr)
    packs = [path for path in fetched if "/packs/" in path]
    assert len(packs) == len(set(packs)) == 4


def test_a_table_has_a_partition(tmp_path: Path) -> None:
    with Checkpointer(str(tmp_path)) as client:
        with pytest.raises(IllegalArgumentError, match="operator 't': 0 partitions of parquet"), client.begin() as cp:
            cp.attempt.put_operator("t", TableVersion("t", SCHEMA, 0, {}).operator())
        assert client.restore() is None


def test_what_a_later_version_wrote_beside_a_table_stays_with_it(tmp_path: Path) -> None:
    client = Checkpointer(tmp_path)
    made = TableVersion("t", SCHEMA, 1, {}).operator()
    with client.begin(epoch=0) as cp:
        cp.attempt.put_operator("t", made)
        cp.attempt._operators["t"] = replace(made, extra={"colour": "blue"})
    for dropped in (False, True):
        with client.begin() as cp:
            if dropped:
                cp.drop("t")
            cp.attempt.put_operator("t", made)
        restored = client.restore()
        assert restored is not None
        assert restored.manifest is not None
        assert restored.manifest.operators["t"].extra == ({} if dropped else {"colour": "blue"})
