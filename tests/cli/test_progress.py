"""`checkpointer progress`: who reads what, and how far each is."""

import json
from pathlib import Path

import pytest

from checkpointer.progress.eventhub import CheckpointStore
from tests.cli.conftest import Run
from tests.progress.test_eventhub_contract import HERE, checkpoint, claim

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
    lines = run("progress", root).out.splitlines()
    assert lines[0].split() == ["INTERFACE", "GROUP", "PARTITION", "OWNER", "RENEWED", "RECORDED", "POSITION"]
    assert [line.split()[6] for line in lines[1:]] == [*map(str, range(12)), "77"]  # 9 comes before 10
    assert "ann" in lines[4]
    assert '{"sequence_number": 41, "offset": "4100"}' in lines[4]


def test_json_says_everything(root: Path, run: Run) -> None:
    found = {one["partition"]: one for one in json.loads(run("progress", root, "--json").out)}
    assert {**found["3"], "renewed": "", "recorded": ""} == {
        "interface": "eventhub",
        "group": GROUP,
        "partition": "3",
        "owner": "ann",
        "wanted_by": "",
        "finished": False,
        "epoch": 1,
        "renewed": "",
        "recorded": "",
        "position": {"sequence_number": 41, "offset": "4100"},
    }
    assert (found["4"]["position"], found["77"]["owner"], found["77"]["epoch"]) == (None, "", None)


@pytest.mark.parametrize(("owner", "partitions"), [("bob", ["8", "10", "11"]), ("", ["9", "77"]), ("eve", [])])
def test_one_owner_alone(root: Path, run: Run, owner: str, partitions: list[str]) -> None:
    found = json.loads(run("progress", root, "--owner", owner, "--json").out)
    assert [one["partition"] for one in found] == partitions


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(root: Path, run: Run) -> None:
    (root / FOLDER / "positions" / "3.json").write_text("torn")
    (root / FOLDER / "positions" / "notes.txt").write_text("stray")
    done = run("progress", root)
    assert done.status == 1
    assert "positions/3.json" in done.err
    assert "notes" not in done.out + done.err
    assert len(done.out.splitlines()) == 14


def test_a_root_without_progress(tmp_path: Path, run: Run) -> None:
    (tmp_path / "empty").mkdir()
    done = run("progress", tmp_path / "empty")
    assert (done.status, done.out) == (1, "")
    assert "the folder is empty" in done.err
