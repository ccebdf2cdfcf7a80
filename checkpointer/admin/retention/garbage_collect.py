"""Clean up a store: plan, then retire checkpoints and sweep garbage.

Nothing that is or may become live is deleted, whatever other clients do meanwhile. Garbage at or below the committed
sequence stays garbage, so a plan does not become stale with time. A plan is refused only if it would retire or delete
something that is needed now. `apply_plan` checks that again on the present version of `_latest`.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_checkpointer.admin.followers import read_positions
from pyspark_checkpointer.admin.retention.classifier import GarbageClassifier, PlanRow
from pyspark_checkpointer.admin.retention.plan import CleanupPlan, PlannedCheckpoint, read_plan
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.retention.reachability import DELETE, LATER, index_live
from pyspark_checkpointer.admin.retention.retire import (
    LiveCheckpoints,
    RetentionDecision,
    decide_retention,
    decide_retention_now,
    find_protected,
    retire,
    retire_chosen,
    warn_of,
)
from pyspark_checkpointer.admin.retention.spool import Spool, Total
from pyspark_checkpointer.admin.retention.sweep import delete_rows
from pyspark_checkpointer.admin.retention.waiting import PlannedFollower, find_waiting, without_outrun
from pyspark_checkpointer.checkpoint.latest import Head, read_consistent
from pyspark_checkpointer.checkpoint.old_copy import refuse_old_copy
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.display import count, cut, note, size, some, table
from pyspark_checkpointer.errors import IllegalArgumentError, StalePlanError, StoreRefusedError
from pyspark_checkpointer.manifests.model import CheckpointId, Ref
from pyspark_checkpointer.runtime.host import Progress
from pyspark_checkpointer.storage import find_keys
from pyspark_checkpointer.storage.base import pages


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of a cleanup."""

    retired: tuple[CheckpointId, ...]
    """The ids of the checkpoints that were retired."""
    deleted: Total
    """Objects that the store was asked to delete; some may have been gone."""
    later: Total
    """Objects that are deleted once the grace period for readers is over."""
    note: str | None = None
    """Why nothing was retired although the policy would retire some, or None."""
    followers: tuple[PlannedFollower, ...] = ()
    """The named followers of tables, with what stays for each."""

    def __repr__(self) -> str:
        parts = [
            f"{count(len(self.retired), 'checkpoint')} retired",
            f"{count(self.deleted.objects, 'object')} with {size(self.deleted.bytes)} deleted",
            f"{count(self.later.objects, 'object')} with {size(self.later.bytes)} to go after the grace period",
        ]
        parts += [cut(follower) for follower in self.followers if follower.matters]
        return f"Cleaned({', '.join(parts)}{f'; {cut(self.note, 200)}' if self.note else ''})"

    def _repr_html_(self) -> str:
        rows = [
            ("retired", count(len(self.retired), "checkpoint"), some(self.retired)),
            ("deleted", count(self.deleted.objects, "object"), size(self.deleted.bytes)),
            ("later", count(self.later.objects, "object"), size(self.later.bytes)),
            *(("follower", "", str(follower)) for follower in self.followers),
        ]
        return table("Cleaned", ("what", "how many", ""), rows) + (note(self.note) if self.note else "")

    def __str__(self) -> str:
        text = (
            f"{len(self.retired)} checkpoints retired, {self.deleted.objects} objects with {self.deleted.bytes} bytes "
            f"deleted, {self.later.objects} with {self.later.bytes} bytes to go after the grace period"
        )
        said = [str(follower) for follower in self.followers if follower.matters]
        return "; ".join([text, *said, *([self.note] if self.note else [])])


async def plan_retire_and_sweep(session: Session, policy: RetentionPolicy | None) -> CleanupPlan:
    """Return what `retire_and_sweep` would do now. This only reads.

    Raises `InvalidStateError` if `_latest` is an old copy that somebody put back.
    """
    plan, classify = await begin_plan(session, check_policy(policy))
    if classify is None:
        return plan
    is_behind = False
    with Spool() as spool:
        async for entries in pages(session.store, ""):
            # In a thread, since a page has many paths. `some` is bound as a default, since the loop goes on.
            await session.host.run(lambda some=entries: spool.extend(classify(e.path, e.size) for e in some))  # type: ignore[misc]
            is_behind = is_behind or any(classify.is_above(entry.path) for entry in entries)
        if is_behind:
            # What only the newer commits name would be deleted. Asked only where this listing shows any of them.
            await refuse_old_copy(session.store)
        spool.extend(await classify_leftovers(session, plan, classify))
    plan.attach(spool)
    return plan


async def load_plan(session: Session, path: str | os.PathLike[str]) -> CleanupPlan:
    """Return a plan that was saved, also one that the keys of the root encrypt."""
    keys = await find_keys(session.store)
    return await session.host.run(lambda: read_plan(path, keys))


