"""A root in memory on which every effect is looked at, and what it holds, by content."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.manifest_json import decode_pointer
from pyspark_checkpointer.manifests.model import Ref
from pyspark_checkpointer.storage.base import Blob
from pyspark_checkpointer.storage.memory.store import MemoryStore, forget
from tests.proof.versions import Reader, Version, Violation, went_back
from tests.world import Actor, World

T = TypeVar("T")

Content = tuple[Any, dict[str, dict[int, list[bytes]]]]
"""A checkpoint: epoch, positions and properties, and the stored bytes of every operator."""


@dataclass(frozen=True, slots=True)
class View:
    """What a store holds, by content: ids differ from run to run."""

    latest: Content | None
    live: list[Content]
    savepoints: dict[str, Content]
    prepared: Content | None


class Onlooker:
    """Sees every effect on a root. `broken` has what must not be: `_latest` that goes back or comes a second time, or
    that leads to what is not there, and deletions of what a live or prepared checkpoint names."""

    def __init__(self, objects: dict[str, Blob]) -> None:
        self._objects = objects
        self._reader = Reader(objects)
        self._values = {objects[object_paths.LATEST].data} if object_paths.LATEST in objects else set()
        self.broken: list[str] = []
        self.now: Version | None = self._look()

    def swapped(self) -> None:
        data = self._objects[object_paths.LATEST].data
        self._must(data not in self._values, "a value of _latest came a second time")
        self._values.add(data)
        old = self.now
        self.now = self._look()
        self._must(self.now is not None, f"_latest was written as {data!r:.200}")
        if old is not None and self.now is not None:
            self.broken += went_back(old, self.now)

    def deleted(self, paths: Sequence[str]) -> None:
        lost = set() if self.now is None else self.now.paths & {*paths}
        self._must(not lost, f"what is live was deleted: {sorted(lost)}")

    def view(self) -> View | None:
        """What is there; None where `_latest` is no pointer."""
        version = self.now
        if version is None:
            return None
        found = {ref: self._content(ref) for ref in sorted(version.live, key=lambda ref: ref.id)}
        return View(
            latest=None if version.committed is None else found[version.committed],
            live=list(found.values()),
            savepoints={name: found[entry.ref] for name, entry in version.savepoints.items()},
            prepared=None if version.prepared is None else self._content(version.prepared),
        )

    def garbage(self) -> set[str]:
        """What a cleanup should have deleted. A name that is not of the format is never touched: the proof that a new
        root keeps conditions leaves one behind where it is interrupted."""
        left = set() if self.now is None else self.now.garbage(self._objects)
        return {path for path in left if object_paths.owner(path) is not None}

    def _look(self) -> Version | None:
        found = self._objects.get(object_paths.LATEST)
        if found is None:
            return Version(None)
        try:
            return self._reader.version(decode_pointer(found.data))
        except CorruptionError:
            return None
        except Violation as violation:
            self.broken.append(str(violation))
            return None

    def _content(self, ref: Ref) -> Content:
        manifest = self._reader.manifest(ref)
        operators = {
            name: {partition: list(map(self._reader.slice, chain)) for partition, chain in operator.chains.items()}
            for name, operator in manifest.operators.items()
        }
        return (manifest.epoch, manifest.positions, manifest.properties, manifest.watermark), operators

    def _must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.broken.append(otherwise)


class WatchedStore(MemoryStore):
    """Tells an onlooker of swaps and deletions; nothing else can change what is there."""

    def __init__(self, url: str, onlooker: Onlooker) -> None:
        super().__init__(url)
        self._onlooker = onlooker

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        version = await super().compare_and_swap(path, data, expected)
        if path == object_paths.LATEST:
            self._onlooker.swapped()
        return version

    async def delete(self, paths: Sequence[str]) -> None:
        await super().delete(paths)
        self._onlooker.deleted(paths)


class WatchedWorld(World):
    """A root that holds some objects to begin with, and that an onlooker watches."""

    def __init__(self, objects: dict[str, Blob]) -> None:
        super().__init__()
        assert isinstance(self.store, MemoryStore)
        self.objects_now = self.store.objects
        self.objects_now.update(objects)
        self.onlooker = Onlooker(self.objects_now)

    def actor(self, **options: Any) -> Actor:
        return Actor(WatchedStore(self._url, self.onlooker), **options)


@dataclass(frozen=True, slots=True)
class Saved:
    """What a root holds, to be put back as often as wanted."""

    objects: dict[str, Blob]

    @classmethod
    def after(cls, setup: Callable[[Actor], object], **options: Any) -> "Saved":
        with cls({}).world() as world:
            setup(world.actor(**options))
            assert not world.onlooker.broken, world.onlooker.broken
            return cls.of(world)

    @classmethod
    def of(cls, world: WatchedWorld) -> "Saved":
        return cls(dict(world.objects_now))

    @contextmanager
    def world(self) -> Iterator[WatchedWorld]:
        world = WatchedWorld(self.objects)
        try:
            yield world
        finally:
            forget(world.store.url)
