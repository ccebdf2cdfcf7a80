"""Which partitions a worker should have: a decision from one look at the group's ownership, without I/O."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pyspark_checkpointer.manifests.positions_json import Row


@dataclass(frozen=True, slots=True)
class Sight:
    """What one worker sees at one moment.

    `free` are the partitions that it may take now and does not hold, and `wishes` the workers that asked for one, by
    partition.
    """

    me: str
    rows: Mapping[str, Row]
    held: Collection[str]
    free: Collection[str]
    wishes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Choice:
    """What to take at once, and what to ask its owner for."""

    take: tuple[str, ...]
    ask: tuple[str, ...]


def choose(sight: Sight) -> Choice:
    """Even shares among all workers seen, by taking what is free first, and asking the richest for the rest."""
    open_rows = {name: row for name, row in sight.rows.items() if not row.finished}
    taken = {name: row for name, row in open_rows.items() if name not in sight.free}
    owners = Counter(row.owner for row in taken.values() if row.owner not in ("", sight.me))
    wishes = {name: wisher for name, wisher in sight.wishes.items() if name in taken}
    workers = {sight.me, *owners, *wishes.values()}
    most = -(-len(open_rows) // len(workers))
    mine_first = sorted(sight.free, key=lambda name: (sight.rows[name].owner != sight.me, name))
    take = tuple(mine_first[: max(0, most - len(sight.held))])
    mine = len(sight.held) + len(take) + sum(wisher == sight.me for wisher in wishes.values())
    return Choice(take, tuple(_ask(taken, owners, wishes, mine)))


def _ask(rows: Mapping[str, Row], owners: Iterable[str], wishes: Iterable[str], mine: int) -> Iterable[str]:
    """What to ask for until shares are even: each from whoever has most once all that is asked of them is gone."""
    left: dict[str, list[str]] = {owner: [] for owner in owners}
    for name in sorted(rows.keys() - set(wishes), reverse=True):
        if rows[name].owner in left:
            left[rows[name].owner].append(name)
    richest = [(-len(names), owner) for owner, names in left.items()]
    heapq.heapify(richest)
    while richest and -richest[0][0] > mine + 1:
        owner = richest[0][1]
        yield left[owner].pop()
        heapq.heapreplace(richest, (-len(left[owner]), owner))
        mine += 1
