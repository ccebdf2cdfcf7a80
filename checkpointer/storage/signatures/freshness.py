"""Remember the newest version of each signed object that this process saw.

A version that was put back is signed as well as the one that it replaces. Only somebody who saw the newer one can tell.

A read asks for the newest version before its request. What another read sees during the request may be newer.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Generic, TypeVar

V = TypeVar("V", datetime, int)

Name = tuple[str, str]
"""The URL of a root and the path of an object."""


class Newest(Generic[V]):
    """The newest version by object, for each root that was at its URL.

    A root may be removed, and another one begun in its place. Each has a random id. What was seen of one is kept when
    another one is seen: otherwise an older version could be put back after a short visit of another root.

    It is used on the library's event loop only.
    """

    def __init__(self) -> None:
        self._seen: dict[Name, dict[str, V]] = {}

    def seen(self, name: Name) -> Mapping[str, V]:
        """Return the newest version of an object as it is now, by the id of its root."""
        return dict(self._seen.get(name, {}))

    def below(self, url: str, prefix: str) -> dict[str, Mapping[str, V]]:
        """Return the newest versions of the objects below a prefix, by path."""
        return {path: dict(seen) for (at, path), seen in self._seen.items() if at == url and path.startswith(prefix)}

    def see(self, name: Name, root_id: str, version: V) -> None:
        """Remember a version, unless a newer one of the same root was seen."""
        versions = self._seen.setdefault(name, {})
        versions[root_id] = max(version, versions.get(root_id, version))


__all__ = ["Name", "Newest"]
