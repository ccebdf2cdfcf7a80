"""Taking a query back and copying it, wherever either is interrupted: by a model of what Spark does with its files.

The state is what the query has read: up to the offset of its last batch. So a start is right where the state and the
offsets that Spark would go on from are equal, whatever happened before.
"""

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpointer import AsyncCheckpointer, Checkpointer, objects
from checkpointer.errors import (
    CheckpointError,
    IllegalArgumentError,
    InvalidStateError,
    NotFoundError,
)
from checkpointer.query import log_plan, rewind
from checkpointer.query.spark_log import open_log, read_log
from checkpointer.runtime import run_sync
from checkpointer.testing import crash_points
from manifests.model import Job
from tests.core.spark_model import LAST, METADATA, QUERY, Query, Setup, history
from tests.servers import Server

TO = 1


def copied(setup: Setup, template: Path) -> Setup:
    """The same, made once, and copied for each root."""

    def copy(root: str) -> None:
        if not template.exists():
            setup(str(template))
        shutil.copytree(template, root)
        shutil.copytree(f"{template}-spark", f"{root}-spark")

    return copy


@pytest.fixture
def new_root(tmp_path: Path) -> Callable[[], str]:
    made: list[Path] = []

    def make() -> str:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        made.append(tmp_path / str(len(made)))
        return str(made[-1] / "root")

    return make


def go_back(root: str) -> None:
    with Checkpointer(root) as ck:
        ck.rewind(f"{root}-spark", to=TO)


def undo(root: str) -> None:
    with Checkpointer(root) as ck:
        ck.undo_rewind(f"{root}-spark")


def rewound_history(root: str) -> None:
    history(root)
    go_back(root)
    for _ in range(2):
        Query(root).run(step=7)


@pytest.mark.parametrize(
    ("work", "setup", "old", "new"),
    [(go_back, history, LAST, TO), (undo, rewound_history, TO + 2, LAST)],
    ids=["rewind", "undo"],
)
def test_wherever_a_rewind_stops_a_start_is_right_or_refused_and_a_second_call_finishes(
    new_root: Callable[[], str], tmp_path: Path, work: Setup, setup: Setup, old: int, new: int
) -> None:
    template = tmp_path / "template"
    points = refused = 0
    for point in crash_points(work, new_root, copied(setup, template)):
        points += 1
        query, aside = Query(point.root), Query(f"{point.root}-aside", f"{point.root}-aside-spark")
        shutil.copytree(query.root, aside.root)
        shutil.copytree(query.spark, aside.spark)
        kept = {path.read_text() for path in query.spark.rglob("*") if path.is_file()}
        assert set(Query(str(template)).files().values()) <= kept, "nothing is destroyed"
        batch = aside.run()  # checks that what it read is what the state has
        refused += batch is None
        goes_on = new + 1 if work is go_back else LAST  # which Spark had not finished, and repeats
        assert batch in (None, old, old + 1, goes_on), point
        work_again(work, query)
        restored = Checkpointer(query.root).restore()
        assert restored is not None
        assert restored.epoch == new
        assert [query.run(), query.run()] == [goes_on, goes_on + 1]
        if batch is None:  # what somebody tried to start meanwhile is no obstacle
            work_again(work, aside)
            assert aside.run() == goes_on
    assert points > 20
    assert refused > 5


def work_again(work: Setup, query: Query) -> None:
    with Checkpointer(query.root) as ck:
        if work is go_back:
            ck.rewind(query.spark, to=TO)
        elif ck.undo_rewind(query.spark, dry_run=True).batch == LAST:  # otherwise it is done, and would be undone
            ck.undo_rewind(query.spark)


def forked(root: str) -> None:
    with Checkpointer(root) as ck:
        ck.fork(TO, f"{root}-copy", f"{root}-copy-spark", spark_checkpoint=f"{root}-spark")


