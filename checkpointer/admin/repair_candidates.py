"""List the checkpoints that a root can be repaired to.

The `_latest` of the root is lost or damaged. Every manifest is a candidate, and is listed with the evidence for it.
Nothing here proves which commit was the last. A user chooses one of the candidates.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark_checkpointer.admin.candidate import Candidate, Candidates
from pyspark_checkpointer.admin.streaming.offset_log import SparkLog, read_log
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.latest import UNREADABLE, Head, read_damaged
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    IllegalArgumentError,
    StoreRefusedError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CatalogEntry, CatalogRef, CheckpointId, Manifest, Ref
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage import open_files
from pyspark_checkpointer.storage.base import DAMAGE, ObjectNotFoundError, ObjectRefusedError
from pyspark_checkpointer.storage.signed_paths import SignedPaths


@dataclass(frozen=True, slots=True)
class StoreScan:
    """The whole content of a root. Its `_latest` does not matter."""

    top: int
    """The highest sequence in the name of any object or interrupted write."""
    top_path: str
    """An object or interrupted write with that sequence."""
    manifests: Mapping[CheckpointId, tuple[Ref, Manifest]]
    candidates: Sequence[Candidate]
    """The best first: see `_rank`."""
    catalogs: Mapping[str, int]
    """The sequence of every catalog, by path."""
    savepoints: Sequence[CatalogEntry]
    """The savepoints to keep where the catalog does not stay as it is, oldest first."""
    unproven: Sequence[tuple[str, str]]
    """The names of savepoints that nobody signed, and the names that these get."""


async def candidates(
    session: Session,
    spark_checkpoint: str | os.PathLike[str] | None,
    spark_storage_options: Mapping[str, Any] | None,
) -> list[Candidate]:
    """Return every manifest of the root with its evidence, the best first. Only reads."""
    log = None if spark_checkpoint is None else await read_spark_log(spark_checkpoint, spark_storage_options)
    head, latest = await read_damaged(session.store)
    return Candidates((await scan_store(session, head, latest, log)).candidates)


async def read_spark_log(location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> SparkLog:
    """Read a query's `checkpointLocation`.

    Raises `IllegalArgumentError` where no batch is finished in it.
    """
    store = open_files(location, storage_options)
    try:
        log = await read_log(store)
    finally:
        await store.close()
    # A folder without a finished batch is most likely the wrong one; as evidence it would speak against every
    # candidate.
    if log.finished is None:
        raise IllegalArgumentError(f"{log.url}: expected a checkpointLocation of Spark, with commits/ of a batch")
    return log


async def scan_store(session: Session, head: Head, latest: bytes, log: SparkLog | None = None) -> StoreScan:
    """List the root, and read every manifest and catalog.

    Other objects are only checked for existence and size. `head` is what can be read of `_latest`, and `latest` has its
    remains. `log` is Spark's checkpoint, where its evidence is wanted.
    """
    store = session.store
    # One listing of everything: it shows the highest sequence, and the existence and size of each object, without a
    # request for each.
    sizes = {entry.path: entry.size for entry in await store.list("")}
    owners = {path: owner for path in sizes if (owner := object_paths.owner(path)) is not None}
    sequences = {path: owner.sequence for path, owner in owners.items()}
    # Interrupted writes count too: one may still end, under an id that a repair must not use again.
    try:
        unfinished = {leftover.path: object_paths.owner(leftover.path) for leftover in await store.leftovers()}
        sequences |= {path: owner.sequence for path, owner in unfinished.items() if owner is not None}
    except StoreRefusedError as error:  # A right is missing that nothing else needs, or the server cannot do it.
        log_safely(logging.INFO, "%s: the leftovers of interrupted writes could not be listed: %s", store.url, error)
        # An attempt has at most one more than the newest commit.
        sequences = {path: sequence + 1 for path, sequence in sequences.items()}
    top_path = max(sequences, key=sequences.__getitem__, default="")

    found: dict[CheckpointId, tuple[Ref, Manifest]] = {}
    listed: list[Candidate] = []
    junk = set()
    ids = [owner for path, owner in owners.items() if path == object_paths.manifest(owner)]
    for known, one in zip(ids, await asyncio.gather(*(_find(session, i) for i in ids)), strict=True):
        if isinstance(one, tuple):
            found[known] = one
            continue
        listed.append(Candidate(known, (str(one),)))
        # Anybody who writes to a signed or encrypted root can put such a one there, with any sequence.
        if isinstance(one, UNREADABLE):
            junk.add(known)
    paths = [path for path in owners if path.startswith(object_paths.CATALOGS)]
    if isinstance(store, SignedPaths):
        # Catalogs are not signed. Only the digest in `_latest` says that one of them counts.
        named = [] if head.catalog is None else [head.catalog.path]
        entries = await _read_catalogs(session, named)
        others = await _read_catalogs(session, [path for path in paths if path not in named])
        savepoints, unproven = _proven_savepoints(entries, others, found)
    else:
        entries, unproven = await _read_catalogs(session, paths), []
        savepoints = _newest_savepoints(entries)
    evidence = _Evidence.collect(latest, log, [manifest for _, manifest in found.values()], entries)
    segments = metadata.Segments(store, session.host)
    for ref, manifest in found.values():
        missing, size = await _missing(segments, ref, manifest, sizes)
        segments.forget_but([manifest])
        listed.append(evidence.weigh(ref, manifest, missing, size))
    newest = max((one.id.sequence for one in listed if not one.unfinished and one.id not in junk), default=0)
    listed.sort(key=lambda candidate: _rank(candidate, newest), reverse=True)
    catalogs = {path: owners[path].sequence for path in paths}
    return StoreScan(sequences.get(top_path, 0), top_path, found, listed, catalogs, savepoints, unproven)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The evidence in a root's objects for which checkpoints were committed."""

    latest: bytes
    log: SparkLog | None
    children: Counter[Ref | None]
    """The number of manifests that name a checkpoint as their parent."""
    entries: Mapping[Ref, Sequence[CatalogEntry]]
    """The entries of all catalogs, by checkpoint."""
    digests: Mapping[CheckpointId, set[str]]
    """Every digest that a manifest or catalog gives for a checkpoint's manifest."""

    @classmethod
    def collect(
        cls,
        latest: bytes,
        log: SparkLog | None,
        manifests: Sequence[Manifest],
        entries: Sequence[tuple[CatalogEntry, int]],
    ) -> "_Evidence":
        """Index the references of all manifests and catalog entries."""
        # By id and digest: a child of a manifest with other bytes is no evidence for this one.
        children = Counter(manifest.parent for manifest in manifests)
        by_checkpoint: dict[Ref, list[CatalogEntry]] = {}
        for entry, _ in entries:
            by_checkpoint.setdefault(entry.ref, []).append(entry)
        digests: dict[CheckpointId, set[str]] = {}
        for ref in {*children, *by_checkpoint}:
            if ref is not None:
                digests.setdefault(ref.id, set()).add(ref.digest)
        return cls(latest, log, children, by_checkpoint, digests)

    def weigh(self, ref: Ref, manifest: Manifest, missing: Sequence[str], size: int) -> Candidate:
        """Return a manifest as a candidate.

        `missing` says which of its objects are not as they should be.
        """
        own = self.entries.get(ref, [])
        # A manifest that others know by another digest is not the one that was committed.
        others = sorted(self.digests.get(ref.id, set()) - {ref.digest})
        problems = [
            f"{object_paths.manifest(ref.id)}: expected SHA-256 {digest}, found {ref.digest}" for digest in others
        ]
        return Candidate(
            id=ref.id,
            problems=(*problems, *missing),
            epoch=manifest.epoch,
            created=manifest.created,
            job=manifest.job,
            bytes=size,
            # As `_latest` is encoded: its remains need not be JSON any more.
            committed=f'"committed":{{"id":"{ref.id}","digest":"{ref.digest}"}}'.encode() in self.latest,
            children=self.children[ref],
            catalogs=len(own),
            savepoints=tuple(sorted({entry.name for entry in own if entry.name is not None})),
            batch_done=None if self.log is None else self.log.has_finished(manifest.job),
            copied=metadata.is_copy(manifest),
        )


