"""Walking over the files of a folder, in no order and without following links: memory for folders, not for files."""

import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import suppress


def files_below(root: str, prefix: str) -> Iterator[tuple[str, int]]:
    """Path below `root` and size of every regular file whose path starts with `prefix`.

    What comes or goes meanwhile may be there or not.
    """
    folders = [prefix.rpartition("/")[0]]
    while folders:
        folder = folders.pop()
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(os.path.join(root, folder)) as entries,
        ):
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if f"{path}/".startswith(prefix) or prefix.startswith(f"{path}/"):
                        folders.append(path)
                elif path.startswith(prefix) and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        yield path, entry.stat(follow_symlinks=False).st_size


def folders_in(folder: str) -> list[str]:
    """Return the names of the folders directly in a folder; none where it is not there."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


class Walk:
    """A walk that is taken some steps at a time. One that failed fails again: it must not look like one that ended."""

    def __init__(self, steps: Iterator[tuple[str, int]]) -> None:
        self._steps = steps
        self._failure: OSError | None = None
        self.ended = False

    def give_up(self) -> None:
        """From now on it fails: a page that nobody received must not be missing unnoticed."""
        self._failure = self._failure or OSError(errno.EIO, "a page of this listing was lost")

    def take(self, number: int) -> list[tuple[str, int]]:
        if self._failure is not None:
            raise self._failure
        try:
            taken = [*itertools.islice(self._steps, number)]
        except OSError as failure:
            self._failure = failure
            raise
        self.ended = len(taken) < number
        return taken
