"""`checkpointer repair`: how a candidate is named, and what the last line says of a loss."""

import json
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.admin.candidate import Candidate, choose_candidate
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.errors import CheckpointNotFoundError, IllegalArgumentError
from pyspark_checkpointer.manifests.model import CheckpointId
from tests.cli.conftest import Run
from tests.damage import fill, flip
from tests.signing_keys import make_keys
from tests.world import line

pytestmark = pytest.mark.usefixtures("small_manifests")


@pytest.fixture
def lost(root: Path) -> Path:
    """Return a root with checkpoints 1 to 3 (epochs 10 to 12), of which 2 is savepoint "good", without `_latest`."""
    (root / "_latest").unlink()
    return root


@pytest.mark.parametrize("wanted", ["2-", "0000000002", "good", "savepoint=good", "epoch=11", "WHOLE"])
def test_a_candidate_is_named_in_many_ways(lost: Path, run: Run, wanted: str) -> None:
    (path,) = (lost / "manifests").glob("0000000002-*.json")
    done = run("repair", lost, "--to", wanted.replace("WHOLE", path.stem), "--yes", "--json").json
    assert done["content_of"] == path.stem


@pytest.mark.parametrize(
    ("wanted", "status", "said"),
    [
        ("2", 2, "2 could be epoch=2, or checkpoint 0000000002-…: say which"),
        ("at=2026-01-01T00:00Z", 2, "give an id"),
        ("latest", 1, "`_latest` no longer says"),
        ("prepared", 1, "is no candidate"),
        ("0000000009", 1, "is no candidate"),
        ("0000000002-00000000", 1, "no manifest of"),
        ("epoch=x", 2, "expected a number"),
    ],
)
def test_what_is_not_one_candidate_is_refused(lost: Path, run: Run, wanted: str, status: int, said: str) -> None:
    done = run("repair", lost, "--to", wanted, "--yes")
    assert (done.status, done.out, said in done.err) == (status, "", True), done
    assert not (lost / "_latest").exists()


def test_two_attempts_at_one_epoch_are_not_told_apart() -> None:
    """One of them was never committed, and nothing says which."""
    ids = [CheckpointId.parse(text) for text in ("0000000003-0000000a", "0000000003-0000000b")]
    found = [Candidate(known, (), epoch=7) for known in ids]
    for wanted in ("epoch=7", "3-", "0000000003"):
        with pytest.raises(IllegalArgumentError, match="0000000003-0000000a, 0000000003-0000000b"):
            choose_candidate(found, "/root", CheckpointSelector.parse(wanted))
    assert choose_candidate(found, "/root", CheckpointSelector.parse("3-0000000b")) == ids[1]


def test_latest_is_what_is_left_of_the_pointer(root: Path, run: Run) -> None:
    flip_digest_of_pointer(root)
    newest = max(path.stem for path in (root / "manifests").glob("*.json"))
    assert run("repair", root, "--to", "latest", "--yes", "--json").json["content_of"] == newest


def test_the_evidence_does_not_call_a_sound_pointer_damaged(root: Path, run: Run) -> None:
    assert run("verify", root).status == 0
    assert "`_latest` names it as committed" in run("repair", root).out.splitlines()[1]
    assert "damaged" not in run("repair", root).out
    flip_digest_of_pointer(root)
    assert "`_latest` names it as committed" in run("repair", root).out.splitlines()[1]


def test_an_old_copy_of_the_pointer_names_no_latest(root: Path, run: Run) -> None:
    old = (root / "_latest").read_bytes()
    with Checkpointer(root) as ck:
        line(ck, 2)
    (root / "_latest").unlink()
    (root / "_latest").write_bytes(old)
    done = run("repair", root, "--to", "latest", "--yes")
    assert (done.status, "it is an old copy" in done.err) == (1, True)
    with pytest.raises(CheckpointNotFoundError, match="old copy"), Checkpointer(root) as ck:
        choose_candidate(ck.repair_candidates(), ck.root, CheckpointSelector("latest"))


def flip_digest_of_pointer(root: Path) -> None:
    """Damage `_latest` in a place that does not name the committed checkpoint."""
    data = (root / "_latest").read_bytes()
    (root / "_latest").unlink()
    (root / "_latest").write_bytes(data[:-4])


@pytest.mark.parametrize("older", [False, True])
def test_the_end_repeats_what_was_lost(tmp_path: Path, run: Run, older: bool) -> None:
    root = tmp_path / "root"
    with Checkpointer(root) as ck:
        for number in range(3):
            fill(ck, number, many=False)
        to = ck.read_latest()
    (newest,) = (root / "artifacts" / "own" / "0").glob("0000000003-*")
    newest.chmod(0o600)
    flip(newest)
    (base,) = (root / "artifacts" / "chain" / "0").glob("0000000001-*")
    base.chmod(0o600)
    flip(base)
    options = ("--to", to, "--accept-loss", *["--older-partitions"] * older, "--yes")
    done = run("repair", root, *options) if not older else run("repair", root, *options, "--json")
    assert done.status == 0
    if older:
        told = json.loads(done.out)
        assert told["older_partitions"]
        assert {loss["operator"]: loss["older"] is not None for loss in told["lost"]["losses"]} == {
            "own": True,
            "chain": False,
        }
        return
    last = done.out.splitlines()[-1]
    assert last.startswith("With a loss: ")
    assert "operator 'chain', partition 0 with 3 records was left out" in last
    assert "operator 'own', partition 0 with 1 record was left out" in last


def test_the_end_says_what_went_back(tmp_path: Path, run: Run) -> None:
    root = tmp_path / "root"
    with Checkpointer(root) as ck:
        ids = [fill(ck, number, many=False) for number in range(3)]
    (newest,) = (root / "artifacts" / "own" / "0").glob("0000000003-*")
    newest.chmod(0o600)
    flip(newest)
    done = run("repair", root, "--to", ids[-1], "--accept-loss", "--older-partitions", "--yes")
    assert f"went back to a state of {ids[1]}, epoch 1" in done.out.splitlines()[-1]


def test_savepoints_that_nobody_signed_get_other_names(tmp_path: Path, run: Run) -> None:
    owner = tmp_path / "owner.pem"
    make_keys(owner)
    root, signing = tmp_path / "signed", f"sign:{owner}"
    with Checkpointer(root, signing=signing) as ck:
        for number in range(2):
            with ck.begin(epoch=number) as cp:
                cp.snapshot("op", 0, b"%d" % number)
        kept, newest = ck.list_checkpoints()
        ck.savepoint("good", kept)
    (root / "_latest").unlink()
    done = run("repair", root, "--to", newest, "--yes", "--signing", signing)
    said = f"savepoint 'good' gets the name 'unproven-{kept}': nobody signed which checkpoint it is of"
    assert (done.status, said in " ".join(done.out.split())) == (0, True), done
    savepoints = run("list", root, "--json", "--signing", signing).json
    assert [name for one in savepoints for name in one["savepoints"]] == [f"unproven-{kept}"]
