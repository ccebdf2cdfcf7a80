"""Fetch stored bytes, and verify them.

There is one request for each object, and nothing is returned before it is verified.

`upload.py` is the mirror image.
"""

import asyncio
from collections.abc import Iterable, Sequence

from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import Bytes, verify
from pyspark_checkpointer.manifests.model import Artifact
from pyspark_checkpointer.runtime.host import HASH_INLINE, Host
from pyspark_checkpointer.storage.base import Store


async def read_artifact(store: Store, host: Host, artifact: Artifact) -> bytes:
    """Return the stored bytes of one artifact, verified."""
    # No bytes need no request, and the object may be missing (SPEC, Restore).
    if artifact.length == 0:
        data = b""
    # A whole object is read with its size as the limit, so that a larger one is refused before it takes memory.
    elif artifact.length == artifact.size:
        data = (await store.get(artifact.path, limit=artifact.size)).data
    else:
        data = await store.get_range(artifact.path, artifact.offset, artifact.length)
    await verify_bytes(host, artifact.path, data, artifact.length, artifact.digest)
    return data


async def read_by_path(store: Store, host: Host, path: str, limit: int | None = None) -> bytes:
    """Return a whole object by a path that holds its digest, verified.

    One of more than `limit` bytes is refused before it takes memory.
    """
    digest = object_paths.digest_of(path)
    data = (await store.get(path, limit=limit)).data
    await verify_bytes(host, path, data, len(data), digest)
    return data


async def read_slices(store: Store, host: Host, artifacts: Sequence[Artifact]) -> list[Bytes]:
    """Return the stored bytes of several artifacts of one object, each verified.

    All are fetched with one request.
    """
    first = artifacts[0]
    # Of several the whole object is read: one request costs more than the bytes of a pack.
    if len(artifacts) == 1 or not any(artifact.length for artifact in artifacts):
        return [await read_artifact(store, host, artifact) for artifact in artifacts]
    # A view, because slices of bytes would copy each part of a pack.
    whole = memoryview((await store.get(first.path, limit=first.size)).data)
    if len(whole) != first.size:
        raise CorruptionError(f"{first.path}: expected {first.size} bytes, found {len(whole)}")
    slices: list[Bytes] = []
    for artifact in artifacts:
        part = whole[artifact.offset : artifact.offset + artifact.length]
        await verify_bytes(host, artifact.path, part, artifact.length, artifact.digest)
        slices.append(part)
    return slices


async def read_all(store: Store, host: Host, artifacts: Iterable[Artifact]) -> dict[Artifact, Bytes]:
    """Return the stored bytes of each artifact, verified.

    There is one request for each object that holds some of them.
    """
    groups = by_object(artifacts)
    data = await asyncio.gather(*(read_slices(store, host, group) for group in groups))
    return {a: part for group, parts in zip(groups, data, strict=True) for a, part in zip(group, parts, strict=True)}


def by_object(artifacts: Iterable[Artifact]) -> list[list[Artifact]]:
    """Return the artifacts, grouped by the object that holds them.

    One request can then fetch each group.
    """
    groups: dict[str, list[Artifact]] = {}
    for artifact in dict.fromkeys(artifacts):  # a chain may name equal deltas of one attempt more than once
        groups.setdefault(artifact.path, []).append(artifact)
    return list(groups.values())


async def verify_bytes(host: Host, name: str, data: Bytes, size: int, digest: str) -> None:
    """Raise an error unless `data` has this size and this SHA-256.

    The error names the object. The size is checked first. Large data is checked in a thread.
    """
    if len(data) <= HASH_INLINE:
        verify(name, data, size=size, digest=digest)
    else:
        await host.run(lambda: verify(name, data, size=size, digest=digest))
