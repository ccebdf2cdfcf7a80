"""Describe the findings of a verification, as objects and as text for people."""

from dataclasses import dataclass

from pyspark_checkpointer.display import count, cut, note, size, some, table
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.storage.base import Signed

_SHOWN = 5
"""The most findings that a text shows."""

_ROWS = 50
"""The most findings that a notebook shows."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    path: str
    """The object."""
    problem: str
    """A sentence that says what was expected and what was found."""
    checkpoints: tuple[CheckpointId, ...]
    """Checkpoints that cannot be restored completely because of it, oldest first."""
    missing: bool = False
    """True if the object is not there."""
    and_older: bool = False
    """True if the older checkpoints of the history cannot be restored either, except savepoints."""

    def __repr__(self) -> str:
        return f"Finding({'missing' if self.missing else 'damaged'}: {cut(self.problem, 300)}; hurts {self.some_hurt})"

    @property
    def hurt(self) -> str:
        """The checkpoints that the finding hurts, as text, oldest first."""
        return self._and_more(", ".join(map(str, self.checkpoints)))

    @property
    def some_hurt(self) -> str:
        """The newest checkpoints that it hurts, as text, and how many more there are."""
        return self._and_more(some(reversed(self.checkpoints), 3))

    @property
    def unnamed_hurt(self) -> str:
        """Return as text what the finding hurts where it names no checkpoint."""
        if self.path == object_paths.LATEST:
            return "every checkpoint: none can be found without it"
        if self.path.startswith(object_paths.CATALOGS):
            return "every checkpoint that only this catalog names, such as savepoints"
        return "no checkpoint"

    def _and_more(self, hurt: str) -> str:
        if self.path == object_paths.LATEST or self.path.startswith(object_paths.CATALOGS):
            return self.unnamed_hurt
        return f"{hurt or self.unnamed_hurt}{' and all older ones but savepoints' if self.and_older else ''}"

    def __str__(self) -> str:
        return f"{self.problem}; hurts {self.hurt}"


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification. It is true if nothing is wrong.

    It says what was looked at, and what was found.
    """

    checkpoints: int
    """Checkpoints that were compared."""
    objects: int
    """Objects that were read and compared, manifests among them."""
    bytes: int
    """Bytes of those objects."""
    skipped: int
    """Objects that were left out of the sample."""
    findings: tuple[Finding, ...]
    """The damage; empty if nothing is wrong."""
    elsewhere: tuple[Finding, ...] = ()
    """Damage that does not hurt the one checkpoint that was asked for.

    It was found on the way to that checkpoint.
    """
    signed: Signed | None = None
    """Who signed the last commit, and when; None in a root that is not signed."""
    unread: int = 0
    """Those of `objects` whose stored bytes alone were checked: this client has only the key of a cleaner."""

    def __bool__(self) -> bool:
        return not self.findings

    def __repr__(self) -> str:
        lines = list(map(repr, self.findings[:_SHOWN]))
        if len(self.findings) > _SHOWN:
            lines.append(f"and {count(len(self.findings) - _SHOWN, 'more finding')}")
        return "".join([f"Verification({self._summary})", *(f"\n  {line}" for line in lines)])

    @property
    def _summary(self) -> str:
        seen = (
            f"{count(self.checkpoints, 'checkpoint')}, {count(self.objects, 'object')} with {size(self.bytes)} compared"
        )
        left = f", {count(self.skipped, 'object')} left out" if self.skipped else ""
        left += f", {count(self.unread, 'object')} as stored" if self.unread else ""
        found = count(len(self.findings), "finding") if self.findings else "all is well"
        return f"{seen}{left}: {found}{f', {len(self.elsewhere)} elsewhere' if self.elsewhere else ''}"

    def _repr_html_(self) -> str:
        if not self.findings:
            return note(self._summary)
        rows = [("missing" if f.missing else "damaged", f.path, f.problem, f.some_hurt) for f in self.findings[:_ROWS]]
        more = f"; the first {_ROWS}" if len(self.findings) > _ROWS else ""
        return table(f"{self._summary}{more}", ("finding", "object", "problem", "hurts"), rows)

    def __str__(self) -> str:
        left = f", {self.skipped} left out" if self.skipped else ""
        left += f", {self.unread} as stored" if self.unread else ""
        seen = f"{self.checkpoints} checkpoints, {self.objects} objects with {self.bytes} bytes verified{left}"
        elsewhere = [f"elsewhere: {finding}" for finding in self.elsewhere]
        return "\n".join([f"{seen}: {len(self.findings) or 'no'} findings", *map(str, self.findings), *elsewhere])
