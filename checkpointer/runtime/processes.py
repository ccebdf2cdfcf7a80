"""What the system tells of other processes of this machine."""

from contextlib import suppress
from pathlib import Path


def read_state(process: int) -> str:
    """Return the state letter of a process, such as `T` for stopped; nothing where the system does not tell."""
    return _field(process, 0)


def read_start(process: int) -> str:
    """Return when a process started, in ticks since the machine did; nothing where the system does not tell."""
    return _field(process, 19)


def _field(process: int, number: int) -> str:
    """Return one of the fields that Linux has of a process, from its state on. What stands before may hold blanks."""
    with suppress(OSError, IndexError):
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return text.rpartition(")")[2].split()[number]
    return ""
