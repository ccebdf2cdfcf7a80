"""Copies of decoded objects on a local disk: they are never wrong, and whatever happens to them costs time alone."""

import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests.model import Artifact
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.table import local_copies, object_files, packs, snapshots
from pyspark_checkpointer.table.local_copies import LocalCopies, name_of
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import CHANGE, DELETE, MERGE, PARTITION, TableSchema
from pyspark_checkpointer.table.schema_evolution import extended_schema, first_schema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top
from tests.table.tables import field

SCHEMA = first_schema("t", [field("k", "long"), field("v", "string")], ["k"], {})
ROWS = 50_000


@pytest.fixture
def client(tmp_path: Path) -> Any:
    with Checkpointer(tmp_path / "root") as found:
        yield found


@pytest.fixture
def version(client: Checkpointer) -> TableVersion:
    """A snapshot of 50,000 rows, and two deltas on top."""
    writer = TableWriter(client.session.store, client.session.host, client.begin().attempt.id, "t", SCHEMA)
    keys = np.arange(ROWS) * 2
    base = pa.table({"k": keys, "v": [f"v{key}" for key in keys]}).cast(SCHEMA.arrow())
    chain = (run_sync(writer.snapshot(0, base)),)
    for number in (1, 2):
        changed = pa.table(
            {
                "k": np.arange(0, ROWS, 3 * number),
                "v": [f"d{number}"] * len(range(0, ROWS, 3 * number)),
                PARTITION: pa.repeat(pa.scalar(0, pa.int32()), len(range(0, ROWS, 3 * number))),
                CHANGE: pa.array([DELETE if key % 5 == 0 else MERGE for key in range(0, ROWS, 3 * number)], pa.int8()),
            }
        ).cast(SCHEMA.arrow_delta())
        chain = on_top(chain, run_sync(writer.pack(changed))[0])
    return TableVersion("t", SCHEMA, 1, {0: chain})


def look(client: Checkpointer, version: TableVersion, keys: Any, copies: LocalCopies | None) -> tuple[pa.Table, int]:
    """The rows of some keys in order, and how many bytes of the store were read for them."""
    wanted = pa.table({"k": pa.array(keys, pa.int64())})
    reader = TableReader(client.session.store, client.session.host, version, None, wanted, copies)
    return run_sync(reader.rows(0, wanted)).sort_by("k"), reader.bytes_read


def some(seed: int) -> Any:
    return np.sort(np.random.default_rng(seed).choice(2 * ROWS, 5000, replace=False))


def test_a_second_lookup_reads_nothing_and_finds_the_same(
    client: Checkpointer, version: TableVersion, tmp_path: Path
) -> None:
    copies = LocalCopies(tmp_path / "copies")
    first, read = look(client, version, some(1), copies)
    assert read > 0
    assert len(list((tmp_path / "copies").iterdir())) == 3
    for seed in (1, 2):
        plain, _ = look(client, version, some(seed), None)
        for again in (copies, LocalCopies(tmp_path / "copies")):  # and another process, which verifies them
            found, read = look(client, version, some(seed), again)
            assert read == 0
            assert found.equals(plain)
    assert first.equals(look(client, version, some(1), None)[0])


def test_few_keys_read_only_their_row_groups(client: Checkpointer, version: TableVersion, tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path / "copies")
    look(client, version, [10], copies)
    assert len(list((tmp_path / "copies").iterdir())) == 2  # of the packs, which are small
    base = version.chains[0][0]
    assert not (tmp_path / "copies" / name_of(base.digest, SCHEMA, SCHEMA.names)).exists()


def test_columns_that_changed_since_have_a_copy_of_their_own(
    client: Checkpointer, version: TableVersion, tmp_path: Path
) -> None:
    copies = LocalCopies(tmp_path / "copies")
    look(client, version, some(1), copies)
    wider = extended_schema("t", SCHEMA, [field("k", "long"), field("v", "string"), field("w", "integer")], ["k"], {})
    newer = replace(version, schema=wider)
    found, _ = look(client, newer, some(1), copies)
    assert found.column_names == ["k", "v", "w"]
    assert found.equals(look(client, newer, some(1), None)[0])
    # Dropped and added again: a new column, in which older rows have nothing.
    again = extended_schema("t", SCHEMA.without("t", ["v"]), [field("k", "long"), field("v", "string")], ["k"], {})
    found, _ = look(client, replace(version, schema=again), some(1), copies)
    assert found.column_names == ["k", "v"]
    assert found["v"].null_count == found.num_rows
    renamed = TableSchema(tuple(replace(c, name={"v": "u"}.get(c.name, c.name)) for c in SCHEMA.columns), 3)
    assert look(client, replace(version, schema=renamed), some(1), copies)[0].column_names == ["k", "u"]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "folder"])
