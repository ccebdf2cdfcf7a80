"""What a root whose `_latest` says nothing can be repaired to: every manifest that is there, and what speaks for it.

Nothing here proves which commit was the last. It is put side by side for somebody to choose.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark_checkpointer import display
from pyspark_checkpointer.admin.streaming.offset_log import SparkLog, open_log, read_log
from pyspark_checkpointer.checkpoint import objects
from pyspark_checkpointer.checkpoint.latest import read_damaged
from pyspark_checkpointer.checkpoint.writer import Session
from pyspark_checkpointer.display import table
from pyspark_checkpointer.errors import CorruptionError, IllegalArgumentError, UnsupportedFormatError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CatalogEntry, CatalogRef, CheckpointId, Job, Manifest, Ref
from pyspark_checkpointer.storage.base import ObjectNotFoundError


@dataclass(frozen=True, slots=True)
class Candidate:
    """A manifest that a root could be repaired to, with the evidence that it was once committed."""

    id: CheckpointId
    problems: tuple[str, ...]
    """Why it is not whole: what is damaged, missing, or not of its size. Digests are compared by `repair` itself."""
    epoch: int | None = None
    created: datetime | None = None
    job: Job | None = None
    bytes: int = 0
    """Stored bytes of all objects it names."""
    committed: bool = False
    """Whether what is left of `_latest` names it as the committed one: the strongest evidence."""
    children: int = 0
    """Manifests that name it as their parent, by id and digest: it was committed when they were begun."""
    catalogs: int = 0
    """Catalogs that name it: it was live when they were written."""
    savepoints: tuple[str, ...] = ()
    """The names it has in those catalogs."""
    batch_done: bool | None = None
    """Whether Spark's own progress says that its batch was finished; None where that was not looked at."""

    @property
    def proven(self) -> bool:
        """Whether anything shows that it was committed. One without proof may be an attempt that never was."""
        return self.committed or bool(self.children or self.catalogs or self.batch_done)

    @property
    def evidence(self) -> list[str]:
        """What speaks for or against it, in words."""
        said = ["committed, says what is left of _latest"] * self.committed
        said += [f"parent of {self.children}"] * bool(self.children)
        said += [f"in {self.catalogs} catalogs"] * bool(self.catalogs)
        said += [f"savepoint {name!r}" for name in self.savepoints]
        if self.batch_done is not None:
            said.append(f"its batch was {'' if self.batch_done else 'not '}finished, says Spark")
        return said

    def __repr__(self) -> str:
        proof = display.some(self.evidence) or "no evidence that it was committed"
        problems = (
            f"; {display.count(len(self.problems), 'problem')}: {display.some(self.problems, 2)}"
            if self.problems
            else "; whole"
        )
        return f"Candidate({self.id}, epoch {self.epoch}, {display.size(self.bytes)}; {proof}{problems})"

    def _repr_html_(self) -> str:
        return Candidates([self])._repr_html_()

    def __str__(self) -> str:
        said = [f"epoch {self.epoch}", f"{self.bytes} bytes", *self.evidence, *self.problems]
        return f"{self.id}: {', '.join(said)}"


class Candidates(list[Candidate]):
    """A list of candidates that a notebook shows as a table, the best first."""

    def _repr_html_(self) -> str:
        rows = [
            (
                c.id,
                c.epoch,
                display.moment(c.created),
                display.size(c.bytes),
                display.some(c.evidence) or "none",
                display.some(c.problems, 3) or "none",
            )
            for c in self
        ]
        return table("Candidates for a repair", ("id", "epoch", "created", "size", "evidence", "problems"), rows)


@dataclass(frozen=True, slots=True)
class StoreScan:
    """All that a root holds, whatever its `_latest` says."""

    top: int
    """The highest sequence in any name."""
    manifests: Mapping[CheckpointId, tuple[Ref, Manifest]]
    candidates: Sequence[Candidate]
    """The best first: whole ones, the one that `_latest` named, the newest, what is proven."""
    savepoints: Sequence[CatalogEntry]
    """Those of the newest catalogs that can be read, oldest first."""


async def candidates(
    session: Session,
    spark_checkpoint: str | os.PathLike[str] | None,
    spark_storage_options: Mapping[str, Any] | None,
) -> list[Candidate]:
    """Return every manifest of the root with its evidence, the best first. Only reads."""
    progress = None if spark_checkpoint is None else await read_progress(spark_checkpoint, spark_storage_options)
    _, latest = await read_damaged(session.store)
    return Candidates((await survey(session, latest, progress)).candidates)


