"""The changes of one attempt to the operators of its parent.

They are kept partition by partition. `checkpointer/compaction.py` decides when deltas are folded; this does it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from pyspark_checkpointer.checkpoint.upload import ChainSlot
from pyspark_checkpointer.compaction import opaque_fold_start
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests import codecs
from pyspark_checkpointer.manifests.model import Chain, Operator

MAX_RAW_DELTAS = 1000
"""Deltas of opaque bytes above one snapshot. Nobody but the caller can merge them."""


@dataclass(slots=True)
class ChainPlan:
    """A partition's next chain.

    It consists of what is kept of the old chain, and the slots that come on top.
    """

    kept: Chain
    added: list[ChainSlot] = field(default_factory=list)


@dataclass(slots=True)
class OperatorChange:
    """The changes of an attempt to one operator.

    They start from the operator's chains in `parent`, unless the operator is written anew.
    """

    operator: Operator
    parent: Mapping[int, Chain]
    plans: dict[int, ChainPlan] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Return whether nothing was changed.

        This happens, for instance, when the first write of opaque bytes was refused.
        """
        return not self.plans and self.operator.codec == codecs.RAW.name

    def chains(self) -> dict[int, Chain]:
        """Return the operator's chains once every slot is written."""
        chains = dict(self.parent)
        for partition, plan in self.plans.items():
            # A slot stays empty where an interrupt came between planning a write and starting it. Nothing else notices,
            # since the queue only knows writes that were started.
            if not all(slot.artifacts for slot in plan.added):
                raise InvalidStateError(f"partition {partition}: its save was interrupted: begin another attempt")
            chain = plan.kept + tuple(a for slot in plan.added for a in slot.artifacts)
            # A chain of nothing is no chain: the format says that a partition without state is not there.
            if chain:
                chains[partition] = chain
            else:
                chains.pop(partition, None)
        return chains

    def grow(self, partition: int) -> None:
        """Raise the number of partitions so that `partition` is one of them."""
        if partition >= self.operator.partitions:
            self.operator = replace(self.operator, partitions=partition + 1)

    def below_delta(self, name: str, partition: int) -> ChainPlan:
        """Return the plan to which a delta of opaque bytes is added.

        Raises `IllegalArgumentError` if the partition has no snapshot below the delta, or too many deltas above the
        snapshot.
        """
        plan = self.plans.get(partition) or ChainPlan(self.parent.get(partition, ()))
        if not plan.kept and not plan.added:
            raise IllegalArgumentError(
                f"operator {name!r}, partition {partition}: a delta needs a snapshot below it: save that first"
            )
        if len(plan.kept) + sum(slot.count for slot in plan.added) > MAX_RAW_DELTAS:
            raise IllegalArgumentError(
                f"operator {name!r}, partition {partition}: {MAX_RAW_DELTAS} deltas above one snapshot, and "
                "only the caller can merge them: save a snapshot"
            )
        self.plans[partition] = plan
        return plan


def split_for_fold(plan: ChainPlan, size: int, limit: int, *, least: int = 1) -> Chain:
    """Take the newest deltas off a chain of opaque bytes, and return them.

    The caller writes them again as one object. `size` is the size of the delta to come. `limit` is the largest number
    of objects that the deltas may be in. If fewer than `least` objects would be folded, they are left as they are.
    """
    # By object, since a fold that took only some deltas of an object would leave the others in it, and save no request.
    # The first artifact is the snapshot.
    groups = [list(group) for _, group in groupby(plan.kept[1:], lambda artifact: artifact.path)]
    # What this attempt added may still be on its way, and cannot be read for a fold.
    if plan.added or not groups:
        return ()
    objects = [[artifact.length for artifact in group] for group in groups]
    start = 1 + opaque_fold_start(objects, size, limit)
    if len({artifact.path for artifact in plan.kept[start:]}) < least:
        return ()
    folded, plan.kept = plan.kept[start:], plan.kept[:start]
    return folded
