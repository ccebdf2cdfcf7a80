"""`checkpointer signers`: a root that holds something is signed only with a yes: only an export leads back."""

import secrets
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from tests.cli.conftest import Run, write_history
from tests.signing_keys import make_keys


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "owner.pem", tmp_path / "driver.pem")
    (tmp_path / "state.key").write_text(secrets.token_hex(32))
    return tmp_path


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_root_that_holds_something_is_signed_only_with_a_yes(keys: Path, run: Run, encrypted: bool) -> None:
    root = keys / "root"
    opens = ("--encryption", f"key-file:{keys}/state.key") if encrypted else ()
    with Checkpointer(root, encryption=opens[1] if opens else None) as ck:
        write_history(ck)
    change = ("signers", root, "--owner", keys / "owner.pem", "--allow", f"{keys}/driver.pub=commit", *opens)
    before = files(root)
    refused = run(*change)
    assert (refused.status, refused.out) == (2, "")
    assert "--yes" in refused.err
    assert files(root) == before
    assert run(*change, "--yes", "--json").json["version"] == 2  # the list, and the list without its mark
    signed = ("--signing", f"trust:{keys}/owner.pub")
    assert run("list", root, *signed, *opens).status == 0
    # What there is to lose is lost: later changes ask nothing, whether the command trusts somebody or not.
    revoke = ("signers", root, "--owner", keys / "owner.pem", "--revoke", "driver", *opens)
    assert run(*revoke).status == 0
    assert run(*change, *signed).status == 0


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_new_root_is_signed_without_a_question(keys: Path, run: Run, encrypted: bool) -> None:
    opens = ("--encryption", f"key-file:{keys}/state.key") if encrypted else ()
    done = run("signers", keys / "new", "--owner", keys / "owner.pem", *opens, "--json")
    assert done.json["version"] == 1
