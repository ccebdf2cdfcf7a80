"""A judge who sees every effect on a store, knows who made it, and what must hold of each version of `_latest`.

It reads the bytes with the decoders of the format, and shares nothing else with what it judges. The rules it keeps:

* the committed sequence and the boundary never go back, and no value of `_latest` comes twice;
* a new committed checkpoint stands on the one before it, and holds what that one held and its own token, or it is a
  rollback to what was asked for;
* only objects become live that were live in the version before, or that this very attempt wrote;
* all that is live or prepared is there, with the bytes that were written first, after every single effect;
* nothing stops being live but by those who may end it: savepoints by name, checkpoints by deletion or retention;
* a savepoint keeps what was asked for, and nobody else makes one;
* what was acknowledged happened, and what was refused never happens, however late a request lands.
"""

from contextvars import ContextVar
from dataclasses import dataclass

from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.manifest_json import decode_pointer
from pyspark_checkpointer.manifests.model import CatalogEntry, CheckpointId, Manifest
from pyspark_checkpointer.testing.simulation import Effect, Simulation
from tests.proof.versions import Reader, Version, Violation, went_back

END = b"|"
"""What ends a token."""


@dataclass(slots=True, eq=False)
class Deed:
    """Something that an actor is at, and what it may change. Requests know it by their context."""

    actor: str
    kind: str
    name: str = ""
    """Of the savepoint that it makes or takes away; the id of what it promotes, aborts or deletes."""
    session: object = None
    host: int = 0
    drawn: int = 0
    """How many tokens its host had drawn before: what it draws itself comes after them."""
    begun: int = 0
    """The number of the version that was the last one when it began."""
    target: CheckpointId | str | None = None
    """What a savepoint is to keep, or a rollback to bring back: None for the newest, the name of a savepoint."""
    keep_last: int = 0
    """How many of the newest checkpoints retention leaves."""
    meant: CatalogEntry | None = None
    """What had the name of the savepoint when the deed first looked."""

    def drew(self, checkpoint: CheckpointId) -> bool:
        """Whether an id was drawn for this very deed."""
        return int(checkpoint.suffix[:4], 16) == self.host and int(checkpoint.suffix[4:], 16) > self.drawn


ENDS_CHECKPOINTS = ("clean", "retain", "delete")
"""The deeds after which checkpoints may no longer be live."""

ENDS_PREPARED = ("abort", "rollback", "promote")

WRITES = ("commit", "prepare", "promote", "abort", "rollback")


DEED: ContextVar[Deed] = ContextVar("deed")


