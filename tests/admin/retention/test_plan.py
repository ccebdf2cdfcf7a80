"""A plan lists every object once, deletes nothing, and can be saved and loaded."""

import errno
import gc
import hashlib
import json
import os
import random
import re
import secrets
import sys
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pyspark_checkpointer import Checkpointer, RetentionPolicy, runtime
from pyspark_checkpointer.admin.retention import spool
from pyspark_checkpointer.admin.retention.classifier import PlanRow
from pyspark_checkpointer.admin.retention.plan import CleanupPlan
from pyspark_checkpointer.admin.retention.spool import Spool
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    MalformedError,
    StalePlanError,
)
from pyspark_checkpointer.manifests import object_paths
from tests.admin.retention.histories import LAST_TWO, NO_GRACE, garbage, mixed, with_clock
from tests.world import World, attempt, line, put


def test_a_plan_says_that_it_is_too_soon(world: World) -> None:
    client = world.actor()
    clock = with_clock(client)
    policy = RetentionPolicy(keep_last=1, grace=timedelta(minutes=80))
    line(client, 3)
    client.clean(policy)
    line(client, 2)
    plan = client.plan(policy)
    assert plan.retired == ()
    assert "every eighth" in str(plan.note)
    clock.time += timedelta(minutes=10)
    assert len(client.plan(policy).retired) == 2


def test_a_plan_has_every_object_once_and_deletes_nothing(world: World) -> None:
    client = world.actor()
    ids = mixed(client, 6)
    client.savepoint("second", ids[1])
    attempt(client, b"abandoned").prepare().abort()
    put(client, b"7")
    runtime.run_sync(world.store.put("progress/group/0", b"42"))
    runtime.run_sync(world.store.put("notes.txt", b"mine"))
    before = {entry.path: entry.size for entry in runtime.run_sync(world.store.list(""))}
    client.faults.forget()
    plan = client.plan(RetentionPolicy(keep_last=2))
    assert not {"swap", "put", "delete", "discard"} & client.faults.counts.keys()
    rows = [*plan]
    assert {row.path: row.size for row in rows} == before
    assert len(rows) == len(before)
    totals: Counter[Any] = Counter()
    for row in rows:
        totals[row.action] += row.size
    for action, size in totals.items():
        assert plan.total(action).bytes == size
    by_path = {row.path: row for row in rows}
    assert by_path["notes.txt"].action == by_path["progress/group/0"].action == "keep"
    assert "not a file of the format" in by_path["notes.txt"].reason
    assert by_path[object_paths.manifest(ids[1])].reason == "savepoint 'second'"
    assert by_path[object_paths.manifest(ids[2])].action == "later"
    assert by_path[object_paths.manifest(ids[2])].referenced_by == str(ids[2])
    assert {row.reason for row in rows if row.action == "delete"} == {"no live checkpoint names it"}
    assert [c.id for c in plan.checkpoints if not c.keep] == [ids[0], *ids[2:5]]


def test_a_row_names_the_strongest_of_those_that_need_an_object(world: World) -> None:
    client = world.actor()
    ids = mixed(client, 6)
    client.savepoint("first", ids[0])
    rows = {row.path: row for row in client.plan(RetentionPolicy(keep_last=1))}
    (shared,) = [path for path in rows if path.startswith(f"artifacts/shared/0/{ids[0]}")]
    assert (rows[shared].referenced_by, rows[shared].reference_count, rows[shared].action) == (str(ids[0]), 3, "keep")
    (newest,) = [path for path in rows if path.startswith(f"artifacts/shared/0/{ids[3]}")]
    assert (rows[newest].referenced_by, rows[newest].reference_count, rows[newest].reason) == (
        str(ids[5]),
        3,
        "committed",
    )


def test_a_saved_plan_is_the_same_plan(world: World, tmp_path: Path) -> None:
    client = world.actor()
    mixed(client, 9)
    plan = client.plan(LAST_TWO)
    plan.save(tmp_path / "plan")
    loaded = CleanupPlan.load(tmp_path / "plan")
    assert [*loaded] == [*plan]
    assert [*loaded] == [*plan], "as often as wanted"
    assert (loaded.totals, loaded.checkpoints, loaded.retired) == (plan.totals, plan.checkpoints, plan.retired)
    assert client.apply(loaded).deleted == plan.total("delete")
    assert garbage(world) == set()


