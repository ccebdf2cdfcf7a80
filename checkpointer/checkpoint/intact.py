"""Find the newest live checkpoint of which every byte is as it was written.

The search goes from the committed checkpoint down the ancestry, as far as manifests can be read and proven, and then
through the catalog. A checkpoint is intact as a whole or not at all: nothing is put together from two.
"""

from dataclasses import dataclass, replace

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.latest import Head, read_head
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.verification import Finding
from pyspark_checkpointer.checkpoint.verify import Verifier
from pyspark_checkpointer.errors import CorruptionError, StoreRefusedError
from pyspark_checkpointer.manifests.model import CatalogRef, Manifest, Ref


@dataclass(frozen=True, slots=True)
class Intact:
    """The newest intact checkpoint of one version of `_latest`.

    It has no manifest if nothing is committed yet.
    """

    head: Head
    manifest: Manifest | None
    prepared: Manifest | None
    skipped: tuple[Finding, ...]
    """The damage of the newer checkpoints, and of the prepared one."""


async def find_intact(session: Session) -> Intact:
    """Verify whole checkpoints, the newest first, until one is intact.

    Raises `CorruptionError` if none is intact, and `StoreRefusedError` where a right is missing: what the store does
    not show may be intact.
    """
    while True:
        head = await read_head(session.store)
        search = _IntactSearch(session, head)
        manifest = await search.newest()
        # A prepared checkpoint was made on top of the committed one. If that is damaged, promoting it would build on
        # the damage.
        prepared = None if head.prepared is None or search.skipped else await search.look(head.prepared)
        if search.refusal is not None:
            raise search.refusal
        if not await search.outrun():
            break
    if manifest is None and search.skipped:
        tried = ", ".join(str(ref.id) for ref in search.skipped)
        problems = "; ".join(finding.problem for finding in search.findings()[:3])
        raise CorruptionError(
            f"{session.store.url}: no checkpoint is intact; tried {tried}: {problems}: "
            "repair_candidates(), or `checkpointer repair`, lists other checkpoints to go back to"
        )
    return Intact(head, manifest, prepared, search.findings())


class _IntactSearch:
    def __init__(self, session: Session, head: Head) -> None:
        self._store = session.store
        self._head = head
        self._verifier = Verifier(session, None, 1.0)
        self._read: Manifest | None = None
        self.skipped: dict[Ref, set[str]] = {}
        """Damaged checkpoints, each with the paths of its damaged objects."""

    async def newest(self) -> Manifest | None:
        """Return the newest intact checkpoint, or None.

        Past a manifest that cannot be read, only what the catalog names is known.
        """
        pointer, ref = self._head.pointer, self._head.committed
        if pointer is None or ref is None:
            return None
        while ref is not None and ref.id.sequence >= pointer.boundary:
            if found := await self.look(ref):
                return found
            # Only a manifest that fits its digest may name the parent: anything below one that cannot be read is not
            # proven to be live.
            ref = self._read.parent if self._read is not None else None
        for ref in await self._catalogued(pointer.catalog):
            # A checkpoint of the ancestry can stand in the catalog too.
            if ref not in self.skipped and (found := await self.look(ref)):
                return found
        return None

    async def look(self, ref: Ref) -> Manifest | None:
        """Return the checkpoint's manifest if all of it is intact."""
        self._read, damaged = await self._verifier.whole(ref)
        if not damaged:
            return self._read
        self.skipped[ref] = damaged
        return None

    @property
    def refusal(self) -> StoreRefusedError | None:
        """The first refusal to show an object to this client."""
        return next(iter(self._verifier.refusals), None)

    async def _catalogued(self, catalog: CatalogRef | None) -> list[Ref]:
        """Return the catalog's checkpoints, the newest first."""
        if catalog is not None:
            with self._verifier.noting(catalog.path):
                found = await metadata.read_catalog(self._store, catalog)
                entries = found.entries if found is not None else ()
                return sorted({entry.ref for entry in entries}, key=lambda ref: ref.id, reverse=True)
        return []

    async def outrun(self) -> bool:
        """Return whether something was missing only because it was retired meanwhile.

        Then it is no damage.
        """
        before = self._verifier.findings
        await self._verifier.forget_retired(self._head)
        return self._verifier.findings != before

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings, each with all checkpoints that were skipped because of it."""
        return tuple(
            replace(found, checkpoints=tuple(sorted(ref.id for ref, bad in self.skipped.items() if found.path in bad)))
            for found in self._verifier.findings
        )
