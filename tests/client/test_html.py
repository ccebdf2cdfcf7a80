"""What notebooks show: tables, in which everything is escaped; or why there is none, never an exception."""

import asyncio
import pickle
from pathlib import Path

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, RetentionPolicy
from pyspark_checkpointer.client import html
from pyspark_checkpointer.client.html import manifest_html
from pyspark_checkpointer.compaction import INLINE
from pyspark_checkpointer.errors import CheckpointError
from tests.world import World, line, put

HOSTILE = "<script>alert(1)<"


def test_a_checkpointer_shows_its_newest_checkpoints(world: World) -> None:
    with world.actor() as ck:
        ids = line(ck, 22)
        ck.savepoint(HOSTILE)
        shown = ck._repr_html_()
    assert shown.count("<tr>") == 21
    assert str(ids[-1]) in shown
    assert str(ids[2]) in shown
    assert str(ids[1]) not in shown
    assert shown.index(str(ids[-1])) < shown.index(str(ids[-2]))
    assert "the newest 20 of 22 checkpoints" in shown
    assert "&lt;script&gt;alert(1)&lt;" in shown
    assert HOSTILE not in shown


def test_an_empty_root_and_damage_are_told(folder: World) -> None:
    ck = folder.actor()
    assert "nothing is committed yet" in ck._repr_html_()
    line(ck, 2)
    newest = max(folder.objects("manifests/"))
    folder.delete(newest)
    assert newest in ck._repr_html_()
    assert "CorruptionError" in ck._repr_html_()
    path = Path(folder.store.url) / "_latest"
    path.write_text("<b>")
    assert "<b>" not in ck._repr_html_()


def test_a_store_that_does_not_answer_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "SECONDS", 0.01)

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(html, "read_listing", never)
    assert "did not answer" in world.actor()._repr_html_()


def test_showing_changes_nothing(world: World) -> None:
    with world.actor() as ck, world.actor() as other:
        put(ck, b"1")
        restored = ck.restore()
        put(other, b"2")
        before = world.latest()
        ck._repr_html_()
        assert world.latest() == before
        with pytest.raises(CheckpointError):  # it still stands on what it restored
            put(ck, b"3")
    assert restored is not None


def test_what_became_of_a_background_commit_is_left_for_the_next_call(world: World) -> None:
    ck = world.actor(retries=False)
    put(ck, b"1")
    ck.faults.fail("put", path="manifests/")
    with ck.begin(background=True) as cp:
        cp.snapshot("op", 0, b"2")
    assert "0000000001" in ck._repr_html_()
    with pytest.raises(CheckpointError):
        ck.close()


def test_an_asynchronous_one_reads_nothing() -> None:
    ck = AsyncCheckpointer("memory://<b>")

    async def show() -> str:
        return ck._repr_html_()

    assert "await list_checkpoints()" in asyncio.run(show())
    assert "<b>" not in ck._repr_html_()


def test_a_manifest_shows_its_operators(world: World) -> None:
    with world.actor() as ck:
        with ck.begin(epoch=7) as cp:
            cp.snapshot(HOSTILE, 0, b"x" * 2048)
            for partition in range(INLINE + 1):
                cp.snapshot("many", partition, b"y")
        with ck.begin(epoch=8) as cp:
            cp.delta(HOSTILE, 0, b"z" * 10)
        restored = ck.restore()
        assert restored is not None
        assert restored.manifest is not None
        shown = manifest_html(restored.manifest)
        assert shown == manifest_html(pickle.loads(pickle.dumps(restored.manifest)))
        assert f"Checkpoint {restored.id}, epoch 8" in shown
        assert "&lt;script&gt;alert(1)&lt;" in shown
        assert HOSTILE not in shown
        assert "2.0 KiB</td><td>10 B" in shown
        assert f">{INLINE + 1}<" in shown


def test_a_plan_shows_sums_and_what_it_retires(world: World) -> None:
    with world.actor() as ck:
        ids = line(ck, 25)
        ck.savepoint(HOSTILE, ids[3])
        plan = ck.plan(RetentionPolicy(keep_last=1))
        shown = plan._repr_html_()
        assert "23 checkpoints retired, the first 20" in shown
        assert str(ids[0]) in shown
        assert str(ids[23]) not in shown
        assert "retired by this plan" in shown
        assert HOSTILE not in shown
        assert "&lt;script&gt;" in shown
        empty = Checkpointer("memory://nothing-here").plan()
    assert "there is no _latest" in empty._repr_html_()
