"""Verify that a store is intact.

Every link from `_latest` to the last artifact is checked. For a broken link, the checkpoints that it hurts are
reported.

This only reads: nothing is repaired, nobody is fenced, and a job may write meanwhile.

_latest → manifests of the ancestry, the catalog's and the prepared one → segments → objects → slices and tails
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.comparison import Comparison
from pyspark_checkpointer.checkpoint.history import begin_walk, read_history
from pyspark_checkpointer.checkpoint.latest import Head, find_head
from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.verification import Finding, Verification
from pyspark_checkpointer.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    IllegalArgumentError,
    OperatorNotFoundError,
    RetiredError,
    StoreRefusedError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.json_text import format_time
from pyspark_checkpointer.manifests.model import Artifact, Catalog, CheckpointId, Manifest, Operator, Ref, Segment
from pyspark_checkpointer.runtime.host import Host, Progress, tell
from pyspark_checkpointer.storage.base import (
    DAMAGE,
    ArtifactCheck,
    ObjectNotFoundError,
    ObjectRefusedError,
    Signed,
    SinkRead,
    Store,
)

MAX_CONCURRENT_READS = 16
"""Objects that are read at the same time."""

MAX_BATCH = 8 << 20
"""Bytes of objects that are read together, at most."""

MAX_CONCURRENT_DECODING = 2
"""Objects of tables whose keys are decoded at the same time. Parts of them are in memory."""

_Batch = Sequence[tuple[str, set[Artifact]]]
"""Objects, and the artifacts that each holds."""

PlaceCheck = Callable[[Store, Host, str, Operator, Artifact], Awaitable[None]]
"""A function that raises `CorruptionError` if an object of a table has a key that belongs to another partition.

