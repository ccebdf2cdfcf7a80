"""Give tests, and the programs that they start, folders for their files: in memory where it has room.

A run removes its folders when it ends, with what the programs of the docs and a killed Java left there. Only the
folders of failed tests stay, and all of them if the run itself is killed.
"""

import os
import shutil
import sys
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path

# Thousands of stores are in folders, and wait for the disk at each commit.
IN_MEMORY = Path("/dev/shm")

ROOM = 8 << 30
"""The free bytes from which on files are in memory. Those of a short run are some gigabytes."""


def pytest_configure() -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # The process that started this one has named the folders.
    usual = tempfile.gettempdir()
    root = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY) if _fits_in_memory() else usual)
    # Java loads libraries from its folder, which memory may forbid.
    ours, javas = (tempfile.mkdtemp(prefix="checkpointer-tests-", dir=place) for place in (root, usual))
    os.environ["TMPDIR"] = tempfile.tempdir = ours
    # `tests/conftest.py` has set them.
    os.environ["JDK_JAVA_OPTIONS"] += f' "-Djava.io.tmpdir={javas}"'
    for folder in (ours, javas):
        # After multiprocessing has removed its own folder in it, which has the priority -100.
        Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-200)


def _fits_in_memory() -> bool:
    """Return whether this run is short, and memory has room for its files."""
    if sys.platform != "linux" or not IN_MEMORY.is_mount() or "CHECKPOINTER_PROVE" in os.environ:
        return False
    told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(told["MemAvailable"].split()[0]) << 10
    return min(free, shutil.disk_usage(IN_MEMORY).free) > ROOM and os.access(IN_MEMORY, os.W_OK)
