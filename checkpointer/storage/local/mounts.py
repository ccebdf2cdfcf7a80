"""Find the file system of a folder, and whether a lock there spans hosts.

A lock that works excludes writers on other hosts.
"""

import re
from collections.abc import Callable
from pathlib import Path

Table = Callable[[], str]
"""Returns the text of a mount table, in the format of /proc/self/mountinfo."""

# On these file systems a lock may hold on one host only, or not at all, whatever the call returns. Not among them: a
# block device behind FUSE (fuseblk) and a folder of the host inside a virtual machine (virtiofs), where all writers
# share one kernel.
_SHARED = re.compile(
    r"nfs4?|cifs|smb\w*|ncpfs?|fuse|fuse\..+|9p|afs|coda|ceph|lustre|gpfs|beegfs|glusterfs|orangefs|pvfs2|panfs"
    r"|ocfs2|gfs2|vboxsf|vmhgfs|prl_fs|drvfs|wslfs"
)


def system_table() -> str:
    """Return the mount table of this process.

    It is empty where the system has none in this format.
    """
    try:
        # A mount point may be any bytes, also such as are no UTF-8.
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def file_system(folder: str, table: str) -> tuple[str, str] | None:
    """Return the mount point and type of a folder's file system.

    None if the table does not say. `folder` is an absolute path without symbolic links.
    """
    best: tuple[str, str] | None = None
    for line in table.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        # A line that says nothing forbids nothing: the user would have no way to put it right.
        if not separator or len(fields) < 5 or not right:
            continue
        point = _unescape(fields[4])
        # The later of two mounts on the same point hides the earlier one.
        if _holds(point, folder) and (best is None or len(point) >= len(best[0])):
            best = point, right.split(" ")[0]
    return best


def shared_mount(folder: str, table: str) -> tuple[str, str] | None:
    """Return the mount point and type of a network or FUSE file system.

    None if the folder is on neither.
    """
    found = file_system(folder, table)
    return found if found is not None and _SHARED.fullmatch(found[1]) else None


def is_in_memory(folder: str, table: str) -> bool:
    """Return whether the files of a folder take memory in place of a disk."""
    found = file_system(folder, table)
    return found is not None and found[1] in ("tmpfs", "ramfs")


def _holds(point: str, folder: str) -> bool:
    return folder == point or folder.startswith(point.rstrip("/") + "/")


def _unescape(text: str) -> str:
    # The kernel writes spaces, tabs, line feeds and backslashes of a path as octal numbers.
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
