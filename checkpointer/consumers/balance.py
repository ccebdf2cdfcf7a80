"""Decide which partitions a worker should have.

The decision rests on one look at the group's ownership, and does no I/O.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pyspark_checkpointer.manifests.positions_json import Row


@dataclass(frozen=True, slots=True)
class OwnershipView:
    """The ownership of a group as one worker sees it at one moment.

    `rows` are by partition. `held` are the partitions that the worker `me` has. `free` are those that it may take now
    and does not have. `steal_requests` are the workers that asked an owner for a partition, by partition.
    """

    me: str
    rows: Mapping[str, Row]
    held: Collection[str]
    free: Collection[str]
    steal_requests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Choice:
    """The partitions to take at once, and those to ask their owners for."""

    take: tuple[str, ...]
    ask: tuple[str, ...]


def choose(view: OwnershipView) -> Choice:
    """Return the partitions to take and to ask for.

    All workers in view get even shares. Free partitions are taken first. The rest is asked of the owners that have
    most.
    """
    open_rows = {name: row for name, row in view.rows.items() if not row.finished}
    taken = {name: row for name, row in open_rows.items() if name not in view.free}
    owners = Counter(row.owner for row in taken.values() if row.owner not in ("", view.me))
    # A request for a partition that is free to this worker does not count: the worker may take the partition itself.
    steal_requests = {name: requester for name, requester in view.steal_requests.items() if name in taken}
    # A worker that only asked, and owns nothing yet, gets a share too.
    workers = {view.me, *owners, *steal_requests.values()}
    # Rounded up, so that the shares of all workers together cover every partition.
    fair_share = -(-len(open_rows) // len(workers))
    # Rows that name this worker come first, since they move nowhere: they are from before a restart, or their positions
    # could not be written in an earlier round.
    mine_first = sorted(view.free, key=lambda name: (view.rows[name].owner != view.me, name))
    take = tuple(mine_first[: max(0, fair_share - len(view.held))])
    # What this worker has already asked for counts as its own, or it would ask for more in every round.
    mine = len(view.held) + len(take) + sum(requester == view.me for requester in steal_requests.values())
    return Choice(take, tuple(_ask(taken, owners, steal_requests, mine, fair_share)))


def _ask(
    rows: Mapping[str, Row], owners: Iterable[str], steal_requests: Iterable[str], mine: int, fair_share: int
) -> Iterable[str]:
    """Yield the partitions to ask for.

    These are enough once shares are even, or the worker has its share. Each comes from the owner that has most left at
    that moment.
    """
    left: dict[str, list[str]] = {owner: [] for owner in owners}
    # Sorted backwards, since `pop()` takes from the end: the smallest name goes first. A partition that somebody asked
    # for already is not asked for again: the first who asks is served.
    for name in sorted(rows.keys() - set(steal_requests), reverse=True):
        if rows[name].owner in left:
            left[rows[name].owner].append(name)
    richest = [(-len(names), owner) for owner, names in left.items()]
    heapq.heapify(richest)
    # A difference of one is even: stealing across it would move one partition back and forth for ever.
    # Above its share the worker would not take what it asked for, and the partition would wait for it without an owner.
    while richest and mine < fair_share and -richest[0][0] > mine + 1:
        owner = richest[0][1]
        yield left[owner].pop()
        heapq.heapreplace(richest, (-len(left[owner]), owner))
        mine += 1
