"""Parse the text that says which checkpoint a caller means.

Python, the command line and Spark all parse it here, so they have one grammar. `resolve.py` finds the checkpoint.

    latest                              the committed one
    prepared                            the prepared one, where it is only looked at
    0000000042-1a2b3c4d                 an id
    0000000042   0000000042-1a   42-1a  the beginning of an id
    epoch=41                            the newest one of this epoch
    at=2024-01-02T06:00Z                the newest one that was made by then
    savepoint=NAME   NAME               a savepoint

A bare integer is refused: `3` could be an epoch, or the sequence in an id.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Self

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import CheckpointId

SelectorKind = Literal["latest", "prepared", "id", "beginning", "epoch", "at", "savepoint", "name"]
"""`name` is a savepoint's name without `savepoint=` before it."""

LATEST: SelectorKind = "latest"
PREPARED: SelectorKind = "prepared"

FORMS = "latest, an id or the beginning of one, epoch=41, savepoint=NAME or the bare name, or at=2024-01-02T06:00Z"
"""The grammar in one line, for errors."""

_EPOCH = re.compile(r"-?[0-9]{1,19}")  # more is no epoch: those of `begin` have 64 bits
_BEGINNING = re.compile(r"0[0-9]{9}|[0-9]{1,10}-[0-9a-f]{0,8}")  # ten digits without a zero may be a time as an epoch
_ID = re.compile(r"[0-9]{10}-[0-9a-f]{8}")

_DIGITS = 10
"""Digits of the sequence in an id."""


@dataclass(frozen=True, slots=True)
class CheckpointSelector:
    """A description of the checkpoint that a caller means.

    The checkpoint is not looked for yet. `value` depends on the form: a `CheckpointId` for an id, an integer for an
    epoch, an aware `datetime` for a time, and a text for the beginning of an id or the name of a savepoint.
    """

    kind: SelectorKind
    value: CheckpointId | int | datetime | str = ""

    @classmethod
    def parse(cls, wanted: "CheckpointId | str | CheckpointSelector") -> "CheckpointSelector":
        """Parse a text of the grammar.

        Raises `IllegalArgumentError` if the text has no form of the grammar, or could have two.
        """
        if isinstance(wanted, CheckpointSelector):
            return wanted
        if isinstance(wanted, CheckpointId):
            return cls("id", wanted)
        # Refused instead of guessed: 3 as an epoch and 3 as a sequence are different checkpoints, and both can be live.
        if isinstance(wanted, int) and not isinstance(wanted, bool):
            raise _two_readings(str(wanted))
        if not isinstance(wanted, str):
            raise IllegalArgumentError(f"expected {FORMS}, got {wanted!r:.60}")
        if wanted == LATEST:
            return cls(LATEST)
        if wanted == PREPARED:
            return cls(PREPARED)
        return cls._of_key(wanted) or cls._of_text(wanted)

    @classmethod
    def _of_key(cls, text: str) -> Self | None:
        key, equals, value = text.partition("=")
        if not equals:
            return None
        if key == "epoch":
            return cls("epoch", _to_epoch(value))
        if key == "at":
            return cls("at", _to_time(value))
        # Any other text with `=` in it may be the bare name of a savepoint.
        return cls("savepoint", value) if key == "savepoint" else None

    @classmethod
    def _of_text(cls, text: str) -> Self:
        if _ID.fullmatch(text):
            return cls("id", CheckpointId.parse(text))
        if _BEGINNING.fullmatch(text):
            return cls("beginning", text)
        if text.isascii() and text.isdigit():
            raise _two_readings(text)
        return cls("name", text)

    @classmethod
    def choose(
        cls, checkpoint: "CheckpointId | str | CheckpointSelector | None", epoch: int | None, savepoint: str | None
    ) -> "CheckpointSelector | None":
        """Turn the three arguments of `restore` into a selector.

        At most one of them may be given. Returns None if none is.
        """
        if sum(wanted is not None for wanted in (checkpoint, epoch, savepoint)) > 1:
            raise IllegalArgumentError("restore by one of id, epoch and savepoint, not by several")
        if epoch is not None:
            if isinstance(epoch, bool) or not isinstance(epoch, int):
                raise IllegalArgumentError(f"epoch {epoch!r:.40}: expected an integer")
            return cls("epoch", epoch)
        if savepoint is not None:
            if not isinstance(savepoint, str):
                raise IllegalArgumentError(f"savepoint {savepoint!r:.40}: expected a name")
            return cls("savepoint", savepoint)
        return None if checkpoint is None else cls.parse(checkpoint)

    @property
    def id(self) -> CheckpointId | None:
        """The id, if a whole one was given; else None."""
        return self.value if isinstance(self.value, CheckpointId) else None

    def __str__(self) -> str:
        if isinstance(self.value, datetime):
            return f"at={self.value.isoformat().replace('+00:00', 'Z')}"
        if self.kind in (LATEST, PREPARED):
            return self.kind
        return f"{self.kind}={self.value}" if self.kind in ("epoch", "savepoint") else str(self.value)


def _two_readings(text: str) -> IllegalArgumentError:
    """Return the error of a bare integer, with the forms that it could mean."""
    number = text.lstrip("0") or "0"
    is_sequence = number.isdigit() and len(number) <= _DIGITS
    other = f"checkpoint {number:0>{_DIGITS}}-…" if is_sequence else f"savepoint={text:.40}"
    return IllegalArgumentError(f"{text:.40} could be epoch={number:.40}, or {other}: say which")


def _to_epoch(text: str) -> int:
    if not _EPOCH.fullmatch(text):
        raise IllegalArgumentError(f"epoch={text:.40}: expected a number")
    return int(text)


def _to_time(text: str) -> datetime:
    """Read the time of `at=`.

    A day alone means its start: `2026-01-01` is 2026-01-01T00:00 in UTC.

    `at=` means the newest checkpoint that was created at that time or before.
    """
    try:
        # A time without a zone is taken as UTC, and never as the zone of this machine: one command must mean one
        # checkpoint everywhere.
        given = datetime.fromisoformat(text)
        return given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    except (ValueError, OverflowError):
        raise IllegalArgumentError(f"at={text:.40}: expected a time such as at=2024-01-02T06:00Z") from None


def means_two_things(name: str) -> bool:
    """Return whether the name of a savepoint would be read as something else.

    The library or people could read it so. `Latest` and ` latest` are not in the grammar, but people who type them do
    not mean a savepoint. A name that begins with a hyphen is an option of the command line, or the root that the
    environment names.
    """
    if name.startswith("-"):
        return True
    try:
        return CheckpointSelector.parse(name.strip().casefold()).kind != "name"
    except IllegalArgumentError:
        return True


def begins(checkpoint: CheckpointId, text: str) -> bool:
    """Return whether an id begins with `text`.

    The text may leave out the zeros if it has the hyphen.
    """
    sequence, hyphen, suffix = text.partition("-")
    if not hyphen:
        return str(checkpoint).startswith(text)
    return int(sequence) == checkpoint.sequence and checkpoint.suffix.startswith(suffix)