async def classify_leftovers(session: Session, plan: CleanupPlan, classify: GarbageClassifier) -> list[PlanRow]:
    """Return the rows of the leftovers of interrupted writes.

    If the store refuses to list them, add a note.
    """
    try:
        return [classify.leftover(found.path, found.token) for found in await session.store.leftovers()]
    except StoreRefusedError as error:  # For example a right is missing, which nothing else in a cleanup needs.
        plan.note = plan.note or f"the leftovers of interrupted writes could not be listed: {error}"
        return []


def check_policy(policy: RetentionPolicy | None) -> RetentionPolicy:
    """Return the policy, or for None one that retires nothing.

    Raises `IllegalArgumentError` for anything else.
    """
    if policy is not None and not isinstance(policy, RetentionPolicy):
        raise IllegalArgumentError(f"expected a RetentionPolicy, got {type(policy).__name__}")
    return policy or RetentionPolicy()


async def begin_plan(session: Session, policy: RetentionPolicy) -> tuple[CleanupPlan, GarbageClassifier | None]:
    """Return a plan that has no rows yet, and the classifier that makes them.

    The classifier is None where there is no `_latest`.
    """

    async def begin(head: Head) -> tuple[CleanupPlan, GarbageClassifier | None]:
        if head.pointer is None:
            nothing = "there is no _latest, so this is not a store: nothing was deleted"
            return CleanupPlan(session.store.url, None, policy.grace, note=nothing), None
        decision, note = await decide_retention_now(session, head, policy)
        plan = CleanupPlan(
            root=session.store.url,
            nonce=head.pointer.nonce,
            grace=policy.grace,
            checkpoints=_checkpoints(decision),
            retired=decision.retired,
            note=note,
            followers=decision.followers,
            keys=await find_keys(session.store),
        )
        return plan, GarbageClassifier(head.sequence, await index_live(session, head, decision, policy.grace))

    # What is missing is read again if `_latest` moved; else it is damage, and nothing is deleted (SPEC.md, "Missing is
    # not empty").
    return await read_consistent(session.store, begin)


def _checkpoints(decision: RetentionDecision) -> tuple[PlannedCheckpoint, ...]:
    """Return all live checkpoints, each with the plan for it, oldest first."""
    kept = [PlannedCheckpoint(ref.id, True, reason) for ref, reason in decision.kept.items()]
    gone = [PlannedCheckpoint(ref.id, False, "no rule keeps it") for ref in decision.retired]
    return tuple(sorted([*kept, *gone], key=lambda checkpoint: checkpoint.id))


async def apply_plan(session: Session, plan: CleanupPlan, progress: Progress | None = None) -> Cleaned:
    """Carry out a plan: retire checkpoints with one swap, then delete objects.

    Raises `StalePlanError`, and does neither, if the plan would retire or delete something that is needed now, and
    `InvalidStateError` if `_latest` is an old copy that somebody put back. Only where the store refused the first swap,
    garbage may be deleted by then. If a cleanup is interrupted, the next one deletes the rest. `progress` gets numbers
    of objects.
    """
    if not isinstance(plan, CleanupPlan):
        raise IllegalArgumentError(f"expected a CleanupPlan, got {type(plan).__name__}")
    # A plan of another root says nothing about this one, although a copied root has the same names.
    if plan.root != session.store.url:
        raise IllegalArgumentError(f"this plan was made for {plan.root}, not for {session.store.url}")
    # First the swap, then the deletes: a crash in between leaves garbage, and the other order would leave a live
    # checkpoint without its objects.
    try:
        retired = await retire_chosen(session, lambda head: _check_plan(session, head, plan), plan.grace)
    except StoreRefusedError:
        # A full disk has no room for the swap. What the plan deletes may make some.
        if not await _sweep_before_retiring(session, plan):
            raise
        retired = await retire_chosen(session, lambda head: _check_plan(session, head, plan), plan.grace)
    warn_of(session.store.url, plan.followers)
    deleted = await _sweep(session, plan, progress)
    return Cleaned(tuple(ref.id for ref in retired), deleted, plan.total(LATER), plan.note, plan.followers)