def test_a_saved_plan_of_an_encrypted_root_is_encrypted(tmp_path: Path) -> None:
    """It names digests of contents, which would confirm a guess at one."""
    for name in ("old", "new"):
        (tmp_path / f"{name}.key").write_text(secrets.token_hex(32))
    old, new = (f"key-file:{tmp_path}/{name}.key" for name in ("old", "new"))
    root, file = f"memory://{secrets.token_hex(8)}", tmp_path / "plan"
    client, data = Checkpointer(root, encryption=old), random.Random(1).randbytes(300_000)
    for epoch in range(4):
        with client.begin(epoch=epoch) as cp:
            cp.snapshot("model", 0, data + bytes([epoch]))
    plan = client.plan(LAST_TWO)
    told = hashlib.sha256(data + b"\0").hexdigest()
    assert any(told in row.path for row in plan), "this is what must not be seen"
    plan.save(file)
    assert file.stat().st_mode & 0o777 == 0o600
    saved = file.read_bytes()
    assert saved.startswith(b"checkpointer-encrypted-1\n")
    assert not any(part in saved for part in (told.encode(), b"model", b"nonce", str(plan.retired[0].id).encode()))
    with pytest.raises(
        IllegalArgumentError, match=r"is encrypted with the keys of its root: load it with load_plan\(\)"
    ):
        CleanupPlan.load(file)
    with pytest.raises(IllegalArgumentError, match="is encrypted with the keys of its root"):
        Checkpointer(f"memory://{secrets.token_hex(8)}").load_plan(file)
    other = Checkpointer(f"memory://{secrets.token_hex(8)}", encryption=old)
    other.begin().commit()
    file.with_name("changed").write_bytes(saved[:-1] + bytes([saved[-1] ^ 1]))
    for use, read in ((other, file), (client, file.with_name("changed"))):
        with pytest.raises(MalformedError, match="cannot decrypt it: it was changed, or its root is another one"):
            use.load_plan(read)
    loaded = client.load_plan(file)
    assert ([*loaded], loaded.totals, loaded.from_file) == ([*plan], plan.totals, True)
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes().startswith(b"checkpointer-encrypted-1\n")
    assert client.apply(loaded).deleted == plan.total("delete")
    client.reencrypt(new)
    with pytest.raises(MalformedError, match="has another data key by now: make a new plan"):
        Checkpointer(root, encryption=new).load_plan(file)


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped", "version", "root", "sums", "deep", "long"])
def test_a_file_that_is_no_plan_is_refused_by_name(world: World, tmp_path: Path, damage: str) -> None:
    client = world.actor()
    mixed(client, 3)
    file = tmp_path / "plan"
    client.plan(LAST_TWO).save(file)
    data = file.read_bytes()
    body = data.index(b"\n") + 1
    file.write_bytes(
        {
            "empty": b"",
            "text": b"rm -rf",
            "cut": data[: body + 30],
            "flipped": data[:body] + bytes([data[body] ^ 255]) + data[body + 1 :],
            "root": data.replace(json.dumps(client.root).encode(), b'["plan"]'),
            "sums": re.sub(rb'"totals": \[\[("\w+", "[^"]+"), \d+', rb'"totals": [[\1, "x"', data, count=1),
            "deep": data[:body] + zstandard.compress(b"[" * 100_000),
            "long": data[:body] + zstandard.compress(b" " * (64 << 20)),
            "version": data.replace(b'"plan_version": 2', b'"plan_version": 3'),
        }[damage]
    )
    before = world.objects()
    with pytest.raises(CorruptionError, match="plan"):
        client.apply(CleanupPlan.load(file))
    assert world.objects() == before


