"""Find older states of damaged partitions and operators.

All manifests of a root are searched. The state before the last change of a partition is the state in the parent of the
checkpoint that made this change. The last object of the chain tells which checkpoint that is: its path carries the id.
Going from parent to parent instead would be wrong: after a rollback, the parent is the very state that was rolled back
from.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from pyspark_checkpointer.admin.losses import OlderState
from pyspark_checkpointer.admin.repair_candidates import StoreScan
from pyspark_checkpointer.admin.slices import SliceChecks
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import UnsupportedFormatError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Chain, CheckpointId, Manifest, Operator, Ref
from pyspark_checkpointer.storage.base import DAMAGE


def count_records(chain: Chain) -> int:
    """Return the records and changes in a chain."""
    return sum(artifact.records for artifact in chain)


class OlderStates:
    """A search for older states in one root.

    Manifests and slices are read once, however many partitions are asked for.
    """

    def __init__(self, session: Session, found: StoreScan, slices: SliceChecks) -> None:
        self._found = found
        self._slices = slices
        self._loaded: dict[CheckpointId, Manifest] = {}
        self._segments = metadata.Segments(session.store, session.host)

    async def find_chain(
        self, name: str, operator: Operator, partition: int
    ) -> tuple[OlderState | None, Mapping[int, Chain]]:
        """Return the newest intact older state of a partition, with its chain.

        If no manifest has an older state, it is the intact beginning of the chain. Returns None if there is no older
        state.
        """
        current = operator.chains[partition]
        while step := await self._step_back(name, operator, current[-1].path):
            made, ref, before = step
            if made.chains.get(partition) != current:
                break  # The manifest of the writer says something else: it proves nothing about this chain.
            previous = before.chains.get(partition, ())
            if not previous:
                return None, {}  # The partition had no state before.
            if await self._slices.are_intact(previous):
                return OlderState(ref.id, self._epoch(ref), count_records(previous)), {partition: previous}
            current = previous
        length = 0
        # The loop ends before the chain does: every chain that gets here has a damaged slice.
        while await self._slices.is_intact(current[length]):
            length += 1
        whole = current[:length]  # The state before the first change that is damaged.
        # What is left are only empty bases, which hold no state.
        if not any(artifact.length for artifact in whole):
            return None, {}
        return OlderState(None, None, count_records(whole)), {partition: whole}

    async def find_operator(self, name: str, operator: Operator) -> tuple[OlderState, Operator] | None:
        """Return an operator as it was before its list was damaged; None if nothing tells.

        Partitions of it may be damaged too.
        """
        segments = operator.segments
        while step := await self._step_back(name, operator, segments[-1].path):
            made, ref, before = step
            # The writer's manifest says something else about these segments, so its parent proves nothing.
            if made.segments != segments:
                break
            if before.chains:
                return OlderState(ref.id, self._epoch(ref), sum(map(count_records, before.chains.values()))), before
            if not before.segments:
                break
            segments = before.segments
        return None

    async def _step_back(self, name: str, operator: Operator, path: str) -> tuple[Operator, Ref, Operator] | None:
        """Return an operator as written, its parent's ref, and itself in that parent.

        It was written by the attempt that `path` names. None where no manifest is left that proves it, or where the
        operator had another layout then.
        """
        found, writer = self._found.manifests, object_paths.owner(path)
        parent = found[writer][1].parent if writer is not None and writer in found else None
        # The digest is compared too: a manifest of that id with other bytes is not the one that was built upon.
        if writer is None or parent is None or parent.id not in found or found[parent.id][0] != parent:
            return None
        made = (await self._load(writer)).operators.get(name)
        before = (await self._load(parent.id)).operators.get(name)
        # A partition of another layout holds other keys, so it is no older state of this one.
        if made is None or before is None or _definition(before) != _definition(operator):
            return None
        return made, parent, before

    async def _load(self, checkpoint: CheckpointId) -> Manifest:
        """Return a manifest with the chains of those operators whose segments can be read."""
        if checkpoint not in self._loaded:
            manifest = self._found.manifests[checkpoint][1]
            operators = manifest.operators
            loaded = await asyncio.gather(*(self._load_operator(name, one) for name, one in operators.items()))
            self._loaded[checkpoint] = replace(manifest, operators=dict(zip(operators, loaded, strict=True)))
        return self._loaded[checkpoint]

    async def _load_operator(self, name: str, operator: Operator) -> Operator:
        # Each for itself: a damaged segment of one operator does not cost the others.
        try:
            return await self._segments.load_operator(name, operator)
        except UnsupportedFormatError:
            # What a newer library wrote is not damage, and must not be taken for a loss.
            raise
        except DAMAGE:
            return operator

    def _epoch(self, ref: Ref) -> int | None:
        """Return the epoch of a checkpoint whose manifest was found."""
        return self._found.manifests[ref.id][1].epoch


def _definition(operator: Operator) -> tuple[object, ...]:
    """Return the values that must be equal for two operators of equal partitions."""
    return operator.partitions, operator.partitioner, operator.codec, operator.schema
