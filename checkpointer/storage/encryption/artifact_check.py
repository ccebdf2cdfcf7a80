"""Check artifacts and packs as they are stored, for one who cannot read them.

The outer tag tells that the bytes are those that were written for this path. The digest of the content, which manifests
have, cannot be compared.
"""

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests.keys_json import ALL
from pyspark_checkpointer.storage.base import ArtifactCheck, Store
from pyspark_checkpointer.storage.encryption.data_keys import DataKeys, logical_size, stored_size
from pyspark_checkpointer.storage.encryption.outer_tags import TAG_BYTES


def make_artifact_check(stored: Store, keys: DataKeys | None) -> ArtifactCheck | None:
    """Return what checks artifacts in a root as it is stored, by the structure key.

    Return None for keys that open artifacts.
    """
    if keys is None or keys.opens == ALL:
        return None

    async def check(path: str, size: int) -> None:
        most = stored_size(path, size, keys.generation)
        name = keys.stored_path(path)
        sink = await stored.read_into(name, lambda: keys.checking_tag(path, _Measure()), limit=most)
        found = logical_size(path, TAG_BYTES + await runtime.on_cpu(sink.finish), keys.generation)
        if found != size:
            raise CorruptionError(f"{name}: expected {size} bytes of content, found {found}")

    return check


class _Measure:
    """A sink that counts bytes."""

    def __init__(self) -> None:
        self._size = 0

    def update(self, piece: bytes, /) -> None:
        self._size += len(piece)

    def finish(self) -> int:
        return self._size


__all__ = ["make_artifact_check"]
