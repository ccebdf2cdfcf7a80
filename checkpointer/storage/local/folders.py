"""Make durable folders when the first file below them is written."""

import errno
import os
from contextlib import suppress

from pyspark_checkpointer.storage.local import files

_MAX_REMEMBERED = 65536
"""Folders that are remembered as durable; with one more, all are forgotten."""


class DurableFolders:
    """The folders of a root, and those above it as far as they are missing."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._durable: set[str] = set()
        """Folders whose names this process knows to be durable.

        Single set operations need no lock between threads.
        """

    def make(self, folder: str) -> None:
        """Make `folder` and those above it durable, up to the parent of the root.

        A folder that exists may have been made a moment ago by somebody who has not synced it yet. Therefore each
        process syncs every folder once that it writes below.
        """
        if not os.path.isdir(folder):
            self._durable.clear()  # it was removed since it was last seen, perhaps with the whole root
        unknown = []
        while folder not in self._durable:
            unknown.append(folder)
            if folder == self._root:
                unknown += _missing_above(folder)
                break
            folder = os.path.dirname(folder)
        # From the top down: a durable name in a folder that is not durable itself could be lost with that folder.
        for name in reversed(unknown):
            with suppress(FileExistsError):
                files.make_folder(name)
            if not os.path.isdir(name):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
            with suppress(PermissionError):  # the system may let us pass through its folders, but not open them
                files.sync_folder(os.path.dirname(name))
            if len(self._durable) >= _MAX_REMEMBERED:
                self._durable.clear()
            # Only now: another thread that finds it here relies on the sync, and does not sync again.
            self._durable.add(name)


def _missing_above(folder: str) -> list[str]:
    """Return the parents of `folder` that do not exist yet, nearest first."""
    missing = []
    while not os.path.lexists(parent := os.path.dirname(folder)):
        missing.append(parent)
        folder = parent
    return missing
