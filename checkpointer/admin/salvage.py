"""Finding out what of a damaged checkpoint can be kept: partition by partition, each at a state that it once had.

A partition is kept where every slice of its chain is as it was written. Of the others nothing is made up: such a
partition is left out or, where somebody says so, taken back to the newest older state of it that is whole. Then the
checkpoint is a mix of batches, which only its owner can judge. Nothing is written here.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark_checkpointer.admin.losses import SHOWN, Loss, Older, RepairPlan
from pyspark_checkpointer.admin.repair_candidates import StoreScan
from pyspark_checkpointer.checkpoint import metadata, offload, upload
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.verify import Check
from pyspark_checkpointer.errors import CheckpointNotFoundError, CorruptionError, UnsupportedFormatError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Artifact, CatalogEntry, Chain, CheckpointId, Manifest, Operator, Ref
from pyspark_checkpointer.runtime.host import Progress
from pyspark_checkpointer.storage.base import ObjectNotFoundError


@dataclass(slots=True)
class Salvage:
    """A damaged checkpoint that was looked at: what is whole, and what else there is."""

    plan: RepairPlan
    manifest: Manifest
    """The checkpoint with the partitions that are whole, and no others."""
    older: Mapping[str, Mapping[int, Chain]] = field(default_factory=dict)
    """By operator and partition, what damaged partitions can be taken back to."""
    broken: frozenset[str] = frozenset()
    """Objects of which only the slices that are needed are copied: those that are damaged, and packs of older states,
    whose other slices were not looked at."""

    def content(self, *, older_partitions: bool) -> Manifest:
        """Return the checkpoint as it is to be copied."""
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
    """Look at every object of a candidate, and for older states of what is damaged. Only reads."""
    ref, manifest = choose(session, found, to)
    look = _Look(session, found, progress)
    made = await look.at(ref, manifest)
    lost = []
    for entry in savepoints:
        if (await look.check.whole(entry.ref))[1]:
            lost.append(str(entry.name))
    if look.check.refusals:
        raise look.check.refusals[0]
    made.plan = replace(made.plan, savepoints=tuple(lost))
    return made


def choose(session: Session, found: StoreScan, to: CheckpointId) -> tuple[Ref, Manifest]:
    """Return the manifest of a candidate; without one that can be read and trusted there is nothing to salvage."""
    url = session.store.url
    chosen = next((candidate for candidate in found.candidates if candidate.id == to), None)
    if chosen is None:
        raise CheckpointNotFoundError(
            f"{url}: no manifest of {to}: repair_candidates(), or `checkpointer repair`, lists those there are"
        )
    unread = [problem for problem in chosen.problems if problem.startswith(object_paths.manifest(to))]
    if to not in found.manifests or unread:
        problems = "; ".join(unread or chosen.problems[:SHOWN])
        raise CorruptionError(f"{url}: nothing says what {to} is made of: {problems}: choose another candidate")
    return found.manifests[to]


class _Look:
    """One look at a root: what was found whole or damaged so far."""

    def __init__(self, session: Session, found: StoreScan, progress: Progress | None) -> None:
        self._session = session
        self._found = found
        self._artifacts: dict[Artifact, bool] = {}
        self._loaded: dict[CheckpointId, Manifest] = {}
        self.check = Check(session, None, 1.0, progress)

    async def at(self, ref: Ref, manifest: Manifest) -> Salvage:
        loaded = await self.check.with_chains(ref, manifest)
        self.check.manifests = {ref: loaded}
        await self.check.read_objects()
        if self.check.refusals:  # nobody is to accept the loss of what was not looked at
            raise self.check.refusals[0]
        problems = {finding.path: finding.problem for finding in self.check.findings}
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
                bad = next(segment.path for segment in operator.segments if segment.path in problems)
                back, state = await self._older_operator(name, operator)
                losses.append(Loss(name, None, problems[bad], None, back))
                older.setdefault(name, {}).update(state)
            kept[name] = replace(operator, chains=chains, segments=(), patches=())
        whole = sum(len(operator.chains) for operator in kept.values())
        plan = RepairPlan(ref.id, manifest.epoch, whole, tuple(losses))
        return Salvage(plan, replace(manifest, operators=kept), older, frozenset(problems) | _packs(older))

    async def _partitions(
        self, name: str, operator: Operator, problems: Mapping[str, str]
    ) -> AsyncIterator[tuple[int, Chain, Loss | None, Mapping[int, Chain]]]:
        """Yield each partition with its chain; where that is damaged, what is lost and what there is instead."""
        for partition, chain in operator.chains.items():
            hurt = [artifact for artifact in chain if artifact.path in problems]
            damaged = [artifact for artifact in hurt if not await self._is_whole(artifact)]
            if not damaged:
                yield partition, chain, None, {}
                continue
            older, state = await self._older_chain(name, operator, partition)
            yield partition, chain, Loss(name, partition, problems[damaged[0].path], _records(chain), older), state

    # ---- older states ----------------------------------------------------------------------------------------------
    #
    # The state before the last change of a partition is what the parent of the checkpoint that made this change had.
    # That one is known by the last object of the chain, which carries its id. Going from parent to parent would be
    # wrong: after a rollback the parent is the very state that was rolled back from.

    async def _older_chain(
        self, name: str, operator: Operator, partition: int
    ) -> tuple[Older | None, Mapping[int, Chain]]:
        current = operator.chains[partition]
        while step := await self._before(name, operator, current[-1].path):
            made, ref, before = step
            if made.chains.get(partition) != current:
                break
            previous = before.chains.get(partition, ())
            if not previous:
                return None, {}  # it had no state before
            if await self._all_whole(previous):
                return Older(ref.id, self._epoch(ref), _records(previous)), {partition: previous}
            current = previous
        length = 0
        while await self._is_whole(current[length]):
            length += 1
        whole = current[:length]  # what it was before the change that is damaged
        if not any(artifact.length for artifact in whole):
            return None, {}
        return Older(None, None, _records(whole)), {partition: whole}

    async def _older_operator(self, name: str, operator: Operator) -> tuple[Older | None, Mapping[int, Chain]]:
        """Look for the operator as it was before its lists of partitions were damaged."""
        segments = operator.segments
        while step := await self._before(name, operator, segments[-1].path):
            made, ref, before = step
            if made.segments != segments:
                break
            if before.chains:
                chains = {p: chain for p, chain in before.chains.items() if await self._all_whole(chain)}
                return Older(ref.id, self._epoch(ref), sum(map(_records, chains.values()))), chains
            if not before.segments:
                break
            segments = before.segments
        return None, {}

    async def _before(self, name: str, operator: Operator, path: str) -> tuple[Operator, Ref, Operator] | None:
        """Return the operator as whoever wrote `path` made it, the parent of that checkpoint, and how it was there.

        None where no manifest is left that proves it, or where the operator was another one then.
        """
        found, writer = self._found.manifests, object_paths.owner(path)
        parent = found[writer][1].parent if writer is not None and writer in found else None
        if writer is None or parent is None or parent.id not in found or found[parent.id][0] != parent:
            return None
        made = (await self._load(writer)).operators.get(name)
        before = (await self._load(parent.id)).operators.get(name)
        if made is None or before is None or _head(before) != _head(operator):
            return None
        return made, parent, before

    async def _load(self, checkpoint: CheckpointId) -> Manifest:
        """Return a manifest with the chains of those operators whose lists can be read."""
        if checkpoint not in self._loaded:
            manifest = self._found.manifests[checkpoint][1]
            operators = dict(manifest.operators)
            for name, operator in manifest.operators.items():
                alone = replace(manifest, operators={name: operator})
                try:
                    loaded = await metadata.load_operators(self._session.store, self._session.host, alone)
                    operators[name] = loaded.operators[name]
                except UnsupportedFormatError:
                    raise
                except (CorruptionError, ObjectNotFoundError):
                    continue
            self._loaded[checkpoint] = replace(manifest, operators=operators)
        return self._loaded[checkpoint]

    def _epoch(self, ref: Ref) -> int | None:
        return self._found.manifests[ref.id][1].epoch

    async def _all_whole(self, chain: Chain) -> bool:
        for artifact in chain:
            if not await self._is_whole(artifact):
                return False
        return True

    async def _is_whole(self, artifact: Artifact) -> bool:
        """Return whether one slice is as it was written, whatever the rest of its object is."""
        if artifact not in self._artifacts:
            try:
                await read_slice(self._session, artifact)
                self._artifacts[artifact] = True
            except (CorruptionError, ObjectNotFoundError):
                self._artifacts[artifact] = False
        return self._artifacts[artifact]


async def read_slice(session: Session, artifact: Artifact) -> bytes:
    """Return the verified bytes of an artifact, also where its object has become longer or is damaged elsewhere."""
    data = b""
    if artifact.length:
        data = await session.store.get_range(artifact.path, artifact.offset, artifact.length)
    await offload.verify_bytes(session.host, artifact.path, data, artifact.length, artifact.digest)
    return data


async def extract(session: Session, manifest: Manifest, broken: frozenset[str], owner: CheckpointId) -> Manifest:
    """Write slices that are whole, of objects that are not, as objects of their own under the id `owner`."""
    operators = {}
    for name, operator in manifest.operators.items():
        chains = dict(operator.chains)
        for partition, chain in operator.chains.items():
            if not broken.isdisjoint(artifact.path for artifact in chain):
                chains[partition] = tuple(
                    [
                        await _extract(session, name, partition, operator.codec, artifact, owner)
                        if artifact.path in broken
                        else artifact
                        for artifact in chain
                    ]
                )
        operators[name] = replace(operator, chains=chains)
    return replace(manifest, operators=operators)


async def _extract(
    session: Session, name: str, partition: int, codec: str, artifact: Artifact, owner: CheckpointId
) -> Artifact:
    data = await read_slice(session, artifact)
    if not data:  # the base of a partition that was empty before its first delta: no bytes of whatever object
        made = replace(
            artifact, path=object_paths.pack(name, owner, artifact.digest, codec), offset=0, size=0, tail=None
        )
    elif artifact.length == artifact.size:
        made = replace(artifact, path=object_paths.under(artifact.path, owner))
    else:
        path = object_paths.artifact(name, partition, owner, artifact.kind, artifact.digest, codec)
        made = replace(artifact, path=path, offset=0, size=artifact.length, tail=None)
    await upload.put_once(session.store, made.path, data)
    return made


def _head(operator: Operator) -> tuple[object, ...]:
    """Return what has to be the same for a partition of one to be a partition of another."""
    return operator.partitions, operator.partitioner, operator.codec, operator.schema


def _packs(older: Mapping[str, Mapping[int, Chain]]) -> frozenset[str]:
    """Return the objects that older states share with what is not needed."""
    artifacts = (a for chains in older.values() for chain in chains.values() for a in chain)
    return frozenset(artifact.path for artifact in artifacts if artifact.length != artifact.size)


def _records(chain: Chain) -> int:
    return sum(artifact.records for artifact in chain)
