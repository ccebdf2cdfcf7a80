"""Compare an object with its name and with the manifests.

An object is compared while its bytes go by.
"""

import hashlib
from collections.abc import Iterable

from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import check_digest, check_size
from pyspark_checkpointer.manifests.model import Artifact


class _Part:
    """Bytes of an object that have a digest of their own."""

    __slots__ = ("digest", "end", "name", "seen", "start")

    def __init__(self, name: str, start: int, length: int, digest: str) -> None:
        self.name, self.start, self.end, self.digest = name, start, start + length, digest
        self.seen = hashlib.sha256()


class Comparison:
    """A comparison of one object, made while its bytes go by.

    The object is compared with its own name, and its parts with what the manifests say of them.
    """

    def __init__(self, path: str, size: int, artifacts: Iterable[Artifact]) -> None:
        self._path, self._expected, self._size = path, size, 0
        digest = object_paths.digest_of(path)
        artifacts = [*artifacts]
        self._claims = {part.size for part in artifacts}
        # The object itself comes first, so that a fault of it is reported under its plain path.
        named = {(0, size, digest): path}  # many partitions may name the same bytes
        for part in artifacts:
            named.setdefault((part.offset, part.length, part.digest), f"{path} (from byte {part.offset})")
            if part.tail is not None:
                length = part.tail.length
                named.setdefault((size - length, length, part.tail.digest), f"{path} (tail)")
        parts = [_Part(name, *part) for part, name in named.items()]
        self._parts = parts
        # Reversed, because taking from the end of a list moves nothing.
        self._coming = sorted(parts, key=lambda part: part.start, reverse=True)
        self._open: list[_Part] = []

    def update(self, piece: bytes, /) -> None:
        view, start, end = memoryview(piece), self._size, self._size + len(piece)
        while self._coming and self._coming[-1].start < end:
            self._open.append(self._coming.pop())
        for part in self._open:
            # Slices of a view copy nothing, however many parts overlap.
            part.seen.update(view[max(part.start - start, 0) : part.end - start])
        self._open = [part for part in self._open if part.end > end]
        self._size = end

    def compare(self, data: bytes) -> None:
        """Compare a whole object at once."""
        self.update(data)
        self.finish()

    def finish(self) -> None:
        """Raise `DigestMismatchError` unless everything was as expected.

        A fault of the object itself is reported before those of its parts.
        """
        check_size(self._path, self._size, self._expected)
        for part in self._parts:
            check_digest(part.name, part.seen.hexdigest(), part.digest)
        # A manifest that claims another size than the intact object has cannot be restored.
        for claim in sorted(self._claims):
            check_size(self._path, self._size, claim)
