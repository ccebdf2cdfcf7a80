"""Find the checkpoints that retention keeps for named followers.

Find also the followers that retention outruns.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark_checkpointer.admin.followers import needed_by
from pyspark_checkpointer.display import count
from pyspark_checkpointer.manifests.followers_json import FollowerPositions
from pyspark_checkpointer.manifests.model import Ref


@dataclass(frozen=True, slots=True)
class PlannedFollower:
    """Name a follower, and say what a retention policy does to it.

    Attributes:
        name: The name of the follower.
        behind: The number of checkpoints that it has yet to read; None if it is lost, since one was retired before.
        keeps: The number of checkpoints that stay for it alone, and that the policy would retire.
        outrun: The number of checkpoints that it needs and that are retired, since it is further behind than
            `max_follower_lag`. It is lost then.
    """

    name: str
    behind: int | None
    keeps: int = 0
    outrun: int = 0

    def __str__(self) -> str:
        if self.behind is None:
            return f"follower {self.name!r} is lost: it was outrun before"
        told = f"follower {self.name!r} is {count(self.behind, 'checkpoint')} behind"
        if self.outrun:
            return f"{told} and outrun by {self.outrun}: it has to begin again"
        return f"{told} and keeps {self.keeps}" if self.keeps else told

    @property
    def matters(self) -> bool:
        """Return whether somebody should look after it."""
        return bool(self.behind is None or self.keeps or self.outrun)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The checkpoints that followers need, each with the slowest one that needs it.

    `behind` says by how many checkpoints each follower is behind.
    """

    needed: Mapping[Ref, str]
    behind: Mapping[str, int | None]
    outrun: Mapping[str, Collection[Ref]]
    """The checkpoints that are not kept for those that are too far behind."""

    def planned(self, kept: Mapping[Ref, str], retired: Collection[Ref]) -> tuple[PlannedFollower, ...]:
        """Return all followers, once a plan says what is kept and what is retired."""
        gone = set(retired)
        return tuple(
            PlannedFollower(
                name,
                behind,
                sum(reason == reason_of(name) for reason in kept.values()),
                len(gone & set(self.outrun.get(name, ()))),
            )
            for name, behind in sorted(self.behind.items())
        )


NOBODY = Waiting({}, {}, {})


def reason_of(name: str) -> str:
    """Return why a checkpoint is kept for a follower."""
    return f"follower {name!r}"


def find_waiting(
    positions: FollowerPositions, ancestry: Sequence[Ref], begins: bool, max_lag: int | None = None
) -> Waiting:
    """Return what followers need of an ancestry, newest first.

    `begins` says that no checkpoint came before the ancestry.
    """
    needs = {name: needed_by(ancestry, begins, one.checkpoint) for name, one in positions.by_name.items()}
    behind: dict[str, int | None] = {}
    needed: dict[Ref, str] = {}
    outrun: dict[str, Collection[Ref]] = {}
    # The furthest behind first: it is the one to look after.
    for name, some in sorted(needs.items(), key=lambda pair: -(pair[1] or 0)):
        fresh = positions.by_name[name].checkpoint is None
        lag = behind[name] = some if some is None or fresh else some - 1
        if some is None or lag is None:
            continue
        if max_lag is not None and lag > max_lag:
            outrun[name] = ancestry[:some]
        else:
            needed |= {ref: name for ref in ancestry[:some] if ref not in needed}
    return Waiting(needed, behind, outrun)


def without_outrun(
    positions: FollowerPositions,
    planned: Collection[PlannedFollower],
    retired: Collection[Ref],
    ancestry: Sequence[Ref],
    begins: bool,
) -> FollowerPositions:
    """Return the positions without the followers that a plan outruns.

    The plan reports these by name. One that has moved since the plan was made, and so loses fewer or more checkpoints
    than it says, stays.
    """
    gone, left = set(retired), dict(positions.by_name)
    for one in planned:
        if one.outrun and one.name in left:
            alone = replace(positions, by_name={one.name: left[one.name]})
            if len(gone & find_waiting(alone, ancestry, begins).needed.keys()) == one.outrun:
                del left[one.name]
    return replace(positions, by_name=left)


__all__ = ["NOBODY", "PlannedFollower", "Waiting", "find_waiting", "reason_of", "without_outrun"]
