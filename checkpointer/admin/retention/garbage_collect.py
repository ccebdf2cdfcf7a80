"""Cleanup: plan, then apply. Nothing that is or may become live is deleted, whoever else is at work meanwhile.

Everything that is dead at or below the committed sequence stays dead, so a plan does not go stale by waiting. It is
outrun only where what it would retire or delete came to be needed: `apply_plan` looks at that again, in `_latest` as it
is by then.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from pyspark_checkpointer.admin.retention.expire import (
    Decision,
    Live,
    decide,
    decide_now,
    protected,
    retire,
    retire_chosen,
)
from pyspark_checkpointer.admin.retention.plan import GarbageClassifier, Plan, PlannedCheckpoint, PlanRow, Spool, Total
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.retention.reachability import DELETE, LATER, index_live
from pyspark_checkpointer.checkpoint.latest import Head, read_consistent
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.display import count, cut, note, size, some, table
from pyspark_checkpointer.errors import IllegalArgumentError, StalePlanError, StoreRefusedError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Ref
from pyspark_checkpointer.runtime.host import Progress, tell
from pyspark_checkpointer.storage.base import WriteLeftover, pages

logger = logging.getLogger("pyspark_checkpointer")

BULK = 1000
"""Objects that are deleted together: what S3 takes in one request."""

AT_ONCE = 4
"""Bulks that are deleted at the same time."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a cleanup did. `deleted` counts what it asked the store to delete, which may have been gone already."""

    retired: tuple[CheckpointId, ...]
    deleted: Total
    later: Total
    """What goes once the grace period for readers is over."""
    note: str | None = None

    def __repr__(self) -> str:
        parts = [
            f"{count(len(self.retired), 'checkpoint')} retired",
            f"{count(self.deleted.objects, 'object')} with {size(self.deleted.bytes)} deleted",
            f"{count(self.later.objects, 'object')} with {size(self.later.bytes)} to go after the grace period",
        ]
        return f"Cleaned({', '.join(parts)}{f'; {cut(self.note, 200)}' if self.note else ''})"

    def _repr_html_(self) -> str:
        rows = [
            ("retired", count(len(self.retired), "checkpoint"), some(self.retired)),
            ("deleted", count(self.deleted.objects, "object"), size(self.deleted.bytes)),
            ("later", count(self.later.objects, "object"), size(self.later.bytes)),
        ]
        return table("Cleaned", ("what", "how many", ""), rows) + (note(self.note) if self.note else "")

    def __str__(self) -> str:
        text = (
            f"{len(self.retired)} checkpoints retired, {self.deleted.objects} objects with {self.deleted.bytes} bytes "
            f"deleted, {self.later.objects} with {self.later.bytes} bytes to go after the grace period"
        )
        return f"{text}; {self.note}" if self.note else text


async def make_plan(session: Session, policy: RetentionPolicy | None) -> Plan:
    """What cleanup would do now. Reads only."""
    plan, judge = await judge_store(session, check_policy(policy))
    if judge is None:
        return plan
    with Spool() as spool:
        async for entries in pages(session.store, ""):
            await session.host.run(lambda some=entries: spool.extend(judge(e.path, e.size) for e in some))  # type: ignore[misc]
        spool.extend(await judge_leftovers(session, plan, judge))
    plan.attach(spool)
    plan.totals = spool.totals
    return plan


async def judge_leftovers(session: Session, plan: Plan, judge: GarbageClassifier) -> list[PlanRow]:
    """Return what becomes of what interrupted writes left behind; where nobody may know, the plan gets a note."""
    try:
        return [judge.leftover(found.path, found.token) for found in await session.store.leftovers()]
    except StoreRefusedError as error:  # such as a right that is missing, and that nothing else needs
        plan.note = plan.note or f"what interrupted writes left behind is not known: {error}"
        return []


def check_policy(policy: RetentionPolicy | None) -> RetentionPolicy:
    """Return the policy, or one that retires nothing; `IllegalArgumentError` for what is none."""
    if policy is not None and not isinstance(policy, RetentionPolicy):
        raise IllegalArgumentError(f"expected a RetentionPolicy, got {type(policy).__name__}")
    return policy or RetentionPolicy()


async def judge_store(session: Session, policy: RetentionPolicy) -> tuple[Plan, GarbageClassifier | None]:
    """What the policy makes of the checkpoints: a plan without rows yet, and who makes them; None without a store."""

    async def judge(head: Head) -> tuple[Plan, GarbageClassifier | None]:
        if head.pointer is None:
            nothing = "there is no _latest: nothing is a store here, and nothing is touched"
            return Plan(session.store.url, None, policy.grace, note=nothing), None
        decision, note = await decide_now(session, head, policy)
        plan = Plan(
            root=session.store.url,
            nonce=head.pointer.nonce,
            grace=policy.grace,
            checkpoints=_checkpoints(decision),
            retired=decision.retired,
            note=note,
        )
        return plan, GarbageClassifier(head.sequence, await index_live(session, head, decision, policy.grace))

    return await read_consistent(session.store, judge)


