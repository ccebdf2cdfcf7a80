"""What a version of `_latest` leads to, read off the bytes of a store with the decoders of the format alone."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from pyspark_checkpointer.manifests import object_paths, segments
from pyspark_checkpointer.manifests.catalog_json import decode_catalog
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.manifest_json import decode_manifest
from pyspark_checkpointer.manifests.model import Artifact, Catalog, CatalogEntry, Manifest, Operator, Pointer, Ref
from pyspark_checkpointer.storage.base import Blob

_decoded = lru_cache(maxsize=4096)(decode_manifest)


class Violation(AssertionError):  # noqa: N818  # what was found is no error of the program that found it
    """A rule was broken."""


def must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)


@dataclass(frozen=True, slots=True)
class Version:
    """One value of `_latest`, with all that it keeps alive."""

    pointer: Pointer | None
    ancestry: tuple[Ref, ...] = ()
    entries: tuple[CatalogEntry, ...] = ()
    paths: frozenset[str] = frozenset()

    @property
    def committed(self) -> Ref | None:
        return None if self.pointer is None else self.pointer.committed

    @property
    def prepared(self) -> Ref | None:
        return None if self.pointer is None else self.pointer.prepared

    @property
    def sequence(self) -> int:
        return 0 if self.committed is None else self.committed.id.sequence

    @property
    def live(self) -> set[Ref]:
        """The prepared one is not."""
        return {*self.ancestry, *(entry.ref for entry in self.entries)}

    @property
    def savepoints(self) -> dict[str, CatalogEntry]:
        return {entry.name: entry for entry in self.entries if entry.name is not None}

    def garbage(self, paths: Iterable[str]) -> set[str]:
        """Those that one cleanup has to delete: at or below the committed sequence, and named by nothing live."""
        return {
            path
            for path in set(paths) - self.paths
            if (owner := object_paths.owner(path)) is None or owner.sequence <= self.sequence
        }


def went_back(old: Version, new: Version) -> Iterator[str]:
    """What may never be: that a version is behind the one before it."""
    if new.sequence < old.sequence:
        yield "the committed sequence went back"
    if old.pointer is not None and new.pointer is not None:
        if new.pointer.boundary < old.pointer.boundary:
            yield "the boundary went back"
        if new.pointer.writer.epoch < old.pointer.writer.epoch:
            yield "the writer's epoch went back"


class Reader:
    """Reads what is there. All that anything live names is there, byte for byte, or that is a `Violation`."""

    def __init__(self, objects: Mapping[str, Blob]) -> None:
        self._objects = objects
        self._manifests: dict[str, tuple[Manifest, frozenset[str]]] = {}

    def version(self, pointer: Pointer) -> Version:
        paths = {object_paths.LATEST}
        entries: tuple[CatalogEntry, ...] = ()
        if pointer.catalog is not None:
            entries = self._catalog(pointer).entries
            paths.add(pointer.catalog.path)
        ancestry = tuple(self._ancestry(pointer))
        for ref in {*ancestry, *(entry.ref for entry in entries)} | ({pointer.prepared} if pointer.prepared else set()):
            paths |= self.paths(ref)
        missing = paths - self._objects.keys()
        must(not missing, f"_latest names what is not there: {sorted(missing)}")
        return Version(pointer, ancestry, entries, frozenset(paths))

    def manifest(self, ref: Ref) -> Manifest:
        path = object_paths.manifest(ref.id)
        if path not in self._manifests:
            data = self._bytes(path)
            must(sha256(data) == ref.digest, f"{path}: is not what names it")
            manifest = _decoded(ref.id, data)
            operators = {name: self._whole(name, operator) for name, operator in manifest.operators.items()}
            slices = [a for op in operators.values() for chain in op.chains.values() for a in chain]
            for artifact in slices:
                self.slice(artifact)
            named = {path, *(a.path for a in slices), *(s.path for op in operators.values() for s in op.segments)}
            self._manifests[path] = replace(manifest, operators=operators), frozenset(named)
        return self._manifests[path][0]

    def paths(self, ref: Ref) -> frozenset[str]:
        """Every object of a checkpoint."""
        self.manifest(ref)
        return self._manifests[object_paths.manifest(ref.id)][1]

    def slice(self, artifact: Artifact) -> bytes:
        data = self._bytes(artifact.path)[artifact.offset : artifact.offset + artifact.length]
        must(sha256(data) == artifact.digest, f"{artifact.path}: is not what a manifest says")
        return data

    def _whole(self, name: str, operator: Operator) -> Operator:
        """An operator with the chains that its segments hold."""
        if not operator.segments:
            return operator
        patches = []
        for segment in operator.segments:
            data = self._bytes(segment.path)
            must(sha256(data) == object_paths.digest_of(segment.path), f"{segment.path}: is not what a manifest says")
            patches.append(segments.decode_segment(segment, name, operator.partitions, operator.codec, data))
        return segments.load(name, operator, patches)

    def _ancestry(self, pointer: Pointer) -> Iterator[Ref]:
        ref = pointer.committed
        while ref is not None and ref.id.sequence >= pointer.boundary:
            yield ref
            ref = self.manifest(ref).parent

    def _catalog(self, pointer: Pointer) -> Catalog:
        assert pointer.catalog is not None
        data = self._bytes(pointer.catalog.path)
        must(sha256(data) == pointer.catalog.digest, f"{pointer.catalog.path}: is not what _latest says")
        return decode_catalog(pointer.catalog.path, data)

    def _bytes(self, path: str) -> bytes:
        found = self._objects.get(path)
        must(found is not None, f"_latest leads to {path}, which is not there")
        assert found is not None
        return found.data
