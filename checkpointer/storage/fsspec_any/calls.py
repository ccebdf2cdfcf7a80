"""Call a file system of fsspec, and take no error for an answer."""

import errno
from collections.abc import Mapping, Sequence
from typing import Any


def is_missing(error: BaseException) -> bool:
    """Return whether an error says that no file is there."""
    # Some packages raise an OSError of their own class, which has only the number.
    return isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError) or (
        isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR)
    )


def is_there(fs: Any, key: str) -> bool:
    """Return whether there is a file or folder.

    Raises what the file system raises where it does not tell. Its own `exists` takes each error for an answer.
    """
    try:
        fs.info(key)
    except Exception as error:
        if not is_missing(error):
            raise
        return False
    return True


def list_folder(fs: Any, folder: str) -> Sequence[Mapping[str, Any]]:
    """Return what is directly in a folder; nothing if there is no such folder."""
    try:
        found: Sequence[Mapping[str, Any]] = fs.ls(folder, detail=True)
    except Exception as error:
        if not is_missing(error):
            raise
        return []
    return found


def move(fs: Any, temporary: str, key: str) -> None:
    """Move a file, and see that it was moved. A failed move is tried once more."""
    try:
        fs.mv(temporary, key)
    except Exception:
        # Where the file is gone, the move was done and its answer was lost.
        if is_there(fs, temporary):
            fs.mv(temporary, key)
        elif not is_there(fs, key):
            raise
    # The WebHDFS file system does not look at the answer, which may say that nothing was moved.
    if is_there(fs, temporary):
        raise OSError(f"{temporary} was not moved to {key}")
