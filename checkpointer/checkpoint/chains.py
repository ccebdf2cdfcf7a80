"""Collect the changes of one attempt to its parent's operators, by partition."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark_checkpointer.checkpoint.upload import ChainSlot
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests import codecs
from pyspark_checkpointer.manifests.model import Chain, Operator


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
