"""Call a file system of fsspec, and take no error for an answer."""

import errno
import ftplib  # its errors are told apart; fsspec makes the connections
from collections.abc import Mapping, Sequence
from typing import Any

_NO_SUCH_FILE = "550"
"""The code with which an FTP server says that there is no such file."""


def is_missing(error: BaseException) -> bool:
    """Return whether an error says that no file is there."""
    # fsspec makes each refusal of an FTP server a missing file, also one that says "not now".
    if isinstance(error.__cause__, ftplib.Error) and not str(error.__cause__).startswith(_NO_SUCH_FILE):
        return False
    # Some packages raise an OSError of their own class, which has only the number.
    return isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError) or (
        isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR)
    )


def is_there(fs: Any, key: str) -> bool:
    """Return whether there is a file or folder.

    Raises what the file system raises where it does not tell. Its own `exists` takes each error for an answer.
    """
    return _type_of(fs, key) is not None


def _type_of(fs: Any, key: str) -> str | None:
    """Return `file`, `directory` or another type; None if nothing is there."""
    try:
        return str(fs.info(key)["type"])
    except Exception as error:
        if not is_missing(error):
            raise
        return None


def list_folder(fs: Any, folder: str) -> Sequence[Mapping[str, Any]]:
    """Return what is directly in a folder; nothing if there is no such folder.

    Raises `OSError` where the folder changed meanwhile: some file systems list the names, and then ask for each file.
    Whoever took that for an empty folder would miss all that is in it. The FTP file system of fsspec takes any error of
    the server for an empty folder, which nobody can tell here.
    """
    try:
        found: Sequence[Mapping[str, Any]] = fs.ls(folder, detail=True)
    except Exception as error:
        if not is_missing(error):
            raise
        if _type_of(fs, folder) == "directory":
            raise OSError(f"{folder} changed while it was listed: {error}") from error
        return []
    return found


def move(fs: Any, temporary: str, key: str) -> None:
    """Move a file, and see that it was moved. A failed move is tried once more."""
    try:
        fs.mv(temporary, key)
    except Exception:
        # Where the file is gone, the move was done and its answer was lost.
        if _is_left(fs, temporary):
            fs.mv(temporary, key)
        elif not is_there(fs, key):
            raise
    # The WebHDFS file system does not look at the answer, which may say that nothing was moved.
    if _is_left(fs, temporary):
        raise OSError(f"{temporary} was not moved to {key}")


def _is_left(fs: Any, temporary: str) -> bool:
    """Return whether a file is there that was to be moved.

    Raises no `PermissionError`: that says of a write that it was refused, and the move may be done.
    """
    try:
        return is_there(fs, temporary)
    except PermissionError as error:
        raise OSError(f"{temporary}: it is not known whether it was moved: {error}") from error
