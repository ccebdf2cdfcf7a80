"""Each verb with the key of a cleaner: it works, or says that this key does not open what it would read."""

import re
import secrets
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.cli.app import VERBS
from tests.admin.streaming.spark_model import LAST, Query, history
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

STREAMING = (("rewind", "{root}", "epoch=1", "--yes"), ("rewind", "{root}", "--undo", "--yes"))
"""Verbs that work in the root of a streaming query."""

REFUSED = (
    ("cat", "{root}", "seen"),
    ("history", "{root}", "seen", "a"),
    ("diff", "{root}", "0000000001", "latest", "seen"),
    ("export", "{root}", "latest", "{copy}"),
    ("cleaners", "{root}", "--allow", "key-file:{key}"),
    ("cleaners", "{root}", "--remove", "key-file"),
    ("rekey", "{root}", "--new-encryption", "key-file:{key}"),
    ("rekey", "{root}", "--new-encryption", "key-file:{key}", "--rewrite", "--yes"),
    ("encrypt", "{root}", "--yes"),
)

FORK = ("fork", "{root}", "latest", "{copy}", "{copy}-spark")
"""Verbs that are refused in the root of a streaming query."""


def test_every_verb_is_here_and_in_the_table_of_the_page() -> None:
    verbs = {verb.name for verb in VERBS}
    works, refused = ({call[0] for call in calls} for calls in ((*WORKS, *STREAMING), (*REFUSED, FORK)))
    assert works | refused | {"signers"} == verbs
    page = (Path(__file__).parents[2] / "docs" / "encryption.md").read_text("utf-8")
    named = [
        {found[1] for found in re.finditer(r"`([a-z]+)[^`]*`", row) if found[1] in verbs}
        for row in re.findall(r"^\| (?:works|is refused) \|(.*)$", page, re.M)
    ]
    assert named == [works, refused | {"repair"}]  # that lists what there is, and copies nothing


def give_keys(folder: Path) -> tuple[str, str]:
    """Return what opens a root, and what opens its structure; `other.key` opens nothing."""
    for name in ("owner", "cleaner", "other"):
        (folder / f"{name}.key").write_text(secrets.token_hex(32))
    return f"key-file:{folder / 'owner.key'}", f"key-file:{folder / 'cleaner.key'}"


@pytest.mark.parametrize(("calls", "status"), [(WORKS, 0), (REFUSED, 1)])
def test_a_cleaner_is_served_or_refused(
    calls: tuple[tuple[str, ...], ...], status: int, tmp_path: Path, run: Run
) -> None:
    root = tmp_path / "root"
    owner, cleaner = give_keys(tmp_path)
    with Checkpointer(root, encryption=owner) as client:
        write_history(client)
        client.delete_savepoint("good")
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


def test_a_query_is_rewound_and_not_forked(tmp_path: Path, run: Run) -> None:
    history(str(tmp_path / "root"))
    root, query = tmp_path / "root", Query(str(tmp_path / "root"))
    owner, cleaner = give_keys(tmp_path)
    Checkpointer(root).encrypt(owner)
    assert run("cleaners", root, "--encryption", owner, "--allow", cleaner).status == 0
    refused = run(*(word.format(root=root, copy=tmp_path / "copy") for word in FORK), "--encryption", cleaner)
    assert refused.status == 1
    assert "the given key is that of a cleaner, which " in refused.err
    assert not (tmp_path / "copy" / "_latest").exists()
    files = query.files()
    for call, epoch in zip(STREAMING, (1, LAST), strict=True):
        done = run(*(word.format(root=root) for word in call), "--encryption", cleaner)
        assert done.status == 0, done
        restored = Checkpointer(root, encryption=owner).restore()
        assert restored is not None
        assert restored.epoch == epoch
    assert query.files() == files


def test_a_cleaner_says_what_a_repair_could_keep_and_makes_none(tmp_path: Path, run: Run) -> None:
    root, (owner, cleaner) = tmp_path / "root", give_keys(tmp_path)
    with Checkpointer(root, encryption=owner) as client:
        write_history(client)
        client.change_cleaners(allow=[cleaner])
        newest = str(client.list_checkpoints()[-1])
    (root / "_latest").unlink()
    before = sorted(root.rglob("*"))
    assert newest in run("repair", root, "--encryption", cleaner).out
    refused = run("repair", root, "--to", newest, "--yes", "--encryption", cleaner)
    assert refused.status == 1
    assert "the given key is that of a cleaner, which opens no artifact" in refused.err
    assert [path for path in sorted(root.rglob("*")) if path.is_file()] == [path for path in before if path.is_file()]
    assert run("repair", root, "--to", newest, "--yes", "--encryption", owner).status == 0


def test_no_verb_shows_a_cleaner_a_row_of_a_table(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("pyspark")
    from tests.table.plain_store import plain_store, upsert

    root, (owner, cleaner) = tmp_path / "root", give_keys(tmp_path)
    with plain_store(str(root)) as store:
        for number in range(3):
            names = [f"alice-secret-{n}" for n in range(number, 3000, number + 1)]
            store.batch(upsert(partitions=3, k=names, v=[f"value-secret-{number}"] * len(names)))
    Checkpointer(root).encrypt(owner)
    assert run("cleaners", root, "--encryption", owner, "--allow", cleaner).status == 0
    cat, history, diff, *_ = REFUSED
    for call in ((*cat[:2], "t"), (*history[:2], "t", "alice-secret-1"), (*diff[:4], "t"), *WORKS):
        for more in ((), ("--json",)):
            words = [word.format(root=root, copy=tmp_path / "copy") for word in call]
            done = run(*words, *more, "--encryption", cleaner)
            shown = f"{done.out} {done.err}".replace("alice-secret-1\n", "")
            assert not re.search(r"(alice|value)-secret-\d", shown), call
            if call in WORKS and not more:
                assert done.status == 0, (call, done)
            elif call not in WORKS:
                assert "the given key is that of a cleaner" in done.err, (call, done)
    assert not re.search(r"(alice|value)-secret", (tmp_path / "copy.html").read_text("utf-8"))
