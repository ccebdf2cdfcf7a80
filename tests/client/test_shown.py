"""What public verbs return shows itself in few words: no memory addresses, no secrets, and never without an end."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.admin.candidate import Candidate
from pyspark_checkpointer.admin.retention.garbage_collect import Cleaned
from pyspark_checkpointer.admin.retention.spool import Total
from pyspark_checkpointer.admin.streaming.fork import Fork
from pyspark_checkpointer.checkpoint.verification import Finding, Verification
from pyspark_checkpointer.manifests.model import CheckpointId
from tests.admin.streaming.spark_model import Query, history
from tests.damage import flip
from tests.world import World, line

HOSTILE = "<script>alert(1)<"
SECRET = "s3cr3t-0123456789"
MANY = 3000


def known(number: int) -> CheckpointId:
    return CheckpointId(number, f"{number:08x}")


FINDING = Finding(
    "artifacts/x", f"artifacts/x: {HOSTILE}\x1b[2J\nexpected {'y' * MANY}", (known(1), known(2)), True, True
)


def things(folder: Path) -> Iterator[object]:
    """One of everything, most of them with more in it than can be shown."""
    options = {"anything": SECRET}
    ck = Checkpointer(f"memory://shown-{folder.name}", options)
    with ck.begin(epoch=1) as cp:
        yield cp
        for number in range(MANY // 10):
            cp.snapshot(f"op-{number:05d}-{HOSTILE.replace('/', '')}", 0, b"x")
        for number in range(MANY // 10):
            cp.snapshot("many", number, b"x")
        cp.save("seen", KeyedState({"a": 1}))
        cp.properties["password"] = SECRET
        cp.positions["topic"] = {"password": SECRET}
    for number in range(50):
        ck.savepoint(f"{HOSTILE}{number}")
    with ck.begin(epoch=2) as cp:
        cp.snapshot("many", 0, b"y")
    draft = ck.begin(epoch=3)
    draft.snapshot("many", 1, b"z")
    yield draft.prepare()
    restored = ck.restore()
    assert restored is not None
    yield from (ck, restored, restored.operator("many"), restored.keyed("seen"), restored.prepared)
    yield from (ck.savepoints(), ck.savepoints()[0], ck.verify(), ck.repair_candidates(), ck.repair_candidates()[0])
    assert restored.prepared is not None
    restored.prepared.abort()
    policy = RetentionPolicy(keep_last=1)
    yield from (ck.plan(policy), ck.clean(policy), policy)
    yield Checkpointer("memory://nothing").plan()
    yield Verification(3, 7, 12345, 2, (FINDING,) * MANY)
    yield FINDING
    yield Cleaned(tuple(map(known, range(1, MANY))), Total(7, 1), Total(0, 0), HOSTILE * MANY)
    yield Candidate(known(7), (f"{HOSTILE}{'z' * MANY}",) * MANY, savepoints=("s" * 60,) * MANY, batch_done=False)
    yield Fork(f"/{HOSTILE}" * MANY, "/spark" * MANY, "query", known(1), 7)

    async def shown() -> list[object]:
        async with AsyncCheckpointer(f"memory://async-{folder.name}", options) as client:
            begun = client.begin(epoch=1)
            found: list[object] = [client, begun]
            async with begun as cp:
                await cp.snapshot("op", 0, b"1")
            again = await client.restore()
            assert again is not None
            return [*found, cp, again, again.operator("op"), await client.savepoints()]

    yield from asyncio.run(shown())
    history(str(folder / "root"))
    query = Query(str(folder / "root"))
    with Checkpointer(query.root) as local:
        yield local.rewind(to="epoch=1", dry_run=True)
        yield local.rewind(to="epoch=1")
        yield local.rewind(to="epoch=1")


def test_everything_that_is_returned_is_shown_in_few_words(tmp_path: Path) -> None:
    seen = set()
    for thing in things(tmp_path):
        name = type(thing).__name__
        seen.add(name)
        shown = repr(thing)
        if isinstance(thing, list):
            assert all(len(repr(member)) < 1500 for member in thing)
        else:
            assert len(shown) < 2500, name
            assert shown.startswith(name), shown
        assert len(shown.splitlines()) <= 8, name
        assert not re.search("0x[0-9a-f]{6}|object at|Mapping|dataclass", shown), shown
        assert SECRET not in shown
        assert "\x1b" not in shown
    assert seen >= {
        "Restored",
        "AsyncRestored",
        "Savepoints",
        "Candidates",
        "Verification",
        "Cleaned",
        "Rewind",
        "CleanupPlan",
    }


def test_a_notebook_gets_tables_in_which_everything_is_escaped(tmp_path: Path) -> None:
    plain = {"Checkpoint", "Prepared", "AsyncCheckpoint", "RetentionPolicy", "KeyedState", "Finding"}
    for thing in things(tmp_path):
        name = type(thing).__name__
        html = getattr(thing, "_repr_html_", None)
        if html is None:
            assert name in plain
            continue
        shown = html()
        assert shown.startswith(("<table>", "<p>")), name
        assert HOSTILE not in shown, name
        assert SECRET not in shown, name
        assert len(shown) < 200_000, name


def test_what_each_says(world: World) -> None:
    with world.actor() as ck:
        ids = line(ck, 3)
        ck.savepoint("third", ids[2])
        restored = ck.restore()
        assert repr(restored) == f"Restored({ids[2]}, epoch None, op)"
        assert re.fullmatch(rf"Savepoint\('third', {ids[2]}, 20\d\d-.*Z\)", repr(ck.savepoints()[0]))
        assert re.fullmatch(
            r"Verification\(3 checkpoints, \d+ objects with .* compared: all is well\)", repr(ck.verify())
        )
        assert "3 checkpoints retired" not in repr(ck.clean(RetentionPolicy(keep_last=1)))
        assert repr(ck.plan()).startswith(f"CleanupPlan({ck.root!r}: retire 0 of 1 checkpoint, delete 0 objects")
        assert "; whole)" in repr(ck.repair_candidates()[0])


def test_damage_is_shown_with_what_it_hurts(folder: World) -> None:
    ck = folder.actor()
    ids = line(ck, 2)
    flip(max(Path(folder.store.url).glob("artifacts/op/*/*")))
    shown = repr(ck.verify())
    assert "1 finding" in shown
    assert f"hurts {ids[1]})" in shown
    assert str(ids[1]) in ck.verify()._repr_html_()


@pytest.mark.parametrize("number", [0, 1, 5, 6])
def test_a_verification_ends(number: int) -> None:
    shown = repr(Verification(1, 1, 1, 0, (FINDING,) * number))
    assert shown.count("Finding(missing") == min(number, 5)
    assert ("and 1 more finding" in shown) == (number == 6)