class GarbageClassifier:
    """Watches one store, from now on."""

    def __init__(self, simulation: Simulation) -> None:
        simulation.watch = self
        self._reader = Reader(simulation.store.objects)
        self.versions: list[Version] = [Version(None)]
        self.refused: dict[CheckpointId, str] = {}
        self.committed: dict[CheckpointId, bytes] = {}
        """Every checkpoint that ever was committed, with its content."""
        self._values: set[bytes] = set()
        self._written: dict[str, bytes] = {}
        self._owner: object = None
        """The session that took over last."""
        self._fenced: set[object] = set()

    @property
    def now(self) -> Version:
        return self.versions[-1]

    def __call__(self, effect: Effect) -> None:
        request = effect.request
        if request.kind == "get" and request.path == object_paths.LATEST:
            self._look(effect.context[DEED])
        if not effect.changed:
            return
        if request.kind == "delete":
            lost = self.now.paths & {*request.path.split(" ")}
            self._must(not lost, f"{effect.actor} deleted what is live: {sorted(lost)}")
        elif request.path == object_paths.LATEST:
            self._must(bytes(request.data) not in self._values, "a value of _latest came a second time")
            self._values.add(bytes(request.data))
            version = self._reader.version(decode_pointer(bytes(request.data)))
            self._compare(effect.context[DEED], self.now, version)
            self.versions.append(version)
        else:
            same = self._written.setdefault(request.path, bytes(request.data)) == request.data
            self._must(same or request.path not in self.now.paths, f"{effect.actor} wrote over {request.path}")

    def _look(self, deed: Deed) -> None:
        if deed.kind == "delete_savepoint" and deed.meant is None:
            deed.meant = self.now.savepoints.get(deed.name)
        if deed.kind == "restore":  # from here on it may take over again
            self._fenced.discard(deed.session)

    # ---- what the actors were told -------------------------------------------------------------------------------

    def acknowledged(self, checkpoint: CheckpointId) -> None:
        self._must(checkpoint in self.committed, f"{checkpoint} was acknowledged and never committed")

    def refuse(self, checkpoint: CheckpointId, why: str) -> None:
        """It was called dead: so it is, and so it stays."""
        self.refused[checkpoint] = why
        self._must(checkpoint not in self.committed, f"{checkpoint} was refused and is committed: {why}")

    def restored(self, deed: Deed, checkpoint: CheckpointId, content: bytes) -> None:
        """A reader got this, as the latest."""
        self._must(content == self.committed.get(checkpoint), f"{checkpoint} was restored as {content!r}")
        known = any(
            version.committed is not None and version.committed.id == checkpoint for version in self._since(deed)
        )
        self._must(known, f"{checkpoint} was restored, and not committed at any moment of that")

    def found_nothing(self, deed: Deed) -> None:
        """A reader was told that nothing is committed."""
        empty = any(version.committed is None for version in self._since(deed))
        self._must(empty, f"{deed.actor} was told that nothing is committed")

    def done(self, deed: Deed) -> None:
        """A savepoint, or its deletion, was acknowledged."""
        found = [version.savepoints.get(deed.name) for version in self._since(deed)]
        if deed.kind == "delete_savepoint":
            gone = deed.meant is not None and any(entry != deed.meant for entry in found)
            self._must(gone, f"{deed.actor}: {deed.name} was not deleted")
        else:
            kept = any(entry is not None and deed.target in (None, entry.ref.id) for entry in found)
            self._must(kept, f"{deed.actor}: {deed.name} does not keep {deed.target}")

    def _since(self, deed: Deed) -> list[Version]:
        """All versions at any moment of a deed."""
        return self.versions[deed.begun :]

    # ---- the rules -----------------------------------------------------------------------------------------------

    def _compare(self, deed: Deed, old: Version, new: Version) -> None:
        before, after = old.pointer, new.pointer
        assert after is not None
        for rule in went_back(old, new):
            self._must(False, rule)
        if before is not None:
            same = after.writer.instance == before.writer.instance
            self._must(after.writer.epoch == before.writer.epoch + (not same), "the writer's epoch is wrong")
        if deed.kind in WRITES:
            self._must(deed.session not in self._fenced, f"{deed.actor} ({deed.kind}) was fenced, and wrote")
            self._must(before is None or same == (deed.session is self._owner), f"{deed.actor} wrote as another")
            if deed.session is not self._owner:
                self._fenced.add(self._owner)
                self._owner = deed.session
        else:
            self._must(before is not None and same, f"{deed.actor} ({deed.kind}) took over")
        for ref in new.live | ({new.prepared} if new.prepared else set()):
            known = ref in old.live or ref == old.prepared
            own = deed.drew(ref.id) and ref.id.sequence > old.sequence
            self._must(known or own, f"{deed.actor} ({deed.kind}) made {ref.id} live, which was dead")
            if own and not known:
                foreign = {path for path in self._reader.paths(ref) - old.paths if object_paths.owner(path) != ref.id}
                self._must(not foreign, f"{ref.id} names what was dead: {sorted(foreign)}")
        fresh = new.prepared if new.prepared != old.prepared else None
        if fresh is not None:
            self._must(
                fresh.id not in self.refused, f"{fresh.id} was prepared, and refused: {self.refused.get(fresh.id)}"
            )
        self._compare_committed(deed, old, new)
        self._compare_kept(deed, old, new)

    def _compare_committed(self, deed: Deed, old: Version, new: Version) -> None:
        ref = new.committed
        if ref is None or ref == old.committed:
            return
        manifest = self._reader.manifest(ref)
        self._must(manifest.parent == old.committed, f"{ref.id} stands on {manifest.parent}, not on {old.committed}")
        self._must(ref.id not in self.refused, f"{ref.id} was committed, and refused: {self.refused.get(ref.id)}")
        meant = deed.kind == "promote" and deed.name == str(ref.id)
        self._must(ref != old.prepared or meant, f"{deed.actor} ({deed.kind} {deed.name}) promoted {ref.id}")
        content = self._content(manifest)
        if deed.kind == "rollback":
            named = {e.ref for v in self._since(deed) for e in v.savepoints.values() if e.name == deed.target}
            asked = {self.committed[one.id] for one in old.live if one.id == deed.target or one in named}
            self._must(content in asked, f"{ref.id} rolled back to {content!r}, and not to {deed.target}")
        else:
            parent = b"" if old.committed is None else self.committed[old.committed.id]
            one_more = content == parent + str(ref.id).encode() + END
            self._must(one_more, f"{ref.id} holds {content!r} on top of {parent!r}")
            before = set() if old.committed is None else {*self._reader.manifest(old.committed).operators}
            self._must(before <= manifest.operators.keys(), f"{ref.id} has lost one of {before}")
        self.committed[ref.id] = content

    def _compare_kept(self, deed: Deed, old: Version, new: Version) -> None:
        gone = old.live - new.live
        self._must(
            not gone or deed.kind in ENDS_CHECKPOINTS,
            f"{deed.actor} ({deed.kind}) ended {sorted(ref.id for ref in gone)}",
        )
        made = {name: entry for name, entry in new.savepoints.items() if old.savepoints.get(name) != entry}
        for name, entry in made.items():
            newest = {version.committed for version in self._since(deed)}
            asked = entry.ref in newest if deed.target is None else entry.ref.id == deed.target
            own = deed.kind == "savepoint" and name == deed.name
            self._must(own and asked, f"{deed.actor} ({deed.kind} {deed.name}) made {name} keep {entry.ref.id}")
        newest_kept = gone & {*old.ancestry[: deed.keep_last]}
        self._must(not newest_kept, f"{deed.actor} ended {newest_kept}, of the newest {deed.keep_last}")
        named = {entry.ref for entry in old.savepoints.values()}
        taken = {name for name, entry in old.savepoints.items() if new.savepoints.get(name) != entry}
        if deed.kind == "delete_savepoint":
            meant = {deed.name} if old.savepoints.get(deed.name) == deed.meant else set()
            self._must(taken <= meant, f"{deed.actor} deleted {taken}, and meant {deed.meant}")
        else:
            self._must(not taken, f"{deed.actor} ({deed.kind}) dropped the savepoints {taken}")
            self._must(not gone & named, f"{deed.actor} ({deed.kind}) ended what savepoints keep")
        if deed.kind == "delete":
            self._must({str(ref.id) for ref in gone} <= {deed.name}, f"{deed.actor} deleted {gone}, not {deed.name}")
        if old.prepared is not None and new.prepared != old.prepared and new.committed != old.prepared:
            self._must(deed.kind in ENDS_PREPARED, f"{deed.actor} ({deed.kind}) dropped {old.prepared.id}")
            own = deed.kind == "rollback" or deed.name == str(old.prepared.id)
            self._must(own, f"{deed.actor} dropped {old.prepared.id}, which is not {deed.name}")

    def _content(self, manifest: Manifest) -> bytes:
        """What a checkpoint holds: a token for each commit."""
        return b"".join(map(self._reader.slice, manifest.operators["log"].chains[0]))

    def _must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Violation(f"version {len(self.versions)}: {otherwise}")