It is given the name of the operator, the operator, and an artifact of that object. Tables are decoded in a higher
layer.
"""


async def verify_store(
    session: Session,
    wanted: CheckpointSelector | None,
    operator: str | None,
    share: float,
    progress: Progress | None = None,
    check_places: PlaceCheck | None = None,
    since: datetime | None = None,
) -> Verification:
    """Verify all live checkpoints and the prepared one, or one of them.

    `operator` names the one operator to verify; without it, all are verified.

    `share` is the chance of each object to be read, from 0 (only what names objects) to 1. Each call draws anew.
    `progress` gets numbers of bytes. With `check_places`, the keys of tables are checked too. A last commit that
    was signed before `since` is a finding.
    """
    check_share(share)
    _check_since(since)
    checkpoint = None if wanted is None else wanted.id or await find(session, wanted)
    verifier = Verifier(session, operator, share, progress, check_places)
    head = None
    with verifier.noting(object_paths.LATEST):
        # Not `read_head`, which raises where `_latest` is lost. Here that is a finding like any other.
        head = await find_head(session.store)
    if head is not None and head.pointer is not None:
        verifier.objects += 1
        verifier.signed = await session.store.signed(object_paths.LATEST)
        verifier.look_for_age(since)
        await verifier.run(head, checkpoint)
        await verifier.forget_retired(head, checkpoint)
    elif checkpoint is not None and head is not None:
        raise CheckpointNotFoundError(f"{session.store.url}: no live checkpoint {checkpoint}")
    if checkpoint is None and head is not None:
        await verifier.look_above(head)
    return verifier.result()


def _check_since(since: datetime | None) -> None:
    # NaT of pandas is a datetime that is later than no other one, so that nothing would be checked.
    if since is not None and (not isinstance(since, datetime) or since != since):
        raise IllegalArgumentError(f"since={since!r:.60}: expected a datetime; one without a zone is in UTC")


def check_share(share: float) -> None:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise IllegalArgumentError(f"share={share!r:.40}: expected a number from 0 to 1")


class Verifier:
    """One run of the verification, with what it has seen so far."""

    def __init__(
        self,
        session: Session,
        operator: str | None,
        share: float,
        progress: Progress | None = None,
        check_places: PlaceCheck | None = None,
    ) -> None:
        self._progress, self._check_places = progress, check_places
        self._decoding = asyncio.Semaphore(MAX_CONCURRENT_DECODING)
        self._store, self._host = session.store, session.host
        self._operator = operator
        self.share = share
        # New for each run, so that runs of a small share look at other objects each time.
        self._seed = session.host.token(16).encode()
        self._shared = metadata.Segments(self._store, self._host)
        self._loaded: dict[tuple[str, ...], Operator] = {}
        self._segments: dict[str, asyncio.Task[bool]] = {}
        """Tasks that return whether a segment is intact, by its path."""
        self._looked_at: set[Artifact] = set()
        self.manifests: dict[Ref, Manifest] = {}
        self.catalog: Catalog | None = None
        self.findings: list[Finding] = []
        self.elsewhere: list[Finding] = []
        """Damage that does not hurt the one checkpoint that was asked for.

        It was found on the way.
        """
        self.refusals: list[StoreRefusedError] = []
        """Findings of objects that the store refused to show to this client. They may be intact."""
        self.objects = self.bytes = self.skipped = self.unread = 0
        self.signed: Signed | None = None

    @contextmanager
    def noting(self, path: str, *known: CheckpointId, and_older: bool = False) -> Iterator[None]:
        """Turn the error of a damaged or missing object into a finding.

        The program goes on after the block. The finding hurts the checkpoints that are `known`. If there are none, it
        hurts the checkpoints that name the object.
        """
        try:
            yield
        except ObjectNotFoundError:
            problem = f"{path}: expected an object, found none"
            self.findings.append(Finding(path, problem, tuple(sorted(known or self._naming(path))), True, and_older))
        except (CorruptionError, StoreRefusedError) as error:  # such as a disk that fails, or a right that is missing
            # Without the pointer nothing at all was looked at, so there is no report to give.
            if path == object_paths.LATEST and isinstance(error, StoreRefusedError | UnsupportedFormatError):
                raise
            # What it shows to nobody is lost as if it were damaged.
            if isinstance(error, StoreRefusedError) and not isinstance(error, ObjectRefusedError):
                self.refusals.append(error)
            hurt = tuple(sorted(known or self._naming(path)))
            self.findings.append(Finding(path, str(error), hurt, False, and_older))

    def look_for_age(self, since: datetime | None) -> None:
        """Report a last commit that was signed before a moment."""
        if since is None:
            return
        if self.signed is None:
            raise IllegalArgumentError(
                f"{self._store.url}: is not signed, so nothing tells how old it is: leave out since"
            )
        if self.signed.at < (since if since.tzinfo is not None else since.replace(tzinfo=UTC)):
            problem = (
                f"{object_paths.LATEST}: expected a commit that was signed since {format_time(since)}, found one of "
                f"{format_time(self.signed.at)}: an older version was put back, or nothing was committed since"
            )
            self.findings.append(Finding(object_paths.LATEST, problem, ()))

    def result(self) -> Verification:
        """Return what was checked and found up to now."""
        findings, elsewhere = (
            tuple(sorted(group, key=lambda finding: finding.path)) for group in (self.findings, self.elsewhere)
        )
        return Verification(
            len(self.manifests), self.objects, self.bytes, self.skipped, findings, elsewhere, self.signed, self.unread
        )

    async def run(self, head: Head, checkpoint: CheckpointId | None) -> None:
        await self.read_manifests(head)
        if checkpoint is not None:
            self._leave(checkpoint)
        if self._operator is not None:
            self._require_operator(self._operator)
        for ref, manifest in self.manifests.items():
            self.manifests[ref] = await self.with_chains(manifest)
        await self.read_objects()

    def _leave(self, checkpoint: CheckpointId) -> None:
        """Restrict the run to one checkpoint.

        Findings that do not hurt it are kept apart.
        """
        self.manifests = {ref: manifest for ref, manifest in self.manifests.items() if ref.id == checkpoint}
        is_known = bool(self.manifests) or any(checkpoint in finding.checkpoints for finding in self.findings)
        hurting: list[Finding] = []
        others: list[Finding] = []
        for finding in self.findings:
            # Its manifest was not reached, because one above it is damaged. So that damage hurts it, although nothing
            # names it.
            out_of_reach = finding.and_older and not self.manifests and checkpoint < min(finding.checkpoints)
            # Nor was it, if only the catalog names it.
            out_of_reach |= finding.path.startswith(object_paths.CATALOGS) and not is_known
            (hurting if checkpoint in finding.checkpoints or out_of_reach else others).append(finding)
        if not self.manifests and not hurting:
            raise CheckpointNotFoundError(f"{self._store.url}: no live checkpoint {checkpoint}")
        self.findings, self.elsewhere = hurting, others

    def _require_operator(self, name: str) -> None:
        """Raise if no checkpoint has the operator.

        A checkpoint that cannot be read may have the operator. Then the findings say so.
        """
        known = {known for manifest in self.manifests.values() for known in manifest.operators}
        if name not in known and not self.findings:
            raise OperatorNotFoundError(
                f"operator {name!r:.80}: none of the verified checkpoints has it; they have "
                f"{', '.join(sorted(known)) or 'none'}"
            )

    async def whole(self, ref: Ref) -> tuple[Manifest | None, set[str]]:
        """Return one checkpoint, and the damaged or missing objects that it needs.

        The checkpoint is returned as far as it can be read.

        Objects that were checked for another checkpoint are not read again.
        """
        path = object_paths.manifest(ref.id)
        with self.noting(path, ref.id):
            manifest = await metadata.read_manifest_alone(self._store, ref)
            self.manifests = {ref: manifest}
            self.manifests[ref] = await self.with_chains(manifest)
            await self.read_objects()
            needed = metadata.objects_of(ref, manifest) | metadata.objects_of(ref, self.manifests[ref])
            return self.manifests[ref], needed & {finding.path for finding in self.findings}
        return None, {path}

    async def read_manifests(self, head: Head) -> None:
        """Check everything that `head` makes live, as far as it can be read and proven."""
        assert head.pointer is not None
        boundary, ref = head.pointer.boundary, head.committed
        steps = await begin_walk(self._store, ref, boundary)
        while ref is not None and ref.id.sequence >= boundary:
            manifest = None
            with self.noting(object_paths.manifest(ref.id), ref.id, and_older=ref.id.sequence > boundary):
                _, manifest = await anext(steps)
            # Only a manifest names its parent, so the chain is lost below one that cannot be read.
            if manifest is None:
                break
            self._add(ref, manifest)
            ref = manifest.parent
        others = [] if head.prepared is None else [head.prepared]
        catalog = head.pointer.catalog
        with self.noting("" if catalog is None else catalog.path):
            self.catalog = await metadata.read_catalog(self._store, catalog)
        if self.catalog is not None:
            self.objects += 1
            others += [entry.ref for entry in self.catalog.entries]
        damaged = {finding.path for finding in self.findings}
        for ref in dict.fromkeys(others):
            if ref not in self.manifests and object_paths.manifest(ref.id) not in damaged:
                with self.noting(object_paths.manifest(ref.id), ref.id):
                    self._add(ref, await metadata.read_manifest_alone(self._store, ref))

    def _add(self, ref: Ref, manifest: Manifest) -> None:
        self.manifests[ref] = manifest
        self.objects += 1

    async def with_chains(self, manifest: Manifest) -> Manifest:
        """Return the manifest with its chains, but without damaged operators.

        It has only the operators that were asked for.
        """
        names = [name for name in manifest.operators if self._operator in (None, name)]
        # All at once: dozens of operators may have a segment or two. The store bounds the requests.
        loaded = await asyncio.gather(*(self._with_chains(name, manifest.operators[name]) for name in names))
        operators = {name: one for name, one in zip(names, loaded, strict=True) if one is not None}
        return replace(manifest, operators=operators)

    async def _with_chains(self, name: str, operator: Operator) -> Operator | None:
        """Return an operator with its chains; None if a segment of it is damaged."""
        if not operator.segments:
            return operator
        # By the whole stack of segments: checkpoints between two changes of an operator share it, and the chains are
        # built once.
        key = (name, *(segment.path for segment in operator.segments))
        if key not in self._loaded:
            if not all(await asyncio.gather(*(self._is_intact(name, operator, s) for s in operator.segments))):
                return None
            with self.noting(key[-1]):
                self._loaded[key] = await self._shared.load_operator(name, operator)
        loaded = self._loaded.get(key)
        # Only the chains are shared: a checkpoint may change the schema of an operator and nothing else.
        return None if loaded is None else replace(operator, chains=loaded.chains, patches=loaded.patches)

    async def _is_intact(self, name: str, operator: Operator, segment: Segment) -> bool:
        """Return whether a segment is intact; each is looked at once."""
        if segment.path not in self._segments:
            # A damaged segment is one finding, whoever asks for it next.
            self._segments[segment.path] = asyncio.ensure_future(self._read_segment(name, operator, segment))
        return await self._segments[segment.path]

    async def _read_segment(self, name: str, operator: Operator, segment: Segment) -> bool:
        with self.noting(segment.path):
            await self._shared.read(name, operator, segment)
            self.objects += 1
            self.bytes += segment.size
            return True
        return False

    def _naming(self, path: str) -> Iterator[CheckpointId]:
        """Yield the checkpoints that need an object."""
        for ref, manifest in self.manifests.items():
            if path in metadata.objects_of(ref, manifest):
                yield ref.id

    async def read_objects(self) -> None:
        named: dict[str, set[Artifact]] = {}
        tables: dict[str, tuple[str, Operator]] = {}
        for manifest in self.manifests.values():
            for name, operator in manifest.operators.items():
                for artifact in (artifact for chain in operator.chains.values() for artifact in chain):
                    named.setdefault(artifact.path, set()).add(artifact)
                    if codecs.kind_of(operator) == "table":
                        tables[artifact.path] = name, operator
        # An object of which nobody reads a byte may be missing (SPEC, Restore). What another checkpoint named in just
        # this way was compared already.
        named = {
            path: artifacts
            for path, artifacts in named.items()
            if any(artifact.length for artifact in artifacts) and not artifacts <= self._looked_at
        }
        drawn = {path: artifacts for path, artifacts in named.items() if self._draws(path)}
        self.skipped += len(named) - len(drawn)
        # One iterator for all workers: each takes the next batch. No lock is needed, since they run on one event loop.
        queue = _batches(sorted(drawn.items()), self._store.reads_at_once)
        done, total = 0, sum(_size(artifacts) for artifacts in drawn.values())

        check = await self._store.artifact_check()

        async def work() -> None:
            nonlocal done
            for batch in queue:
                answers = await (self._compare(batch) if check is None else self._check(batch, check))
                for (path, artifacts), found in zip(batch, answers, strict=True):
                    await self._judge_object(path, artifacts, found, tables.get(path))
                    done += _size(artifacts)
                    await tell(self._host, self._progress, done, total)

        workers = [asyncio.ensure_future(work()) for _ in range(MAX_CONCURRENT_READS)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                # `gather` lets the others run on after an error of one.
                worker.cancel()

    async def _compare(self, batch: _Batch) -> list[Comparison | CheckpointError]:
        """Read objects; return the comparison or the error of each."""
        reads = [
            SinkRead(path, partial(Comparison, path, _size(artifacts), artifacts), _size(artifacts))
            for path, artifacts in batch
        ]
        return await self._store.read_each_into(reads)

    async def _check(self, batch: _Batch, check: ArtifactCheck) -> list[CheckpointError | None]:
        """Check objects as they are stored; return the error of each, or None.

        What manifests say of their parts is not compared: this client cannot read them.
        """
        answers: list[CheckpointError | None] = []
        for path, artifacts in batch:
            answer = None
            try:
                await check(path, _size(artifacts))
            except CheckpointError as error:
                answer = error
            answers.append(answer)
        return answers

    def _draws(self, path: str) -> bool:
        # A hash of the path and one random seed, because randomness comes from the host, which a test can replay.
        # 13 digits are 52 bits, which a float holds exactly.
        return int(sha256(self._seed + path.encode())[:13], 16) < self.share * 16**13

    async def _judge_object(
        self,
        path: str,
        artifacts: set[Artifact],
        found: Comparison | CheckpointError | None,
        table: tuple[str, Operator] | None,
    ) -> None:
        """Count an object that was read, or note what is wrong with it."""
        # Also where it is found damaged: the finding is there, and need not be made again.
        self._looked_at |= artifacts
        with self.noting(path):
            if isinstance(found, CheckpointError):
                raise found
            if found is not None:
                found.finish()
            else:
                self.unread += 1
            self.objects += 1
            self.bytes += _size(artifacts)
            if found is not None and self._check_places is not None and table is not None:
                held = next(artifact for artifact in artifacts if artifact.length)
                async with self._decoding:
                    await self._check_places(self._store, self._host, *table, held)

    async def look_above(self, head: Head) -> None:
        """Find manifests of sequences that no attempt has on this version."""
        # Here, as whoever only restores an intact checkpoint needs nothing of it.
        from pyspark_checkpointer.checkpoint.old_copy import find_above

        above = await find_above(self._store, head)
        if above.unproven is not None:
            path = object_paths.manifest(above.unproven)
            self.findings.append(Finding(path, above.unproven_problem(), (), missing=False))
        if above.newer is None:
            return
        problem = f"expected an object, found none, though {above.newer} was written: it was lost"
        if head.pointer is not None:
            problem = (
                f"expected the newest version, found one that commits {head.sequence}; {above.newer} was written too: "
                "was an old copy put in its place?"
            )
        problem = (
            f"{object_paths.LATEST}: {problem}; repair_candidates(), or `checkpointer repair`, lists what the root can "
            "be repaired to"
        )
        self.findings.append(Finding(object_paths.LATEST, problem, (), missing=head.pointer is None))

    async def forget_retired(self, head: Head, asked: CheckpointId | None = None) -> None:
        """Leave out findings of objects that were deleted meanwhile.

        The checkpoints that needed them are left out too. Raises `RetiredError` if the one that was `asked` for is
        among them: nothing was verified then.
        """
        if not any(finding.missing for finding in (*self.findings, *self.elsewhere)):
            return
        now = await find_head(self._store)
        if now.version == head.version:
            return
        try:
            live = set((await read_history(self._store, now)).refs())
        except DAMAGE:
            return  # nothing proves that anything was retired
        # A prepared checkpoint is no part of the history, and was looked at all the same.
        live |= {now.prepared.id} if now.prepared else set()
        if asked is not None and asked not in live:
            raise RetiredError(f"{self._store.url}: {asked} was retired meanwhile: choose another")
        self.findings, self.elsewhere = _of_live(self.findings, live), _of_live(self.elsewhere, live)


def _size(artifacts: set[Artifact]) -> int:
    """Return the size of an object.

    If manifests disagree, this is the smallest size, so that no more than that is read. At least one of these manifests
    is wrong, so `Comparison` raises in any case.
    """
    return min(artifact.size for artifact in artifacts)


def _batches(objects: _Batch, most: int) -> Iterator[_Batch]:
    """Yield the objects in batches to read: small ones together, others alone."""
    # Few objects are spread over all workers.
    most = min(most, max(len(objects) // MAX_CONCURRENT_READS, 1))
    left = list(reversed(objects))
    while left:
        batch = [left.pop()]
        size = _size(batch[0][1])
        while left and len(batch) < most and (size := size + _size(left[-1][1])) <= MAX_BATCH:
            batch.append(left.pop())
        yield batch


def _of_live(findings: list[Finding], live: set[CheckpointId]) -> list[Finding]:
    """Leave out checkpoints that are not live any more.

    Findings of missing objects are left out if no other checkpoint needs them.
    """
    kept = [replace(f, checkpoints=tuple(c for c in f.checkpoints if c in live)) for f in findings]
    return [finding for finding in kept if finding.checkpoints or not finding.missing]
