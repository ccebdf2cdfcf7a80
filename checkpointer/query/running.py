"""Whether the query that wrote a checkpoint still runs, as far as that can be told from here.

Nothing depends on the answer being right: whoever moves the pointer fences a job that runs after all. It spares such a
job, and its users, the end.
"""

import os
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from manifests.digest import sha256
from manifests.model import Job

Running = Literal["no", "yes", "unknown"]

_DIGITS = 10
"""Of a process number; what has more is none."""

_askers: list[Callable[[str], bool]] = []
"""Functions of this process that know whether a query of it is active, by its id."""


def this_driver() -> str:
    """This process, so that another one can tell whether it is still there: `pid@host/machine`."""
    return f"{os.getpid()}@{_here()}"


def ask(is_active: Callable[[str], bool]) -> None:
    """Name a function that knows whether a query of this process is active. Spark's side does so."""
    _askers.append(is_active)


def is_running(job: Job) -> tuple[Running, str]:
    """Whether the query of a batch runs, and how that is known: of this process, or of the one that wrote the batch."""
    if any(is_active(job.query_id) for is_active in _askers):
        return "yes", "it is active in this process"
    if job.driver is None:
        return "unknown", "its last checkpoint does not say which process wrote it"
    text, _, where = job.driver.partition("@")
    pid = int(text) if text.isdecimal() and len(text) < _DIGITS else 0
    if where != _here() or not pid:
        return "unknown", f"its driver, process {pid} on {where.partition('/')[0]:.80}, cannot be seen from here"
    if pid == os.getpid():
        return "no", "it has ended"
    if _is_alive(pid):
        return "unknown", f"its driver, process {pid} of this machine, is still there"
    return "no", f"its driver, process {pid} of this machine, has ended"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    with suppress(OSError, IndexError):  # one that ended and was not waited for yet has a number, and does nothing
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return True


def _here() -> str:
    """This host, and what tells apart those of one name: boots, and containers with process numbers of their own."""
    parts = []
    with suppress(OSError):
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    machine = sha256(" ".join(parts or [str(uuid.getnode())]).encode())[:12]
    return f"{socket.gethostname()}/{machine}"