def test_wherever_a_fork_stops_a_second_call_finishes_it(new_root: Callable[[], str], tmp_path: Path) -> None:
    for point in crash_points(forked, new_root, copied(history, tmp_path / "template")):
        query, copy = Query(point.root), Query(f"{point.root}-copy")
        before = query.files(), query.read
        forked(point.root) if not whole(copy) else None
        assert (query.files(), query.read) == before
        assert copy.read == (TO + 1) * 10
        ids = [json.loads((each.spark / "metadata").read_text())["id"] for each in (query, copy)]
        assert ids[0] != ids[1]
        assert [copy.run(step=3) for _ in range(2)] == [TO + 1, TO + 2]
        assert [query.run() for _ in range(2)] == [LAST, LAST + 1]
        assert (copy.read, query.read) == ((TO + 1) * 10 + 6, (LAST + 2) * 10)


def whole(copy: Query) -> bool:
    return (copy.spark / "commits" / str(TO)).exists()


def test_a_fork_that_is_started_too_soon_is_refused(new_root: Callable[[], str], tmp_path: Path) -> None:
    for point in crash_points(forked, new_root, copied(history, tmp_path / "template")):
        copy = Query(f"{point.root}-copy")
        if whole(copy) or not (copy.spark / "metadata").exists():
            continue
        try:
            assert copy.run() in (None, TO), "refused, or it repeats what it has"
        except FileNotFoundError:  # Spark's own refusal: the offsets of the batch before are missing
            continue


@pytest.fixture
def query(tmp_path: Path) -> Query:
    history(str(tmp_path / "root"))
    return Query(str(tmp_path / "root"))


def test_a_rewind_keeps_what_it_leaves_as_a_savepoint(query: Query) -> None:
    client = Checkpointer(query.root)
    left = client.read_latest()
    done = client.rewind(to=TO)
    assert [(s.name, s.id) for s in client.savepoints()] == [(done.savepoint, left)]
    assert (done.left, done.new) == (left, client.read_latest())
    again = client.rewind(to=TO)
    assert not again.changes
    assert len(client.savepoints()) == 1


def test_each_way_to_name_a_checkpoint(query: Query) -> None:
    ids = Checkpointer(query.root).list_checkpoints()
    Checkpointer(query.root).savepoint("good", ids[TO])
    manifest = Checkpointer(query.root).load_manifest(ids[TO])
    for to in (TO, ids[TO], str(ids[TO]), "good", f"epoch={TO}", f"at={manifest.created.isoformat()}"):  # type: ignore[union-attr]
        assert Checkpointer(query.root).rewind(to=to, dry_run=True).to == ids[TO]
    for to, error in ((99, NotFoundError), ("bad", NotFoundError), ("at=noon", IllegalArgumentError)):
        with pytest.raises(error):
            Checkpointer(query.root).rewind(to=to)
    with pytest.raises(NotFoundError, match="the oldest is of"):
        Checkpointer(query.root).rewind(to="at=2001-01-01")
    with pytest.raises(IllegalArgumentError):
        Checkpointer(query.root).rewind(to=True)