def _rank(candidate: Candidate, newest: int) -> tuple[bool, bool, bool, int, bool, float, CheckpointId]:
    """Return the rank of a candidate: higher is better.

    Intact candidates come first. Among them the first one is the one that `_latest` names, then the newest. If two
    attempts have the same sequence and none is proven, the later one comes first: its writer had seen the other fail.
    Copies by a repair that may not have ended come after all others: their sequences are high, and their states may be
    old. `newest` is the highest sequence of any other manifest. If it is above all attempts on what `_latest` names,
    that is an old copy, and says nothing about the newest commit.
    """
    made = candidate.created.timestamp() if candidate.created else 0.0
    whole = not candidate.problems
    named = candidate.committed and newest <= candidate.id.sequence + 1
    return (whole, named, not candidate.unfinished, candidate.id.sequence, candidate.proven, made, candidate.id)


async def _find(session: Session, checkpoint: CheckpointId) -> tuple[Ref, Manifest] | CheckpointError:
    """Return a manifest, or an error that says what is wrong with it.

    Raises for a newer format, which a newer library has to repair.
    """
    try:
        return await metadata.find_manifest(session.store, checkpoint)
    except UnsupportedFormatError:
        raise
    # What the store shows to nobody is lost as if it were damaged.
    except DAMAGE as error:
        return error