def test_a_plan_from_a_file_cannot_delete_what_is_live(world: World, tmp_path: Path) -> None:
    """Somebody edited it; its nonce is still that of `_latest`."""
    client = world.actor()
    mixed(client, 4)
    file = tmp_path / "plan"
    plan = client.plan(NO_GRACE)
    plan.save(file)
    head = file.read_bytes().partition(b"\n")[0] + b"\n"
    rows = b"".join(json.dumps(row._replace(action="delete")).encode() + b"\n" for row in plan)
    before = world.objects()
    file.write_bytes(head + zstandard.compress(rows))
    with pytest.raises(CorruptionError, match="do not add up to its totals"):
        CleanupPlan.load(file)
    file.write_bytes(head.replace(b'["keep", ', b'["delete", ') + zstandard.compress(rows))
    with pytest.raises(StalePlanError):
        client.apply(CleanupPlan.load(file))
    assert world.objects() == before


def test_a_plan_from_a_file_touches_nothing_without_a_pointer(world: World, tmp_path: Path) -> None:
    client = world.actor()
    mixed(client, 4)
    file = tmp_path / "plan"
    client.plan(LAST_TWO).save(file)
    file.write_bytes(file.read_bytes().replace(b'"nonce": "', b'"nonce": null, "was": "', 1))
    world.delete("_latest")
    before = world.objects()
    with pytest.raises(InvalidStateError, match=r"has no _latest, though .* it was lost"):
        client.apply(CleanupPlan.load(file))
    assert world.objects() == before


def open_files(folder: Path) -> int:
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder))
    return found


def test_the_file_of_a_plan_goes_with_it(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(spool, "_MEMORY_BYTES", 0)
    client = world.actor(retries=False)
    line(client, 2)
    plan = client.plan()
    rows = [*plan]
    assert open_files(tmp_path) == 1
    again = iter(plan)  # two that read at once
    assert [next(again), *plan][1:] == rows
    assert [rows[0], *again] == rows
    del plan, again
    gc.collect()
    assert open_files(tmp_path) == 0
    client.faults.fail("leftovers")
    with pytest.raises(CheckpointError):
        client.plan()
    gc.collect()
    assert (open_files(tmp_path), [*tmp_path.iterdir()]) == (0, [])


@pytest.mark.parametrize("fails", ["open", "write", "half"])
def test_where_no_file_can_be_written_the_rows_stay_in_memory(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """A cleanup makes room on a full disk, so it must not need room."""
    client = world.actor()
    mixed(client, 6)
    expected = [*client.plan(LAST_TWO)]
    written = os.pwrite

    def full(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    def half(file: int, data: bytes, offset: int) -> int:
        return written(file, data[:7], offset) if offset < 7 else full()

    monkeypatch.setattr(spool, "_MEMORY_BYTES", 0)
    if fails == "open":
        monkeypatch.setattr("tempfile.TemporaryFile", full)
    else:
        monkeypatch.setattr(os, "pwrite", half if fails == "half" else full)
    plan = client.plan(LAST_TWO)
    assert [*plan] == expected
    plan.save(tmp_path / "plan")
    loaded = CleanupPlan.load(tmp_path / "plan")
    assert [*loaded] == expected
    assert len(client.apply(loaded).retired) == 4
    assert garbage(world) == set()


def test_a_file_with_a_name_that_is_no_text_is_left_alone(tmp_path: Path) -> None:
    client = Checkpointer(tmp_path / "root")
    line(client, 4)
    for name in (b"/\xe9t\xe9.txt", b"/artifacts/\xff.enc"):
        with open(os.fsencode(tmp_path / "root") + name, "wb") as file:
            file.write(b"mine")
    assert client.clean(RetentionPolicy(keep_last=1, grace=timedelta(0))).deleted.objects > 0
    (tmp_path / "state.key").write_text(secrets.token_hex(32))
    client.encrypt(f"key-file:{tmp_path / 'state.key'}")
    sealed = Checkpointer(tmp_path / "root", encryption=f"key-file:{tmp_path / 'state.key'}")
    assert sealed.restore()
    sealed.clean()
    assert sum(b"\xe9" in name for name in os.listdir(os.fsencode(tmp_path / "root"))) == 1


def test_the_rows_of_a_plan_leave_nothing_in_memory() -> None:
    def hold() -> None:
        with Spool() as rows:
            rows.extend(PlanRow(f"artifacts/op/{n}", n, "keep", "live", None, 1) for n in range(100))

    for _ in range(20):
        hold()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(500):
        hold()
    gc.collect()
    assert sys.getallocatedblocks() - before < 250
