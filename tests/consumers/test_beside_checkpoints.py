"""Positions and checkpoints share a root without seeing each other."""

from datetime import timedelta
from pathlib import Path

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from tests.consumers.eventhub.test_eventhub_contract import HERE, checkpoint, claim, owners, positions


def test_a_root_may_have_both(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store, Checkpointer(tmp_path) as ck:
        store.claim_ownership([claim("0", "a")])
        assert ck.restore() is None  # a root that has positions alone has no checkpoint, and may get one
        for number in range(5):
            store.update_checkpoint(checkpoint("0", number, str(number)))
            with ck.begin() as cp:
                cp.snapshot("operator", 0, b"%d" % number)
        before = sorted(path.relative_to(tmp_path) for path in (tmp_path / "progress").rglob("*"))
        plan = ck.plan(RetentionPolicy(keep_last=1, grace=timedelta(0)))
        assert not [row.path for row in plan if row.path.startswith("progress/") and row.action == "delete"]
        assert ck.apply(plan).deleted.objects > 0
        ck.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
        assert sorted(path.relative_to(tmp_path) for path in (tmp_path / "progress").rglob("*")) == before
        assert not ck.verify().findings
        assert (owners(store), positions(store)) == ({"0": "a"}, {"0": (4, "4")})
        assert len(store.list_ownership(*HERE)) == 1


def test_exports_and_rollbacks_leave_positions_out(tmp_path: Path) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    with CheckpointStore(root) as store, Checkpointer(root) as ck:
        for number in range(2):
            store.update_checkpoint(checkpoint("0", number, str(number)))
            with ck.begin(epoch=number) as cp:
                cp.snapshot("operator", 0, b"%d" % number)
        ck.export(None, copy)
        ck.rollback("epoch=0")
        assert positions(store) == {"0": (1, "1")}
    with CheckpointStore(copy) as store:
        assert positions(store) == {}


def test_cleanup_sweeps_what_killed_writers_of_positions_left(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store, Checkpointer(tmp_path) as ck:
        store.update_checkpoint(checkpoint("0", 1, "1"))
        with ck.begin() as cp:
            cp.snapshot("operator", 0, b"1")
        (positions_folder,) = (tmp_path / "progress").rglob("positions")
        torn = positions_folder / ".0.json.0123456789abcdef.tmp"
        other = positions_folder / ".notes.txt.0123456789abcdef.tmp"
        torn.write_bytes(b"half")
        other.write_bytes(b"half")
        ck.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
        assert (torn.exists(), other.exists()) == (False, True)
        assert positions(store) == {"0": (1, "1")}
