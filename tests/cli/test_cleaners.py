"""Each verb with the key of a cleaner: it works, or says that this key does not open what it would read."""

import re
import secrets
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.cli.app import VERBS
from tests.cli.conftest import Run, write_history

WORKS = (
    ("list", "{root}"),
    ("show", "{root}", "latest"),
    ("tree", "{root}"),
    ("diff", "{root}", "0000000001", "latest"),
    ("stats", "{root}"),
    ("cost", "{root}", "--every", "30s"),
    ("consumers", "{root}"),
    ("verify", "{root}"),
    ("report", "{root}", "-o", "{copy}.html"),
    ("doctor", "{root}", "--rounds", "2"),
    ("savepoint", "{root}", "kept"),
    ("followers", "{root}"),
    ("plan", "{root}", "--keep-last", "1"),
    ("rollback", "{root}", "0000000002", "--yes"),
    ("delete", "{root}", "0000000001", "--yes"),
    ("clean", "{root}", "--keep-last", "1", "--yes"),
    ("repair", "{root}"),
    ("cleaners", "{root}"),
)

REFUSED = (
    ("cat", "{root}", "seen"),
    ("history", "{root}", "seen", "a"),
    ("diff", "{root}", "0000000001", "latest", "seen"),
    ("export", "{root}", "latest", "{copy}"),
    ("cleaners", "{root}", "--allow", "key-file:{key}"),
    ("rekey", "{root}", "--new-encryption", "key-file:{key}"),
    ("rekey", "{root}", "--new-encryption", "key-file:{key}", "--rewrite", "--yes"),
    ("encrypt", "{root}", "--yes"),
)

OTHERS = {"rewind", "fork", "signers"}
"""Verbs for the root of a streaming query, and for signatures."""


def test_every_verb_is_here_and_in_the_table_of_the_page() -> None:
    verbs = {verb.name for verb in VERBS}
    works, refused = ({call[0] for call in calls} for calls in (WORKS, REFUSED))
    assert works | refused | OTHERS == verbs
    page = (Path(__file__).parents[2] / "docs" / "encryption.md").read_text("utf-8")
    named = [
        {found[1] for found in re.finditer(r"`([a-z]+)[^`]*`", row) if found[1] in verbs}
        for row in re.findall(r"^\| (?:works|is refused) \|(.*)$", page, re.M)
    ]
    assert named == [works, refused | {"rewind", "fork"}]


@pytest.mark.parametrize(("calls", "status"), [(WORKS, 0), (REFUSED, 1)])
def test_a_cleaner_is_served_or_refused(
    calls: tuple[tuple[str, ...], ...], status: int, tmp_path: Path, run: Run
) -> None:
    root = tmp_path / "root"
    for name in ("owner", "cleaner", "other"):
        (tmp_path / f"{name}.key").write_text(secrets.token_hex(32))
    with Checkpointer(root, encryption=f"key-file:{tmp_path / 'owner.key'}") as client:
        write_history(client)
        client.delete_savepoint("good")
    owner, cleaner = (f"key-file:{tmp_path / f'{name}.key'}" for name in ("owner", "cleaner"))
    said = run("cleaners", root, "--encryption", owner, "--allow", cleaner)
    assert [line.split()[:2] for line in said.out.splitlines()[2:]] == [["all", "key-file"], ["structure", "key-file"]]
    for call in calls:
        words = [word.format(root=root, copy=tmp_path / "copy", key=tmp_path / "other.key") for word in call]
        done = run(*words, "--encryption", cleaner)
        assert done.status == status, (call, done)
        if status:
            assert "the given key is that of a cleaner, which " in done.err, call
            assert not (tmp_path / "copy" / "_latest").exists()
        if call[0] == "verify":
            assert "checked as stored: a cleaner's key does not open them" in done.out
