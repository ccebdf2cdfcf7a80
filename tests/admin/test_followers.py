"""Named followers: retention keeps what they have yet to read, or says by how much it outran whom."""

import asyncio
import itertools
import random
import re
import shlex
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, CleanupPlan, RetentionPolicy
from pyspark_checkpointer.admin import followers
from pyspark_checkpointer.admin.retention import retire
from pyspark_checkpointer.admin.retention.waiting import PlannedFollower
from pyspark_checkpointer.errors import (
    CorruptionError,
    DependencyError,
    IllegalArgumentError,
    InvalidStateError,
    NotFoundError,
    RetiredError,
    StalePlanError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import run_sync
from tests.world import World, line

NO_GRACE = timedelta(0)


@pytest.fixture
def ck() -> Iterator[Checkpointer]:
    with Checkpointer(f"memory://{uuid.uuid4().hex}") as made:
        yield made


def commit(ck: Checkpointer, count: int = 1) -> list[CheckpointId]:
    for _ in range(count):
        ck.restore()
        with ck.begin() as cp:
            cp.snapshot("t", 0, b"%d" % cp.id.sequence)
    return ck.list_checkpoints()


def register(ck: Checkpointer, name: str, checkpoint: CheckpointId | None) -> None:
    run_sync(followers.register(ck.copy().session, name, "t", checkpoint))


def advance(ck: Checkpointer, name: str, checkpoint: CheckpointId) -> bool:
    return run_sync(followers.advance(ck.copy().session, name, "t", checkpoint))


def newest(count: int = 1, lag: int | None = None) -> RetentionPolicy:
    return RetentionPolicy(keep_last=count, max_follower_lag=lag, grace=NO_GRACE)


def test_retention_keeps_what_a_follower_has_yet_to_read(ck: Checkpointer) -> None:
    ids = commit(ck, 6)
    register(ck, "copy", ids[2])
    plan = ck.plan(newest())
    assert plan.followers == (PlannedFollower("copy", behind=3, keeps=3),)
    assert {c.id: c.reason for c in plan.checkpoints if c.keep} == {
        **dict.fromkeys(ids[2:5], "follower 'copy'"),
        ids[5]: "committed",
    }
    assert "follower 'copy' is 3 checkpoints behind and keeps 3" in repr(plan)
    cleaned = ck.clean(newest())
    assert cleaned.followers == plan.followers
    assert "copy" in str(cleaned)
    assert ck.list_checkpoints() == ids[2:]
    assert advance(ck, "copy", ids[4])
    assert not ck.clean(newest()).followers[0].outrun
    assert ck.list_checkpoints() == ids[4:]
    assert advance(ck, "copy", ids[3])  # It never goes back.
    assert [(f.name, f.operator, f.checkpoint, f.behind) for f in ck.followers()] == [("copy", "t", ids[4], 1)]


def test_one_that_has_read_nothing_keeps_everything(ck: Checkpointer) -> None:
    ids = commit(ck, 3)
    register(ck, "new", None)
    assert ck.clean(newest()).followers == (PlannedFollower("new", behind=3, keeps=2),)
    assert ck.list_checkpoints() == ids
    ck.remove_follower("new")
    assert ck.clean(newest()).followers == ()
    assert ck.list_checkpoints() == ids[2:]
    with pytest.raises(RetiredError, match="the first checkpoint is not live any more"):
        register(ck, "new", None)


def test_a_registration_begins_anew_where_a_checkpoint_is_deleted_meanwhile(world: World) -> None:
    client, other = world.actor(), world.actor()
    ids = line(client, 4)
    oldest = object_paths.manifest(ids[0])
    client.faults.call(lambda _: other.delete_checkpoint(ids[0]), "get", path=oldest)
    run_sync(followers.register(client.session, "copy", "op", ids[2]))
    assert [(one.name, one.checkpoint) for one in other.followers()] == [("copy", ids[2])]
    assert other.list_checkpoints() == ids[1:]


def test_a_policy_may_outrun_a_follower_and_says_by_how_much(
    ck: Checkpointer, caplog: pytest.LogCaptureFixture
) -> None:
    ids = commit(ck, 8)
    register(ck, "slow", ids[1])
    register(ck, "quick", ids[6])
    plan = ck.plan(newest(lag=5))
    assert plan.followers == (PlannedFollower("quick", 1, 1), PlannedFollower("slow", 6, 0, 5))
    assert ck.plan(newest(lag=6)).followers[1] == PlannedFollower("slow", 6, 6)
    assert ck.apply(plan).followers == plan.followers
    assert "follower 'slow' is 6 checkpoints behind and outrun by 5: it has to begin again" in caplog.text
    assert ck.list_checkpoints() == ids[6:]
    assert [(f.name, f.behind) for f in ck.followers()] == [("quick", 1), ("slow", None)]
    assert ck.clean(newest()).followers[1] == PlannedFollower("slow", None)
    assert "follower 'slow' is lost" in caplog.text
    with pytest.raises(RetiredError, match="is not live any more"):
        register(ck, "slow", ids[1])
    register(ck, "slow", ids[7])
    assert ck.followers()[1].behind == 0


def test_a_saved_plan_is_refused_for_a_follower_that_came_since(ck: Checkpointer, tmp_path: Any) -> None:
    ids = commit(ck, 5)
    made = ck.plan(newest())
    made.save(tmp_path / "plan")
    register(ck, "copy", ids[1])
    for plan in (made, CleanupPlan.load(tmp_path / "plan")):
        with pytest.raises(StalePlanError, match=r"follower 'copy' needs now"):
            ck.apply(plan)
    outrunning = ck.plan(newest(lag=0))
    outrunning.save(tmp_path / "plan")
    loaded = CleanupPlan.load(tmp_path / "plan")
    assert loaded.followers == outrunning.followers == (PlannedFollower("copy", 3, 0, 3),)
    ck.apply(loaded)
    assert ck.list_checkpoints() == ids[4:]


def test_what_a_follower_needs_is_not_deleted_by_hand(ck: Checkpointer) -> None:
    ids = commit(ck, 4)
    register(ck, "copy", ids[1])
    with pytest.raises(InvalidStateError, match=r"needed by follower 'copy'.*--remove copy"):
        ck.delete_checkpoint(ids[2])
    ck.delete_checkpoint(ids[0])
    ck.remove_follower("copy")
    ck.delete_checkpoint(ids[2])
    with pytest.raises(NotFoundError, match="no follower 'copy': there are none"):
        ck.remove_follower("copy")
    assert not advance(ck, "copy", ids[3])
    assert ck.followers() == []


def test_a_saved_plan_outruns_only_whom_it_names(ck: Checkpointer) -> None:
    ids = commit(ck, 10)
    register(ck, "slow", ids[1])
    plan = ck.plan(newest(lag=5))
    assert plan.followers == (PlannedFollower("slow", 8, 0, 8),)
    register(ck, "late", ids[6])
    with pytest.raises(StalePlanError, match="follower 'late' needs now"):
        ck.apply(plan)
    ck.remove_follower("late")
    # One that has gone on since would lose less than the plan says, and one that went back would lose more.
    for moved in (ids[5], ids[0], None):
        register(ck, "slow", moved)
        with pytest.raises(StalePlanError, match="follower 'slow' needs now"):
            ck.apply(plan)
    assert ck.list_checkpoints() == ids
    register(ck, "slow", ids[1])
    ck.apply(plan)
    assert ck.list_checkpoints() == ids[9:]


def test_one_that_is_lost_keeps_nobody_from_deleting(ck: Checkpointer) -> None:
    ids = commit(ck, 5)
    register(ck, "new", None)
    ck.clean(RetentionPolicy(keep_last=3, max_follower_lag=1, grace=NO_GRACE))
    assert [f.behind for f in ck.followers()] == [None]
    ck.delete_checkpoint(ids[3])


def test_a_checkpoint_that_only_a_savepoint_keeps_is_no_place_to_begin(ck: Checkpointer) -> None:
    ids = commit(ck, 5)
    ck.savepoint("old", ids[1])
    ck.clean(newest())
    with pytest.raises(RetiredError, match="is not live any more, so what came after it cannot be read"):
        register(ck, "copy", ids[1])
    assert ck.followers() == []


def test_names_are_checked(ck: Checkpointer) -> None:
    (first,) = commit(ck)
    register(ck, "copy", first)
    with pytest.raises(IllegalArgumentError, match="follows 't' already"):
        run_sync(followers.register(ck.session, "copy", "other", first))
    for name in ("", "a/b", ".a"):
        with pytest.raises(IllegalArgumentError, match="follower"):
            register(ck, name, first)


def test_positions_that_nobody_could_read_are_not_written(ck: Checkpointer, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = commit(ck)
    register(ck, "copy", first)
    before = run_sync(ck.session.store.get(object_paths.FOLLOWERS)).data
    monkeypatch.setattr(followers, "MAX_FOLLOWERS", len(before))
    with pytest.raises(
        IllegalArgumentError, match=r"followers.json: would have \d+ bytes, and at most \d+ can be read"
    ):
        register(ck, "other", first)
    assert run_sync(ck.session.store.get(object_paths.FOLLOWERS)).data == before


def test_damage_stops_retention_and_says_what_to_do(ck: Checkpointer) -> None:
    ids = commit(ck, 3)
    register(ck, "copy", ids[0])
    store = ck.session.store
    run_sync(store.delete([object_paths.FOLLOWERS]))
    run_sync(store.put(object_paths.FOLLOWERS, b"{}"))
    with pytest.raises(CorruptionError, match=r"progress/followers.json.*Stop all cleanups; then delete this object"):
        ck.clean(newest())
    assert ck.list_checkpoints() == ids
    ck.clean()  # Without rules nothing is retired, so nobody is asked.


def test_a_sweep_never_takes_the_followers(ck: Checkpointer) -> None:
    ids = commit(ck, 3)
    register(ck, "copy", ids[2])
    ck.clean(newest())
    rows = {row.path: row.action for row in ck.plan(newest())}
    assert rows[object_paths.FOLLOWERS] == "keep"
    assert ck.followers()[0].behind == 0


# ---- the invariant ---------------------------------------------------------------------------------------------------
#
# Once `register` has returned, all from its checkpoint on stay live, whatever retirement was or is under way, until the
# follower has advanced beyond them or is removed. A registration that comes too late raises.


@pytest.mark.parametrize("registered_at", ["read", "planned", "swapped"])
def test_a_retirement_under_way_never_outruns_a_follower_that_registers(
    ck: Checkpointer, registered_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower registers while a retirement has read `_latest`, has planned, or has swapped."""
    ids = commit(ck, 5)
    outcome: list[str] = []

    def now() -> None:
        if not outcome:
            outcome.append("asked")
            try:
                register(ck, "copy", ids[1])
                outcome.append("registered")
            except RetiredError:
                outcome.append("came too late")

    decide, pointer = retire.decide_retention_now, retire.pointer_without

    async def decide_between(*args: Any) -> Any:
        if registered_at == "read":
            await asyncio.to_thread(now)
        return await decide(*args)

    async def pointer_between(*args: Any) -> Any:
        if registered_at == "planned":
            await asyncio.to_thread(now)
        return await pointer(*args)

    monkeypatch.setattr(retire, "decide_retention_now", decide_between)
    monkeypatch.setattr(retire, "pointer_without", pointer_between)
    cleaner = ck.copy()
    cleaned = cleaner.clean(newest())
    now()
    expected = {"read": "registered", "planned": "registered", "swapped": "came too late"}[registered_at]
    assert outcome == ["asked", expected]
    assert ck.list_checkpoints() == (ids[1:] if expected == "registered" else ids[4:])
    assert len(cleaned.retired) == (1 if expected == "registered" else 4)


def test_a_registration_that_died_halfway_is_made_whole_by_the_next(
    ck: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position is there, and a retirement has planned without it: the next start is safe all the same."""
    ids = commit(ck, 5)
    pointer = retire.pointer_without
    touch = followers._touch
    times = itertools.count()

    async def die(*args: Any) -> Any:
        raise DependencyError("as if the process had died")

    def halfway() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(followers, "_touch", die)
            with pytest.raises(DependencyError):
                register(ck, "copy", ids[1])
        assert followers._touch is touch
        register(ck, "copy", ids[1])

    async def between(*args: Any) -> Any:
        if next(times) == 0:
            await asyncio.to_thread(halfway)
        return await pointer(*args)

    monkeypatch.setattr(retire, "pointer_without", between)
    ck.copy().clean(newest())
    assert ck.list_checkpoints() == ids[1:]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_registration_that_comes_too_late_leaves_the_position_as_it_was(
    ck: Checkpointer, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """A cleanup retires the checkpoint between the first look at it and the change of the position."""
    ids = commit(ck, 6)
    if is_known:
        register(ck, "copy", ids[4])
    change, times = followers._change, itertools.count()

    async def after_a_cleanup(*args: Any) -> Any:
        if next(times) == 0:
            await asyncio.to_thread(ck.copy().clean, newest())
        return await change(*args)

    with monkeypatch.context() as patch:
        patch.setattr(followers, "_change", after_a_cleanup)
        with pytest.raises(RetiredError):
            register(ck, "copy", ids[1])
    assert [(one.checkpoint, one.behind) for one in ck.followers()] == ([(ids[4], 1)] if is_known else [])
    ck.clean(newest())
    assert ck.list_checkpoints() == (ids[4:] if is_known else ids[5:])


def test_a_retirement_beside_a_registration_that_is_put_back_outruns_nobody(
    ck: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was planned with the position that came too late, and swaps after that was put back."""
    ids = commit(ck, 6)
    register(ck, "copy", ids[4])
    change, pointer, times = followers._change, retire.pointer_without, itertools.count()
    has_planned, may_swap = threading.Event(), threading.Event()

    def clean() -> None:
        ck.copy().clean(newest())

    async def wait_after_the_plan(*args: Any) -> Any:
        planned = await pointer(*args)
        has_planned.set()
        await asyncio.to_thread(may_swap.wait, 60)
        return planned

    cleaner = threading.Thread(target=clean)

    async def between(*args: Any) -> Any:
        if next(times) == 0:
            await asyncio.to_thread(clean)
        else:  # the position is about to be put back
            monkeypatch.setattr(retire, "pointer_without", wait_after_the_plan)
            cleaner.start()
            await asyncio.to_thread(has_planned.wait, 60)
        return await change(*args)

    monkeypatch.setattr(followers, "_change", between)
    with pytest.raises(RetiredError):
        register(ck, "copy", ids[1])
    may_swap.set()
    cleaner.join(60)
    assert ck.list_checkpoints() == ids[4:]


def test_random_histories_never_outrun_a_registered_follower() -> None:
    """Commits, cleanups, registrations, steps, removals, against what each follower was promised."""
    for seed in range(20):
        draw = random.Random(seed)
        ck = Checkpointer(f"memory://{uuid.uuid4().hex}")
        made = commit(ck, 2)
        promised: dict[str, CheckpointId] = {}
        for _ in range(40):
            match draw.randrange(5):
                case 0 | 1:
                    made += commit(ck)[-1:]
                case 2:
                    name, at = draw.choice("abc"), draw.choice(made[-6:])
                    try:
                        register(ck, name, at)
                        promised[name] = at
                    except RetiredError:
                        assert at not in ck.list_checkpoints()
                case 3 if promised:
                    name = draw.choice(sorted(promised))
                    if draw.random() < 0.2:
                        ck.remove_follower(name)
                        del promised[name]
                    else:
                        to = draw.choice([id_ for id_ in made if id_ >= promised[name]])
                        advance(ck, name, to)
                        promised[name] = to
                case 4:
                    cleaned = ck.clean(newest(draw.choice([1, 2])))
                    assert not any(f.outrun for f in cleaned.followers)
            live = ck.list_checkpoints()
            for name, since in promised.items():
                assert [id_ for id_ in made if id_ >= since] == [id_ for id_ in live if id_ >= since], (seed, name)
        if promised:
            slowest = min(promised.values())
            ck.clean(newest())
            assert ck.list_checkpoints()[0] >= min(slowest, made[-1])


def test_commands_in_messages_quote_names(tmp_path: Path) -> None:
    client = Checkpointer(tmp_path / "root")
    for epoch in range(2):
        client.begin(epoch=epoch).commit()
    first, name = client.list_checkpoints()[0], "a  copy of $HOME"
    run_sync(followers.register(client.session, name, "totals", first))
    with pytest.raises(IllegalArgumentError) as caught:
        run_sync(followers.register(client.session, name, "others", first))
    command = re.findall(r"`(checkpointer [^`]*)`", str(caught.value))[0]
    assert shlex.split(command) == ["checkpointer", "followers", "ROOT", "--remove", name]
    with pytest.raises(InvalidStateError) as refused:
        client.delete_checkpoint(first)
    command = re.findall(r"`(checkpointer [^`]*)`", str(refused.value))[0]
    assert shlex.split(command)[-1] == name
