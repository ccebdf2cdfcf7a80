"""Whether the query that wrote a checkpoint still runs, as far as that can be told from here.

Nothing depends on the answer being right: whoever moves the pointer fences a job that runs after all. The check only
avoids fencing a job that still runs.
"""

import os
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.runtime.processes import read_start, read_state

Running = Literal["no", "yes", "unknown"]

_DIGITS = 10
"""Of a process number; what has more is none."""

_askers: list[Callable[[str], bool]] = []
"""Functions of this process that know whether a query of it is active, by its id."""


def this_driver() -> str:
    """Return this process as text, so that another one can tell whether it is still there: `pid.start@host/machine`.

    A process number is used again; with the time at which the process started it is not.
    """
    return f"{os.getpid()}.{read_start(os.getpid())}@{_here()}"


def this_copier() -> str:
    """Return this process as the one that copied a query, which need not end before the copy is started or stopped."""
    return f"{os.getpid()}@{_here()}"


def show_driver(driver: str) -> str:
    """Write the process that a job names as a person would: number and host."""
    process, _, where = driver.partition("@")
    return f"process {process.partition('.')[0]:.20} on {where.partition('/')[0]:.80}"


def ask(is_active: Callable[[str], bool]) -> None:
    """Name a function that knows whether a query of this process is active. Spark's side does so."""
    _askers.append(is_active)


def is_running(job: Job) -> tuple[Running, str]:
    """Whether the query of a batch runs, and how that is known: from this process, or from its writer's."""
    if any(is_active(job.query_id) for is_active in _askers):
        return "yes", "it is active in this process"
    if job.driver is None:
        return "unknown", "its last checkpoint does not say which process wrote it"
    process, _, where = job.driver.partition("@")
    text, _, started = process.partition(".")
    # The text comes from the store. A number that is too large would make `os.kill` raise an error of its own, and
    # process 0 would mean the group of this process.
    pid = int(text) if text.isdecimal() and len(text) < _DIGITS else 0
    if where != _here() or not pid:
        return "unknown", f"its driver, {show_driver(job.driver)}, cannot be seen from here"
    now = read_start(pid)
    another = bool(started and now and started != now)  # a process number that is used again
    # This very process, and nobody in it knows the query as active.
    if pid == os.getpid() and not another:
        return "no", "it has ended"
    if another or not _is_alive(pid):
        return "no", f"its driver, process {pid} of this machine, has ended"
    if started and now:
        return "yes", (
            f"its driver, process {pid} of this machine, is alive; where only its query has ended, end the process "
            "too, or call rewind() within it, where that can be seen"
        )
    return "unknown", f"its driver, process {pid} of this machine, is still there"


def _is_alive(pid: int) -> bool:
    try:
        # Signal 0 is not sent: the system only says whether it could be.
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return read_state(pid) not in ("Z", "X")  # one that ended and was not waited for yet has a number, and does nothing


def _here() -> str:
    """Return the name of this host with its boot and its process namespace.

    Two containers of one name, or one host before and after a reboot, are different hosts: their process ids differ.
    """
    parts = []
    with suppress(OSError):
        # Both or none, because the boot alone does not tell containers apart. Where there is no /proc, the hardware
        # address stands for the machine.
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    machine = sha256(" ".join(parts or [str(uuid.getnode())]).encode())[:12]
    return f"{socket.gethostname()}/{machine}"
