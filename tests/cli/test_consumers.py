"""`checkpointer consumers`: who reads what, and how far each is."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.consumers.eventhub import CheckpointStore
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.manifests.positions_json import Position, encode_position
from tests.cli.conftest import Run
from tests.consumers.eventhub.test_eventhub_contract import HERE, checkpoint, claim
from tests.key_files import make_key
from tests.signing_keys import make_keys

GROUP = [HERE[0], HERE[1], "$default"]
FOLDER = f"progress/eventhub/{HERE[0]}/{HERE[1]}/%24default"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with CheckpointStore(tmp_path / "root") as store:
        rows = store.claim_ownership([claim(str(n), "ann" if n < 8 else "bob") for n in range(12)])
        store.claim_ownership([{**rows[9], "owner_id": ""}])
        store.update_checkpoint(checkpoint("3", 41, "4100"))
        store.update_checkpoint(checkpoint("77", 5, "500"))  # nobody ever claimed it
    return tmp_path / "root"


def test_it_shows_owners_and_positions(root: Path, run: Run) -> None:
    lines = run("consumers", root).out.splitlines()
    assert lines[0].split() == ["INTERFACE", "GROUP", "PARTITION", "OWNER", "RENEWED", "RECORDED", "POSITION"]
    assert [line.split()[6] for line in lines[1:]] == [*map(str, range(12)), "77"]  # 9 comes before 10
    assert "ann" in lines[4]
    assert '{"sequence_number": 41, "offset": "4100"}' in lines[4]


def test_two_spellings_are_one_partition_of_event_hubs(tmp_path: Path, run: Run) -> None:
    with CheckpointStore(tmp_path) as store:
        store.claim_ownership([claim("P0", "ann")])
        store.update_checkpoint(checkpoint("p0", 41, "4100"))
    (one,) = json.loads(run("consumers", tmp_path, "--json").out)
    assert (one["partition"], one["owner"], one["position"]["sequence_number"]) == ("P0", "ann", 41)


def test_json_says_everything(root: Path, run: Run) -> None:
    found = {one["partition"]: one for one in json.loads(run("consumers", root, "--json").out)}
    assert {**found["3"], "renewed": "", "recorded": ""} == {
        "interface": "eventhub",
        "group": GROUP,
        "partition": "3",
        "owner": "ann",
        "asked_by": None,
        "finished": False,
        "owner_changes": 1,
        "renewed": "",
        "recorded": "",
        "position": {"sequence_number": 41, "offset": "4100"},
    }
    assert (found["4"]["position"], found["77"]["owner"], found["77"]["owner_changes"]) == (None, None, None)


@pytest.mark.parametrize(("owner", "partitions"), [("bob", ["8", "10", "11"]), ("", ["9", "77"]), ("eve", [])])
def test_one_owner_alone(root: Path, run: Run, owner: str, partitions: list[str]) -> None:
    found = json.loads(run("consumers", root, "--owner", owner, "--json").out)
    assert [one["partition"] for one in found] == partitions


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(root: Path, run: Run) -> None:
    (root / FOLDER / "positions" / "3.json").write_text("torn")
    (root / FOLDER / "positions" / "notes.txt").write_text("stray")
    done = run("consumers", root)
    assert done.status == 1
    assert "positions/3.json" in done.err
    assert "notes" not in done.out + done.err
    assert len(done.out.splitlines()) == 14


@pytest.mark.parametrize("hidden", ["", "hide-names:"])
@pytest.mark.parametrize("commits", [False, True])
def test_without_its_keys_an_encrypted_root_is_refused(tmp_path: Path, run: Run, hidden: str, commits: bool) -> None:
    root, opened_by = tmp_path / "root", hidden + make_key(tmp_path / "key")
    if commits:
        with Checkpointer(root, encryption=opened_by) as ck, ck.begin() as cp:
            cp.snapshot("blob", 0, b"x")
    with CheckpointStore(root, encryption=opened_by) as store:
        store.update_checkpoint(checkpoint("3", 41, "4100"))
    done = run("consumers", root, "--json")
    assert (done.status, done.out) == (1, "")
    error = json.loads(done.err)["error"]
    assert error["type"] == "UnsupportedFormatError"
    assert "is encrypted" in error["message"]
    assert len(run("consumers", root, "--json", "--encryption", opened_by).json) == 1


def test_without_its_signers_a_signed_root_is_refused(tmp_path: Path, run: Run) -> None:
    make_keys(owner := tmp_path / "owner.pem")
    signing = f"trust:{owner.with_suffix('.pub')},sign:{owner}"
    assert run("signers", tmp_path / "root", "--owner", owner).status == 0
    with CheckpointStore(tmp_path / "root", signing=signing) as store:
        store.update_checkpoint(checkpoint("3", 41, "4100"))
    done = run("consumers", tmp_path / "root", "--json")
    assert (done.status, done.out) == (1, "")
    assert json.loads(done.err)["error"]["type"] == "UnsupportedFormatError"


def test_a_damaged_pointer_hides_no_consumers(root: Path, run: Run) -> None:
    (root / "_latest").write_text("torn")
    assert len(run("consumers", root, "--json").json) == 13


def test_a_root_without_consumers(tmp_path: Path, run: Run) -> None:
    (tmp_path / "empty").mkdir()
    done = run("consumers", tmp_path / "empty")
    assert (done.status, done.out) == (1, "")
    assert "the folder is empty" in done.err


def test_what_its_consumers_would_refuse_is_damage(tmp_path: Path, run: Run) -> None:
    """A copy under another name, and a value that the interface cannot read."""
    with CheckpointStore(tmp_path) as store:
        store.update_checkpoint(checkpoint("1", 2, "2"))
    folder = tmp_path / FOLDER / "positions"
    (folder / "9.json").write_bytes((folder / "1.json").read_bytes())
    for path, value in {
        "kinesis/app/positions/s.json": {
            "checkpoint": {"sequence_number": "x", "sub_sequence_number": 0},
            "pending": None,
        },
        "eventprocessorhost/h/g/positions/0.json": {"offset": 7, "sequence_number": 1},
    }.items():
        (tmp_path / "progress" / path).parent.mkdir(parents=True)
        position = Position(Path(path).stem, 0, value, datetime.now(UTC))
        (tmp_path / "progress" / path).write_bytes(encode_position(position, "ab"))
    (tmp_path / "progress/eventprocessorhost/h/g/store.json").write_text("torn")
    done = run("consumers", tmp_path)
    assert done.status == 1
    assert [line.split()[6] for line in done.out.splitlines()[1:]] == ["1"]
    for name in ("9.json", "s.json", "0.json", "store.json"):
        assert name in done.err


def test_leases_are_shown_with_who_wants_them_and_what_is_finished(tmp_path: Path, run: Run) -> None:
    with ShardLeases(tmp_path, "app", "ann") as ann, ShardLeases(tmp_path, "app", "bob") as bob:
        ann.create(["s0", "s1"])
        ann.balance()
        bob.claim("s0")
        ended = ann.held["s1"]
        ann.end(ended)
        ended.checkpoint()
        ann.release(ended)
    lines = run("consumers", tmp_path).out.splitlines()
    assert "ann (asked for by bob)" in lines[1]
    assert "finished" in lines[2]
    assert "SHARD_END" in lines[2]