async def read_progress(location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> SparkLog:
    """Return what a query's `checkpointLocation` says; `IllegalArgumentError` where it has not finished a batch."""
    store = open_log(location, storage_options)
    try:
        log = await read_log(store)
    finally:
        await store.close()
    if log.finished is None:
        raise IllegalArgumentError(f"{log.url}: expected a checkpointLocation of Spark, with commits/ of a batch")
    return log


async def survey(session: Session, latest: bytes, progress: SparkLog | None = None) -> StoreScan:
    """List the root and read every manifest and catalog; of other objects only existence and size are looked at."""
    store = session.store
    sizes = {entry.path: entry.size for entry in await store.list("")}
    owners = {path: owner for path in sizes if (owner := object_paths.owner(path)) is not None}
    unfinished = [object_paths.owner(leftover.path) for leftover in await store.leftovers()]
    sequences = [owner.sequence for owner in [*owners.values(), *unfinished] if owner is not None]

    found: dict[CheckpointId, tuple[Ref, Manifest]] = {}
    broken: dict[CheckpointId, str] = {}
    ids = [owner for path, owner in owners.items() if path == object_paths.manifest(owner)]
    for known, one in zip(ids, await asyncio.gather(*(_find(session, i) for i in ids)), strict=True):
        if isinstance(one, str):
            broken[known] = one
        else:
            found[known] = one
    entries = await _read_catalogs(session, [path for path in owners if path.startswith(object_paths.CATALOGS)])

    entries_of: dict[Ref, list[CatalogEntry]] = {}
    for entry, _ in entries:
        entries_of.setdefault(entry.ref, []).append(entry)
    children = Counter(manifest.parent for _, manifest in found.values())
    digests: dict[CheckpointId, set[str]] = {}
    for named in {*children, *entries_of}:
        if named is not None:
            digests.setdefault(named.id, set()).add(named.digest)
    listed = [Candidate(known, (problem,)) for known, problem in broken.items()]
    for ref, manifest in found.values():
        own = entries_of.get(ref, [])
        missing, size = await _missing(session, ref, manifest, sizes)
        others = sorted(digests.get(ref.id, set()) - {ref.digest})
        problems = [
            f"{object_paths.manifest(ref.id)}: expected SHA-256 {digest}, found {ref.digest}" for digest in others
        ]
        listed.append(
            Candidate(
                id=ref.id,
                problems=(*problems, *missing),
                epoch=manifest.epoch,
                created=manifest.created,
                job=manifest.job,
                bytes=size,
                committed=f'"committed":{{"id":"{ref.id}","digest":"{ref.digest}"}}'.encode() in latest,
                children=children[ref],
                catalogs=len(own),
                savepoints=tuple(sorted({entry.name for entry in own if entry.name is not None})),
                batch_done=None if progress is None else progress.has_finished(manifest.job),
            )
        )
    listed.sort(key=_rank, reverse=True)
    return StoreScan(max(sequences, default=0), found, listed, _newest_savepoints(entries))


def _rank(candidate: Candidate) -> tuple[bool, bool, int, bool, float, CheckpointId]:
    """Higher is better. Of two attempts at one sequence, neither proven, the later one had seen the other fail."""
    made = candidate.created.timestamp() if candidate.created else 0.0
    whole = not candidate.problems
    return (whole, candidate.committed, candidate.id.sequence, candidate.proven, made, candidate.id)


async def _find(session: Session, checkpoint: CheckpointId) -> tuple[Ref, Manifest] | str:
    """Return a manifest, or what is wrong with it. A newer format is for a newer library to repair."""
    try:
        return await objects.find_manifest(session.store, checkpoint)
    except UnsupportedFormatError:
        raise
    except (CorruptionError, ObjectNotFoundError) as error:
        return str(error)


async def _read_catalogs(session: Session, paths: Sequence[str]) -> list[tuple[CatalogEntry, int]]:
    """Return all entries of all catalogs that can be read, each with the sequence of its catalog."""
    entries = []
    for path in paths:
        try:
            catalog = await objects.read_catalog(session.store, CatalogRef(path, object_paths.digest_of(path)))
        except UnsupportedFormatError:
            raise
        except (CorruptionError, ObjectNotFoundError):
            continue
        if catalog is not None:
            entries += [(entry, catalog.id.sequence) for entry in catalog.entries]
    return entries


def _newest_savepoints(entries: Sequence[tuple[CatalogEntry, int]]) -> list[CatalogEntry]:
    """Return those in the catalogs of the highest sequence, of which nothing says which was the last."""
    newest = max((sequence for _, sequence in entries), default=0)
    named = sorted((entry for entry, sequence in entries if sequence == newest), key=lambda entry: entry.created)
    last = {entry.name: entry for entry in named if entry.name is not None}
    return sorted(last.values(), key=lambda entry: (entry.ref.id, entry.name))


async def _missing(session: Session, ref: Ref, manifest: Manifest, sizes: Mapping[str, int]) -> tuple[list[str], int]:
    """Return what a checkpoint needs and the listing does not show as it should be; and the bytes of all it needs."""
    wanted = {segment.path: segment.size for op in manifest.operators.values() for segment in op.segments}
    problems = []
    try:
        whole = await objects.load_operators(session.store, session.host, manifest)
    except UnsupportedFormatError:
        raise
    except ObjectNotFoundError:
        whole = manifest
    except CorruptionError as error:
        whole = manifest
        problems.append(str(error))
    wanted |= {a.path: a.size for op in whole.operators.values() for chain in op.chains.values() for a in chain}
    for path, size in sorted(wanted.items()):
        if sizes.get(path) != size:
            problems.append(f"{path}: expected {size} bytes, found {sizes.get(path, 'no object')}")
    return problems, sum(wanted.values()) + sizes[object_paths.manifest(ref.id)]