async def _read_catalogs(session: Session, paths: Sequence[str]) -> list[tuple[CatalogEntry, int]]:
    """Return the entries of all readable catalogs, with the sequence of each catalog."""
    entries = []
    for path in paths:
        try:
            catalog = await metadata.read_catalog(session.store, CatalogRef(path, object_paths.digest_of(path)))
        except UnsupportedFormatError:
            raise
        except DAMAGE:
            # A damaged catalog is evidence for nothing, and must not keep the others from being read.
            continue
        if catalog is not None:
            entries += [(entry, catalog.id.sequence) for entry in catalog.entries]
    return entries


def _newest_savepoints(entries: Sequence[tuple[CatalogEntry, int]]) -> list[CatalogEntry]:
    """Return the savepoints in all catalogs of the highest sequence.

    Nothing says which of these catalogs was the last.
    """
    named = sorted(_newest_named(entries), key=lambda entry: entry.created)
    # Sorted by time before, so of two entries of one name the younger one stays.
    return _in_order({entry.name: entry for entry in named}.values())


def _proven_savepoints(
    proven: Sequence[tuple[CatalogEntry, int]],
    others: Sequence[tuple[CatalogEntry, int]],
    manifests: Mapping[CheckpointId, tuple[Ref, Manifest]],
) -> tuple[list[CatalogEntry], list[tuple[str, str]]]:
    """Return the savepoints of a signed root, and the new names of some of them.

    Whoever writes to the root can write a catalog that gives any name to any checkpoint. So only the catalog that a
    signed `_latest` names says what a name means. What the newest of the other catalogs keep is kept too, as it may
    have been a savepoint, but under a name that tells it from one.
    """
    kept = {entry.name: entry for entry, _ in proven if entry.name is not None}
    names = {entry.ref: name for name, entry in kept.items()}
    unproven = set()
    for entry in _newest_named(others):
        ref, old = entry.ref, str(entry.name)
        same = kept.get(old)
        # A manifest that was signed has another digest, or the name means the same there.
        if manifests.get(ref.id, (ref,))[0] != ref or (same is not None and same.ref == ref):
            continue
        name = names.setdefault(ref, f"unproven-{ref.id}")
        kept.setdefault(name, replace(entry, name=name))
        unproven.add((old, name))
    return _in_order(kept.values()), sorted(unproven)


def _newest_named(entries: Sequence[tuple[CatalogEntry, int]]) -> list[CatalogEntry]:
    """Return the savepoints in the catalogs of the highest sequence.

    These may have one name twice.
    """
    # Only the newest catalogs count: in older ones there are savepoints that were deleted since.
    newest = max((sequence for _, sequence in entries), default=0)
    return [entry for entry, sequence in entries if sequence == newest and entry.name is not None]


def _in_order(kept: Iterable[CatalogEntry]) -> list[CatalogEntry]:
    return sorted(kept, key=lambda entry: (entry.ref.id, entry.name))


async def _missing(
    segments: metadata.Segments, ref: Ref, manifest: Manifest, sizes: Mapping[str, int]
) -> tuple[list[str], int]:
    """Return the problems of the objects that a checkpoint needs, and their bytes.

    A problem is an object that the listing does not show, or shows with another size.
    """
    # Segments are looked for even where they cannot be read, so that a missing one is named.
    wanted = {segment.path: segment.size for op in manifest.operators.values() for segment in op.segments}
    problems = []
    try:
        whole = await segments.load(manifest)
    except UnsupportedFormatError:
        raise
    # The missing segment is told below, like every other missing object.
    except ObjectNotFoundError:
        whole = manifest
    except (CorruptionError, ObjectRefusedError) as error:
        whole = manifest
        problems.append(str(error))
    artifacts = (artifact for operator in whole.operators.values() for artifact in operator.artifacts())
    # An object of which nobody reads a byte may be missing (SPEC, Restore).
    wanted |= {artifact.path: artifact.size for artifact in artifacts if artifact.length}
    for path, size in sorted(wanted.items()):
        if sizes.get(path) != size:
            problems.append(f"{path}: expected {size} bytes, found {sizes.get(path, 'no object')}")
    return problems, sum(wanted.values()) + sizes[object_paths.manifest(ref.id)]
