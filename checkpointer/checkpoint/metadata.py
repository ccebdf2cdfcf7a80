"""Read and write manifests, their segments and catalogs.

They are written once, and verified whenever they are read. Reading and writing stand side by side here; `latest.py`
does the same for the pointer.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from pyspark_checkpointer.checkpoint.upload import put_once
from pyspark_checkpointer.compaction import fits_in_manifest, segment_fold_start, unchanged_beyond_manifest
from pyspark_checkpointer.errors import ConflictError, InvalidStateError, MalformedError, RetryableError
from pyspark_checkpointer.manifests import catalog_json, manifest_json, object_paths, segments
from pyspark_checkpointer.manifests.digest import sha256, verify
from pyspark_checkpointer.manifests.model import (
    Catalog,
    CatalogRef,
    CheckpointId,
    Manifest,
    Operator,
    Patches,
    Ref,
    Segment,
)
from pyspark_checkpointer.manifests.segments import SegmentObject
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import ObjectExistsError, Store
from pyspark_checkpointer.storage.compare_and_swap import find_object

MAX_MANIFEST = 256 << 20
MAX_CATALOG = 64 << 20

SMALL_DATA = 16 << 10
"""Bytes of a manifest that are decoded sooner than a thread is woken."""

GO_ON = "call restore() and go on from there; on the command line give the same command again"
"""The advice of errors if another writer was faster."""


async def read_manifest(store: Store, host: Host, ref: Ref) -> Manifest:
    """Return the manifest that `ref` names, with all its chains.

    Raises `ObjectNotFoundError` if an object is gone.
    """
    return await load_operators(store, host, await read_manifest_alone(store, ref))


async def read_manifest_alone(store: Store, ref: Ref, host: Host | None = None) -> Manifest:
    """Return the manifest that `ref` names, without the chains in segments.

    Those who read many give their `host`, which decodes large ones beside the event loop.
    """
    path = object_paths.manifest(ref.id)
    data = (await store.get(path, limit=MAX_MANIFEST)).data

    def decode() -> Manifest:
        verify(path, data, size=len(data), digest=ref.digest)
        return manifest_json.decode_manifest(ref.id, data)

    return decode() if host is None or len(data) <= SMALL_DATA else await host.run(decode)


async def find_manifest(
    store: Store, checkpoint: CheckpointId, size: int = MAX_MANIFEST, host: Host | None = None
) -> tuple[Ref, Manifest]:
    """Return a manifest by id alone, without its segments' chains.

    Nothing says yet that the checkpoint exists.

    `size` is a size that the manifest is known not to exceed. A store allows more requests at once for small objects.
    `host` is as in `read_manifest_alone`.
    """
    data = (await store.get(object_paths.manifest(checkpoint), limit=size)).data

    def decode() -> tuple[Ref, Manifest]:
        return Ref(checkpoint, sha256(data)), manifest_json.decode_manifest(checkpoint, data)

    return decode() if host is None or len(data) <= SMALL_DATA else await host.run(decode)


def is_copy(manifest: Manifest) -> bool:
    """Return whether a repair wrote this manifest, as the beginning of a new history.

    Every other manifest without a parent is of the first attempt in a root, and has the sequence 1.
    """
    return manifest.parent is None and manifest.id.sequence > 1


async def load_operators(store: Store, host: Host, manifest: Manifest) -> Manifest:
    """Return the manifest with the chains that its segments hold."""
    return await Segments(store, host).load(manifest)


class Segments:
    """The segments that were read so far.

    This is for callers that look at many checkpoints: neighbours share most of their segments.
    """

    def __init__(self, store: Store, host: Host) -> None:
        self._store, self._host = store, host
        self._read: dict[tuple[str, str], asyncio.Task[Patches]] = {}

    async def load(self, manifest: Manifest) -> Manifest:
        """Return the manifest with all its chains.

        Raises `ObjectNotFoundError` if a segment is gone.
        """
        if not any(op.segments for op in manifest.operators.values()):
            return manifest
        names = list(manifest.operators)
        loaded = await asyncio.gather(*(self.load_operator(name, manifest.operators[name]) for name in names))
        return replace(manifest, operators=dict(zip(names, loaded, strict=True)))

    def forget_but(self, manifests: Iterable[Manifest]) -> None:
        """Forget all segments except those that these manifests name."""
        named = {(n, s.path) for manifest in manifests for n, op in manifest.operators.items() for s in op.segments}
        self._read = {key: task for key, task in self._read.items() if key in named}

    async def load_operator(self, name: str, operator: Operator) -> Operator:
        """Return an operator with all its chains. Raises as `load` does."""
        if not operator.segments:
            return operator
        patches = await asyncio.gather(*(self.read(name, operator, segment) for segment in operator.segments))
        return await self._host.run(lambda: segments.load(f"operator {name!r}", operator, patches))

    async def read(self, name: str, operator: Operator, segment: Segment) -> Patches:
        """Return what one segment of an operator says. Raises as `load` does."""
        key = (name, segment.path)
        # The task is kept and not its result, so that two who ask at the same time share one request.
        if key not in self._read or _may_succeed_now(self._read[key]):
            self._read[key] = asyncio.ensure_future(self._decode(name, operator, segment))
        # Others may wait for it too: cancelling one of them must not cancel it for all.
        return await asyncio.shield(self._read[key])

    async def _decode(self, name: str, operator: Operator, segment: Segment) -> Patches:
        data = (await self._store.get(segment.path, limit=segment.size)).data

        def decode() -> Patches:
            # In the thread with the rest: a large segment takes long to hash and to decompress.
            verify(segment.path, data, size=segment.size, digest=object_paths.digest_of(segment.path))
            return segments.decode_segment(segment, name, operator.partitions, operator.codec, data)

        return await self._host.run(decode)


def _may_succeed_now(task: "asyncio.Task[Patches]") -> bool:
    """Return whether a read that failed may succeed if it is tried again.

    Then later callers must not get the same error without a new read.
    """
    return task.done() and (task.cancelled() or isinstance(task.exception(), RetryableError))


def spill(
    manifest: Manifest, parent: Manifest | None, touched: Mapping[str, Collection[int]] = MappingProxyType({})
) -> tuple[Manifest, list[SegmentObject]]:
    """Return the manifest as it will be written, and the segments to write beside it.

    `touched` names every partition that may differ from the parent, for the operators of which this is known. All
    partitions of the other operators are compared.
    """
    operators, stored = {}, []
    old = {} if parent is None else parent.operators
    # For an operator that is the only one, `fits_in_manifest` is enough.
    beyond = _unchanged_in_segments(manifest.operators, old, touched) if len(manifest.operators) > 1 else ()
    for name, operator in manifest.operators.items():
        fits = (lambda *chains: False) if name in beyond else fits_in_manifest
        operators[name], objects = segments.spill(
            manifest.id, name, operator, old.get(name), touched.get(name), fits=fits, fold_start=segment_fold_start
        )
        stored += objects
    return replace(manifest, operators=operators), stored


def _unchanged_in_segments(
    operators: Mapping[str, Operator], old: Mapping[str, Operator], touched: Mapping[str, Collection[int]]
) -> set[str]:
    """Return the unchanged operators that do not stand in the manifest.

    Their chains are those of the parent.
    """
    changed, artifacts, found = 0, dict[str, int](), set[str]()
    for name, operator in operators.items():
        below = old[name].chains if name in old else {}
        changed += (own := len(segments.touched(below, operator.chains, touched.get(name))))
        if name in old and not own and len(below) == len(operator.chains):
            # What stands in segments stays there. In the manifest, it might soon have to be written to one again.
            if old[name].segments:
                found.add(name)
            else:
                artifacts[name] = sum(map(len, operator.chains.values()))
    return found | unchanged_beyond_manifest(artifacts, changed)


SMALL_MANIFEST = 64
"""Partitions up to which a manifest is made faster than a thread is woken."""


def is_small_manifest(operators: Mapping[str, Operator]) -> bool:
    """Return whether a manifest of these is small work."""
    return sum(len(operator.chains) for operator in operators.values()) <= SMALL_MANIFEST


async def write_with_segments(
    store: Store, host: Host, make: Callable[[], tuple[Manifest, list[SegmentObject]]]
) -> tuple[Ref, Manifest]:
    """Write the manifest and the segments that `make` returns, as `spill` does."""
    manifest, stored = await host.run(make)
    # Segments first: a manifest names nothing that is not there.
    for segment in stored:
        await put_once(store, segment.path, segment.data)
    return await write_manifest(store, host, manifest), manifest


async def write_manifest(store: Store, host: Host, manifest: Manifest) -> Ref:
    encode = partial(manifest_json.encode_manifest, manifest)
    data = encode() if is_small_manifest(manifest.operators) else await host.run(encode)
    return await put_manifest(store, manifest.id, data)


async def put_manifest(store: Store, checkpoint: CheckpointId, data: bytes) -> Ref:
    """Write a manifest once.

    A second, different manifest of one id is refused. Raises `InvalidStateError` for one that nobody could read.
    """
    # Longer chains of an operator stand in segments. What makes a manifest so large is what the caller gives, or many
    # operators: each has its name, its schema and some hundred chains here.
    if len(data) > MAX_MANIFEST:
        raise InvalidStateError(
            f"{store.url}: {checkpoint} takes {len(data):,} bytes in its manifest, and at most {MAX_MANIFEST:,} can be "
            "read: keep less in positions and properties, or spread the state over fewer operators. _latest was not "
            "changed"
        )
    await put_as_manifest(store, object_paths.manifest(checkpoint), checkpoint, data)
    return Ref(checkpoint, sha256(data))


async def put_as_manifest(store: Store, path: str, checkpoint: CheckpointId, data: bytes) -> None:
    """Write a manifest once, as it is stored at a path."""
    try:
        await store.put(path, data)
    except ObjectExistsError:
        found = await find_object(store, path, MAX_MANIFEST)
        if found is None:  # only a cleanup deletes manifests, and of attempts only those that came too late
            raise ConflictError(
                f"{store.url}: {checkpoint} was swept, since another writer committed meanwhile: it was not "
                f"committed; {GO_ON}"
            ) from None
        # Equal bytes are an earlier try whose answer was lost. Other bytes must never replace a manifest: the pointer
        # may hold the digest of the one that is there.
        if found.data != data:
            raise MalformedError(
                f"{path}: expected SHA-256 {sha256(data)}, found {sha256(found.data)}: this id was used before"
            ) from None


async def write_catalog(store: Store, catalog: Catalog) -> CatalogRef:
    """Write a catalog once.

    Raises `InvalidStateError` for one that nobody could read any more.
    """
    data = catalog_json.encode_catalog(catalog)
    if len(data) > MAX_CATALOG:
        raise InvalidStateError(
            f"{store.url}: {len(catalog.entries):,} checkpoints besides the history take {len(data):,} bytes in its "
            f"catalog, and at most {MAX_CATALOG:,} can be read: retire older ones first, with clean() or `checkpointer "
            "clean`; delete savepoints before that. _latest was not changed"
        )
    ref = CatalogRef(object_paths.catalog(catalog.id, sha256(data)), sha256(data))
    await put_once(store, ref.path, data)
    return ref


async def read_catalog(store: Store, ref: CatalogRef | None) -> Catalog | None:
    if ref is None:
        return None
    # One that is missing stays an error. Taken for empty, it would let a sweep delete every savepoint.
    data = (await store.get(ref.path, limit=MAX_CATALOG)).data
    verify(ref.path, data, size=len(data), digest=ref.digest)
    return catalog_json.decode_catalog(ref.path, data)


def objects_of(ref: Ref, manifest: Manifest) -> set[str]:
    """Return every path that a manifest with its chains keeps alive, its own included."""
    paths = {object_paths.manifest(ref.id)}
    for operator in manifest.operators.values():
        paths.update(segment.path for segment in operator.segments)
        paths.update(artifact.path for artifact in operator.artifacts())
    return paths
