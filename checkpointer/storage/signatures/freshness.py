"""Remember the newest version of each signed object that this process saw.

A version that was put back is signed as well as the one that it replaces. Only somebody who saw the newer one can tell.

A read asks for the newest version before its request. What another read sees during the request may be newer.
"""

from datetime import datetime
from typing import Generic, TypeVar

V = TypeVar("V", datetime, int)

Name = tuple[str, str]
"""The URL of a root and the path of an object."""


class Newest(Generic[V]):
    """The newest version by object, with the random id of its root.

    Another root may have the same URL later. It is used on the library's event loop only.
    """

    def __init__(self) -> None:
        self._seen: dict[Name, tuple[str, V]] = {}

    def seen(self, name: Name) -> tuple[str, V] | None:
        """Return the id of the root and the newest version of an object, or None."""
        return self._seen.get(name)

    def see(self, name: Name, root_id: str, version: V) -> None:
        """Remember a version, unless a newer one of the same root was seen."""
        if not is_older(version, root_id, self._seen.get(name)):
            self._seen[name] = root_id, version


def is_older(version: V, root_id: str, seen: tuple[str, V] | None) -> bool:
    """Return whether a version is older than one of the same root that was seen."""
    return seen is not None and seen[0] == root_id and version < seen[1]


__all__ = ["Name", "Newest", "is_older"]
