"""Read single slices of damaged objects, and write them as objects of their own.

The damage is elsewhere in these objects.
"""

from collections.abc import Iterable
from dataclasses import replace

from pyspark_checkpointer.checkpoint import download, upload
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId, Manifest
from pyspark_checkpointer.storage.base import DAMAGE


async def read_slice(session: Session, artifact: Artifact) -> bytes:
    """Return the verified bytes of an artifact.

    The rest of its object may be damaged, or longer than it was.
    """
    data = b""
    # No request for an empty slice: a range of no bytes cannot be asked for.
    if artifact.length:
        data = await session.store.get_range(artifact.path, artifact.offset, artifact.length)
    await download.verify_bytes(session.host, artifact.path, data, artifact.length, artifact.digest)
    return data


class SliceChecks:
    """True if slices are as they were written. Each is read once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._intact: dict[Artifact, bool] = {}

    async def is_intact(self, artifact: Artifact) -> bool:
        """Return whether one slice is as it was written.

        The rest of its object may be damaged.
        """
        if artifact not in self._intact:
            try:
                await read_slice(self._session, artifact)
                self._intact[artifact] = True
            # Other errors are raised: a store that does not answer is no proof of damage.
            except DAMAGE:
                self._intact[artifact] = False
        return self._intact[artifact]

    async def are_intact(self, artifacts: Iterable[Artifact]) -> bool:
        """Return whether all slices are as they were written.

        Those after the first damaged one are not read.
        """
        for artifact in artifacts:
            if not await self.is_intact(artifact):
                return False
        return True


async def extract_slices(
    session: Session, manifest: Manifest, copied_by_slice: frozenset[str], owner: CheckpointId
) -> Manifest:
    """Write every slice of some objects that a manifest needs as an object of its own.

    `copied_by_slice` has the paths of these objects; the new ones are under the id `owner`. Returns the manifest with
    the new objects.
    """
    operators = {}
    for name, operator in manifest.operators.items():
        chains = dict(operator.chains)
        for partition, chain in operator.chains.items():
            # Chains without such an object are left as they are, and copied whole later.
            if not copied_by_slice.isdisjoint(artifact.path for artifact in chain):
                chains[partition] = tuple(
                    [
                        await _extract(session, name, partition, operator.codec, artifact, owner)
                        if artifact.path in copied_by_slice
                        else artifact
                        for artifact in chain
                    ]
                )
        operators[name] = replace(operator, chains=chains)
    return replace(manifest, operators=operators)


async def _extract(
    session: Session, name: str, partition: int, codec: str, artifact: Artifact, owner: CheckpointId
) -> Artifact:
    """Write one slice as an object of its own, and return the artifact that names it."""
    data = await read_slice(session, artifact)
    if not data:
        # The base of a partition that was empty before its first delta has no bytes, and stands in any object.
        made = replace(
            artifact, path=object_paths.pack(name, owner, artifact.digest, codec), offset=0, size=0, tail=None
        )
    elif artifact.length == artifact.size:
        # The slice was the whole object, to which something was appended.
        made = replace(artifact, path=object_paths.under(artifact.path, owner))
    else:
        path = object_paths.artifact(name, partition, owner, artifact.kind, artifact.digest, codec)
        made = replace(artifact, path=path, offset=0, size=artifact.length, tail=None)
    await upload.put_once(session.store, made.path, data)
    return made
