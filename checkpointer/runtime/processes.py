"""Find the state and the start of other processes, as the system tells them."""

from contextlib import suppress
from pathlib import Path


def read_process_state(process: int) -> str:
    """Return the state letter of a process, such as `T` for stopped.

    It is empty if the state is unknown.
    """
    return _field(process, 0)


def read_start(process: int) -> str:
    """Return when a process started, in clock ticks since boot.

    It is empty if the start is unknown.
    """
    return _field(process, 19)


def _field(process: int, number: int) -> str:
    """Return one field of `/proc/<process>/stat`, counted from the state on."""
    # The process may be gone, the system may have no /proc, and another system's file may have fewer fields. Each means
    # that nothing is known.
    with suppress(OSError, IndexError):
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        # The name of the program stands before the state, in brackets, and may hold blanks and brackets itself.
        return text.rpartition(")")[2].split()[number]
    return ""
