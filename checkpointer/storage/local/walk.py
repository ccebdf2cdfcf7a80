"""List the files below a folder, in no order and without following links.

Memory grows with the number of folders, not with the number of files.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress

LOST_AND_FOUND = "lost+found"
"""The folder at the top of a disk for files that a check of the disk found."""


def files_below(root: str, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield path and size of each regular file whose path starts with `prefix`.

    The paths are relative to `root`. A file that is created or removed meanwhile may be missing or not. Where the root
    is a whole disk, only its administrator may read its `lost+found`, which is left out then.
    """
    folders = [prefix.rpartition("/")[0]]
    while folders:
        folder = folders.pop()
        try:
            entries = os.scandir(os.path.join(root, folder))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            if folder != LOST_AND_FOUND:
                raise
            continue
        with entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    # Below the prefix, or on the way to it.
                    if f"{path}/".startswith(prefix) or prefix.startswith(f"{path}/"):
                        folders.append(path)
                # Links, sockets and the like are none of the store's objects, which are always regular files.
                elif path.startswith(prefix) and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        yield path, entry.stat(follow_symlinks=False).st_size


def folders_in(folder: str) -> list[str]:
    """Return the names of the folders directly in a folder.

    There are none where the folder is missing.
    """
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


class FileWalk:
    """A listing in progress, from which files are taken a page at a time.

    It has ended with the first page that is not full. A listing that failed raises the same error again on each call.
    It must not look like a listing that has ended.
    """

    def __init__(self, steps: Iterator[tuple[str, int]]) -> None:
        self._steps = steps
        self._failure: Exception | None = None
        self.ended = False

    def give_up(self, failure: Exception) -> None:
        """Make the listing fail from now on.

        Otherwise a page that nobody received would be missing unnoticed.
        """
        self._failure = self._failure or failure

    def take(self, number: int) -> list[tuple[str, int]]:
        """Return the next files, at most `number` of them."""
        if self._failure is not None:
            raise self._failure
        try:
            taken = [*itertools.islice(self._steps, number)]
        except OSError as failure:
            self._failure = failure
            raise
        self.ended = len(taken) < number
        return taken
