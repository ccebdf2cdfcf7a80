"""Which partitions a worker should have: a decision from one look at the group's ownership, without I/O."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from manifests.progress import Row


@dataclass(frozen=True, slots=True)
class Look:
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
    want: tuple[str, ...]


def choose(look: Look) -> Choice:
    """Even shares among all workers seen, by taking what is free first, and asking the richest for the rest."""
    open_rows = {name: row for name, row in look.rows.items() if not row.finished}
    taken = {name: row for name, row in open_rows.items() if name not in look.free}
    owners = Counter(row.owner for row in taken.values() if row.owner not in ("", look.me))
    wishes = {name: wisher for name, wisher in look.wishes.items() if name in taken}
    workers = {look.me, *owners, *wishes.values()}
    most = -(-len(open_rows) // len(workers))
    mine_first = sorted(look.free, key=lambda name: (look.rows[name].owner != look.me, name))
    take = tuple(mine_first[: max(0, most - len(look.held))])
    mine = len(look.held) + len(take) + sum(wisher == look.me for wisher in wishes.values())
    return Choice(take, tuple(_ask(taken, owners, wishes, look.me, mine)))


def _ask(rows: Mapping[str, Row], owners: Counter[str], wishes: Mapping[str, str], me: str, mine: int) -> Iterable[str]:
    """What to ask for until shares are even: each from whoever has most once all that is asked of them is gone."""
    left = owners - Counter(rows[name].owner for name in wishes)
    while True:
        richest, count = max(left.items(), key=lambda pair: (pair[1], pair[0]), default=("", 0))
        if count <= mine + 1:
            return
        name = min(name for name, row in rows.items() if row.owner == richest and name not in wishes)
        left[richest] -= 1
        mine += 1
        wishes = {**wishes, name: me}
        yield name
