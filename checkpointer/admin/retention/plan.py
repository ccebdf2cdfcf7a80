"""Hold the plan of a cleanup: the action for every object, and the reason.

The rows go to a compressed temporary file while the store is listed, so a plan takes no more memory for a million
objects than for a thousand. It can be saved, looked at, and applied later (`garbage_collect.py`).
"""

import io
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, BinaryIO

import zstandard

from pyspark_checkpointer.admin.encrypted_file import PLAN, decrypt_file, encrypt_file, is_encrypted
from pyspark_checkpointer.admin.retention.classifier import PlanRow
from pyspark_checkpointer.admin.retention.reachability import DELETE, KEEP, LATER, Action
from pyspark_checkpointer.admin.retention.spool import Spool, Total, count_row, lines_of
from pyspark_checkpointer.admin.retention.waiting import PlannedFollower
from pyspark_checkpointer.display import count, cut, note, size, table
from pyspark_checkpointer.errors import IllegalArgumentError, MalformedError, UnsupportedFormatError
from pyspark_checkpointer.manifests.model import CheckpointId, Ref
from pyspark_checkpointer.manifests.shown import show
from pyspark_checkpointer.storage.local import files

if TYPE_CHECKING:
    from pyspark_checkpointer.storage.encryption.data_keys import DataKeys

PLAN_VERSION = 2

_MAX_SHOWN_CHECKPOINTS = 20
"""Checkpoints that a notebook lists."""


@dataclass(frozen=True, slots=True)
class PlannedCheckpoint:
    """A live checkpoint, and whether the policy keeps it."""

    id: CheckpointId
    """The id of the checkpoint."""
    keep: bool
    """True if it is kept."""
    reason: str
    """The rule that keeps it, or why none does."""


