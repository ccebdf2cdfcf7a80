"""Find the parts of a damaged checkpoint that can be kept, by partition.

A partition is kept where every slice of its chain is as it was written. The content of other partitions is never
guessed. A damaged partition is left out. If the caller says so, it is taken back to its newest intact older state. The
checkpoint is then a mix of batches, which only its owner can judge. Nothing is written here.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark_checkpointer.admin.losses import MAX_NAMED_LOSSES, Loss, RepairPlan
from pyspark_checkpointer.admin.older_states import OlderStates, count_records
from pyspark_checkpointer.admin.repair_candidates import StoreScan
from pyspark_checkpointer.admin.slices import SliceChecks
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.verify import Verifier
from pyspark_checkpointer.errors import CheckpointNotFoundError, CorruptionError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CatalogEntry, Chain, CheckpointId, Manifest, Operator, Ref
from pyspark_checkpointer.runtime.host import Progress


@dataclass(frozen=True, slots=True)
class Salvage:
    """The intact parts of a damaged checkpoint, and older states of the others."""

    plan: RepairPlan
    manifest: Manifest
    """The checkpoint with the partitions that are whole, and no others."""
    older: Mapping[str, Mapping[int, Chain]] = field(default_factory=dict)
    """The chains that damaged partitions can be taken back to.

    They are by operator and partition.
    """
    copied_by_slice: frozenset[str] = frozenset()
    """Objects from which only single slices are copied.

    Each is damaged, or is a pack of older states whose other slices were not looked at.
    """

    def content(self, *, older_partitions: bool) -> Manifest:
        """Return the checkpoint for the copy, with or without older states."""
        if not older_partitions:
            return self.manifest
        operators = {
            name: replace(operator, chains={**operator.chains, **self.older.get(name, {})})
            for name, operator in self.manifest.operators.items()
        }
        return replace(self.manifest, operators=operators)


async def salvage(
    session: Session, found: StoreScan, to: CheckpointId, savepoints: Sequence[CatalogEntry], progress: Progress | None
) -> Salvage:
    """Read every object of a candidate and savepoints, and find the intact parts."""
    ref, manifest = _choose(session, found, to)
    search = _DamageSearch(session, found, progress)
    made = await search.examine(ref, manifest)
    lost = await search.damaged(savepoints)
    kept = {entry.name for entry in savepoints} - set(lost)
    unproven = tuple(pair for pair in found.unproven if pair[1] in kept)
    return replace(made, plan=replace(made.plan, savepoints=tuple(lost), unproven=unproven))


def _choose(session: Session, found: StoreScan, to: CheckpointId) -> tuple[Ref, Manifest]:
    """Return the manifest of a candidate.

    Raises where none can be read and trusted: then nothing can be salvaged.
    """
    url = session.store.url
    chosen = next((candidate for candidate in found.candidates if candidate.id == to), None)
    if chosen is None:
        raise CheckpointNotFoundError(
            f"{url}: no manifest of {to}: repair_candidates(), or `checkpointer repair`, lists the candidates"
        )
    # A manifest that its child or a catalog knows by another digest is not the one that was committed, so its content
    # cannot be trusted.
    unread = [problem for problem in chosen.problems if problem.startswith(object_paths.manifest(to))]
    if to not in found.manifests or unread:
        problems = "; ".join(unread or chosen.problems[:MAX_NAMED_LOSSES])
        raise CorruptionError(f"{url}: the content of {to} is not known: {problems}: choose another candidate")
    return found.manifests[to]


class _DamageSearch:
    """One search for damage.

    Objects that were read for one checkpoint are not read again for another.
    """

    def __init__(self, session: Session, found: StoreScan, progress: Progress | None) -> None:
        self._verifier = Verifier(session, None, 1.0, progress)
        self._slices = SliceChecks(session)
        self._older = OlderStates(session, found, self._slices)

    async def examine(self, ref: Ref, manifest: Manifest) -> Salvage:
        """Return the intact parts of a checkpoint, and the lost ones."""
        loaded = await self._verifier.with_chains(manifest)
        self._verifier.manifests = {ref: loaded}
        await self._verifier.read_objects()
        self._raise_refused()
        problems = {finding.path: finding.problem for finding in self._verifier.findings}
        losses: list[Loss] = []
        kept: dict[str, Operator] = {}
        older: dict[str, dict[int, Chain]] = {}
        for name, operator in manifest.operators.items():
            chains = {}
            if name in loaded.operators:
                async for partition, chain, loss, state in self._partitions(name, loaded.operators[name], problems):
                    if loss is None:
                        chains[partition] = chain
                        continue
                    losses.append(loss)
                    older.setdefault(name, {}).update(state)
            else:
                # A segment is damaged, so nothing says which partitions the operator has.
                damaged = next(segment.path for segment in operator.segments if segment.path in problems)
                state, lost = await self._operator(name, operator, problems[damaged])
                losses += lost
                older.setdefault(name, {}).update(state)
            # The copy gets segments of its own, where it needs any.
            kept[name] = replace(operator, chains=chains, segments=(), patches=())
        whole = sum(len(operator.chains) for operator in kept.values())
        plan = RepairPlan(ref.id, manifest.epoch, whole, tuple(losses))
        return Salvage(plan, replace(manifest, operators=kept), older, frozenset(problems) | _packs(older))

    async def damaged(self, savepoints: Sequence[CatalogEntry]) -> list[str]:
        """Return the names of the savepoints that are damaged."""
        names = []
        for entry in savepoints:
            if (await self._verifier.whole(entry.ref))[1]:
                names.append(str(entry.name))
        self._raise_refused()
        return names

    def _raise_refused(self) -> None:
        """Raise the first error of a store that refused to show an object.

        Nobody should accept the loss of an object that was not looked at.
        """
        if self._verifier.refusals:
            raise self._verifier.refusals[0]

    async def _operator(self, name: str, operator: Operator, problem: str) -> tuple[dict[int, Chain], list[Loss]]:
        """Return what is left of an operator without its list, and what is lost.

        Its partitions in the newest older state that is known may be damaged too. Each of these is a loss of its own.
        """
        state: dict[int, Chain] = {}
        found = await self._older.find_operator(name, operator)
        if found is None:
            return state, [Loss(name, None, problem, None, None)]
        back, before = found
        losses: list[Loss] = []
        async for partition, chain, loss, older in self._partitions(name, before, None):
            if loss is None:
                state[partition] = chain
            else:
                back = replace(back, records=back.records - count_records(chain))
                losses.append(loss)
                state.update(older)
        return state, [Loss(name, None, problem, None, back if state else None), *losses]

    async def _partitions(
        self, name: str, operator: Operator, problems: Mapping[str, str] | None
    ) -> AsyncIterator[tuple[int, Chain, Loss | None, Mapping[int, Chain]]]:
        """Yield each partition with its chain, its loss, and the older chain there is.

        A partition that is whole has no loss. Without `problems`, nobody has looked at the objects yet.
        """
        for partition, chain in operator.chains.items():
            suspects = [artifact for artifact in chain if problems is None or artifact.path in problems]
            # An object may be damaged where other partitions have their slices.
            damaged = [artifact for artifact in suspects if not await self._slices.is_intact(artifact)]
            if not damaged:
                yield partition, chain, None, {}
                continue
            older, state = await self._older.find_chain(name, operator, partition)
            path = damaged[0].path
            problem = f"{path}: is missing or damaged" if problems is None else problems[path]
            yield partition, chain, Loss(name, partition, problem, count_records(chain), older), state


def _packs(older: Mapping[str, Mapping[int, Chain]]) -> frozenset[str]:
    """Return objects of which only some slices are needed.

    They are copied slice by slice.
    """
    artifacts = (a for chains in older.values() for chain in chains.values() for a in chain)
    # Copying the whole pack would fail where another slice of it is damaged, and keep state that nothing names.
    return frozenset(artifact.path for artifact in artifacts if artifact.length != artifact.size)
