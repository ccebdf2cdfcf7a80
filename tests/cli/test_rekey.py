"""`checkpointer rekey` gives a root another key, and with --rewrite another data key; saved plans have it too."""

from pathlib import Path

from pyspark_checkpointer import Checkpointer
from tests.cli.conftest import Run, write_history
from tests.key_files import make_key
from tests.signing_keys import make_keys


def test_rekey_says_what_was_done(tmp_path: Path, run: Run) -> None:
    root, (old, new) = tmp_path / "root", (make_key(tmp_path / f"{name}.key") for name in ("old", "new"))
    write_history(Checkpointer(root, encryption=old))
    given = ("rekey", root, "--encryption", old, "--new-encryption", new)
    assert run(*given, "--rewrite").status == 2, "there is no terminal to ask on"
    assert run("list", root, "--encryption", old).status == 0
    done = run(*given, "--rewrite", "--yes")
    assert (done.status, done.err) == (0, "")
    first, second = done.out.splitlines()
    assert first == f"{root} is opened by the new key, and by no other"
    assert second.endswith(" deleted")
    assert " encrypted anew, " in second
    refused = run("list", root, "--encryption", old)
    assert refused.status == 1
    assert "its keys are opened by" in refused.err
    # The same command again, as after an interruption: the old key opens nothing, and there is nothing left to do.
    again = run(*given, "--rewrite", "--yes", "--json").json
    assert again == {"root": str(root), "objects": 0, "bytes": 0, "deleted": 0}
    wrapped = run("rekey", root, "--encryption", new, "--new-encryption", old, "--json").json
    assert wrapped == {"root": str(root), "objects": None, "bytes": None, "deleted": None}
    missing = run("rekey", tmp_path / "mistyped", "--encryption", old, "--new-encryption", new, "--rewrite", "--yes")
    assert missing.status == 1
    assert "is not encrypted, or has lost its _keys" in missing.err
    assert not (tmp_path / "mistyped").exists()


def test_a_signed_root_is_encrypted_and_rekeyed(tmp_path: Path, run: Run) -> None:
    root, (old, new) = tmp_path / "root", (make_key(tmp_path / f"{name}.key") for name in ("old", "new"))
    make_keys(tmp_path / "owner.pem")
    signing = f"trust:{tmp_path / 'owner.pub'},sign:{tmp_path / 'owner.pem'}"
    write_history(Checkpointer(root, signing=signing))
    refused = run("encrypt", root, "--encryption", old, "--yes")
    assert (refused.status, "is signed: say what it is signed with" in refused.err) == (1, True)
    assert run("encrypt", root, "--encryption", old, "--signing", signing, "--yes").err == ""
    anew = ("rekey", root, "--encryption", old, "--new-encryption", new, "--rewrite", "--yes")
    assert "is signed: say what it is signed with" in run(*anew).err
    assert run(*anew, "--signing", signing).err == ""
    trust = f"trust:{tmp_path / 'owner.pub'}"
    assert run("verify", root, "--encryption", new, "--signing", trust).status == 0


def test_a_saved_plan_of_an_encrypted_root_is_run(tmp_path: Path, run: Run) -> None:
    root, key, file = tmp_path / "root", make_key(tmp_path / "state.key"), tmp_path / "cleanup.plan"
    with Checkpointer(root, encryption=key) as client:
        write_history(client)
        run("plan", root, "--keep-last", "1", "-o", file, "--encryption", key)
        assert file.read_bytes().startswith(b"checkpointer-encrypted-1\n")
        # Of another root: neither its keys nor a client without keys reads it.
        plain = tmp_path / "plain"
        write_history(Checkpointer(plain))
        refused = run("clean", plain, "--plan", file, "--yes")
        assert refused.status == 2
        assert "is encrypted with the keys of its root: load it" in refused.err
        assert run("clean", root, "--plan", file, "--yes", "--encryption", key).status == 0
    assert len(Checkpointer(root, encryption=key).list_checkpoints()) == 2  # one is a savepoint