async def _check_plan(session: Session, head: Head, plan: CleanupPlan) -> tuple[LiveCheckpoints, tuple[Ref, ...]]:
    """Return the live checkpoints, and those that the plan retires.

    Raises `StalePlanError` if a checkpoint to retire is needed now.
    """
    url = session.store.url
    if head.pointer is None:  # Without `_latest` nothing is touched, whatever the plan says.
        if plan.retired or plan.total(DELETE).objects or plan.nonce is not None:
            raise StalePlanError(f"{url}: there is no _latest, but there was when this plan was made")
        return LiveCheckpoints((), None), ()
    # A plan that was made on this very version needs no check, unless it comes from a file: that may say anything.
    fresh = head.pointer.nonce == plan.nonce and not plan.from_file
    if plan.retired or plan.total(DELETE).objects:
        # The newer commits may need them, such as a savepoint that was made since.
        await refuse_old_copy(session.store, head)
    if fresh and not plan.retired:
        return LiveCheckpoints((), None), ()
    # The policy is not asked again: the plan says what is to go, and only what must stay now is looked up.
    now = await decide_retention(session, head, RetentionPolicy(grace=plan.grace))
    needed = find_protected(head, now.live, plan.retired)
    if needed is not None:
        raise StalePlanError(f"{url}: this plan retires {needed.id}, which is needed now: make a new plan")
    # Also on the very version that the plan was made on: a follower may have noted its position and not yet swapped.
    ancestry, begins = now.live.ancestry, now.live.begins
    positions = without_outrun(await read_positions(session.store), plan.followers, plan.retired, ancestry, begins)
    waiting = find_waiting(positions, ancestry, begins)
    for ref in plan.retired:
        if name := waiting.needed.get(ref):
            raise StalePlanError(
                f"{url}: this plan retires {ref.id}, which follower {name!r} needs now: make a new plan"
            )
    # What is not live any more was retired by somebody else, or by this plan before.
    gone = tuple(ref for ref in dict.fromkeys(plan.retired) if ref in now.kept)
    if not fresh:
        going = set(gone)
        left = {ref: why for ref, why in now.kept.items() if ref not in going}
        await _check_rows(session, head, plan, RetentionDecision(now.live, left, gone))
    return now.live, gone


async def _check_rows(session: Session, head: Head, plan: CleanupPlan, decision: RetentionDecision) -> None:
    """Classify every object that the plan deletes again, on the present `_latest`."""
    classify = GarbageClassifier(head.sequence, await index_live(session, head, decision, plan.grace))

    def check() -> None:
        for row in _deletions(plan):
            now = _classified(classify, row)
            if now.action != DELETE:
                raise StalePlanError(
                    f"{session.store.url}: this plan deletes {row.path}, which must stay ({now.reason}): "
                    "make a new plan"
                )

    await session.host.run(check)


async def _sweep(session: Session, plan: CleanupPlan, progress: Progress | None) -> Total:
    """Delete the objects of the plan."""
    return await delete_rows(session, lambda: _deletions(plan), plan.total(DELETE).objects, progress)


async def _sweep_before_retiring(session: Session, plan: CleanupPlan) -> int:
    """Delete what is garbage also before the plan retires anything.

    Returns how many objects of the plan these are.
    """

    async def index(head: Head) -> GarbageClassifier | None:
        if head.pointer is None:
            return None
        decision = await decide_retention(session, head, RetentionPolicy(grace=plan.grace))
        return GarbageClassifier(head.sequence, await index_live(session, head, decision, plan.grace))

    classify = await read_consistent(session.store, index)
    if classify is None:
        return 0

    def garbage() -> Iterator[PlanRow]:
        return (row for row in _deletions(plan) if _classified(classify, row).action == DELETE)

    return (await delete_rows(session, garbage, plan.total(DELETE).objects, None)).objects


def _deletions(plan: CleanupPlan) -> Iterator[PlanRow]:
    """Yield the rows of the objects that the plan deletes."""
    return (row for row in plan if row.action == DELETE)


def _classified(classify: GarbageClassifier, row: PlanRow) -> PlanRow:
    """Return the row of an object as it is now."""
    return classify(row.path, row.size) if row.leftover is None else classify.leftover(row.path, row.leftover)


async def retire_and_sweep(
    session: Session, policy: RetentionPolicy | None, progress: Progress | None = None
) -> Cleaned:
    """Retire checkpoints by a policy, then delete objects that nothing needs."""
    policy = check_policy(policy)
    before = Total()
    try:
        done = await retire(session, policy)
    except StoreRefusedError:
        # A full disk has no room for the swap. Deleting garbage that was there before takes no room, and makes some.
        before, _ = await _plan_and_sweep(session, policy, progress)
        # Without garbage there is no more room than before, so another try would fail in the same way.
        if not before.objects:
            raise
        done = await retire(session, policy)
    after, plan = await _plan_and_sweep(session, policy, progress)
    gone = tuple(ref.id for ref in done.retired)
    return Cleaned(gone, before + after, plan.total(LATER), done.note or plan.note, done.followers)


async def _plan_and_sweep(
    session: Session, policy: RetentionPolicy, progress: Progress | None
) -> tuple[Total, CleanupPlan]:
    """Delete objects that nothing needs, without retiring anything.

    Returns the total of the deleted objects, and the plan.
    """
    # With a policy that keeps everything: what is garbage by now is found, and nothing more is retired.
    plan = await plan_retire_and_sweep(session, RetentionPolicy(grace=policy.grace))
    return await _sweep(session, plan, progress), plan
