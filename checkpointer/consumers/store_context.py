"""What the consumers' interfaces have in common: the configuration of a root, and its objects in each process."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pyspark_checkpointer.consumers.cas_object import Space
from pyspark_checkpointer.runtime.host import SystemHost
from pyspark_checkpointer.storage import Fencing, absolute, open_store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Root:
    """Where positions are kept, and how that store is used. See `pyspark_checkpointer.Checkpointer` for the fields.

    Those who are given one and the same `Root` have the same connections.
    """

    url: str | os.PathLike[str]
    storage_options: Mapping[str, Any] | None = field(repr=False)
    fencing: Fencing = "required"
    concurrency: int = 16
    timeout: float = 60.0
    _opened: dict[int, Space] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Resolved once: each process opens it anew, perhaps in another working directory.
        object.__setattr__(self, "url", absolute(self.url))

    def open(self) -> Space:
        """The space of this process."""
        return in_this_process(self._opened, self._open)

    def _open(self) -> Space:
        store = open_store(
            self.url,
            self.storage_options,
            fencing=self.fencing,
            concurrency=self.concurrency,
            timeout=self.timeout,
        )
        return Space(store, SystemHost())

    def __reduce__(self) -> tuple[Any, ...]:
        return Root, (self.url, self.storage_options, self.fencing, self.concurrency, self.timeout)


class Client(Generic[T]):
    """Pickles as its configuration only. In another process, a forked one too, it starts as if just made."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._made: dict[int, T] = {}
        _ = self._core  # what cannot be right is refused at once

    def _make(self, space: Space) -> T:
        """Return what does the work, in this process."""
        raise NotImplementedError

    @property
    def _core(self) -> T:
        return in_this_process(self._made, lambda: self._make(self._root.open()))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_made": {}}


class Closing:
    """What is closed when the block of a `with` ends."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def in_this_process(made: dict[int, T], make: Callable[[], T]) -> T:
    """What was made in this process, whichever of its threads was first. What a forked child finds is not its own."""
    pid = os.getpid()
    return made[pid] if pid in made else made.setdefault(pid, make())