def _checkpoints(decision: Decision) -> tuple[PlannedCheckpoint, ...]:
    kept = [PlannedCheckpoint(ref.id, True, reason) for ref, reason in decision.kept.items()]
    gone = [PlannedCheckpoint(ref.id, False, "no rule keeps it") for ref in decision.retired]
    return tuple(sorted([*kept, *gone], key=lambda checkpoint: checkpoint.id))


async def apply_plan(session: Session, plan: Plan, progress: Progress | None = None) -> Cleaned:
    """Retire what the plan retires, with one swap, then delete what it deletes.

    Raises `StalePlanError`, and does neither, where something that it would take is needed by now. What an interrupted
    cleanup has left, the next one deletes. `progress` is told objects.
    """
    if not isinstance(plan, Plan):
        raise IllegalArgumentError(f"expected a Plan, got {type(plan).__name__}")
    if plan.root != session.store.url:
        raise IllegalArgumentError(f"this plan was made for {plan.root}, not for {session.store.url}")
    retired = await retire_chosen(session, lambda head: _check(session, head, plan), plan.grace)
    deleted = await _delete(session, plan, progress)
    return Cleaned(tuple(ref.id for ref in retired), deleted, plan.total(LATER), plan.note)


async def _check(session: Session, head: Head, plan: Plan) -> tuple[Live, tuple[Ref, ...]]:
    """Return what is live, and what of it the plan retires; raises where the plan was outrun."""
    url = session.store.url
    if head.pointer is None:  # nothing is touched then, whatever a plan says
        if plan.retired or plan.total(DELETE).objects or plan.nonce is not None:
            raise StalePlanError(f"{url}: there is no _latest, but there was when this plan was made")
        return Live((), None), ()
    fresh = head.pointer.nonce == plan.nonce and not plan.from_file  # a file may say anything
    if fresh and not plan.retired:
        return Live((), None), ()
    now = await decide(session, head, RetentionPolicy(grace=plan.grace))
    needed = protected(head, now.live, plan.retired)
    if needed is not None:
        raise StalePlanError(f"{url}: this plan retires {needed.id}, which is needed now: make a new plan")
    gone = tuple(ref for ref in dict.fromkeys(plan.retired) if ref in now.kept)
    if not fresh:
        going = set(gone)
        left = {ref: why for ref, why in now.kept.items() if ref not in going}
        await _check_rows(session, head, plan, Decision(now.live, left, gone))
    return now.live, gone


async def _check_rows(session: Session, head: Head, plan: Plan, decision: Decision) -> None:
    """The same judgement again, on the version that is there now, of every object that the plan deletes."""
    judge = GarbageClassifier(head.sequence, await index_live(session, head, decision, plan.grace))

    def check() -> None:
        for row in _deletions(plan):
            now = judge(row.path, row.size) if row.leftover is None else judge.leftover(row.path, row.leftover)
            if now.action != DELETE:
                raise StalePlanError(
                    f"{session.store.url}: this plan deletes {row.path}, which must stay ({now.reason}): plan anew"
                )

    await session.host.run(check)


def _deletions(plan: Plan) -> Iterator[PlanRow]:
    return (row for row in plan if row.action == DELETE)


async def _delete(session: Session, plan: Plan, progress: Progress | None) -> Total:
    """Delete in bulk: manifests and catalogs first, so that nothing is left that names what is gone."""
    total, done, size = plan.total(DELETE).objects, 0, 0

    async def delete(bulk: list[PlanRow]) -> None:
        nonlocal done, size
        await session.store.delete([row.path for row in bulk if row.leftover is None])
        left = [WriteLeftover(row.path, row.leftover) for row in bulk if row.leftover is not None]
        if left:
            await session.store.discard(left)
        done += len(bulk)
        size += sum(row.size for row in bulk)
        await tell(session.host, progress, done, total)

    for part in (True, False):
        rows = (row for row in _deletions(plan) if row.path.startswith(object_paths.ARTIFACTS) != part)
        while bulks := await session.host.run(lambda some=rows: _bulks(some)):  # type: ignore[misc]
            await asyncio.gather(*map(delete, bulks))
    if done:
        logger.info("%s: deleted %d objects with %d bytes", session.store.url, done, size)
    return Total(done, size)


def _bulks(rows: Iterator[PlanRow]) -> list[list[PlanRow]]:
    return [bulk for _ in range(AT_ONCE) if (bulk := [*islice(rows, BULK)])]


async def clean(session: Session, policy: RetentionPolicy | None, progress: Progress | None = None) -> Cleaned:
    """Retire what the policy does not keep, as it is at the swap, then delete what nothing needs."""
    policy = check_policy(policy)
    before = Total()
    try:
        retired, note = await retire(session, policy)
    except StoreRefusedError:
        # A full disk has no room for the swap; to delete what nothing needed before it takes none, and makes some.
        before, _ = await _sweep(session, policy, progress)
        if not before.objects:
            raise
        retired, note = await retire(session, policy)
    after, plan = await _sweep(session, policy, progress)
    return Cleaned(tuple(ref.id for ref in retired), before + after, plan.total(LATER), note or plan.note)


async def _sweep(session: Session, policy: RetentionPolicy, progress: Progress | None) -> tuple[Total, Plan]:
    plan = await make_plan(session, RetentionPolicy(grace=policy.grace))
    return await _delete(session, plan, progress), plan
