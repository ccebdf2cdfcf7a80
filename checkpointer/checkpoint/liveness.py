"""Find out whether the query that wrote a checkpoint still runs.

This is only known as far as it can be seen from here. Nothing depends on the answer being right: if a job runs after
all, a swap of the pointer fences it. The answer spares such a job, and its users, that end.
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
from pyspark_checkpointer.runtime.processes import read_process_state, read_start

Running = Literal["no", "yes", "unknown"]

_DIGITS = 10
"""Number of digits from which on a text is no process number."""

_askers: list[Callable[[str], bool]] = []
"""Functions of this process that know whether a query of it is active, by its id."""


def this_driver() -> str:
    """Return this process as text: `pid.start@host/machine`.

    Another process can find out by this text whether this process still exists. A process number is used again, but
    never with the same start time.
    """
    return f"{os.getpid()}.{read_start(os.getpid())}@{_here()}"


def this_copier() -> str:
    """Return this process as the one that copied a query, as text.

    It need not end before the copy is started or stopped.
    """
    return f"{os.getpid()}@{_here()}"


def show_driver(driver: str) -> str:
    """Return a job's process as people write it: number and host."""
    process, _, where = driver.partition("@")
    return f"process {process.partition('.')[0]:.20} on {where.partition('/')[0]:.80}"


def ask(is_active: Callable[[str], bool]) -> None:
    """Register a function that knows whether a query of this process is active.

    Spark's side does so.
    """
    _askers.append(is_active)


def is_running(job: Job) -> tuple[Running, str]:
    """Return whether the query of a batch runs, and how that is known.

    It is known from this process, or from the process that wrote the batch.
    """
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
    # Without both times the process may be another one, which was given the same number.
    if started and now:
        return "yes", (
            f"its driver, process {pid} of this machine, is alive; if only its query has ended, end the process "
            "too, or call rewind() in that process"
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
    # One that ended and was not waited for yet has a number, and does nothing.
    return read_process_state(pid) not in ("Z", "X")


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