def test_a_damaged_copy_is_not_used(
    client: Checkpointer,
    version: TableVersion,
    tmp_path: Path,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "copies"
    look(client, version, some(1), LocalCopies(folder))
    for path in folder.iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.unlink()
        if damage == "folder":
            path.mkdir()
        else:
            path.write_bytes({"flip": data, "cut": data[:-100], "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        found, read = look(client, version, some(2), LocalCopies(folder))
    assert read > 0
    assert found.equals(look(client, version, some(2), None)[0])
    assert "cannot be read" in caplog.text
    if damage != "folder":  # The next task has sound copies again.
        assert look(client, version, some(2), LocalCopies(folder))[1] == 0


def test_no_room_costs_time_alone(
    client: Checkpointer, version: TableVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copies"
    expected, _ = look(client, version, some(1), None)
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
        assert look(client, version, some(1), LocalCopies(folder))[0].equals(expected)
        assert {path.stat().st_size > 250_000 for path in folder.iterdir()} <= {False}

    def full(path: Path, rows: pa.Table) -> None:
        path.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    shutil.rmtree(folder)
    monkeypatch.setattr(local_copies, "_write", full)
    assert look(client, version, some(1), LocalCopies(folder))[0].equals(expected)
    assert not list(folder.iterdir())


def test_a_folder_has_few_bytes(tmp_path: Path) -> None:
    rows = pa.table({"x": np.arange(1000)})
    copies = LocalCopies(tmp_path, max_bytes=5 * rows.nbytes)

    def use(*numbers: int, idle: float = 0) -> set[int]:
        for number in numbers:
            copies.put(f"{number}", rows)
            copies.get(f"{number}")
        there = {int(path.name) for path in tmp_path.iterdir()}
        for number in there & set(numbers):
            os.utime(tmp_path / f"{number}", times=(time.time() - idle,) * 2)
        return there

    assert use(0, 1, 2, 3) == {0, 1, 2, 3}
    # What is in use stays, and what does not fit beside it gets no copy.
    assert use(4, 5) == {0, 1, 2, 3}
    use(1, 2, idle=400)
    assert use(6) == {0, 2, 3, 6}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 5 * rows.nbytes
    assert {int(name) for name in copies._mapped} <= {0, 2, 3, 6}
    copies.put("7", pa.table({"x": np.arange(6000)}))
    assert copies.get("7") is None


def test_a_folder_has_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with small batches makes a copy in each, and its packs are compacted away after some batches."""
    monkeypatch.setattr(local_copies, "MAX_COPIES", 8)
    rows, copies = pa.table({"x": [1]}), LocalCopies(tmp_path)
    for number in range(40):
        copies.put(f"{number:02d}", rows)
        copies.get(f"{number:02d}")
        old = time.time() - 400 + number
        os.utime(tmp_path / f"{number:02d}", times=(old, old))
        assert len(list(tmp_path.iterdir())) <= 8
        assert len(copies._mapped) <= 8
    assert copies.get("39") is not None
    for number in range(40, 60):  # Those in use stay.
        copies.put(f"{number:02d}", rows)
    assert (len(list(tmp_path.iterdir())), copies.has_room(rows.nbytes, "new")) == (8, False)
    for path in sorted(tmp_path.iterdir())[:2]:  # Two of them are idle, and their places are taken.
        os.utime(path, times=(1, 1))
    for number in range(80, 83):
        copies.put(f"{number:02d}", rows)
    assert {int(path.name) for path in tmp_path.iterdir()} >= {80, 81}
    assert len(list(tmp_path.iterdir())) == 8
    other = LocalCopies(tmp_path)  # A process that only reads has few mapped, too.
    for path in [*tmp_path.iterdir()]:
        assert other.get(path.name) is not None
        path.unlink()
    for number in range(60, 80):
        copies.put(f"{number:02d}", rows)
        other.get(f"{number:02d}")
    assert len(other._mapped) <= 8


@pytest.mark.parametrize("is_broken", [False, True], ids=["full", "read-only"])
def test_a_folder_without_room_costs_no_more_than_none(
    client: Checkpointer,
    version: TableVersion,
    tmp_path: Path,
    is_broken: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def look_cold(keys: Any, copies: LocalCopies | None) -> tuple[pa.Table, int]:
        monkeypatch.setattr(object_files, "_opened", {})
        return look(client, version, keys, copies)

    def refuse(path: Path, rows: pa.Table) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(packs, "LARGE_PACK_BYTES", 1)
    monkeypatch.setattr(packs, "FEW_KEYS", 1)
    monkeypatch.setattr(snapshots, "COPIED_SHARE", 0.01)
    keys = [2 * number for number in range(0, ROWS, ROWS // 10)]
    usage, full = shutil.disk_usage(tmp_path), LocalCopies(tmp_path / "copies")
    if is_broken:
        monkeypatch.setattr(local_copies, "_write", refuse)
    else:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    expected, least = look_cold(keys, None)
    _, before = look_cold(keys, full)  # Nobody knows yet that there is no room.
    found, read = look_cold(keys, full)
    assert (read, found) == (least, expected)
    assert before > least
    assert caplog.text.count("cannot be written") == is_broken


def test_sound_copies_on_a_disk_that_takes_no_more_writes_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(30, "Read-only file system")

    LocalCopies(tmp_path).put("a.arrow", pa.table({"k": [1]}))
    monkeypatch.setattr(os, "utime", refuse)
    assert LocalCopies(tmp_path).get("a.arrow") == pa.table({"k": [1]})


def test_a_small_copy_is_made_where_a_large_one_has_no_room(tmp_path: Path) -> None:
    small, large = pa.table({"x": [1]}), pa.table({"x": np.arange(10_000)})
    copies = LocalCopies(tmp_path, max_bytes=50_000)
    assert copies.has_room(large.nbytes, "new")
    copies.put("large", large)
    assert not copies.has_room(large.nbytes, "new")
    assert not copies.has_room(large.nbytes + 1, "new")
    assert copies.has_room(small.nbytes, "new")
    copies.put("small", small)
    assert copies.get("small") == small


CANNOT_MAP = """
import resource, sys
from pathlib import Path
import numpy as np, pyarrow as pa
from pyspark_checkpointer.table.local_copies import LocalCopies
copies, rows = LocalCopies(Path(sys.argv[1])), pa.table({"x": np.arange(16 << 20)})
copies.put("a", rows)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
print(copies.get("a"))
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(LocalCopies(Path(sys.argv[1])).get("a") == rows)
"""


def test_a_sound_copy_that_a_process_cannot_map_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CANNOT_MAP, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.returncode) == (["None", "True"], 0), done.stderr


def test_an_artifact_with_another_number_of_rows_is_still_refused(
    client: Checkpointer, version: TableVersion, tmp_path: Path
) -> None:
    copies = LocalCopies(tmp_path / "copies")
    look(client, version, some(1), copies)
    for at in range(3):
        chain: list[Artifact] = list(version.chains[0])
        chain[at] = replace(chain[at], records=chain[at].records + 1)
        with pytest.raises(CorruptionError, match="expected"):
            look(client, replace(version, chains={0: tuple(chain)}), some(1), copies)


def _look_often(root: str, version: TableVersion, folder: Path, seed: int) -> int:
    client = Checkpointer(root)
    copies = LocalCopies(folder, max_bytes=1_500_000)  # not enough for all three
    return sum(
        look(client, version, some(number), copies)[0].equals(look(client, version, some(number), None)[0])
        for number in range(seed, seed + 10)
    )


def test_processes_share_a_folder(client: Checkpointer, version: TableVersion, tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        given = [(client.root, version, tmp_path / "copies", 100 * number) for number in range(2)]
        assert pool.starmap(_look_often, given) == [10, 10]


def test_nobody_else_can_read_a_copy(client: Checkpointer, version: TableVersion, tmp_path: Path) -> None:
    look(client, version, some(1), LocalCopies(tmp_path / "copies"))
    assert (tmp_path / "copies").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "copies").iterdir()} == {0o600}


def test_a_copy_that_another_process_removed_is_let_go(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path)
    copies.put("a.arrow", pa.table({"k": [1]}))
    assert copies.get("a.arrow") is not None
    assert "a.arrow" in copies._mapped
    (tmp_path / "a.arrow").unlink()
    assert copies.get("a.arrow") is None
    assert copies._mapped == {}


def test_a_full_folder_is_noticed_by_the_share_of_a_pack_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy all rows of a pack, of which the caller knows the size of its own partition alone."""
    pack = pa.table({"x": np.arange(100_000)})
    copies = LocalCopies(tmp_path, max_bytes=pack.nbytes // 2)
    assert copies.has_room(pack.nbytes // 16, "pack")
    copies.put("pack", pack)
    assert not copies.has_room(pack.nbytes // 16, "pack")
    assert copies.has_room(pack.nbytes // 16, "another")
    monkeypatch.setattr(local_copies, "MAX_COPIES", 4)
    for number in range(10):
        copies.put(f"{number}", pack)
    assert len(copies._refused_names) == 4
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    assert copies.has_room(pack.nbytes, "pack")