def test_a_job_that_commits_meanwhile_stops_the_rewind(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    before = query.files()

    async def commits_first(*args: object) -> None:
        await original(*args)  # type: ignore[arg-type]
        other = AsyncCheckpointer(query.root)
        await other.restore()
        async with other.begin(epoch=99):
            pass

    original = rewind.write_record
    monkeypatch.setattr(rewind, "write_record", commits_first)
    with pytest.raises(CheckpointError, match="stop it first"):
        Checkpointer(query.root).rewind(to=TO)
    assert query.files() == before
    assert Checkpointer(query.root).savepoints() == []
    restored = Checkpointer(query.root).restore()
    assert restored is not None
    assert restored.epoch == 99


def test_spark_that_plans_a_batch_meanwhile_is_cut_too(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    original = log_plan.apply

    async def plans_first(*args: object) -> None:
        monkeypatch.setattr(rewind, "apply", original)
        await original(*args)  # type: ignore[arg-type]
        query.write("offsets/9", f'v1\n{METADATA}\n{{"at":1000}}')

    monkeypatch.setattr(rewind, "apply", plans_first)
    Checkpointer(query.root).rewind(to=TO)
    assert query.numbers("offsets") == [*range(TO + 2)]
    assert query.run() == TO + 1


def test_a_checkpoint_without_sparks_offsets_needs_those_of_spark(query: Query) -> None:
    with Checkpointer(query.root) as ck:
        restored = ck.restore()
        assert restored is not None
        with ck._begin(LAST + 1, Job(QUERY, "run", LAST + 1)) as cp:
            cp.save("sum", restored.keyed("sum"))
    with pytest.raises(IllegalArgumentError, match="give spark_checkpoint"):
        Checkpointer(query.root).rewind(to="latest")
    with pytest.raises(InvalidStateError, match="did not record them"):
        Checkpointer(query.root).rewind(query.spark, to="latest", stopped=True)


def test_a_state_that_no_query_wrote_is_refused(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "root") as ck:
        with ck.begin(epoch=0):
            pass
        with pytest.raises(InvalidStateError, match="was not written by a streaming query"):
            ck.rewind(tmp_path, to="latest")
        with pytest.raises(InvalidStateError, match="was not written by a streaming query"):
            ck.fork("latest", tmp_path / "copy", tmp_path / "copy-spark")
    with pytest.raises(NotFoundError, match="no checkpoint"):
        Checkpointer(tmp_path / "none").rewind(tmp_path, to="latest")


@pytest.mark.parametrize("path", ["offsets/3", "offsets/2", "metadata", "rewound/0001/record.json"])
@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"v1", b"[]", b"{" * 100_000])
def test_damage_in_sparks_files_is_named_and_changes_nothing(query: Query, path: str, damage: bytes) -> None:
    latest = Checkpointer(query.root).read_latest()
    target = query.spark / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(damage)
    with pytest.raises(CheckpointError) as caught:
        Checkpointer(query.root).rewind(to=3)
    assert str(target) in str(caught.value) or "metadata" in str(caught.value)
    assert Checkpointer(query.root).read_latest() == latest


def test_the_awaitable_face_does_the_same(query: Query, tmp_path: Path) -> None:
    import asyncio

    async def both() -> None:
        ck = AsyncCheckpointer(query.root)
        made = await ck.fork("latest", tmp_path / "copy", tmp_path / "copy-spark")
        assert made.batch == LAST
        done = await ck.rewind(to=TO)
        assert done.batch == TO
        assert (await ck.undo_rewind()).batch == LAST
        await ck.close()

    asyncio.run(both())
    assert query.run() == LAST


def test_a_query_moves_from_one_store_to_another(
    query: Query, tmp_path: Path, s3_server: Server, azure_server: Server
) -> None:
    """Each copy is made of the one before, and the last one goes on where the first one was."""
    ck, read = Checkpointer(query.root), query.read
    for server in (s3_server, azure_server):
        place = f"{server.url}/{uuid.uuid4().hex}"
        made = ck.fork("latest", f"{place}/state", f"{place}/spark", server.storage_options)
        assert made.spark_checkpoint == f"{place}/spark"
        ck = Checkpointer(f"{place}/state", server.storage_options)
        assert ck.verify()
        done = ck.rewind(to="latest")
        assert not done.changes
    moved = Query(str(tmp_path / "moved"))
    ck.fork("latest", moved.root, moved.spark)
    assert moved.read == read
    assert moved.run() == LAST + 1
    other = open_log(f"{place}/spark", azure_server.storage_options)
    run_sync(objects.put(other, "offsets/9", b"v1\n{}\n1"))
    ck.rewind(to="latest")
    assert ck.rewind(to="latest").cut == ()
    assert run_sync(read_log(other)).offsets == (LAST - 1, LAST)