@dataclass(slots=True, weakref_slot=True)
class CleanupPlan:
    """A plan of a cleanup, for the store as it was at one moment.

    `Checkpointer.plan` returns it. Iterating gives the rows.

    Each row is about one object. It has the action ("keep", "later", "delete"), the reason, and the checkpoint that
    names the object. Beyond some fifty thousand rows they are in a temporary file, so a plan takes hardly more memory
    for a million objects than for a thousand.

    Attributes:
        root: The root, without secrets.
        nonce: The nonce of the `_latest` that the plan was made on; None if there was none.
        grace: How long the objects of a retired checkpoint stay.
        checkpoints: Each live checkpoint, whether it is kept, and why.
        retired: The ids and digests of the checkpoints that are to be retired.
        totals: Objects and bytes by action and reason.
        note: Why nothing is retired although the policy would retire some, or what else there is to say; or None.
        followers: The named followers of tables, each with what stays for it, or by how much the plan outruns it.
        from_file: Whether the plan was loaded from a file, which somebody may have edited.

    Examples:
        >>> from pyspark_checkpointer import Checkpointer, RetentionPolicy
        >>> ck = Checkpointer("state/visits")
        >>> for epoch in range(3):
        ...     with ck.begin(epoch=epoch) as cp:
        ...         cp.snapshot("totals", 0, b"%d" % epoch)
        >>> plan = ck.plan(RetentionPolicy(keep_last=1))
        >>> [checkpoint.keep for checkpoint in plan.checkpoints].count(False)
        2
        >>> {row.action for row in plan} <= {"keep", "later", "delete"}
        True
        >>> plan.save("plan.zst")
        >>> cleaned = ck.apply(CleanupPlan.load("plan.zst"))
        >>> len(ck.list_checkpoints())
        1
    """

    root: str
    nonce: str | None
    """The nonce of the `_latest` that the plan was made on; None where there was none."""
    grace: timedelta
    checkpoints: tuple[PlannedCheckpoint, ...] = ()
    retired: tuple[Ref, ...] = ()
    totals: dict[tuple[Action, str], Total] = field(default_factory=dict)
    note: str | None = None
    """A remark for the reader, or None.

    For example it says why nothing is retired although the policy would retire some.
    """
    followers: tuple[PlannedFollower, ...] = ()
    from_file: bool = False
    """True if the plan was loaded from a file, which somebody may have edited."""
    _spool: Spool | None = field(default=None, repr=False)
    keys: "DataKeys | None" = field(default=None, repr=False, compare=False)
    """The keys of an encrypted root, with which the plan is saved."""

    def __repr__(self) -> str:
        sums = [f"{action} {count(t.objects, 'object')} with {size(t.bytes)}" for action, t in self._sums().items()]
        gone = sum(not checkpoint.keep for checkpoint in self.checkpoints)
        said = [f"retire {gone} of {count(len(self.checkpoints), 'checkpoint')}", *sums]
        said += [cut(follower) for follower in self.followers if follower.matters]
        return f"CleanupPlan({self.root!r}: {', '.join(said)}{f'; {cut(self.note, 200)}' if self.note else ''})"

    def _sums(self) -> dict[Action, Total]:
        """Return objects and bytes by action."""
        return {action: self.total(action) for action in (DELETE, LATER, KEEP)}

    def __iter__(self) -> Iterator[PlanRow]:
        """Yield the rows in the order of the listing. Each iteration reads them again."""
        if self._spool is None:
            return
        with self._spool.reader() as file:
            # A file that was cut off may read without an error, so the rows are counted.
            missing = sum(total.objects for total in self.totals.values())
            try:
                for line in lines_of(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)):
                    yield PlanRow(*json.loads(line))
                    missing -= 1
                if missing:
                    raise ValueError(f"{missing} rows are missing")
            except (ValueError, TypeError, RecursionError, zstandard.ZstdError) as error:
                raise MalformedError(f"a saved plan of {self.root}: expected rows, found {error!r:.100}") from None

    def total(self, action: Action) -> Total:
        """Return objects and bytes of one action, whatever the reason.

        Args:
            action: "keep", "later" or "delete".

        Examples:
            >>> total = CleanupPlan.load("plan.zst").total("keep")
            >>> total.objects > 0
            True
        """
        return sum((total for (of, _), total in self.totals.items() if of == action), Total())

    def _repr_html_(self) -> str:
        """Return the plan as HTML for a notebook.

        It has the totals by action and reason, and the checkpoints that are retired.
        """
        rows = [(action, total.objects, size(total.bytes), why) for (action, why), total in sorted(self.totals.items())]
        gone = [(c.id, c.reason) for c in self.checkpoints if not c.keep]
        shown = table(f"Plan for {self.root}", ("action", "objects", "size", "reason"), rows)
        if gone:
            first = f", the first {_MAX_SHOWN_CHECKPOINTS}" if len(gone) > _MAX_SHOWN_CHECKPOINTS else ""
            shown += table(
                f"{count(len(gone), 'checkpoint')} retired{first}", ("id", "reason"), gone[:_MAX_SHOWN_CHECKPOINTS]
            )
        shown += "".join(note(str(follower)) for follower in self.followers if follower.matters)
        return shown + note(self.note) if self.note else shown

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file, for `load`. Only its owner may read a new file.

        The plan of an encrypted root has digests of contents, so it is encrypted with the keys of the root, and only
        `load_plan` of a client of that root loads it.

        Args:
            path: The path of the file. An existing file is replaced.

        Raises:
            IllegalArgumentError: The file cannot be written.

        Examples:
            >>> plan.save("for-review.zst")
            >>> CleanupPlan.load("for-review.zst").from_file
            True
        """
        header = {
            "plan_version": PLAN_VERSION,
            "root": self.root,
            "nonce": self.nonce,
            "grace": self.grace.total_seconds(),
            "note": self.note,
            "followers": [astuple(follower) for follower in self.followers],
            "checkpoints": [[str(c.id), c.keep, c.reason] for c in self.checkpoints],
            "retired": [[str(ref.id), ref.digest] for ref in self.retired],
            "totals": [[action, reason, *astuple(total)] for (action, reason), total in self.totals.items()],
        }
        try:
            with open(path, "wb", opener=files.private) as out:
                # Encrypted as a whole, in memory: a row takes some ten bytes here.
                whole = out if self.keys is None else io.BytesIO()
                whole.write(json.dumps(header).encode() + b"\n")
                if self._spool is not None:
                    with self._spool.reader() as rows:
                        shutil.copyfileobj(rows, whole)
                if self.keys is not None and isinstance(whole, io.BytesIO):
                    out.write(encrypt_file(self.keys, PLAN, whole.getbuffer()))
        except OSError as error:
            raise IllegalArgumentError(f"{path}: {error.strerror}: a plan cannot be saved there") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "CleanupPlan":
        """Return a plan that was saved.

        Args:
            path: The path of the file.

        Raises:
            IllegalArgumentError: The file cannot be read, or is encrypted: `load_plan` of a client loads it.
            MalformedError: The file is damaged, or is not a plan.
            UnsupportedFormatError: Another version of the library wrote it. Make the plan again.

        Examples:
            >>> loaded = CleanupPlan.load("plan.zst")
            >>> loaded.root == plan.root, loaded.from_file
            (True, True)
        """
        return read_plan(path, None)

    def _check(self) -> None:
        """Read all rows.

        Raises `MalformedError` where the totals and checkpoints of the header are not theirs.
        """
        # Anybody may have edited the file. A wrong type would else be found only while objects are deleted.
        texts = (self.root, self.nonce or "", self.note or "", *(ref.digest for ref in self.retired))
        if not all(type(text) is str for text in texts):
            raise MalformedError(f"a saved plan of {show(self.root)}: expected texts, found {show(list(texts))}")
        for f in self.followers:
            numbers = (f.behind or 0, f.keeps, f.outrun)
            if type(f.name) is not str or not all(type(number) is int for number in numbers):
                raise MalformedError(f"a saved plan of {self.root}: expected a follower, found {show(astuple(f))}")
        # By type and not `isinstance`: JSON has booleans, which Python counts as integers.
        if not all(type(total.objects) is type(total.bytes) is int for total in self.totals.values()):
            raise MalformedError(f"a saved plan of {self.root}: expected totals in whole numbers")
        totals: dict[tuple[Action, str], Total] = {}
        for row in self:
            texts = (row.path, row.reason, row.referenced_by or "", row.leftover or "")
            sound = type(row.size) is int and row.action in (KEEP, LATER, DELETE)
            if not sound or not all(type(text) is str for text in texts):
                raise MalformedError(f"a saved plan of {self.root}: expected a row, found {row!r:.200}")
            count_row(totals, row)
        going = {checkpoint.id for checkpoint in self.checkpoints if not checkpoint.keep}
        if totals != self.totals or going != {ref.id for ref in self.retired}:
            raise MalformedError(f"a saved plan of {self.root}: its rows do not add up to its totals")

    def attach(self, spool: "Spool") -> None:
        """Take over the rows and their totals, for `plan_retire_and_sweep`."""
        self._spool, self.totals = spool, spool.totals


def read_plan(path: str | os.PathLike[str], keys: "DataKeys | None") -> CleanupPlan:
    """Return a plan that was saved, perhaps encrypted with some keys.

    Raises as `CleanupPlan.load` does.
    """
    try:
        file: BinaryIO = open(path, "rb")  # noqa: SIM115  # only opening may raise this error
    except OSError as error:
        raise IllegalArgumentError(f"{path}: {error.strerror}: expected a saved plan") from None
    with file:
        if is_encrypted(file):
            file = io.BytesIO(decrypt_file(path, PLAN, file.read(), keys))
        try:
            header = json.loads(file.readline())
            if header["plan_version"] != PLAN_VERSION:
                raise UnsupportedFormatError(f"{path}: a plan of version {header['plan_version']}: make a new plan")
            plan = CleanupPlan(
                root=header["root"],
                nonce=header["nonce"],
                grace=timedelta(seconds=header["grace"]),
                checkpoints=tuple(PlannedCheckpoint(CheckpointId.parse(i), k, r) for i, k, r in header["checkpoints"]),
                retired=tuple(Ref(CheckpointId.parse(i), digest) for i, digest in header["retired"]),
                totals={(action, reason): Total(*total) for action, reason, *total in header["totals"]},
                note=header["note"],
                followers=tuple(PlannedFollower(*values) for values in header["followers"]),
                from_file=True,
                keys=keys,
            )
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise MalformedError(f"{path}: expected a saved plan, found {error!r:.100}") from None
        with Spool() as spool:
            # The rows are compressed already, so they are copied as they are, past the packer.
            shutil.copyfileobj(file, spool)
        plan._spool = spool
        # Checked as a whole before anybody gets it: a plan from a file may have been damaged or edited, and it
        # deletes.
        plan._check()
        return plan
