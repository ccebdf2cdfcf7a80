"""All verbs fail alike if something does not exist, and take the same names of checkpoints."""

import json
from pathlib import Path
from typing import Any

import click
import pytest

from pyspark_checkpointer.cli.app import VERBS
from tests.cli.conftest import Result, Run

REST: dict[str, tuple[str, ...]] = {
    "diff": ("epoch=1",),
    "history": ("seen", "a"),
    "cat": ("seen",),
    "report": ("--json",),
    "rewind": ("epoch=1", "--yes"),
    "fork": ("latest", "TARGET", "TARGET-spark"),
    "rollback": ("epoch=1", "--yes"),
    "delete": ("epoch=1", "--yes"),
    "export": ("latest", "TARGET"),
    "encrypt": ("--encryption", "key-file:TARGET", "--yes"),
    "rekey": ("--new-encryption", "key-file:TARGET"),
}
"""The arguments that a verb needs besides a root."""

OPERATOR: dict[str, tuple[str, ...]] = {
    "diff": ("0000000001", "latest", "nosuch"),
    "tree": ("--operator", "nosuch"),
    "history": ("nosuch", "a"),
    "cat": ("nosuch",),
    "verify": ("--operator", "nosuch"),
    "export": ("latest", "TARGET", "--format", "parquet", "--operator", "nosuch"),
}
"""The arguments that name an operator, for each verb that takes one."""


def ended(done: Result, status: int, kind: str) -> str:
    """Return the message of an error, after checking its status and its type."""
    assert (done.status, done.out) == (status, ""), done
    error: dict[str, Any] = json.loads(done.err)["error"]
    assert (error["type"], error["status"]) == (kind, status), error
    return str(error["message"])


@pytest.mark.parametrize("args", [(), ("--to", "0000000001-0c5442af", "--yes"), ("--to", "latest", "--yes")])
def test_a_root_that_is_not_there_is_no_root_to_repair(tmp_path: Path, run: Run, args: tuple[str, ...]) -> None:
    assert "no store at" in ended(run("repair", tmp_path / "none", *args, "--json"), 1, "StoreNotFoundError")
    assert run("repair", tmp_path / "none", *args).status == 1
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_a_root_that_is_not_there_is_the_same_error_for_every_verb(tmp_path: Path, run: Run, verb: str) -> None:
    rest = [word.replace("TARGET", str(tmp_path / "target")) for word in REST.get(verb, ())]
    message = ended(run(verb, tmp_path / "none", *rest, "--json"), 1, "StoreNotFoundError")
    assert message.startswith(f"no store at {tmp_path / 'none'}: there is no such folder")
    assert [*tmp_path.iterdir()] == []


def test_no_verb_that_takes_an_operator_is_forgotten() -> None:
    def takes(verb: click.Command) -> bool:
        return any(parameter.name in ("operator", "operators") for parameter in verb.params)

    assert {verb.name for verb in VERBS if takes(verb)} == {*OPERATOR}


@pytest.mark.parametrize("verb", OPERATOR)
def test_an_operator_that_is_not_there_is_the_same_error_for_every_verb(
    root: Path, tmp_path: Path, run: Run, verb: str
) -> None:
    args = [word.replace("TARGET", str(tmp_path / "target")) for word in OPERATOR[verb]]
    message = ended(run(verb, root, *args, "--json"), 1, "OperatorNotFoundError")
    assert "'nosuch'" in message
    assert "blob, seen" in message
    assert run(verb, root, *args).status == 1
    assert not (tmp_path / "target").exists()


def test_a_partition_that_is_not_there_ends_with_1(root: Path, run: Run) -> None:
    assert "partition 9" in ended(run("cat", root, "seen", "9", "--json"), 1, "NotFoundError")
