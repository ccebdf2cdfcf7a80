"""Keep the checkpoints that a named follower of a table has yet to read.

A follower has a position: the checkpoint up to which it has read the changes. All positions of a root are one small
object, so retention needs no listing to know them.

    register    write the position, swap `_latest` with a new nonce alone, prove that the checkpoint is live
    advance     write a later position
    retire      on a version of `_latest`: read the positions, keep what they need, swap

Retention may read a position just before it changes. An older position keeps more, so this does no harm. Only a new
position can be missed. The swap of a new position makes each retirement that was planned without it plan again, and
each later retirement sees it.
"""

import logging
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark_checkpointer.checkpoint.history import read_history
from pyspark_checkpointer.checkpoint.latest import Head, cas_loop, read_consistent, read_head
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.display import cut, moment, table
from pyspark_checkpointer.errors import (
    ConflictError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    NotFoundError,
    RetiredError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.followers_json import (
    MAX_FOLLOWERS,
    FollowerPosition,
    FollowerPositions,
    decode_followers,
    encode_followers,
)
from pyspark_checkpointer.manifests.model import CheckpointId, Pointer, Ref
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import Blob, Store
from pyspark_checkpointer.storage.compare_and_swap import find_object, swap_or_explain

ROUNDS = 100
"""Largest number of times that a change is planned again, since other followers changed the object meanwhile."""


@dataclass(frozen=True, slots=True)
class Follower:
    """A named follower of the changes of a table.

    Attributes:
        name: Its name.
        operator: The table.
        checkpoint: The checkpoint up to which it has read the changes; None where it has read none.
        modified: When this was noted, by its own clock.
        behind: The number of later checkpoints; None if it is lost: a checkpoint that it needs is not live any more.
    """

    name: str
    operator: str
    checkpoint: CheckpointId | None
    modified: datetime
    behind: int | None

    def __repr__(self) -> str:
        where = "lost" if self.behind is None else f"{self.behind} behind"
        return f"Follower({cut(repr(self.name))}, {cut(repr(self.operator))}, {self.checkpoint}, {where})"


@dataclass(frozen=True, slots=True)
class Move:
    """A position that a follower was given, and the one before.

    `before` is None if it had none.
    """

    before: FollowerPosition | None
    to: FollowerPosition


class Followers(list[Follower]):
    """A list of followers that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = [
            (f.name, f.operator, f.checkpoint, "lost" if f.behind is None else f.behind, moment(f.modified))
            for f in self
        ]
        return table("Followers", ("name", "table", "has read", "behind", "modified"), rows)


async def read_positions(store: Store) -> FollowerPositions:
    """Return all followers of a root; none if nobody ever registered."""
    return _decode(store, await find_object(store, object_paths.FOLLOWERS, MAX_FOLLOWERS))


def _decode(store: Store, blob: Blob | None) -> FollowerPositions:
    try:
        return FollowerPositions() if blob is None else decode_followers(object_paths.FOLLOWERS, blob.data)
    except CorruptionError as error:
        raise type(error)(
            f"{store.url}: {error}: nothing is retired until it is mended. Stop all cleanups; then delete this "
            "object, and start each following stream anew, also those that run: they register again. Clean after that"
        ) from None


def needed_by(ancestry: Sequence[Ref], begins: bool, checkpoint: CheckpointId | None) -> int | None:
    """Return how many of the newest checkpoints a follower needs; None if it is lost.

    They are counted in an ancestry, newest first. The follower needs all checkpoints after its own, and its own to
    compare with. `begins` says that no checkpoint came before the ancestry.
    """
    if checkpoint is None:
        return len(ancestry) if begins else None
    return next((count for count, ref in enumerate(ancestry, 1) if ref.id == checkpoint), None)


async def followers(session: Session) -> Followers:
    """Return all followers of a root, by name."""

    async def read(head: Head) -> Followers:
        positions = await read_positions(session.store)
        history = await read_history(session.store, head)
        ancestry = [ref for ref, _ in history.ancestry]
        begins = bool(ancestry) and history.ancestry[-1][1].parent is None
        found = []
        for one in positions.by_name.values():
            needed = needed_by(ancestry, begins, one.checkpoint)
            behind = needed if needed is None or one.checkpoint is None else needed - 1
            found.append(Follower(one.name, one.operator, one.checkpoint, one.modified, behind))
        return Followers(sorted(found, key=lambda follower: follower.name))

    return await read_consistent(session.store, read)


async def register(session: Session, name: str, operator: str, checkpoint: CheckpointId | None) -> Move | None:
    """Keep the changes after a checkpoint until the follower has read them.

    After this call, no retirement removes these changes, unless a policy says so. A follower may register again, and go
    back. Returns None if it was at this position already. Raises `RetiredError` if the checkpoint is not live any more.
    """
    object_paths.encode_name("follower", name)
    move: Move | None = None

    def plan(known: FollowerPositions) -> FollowerPositions | None:
        nonlocal move
        move = None
        old = known.by_name.get(name)
        if old is not None and old.operator != operator:
            raise IllegalArgumentError(
                f"follower {name!r}: follows {old.operator!r} already, and retention keeps what it has yet to read: "
                f"choose another name; if nobody reads under it, call remove_follower({name!r}), or `checkpointer "
                f"followers ROOT --remove {shlex.quote(name)}`"
            )
        if old is not None and old.checkpoint == checkpoint:
            return None
        move = Move(old, FollowerPosition(name, operator, checkpoint, session.host.now()))
        return _with(known, move.to)

    await _require_live(session, name, checkpoint)
    await _change(session, plan)
    try:
        # Also where the position was there before: an earlier call may have died at this point.
        await _touch(session)
        await _require_live(session, name, checkpoint)
    # A signer who may consume, and not swap `_latest`: retention would wait for one who never reads.
    except InvalidStateError:
        await put_back(session, move)
        raise
    # A retirement came first. What the follower has yet to read after its old position is kept again.
    except RetiredError:
        await put_back(session, move)
        await _touch(session)
        raise
    log_safely(logging.INFO, "%s: follower %r of %s begins after %s", session.store.url, name, operator, checkpoint)
    return move


async def put_back(session: Session, move: Move | None) -> None:
    """Give a follower the position from before a move.

    It stays where it is if somebody else has changed the position since.
    """
    if move is None:
        return
    before, to = move.before, move.to

    def plan(known: FollowerPositions) -> FollowerPositions | None:
        now = known.by_name.get(to.name)
        if now is None or now.checkpoint != to.checkpoint:
            return None
        return _without(known, to.name) if before is None else _with(known, before)

    await _change(session, plan)


async def hold(session: Session, name: str, operator: str) -> Move | None:
    """Keep all that is live for a follower whose position is not known yet.

    A follower that is registered stays at its position, unless it is lost. Returns and raises what `register` does.
    """
    known = (await read_positions(session.store)).by_name.get(name)
    ancestry = (await read_consistent(session.store, lambda head: read_history(session.store, head))).ancestry
    begins = ancestry[-1][1].parent is None
    if known is None or needed_by([ref for ref, _ in ancestry], begins, known.checkpoint) is None:
        return await register(session, name, operator, ancestry[-1][0].id)
    return None


async def _touch(session: Session) -> None:
    """Change the version of `_latest`.

    Whoever plans a retirement with other positions has to plan again.
    """

    async def plan_swap(head: Head) -> Pointer | None:
        return None if head.pointer is None else replace(head.pointer, nonce=session.host.token(32))

    await cas_loop(session.store, await read_head(session.store), plan_swap)


async def _require_live(session: Session, name: str, checkpoint: CheckpointId | None) -> None:
    """Raise `RetiredError` if the first checkpoint for a follower is not live."""
    # Not one that only a savepoint keeps: what came after it may be gone.
    ancestry = (await read_consistent(session.store, lambda head: read_history(session.store, head))).ancestry
    begins = bool(ancestry) and ancestry[-1][1].parent is None
    if needed_by([ref for ref, _ in ancestry], begins, checkpoint) is None:
        raise RetiredError(
            f"{session.store.url}: follower {name!r}: {checkpoint or 'the first checkpoint'} is not live any more, so "
            "what came after it cannot be read. Begin again, with a new checkpointLocation, after a checkpoint that is "
            "live: `checkpointer list` names them"
        )


async def advance(session: Session, name: str, operator: str, checkpoint: CheckpointId) -> bool:
    """Record that a follower has read all changes up to a checkpoint.

    Its position never goes back. Returns whether there is such a follower: one that was removed stays removed until its
    stream is started again.
    """

    def plan(known: FollowerPositions) -> FollowerPositions | None:
        old = known.by_name.get(name)
        if old is None or old.operator != operator:
            return None
        if old.checkpoint is not None and old.checkpoint.sequence >= checkpoint.sequence:
            return None
        return _with(known, replace(old, checkpoint=checkpoint, modified=session.host.now()))

    found = (await _change(session, plan)).by_name.get(name)
    return found is not None and found.operator == operator


async def remove(session: Session, name: str) -> None:
    """Remove a follower. Retention waits for it no longer."""
    done = False

    def plan(known: FollowerPositions) -> FollowerPositions | None:
        nonlocal done
        if name not in known.by_name:
            if done:
                return None  # An earlier swap of this call took effect, though its answer was lost.
            names = ", ".join(map(repr, sorted(known.by_name))) or "none"
            raise NotFoundError(f"{session.store.url}: no follower {name!r:.80}: there are {names:.200}")
        done = True
        return _without(known, name)

    await _change(session, plan)
    log_safely(logging.INFO, "%s: follower %r was removed", session.store.url, name)


def _without(known: FollowerPositions, name: str) -> FollowerPositions:
    return replace(known, by_name={other: one for other, one in known.by_name.items() if other != name})


def _with(known: FollowerPositions, follower: FollowerPosition) -> FollowerPositions:
    old = known.by_name.get(follower.name)
    follower = follower if old is None else replace(follower, extra=old.extra)
    return replace(known, by_name={**known.by_name, follower.name: follower})


Plan = Callable[[FollowerPositions], FollowerPositions | None]
"""A function that returns the positions to write, or None for no change."""


async def _change(session: Session, plan: Plan) -> FollowerPositions:
    """Write what `plan` returns for the present positions.

    Returns the positions that are stored then.
    """
    store, path = session.store, object_paths.FOLLOWERS
    for _ in range(ROUNDS):
        blob = await find_object(store, path, MAX_FOLLOWERS)
        known = _decode(store, blob)
        wanted = plan(known)
        if wanted is None:
            return known
        # A fresh nonce makes these bytes unlike any other version, so reading them back proves that the swap took
        # effect.
        data = encode_followers(wanted, session.host.token(32))
        unknown = f"{store.url}: a change of {path} was sent, and it is not known whether it took effect: do it again"
        version = None if blob is None else blob.version
        if await swap_or_explain(store, path, data, version, MAX_FOLLOWERS, unknown):
            return wanted
    raise ConflictError(f"{store.url}: others changed {path} {ROUNDS} times in a row: try again later")


__all__ = ["Follower", "Followers", "advance", "followers", "needed_by", "read_positions", "register", "remove"]
